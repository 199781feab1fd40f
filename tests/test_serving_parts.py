"""Parts of the server, each alone: which headers pass, what may be scored, who is asked, and how uvicorn is told."""

import asyncio
import json
import threading
from typing import Any

import pytest
import serving_clients
from starlette.testclient import TestClient

from metaprobe.checkpoints import ContractMismatch
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import InvalidResponse
from metaprobe.serving.http import bodies as module
from metaprobe.serving.http.app import create_app
from metaprobe.serving.http.bodies import LARGE_BYTES, aside
from metaprobe.serving.http.judges import Allowance, Scorer
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.refusal import Refusal, error_object
from metaprobe.serving.http.run_server import server_config
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.upstream import to_caller, to_upstream
from metaprobe.serving.http.wire import MOST_UNCOUNTED, asked, batch, choices_of, combine_verdicts
from metaprobe.serving.watch_stream import GatedAnswer, watch

checkpoint = serving_clients.checkpoint
predictor = serving_clients.predictor
callers_keys = serving_clients.callers_keys

OWN = frozenset({"mine"})


def up(given: dict[str, str], **options: Any) -> dict[str, str]:
    return to_upstream(given, **{"upstream_key": "", "own_keys": OWN, **options})


def test_a_key_for_this_server_stays_here_and_any_other_goes_on() -> None:
    assert "authorization" not in up({})
    assert "authorization" not in up({"authorization": "Bearer mine"})
    assert "authorization" not in up({"authorization": "Bearer  mine "})
    assert up({"authorization": "Bearer theirs"})["authorization"] == "Bearer theirs"
    assert up({"authorization": "Bearer theirs"}, upstream_key="up")["authorization"] == "Bearer up"
    assert up({}, upstream_key="up")["authorization"] == "Bearer up"


def test_headers_that_are_known_reach_the_upstream_and_others_stay() -> None:
    given = {
        "user-agent": "a", "x-stainless-lang": "python", "x-client-request-id": "7", "traceparent": "t",
        "cookie": "c", "x-forwarded-for": "10.0.0.1", "x-tenant": "x", "accept": "text/plain", "accept-encoding": "br",
    }  # fmt: skip
    fixed = {"content-type": "application/json", "accept-encoding": "identity", "accept": "text/plain"}
    passed = {name: given[name] for name in ("user-agent", "x-stainless-lang", "x-client-request-id", "traceparent")}
    assert up(given) == passed | fixed
    assert up(given, more=["X-Tenant"]) == passed | fixed | {"x-tenant": "x"}
    assert up({})["accept"] == "*/*"


def test_headers_that_a_client_needs_come_back_byte_for_byte() -> None:
    given = [
        (b"Content-Type", b"application/json"), (b"Retry-After", b"3"), (b"X-RateLimit-Limit", b"5"),
        (b"OpenAI-Version", b"1"), (b"X-Request-Id", b"\xe9"), (b"Set-Cookie", b"c"), (b"Content-Length", b"9"),
    ]  # fmt: skip
    assert to_caller(given) == {
        "content-type": "application/json",
        "retry-after": "3",
        "x-ratelimit-limit": "5",
        "openai-version": "1",
        "x-request-id": "é",
    }


def test_as_many_tokens_as_are_allowed_are_scored_and_not_one_more() -> None:
    allowance = Allowance(10)
    allowance.take(4)
    allowance.take(6)
    assert (allowance.asked, allowance.exceeded) == (10, False)
    with pytest.raises(InvalidResponse, match="11 tokens to score, and at most 10 are scored in one request"):
        allowance.take(1)
    assert allowance.exceeded


def test_each_answer_has_an_allowance_of_its_own_unless_one_is_shared(predictor: QualityPredictor) -> None:
    scorer = Scorer(predictor, Metrics(), max_tokens=5)
    assert scorer.verdict([-0.5] * 5)["score"] is not None
    assert scorer.verdict([-0.5] * 5)["score"] is not None
    assert scorer.verdict([-0.5] * 6)["score"] is None
    shared = scorer.allowance()
    assert scorer.verdict([-0.5] * 5, shared)["score"] is not None
    assert "6 tokens to score" in scorer.verdict([-0.5], shared)["reason"]


def test_a_large_body_is_worked_on_in_a_thread_and_a_small_one_here() -> None:
    async def where(size: int) -> bool:
        return await aside(size, threading.current_thread) is threading.main_thread()

    assert asyncio.run(where(LARGE_BYTES))
    assert not asyncio.run(where(LARGE_BYTES + 1))


