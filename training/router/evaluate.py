"""What a router is worth on questions whose outcomes are known, beside the simple controls; as JSON."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.calibration import ece_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.routing_controls import against, always, shuffle_choices
from metaprobe.eval.routing_curves import curve_figures
from metaprobe.eval.routing_performance import (
    FEWEST_GROUPS,
    Matrix,
    Played,
    best_single,
    cheapest,
    oracle,
    outcome_of,
    replay,
)
from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.lines import iter_json_lines
from metaprobe.records.outcomes import QuestionOutcomes, outcome_of_line
from metaprobe.routing.learned import LearnedRouter
from metaprobe.routing.learned_play import Game, known_of, play
from metaprobe.routing.learned_state import Known
from metaprobe.training.folds import group_folds
from metaprobe.training.router.control_policies import FOLDS, families_of, family_of_choices, prices_of
from metaprobe.training.router.data import Floats, Ints, Outcomes, outcomes_of
from metaprobe.training.router.logged import evaluate_logged

EVERY = 2
"""Every second lambda of the stored curve is played for the hull."""
ENOUGH_FOR_ECE = 1000


def matrix_of(data: Outcomes, latency: np.ndarray[Any, Any] | None = None) -> Matrix:
    """The outcomes as `metaprobe.eval.routing_performance` reads them."""
    unknown = np.full(data.score.shape, np.nan)
    return Matrix(data.score, data.cost, unknown if latency is None else latency, data.agents, np.array(data.groups))


def evaluate_router(
    router: LearnedRouter, questions: Sequence[QuestionOutcomes], *, resamples: int = 1000, seed: int = 0
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures, and one decision a question: agents asked in order, the one kept, what it cost.

    Every agent asked is paid for; for logged decisions see `evaluate_logged`. Nothing of the file is used to choose:
    lambda comes from the router. The best and cheapest single agents and the oracle are chosen on the file itself,
    which favours them. The controls `at the same cost` may spend what the router did, and the verdict goes by the
    strongest of them (`_at_the_same_cost`).
    """
    if any(question.propensities for question in questions):
        return evaluate_logged(router, questions)
    data = outcomes_of(questions, [name for name in router.agents if any(name in q.agents for q in questions)])
    questions = [
        q for q in questions if any(name in data.agents and o.score is not None for name, o in q.agents.items())
    ]
    latency = np.array(
        [
            [
                outcome.latency_ms if (outcome := q.agents.get(name)) and outcome.latency_ms is not None else np.nan
                for name in data.agents
            ]
            for q in questions
        ]
    )
    matrix = matrix_of(data, latency)
    games = [play(router, question) for question in questions]
    mine = name_columns(games, data.agents)
    price = 1000 * router.lambda_
    figures = outcome_of(matrix, mine, price=price, resamples=resamples, seed=seed)
    result: dict[str, Any] = {
        "questions": len(questions),
        "groups": len(set(data.groups)),
        "agents": list(data.agents),
        "checkpoint": router.checkpoint.digest,
        "lambda": router.lambda_,
        "per_second": router.per_second,
        "accuracy": None,
        "cost_per_1000": None,
        **{field.name: getattr(figures, field.name) for field in dataclasses.fields(figures)},
        "fell_back": float(np.mean([game.fell_back for game in games])),
        "calibration": _calibration(games, data, resamples, seed),
        "curve": None,
        "controls": {},
        "verdict": None,
    }
    if matrix.full:
        result["curve"] = _curve(router, questions, data, matrix, resamples, seed)
        result |= _beside_controls(
            router, questions, data, matrix, mine, cluster_weights(data.groups, resamples, seed), seed
        )
    plain: dict[str, Any] = _plain(result)
    return plain, [_decision(question, game) for question, game in zip(questions, games, strict=True)]


def _beside_controls(
    router: LearnedRouter,
    questions: Sequence[QuestionOutcomes],
    data: Outcomes,
    matrix: Matrix,
    mine: Sequence[Played],
    weights: NDArray[np.int32],
    seed: int,
) -> dict[str, Any]:
    """Returns the numbers of every control beside the router's, and the verdict, which goes by the strongest one."""
    own = _arrays(matrix, mine)
    theirs = {name: _arrays(matrix, played) for name, played in _ends(router, matrix, mine, seed).items()}
    controls = _at_the_same_cost(router, questions, data, float(own[1].mean()), seed)
    figures: dict[str, Any] = {
        name: {
            "accuracy": mean_interval(score, weights),
            "cost_per_1000": mean_interval(cost, weights),
            "router_minus_control": {
                "accuracy": mean_interval(own[0] - score, weights),
                "cost_per_1000": mean_interval(own[1] - cost, weights),
                "value": mean_interval(own[0] - score - router.lambda_ * (own[1] - cost), weights),
            },
        }
        for name, (score, cost) in {**theirs, **controls}.items()
    }
    stands = against(own[0], {name: score for name, (score, _) in controls.items()}, weights)
    for name, one in stands.items():
        figures[name]["p_holm"] = one.p_holm
    strongest, one = next(iter(stands.items()))
    verdict = {
        "word": one.word,
        "strongest_control": strongest,
        "more_accurate_by": one.difference,
        "p_holm": one.p_holm,
    }
    return {"controls": figures, "verdict": verdict}


