"""Measures a study's analysis on simulated readers, and writes blocks of docs/research/writing-assistant.md.

python -m research.writing.study_page measure    # docs/measured/study.json, a minute or two; goes on where it stopped
python -m research.writing.study_page write      # the page's blocks
"""

from itertools import combinations, product
from typing import Any

import click
import numpy as np

from metaprobe.eval.metrics.bootstrap import cluster_weights, holm, mean_interval
from metaprobe_writing_assistant.study.analysis import choices_of
from metaprobe_writing_assistant.study.choice_tests import (
    chi_square,
    counts_of,
    friedman,
    likeness_of,
    paired_p,
    shares_of,
)
from metaprobe_writing_assistant.study.simulation import participants_needed, simulate_sheets
from metaprobe_writing_assistant.study.survey import ASPECTS, questions_of
from research.blocks import ROOT, markdown, read_figures, write, write_figures

MEASURED, PAGE = ROOT / "docs" / "measured" / "study.json", ROOT / "docs" / "research" / "writing-assistant.md"
ASPECT = "critical_thinking"
CONDITIONS = ("metacrit", "multi", "single")
PLANTED = {"metacrit": 0.5, "multi": 0.2, "single": 0.3}
EQUAL = dict.fromkeys(CONDITIONS, 1 / 3)
STUDIES, RESAMPLES = 400, 400
ALIKE = 0.2
"""How much one person's answers are taken to resemble each other, for the people needed."""
PUBLISHED = {
    "critical_thinking": (41.7, 26.4, 31.9),
    "instructiveness": (39.4, 28.3, 32.2),
    "interactiveness": (35.1, 30.4, 34.5),
    "intelligence": (34.2, 28.3, 37.5),
}
"""MetaCrit's Table 5: modules with MetaCrit, modules, one model; percent of choices."""
PEOPLE = (42, 45)
"""Participants, as its appendix C.4 and its Table 5 say."""


@click.group()
def main() -> None:
    """The study's page."""


@main.command()
def measure() -> None:
    """Simulate studies and record what the analysis says of them; what is recorded already is not measured again."""
    found: dict[str, Any] = {"studies": STUDIES, "rows": [], "participants": {}} | read_figures(MEASURED)
    there = {(row["readers"], row["likeness"]) for row in found["rows"]}
    for readers, alike in product((12, 48), (0.0, 0.2, 0.5)):
        if (readers, alike) not in there:
            found["rows"].append(_studies(readers, alike))
            write_figures(MEASURED, found)
    for aspect, shares in PUBLISHED.items():
        if aspect not in found["participants"]:
            planted = [share / sum(shares) for share in shares]
            asked = len(questions_of(aspect))
            needed = participants_needed(planted, questions=asked, likeness=ALIKE, studies=STUDIES)
            found["participants"][aspect] = needed.participants
            write_figures(MEASURED, found)


@main.command(name="write")
def write_page() -> None:
    """Write the blocks of docs/research/writing-assistant.md from the recorded figures."""
    found = read_figures(MEASURED)
    held = ["share held", "difference held"]
    head = ["readers", "resemblance", *held, "Friedman", "pairs, Holm", "chi-square", "corrected"]
    rows = [
        [str(row["readers"]), str(row["likeness"]), *(f"{100 * row[name]:.1f} %" for name in NAMES)]
        for row in found["rows"]
    ]
    write(PAGE, "study-simulated", [*markdown(head, rows), ""])
    table = []
    for aspect, shares in PUBLISHED.items():
        fits = [f"{n} people: {answers_that_fit(shares, n, len(questions_of(aspect)))}" for n in PEOPLE]
        needs = found["participants"][aspect]
        printed = " / ".join(f"{share} %" for share in shares)
        table.append([ASPECTS[aspect], printed, "; ".join(fits), str(needs or "more than 2,000")])
    head = ["aspect", "printed shares", "do they fit?", "people needed"]
    write(PAGE, "study-paper", [*markdown(head, table), ""])


NAMES = ("share_held", "difference_held", "friedman", "pairs", "chi_square", "corrected")


def answers_that_fit(shares: tuple[float, ...], people: int, questions: int) -> str:
    """Returns the counts that give these printed shares where everybody answers every question, or `no counts do`."""
    answers = people * questions
    counts = [round(share * answers / 100) for share in shares]
    fit = sum(counts) == answers and all(
        abs(round(100 * count / answers, 1) - share) < 0.051 for count, share in zip(counts, shares, strict=True)
    )
    return " / ".join(map(str, counts)) if fit else "no counts do"


def _studies(readers: int, alike: float) -> dict[str, Any]:
    weights = cluster_weights(range(readers), RESAMPLES)
    questions = len(questions_of(ASPECT))
    seen = dict.fromkeys(NAMES, 0)
    for seed in range(STUDIES):
        shares = shares_of(_counts(PLANTED, readers, alike, seed)[0])
        share, difference = mean_interval(shares[:, 0], weights), mean_interval(shares[:, 0] - shares[:, 1], weights)
        seen["share_held"] += share.low <= PLANTED["metacrit"] <= share.high
        seen["difference_held"] += difference.low <= PLANTED["metacrit"] - PLANTED["multi"] <= difference.high
        counts, choices = _counts(EQUAL, readers, alike, seed + STUDIES)
        shares, totals = shares_of(counts), counts.sum(axis=0)
        effect = 1 + (questions - 1) * float(np.nan_to_num(likeness_of(choices, 3)))
        seen["friedman"] += bool(friedman(shares)[1] < 0.05)
        p_pairs = holm([paired_p(shares[:, i] - shares[:, j]) for i, j in combinations(range(3), 2)])
        seen["pairs"] += bool(min(p_pairs) < 0.05)
        seen["chi_square"] += chi_square(totals)[1] < 0.05
        seen["corrected"] += chi_square(totals, effect)[1] < 0.05
    return {"readers": readers, "likeness": alike, **{name: int(count) / STUDIES for name, count in seen.items()}}


def _counts(planted: dict[str, float], readers: int, alike: float, seed: int) -> tuple[Any, Any]:
    sheets = simulate_sheets({ASPECT: planted}, readers, likeness=alike, seed=seed)
    choices = choices_of(sheets, CONDITIONS, ASPECT)
    return counts_of(choices, 3), choices


if __name__ == "__main__":
    main()
