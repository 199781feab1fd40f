"""From outcomes to a router's checkpoint, with the cost-accuracy curve that budgets are read off."""

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, Training
from metaprobe.checkpoints.golden import largest_difference
from metaprobe.checkpoints.graph_session import GraphSession
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.ope import ENOUGH
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.routing.learned import GAIN, INPUT, KIND, SOURCES, SUCCESS
from metaprobe.routing.learned_budget import Alone, Point
from metaprobe.routing.learned_state import PRICED, ROW
from metaprobe.routing.learned_stored import AGENTS, WORDS
from metaprobe.training.checkpoint import Export, write_checkpoint, writes
from metaprobe.training.graphs import GraphBuilder
from metaprobe.training.options import RouterOptions
from metaprobe.training.router.confidence_sources import sources_of
from metaprobe.training.router.curve import FOLDS, HeldOut, alone_of, cross_played, curve_of, rule_of
from metaprobe.training.router.data import Floats, Ints, Outcomes, fingerprint_of, outcomes_of, pasts_json
from metaprobe.training.router.fit import GAIN_ROW, MARGIN, STATES, Board, FittedRouter, cost_scale, fit_router
from metaprobe.training.router.gaps import gaps_of
from metaprobe.training.router.outcomes_of_runs import outcomes_at
from metaprobe.training.router.rows import Rates, batch_rows
from metaprobe.training.router.words import Words
from metaprobe.training.trees import Trees

FEWEST_QUESTIONS = 60
NEAR = 0.005
"""By how much the default lambda may lose against the best accuracy on the curve."""
PARITY_STATES = 64
ROUTER_PARITY = 1e-4


@writes(KIND)
def train_router(outcomes: str | Path | Sequence[QuestionOutcomes], options: RouterOptions) -> Checkpoint:
    """Returns the router's checkpoint, fitted on a file of outcomes, a folder of runs, or outcomes.

    Raises `WrongOptions` for an option that only a folder of runs takes, else as `write_router`.
    """
    for package in ("lightgbm", "sklearn", "onnxmltools"):
        require(package, "fit")
    command = options.recorded("train_router")
    if isinstance(outcomes, str | Path):
        options.on_step(f"reading {Path(outcomes).name}")
        questions, assessment = outcomes_at(
            Path(outcomes), prices=options.prices, signals=options.signal, seed=options.seed, command=command
        )
    else:
        questions, assessment = list(outcomes), None
    return write_router(
        options.out,
        questions,
        agents=tuple(options.agent) or None,
        assessment=assessment,
        folds=options.folds,
        states=options.states,
        seed=options.seed,
        command=command,
        on_step=options.on_step,
        on_line=options.on_line,
    )


def write_router(
    path: str | Path,
    questions: Sequence[QuestionOutcomes],
    *,
    seed: int = 0,
    command: str = "",
    agents: Sequence[str] | None = None,
    assessment: float | None = None,
    folds: int = FOLDS,
    states: int = STATES,
    on_step: Callable[[str], None] = lambda _: None,
    on_line: Callable[[str], None] = lambda _: None,
) -> Checkpoint:
    """Fit on all questions, full outcomes or logged decisions (`outcomes_of`), and write the checkpoint that
    `routing.learned.LearnedRouter` loads.

    The curve stored with it is from `folds` outer folds by group. `agents`: by default all that the outcomes name.
    Costs count every agent asked. `assessment`: part of them that goes to how sure an agent is before it answers, for
    `routing.learned_policy`. `on_line` is told what the lines lack (`gaps_of`).
    Raises `RecordError` where there is too little to learn from.
    """
    data = outcomes_of(questions, agents)
    for line in gaps_of(questions, data.agents):
        on_line(line)
    if len(set(data.groups)) < FEWEST_QUESTIONS or len(data.agents) < 2:
        raise RecordError(
            f"{len(data)} scored questions in {len(set(data.groups))} groups by {len(data.agents)} agents; a router "
            f"needs at least {FEWEST_QUESTIONS} groups and 2 agents"
        )
    words = Words.of(data.questions)
    on_step(f"curve of cost and accuracy, {folds} folds")
    held_out = cross_played(data, words, folds=folds, seed=seed, states=states)
    on_step("fit on all questions")
    fitted = fit_router(data, words, np.arange(len(data)), seed=seed, states=states)
    export = _export(fitted, data, words, held_out, fingerprint_of(questions), seed, command)
    export = replace(export, contract={**export.contract, SOURCES: sources_of(questions, data.agents)})
    if assessment is not None:
        export = replace(export, contract={**export.contract, "assessment": assessment})
    return write_checkpoint(path, export)


