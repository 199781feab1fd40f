"""Commands on a score log: labels into it, estimates and alarms out of it, better predictors, old answers away."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from metaprobe.api import (
    AGREEMENT,
    AsJson,
    Digest,
    FlagOptions,
    Folds,
    LineOptions,
    Option,
    QualityOptions,
    QuestionOutcomes,
    Seed,
    WriteOptions,
    command,
    command_line,
    say,
    say_checkpoint,
    steps,
)
from metaprobe.production.score_log_tables import alarm_table, estimate_table, opened_log, show_lines

COMMAND_GROUP = click.Group()
DAY = 86400.0
TARGET = "correct"
"""Label that a log's labels say, as `metaprobe.production.retrain` trains on it."""
ALARM_EXIT_CODE = 3
"""Exit code of `drift` if there is a new alarm."""
Log = Annotated[str, Option("The score log: a SQLite file, or the URL of a database.", metavar="LOG")]
OfModel = Annotated[str | None, Option("Only answers of this model.")]
OfVersion = Annotated[
    str | None, Option("Only this version: its folder, or the beginning of its digest.", metavar="VERSION")
]
Since = Annotated[
    float | None,
    Option("Only answers since this time: 2026-11-23T12:00:00 (UTC), or seconds since 1970.", kind="time"),
]
LabelForm = Literal["auto", "lines", "mlflow", "langfuse", "phoenix", "openai-evals"]


@command(COMMAND_GROUP, "Labels from a file into the score log.")
def feedback(
    file: Annotated[Path, Option(kind="file", argument=True)],
    log: Log,
    form: Annotated[LabelForm, Option("Format of FILE; see below.", name="from")] = "auto",
    name: Annotated[str, Option("Name of the judgement, if FILE holds several kinds of labels.")] = "",
    id_key: Annotated[
        str, Option("Field of a record that holds the answer's id, such as metadata.id.", name="id")
    ] = "",
    maps: Annotated[
        tuple[str, ...],
        Option(
            "Meanings of unclear values: fine=correct,meh=unsure, or >=4=correct,<=2=wrong; repeatable.",
            name="value-map",
            metavar="VALUE=MEANING,...",
        ),
    ] = (),
    *,
    line_options: LineOptions,
) -> None:
    """Put labels into the score log. The latest label of an answer counts, but a person's before a judge's.

    FILE is JSON lines or CSV with request_id, label (1, 0 or unsure; right and wrong are accepted too), and optionally
    who and time; or an export of MLflow (assessments of traces), Langfuse (scores), Phoenix (span annotations) or
    OpenAI's evals (output items). The answer's id is looked for under request_id, also in the metadata; else it is the
    id of the trace or span.

    Before anything is stored, the meaning taken for each kind of value in FILE is printed. A value without type,
    direction or validity is left out: give its meaning with --value-map.
    """
    from metaprobe.api import IdFault
    from metaprobe.production.monitoring.label_files import read_label_file

    # Read the file.
    with line_options.handling():
        labels = read_label_file(
            file, form, name=name, id_key=id_key, value_map=",".join(maps), say=lambda line: click.echo(line, err=True)
        )
    # Store the labels.
    with opened_log(log) as score_log:
        dropped_before = score_log.dropped_labels
        known_count = score_log.add_labels(labels)
        dropped = score_log.dropped_labels - dropped_before
        weaker = score_log.passed_over(labels)
        unknown_ids = score_log.unknown_ids(label.request_id for label in labels) if known_count < len(labels) else []
        id_without_blanks = {
            request_id: "".join(request_id.split())
            for request_id in unknown_ids
            if IdFault.of(request_id) == IdFault.BLANKS
        }
        without_blanks = set(id_without_blanks.values()) - set(score_log.unknown_ids(id_without_blanks.values()))
    # Report the labels, and those that do not count.
    right, wrong = sum(label.value == 1 for label in labels), sum(label.value == 0 for label in labels)
    click.echo(f"stored {len(labels)} labels: {right} right, {wrong} wrong, {len(labels) - right - wrong} neither")
    if weaker:
        names = ", ".join(dict.fromkeys(label.request_id for label in weaker[:5])) + (
            ", ..." if len(weaker) > 5 else ""
        )
        click.echo(
            f"{len(weaker)} of judges or programs do not count: the log holds labels of a stronger source (a person "
            f"before a program before a judge) for these answers: {names}",
            err=True,
        )
    if known_count < len(labels):
        names = ", ".join(map(repr, unknown_ids[:5])) + (", ..." if len(unknown_ids) > 5 else "")
        click.echo(
            f"{len(labels) - known_count} are of answers that the log does not hold; they count once it does, "
            f"within 7 days: {names}",
            err=True,
        )
        for fault in IdFault.list_all(unknown_ids):
            click.echo(f"of these, {fault}", err=True)
        if without_blanks:
            click.echo(f"without blanks, {len(without_blanks)} of these ids are in the log", err=True)
    if dropped:
        click.echo(
            f"{dropped} labels of answers that the log does not hold were dropped: at most 10,000 wait, and none under "
            "an id of more than 256 characters",
            err=True,
        )


