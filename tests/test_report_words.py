"""A report puts its results into words: the finding, how sure it is, its advice, and when it gives none."""

from dataclasses import replace

import numpy as np
import pytest
from made_up_report import METHOD_OF_ALL, made_up

from metaprobe.checkpoints.manifest import MEANING
from metaprobe.eval.controls import TERMS, is_fitted
from metaprobe.eval.metrics.bootstrap import ControlComparison, ControlDifference, Interval
from metaprobe.eval.report.words import brief, headline, recommended
from metaprobe.eval.report.write import comparison_table
from metaprobe.eval.results import Finding

STRONGEST = "minimum log-probability"
"""The strongest control of the comparison that is made up."""
BETTER, TIE, WORSE = (0.06, 0.03, 0.09, 0.001), (0.01, -0.02, 0.04, 0.4), (-0.03, -0.05, -0.01, 0.01)
FALLEN = (0.03, 0.001, 0.06, 0.09)
"""An interval above 0, but a p-value that does not survive Holm's correction."""


@pytest.fixture(scope="module")
def comparison():
    return made_up()


def with_gains(comparison, gains, *, within=None):
    """The learned method with these differences to its controls: name -> (estimate, low, high, p after Holm)."""

    def over(given):
        controls = [
            ControlDifference(name, 0.9 - at / 10, Interval(*gain[:3], 400, 97), gain[3], gain[3])
            for at, (name, gain) in enumerate(given.items())
        ]
        return ControlComparison(0.8, tuple(controls))

    changed = {"controls": over(gains), "controls_within": over(within) if within else None}
    methods = tuple(replace(m, **changed) if m.name == METHOD_OF_ALL else m for m in comparison.methods)
    return replace(comparison, methods=methods, exported="The nearest is X.")


@pytest.mark.parametrize(
    ("gains", "advice"),
    [
        (
            {STRONGEST: BETTER, "length": BETTER},
            f"Use the learned method ({METHOD_OF_ALL}) to decide which answers to check: The nearest is X.",
        ),
        ({STRONGEST: TIE, "length": BETTER}, "Use the free number"),
        ({STRONGEST: WORSE}, "Use the free number"),
        ({STRONGEST: FALLEN}, "Use the free number"),
        (
            {STRONGEST: BETTER, "prompt TF-IDF": TIE},
            f"The learned method ({METHOD_OF_ALL}) beats the strongest control",
        ),
    ],
)
def test_a_gain_is_claimed_and_advised_only_where_every_paired_interval_and_holm_show_it(comparison, gains, advice):
    shown = with_gains(comparison, gains)
    told, *more = brief(shown).do
    assert told.startswith(advice)
    use = recommended(shown)
    assert ("The nearest is X." in told) == (use is not None), "the command is of the method that is recommended"
    assert use is None or use.name in told
    if "prompt TF-IDF" in gains:
        assert "but is not shown to beat the plain predictor prompt TF-IDF: collect more answers" in told
    if told.startswith("Use the free"):
        says = "does worse" if gains == {STRONGEST: WORSE} else "is not shown to do better"
        assert more[0].startswith(f"The learned method {says} than the free number {STRONGEST} here (")


def test_the_first_words_count_the_controls_that_are_beaten_and_name_the_hardest_that_is_not(comparison):
    won = brief(with_gains(comparison, {STRONGEST: BETTER, "length": BETTER})).wins
    assert won.startswith(f"Each of 2 controls; the strongest is the free number {STRONGEST} (+0.06")
    told = brief(with_gains(comparison, {STRONGEST: BETTER, "length": TIE, "prompt TF-IDF": FALLEN})).wins
    assert told.startswith("1 of 3 controls. Not shown for 2; the strongest of these is the free number length (+0.01")


def test_of_several_runs_the_gain_within_runs_decides_and_a_pooled_loss_is_said_beside_it(comparison):
    gone = with_gains(comparison, {STRONGEST: BETTER}, within={"length": TIE})
    assert recommended(gone).name == STRONGEST
    kept = with_gains(comparison, {"run identity": WORSE}, within={"run identity": BETTER})
    assert recommended(kept).name == METHOD_OF_ALL
    warning = "Over answers of different runs it is not shown to beat the plain predictor run identity (-0.03"
    assert any(said.startswith(warning) for said in brief(kept).do)
    assert "Each of 1 controls within runs" in brief(kept).wins


