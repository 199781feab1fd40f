"""Tables of methods, scores, reliability and trajectories, and what every table keeps to."""

from dataclasses import replace

import numpy as np
import pytest
from made_up_report import METHOD_OF_ALL, made_up
from report_rows import ends, interval_of, marks, rows_of, shown, table_of, told

from metaprobe.eval.method_results import AcceptedAtRisk
from metaprobe.eval.metrics.selective import risk_coverage
from metaprobe.eval.metrics.strongest_control import ControlComparison, ControlDifference
from metaprobe.eval.report.inside import layers_section, seen_section, trajectories_section
from metaprobe.eval.report.layout import Column, Table, slug, words
from metaprobe.eval.report.methods import controls_table, headline, main_methods, method_table, methods_section
from metaprobe.eval.report.performance import reliability_section, scores_section
from metaprobe.eval.report.sections import sections
from metaprobe.eval.report.threshold_curves import thresholds_section
from metaprobe.eval.results import SeenMethod, SeenTokens
from metaprobe.eval.wording import verdict


@pytest.fixture(scope="module")
def comparison():
    return made_up()


def vars_of(curve):
    return curve.coverage, curve.risk


def test_the_method_table_shows_what_is_known_and_saves_the_rest(comparison):
    table = method_table(comparison)
    assert {"n", "groups", "level"}.isdisjoint(shown(table))
    assert shown(table)[:3] == ["method", "auroc", "within_runs"]
    for row, method in zip(rows_of(table), comparison.methods, strict=True):
        assert (row["family"], float(row["coverage"])) == (method.family, method.coverage)
        assert [row[key] for key in ("n", "groups", "level")] == [
            str(getattr(method.auroc, key)) for key in ("n", "groups", "level")
        ]
        for key in ("within_runs", "diff_stated", "diff_control"):
            if (value := getattr(method, key)) is not None:
                assert interval_of(row, key) == ends(value)
    assert marks(table, "diff_stated") == [verdict(m.diff_stated) if m.diff_stated else "" for m in comparison.methods]
    bare = replace(
        comparison,
        methods=tuple(replace(m, within_runs=None, stated=None, diff_stated=None) for m in comparison.methods),
    )
    assert {"within_runs", "ece_stated", "diff_stated"}.isdisjoint(shown(method_table(bare)))
    assert {"within_runs", "ece_stated", "diff_stated"} <= rows_of(method_table(bare))[0].keys()
    assert any("Within runs" in remark for remark in methods_section(comparison).remarks)
    assert not any("Within runs" in remark for remark in methods_section(bare).remarks)


def test_no_method_ahead_in_any_column_is_said(comparison):
    assert "clearly ahead" not in methods_section(comparison).remarks[0]
    alike = replace(comparison, methods=tuple(replace(comparison.methods[0], name=name) for name in "ab"))
    assert "No method is that clearly ahead in any column." in methods_section(alike).remarks[0]


def test_the_method_named_beforehand_speaks_for_the_learned_ones_or_else_the_last_of_them(comparison):
    assert headline(comparison).name == METHOD_OF_ALL
    assert headline(replace(comparison, headline="length")).name == "length"
    fewer = replace(comparison, headline="", methods=comparison.methods[:-1])
    assert headline(fewer).name == "hidden probe, last prompt token"
    assert headline(replace(comparison, headline="", methods=comparison.methods[:3])) is None
    names = [method.name for method in main_methods(comparison)]
    assert names == ["verbalised confidence", "mean log-probability", "minimum log-probability", METHOD_OF_ALL]


