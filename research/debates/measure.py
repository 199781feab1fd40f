"""Judges of arguments in one table: a program, a model's text, its options, and what is learned from early tokens.

    python -m research.debates.measure measure [STORE ...]      # stores of recorded/ that hold debates
    python -m research.debates.measure page

Every target is 1 for a good argument. A way of asking, here, is the debater's role, so that base rates of the roles are
known to every method and told apart from what distinguishes arguments of one role (`within roles`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.eval.answer_table import answer_table
from metaprobe.eval.compare import method_results
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval, mean_interval, paired_difference
from metaprobe.eval.metrics.calibration import ece_interval
from metaprobe.eval.metrics.ranked import StratifiedAuroc, quadratic_weighted_kappa
from metaprobe.eval.results import Family
from metaprobe.papers.systems.essay_debate import ARGUMENT_STAGE
from metaprobe.papers.systems.judging import JUDGE_STAGE
from metaprobe.probes.decision_predictor import decision_signals
from metaprobe.probes.features import COUNTS, PLUS_TERMS, features, schema
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from metaprobe.training.evidence import Evidence, Scores, evidence_of
from metaprobe.training.folds import Roles, Rows
from metaprobe.training.methods import (
    FeatureTrees,
    Fitted,
    GivenScore,
    LogprobLadder,
    Method,
    TermsRegression,
    calibrators_of,
    control_methods,
)
from metaprobe.training.study import CrossFit, crossfit
from research.blocks import ROOT, packed, read_figures, write_figures

MEASURED = ROOT / "docs" / "measured" / "judges.json"
PAGE = ROOT / "docs" / "research" / "judges.md"
STORES = {
    "asap-debate-scaffold": "0.5B, opening prescribed",
    "asap-debate": "0.5B, zero-shot",
    "debates/qwen-coder-1.5b": "1.5B, zero-shot",
}
"""Store of recorded/ -> its debaters, and how they were asked."""
PROGRAM, TEXT = "program", "text"
TARGETS: Mapping[str, tuple[str, str, Callable[[float], bool]]] = {
    "not critical, program": (PROGRAM, "critical", lambda flag: flag == 0),
    "quotes exactly, program": (PROGRAM, "check:evidence", lambda level: level >= 2),
    "not critical, text judge": (TEXT, "critical", lambda flag: flag == 0),
    "instruction 3, text judge": (TEXT, "instruction", lambda level: level >= 3),
    "justification 3, text judge": (TEXT, "justification", lambda level: level >= 3),
    "evidence 3, text judge": (TEXT, "evidence", lambda level: level >= 3),
}
"""Target -> source and name of its label, and which labels are good."""
ASKED = {"critical": "critical", "check:evidence": "evidence", "evidence": "evidence"}
"""Name of a label -> the question that judges answer about it, where it is not its own name."""
FEWEST = 50
"""Arguments of the rarer kind below which nothing is learned."""
WHOLE = "whole argument"
CATCH = 0.8
FOLDS, SEED, RESAMPLES = 5, 0, 1000
FEW_LABELS = (100, 200, 300)
TEXT_JUDGE, DECISIONS = "judge as text", "judge's options, decisions"
EARLY = 30

Figures = dict[str, Any]


RUNGS: Mapping[str, Method] = {"ladder": LogprobLadder(), "terms": TermsRegression(), "trees": FeatureTrees()}
"""The quality predictor's ladder, which climbs to terms or trees only where they pay, and both by themselves."""


@dataclass(frozen=True, slots=True)
class Early:
    """A rung on the first tokens alone; on all of them where `tokens` is 0."""

    rung: str
    tokens: int = 0
    family: Family = "learned"
    fitted: bool = True

    @property
    def name(self) -> str:
        return f"{self.rung}, {f'first {self.tokens} tokens' if self.tokens else WHOLE}"

    @property
    def calibrators(self) -> tuple[str, ...]:
        return calibrators_of(RUNGS[self.rung])

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        prefix = schema(f"prefix-{self.tokens}{PLUS_TERMS}" if self.tokens else evidence.schema)
        X = features(prefix, list(evidence.table.logprobs))
        seen = replace(evidence, features=X, feature_names=prefix.names, schema=prefix.name)
        return RUNGS[self.rung].fit(seen, roles, seed=seed)


WINDOWS = (*COUNTS, 0)
LEARNED = (
    *(Early(rung, k) for rung in ("ladder", "terms") for k in WINDOWS),
    *(Early("trees", k) for k in (EARLY, 0)),
)
HELD = [Early(rung, k) for rung in ("ladder", "terms") for k in (EARLY, 0)]
"""The ways that are tried on traits left out, and on fewer labels."""


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """The arguments of a store that have a label of one target."""

    evidence: Evidence
    judged: Mapping[str, Scores]
    """Judge -> its own P(good), as it says it (n,); a level's place on its scale for a text. NaN where it is silent."""

    @property
    def lacking(self) -> str:
        """Why nothing can be learned; empty where something can."""
        y = self.evidence.table.y
        rarer = min(int(y.sum()), int(len(y) - y.sum()))
        return "" if rarer >= FEWEST else f"{rarer} of {len(y)} arguments are of the rarer kind"


