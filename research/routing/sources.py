"""A router in MetaCogAgent's pipeline by what it learned from, and what it is given; measures, and writes a section.

    python -m research.routing.sources measure
    python -m research.routing.sources page

700 items of MetaCog-Eval, three local models, everything recorded. Five folds by group: the router and the predictor
(LightGBM on the log-probabilities of an answer, one for all agents) learn on four, and are judged on the fifth. What
the router learns from of the predictor is cross-fitted within the four. One core, some ten minutes.
"""

import json
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.checkpoints import Checkpoint
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.routing_controls import against
from metaprobe.probes.source import combine_probabilities
from metaprobe.routing.learned import LearnedRouter
from metaprobe.routing.learned_policy import AgentPolicy
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.profiles import Profiles
from metaprobe.training.common.calibrate import choose_calibrator
from metaprobe.training.common.roles import group_folds, roles_without
from metaprobe.training.crossfit.evidence import load_evidence
from metaprobe.training.crossfit.folds import crossfit
from metaprobe.training.crossfit.methods import TREES, USUAL_TREES, Evidence
from metaprobe.training.router.confidence_sources import Confidences, CrossFitted
from metaprobe.training.router.outcomes_of_runs import assessment_part, outcomes_of
from metaprobe.training.router.train import write_router
from research.blocks import markdown, write
from research.routing.agents_play import PRICES, Floats, Ints, Played, Reads, Table, call_of, play
from research.routing.agents_ways import BEST, NO_PRICE, Methods, at_lambda, simple
from research.routing.data import metacog_runs
from research.routing.standing import packed, points

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "research" / "routing.md"
FIGURES = ROOT / "docs" / "measured" / "routing_sources.json"
STORE = ROOT / "recorded" / "metacog-every-agent"
FOLDS, INNER, STATES = 5, 3, 8000
DIGEST = "predictor"
STATED, READ, BOTH = "stated", "predictor", "both joined"
SOURCES = {STATED: "stated", READ: DIGEST, BOTH: f"stated+{DIGEST}"}
READS: dict[str, Reads] = {STATED: "stated", READ: "answer", BOTH: "both"}
IGNORED = "taken as if it were the right one"
PAIRS = ((STATED, STATED), (READ, READ), (BOTH, BOTH), (STATED, READ), (READ, STATED))
"""What the router learned from, and what it is given."""
SHUFFLED = f"router on {READ}, given {READ}, shuffled within agent"
CONSTANT, BY_DIMENSION = "paper's rule, constant per agent", "paper's rule, constant per agent and dimension"
TABLE = "best agent of the dimension"
PRIOR = 10.0
CONTROLS = (BEST, TABLE, CONSTANT, BY_DIMENSION, "weighted vote", SHUFFLED)


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
def measure_command() -> None:
    """All of it; one thread."""
    warnings.simplefilter("ignore", UserWarning)  # a wrong source is said loudly, and here it is given on purpose
    table = Table.of(metacog_runs())
    evidence = load_evidence([STORE], stage="answer", hidden=False)
    n = len(table.runs)
    mostly = (table.right.mean(axis=1) > 0.5).astype(np.int64)
    found: dict[str, list[Played | None]] = {}
    predicted = np.full(table.right.shape, np.nan)
    for seed, (train, test) in enumerate(group_folds(np.arange(n), table.groups.tolist(), mostly, FOLDS, 0)):
        train, test = np.sort(train), np.sort(test)
        methods, predicted[test] = one_fold(table, evidence, train, test, seed)
        for name, games in methods.items():
            whole = found.setdefault(name, [None] * n)
            for row, game in zip(test.tolist(), games, strict=True):
                whole[row] = game
        click.echo(f"fold {seed}", err=True)
    played: Methods = {name: [game for game in games if game is not None] for name, games in found.items()}
    weights = cluster_weights(table.groups.tolist())
    right = {name: np.array([game.right for game in games], dtype=float) for name, games in played.items()}
    controls = {name: right[name] for name in CONTROLS}
    figures = {
        "items": n,
        "groups": len(set(table.groups.tolist())),
        "agents": list(table.agents),
        "auroc": {
            STATED: [ranking(table, table.stated, c, weights) for c in range(len(table.agents))],
            READ: [ranking(table, predicted, c, weights) for c in range(len(table.agents))],
        },
        "methods": {name: figures_of(games, right, controls, name, weights) for name, games in played.items()},
    }
    FIGURES.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def ranking(table: Table, confidence: Floats, column: int, weights: Any) -> list[float]:
    """AUROC of one agent's confidence for its own answers."""
    known = np.isfinite(confidence[:, column])
    return packed(interval(auroc, table.right[known, column], confidence[known, column], weights[:, known]))


