"""Answer lines from a CSV file: its columns have the names of a line's keys, a row is an answer."""

import json
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from metaprobe.records.compressed import OnBytes
from metaprobe.records.csv_rows import iter_csv
from metaprobe.records.errors import ImportFileError
from metaprobe.records.json_lines import OnError, at_line
from metaprobe.records.line_fields import name_value

_JSON = ("messages", "labels", "sampling", "segments")
_LABEL = "labels."
_OWN = ("question", "logprobs", "tokens", "finish_reason")
"""Columns of which the response and the messages are made."""
_TRUTH = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}

_MLFLOW_RUNS = frozenset(("Run ID", "Start Time"))
_MLFLOW_TRACES = frozenset(
    "trace trace_metadata request_metadata spans execution_duration execution_time_ms assessments".split()
)
_MLFLOW_SCORE = re.compile(r"/v\d+/(?:score|justification)\Z|/(?:value|rationale)\Z")
MLFLOW = (
    "the CSV is an export of MLflow, whose cells hold no log-probabilities of tokens; expected columns `response` and"
    ' `logprobs`, or answer lines: write what each model span returned (mlflow.search_traces(return_type="list"), then'
    ' the outputs of its spans) as {"response": ...}; as JSON, MLflow\'s assessments are read by `metaprobe feedback`'
)


def csv_lines(
    path: Path, *, on_error: OnError | None = None, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, answer line) for each row of a CSV file.

    `response` is the text of the answer where there is a column `logprobs`: a JSON list of numbers, with `tokens` as a
    JSON list of strings beside it, or of {token, logprob, top_logprobs}. Without that column it is a whole response as
    JSON, or a text without log-probabilities. `question` is the user's message, `correct` is 1, 0, true or false,
    `labels.NAME` a label of that name; `messages`, `labels`, `sampling` and `segments` are JSON; other columns are
    taken as they are. A bad row raises `ImportFileError`, or is handed to `on_error`.
    """
    for number, row in iter_csv(path, on_error=on_error, on_bytes=on_bytes):
        if _of_mlflow(row.keys()):
            raise ImportFileError(f"{path}: {MLFLOW}")
        if "response" not in row:
            raise ImportFileError(
                f"{path}: the columns are {', '.join(row)[:200]}; expected `response`, the answer's text, and beside it"
                " `logprobs` as a JSON list: rename the column"
            )
        try:
            yield number, _line(row)
        except ImportFileError as problem:
            error = at_line(path, number, str(problem), row)
            if on_error is None:
                raise error from problem
            on_error(error)


def _of_mlflow(names: Set[str]) -> bool:
    """Whether columns of these names are a table of MLflow's: of runs, of traces, or of an evaluation."""
    traces = bool(names & {"trace_id", "request_id"}) and bool(names & _MLFLOW_TRACES)
    return names >= _MLFLOW_RUNS or traces or any(map(_MLFLOW_SCORE.search, names))


def _line(given: Mapping[str, str]) -> dict[str, Any]:
    row = {name: cell for name, cell in given.items() if cell.strip()}
    line: dict[str, Any] = {name: cell for name, cell in row.items() if name not in _OWN and name[:7] != _LABEL}
    for name in _JSON:
        if name in row:
            line[name] = _json(name, row[name])
    labels = {name.removeprefix(_LABEL): _number(name, cell) for name, cell in row.items() if name.startswith(_LABEL)}
    if labels:
        held = line.get("labels", {})
        if not isinstance(held, dict) or held.keys() & labels.keys():
            raise ImportFileError(f'"labels" is {name_value(held)}; expected an object without {", ".join(labels)}')
        line["labels"] = held | labels
    if "correct" in row:
        if (value := _TRUTH.get(row["correct"].strip().lower())) is None:
            raise ImportFileError(f'"correct" is {name_value(row["correct"])}; expected 1, 0, true or false')
        line["correct"] = value
    if "verbalized_confidence" in row:
        line["verbalized_confidence"] = _number("verbalized_confidence", row["verbalized_confidence"])
    if "question" in row:
        if "messages" in row:
            raise ImportFileError('the row has "question" and "messages"; expected one of the two')
        line["messages"] = [{"role": "user", "content": row["question"]}]
    if "response" in row:
        line["response"] = _response(row, apart="logprobs" in given)
    return line


def _response(row: Mapping[str, str], *, apart: bool) -> object:
    """The response of a row; `apart`: whether the table has a column of log-probabilities."""
    text = row["response"]
    if not apart and text.lstrip().startswith("{"):
        return _json("response", text)
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}, "logprobs": None}
    if "finish_reason" in row:
        choice["finish_reason"] = row["finish_reason"]
    if "logprobs" in row:
        given = _json("logprobs", row["logprobs"])
        if not isinstance(given, list):
            raise ImportFileError(f'"logprobs" is {name_value(given)}; expected a JSON list, an entry a token')
        if given and isinstance(given[0], dict):
            choice["logprobs"] = {"content": given}
        else:
            tokens = {"tokens": _json("tokens", row["tokens"])} if "tokens" in row else {}
            choice["logprobs"] = {"token_logprobs": given, **tokens}
    return {"object": "chat.completion", "choices": [choice]}


def _json(name: str, cell: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        raise ImportFileError(f'the cell under "{name}" is no JSON ({error}); expected JSON') from error


def _number(name: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError as error:
        raise ImportFileError(f'"{name}" is {name_value(cell)}; expected a number') from error