def arguments_of(runs: Sequence[Run], source: str, name: str, good: Callable[[float], bool]) -> Arguments | None:
    """Returns the arguments with this label; None where there is none."""

    def own(origin: str) -> bool:
        return origin == PROGRAM if source == PROGRAM else origin.startswith(f"{JUDGE_STAGE}:")

    labelled = [
        replace(
            run,
            labels=tuple(
                replace(of, value=float(good(of.value))) for of in run.labels if of.name == name and own(of.source)
            ),
        )
        for run in runs
    ]
    if not any(run.labels for run in labelled):
        return None
    table = answer_table(labelled, target=name, stage=ARGUMENT_STAGE)
    role = {call.id: call.agent for run in runs for call in run.calls}
    table = replace(table, variants=np.array([role[i] for i in table.call_ids.tolist()]))
    evidence = evidence_of(labelled, {name: table})[name]
    question = ASKED.get(name, name)
    by_text = {
        label.call_id: 1 - label.value if question == "critical" else (label.value - 1) / 2
        for run in runs
        for label in run.labels
        if label.call_id and label.name == question and label.source.startswith(f"{JUDGE_STAGE}:")
    }
    told = {TEXT_JUDGE: by_text, DECISIONS: decided(runs, question)}
    ids = evidence.table.call_ids.tolist()
    judged = {judge: np.array([of.get(i, np.nan) for i in ids]) for judge, of in told.items() if of}
    if source == TEXT:
        judged.pop(TEXT_JUDGE, None)
    return Arguments(evidence, judged)


def decided(runs: Sequence[Run], question: str) -> dict[str, float]:
    """Returns call -> the probability that a decision model gives to what is good; an expected level from 0 to 1."""
    told: dict[str, float] = {}
    for run in runs:
        for call_id in {answer.call_id for answer in run.decision_answers}:
            mine = [answer for answer in run.decision_answers if answer.call_id == call_id]
            value = decision_signals(mine).value(question)
            if value is not None:
                told[call_id] = 1 - value if question == "critical" else value / 2
    return told


def measured(of: Arguments) -> Figures:
    """Returns the figures of all judges and windows on one target."""
    evidence, table = of.evidence, of.evidence.table
    given = [GivenScore(judge, "decision", lambda _, own=values: own) for judge, values in of.judged.items()]
    fits = crossfit(evidence, [*given, *LEARNED, *control_methods(evidence)], folds=FOLDS, seed=SEED)
    results = {result.name: result for result in method_results(table, fits.methods, resamples=RESAMPLES, seed=SEED)}
    weights = cluster_weights(table.groups.tolist(), RESAMPLES, SEED)
    rows: Figures = {}
    for name in (*of.judged, *(method.name for method in LEARNED)):
        result = results[name]
        rows[name] = {
            "auroc": packed(result.auroc),
            "ece": packed(result.ece),
            "gain": packed(result.diff_control),
            "strongest": result.controls.strongest.name if result.controls else "",
        }
        if name in of.judged:
            known = np.isfinite(of.judged[name])
            own = of.judged[name][known]
            rows[name] |= {
                "ece_as_said": packed(ece_interval(table.y[known], own, weights[:, known])),
                "kappa": packed(interval(quadratic_weighted_kappa, table.y[known], own >= 0.5, weights[:, known])),
            }
        else:
            flags = fits[name].probability >= 0.5
            rows[name]["kappa"] = packed(interval(quadratic_weighted_kappa, table.y, flags, weights))
    strongest = str(rows[LEARNED[0].name]["strongest"])
    return {
        "n": len(table),
        "groups": len(set(table.groups.tolist())),
        "good": round(float(table.y.mean()), 4),
        "methods": rows,
        "control": {"name": strongest, "auroc": packed(results[strongest].auroc)} if strongest else None,
        "stopping": {method.name: stopping(of, fits, method) for method in LEARNED},
        "trait_left_out": trait_left_out(of, fits),
        "fewer_labels": {
            str(labels): few for labels in FEW_LABELS if labels < 0.6 * len(table) and (few := fewer(evidence, labels))
        },
    }


