"""The server logs its answers, and takes back their labels."""

import gzip
import json
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import serving_clients
from served import KEY, TOKENS, Upstream, running
from serving_clients import LOGPROBS, PLAIN, TEXT, Served, serving, verdict_in, verdict_of
from test_serving_gate import FakeGates

from metaprobe.llms.base import LLMError
from metaprobe.production.http.app import create_app
from metaprobe.production.http.bodies import Refusal
from metaprobe.production.http.request_log import read_tags
from metaprobe.production.http.settings import Settings, SettingsError
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.overview import Span, overview

callers_keys = serving_clients.callers_keys
checkpoint = serving_clients.checkpoint
upstream = serving_clients.upstream
served = serving_clients.served


class Logged(Served):
    """A server that logs, and its log."""

    def __init__(self, url: str, path: Path) -> None:
        super().__init__(url)
        self.log = ScoreLog.open(path)

    def entry(self, request_id: str) -> Any:
        """Returns the entry of an answer; the end of a stream may reach the caller before it reaches the log."""
        for _ in range(1200):
            self.post("/v1/feedback", {"feedback": []})  # waits until the server has stored what it took
            if (entry := self.log.entry(request_id)) is not None:
                return entry
            time.sleep(0.05)
        return None


@pytest.fixture(scope="module")
def logged(checkpoint: Path, upstream: tuple[Upstream, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("log") / "scores.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", KEY)
        settings = Settings(
            checkpoint=checkpoint, upstream=upstream[1], log=str(path), log_texts=True, log_logprobs=True, log_days=9
        )
        with running(create_app(settings), lifespan="on") as (url, _):
            told = Logged(url, path)
            yield told
            told.log.close()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_through_the_proxy_is_logged_under_the_id_that_comes_with_it(logged: Logged, stream: bool) -> None:
    answer = logged.chat(stream=stream, extra_headers={"x-metaprobe-tags": "task=faq, prompt=v7"})
    verdict = verdict_in(answer) if stream else verdict_of(answer)
    entry = logged.entry(verdict["request_id"])
    assert entry is not None
    told = (verdict["score"], verdict["flagged"], verdict["checkpoint"])
    assert (entry.score, entry.flagged, entry.checkpoint) == told
    assert (entry.model, entry.finish_reason, entry.tokens) == ("m", "stop", len(TOKENS))
    assert entry.tags == {"task": "faq", "prompt": "v7"}
    assert (entry.question, entry.answer) == ("plain", TEXT)
    np.testing.assert_allclose(entry.logprobs, LOGPROBS)
    assert entry.latency_s > 0


def test_the_id_is_ours_and_in_the_header_and_the_callers_finds_the_answer_too(logged: Logged) -> None:
    answer = logged.ask(x_request_id="mine-1")
    ours = answer.headers["metaprobe-request-id"]
    assert answer.json()["metaprobe"]["request_id"] == ours != "mine-1"
    assert (logged.entry("mine-1").request_id, logged.entry(ours).callers_id) == (ours, "mine-1")
    assert logged.entry("mine-1").prompt_tokens == 3


def test_tags_may_stand_in_the_requests_metadata(logged: Logged) -> None:
    for metadata, tags in [({"metaprobe-tags": "task=a"}, {"task": "a"}), ({"user": "u1"}, {}), ([1], {}), (None, {})]:
        verdict = verdict_of(logged.chat(extra_body={"metadata": metadata}))
        assert logged.entry(verdict["request_id"]).tags == tags


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_tags_in_the_header_are_what_the_caller_wrote_in_either_coding(logged: Logged, coding: str) -> None:
    head = {"authorization": f"Bearer {KEY}", "content-type": "application/json", "x-metaprobe-tags": "task=größe"}
    sent = {name.encode(): value.encode(coding) for name, value in head.items()}
    verdict = httpx.post(f"{logged.url}/v1/score", json=LOGPROBS, headers=sent, **PLAIN).json()
    assert logged.entry(verdict["request_id"]).tags == {"task": "größe"}


@pytest.mark.parametrize(
    "given", ["faq", "a=b=c", "=b", "a b=c", ",".join(f"t{i}=1" for i in range(17)), "x=1,", "a=1, " + " " * 9000]
)
def test_tags_that_cannot_be_read_are_refused(given: str) -> None:
    with pytest.raises(Refusal) as refusal:
        read_tags(given)
    assert (refusal.value.status, refusal.value.code) == (400, "invalid_tags")


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_several_answers_has_an_id_of_its_own(logged: Logged, stream: bool) -> None:
    answer = logged.chat(n=3, stream=stream)
    verdict = verdict_in(answer) if stream else verdict_of(answer)
    ids = [one["request_id"] for one in verdict["choices"]]
    assert ids == [verdict["request_id"], f"{ids[0]}:1", f"{ids[0]}:2"]
    assert [logged.entry(one).tokens for one in ids] == [6, 5, 4]


def test_a_scored_response_is_logged_and_one_that_cannot_be_scored_too(logged: Logged) -> None:
    one = logged.post("/v1/score", LOGPROBS).json()
    assert logged.entry(one["request_id"]).score == one["score"]
    several = logged.post("/v1/score", {"responses": [LOGPROBS, []]}).json()["verdicts"]
    bad = logged.entry(several[1]["request_id"])
    assert (bad.score, bad.reason) == (None, several[1]["reason"])
    assert several[1]["request_id"] == f"{several[0]['request_id']}:1"


def test_an_answer_without_log_probabilities_is_logged_with_the_reason(logged: Logged) -> None:
    verdict = verdict_of(logged.chat("refuses-logprobs"))
    entry = logged.entry(verdict["request_id"])
    assert (entry.score, entry.model) == (None, "m")
    assert "the upstream answered 400 to a request with logprobs; asked again without" in entry.reason


def test_feedback_comes_back_and_a_later_one_wins(logged: Logged) -> None:
    request_id = verdict_of(logged.chat())["request_id"]
    answer = logged.post("/v1/feedback", {"request_id": request_id, "label": "right", "who": "ada", "time": 5})
    assert (answer.status_code, answer.json()) == (200, {"stored": 1, "unknown": 0})
    several = [{"request_id": request_id, "label": False, "who": "bob"}, {"request_id": "never-seen", "label": None}]
    assert logged.post("/v1/feedback", {"feedback": several}).json() == {"stored": 2, "unknown": 1}
    judged = {"request_id": request_id, "label": 1, "who": "gpt", "source": "judge", "comment": "fine"}
    assert logged.post("/v1/feedback", judged).json() == {"stored": 1, "unknown": 0}
    (label,) = [one for one in logged.log.current_labels() if one.request_id == request_id]
    assert (label.value, label.who) == (0, "bob"), "a judge's label does not take the place of a person's"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "the body is not JSON"),
        ({"request_id": "a"}, 400, "missing required field `label`"),
        ({"label": 1}, 400, "missing required field `request_id`"),
        ({"feedback": 3}, 400, "expected"),
        ({"request_id": "a", "label": 1, "feedback": []}, 400, "a label stands beside a list of labels"),
        ({"feedback": [3]}, 400, "expected"),
        ({"request_id": "a", "label": 2}, 422, "request a: label 2; expected 1 or right"),
        ({"request_id": "a", "label": "so so"}, 422, "label 'so so'"),
        ({"request_id": "a", "label": 1, "time": "now"}, 400, "$.time`; expected"),
        ({"request_id": "a", "label": 1, "time": -1}, 422, "expected seconds since 1970"),
        ({"request_id": "a", "label": 1, "when": 1e9}, 400, "unknown field `when`"),
        ({"request_id": "a", "label": 1, "direction": "minimize"}, 400, "unknown field `direction`"),
        ({"request_id": "a", "label": 1, "w" * 9000: 1}, 400, "seconds since 1970"),
        ({"request_id": "a", "label": 1, "source": "oracle"}, 400, "'oracle' - at `$.source`; expected"),
        ({"request_id": "", "label": 1}, 422, "the id that came with the verdict"),
        ({"request_id": "a" * 2001, "label": 1}, 422, "a request id has 2001 characters"),
        ({"feedback": [{"request_id": "a", "label": 1}] * 1025}, 413, "at most 1024"),
    ],
)
def test_feedback_that_is_none_is_refused_with_what_was_expected(
    logged: Logged, body: object, status: int, message: str
) -> None:
    answer = logged.post("/v1/feedback", body)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert len(answer.content) < 1000


