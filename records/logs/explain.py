"""What an import would make of a file: its format, what would be stored, what is missing for which training."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from metaprobe.records.importer import read_log
from metaprobe.records.logs.detect import format_of
from metaprobe.records.logs.sample import LogOptions
from metaprobe.records.types import Run

ANSWERS = 1000
"""So many answers are looked at; a log of gigabytes is not read to its end."""


@dataclass(slots=True)
class Recognized:
    """What the answers of a file hold, counted."""

    answers: int = 0
    with_logprobs: int = 0
    with_top: int = 0
    with_prompt: int = 0
    with_stated: int = 0
    with_texts: int = 0
    tokens: list[int] = field(default_factory=list)
    groups: set[tuple[str, str]] = field(default_factory=set)
    labels: dict[str, Counter[float]] = field(default_factory=dict)
    models: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, run: Run) -> None:
        """Counts one answer."""
        (call,) = run.calls
        self.answers += 1
        self.with_texts += bool(call.text)
        self.with_prompt += bool(call.messages)
        self.with_stated += run.stated("confidence") is not None
        self.groups.add((run.item.task, run.item.group))
        self.models[call.model or "(not named)"] += 1
        self.tasks[run.item.task or "(not named)"] += 1
        self.ends[call.finish_reason or "(not said)"] += 1
        if call.logprobs is not None:
            self.with_logprobs += 1
            self.with_top += call.top_logprobs is not None
            self.tokens.append(call.logprobs.size)
        for label in run.labels:
            self.labels.setdefault(label.name, Counter())[label.value] += 1


def explain(
    path: Path,
    form: str = "auto",
    *,
    correct: str = "",
    requests: Path | None = None,
    stated: Callable[[str], float | None] | None = None,
    plain: bool = False,
    answers: int = ANSWERS,
) -> list[str]:
    """Returns lines for people: what would be made of the file. Nothing is stored.

    Raises `ImportFileError` where the file as a whole cannot be read.
    """
    found = Recognized()
    format_found = format_of(path, form)
    options = LogOptions(correct, requests, lambda error: found.bad.append(str(error)), plain=plain)

    def count(_: object, reason: str) -> None:
        found.left_out[reason] += 1

    lines = read_log(path, format_found, options, stated=stated, on_left_out=count)
    for line in islice(lines, answers):
        found.add(line.run)
        if line.taken:
            found.taken[line.taken] += 1
    whole = "all" if found.answers < answers else f"the first {answers}"
    return [
        f"recognised     {format_found.what} ({format_found.name}{'' if form != 'auto' else ', told by the content'})",
        *_stored(found, whole),
        *_missing(found),
    ]


def _stored(found: Recognized, whole: str) -> Iterator[str]:
    yield f"would store    {found.answers} answers ({whole}) in {len(found.groups)} groups"
    if found.answers:
        lengths = np.array(found.tokens or [0])
        yield (
            f"               {found.with_logprobs} with log-probabilities ({int(np.median(lengths))} tokens in the"
            f" median, {lengths.max()} at most), {found.with_top} of them with alternatives"
        )
        yield f"               {found.with_prompt} with a prompt, {found.with_stated} with a stated confidence"
        yield f"               models: {_counted(found.models)}"
        yield f"               tasks: {_counted(found.tasks)}"
        yield f"               ends: {_counted(found.ends)}"
    for name, values in found.labels.items():
        shown = ", ".join(f"{value:g}: {count}" for value, count in sorted(values.items())[:6])
        yield f"               label {name}: {shown}{', ...' if len(values) > 6 else ''}"
    for what, count in found.taken.most_common():
        yield f"took           {count} x {what}"
    for reason, count in found.left_out.most_common():
        yield f"left out       {count} x {reason}"
    if found.bad:
        yield f"bad            {len(found.bad)}, the first: {found.bad[0]}"


def _missing(found: Recognized) -> Iterator[str]:
    if not found.answers:
        yield "there is nothing to train on, and nothing to compare"
        return
    correct = found.labels.get("correct", Counter())
    known = [name for name, values in found.labels.items() if set(values) == {0.0, 1.0}]
    lack = {
        "log-probabilities": found.with_logprobs == 0,
        f"labels of which some are 0 and some 1 (there are: {', '.join(found.labels) or 'none'})": not known,
        "prompts (messages)": found.with_prompt == 0,
        "texts": found.with_texts == 0,
    }
    names = list(lack)
    needed = {
        "train quality": names[:2],
        "train gate": names[:2],
        "train hidden": [names[1], names[2]],
        "train adapter": [names[1], names[3]],
        "compare": names[:2],
    }
    for command, wanted in needed.items():
        missing = [what for what in wanted if lack[what]]
        target = "" if "correct" in known or not known else f" with --target {known[0]}"
        yield f"{command:15}{'lacks ' + ' and '.join(missing) if missing else 'has what it needs' + target}"
    if 0 < len(found.groups) < 100:
        yield f"               {len(found.groups)} groups are few: a few hundred give intervals that say something"
    if correct and len(correct) == 1:
        yield f"               all answers are {'right' if 1.0 in correct else 'wrong'}: that teaches nothing"


def _counted(counts: Counter[str]) -> str:
    shown = ", ".join(f"{name} {count}" for name, count in counts.most_common(3))
    return f"{shown}, ..." if len(counts) > 3 else shown
