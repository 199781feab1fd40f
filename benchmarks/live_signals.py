"""Explicit, implicit, both: MetaCogAgent with stated confidence, with a checkpoint in its place, and with both joined.

    python benchmarks/live_signals.py

From recorded/metacog-every-agent, in which every agent has answered and stated its confidence: no model is asked. The
items are halved by group; the checkpoints of one half (a quality predictor on log-probabilities for each agent) are
trained on the other. Writes the section `live` of docs/systems.md.
"""

import asyncio
import hashlib
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from demo_results import markdown, write
from systems_figures import PAGE, ROOT, about, number, points, recorded, share

from metaprobe.checkpoints import UntrustedCheckpoint
from metaprobe.eval.metrics import cluster_weights, mean_interval
from metaprobe.eval.systems import metacogagent
from metaprobe.eval.table import group_of
from metaprobe.llms.replay import ReplayLLM
from metaprobe.pipelines import SYSTEMS, Models, Prompts, Setup
from metaprobe.probes.source import SignalSource
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.profiles import Profiles
from metaprobe.training.collect import collect
from metaprobe.training.study import study, train_quality

SYSTEM = SYSTEMS["metacogagent"]
ROWS = {"explicit": None, "implicit": "", "both": "stated+"}
"""Row -> what stands before the checkpoint in `--signal confidence@AGENT=...`; None for no checkpoint."""


def main() -> None:
    """Train on each half, replay on the other, write the table."""
    runs = recorded("metacog-every-agent")
    halves = [[run for run in runs if half_of(run) == half] for half in (0, 1)]
    agents = metacogagent.outcome_matrix(runs).agents
    found: dict[str, list[Run]] = {name: [] for name in ROWS}
    figures: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)  # said in the text
        for half in (0, 1):
            folder = Path(temporary) / str(half)
            store = RunStore(folder / "runs")
            store.append(halves[1 - half])
            for agent in agents:
                learned = study([folder / "runs"], stage="answer", agent=agent, hidden=False)
                checkpoint = train_quality(folder / agent, {"correct": learned}, command="live_signals.py")
                figures.setdefault(agent, []).append(f"{checkpoint.manifest.metrics['auroc'].estimate:.2f}")
            for name, prefix in ROWS.items():
                specs = [] if prefix is None else [f"confidence@{agent}={prefix}{folder / agent}" for agent in agents]
                found[name] += replayed(halves[half], SignalSource.load(specs))
    explicit = {run.item.id: run.outcome for run in found["explicit"]}
    rows = []
    for name, replays in found.items():
        ours = metacogagent.evaluate(replays)
        weights = cluster_weights([group_of(run.item) for run in replays])
        gain = mean_interval([(run.outcome or 0) - (explicit[run.item.id] or 0) for run in replays], weights)
        figures_of = [share(ours.accuracy), "-" if name == "explicit" else points(gain), share(ours.asked)]
        figures_of += [share(ours.precision), number(ours.calibration.ece if ours.calibration else None)]
        rows.append([name, *figures_of, ", ".join(f"{count} {stage}" for stage, count in sorted(ours.calls.items()))])
    head = [
        "confidence",
        "accuracy",
        "over explicit, points",
        "asked others",
        "delegation precision",
        "ECE of c",
        "calls",
    ]
    told = "; ".join(f"{agent} {' and '.join(values)}" for agent, values in figures.items())
    lines = [
        *about(runs),
        "",
        f"AUROC of the checkpoints in folds of their own half: {told}. Profiles start anew in each half, so the "
        "explicit row is not that of the table above.",
        "",
        *markdown(head, rows),
        "",
    ]
    write(PAGE, "live", lines)
    accuracy = {row[0]: row[1].split(" (n")[0] for row in rows}
    sentence = (
        "In MetaCogAgent over three small models, a quality predictor on log-probabilities in the place of the stated "
        f"confidence takes accuracy on {len(runs)} items from {accuracy['explicit']} to {accuracy['implicit']}, that "
        f"is {rows[1][2]} points; both joined give {accuracy['both']} "
        "([docs/systems.md](docs/systems.md#explicit-implicit-both))."
    )
    write(ROOT / "README.md", "live", [sentence, ""])


def half_of(run: Run) -> int:
    """0 or 1, by the hash of the group."""
    return hashlib.sha256(group_of(run.item).encode()).digest()[0] % 2


def replayed(runs: Sequence[Run], signals: SignalSource) -> list[Run]:
    """Algorithm 1 on these items, one after another, from the recorded calls."""
    rules = PaperRules.parse("")
    prompts = Prompts.load(SYSTEM.name, SYSTEM.prompts, optional=SYSTEM.agents)
    profiles = Profiles(initial=rules.initial, rate=rules.rate)
    setup = Setup(
        Models(ReplayLLM.from_runs(runs)),
        prompts,
        policy=rules,
        profiles=profiles,
        agents=SYSTEM.agents,
        signals=signals,
    )
    items = [run.item for run in sorted(runs, key=lambda run: run.item.id)]
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder))
        report = asyncio.run(collect(SYSTEM, items, setup, store, variants=["algorithm"], wave=1))
        if report.failed:
            raise RuntimeError(report.failed[0])
        return list(store)


if __name__ == "__main__":
    main()
