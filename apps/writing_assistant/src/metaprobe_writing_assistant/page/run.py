"""Runs the page: makes settings and systems from the options of `metaprobe assist`, then serves until it is stopped."""

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path

from uvicorn import Config, Server

from metaprobe.llms.model_name import ModelName
from metaprobe.llms.weights import EMBEDDED
from metaprobe.papers.collecting.models import (
    call_options,
    check_constants,
    check_limits,
    load_models,
    parse_models,
)
from metaprobe.papers.systems.caelf import SYSTEM as CAELF
from metaprobe.papers.systems.prompting import Prompts
from metaprobe.papers.systems.session import Models, Setup
from metaprobe.papers.systems.system import System
from metaprobe.probes.signal_source import SignalSource
from metaprobe.records.errors import RecordError
from metaprobe_writing_assistant.page.answering import OnRun
from metaprobe_writing_assistant.page.app import Systems, create_page
from metaprobe_writing_assistant.page.session_file import SessionFile
from metaprobe_writing_assistant.page.settings import AssistSettings, places_of
from metaprobe_writing_assistant.system.assistant import SYSTEM as ASSISTANT
from metaprobe_writing_assistant.system.wordnet import wordnet

GRACE_S = 3
"""Seconds for which the end of the program waits for a page that listens to an answer."""


def plan_page(
    *,
    llm: Sequence[str],
    api: Sequence[str],
    sessions: Path,
    study: bool,
    signal: Sequence[str],
    constant: Sequence[str],
    tokens: Sequence[str],
    host: str,
    port: int,
    allow_host: Sequence[str],
) -> tuple[AssistSettings, Callable[[], Systems]]:
    """Returns the settings, and a function that loads the models. Raises `RecordError` for options that cannot be
    meant.

    Args:
        llm: specifications of models.
        api: options of API models.
        sessions: the file of sessions.
        study: whether the page runs a study.
        signal: signals that checkpoints give.
        constant: constants of the assistant.
        tokens: token limits of stages.
        host: address to listen on.
        port: port to listen on.
        allow_host: further names of the page.
    """
    names_of_models = parse_models(llm, None, ASSISTANT, ())
    options = call_options(ASSISTANT, tokens, constant)
    check_constants(ASSISTANT, ASSISTANT.variants, constant)
    check_limits(options, ASSISTANT, names_of_models, ())
    options_of_api = ModelName.api_options(api, None)
    settings = AssistSettings(
        sessions=sessions,
        models=places_of(names_of_models, tuple(EMBEDDED)),
        host=host,
        port=port,
        allowed_hosts=tuple(allow_host),
        study=study,
    )

    def load() -> Systems:
        wordnet_thread = threading.Thread(
            target=wordnet, daemon=True
        )  # takes seconds, in which no page would be served
        wordnet_thread.start()
        signals = SignalSource.load(signal)
        models = load_models(names_of_models, ASSISTANT, signals, (), api=options_of_api)
        wordnet_thread.join()
        writing = Setup(models, _prompts(ASSISTANT), signals=signals, options=options)
        return Systems(writing, None if study else Setup(Models(models.default), _prompts(CAELF)))

    return settings, load


def _prompts(system: System) -> Prompts:
    return Prompts.load(system.folder or system.name, system.prompts)


def listener_of(settings: AssistSettings) -> socket.socket:
    """Returns a socket that listens. Raises `RecordError` if the port is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(64)  # from here on a browser waits until the page is served, and is not refused
    except OSError as error:
        listener.close()
        raise RecordError(
            f"cannot listen on {settings.host}, port {settings.port}: {error.strerror}; name another --port, or 0 for "
            "a free one"
        ) from error
    return listener


async def serve_page(
    settings: AssistSettings, systems: Systems, listener: socket.socket, *, on_run: OnRun = lambda run: None
) -> None:
    """Serves the page on a bound socket until SIGINT or SIGTERM. Closes the models' connections at the end.

    Args:
        settings: the settings.
        systems: the systems.
        listener: the socket.
        on_run: called with the run of every answered turn.
    """
    async with AsyncExitStack() as stack:
        setups = [setup for setup in (systems.writing, systems.arguing) if setup is not None]
        for llm in {id(llm): llm for setup in setups for llm in setup.models.all}.values():
            if isinstance(llm, AbstractAsyncContextManager):
                await stack.enter_async_context(llm)
        file = stack.enter_context(SessionFile(settings.sessions))
        app = create_page(settings, systems, file, on_run=on_run)
        config = Config(
            app,
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=GRACE_S,
        )
        with suppress(KeyboardInterrupt):  # which uvicorn raises once more after it has ended in order
            await Server(config).serve(sockets=[listener])
