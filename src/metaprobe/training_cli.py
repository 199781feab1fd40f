"""Commands that train and compare: `metaprobe train`, `teach`, `adapt`, `compare`, `quickstart`."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import click

import metaprobe.train as library
from metaprobe.checkpoints import FlagOptions
from metaprobe.checkpoints.option_fields import Option
from metaprobe.llms.call_selection import CallSelection
from metaprobe.option_commands import AsJson, OneCheckpoint, RunsOrLines, Stores, command
from metaprobe.progress import quiet_libraries, say, steps
from metaprobe.terminal import (
    command_line,
    quickstart_table,
    say_checkpoint,
    say_taught,
    show_result,
    wait_without_spinning,
)
from metaprobe.training.success_options import SuccessOptions
from metaprobe.training.training_options import (
    AdapterOptions,
    BlendOptions,
    CompareOptions,
    GateOptions,
    HiddenOptions,
    LineOptions,
    PanelOptions,
    QualityOptions,
    RouterOptions,
    RunOptions,
    Seed,
    TeachOptions,
    TextOptions,
    WriteOptions,
)

COMMAND_GROUP = click.Group()
Result = TypeVar("Result")


@click.group(short_help="Train on stored runs, and write a checkpoint.")
def train() -> None:
    """Train on labelled answers and write a checkpoint: quality, gate, hidden, blend, text, adapter, panel,
    router, or success."""
    wait_without_spinning()


COMMAND_GROUP.add_command(train)


def _run_with_steps(function: Callable[..., Result], data: Any, options: RunOptions) -> Result:
    """Calls a function of `metaprobe.train` with these options, shows its steps, and returns its result.

    Args:
        function: the function.
        data: its first argument: runs, answers or outcomes.
        options: dataclass whose fields become the keyword arguments.
    """
    option_values = {field.name: getattr(options, field.name) for field in fields(options)}
    with steps() as on_step:
        return function(data, **option_values | {"on_step": on_step, "on_line": say, "command": command_line()})


def _train_and_print(train_function: Callable[..., Any], data: Any, options: RunOptions) -> None:
    """Calls a training and prints its checkpoint. Under a launcher with several processes only one has the checkpoint.

    Args:
        train_function: the training function, of `metaprobe.train`.
        data: its first argument.
        options: its options.
    """
    checkpoint = _run_with_steps(train_function, data, options)
    if checkpoint is not None:
        say_checkpoint(checkpoint)


@command(train, "On log-probabilities: a calibrated verdict.", name="quality")
def train_quality_command(runs: RunsOrLines, options: QualityOptions) -> None:
    """Train a predictor on log-probabilities, with one calibrated head for each target.

    A head that is a probability begins with one free number. It grows to seven terms, and then to terms and trees, only
    if this pays on held-out groups; the card says which step it reached.

    RUNS are run stores, or files of lines. A target is a label: 0 or 1 (correct, critical, ...), 1 to 3 (instruction,
    justification, evidence), or quality, the judge's sum from 0 to 9. Labels may be missing: each head learns from the
    answers that have its own label.
    """
    _train_and_print(library.train_quality, runs, options)


@command(train, "On hidden states: difficulty before, confidence after.", name="hidden")
def train_hidden_command(runs: Stores, options: HiddenOptions) -> None:
    """Train a probe on hidden states. The layer is chosen on rows on which the probe was not fitted."""
    _train_and_print(library.train_hidden, runs, options)


@command(train, "On hidden states, log-probabilities and what is stated, together.", name="blend")
def train_blend_command(runs: Stores, options: BlendOptions) -> None:
    """Train one predictor on hidden states, log-probabilities and what the model stated; any of them may be missing
    later.

    The stated number and the state of the prompt are used only if they pay on held-out groups.
    """
    _train_and_print(library.train_blend, runs, options)


@command(train, "On the first log-probabilities: when to stop a stream.", name="gate")
def train_gate_command(runs: RunsOrLines, options: GateOptions) -> None:
    """Train heads on the first tokens of an answer, and thresholds that stop it at a promised rate of false alarms.

    The gate looks after 3, 5, 10, 20, 30 and 50 tokens. Failures that begin later are not seen.

    RUNS are run stores, or files of lines.
    """
    _train_and_print(library.train_gate, runs, options)


@command(train, "On outcomes of several agents: whom to ask, whose answer to keep.", name="router")
def train_router_command(outcomes: Annotated[Path, Option(kind="path", argument=True)], options: RouterOptions) -> None:
    """Train a panel that chooses whom to ask next and whose answer to keep, from outcomes: one question a line, with
    every agent's answer.

    OUTCOMES may also be a folder of runs of `collect metacogagent --variant every-agent`: the router then learns from
    what the agents state before they answer, and takes the place of the paper's thresholds (`--policy learned:OUT`).
    With --signal it learns from other confidences, and `collect` must then get the same --signal.
    """
    _train_and_print(library.train_router, outcomes, options)


@command(train, "On several answers to a question: which to keep, how sure.", name="panel")
def train_panel_command(answers: Annotated[Path, Option(kind="path", argument=True)], options: PanelOptions) -> None:
    """Train a panel: which of several answers to keep, how sure it is right, and when to stop asking for more.

    ANSWERS is a run store with several labelled answers to each item, a file of OpenAI-format lines that share a
    question_id, or a file of outcomes of several agents.
    """
    _train_and_print(library.train_panel, answers, options)


@command(train, "On outcomes of several models: P(success) of each before it is asked.", name="success")
def train_success_command(
    outcomes: Annotated[Path, Option(kind="path", argument=True)], options: SuccessOptions
) -> None:
    """Train an estimator of P(success) of each model on a request, before any model is asked.

    OUTCOMES holds one question a line, with the outcome of each model, or is a table with a column for each model.
    Rates, dimensions, words and, with --read-by, states of the prompt are tried in this order; a step is taken only if
    it pays on held-out groups. The card says what each step gained.
    """
    _train_and_print(library.train_success, outcomes, options)


@command(train, "On question and answer as text: words, no log-probabilities.", name="text")
def train_text_command(data: RunsOrLines, options: TextOptions) -> None:
    """Train a reader of question and answer alone: P(right), or the level of a rubric.

    DATA are run stores, or files of lines, with log-probabilities or without. The reader of words needs no extra to
    score. With --read-by a local model reads the texts too, if this helps on held-out groups; the card says what it
    gained.
    """
    _train_and_print(library.train_text, data, options)


@command(train, "On prompt and answer as text: a small language model.", name="adapter")
def train_adapter_command(runs: RunsOrLines, options: AdapterOptions) -> None:
    """Train a small language model with LoRA and a confidence head, merged and exported; it needs no torch to run.

    Stopped at any moment and called again, the training goes on from its last evaluation.
    """
    quiet_libraries()
    _train_and_print(library.train_adapter, runs, options)


@command(COMMAND_GROUP, "Confidence without labels: ask each question twice, learn what is said again.", name="teach")
def teach_command(
    options: TeachOptions,
    questions: Annotated[Path, Option(kind="file", argument=True, metavar="QUESTIONS")],
) -> None:
    """Ask a model each of some QUESTIONS a few times, and learn which of its answers it would give again. No labels.

    A URL is the address of an OpenAI-compatible endpoint (it usually ends in /v1); MODEL is openai:NAME[@URL], or an
    embedded name, folder, GGUF file or hub id. QUESTIONS are lines {"question": ...} or {"messages": [...]}, with "id"
    and "group" if you have them. The number of calls and the price are printed first; --dry-run ends there. Answers are
    kept: the same command continues where it was stopped.

    The checkpoint gives P(said again) of a single answer, never P(right): a model may say the same wrong thing each
    time. 20 to 50 labels and `adapt` make P(right) of it.
    """
    wait_without_spinning()
    quiet_libraries()
    say_taught(_run_with_steps(library.teach, questions, options))


@command(COMMAND_GROUP, "The same predictor for runs of your own, from fifty labels.")
def adapt(
    checkpoint: OneCheckpoint,
    labelled: RunsOrLines,
    write_options: WriteOptions,
    flag_options: FlagOptions,
    line_options: LineOptions,
    call_selection: CallSelection,
    seed: Seed = 0,
) -> None:
    """Fit the base rate and the scale of CHECKPOINT to LABELLED: run stores, or files of lines with labels.

    It takes at least 20 labels. The order of answers of one run does not change; of a CHECKPOINT that was taught
    agreement, the labels correct the order too. As many answers are flagged as are
    expected to be wrong, unless an option says otherwise.
    """
    from metaprobe.checkpoints.description import describe_adapted
    from metaprobe.training.adapt import adapt_quality

    checkpoint_written = adapt_quality(
        checkpoint,
        labelled,
        out=write_options.out,
        flags=flag_options,
        writing=write_options,
        lines=line_options,
        stage=call_selection.stage,
        agent=call_selection.agent,
        seed=seed,
        command=command_line(),
    )
    click.echo(describe_adapted(checkpoint_written))


@command(COMMAND_GROUP, "Explicit against implicit metacognition: report and tables.")
def compare(runs: RunsOrLines, options: CompareOptions) -> None:
    """Compare explicit with implicit metacognition on stored runs: a report, tables, and a row for each item and
    method.
    """
    wait_without_spinning()
    from metaprobe.eval.report.write import comparison_table

    comparison = _run_with_steps(library.compare, runs, options)
    click.echo(comparison_table(comparison))
    click.echo(f"report      {Path(options.out) / 'report.html'}")


@command(COMMAND_GROUP, "The first verdicts: recorded answers, fifty labels, no network.", name="quickstart")
def quickstart_command(
    out: Annotated[
        Path | None, Option("File for the recorded answers, as an example of the lines to bring.", kind="new file")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score recorded answers that come with the package, adapt to fifty of them, and show flags beside the truth.

    It needs the base install only and takes seconds. The output ends with the commands for answers of your own.
    """
    from metaprobe.eval.results import plain
    from metaprobe.quickstart import RECORDED, quickstart

    if out is not None:
        out.write_bytes(RECORDED.read_bytes())
    show_result(plain(quickstart()), as_json, quickstart_table)
