"""A probe of hidden states from many tasks, with the free number beside it, on task families left out.

    python -m research.travel.blend STORE [STORE ...]    # run stores of `breadth` with hidden states; minutes

The recipe is that of `metaprobe train travel` (`training.recipes.travel`); here the figures of its parts are kept.
"""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.training.evidence import Evidence, load_evidence
from metaprobe.training.recipes.travel import TasksLeftOut, judge_held_out
from research.breadth.items import ARITHMETIC, NAME
from research.travel.measure import MEASURED

OF_NUMBERS = {f"{NAME}-{family}" for family in ARITHMETIC}


@click.command()
@click.argument("stores", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(stores: tuple[Path, ...]) -> None:
    """Measure each store, and keep the figures in docs/measured/travel.json."""
    for store in stores:
        found = measure(load_evidence([store]))
        click.echo(f"{store.name}: {json.dumps(found)}")
        kept = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
        kept["blend"] = kept.get("blend", {}) | {store.name: found}
        MEASURED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def measure(evidence: Evidence) -> dict[str, Any]:
    """AUROC within runs of probe, free numbers and blend, and what each gains over the mean; intervals draw tasks."""
    assert evidence.states is not None, "the store holds no hidden states; metaprobe extract reads them"
    found = judge_held_out(evidence, evidence.states)
    return {
        "answers": len(found.y),
        "layers": list(found.layers),
        "all": figures(found),
        "without_arithmetic": figures(found, ~is_arithmetic(found.tasks)),
    }


def is_arithmetic(tasks: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Which answers are to tasks of calculating."""
    return np.isin(tasks, sorted(OF_NUMBERS))


def figures(found: TasksLeftOut, among: NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """Means over runs, and gains over the mean log-probability and over the scaled total."""
    counted = found.counted(among)
    shown: dict[str, Any] = {"runs": len(counted)}
    for name in found.scores:
        reached = found.auroc(name, among)
        shown["tasks"] = reached.groups
        shown[name] = {"auroc": round(reached.estimate, 3)}
        for against in ("mean", "scaled"):
            gain = found.gains(name, against, among)
            shown[name][f"over_{against}"] = [round(v, 3) for v in (gain.estimate, gain.low, gain.high)]
    return shown


if __name__ == "__main__":
    main()
