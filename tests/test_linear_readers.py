"""The work on a text that a model or a caller wrote grows with the text, and not with its square.

Each reader gets texts of `LENGTH` characters. Linear work takes milliseconds for one, and quadratic work takes billions
of steps; `WITHIN_CPU_S` lies far from both. Only CPU time of this process counts: a busy machine fails no test.
"""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from random import Random
from types import FrameType

import pytest

from metaprobe.papers.systems import caelf, judging, metacrit, multi_agent_debate, multi_expert, self_refine, verifiable
from metaprobe.papers.systems import monitor_generate_verify as mgv
from metaprobe.papers.systems import universal_self_consistency as usc
from metaprobe.papers.systems.self_report import extract_answer
from metaprobe.probes.verbalized import parse_named_confidence, parse_stated
from metaprobe.production.http.bodies import Refusal
from metaprobe.production.http.request_log import read_tags
from metaprobe.production.http.streamed_answer import EventSplitter
from metaprobe.records.answer_stream import AnswerStream
from metaprobe.records.correctness import canonical, final_answer, function_code, is_correct, numbers
from metaprobe.records.logs.logged_answer import without_end_tokens
from metaprobe.records.segments import locate, marked, spoken_text
from metaprobe.records.spelling import spelled
from metaprobe.records.types import Call, Item
from metaprobe.routing.panel.compared_answers import content

LENGTH = 60_000
WITHIN_CPU_S = 4
TEXTS = 40
"""Texts that a reader is tried with, drawn from all that are made for it."""


class TooSlow(BaseException):
    """Not an `Exception`, which a reader might take for a text that cannot be read."""


@contextmanager
def a_few_seconds() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, WITHIN_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


QUESTION = "Which is it?\nA) yes\nB) no"
ITEMS = {
    "exact": Item(id="e", question=QUESTION, gold=("Ada Lovelace",), group="g", check="exact"),
    "number": Item(id="n", question=QUESTION, gold=("42",), group="g", check="number"),
    "choice": Item(id="c", question=QUESTION, gold=("yes",), choices=("yes", "no"), group="g", check="choice"),
    "true-false": Item(id="t", question="So?", gold=("true",), choices=("true", "false"), group="g", check="choice"),
}


def call(text: str) -> Call:
    return replace(Call(id="c", stage="answer", agent="a", model="m"), text=text)


def tags(text: str) -> None:
    with suppress(Refusal):
        read_tags(text)


