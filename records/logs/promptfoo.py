"""Reads results of promptfoo: of `promptfoo eval --output results.json` or `.jsonl`, or of `evaluate` in its Node
package.

promptfoo keeps the log-probabilities of an answer's tokens without the tokens, and only for some providers. Repeats of
a test, and other prompts and providers for the test, share a group: the values filled into the prompt.

promptfoo's own `pass` includes checks that say nothing about the answer, such as its latency. So an assertion counts
here by its type. Some types judge the content, some a part of it, some are known to judge something else, and the
others are unknown.

The output of its decision provider (`openai:decisions`) is no answer but a judgement of the prompt. So the prompt is
stored as the text, with the decisions beside it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from metaprobe.records.decision_questions import DecisionQuestion
from metaprobe.records.errors import ImportFileError, InvalidResponse, name_value
from metaprobe.records.label_state import LabelState
from metaprobe.records.lines import iter_json_lines, records_of
from metaprobe.records.logs.logged_answer import (
    LoggedAnswer,
    LogOptions,
    NoAnswer,
    elements,
    finite_number,
    first_keys,
    labels_from,
    mapping,
    read_record,
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
"""Types of assertions that every right answer passes. A wrong answer may pass them too."""
ELSEWHERE = frozenset(
    "context-recall context-relevance cost finish-reason guardrails latency max-score perplexity perplexity-score"
    " select-best skill-used trace-error-spans trace-span-count trace-span-duration trajectory:step-count".split()
)
"""Types of assertions that do not judge whether the answer's text is right."""
HUMAN = "human"
"""Type of a grade that a person gave on promptfoo's page. It overrides all other grades."""
_MODEL_GRADED = frozenset(
    "conversation-relevance factuality g-eval llm-rubric model-graded-factuality search-rubric".split()
)
"""Types of assertions that a model grades. If this model fails, promptfoo marks the answer wrong, and
counts no tokens.
"""
_REASONS = {
    **dict.fromkeys(("similar", "similar:cosine", "similar:dot"), re.compile(r"Similarity -?\d")),
    "similar:euclidean": re.compile(r"Distance \d"),
    "pi": re.compile(r"Pi Scor"),
    "answer-relevance": re.compile(r"Relevance -?\d"),
    "context-faithfulness": re.compile(r"Faithfulness -?\d"),
    "model-graded-closedqa": re.compile(r"The submission (meets|does not meet) the criterion"),
}
"""Maps an assertion to the beginning of promptfoo's own reason. The reason begins so if the service that grades
answered.
"""
_UNREAD = re.compile(
    r"\s*(API (call )?error|(Could not|Cannot|Unable to|Failed to|Error) (extract|pars(e|ing)|perform)\b|Error:"
    r"|Invalid category value|LLM-proposed evaluation|LLM does not propose|G-Eval \S+ (call|response)"
    r"|No (embedding|output)\s*$|Factuality checker output did not match"
    r"|(Model grader|[\w:-]+) produced (a )?malformed response)",
    re.I,
)
"""Matches the beginning of the reason if a model answered, but promptfoo found no grade in the text."""
_USE_PASS_HINT = "--correct pass takes promptfoo's own verdict"


@dataclass(frozen=True, slots=True)
class _Check:
    """One assertion that can fail the test. An assertion of weight 0 cannot."""

    kind: str
    passed: bool | None
    """Whether the answer passed; None if its grader failed, or if the result does not say."""