@command(COMMAND_GROUP, "Draw answers from the score log to be labelled.")
def sample(
    log: Log,
    budget: Annotated[int, Option("Answers to be labelled.", low=1)] = 50,
    out: Annotated[
        Path | None,
        Option(
            "JSON lines to fill in for `metaprobe feedback`.",
            kind="label sheet",
        ),
    ] = None,
    page: Annotated[bool, Option("Show them on a local page, to be labelled by keyboard.")] = False,
    port: Annotated[int, Option("Port of the page; 0: a free one.", low=0, high=65535)] = 0,
    who: Annotated[str, Option("Name of the labeller, for the log.")] = "",
    sheet: Annotated[str, Option("Name of an earlier sheet to continue, instead of a new draw.")] = "",
    since: Since = None,
    model: OfModel = None,
    checkpoint: OfVersion = None,
    tags: Annotated[
        tuple[str, ...], Option("Only answers with this tag; repeatable.", name="tag", metavar="NAME=VALUE")
    ] = (),
    floor: Annotated[float, Option("Lowest propensity, relative to a uniform draw.", above=0, high=1)] = 0.25,
    seed: Annotated[int | None, Option("Seed of the draw; by default random.", low=0)] = None,
) -> None:
    """Draw answers to be labelled, doubtful ones more often, each with a propensity that the log keeps.

    Estimates from these labels are therefore unbiased. The sheet, or the page, shows questions and answers if the log
    has them (serve --log-texts), and never the score. A warning names answers whose labels `promote` will not count.
    """
    from metaprobe.production.monitoring.label_draw import (
        DrawnSheet,
        draw_sheet,
        sheet_rows,
        will_not_count,
        write_sheet,
    )
    from metaprobe.production.monitoring.log import find_version

    if out is None and not page:
        raise click.UsageError("Missing option '--out' or '--page': where the answers are to be labelled.")
    tags_wanted = {}
    for tag in tags:
        name, equals, value = tag.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--tag {tag!r} is not NAME=VALUE")
        tags_wanted[name] = value
    with opened_log(log) as score_log, _claimed(out):  # `out` is claimed first: drawn answers are not drawn again
        if sheet:
            drawn_sheet = DrawnSheet(sheet, sheet_rows(score_log, sheet), 0, 0)
        else:
            digest = None if checkpoint is None else find_version(score_log, checkpoint)
            draw_options: dict[str, Any] = {"since": since, "model": model, "checkpoint": digest, "tags": tags_wanted}
            drawn_sheet = draw_sheet(score_log, budget, **draw_options, floor=floor, seed=seed)
            known_text = f"; {drawn_sheet.known} more draws fell on answers with a label" if drawn_sheet.known else ""
            click.echo(f"drew {len(drawn_sheet.rows)} of {drawn_sheet.candidates} answers{known_text}", err=True)
        if warning := will_not_count(score_log, drawn_sheet.rows):
            click.echo(f"warning: {warning}", err=True)
        click.echo(f"sheet {drawn_sheet.name}")  # --sheet NAME continues it, even if writing it fails now
        if out is not None:
            write_sheet(out, drawn_sheet.rows)
        if drawn_sheet.rows and all(row.answer is None for row in drawn_sheet.rows):
            click.echo(
                "the log holds no texts of these answers (serve --log-texts): look them up by their ids", err=True
            )
        if page:
            from metaprobe.production.labelling.page import label_on_page

            label_on_page(score_log, drawn_sheet.rows, who=who, port=port, say=lambda line: click.echo(line, err=True))


