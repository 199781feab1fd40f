"""How often a rule decides each way, by a stated number, by a checkpoint's, with which threshold; and what comes of it.

    python -m research.systems.operating_points measure
    python -m research.systems.operating_points page

From recorded/gsm8k-mgv (point `iterate`: all three cycles were run) and recorded/metacog-every-agent (points `assess`
and `assign`: every agent was asked). No model is asked. The questions are halved by group; the quality predictor that
reads one half was trained on the other. `measure` keeps its numbers in docs/measured/operating_points.json (a minute or
two of one core); `page` writes the section `operating-points` of docs/research/systems.md.
"""

import json
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import numpy as np
from numpy.typing import ArrayLike

from metaprobe.checkpoints import FlagOptions, UntrustedCheckpoint
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.eval.metrics.ranked import Value
from metaprobe.eval.metrics.strongest_control import against_controls
from metaprobe.eval.systems import metacogagent
from metaprobe.eval.table import group_of
from metaprobe.probes.source import SignalSource
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from metaprobe.training.recipes.quality import write_quality
from metaprobe.training.study import study
from research.blocks import markdown, write
from research.systems.deciding import (
    CONSTANT,
    ORDERS,
    OWN_FLAG,
    OWN_ITERATE,
    Read,
    Row,
    asking,
    half_of,
    in_order,
    stopping,
)
from research.systems.figures import PAGE, ROOT, about, points, recorded, share

PROMISED = FlagOptions(catch=0.9)
"""What the stored threshold flags in the measured figures: below it lie, on average, 90 % of the wrong answers."""
MEASURED = ROOT / "docs" / "measured" / "operating_points.json"


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
def measure_command() -> None:
    """Train on each half, decide on the other, keep the numbers."""
    cycles, agents = recorded("gsm8k-mgv"), recorded("metacog-every-agent")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)  # whether it passes every audit is not the subject here
        read = read_by_halves(cycles, {"": "quality"})
        rows = stopping(cycles, read)
        names = metacogagent.outcome_matrix(agents).agents
        agent_rows = asking(agents, read_by_halves(agents, dict.fromkeys(names, "confidence")))
    measured = {
        "iterate": point_of(cycles, rows, OWN_ITERATE, [group_of(run.item) for run in cycles]),
        "assess": point_of(agents, agent_rows, OWN_FLAG, [group_of(run.item) for run in in_order(agents)]),
    }
    MEASURED.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def point_of(runs: Sequence[Run], rows: Sequence[Row], own: str, groups: Sequence[str]) -> dict[str, Any]:
    """What is kept of one point: what was run, every row, and what the checkpoint's own threshold is shown to do."""
    return {"about": about(runs), "rows": figures(rows, groups), "told": verdict(rows, own, groups)}


@main.command("page")
def page_command() -> None:
    """Writes the tables."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    write(PAGE, "operating-points", section(measured))


def section(measured: dict[str, Any]) -> list[str]:
    """Of both points: what was run, a row for each way of deciding, what is shown of the checkpoint's own threshold."""
    head = ["decides by", "threshold", "says {}", "accuracy", "over {}", "tokens a question"]
    iterate, assess = measured["iterate"], measured["assess"]
    return [
        "Point `iterate` of Monitor-Generate-Verify, from the three cycles that every problem was given. Later answers "
        "were written in view of the verifier's scores, whoever decides here; where a checkpoint decides, the tokens "
        "of the verifier are not counted. Of the cycles that were run, the answer evaluated best is returned. "
        "`flag` is what a checkpoint without `iterate` falls back to.",
        "",
        *iterate["about"],
        "",
        *table(iterate["rows"], head, "stop", "stopping at once"),
        "",
        iterate["told"],
        "",
        "Points `assess` and `assign` of MetaCogAgent, mean over "
        f"{ORDERS} shuffled orders of the questions. A confidence that is read off an answer makes every agent that is "
        "asked answer, so tokens are those of the answers; a stated one costs an assessment.",
        "",
        *assess["about"],
        "",
        *table(assess["rows"], head, "execute", "the constant of each agent"),
        "",
        assess["told"],
        "",
    ]


