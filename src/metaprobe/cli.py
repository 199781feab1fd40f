"""The command line: parse, call one library function, print. Results on stdout, progress on stderr."""

import errno
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import click

from metaprobe import __version__
from metaprobe.checkpoint_cli import diff, inspect, promote, push_command, seal, verify
from metaprobe.checkpoints import CheckpointError
from metaprobe.extract_cli import extract
from metaprobe.profiles_cli import label, profiles
from metaprobe.records.errors import MissingExtra, RecordError
from metaprobe.router_cli import evaluate, route
from metaprobe.serve_cli import serve
from metaprobe.terminal import (
    CHECKPOINT,
    FILE,
    FOLDER,
    FOLDER_THERE,
    RUNS,
    agent_option,
    command_line,
    folds_option,
    live_collection,
    model_option,
    say_collected,
    seed_option,
    stage_option,
    steps,
)
from metaprobe.train_cli import train

RESUMED = ("collect", "demo", "import", "extract")
"""Commands that go on where they were stopped."""


class Command(click.Group):
    """Turns the library's errors into one line and an exit code, and Ctrl-C into a promise that holds."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (RecordError, CheckpointError, MissingExtra) as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
                raise click.ClickException(f"{error.strerror}: make room, and run the same again") from error
            if error.filename is None:  # no file of the user's: a broken pipe, which click knows, or a fault of ours
                raise
            raise click.ClickException(f"{error.filename}: {error.strerror}") from error
        except KeyboardInterrupt:
            kept = " What is stored is kept: the same command goes on from there."
            click.echo(f"\nInterrupted.{kept if ctx.invoked_subcommand in RESUMED else ''}", err=True)
            sys.exit(130)


@click.group(cls=Command, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
def main() -> None:
    """How good is a language model's answer? Learned models on the signals it already gives off."""
    # Ours speak to the user, not about the line of code that raised them.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"


@main.command(short_help="From nothing to checkpoints and a report, on a local model.")
@click.option("--out", type=FOLDER, default=Path("out/demo"), show_default=True, help="Folder for runs and results.")
@model_option
@click.option("--limit", type=click.IntRange(1), help="Only so many of the 700 items, spread evenly.")
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(1), help="Requests generated at once.")
@folds_option
@seed_option
def demo(out: Path, model: str, limit: int | None, batch_size: int, folds: int, seed: int) -> None:
    """The main job on a real local model: collect, train, export, compare, report.

    Takes under ten minutes on two cores that do nothing else; run again, it resumes.
    """
    from metaprobe.eval.report.text import comparison_table
    from metaprobe.training.comparison.write import require_report

    require_report()
    from metaprobe.collecting.launch import CollectionWatch
    from metaprobe.training.demo import collect_demo, train_demo

    with live_collection() as live:
        collected = collect_demo(
            out,
            model=model,
            limit=limit,
            batch_size=batch_size,
            watch=CollectionWatch(live.on_estimate, live.on_total, live.on_call, live.on_run),
        )
    say_collected(collected)
    with steps() as on_step:
        made = train_demo(out, collected=collected, folds=folds, seed=seed, command=command_line(), on_step=on_step)
    click.echo(comparison_table(made.comparison))
    for checkpoint in made.checkpoints:
        click.echo(f"checkpoint  {checkpoint.path}")
    click.echo(f"report      {made.report}")


