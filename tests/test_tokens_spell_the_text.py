"""Log-probabilities are of the tokens of the answer that is shown: all of them, in every spelling, or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from metaprobe import QualityPredictor
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.import_line import run_of_line
from metaprobe.records.parse import parse_response
from metaprobe.records.types import Call, Segment
from metaprobe.routing.watch_stream import watch

CASES = Path(__file__).parent.parent.parent / "shared" / "cases" / "tokens_not_the_text"


def byte_level(piece: bytes) -> str:
    """A token as GPT-2's tokenizer spells it, by the table's definition: written here a second time."""
    shown = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    others = [byte for byte in range(256) if byte not in shown]
    return "".join(chr(byte) if byte in shown else chr(256 + others.index(byte)) for byte in piece)


def sentence_piece(piece: bytes) -> list[str]:
    try:
        return [piece.decode().replace(" ", "▁")]
    except UnicodeDecodeError:
        return [f"<0x{byte:02X}>" for byte in piece]


def when_complete(pieces: list[bytes]) -> list[str]:
    """Tokens as vLLM decodes them: nothing until a character is whole."""
    held, texts = b"", []
    for piece in pieces:
        held += piece
        try:
            texts.append(held.decode())
            held = b""
        except UnicodeDecodeError:
            texts.append("")
    return texts


SPELLINGS = {
    "text": lambda pieces: [piece.decode("utf-8", "replace") for piece in pieces],
    "byte-level": lambda pieces: [byte_level(piece) for piece in pieces],
    "SentencePiece": lambda pieces: [shown for piece in pieces for shown in sentence_piece(piece)],
    "when complete": when_complete,
    "bytes:": lambda pieces: ["bytes:" + "".join(f"\\x{byte:02x}" for byte in piece) for piece in pieces],
}


def completion(tokens: list[str], text: str, *, end: str = "", **more: Any) -> dict[str, Any]:
    entries = [{"token": token, "logprob": -0.1 - i / 7, "top_logprobs": []} for i, token in enumerate(tokens)]
    if end:
        entries.append({"token": end, "logprob": -0.01, "top_logprobs": []})
    choice = {"index": 0, "message": {"content": text}, "logprobs": {"content": entries}, "finish_reason": "stop"}
    return {"choices": [choice], **more}


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A text with something to see in it, and its UTF-8 bytes cut anywhere into tokens."""
    letters = st.sampled_from("abcdz .,\n\t0123é€日本😀ßİ½") | st.characters(
        exclude_categories=["Cs", "Cn", "Co", "Cc"]
    )
    text = draw(st.text(letters, min_size=1, max_size=30).filter(lambda text: "".join(text.split()).isprintable()))
    assume("".join(text.split()) and not set("<[▁#Ġ") & set(text))
    raw = text.encode()
    at = sorted(draw(st.sets(st.integers(1, max(1, len(raw) - 1)), max_size=12)))
    pieces = [raw[a:b] for a, b in zip([0, *at], [*at, len(raw)], strict=True) if raw[a:b]]
    return text, pieces


@given(cut_texts(), st.sampled_from(sorted(SPELLINGS)), st.sampled_from(["", "<|im_end|>", "</s>"]), st.booleans())
@example(("Hello there é", [b"Hello", b" there", b" \xc3", b"\xa9"]), "byte-level", "", True)
@example(("¡", [b"\xc2", b"\xa1"]), "byte-level", "", False)
@example(("😀", [b"\xf0\x9f", b"\x98", b"\x80"]), "text", "", False)
def test_every_sound_spelling_is_scored_without_a_word(
    cut: tuple[str, list[bytes]], spelling: str, end: str, counted: bool
) -> None:
    text, pieces = cut
    tokens = SPELLINGS[spelling](pieces)
    more = {"usage": {"prompt_tokens": 3, "completion_tokens": len(tokens) + bool(end)}} if counted else {}
    response = completion(tokens, text, end=end, **more)
    for parsed in (parse_response(response), parse_response(json.dumps(response))):
        assert len(parsed.logprobs) == len(tokens)
        assert parsed.note == ""
    stripped = completion(tokens, text.strip(), end=end, **more)  # as servers strip it
    assert len(parse_response(stripped).logprobs) == len(tokens)


@given(cut_texts(), st.sampled_from(sorted(SPELLINGS)), st.data())
def test_tokens_that_leave_out_words_of_the_answer_are_refused(
    cut: tuple[str, list[bytes]], spelling: str, data: st.DataObject
) -> None:
    text, pieces = cut
    seen = [i for i, piece in enumerate(pieces) if any(byte < 128 and chr(byte).isalnum() for byte in piece)]
    assume(seen)
    lost = {data.draw(st.sampled_from(seen)), *data.draw(st.sets(st.integers(0, len(pieces) - 1), max_size=3))}
    tokens = SPELLINGS[spelling]([piece for i, piece in enumerate(pieces) if i not in lost])
    assume(any(tokens))
    with pytest.raises(InvalidResponse, match="log-probabilities"):
        parse_response(completion(tokens, text))


