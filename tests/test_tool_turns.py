"""Ids of tool calls name the agent that made them, and are the agent's own again before it is asked."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.production.http.tool_turns import tag_of, turn_of, wanted_call, with_agent_ids, with_own_ids

AGENTS = {tag_of(name): name for name in ("history", "maths")}


def made(ids: list[Any]) -> dict[str, Any]:
    """A message that calls a tool under each id."""
    calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def named(ids: list[Any], agent: str = "maths") -> dict[str, Any]:
    """The same message as a caller gets it."""
    body = json.dumps({"choices": [{"message": made(ids)}]}).encode()
    return dict(json.loads(with_agent_ids(body, agent))["choices"][0]["message"])


@given(st.lists(st.text(max_size=50), min_size=1, max_size=4), st.sampled_from(["history", "maths", "ü\n"]))
def test_ids_that_name_an_agent_become_its_own_again(ids: list[str], agent: str) -> None:
    message = named(ids, agent)
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in message["tool_calls"]]
    back = json.loads(with_own_ids(json.dumps({"model": "m", "messages": [message, *results]}).encode()))
    assert back["messages"][0] == made(ids)
    assert [one["tool_call_id"] for one in back["messages"][1:]] == ids


def test_an_id_of_openai_stays_within_the_40_characters_that_openai_takes() -> None:
    [call] = named(["call_" + 24 * "x"])["tool_calls"]
    assert len(call["id"]) <= 40


@given(
    st.recursive(st.none() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_anything_without_a_marked_id_stays_byte_for_byte(value: Any) -> None:
    for body in (json.dumps({"messages": value}).encode(), json.dumps(value).encode(), b'{"messages": [mp1_'):
        assert with_own_ids(body) == body
        if b'"tool_calls"' not in body:
            assert with_agent_ids(body, "maths") == body


def test_beside_the_ids_nothing_of_a_marked_conversation_changes() -> None:
    call = named(["call_0"])["tool_calls"][0]["id"]
    text = f'{{"x": 1e-30, "messages": [{{"role":"user","content":"{call}"}},'
    text += f' {{"tool_call_id": "{call}", "n": 12345678901234567890123, "role": "tool", "content": "1.0 {call}"}}]}}'
    back = with_own_ids(text.encode()).decode()
    assert back.replace(" ", "") == text.replace(f'"tool_call_id": "{call}"', '"tool_call_id": "call_0"').replace(
        " ", ""
    )


@pytest.mark.parametrize("odd", [None, 7, [], {"a": 1}])
def test_an_id_that_is_no_text_stays(odd: Any) -> None:
    assert named([odd]) == made([odd])
    assert turn_of([made([odd])], AGENTS).agent == ""


def test_a_completion_with_a_number_outside_json_names_its_agent_too() -> None:
    body = json.dumps({"choices": [{"message": made(["call_0"])}], "x": float("nan")}).encode()
    named_ = json.loads(with_agent_ids(body, "maths"))
    assert turn_of([named_["choices"][0]["message"]], AGENTS).agent == "maths"
    for odd in (b'{"tool_calls": NaN}', b'{"choices": [{"message": {"tool_calls": [NaN]}}]}', b'"tool_calls"', b"NaN"):
        assert with_agent_ids(odd, "maths") == odd


@pytest.mark.parametrize("calls", ["x", 7, None, [5], ["x"], {}])
def test_calls_that_are_none_stay(calls: Any) -> None:
    body = json.dumps({"choices": [{"message": {"tool_calls": calls}}]}).encode()
    assert json.loads(with_agent_ids(body, "maths")) == json.loads(body)
    turn_of([{"role": "assistant", "tool_calls": calls}], AGENTS)


USER = {"role": "user", "content": "a"}
CALL = named(["call_0"])
RESULT = {"role": "tool", "tool_call_id": CALL["tool_calls"][0]["id"], "content": "7"}
PLAIN = {"role": "assistant", "content": "7"}


@pytest.mark.parametrize(
    ("messages", "agent", "reason"),
    [
        ([USER, CALL, RESULT], "maths", ""),
        ([USER, CALL], "maths", ""),
        ([USER, RESULT], "maths", ""),
        ([USER, made(["call_0"]), RESULT], "maths", ""),
        ([USER, CALL, RESULT, USER], "maths", ""),
        ([USER, CALL, RESULT, PLAIN, USER], "", ""),
        ([USER], "", ""),
        ([], "", ""),
        ([5, None, USER], "", ""),
        ([USER, made(["call_0"])], "", "their ids name no agent"),
        ([USER, {"role": "assistant", "function_call": {"name": "f"}}], "", "their ids name no agent"),
        ([USER, {"role": "function", "name": "f", "content": "7"}], "", "their ids name no agent"),
        ([USER, named(["call_0"], "poetry")], "", "an agent that is not here"),
        ([USER, named(["call_0"], "history"), RESULT], "", "several agents"),
    ],
)
def test_whose_calls_wait_is_read_from_the_last_messages(messages: list[Any], agent: str, reason: str) -> None:
    turn = turn_of(messages, AGENTS)
    assert turn.agent == agent
    assert reason in turn.reason
    assert bool(turn.reason) == bool(reason)


@pytest.mark.parametrize(
    ("choice", "fits", "does_not"),
    [
        ("required", ["f", "g", "fg"], [""]),
        ("any", ["f"], [""]),
        ({"type": "function", "function": {"name": "f"}}, ["f", "fg"], ["", "g"]),
        ({"type": "custom", "custom": {"name": "f"}}, ["f"], ["", "g"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
            ["f"],
            ["", "g"],
        ),
    ],
)
def test_a_wanted_call_is_found_in_an_answer_or_not(choice: Any, fits: list[str], does_not: list[str]) -> None:
    wanted = wanted_call({"tool_choice": msgspec.Raw(json.dumps(choice).encode())})
    assert wanted is not None
    for names in [*fits, *does_not]:
        calls = [{"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
        answer = {"choices": [{"message": {"content": "7", **({"tool_calls": calls} if calls else {})}}]}
        assert wanted.made_in(answer) == (names in fits), names


@pytest.mark.parametrize(
    "choice",
    ["auto", "none", None, 7, [], {"type": "function"}, {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}],
)
def test_a_choice_that_leaves_the_model_free_or_is_not_known_asks_for_no_call(choice: Any) -> None:
    assert wanted_call({"tool_choice": msgspec.Raw(json.dumps(choice).encode())}) is None
    assert wanted_call({}) is None


def test_the_older_form_names_a_function() -> None:
    wanted = wanted_call({"function_call": msgspec.Raw(b'{"name": "f"}')})
    assert wanted is not None
    assert wanted.made_in({"choices": [{"message": {"function_call": {"name": "f", "arguments": "{}"}}}]})
    assert not wanted.made_in({"choices": [{"message": {"content": "7"}}]})
