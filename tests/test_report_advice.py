"""What a report advises, and when it withholds its advice."""

import re
from dataclasses import replace

import pytest
from made_up_report import METHOD_OF_ALL, made_up, rendered

from metaprobe.eval.method_results import Finding
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.strongest_control import ControlComparison, ControlDifference
from metaprobe.eval.report.first_screen import brief, verdict_words
from metaprobe.eval.report.methods import headline
from metaprobe.eval.report.render import report_files
from metaprobe.eval.report.sections import sections
from metaprobe.eval.report.text import comparison_table
from metaprobe.eval.wording import (
    number,
)


@pytest.fixture(scope="module")
def comparison():
    return made_up()


@pytest.fixture(scope="module")
def files():
    return rendered()


@pytest.fixture(scope="module")
def page(files):
    return files["report.html"]


def over_controls(comparison, gains):
    """Where the learned method has these differences to its controls: name -> (estimate, low, high, p after Holm)."""

    def control(name, found):
        estimate, low, high, p = found
        strength = next(m.auroc.estimate for m in comparison.methods if m.name == name)
        return ControlDifference(name, strength, Interval(estimate, low, high, 400, 97), p, p)

    found = [control(name, gain) for name, gain in gains.items()]
    found.sort(key=lambda control: -control.estimate)
    against = ControlComparison(0.8, tuple(found))
    methods = tuple(replace(m, controls=against) if m.name == METHOD_OF_ALL else m for m in comparison.methods)
    return replace(comparison, methods=methods, exported="The nearest is X.")


BETTER, TIE, WORSE = (0.06, 0.03, 0.09, 0.001), (0.01, -0.02, 0.04, 0.4), (-0.03, -0.05, -0.01, 0.01)


STRONGEST = "minimum log-probability"
"""Of the controls of the comparison that is made up."""


def test_the_strongest_control_is_named_and_advice_goes_by_the_difference_to_it(comparison):
    assert comparison.controls[0].name == STRONGEST
    better = brief(over_controls(comparison, {STRONGEST: BETTER, "length": BETTER})).do
    assert better[0] == (
        f"Use the learned method ({METHOD_OF_ALL}) to decide which answers to check: it beats each of 2 controls, the "
        f"strongest of them (the free number {STRONGEST}) by +0.06 [+0.03, +0.09] AUROC. The nearest is X."
    )


@pytest.mark.parametrize(("gain", "says"), [(TIE, "is not shown to do better"), (WORSE, "does worse")])
def test_where_a_free_number_does_as_well_it_is_to_be_used_and_named(comparison, gain, says):
    advice = brief(over_controls(comparison, {STRONGEST: gain, "length": BETTER})).do
    assert advice[0] == f"Use the free number {STRONGEST} to decide which answers to check."
    assert advice[1].startswith(f"The learned method {says} than the free number {STRONGEST} here (")


def test_a_gain_whose_interval_is_above_0_but_which_falls_to_holm_is_no_gain(comparison):
    fallen = (0.03, 0.001, 0.06, 0.09)
    assert brief(over_controls(comparison, {STRONGEST: fallen})).do[0].startswith("Use the free number")


def test_a_weaker_control_that_is_not_beaten_is_named_too(comparison):
    advice = brief(over_controls(comparison, {STRONGEST: BETTER, "prompt TF-IDF": TIE})).do
    assert "beats the strongest control (the free number minimum log-probability) by +0.06" in advice[0]
    assert "is not shown to beat the plain predictor prompt TF-IDF" in advice[0]


def test_a_gain_that_is_gone_within_runs_is_said_beside_the_advice(comparison):
    pooled = over_controls(comparison, {STRONGEST: BETTER})
    inside = next(m for m in over_controls(comparison, {"length": TIE}).methods if m.name == METHOD_OF_ALL).controls
    methods = tuple(replace(m, controls_within=inside) if m.name == METHOD_OF_ALL else m for m in pooled.methods)
    advice = brief(replace(pooled, methods=methods)).do
    assert advice[0].startswith("Use the learned method")
    assert advice[1].startswith("Among answers of one run it is not shown to beat the free number length (+0.01")


def test_nothing_is_advised_where_no_score_tells_anything(comparison):
    guessing = tuple(replace(m, auroc=Interval(0.5, 0.45, 0.55, 400, 97)) for m in comparison.methods)
    assert brief(replace(comparison, methods=guessing)).do[0].startswith("Do not rely on any of these scores")


CHOSEN = {"mean log-probability": 3, "prompt TF-IDF": 2}


