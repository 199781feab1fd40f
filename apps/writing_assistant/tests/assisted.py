"""Shared by tests of the writing assistant's page: the page with a scripted teacher in a model's place."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from scripted_teacher import ScriptedTeacher
from starlette.testclient import TestClient

from metaprobe.papers.systems.caelf import SYSTEM as CAELF
from metaprobe.papers.systems.prompting import Prompts
from metaprobe.papers.systems.session import Models, Setup
from metaprobe.papers.systems.system import System
from metaprobe_writing_assistant.page.answering import OnRun
from metaprobe_writing_assistant.page.app import Systems, create_page
from metaprobe_writing_assistant.page.session_file import SessionFile
from metaprobe_writing_assistant.page.settings import AssistSettings, ModelPlace
from metaprobe_writing_assistant.system import vocabulary
from metaprobe_writing_assistant.system.assistant import SYSTEM
from metaprobe_writing_assistant.system.wordnet import WordEntry

VEIN = WordEntry("noun", "a blood vessel that leads to the heart", "a vein stands out on the hand", (), "WordNet 3.0")
VEINS = "Veins look blue because the blood in them is blue. It turns red when it meets oxygen."


def plain_words(patch: pytest.MonkeyPatch) -> None:
    """A dictionary of one word in WordNet's place, whose files take seconds to read."""
    patch.setattr(vocabulary, "look_up", lambda word: VEIN if word == "vein" else None)


def systems_of(teacher: ScriptedTeacher) -> Systems:
    """Both tabs, answered by one teacher."""

    def setup(system: System) -> Setup:
        return Setup(Models(teacher), Prompts.load(system.folder or system.name, system.prompts))

    return Systems(setup(SYSTEM), setup(CAELF))


def page_of(
    file: SessionFile,
    teacher: ScriptedTeacher,
    *,
    study: bool = False,
    on_run: OnRun = lambda run: None,
    **more: Any,
) -> FastAPI:
    """The page as an application."""
    models = (ModelPlace("every module", teacher.name, "", weak=True),)
    settings = AssistSettings(sessions=file.path, models=models, study=study, **more)
    return create_page(settings, systems_of(teacher), file, on_run=on_run)


class Client:
    """The page as its own script asks it."""

    def __init__(self, http: TestClient, file: SessionFile, teacher: ScriptedTeacher) -> None:
        self.http = http
        self.file = file
        self.teacher = teacher

    def ask(self, method: str, path: str, body: Any = None, status: int = 0) -> Any:
        """The JSON of an answer, which must have this status, or none that says refusal."""
        answer = self.http.request(method, path, json=body)
        assert answer.status_code == status or (not status and answer.is_success), answer.text
        return answer.json()

    def refused(self, method: str, path: str, body: Any, status: int) -> str:
        """Returns the page's message where it refuses."""
        return str(self.ask(method, path, body, status)["error"])

    def events(self, path: str) -> list[dict[str, Any]]:
        """Everything that a job says until its end."""
        lines = self.http.get(path).text.split("\n\n")
        assert lines[-2].startswith("event: end"), lines[-3:]
        told = [line.partition("data: ")[2] for line in lines if line.startswith("id: ")]
        return [json.loads(line) for line in told]

    def begin(self, draft: str = "", **body: Any) -> str:
        """A new session with this text; its id."""
        session = str(self.ask("POST", "/api/sessions", body)["id"])
        if draft:
            self.ask("PUT", f"/api/sessions/{session}/draft", {"text": draft, "revision": 0})
        return session

    def turn(self, session: str, message: str) -> dict[str, Any]:
        """One message, and the turn as it ended."""
        number = self.ask("POST", f"/api/sessions/{session}/turns", {"message": message})["number"]
        events = self.events(f"/api/sessions/{session}/turns/{number}/events")
        return dict(next(event["turn"] for event in events if "turn" in event))


@contextmanager
def client_of(folder: Path, teacher: ScriptedTeacher | None = None, **options: Any) -> Iterator[Client]:
    """The page in this process, with its file in a folder."""
    teacher = teacher or ScriptedTeacher()
    with (
        SessionFile(folder / "sessions.sqlite") as file,
        TestClient(page_of(file, teacher, **options), base_url="http://127.0.0.1") as http,
    ):
        yield Client(http, file, teacher)
