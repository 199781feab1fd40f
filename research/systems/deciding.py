"""Ways of deciding at `iterate` and at `assess`, played on recorded runs, for operating_points.py."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from metaprobe.eval.systems import metacogagent, mgv
from metaprobe.eval.table import group_of
from metaprobe.pipelines.metacogagent import extract
from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.answers import most_voted
from metaprobe.records.types import Call, Run
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import AGAIN, ASK, COLLABORATE, EXECUTE, STOP, State
from metaprobe.routing.profiles import UNKNOWN, Experience, Profiles, read_classification, read_correctness
from metaprobe.training.thresholds import match_share

ORDERS = 10
"""Shuffled orders of the questions over which MetaCogAgent is played: its profiles depend on the order."""
CONSTANT = "constant of each agent, the paper's threshold"
DRAWS = 200
"""Random ways of stopping as often."""
Read = dict[str, Signal]
"""Call id -> what the checkpoint that has not seen its question read of it."""
OWN_ITERATE, OWN_FLAG = "checkpoint, its own `iterate`", "checkpoint, its own `flag`"


@dataclass(frozen=True)
class Row:
    """One way of deciding, and what it gave of each question: means over draws or orders where there are any."""

    name: str
    correct: list[float]
    tokens: list[float]
    says: list[float]
    """Share of the free decisions that say stop, or execute."""
    threshold: str = "-"


def half_of(run: Run) -> int:
    """0 or 1, by the hash of the group."""
    return hashlib.sha256(group_of(run.item).encode()).digest()[0] % 2


def stopping(runs: Sequence[Run], read: Read) -> list[Row]:
    """Ways of deciding at `iterate`, and of choosing the answer among the cycles that were run."""
    paper = PaperRules()
    verify = {run.id: [tokens_of(run, n, "verify") for n in range(3)] for run in runs}
    whole = {run.id: [a.tokens for a in mgv.attempts(run)] for run in runs}
    given = {run.id: [a.correct for a in mgv.attempts(run)] for run in runs}
    stated = {
        run.id: [None if a.quality is None else Signal(a.quality, "stated") for a in mgv.attempts(run)] for run in runs
    }
    probed = {run.id: [read.get(call.id) for call in answers_of(run)] for run in runs}

    def row(name: str, numbers: dict[str, list[Signal | None]], rules: PaperRules, *, verified: bool) -> Row:
        correct, tokens, says, limits = [], [], [], []
        for run in runs:
            values = numbers[run.id]
            for number in range(3):
                signals = Signals(quality=values[number])
                made = rules.decide(State("d", "iterate", signals, round=number + 1), [STOP, AGAIN])
                says.append(float(made.scores[STOP] >= made.scores[AGAIN] - 1e-9))
                limits.append(made.scores[AGAIN])
                if made.action == STOP:
                    break
            cost = sum(whole[run.id][: number + 1]) - (0 if verified else sum(verify[run.id][: number + 1]))
            best = max(range(number + 1), key=lambda n: -1.0 if values[n] is None else values[n].value)
            correct.append(given[run.id][best])
            tokens.append(cost)
        shown = sorted({f"{limit:.3g}" for limit in limits})
        return Row(name, correct, tokens, says, " and ".join(shown))

    own = row(OWN_ITERATE, only(probed, "iterate"), paper, verified=False)
    rows = [
        row("stated evaluation", stated, paper, verified=True),
        row("checkpoint, the paper's threshold", probed, PaperRules(given=("good",)), verified=False),
        own,
        row("checkpoint, its `flag`", only(probed, "flag"), paper, verified=False),
    ]
    if all("accept" in s.thresholds for values in probed.values() for s in values if s is not None):
        rows.append(row("checkpoint, its `accept`", only(probed, "accept"), paper, verified=False))
    bare = {i: [w - v for w, v in zip(whole[i], verify[i], strict=True)] for i in whole}
    first = Row("stops at once", [given[r.id][0] for r in runs], [bare[r.id][0] for r in runs], [1.0])
    best = [max(range(3), key=lambda n: probed[r.id][n].value if probed[r.id][n] else -1.0) for r in runs]
    never = Row(
        "never stops, checkpoint chooses the answer",
        [given[r.id][b] for r, b in zip(runs, best, strict=True)],
        [sum(bare[r.id]) for r in runs],
        [0.0],
    )
    last = Row("never stops, last answer", [given[r.id][2] for r in runs], [sum(bare[r.id]) for r in runs], [0.0])
    return [*rows, first, never, last, at_random(runs, own, given, bare, probed)]


def at_random(
    runs: Sequence[Run],
    like: Row,
    given: dict[str, list[float]],
    bare: dict[str, list[float]],
    probed: dict[str, list[Signal | None]],
) -> Row:
    """Stops as often as `like` does, whatever the answer; the checkpoint chooses among the cycles that were run."""
    rng, rate = np.random.default_rng(0), fmean(like.says)
    correct, tokens = np.zeros(len(runs)), np.zeros(len(runs))
    for place, run in enumerate(runs):
        ends = np.minimum(rng.geometric(max(rate, 1e-9), size=DRAWS), 3)
        for end in ends:
            best = max(range(end), key=lambda n: probed[run.id][n].value if probed[run.id][n] else -1.0)
            correct[place] += given[run.id][best] / DRAWS
            tokens[place] += sum(bare[run.id][:end]) / DRAWS
    return Row("stops at random as often as its own", correct.tolist(), tokens.tolist(), [rate])


def only(numbers: dict[str, list[Signal | None]], name: str) -> dict[str, list[Signal | None]]:
    """The same numbers with one of their thresholds alone."""
    return {key: [with_threshold(signal, name) for signal in values] for key, values in numbers.items()}


def with_threshold(signal: Signal | None, name: str) -> Signal | None:
    """The same number with one of its thresholds alone, or none where it has not that one."""
    if signal is None:
        return None
    return Signal(signal.value, signal.source, {n: t for n, t in signal.thresholds.items() if n == name})


def as_stated(value: float | None) -> Signal | None:
    """A stated number as a signal."""
    return None if value is None else Signal(value, "stated")


def answers_of(run: Run) -> list[Call]:
    """The answers in the order of their cycles."""
    return sorted((call for call in run.calls if call.stage == "answer"), key=lambda call: call.round)


def tokens_of(run: Run, number: int, stage: str) -> float:
    """Generated by a stage in one cycle."""
    return float(sum(call.usage.completion_tokens for call in run.calls if (call.stage, call.round) == (stage, number)))


def in_order(runs: Sequence[Run]) -> list[Run]:
    """By item."""
    return sorted(runs, key=lambda run: run.item.id)


Numbers = Callable[[Run, str], Signal | None]


def asking(runs: Sequence[Run], read: Read) -> list[Row]:
    """Ways of deciding at `assess` and `assign`."""
    runs = in_order(runs)
    agents = metacogagent.outcome_matrix(runs).agents
    answer = {(run.id, call.agent): call for run in runs for call in run.calls if call.stage == "answer"}
    rates: dict[tuple[int, str], float] = {}
    for half in (0, 1):  # of the other half, as the checkpoint's
        for agent in agents:
            rates[half, agent] = fmean(read_correctness(r, agent) or 0.0 for r in runs if half_of(r) != half)

    def stated(run: Run, agent: str) -> Signal | None:
        return as_stated(run.stated_of(answer[run.id, agent], "confidence"))

    def probed(name: str) -> Numbers:
        return lambda run, agent: with_threshold(read.get(answer[run.id, agent].id), name)

    passing: dict[tuple[int, str], float] = {}
    for half, agent in rates:  # the value that as many answers of the other half reach as state 0.5
        others = [run for run in runs if half_of(run) != half]
        both = [(read[answer[r.id, agent].id].value, s.value) for r in others if (s := stated(r, agent)) is not None]
        values, said = np.array(both).T
        limit = match_share(values, float((said >= PaperRules().theta).mean()))
        passing[half, agent] = values.min() if limit is None else limit

    def as_often(run: Run, agent: str) -> Signal | None:
        found = read[answer[run.id, agent].id]
        return Signal(found.value, found.source, {"flag": passing[half_of(run), agent]})

    def constant(run: Run, agent: str) -> Signal | None:
        return Signal(rates[half_of(run), agent], "constant")

    alone = [max(agents, key=lambda agent: rates[half, agent]) for half in (0, 1)]
    best = [(run, alone[half_of(run)]) for run in runs]
    spent = [float(answer[run.id, agent].usage.completion_tokens) for run, agent in best]
    paper, fixed = PaperRules(), PaperRules(given=("theta",))
    own = played(OWN_FLAG, runs, agents, probed("flag"), paper)
    return [
        played("stated confidence", runs, agents, stated, paper),
        played("checkpoint, the paper's threshold", runs, agents, probed(""), fixed),
        played("checkpoint, reached as often as stated 0.5", runs, agents, as_often, paper),
        own,
        played(CONSTANT, runs, agents, constant, fixed),
        Row("best agent alone", [read_correctness(run, agent) or 0.0 for run, agent in best], spent, []),
        played("always executes", runs, agents, probed(""), fixed, always=EXECUTE),
        played("always asks", runs, agents, probed(""), fixed, always=ASK),
        played("at random as often as its own", runs, agents, probed(""), fixed, always="", rate=fmean(own.says)),
    ]


def played(
    name: str,
    runs: Sequence[Run],
    agents: Sequence[str],
    numbers: Numbers,
    rules: PaperRules,
    *,
    always: str | None = None,
    rate: float = 0.0,
) -> Row:
    """Algorithm 1 over `ORDERS` shuffled orders. `always`: the action at `assess`; "": execute at random by `rate`."""
    n = len(runs)
    correct, tokens, says = np.zeros(n), np.zeros(n), np.zeros(n)
    limits: dict[str, list[float]] = defaultdict(list)
    right = {(r.id, a): read_correctness(r, a) or 0.0 for r in runs for a in agents}
    cost = {
        (run.id, agent, stage): float(
            sum(c.usage.completion_tokens for c in run.calls if (c.agent, c.stage) == (agent, stage))
        )
        for run in runs
        for agent in agents
        for stage in ("answer", "assess")
    }
    known = {(run.id, agent): numbers(run, agent) for run in runs for agent in agents}
    votes = {run.id: voted(run, agents) for run in runs}
    for order in range(ORDERS):
        rng = np.random.default_rng(order)
        profiles = Profiles()
        for turn, place in enumerate(rng.permutation(n)):
            run = runs[place]
            dimension = read_classification(run) or UNKNOWN

            signals = {
                agent: Signals(
                    confidence=known[run.id, agent], profile=Signal(profiles.rate_of(agent, dimension), "profile")
                )
                for agent in agents
            }
            first = agents[turn % len(agents)]
            made = rules.decide(State("d", "assess", signals[first], agent=first), [EXECUTE, ASK])
            action = made.action
            if always is not None:
                action = always or (EXECUTE if rng.random() < rate else ASK)
            limits[first].append(made.scores[ASK])
            says[place] += (action == EXECUTE) / ORDERS
            asked, winners = [first], [first]
            if action == ASK:
                asked = list(agents)
                peers = {agent: signals[agent] for agent in agents if agent != first}
                chosen = rules.decide(State("d", "assign", signals[first], first, peers), [*peers, COLLABORATE])
                winners = list(agents) if chosen.action == COLLABORATE else [chosen.action]
                if chosen.action == COLLABORATE:
                    scores = {**chosen.scores, first: made.scores[EXECUTE]}
                    correct[place] += votes[run.id](scores) / ORDERS
            if len(winners) == 1:
                correct[place] += right[run.id, winners[0]] / ORDERS
            is_stated = any((s := known[run.id, a]) is not None and s.source == "stated" for a in agents)
            answered = winners if is_stated else sorted({*asked, *winners})
            spent = sum(cost[run.id, a, "answer"] for a in answered)
            tokens[place] += (spent + is_stated * sum(cost[run.id, a, "assess"] for a in asked)) / ORDERS
            for agent in winners:
                profiles.learn(Experience(agent, dimension, right[run.id, agent]))
    shown = f"{min(map(min, limits.values())):.2g} to {max(map(max, limits.values())):.2g}" if always is None else "-"
    return Row(name, correct.tolist(), tokens.tolist(), says.tolist(), shown)


def voted(run: Run, agents: Sequence[str]) -> Callable[[dict[str, float]], float]:
    """Whether the vote of all agents is right, by their weights."""
    calls = {call.agent: call for call in run.calls if call.stage == "answer"}
    answers = {agent: extract(run.item, calls[agent], run.variant) for agent in agents}
    right = {agent: read_correctness(run, agent) or 0.0 for agent in agents}

    def outcome(scores: dict[str, float]) -> float:
        return right[most_voted(run.item, {a: (answers[a], max(scores.get(a, 0.0), 0.0)) for a in agents})]

    return outcome
