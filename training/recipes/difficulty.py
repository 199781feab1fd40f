"""The recipe of difficulty as a number: a probe on the prompt for an item's success rate, or how hard it is graded.

One row an item. The success rate is the share of right answers among the item's samples; a graded level is spaced
evenly from 1 (the easiest) to 0. Both are ease: difficulty is one minus it. The probe is a logistic regression on the
rate, that is on all samples at once, chosen by Spearman's correlation with it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, Training
from metaprobe.checkpoints.table import format_interval
from metaprobe.eval.audits import AuditReport
from metaprobe.eval.audits_of_data import (
    FEW_SHARED,
    group_overlap,
    label_noise,
    near_duplicates,
    repeated_questions,
)
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.ordinal import spearman
from metaprobe.eval.table import AnswerTable
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.records.types import HIDDEN
from metaprobe.training.calibration import sigmoid
from metaprobe.training.checkpoint import Export, write_checkpoint
from metaprobe.training.controls import make_tfidf, smooth_means
from metaprobe.training.evidence import Evidence, origin_of_states, reader_contract
from metaprobe.training.folds import Roles, Rows, final_roles, outer_folds
from metaprobe.training.linear import LinearProbe, fit_linear_probe
from metaprobe.training.options import OnStep, quiet
from metaprobe.training.states import Block, States

NOT_MADE = "class balance, shuffled labels, random features, other domains, layers tried: made for targets of 0 and 1"


SUCCESS_RATE, LEVEL = "success-rate", "level"
ORDER = ("easy", "medium", "hard", "cross")
POSITION = "prompt_last"
RESAMPLES = 400
PRIOR = 5.0
"""Items' worth of the overall mean that each level of the level table starts with."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """m items, or variants of them where they are asked in several ways."""

    ease: Floats
    """(m,), in [0, 1]."""
    rows: Rows
    """(m,): a row of the answer table that belongs to each; samples of one item share their prompt's states."""
    samples: NDArray[np.int64]
    """(m,): answers that the rate is made of."""
    cells: NDArray[np.str_]
    """(m,): what the level table may know of an item: dimension and level, without the level where that is asked."""

    def __len__(self) -> int:
        return len(self.ease)


@dataclass(frozen=True, slots=True)
class RankedDifficulty:
    """How well one method orders items it has not seen, by their ease."""

    name: str
    spearman: Interval
    gain: Interval | None
    """Spearman's correlation of the probe minus that of this method, on the same resamples."""


def ease_of(table: AnswerTable, target: str) -> Items:
    """Items with their success rate, or with their graded level. Raises `RecordError` where all are alike."""
    names = np.char.add(np.char.add(table.items.astype(str), " "), table.variants.astype(str))
    _, first, which = np.unique(names, return_index=True, return_inverse=True)
    samples = np.bincount(which)
    if target == SUCCESS_RATE:
        ease = np.bincount(which, weights=table.y) / samples
    elif target == LEVEL:
        ease = ease_of_levels(table.levels[first].tolist())
    else:
        raise RecordError(f"difficulty target {target!r}: expected {SUCCESS_RATE!r} or {LEVEL!r}")
    if np.ptp(ease) == 0:
        raise RecordError(f"all {len(ease)} items have the same {target}, {ease[0]:.2f}: there is nothing to order")
    cells = table.dimensions[first].astype(str)
    if target == SUCCESS_RATE:
        cells = np.char.add(np.char.add(cells, "|"), table.levels[first].astype(str))
    return Items(ease, first.astype(np.int64), samples, cells)


def ease_of_levels(levels: Sequence[str]) -> Floats:
    """Ease of each level, evenly spaced: "easy", "medium", "hard", "cross", or levels with a number ("3 digits").

    "popularity 9" is easier than "popularity 0": what counts fame or ease says so by its first word.
    """
    distinct = sorted(set(levels))
    numbers = {level: re.search(r"-?\d+(?:\.\d+)?", level) for level in distinct}
    if all(level in ORDER for level in distinct):
        order = sorted(distinct, key=ORDER.index)
    elif all(numbers.values()):
        order = sorted(distinct, key=lambda level: float(numbers[level][0]))  # type: ignore[index]
        if all(level.startswith(("popularity", "ease")) for level in distinct):
            order.reverse()
    else:
        raise RecordError(
            f"levels {distinct[:6]} cannot be ordered; expected {', '.join(ORDER)}, or levels that hold a number"
        )
    place = {level: number for number, level in enumerate(order)}
    return 1 - np.array([place[level] for level in levels]) / max(len(order) - 1, 1)


