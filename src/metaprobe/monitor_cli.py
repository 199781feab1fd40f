"""What a score log says of quality: `metaprobe estimate`, `drift`, `threshold`."""

import json
from pathlib import Path
from typing import Any

import click

from metaprobe.feedback_cli import checkpoint_option, log_option, opened_log
from metaprobe.shown import alarm_table, estimate_table, json_option, show_lines
from metaprobe.terminal import CHECKPOINT, NEW_FILE, since_option

ALARM = 3
"""Exit code of `drift` where there is a new alarm."""

model_option = click.option("--model", help="Only answers of this model.")


@click.command(short_help="How many answers are right, with intervals.")
@log_option
@click.option("--by", metavar="PART", help="Also apart: by model, task, week, or a tag of that name.")
@click.option(
    "--group",
    metavar="TAG",
    help="Answers that belong together: of one value of this tag, such as a conversation, or of one 'question'.",
)
@model_option
@checkpoint_option
@since_option
@json_option
def estimate(
    where: str,
    by: str | None,
    group: str | None,
    model: str | None,
    checkpoint: str | None,
    since: float | None,
    as_json: bool,
) -> None:
    """Accuracy, flagged share and risk among the accepted, with 95 % intervals: a table, or with --json a line each.

    Each version of the checkpoint stands apart, the newest first: a score of one says nothing of another's.
    Accuracy and risk come in three ways: from scores alone, powered by scores and labels, and from labels alone. Each
    line says what it assumes, and how many more labels would halve its interval. Answers to one question, or of one
    conversation, resemble each other: without --group their intervals are too short.
    """
    from metaprobe.monitoring.estimates import QUESTION, estimate_log, groups_of_log
    from metaprobe.monitoring.versions import find_version, version_names

    with opened_log(where) as opened:
        version = None if checkpoint is None else find_version(opened, checkpoint)
        columns = opened.columns(since=since, model=model, checkpoint=version, ids=group == QUESTION)
        groups = None if group is None else groups_of_log(opened, columns, group)
        names = version_names(opened)
    if not len(columns):
        click.echo("the log holds no answers of that time, model and checkpoint", err=True)
    show_lines(estimate_log(columns, by=by, group=groups, names=names), as_json, estimate_table)


@click.command(short_help="Whether answers are as they were.")
@log_option
@click.option("--state", type=NEW_FILE, required=True, help="File that holds what was seen; made where there is none.")
@model_option
@checkpoint_option
@click.option("--within", metavar="TAG", help="Compare within a tag's values, or within 'hour' of the day.")
@click.option("--batch", type=click.IntRange(1), help="Answers averaged into one value.  [default: 1]")
@click.option("--webhook", metavar="URL", help="Post each new alarm there, as JSON.")
@json_option
def drift(
    where: str,
    state: Path,
    model: str | None,
    checkpoint: str | None,
    within: str | None,
    batch: int | None,
    webhook: str | None,
    as_json: bool,
) -> None:
    """Reads what came into the log since the last call, and gives an alarm where it is not as before.

    Alarms are a table, or with --json a line each.

    What a checkpoint says is compared with what the same checkpoint said before, and its labels with its own scores.
    The first 200 values are the reference. Each alarm is stored in the log as an event, with a picture. Over a whole
    stream, however often this is called, the probability of a false alarm is at most 5 % for one version, for answers
    whose order says nothing.

    Exit code 0: no new alarm; 3: an alarm; 1: an error, or the webhook did not take an alarm. Such an alarm stays in
    the state, and the next call posts it.
    """
    from metaprobe.monitoring.drift_of_log import kept_watch, post_pending, say_progress
    from metaprobe.monitoring.versions import find_version
    from metaprobe.records.posting import checked_url

    url = None if webhook is None else checked_url(webhook, "--webhook")
    with opened_log(where) as opened:
        version = None if checkpoint is None else find_version(opened, checkpoint)
        with kept_watch(state, model=model, checkpoint=version, within=within, batch=batch) as watch:
            alarms = watch.read(opened)
            failed = ""
            if url is not None:
                watch.pending += [{name: one for name, one in alarm.items() if name != "picture"} for alarm in alarms]
                watch.save(state)  # before anything is posted: a killed process then posts twice, and never not at all
                failed = post_pending(url, watch.pending)
    told = [{name: value for name, value in alarm.items() if name != "picture"} for alarm in alarms]
    show_lines(told, as_json, alarm_table)
    if not alarms:
        click.echo(say_progress(watch), err=True)
    if watch.waiting:
        click.echo(f"{watch.waiting} answers are read later: a transaction of the database has not ended", err=True)
    if watch.pending:
        why = f"the webhook failed ({failed})" if failed else "no --webhook was given"
        click.echo(
            f"{len(watch.pending)} alarms wait in {state}: {why}; the next call with --webhook posts them", err=True
        )
    if alarms:
        raise SystemExit(ALARM)
    if failed:
        raise SystemExit(1)


@click.command(short_help="A flag threshold that follows the labels.")
@click.argument("checkpoint", type=CHECKPOINT)
@log_option
@click.option(
    "--rate",
    default=0.1,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Share of the wrong answers that may pass unflagged.",
)
@click.option(
    "--step", default=0.02, show_default=True, type=click.FloatRange(0, min_open=True), help="How fast it follows."
)
def threshold(checkpoint: str, where: str, rate: float, step: float) -> None:
    """The threshold that labels of CHECKPOINT's answers have come to, as JSON, with what it has missed.

    It begins at the checkpoint's own, and moves with each labelled wrong answer, in the order of the answers' times.
    The share that it misses comes to the rate whatever the answers are; `bound` says how near it must be by now. Of
    answers that were drawn for labels, as many count as a plain draw would have given.
    """
    from metaprobe.monitoring.labelled import OnlineThreshold, labelled_of_log, thin
    from metaprobe.probes.quality import QualityPredictor

    predictor = QualityPredictor.load(checkpoint)
    follows = OnlineThreshold(0.5 if predictor.threshold is None else predictor.threshold, rate=rate, step=step)
    with opened_log(where) as opened:
        found = labelled_of_log(opened, checkpoint=predictor.checkpoint.digest)
    # Weighed by one over its propensity, a single label of a large log would throw the threshold far out of [0, 1].
    plain = found.rows(thin(found.propensity))
    follows.observe_all((score, label, 1.0) for score, label in zip(plain.score, plain.label, strict=True))
    told: dict[str, Any] = {"threshold": follows.threshold, "wrong": follows.wrong}
    known = follows.wrong > 0
    told |= {"missed": follows.missed_share if known else None, "bound": follows.bound if known else None}
    click.echo(json.dumps(told))
