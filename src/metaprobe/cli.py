"""The command line: parse, call one library function, print. Results on stdout, progress on stderr."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from metaprobe import __version__
from metaprobe.checkpoints import CheckpointError
from metaprobe.records.errors import MissingExtra, RecordError

RUNS = click.Path(exists=True, file_okay=False, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)

seed_option = click.option("--seed", default=0, show_default=True, help="Seed of folds and fits.")
folds_option = click.option(
    "--folds", default=5, show_default=True, type=click.IntRange(2), help="Outer folds by group, for held-out figures."
)
model_option = click.option(
    "--llm", "model", default="smollm2-135m", show_default=True, help="Embedded name, folder, GGUF file or hub id."
)
target_option = click.option(
    "--target", "targets", multiple=True, default=("correct",), show_default=True, help="Label to predict; repeatable."
)
stage_option = click.option("--stage", help="Only calls of this stage.")
agent_option = click.option("--agent", help="Only calls of this agent.")


class Command(click.Group):
    """Turns the library's errors into one line and an exit code, and Ctrl-C into a promise that holds."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (RecordError, CheckpointError, MissingExtra) as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            click.echo("\nInterrupted. Stored runs are kept: a collection goes on from there.", err=True)
            sys.exit(130)


@click.group(cls=Command, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
def main() -> None:
    """How good is a language model's answer? Learned models on the signals it already gives off."""


@main.command()
@click.option("--out", type=FOLDER, default=Path("out/demo"), show_default=True, help="Folder for runs and results.")
@model_option
@click.option("--limit", type=click.IntRange(1), help="Only so many of the 700 items, spread evenly.")
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(1), help="Requests generated at once.")
@folds_option
@seed_option
def demo(out: Path, model: str, limit: int | None, batch_size: int, folds: int, seed: int) -> None:
    """The main job on a real local model: collect, train, export, compare, report.

    Takes under ten minutes on two cores; run again, it resumes.
    """
    from metaprobe.eval.report.text import comparison_table
    from metaprobe.training.demo import collect_demo, train_demo

    with _progress("collect", "run") as (bar, on_run):

        def on_total(total: int) -> None:
            bar.total = total
            bar.refresh()

        collected = collect_demo(
            out, model=model, limit=limit, batch_size=batch_size, on_total=on_total, on_run=lambda run: on_run()
        )
    _say_collected(collected)
    with _steps() as on_step:
        made = train_demo(out, collected=collected, folds=folds, seed=seed, on_step=on_step)
    click.echo(comparison_table(made.comparison))
    for checkpoint in made.checkpoints:
        click.echo(f"checkpoint  {checkpoint.path}")
    click.echo(f"report      {made.report}")


@main.command()
@click.argument("system")
@click.option("--task", required=True, help="Name of a task set, or a .jsonl file of items.")
@model_option
@click.option("--out", type=FOLDER, required=True, help="Run store; collecting into it again resumes.")
@click.option("--limit", type=click.IntRange(1), help="Only so many items, spread evenly over dimensions and levels.")
@click.option("--variant", "variants", multiple=True, help="Only this variant of the system; repeatable.")
@click.option("--prompts", type=RUNS, help="Folder with your own prompt files, in place of the shipped ones.")
@click.option("--capture", help="Layers whose hidden states are kept: 'all', 'every:N', or '0,8,16'.")
@click.option("--top-logprobs", default=0, show_default=True, type=click.IntRange(0), help="Alternatives kept a token.")
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(1), help="Requests generated at once.")
@click.option("--concurrency", default=128, show_default=True, type=click.IntRange(1), help="Runs in flight.")
@click.option(
    "--shard-runs", default=64, show_default=True, type=click.IntRange(1), help="Runs a file, which a kill can lose."
)
@click.option("--no-text", is_flag=True, help="Keep no texts and token ids, only numbers, labels and ids.")
def collect(
    system: str,
    task: str,
    model: str,
    out: Path,
    limit: int | None,
    variants: tuple[str, ...],
    prompts: Path | None,
    capture: str | None,
    top_logprobs: int,
    batch_size: int,
    concurrency: int,
    shard_runs: int,
    no_text: bool,
) -> None:
    """Run SYSTEM over a task with a model, and keep every call with its log-probabilities."""
    from metaprobe.training.collect import collect_local

    with _progress("collect", "run") as (bar, on_run):

        def on_total(total: int) -> None:
            bar.total = total
            bar.refresh()

        report = collect_local(
            system,
            task,
            model,
            out,
            limit=limit,
            variants=variants,
            prompts_folder=prompts,
            capture=capture,
            top_logprobs=top_logprobs,
            batch_size=batch_size,
            concurrency=concurrency,
            shard_runs=shard_runs,
            text=not no_text,
            on_total=on_total,
            on_run=lambda run: on_run(),
        )
    _say_collected(report)
    if report.failed:
        sys.exit(1)


