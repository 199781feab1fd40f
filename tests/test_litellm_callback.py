"""A call that LiteLLM hands to its callback is scored once and told to every listener. LiteLLM's own class is a
stand-in here, for its import takes ten seconds; the real one is asked in `test_integrations`."""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import watched_streams
from served import chunks, completion
from serving_clients import LOGPROBS

from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.scored_answer import Scored

predictor = watched_streams.predictor

WHOLE = completion({"model": "m", "logprobs": True})
LIBRARY, CALLBACK = "litellm.integrations.custom_logger", "metaprobe.production.litellm_callback"


class CustomLogger:
    def __init__(self) -> None:
        self.message_logging = True  # which LiteLLM reads of every callback


@pytest.fixture(scope="module")
def callback() -> Iterator[Any]:
    library: Any = ModuleType(LIBRARY)
    library.CustomLogger = CustomLogger
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, LIBRARY, library)
        patch.delitem(sys.modules, CALLBACK, raising=False)
        yield importlib.import_module(CALLBACK)
        sys.modules.pop(CALLBACK)  # the next import is of the real one


def call(identity: str | None = "c", kind: str = "completion", **more: Any) -> dict[str, Any]:
    """Makes LiteLLM's record of a call."""
    return {"litellm_call_id": identity, "call_type": kind, "litellm_params": {"metadata": {"mine": 1}}, **more}


def log(logger: Any, kwargs: dict[str, Any], response: Any = WHOLE) -> None:
    logger.log_success_event(kwargs, response, None, None)


def alog(logger: Any, kwargs: dict[str, Any], response: Any = WHOLE) -> None:
    asyncio.run(logger.async_log_success_event(kwargs, response, None, None))


def awaited(handed: list[Scored]) -> Any:
    async def take(scored: Scored) -> None:
        await asyncio.sleep(0)
        handed.append(scored)

    return take


@pytest.mark.parametrize("ended", [log, alog])
def test_a_call_is_scored_and_later_callbacks_find_the_verdict(
    callback: Any, predictor: QualityPredictor, ended: Any
) -> None:
    handed: list[Scored] = []
    kwargs = call()
    logger = callback.VerdictLogger(predictor, on_verdict=handed.append)
    ended(logger, kwargs)
    (scored,) = handed
    assert scored.verdict == predictor.predict(LOGPROBS)
    assert (scored.context["litellm_call_id"], scored.reason) == ("c", "")
    assert kwargs["litellm_params"]["metadata"] == {"mine": 1, "metaprobe": scored.as_metadata()}
    assert scored.context["metadata"] is kwargs["litellm_params"]["metadata"]
    assert logger.message_logging  # it is one of LiteLLM's own
    assert logger.checkpoint == predictor.checkpoint.digest


@pytest.mark.parametrize("ended", [log, alog])
def test_the_verdict_is_in_the_metadata_where_nobody_listens(
    callback: Any, predictor: QualityPredictor, ended: Any
) -> None:
    for params in ({}, {"metadata": None}):
        kwargs = call(litellm_params=params)
        ended(callback.VerdictLogger(predictor), kwargs)
        assert kwargs["litellm_params"]["metadata"]["metaprobe"]["score"] is not None
    kwargs = call()
    del kwargs["litellm_params"]
    ended(callback.VerdictLogger(predictor), kwargs)
    assert kwargs["litellm_params"]["metadata"]["metaprobe"]["score"] is not None


@pytest.mark.parametrize("ended", [log, alog])
def test_of_a_call_that_litellm_logs_twice_there_is_one_verdict(
    callback: Any, predictor: QualityPredictor, ended: Any
) -> None:
    handed: list[Scored] = []
    logger = callback.VerdictLogger(predictor, on_verdict=handed.append)
    for kwargs in (call("a"), call("a", "acompletion"), call("b")):
        ended(logger, kwargs)
    assert [scored.context["litellm_call_id"] for scored in handed] == ["a", "b"]
    for identity in (None, "", None, ""):  # nothing to know them by, so they are all told
        ended(logger, call(identity))
    assert len(handed) == 6


def test_what_is_no_answer_is_passed_over(callback: Any, predictor: QualityPredictor) -> None:
    handed: list[Scored] = []
    logger = callback.VerdictLogger(predictor, on_verdict=handed.append)
    for kind in ("embedding", "aimage_generation", ""):
        log(logger, call("c", kind))
        alog(logger, call("c", kind))
    assert not handed
    log(logger, call("c", "aresponses"))
    assert len(handed) == 1  # its id was not taken for one that is known


@pytest.mark.parametrize(
    ("answer", "stream", "message"),
    [
        ([SimpleNamespace(logprobs=None)], True, "without its log-probabilities: iterate over"),
        ([SimpleNamespace()], True, "without its log-probabilities: iterate over"),
        ([SimpleNamespace(logprobs=None)], False, ""),
        ([SimpleNamespace(logprobs={"content": []}), SimpleNamespace(logprobs=None)], True, ""),
        ([], True, ""),
    ],
)
def test_a_stream_that_lost_its_logprobs_says_what_to_do(
    callback: Any, predictor: QualityPredictor, answer: list[Any], stream: bool, message: str
) -> None:
    handed: list[Scored] = []
    log(
        callback.VerdictLogger(predictor, on_verdict=handed.append),
        call(stream=stream),
        SimpleNamespace(choices=answer),
    )
    assert handed[0].verdict is None
    assert handed[0].reason
    assert ("LiteLLM rebuilds a streamed answer" in handed[0].reason) is bool(message)
    assert message in handed[0].reason


@pytest.mark.parametrize("listens", ["plainly", "asynchronously", "not at all"])
def test_a_stream_that_leaves_the_proxy_is_scored_on_its_way_and_not_again(
    callback: Any, predictor: QualityPredictor, listens: str
) -> None:
    handed: list[Scored] = []
    listeners = {"plainly": handed.append, "asynchronously": awaited(handed), "not at all": None}
    logger = callback.VerdictLogger(predictor, on_verdict=listeners[listens])
    request: dict[str, Any] = {"litellm_call_id": "p", "metadata": {"mine": 1}}
    given = list(chunks({"model": "m", "logprobs": True}))

    async def upstream() -> AsyncIterator[dict[str, Any]]:
        for chunk in given:
            yield chunk

    async def run() -> list[Any]:
        out = logger.async_post_call_streaming_iterator_hook(None, upstream(), request)
        return [chunk async for chunk in out]

    assert asyncio.run(run()) == given
    expected = predictor.predict(LOGPROBS)
    assert request["metadata"]["metaprobe"]["score"] == expected.score
    assert request["metadata"]["mine"] == 1
    alog(logger, call("p", "acompletion", stream=True), SimpleNamespace(choices=[SimpleNamespace(logprobs=None)]))
    assert [scored.verdict for scored in handed] == [expected] * (listens != "not at all")
    assert all(scored.context == {"litellm_call_id": "p", "metadata": request["metadata"]} for scored in handed)
