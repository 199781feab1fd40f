"""Tables of a report, from a comparison. Tables that only programs read are lists of records for CSV files."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from metaprobe.checkpoints.rendered_table import (
    EMPTY_CELL,
    Cell,
    Column,
    Table,
    as_records,
    count_cell,
    difference_cell,
    estimate_cell,
    number,
    number_cell,
    p_cell,
    percent,
    rate_cell,
    share_cell,
    text_cell,
)
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.report.figures import AS_STATED, RECALIBRATED
from metaprobe.eval.report.words import consequence, control_words, headline
from metaprobe.eval.results import (
    AccuracyRow,
    Comparison,
    Coupling,
    Difficulty,
    Failures,
    Finding,
    LayerSweep,
    LearningCurve,
    MethodResult,
    SeenMethod,
    SeenTokens,
    SignalComparison,
    SignalResult,
    StageAccuracy,
    TwoChoice,
)

Records = list[dict[str, Any]]
Better = Literal["", "higher", "lower"]
MetricColumn = tuple[str, str, Better]
METRICS: tuple[MetricColumn, ...] = (
    ("auroc", "AUROC", "higher"),
    ("auprc", "AUPRC", "higher"),
    ("ece", "ECE, recalibrated", "lower"),
    ("brier_skill", "Brier skill", "higher"),
    ("aurc", "AURC", "lower"),
)
"""Metrics of the tables: field of a method, title, and whether higher is better."""
WITHIN_RUNS = "Within runs"
METHOD = Column("method", "Method", "text")


def number_column(key: str, title: str, cell: Callable[[Any], Cell]) -> Column:
    """Returns a column of numbers; `cell` makes each from the row's attribute `key`.

    Args:
        key: the attribute.
        title: title of the column.
        cell: makes a cell.
    """
    return Column(key, title, cell=lambda row: cell(getattr(row, key)))


def interval_column(
    key: str, title: str, better: Better = "", *, cell: Callable[[Any], Cell] = estimate_cell, shown: bool = True
) -> Column:
    """Returns a column of intervals; `cell` makes each from the row's attribute `key`.

    Args:
        key: the attribute.
        title: title of the column.
        better: which direction is better.
        cell: makes a cell.
        shown: whether readers see the column.
    """
    return Column(key, title, "interval", better, shown, lambda row: cell(getattr(row, key)))


def gap_cell(interval: Interval | None) -> Cell:
    """Returns the cell of a difference that is called neither better nor worse."""
    return difference_cell(interval, judged=False)


def clear_winner(methods: Iterable[MethodResult], metric: MetricColumn) -> str | None:
    """Returns the method whose interval lies wholly on the better side of every other interval; None if there is none.

    This method is printed in bold. Intervals without overlap are a stricter condition than a significant difference.
    """
    field, _, better = metric
    sign = 1 if better == "higher" else -1
    # (worse end, better end) of each method; larger is better
    signed_ends = {m.name: sorted((sign * i.low, sign * i.high)) for m in methods for i in [getattr(m, field)]}
    if len(signed_ends) < 2:
        return None
    best = max(signed_ends, key=lambda name: signed_ends[name][0])
    return best if all(signed_ends[best][0] > other[1] for name, other in signed_ends.items() if name != best) else None


def methods(comparison: Comparison) -> Table:
    """Returns a table with a row a method: discrimination, differences, calibration."""

    # Columns of the table.
    def metric_column(metric: MetricColumn) -> Column:
        field, title, better = metric
        winner = clear_winner(comparison.methods, metric)
        return Column(
            field,
            title,
            "interval",
            better,
            cell=lambda method: estimate_cell(getattr(method, field), strong=method.name == winner),
        )

    def known(field: str) -> bool:
        return any(getattr(method, field) is not None for method in comparison.methods)

    def fact(name: str) -> Column:
        return Column(name, name, shown=False, cell=lambda method: number_cell(getattr(method.auroc, name)))

    def stated_column(field: str, title: str) -> Column:
        def cell(method: MethodResult) -> Cell:
            return estimate_cell(getattr(method.stated, field, None))

        return Column(f"{field}_stated", title, "interval", "lower", shown=known("stated"), cell=cell)

    usual_control = comparison.controls[0].name if comparison.controls else ""

    def over_strongest(method: MethodResult) -> Cell:
        """Returns the gain. The note names the method's strongest control if it is not `usual_control`. The gain is
        called better only if the audit agrees, after the correction for the number of controls.
        """
        cell = difference_cell(method.diff_control)
        if method.controls_on_equal_terms is None:
            return cell
        strongest = method.controls_on_equal_terms.strongest
        note = cell.note if strongest.name == usual_control else f"{cell.note} (over {strongest.name})"
        return replace(cell, note=note, mark="unclear" if cell.mark == "better" and not strongest.beaten else cell.mark)

    # The table, with the columns in the order of the page.
    first, second, recalibrated, *other_columns = map(metric_column, METRICS)
    return Table.made(
        "methods",
        "Held-out answers. In brackets: 95 % intervals, resampled by group. "
        + ("Differences are those within runs. " if known("within_runs") else "")
        + control_words(comparison),
        comparison.methods,
        Column("method", "Method", "text", cell=lambda method: text_cell(method.name)),
        number_column("coverage", "Said", share_cell),
        first,
        # Nothing to show where no confidence was stated, or of one run; the CSV keeps its columns.
        interval_column("within_runs", WITHIN_RUNS, "higher", shown=known("within_runs")),
        interval_column("diff_stated", "vs stated", cell=difference_cell, shown=known("diff_stated")),
        Column(
            "diff_control",
            "vs strongest control",
            "interval",
            shown=known("diff_control"),
            cell=over_strongest,
        ),
        second,
        stated_column("ece", "ECE, as stated"),
        recalibrated,
        stated_column("brier", "Brier, as stated"),
        interval_column("brier", "Brier, recalibrated", "lower", shown=known("stated")),
        *other_columns,
        Column(
            "family", "Family", "text", cell=lambda method: text_cell(method.family, css=f"family f-{method.family}")
        ),
        *map(fact, ("n", "groups", "level")),
    )


def controls(comparison: Comparison) -> Table:
    """Returns the headline method against every control, pooled and within runs. The CSV has every method that was
    compared with controls.
    """

    first = headline(comparison)
    rows = [
        (method.name, kind, control)
        for method in comparison.methods
        for over, kind in ((method.controls_within, "within runs"), (method.controls, "all answers"))
        if over is not None
        for control in over.controls
    ]
    return _table_with_full_csv(
        "controls",
        "AUROC minus that of every single control on the same answers, paired. The last columns: how likely a "
        "difference at least as large is by chance alone, and the same corrected for the number of controls of "
        "this method (Holm). A control is beaten where that is at most 0.05 and the interval above 0. The CSV has "
        "every learned and stated method.",
        rows,
        [row for row in rows if first and row[0] == first.name],
        Column("method", "Method", "text", cell=lambda row: text_cell(row[0])),
        Column("pairs", "Over", "text", cell=lambda row: text_cell(row[1])),
        Column("control", "Control", "text", cell=lambda row: text_cell(row[2].name)),
        Column("auroc", "Control's AUROC", cell=lambda row: number_cell(row[2].estimate)),
        Column("difference", "Difference", "interval", cell=lambda row: gap_cell(row[2].difference)),
        Column("p", "p", cell=lambda row: p_cell(row[2].p)),
        Column("p_holm", "p, Holm", better="lower", cell=lambda row: p_cell(row[2].p_holm)),
        Column(
            "beaten", "Beaten", "text", cell=lambda row: Cell("yes" if row[2].beaten else "no", float(row[2].beaten))
        ),
    )


def _table_with_full_csv(
    ident: str, caption: str, all_rows: Iterable[Any], shown_rows: Iterable[Any], *columns: Column
) -> Table:
    """Returns a table that shows some rows and whose CSV has all of them.

    Args:
        ident: id of the table.
        caption: its caption.
        all_rows: all rows.
        shown_rows: the rows that readers see.
        *columns: the columns.
    """
    full_table = Table.made(ident, caption, all_rows, *columns)
    return Table.made(ident, caption, shown_rows, *columns, records=as_records(full_table.columns, full_table.rows))


def overconfidence_table(comparison: Comparison) -> Table:
    """Returns mean confidence against accuracy of stated numbers and the headline method. The CSV has all methods."""
    learned = headline(comparison)
    return _table_with_full_csv(
        "overconfidence",
        "Mean confidence against accuracy. Gap: confidence minus accuracy, above 0 is over-confident. The CSV has "
        "every method.",
        comparison.overconfidence,
        [row for row in comparison.overconfidence if row.stated or (learned and row.method == learned.name)],
        METHOD,
        Column("level", "Level", "text"),
        number_column("confidence", "Confidence", share_cell),
        number_column("accuracy", "Right", share_cell),
        interval_column("gap", "Gap", cell=gap_cell),
        Column(
            "source", "Confidence is", "text", cell=lambda row: text_cell(AS_STATED if row.stated else RECALIBRATED)
        ),
    )


def within_strata(comparison: Comparison, difficulty: Difficulty) -> Table:
    overall = {method.name: method.auroc for method in comparison.methods}
    return Table.made(
        "within-strata",
        f"AUROC over pairs of a right and a wrong answer of one stratum ({difficulty.by}), beside that over all pairs. "
        "0.5 within strata: the method knew how hard the question was, and no more.",
        difficulty.methods,
        METHOD,
        Column("auroc", "All pairs", "interval", "higher", cell=lambda row: estimate_cell(overall.get(row.method))),
        Column("within", "Same difficulty", "interval", "higher", cell=lambda row: estimate_cell(row.auroc)),
        interval_column("diff_stated", "vs stated", cell=difference_cell),
    )


def efficiency(choice: TwoChoice) -> Table:
    return Table.made(
        "efficiency",
        "Metacognitive efficiency: meta-d' is the d' that an ideal observer with this confidence would have; M-ratio "
        f"is meta-d' over d' ({number(choice.d_prime.estimate)}). M-ratio 1: the confidence knows as much as the "
        "answer; 0: nothing.",
        choice.methods,
        METHOD,
        interval_column("type2_auroc", "Type-2 AUROC", "higher"),
        interval_column("meta_d", "meta-d'", "higher"),
        interval_column("m_ratio", "M-ratio", "higher"),
        Column("bins", "Grades"),
        Column("refused", "Not given because", "prose", shown=any(row.refused for row in choice.methods)),
    )


def selective(comparison: Comparison) -> Table:
    """Returns the share of right answers if the 20 % with the lowest scores are held back."""
    return Table.made(
        "selective",
        "Share of right ones among the 80 % of the answers with the highest scores, and by which share that makes the "
        f"error ({percent(1 - comparison.base_rate, 1)} of all answers) fall. A random score lets it be.",
        comparison.methods,
        Column("method", "Method", "text", cell=lambda method: text_cell(method.name)),
        interval_column("right_at_80", "Right at 80 % coverage", "higher", cell=rate_cell),
        interval_column("error_fall", "Error falls by", "higher", cell=rate_cell),
    )


def _auroc_at(number: int, method: SeenMethod) -> Column:
    """Returns a column of the method's AUROC; each row is an index into `method.auroc`."""
    return Column(
        f"auroc_{number + 1}", method.name, "interval", "higher", cell=lambda row: estimate_cell(method.auroc[row])
    )


