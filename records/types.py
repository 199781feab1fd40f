"""The records that every room shares. Facts only; what can be derived is a property.

Arrays are NumPy arrays, one entry a token, never lists of objects. All records are immutable.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.integer[Any]]

LogprobsMode = Literal["raw", "processed", "unknown"]
DecisionKind = Literal["predicate", "choice", "score", "refusal"]
Check = Literal["exact", "choice", "number", "function", "none"]
SegmentKind = Literal["thinking", "answer", "tool"]

HIDDEN = "hidden"
"""Kind of the checkpoints that read hidden states, and the name of their graphs' input."""
THINKING_POSITIONS = ("thinking_first", "thinking_last", "thinking_mean")
"""Token positions in the thinking before an answer."""

LIVE_POSITIONS = ("prompt_last", "answer_first", "answer_last", "answer_mean", *THINKING_POSITIONS)
"""Token positions at which hidden states can be kept while a model answers. `prompt_last` comes before any answer."""

EXACT_POSITIONS = ("before_exact", "exact_last", "exact_mean")
"""Token positions at the exact answer, the span that a grader reads: known only once the answer is finished."""

POSITIONS = (*LIVE_POSITIONS, *EXACT_POSITIONS)
"""All token positions."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question that a program can check."""

    checks: ClassVar[tuple[str, ...]] = get_args(Check)
    """All values of `check`."""
    id: str
    question: str
    gold: tuple[str, ...] = ()
    """Accepted answers, the canonical one first. For `check == "function"`: assertions that must all hold."""
    group: str = ""
    """Items of one group stay in one split: the question, or the template or fact that several questions share."""
    choices: tuple[str, ...] = ()
    dimension: str = ""
    level: str = ""
    split: str = ""
    source: str = ""
    """The template or fact the item was made from."""
    task: str = ""
    check: Check = "none"
    """How an answer is checked (`metaprobe.records.correctness`)."""
    fields: dict[str, str] = field(default_factory=dict, hash=False)
    """Further texts for a system's prompts: `essay`, `trait`, `rubric`, ... A task's items have the same keys."""


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 256
    """Most tokens of the answer; None lets the model write as many as it likes, which only an endpoint takes."""
    stop: tuple[str, ...] = ()
    """Generation ends where one of these appears; it is not part of the text."""
    json_schema: str = ""
    """A JSON Schema that the text must follow, where the model can be held to one; else empty."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """Hidden states of one call. Layer 0 is the embeddings' output, layer i the output of block i (1-based)."""

    values: FloatArray
    """float16, shape (layers, positions, width)."""
    layers: tuple[int, ...]
    positions: tuple[str, ...]
    """Names out of `POSITIONS`."""
    model: str = ""
    """The model that read the states, by its name or `NAME@REVISION`; empty for the model that answered."""
    canaries: Any = None
    """The `metaprobe.records.canaries.CanaryStates` that the same source gave; None where they are not known."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of a call's tokens: what a reasoning model thought, what it answered, or the call of a tool."""

    kind: SegmentKind
    start: int
    """The first token, counted from 0."""
    end: int
    """One after the last token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One request to a language model and what came back: enough to replay it through the model."""

    id: str
    stage: str = ""
    agent: str = ""
    round: int = 0
    parent: str | None = None
    """Id of the call whose answer this one works on."""
    model: str = ""
    model_revision: str = ""
    model_dtype: str = ""
    messages: tuple[Message, ...] = ()
    prompt_token_ids: IntArray | None = None
    """int32, shape (P,)."""
    text: str = ""
    tokens: tuple[str, ...] = ()
    """The T generated tokens as text, without the end-of-sequence token."""
    token_ids: IntArray | None = None
    """int32, shape (T,)."""
    logprobs: FloatArray | None = None
    """float32, shape (T,), nats: log-probability of each generated token. None where the source gave none."""
    top_logprobs: FloatArray | None = None
    """float32, shape (T, k), nats, descending: the k likeliest tokens at each step."""
    segments: tuple[Segment, ...] = ()
    """The parts of the T tokens, in order and apart; tokens of markers such as `</think>` are in none. Empty where all
    tokens are of the answer, as far as is known."""
    sampling: Sampling = field(default_factory=Sampling)
    reader: str = ""
    """`NAME@REVISION` of the model that read the answer afterwards, where tokens, token ids, log-probabilities and
    segments are that model's; empty where they are those of `model`, which answered."""
    logprobs_mode: LogprobsMode = "unknown"
    """`raw`: of the model itself, before temperature and truncation; `processed`: after them."""
    finish_reason: str = ""
    """`stop`, or `length` where max_tokens cut the answer."""
    usage: Usage = field(default_factory=Usage)
    latency_ms: float | None = None
    cost_usd: float | None = None
    error: str | None = None
    note: str = ""
    """Text that a verdict on the answer must mention, from reading its response; empty for nothing."""
    hidden: Hidden | None = None
    """Stored beside the runs as safetensors, not in them."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A model's statement about itself."""

    call_id: str
    kind: str
    """`difficulty`, `confidence`, or the name of an evaluation score."""
    value: float | None
    """In [0, 1]; None where it was asked and said nothing that can be read."""


