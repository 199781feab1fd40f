"""Parts of the server, each alone: turns of bodies, batches, choices, what is asked for, and how uvicorn is told."""

import asyncio
import threading
from typing import Any

import pytest
import serving_clients
from starlette.testclient import TestClient

from metaprobe.checkpoints import ContractMismatch
from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.http import bodies as module
from metaprobe.production.http.app import create_app
from metaprobe.production.http.bodies import Refusal
from metaprobe.production.http.completion_json import MAX_UNCOUNTED_COMMAS, batch
from metaprobe.production.http.settings import Settings
from metaprobe.routing.watch_stream import GatedAnswer

checkpoint = serving_clients.checkpoint
predictor = serving_clients.predictor
callers_keys = serving_clients.callers_keys


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
    assert [asyncio.run(where(module.LOOP_BYTES + more)) for more in (0, 1)] == [True, False]


def test_without_an_upstream_only_scoring_is_there(predictor: QualityPredictor, checkpoint: Any) -> None:
    app = create_app(Settings(checkpoint=checkpoint, auth=False), predictor=predictor)
    with TestClient(app, base_url="http://localhost") as client:
        for answer in (client.get("/v1/models"), client.get("/v1/models/m"), client.post("/v1/chat/completions")):
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "no_upstream"
        health = client.get("/healthz").json()
        assert health == {"status": "ok", "checkpoint": predictor.checkpoint.digest, "upstream": False}
        assert client.post("/v1/score", json=[-0.5, -0.25, -0.5]).json()["score"] is not None


def test_running_out_of_files_is_one_line_and_other_errors_stay_as_they_were(
    predictor: QualityPredictor, checkpoint: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(Settings(checkpoint=checkpoint, auth=False), predictor=predictor)
    caplog.clear()  # a start says which checkpoint judges, where another test has set the level of the log

    async def lives() -> None:
        async with app.router.lifespan_context(app):
            full = {"message": "socket.accept() out of system resource", "exception": OSError("too many")}
            for _ in range(2048):
                asyncio.get_running_loop().call_exception_handler(full)
            asyncio.get_running_loop().call_exception_handler({"message": "something else"})

    asyncio.run(lives())
    lines = ["no new connection can be taken in: too many", "something else"]
    assert [record.getMessage() for record in caplog.records] == lines


class Fails:
    """Gates none of which can judge this model."""

    def start(self, *, model: str = "") -> Any:
        raise ContractMismatch(f"made for another model than {model}")


def test_a_gate_that_cannot_judge_says_so_and_never_stops() -> None:
    gated = GatedAnswer(Fails())
    gated.push([{"logprob": -1.0}], "m", shown=True)
    gated.push([{"logprob": -1.0}], "m", shown=True)
    assert (gated.action, gated.note) == ("", "not gated: made for another model than m")


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
    for wide in (b"1,2,3", b"NaN,2,3", b"[]," * (MAX_UNCOUNTED_COMMAS + 1) + b"1"):
        with pytest.raises(Refusal) as refused:
            batch(many % wide, 2)
        assert (refused.value.status, refused.value.code) == (413, "batch_too_large")
    nested = b"[%s]" % (b"[]," * (MAX_UNCOUNTED_COMMAS + 1) + b'"],["')
    assert batch(many % nested, 2) == [nested]
