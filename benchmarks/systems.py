"""Writes the measured figures into docs/systems.md, paper beside ours, from the stores in recorded/.

python benchmarks/systems.py [SECTION ...]
python benchmarks/systems.py --whole out/recorded/asap-debate essay-debate
python benchmarks/systems.py --whole out/recorded/essays-caelf caelf

Recorded runs on essays hold no texts and no grades by people, which are not ours to give on: what compares with these
is measured on the store as it was collected (`--whole`), and kept in docs/measured/.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from demo_results import markdown, write
from systems_essays import contest, debate, measure_whole
from systems_figures import PAGE, Lines, about, number, paper_of, points, recorded, share

from metaprobe.eval.systems import metacogagent, metacrit, mgv
from metaprobe.eval.systems.metacrit import SystemCost
from metaprobe.llms.replay import ReplayLLM
from metaprobe.pipelines import SYSTEMS, Models, Prompts, Setup
from metaprobe.pipelines.metacogagent import TABLE_IV, TABLE_V
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.profiles import Profiles
from metaprobe.training.collect import collect

REPLAYED = ("single", "round-robin", "random", "keyword", "majority", "algorithm")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--whole", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(names: tuple[str, ...], whole: Path | None) -> None:
    """Rewrite the table of systems, and each section, or those named."""
    if whole is not None:
        measure_whole(whole)
    write(PAGE, "systems", [*table_of_systems(), ""])
    write(PAGE, "options", [*table_of_options(), ""])
    for name, (stores, section) in SECTIONS.items():
        if names and name not in names:
            continue
        runs = [run for store in stores for run in recorded(store)]
        missing = [store for store in stores if not recorded(store)]
        lines = [f"Not recorded yet: {', '.join(missing)} (`python recorded/collect.py`).", ""] if missing else []
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
    return markdown(["system", "`--tokens STAGE=N`: most tokens by default", "`--set NAME=VALUE`: constants"], rows)


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
        *told,
        "",
        *markdown(["cycle", "accuracy of its answer"], cycles),
        "",
        "What stopping at a mean evaluation of at least t would have given (all cycles were run):",
        "",
        *markdown(["t", "accuracy", "attempts", "tokens"], stops),
    ]


def metacog(runs: Sequence[Run], paper: dict[str, Any]) -> Lines:
    """Table II, the agents alone, the ablations and the sweeps. All but the recorded variant are replayed from it."""
    matrix = metacogagent.outcome_matrix(runs)
    alone = [f"{agent} {matrix.correct[:, i].mean():.1%}" for i, agent in enumerate(matrix.agents)]
    models = {call.agent: call.model for run in runs[:1] for call in run.calls if call.stage == "answer"}
    rows = [outcome_row(name, replayed(runs, name), paper["table 2"].get(name)) for name in REPLAYED]
    head = ["variant", "paper: accuracy %, precision, ECE, calls (GPT-4)", "accuracy", "asked others"]
    head += ["delegation precision", "ECE of c", "calls"]
    ablations = [
        outcome_row(name, replayed(runs, variant, constants), paper["table 4"].get(name))
        for name, (variant, constants) in TABLE_IV.items()
    ]
    sweeps = []
    for constant, values in TABLE_V.items():
        for value in values:
            ours = metacogagent.evaluate(replayed(runs, "algorithm", f"{constant}={value}"))
            theirs = str(paper["table 5"][constant][str(value)])
            sweeps.append([f"{constant} = {value}", theirs, share(ours.accuracy), share(ours.asked)])
    return [
        f"Agents: {', '.join(f'{agent} is {model}' for agent, model in models.items())}. Alone, on every item: "
        f"{', '.join(alone)}; an oracle that picks the agent: {matrix.correct.max(axis=1).mean():.1%}. The items "
        "ran one after another, as in the paper.",
        "",
        *markdown(head, rows),
        "",
        "Ablations (table IV, and three of ours):",
        "",
        *markdown(["without", "paper: accuracy %, difference, precision", *head[2:]], ablations),
        "",
        "Sweeps (table V):",
        "",
        *markdown(["constant", "paper: accuracy %", "accuracy", "asked others"], sweeps),
    ]


def outcome_row(name: str, runs: Sequence[Run], theirs: Sequence[float | None] | None) -> list[str]:
    """One variant beside the paper's."""
    ours = metacogagent.evaluate(runs)
    return [
        name,
        ", ".join("-" if value is None else str(value) for value in theirs) if theirs else "-",
        share(ours.accuracy),
        share(ours.asked),
        share(ours.precision),
        number(ours.calibration.ece if ours.calibration else None),
        ", ".join(f"{count} {stage}" for stage, count in sorted(ours.calls.items())),
    ]


def replayed(runs: Sequence[Run], variant: str, constants: str = "") -> list[Run]:
    """What another variant, or other constants, would have done: every call it asks for is recorded."""
    rules = PaperRules.parse(constants)
    system = SYSTEMS["metacogagent"]
    prompts = Prompts.load(system.name, system.prompts, optional=system.agents)
    profiles = Profiles(initial=rules.initial, rate=rules.rate)
    llm = ReplayLLM.from_runs(runs)
    setup = Setup(Models(llm), prompts, policy=rules, profiles=profiles, agents=system.agents)
    items = [run.item for run in sorted(runs, key=lambda run: run.item.id)]
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder))
        report = asyncio.run(collect(system, items, setup, store, variants=[variant], wave=1))
        if report.failed:
            raise RuntimeError(f"{variant} {constants}: {report.failed[0]}")
        return list(store)


def metacrit_section(runs: Sequence[Run], paper: dict[str, Any]) -> Lines:
    """Accuracy after every stage, who flags, how it fails, what it costs."""
    stages = [
        [row.system, row.variant, row.stage, share(row.accuracy), points(row.gain)]
        for row in metacrit.stage_accuracy(runs)
    ]
    own = [run for run in runs if run.system == "metacrit"]
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
        *markdown(["system", "variant", "stage", "accuracy", "gain over the first stage"], stages),
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
    "essay-debate": (("asap-debate",), debate),
    "caelf": (("essays-caelf", "essays-caelf-levels"), contest),
}

if __name__ == "__main__":
    main()
