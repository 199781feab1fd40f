"""`metaprobe doctor` names each fault of an endpoint, and says how to go on; a sound endpoint has none."""

import asyncio
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from doctored_server import Body, Fault, chunks, joined, upstream
from hypothesis import given, settings
from hypothesis import strategies as st

from metaprobe.cli import main
from metaprobe.llms.doctor import MOST_REQUESTS, Interview, Interviewer
from metaprobe.llms.doctor_findings import diagnose

KEY = "sk-planted-9Xz4-secret"


def asked(url: str, *options: str, model: str = "m") -> tuple[dict[str, Any], int]:
    """(the report as JSON, exit code)."""
    done = CliRunner().invoke(main, ["doctor", url, model, "--json", *options])
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout), done.exit_code


def found(fault: Fault | None, *options: str) -> tuple[dict[str, dict[str, str]], int]:
    """(finding by check, exit code) at an endpoint with this fault."""
    with upstream(fault) as (url, _):
        report, code = asked(url, *options)
    assert report["usable"] == (code == 0)
    return {one["check"]: one for one in report["findings"]}, code


def chat(body: Body, *, stream: bool | None = None) -> bool:
    return body["path"].endswith("chat/completions") and (stream is None or bool(body.get("stream")) == stream)


def every_entry(change: Callable[[int, Body], Body | None], where: Callable[[Body], bool] = chat) -> Fault:
    """A fault of chat completions: each token's entry is changed, or left out."""

    def fault(body: Body, answer: Body) -> Body:
        for choice in answer["choices"] if where(body) else ():
            if given := (choice.get("logprobs") or {}).get("content"):
                new = [change(i, deepcopy(entry)) for i, entry in enumerate(given)]
                choice["logprobs"] = {"content": [entry for entry in new if entry is not None]}
        return answer

    return fault


def every_choice(change: Callable[[Body, Body], None], where: Callable[[Body], bool] = chat) -> Fault:
    """A fault of chat completions: each choice is changed; the request comes second."""

    def fault(body: Body, answer: Body) -> Body:
        for choice in answer["choices"] if where(body) else ():
            change(choice, body)
        return answer

    return fault


def test_a_sound_endpoint_is_ok_in_every_check_within_the_promised_requests() -> None:
    with upstream() as (url, came):
        report, code = asked(url)
    verdicts = {one["check"]: one["verdict"] for one in report["findings"]}
    assert verdicts.pop("thinking") == "unknown"  # the model does not think, so nothing shows how that is told
    assert set(verdicts.values()) == {"ok"}
    assert len(verdicts) == 12
    assert code == 0
    assert report["spent"]["requests"] == len(came) <= MOST_REQUESTS
    assert report["spent"]["completion_tokens"] < 200
    limits = [body.get("max_tokens", body.get("max_output_tokens", 0)) for body in came]
    assert max(limits) <= 96


def test_the_table_for_people_has_a_line_a_check_and_a_way_on() -> None:
    with upstream(every_entry(lambda i, entry: entry if i > 3 else None)) as (url, _):
        done = CliRunner().invoke(main, ["doctor", url, "m"])
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    [at] = [i for i, line in enumerate(lines) if line.split()[:2] == ["fault", "spelling"]]
    assert "->" in lines[at + 1]
    assert "requests" in lines[-1]


# --- whether they are given


def fails_with(*fields: str, status: int = 500) -> Fault:
    """The endpoint refuses requests that hold one of these fields."""
    refusal = {"error": {"message": f"{fields[0]} is not possible here"}}
    return lambda body, answer: (status, refusal) if any(body.get(name) for name in fields) else answer


@pytest.mark.parametrize("status", [500, 400, 422])
def test_a_request_that_fails_because_of_logprobs_is_told_from_one_that_fails(status: int) -> None:
    checks, code = found(fails_with("logprobs", "include", status=status))
    assert checks["given"]["verdict"] == "fault"
    assert "makes the request fail" in checks["given"]["found"]
    assert "logprobs is not possible here" in checks["given"]["found"]
    assert checks["given"]["do"]
    assert code == 1


