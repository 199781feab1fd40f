"""docs/research/quality.md from the numbers of `quality.py measure`: all numbers and verdicts come from there."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from metaprobe.training.methods import MEAN_LOGPROB as MEAN
from metaprobe.training.methods import TREES
from research.blocks import columns, markdown, shown, signed
from research.quality.controls import (
    against_controls,
    beats,
    gain,
    strongest,
    verdict,
)
from research.quality.figures import BLEND_RUN
from research.quality.methods import STEADY, TERMS, WITH_RUN

Packed = Sequence[float]
Figures = Mapping[str, Any]
Lines = list[str]

TERMS_RUN = TERMS + WITH_RUN

ORDER = (
    MEAN,
    "minimum log-probability",
    "first log-probability",
    "sum of log-probabilities",
    "lowest group confidence",
    "length (shorter is better)",
    "not cut by max_tokens",
    "run identity",
    "best single feature",
    "best early feature",
    "best full-response feature",
    "best plain baseline",
    "EPR",
    "WEPR",
    TREES,
    "LightGBM on alternatives too",
    STEADY,
    TERMS,
    "blend",
    STEADY + " + run",
    TERMS_RUN,
    BLEND_RUN,
)
"""Order of the rows of a table of methods."""
SHORT = 20
"""Median tokens below which the first tokens are most of the answer, and say little of the paper's finding."""


def every_set(sets: Figures) -> Lines:
    """Returns a table with a row a set, trees beside the free numbers."""
    rows = []
    for name, found in sets.items():
        if "methods" in found:
            trees, strongest = found["methods"][TREES], found["methods"][TREES]["over_strongest"]
            over = f"{signed(strongest['difference'])} ({strongest['control']})"
            mean = shown(found["methods"][MEAN]["auroc"])
            rows.append([name, f"{found['n']:,}", mean, shown(trees["auroc"]), signed(trees["over_mean"]), over])
    head = ["set", "answers", "mean log-probability", "trees", "over the mean", "over the strongest control"]
    return markdown(head, rows)


def setting(sets: Figures, resamples: int) -> Lines:
    """Says which data were measured, and by which command."""
    cells = {
        "set": lambda name, found: name,
        "good means": lambda name, found: found["what"],
        "n (groups)": lambda name, found: f"{found['n']:,} ({found['groups']:,})",
        "runs": lambda name, found: found["runs"],
        "models": lambda name, found: (
            ", ".join(found["models"]) if len(found["models"]) <= 4 else f"{len(found['models'])} models"
        ),
        "good": lambda name, found: f"{found['base_rate']:.1%}",
        "median tokens": lambda name, found: f"{found['median_tokens']:.0f}",
        "cut": lambda name, found: f"{found['cut']:.1%}",
    }
    commands = sorted({(found["command"], found.get("seed")) for found in sets.values()}, key=str)
    measured = [f"- `{command}`, seed {seed}" for command, seed in commands]
    return [*columns(sets.items(), cells), "", f"{resamples} resamples. Measured by:", "", *measured]


def answer(sets: Figures) -> str:
    """The page in three sentences."""
    measured = [found for found in sets.values() if "methods" in found]
    several = [found for found in measured if found["runs"] > 1]
    long = [found for found in measured if found["median_tokens"] >= SHORT]
    over_mean = [verdict(found["methods"][TREES]["over_mean"]) for found in measured]
    early = [verdict(found["early"]["early_over_full"]) for found in long]
    ahead, behind, of = against_controls(measured, TREES, "over_strongest")
    inside, loses, runs = against_controls(several, TREES, "within_over_strongest")
    return (
        "Trees on log-probabilities are shown to be ahead of the mean "
        f"log-probability in {over_mean.count('holds')} of {len(measured)} sets and behind it in "
        f"{over_mean.count('does not hold')}. They are shown to be ahead of every "
        "free "
        f"number in {ahead} of {of} sets (behind the strongest in {behind}), and within one run of one model in "
        f"{inside} "
        f"of {runs} (behind in {loses}), so that a free number may do as well. The paper's finding that the first "
        "tokens "
        f"say more than the whole answer holds in {early.count('holds')} of {len(long)} sets of longer answers, and is "
        f"reversed in {early.count('does not hold')}."
    )


def says(sets: Figures) -> Lines:
    """How often each thing holds, counted by the rule for verdicts."""
    measured = [found for found in sets.values() if "methods" in found]
    several = [found for found in measured if found["runs"] > 1]
    long = [found for found in measured if found["median_tokens"] >= SHORT]

    def over(name: str, key: str) -> str:
        return counted([found["methods"][name][key] for found in (several if "within" in key else measured)])

    lines = []
    for what, text in (
        (f"{TREES}, over the mean log-probability", over(TREES, "over_mean")),
        (f"{TREES}, over the strongest single control", beats(measured, TREES, "over_strongest")),
        (f"{TREES}, over the mean within runs", over(TREES, "within_over_mean")),
        (f"{TREES}, over the strongest control within runs", beats(several, TREES, "within_over_strongest")),
        (f"{STEADY}, over the mean within runs", over(STEADY, "within_over_mean")),
        ("blend, over the mean within runs", over("blend", "within_over_mean")),
        (
            f"{BLEND_RUN}, over the mean",
            counted([found["methods"][BLEND_RUN]["over_mean"] for found in several]),
        ),
        (
            f"{BLEND_RUN}, over the mean within runs",
            counted([found["methods"][BLEND_RUN]["within_over_mean"] for found in several]),
        ),
        (f"{BLEND_RUN}, over the strongest single control", beats(several, BLEND_RUN, "over_strongest")),
        (
            f"{BLEND_RUN}, over the strongest control within runs",
            beats(several, BLEND_RUN, "within_over_strongest"),
        ),
        (
            f"best early feature over the best full-response feature, answers of {SHORT} tokens and more",
            counted([found["early"]["early_over_full"] for found in long]),
        ),
        (
            "trees that know 10 tokens over trees that know all, the same sets",
            counted([found["prefix"]["10"]["trees_over_whole"] for found in long if "10" in found["prefix"]]),
        ),
        ("the start surer than the middle", counted([found["trajectory"]["start over middle"] for found in measured])),
        (
            "the spread wider at the start",
            counted([found["trajectory"]["spread start over middle"] for found in measured]),
        ),
    ):
        lines.append(f"- {what}: {text}.")
    return lines