@dataclass(frozen=True, slots=True)
class Label:
    """A judgement of a response, and who made it."""

    call_id: str
    name: str
    """`correct`, `instruction`, `justification`, `evidence`, `critical`."""
    value: float
    source: str
    """`program`, `human`, or the judge's name."""

    @property
    def rank(self) -> int:
        """Rank by source: 0 for a person, 1 for a program, 2 for a judge and all others. A lower one goes before."""
        return {"human": 0, "program": 1}.get(self.source.partition(":")[0], 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionAnswer:
    """One answer of a decision API to a typed question about a response: probabilities where a label has one value.

    It belongs to the call that was judged, as a label does. `metaprobe judge` and imported results make it, by
    `metaprobe.records.decisions.decision_answers`; `metaprobe.probes.decisions` turns it into signals.
    """

    call_id: str
    """The call whose response was judged."""
    question: str
    """Name of the question; `question N`, counted from 1, where it has none."""
    source: str
    """The model that answered, as `MODEL` or `MODEL@REVISION`."""
    kind: DecisionKind
    value: float | None = None
    """Holds the probability that a predicate is true, or the expected level of a score, where the lowest level is 0. It
    is None for a choice, for a refusal, and where the answer gave no number."""
    choice: str = ""
    """The option that a choice answer names; empty for the other kinds."""
    options: tuple[str, ...] = ()
    """Options of a choice, or levels of a score from the lowest to the highest, in the question's order. A boolean
    option is written `true` or `false`. Empty for predicates and refusals."""
    probabilities: tuple[float | None, ...] = ()
    """Probability of each option; None for an option that the answer left out."""
    confidence: float | None = None
    """The API's own number of how concentrated the probabilities are; it is no probability of being right."""
    reason: str = ""
    """Why a number is missing, as for a refusal; empty where nothing is."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's choice at a named point of a pipeline."""

    id: str
    point: str
    action: str
    scores: dict[str, float] = field(default_factory=dict)
    """Score of each legal action; higher is better."""
    propensities: dict[str, float] = field(default_factory=dict)
    """Probability with which each legal action was chosen; they sum to 1."""
    reason: str = ""


IMPORTED_SYSTEM = "import"
"""System of a run that was made of an imported line; also the source of its labels."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One pass of a system over one item."""

    id: str
    system: str
    variant: str
    item: Item
    calls: tuple[Call, ...]
    statements: tuple[Statement, ...] = ()
    labels: tuple[Label, ...] = ()
    decisions: tuple[Decision, ...] = ()
    decision_answers: tuple[DecisionAnswer, ...] = ()
    """Answers of decision APIs about the calls; `decisions` above are those of the system's own policy."""
    final_answer: str = ""
    outcome: float | None = None
    """1 where the final answer is correct, 0 where not; None where nothing can check it."""

    @property
    def imported(self) -> bool:
        """Whether the run was made of an imported line, and no system is known that made it."""
        return self.system == IMPORTED_SYSTEM

    @property
    def cost_usd(self) -> float:
        """Cost of all calls together; calls without a price count as 0."""
        return sum(call.cost_usd or 0.0 for call in self.calls)

    def decisions_about(self, call_id: str) -> tuple["DecisionAnswer", ...]:
        """Returns the answers of decision models about a call."""
        return tuple(answer for answer in self.decision_answers if answer.call_id == call_id)

    def stated_of(self, answer: "Call", kind: str) -> float | None:
        """The number stated of this answer, not of another agent's or round's answer; None where there is none.

        By the answer itself, else by who was asked about it (a call with the answer as its parent), else by the same
        agent in the same round. What a single call of the run states, and no other, is of each of the run's answers.
        """
        calls = {call.id: call for call in self.calls}
        stated = [(s, calls.get(s.call_id)) for s in self.statements if s.kind == kind]
        asked = [(s, call) for s, call in stated if call is not None]
        nearest = (
            [s for s, _ in stated if s.call_id == answer.id],
            [s for s, call in asked if call.parent == answer.id],
            [s for s, call in asked if (call.agent, call.round) == (answer.agent, answer.round)],
            [s for s, _ in stated] if len({s.call_id for s, _ in stated}) == 1 else [],
        )
        return next((of[-1].value for of in nearest if of), None)

    def stated(self, kind: str, call_id: str | None = None) -> float | None:
        """The last value stated under `kind` (by that call, where one is given), or None."""
        values = [s.value for s in self.statements if s.kind == kind and call_id in (None, s.call_id)]
        return values[-1] if values else None

    def label(self, name: str, call_id: str) -> float | None:
        """The last label of that name on that call by the strongest source, or None.

        A person's label goes before a program's, for who labels what a program had checked corrects it. A program's
        goes before a judge's, which is a model's opinion.
        """
        labels = [label for label in self.labels if label.name == name and label.call_id == call_id]
        return min(reversed(labels), key=lambda label: label.rank).value if labels else None
