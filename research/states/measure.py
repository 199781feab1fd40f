"""Measures what the states of the larger coder know, from stores of `research.states.collect` with their states read
again.

    metaprobe extract OUT/MODEL/NAME --llm MODELS/MODEL/model.gguf --layers every:2 --stage answer \
        --position prompt_last --position answer_mean --position before_exact --position answer_last
    python -m research.states.measure answers OUT/MODEL/NAME
    python -m research.states.measure rungs recorded/states/MODEL/NAME      # without states
    python -m research.states.measure efficiency OUT/MODEL/NAME       # tasks of two choices; states may be missing
    python -m research.states.measure fewer OUT/MODEL/NAME            # layers 8 to 24 are enough
    python -m research.states.measure harder OUT/MODEL/gsm8k
    python -m research.states.measure difficulty OUT/MODEL/NAME-samples OUT/MODEL/NAME
    python -m research.states.page

Every method of `metaprobe compare` in the same folds by group, against every control; once with all labels and once
with fewer. The figures are kept in docs/measured/states.json.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import method_results
from metaprobe.eval.controls import ANSWER, CELLS, JOINED, P_TRUE, PROMPT, STATED, TERMS
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.ranked import spearman
from metaprobe.eval.results import Family
from metaprobe.probes.features import TERM_NAMES
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.training.evidence import Evidence, load_evidence
from metaprobe.training.folds import Roles, outer_folds
from metaprobe.training.ladder import SURE, USUAL_BAR, Bar, LadderRows, fit_ladder
from metaprobe.training.methods import AFTER, BEFORE, BLEND, LADDER, MEAN_LOGPROB, Fitted, terms_of
from metaprobe.training.recipes.compare_runs import efficiency_of
from metaprobe.training.study import crossfit, standard_methods
from metaprobe.training.trees import fit_trees
from research.blocks import BAR_BEFORE, ROOT, keep_figures, packed
from research.hidden.controls import over_strongest
from research.hidden.measure import evidence_in, measured

MEASURED = ROOT / "docs" / "measured" / "states.json"
FEWER = (100, 300, 1000)
"""Labels of the learning curve, beside all."""
FORM = "form of the working and log-probabilities"
FORM_NAMES = (
    *("characters", "lines", "numbers", "equations", "says Answer", "first ten", "last ten", "lowest", "three lowest"),
    *("mean", "total", "quantile 5", "quantile 10", "quantile 25", "median"),
)
LEARNED = (TERMS, ANSWER, PROMPT, JOINED, LADDER, BEFORE, AFTER, BLEND, STATED, P_TRUE)
"""Methods of the learning curve."""
GRADED = (STATED, P_TRUE, MEAN_LOGPROB, LADDER, BEFORE, AFTER, BLEND)
"""Methods that are taken as the confidence in an answer of two choices."""

Figures = dict[str, Any]


@click.group()
def main() -> None:
    """Measure stores with states."""


def keep(what: str, store: Path, row: Figures) -> None:
    """Write the figures of one store beside those of the others."""
    keep_figures(MEASURED, row, what, f"{store.parent.name}/{store.name}")


Store = click.argument("store", type=click.Path(exists=True, file_okay=False, path_type=Path))


@main.command("answers")
@Store
def answers_command(store: Path) -> None:
    """Compares every method on the answers of a store, with all labels."""
    keep("answers", store, measured(store, evidence_in(store)))


@main.command("rungs")
@Store
def rungs_command(store: Path) -> None:
    """Keeps which rung the ladder that the blend joins reaches in each outer fold, by the bar of before and today's.

    The states are not needed: where the rungs are the same, so is the blend. The answers are those that are recorded.
    """
    table = load_evidence([store], hidden=False).table
    terms, one = terms_of(table), np.full(len(table), "")
    bars, rungs = (Bar(BAR_BEFORE, BAR_BEFORE), USUAL_BAR), []
    for roles in outer_folds(table.groups.tolist(), table.y, folds=5, seed=0):
        fits = (fit_ladder(LadderRows(terms, table.y, table.groups, one, TERM_NAMES), roles, bar=bar) for bar in bars)
        rungs.append([ladder.linear for ladder in fits])
    keep("rungs", store, {"sure": [BAR_BEFORE, SURE], "reached": rungs})


@main.command("efficiency")
@Store
def efficiency_command(store: Path) -> None:
    """Says what share of what an answer knew each score knows, on a task of two choices; without states, the free ones
    and the ladder."""
    evidence, runs = load_evidence([store]), list(RunStore(store).runs(hidden=False))
    graded = GRADED if evidence.states is not None else tuple(name for name in GRADED if name != BLEND)
    methods = [method for method in standard_methods(evidence) if method.name in graded]
    found, refused = efficiency_of(evidence.table, crossfit(evidence, methods), runs, target="correct")
    told: Figures = (
        {"refused": refused}
        if found is None
        else {
            "n": found.n,
            "d_prime": packed(found.d_prime),
            "methods": {
                one.method: {"refused": one.refused, "type2_auroc": packed(one.type2_auroc)}
                if one.meta_d is None or one.m_ratio is None
                else {name: packed(getattr(one, name)) for name in ("type2_auroc", "meta_d", "m_ratio")}
                for one in found.methods
            },
        }
    )
    keep("efficiency", store, told)


@main.command("fewer")
@Store
def fewer_command(store: Path) -> None:
    """Compares some methods where each fold learns from fewer labels; the test rows are the same."""
    evidence, curve = evidence_in(store), {}
    methods = [method for method in standard_methods(evidence) if method.name in LEARNED]
    for labels in FEWER:
        try:
            fits = crossfit(evidence, methods, labels=labels)
            shown = [method for method in fits.methods if method.name in LEARNED]
            curve[str(labels)] = {
                one.name: {"auroc": packed(one.auroc)}
                | ({} if one.controls is None else {"over_strongest": over_strongest(one.controls)})
                for one in method_results(evidence.table, shown)
            }
        except RecordError as error:  # as where so few labels are of four groups
            curve[str(labels)] = {"refused": str(error)}
        keep("fewer", store, curve)


@main.command("harder")
@Store
def harder_command(store: Path) -> None:
    """Tries to explain the blend by how a working looks: its form and its log-probabilities, as finely tuned."""
    evidence = evidence_in(store)
    blend = [method for method in standard_methods(evidence) if method.name in (BEFORE, AFTER, BLEND)]
    results = method_results(evidence.table, crossfit(evidence, [*blend, FormTrees()]).methods)
    row: Figures = {one.name: {"auroc": packed(one.auroc)} for one in results}
    controls = next(one.controls for one in results if one.name == BLEND)
    assert controls is not None, "a learned method is held against the controls"
    row[BLEND]["over_strongest"] = over_strongest(controls)
    keep("harder", store, row)


@dataclass(frozen=True, slots=True)
class FormTrees:
    """LightGBM on the form of the text and on quantiles of its log-probabilities."""

    name: str = FORM
    family: Family = "plain"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        table = evidence.table
        assert table.answers is not None, "the working is read"
        X = np.array([form_of(*pair) for pair in zip(table.answers.tolist(), table.logprobs, strict=True)])
        trees = fit_trees(X.astype(np.float32), table.y, roles, names=FORM_NAMES, seed=seed)
        return Fitted(lambda rows: trees.score(X[rows].astype(np.float32)), trees.selection_auroc)


def form_of(text: str, logprobs: NDArray[np.float32]) -> list[float]:
    """Returns the numbers of `FORM_NAMES`."""
    at = np.asarray(logprobs, dtype=np.float64)
    form = [len(text), text.count("\n"), len(re.findall(r"\d+", text)), text.count("="), "Answer:" in text]
    ends = [at[:10].mean(), at[-10:].mean(), at.min(), np.sort(at)[:3].mean(), at.mean(), at.sum()]
    return [float(value) for value in (*form, *ends, *np.quantile(at, (0.05, 0.1, 0.25, 0.5)))]


@main.command("difficulty")
@click.argument("samples", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("stated", type=click.Path(exists=True, file_okay=False, path_type=Path))
def difficulty_command(samples: Path, stated: Path) -> None:
    """Orders the items of a store by the probe before the answer; STATED holds how hard each was said to be."""
    evidence = evidence_in(samples)
    said = {run.item.id: run.stated("difficulty") for run in RunStore(stated).runs(hidden=False)}
    values = [said.get(str(item)) for item in evidence.table.items]
    column = np.array([np.nan if value is None else value for value in values])
    named = {BEFORE: "probe", CELLS: "level table", PROMPT: PROMPT}
    fits = crossfit(evidence, [method for method in standard_methods(evidence) if method.name in named])
    table = evidence.table
    _, first, item = np.unique(table.items, return_index=True, return_inverse=True)
    samples_of = np.bincount(item)
    rate = np.bincount(item, weights=table.y) / samples_of
    scores = {name: np.bincount(item, weights=fits[of].ranking) / samples_of for of, name in named.items()}
    weights, probe = cluster_weights(table.groups[first].tolist(), 400), scores["probe"]
    ranked: Figures = {name: {"spearman": packed(interval(spearman, rate, x, weights))} for name, x in scores.items()}
    for name in scores.keys() - {"probe"}:
        ranked[name]["gain"] = packed(paired_difference(spearman, rate, probe, scores[name], weights))
    row = {
        "items": len(rate),
        "samples": int(np.median(samples_of)),
        "rate": round(float(rate.mean()), 4),
        "stated": sorted({round(float(value), 2) for value in column[np.isfinite(column)]}),
        "methods": ranked,
    }
    keep("difficulty", samples, row)


if __name__ == "__main__":
    main()
