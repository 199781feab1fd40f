"""Scores many answers: a line out for each line of a file, or for each answer of a run store.

A predictor, a probe or a text reader scores; what cannot be scored has null, and the reason.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from metaprobe.checkpoints import ContractMismatch
from metaprobe.checkpoints.flagging import AGREEMENT, USUAL_FLAGS, FlagOptions, threshold_of
from metaprobe.probes.blend import STATED_INPUTS, BlendPredictor, StatesInput
from metaprobe.probes.decision_predictor import DecisionPredictor
from metaprobe.probes.hidden import HiddenProbe
from metaprobe.probes.quality import CUT_AGREEMENT_NOTE, QualityPredictor
from metaprobe.probes.text import TextReader
from metaprobe.probes.training_runs import OnMismatch, mismatch, name_of_run
from metaprobe.probes.verdict import Verdict
from metaprobe.records.errors import ImportFileError, InvalidResponse, NoLogprobs, RecordError
from metaprobe.records.extras import require
from metaprobe.records.import_line import answer_id_of, answer_records, run_of_line
from metaprobe.records.reading import LENGTH, error_message
from metaprobe.records.types import Call, Hidden, Run

SCORE_KEYS = ("score", "heads", "critical", "flagged", "reason")


def score_lines(reader: QualityPredictor | TextReader, path: Path, *, by_run: bool = True) -> Iterator[dict[str, Any]]:
    """Yields an object for each OpenAI-format line, or row of CSV or Parquet: line, id, score, heads, critical,
    flagged, reason.

    A line that cannot be scored has null for all unknown values, and a reason. It does not stop the other lines, whose
    reason is empty if nothing is doubtful. Blank lines are passed over. Raises `ImportFileError` for a file that is one
    JSON document over many lines.

    Args:
        reader: gives the verdicts. A text reader needs no log-probabilities, only texts: `question` and `answer`, or
            messages and response.
        path: the file.
        by_run: whether a line is scored with the base rate of the run that it names.
    """
    line_errors: list[ImportFileError] = []
    for line_number, record in answer_records(path, on_error=line_errors.append):
        yield from _error_lines(line_errors)
        try:
            if "response" in record and record["response"] is None:
                fault = error_message(record)
                raise InvalidResponse(
                    f'"response" is null{f", with the error {fault!r}" if fault else ""}; expected an answer: ask '
                    "again, or leave the line out"
                )
            run = run_of_line(record, f"line-{line_number}", plain=isinstance(reader, TextReader))
        except (ImportFileError, InvalidResponse) as error:
            # The advice that importing adds to missing log-probabilities is about options that scoring has not.
            reason = str(error.__cause__ if isinstance(error.__cause__, NoLogprobs) else error)
            yield {"line": line_number, "id": answer_id_of(record, line_number), **_null_fields(reason)}
            continue
        [call] = run.calls
        predictor = of_its_run(reader, run, call) if by_run else reader
        yield {
            "line": line_number,
            "id": answer_id_of(record, line_number),
            **_verdict_or_reason(predict_of(predictor, run, call), call),
        }
    yield from _error_lines(line_errors)


def of_its_run(reader: QualityPredictor | TextReader, run: Run, call: Call) -> QualityPredictor | TextReader:
    """Returns the predictor with the base rate of the run MODEL|TASK|VARIANT, if the checkpoint knows the run.

    A run without a task could be any run, so it gets the base rate of a response of an unknown run. A text reader has
    no base rates.

    Args:
        reader: the predictor or text reader.
        run: the run that names task and variant.
        call: the call of the run that is scored; it names the model.
    """
    if isinstance(reader, TextReader):
        return reader
    name = name_of_run(call.model, run.item.task, run.variant)
    return reader.of_run(name) if run.item.task or name in reader.runs else reader


def predict_of(predictor: QualityPredictor | TextReader, run: Run, call: Call) -> Callable[[Call], Verdict]:
    """Returns a function that gives the verdict on a call of this run.

    A blend also reads the numbers that the model stated about the answer. A `DecisionPredictor` reads the decisions
    about the call.

    Args:
        predictor: gives the verdict.
        run: the run of the call.
        call: the call whose stated numbers a blend reads.
    """
    if isinstance(predictor, TextReader):
        return predictor.read
    if isinstance(predictor, DecisionPredictor):
        return lambda call: predictor.predict(run.decisions_about(call.id))
    if not isinstance(predictor, BlendPredictor):
        return predictor.predict
    confidence, p_true = (run.stated_of(call, name) for name in STATED_INPUTS)
    return partial(predictor.predict, confidence=confidence, p_true=p_true)


def _verdict_or_reason(predict: Callable[[Call], Verdict], call: Call) -> dict[str, Any]:
    """Returns the fields of the verdict by name; without a verdict, None for each and the reason."""
    try:
        verdict = predict(call)
    except (InvalidResponse, ContractMismatch) as error:
        return _null_fields(str(error))
    return {name: getattr(verdict, name) for name in SCORE_KEYS}


def _null_fields(reason: str) -> dict[str, Any]:
    return {**dict.fromkeys(SCORE_KEYS), "reason": reason}


def _error_lines(line_errors: list[ImportFileError]) -> Iterator[dict[str, Any]]:
    while line_errors:
        error = line_errors.pop(0)
        yield {"line": error.line, "id": None, **_null_fields(str(error))}


# Answers of a run store.

NeededInput = Literal["log-probabilities", "decisions about it", "a text", "hidden states"]
"""Property that an answer of a store needs to be scored."""


def store_lines(
    reader: QualityPredictor | HiddenProbe | TextReader,
    path: Path,
    *,
    by_run: bool = True,
    flags: FlagOptions = USUAL_FLAGS,
    stage: str | None = None,
    left_out: Counter[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields a verdict as an object for each answer of a run store, in stored order: its run, id, item, call, stage and
    score fields.

    Calls that only state a number about an answer are left out, unless `stage` names their stage. A predictor needs
    log-probabilities, or decisions if it reads decisions. A blend also reads stored hidden states, and scores answers
    that have only these, as a probe does. A text reader needs texts. An answer that cannot be scored has null fields
    and a reason.

    Args:
        reader: gives the verdicts.
        path: folder of the store.
        by_run: as for `score_lines`.
        flags: which answers a probe flags; by default those below the stored threshold.
        stage: stage of the calls that are scored; None for any.
        left_out: counts the calls that get no object, by reason.

    Raises `RecordError` for a store without such an answer.
    """
    store = require("metaprobe.records.store", "fit").RunStore(path)  # heavy: this room does without
    states = StoredStates(store, reader) if isinstance(reader, BlendPredictor | HiddenProbe) else None
    needed: NeededInput = "log-probabilities"
    if isinstance(reader, HiddenProbe):
        needed, predict_by_probe = (
            "hidden states",
            partial(_probe_verdict, reader, threshold_of(reader.checkpoint.manifest, flags)),
        )
    elif not isinstance(reader, QualityPredictor):
        needed = "a text"
    elif isinstance(reader, DecisionPredictor):
        needed = "decisions about it"
    calls_with_states = () if states is None else states.call_ids
    predictor_of_run: dict[str, QualityPredictor | TextReader] = {}
    for name, run, call in _answers(store, stage, calls_with_states, needed=needed, left_out=left_out):
        if isinstance(reader, HiddenProbe):
            predict: Callable[[Call], Verdict] = predict_by_probe
        else:
            if name not in predictor_of_run:
                predictor_of_run[name] = of_its_run(reader, run, call) if by_run else reader
            predict = predict_of(predictor_of_run[name], run, call)
        call_with_states = call if states is None else replace(call, hidden=states.of(call.id))
        location_fields = {"run": name, "id": run.id, "item": run.item.id, "call": call.id, "stage": call.stage}
        yield {**location_fields, **_verdict_or_reason(predict, call_with_states)}


