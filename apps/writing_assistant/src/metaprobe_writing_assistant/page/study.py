"""A study on the page: each participant's order of assistants, progress, and answers."""

import random
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from metaprobe.records.errors import RecordError
from metaprobe_writing_assistant.page.door import body_of, number_in
from metaprobe_writing_assistant.page.jobs import Jobs
from metaprobe_writing_assistant.page.session_file import Body, SessionFile
from metaprobe_writing_assistant.page.sessions import NotThere, Sessions
from metaprobe_writing_assistant.page.settings import AssistSettings
from metaprobe_writing_assistant.page.tasks import TASKS, WritingTask
from metaprobe_writing_assistant.page.writing_routes import forget_turns
from metaprobe_writing_assistant.study.answers import Sheet
from metaprobe_writing_assistant.study.survey import CONSENT, QUESTIONS, balanced_orders, draw_code
from metaprobe_writing_assistant.system.contract import CONDITIONS

STUDY, WITHDRAWN = "study", "withdrawn"
PART_COUNT = len(CONDITIONS)


@dataclass(frozen=True, slots=True)
class Taking:
    """One participant's way through a study."""

    token: str
    """Name of the participant for the page; cannot be guessed."""
    code: str
    """Name of the participant in exported answers."""
    order: tuple[str, ...]
    tasks: tuple[str, ...]
    """The task of each part."""
    sessions: tuple[str, ...] = ()
    """The writing session of each part that was begun."""
    finished_parts: int = 0
    answers: Mapping[str, int | None] = field(default_factory=dict)
    """Maps a question to the place, from 0, of the chosen assistant in the order; None for "I cannot say"."""
    done: bool = False

    @property
    def step(self) -> str:
        """The next step: `write`, `survey` or `done`."""
        return "done" if self.done else "write" if self.finished_parts < PART_COUNT else "survey"

    @property
    def sheet(self) -> Sheet:
        """The answers as `study analyse` reads them, with conditions instead of places."""
        answers = {name: None if index is None else self.order[index] for name, index in self.answers.items()}
        return Sheet(self.code, self.order, answers)


