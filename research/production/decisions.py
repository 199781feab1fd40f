"""Measures how well predicates that the server answers are calibrated, on answers that the checkpoint has not seen.

    python -m research.production.decisions measure
    python -m research.production.decisions time
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
from metaprobe.production.http.bodies import Scoring
from metaprobe.production.http.decisions import DecisionDesk
from metaprobe.production.http.judges import Judges, Scorer, Seat
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Run
from metaprobe.training.ladder import SURE
from metaprobe.training.recipes.train_quality import train_quality
from metaprobe.training.training_options import QualityOptions
from research.blocks import ROOT, keep_figures, markdown, older_ladder, packed, read_figures, shown, write

PAGE = ROOT / "docs" / "research" / "speed.md"
FIGURES = ROOT / "docs" / "measured" / "decisions.json"
SETS = ("arithmetic", "places", "factual-qa", "creak")
FOLDS, ASKED = 5, 100
"""Folds by group, and requests of each length that are timed."""
QUESTION = {"type": "predicate", "name": "correct", "instructions": "The answer is right."}
REQUEST = Request({"type": "http", "headers": [], "query_string": b""})


@click.group()
def main() -> None:
    """Measure, and write the page."""


@main.command("measure")
def measure_command() -> None:
    """Train, ask and keep the figures; takes some minutes."""
    for name in SETS:
        others = [row for row in read_figures(FIGURES).get("sets", ()) if row["set"] != name]
        sets = sorted([*others, measured(name)], key=lambda row: SETS.index(row["set"]))
        keep_figures(FIGURES, sets, "sets", sort=False)


@main.command("time")
def time_command() -> None:
    """Time requests of one and of 400 questions, and keep the figures."""
    predictor = QualityPredictor.load(on_mismatch="note")
    run, call = next((run, call) for run, call in answers_of(SETS[0]) if call.logprobs is not None)
    seconds: dict[int, list[float]] = {1: [], 400: []}
    with asyncio.Runner() as runner:
        for _ in range(ASKED):
            for questions, taken in seconds.items():
                body, desk = body_of(run, call, questions), desk_of(predictor)
                started = time.process_time()
                runner.run(desk.answer(body, REQUEST))
                taken.append(time.process_time() - started)
    figures = {str(count): 1e3 * float(np.median(taken)) for count, taken in seconds.items()}
    keep_figures(FIGURES, figures, "cpu_ms", sort=False)


@main.command("page")
def page_command() -> None:
    """Write the section from the figures that were kept."""
    found = read_figures(FIGURES)
    sets, cpu = found["sets"], found["cpu_ms"]
    rows = [
        [row["set"], str(row["answers"]), f"{row['right']:.2f}", shown(row["ece"]), shown(row["debiased"])]
        for row in sets
    ]
    left = sum(row["refused"] for row in sets)
    reached = [row["set"] for row in sets if row["ece"][0] <= 0.05]
    lines = [
        *markdown(["set", "held-out answers", "share right", "ECE", "ECE freed of noise"], rows),
        "",
        *older_ladder({row["set"]: row for row in sets}),
        f"ECE is over {DEFAULT_BINS} bins of equal mass, with 95 % intervals by a bootstrap over groups. It is at most "
        f"0.05 on {len(reached)} of {len(sets)} sets ({', '.join(reached) or 'none'}). {left} held-out answers were "
        f"refused. A request with one question takes {cpu['1']:.1f} ms of one core without HTTP, and one with 400 "
        f"questions {cpu['400']:.1f} ms: the checkpoint runs once for either, and the rest is reading the questions.",
        "",
    ]
    write(PAGE, "served-decisions", lines)


def answers_of(name: str) -> list[tuple[Run, Call]]:
    """The labelled answers of a recorded set."""
    runs = RunStore(ROOT / "recorded" / f"qwen-coder-0.5b-{name}").runs()
    return [(run, call) for run in runs for call in run.calls if run.label("correct", call.id) is not None]


def desk_of(predictor: QualityPredictor) -> DecisionDesk:
    """The server's own way to answer, with one predictor."""
    judges = Judges({"": Seat(Scorer(predictor, Metrics()))})
    return DecisionDesk(Settings(checkpoint="bundled:quality", auth=False), judges, None, Scoring())


def measured(name: str) -> dict[str, Any]:
    """The figures of one recorded set."""
    labelled = answers_of(name)
    groups = np.unique([run.item.group for run, _ in labelled])
    fold = dict(zip(groups, np.random.default_rng(0).permutation(len(groups)) % FOLDS, strict=True))
    given: list[tuple[float, float, str]] = []
    refused = 0
    for number in range(FOLDS):
        with tempfile.TemporaryDirectory() as folder:
            seen = RunStore(Path(folder) / "seen")
            seen.append([run for run, _ in labelled if fold[run.item.group] != number])
            options = QualityOptions(out=Path(folder) / "c", folds=2)
            train_quality([seen.path], options)
            predictor = QualityPredictor.load(Path(folder) / "c")
        desk = desk_of(predictor)
        rest = [(run, call) for run, call in labelled if fold[run.item.group] == number]
        with asyncio.Runner() as runner:
            for run, call in rest:
                answer = runner.run(desk.answer(body_of(run, call, 1), REQUEST))["answers"][0]
                label = run.label("correct", call.id)
                if answer["type"] == "refusal" or label is None:
                    refused += 1
                else:
                    given.append((answer["probability"], label, run.item.group))
    score, y, group = (np.array(column) for column in zip(*given, strict=True))
    weights = cluster_weights(group, resamples=2000, seed=0)
    freed, plain = debiased_ece(y.astype(int), score, weights), ece_interval(y.astype(int), score, weights)
    return {
        "set": name,
        "answers": len(given),
        "refused": refused,
        "right": float(y.mean()),
        "sure": SURE,
        "ece": packed(plain),
        "debiased": packed(freed),
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


if __name__ == "__main__":
    main()
