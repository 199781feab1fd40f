"""Whatever comes, cut, mangled or shuffled: an `InvalidResponse` or a valid response, and never anything else."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from answer_formats import CORPUS, FORMATS, REFUSED, places, recorded_answers
from hypothesis import given, settings
from hypothesis import strategies as st

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.parse import parse_response
from metaprobe.records.response import ParsedResponse
from metaprobe.records.types import LogprobsMode

CASES = 1_000

JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, -(10**400), 10**400, 0.5, -0.5, 1e308, -1e308, 5e-324,
    float("nan"), float("inf"), float("-inf"), "", "x", "-0.5", "\ud800", "\x00", "1" * 5_000,
    [], {}, [[]], [{}], [None], [[-0.5]], [-0.5], [float("nan")], {"": None}, {"a": {"b": []}}, ["logprob"],
    {"logprob": -1.0}, [{"logprob": True}], [{"token": 3, "logprob": "x", "top_logprobs": 7}], {"content": 3},
    "response.completed", "response.output_text.delta", "chat.completion.chunk",
]  # fmt: skip


def assert_valid(parsed: ParsedResponse) -> None:
    logprobs, top = parsed.logprobs, parsed.top_logprobs
    assert (logprobs.dtype, logprobs.ndim) == (np.float32, 1)
    assert len(logprobs) >= 1
    assert np.isfinite(logprobs).all()
    assert (logprobs <= 0).all()
    if top is not None:
        assert (top.dtype, len(top)) == (np.float32, len(logprobs))
        assert not np.isinf(top).any()
        assert not (top > 0).any()
        assert not (np.diff(np.nan_to_num(top, nan=-np.finfo(np.float32).max).astype(np.float64)) > 0).any()
    assert len(parsed.tokens) in (0, len(logprobs))
    assert all(type(said) is str for said in (parsed.text, parsed.finish_reason, parsed.model, *parsed.tokens))
    assert parsed.usage.prompt_tokens >= 0
    assert parsed.usage.completion_tokens >= 0
    assert parsed.logprobs_mode in get_args(LogprobsMode)
    assert parsed.temperature is None or 0 <= parsed.temperature < np.inf


def is_read(response: Any, choice: int = 0) -> bool:
    """Whether it could be read; fails where it is neither read nor refused as it should be, or warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            parsed = parse_response(response, choice=choice)
        except InvalidResponse as error:
            refusal = str(error)
        else:
            assert_valid(parsed)
            return True
    assert any(way_out in refusal for way_out in ("expected", "request", "generate")), refusal
    return False


def mangled(response: Any, rng: np.random.Generator) -> Any:
    """The response after one to three accidents."""
    for _ in range(rng.integers(1, 4)):
        if isinstance(response, (bytes, str)) or not response:
            return response
        inside = list(places(response))
        container, key = inside[rng.integers(len(inside))] if inside else (response, None)
        match rng.integers(8):
            case 0 | 1 if key is not None:
                container[key] = copy.deepcopy(JUNK[rng.integers(len(JUNK))])
            case 2 if key is not None:
                del container[key]
            case 3:
                whole = json.dumps(response).encode()
                cut = whole[: rng.integers(len(whole))]
                return cut.decode() if rng.random() < 0.5 else cut
            case 4:
                whole = bytearray(json.dumps(response).encode())
                whole[rng.integers(len(whole))] = rng.integers(256)
                return bytes(whole)
            case 5 if isinstance(container, list):
                rng.shuffle(container)
            case 6 if isinstance(container, list):
                del container[rng.integers(len(container)) :]
            case 7 if key is not None:
                other, theirs = inside[rng.integers(len(inside))]
                container[key], other[theirs] = copy.deepcopy(other[theirs]), copy.deepcopy(container[key])
            case _:
                response = [response, *response] if isinstance(response, list) else [response] * int(rng.integers(3))
    return response


def count_read(recorded: Path, cases: int) -> int:
    """How many of so many damaged responses could still be read."""
    answers = [a for a in recorded_answers(recorded) if len(a.tokens) > 3]
    rng = np.random.default_rng(0)
    names = list(FORMATS)
    read = 0
    for number in range(cases):
        if number % 10 == 0:
            whole = copy.deepcopy(list(CORPUS.values())[rng.integers(len(CORPUS))])
        else:
            whole = json.loads(json.dumps(FORMATS[names[number % len(names)]](answers[rng.integers(len(answers))])))
        read += is_read(mangled(whole, rng), choice=int(rng.random() < 0.05))
    return read


def test_a_thousand_damaged_responses_are_read_or_refused_and_nothing_else(recorded_runs: Path) -> None:
    # A shortened list or a lost name is still an answer, so that both must come often.
    assert 0.1 * CASES < count_read(recorded_runs, CASES) < 0.7 * CASES


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(JUNK).map(copy.deepcopy),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=120)
@given(st.sampled_from(sorted(CORPUS)), st.data())
def test_any_value_put_anywhere_is_read_or_refused(name: str, data: st.DataObject) -> None:
    response = copy.deepcopy(CORPUS[name])
    for _ in range(data.draw(st.integers(1, 3))):
        inside = list(places(response))
        if inside:
            container, key = inside[data.draw(st.integers(0, len(inside) - 1))]
            container[key] = data.draw(anything)
    is_read(response)


@given(anything)
def test_any_value_at_all_is_read_or_refused(value: Any) -> None:
    is_read(value)


@pytest.mark.parametrize("name", sorted(CORPUS))
def test_a_body_cut_at_any_place_is_refused(name: str) -> None:
    body = json.dumps(CORPUS[name]).encode()
    assert is_read(body) != (name in REFUSED)
    assert not any(is_read(body[:end]) for end in range(0, len(body), 7))


@pytest.mark.parametrize("kind", ["chat", "response", "chat_stream", "response_stream", "completion"])
def test_damaged_objects_of_the_client_are_read_or_refused(kind: str, recorded_runs: Path) -> None:
    chats, responses = pytest.importorskip("openai.types.chat"), pytest.importorskip("openai.types.responses")
    types = pytest.importorskip("openai.types")
    construct = pytest.importorskip("openai._models").construct_type  # the client itself validates nothing
    of = {
        "chat": chats.ChatCompletion,
        "completion": types.Completion,
        "response": responses.Response,
        "chat_stream": chats.ChatCompletionChunk,
        "response_stream": responses.ResponseStreamEvent,
    }[kind]
    answer = next(a for a in recorded_answers(recorded_runs) if len(a.tokens) > 3)
    rng = np.random.default_rng(1)
    for _ in range(60):
        damaged = mangled(json.loads(json.dumps(FORMATS[kind](answer))), rng)
        if isinstance(damaged, dict):
            is_read(construct(type_=of, value=damaged))
        elif isinstance(damaged, list):
            is_read([construct(type_=of, value=part) for part in damaged])


def test_what_is_nested_without_end_is_refused() -> None:
    deep: Any = -1.0
    for _ in range(100_000):
        deep = {"a": deep}
    for response in ([-1.0, deep], deep, [deep], {"choices": [{"message": {"content": deep}, "logprobs": deep}]}):
        assert not is_read(response)
    # A hundred thousand levels cannot be taken apart by recursion either.
    while isinstance(deep, dict):
        deep = deep.pop("a")
