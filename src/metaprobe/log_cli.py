"""`metaprobe log`: what leaves the score log: old answers, a request that is to be forgotten, log-probabilities."""

import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import click

from metaprobe.feedback_cli import checkpoint_option, log_option, opened_log
from metaprobe.terminal import FOLDER, NEW_FILE, RUNS, since_option


@click.group("log", short_help="What leaves the score log: old answers, one request, verdicts for other programs.")
def log_command() -> None:
    """Take answers out of a score log, or verdicts to other programs. A server may write into it meanwhile."""


@log_command.command(short_help="Take away old answers.")
@log_option
@click.option(
    "--older-than",
    "days",
    required=True,
    metavar="DAYS",
    type=click.FloatRange(0, min_open=True),
    help="Answers that ended so many days ago.",
)
@click.option("--yes", is_flag=True, help="Also where the clock seems to have jumped, or most answers would go.")
def prune(where: str, days: float, yes: bool) -> None:
    """Take away answers older than --older-than DAYS, with their labels and tags. Alarms and promotions stay.

    `metaprobe serve --log-days` does the same every hour. Nothing is taken away where the clock is more than 7 days
    after the last prune (before the first one: after the newest answer), nor where more than half of all answers would
    go at once; then --yes is needed. A clock that is months ahead would otherwise empty the log.
    """
    with opened_log(where) as opened:
        count = opened.prune(days, sure=yes)
    click.echo(f"took away {count} answers older than {days:g} days")


@log_command.command(short_help="Take away all that is known of one request.")
@click.argument("request_ids", metavar="REQUEST_ID...", nargs=-1, required=True)
@log_option
@click.option("--store", type=RUNS, help="Run store of `metaprobe log rotate`, out of which it is taken too.")
def delete(request_ids: tuple[str, ...], where: str, store: Path | None) -> None:
    """Take away all that is known of a request: scores, texts, log-probabilities, labels, and tags of its own.

    REQUEST_ID came with the verdict. Of several answers to one request the second has the id ID:1, and so on; name
    each. A SQLite file is then written anew, so that no byte is left in it. Exit code 1 where something was not known,
    or the file could not be written anew within a minute.
    """
    from metaprobe.monitoring.retention import further_answers

    with opened_log(where) as opened:
        unknown = opened.delete_all(request_ids, store=store)
        left = [name for request_id in request_ids for name in further_answers(opened.tables, request_id)]
    click.echo(f"took away {len(request_ids) - len(unknown)} requests")
    if left:
        click.echo(f"other answers to these requests stay: {', '.join(left)}; name them to take them away", err=True)
    if unknown:
        raise click.ClickException(f"nothing is known of {', '.join(unknown)}; expected ids that came with verdicts")


@log_command.command(short_help="Move old log-probabilities and texts into a run store.")
@log_option
@click.option(
    "--older-than",
    "days",
    required=True,
    metavar="DAYS",
    type=click.FloatRange(0),
    help="Of answers that ended so many days ago.",
)
@click.option("--out", type=FOLDER, required=True, help="The run store that they are added to.")
def rotate(where: str, days: float, out: Path) -> None:
    """Move log-probabilities and texts of old answers into a run store, with their labels; the scores stay.

    The store can be trained on. Needs the extra `fit`. Stopped, the same command goes on where it was.
    """
    with opened_log(where) as opened:
        count = opened.rotate(out, days=days)
    click.echo(f"moved {count} answers older than {days:g} days into {out}")


@log_command.command(short_help="Verdicts to where traces are: Langfuse, MLflow, OpenTelemetry.")
@log_option
@click.option(
    "--to",
    required=True,
    type=click.Choice(["langfuse", "mlflow", "otel"]),
    help="As Langfuse scores, MLflow assessments, or OpenTelemetry log records.",
)
@click.option("--out", type=NEW_FILE, help="File for the request bodies, one a line.")
@click.option("--post", "posted", is_flag=True, help="Post them. Address and keys come from environment variables.")
@since_option
@click.option("--model", help="Only answers of this model.")
@checkpoint_option
@click.option(
    "--trace-tag", default="", metavar="TAG", help="Tag that holds an answer's trace id, in place of its request id."
)
def export(
    where: str,
    to: str,
    out: Path | None,
    posted: bool,
    since: float | None,
    model: str | None,
    checkpoint: str | None,
    trace_tag: str,
) -> None:
    """Write or post the verdicts of a score log to the program that keeps the traces.

    --post reads LANGFUSE_BASE_URL, LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY; MLFLOW_TRACKING_URI with
    MLFLOW_TRACKING_TOKEN or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; OTEL_EXPORTER_OTLP_ENDPOINT and
    OTEL_EXPORTER_OTLP_HEADERS. Exit code 1 where a verdict was not taken.
    """
    from metaprobe.monitoring.versions import find_version
    from metaprobe.records.posting import NotPosted
    from metaprobe.serving.verdict_export import poster, requests_for

    if out is None and not posted:
        raise click.UsageError("Missing option '--out' or '--post': where the verdicts go.")
    send = poster(to) if posted else None
    counts, failed = Counter[str](), ""
    with opened_log(where) as opened, nullcontext() if out is None else out.open("w", encoding="utf-8") as file:
        digest = None if checkpoint is None else find_version(opened, checkpoint)
        entries = opened.entries(since=since, model=model, checkpoint=digest)
        counted = (counts.update(["answers"]) or entry for entry in entries)
        for one in requests_for(to, counted, trace_tag=trace_tag):
            counts["verdicts"] += one.verdicts
            if file is not None:
                file.write(json.dumps(one.body) + "\n")
            if send is not None and not failed:
                try:
                    counts["refused"] += (bad := send(one))
                    counts["taken"] += one.verdicts - bad
                except NotPosted as error:
                    failed = str(error)
    if left := counts["answers"] - counts["verdicts"]:
        click.echo(f"{left} answers without a score are left out: {to} takes none without a value", err=True)
    if out is not None:
        click.echo(f"wrote {counts['verdicts']} verdicts for {to}")
    if send is not None:
        click.echo(f"posted {counts['taken']} of {counts['verdicts']} verdicts to {to}")
        if counts["taken"] < counts["verdicts"]:
            after = f"; then a request was not taken ({failed}), and nothing more was sent" if failed else ""
            raise click.ClickException(f"{to} refused {counts['refused']} verdicts{after}")
