"""Shared by tests of watched streams: a client and its questions, a predictor, and a gate that does as told."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from served import Upstream, small_checkpoint

from metaprobe.probes.quality import QualityPredictor
from metaprobe.training.evidence import Evidence


@pytest.fixture(scope="module")
def predictor(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> QualityPredictor:
    return QualityPredictor(small_checkpoint(tmp_path_factory.mktemp("checkpoints") / "quality", evidence))


@pytest.fixture
def client(upstream: tuple[Upstream, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=upstream[1], api_key="k", max_retries=0, timeout=20) as client:
        yield client


def ask(client: Any, said: str = "plain", **more: Any) -> Any:
    """A stream, or what is to be awaited for one."""
    options = {"model": "m", "messages": [{"role": "user", "content": said}], "stream": True, "logprobs": True} | more
    return client.chat.completions.create(**options)


class FakeGate:
    """Says `action` from the token `at` on."""

    score = 0.125

    def __init__(self, at: int, action: str = "stop") -> None:
        self.at, self.action = at, action
        self.pushed: list[float] = []
        self.started_for: list[str] = []

    def start(self, *, model: str = "") -> "FakeGate":
        self.started_for.append(model)
        return self

    def push(self, logprob: float) -> str:
        self.pushed.append(logprob)
        return self.action if len(self.pushed) >= self.at else "continue"

    @property
    def tokens_seen(self) -> int:
        return len(self.pushed)

    @property
    def fired_at(self) -> int | None:
        return self.at if len(self.pushed) >= self.at else None


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
