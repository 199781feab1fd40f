"""An evening in production, with a real model behind a real server: traffic, labels, a swapped model, and back."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import openai
import pytest
from capitals import is_right, questions
from click.testing import CliRunner
from conftest import llama_server_with
from playwright.sync_api import sync_playwright
from served import running

from metaprobe.checkpoints import load_checkpoint
from metaprobe.cli import main
from metaprobe.llms.weights import DEFAULT_MODEL
from metaprobe.production.http.app import create_app
from metaprobe.production.http.settings import Settings
from metaprobe.production.labelling.page import LabelServer
from metaprobe.production.monitoring.label_draw import draw_sheet
from metaprobe.production.monitoring.log import ScoreLog

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WRONGLY_SET_UP = ("--prompt-characters", "26")
"""The same weights, deployed with a template that cuts a message: the model reads three letters of the country."""


class Evening:
    """One log, and the commands that read it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, str(folder / "scores.sqlite")
        self.questions = questions(7)
        self.judge = ""
        """Digest of the checkpoint that gave the last verdict."""

    @contextmanager
    def server(self, checkpoint: str, upstream: str, **more: Any) -> Iterator[openai.OpenAI]:
        """A client of the proxy before that upstream."""
        about: dict[str, Any] = {"auth": False, "log": self.log, "log_texts": True, **more}
        app = create_app(Settings(checkpoint=checkpoint, upstream=upstream, **about))
        with running(app) as (url, _), openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            yield client

    def ask(self, client: openai.OpenAI, count: int) -> list[str]:
        """Asks so many questions; returns the ids that came back with the verdicts.

        Twelve tokens: three of five answers end within them, and the others hardly ever name the capital later.
        """
        ids = []
        for question, _ in islice(self.questions, count):
            answer = client.chat.completions.create(
                model=DEFAULT_MODEL,
                messages=[{"role": "user", "content": question}],
                max_tokens=12,
                temperature=0.7,
                seed=len(ids),
                extra_headers={"x-metaprobe-tags": "task=capitals"},
            )
            assert answer.model_extra is not None
            ids.append(answer.model_extra["metaprobe"]["request_id"])
            self.judge = answer.model_extra["metaprobe"]["checkpoint"]
        return ids

    def run(self, *words: str, code: int | None = 0) -> list[dict[str, Any]]:
        """Returns a command's output as JSON, a line or a document; the log is named for it."""
        as_json = ["--json"] * (words[0] in ("estimate", "drift", "promote"))
        done = CliRunner().invoke(main, [*words, *as_json, "--log", self.log])
        assert code is None or done.exit_code == code, done.output
        text = done.stdout.strip()
        try:
            return [json.loads(line) for line in text.splitlines()]
        except json.JSONDecodeError:
            return [json.loads(text)] if text.startswith("{") else []

    def label(self, budget: int, *, seed: int) -> int:
        """Draws answers and labels them truly, by the sheet."""
        sheet = self.folder / f"sheet-{seed}.jsonl"
        self.run("sample", "--budget", str(budget), "--seed", str(seed), "--out", str(sheet))
        rows = [json.loads(line) for line in sheet.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            row["label"] = int(is_right(row["question"], row["answer"]))
        sheet.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        self.run("feedback", str(sheet))
        return len(rows)

    def label_on_page(self, budget: int, *, seed: int) -> int:
        """The same in a browser, by the keys of the page."""
        with ScoreLog.open(self.log) as log:
            sheet = draw_sheet(log, budget, seed=seed)
            server = LabelServer(log, sheet.rows, who="tester")
            try:
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                    page = browser.new_page()
                    page.goto(server.url)
                    for place, row in enumerate(sheet.rows, 1):
                        # Two rows may hold the same answer, and a key is not heard before the last label is stored.
                        page.get_by_text(f"{place} of {len(sheet.rows)}", exact=True).wait_for()
                        assert page.locator("#answer").text_content() == row.answer
                        page.keyboard.press("r" if is_right(row.question or "", row.answer or "") else "w")
                    page.wait_for_selector("#end:not([hidden])")
                    browser.close()
            finally:
                server.close()
        return len(sheet.rows)

    def ask_until_judged_by(self, client: openai.OpenAI, digest: str) -> None:
        """Asks on until the running server judges by that checkpoint. Raises where it never does."""
        for _ in range(60):
            self.ask(client, 1)
            if self.judge == digest:
                return
            time.sleep(0.25)
        raise AssertionError(f"nothing is judged by {digest}, but by {self.judge}")

    def accuracy(self, method: str) -> dict[str, Any]:
        """The estimate of that method, of all answers in the log."""
        [found] = [row for row in self.run("estimate") if (row["of"], row["method"]) == ("accuracy", method)]
        return found


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: the page for labels is looked at in one")
def test_an_evening_in_production(tmp_path: Path) -> None:
    with llama_server_with(tmp_path / "upstream") as upstream:
        play(Evening(tmp_path), upstream)


def play(evening: Evening, llama_server: str) -> None:
    """Everything that happens before, while and after the model is swapped."""
    tmp_path = evening.folder
    first, state = str(tmp_path / "first"), str(tmp_path / "drift.json")
    with evening.server("bundled:quality", llama_server) as client:
        evening.ask(client, 160)
        assert evening.label_on_page(20, seed=1) >= 8
        evening.label(400, seed=4)  # with sixty alone, one evening in eight ends before the alarm
        labelled = evening.accuracy("labelled")
        assert labelled["low"] < 0.5 < labelled["high"], "the model is right about half of the time"
        assert evening.accuracy("scores")["high"] < labelled["low"], "before any label the scores promise too little"

        told = evening.run("drift", "--state", state, code=None)  # 3 where there is an alarm
        assert told[0]["stream"] == "label", told
        assert told[0]["moved"] == "too low", told

        evening.run("recalibrate", "bundled:quality", "--out", first)
        evening.ask(client, 150)
        evening.label(400, seed=2)
        [promoted] = evening.run("promote", first, "--over", "bundled:quality")
        assert promoted["promoted"], promoted

    with evening.server(first, llama_server) as client:
        evening.ask(client, 230)
        told = evening.run("drift", "--state", state, code=None)  # 3 where there is an alarm
        assert all(alarm["stream"] == "label" for alarm in told), (
            "labels of the old checkpoint; nothing has changed yet"
        )
    swapped_at = datetime.now(UTC) + timedelta(seconds=1)
    time.sleep(1)
    with llama_server_with(tmp_path / "swapped", *WRONGLY_SET_UP) as swapped:
        with evening.server(first, swapped) as client:
            alarms: list[dict[str, Any]] = []
            for _ in range(10):
                evening.ask(client, 20)
                alarms += evening.run("drift", "--state", state, code=None)
                if alarms:
                    break
            assert alarms, "two hundred answers of another model, and no alarm"
            assert {alarm["stream"] for alarm in alarms} <= {"score", "tokens", "finish_reason"}
            evening.ask(client, 60)
        evening.label(400, seed=3)
        since = f"{swapped_at:%Y-%m-%dT%H:%M:%S}"
        second = str(tmp_path / "second")
        evening.run("recalibrate", first, "--since", since, "--out", second)
        digests = {name: load_checkpoint(name).digest for name in (first, second)}
        pins = tmp_path / "pins"
        pins.write_text(f"{first} {digests[first]}\n", encoding="utf-8")
        with evening.server(first, swapped, pins=pins) as client:
            evening.ask(client, 140)
            evening.label(400, seed=5)
            [promoted] = evening.run("promote", second, "--over", first, "--pins", str(pins))
            assert promoted["promoted"], promoted
            evening.ask_until_judged_by(client, digests[second])
            ids = evening.ask(client, 60)
            [back] = evening.run("promote", "--rollback", "--pins", str(pins))
            assert digests[first] in json.dumps(back)
            evening.ask_until_judged_by(client, digests[first])
    with ScoreLog.open(evening.log) as log:
        entries = [log.entry(name) for name in ids]
        right = [is_right(entry.question or "", entry.answer or "") for entry in entries if entry is not None]
        promised = [entry.score for entry in entries if entry is not None and entry.score is not None]
        assert len(right) == len(promised) == 60
        assert abs(sum(right) - sum(promised)) / 60 < 0.15, "scores are what labels are, of the new model too"
        assert [event.kind for event in log.events()].count("drift") >= len(alarms)