@main.command(short_help="Run a system over a task; keep every call.")
@click.argument("system")
@click.option("--task", required=True, help="Name of a task set, or a .jsonl file of items.")
@click.option("--data", help="Folder that holds the task's data, or 'hf:OWNER/NAME'; METAPROBE_DATA by default.")
@click.option("--split", help="Split of the task set.")
@click.option(
    "--llm",
    "llms",
    multiple=True,
    default=("smollm2-135m",),
    show_default=True,
    help="Embedded name, folder, GGUF file, hub id, or openai:MODEL[@URL]. NAME=L for one stage or agent; repeatable.",
)
@click.option("--judge", help="Model of every stage called 'judge'.")
@click.option(
    "--api",
    multiple=True,
    help="KEY=VALUE for openai: models, such as logprobs_mode=raw or extra_body={...}; repeatable.",
)
@click.option(
    "--policy",
    default="paper",
    show_default=True,
    help="'paper', 'exhaustive', 'review' (of a debate's arguments) or 'learned:CHECKPOINT' (a router), "
    "with constants: 'paper:theta=0.4', 'review:critical=0.3', 'learned:CHECKPOINT,budget=0.5,theta=0.4'.",
)
@click.option(
    "--epsilon",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of decisions drawn evenly, to explore.",
)
@click.option(
    "--signal",
    "signals",
    multiple=True,
    help="confidence|difficulty|quality|critical[@AGENT]=[stated+]CHECKPOINT in place of what the model states; "
    "repeatable. One that nothing would read is refused.",
)
@click.option("--agents", help="Names of the agents, separated by commas.")
@click.option("--out", type=FOLDER, required=True, help="Run store; collecting into it again resumes.")
@click.option("--limit", type=click.IntRange(1), help="Only so many items, spread evenly over dimensions and levels.")
@click.option("--variant", "variants", multiple=True, help="This variant of the system; repeatable.")
@click.option("--prompts", type=FOLDER_THERE, help="Folder with your own prompt files, in place of the shipped ones.")
@click.option("--capture", help="Layers whose hidden states are kept: 'all', 'every:N', or '0,8,16'.")
@click.option("--top-logprobs", default=0, show_default=True, type=click.IntRange(0), help="Alternatives kept a token.")
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(1), help="Requests generated at once.")
@click.option("--concurrency", default=128, show_default=True, type=click.IntRange(1), help="Runs in flight.")
@click.option("--shard-runs", default=64, show_default=True, type=click.IntRange(1), help="Runs written to one file.")
@click.option(
    "--tokens",
    multiple=True,
    metavar="STAGE=N",
    help="Most tokens of a call at this stage, or at every one; 'none': an endpoint does not cut. Repeatable.",
)
@click.option(
    "--set",
    "constants",
    multiple=True,
    metavar="NAME=VALUE",
    help="Constant of the system, such as rounds; a wrong name lists those there are. Repeatable.",
)
@click.option(
    "--profiles",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of outcomes that the agents' profiles begin with, and that this collection's are added to.",
)
@click.option(
    "--wave",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    help="Items at once where agents learn; the next ones see what came of them.",
)
@click.option("--no-text", is_flag=True, help="Keep no texts and token ids, only numbers, labels and ids.")
@click.option("--cache", type=click.Path(dir_okay=False, path_type=Path), help="File of calls shared by collections.")
@click.option("--seed", default=0, show_default=True, help="Of sampled answers and exploration.")
def collect(out: Path, agents: str | None, no_text: bool, **named: Any) -> None:
    """Run SYSTEM over a task with a model, and keep every call with its log-probabilities."""
    from metaprobe.collecting.launch import CollectionPlan, CollectionWatch, launch

    plan = CollectionPlan(agents=tuple(agents.split(",")) if agents else (), text=not no_text, **named)
    with live_collection() as live:
        report = launch(plan, out, CollectionWatch(live.on_estimate, live.on_total, live.on_call, live.on_run))
    say_collected(report)
    if report.failed:
        sys.exit(1)


