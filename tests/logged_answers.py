"""A score log with the answers of a model that a checkpoint has scored, some of them labelled."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from made_once import MadeOnce

from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run
from metaprobe.training.recipes.train_quality import train_quality
from metaprobe.training.training_options import QualityOptions

WEEK_46 = 1762732800.0
"""A Monday."""
Answers = tuple[list[list[float]], np.ndarray]


def answers(n: int, *, seed: int, right: float = 0.5, scale: float = 1.0) -> Answers:
    """n series of log-probabilities, a share `right` of them right, whose mean says `scale` as much of it."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < right).astype(int)
    level = np.exp(-0.9 + 0.6 * scale * np.where(y, -1, 1) + 0.5 * rng.normal(size=n))
    return [(-rng.exponential(one, int(rng.integers(8, 30)))).tolist() for one in level], y


def stored(path: Path, parts: dict[str, tuple[int, float]], *, seed: int = 0) -> Path:
    """A run store of several models: name -> answers, share of them right."""
    runs = []
    for place, (model, (n, right)) in enumerate(parts.items()):
        series, y = answers(n, seed=seed + place, right=right)
        for i, (values, label) in enumerate(zip(series, y, strict=True)):
            name = f"{model}-{i}"
            logprobs = np.array(values, np.float32)
            call = Call(id=name, stage="answer", model=model, logprobs=logprobs, logprobs_mode="raw")
            item = Item(id=name, task="sums", group=name, question="")
            found = (Label(name, "correct", float(label), "program"),)
            runs.append(Run(id=name, system="s", variant="v", item=item, calls=(call,), labels=found))
    RunStore(path).append(runs)
    return path


def trained(parts: dict[str, tuple[int, float]], made_once: MadeOnce, **options: bool) -> Path:
    """The predictor that is trained on `stored` answers, once a run."""

    def train(out: Path) -> None:
        train_quality([stored(runs_of(out), parts)], QualityOptions(out=out, folds=2, **options))

    named = [f"{name}-{n}-{right}" for name, (n, right) in parts.items()]
    return made_once("_".join(["quality", *named, *options]), train)


def runs_of(checkpoint: Path) -> Path:
    """The runs that `trained` learned from."""
    return checkpoint.with_name(f"{checkpoint.name}-runs")


def label_answers(log: ScoreLog, y: np.ndarray, *, name: str = "r") -> None:
    """Labels the answers that `write_answers` wrote, in one transaction."""
    log.add_labels(FeedbackLabel(f"{name}{i}", label) for i, label in enumerate(y.tolist()))


def write_answers(
    log: ScoreLog,
    predictor: QualityPredictor,
    series: Sequence[Sequence[float]],
    *,
    begin: float = WEEK_46,
    model: str = "m",
    name: str = "r",
    shadow_of: str = "",
    keep: bool = False,
) -> np.ndarray:
    """Writes a verdict a minute, and returns the scores. `shadow_of`: begins the names of the answers it is beside."""
    calls = [
        Call(id=str(i), stage="answer", model=model, logprobs=np.array(one, np.float32)) for i, one in enumerate(series)
    ]
    verdicts = predictor.predict_many(calls)
    for i, (verdict, one) in enumerate(zip(verdicts, series, strict=True)):
        log.write(
            Entry(
                request_id=f"{name}{i}",
                time=begin + 60 * i,
                model=model,
                checkpoint=predictor.checkpoint.digest,
                score=verdict.score,
                flagged=verdict.flagged,
                tokens=len(one),
                finish_reason="stop",
                tags={"task": "faq" if i % 2 else "sums"},
                shadow_of=f"{shadow_of}{i}" if shadow_of else "",
                logprobs=one if keep else None,
            )
        )
    assert log.flush()
    return np.array([verdict.score for verdict in verdicts], dtype=np.float64)
