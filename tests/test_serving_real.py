"""The proxy in front of a real server with a real model, and the program as it is started."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from served import KEY, running, small_checkpoint
from serving_clients import program

from metaprobe.llms.weights import DEFAULT_MODEL
from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.http.app import create_app
from metaprobe.production.http.settings import Settings
from metaprobe.training.evidence import Evidence

pytestmark = pytest.mark.slow

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def checkpoint(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("checkpoints") / "quality", evidence, model=DEFAULT_MODEL).path


@pytest.fixture(scope="module")
def client(checkpoint: Path, llama_server: str) -> Iterator[openai.OpenAI]:
    app = create_app(Settings(checkpoint=checkpoint, upstream=llama_server, auth=False))
    with running(app) as (url, _), openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_real_answer_has_the_verdict_that_its_logprobs_have(client: openai.OpenAI, checkpoint: Path) -> None:
    options: dict[str, Any] = {"model": DEFAULT_MODEL, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    answer = client.chat.completions.create(**options, logprobs=True, top_logprobs=1)
    verdict = answer.model_extra["metaprobe"]
    assert verdict["score"] == pytest.approx(QualityPredictor.load(checkpoint).predict(answer).score, abs=1e-6)
    assert "trained on" not in verdict["reason"]
    plain = client.chat.completions.create(**options)
    assert plain.choices[0].message.content == answer.choices[0].message.content
    assert plain.choices[0].logprobs is None
    assert plain.model_extra["metaprobe"]["score"] is not None
    alone = client.chat.completions.create(**options, logprobs=True)  # asked so, this server gives none by itself
    assert alone.model_extra["metaprobe"]["score"] is not None
    assert [entry.top_logprobs for entry in alone.choices[0].logprobs.content] == [[]] * alone.usage.completion_tokens


def test_a_real_stream_ends_with_a_verdict(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": DEFAULT_MODEL, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**options)
    *before, last = client.chat.completions.create(**options, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in before)
    assert text == whole.choices[0].message.content
    assert all(chunk.choices[0].logprobs is None for chunk in before)
    # The server gives log-probabilities that differ by up to 0.15 between a prompt read at once and from its cache.
    assert whole.model_extra["metaprobe"]["score"] is not None
    assert last.model_extra["metaprobe"]["score"] == pytest.approx(whole.model_extra["metaprobe"]["score"], abs=0.1)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_program_serves_counts_and_ends_in_good_order(checkpoint: Path, tmp_path: Path, workers: int) -> None:
    log = tmp_path / "log"
    with program(log, checkpoint, "--workers", workers, "--grace", 10) as (_, served):
        url, headers = served.url, {"authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=url, headers=headers, trust_env=False) as client:
            verdicts = [client.post("/v1/score", json=[-0.5] * 8, timeout=60).json() for _ in range(20)]
            counts = client.get("/metrics").text
        assert len({json.dumps(verdict) for verdict in verdicts}) == 1
        assert 'metaprobe_requests_total{endpoint="/v1/score",status="200"} 20.0' in counts  # of all workers
    assert KEY not in log.read_text()
