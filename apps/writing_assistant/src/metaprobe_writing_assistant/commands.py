"""The commands `metaprobe assist` and `metaprobe study`, which metaprobe finds by the entry points of this package."""

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from metaprobe.option_commands import EXISTING_FILE, FOLDER_TYPE
from metaprobe.records.errors import RecordError

DEFAULT_SESSIONS = Path("out/assist/sessions.sqlite")


@click.command(short_help="The writing assistant: a page on this machine.")
@click.option(
    "--llm",
    multiple=True,
    default=("smollm2-135m",),
    show_default=True,
    help="Embedded name, folder, GGUF file, hub id, or openai:MODEL[@URL]. NAME=L for one module; repeatable.",
)
@click.option(
    "--api",
    multiple=True,
    help="KEY=VALUE for openai: models, such as logprobs_mode=raw or extra_body={...}; repeatable.",
)
@click.option(
    "--sessions",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_SESSIONS,
    show_default=True,
    help="File that holds texts, versions and conversations.",
)
@click.option("--out", type=FOLDER_TYPE, help="Run store that keeps every call of every answer, as `collect` does.")
@click.option("--study", is_flag=True, help="Run a study: conditions hidden and in balanced order, then a survey.")
@click.option("--signal", multiple=True, help="NAME=CHECKPOINT, as for `collect`; quality is shown with an answer.")
@click.option(
    "--constant", multiple=True, metavar="NAME=VALUE", help="Constant of the assistant, such as learned=1; repeatable."
)
@click.option("--tokens", multiple=True, metavar="STAGE=N", help="Most tokens of a module's answers; repeatable.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on: one of this machine.")
@click.option("--port", default=8090, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--allow-host", multiple=True, help="Name of a proxy with a login before the page; repeatable.")
@click.option("--open/--no-open", "open_it", default=True, help="Open the page in the browser.")
def assist(open_it: bool, out: Path | None, **page_options: Any) -> None:
    """Open the writing assistant in the browser: an editor, and beside it an assistant that helps without writing.

    Texts stay in one file on this machine. They are sent to the models that --llm names, and to nobody else. With
    the small embedded model the page works and the advice is poor: name a stronger one.
    """
    from metaprobe.records.store import RunStore
    from metaprobe_writing_assistant.page.run import listener_of, plan_page, serve_page

    settings, load_systems = plan_page(**page_options)
    with listener_of(settings) as listener:
        systems = load_systems()
        address = f"http://{settings.host}:{listener.getsockname()[1]}/"
        click.echo(f"{address}  (texts: {settings.sessions}; Ctrl-C ends)", err=True)
        if open_it:
            click.launch(address)
        store = None if out is None else RunStore(out)
        with nullcontext() if store is None else store.alone():
            keep_run = (lambda run: None) if store is None else (lambda run: store.append([run]))
            asyncio.run(serve_page(settings, systems, listener, on_run=keep_run))


class SharesType(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.5, not before
    """Shares by condition, such as `metacrit=0.42,multi=0.26,single=0.32`."""

    name = "shares"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, float]:
        if isinstance(value, dict):
            return value
        try:
            pairs = [part.split("=") for part in str(value).split(",")]
            return {name.strip(): float(share) for name, share in pairs}
        except ValueError:
            self.fail(f"{value!r}; expected NAME=SHARE,NAME=SHARE,... such as metacrit=0.42,multi=0.26,single=0.32")


seed_option = click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, 2**32 - 1), help="Seed of folds and fits."
)
shares_option = click.option(
    "--shares", type=SharesType(), required=True, help="Condition and share, for each condition."
)
likeness_option = click.option(
    "--likeness",
    default=0.2,
    show_default=True,
    type=click.FloatRange(0, 1, max_open=True),
    help="How much one participant's answers resemble each other: 0 not at all. `analyse` says what it was.",
)


@click.group(short_help="The study of the writing assistant: analyse answers, plan participants.")
def study() -> None:
    """A study in which people compare the conditions of the writing assistant (`metaprobe assist --study`)."""


