"""The sections on essays, debate and CAELF, with what only whole stores can show: for research/systems/page.py."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from research.blocks import markdown
from research.papers.feature_associations import feature_associations
from research.systems import contests, debates
from research.systems.figures import ROOT, Lines, about, number, recorded, share

SCORES = ROOT / "docs" / "measured" / "debate_scores.json"
CONTESTED = ROOT / "docs" / "measured" / "contested.json"


def measure_whole(store: Path) -> None:
    """Measures runs that still have both: answers, and people's grades to compare them with."""
    runs = [run for run in RunStore(store).runs(hidden=False) if run.item.gold]
    if not runs:
        raise click.ClickException(f"{store} holds no runs with grades by people beside them")
    if runs[0].system == "caelf":
        kept = {row[0]: row for row in (json.loads(CONTESTED.read_text()) if CONTESTED.exists() else [])}
        path, rows = CONTESTED, list((kept | {row[0]: row for row in contested(runs)}).values())
    else:
        kept = json.loads(SCORES.read_text()) if SCORES.exists() else {}
        found: dict[str, list[list[str]]] = {}
        for row in debates.score_agreement(runs):
            cells = [row.essay_set, row.model, number(row.kappa), share(row.exact), str(row.missing)]
            found.setdefault(asked_by(row.variant), []).append(cells)
        path, rows = SCORES, kept | found
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def asked_by(variant: str) -> str:
    """How the debaters of a variant are asked."""
    return "scaffold" if variant == "scaffold" else "zero-shot"


def debate(runs: Sequence[Run], paper: dict[str, Any]) -> Lines:
    """The tables of each way of asking, never of both together."""
    ways: dict[str, list[Run]] = {}
    for run in runs:
        ways.setdefault(asked_by(run.variant), []).append(run)
    lines: Lines = []
    for way, found in ways.items():
        lines += [f"### The debates, {way}", "", *about(found), "", *debate_of(found, way, paper), ""]
    return lines[:-1]


def debate_of(runs: Sequence[Run], way: str, paper: dict[str, Any]) -> Lines:
    """Scores, judges, and the best feature by set, role and target; without a judge, what there is."""
    scores = (json.loads(SCORES.read_text()) if SCORES.exists() else {}).get(way, [])
    verdicts = [
        [
            row.essay_set,
            row.role,
            str(row.asked),
            str(row.retried),
            str(row.missing),
            number(row.q, "{:.2f}"),
            share(row.critical),
            ", ".join(f"{name} {top.estimate:.0%}" for name, top in row.top.items()),
        ]
        for row in debates.verdicts(runs)
    ]
    checks = [
        [row.essay_set, row.role, ", ".join(f"{name} {rate.estimate:.0%}" for name, rate in row.rates.items())]
        for row in debates.checks(runs)
    ]
    judges = [
        [row.essay_set, row.role, number(row.critical), number(row.evidence), str(sum(row.flags.values()))]
        for row in debates.judge_agreement(runs)
    ]
    theirs = {
        (f"set {line[0]}", line[1], line[2]): f"{line[3]} {line[4] if line[4] is not None else line[6]}"
        for line in reversed(paper["tables 3 and 4"]["rows"])
    }
    features = [
        [
            row.essay_set,
            row.role,
            row.judge,
            row.target,
            str(row.n),
            f"{row.best[0].feature} {number(row.best[0].score)}" if row.best else "-",
            f"{row.held_out:.3f}",
            theirs.get((row.essay_set, row.role, row.target), "-"),
        ]
        for row in feature_associations(runs)
    ]
    judged = [
        "The meta-evaluator (Q from 0 to 9; the paper: highest score in 76.5 %, 79.3 % and 93.1 % of the responses):",
        "",
        *markdown(["set", "role", "asked", "retried", "missing", "Q", "critical", "highest score"], verdicts),
        "",
        "How far the two judges agree (kappa):",
        "",
        *markdown(["set", "role", "critical", "evidence", "n"], judges),
        "",
    ]
    return [
        "Final score against the human one (the paper does not report it):",
        "",
        *markdown(["set", "synthesizer", "quadratic weighted kappa", "equal", "no score"], scores),
        "",
        *(judged if verdicts else []),
        "What a program finds in the arguments (share of them):",
        "",
        *markdown(["set", "role", "found"], checks),
        "",
        "The log-probability feature that goes best with each target: rho, for the critical flag AUROC. It is chosen",
        "on the data it is shown on, as in the paper; held out is what it reaches on essays that it was not chosen on.",
        "",
        *markdown(["set", "role", "judge", "target", "n", "best here", "held out", "best in the paper"], features),
    ]


def contest(runs: Sequence[Run], paper: dict[str, Any]) -> Lines:
    """Right grades kept and wrong grades corrected; what the solver had to work with."""
    head = ["variant", "n", "right before", "right after", "right ones kept", "wrong ones corrected", "moved"]
    rows = json.loads(CONTESTED.read_text()) if CONTESTED.exists() else []
    solved = [
        [
            row.variant,
            str(row.n),
            *(f"{part.attacks:.1f} among {part.arguments:.0f}" for part in row.framework),
            f"{row.framework[0].extensions:.1f}",
            f"{row.framework[1].extensions:.1f}",
            share(row.contest_stands),
        ]
        for row in contests.summarise_contests(runs)
        if row.framework
    ]
    frame = ["variant", "n", "attacks at first", "after the contest", "extensions at first", "after", "contest stands"]
    return [
        *markdown(head, rows),
        "",
        "What the solver was given and found (means over items):",
        "",
        *markdown(frame, solved),
        "",
        *rated(recorded("essays-caelf-rated")),
    ]


def rated(runs: Sequence[Run]) -> Lines:
    """The judge's ratings of the feedback, beside the paper's by people."""
    rows = [
        [row.variant, row.judge, row.criterion, number(row.mean, "{:.2f}"), share(row.highest), number(row.agreement)]
        for row in contests.feedback_ratings(runs)
    ]
    if not rows:
        return []
    head = ["variant", "judge", "criterion", "mean, 1 to 5", "highest grade", "agreement with itself (kappa)"]
    return [
        "How a judge rates the first feedback. The paper's table 8 is by people; these are a model's grades, given "
        "twice, the second time with the criteria in reverse order:",
        "",
        *markdown(head, rows),
        "",
    ]


def contested(runs: Sequence[Run]) -> list[list[str]]:
    """A row a variant."""
    return [
        [
            row.variant,
            str(row.n),
            share(row.accuracy_before),
            share(row.accuracy_after),
            share(row.right_kept),
            share(row.wrong_corrected),
            share(row.moved),
        ]
        for row in contests.summarise_contests(runs)
    ]
