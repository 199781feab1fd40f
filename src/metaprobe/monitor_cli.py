"""What a score log says of quality: `metaprobe estimate`, `drift`, `threshold`."""

import json
from pathlib import Path
from typing import Any

import click

from metaprobe.feedback_cli import log_option, opened_log
from metaprobe.shown import alarm_table, estimate_table, json_option, show_lines
from metaprobe.terminal import CHECKPOINT, NEW_FILE, since_option

model_option = click.option("--model", help="Only answers of this model.")


@click.command(short_help="How many answers are right, with intervals.")
@log_option
@click.option("--by", metavar="PART", help="Also apart: by model, checkpoint, task, week, or a tag of that name.")
@click.option(
    "--group",
    metavar="TAG",
    help="Answers that belong together: of one value of this tag, such as a conversation, or of one 'question'.",
)
@model_option
@since_option
@json_option
def estimate(
    where: str, by: str | None, group: str | None, model: str | None, since: float | None, as_json: bool
) -> None:
    """Accuracy, flagged share and risk among the accepted, with 95 % intervals: a table, or with --json a line each.

    Accuracy and risk come in three ways: from scores alone, powered by scores and labels, and from labels alone. Each
    line says what it assumes, and how many more labels would halve its interval. Answers to one question, or of one
    conversation, resemble each other: without --group their intervals are too short.
    """
    from metaprobe.monitoring.estimates_of_log import QUESTION, estimate_log, groups_of_log

    with opened_log(where) as opened:
        columns = opened.columns(since=since, model=model, ids=group == QUESTION)
        groups = None if group is None else groups_of_log(opened, columns, group)
    if not len(columns):
        click.echo("the log holds no answers of that time and model", err=True)
    show_lines(estimate_log(columns, by=by, group=groups), as_json, estimate_table)


@click.command(short_help="Whether answers are as they were.")
@log_option
@click.option("--state", type=NEW_FILE, required=True, help="File that holds what was seen; made where there is none.")
@model_option
@click.option("--within", metavar="TAG", help="Compare within a tag's values, or within 'hour' of the day.")
@click.option("--batch", type=click.IntRange(1), help="Answers averaged into one value.  [default: 1]")
@click.option("--lag", default=5.0, show_default=True, type=click.FloatRange(0), help="Seconds left for late entries.")
@json_option
def drift(
    where: str, state: Path, model: str | None, within: str | None, batch: int | None, lag: float, as_json: bool
) -> None:
    """Reads what came into the log since the last call, and gives an alarm where it is not as before.

    Alarms are a table, or with --json a line each.

    Each alarm is stored in the log as an event, with a picture. Over a whole stream, however often this is called, the
    probability of a false alarm is at most 5 %, for answers whose order says nothing.
    """
    import time

    from metaprobe.monitoring.drift_of_log import kept_watch, nothing_watched

    with kept_watch(state, model=model, within=within, batch=batch) as watch, opened_log(where) as opened:
        alarms = watch.read(opened, until=time.time() - lag)
    told = [{name: value for name, value in alarm.items() if name != "picture"} for alarm in alarms]
    show_lines(told, as_json, alarm_table)
    if not alarms and nothing_watched(watch):
        of_model = "" if watch.model is None else f" of model {watch.model}"
        click.echo(f"nothing is watched yet: the log holds no answers{of_model} that are {lag:g} s old", err=True)
    elif not alarms:
        highest = max(watch.watch.evidence.items(), key=lambda pair: pair[1])
        said = f"no alarm; most evidence {highest[1]:.2g} of {highest[0]}, rings at {watch.watch.threshold:g}"
        click.echo(said, err=True)


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
    from metaprobe.monitoring.labelled import labelled_of_log
    from metaprobe.monitoring.online_threshold import OnlineThreshold
    from metaprobe.monitoring.thinning import thin
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
