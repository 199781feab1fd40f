"""Answers the page's requests about texts and turns."""

from contextlib import suppress
from dataclasses import asdict, fields
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from metaprobe.records.errors import RecordError, Unwritable
from metaprobe_writing_assistant.page.answering import Answering
from metaprobe_writing_assistant.page.door import body_of, number_in, refuse, text_in
from metaprobe_writing_assistant.page.jobs import Jobs, stream_job
from metaprobe_writing_assistant.page.sessions import (
    NotThere,
    Sessions,
    WritingSession,
    as_json,
    as_markdown,
    shown_session,
    shown_turn,
)
from metaprobe_writing_assistant.page.settings import AssistSettings
from metaprobe_writing_assistant.system.contract import CONDITIONS, Profile, check_condition

MAX_PROFILE_CHARS = 500
"""Most characters of one field of a profile."""
ENDED_MESSAGE = "the program ended while this was written"
STUDY_EXPORT_MESSAGE = "in a study, texts are exported by the person who runs it (metaprobe study export)"


def add_writing(app: FastAPI, settings: AssistSettings, sessions: Sessions, jobs: Jobs, answering: Answering) -> None:
    """Adds the addresses under `/api/sessions`.

    Args:
        app: the application.
        settings: the settings.
        sessions: the sessions.
        jobs: the jobs.
        answering: answers turns.
    """
    body_in = partial(body_of, settings=settings)

    # Sessions.
    @app.get("/api/sessions")
    async def listed() -> Response:
        return JSONResponse([] if settings.study else sessions.titles())

    @app.post("/api/sessions")
    async def created(request: Request) -> Response:
        if settings.study:
            raise RecordError("this page runs a study: texts are begun by taking part")
        body = await body_in(request)
        session = sessions.create(
            check_condition(text_in(body, "condition", CONDITIONS[-1])), task=text_in(body, "task", "")
        )
        return JSONResponse(shown_session(session, []), 201)

    @app.get("/api/sessions/{session_id}")
    async def whole(session_id: str) -> Response:
        _end_lost_turns(sessions, jobs, session_id)
        return JSONResponse(shown_session(sessions.get(session_id), sessions.turns(session_id)))

    @app.delete("/api/sessions/{session_id}")
    async def deleted(session_id: str) -> Response:
        _refuse_in_study(sessions.get(session_id))
        await forget_turns(sessions, jobs, session_id)
        sessions.delete(session_id)
        return JSONResponse({})

    # Fields of a session.
    @app.put("/api/sessions/{session_id}/draft")
    async def saved(session_id: str, request: Request) -> Response:
        body = await body_in(request)
        session = sessions.save_draft(session_id, text_in(body, "text"), number_in(body, "revision"))
        return JSONResponse({"revision": session.revision})

    @app.put("/api/sessions/{session_id}/profile")
    async def told(session_id: str, request: Request) -> Response:
        profile = asdict(_profile(await body_in(request)))
        return JSONResponse({"profile": sessions.change(session_id, profile=profile).profile})

    @app.put("/api/sessions/{session_id}/condition")
    async def switched(session_id: str, request: Request) -> Response:
        _refuse_in_study(sessions.get(session_id))
        condition = check_condition(text_in(await body_in(request), "condition"))
        return JSONResponse({"condition": sessions.change(session_id, condition=condition).condition})

    _add_versions(app, sessions)
    _add_exports(app, sessions)
    _add_turns(app, settings, sessions, jobs, answering)


def _add_versions(app: FastAPI, sessions: Sessions) -> None:
    @app.get("/api/sessions/{session_id}/versions")
    async def versions(session_id: str) -> Response:
        sessions.get(session_id)
        return JSONResponse(sessions.versions(session_id))

    @app.post("/api/sessions/{session_id}/versions")
    async def kept(session_id: str) -> Response:
        sessions.keep_version(session_id, sessions.get(session_id).draft, "by hand")
        return JSONResponse(sessions.versions(session_id), 201)

    @app.get("/api/sessions/{session_id}/versions/{number}")
    async def version(session_id: str, number: int) -> Response:
        return JSONResponse({"text": sessions.version(session_id, number)})