def counted(differences: Sequence[Packed]) -> str:
    """How many intervals hold, do not, or leave it open."""
    found = [verdict(difference) for difference in differences]
    return f"holds in {found.count('holds')} of {len(found)} sets, does not in {found.count('does not hold')}"


def early(sets: Figures) -> Lines:
    """Returns the table of early windows, each with its numbers and a verdict."""
    rows = []
    for name, found in sets.items():
        methods, ten, over = found["methods"], found["prefix"].get("10"), found["early"]["early_over_full"]
        best = (shown(methods[f"best {kind} feature"]["auroc"], ".2f") for kind in ("early", "full-response"))
        trees = signed(ten["trees_over_whole"]) if ten else "-"
        short = " (s)" if found["median_tokens"] < SHORT else ""
        rows.append([name + short, *best, signed(over), verdict(over), trees, chosen(found)])
    head = ["set", "early", "full", "early - full", "early is stronger", "trees: 10 tokens - all"]
    return markdown([*head, "chosen among all windows"], rows)


def shape(sets: Figures) -> Lines:
    """Returns the table of the trajectory's shape."""
    rows, parts = [], ("start", "middle", "end")
    for name, found in sets.items():
        t = found["trajectory"]
        levels, gaps = (f"{t[f'level {part}'][0]:.2f}" for part in parts), (signed(t[f"gap {part}"]) for part in parts)
        over = (t[f"{what} over middle"] for what in ("start", "end", "spread start"))
        rows.append([name, *levels, *(f"{signed(one)} {verdict(one)}" for one in over), *gaps])
    head = ["set", "start, nats", "middle", "end", "start surer than middle", "end surer than middle"]
    return markdown([*head, "spread wider at start", "gap start", "gap middle", "gap end"], rows)


def one_set(found: Figures) -> Lines:
    """Every method of one set."""
    if "missing" in found:
        return [f"n = {found['n']}, {found['base_rate']:.1%} good. Too few to cross-fit: {found['missing']}."]
    several = found["runs"] > 1
    rows = []
    for name in sorted(found["methods"], key=ORDER.index):
        m = found["methods"][name]
        row = [name, shown(m["auroc"], ".2f"), signed(m["over_mean"]), gain(m.get("over_strongest"))]
        if several:
            row += [shown(m["within"], ".2f"), signed(m["within_over_mean"]), gain(m.get("within_over_strongest"))]
        ece = shown(m["ece"], ".2f") if m.get("ece") else "-"  # the kept figures of some sets have none
        rows.append([*row, shown(m["auprc"], ".2f"), ece, shown(m["brier_skill"], ".2f")])
    head = ["method", "AUROC", "over the mean", "over the strongest control"]
    head += ["within runs", "over the mean within", "over the strongest within"] if several else []
    head += [f"AUPRC (base {found['base_rate']:.2f})", "ECE", "Brier skill"]
    return [
        f"n = {found['n']:,} in {found['groups']:,} groups, {found['base_rate']:.1%} good. {strongest(found)}"
        f"Best plain baseline, as the folds chose in advance: {', '.join(found['best_baseline'])}. Single features "
        f"chosen: {chosen(found)}.",
        "",
        *markdown(head, rows),
    ]


def chosen(found: Figures) -> str:
    """Says which of all features the folds chose, and how often."""
    counts = Counter(found["single"]["best single feature"])
    return ", ".join(f"`{name}` ({n})" for name, n in counts.most_common())


WHAT_IS_SEEN = {"trees, first k": "trees", "mean of the first k": "mean", "trees, whole answer": "whole"}


def prefixes(sets: Figures) -> Lines:
    """AUROC against tokens seen."""
    measured = {name: found for name, found in sets.items() if found.get("prefix")}
    counts = sorted({int(k) for found in measured.values() for k in found["prefix"]})
    rows = []
    for name, found in measured.items():
        cells = [found["prefix"].get(str(k)) for k in counts]
        rows.append([name, "answers", *(f"{cell['n']:,}" if cell else "-" for cell in cells)])
        for what, key in WHAT_IS_SEEN.items():
            rows.append(["", what, *(shown(cell[key], ".2f") if cell else "-" for cell in cells)])
        rows.append(["", "first k - whole", *(signed(cell["trees_over_whole"]) if cell else "-" for cell in cells)])
    return markdown(["set", "", *(f"k = {k}" for k in counts)], rows)
