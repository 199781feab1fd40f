"""The answers of one study as JSON lines: a line a participant, or a line a simulated reader.

    {"code": "K7QD-2MXA", "order": ["multi", "single", "metacrit"], "answers": {"ct1": "metacrit", "ct2": null, ...},
     "simulated_by": ""}

`order` holds the conditions as they were met. An answer names a condition, or is null if nothing was chosen.
`simulated_by` is empty for a person, and otherwise names the program that replaced a person.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from metaprobe.records.bad_lines import at_line
from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.lines import iter_json_lines
from metaprobe_writing_assistant.study.survey import QUESTIONS

QUESTION_IDS = {question.id for question in QUESTIONS}


@dataclass(frozen=True, slots=True)
class Sheet:
    """One filled-in survey. Raises `RecordError` for an answer that names no condition, and for an unknown question."""

    code: str
    order: tuple[str, ...]
    """The conditions, as they were met."""
    answers: Mapping[str, str | None]
    """Maps a question to the chosen condition, or None."""
    simulated_by: str = ""
    """Name of the program that answered instead of a person; empty for a person."""

    def __post_init__(self) -> None:
        if len(self.order) < 2 or len(set(self.order)) < len(self.order):
            raise RecordError(f"order is {list(self.order)}; expected the conditions that were met, each once")
        if unknown := sorted(set(self.answers) - QUESTION_IDS):
            raise RecordError(
                f"answers name the questions {unknown}; expected some of {', '.join(sorted(QUESTION_IDS))}"
            )
        for question, condition in self.answers.items():
            if condition is not None and condition not in self.order:
                raise RecordError(
                    f"question {question} is answered {condition!r}; expected null or one of {', '.join(self.order)}"
                )


def read_sheets(path: str | Path) -> list[Sheet]:
    """Returns every line of a file. Raises `ImportFileError`, which names the line, for a line that is no sheet."""
    path = Path(path)
    sheets: dict[str, Sheet] = {}
    for number, line in iter_json_lines(path):
        try:
            sheet = _sheet(line)
        except RecordError as error:
            raise at_line(path, number, str(error), line) from error
        if sheet.code in sheets:
            raise at_line(path, number, f"code {sheet.code!r} came before: expected one line a participant", line)
        sheets[sheet.code] = sheet
    if not sheets:
        raise ImportFileError(f"{path} holds no answers; expected one JSON object a line, a line a participant")
    return list(sheets.values())


def write_sheets(path: str | Path, sheets: Iterable[Sheet]) -> int:
    """Writes a line a sheet, and returns their number."""
    lines = [json.dumps(asdict(sheet), ensure_ascii=False) for sheet in sheets]
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)


def one_kind(sheets: Sequence[Sheet]) -> str:
    """Returns the name of the program that replaced people, empty for people. Raises `RecordError` if the two are
    mixed.

    Tables of people and of simulated readers are never one table.
    """
    kinds = {sheet.simulated_by for sheet in sheets}
    if "" in kinds and len(kinds) > 1:
        people = sum(not sheet.simulated_by for sheet in sheets)
        raise RecordError(
            f"{people} sheets are of participants and {len(sheets) - people} of simulated readers; analyse each kind "
            "by itself (--only participants, or --only simulated)"
        )
    return ", ".join(sorted(kinds))


def _sheet(line: Mapping[str, Any]) -> Sheet:
    code, order, answers = line.get("code"), line.get("order"), line.get("answers")
    simulated_by = line.get("simulated_by", "")
    if not isinstance(code, str) or not code:
        raise RecordError(f"code is {code!r}; expected a text, different for each participant")
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        raise RecordError(f"order is {order!r}; expected a list of conditions")
    if not isinstance(answers, dict) or not all(isinstance(answer, str | None) for answer in answers.values()):
        raise RecordError("answers should be an object that gives each question a condition or null")
    if not isinstance(simulated_by, str):
        raise RecordError(f"simulated_by is {simulated_by!r}; expected a text, empty for a person")
    return Sheet(code, tuple(order), answers, simulated_by)
