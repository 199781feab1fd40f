"""Measures how well predicates that the server answers are calibrated, on answers that the checkpoint has not seen.

    python -m research.production.decisions measure
    python -m research.production.decisions page

Each recorded set is parted into five folds by group. A predictor is trained on four of them, and the fifth is asked as
`POST /v1/decisions`, in this process: a response with its log-probabilities, and whether the answer is right.
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from starlette.requests import Request

from metaprobe.eval.metrics.bootstrap import cluster_weights
from metaprobe.eval.metrics.calibration import DEFAULT_BINS, debiased_ece, ece_interval
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Run
from metaprobe.serving.http.bodies import Scoring
from metaprobe.serving.http.decisions import DecisionDesk
from metaprobe.serving.http.judges import Judges, Scorer, Seat
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.settings import Settings
from metaprobe.training.options import QualityOptions
from metaprobe.training.recipes.quality import train_quality
from research.blocks import markdown, write

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "research" / "production.md"
FIGURES = ROOT / "docs" / "measured" / "decisions.json"
SETS = ("arithmetic", "places", "factual-qa", "creak")
FOLDS, ASKED = 5, 60
"""Folds by group, and requests of each length that are timed."""
QUESTION = {"type": "predicate", "name": "correct", "instructions": "The answer is right."}
REQUEST = Request({"type": "http", "headers": [], "query_string": b""})


@click.group()
def main() -> None:
    """Measure, and write the page."""


@main.command("measure")
def measure_command() -> None:
    """Train, ask and keep the figures; takes some minutes."""
    found: list[dict[str, Any]] = []
    for name in SETS:
        found.append(measured(name))
        FIGURES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


@main.command("page")
def page_command() -> None:
    """Write the section from the figures that were kept."""
    write(PAGE, "served-decisions", table(json.loads(FIGURES.read_text(encoding="utf-8"))))


def measured(name: str) -> dict[str, Any]:
    """The figures of one recorded set."""
    runs = list(RunStore(ROOT / "recorded" / f"qwen-coder-0.5b-{name}").runs())
    labelled = [(run, call) for run in runs for call in run.calls if run.label("correct", call.id) is not None]
    groups = np.unique([run.item.group for run in runs])
    fold = dict(zip(groups, np.random.default_rng(0).permutation(len(groups)) % FOLDS, strict=True))
    given: list[tuple[float, float, str]] = []
    seconds: dict[int, list[float]] = {1: [], 400: []}
    refused = 0
    for number in range(FOLDS):
        with tempfile.TemporaryDirectory() as folder:
            seen = RunStore(Path(folder) / "seen")
            seen.append([run for run in runs if fold[run.item.group] != number])
            options = QualityOptions(out=Path(folder) / "c", folds=2)
            train_quality([seen.path], options)
            predictor = QualityPredictor.load(Path(folder) / "c")
        desk = DecisionDesk(
            Settings(checkpoint="bundled:quality", auth=False),
            Judges({"": Seat(Scorer(predictor, Metrics()))}),
            None,
            Scoring(),
        )
        rest = [(run, call) for run, call in labelled if fold[run.item.group] == number]
        with asyncio.Runner() as runner:
            for run, call in rest:
                answer = runner.run(desk.answer(body_of(run, call, 1), REQUEST))["answers"][0]
                label = run.label("correct", call.id)
                if answer["type"] == "refusal" or label is None:
                    refused += 1
                else:
                    given.append((answer["probability"], label, run.item.group))
            for run, call in rest[: ASKED // FOLDS]:
                for questions, taken in seconds.items():
                    body = body_of(run, call, questions)
                    started = time.perf_counter()
                    runner.run(desk.answer(body, REQUEST))
                    taken.append(time.perf_counter() - started)
    score, y, group = (np.array(column) for column in zip(*given, strict=True))
    weights = cluster_weights(group, resamples=2000, seed=0)
    freed, plain = debiased_ece(y.astype(int), score, weights), ece_interval(y.astype(int), score, weights)
    return {
        "set": name,
        "answers": len(given),
        "refused": refused,
        "right": float(y.mean()),
        "ece": [plain.estimate, plain.low, plain.high],
        "debiased": [freed.estimate, freed.low, freed.high],
        "ms": {str(questions): 1e3 * float(np.median(taken)) for questions, taken in seconds.items()},
    }


def body_of(run: Run, call: Call, questions: int) -> bytes:
    """A decision request about a recorded answer; all questions but the first are ones that nobody answers."""
    assert call.logprobs is not None
    numbers = {"token_logprobs": call.logprobs.tolist()}
    choice = {"message": {"role": "assistant", "content": call.text}, "logprobs": numbers}
    response = {"object": "chat.completion", "model": call.model, "choices": [{**choice, "finish_reason": "stop"}]}
    said = {"role": "assistant", "content": call.text, "metaprobe": {"response": response}}
    more = [{"type": "predicate", "instructions": f"Is it of kind {i}?"} for i in range(questions - 1)]
    asked = [{"role": "user", "content": run.item.question}, said]
    return json.dumps({"model": "mine", "input": asked, "questions": [QUESTION, *more]}).encode()


def table(found: list[dict[str, Any]]) -> list[str]:
    """The section's lines."""
    rows = [
        [
            row["set"],
            str(row["answers"]),
            f"{row['right']:.2f}",
            spread(row["ece"]),
            spread(row["debiased"]),
            f"{row['ms']['400'] / row['ms']['1']:.1f}",
        ]
        for row in found
    ]
    head = ["set", "held-out answers", "share right", "ECE", "ECE freed of noise", "400 questions / 1"]
    left = sum(row["refused"] for row in found)
    reached = [row["set"] for row in found if row["ece"][0] <= 0.05]
    return [
        *markdown(head, rows),
        "",
        f"ECE is over {DEFAULT_BINS} bins of equal mass, with 95 % intervals by a bootstrap over groups. It is at most "
        f"0.05 on {len(reached)} of {len(found)} sets ({', '.join(reached) or 'none'}). {left} held-out answers were "
        "refused. The last column is the time of a request with 400 questions over that with one, in one process "
        "without HTTP; the checkpoint runs once for either.",
        "",
    ]


def spread(values: list[float]) -> str:
    """An estimate with its interval."""
    estimate, low, high = values
    return f"{estimate:.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    main()
