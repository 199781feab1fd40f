"""Turns a table with one row for each question and columns for each agent into lines of outcomes.

The columns of an agent NAME are its score (`NAME`, `NAME.correct` or `NAME.score`) and what else is known of its answer
(`NAME.answer`, `NAME.confidence`, `NAME.cost_usd`, ...). A column `NAME` alone must be named by the caller, because a
price or a temperature from 0 to 1 would look like a score.
"""

import json
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from metaprobe.records.bad_lines import RawLine, at_line
from metaprobe.records.errors import ImportFileError, name_value
from metaprobe.records.lines import OnError, hand_over, is_csv, is_table, iter_csv, records_of

QUESTION_COLUMNS = ("question", "prompt", "query")
DIMENSION_COLUMNS = ("dimension", "category", "subject", "task")
"""Possible names of the columns with the question and with its dimension. The first that exists is read."""
JSON_COLUMNS = {"propensities": '{"small": 0.9, "large": 0.1}', "candidates": '["small", "large"]'}
"""Columns whose cells hold JSON, or a struct or list of Parquet, each with an example. The column `chosen` is read only
if `propensities` is there.
"""
SCORE_FIELDS = ("correct", "score")
AGENT_NUMBERS = ("confidence", "cost_usd", "latency_ms", "prompt_tokens", "completion_tokens", "label_propensity")
AGENT_TEXTS = ("answer", "confidence_source", "error")
"""Fields of an agent that a column `NAME.FIELD` holds. An empty cell is an unknown field."""
AGENT_FIELDS = (*SCORE_FIELDS, *AGENT_NUMBERS, *AGENT_TEXTS)
"""All fields of an agent that are read."""
SCORES = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}
"""Maps words to scores. Numbers from 0 to 1 are read too, and an empty cell is no label."""
NEAR_FIELD = 0.65
"""Least similarity, by `difflib`, of an unknown field to a known one that it resembles. `cost` has 0.67 to `cost_usd`.
"""
MAX_FIRST_ROWS = 1000
"""First rows that show which columns hold scores."""
_LABEL_COLUMNS = frozenset(("correct", "score", "label", "labels", "response", "verbalized_confidence"))
"""Columns of files of answers or labels, which are never an agent's."""


def is_outcome_table(path: Path) -> bool:
    """Returns whether the file is a table of outcomes: CSV or Parquet, with a column for the id or question.

    It also has a column that holds scores or is named as such (`NAME.correct`), and no answers in a column `response`.
    A table with the lines' own column `agents` is no such table; it is read as lines.
    """
    if not (is_csv(path) or is_table(path)):
        return False
    columns, scores = columns_of(path)
    names_question = "id" in columns or any(name in columns for name in QUESTION_COLUMNS)
    return names_question and bool(scores or agents_of_columns(columns)) and not {"response", "agents"} & set(columns)


def columns_of(path: Path) -> tuple[list[str], list[str]]:
    """Returns the columns of a table, and which of them look like scores.

    A column looks like scores if no first row holds anything else in it, and if it is no constant other than 0 and 1.
    """
    scores_by_column: dict[str, set[float | None]] = {}
    """Maps a column to its different scores. A cell that is no score counts as None."""
    for row in _first_rows(path):
        for name, cell in row.items():
            values = scores_by_column.setdefault(name, set())
            if not _is_empty(cell):
                values.add(_score_of(cell))
    other_columns = {"id", "group", *QUESTION_COLUMNS, *DIMENSION_COLUMNS, *_LABEL_COLUMNS}
    scores = []
    for name, values in scores_by_column.items():
        has_other_name = (
            name in other_columns
            or name.startswith("labels.")
            or name.rpartition(".")[2] in (*AGENT_NUMBERS, *AGENT_TEXTS)
        )
        if None not in values and (len(values) > 1 or values & {0.0, 1.0}) and not has_other_name:
            scores.append(name)
    return list(scores_by_column), scores


