"""What each training and the comparison take: one dataclass for the command line and for `metaprobe.train_...`.

Nothing heavy is imported here.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from metaprobe.checkpoints import FlagOptions, check_target
from metaprobe.records.errors import RecordError

OnStep = Callable[[str], None]


class WrongOptions(RecordError):
    """Options that contradict each other; no data is to blame."""


def quiet(what: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What every training has in common."""

    out: str | Path
    """Folder to write."""
    seed: int = 0
    """Seed of folds and fits."""
    on_step: OnStep = quiet
    """A function that is called with the current step, in a few words."""
    on_line: OnStep = quiet
    """A function that is called with each line about the data and the results."""
    command: str = ""
    """How the training was started, for the checkpoint's record; by default the call in Python."""

    def recorded(self, name: str) -> str:
        """Returns `command`, or the call of the function `name` with the options that are not at their defaults."""
        left_out = {"out", "on_step", "on_line", "command", "replace", "pins", "log"}
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name not in left_out]
        defaults = {f.name: f.default for f in fields(self)}
        named = ", ".join(f"{key}={value!r}" for key, value in given if value != defaults[key])
        return self.command or f"metaprobe.{name}({named})"


@dataclass(frozen=True, kw_only=True)
class ReplaceOptions:
    """What of a checkpoint that is there already may be replaced."""

    # No slots: the options of a training inherit these beside their own, and two bases cannot both have slots.
    replace: bool = False
    """Whether to replace the checkpoint of the same kind that `out` holds."""
    pins: str | Path | None = None
    """File of `serve --pins`: a checkpoint that it names is never replaced. By default the file in METAPROBE_PINS."""
    log: str | None = None
    """Score log: a checkpoint that has scored its answers is never replaced. By default the log in METAPROBE_LOG."""

    def replacing(self) -> AbstractContextManager[None]:
        """Returns a context in which every writer replaces only what these options allow."""
        from metaprobe.training.checkpoint import replacing_of

        return replacing_of(self.replace, self.pins, self.log)

    def check(self, out: str | Path, kind: str) -> None:
        """Raises as `check_target` where no checkpoint of the kind may be written to `out`, by these options."""
        with self.replacing():
            check_target(out, kind)


