"""The streaming gate: ends a response that begins like a bad one, with a promised rate of false alarms.

The promise: at most a share alpha of the good responses is stopped. It holds over all looks together, on average over
new groups and over the calibration data, for responses like those of the training runs, also in their lengths. A
response shorter than a look has fewer looks, and one that ends before the first look is never stopped. Where answers
have become longer than in training, more looks are taken, and more good answers may be stopped.
"""

import math
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.checkpoints.files import BUNDLED
from metaprobe.checkpoints.flagging import ENDED
from metaprobe.probes.canary_guard import CanaryGuard
from metaprobe.probes.features import features_one, schema_of
from metaprobe.probes.question_form import QUESTION_FORM, question_form
from metaprobe.probes.training_runs import OnMismatch, check_choice, mismatch
from metaprobe.records.canaries import CanaryStates
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.response import LOGPROB_ROUNDING
from metaprobe.records.types import LOOK_STATES, FloatArray

GateAction = Literal["continue", "stop", "escalate"]

GATE = "gate"
GATE_INPUT = "features"
QUESTION_INPUT = "question"
"""Input of the graph that holds the form of the question; NaN if the question is not known."""
STATES_INPUT = "states"
"""Input of the graph that holds the mean of the newest hidden states; NaN if there are none."""
LOGPROBS_ALONE = ""
BESIDE_LOGPROBS = (LOGPROBS_ALONE, QUESTION_INPUT, STATES_INPUT)
"""Names of what an answer may bring beside its log-probabilities: nothing, its question, or its hidden states too.
Each has thresholds of its own.
"""
BUNDLED_GATE = f"{BUNDLED}gate"
NUMBER_TYPES = (float, int, np.floating, np.integer)
NO_FORM = np.full((1, len(QUESTION_FORM)), np.nan, np.float32)
NO_QUESTION = "without the question: the gate reads the log-probabilities alone"
NO_STATES = "without hidden states from a checked source: the gate does not read them"
LOWEST_LOGPROB = float(np.finfo(np.float32).min)
"""Lowest log-probability that is kept: the lowest float32."""


TOKEN_LIMIT = "token_limit"
"""Key of the contract for the token limit of the training answers, where the target is `ended`."""


@dataclass(frozen=True, slots=True)
class GateWords:
    """Words for the answers that a gate tells apart, and for its probability."""

    probability: str
    good: str
    """Answers that the promise spares."""
    bad: str
    """Answers that are to be stopped, after those that are spared."""
    good_ones: str
    """Answers that the promise spares, of one task."""


GOOD_OR_BAD = GateWords("P(good)", "good answers", "bad ones", "good ones")
ENDED_OR_CUT = GateWords("P(ends by itself)", "answers that would end by themselves", "cut ones", "ended ones")


def words_for(target: str) -> GateWords:
    """Returns the words for a gate that learned this label."""
    return ENDED_OR_CUT if target == ENDED else GOOD_OR_BAD


def head_name(look: int) -> str:
    """Returns the name of the graph output that judges a response by its first `look` tokens."""
    return f"look{look}"


def threshold_name(alpha: float, look: int, beside: str = LOGPROBS_ALONE) -> str:
    """Returns the manifest's name of the P(good) below which a gate of false-alarm rate `alpha` fires at that look.

    `beside`: what the answers bring beside their log-probabilities, one of `BESIDE_LOGPROBS`.
    """
    return f"stop@{alpha:g}/{head_name(look)}{f'+{beside}' if beside else ''}"