def test_each_control_stands_with_its_difference_and_whether_it_is_beaten(comparison):
    over = ControlComparison(
        0.8,
        (
            ControlDifference("length", 0.66, told(0.2), 0.0004, 0.0008),
            ControlDifference("prompt TF-IDF", 0.61, told(0.01), 0.3, 0.6),
        ),
    )
    methods = tuple(
        replace(m, controls=over if m.family in ("learned", "explicit") else None, controls_within=None)
        for m in comparison.methods
    )
    inside = replace(methods[-1], controls_within=ControlComparison(0.7, over.controls[:1]))
    table = controls_table(replace(comparison, methods=(*methods[:-1], inside)))
    assert [[cell.text for _, cell in row][:4] for row in table.shown] == [
        [METHOD_OF_ALL, "all answers", "length", "0.66"],
        [METHOD_OF_ALL, "all answers", "prompt TF-IDF", "0.61"],
        [METHOD_OF_ALL, "within runs", "length", "0.66"],
    ]
    assert [row[-1][1].text for row in table.shown] == ["yes", "no", "yes"]
    assert [row[-2][1].text for row in table.shown] == ["< 0.001", "0.600", "< 0.001"]
    saved = rows_of(table)
    assert len(saved) == 2 * sum(m.controls is not None for m in methods) + 1
    assert interval_of(saved[-2], "difference") == ends(told(0.01))
    assert [saved[-2][key] for key in ("p", "p_holm", "beaten")] == ["0.3", "0.6", "0.0"]
    assert set(marks(table, "difference")) == {""}


def test_rarer_metrics_are_shown_where_some_method_has_them(comparison):
    def more(**changed):
        methods = tuple(replace(m, prr=None, coverage_at=()) for m in comparison.methods[1:])
        first = replace(comparison.methods[0], **{"prr": None, "coverage_at": ()} | changed)
        section = methods_section(replace(comparison, methods=(first, *methods), ordinal="the level"))
        return next((table for table in section.data if table.ident == "methods-more"), None)

    assert more() is None
    table = more(kendall=told(0.3), coverage_at=(AcceptedAtRisk(0.2, told(0.5)), AcceptedAtRisk(0.05, told(0.1))))
    assert [column.key for column in table.columns] == ["method", "accepted_at_0.05", "accepted_at_0.2", "kendall"]
    row = rows_of(table)[0]
    assert interval_of(row, "accepted_at_0.05") == ends(told(0.1))
    assert interval_of(row, "accepted_at_0.2") == ends(told(0.5))
    assert interval_of(row, "kendall") == ends(told(0.3))
    assert rows_of(table)[1]["accepted_at_0.2"] == ""
    assert "with the level" in table.caption


def test_scores_are_counted_in_twentieths(comparison):
    section = scores_section(comparison)
    table = rows_of(section.data[0])
    method = main_methods(comparison)[-1]
    rows = [row for row in table if row["method"] == method.name]
    for label, key in ((1, "right"), (0, "wrong")):
        p = method.probability[comparison.y == label]
        for row in rows:
            low, high = float(row["low"]), float(row["high"])
            assert high - low == pytest.approx(0.05)
            inside = np.mean((p >= low) & ((p < high) | (high == 1) & (p == 1)))
            assert float(row[key]) == pytest.approx(inside)
        assert sum(float(row[key]) for row in rows) == pytest.approx(1)
    assert all(float(row["right"]) or float(row["wrong"]) for row in table)
    figure = section.figures[-1]
    means = [f"{method.probability[comparison.y == label].mean():.2f}" for label in (1, 0)]
    assert figure.note == f"Mean of right answers {means[0]}, of wrong ones {means[1]}"
    sizes = {kind: np.sum(comparison.y == label) for label, kind in ((1, "right"), (0, "wrong"))}
    assert [entry.text for entry in figure.legend] == [f"{kind}, {n}" for kind, n in sizes.items()]
    assert [figure.ident.split("-")[1] for figure in section.figures] == ["01", "02", "03", "04"]


