"""MetaCogAgent's tables on the recorded answers of every agent, over ten orders: for research/papers/page.py."""

import dataclasses
from functools import lru_cache
from typing import Any

import numpy as np

from research.papers.figures import (
    HUMAN,
    PROPRIETARY,
    Figure,
    Missing,
    Section,
    claim,
    counted,
    over_orders,
    section_of,
)
from research.systems.metacog_controls import (
    BEST,
    CONSTANT,
    SHUFFLED,
    WEIGHTED,
    every_agent,
    series,
    shuffled_within,
    with_constants,
    without_signal,
)
from research.systems.metacog_orders import Floats, OverOrders, share

FULL = "algorithm"
REPLAYED = ("single", "round-robin", "random", "keyword", "majority", FULL)
SAME = "the same agents, prompts and items in the same order; only {} differs"


@lru_cache
def controls() -> dict[str, Floats]:
    """Returns the answers that the full system has to beat: name -> right or wrong (orders, items)."""
    world = every_agent()
    plain = without_signal(world)
    dealt = world.play(lambda order: shuffled_within(world, world.stated, order))
    return {
        BEST: plain[BEST][None],
        WEIGHTED: plain[WEIGHTED][None],
        CONSTANT: with_constants(world)[CONSTANT].outcome,
        f"stated confidence {SHUFFLED}": dealt.outcome,
    }


@lru_cache
def over_controls() -> dict[str, OverOrders]:
    """The full system's gain over each, paired in each order."""
    full = series(FULL)
    return {name: share(full.outcome - theirs, full.weights) for name, theirs in controls().items()}


def metacog(paper: dict[str, Any]) -> Section:
    """Tables I to V and section V."""
    runs = every_agent().runs
    figures = [
        counted("table I", f"items: {name}", str(row[-1]), sum(named(run.item.dimension, name) for run in runs))
        for name, row in paper["table 1"].items()
        if name != "columns"
    ]
    figures += table_2(paper) + levels(paper) + ablations(paper) + delegation(paper)
    conversation = (
        "AutoGen's conversation asks what `every-agent` has not asked, so it cannot be replayed: "
        "`metaprobe collect metacogagent --variant conversation`."
    )
    missing = [
        Missing("tables II and III: conversation; gain over it on cross items", conversation),
        Missing("all of it with GPT-4", PROPRIETARY.format("GPT-4")),
        Missing(f"section IV-A: agreement of the annotators, {paper['constants']['inter_annotator_kappa']}", HUMAN),
        Missing("section V: three profiles after all tasks, and one example", "Single values of GPT-4's agents."),
    ]
    return section_of(paper, runs, figures=tuple(figures), missing=tuple(missing))


def named(dimension: str, name: str) -> bool:
    """Whether an item's dimension is the one that the paper's table names."""
    return name == "total" or dimension.startswith(name)


def table_2(paper: dict[str, Any]) -> list[Figure]:
    """Every variant, the controls, and the full system against each variant."""
    figures = []
    for name in REPLAYED:
        ours, (accuracy, precision, ece, calls) = series(name), paper["table 2"][name]
        figures.append(over_orders("table II", f"{name}: accuracy", f"{accuracy}%", ours.accuracy()))
        if precision is not None:
            what = f"{name}: delegation precision"
            figures.append(over_orders("table II", what, str(precision), ours.precision(), "number"))
        if ece is not None:
            figures += calibrations("table II", f"{name}: ECE of c", str(ece), FULL)
        made = [sum(one.values()) for one in ours.calls]
        count = counted("table II", f"{name}: calls", str(calls), round(sum(made) / len(made)))
        figures.append(dataclasses.replace(count, orders=(min(made), max(made))))
        if name != FULL:
            points = paper["table 2"][FULL][0] - accuracy
            gain = series(FULL).gain_over(ours)
            figures.append(claim("table II", f"the full system over {name}", points, gain, controls=over_controls()))
    weights = series(FULL).weights
    figures += [
        over_orders("control", f"{name}: accuracy", "not given", share(np.atleast_2d(right), weights))
        for name, right in controls().items()
    ]
    return figures