def name_columns(games: Sequence[Game], agents: Sequence[str]) -> list[Played]:
    """The games with columns of a matrix for names; where all failed, the last of them, of score 0, is the kept one."""
    column = {name: place for place, name in enumerate(agents)}
    return [Played(tuple(column[name] for name in game.asked), column[game.kept or game.asked[-1]]) for game in games]


def _ends(router: LearnedRouter, matrix: Matrix, mine: Sequence[Played], seed: int) -> dict[str, list[Played]]:
    """Ways that keep to no budget, for the ends of the scale, and the router's own choices dealt out at random."""
    return {
        "best single": always(matrix, best_single(matrix)),
        "best single at this lambda": always(matrix, best_single(matrix, price=1000 * router.lambda_)),
        "cheapest": always(matrix, cheapest(matrix)),
        "the router's choices, shuffled": shuffle_choices(mine, seed=seed),
        "oracle": oracle(matrix),
    }


def _arrays(matrix: Matrix, played: Sequence[Played]) -> tuple[Floats, Floats]:
    """(n,) scores of the kept answers, and US dollars for 1,000 questions."""
    run = replay(matrix, played)
    return run.score, 1000 * run.cost


def _at_the_same_cost(
    router: LearnedRouter, questions: Sequence[QuestionOutcomes], data: Outcomes, spent: float, seed: int
) -> dict[str, tuple[Floats, Floats]]:
    """Expected score and cost (n,) of every control that spends what the router did, by name.

    The mixture of single agents and that of domain tables are chosen on the file, which favours them; the tables are
    made of what the router's training showed of each agent. TF-IDF, nearest neighbours and cascade are learned on the
    other folds of the file, and left out where it has too few groups for that.
    """
    rows = np.arange(len(data))
    column = np.arange(len(data.agents))[:, None]
    families = {
        "random mixture": family_of_choices(data, rows, rows, *[np.repeat(column, len(data), axis=1)] * 2),
        "domain table": family_of_choices(data, rows, rows, *[_tables(router, questions, data)] * 2),
    }
    found = {name: family.at(spent)[:2] for name, family in families.items()}
    if len(set(data.groups)) >= FEWEST_GROUPS:
        found |= _cross_fitted(data, spent, seed)
    return {f"{name} at the same cost": result for name, result in found.items()}


def _cross_fitted(data: Outcomes, spent: float, seed: int) -> dict[str, tuple[Floats, Floats]]:
    """The controls that learn, each question played by those that learned without its group."""
    rows = np.arange(len(data))
    right: Ints = (data.score.mean(axis=1) > 0.5).astype(np.int64)
    found: dict[str, tuple[Floats, Floats]] = {}
    for rest, fold in group_folds(rows, data.groups, right, FOLDS, seed):
        for name, family in families_of(data, rest, fold, seed=seed).items():
            if name in ("random mixture", "domain table"):  # these need no fold: the router's own past is theirs
                continue
            whole = found.setdefault(name, (np.zeros(len(data)), np.zeros(len(data))))
            score, cost, _ = family.at(spent)
            whole[0][fold], whole[1][fold] = score, cost
    return found


def _tables(router: LearnedRouter, questions: Sequence[QuestionOutcomes], data: Outcomes) -> Ints:
    """(prices, n) columns: the agent of highest past success rate - price on each question's dimension, as the router's
    training showed it."""
    pasts = [[router.past(name, question.dimension) for name in data.agents] for question in questions]
    rate = np.array([[1 / (1 + math.exp(-past.rate)) for past in row] for row in pasts])
    price = np.array([[1000 * past.price_usd for past in row] for row in pasts])
    return np.stack([(rate - lambda_ * price).argmax(axis=1) for lambda_ in prices_of(data)])


