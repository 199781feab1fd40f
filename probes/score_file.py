"""Scores a file of responses: a line out for each line in, whatever is in it."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from metaprobe.checkpoints import ContractMismatch
from metaprobe.probes.blend import STATED, BlendPredictor
from metaprobe.probes.contract import name_of_run
from metaprobe.probes.decisions import DecisionPredictor
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.text import TextReader
from metaprobe.probes.verdict import Verdict
from metaprobe.records.errors import ImportFileError, InvalidResponse
from metaprobe.records.import_line import id_of_line, run_of_line
from metaprobe.records.lines import iter_json_lines
from metaprobe.records.reading import error_message
from metaprobe.records.types import Call, Run

FIELDS = ("score", "heads", "critical", "flagged", "reason")


def score_lines(predictor: QualityPredictor, path: Path, *, by_run: bool = True) -> Iterator[dict[str, Any]]:
    """One object for each line of an OpenAI-format file: line, id, score, heads, critical, flagged, reason.

    A line that cannot be scored has null for all that is unknown, and the reason; the other lines are scored all the
    same, and their reason is empty where all is well. Blank lines are passed over. Raises `ImportFileError` for a file
    that is one JSON document over many lines. `by_run`: whether a line is scored as of the run that it names.
    """

    def judged(run: Run) -> dict[str, Any]:
        [call] = run.calls
        own = of_its_run(predictor, run, call) if by_run else predictor
        return verdict_or_reason(predict_of(own, run, call), call)

    return _each_line(path, judged, plain=False)


def score_texts(reader: TextReader, path: Path) -> Iterator[dict[str, Any]]:
    """Yields the same objects by the texts alone: of lines with `question` and `answer`, or with messages and a
    response, with log-probabilities or without."""
    return _each_line(path, lambda run: verdict_or_reason(reader.read, run.calls[0]), plain=True)


def _each_line(path: Path, judged: Callable[[Run], dict[str, Any]], *, plain: bool) -> Iterator[dict[str, Any]]:
    broken: list[ImportFileError] = []
    for number, record in iter_json_lines(path, on_error=broken.append):
        yield from _unreadable(broken)
        yield _score(number, record, judged, plain=plain)
    yield from _unreadable(broken)


def _score(
    number: int, record: dict[str, Any], judged: Callable[[Run], dict[str, Any]], *, plain: bool
) -> dict[str, Any]:
    try:
        if "response" in record and record["response"] is None:
            fault = error_message(record)
            raise InvalidResponse(
                f'"response" is null{f", with the error {fault!r}" if fault else ""}; expected an answer: ask again, or'
                " leave the line out"
            )
        run = run_of_line(record, f"line-{number}", plain=plain)
    except (ImportFileError, InvalidResponse) as error:
        return {"line": number, "id": id_of_line(record, f"line-{number}"), **_unknown(str(error))}
    return {"line": number, "id": run.id, **judged(run)}


def of_its_run(predictor: QualityPredictor, run: Run, call: Call) -> QualityPredictor:
    """The predictor for an answer of this run; of a run without a task, which may be any, as for a bare response."""
    name = name_of_run(call.model, run.item.task, run.variant)
    return predictor.of_run(name) if run.item.task or name in predictor.runs else predictor


def predict_of(predictor: QualityPredictor, run: Run, call: Call) -> Callable[[Call], Verdict]:
    """Returns what judges a call of this run; a blend is handed what the model stated of the answer, and a predictor
    that reads decisions those about the call."""
    if isinstance(predictor, DecisionPredictor):
        return lambda call: predictor.predict(run.decisions_about(call.id))
    if not isinstance(predictor, BlendPredictor):
        return predictor.predict
    confidence, p_true = (run.stated_of(call, name) for name in STATED)
    return partial(predictor.predict, confidence=confidence, p_true=p_true)


def verdict_or_reason(predict: Callable[[Call], Verdict], call: Call) -> dict[str, Any]:
    """Returns the fields of the verdict by name; None and the reason where there is no verdict."""
    try:
        verdict = predict(call)
    except (InvalidResponse, ContractMismatch) as error:
        return _unknown(str(error))
    return {name: getattr(verdict, name) for name in FIELDS}


def _unknown(reason: str) -> dict[str, Any]:
    return {**dict.fromkeys(FIELDS), "reason": reason}


def _unreadable(broken: list[ImportFileError]) -> Iterator[dict[str, Any]]:
    while broken:
        error = broken.pop(0)
        yield {"line": error.line, "id": None, **_unknown(str(error))}
