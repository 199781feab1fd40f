"""`metaprobe feedback` and `metaprobe sample`: labels into the score log, and whom to ask for more."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metaprobe.terminal import Target, since_option

if TYPE_CHECKING:
    from metaprobe.monitoring.log import ScoreLog

FORMS = ("auto", "lines", "mlflow", "langfuse", "phoenix", "openai-evals")
DAY = 86400.0

log_option = click.option(
    "--log", "where", required=True, metavar="LOG", help="The score log: a SQLite file, or the URL of a database."
)


checkpoint_option = click.option(
    "--checkpoint", metavar="VERSION", help="Only this version: its folder, or the beginning of its digest."
)


@contextmanager
def opened_log(url: str) -> Iterator["ScoreLog"]:
    """The log, closed afterwards. A file that is not there is refused: labels in a new log would be of no answer."""
    from metaprobe.monitoring.log import ScoreLog

    file = Path(url.removeprefix("sqlite:///"))
    if "://" not in str(url).removeprefix("sqlite:///") and not (file.is_file() and file.stat().st_size):
        empty = ": the file is empty" if file.is_file() else ""
        raise click.UsageError(
            f"there is no score log {file}{empty}; expected one that `metaprobe serve --log` has written"
        )
    log = ScoreLog.open(url, entries=False)  # a full disk must not keep anybody from reading
    try:
        yield log
    finally:
        log.close()


@click.command(short_help="Labels from a file into the score log.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@log_option
@click.option(
    "--from", "form", type=click.Choice(FORMS), default="auto", show_default=True, help="What FILE is of; see below."
)
@click.option("--name", default="", help="What was judged, where FILE holds labels of several kinds.")
@click.option("--id", "id_key", default="", help="Where in a record the answer's id stands, such as metadata.id.")
@click.option(
    "--value-map",
    "maps",
    multiple=True,
    metavar="VALUE=MEANING,...",
    help="What values mean that do not say it: fine=correct,meh=unsure, or >=4=correct,<=2=wrong; repeatable.",
)
def feedback(file: Path, where: str, form: str, name: str, id_key: str, maps: tuple[str, ...]) -> None:
    """Put labels into the score log; of one answer the latest counts, but no judge's before a person's.

    FILE is JSON lines or CSV with request_id, label (1, 0 or unsure; right and wrong will do), and if you like who and
    time; or what MLflow (assessments of traces), Langfuse (scores), Phoenix (span annotations) or OpenAI's evals
    (output items) give. The answer's id is looked for under request_id, also in the metadata, and else is the trace's
    or span's.

    Before anything is stored, each kind of value in FILE is said with what it was taken for. A value without its type,
    direction or validity is left out: --value-map says what such values mean.
    """
    from metaprobe.monitoring.label_files import read_label_file

    labels = read_label_file(
        file, form, name=name, id_key=id_key, value_map=",".join(maps), say=lambda line: click.echo(line, err=True)
    )
    with opened_log(where) as log:
        before = log.dropped_labels
        known = log.add_labels(labels)
        dropped = log.dropped_labels - before
        weaker = log.passed_over(labels)
    right, wrong = sum(one.value == 1 for one in labels), sum(one.value == 0 for one in labels)
    click.echo(f"stored {len(labels)} labels: {right} right, {wrong} wrong, {len(labels) - right - wrong} neither")
    if weaker:
        names = ", ".join(dict.fromkeys(one.request_id for one in weaker[:5])) + (", ..." if len(weaker) > 5 else "")
        click.echo(
            f"{len(weaker)} of judges or programs do not count: the log holds labels of a stronger source (a person "
            f"before a program before a judge) for these answers: {names}",
            err=True,
        )
    if known < len(labels):
        click.echo(
            f"{len(labels) - known} are of answers that the log does not hold; they count once it does, within 7 days",
            err=True,
        )
    if dropped:
        click.echo(
            f"{dropped} labels of answers that the log does not hold were dropped: at most 10,000 wait, and none under "
            "an id of more than 256 characters",
            err=True,
        )


@click.command(short_help="Draw answers from the score log to be labelled.")
@log_option
@click.option("--budget", type=click.IntRange(1), default=50, show_default=True, help="Answers to be labelled.")
@click.option(
    "--out",
    type=Target(dir_okay=False, path_type=Path),
    help="Write them as JSON lines, to be filled in and given to `metaprobe feedback`.",
)
@click.option("--page", is_flag=True, help="Show them on a page of this machine, to be labelled by keyboard.")
@click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="Of the page; 0: a free one.")
@click.option("--who", default="", help="Whose labels these are, for the log.")
@click.option("--sheet", default="", help="Take this sheet, drawn before, instead of drawing another.")
@click.option("--days", type=click.FloatRange(0, min_open=True), help="Only answers of the last days.")
@since_option
@click.option("--model", help="Only answers of this model.")
@checkpoint_option
@click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="Only answers with this tag; repeatable.")
@click.option(
    "--floor",
    default=0.25,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Least propensity, as a share of what drawing all alike would give.",
)
@click.option("--seed", type=click.IntRange(0), help="Of the draw; without one, every draw is another.")
def sample(
    where: str,
    budget: int,
    out: Path | None,
    page: bool,
    port: int,
    who: str,
    sheet: str,
    days: float | None,
    since: float | None,
    model: str | None,
    checkpoint: str | None,
    tags: tuple[str, ...],
    floor: float,
    seed: int | None,
) -> None:
    """Draw answers to be labelled, the doubtful ones more often, each with a propensity that the log keeps.

    So estimates from their labels are unbiased. The sheet, or the page, shows questions and answers where the log has
    them (serve --log-texts), and never the score. Answers whose labels `promote` will not count are said.
    """
    from metaprobe.monitoring.sampling import DrawnSheet, draw_sheet, sheet_rows, will_not_count, write_sheet
    from metaprobe.monitoring.versions import find_version

    if out is None and not page:
        raise click.UsageError("Missing option '--out' or '--page': where the answers are to be labelled.")
    if days is not None and since is not None:
        raise click.UsageError("--days and --since both say from when on; give one of them")
    wanted = dict(_named(tag) for tag in tags)
    since = since if days is None else time.time() - days * DAY
    with opened_log(where) as log, _claimed(out):  # before the draw: what is drawn is not drawn again
        if sheet:
            drawn = DrawnSheet(sheet, sheet_rows(log, sheet), 0, 0)
        else:
            digest = None if checkpoint is None else find_version(log, checkpoint)
            choice: dict[str, Any] = {"since": since, "model": model, "checkpoint": digest, "tags": wanted}
            drawn = draw_sheet(log, budget, **choice, floor=floor, seed=seed)
            beside = f"; {drawn.known} more drawn ones have labels already" if drawn.known else ""
            click.echo(f"drew {len(drawn.rows)} of {drawn.candidates} answers{beside}", err=True)
        if said := will_not_count(log, drawn.rows):
            click.echo(f"warning: {said}", err=True)
        click.echo(f"sheet {drawn.name}")  # by which --sheet gives it again, should it not be written now
        if out is not None:
            write_sheet(out, drawn.rows)
        if drawn.rows and all(row.answer is None for row in drawn.rows):
            click.echo(
                "the log holds no texts of these answers (serve --log-texts): look them up by their ids", err=True
            )
        if page:
            from metaprobe.serving.labelling.page import label_on_page

            label_on_page(log, drawn.rows, who=who, port=port, say=lambda said: click.echo(said, err=True))


@contextmanager
def _claimed(out: Path | None) -> Iterator[None]:
    """Makes the file, empty, and takes it away again where the block fails.

    One that is there is refused: it may be a sheet with labels that are nowhere else, or the log itself.
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


def _named(tag: str) -> tuple[str, str]:
    name, equals, value = tag.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--tag {tag!r} is not NAME=VALUE")
    return name, value
