"""What a report says in words: the verdict, what was found, how sure it is, what it advises and when it does not."""

import re
from dataclasses import replace

import numpy as np
import pytest
from made_up_report import METHOD_OF_ALL, made_up

from metaprobe.checkpoints.table import number
from metaprobe.eval.compare import control_named
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.selective import risk_coverage
from metaprobe.eval.metrics.strongest_control import ControlComparison, ControlDifference
from metaprobe.eval.report.words import brief, headline, main_methods, verdict_words
from metaprobe.eval.report.write import comparison_table
from metaprobe.eval.results import Comparison, Finding

STRONGEST = "minimum log-probability"
"""Of the controls of the comparison that is made up."""
BETTER, TIE, WORSE = (0.06, 0.03, 0.09, 0.001), (0.01, -0.02, 0.04, 0.4), (-0.03, -0.05, -0.01, 0.01)
CHOSEN = {"mean log-probability": 3, "prompt TF-IDF": 2}


@pytest.fixture(scope="module")
def comparison():
    return made_up()


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


def with_chosen_row(comparison):
    """The comparison with a row of controls that the folds chose in advance."""
    row = replace(
        next(m for m in comparison.methods if m.name == "mean log-probability"),
        name="best plain baseline",
        auroc=Interval(0.61, 0.55, 0.66, 400, 97),
    )
    return replace(comparison, methods=(*comparison.methods, row), best_baseline=row.name, baselines=CHOSEN)


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


def test_the_controls_chosen_in_advance_keep_their_row_and_decide_nothing(comparison):
    chosen = with_chosen_row(comparison)
    told = "mean log-probability in 3 of 5 folds, prompt TF-IDF in 2"
    assert told in " ".join(comparison_table(chosen).split())
    assert STRONGEST in comparison_table(chosen)
    assert any(told in found and "61 times in 100" in found for found in brief(chosen).found)
    assert [control.name for control in chosen.controls] == [control.name for control in comparison.controls]
    assert brief(chosen).do == brief(comparison).do


def test_stated_confidence_is_said_as_stated_and_recalibrated(comparison):
    stated, plain = comparison.methods[0], comparison.methods[2]
    assert stated.stated.ece.estimate > 0.2 > plain.ece.estimate
    said = " ".join(brief(comparison).found)
    assert f"{number(stated.stated.ece.estimate)} as stated, {number(stated.ece.estimate)} recalibrated" in said
    assert "ECE, as stated ↓" in comparison_table(comparison)
    assert "ECE, recalibrated ↓" in comparison_table(comparison)


def with_gains(comparison, gains, *, within=None):
    """Where the method named beforehand has these differences to its controls: name -> (estimate, low, high, p)."""

    def over(found):
        return ControlComparison(
            0.8, tuple(ControlDifference(name, 0.7, Interval(*g[:3], 400, 97), g[3], g[3]) for name, g in found.items())
        )

    changed = {"controls": over(gains), "controls_within": over(within) if within else None}
    methods = tuple(replace(m, **changed) if m.name == METHOD_OF_ALL else m for m in comparison.methods)
    return replace(comparison, methods=methods)


@pytest.mark.parametrize(
    ("gains", "says"),
    [
        (
            {STRONGEST: BETTER, "length": BETTER},
            "beats every one of 2 controls, the strongest, the free number minimum",
        ),
        ({STRONGEST: TIE, "length": BETTER}, "is not shown to beat the free number minimum log-probability (+0.01"),
        (
            {STRONGEST: WORSE},
            "does worse than the free number minimum log-probability (-0.03 [-0.05, -0.01] AUROC): use",
        ),
        ({STRONGEST: BETTER, "length": TIE}, "but is not shown to beat the free number length."),
        ({STRONGEST: (0.03, 0.001, 0.06, 0.09)}, "is not shown to beat the free number minimum log-probability"),
    ],
)
def test_the_verdict_claims_a_gain_only_where_every_paired_interval_and_holm_do(comparison, gains, says):
    first, *_ = verdict_words(with_gains(comparison, gains))
    assert first.startswith(f"The learned method ({METHOD_OF_ALL}, AUROC 0.")
    assert says in first
    assert ("beats every" in first) == all(gain == BETTER for gain in gains.values())


def test_a_gain_that_is_gone_within_runs_is_said_beside_the_pooled_one(comparison):
    gone = verdict_words(with_gains(comparison, {STRONGEST: BETTER}, within={"length": TIE}))
    assert any(
        said.startswith("Among answers of one run it is not shown to beat the free number length") for said in gone
    )
    kept = verdict_words(with_gains(comparison, {STRONGEST: BETTER}, within={"length": BETTER}))
    assert not any("Among answers of one run" in said for said in kept)


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ((0.6, 0.7), "is better than guessing"),
        ((0.45, 0.6), "is not shown to be better than guessing"),
        ((0.3, 0.4), "is worse than guessing"),
    ],
)
def test_the_verdict_says_whether_what_the_model_says_is_better_than_guessing(comparison, ends, says):
    first = replace(comparison.methods[0], auroc=Interval(sum(ends) / 2, *ends, 400, 97))
    last = verdict_words(replace(comparison, methods=(first, *comparison.methods[1:])))[-1]
    assert says in last
    assert re.search(r"; it is \d+\u00a0% sure on average, and \d+\u00a0% are right\.$", last)


