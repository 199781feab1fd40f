"""The real model: what the demo does, on a few items; and a kill in the middle of it."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from metaprobe.records.store import RunStore

pytestmark = [
    pytest.mark.slow,
    # Whether so little data passes every audit is not the subject here.
    pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint"),
]


WITHIN_S = 600
"""After which the demo has failed, also on a busy machine."""


def metaprobe(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "metaprobe.cli", *map(str, arguments)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the demo's results on 80 places and 32 others. It was interrupted while it collected, and started again.

    `test_launch.py` kills a collection by SIGKILL.
    """
    out = tmp_path_factory.mktemp("demo") / "out"
    command = metaprobe("demo", "--limit", 80, "--out", out, "--folds", 3)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + WITHIN_S
    while not list((out / "runs").glob("*.parquet")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=WITHIN_S)[1]
    assert process.returncode == 130, errors[-2000:]
    assert "goes on from there" in errors
    kept = RunStore(out / "runs").run_ids()
    assert 0 < len(kept) < 80
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"collected {80 - len(kept)} runs; {len(kept)} were stored before" in done.stderr
    for signal_kind in ("stated confidence", "free number", "implicit, with labels: hidden states"):
        assert signal_kind in done.stdout
    assert str(out / "report" / "report.html") in done.stdout
    assert re.search(r"Of the \d+ mistakes it found \d+ .*, and it cost \d+\s+of the \d+ right", done.stdout)
    return out


def test_the_demo_collects_labels_trains_and_reports(demo: Path) -> None:
    runs, unseen = (list(RunStore(demo / name)) for name in ("runs", "unseen"))
    assert (len(runs), len(unseen)) == (80, 32)
    assert not {run.item.id for run in runs} & {run.item.id for run in unseen}
    labels = [run.label("correct", call.id) for run in runs for call in run.calls if call.stage == "answer"]
    right = float(np.mean(labels))
    assert 0.1 < right < 0.7  # where there is something to tell apart
    for run in runs:
        answer, *second = (call for call in run.calls if call.stage == "answer")
        assert len(second) == (run.item.split == "twice")
        assert all(call.sampling.seed != answer.sampling.seed for call in second)
        assert answer.logprobs is not None
        assert len(answer.logprobs) == len(answer.tokens) == answer.usage.completion_tokens
        assert np.isfinite(answer.logprobs).all()
        assert (answer.logprobs <= 0).all()
        assert answer.logprobs_mode == "raw"
    flags = json.loads((demo / "report" / "flags.json").read_text())
    assert len(flags["answers"]) == 32
    assert flags["mistakes"] == sum(run.outcome == 0 for run in unseen)
    assert len(list((demo / "checkpoints").iterdir())) == 1
    assert "</html>" in (demo / "report" / "report.html").read_text()


def test_a_replayed_response_scores_the_same_as_its_call(demo: Path, tmp_path: Path) -> None:
    """The bundled checkpoint, the command line, and an OpenAI-format response made from a call of the demo."""
    from metaprobe import QualityPredictor

    run = next(iter(RunStore(demo / "runs")))
    call = next(call for call in run.calls if call.stage == "answer")
    content = [{"token": t, "logprob": float(x)} for t, x in zip(call.tokens, call.logprobs, strict=True)]
    response = {"model": call.model, "choices": [{"message": {"content": call.text}, "logprobs": {"content": content}}]}
    (tmp_path / "one.jsonl").write_text(json.dumps({"id": "x", "response": response}))
    checkpoint = "bundled:quality"
    done = subprocess.run(metaprobe("score", checkpoint, tmp_path / "one.jsonl"), capture_output=True, text=True)
    expected = QualityPredictor.load(checkpoint).predict(call).score
    assert json.loads(done.stdout)["score"] == pytest.approx(expected, abs=1e-6)
