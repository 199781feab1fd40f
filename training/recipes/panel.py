"""A panel's checkpoint: several answers to one question -> which to keep, how sure, and whether to ask on.

Three small models, each fitted on groups that the one before has not seen:

- the answers' odds: a logistic regression on an answer's own signals, its agent and its dimension;
- the classes' probabilities: a conditional logistic regression (McFadden 1974) over the classes of equal answers and
  "none of these", on votes, odds and mean signals. It was fitted on draws of every size, so that it knows what two
  answers say as well as what sixteen do. Where several different answers can be right, or it is not known which are
  the same, each class has a logistic regression of its own in place of the softmax;
- the gain of asking on, for samples of one agent: trees on the panel's state, whose target is "right in the end minus
  right now", halfway between outcome and probability, which has less noise.

Which answer is kept, and when to stop, climbs a ladder of simple ways (`routing.panel_rows.PICKS`, `STOPS`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, Training
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.calibration import ece_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.routing.panel import (
    AGENTS,
    GAIN,
    GAIN_GRAPH,
    GAIN_INPUT,
    INPUT,
    KIND,
    ODDS,
    ODDS_GRAPH,
    ODDS_INPUT,
    PROBABILITY,
    agents_json,
)
from metaprobe.routing.panel_rows import (
    JOINT,
    MAJORITY,
    PICKS,
    STATE,
    Agents,
    Answers,
    Classes,
    Floats,
    Ints,
    answer_columns,
    answer_rows,
    class_columns,
    class_rows,
    pick,
    softmax_rows,
    state_rows,
)
from metaprobe.routing.panel_stops import (
    CONSISTENT,
    FIRST_TO,
    FIXED,
    IN_A_ROW,
    SURE,
    Setting,
    majority_probability,
    upper_hull,
)
from metaprobe.routing.panel_stops import GAIN as ASKED_ON
from metaprobe.training.checkpoint import Export, write_checkpoint, writes
from metaprobe.training.folds import group_folds
from metaprobe.training.graphs import GraphBuilder
from metaprobe.training.ladder import fit_offsets
from metaprobe.training.options import PanelOptions
from metaprobe.training.panel_data import Panels, agents_in, panels_at, right_classes
from metaprobe.training.trees import Trees, grow

FEWEST = 50
"""Groups of questions that a panel is learned from at least."""
FOLDS = 4
"""Inner folds, on which odds and probabilities are made of answers that their models have not seen."""
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Answers of a draw; those that a question has enough of."""
DRAWS = 4
"""Draws of each size, for each question."""
PENALTY = 10.0
"""L2 penalty of the classes' weights, per standard deviation of their columns, on the summed loss of the questions."""
GAIN_TREES: Mapping[str, Any] = {
    "objective": "regression",
    "num_leaves": 8,
    "min_data_in_leaf": 200,
    "learning_rate": 0.05,
    "rounds": 120,
}
BEHIND = 0.003
"""Accuracy by which the chosen way may be behind a simple one before an audit fails."""
MOST_GOLDEN = 16
"""Rows that a checkpoint records."""
POINTS = 80
"""Thresholds that are tried of a way to stop."""
ORDERS = 6
"""Random orders of each question's answers that are played."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A linear score of rows: weights (F,) of the columns as they are, and an intercept."""

    weights: Floats
    intercept: float = 0.0

    def score(self, X: NDArray[np.floating[Any]]) -> Floats:
        """Returns the scores (...) of rows (..., F)."""
        return np.asarray(X @ self.weights + self.intercept)


class Judge(Protocol):
    """A panel that judges many questions: a fitted one, or that of a checkpoint."""

    @property
    def agents(self) -> Agents: ...

    def judge(self, answers: Answers, odds: Floats) -> tuple[Classes, Floats]: ...


@dataclass(frozen=True, slots=True, eq=False)
class FittedPanel:
    """The models of a panel, before their export."""

    agents: Agents
    odds: Linear
    classes: Linear
    exclusive: bool
    gain: Trees | None
    """None where the answers are of several agents."""

    def judge(self, answers: Answers, odds: Floats | None = None) -> tuple[Classes, Floats]:
        """Returns the classes of panels and P(right) of each and of none, (b, c + 1).

        `odds` (b, k): by default those of this fit.
        """
        odds = self.odds.score(answer_rows(answers, self.agents)) if odds is None else odds
        classes = class_rows(answers, odds, self.agents, exclusive=self.exclusive)
        return classes, probabilities(classes, self.classes.score(classes.rows), self.exclusive)


