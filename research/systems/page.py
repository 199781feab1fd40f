"""Writes the measured numbers into docs/research/systems.md, paper beside ours, from the stores in recorded/; and the
tables of docs/tables/systems.md.

python -m research.systems.page [SECTION ...]
python -m research.systems.page --whole out/recorded/asap-debate essay-debate
python -m research.systems.page --whole out/recorded/essays-caelf caelf

Recorded runs on essays hold no texts and no grades by people, which are not ours to give on: what compares with these
is measured on the store as it was collected (`--whole`), and kept in docs/measured/. So are MetaCogAgent's numbers,
whose replays take minutes (systems_metacog.py).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from metaprobe.eval.systems import metacrit, mgv
from metaprobe.eval.systems.metacrit import SystemCost
from metaprobe.pipelines import SYSTEMS
from metaprobe.records.types import Run
from research.blocks import markdown, write
from research.systems.creak_controls import CHAIN as ONE_CHAIN
from research.systems.creak_controls import CONSTANT, HALF, constant, difference, right, unreadable
from research.systems.essays import contest, debate, measure_whole
from research.systems.figures import PAGE, ROOT, Lines, about, number, paper_of, points, recorded, share
from research.systems.loop_controls import SAME_PROMPT, loop_of, most_given, over_in_first, over_in_gain, surest
from research.systems.loop_controls import over as loop_over
from research.systems.metacog_section import metacog

REFERENCE = ROOT / "docs" / "systems.md"
MGV, REFINE, VERIFY, CHAIN = "monitor-generate-verify", "self-refine", "self-verification", "zero-shot-cot"


@click.command()
@click.argument("names", nargs=-1)
@click.option("--whole", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(names: tuple[str, ...], whole: Path | None) -> None:
    """Rewrite the table of systems, and each section, or those named."""
    if whole is not None:
        measure_whole(whole)
    write(REFERENCE, "systems", [*table_of_systems(), ""])
    write(REFERENCE, "options", [*table_of_options(), ""])
    for name, (stores, section) in SECTIONS.items():
        if names and name not in names:
            continue
        found = {store: recorded(store) for store in stores}
        runs = [run for of in found.values() for run in of]
        missing = [store for store, of in found.items() if not of]
        lines = (
            [f"Not recorded yet: {', '.join(missing)} (`python -m research.stores.collect`).", ""] if missing else []
        )
        if runs:
            lines = [*about(runs), "", *lines, *section(runs, paper_of(name)), ""]
        write(PAGE, name, lines)


def table_of_systems() -> Lines:
    """Variants, stages, agents and replaceable numbers, as the code has them."""
    rows = []
    for system in SYSTEMS.values():
        agents = ", ".join(f"`{name}`" for name in (*system.agents, *system.roles)) or "-"
        rows.append(
            [
                f"`{system.name}`",
                ", ".join(f"`{variant}`" for variant in system.variants),
                ", ".join(f"`{stage}`" for stage in system.stages),
                f"{agents} (or your own)" if system.agents else agents,
                ", ".join(f"`{name}`" for name in system.signals) or "-",
                ", ".join(f"`{name}`" for name in system.fields) or "-",
            ]
        )
    head = [
        "system",
        "variants (the first is the default; of `self-report` and `caelf` two are)",
        "stages",
        "agents",
        "`--signal`",
        "fields an item needs",
    ]
    return markdown(head, rows)


def table_of_options() -> Lines:
    """Limits and constants, as the code has them."""
    rows = [
        [
            f"`{system.name}`",
            ", ".join(f"`{stage}` {limit}" for stage, limit in system.limits.items()) or "-",
            "; ".join(f"`{one.name}` {one.default:g}: {one.meaning}" for one in system.constants) or "-",
        ]
        for system in SYSTEMS.values()
    ]
    return markdown(
        ["system", "`--tokens STAGE=N`: most tokens by default", "`--constant NAME=VALUE`: constants"], rows
    )


def monitor_generate_verify(runs: Sequence[Run], paper: dict[str, Any]) -> Lines:
    """Table 1, and what it leaves out."""
    rows = []
    reports = {report.system: report for report in mgv.cycle_reports(runs)}
    for system, report in reports.items():
        theirs = paper["systems"].get(system, {})
        shown = f"{theirs['accuracy']:.1%}, {theirs['attempts']} attempts" if theirs else "-"
        rows.append([system, shown, share(report.accuracy), number(report.attempts), number(report.tokens, "{:.0f}")])
    own = reports["monitor-generate-verify"]
    (stopped,) = [stop for stop in own.thresholds if stop.threshold == 0.85]
    theirs = paper["systems"]["monitor-generate-verify"]
    rows[list(reports).index("monitor-generate-verify")] = [
        "monitor-generate-verify, stopped at 0.85 (from all cycles)",
        f"{theirs['accuracy']:.1%}, {theirs['attempts']} attempts",
        *(share(stopped.accuracy), number(stopped.attempts), number(stopped.tokens, "{:.0f}")),
    ]
    cycles = [[str(number_ + 1), share(accuracy)] for number_, accuracy in enumerate(own.by_cycle)]
    stops = [
        [f"{stop.threshold}", share(stop.accuracy), number(stop.attempts), number(stop.tokens, "{:.0f}")]
        for stop in own.thresholds
    ]
    loops, loop_lines = loop_table(runs)
    told = [
        f"Evaluation given in {own.quality_given:.0%} of the answers, difficulty in {own.difficulty_given:.0%} of the "
        f"first. AUROC against correctness: evaluation {number(own.quality_auroc)}, stated ease "
        f"{number(own.difficulty_auroc)}. "
        f"Returning the best-evaluated answer against the first: {points(own.selection.over_first)}; against the last: "
        f"{points(own.selection.over_last)}; an oracle over the cycles: {share(own.selection.oracle)}."
    ]
    return [
        *markdown(
            ["system", "paper (Llama-3.1-8B, GSM8K test)", "accuracy here", "attempts", "tokens a problem"], rows
        ),
        "",
        "What each loop adds to the answer that it began with, paired on the problem. The systems ask for that first "
        "answer with different prompts, so their final answers differ for that reason already:",
        "",
        *loops,
        "",
        *loop_lines,
        "",
        *told,
        "",
        *markdown(["cycle", "accuracy of its answer"], cycles),
        "",
        "What stopping at a mean evaluation of at least t would have given (all cycles were run):",
        "",
        *markdown(["t", "accuracy", "attempts", "tokens"], stops),
    ]


def loop_table(runs: Sequence[Run]) -> tuple[Lines, Lines]:
    """A row for each system, and in words what is left of the difference between the two loops."""
    by_system = {system: [run for run in runs if run.system == system] for system in (MGV, REFINE, VERIFY, CHAIN)}
    same = recorded(SAME_PROMPT)
    loops = {system: loop_of(found) for system, found in by_system.items() if found}
    loops |= {f"{REFINE}, from the solve prompt of {MGV}": loop_of(same)} if same else {}
    chain = loops.get(CHAIN)
    rows = [
        [
            system,
            share(loop.mean(loop.first)),
            f"{cut_first(by_system.get(system, same)):.0%}",
            share(loop.mean(loop.final)),
            points(loop.gain()),
            "-" if chain is None or system == CHAIN else points(loop_over(loop, chain)),
        ]
        for system, loop in loops.items()
    ]
    lines = []
    if VERIFY in loops:
        loop, most, sure = loops[VERIFY], most_given(by_system[VERIFY]), surest(by_system[VERIFY])
        lines.append(
            f"Self-Verification against the answer that most of its candidates give, which needs no verification: "
            f"{points(loop.mean(loop.final - most))} points. Against the candidate of highest mean log-probability, "
            f"which needs none either and is right in {share(loop.mean(sure))}: "
            f"{points(loop.mean(loop.final - sure))} points. What the verification is "
            "held against should be the stronger of the two."
        )
    if MGV in loops and REFINE in loops:
        ours, theirs = loops[MGV], loops[REFINE]
        lines.append(
            f"Monitor-Generate-Verify over Self-Refine: {points(loop_over(ours, theirs))} points in the final answers, "
            f"{points(over_in_first(ours, theirs))} in the first ones, before any loop, and "
            f"{points(over_in_gain(ours, theirs))} in what the loops add."
        )
    lines.append(
        f"From the same solve prompt, on {len(same)} of the problems: {points(loop_over(loops[MGV], loop_of(same)))} "
        "points."
        if same
        else "Self-Refine from the same solve prompt is not collected yet: "
        f"`python -m research.stores.collect {SAME_PROMPT}`."
    )
    return markdown(
        [
            "system",
            "right at first",
            "first answers cut by max_tokens",
            "right in the end",
            "gain of the loop",
            "over zero-shot-cot",
        ],
        rows,
    ), [" ".join(lines)]


def cut_first(runs: Sequence[Run]) -> float:
    """Share of first answers that max_tokens cut."""
    first = [next(call for call in run.calls if call.stage == "answer" and call.round == 0) for run in runs]
    return sum(call.finish_reason == "length" for call in first) / len(first)


def metacrit_section(runs: Sequence[Run], paper: dict[str, Any]) -> Lines:
    """Accuracy after every stage, who flags, how it fails, what it costs."""
    by_variant: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_variant.setdefault((run.system, run.variant), []).append(run)
    stages = []
    for row in metacrit.stage_accuracy(runs):
        of = by_variant[row.system, row.variant]
        halved = difference(of, right(of, row.stage, half=True), right(of, half=True, stage="answer"))
        gains = ["-", "-"] if row.stage == "answer" else [points(row.gain), points(halved)]
        cells = [row.system, row.variant, row.stage, share(row.accuracy), f"{unreadable(of, row.stage):.0%}"]
        stages.append([*cells, *gains])
    own = [run for run in runs if run.system == "metacrit"]
    says_one = constant(own)
    chains = by_variant.get((CHAIN, "plain"), [])
    chained = f", over {ONE_CHAIN} {points(difference(own, right(own), right(chains)))} points" if chains else ""
    first = "gain over the first stage"
    flags = [
        [
            row.pattern,
            str(row.n),
            share(row.first_accuracy),
            share(row.accuracy),
            share(row.repaired),
            share(row.broken),
        ]
        for row in metacrit.agreement(own)
    ]
    failures = metacrit.failure_types(own)
    kinds = [[kind, str(count), f"{failures.share(kind):.0%}"] for kind, count in failures.counts.items()]
    table3 = paper["table 3"]
    theirs = ", ".join(f"{name} {values[0]}" for name, values in table3.items() if name != "what")
    return [
        f"The paper's CREAK column (table 3, no model named), in percent: {theirs}.",
        "",
        *markdown(["system", "variant", "stage", "accuracy", "unreadable", first, f"{first}, {HALF}"], stages),
        "",
        f"Controls: {CONSTANT}: {share(difference(own, says_one, 0 * says_one))}; the full system over it "
        f"{points(difference(own, right(own), says_one))} points{chained}.",
        "",
        "Who flags a concern (the paper's table 9 is on TruthfulQA and CIAR):",
        "",
        *markdown(["flagged by", "n", "right before", "right after", "repaired", "broken"], flags),
        "",
        *markdown(["failure type", "n", "share of the wrong"], kinds),
        "",
        *costs(metacrit.cost_table(runs)),
    ]


def costs(rows: Sequence[SystemCost]) -> Lines:
    """Calls, tokens and time of a question."""
    shown = [
        [
            row.system,
            row.variant,
            f"{row.calls:.1f}",
            f"{row.tokens or 0:.0f}",
            f"{row.latency_s or 0:.1f}",
            share(row.accuracy),
        ]
        for row in rows
    ]
    return markdown(["system", "variant", "calls", "tokens in and out", "latency, s (batched)", "accuracy"], shown)


SECTIONS = {
    "monitor-generate-verify": (
        ("gsm8k-mgv", "gsm8k-self-refine", "gsm8k-self-verification", "gsm8k-cot"),
        monitor_generate_verify,
    ),
    "metacogagent": (("metacog-every-agent",), metacog),
    "metacrit": (("creak-metacrit", "creak-cot"), metacrit_section),
    "essay-debate": (("asap-debate", "asap-debate-scaffold"), debate),
    "caelf": (("essays-caelf", "essays-caelf-levels"), contest),
}

if __name__ == "__main__":
    main()
