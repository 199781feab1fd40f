"""`metaprobe recalibrate` and `retrain`: what the labels of a score log change in a predictor."""

import time
from pathlib import Path
from typing import Any

import click

from metaprobe.feedback_cli import log_option, opened_log
from metaprobe.monitor_cli import model_option
from metaprobe.progress import say, steps
from metaprobe.terminal import (
    CHECKPOINT,
    FILE,
    FOLDER,
    RUNS,
    command_line,
    flag_options,
    flags_given,
    folds_option,
    replace_options,
    replacing_given,
    say_checkpoint,
    seed_option,
    since_option,
)


@click.command(short_help="The same predictor, its probabilities right again.")
@click.argument("checkpoint", type=CHECKPOINT)
@click.option("--log", metavar="URL", help="The score log whose labels to use; or --labels.")
@click.option("--labels", type=FILE, help='JSON lines {"score": 0.83, "label": 1}, in place of a log.')
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@replace_options(log=False)
@click.option("--sha256", help="Digest that the checkpoint must have.")
@model_option
@since_option
@flag_options
@seed_option
def recalibrate(
    checkpoint: str,
    log: str | None,
    labels: Path | None,
    out: Path,
    sha256: str | None,
    model: str | None,
    since: float | None,
    seed: int,
    **named: Any,
) -> None:
    """Give CHECKPOINT right probabilities by the labels of its scores, and new thresholds; nothing is trained.

    It takes at least 20 labels of answers that this very checkpoint scored. The order of answers of one model stays as
    it is. As many answers are flagged as are expected to be wrong, unless an option says otherwise. A threshold that so
    few labels cannot carry is left out, and the card says so.
    """
    from metaprobe.checkpoints import load_checkpoint
    from metaprobe.monitoring.labelled import labelled_of_log, read_labelled
    from metaprobe.monitoring.sampling import RECALIBRATED
    from metaprobe.probes.quality_contract import KIND
    from metaprobe.training.rescale import LEARNED_UNTIL, recalibrate_quality

    flags, writing = flags_given(named), replacing_given(named, log=log)
    given = {"out": out, "sha256": sha256, "flags": flags, "writing": writing}
    if (log is None) == (labels is None):
        raise click.UsageError("give either --log or --labels")
    if labels is not None:
        made = recalibrate_quality(checkpoint, read_labelled(labels), **given, seed=seed, command=command_line())
        return say_checkpoint(made)
    writing.check(out, KIND)
    digest = load_checkpoint(checkpoint, sha256=sha256).digest
    with opened_log(str(log)) as opened:
        found = labelled_of_log(opened, checkpoint=digest, model=model, since=since)
        made = recalibrate_quality(checkpoint, found, **given, seed=seed, command=command_line())
        until = made.manifest.contract.get(LEARNED_UNTIL, time.time())
        details = {"from": digest, "to": made.digest, "labels": len(found), "path": str(out), "until": until}
        opened.event(RECALIBRATED, details, time=time.time())
    return say_checkpoint(made)


@click.command(short_help="A new predictor from stored runs and the log.")
@click.argument("runs", type=RUNS, nargs=-1)
@log_option
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@replace_options(log=False)
@model_option
@since_option
@flag_options
@click.option(
    "--hold-back",
    default=0.3,
    show_default=True,
    type=click.FloatRange(0, 1, max_open=True),
    help="Share of the labelled answers, the latest, that is left for `promote`.",
)
@click.option(
    "--logprobs-mode",
    type=click.Choice(["raw", "processed", "unknown"]),
    default="unknown",
    show_default=True,
    help="What the log's log-probabilities are; as those of RUNS.",
)
@folds_option
@seed_option
def retrain(
    runs: tuple[Path, ...],
    where: str,
    out: Path,
    model: str | None,
    since: float | None,
    hold_back: float,
    logprobs_mode: Any,
    folds: int,
    seed: int,
    **named: Any,
) -> None:
    """Train on RUNS, thinned to what the log's answers are like, and on the labelled answers of the log.

    The log must keep log-probabilities (`serve --log-logprobs`). Then: promote OUT --over OLD --log URL.
    """
    from metaprobe.training.options import QualityOptions
    from metaprobe.training.recipes.retrain import retrain_quality

    given = {**flags_given(named).flags, **named, "log": where, "out": out, "folds": folds, "seed": seed}
    with opened_log(where) as opened, steps() as on_step:
        options = QualityOptions(**given, on_step=on_step, on_line=say, command=command_line())
        made = retrain_quality(
            runs, opened, options, model=model, since=since, held_back=hold_back, logprobs_mode=logprobs_mode
        )
    say_checkpoint(made.checkpoint)
    click.echo(
        f"from {made.kept} of {made.stored} stored runs and {made.logged} labelled answers of the log; "
        f"{made.held_back} later ones are left for `promote`",
        err=True,
    )
