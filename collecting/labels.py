"""Labels of collected answers by a person or a judge, for what no program can check: listed, filled in, taken back.

The outcomes of labelled runs are folded into a file of profiles that a collection begins with.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metaprobe.pipelines import SYSTEMS
from metaprobe.pipelines.named_systems import known_system
from metaprobe.records.errors import RecordError
from metaprobe.records.lines import at_line, iter_json_lines
from metaprobe.records.store import RunStore
from metaprobe.records.types import Label, Run, label_strength
from metaprobe.routing.profiles import Observation, Profiles, ProfileStore, every_answer, run_observations

HUMAN, PROGRAM = "human", "program"
FORM = 'expected {"call": ID, "correct": 0..1 or null}, perhaps with "source": "human" or "judge:NAME"'


def find_unlabelled(runs: Iterable[Run]) -> Iterator[dict[str, Any]]:
    """Every answer that nobody has judged, as a line to fill in: its `correct` is null."""
    for run in runs:
        system = known_system(run.system)
        for call in run.calls:
            if system is None or call.stage not in system.answer_stages or run.label("correct", call.id) is not None:
                continue
            answer = system.extract_answer(run.item, call, run.variant)
            about = {"item": run.item.id, "agent": call.agent, "question": run.item.question, "answer": answer}
            yield {"call": call.id, **about, "correct": None}


def unknown_systems(runs: Iterable[Run]) -> Counter[str]:
    """Returns how many runs are of systems that neither the package has nor an installed one, by the system's name."""
    return Counter(run.system for run in runs if known_system(run.system) is None)


def read_labels(path: Path) -> dict[str, Label]:
    """The `correct` labels of a file of such lines, by call; lines that are not filled in are passed over.

    The source is `human` unless a line says `judge:NAME`. Raises `RecordError`, naming the line, for anything else.
    """
    labels: dict[str, Label] = {}
    for number, line in iter_json_lines(path):
        if not isinstance(line.get("call"), str) or "correct" not in line:
            raise at_line(path, number, FORM)
        value, source = line["correct"], line.get("source") or HUMAN
        if value is None:
            continue
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise at_line(path, number, f"correct is {value!r}; {FORM}")
        if source != HUMAN and not str(source).startswith("judge:"):
            raise at_line(path, number, f"source is {source!r}; {FORM}")
        labels[line["call"]] = Label(line["call"], "correct", float(value), str(source))
    return labels


def add_labels(store: RunStore, labels: Mapping[str, Label]) -> int:
    """Put the labels to their calls; how many there were that the store did not have.

    One of the same source takes the earlier one's place, others stay beside it. Where a labelled answer is the final
    one and no stronger source has judged it (a person before a program before a judge), it is the run's outcome.
    Raises `RecordError` for calls that the store does not hold, before anything is written.
    """
    known = {call.id for run in store for call in run.calls}
    if strangers := [call for call in labels if call not in known]:
        raise RecordError(
            f"{store.path} holds no call {strangers[0]!r} (nor {len(strangers) - 1} others of the labels)"
        )
    added = 0

    def told(run: Run) -> Run:
        nonlocal added
        now = [labels[call.id] for call in run.calls if call.id in labels and labels[call.id] not in run.labels]
        added += len(now)
        return _label(run, now) if now else run

    store.rewrite(told)
    return added


def _label(run: Run, now: list[Label]) -> Run:
    replaced = {(label.call_id, label.source) for label in now}
    kept = [label for label in run.labels if label.name != "correct" or (label.call_id, label.source) not in replaced]
    system, outcome = known_system(run.system), run.outcome
    calls = {call.id: call for call in run.calls}
    for label in now:
        about = [
            one for one in kept if one.name == "correct" and (one.call_id == label.call_id or one.source == PROGRAM)
        ]
        if system is None or any(label_strength(one) < label_strength(label) for one in about):
            continue
        if system.extract_answer(run.item, calls[label.call_id], run.variant) == run.final_answer:
            outcome = label.value
    return dataclasses.replace(run, labels=(*kept, *now), outcome=outcome)


def fold_profiles(stores: Sequence[Path], out: Path, *, every: bool = False) -> dict[str, Any]:
    """Add the outcomes of these stores to a profile file, one store after another and each in the order it was stored.

    `every`: of each agent whose answer was judged, not only of those that were chosen; one variant of an item counts.
    What comes back: how many outcomes were read, how many of them the file did not hold as they are now, and each
    agent's rate by dimension (the paper's moving average). Raises `RecordError` where the runs name no agent.
    """
    outcomes: list[Observation] = []
    seen: set[str] = set()
    for place, run in enumerate(run for store in stores for run in RunStore(store)):
        system = known_system(run.system)
        if system is not None and system.experiences is not None and not (every and run.item.id in seen):
            outcomes += run_observations(run, every_answer if every else system.experiences, time=place)
            seen.add(run.item.id)
    if not outcomes:
        names = ", ".join(name for name, system in SYSTEMS.items() if system.experiences is not None)
        raise RecordError(
            f"{', '.join(map(str, stores))}: no outcome of an agent; expected runs of {names} whose answers are "
            f"labelled (`metaprobe label`)"
        )
    with ProfileStore(out) as file:
        after = file.next_time
        added = file.add(replace(one, time=after + one.time) for one in outcomes)
        known = file.observations()
    learned = Profiles(known)
    pairs = sorted({(one.agent, one.dimension) for one in known})
    rates = {agent: {d: learned.rate_of(agent, d) for a, d in pairs if a == agent} for agent, _ in pairs}
    return {"outcomes": len(outcomes), "new": added, "profiles": rates}
