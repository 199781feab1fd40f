"""What a checkpoint is, whether it is whole, and which one to run: `metaprobe inspect`, `verify`, `diff` and so on."""

import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from metaprobe.progress import steps
from metaprobe.shown import json_option, promotion_table, rollback_table, show_lines, show_result
from metaprobe.terminal import (
    CHECKPOINT,
    CHECKPOINT_OR_RUNS,
    FILE,
    agent_option,
    is_store,
    seed_option,
    stage_option,
)

digest_option = click.option("--sha256", help="Digest that the checkpoint must have, from its author.")


@click.command(short_help="What a checkpoint is, or what a run store holds.")
@click.argument("checkpoint", type=CHECKPOINT_OR_RUNS, metavar="CHECKPOINT|RUNS")
@digest_option
def inspect(checkpoint: str, sha256: str | None) -> None:
    """What a checkpoint is: contract, metrics with intervals, audits, digest. Verifies it first.

    Of a run store: how many runs, calls, labels and hidden states it holds, of which systems, tasks and models.
    """
    if is_store(checkpoint):
        if sha256 is not None:
            raise click.UsageError(f"--sha256 is for checkpoints, and {checkpoint} is a run store")
        from metaprobe.collecting.collection_summary import describe_store

        click.echo(describe_store(Path(checkpoint)))
        return
    from metaprobe.checkpoints import UntrustedCheckpoint, describe, load_checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)  # the first line says it where that is so
        click.echo(describe(load_checkpoint(checkpoint, sha256=sha256)))


@click.command(short_help="Whether a checkpoint is whole, and the one that is meant.")
@click.argument("checkpoint", type=CHECKPOINT)
@digest_option
def verify(checkpoint: str, sha256: str | None) -> None:
    """Whether a checkpoint is whole: sizes, hashes, manifest, safe model, golden rows. Exit code 0 where it is, else 1.

    Without --sha256 it shows that nothing was damaged, not who made it.
    """
    from metaprobe.checkpoints import describe_verified, load_checkpoint

    click.echo(describe_verified(load_checkpoint(checkpoint, sha256=sha256), pinned=sha256 is not None))


@click.command(short_help="How two checkpoints differ.")
@click.argument("a", type=CHECKPOINT)
@click.argument("b", type=CHECKPOINT)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, for programs.")
def diff(a: str, b: str, as_json: bool) -> None:
    """How checkpoint B differs from A: contract, thresholds, metrics, data, versions, and answers on A's golden rows.

    Exit code 0 where they are the same but for the time they were made, 1 where they differ, 2 where one cannot be
    read.
    """
    from metaprobe.checkpoints import CheckpointError, compare
    from metaprobe.checkpoints.checkpoint import load_verified

    try:
        found = compare(load_verified(a), load_verified(b))
    except CheckpointError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    click.echo(json.dumps(found.as_json(), indent=1) if as_json else found.as_text())
    sys.exit(0 if found.same else 1)


