"""Commands that run the papers' systems over tasks: `metaprobe collect`, `judge`, `label`, `summarize`, `demo`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import click

from metaprobe.api import (
    CallSelection,
    Folds,
    LineOptions,
    Option,
    Seed,
    command,
    command_line,
    progress_bar,
    steps,
)
from metaprobe.papers.collecting.collection_progress import show_collection
from metaprobe.papers.collecting.plan import CollectionPlan

COMMAND_GROUP = click.Group()
OneStore = Annotated[Path, Option(kind="runs", argument=True)]
Stores = Annotated[tuple[Path, ...], Option(kind="runs", argument=True)]


class CollectCommand(click.Command):
    """Lists at the end of its help all systems and tasks, those of installed packages too."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from metaprobe.papers.systems.named_systems import system_names
        from metaprobe.papers.tasks.named_tasks import task_names

        for title, names in (("Systems", system_names()), ("Tasks", task_names())):
            with formatter.section(title):
                formatter.write_text(", ".join(names))


@command(COMMAND_GROUP, "Run a system over a task; keep every call.", cls=CollectCommand)
def collect(
    plan: CollectionPlan,
    out: Annotated[Path, Option("Run store; collecting into it again resumes.", kind="folder")],
) -> None:
    """Run SYSTEM over a task with a model, and keep every call with its log-probabilities.

    SYSTEM is a name, or MODULE:NAME of a system of your own. Its module is installed, or lies in this folder.
    """
    from metaprobe.papers.collecting.launch import CollectionWatch, launch

    # This folder comes last, so that none of its files replaces an installed library.
    sys.path.append(str(Path.cwd()))
    with show_collection() as progress:
        report = launch(plan, out, CollectionWatch(progress.on_total, progress.on_call, progress.on_run))
    say_collected(report)
    if report.failed:
        sys.exit(1)


@command(COMMAND_GROUP, "A decision model's probabilities for recorded answers.")
def judge(
    runs: OneStore,
    llm: Annotated[str, Option("The judge: decisions:MODEL, or decisions:MODEL@http://host:port/v1.")],
    questions: Annotated[Path, Option("JSON list of predicate, choice and score questions.", kind="file")],
    out: Annotated[Path, Option("Run store for the judged runs; judging into it again resumes.", kind="folder")],
    *,
    call_selection: CallSelection,
    cache: Annotated[Path | None, Option("File of calls shared by judgings and collections.", kind="new file")] = None,
    api: Annotated[tuple[str, ...], Option("KEY=VALUE, such as attempts=3 or revision=v2; repeatable.")] = (),
    prices: Annotated[
        Path | None, Option('{"MODEL": {"prompt": USD, "completion": USD}} for a million tokens each.', kind="file")
    ] = None,
    concurrency: Annotated[int, Option("Requests in flight.", low=1)] = 16,
) -> None:
    """Ask a decision model the same questions about every answer in RUNS.

    Each question is {"type": "predicate", "name": "correct", "instructions": "The answer is right."}, or a "choice"
    with "choices", or a "score" with "levels", as `client.decisions.create` of openai-python takes them. All questions
    about one answer go in one request. Probabilities, refusals and missing levels are stored beside the labels.
    """

    from metaprobe.papers.collecting.judge import launch_judge

    options: dict[str, Any] = {"stage": call_selection.stage, "agent": call_selection.agent}
    options |= {"cache": cache, "api": api, "prices": prices}
    with progress_bar("judge", " runs", ends=True) as bar:
        on_total, on_chunk = bar.counters()
        callbacks: dict[str, Any] = {"on_total": on_total, "on_chunk": on_chunk}
        report = launch_judge(runs, llm, out, questions, concurrency=concurrency, **callbacks, **options)
    click.echo(json.dumps(dataclasses.asdict(report)))
    if report.failed:
        click.echo(f"{report.failed} runs are not judged, the first: {report.failure}", err=True)
        sys.exit(1)


