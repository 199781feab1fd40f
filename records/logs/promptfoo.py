"""Results of promptfoo: of `promptfoo eval --output results.json` or `.jsonl`, or of `evaluate` in its Node package.

It keeps the log-probabilities of an answer's tokens without the tokens, and only of providers that hand them on.
Repeats of a test, and other prompts and providers for it, share a group: what was filled into the prompt.

promptfoo's own `pass` also covers what no answer is wrong for, such as its latency. Here an assertion counts by its
type: some judge the content, some a part of it, some are known to judge something else, and of all others nothing is
known.

The output of its decision provider (`openai:decisions`) holds no answer but a judgement of the prompt: the prompt is
then the text that is stored, and the decisions stand beside it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from metaprobe.records.decisions import decision_answers
from metaprobe.records.errors import ImportFileError, InvalidResponse, name_value
from metaprobe.records.label_state import why_no_label
from metaprobe.records.lines import records_of
from metaprobe.records.logs.sample import (
    LogOptions,
    NoAnswer,
    Sample,
    elements,
    finite_number,
    first_keys,
    labels_from,
    mapping,
    read_sample,
    sequence,
    short_name,
    text_or_empty,
)
from metaprobe.records.openai_format import completion

CONTENT = frozenset(
    "bertscore bleu contains contains-all contains-any ends-with equals factuality g-eval gleu icontains icontains-all"
    " icontains-any levenshtein llm-rubric math-equivalent meteor model-graded-closedqa model-graded-factuality pi"
    " regex rouge-n search-rubric similar similar:cosine similar:dot similar:euclidean starts-with".split()
)
"""Types of assertions that say whether the answer's text is right."""
NECESSARY_ASSERTIONS = frozenset(
    "answer-relevance contains-html contains-json contains-sql contains-xml context-faithfulness conversation-relevance"
    " is-html is-json is-sql is-xml".split()
)
"""Types of assertions on the text that a right answer passes, and a wrong one may pass too."""
ELSEWHERE = frozenset(
    "context-recall context-relevance cost finish-reason guardrails latency max-score perplexity perplexity-score"
    " select-best skill-used trace-error-spans trace-span-count trace-span-duration trajectory:step-count".split()
)
"""Types of assertions that say nothing about whether the answer's text is right."""
HUMAN = "human"
"""The type of a grade that a person gave in promptfoo's page; it overrides all others."""
_MODELS = frozenset("conversation-relevance factuality g-eval llm-rubric model-graded-factuality search-rubric".split())
"""Types of assertions whose reason a model writes; where it fails, the answer counts as wrong, without tokens of it."""
_REASONS = {
    **dict.fromkeys(("similar", "similar:cosine", "similar:dot"), re.compile(r"Similarity -?\d")),
    "similar:euclidean": re.compile(r"Distance \d"),
    "pi": re.compile(r"Pi Scor"),
    "answer-relevance": re.compile(r"Relevance -?\d"),
    "context-faithfulness": re.compile(r"Faithfulness -?\d"),
    "model-graded-closedqa": re.compile(r"The submission (meets|does not meet) the criterion"),
}
"""Assertion -> beginning of promptfoo's own reason, where the model or service that the assertion calls answered."""
_UNREAD = re.compile(
    r"\s*(API (call )?error|(Could not|Cannot|Unable to|Failed to|Error) (extract|pars(e|ing)|perform)\b|Error:"
    r"|Invalid category value|LLM-proposed evaluation|LLM does not propose|G-Eval \S+ (call|response)"
    r"|No (embedding|output)\s*$|Factuality checker output did not match"
    r"|(Model grader|[\w:-]+) produced (a )?malformed response)",
    re.I,
)
"""Beginning of the reason where a model answered and promptfoo could read no grade in its words."""
_OWN = "--correct pass takes promptfoo's own verdict"


@dataclass(frozen=True, slots=True)
class _Check:
    """One assertion that can fail the test: one of weight 0 cannot."""

    kind: str
    passed: bool | None
    """Whether the answer passed; None where its grader failed, or the result does not say."""


