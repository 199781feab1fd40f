"""An interval is drawn with the seed and the number of resamples that were asked for, and follows from them alone."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_caelf_analysis import graded, rated
from test_compare import answers, judges
from test_compare_runs import observed
from test_essay_debate_analysis import RUNS as DEBATES

from metaprobe.eval.answers import agents_alone, auroc_by_tokens_seen, with_runs
from metaprobe.eval.audits import judge_left_out
from metaprobe.eval.audits_of_data import label_noise
from metaprobe.eval.compare import (
    add_details,
    auroc_gain,
    method_results,
)
from metaprobe.eval.gate_performance import HeldOutLooks, gate_report
from metaprobe.eval.metacognition import (
    at_equal_difficulty,
    coupling,
    difficulty_strata,
    metacognitive_efficiency,
    overconfidence,
)
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.results import Comparison
from metaprobe.eval.systems import caelf, essay_debate, metacogagent, metacrit, mgv
from metaprobe.eval.table import answer_table
from metaprobe.records.store import RunStore

RECORDED = Path(__file__).parent.parent / "recorded"
EMPTY = Comparison(title="t", provenance={}, y=np.array([0, 1]), methods=())


FEW = 15
"""Groups below which few values are possible, and two seeds may well give the same ends."""


def intervals(found: Any, at: str = "") -> Iterator[tuple[str, Interval]]:
    """Every interval in a result, with its place."""
    if isinstance(found, Interval):
        yield at, found
    elif dataclasses.is_dataclass(found):
        for field in dataclasses.fields(found):
            yield from intervals(getattr(found, field.name), f"{at}.{field.name}")
    elif isinstance(found, Mapping):
        for key, value in found.items():
            yield from intervals(value, f"{at}[{key}]")
    elif isinstance(found, tuple | list):
        for number, value in enumerate(found):
            yield from intervals(value, f"{at}[{number}]")


@lru_cache
def recorded(name: str, n: int = 120) -> list[Any]:
    """The first runs of a store."""
    return list(islice(RunStore(RECORDED / name).runs(hidden=False), n))


TABLE = answers(groups=np.array([f"g{i // 2}" for i in range(600)]))
JUDGED = judges(TABLE)
OBSERVED = observed(1.5)
LOOKS = HeldOutLooks(
    TABLE,
    (1,),
    JUDGED[1].probability[:, None],
    JUDGED[1].ranking,
    {0.1: (JUDGED[2].ranking < -0.8).astype(np.int64)},
    np.zeros(600, dtype=np.int64),
)
CONTESTS = [
    graded("caelf", f"i{n}", n % 3, (n * n) % 3, (n + n // 4) % 3, (n // 2) % 3, stands=n % 2) for n in range(60)
]
RATED = [rated(f"i{n}", 1 + n % 5, 1 + n * n % 4) for n in range(40)]
DOMAINS = dataclasses.replace(TABLE, tasks=np.array(["a", "b"])[np.arange(600) // 2 % 2])

CASES: dict[str, Callable[..., Any]] = {
    "methods": lambda **drawn: method_results(TABLE, JUDGED, **drawn),
    "details": lambda **drawn: add_details(TABLE, JUDGED, method_results(TABLE, JUDGED, **drawn), **drawn),
    "difficulty": lambda **drawn: at_equal_difficulty(TABLE, JUDGED, difficulty_strata(TABLE), **drawn),
    "overconfidence": lambda **drawn: overconfidence(TABLE, JUDGED, None, **drawn),
    "efficiency": lambda **drawn: metacognitive_efficiency(OBSERVED[0], OBSERVED[1][:1], OBSERVED[2], **drawn),
    "coupling": lambda **drawn: coupling(recorded("creak-metacrit"), **drawn),
    "gate": lambda **drawn: gate_report(LOOKS, **drawn),
    "stages": lambda **drawn: with_runs(EMPTY, recorded("creak-metacrit"), **drawn),
    "agents": lambda **drawn: agents_alone(recorded("metacog-every-agent", 60), **drawn),
    "seen": lambda **drawn: auroc_by_tokens_seen(
        answer_table(recorded("smollm2-metacog-eval")), tokens=(1, 5), **drawn
    ),
    "left out": lambda **drawn: judge_left_out(
        DOMAINS, lambda rows: (JUDGED[1].ranking[rows], JUDGED[1].probability[rows]), JUDGED[0].ranking, **drawn
    ),
    "contest": lambda **drawn: caelf.summarise_contests(CONTESTS, **drawn),
    "ratings": lambda **drawn: caelf.feedback_ratings(RATED, **drawn),
    "scores": lambda **drawn: essay_debate.score_agreement(
        [dataclasses.replace(run, final_answer=str(int(run.id[-1]) % 4)) for run in DEBATES], **drawn
    ),
    "verdicts": lambda **drawn: essay_debate.verdicts(DEBATES, **drawn),
    "checks": lambda **drawn: essay_debate.checks(DEBATES, **drawn),
    "judges": lambda **drawn: essay_debate.judge_agreement(DEBATES, **drawn),
    "delegation": lambda **drawn: metacogagent.evaluate(recorded("metacog-every-agent", 60), **drawn),
    "agreement": lambda **drawn: metacrit.agreement(recorded("creak-metacrit"), **drawn),
    "cost": lambda **drawn: metacrit.cost_table(recorded("creak-metacrit"), **drawn),
    "cycles": lambda **drawn: mgv.cycle_reports(recorded("gsm8k-mgv"), **drawn),
}


def differ(one: Any, *others: Any) -> list[str]:
    """Places of intervals that are the same in all of these, though they have a width."""
    first, *rest = (dict(intervals(found)) for found in (one, *others))
    assert first
    return [
        at
        for at, found in first.items()
        if found.low < found.high
        and found.groups >= FEW
        and all((other[at].low, other[at].high) == (found.low, found.high) for other in rest)
    ]


@pytest.mark.parametrize("name", CASES)
def test_an_interval_follows_from_the_seed_and_the_number_of_resamples(name: str) -> None:
    case = CASES[name]
    by_seed = [case(resamples=23, seed=seed) for seed in (0, 1, 2)]
    # The seed is 0 by default.
    assert str(list(intervals(by_seed[0]))) == str(list(intervals(case(resamples=23))))
    assert differ(*by_seed) == []
    assert differ(by_seed[0], *(case(resamples=n, seed=0) for n in (17, 41, 58))) == []


def test_audits_follow_their_seed() -> None:
    rng = np.random.default_rng(0)
    one = rng.integers(0, 2, 80).astype(float)
    other = np.where(rng.uniform(size=80) < 0.2, 1 - one, one)
    groups = np.arange(80).astype(str)
    assert len({label_noise({"a": one, "b": other}, groups, seed=seed)[0].detail for seed in (0, 1, 2)}) > 1


def test_a_gain_over_another_method_follows_its_seed() -> None:
    found = [auroc_gain(TABLE, JUDGED[1], JUDGED[2], seed=seed) for seed in (0, 1)]
    assert differ(*found) == []
    assert found[0] == auroc_gain(TABLE, JUDGED[1], JUDGED[2])