def _export(
    fitted: FittedRouter,
    data: Outcomes,
    words: Words,
    held_out: HeldOut,
    fingerprint: str,
    seed: int,
    command: str,
) -> Export:
    free = np.flatnonzero(held_out.rates.second == 0)
    accuracy = held_out.learned.score[free].mean(axis=1)
    default = int(np.flatnonzero(accuracy >= accuracy.max() - NEAR)[-1])
    weights = cluster_weights(data.groups, seed=seed)
    metrics = {
        "accuracy": mean_interval(held_out.learned.score[default], weights),
        "cost_per_1000": mean_interval(held_out.learned.cost[default], weights),
        **{f"success_{who}.auroc": found for who, found in _ranking(held_out, data).items()},
    }
    gain = _gain_over_single(held_out, default, weights)
    graph = router_graph(fitted.success, fitted.gain)
    X, success, gained = _golden(fitted, data, words, graph, seed)
    return Export(
        kind=KIND,
        title="Router: whom to ask next, or whose answer to keep",
        summary=_summary(fitted, data),
        graph=graph,
        input_name=INPUT,
        inputs=X,
        expected={SUCCESS: success, GAIN: gained},
        contract={
            "columns": list(PRICED),
            "offered": [data.agents[column] for column in fitted.offered],
            "max_asked": fitted.max_asked,
            "margin": MARGIN,
            "alone": _lists(alone_of(held_out, data.agents)),
            "rule": _lists(rule_of(held_out)),
            "curve": _lists(curve_of(held_out, fitted, data, words, np.arange(len(data)))),
        },
        generator=None,
        training=Training(fingerprint, len(data), len(set(data.groups)), seed, command),
        calibration="cross-entropy trees on log-odds calibrated for each agent and dimension",
        calibrated_on="all rows; the gain head sees P(right) of heads fitted without the question's group",
        metrics=metrics,
        audits=[
            (
                "beats the best single agent",
                gain.low > 0,
                f"accuracy - lambda * cost {gain.estimate:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]",
            ),
            *([_tried_enough(data)] if data.logged else []),
        ],
        thresholds={"lambda": float(held_out.rates.dollar[default])},
        packages=("scikit-learn", "lightgbm", "onnxmltools", "onnx"),
        extra={
            AGENTS: pasts_json(fitted.pasts),
            WORDS: np.column_stack([fitted.words.weights, fitted.words.squares]).astype("<f4").tobytes(),
        },
    )


def _summary(fitted: FittedRouter, data: Outcomes) -> str:
    return (
        "P(right) of every agent from what is known of a question so far, and what asking each of the others "
        "would gain. The agent of highest gain - lambda * price is asked while that is above "
        f"{MARGIN}; then the answer likeliest to be right is kept. At most {fitted.max_asked} agents are asked. "
        f"Asks {', '.join(data.agents[column] for column in fitted.offered)}."
        + (" Learned from logged single decisions: numbers are doubly robust estimates." if data.logged else "")
    )


def _tried_enough(data: Outcomes) -> tuple[str, bool, str]:
    """Audit of logged decisions: the effective sample size of the least tried agent (Kish)."""
    weight = data.weight
    size = weight.sum(axis=0) ** 2 / (weight**2).sum(axis=0)
    least = int(size.argmin())
    told = f"{data.agents[least]}: {size[least]:.0f} effective of {np.count_nonzero(weight[:, least])} decisions"
    return "every agent was tried often enough", bool(size[least] >= ENOUGH), f"{told}; expected {ENOUGH}"


def _lists(ways: Sequence[Point | Alone]) -> list[list[Any]]:
    return [list(astuple(way)) for way in ways]


def _ranking(held_out: HeldOut, data: Outcomes) -> dict[str, Interval]:
    """AUROC of P(right) over all agents, for those asked and those not, where scores are 0 and 1."""
    found = {}
    for who, which in (("asked", held_out.asked), ("unasked", ~held_out.asked)):
        rows, columns = np.nonzero(which & np.isfinite(held_out.success) & np.isin(data.score, (0, 1)))
        y = data.score[rows, columns]
        if len(rows) and y.min() < y.max():
            groups = np.asarray(data.groups)[rows]
            found[who] = interval(auroc, y, held_out.success[rows, columns], cluster_weights(groups, 200))
    return found