@main.command("import", short_help="OpenAI-format lines into a run store.")
@click.argument("file", type=FILE)
@click.option("--out", type=FOLDER, required=True, help="Run store to add to.")
@click.option("--skip-bad", is_flag=True, help="Pass over bad lines and list them, instead of stopping at the first.")
def import_(file: Path, out: Path, skip_bad: bool) -> None:
    """Import OpenAI-format JSON lines into a run store.

    Each line: {"response": ..., "labels": {"correct": 1}, "id", "group", "messages", ...}; only "response" is required.
    Of an answer already stored, what the line says (labels, group, messages, ...) replaces what was said before.
    """
    from metaprobe.records.errors import ImportFileError
    from metaprobe.records.importer import import_file
    from metaprobe.records.store import RunStore

    try:
        report = import_file(file, RunStore(out), on_error="skip" if skip_bad else "stop")
    except ImportFileError as error:
        rest = ". The lines before it are stored; --skip-bad passes over it" if error.line else ""
        raise click.ClickException(f"{error}{rest}") from error
    for message in (*report.skipped, *report.notes):
        click.echo(message, err=True)
    click.echo(
        json.dumps(
            {
                "imported": report.imported,
                "already_stored": report.already_stored,
                "relabelled": report.relabelled,
                "skipped": len(report.skipped),
                "labelled": report.labelled,
                "groups": report.groups,
            }
        )
    )
    empty = not (report.imported or report.already_stored or report.skipped)
    if empty:
        click.echo(f"{file} holds no lines to import", err=True)
    if report.imported and not report.labelled:
        click.echo('none of the lines has "labels", such as {"correct": 1}: nothing can be learned from them', err=True)
    if empty or report.skipped:
        sys.exit(1)


@main.command(short_help="A verdict for each OpenAI-format line.")
@click.argument("checkpoint", type=CHECKPOINT)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--sha256", help="Digest of the checkpoint, from its author; without it a changed manifest goes unnoticed."
)
@click.option(
    "--on-mismatch",
    type=click.Choice(["warn", "refuse", "ignore"]),
    default="warn",
    show_default=True,
    help="For responses of another model or log-probability mode than the checkpoint was trained on.",
)
def score(checkpoint: str, file: Path, sha256: str | None, on_mismatch: Any) -> None:
    """Score OpenAI-format JSON lines: one line out for each line in, null where a response cannot be scored.

    FILE may be '-' for standard input.
    """
    from metaprobe.probes.quality import QualityPredictor
    from metaprobe.probes.scoring import score_lines

    predictor = QualityPredictor.load(checkpoint, sha256=sha256, on_mismatch=on_mismatch)
    scored = lines = 0
    file = Path("/dev/stdin") if str(file) == "-" else file
    for line in score_lines(predictor, file):
        click.echo(json.dumps(line))
        lines += 1
        scored += line["score"] is not None or bool(line["heads"])
    if scored < lines:
        click.echo(f"scored {scored} of {lines} lines; the reasons stand in the lines", err=True)
    if not lines:
        click.echo(f"{file} holds no lines to score", err=True)
    if not scored:
        sys.exit(1)


@main.command(short_help="Explicit against implicit metacognition: report and tables.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Folder for the report, tables, figures and items.")
@click.option("--target", default="correct", show_default=True, help="Label to predict.")
@stage_option
@agent_option
@folds_option
@seed_option
def compare(
    runs: tuple[Path, ...], out: Path, target: str, stage: str | None, agent: str | None, folds: int, seed: int
) -> None:
    """Explicit against implicit metacognition on stored runs: report, tables, and a row for each item and method."""
    from metaprobe.eval.report.text import comparison_table
    from metaprobe.training.comparison.write import require_report, write_comparison
    from metaprobe.training.crossfit.study import study

    require_report()
    with steps() as on_step:
        found = study(runs, target=target, stage=stage, agent=agent, folds=folds, seed=seed, on_step=on_step)
        on_step("report")
        comparison, report = write_comparison(out, found, command=command_line())
    click.echo(comparison_table(comparison))
    click.echo(f"report      {report}")


@main.command(short_help="Figures of collected systems, as JSON.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
def summarize(runs: tuple[Path, ...]) -> None:
    """The figures of collected systems as JSON: accuracy by stage, cost, and what each one's paper reports of it."""
    from metaprobe.collecting.summary import summarize_stores

    click.echo(json.dumps(summarize_stores(runs), indent=1))


main.add_command(inspect)
main.add_command(verify)
main.add_command(seal)
main.add_command(diff)
main.add_command(promote)
main.add_command(push_command)
main.add_command(train)
main.add_command(extract)
main.add_command(serve)
main.add_command(route)
main.add_command(evaluate)
main.add_command(label)
main.add_command(profiles)


if __name__ == "__main__":
    main()