def fit_difficulty(evidence: Evidence, items: Items, roles: Roles, *, seed: int = 0) -> LinearProbe:
    """The probe for these items; `roles` are of items, not of answers."""
    assert evidence.states is not None, "asked for by the caller"
    groups, states = evidence.table.groups[items.rows].tolist(), _ItemStates(evidence.states, items.rows)
    return fit_linear_probe(states, items.ease, groups, roles, positions=(POSITION,), metric=spearman, seed=seed)


def evaluate_difficulty(
    evidence: Evidence,
    items: Items,
    *,
    folds: int = 5,
    seed: int = 0,
    on_step: OnStep = quiet,
) -> tuple[RankedDifficulty, ...]:
    """Returns rank correlations, out of fold, with the ease of the items: of probe, stated ease and simple controls."""
    table, states, at = evidence.table, evidence.states, items.rows
    assert states is not None, "asked for by the caller"
    groups = table.groups[at].tolist()
    texts = table.questions[at]
    asked = any(text.strip() for text in texts.tolist())  # a store without texts has nothing to count words of
    names = ("probe", "level table", *(["prompt TF-IDF"] if asked else []))
    scores = {name: np.full(len(items), np.nan) for name in names}
    for number, roles in enumerate(item_folds(evidence, items, folds=folds, seed=seed)):
        on_step(f"fold {number + 1} of {folds}: probe")
        probe = fit_difficulty(evidence, items, roles, seed=seed)
        scores["probe"][roles.test] = probe.score(states, at[roles.test])
        scores["level table"][roles.test] = _levels(items, roles)
        if asked:
            scores["prompt TF-IDF"][roles.test] = _tfidf(texts, items.ease, roles)
    if asked:
        scores["length of the prompt"] = -np.char.str_len(texts.astype(str)).astype(np.float64)
    stated = 1 - table.stated_difficulty[at]
    if np.isfinite(stated).any():
        scores["stated ease"] = np.where(np.isfinite(stated), stated, np.nanmedian(stated))
    on_step("intervals")
    weights = cluster_weights(groups, RESAMPLES, seed)
    return tuple(
        RankedDifficulty(
            name,
            interval(spearman, items.ease, score, weights),
            None if name == "probe" else paired_difference(spearman, items.ease, scores["probe"], score, weights),
        )
        for name, score in scores.items()
    )


def train_difficulty(
    path: str | Path,
    evidence: Evidence,
    *,
    target: str,
    folds: int = 5,
    seed: int = 0,
    command: str,
    on_step: OnStep = quiet,
) -> tuple[Checkpoint, tuple[RankedDifficulty, ...]]:
    """A probe of the last prompt token for items' ease, exported; what the folds say of it, beside the baselines."""
    if evidence.states is None or POSITION not in evidence.states.positions:
        raise RecordError(f"no hidden states at {POSITION}: collect with --layers, or run `metaprobe extract`")
    items = ease_of(evidence.table, target)
    ranked = evaluate_difficulty(evidence, items, folds=folds, seed=seed, on_step=on_step)
    on_step("audits")
    splits = item_folds(evidence, items, folds=folds, seed=seed)
    report = difficulty_audits(evidence, items.rows, splits, labels=target == SUCCESS_RATE, seed=seed)
    on_step("export")
    groups = evidence.table.groups[items.rows].tolist()
    roles = final_roles(groups, (items.ease > np.median(items.ease)).astype(np.int64), seed=seed)
    probe = fit_difficulty(evidence, items, roles, seed=seed)
    hidden = probe.read(evidence.states, items.rows)
    name = target.replace("-", "_")
    export = Export(
        kind=HIDDEN,
        title=f"Difficulty probe: {target}",
        summary=(
            f"Ease of an item ({target}, in [0, 1]) from the hidden state of layer {probe.layers[0]} at "
            f"{POSITION}. Difficulty is one minus it. Layer 0 is the embeddings' output, layer i the output of "
            "block i." + "".join(f" {line}." for line in origin_of_states(evidence))
        ),
        graph=probe.graph(name),
        input_name=HIDDEN,
        inputs=hidden,
        expected={name: sigmoid(probe.score_of(hidden))},
        contract={**probe.contract(name), **reader_contract(evidence)},
        generator=evidence.generator,
        training=Training(evidence.fingerprint, len(items), len(set(groups)), seed, command, evidence.regrouped),
        calibration="none: cross-entropy to the rate",
        metrics={"spearman": ranked[0].spearman},
        audits=[*report.audits, *_order_audits(ranked)],
        not_audited=report.skipped,
        packages=("onnx",),
    )
    return write_checkpoint(path, export), ranked


