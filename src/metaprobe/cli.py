"""The command line: parse, call one library function, print. Results on stdout, progress on stderr."""

import errno
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from metaprobe import __version__
from metaprobe.checkpoint_cli import diff, inspect, promote, push_command, verify
from metaprobe.checkpoints import CheckpointError, FlagOptions
from metaprobe.checkpoints.manifest import printable
from metaprobe.collect_cli import collect
from metaprobe.doctor_cli import doctor
from metaprobe.extract_cli import extract
from metaprobe.feedback_cli import feedback, sample
from metaprobe.import_cli import import_
from metaprobe.log_cli import log_command
from metaprobe.monitor_cli import drift, estimate, threshold
from metaprobe.outcomes_cli import outcomes
from metaprobe.profiles_cli import label, profiles
from metaprobe.progress import lines_done, live_collection, say, steps
from metaprobe.recalibrate_cli import recalibrate, retrain
from metaprobe.records.errors import MissingExtra, RecordError
from metaprobe.records.plugins import entry_point_names, load_plugin
from metaprobe.router_cli import evaluate, route
from metaprobe.serve_cli import serve
from metaprobe.terminal import (
    CHECKPOINT,
    FILE,
    FOLDER,
    RUNS,
    agent_option,
    command_line,
    flag_options,
    flags_given,
    folds_option,
    model_option,
    say_collected,
    seed_option,
    stage_option,
    wait_without_spinning,
)
from metaprobe.train_cli import adapt, train
from metaprobe.training.options import WrongOptions

RESUMED = ("collect", "demo", "import", "extract")
"""Commands that go on where they were stopped."""
ENTRY_POINTS = "metaprobe.commands"
"""Group of entry points in which an installed package gives commands of its own."""
IN_APPS = {"assist": "writing_assistant", "study": "writing_assistant"}
"""Command -> the folder in apps/ whose package gives it."""