def _gain_over_single(held_out: HeldOut, default: int, weights: NDArray[np.int32]) -> Interval:
    """Of accuracy - lambda * cost at one lambda, over the agent best at it."""
    lambda_ = held_out.rates.dollar[default]
    value = (held_out.each.score - lambda_ * held_out.each.cost).T
    often = np.isfinite(value).mean(axis=0) > 0.5  # an agent of few questions may have had easy ones
    means = np.where(often, np.nanmean(value, axis=0), -np.inf)
    best = value[:, int(means.argmax())] if often.any() else np.nanmax(value, axis=1)
    mine = held_out.learned.score[default] - lambda_ * held_out.learned.cost[default]
    return mean_interval(mine - np.where(np.isfinite(best), best, np.nanmean(best)), weights)


def _golden(
    fitted: FittedRouter, data: Outcomes, words: Words, graph: bytes, seed: int
) -> tuple[NDArray[np.float32], Floats, Floats]:
    """One state as golden rows with what the fitted heads give; many states are held against the graph on the way.

    The rows of a state belong together, so that no more of them are golden than a checkpoint keeps.
    """
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(data), size=min(PARITY_STATES, len(data)), replace=False)
    board = fitted.board(data, words, rows)
    b, A = board.data.score.shape
    question, rates = np.arange(b), Rates.of(np.full(b, 1 / cost_scale(data)))
    mask = rng.random((b, A)) < 0.25
    mask[0, 0] = True
    X, success, gained = state_rows(board, fitted, question, mask, rates)
    session = GraphSession(graph)
    for state in range(b):
        given = {SUCCESS: success[state, :, None].astype(np.float32), GAIN: gained[state, :, None].astype(np.float32)}
        difference = largest_difference(given, session.run({INPUT: X[state]}))
        if not difference.size <= ROUTER_PARITY:
            raise RecordError(
                f"the graph differs from the fitted heads by {difference.size:.2g} in {difference.output}"
            )
    kept = slice(0, 16)
    if A > 16:
        _, success, gained = state_rows(board, fitted, question[:1], mask[:1], rates.take(question[:1]), columns=16)
    return X[0, kept], success[0, kept], gained[0, kept]


def state_rows(
    board: Board,
    fitted: FittedRouter,
    question: Ints,
    mask: NDArray[np.bool_],
    rates: Rates,
    columns: int | None = None,
) -> tuple[NDArray[np.float32], Floats, Floats]:
    """Inputs of the graph (b, A, len(PRICED)) for states, and what the fitted heads make of them, (b, A) each.

    `columns`: as if the state ended after so many agents; what is asked of the others is not seen by the gain head.
    """
    b, A = mask.shape
    rows = batch_rows(board.views, np.repeat(question, A), np.repeat(mask, A, axis=0), np.tile(np.arange(A), b))
    success = board.success(question, mask)
    seen = mask if columns is None else mask & (np.arange(A) < columns)
    gain_rows = board.gain_rows(question, seen, success, rates)
    log_lambda = np.broadcast_to(np.log(rates.dollar)[:, None], (b, A))
    extra = np.stack([board.views.log_priced(question, rates), log_lambda], axis=2)
    X = np.concatenate([rows.reshape(b, A, -1), extra.astype(np.float32)], axis=2)
    return X, success, fitted.gain.score(gain_rows.reshape(b * A, -1)).reshape(b, A)


def router_graph(success: Trees, gain: Trees) -> bytes:
    """(A, len(PRICED)) float32 in; P(right) (A, 1) and gain (A, 1) out.

    The rows are one state: the gain of each depends on the best P(right) among those asked.
    """
    derived, taken = GAIN_ROW[:3], GAIN_ROW[3:]
    assert derived == ("best", "success", "lead"), "these are made here, and come first"
    assert PRICED[: len(ROW)] == ROW
    graph = GraphBuilder()
    graph.add("Sigmoid", success.add_to(graph, INPUT, len(PRICED)), name=SUCCESS)  # its columns come first
    asked = graph.add("Gather", INPUT, graph.constant([ROW.index("asked")]), axis=1)
    had = graph.add("Mul", SUCCESS, asked)
    best = graph.add("ReduceMax", had, axes=[0], keepdims=1)
    lead = graph.add("Sub", SUCCESS, best)
    best_rows = graph.add("Max", had, best)  # the best, once for every row
    stated = graph.add("Gather", INPUT, graph.constant([PRICED.index(name) for name in taken]), axis=1)
    gain_row = graph.add("Concat", best_rows, SUCCESS, lead, stated, axis=1)
    gain.add_to(graph, gain_row, len(GAIN_ROW), GAIN)
    return graph.model(INPUT, len(PRICED), (SUCCESS, GAIN))