def figures_of(
    games: Sequence[Played], right: Mapping[str, Floats], controls: Mapping[str, Floats], name: str, weights: Any
) -> dict[str, Any]:
    """Accuracy, what was paid, and how the way stands to every control but itself."""
    columns = {field: np.array([getattr(game, field) for game in games], dtype=float) for field in Played.__slots__}
    others = {other: scores for other, scores in controls.items() if other != name}
    strongest, stands = next(iter(against(right[name], others, weights).items()))
    return {
        "accuracy": packed(mean_interval(right[name], weights)),
        "over_best": packed(mean_interval(right[name] - right[BEST], weights)),
        "usd_per_1000": packed(mean_interval(1000 * columns["usd"], weights)),
        "fell_back": int(columns["fell_back"].sum()),
        "asked": float(columns["asked"].mean()),
        "strongest": strongest,
        "over_strongest": packed(stands.difference),
        "p_holm": stands.p_holm,
        "word": stands.word,
    }


def one_fold(table: Table, evidence: Evidence, train: Ints, test: Ints, seed: int) -> tuple[Methods, Floats]:
    """Every way on the items of one fold; and what the predictor says of their answers, (test, A)."""
    scores, new = predictions(table, evidence, train, test, seed)
    both = np.vectorize(combine_probabilities)(np.where(np.isfinite(table.stated), table.stated, new), new)
    given = {STATED: table.stated, READ: new, BOTH: both}
    runs = [table.runs[row] for row in train]
    found: Methods = {}
    for learned in (STATED, READ, BOTH):
        told = None if learned == STATED else Confidences(fitted={"": CrossFitted(scores, DIGEST, learned == BOTH)})
        questions = outcomes_of(runs, prices=PRICES, confidences=told)
        part = assessment_part(runs, prices=PRICES, confidences=told)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = write_router(Path(folder) / "c", questions, folds=2, seed=seed, states=STATES)
            found |= played_by(table, checkpoint, learned, given, part, test)
    policy = PaperRules()
    constants = constant(table, train)
    ruled: dict[str, tuple[Floats, Reads]] = {
        "paper's rule, stated": (table.stated, "stated"),
        "paper's rule, predictor": (new, "answer"),
        CONSTANT: (np.tile(constants[""], (len(table.runs), 1)), "free"),
        BY_DIMENSION: (np.array([constants[name] for name in table.dimensions]), "free"),
    }
    for name, (confidence, reads) in ruled.items():
        profiles = Profiles()
        play(table, policy, train, profiles, reads=reads, confidence=confidence)
        found[name] = play(table, policy, test, profiles, reads=reads, confidence=confidence)
    found[TABLE] = [table.alone(row, int(constants[table.dimensions[row]].argmax())) for row in test.tolist()]
    kept = simple(table, train, test, seed)
    return found | {name: kept[name] for name in (BEST, "weighted vote", "oracle")}, new[test]


def played_by(
    table: Table,
    checkpoint: Checkpoint,
    learned: str,
    given: Mapping[str, Floats],
    part: float | None,
    test: Ints,
) -> Methods:
    """The router on each number that it may be given, at its own price and with the price ignored."""
    found: Methods = {}
    for source in (b for a, b in PAIRS if a == learned):
        for told, how in (("", "warn"), (f", {IGNORED}", "ignore")):
            if told and source == learned:
                continue
            router = LearnedRouter(checkpoint, on_mismatch=how)  # type: ignore[arg-type]
            policy = AgentPolicy(router, agents=table.agents, assessment=part)
            name = f"router on {learned}, given {source}{told}"
            kept: dict[str, Any] = {"reads": READS[source], "source": SOURCES[source]}
            for label, one in ((name, policy), (f"{name}; price ignored", free(policy))):
                found[label] = play(table, one, test, Profiles(), confidence=given[source], **kept)
    if learned == READ:
        dealt = given[READ].copy()
        for column in range(dealt.shape[1]):
            dealt[test, column] = np.random.default_rng(column).permutation(dealt[test, column])
        policy = free(AgentPolicy(LearnedRouter(checkpoint), agents=table.agents, assessment=part))
        found[SHUFFLED] = play(table, policy, test, Profiles(), reads="answer", confidence=dealt, source=SOURCES[READ])
    return found


def free(policy: AgentPolicy) -> AgentPolicy:
    """The same where a dollar must bring next to nothing."""
    return at_lambda(policy, NO_PRICE * policy.router.lambda_)


