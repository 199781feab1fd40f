"""Writes the report of a comparison: a page, and every table and drawing as a file next to it."""

import textwrap
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import isnan
from pathlib import Path
from typing import Any

from metaprobe.checkpoints.rendered_table import TERMINAL_CHARS, Table, csv_text, format_interval, number, percent
from metaprobe.eval.metrics.calibration import DEFAULT_BINS
from metaprobe.eval.report import figures
from metaprobe.eval.report import report_tables as tables
from metaprobe.eval.report.figures import Figure, draw, slug
from metaprobe.eval.report.report_tables import Records
from metaprobe.eval.report.words import brief, control_words, headline, main_methods
from metaprobe.eval.results import Comparison, TwoChoice
from metaprobe.records.extras import require

REPORT_FOLDER = Path(__file__).parent
REPORT_FILE = "report.html"
MAX_LATEX_ROWS = 40
"""Most rows of a table that a paper prints; a longer table is CSV only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One heading of the page and its content, in this order."""

    ident: str
    title: str
    intro: Sequence[str] = ()
    """Paragraphs at the beginning of the section."""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    more: Sequence[tuple[str, Table]] = ()
    """Tables that are shown on a click, each with the text to click on."""
    parts: Sequence[tuple[str, str, Sequence[str]]] = ()
    """Lists of sentences: id, heading, sentences."""
    remarks: Sequence[str] = ()
    """Sentences in small print at the end of the section."""
    files: Mapping[str, Records] = field(default_factory=dict)
    """Maps the name of a CSV file to its rows; numbers that are not on the page."""

    @property
    def empty(self) -> bool:
        """Whether the section has nothing to show."""
        return not (self.intro or self.figures or self.tables or self.more or self.parts or self.remarks)


def sections(comparison: Comparison) -> tuple[Section, ...]:
    """Returns the sections that have something to show. Draws nothing."""
    all_sections = (
        _glance(comparison),
        _methods(comparison),
        _calibration(comparison),
        _early(comparison),
        _systems(comparison),
        _limits(comparison),
    )
    return tuple(section for section in all_sections if not section.empty)


def report_files(comparison: Comparison) -> dict[str, bytes]:
    """Maps paths in the report's folder to contents: the page, `tables/*.csv` and `*.tex`, `figures/*.svg`
    and `*.pdf`.
    """
    shown_sections = sections(comparison)
    drawings = {figure.ident: draw(figure) for section in shown_sections for figure in section.figures}
    files = {REPORT_FILE: _page(comparison, shown_sections, drawings).encode()}
    for section in shown_sections:
        files |= {f"tables/{name}.csv": csv_text(rows).encode() for name, rows in section.files.items() if rows}
        for table in (*section.tables, *(table for _, table in section.more)):
            files[f"tables/{table.ident}.csv"] = table.csv().encode()
            if len(table.rows) <= MAX_LATEX_ROWS:
                files[f"tables/{table.ident}.tex"] = latex(table).encode()
    return files | {
        f"figures/{ident}.{form}": content for ident, forms in drawings.items() for form, content in forms.items()
    }


def latex(table: Table) -> str:
    r"""Returns a table as a `tabular` by pandas; it needs `\\usepackage{booktabs}`. Its caption is a comment."""
    pandas: Any = require("pandas", "report")
    # The page shows the family as a colour.
    column_indices = [index for index, column in enumerate(table.visible_columns) if column.key != "family"]
    shown_columns = [table.visible_columns[index] for index in column_indices]
    frame = pandas.DataFrame([[row[index].plain for index in column_indices] for row in table.visible_rows])
    titles = pandas.Index([column.title for column in shown_columns])
    column_format = "".join({"text": "l", "prose": "p{20em}"}.get(column.kind, "r") for column in shown_columns)
    body = frame.set_axis(titles, axis="columns").to_latex(index=False, escape=True, column_format=column_format)
    return f"% {' '.join(table.caption.split())}\n{body}"


def _page(
    comparison: Comparison, shown_sections: Sequence[Section], drawings: Mapping[str, Mapping[str, bytes]]
) -> str:
    jinja: Any = require("jinja2", "report")
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader(REPORT_FOLDER),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (REPORT_FOLDER / "page.js").read_text(encoding="utf-8")

    def commands(text: str) -> Sequence[tuple[str, bool]]:
        """Returns the parts of a text, each with whether it is a command line, which stands between backticks."""
        return [(part, index % 2 == 1) for index, part in enumerate(text.split("`")) if part]

    return str(
        environment.get_template("page.html.j2").render(
            comparison=comparison,
            summary=brief(comparison),
            commands=commands,
            right=percent(comparison.base_rate, 1),
            sections=shown_sections,
            drawings={ident: b64encode(forms["svg"]).decode() for ident, forms in drawings.items()},
            style=(REPORT_FOLDER / "style.css").read_text(encoding="utf-8"),
            script=script,
            # The hash covers the text between the tags. Nothing else may run, and nothing may be fetched.
            script_hash=b64encode(sha256(f"\n{script}\n".encode()).digest()).decode(),
        )
    )


