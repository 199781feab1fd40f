"""What the tables and files of a report hold: each number of the comparison under its own name."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from made_up_report import HOSTILE, METHOD_OF_ALL, made_up, rendered
from report_rows import column, ends, interval_of, marks, rows_of, shown, told

from metaprobe.checkpoints.table import verdict
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.discrimination import auroc, roc_curve
from metaprobe.eval.metrics.selective import risk_coverage
from metaprobe.eval.metrics.strongest_control import ControlComparison, ControlDifference
from metaprobe.eval.report import tables
from metaprobe.eval.report.write import sections
from metaprobe.eval.results import (
    AcceptedAtRisk,
    Accuracy,
    AccuracyRow,
    Agreement,
    CostPoint,
    CostQuality,
    Coupling,
    Difficulty,
    Efficiency,
    Failures,
    Finding,
    Overconfidence,
    StageAccuracy,
    StageSimilarity,
    Stratum,
    WithinStrata,
)

AUROC, AURC = tables.METRICS[0], tables.METRICS[-1]


@pytest.fixture(scope="module")
def comparison():
    return made_up()


def section(comparison, ident):
    return next((one for one in sections(comparison) if one.ident == ident), None)


def test_the_method_table_shows_what_is_known_and_saves_the_rest(comparison):
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
    assert marks(table, "diff_stated") == [verdict(m.diff_stated) if m.diff_stated else "" for m in comparison.methods]
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
    assert "clearly ahead" not in section(comparison, "methods").remarks[0]
    alike = replace(comparison, methods=tuple(replace(comparison.methods[0], name=name) for name in "ab"))
    assert "No method is that clearly ahead in any column." in section(alike, "methods").remarks[0]


@pytest.mark.parametrize(("high", "clear"), [(0.59, True), (0.6, False)])
def test_intervals_that_touch_have_no_clear_winner(comparison, high, clear):
    first = replace(comparison.methods[0], name="first", auroc=Interval(0.7, 0.6, 0.8, 400, 97))
    second = replace(first, name="second", auroc=Interval(0.5, 0.4, high, 400, 97))
    assert tables.clear_winner((second, first), AUROC) == ("first" if clear else None)


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
    assert [[cell.text for cell in row][:4] for row in table.shown] == [
        [METHOD_OF_ALL, "all answers", "length", "0.66"],
        [METHOD_OF_ALL, "all answers", "prompt TF-IDF", "0.61"],
        [METHOD_OF_ALL, "within runs", "length", "0.66"],
    ]
    assert [cell.text for cell in column(table, "beaten")] == ["yes", "no", "yes"]
    assert [cell.text for cell in column(table, "p_holm")] == ["< 0.001", "0.600", "< 0.001"]
    saved = rows_of(table)
    assert len(saved) == 2 * sum(m.controls is not None for m in methods) + 1
    assert interval_of(saved[-2], "difference") == ends(told(0.01))
    assert [saved[-2][key] for key in ("p", "p_holm", "beaten")] == ["0.3", "0.6", "0.0"]
    assert set(marks(table, "difference")) == {""}


def test_rarer_metrics_are_saved_where_some_method_has_them(comparison):
    methods = tuple(replace(m, prr=None, coverage_at=()) for m in comparison.methods[1:])
    accepted = (AcceptedAtRisk(0.2, told(0.5)), AcceptedAtRisk(0.05, told(0.1)))
    first = replace(comparison.methods[0], prr=None, coverage_at=accepted, kendall=told(0.3))
    row, other, *_ = tables.more_metrics(replace(comparison, methods=(first, *methods)))
    assert interval_of(row, "accepted_at_0.05") == ends(told(0.1))
    assert interval_of(row, "accepted_at_0.2") == ends(told(0.5))
    assert interval_of(row, "kendall") == ends(told(0.3))
    assert "prr" not in row
    assert (other["kendall"], other["accepted_at_0.2"]) == ("", "")


def test_scores_are_counted_in_twentieths(comparison):
    method = comparison.methods[-1]
    rows = [row for row in tables.scores(comparison) if row["method"] == method.name]
    for label, key in ((1, "right"), (0, "wrong")):
        p = method.probability[comparison.y == label]
        for row in rows:
            assert row["high"] - row["low"] == pytest.approx(0.05)
            inside = (p >= row["low"]) & ((p < row["high"]) | (row["high"] == 1) & (p == 1))
            assert row[key] == pytest.approx(np.mean(inside))
        assert sum(row[key] for row in rows) == pytest.approx(1)


def test_curves_are_read_at_a_few_shares(comparison):
    for row, method in zip(tables.curves(comparison)["risk"], comparison.methods, strict=True):
        curve = risk_coverage(comparison.y, method.probability)
        for at in (0.05, 0.1, 0.5, 1.0):
            assert row[f"risk_at_{at:g}"] == pytest.approx(np.interp(at, curve.coverage, curve.risk))
        assert row["risk_at_1"] == pytest.approx(1 - comparison.base_rate)
    ranked = replace(comparison.methods[0], ranking=-comparison.methods[0].probability)
    turned = risk_coverage(comparison.y, ranked.ranking)
    [row] = tables.curves(replace(comparison, methods=(ranked,)))["risk"]
    assert row["risk_at_0.1"] == np.interp(0.1, turned.coverage, turned.risk)


@pytest.mark.parametrize(
    ("y", "score", "at", "right"),
    [
        # At 0.9 one of three right and one of three wrong are accepted; at 0.8 another right one; at 0.4 one of each.
        ([1, 0, 1, 1, 0, 0], [0.9, 0.9, 0.8, 0.4, 0.4, 0.1], 0.2, 0.2),
        ([1, 0, 1, 1, 0, 0], [0.9, 0.9, 0.8, 0.4, 0.4, 0.1], 0.5, 2 / 3 + 1 / 6),
        ([0, 1, 1, 0], [0.9, 0.8, 0.7, 0.1], 0.5, 1),  # straight up: its top
    ],
)
def test_roc_is_read_within_ties_and_at_the_top_of_a_rise(y, score, at, right):
    base = made_up(n=40, resamples=2)
    method = replace(base.methods[-1], probability=np.array(score))
    [row] = tables.curves(replace(base, y=np.array(y), methods=(method,), headline=method.name))["roc"]
    assert row[f"right_at_{at:g}"] == pytest.approx(right)
    curve = roc_curve(y, score)
    area = np.sum(np.diff(curve.wrong) * (curve.right[1:] + curve.right[:-1]) / 2)
    assert area == pytest.approx(auroc(y, score))


def test_answers_of_one_kind_have_risk_and_no_roc(comparison):
    found = tables.curves(replace(comparison, y=np.ones(len(comparison.y), dtype=int)))
    assert found["risk"]
    assert not found["roc"]


def test_reliability_of_every_method_is_saved_as_stated_and_recalibrated(comparison):
    rows = tables.reliability_bins(comparison)
    of_all = [row for row in rows if row["method"] == METHOD_OF_ALL]
    for row, found in zip(of_all, comparison.methods[-1].reliability, strict=True):
        assert [row[key] for key in ("probability", "accuracy", "low", "high", "n")] == [
            getattr(found, key) for key in ("probability", "accuracy", "low", "high", "n")
        ]
        assert row["kind"] == "recalibrated"
    assert {row["method"] for row in rows if row["kind"] == "as stated"} == {"verbalised confidence"}
    none = replace(comparison, methods=tuple(replace(m, reliability=(), stated=None) for m in comparison.methods))
    assert not section(none, "calibration").figures


def test_the_tables_of_difficulty_keep_methods_and_strata_apart(comparison):
    by_stratum = {METHOD_OF_ALL: (told(0.61), None), "length": (told(0.52), told(0.53))}
    found = Difficulty(
        by="level",
        strata=(Stratum("easy", 1200, 0.7), Stratum("hard", 150, 0.3)),
        methods=tuple(
            WithinStrata(
                method=name,
                auroc=told(0.6 + at / 10),
                diff_stated=told(0.2) if at == 0 else None,
                by_stratum=by_stratum[name],
            )
            for at, name in enumerate(by_stratum)
        ),
    )
    within = tables.within_strata(comparison, found)
    overall = {method.name: method.auroc for method in comparison.methods}
    for row, method in zip(rows_of(within), found.methods, strict=True):
        assert row["method"] == method.method
        assert interval_of(row, "auroc") == ends(overall[method.method])
        assert interval_of(row, "within") == ends(method.auroc)
    assert marks(within, "diff_stated") == ["better", ""]
    rows = tables.strata(found)
    assert [(row["method"], row["stratum"], row["n"]) for row in rows[::3]] == [
        (METHOD_OF_ALL, "easy", 1200),
        ("length", "hard", 150),
    ]
    assert interval_of(rows[2], "auroc") == ends(told(0.52))
    assert rows[1]["auroc"] == ""


def test_confidence_that_was_stated_and_the_method_named_beforehand_are_shown_and_all_saved(comparison):
    rows = tuple(
        Overconfidence(
            method=name, stated=name.startswith("verbalised"), level="hard", confidence=0.9, accuracy=0.3, gap=told(0.6)
        )
        for name in ("verbalised confidence", "LightGBM on log-probabilities", METHOD_OF_ALL)
    )
    table = tables.overconfidence(replace(comparison, overconfidence=rows))
    assert [cell.text for cell in column(table, "method")] == ["verbalised confidence", METHOD_OF_ALL]
    saved = rows_of(table)
    assert [row["method"] for row in saved] == [row.method for row in rows]
    assert [row["source"] for row in saved] == ["as stated", "recalibrated", "recalibrated"]
    assert [saved[0][key] for key in ("level", "confidence", "accuracy", "gap")] == ["hard", "0.9", "0.3", "0.6"]
    assert marks(table, "gap") == ["", ""]  # over-confidence is no gain
    assert column(table, "gap")[0].text == "+0.60"


def test_efficiency_says_why_a_method_has_none(comparison):
    given = Efficiency(method="a", type2_auroc=told(0.7), meta_d=told(1.1), m_ratio=told(0.9), bins=4)
    refused = Efficiency(method="b", type2_auroc=told(0.5), meta_d=None, m_ratio=None, bins=1, refused="too coarse")
    both = replace(comparison.two_choice, methods=(given, refused))
    assert "refused" in shown(tables.efficiency(both))
    first, second = rows_of(tables.efficiency(both))
    for key in ("type2_auroc", "meta_d", "m_ratio"):
        assert interval_of(first, key) == ends(getattr(given, key))
    assert (first["bins"], second["meta_d"], second["refused"]) == ("4", "", "too coarse")
    assert "refused" not in shown(tables.efficiency(replace(both, methods=(given,))))
    assert "10 say neither and are left out" in section(comparison, "methods").remarks[-1]
    none = replace(comparison, two_choice=None, two_choice_refused="three choices")
    assert section(none, "methods").remarks[-1].endswith("is not given: three choices.")


def test_layers_name_what_folds_chose_and_the_checkpoint_reads(comparison):
    rows = tables.layers(comparison.sweeps)
    assert len(rows) == 2 * 31 * 3
    assert [row["layer"] for row in rows if row["chosen"]] == [17, 17]
    assert [(row["layer"], row["position"]) for row in rows if row["shipped"]] == [(18, "answer_mean")] * 2
    assert sorted(row["folds"] for row in rows if row["folds"]) == [1, 1, 2, 2]
    assert [row["selection_auroc"] for row in rows[:3]] == comparison.sweeps[0].selection_auroc[0].tolist()
    assert {row["shipped"] for row in tables.layers([replace(comparison.sweeps[0], shipped=None)])} == {""}


def test_trajectories_are_read_at_every_tenth(comparison):
    whole = comparison.trajectories
    rows = tables.trajectories([whole])
    assert [row["position"] for row in rows[:11]] == list(range(0, 101, 10))
    assert [row["kind"] for row in rows[::11]] == ["right", "wrong"]
    for row, at in ((rows[0], 0), (rows[10], -1)):
        for key in ("mean", "p10", "p25", "p75", "p90"):
            assert row[key] == pytest.approx(getattr(whole.correct, key)[at])
    assert rows[16]["mean"] == pytest.approx(np.interp(50, whole.wrong.position, whole.wrong.mean))


COUPLED = (
    "failure_auroc flagged_wrong flagged_right fixed_flagged fixed_unflagged fixed_difference broken_flagged "
    "broken_unflagged broken_difference"
).split()


def test_the_tables_of_stages_hold_each_figure_under_its_name(comparison):
    stages = tables.stages(
        [StageAccuracy("s", "v", "answer", told(0.4), None), StageAccuracy("s", "v", "end", told(0.5), told(0.1))]
    )
    assert [(row["stage"], *interval_of(row, "accuracy")) for row in rows_of(stages)] == [
        ("answer", *ends(told(0.4))),
        ("end", *ends(told(0.5))),
    ]
    assert interval_of(rows_of(stages)[1], "gain") == ends(told(0.1))
    assert marks(stages, "gain") == ["", "better"]
    each = {key: told(0.3 + at / 20) for at, key in enumerate(COUPLED)}
    coupled = Coupling(system="s", variant="v", monitor="flags", n=1200, **each)
    coupling = tables.coupling([coupled])
    [row] = rows_of(coupling)
    assert (row["monitor"], row["n"]) == ("flags", "1200")
    for key in COUPLED:
        assert interval_of(row, key) == ends(getattr(coupled, key))
        assert marks(coupling, key) == [""]
    texts = {key: column(coupling, key)[0].text for key in COUPLED}
    assert texts["failure_auroc"] == "0.30"  # no share
    assert texts["flagged_wrong"] == "35\u00a0%"
    assert texts["broken_difference"] == "+0.70"
    agreed = Agreement("both", 40, told(0.3), told(0.4), told(0.5), told(0.6))
    [row] = rows_of(tables.agreement(replace(comparison, agreement=(agreed,))))
    for key in ("first_accuracy", "accuracy", "repaired", "broken"):
        assert interval_of(row, key) == ends(getattr(agreed, key))
    failures = tables.failures(Failures({"ignored": 6, "misled": 2}, 4.5))
    assert [(row["failure"], row["n"], row["share"]) for row in rows_of(failures)] == [
        ("ignored", "6", "0.75"),
        ("misled", "2", "0.25"),
    ]
    assert "4.5 of their answers" in failures.caption
    unknown = tables.failures(Failures({"ignored": 1}, float("nan")))
    assert "answers an item" not in unknown.caption
    flow = replace(comparison.similarity[0], stages=(StageSimilarity("monitor", told(0.7), told(0.2)),))
    [row] = tables.similarity(replace(comparison, similarity=(flow,)))
    assert row["reference"] == "the stage before it"
    assert interval_of(row, "similarity") == ends(told(0.7))
    assert interval_of(row, "change") == ends(told(0.2))


def test_tables_of_stages_that_would_say_nothing_are_left_out(comparison):
    bare = replace(comparison, stages=(), coupling=(), failures=Failures({"ignored": 0}, 1.0))
    bare = replace(bare, agreement=tuple(replace(row, n=0) for row in comparison.agreement))
    assert section(bare, "systems") is None
    assert section(replace(bare, failures=None), "systems") is None
    only = section(replace(bare, agreement=comparison.agreement), "systems")
    assert [table.ident for table in only.tables] == ["agreement"]


def test_system_and_variant_are_shown_where_there_are_several(comparison):
    def heads(**changed):
        table = tables.stages([comparison.stages[0], replace(comparison.stages[0], **changed)])
        assert {"system", "variant"} <= rows_of(table)[0].keys()
        return {"system", "variant"} & set(shown(table))

    assert heads() == set()
    assert heads(system="other") == {"system"}
    assert heads(variant="other") == {"variant"}


def test_points_of_cost_are_marked_where_they_are_corners():
    points = (
        CostPoint("cheap", "agent", 0.1, 0.4, told(0.4)),
        CostPoint("bad", "control", 0.5, 0.404),
        CostPoint("dear", "agent", 1.0, 0.7),
    )
    found = CostQuality(title="Agents", unit="US dollars", points=points, hull=((0.1, 0.4), (1.0, 0.7)), n=1400)
    table = tables.costs(1, found)
    assert (table.ident, tables.costs(2, found).ident) == ("routing", "routing-2")
    rows = rows_of(table)
    assert [(row["policy"], row["kind"], row["cost"], row["accuracy"], row["hull"]) for row in rows] == [
        ("cheap", "agent", "0.1", "0.4", "corner"),
        ("bad", "control", "0.5", "0.404", ""),
        ("dear", "agent", "1.0", "0.7", "corner"),
    ]
    assert interval_of(rows[0], "accuracy") == ends(told(0.4))
    assert rows[1]["accuracy_low"] == ""
    assert [cell.text for cell in column(table, "accuracy")] == ["40.0\u00a0%", "40.4\u00a0%", "70.0\u00a0%"]
    assert "1,400 questions; cost in US dollars" in table.caption


def test_a_policy_is_told_by_accuracy_tokens_and_share(comparison):
    table = tables.choices(comparison)
    for row, policy in zip(rows_of(table), comparison.choices, strict=True):
        assert row["policy"] == policy.policy
        assert interval_of(row, "accuracy") == ends(policy.accuracy)
        assert float(row["tokens_per_question"]) == policy.tokens_per_question
        assert float(row["step_by_step"]) == policy.step_by_step
    assert column(table, "tokens_per_question")[2].text == "64"


def test_accuracy_says_of_how_many_and_leaves_open_what_was_not_asked(comparison):
    rows = (
        AccuracyRow("sums", "easy", {"direct": Accuracy(0.75, 1200), "": Accuracy(0.5, 2)}),
        AccuracyRow("all", "all", {"direct": Accuracy(0.25, 9)}),
    )
    table = tables.accuracy(replace(comparison, accuracy=rows))
    assert [column.title for column in table.columns] == ["Dimension", "Level", "direct", "answer"]
    assert [cell.note for cell in table.shown[0]] == ["", "", "of 1,200", "of 2"]
    assert [cell.text for cell in table.shown[1]] == ["all", "all", "25\u00a0%", "-"]
    assert rows_of(table) == [
        {"dimension": "sums", "level": "easy", "variant": "direct", "accuracy": "0.75", "n": "1200"},
        {"dimension": "sums", "level": "easy", "variant": "", "accuracy": "0.5", "n": "2"},
        {"dimension": "all", "level": "all", "variant": "direct", "accuracy": "0.25", "n": "9"},
    ]


def test_invalid_audits_come_first_then_weak_ones_then_those_that_passed():
    audits = (
        Finding("fine", True, "d", "invalid"),
        Finding("faint", False, "d", "weak"),
        Finding("broken", False, "d", "invalid"),
    )
    table = tables.audits(audits)
    assert [row[0].text for row in table.shown] == ["broken", "faint", "fine"]
    assert [cell.plain for cell in column(table, "result")] == [
        "failed the numbers cannot be believed",
        "failed the numbers are weaker than they look",
        "passed",
    ]
    assert table.caption == "1 of 3 audits passed."
    assert [(row["name"], row["passed"], row["severity"]) for row in rows_of(table)] == [
        ("fine", "1", "invalid"),
        ("faint", "0", "weak"),
        ("broken", "0", "invalid"),
    ]


def test_every_number_that_has_a_better_end_says_which(comparison):
    better = {
        column.key: column.better
        for one in sections(comparison)
        for table in (*one.tables, *(table for _, table in one.more))
        if table.ident not in ("overconfidence", "controls")
        for column in table.columns
    }
    higher = "auroc within_runs auprc brier_skill within type2_auroc meta_d m_ratio accuracy gain repaired".split()
    lower = "ece ece_stated aurc broken cost tokens_per_question".split()
    assert {key for key, end in better.items() if end == "higher"} == {*higher, "auroc_1", "auroc_2"}
    assert {key for key, end in better.items() if end == "lower"} == set(lower)


def test_files_hold_the_tables_that_other_programs_read():
    files = rendered()
    read = {
        name.removeprefix("tables/"): list(csv.DictReader(io.StringIO(content.decode())))
        for name, content in files.items()
        if name.endswith(".csv")
    }
    assert {f"{name}.csv" for name in (
        "methods controls methods-more pairs scores reliability risk roc seen within-strata strata overconfidence "
        "efficiency layers trajectories accuracy choices stages coupling agreement failures similarity routing audits "
        "provenance"
    ).split()} == set(read)  # fmt: skip
    assert read["provenance.csv"][0] == {"key": "model", "value": HOSTILE}
    assert [row["test"] for row in read["pairs.csv"]] == ["DeLong", "DeLong"]
