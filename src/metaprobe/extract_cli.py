"""`metaprobe extract`: what a model that reads recorded calls again says of them: hidden states, log-probabilities."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from metaprobe.progress import progress_bar, quiet_libraries
from metaprobe.records.extras import require
from metaprobe.records.types import POSITIONS
from metaprobe.terminal import FOLDER, RUNS, agent_option, stage_option

OF_STATES = ("via", "workers", "layers", "positions", "every_token", "shard_calls", "other_model")
OF_LOGPROBS = ("out", "top_logprobs")
NAMED = {"positions": "--position", "workers": "--ray"}
"""Parameters that mean something for one of the two only; `NAMED` are the options whose name is another."""


@click.command(short_help="Hidden states or log-probabilities of recorded calls, read again with a model.")
@click.argument("runs", type=RUNS)
@click.option("--llm", help="The model that answered: embedded name, folder, GGUF file or hub id.")
@click.option("--logprobs", metavar="LLM", help="Another model, whose log-probabilities of the answers go to --out.")
@click.option("--out", type=FOLDER, help="Run store for the runs with the log-probabilities of --logprobs.")
@click.option("--top-logprobs", default=0, show_default=True, type=click.IntRange(0), help="Alternatives kept a token.")
@click.option(
    "--via",
    type=click.Choice(("transformers", "vllm")),
    default="transformers",
    show_default=True,
    help="What runs the model for hidden states.",
)
@click.option("--ray", "workers", type=click.IntRange(1), help="Read by so many workers of a Ray cluster.")
@click.option("--layers", default="all", show_default=True, help="'all', 'every:N', or numbers such as '0,8,16'.")
@click.option(
    "--position",
    "positions",
    multiple=True,
    type=click.Choice(POSITIONS),
    help="Token position to keep; repeatable. By default those that collecting keeps.",
)
@click.option("--every-token", is_flag=True, help="Keep every answer token besides.")
@stage_option
@agent_option
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(1), help="Calls read at once.")
@click.option("--shard-calls", default=64, show_default=True, type=click.IntRange(1), help="Calls written to one file.")
@click.option(
    "--other-model", is_flag=True, help="Read calls of whatever model, and leave out the check that it is one."
)
@click.pass_context
def extract(
    context: click.Context, /, runs: Path, llm: str | None, logprobs: str | None, out: Path | None, **options: Any
) -> None:
    """Read recorded calls again with a model.

    With --llm its hidden states are kept beside the RUNS. What is there already is passed over, so a killed extraction
    goes on. Under `accelerate launch` or `torchrun` the processes share the work.

    With --logprobs another model than the one that answered reads messages and answers, and its log-probabilities go
    into a run store of their own (--out), with the labels as they were.
    """
    if (llm is None) == (logprobs is None):
        raise click.UsageError(
            "expected one of --llm MODEL (hidden states) and --logprobs MODEL --out RUNS2 (log-probabilities)"
        )
    for name in OF_LOGPROBS if logprobs is None else OF_STATES:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            option = NAMED.get(name, "--" + name.replace("_", "-"))
            raise click.UsageError(f"{option} belongs to {'--logprobs' if logprobs is None else '--llm'}: leave it out")
    require("torch", "train")
    quiet_libraries()
    if llm is not None:
        _states(runs, llm, **{name: value for name, value in options.items() if name not in OF_LOGPROBS})
    elif out is None:
        raise click.UsageError("Missing option '--out': the run store for what --logprobs reads")
    else:
        chosen = {name: value for name, value in options.items() if name not in OF_STATES}
        _logprobs(runs, str(logprobs), out, **chosen)


def _logprobs(runs: Path, llm: str, out: Path, **options: Any) -> None:
    from metaprobe.collecting.reread import RereadWatch, launch_reread

    with progress_bar("extract", " runs", ends=True) as bar:
        report = launch_reread(runs, llm, out, watch=RereadWatch(*_counters(bar)), **options)
    for reason, count in report.unread.items():
        click.echo(f"without log-probabilities: {count} x {reason}", err=True)
    click.echo(json.dumps(dataclasses.asdict(report)))


def _states(runs: Path, llm: str, *, positions: tuple[str, ...], workers: int | None, **options: Any) -> None:
    from metaprobe.collecting.extract import ExtractionWatch, launch_extract

    with progress_bar("extract", " calls", ends=True) as bar:
        watch = ExtractionWatch(*_counters(bar))
        report: Any  # a report, or None in the other processes of a launch
        if workers is not None:
            from metaprobe.collecting.extract_ray import launch_on_ray

            if options.pop("via") != "transformers":
                raise click.UsageError("--ray reads with transformers, and --via vllm shares its work by itself")
            report, processes = launch_on_ray(runs, llm, workers, watch=watch, positions=positions or None, **options)
        else:
            report, processes = launch_extract(runs, llm, watch=watch, positions=positions or None, **options)
    if report is not None:
        if report.calls and report.disagreement is None and not options["other_model"]:
            click.echo(
                f"not checked: no call holds raw log-probabilities that would show whether {llm} is the model that "
                "answered",
                err=True,
            )
        click.echo(json.dumps({**dataclasses.asdict(report), "processes": processes}))


def _counters(bar: Any) -> tuple[Callable[[int], None], Callable[[int, int], None]]:
    """(told of the total, told of each chunk and its tokens): both draw the bar."""
    tokens = 0

    def on_total(total: int) -> None:
        bar.reset(total)  # loading is no part of the rate

    def on_chunk(done: int, read: int) -> None:
        nonlocal tokens
        tokens += read
        rate = tokens / max(bar.format_dict["elapsed"], 1e-9)
        bar.set_postfix_str(f"{tokens:,} tokens, {rate:.0f} tokens/s", False)
        bar.update(done)

    return on_total, on_chunk
