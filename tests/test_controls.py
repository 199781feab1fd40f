"""A score beats its controls only where it beats every one of them; the strongest is found and named."""

import dataclasses

import numpy as np
import pytest
from conftest import made_up
from hypothesis import given, settings
from hypothesis import strategies as st

from metaprobe.eval.compare import method_results
from metaprobe.eval.controls import ANSWER, JOINED, LENGTH, MEAN, P_TRUE, PROMPT, QUESTION, TERMS, free_controls
from metaprobe.eval.metrics.bootstrap import against_controls, cluster_weights, holm
from metaprobe.eval.metrics.ranked import StratifiedAuroc
from metaprobe.training.methods import AFTER, BEFORE, USUAL_LADDER, GivenScore, HiddenProbeMethod, control_methods
from metaprobe.training.study import audit_method, crossfit, standard_methods

N, GROUPS = 600, 200


def world(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """Labels, a good score, bootstrap weights over groups of three, and a source of noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, N)
    weights = cluster_weights(np.repeat(np.arange(GROUPS), N // GROUPS).tolist(), 400, seed)
    return y, y + rng.normal(0, 1.0, N), weights, rng


def test_a_score_equal_to_its_strongest_control_has_not_beaten_its_controls() -> None:
    y, score, weights, rng = world()
    found = against_controls(y, score, {"noise": rng.normal(size=N), "the same": 3 * score - 1}, weights)
    assert not found.beaten
    assert found.strongest.name == "the same"
    assert [control.name for control in found.standing] == ["the same"]
    with pytest.raises(ValueError, match="at least one control"):
        against_controls(y, score, {}, weights)
    assert found.strongest.difference.estimate == 0
    assert found.strongest.p == 1


def test_one_better_control_is_named_and_all_the_weak_ones_do_not_outvote_it() -> None:
    y, score, weights, rng = world()
    better = y + rng.normal(0, 0.4, N)
    weak = {f"noise {i}": rng.normal(size=N) for i in range(6)}
    found = against_controls(y, score, {**weak, "better": better}, weights)
    assert not found.beaten
    assert found.strongest.name == "better"
    assert found.strongest.difference.high < 0
    assert all(control.beaten for control in found.controls[1:])


def test_a_perfect_score_against_a_constant_is_a_gain_and_one_group_shows_nothing() -> None:
    y = np.array([0, 1] * 30)
    several = cluster_weights(np.repeat(np.arange(10), 6).tolist(), 200)
    assert against_controls(y, y, {"constant": np.zeros(60)}, several).beaten
    one = cluster_weights(["all"] * 60, 200)
    assert not against_controls(y, y, {"constant": np.zeros(60)}, one).beaten


def test_within_runs_a_score_that_only_knows_the_run_does_not_beat_a_constant() -> None:
    rng = np.random.default_rng(3)
    run = np.repeat([0, 1], N // 2)
    y = (rng.random(N) < np.where(run == 1, 0.8, 0.2)).astype(int)
    weights = cluster_weights(np.tile(np.arange(N // 2), 2).tolist(), 400)
    knows_run = run + 0.01 * rng.normal(size=N)
    controls = {"constant": np.zeros(N)}
    assert against_controls(y, knows_run, controls, weights).beaten
    assert not against_controls(y, knows_run, controls, weights, metric=StratifiedAuroc(run)).beaten


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_order_and_scale_of_controls_change_nothing_and_p_is_holm_corrected(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    y = np.r_[rng.integers(0, 2, 58), 0, 1]
    weights = cluster_weights(np.repeat(np.arange(20), 3).tolist(), 100, seed)
    score = y + rng.normal(0, 1, 60)
    controls = {f"c{i}": rng.uniform(-1, 1) * y + rng.normal(0, 1, 60) for i in range(k)}
    found = against_controls(y, score, controls, weights)
    other = against_controls(y, score, {name: 2 * controls[name] + 1 for name in reversed(controls)}, weights)
    assert {c.name: c.difference for c in found.controls} == {c.name: c.difference for c in other.controls}
    assert np.allclose([c.p_holm for c in found.controls], holm([c.p for c in found.controls]))
    assert found.strongest.estimate == max(c.estimate for c in found.controls)
    assert found.beaten == all(c.beaten for c in found.controls)
    if found.beaten:
        assert found.strongest.difference.low > 0


def test_a_comparison_and_the_audits_hold_a_method_against_the_same_controls() -> None:
    """Long answers are the right ones, some were asked for P(true), and a run is a task: every kind of control."""
    made, rng = made_up(200), np.random.default_rng(0)
    table = dataclasses.replace(
        made.table,
        tasks=np.array(["easy", "hard"])[np.unique(made.table.groups, return_inverse=True)[1] % 2],
        p_true=np.where(rng.random(200) < 0.2, np.nan, rng.random(200)),
        y=(made.table.tokens + rng.normal(0, 8, 200) > 20).astype(np.int64),
    )
    evidence = dataclasses.replace(made, table=table)
    mine = GivenScore("mine", "own", lambda table: -np.log(table.tokens) + 0.0)
    methods = [mine, *control_methods(evidence), USUAL_LADDER]
    fits = crossfit(evidence, methods, folds=2)
    results = {result.name: result for result in method_results(table, fits.methods, fold=fits.fold)}
    for method in (mine, USUAL_LADDER):
        audited = audit_method(evidence, fits, fits[method.name])
        assert audited.controls == results[method.name].controls
        assert audited.controls_within == results[method.name].controls_within
    against = {control.name for control in results["mine"].controls.controls}  # type: ignore[union-attr]
    assert {P_TRUE, MEAN, LENGTH, f"{LENGTH}, reversed", QUESTION, TERMS, "prompt TF-IDF", "run identity"} <= against
    assert results["mine"].controls.strongest.name in (f"{LENGTH}, reversed", TERMS)  # type: ignore[union-attr]
    ladder = {control.name for control in results[USUAL_LADDER.name].controls.controls}  # type: ignore[union-attr]
    assert against == ladder, "one list for all"


def test_free_controls_fill_gaps_and_leave_out_what_says_nothing() -> None:
    table = made_up(100).table
    assert P_TRUE not in free_controls(table)
    some = dataclasses.replace(table, p_true=np.where(np.arange(100) < 50, np.nan, 0.7), cut=np.arange(100) < 10)
    found = free_controls(some)
    assert np.all(found[P_TRUE] == 0.7)
    assert found["cut by max_tokens"][:10].max() < found["cut by max_tokens"][10:].min()
    np.testing.assert_allclose(found["total log-probability"], [x.sum() for x in table.logprobs], rtol=1e-5)
    bare = dataclasses.replace(
        table,
        tokens=np.zeros(100, dtype=np.int64),
        questions=np.full(100, ""),
        **dict.fromkeys(("stated_confidence", "stated_difficulty"), np.full(100, np.nan)),
    )
    assert free_controls(bare) == {}


def test_a_probe_before_the_answer_is_held_against_what_is_known_before_it() -> None:
    """Numbers that come with an answer cannot tell of it beforehand; a probe of the answer must beat them."""
    made = made_up(100)
    probes = [method for method in standard_methods(made) if isinstance(method, HiddenProbeMethod)]
    fits = crossfit(made, [*control_methods(made), *probes], folds=2)
    before, after = (audit_method(made, fits, fits[name]) for name in (BEFORE, AFTER))
    known = {control.name.removesuffix(", reversed") for control in before.controls.controls}  # type: ignore[union-attr]
    assert {QUESTION, PROMPT} <= known
    assert not known & {MEAN, LENGTH, TERMS, ANSWER, JOINED}
    assert {QUESTION, PROMPT, MEAN, LENGTH, TERMS} <= {c.name for c in after.controls.controls}  # type: ignore[union-attr]
    counted = [found.detail for found in before.audits if " beats " in found.name]
    assert len(counted) == len(before.controls.controls)  # type: ignore[union-attr]
    assert all(f"correction over {len(counted)} controls" in detail for detail in counted)
