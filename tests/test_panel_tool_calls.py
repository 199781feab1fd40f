"""A tool call is an answer of a panel: equal calls are one answer, other calls and words are other answers."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_once import MadeOnce
from panel_worlds import biased_vote, completion, trained

from metaprobe.records.tool_calls import (
    ToolCall,
    requires_tool_call,
    show_tool_calls,
    tool_calls_form,
    tool_calls_in,
)
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.compared_answers import PanelAnswer, overlapping
from metaprobe.training.recipes.panel import train_panel
from metaprobe.training.training_options import PanelOptions

PARIS, LYON = ("get_weather", '{"city": "Paris", "days": 2}'), ("get_weather", '{"city": "Lyon", "days": 2}')


@pytest.fixture(scope="module")
def samples(made_once: MadeOnce) -> Panel:
    return Panel.load(trained(biased_vote, made_once))


def calling(*calls: tuple[str, Any], finish: str = "tool_calls", **more: Any) -> dict[str, Any]:
    """A chat completion that calls tools, each a name and its arguments."""
    held = [
        {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": held, **more}
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def form(arguments: Any) -> Any:
    return tool_calls_form([ToolCall("f", arguments if isinstance(arguments, str) else json.dumps(arguments))])


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


def same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same of JSON, where `true` is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


@given(values, values)
def test_calls_are_equal_where_their_arguments_are_the_same_json(one: Any, other: Any) -> None:
    assert (form({"a": one}) == form({"a": other})) == same_json(one, other)
    spaced = json.dumps({"b": 1, "a": one}, indent=2, ensure_ascii=False)
    assert form(spaced) == form({"a": one, "b": 1.0})


@given(st.text(max_size=30))
def test_any_arguments_have_a_form_that_is_equal_to_itself(arguments: str) -> None:
    assert hash(form(arguments)) == hash(form(arguments))
    assert form(arguments) == form(arguments)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": NaN}', '{"a": null}'),
        ('{"a": 1e999}', '{"a": 2e999}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ("[" * 100_000, "[" * 100_001),
        ('{"a": ' * 100 + "1" + "}" * 100, '{"a": ' * 100 + "1.0" + "}" * 100),
        ('{"a": ' + "1" * 5000 + "}", '{"a": ' + "1" * 4999 + "2}"),
        ('{"a": 0.1}', '{"a": 0.1000000000000000000001}'),
        ('{"a": "1"}', '{"a": 1}'),
        ('{"a": true}', '{"a": 1}'),
        ('{"a": []}', '{"a": {}}'),
        ('{"city": "Paris"', '{"city": "Paris"}'),
    ],
)
def test_arguments_that_differ_are_never_equal_whatever_they_hold(one: str, other: str) -> None:
    assert form(one) != form(other)
    assert form(one) == form(one)


def test_the_name_the_number_and_the_order_of_calls_count() -> None:
    paris, lyon = ToolCall(*PARIS), ToolCall(*LYON)
    forms = [[paris], [lyon], [paris, lyon], [lyon, paris], [ToolCall("other", paris.arguments)]]
    assert len(set(map(tool_calls_form, forms))) == len(forms)
    assert show_tool_calls([paris, lyon]).startswith('get_weather({"city": "Paris", "days": 2}), get_weather(')


def stream(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream with these deltas."""
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in parts]
    return [*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]