def with_signals(comparison, *differences, gain=(0.0, -0.01, 0.01)):
    """The comparison with these differences, implicit minus explicit, for the whole and for two tasks."""
    whole, first, second, *_ = comparison.signals.parts
    parts = tuple(
        replace(part, difference=Interval(*each[:3], 400, 97), p_holm=each[3], joined_gain=Interval(*gain, 400, 97))
        for part, each in zip((whole, first, second), differences, strict=True)
    )
    return replace(comparison, signals=replace(comparison.signals, parts=parts))


@pytest.mark.parametrize(
    ("differences", "lead", "by_task"),
    [
        ((BETTER, BETTER, TIE), "Implicit: of a right", "By task: implicit ahead on sums; neither shown on claims."),
        ((WORSE, WORSE, WORSE), "Explicit: of a right", "By task: explicit ahead on sums, claims."),
        ((TIE, BETTER, WORSE), "Neither is shown", "It turns round by task: implicit ahead on sums; explicit ahead on"),
        ((FALLEN, TIE, TIE), "Neither is shown", "On no task is either shown to be ahead."),
    ],
)
def test_the_first_sentence_says_whether_explicit_or_implicit_tells_more(comparison, differences, lead, by_task):
    (heading, told), *_ = brief(with_signals(comparison, *differences)).first
    assert heading == "Explicit or implicit"
    assert told.startswith(lead)
    assert by_task in told
    ahead = abs(differences[0][0])
    sign = "-" if lead.startswith("Neither") and differences[0][0] < 0 else "+"
    assert f"({sign}{ahead:.2f} [" in told, "who is ahead is ahead by a positive number"
    assert "They complement" not in told
    whole = " ".join(text for _, text in brief(with_signals(comparison, *differences)).first)
    assert whole.count("trusts the right one more") == 1
    assert "behind by" not in whole


def test_a_reversal_that_tasks_and_models_hide_is_named_by_both(comparison):
    shown = with_signals(comparison, BETTER, BETTER, BETTER)
    whole = shown.signals.whole
    crossed = [
        replace(whole, by="task and model", name=name, difference=Interval(*each[:3], 400, 97), p_holm=each[3])
        for name, each in {"a on sums": BETTER, "b on sums": WORSE, "a on claims": FALLEN}.items()
    ]
    shown = replace(shown, signals=replace(shown.signals, parts=(*shown.signals.parts, *crossed)))
    told = brief(shown).explicit_or_implicit
    assert "By task: implicit ahead on sums, claims." in told
    assert "It turns round by task and model: implicit ahead for a on sums; explicit ahead for b on sums;" in told


def test_signals_that_complement_each_other_are_said_to_and_advised_together(comparison):
    tells = Interval(0.62, 0.55, 0.68, 400, 97)
    methods = tuple(replace(m, auroc=tells) if m.family == "explicit" else m for m in comparison.methods)
    joined = with_signals(comparison, TIE, TIE, TIE, gain=(0.03, 0.01, 0.05))
    told = brief(replace(joined, methods=methods))
    assert "They complement each other: joined" in told.explicit_or_implicit
    assert "Ask the model for its own confidence too: joined, the two tell more than either." in told.do
    apart = replace(comparison.signals, parts=tuple(replace(p, joined=None) for p in comparison.signals.parts))
    alone = brief(replace(comparison, signals=apart))
    assert "whether they complement each other is not shown" in alone.explicit_or_implicit
    assert not any("tell more than either" in line for line in alone.do)


def test_scores_that_tell_nothing_are_not_advised(comparison):
    guessing = Interval(0.5, 0.45, 0.55, 400, 97)
    none = tuple(replace(m, auroc=guessing) for m in comparison.methods)
    assert brief(replace(comparison, methods=none)).do[0].startswith("Do not rely on any of these scores")
    learned = tuple(m if m.name == METHOD_OF_ALL else replace(m, auroc=guessing) for m in comparison.methods)
    advice = brief(replace(comparison, methods=tuple(replace(m, controls=None) for m in learned))).do
    assert advice[0].startswith("The learned method is better than guessing; compare it with a free number")
    assert "Do not rely on what the model says of its own confidence." in advice


