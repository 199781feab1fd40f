"""`metaprobe train router`, `metaprobe route`, `metaprobe evaluate router`: whom to ask, and whose answer to keep."""

import json
import sys
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click

from metaprobe.progress import lines_done, say, steps
from metaprobe.shown import json_option, router_table, show_result
from metaprobe.terminal import (
    CHECKPOINT,
    FILE,
    FOLDER,
    command_line,
    folds_option,
    replace_options,
    say_checkpoint,
    seed_option,
)


class Means(TypedDict):
    """What the router may spend and wait, or what both are worth; None where it was not said."""

    budget: float | None
    seconds: float | None
    lambda_: float | None
    per_second: float | None


budget_option = click.option(
    "--budget",
    type=click.FloatRange(0, min_open=True),
    metavar="USD_PER_1000",
    help="Mean cost of 1,000 questions, all agents asked counted; sets lambda by the checkpoint's own curve.",
)
lambda_option = click.option(
    "--lambda",
    "lambda_",
    type=click.FloatRange(0, min_open=True),
    help="Accuracy that a US dollar for 1,000 questions must bring.  [default: the checkpoint's]",
)
seconds_option = click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help="Mean wait for an answer, agents asked one after another; sets the price of a second by the same curve.",
)
per_second_option = click.option(
    "--per-second",
    type=click.FloatRange(0),
    help="Accuracy that a second of waiting must bring.  [default: 0]",
)
digest_option = click.option("--sha256", help="Digest that the checkpoint must have.")


@click.command("router", short_help="On outcomes of several agents: whom to ask, whose answer to keep.")
@click.argument("outcomes", type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@replace_options()
@click.option("--agent", multiple=True, help="Only these agents; repeatable.  [default: all in the file]")
@click.option(
    "--prices",
    type=FILE,
    help='For runs without a recorded cost: {"AGENT or MODEL": {"prompt": USD, "completion": USD}} a million tokens.',
)
@click.option(
    "--signal",
    multiple=True,
    help="For runs: confidence[@AGENT]=[stated+]CHECKPOINT in place of what the agents state; train:FOLDER in place of "
    "CHECKPOINT trains one on these runs, and learns from its scores in folds; repeatable.",
)
@click.option(
    "--states", default=20_000, show_default=True, type=click.IntRange(1000), help="Random states to learn gains from."
)
@folds_option
@seed_option
def train_router_command(outcomes: Path, **named: Any) -> None:
    """Whom to ask next and whose answer to keep, from outcomes: one question a line, with every agent's answer.

    OUTCOMES may also be a folder of runs of `collect metacogagent --variant every-agent`: the router then learns from
    what the agents state before they answer, and takes the place of the paper's thresholds (`--policy learned:OUT`).
    With --signal it learns from other confidences, and must then be given those (`collect ... --signal`).
    """
    from metaprobe.training.options import RouterOptions
    from metaprobe.training.router.train import train_router

    with steps() as on_step:
        options = RouterOptions(**named, on_step=on_step, on_line=say, command=command_line())
        checkpoint = train_router(outcomes, options)
    say_checkpoint(checkpoint)


@click.command(short_help="Whom to ask next, or whose answer to keep.")
@click.argument("checkpoint", type=CHECKPOINT)
@click.argument("file", type=FILE)
@budget_option
@seconds_option
@lambda_option
@per_second_option
@digest_option
def route(checkpoint: str, file: Path, sha256: str | None, **means: Unpack[Means]) -> None:
    """What to do next about each line's question, given what is known so far: one decision out for each line in.

    A line is {"id", "question", "dimension", "agents": {name: {"answer", "confidence"}}} with the agents that have been
    asked; all of it may be missing. "candidates" names those that may be asked, by default all. A line that cannot be
    read is refused, with its number and the reason; the others are decided, and the exit code is 1.
    """
    from metaprobe.routing.learned import LearnedRouter
    from metaprobe.training.router.evaluate import route_lines

    router = LearnedRouter.load(checkpoint, sha256=sha256, **_means(means))
    lines = refused = 0
    for line in lines_done("route", route_lines(router, file), file):
        click.echo(json.dumps(line))
        lines += 1
        if line["action"] is None:
            refused += 1
            reason = str(line["reason"]).removeprefix(f"{file}:{line['line']}: ")
            click.echo(f"{file}:{line['line']}: {reason}", err=True)
    if not lines:
        click.echo(f"{file} holds no lines to decide", err=True)
    if refused or not lines:
        sys.exit(1)


@click.group()
def evaluate() -> None:
    """What a checkpoint is worth on data it has not seen: router."""


@evaluate.command("router", short_help="Accuracy, cost, hull and controls of a router.")
@click.argument("checkpoint", type=CHECKPOINT)
@click.argument("outcomes", type=FILE)
@budget_option
@seconds_option
@lambda_option
@per_second_option
@click.option("--decisions", type=click.Path(dir_okay=False, path_type=Path), help="File for one decision a question.")
@digest_option
@seed_option
@json_option
def evaluate_router_command(
    checkpoint: str,
    outcomes: Path,
    decisions: Path | None,
    sha256: str | None,
    seed: int,
    as_json: bool,
    **means: Unpack[Means],
) -> None:
    """Accuracy and cost beside controls, with intervals; all agents asked are paid for. --json has the hull too.

    Lambda comes from the checkpoint's curve, never from the file that is evaluated.
    """
    from metaprobe.records.outcomes import read_outcomes
    from metaprobe.routing.learned import LearnedRouter
    from metaprobe.training.router.evaluate import evaluate_router

    router = LearnedRouter.load(checkpoint, sha256=sha256, **_means(means))
    with steps("playing the router and its controls"):
        figures, decided = evaluate_router(router, read_outcomes(outcomes), seed=seed)
    if decisions is not None:
        decisions.parent.mkdir(parents=True, exist_ok=True)
        decisions.write_text("".join(json.dumps(line) + "\n" for line in decided), encoding="utf-8")
    show_result({"budget": means["budget"], "seconds": means["seconds"], **figures}, as_json, router_table)


def _means(given: Means) -> Means:
    """The limits and prices as they were given. Raises where a limit meets a price that it would set itself."""
    named = {f"--{name.strip('_').replace('_', '-')}" for name, value in given.items() if value is not None}
    if named & {"--budget", "--seconds"} and named & {"--lambda", "--per-second"}:
        raise click.UsageError(
            f"{' and '.join(sorted(named))}: --budget and --seconds fix --lambda and --per-second; give either"
        )
    return given