def _add_exports(app: FastAPI, sessions: Sessions) -> None:
    @app.get("/api/sessions/{session_id}/export.json")
    async def export_json(session_id: str) -> Response:
        _refuse_in_study(sessions.get(session_id))
        return JSONResponse(as_json(sessions, session_id), headers=_download(session_id, "json"))

    @app.get("/api/sessions/{session_id}/export.md")
    async def export_markdown(session_id: str) -> Response:
        _refuse_in_study(sessions.get(session_id))
        text = as_markdown(sessions, session_id)
        return PlainTextResponse(text, headers=_download(session_id, "md"), media_type="text/markdown")


def _add_turns(app: FastAPI, settings: AssistSettings, sessions: Sessions, jobs: Jobs, answering: Answering) -> None:
    @app.post("/api/sessions/{session_id}/turns")
    async def asked(session_id: str, request: Request) -> Response:
        body = await body_of(request, settings)
        session, message = sessions.get(session_id), text_in(body, "message")
        if not message.strip() and not session.draft.strip():
            raise RecordError("there is nothing to answer yet: write a message, or begin your text")
        _end_lost_turns(sessions, jobs, session_id)
        if any(turn.state == "running" for _, turn in sessions.turns(session_id)):
            return refuse(409, "the assistant still answers your last message: wait for it, or stop it")
        number = sessions.begin_turn(session_id, message, session.draft, session.condition)
        jobs.begin(_job_name(session_id, number), lambda job: answering.work(job, session_id, number))
        turn = shown_turn(number, sessions.turn(session_id, number), blind=session.blind)
        return JSONResponse(turn, 201)

    @app.get("/api/sessions/{session_id}/turns/{number}/events")
    async def followed(session_id: str, number: int, request: Request) -> Response:
        job = jobs.get(_job_name(session_id, number))
        if job is None:
            raise NotThere("this answer is not being written any more; load the session again")
        return stream_job(request, job)

    @app.post("/api/sessions/{session_id}/turns/{number}/stop")
    async def stopped(session_id: str, number: int) -> Response:
        await jobs.stop(_job_name(session_id, number))
        session = sessions.get(session_id)
        return JSONResponse(shown_turn(number, sessions.turn(session_id, number), blind=session.blind))


async def forget_turns(sessions: Sessions, jobs: Jobs, session_id: str) -> None:
    """Stops the jobs of a text that is to be deleted, and drops their events.

    Args:
        sessions: the sessions.
        jobs: the jobs.
        session_id: id of the session.
    """
    for number, _ in sessions.turns(session_id):
        await jobs.forget(_job_name(session_id, number))


def _end_lost_turns(sessions: Sessions, jobs: Jobs, session_id: str) -> None:
    """Ends turns that were at work when the program was last ended, or whose end could not be written.

    Args:
        sessions: the sessions.
        jobs: the jobs.
        session_id: id of the session.
    """
    for number, turn in sessions.turns(session_id):
        if turn.state == "running" and not jobs.running(_job_name(session_id, number)):
            with suppress(Unwritable):  # it can still be read
                sessions.end_turn(session_id, number, state="failed", error=ENDED_MESSAGE)


def _job_name(session_id: str, number: int) -> str:
    return f"{session_id}/{number}"


def _profile(body: dict[str, Any]) -> Profile:
    texts = {field.name: text_in(body, field.name, "").strip() for field in fields(Profile)}
    if too_long := [name for name, text in texts.items() if len(text) > MAX_PROFILE_CHARS]:
        raise RecordError(f"{too_long[0]} is longer than {MAX_PROFILE_CHARS} characters; say it shorter")
    return Profile(**{name: text or None for name, text in texts.items()})


def _refuse_in_study(session: WritingSession) -> None:
    if session.blind:
        raise RecordError(STUDY_EXPORT_MESSAGE)


def _download(session_id: str, suffix: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="text-{session_id[:6]}.{suffix}"'}
