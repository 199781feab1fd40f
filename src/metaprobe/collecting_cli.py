"""Commands on run stores: `metaprobe collect`, `import`, `extract`, `label`, `outcomes`, ..."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from metaprobe.checkpoints.options import Option
from metaprobe.collecting.plan import CollectionPlan, TopLogprobs
from metaprobe.option_commands import AsJson, Stores, command
from metaprobe.progress import live_collection, progress_bar, quiet_libraries, steps
from metaprobe.records.extras import require
from metaprobe.records.importer import NAMES
from metaprobe.records.types import POSITIONS
from metaprobe.terminal import advice_table, printable_lines, say_collected, show_result
from metaprobe.training.options import LEFT_OUT, Agent, LineOptions, Stage

COMMANDS = click.Group()
EVERY = 100
"""How many answers pass between two updates of the text beside the progress bar."""
OneStore = Annotated[Path, Option(kind="runs", argument=True)]


class CollectCommand(click.Command):
    """Lists at the end of its help the systems and tasks that there are, those of installed packages too."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from metaprobe.pipelines.named_systems import system_names
        from metaprobe.tasks.named_tasks import task_names

        for title, names in (("Systems", system_names()), ("Tasks", task_names())):
            with formatter.section(title):
                formatter.write_text(", ".join(names))


@command(COMMANDS, "Run a system over a task; keep every call.", cls=CollectCommand)
def collect(
    plan: CollectionPlan,
    out: Annotated[Path, Option("Run store; collecting into it again resumes.", kind="folder")],
) -> None:
    """Run SYSTEM over a task with a model, and keep every call with its log-probabilities.

    SYSTEM is a name, or MODULE:NAME of a system of your own: a module that is installed, or lies in this folder.
    """
    from metaprobe.collecting.launch import CollectionWatch, launch

    # After what is installed, so that no file of this folder takes the place of a library.
    sys.path.append(str(Path.cwd()))
    with live_collection() as live:
        report = launch(plan, out, CollectionWatch(live.on_total, live.on_call, live.on_run))
    say_collected(report)
    if report.failed:
        sys.exit(1)


