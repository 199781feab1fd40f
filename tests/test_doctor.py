"""`metaprobe doctor` names each fault of an endpoint, and says how to go on; a sound endpoint has none."""

import asyncio
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chat_completions import text_of
from click.testing import CliRunner
from doctored_server import Body, Fault, stream, upstream
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.cli import main
from metaprobe.llms.doctor import MOST_REQUESTS, Interview, Interviewer, diagnose

KEY = "sk-planted-9Xz4-secret"


def asked(url: str, *options: str) -> tuple[dict[str, Any], int]:
    """Returns the report as JSON, and the exit code."""
    done = CliRunner().invoke(main, ["doctor", url, "m", "--json", *options])
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout), done.exit_code


def findings_of(fault: Fault) -> dict[str, dict[str, str]]:
    """Returns the finding of each check at an endpoint with this fault."""
    with upstream(fault) as (url, _):
        report, code = asked(url)
    findings = {one["check"]: one for one in report["findings"]}
    assert report["usable"] == (code == 0) == all(one["verdict"] != "fault" for one in findings.values())
    assert all(one["do"] for one in findings.values() if one["verdict"] != "ok")
    return findings


def chat(body: Body, *, stream: bool | None = None) -> bool:
    return body["path"].endswith("chat/completions") and (stream is None or bool(body.get("stream")) == stream)


def words(body: Body) -> bool:
    """Whether a chat asks for an answer in words."""
    return chat(body) and "tools" not in body


# --- how faults are made


def every_entry(change: Callable[[int, Body], Body | None], where: Callable[[Body], bool] = chat) -> Fault:
    """Makes a fault of chat completions: each token's entry is changed, or left out."""

    def change_all(choice: Body, body: Body) -> None:
        if entries := (choice.get("logprobs") or {}).get("content"):
            new = [change(i, deepcopy(entry)) for i, entry in enumerate(entries)]
            choice["logprobs"] = {"content": [entry for entry in new if entry is not None]}

    return every_choice(change_all, where)


def every_choice(change: Callable[[Body, Body], object], where: Callable[[Body], bool] = chat) -> Fault:
    """Makes a fault of chat completions: each choice is changed; the request comes second."""

    def fault(body: Body, answer: Body) -> Body:
        for choice in answer["choices"] if where(body) else ():
            change(choice, body)
        return answer

    return fault


def set_all(**fields: Any) -> Fault:
    """Every token's entry has these fields."""
    return every_entry(lambda i, entry: entry | fields)


def set_second(**fields: Any) -> Fault:
    """The entry of the second token has these fields."""
    return every_entry(lambda i, entry: entry | fields if i == 1 else entry)


def fails_with(*fields: str, status: int = 500) -> Fault:
    """The endpoint refuses requests that hold one of these fields."""
    refusal = {"error": {"message": f"{fields[0]} is not possible here"}}
    return lambda body, answer: (status, refusal) if any(body.get(name) for name in fields) else answer


def fails_once() -> Fault:
    left = [500]

    def once(body: Body, answer: Body) -> Any:
        return (left.pop(), {"error": {"message": "busy"}}) if left and chat(body) else answer

    return once


def dropped(body: Body, answer: Body) -> Body:
    for choice in answer.get("choices", ()):
        choice["logprobs"] = None
    return answer


def shifted(choice: Body, body: Body) -> None:
    entries = choice["logprobs"]["content"]
    choice["logprobs"] = {"content": [*entries[1:], {"token": "<|im_end|>", "logprob": -0.1, "top_logprobs": []}]}


def widened(body: Body, answer: Body) -> Body:
    """Tokens that no text shows come before and after the answer's, and are counted."""
    more = [{"token": token, "logprob": -6.0, "top_logprobs": []} for token in (" and", " so")]
    for choice in answer.get("choices", ()):
        if entries := (choice["logprobs"] or {}).get("content"):
            choice["logprobs"]["content"] = [more[0], *entries, more[1]]
            answer["usage"]["completion_tokens"] += 2
    return answer