def table_records(
    path: Path, agents: Sequence[str], on_error: OnError | None, *, asked_later: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, line of outcomes) for each row of a table.

    Args:
        path: a CSV file (.csv, .tsv, also .gz) with a first row that names the columns, or a Parquet file.
        agents: names of the agents. By default those with a column `NAME.correct` or `NAME.score`.
        on_error: gets the error about each bad row; by default it is raised.
        asked_later: whether agents without columns are agents that have not been asked yet, not an error.

    Raises `ImportFileError` for a table without a column for the id or question, or without those of an agent.
    """
    columns, score_like = columns_of(path)
    agents = list(agents) or agents_of_columns(columns)
    received = f"{path} has the columns {', '.join(columns[:40]) or 'none'}"
    expected = "expected one row a question, with `id` or `question`, and the agents' scores as columns"
    if not agents and not asked_later:
        hint = f": {', '.join(score_like)} hold only such numbers" if score_like else ""
        raise ImportFileError(
            f"{received}; {expected} NAME.correct or NAME.score, or name the columns with scores from 0 to 1 "
            f"(--agent NAME; of train success --candidate NAME){hint}"
        )
    columns_by_agent = {agent: _columns_of_agent(agent, columns) for agent in agents}
    misspelt: dict[str, str] = {}
    for agent in agents:
        agent_fields = [column.removeprefix(f"{agent}.") for column in columns if column.startswith(f"{agent}.")]
        meant_of_field = misspelt_fields([field for field in agent_fields if "." not in field])
        misspelt |= {f"{agent}.{field}": f"{agent}.{meant}" for field, meant in meant_of_field.items()}
    if misspelt:
        warnings.warn(
            f"{path}: the columns {', '.join(misspelt)} are not read; expected {', '.join(misspelt.values())}: rename "
            "them",
            stacklevel=2,
        )
    without_columns = [agent for agent, agent_columns in columns_by_agent.items() if not agent_columns]
    if without_columns and not asked_later:
        raise ImportFileError(
            f"{received}, and none of {', '.join(without_columns)}; {expected}: NAME, NAME.correct or NAME.score "
            "for each agent"
        )
    question = next((name for name in QUESTION_COLUMNS if name in columns), "")
    if not question and "id" not in columns:
        raise ImportFileError(
            f"{received}, and none for the question; {expected}: call it {' or '.join(QUESTION_COLUMNS)}"
        )
    dimension = next((name for name in DIMENSION_COLUMNS if name in columns), "")
    _warn_of_unread(path, columns, {*agents, *score_like, question, dimension}, agents)
    for number, row in iter_csv(path, on_error=on_error) if is_csv(path) else records_of(path, on_error=on_error):
        try:
            identity = _cell_text(row.get("id")) or f"row {number}"
            line: dict[str, Any] = {"id": identity, "group": _cell_text(row.get("group")) or identity}
            line |= {"question": _cell_text(row.get(question)), "dimension": _cell_text(row.get(dimension))}
            line |= _json_cells(row, JSON_COLUMNS if asked_later else ("propensities",))
            if "propensities" in line:
                line["chosen"] = _cell_text(row.get("chosen"))
            line["agents"] = {
                agent: outcome
                for agent, agent_columns in columns_by_agent.items()
                if (outcome := _outcome(row, agent_columns))
            }
        except ImportFileError as error:
            hand_over(at_line(path, number, error, row), on_error, error)
            continue
        yield number, RawLine(line, row.raw, row.head) if isinstance(row, RawLine) else line


def _warn_of_unread(path: Path, columns: Sequence[str], read: Collection[str], agents: Sequence[str]) -> None:
    """Warns of columns that are not read where none gives the kind of question: one of them may be meant for it."""
    if any(name in columns for name in DIMENSION_COLUMNS):
        return
    own = {"id", "group", "chosen", *JSON_COLUMNS, *read}
    unread = [name for name in columns if name not in own and not name.startswith(tuple(f"{a}." for a in agents))]
    if unread:
        warnings.warn(
            f"{path}: the columns {', '.join(unread[:20])} are not read, and none gives the kind of question; if one "
            f"does, call it {' or '.join(DIMENSION_COLUMNS)}",
            stacklevel=3,
        )


def _first_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    rows = iter_csv if is_csv(path) else records_of
    return (row for _, row in islice(rows(path, on_error=lambda error: None), MAX_FIRST_ROWS))


def agents_of_columns(columns: Sequence[str]) -> list[str]:
    """Returns the agents that have a column `NAME.correct` or `NAME.score`, in the columns' order."""
    parts = [column.rpartition(".") for column in columns]
    return list(dict.fromkeys(name for name, _, field in parts if name not in ("", "labels") and field in SCORE_FIELDS))


def misspelt_fields(fields: Collection[str]) -> dict[str, str]:
    """Maps each field of an agent that is not read to the known field that it resembles, if that field is missing."""
    meant_of_field = {field: _resembled(field) for field in fields if field not in AGENT_FIELDS}
    return {field: meant for field, meant in meant_of_field.items() if meant and meant not in fields}


@lru_cache(maxsize=256)
def _resembled(field: str) -> str:
    """Returns the known field that an unknown one resembles; empty if none is near."""
    return next(iter(get_close_matches(field, AGENT_FIELDS, 1, NEAR_FIELD)), "")


def _columns_of_agent(agent: str, columns: Sequence[str]) -> dict[str, str]:
    """Returns field -> column of an agent. A column named after the agent alone is its score."""
    column_of_field = {field: column for field in AGENT_FIELDS if (column := f"{agent}.{field}") in columns}
    if agent in columns and not column_of_field.keys() & set(SCORE_FIELDS):
        column_of_field["score"] = agent
    return column_of_field


def _outcome(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Returns the known fields of one agent in a row. Raises `ImportFileError` that names the column."""
    outcome: dict[str, Any] = {}
    for field, column in columns.items():
        cell = row.get(column)
        if _is_empty(cell):
            continue
        if field in AGENT_TEXTS:
            outcome[field] = str(cell)
        elif field in AGENT_NUMBERS:
            outcome[field] = _cell_number(cell, column)
        elif (score := _score_of(cell)) is None:
            raise ImportFileError(f"column {column!r} holds {name_value(cell)}; expected a score from 0 to 1")
        else:
            outcome[field] = score
    return outcome


def _json_cells(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of these cells (`JSON_COLUMNS`) of a row. Raises `ImportFileError` if a text is no JSON."""
    json_cells = {}
    for name in names:
        cell, example = row.get(name), JSON_COLUMNS[name]
        if isinstance(cell, str) and cell.strip():
            try:
                cell = json.loads(cell)
            except (ValueError, RecursionError) as error:
                raise ImportFileError(f"column {name!r} holds {name_value(cell)}; expected JSON: {example}") from error
        elif isinstance(cell, dict):  # a struct of Parquet has all its fields in every row
            cell = {key: value for key, value in cell.items() if value is not None}
        if not _is_empty(cell):
            json_cells[name] = cell
    return json_cells


def _is_empty(cell: Any) -> bool:
    return cell is None or not str(cell).strip()


def _cell_text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _cell_number(cell: Any, column: str) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError) as error:
        raise ImportFileError(f"column {column!r} holds {name_value(cell)}; expected a number") from error


def _score_of(cell: Any) -> float | None:
    """Returns the score in a cell that is not empty; None for anything but a score from 0 to 1."""
    text = str(cell).strip().lower()
    try:
        score = SCORES[text] if text in SCORES else float(text)
    except ValueError:
        return None
    return score if 0 <= score <= 1 else None