class Command(click.Group):
    """Finds the commands of installed packages, turns the library's errors into one line and an exit code, and Ctrl-C
    into a promise that holds."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the commands: those of this package and those of installed ones, sorted."""
        return sorted({*super().list_commands(ctx), *entry_point_names(ENTRY_POINTS)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command of that name, this package's before another's; None for an unknown name.

        A command whose package cannot be imported is one that says so when it is run: the others still work, and
        `metaprobe --help` lists them. Raises `UsageError` for a command of an app that is not installed.
        """
        if (ours := super().get_command(ctx, cmd_name)) is not None:
            return ours
        if cmd_name in entry_point_names(ENTRY_POINTS):
            try:
                return load_plugin(cmd_name, ENTRY_POINTS, click.Command, "command")
            except RecordError as error:
                return _unusable(cmd_name, str(error))
        if folder := IN_APPS.get(cmd_name):
            raise click.UsageError(
                f"{cmd_name} is a command of another package, which is not installed: in a checkout of metaprobe, "
                f"pip install ./apps/{folder}"
            )
        return None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except WrongOptions as error:
            raise click.UsageError(str(error)) from error
        except (RecordError, CheckpointError, MissingExtra) as error:
            # Names in a file from elsewhere could command the terminal.
            raise click.ClickException("\n".join(map(printable, str(error).split("\n")))) from error
        except UnicodeEncodeError as error:  # of an argument's bytes Python makes halves of surrogate pairs
            if not 0xDC80 <= ord(error.object[error.start]) <= 0xDCFF:
                raise
            raise click.ClickException(
                f"an argument holds the byte 0x{ord(error.object[error.start]) - 0xDC00:02x}, which is not UTF-8; "
                "expected names and paths in UTF-8"
            ) from error
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


def _unusable(name: str, reason: str) -> click.Command:
    def refuse(words: tuple[str, ...]) -> None:
        raise click.ClickException(reason)

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        short_help="(cannot be imported)",
        context_settings={"ignore_unknown_options": True},
    )


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
def demo(out: Path, llm: str, limit: int | None, batch_size: int, folds: int, seed: int) -> None:
    """The main job on a real local model: collect, train, export, compare, report.

    Takes under ten minutes on two cores that do nothing else; run again, it resumes. Where other programs need the
    cores too, set OMP_NUM_THREADS=1: threads that wait for each other make it take hours.
    """
    from metaprobe.eval.report.write import comparison_table
    from metaprobe.training.comparison import require_report

    require_report()
    from metaprobe.collecting.launch import CollectionWatch
    from metaprobe.demo import collect_demo, train_demo

    with live_collection() as live:
        collected = collect_demo(
            out,
            model=llm,
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


@main.command(short_help="A verdict for each OpenAI-format line.")
@click.argument("checkpoint", type=CHECKPOINT)
@click.argument("file", type=click.Path(exists=True, allow_dash=True, path_type=Path))
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
@click.option(
    "--run",
    metavar="MODEL|TASK|VARIANT",
    help="Which of the checkpoint's runs all responses are of; by default what each says of its model and task.",
)
@click.option("--stage", help="Of a run store, only the answers of this stage.")
@flag_options
def score(
    checkpoint: str,
    file: Path,
    sha256: str | None,
    on_mismatch: Any,
    run: str | None,
    stage: str | None,
    **named: Any,
) -> None:
    """Score OpenAI-format JSON lines: one line out for each line in, null where a response cannot be scored.

    FILE may be '-' for standard input, or a run store: then each answer in it gets a line. A travelling blend takes a
    store only.
    """
    from metaprobe.probes.quality import QualityPredictor
    from metaprobe.probes.score_file import score_lines

    flags = flags_given(named)
    file = Path("/dev/stdin") if str(file) == "-" else file
    if file.is_dir():
        found = score_store(checkpoint, file, sha256, on_mismatch, run, stage, flags)
    elif stage is not None:
        raise click.UsageError("--stage is for run stores: a line of a file has one answer")
    else:
        predictor = QualityPredictor.load(checkpoint, sha256=sha256, run=run, on_mismatch=on_mismatch, **flags.flags)
        found = lines_done("score", score_lines(predictor, file, by_run=run is None), file)
    scored = lines = 0
    for line in found:
        click.echo(json.dumps(line))
        lines += 1
        scored += line["score"] is not None or bool(line.get("heads"))
    if scored < lines:
        click.echo(f"scored {scored} of {lines} lines; the reasons stand in the lines", err=True)
    if not lines:
        click.echo(f"{file} holds no lines to score", err=True)
    if not scored:
        sys.exit(1)


def score_store(
    checkpoint: str,
    store: Path,
    sha256: str | None,
    on_mismatch: Any,
    run: str | None,
    stage: str | None,
    flags: FlagOptions,
) -> Iterator[dict[str, Any]]:
    """A line for each answer of a run store: its verdict, or where a travelling blend sets it within its run."""
    from metaprobe.checkpoints import load_checkpoint
    from metaprobe.checkpoints.checkpoint import check_kind
    from metaprobe.probes import blend, quality_contract
    from metaprobe.probes.quality import QualityPredictor
    from metaprobe.probes.score_store import blend_lines, quality_lines

    held = load_checkpoint(checkpoint, sha256=sha256)
    kind = held.manifest.kind
    check_kind(held.path, kind, quality_contract.KIND, blend.KIND)
    if kind == quality_contract.KIND:
        predictor = QualityPredictor(held, run=run, on_mismatch=on_mismatch, **flags.flags)
        return quality_lines(predictor, store, by_run=run is None, stage=stage)
    if flags.flags:
        raise click.UsageError(
            f"--{next(iter(flags.flags)).replace('_', '-')} is for quality predictors: a travelling blend orders "
            "answers, and flags none"
        )
    if run is not None:
        raise click.UsageError("--run is for quality predictors: a travelling blend orders each run by itself")
    return blend_lines(blend.TravellingBlend.of(held), store, stage=stage)


@main.command(short_help="Explicit against implicit metacognition: report and tables.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Folder for the report, tables, figures and items.")
@click.option("--target", default="correct", show_default=True, help="Label to predict.")
@click.option(
    "--scores",
    type=FILE,
    multiple=True,
    help="CSV file with a method of your own: columns call_id and score, a row for every answer; repeatable.",
)
@stage_option
@agent_option
@folds_option
@seed_option
def compare(runs: tuple[Path, ...], out: Path, **named: Any) -> None:
    """Explicit against implicit metacognition on stored runs: report, tables, and a row for each item and method."""
    wait_without_spinning()
    from metaprobe.eval.report.write import comparison_table
    from metaprobe.training.comparison import compare as compared
    from metaprobe.training.options import CompareOptions

    with steps() as on_step:
        options = CompareOptions(**named, out=out, on_step=on_step, on_line=say, command=command_line())
        comparison = compared(runs, options)
    click.echo(comparison_table(comparison))
    click.echo(f"report      {out / 'report.html'}")


@main.command(short_help="Metrics of collected systems, as JSON.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
def summarize(runs: tuple[Path, ...]) -> None:
    """The metrics of collected systems as JSON: accuracy by stage, cost, and what each one's paper reports of it."""
    from metaprobe.collecting.collection_summary import summarize_stores

    with steps("reading runs and drawing resamples"):
        figures = summarize_stores(runs)
    click.echo(json.dumps(figures, indent=1))


main.add_command(collect)
main.add_command(import_)
main.add_command(inspect)
main.add_command(verify)
main.add_command(diff)
main.add_command(promote)
main.add_command(push_command)
main.add_command(train)
main.add_command(adapt)
main.add_command(recalibrate)
main.add_command(retrain)
main.add_command(estimate)
main.add_command(drift)
main.add_command(threshold)
main.add_command(extract)
main.add_command(doctor)
main.add_command(feedback)
main.add_command(sample)
main.add_command(log_command)
main.add_command(serve)
main.add_command(route)
main.add_command(evaluate)
main.add_command(label)
main.add_command(outcomes)
main.add_command(profiles)


if __name__ == "__main__":
    main()