def prompted(choice: Body, body: Body) -> None:
    before = [{"token": token, "logprob": -6.0, "top_logprobs": []} for token in ("What", " is", " the")]
    choice["logprobs"]["content"] = [*before, *choice["logprobs"]["content"]]


def likeliest(i: int, entry: Body) -> Body:
    return entry | entry["top_logprobs"][0]


def change_top(change: Callable[[list[Body]], list[Body]]) -> Fault:
    """The alternatives of each token are changed."""
    return every_entry(lambda i, entry: entry | {"top_logprobs": change(entry["top_logprobs"])})


def scaled(body: Body, answer: Body) -> Body:
    """Log-probabilities after the temperature."""
    heat = body.get("temperature") or 1.0

    def cool(i: int, entry: Body) -> Body:
        numbers = np.array([row["logprob"] for row in entry["top_logprobs"]]) / heat
        numbers -= np.log(np.exp(numbers).sum() + 0.01)
        named = dict(zip([row["token"] for row in entry["top_logprobs"]], map(float, numbers), strict=True))
        rows = [{"token": token, "logprob": x} for token, x in named.items()]
        return entry | {"logprob": named[entry["token"]], "top_logprobs": rows}

    return every_entry(cool)(body, answer)


def zero_when_cold(i: int, entry: Body) -> Body:
    return entry | {"logprob": 0.0, "top_logprobs": [entry["top_logprobs"][0] | {"logprob": 0.0}]}


def greedy(choice: Body, body: Body) -> None:
    choice["logprobs"]["content"] = [likeliest(0, entry) for entry in choice["logprobs"]["content"]]
    choice["message"]["content"] = text_of(choice["logprobs"]["content"])


def second_likeliest(choice: Body, body: Body) -> None:
    entries = choice["logprobs"]["content"]
    entries[-1] |= entries[-1]["top_logprobs"][1]
    choice["message"]["content"] = text_of(entries)


def echoed(choice: Body, body: Body) -> None:
    choice["message"]["content"] = body["messages"][-1]["content"] + choice["message"]["content"]


def spelt(how: Callable[[str], str]) -> Fault:
    def respelt(i: int, entry: Body) -> Body:
        rows = [row | {"token": how(row["token"])} for row in entry["top_logprobs"]]
        return entry | {"token": how(entry["token"]), "top_logprobs": rows}

    return every_entry(respelt)


def columns(choice: Body, body: Body) -> None:
    """The older shape of log-probabilities."""
    if entries := (choice["logprobs"] or {}).get("content"):
        tops = [{row["token"]: row["logprob"] for row in e["top_logprobs"]} for e in entries]
        held = {"tokens": [e["token"] for e in entries], "token_logprobs": [e["logprob"] for e in entries]}
        choice["logprobs"] = held | {"top_logprobs": tops}


def ended(word: object) -> Fault:
    return every_choice(lambda choice, body: choice.update(finish_reason=word), words)


def list_the_end(body: Body, answer: Body) -> Body:
    """llama.cpp's server lists and counts an end token without text in a whole answer, not in a stream."""
    [choice, *others] = answer.get("choices", [{}])
    entries = (choice.get("logprobs") or {}).get("content")
    whole = words(body) and not body.get("stream") and not others and choice.get("finish_reason") == "stop"
    if whole and entries:
        entries.append({"token": "", "bytes": [], "logprob": -0.5, "top_logprobs": entries[-1]["top_logprobs"]})
        answer["usage"]["completion_tokens"] += 1
    return answer


def as_stream(change: Callable[[list[Any]], list[Any]], per_chunk: int = 1) -> Fault:
    return lambda body, answer: change(stream(answer, per_chunk)) if chat(body, stream=True) else answer


def repeated(lines: list[Any]) -> list[Any]:
    """Every token of a chunk has the alternatives of the chunk's first token."""
    for line in lines[:-2]:
        entries = (line["choices"][0].get("logprobs") or {}).get("content") or []
        for entry in entries[1:]:
            entry["top_logprobs"] = entries[0]["top_logprobs"]
    return lines


