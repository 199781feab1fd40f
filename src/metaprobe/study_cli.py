"""`metaprobe study`: what participants preferred, how many are needed, and readers made up to check the analysis."""

import json
from pathlib import Path

import click

from metaprobe.records.errors import RecordError
from metaprobe.terminal import FILE, seed_option


class Shares(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.5, not before
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


shares_option = click.option("--shares", type=Shares(), required=True, help="Condition and share, for each condition.")
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
@click.argument("file", type=FILE)
@click.option("--only", type=click.Choice(["participants", "simulated"]), help="Leave out the other kind of reader.")
@click.option("--json", "as_json", is_flag=True, help="JSON in place of tables.")
@seed_option
def analyse(file: Path, only: str | None, as_json: bool, seed: int) -> None:
    """Analyse FILE, which `study export` writes: JSON lines, a line a participant.

    The independent case is the participant, never the answer. Docs: study.md.
    """
    from metaprobe.eval.plain import plain
    from metaprobe.eval.study.analysis import analyse_study
    from metaprobe.eval.study.answers import read_sheets
    from metaprobe.eval.study.rendering import render_study

    sheets = read_sheets(file)
    if only:
        sheets = [sheet for sheet in sheets if bool(sheet.simulated_by) == (only == "simulated")]
        if not sheets:
            raise RecordError(f"{file} holds no sheet of the kind {only!r}")
    analysis = analyse_study(sheets, seed=seed)
    click.echo(json.dumps(plain(analysis), indent=1) if as_json else render_study(analysis), nl=as_json)


@study.command(short_help="The answers of a study on the page, for `study analyse`.")
@click.argument("sessions", type=FILE)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="JSON lines.")
def export(sessions: Path, out: Path) -> None:
    """Write the answers of everyone who handed the survey in, from the file of `metaprobe assist --study`."""
    from metaprobe.eval.study.answers import write_sheets
    from metaprobe.serving.assistant.session_file import SessionFile
    from metaprobe.serving.assistant.sessions import Sessions
    from metaprobe.serving.assistant.study import StudyFile

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
    from metaprobe.eval.study.rendering import render_power
    from metaprobe.eval.study.simulation import participants_needed

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
    from metaprobe.eval.study.answers import write_sheets
    from metaprobe.eval.study.simulation import simulate_sheets
    from metaprobe.eval.study.survey import ASPECTS

    sheets = simulate_sheets(dict.fromkeys(ASPECTS, shares), readers, likeness=likeness, seed=seed)
    click.echo(f"{write_sheets(out, sheets)} simulated readers, no participants: {out}", err=True)