def probabilities(classes: Classes, scores: Floats, exclusive: bool) -> Floats:
    """Returns P(right) (b, c + 1) of each class and of none, from scores (b, c + 1)."""
    if exclusive:
        return softmax_rows(scores, classes.there)
    right = np.where(classes.there, 1 / (1 + np.exp(-scores[:, :-1])), 0.0)
    return np.concatenate([right, np.prod(1 - right, axis=1, keepdims=True)], axis=1)


def renumbered(answers: Answers) -> Answers:
    """Returns the answers with the classes of each panel numbered from 0 in order of appearance."""
    k = answers.form.shape[1]
    first = (answers.form[:, :, None] == answers.form[:, None, :]).argmax(axis=2)  # place of the class's first answer
    opens = (first == np.arange(k)) & (answers.form >= 0) & answers.present
    number = np.cumsum(opens, axis=1) - 1
    form = np.where((answers.form >= 0) & answers.present, np.take_along_axis(number, first, axis=1), -1)
    return Answers(form, answers.agent, answers.dimension, answers.scaled, answers.present)


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Answers with their odds (b, k) and labels (b, k), which are drawn together."""

    answers: Answers
    odds: Floats
    right: Floats

    def rows(self, rows: Ints) -> "Placed":
        """Returns the panels of these rows."""
        return Placed(self.answers.rows(rows), self.odds[rows], self.right[rows])

    def draw(self, size: int, rng: np.random.Generator) -> "Placed":
        """Returns `size` answers of each panel, drawn without replacement, with their classes numbered anew.

        A panel with fewer answers keeps all of them.
        """
        rank = np.where(self.answers.present, rng.random(self.answers.present.shape), 2.0)
        at = np.argsort(rank, axis=1)[:, :size]
        odds, right = (np.take_along_axis(values, at, axis=1) for values in (self.odds, self.right))
        return Placed(renumbered(self.answers.take(at)), odds, right)

    def first(self, size: int) -> "Placed":
        """Returns the first `size` answers of each panel. The classes keep their numbers."""
        part = self.answers
        answers = Answers(
            part.form[:, :size], part.agent[:, :size], part.dimension, part.scaled[:, :size], part.present[:, :size]
        )
        return Placed(answers, self.odds[:, :size], self.right[:, :size])


@dataclass(frozen=True, slots=True, eq=False)
class PlayedPanels:
    """Panels while they grow, answer by answer, judged by models that have not seen them: o orders of n questions."""

    groups: NDArray[np.str_]
    """(n,)"""
    right: Mapping[str, Floats]
    """Way to pick -> whether the kept answer is right after 1, ..., K answers, (o, n, K)."""
    states: NDArray[np.float32]
    """(o, n, K, len(STATE))"""
    counts: Ints
    """(o, n, K, 3): answers of the largest class, of the next, and how many of the latest are the same."""
    gain: Floats | None
    """(o, n, K): expected by trees that have not seen the question."""
    answers: Ints
    """(n,): how many there are of each question; a place beyond them repeats the last."""

    def with_gain(self, gain: Floats) -> "PlayedPanels":
        """Returns the same with the expected gain (o, n, K)."""
        return replace(self, gain=gain)

    @property
    def score(self) -> Floats:
        """(o, n, K): P(right) of the kept answer by the joint way."""
        return np.asarray(self.states[..., STATE.index("kept")], dtype=np.float64)


def fit_panel(
    data: Panels, *, seed: int = 0, on_step: Callable[[str], None] = lambda _: None
) -> tuple[FittedPanel, PlayedPanels]:
    """Fits everything on these questions, and plays each by models that were fitted without its group."""
    rng = np.random.default_rng(seed)
    agents, exclusive = agents_in(data), data.exclusive
    answers, fold_of = data.answers(agents), _fold_numbers(data, seed)
    folds = [(np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)) for fold in range(FOLDS)]
    odds = np.zeros(data.form.shape)
    for rest, here in folds:
        odds[here] = _fit_odds(data.take(rest), agents).score(answer_rows(answers.rows(here), agents))
    placed = Placed(answers, odds, data.right)
    odds_model = _fit_odds(data, agents)
    played: list[PlayedPanels] = []
    for number, (rest, here) in enumerate(folds):
        on_step(f"fold {number + 1} of {FOLDS}")
        model = FittedPanel(
            agents, odds_model, _fit_classes(placed.rows(rest), agents, exclusive, rng), exclusive, None
        )
        played.append(play(model, placed.rows(here), np.array(data.groups)[here], rng))
    gain = None
    if data.sampled and exclusive:
        on_step("gain of asking on")
        gained = [_targets(one) for one in played]
        trees = [_grow([one for other, one in enumerate(gained) if other != fold], rng) for fold in range(FOLDS)]
        played = [replace(one, gain=_score(tree, one.states)) for one, tree in zip(played, trees, strict=True)]
        gain = _grow(gained, rng)
    on_step("fit on all questions")
    classes = _fit_classes(placed, agents, exclusive, rng)
    order = np.argsort(np.concatenate([here for _, here in folds]))
    return FittedPanel(agents, odds_model, classes, exclusive, gain), _joined(played, order)


def play(
    model: "Judge",
    placed: "Placed",
    groups: NDArray[np.str_],
    rng: np.random.Generator,
    *,
    orders: int = ORDERS,
) -> PlayedPanels:
    """Returns what is known of these panels after each answer, in so many random orders of their answers."""
    n, K = placed.answers.form.shape
    right = {way: np.zeros((orders, n, K)) for way in PICKS}
    states = np.zeros((orders, n, K, len(STATE)), dtype=np.float32)
    counts = np.zeros((orders, n, K, 3), dtype=np.int64)
    for number in range(orders):
        order = placed.draw(K, rng)
        counts[number, :, :, 2] = _in_a_row(order.answers.form)
        for size in range(1, K + 1):
            part = order.first(size)
            classes, p = model.judge(part.answers, part.odds)
            for way in PICKS:
                kept = pick(way, part.answers, classes, p, model.agents)
                right[way][number, :, size - 1] = kept_right(part, kept)
            states[number, :, size - 1] = state_rows(classes, p, kept)
            largest = -np.sort(-classes.count, axis=1)[:, :2]
            counts[number, :, size - 1, : largest.shape[1]] = largest
    return PlayedPanels(groups, right, states, counts, None, placed.answers.present.sum(axis=1))


def _in_a_row(form: Ints) -> Ints:
    """Returns how many of the latest answers are the same after each answer, (n, K); 0 after one that is unreadable."""
    row = np.zeros(form.shape, dtype=np.int64)
    row[:, 0] = form[:, 0] >= 0
    for place in range(1, form.shape[1]):
        goes_on = form[:, place] == form[:, place - 1]
        row[:, place] = np.where(form[:, place] >= 0, np.where(goes_on, row[:, place - 1], 0) + 1, 0)
    return row


def _joined(parts: Sequence[PlayedPanels], order: Ints) -> PlayedPanels:
    """Returns the parts as one, with the questions in their first order."""

    def whole(values: Sequence[NDArray[Any]], axis: int = 1) -> NDArray[Any]:
        return np.take(np.concatenate(values, axis=axis), order, axis=axis)

    gains = [one.gain for one in parts if one.gain is not None]
    return PlayedPanels(
        groups=whole([one.groups for one in parts], 0),
        right={way: whole([one.right[way] for one in parts]) for way in PICKS},
        states=whole([one.states for one in parts]),
        counts=whole([one.counts for one in parts]),
        gain=whole(gains) if gains else None,
        answers=whole([one.answers for one in parts], 0),
    )


def _targets(held: PlayedPanels) -> tuple[NDArray[np.float32], Floats]:
    """Returns the states before the last answer, and what asking all the rest gained: halfway between outcome and
    probability."""
    right, score = held.right[JOINT], held.score
    gained = (right[..., -1:] - right[..., :-1] + score[..., -1:] - score[..., :-1]) / 2
    return held.states[..., :-1, :].reshape(-1, len(STATE)), gained.ravel()


def _grow(parts: Sequence[tuple[NDArray[np.float32], Floats]], rng: np.random.Generator) -> Trees:
    X, y = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return grow(GAIN_TREES, X, y, int(rng.integers(1 << 30)))


def _score(trees: Trees, states: NDArray[np.float32]) -> Floats:
    return np.asarray(trees.score(states.reshape(-1, states.shape[-1])).reshape(states.shape[:-1]))


def _fold_numbers(data: Panels, seed: int) -> Ints:
    """Returns the inner fold (n,) of each question, by group."""
    right = (np.nan_to_num(data.right).mean(axis=1) > np.median(np.nan_to_num(data.right).mean(axis=1))).astype(
        np.int64
    )
    number = np.zeros(len(data), dtype=np.int64)
    for fold, (_, part) in enumerate(group_folds(np.arange(len(data)), data.groups, right, FOLDS, seed + 1)):
        number[part] = fold
    return number


def _fit_odds(data: Panels, agents: Agents) -> Linear:
    """Fits the answers' log-odds of being right, on answers that can be read and have a label."""
    answers = data.answers(agents)
    known = data.present & (data.form >= 0) & np.isfinite(data.right)
    X, y = answer_rows(answers, agents)[known].astype(np.float64), data.right[known]
    if not X.shape[1] or y.min() == y.max():
        rate = (y.sum() + 1) / (len(y) + 2)
        return Linear(np.zeros(X.shape[1]), float(np.log(rate / (1 - rate))))
    centre, spread = X.mean(axis=0), X.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    fit = fit_offsets((X - centre) / spread, y, np.zeros(len(y)))
    weights = fit.weights / spread
    return Linear(weights, fit.rates.mean - float(weights @ centre))