def test_a_decision_models_number_is_found_and_advised_where_it_alone_tells(comparison):
    guessing, tells = Interval(0.5, 0.45, 0.55, 400, 97), Interval(0.76, 0.68, 0.83, 400, 97)
    least, *others = (replace(m, auroc=guessing, family="plain", controls=None) for m in comparison.methods)
    judged = [
        replace(least, name="decision complete", family="decision"),
        replace(least, name="decision correct", family="decision", auroc=tells),
    ]
    behind = ControlDifference("decision correct", 0.76, Interval(-0.08, -0.14, -0.02, 400, 97), 0.01, 0.01)
    trained = replace(
        judged[1],
        name="learned on decisions",
        auroc=Interval(0.68, 0.6, 0.77, 400, 97),
        controls=ControlComparison(0.68, (behind,)),
    )
    shown = replace(comparison, methods=(*judged, trained, *others), headline="learned on decisions", exported="")
    assert headline(shown) is trained
    told = brief(shown)
    assert told.do[0] == "Use the decision model's number correct to decide which answers to check."
    assert "does worse than the decision model's number correct" in told.do[1]
    assert "strongest number of the decision model (decision correct): of a right and a wrong" in told.found[0]
    alone = brief(replace(shown, methods=(*judged, *others), headline="decision complete")).do[0]
    assert alone == told.do[0]


def test_a_learned_method_that_is_one_number_is_called_that_number_calibrated(comparison):
    own = headline(comparison)
    number = replace(
        own, calibrated_control=STRONGEST, controls=replace(own.controls, controls=own.controls.controls[1:])
    )
    told = brief(replace(comparison, methods=tuple(number if m is own else m for m in comparison.methods)))
    assert f"which is the free number {STRONGEST}, calibrated: " in told.learned
    assert "other controls" in told.wins


def test_an_invalid_audit_of_the_data_withholds_all_advice_and_a_weak_one_is_counted(comparison):
    spoiled = replace(comparison, audits=(Finding("splits share no group", False, "3 shared", "invalid"),))
    assert brief(spoiled).do == ("Do not act on these numbers before the audits that failed are settled.",)
    assert any("splits share no group; the numbers cannot be believed" in said for said in brief(spoiled).sure)
    weak = replace(comparison, audits=(Finding("a", True, "d"), Finding("b", False, "d"), Finding("c", False, "d")))
    assert brief(weak).do == brief(replace(comparison, audits=())).do
    said = brief(weak).sure
    assert "1 of 3 audits passed." in said
    assert f"2 of the audits failed as weak: the numbers {MEANING['weak']}." in said


def test_an_invalid_audit_of_one_method_withholds_the_advice_about_that_method_alone(comparison):
    learned = headline(comparison).name
    other = next(m.name for m in comparison.methods if m.family == "learned" and m.name != learned)
    failed = replace(comparison, audits=(Finding("beats length", False, "+0.00", "invalid", method=other),))
    assert brief(failed).do[:-1] == brief(comparison).do
    assert brief(failed).do[-1].startswith(f"Do not rely on {other}")
    own = replace(comparison, audits=(Finding("beats length", False, "+0.00", "invalid", method=learned),))
    advice = brief(own).do
    assert not any("Use the learned method" in said for said in advice)
    assert any(said.startswith("Use the ") for said in advice)  # a control does not fail with it
    assert advice[-1].startswith(f"Do not rely on {learned} before the audits that it failed are settled")


def test_the_controls_chosen_in_advance_keep_their_row_and_decide_nothing(comparison):
    row = replace(
        next(m for m in comparison.methods if m.name == "mean log-probability"),
        name="best plain baseline",
        auroc=Interval(0.61, 0.55, 0.66, 400, 97),
    )
    folds = {"mean log-probability": 3, "prompt TF-IDF": 2}
    chosen = replace(comparison, methods=(*comparison.methods, row), best_baseline=row.name, baselines=folds)
    told = "mean log-probability in 3 of 5 folds, prompt TF-IDF in 2"
    assert told in " ".join(comparison_table(chosen).split())
    assert chosen.controls == comparison.controls
    assert comparison.controls[0].name == STRONGEST
    assert brief(chosen).do == brief(comparison).do


def test_a_number_that_was_chosen_on_these_answers_stands_beside_the_one_chosen_in_advance(comparison):
    row = replace(comparison.controls[-1], name="best plain baseline", auroc=Interval(0.61, 0.55, 0.66, 400, 97))
    chosen = replace(with_gains(comparison, {STRONGEST: TIE}), best_baseline=row.name)
    chosen = replace(chosen, methods=(*chosen.methods, row))
    count = len(chosen.controls)
    told = brief(chosen).signal
    assert f"It is the best of {count} numbers, chosen on these answers, so a little too good;" in told
    assert "the best plain baseline, chosen in advance: 61 times in 100 (55 to 66)." in told
    assert "too good" not in brief(with_gains(comparison, {STRONGEST: BETTER})).signal


