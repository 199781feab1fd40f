"""Training and comparing in Python: each function takes the options of its command, and calls what the command calls.

Heavy packages are imported when a function is called; if one is missing, the error names its extra.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, get_type_hints

from metaprobe.checkpoints import Checkpoint
from metaprobe.checkpoints.display import with_fields
from metaprobe.records.extras import require
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
    TeachOptions,
    TextOptions,
)

if TYPE_CHECKING:
    from metaprobe.eval.results import Comparison
    from metaprobe.records.outcomes import QuestionOutcomes
    from metaprobe.training.recipes.teaching import TaughtCheckpoint

RunPaths = str | Path | Sequence[str | Path]
"""Path of a run store or of a file of lines, or several paths."""

P = ParamSpec("P")
AnyOptions = TypeVar("AnyOptions")
Data = TypeVar("Data")
Result = TypeVar("Result")


def with_options_of(
    options: Callable[P, AnyOptions],
) -> Callable[[Callable[[Data, AnyOptions], Result]], Callable[Concatenate[Data, P], Result]]:
    """Returns a decorator that makes the fields of the dataclass `options` keyword arguments of the function."""

    def decorate(function: Callable[[Data, AnyOptions], Result]) -> Callable[Concatenate[Data, P], Result]:
        @wraps(function)
        def wrapper(data: Data, /, *args: P.args, **fields_given: P.kwargs) -> Result:
            chosen_options = options(*args, **fields_given)
            with chosen_options.handling() if isinstance(chosen_options, LineOptions) else nullcontext():
                return function(data, chosen_options)

        signature = inspect.signature(function)
        data_parameter, *_ = signature.parameters.values()
        data_parameter = data_parameter.replace(kind=inspect.Parameter.POSITIONAL_ONLY)
        hints = get_type_hints(options)
        option_parameters = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(options).parameters.values()
        ]
        wrapper.__signature__ = signature.replace(parameters=[data_parameter, *option_parameters])  # type: ignore[attr-defined]
        wrapper.__doc__ = with_fields(function.__doc__ or "", options)
        return wrapper

    return decorate


def _path_list(stores: RunPaths) -> list[str | Path]:
    return [stores] if isinstance(stores, str | Path) else list(stores)


@with_options_of(QualityOptions)
def train_quality(runs: RunPaths, options: QualityOptions) -> Checkpoint:
    """Trains a quality predictor on log-probabilities, with a calibrated head for each target; returns its checkpoint.

    `runs` is a run store, a file of lines, or several. `target` is a label or several: 0 or 1 (`correct`, `critical`,
    ...), 1 to 3 (`instruction`, `justification`, `evidence`) or `quality`, the judge's sum from 0 to 9.
    `metaprobe.load(checkpoint.path)` gives the predictor. Raises `RecordError` if the runs do not suffice,
    `MissingExtra` without the extra `fit`.

        >>> checkpoint = train_quality("runs", target="correct", folds=2, out="out/quality")
        >>> checkpoint.manifest.training.command
        'metaprobe.train_quality(folds=2)'
    """
    from metaprobe.training.recipes.train_quality import train_quality as recipe

    return recipe(_path_list(runs), options)


@with_options_of(TeachOptions)
def teach(questions: str | Path, options: TeachOptions) -> "TaughtCheckpoint":
    """Trains a quality predictor without labels: it asks a model each question a few times and learns which answers it
    would give again.

    `questions` is a file of lines `{"question"}` or `{"messages"}`. The checkpoint's head `agreement` is the
    probability that the model, asked again, says the same; it is no probability of being right, and the score is None
    until `adapt` has seen 20 labels or more. Finished calls are kept, and the same call goes on where it was stopped.
    Raises `RecordError` if nothing can be asked or learned, `MissingExtra` without the extra `fit`, and `api` for an
    endpoint or `train` for a model of this machine.

        >>> teach("questions.jsonl", llm="http://localhost:8080/v1", out="out/taught")  # doctest: +SKIP
    """
    from metaprobe.training.recipes.teaching import ask_and_train

    return ask_and_train(Path(questions), options)


@with_options_of(HiddenOptions)
def train_hidden(runs: RunPaths, options: HiddenOptions) -> Checkpoint:
    """Trains a linear probe on stored hidden states, and returns its checkpoint.

    `runs` is a run store or several. Layer and position are chosen on rows that the probe was not fitted on. For
    states in arrays of your own, use `ConfidenceProbe.fit`. Raises `RecordError` if the runs do not suffice,
    `MissingExtra` without the extra `train`.

        >>> checkpoint = train_hidden("runs", when="before", folds=2, out="out/difficulty")
        >>> checkpoint.manifest.contract["position"]
        'prompt_last'
    """
    from metaprobe.training.recipes.train_hidden import train_hidden as recipe

    return recipe(_path_list(runs), options)


@with_options_of(BlendOptions)
def train_blend(runs: RunPaths, options: BlendOptions) -> Checkpoint:
    """Trains a blend of hidden states, log-probabilities and what the model stated, and returns its checkpoint.

    `runs` is a run store or several, with hidden states. `metaprobe.load(checkpoint.path)` gives the predictor, which
    also scores answers that lack some of these. Raises `RecordError` if the runs do not suffice, `MissingExtra`
    without the extra `train`.
    """
    from metaprobe.training.recipes.train_blend import train_blend as recipe

    return recipe(_path_list(runs), options)


@with_options_of(GateOptions)
def train_gate(runs: RunPaths, options: GateOptions) -> Checkpoint:
    """Trains a gate that stops an answer while it streams, and returns its checkpoint.

    `runs` is a run store or several. Raises `RecordError` if the runs do not suffice for a rate in `alpha`,
    `MissingExtra` without the extra `fit`.

        >>> checkpoint = train_gate("runs", alpha=[0.1], folds=2, out="out/gate")
        >>> checkpoint.manifest.contract["alphas"]
        [0.1]
    """
    from metaprobe.training.recipes.gate import train_gate as recipe

    return recipe(_path_list(runs), options)


@with_options_of(RouterOptions)
def train_router(outcomes: "str | Path | Sequence[QuestionOutcomes]", options: RouterOptions) -> Checkpoint:
    """Trains a panel on outcomes of several agents (whom to ask, whose answer to keep), and returns its checkpoint.

    `outcomes` is a file with one question on each line, a folder of runs of `collect metacogagent --variant
    every-agent`, or the outcomes themselves. Raises `RecordError` if they do not suffice, `MissingExtra` without the
    extra `fit`.

        >>> checkpoint = train_router("outcomes.jsonl", out="out/router")
        >>> checkpoint.manifest.kind
        'panel'
    """
    from metaprobe.training.recipes.panel import train_router as recipe

    return recipe(outcomes, options)


@with_options_of(PanelOptions)
def train_panel(answers: str | Path, options: PanelOptions) -> Checkpoint:
    """Trains a panel on several labelled answers to each question, and returns its checkpoint.

    `answers` is a run store, a file of OpenAI-format lines that share a `question_id`, or a file of outcomes of several
    agents. `metaprobe.load(checkpoint.path)` gives the `Panel`. Raises `RecordError` if they do not suffice,
    `MissingExtra` without the extra `fit`.

        >>> checkpoint = train_panel("outcomes.jsonl", out="out/panel")
        >>> checkpoint.manifest.contract["same"]
        'number'
    """
    from metaprobe.training.recipes.panel import train_panel as recipe

    return recipe(answers, options)


@with_options_of(SuccessOptions)
def train_success(outcomes: "str | Path | Sequence[QuestionOutcomes]", options: SuccessOptions) -> Checkpoint:
    """Trains an estimator of P(success) of each candidate before it is asked, and returns its checkpoint.

    `outcomes` is a file with one question on each line, a table (.csv, .tsv) with a column for each `candidate`, or the
    outcomes themselves. `metaprobe.load(checkpoint.path)`
    gives the `SuccessEstimator`. Raises `RecordError` if they do not suffice, `MissingExtra` without the extra
    `fit`, or `train` with `read_by`.

        >>> checkpoint = train_success("outcomes.jsonl", out="out/success")
        >>> checkpoint.manifest.kind
        'success'
    """
    from metaprobe.training.recipes.train_success import train_success as recipe

    return recipe(outcomes, options)


@with_options_of(TextOptions)
def train_text(data: RunPaths, options: TextOptions) -> Checkpoint:
    """Trains a reader of question and answer as text, without log-probabilities, and returns its checkpoint.

    `data` is a file of lines with `question`, `answer` and `labels`, a file of OpenAI-format lines, a run store, or
    several of these. `metaprobe.load(checkpoint.path)` gives the `TextReader`. Raises `RecordError` if the texts do
    not suffice, `MissingExtra` without the extra `fit`, or `train` with `read_by`.

        >>> checkpoint = train_text("runs", folds=2, out="out/text")
        >>> checkpoint.manifest.contract["target"]
        'correct'
    """
    from metaprobe.training.recipes.train_text import train_text as recipe

    return recipe(_path_list(data), options)


@with_options_of(AdapterOptions)
def train_adapter(runs: RunPaths, options: AdapterOptions) -> Checkpoint | None:
    """Trains a small language model that reads prompt and answer as text, and returns its checkpoint.

    `runs` is a run store or several. A training that was stopped continues when it is called again. Under `accelerate
    launch` the first process gets the checkpoint, and the others get None. Raises `RecordError` if the runs do not
    suffice, `MissingExtra` without the extra `train`.

        >>> checkpoint = train_adapter("runs", llm="smollm2-135m", out="out/adapter")  # doctest: +SKIP
    """
    require("torch", "train")
    require("peft", "train")
    from metaprobe.training.adapter import train_adapter as recipe

    return recipe(_path_list(runs), options)


@with_options_of(CompareOptions)
def compare(runs: RunPaths, options: CompareOptions) -> "Comparison":
    """Compares what the model says of itself with what its signals show, and returns every method's metrics.

    `runs` is a run store or several. Writes `report.html`, tables, drawings and a row for each answer and method into
    the folder `out`. Raises `RecordError` if the runs do not suffice, `MissingExtra` without the extra `fit`, or
    `train` if hidden states were kept.

        >>> comparison = compare("runs", folds=2, out="out/report")
        >>> comparison.methods[0].name, comparison.to_dict()["answers"] == len(comparison.y)
        ('stated confidence', True)
    """
    from metaprobe.training.recipes.compare_runs import compare as recipe

    return recipe(_path_list(runs), options)
