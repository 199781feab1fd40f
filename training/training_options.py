"""Options of each training and of the comparison. One dataclass serves the command line and `metaprobe.train_...`.

Nothing heavy is imported here.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from metaprobe.checkpoints import CheckpointExists, FlagOptions, check_target
from metaprobe.checkpoints.flagging import AGREEMENT, ENDED
from metaprobe.checkpoints.option_fields import Option
from metaprobe.checkpoints.save import InService, Replacing, pinned_in, replacing
from metaprobe.llms.call_selection import Agent, Stage
from metaprobe.records.bad_lines import handling
from metaprobe.records.errors import MissingExtra, RecordError
from metaprobe.records.plugins import house_function
from metaprobe.records.types import POSITIONS

OnStep = Callable[[str], None]

Seed = Annotated[int, Option("Seed of folds and fits.", low=0, high=2**32 - 1)]
Folds = Annotated[int, Option("Outer folds by group, for held-out metrics.", low=2)]
Target = Annotated[str, Option("Label to predict.")]
Agents = Annotated[
    Sequence[str],
    Option("Only these agents of the outcomes; for a table, the columns of their scores; repeatable.  [default: all]"),
]
Costs = Annotated[
    Sequence[str],
    Option("NAME=USD: US dollars of each answer of this agent whose outcome has no cost_usd; repeatable."),
]
Llm = Annotated[str, Option("Embedded name, folder, GGUF file or hub id.")]
Questions = Annotated[
    Sequence[str],
    Option("TARGET=TEXT: a question that this head answers in `serve`'s decisions; repeatable.", name="question"),
]
Layers = Annotated[str, Option("Stored layers to try: 'all', 'every:N', or '8,16'.")]


SameAnswers = Annotated[
    Literal["exact", "number", "choice", "function", "overlap"] | None,
    Option(
        "For agreement: what two equal answers share; function: code, overlap: half of their words.  [default: what "
        "the items' checks say, or else the answers' own form]"
    ),
]


class WrongOptions(RecordError):
    """Options contradict each other, whatever the data."""


def refuse_agreement(target: str) -> None:
    """Raises `WrongOptions` for the target `agreement`, in trainings that learn from labels alone."""
    if target == AGREEMENT:
        raise WrongOptions(
            "target is agreement, which readers of texts and gates do not learn; expected a label. Agreement is "
            "learned from log-probabilities or hidden states (metaprobe train quality, hidden or blend --target "
            "agreement)"
        )


def refuse_ended(*targets: str) -> None:
    """Raises `WrongOptions` for the target `ended`, in trainings that read finished answers."""
    if ENDED in targets:
        raise WrongOptions(
            f"target is {ENDED}, which a finished answer itself says (finish_reason); expected a label. A gate learns "
            f"from the first tokens whether the answer will end (metaprobe train gate --target {ENDED})"
        )


def question_texts(questions: Sequence[str], *targets: str) -> dict[str, dict[str, list[str]]]:
    """Returns `{"questions": {target: texts}}` for a contract; empty without questions.

    Raises `WrongOptions` for a question that is not TARGET=TEXT with one of these targets.
    """
    texts: dict[str, list[str]] = {}
    for question in questions:
        target, _, text = question.partition("=")
        if target not in targets or not text.strip():
            raise WrongOptions(f"question {question!r}: expected TARGET=TEXT, with TARGET one of {', '.join(targets)}")
        texts.setdefault(target, []).append(text)
    return {"questions": texts} if texts else {}


def check_same(same: str | None, *targets: str) -> None:
    """Raises `WrongOptions` if a reading of equal answers is given and no target is agreement."""
    if same is not None and AGREEMENT not in targets:
        raise WrongOptions(
            f"same={same} says when answers agree, and the target is {', '.join(targets)}: add the target {AGREEMENT}, "
            "or leave same out"
        )


def quiet(what: str) -> None:
    """Reports nothing. It is the default of `on_step` and `on_line`."""


@dataclass(frozen=True, kw_only=True)
class OutOptions:
    """Says where a checkpoint is written."""

    # No slots, for the same reason as `ReplaceOptions`.
    out: Annotated[str | Path, Option("Checkpoint folder to write.", kind="folder")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(OutOptions):
    """Options that every training has."""

    seed: Seed = 0
    on_step: OnStep = quiet
    """A function that is called with the current step, in a few words."""
    on_line: OnStep = quiet
    """A function that is called with each line about the data and the results."""
    command: str = ""
    """How the training was started, for the checkpoint's record; by default the call in Python."""

    def recorded(self, name: str) -> str:
        """Returns `command`, or the call of the function `name` with the options that are not at their defaults."""
        left_out = {"out", "on_step", "on_line", "command", "replace", "pins", "log", "strict", "bad"}
        values = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name not in left_out]
        defaults = {f.name: f.default for f in fields(self)}
        changed_options = ", ".join(f"{key}={value!r}" for key, value in values if value != defaults[key])
        return self.command or f"metaprobe.{name}({changed_options})"