@contextmanager
def _claimed(out: Path | None) -> Iterator[None]:
    """Creates the file, empty, and removes it if the block fails.

    An existing file is refused: it may be a sheet with labels that are nowhere else, or the log itself.
    """
    if out is None:
        yield
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        out.open("x").close()
    except FileExistsError:
        raise click.UsageError(
            f"{out} exists, and what it holds (labels that somebody filled in?) is not replaced; give another name to "
            "--out, or move it away"
        ) from None
    try:
        yield
    except BaseException:
        with suppress(FileNotFoundError):
            if not out.stat().st_size:
                out.unlink()
        raise


@command(COMMAND_GROUP, "How many answers are right, with intervals.")
def estimate(
    log: Log,
    by: Annotated[
        str | None, Option("Also one estimate for each model, task, week, or value of a tag.", metavar="PART")
    ] = None,
    group: Annotated[
        str | None,
        Option(
            "Tag whose equal values mark dependent answers, such as a conversation; or 'question'.",
            metavar="TAG",
        ),
    ] = None,
    model: OfModel = None,
    checkpoint: OfVersion = None,
    since: Since = None,
    as_json: AsJson = False,
) -> None:
    """Print accuracy, flagged share and risk among the accepted, with 95 % intervals: a table, or with --json one line
    each.

    Each version of the checkpoint is separate, the newest first, because scores of two versions cannot be compared.
    Accuracy and risk are estimated in three ways: from scores alone, from scores and labels together, and from labels
    alone. Each line says what it assumes, and how many more labels would halve its interval. Answers to one question,
    or of one conversation, resemble each other: without --group their intervals are too short.
    """
    from metaprobe.production.monitoring.estimates import QUESTION_TAG, estimate_log, groups_of_log
    from metaprobe.production.monitoring.log import find_version, version_names

    with opened_log(log) as score_log:
        version = None if checkpoint is None else find_version(score_log, checkpoint)
        columns = score_log.columns(since=since, model=model, checkpoint=version, ids=group == QUESTION_TAG)
        groups = None if group is None else groups_of_log(score_log, columns, group)
        names = version_names(score_log)
    if not len(columns):
        click.echo("the log holds no answers of that time, model and checkpoint", err=True)
    show_lines(estimate_log(columns, by=by, group=groups, names=names), as_json, estimate_table)


@command(COMMAND_GROUP, "Whether answers have changed since the last call.")
def drift(
    log: Log,
    state: Annotated[Path, Option("File of the watch's state; made if missing.", kind="new file")],
    model: OfModel = None,
    checkpoint: OfVersion = None,
    within: Annotated[
        str | None, Option("Compare within each value of a tag, or each 'hour' of the day.", metavar="TAG")
    ] = None,
    batch: Annotated[int | None, Option("Answers averaged into one value.  [default: 1]", low=1)] = None,
    webhook: Annotated[str | None, Option("Post each new alarm there, as JSON.", metavar="URL")] = None,
    as_json: AsJson = False,
) -> None:
    """Read what was logged since the last call, and raise an alarm if it differs from before.

    Alarms are a table, or with --json one line each.

    A checkpoint's scores are compared with its earlier scores, and its labels with its own scores. The first 200 values
    are the reference. The agreement of second answers (`serve --teach-rate`) is watched without labels. Each alarm is
    stored in the log as an event. However long the log is and however often this is called, the probability of a false
    alarm is at most 5 % for one version, if the order of the answers is random.

    Exit code 0: no new alarm; 3: an alarm; 1: an error, or the webhook did not accept an alarm. Such an alarm stays in
    the state, and the next call posts it.
    """
    from metaprobe.production.monitoring.drift import USUAL_STREAMS, WATCHED_STREAMS
    from metaprobe.production.monitoring.drift_of_log import kept_watch, post_pending, say_agreement, say_progress
    from metaprobe.production.monitoring.log import find_version
    from metaprobe.production.monitoring.posting import checked_url

    url = None if webhook is None else checked_url(webhook, "--webhook")
    with opened_log(log) as score_log:
        version = None if checkpoint is None else find_version(score_log, checkpoint)
        streams = WATCHED_STREAMS if score_log.has_agreements(model=model, checkpoint=version) else USUAL_STREAMS
        with kept_watch(state, model=model, checkpoint=version, within=within, batch=batch, streams=streams) as watch:
            alarms = watch.read(score_log)
            agreement = say_agreement(watch)
            failure = ""
            if url is not None:
                watch.pending += alarms
                watch.save(state)  # saved before posting: a killed process may post twice, but never loses an alarm
                failure = post_pending(url, watch.pending)
    show_lines(alarms, as_json, alarm_table)
    if not alarms:
        click.echo(say_progress(watch), err=True)
    if agreement:
        click.echo(agreement, err=True)
    if watch.waiting:
        click.echo(f"{watch.waiting} answers are read later: a transaction of the database has not ended", err=True)
    if watch.pending:
        reason = f"the webhook failed ({failure})" if failure else "no --webhook was given"
        click.echo(
            f"{len(watch.pending)} alarms wait in {state}: {reason}; the next call with --webhook posts them", err=True
        )
    if alarms:
        raise SystemExit(ALARM_EXIT_CODE)
    if failure:
        raise SystemExit(1)


