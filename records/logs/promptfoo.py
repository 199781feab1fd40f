"""Results of promptfoo: of `promptfoo eval --output results.json` or `.jsonl`, or of `evaluate` in its Node package.

It keeps the log-probabilities of an answer's tokens without the tokens, and only of providers that hand them on.
Repeats of a test, and other prompts and providers for it, share a group: what was filled into the prompt.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from metaprobe.records.errors import ImportFileError
from metaprobe.records.line_fields import name_value
from metaprobe.records.logs.document import elements, first_keys
from metaprobe.records.logs.promptfoo_grades import grade_of
from metaprobe.records.logs.sample import (
    LogOptions,
    NoAnswer,
    Sample,
    completion,
    labels_from,
    mapping,
    number_of,
    read_sample,
    sequence,
    short_name,
    taken_of,
    words,
)
from metaprobe.records.logs.tables import records_of

_ERROR = 2
"""promptfoo's `failureReason` of a test that was not graded."""
_OLD = 2
"""The version of promptfoo's results that name neither themselves nor their test."""
_THINKING = "Thinking: "
"""What promptfoo writes before the reasoning, which it puts before the answer unless `showThinking` is false."""
THOUGHT = "the model thought first, and nothing says which log-probabilities are of the answer"
COUNTED = "the log-probabilities are not as many as the tokens that the model drew"
FEWER = "the answer has more words than log-probabilities, so they are of another"


def read_promptfoo(path: Path, options: LogOptions) -> Iterator[Sample]:
    """Yields each result of a file."""
    for place, number, evaluation, held in _results(path, options):
        read = partial(_samples, place, number, evaluation, held, options)
        yield from read_sample(path, place, read, options, held)


def _results(path: Path, options: LogOptions) -> Iterator[tuple[str, int | None, str, Any]]:
    """(place, line, name of the evaluation, result)."""
    if "testIdx" in first_keys(path):
        for number, record in records_of(path, options):
            yield f"line {number}", number, "", record
        return
    # Of the command line the results stand in a summary; what the Node package gives is the summary itself.
    where = ("results", "results") if first_keys(path, "results") else ("results",)
    for number, (before, held) in enumerate(elements(path, *where, on_bytes=options.on_bytes), 1):
        name = words(before.get("evalId")) or words(before.get("id")) or words(before.get("timestamp"))
        place = f"result {number}"
        if before.get("version") == _OLD and isinstance(held, Mapping):
            held = {"id": place.replace(" ", "-"), **held}
        yield place, None, name, held


def _samples(place: str, number: int | None, evaluation: str, result: object, options: LogOptions) -> Iterator[Sample]:
    held = mapping(result, "a result")
    response = mapping(held.get("response"), '"response"')
    ungraded = held.get("error") and not held.get("gradingResult") and held.get("failureReason") is None
    if held.get("failureReason") == _ERROR or response.get("error") or ungraded:
        error = words(response.get("error")) or words(held.get("error"))
        raise NoAnswer(f"the call or a check of it failed ({error.partition(chr(10))[0][:60]})")
    output = response.get("output")
    if output is None:
        raise NoAnswer("the result has no output")
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    prompt = words(mapping(held.get("prompt"), '"prompt"').get("raw"))
    model = words(mapping(held.get("provider"), '"provider"').get("id"))
    used = mapping(response.get("tokenUsage"), '"tokenUsage"')
    given = sequence(response.get("logProbs"), '"logProbs"')
    _check_numbers(text, given, used)
    places = [held.get("testIdx"), held.get("promptIdx")]
    if not isinstance(held.get("id"), str) and not all(type(place) is int for place in places):
        raise ImportFileError(f'the result has the places {name_value(places)}; expected an "id", or whole numbers')
    labels, taken = _labels(held, options)
    filled = held.get("vars") or mapping(held.get("testCase"), '"testCase"').get("vars")
    line = {
        "id": words(held.get("id")) or "test-{}-prompt-{}".format(*places),
        "group": short_name(filled or prompt),
        "run_id": evaluation,
        "model": model,
        "messages": _prompt(prompt),
        "labels": labels,
        "response": completion(
            text,
            model=model,
            finish_reason=words(response.get("finishReason")),
            logprobs={"token_logprobs": list(given)} if given else None,
            prompt_tokens=used.get("prompt"),
            completion_tokens=used.get("completion"),
        ),
    }
    yield Sample(place, line, number=number, taken=taken)


def _check_numbers(text: str, given: Sequence[Any], used: Mapping[str, Any]) -> None:
    """Raises `NoAnswer` where the log-probabilities, which come without tokens, cannot all be of the answer."""
    details = mapping(used.get("completionDetails"), '"completionDetails"')
    if text.startswith(_THINKING) or (given and number_of(details.get("reasoning"))):
        raise NoAnswer(THOUGHT)
    if given and len(text.split()) > len(given):
        raise NoAnswer(FEWER)
    counted = number_of(used.get("completion"))
    if given and counted and abs(counted - len(given)) > 1:  # an end token is counted or not
        raise NoAnswer(COUNTED)


def _labels(held: Mapping[str, Any], options: LogOptions) -> tuple[dict[str, float], str]:
    """(labels, what `correct` was taken from): the grade of the content, promptfoo's own verdict, and named scores.

    Without an assertion promptfoo passes whatever came, and nothing is known.
    """
    graded = mapping(held.get("gradingResult"), '"gradingResult"')
    test = mapping(held.get("testCase"), '"testCase"')
    checked = bool(graded.get("componentResults") or test.get("assert"))
    passed = graded.get("pass") if graded else held.get("success")
    if checked and not isinstance(passed, bool):
        raise ImportFileError(f"whether the result passed is {name_value(passed)}; expected true or false")
    named = mapping(held.get("namedScores"), '"namedScores"')
    scores = {str(name): number for name, value in named.items() if (number := number_of(value)) is not None}
    if checked:
        score = number_of(held.get("score"))
        scores = {"pass": float(bool(passed)), **({} if score is None else {"score": score}), **scores}
    labels = labels_from(scores, None, options)
    if options.correct:
        return labels, taken_of(labels, None, options)
    grade = grade_of(graded, test, passed if checked else None)
    return labels if grade.right is None else {"correct": float(grade.right), **labels}, grade.taken


def _prompt(raw: str) -> list[dict[str, str]]:
    """The prompt's messages: JSON of a chat, or one text."""
    if raw.lstrip().startswith("["):
        try:
            told = json.loads(raw)
        except (ValueError, RecursionError):
            told = None  # a prompt that only begins like one
        if (
            isinstance(told, list)
            and told
            and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in told)
        ):
            return [{"role": m["role"], "content": m.get("content") or ""} for m in told]
    return [{"role": "user", "content": raw}] if raw else []