def test_the_verdict_begins_with_audits_that_leave_nothing_to_be_believed(comparison):
    spoiled = replace(comparison, audits=(Finding("splits share no group", False, "3 shared", "invalid"),))
    assert verdict_words(spoiled)[0].endswith("before the audits that failed are settled: splits share no group.")
    weak = replace(comparison, audits=(Finding("few", False, "", "weak"),))
    assert verdict_words(weak)[0].startswith("The learned method")
    assert verdict_words(Comparison(title="t", summary=(), provenance={}, y=np.array([0, 1]), methods=())) == ()


@pytest.mark.parametrize(("groups", "few"), [(99, True), (100, False)])
def test_below_100_groups_more_are_asked_for(comparison, groups, few):
    methods = tuple(replace(m, auroc=Interval(0.7, 0.6, 0.8, 400, groups)) for m in comparison.methods)
    told = brief(replace(comparison, methods=methods))
    assert any("groups are few" in sentence for sentence in told.sure) == few
    assert any(sentence.startswith("Collect more questions") for sentence in told.do) == few


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.51, 0.6, "95 % interval 51 to 60)"), (0.5, 0.6, "which may be luck"), (0.4, 0.5, "which may be luck"),
     (0.4, 0.49, "so it is worse than guessing")],
)  # fmt: skip
def test_what_an_interval_leaves_open_the_words_do_too(comparison, low, high, said):
    methods = tuple(replace(m, auroc=Interval(0.5, low, high, 400, 97), within_runs=None) for m in comparison.methods)
    found = brief(replace(comparison, methods=methods)).found
    assert found[0].rstrip(".").endswith(said)
    assert sum(said in sentence for sentence in found) == 3  # what is stated, the strongest control, what is learned


def test_what_half_of_the_answers_would_be_wrong_is_said_of_the_learned_method_or_else_the_control(comparison):
    def kept(found):
        return next(sentence for sentence in brief(found).found if sentence.startswith("Keeping only"))

    curve = risk_coverage(comparison.y, comparison.methods[-1].probability)
    wrong = 100 * np.interp(0.5, curve.coverage, curve.risk)
    assert f"that {METHOD_OF_ALL} trusts most, {wrong:.0f}\u00a0% of them are wrong" in kept(comparison)
    assert f"against {100 * (1 - comparison.base_rate):.0f}\u00a0% of all" in kept(comparison)
    unlearned = replace(comparison, methods=comparison.methods[:9], headline="")
    assert f"that {STRONGEST} trusts most" in kept(unlearned)
    assert not any("learned method" in sentence for sentence in brief(unlearned).found)
    assert brief(replace(comparison, methods=())).parts == ()
    inside = next(sentence for sentence in brief(comparison).found if sentence.startswith("The learned method"))
    assert inside.endswith("of two answers of one run 60 times.")


def test_a_learned_method_without_a_control_that_tells_is_to_be_compared_first(comparison):
    guessing = Interval(0.5, 0.45, 0.55, 400, 97)
    methods = tuple(
        m if m.name == METHOD_OF_ALL else replace(m, auroc=guessing)
        for m in (replace(m, controls=None) for m in comparison.methods)
    )
    advice = brief(replace(comparison, methods=methods)).do
    assert advice[0].startswith("The learned method is better than guessing; compare it with a free number")
    assert "Do not rely on what the model says of its own confidence." in advice


def test_audits_that_failed_are_counted_by_what_they_mean(comparison):
    audits = (Finding("a", True, "d"), Finding("b", False, "d"), Finding("c", False, "d"))
    said = brief(replace(comparison, audits=audits)).sure
    assert "1 of 3 audits passed." in said
    assert "2 of the audits failed in a way that makes numbers weaker than they look." in said
    assert not any("audits" in sentence for sentence in brief(replace(comparison, audits=())).sure)


def test_the_method_named_beforehand_speaks_for_the_learned_ones_or_else_the_last_of_them(comparison):
    assert headline(comparison).name == METHOD_OF_ALL
    assert headline(replace(comparison, headline="length")).name == "length"
    fewer = replace(comparison, headline="", methods=comparison.methods[:-1])
    assert headline(fewer).name == "hidden probe, last prompt token"
    assert headline(replace(comparison, headline="", methods=comparison.methods[:3])) is None
    names = [method.name for method in main_methods(comparison)]
    assert names == ["verbalised confidence", "mean log-probability", "minimum log-probability", METHOD_OF_ALL]
    assert control_named("P(true)") == "the further question P(true)"
    assert control_named("run identity") == "the plain predictor run identity"
    assert control_named("length") == "the free number length"
