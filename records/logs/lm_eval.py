"""Reads samples of lm-evaluation-harness (`--log_samples`): `samples_TASK_DATE.jsonl`, one question a line.

Multiple-choice samples have the log-likelihoods of the options. The answer is the likeliest option. Its one
log-probability is the log softmax of that option among the options. An option of -inf is impossible, and gets no share.
Freely generated text is logged without log-probabilities.

A task with several filters grades each answer once for each filter. The answer is read once, with the grades of the
first filter in the file, or of the filter that `--correct METRIC,FILTER` names.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from metaprobe.records.errors import ImportFileError, name_value
from metaprobe.records.lines import records_of
from metaprobe.records.logs.logged_answer import (
    GIVEN_TEXT,
    LoggedAnswer,
    LogOptions,
    NoAnswer,
    finite_number,
    labels_from,
    mapping,
    read_record,
    sequence,
    text_or_empty,
)
from metaprobe.records.openai_format import completion

_NAME = re.compile(r"samples_(?P<task>.+?)_(?P<date>\d{4}-\d{2}-\d{2}T.+)")
EQUAL = (
    "all options have the same log-likelihood, so none of them is the model's choice: an endpoint that cannot echo the"
    " prompt with its log-probabilities gives such constants (take a completions endpoint with echo, or a local model)"
)
IMPOSSIBLE = (
    "all options, or all but one, have the log-likelihood -inf, so there was nothing to choose among: the model has no"
    " tokens for them, its numbers overflowed, or the endpoint gave nothing for them"
)
INVALID_ANSWER = "[invalid]"
"""Value that lm-eval's filters keep of a text in which their pattern finds nothing."""
_EQUAL_NATS = 1e-6
"""Nats within which log-likelihoods count as equal: the rounding error if all are one constant."""


def read_lm_eval(path: Path, options: LogOptions) -> Iterator[LoggedAnswer]:
    """Yields each answer of a file of samples: one a question, or one for each repeat."""
    score, _, filter_wanted = options.correct.partition(",")
    run = _run_of_file(path)
    filter_read = filter_wanted
    filters: dict[str, None] = {}
    for number, record in records_of(path, on_error=options.on_error, on_bytes=options.on_bytes):
        filter_name = text_or_empty(record.get("filter"))
        filters[filter_name] = None
        filter_read = filter_read or filter_name
        location = f"line {number}"
        if filter_name != filter_read:
            reason = (
                f"the same answer under the filter {filter_name!r}; the grades of {filter_read!r} are taken (--correct"
                " METRIC,FILTER chooses)"
            )
            yield LoggedAnswer(location, None, reason, number, record)
            continue
        yield from read_record(path, location, _logged_answers(location, number, record, run, score), options, record)
    if filters and filter_read not in filters:
        raise ImportFileError(f"{path}: there is no filter {filter_read!r}; expected one of {', '.join(filters)}")


