"""The tables and files of a report hold each number of the comparison under its own name."""

import csv
import io
from dataclasses import fields, replace

import pytest
from made_up_report import METHOD_OF_ALL, SOME, made_up

from metaprobe.checkpoints.manifest import MEANING
from metaprobe.checkpoints.rendered_table import difference_word
from metaprobe.eval.metrics.bootstrap import ControlComparison, ControlDifference, Interval
from metaprobe.eval.report import report_tables as tables
from metaprobe.eval.report.write import sections
from metaprobe.eval.results import Failures, Finding

AUROC, AURC = tables.METRICS[0], tables.METRICS[-1]


@pytest.fixture(scope="module")
def comparison():
    return made_up()


def told(estimate):
    """An interval that no other estimate has."""
    return Interval(estimate, estimate - 0.05, estimate + 0.07, 400, 100)


def rows_of(table):
    return list(csv.DictReader(io.StringIO(table.csv())))


def interval_of(row, key):
    return tuple(float(row[name]) for name in (key, f"{key}_low", f"{key}_high"))


def ends(interval):
    return interval.estimate, interval.low, interval.high


def shown(table):
    """Keys of the columns that readers see."""
    return [column.key for column in table.visible_columns]


def column(table, key):
    """The cells that readers see in a column."""
    at = shown(table).index(key)
    return [row[at] for row in table.visible_rows]


def marks(table, key):
    return [cell.mark for cell in column(table, key)]


def section(comparison, ident):
    return next((one for one in sections(comparison) if one.ident == ident), None)


def test_the_method_table_shows_what_is_known_and_saves_the_rest(comparison):
    comparison = replace(comparison, methods=tuple(replace(m, within_runs=SOME) for m in comparison.methods))
    table = tables.methods(comparison)
    assert {"n", "groups", "level"}.isdisjoint(shown(table))
    assert shown(table)[:4] == ["method", "coverage", "auroc", "within_runs"]
    for row, method in zip(rows_of(table), comparison.methods, strict=True):
        assert (row["method"], row["family"], float(row["coverage"])) == (method.name, method.family, method.coverage)
        assert [row[key] for key in ("n", "groups", "level")] == [
            str(getattr(method.auroc, key)) for key in ("n", "groups", "level")
        ]
        for key in ("within_runs", "diff_stated", "diff_control", *(name for name, *_ in tables.METRICS)):
            if (value := getattr(method, key)) is not None:
                assert interval_of(row, key) == ends(value)
    assert rows_of(table)[0]["ece_stated"] == str(comparison.methods[0].stated.ece.estimate)
    assert marks(table, "diff_stated") == [
        difference_word(m.diff_stated) if m.diff_stated else "" for m in comparison.methods
    ]
    bare = replace(
        comparison,
        methods=tuple(replace(m, within_runs=None, stated=None, diff_stated=None) for m in comparison.methods),
    )
    assert {"within_runs", "ece_stated", "diff_stated"}.isdisjoint(shown(tables.methods(bare)))
    assert {"within_runs", "ece_stated", "diff_stated"} <= rows_of(tables.methods(bare))[0].keys()
    assert any("Within runs" in remark for remark in section(comparison, "methods").remarks)
    assert not any("Within runs" in remark for remark in section(bare, "methods").remarks)


def test_a_number_is_bold_only_if_its_interval_overlaps_no_other(comparison):
    assert tables.clear_winner(comparison.methods, AUROC) == METHOD_OF_ALL
    bold = [cell.strong for cell in column(tables.methods(comparison), "auroc")]
    assert bold == [method.name == METHOD_OF_ALL for method in comparison.methods]
    close = [m for m in comparison.methods if m.name in ("minimum log-probability", "dimension x level")]
    assert close[0].auroc.estimate != close[1].auroc.estimate
    assert tables.clear_winner(close, AUROC) is None
    apart = [m for m in comparison.methods if m.name in ("verbalised confidence", "prompt TF-IDF", METHOD_OF_ALL)]
    assert tables.clear_winner(apart, AURC) == METHOD_OF_ALL
    assert tables.clear_winner(apart[:1], AUROC) is None
    first = replace(comparison.methods[0], name="first", auroc=Interval(0.7, 0.6, 0.8, 400, 97))
    touching = (replace(first, name="second", auroc=Interval(0.5, 0.4, high, 400, 97)) for high in (0.59, 0.6))
    assert [tables.clear_winner((second, first), AUROC) for second in touching] == ["first", None]
    assert "clearly ahead" not in section(comparison, "methods").remarks[0]
    alike = replace(comparison, methods=tuple(replace(comparison.methods[0], name=name) for name in "ab"))
    assert "No method is that clearly ahead in any column." in section(alike, "methods").remarks[0]


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
    table = tables.controls(replace(comparison, methods=(*methods[:-1], inside)))
    assert [[cell.text for cell in row][:4] for row in table.visible_rows] == [
        [METHOD_OF_ALL, "within runs", "length", "0.66"],
        [METHOD_OF_ALL, "all answers", "length", "0.66"],
        [METHOD_OF_ALL, "all answers", "prompt TF-IDF", "0.61"],
    ]
    assert [cell.text for cell in column(table, "beaten")] == ["yes", "yes", "no"]
    assert [cell.text for cell in column(table, "p_holm")] == ["< 0.001", "< 0.001", "0.600"]
    saved = rows_of(table)
    assert len(saved) == 2 * sum(m.controls is not None for m in methods) + 1
    assert interval_of(saved[-1], "difference") == ends(told(0.01))
    assert [saved[-1][key] for key in ("p", "p_holm", "beaten")] == ["0.3", "0.6", "0.0"]
    assert set(marks(table, "difference")) == {""}


