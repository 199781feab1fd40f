"""The program `metaprobe serve` is as its options say, says what is wrong before it serves, and ends in order."""

import logging
import logging.config
import os
import re
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import serving_clients
import uvicorn
from click.testing import CliRunner
from served import running_as
from serving_clients import PLAIN
from starlette.types import ASGIApp, Receive, Scope, Send

from metaprobe.checkpoints import CheckpointError, load_checkpoint
from metaprobe.production.http.app import create_app, server_config
from metaprobe.production.http.app import run_server as run_server
from metaprobe.production.http.settings import Settings, SettingsError
from metaprobe.production.serving_commands import serve
from metaprobe.records.errors import MissingExtra
from metaprobe.routing.gate import StreamingGate

checkpoint = serving_clients.checkpoint
callers_keys = serving_clients.callers_keys


# Options


def test_the_program_serves_as_its_options_say(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Settings] = []
    monkeypatch.setattr("metaprobe.production.http.app.run_server", started.append)
    options = (
        f"{checkpoint} --upstream http://u/v1 --no-auth --port 0 --max-body 9 --timeout 3 --workers 2 "
        "--max-answer 7 --forward-header x-tenant --max-connections 11 --max-scored-tokens 12 "
        "--header-timeout 1 --body-timeout 2 --send-timeout 4"
    )
    assert CliRunner().invoke(serve, options.split()).exit_code == 0
    [settings] = started
    assert (settings.checkpoint, settings.upstream, settings.auth, settings.port) == (
        str(checkpoint),
        "http://u/v1",
        False,
        0,
    )
    assert (settings.max_body_bytes, settings.timeout_s, settings.workers) == (9, 3.0, 2)
    assert (settings.max_answer_bytes, settings.forward_headers) == (7, ("x-tenant",))
    assert (settings.max_connections, settings.max_scored_tokens) == (11, 12)
    assert (settings.header_timeout_s, settings.body_timeout_s, settings.send_timeout_s) == (1.0, 2.0, 4.0)
    config = server_config(settings, log_config=None)
    assert config.access_log is False
    refused = CliRunner().invoke(serve, [str(checkpoint), "--no-auth", "--host", "0.0.0.0"])
    assert isinstance(refused.exception, SettingsError)


def test_checkpoint_and_gate_are_those_that_the_settings_name(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError):
        create_app(Settings(checkpoint=checkpoint, sha256="0" * 64))
    loaded: list[Any] = []
    monkeypatch.setattr(StreamingGate, "load", lambda path, **named: loaded.append((path, named)))
    known: dict[str, Any] = {"gate": "g", "gate_stop": 0.2, "gate_escalate": 0.1, "gate_sha256": "d"}
    for on_mismatch, passed in (("warn", "note"), ("refuse", "refuse"), ("ignore", "ignore")):
        create_app(Settings(checkpoint=checkpoint, upstream="http://u/v1", on_mismatch=on_mismatch, **known))  # type: ignore[arg-type]
        assert loaded.pop() == ("g", {"stop": 0.2, "escalate": 0.1, "sha256": "d", "on_mismatch": passed})


# Printed lines