@command(COMMANDS, "Answer lines, or a log of Inspect, lm-eval, HELM, ..., into a run store.", name="import")
def import_(
    file: Annotated[Path, Option(kind="path", argument=True)],
    out: Annotated[Path, Option("Run store to add to.", kind="folder")],
    lines: LineOptions,
    form: Annotated[
        str, Option("What FILE is; told by its content by default.", name="from", choices=("auto", *NAMES))
    ] = "auto",
    correct: Annotated[str, Option("The score whose 1 and 0 say right and wrong, where the log has several.")] = "",
    requests: Annotated[Path | None, Option("Input file of a batch, joined.", kind="file")] = None,
    stated_only: Annotated[bool, Option("Take answers without log-probabilities for what they state.")] = False,
    plain: Annotated[
        bool, Option("Take answers without log-probabilities too, for `extract --logprobs` to read.")
    ] = False,
) -> None:
    """Import answers into a run store.

    Answer lines are JSON: {"response": ..., "labels": {"correct": 1}, "id", "group", "messages", ...}; only "response"
    is required. They may be compressed (.gz), or rows of a Parquet or CSV file. Of an answer already
    stored, what the line says (labels, group, messages, ...) replaces what was said before. `metaprobe advise FILE`
    says beforehand what a file holds and lacks.

    Bad lines are left out, and each reason is said with its count and its first line. Where more than half of the lines
    are bad, nothing is stored.

    Logs are read of Inspect (.eval, .json), lm-evaluation-harness (samples), HELM (a run's folder), promptfoo (its
    output) and OpenAI's Batch API (its output).
    """
    from metaprobe.probes.verbalized import parse_named_confidence
    from metaprobe.records.import_store import import_file
    from metaprobe.records.store import RunStore

    size = sum(path.stat().st_size for path in ([file] if file.is_file() else file.glob("scenario_state.json")))
    answers = 0
    with progress_bar("import", "B", size, scaled=True) as bar:

        def on_line() -> None:
            nonlocal answers
            answers += 1
            if answers % EVERY == 0:
                bar.set_postfix_str(f"{answers:,} answers", refresh=False)

        report = import_file(
            file,
            RunStore(out),
            form=form,
            strict=lines.strict,
            bad=lines.bad,
            correct=correct,
            requests=requests,
            stated=parse_named_confidence if stated_only else None,
            plain=plain,
            on_line=on_line,
            on_bytes=lambda read: bar.update(read - bar.n),
        )
    for message in filter(None, (report.said, *report.notes)):
        click.echo(printable_lines(message), err=True)
    counts = {"from": report.form, "imported": report.imported, "already_stored": report.already_stored}
    counts |= {"relabelled": report.relabelled, "skipped": report.bad, "left_out": sum(report.left_out.values())}
    counts |= {name: getattr(report, name) for name in ("labelled", "groups", "without_logprobs")}
    click.echo(json.dumps(counts))
    for what, count in report.taken.most_common():
        click.echo(f"{report.form}: {count} x {what}", err=True)
    for reason, count in report.left_out.items():
        click.echo(f"left out: {count} x {reason}", err=True)
    for doubt, count in report.doubts.most_common():
        click.echo(f"stored, and said when it is scored: {count} x {doubt}", err=True)
    if report.without_logprobs:
        click.echo(
            f"{report.without_logprobs} lines hold no log-probabilities and are there for what they state, or what was"
            " decided of them (metaprobe train quality --reads decisions); another model can read the others (metaprobe"
            " extract --logprobs MODEL)",
            err=True,
        )
    empty = not (report.imported or report.already_stored or report.bad)
    if empty:
        click.echo(f"{file} holds no lines to import", err=True)
    if report.labelled_otherwise:
        click.echo(
            f"{report.labelled_otherwise} lines have other labels only, and none named `correct`: what needs right and"
            " wrong answers learns nothing from them; of a log, --correct SCORE says which score is right or wrong",
            err=True,
        )
    if report.imported and not (report.labelled or report.labelled_otherwise):
        click.echo('none of the lines has "labels", such as {"correct": 1}: nothing can be learned from them', err=True)
    if empty:
        sys.exit(1)


OF_STATES = {
    "via": "--via",
    "layers": "--layers",
    "positions": "--position",
    "shard_calls": "--shard-calls",
    "other_model": "--other-model",
}
OF_LOGPROBS = {"out": "--out", "top_logprobs": "--top-logprobs"}
"""Parameters of `extract` that mean something for one of its two readings only -> their options."""


@command(COMMANDS, "What a log can support: signals, labels, the next command.", name="advise")
def advise_command(
    file: Annotated[Path, Option(kind="path", argument=True)],
    as_json: AsJson = False,
) -> None:
    """Which signals of answer quality FILE supports, how many labels it has, and the next command for each.

    FILE is a run store, or any file that `import` reads. Nothing is stored, and no model is asked.
    """
    from metaprobe.collecting.advise import advise
    from metaprobe.eval.results import plain

    show_result(plain(advise(file)), as_json, advice_table)