@click.command(short_help="Whether a new version may take the running one's place.")
@click.argument("new", type=CHECKPOINT, required=False)
@click.option("--over", "running", type=CHECKPOINT, help="The version that runs now.")
@click.argument("data", type=click.Path(exists=True, path_type=Path), nargs=-1)
@click.option("--log", metavar="URL", help="In place of DATA: the labelled answers of this score log.")
@click.option("--rollback", is_flag=True, help="Take back the last promotion in --log: says what ran before.")
@click.option("--pins", type=FILE, help="With --log: the file of `serve --pins`, in which the versions are exchanged.")
@click.option("--target", default="correct", show_default=True, help="Label that both predict.")
@click.option("--not-worse", is_flag=True, help="Promote also what is not worse by more than the margin.")
@click.option("--margin", default=0.01, show_default=True, type=click.FloatRange(0), help="Of AUROC and Brier score.")
@stage_option
@agent_option
@seed_option
@click.option(
    "--lambda",
    "lambda_",
    type=click.FloatRange(0, min_open=True),
    help="For routers: accuracy that a US dollar for 1,000 questions must bring.  [default: the running one's]",
)
@json_option
@click.pass_context
def promote(
    context: click.Context,
    /,
    new: str | None,
    running: str | None,
    data: tuple[Path, ...],
    log: str | None,
    rollback: bool,
    pins: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Whether NEW may take the place of the running version, by DATA or a log that neither has learned from.

    DATA are run stores for predictors and probes (kinds quality and hidden); for routers it is one file of outcomes,
    and of the options --over and --lambda are theirs. Other kinds have no such guard. With --log two predictors are
    compared on labelled answers, and a promotion is written into the log with the digest to go back to.

    Exit code 0 where it is promoted, 1 where it is refused.
    """
    from metaprobe.checkpoints.checkpoint import load_verified

    if rollback:
        return show_lines([_roll_back(log, new, data, pins)], as_json, lambda found: rollback_table(found[0]))
    if new is None or running is None or bool(data) == (log is not None):
        raise click.UsageError("expected NEW --over RUNNING with DATA or --log URL, or --rollback --log URL")
    if pins is not None and log is None:
        raise click.UsageError("--pins goes with --log")
    kinds = [load_verified(location).manifest.kind for location in (new, running)]
    typed = {name for name in options if context.get_parameter_source(name) is _TYPED}
    price = options.pop("lambda_")
    if log is not None:
        if kinds != ["quality", "quality"]:
            raise click.UsageError(f"--log compares predictors, and these are of kinds {' and '.join(kinds)}")
        _refuse(typed & {"lambda_", "target", "stage", "agent"}, "a score log")
        kept = {name: options[name] for name in ("not_worse", "margin", "seed")}
        decided = _promote_in_log(new, running, log, pins, **kept)
    elif kinds == ["router", "router"]:
        _refuse(typed - {"lambda_"}, "routers, which are judged by accuracy minus price")
        with steps("comparing on outcomes"):
            decided = _promote_router(new, running, data, price)
    elif set(kinds) <= {"quality", "hidden"}:
        _refuse(typed & {"lambda_"}, "predictors and probes, which have no price")
        with steps("comparing on runs"):
            decided = _promote_reader(new, running, data, **options)
    else:
        raise click.UsageError(
            f"{new} is of kind {kinds[0]!r} and {running} of kind {kinds[1]!r}; expected predictors and probes "
            "(quality, hidden), or two routers"
        )
    show_result(asdict(decided), as_json, promotion_table)
    if not decided.promoted:
        sys.exit(1)
    return None


_TYPED = click.core.ParameterSource.COMMANDLINE


def _refuse(options: set[str], whom: str) -> None:
    """An option that would be passed over in silence."""
    if options:
        named = ", ".join(sorted(f"--{name.strip('_').replace('_', '-')}" for name in options))
        raise click.UsageError(f"{named}: not for {whom}")


def _promote_reader(new: str, running: str, data: tuple[Path, ...], **options: Any) -> Any:
    from metaprobe.training.promotion import load_reader, promote

    if files := [str(path) for path in data if path.is_file()]:
        raise click.UsageError(f"{files[0]} is a file; predictors and probes are judged on run stores")
    return promote(load_reader(new), load_reader(running), data, **options)


def _promote_in_log(new: str, running: str, log: str, pins: Path | None, **options: Any) -> Any:
    from metaprobe.feedback_cli import opened_log
    from metaprobe.probes.quality import QualityPredictor
    from metaprobe.training.promotion import promote_in_log

    versions = [QualityPredictor.load(location, on_mismatch="ignore") for location in (new, running)]
    with opened_log(log) as opened, steps("comparing on labelled answers"):
        return promote_in_log(versions[0], versions[1], opened, pins=pins, location=new, **options)


def _roll_back(log: str | None, new: str | None, data: tuple[Path, ...], pins: Path | None) -> dict[str, str]:
    from metaprobe.feedback_cli import opened_log
    from metaprobe.training.promotion import roll_back

    if log is None or new is not None or data:
        raise click.UsageError("--rollback takes --log URL, and nothing else")
    with opened_log(log) as opened:
        return roll_back(opened, pins=pins)


def _promote_router(new: str, running: str, data: tuple[Path, ...], price: float | None) -> Any:
    from metaprobe.records.outcomes import read_outcomes
    from metaprobe.routing.learned import LearnedRouter
    from metaprobe.training.promotion import promote_router as promote

    if len(data) != 1 or not data[0].is_file():
        raise click.UsageError("a router is promoted on one file of outcomes, one question a line")
    return promote(LearnedRouter.load(new), LearnedRouter.load(running), read_outcomes(data[0]), lambda_=price)


@click.command("push", short_help="Upload a checkpoint to the Hugging Face hub.")
@click.argument("checkpoint", type=CHECKPOINT)
@click.argument("repository")
@click.option("--license", "license_", required=True, help="Identifier of the hub, such as apache-2.0, or 'other'.")
@click.option("--tag", "tags", multiple=True, help="Further tag on the hub; repeatable.")
@click.option("--private", is_flag=True, help="Make the repository private, where it is new.")
@digest_option
def push_command(
    checkpoint: str, repository: str, license_: str, tags: tuple[str, ...], private: bool, sha256: str | None
) -> None:
    """Upload a checkpoint to the hub repository OWNER/NAME, with the hub's metadata in its card.

    Log in first: `hf auth login`. Prints where it is, and the digest to give to those who load it.
    """
    from metaprobe.checkpoints import load_checkpoint, push

    loaded = load_checkpoint(checkpoint, sha256=sha256)
    published = push(loaded, repository, license=license_, tags=tags, private=private)
    click.echo(json.dumps({"location": published.location, "sha256": published.digest, "url": published.url}))
