"""Says what run stores hold: the numbers of a collection (`summarize`), and a store as text (`inspect`)."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from metaprobe.checkpoints.manifest import printable
from metaprobe.collecting.collect import FAILURES_FILE, SETTINGS_FILE, read_settings
from metaprobe.eval.results import plain
from metaprobe.eval.systems import metacogagent, metacrit, mgv
from metaprobe.eval.systems.decisions import decisions_of
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from metaprobe.tasks import TASKS

Summary = dict[str, Any]
SHOWN = {"task": "task set", "model": "model", "policy": "policy", "signals": "signals"}
"""Setting of a collection -> its name beside the numbers, where `task` stands for the task's own scores."""


def summarize(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> list[Summary]:
    """For each system and variant: runs, cost, accuracy by stage, and the system's own analyses. Ready for JSON.

    Intervals are 95 % bootstrap intervals over groups: (estimate, low, high). Raises `RecordError` for no runs.
    """
    by_variant: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_variant.setdefault((run.system, run.variant), []).append(run)
    if not by_variant:
        raise RecordError("no runs to summarise: collect some first")
    summaries = []
    for (system, variant), members in sorted(by_variant.items()):
        (cost,) = metacrit.cost_table(members, resamples=resamples, seed=seed)
        stages = metacrit.stage_accuracy(members, resamples=resamples, seed=seed)
        own = ANALYSES[system](members, resamples, seed) if system in ANALYSES else {}
        summaries.append(
            {
                "system": system,
                "variant": variant,
                "runs": len(members),
                "cost": plain(cost),
                "accuracy by stage": {stage.stage: plain(stage.accuracy) for stage in stages},
                "task": plain(task_scores(members)),
                "decisions": {point: plain(told) for point, told in decisions_of(members).items()},
                **{name: plain(value) for name, value in own.items()},
            }
        )
    return summaries


def task_scores(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """For each task set: its own metrics of the final answers, beside what guessing reaches.

    None of items that were stored without their texts.
    """
    scores = {}
    for name in dict.fromkeys(run.item.task for run in runs):
        told = [run for run in runs if run.item.task == name and run.item.question]
        task = TASKS.get(name)
        if task is None or not told:
            continue
        items = [run.item for run in told]
        scores[name] = {"score": task.score(items, [run.final_answer for run in told]), "guessing": task.chance(items)}
    return scores


def _cycles(runs: Sequence[Run], resamples: int, seed: int) -> dict[str, Any]:
    (report,) = mgv.cycle_reports(runs, resamples=resamples, seed=seed)
    return {"cycles": report}


ANALYSES: dict[str, Callable[[Sequence[Run], int, int], dict[str, Any]]] = {
    "metacrit": lambda runs, resamples, seed: {
        "agreement": metacrit.agreement(runs, resamples=resamples, seed=seed),
        "failure types": metacrit.failure_types(runs),
    },
    "monitor-generate-verify": _cycles,
    "self-refine": _cycles,
    "self-verification": _cycles,
    "metacogagent": lambda runs, resamples, seed: {
        "delegation": metacogagent.evaluate(runs, resamples=resamples, seed=seed)
    },
}
"""System -> its own analyses of runs of one variant."""


def summarize_stores(folders: Sequence[Path], *, resamples: int = 1000, seed: int = 0) -> list[dict[str, Any]]:
    """For each store and each system and variant in it, its numbers beside what it was collected with."""
    summaries_of_all = []
    for folder in folders:
        settings = read_settings(folder / SETTINGS_FILE) or {}
        with_ = {name: settings[key] for key, name in SHOWN.items() if key in settings}
        summaries = summarize(RunStore(folder), resamples=resamples, seed=seed)
        summaries_of_all += [{"store": str(folder), **with_, **summary} for summary in summaries]
    return summaries_of_all


WIDTH = 12
"""Width of the column of names, in characters."""


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
    ]
    for subject in SUBJECTS:
        counts = [f"{name} {count:,}" for (of, name), count in total.most_common() if of == subject and count]
        lines += [(subject, ", ".join(counts))] if counts else []
    kinds: Counter[str] = Counter()  # of hidden states: which they are, and who read them
    for file in store.activation_files():
        kinds[f"{file.layout}{f', read by {file.model}' if file.model else ''}"] += len(file.call_ids)
    lines += [("hidden", f"{kind}: {count:,} calls") for kind, count in kinds.items()]
    lines += _settings(path)
    if store.damaged:
        lines.append(("damaged", f"{', '.join(store.damaged)}: not counted above; restore them from a copy"))
    return "\n".join(printable(f"{name:{WIDTH}}{text}".rstrip()) for name, text in lines)


SUBJECTS = ("systems", "tasks", "models", "calls", "agents", "labels", "stated", "decided", "outcomes", "not there")


def _count(run: Run, total: Counter[tuple[str, str]]) -> None:
    """Adds what a run holds: (subject, name) -> how often."""
    total["systems", f"{run.system} ({run.variant})" if run.variant else run.system] += 1
    total["tasks", run.item.task or "(unnamed)"] += 1
    total["outcomes", "known" if run.outcome is not None else "not known"] += 1
    for call in run.calls:
        total["models", call.model or "(unnamed)"] += 1
        total["calls", call.stage or "(no stage)"] += 1
        total["agents", call.agent] += bool(call.agent)
        total["not there", "log-probabilities"] += call.logprobs is None or not len(call.logprobs)
        total["not there", "texts"] += not call.text
    for label in run.labels:
        total["labels", f"{label.name} by {label.source}"] += 1
    for answer in run.decision_answers:
        total["decided", f"{answer.question} by {answer.source or '(unnamed)'}"] += answer.kind != "refusal"
    for statement in run.statements:
        total["stated", statement.kind] += statement.value is not None


def _settings(path: Path) -> Iterable[tuple[str, str]]:
    """Returns how the store was collected, as far as it says so, and what failed."""
    lines = []
    for name, title in ((SETTINGS_FILE, "collected"), (FAILURES_FILE, "failed")):
        file = path / name
        if not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if name == FAILURES_FILE:
            lines.append((title, f"{len(text.splitlines()):,} runs, whose reasons stand in {name}"))
            continue
        try:
            settings = {key: value for key, value in json.loads(text).items() if key in ("policy", "signals", "seed")}
        except (ValueError, AttributeError, RecursionError):
            lines.append((title, f"{name} is damaged, so that collecting cannot go on here"))
        else:
            lines.append((title, ", ".join(f"{key} {value}" for key, value in settings.items() if value != {})))
    return lines
