"""Tool calls behind one URL: which agent began a conversation's calls, and whether an answer calls as it must.

A call's id is what every client sends back, with the message that holds the call and with each result. So the id that a
caller gets names the agent: `mp1_k3xq_call_8f...` for the agent's own `call_8f...`. Before an agent is asked, its own
ids are put back. Nothing is remembered here: any worker, also after a restart, reads the agent from the id.
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

from metaprobe.production.http.wire import UNREADABLE, lenient_object

MARK = "mp1_"
"""Begins the ids that name an agent. With the tag an id grows by 9 characters, from the 29 of OpenAI's ids to less than
the 40 that OpenAI takes: a caller may later send the conversation there."""
TAG_LENGTH = 4
"""Characters of a tag, of 5 bits each."""
_MARKED = re.compile(rf"{MARK}([a-z2-7]{{{TAG_LENGTH}}})_(.*)", re.DOTALL)

_Object = dict[str, Raw]
_object = msgspec.json.Decoder(_Object).decode
_objects = msgspec.json.Decoder(list[_Object]).decode
_array = msgspec.json.Decoder(list[Raw]).decode
_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


def tag_of(agent: str) -> str:
    """Returns the tag by which ids name an agent. It depends on the agent's name alone."""
    digest = hashlib.sha256(agent.encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode()[:TAG_LENGTH].lower()


@dataclass(frozen=True, slots=True)
class Turn:
    """Tells what the last messages of a request say about tool calls."""

    agent: str = ""
    """The agent whose calls wait for an answer; empty where no call waits, or where it is not known whose they are."""
    reason: str = ""
    """Why the agent is not known; empty where it is known, and where no call waits."""


def turn_of(messages: list[Any], tags: Mapping[str, str]) -> Turn:
    """Returns which agent's tool calls these messages end in. `tags`: tag -> agent.

    Calls wait where the last message of the assistant holds some, or where results of tools came after it.
    """
    ids: list[object] = []
    waits = False
    for message in reversed(messages):
        if not isinstance(message, dict):
            continue
        role = message.get("role")
        if role in ("tool", "function"):
            waits = True
            ids.append(message.get("tool_call_id"))
        elif role == "assistant":
            calls = message.get("tool_calls")
            if isinstance(calls, list) and calls:
                waits = True
                ids += [call.get("id") for call in calls if isinstance(call, dict)]
            waits = waits or bool(message.get("function_call"))
            break
    if not waits:
        return Turn()
    marked = [_MARKED.match(one) for one in ids if isinstance(one, str)]
    named = {found[1] for found in marked if found}
    agents = {tags[tag] for tag in named if tag in tags}
    if len(agents) == 1:
        return Turn(agents.pop())
    if len(agents) > 1:
        why = "several agents made them"
    else:
        why = "they name an agent that is not here" if named else "their ids name no agent"
    return Turn(reason=f"it is not known who began these tool calls ({why}), so all may be asked")


def own_ids(body: bytes) -> bytes:
    """Returns a request with the agents' own ids of tool calls. All else stays as it came, byte for byte.

    A request without such ids, or one that cannot be read, is returned as it is.
    """
    if MARK.encode() not in body:
        return body
    try:
        fields = _object(body)
        messages = _array(fields["messages"])
    except (*UNREADABLE, KeyError):
        return body
    fields["messages"] = Raw(_encode([_own(one) if MARK.encode() in bytes(one) else one for one in messages]))
    return _encode(fields)


def _own(raw: Raw) -> Raw:
    """Returns one message of a request with the agents' own ids."""
    try:
        message = _object(raw)
    except UNREADABLE:
        return raw
    if "tool_call_id" in message:
        message["tool_call_id"] = _changed(message["tool_call_id"], "")
    if "tool_calls" in message:
        message["tool_calls"] = _with_ids(message["tool_calls"], "")
    return Raw(_encode(message))


def naming(body: bytes, agent: str) -> bytes:
    """Returns a completion whose ids of tool calls name the agent. A call without an id stays without one.

    A completion that cannot be read is returned as it is; one with NaN, as Python writes it, is read.
    """
    if b'"tool_calls"' not in body:
        return body
    try:
        fields = _object(body)
    except UNREADABLE:
        return _naming_leniently(body, agent)
    try:
        choices = _objects(fields["choices"])
        for choice in choices:
            message = _object(choice["message"])
            if "tool_calls" in message:
                message["tool_calls"] = _with_ids(message["tool_calls"], f"{MARK}{tag_of(agent)}_")
                choice["message"] = Raw(_encode(message))
    except (*UNREADABLE, KeyError):
        return body
    return _encode({**fields, "choices": choices})


def _naming_leniently(body: bytes, agent: str) -> bytes:
    """Returns what `naming` does of JSON with a number that JSON has not."""
    try:
        held = lenient_object(body)
        for choice in held["choices"]:
            for call in choice["message"].get("tool_calls") or ():
                if isinstance(call.get("id"), str):
                    call["id"] = f"{MARK}{tag_of(agent)}_{call['id']}"
    except (*UNREADABLE, KeyError, TypeError, AttributeError):
        return body
    return json.dumps(held).encode()


def _with_ids(raw: Raw, mark: str) -> Raw:
    """Returns a list of calls with changed ids: `mark` put before each, or with an empty one, the mark taken away."""
    try:
        calls = _objects(raw)
    except UNREADABLE:
        return raw
    return Raw(_encode([{**call, "id": _changed(call["id"], mark)} if "id" in call else call for call in calls]))


def _changed(raw: Raw, mark: str) -> Raw:
    try:
        text = _text(raw)
    except UNREADABLE:  # null, or a number: it is passed on as it is
        return raw
    found = None if mark else _MARKED.match(text)
    if not mark and not found:
        return raw
    return Raw(_encode(found[2] if found else mark + text))


@dataclass(frozen=True, slots=True)
class WantedCall:
    """A call of a tool that the request asks for, in place of a text."""

    names: frozenset[str]
    """Tools of which one is to be called; empty for any."""

    def made_in(self, completion: Mapping[str, Any]) -> bool:
        """Returns whether the first choice of a completion calls as is asked for."""
        message = completion["choices"][0]["message"]
        called = {_name(call) for call in message.get("tool_calls") or ()} | {_name_of(message.get("function_call"))}
        called.discard("")
        return bool(called & self.names if self.names else called)


def wanted_call(fields: Mapping[str, Raw]) -> WantedCall | None:
    """Returns the call that a request's `tool_choice` (or `function_call`) asks for.

    Returns None where it leaves the model free, and for a form that is not known: that is the upstream's to judge.
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
    name = _name_of(_decoded(fields.get("function_call")))
    return WantedCall(frozenset({name})) if name else None


def _names(tools: Iterable[object]) -> frozenset[str]:
    return frozenset({_name(tool) for tool in tools} - {""})


def _name(call: object) -> str:
    """Returns the name in a call, a tool or a choice of one: under `function` or `custom`."""
    if not isinstance(call, dict):
        return ""
    return _name_of(call.get("function")) or _name_of(call.get("custom"))


def _name_of(function: object) -> str:
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _decoded(raw: Raw | None) -> Any:
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except UNREADABLE:
        return None
