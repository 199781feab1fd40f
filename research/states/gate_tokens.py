"""Measures the tokens that hidden states would save in gates for answers that the token limit will cut.

    python -m research.states.solutions MODEL STORE OUT 50                     # reads the states at the gate's looks
    python -m research.states.gate_tokens measure NAME STORE LIMIT OUT         # into docs/measured/gate_tokens.json
    python -m research.states.gate_tokens page                                 # writes docs/research/gate.md

Three gates judge the same answers in the same outer folds, at the same looks: by log-probabilities alone, with the form
of the question, and with hidden states too. The first two are those of `metaprobe train gate --target ended`. The third
reads the states at a look where they lower the log loss on groups left out by more than a standard error, and at all if
that is so at half of the looks.
"""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.flagging import ENDED
from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.gate_performance import HeldOutLooks, gate_report
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, statistic_interval
from metaprobe.probes.features import COUNTS, features, schema
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.training.calibrators import fit_platt
from metaprobe.training.evidence import load_evidence
from metaprobe.training.folds import Roles
from metaprobe.training.gate_question import fit_question_score, forms_of
from metaprobe.training.ladder import LadderRows, unseen_scores
from metaprobe.training.linear_probe import fit_linear_probe, unseen_probe_scores
from metaprobe.training.methods import pays, weigh_parts
from metaprobe.training.recipes.gate import (
    GATE_SCHEMA,
    MIN_PAYING_SHARE,
    REFERENCE_FOLDS,
    columns_at,
    fit_head,
    judge_gates,
)
from metaprobe.training.stored_states import InMemory
from metaprobe.training.thresholds import Surprise, joint_statistic, one_a_group, score_thresholds
from research.blocks import DOCS, MEASURED, keep_figures, markdown, packed, read_figures, shown, write
from research.states.gate import KINDS

PAGE, FIGURES = DOCS / "research" / "gate.md", MEASURED / "gate_tokens.json"
RATE, RESAMPLES, SEED = 0.1, 1000, 0
WORTH_BUILDING, FEWEST_STORES = 0.05, 2
"""Share of all tokens that states must save beyond the gate with the question, and on how many stores, before they are
built into the product. Both were fixed before the measurement."""
Floats = NDArray[np.float64]


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
@click.argument("name")
@click.argument("store", type=click.Path(exists=True, path_type=Path))
@click.argument("limit", type=int)
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
def measure_command(name: str, store: Path, limit: int, folder: Path) -> None:
    """Judge the answers whose states were read by the three gates."""
    warnings.simplefilter("ignore")
    found = measured(store, limit, folder)
    print(name, found, flush=True)
    keep_figures(FIGURES, found, name)


def measured(store: Path, limit: int, folder: Path) -> dict[str, Any]:
    """Returns the figures of one store."""
    evidence = load_evidence([store], target=ENDED, stage="answer", hidden=False, token_limit=limit)
    parts = [np.load(path) for path in sorted(folder.glob("*.npz"))]
    read = {call: (i, j) for i, part in enumerate(parts) for j, call in enumerate(part["call"].tolist())}
    rows = np.array([i for i, call in enumerate(evidence.table.call_ids.tolist()) if call in read])
    evidence = replace(evidence, table=evidence.table.rows(rows))
    table, X = evidence.table, features(GATE_SCHEMA, list(evidence.table.logprobs))
    places = [read[call] for call in table.call_ids.tolist()]
    states = States(
        tuple(parts[0]["looks"].tolist()),
        tuple(parts[0]["layers"].tolist()),
        np.stack([parts[i]["states"][j] for i, j in places]),
    )
    forms = forms_of(table.asked)
    assert forms is not None
    alone, splits = judge_gates(evidence, X, alphas=[RATE], seed=SEED)
    question, _ = judge_gates(evidence, X, alphas=[RATE], forms=forms, seed=SEED)
    fired, reading = with_states(table, X, forms, states, splits)
    ways = {"alone": alone, "question": question}
    ways["states"] = replace(question, fired={RATE: fired}, probability=np.full_like(question.probability, np.nan))
    weights = cluster_weights(table.groups.tolist(), RESAMPLES, SEED)
    saved = {way: np.where(of.fired[RATE] > 0, table.tokens - of.fired[RATE], 0) for way, of in ways.items()}

    def more(than: str, rows: NDArray[np.bool_]) -> Interval:
        gained = (saved["states"] - saved[than]) * rows
        return statistic_interval(lambda weight: (weight @ gained) / (weight @ table.tokens), weights)

    everywhere, cut = np.ones(len(table), np.bool_), table.y == 0

    return {
        "answers": len(table),
        "questions": len(set(table.groups.tolist())),
        "limit": limit,
        "cut": round(float(1 - table.y.mean()), 4),
        "cut_tokens": round(float(table.tokens[table.y == 0].sum() / table.tokens.sum()), 4),
        "folds_reading_states": reading,
        **{way: shares(of) for way, of in ways.items()},
        "more_than_question": packed(more("question", everywhere)),
        "more_than_question_in_cut": packed(more("question", cut)),
        "more_than_alone": packed(more("alone", everywhere)),
    }