class StreamingGate(Pretrained):
    """Starts a gate for each response. Several threads may share it.

        >>> gate = StreamingGate.load(stop=0.05).start()  # one for each answer
        >>> [gate.push(logprob) for logprob in (-0.1, -0.2, -0.05)]
        ['continue', 'continue', 'continue']

    `stop` and `escalate` are false-alarm rates, chosen from those that the checkpoint has (`alphas`); None means
    never. A response that begins badly is stopped. Where both are given, `escalate` is at most `stop`, and a response
    that begins so badly that even the rate `escalate` allows it gets the action `escalate`: the question should go to
    a stronger model. The first look at which a threshold is crossed decides the action. At most a share `stop` of the
    good responses is ended in either way, and at most a share `escalate` gets the action `escalate`.

    A checkpoint that `reads_question` also reads the form of the question (length, count of numbers), where `start` is
    given the question. Answers without their question have thresholds of their own, with the same promise.

    A checkpoint that `reads_states` also reads hidden states of one layer (`layer`), where `start` is given the states
    that their source gave the canaries, and `push` each token's state. Other answers have thresholds of their own here
    too.

    A checkpoint with a `token_limit` learned which answers end by themselves and which that limit cuts. Its good
    answers are those that end by themselves, right or wrong.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        stop: float | None = 0.05,
        escalate: float | None = None,
        on_mismatch: OnMismatch = "warn",
    ) -> None:
        """`on_mismatch`: what to do with a response of another model or log-probability mode than was trained on.

        Raises `ContractMismatch` for a checkpoint of another kind, or whose heads do not fit what it says of them, and
        for a rate without thresholds in the checkpoint, naming the rates that it has.
        """
        check_kind(checkpoint.path, checkpoint.manifest.kind, GATE)
        self.checkpoint = checkpoint
        # Read the looks and the schema.
        stated = checkpoint.manifest.contract.get("looks")
        self.looks: tuple[int, ...] = tuple(stated) if isinstance(stated, list | tuple) else ()
        """Numbers of tokens, rising, after which the gate judges the answer and may stop it."""
        outputs = {spec.name for spec in checkpoint.manifest.outputs}
        if (
            not self.looks
            or not all(type(look) is int and look > 0 for look in self.looks)
            or sorted(set(self.looks)) != [*self.looks]
            or {head_name(look) for look in self.looks} != outputs
        ):
            raise ContractMismatch(
                f"{checkpoint.path} states looks {stated!r} and has outputs {sorted(outputs)}; expected rising numbers "
                f"of tokens and an output such as {head_name(10)!r} for each"
            )
        self.schema = schema_of(checkpoint)
        if self.schema.limit is None or self.schema.limit < self.looks[-1]:
            raise ContractMismatch(
                f"{checkpoint.path}: schema {self.schema.name!r} does not see the first {self.looks[-1]} tokens alone, "
                f"which its last look needs: train it again"
            )
        if self.schema.uses_top:
            raise ContractMismatch(
                f"{checkpoint.path}: schema {self.schema.name!r} reads alternatives, and no gate is shown any: retrain"
            )
        # Check the caller's choices.
        self._on_mismatch = check_choice(on_mismatch)
        for name, alpha in (("stop", stop), ("escalate", escalate)):
            if alpha is not None and (isinstance(alpha, bool) or not isinstance(alpha, int | float)):
                raise TypeError(f"{name} is {alpha!r}; expected a false-alarm rate such as 0.05, or None for never")
        if stop is not None and escalate is not None and escalate > stop:
            raise ValueError(
                f"escalate={escalate:g} is above stop={stop:g}: every response that is to be escalated would have been "
                f"stopped before. Give escalate at most {stop:g}, or stop=None"
            )
        self.stop, self.escalate = stop, escalate
        # Read the target and its token limit.
        limit = checkpoint.manifest.contract.get(TOKEN_LIMIT)
        if (self.target == ENDED) != (type(limit) is int and limit > 0):
            raise ContractMismatch(
                f"{checkpoint.path} states the target {self.target!r} and the token limit {limit!r}; expected a limit "
                f"for the target {ENDED!r} alone: train it again"
            )
        self.token_limit: int | None = limit
        """The token limit of the training answers, for the target `ended`; else None."""
        # Look up the thresholds.
        self._question = QuestionRange.from_checkpoint(checkpoint)
        self._states = StatesRead.from_checkpoint(checkpoint)
        self._check_inputs()
        read = {QUESTION_INPUT: self._question, STATES_INPUT: self._states}
        self.limits = {
            beside: self._limits(beside) for beside in BESIDE_LOGPROBS if not beside or read[beside] is not None
        }
        """Maps what answers bring beside log-probabilities, as far as the checkpoint reads it, and a look to the
        P(good) below which an answer is escalated, and below which it is stopped; 0 for never.
        """

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        stop: float | None = 0.05,
        escalate: float | None = None,
        sha256: str | None = None,
        on_mismatch: OnMismatch = "warn",
    ) -> Self:
        """Returns the gate in a checkpoint folder, verified; without a path, the one that comes with the package.

        `sha256`: the digest that its author gave you. Raises a `CheckpointError`.
        """
        checkpoint = load_checkpoint(BUNDLED_GATE if path is None else path, sha256=sha256)
        return cls(checkpoint, stop=stop, escalate=escalate, on_mismatch=on_mismatch)

    @property
    def alphas(self) -> tuple[float, ...]:
        """The false-alarm rates for which the checkpoint has thresholds."""
        return tuple(self.checkpoint.manifest.contract.get("alphas", ()))

    @property
    def reads_question(self) -> bool:
        """Whether the checkpoint reads the form of the question."""
        return self._question is not None

    @property
    def reads_states(self) -> bool:
        """Whether the checkpoint reads hidden states."""
        return self._states is not None

    @property
    def layer(self) -> int | None:
        """The layer whose hidden states the checkpoint reads; None if it reads none."""
        return None if self._states is None else self._states.layer

    @property
    def target(self) -> str:
        """The label that the checkpoint learned."""
        return str(self.checkpoint.manifest.contract.get("target", ""))

    def start(
        self,
        *,
        model: str = "",
        logprobs_mode: str = "unknown",
        question: str = "",
        max_tokens: int | None = None,
        canaries: CanaryStates | None = None,
    ) -> "Gate":
        """Returns a gate for one response. Warns where `model` is known and the checkpoint was not trained on it.

        Args:
            model: the model that answers; empty where it is not known.
            logprobs_mode: mode of the log-probabilities.
            question: the user's last message as the model gets it, with all that a template writes around the
                question. Without the question, or if it is longer or shorter than all questions of the training, the
                gate reads only log-probabilities. Its note then says so.
            max_tokens: token limit of the request; None where it is not known. It matters to a checkpoint with a
                `token_limit` alone.
            canaries: states that the source of the hidden states gave the canaries (`LocalLLM.canaries`). They are
                compared once with those of the training. Each `push` then needs a state. None if no states will come.
                Without them, after a failed check, and where the checkpoint reads the question and none can be read,
                hidden states are not read.

        Raises `TypeError` for a question that is no text, and `ContractMismatch` for a token limit other than the
        checkpoint's, unless `on_mismatch` is "ignore": the promise does not hold there.
        """
        if not isinstance(question, str):
            raise TypeError(
                f"question came as {type(question).__name__}; expected the text of the user's last message, or nothing "
                "where it is not known"
            )
        if self.token_limit and self._on_mismatch != "ignore" and max_tokens not in (None, self.token_limit):
            raise ContractMismatch(
                f"the request has a token limit of {max_tokens}, and the gate learned which answers end within "
                f"{self.token_limit} tokens: train a gate on answers with that limit"
            )
        manifest = self.checkpoint.manifest
        note = mismatch(
            manifest.generator,
            model=model,
            logprobs_mode=logprobs_mode,
            contract=manifest.contract,  # no `reader`: who streams gives its own numbers
            on_mismatch=self._on_mismatch,
            stacklevel=2,
        )
        if self.token_limit and max_tokens is None:
            unknown = f"the request's token limit is not known, and the promise is for one of {self.token_limit}"
            note = "; ".join(filter(None, (note, unknown)))
        # Find out whether question and states can be read.
        form, no_form, no_states = None, "", ""
        if self._question is not None:
            form = question_form(question)
            if no_form := self._question.fault(form):
                form = None
        if self._states is not None:
            no_states = NO_STATES if canaries is None else self._states.guard.source_fault(canaries, model)
        beside = LOGPROBS_ALONE if form is None else QUESTION_INPUT
        if self._states is not None and not no_form and not no_states:
            beside = STATES_INPUT
        return Gate(self, "; ".join(filter(None, (note, no_form, no_states))), form, beside)

    def probability(
        self, logprobs: list[float], form: NDArray[np.float32] | None = None, states: FloatArray | None = None
    ) -> float:
        """Returns P(good) from the first tokens of a response; their number must be a look.

        Args:
            logprobs: their log-probabilities.
            form: the form of the question, (5,), for a checkpoint that reads it; None where it is not known.
            states: mean (width,) of the newest hidden states, for a checkpoint that reads them; None for none.
        """
        inputs = {GATE_INPUT: features_one(self.schema, logprobs)[None]}
        if self._question is not None:
            inputs[QUESTION_INPUT] = NO_FORM if form is None else form[None]
        if self._states is not None:
            inputs[STATES_INPUT] = (
                np.full((1, self._states.width), np.nan, np.float32)
                if states is None
                else states.astype(np.float32)[None]
            )
        return float(self.checkpoint.run(inputs)[head_name(len(logprobs))][0, 0])

    def read_state(self, state: object) -> FloatArray | None:
        """Returns the hidden state that a token was drawn from as float32 (width,); None if it cannot be read.

        Raises `InvalidResponse` for a state of another width.
        """
        if self._states is None or state is None:
            return None
        expected = f"expected the {self._states.width} numbers of layer {self._states.layer} alone"
        try:
            with np.errstate(over="ignore"):  # what float32 does not hold becomes infinite, and is not read
                values = np.asarray(state, dtype=np.float32).reshape(-1)
        except (TypeError, ValueError) as error:
            raise InvalidResponse(f"a hidden state came as {type(state).__name__}, {expected}") from error
        if len(values) != self._states.width:
            raise InvalidResponse(f"a hidden state of {len(values)} numbers came, {expected}")
        return values.copy() if np.isfinite(values).all() else None

    def states_fault(self, states: FloatArray) -> str:
        """Returns why the mean (width,) of the newest states cannot be of the gate's layer; empty if it may be."""
        return "" if self._states is None else self._states.guard.states_fault(states[None, None], [self._states.layer])

    def _check_inputs(self) -> None:
        """Raises `ContractMismatch` for a graph with inputs that this version does not know."""
        inputs = {spec.name for spec in self.checkpoint.manifest.inputs}
        known = {GATE_INPUT, QUESTION_INPUT, STATES_INPUT}
        if GATE_INPUT not in inputs or not inputs <= known:
            raise ContractMismatch(
                f"{self.checkpoint.path}: the graph has inputs {sorted(inputs)}; expected {GATE_INPUT!r}, and beside "
                f"it at most {QUESTION_INPUT!r} and {STATES_INPUT!r}: train it again"
            )

    def _limits(self, beside: str) -> dict[int, tuple[float, float]]:
        below = (self._thresholds(self.escalate, beside), self._thresholds(self.stop, beside))
        return dict(zip(self.looks, zip(*below, strict=True), strict=True))

    def _thresholds(self, alpha: float | None, beside: str) -> tuple[float, ...]:
        if alpha is None:
            return (0.0,) * len(self.looks)
        stored = self.checkpoint.manifest.thresholds
        names = [threshold_name(alpha, look, beside) for look in self.looks]
        if missing := [name for name in names if name not in stored]:
            raise ContractMismatch(
                f"{self.checkpoint.path} has no threshold {missing[0]!r}: it can promise false-alarm rates of "
                f"{', '.join(f'{known_alpha:g}' for known_alpha in self.alphas) or 'nothing'}, and {alpha!r} was "
                f"asked for. Choose one of these, or train on more groups"
            )
        return tuple(stored[name] for name in names)


