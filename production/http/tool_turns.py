"""Tool calls behind one URL: which agent began a conversation's calls, and whether an answer makes a required call.

Every client returns a call's id, in the message that holds the call and with each result. So the caller gets ids that
name the agent: `mp1_k3xq_call_8f...` for the agent's own `call_8f...`. Before an agent is asked, its own ids are
restored. Nothing is stored here: any worker, also after a restart, reads the agent from the id.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from metaprobe.production.http.completion_json import UNREADABLE, lenient_object

ID_MARK = "mp1_"
"""Prefix of ids that name an agent.

With the tag an id grows by 9 characters, from the 29 of OpenAI's ids to less than the 40 that OpenAI accepts. So a
caller may later send the conversation to OpenAI.
"""
TAG_LENGTH = 4
"""Characters of a tag, of 5 bits each."""
_MARKED = re.compile(rf"{ID_MARK}([a-z2-7]{{{TAG_LENGTH}}})_(.*)", re.DOTALL)

_Object = dict[str, Raw]
_object = msgspec.json.Decoder(_Object).decode
_objects = msgspec.json.Decoder(list[_Object]).decode
_array = msgspec.json.Decoder(list[Raw]).decode
_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


def tag_of(agent: str) -> str:
    """Returns the tag that names an agent in ids. It depends only on the agent's name."""
    digest = hashlib.sha256(agent.encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode()[:TAG_LENGTH].lower()


@dataclass(frozen=True, slots=True)
class Turn:
    """Which agent's tool calls wait at the end of a request's messages."""

    agent: str = ""
    """Agent whose calls wait for an answer; empty if no call waits, or if the agent is not known."""
    reason: str = ""
    """Why the agent is not known; empty if it is known, or if no call waits."""


def turn_of(messages: list[Any], tags: Mapping[str, str]) -> Turn:
    """Returns which agent's tool calls wait at the end of these messages. `tags` maps tags to agents.

    Calls wait if the assistant's last message holds some, or if results of tools follow it.
    """
    call_ids: list[object] = []
    is_waiting = False
    for message in reversed(messages):
        if not isinstance(message, dict):
            continue
        role = message.get("role")
        if role in ("tool", "function"):
            is_waiting = True
            call_ids.append(message.get("tool_call_id"))
        elif role == "assistant":
            calls = message.get("tool_calls")
            if isinstance(calls, list) and calls:
                is_waiting = True
                call_ids += [call.get("id") for call in calls if isinstance(call, dict)]
            is_waiting = is_waiting or bool(message.get("function_call"))
            break
    if not is_waiting:
        return Turn()
    id_matches = [_MARKED.match(call_id) for call_id in call_ids if isinstance(call_id, str)]
    tags_found = {id_match[1] for id_match in id_matches if id_match}
    agents = {tags[tag] for tag in tags_found if tag in tags}
    if len(agents) == 1:
        return Turn(agents.pop())
    if len(agents) > 1:
        reason = "several agents made them"
    else:
        reason = "they name an agent that is not here" if tags_found else "their ids name no agent"
    return Turn(reason=f"it is not known who began these tool calls ({reason}), so all may be asked")


def with_own_ids(body: bytes) -> bytes:
    """Returns a request with the agents' own ids of tool calls. All other bytes stay.

    A request without such ids, or an unreadable one, is returned unchanged.
    """
    if ID_MARK.encode() not in body:
        return body
    try:
        fields = _object(body)
        messages = _array(fields["messages"])
    except (*UNREADABLE, KeyError):
        return body
    fields["messages"] = Raw(
        _encode([_message_with_own_ids(raw) if ID_MARK.encode() in bytes(raw) else raw for raw in messages])
    )
    return _encode(fields)


def _message_with_own_ids(raw: Raw) -> Raw:
    """Returns one message of a request with the agents' own ids."""
    try:
        message = _object(raw)
    except UNREADABLE:
        return raw
    if "tool_call_id" in message:
        message["tool_call_id"] = _with_mark(message["tool_call_id"], "")
    if "tool_calls" in message:
        message["tool_calls"] = _with_ids(message["tool_calls"], "")
    return Raw(_encode(message))


def with_agent_ids(body: bytes, agent: str) -> bytes:
    """Returns a completion whose ids of tool calls name the agent. A call without an id stays without one.

    An unreadable completion is returned unchanged; one with NaN, as Python writes it, is read.
    """
    if b'"tool_calls"' not in body:
        return body
    try:
        fields = _object(body)
    except UNREADABLE:
        return _with_agent_ids_leniently(body, agent)
    try:
        choices = _objects(fields["choices"])
        for choice in choices:
            message = _object(choice["message"])
            if "tool_calls" in message:
                message["tool_calls"] = _with_ids(message["tool_calls"], f"{ID_MARK}{tag_of(agent)}_")
                choice["message"] = Raw(_encode(message))
    except (*UNREADABLE, KeyError):
        return body
    return _encode({**fields, "choices": choices})


def _with_agent_ids_leniently(body: bytes, agent: str) -> bytes:
    """Does the work of `with_agent_ids` for JSON with NaN or infinities."""
    try:
        completion = lenient_object(body)
        for choice in completion["choices"]:
            for call in choice["message"].get("tool_calls") or ():
                if isinstance(call.get("id"), str):
                    call["id"] = f"{ID_MARK}{tag_of(agent)}_{call['id']}"
    except (*UNREADABLE, KeyError, TypeError, AttributeError):
        return body
    return json.dumps(completion).encode()


def _with_ids(raw: Raw, mark: str) -> Raw:
    """Returns a list of calls with `mark` put before each id; with an empty `mark`, existing marks are removed."""
    try:
        calls = _objects(raw)
    except UNREADABLE:
        return raw
    return Raw(_encode([{**call, "id": _with_mark(call["id"], mark)} if "id" in call else call for call in calls]))


def _with_mark(raw: Raw, mark: str) -> Raw:
    try:
        text = _text(raw)
    except UNREADABLE:  # null, or a number: it is passed on as it is
        return raw
    id_match = None if mark else _MARKED.match(text)
    if not mark and not id_match:
        return raw
    return Raw(_encode(id_match[2] if id_match else mark + text))


@dataclass(frozen=True, slots=True)
class WantedCall:
    """A tool call that the request requires instead of a text."""

    names: frozenset[str]
    """Tools of which one must be called; empty for any tool."""

    def made_in(self, completion: Mapping[str, Any]) -> bool:
        """Returns whether the first choice of a completion makes the required call."""
        message = completion["choices"][0]["message"]
        called = {_called_name(call) for call in message.get("tool_calls") or ()} | {
            _function_name(message.get("function_call"))
        }
        called.discard("")
        return bool(called & self.names if self.names else called)


def wanted_call(fields: Mapping[str, Raw]) -> WantedCall | None:
    """Returns the call that a request's `tool_choice` (or `function_call`) requires.

    Returns None if the model is free to choose, and for an unknown form, which the upstream judges.
    """
    choice = _decoded(fields.get("tool_choice"))
    if choice in ("required", "any"):
        return WantedCall(frozenset())
    if isinstance(choice, dict):
        kind = choice.get("type")
        if kind == "allowed_tools":
            allowed = choice.get("allowed_tools")
            if not isinstance(allowed, dict) or allowed.get("mode") != "required":
                return None
            tools = allowed.get("tools")
            return WantedCall(_names(tools if isinstance(tools, list) else ()))
        names = _names([choice])
        return WantedCall(names) if names else None
    name = _function_name(_decoded(fields.get("function_call")))
    return WantedCall(frozenset({name})) if name else None


def _names(tools: Iterable[object]) -> frozenset[str]:
    return frozenset({_called_name(tool) for tool in tools} - {""})


def _called_name(call: object) -> str:
    """Returns the name in a call, a tool or a tool choice: under `function` or `custom`."""
    if not isinstance(call, dict):
        return ""
    return _function_name(call.get("function")) or _function_name(call.get("custom"))


def _function_name(function: object) -> str:
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _decoded(raw: Raw | None) -> Any:
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except UNREADABLE:
        return None