def shares(held_out: HeldOutLooks) -> dict[str, Any]:
    """Returns what a gate stops and saves at the promise."""
    [rate] = gate_report(held_out, resamples=RESAMPLES, seed=SEED).rates
    return {
        "ended_stopped": packed(rate.false_alarms),
        "cut_stopped": packed(rate.bad_stopped),
        "tokens_saved": packed(rate.tokens_saved),
        "saved_in_cut": packed(rate.tokens_saved_bad),
    }


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Hidden states of n answers."""

    looks: tuple[int, ...]
    layers: tuple[int, ...]
    values: NDArray[np.float16]
    """(n, looks, layers, 2, width); NaN beyond the answer's end."""


def with_states(
    table: AnswerTable, X: NDArray[np.float32], forms: NDArray[np.float32], states: States, splits: list[Roles]
) -> tuple[NDArray[np.int64], int]:
    """Returns the tokens (n,) after which the gate with states stops each answer, 0 for none, and the folds whose gate
    reads states.

    Args:
        table: the answers.
        X: their features (n, d) of the gate's schema.
        forms: forms of their questions (n, 5).
        states: their hidden states.
        splits: roles of each outer fold.
    """
    fired, reading = np.zeros(len(table), np.int64), 0
    for roles in splits:
        looks = {}
        for look in COUNTS:
            try:
                looks[look] = scored(table, X, forms, states, roles, look)
            except RecordError:  # too few answers are that long
                continue
        reads = sum(one.reads_states for one in looks.values()) >= MIN_PAYING_SHARE * len(looks)
        reading += reads
        scores = {look: one.with_states if reads else one.without for look, one in looks.items()}
        learned = {
            look: Surprise.fit(one.unseen_with_states if reads else one.unseen_without) for look, one in looks.items()
        }
        good = roles.calibration[table.y[roles.calibration] == 1]
        drawn = one_a_group(good, table.groups, seed=SEED)
        surprise = [learned[look].of(scores[look][drawn]) for look in looks]
        limits = score_thresholds(learned, joint_statistic(surprise), [RATE])[RATE]
        for look in reversed(list(looks)):
            below = roles.test[scores[look][roles.test] < limits[look]]
            fired[below] = look
    return fired, reading


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """Scores of all answers (n,) at one look, NaN where an answer is shorter; and unseen ones of good learning rows."""

    without: Floats
    with_states: Floats
    unseen_without: Floats
    unseen_with_states: Floats
    reads_states: bool


