"""Compares each paper's numbers with the recorded runs, for research/papers/page.py. A function a paper."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metaprobe.eval.metrics.bootstrap import cluster_weights, mean_interval
from metaprobe.eval.systems import metacrit_figures as metacrit
from metaprobe.eval.systems import mgv_figures as mgv
from metaprobe.records.types import Run
from research.papers.controls import (
    CHAIN,
    CONSTANT,
    HALF,
    SAME_PROMPT,
    THRESHOLD,
    constant,
    difference,
    loop_controls,
    loop_of,
    loop_over,
    right,
)
from research.papers.debates import feature_associations, verdicts
from research.papers.figures import (
    HUMAN,
    NOT_COLLECTED,
    PROPRIETARY,
    Control,
    Figure,
    Missing,
    Section,
    claim,
    figure,
    paired,
    section_of,
    weights_of,
)
from research.papers.metacogagent import metacog
from research.systems.figures import ROOT, recorded


def monitor_generate_verify(paper: dict[str, Any]) -> Section:
    """Table 1, stopped at the paper's threshold where all cycles were recorded, and what each loop adds."""
    stores = {
        "monitor-generate-verify": "gsm8k-mgv",
        "self-refine": "gsm8k-self-refine",
        "self-verification": "gsm8k-self-verification",
    }
    runs = {system: recorded(store) for system, store in stores.items()}
    figures: list[Figure] = []
    missing = []
    for system, theirs in paper["systems"].items():
        if not runs[system]:
            missing.append(Missing(f"table 1: {system}", NOT_COLLECTED.format(stores[system])))
            continue
        (report,) = mgv.cycle_reports(runs[system])
        attempts, first = report.attempts, report.stopped_first
        if system == "monitor-generate-verify":
            (stop,) = [stop for stop in report.thresholds if stop.threshold == THRESHOLD]
            done = [(mgv.attempts(run)[0].quality or 0.0) >= THRESHOLD for run in runs[system]]
            attempts, first = stop.attempts, mean_interval(done, weights_of(runs[system]))
        loop = loop_of(runs[system])
        figures += [
            figure("table 1", f"{system}: accuracy", f"{theirs['accuracy']:.1%}", loop.mean(loop.final)),
            figure("control", f"{system}: accuracy of its first answer", "not given", loop.mean(loop.first)),
            figure("control", f"{system}: gain over its own first answer", "not given", loop.gain(), "points"),
            figure("table 1", f"{system}: attempts", str(theirs["attempts"]), attempts, "number"),
        ]
        if "stopped_first" in theirs:
            share = f"about {theirs['stopped_first']:.0%}"
            figures.append(figure("section 4.2", f"{system}: done in the first cycle", share, first))
    if runs["self-refine"] and runs["monitor-generate-verify"]:
        points = 100 * (
            paper["systems"]["monitor-generate-verify"]["accuracy"] - paper["systems"]["self-refine"]["accuracy"]
        )
        figures.append(over_self_refine(points, runs["monitor-generate-verify"], runs["self-refine"]))
    if not recorded(SAME_PROMPT):
        missing.append(Missing("self-refine from the same solve prompt", NOT_COLLECTED.format(SAME_PROMPT)))
    missing.append(
        Missing("table 1: seconds a problem", "Depends on machine and server; ours ran in batches beside other work.")
    )
    found = [run for part in runs.values() for run in part]
    return section_of(paper, found, figures=tuple(figures), missing=tuple(missing))


def over_self_refine(
    points: float, runs: Sequence[Run], others: Sequence[Run], same_prompt: Sequence[Run] | None = None
) -> Figure:
    """The paper's difference `points`, ours paired on the problem, and what it has to survive.

    `same_prompt`: runs of Self-Refine whose first answers come from our solve prompt; by default those recorded.
    """
    begun = recorded(SAME_PROMPT) if same_prompt is None else same_prompt
    ours, theirs = loop_of(runs), loop_of(others)
    against = loop_controls(ours, theirs, loop_of(begun) if begun else None)
    return claim(
        "table 1", "monitor-generate-verify over self-refine", points, loop_over(ours, theirs), controls=against
    )


CREAK = {
    "metacrit": "final",
    "metacrit without-monitor": "synthesis-without-monitor",
    "metacrit without-control": "synthesis-without-control",
}


FAILURE_TYPES = ("consensus collapse", "knowledge gap", "reconciliation failure")


