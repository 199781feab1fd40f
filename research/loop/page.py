"""Writes docs/research/loop.md from docs/measured/loop.json.

python -m research.loop.page
"""

from math import sqrt
from typing import Any

import click

from research.blocks import ROOT, markdown, read_figures, write

MEASURED = ROOT / "docs" / "measured" / "loop.json"
PAGE = ROOT / "docs" / "research" / "loop.md"
WAYS = {
    "watch": "`metaprobe drift`",
    "without_tasks": "the same without tasks",
    "ks": "KS a day",
    "ks_corrected": "KS, 5 % for all days",
    "psi": "PSI a day",
}

COVERED = 0.93
"""The share of intervals that are to hold the truth."""
CALIBRATED = 0.05
"""The calibration error that a recalibration is to reach."""


@click.command("page")
def page_command() -> None:
    """Writes the blocks of the page."""
    found = read_figures(MEASURED)
    write(PAGE, "loop-answer", [answer(found), ""])
    write(PAGE, "loop-coverage", [*coverage(found["estimates"]), ""])
    sheets = [
        [
            f"all {row['first']}, then {row['then']} of {row['of']:,}",
            *(f"{row['coverage'][name]:.1%}" for name in ("powered", "labelled")),
        ]
        for row in found["estimates"]["sheets"]
    ]
    write(PAGE, "loop-sheets", [*markdown(["labels", "powered", "labelled"], sheets), ""])
    groups = [
        [
            f"{row['questions']}, each answered {row['times']} times",
            str(row["labels"]),
            *(f"{share:.1%}" for name in ("untold", "told") for share in row[name]),
        ]
        for row in found["estimates"]["grouped"]
    ]
    head = ["questions", "labels", "powered", "labelled", "powered, `--group`", "labelled, `--group`"]
    write(PAGE, "loop-groups", [*markdown(head, groups), ""])
    write(PAGE, "loop-spared", [*spared(found["estimates"]), ""])
    write(PAGE, "loop-recalibration", [*recalibration(found["recalibration"]), ""])
    write(PAGE, "loop-drift", [*drift(found["drift"]), ""])


def answer(found: dict[str, Any]) -> str:
    """Returns the first paragraph of the page."""
    shares = [
        row["coverage"][name]
        for row in found["estimates"]["coverage"]
        for name in ("scores", "powered", "labelled")
        if row["when"] == "after"
    ]
    alone, helped = shares[::3], [share for at, share in enumerate(shares) if at % 3]
    spared = {row["predictor"]: row["squared_correlation"] for row in found["estimates"]["spared"]}
    best = max(spared, key=lambda name: spared[name])
    rows = found["recalibration"]["rows"]
    last = list(rows[0]["after"])[-1]
    reached, constant = (
        sum(row["after"][last][name] <= CALIBRATED for row in rows) for name in ("ece", "ece_constant")
    )
    return (
        f"With labels, 95 % intervals of the accuracy hold the truth in {min(helped):.1%} to {max(helped):.1%} of the "
        f"replays after a shift; from scores alone in at most {max(alone):.0%}. Scores spare few "
        f"labels: the best signal at hand ({best}) has a squared correlation with the labels of {spared[best]:.2f}, "
        f"and half the labels would take 0.5. Recalibration with {last} labels brings the calibration error to "
        f"{CALIBRATED} after {reached} of {len(rows)} shifts, where a constant reaches it after {constant}. "
        f"`metaprobe drift` gives a false alarm in {_share(found['drift'], 'watch')} of the streams without a change, "
        f"a KS test at 5 % a day in {_share(found['drift'], 'ks')}, and one at 5 % for all days together in "
        f"{_share(found['drift'], 'ks_corrected')}."
    )


def coverage(found: dict[str, Any]) -> list[str]:
    """Returns, for each shift, the coverage of the three intervals, uniform and active, with the lowest over the label
    counts."""
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
        f"error of one such share is {100 * sqrt(0.95 * 0.05 / found['replays']):.1f} points. Over all cells of "
        f"powered and labelled the mean is {sum(every) / len(every):.1%} and the lowest {min(every):.1%}; {below} of "
        f"{len(every)} are below {COVERED:.0%}, which was the target.",
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
        least = [least_labels(explained, share) for share in (even["labels"] / found["answers"], 0)]
        labelled = even["labels"] / found["answers"]
        told = [f"{labels_needed(of[way]['squared_width'], labelled):.0%}" for way in ("uniform", "active")]
        held = [f"{of[way]['coverage']['powered']:.1%}" for way in ("uniform", "active")]
        rows.append([name, f"{explained:.2f}", f"{least[1]:.0%}", f"{least[0]:.0%}", *told, *held])
    labels = found["spared"][0]["labels"]
    best = max(row["squared_correlation"] for row in found["spared"])
    head = ["scores", "squared correlation", "at best", f"at best, {found['answers']} answers"]
    head += ["labels needed", "labels needed, active", "coverage", "coverage, active"]
    return [
        f"Labels that the powered estimate needs for an interval as wide as that of a plain mean of {labels} labels "
        "drawn uniformly. With labels drawn uniformly it cannot need fewer than 1 - squared correlation of score and "
        f"label, however many answers there are, and of {found['answers']} answers a little more: what is not labelled "
        "is no whole population either. Where uncertain answers are drawn more often, it may need fewer. Half the "
        f"labels therefore take a squared correlation of 0.5, or of {0.5 / (1 - labels / found['answers'] / 2):.2f} "
        f"here; the best signal at hand has {best:.2f}. Needed labels follow from the squared widths of both intervals "
        "at as many labels.",
        "",
        *markdown(head, rows),
    ]


