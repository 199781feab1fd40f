"""What the tables of a report hold: each number of the comparison under its own name, and what the page makes of it."""

from dataclasses import replace

import pytest
from made_up_report import METHOD_OF_ALL, made_up
from report_rows import ends, interval_of, marks, rows_of, shown, table_of, told

from metaprobe.eval.method_results import Finding
from metaprobe.eval.report.costs import choice_section, routing_section
from metaprobe.eval.report.equal_difficulty import difficulty_section, efficiency_section
from metaprobe.eval.report.facts import accuracy_section, audits_section
from metaprobe.eval.report.systems import systems_section
from metaprobe.eval.results import Accuracy, AccuracyRow, Difficulty, Efficiency, Overconfidence, Stratum, WithinStrata
from metaprobe.eval.system_results import (
    Agreement,
    CostPoint,
    CostQuality,
    Coupling,
    Failures,
    SimilarityFlow,
    StageAccuracy,
    StageSimilarity,
)


@pytest.fixture(scope="module")
def comparison():
    return made_up()


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
    section = difficulty_section(replace(comparison, difficulty=found, overconfidence=()))
    within = table_of(section, "within-strata")
    overall = {method.name: method.auroc for method in comparison.methods}
    for row, method in zip(rows_of(within), found.methods, strict=True):
        assert row["method"] == method.method
        assert interval_of(row, "auroc") == ends(overall[method.method])
        assert interval_of(row, "within") == ends(method.auroc)
    assert marks(within, "diff_stated") == ["better", ""]
    strata = rows_of(table_of(section, "strata"))
    assert interval_of(strata[1], "stratum_1") == ends(by_stratum["length"][0])
    assert interval_of(strata[1], "stratum_2") == ends(by_stratum["length"][1])
    assert strata[0]["stratum_2"] == ""
    sizes = table_of(section, "strata-sizes")
    assert rows_of(sizes) == [
        {"stratum": "easy", "n": "1200", "accuracy": "0.7"},
        {"stratum": "hard", "n": "150", "accuracy": "0.3"},
    ]
    assert [cell.text for _, cell in sizes.shown[0]] == ["easy", "1,200", "70\u00a0%"]
    assert difficulty_section(replace(comparison, difficulty=None, overconfidence=())).empty


def test_confidence_that_was_stated_and_the_method_named_beforehand_are_on_the_page_and_all_in_the_csv(comparison):
    rows = tuple(
        Overconfidence(
            method=name, stated=name.startswith("verbalised"), level="hard", confidence=0.9, accuracy=0.3, gap=told(0.6)
        )
        for name in ("verbalised confidence", "LightGBM on log-probabilities", METHOD_OF_ALL)
    )
    table = table_of(difficulty_section(replace(comparison, difficulty=None, overconfidence=rows)), "overconfidence")
    assert [row[0][1].text for row in table.shown] == ["verbalised confidence", METHOD_OF_ALL]
    saved = rows_of(table)
    assert [row["method"] for row in saved] == [row.method for row in rows]
    assert [row["source"] for row in saved] == ["as stated", "recalibrated", "recalibrated"]
    assert [saved[0][key] for key in ("level", "confidence", "accuracy", "gap")] == ["hard", "0.9", "0.3", "0.6"]
    assert marks(table, "gap") == ["", ""]  # over-confidence is no gain
    assert [cell.text for column, cell in table.shown[0] if column.key == "gap"] == ["+0.60"]


def test_efficiency_says_why_a_method_has_none(comparison):
    given = Efficiency(method="a", type2_auroc=told(0.7), meta_d=told(1.1), m_ratio=told(0.9), bins=4)
    refused = Efficiency(method="b", type2_auroc=told(0.5), meta_d=None, m_ratio=None, bins=1, refused="too coarse")
    both = replace(comparison.two_choice, methods=(given, refused))
    section = efficiency_section(replace(comparison, two_choice=both))
    assert "refused" in shown(table_of(section, "efficiency"))
    first, second = rows_of(table_of(section, "efficiency"))
    for key in ("type2_auroc", "meta_d", "m_ratio"):
        assert interval_of(first, key) == ends(getattr(given, key))
    assert (first["bins"], second["meta_d"], second["refused"]) == ("4", "", "too coarse")
    assert "10 say neither and are left out" in section.intro
    clear = replace(both, methods=(given,), unreadable=0)
    section = efficiency_section(replace(comparison, two_choice=clear))
    assert "refused" not in shown(table_of(section, "efficiency"))
    assert "neither" not in section.intro
    none = replace(comparison, two_choice=None, two_choice_refused="three choices")
    assert efficiency_section(none).intro == "Not given: three choices"
    assert efficiency_section(replace(none, two_choice_refused="")).empty