def grade_of(graded: Mapping[str, Any], test: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Returns (whether the answer of a result is right, source of that grade or why there is none).

    It is None where the assertions say nothing of the answer, or nothing that is sure. Where one that judges the answer
    has no known outcome, it is None however the others ended: else only wrong answers, or only right ones, would have
    labels. `graded` is the result's
    `gradingResult`, `test` its `testCase`. Where a score decides whether the test passes, a part of it may fail and the
    answer be right: nothing is known then. Raises `ImportFileError` where one of these has another shape.
    """
    components = _objects(graded.get("componentResults"), "componentResults")
    asked = _objects(test.get("assert"), "assert")
    if not components and asked:
        return None, f"no label: the result does not say which assertions passed ({_OWN})"
    checks, weighed = _checks(components, asked)
    for check in reversed(checks):
        if check.kind == HUMAN and check.passed is not None:
            return check.passed, "labelled by a person (human)"
    if components and (weighed or test.get("threshold") is not None or test.get("assertScoringFunction")):
        return None, f"no label: a score decides whether the test passes ({_OWN})"
    if not checks:
        return None, "no label: no assertion checked the answer"
    judging = [check for check in checks if _is(check, CONTENT | NECESSARY_ASSERTIONS)]
    if unread := [check for check in judging if check.passed is None]:
        return (
            None,
            f"no label: nothing shows that the grader of {_kinds(unread)} answered, such as tokens used ({_OWN})",
        )
    counted = [check for check in judging if _is(check, CONTENT) or not check.passed]
    failed = _kinds(check for check in checks if check not in counted and check.passed is False)
    wrong = any(check.passed is False for check in judging)
    # An assertion of an unknown type says nothing where it passed: another one decides.
    unsure = [check for check in checks if not _is(check, ELSEWHERE) and check.passed is not True]
    if unsure and not wrong:
        return None, f"no label: what {_kinds(unsure)} judges is not known ({_OWN})"
    if not wrong and not any(_is(check, CONTENT) for check in judging):
        return None, f"no label: {f'failed on {failed}' if failed else f'checked for {_kinds(checks)}'} only"
    return not wrong, f"labelled by {_kinds(counted)}{f'; a failed {failed} is not counted' if failed else ''}"


def _objects(values: object, name: str) -> list[Mapping[str, Any]]:
    """The entries of a list; the nulls among them stand for assertions that were made later, as `select-best`."""
    return [mapping(one, f"an entry of {name}") for one in sequence(values, f'"{name}"') if one is not None]


def _checks(components: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]]) -> tuple[list[_Check], bool]:
    """(the checks of flattened components, whether a set of them passes by its score).

    The parts of a component stand in it, and follow it once more.
    """
    sets = iter([one for one in asked if one.get("type") == "assert-set"])
    left = iter(components)
    checks, weighed = [], False
    for component in left:
        assertion = mapping(component.get("assertion"), '"assertion"')
        parts = _objects(component.get("componentResults"), "componentResults")
        kind = text_or_empty(assertion.get("type"))
        metadata = mapping(component.get("metadata"), '"metadata"')
        is_set = bool(parts) and not kind
        told = assertion if not is_set else {**next(sets, {}), **mapping(metadata.get("assertionSet"), "a set")}
        counts = told.get("weight") != 0 and not told.get("metricOnly")
        if is_set and counts:
            weighed |= told.get("threshold") is not None
            continue
        for _ in islice(left, len(parts)):
            pass
        if counts:
            passed = component.get("pass")
            judged = not why_no_label({}, metadata) and _is_judged(kind, component, metadata)
            checks.append(
                _Check(kind or "an unnamed assertion", passed if isinstance(passed, bool) and judged else None)
            )
    return checks, weighed


def _is_judged(kind: str, component: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether the outcome of a component is a judgement of the answer: what is graded elsewhere must show a grade.

    Passed and failed answers need the same sign of a grade. promptfoo passes an answer only where its grader answered,
    but where a grader reports no tokens, a failed call looks like a failed answer: passes alone would be labels.
    """
    bare = kind.removeprefix("not-")
    if bare not in _MODELS and bare not in _REASONS:
        return True
    reason = text_or_empty(component.get("reason"))
    if bare in _REASONS:
        return bool(_REASONS[bare].match(reason))
    if isinstance(metadata.get("renderedGradingPrompt"), str):
        return True  # newer versions write it beside a grade only
    used = mapping(component.get("tokensUsed"), '"tokensUsed"')
    drawn = max(finite_number(used.get(name)) or 0.0 for name in ("total", "completion", "cached"))
    return drawn > 0 and not _UNREAD.match(reason)


def _is(check: _Check, kinds: frozenset[str]) -> bool:
    return check.kind.removeprefix("not-") in kinds


def _kinds(checks: Iterable[_Check]) -> str:
    return ", ".join(sorted({check.kind for check in checks}))


_ERROR = 2
"""promptfoo's `failureReason` of a test that was not graded."""
_OLD = 2
"""The version of promptfoo's results that name neither themselves nor their test."""
_THINKING = "Thinking: "
"""Text that promptfoo writes before the reasoning, which it puts before the answer unless `showThinking` is false."""
THOUGHT = "the model thought first, and nothing says which log-probabilities are of the answer"


def read_promptfoo(path: Path, options: LogOptions) -> Iterator[Sample]:
    """Yields each result of a file."""
    for place, number, evaluation, held in _results(path, options):
        yield from read_sample(path, place, _samples(place, number, evaluation, held, options), options, held)


def _results(path: Path, options: LogOptions) -> Iterator[tuple[str, int | None, str, Any]]:
    """(place, line, name of the evaluation, result)."""
    if "testIdx" in first_keys(path):
        for number, record in records_of(path, on_error=options.on_error, on_bytes=options.on_bytes):
            yield f"line {number}", number, "", record
        return
    # The command line puts the results in a summary; the Node package gives the summary itself.
    where = ("results", "results") if first_keys(path, "results") else ("results",)
    for number, (before, held) in enumerate(elements(path, *where, on_bytes=options.on_bytes), 1):
        name = (
            text_or_empty(before.get("evalId"))
            or text_or_empty(before.get("id"))
            or text_or_empty(before.get("timestamp"))
        )
        place = f"result {number}"
        if before.get("version") == _OLD and isinstance(held, Mapping):
            held = {"id": place.replace(" ", "-"), **held}
        yield place, None, name, held


def _samples(place: str, number: int | None, evaluation: str, result: object, options: LogOptions) -> Iterator[Sample]:
    held = mapping(result, "a result")
    response = mapping(held.get("response"), '"response"')
    ungraded = held.get("error") and not held.get("gradingResult") and held.get("failureReason") is None
    if held.get("failureReason") == _ERROR or response.get("error") or ungraded:
        error = text_or_empty(response.get("error")) or text_or_empty(held.get("error"))
        raise NoAnswer(f"the call or a check of it failed ({error.partition(chr(10))[0][:60]})")
    output = response.get("output")
    if output is None:
        raise NoAnswer("the result has no output")
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    prompt = text_or_empty(mapping(held.get("prompt"), '"prompt"').get("raw"))
    model = text_or_empty(mapping(held.get("provider"), '"provider"').get("id"))
    used = mapping(response.get("tokenUsage"), '"tokenUsage"')
    given = sequence(response.get("logProbs"), '"logProbs"')
    if text.startswith(_THINKING):
        raise NoAnswer(THOUGHT)
    details = mapping(used.get("completionDetails"), '"completionDetails"')
    places = [held.get("testIdx"), held.get("promptIdx")]
    if not isinstance(held.get("id"), str) and not all(type(place) is int for place in places):
        raise ImportFileError(f'the result has the places {name_value(places)}; expected an "id", or whole numbers')
    filled = held.get("vars") or mapping(held.get("testCase"), '"testCase"').get("vars")
    line: dict[str, Any] = {
        "id": text_or_empty(held.get("id")) or "test-{}-prompt-{}".format(*places),
        "group": short_name(filled or prompt),
        "run_id": evaluation,
    }
    if (answers := _decided(text)) is not None:
        served = text_or_empty(mapping(response.get("metadata"), '"metadata"').get("model"))
        line |= {"response": completion(prompt, None), "decisions": {"answers": answers, "model": served or model}}
        taken = "no label: a decision provider judged the prompt, and assertions on it grade the judge"
        yield Sample(place, line, number=number, taken=taken)
        return
    labels, taken = _labels(held, options)
    line |= {
        "model": model,
        "messages": _prompt(prompt),
        "labels": labels,
        "response": completion(
            text,
            {"token_logprobs": list(given)} if given else None,
            model=model,
            finish_reason=text_or_empty(response.get("finishReason")),
            used=(used.get("prompt"), used.get("completion"), details.get("reasoning")),
        ),
    }
    yield Sample(place, line, number=number, taken=taken)


def _decided(text: str) -> list[Any] | None:
    """The answers of a decision provider's output, which is about the prompt; None for any other output."""
    if not text.startswith('{"answers"'):
        return None
    try:
        answers = json.loads(text)["answers"]
        decision_answers(answers, "")
    except (ValueError, RecursionError, InvalidResponse):
        return None  # a model may write such JSON too
    return answers  # type: ignore[no-any-return]


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
    scores = {str(name): number for name, value in named.items() if (number := finite_number(value)) is not None}
    if checked:
        score = finite_number(held.get("score"))
        scores = {"pass": float(bool(passed)), **({} if score is None else {"score": score}), **scores}
    labels, taken = labels_from(scores, None, options.correct)
    if options.correct:
        return labels, taken
    right, taken = grade_of(graded, test)
    return labels if right is None else {"correct": float(right), **labels}, taken


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
