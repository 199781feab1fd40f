"""Labels of collected answers by a person or a judge, if no program can check them: listed, filled in, taken back."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from metaprobe.api import (
    BadFile,
    Call,
    IdFault,
    Label,
    RecordError,
    Run,
    RunStore,
    is_csv,
    iter_csv,
    iter_json_lines,
    spoken_text,
)
from metaprobe.papers.systems.named_systems import known_system

HUMAN, PROGRAM = "human", "program"
EXPECTED_LINE = 'expected {"call": ID, "correct": 0..1 or null}, perhaps with "source": "human" or "judge:NAME"'


def find_unlabelled(runs: Iterable[Run]) -> Iterator[dict[str, Any]]:
    """Yields every answer that nobody has judged, as a line to fill in: its `correct` is null."""
    for run in runs:
        for call in _answers(run):
            if run.label("correct", call.id) is not None:
                continue
            answer = _extract(run, call)
            about = {"item": run.item.id, "agent": call.agent, "question": run.item.question, "answer": answer}
            yield {"call": call.id, **about, "correct": None}


def _answers(run: Run) -> Iterable[Call]:
    """Returns the calls that are answers to the run's item; none if the system is not known."""
    if run.imported:
        return run.calls[:1]  # a judge's calls may follow
    system = known_system(run.system)
    return () if system is None else [call for call in run.calls if call.stage in system.answer_stages]


def _extract(run: Run, call: Call) -> str | None:
    """Returns the answer in a call; None if the system is not known."""
    if run.imported:
        return spoken_text(call.text)
    system = known_system(run.system)
    return None if system is None else system.extract_answer(run.item, call, run.variant)


def unknown_systems(runs: Iterable[Run]) -> Counter[str]:
    """Counts runs of systems that neither this package nor an installed one has, by the system's name."""
    return Counter(run.system for run in runs if not run.imported and known_system(run.system) is None)


def label_from_file(store: RunStore, path: Path) -> tuple[int, int]:
    """Adds the labels of a file to their calls. Returns how many labels the file holds, and how many are new.

    A label of a call that the store does not hold is bad, like a line that cannot be read.
    """
    with BadFile.reading(path) as bad:
        call_ids = {call.id for run in store for call in run.calls}
        labels = read_labels(path, bad, call_ids)
    return len(labels), add_labels(store, labels)


def read_labels(path: Path, bad: BadFile, known_calls: Collection[str] | None = None) -> dict[str, Label]:
    """Returns the `correct` labels of such lines, or rows of CSV, by call; lines that are not filled in are skipped.

    The source is `human` unless a line says `judge:NAME`. Bad lines go to `bad`. If `known_calls` is given, lines
    that label another call are bad too.

    Args:
        path: the file.
        bad: gets the bad lines.
        known_calls: ids of calls.
    """
    labels: dict[str, Label] = {}
    read_rows = iter_csv if is_csv(path) else iter_json_lines
    rows: Iterator[tuple[int, Mapping[str, Any]]] = read_rows(path, on_error=bad.leave_out)
    for number, line in rows:
        try:
            label = _label_of(line)
            if label is not None and known_calls is not None and label.call_id not in known_calls:
                cause = f"; likely cause: {fault}" if (fault := IdFault.of(label.call_id)) else ""
                raise RecordError(f"the store holds no call {label.call_id!r}; expected calls of this store{cause}")
        except RecordError as error:
            bad.leave_out_line(number, str(error), line)
            continue
        bad.sound += 1
        if label is not None:
            labels[label.call_id] = label
    return labels


def _label_of(line: Mapping[str, Any]) -> Label | None:
    """Returns the label of a line; None if its `correct` is not filled in. Raises `RecordError` for a bad line."""
    if not isinstance(line.get("call"), str) or "correct" not in line:
        raise RecordError(f"the keys are {sorted(line)}; {EXPECTED_LINE}")
    value, source = line["correct"], line.get("source") or HUMAN
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value) if value.strip() else None
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise RecordError(f"correct is {value!r}; {EXPECTED_LINE}")
    if source != HUMAN and not str(source).startswith("judge:"):
        raise RecordError(f"source is {source!r}; {EXPECTED_LINE}")
    return Label(line["call"], "correct", float(value), str(source))


def add_labels(store: RunStore, labels: Mapping[str, Label]) -> int:
    """Adds the labels to their calls. Returns how many the store did not have.

    A label replaces an earlier one of the same source; labels of other sources stay. If the labelled answer is the
    final one and no stronger source has judged it (a person before a program before a judge), the label is the run's
    outcome. Raises `RecordError` for calls that the store does not hold, before anything is written.
    """
    call_ids = {call.id for run in store for call in run.calls}
    if unknown_calls := [call for call in labels if call not in call_ids]:
        faults = "; ".join(IdFault.list_all(unknown_calls))
        raise RecordError(
            f"{store.path} holds no call {unknown_calls[0]!r} (nor {len(unknown_calls) - 1} others of the labels)"
            + (f"; likely causes: {faults}" if faults else "")
        )
    added = 0

    def with_labels(run: Run) -> Run:
        nonlocal added
        new_labels = [labels[call.id] for call in run.calls if call.id in labels and labels[call.id] not in run.labels]
        added += len(new_labels)
        return _label(run, new_labels) if new_labels else run

    store.rewrite(with_labels)
    return added


def _label(run: Run, new_labels: list[Label]) -> Run:
    replaced = {(label.call_id, label.source) for label in new_labels}
    kept_labels = [
        label for label in run.labels if label.name != "correct" or (label.call_id, label.source) not in replaced
    ]
    outcome = run.outcome
    calls = {call.id: call for call in run.calls}
    for label in new_labels:
        earlier_labels = [
            earlier
            for earlier in kept_labels
            if earlier.name == "correct" and (earlier.call_id == label.call_id or earlier.source == PROGRAM)
        ]
        if any(earlier.rank < label.rank for earlier in earlier_labels):
            continue
        if _extract(run, calls[label.call_id]) == run.final_answer:
            outcome = label.value
    return dataclasses.replace(run, labels=(*kept_labels, *new_labels), outcome=outcome)
