"""The page's application: its files, and the addresses that they request."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from metaprobe.papers.systems.caelf import TRAITS
from metaprobe.papers.systems.session import Setup
from metaprobe.records.errors import RecordError
from metaprobe_writing_assistant.page.answering import Answering, OnRun
from metaprobe_writing_assistant.page.argue_routes import Gradings, add_arguing
from metaprobe_writing_assistant.page.door import Door, refusal_of, refuse
from metaprobe_writing_assistant.page.jobs import Jobs
from metaprobe_writing_assistant.page.session_file import SessionFile
from metaprobe_writing_assistant.page.sessions import Sessions
from metaprobe_writing_assistant.page.settings import AssistSettings
from metaprobe_writing_assistant.page.study import StudyFile, add_study
from metaprobe_writing_assistant.page.tasks import TASKS
from metaprobe_writing_assistant.page.writing_routes import add_writing
from metaprobe_writing_assistant.system.contract import CONDITIONS

MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Systems:
    """Holds the systems that the two tabs run."""

    writing: Setup
    arguing: Setup | None = None
    """None if the tab is left out, as in a study."""


def create_page(
    settings: AssistSettings, systems: Systems, file: SessionFile, *, on_run: OnRun = lambda run: None
) -> FastAPI:
    """Returns the page as an ASGI application.

    Args:
        settings: the settings.
        systems: the systems.
        file: the file of sessions.
        on_run: called with the run of every answered turn.
    """
    sessions, jobs = Sessions(file), Jobs()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await jobs.stop_all()

    app = FastAPI(title="metaprobe assist", lifespan=lifespan, openapi_url=None)
    app.add_middleware(Door, settings=settings)
    _add_error_handlers(app)
    _add_files(app)
    can_argue = systems.arguing is not None and not settings.study

    @app.get("/api/about")
    async def about() -> Response:
        return JSONResponse(
            {
                "models": [asdict(model) for model in settings.models],
                "conditions": [] if settings.study else list(CONDITIONS),
                "study": settings.study,
                "arguing": can_argue,
                "traits": list(TRAITS),
                "tasks": [] if settings.study else [asdict(task) for task in TASKS],
                "file": file.path.name,
            }
        )

    add_writing(app, settings, sessions, jobs, Answering(sessions, systems.writing, on_run))
    if settings.study:
        add_study(app, settings, StudyFile(file, sessions), sessions, jobs)
    if can_argue and systems.arguing is not None:
        add_arguing(app, settings, Gradings(file, systems.arguing), jobs)
    return app


def _add_files(app: FastAPI) -> None:
    """Adds the page's own files, read once. There are no others, and none from elsewhere."""
    folder = files("metaprobe_writing_assistant.page") / "web"
    texts = {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in MEDIA_TYPES}

    @app.get("/")
    async def page() -> Response:
        return Response(texts["index.html"], media_type="text/html")

    @app.get("/page/{name}")
    async def part(name: str) -> Response:
        if name not in texts:
            return refuse(404, f"the page has no file {name[:80]!r}")
        return Response(texts[name], media_type=MEDIA_TYPES[name.rpartition(".")[2]])


def _add_error_handlers(app: FastAPI) -> None:
    """Reports every error as JSON with the field `error`."""

    async def wrong(_: Request, error: Exception) -> Response:
        assert isinstance(error, RecordError)
        return refusal_of(error)

    async def unknown(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return refuse(error.status_code, str(error.detail))

    async def failed(_: Request, error: Exception) -> Response:
        return refuse(500, f"the program failed ({type(error).__name__}); see its log")

    app.add_exception_handler(RecordError, wrong)
    app.add_exception_handler(HTTPException, unknown)
    app.add_exception_handler(Exception, failed)