def learning(curve: LearningCurve) -> Table:
    return Table.made(
        "learning",
        "AUROC on the same test answers by the number of labels that each fold learns from, calibration included; one "
        "draw of groups a size.",
        range(len(curve.labels)),
        Column("labels", "Labels", cell=lambda row: count_cell(curve.labels[row])),
        *map(_auroc_at, range(len(curve.methods)), curve.methods),
    )


def by_model(comparison: Comparison) -> Table:
    """Returns the table of the headline method on each model's answers."""
    return Table.made(
        "models",
        f"{comparison.headline} on the answers of each model, beside the control that is strongest on these.",
        comparison.by_model,
        Column("model", "Model", "text"),
        number_column("n", "Answers", count_cell),
        number_column("accuracy", "Right", share_cell),
        interval_column("auroc", "AUROC", "higher"),
        Column("control", "Strongest control", "text"),
        interval_column("diff_control", "vs strongest control", cell=difference_cell),
        interval_column("diff_stated", "vs stated", cell=difference_cell),
    )


def signals_table(signals: SignalComparison, *, crossed: bool = False) -> Table:
    """Returns the table of explicit against implicit: all answers, each task, each model.

    `crossed`: the rows are each model on each task instead.
    """
    pairs = "pairs of a right and a wrong answer" + (" of one run" if signals.runs > 1 else "")
    left_out = f" Left out, because all right or all wrong: {', '.join(signals.left_out)}." if signals.left_out else ""

    def difference(part: SignalResult) -> Cell:
        return replace(gap_cell(part.difference), mark=f"{part.ahead} ahead" if part.ahead else "unclear")

    return Table.made(
        "signals-crossed" if crossed else "signals",
        f"Explicit ({signals.explicit}) against implicit ({signals.implicit}): AUROC over {pairs}. Ahead: the interval "
        "of implicit minus explicit leaves out 0, also after correction for the number of tasks, models or both (Holm)."
        + (f" Joined: the {signals.joined}, and its gain over the better of the two." if signals.joined else "")
        + left_out,
        [part for part in signals.parts if (part.by == "task and model") == crossed],
        Column("name", "Answers", "text"),
        Column("by", "Of a", "text", cell=lambda part: text_cell("all answers" if part.by == "all" else part.by)),
        number_column("n", "Number", count_cell),
        number_column("accuracy", "Right", share_cell),
        interval_column("explicit", "Explicit", "higher"),
        interval_column("implicit", "Implicit", "higher"),
        Column("difference", "Implicit minus explicit", "interval", cell=difference),
        number_column("p_holm", "p, Holm", p_cell),
        interval_column("joined", "Joined", "higher"),
        interval_column("joined_gain", "Joined gains", cell=gap_cell),
    )