def conclusions(comparison: Comparison) -> str:
    """Returns the first lines of the page, for a terminal."""
    return "\n".join(
        line
        for heading, text in brief(comparison).first
        for line in (*textwrap.wrap(f"{heading}: {text}", TERMINAL_CHARS), "")
    )


def comparison_table(comparison: Comparison) -> str:
    """Returns the method table for a terminal, at most 110 columns wide, with the meaning of its marks."""
    about = (
        f"{len(comparison.y)} answers, {100 * comparison.base_rate:.1f}% right. Intervals: 95 %, resampled by group. "
        f"{control_words(comparison)}"
    )
    return "\n".join(
        [
            *textwrap.wrap(about.strip(), TERMINAL_CHARS),
            "",
            *([*tables.signals_table(comparison.signals).text(name_chars=24), ""] if comparison.signals else []),
            *tables.methods(comparison).text(name_chars=24),
            "",
            "↑ higher is better, ↓ lower. * interval overlaps no other. Unclear: the difference's interval holds 0,",
            "or a gain over a control does not stand correction for their number (Holm).",
            "",
        ]
    )


def _glance(comparison: Comparison) -> Section:
    """Returns the first section: the stated number (without one, the strongest control) beside the headline method."""
    stated_method = next((method for method in comparison.methods if method.family == "explicit"), None)
    left_method = stated_method or next(iter(comparison.controls), None)
    titles = {
        "glance-said": "What the model says" if stated_method else "What is free",
        "glance-learned": "What was learned",
    }
    measured_methods = [method for method in comparison.methods if not isnan(method.auroc.estimate)]
    summary = brief(comparison)
    accuracy_sections = (
        [("Accuracy by dimension and level", tables.accuracy_table(comparison))] if comparison.accuracy else []
    )
    if comparison.signals:
        accuracy_sections.insert(0, ("Each model on each task", tables.signals_table(comparison.signals, crossed=True)))
    parts = ("found", "What was found", summary.found), ("sure", "How sure this is", summary.sure)
    return Section(
        ident="glance",
        title="At a glance",
        tables=[tables.signals_table(comparison.signals)] if comparison.signals else (),
        figures=(
            *(
                figures.reliability(ident, method, title=titles[ident])
                for ident, method in zip(titles, (left_method, headline(comparison)), strict=True)
                if method and method.reliability
            ),
            *([figures.forest(measured_methods)] if measured_methods else []),
        ),
        parts=[part for part in parts if part[2]],
        more=[(title, table) for title, table in accuracy_sections if table.rows],
    )


def _methods(comparison: Comparison) -> Section:
    methods, difficulty = comparison.methods, comparison.difficulty
    if not methods:
        return Section(ident="methods", title="")
    # Remarks that explain the columns.
    has_clear_winner = any(tables.clear_winner(methods, metric) for metric in tables.METRICS)
    remarks = [
        "Bold: its interval overlaps no other method's."
        + ("" if has_clear_winner else " No method is that clearly ahead in any column."),
        "Said: share of answers about which the method says anything; the others get a fallback.",
        "“vs” columns are differences in AUROC (within runs if there are several), to stated confidence or to the "
        "strongest control, and paired: both methods on the same resampled answers. Where a method is held against "
        "another control, as a probe before the answer is, that one is named. “Better” or “worse” where the interval "
        "leaves out 0, and better than a control only after correction for their number (Holm), as in the audits; else "
        "“unclear”. That a method beats its controls is said only where it is better than every one of them.",
        f"A random score has AUROC 0.50, AUPRC {number(comparison.base_rate)} (the base rate) and AURC "
        f"{number(1 - comparison.base_rate)} (the error rate). Brier skill 0 is no better than always saying the base "
        "rate.",
        f"ECE: expected calibration error, the mean of |probability - share right| over {DEFAULT_BINS} bins of equal "
        "mass, weighted by their answers. As stated: the numbers as the model or the judge gave them, taken as "
        "probabilities, of the answers that have one. Recalibrated: after a calibrator that saw other groups only. "
        "Noise makes it too high, the more so the fewer the answers, and a constant at the base rate has 0: read it "
        "beside the Brier score, the mean of (probability - right)², and the Brier skill.",
    ]
    if any(method.within_runs for method in methods):
        remarks.append(
            f"{tables.WITHIN_RUNS}: AUROC over pairs of answers of one run only (same model, task and way of asking), "
            "which is what is left for whoever uses one model for one task; a score that only knows which run an "
            "answer is from has 0.50. Methods are compared by it, because only some know each run's base rate: "
            "what is learned on log-probabilities, and fitted controls. A stated number, a free number and the blend "
            "do not, and their AUROC over all answers may be lower for that reason alone. The blend weighs its parts "
            "beside these base rates and leaves them out, as its checkpoint does."
        )
    if comparison.two_choice:
        remarks.append(_choices_read(comparison.two_choice))
    elif comparison.two_choice_refused:
        remarks.append(f"Metacognitive efficiency (meta-d') is not given: {comparison.two_choice_refused}.")
    # Further tables, shown on a click.
    control_sections = [("Against every control", tables.controls(comparison))]
    if any(method.right_at_80 for method in methods):
        control_sections.append(("Where only the surest 80 % are given", tables.selective(comparison)))
    if comparison.learning:
        control_sections.append(("By the number of labels", tables.learning(comparison.learning)))
    if comparison.by_model:
        control_sections.append(("By model", tables.by_model(comparison)))
    rows_with_size = [row for row in comparison.by_model if row.parameters is not None]
    if difficulty:
        control_sections.append(("At equal difficulty", tables.within_strata(comparison, difficulty)))
    if comparison.two_choice:
        control_sections.append(("Metacognitive efficiency", tables.efficiency(comparison.two_choice)))
    return Section(
        ident="methods",
        title="Which method distinguishes right from wrong",
        tables=(tables.methods(comparison),),
        figures=(
            *figures.roc_and_risk_figures(comparison, main_methods(comparison)),
            *([figures.auroc_against(comparison.learning)] if comparison.learning else []),
            *([figures.model_sizes(rows_with_size)] if len(rows_with_size) > 1 else []),
        ),
        more=[(title, table) for title, table in control_sections if table.rows],
        remarks=remarks,
    )