def scored(
    table: AnswerTable, X: NDArray[np.float32], forms: NDArray[np.float32], states: States, roles: Roles, look: int
) -> Look:
    """Returns scores at one look, with states and without. Raises `RecordError` for too few answers.

    Args:
        table: the answers.
        X: their features (n, d) of the gate's schema.
        forms: forms of their questions (n, 5).
        states: their hidden states.
        roles: roles of the outer fold.
        look: tokens seen.
    """
    head = fit_head(X, table, roles, look, forms=forms, seed=SEED)
    # From here on the rows are those of the answers that long.
    long = np.flatnonzero(table.tokens >= look)
    y, groups = table.y[long], table.groups[long]
    roles = Roles(**{role: np.flatnonzero(np.isin(long, part)) for role, part in roles.parts.items()})
    rows = roles.learning
    seen = np.where(np.isin(GATE_SCHEMA.names, schema(f"prefix-{look}").names), X[long], np.float32(np.nan))
    sample = LadderRows(seen, y, groups, np.full(len(y), ""), GATE_SCHEMA.names, columns_at(look))
    own = unseen_scores(head.scorer, sample, rows, folds=REFERENCE_FOLDS, seed=SEED)
    platt = fit_platt(own, y[rows], rising=True)
    unseen, logits = [platt.logit(own)], [platt.logit(head.scorer.score(seen))]
    if head.question is not None:
        form = fit_question_score(forms[long], y, groups, rows, folds=REFERENCE_FOLDS, seed=SEED)
        assert form is not None
        unseen, logits = [*unseen, form.unseen[rows]], [*logits, form.linear(forms[long])]
    cells = states.values[long, states.looks.index(look)].astype(np.float32)
    kept = InMemory(Activations(tuple(map(str, long)), cells, states.layers, KINDS))
    probe = fit_linear_probe(kept, y, groups.tolist(), roles, positions=KINDS, seed=SEED)
    apart = unseen_probe_scores(probe, kept, y, groups.tolist(), roles, seed=SEED)[rows]
    platt = fit_platt(apart, y[rows], rising=True)
    both = [*unseen, platt.logit(apart)], [*logits, platt.logit(probe.score(kept))]
    wide = np.full((len(both[0]), len(y)), np.nan)
    wide[:, rows] = both[0]
    runs = np.zeros(len(y), dtype=np.int64)
    reads = pays(wide[-1], wide[:-1], y, groups.tolist(), runs, rows, SEED)
    good = y[rows] == 1
    found = []
    for parts, of in ((unseen, logits), both if reads else (unseen, logits)):
        weights, rates = weigh_parts(np.array(parts), y[rows], runs[rows])
        shift = rates.mean
        scores = np.full(len(table), np.nan)
        scores[long] = weights @ np.array(of) + shift
        found.append((scores, (weights @ np.array(parts) + shift)[good]))
    (without, unseen_without), (joined, unseen_joined) = found
    return Look(without, joined, unseen_without, unseen_joined, reads)


@main.command("page")
def page_command() -> None:
    """Write the blocks of docs/research/gate.md and of its tables from the kept figures."""
    figures = read_figures(FIGURES)
    gains = "; ".join(f"{name} {shown(of['more_than_question'], '+.1f', 100)}" for name, of in figures.items())
    worth = sum(of["more_than_question"][0] >= WORTH_BUILDING for of in figures.values())
    broken = sum(of["states"]["ended_stopped"][1] > RATE for of in figures.values())
    told = (
        f"With hidden states too (layers 14 and 18) they save more of all tokens than with the "
        f"question, in points: {gains} ([tables](tables/gate.md#states-and-answers-that-will-be-cut)). The promise is "
        f"clearly broken on {broken} of {len(figures)}. {worth} stores reach the bar for building this, "
        f"{100 * WORTH_BUILDING:g} points on {FEWEST_STORES}; no gate reads states yet."
    )
    write(PAGE, "gate-tokens", [told, ""])
    rows = [
        [
            f"{name}, {words}",
            f"{of['answers']} ({of['questions']})",
            f"{of['cut']:.0%}",
            f"{of['cut_tokens']:.0%}",
            *(
                shown(of[way][key], ".1f", 100)
                for key in ("ended_stopped", "cut_stopped", "tokens_saved", "saved_in_cut")
            ),
            *(
                shown(of[key], "+.1f", 100) if way == "states" else "-"
                for key in ("more_than_question", "more_than_question_in_cut")
            ),
        ]
        for name, of in figures.items()
        for way, words in WAYS.items()
    ]
    head = ["store, gate", "answers (questions)", "cut", "tokens of cut answers"]
    head += ["ended stopped (%)", "cut stopped (%)", "tokens saved (%)", "of these in cut (%)"]
    write(PAGE, "gate-tokens-ways", [*markdown([*head, "over the question", "of this in cut"], rows), ""])


WAYS = {"alone": "log-probabilities", "question": "with the question", "states": "with states"}


if __name__ == "__main__":
    main()