@dataclass(frozen=True, slots=True, eq=False)
class QuestionRange:
    """The questions that a checkpoint learned from: the least and the largest of each count of their form."""

    least: NDArray[np.float64]
    largest: NDArray[np.float64]

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "QuestionRange | None":
        """Returns the range in the checkpoint's contract; None if the checkpoint does not read the question.

        Raises `ContractMismatch` where contract and graph differ, or the counts are not those of this version.
        """
        inputs = {spec.name: spec.shape for spec in checkpoint.manifest.inputs}
        stated: Any = checkpoint.manifest.contract.get("question")
        if stated is None and QUESTION_INPUT not in inputs:
            return None
        try:
            counts, least, largest = stated["counts"], stated["least"], stated["largest"]
            bounds = np.array([least, largest], dtype=np.float64)
            whole = list(counts) == list(QUESTION_FORM) and bounds.shape == (2, len(QUESTION_FORM))
            whole = whole and inputs[QUESTION_INPUT] == (None, len(QUESTION_FORM)) and bool(np.isfinite(bounds).all())
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise ContractMismatch(
                f"{checkpoint.path}: the contract states {stated!r} of the question, and the graph has inputs "
                f"{sorted(inputs)}; expected least and largest of {', '.join(QUESTION_FORM)}: train it again"
            )
        return cls(*bounds)

    def fault(self, form: NDArray[np.float32]) -> str:
        """Returns why a question of this form (5,) is not read; empty if it is read."""
        if not np.isfinite(form).all():
            return NO_QUESTION
        outside = (form < self.least) | (form > self.largest)
        if not outside.any():
            return ""
        furthest = int(np.argmax(outside))
        least, largest, here = (
            round(math.expm1(value)) for value in (self.least[furthest], self.largest[furthest], form[furthest])
        )
        return (
            f"the question has {here} {QUESTION_FORM[furthest]}, those of the training had {least} to {largest}: the "
            "gate reads the log-probabilities alone"
        )