def test_every_interval_of_the_comparison_stands_in_a_table_under_its_own_name(comparison):
    """Tables of the systems and of difficulty: each cell is the row's field of that name."""
    each = iter(range(100))

    def distinct(rows):
        """The rows with an interval of its own in each field that may hold one."""
        return [
            replace(
                row,
                **{
                    f.name: told(0.1 + next(each) / 100)
                    for f in fields(row)
                    if "Interval" in str(f.type) and "tuple" not in str(f.type)
                },
            )
            for row in rows
        ]

    stages, coupled, agreed = (distinct(getattr(comparison, name)) for name in ("stages", "coupling", "agreement"))
    within = distinct(comparison.difficulty.methods)
    efficient = distinct(comparison.two_choice.methods)
    for table, rows in (
        (tables.stages(stages), stages),
        (tables.coupling_table(coupled), coupled),
        (tables.agreement_table(replace(comparison, agreement=agreed)), agreed),
        (tables.efficiency(replace(comparison.two_choice, methods=efficient)), efficient),
        (tables.within_strata(comparison, replace(comparison.difficulty, methods=within)), within),
    ):
        for saved, row in zip(rows_of(table), rows, strict=True):
            for field in fields(row):
                # The AUROC over all pairs stands beside that within strata, which has a column of its own.
                key = "within" if (table.ident, field.name) == ("within-strata", "auroc") else field.name
                if "Interval" in str(field.type) and key in saved:
                    assert interval_of(saved, key) == ends(getattr(row, field.name)), (table.ident, key)
    coupling = tables.coupling_table(coupled)
    assert {mark for key in ("fixed_difference", "broken_difference") for mark in marks(coupling, key)} == {""}
    failures = tables.failures(Failures({"ignored": 6, "misled": 2}, 4.5))
    assert [(row["failure"], row["n"], row["share"]) for row in rows_of(failures)] == [
        ("ignored", "6", "0.75"),
        ("misled", "2", "0.25"),
    ]
    assert "4.5 of their answers" in failures.caption


def test_the_table_names_another_strongest_control_and_calls_better_what_the_audit_passed(comparison):
    """A probe before the answer is held against other controls, and an interval above 0 may not stand Holm."""
    usual, gain = comparison.controls[0].name, told(0.1)
    for name, p_holm, mark in ((usual, 0.001, "better"), ("run identity", 0.001, "better"), (usual, 0.2, "unclear")):
        over = ControlComparison(0.7, (ControlDifference(name, 0.6, gain, 0.001, p_holm),))
        method = replace(comparison.methods[-1], diff_control=gain, controls=over)
        table = tables.methods(replace(comparison, methods=(*comparison.methods[:-1], method)))
        cell = column(table, "diff_control")[-1]
        assert cell.mark == mark
        assert ("(over run identity)" in cell.plain) == (name != usual)


def test_invalid_audits_come_first_then_weak_ones_then_those_that_passed():
    audits = (
        Finding("fine", True, "d", "invalid"),
        Finding("faint", False, "d", "weak"),
        Finding("broken", False, "d", "invalid"),
    )
    table = tables.audits(audits)
    assert [row[0].text for row in table.visible_rows] == ["broken", "faint", "fine"]
    assert [cell.plain for cell in column(table, "result")] == [
        "failed the numbers cannot be believed",
        f"failed the numbers {MEANING['weak']}",
        "passed",
    ]
    assert table.caption == "1 of 3 audits passed."
    assert [(row["name"], row["passed"], row["severity"]) for row in rows_of(table)] == [
        ("fine", "1", "invalid"),
        ("faint", "0", "weak"),
        ("broken", "0", "invalid"),
    ]