@study.command(short_help="Shares, tests, effect sizes and reliability of a study's answers.")
@click.argument("file", type=EXISTING_FILE)
@click.option("--only", type=click.Choice(["participants", "simulated"]), help="Leave out the other kind of reader.")
@click.option("--json", "as_json", is_flag=True, help="JSON in place of tables.")
@seed_option
def analyse(file: Path, only: str | None, as_json: bool, seed: int) -> None:
    """Analyse FILE, which `study export` writes: JSON lines, a line a participant.

    The independent case is the participant, never the answer. The package's README explains the table.
    """
    from metaprobe.eval.results import plain
    from metaprobe_writing_assistant.study.analysis import analyse_study
    from metaprobe_writing_assistant.study.answers import read_sheets
    from metaprobe_writing_assistant.study.rendering import render_study

    sheets = read_sheets(file)
    if only:
        sheets = [sheet for sheet in sheets if bool(sheet.simulated_by) == (only == "simulated")]
        if not sheets:
            raise RecordError(f"{file} holds no sheet of the kind {only!r}")
    analysis = analyse_study(sheets, seed=seed)
    click.echo(json.dumps(plain(analysis), indent=1) if as_json else render_study(analysis), nl=as_json)


@study.command(short_help="The answers of a study on the page, for `study analyse`.")
@click.argument("sessions", type=EXISTING_FILE)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="JSON lines.")
def export(sessions: Path, out: Path) -> None:
    """Write the answers of everyone who handed the survey in, from the file of `metaprobe assist --study`."""
    from metaprobe_writing_assistant.page.session_file import SessionFile
    from metaprobe_writing_assistant.page.sessions import Sessions
    from metaprobe_writing_assistant.page.study import StudyFile
    from metaprobe_writing_assistant.study.answers import write_sheets

    with SessionFile(sessions) as file:
        sheets, unfinished = StudyFile(file, Sessions(file)).sheets()
    if not sheets:
        raise RecordError(f"{sessions} holds no survey that was handed in, and {unfinished} that were begun")
    click.echo(f"{write_sheets(out, sheets)} participants; {unfinished} others have not handed in: {out}", err=True)


@study.command(short_help="How many participants a difference needs.")
@shares_option
@click.option("--questions", default=6, show_default=True, type=click.IntRange(1), help="Of the aspect.")
@likeness_option
@click.option(
    "--wanted", default=0.8, show_default=True, type=click.FloatRange(0, 1, True, True), help="Share of studies."
)
@click.option(
    "--alpha", default=0.05, show_default=True, type=click.FloatRange(0, 1, True, True), help="Of Friedman's test."
)
@seed_option
def power(shares: dict[str, float], questions: int, likeness: float, wanted: float, alpha: float, seed: int) -> None:
    """Say how many participants find a preference of these shares in one aspect, by simulated studies."""
    from metaprobe_writing_assistant.study.rendering import render_power
    from metaprobe_writing_assistant.study.simulation import participants_needed

    needed = participants_needed(
        list(shares.values()), questions=questions, likeness=likeness, alpha=alpha, wanted=wanted, seed=seed
    )
    click.echo(render_power(needed), nl=False)


@study.command(short_help="Answers of simulated readers with planted preferences.")
@shares_option
@click.option("--readers", default=48, show_default=True, type=click.IntRange(1), help="How many.")
@likeness_option
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="JSON lines.")
@seed_option
def simulate(shares: dict[str, float], readers: int, likeness: float, out: Path, seed: int) -> None:
    """Write answers of made-up readers who hold these preferences in every aspect; every line says so."""
    from metaprobe_writing_assistant.study.answers import write_sheets
    from metaprobe_writing_assistant.study.simulation import simulate_sheets
    from metaprobe_writing_assistant.study.survey import ASPECTS

    sheets = simulate_sheets(dict.fromkeys(ASPECTS, shares), readers, likeness=likeness, seed=seed)
    click.echo(f"{write_sheets(out, sheets)} simulated readers, no participants: {out}", err=True)