@settings(max_examples=20)
@given(st.text("abcdefgh ", min_size=3, max_size=20), st.text("stuvwxyz ", min_size=1, max_size=20))
def test_tokens_of_other_words_are_refused(text: str, other: str) -> None:
    assume(text.strip() and other.strip())
    with pytest.raises(InvalidResponse, match="log-probabilities"):
        parse_response(completion(list(other), text))


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["Ċ", "ĠâĤ¬", "5"], "\n€5"),
        (["▁Paris", "▁is", "<0xE2>", "<0x82>", "<0xAC>"], "Paris is€"),
        (["play", "##ing"], "playing"),
        (["hel", "lo</w>"], "hello"),
        (["bytes:\\xe2\\x82", "bytes:\\xac", " yes"], "€ yes"),
        (["\ufffd", "\ufffd", " ok"], "é ok"),
        (["", "", "日", "本"], "日本"),
        (["token_id:15", "token_id:7"], "any words"),
        (["Well", "token_id:9", "!"], "Well done!"),
        (["", "", ""], "no names"),
        (["caf", "e\u0301"], "caf\u00e9"),
        (["ﬁ", "ne"], "fine"),
        (["A", "<tool_sep>", "B"], "AB"),
        ([" Hello", " .", " Bye"], "Hello. Bye"),
    ],
)
def test_spellings_in_use(tokens: list[str], text: str) -> None:
    assert parse_response(completion(tokens, text)).note == ""


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["Hi"], "Hello!"),
        (["", "b"], "ab"),
        (["\ufffd", "b"], "ab"),
        (["alpha"], "alpha zeta"),
    ],
)
def test_a_part_or_other_words_are_refused_by_every_reader(tokens: list[str], text: str) -> None:
    response = completion(tokens, text)
    call = Call(
        id="c", text=text, tokens=tuple(tokens), logprobs=np.float32([-0.5] * len(tokens)), finish_reason="stop"
    )
    entries = response["choices"][0]["logprobs"]["content"]
    message = {"type": "message", "content": [{"type": "output_text", "text": text, "logprobs": entries}]}
    stream = [
        {"choices": [{"index": 0, "delta": {"content": text}, "logprobs": {"content": entries}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    columns = {"tokens": tokens, "token_logprobs": [-0.5 - i for i in range(len(tokens))], "top_logprobs": None}
    forms: list[object] = [
        response,
        json.dumps(response),
        stream,
        call,
        {"object": "response", "status": "completed", "output": [message]},
        {"choices": [{"text": text, "logprobs": columns, "finish_reason": "stop"}]},
        {"text": text, "meta_info": {"output_token_logprobs": [[-0.5, 1, token] for token in tokens]}},
        {"content": text, "completion_probabilities": entries, "tokens_predicted": len(tokens), "stop_type": "eos"},
    ]
    predictor = QualityPredictor.load()
    for form in forms:
        with pytest.raises(InvalidResponse, match="log-probabilities"):
            predictor.predict(form)
    with pytest.raises(InvalidResponse, match="log-probabilities"):
        run_of_line({"response": response}, "line-1")
    list(watched := watch(stream, predictor))
    assert watched.verdict is None
    assert "log-probabilities" in watched.reason


def test_the_servers_count_is_held_against_the_tokens() -> None:
    def said(tokens: list[str], text: str, count: int) -> str:
        return parse_response(completion(tokens, text, usage={"completion_tokens": count})).note

    assert said(["a", "b"], "ab", 2) == said(["a", "b"], "ab", 3) == "", "an end token may be counted"
    assert "of 2 of the 9 tokens" in said(["a", "b"], "ab", 9)
    with pytest.raises(InvalidResponse, match="of 2 of the 9 tokens"):
        said(["", ""], "any words", 9)
    with pytest.raises(InvalidResponse, match="of 2 of the 5 tokens"):
        said(["a", "b"], "abcde", 5)
    two = completion(["a", "b"], "ab", usage={"completion_tokens": 9})
    two["choices"] *= 2
    assert parse_response(two, choice=1).note == "", "the usage counts all choices together"
    ids = completion(["a", "b"], "ab")
    ids["choices"][0]["token_ids"] = [1, 2, 3, 4]
    assert "of 2 of the 4 tokens" in parse_response(ids).note


def test_tokens_beyond_the_text_are_said_and_thinking_is_no_part_of_the_text() -> None:
    assert "not scored" in parse_response(completion(["Yes", "\nQ:", " no"], "Yes")).note
    more = parse_response(completion(["ĠYes", "Ċ", "Q", ":"], "Yes"))
    assert "more than the text" in more.note
    thinking = completion(["<think>", "hm", "</think>", "Yes"], "Yes")
    assert parse_response(thinking).segments == (Segment("thinking", 1, 2), Segment("answer", 3, 4))
    with pytest.raises(InvalidResponse, match="log-probabilities"):
        parse_response(completion(["<think>", "hm", "</think>", "Yes"], "<think>hm</think>Yes, it is"))


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")
def test_the_shared_cases() -> None:
    predictor = QualityPredictor.load(on_mismatch="ignore")
    for path in sorted(CASES.glob("*.json")):
        if path.name.startswith("sound_"):
            assert predictor.predict(path.read_text()).score is not None
        else:
            with pytest.raises(InvalidResponse, match="log-probabilities"):
                predictor.predict(path.read_text())


def lacking(tokens: list[str], text: str, **more: Any) -> str:
    """Returns the note on an answer, the same from an object and from its JSON."""
    response = completion(tokens, text, **more)
    notes = {parse_response(response).note, parse_response(json.dumps(response)).note}
    assert len(notes) == 1
    return notes.pop()


@pytest.mark.parametrize(
    ("tokens", "text", "of"),
    [
        (["The", " dog"], "The dog.", "2 of 3"),
        (["The", " dog"], "The dog.\n", "2 of 3"),
        (["The", "Ġdog"], "The dog!", "2 of 3"),
        (["▁The", "▁dog"], "The dog?!", "2 of 3"),
        (["She", " said", ' "', "no"], 'She said "no."', "4 of 5"),
        (["«", "Non"], "«Non»", "2 of 3"),
        (["是", "的"], "是的。", "2 of 3"),
        (["It", " is", " 5"], "It is 5.", "3 of 4"),
        (["about", " 5", "%"], "about 5%.", "3 of 4"),
        (["so", " on"], "so on...", "2 of 3"),
    ],
)
def test_an_answer_that_lacks_only_its_last_marks_is_scored_and_says_of_how_many(
    tokens: list[str], text: str, of: str
) -> None:
    assert f"log-probabilities of {of} tokens" in lacking(tokens, text)
    assert f"log-probabilities of {of} tokens" in lacking(tokens, text, end="<|im_end|>")
    counted = lacking(tokens, text, usage={"completion_tokens": len(tokens) + 3})
    assert f"log-probabilities of {len(tokens)} of {len(tokens) + 3} tokens" in counted
    call = Call(
        id="c", text=text, tokens=tuple(tokens), logprobs=np.float32([-0.5] * len(tokens)), finish_reason="stop"
    )
    assert f"log-probabilities of {of} tokens" in parse_response(call).note
    call = Call(**{name: getattr(call, name) for name in ("id", "text", "tokens", "logprobs")}, note=counted)
    assert parse_response(call).note.count("log-probabilities of") == 1, "a stored answer has the note already"


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["In", " 198"], "In 1984"),
        (["In", " 198"], "In 1984."),
        (["5"], "5%"),
        (["5"], "5!"),
        (["5"], "$5"),
        (["5"], "-5"),
        (["A"], "A+"),
        (["A"], "A-."),
        (["f"], "f'"),
        (["6"], '6"'),
        (["0.33"], "0.33..."),
        (["n"], "n!"),
        (["C"], "C#"),
        (["x", " = ", "1"], "x = 1;"),
        (["f(x"], "f(x)"),
        (["[1", ", 2"], "[1, 2)"),
        (["yes"], "yes, no"),
        (["yes"], "yes\u00b0"),
        (["yes"], "yes.\u00b2"),
        (["one", " dog"], "one. dog"),
        (["3", "5"], "3.5"),
        (["dog"], "dog" + "." * 20),
    ],
)
def test_a_letter_a_digit_or_a_sign_that_is_missing_is_refused(tokens: list[str], text: str) -> None:
    for form in (completion(tokens, text), json.dumps(completion(tokens, text))):
        with pytest.raises(InvalidResponse, match="log-probabilities"):
            parse_response(form)


@given(cut_texts(), st.sampled_from(sorted(SPELLINGS)), st.sampled_from("aZ0日é%-+$=*#)]}/^_~;:,"))
def test_whatever_else_is_missing_at_the_end_is_refused(
    cut: tuple[str, list[bytes]], spelling: str, missing: str
) -> None:
    text, pieces = cut
    with pytest.raises(InvalidResponse, match="log-probabilities"):
        parse_response(completion(SPELLINGS[spelling](pieces), text + missing + "."))


def test_the_last_mark_may_be_missing_after_thinking_and_before_an_end_token() -> None:
    thought = completion(["<think>", "hm", "</think>", "Paris", " it", " is"], "Paris it is.")
    assert "log-probabilities of 3 of 4 tokens" in parse_response(thought).note
    apart = completion(["hm", "Paris", " it", " is"], "Paris it is.")
    apart["choices"][0]["message"]["reasoning_content"] = "hm"
    parsed = parse_response(apart)
    assert parsed.segments == (Segment("thinking", 0, 1), Segment("answer", 1, 4))
    assert "log-probabilities of 3 of 4 tokens" in parsed.note
    for end in ("", "<eos>"):
        vllm = completion(["Paris", " it", " is", *([end] if end else [])], "Paris it is.")
        vllm["choices"][0]["stop_reason"] = None
        assert len(parse_response(vllm).logprobs) == 3
        assert "log-probabilities of 3 of 4 tokens" in parse_response(vllm).note