@command(COMMAND_GROUP, "The same predictor with recalibrated probabilities.")
def recalibrate(
    checkpoint: Annotated[str, Option(kind="checkpoint", argument=True)],
    write_options: WriteOptions,
    flag_options: FlagOptions,
    log: Annotated[str, Option("The score log whose labels to use.", metavar="URL")],
    sha256: Digest = None,
    model: OfModel = None,
    since: Since = None,
    seed: Seed = 0,
) -> None:
    """Correct the probabilities of CHECKPOINT by the labels of its scores, and set new thresholds; nothing is trained.

    It takes at least 20 labels of answers that this very checkpoint scored. The order of answers of one model does not
    change. As many answers are flagged as are expected to be wrong, unless an option says otherwise. A threshold for
    which the labels are too few is left out, and the card says so.
    """
    from metaprobe.api import Checkpoint, QualityPredictor, recalibrate_quality
    from metaprobe.production.monitoring.label_draw import RECALIBRATED
    from metaprobe.production.monitoring.log import labelled_of_log

    write_options.check(write_options.out, QualityPredictor.kind)
    digest = Checkpoint.digest_at(checkpoint, sha256=sha256)
    with opened_log(log) as score_log:
        labelled = labelled_of_log(score_log, checkpoint=digest, model=model, since=since)
        recalibrated = recalibrate_quality(
            checkpoint,
            labelled,
            out=write_options.out,
            sha256=sha256,
            flags=flag_options,
            writing=write_options,
            seed=seed,
            command=command_line(),
        )
        until = recalibrated.learned_until
        details = {
            "from": digest,
            "to": recalibrated.digest,
            "labels": len(labelled),
            "path": str(write_options.out),
            "until": until,
        }
        score_log.event(RECALIBRATED, details, time=time.time())
    return say_checkpoint(recalibrated)


@command(COMMAND_GROUP, "A new predictor from stored runs and the log.")
def retrain(
    log: Log,
    write_options: WriteOptions,
    flag_options: FlagOptions,
    runs: Annotated[tuple[Path, ...], Option(kind="runs", argument=True)] = (),
    target: Annotated[
        str, Option("Label to learn, correct; or agreement, without labels: whether second answers say the same.")
    ] = TARGET,
    model: OfModel = None,
    since: Since = None,
    hold_back: Annotated[
        float,
        Option("Share of the labelled answers (the latest) that is held out for `promote`.", low=0, below=1),
    ] = 0.3,
    logprobs_mode: Annotated[
        Literal["raw", "processed", "unknown"],
        Option("Kind of the log's log-probabilities; equal to that of RUNS."),
    ] = "unknown",
    folds: Folds = 5,
    seed: Seed = 0,
) -> None:
    """Train on the labelled answers of the log and on RUNS, which are thinned to resemble the log's answers.

    The log must keep log-probabilities (`serve --log-logprobs`). Then: promote OUT --over OLD --log URL.

    With --target agreement no label is read: OUT learns from the second answers of `serve --teach-rate`, and RUNS are
    not used. `adapt` makes P(right) of its score.
    """
    from metaprobe.production.retrain import retrain_on_agreement, retrain_quality

    if target not in (TARGET, AGREEMENT):
        raise click.UsageError(f"--target is {target!r}; expected {TARGET} or {AGREEMENT}, which a score log holds")
    if target == AGREEMENT and runs:
        raise click.UsageError("--target agreement learns from the log alone; leave RUNS out")
    with opened_log(log) as score_log, steps() as on_step:
        options = QualityOptions(
            folds=folds,
            seed=seed,
            on_step=on_step,
            on_line=say,
            command=command_line(),
            **flag_options.flags,
            **vars(write_options),
        )
        answer_options: dict[str, Any] = {"model": model, "since": since, "logprobs_mode": logprobs_mode}
        if target == AGREEMENT:
            retrained = retrain_on_agreement(score_log, options, held_back=hold_back, **answer_options)
        else:
            retrained = retrain_quality(runs, score_log, options, held_back=hold_back, **answer_options)
    say_checkpoint(retrained.checkpoint)
    if target == AGREEMENT:
        without_text = (
            f"; {retrained.without_logprobs} more have no log-probabilities in the log"
            if retrained.without_logprobs
            else ""
        )
        held_back_text = f"; {retrained.held_back} later ones are left for `promote`" if retrained.held_back else ""
        click.echo(
            f"from {retrained.logged} answers of the log that were asked for again{held_back_text}{without_text}",
            err=True,
        )
        return
    click.echo(
        f"from {retrained.kept} of {retrained.stored} stored runs and {retrained.logged} labelled answers of the log; "
        f"{retrained.held_back} later ones are left for `promote`"
        + (
            f", and {retrained.without_logprobs} were left out: the log holds no log-probabilities of them"
            if retrained.without_logprobs
            else ""
        ),
        err=True,
    )