def without_numbers(line: Body) -> Body:
    return line | {"choices": [line["choices"][0] | {"logprobs": None}]}


def lowered(lines: list[Any]) -> list[Any]:
    """The numbers are of other tokens than without streaming."""
    for line in lines[:-2]:
        for entry in (line["choices"][0].get("logprobs") or {}).get("content") or []:
            entry |= {"logprob": entry["logprob"] - 2, "top_logprobs": []}
    return lines


def of_two(change: Callable[[Body, Body], object]) -> Fault:
    """Where two answers are asked for, both are changed together."""

    def fault(body: Body, answer: Body) -> Body:
        if body.get("n") == 2:
            change(*answer["choices"])
        return answer

    return fault


def copied(first: Body, second: Body) -> None:
    numbers = [entry["logprob"] for entry in first["logprobs"]["content"]]
    for entry, number in zip(second["logprobs"]["content"], numbers, strict=True):
        entry |= {"logprob": number, "top_logprobs": []}


def one_only(body: Body, answer: Body) -> Body:
    return answer | {"choices": answer["choices"][:1]} if "choices" in answer else answer


def called_in_words(choice: Body, body: Body) -> None:
    text = '<tool_call>{"name": "get_weather"}</tool_call>'
    entries = [{"token": text, "logprob": -0.4, "top_logprobs": []}]
    choice.update(message={"role": "assistant", "content": text}, logprobs={"content": entries}, finish_reason="stop")


def endless(choice: Body, body: Body) -> None:
    """A model that thinks until it is cut."""
    thoughts = [{"token": " hm", "logprob": -0.5 - i / 9, "top_logprobs": []} for i in range(6)]
    choice["message"] = {"role": "assistant", "content": "", "reasoning_content": " hm" * 6}
    choice.update(logprobs={"content": thoughts}, finish_reason="length")


def miscounted(body: Body, answer: Body) -> Body:
    counts = {"prompt_tokens": 9, "completion_tokens": 30}
    return answer | ({"usage": counts} if "choices" in answer else {})


# --- a table of faults: (what is wrong, fault, check, verdict, a word of what was found or what is to be done)