def seen(by_tokens: SeenTokens) -> Table:
    return Table.made(
        "seen",
        "AUROC on the same answers after k tokens, with 95 % intervals; and how many answers end there.",
        range(len(by_tokens.tokens)),
        Column("tokens", "Tokens", cell=lambda row: count_cell(by_tokens.tokens[row])),
        Column("finished", "Ended", cell=lambda row: share_cell(by_tokens.finished[row])),
        *map(_auroc_at, range(len(by_tokens.methods)), by_tokens.methods),
    )


def layers_table(sweeps: Sequence[LayerSweep]) -> Records:
    """Returns AUROC on selection data by probe, layer and position, with the folds' and the checkpoint's choices."""
    return [
        {
            "probe": sweep.probe,
            "layer": layer,
            "position": position,
            "selection_auroc": float(sweep.selection_auroc[i, j]),
            "chosen": int((layer, position) == sweep.chosen),
            "folds": sweep.choices.count((layer, position)),
            "shipped": "" if sweep.shipped is None else int((layer, position) == sweep.shipped),
        }
        for sweep in sweeps
        for i, layer in enumerate(sweep.layers)
        for j, position in enumerate(sweep.positions)
    ]


def accuracy_table(comparison: Comparison) -> Table:
    """Returns the share of right answers by dimension and level."""

    def of_variant(variant: str) -> Column:
        def cell(row: AccuracyRow) -> Cell:
            shares = row.by_variant.get(variant)
            return EMPTY_CELL if shares is None else share_cell(shares.accuracy, of=shares.n)

        return Column(variant, variant or "answer", cell=cell)

    return Table.made(
        "accuracy",
        "Share of right answers by dimension and level, and of how many.",
        comparison.accuracy,
        Column("dimension", "Dimension", "text"),
        Column("level", "Level", "text"),
        *map(of_variant, comparison.variants),
        records=[
            {
                "dimension": row.dimension,
                "level": row.level,
                "variant": variant,
                "accuracy": share.accuracy,
                "n": share.n,
            }
            for row in comparison.accuracy
            for variant, share in row.by_variant.items()
        ],
    )