def verdict(rows: Sequence[Row], own: str, groups: Sequence[str]) -> str:
    """One way against each of the others, paired, corrected by Holm over all of them: what is shown, and what not."""
    (ours,) = [row for row in rows if row.name == own]
    others = {row.name: np.asarray(row.correct, dtype=np.float64) for row in rows if row is not ours}
    mine = np.asarray(ours.correct, dtype=np.float64)
    compared = against_controls(mine, mine, others, cluster_weights(groups, 1000, 0), metric=share_right)
    found: dict[str, list[str]] = {
        "is more accurate than": [],
        "is not shown to differ from": [],
        "is less accurate than": [],
    }
    at = {control.name: control for control in compared.controls}
    for name in others:
        gain = at[name].difference
        shown = at[name].p_holm < 0.05 and (gain.low > 0 or gain.high < 0)
        found[list(found)[1 if not shown else 0 if gain.low > 0 else 2]].append(f"*{name}* ({points(gain)})")
    said = "; ".join(f"{how} {', '.join(names)}" for how, names in found.items() if names)
    return f"By paired intervals, in points, and p-values corrected by Holm over these ways, *{own}* {said}."


def share_right(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None, /) -> Value:
    """The mean of `score` (n,), right or wrong as 1 or 0, whatever `y` holds: a share in place of an AUROC."""
    right = np.asarray(score, dtype=np.float64)
    counts = np.ones_like(right) if weight is None else np.asarray(weight, dtype=np.float64)
    return counts @ right / counts.sum(axis=-1)


def table(measured: Sequence[dict[str, str]], head: Sequence[str], says: str, over: str) -> list[str]:
    """The numbers of one point as a table."""
    named = [head[0], head[1], head[2].format(says), head[3], head[4].format(over), head[5]]
    return markdown(named, [list(row.values()) for row in measured])


def figures(rows: Sequence[Row], groups: Sequence[str]) -> list[dict[str, str]]:
    """Every row as it stands in the table; differences are paired, against the strongest way that reads no answer."""
    weights = cluster_weights(groups, 1000, 0)
    base = next(row for row in rows if row.name in ("stops at once", CONSTANT))
    return [
        {
            "name": row.name,
            "threshold": row.threshold,
            "says": f"{fmean(row.says):.0%}" if row.says else "-",
            "accuracy": share(mean_interval(row.correct, weights)).split(" (n")[0],
            "over": "-" if row is base else points(difference(row, base, weights)),
            "tokens": f"{fmean(row.tokens):.0f}",
        }
        for row in rows
    ]


def difference(row: Row, base: Row, weights: np.ndarray) -> Interval:
    """Paired, in shares of the questions."""
    return mean_interval([a - b for a, b in zip(row.correct, base.correct, strict=True)], weights)


def read_by_halves(runs: Sequence[Run], kinds: dict[str, str]) -> Read:
    """What a predictor trained on the other half reads of every answer; `kinds`: agent ("" for all) -> signal."""
    found: Read = {}
    with tempfile.TemporaryDirectory() as temporary:
        for half in (0, 1):
            folder = Path(temporary) / str(half)
            RunStore(folder / "runs").append([run for run in runs if half_of(run) != half])
            for agent, signal in kinds.items():
                learned = study([folder / "runs"], stage="answer", agent=agent or None, folds=2, hidden=False)
                path = folder / (agent or "all")
                write_quality(path, {"correct": learned}, command="operating_points.py", flags=PROMISED)
                source = SignalSource.load([f"{signal}={path}"])
                for run in runs:
                    for call in run.calls:
                        if (
                            half_of(run) == half
                            and call.stage == "answer"
                            and call.agent in (agent, agent or call.agent)
                        ):
                            value = source.signal(signal, call=call)
                            if value is not None:
                                found[call.id] = value
    return found


if __name__ == "__main__":
    main()
