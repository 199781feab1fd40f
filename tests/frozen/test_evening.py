"""An evening in production with recorded answers: serve, log, label, estimate, an alarm, recalibrate, promote, back.

A real server stands before an upstream that plays recorded answers; `test_production_evening.py` has a real model.
"""

import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
from frozen.freeze import RECORDED, check, done, run
from local_server import Asked, Reply, serving

from metaprobe import QualityPredictor, RunStore

pytestmark = pytest.mark.filterwarnings("ignore")
UP_WITHIN_S = 60
SERIES = [[-0.01, -0.2, -0.03], [-1.5, -0.7, -2.0, -0.1], [-0.3] * 12, [-0.001] * 5]
"""Answers on which every version of the checkpoint is compared."""


def answers(store: str, *, wrong: int = 1) -> Iterator[tuple[list[float], int]]:
    """Log-probabilities of recorded answers, and whether each is right; of the wrong ones every `wrong`-th."""
    passed = 0
    for one in RunStore(RECORDED / store).runs():
        [call] = [call for call in one.calls if call.stage == "answer"]
        if call.logprobs is not None and len(call.logprobs) and one.outcome is not None:
            passed += not one.outcome
            if not one.outcome and passed % wrong:
                continue
            yield [float(value) for value in call.logprobs], int(one.outcome)


def reply(asked: Asked) -> Reply:
    """Answers a question with the log-probabilities in it."""
    body = asked.json()
    logprobs = json.loads(body["messages"][-1]["content"].partition(" ")[2])
    content = [{"token": f" w{i}", "logprob": value, "bytes": None} for i, value in enumerate(logprobs)]
    text = "".join(each["token"] for each in content)
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    held = {"id": "c", "object": "chat.completion", "created": 7, "model": body["model"]}
    return Reply.of(held | {"choices": [choice | {"logprobs": {"content": content}}]})


