"""The command `metaprobe promote`: whether a new version may take the running one's place."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import click

from metaprobe.api import AsJson, CallSelection, LineOptions, Option, Seed, command, steps
from metaprobe.production.score_log_tables import opened_log, promotion_table

COMMAND_GROUP = click.Group()
TYPED_SOURCE = click.core.ParameterSource.COMMANDLINE
"""Source of an option that the user has typed."""


@command(COMMAND_GROUP, "Whether a new version may take the running one's place.")
def promote(
    new: Annotated[str | None, Option(kind="checkpoint", argument=True)] = None,
    data: Annotated[tuple[Path, ...], Option(kind="path", argument=True)] = (),
    running: Annotated[str | None, Option("Version that runs now.", name="over", kind="checkpoint")] = None,
    log: Annotated[
        str | None, Option("Score log whose labelled answers take the place of DATA.", metavar="URL")
    ] = None,
    rollback: Annotated[bool, Option("Undo the last promotion in --log.")] = False,
    pins: Annotated[
        Path | None,
        Option("With --log: file of `serve --pins` in which the new version replaces the old one.", kind="file"),
    ] = None,
    target: Annotated[str, Option("Label that both predict.")] = "correct",
    not_worse: Annotated[bool, Option("Promote unless the new version is worse by more than the margin.")] = False,
    margin: Annotated[float, Option("Margin of AUROC and Brier score.", low=0)] = 0.01,
    *,
    call_selection: CallSelection,
    seed: Seed = 0,
    price: Annotated[
        float | None,
        Option(
            "For panels: accuracy that each US dollar for 1,000 questions must gain.  [default: what it gains the "
            "running one]",
            above=0,
        ),
    ] = None,
    as_json: AsJson = False,
    line_options: LineOptions,
) -> None:
    """Decide whether NEW may replace the running version, by DATA or a log from which neither has learned.

    For predictors, blends and probes (kinds quality, blend and hidden), DATA are run stores with the hidden states that
    these read. For panels that choose whom to ask, and for estimators of P(success) (kind success), DATA is one file of
    outcomes; these kinds take --over, and panels --price, of the options. Other kinds cannot be promoted. With --log
    two predictors are compared on labelled answers, and a promotion is written into the log with the digest to go back
    to.

    Exit code 0 if NEW is promoted, 1 if it is refused.
    """
    from metaprobe.api import Checkpoint, Panel, SuccessEstimator

    # Go back to the version before.
    if rollback:
        from metaprobe.production.promotion import roll_back

        if log is None or new is not None or data:
            raise click.UsageError("--rollback takes --log URL, and nothing else")
        with opened_log(log) as score_log:
            restored = roll_back(score_log, pins=pins)
        text = "rolled back {was}\nrun         {digest}\nfolder      {path}".format(**restored)
        click.echo(json.dumps(restored) if as_json else text)
        return
    # Check the options that go together.
    if new is None or running is None or bool(data) == (log is not None):
        raise click.UsageError("expected NEW --over RUNNING with DATA or --log URL, or --rollback --log URL")
    if pins is not None and log is None:
        raise click.UsageError("--pins goes with --log")
    # Decide, by the kind of the checkpoints and the source of the data.
    kinds = [Checkpoint.kind_at(location) for location in (new, running)]
    context = click.get_current_context()
    options = ("target", "not_worse", "margin", "stage", "agent", "seed", "price")
    typed_options = {name for name in options if context.get_parameter_source(name) is TYPED_SOURCE}
    if log is not None:
        if kinds != ["quality", "quality"]:
            raise click.UsageError(f"--log compares predictors, and these are of kinds {' and '.join(kinds)}")
        refuse_options(typed_options & {"price", "target", "stage", "agent"}, "a score log")
        promotion = _promote_in_log(new, running, log, pins, not_worse=not_worse, margin=margin, seed=seed)
    elif kinds == ["panel", "panel"]:
        refuse_options(typed_options - {"price"}, "panels, which are judged by accuracy minus price")
        with steps("comparing on outcomes"), line_options.handling():
            promotion = _promote_on_outcomes(Panel, new, running, data, price)
    elif kinds == ["success", "success"]:
        refuse_options(typed_options, "estimators of P(success), which are judged by log loss")
        with steps("comparing on outcomes"), line_options.handling():
            promotion = _promote_on_outcomes(SuccessEstimator, new, running, data, None)
    elif set(kinds) <= {"quality", "blend", "hidden"}:
        refuse_options(typed_options & {"price"}, "predictors and probes, which have no price")
        with steps("comparing on runs"):
            promotion = _promote_reader(
                new,
                running,
                data,
                target=target,
                not_worse=not_worse,
                margin=margin,
                stage=call_selection.stage,
                agent=call_selection.agent,
                seed=seed,
            )
    else:
        raise click.UsageError(
            f"{new} is of kind {kinds[0]!r} and {running} of kind {kinds[1]!r}; expected predictors and probes "
            "(quality, blend, hidden), two panels, or two estimators of P(success)"
        )
    # Print the decision.
    from metaprobe.api import plain

    result = plain(asdict(promotion))
    click.echo(json.dumps(result, indent=1) if as_json else "\n".join(promotion_table(result)))
    if not promotion.promoted:
        sys.exit(1)


def refuse_options(options: set[str], judged_kind: str) -> None:
    """Raises `UsageError` for an option that would otherwise be ignored."""
    if options:
        shown_names = ", ".join(sorted(f"--{name.strip('_').replace('_', '-')}" for name in options))
        raise click.UsageError(f"{shown_names}: not for {judged_kind}")


def _promote_reader(new: str, running: str, data: tuple[Path, ...], **options: Any) -> Any:
    from metaprobe.api import Promotion

    if files := [str(path) for path in data if path.is_file()]:
        raise click.UsageError(f"{files[0]} is a file; predictors and probes are judged on run stores")
    return Promotion.on_runs(new, running, data, **options)


def _promote_in_log(new: str, running: str, log: str, pins: Path | None, **options: Any) -> Any:
    from metaprobe.api import QualityPredictor
    from metaprobe.production.promotion import promote_in_log

    versions = [QualityPredictor.load(location, on_mismatch="ignore") for location in (new, running)]
    with opened_log(log) as score_log, steps("comparing on labelled answers"):
        return promote_in_log(versions[0], versions[1], score_log, pins=pins, location=new, **options)


def _promote_on_outcomes(kind: Any, new: str, running: str, data: tuple[Path, ...], price: float | None) -> Any:
    """Loads two versions of a kind, the class `Panel` or `SuccessEstimator`, and compares them."""
    from metaprobe.api import Promotion

    if len(data) != 1 or not data[0].is_file():
        raise click.UsageError("panels and estimators are promoted on one file of outcomes, one question a line")
    return Promotion.on_outcomes(kind.load(new), kind.load(running), data[0], price=price)
