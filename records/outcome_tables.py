"""Reads outcomes from a table with one row for each question and one column for each model. Standard library only.

The caller names the columns of the models. They are not guessed, because a price or a temperature from 0 to 1 would
look like a score.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from metaprobe.records.bad_lines import reading
from metaprobe.records.errors import ImportFileError
from metaprobe.records.lines import hand_over
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes

TABLES = {".csv": ",", ".tsv": "\t"}
"""Maps the ending of a table's name to the sign between its cells."""
QUESTION_COLUMNS = ("question", "prompt", "query")
DIMENSION_COLUMNS = ("dimension", "category", "subject", "task")
"""Possible names of the columns with the question and with its dimension. The first that exists is read."""
SCORES = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}
"""Maps words to scores. Numbers from 0 to 1 are read too, and an empty cell is no label."""
MOST_CHARS = 1 << 20
"""Most characters of a cell. A row with a longer cell is bad."""


def is_table(path: Path) -> bool:
    """Returns whether a file's name is that of a table."""
    return path.suffix.lower() in TABLES


def read_outcome_table(
    path: str | Path, models: Sequence[str], *, strict: bool | None = None
) -> list[QuestionOutcomes]:
    """Returns the question of every row. Bad rows are left out; a warning counts them by reason.

    Args:
        path: a `.csv` or `.tsv` file in UTF-8 with a header.
        models: names of the columns with a score of each model.
        strict: whether the first bad row raises; by default what the running command says.

    Raises `ImportFileError` for a file without the named columns or without a column for the question.
    """
    path = Path(path)
    if not models:
        raise ImportFileError(f"{path} is a table; name the columns of the models (--candidate NAME for each)")
    previous = csv.field_size_limit(MOST_CHARS)
    try:
        with reading(path, strict=strict) as bad, path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, delimiter=TABLES[path.suffix.lower()])
            header = list(rows.fieldnames or ())
            if lacking := [name for name in models if name not in header]:
                raise ImportFileError(f"{path} has no column {', '.join(lacking)}; it has {', '.join(header[:20])}")
            question = next((name for name in QUESTION_COLUMNS if name in header), None)
            if question is None:
                raise ImportFileError(f"{path} has no column for the question: {', '.join(QUESTION_COLUMNS)}")
            dimension = next((name for name in DIMENSION_COLUMNS if name in header), "")
            questions, seen = [], set[str]()
            for row in rows:
                try:
                    made = _question(row, rows.line_num, question, dimension, models)
                    if made.id in seen:
                        raise ImportFileError(f"{path}, line {rows.line_num}: id {made.id!r} stands there twice")
                except ImportFileError as error:
                    hand_over(error, bad.leave_out, error)
                    continue
                seen.add(made.id)
                questions.append(made)
                bad.sound += 1
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise ImportFileError(f"{path} cannot be read as a table: {error}") from error
    finally:
        csv.field_size_limit(previous)
    if not questions:
        raise ImportFileError(f"{path} holds no row; expected one question a row")
    return questions


def _question(
    row: Mapping[str | None, str | None], line: int, question: str, dimension: str, models: Sequence[str]
) -> QuestionOutcomes:
    """Returns the question of one row. Raises `ImportFileError` that names the column.

    Args:
        row: cells by column.
        line: number of the row's line.
        question: name of the column with the question.
        dimension: name of the column with the dimension; empty if there is none.
        models: names of the models' columns.
    """
    if None in row or any(row.get(name) is None for name in models):
        raise ImportFileError(f"line {line} has another number of cells than the header")
    identity = (row.get("id") or "").strip() or f"row {line}"
    agents = {
        name: AgentOutcome(score=score) for name in models if (score := _score(row[name] or "", name)) is not None
    }
    group = (row.get("group") or "").strip() or identity
    return QuestionOutcomes(identity, group, row[question] or "", (row.get(dimension) or "").strip(), agents)


def _score(cell: str, name: str) -> float | None:
    """Returns the score in a cell, None for an empty one. Raises `ImportFileError` for anything else."""
    text = cell.strip().lower()
    if not text:
        return None
    try:
        score = SCORES[text] if text in SCORES else float(text)
    except ValueError as error:
        raise ImportFileError(f"column {name!r} holds {cell[:60]!r}; expected a score from 0 to 1") from error
    if not 0 <= score <= 1:
        raise ImportFileError(f"column {name!r} holds {cell[:60]!r}; expected a score from 0 to 1")
    return score