@command(COMMANDS, "Hidden states or log-probabilities of recorded calls, read again with a model.")
def extract(
    runs: OneStore,
    llm: Annotated[str | None, Option("The model that answered: embedded name, folder, GGUF file or hub id.")] = None,
    logprobs: Annotated[
        str | None, Option("Another model, whose log-probabilities of the answers go to --out.", metavar="LLM")
    ] = None,
    out: Annotated[
        Path | None, Option("Run store for the runs with the log-probabilities of --logprobs.", kind="folder")
    ] = None,
    top_logprobs: TopLogprobs = 0,
    via: Annotated[Literal["transformers", "vllm"], Option("What runs the model for hidden states.")] = "transformers",
    layers: Annotated[str, Option("'all', 'every:N', or numbers such as '0,8,16'.")] = "all",
    positions: Annotated[
        tuple[str, ...],
        Option(
            "Token position to keep; repeatable. By default those that collecting keeps.",
            name="position",
            choices=POSITIONS,
        ),
    ] = (),
    stage: Stage = None,
    agent: Agent = None,
    batch_size: Annotated[int, Option("Calls read at once.", low=1)] = 32,
    shard_calls: Annotated[int, Option("Calls written to one file.", low=1)] = 64,
    other_model: Annotated[
        bool, Option("Read calls of whatever model, and leave out the check that it is one.")
    ] = False,
) -> None:
    """Read recorded calls again with a model.

    With --llm its hidden states are kept beside the RUNS. What is there already is passed over, so a killed extraction
    goes on. Under `accelerate launch` or `torchrun` the processes share the work.

    With --logprobs another model than the one that answered reads messages and answers, and its log-probabilities go
    into a run store of their own (--out), with the labels as they were.
    """
    if (llm is None) == (logprobs is None):
        raise click.UsageError(
            "expected one of --llm MODEL (hidden states) and --logprobs MODEL --out RUNS2 (log-probabilities)"
        )
    context = click.get_current_context()
    for name, option in (OF_LOGPROBS if logprobs is None else OF_STATES).items():
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"{option} belongs to {'--logprobs' if logprobs is None else '--llm'}: leave it out")
    if logprobs is not None and out is None:
        raise click.UsageError("Missing option '--out': the run store for what --logprobs reads")
    require("torch", "train")
    quiet_libraries()
    from metaprobe.collecting.extract import ExtractionWatch, launch_extract, launch_reread

    shared: dict[str, Any] = {"stage": stage, "agent": agent, "batch_size": batch_size}
    with progress_bar("extract", " calls" if out is None else " runs", ends=True) as bar:
        shared["watch"] = ExtractionWatch(*_counters(bar))
        if logprobs is not None and out is not None:
            read = launch_reread(runs, logprobs, out, top_logprobs=top_logprobs, **shared)
        else:
            shared |= {"layers": layers, "shard_calls": shard_calls, "other_model": other_model}
            report, processes = launch_extract(runs, str(llm), via=via, positions=positions or None, **shared)
    if logprobs is not None:
        for reason, count in read.unread.items():
            click.echo(f"without log-probabilities: {count} x {reason}", err=True)
        click.echo(json.dumps(dataclasses.asdict(read)))
    elif report is not None:  # in the other processes of a launch it is None
        if report.calls and report.disagreement is None and not other_model:
            click.echo(
                f"not checked: no call holds raw log-probabilities that would show whether {llm} is the model that "
                "answered",
                err=True,
            )
        click.echo(json.dumps({**dataclasses.asdict(report), "processes": processes}))


def _counters(bar: Any) -> tuple[Callable[[int], None], Callable[[int, int], None]]:
    """Returns two functions that draw the bar: one takes the total, one each chunk's calls and tokens."""
    tokens = 0

    def on_total(total: int) -> None:
        bar.reset(total)  # loading is no part of the rate

    def on_chunk(done: int, read: int) -> None:
        nonlocal tokens
        tokens += read
        rate = tokens / max(bar.format_dict["elapsed"], 1e-9)
        bar.set_postfix_str(f"{tokens:,} tokens, {rate:.0f} tokens/s", False)
        bar.update(done)

    return on_total, on_chunk


