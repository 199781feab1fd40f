"""Writes the tables of docs/tables/systems.md, and what a contest does to CAELF's grades into docs/research/systems.md.

    python -m research.systems.page
    python -m research.systems.page --whole out/recorded/essays-caelf

Recorded runs on essays hold no texts and no grades by people, which are not ours to give on: what compares with these
is measured on the store as it was collected (`--whole`), and kept in docs/measured/contested.json. The numbers of the
other systems stand beside the papers' own (research/papers/page.py); `metaprobe summarize` prints their stages, cycles
and costs.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

from metaprobe.papers.systems import SYSTEMS, System
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from research.blocks import columns, markdown, read_figures, write, write_figures
from research.systems.contests import feedback_ratings, summarise_contests
from research.systems.figures import PAGE, ROOT, Lines, about, number, recorded, share

REFERENCE = ROOT / "docs" / "systems.md"
CONTESTED = ROOT / "docs" / "measured" / "contested.json"


@click.command()
@click.option("--whole", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(whole: Path | None) -> None:
    """Rewrite the tables of systems and the section on CAELF."""
    if whole is not None:
        # Runs that still have both: answers, and people's grades to compare them with.
        graded = [run for run in RunStore(whole).runs(hidden=False) if run.item.gold]
        if not graded:
            raise click.ClickException(f"{whole} holds no runs with grades by people beside them")
        rows = {row[0]: row for row in read_figures(CONTESTED)}
        for one in summarise_contests(graded):
            shares = (one.accuracy_before, one.accuracy_after, one.right_kept, one.wrong_corrected, one.moved)
            rows[one.variant] = [one.variant, str(one.n), *map(share, shares)]
        write_figures(CONTESTED, list(rows.values()))

    def named(names: Iterable[str]) -> str:
        return ", ".join(f"`{name}`" for name in names) or "-"

    systems: dict[str, Callable[[System], object]] = {
        "system": lambda one: f"`{one.name}`",
        "variants (the first is the default; of `self-report` and `caelf` two are)": lambda one: named(one.variants),
        "stages": lambda one: named(one.stages),
        "agents": lambda one: named((*one.agents, *one.roles)) + " (or your own)" * bool(one.agents),
        "`--signal`": lambda one: named(one.signals),
        "fields an item needs": lambda one: named(one.fields),
    }
    options: dict[str, Callable[[System], object]] = {
        "system": lambda one: f"`{one.name}`",
        "`--tokens STAGE=N`: most tokens by default": lambda one: (
            ", ".join(f"`{stage}` {limit}" for stage, limit in one.limits.items()) or "-"
        ),
        "`--constant NAME=VALUE`: constants": lambda one: (
            "; ".join(f"`{constant.name}` {constant.default:g}: {constant.meaning}" for constant in one.constants)
            or "-"
        ),
    }
    for block, cells in (("systems", systems), ("options", options)):
        write(REFERENCE, block, [*columns([(one,) for one in SYSTEMS.values()], cells), ""])
    runs = [run for store in ("essays-caelf", "essays-caelf-levels") for run in recorded(store)]
    write(PAGE, "caelf", [*about(runs), "", *contest(runs), ""])


def contest(runs: Sequence[Run]) -> Lines:
    """Right grades kept and wrong grades corrected; what the solver had to work with."""
    head = ["variant", "n", "right before", "right after", "right ones kept", "wrong ones corrected", "moved"]
    rows = read_figures(CONTESTED)
    solved = [
        [
            row.variant,
            str(row.n),
            *(f"{part.attacks:.1f} among {part.arguments:.0f}" for part in row.framework),
            f"{row.framework[0].extensions:.1f}",
            f"{row.framework[1].extensions:.1f}",
            share(row.contest_stands),
        ]
        for row in summarise_contests(runs)
        if row.framework
    ]
    frame = ["variant", "n", "attacks at first", "after the contest", "extensions at first", "after", "contest stands"]
    return [
        *markdown(head, rows),
        "",
        "What the solver was given and found (means over items):",
        "",
        *markdown(frame, solved),
        "",
        *rated(recorded("essays-caelf-rated")),
    ]


def rated(runs: Sequence[Run]) -> Lines:
    """The judge's ratings of the feedback, beside the paper's by people."""
    rows = [
        [row.variant, row.judge, row.criterion, number(row.mean, ".2f"), share(row.highest), number(row.agreement)]
        for row in feedback_ratings(runs)
    ]
    if not rows:
        return []
    head = ["variant", "judge", "criterion", "mean, 1 to 5", "highest grade", "agreement with itself (kappa)"]
    return [
        "How a judge rates the first feedback. The paper's table 8 is by people; these are a model's grades, given "
        "twice, the second time with the criteria in reverse order:",
        "",
        *markdown(head, rows),
        "",
    ]


if __name__ == "__main__":
    main()
