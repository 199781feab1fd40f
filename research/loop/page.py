"""Writes docs/research/loop.md from docs/measured/loop.json.

python -m research.loop.page
"""

import json
from pathlib import Path
from typing import Any

import click

from research.blocks import markdown, write

ROOT = Path(__file__).parent.parent.parent
MEASURED = ROOT / "docs" / "measured" / "loop.json"
PAGE = ROOT / "docs" / "research" / "loop.md"
WAYS = {"watch": "`metaprobe drift`", "ks": "KS a day", "psi": "PSI a day"}

COVERED = 0.93
"""The share of intervals that are to hold the truth."""
CALIBRATED = 0.05
"""The calibration error that a recalibration is to reach."""


@click.command("page")
def page_command() -> None:
    """Writes the blocks of the page."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    write(PAGE, "loop-coverage", [*coverage(found["estimates"]), ""])
    write(PAGE, "loop-spared", [*spared(found["estimates"]), ""])
    write(PAGE, "loop-recalibration", [*recalibration(found["recalibration"]), ""])
    write(PAGE, "loop-drift", [*drift(found["drift"]), ""])


def coverage(found: dict[str, Any]) -> list[str]:
    """Of each shift the coverage of the three intervals, uniform and active, with the lowest over the label counts."""
    rows = []
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in found["coverage"]:
        cells.setdefault((row["world"], row["shift"], row["when"]), []).append(row)
    for (world, shift, when), parts in cells.items():
        of = {way: [part["coverage"] for part in parts if part["drawn"] == way] for way in ("uniform", "active")}
        told = [f"{min(one[name] for one in of[way]):.1%}" for way in of for name in ("powered", "labelled")]
        rows.append(
            [world, shift, when, f"{parts[0]['share_right']:.0%}", f"{parts[0]['coverage']['scores']:.1%}", *told]
        )
    every = [row["coverage"][name] for row in found["coverage"] for name in ("powered", "labelled")]
    below = sum(one < COVERED for one in every)
    head = ["answers", "shift", "", "right", "scores", "powered", "labelled", "powered, active", "labelled, active"]
    counts = sorted({row["labels"] for row in found["coverage"]})
    return [
        f"How often a 95 % interval holds the share right, over {found['replays']} replays of {found['answers']} "
        f"answers: the lowest of {', '.join(map(str, counts))} labels, drawn uniformly or actively. The standard "
        f"error of one such share is 1.5 points. Over all cells of powered and labelled the mean is "
        f"{sum(every) / len(every):.1%} and the lowest {min(every):.1%}; {below} of {len(every)} are below "
        f"{COVERED:.0%}, which was the target.",
        "",
        *markdown(head, rows),
    ]


def spared(found: dict[str, Any]) -> list[str]:
    """Labels needed beside those of a plain mean of uniformly drawn answers."""
    names = dict.fromkeys(row["predictor"] for row in found["spared"])
    rows = []
    for name in names:
        of = {row["drawn"]: row for row in found["spared"] if row["predictor"] == name}
        even = of["uniform"]
        explained = even["squared_correlation"]
        least = [least_labels(explained, even["labels"] / found["answers"]), least_labels(explained, 0)]
        told = [f"{of[way]['labels_needed']:.0%}" for way in ("uniform", "active")]
        held = [f"{of[way]['coverage']['powered']:.1%}" for way in ("uniform", "active")]
        rows.append([name, f"{explained:.2f}", f"{least[1]:.0%}", f"{least[0]:.0%}", *told, *held])
    labels = found["spared"][0]["labels"]
    best = max(row["squared_correlation"] for row in found["spared"])
    head = ["scores", "squared correlation", "at best", f"at best, {found['answers']} answers"]
    head += ["labels needed", "labels needed, active", "coverage", "coverage, active"]
    return [
        f"Labels that the powered estimate needs for an interval as wide as that of a plain mean of {labels} labels "
        "drawn uniformly. With labels drawn uniformly it cannot need fewer than 1 - squared correlation of score and "
        f"label, however many answers there are, and of {found['answers']} answers, of which {labels} have a label, a "
        "little more: what is not labelled is no whole population either. Where uncertain answers are drawn more "
        f"often, it may need fewer. Half the labels therefore take a squared correlation of 0.5, or of "
        f"{0.5 / (1 - labels / found['answers']):.2f} here; the best signal at hand has {best:.2f}.",
        "",
        *markdown(head, rows),
    ]


def least_labels(squared_correlation: float, labelled: float) -> float:
    """The least share of labels that an estimate helped by scores needs beside a plain mean of as wide an interval.

    `labelled`: share of the answers that have a label, drawn uniformly. The variance of the mean of what scores do not
    explain goes down with the labels, that of what they explain with the answers.
    """
    return 1 - squared_correlation * (1 - labelled)


def recalibration(found: dict[str, Any]) -> list[str]:
    """Calibration error after the shift."""
    counts = list(found["rows"][0]["after"])
    rows = []
    for row in found["rows"]:
        errors = [row["noise"], row["before"], *(row["after"][n] for n in counts)]
        rows.append([row["world"], row["shift"], str(row["answers"]), *(f"{one:.3f}" for one in errors)])
    head = ["answers", "shift", "n", "noise alone", "as it was", *(f"{n} labels" for n in counts)]
    missed = [row for row in found["rows"] if row["after"][counts[-1]] > CALIBRATED]
    noisy = sum(row["noise"] >= CALIBRATED for row in missed)
    return [
        "Calibration error after the shift (ECE in 15 bins of equal mass), on n answers of other groups than the "
        f"labelled ones: median of {found['draws']} draws of labels. Noise alone is what scores that are right would "
        f"have on so many answers. The target of {CALIBRATED} with {counts[-1]} labels is reached after "
        f"{len(rows) - len(missed)} of {len(rows)} shifts; of the {len(missed)} others, {noisy} have so few answers "
        "that noise alone is as large.",
        "",
        *markdown(head, rows),
    ]


def drift(found: dict[str, Any]) -> list[str]:
    """False alarms and delays."""
    rows = []
    for row in found["rows"]:
        cells = []
        for name in WAYS:
            way = row["ways"][name]
            delay = "never" if way["delay"] is None else f"{way['delay']:.0f}"
            cells += [f"{way['false_alarms']:.1%}", delay if way["judged"] else "-"]
        rows.append([row["world"], row["shift"], *cells])
    head = ["answers", "shift", *(f"{told}{part}" for told in WAYS.values() for part in (": false", ": delay"))]
    return [
        f"False: share of {found['replays']} streams of {found['before'] + found['after']} answers without any change "
        f"in which it rang at all. Delay: median number of answers from the change, at answer {found['before']}, to "
        f"the alarm, of the streams in which it had not rung before. A day is {found['day']} answers; the tests a day "
        f"compare score and length with the first {found['reference']} answers, KS at 5 % together, PSI at 0.2. "
        f"`metaprobe drift` watches score, length, tasks and the labels of {found['labelled']:.0%} of the answers; "
        "where the shift brings tasks of new names, these ring at once. "
        f"Of {found['replays'] * len(found['rows'])} whole streams it rang falsely in {_share(found, 'watch')}, "
        f"KS in {_share(found, 'ks')} and PSI in {_share(found, 'psi')}.",
        "",
        *markdown(head, rows),
    ]


def _share(found: dict[str, Any], way: str) -> str:
    rates = [row["ways"][way]["false_alarms"] for row in found["rows"]]
    return f"{sum(rates) / len(rates):.1%}"


if __name__ == "__main__":
    page_command()
