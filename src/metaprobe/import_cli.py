"""`metaprobe import`: answer lines, and logs of other programs, into a run store."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from metaprobe.progress import progress_bar
from metaprobe.records.importer import NAMES
from metaprobe.terminal import FOLDER

SHOWN = 20
"""So many messages about bad lines are shown where all of them are in a file."""
EVERY = 100
"""Answers between two changes of what stands beside the bar."""


@click.command("import", short_help="Answer lines, or a log of Inspect, lm-eval, HELM, ..., into a run store.")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=FOLDER, help="Run store to add to.")
@click.option(
    "--from",
    "form",
    type=click.Choice(("auto", *NAMES)),
    default="auto",
    show_default=True,
    help="What FILE is; told by its content by default.",
)
@click.option("--correct", default="", help="The score whose 1 and 0 say right and wrong, where the log has several.")
@click.option(
    "--requests", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Input file of a batch, joined."
)
@click.option("--stated-only", is_flag=True, help="Take answers without log-probabilities for what they state.")
@click.option(
    "--plain", is_flag=True, help="Take answers without log-probabilities too, for `extract --logprobs` to read."
)
@click.option("--skip-bad", is_flag=True, help="Pass over bad lines and list them, instead of stopping at the first.")
@click.option(
    "--bad",
    "bad_lines",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Pass over bad lines, and write them and what is left out here, with reasons, as JSON lines.",
)
@click.option("--explain", "explaining", is_flag=True, help="Say what would be stored and what is missing.")
def import_(file: Path, out: Path | None, form: str, explaining: bool, skip_bad: bool, **options: Any) -> None:
    """Import answers into a run store.

    Answer lines are JSON: {"response": ..., "labels": {"correct": 1}, "id", "group", "messages", ...}; only "response"
    is required. They may be compressed (.gz, .zst), or rows of a Parquet, Arrow or CSV file. Of an answer already
    stored, what the line says (labels, group, messages, ...) replaces what was said before.

    Logs are read of Inspect (.eval, .json), lm-evaluation-harness (samples), HELM (a run's folder), promptfoo (its
    output) and OpenAI's Batch API (its output).
    """
    from metaprobe.probes.verbalized import parse_named_confidence

    stated = parse_named_confidence if options.pop("stated_only") else None
    if explaining:
        from metaprobe.records.importer import explain

        options.pop("bad_lines")
        for line in explain(file, form, stated=stated, **options):
            click.echo(line)
    elif out is None:
        raise click.UsageError("Missing option '--out': the run store to add to. --explain says what would be stored.")
    else:
        _import(file, out, form=form, on_error="skip" if skip_bad else "stop", stated=stated, **options)


def _import(file: Path, out: Path, **options: Any) -> None:
    from metaprobe.records.errors import ImportFileError
    from metaprobe.records.import_store import import_file
    from metaprobe.records.store import RunStore

    size = sum(path.stat().st_size for path in ([file] if file.is_file() else file.glob("scenario_state.json")))
    try:
        with progress_bar("import", "B", size, scaled=True) as bar:
            on_line, on_bytes = _counters(bar)
            report = import_file(file, RunStore(out), on_line=on_line, on_bytes=on_bytes, **options)
    except ImportFileError as error:
        rest = ". The lines before it are stored; --skip-bad passes over it" if error.line else ""
        raise click.ClickException(f"{error}{rest}") from error
    shown = report.skipped if options["bad_lines"] is None else report.skipped[:SHOWN]
    for message in (*shown, *report.notes):
        click.echo(message, err=True)
    click.echo(
        json.dumps(
            {
                "from": report.form,
                "imported": report.imported,
                "already_stored": report.already_stored,
                "relabelled": report.relabelled,
                "skipped": report.bad,
                "left_out": sum(report.left_out.values()),
                "labelled": report.labelled,
                "groups": report.groups,
                "without_logprobs": report.without_logprobs,
            }
        )
    )
    _say(report, file, shown)


def _counters(bar: Any) -> tuple[Callable[[], None], Callable[[int], None]]:
    """(told of each answer, told of the bytes read so far): both draw the bar."""
    answers = 0

    def on_line() -> None:
        nonlocal answers
        answers += 1
        if answers % EVERY == 0:
            bar.set_postfix_str(f"{answers:,} answers", refresh=False)

    def on_bytes(read: int) -> None:
        bar.update(read - bar.n)

    return on_line, on_bytes


def _say(report: Any, file: Path, shown: tuple[str, ...]) -> None:
    """What is to be known besides; ends with 1 where something is wrong."""
    if report.bad > len(shown):
        click.echo(f"... and {report.bad - len(shown)} more bad lines", err=True)
    for what, count in report.taken.items():
        click.echo(f"{report.form}: {count} x {what}", err=True)
    for reason, count in report.left_out.items():
        click.echo(f"left out: {count} x {reason}", err=True)
    for said, count in report.doubts.items():
        click.echo(f"stored, and said by each verdict: {count} x {said}", err=True)
    if report.without_logprobs:
        click.echo(
            f"{report.without_logprobs} lines hold no log-probabilities and are there for what they state: nothing is"
            " trained on them until another model has read them (metaprobe extract --logprobs MODEL)",
            err=True,
        )
    empty = not (report.imported or report.already_stored or report.bad)
    if empty:
        click.echo(f"{file} holds no lines to import", err=True)
    if report.imported and not report.labelled:
        click.echo('none of the lines has "labels", such as {"correct": 1}: nothing can be learned from them', err=True)
    if empty or report.bad:
        sys.exit(1)