def _probe_verdict(probe: HiddenProbe, threshold: float | None, call: Call) -> Verdict:
    """Returns a probe's verdict on a recorded call. The probe's value is the score, or the agreement.

    Args:
        probe: the probe.
        threshold: value below which the answer is flagged; None for no flag.
        call: the call, with its stored hidden states.
    """
    checkpoint = probe.checkpoint
    value = probe.read(call, reader="" if call.hidden is None else call.hidden.model)
    on_mismatch: OnMismatch = "ignore" if probe.on_mismatch == "ignore" else "note"
    mismatch_note = mismatch(checkpoint.manifest.generator, model=call.model, on_mismatch=on_mismatch, stacklevel=1)
    notes = [mismatch_note] if mismatch_note else []
    notes += [f"the score is {clause}" for clause in checkpoint.manifest.chance.values()]
    names = [output.name for output in checkpoint.manifest.outputs]
    gives_agreement = AGREEMENT in names
    if gives_agreement and call.finish_reason == LENGTH and probe.position != "prompt_last":
        value = 0.0
        notes.append(CUT_AGREEMENT_NOTE)
    flagged = None if threshold is None else value < threshold
    score = None if gives_agreement else value
    return Verdict(score, dict.fromkeys(names, value), None, flagged, checkpoint.digest, "; ".join(notes))


