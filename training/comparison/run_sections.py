"""What a comparison says of the runs themselves: of their answers as choices, and of what the systems did."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare_efficiency import NotTwoChoice, metacognitive_efficiency, two_choice_responses
from metaprobe.eval.coupling import coupling
from metaprobe.eval.results import TwoChoice
from metaprobe.eval.systems import metacrit
from metaprobe.eval.table import AnswerTable
from metaprobe.pipelines.named_systems import known_system
from metaprobe.records.types import Call, Item, Run
from metaprobe.training.crossfit.folds import CrossFit


def collect_grades(runs: Sequence[Run], table: AnswerTable) -> dict[str, NDArray[np.float64]]:
    """Every label of these answers beside their target: name -> (n,), NaN where an answer has none of it."""
    row = {call_id: i for i, call_id in enumerate(table.call_ids.tolist())}
    found: dict[str, NDArray[np.float64]] = {}
    for run in runs:
        for label in run.labels:
            if label.call_id in row and ":" not in label.name:  # `signal:...` is what a checkpoint read
                found.setdefault(label.name, np.full(len(table), np.nan))[row[label.call_id]] = label.value
    return found


def answers_of(runs: Sequence[Run], table: AnswerTable) -> tuple[list[Item], list[str | None]]:
    """The item and the answer itself of every row; None for an answer whose text was not stored.

    Raises `KeyError` where a row's run is not among them.
    """
    held: dict[str, tuple[Run, Call]] = {call.id: (run, call) for run in runs for call in run.calls}
    pairs = [held[call_id] for call_id in table.call_ids.tolist()]
    return [run.item for run, _ in pairs], [_answer(run, call) for run, call in pairs]


def _answer(run: Run, call: Call) -> str | None:
    if not call.text:
        return None
    system = known_system(run.system)
    return call.text.strip() if system is None else system.extract_answer(run.item, call, run.variant)


def efficiency_of(
    table: AnswerTable, fits: CrossFit, runs: Sequence[Run], *, target: str, seed: int = 0
) -> tuple[TwoChoice | None, str]:
    """Metacognitive efficiency, or why there is none."""
    if not runs:
        return None, "the runs were not given"
    if target != "correct":
        return None, f"the answers are judged by their label {target!r}, not by being right"
    try:
        responses = two_choice_responses(*answers_of(runs, table), table.y)
        return metacognitive_efficiency(table, fits.methods, responses, seed=seed), ""
    except NotTwoChoice as reason:
        return None, str(reason)


def sections_of_runs(runs: Sequence[Run], *, seed: int = 0) -> dict[str, Any]:
    """What monitoring found and control did, as fields of a `Comparison`."""
    found: dict[str, Any] = {"coupling": coupling(runs, seed=seed)}
    criticised = [run for run in runs if run.system == "metacrit"]
    if criticised:
        # Ablations are other systems: the table is of the variant with most runs.
        variant = Counter(run.variant for run in criticised).most_common(1)[0][0]
        members = [run for run in criticised if run.variant == variant]
        rows = metacrit.agreement(members, seed=seed)
        if any(row.n for row in rows):
            found |= {"agreement": rows, "failures": metacrit.failure_types(runs)}
    return found