def test_others_have_their_turn_between_bodies_that_are_scored_and_medium_ones_have_a_thread() -> None:
    async def turns() -> list[str]:
        scoring, taken = module.Scoring(), []

        async def others() -> None:
            for _ in range(20):
                taken.append("other")
                await asyncio.sleep(0)

        await asyncio.gather(*(scoring.of(9, lambda: taken.append("scored")) for _ in range(3)), others())
        return taken

    async def where(size: int) -> bool:
        return await module.Scoring().of(size, threading.current_thread) is threading.main_thread()

    assert "scored scored" not in " ".join(asyncio.run(turns()))
    assert [asyncio.run(where(module.SCORED_BYTES + more)) for more in (0, 1)] == [True, False]


def test_no_more_large_bodies_than_two_are_in_work_at_once() -> None:
    inside, most, lock, meet = 0, 0, threading.Lock(), threading.Barrier(module.AT_ONCE)

    def work() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        meet.wait(20)
        with lock:
            inside -= 1

    async def many() -> None:
        await asyncio.gather(*(aside(LARGE_BYTES + 1, work) for _ in range(4)))

    asyncio.run(many())
    assert most == module.AT_ONCE == 2


def test_without_an_upstream_only_scoring_is_there(predictor: QualityPredictor, checkpoint: Any) -> None:
    app = create_app(Settings(checkpoint=checkpoint, auth=False), predictor=predictor)
    with TestClient(app, base_url="http://localhost") as client:
        for answer in (client.get("/v1/models"), client.get("/v1/models/m"), client.post("/v1/chat/completions")):
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "no_upstream"
        health = client.get("/healthz").json()
        assert health == {"status": "ok", "checkpoint": predictor.checkpoint.digest, "upstream": False}
        assert client.post("/v1/score", json=[-0.5, -0.25, -0.5]).json()["score"] is not None


