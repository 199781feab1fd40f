"""What a run store holds, as text: `metaprobe inspect RUNS`."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from metaprobe.checkpoints.manifest import printable
from metaprobe.collecting.collect import FAILURES_FILE, SETTINGS_FILE
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run

WIDTH = 12
"""Of the column of names."""


def describe_store(path: Path) -> str:
    """Returns what a run store holds, a line a subject: runs, calls, models, labels, statements, hidden states.

    Files that are damaged are named and the rest is counted. Raises `RecordError` where the folder is no run store.
    """
    store = RunStore(path, damaged="skip")
    shards = store.shards()
    count, total = 0, Counter[tuple[str, str]]()
    for run in store.runs():
        count += 1
        _count(run, total)
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    lines = [
        ("run store", str(path)),
        ("runs", f"{count:,} in {len(shards):,} file{'s' * (len(shards) != 1)}, {size / 1e6:.1f} MB"),
        *((name, text) for name in SHOWN if (text := _list(total, name))),
        *_hidden(store),
        *_settings(path),
    ]
    if store.damaged:
        lines.append(("damaged", f"{', '.join(store.damaged)}: not counted above; restore them from a copy"))
    return "\n".join(printable(f"{name:{WIDTH}}{text}".rstrip()) for name, text in lines)


SHOWN = ("systems", "tasks", "models", "calls", "agents", "labels", "stated", "outcomes", "not there")


def _count(run: Run, found: Counter[tuple[str, str]]) -> None:
    """Adds what a run holds: (subject, name) -> how often."""
    found["systems", f"{run.system} ({run.variant})" if run.variant else run.system] += 1
    found["tasks", run.item.task or "(unnamed)"] += 1
    found["outcomes", "known" if run.outcome is not None else "not known"] += 1
    for call in run.calls:
        found["models", call.model or "(unnamed)"] += 1
        found["calls", call.stage or "(no stage)"] += 1
        found["agents", call.agent] += bool(call.agent)
        found["not there", "log-probabilities"] += call.logprobs is None or not len(call.logprobs)
        found["not there", "texts"] += not call.text
    for label in run.labels:
        found["labels", f"{label.name} by {label.source}"] += 1
    for statement in run.statements:
        found["stated", statement.kind] += statement.value is not None


def _list(total: Counter[tuple[str, str]], subject: str) -> str:
    """`name count` of a subject, the most first; empty where there is nothing."""
    found = [(name, count) for (of, name), count in total.most_common() if of == subject and count]
    return ", ".join(f"{name} {count:,}" for name, count in found)


def _hidden(store: RunStore) -> Iterable[tuple[str, str]]:
    """Hidden states, a line a kind: whose, and which."""
    kinds: Counter[str] = Counter()
    for file in store.activation_files():
        kinds[f"{file.layout}{f', read by {file.model}' if file.model else ''}"] += len(file.call_ids)
    for tokens in store.token_files():
        read = f", read by {tokens.model}" if tokens.model else ""
        kinds[f"layers {list(tokens.layers)}, every answer token, width {tokens.width}{read}"] += len(tokens.call_ids)
    return [("hidden", f"{kind}: {count:,} calls") for kind, count in kinds.items()]


def _settings(path: Path) -> Iterable[tuple[str, str]]:
    """How it was collected, as far as the store says so, and what failed."""
    found = []
    for name, title in ((SETTINGS_FILE, "collected"), (FAILURES_FILE, "failed")):
        file = path / name
        if not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if name == FAILURES_FILE:
            found.append((title, f"{len(text.splitlines()):,} runs, whose reasons stand in {name}"))
            continue
        try:
            settings = {key: value for key, value in json.loads(text).items() if key in ("policy", "signals", "seed")}
        except (ValueError, AttributeError, RecursionError):
            found.append((title, f"{name} is damaged, so that collecting cannot go on here"))
        else:
            found.append((title, ", ".join(f"{key} {value}" for key, value in settings.items() if value != {})))
    return found