NEW_ONLY = ReplaceOptions()
"""Nothing is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions(RunOptions):
    """What everything has in common that is learned from labelled answers in folds."""

    stage: str | None = None
    """Only calls of this stage, such as `answer`."""
    agent: str | None = None
    """Only calls of this agent."""
    folds: int = 5
    """Outer folds by group, for the held-out metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityOptions(AnswerOptions, FlagOptions, ReplaceOptions):
    """What `train_quality` takes."""

    target: str | Sequence[str] = "correct"
    """Label to predict, or several: 0 or 1 (`correct`, `critical`, ...), 1 to 3 (`instruction`, `justification`,
    `evidence`) or `quality`, the judge's sum from 0 to 9."""
    label_source: str | None = None
    """Only labels of this source: `program`, `judge` or `judge:MODEL`."""
    raw_graph: bool = False
    """Whether to write `raw.onnx` as well, which takes log-probabilities."""
    new_tasks: bool = False
    """Whether the predictor is for models and tasks that are not in the runs: it then remains a free number, without
    base rates and thresholds, which belong to these runs."""
    dask: str | None = None
    """Address of a Dask cluster to fit on."""

    def __post_init__(self) -> None:
        FlagOptions.__post_init__(self)
        if self.new_tasks and self.flags:
            raise WrongOptions(
                f"new_tasks stores no threshold, for one of these runs says nothing about other tasks: leave out "
                f"new_tasks or {next(iter(self.flags))}"
            )
        if self.new_tasks and self.dask is not None:
            raise WrongOptions(
                "new_tasks grows no trees, so that a Dask cluster has nothing to fit: leave out new_tasks or dask"
            )

    @property
    def targets(self) -> tuple[str, ...]:
        """The labels to predict."""
        return (self.target,) if isinstance(self.target, str) else tuple(self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenOptions(AnswerOptions, FlagOptions, ReplaceOptions):
    """What `train_hidden` takes."""

    target: str = "correct"
    """Label to predict; `success-rate` or `level` for a graded difficulty, which is read before the answer."""
    when: Literal["before", "after"] | None = None
    """Whether to read the last prompt token (`before`: will it be right?) or the answer (`after`: is it right?). By
    default `after`, and `before` for a graded difficulty."""
    probe: Literal["logistic", "ridge", "mass-mean", "low-rank"] = "logistic"
    """Kind of probe; `low-rank` reads all layers at once."""
    layers: str = "all"
    """Stored layers to try: `all`, `every:N`, or numbers such as `8,16`."""
    position: Sequence[str] = ()
    """Stored token positions to try; by default all that go with the layers."""
    states_of: str = ""
    """Whose hidden states to read, where several models read the answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendOptions(RunOptions, ReplaceOptions):
    """What `train_blend` takes."""

    target: str = "correct"
    """Label to predict, 0 or 1."""
    stage: str | None = None
    """Only calls of this stage, such as `answer`."""
    agent: str | None = None
    """Only calls of this agent."""
    layers: str = "all"
    """Stored layers to try: `all`, `every:N`, or numbers such as `8,16`; those of the first third are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions(AnswerOptions, ReplaceOptions):
    """What `train_gate` takes."""

    target: str = "correct"
    """Label to predict."""
    alpha: Sequence[float] = ()
    """False-alarm rates to store thresholds for; by default those of 0.01 to 0.3 that the runs allow."""
    stronger_accuracy: float = 0.9
    """Share of right answers that the numbers assume of the model that stopped answers are escalated to."""
    stronger_price: float = 10.0
    """Price that they assume of one of its tokens, in tokens of the model that is watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions(RunOptions, ReplaceOptions):
    """What `train_router` takes."""

    agent: Sequence[str] = ()
    """Only these agents; by default all of them."""
    prices: str | Path | None = None
    """File of prices, for runs without a recorded cost: `{"AGENT or MODEL": {"prompt": USD, "completion": USD}}` for a
    million tokens."""
    signal: Sequence[str] = ()
    """For runs: `confidence[@AGENT]=[stated+]CHECKPOINT` in place of what the agents state; `train:FOLDER` in place of
    CHECKPOINT trains one on these runs."""
    states: int = 20_000
    """Random states from which gains are learned."""
    folds: int = 5
    """Outer folds by group, for the held-out metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions(RunOptions, ReplaceOptions):
    """What `train_adapter` takes."""

    stage: str | None = None
    """Only calls of this stage."""
    agent: str | None = None
    """Only calls of this agent."""
    llm: str = "smollm2-135m"
    """Base model: embedded name, folder, GGUF file or hub id."""
    target: str = "correct"
    """Label to predict."""
    when: Literal["before", "after", "both"] = "both"
    """Whether to judge from the question alone, from question and answer, or either."""
    rank: int = 8
    """Rank of the LoRA matrices."""
    epochs: int = 3
    """Passes over the data at most; training stops early."""
    batch_size: int = 8
    """Texts that are read at once."""
    accumulate: int = 1
    """Batches a step."""
    lr: float = 2e-4
    """Highest learning rate."""
    max_length: int = 512
    """Tokens that are read of a text: its last ones."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the base's weights while training."""
    int8: bool = False
    """Whether to round the exported weights to int8."""
    work: str | Path | None = None
    """Folder for the state of an unfinished training, which is gone on with; by default `out` with `.work` at its
    end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions(AnswerOptions):
    """What `compare` takes."""

    target: str = "correct"
    """Label to predict."""
    scores: str | Path | Sequence[str | Path] = ()
    """CSV files with a method of your own each: columns `call_id` and `score`, a row for every answer."""
