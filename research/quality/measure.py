"""Measures what log-probabilities say of an answer's quality, on every data set; writes docs/research/quality.md.

    python -m research.quality.measure measure --data DATA [NAME ...]
    python -m research.quality.measure page

DATA holds the folders of the data sets named in research/quality/data.py. `measure` keeps its numbers in
docs/measured/quality.json, set by set, from which `page` makes the page, so that no number there is typed by hand.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from research.blocks import ROOT, read_figures, write, write_figures
from research.quality.data import DataSet, gsm8k_token_entropy, mu_shroom, own_runs, token_logprobs_qa
from research.quality.figures import RESAMPLES, about, figures, measure, too_few
from research.quality.page import answer, early, every_set, one_set, prefixes, says, setting, shape

PAGE = ROOT / "docs" / "research" / "quality.md"
FIGURES = ROOT / "docs" / "measured" / "quality.json"
RECORDED = ROOT / "recorded"

OPEN: dict[str, Callable[[Path], list[DataSet]]] = {
    "token_logprobs_qa": token_logprobs_qa,
    "mu_shroom": mu_shroom,
    "gsm8k_token_entropy": gsm8k_token_entropy,
}
"""Folder under DATA -> its sets."""


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
@click.argument("names", nargs=-1)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The data sets' folder.")
@click.option("--seed", default=0, show_default=True)
def measure_command(names: tuple[str, ...], data: Path | None, seed: int) -> None:
    """Cross-fit every method on every set, or on those whose name begins with one of NAMES."""
    kept: dict[str, Any] = read_figures(FIGURES)
    for of in sets(data, partial(is_wanted, names)):
        say(of.name)
        if why := too_few(of):
            found = {**about(of), "missing": why}
        else:
            found = figures(measure(of, seed=seed, on_step=say), seed=seed, on_step=say)
        again = ["python", "research/quality/measure.py", "measure", of.name, *(["--seed", str(seed)] if seed else [])]
        kept["resamples"] = RESAMPLES
        kept.setdefault("sets", {})[of.name] = {**found, "command": f"{shlex.join(again)} --data DATA"}
        write_figures(FIGURES, kept, sort=True)


def is_wanted(names: Sequence[str], name: str) -> bool:
    """Whether a name begins with one of NAMES, or all are wanted."""
    return not names or name.startswith(tuple(names))


def sets(data: Path | None, wanted: Callable[[str], bool]) -> Iterator[DataSet]:
    """The data sets that are there and asked for."""
    for folder, load in OPEN.items():
        if data is not None and (data / folder).is_dir():
            yield from (of for of in load(data) if wanted(of.name))
    yield from (of for of in own_runs(RECORDED) if wanted(of.name))


def say(what: str) -> None:
    click.echo(what, err=True)


@main.command("page")
def page_command() -> None:
    """Write docs/research/quality.md, and its further tables, from the numbers."""
    kept = read_figures(FIGURES)
    sets = kept["sets"]
    measured = {name: found for name, found in sets.items() if "early" in found}
    write(PAGE, "answer", [answer(sets), ""])
    write(PAGE, "sets", [*every_set(sets), ""])
    write(PAGE, "says", [*says(sets), ""])
    write(PAGE, "setting", [*setting(sets, kept["resamples"]), ""])
    write(PAGE, "early", [*early(measured), ""])
    write(PAGE, "shape", [*shape(measured), ""])
    write(PAGE, "tables", [line for name, found in sets.items() for line in (f"### {name}", "", *one_set(found), "")])
    write(PAGE, "seen", [*prefixes(sets), ""])


if __name__ == "__main__":
    main()