def metacrit_section(paper: dict[str, Any]) -> Section:
    """CREAK's column of table 3; tables 9 and 10 on CREAK in the place of their own data."""
    runs = recorded("creak-metacrit")
    figures = metacrit_tables(runs, paper) if runs else []
    dropped_in = recorded("creak-cot")
    figures += drop_ins(dropped_in, paper)
    can = "The data sets are at hand (docs/own.md) and every system runs on them; no runs are recorded."
    judged = "Not so BOLD and HONEST, which a classifier and a word list of others judge."
    missing = [
        Missing(
            "table 1, and 2 (raw critique): TruthfulQA, CIAR, BOLD, HONEST",
            f"{can} {judged} As printed, with GPT-3.5-Turbo.",
        ),
        Missing("table 1: DeepSeek-v3, Claude-3.5-Sonnet, GPT-4o; table 7", PROPRIETARY.format("the models named")),
        Missing("table 3: MMLU, BBQ, CrowS-Pairs, and multi-expert on CREAK", f"{can} Not so CrowS-Pairs."),
        Missing("table 4: drop-ins on TruthfulQA, CIAR, BOLD, HONEST", f"{can} {judged}"),
        Missing("table 8: calls, tokens, latency, cost", "Ours hold every ablation of a run, and have no price."),
        Missing("tables 9 and 10: TruthfulQA and CIAR", can),
        Missing(
            "figure 4: similarity from stage to stage",
            "Curves without numbers, by a paid API's embeddings.",
        ),
        Missing("the study of students' writing", HUMAN),
    ]
    if not dropped_in:
        what = "tables 2 and 4 on CREAK: raw critique, and the agents as drop-ins, on a chain of thought"
        missing.append(Missing(what, NOT_COLLECTED.format("creak-cot")))
    if not runs:
        missing.append(Missing("table 3: CREAK", NOT_COLLECTED.format("creak-metacrit")))
    return section_of(paper, runs, figures=tuple(figures), missing=tuple(missing))


def metacrit_tables(runs: Sequence[Run], paper: dict[str, Any]) -> list[Figure]:
    stages = {row.stage: row for row in metacrit.stage_accuracy(runs)}
    figures = [
        figure("table 3, CREAK", f"{name}: accuracy", f"{paper['table 3'][name][0]}%", stages[stage].accuracy)
        for name, stage in CREAK.items()
    ]
    figures += over_ablations(runs, [run for run in recorded("creak-cot") if run.variant == "plain"], paper)
    for row in metacrit.agreement(runs):
        if row.pattern in paper["table 9"]:
            n, right = paper["table 9"][row.pattern][:2]
            what, theirs = f"flagged by {row.pattern}: right in the end", f"{right}% of {n} (TruthfulQA)"
            figures.append(figure("table 9, on CREAK", what, theirs, row.accuracy))
    failures = metacrit.failure_types(runs)
    weights = cluster_weights(range(failures.wrong))
    wrong = sum(paper["table 10"][kind][0] for kind in FAILURE_TYPES)
    for kind in FAILURE_TYPES:
        flags = np.repeat([1.0, 0.0], [failures.counts[kind], failures.wrong - failures.counts[kind]])
        what, theirs = (
            f"{kind}, of the wrong (each answer a group)",
            f"{paper['table 10'][kind][0]} of {wrong} (TruthfulQA)",
        )
        figures.append(figure("table 10, on CREAK", what, theirs, mean_interval(flags, weights)))
    return figures


def over_ablations(runs: Sequence[Run], chains: Sequence[Run], paper: dict[str, Any]) -> list[Figure]:
    """The full system over each ablation in the same run, and what both have to beat. `chains`: a plain answer each."""
    full, ours = "metacrit", right(runs)
    constants = constant(runs)
    figures = [
        figure("control", f"CREAK, {CONSTANT}: accuracy", "not given", difference(runs, constants, 0 * constants))
    ]
    for how, half in (("", False), (f", {HALF}", True)):
        gain = difference(runs, right(runs, half=half), right(runs, "answer", half=half))
        figures.append(figure("control", f"CREAK, gain over its own first answer{how}", "not given", gain, "points"))
    against = {CONSTANT: difference(runs, ours, constants)}
    if chains:
        alone = right(chains)
        figures.append(figure("control", f"CREAK, {CHAIN}: accuracy", "not given", difference(runs, alone, 0 * alone)))
        against[CHAIN] = difference(runs, ours, alone)
    for name, stage in CREAK.items():
        if name != full:
            points = paper["table 3"][full][0] - paper["table 3"][name][0]
            readable = difference(runs, right(runs, half=True), right(runs, stage, half=True))
            gain = difference(runs, ours, right(runs, stage))
            what = f"the full system over {name}"
            figures.append(claim("table 3, CREAK", what, points, gain, controls={HALF: readable, **against}))
    return figures