def calibrations(where: str, what: str, theirs: str, variant: str, level: str = "") -> list[Figure]:
    """ECE of c by the paper's bins and by ours."""
    ours = series(variant)
    keep = ours.of_level(level) if level else True
    bins = {"10 bins of equal width, as in the paper": "equal width", "15 bins of equal mass": "equal mass"}
    return [
        over_orders(where, f"{what} ({name})", theirs, ours.calibration(how, keep), "number")
        for name, how in bins.items()
    ]


def levels(paper: dict[str, Any]) -> list[Figure]:
    """Table III, and the calibration by level."""
    figures = []
    for name, values in paper["table 3"].items():
        if name in ("columns", "conversation"):
            continue
        for level, theirs in zip(("easy", "medium", "hard"), values, strict=False):
            ours = series(name)
            what = f"{name}, {level}: accuracy"
            figures.append(over_orders("table III", what, f"{theirs}%", ours.accuracy(ours.of_level(level))))
    for level in ("easy", "hard"):
        theirs = str(paper["calibration"]["ece"][level])
        figures += calibrations("section V", f"ECE of c, {level}", theirs, FULL, level)
    return figures


TABLE_IV = {
    "w/o Self-Assessment": ("no-self-assessment", ""),
    "w/o Adaptive Delegation": ("no-delegation", ""),
    "w/o Boundary Learning": ("algorithm", "rate=0"),
    "w/o Cross-Agent Eval": ("no-cross-evaluation", ""),
    "w/o Verbalized Conf.": ("algorithm", "weight=0"),
}
"""Ablation -> variant, and constants of the paper's rules where these are enough."""


def ablations(paper: dict[str, Any]) -> list[Figure]:
    """Tables IV and V."""
    figures = []
    for name, (variant, constants) in TABLE_IV.items():
        theirs, without = paper["table 4"][name], series(variant, constants)
        figures.append(over_orders("table IV", f"{name}: accuracy", f"{theirs[0]}%", without.accuracy()))
        loss = without.gain_over(series(FULL))
        what = f"{name}, against the full system"
        # The gain of a part may be no more than knowing the best agent, which is to be had without the system.
        against = {key: negative(value) for key, value in over_controls().items()}
        same = "" if variant == "no-delegation" else SAME.format(name.removeprefix("w/o "))
        figures.append(claim("table IV", what, theirs[1], loss, controls=against, same=same))
    for constant in ("theta", "weight", "rate"):
        for value, theirs in paper["table 5"][constant].items():
            ours = series(FULL, f"{constant}={value}")
            figures.append(over_orders("table V", f"{constant} = {value}: accuracy", f"{theirs}%", ours.accuracy()))
    return figures


def negative(gain: OverOrders) -> OverOrders:
    """The same difference, taken the other way round: of what is left out against what is whole."""
    value = gain.value
    turned = dataclasses.replace(value, estimate=-value.estimate, low=-value.high, high=-value.low)
    return OverOrders(turned, -gain.high, -gain.low, gain.orders)


def delegation(paper: dict[str, Any]) -> list[Figure]:
    """Section V: who delegates what to whom."""
    theirs, ours = paper["delegation"], series(FULL)
    figures = [over_orders("section V", "asked others, all", f"{theirs['rate']['all']}%", ours.share_asked())]
    figures += [
        over_orders("section V", f"asked others, {level}", f"{theirs['rate'][level]}%", ours.share_asked(keep))
        for level in ("easy", "medium", "hard", "cross")
        if (keep := ours.of_level(level)).any()
    ]
    world = every_agent()
    accuracy = dict(zip(world.agents, world.right.mean(axis=0), strict=True))
    upwards = [
        [np.nan if to is None else float(accuracy[to] > accuracy[first or ""]) for first, to in zip(*pair, strict=True)]
        for pair in zip(ours.first, ours.to, strict=True)
    ]
    figures.append(
        over_orders(
            "section V",
            "delegated to an agent of higher accuracy",
            f"{theirs['to_an_agent_of_higher_accuracy']}%",
            share(np.array(upwards), ours.weights),
        )
    )
    for agent, part in theirs["share_by_first_agent"].items():
        begun = [
            [np.nan if to is None else float(first == agent) for first, to in zip(*pair, strict=True)]
            for pair in zip(ours.first, ours.to, strict=True)
        ]
        value = share(np.array(begun), ours.weights)
        figures.append(over_orders("section V", f"delegations that begin with {agent}", f"{part}%", value))
    return figures