def test_the_program_says_nothing_of_itself_and_believes_nothing_that_callers_say_of_themselves(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither whence a request comes, nor that it is a web socket, which would pass the door without a key."""
    seen: list[Any] = []

    def watched(settings: Settings) -> ASGIApp:
        app = create_app(settings)

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "lifespan":
                seen.append((scope["type"], scope["client"][0], scope["scheme"]))
            await app(scope, receive, send)

        return noted

    monkeypatch.setattr("metaprobe.production.http.app.create_app", watched)
    said = {"x-forwarded-for": "10.9.8.7", "x-forwarded-proto": "https"}
    socket_asked = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    socket_asked["sec-websocket-key"] = "AAAAAAAAAAAAAAAAAAAAAA=="
    with running_as(server_config(Settings(checkpoint=checkpoint), log_config=None)) as (url, _):
        answers = [
            httpx.get(url + path, headers=headers, **PLAIN)
            for path, headers in (("/healthz", said), ("/metrics", socket_asked))
        ]
    assert [answer.status_code for answer in answers] == [200, 401]
    assert not any("server" in answer.headers for answer in answers)
    assert seen == [("http", "127.0.0.1", "http")] * 2


@pytest.fixture
def loggers_as_before() -> Iterator[None]:
    known = [logging.getLogger(name) for name in ("uvicorn", "metaprobe")]
    before = [(logger, logger.handlers[:], logger.level) for logger in known]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.mark.usefixtures("loggers_as_before")
def test_a_start_says_which_checkpoint_judges_what_it_flags_and_who_answers(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "metaprobe"):
        create_app(Settings(checkpoint=checkpoint, upstream="http://127.0.0.1:9/v1", auth=False))
    judged, answered = [record.message for record in caplog.records if record.name.endswith("judges")]
    assert load_checkpoint(checkpoint).digest[:16] in judged
    assert "flags answers below 0.50" in judged
    assert "http://127.0.0.1:9/v1" in answered


def test_a_line_of_the_log_has_time_weight_and_source_and_other_loggers_stay_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = logging.getLogger("another.of.this.process")
    server_config(Settings(checkpoint="c"))
    for name in ("uvicorn.error", "metaprobe.production.http.guard"):
        logging.getLogger(name).info("said")
        logging.getLogger(name).debug("not said")
        assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d [\d:,]+ INFO {name} said\n", capsys.readouterr().err)
    assert not other.disabled


@pytest.mark.parametrize("module", ["uvicorn", "httptools", "starlette", "aiohttp", "prometheus_client", "msgspec"])
def test_a_server_without_its_libraries_says_which_extra_to_install(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    settings = Settings(checkpoint=checkpoint, port=0)
    with pytest.raises(MissingExtra, match=rf"{module} is needed .*pip install '\.\[serve\]'"):
        (run_server if module in ("uvicorn", "httptools") else create_app)(settings)


# One process


def test_a_port_that_is_taken_is_named_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"port {port}.*another --port"):
            run_server(Settings(checkpoint=Path("none"), auth=False, port=port))


def test_ctrl_c_is_a_good_end(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: uvicorn.Server) -> None:
        ended.append("run")
        raise KeyboardInterrupt  # as uvicorn does after an orderly end

    ended: list[str] = []
    monkeypatch.setattr(uvicorn.Server, "run", interrupted)
    monkeypatch.setattr("metaprobe.production.http.app.server_config", partial(server_config, log_config=None))
    run_server(Settings(checkpoint=checkpoint, auth=False, port=0))
    assert ended == ["run"]


# Several


class Workers:
    """uvicorn's processes, of which none is started."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        self.config, (self.listener,) = config, sockets
        started.append(self)

    def run(self) -> None:
        """Looks at what a worker would find."""
        self.shared = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
        assert self.shared.is_dir()
        with self.listener, socket.create_connection(self.listener.getsockname(), timeout=20) as caller:
            self.address = caller.getpeername()
            self.soon_again = self.listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)


started: list[Workers] = []


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Workers]:
    """Those that were started."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")
    monkeypatch.setattr("uvicorn.supervisors.Multiprocess", Workers)
    monkeypatch.setattr("metaprobe.production.http.app.server_config", partial(server_config, log_config=None))
    started.clear()
    return started


def test_workers_share_a_listener_that_takes_callers_before_they_do_and_a_place_for_their_counts(
    checkpoint: Path, workers: list[Workers], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "uvicorn.error")
    run_server(Settings(checkpoint=checkpoint, workers=3, port=0))
    (supervisor,) = workers
    assert supervisor.config.workers == 3
    assert f"running on http://127.0.0.1:{supervisor.address[1]}" in caplog.text
    assert supervisor.soon_again  # who ends the server can start it again at once, at the same port
    assert not supervisor.shared.exists()  # counts are not left behind


@pytest.mark.parametrize(
    ("environment", "wrong", "error"),
    [
        ("METAPROBE_API_KEY", {}, "no key for callers"),
        ("NOTHING", {"checkpoint": "none-is-here"}, "none-is-here"),
    ],
)
def test_what_is_wrong_is_said_once_and_not_by_every_worker(
    checkpoint: Path,
    workers: list[Workers],
    monkeypatch: pytest.MonkeyPatch,
    environment: str,
    wrong: dict[str, Any],
    error: str,
) -> None:
    monkeypatch.delenv(environment, raising=False)
    with pytest.raises((SettingsError, CheckpointError), match=error):
        run_server(Settings(**{"checkpoint": checkpoint, "workers": 2, "port": 0, **wrong}))
    assert not workers
