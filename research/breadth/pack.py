"""Makes the small copies of the recorded stores that are kept in `recorded/`, and counts what they hold.

python -m research.breadth.pack [--out OUT] [NAME ...]
"""

from collections import defaultdict
from pathlib import Path

import click
import numpy as np

from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from research.breadth.collect import STORES
from research.stores.collect import pack

ROOT = Path(__file__).parent.parent.parent


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(STORES))
@click.option("--out", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("out"))
def main(names: tuple[str, ...], out: Path) -> None:
    """Pack the named stores, or all that OUT holds, and print what is in them."""
    for name in names or [name for name in STORES if len(RunStore(out / name))]:
        (ROOT / "recorded" / name).parent.mkdir(exist_ok=True)
        pack(out / name, ROOT / "recorded" / name, text=True, alternatives=lambda run: True)
        for line in table(list(RunStore(ROOT / "recorded" / name).runs(hidden=False))):
            click.echo(line)


def table(runs: list[Run]) -> list[str]:
    """One line a family and way of asking: answers, share right, tokens on average, share that the limit cut."""
    cells = defaultdict(list)
    for run in runs:
        for call in run.calls:
            right = run.label("correct", call.id)
            cells[run.item.dimension or run.item.task, run.variant].append(
                (right, call.usage.completion_tokens, call.finish_reason == "length")
            )
    lines = [f"{'family':24} {'way':8} {'answers':>7} {'right':>6} {'tokens':>7} {'cut':>6}"]
    for (family, way), rows in [
        *sorted(cells.items()),
        (("all", ""), [row for found in cells.values() for row in found]),
    ]:
        right, tokens, cut = np.asarray(rows, dtype=float).mean(axis=0)
        lines.append(f"{family:24} {way:8} {len(rows):7} {right:6.2f} {tokens:7.1f} {cut:6.3f}")
    return lines


if __name__ == "__main__":
    main()
