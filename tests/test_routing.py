"""Decisions: the fixed rule and the learned choice answer the same question, and say why."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from metaprobe.checkpoints import load_checkpoint
from metaprobe.eval.compare import policy_results
from metaprobe.probes.signals import Signal, Signals, signals_of
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Item, Label, Run, Statement
from metaprobe.routing.ask_again import ACCEPT, AGAIN, INPUTS, LearnedChoice, StatedThreshold
from metaprobe.routing.policy import Outcome, Policy, State
from metaprobe.training.ask_again.data import pair_variants
from metaprobe.training.ask_again.fit import evaluate_choice
from metaprobe.training.ask_again.train import export_choice

# Whether so little data passes every audit is not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

LEGAL = (ACCEPT, AGAIN)


def state(**signals: float) -> State:
    return State("d1", "ask-again", Signals(**{name: Signal(value, "test") for name, value in signals.items()}))


def made_up_runs(n: int = 200, seed: int = 0) -> list[Run]:
    """Direct answers are right where their log-probability is high; step by step right two times in three, always."""
    rng = np.random.default_rng(seed)
    runs = []
    for i in range(n):
        item = Item(id=f"i{i}", question="q", group=f"g{i}", task="t")
        good = rng.uniform() < 0.5
        for variant, right in (("direct", good), ("step-by-step", rng.uniform() < 0.67)):
            level = -0.1 if right else -2.0
            call = Call(
                id=f"{variant}/{i}",
                stage="answer",
                logprobs=rng.normal(level, 0.3, 6).clip(max=-0.01).astype(np.float32),
                usage=dataclasses.replace(Call(id="x").usage, completion_tokens=6 if variant == "direct" else 60),
            )
            runs.append(
                Run(
                    id=call.id,
                    system="self-report",
                    variant=variant,
                    item=item,
                    calls=(call,),
                    statements=(Statement(call.id, "confidence", 0.9), Statement(call.id, "difficulty", None)),
                    labels=(Label(call.id, "correct", float(right), "program"),),
                )
            )
    return runs


@pytest.mark.parametrize(
    ("rule", "signals", "action"),
    [
        (StatedThreshold(), {"confidence": 0.49}, AGAIN),
        (StatedThreshold(), {"confidence": 0.5}, ACCEPT),
        (StatedThreshold("difficulty", again_if_above=True), {"difficulty": 0.5}, AGAIN),
        (StatedThreshold("difficulty", again_if_above=True), {"difficulty": 0.49}, ACCEPT),
        (StatedThreshold(fallback=0.2), {}, AGAIN),
    ],
)
def test_the_fixed_rule_follows_its_threshold(rule: Policy, signals: dict[str, float], action: str) -> None:
    decision = rule.decide(state(**signals), LEGAL)
    assert decision.action == action
    assert decision.propensities == {ACCEPT: float(action == ACCEPT), AGAIN: float(action == AGAIN)}
    assert ("nothing stated" in decision.reason) == (not signals)
    rule.observe(decision.id, Outcome(correct=1.0))


def test_the_learned_choice_beats_both_constant_policies_where_there_is_something_to_learn() -> None:
    data = pair_variants(made_up_runs())
    policies, learned = evaluate_choice(data)
    results = policy_results(data.groups, policies)
    accuracy = {r.policy: r.accuracy.estimate for r in results}
    assert accuracy["learned choice"] > max(accuracy["always direct"], accuracy["always step by step"]) + 0.05
    assert accuracy["oracle"] >= max(accuracy.values())
    assert accuracy["stated confidence < 0.5"] == accuracy["always direct"]  # it always states 0.9
    tokens = {r.policy: r.tokens_per_question for r in results}
    assert tokens["always direct"] == 6
    assert tokens["always step by step"] == 60
    assert 6 < tokens["learned choice"] < 66
    assert learned.shape == (200, 2)


def test_the_exported_choice_decides_as_fitted_and_falls_back_with_the_reason(tmp_path) -> None:
    data = pair_variants(made_up_runs())
    export_choice(tmp_path / "choice", data, *evaluate_choice(data), seed=0, command="a test")
    choice = LearnedChoice.load(tmp_path / "choice")
    good = choice.decide(State("d", "ask-again", data.signals[int(np.argmax(data.correct[:, 0]))]), LEGAL)
    bad = choice.decide(State("d", "ask-again", data.signals[int(np.argmin(data.correct[:, 0]))]), LEGAL)
    assert (good.action, bad.action) == (ACCEPT, AGAIN)
    assert "P(right)" in good.reason
    blind = choice.decide(state(confidence=0.1), LEGAL)
    assert blind.action == AGAIN
    assert blind.reason.startswith("fixed rule, as no mean_logprob")
    for only in LEGAL:
        assert choice.decide(State("d", "ask-again", data.signals[0]), (only,)).action == only
    with pytest.raises(RecordError, match="legal are"):
        choice.decide(State("d", "ask-again", data.signals[0]), ("delegate",))
    dear = LearnedChoice(load_checkpoint(tmp_path / "choice"), price=1.0)
    assert dear.decide(State("d", "ask-again", data.signals[1]), LEGAL).action == ACCEPT


def written(now: float, then: float, seen: list[object], **thresholds: float) -> SimpleNamespace:
    """Stands where a checkpoint would: its two probabilities are written down, and it keeps what it was shown."""

    def run(inputs: dict[str, object]) -> dict[str, object]:
        seen.append(inputs["signals"])
        return {ACCEPT: np.array([[now]], dtype=np.float32), AGAIN: np.array([[then]], dtype=np.float32)}

    manifest = SimpleNamespace(kind="choice", contract={"signals": list(INPUTS)}, thresholds=thresholds)
    return SimpleNamespace(path="written", manifest=manifest, run=run)


def test_asking_again_must_bring_more_than_its_price_the_checkpoints_unless_another_is_given() -> None:
    seen: list[Any] = []
    measured = state(tokens=7.0, mean_logprob=-0.5, min_logprob=-2.0, first_logprob=-1.0, difficulty=0.25)
    found = LearnedChoice(written(0.25, 0.5, seen, price=0.25)).decide(measured, LEGAL)  # type: ignore[arg-type]
    assert (found.action, found.scores) == (ACCEPT, {ACCEPT: 0.25, AGAIN: 0.25})
    assert found.reason == "P(right) 0.25 now, 0.50 if asked again; gain must exceed 0.25"
    np.testing.assert_array_equal(seen[0], np.array([[0.25, np.nan, -0.5, -2.0, -1.0, 7.0]], dtype=np.float32))
    for choice in (
        LearnedChoice(written(0.25, 0.5, seen, price=0.25), price=0.125),  # type: ignore[arg-type]
        LearnedChoice(written(0.25, 0.375, seen)),  # type: ignore[arg-type]
    ):
        found = choice.decide(measured, LEGAL)
        assert (found.action, found.scores[AGAIN]) == (AGAIN, 0.375)
    free = LearnedChoice(written(0.25, 0.375, seen, price=0.25), price=0.0)  # type: ignore[arg-type]
    assert free.decide(measured, LEGAL).action == AGAIN


def test_too_few_pairs_are_refused_and_items_without_a_group_are_their_own() -> None:
    with pytest.raises(RecordError, match="20 items were answered"):
        pair_variants(made_up_runs(20))
    runs = [dataclasses.replace(run, item=dataclasses.replace(run.item, group="")) for run in made_up_runs(60)]
    assert len(set(pair_variants(runs).groups)) == 60


def test_signals_say_where_they_are_from_and_stay_none_without_a_source() -> None:
    call = Call(id="c", logprobs=np.array([-1.0, -3.0], np.float32))
    signals = signals_of(call, confidence=0.7)
    assert signals.confidence == Signal(0.7, "stated")
    assert signals.difficulty is None
    assert (signals.value("mean_logprob"), signals.value("min_logprob"), signals.value("tokens")) == (-2.0, -3.0, 2.0)
    assert signals_of(Call(id="c")).mean_logprob is None