def _fit_classes(placed: Placed, agents: Agents, exclusive: bool, rng: np.random.Generator) -> Linear:
    """Fits the classes' scores on draws of every size. The draws of one question weigh as one question together."""
    count = placed.answers.present.sum(axis=1)
    tables: list[tuple[NDArray[np.float32], NDArray[np.bool_], Floats]] = []
    for size in [s for s in SIZES if s < count.max()] + [int(count.max())]:
        enough = placed.rows(np.flatnonzero(count >= min(size, 2)))
        for _ in range(DRAWS):
            drawn = enough.draw(size, rng)
            classes = class_rows(drawn.answers, drawn.odds, agents, exclusive=exclusive)
            tables.append((classes.rows, classes.there, class_right(drawn)))
    return _solve(tables, len(count) / sum(len(table[0]) for table in tables), exclusive)


def class_right(placed: Placed) -> Floats:
    """Returns for each class (b, c) whether it is right: the majority of its labelled answers. 0 without any."""
    return right_classes(placed.answers.form, placed.answers.present, placed.right)


def _solve(
    tables: Sequence[tuple[NDArray[np.float32], NDArray[np.bool_], Floats]], weight: float, exclusive: bool
) -> Linear:
    """Minimises the penalised loss over tables of rows (b, c + 1, F), classes that are there and labels (b, c).

    `weight`: of each panel's loss. A column that never varies has weight 0.
    """
    optimize = require("scipy.optimize", "fit")
    F = tables[0][0].shape[2]
    used = np.concatenate([X[_legal(there)] for X, there, _ in tables]).astype(np.float64)
    spread = used.std(axis=0)
    spread = np.where(spread > 1e-9, spread, np.inf)
    scaled = [(X / spread, there, y) for X, there, y in tables]

    def loss(beta: Floats) -> tuple[float, Floats]:
        total, gradient = 0.5 * PENALTY * float(beta @ beta), PENALTY * beta
        for X, there, y in scaled:
            S = X @ beta
            if exclusive:
                p = softmax_rows(S, there)
                right = y * there
                none = 1.0 - np.minimum(right.sum(axis=1), 1.0)
                target = np.concatenate([right / np.maximum(right.sum(axis=1), 1.0)[:, None], none[:, None]], axis=1)
                total -= weight * float((target * np.log(np.maximum(p, 1e-12))).sum())
                error = weight * (target - p)
            else:
                logit = S[:, :-1]
                share = weight * there / np.maximum(there.sum(axis=1), 1)[:, None]
                total += float((share * (np.logaddexp(0, logit) - y * logit)).sum())
                error = np.zeros(S.shape)
                error[:, :-1] = share * (y - 1 / (1 + np.exp(-logit)))
            gradient = gradient - np.einsum("bc,bcf->f", error, X)
        return total, gradient

    fit = optimize.minimize(loss, np.zeros(F), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return Linear(np.asarray(fit.x) / spread)


def _legal(there: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.concatenate([there, np.ones((len(there), 1), dtype=bool)], axis=1)


def kept_right(placed: Placed, kept: Ints) -> Floats:
    """Returns whether the kept class (b,) is right; 0 where none is kept."""
    labels = class_right(placed)
    return np.where(kept >= 0, labels[np.arange(len(kept)), np.maximum(kept, 0)], 0.0)


# The ladders: which class is kept, and when asking stops.


def choose_pick(held: PlayedPanels, sampled: bool) -> str:
    """Returns the joint way, unless a simple way was ahead of it by more than a standard error on groups left out.

    The joint way reads what each simple way goes by, so that it falls back to one where that is all there is. Over all
    sizes from 2 on, or with all answers where they are of several agents.
    """
    mean = {way: _by_question(held, held.right[way], sampled) for way in PICKS}
    best = max(PICKS, key=lambda way: float(mean[way].mean()))
    ahead = mean_interval(mean[best] - mean[JOINT], cluster_weights(held.groups.tolist(), 200))
    return best if ahead.estimate > (ahead.high - ahead.low) / 4 else JOINT  # an interval is four standard errors wide


def _by_question(held: PlayedPanels, right: Floats, sampled: bool) -> Floats:
    """Returns the mean (n,) of what was right (o, n, K) over the sizes that were asked, without the first answer; of
    several agents only with all answers."""
    K = right.shape[2]
    if not sampled:
        return np.asarray(right[..., -1].mean(axis=0))
    asked = (np.arange(1, K + 1) <= held.answers[:, None]) & (np.arange(K) > 0)
    return np.asarray((right.mean(axis=0) * asked).sum(axis=1) / np.maximum(asked.sum(axis=1), 1))


def settings_of(held: PlayedPanels, way: str) -> list[Setting]:
    """Returns every way to stop at all its thresholds, with what it gives where the class is kept by `way`."""
    right, K = held.right[way], held.right[way].shape[2]
    statistics = statistics_of(held)
    thresholds: dict[str, Floats] = {
        FIXED: np.arange(1.0, K + 1),
        FIRST_TO: np.arange(1.0, K + 1),
        IN_A_ROW: np.arange(1.0, K + 1),
        CONSISTENT: np.linspace(0.5, 0.9995, POINTS),
        SURE: np.linspace(0.02, 0.995, POINTS),
    }
    if held.gain is not None:
        thresholds[ASKED_ON] = np.geomspace(5e-4, 0.5, POINTS)
    found = []
    for name, values in statistics.items():
        for threshold in thresholds[name]:
            at = stopped(held, values, Setting(name, float(threshold), 0.0, 0.0))
            accuracy = float(np.take_along_axis(right, at[..., None], axis=2).mean())
            found.append(Setting(name, float(threshold), float(at.mean() + 1), accuracy))
    return found


def statistics_of(held: PlayedPanels) -> dict[str, Floats]:
    """Returns what each way to stop looks at, (o, n, K)."""
    shape = held.score.shape
    found = {
        FIXED: np.broadcast_to(np.arange(1.0, shape[2] + 1), shape),
        FIRST_TO: held.counts[..., 0].astype(np.float64),
        IN_A_ROW: held.counts[..., 2].astype(np.float64),
        CONSISTENT: _consistent(held.counts),
        SURE: held.score,
    }
    return found if held.gain is None else {**found, ASKED_ON: held.gain}


def stopped(held: PlayedPanels, values: Floats, setting: Setting) -> Ints:
    """Returns the place (o, n), from 0, of the answer after which a setting stops, at latest the last one."""
    stops = values <= setting.threshold if setting.way == ASKED_ON else values >= setting.threshold
    last = np.minimum(held.answers, values.shape[2]) - 1
    stops[:, np.arange(len(last)), last] = True
    return np.asarray(stops.argmax(axis=2))


def _consistent(counts: Ints) -> Floats:
    """Returns `majority_probability` of counts (..., 3)."""
    K = int(counts[..., :2].max(initial=0)) + 1
    table = np.array([[majority_probability(first, second) for second in range(K)] for first in range(K)])
    return np.asarray(table[counts[..., 0], counts[..., 1]])


@writes(KIND)
def train_panel(data: str | Path | Panels, options: PanelOptions) -> Checkpoint:
    """Returns the panel's checkpoint, fitted on a run store, a file of outcomes, or panels.

    Raises `RecordError` where there is too little to learn from.
    """
    for package in ("lightgbm", "sklearn", "scipy", "onnxmltools"):
        require(package, "fit")
    command = options.recorded("train_panel")
    if isinstance(data, Panels):
        panels = data
    else:
        options.on_step(f"reading {Path(data).name}")
        panels = panels_at(Path(data), stage=options.sampled, same=options.same)
    if len(set(panels.groups)) < FEWEST:
        raise RecordError(
            f"{len(panels)} questions in {len(set(panels.groups))} groups; a panel needs at least {FEWEST} groups"
        )
    fitted, held = fit_panel(panels, seed=options.seed, on_step=options.on_step)
    return write_checkpoint(options.out, _export(fitted, held, panels, options.seed, command))


def _export(fitted: FittedPanel, held: PlayedPanels, data: Panels, seed: int, command: str) -> Export:
    way = choose_pick(held, data.sampled)
    K = held.right[way].shape[2]
    graph = classes_graph(fitted)
    rows, expected = _golden(fitted, data)
    extra = {AGENTS: agents_json(fitted.agents), ODDS_GRAPH: odds_graph(fitted)}
    if fitted.gain is not None:
        extra[GAIN_GRAPH] = gain_graph(fitted.gain)
    settings = settings_of(held, way) if data.sampled else []
    return Export(
        kind=KIND,
        title="Panel: which of several answers to keep, and how sure",
        summary=_summary(data, way),
        graph=graph,
        input_name=INPUT,
        inputs=rows,
        expected={PROBABILITY: expected},
        contract={
            "columns": list(class_columns(fitted.agents)),
            "exclusive": fitted.exclusive,
            "same": data.same,
            "pick": way,
            "most_answers": K,
            "stops": [list(astuple(one)) for one in upper_hull(settings)] if settings else [],
        },
        generator=data.generator,
        training=Training(data.fingerprint, len(data), len(set(data.groups)), seed, command, data.note),
        calibration="conditional logistic regression" if fitted.exclusive else "logistic regression",
        calibrated_on="draws of every size from questions whose odds were made without their group",
        measured=f"Of models fitted without the question's group, in {FOLDS} folds and {ORDERS} orders of the answers.",
        metrics=_metrics(held, way),
        audits=_audits(held, way, data.sampled),
        packages=("scikit-learn", "lightgbm", "onnxmltools", "onnx"),
        extra=extra,
        reads=[
            f"signals of an answer: {', '.join(fitted.agents.signals) or 'none'}",
            f"agents: {', '.join(fitted.agents.names)}",
            f"answers are the same by: {data.same}",
        ],
    )


def _summary(data: Panels, way: str) -> str:
    sampled = "samples of one agent" if data.sampled else f"answers of {len(data.agents)} agents"
    return (
        f"P(right) of each distinct answer among {sampled} to one question, and of none of them, from votes and the "
        f"answers' own signals. The answer that is kept is chosen by: {way} "
        f"(of {', '.join(PICKS)}: the joint way, unless a simple one was ahead of it on groups left out)."
    )


def sizes_shown(K: int) -> list[int]:
    """Returns the numbers of answers that figures are shown for."""
    return [size for size in (2, 3, 4, 8, 16, 32) if size < K] + [K]


def _metrics(held: PlayedPanels, way: str) -> dict[str, Interval]:
    K, weights = held.right[way].shape[2], cluster_weights(held.groups.tolist())
    metrics: dict[str, Interval] = {}
    for size in sizes_shown(K):
        rows = held.answers >= size
        here = cluster_weights(held.groups[rows].tolist()) if not rows.all() else weights
        own, vote = (held.right[name][:, rows, size - 1].mean(axis=0) for name in (way, MAJORITY))
        metrics[f"accuracy_{size}"] = mean_interval(own, here)
        metrics[f"accuracy_{size}_over_majority"] = mean_interval(own - vote, here)
        y, p = held.right[JOINT][0, rows, size - 1], held.score[0, rows, size - 1]
        if y.min() < y.max():
            metrics[f"kept_{size}.auroc"] = interval(auroc, y, p, here)
            metrics[f"kept_{size}.ece"] = ece_interval(y, p, here)
    return metrics


def _audits(held: PlayedPanels, way: str, sampled: bool) -> list[tuple[str, bool, str]]:
    """Returns whether what is kept is behind no other way."""
    weights = cluster_weights(held.groups.tolist())
    own = _by_question(held, held.right[way], sampled)
    audits = []
    for other in PICKS:
        if other != way:
            gap = mean_interval(own - _by_question(held, held.right[other], sampled), weights)
            told = f"accuracy {gap.estimate:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
            audits.append((f"not behind {other}", gap.estimate >= -BEHIND, told))
    return audits


def _golden(fitted: FittedPanel, data: Panels) -> tuple[NDArray[np.float32], Floats]:
    """Returns the rows of one panel, the first with two classes, and the probabilities that the fit gives."""
    answers = data.answers(fitted.agents)
    several = np.flatnonzero(answers.form.max(axis=1) > 0)
    classes, p = fitted.judge(answers.rows(several[:1] if len(several) else np.arange(1)))
    there = np.append(classes.there[0], True)
    if there.sum() > MOST_GOLDEN:
        there = np.zeros(len(there), dtype=bool)
        there[:MOST_GOLDEN] = True
        scores = fitted.classes.score(classes.rows[0][there])
        return classes.rows[0][there], _plain(scores, fitted.exclusive)
    if not fitted.exclusive:
        return classes.rows[0][there], _plain(fitted.classes.score(classes.rows[0][there]), False)
    return classes.rows[0][there], p[0][there]


def _plain(scores: Floats, exclusive: bool) -> Floats:
    """Returns what the graph makes of scores (r,): their softmax, or each one's sigmoid."""
    if exclusive:
        raised = np.exp(scores - scores.max())
        return np.asarray(raised / raised.sum())
    return np.asarray(1 / (1 + np.exp(-scores)))


def classes_graph(fitted: FittedPanel) -> bytes:
    """Returns the graph of the classes: rows of one panel (c + 1, F) in, P(right) (c + 1, 1) out."""
    graph, width = GraphBuilder(), len(class_columns(fitted.agents))
    score = _linear(graph, fitted.classes, INPUT)
    if not fitted.exclusive:
        graph.add("Sigmoid", score, name=PROBABILITY)
    else:
        top = graph.add("ReduceMax", score, axes=[0], keepdims=1)
        raised = graph.add("Exp", graph.add("Sub", score, top))
        total = graph.add("ReduceSum", raised, graph.constant([0]), keepdims=1)
        graph.add("Div", raised, total, name=PROBABILITY)
    return graph.model(INPUT, width, (PROBABILITY,))


def odds_graph(fitted: FittedPanel) -> bytes:
    """Returns the graph of the answers: their rows (n, P) in, log-odds of being right (n, 1) out."""
    graph = GraphBuilder()
    _linear(graph, fitted.odds, ODDS_INPUT, ODDS)
    return graph.model(ODDS_INPUT, len(answer_columns(fitted.agents)), (ODDS,))


def gain_graph(trees: Trees) -> bytes:
    """Returns the graph of the gain: states (n, len(STATE)) in, the expected gain of asking on (n, 1) out."""
    graph = GraphBuilder()
    trees.add_to(graph, GAIN_INPUT, len(STATE), GAIN)
    return graph.model(GAIN_INPUT, len(STATE), (GAIN,))


def _linear(graph: GraphBuilder, model: Linear, value: str, name: str = "") -> str:
    weighted = graph.add("MatMul", value, graph.number(model.weights[:, None]))
    return graph.add("Add", weighted, graph.number([[model.intercept]]), name=name)
