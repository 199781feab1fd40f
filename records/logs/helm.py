"""Reads a run of HELM: the folder with `scenario_state.json` and `per_instance_stats.json`, or the first of these
files.

Many of HELM's clients write 0.0 if their API gives no log-probabilities. Its client for transformers does so at
temperature 0. So an answer whose log-probabilities are all 0 counts as one without.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from metaprobe.records.bad_lines import ZEROS, words_of_reason
from metaprobe.records.errors import ImportFileError, name_value, of_kind
from metaprobe.records.lines import hand_over
from metaprobe.records.logs.logged_answer import (
    GIVEN_TEXT,
    LoggedAnswer,
    LogOptions,
    NoAnswer,
    answer_tokens,
    elements,
    finite_number,
    labels_from,
    mapping,
    read_record,
    sequence,
    text_or_empty,
    without_end_tokens,
)
from metaprobe.records.openai_format import completion

STATE, STATS = "scenario_state.json", "per_instance_stats.json"
_NOT_SCORES = (
    "num_", "training_", "inference_", "batch_size", "finish_reason_", "logprob", "prompt_truncated", "max_prob",
    "predicted_index",
)  # fmt: skip
"""Prefixes of the names of statistics that are only counts or times."""

_WITHHELD = re.compile(r"\[encrypted_text_\d+\]|\[redacted\]")
"""Matches the text with which HELM's scripts replace an answer, prompt or reference that must not be public."""

Key = tuple[str, int, str]
"""(instance, trial, perturbation)."""


def read_helm(path: Path, options: LogOptions) -> Iterator[LoggedAnswer]:
    """Yields each completion of a run. Of several completions HELM scores the likeliest, so only that one
    has scores.
    """
    state_path = path / STATE if path.is_dir() else path
    stats = _stats(state_path.with_name(STATS), options)
    run = state_path.resolve().parent.name
    for number, (run_fields, state_of_request) in enumerate(
        elements(state_path, "request_states", on_bytes=options.on_bytes), 1
    ):
        location = f"request {number}"
        yield from read_record(
            state_path,
            location,
            _logged_answers(location, run, run_fields, state_of_request, stats, options),
            options,
            state_of_request,
        )


def _stats(path: Path, options: LogOptions) -> dict[Key, dict[str, float]]:
    """Returns the scores by name of each instance; empty if the file does not exist."""
    scores: defaultdict[Key, dict[str, float]] = defaultdict(dict)
    if not path.is_file():
        if options.correct:
            raise ImportFileError(
                f"{path}: there is no such file, and in it are the scores; expected it beside {STATE}"
            )
        return scores
    for number, (_, entry) in enumerate(elements(path), 1):
        try:
            _add_stats(scores, entry)
        except ImportFileError as problem:
            error = of_kind(f"{path}: entry {number}: {problem}", words_of_reason(str(problem)))
            error.source = entry
            hand_over(error, options.on_error, problem)
    return scores


def _add_stats(scores: defaultdict[Key, dict[str, float]], stats: object) -> None:
    """Adds the scores of one entry of the statistics. Raises `ImportFileError` if the entry has another shape."""
    instance = mapping(stats, "an entry of the statistics")
    instance_scores = scores[_key(instance, instance.get("instance_id"))]
    for stat in sequence(instance.get("stats"), '"stats"'):
        entry = mapping(stat, "a statistic")
        name = text_or_empty(mapping(entry.get("name"), "a statistic's name").get("name"))
        mean = finite_number(entry.get("mean"))
        if name and mean is not None and not name.startswith(_NOT_SCORES):
            instance_scores[name] = mean


def _key(fields_of_state: Mapping[str, Any], instance_id: object) -> Key:
    if not isinstance(instance_id, str):
        raise ImportFileError(f"the instance's id is {name_value(instance_id)}; expected text")
    trial = fields_of_state.get("train_trial_index")
    perturbation = mapping(fields_of_state.get("perturbation"), "perturbation")
    return (
        instance_id,
        trial if isinstance(trial, int) else 0,
        json.dumps(perturbation, sort_keys=True) if perturbation else "",
    )


