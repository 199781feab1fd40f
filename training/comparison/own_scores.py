"""A method of the user's own in a comparison: a file with a score for every answer."""

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metaprobe.eval.method_results import Family
from metaprobe.eval.table import AnswerTable
from metaprobe.records.errors import RecordError
from metaprobe.training.crossfit.methods import GivenScore, Scores

COLUMNS = ("call_id", "score")
NAMED = 3
"""So many ids are named in a message."""


@dataclass(frozen=True, slots=True)
class OwnScores:
    """The scores of one file, by call id; of an answer table they give the answers' own, (n,)."""

    scores: Mapping[str, float]

    def __call__(self, table: AnswerTable) -> Scores:
        return np.array([self.scores[call_id] for call_id in table.call_ids.tolist()])


def own_methods(
    paths: Sequence[Path], table: AnswerTable, known: Collection[str], taken: Collection[str]
) -> list[GivenScore]:
    """Returns a method for each CSV file with the columns `call_id` and `score`, called like the file.

    A higher score stands for an answer that is likelier right. Every answer of the table needs a row; rows of other
    calls among `known`, those of the runs, are passed over. Raises `RecordError` for a file that cannot be read so, for
    an id that is unknown, given twice or missing, for a score that is no finite number, and for a name in `taken`.
    """
    found: list[GivenScore] = []
    for path in paths:
        if path.stem in {*taken, *(method.name for method in found)}:
            raise RecordError(f"{path}: a method is called {path.stem!r} already; rename the file")
        scores = _read(path)
        if strangers := [call_id for call_id in scores if call_id not in known]:
            example = str(table.call_ids[0])
            raise RecordError(f"{path}: these runs hold no call {_named(strangers)}; expected ids such as {example!r}")
        if missing := [call_id for call_id in table.call_ids.tolist() if call_id not in scores]:
            raise RecordError(f"{path} has no score of {_named(missing)}; expected one of each of {len(table)} answers")
        family: Family = "own"
        found.append(GivenScore(path.stem, family, OwnScores(scores)))
    return found


def _read(path: Path) -> dict[str, float]:
    scores: dict[str, float] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            if absent := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
                raise RecordError(
                    f"{path}: the first line is {','.join(rows.fieldnames or ()) or 'empty'}; expected a header with "
                    f"the columns {' and '.join(COLUMNS)} ({', '.join(absent)} is missing)"
                )
            for row in rows:
                call_id, score = row["call_id"], _number(row["score"])
                where = f"{path}:{rows.line_num}"
                if score is None:
                    raise RecordError(f"{where}: {call_id!r} has the score {row['score']!r}; expected a finite number")
                if call_id in scores:
                    raise RecordError(f"{where}: {call_id!r} was given before; expected one row a call")
                scores[call_id] = score
    except (UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{path} is no CSV file in UTF-8: {error}") from error
    return scores


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _named(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return f"{', '.join(map(repr, ids[:NAMED]))}{more}"