@click.group("log", short_help="What leaves the score log: old answers, one request, outcomes, verdicts.")
def log_command() -> None:
    """Take answers out of a score log, or outcomes and verdicts to files and other programs. A server may write into it
    meanwhile."""


COMMAND_GROUP.add_command(log_command)


@command(log_command, "Delete old answers.")
def prune(
    log: Log,
    days: Annotated[
        float,
        Option("Age in days from which on answers are deleted.", name="older-than", metavar="DAYS", above=0),
    ],
    yes: Annotated[bool, Option("Delete even if the clock seems to have jumped, or most answers would go.")] = False,
) -> None:
    """Delete answers older than --older-than DAYS, with their labels and tags. Alarms and promotions stay.

    `metaprobe serve --log-days` does the same every hour. Nothing is deleted if the clock is more than 7 days after the
    last prune (before the first prune: after the newest answer), nor if more than half of all answers would go at once;
    then --yes is needed. A clock that is months ahead would otherwise empty the log.
    """
    with opened_log(log) as score_log:
        count = score_log.prune(days, sure=yes)
    click.echo(f"took away {count} answers older than {days:g} days")


@command(log_command, "Delete everything known about a request.")
def delete(
    request_ids: Annotated[tuple[str, ...], Option(argument=True, metavar="REQUEST_ID...")],
    log: Log,
) -> None:
    """Delete everything known about a request: scores, texts, log-probabilities, labels, and its own tags.

    REQUEST_ID came with the verdict. If one request had several answers, the second has the id ID:1, and so on; name
    each. A SQLite file is then rewritten, so that no byte of the request is left in it. Exit code 1 if an id was
    unknown, or if the file could not be rewritten within a minute.
    """
    from metaprobe.production.monitoring.retention import further_answers

    with opened_log(log) as score_log:
        unknown_ids = score_log.delete_all(request_ids)
        further_ids = [name for request_id in request_ids for name in further_answers(score_log.tables, request_id)]
    click.echo(f"took away {len(request_ids) - len(unknown_ids)} requests")
    if further_ids:
        click.echo(
            f"other answers to these requests stay: {', '.join(further_ids)}; name them to take them away", err=True
        )
    if unknown_ids:
        raise click.ClickException(
            f"nothing is known of {', '.join(unknown_ids)}; expected ids that came with verdicts"
        )