def streamed(text: str) -> None:
    """Every character as a chunk of its own, first without a text of the answer."""
    stream = AnswerStream()
    for character in text[: LENGTH // 3]:
        stream.add({"choices": [{"delta": {}, "logprobs": {"content": [{"token": character, "logprob": -1.0}]}}]})
    stream.add({"choices": [{"delta": {"content": "x"}, "logprobs": None}]})
    stream.response()


def events(text: str) -> None:
    """Every byte of a stream as a piece of its own."""
    splitter = EventSplitter()
    for byte in text.encode("utf-8", "surrogatepass"):
        splitter.feed(bytes((byte,)))


Reader = Callable[[str], object]
READERS: dict[str, tuple[Reader, tuple[str, ...]]] = {
    **{
        f"{name}-{kind}": (read(item), ("answer: ", "not ", "A) ", "```", "\\boxed{", "<answer>", "####", "1"))
        for kind, item in ITEMS.items()
        for name, read in {
            "is_correct": lambda item: lambda text: is_correct(item, text),
            "final_answer": lambda item: lambda text: final_answer(item, text),
            "canonical": lambda item: lambda text: canonical(item, text),
        }.items()
    },
    "function_code": (function_code, ("def f():\n", "x = ", "```", "@a\n", "try:\n", "x = (", '"""')),
    "numbers": (numbers, ("1", "minus ", "1/", "0.")),
    "confidence": (
        partial(parse_stated, "confidence"),
        ("confidence", "confidence: 1", "scale of 0-", "(0-", "level is ", "1/"),
    ),
    "difficulty": (partial(parse_stated, "difficulty"), ("difficulty", "difficulty: 1", "not very hard ")),
    "named_confidence": (parse_named_confidence, ("confidence: 1", "1 out of ")),
    "marked tokens": (lambda text: marked(("<think>a", *text)), ("</think>", "<|channel|>", "<|start|>")),
    "marked header": (lambda text: marked(("<|channel|>", *text)), ("<|message|>", "<|start|>")),
    "marked at the beginning": (lambda text: marked(tuple(text)), ("<think>", "<")),
    "marked in one token": (lambda text: marked([text]), ("<think>", "<|start|><|message|>")),
    "spoken_text": (spoken_text, ("<think>", "<|channel|>final<|message|>", "</think>")),
    "stream": (streamed, ("<think>",)),
    "stop text": (lambda text: locate([text, "a"], text[1:] + "a", ending="text"), ("ab", "b")),
    "spelled": (lambda text: spelled((text, "a"), text + "b"), ("<0xCC>", "bytes:", "token_id:1")),
    "spelled token by token": (lambda text: spelled(tuple(text), "a" + text), ("\ufffd", "token_id:1")),
    "events": (events, ("data: ", "\r")),
    "without_end_tokens": (without_end_tokens, ("</s>", "<|end|>", "<|")),
    "level": (lambda text: caelf.read_level(text, 0, 2), ("level", "Level: 1", "level 1")),
    "yes or no": (caelf.yes_or_no, ("yes",)),
    "json_object": (judging.only_json_object, ("{", '{"a":', "}", '{"a": "')),
    "metacrit": (lambda text: metacrit.yes_no(text, "concern"), ("concern: ", "concern: yes")),
    "debate": (lambda text: multi_agent_debate._ANSWERED.search(text), ("answer",)),
    "experts": (lambda text: multi_expert.read_experts(text, 3), ("1.", "1. a", "1")),
    "refine": (self_refine.parse_good, ("verdict", "verdict good")),
    "monitor": (mgv.parse_monitor, ("task features:", "task features: a", "difficulty", "task feature")),
    "strategy": (lambda text: mgv.parse_strategy(text, ("one", "two")), ("strategy", "selected strategy: ", "one ")),
    "evaluation": (mgv.parse_verdict, ("coherence", "coherence (", "evaluation", "coherence: 1")),
    "consistency": (lambda text: usc.chosen_number(text, 3), ("response", "response: ", "response: 1")),
    "self-report": (lambda text: extract_answer(ITEMS["exact"], call(text), "step-by-step"), ("answer", "answer: ")),
    "argument": (
        lambda text: verifiable.check_argument(text, "It is an essay about the sea.", role="advocate"),
        ("score", "score of ", "deserves a 5", '"', "'", '"a b c [', "give ", "5 out of "),
    ),
    "content": (content, ("####", "1,")),
    "tags": (tags, ("a=", "a", "a=b")),
}

UNITS = (
    *(" ", "\n", " \n", "\t", "\r\n", "\u00a0", ".", ". ", ",", ":", ": ", ":\n", "*", "* ", "-", "->", "=", "_", "/"),
    *("(", ")", "[", "{", "}", '"', "'", "\u201c", "`", "```\n", "<", "<|", "#", "\\", "|", "@", "~"),
    *("1", "1,111,", "1.", "1 ", "1\n", "0", "a", "A", "a ", "A) ", "a.", "a'", "a\n", "or ", "is ", "is a ", "the "),
    *(
        "\u0301\u0323",
        "\u0f73",
        "e\u0301",
        "\u200b",
        "\ud800",
        "\u200d",
        "\ufdfa",
        "\U0001f600",
        "\x00",
        "\x1c",
        "\u2028",
    ),
    *("[[", "((", "- ", "not ", "@a\n", "if a:\n ", "a = 1\n", "</s>", "one "),
)


def hostile(parts: tuple[str, ...]) -> Iterator[str]:
    """Texts of one unit, after, before and between what the reader looks for."""
    for unit in (*UNITS, *parts):
        many = LENGTH // len(unit)
        yield unit * many + "!"
        for part in parts:
            yield part + unit * many
            yield part + unit * many + "x"
            yield unit * (many // 2) + part + unit * (many // 2) + "x"
            yield (part + unit) * (LENGTH // len(part + unit))


def check(name: str, read: Reader, texts: Iterable[str]) -> None:
    for text in texts:
        try:
            with a_few_seconds():
                read(text)
        except TooSlow:
            pytest.fail(f"{name} works on {text[:24]!r}...{text[-12:]!r} for more than {WITHIN_CPU_S} s")


@pytest.mark.parametrize("reader", READERS)
def test_a_long_run_of_blanks_takes_linear_time(reader: str) -> None:
    read, (part, *_) = READERS[reader]
    check(reader, read, (part + blank * LENGTH + "x" for blank in "\n "))


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_no_text_takes_more_than_linear_time(reader: str) -> None:
    read, parts = READERS[reader]
    texts = list(hostile(parts))
    check(reader, read, Random(reader).sample(texts, min(TEXTS, len(texts))))
