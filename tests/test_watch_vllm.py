"""vLLM's `AsyncLLM.generate`, watched: the verdict of the whole output, and a generator that is closed at the gate's
token, by which vLLM ends the request."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import watched_streams
from hypothesis import given
from hypothesis import strategies as st
from watched_streams import FakeGate

from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.answer_stream import AnswerStream
from metaprobe.routing.watch_stream import watch

predictor = watched_streams.predictor

END, END_LOGPROB = 2, -0.5
WORDS = [(7, " four", -0.25), (7, " four", -0.125), (11, " is", -1.5), (13, " it", -0.0625), (17, ".", -0.03125)]
LOGPROBS = [logprob for _, _, logprob in WORDS]


def output(words: list[tuple[int, str, float]], total: float, *, ended: str | None = None, index: int = 0) -> Any:
    """A `RequestOutput` with these tokens; `ended` also has the end token, as vLLM has it."""
    ids = [token for token, _, _ in words] + [END] * (ended == "stop")
    said = [*words, (END, "<|im_end|>", END_LOGPROB)] if ended == "stop" else words
    rows = [{token: SimpleNamespace(logprob=logprob, decoded_token=word, rank=1)} for token, word, logprob in said]
    one = SimpleNamespace(
        index=index,
        text="".join(word for _, word, _ in words),
        token_ids=ids,
        logprobs=rows,
        cumulative_logprob=total,
        finish_reason=ended,
        stop_reason=None,
    )
    return SimpleNamespace(request_id="r-1", prompt_token_ids=[1, 2, 3], outputs=[one], finished=ended is not None)


def outputs(words: list[tuple[int, str, float]], sizes: list[int], kind: str) -> list[Any]:
    """Returns what the engine yields when it hands on so many tokens at a time."""
    made, done = [], 0
    bounds = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    for bound in bounds:
        last = bound == len(words)
        total = sum(logprob for _, _, logprob in words[:bound]) + END_LOGPROB * last
        made.append(output(words[0 if kind == "cumulative" else done : bound], total, ended="stop" if last else None))
        done = bound
    return made


async def engine(made: list[Any], closed: list[int]) -> AsyncIterator[Any]:
    """Yields them, and notes after how many it was closed, as `AsyncLLM.generate` aborts its request then."""
    given = 0
    try:
        for one in made:
            given += 1
            yield one
    except GeneratorExit:
        closed.append(given)
        raise


async def watched_all(made: list[Any], predictor: QualityPredictor, gate: Any = None) -> tuple[Any, list[Any], Any]:
    closed: list[int] = []
    watched = watch(engine(made, closed), predictor, gate)
    return watched, [one async for one in watched], closed


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=5),
    st.sampled_from(["delta", "cumulative"]),
    st.integers(0, 4),
    st.booleans(),
)
def test_chunks_of_any_size_and_of_both_kinds_amount_to_the_answer_without_its_end(
    sizes: list[int], kind: str, certain: int, as_json: bool
) -> None:
    words = [(token, word, 0.0 if i < certain else x) for i, (token, word, x) in enumerate(WORDS[1:] * 4)]
    words = words[: sum(sizes)]
    known = AnswerStream()
    for one in outputs(words, sizes, kind):
        known.add(json.loads(json.dumps(one, default=vars)) if as_json else one)
    [choice] = known.response()["choices"]
    assert choice["message"]["content"] == "".join(word for _, word, _ in words)
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [*(x for *_, x in words), END_LOGPROB]
    assert choice["token_ids"] == [*(token for token, *_ in words), END]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


@pytest.mark.parametrize("kind", ["delta", "cumulative"])
@pytest.mark.parametrize("sizes", [[1, 1, 1, 1, 1], [2, 3]])
def test_the_verdict_is_that_of_the_whole_output(predictor: QualityPredictor, kind: str, sizes: list[int]) -> None:
    made = outputs(WORDS, sizes, kind)
    watched, passed, closed = asyncio.run(watched_all(made, predictor))
    [whole] = outputs(WORDS, [5], kind)
    assert watched.verdict == predictor.predict(whole) == predictor.predict(LOGPROBS)
    assert [id(one) for one in passed] == [id(one) for one in made]
    assert (watched.scored.response_id, watched.scored.reason, closed) == ("r-1", "", [])


@pytest.mark.parametrize("kind", ["delta", "cumulative"])
def test_the_gate_sees_each_token_once_and_closes_the_generator_where_it_fires(
    predictor: QualityPredictor, kind: str
) -> None:
    gate = FakeGate(3)
    watched, passed, closed = asyncio.run(watched_all(outputs(WORDS, [1] * 5, kind), predictor, gate))
    assert gate.pushed == list(LOGPROBS[:3])
    assert (watched.action, len(passed), closed) == ("stop", 3, [3])
    assert watched.verdict.score == gate.score


def test_one_of_several_answers_never_ends_the_others(predictor: QualityPredictor) -> None:
    made = outputs(WORDS, [1] * 5, "delta")
    made[1] = output(WORDS[:1], WORDS[0][2], index=1)
    watched, passed, _ = asyncio.run(watched_all(made, predictor, FakeGate(2)))
    assert (watched.action, len(passed)) == ("continue", 5)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"logprobs": []}, "0 positions"),
        ({"token_ids": [99]}, "hold the drawn token"),
        ({"logprobs": 3}, "int"),
        ({"token_ids": [[7]]}, "hold the drawn token"),
        ({"logprobs": None, "cumulative_logprob": None}, "log-probabilities"),
    ],
)
def test_an_output_that_cannot_be_read_passes_and_has_no_verdict(
    predictor: QualityPredictor, broken: dict[str, Any], said: str
) -> None:
    made = outputs(WORDS, [1] * 5, "delta")
    made[2].outputs[0] = SimpleNamespace(**{**vars(made[2].outputs[0]), **broken})
    watched, passed, _ = asyncio.run(watched_all(made, predictor, FakeGate(9)))
    assert len(passed) == 5
    assert watched.verdict is None
    assert said in watched.reason