def _origin(rows: Sequence[StageAccuracy] | Sequence[Coupling]) -> tuple[Column, Column]:
    """Returns the columns of system and variant; readers see each only if it has several values."""
    return (
        Column("system", "System", "text", shown=len({row.system for row in rows}) > 1),
        Column("variant", "Variant", "text", shown=len({row.variant for row in rows}) > 1),
    )


def stages(rows: Sequence[StageAccuracy]) -> Table:
    return Table.made(
        "stages",
        "Share of right answers after each stage, and what it gains over the first stage of the same runs.",
        rows,
        Column("stage", "Stage", "text"),
        *_origin(rows),
        interval_column("accuracy", "Right", "higher", cell=rate_cell),
        interval_column("gain", "Gain", "higher", cell=difference_cell),
    )


def coupling_table(rows: Sequence[Coupling]) -> Table:
    return Table.made(
        "coupling",
        "Does the monitor detect which first answers are wrong, and does control mend those it flags? Mended: wrong at "
        "first and right at the end. Broken: right at first and wrong at the end. A difference above 0 says that "
        "mending, or breaking, follows the flag.",
        rows,
        Column("monitor", "Monitor", "text"),
        *_origin(rows),
        Column("n", "Runs"),
        interval_column("failure_auroc", "AUROC for wrong"),
        interval_column("flagged_wrong", "Flags wrong", cell=rate_cell),
        interval_column("flagged_right", "Flags right", cell=rate_cell),
        interval_column("fixed_flagged", "Mended if flagged", cell=rate_cell),
        interval_column("fixed_unflagged", "Mended if not", cell=rate_cell),
        interval_column("fixed_difference", "Difference", cell=gap_cell),
        interval_column("broken_flagged", "Broken if flagged", cell=rate_cell),
        interval_column("broken_unflagged", "Broken if not", cell=rate_cell),
        interval_column("broken_difference", "Difference", cell=gap_cell),
    )


