"""The program `metaprobe assist` serves what its options say, and refuses before a model is loaded."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from assisted import VEINS, client_of, plain_words
from click.testing import CliRunner, Result
from scripted_teacher import ScriptedTeacher

from metaprobe.cli import main
from metaprobe.papers.systems.session import Models
from metaprobe.records.errors import Unwritable
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from metaprobe_writing_assistant.page import run as page_run
from metaprobe_writing_assistant.page.app import Systems
from metaprobe_writing_assistant.page.settings import AssistSettings

WEAK = "smollm2-135m"


class Started:
    """Notes what the program would have served, and which models it loaded."""

    def __init__(self) -> None:
        self.pages: list[tuple[AssistSettings, Systems]] = []
        self.keepers: list[Callable[[Run], None]] = []
        self.named: list[dict[str, str]] = []


@pytest.fixture(autouse=True)
def _words(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_words(monkeypatch)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    found = Started()

    async def serve(settings: AssistSettings, systems: Systems, listener: socket.socket, on_run: Any) -> None:
        found.pages.append((settings, systems))
        found.keepers.append(on_run)

    def load(named: dict[str, str], *_: Any, **__: Any) -> Models:
        found.named.append(named)
        return Models(ScriptedTeacher())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("metaprobe_writing_assistant.page.run.serve_page", serve)
    monkeypatch.setattr("metaprobe_writing_assistant.page.run.load_models", load)
    monkeypatch.setattr("metaprobe_writing_assistant.page.run.wordnet", lambda: None)
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["assist", "--no-open", "--port", "0", *words])


def test_the_page_is_as_the_options_say(started: Started) -> None:
    both = ("--llm", WEAK, "--llm", "respond=openai:big@https://host.example/v1", "--sessions", "texts.sqlite")
    done = run(*both, "--constant", "learned=1", "--tokens", "respond=99", "--allow-host", "school.example")
    assert done.exit_code == 0, done.output
    assert re.search(r"http://127\.0\.0\.1:\d+/  \(texts: texts.sqlite; Ctrl-C ends\)", done.output)
    ((settings, systems),) = started.pages
    assert started.named == [{"": WEAK, "respond": "openai:big@https://host.example/v1"}]
    assert [(model.part, model.name, model.place, model.weak) for model in settings.models] == [
        ("every module", WEAK, "", True),
        ("respond", "big", "https://host.example", False),
    ]
    assert "school.example" in settings.names
    assert systems.writing.options.tokens == {"respond": 99}
    assert systems.writing.options.constants["learned"] == 1
    assert systems.arguing is not None
    assert systems.arguing.prompts.texts.keys() >= {"teacher", "attack"}


def test_answers_become_runs_of_a_store_where_one_is_named(started: Started, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    assert run("--out", str(store)).exit_code == run().exit_code == 0
    keep, keep_nothing = started.keepers
    with client_of(tmp_path, on_run=keep) as page:
        session = page.begin(VEINS)
        page.turn(session, "Here is my draft. Is it right?")
        page.turn(session, "And now?")
    keep_nothing(next(iter(RunStore(store))))
    kept = list(RunStore(store))
    assert [(one.system, one.variant, one.item.group) for one in kept] == [
        ("writing-assistant", "metacrit", session),
        ("writing-assistant", "metacrit", session),
    ]
    assert {"stage", "assess", "monitor", "control", "respond"} <= {call.stage for call in kept[0].calls}
    assert kept[0].item.fields["draft"] == VEINS


def test_a_store_that_cannot_be_written_costs_no_answer(tmp_path: Path) -> None:
    def full(_: Run) -> None:
        raise Unwritable("no room")

    with client_of(tmp_path, on_run=full) as page:
        assert page.turn(page.begin(VEINS), "Is it right?")["state"] == "done"


def test_by_default_the_embedded_model_answers_and_a_study_has_no_second_tab(started: Started) -> None:
    assert run().exit_code == run("--study").exit_code == 0
    (plain, _), (study, systems) = started.pages
    assert (plain.study, plain.host, str(plain.sessions)) == (False, "127.0.0.1", "out/assist/sessions.sqlite")
    assert started.named[0] == {"": WEAK}
    assert study.study is True
    assert systems.arguing is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "0.0.0.0"), "it listens on this machine only"),
        (("--llm", "nobody=x"), "writing-assistant has no such stage or agent"),
        (("--constant", "length=1"), "length"),
        (("--tokens", "nowhere=5"), "nowhere"),
        (("--api", "colour=red"), "expected KEY=VALUE with KEY one of"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_model_is_loaded(
    started: Started, words: tuple[str, ...], said: str
) -> None:
    refused = run(*words)
    assert refused.exit_code == 1
    assert said in refused.output
    assert started.named == []


def test_a_port_that_is_taken_is_said_before_a_model_is_loaded(started: Started) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused = run("--port", str(taken.getsockname()[1]))
    assert refused.exit_code == 1
    assert "name another --port, or 0 for a free one" in refused.output
    assert started.named == []


@pytest.mark.slow
def test_the_embedded_model_answers_on_the_page_and_ctrl_c_ends_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "metaprobe.cli", "assist", "--no-open", "--port", "0", "--tokens", "8"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment) as program:
        try:
            assert program.stderr is not None
            said = next(line for line in program.stderr if "http://" in line)
            with httpx.Client(base_url=re.findall(r"http://\S+", said)[0], timeout=300) as page:
                assert page.get("/api/about").json()["models"][0]["weak"] is True
                session = page.post("/api/sessions", json={"condition": "single"}).json()["id"]
                page.post(f"/api/sessions/{session}/turns", json={"message": "How do I begin an essay?"})
                events = page.get(f"/api/sessions/{session}/turns/0/events").text
                assert '"state": "done"' in events
                assert page.get(f"/api/sessions/{session}").json()["turns"][0]["text"]
            program.send_signal(signal.SIGINT)
            assert program.wait(timeout=60) in (0, 130)
        finally:
            program.kill()


def test_the_assistant_answers_with_the_signals_and_the_endpoint_options_that_were_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signals, given = object(), []

    def load(*args: Any, **named: Any) -> Models:
        given.extend((args, named))
        return Models(ScriptedTeacher())

    monkeypatch.setattr(page_run.SignalSource, "load", lambda named: signals if named == ("answer=c",) else None)
    monkeypatch.setattr(page_run, "load_models", load)
    monkeypatch.setattr(page_run, "wordnet", lambda: None)
    monkeypatch.setattr(page_run.ModelName, "api_options", staticmethod(lambda api, extra: ("asked", api)))
    settings, systems = page_run.plan_page(
        llm=("smollm2-135m",),
        api=("logprobs_mode=raw",),
        sessions=tmp_path / "s.sqlite",
        study=False,
        signal=("answer=c",),
        constant=(),
        tokens=(),
        host="127.0.0.1",
        port=8123,
        allow_host=("page.example",),
    )
    found = systems()
    assert (settings.port, settings.host, settings.allowed_hosts, settings.study) == (
        *(8123, "127.0.0.1", ("page.example",)),
        False,
    )
    assert given[0][2] is signals
    assert given[1] == {"api": ("asked", ("logprobs_mode=raw",))}
    assert found.writing is not None
    assert found.writing.signals is signals
    assert found.arguing is not None