FAULTS: list[tuple[str, Fault, str, str, str]] = [
    ("refused with 500", fails_with("logprobs", "include"), "given", "fault", "logprobs is not possible here"),
    ("refused with 400", fails_with("logprobs", "include", status=400), "given", "fault", "makes the request fail"),
    ("refused once", fails_once(), "given", "unknown", "busy"),
    ("no alternatives", fails_with("top_logprobs", status=400), "given", "unknown", "top_logprobs is not possible"),
    ("dropped", dropped, "given", "fault", "logprobs"),
    ("only the last three", every_entry(lambda i, entry: entry if i > 3 else None), "numbers", "fault", "numbers"),
    ("only the first", every_entry(lambda i, entry: entry if i < 1 else None), "numbers", "fault", "numbers"),
    ("one is missing", every_entry(lambda i, entry: None if i == 2 else entry), "numbers", "fault", "numbers"),
    ("another word", set_second(token=" Rome"), "numbers", "fault", ""),
    ("more tokens than the text", widened, "numbers", "fault", "outside"),
    ("shifted by one", every_choice(shifted, words), "numbers", "fault", "next token"),
    ("the likeliest, not the drawn", every_entry(likeliest), "numbers", "fault", "likeliest"),
    ("the question is repeated", every_choice(echoed, words), "numbers", "fault", "echo"),
    ("ids", spelt(lambda token: f"token_id:{sum(token.encode())}"), "numbers", "unknown", "_as_token_ids"),
    ("byte-level tokens", spelt(lambda token: token.replace(" ", "Ġ")), "numbers", "ok", ""),
    ("sentencepiece tokens", spelt(lambda token: token.replace(" ", "▁")), "numbers", "ok", ""),
    ("bytes", spelt(lambda t: "bytes:" + "".join(f"\\x{b:02x}" for b in t.encode())), "numbers", "ok", ""),
    ("columns", every_choice(columns, lambda body: chat(body, stream=False)), "alternatives", "ok", "5 a token"),
    ("the prompt's tokens too", every_choice(prompted, words), "numbers", "fault", "numbers"),
    ("fewer than are counted", miscounted, "numbers", "fault", "numbers"),
    ("the drawn token twice", change_top(lambda rows: [rows[0], *rows[:4]]), "alternatives", "fault", ""),
    ("a sum above 1", change_top(lambda rows: [r | {"logprob": -0.2} for r in rows]), "alternatives", "fault", ""),
    (
        "alternatives of another place",
        change_top(lambda rows: [row | {"token": f"x{i}"} for i, row in enumerate(rows)]),
        *("alternatives", "fault", ""),
    ),
    (
        "null among the alternatives",
        change_top(lambda rows: [*rows[:2], rows[2] | {"logprob": None}, *rows[3:]]),
        *("alternatives", "fault", "number"),
    ),
    ("fewer alternatives", change_top(lambda rows: rows[:2]), "alternatives", "unknown", "2 a token of 5"),
    (
        "filled up with -9999",
        change_top(lambda rows: [*rows[:3], *({**row, "logprob": -9999.0} for row in rows[3:])]),
        *("alternatives", "unknown", "3 a token of 5"),
    ),
    (
        "a penalty",
        every_choice(second_likeliest, lambda body: words(body) and body["temperature"] == 0),
        *("alternatives", "unknown", "repeat_penalty"),
    ),
    ("all 0", set_all(logprob=0.0, top_logprobs=[]), "numbers", "fault", "speculative"),
    ("a constant", set_all(logprob=-1.386, top_logprobs=[]), "numbers", "fault", ""),
    (
        "the first real, the rest 0",
        every_entry(lambda i, e: e if i == 0 else e | {"logprob": 0.0, "top_logprobs": []}),
        *("numbers", "fault", "speculative"),
    ),
    ("-9999", set_second(logprob=-9999.0), "numbers", "fault", "-9999"),
    ("above 0", set_all(logprob=0.74, top_logprobs=[]), "numbers", "fault", "log-probabilities"),
    ("not a number", set_second(logprob=float("nan")), "numbers", "fault", "top_p"),
    ("minus infinity", set_second(logprob=-float("inf")), "numbers", "fault", "top_p"),
    ("null", set_second(logprob=None), "numbers", "fault", "number"),
    ("after the temperature", scaled, "temperature", "fault", "raw_logprobs"),
    (
        "0 at temperature 0",
        every_entry(zero_when_cold, lambda body: chat(body) and not body.get("temperature")),
        *("temperature", "fault", "raw_logprobs"),
    ),
    (
        "a temperature that is ignored",
        every_choice(greedy, lambda body: body.get("temperature") == 1.5),
        *("temperature", "unknown", "ignored"),
    ),
    ("always 'stop'", ended("stop"), "finish", "fault", "max_tokens"),
    ("no end", ended(None), "finish", "fault", "max_tokens"),
    ("another end", ended("abort"), "finish", "unknown", "max_tokens"),
    ("stream without numbers", as_stream(lambda lines: [*map(without_numbers, lines[:-2])]), "streamed", "fault", ""),
    ("stream that repeats", as_stream(repeated, 3), "streamed", "fault", ""),
    ("stream with other numbers", as_stream(lowered), "streamed", "fault", ""),
    ("stream with gaps", as_stream(lambda lines: [without_numbers(lines[0]), *lines[1:]]), "streamed", "fault", ""),
    ("stream without end", as_stream(lambda lines: [*lines[:-3], *lines[-2:]]), "streamed", "fault", ""),
    (
        "error in a chunk",
        as_stream(lambda lines: [lines[0], {"error": {"message": "full"}}]),
        "streamed",
        "fault",
        "full",
    ),
    ("two [DONE]", as_stream(lambda lines: [*lines, "[DONE]"]), "streamed", "unknown", "[DONE]"),
    ("no [DONE]", as_stream(lambda lines: lines[:-1]), "streamed", "unknown", "[DONE]"),
    ("no usage", as_stream(lambda lines: [*lines[:-2], lines[-1]]), "streamed", "unknown", "usage"),
    ("end token in whole answers alone", list_the_end, "streamed", "ok", "same numbers"),
    ("three tokens a chunk", as_stream(lambda lines: lines, 3), "streamed", "ok", "same numbers"),
    ("one's numbers twice", of_two(copied), "n = 2", "fault", "one answer"),
    ("numbers of one only", of_two(lambda _, second: second.update(logprobs=None)), "n = 2", "fault", "one answer"),
    ("one of two", one_only, "n = 2", "unknown", "one answer"),
    ("a call in words", every_choice(called_in_words, lambda b: bool(b.get("tools"))), "tool call", "fault", "parser"),
    (
        "endless thinking",
        every_choice(endless, lambda b: words(b) and not b.get("stream")),
        "thinking",
        "unknown",
        "--",
    ),
]


