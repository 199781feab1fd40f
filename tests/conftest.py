"""What several files share: the recorded runs, and answers with planted signals."""

from pathlib import Path

import numpy as np
import pytest

from metaprobe.checkpoints import Generator
from metaprobe.eval.table import AnswerTable
from metaprobe.probes.features import features, schema
from metaprobe.records.activations import Activations
from metaprobe.training.methods import Evidence


@pytest.fixture(scope="session")
def recorded_runs() -> Path:
    """The store of really recorded runs that ships with the repository."""
    return Path(__file__).parent.parent / "recorded" / "smollm2-metacog-eval"


@pytest.fixture(scope="session")
def evidence() -> Evidence:
    """600 answers with planted signals."""
    return made_up()


def made_up(n: int = 600, *, signal: float = 1.5, seed: int = 0) -> Evidence:
    """Log-probabilities, and one direction of layer 2, know how right an answer is; statements know nothing."""
    rng = np.random.default_rng(seed)
    groups = np.array([f"g{i}" for i in rng.integers(0, n // 4, n)])
    truth = rng.normal(size=n)
    y = (truth + rng.normal(size=n) > 0).astype(np.int64)
    lengths = rng.integers(3, 40, n)
    logprobs = np.empty(n, dtype=object)
    logprobs[:] = [
        -np.abs(rng.normal(1.5 - signal * np.tanh(t) / 2, 0.7, k)).astype(np.float32)
        for t, k in zip(truth, lengths, strict=True)
    ]
    hidden = rng.normal(size=(n, 3, 2, 12))
    hidden[:, 2, 1, 5] += signal * truth
    calls = np.array([f"c{i}" for i in range(n)])
    table = AnswerTable(
        call_ids=calls,
        items=calls,
        groups=groups,
        variants=np.full(n, "direct"),
        dimensions=np.full(n, "d"),
        levels=np.full(n, "easy"),
        questions=np.array([f"question {i} of {g}" for i, g in enumerate(groups)]),
        models=np.full(n, "m"),
        y=y,
        stated_difficulty=rng.uniform(size=n),
        stated_confidence=np.where(rng.uniform(size=n) < 0.2, np.nan, rng.uniform(size=n)),
        logprobs=logprobs,
        tokens=lengths,
        cut=np.zeros(n, dtype=bool),
    )
    full = schema("full")
    return Evidence(
        table=table,
        features=features(full, list(logprobs)),
        feature_names=full.names,
        schema="full",
        activations=Activations(
            tuple(calls.tolist()), hidden.astype(np.float16), (0, 1, 2), ("prompt_last", "answer_last")
        ),
        generator=Generator(model="m", logprobs_mode="raw"),
        fingerprint="f",
    )
