"""The one line by which `watch` and the callbacks of other libraries log their verdicts."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import serving_clients
import watched_streams
from served import TOKENS
from serving_clients import LOGPROBS, TEXT
from watched_streams import FakeGate, ask

from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.scored_answer import Scored
from metaprobe.probes.verdict import Verdict
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.verdict_export import log_verdicts
from metaprobe.routing.watch_stream import watch

predictor = watched_streams.predictor
client = watched_streams.client
upstream = serving_clients.upstream


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ScoreLog]:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        yield log


def stored(log: ScoreLog, request_id: str) -> Entry:
    assert log.flush()
    entry = log.entry(request_id)
    assert entry is not None
    return entry


def test_a_watched_stream_is_logged_under_its_servers_id(
    client: openai.OpenAI, predictor: QualityPredictor, log: ScoreLog
) -> None:
    hand_over = log_verdicts(log, tags={"task": "faq"}, texts=True, logprobs=True)
    list(watched := watch(ask(client), predictor, on_verdict=hand_over))
    entry = stored(log, "c-1")
    assert watched.verdict is not None
    assert (entry.score, entry.model, entry.tags) == (watched.verdict.score, "m", {"task": "faq"})
    assert (entry.tokens, entry.finish_reason, entry.answer) == (len(TOKENS), "stop", TEXT)
    assert entry.logprobs == pytest.approx(LOGPROBS)


def test_all_that_a_verdict_says_is_in_its_entry(log: ScoreLog) -> None:
    verdict = Verdict(0.25, {"brief": 0.75}, critical=0.5, flagged=True, checkpoint="c" * 64)
    log_verdicts(log)(Scored(verdict, "", "r", "m"))
    entry = stored(log, "r")
    assert entry.heads == verdict.heads
    for name in ("score", "critical", "flagged", "checkpoint"):
        assert getattr(entry, name) == getattr(verdict, name), name


def test_texts_stay_out_unless_they_are_asked_for(
    client: openai.OpenAI, predictor: QualityPredictor, log: ScoreLog
) -> None:
    list(watch(ask(client), predictor, on_verdict=log_verdicts(log)))
    entry = stored(log, "c-1")
    assert (entry.answer, entry.logprobs, entry.tokens) == (None, None, len(TOKENS))


def test_what_the_gate_ended_and_what_has_no_verdict_are_logged_too(
    client: openai.OpenAI, predictor: QualityPredictor, log: ScoreLog
) -> None:
    list(watch(ask(client), predictor, FakeGate(3, "escalate"), on_verdict=log_verdicts(log)))
    hand_over = log_verdicts(log, tags=lambda scored: {"node": scored.context["node"]})
    hand_over(Scored(None, "the server gave none", "", "m", {"run_id": 17, "node": "draft"}))
    gated, without = stored(log, "c-1"), stored(log, "17")
    assert (gated.action, gated.score, gated.flagged) == ("escalate", FakeGate.score, True)
    assert (without.score, without.reason, without.tags) == (None, "the server gave none", {"node": "draft"})


def test_an_answer_whose_alternatives_cannot_be_read_is_logged_with_what_was_scored(
    predictor: QualityPredictor, log: ScoreLog
) -> None:
    entries = [
        {"token": "t", "logprob": -0.3 - i, "top_logprobs": [{"token": "u", "logprob": "none"}]} for i in range(6)
    ]
    answer = {"index": 0, "message": {"content": "t" * 6}, "logprobs": {"content": entries}, "finish_reason": "stop"}
    scored = Scored.of(predictor, {"id": "c-2", "model": "m", "choices": [answer]})
    log_verdicts(log, texts=True)(scored)
    entry = stored(log, "c-2")
    assert scored.verdict is not None
    assert (entry.score, entry.tokens, entry.answer) == (scored.verdict.score, 6, "t" * 6)


def test_answers_without_any_id_are_told_apart(predictor: QualityPredictor, log: ScoreLog) -> None:
    for _ in range(2):
        log_verdicts(log)(Scored.of(predictor, LOGPROBS))
    assert log.flush()
    assert len(log.columns()) == 2