def stopping(of: Arguments, fits: CrossFit, method: Early) -> Figures:
    """Returns what it catches, costs and saves to stop the arguments that look critical once a window is read.

    The threshold of each fold comes from the bad arguments of the other folds, so that `CATCH` of them lie below it.
    """
    table, sound = of.evidence.table, fits[method.name].probability
    stopped = np.zeros(len(table), dtype=bool)
    for roles in fits.roles:
        others = np.setdiff1d(np.arange(len(table)), roles.test)
        bad = np.sort(sound[others[table.y[others] == 0]])
        place = int(np.ceil((len(bad) + 1) * CATCH)) - 1
        stopped[roles.test] = sound[roles.test] <= bad[min(place, len(bad) - 1)]
    weights = cluster_weights(table.groups.tolist(), RESAMPLES, SEED)
    bad = table.y == 0
    read = np.minimum(table.tokens, method.tokens) if method.tokens else table.tokens
    saved = np.where(stopped, table.tokens - read, 0) / table.tokens.mean()
    return {
        "caught": packed(mean_interval(stopped[bad], weights[:, bad])),
        "lost": packed(mean_interval(stopped[~bad], weights[:, ~bad])),
        "saved": packed(mean_interval(saved, weights)),
    }


def trait_left_out(of: Arguments, fits: CrossFit, methods: Sequence[Method] = HELD) -> Figures:
    """Returns AUROC within roles and folds of judges that learned neither essay nor trait, and what that costs."""
    table, y = of.evidence.table, of.evidence.table.y
    fold = np.zeros(len(table), dtype=np.int64)
    for number, roles in enumerate(fits.roles):
        fold[roles.test] = number
    strata = np.array([f"{role} {number}" for role, number in zip(table.variants, fold, strict=True)])
    within, weights = StratifiedAuroc(strata), cluster_weights(table.groups.tolist(), RESAMPLES, SEED)
    figures = {}
    for method in methods:
        scores = np.full(len(table), np.nan)
        for roles in fits.roles:
            for trait in np.unique(table.levels[roles.test]):

                def without(rows: Rows, trait: str = trait) -> Rows:
                    return np.asarray(rows[table.levels[rows] != trait])

                held = roles.test[table.levels[roles.test] == trait]
                parts = Roles(without(roles.train), without(roles.selection), without(roles.calibration), held)
                scores[held] = method.fit(of.evidence, parts, seed=SEED).score(held)
        figures[method.name] = {
            "auroc": packed(interval(within, y, scores, weights)),
            "cost": packed(paired_difference(within, y, scores, fits[method.name].ranking, weights)),
        }
    return figures


def fewer(evidence: Evidence, labels: int) -> Figures:
    """Returns the AUROC of early and whole arguments where so many labels were learned from; none where these are of
    one kind."""
    try:
        fits = crossfit(evidence, HELD, folds=FOLDS, seed=SEED, labels=labels)
    except RecordError:
        return {}
    results = method_results(evidence.table, fits.methods, resamples=300, seed=SEED)
    return {result.name: packed(result.auroc) for result in results}


def price(runs: Sequence[Run]) -> Figures:
    """Returns the tokens that an argument's judges read and write, and those of an argument."""
    calls = {ARGUMENT_STAGE: [], TEXT_JUDGE: [], DECISIONS: []}  # type: dict[str, list[tuple[int, int]]]
    arguments = 0
    for run in runs:
        for call in run.calls:
            used = call.usage.prompt_tokens, call.usage.completion_tokens
            arguments += call.stage == ARGUMENT_STAGE
            if call.stage == ARGUMENT_STAGE:
                calls[ARGUMENT_STAGE].append((0, len(call.logprobs if call.logprobs is not None else ())))
            elif call.stage == JUDGE_STAGE:
                # A judge by its options writes nothing; a packed store holds no messages that would say who was asked.
                calls[TEXT_JUDGE if call.usage.completion_tokens else DECISIONS].append(used)
    return {
        name: {
            "read": round(sum(read for read, _ in of) / arguments, 1),
            "said": round(sum(said for _, said in of) / arguments, 1),
        }
        for name, of in calls.items()
        if of
    }


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
@click.argument("names", nargs=-1)
@click.option("--target", "targets", type=click.Choice(list(TARGETS)), multiple=True, help="Only this target.")
@click.option("--recorded", type=click.Path(path_type=Path), default=ROOT / "recorded")
def measure_command(names: tuple[str, ...], targets: tuple[str, ...], recorded: Path) -> None:
    """Fits every rung in folds on each target of each store, and keeps the figures."""
    for name in names or STORES:
        if not (recorded / name).is_dir():
            continue
        runs = list(RunStore(recorded / name).runs(hidden=False))
        keep(name, {"price": price(runs), "targets": {}})
        for target in targets or TARGETS:
            source, label, good = TARGETS[target]
            of = arguments_of(runs, source, label, good)
            if of is not None:
                click.echo(f"{name}: {target}")
                figures = {"lacking": of.lacking} if of.lacking else measured(of)
                keep(name, {"targets": {target: figures}})


def keep(name: str, figures: Figures) -> None:
    """Adds figures of a store to those that are kept."""
    kept: Figures = read_figures(MEASURED)
    mine = kept.setdefault(name, {"targets": {}})
    mine |= {**figures, "targets": mine["targets"] | figures["targets"]}
    write_figures(MEASURED, kept, sort=True)


if __name__ == "__main__":
    main()
