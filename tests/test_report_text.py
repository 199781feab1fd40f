"""The numbers of a report as CSV and as text, and what a comparison refuses."""

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from made_up_report import HOSTILE, METHODS, made_up, rendered

from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.report.layout import Column, Table, share, words
from metaprobe.eval.report.methods import METRICS
from metaprobe.eval.report.text import comparison_table, shorten
from metaprobe.eval.results import Comparison
from metaprobe.eval.trajectory import trajectory_bands
from metaprobe.eval.wording import (
    control_named,
    format_interval,
    p_value,
    percent,
    percent_bounds,
)


@pytest.fixture(scope="module")
def comparison():
    return made_up()


@pytest.fixture(scope="module")
def files():
    return rendered()


@pytest.fixture(scope="module")
def tables(files):
    return {name.removeprefix("tables/"): text for name, text in files.items() if name.startswith("tables/")}


def test_csv_tables_give_back_every_number(comparison, tables):
    tables = {name: list(csv.DictReader(io.StringIO(text))) for name, text in tables.items()}
    assert {
        "methods.csv", "controls.csv", "methods-more.csv", "pairs.csv", "scores.csv", "reliability.csv", "risk.csv",
        "seen.csv", "within-strata.csv", "strata.csv", "overconfidence.csv", "efficiency.csv", "layers.csv",
        "trajectories.csv", "accuracy.csv",
        "choices.csv", "stages.csv", "coupling.csv", "agreement.csv", "failures.csv", "similarity.csv",
        "routing.csv", "audits.csv", "provenance.csv",
    } <= set(tables)  # fmt: skip
    for row, method in zip(tables["methods.csv"], comparison.methods, strict=True):
        assert row["method"] == method.name
        for column in METRICS:
            value = getattr(method, column.field)
            assert (float(row[column.field]), float(row[f"{column.field}_low"])) == (value.estimate, value.low)
        assert (row["diff_stated"] == "") == (method.diff_stated is None)
    assert len(tables["layers.csv"]) == 2 * 31 * 3
    assert [row["layer"] for row in tables["layers.csv"] if row["chosen"] == "1"] == ["17", "17"]
    assert [(row["layer"], row["position"]) for row in tables["layers.csv"] if row["shipped"] == "1"] == [
        ("18", "answer_mean")
    ] * 2
    assert sorted(row["folds"] for row in tables["layers.csv"] if row["folds"] != "0") == ["1", "1", "2", "2"]
    stated = [row for row in tables["reliability.csv"] if row["kind"] == "as stated"]
    assert {row["method"] for row in stated} == {"verbalised confidence"}
    assert tables["methods.csv"][0]["ece_stated"] == str(comparison.methods[0].stated.ece.estimate)
    assert {row["control"] for row in tables["controls.csv"]} == {control.name for control in comparison.controls}
    assert tables["provenance.csv"][0] == {"key": "model", "value": HOSTILE}


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1+2", "@SUM(1)", "\t=1"])
def test_a_spreadsheet_computes_nothing_from_a_name(name):
    columns = (Column("m", "M", "text"), Column("s", "S"))
    table = Table(ident="t", caption="", columns=columns, rows=((words(name), share(-0.5)),))
    assert list(csv.DictReader(io.StringIO(table.csv))) == [{"m": f"'{name}", "s": "-0.5"}]


def test_the_text_table_is_aligned_and_fits_110_columns(comparison):
    text = comparison_table(comparison)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 110
    assert re.search(r"^verbalised confidence +83% +0\.\d\d \[0\.\d\d, 0\.\d\d\] ", text, flags=re.MULTILINE)
    head = next(line for line in lines if line.startswith("method"))
    rows = lines[lines.index(head) + 2 : lines.index(head) + 2 + len(METHODS)]
    assert all(row[head.index("AUROC")] == "0" and row[head.index("AUROC") - 1] == " " for row in rows)
    assert all(row[head.index("vs stated")] in "+-" for row in rows)


def test_the_text_table_has_the_columns_that_some_method_fills(comparison):
    first, *rest = comparison.methods
    only = replace(comparison, methods=(first, *(replace(m, within_runs=None) for m in rest)))
    assert "within runs ^" in comparison_table(only)
    bare = tuple(replace(m, within_runs=None, stated=None) for m in comparison.methods)
    text = comparison_table(replace(comparison, methods=bare))
    assert "within runs" not in text
    assert "ECE, as stated" not in text
    shown = next(line for line in comparison_table(comparison).splitlines() if line.startswith("blend"))
    assert shown.count("*") == 1  # the winner's AUROC
    assert f"{len(comparison.y)} answers, {100 * comparison.base_rate:.1f}% right" in text
    assert shorten("a" * 24) == "a" * 24
    assert shorten("a  b" + "c" * 30) == "a b" + "c" * 20 + "…"


def test_shares_and_probabilities_by_chance_are_written_as_they_are_read():
    assert percent_bounds(Interval(0.5, 0.444, 0.556, 9, 9)) == "[44\u00a0%, 56\u00a0%]"
    assert percent(0.4444, 1) == "44.4\u00a0%"
    assert percent(float("nan")) == "n/a"
    assert [p_value(p) for p in (0.0009, 0.001, 0.01234, 1.0)] == ["< 0.001", "0.001", "0.012", "1.000"]
    assert format_interval(Interval(0.5, 0.4, 0.6, 9, 9), 1) == "0.5 [0.4, 0.6]"
    assert control_named("P(true)") == "the further question P(true)"
    assert control_named("run identity") == "the plain predictor run identity"
    assert control_named("length") == "the free number length"


def test_the_text_table_fits_with_ends_next_to_zero_too(comparison):
    tiny = Interval(-0.25, -0.00006, 0.00004, 400, 97)
    methods = tuple(replace(m, diff_stated=tiny, diff_control=tiny) for m in comparison.methods)
    text = comparison_table(replace(comparison, methods=methods))
    assert "[-0.0001, +0.00004] unclear" in text
    assert max(map(len, text.splitlines())) <= 110


def test_trajectories_of_any_length_weigh_the_same():
    bands = trajectory_bands([[-1.0], [-3.0, -1.0], np.linspace(-3, -1, 101)], points=5)
    assert bands.n == 3
    np.testing.assert_allclose(bands.position, [0, 25, 50, 75, 100])
    np.testing.assert_allclose(bands.mean, np.mean([[-1] * 5, *[[-3, -2.5, -2, -1.5, -1]] * 2], axis=0))
    assert np.all(bands.p10 <= bands.p25)
    assert np.all(bands.p75 <= bands.p90)
    np.testing.assert_allclose(trajectory_bands([[-2.0, -1.0]]).p90, np.linspace(-2, -1, 50))


@pytest.mark.parametrize(("answers", "message"), [([], "no answers"), ([[-1], []], "answer 1"), ([[np.nan]], "1 not")])
def test_trajectories_refuse_what_has_no_course(answers, message):
    with pytest.raises(ValueError, match=message):
        trajectory_bands(answers)


def test_a_comparison_refuses_methods_of_one_name_or_another_length(comparison):
    given = {"title": "t", "summary": (), "provenance": {}}
    with pytest.raises(ValueError, match="names of their own"):
        Comparison(**given, y=comparison.y, methods=comparison.methods[:1] * 2)
    with pytest.raises(ValueError, match="400 probabilities for 3 labels"):
        Comparison(**given, y=np.array([0, 1, 1]), methods=comparison.methods)