class StoredStates:
    """The hidden states of a store that a blend or a probe reads. Each is read from the disk when it is asked for."""

    def __init__(self, store: Any, predictor: BlendPredictor | HiddenProbe) -> None:
        """`store`: a `RunStore`.

        If several models read states, only states of the model that `predictor` names are used.
        """
        self._state_inputs: Sequence[StatesInput | HiddenProbe]
        if isinstance(predictor, BlendPredictor):
            self._state_inputs, reader_name = tuple(predictor.states.values()), predictor.states_reader
        else:
            self._state_inputs, reader_name = (predictor,), predictor.reader
        self._locations_of_call: dict[str, list[tuple[Any, int]]] = {}
        files = store.activation_files()
        files_of_reader = [
            file for file in files if (file.model == reader_name or file.model.rpartition("@")[0] == reader_name)
        ]
        # If no states are of the reader's model, all are passed on, and the predictor's error names their model.
        for file in files_of_reader or files:
            for row_index, call_id in enumerate(file.call_ids):
                self._locations_of_call.setdefault(call_id, []).append((file, row_index))

    @property
    def call_ids(self) -> Container[str]:
        """The ids of the calls that have hidden states."""
        return self._locations_of_call

    def of(self, call_id: str) -> Hidden | None:
        """Returns the states of a call at the layers and positions that are read; None where it has none.

        If only other layers and positions are stored, all stored states are returned, so that the reader's error can
        name both.
        """
        locations = self._locations_of_call.get(call_id, [])
        cells: dict[tuple[int, str], Any] = {}
        canaries: dict[str, Any] = {}
        for file, row_index in locations:
            layout = file.layout
            for layer, position in (
                (layer, states_input.position) for states_input in self._state_inputs for layer in states_input.layers
            ):
                if layer in layout.layers and position in layout.positions and (layer, position) not in cells:
                    indices_in_file = [layout.layers.index(layer)], [layout.positions.index(position)]
                    cells[layer, position] = file.read(np.array([row_index]), *indices_in_file)[0, 0, 0]
                    canaries["" if file.canaries is None else file.canaries.digest] = file.canaries
        if not cells:
            if not locations:
                return None
            (file, row_index), *_ = locations
            layers, positions = file.layout.layers, file.layout.positions
            all_states = file.read(np.array([row_index]), range(len(layers)), range(len(positions)))[0]
            return Hidden(all_states, layers, positions, file.model, file.canaries)
        layers, positions = tuple({layer: 0 for layer, _ in cells}), tuple({position: 0 for _, position in cells})
        width = max(len(values) for values in cells.values())
        values = np.full((len(layers), len(positions), width), np.nan, dtype=np.float32)
        for (layer, position), state in cells.items():
            values[layers.index(layer), positions.index(position), : len(state)] = state
        # Each source of states would need its own check, so states of several sources count as not checked.
        common_canaries = next(iter(canaries.values())) if len(canaries) == 1 else None
        return Hidden(values, layers, positions, locations[0][0].model, common_canaries)


def _answers(
    store: Any,
    stage: str | None,
    states: Container[str],
    *,
    needed: NeededInput,
    left_out: Counter[str] | None,
) -> Iterator[tuple[str, Run, Call]]:
    """Yields (name of the run, run, call) of each answer that has the needed input.

    Some stages only state a number, as "Confidence: 100" at the stage `confidence`. Without `stage` the calls of such
    stages are left out if the run has other calls, because a score of answers says nothing about them.

    Args:
        store: the run store.
        stage: stage of the calls; None for any.
        states: ids of the calls that have hidden states, which are yielded also without `needed`.
        needed: property that an answer must have.
        left_out: counts the calls of the stage that are not yielded, by reason.
    """
    stage_names, is_empty = set(), True
    left_out = Counter() if left_out is None else left_out
    for run in store.runs():
        decided_ids = {answer.call_id for answer in run.decision_answers}
        stated_at = {(statement.call_id, statement.kind) for statement in run.statements}
        stating_calls = {call.id for call in run.calls if stage is None and (call.id, call.stage) in stated_at}
        if len(stating_calls) == len(run.calls):
            stating_calls.clear()
        for call in run.calls:
            stage_names.add(call.stage)
            if stage not in (None, call.stage):
                continue
            if call.id in stating_calls:
                left_out["that state a number of an answer (--stage scores them)"] += 1
                continue
            has_input: dict[NeededInput, bool] = {
                "log-probabilities": call.logprobs is not None and len(call.logprobs) > 0,
                "decisions about it": call.id in decided_ids,
                "a text": bool(call.text.strip()),
                "hidden states": bool(states),
            }
            if has_input[needed] or call.id in states:
                is_empty = False
                yield name_of_run(call.model, run.item.task, run.variant), run, call
            else:
                left_out[f"without {needed}"] += 1
    if is_empty:
        stage_text = (
            "" if stage is None else f" of stage {stage} (the stages are {', '.join(sorted(stage_names)) or 'none'})"
        )
        raise RecordError(f"{store.path} holds no answer with {needed}{stage_text}; expected some")