@command(log_command, "Labelled answers as outcomes, to train P(success) before asking.", name="outcomes")
def log_outcomes(
    log: Log,
    out: Annotated[Path, Option("File of outcomes to write.", kind="new file")],
    held_out: Annotated[
        Path | None, Option("File for the latest outcomes, held out for `promote`.", kind="new file")
    ] = None,
    hold_back: Annotated[
        float, Option("With --held-out: share of the outcomes (the latest) that goes there.", low=0, below=1)
    ] = 0.3,
    model: OfModel = None,
    since: Since = None,
    version_tag: Annotated[
        str, Option("Tag with the version of the model: only the version that answered last counts.", metavar="TAG")
    ] = "",
) -> None:
    """Write each labelled answer as an outcome of its model, with the probability that it was drawn for a label.

    The log must keep the questions (`serve --log-texts`). Then: train success OUT, and promote NEW --over OLD HELD_OUT.
    Both weight a label by 1 / probability. Prints the models with their labels and weighted rates, and what was left
    out.
    """
    from metaprobe.production.logged_outcomes import outcomes_of_log

    if held_out is not None and held_out.resolve() == out.resolve():
        raise click.UsageError(f"--held-out {held_out} is --out too; give another file")
    with opened_log(log) as score_log:
        share = 0.0 if held_out is None else hold_back
        outcomes = outcomes_of_log(score_log, model=model, since=since, version_tag=version_tag, hold_back=share)
    for path, questions in ((out, outcomes.learned), (held_out, outcomes.held_back)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            QuestionOutcomes.write(path, questions)
    if outcomes.note:
        click.echo(f"warning: {outcomes.note}", err=True)
    labels = Counter(name for question in (*outcomes.learned, *outcomes.held_back) for name in question.agents)
    versions = {name: {"version": version} for name, version in outcomes.versions.items()}
    models = {
        name: {"labels": labels[name], "right": round(rate, 4), **versions.get(name, {})}
        for name, rate in outcomes.rates.items()
    }
    summary = {"outcomes": len(outcomes.learned), "held_out": len(outcomes.held_back), "models": models}
    click.echo(json.dumps({**summary, "left_out": outcomes.left_out, "drawn_without_label": outcomes.unlabelled}))


@command(log_command, "Verdicts to a tracing service: Langfuse, MLflow, OpenTelemetry.")
def export(
    log: Log,
    to: Annotated[
        Literal["langfuse", "mlflow", "otel"],
        Option("As Langfuse scores, MLflow assessments, or OpenTelemetry log records."),
    ],
    out: Annotated[Path | None, Option("File for the request bodies, one per line.", kind="new file")] = None,
    posted: Annotated[
        bool, Option("Post them. Address and keys come from environment variables.", name="post")
    ] = False,
    since: Since = None,
    model: OfModel = None,
    checkpoint: OfVersion = None,
    trace_tag: Annotated[
        str, Option("Tag that holds an answer's trace id, in place of its request id.", metavar="TAG")
    ] = "",
) -> None:
    """Write or post the verdicts of a score log to the program that keeps the traces.

    --post reads LANGFUSE_BASE_URL, LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY; MLFLOW_TRACKING_URI with
    MLFLOW_TRACKING_TOKEN or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; OTEL_EXPORTER_OTLP_ENDPOINT and
    OTEL_EXPORTER_OTLP_HEADERS. Exit code 1 where a verdict was not taken.
    """
    from metaprobe.production.monitoring.log import find_version
    from metaprobe.production.monitoring.posting import NotPosted
    from metaprobe.production.verdict_export import poster, requests_for

    if out is None and not posted:
        raise click.UsageError("Missing option '--out' or '--post': where the verdicts go.")
    send = poster(to) if posted else None
    counts, failure = Counter[str](), ""
    with opened_log(log) as score_log, nullcontext() if out is None else out.open("w", encoding="utf-8") as file:
        digest = None if checkpoint is None else find_version(score_log, checkpoint)
        entries = score_log.entries(since=since, model=model, checkpoint=digest)
        counted_entries = (counts.update(["answers"]) or entry for entry in entries)
        for request in requests_for(to, counted_entries, trace_tag=trace_tag):
            counts["verdicts"] += request.verdicts
            if file is not None:
                file.write(json.dumps(request.body) + "\n")
            if send is not None and not failure:
                try:
                    counts["refused"] += (refused_count := send(request))
                    counts["taken"] += request.verdicts - refused_count
                except NotPosted as error:
                    failure = str(error)
    if without_verdict := counts["answers"] - counts["verdicts"]:
        click.echo(f"{without_verdict} answers without a score are left out: {to} takes none without a value", err=True)
    if out is not None:
        click.echo(f"wrote {counts['verdicts']} verdicts for {to}")
    if send is not None:
        click.echo(f"posted {counts['taken']} of {counts['verdicts']} verdicts to {to}")
        if counts["taken"] < counts["verdicts"]:
            failure_text = f"; then a request was not taken ({failure}), and nothing more was sent" if failure else ""
            raise click.ClickException(f"{to} refused {counts['refused']} verdicts{failure_text}")