def _logged_answers(
    location: str,
    run: str,
    run_fields: Mapping[str, Any],
    state: object,
    stats: Mapping[Key, dict[str, float]],
    options: LogOptions,
) -> Iterator[LoggedAnswer]:
    """Yields each completion of a request.

    Args:
        location: where the request is in the file, for messages.
        run: name of the run.
        run_fields: fields of the file before the requests.
        state: the request with its result.
        stats: scores by instance.
        options: how the log is read.
    """
    # Find the instance and the request, and whether there is an answer.
    request_state = mapping(state, "a request state")
    instance, request = (
        mapping(request_state.get("instance"), "instance"),
        mapping(request_state.get("request"), "request"),
    )
    result = mapping(request_state.get("result"), "result")
    key = _key({**request_state, "perturbation": instance.get("perturbation")}, instance.get("id"))
    if not result or not result.get("success", False):
        raise NoAnswer(
            f"the request failed ({text_or_empty(result.get('error')).partition(':')[0][:60] or 'no result'})"
        )
    if request_state.get("reference_index") is not None or request.get("echo_prompt"):
        raise NoAnswer(GIVEN_TEXT)
    # Find the completion that HELM has scored, and the names of the model and of the line.
    completions = [
        mapping(candidate, "a completion") for candidate in sequence(result.get("completions"), '"completions"')
    ]
    if not completions:
        raise ImportFileError("the request succeeded and has no completions; expected at least one")
    scored_index = max(range(len(completions)), key=lambda n: finite_number(completions[n].get("logprob")) or 0.0)
    adapter = mapping(run_fields.get("adapter_spec"), "adapter_spec")
    model = text_or_empty(request.get("model")) or text_or_empty(adapter.get("model"))
    perturbation = mapping(instance.get("perturbation"), "perturbation")
    perturbation_names = [text_or_empty(perturbation.get("name")) or "changed"] if key[2] else []
    name = "-".join([key[0], *([f"trial-{key[1]}"] if key[1] else []), *perturbation_names])
    # Read the texts, unless HELM withholds them.
    if any(_WITHHELD.fullmatch(text_or_empty(candidate.get("text")).strip()) for candidate in completions):
        raise NoAnswer(
            "HELM has encrypted or redacted the text (decrypt_scenario_states.py of HELM gives encrypted texts back,"
            " where encryption_data.json is there)"
        )
    sent_messages = [mapping(message, "a message") for message in sequence(request.get("messages"), '"messages"')]
    if not sent_messages and text_or_empty(request.get("prompt")):
        sent_messages = [{"content": request["prompt"]}]
    prompt = [
        {"role": text_or_empty(m.get("role")) or "user", "content": text_or_empty(m.get("content"))}
        for m in sent_messages
    ]
    messages = [message for message in prompt if not _WITHHELD.fullmatch(message["content"].strip())]
    # Make a line of each completion.
    for number, candidate in enumerate(completions):
        text = without_end_tokens(text_or_empty(candidate.get("text")))
        thinking = text_or_empty(mapping(candidate.get("thinking"), '"thinking"').get("text"))
        logprobs = _logprobs(candidate, text, thinking)
        labels: dict[str, float] = {}
        label_source = "no label: another completion is scored"
        if number == scored_index:
            labels, label_source = labels_from(stats.get(key, {}), "exact_match", options.correct)
        reason = text_or_empty(mapping(candidate.get("finish_reason"), "finish_reason").get("reason"))
        line = {
            "id": name if len(completions) == 1 else f"{name}-output-{number + 1}",
            "group": key[0],
            "run_id": run,
            "task": run.partition(":")[0],
            "model": model,
            "messages": messages,
            "sampling": {
                "temperature": finite_number(request.get("temperature")),
                "top_p": finite_number(request.get("top_p")),
                "max_tokens": request.get("max_tokens"),
            },
            "labels": labels,
            "response": completion(
                text,
                logprobs,
                model=model,
                finish_reason=reason.replace("endoftext", "stop"),
                thinking=thinking,
            ),
        }
        yield LoggedAnswer(location, line, "" if logprobs else ZEROS, source=request_state, label_source=label_source)


def _logprobs(candidate: Mapping[str, Any], text: str, thinking: str) -> dict[str, Any] | None:
    """Returns the log-probabilities of the answer's tokens; None if there are no tokens, or if all are 0.

    Args:
        candidate: the completion.
        text: text of the answer.
        thinking: text of its thinking.
    """
    tokens = [mapping(token, "a token") for token in sequence(candidate.get("tokens"), '"tokens"')]
    values = [token.get("logprob") for token in tokens]
    if not tokens or all(value == 0 and not isinstance(value, bool) for value in values):
        return None
    count = answer_tokens([text_or_empty(token.get("text")) for token in tokens], text, thinking)
    return {"content": [{"token": text_or_empty(t.get("text")), "logprob": t.get("logprob")} for t in tokens[:count]]}