def test_running_out_of_files_is_watched_for_from_the_start(
    predictor: QualityPredictor, checkpoint: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(Settings(checkpoint=checkpoint, auth=False), predictor=predictor)

    async def lives() -> None:
        async with app.router.lifespan_context(app):
            said = {"message": "socket.accept() out of system resource", "exception": OSError("too many")}
            asyncio.get_running_loop().call_exception_handler(said)

    asyncio.run(lives())
    assert [record.getMessage() for record in caplog.records] == ["no new connection can be taken in: too many"]


class Fails:
    """Gates none of which can judge this model."""

    def start(self, *, model: str = "") -> Any:
        raise ContractMismatch(f"made for another model than {model}")


class Counts:
    """A gate that stops at once; it counts what it is shown."""

    note = "a note"
    score, fired_at, tokens_seen = 0.25, 3, 3

    def __init__(self) -> None:
        self.seen: list[tuple[float, list[float] | None]] = []

    def start(self, *, model: str = "") -> "Counts":
        return self

    def push(self, logprob: float, top: list[float] | None = None) -> str:
        self.seen.append((logprob, top))
        return "stop"


def test_a_gate_that_cannot_judge_says_so_and_never_stops() -> None:
    gated = GatedAnswer(Fails())
    gated.push([{"logprob": -1.0}], "m", shown=True)
    gated.push([{"logprob": -1.0}], "m", shown=True)
    assert (gated.action, gated.note) == ("", "not gated: made for another model than m")


def test_a_gate_decides_once_and_acts_where_text_is_shown() -> None:
    gate = Counts()
    gated = GatedAnswer(gate)
    gated.push([{"logprob": -1.0, "top_logprobs": [{"logprob": -3.0}, {"logprob": -2.0}]}], "m", shown=False)
    assert gated.action == ""
    gated.push([{"logprob": -1.0}], "m", shown=True)
    gated.push([{"logprob": -1.0}], "m", shown=True)
    assert gate.seen == [(-1.0, [-2.0, -3.0])]
    assert gated.action == "stop"
    score, reason, details = gated.verdict()
    assert (score, details) == (0.25, {"action": "stop", "tokens": 3})
    assert reason == "stopped early by the gate after 3 tokens, at P(good) 0.250; a note"
    broken = GatedAnswer(Counts())
    broken.push([{"token": "without a log-probability"}], "m", shown=True)
    broken.push([{"logprob": -1.0}], "m", shown=True)
    assert broken.action == ""


def test_a_watched_stream_hands_on_what_the_stream_has_and_hides_nothing_of_its_own(
    predictor: QualityPredictor,
) -> None:
    class Stream(list[Any]):
        response, _secret = "of the client", 7

    watched = watch(Stream(), predictor)
    assert watched.response == "of the client"
    for name in ("_secret", "absent"):
        with pytest.raises(AttributeError, match=name):
            getattr(watched, name)


def test_uvicorn_is_told_to_say_nothing_believe_nothing_and_make_the_application_itself() -> None:
    config = server_config(Settings(checkpoint="c"), log_config=None)
    assert config.factory is True
    assert (config.access_log, config.server_header, config.proxy_headers, config.ws) == (False, False, False, "none")
    assert config.timeout_keep_alive > 60


def test_an_error_is_the_callers_the_upstreams_or_ours() -> None:
    kinds = {status: error_object(status, "upstream_cut", "m")["type"] for status in (499, 500)}
    assert kinds == {499: "invalid_request_error", 500: "upstream_error"}
    assert error_object(500, "internal", "m") == {"message": "m", "type": "error", "param": None, "code": "internal"}


def test_what_is_bounded_when_nothing_is_said_of_it() -> None:
    found = Settings(checkpoint="c")
    assert (found.host, found.port, found.auth, found.workers, found.on_mismatch) == (
        "127.0.0.1",
        8080,
        True,
        1,
        "warn",
    )
    assert (found.max_body_bytes, found.max_answer_bytes, found.max_batch) == (16 << 20, 64 << 20, 1024)
    assert (found.max_scored_tokens, found.max_concurrency, found.max_connections) == (1 << 20, 256, 512)
    assert (found.timeout_s, found.connect_timeout_s, found.header_timeout_s) == (600, 10, 15)
    assert (found.body_timeout_s, found.send_timeout_s, found.grace_s, found.retry_after_s) == (30, 120, 60, 1)
    assert (found.gate_stop, found.gate_escalate, found.gate_finish_reason) == (0.05, None, "content_filter")
    assert (found.top_logprobs, found.forward_headers, found.upstream) == (5, (), "")
    assert (found.api_key_env, found.upstream_key_env) == ("METAPROBE_API_KEY", "METAPROBE_UPSTREAM_KEY")


def test_each_choice_becomes_a_completion_and_one_stays_as_it_came() -> None:
    one, two = b'{"id":"a",  "choices":[{"index":0}]}', b'{"id":"a","choices":[{"index":0},{"index":1}]}'
    assert choices_of(one) == [one]
    assert [json.loads(body) for body in choices_of(two)] == [
        {"id": "a", "n": 2, "choices": [{"index": 0}]},
        {"id": "a", "n": 2, "choices": [{"index": 1}]},
    ], "the usage is of both"
    assert choices_of(b'{"id":"a"}') == [b'{"id":"a"}']
    first, second = {"score": 0.5}, {"score": 0.25}
    assert combine_verdicts([first]) == first
    assert combine_verdicts([first, second]) == {"score": 0.5, "choices": [first, second]}


def test_a_batch_is_an_object_with_responses_and_anything_else_is_one_response() -> None:
    assert batch(b"[-0.5, 1e400]", 2) is None
    assert batch(b' {"choices": []}', 2) is None
    assert batch(b'{"responses": [[-0.5], {"a": 1}]}', 2) == [b"[-0.5]", b'{"a": 1}']
    assert batch(b'{"responses": []}', 2) == []
    assert batch(b'{"responses": [NaN, 1]}', 2) == [b"NaN", b"1"]
    for wrong, code in ((b"{", "invalid_json"), (b'{"responses": 7}', "invalid_request")):
        with pytest.raises(Refusal) as refused:
            batch(wrong, 2)
        assert (refused.value.status, refused.value.code) == (400, code)
    many = b'{"responses": [%s]}'
    for wide in (b"1,2,3", b"NaN,2,3", b"[]," * (MOST_UNCOUNTED + 1) + b"1"):
        with pytest.raises(Refusal) as refused:
            batch(many % wide, 2)
        assert (refused.value.status, refused.value.code) == (413, "batch_too_large")
    nested = b"[%s]" % (b"[]," * (MOST_UNCOUNTED + 1) + b'"],["')
    assert batch(many % nested, 2) == [nested]


def test_what_is_asked_for_beside_what_the_caller_wants() -> None:
    bare = asked(b'{"model":"m","temperature":0.70}', top_logprobs=5)
    assert bare.sent == b'{"model":"m","temperature":0.70,"logprobs":true,"top_logprobs":5}'
    assert (bare.changed, bare.several, bare.wants_logprobs, bare.wants_top) == (True, False, False, False)
    assert json.loads(asked(b"{}", top_logprobs=0).sent) == {"logprobs": True, "top_logprobs": 1}
    some = asked(b'{"logprobs":true,"top_logprobs":0,"n":2}', top_logprobs=3)
    assert json.loads(some.sent)["top_logprobs"] == 3
    assert (some.several, some.wants_logprobs, some.wants_top) == (True, True, False)
    whole = asked(b'{"logprobs":true,"top_logprobs":2,"n":1}', top_logprobs=3)
    assert (whole.changed, whole.several, whole.wants_top) == (False, False, True)
    for nothing in (b"false", b"null"):
        assert not asked(b'{"logprobs":' + nothing + b',"top_logprobs":2}', top_logprobs=0).wants_logprobs
    with pytest.raises(Refusal, match="the body is not a JSON object"):
        asked(b"[]", top_logprobs=0)
