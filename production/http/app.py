"""The server: its ASGI application, and the processes that run it, each with its own ONNX session.

Its addresses are `/v1/score`, `/v1/chat/completions`, `/metrics`, `/healthz` and more (`openapi.py`).
"""

import logging
import os
import signal
import socket
import tempfile
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from metaprobe.api import QualityPredictor, StreamingGate, require
from metaprobe.production.http.hangup import hold_hangups, take_hangups
from metaprobe.production.http.settings import Settings, SettingsError

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette


SERVER_MODULES = ("starlette", "aiohttp", "prometheus_client", "msgspec")


def create_app(
    settings: Settings, *, predictor: QualityPredictor | None = None, gates: StreamingGate | None = None
) -> "Starlette":
    """Returns the server as an ASGI application.

    Raises a `CheckpointError` for a checkpoint that does not verify, `SettingsError` if keys are missing, and
    `MissingExtra` without the extra `serve`.

    Args:
        settings: the settings.
        predictor: replaces the predictor that the settings name.
        gates: replaces the gate that the settings name.
    """
    for module in SERVER_MODULES:
        require(module, "serve")
    from metaprobe.production.http.endpoints import application
    from metaprobe.production.http.judges import Judges, Scorer, Seat, load_gates, load_judges
    from metaprobe.production.http.metrics import Metrics

    metrics = Metrics()
    if predictor is None:
        load = partial(load_judges, settings, metrics)
    else:
        scorer = Scorer(predictor, metrics, max_tokens=settings.max_scored_tokens)
        load = partial(Judges, {"": Seat(scorer)})
    return application(settings, metrics, load, gates or load_gates(settings))


BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Seconds for which idle connections stay open: longer than clients keep them, so that none is closed as a request
comes.
"""

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {name: {"handlers": ["stderr"], "level": "INFO"} for name in ("uvicorn", "metaprobe")},
}


def run_server(settings: Settings) -> None:
    """Serves until SIGINT or SIGTERM. Open requests are then finished, for at most `grace_s` seconds."""
    hold_hangups()
    require("uvicorn", "serve")
    require("httptools", "serve")
    if settings.workers == 1:
        from uvicorn import Server

        _listener(settings).close()  # else uvicorn says only in its log, after loading, that the port is taken
        with suppress(KeyboardInterrupt):  # which uvicorn raises once more after it has ended in order
            Server(server_config(settings)).run()
        return
    from uvicorn.supervisors import Multiprocess

    class _Workers(Multiprocess):
        def handle_hup(self) -> None:
            """Forwards the signal, so that every worker reloads its checkpoints. uvicorn would restart the workers."""
            for process in self.processes:
                if process.pid is not None:
                    with suppress(ProcessLookupError):  # it died, and another one is about to take its place
                        os.kill(process.pid, signal.SIGHUP)

        def init_processes(self) -> None:
            super().init_processes()
            take_hangups()

        def keep_subprocess_alive(self) -> None:
            hold_hangups()  # a worker that takes a dead one's place has it wait as the first ones had
            super().keep_subprocess_alive()
            take_hangups()

    with tempfile.TemporaryDirectory(prefix="metaprobe-metrics-") as metrics_folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics_folder  # read when the workers import prometheus_client
        create_app(settings)  # what is wrong is said once, here, and not by every worker
        listener, config = _listener(settings), server_config(settings)
        listener.listen(BACKLOG)  # from here on, whoever connects waits for the workers
        port = listener.getsockname()[1]
        logging.getLogger("uvicorn.error").info("Uvicorn running on http://%s:%d", settings.host, port)
        _Workers(config, sockets=[listener]).run()


def _listener(settings: Settings) -> socket.socket:
    """Returns a bound socket for workers to share. Raises `SettingsError` if the address cannot be used.

    uvicorn's own socket is not marked as TCP, so asyncio leaves Nagle's algorithm on: an answer in two writes takes 40
    ms.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"cannot listen on {settings.host}, port {settings.port}: {error.strerror}; name another --port (0 takes a "
            "free one), or another --host"
        ) from error
    return listener


def server_config(
    settings: Settings, *, log_config: dict[str, Any] | Literal["ours"] | None = "ours"
) -> "uvicorn.Config":
    """Returns uvicorn's configuration. Its own access log is off: ours leaves out what callers wrote."""
    import uvicorn

    from metaprobe.production.http.sockets import BoundedProtocol, within_file_limit

    protocol = partial(BoundedProtocol, settings=within_file_limit(settings))
    if log_config == "ours":
        log_config = LOGGING
        if settings.log_format == "json":
            log_config = {**LOGGING, "formatters": {"line": {"()": "metaprobe.production.http.metrics.JsonLine"}}}
    return uvicorn.Config(
        partial(create_app, settings),
        factory=True,
        http=protocol,  # type: ignore[arg-type]  # it is only ever called
        lifespan="on",
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        log_config=log_config,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.grace_s,
        backlog=BACKLOG,
    )