@main.command("import")
@click.argument("file", type=FILE)
@click.option("--out", type=FOLDER, required=True, help="Run store to add to.")
@click.option("--skip-bad", is_flag=True, help="Pass over bad lines and list them, instead of stopping at the first.")
def import_(file: Path, out: Path, skip_bad: bool) -> None:
    """Import OpenAI-format JSON lines into a run store; lines already there are passed over."""
    from metaprobe.records.importer import import_file
    from metaprobe.records.store import RunStore

    report = import_file(file, RunStore(out), on_error="skip" if skip_bad else "stop")
    for message in report.skipped:
        click.echo(message, err=True)
    click.echo(
        json.dumps(
            {"imported": report.imported, "already_stored": report.already_stored, "skipped": len(report.skipped)}
        )
    )
    if report.skipped:
        sys.exit(1)


@main.group()
def train() -> None:
    """Train on stored runs and write a checkpoint: quality, hidden, choice."""


@train.command("quality")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@target_option
@stage_option
@agent_option
@folds_option
@seed_option
def train_quality_command(
    runs: tuple[Path, ...],
    out: Path,
    targets: tuple[str, ...],
    stage: str | None,
    agent: str | None,
    folds: int,
    seed: int,
) -> None:
    """A LightGBM predictor on log-probability features, one calibrated head a target."""
    from metaprobe.training.study import study, train_quality

    with _steps() as on_step:
        studies = {
            target: study(
                runs, target=target, stage=stage, agent=agent, folds=folds, seed=seed, hidden=False, on_step=on_step
            )
            for target in targets
        }
        checkpoint = train_quality(out, studies, command=_command())
    _say_checkpoint(checkpoint)


@train.command("hidden")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@click.option("--target", default="correct", show_default=True, help="Label to predict.")
@click.option(
    "--when",
    type=click.Choice(["before", "after"]),
    default="after",
    show_default=True,
    help="Read the last prompt token (difficulty) or the answer (confidence).",
)
@stage_option
@agent_option
@folds_option
@seed_option
def train_hidden_command(
    runs: tuple[Path, ...],
    out: Path,
    target: str,
    when: str,
    stage: str | None,
    agent: str | None,
    folds: int,
    seed: int,
) -> None:
    """A linear probe on hidden states; the layer is chosen on selection data."""
    from metaprobe.training.study import study, train_hidden

    with _steps() as on_step:
        found = study(runs, target=target, stage=stage, agent=agent, folds=folds, seed=seed, on_step=on_step)
        checkpoint = train_hidden(out, found, when=when, target=target, command=_command())
    _say_checkpoint(checkpoint)


