"""What a report shows of whole runs, beside their judged answers: roles, stages, similarity, agents."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.results import Comparison, Trajectories
from metaprobe.eval.routing_controls import always
from metaprobe.eval.routing_curves import upper_hull
from metaprobe.eval.routing_performance import Matrix, Played, oracle, outcome_of, replay
from metaprobe.eval.system_results import CostPoint, CostQuality, SimilarityFlow
from metaprobe.eval.systems.metacogagent import outcome_matrix
from metaprobe.eval.systems.metacrit import STAGES, Embed, similarity_flow, stage_accuracy
from metaprobe.eval.trajectory import trajectory_bands
from metaprobe.records.types import Call, Run

FEWEST_ANSWERS = 10
"""Right ones, and wrong ones, from which the percentiles of a role are shown."""
FEWEST_TOKENS = 5
"""Of the median answer of a role: a number that was asked for has no course."""
FEWEST_QUESTIONS = 30
"""Answered by every agent, for a number of cost and quality."""

Control = Literal["router", "agent", "control", "oracle"]


def with_runs(
    comparison: Comparison, runs: Iterable[Run], *, embed: Embed | None = None, resamples: int = 1000, seed: int = 0
) -> Comparison:
    """The comparison with what its runs show beside: trajectories by role, stages, similarity flow, cost and quality.

    `embed`: n texts -> (n, d), for the similarity; without it texts are compared by shared words. What the runs do not
    give is left as it is.
    """
    found = list(runs)
    costs = agents_alone(found, resamples=resamples, seed=seed)
    return replace(
        comparison,
        role_trajectories=role_trajectories(found),
        stages=tuple(
            row
            for members in _by_variant(found).values()
            if len({call.stage for run in members for call in run.calls if run.label("correct", call.id) is not None})
            > 1
            for row in stage_accuracy(members, resamples=resamples, seed=seed)
        ),
        similarity=similarity_flows(found, embed=embed, resamples=resamples, seed=seed),
        routing=(*comparison.routing, *([costs] if costs else [])),
    )


def role_trajectories(runs: Iterable[Run]) -> tuple[Trajectories, ...]:
    """Trajectories of each role: system, stage and agent, as far as there are several, in order of appearance.

    An answer is right or wrong by its own label, or else (a monitor's remark) by how its run ended. Roles with fewer
    than `FEWEST_ANSWERS` of either, or that say less than `FEWEST_TOKENS` tokens, are left out.
    """
    calls: list[tuple[Run, Call]] = [(run, call) for run in runs for call in run.calls]
    parts = (
        {run.system for run, _ in calls},
        {run.variant for run, _ in calls},
        {call.stage for _, call in calls},
        {call.agent for _, call in calls},
    )
    by_role: dict[str, dict[bool, list[NDArray[np.floating]]]] = {}
    for run, call in calls:
        right = run.label("correct", call.id)
        right = run.outcome if right is None else right
        if right not in (0, 1) or call.logprobs is None or not len(call.logprobs):
            continue
        names = (run.system, run.variant, call.stage, call.agent)
        role = ", ".join(name for name, every in zip(names, parts, strict=True) if name and len(every) > 1)
        by_role.setdefault(role, {True: [], False: []})[bool(right)].append(np.asarray(call.logprobs))
    return tuple(
        Trajectories(trajectory_bands(found[True]), trajectory_bands(found[False]), role)
        for role, found in by_role.items()
        if min(map(len, found.values())) >= FEWEST_ANSWERS
        and np.median([len(values) for both in found.values() for values in both]) >= FEWEST_TOKENS
    )


def similarity_flows(
    runs: Iterable[Run], *, embed: Embed | None = None, resamples: int = 1000, seed: int = 0
) -> tuple[SimilarityFlow, ...]:
    """Of each variant of MetaCrit with texts: every stage against the one before it, and against the last."""
    flows = []
    for (system, variant), members in _by_variant(runs).items():
        told = [run for run in members if len({call.stage for call in run.calls if call.text} & set(STAGES)) > 1]
        if not told or system != "metacrit":
            continue
        for reference in ("previous", "final"):
            stages = similarity_flow(told, reference=reference, embed=embed, resamples=resamples, seed=seed)
            by = "TF-IDF (shared words, not meaning)" if embed is None else "embedding"
            flows.append(SimilarityFlow(system, variant, reference, by, stages))
    return tuple(flows)


def agents_alone(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> CostQuality | None:
    """What each agent reaches alone where every agent was asked, beside the most confident one and the oracle.

    Cost is tokens generated for a question, by all calls of the agents asked: known of any run, where prices are not.
    None for fewer than two agents or `FEWEST_QUESTIONS` questions.
    """
    members = [run for run in runs if run.system == "metacogagent"]
    agents = tuple(
        sorted({call.agent for run in members for call in run.calls if call.agent and call.stage == "answer"})
    )
    members = [run for run in members if all(_answered(run, agent) for agent in agents)]
    if len(agents) < 2 or len(members) < FEWEST_QUESTIONS:
        return None
    found = outcome_matrix(members, agents)
    known = np.flatnonzero(np.isfinite(found.correct).all(axis=1))
    if len(known) < FEWEST_QUESTIONS:
        return None
    tokens = np.array([[_tokens(run, agent) for agent in agents] for run in members])
    matrix = Matrix(found.correct, tokens / 1000, np.full(tokens.shape, np.nan), agents, np.array(found.groups)).take(
        known
    )
    stated = np.nan_to_num(found.confidence[known], nan=-1.0)
    everyone = tuple(range(len(agents)))
    ways: dict[str, tuple[Control, list[Played]]] = {
        **{agent: ("agent", always(matrix, column)) for column, agent in enumerate(agents)},
        "all asked, the most confident kept": ("control", [Played(everyone, int(row.argmax())) for row in stated]),
        "oracle": ("oracle", oracle(matrix)),
    }
    points = []
    for name, (kind, played) in ways.items():
        figures = outcome_of(matrix, played, resamples=resamples, seed=seed)
        cost = 1000 * float(replay(matrix, played).cost.mean())
        points.append(CostPoint(name, kind, cost, figures.accuracy.estimate, figures.accuracy))
    return CostQuality(
        title="Agents of MetaCogAgent",
        unit="tokens generated a question",
        points=tuple(points),
        hull=_hull([point for point in points if point.kind != "oracle"]),
        n=len(matrix),
    )


def _hull(points: Sequence[CostPoint]) -> tuple[tuple[float, float], ...]:
    hull = upper_hull([point.cost for point in points], [point.accuracy for point in points])
    return tuple(zip(hull.cost.tolist(), hull.accuracy.tolist(), strict=True))


def _by_variant(runs: Iterable[Run]) -> dict[tuple[str, str], list[Run]]:
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        found.setdefault((run.system, run.variant), []).append(run)
    return found


def _answered(run: Run, agent: str) -> bool:
    return any(call.stage == "answer" and call.agent == agent for call in run.calls)


def _tokens(run: Run, agent: str) -> float:
    """Generated by all calls of one agent: from its log-probabilities, or else by the server's count."""
    return float(
        sum(
            len(call.logprobs) if call.logprobs is not None else call.usage.completion_tokens
            for call in run.calls
            if call.agent == agent
        )
    )
