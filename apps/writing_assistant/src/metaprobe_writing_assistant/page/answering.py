"""One turn of the assistant on the page: asks the models, and tells the page what is going on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict, replace

from metaprobe.llms.base import LLM, Request, Token, WrappedLLM
from metaprobe.papers.systems.session import Models, Session, Setup
from metaprobe.records.errors import MissingExtra, RecordError
from metaprobe.records.types import Call, Run
from metaprobe_writing_assistant.page.jobs import Job
from metaprobe_writing_assistant.page.sessions import Sessions, shown_turn
from metaprobe_writing_assistant.system.assistant import reply
from metaprobe_writing_assistant.system.contract import item_of_turn

LOG = logging.getLogger(__name__)
SYSTEM_NAME = "writing-assistant"
OnStage = Callable[[str], None]
OnRun = Callable[[Run], None]


class ReportingLLM(WrappedLLM):
    """A model that reports the stage of every request."""

    def __init__(self, llm: LLM, on_stage: OnStage) -> None:
        super().__init__(llm)
        self._on_stage = on_stage
        self.calls: list[Call] = []

    async def complete(self, request: Request) -> Call:
        """Returns the finished call."""
        self._on_stage(request.stage)
        call = await super().complete(request)
        self.calls.append(call)
        return call

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        """Yields the tokens as they come, then the finished call."""
        self._on_stage(request.stage)
        async for event in super().stream(request):
            if isinstance(event, Call):
                self.calls.append(event)
            yield event


def reporting_models(models: Models, on_stage: OnStage) -> tuple[Models, list[ReportingLLM]]:
    """Returns models that call `on_stage` with the stage of each request, and a list of these models."""
    reporting_of = {id(llm): ReportingLLM(llm, on_stage) for llm in models.all}
    by_name = {name: reporting_of[id(llm)] for name, llm in models.by_name.items()}
    return Models(reporting_of[id(models.default)], by_name), list(reporting_of.values())


class Answering:
    """Answers turns and keeps the results."""

    def __init__(self, sessions: Sessions, setup: Setup, on_run: OnRun = lambda run: None) -> None:
        """Starts without turns.

        Args:
            sessions: the sessions, in which results are kept.
            setup: the models and settings that answer.
            on_run: called with the run of every answered turn; the run holds the turn's calls.
        """
        self._sessions = sessions
        self._setup = setup
        self._on_run = on_run

    async def work(self, job: Job, session_id: str, number: int) -> None:
        """Answers one turn as a job: reports stages and pieces of the text, and keeps the turn however it ends.

        Args:
            job: the job.
            session_id: id of the session.
            number: number of the turn.
        """
        kept_turn = self._sessions.turn(session_id, number)
        blind = self._sessions.get(session_id).blind
        models, reporting_llms = reporting_models(
            self._setup.models, lambda stage: None if blind else job.tell(stage=stage)
        )
        pieces: list[str] = []

        def on_text(piece: str) -> None:
            pieces.append(piece)
            job.tell(text=piece)

        def end(state: str, **found: object) -> None:
            calls = [call for llm in reporting_llms for call in llm.calls]
            tokens = sum(call.usage.prompt_tokens + call.usage.completion_tokens for call in calls)
            self._keep(job, session_id, number, state=state, calls=len(calls), tokens=tokens, **found)

        try:
            turn = self._sessions.ask(session_id, number)
            # All turns of one text are one group: what is learned from some must not be tested on the others.
            item = item_of_turn(turn, job.name, group=session_id)
            setup = replace(self._setup, models=models)
            session = Session(setup, item, system=SYSTEM_NAME, variant=kept_turn.condition, run_id=item.id)
            answer = asdict(await reply(session, turn, kept_turn.condition, on_text=on_text))
            run = session.run(answer["text"])
        except asyncio.CancelledError:
            end("stopped", text="".join(pieces))
            raise
        except (RecordError, MissingExtra) as error:
            end("failed", text="".join(pieces), error=str(error))
        except Exception as error:  # a bug here: the turn still ends for the writer, and the log gets the reason
            end("failed", text="".join(pieces), error=f"the program failed ({type(error).__name__}); see its log")
            raise
        else:
            with suppress(RecordError):  # on a full disk the next line fails too, and tells the page
                self._sessions.change(session_id, found=answer["profile"])
            end("done", text=answer["text"], reply=answer)
            try:
                self._on_run(run)
            except RecordError:  # the learner has the answer; the store is for whoever trains on it later
                LOG.exception("the calls of %s could not be kept", job.name)

    def _keep(self, job: Job, session_id: str, number: int, **found: object) -> None:
        """Keeps the turn. If that fails, as on a full disk, the page still gets the answer and is told.

        Args:
            job: the job.
            session_id: id of the session.
            number: number of the turn.
            **found: fields of the turn.
        """
        try:
            turn = self._sessions.end_turn(session_id, number, **found)
        except RecordError as error:
            job.tell(unkept=str(error), **{name: found[name] for name in ("state", "text") if name in found})
            return
        blind = self._sessions.get(session_id).blind
        job.tell(turn=shown_turn(number, turn, blind=blind))