def test_a_failure_that_passes_is_no_fault_of_logprobs() -> None:
    left = [500]

    def once(body: Body, answer: Body) -> Any:
        return (left.pop(), {"error": {"message": "busy"}}) if left and chat(body) else answer

    checks, code = found(once)
    assert checks["given"]["verdict"] == "unknown"
    assert "busy" in checks["given"]["found"]
    assert code == 0


def test_an_endpoint_that_refuses_alternatives_is_asked_without() -> None:
    checks, code = found(fails_with("top_logprobs", status=400))
    assert checks["given"]["verdict"] == "unknown"
    assert "top_logprobs is not possible here" in checks["given"]["found"]
    assert checks["temperature"]["verdict"] == "unknown"
    assert (checks["spelling"]["verdict"], code) == ("ok", 0)


def dropped(body: Body, answer: Body) -> Body:
    for choice in answer.get("choices", ()):
        choice["logprobs"] = None
    return answer


def test_numbers_that_are_dropped_without_a_word_are_missed() -> None:
    checks, code = found(dropped)
    assert (checks["given"]["verdict"], code) == ("fault", 1)
    assert "logprobs" in checks["given"]["do"]
    assert checks["text completion"]["verdict"] == "fault"
    assert checks["Responses API"]["verdict"] == "ok"


def test_the_option_without_which_llama_cpp_python_drops_numbers_is_named() -> None:
    def named(body: Body, answer: Body) -> Body:
        if body["path"].endswith("/models"):
            answer["data"][0]["owned_by"] = "me"
        return dropped(body, answer)

    assert "--logits_all true" in found(named)[0]["given"]["do"]


@pytest.mark.parametrize(
    ("owner", "option"),
    [("vllm", "raw_logprobs"), ("sglang", "SGLANG_RETURN_ORIGINAL_LOGPROB"), ("llamacpp", "post_sampling_probs")],
)
def test_the_way_on_is_the_engines_own_option(owner: str, option: str) -> None:
    def named(body: Body, answer: Body) -> Body:
        if body["path"].endswith("/models"):
            answer["data"][0]["owned_by"] = owner
        return scaled(body, answer)

    checks, _ = found(named)
    assert option in checks["temperature"]["do"]


# --- faults that one answer shows


def other(entry: Body, **fields: Any) -> Body:
    return entry | fields


def shifted(choice: Body, body: Body) -> None:
    given = choice["logprobs"]["content"] if choice["logprobs"] else []
    choice["logprobs"] = {"content": [*given[1:], {"token": "<|im_end|>", "logprob": -0.1, "top_logprobs": []}]}


def widened(answer: Body) -> Body:
    """Tokens that no text shows stand before and after the answer's, and are counted."""
    more = [{"token": token, "logprob": -6.0, "top_logprobs": []} for token in (" and", " so")]
    for choice in answer.get("choices", ()):
        if given := (choice["logprobs"] or {}).get("content"):
            choice["logprobs"]["content"] = [more[0], *given, more[1]]
            answer["usage"]["completion_tokens"] += 2
    return answer


def prompted(choice: Body) -> None:
    if choice["logprobs"]:
        before = [{"token": token, "logprob": -6.0, "top_logprobs": []} for token in ("What", " is", " the")]
        choice["logprobs"]["content"] = [*before, *choice["logprobs"]["content"]]


def likeliest(i: int, entry: Body) -> Body:
    return entry | entry["top_logprobs"][0]


def twice(i: int, entry: Body) -> Body:
    rows = entry["top_logprobs"]
    return entry | {"top_logprobs": [rows[0], *rows[:4]]}


def absent(i: int, entry: Body) -> Body:
    """The alternatives of another place, as where a chunk repeats those of its first token."""
    return entry | {"top_logprobs": [row | {"token": f"x{k}"} for k, row in enumerate(entry["top_logprobs"])]}


def null(i: int, entry: Body) -> Body:
    entry["top_logprobs"][2]["logprob"] = None
    return entry


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