def agreement_table(comparison: Comparison) -> Table:
    return Table.made(
        "agreement",
        "By who flags a concern: how often the first and the returned answer are right, and what became of first "
        "answers that were wrong (mended) or right (broken).",
        comparison.agreement,
        Column("pattern", "Flagged by", "text"),
        Column("n", "Runs"),
        interval_column("first_accuracy", "First right", cell=rate_cell),
        interval_column("accuracy", "Returned right", "higher", cell=rate_cell),
        interval_column("repaired", "Mended", "higher", cell=rate_cell),
        interval_column("broken", "Broken", "lower", cell=rate_cell),
    )


def failures(failed: Failures) -> Table:
    about = (
        ""
        if np.isnan(failed.evidence)
        else f" Whether the models could have known is judged by {number(failed.evidence, 1)} of their answers an item."
    )
    return Table.made(
        "failures",
        "How the runs that ended wrong went wrong." + about,
        failed.counts,
        Column("failure", "Failure", "text", cell=text_cell),
        Column("n", "Runs", cell=lambda kind: count_cell(failed.counts[kind])),
        Column("share", "Of the wrong", cell=lambda kind: share_cell(failed.share(kind))),
    )


def audits(findings: Sequence[Finding]) -> Table:
    """Returns a table with a row an audit, the failed ones first."""
    passed = sum(audit.passed for audit in findings)

    def result(audit: Finding) -> Cell:
        if audit.passed:
            return Cell("passed", 1.0, css="m-passed")
        return Cell("failed", 0.0, note=consequence(audit), css="m-failed")

    return Table.made(
        "audits",
        f"{passed} of {len(findings)} audits passed.",
        sorted(findings, key=lambda audit: (audit.passed, audit.severity != "invalid")),
        Column("name", "Finding", "text"),
        Column("result", "Result", "text", cell=result),
        Column("detail", "What was found", "prose"),
        records=[
            {
                "name": audit.name,
                "method": audit.method,
                "passed": int(audit.passed),
                "severity": audit.severity,
                "detail": audit.detail,
            }
            for audit in findings
        ],
    )


def provenance(comparison: Comparison) -> Table:
    return Table.made(
        "provenance",
        "Where these numbers come from. The command makes them again from the same runs; runs that another machine "
        "collects anew differ a little, and the numbers with them.",
        comparison.provenance.items(),
        Column("key", "What", "text", cell=lambda entry: text_cell(entry[0])),
        Column("value", "Value", "prose", cell=lambda entry: text_cell(entry[1])),
    )