def grade_of(graded: Mapping[str, Any], test: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Returns (whether the answer of a result is right, the source of that grade or why there is none).

    The grade is None if no assertion judges the answer, or if none is certain. It is also None if an assertion that
    judges the answer has no known outcome. Otherwise only wrong answers, or only right ones, would get labels. If a
    score decides whether the test passes, one part may fail although the answer is right; so the grade is None. Raises
    `ImportFileError` if a field has another shape.

    Args:
        graded: `gradingResult` of the result.
        test: `testCase` of the result.
    """
    components = _objects(graded.get("componentResults"), "componentResults")
    assertions = _objects(test.get("assert"), "assert")
    if not components and assertions:
        return None, f"no label: the result does not say which assertions passed ({_USE_PASS_HINT})"
    checks, is_decided_by_score = _checks(components, assertions)
    for check in reversed(checks):
        if check.kind == HUMAN and check.passed is not None:
            return check.passed, "labelled by a person (human)"
    if components and (is_decided_by_score or test.get("threshold") is not None or test.get("assertScoringFunction")):
        return None, f"no label: a score decides whether the test passes ({_USE_PASS_HINT})"
    if not checks:
        return None, "no label: no assertion checked the answer"
    judging = [check for check in checks if _is_one_of(check, CONTENT | NECESSARY_ASSERTIONS)]
    if unread_checks := [check for check in judging if check.passed is None]:
        return (
            None,
            f"no label: nothing shows that the grader of {_kind_names(unread_checks)} answered, such as tokens used "
            f"({_USE_PASS_HINT})",
        )
    counted_checks = [check for check in judging if _is_one_of(check, CONTENT) or not check.passed]
    failed_names = _kind_names(check for check in checks if check not in counted_checks and check.passed is False)
    has_failed = any(check.passed is False for check in judging)
    # An assertion of an unknown type says nothing where it passed: another one decides.
    unknown_checks = [check for check in checks if not _is_one_of(check, ELSEWHERE) and check.passed is not True]
    if unknown_checks and not has_failed:
        return None, f"no label: what {_kind_names(unknown_checks)} judges is not known ({_USE_PASS_HINT})"
    if not has_failed and not any(_is_one_of(check, CONTENT) for check in judging):
        return (
            None,
            f"no label: {f'failed on {failed_names}' if failed_names else f'checked for {_kind_names(checks)}'} only",
        )
    return (
        not has_failed,
        "labelled by "
        f"{_kind_names(counted_checks)}{f'; a failed {failed_names} is not counted' if failed_names else ''}",
    )


def _objects(values: object, name: str) -> list[Mapping[str, Any]]:
    """Returns the entries of a list without nulls. A null stands for an assertion that is added later, such as
    `select-best`.
    """
    return [mapping(entry, f"an entry of {name}") for entry in sequence(values, f'"{name}"') if entry is not None]


def _checks(
    components: Sequence[Mapping[str, Any]], assertions: Sequence[Mapping[str, Any]]
) -> tuple[list[_Check], bool]:
    """Returns (the checks of the components, whether a set of them passes by its score).

    The parts of a component are stored in it, and follow it in the list once more.
    """
    remaining_sets = iter([assertion for assertion in assertions if assertion.get("type") == "assert-set"])
    remaining = iter(components)
    checks, is_decided_by_score = [], False
    for component in remaining:
        assertion = mapping(component.get("assertion"), '"assertion"')
        parts = _objects(component.get("componentResults"), "componentResults")
        kind = text_or_empty(assertion.get("type"))
        metadata = mapping(component.get("metadata"), '"metadata"')
        is_set = bool(parts) and not kind
        definition = (
            assertion if not is_set else {**next(remaining_sets, {}), **mapping(metadata.get("assertionSet"), "a set")}
        )
        can_fail_test = definition.get("weight") != 0 and not definition.get("metricOnly")
        if is_set and can_fail_test:
            is_decided_by_score |= definition.get("threshold") is not None
            continue
        for _ in islice(remaining, len(parts)):
            pass
        if can_fail_test:
            passed = component.get("pass")
            is_judged = not LabelState({}, metadata).why_not and _is_judged(kind, component, metadata)
            checks.append(
                _Check(kind or "an unnamed assertion", passed if isinstance(passed, bool) and is_judged else None)
            )
    return checks, is_decided_by_score


def _is_judged(kind: str, component: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether the outcome of a component judges the answer. An assertion that a service grades must show a grade.

    The same sign of a grade is needed for passed and failed answers. promptfoo passes an answer only if its grader
    answered. But if a grader reports no tokens, a failed call looks like a failed answer. Then only passes would become
    labels.

    Args:
        kind: type of the assertion.
        component: its result.
        metadata: metadata of its result.
    """
    kind_without_not = kind.removeprefix("not-")
    if kind_without_not not in _MODEL_GRADED and kind_without_not not in _REASONS:
        return True
    reason = text_or_empty(component.get("reason"))
    if kind_without_not in _REASONS:
        return bool(_REASONS[kind_without_not].match(reason))
    if isinstance(metadata.get("renderedGradingPrompt"), str):
        return True  # newer versions write it beside a grade only
    token_usage = mapping(component.get("tokensUsed"), '"tokensUsed"')
    tokens_used = max(finite_number(token_usage.get(name)) or 0.0 for name in ("total", "completion", "cached"))
    return tokens_used > 0 and not _UNREAD.match(reason)


def _is_one_of(check: _Check, kinds: frozenset[str]) -> bool:
    return check.kind.removeprefix("not-") in kinds


def _kind_names(checks: Iterable[_Check]) -> str:
    return ", ".join(sorted({check.kind for check in checks}))


_NOT_GRADED = 2
"""promptfoo's `failureReason` of a test that was not graded."""
_VERSION_WITHOUT_NAMES = 2
"""Version of promptfoo's results that name neither their evaluation nor their test."""
_THINKING = "Thinking: "
"""Text before the reasoning. promptfoo puts the reasoning before the answer, unless `showThinking` is false."""
THOUGHT = "the model thought first, and nothing says which log-probabilities are of the answer"


def read_promptfoo(path: Path, options: LogOptions) -> Iterator[LoggedAnswer]:
    """Yields each result of a file."""
    for location, number, evaluation, result in _results(path, options):
        yield from read_record(
            path, location, _logged_answers(location, number, evaluation, result, options), options, result
        )


def _results(path: Path, options: LogOptions) -> Iterator[tuple[str, int | None, str, Any]]:
    """Yields (location, line, name of the evaluation, result)."""
    if _is_lines(path):
        for number, record in records_of(path, on_error=options.on_error, on_bytes=options.on_bytes):
            yield f"line {number}", number, "", record
        return
    # The command line puts the results in a summary; the Node package gives the summary itself.
    path_of_results = ("results", "results") if first_keys(path, "results") else ("results",)
    for number, (before, result) in enumerate(elements(path, *path_of_results, on_bytes=options.on_bytes), 1):
        name = (
            text_or_empty(before.get("evalId"))
            or text_or_empty(before.get("id"))
            or text_or_empty(before.get("timestamp"))
        )
        location = f"result {number}"
        if before.get("version") == _VERSION_WITHOUT_NAMES and isinstance(result, Mapping):
            result = {"id": location.replace(" ", "-"), **result}
        yield location, None, name, result


FIRST_LINES = 9
"""Number of first lines that are examined for the format. Some of them may be bad, so one line with a result is enough.
"""


def _is_lines(path: Path) -> bool:
    """Returns whether a file has a result in each line. Its first line may be bad."""
    if keys_of_first := first_keys(path):
        if "testIdx" in keys_of_first:
            return True
        if "results" in keys_of_first:
            return False
    with suppress(ImportFileError):  # what is wrong with the file is said when it is read
        lines = islice(iter_json_lines(path, on_error=lambda error: None), FIRST_LINES)
        return any("testIdx" in record for _, record in lines)
    return False


def _logged_answers(
    location: str, number: int | None, evaluation: str, result: object, options: LogOptions
) -> Iterator[LoggedAnswer]:
    """Yields the answer of one result.

    Args:
        location: where the result is in the file, for messages.
        number: line of the result, if the file has lines.
        evaluation: name of the evaluation.
        result: the result.
        options: how the file is read.
    """
    result_fields = mapping(result, "a result")
    response = mapping(result_fields.get("response"), '"response"')
    # Find out whether there is an answer.
    is_ungraded = (
        result_fields.get("error")
        and not result_fields.get("gradingResult")
        and result_fields.get("failureReason") is None
    )
    if result_fields.get("failureReason") == _NOT_GRADED or response.get("error") or is_ungraded:
        error = text_or_empty(response.get("error")) or text_or_empty(result_fields.get("error"))
        raise NoAnswer(f"the call or a check of it failed ({error.partition(chr(10))[0][:60]})")
    output = response.get("output")
    if output is None:
        raise NoAnswer("the result has no output")
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    prompt = text_or_empty(mapping(result_fields.get("prompt"), '"prompt"').get("raw"))
    model = text_or_empty(mapping(result_fields.get("provider"), '"provider"').get("id"))
    token_usage = mapping(response.get("tokenUsage"), '"tokenUsage"')
    logprobs = sequence(response.get("logProbs"), '"logProbs"')
    if text.startswith(_THINKING):
        raise NoAnswer(THOUGHT)
    details = mapping(token_usage.get("completionDetails"), '"completionDetails"')
    # Names of the sample.
    indices = [result_fields.get("testIdx"), result_fields.get("promptIdx")]
    if not isinstance(result_fields.get("id"), str) and not all(type(index) is int for index in indices):
        raise ImportFileError(f'the result has the places {name_value(indices)}; expected an "id", or whole numbers')
    filled_values = result_fields.get("vars") or mapping(result_fields.get("testCase"), '"testCase"').get("vars")
    line: dict[str, Any] = {
        "id": text_or_empty(result_fields.get("id")) or "test-{}-prompt-{}".format(*indices),
        "group": short_name(filled_values or prompt),
        "run_id": evaluation,
    }
    # A decision model's answer.
    if (answers := _decisions_in(text)) is not None:
        served_model = text_or_empty(mapping(response.get("metadata"), '"metadata"').get("model"))
        line |= {
            "response": completion(prompt, None),
            "decisions": {"answers": answers, "model": served_model or model},
        }
        label_source = "no label: a decision provider judged the prompt, and assertions on it grade the judge"
        yield LoggedAnswer(location, line, number=number, label_source=label_source)
        return
    # A language model's answer.
    labels, label_source = _labels(result_fields, options)
    line |= {
        "model": model,
        "messages": _prompt(prompt),
        "labels": labels,
        "response": completion(
            text,
            {"token_logprobs": list(logprobs)} if logprobs else None,
            model=model,
            finish_reason=text_or_empty(response.get("finishReason")),
            token_counts=(token_usage.get("prompt"), token_usage.get("completion"), details.get("reasoning")),
        ),
    }
    yield LoggedAnswer(location, line, number=number, label_source=label_source)


def _decisions_in(text: str) -> list[Any] | None:
    """Returns the decisions in a decision provider's output, which are about the prompt; None for any other output."""
    if not text.startswith('{"answers"'):
        return None
    try:
        answers = json.loads(text)["answers"]
        DecisionQuestion.read_answers(answers, "")
    except (ValueError, RecursionError, InvalidResponse):
        return None  # a model may write such JSON too
    return answers  # type: ignore[no-any-return]


def _labels(result: Mapping[str, Any], options: LogOptions) -> tuple[dict[str, float], str]:
    """Returns (labels, source of `correct`): the grade of the content, promptfoo's own verdict, and named scores.

    Without an assertion promptfoo passes every answer, so there is no grade.
    """
    graded = mapping(result.get("gradingResult"), '"gradingResult"')
    test = mapping(result.get("testCase"), '"testCase"')
    has_assertions = bool(graded.get("componentResults") or test.get("assert"))
    passed = graded.get("pass") if graded else result.get("success")
    if has_assertions and not isinstance(passed, bool):
        raise ImportFileError(f"whether the result passed is {name_value(passed)}; expected true or false")
    named_scores = mapping(result.get("namedScores"), '"namedScores"')
    scores = {str(name): number for name, value in named_scores.items() if (number := finite_number(value)) is not None}
    if has_assertions:
        score = finite_number(result.get("score"))
        scores = {"pass": float(bool(passed)), **({} if score is None else {"score": score}), **scores}
    labels, label_source = labels_from(scores, None, options.correct)
    if options.correct:
        return labels, label_source
    is_right, label_source = grade_of(graded, test)
    return labels if is_right is None else {"correct": float(is_right), **labels}, label_source


def _prompt(raw: str) -> list[dict[str, str]]:
    """Returns the prompt's messages. The prompt is JSON of a chat, or one text."""
    if raw.lstrip().startswith("["):
        try:
            chat_messages = json.loads(raw)
        except (ValueError, RecursionError):
            chat_messages = None  # a prompt that only begins like one
        if (
            isinstance(chat_messages, list)
            and chat_messages
            and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in chat_messages)
        ):
            return [{"role": m["role"], "content": m.get("content") or ""} for m in chat_messages]
    return [{"role": "user", "content": raw}] if raw else []