ONE_ANSWER: list[tuple[str, Fault, str, str]] = [
    ("only the last three", every_entry(lambda i, entry: entry if i > 3 else None), "spelling", "numbers"),
    ("only the first", every_entry(lambda i, entry: entry if i < 1 else None), "spelling", "numbers"),
    ("one is missing", every_entry(lambda i, entry: None if i == 2 else entry), "spelling", "numbers"),
    ("another word", every_entry(lambda i, entry: other(entry, token=" Rome") if i == 1 else entry), "spelling", ""),
    ("more tokens than the text", lambda b, a: widened(a), "spelling", "outside"),
    (
        "the prompt's tokens before the answer's",
        every_choice(lambda choice, body: prompted(choice)),
        "count",
        "numbers",
    ),
    ("shifted by one", every_choice(shifted, lambda b: chat(b) and "tools" not in b), "spelling", "next token"),
    ("the likeliest in place of the drawn", every_entry(likeliest), "spelling", "likeliest"),
    ("fewer numbers than the usage counts", lambda b, a: a | usage(a, 30), "count", "numbers"),
    ("the drawn token twice", every_entry(twice), "alternatives", ""),
    ("a sum above 1", every_entry(lambda i, e: certain(e)), "alternatives", ""),
    ("alternatives of another place", every_entry(absent), "alternatives", ""),
    ("null among the alternatives", every_entry(null), "alternatives", "number"),
    ("all 0", every_entry(lambda i, e: other(e, logprob=0.0, top_logprobs=[])), "numbers", "speculative"),
    ("a constant", every_entry(lambda i, e: other(e, logprob=-1.386, top_logprobs=[])), "numbers", ""),
    (
        "the first real, the rest 0",
        every_entry(lambda i, e: e if i == 0 else other(e, logprob=0.0, top_logprobs=[])),
        "numbers",
        "speculative",
    ),
    ("-9999", every_entry(lambda i, e: other(e, logprob=-9999.0) if i == 1 else e), "numbers", "-9999"),
    ("above 0", every_entry(lambda i, e: other(e, logprob=0.74, top_logprobs=[])), "numbers", "log-probabilities"),
    ("not a number", every_entry(lambda i, e: other(e, logprob=float("nan")) if i == 1 else e), "numbers", "top_p"),
    ("minus infinity", every_entry(lambda i, e: other(e, logprob=-float("inf")) if i == 1 else e), "numbers", "top_p"),
    ("null", every_entry(lambda i, e: other(e, logprob=None) if i == 1 else e), "numbers", "number"),
]


def usage(answer: Body, counted: int) -> Body:
    return {"usage": {"prompt_tokens": 9, "completion_tokens": counted}} if "choices" in answer else {}


def certain(entry: Body) -> Body:
    return entry | {"top_logprobs": [row | {"logprob": -0.2} for row in entry["top_logprobs"]]}


@pytest.mark.parametrize(
    ("fault", "check", "noun"), [row[1:] for row in ONE_ANSWER], ids=[row[0] for row in ONE_ANSWER]
)
def test_a_fault_of_the_numbers_is_named_with_a_way_on(fault: Fault, check: str, noun: str) -> None:
    checks, code = found(fault)
    assert checks[check]["verdict"] == "fault", checks
    assert checks[check]["do"]
    assert noun in checks[check]["do"]
    assert code == 1


def spelt(how: Callable[[str], str]) -> Fault:
    def respelt(i: int, entry: Body) -> Body:
        rows = [row | {"token": how(row["token"])} for row in entry["top_logprobs"]]
        return entry | {"token": how(entry["token"]), "top_logprobs": rows}

    return every_entry(respelt)


@pytest.mark.parametrize(
    "how",
    [
        lambda token: token.replace(" ", "Ġ"),
        lambda token: token.replace(" ", "▁"),
        lambda token: "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.encode()),
    ],
    ids=["byte-level", "sentencepiece", "bytes"],
)
def test_a_sound_spelling_is_ok_and_named(how: Callable[[str], str]) -> None:
    checks, code = found(spelt(how))
    assert (checks["spelling"]["verdict"], code) == ("ok", 0)
    assert "plain" not in checks["spelling"]["found"]


def test_an_answer_that_repeats_the_question_is_named() -> None:
    def echoed(body: Body, answer: Body) -> Body:
        if chat(body) and "tools" not in body:
            answer["choices"][0]["message"]["content"] = body["messages"][-1]["content"] + joined(
                answer["choices"][0]["logprobs"]["content"]
            )
        return answer

    checks, _ = found(echoed)
    assert checks["spelling"]["verdict"] == "fault"
    assert "echo" in checks["spelling"]["do"]


