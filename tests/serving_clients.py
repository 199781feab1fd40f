"""Shared by tests of the server: a running server, the upstream behind it, and clients that ask it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from served import ENDS_WITH, KEY, TOKENS, Upstream, running, small_checkpoint

from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.http.app import create_app
from metaprobe.production.http.settings import Settings
from metaprobe.training.evidence import Evidence

LOGPROBS = [logprob for _, logprob in TOKENS]
TEXT = "".join(token for token, _ in TOKENS)


@pytest.fixture(scope="module")
def checkpoint(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("checkpoints") / "quality", evidence).path


@pytest.fixture(scope="module")
def predictor(checkpoint: Path) -> QualityPredictor:
    return QualityPredictor.load(checkpoint)


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[Upstream, str]]:
    told = Upstream()
    with running(told) as (url, _):
        yield told, f"{url}/v1"


PLAIN: dict[str, Any] = {"timeout": 20, "trust_env": False, "verify": False}
"""Options of a request over loopback. Reading certificates would take ten times as long as the request."""


class Served:
    """A running server, and clients of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        options: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": KEY, "max_retries": 0, "timeout": 20}
        self.options = options

    @cached_property
    def client(self) -> openai.OpenAI:
        client = openai.OpenAI(**self.options)
        ENDS_WITH.setdefault(self.url, []).append(client.close)
        return client

    def chat(self, said: str = "plain", model: str = "m", **more: Any) -> Any:
        return self.client.chat.completions.create(model=model, messages=[{"role": "user", "content": said}], **more)

    def ask(self, said: str = "plain", more: Mapping[str, Any] | None = None, **headers: str) -> httpx.Response:
        """Returns the answer to a request for a chat completion, as it came. `more`: further fields of the request."""
        body = {"model": "m", "messages": [{"role": "user", "content": said}], **(more or {})}
        return self.post("/v1/chat/completions", body, **headers)

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(f"{self.url}{path}", content=content, headers=given, **PLAIN)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers=headers, **PLAIN)


@contextmanager
def serving(checkpoint: Path | str, upstream: str = "", *, gates: Any = None, **settings: Any) -> Iterator[Served]:
    """A server with these settings, and a client of it."""
    app = create_app(Settings(checkpoint=checkpoint, upstream=upstream, **settings), gates=gates)
    with running(app) as (url, _):
        yield Served(url)


@contextmanager
def program(
    log: Path, *words: object, before: str = "", **environment: str
) -> Iterator[tuple["subprocess.Popen[bytes]", Served]]:
    """`metaprobe serve` in a process of its own, and a client of it once it answers.

    `log`: the file for what it says. `before`: Python that runs first.
    """
    code = f"{before}from metaprobe.production.serving_commands import serve; serve()"
    command = [sys.executable, "-c", code, *map(str, words)]
    given = {**os.environ, "METAPROBE_API_KEY": KEY, "PYTHONWARNINGS": "ignore", **environment}
    with log.open("w") as file:
        server = subprocess.Popen([*command, "--port", "0"], stderr=file, env=given)
    try:
        end = time.monotonic() + 120
        while (address := re.search(r"running on (http://[\d.:]+)", log.read_text())) is None:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield server, Served(address[1])
    finally:
        server.terminate()
        server.wait(timeout=60)


@pytest.fixture(autouse=True)
def callers_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", f"another-key-of-this-test, {KEY}")
    monkeypatch.delenv("METAPROBE_UPSTREAM_KEY", raising=False)


@pytest.fixture(scope="module")
def served(checkpoint: Path, upstream: tuple[Upstream, str]) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", f"another-key-of-this-test, {KEY}")
        # The keys are read once more when the server starts, and without them nothing of it would be closed at the end.
        with serving(checkpoint, upstream[1], max_body_bytes=100_000) as client:
            yield client


def verdict_in(stream: Any) -> dict[str, Any]:
    """The verdict in the chunks of a stream, wherever it stands; of several the last."""
    return [chunk.model_extra["metaprobe"] for chunk in stream if "metaprobe" in chunk.model_extra][-1]


def verdict_of(answer: Any) -> dict[str, Any]:
    return answer.model_extra["metaprobe"]
