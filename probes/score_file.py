"""Scores a file of responses: a line out for each line in, whatever is in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metaprobe.checkpoints import ContractMismatch
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.verdict import Verdict
from metaprobe.records.errors import ImportFileError, InvalidResponse
from metaprobe.records.importer import id_of_line, run_of_line
from metaprobe.records.json_lines import iter_json_lines
from metaprobe.records.openai_format import parse_response
from metaprobe.records.reading import error_message

FIELDS = ("score", "heads", "critical", "flagged", "in_support", "reason")


def score_lines(predictor: QualityPredictor, path: Path) -> Iterator[dict[str, Any]]:
    """One object for each line of an OpenAI-format file: line, id, score, heads, critical, flagged, in_support, reason.

    A line that cannot be scored has null for all that is unknown, and the reason; the other lines are scored all the
    same, and their reason is empty where all is well. Blank lines are passed over. Raises `ImportFileError` for a file
    that is one JSON document over many lines.
    """
    broken: list[ImportFileError] = []
    for number, record in iter_json_lines(path, on_error=broken.append):
        yield from _unreadable(broken)
        yield _score(predictor, number, record)
    yield from _unreadable(broken)


def _score(predictor: QualityPredictor, number: int, record: dict[str, Any]) -> dict[str, Any]:
    try:
        if "response" in record and record["response"] is None:
            said = error_message(record)
            raise InvalidResponse(
                f'"response" is null{f", with the error {said!r}" if said else ""}; expected an answer: ask again, or'
                " leave the line out"
            )
        run = run_of_line(record, f"line-{number}")
        verdict = predictor.predict(run.calls[0])
        note = _note(record)
    except (ImportFileError, InvalidResponse, ContractMismatch) as error:
        return _line(number, id_of_line(record, f"line-{number}"), reason=str(error))
    return _line(number, run.id, verdict, reason="; ".join(filter(None, (verdict.reason, note))))


def verdict_fields(verdict: Verdict | None, *, reason: str | None = None) -> dict[str, Any]:
    """What a verdict says, by the names of its fields; null where there is none. `reason`: in place of its own."""
    said = {name: getattr(verdict, name, None) for name in FIELDS}
    return said if reason is None else {**said, "reason": reason}


def _note(record: dict[str, Any]) -> str:
    """What is to be known of a response that could be read, and that a call has no place for."""
    given = record.get("response", record)
    given = given.get("body", given) if isinstance(given, dict) else given
    # Nearly all have one answer and nothing to be said of; only of the others it is worth reading them again.
    if isinstance(given, dict) and len(given.get("choices") or given.get("outputs") or ()) <= 1:
        return ""
    return parse_response(given).note


def _unreadable(broken: list[ImportFileError]) -> Iterator[dict[str, Any]]:
    while broken:
        error = broken.pop(0)
        yield _line(error.line, None, reason=str(error))


def _line(number: int | None, identity: str | None, verdict: Verdict | None = None, *, reason: str) -> dict[str, Any]:
    return {"line": number, "id": identity, **verdict_fields(verdict, reason=reason)}