@pytest.mark.parametrize(("fault", "check", "verdict", "word"), [row[1:] for row in FAULTS], ids=[r[0] for r in FAULTS])
def test_a_fault_is_named_with_a_way_on(fault: Fault, check: str, verdict: str, word: str) -> None:
    findings = findings_of(fault)
    finding = findings[check]
    assert finding["verdict"] == verdict, findings
    assert word in f"{finding['found']} {finding['do']}"


def test_a_sound_endpoint_is_ok_in_every_check_within_the_promised_requests() -> None:
    with upstream() as (url, came):
        report, code = asked(url, "--extra-body", '{"repeat_penalty": 1.0}')
    verdicts = {one["check"]: one["verdict"] for one in report["findings"]}
    assert verdicts.pop("thinking") == "unknown"  # the model does not think, so nothing shows how that is told
    assert set(verdicts.values()) == {"ok"}
    assert (len(verdicts), code) == (8, 0)
    assert report["requests"] == len(came) <= MOST_REQUESTS
    assert max(body.get("max_tokens", 0) for body in came) <= 96
    assert all(body.get("repeat_penalty") == 1.0 for body in came)


def test_the_table_for_people_has_a_line_a_check_and_a_way_on() -> None:
    with upstream(every_entry(lambda i, entry: entry if i > 3 else None)) as (url, _):
        done = CliRunner().invoke(main, ["doctor", url, "m"])
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    [at] = [i for i, line in enumerate(lines) if line.split()[:2] == ["fault", "numbers"]]
    assert "->" in lines[at + 1]
    assert "requests" in lines[-1]


@pytest.mark.parametrize(
    ("fault", "check", "options"),
    [
        (scaled, "temperature", ("raw_logprobs", "SGLANG_RETURN_ORIGINAL_LOGPROB", "post_sampling_probs")),
        (dropped, "given", ("--logits_all true", "Ollama", "LiteLLM")),
    ],
)
def test_the_way_on_names_the_options_of_the_engines(fault: Fault, check: str, options: tuple[str, ...]) -> None:
    do = findings_of(fault)[check]["do"]
    assert all(option in do for option in options)


def thought(shown: str, numbers: bool) -> Fault:
    """A model that thinks before each answer: shown in a field, by tags, or counted only; with numbers or without."""
    before = [{"token": token, "logprob": -0.7, "top_logprobs": []} for token in ("<think>", "hm", " well", "</think>")]

    def fault(body: Body, answer: Body) -> Body:
        for choice in answer.get("choices", ()) if words(body) else ():
            if shown == "field":
                choice["message"]["reasoning_content"] = "hm well"
            elif shown == "tags":
                choice["message"]["content"] = "<think>hm well</think>" + choice["message"]["content"]
            elif shown == "counted":
                answer["usage"]["completion_tokens_details"] = {"reasoning_tokens": 4}
            if body.get("max_tokens", 99) <= 16:  # cut while it thinks
                choice["logprobs"]["content"] = choice["logprobs"]["content"][:0]
                choice["message"]["content"] = ""
            if numbers:
                choice["logprobs"]["content"] = [*deepcopy(before), *choice["logprobs"]["content"]]
                if shown == "unmarked":
                    choice["message"]["reasoning_content"] = "quite something else"
                    for entry in choice["logprobs"]["content"][:4]:
                        entry["token"] = entry["token"].strip("</>") + "."
            answer["usage"]["completion_tokens"] += 4
        return answer

    return fault