WAYS = {
    "chat completion": calling(PARIS),
    "forced call": calling(PARIS, finish="stop"),
    "arguments as an object": calling((PARIS[0], {"days": 2, "city": "Paris"})),
    "words beside it": calling(PARIS, content="Let me look."),
    "legacy": {
        "choices": [
            {"message": {"content": None, "function_call": dict(zip(("name", "arguments"), PARIS, strict=True))}}
        ]
    },
    "raw body": json.dumps(calling(PARIS)).encode(),
    "Responses API": {
        "object": "response",
        "status": "completed",
        "output": [
            {"type": "reasoning", "content": []},
            {"type": "function_call", "call_id": "x", "name": PARIS[0], "arguments": PARIS[1], "status": "completed"},
        ],
    },
    "Anthropic": {
        "type": "message",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t", "name": PARIS[0], "input": json.loads(PARIS[1])},
        ],
        "stop_reason": "tool_use",
    },
    "Ollama": {
        "model": "m",
        "done": True,
        "done_reason": "stop",
        "message": {"content": "", "tool_calls": [{"function": {"name": PARIS[0], "arguments": json.loads(PARIS[1])}}]},
    },
    "Gemini": {
        "candidates": [
            {"content": {"parts": [{"functionCall": {"name": PARIS[0], "args": json.loads(PARIS[1])}}]}},
        ]
    },
    "stream": stream(
        {"tool_calls": [{"index": 0, "id": "x", "function": {"name": PARIS[0], "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": PARIS[1][:9]}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": PARIS[1][9:]}}]},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_call_of_any_api_is_the_same_answer(samples: Panel, way: str) -> None:
    verdict = samples.judge([calling(LYON), WAYS[way], calling(PARIS)])
    assert verdict.kept in (1, 2)
    assert {one.members for one in verdict.classes} == {(1, 2), (0,)}
    assert all(one.answer.startswith("get_weather(") for one in verdict.classes)
    assert "cannot be read" not in verdict.reason


def test_a_panel_of_texts_says_that_it_learned_no_calls_and_goes_by_agreement(samples: Panel) -> None:
    verdict = samples.judge([calling(PARIS), calling(LYON), calling(PARIS)])
    assert verdict.kept in (0, 2)
    assert "learned no tool calls" in verdict.reason
    assert verdict.score is not None
    assert 0 < verdict.score < 1
    with_numbers = calling(PARIS)
    entries = [{"token": "x", "logprob": -9.0, "top_logprobs": []}] * 8
    with_numbers["choices"][0]["logprobs"] = {"content": entries}
    again = samples.judge([with_numbers, calling(LYON), with_numbers])
    assert again.score == verdict.score  # how sure a model is of words says nothing of a call


def test_a_parallel_call_is_kept_whole(samples: Panel) -> None:
    verdict = samples.judge([calling(PARIS, LYON), calling(PARIS, LYON), calling(PARIS)])
    assert verdict.kept in (0, 1)
    assert {one.members: one.answer.count("get_weather(") for one in verdict.classes} == {(0, 1): 2, (2,): 1}


def test_a_call_that_was_cut_and_one_that_cannot_be_written_count_against_the_others(samples: Panel) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    cut = calling(("get_weather", '{"city": "Par'), finish="length")
    verdict = samples.judge([cut, calling(("f", deep)), calling(PARIS)])
    assert verdict.kept == 2
    assert "2 of 3 answers count against all others" in verdict.reason
    while deep:  # else the interpreter frees it level by level
        deep = deep[0]


def test_a_call_that_the_server_left_as_text_is_an_answer(samples: Panel) -> None:
    left = completion('<tool_call>{"name": "f"}</tool_call>', finish="tool_calls")
    verdict = samples.judge([left, left, completion("It is 12")])
    assert {one.members for one in verdict.classes} == {(0, 1), (2,)}
    assert "cannot be read" not in verdict.reason


@pytest.mark.parametrize(
    ("choice", "required"),
    [
        ("required", True),
        ("any", True),
        ("auto", False),
        ("none", False),
        (None, False),
        ({"type": "function", "function": {"name": "f"}}, True),
        ({"type": "any"}, True),
        ({"type": "auto"}, False),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}, True),
        ({"type": "allowed_tools", "mode": "auto"}, False),
        (7, False),
    ],
)
def test_a_required_call_is_known_by_the_requests_tool_choice(choice: Any, required: bool) -> None:
    assert requires_tool_call(choice) is required


def test_no_text_beats_a_call_that_the_request_requires(samples: Panel) -> None:
    texts = [completion(" 42", logprob=-0.01)] * 4
    verdict = samples.judge([*texts, calling(PARIS)], needs_call=True)
    assert verdict.kept == 4
    assert "requires a tool call" in verdict.reason
    answers = iter([*texts, calling(PARIS), *texts])

    async def create(**_: Any) -> Any:
        return next(answers)

    asking = samples.ask(create, [{"role": "user", "content": "?"}], model="m", tool_choice="required", at_most=5)
    answered = asyncio.run(asking)
    assert answered.response == calling(PARIS)


def test_the_form_of_a_call_joins_no_text_by_words() -> None:
    call = tool_calls_form([ToolCall(*PARIS)])
    assert overlapping(["get weather city Paris", call, "get weather city Paris", call]) == [0, 1, 0, 1]


def test_a_panel_that_learned_calls_says_nothing_of_them(tmp_path: Path) -> None:
    lines = []
    for question in range(60):
        for sample in range(3):
            right = (question + sample) % 3 > 0
            city = f"city {question}" if right else f"city {sample + 100}"
            lines.append(
                {
                    "question_id": f"q{question}",
                    "messages": [{"role": "user", "content": f"Weather of {question}?"}],
                    "response": calling(("get_weather", json.dumps({"city": city}))),
                    "labels": {"correct": int(right)},
                }
            )
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    panel = Panel(train_panel(path, PanelOptions(out=tmp_path / "c")))
    verdict = panel.judge([calling(PARIS), calling(LYON), calling(PARIS)])
    assert verdict.kept in (0, 2)
    assert "tool call" not in verdict.reason


def test_no_call_is_seen_where_there_is_none() -> None:
    for response in ([-0.1, -0.2], completion("12"), {"choices": []}, {}, None, "text", [], {"choices": [7]}):
        assert tool_calls_in(response)[0] == ()
    assert PanelAnswer("12").calls == ()
    assert math.isfinite(len(show_tool_calls(())))