def drop_ins(runs: Sequence[Run], paper: dict[str, Any]) -> list[Figure]:
    """Returns the points that a raw critique, a monitor and a control agent add to a chain of thought; theirs on
    TruthfulQA."""
    plain = [run for run in runs if run.variant == "plain"]
    alone = paper["table 1"]["zero-shot-cot"][0]
    reached = {
        "raw-critique": ("table 2, on CREAK", paper["table 2"]["zero-shot-cot"][0]),
        "monitor": ("table 4, on CREAK", paper["table 4"]["zero-shot-cot monitor (1+1)"][0]),
        "control": ("table 4, on CREAK", paper["table 4"]["zero-shot-cot control (1+1)"][0]),
    }
    figures = []
    for variant, (where, theirs) in reached.items():
        with_it = [run for run in runs if run.variant == variant]
        if plain and with_it:
            gain = paired(with_it, plain)
            against = {HALF: difference(plain, right(with_it, half=True), right(plain, half=True))}
            what = f"zero-shot-cot with {variant} over without (TruthfulQA)"
            figures.append(claim(where, what, theirs - alone, gain, controls=against))
    return figures


DEBATES = {"zero-shot": "asap-debate", "scaffold": "asap-debate-scaffold"}
"""How the debaters were asked, as the paper does or with an opening imposed on them, -> the store."""


def early_tokens(paper: dict[str, Any]) -> Section:
    """Its claim on every labelled set; its tables where the debate is recorded."""
    sets = json.loads((ROOT / "docs" / "measured" / "quality.json").read_text(encoding="utf-8"))["sets"]
    what = "best feature of 3, 5 or 10 tokens over that of the whole answer, AUROC"
    figures = [
        Figure(
            "abstract",
            f"{what}: {name}",
            "above 0",
            tuple(row["early"]["early_over_full"]),
            row["n"],
            "difference",
            1,
            # Is anything lost by looking early?
            controls=(Control("all features of the whole answer (LightGBM)", tuple(row["early"]["early_over_trees"])),),
        )
        for name, row in sets.items()
        if "early_over_full" in row.get("early", {})
    ]
    stores = {asked: recorded(store) for asked, store in DEBATES.items()}
    runs = [run for found in stores.values() for run in found]
    for asked, found in stores.items():
        figures += [dataclasses.replace(one, what=f"{asked}: {one.what}") for one in debate_tables(found, paper)]
    missing = [
        Missing("all of it with GPT-4o-mini and GPT-5-mini", PROPRIETARY.format("them")),
        Missing("figures 2 and 3: trajectories", "Shown as curves without numbers; the report draws ours."),
        Missing("table 2: its protocol", "No number, but the scale that the judge uses: the same here."),
    ]
    if not runs:
        missing.insert(0, Missing("section 4.4; tables 1, 3 and 4", NOT_COLLECTED.format("asap-debate")))
    models = f"those of {len(sets)} labelled sets"
    nothing = "The debate is not recorded here; its claim is put to the test on the sets of [quality](quality.md)."
    return section_of(paper, runs, nothing=nothing, models=models, figures=tuple(figures), missing=tuple(missing))


def debate_tables(runs: Sequence[Run], paper: dict[str, Any]) -> list[Figure]:
    """Section 4.4, and the first feature of each target in tables 3 and 4."""
    figures = []
    highest, passing = paper["section 4.4"]["highest score"], paper["section 4.4"]["pass rate, instruction"]
    for row in verdicts(runs):
        who = f"{row.essay_set}, {row.role}, {row.judge}"
        for name, value in row.top.items():
            figures.append(figure("section 4.4", f"{who}: highest score in {name}", f"{highest[name]}% (all)", value))
        what, theirs = f"{who}: passes in instruction (here: 2 or 3)", f"{passing[row.role]}% (both sets)"
        figures.append(figure("section 4.4", what, theirs, row.passed["instruction"]))
    best = {(f"set {s}", role, target): rest for s, role, target, *rest in reversed(paper["tables 3 and 4"]["rows"])}
    for association in feature_associations(runs):
        key = (association.essay_set, association.role, association.target)
        if key in best and association.score:
            name, spearman, _, auroc, _ = best[key]
            who = ", ".join((*key, association.judge))
            here = f"{association.feature}, {association.held_out:.3f} held out"
            what = f"{who}: the best feature (here {here})"
            theirs = f"{name} {spearman if spearman is not None else auroc}"
            figures.append(figure("tables 1, 3 and 4", what, theirs, association.score, "number"))
    return figures


def contestable(paper: dict[str, Any]) -> Section:
    """Nothing of its tables can be measured by a program."""
    runs = recorded("essays-caelf")
    missing = [
        Missing("table 8: readability, factuality, self-regulation, future improvement", HUMAN),
        Missing(
            "accuracy under contest",
            "Stands in the main text, which was not at hand; ours: [systems](systems.md#caelf).",
        ),
    ]
    if not runs:
        missing.append(Missing("our own accuracy before and after a contest", NOT_COLLECTED.format("essays-caelf")))
    return section_of(paper, runs, missing=tuple(missing))


PAPERS: dict[str, Callable[[dict[str, Any]], Section]] = {
    "monitor_generate_verify": monitor_generate_verify,
    "metacogagent": metacog,
    "metacrit": metacrit_section,
    "early_token_confidence": early_tokens,
    "caelf": contestable,
}
"""File of docs/paper_numbers/ -> what is measured of it."""