@command(COMMAND_GROUP, "Labels by hand or by a judge, for answers that no program can check.")
def label(
    runs: OneStore,
    file: Annotated[Path | None, Option(kind="file", argument=True)] = None,
    *,
    line_options: LineOptions,
) -> None:
    """List the answers in RUNS without a label; or read labels from FILE.

    Each line: {"call": ID, "correct": null, ...}. Fill in `correct` (0 to 1), by hand or by a judge, which is then
    named: "source": "judge:NAME". FILE may be a CSV file with these columns. A person's label goes before a program's,
    and a program's before a judge's.
    """
    from metaprobe.api import RunStore
    from metaprobe.papers.collecting.label_runs import find_unlabelled, label_from_file, unknown_systems

    if file is None:
        stored = list(RunStore(runs))
        for line in find_unlabelled(stored):
            click.echo(json.dumps(line))
        for name, count in unknown_systems(stored).items():
            click.echo(f"runs passed over, whose system {name!r} is not known here (docs/own.md): {count}", err=True)
        return
    with line_options.handling():
        labels, new_count = label_from_file(RunStore(runs), file)
    click.echo(json.dumps({"labels": labels, "new": new_count}))


@command(COMMAND_GROUP, "Metrics of collected systems, as JSON.")
def summarize(runs: Stores) -> None:
    """Print the metrics of collected systems as JSON: accuracy by stage, cost, decisions, and the figures of the papers
    on MetaCrit, MetaCogAgent and systems that evaluate their own answers.
    """
    from metaprobe.papers.collecting.collection_summary import summarize_stores

    with steps("reading runs and drawing resamples"):
        figures = summarize_stores(runs)
    click.echo(json.dumps(figures, indent=1))


@command(COMMAND_GROUP, "From nothing to a flag on new answers, on a local model.")
def demo(
    out: Annotated[Path, Option("Folder for runs and results.", kind="folder")] = Path("out/demo"),
    llm: Annotated[str, Option("Embedded name, folder, GGUF file or hub id.")] = "smollm2-135m",
    limit: Annotated[
        int,
        Option("Questions to learn from, at most 1,000. Another 40 % of this number are held out.", low=1, high=1000),
    ] = 1000,
    batch_size: Annotated[int, Option("Requests generated at once.", low=1)] = 64,
    folds: Folds = 5,
    seed: Seed = 0,
) -> None:
    """Do the main job on a real local model: compare signals, export the recommended signal, and flag unseen answers.

    It takes minutes on two idle cores. Run again, it resumes. If other programs need the cores too, set
    OMP_NUM_THREADS=1: threads that wait for each other make it take hours.
    """
    from metaprobe.api import TrainedRuns

    TrainedRuns.require()
    from metaprobe.papers.collecting.launch import CollectionWatch
    from metaprobe.papers.demo import collect_demo, train_demo

    with show_collection() as progress:
        watch = CollectionWatch(progress.on_total, progress.on_call, progress.on_run)
        collected = collect_demo(out, model=llm, limit=limit, batch_size=batch_size, watch=watch)
    for report in collected:
        say_collected(report)
    with steps() as on_step:
        demo_result = train_demo(
            out, collected=collected, folds=folds, seed=seed, command=command_line(), on_step=on_step
        )
    for line in demo_result.lines():
        click.echo(line)


def say_collected(report: Any) -> None:
    click.echo(f"collected {report.done} runs; {report.stored_before} were stored before", err=True)
    for failure in report.failed[:10]:
        click.echo(f"failed: {failure}", err=True)
    if len(report.failed) > 10:
        click.echo(f"... and {len(report.failed) - 10} more; all of them stand in failed.jsonl", err=True)
    for name, count in report.unread.items():
        click.echo(f"signal {name} could not be read of {count} calls; the rules' fallback was taken there", err=True)
    for stage, (cut, answers) in report.cut.items():
        click.echo(f"{cut} of {answers} answers of stage {stage} were cut: --tokens {stage}=N sets the limit", err=True)