@contextmanager
def served_by_program(*words: object) -> Iterator[HTTPConnection]:
    """A connection to `metaprobe serve` in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "metaprobe", "serve", *map(str, words), "--no-auth", "--port", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env=os.environ | {"PYTHONWARNINGS": "ignore"}, **quiet)
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        deadline = time.monotonic() + UP_WITHIN_S
        while True:
            try:
                connection.request("GET", "/readyz")
                if connection.getresponse().read() is not None:
                    break
            except (OSError, HTTPException):
                connection.close()
                assert time.monotonic() < deadline, "the server did not come up"
                assert server.poll() is None, "the server ended"
                time.sleep(0.1)
        yield connection
    finally:
        connection.close()
        server.terminate()
        server.wait(timeout=30)


class Evening:
    """One log, and the commands that read it."""

    def __init__(self, folder: Path, connection: HTTPConnection) -> None:
        self.folder, self.connection, self.log = folder, connection, folder / "scores.sqlite"
        self.right: dict[str, int] = {}
        """Request id -> whether the answer is right."""
        self.labelled = 0
        self.digest = ""
        """Digest of the checkpoint that gave the last verdict."""

    def post(self, path: str, body: object) -> Any:
        self.connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = self.connection.getresponse()
        text = answer.read()
        assert answer.status < 300, text
        return json.loads(text)

    def ask(self, source: Iterator[tuple[list[float], int]], count: int) -> list[Any]:
        """Asks so many questions; returns sum of scores, flags and finished answers."""
        scores, flags = [], []
        for _ in range(count):
            logprobs, right = next(source)
            question = {"role": "user", "content": f"q{len(self.right)} {json.dumps(logprobs)}"}
            verdict = self.post("/v1/chat/completions", {"model": "m", "messages": [question]})["metaprobe"]
            self.right[verdict["request_id"]] = right
            self.digest = verdict["checkpoint"]
            scores.append(verdict["score"])
            flags.append(verdict["flagged"])
        self.wait_for_log()
        return [math.fsum(scores), *(flags.count(each) for each in (True, False, None))]

    def wait_for_log(self) -> None:
        """Waits until the log holds every answer: the server writes in the background."""
        sheet = self.folder / "written.jsonl"
        for _ in range(100):
            sheet.unlink(missing_ok=True)
            run("log", "export", "--log", self.log, "--to", "mlflow", "--out", sheet)
            if sheet.exists() and len(sheet.read_text(encoding="utf-8").splitlines()) >= len(self.right):
                return
            time.sleep(0.2)
        raise AssertionError(f"of {len(self.right)} answers some never reached the log")

    def label(self, *, by_file: bool) -> list[int]:
        """Labels every answer since the last call, by a file or over HTTP."""
        rows = [{"request_id": name, "label": right} for name, right in list(self.right.items())[self.labelled :]]
        self.labelled = len(self.right)
        if by_file:
            sheet = self.folder / "labels.jsonl"
            sheet.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            done("feedback", sheet, "--log", self.log)
        else:
            self.post("/v1/feedback", {"feedback": rows})
        return [len(rows), sum(row["label"] for row in rows)]

    def sample(self, budget: int) -> bool:
        """Whether a drawn sheet holds answers without a label. Which ones depends on their ids, which are random."""
        sheet = self.folder / "sheet.jsonl"
        done("sample", "--budget", budget, "--seed", 1, "--out", sheet, "--log", self.log)
        drawn = [json.loads(line)["request_id"] for line in sheet.read_text(encoding="utf-8").splitlines()]
        return 0 < len(drawn) <= 2 * budget and set(drawn) <= set(list(self.right)[self.labelled :])

    def estimates(self) -> dict[str, Any]:
        printed = done("estimate", "--json", "--log", self.log)
        rows = [json.loads(line) for line in printed.splitlines()]
        names = ("estimate", "low", "high", "n", "labels")
        return {
            f"{place} {row['of']} by {row['method']}": {name: row[name] for name in names if name in row}
            for place, row in enumerate(rows)
        }

    def drift(self) -> list[Any]:
        result = run("drift", "--json", "--log", self.log, "--state", self.folder / "drift.json")
        alarms = [json.loads(line) for line in result.stdout.splitlines()]
        return [result.exit_code, *([alarm["stream"], alarm.get("moved")] for alarm in alarms)]

    def json_of(self, *words: object) -> Any:
        return json.loads(run(*words, "--json", "--log", self.log).stdout)

    def until(self, digest: str) -> bool:
        """Waits until the running server says that it judges by this checkpoint. Nothing is asked: how often would
        depend on the machine."""
        for _ in range(600):
            self.connection.request("GET", "/readyz")
            if json.loads(self.connection.getresponse().read())["checkpoint"] == digest:
                return True
            time.sleep(0.1)
        return False


def version(path: str | Path) -> dict[str, Any]:
    """Thresholds and scores of a checkpoint."""
    predictor = QualityPredictor.load(path)
    scores = [verdict.score for verdict in predictor.predict_many(SERIES)]
    return {"threshold": predictor.threshold, "scores": scores}


def played(folder: Path) -> dict[str, Any]:
    # With most wrong answers left out, the bundled predictor promises too little.
    good, other = answers("smollm2-135m-places", wrong=3), answers("qwen-coder-0.5b-arithmetic")
    old, pins, first = QualityPredictor.load().checkpoint.digest, folder / "pins", folder / "first"
    pins.write_text(f"bundled:quality {old}\n", encoding="utf-8")
    found: dict[str, Any] = {}
    options = ("--pins", pins, "--log", folder / "scores.sqlite", "--log-texts")
    with serving(reply) as url, served_by_program("bundled:quality", "--upstream", f"{url}/v1", *options) as connection:
        evening = Evening(folder, connection)
        found["asked first"] = evening.ask(good, 210)
        found["labelled first"] = evening.label(by_file=True)
        found["estimates"] = evening.estimates()
        found["alarm of labels"] = evening.drift()
        done("recalibrate", "bundled:quality", "--log", evening.log, "--out", first)
        found["recalibrated"] = version(first)
        time.sleep(1.2)  # only answers of later seconds than the checkpoint's count for its promotion
        new = QualityPredictor.load(first).checkpoint.digest
        found["asked again"] = evening.ask(good, 110)
        found["labelled again"] = evening.label(by_file=False)
        promoted = evening.json_of("promote", first, "--over", "bundled:quality", "--pins", pins)
        gain = {name: value for name, value in promoted["brier_gain"].items() if isinstance(value, int | float)}
        found["promoted"] = {"promoted": promoted["promoted"], "new": promoted["digest"] == new, "brier_gain": gain}
        found["reloaded"] = evening.until(new)
        found["asked of the new one"] = evening.ask(good, 20)
        back = evening.json_of("promote", "--rollback", "--pins", pins)
        found["back"] = [back["digest"] == old, back["was"] == new, evening.until(old)]
        found["asked of another model"] = evening.ask(other, 60)
        found["alarm of scores"] = evening.drift()
        found["drawn"] = evening.sample(20)
    return found


PARTS = {"evening": played}


@pytest.mark.slow
def test_an_evening_goes_as_it_went(tmp_path: Path) -> None:
    # Where answers tie, the threshold depends on their ids, which are random.
    check("evening", "evening", played(tmp_path), within={"/recalibrated/threshold": 0.01})