def with_chosen_row(comparison):
    """The comparison with a row of controls that the folds chose in advance."""
    row = replace(
        next(m for m in comparison.methods if m.name == "mean log-probability"),
        name="best plain baseline",
        auroc=Interval(0.61, 0.55, 0.66, 400, 97),
    )
    return replace(comparison, methods=(*comparison.methods, row), best_baseline=row.name, baselines=CHOSEN)


@pytest.mark.slow
def test_the_controls_chosen_in_advance_keep_their_row_and_decide_nothing(comparison):
    chosen = with_chosen_row(comparison)
    told = "mean log-probability in 3 of 5 folds, prompt TF-IDF in 2"
    assert told in report_files(chosen)["report.html"]
    assert told in " ".join(comparison_table(chosen).split())
    assert STRONGEST in comparison_table(chosen)
    assert any(told in found and "61 times in 100" in found for found in brief(chosen).found)
    assert [control.name for control in chosen.controls] == [control.name for control in comparison.controls]
    assert brief(chosen).do == brief(comparison).do


def test_stated_confidence_is_shown_as_stated_and_recalibrated(comparison, page):
    stated, plain = comparison.methods[0], comparison.methods[2]
    assert stated.stated.ece.estimate > 0.2 > plain.ece.estimate
    said = " ".join(brief(comparison).found)
    assert f"{number(stated.stated.ece.estimate)} as stated, {number(stated.ece.estimate)} recalibrated" in said
    (figure,) = [
        figure
        for s in sections(comparison)
        for figure in s.figures
        if figure.title == "Reliability: verbalised confidence"
    ]
    assert [entry.text for entry in figure.legend] == ["recalibrated", "as stated"]
    assert "ECE, as stated" in page
    assert "ECE, recalibrated" in page
    assert "ECE, as stated v  ECE, recalibrated v" in re.sub(r" {2,}", "  ", comparison_table(comparison))


def test_stated_confidence_that_tells_something_is_weighed_against_the_learned_method(comparison):
    def last_advice(low, high):
        auroc, gain = Interval(0.7, 0.65, 0.75, 400, 300), Interval(0.05, low, high, 400, 300)
        methods = [replace(m, auroc=auroc, diff_stated=m.diff_stated and gain) for m in comparison.methods]
        return brief(replace(comparison, methods=tuple(methods))).do[-1]

    assert last_advice(0.01, 0.09).endswith("but less than the learned method.")
    assert last_advice(-0.01, 0.11).endswith("asking it may do.")


def test_an_invalid_audit_of_the_data_withholds_all_advice(comparison):
    spoiled = replace(comparison, audits=(Finding("splits share no group", False, "3 shared", "invalid"),))
    assert brief(spoiled).do == ("Do not act on these numbers before the audits that failed are settled.",)
    assert any("splits share no group; the numbers cannot be believed" in said for said in brief(spoiled).sure)


def test_an_invalid_audit_of_one_method_withholds_the_advice_about_that_method_alone(comparison):
    learned = headline(comparison).name
    plain = brief(comparison).do
    other = next(m.name for m in comparison.methods if m.family == "learned" and m.name != learned)
    failed = Finding(f"{other}: beats length", False, "+0.00", "invalid", method=other)
    assert brief(replace(comparison, audits=(failed,))).do == (
        *plain,
        f"Do not rely on {other} before the audits that it failed are settled: {failed.name}.",
    )
    assert verdict_words(replace(comparison, audits=(failed,))) == verdict_words(comparison)
    sure = " ".join(brief(replace(comparison, audits=(failed,))).sure)
    assert f"Failed: {failed.name}; the numbers of {other} cannot be believed." in sure

    own = Finding(f"{learned}: beats length", False, "+0.00", "invalid", method=learned)
    advice = brief(replace(comparison, audits=(own,))).do
    assert not any("Use the learned method" in said for said in advice)
    assert any(said.startswith("Use the ") for said in advice)  # a control does not fail with it
    assert advice[-1] == f"Do not rely on {learned} before the audits that it failed are settled: {own.name}."
    first = verdict_words(replace(comparison, audits=(own,)))[0]
    assert first == f"Do not act on the numbers of {learned} before the audits that it failed are settled: {own.name}."


def test_failed_audits_come_first_and_are_named_in_words(page):
    audits = page[page.index('id="audits"') : page.index('id="notes"')]
    assert audits.index("✗ failed") < audits.index("✓ passed")
    assert "the numbers are weaker than they look" in audits