@command(COMMANDS, "A decision model's probabilities for recorded answers.")
def judge(
    runs: OneStore,
    llm: Annotated[str, Option("The judge: decisions:MODEL, or decisions:MODEL@http://host:port/v1.")],
    questions: Annotated[Path, Option("JSON list of predicate, choice and score questions.", kind="file")],
    out: Annotated[Path, Option("Run store for the judged runs; judging into it again resumes.", kind="folder")],
    stage: Stage = None,
    agent: Agent = None,
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
    from metaprobe.collecting.extract import ExtractionWatch
    from metaprobe.collecting.judge import launch_judge

    named: dict[str, Any] = {"stage": stage, "agent": agent, "cache": cache, "api": api, "prices": prices}
    with progress_bar("judge", " runs", ends=True) as bar:
        watch = ExtractionWatch(*_counters(bar))
        report = launch_judge(runs, llm, out, questions, watch=watch, concurrency=concurrency, **named)
    click.echo(json.dumps(dataclasses.asdict(report)))
    if report.failed:
        click.echo(f"{report.failed} runs are not judged, the first: {report.failure}", err=True)
        sys.exit(1)


@command(COMMANDS, "Labels by hand or by a judge, for answers that no program can check.")
def label(
    runs: OneStore,
    file: Annotated[Path | None, Option(kind="file", argument=True)] = None,
    lines: LineOptions = LEFT_OUT,
) -> None:
    """List the answers in RUNS that nobody has judged; or take their labels from FILE.

    Each line: {"call": ID, "correct": null, ...}. Fill in `correct` (0 to 1), by hand or by a judge, who says so:
    "source": "judge:NAME". FILE may be a CSV file with these columns. A person's label goes before a program's, and a
    program's before a judge's.
    """
    from metaprobe.collecting.labels import find_unlabelled, label_from_file, unknown_systems
    from metaprobe.records.store import RunStore

    if file is None:
        stored = list(RunStore(runs))
        for line in find_unlabelled(stored):
            click.echo(json.dumps(line))
        for name, count in unknown_systems(stored).items():
            click.echo(f"runs passed over, whose system {name!r} is not known here (docs/own.md): {count}", err=True)
        return
    with lines.handling():
        labels, new = label_from_file(RunStore(runs), file)
    click.echo(json.dumps({"labels": labels, "new": new}))


@command(COMMANDS, "Metrics of collected systems, as JSON.")
def summarize(runs: Stores) -> None:
    """The metrics of collected systems as JSON: accuracy by stage, cost, decisions, and what the papers report of
    MetaCrit, MetaCogAgent and the systems that evaluate their own answers.
    """
    from metaprobe.collecting.collection_summary import summarize_stores

    with steps("reading runs and drawing resamples"):
        figures = summarize_stores(runs)
    click.echo(json.dumps(figures, indent=1))


@command(COMMANDS, "Answers of several agents into the outcomes that a router learns from.")
def outcomes(
    files: Annotated[tuple[Path, ...], Option(kind="file", argument=True)],
    out: Annotated[Path, Option("File of outcomes to write.", kind="new file")],
    signals: Annotated[
        tuple[str, ...],
        Option(
            "confidence[@AGENT]=[stated+]CHECKPOINT: what a checkpoint reads of the answers in place of what is "
            "stated; repeatable.",
            name="signal",
        ),
    ] = (),
    prices: Annotated[
        Path | None,
        Option(
            '{"AGENT or MODEL": {"prompt": USD, "completion": USD}} for a million tokens each.',
            kind="file",
        ),
    ] = None,
    lines: LineOptions = LEFT_OUT,
) -> None:
    """Join the answers of two or more agents, one a file of import lines, by their ids.

    A line is one that `metaprobe import` takes, with "id" and "labels": {"correct": 0 or 1}. The agent is its "agent",
    else the name of the file. `metaprobe train router OUT` learns from what comes out.
    """
    from metaprobe.collecting.joining import join_outcomes
    from metaprobe.llms.pricing import read_prices
    from metaprobe.probes.source import SignalSource
    from metaprobe.records.outcomes import write_outcomes

    if out.resolve() in {file.resolve() for file in files}:
        raise click.UsageError(f"--out {out} is one of the files to join; give another one")
    source, priced = SignalSource.load(signals), read_prices(prices) if prices else None
    with lines.handling():
        joined = join_outcomes(files, signals=source, prices=priced)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_outcomes(out, joined.questions)
    for note in joined.notes:
        click.echo(note, err=True)
    click.echo(
        json.dumps(
            {
                "questions": len(joined.questions),
                "agents": {name: joined.accuracy(name) for name in joined.questions[0].agents},
                "missing": joined.missing,
                "unlabelled": joined.unlabelled,
            }
        )
    )