def _choices_read(choice: TwoChoice) -> str:
    first, second = choice.choices
    return (
        f"Metacognitive efficiency: {choice.n:,} answers say {first} or {second}"
        + (f", {choice.unreadable:,} say neither and are left out" if choice.unreadable else "")
        + f". Sensitivity d' of the answers themselves {format_interval(choice.d_prime)} (0 is guessing), criterion "
        f"{format_interval(choice.criterion)} (above 0: {first} is said less often than it would be without bias)."
    )


def _calibration(comparison: Comparison) -> Section:
    drawn_methods = [method for method in main_methods(comparison) if method.reliability]
    shown_figures = [
        figures.reliability(f"reliability-{slug(number, method.name)}", method)
        for number, method in enumerate(drawn_methods, start=1)
    ]
    return Section(
        ident="calibration",
        title="How far the probabilities can be believed",
        intro=[
            "How often answers are right, against the probability that they are. Recalibrated: out of fold, by a "
            "calibrator that saw other groups of questions. As stated: the number as the model or the judge gave it. "
            "On the broken line a probability means what it says; bars are 95 % intervals of one bin; the larger a "
            "point, the more answers it stands for."
        ]
        if shown_figures
        else (),
        figures=shown_figures,
        more=[("Over-confidence", tables.overconfidence_table(comparison))] if comparison.overconfidence else (),
    )


def _early(comparison: Comparison) -> Section:
    seen_tokens, trajectories, sweeps = comparison.seen, comparison.trajectories, comparison.sweeps
    intro = []
    if seen_tokens:
        intro.append(
            "How well right answers are distinguished from wrong ones when only the first tokens are known, as while "
            "an answer streams. The same answers everywhere; a shorter one is read to its end."
        )
    if sweeps:
        intro.append(
            "Linear probes on hidden states: layer 0 is the embeddings' output, layer i the output of block i. The "
            "layer is chosen on selection data, never on the held-out answers: each fold takes the strongest penalty "
            "that cannot be distinguished from the best by one standard error, and the layer best at that. A "
            "checkpoint is fitted once more, to the learning part of all groups, and chooses its layer there by the "
            "same rule, so it may read another layer than most folds did; the held-out AUROC is that of the recipe."
        )
    return Section(
        ident="early",
        title="While the answer is written",
        intro=intro,
        figures=(
            *([figures.auroc_against(seen_tokens)] if seen_tokens else []),
            *([figures.trajectory(trajectories)] if trajectories else []),
            *(figures.layers_figure(number, sweep) for number, sweep in enumerate(sweeps, start=1)),
        ),
        more=[("The numbers by tokens seen", tables.seen(seen_tokens))] if seen_tokens else (),
        files={"layers": tables.layers_table(sweeps)},
    )


def _systems(comparison: Comparison) -> Section:
    shown_tables = (
        *([tables.stages(comparison.stages)] if comparison.stages else []),
        *([tables.coupling_table(comparison.coupling)] if comparison.coupling else []),
        *([tables.agreement_table(comparison)] if any(row.n for row in comparison.agreement) else []),
        *([tables.failures(comparison.failures)] if comparison.failures and comparison.failures.wrong else []),
    )
    return Section(
        ident="systems",
        title="Monitoring and control",
        intro=[
            "What the stages of the system do to an answer: whether monitoring detects which answers are wrong, and "
            "whether control mends them without breaking right ones."
        ]
        if shown_tables
        else (),
        tables=shown_tables,
    )


def _limits(comparison: Comparison) -> Section:
    return Section(
        ident="limits",
        title="Audits and limits",
        tables=(tables.audits(comparison.audits),) if comparison.audits else (),
        more=[("Provenance", tables.provenance(comparison))] if comparison.provenance else (),
        remarks=comparison.notes,
    )