@dataclass(frozen=True, kw_only=True)
class ReplaceOptions:
    """Says which existing checkpoint may be replaced."""

    # No slots: options of a training inherit from several such classes, and two bases cannot both have slots.
    replace: Annotated[bool, Option("Replace a checkpoint of the same kind in `out`.")] = False
    pins: Annotated[
        str | Path | None,
        Option(
            "File of `serve --pins`: a checkpoint that it names is never replaced. By default the file in "
            "METAPROBE_PINS.",
            kind="file",
        ),
    ] = None
    log: Annotated[
        str | None,
        Option(
            "Score log: a checkpoint that has scored its answers is never replaced. By default the log in "
            "METAPROBE_LOG.",
            metavar="URL",
        ),
    ] = None

    def replacing(self) -> AbstractContextManager[None]:
        """Returns a context in which every writer replaces only what these options allow."""
        in_service = [] if self.pins is None else [pinned_in(Path(self.pins))]
        if (
            log := self.log or os.environ.get("METAPROBE_LOG", "").strip()
        ):  # an engine's middleware reads the same variable
            in_service.append(scored_in(log))
        return replacing(Replacing(self.replace, tuple(in_service)))

    def check(self, out: str | Path, kind: str) -> None:
        """Raises as `check_target` does if these options do not allow a checkpoint of the kind in `out`."""
        with self.replacing():
            check_target(out, kind)


def scored_in(where: str) -> InService:
    """Returns a function that tells, for a digest, why the checkpoint is in service by the score log `where`.

    The function returns an empty text if the checkpoint has scored no answer of the log. It raises `CheckpointExists`
    if the log cannot be read, because it is then unknown whether the checkpoint is in service.
    """

    def why_kept(digest: str) -> str:
        file = Path(where.removeprefix("sqlite:///"))
        try:
            if "://" not in where.removeprefix("sqlite:///") and not file.is_file():
                raise RecordError(f"there is no file {file}")
            scored = house_function("has_scored")(where, digest)
        except (RecordError, MissingExtra, OSError) as error:
            raise CheckpointExists(
                f"the score log {where} cannot be read ({error}), so that it is not known which checkpoints have "
                "scored its answers: name the log of `metaprobe serve --log`"
            ) from error
        return f"which has scored answers of the log {where}" if scored else ""

    return why_kept


@dataclass(frozen=True, kw_only=True)
class WriteOptions(ReplaceOptions, OutOptions):
    """Says where a checkpoint is written, and which existing one it may replace."""


NEW_ONLY = ReplaceOptions()
"""Options with which no checkpoint is replaced."""


@dataclass(frozen=True, kw_only=True)
class LineOptions:
    """Says how bad lines of files are handled: by default they are left out and counted."""

    # No slots, for the same reason as `ReplaceOptions`.
    strict: Annotated[bool, Option("Stop at the first bad line of a file; by default bad lines are left out.")] = False
    bad: Annotated[
        str | Path | None,
        Option("New file for unchanged bad lines, to be corrected and given again.", kind="new file"),
    ] = None

    def handling(self) -> AbstractContextManager[None]:
        """Returns a context in which readers of files handle bad lines by these options."""
        return handling(strict=self.strict, bad=self.bad)


