"""Chunks of more than one answer are refused by every reader, and sound streams of every kind are one answer."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from chat_completions import server_sent
from hypothesis import given
from hypothesis import strategies as st

from metaprobe import QualityPredictor
from metaprobe.probes.score_lines import score_lines
from metaprobe.production.http.completion_json import read_chat
from metaprobe.production.http.judges import Scorer
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.streamed_answer import ScoredStream
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.import_line import run_of_line
from metaprobe.records.parse import parse_response
from metaprobe.routing.watch_stream import watch

CASES = Path(__file__).parent.parent.parent / "shared" / "cases" / "two_answers"
Chunk = dict[str, Any]


@cache
def predictor() -> QualityPredictor:
    return QualityPredictor.load(on_mismatch="ignore")


def chunk(content: str | None = None, logprob: float = -0.5, *, end: str | None = None, **more: Any) -> Chunk:
    """A chunk of a chat completion. `more`: role, thought, index and fields of the chunk itself."""
    delta = {} if content is None else {"content": content}
    delta |= {"role": more.pop("role")} if "role" in more else {}
    delta |= {"reasoning_content": more.pop("thought")} if "thought" in more else {}
    entries = [{"token": content, "logprob": logprob, "top_logprobs": []}] if content else None
    logprobs = {"content": entries} if entries else None
    choice = {"index": more.pop("index", 0), "delta": delta, "logprobs": logprobs, "finish_reason": end}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]} | more


def words(*texts: str, first: float = -0.25, **more: Any) -> list[Chunk]:
    return [chunk(text, first - i / 7, **more) for i, text in enumerate(texts)]


OPEN, END = chunk("", role="assistant"), chunk(end="stop")
PARIS, LYON = words("Pa", "ris", "."), words("Ly", "on", "!", first=-2.0)
USAGE = {"id": "c1", "model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}}


def text_chunk(text: str, logprob: float | None = None, end: str | None = None, model: str = "m") -> Chunk:
    columns = None if logprob is None else {"tokens": [text], "token_logprobs": [logprob], "top_logprobs": None}
    choice = {"index": 0, "text": text, "logprobs": columns, "finish_reason": end}
    return {"id": "t", "object": "text_completion", "model": model, "choices": [choice]}


def ollama(text: str, logprob: float = -0.5, done: bool = False) -> Chunk:
    rows = [{"token": text, "logprob": logprob}] if text else []
    message = {"role": "assistant", "content": text}
    return {"model": "m", "message": message, "logprobs": rows, "done": done, "done_reason": "stop" if done else None}


def without_id(*chunks: Chunk) -> list[Chunk]:
    return [one | {"id": None} for one in chunks]


def whole(text: str) -> Chunk:
    """A completion that was not streamed, as a proxy without streaming joins it to one."""
    message = {"role": "assistant", "content": text}
    logprobs = {"content": [{"token": text, "logprob": -0.5, "top_logprobs": []}]}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"}
    return {"id": "c9", "object": "chat.completion", "model": "m", "choices": [choice]}


PLACE = {"output_index": 0, "content_index": 0}


def event(delta: str, logprob: float, number: int | None = None) -> Chunk:
    row = {"type": "response.output_text.delta", "delta": delta, "logprobs": [{"token": delta, "logprob": logprob}]}
    return row | PLACE | ({} if number is None else {"sequence_number": number})


def closing(id: str, number: int | None = None, kind: str = "completed") -> Chunk:
    response = {"id": id, "object": "response", "status": "in_progress" if kind == "created" else "completed"}
    return {"type": f"response.{kind}", "response": response | {"output": []}} | (
        {} if number is None else {"sequence_number": number}
    )


def counted(chunks: list[Chunk]) -> list[Chunk]:
    return [one | {"id": f"chat.id.{number}"} for number, one in enumerate(chunks)]


def with_roles(chunks: list[Chunk]) -> list[Chunk]:
    made: list[Chunk] = json.loads(json.dumps(chunks))
    for one in made:
        for choice in one["choices"]:
            choice["delta"]["role"] = "assistant"
    return made


def of_item(one: Chunk, item: str, place: int = 0) -> Chunk:
    return one | {"item_id": item, "output_index": place}


FILTER = {"id": "", "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
LATE_FILTER = {"id": "", "model": "", "choices": [
    {"index": 0, "finish_reason": None, "content_filter_offsets": {"end_offset": 9},
     "content_filter_results": {"hate": {"filtered": False}}, "delta": {}}
]}  # fmt: skip

SOUND: dict[str, list[Chunk]] = {
    "as OpenAI sends them": [OPEN, *PARIS, END, USAGE],
    "ids count up": counted([OPEN, *PARIS, END]),
    "random ids and a role on each": counted(with_roles([OPEN, *PARIS, END])),
    "a role on each": with_roles([OPEN, *PARIS, END]),
    "a role on each, and a chunk without text": with_roles([*PARIS[:2], chunk(""), PARIS[2], END]),
    "the whole answer once more at its end": [
        OPEN, *PARIS, END, {"id": "c1", "object": "chat.completion", "model": "m", "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Paris."}, "finish_reason": "stop"}]}],
    "the role comes with the first text": [chunk("Pa", role="assistant"), *PARIS[1:], END],
    "a role on the last chunk": [OPEN, *PARIS, chunk("", end="stop", role="assistant"), USAGE],
    "the role is null": [OPEN, *(one | {} for one in words("Pa", "ris", ".", role=None)), END],
    "the end comes with the last text": [OPEN, *PARIS[:2], chunk(".", end="stop"), USAGE],
    "the end comes twice": [OPEN, *PARIS, END, END, chunk("", end="stop")],
    "chunks without text after the end": [OPEN, *PARIS, END, chunk(""), USAGE, {"choices": []}, {}],
    "filters of Azure": [FILTER, OPEN, *PARIS, END, LATE_FILTER],
    "the model's name comes late": [OPEN | {"model": ""}, PARIS[0] | {"model": None}, *PARIS[1:], END | {"model": ""}],
    "no ids and no names": [{"choices": one["choices"]} for one in (OPEN, *PARIS, END)],
    "the id comes late": [OPEN | {"id": ""}, PARIS[0] | {"id": None}, *PARIS[1:], END],
    "a role again after the thinking": [chunk(thought="Hm"), OPEN, *PARIS, END],
    "words that come again": [OPEN, *words("no", " no", "no", " no", "no", " no"), END],
    "one token again and again": [OPEN, *[chunk("ha", -0.5)] * 3, chunk("!", -0.25), END],
    "text completion": [text_chunk("Pa", -0.5), text_chunk("ris", -0.25), text_chunk("", end="stop")],
    "Ollama": [ollama("Pa"), ollama("ris", -0.25), ollama("", done=True)],
    "no index": [{**one, "choices": [one["choices"][0] | {"index": None}]} for one in (OPEN, *PARIS, END)],
    "a role again before the answer": [chunk(thought="Hm"), chunk(thought=" so"), OPEN, *PARIS, END],
    "events of an item": [of_item(event("Pa", -0.5), "i"), of_item(event("ris", -0.25), "i"), closing("r")],
    "events whose items count up": [of_item(event("Pa", -0.5), "i"), of_item(event("ris", -0.25), "k"), closing("r")],
    "events of two parts": [of_item(event("Pa", -0.5), "i"), of_item(event("ris", -0.25), "i"),
                            of_item(event(".", -0.5), "k", 1), of_item(event(".", -0.25), "k", 1), closing("r")],
    "events": [closing("r", kind="created"), event("Pa", -0.5), event("ris", -0.25), closing("r")],
    "numbered events out of order": [closing("r", 3), event("ris", -0.25, 2), event("Pa", -0.5, 1)],
}  # fmt: skip
TWO: dict[str, list[Chunk]] = {
    "text after an end": [OPEN, *PARIS, END, *LYON, END],
    "text after an end with text": [*PARIS[:2], chunk(".", end="stop"), *LYON, END],
    "thinking after an end": [*PARIS, END, chunk(thought="Hm"), END],
    "one word after an end and its usage": [*PARIS, END, USAGE, chunk("!", -2.0)],
    "a second role": [OPEN, *PARIS, OPEN, *LYON, END],
    "a second role with text": [OPEN, *PARIS, chunk("Ly", role="assistant"), *LYON[1:], END],
    "another model": [OPEN, *PARIS, *(one | {"model": "other"} for one in LYON), END | {"model": "other"}],
    "another model at the end": [OPEN, *PARIS, END | {"model": "other"}],
    "another id": [OPEN, *PARIS, *(one | {"id": "c2"} for one in (*LYON, END))],
    "another id, each named once": [OPEN, PARIS[0], *without_id(*PARIS[1:]), LYON[0] | {"id": "c2"},
                                    *without_id(*LYON[1:], END)],
    "a whole answer among the chunks": [
        OPEN, *PARIS, {**whole("Lyon"), "id": "c1", "choices": [{"index": 0, "message": {"content": "Lyon"}}]}, END],
    "a whole answer after the chunks": [OPEN, *PARIS, END, whole("Lyon")],
    "two whole answers": [whole("Paris"), whole("Lyon")],
    "each chunk twice": [one for one in (OPEN, *PARIS, END) for _ in range(2)],
    "another id in the end": [*PARIS, LYON[0] | {"id": "c2"}, END],
    "ids by turns": [one | {"id": f"c{i % 2}"} for i, one in enumerate((*PARIS, *LYON))] + [END],
    "a retry": [OPEN, *PARIS[:2], OPEN | {"id": "c2"}, *(one | {"id": "c2"} for one in (*PARIS, END))],
    "a retry under the same id": [OPEN, *PARIS[:2], *PARIS, END],
    "a retry of the whole answer": [OPEN, *PARIS, *PARIS, END],
    "a retry that was cut": [OPEN, *PARIS, *PARIS[:2], END],
    "two choices of one index": [OPEN, *PARIS, {**LYON[0], "choices": LYON[0]["choices"] + LYON[1]["choices"]}, END],
    "two roles where each chunk has one": with_roles([*PARIS, END, *LYON, END]),
    "text completions": [text_chunk("Pa", -0.5), text_chunk("", end="stop")] * 2,
    "text completions of two models": [text_chunk("Pa", -0.5), text_chunk("Ly", -2.0, "stop", model="other")],
    "Ollama": [ollama("Pa"), ollama("", done=True), ollama("Ly", -2.0), ollama("", done=True)],
    "events of two responses": [closing("r", kind="created"), event("Pa", -0.5), closing("s", kind="created"),
                                event("Ly", -2.0), closing("s")],
    "thinking that begins anew": [OPEN, chunk(thought="Hm"), OPEN, chunk(thought="Er"), *LYON, END],
    "events of two responses without ids": [closing("", kind="created"), event("Pa", -0.5), event("ris", -0.25),
                                            closing("", kind="created"), event("Ly", -2.0), closing("")],
    "events of two items": [*(of_item(event(one, -0.5), "i") for one in ("Pa", "ris")),
                            *(of_item(event(one, -2.0), "k") for one in ("Ly", "on"))],
    "events after the last": [event("Pa", -0.5), closing("r"), event("Ly", -2.0), closing("r")],
}  # fmt: skip


def told_by_predict(chunks: list[Chunk]) -> tuple[float | None, str]:
    try:
        verdict = predictor().predict(chunks)
    except InvalidResponse as error:
        return None, str(error)
    return verdict.score, verdict.reason


def told_by_watch(chunks: list[Chunk]) -> tuple[float | None, str]:
    passed = list(watched := watch(chunks, predictor()))
    assert passed == chunks
    return watched.verdict and watched.verdict.score, watched.reason


def told_by_proxy(
    chunks: list[Chunk], *, closely: bool = False, request: bytes | None = b'{"logprobs": true}'
) -> tuple[float | None, str]:
    sent = b"".join(map(server_sent, [*chunks, "[DONE]"]))
    question = None if request is None else read_chat(request)
    through = ScoredStream(Scorer(predictor(), Metrics()), question, None, max_bytes=1 << 20)
    if closely:
        through._read_chunk_by_chunk()
    out = through.feed(sent) + through.end()
    held = [json.loads(part[6:]) for part in out.split(b"\n\n") if part[:7] == b"data: {"]
    held = [one.get("response") or one for one in held]
    [verdict] = [one["metaprobe"] for one in held if "metaprobe" in one]
    return verdict["score"], verdict["reason"]


def told_by_line(chunks: list[Chunk]) -> tuple[float | None, str]:
    try:
        run = run_of_line({"response": chunks}, "line-1")
    except InvalidResponse as error:
        return None, str(error)
    verdict = predictor().predict(run.calls[0])
    return verdict.score, verdict.reason


READERS: dict[str, Callable[[list[Chunk]], tuple[float | None, str]]] = {
    "predict": told_by_predict,
    "watch": told_by_watch,
    "proxy": told_by_proxy,
    "proxy, chunk by chunk": lambda chunks: told_by_proxy(chunks, closely=True),
    "proxy of another path": lambda chunks: told_by_proxy(chunks, request=None),
    "line": told_by_line,
}
ONLY_CHAT = ("proxy", "proxy, chunk by chunk")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_stream_is_one_answer_for_every_reader(kind: str, reader: str) -> None:
    chunks = SOUND[kind]
    if reader in ONLY_CHAT and not kind_is_chat(chunks):
        pytest.skip("the proxy asks for chats")
    if reader == "proxy of another path" and kind == "Ollama":
        pytest.skip("the proxy speaks OpenAI's formats")
    if reader.startswith("proxy") and "out of order" in kind:
        pytest.skip("a server sends its events in order")
    score, reason = READERS[reader](chunks)
    assert score is not None
    assert "more than one answer" not in reason
    assert "several answers" not in reason


def kind_is_chat(chunks: list[Chunk]) -> bool:
    return any("delta" in choice for one in chunks for choice in one.get("choices") or ())


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", TWO)
def test_two_answers_in_one_stream_are_refused_by_every_reader(kind: str, reader: str) -> None:
    chunks = TWO[kind]
    if reader in ONLY_CHAT and not kind_is_chat(chunks):
        pytest.skip("the proxy asks for chats")
    if reader == "proxy of another path" and (kind == "Ollama" or "events" in kind):
        pytest.skip("the proxy speaks OpenAI's formats, and ends at a response's last event")
    if reader.startswith("proxy") and "its usage" in kind:
        pytest.skip("the proxy gives its one verdict before the usage")
    score, reason = READERS[reader](chunks)
    assert score is None
    assert "more than one answer" in reason or "one answer at a time" in reason


@pytest.mark.parametrize("reader", READERS)
def test_a_stream_of_two_choices_says_that_there_are_two(reader: str) -> None:
    second = words("Ly", "on", "!", first=-2.0, index=1)
    mixed = [one for pair in zip(PARIS, second, strict=True) for one in pair]
    ends = [END, chunk(end="stop", index=1)]
    alone, _ = told_by_predict([*PARIS, END])
    for chunks in (
        [*mixed, *ends],
        [*PARIS, END, *second, ends[1]],
        [*mixed, {**END, "choices": [end["choices"][0] for end in ends]}],
    ):
        score, reason = READERS[reader](chunks)
        assert score == alone
        if not reader.startswith("proxy"):  # the proxy gives a verdict on each
            assert "several answers" in reason


def test_a_tool_call_is_refused_for_what_it_is() -> None:
    call = {**chunk(), "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}, "finish_reason": None}]}
    assert "tool call" in told_by_predict([OPEN, *PARIS, call, OPEN, *PARIS, chunk(end="tool_calls")])[1]


@given(
    st.lists(st.tuples(st.sampled_from(["a", " b", "c", " d", "."]), st.floats(-9, -0.1)), min_size=1, max_size=12),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["constant", "counting", "none"]),
)
def test_whatever_an_answer_says_it_is_one_and_beside_another_it_is_two(
    tokens: list[tuple[str, float]], roles: bool, late_end: bool, ids: str
) -> None:
    said = [chunk(token, logprob - number) for number, (token, logprob) in enumerate(tokens)]
    said = (
        [*said, END]
        if late_end or len(said) < 2
        else [*said[:-1], chunk(tokens[-1][0], tokens[-1][1] - 20, end="stop")]
    )
    said = with_roles(said) if roles else [OPEN, *said]
    two = [*said, *said]
    for number, one in enumerate(two):
        two[number] = one | {"id": {"constant": "c", "counting": f"c{number}", "none": None}[ids]}
    assert parse_response(two[: len(said)]).text == "".join(token for token, _ in tokens)
    with pytest.raises(InvalidResponse, match="more than one answer"):
        parse_response(two)


def test_a_line_of_a_file_says_it_too(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = [
        {"id": name, "response": chunks} for name, chunks in (("one", [*PARIS, END]), ("two", [*PARIS, END, *LYON]))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = {line["id"]: line for line in score_lines(predictor(), path)}
    assert told["one"]["score"] is not None
    assert told["two"]["score"] is None
    assert "more than one answer" in told["two"]["reason"]


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")
def test_the_shared_cases() -> None:
    for path in sorted(CASES.glob("*.json")):
        for name, read in READERS.items():
            score, reason = read(json.loads(path.read_text()))
            assert (score is not None) == path.name.startswith("sound_"), (path.name, name, reason)


def test_a_changed_id_is_named_with_another_one() -> None:
    chunks = counted([OPEN, *PARIS, END])
    chunks[3]["id"] = chunks[2]["id"]
    _, reason = told_by_predict(chunks)
    assert f"from {chunks[1]['id']!r} to {chunks[2]['id']!r}" in reason
