"""Makes the compact store of recorded runs from the runs of the demo.

python -m research.stores.make out/demo/runs
"""

import dataclasses
import itertools
import shutil
from pathlib import Path

import click

from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Hidden, Run

STORE = Path(__file__).parent.parent.parent / "recorded" / "smollm2-metacog-eval"
ITEMS = 150
LAYERS = (9, 15)
POSITIONS = ("prompt_last", "answer_last")


@click.command()
@click.argument("runs", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=STORE)
def main(runs: Path, out: Path) -> None:
    """Keep both runs of an even spread of items, with the hidden states of a few layers."""
    by_item: dict[str, list[Run]] = {}
    for run in RunStore(runs).runs(hidden=True):
        by_item.setdefault(run.item.id, []).append(run)
    cells: dict[tuple[str, str], list[str]] = {}
    for name in sorted(name for name, both in by_item.items() if len(both) == 2):
        item = by_item[name][0].item
        cells.setdefault((item.dimension, item.level), []).append(name)
    spread = [name for one in itertools.zip_longest(*cells.values()) for name in one if name is not None][:ITEMS]
    shutil.rmtree(out, ignore_errors=True)
    RunStore(out).append(thin(run) for name in spread for run in sorted(by_item[name], key=lambda run: run.variant))
    size = sum(path.stat().st_size for path in out.iterdir())
    click.echo(f"{2 * len(spread)} runs, {size / 1e6:.2f} MB in {out}")


def thin(run: Run) -> Run:
    """The run with the hidden states of the kept layers and positions only."""
    return dataclasses.replace(run, calls=tuple(dataclasses.replace(c, hidden=fewer(c)) for c in run.calls))


def fewer(call: Call) -> Hidden | None:
    """Those of one call."""
    if call.hidden is None:
        return None
    layers = [call.hidden.layers.index(layer) for layer in LAYERS]
    positions = [call.hidden.positions.index(position) for position in POSITIONS]
    return Hidden(call.hidden.values[layers][:, positions], LAYERS, POSITIONS)


if __name__ == "__main__":
    main()