@pytest.mark.parametrize(
    ("shown", "numbers", "verdict"),
    [
        ("field", True, "ok"),
        ("tags", True, "ok"),
        ("field", False, "ok"),
        ("counted", False, "ok"),
        ("unmarked", True, "fault"),
    ],
)
def test_thinking_is_told_apart_or_named(shown: str, numbers: bool, verdict: str) -> None:
    with upstream(thought(shown, numbers)) as (url, came):
        report, _ = asked(url, "--thinking-tokens", "100")
    checks = {one["check"]: one for one in report["findings"]}
    assert checks["thinking"]["verdict"] == verdict, checks
    assert max(body.get("max_tokens", 0) for body in came) == 148
    # Thinking that is counted and has no numbers is no fault of the answer's numbers.
    assert checks["numbers"]["verdict"] == ("unknown" if (shown, numbers) == ("field", False) else verdict)


def test_what_cannot_be_asked_ends_with_2_and_shows_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", KEY)

    def refuses(body: Body, answer: Body) -> Any:
        return 401, {"error": {"message": f"wrong key {body['headers'].get('Authorization')}"}}

    with upstream(refuses) as (url, came):
        done = CliRunner().invoke(main, ["doctor", url, "m", "--api-key-env", "OTHER_KEY"])
    assert done.exit_code == 2
    assert "OTHER_KEY" in done.stderr
    assert KEY not in done.output
    assert any(KEY in body["headers"].get("authorization", body["headers"].get("Authorization", "")) for body in came)
    for wrong in (
        ["http://127.0.0.1:9/v1", "m", "--timeout", "5"],
        ["nonsense", "m"],
        [url, "m", "--extra-body", "[1]"],
    ):
        done = CliRunner().invoke(main, ["doctor", *wrong])
        assert done.exit_code == 2
        assert "Error:" in done.stderr


def test_what_a_server_says_is_one_line_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    error = {"error": {"message": f"\x1b[2J{KEY}\nnext"}}
    with upstream(as_stream(lambda lines: [lines[0], error])) as (url, _):
        done = CliRunner().invoke(main, ["doctor", url, "m"])
    [line] = [line for line in done.stdout.splitlines() if line.startswith("fault ")]
    assert "next" in line
    assert KEY not in done.output
    assert "\x1b" not in done.output


ODD: Any = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just([]), st.just({}), st.just([[]])
)
"""Values that may come at any place of an answer, where the server is broken."""


def spoilt(value: Any, data: st.DataObject) -> Any:
    """The value with something odd at one place in it."""
    if isinstance(value, dict) and value and data.draw(st.integers(0, 7)):
        name = data.draw(st.sampled_from(sorted(value)))
        return value | {name: spoilt(value[name], data)}
    if isinstance(value, list) and value and data.draw(st.integers(0, 7)):
        place = data.draw(st.integers(0, len(value) - 1))
        return [spoilt(held, data) if i == place else held for i, held in enumerate(value)]
    return data.draw(ODD)


@pytest.fixture(scope="module")
def sound_interview() -> Interview:
    with upstream() as (url, _):
        return asyncio.run(Interviewer(url, "m").ask_all())


@given(st.data())
def test_whatever_comes_there_are_findings(sound_interview: Interview, data: st.DataObject) -> None:
    replies = dict(sound_interview.replies)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(replies)))
        body = spoilt(replies[name].body, data)
        kind = list if name == "streamed" else dict
        replies[name] = replace(replies[name], body=body if isinstance(body, kind) else kind())
    thinks = data.draw(st.booleans())
    findings = diagnose(replace(sound_interview, replies=replies, thinks=thinks))
    assert findings[0].check == "given"
    assert {one.verdict for one in findings} <= {"ok", "unknown", "fault"}
    assert all(one.do for one in findings if one.verdict != "ok")
