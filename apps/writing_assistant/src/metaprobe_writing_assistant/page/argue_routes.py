"""Answers the requests of the tab "Argue about a grade"."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from metaprobe.papers.systems.session import Setup
from metaprobe.records.errors import MissingExtra, RecordError
from metaprobe.records.types import Run
from metaprobe_writing_assistant.page.arguing import HIGHEST_LEVEL, LOWEST_LEVEL, contest_grade, grade_essay, grading_of
from metaprobe_writing_assistant.page.door import body_of, number_in, refuse, text_in
from metaprobe_writing_assistant.page.jobs import Job, Jobs, stream_job
from metaprobe_writing_assistant.page.session_file import Body, SessionFile
from metaprobe_writing_assistant.page.sessions import NotThere
from metaprobe_writing_assistant.page.settings import AssistSettings

GRADING = "grading"
MAX_ESSAY_WORDS = 1200
"""Most words of an essay: two assistants, their reflections and the teacher read all of it."""
KEPT_RUNS = 50
"""Number of the latest runs that are kept in memory."""


class Gradings:
    """Graded essays: results in the file, and the latest runs, from which a contest continues, in memory."""

    def __init__(self, file: SessionFile, setup: Setup) -> None:
        self._file = file
        self._setup = setup
        self._runs: dict[str, Run] = {}

    def begin(self, essay: str, trait: str) -> str:
        """Keeps an essay that is to be graded, and returns its name."""
        if len(essay.split()) > MAX_ESSAY_WORDS:
            raise RecordError(
                f"the essay has {len(essay.split())} words; take at most {MAX_ESSAY_WORDS} of them for this"
            )
        name = secrets.token_urlsafe(12)
        self._put(name, {"id": name, "essay": essay, "trait": trait, "grading": None, "contests": []})
        return name

    def get(self, name: str) -> Body:
        """Returns an essay with its results. Raises `NotThere`."""
        body = self._file.get(GRADING, name)
        if body is None:
            raise NotThere("this grading is not there: grade the essay again")
        return body

    async def grade(self, job: Job, name: str) -> None:
        """Grades as a job."""
        body = self.get(name)
        with _errors_told(job):
            run = await grade_essay(
                self._setup, body["essay"], body["trait"], run_id=name, on_stage=lambda stage: job.tell(stage=stage)
            )
            self._runs[name] = run
            for old_name in list(self._runs)[:-KEPT_RUNS]:
                del self._runs[old_name]
            grading = asdict(grading_of(run))
            self._put(name, {**body, "grading": grading})
            job.tell(grading=grading)

    async def contest(self, job: Job, name: str, text: str, level: int | None) -> None:
        """Hears a contest as a job.

        Args:
            job: the job.
            name: name of the essay.
            text: the contest.
            level: the level that the learner asks for, or None.
        """
        with _errors_told(job):
            first = self._runs.get(name)
            if first is None:
                raise RecordError("the program was started again since this was graded: grade the essay again")
            result = await contest_grade(self._setup, first, text, level, on_stage=lambda stage: job.tell(stage=stage))
            contest_result, body = asdict(result), self.get(name)
            self._put(name, {**body, "contests": [*body["contests"], contest_result]})
            job.tell(contest=contest_result)

    def _put(self, name: str, body: Body) -> None:
        self._file.put(GRADING, name, 0, body)


def add_arguing(app: FastAPI, settings: AssistSettings, gradings: Gradings, jobs: Jobs) -> None:
    """Adds the addresses under `/api/gradings`.

    Args:
        app: the application.
        settings: the settings.
        gradings: the gradings.
        jobs: the jobs.
    """
    body_in = partial(body_of, settings=settings)

    @app.post("/api/gradings")
    async def began(request: Request) -> Response:
        body = await body_in(request)
        name = gradings.begin(text_in(body, "essay"), text_in(body, "trait"))
        jobs.begin(name, lambda job: gradings.grade(job, name))
        return JSONResponse({"id": name, "job": name}, 201)

    @app.get("/api/gradings/{name}")
    async def kept(name: str) -> Response:
        return JSONResponse(gradings.get(name))

    @app.post("/api/gradings/{name}/contests")
    async def contested(name: str, request: Request) -> Response:
        body = await body_in(request)
        level = None if body.get("level") is None else number_in(body, "level")
        text, number = text_in(body, "text"), len(gradings.get(name)["contests"])
        job_name = f"{name}-{number}"
        if jobs.running(job_name):
            return refuse(409, "your last objection is still being heard")
        jobs.begin(job_name, lambda job: gradings.contest(job, name, text, level))
        return JSONResponse({"id": name, "job": job_name, "levels": [LOWEST_LEVEL, HIGHEST_LEVEL]}, 201)

    @app.get("/api/gradings/jobs/{job}/events")
    async def followed(job: str, request: Request) -> Response:
        running_job = jobs.get(job)
        if running_job is None:
            raise NotThere("this is not being worked on any more; load the page again")
        return stream_job(request, running_job)

    @app.post("/api/gradings/jobs/{job}/stop")
    async def stopped(job: str) -> Response:
        return JSONResponse({"stopped": await jobs.stop(job)})


@contextmanager
def _errors_told(job: Job) -> Iterator[None]:
    """Reports an error in the block to the job's listeners."""
    try:
        yield
    except (RecordError, MissingExtra) as error:
        job.tell(error=str(error))
    except Exception as error:
        job.tell(error=f"the program failed ({type(error).__name__}); see its log")
        raise