def least_labels(squared_correlation: float, labelled: float) -> float:
    """The least share of labels that an estimate helped by scores needs beside a plain mean of as wide an interval.

    `labelled`: share of the answers that have a label for the plain mean, drawn uniformly. The variance of the mean of
    what scores do not explain goes down with the labels, that of what they explain with the answers: with n labels of
    N answers it is (1 - r) / n + r / N, which is to be 1 / n of the plain mean's.
    """
    return (1 - squared_correlation) / (1 - squared_correlation * labelled)


def labels_needed(squared_width: float, labelled: float) -> float:
    """The same of a measured interval, from its squared width beside the plain mean's at as many labels."""
    return least_labels((1 - squared_width) / (1 - labelled), labelled)


def recalibration(found: dict[str, Any]) -> list[str]:
    """Calibration error and Brier score after the shift, beside a constant: the base rate of as many labels."""
    counts = list(found["rows"][0]["after"])
    last, rows = counts[-1], []
    for row in found["rows"]:
        after = [row["after"][n] for n in counts]
        errors = [row["before"], *(one["ece"] for one in after), after[-1]["noise"], after[-1]["ece_constant"]]
        briers = [row["brier"], after[-1]["brier"], after[-1]["brier_constant"]]
        rows.append([row["world"], row["shift"], str(row["answers"]), *(f"{one:.3f}" for one in (*errors, *briers))])
    head = ["answers", "shift", "n", "ECE as it was", *(f"{n} labels" for n in counts)]
    head += ["noise alone", f"a constant, {last} labels", "Brier as it was", f"{last} labels", "the constant"]
    reached, constant = (
        sum(row["after"][last][name] <= CALIBRATED for row in found["rows"]) for name in ("ece", "ece_constant")
    )
    ahead = sum(row["after"][last]["brier"] < row["after"][last]["brier_constant"] for row in found["rows"])
    return [
        "Calibration error after the shift (ECE in 15 bins of equal mass), on n answers of other groups than the "
        f"labelled ones: median of {found['draws']} draws of labels. Noise alone is what the recalibrated scores would "
        f"have on so many answers if they were right. The target of {CALIBRATED} with {last} labels is reached after "
        f"{reached} of {len(rows)} shifts. A constant, the share right among the labels, reaches it after {constant}, "
        f"and distinguishes nothing; by the Brier score, which counts that too, recalibrated scores are ahead of it "
        f"after {ahead} of {len(rows)}.",
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
            delay += "" if way["found"] in (None, 1.0) else f" ({way['found']:.0%})"
            cells += [f"{way['false_alarms']:.1%}", delay if way["judged"] else "-"]
        rows.append([row["world"], row["shift"], *cells])
    head = ["answers", "shift", *(f"{told}{part}" for told in WAYS.values() for part in (": false", ": delay"))]
    return [
        f"False: share of {found['replays']} streams of {found['before'] + found['after']} answers without any change "
        f"in which it rang at all. Delay: median number of answers from the change, at answer {found['before']}, to "
        f"the alarm, of the streams in which it had not rung before. A day is {found['day']} answers; the tests a day "
        f"compare score and length with the first {found['reference']} answers, KS at 5 % a day or at 5 % for all days "
        f"together, PSI at 0.2; they ring at the end of a day, after {found['day'] - 1} answers at the least, and so "
        "does `metaprobe drift` where it is called once a day. "
        f"`metaprobe drift` watches score, length, tasks and the labels of {found['labelled']:.0%} of the answers; "
        "where the shift brings tasks of new names, these ring at once. "
        f"Of {found['replays'] * len(found['rows'])} whole streams it rang falsely in {_share(found, 'watch')}, "
        f"KS in {_share(found, 'ks')} and in {_share(found, 'ks_corrected')}, PSI in {_share(found, 'psi')}. A delay "
        "stands with the share of streams in which it rang at all, where that is not all.",
        "",
        *markdown(head, rows),
    ]


def _share(found: dict[str, Any], way: str) -> str:
    rates = [row["ways"][way]["false_alarms"] for row in found["rows"]]
    return f"{sum(rates) / len(rates):.1%}"


if __name__ == "__main__":
    page_command()
