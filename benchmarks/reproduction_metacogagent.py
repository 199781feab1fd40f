"""MetaCogAgent's tables on the recorded answers of every agent: for benchmarks/reproduction.py."""

from functools import lru_cache
from typing import Any

from reproduction_figures import (
    HUMAN,
    PROPRIETARY,
    Figure,
    Missing,
    Section,
    claim,
    counted,
    figure,
    paired,
    section_of,
)
from systems import REPLAYED, replayed
from systems_figures import recorded

from metaprobe.eval.metrics import cluster_weights, mean_interval
from metaprobe.eval.systems import metacogagent
from metaprobe.pipelines.metacogagent import TABLE_IV, TABLE_V
from metaprobe.records.types import Run

FULL = "algorithm"


@lru_cache
def every_agent() -> tuple[Run, ...]:
    return tuple(recorded("metacog-every-agent"))


@lru_cache
def evaluated(variant: str, constants: str = "") -> metacogagent.MetaCogAgentResult:
    """A variant replayed from the recorded answers of all agents, and its figures."""
    return metacogagent.evaluate(variant_runs(variant, constants))


@lru_cache
def variant_runs(variant: str, constants: str = "") -> tuple[Run, ...]:
    return tuple(replayed(every_agent(), variant, constants))


def metacog(paper: dict[str, Any]) -> Section:
    """Tables I to V and section V."""
    runs = every_agent()
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
    """Every variant, and the full system against each."""
    figures = []
    for name in REPLAYED:
        ours, (accuracy, precision, ece, calls) = evaluated(name), paper["table 2"][name]
        figures.append(figure("table II", f"{name}: accuracy", f"{accuracy}%", ours.accuracy))
        if precision is not None:
            figures.append(
                figure("table II", f"{name}: delegation precision", str(precision), ours.precision, "number")
            )
        if ece is not None:
            value = ours.calibration.ece if ours.calibration else None
            figures.append(
                figure("table II", f"{name}: ECE of c (ours: bins of equal mass)", str(ece), value, "number")
            )
        figures.append(counted("table II", f"{name}: calls", str(calls), sum(ours.calls.values())))
        if name != FULL:
            gain = paired(variant_runs(FULL), variant_runs(name))
            figures.append(
                claim("table II", f"the full system over {name}", paper["table 2"][FULL][0] - accuracy, gain)
            )
    return figures


def levels(paper: dict[str, Any]) -> list[Figure]:
    """Table III, and the calibration by level."""
    figures = []
    for name, values in paper["table 3"].items():
        if name in ("columns", "conversation"):
            continue
        for level, theirs in zip(("easy", "medium", "hard"), values, strict=False):
            ours = evaluated(name).by_level[level]
            figures.append(figure("table III", f"{name}, {level}: accuracy", f"{theirs}%", ours.accuracy))
    for level in ("easy", "hard"):
        calibration = evaluated(FULL).by_level[level].calibration
        theirs = str(paper["calibration"]["ece"][level])
        value = calibration.ece if calibration else None
        figures.append(figure("section V", f"ECE of c, {level} (ours: bins of equal mass)", theirs, value, "number"))
    return figures


def ablations(paper: dict[str, Any]) -> list[Figure]:
    """Tables IV and V."""
    figures = []
    for name, (variant, constants) in TABLE_IV.items():
        if name not in paper["table 4"]:
            continue
        theirs = paper["table 4"][name]
        figures.append(figure("table IV", f"{name}: accuracy", f"{theirs[0]}%", evaluated(variant, constants).accuracy))
        loss = paired(variant_runs(variant, constants), variant_runs(FULL))
        figures.append(claim("table IV", f"{name}, against the full system", theirs[1], loss))
    for constant, values in TABLE_V.items():
        for value in values:
            theirs = paper["table 5"][constant][str(value)]
            ours = evaluated(FULL, f"{constant}={value}")
            figures.append(figure("table V", f"{constant} = {value}: accuracy", f"{theirs}%", ours.accuracy))
    return figures


def delegation(paper: dict[str, Any]) -> list[Figure]:
    """Section V: who delegates what to whom."""
    theirs, ours = paper["delegation"], evaluated(FULL)
    figures = [figure("section V", "asked others, all", f"{theirs['rate']['all']}%", ours.asked)]
    figures += [
        figure("section V", f"asked others, {level}", f"{theirs['rate'][level]}%", ours.by_level[level].asked)
        for level in ("easy", "medium", "hard", "cross")
        if level in ours.by_level
    ]
    matrix = metacogagent.outcome_matrix(every_agent())
    accuracy = dict(zip(matrix.agents, matrix.correct.mean(axis=0), strict=True))
    pairs = [pair for pair, count in ours.flow.items() for _ in range(count)]
    weights = cluster_weights(range(len(pairs)))
    upwards = mean_interval([accuracy[to] > accuracy[first] for first, to in pairs], weights)
    what = "delegated to an agent of higher accuracy (each delegation a group)"
    figures.append(figure("section V", what, f"{theirs['to_an_agent_of_higher_accuracy']}%", upwards))
    for agent, share in theirs["share_by_first_agent"].items():
        value = mean_interval([first == agent for first, _ in pairs], weights)
        figures.append(figure("section V", f"delegations that begin with {agent}", f"{share}%", value))
    return figures