def predictions(
    table: Table, evidence: Evidence, train: Ints, test: Ints, seed: int
) -> tuple[dict[str, float], Floats]:
    """Call -> score of the training answers, cross-fitted; and (n, A) scores by a predictor of all training answers."""
    place = {
        call_of(run, "answer", agent).id: (row, column)
        for row, run in enumerate(table.runs)
        for column, agent in enumerate(table.agents)
    }
    at = np.array([place[call] for call in evidence.table.call_ids.tolist()])
    rows = np.flatnonzero(np.isin(at[:, 0], train))
    inner = replace(evidence, table=evidence.table.rows(rows), features=evidence.features[rows])
    held_out = crossfit(inner, [USUAL_TREES], folds=INNER, seed=seed)[TREES].probability
    scores = dict(zip(inner.table.call_ids.tolist(), held_out.tolist(), strict=True))
    answers = evidence.table
    roles = roles_without(np.flatnonzero(np.isin(at[:, 0], test)), answers.groups.tolist(), answers.y, seed=seed)
    raw = USUAL_TREES.fit(evidence, roles, seed=seed).score(np.arange(len(answers)))
    cal = roles.calibration
    logit = choose_calibrator(raw[cal], answers.y[cal], answers.groups[cal], seed=seed).calibrator.logit(raw)
    new = np.full(table.right.shape, np.nan)
    new[at[:, 0], at[:, 1]] = 1 / (1 + np.exp(-logit))
    return scores, new


def constant(table: Table, train: Ints) -> dict[str, Floats]:
    """(A,) share of right answers of each agent by dimension, shrunk to that over all, which has the empty name."""
    overall = table.right[train].mean(axis=0)
    names = np.array(table.dimensions)
    found = {"": overall}
    for name in set(table.dimensions):
        here = table.right[train[names[train] == name]]
        found[name] = (here.sum(axis=0) + PRIOR * overall) / (len(here) + PRIOR)
    return found


@main.command("page")
def page_command() -> None:
    """Write the section of docs/research/routing.md from the numbers."""
    write(PAGE, "routing-sources", [*section(json.loads(FIGURES.read_text())), ""])


def section(found: dict[str, Any]) -> list[str]:
    methods = found["methods"]
    shown = "; ".join(
        f"{agent} {stated[0]:.2f} stated, {read[0]:.2f} read by the predictor"
        for agent, stated, read in zip(found["agents"], found["auroc"][STATED], found["auroc"][READ], strict=True)
    )
    head = ["decided by", "accuracy", "over the best agent, points", "strongest control", "over it, points", "word"]
    head += ["by the papers' rule", "asked the others", "USD per 1,000"]
    rows = []
    for name, one in sorted(methods.items(), key=lambda named: (kind(named[0]), -named[1]["accuracy"][0])):
        a = one["accuracy"]
        rows.append(
            [
                name,
                f"{a[0]:.3f} [{a[1]:.3f}, {a[2]:.3f}]",
                points(one["over_best"]) if name != BEST else "",
                *([one["strongest"], points(one["over_strongest"]), one["word"]] if kind(name) == 0 else [""] * 3),
                str(one["fell_back"]) if name.startswith("router") else "",
                f"{one['asked']:.0%}",
                f"{one['usd_per_1000'][0]:.4f}",
            ]
        )
    return [
        f"{found['items']} items in {found['groups']} groups. AUROC of each agent's confidence for its own answers: "
        f"{shown}.",
        "",
        *markdown(head, rows),
        "",
        *said(methods),
    ]


def kind(name: str) -> int:
    """0 for a router on a real signal, 1 for the rule, 2 for a control."""
    return 2 if name in (*CONTROLS, "oracle") else int(not name.startswith("router"))


def said(methods: dict[str, Any]) -> list[str]:
    """What the numbers come to, in words that follow from them."""
    own = {learned: methods[f"router on {learned}, given {learned}; price ignored"] for learned in (STATED, READ, BOTH)}
    best = max(own, key=lambda name: own[name]["accuracy"][0])
    words = {"ahead": "is ahead of", "tie": "cannot be distinguished from", "behind": "is behind"}
    strongest = methods[own[best]["strongest"]]
    told = [
        f"Most accurate with its own source, the price ignored: the router on {best}, "
        f"{own[best]['accuracy'][0]:.3f}; it {words[own[best]['word']]} the strongest control, "
        f"{own[best]['strongest']} ({points(own[best]['over_strongest'])} points, p after Holm "
        f"{own[best]['p_holm']:.3f}), which costs {strongest['usd_per_1000'][0] / own[best]['usd_per_1000'][0]:.0%} of "
        "it.",
    ]
    for a, b in PAIRS:
        if a != b:
            wrong, taken, right = (methods[f"router on {a}, given {name}"] for name in (b, f"{b}, {IGNORED}", a))
            told.append(
                f"Given {b} where it learned from {a}, a router leaves {wrong['fell_back']} items to the papers' rule: "
                f"{wrong['accuracy'][0]:.3f}, where taking the number as the right one has "
                f"{taken['accuracy'][0]:.3f}, its own source {right['accuracy'][0]:.3f}, and the best agent alone "
                f"{methods[BEST]['accuracy'][0]:.3f}."
            )
    return [" ".join(told)]


if __name__ == "__main__":
    main()