@pytest.mark.parametrize(
    ("gain", "low", "ranked_last", "told"),
    [
        ((-0.01, -0.03, 0.01), 0.55, True, True),
        ((-0.05, -0.08, -0.02), 0.55, True, False),
        ((-0.01, -0.03, 0.01), 0.48, True, False),
        ((-0.01, -0.03, 0.01), 0.55, False, False),
    ],
)
def test_a_signal_that_only_tells_which_answers_were_cut_is_called_that(comparison, gain, low, ranked_last, told):
    tied = with_gains(comparison, {STRONGEST: TIE})
    assert recommended(tied).name == STRONGEST
    scores = recommended(tied).order
    was_cut = scores < np.quantile(scores, 0.3) if ranked_last else np.arange(len(scores)) % 3 == 0
    measured = {"auroc": Interval(0.62, low, 0.68, 400, 97), "diff_control": Interval(*gain, 400, 97)}
    measured["ranking"] = -was_cut.astype(float)
    methods = [replace(m, **measured) if m.name == "cut by max_tokens" else m for m in tied.methods]
    said = brief(replace(tied, methods=tuple(methods))).signal
    sentence = (
        f"It mostly tells which answers were cut: cut by max_tokens alone has 62 times in 100 ({100 * low:.0f} to 68)."
    )
    assert (sentence in said) == told
    assert ("were cut" in said) == told


def test_a_method_that_a_control_equals_is_not_used_and_a_leak_is_still_not_believed(comparison):
    learned = headline(comparison).name
    equalled = Finding(f"{learned} beats length", False, "+0.00", "invalid", method=learned, control="length")
    leak = Finding("shuffled labels are at chance", False, "0.7", "invalid", method=learned)
    told = brief(replace(comparison, audits=(equalled,)))
    sentence = f"Do not use {learned}: length alone ranks as well."
    assert sentence[1:] in told.do[-1]
    assert sentence[1:] in " ".join(told.sure)
    assert "cannot be believed" not in " ".join((*told.do, *told.sure))
    told = brief(replace(comparison, audits=(equalled, leak)))
    assert told.do[-1].startswith(f"Do not rely on {learned} before the audits that it failed are settled")
    assert f"shuffled labels are at chance; the numbers of {learned} cannot be believed" in " ".join(told.sure)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.51, 0.6, "95 % interval 51 to 60)"),
        (0.5, 0.6, "which may be luck"),
        (0.4, 0.5, "which may be luck"),
        (0.4, 0.49, "so it is worse than guessing"),
    ],
)
def test_what_an_interval_leaves_open_the_words_do_too(comparison, low, high, said):
    methods = tuple(replace(m, auroc=Interval(0.5, low, high, 400, 97), within_runs=None) for m in comparison.methods)
    shown = replace(comparison, methods=methods)
    told = brief(shown)
    short = said.replace("95 % interval 51", "(51")  # the first sentence of a list says what the count means
    assert sum(said in sentence or short in sentence for sentence in (*told.found, told.learned)) == 3


@pytest.mark.parametrize(("groups", "few"), [(99, True), (100, False)])
def test_below_100_groups_more_are_asked_for(comparison, groups, few):
    methods = tuple(replace(m, auroc=Interval(0.7, 0.6, 0.8, 400, groups)) for m in comparison.methods)
    told = brief(replace(comparison, methods=methods))
    assert any("groups are few" in sentence for sentence in told.sure) == few
    assert any(sentence.startswith("Collect more questions") for sentence in told.do) == few


def test_the_method_named_beforehand_speaks_for_the_learned_ones_or_else_the_last_of_them(comparison):
    assert headline(comparison).name == METHOD_OF_ALL
    assert headline(replace(comparison, headline="length")).name == METHOD_OF_ALL  # a control is not learned
    assert headline(replace(comparison, headline="", methods=comparison.methods[:3])) is None


def test_a_fitted_control_gives_way_to_a_free_number_that_it_is_not_shown_to_beat() -> None:
    shown = made_up(200, resamples=20)
    number = next(method for method in shown.controls if not is_fitted(method.name))

    def use(low: float) -> str:
        terms = replace(number, name=TERMS, auroc=replace(number.auroc, estimate=0.9, low=low, high=0.95))
        plain = replace(number, auroc=replace(number.auroc, estimate=0.8, low=0.7, high=0.9))
        method = recommended(replace(shown, methods=(terms, plain), chosen={}))
        assert method is not None
        return method.name

    assert use(0.79) == number.name
    assert use(0.81) == TERMS
