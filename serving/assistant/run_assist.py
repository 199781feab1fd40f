"""Runs the page until it is asked to end."""

import socket
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import TYPE_CHECKING

from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.serving.assistant.session_file import SessionFile
from metaprobe.serving.assistant.settings import AssistSettings

if TYPE_CHECKING:
    from metaprobe.serving.assistant.answering import OnRun
    from metaprobe.serving.assistant.app import Systems

NEEDED = ("fastapi", "uvicorn")
GRACE_S = 3
"""How long the end of the program waits for a page that listens to an answer."""


def check_extras() -> None:
    """Raises `MissingExtra` where the page cannot be served, before a model is loaded."""
    for module in NEEDED:
        require(module, "assistant" if module == "fastapi" else "serve")


def listener_of(settings: AssistSettings) -> socket.socket:
    """Returns a socket that listens. Raises `RecordError` where the port is taken."""
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
    settings: AssistSettings, systems: "Systems", listener: socket.socket, *, on_run: "OnRun" = lambda run: None
) -> None:
    """Serves the page on a bound socket until SIGINT or SIGTERM. Closes the models' connections at the end."""
    from uvicorn import Config, Server

    from metaprobe.serving.assistant.app import create_page

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