def _curve(
    router: LearnedRouter,
    questions: Sequence[QuestionOutcomes],
    data: Outcomes,
    matrix: Matrix,
    resamples: int,
    seed: int,
) -> dict[str, Any]:
    lambdas = [point.lambda_ for point in router.curve[::EVERY]]
    policies = [
        name_columns([play(other, question) for question in questions], data.agents)
        for other in (router.at(lambda_) for lambda_ in lambdas)
    ]
    found = curve_figures(matrix, policies, resamples=resamples, seed=seed)
    points = [
        {"lambda": lambda_, "cost_per_1000": cost, "accuracy": accuracy}
        for lambda_, (cost, accuracy) in zip(lambdas, found.points, strict=True)
    ]
    hull = {"cost_per_1000": found.hull.cost.tolist(), "accuracy": found.hull.accuracy.tolist()}
    named = {name: getattr(found, name) for name in ("weak", "strong", "aiq", "apgr", "cpt50", "cpt80")}
    return {"points": points, "hull": hull, **named}


def _calibration(games: Sequence[Game], data: Outcomes, resamples: int, seed: int) -> dict[str, Any]:
    """Of P(right) of the kept answers; AUROC only where scores are 0 and 1."""
    y, p = np.array([game.score for game in games]), np.array([game.expected for game in games])
    weights = cluster_weights(data.groups, min(resamples, 200), seed)
    found: dict[str, Any] = {"mean_expected": float(p.mean()), "auroc": None, "ece": None}
    if np.isin(y, (0, 1)).all() and y.min() < y.max():
        found["auroc"] = interval(auroc, y, p, weights)
        if len(y) >= ENOUGH_FOR_ECE:
            found["ece"] = ece_interval(y, p, weights)
    return found


def _decision(question: QuestionOutcomes, game: Game) -> dict[str, Any]:
    return {
        "id": question.id,
        "asked": list(game.asked),
        "kept": game.kept or None,
        "expected": game.expected,
        "score": game.score,
        "cost_usd": game.cost_usd,
        "reason": game.reason,
    }


def _plain(value: Any) -> Any:
    """For JSON: intervals as objects, NaN as null."""
    if isinstance(value, Interval):
        return {"estimate": _plain(value.estimate), "low": _plain(value.low), "high": _plain(value.high)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value


KEYS = ("id", "question", "dimension", "agents", "candidates", "group", "chosen", "propensities")
"""Of a line that asks for a decision; the last three stand in outcomes and are passed over."""


def route_lines(router: LearnedRouter, path: str | Path) -> Iterator[dict[str, Any]]:
    """One decision for each line: line, id, action, agent, expected, reason. `metaprobe route`.

    A line is one of an outcomes file, with the agents asked so far under `agents`; `candidates` names those that may
    be asked, where that is not every agent of the router. Scores and costs on it are not looked at. A line that cannot
    be read has null for all but its reason.
    """
    broken: list[ImportFileError] = []
    for number, record in iter_json_lines(path, on_error=broken.append):
        yield from _unreadable(broken)
        identity = record.get("id") if isinstance(record.get("id"), str) else None
        try:
            routed = router.decide(read_known(record, number))
        except RecordError as error:
            yield _line(number, identity, reason=str(error))
        else:
            yield _line(
                number,
                identity or f"line-{number}",
                action=routed.action,
                agent=routed.agent or None,
                expected=routed.expected,
                reason=routed.reason,
            )
    yield from _unreadable(broken)


def read_known(record: dict[str, Any], number: int) -> Known:
    """What is known so far, as a line of `metaprobe route` gives it. Raises `ImportFileError` that names the field."""
    for key in sorted(record.keys() - set(KEYS)):
        # A misspelt key would lose what it says without a word; other keys are the user's own.
        if near := get_close_matches(key, KEYS, 1, cutoff=0.8):
            raise ImportFileError(f"unknown key {key!r}; did you mean {near[0]!r}? rename it, or remove it")
    if record and not record.keys() & set(KEYS):
        raise ImportFileError(f"the keys are {sorted(record)}; expected some of {', '.join(KEYS)}")
    agents = record.get("agents")
    asked = agents if isinstance(agents, dict) else {} if agents is None else agents
    question = outcome_of_line({**record, "id": record.get("id") or f"line-{number}", "agents": asked})
    candidates = record.get("candidates")
    if candidates is not None and not (isinstance(candidates, list) and all(isinstance(c, str) for c in candidates)):
        raise ImportFileError('"candidates" is not a list of names; expected the agents that may be asked')
    return Known(
        {name: known_of(one) for name, one in question.agents.items()},
        question.question,
        question.dimension,
        candidates,
    )


def _unreadable(broken: list[ImportFileError]) -> Iterator[dict[str, Any]]:
    while broken:
        error = broken.pop(0)
        yield _line(error.line, None, reason=str(error))


def _line(number: int | None, identity: str | None, **known: Any) -> dict[str, Any]:
    return {
        "line": number,
        "id": identity,
        **{name: known.get(name) for name in ("action", "agent", "expected", "reason")},
    }