def test_the_risk_table_reads_every_methods_curve_at_its_coverages(comparison):
    for row, method in zip(rows_of(table_of(thresholds_section(comparison), "risk")), comparison.methods, strict=True):
        curve = risk_coverage(comparison.y, method.probability)
        for at in (0.05, 0.1, 0.5, 1.0):
            nearest = float(np.interp(at, curve.coverage, curve.risk))
            assert float(row[f"risk_at_{at:g}"]) == pytest.approx(nearest)
        assert float(row["risk_at_1"]) == pytest.approx(1 - comparison.base_rate)
        shares = ("0.05", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1")
        assert list(row) == ["method", *(f"risk_at_{at}" for at in shares)]
    ranked = replace(comparison.methods[0], ranking=-comparison.methods[0].probability)
    turned = rows_of(table_of(thresholds_section(replace(comparison, methods=(ranked,))), "risk"))
    assert float(turned[0]["risk_at_0.1"]) == np.interp(0.1, *vars_of(risk_coverage(comparison.y, ranked.ranking)))


def test_reliability_of_the_main_methods_is_shown_and_that_of_the_others_folded(comparison):
    section = reliability_section(comparison)
    mains = [method.name for method in main_methods(comparison)]
    assert [figure.title for figure in section.figures] == [f"Reliability: {name}" for name in mains]
    assert len(section.folded) == len(comparison.methods) - len(mains)
    rows = rows_of(section.data[0])
    of_all = [row for row in rows if row["method"] == METHOD_OF_ALL]
    for row, found in zip(of_all, comparison.methods[-1].reliability, strict=True):
        for key in ("probability", "accuracy", "low", "high"):
            assert float(row[key]) == getattr(found, key)
        assert (row["n"], row["kind"]) == (str(found.n), "recalibrated")
    stated = [row for row in rows if row["method"] == "verbalised confidence"]
    assert [row["kind"] for row in stated][:1] == ["as stated"]  # before the same recalibrated
    none = replace(comparison, methods=tuple(replace(m, reliability=()) for m in comparison.methods))
    assert reliability_section(none).empty


def test_tokens_seen_have_a_column_a_method_and_a_row_a_length():
    methods = (SeenMethod("a", "learned", (told(0.5), told(0.6))), SeenMethod("b", "learned", (told(0.7), told(0.8))))
    section = seen_section(SeenTokens(tokens=(5, 1200), finished=(0.25, 0.75), methods=methods))
    rows = rows_of(section.data[0])
    assert [(row["tokens"], row["finished"]) for row in rows] == [("5", "0.25"), ("1200", "0.75")]
    assert [interval_of(rows[at], f"auroc_{m + 1}") for at in (0, 1) for m in (0, 1)] == [
        ends(methods[m].auroc[at]) for at in (0, 1) for m in (0, 1)
    ]
    label = section.figures[0].label
    assert label == "AUROC from 5 to 1200 tokens seen: a 0.50 to 0.60, b 0.70 to 0.80."
    assert seen_section(None).empty


def test_a_probe_without_a_position_leaves_its_cell_empty(comparison):
    sweep = comparison.sweeps[0]
    other = replace(
        sweep,
        probe="other",
        positions=("elsewhere",),
        selection_auroc=sweep.selection_auroc[:, :1],
        choices=((17, "elsewhere"),),
        shipped=None,
    )
    section = layers_section((sweep, other))
    table = section.data[0]
    assert [column.key for column in table.columns] == ["probe", "layer", *sweep.positions, "elsewhere"]
    for at, row in enumerate(table.rows[:31]):
        values = [cell.value for cell in row[2:]]
        assert values == [*sweep.selection_auroc[at].tolist(), None]
        assert [cell.strong for cell in row[2:]] == [at == 17, False, False, False]
    saved = rows_of(table)
    assert [float(row["selection_auroc"]) for row in saved[:3]] == sweep.selection_auroc[0].tolist()
    assert {row["shipped"] for row in saved[93:]} == {""}
    assert [figure.ident for figure in section.figures] == [
        "layers-map-01-difficulty",
        "layers-01-difficulty",
        "layers-map-02-other",
        "layers-02-other",
    ]
    single = replace(other, layers=(17,), selection_auroc=sweep.selection_auroc[17:18, :1])
    assert [figure.ident for figure in layers_section((single,)).figures] == ["layers-01-other"]
    assert layers_section(()).empty


def test_trajectories_are_read_at_every_tenth_and_those_of_roles_folded_where_they_are_many(comparison):
    whole, roles = comparison.trajectories, comparison.role_trajectories
    rows = rows_of(trajectories_section(whole, ()).data[0])
    assert [row["position"] for row in rows[:11]] == [str(p) for p in range(0, 101, 10)]
    assert [row["kind"] for row in rows[::11]] == ["right", "wrong"]
    for row, at in ((rows[0], 0), (rows[10], -1)):
        for key in ("mean", "p10", "p25", "p75", "p90"):
            assert float(row[key]) == pytest.approx(getattr(whole.correct, key)[at])
    assert float(rows[16]["mean"]) == pytest.approx(np.interp(50, whole.wrong.position, whole.wrong.mean))
    assert [cell.text for _, cell in trajectories_section(whole, ()).data[0].shown[1]][2] == "10\u00a0%"

    def figures(whole, by_role):
        section = trajectories_section(whole, by_role)
        return len(section.figures), len(section.folded)

    assert figures(whole, roles[:1]) == (1, 0)  # one role says what all say
    assert figures(None, roles[:1]) == (1, 0)
    assert figures(whole, roles) == (3, 0)
    assert figures(whole, roles * 2) == (5, 0)
    assert figures(whole, roles * 3) == (1, 6)
    assert trajectories_section(None, ()).empty


def test_a_heading_says_which_way_is_better(comparison):
    """By the name of the column; what is judged by nothing has no better end."""
    higher = {
        "auroc",
        "within_runs",
        "auprc",
        "brier_skill",
        "within",
        "type2_auroc",
        "meta_d",
        "m_ratio",
        "accuracy",
        "gain",
        "repaired",
        "prr",
        "brier_resolution",
        "spearman",
        "kendall",
    }
    lower = {
        "ece",
        "ece_stated",
        "aurc",
        "p_holm",
        "excess_aurc",
        "brier",
        "brier_reliability",
        "broken",
        "cost",
        "tokens_per_question",
    }
    full = replace(
        comparison,
        methods=tuple(
            replace(
                m,
                excess_aurc=told(0.1),
                brier=told(0.1),
                brier_reliability=told(0.1),
                brier_resolution=told(0.1),
                brier_uncertainty=told(0.1),
                spearman=told(0.1),
                kendall=told(0.1),
            )
            for m in comparison.methods
        ),
    )
    seen = set()
    for section in sections(full):
        for table in (*section.tables, *section.data):
            for column in table.columns:
                key = column.key
                seen.add(key)
                expected = "higher" if key in higher or key.startswith(("auroc_", "accepted_at_", "right_at_")) else ""
                expected = "lower" if key in lower or key.startswith("risk_at_") else expected
                if (table.ident, key) in {
                    ("overconfidence", "accuracy"),
                    ("strata-sizes", "accuracy"),
                    ("controls", "auroc"),
                    ("reliability", "accuracy"),
                    ("choices-reliability", "accuracy"),
                }:
                    expected = ""
                assert column.better == expected, (table.ident, key)
    assert higher | lower <= seen


def test_what_is_folded_or_stands_below_without_figures_says_what_it_is(comparison):
    for section in sections(comparison):
        assert not section.folded or section.folded_title, section.ident
        told_of_figures = section.data_title == "The numbers in the figures"
        assert not section.data or bool(section.figures) == told_of_figures, section.ident


def test_a_row_with_more_or_fewer_cells_than_columns_is_no_table():
    columns = (Column("a", "A", "text"), Column("b", "B"))
    for row in ((words("x"),), (words("x"), words("y"), words("z"))):
        table = Table(ident="t", caption="", columns=columns, rows=(row,))
        for read in (lambda table=table: table.csv, lambda table=table: table.heads, lambda table=table: table.shown):
            with pytest.raises(ValueError, match="zip"):
                read()


def test_a_place_in_a_file_name_is_two_digits_and_forty_letters():
    assert slug(3, "Mean log-probability!") == "03-mean-log-probability"
    assert slug(12, "a" * 39 + " b") == "12-" + "a" * 39
    assert slug(1, "%$") == "01"