def test_tokens_that_are_ids_leave_it_unknown_whose_they_are() -> None:
    checks, _ = found(spelt(lambda token: f"token_id:{sum(token.encode())}"))
    assert checks["spelling"]["verdict"] == "unknown"
    assert "return_tokens_as_token_ids" in checks["spelling"]["do"]


def test_fewer_alternatives_than_asked_for_are_said_and_no_fault() -> None:
    checks, code = found(every_entry(lambda i, e: other(e, top_logprobs=e["top_logprobs"][:2])))
    assert (checks["alternatives"]["verdict"], code) == ("unknown", 0)
    assert "2 a token of 5" in checks["alternatives"]["found"]


def test_alternatives_that_are_filled_up_with_minus_9999_are_counted_as_missing() -> None:
    def filled(i: int, entry: Body) -> Body:
        rows = entry["top_logprobs"]
        return entry | {"top_logprobs": [*rows[:3], *({**row, "logprob": -9999.0} for row in rows[3:])]}

    assert "3 a token of 5" in found(every_entry(filled))[0]["alternatives"]["found"]


def test_a_penalty_that_chooses_the_tokens_at_temperature_0_is_named() -> None:
    def second(choice: Body, body: Body) -> None:
        entries = choice["logprobs"]["content"]
        entries[-1] |= entries[-1]["top_logprobs"][1]
        choice["message"]["content"] = joined(entries)

    checks, code = found(
        every_choice(second, lambda body: chat(body) and body["temperature"] == 0 and "tools" not in body)
    )
    assert (checks["alternatives"]["verdict"], code) == ("unknown", 0)
    assert "repeat_penalty" in checks["alternatives"]["do"]


def test_the_older_shape_of_columns_is_read_in_chats_too() -> None:
    def columns(choice: Body, body: Body) -> None:
        if given := choice["logprobs"]:
            tops = [{row["token"]: row["logprob"] for row in e["top_logprobs"]} for e in given["content"]]
            named = {"tokens": "token", "token_logprobs": "logprob"}
            held = {name: [e[key] for e in given["content"]] for name, key in named.items()}
            choice["logprobs"] = held | {"top_logprobs": tops}

    checks, _ = found(every_choice(columns, lambda body: chat(body, stream=False)))
    assert {one["verdict"] for check, one in checks.items() if check not in ("streamed", "thinking")} == {"ok"}


# --- faults that only several answers show


def only_zeros_when_cold(i: int, entry: Body) -> Body:
    rows = [entry["top_logprobs"][0] | {"logprob": 0.0}]
    return entry | {"logprob": 0.0, "top_logprobs": rows}


def test_numbers_after_the_temperature_are_told_from_raw_ones() -> None:
    checks, code = found(scaled)
    assert (checks["temperature"]["verdict"], code) == ("fault", 1)
    assert "raw_logprobs" in checks["temperature"]["do"]
    cold = every_entry(only_zeros_when_cold, lambda body: chat(body) and not body.get("temperature"))
    checks, _ = found(cold)
    assert checks["temperature"]["verdict"] == "fault"


def test_a_temperature_that_is_ignored_proves_nothing() -> None:
    cold = every_choice(
        lambda choice, body: choice["logprobs"] and _greedy(choice), lambda b: b.get("temperature") == 1.5
    )
    checks, _ = found(cold)
    assert checks["temperature"]["verdict"] == "unknown"


def _greedy(choice: Body) -> None:
    choice["logprobs"]["content"] = [likeliest(0, entry) for entry in choice["logprobs"]["content"]]
    choice["message"]["content"] = joined(choice["logprobs"]["content"])


def ended(word: object) -> Fault:
    return every_choice(lambda choice, body: choice.update(finish_reason=word), lambda b: chat(b) and "tools" not in b)


@pytest.mark.parametrize(("word", "verdict"), [("stop", "fault"), (None, "fault"), ("abort", "unknown")])
def test_an_end_that_tells_nothing_is_named(word: object, verdict: str) -> None:
    checks, _ = found(ended(word))
    assert checks["finish"]["verdict"] == verdict
    assert "max_tokens" in checks["finish"]["do"]


# --- streams