COUPLED = (
    "failure_auroc flagged_wrong flagged_right fixed_flagged fixed_unflagged fixed_difference broken_flagged "
    "broken_unflagged broken_difference"
).split()


def test_the_tables_of_stages_hold_each_figure_under_its_name(comparison):
    each = {key: told(0.3 + at / 20) for at, key in enumerate(COUPLED)}
    coupled = Coupling(system="s", variant="v", monitor="flags", n=1200, **each)
    agreed = Agreement("both", 40, told(0.3), told(0.4), told(0.5), told(0.6))
    section = systems_section(
        replace(
            comparison,
            stages=(
                StageAccuracy("s", "v", "answer", told(0.4), None),
                StageAccuracy("s", "v", "end", told(0.5), told(0.1)),
            ),
            coupling=(coupled,),
            agreement=(agreed,),
            failures=Failures({"ignored": 6, "misled": 2}, 4.5),
        )
    )
    stages = table_of(section, "stages")
    assert [(row["stage"], *interval_of(row, "accuracy")) for row in rows_of(stages)] == [
        ("answer", *ends(told(0.4))),
        ("end", *ends(told(0.5))),
    ]
    assert interval_of(rows_of(stages)[1], "gain") == ends(told(0.1))
    assert marks(stages, "gain") == ["", "better"]
    coupling = table_of(section, "coupling")
    [row] = rows_of(coupling)
    assert (row["monitor"], row["n"]) == ("flags", "1200")
    for key in COUPLED:
        assert interval_of(row, key) == ends(getattr(coupled, key))
        assert marks(coupling, key) == [""]
    texts = {column.key: cell.text for column, cell in coupling.shown[0]}
    assert texts["failure_auroc"] == "0.30"  # no share
    assert texts["flagged_wrong"] == "35\u00a0%"
    assert texts["broken_difference"] == "+0.70"
    [row] = rows_of(table_of(section, "agreement"))
    for key in ("first_accuracy", "accuracy", "repaired", "broken"):
        assert interval_of(row, key) == ends(getattr(agreed, key))
    failures = table_of(section, "failures")
    assert [(row["failure"], row["n"], row["share"]) for row in rows_of(failures)] == [
        ("ignored", "6", "0.75"),
        ("misled", "2", "0.25"),
    ]
    assert "4.5 of their answers" in failures.caption
    unknown = systems_section(replace(comparison, failures=Failures({"ignored": 1}, float("nan"))))
    assert "answers an item" not in table_of(unknown, "failures").caption


def test_tables_of_stages_that_would_say_nothing_are_left_out(comparison):
    bare = replace(comparison, stages=(), coupling=(), similarity=(), failures=Failures({"ignored": 0}, 1.0))
    bare = replace(bare, agreement=tuple(replace(row, n=0) for row in comparison.agreement))
    assert systems_section(bare).empty
    assert systems_section(replace(bare, failures=None)).empty
    only = systems_section(replace(bare, agreement=comparison.agreement))
    assert [table.ident for table in only.tables] == ["agreement"]
    flows = systems_section(replace(bare, similarity=comparison.similarity))
    assert not flows.tables
    assert not flows.empty


def test_system_and_variant_are_on_the_page_where_there_are_several(comparison):
    def heads(**changed):
        rows = (comparison.stages[0], replace(comparison.stages[0], **changed))
        table = table_of(systems_section(replace(comparison, stages=rows)), "stages")
        assert {"system", "variant"} <= rows_of(table)[0].keys()
        return {"system", "variant"} & set(shown(table))

    assert heads() == set()
    assert heads(system="other") == {"system"}
    assert heads(variant="other") == {"variant"}


def test_similarity_names_what_it_is_to_and_its_change_is_no_gain(comparison):
    stages = (StageSimilarity("answer", told(0.5), None), StageSimilarity("monitor", told(0.7), told(0.2)))
    flow = SimilarityFlow("metacrit", "v", "previous", "TF-IDF", stages)
    section = systems_section(replace(comparison, similarity=(flow, replace(flow, reference="final"))))
    table = table_of(section, "similarity")
    rows = rows_of(table)
    assert [row["reference"] for row in rows] == ["the stage before it"] * 2 + ["the last stage's text"] * 2
    assert interval_of(rows[1], "similarity") == ends(told(0.7))
    assert interval_of(rows[1], "change") == ends(told(0.2))
    assert set(marks(table, "change")) == {""}
    assert [figure.ident for figure in section.figures] == ["similarity-previous", "similarity-final"]