def _run_of_file(path: Path) -> dict[str, Any]:
    """Returns task, model and name of the run, from the file's name and the results file beside it."""
    name = path.name.partition(".jsonl")[0].partition(".parquet")[0]
    name_parts = _NAME.fullmatch(name)
    run = {"task": name_parts["task"] if name_parts else "", "run_id": name, "model": ""}
    results = path.with_name(f"results_{name_parts['date']}.json") if name_parts else None
    if results is not None and results.is_file():
        try:
            results_fields = json.loads(results.read_bytes())
            run["model"] = text_or_empty(results_fields.get("model_name")) or text_or_empty(
                results_fields["config"]["model_args"]["pretrained"]
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass  # it only names the model
    return run


def _logged_answers(
    location: str, number: int, record: Mapping[str, Any], run: Mapping[str, Any], score: str
) -> Iterator[LoggedAnswer]:
    """Yields the answers of one sample.

    Args:
        location: where the sample is in the log, for messages.
        number: line of the sample.
        record: the line.
        run: task, model and name of the run.
        score: name of the metric that gives `correct`, if the caller names one.
    """
    identity = record.get("doc_id")
    if not isinstance(identity, int) or isinstance(identity, bool):
        raise ImportFileError(f'"doc_id" is {name_value(identity)}; expected a whole number')
    arguments = mapping(record.get("arguments"), '"arguments"')
    requests = [mapping(request, '"arguments"') for request in arguments.values() if request is not None]
    # Each is (context, continuation) or (context, settings).
    request_arguments = [tuple(request[key] for key in sorted(request)) for request in requests]
    answers = [list(sequence(arguments, '"resps"')) for arguments in sequence(record.get("resps"), '"resps"')]
    if not answers or len(answers) != len(request_arguments) or not all(answers):
        raise ImportFileError(
            f'there are {len(request_arguments)} "arguments" and {len(answers)} "resps"; expected as many, each with an'
            " answer"
        )
    line = {**run, "id": str(identity), "question_id": str(identity)}
    first_answer = answers[0][0]
    if isinstance(first_answer, str):
        yield from _generated(location, number, record, line, request_arguments[0], answers[0], score)
    elif len(request_arguments) > 1:
        option_line, label_source = _likeliest_option(
            record, line, request_arguments, [arguments[0] for arguments in answers], score
        )
        yield LoggedAnswer(location, option_line, "", number, record, label_source)
    else:
        raise NoAnswer(GIVEN_TEXT)


def _generated(
    location: str,
    number: int,
    record: Mapping[str, Any],
    line: dict[str, Any],
    request_arguments: tuple[object, ...],
    answers: Sequence[object],
    score: str,
) -> Iterator[LoggedAnswer]:
    """Yields answers in words. A metric judges the text that the filter kept.

    Args:
        location: where the sample is in the log, for messages.
        number: line of the sample.
        record: the line.
        line: the import line, as far as it is known.
        request_arguments: context and settings of the request.
        answers: texts of the repeats.
        score: name of the metric that gives `correct`.
    """
    settings = request_arguments[1] if len(request_arguments) > 1 and isinstance(request_arguments[1], Mapping) else {}
    filtered = sequence(record.get("filtered_resps"), '"filtered_resps"')
    for repeat, text in enumerate(answers):
        if not isinstance(text, str):
            raise ImportFileError(f"answer {repeat} is {name_value(text)}; expected text")
        labels: dict[str, float] = {}
        label_source = "no label: a filter kept another text"
        if len(answers) == 1 or (len(filtered) == 1 and filtered[0] == text):
            labels, label_source = _labels(record, score, "exact_match")
            filtered_value = filtered[0] if len(filtered) == 1 else None
            filtered_text = filtered_value.strip() if isinstance(filtered_value, str) else None
            if filtered_text == INVALID_ANSWER or (filtered_text == "" and text.strip()):
                # lm-eval counts a text in which the filter found no answer as wrong, though nothing was compared.
                labels.pop("correct", None)
                filter_name = text_or_empty(record.get("filter")) or "of the task"
                label_source = f"no label: the filter {filter_name!r} found no answer in the text"
        sampling = {"temperature": settings.get("temperature"), "max_tokens": settings.get("max_gen_toks")}
        repeat_line = {
            **line,
            "id": line["id"] if len(answers) == 1 else f"{line['id']}-repeat-{repeat + 1}",
            "messages": [{"role": "user", "content": text_or_empty(request_arguments[0])}] if request_arguments else [],
            "sampling": {key: value for key, value in sampling.items() if value is not None} or None,
            "labels": labels,
            "response": completion(text, None, model=line["model"]),
        }
        yield LoggedAnswer(location, repeat_line, number=number, source=record, label_source=label_source)


def _likeliest_option(
    record: Mapping[str, Any],
    line: dict[str, Any],
    option_requests: Sequence[tuple[object, ...]],
    answers: Sequence[object],
    score: str,
) -> tuple[dict[str, Any], str]:
    """Returns (the likeliest option of a multiple choice as an answer of one token, source of `correct`).

    Args:
        record: the line.
        line: the import line, as far as it is known.
        option_requests: context and option of each request.
        answers: likelihood of each option.
        score: name of the metric that gives `correct`.
    """
    if score not in ("", "acc"):
        raise ImportFileError(
            f"{score!r} is of another answer than the likeliest option, which is read here; expected 'acc'"
        )
    contexts = [text_or_empty(request[0]) if request else "" for request in option_requests]
    half = len(option_requests) // 2
    # For the mutual information each option is asked for once more, without a context.
    is_asked_twice = len(option_requests) % 2 == 0 and all(contexts[:half]) and not any(contexts[half:])
    options = option_requests[:half] if is_asked_twice else option_requests
    likelihoods = [_likelihood(likelihood) for likelihood in answers[: len(options)]]
    texts = [text_or_empty(request[-1]).strip() if request else "" for request in options]
    if len(set(texts)) == 1:  # the options are beginnings of one text
        texts = contexts[: len(options)]
    possible = [value for value in likelihoods if value > -math.inf]
    if len(likelihoods) > 1 >= len(possible):
        raise NoAnswer(IMPOSSIBLE)
    if len(likelihoods) > 1 and len(possible) == len(likelihoods) and max(possible) - min(possible) <= _EQUAL_NATS:
        raise NoAnswer(EQUAL)
    best = max(range(len(likelihoods)), key=likelihoods.__getitem__)
    highest = likelihoods[best]
    total = highest + math.log(sum(math.exp(value - highest) for value in likelihoods))
    option_logprobs = [(value - total, text) for text, value in zip(texts, likelihoods, strict=True)]
    option_entries = [
        {"token": text, "logprob": value} for value, text in sorted(option_logprobs, reverse=True) if value > -math.inf
    ]
    entry = {"token": texts[best], "logprob": option_logprobs[best][0], "top_logprobs": option_entries}
    contexts_of_options = set(contexts[: len(options)])
    labels, label_source = _labels(record, score, "acc", only_default=True)
    return {
        **line,
        "logprobs_mode": "processed",  # they are of the options alone
        "messages": [{"role": "user", "content": contexts_of_options.pop()}] if len(contexts_of_options) == 1 else [],
        "labels": labels,
        "response": completion(texts[best], {"content": [entry]}, model=line["model"], finish_reason="stop"),
    }, label_source


def _likelihood(answer: object) -> float:
    """Returns the log-likelihood in [log-likelihood, whether greedy], whose elements may be strings.

    The log-likelihood is -inf for an option that the model cannot write.
    """
    pair = sequence(answer, "an answer")
    try:
        value = float(pair[0]) if pair and not isinstance(pair[0], bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (len(pair) == 2 and value <= 0):  # NaN is refused too
        raise ImportFileError(
            f"an option's answer is {name_value(answer)}; expected [log-likelihood of at most 0, true or false]"
        )
    return value


def _labels(
    record: Mapping[str, Any], score: str, default_metric: str, *, only_default: bool = False
) -> tuple[dict[str, float], str]:
    """Returns (the line's metrics as labels, source of `correct`).

    Args:
        record: the line.
        score: name of the metric that gives `correct`, if the caller names one.
        default_metric: metric that gives `correct` by default.
        only_default: whether `default_metric` is the only metric about this answer, so that all others are left out.
    """
    names = sequence(record.get("metrics"), '"metrics"') or [key for key in ("acc", "exact_match") if key in record]
    scores = {str(name): finite_number(record.get(str(name))) for name in names}
    metric_values = {
        name: value
        for name, value in scores.items()
        if value is not None and (not only_default or name == default_metric)
    }
    labels, label_source = labels_from(metric_values, default_metric, score)
    name = text_or_empty(record.get("filter"))
    return labels, label_source + (f" under the filter {name!r}" if name and name != "none" else "")
