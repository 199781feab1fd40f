"""Says what a run store holds: runs, calls, models, labels, hidden states, and how it was collected."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from metaprobe.checkpoints.manifest import printable
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run

NAME_COLUMN_CHARS = 12
"""Width of the column of titles, in characters."""
SUBJECTS = ("systems", "tasks", "models", "calls", "agents", "labels", "stated", "decided", "outcomes", "not there")
"""Subjects that are counted, in the order of their lines."""


def describe_store(path: Path) -> str:
    """Returns what a run store holds, a line for each subject: runs, calls, models, labels, statements, hidden states.

    Damaged files are named and the rest is counted. Raises `RecordError` if the folder is no run store.
    """
    store = RunStore(path, damaged="skip")
    shards = store.shards()
    run_count, counts = 0, Counter[tuple[str, str]]()
    for run in store.runs():
        run_count += 1
        _count_run(run, counts)
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    titled_lines = [
        ("run store", str(path)),
        ("runs", f"{run_count:,} in {len(shards):,} file{'s' * (len(shards) != 1)}, {size / 1e6:.1f} MB"),
    ]
    for subject in SUBJECTS:
        count_texts = [
            f"{name} {count:,}"
            for (counted_subject, name), count in counts.most_common()
            if counted_subject == subject and count
        ]
        titled_lines += [(subject, ", ".join(count_texts))] if count_texts else []
    calls_by_layout: Counter[str] = Counter()  # layout of the hidden states, and the model that read them
    for file in store.activation_files():
        calls_by_layout[f"{file.layout}{f', read by {file.model}' if file.model else ''}"] += len(file.call_ids)
    titled_lines += [("hidden", f"{layout}: {count:,} calls") for layout, count in calls_by_layout.items()]
    titled_lines += _settings_and_failures(path)
    if store.damaged:
        titled_lines.append(("damaged", f"{', '.join(store.damaged)}: not counted above; restore them from a copy"))
    return "\n".join(printable(f"{title:{NAME_COLUMN_CHARS}}{text}".rstrip()) for title, text in titled_lines)


def _count_run(run: Run, counts: Counter[tuple[str, str]]) -> None:
    """Adds what a run holds to the counts of (subject, name).

    Where a boolean is added, it is the condition for counting. A name with the count 0 keeps its place among ties.
    """
    counts["systems", f"{run.system} ({run.variant})" if run.variant else run.system] += 1
    counts["tasks", run.item.task or "(unnamed)"] += 1
    counts["outcomes", "known" if run.outcome is not None else "not known"] += 1
    for call in run.calls:
        counts["models", call.model or "(unnamed)"] += 1
        counts["calls", call.stage or "(no stage)"] += 1
        counts["agents", call.agent] += bool(call.agent)
        counts["not there", "log-probabilities"] += call.logprobs is None or not len(call.logprobs)
        counts["not there", "texts"] += not call.text
    for label in run.labels:
        counts["labels", f"{label.name} by {label.source}"] += 1
    for answer in run.decision_answers:
        counts["decided", f"{answer.question} by {answer.source or '(unnamed)'}"] += answer.kind != "refusal"
    for statement in run.statements:
        counts["stated", statement.kind] += statement.value is not None


def _settings_and_failures(path: Path) -> Iterable[tuple[str, str]]:
    """Returns the settings of the collection, if the store has them, and the number of failed runs."""
    lines = []
    for name, title in ((RunStore.settings_name, "collected"), (RunStore.failures_name, "failed")):
        file = path / name
        if not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if name == RunStore.failures_name:
            lines.append((title, f"{len(text.splitlines()):,} runs, whose reasons stand in {name}"))
            continue
        try:
            settings = {key: value for key, value in json.loads(text).items() if key in ("policy", "signals", "seed")}
        except (ValueError, AttributeError, RecursionError):
            lines.append((title, f"{name} is damaged, so that collecting cannot go on here"))
        else:
            lines.append((title, ", ".join(f"{key} {value}" for key, value in settings.items() if value != {})))
    return lines