def difficulty_audits(
    evidence: Evidence, items: Rows, splits: Sequence[Roles], *, labels: bool, seed: int = 0
) -> AuditReport:
    """Returns audits of the items' split, and of the labels where the difficulty is made of them (`labels`).

    `items`: a row of the answer table for each item; `splits`: outer folds of items.
    """
    table = evidence.table
    groups, questions = table.groups[items], table.questions[items]
    parts = [roles.parts for roles in splits]
    audits, skipped = [group_overlap(groups, parts)], [NOT_MADE]
    if any(question.strip() for question in questions.tolist()):
        audits += [repeated_questions(questions, parts), near_duplicates(questions, parts, seed=seed)]
    else:
        skipped.append("repeated questions, near-duplicates, prompt TF-IDF: need the questions' texts")
    if not labels:
        skipped.append("label noise: the levels come with the items; no answer was judged")
    elif noise := label_noise(evidence.labels_by_source, table.groups, y=table.y, seed=seed):
        audits += noise
    else:
        skipped.append(f"label noise: needs {FEW_SHARED} answers labelled by two sources")
    return AuditReport(tuple(audits), tuple(skipped))


def _order_audits(ranked: Sequence[RankedDifficulty]) -> list[tuple[str, bool, str]]:
    """Returns one audit a baseline: whether the probe orders the items better, by the interval of the gain."""
    return [
        (
            f"probe orders better than {r.name}",
            r.gain.low > 0,
            f"Spearman {format_interval(r.spearman, 3)}, gain {format_interval(r.gain, 3)}",
        )
        for r in ranked
        if r.gain is not None
    ]


def item_folds(evidence: Evidence, items: Items, *, folds: int = 5, seed: int = 0) -> tuple[Roles, ...]:
    """Outer folds of items, by group."""
    halves = (items.ease > np.median(items.ease)).astype(np.int64)
    return tuple(outer_folds(evidence.table.groups[items.rows].tolist(), halves, folds=folds, seed=seed))


@dataclass(frozen=True, slots=True, eq=False)
class _ItemStates:
    """The states of the items' rows."""

    states: States
    rows: Rows

    @property
    def layers(self) -> tuple[int, ...]:
        return self.states.layers

    @property
    def positions(self) -> tuple[str, ...]:
        return self.states.positions

    def read(self, layer: int, position: str) -> Block:
        return self.states.read(layer, position)[self.rows]


def _tfidf(questions: NDArray[np.str_], ease: Floats, roles: Roles) -> Floats:
    linear = require("sklearn.linear_model", "fit")
    words = make_tfidf()
    X = words.fit_transform(questions[roles.learning])
    model = linear.RidgeCV(alphas=(0.1, 1.0, 10.0)).fit(X, ease[roles.learning])
    return np.asarray(model.predict(words.transform(questions[roles.test])), dtype=np.float64)


def _levels(items: Items, roles: Roles) -> Floats:
    known, overall = smooth_means(items.ease[roles.learning], items.cells[roles.learning], PRIOR)
    return np.array([known.get(cell, overall) for cell in items.cells[roles.test]])
