"""The sentences at the top of a report claim what the numbers under them say, and no more."""

from dataclasses import replace

import numpy as np
import pytest
from made_up_report import made_up

from metaprobe.checkpoints.table import format_interval
from metaprobe.eval.compare import BEST_BASELINE
from metaprobe.eval.controls import STATED, control_named
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.strongest_control import ControlComparison, ControlDifference
from metaprobe.eval.results import (
    Difficulty,
    MethodResult,
    Overconfidence,
    PairTest,
    WithinStrata,
)
from metaprobe.training.comparison import further_sentences, headline_method, headline_sentences, recommended_checkpoint
from metaprobe.training.methods import AFTER, BEFORE, BLEND, LADDER

MADE = made_up(60, resamples=20).methods[-1]


def about(estimate: float, low: float, high: float) -> Interval:
    return Interval(estimate, low, high, 400, 100)


GOOD = about(0.8, 0.7, 0.9)


def method(name: str, family: str = "learned", auroc: Interval = GOOD, **more: object) -> MethodResult:
    changed = {"name": name, "family": family, "auroc": auroc, "controls": None, "within_runs": None, "stated": None}
    return replace(MADE, **changed | more)  # type: ignore[arg-type]


def over(name: str, low: float, high: float, p: float) -> ControlDifference:
    return ControlDifference(name, 0.7, about((low + high) / 2, low, high), p / 3, p)


def test_the_headline_is_the_blend_then_the_predictor_then_a_probe_then_the_users_own_method() -> None:
    names = (BLEND, LADDER, AFTER, BEFORE)
    results = [method("length", "plain"), method("mine", "own"), *(method(name) for name in reversed(names))]
    for name in names:
        assert headline_method(results).name == name
        results = [result for result in results if result.name != name]
    assert headline_method(results).name == "mine"
    assert headline_method(results[:1]).name == "length"


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ((0.501, 0.6), "better than chance"),
        ((0.5, 0.6), "not distinguishable from chance"),
        ((0.4, 0.5), "not distinguishable from chance"),
        ((0.4, 0.499), "worse than chance"),
    ],
)
def test_stated_confidence_is_told_from_chance_by_its_whole_interval(ends: tuple[float, float], says: str) -> None:
    stated = method(STATED, "explicit", about(0.5, *ends), coverage=0.75)
    found = headline_sentences([stated], y=np.array([1, 1, 1, 0]), baselines=())
    assert found[0] == "75% of 4 answers are right."
    assert found[1].endswith(f"with AUROC {format_interval(stated.auroc)}: {says}.")
    assert "which it stated for 75% of the answers" in found[1]
    assert len(found) == 2, "nothing was learned, and so nothing is said of it"


@pytest.mark.parametrize(
    ("control", "says"),
    [
        (over("length", 0.01, 0.1, 0.01), "(p = 0.010 after Holm's correction), so it is better; it beats all 1."),
        (over("length", 0.01, 0.1, 0.2), "so this sample does not settle which is better; it beats 0 of 1."),
        (over("length", -0.1, -0.01, 0.01), "so it is worse; it beats 0 of 1."),
    ],
)
def test_a_gain_over_the_strongest_control_is_claimed_only_where_it_is_shown(
    control: ControlDifference, says: str
) -> None:
    inside = ControlComparison(0.6, (over("length", 0.02, 0.08, 0.01), over("words", -0.1, 0.1, 0.9)))
    against = ControlComparison(0.8, (control,))
    learned = method(BLEND, controls=against, within_runs=about(0.65, 0.6, 0.7), controls_within=inside)
    beside = method("length", "plain", about(0.7, 0.6, 0.8))
    chosen = method(BEST_BASELINE, "plain", about(0.72, 0.7, 0.74))
    folds = ("words", "length", "length")
    _, reached, gain, row, within = headline_sentences([learned, beside, chosen], y=np.ones(4), baselines=folds)
    assert reached == f"The learned method named beforehand ({BLEND}) reaches {format_interval(learned.auroc)}."
    assert f"The strongest of 1 controls on these answers is {control_named('length')} with" in gain
    assert says in gain
    assert "in each of 3 folds (length in 2, words in 1)" in row
    assert f"reaches {format_interval(about(0.65, 0.6, 0.7))}, its strongest control there, length, 0.70;" in within
    assert within.endswith("so it is better.")
    own = headline_sentences([method("mine", "own"), beside], y=np.ones(4), baselines=())
    assert own[1].startswith("The method of your own (mine) reaches")


def test_what_is_left_at_equal_difficulty_and_after_correction_is_counted() -> None:
    learned = method(BLEND)
    rows = tuple(
        WithinStrata(method=name, auroc=about(0.6, 0.5, 0.7), diff_stated=None) for name in (STATED, "length", BLEND)
    )
    equal = Difficulty(by="level", strata=(), methods=rows)
    pairs = [
        PairTest(method="m", reference="r", difference=about(0, 0, 0), test="DeLong", p=p, p_holm=p)
        for p in (0.04, 0.05, 0.06)
    ]
    gaps = [
        Overconfidence(method=name, stated=True, level=level, confidence=0.8, accuracy=0.5, gap=about(gap, 0.1, 0.5))
        for name, level, gap in ((STATED, "all", 0.3), (STATED, "easy", -0.1), (BLEND, "all", 0.0))
    ]
    found = further_sentences([learned], pairs, equal, gaps, None)
    within = format_interval(about(0.6, 0.5, 0.7))
    assert found[0] == f"At equal difficulty (level) the AUROC is: {STATED} {within}, {BLEND} {within}."
    assert found[1].startswith("1 of 3 differences from stated confidence or the strongest control stand")
    assert "(DeLong, p < 0.05)" in found[1]
    signed = format_interval(about(0.3, 0.1, 0.5), signed=True)
    assert found[2] == f"Stated confidence minus accuracy is {signed} (easy -0.10)."
    assert further_sentences([learned], pairs, equal, gaps[:1], None)[2].endswith(f"{signed}.")
    assert further_sentences([learned], (), None, gaps[2:], None) == []


def test_the_command_that_writes_the_recommended_method_is_named_with_what_it_does_not_beat() -> None:
    beaten, standing = over("length", 0.01, 0.1, 0.01), over("words", -0.1, 0.1, 0.9)
    some = method(BLEND, auroc=about(0.78, 0.7, 0.8), controls=ControlComparison(0.78, (beaten, standing)))
    found = recommended_checkpoint([some, method(LADDER)])
    assert "`metaprobe compare RUNS --export C`" in found
    assert "`metaprobe train blend RUNS --out C`" in found
    assert f"It is not shown to beat {control_named('words')}" in found
    alone = recommended_checkpoint([replace(some, controls=ControlComparison(0.78, (beaten,)))])
    assert "not shown" not in alone
    assert "`metaprobe train hidden --when after RUNS --out C`" in recommended_checkpoint([method(AFTER)])
    assert recommended_checkpoint([method("mine", family="own")]) == "", "there is no checkpoint of a user's method"
