"""Learns when another cycle pays, which answer to return and which critics to hear.

python -m research.stages.command RUNS --out C
"""

from pathlib import Path
from typing import Any

import click

from metaprobe.checkpoints import check_target
from metaprobe.progress import steps
from metaprobe.terminal import (
    FOLDER,
    RUNS,
    command_line,
    folds_option,
    replace_options,
    replacing_given,
    say_checkpoint,
    seed_option,
)


@click.command("stages", short_help="On runs of a system: when to stop, what to return, whom to hear.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@click.option(
    "--token-price",
    default=0.02,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of right answers that 1,000 generated tokens must bring.",
)
@click.option(
    "--use",
    multiple=True,
    type=click.Choice(["iterate", "select", "budget", "regulate"]),
    help="Use this head though it does not win; repeatable.  [default: the heads that win]",
)
@replace_options()
@folds_option
@seed_option
def train_stages_command(
    runs: tuple[Path, ...], out: Path, token_price: float, use: tuple[str, ...], folds: int, seed: int, **named: Any
) -> None:
    """The decisions of one system, from its runs: Monitor-Generate-Verify, MetaCrit, Self-Refine or Self-Verification.

    Collect them with `--policy exhaustive`, MetaCrit with `--variant every-stage`; Self-Verification tries everything
    as it is, and runs of Self-Refine that the critic ended teach what to do before that. Each head is held against the
    paper's rule and simple ways on groups that it was not fitted on; where it does not win, the paper's rule decides.
    """
    from metaprobe.training.crossfit.evidence import load_runs
    from research.stages.train import train_stages
    from research.stages.ways import LEARNED

    writing = replacing_given(named)
    with writing.replacing(), steps() as on_step:
        check_target(out, "stages")
        on_step("reading the runs")
        checkpoint, studies = train_stages(
            out,
            load_runs(runs),
            token_price=token_price,
            use=use,
            folds=folds,
            seed=seed,
            command=command_line(),
            on_step=on_step,
        )
    for point, study in studies.items():
        click.echo(f"{point}: {'used' if study.used else 'not used'}, as {study.why}", err=True)
        for way, played in study.ways.items():
            gain = study.gains.get(way)
            against = "" if gain is None else f"  {LEARNED} {gain.estimate:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"
            value = played.value(token_price).mean()
            click.echo(
                f"  {way:32} accuracy {played.correct.mean():.3f}  {played.tokens.mean():6.0f} tokens  "
                f"value {value:.4f}{against}",
                err=True,
            )
    say_checkpoint(checkpoint)


if __name__ == "__main__":
    train_stages_command()