@dataclass(frozen=True, slots=True, eq=False)
class StatesRead:
    """The hidden states that a checkpoint reads at each look: the mean of the newest `LOOK_STATES` of one layer."""

    layer: int
    width: int
    guard: CanaryGuard
    """Compares a source's states of the canaries with those of the training."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "StatesRead | None":
        """Returns what the checkpoint's contract says; None if the checkpoint reads no hidden states.

        Raises `ContractMismatch` where contract and graph differ, and without the canaries' states of the training.
        """
        inputs = {spec.name: spec.shape for spec in checkpoint.manifest.inputs}
        stated: Any = checkpoint.manifest.contract.get("states")
        if stated is None and STATES_INPUT not in inputs:
            return None
        expected = {"layer", "width", "newest"}
        if (
            not isinstance(stated, Mapping)
            or stated.keys() != expected
            or not all(type(value) is int and value >= 0 for value in stated.values())
            or stated["newest"] != LOOK_STATES
            or inputs.get(STATES_INPUT) != (None, stated["width"])
        ):
            raise ContractMismatch(
                f"{checkpoint.path}: the contract states {stated!r} of hidden states, and the graph has inputs "
                f"{sorted(inputs)}; expected layer, width and newest={LOOK_STATES}: train it again"
            )
        guard = CanaryGuard(checkpoint, [stated["layer"]])
        if guard.golden is None:
            raise ContractMismatch(
                f"{checkpoint.path} reads hidden states and holds no states of the canaries, by which their source is "
                "checked: train it again"
            )
        return cls(stated["layer"], stated["width"], guard)


class Gate:
    """Watches one response. Only one thread may use it at a time."""

    __slots__ = (
        "_form",
        "_gates",
        "_last",
        "_limits",
        "_logprobs",
        "_newest_states",
        "action",
        "fired_at",
        "note",
        "reads_states",
        "score",
        "tokens_seen",
    )

    def __init__(
        self,
        gates: StreamingGate,
        note: str = "",
        form: NDArray[np.float32] | None = None,
        beside: str = LOGPROBS_ALONE,
    ) -> None:
        """`StreamingGate.start` makes the gate of an answer.

        Args:
            gates: the checkpoint's gate.
            note: why its score is doubtful.
            form: form of the question, (5,); None if it is not read.
            beside: what the answer brings beside its log-probabilities, one of `BESIDE_LOGPROBS`.
        """
        self._gates, self._last, self._form = gates, gates.looks[-1], form
        self._limits = gates.limits[beside]
        self.reads_states = beside == STATES_INPUT
        """Whether this answer is judged by its hidden states too."""
        self._newest_states: deque[FloatArray] = deque(maxlen=LOOK_STATES)
        self.note = note
        """Why the gate's score is doubtful, such as a response of another model; empty if nothing is doubtful."""
        self._logprobs: list[float] = []
        """Log-probabilities of the tokens up to the last look. Later tokens are not read."""
        self.tokens_seen = 0
        self.score: float | None = None
        """P(good) at the last look, also after the gate has fired; None before the first look. With a `token_limit`,
        P(ends by itself).
        """
        self.action: GateAction = "continue"
        """The action that the last push returned."""
        self.fired_at: int | None = None
        """Number of tokens seen when the gate fired; None until it fires."""

    @property
    def token_limit(self) -> int | None:
        """The token limit by which answers are cut, for a gate that learned which ones are; else None."""
        return self._gates.token_limit

    def push(self, logprob: float, state: object = None) -> GateAction:
        """Reads one token and returns the action. Once the gate has fired, the action stays the same.

        Where a state is missing, not finite, or of another scale than the golden ones, the answer is not judged any
        more, and the note says so: the thresholds hold for answers with all their states.

        Args:
            logprob: nats.
            state: where `reads_states`, the hidden state (width,) of the gate's layer from which the token was drawn,
                which is that of the token before (`metaprobe.llms.base.Token.state`). Else it is not read.

        Raises `InvalidResponse` for a number that is no log-probability, and for a state of another width. The gate is
        then unchanged.
        """
        if (
            not isinstance(logprob, NUMBER_TYPES)
            or not LOWEST_LOGPROB <= logprob <= LOGPROB_ROUNDING
            or logprob is False
        ):
            raise InvalidResponse(
                f"token {self.tokens_seen}: log-probability {logprob!r}, expected a number of nats, at most 0,"
                " that 32 bits hold"
            )
        if self.tokens_seen < self._last:
            if self.reads_states and self._limits:
                self._read_state(state)
            self._logprobs.append(min(float(logprob), 0.0))
        self.tokens_seen += 1
        if self.tokens_seen not in self._limits:
            return self.action
        states = np.mean(self._newest_states, axis=0) if self.reads_states else None
        if states is not None and (fault := self._gates.states_fault(states)):
            self._judge_no_further(fault)
            return self.action
        with np.errstate(all="ignore"):  # a host application may have NumPy raise for what is rounded to 0 here
            self.score = self._gates.probability(self._logprobs, self._form, states)
        if self.fired_at is None:
            escalate, stop = self._limits[self.tokens_seen]
            if self.score < stop or self.score < escalate:
                self.action, self.fired_at = "escalate" if self.score < escalate else "stop", self.tokens_seen
        return self.action

    def _read_state(self, state: object) -> None:
        """Keeps the state of the next token; without one that can be read, judges no more."""
        values = self._gates.read_state(state)
        if values is not None:
            self._newest_states.append(values)
            return
        self._judge_no_further(f"the hidden state of token {self.tokens_seen} did not come, or is not finite")

    def _judge_no_further(self, reason: str) -> None:
        """Takes no further look, because the thresholds hold for answers with all their states."""
        self._limits = {}
        self.note = "; ".join(filter(None, (self.note, f"{reason}: judged no further")))
