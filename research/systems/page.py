"""Writes the tables of docs/tables/systems.md, and what a contest does to CAELF's grades into docs/research/systems.md.

    python -m research.systems.page
    python -m research.systems.page --whole out/recorded/essays-caelf

Recorded runs on essays hold no texts and no grades by people, which are not ours to give on: what compares with these
is measured on the store as it was collected (`--whole`), and kept in docs/measured/contested.json. The numbers of the
other systems stand beside the papers' own (research/papers/page.py); `metaprobe summarize` prints their stages, cycles
and costs.
"""

from collections.abc import Sequence
from pathlib import Path

import click

from metaprobe.pipelines import SYSTEMS
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from research.blocks import markdown, read_figures, write, write_figures
from research.systems.contests import feedback_ratings, summarise_contests
from research.systems.figures import PAGE, ROOT, Lines, about, number, recorded, share

REFERENCE = ROOT / "docs" / "systems.md"
CONTESTED = ROOT / "docs" / "measured" / "contested.json"


@click.command()
@click.option("--whole", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(whole: Path | None) -> None:
    """Rewrite the tables of systems and the section on CAELF."""
    if whole is not None:
        measure_whole(whole)
    write(REFERENCE, "systems", [*table_of_systems(), ""])
    write(REFERENCE, "options", [*table_of_options(), ""])
    runs = [run for store in ("essays-caelf", "essays-caelf-levels") for run in recorded(store)]
    write(PAGE, "caelf", [*about(runs), "", *contest(runs), ""])


def measure_whole(store: Path) -> None:
    """Measures runs that still have both: answers, and people's grades to compare them with."""
    runs = [run for run in RunStore(store).runs(hidden=False) if run.item.gold]
    if not runs:
        raise click.ClickException(f"{store} holds no runs with grades by people beside them")
    kept = {row[0]: row for row in read_figures(CONTESTED)}
    rows = list((kept | {row[0]: row for row in contested(runs)}).values())
    write_figures(CONTESTED, rows)


def table_of_systems() -> Lines:
    """Variants, stages, agents and replaceable numbers, as the code has them."""
    rows = []
    for system in SYSTEMS.values():
        agents = ", ".join(f"`{name}`" for name in (*system.agents, *system.roles)) or "-"
        rows.append(
            [
                f"`{system.name}`",
                ", ".join(f"`{variant}`" for variant in system.variants),
                ", ".join(f"`{stage}`" for stage in system.stages),
                f"{agents} (or your own)" if system.agents else agents,
                ", ".join(f"`{name}`" for name in system.signals) or "-",
                ", ".join(f"`{name}`" for name in system.fields) or "-",
            ]
        )
    head = [
        "system",
        "variants (the first is the default; of `self-report` and `caelf` two are)",
        "stages",
        "agents",
        "`--signal`",
        "fields an item needs",
    ]
    return markdown(head, rows)


def table_of_options() -> Lines:
    """Limits and constants, as the code has them."""
    rows = [
        [
            f"`{system.name}`",
            ", ".join(f"`{stage}` {limit}" for stage, limit in system.limits.items()) or "-",
            "; ".join(f"`{one.name}` {one.default:g}: {one.meaning}" for one in system.constants) or "-",
        ]
        for system in SYSTEMS.values()
    ]
    return markdown(
        ["system", "`--tokens STAGE=N`: most tokens by default", "`--constant NAME=VALUE`: constants"], rows
    )


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


def contested(runs: Sequence[Run]) -> list[list[str]]:
    """A row a variant."""
    return [
        [
            row.variant,
            str(row.n),
            share(row.accuracy_before),
            share(row.accuracy_after),
            share(row.right_kept),
            share(row.wrong_corrected),
            share(row.moved),
        ]
        for row in summarise_contests(runs)
    ]


if __name__ == "__main__":
    main()