def test_a_compressed_request_is_refused_and_never_unpacked(logged: Logged) -> None:
    bomb = gzip.compress(b'{"request_id": "' + b"0" * (64 << 20))
    assert len(bomb) < 100_000
    for path in ("/v1/feedback", "/v1/score", "/v1/chat/completions"):
        answer = logged.post(path, bomb, content_encoding="gzip")
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_encoding")


def test_labels_that_the_log_does_not_take_now_are_refused_for_the_time_being_and_hold_up_nothing_else(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", KEY)
    monkeypatch.setattr("metaprobe.production.http.request_log.WAIT_S", 0.2)
    monkeypatch.setattr("metaprobe.production.http.feedback._WAIT_S", 0.05)
    path = tmp_path / "scores.sqlite"
    label = {"request_id": "a", "label": 1}
    with running(create_app(Settings(checkpoint=checkpoint, log=str(path))), lifespan="on") as (url, _):
        told = Served(url)
        assert told.post("/v1/feedback", label).json() == {"stored": 1, "unknown": 1}
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(20) as threads:
            several = [threads.submit(told.post, "/v1/feedback", label) for _ in range(20)]
            assert told.post("/v1/score", {"logprobs": [-0.1]}).status_code in (200, 422)  # before they are answered
            refused = [one.result() for one in several]
        assert {answer.status_code for answer in refused} == {503}
        assert {answer.headers["retry-after"] for answer in refused} == {"5"}
        messages = [answer.json()["error"]["message"] for answer in refused]
        assert any("requests wait for the score log already" in one for one in messages)
        assert any("cannot be written now; the server's log says why" in one for one in messages)
        assert not any(str(tmp_path) in one for one in messages)
        holder.execute("COMMIT")
        holder.close()
        assert told.post("/v1/feedback", label).json()["stored"] == 1
    with ScoreLog.open(path, entries=False) as log:
        assert len(log.tables.read("SELECT 1 FROM labels")) == 2  # of those that were refused none was stored


def test_feedback_asks_for_a_key_and_for_a_log(logged: Logged, served: Served) -> None:
    assert logged.post("/v1/feedback", {}, authorization="Bearer wrong").status_code == 401
    answer = served.post("/v1/feedback", {"request_id": "a", "label": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_log")


def test_texts_and_log_probabilities_are_logged_only_where_asked_for(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    other = choice() | {"message": {"content": "it's another secret-word"}}  # whose tokens do not spell it
    with serving(checkpoint, log=str(path)) as client:
        verdict = client.post("/v1/score", {"choices": [choice()]}).json()
        quoting = client.post("/v1/score", {"responses": [{"choices": [other]}]}).json()["verdicts"][0]
    with ScoreLog.open(path) as log:  # the server stored it when it ended
        entry, unread = log.entry(verdict["request_id"]), log.entry(quoting["request_id"])
    assert entry is not None
    assert unread is not None
    assert "another" in quoting["reason"]
    assert unread.reason.startswith(quoting["reason"][:40])
    assert "another" not in unread.reason
    assert (entry.answer, entry.question, entry.logprobs, entry.tokens) == (None, None, None, 1)
    assert b"secret-word" not in path.read_bytes()


def choice() -> dict[str, Any]:
    content = [{"token": "secret-word", "logprob": -0.1}]
    return {"message": {"content": "secret-word"}, "logprobs": {"content": content}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"log_texts": True}, "no log is given"),
        ({"log": "x", "log_days": 0}, "log_days is 0"),
        ({"log": "postgresql+psycopg://u:secret@h/d"}, "PGPASSWORD"),
    ],
)
def test_settings_of_the_log_that_cannot_be_meant_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings(checkpoint="bundled:x", **given)


# Cost, and what the gate saved


PRICES = {"m": {"prompt": 1000.0, "completion": 2000.0}}
COST = (3 * 1000 + len(TOKENS) * 2000) / 1e6
"""Cost of every answer of the upstream, which counts three tokens read."""


@contextmanager
def pricing(
    checkpoint: Path, upstream: tuple[Upstream, str], folder: Path, prices: object = PRICES, gates: Any = None
) -> Iterator[Logged]:
    file, path = folder / "prices.json", folder / "scores.sqlite"
    file.write_text(json.dumps(prices))
    settings = Settings(checkpoint=checkpoint, upstream=upstream[1], log=str(path), prices=file)
    with running(create_app(settings, gates=gates), lifespan="on") as (url, _):
        logged = Logged(url, path)
        yield logged
        logged.log.close()


def test_an_answer_costs_what_its_price_and_the_upstreams_count_say(
    checkpoint: Path, upstream: tuple[Upstream, str], tmp_path: Path
) -> None:
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    with pricing(checkpoint, upstream, tmp_path) as logged:
        whole = verdict_of(logged.chat())["request_id"]
        streamed, uncounted = (
            verdict_in(chunk for chunk in logged.chat(**more))["request_id"] for more in (usage, {"stream": True})
        )
        assert logged.entry(whole).cost_usd == pytest.approx(COST)
        assert logged.entry(streamed).cost_usd == pytest.approx(COST)
        assert logged.entry(uncounted).cost_usd is None, "the upstream did not count what it read"
        several = [
            verdict_of(logged.chat(n=3))["choices"],
            verdict_in(chunk for chunk in logged.chat(n=3, **usage))["choices"],
        ]
        for choices in several:
            costs = [logged.entry(one["request_id"]).cost_usd for one in choices]
            assert costs == [pytest.approx(COST), 0, 0], "one count is of them all"
        columns = logged.log.columns()
        totals = overview(logged.log, Span(columns.time[0] - 1, columns.time[-1] + 1))["totals"]
    assert (totals["answers"], totals["priced"]) == (9, 8)
    assert totals["cost_usd"] == pytest.approx(4 * COST)


def test_each_response_of_a_batch_bears_its_own_cost(
    checkpoint: Path, upstream: tuple[Upstream, str], tmp_path: Path
) -> None:
    response = {"model": "m-2026-01-31", "choices": [choice()], "usage": {"prompt_tokens": 10, "completion_tokens": 1}}
    other = {**response, "model": "unheard-of"}
    with pricing(checkpoint, upstream, tmp_path) as logged:
        verdicts = logged.post("/v1/score", {"responses": [response, response, other]}).json()["verdicts"]
        costs = [logged.entry(one["request_id"]).cost_usd for one in verdicts]
    assert costs == [pytest.approx(0.012), pytest.approx(0.012), None]  # a dated snapshot costs what its model does


def test_prices_are_read_before_anything_is_served(
    checkpoint: Path, upstream: tuple[Upstream, str], tmp_path: Path
) -> None:
    with pytest.raises(LLMError, match="no prices in"), pricing(checkpoint, upstream, tmp_path, {"m": 3}):
        pass
    with pytest.raises(SettingsError, match="no log is given"):
        Settings(checkpoint="bundled:x", prices=tmp_path / "prices.json")


@pytest.mark.parametrize(("most", "saved"), [({}, 17), ({"max_tokens": 9}, 6), ({"max_completion_tokens": 2}, 0)])
def test_what_the_gate_saved_is_estimated_from_answers_that_went_on_and_never_above_the_limit(
    checkpoint: Path, upstream: tuple[Upstream, str], tmp_path: Path, most: dict[str, int], saved: int
) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        for number in range(40):  # half of them as long as 20, half of them shorter than what was written
            shape = {"tokens": 20 if number < 30 else 2, "action": ""}
            log.write(known(f"on-{number}", model="m", **shape))
        log.write(known("ended", model="m", tokens=5000, action="stop"))
        log.write(known("shadow", model="m", tokens=5000, action="", shadow_of="on-1"))
        log.write(known("other", model="other", tokens=5000, action=""))
    with pricing(checkpoint, upstream, tmp_path, gates=FakeGates("stop")) as logged:
        verdict = verdict_in(logged.chat(stream=True, **most))
        entry = logged.entry(verdict["request_id"])
        totals = overview(logged.log, Span(entry.time - 1, entry.time + 1))["totals"]
    assert (entry.action, entry.tokens, entry.model, entry.cost_usd) == ("stop", 3, "m", None)
    assert entry.tokens_saved == saved
    assert (totals["tokens_saved"], totals["spared"]) == (saved, 1)
    assert verdict["gate"] == {"action": "stop", "tokens": 3}


def known(request_id: str, **more: Any) -> Entry:
    return Entry(request_id=request_id, time=1.7e9, checkpoint="c" * 64, score=0.5, **more)