@train.command("choice")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Checkpoint folder to write.")
@folds_option
@seed_option
def train_choice_command(runs: tuple[Path, ...], out: Path, folds: int, seed: int) -> None:
    """Accept a direct answer or ask again step by step, from items that were answered both ways."""
    from metaprobe.training.study import train_choice

    checkpoint, policies = train_choice(out, runs, seed=seed, folds=folds, command=_command())
    for policy in policies:
        a = policy.accuracy
        click.echo(
            f"{policy.policy:32} accuracy {a.estimate:.3f} [{a.low:.3f}, {a.high:.3f}]  "
            f"{policy.tokens_per_question:5.1f} tokens  {policy.step_by_step:4.0%} step by step",
            err=True,
        )
    _say_checkpoint(checkpoint)


@main.command()
@click.argument("checkpoint", type=RUNS)
@click.argument("file", type=FILE)
@click.option("--sha256", help="Digest of the checkpoint, from its author; without it only damage is noticed.")
@click.option(
    "--on-mismatch",
    type=click.Choice(["warn", "refuse", "ignore"]),
    default="warn",
    show_default=True,
    help="For responses of another model or log-probability mode than the checkpoint was trained on.",
)
def score(checkpoint: Path, file: Path, sha256: str | None, on_mismatch: Any) -> None:
    """Score OpenAI-format JSON lines: one line out for each line in, null where a response cannot be scored."""
    from metaprobe.probes.quality import QualityPredictor
    from metaprobe.probes.scoring import score_lines

    predictor = QualityPredictor.load(checkpoint, sha256=sha256, on_mismatch=on_mismatch)
    for line in score_lines(predictor, file):
        click.echo(json.dumps(line))


@main.command()
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Folder for the report and its tables.")
@click.option("--target", default="correct", show_default=True, help="Label to predict.")
@stage_option
@agent_option
@folds_option
@seed_option
def compare(
    runs: tuple[Path, ...], out: Path, target: str, stage: str | None, agent: str | None, folds: int, seed: int
) -> None:
    """Explicit against implicit metacognition on stored runs: tables and report."""
    from metaprobe.eval.report.text import comparison_table
    from metaprobe.training.study import study, write_comparison

    with _steps() as on_step:
        found = study(runs, target=target, stage=stage, agent=agent, folds=folds, seed=seed, on_step=on_step)
        on_step("report")
        comparison, report = write_comparison(out, found, command=_command())
    click.echo(comparison_table(comparison))
    click.echo(f"report      {report}")


@main.command()
@click.argument("checkpoint", type=RUNS)
@click.option("--sha256", help="Digest to hold it against.")
def inspect(checkpoint: Path, sha256: str | None) -> None:
    """What a checkpoint is: contract, figures with intervals, audits, digest. Verifies it first."""
    from metaprobe.checkpoints import describe, load_checkpoint

    click.echo(describe(load_checkpoint(checkpoint, sha256=sha256)))


@contextmanager
def _progress(what: str, unit: str) -> Iterator[tuple[Any, Callable[[], None]]]:
    _quiet_libraries()
    with tqdm(desc=what, unit=f" {unit}s", file=sys.stderr, smoothing=0.05) as bar:
        yield bar, lambda: bar.update(1)


@contextmanager
def _steps() -> Iterator[Callable[[str], None]]:
    with tqdm(bar_format="{desc}  {elapsed}", file=sys.stderr) as bar:
        yield lambda what: bar.set_description_str(f"{what:48}")


def _quiet_libraries() -> None:
    """Two progress bars on one line help nobody."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from metaprobe.records.extras import require

    require("transformers", "train").utils.logging.disable_progress_bar()


def _say_collected(report: Any) -> None:
    click.echo(f"collected {report.done} runs; {report.stored_before} were stored before", err=True)
    for failure in report.failed[:10]:
        click.echo(f"failed: {failure}", err=True)
    if len(report.failed) > 10:
        click.echo(f"... and {len(report.failed) - 10} more", err=True)


def _say_checkpoint(checkpoint: Any) -> None:
    from metaprobe.checkpoints import describe

    click.echo(describe(checkpoint))


def _command() -> str:
    """How this program was called, for the records of what it makes."""
    return " ".join(["metaprobe", *sys.argv[1:]])


if __name__ == "__main__":
    main()