def as_stream(change: Callable[[list[Any]], list[Any]], per_chunk: int = 1) -> Fault:
    return lambda body, answer: change(chunks(answer, per_chunk)) if chat(body, stream=True) else answer


def repeated(lines: list[Any]) -> list[Any]:
    """Every token of a chunk has the alternatives of the chunk's first token."""
    for line in lines[:-2]:
        given = (line["choices"][0].get("logprobs") or {}).get("content") or []
        for entry in given[1:]:
            entry["top_logprobs"] = given[0]["top_logprobs"]
    return lines


def bare(lines: list[Any]) -> list[Any]:
    for line in lines[:-2]:
        line["choices"][0]["logprobs"] = None
    return lines


def halved(lines: list[Any]) -> list[Any]:
    """The numbers are of other tokens than without streaming."""
    for line in lines[:-2]:
        for entry in (line["choices"][0].get("logprobs") or {}).get("content") or []:
            entry["logprob"] -= 2
            entry["top_logprobs"] = []
    return lines


STREAMS: list[tuple[str, Fault, str]] = [
    ("no numbers", as_stream(bare), "fault"),
    ("alternatives repeated in a chunk", as_stream(repeated, 3), "fault"),
    ("other numbers", as_stream(halved), "fault"),
    ("tokens left out", as_stream(lambda lines: [without_numbers(lines[0]), *lines[1:]]), "fault"),
    ("no end", as_stream(lambda lines: [*lines[:-3], *lines[-2:]]), "fault"),
    ("an error in a chunk", as_stream(lambda lines: [lines[0], {"error": {"message": "out of memory"}}]), "fault"),
    ("two [DONE]", as_stream(lambda lines: [*lines, "[DONE]"]), "unknown"),
    ("no [DONE]", as_stream(lambda lines: lines[:-1]), "unknown"),
    ("no usage", as_stream(lambda lines: [*lines[:-2], lines[-1]]), "unknown"),
    ("three tokens a chunk", as_stream(lambda lines: lines, 3), "ok"),
]


def without_numbers(line: Body) -> Body:
    choice = line["choices"][0] | {"logprobs": None}
    return line | {"choices": [choice]}


@pytest.mark.parametrize(("fault", "verdict"), [row[1:] for row in STREAMS], ids=[row[0] for row in STREAMS])
def test_a_stream_is_held_against_the_whole_answer(fault: Fault, verdict: str) -> None:
    checks, code = found(fault)
    assert checks["streamed"]["verdict"] == verdict, checks["streamed"]
    assert code == (verdict == "fault")
    assert bool(checks["streamed"]["do"]) == (verdict != "ok")


# --- two answers, tools, thinking, other ways to ask


def copied(body: Body, answer: Body) -> Body:
    if body.get("n") == 2:
        first, second = answer["choices"]
        numbers = [entry["logprob"] for entry in first["logprobs"]["content"]]
        for entry, number in zip(second["logprobs"]["content"], numbers, strict=True):
            entry |= {"logprob": number, "top_logprobs": []}
    return answer


def second_bare(body: Body, answer: Body) -> Body:
    if body.get("n") == 2:
        answer["choices"][1]["logprobs"] = None
    return answer


def one_only(body: Body, answer: Body) -> Body:
    return answer | {"choices": answer["choices"][:1]} if "choices" in answer else answer


@pytest.mark.parametrize(("fault", "verdict"), [(copied, "fault"), (second_bare, "fault"), (one_only, "unknown")])
def test_two_answers_have_numbers_of_their_own(fault: Fault, verdict: str) -> None:
    checks, _ = found(fault)
    assert checks["n = 2"]["verdict"] == verdict
    assert "one answer" in checks["n = 2"]["do"]


def in_words(choice: Body, body: Body) -> None:
    said = '<tool_call>{"name": "get_weather"}</tool_call>'
    entries = [{"token": said, "logprob": -0.4, "top_logprobs": []}]
    choice.update(message={"role": "assistant", "content": said}, logprobs={"content": entries}, finish_reason="stop")


def test_a_tool_call_that_comes_as_words_is_named() -> None:
    checks, code = found(every_choice(in_words, lambda body: bool(body.get("tools"))))
    assert (checks["tool call"]["verdict"], code) == ("fault", 1)
    assert "parser" in checks["tool call"]["do"]