LEFT_OUT = LineOptions()
"""Options with which bad lines are left out and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions(RunOptions):
    """Options of trainings that learn from labelled answers in folds."""

    stage: Stage = None
    agent: Agent = None
    folds: Folds = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityOptions(AnswerOptions, FlagOptions, ReplaceOptions, LineOptions):
    """Options of `train_quality`."""

    target: Annotated[str | Sequence[str], Option("Label to predict; repeatable.")] = "correct"
    reads: Annotated[
        Literal["logprobs", "decisions"],
        Option("Learn from log-probabilities, or from a decision model's answers (`metaprobe judge`)."),
    ] = "logprobs"
    label_source: Annotated[str | None, Option('Only labels of this source: "program", "judge", "judge:MODEL".')] = None
    questions: Questions = ()
    new_tasks: Annotated[
        bool, Option("For use on new models and tasks: exports a free number, without thresholds.")
    ] = False  # base rates and thresholds belong to these runs
    same: SameAnswers = None
    dask: Annotated[str | None, Option("Fit on this Dask cluster; runs are read here.", metavar="ADDRESS")] = None

    def __post_init__(self) -> None:
        FlagOptions.__post_init__(self)
        question_texts(self.questions, *self.targets)
        check_same(self.same, *self.targets)
        refuse_ended(*self.targets)
        if self.reads == "decisions" and self.new_tasks:
            raise WrongOptions("new_tasks is for log-probabilities, and decisions are read: leave it out")
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
class TeachOptions(RunOptions, FlagOptions, ReplaceOptions, LineOptions):
    """Options of `teach`."""

    llm: Annotated[str, Option(argument=True, metavar="URL|MODEL")]
    """Address of an endpoint, `openai:MODEL` or `openai:MODEL@URL`, or a model of this machine."""
    model: Annotated[str, Option("For a URL: the model to ask.  [default: the only one that it serves]")] = ""
    limit: Annotated[int, Option("Most questions to ask, drawn by the seed.", low=20)] = 100
    samples: Annotated[int, Option("Answers per question.", low=2, high=8)] = 2
    temperature: Annotated[
        float,
        Option(
            "Sampling temperature, usually 0.7 to 1: answers to one question must sometimes differ.",
            above=0,
        ),
    ] = 1.0  # at 1.0 log-probabilities before and after temperature are equal
    max_tokens: Annotated[int, Option("Most tokens of an answer. Nothing is learned from cut answers.", low=1)] = 512
    answers: Annotated[
        str | Path | None,
        Option(
            "File for the answers, as lines to which labels can be added.  [default: OUT.answers.jsonl]",
            kind="new file",
        ),
    ] = None
    cache: Annotated[
        str | Path | None,
        Option("File of finished calls, which are not repeated.  [default: OUT.calls]", kind="new file"),
    ] = None
    concurrency: Annotated[int, Option("Requests in flight.", low=1)] = 16
    api: Annotated[
        Sequence[str],
        Option("KEY=VALUE for an endpoint, such as logprobs_mode=raw or extra_body={...}; repeatable."),
    ] = ()
    prices: Annotated[
        str | Path | None,
        Option('{"MODEL": {"prompt": USD, "completion": USD}} for a million tokens each.', kind="file"),
    ] = None
    same: SameAnswers = None
    dry_run: Annotated[bool, Option("Print the number and cost of the calls, and ask nothing.")] = False
    folds: Folds = 5

    def __post_init__(self) -> None:
        FlagOptions.__post_init__(self)
        if not (2 <= self.samples <= 8 and self.limit >= 20 and self.temperature > 0):
            raise WrongOptions(
                f"limit={self.limit}, samples={self.samples}, temperature={self.temperature}: expected at "
                "least 20, 2 to 8, and more than 0"
            )

    @property
    def answers_file(self) -> Path:
        """The file that the answers are written to."""
        return Path(f"{self.out}.answers.jsonl" if self.answers is None else self.answers)

    @property
    def cache_file(self) -> Path:
        """The file in which finished calls are kept."""
        return Path(f"{self.out}.calls" if self.cache is None else self.cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendOptions(AnswerOptions, FlagOptions, ReplaceOptions):
    """Options of `train_blend`, and base of the options of other trainings on hidden states."""

    target: Target = "correct"
    layers: Layers = "all"
    position: Annotated[
        Sequence[str],
        Option("Stored token position to try; repeatable.  [default: all that go with the layers]", choices=POSITIONS),
    ] = ()
    states_of: Annotated[
        str, Option("Model whose states are used, if several models read the answers.", metavar="MODEL")
    ] = ""
    same: SameAnswers = None

    def __post_init__(self) -> None:
        FlagOptions.__post_init__(self)
        check_same(self.same, self.target)
        refuse_ended(self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenOptions(BlendOptions):
    """Options of `train_hidden`."""

    when: Annotated[
        Literal["before", "after"],
        Option("Read the last prompt token (will it be right?) or the answer (is it?)."),
    ] = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions(AnswerOptions, ReplaceOptions, LineOptions):
    """Options of `train_gate`."""

    target: Annotated[
        str, Option(f"Label to predict. `{ENDED}`, without labels: whether the answer ends before its token limit.")
    ] = "correct"
    token_limit: Annotated[
        int | None,
        Option(f"For `{ENDED}`: the token limit; longer answers are cut.  [default: the only one that cut]", low=1),
    ] = None
    alpha: Annotated[
        Sequence[float],
        Option(
            "False-alarm rate to store thresholds for; repeatable.  [default: all of 0.01 to 0.3 that the runs allow]",
            above=0,
            below=1,
        ),
    ] = ()
    layers: Annotated[
        str,
        Option(
            "Layers whose hidden states are tried: 'all', 'every:N', or numbers such as '8,16'. `extract --position "
            "looks` stores them.  [default: none]"
        ),
    ] = ""

    def __post_init__(self) -> None:
        refuse_agreement(self.target)
        if self.token_limit is not None and self.target != ENDED:
            raise WrongOptions(
                f"token_limit={self.token_limit} chooses the answers for target {ENDED}, and the target is "
                f"{self.target}: leave it out"
            )


Same = Annotated[
    Literal["exact", "number", "choice", "function", "overlap"] | None,
    Option(
        "For lines and outcomes: what two equal answers share; function: code, overlap: half of their words.  "
        "[default: what suits their labels best]"
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions(RunOptions, ReplaceOptions, LineOptions):
    """Options of `train_router`."""

    same: Same = None
    agent: Agents = ()
    cost_usd: Costs = ()
    prices: Annotated[
        str | Path | None,
        Option(
            'For runs without a recorded cost: {"AGENT or MODEL": {"prompt": USD, "completion": USD}} a million '
            "tokens.",
            kind="file",
        ),
    ] = None
    signal: Annotated[
        Sequence[str],
        Option("For runs: confidence[@AGENT]=[stated+]CHECKPOINT in place of what the agents state; repeatable."),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelOptions(RunOptions, ReplaceOptions, LineOptions):
    """Options of `train_panel`."""

    sampled: Annotated[
        str | None,
        Option("For runs: the stage whose answers are samples.  [default: the one that is labelled]", metavar="STAGE"),
    ] = None
    same: Same = None
    agent: Agents = ()
    score_by: Annotated[
        str,
        Option(
            "For runs and lines: question of a decision model (`metaprobe judge`) whose number is each answer's score.",
            metavar="QUESTION",
        ),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions(AnswerOptions, FlagOptions, ReplaceOptions, LineOptions):
    """Options of `train_text`."""

    target: Annotated[str, Option("Label to predict: 0 and 1, or whole levels of a rubric.")] = "correct"
    read_by: Annotated[
        str,
        Option(
            "Causal model or sentence encoder whose states are tried after the words: an embedded "
            "name, a folder or a hub id. Needs the extra train, also to score.",
            metavar="MODEL",
        ),
    ] = ""
    layers: Layers = "every:5"  # of the reading model's
    adapter: Annotated[
        str,
        Option(
            "Model to fit with LoRA, tried after all others: an embedded name, a folder or a "
            "hub id. Takes hours on a CPU; needs the extra train.",
            metavar="MODEL",
        ),
    ] = ""
    with_logprobs: Annotated[bool, Option("Also read the answers' log-probabilities, which the answers must have.")] = (
        False
    )
    questions: Questions = ()

    def __post_init__(self) -> None:
        FlagOptions.__post_init__(self)
        refuse_agreement(self.target)
        refuse_ended(self.target)
        question_texts(self.questions, self.target)
        if self.with_logprobs and (self.read_by or self.adapter):
            raise WrongOptions("with_logprobs: they are read beside words alone; leave out read_by and adapter")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions(RunOptions, ReplaceOptions, LineOptions):
    """Options of `train_adapter`."""

    llm: Llm = "smollm2-135m"
    target: Target = "correct"
    when: Annotated[
        Literal["before", "after", "both"],
        Option("Judge from the question alone, from question and answer, or either."),
    ] = "both"
    rank: Annotated[int, Option("Rank of the LoRA matrices.", low=1)] = 8
    epochs: Annotated[int, Option("Most passes over the data; training may stop early.", low=1)] = 3
    batch_size: Annotated[int, Option("Texts read at once.", low=1)] = 8
    lr: Annotated[float, Option("Learning rate.", above=0)] = 2e-4
    max_length: Annotated[int, Option("Most tokens of a text; its last ones are read.", low=8)] = 512
    work: Annotated[
        str | Path | None,
        Option(
            "Folder for the state of an unfinished training, which is continued.  [default: OUT.work]", kind="folder"
        ),
    ] = None
    stage: Stage = None
    agent: Agent = None
    questions: Questions = ()

    def __post_init__(self) -> None:
        refuse_agreement(self.target)
        refuse_ended(self.target)
        question_texts(self.questions, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions(AnswerOptions, LineOptions):
    """Options of `compare`."""

    out: Annotated[str | Path, Option("Folder for the report, tables, figures and items.", kind="folder")]
    target: Target = "correct"
    scores: Annotated[
        str | Path | Sequence[str | Path],
        Option(
            "CSV file with your own method's scores: columns call_id and score, one row per answer; repeatable.",
            kind="file",
        ),
    ] = ()
    learning_curves: Annotated[
        bool,
        Option("Fit again on 100, 300, 1,000 and 3,000 labels, if there are more. Takes up to twice as long."),
    ] = False
    export: Annotated[
        str | Path | None, Option("Also write the checkpoint of the method that the report recommends.", kind="folder")
    ] = None
