"""A checkpoint in the shadow scores what another answers with, and a canary answers the same share of requests."""

from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_quality

from metaprobe.checkpoints import Checkpoint
from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.http.judges import Allowance, Judges, Scorer, Seat, load_judges
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings, SettingsError

ANSWER = [-0.5, -1.0, -0.25]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Checkpoint]:
    folder: Path = tmp_path_factory.mktemp("checkpoints")
    return tiny_quality(folder / "one"), tiny_quality(folder / "two", slope=2.0)


class Taken:
    """A log of one request that keeps what it is told."""

    def __init__(self) -> None:
        self.held: list[tuple[str, float | None, bool, object]] = []
        self.reasons: list[str] = []

    def add(self, shown: dict[str, Any], answer: object, gate: object = None) -> None:
        self.held.append((shown["checkpoint"], shown["score"], False, answer))
        self.reasons.append(shown["reason"])

    def add_shadow(self, shown: dict[str, Any], answer: object) -> None:
        self.held.append((shown["checkpoint"], shown["score"], True, answer))


def judges(two: tuple[Checkpoint, Checkpoint], metrics: Metrics, **more: object) -> Judges:
    return load_judges(Settings(checkpoint=two[0].path, **more), metrics)  # type: ignore[arg-type]


def test_the_caller_gets_the_one_verdict_and_both_are_taken_down(two: tuple[Checkpoint, Checkpoint]) -> None:
    taken: Any = Taken()
    metrics = Metrics()
    scorer = judges(two, metrics, shadows=(str(two[1].path),)).pick("m", "r").of(taken)
    verdict = scorer.verdict(ANSWER)
    alone = [QualityPredictor(checkpoint).predict(ANSWER).score for checkpoint in two]
    assert (verdict["checkpoint"], verdict["score"]) == (two[0].digest, alone[0])
    assert [each[:3] for each in taken.held] == [(two[0].digest, alone[0], False), (two[1].digest, alone[1], True)]
    assert taken.held[0][3] is taken.held[1][3] is not None
    counts = metrics.exposition().decode()
    assert 'metaprobe_verdicts_total{role="judge"} 1.0' in counts
    assert 'metaprobe_verdicts_total{role="shadow"} 1.0' in counts
    assert f"metaprobe_shadow_difference_sum {abs(alone[0] - alone[1])}" in counts
    assert "metaprobe_score_count 1.0" in counts  # the shadow's are not among those that were given


def test_a_fault_in_the_shadow_costs_nobody_a_verdict(two: tuple[Checkpoint, Checkpoint]) -> None:
    class Breaks(QualityPredictor):
        def predict(self, response: object) -> None:  # type: ignore[override]
            raise RuntimeError("nobody elses business")

    metrics = Metrics()
    shadow = Scorer(Breaks(two[1]), metrics, role="shadow")
    scorer = Scorer(QualityPredictor(two[0]), metrics, shadow=shadow)
    assert scorer.verdict(ANSWER)["score"] is not None
    assert 'metaprobe_errors_total{code="shadow"} 1.0' in metrics.exposition().decode()


def test_what_cannot_be_scored_is_taken_down_once_and_with_the_reason(two: tuple[Checkpoint, Checkpoint]) -> None:
    taken: Any = Taken()
    scorer = judges(two, Metrics(), shadows=(str(two[1].path),)).pick("m", "r").of(taken)
    assert scorer.verdict([0.5])["score"] is None
    scorer.none("why")
    scorer.stopped(0.25, "stopped", {"action": "stop", "tokens": 3})
    assert [(score, answer) for _, score, _, answer in taken.held] == [(None, None), (None, None), (0.25, None)]
    assert taken.reasons[1:] == ["why", "stopped"]


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_a_canary_judges_its_share_and_the_same_requests_every_time(
    two: tuple[Checkpoint, Checkpoint], share: float
) -> None:
    table = judges(two, Metrics(), canary_checkpoints=(str(two[1].path),), canary_share=share)
    chosen = [table.pick("m", f"request-{number}").digest == two[1].digest for number in range(5000)]
    assert chosen == [table.pick("m", f"request-{number}").digest == two[1].digest for number in range(5000)]
    assert abs(sum(chosen) / 5000 - share) < 0.03  # 5 standard deviations
    assert share not in (0.0, 1.0) or set(chosen) == {bool(share)}


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("name", ["{}", "req-{}", "{:032x}"])
def test_a_canary_judges_its_share_also_of_ids_that_count_on(
    two: tuple[Checkpoint, Checkpoint], share: float, name: str
) -> None:
    seat = Seat(*(Scorer(QualityPredictor(checkpoint), Metrics()) for checkpoint in two))
    judged = sum(seat.of(name.format(number), share) is seat.trial_scorer for number in range(1000))
    assert abs(judged / 1000 - share) < 3 * (share * (1 - share) / 1000) ** 0.5


@pytest.mark.parametrize("where", ["shadows", "canary_checkpoints"])
def test_none_is_in_the_shadow_of_nobody(two: tuple[Checkpoint, Checkpoint], where: str) -> None:
    with pytest.raises(SettingsError, match="no checkpoint judges 'b'"):
        judges(two, Metrics(), **{where: (f"b={two[1].path}",)})


@pytest.mark.parametrize(
    "more",
    [
        {"shadows": ("bundled:quality", "bundled:critical")},
        {"canary_checkpoints": ("bundled:quality", "bundled:critical")},
        {"base_rates": ("a|b|c", "a|b|d")},
    ],
)
def test_of_two_for_one_model_none_is_passed_over(two: tuple[Checkpoint, Checkpoint], more: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"two .*give each model one"):
        judges(two, Metrics(), **more)


def test_the_shadow_scores_no_more_tokens_than_are_scored(two: tuple[Checkpoint, Checkpoint]) -> None:
    taken: Any = Taken()
    metrics = Metrics()
    scorer = judges(two, metrics, shadows=(str(two[1].path),), max_scored_tokens=3).pick("m", "r").of(taken)
    assert "4 tokens to score, and at most 3" in scorer.verdict([*ANSWER, -0.5])["reason"]
    shared = Allowance(3)
    assert [scorer.verdict(ANSWER, shared)["score"] is None for _ in range(2)] == [False, True]
    assert [shadow for *_, shadow, _ in taken.held] == [False, False, True, False]
    assert 'metaprobe_verdicts_total{role="shadow"} 1.0' in metrics.exposition().decode()