def thought(shown: str, numbers: bool) -> Fault:
    """A model that thinks before each answer: shown in a field, by tags, or counted only; with numbers or without."""
    before = [{"token": token, "logprob": -0.7, "top_logprobs": []} for token in ("<think>", "hm", " well", "</think>")]

    def fault(body: Body, answer: Body) -> Body:
        for choice in answer.get("choices", ()) if chat(body) and not body.get("tools") else ():
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
    assert checks["spelling"]["verdict"] == verdict
    # Thinking that is counted and has no numbers is no fault of the answer's numbers.
    assert checks["count"]["verdict"] == ("unknown" if (shown, numbers) == ("field", False) else "ok")


def test_a_model_that_thinks_on_until_it_is_cut_leaves_it_unknown() -> None:
    def endless(choice: Body, body: Body) -> None:
        thoughts = [{"token": " hm", "logprob": -0.5 - i / 9, "top_logprobs": []} for i in range(6)]
        choice["message"] = {"role": "assistant", "content": "", "reasoning_content": " hm" * 6}
        choice.update(logprobs={"content": thoughts}, finish_reason="length")

    checks, _ = found(every_choice(endless, lambda body: chat(body, stream=False) and "tools" not in body))
    assert checks["thinking"]["verdict"] == "unknown"
    assert "--thinking-tokens" in checks["thinking"]["do"]
    assert checks["spelling"]["verdict"] == "unknown"


def test_an_endpoint_without_the_other_ways_to_ask_has_no_line_for_them() -> None:
    def chats_only(body: Body, answer: Body) -> Any:
        return answer if chat(body) else (404, {"error": {"message": "not found"}})

    checks, code = found(chats_only)
    assert code == 0
    assert not {"text completion", "Responses API"} & set(checks)


def test_a_text_completion_of_other_tokens_is_named() -> None:
    def other_tokens(body: Body, answer: Body) -> Body:
        if body["path"].endswith("v1/completions"):
            answer["choices"][0]["logprobs"]["tokens"][0] = " London"
        return answer

    checks, code = found(other_tokens)
    assert (checks["text completion"]["verdict"], code) == ("fault", 1)
    assert "chat" in checks["text completion"]["do"]


# --- what cannot be asked, and what must not be shown


def test_an_endpoint_that_cannot_be_asked_ends_with_2_and_shows_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", KEY)

    def refuses(body: Body, answer: Body) -> Any:
        return 401, {"error": {"message": f"wrong key {body['headers'].get('Authorization')}"}}

    with upstream(refuses) as (url, came):
        done = CliRunner().invoke(main, ["doctor", url, "m", "--api-key-env", "OTHER_KEY"])
    assert done.exit_code == 2
    assert "OTHER_KEY" in done.stderr
    assert KEY not in done.output
    assert any(KEY in body["headers"].get("authorization", body["headers"].get("Authorization", "")) for body in came)


def test_what_a_server_says_is_one_line_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    told = {"error": {"message": f"\x1b[2J{KEY}\nnext"}}
    with upstream(as_stream(lambda lines: [lines[0], told])) as (url, _):
        done = CliRunner().invoke(main, ["doctor", url, "m"])
    [line] = [line for line in done.stdout.splitlines() if line.startswith("fault ")]
    assert "next" in line
    assert KEY not in done.output
    assert "\x1b" not in done.output


def test_nobody_there_and_no_address_end_with_2() -> None:
    for url in ("http://127.0.0.1:9/v1", "nonsense"):
        done = CliRunner().invoke(main, ["doctor", url, "m", "--timeout", "5"])
        assert done.exit_code == 2
        assert "Error:" in done.stderr


def test_further_fields_reach_every_question() -> None:
    with upstream() as (url, came):
        asked(url, "--extra-body", '{"repeat_penalty": 1.0}')
    assert all(body.get("repeat_penalty") == 1.0 for body in came if not body["path"].endswith("models"))
    assert CliRunner().invoke(main, ["doctor", url, "m", "--extra-body", "[1]"]).exit_code == 2


ODD: Any = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just([]), st.just({}), st.just([[]])
)
"""What may stand at any place of an answer whose server is broken."""


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


@settings(max_examples=200, deadline=None)
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
