"""The essay debates: the paper's tables 3 and 4 beside ours, and the asymmetry between Advocate and Skeptic."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import BEST_BASELINE
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval
from metaprobe.eval.metrics.ranked import auroc, spearman
from metaprobe.training.folds import group_folds
from metaprobe.training.methods import BLEND, TREES
from research.quality.data import DataSet, essay_set
from research.quality.figures import FOLDS, RESAMPLES, Figures, Measured, about, figures, measure, packed, too_few
from research.quality.methods import PAPER_WINDOWS, SINGLE, column_scores, filled

ROOT = Path(__file__).parent.parent.parent
PAPER = ROOT / "docs" / "paper_numbers" / "early_token_confidence.json"
ROLES = ("advocate", "skeptic")
COMPARED = (SINGLE, BEST_BASELINE, TREES, BLEND)


def debate_figures(sets: Sequence[DataSet], *, seed: int, on_step: Callable[[str], None]) -> Figures:
    """Figures of every role, source and target; tables 3 and 4; the asymmetry of the roles."""
    found: Figures = {"sets": {}, "tables": {}, "asymmetry": {}, "paper": paper_rows()}
    measured: dict[str, Measured] = {}
    for of in sets:
        if why := too_few(of):
            found["sets"][of.name] = {**about(of), "missing": why}
        else:
            on_step(of.name)
            measured[of.name] = measure(of, seed=seed)
            found["sets"][of.name] = figures(measured[of.name], seed=seed, on_step=_quiet)
        for name in np.unique(of.evidence.table.dimensions):
            on_step(f"{of.name}: single features, {name}")
            found["tables"][f"{name}, {of.name}"] = single_feature(essay_set(of, str(name)), seed=seed)
    for source, target in sorted({parts_of(of)[1:] for of in sets}):
        names = [f"{role}, {source}, {target}" for role in ROLES]
        if all(name in measured for name in names):
            on_step(f"asymmetry: {source}, {target}")
            found["asymmetry"][f"{source}, {target}"] = asymmetry([measured[name] for name in names], seed=seed)
    return found


def _quiet(what: str) -> None:
    """Says nothing."""


def parts_of(of: DataSet) -> tuple[str, str, str]:
    """Role, source and target."""
    role, source, target = of.name.split(", ")
    return role, source, target


def single_feature(of: DataSet, *, seed: int = 0) -> Figures:
    """The strongest single feature of one role and target, chosen on some essays and scored on others.

    As in the paper: Spearman's rho for what is graded, AUROC for the critical flag (of being flagged). In each of five
    folds by essay the feature and its direction are chosen on the other folds; scores are ranks among these, so that
    folds can be put together. `here` is the best on the very data it is chosen on, which is what the paper reports.
    """
    evidence, table = of.evidence, of.evidence.table
    target = of.name.split(", ")[-1]
    assert of.ordinal is not None, "debates have graded targets"
    value = of.ordinal
    kinds, counts = np.unique(value, return_counts=True)
    if len(kinds) < 2 or (len(table) - counts.max()) < 2 * FOLDS:
        return {"n": len(table), "missing": f"{len(table) - counts.max()} answers differ from the commonest level"}
    y = (value != 0).astype(np.int64) if target == "critical" else value
    columns = [i for i, name in enumerate(evidence.feature_names) if name.split(".")[0] in PAPER_WINDOWS]
    names = [evidence.feature_names[i] for i in columns]

    def strengths(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return column_scores(filled(evidence.features[:, columns], rows)[rows], y[rows])

    scores, chosen = np.empty(len(table)), []
    label = np.unique(value, return_inverse=True)[1].clip(max=1)
    for rest, test in group_folds(np.arange(len(table)), table.groups.tolist(), label, FOLDS, seed):
        strength = strengths(rest)
        best = int(np.argmax(np.abs(strength)))
        sign = 1.0 if strength[best] >= 0 else -1.0
        chosen.append(f"{'+' if sign > 0 else '-'}{names[best]}")
        x = sign * filled(evidence.features[:, [columns[best]]], rest)[:, 0]
        ordered = np.sort(x[rest])
        places = np.searchsorted(ordered, x[test], "left") + np.searchsorted(ordered, x[test], "right")
        scores[test] = places / (2 * len(rest))
    weights = cluster_weights(list(table.groups), RESAMPLES // 2, seed)
    metric = auroc if target == "critical" else spearman
    everything = strengths(np.arange(len(table)))
    order = np.argsort(-np.abs(everything))[:3]
    X = filled(evidence.features[:, columns], np.arange(len(table)))
    here: Any = metric(y, X[:, order[0]])
    return {
        "n": len(table),
        "held_out": packed(interval(metric, y, scores, weights)),
        "chosen": chosen,
        "here": [f"{'+' if everything[i] > 0 else '-'}{names[i]}" for i in order],
        "here_best": round(float(max(here, 1 - here) if target == "critical" else abs(here)), 4),
    }


def asymmetry(found: Sequence[Measured], *, seed: int) -> Figures:
    """AUROC on the Advocate's arguments minus that on the Skeptic's, essays resampled together."""
    groups = sorted({str(group) for of in found for group in of.of.evidence.table.groups})
    number = {group: i for i, group in enumerate(groups)}
    drawn = cluster_weights(groups, RESAMPLES, seed)

    def values(of: Measured, name: str) -> NDArray[np.float64]:
        table = of.of.evidence.table
        counts = drawn[:, [number[str(group)] for group in table.groups]]
        once = np.ones((1, len(table)), dtype=np.int32)
        return np.asarray(of.in_fold(table.y, of.judged[name].ranking, np.vstack([once, counts])))

    rows = {}
    for name in COMPARED:
        first, second = (values(of, name) for of in found)
        difference = first - second
        low, high = np.nanquantile(difference[1:], [0.025, 0.975])
        rows[name] = {
            "advocate": round(float(first[0]), 4),
            "skeptic": round(float(second[0]), 4),
            "difference": packed(
                Interval(float(difference[0]), float(low), float(high), sum(len(of.fold) for of in found), len(groups))
            ),
        }
    return rows


def paper_rows() -> Figures:
    """ "set, role, target" -> the paper's top features, and of the best one rho, or AUROC for `critical`."""
    rows: Figures = {}
    for number, role, target, feature, rho, _, area, _ in json.loads(PAPER.read_text())["tables 3 and 4"]["rows"]:
        row = rows.setdefault(f"set {number}, {role}, {target}", {"features": [], "best": area if rho is None else rho})
        row["features"].append(feature)
    return rows