def test_points_of_cost_are_marked_where_they_are_corners(comparison):
    points = (
        CostPoint("cheap", "agent", 0.1, 0.4, told(0.4)),
        CostPoint("bad", "control", 0.5, 0.404),
        CostPoint("dear", "agent", 1.0, 0.7),
    )
    costs = CostQuality(title="Agents", unit="US dollars", points=points, hull=((0.1, 0.4), (1.0, 0.7)), n=1400)
    section = routing_section((costs, replace(costs, title="Others")))
    assert [table.ident for table in section.tables] == ["routing", "routing-2"]
    assert [figure.ident for figure in section.figures] == ["routing-01-agents", "routing-02-others"]
    rows = rows_of(section.tables[0])
    assert [(row["policy"], row["kind"], row["cost"], row["accuracy"], row["hull"]) for row in rows] == [
        ("cheap", "agent", "0.1", "0.4", "corner"),
        ("bad", "control", "0.5", "0.404", ""),
        ("dear", "agent", "1.0", "0.7", "corner"),
    ]
    assert interval_of(rows[0], "accuracy") == ends(told(0.4))
    assert rows[1]["accuracy_low"] == ""
    assert [row[3][1].text for row in section.tables[0].shown] == ["40.0\u00a0%", "40.4\u00a0%", "70.0\u00a0%"]
    assert "1,400 questions; cost in US dollars" in section.tables[0].caption
    assert routing_section(()).empty


def test_a_policy_is_told_by_accuracy_tokens_and_share(comparison):
    section = choice_section(comparison.choices)
    rows = rows_of(section.tables[0])
    for row, policy in zip(rows, comparison.choices, strict=True):
        assert row["policy"] == policy.policy
        assert interval_of(row, "accuracy") == ends(policy.accuracy)
        assert float(row["tokens_per_question"]) == policy.tokens_per_question
        assert float(row["step_by_step"]) == policy.step_by_step
    assert [cell.text for column, cell in section.tables[0].shown[2] if column.key == "tokens_per_question"] == ["64"]
    assert [figure.ident for figure in section.figures] == ["choice-01-learned"]
    assert {row["policy"] for row in rows_of(section.data[0])} == {"learned"}
    without = choice_section([replace(policy, reliability=()) for policy in comparison.choices])
    assert without.tables
    assert not without.data
    assert choice_section(()).empty


def test_accuracy_says_of_how_many_and_leaves_open_what_was_not_asked(comparison):
    rows = (
        AccuracyRow("sums", "easy", {"direct": Accuracy(0.75, 1200), "": Accuracy(0.5, 2)}),
        AccuracyRow("all", "all", {"direct": Accuracy(0.25, 9)}),
    )
    [table] = accuracy_section(replace(comparison, accuracy=rows)).tables
    assert [column.title for column in table.columns] == ["Dimension", "Level", "direct", "answer"]
    assert [cell.note for _, cell in table.shown[0]] == ["", "", "of 1,200", "of 2"]
    assert [cell.text for _, cell in table.shown[1]] == ["all", "all", "25\u00a0%", "–"]
    assert rows_of(table) == [
        {"dimension": "sums", "level": "easy", "variant": "direct", "accuracy": "0.75", "n": "1200"},
        {"dimension": "sums", "level": "easy", "variant": "", "accuracy": "0.5", "n": "2"},
        {"dimension": "all", "level": "all", "variant": "direct", "accuracy": "0.25", "n": "9"},
    ]
    assert accuracy_section(replace(comparison, accuracy=())).empty


def test_invalid_audits_come_first_then_weak_ones_then_those_that_passed():
    audits = (
        Finding("fine", True, "d", "invalid"),
        Finding("faint", False, "d", "weak"),
        Finding("broken", False, "d", "invalid"),
    )
    [table] = audits_section(audits).tables
    assert [row[0][1].text for row in table.shown] == ["broken", "faint", "fine"]
    assert [row[1][1].text for row in table.shown] == [
        "the numbers cannot be believed",
        "the numbers are weaker than they look",
        "",
    ]
    assert marks(table, "result") == ["failed", "failed", "passed"]
    assert table.caption == "1 of 3 audits passed."
    assert [(row["name"], row["passed"], row["severity"]) for row in rows_of(table)] == [
        ("fine", "1", "invalid"),
        ("faint", "0", "weak"),
        ("broken", "0", "invalid"),
    ]
    assert audits_section(()).empty
