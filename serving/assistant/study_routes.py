"""What the page of a study asks, and what it gets. Exports are made by the command line, never by the page."""

from functools import partial

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from metaprobe.records.errors import RecordError
from metaprobe.serving.assistant.door import body_of, number_in
from metaprobe.serving.assistant.jobs import Jobs
from metaprobe.serving.assistant.sessions import Sessions
from metaprobe.serving.assistant.settings import AssistSettings
from metaprobe.serving.assistant.study import PARTS, StudyFile, consent_text
from metaprobe.serving.assistant.writing_routes import forget_turns


def add_study(app: FastAPI, settings: AssistSettings, study: StudyFile, sessions: Sessions, jobs: Jobs) -> None:
    """Adds the addresses under `/api/study`."""
    body_in = partial(body_of, settings=settings)

    @app.get("/api/study")
    async def about() -> Response:
        return JSONResponse({"consent": list(consent_text()), "parts": PARTS})

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
