"""`metaprobe log`: what leaves the score log: old answers, a request that is to be forgotten, log-probabilities."""

from pathlib import Path

import click

from metaprobe.feedback_cli import log_option, opened_log
from metaprobe.terminal import FOLDER, RUNS


@click.group("log", short_help="What leaves the score log: old answers, one request, log-probabilities.")
def log_command() -> None:
    """Take answers out of a score log. A server may write into it meanwhile."""


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
    """Take away answers older than --older-than DAYS, with their labels. Alarms and promotions stay.

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
    """Take away all that is known of a request: scores, texts, log-probabilities and labels.

    REQUEST_ID came with the verdict. Of several answers to one request the second has the id ID:1, and so on; name
    each. Exit code 1 where something was not known.
    """
    with opened_log(where) as opened:
        unknown = [request_id for request_id in request_ids if not opened.delete(request_id, store=store)]
    click.echo(f"took away {len(request_ids) - len(unknown)} requests")
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