class StudyFile:
    """The participants in one file. Raises `NotThere` for an unknown token."""

    def __init__(self, file: SessionFile, sessions: Sessions) -> None:
        self._file = file
        self._sessions = sessions

    def begin(self) -> Taking:
        """Adds a participant: the next order, the next tasks, a new code, and the first text."""
        number = self._file.owners(STUDY) + self._file.owners(WITHDRAWN)
        orders = balanced_orders(CONDITIONS)
        tasks = [TASKS[(number // len(orders) + part) % len(TASKS)].id for part in range(PART_COUNT)]
        taking = Taking(secrets.token_urlsafe(12), draw_code(), orders[number % len(orders)], tuple(tasks))
        return self._begin_part(taking)

    def get(self, token: str) -> Taking:
        """Returns a participant."""
        body = self._file.get(STUDY, token)
        if body is None:
            raise NotThere("nobody takes part under this name: begin again, or ask the person who runs the study")
        return _taking(body)

    def next_part(self, token: str, part: int) -> Taking:
        """Continues from `part`, counted from 0, to the next text, or to the survey."""
        taking = self.get(token)
        if part != taking.finished_parts or taking.step != "write":
            return taking  # another window, or a second click
        turns = self._sessions.turns(taking.sessions[part])
        if not any(turn.state == "done" for _, turn in turns):
            raise RecordError("please ask this assistant at least once, and wait for its answer, before you go on")
        taking = replace(taking, finished_parts=part + 1)
        return self._begin_part(taking) if taking.step == "write" else self._put(taking)

    def answer(self, token: str, answers: Mapping[str, Any]) -> Taking:
        """Keeps answers to the survey, in addition to earlier ones."""
        taking = self.get(token)
        if taking.step != "survey":
            raise RecordError("the survey comes after the three texts, and its answers stay as they were handed in")
        question_ids = {question.id for question in QUESTIONS}
        for name, place in answers.items():
            if name not in question_ids or not (place is None or (type(place) is int and 0 <= place < PART_COUNT)):
                raise RecordError(
                    f"answer {name!r}: {place!r}; expected a question of the survey and 0 to {PART_COUNT - 1}"
                )
        return self._put(replace(taking, answers={**taking.answers, **answers}))

    def finish(self, token: str) -> Taking:
        """Hands the survey in. Raises `RecordError` if a question has no answer."""
        taking = self.get(token)
        if taking.step == "write":
            raise RecordError("the survey comes after the three texts")
        if missing := [question.id for question in QUESTIONS if question.id not in taking.answers]:
            raise RecordError(
                f"{len(missing)} questions have no answer yet; take \u201cI cannot say\u201d where you cannot"
            )
        return self._put(replace(taking, done=True))

    def withdraw(self, token: str) -> None:
        """Deletes everything of a participant. The fact that there was one is kept, so that orders stay in turn."""
        taking = self.get(token)
        self._file.put(WITHDRAWN, secrets.token_hex(8), 0, {})
        self._file.delete(token, *taking.sessions)

    def sheets(self) -> tuple[list[Sheet], int]:
        """Returns the answers of everyone who handed the survey in, and how many have not."""
        takings = [_taking(body) for _, _, body in self._file.first_entries(STUDY)]
        done = [taking.sheet for taking in takings if taking.done]
        return sorted(done, key=lambda sheet: sheet.code), len(takings) - len(done)

    def shown(self, taking: Taking) -> Body:
        """Returns what the participant's page may know: nothing of the order."""
        part = min(taking.finished_parts, PART_COUNT - 1)
        is_writing = taking.step == "write"
        questions = list(QUESTIONS)
        random.Random(taking.code).shuffle(questions)  # mixes the aspects, in another order for each participant
        return {
            "token": taking.token,
            "code": taking.code,
            "step": taking.step,
            "part": part,
            "parts": PART_COUNT,
            "session": taking.sessions[part] if is_writing else None,
            "task": asdict(_task(taking.tasks[part])) if is_writing else None,
            "questions": [{"id": question.id, "text": question.text} for question in questions]
            if not is_writing
            else [],
            "answers": dict(taking.answers),
        }

    def _begin_part(self, taking: Taking) -> Taking:
        part = taking.finished_parts
        task = _task(taking.tasks[part])
        session = self._sessions.create(taking.order[part], task=task.text, blind=True)
        return self._put(replace(taking, sessions=(*taking.sessions, session.id)))

    def _put(self, taking: Taking) -> Taking:
        self._file.put(STUDY, taking.token, 0, asdict(taking))
        return taking


def _task(task_id: str) -> WritingTask:
    return next(task for task in TASKS if task.id == task_id)


def _taking(body: Body) -> Taking:
    lists = {name: tuple(body[name]) for name in ("order", "tasks", "sessions")}
    return Taking(**{**body, **lists})


def add_study(app: FastAPI, settings: AssistSettings, study: StudyFile, sessions: Sessions, jobs: Jobs) -> None:
    """Adds the addresses under `/api/study`.

    Args:
        app: the application.
        settings: the settings.
        study: the study.
        sessions: the sessions.
        jobs: the jobs.
    """
    body_in = partial(body_of, settings=settings)

    @app.get("/api/study")
    async def about() -> Response:
        return JSONResponse({"consent": list(CONSENT), "parts": PART_COUNT})

    @app.post("/api/study")
    async def began(request: Request) -> Response:
        if (await body_in(request)).get("consent") is not True:
            raise RecordError("nothing is kept before you agree to take part")
        return JSONResponse(study.shown(study.begin()), 201)

    @app.get("/api/study/{token}")
    async def resumed(token: str) -> Response:
        return JSONResponse(study.shown(study.get(token)))

    @app.post("/api/study/{token}/next")
    async def went_on(token: str, request: Request) -> Response:
        return JSONResponse(study.shown(study.next_part(token, number_in(await body_in(request), "part"))))

    @app.put("/api/study/{token}/answers")
    async def answered(token: str, request: Request) -> Response:
        return JSONResponse(study.shown(study.answer(token, await body_in(request))))

    @app.post("/api/study/{token}/finish")
    async def finished(token: str) -> Response:
        return JSONResponse(study.shown(study.finish(token)))

    @app.delete("/api/study/{token}")
    async def withdrawn(token: str) -> Response:
        for session_id in study.get(token).sessions:
            await forget_turns(sessions, jobs, session_id)
        study.withdraw(token)
        return JSONResponse({})
