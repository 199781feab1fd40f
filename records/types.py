"""The records that every room shares. They hold only facts; values that can be derived are properties.

Arrays are NumPy arrays with one entry a token, never lists of objects. All records are immutable.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.integer[Any]]

LogprobsMode = Literal["raw", "processed", "unknown"]
DecisionKind = Literal["predicate", "choice", "score", "refusal"]
AnswerCheck = Literal["exact", "choice", "number", "function", "none"]
SegmentKind = Literal["thinking", "answer", "tool"]

HIDDEN = "hidden"
"""Kind of the checkpoints that read hidden states; also the name of their graphs' input."""
THINKING_POSITIONS = ("thinking_first", "thinking_last", "thinking_mean")
"""Token positions in the thinking before an answer."""

LIVE_POSITIONS = ("prompt_last", "answer_first", "answer_last", "answer_mean", *THINKING_POSITIONS)
"""Token positions at which hidden states can be kept while a model answers. `prompt_last` precedes the answer."""

EXACT_POSITIONS = ("before_exact", "exact_last", "exact_mean")
"""Token positions at the exact answer, the span that a grader reads. They are known only when the answer is
finished.
"""

POSITIONS = (*LIVE_POSITIONS, *EXACT_POSITIONS)
"""All token positions of a whole answer."""

LOOKS = (3, 5, 10, 20, 30, 50)
"""Numbers of first answer tokens after which a streaming gate judges an answer."""
LOOK_STATES = 20
"""Number of the newest tokens over which a streaming gate takes the mean of hidden states."""


def look_position(look: int) -> str:
    """Returns the position that a streaming gate reads after so many answer tokens.

    It holds the mean of the states from which the newest `LOOK_STATES` of these tokens were drawn. The first answer
    token is drawn from the state of the last token before it. In a shorter answer all of its tokens count.
    """
    return f"look_{look}"


LOOK_POSITIONS = tuple(look_position(look) for look in LOOKS)
"""Positions along an answer, one for each look of a streaming gate. Nothing else reads them."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question that a program can check."""

    checks: ClassVar[tuple[str, ...]] = get_args(AnswerCheck)
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
    """The template or fact from which the item was made."""
    task: str = ""
    check: AnswerCheck = "none"
    """How an answer is checked (`metaprobe.records.correctness`)."""
    fields: dict[str, str] = field(default_factory=dict, hash=False)
    """More texts for a system's prompts: `essay`, `trait`, `rubric`, ... All items of a task have the same keys."""


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
    """Most tokens of the answer; None for no limit, which only an endpoint supports."""
    stop: tuple[str, ...] = ()
    """Texts at which generation ends. They are not part of the answer's text."""
    json_schema: str = ""
    """A JSON Schema that the text must follow, if the model can be forced to; else empty."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """Hidden states of one call. Layer 0 is the embeddings' output, layer i the output of block i (1-based)."""

    values: FloatArray
    """The states: float16, shape (layers, positions, width)."""
    layers: tuple[int, ...]
    positions: tuple[str, ...]
    """Names from `POSITIONS` or `LOOK_POSITIONS`."""
    model: str = ""
    """The model that read the states, by its name or `NAME@REVISION`; empty for the model that answered."""
    canaries: Any = None
    """The canaries' states (`records.canaries.CanaryStates`) from the same source; None if they are not known."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of a call's tokens: the model's thinking, its answer, or a tool call."""

    kind: SegmentKind
    start: int
    """Index of the first token, from 0."""
    end: int
    """Index after the last token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One request to a language model and its answer: enough to replay it through the model."""

    id: str
    stage: str = ""
    agent: str = ""
    round: int = 0
    parent: str | None = None
    """Id of the call whose answer this call processes."""
    model: str = ""
    model_revision: str = ""
    model_dtype: str = ""
    messages: tuple[Message, ...] = ()
    prompt_token_ids: IntArray | None = None
    """Token ids of the prompt: int32, shape (P,)."""
    text: str = ""
    tokens: tuple[str, ...] = ()
    """The T generated tokens as text, without the end-of-sequence token."""
    token_ids: IntArray | None = None
    """Token ids of the answer: int32, shape (T,)."""
    logprobs: FloatArray | None = None
    """float32, shape (T,), nats: log-probability of each generated token. None if the source gave none."""
    top_logprobs: FloatArray | None = None
    """float32, shape (T, k), nats, descending: the k likeliest tokens at each step."""
    segments: tuple[Segment, ...] = ()
    """Segments of the T tokens, in order, not overlapping. Tokens of markers such as `</think>` are in none. Empty if
    all tokens count as the answer.
    """
    sampling: Sampling = field(default_factory=Sampling)
    reader: str = ""
    """`NAME@REVISION` of the model that read the answer afterwards.

    Tokens, token ids, log-probabilities and segments are then that model's. Empty if they are of `model`, which
    answered.
    """
    logprobs_mode: LogprobsMode = "unknown"
    """`raw`: before temperature and truncation. `processed`: after them."""
    finish_reason: str = ""
    """`stop`, or `length` if max_tokens cut the answer, or another end."""
    usage: Usage = field(default_factory=Usage)
    latency_ms: float | None = None
    cost_usd: float | None = None
    error: str | None = None
    note: str = ""
    """Text from reading the response that a verdict on the answer must mention; empty for nothing."""
    hidden: Hidden | None = None
    """Hidden states; stored beside the runs as safetensors, not in them."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A model's statement about itself."""

    call_id: str
    kind: str
    """`difficulty`, `confidence`, or the name of an evaluation score."""
    value: float | None
    """In [0, 1]; None if the model was asked and gave no readable number."""


@dataclass(frozen=True, slots=True)
class Label:
    """A judgement of a response, with its source."""

    call_id: str
    name: str
    """Name of the label: `correct`, `instruction`, `justification`, `evidence`, `critical`, ..."""
    value: float
    source: str
    """`program`, `human`, or the judge's name."""

    @property
    def rank(self) -> int:
        """Rank of the source: 0 for a person, 1 for a program, 2 for a judge and all others. The lowest rank counts."""
        return {"human": 0, "program": 1}.get(self.source.partition(":")[0], 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionAnswer:
    """One answer of a decision API to a typed question about a response. A label has one value; this has probabilities.

    Like a label it belongs to the call that was judged. `metaprobe judge` and imported results make it, with
    `DecisionQuestion.read_answers` of `records/decision_questions.py`. `probes/decision_predictor.py` turns it into
    signals.
    """

    call_id: str
    """The call whose response was judged."""
    question: str
    """Name of the question; `question N`, counted from 1, if it has no name."""
    source: str
    """The model that answered, as `MODEL` or `MODEL@REVISION`."""
    kind: DecisionKind
    value: float | None = None
    """Probability that a predicate is true, or the mean level of a score, where the lowest level is 0.

    None for a choice, for a refusal, and if the answer has no number.
    """
    choice: str = ""
    """The option that a choice answer names; empty for the other kinds."""
    options: tuple[str, ...] = ()
    """Options of a choice, or levels of a score from lowest to highest, in the question's order.

    A boolean option is written `true` or `false`. Empty for predicates and refusals.
    """
    probabilities: tuple[float | None, ...] = ()
    """Probability of each option; None for an option that the answer left out."""
    confidence: float | None = None
    """The API's own measure of how concentrated the probabilities are. It is no probability of being right."""
    reason: str = ""
    """Why a number is missing, as for a refusal; empty if no number is missing."""


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
"""System of a run that was imported from a line; also the source of its labels."""


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
    """1 if the final answer is correct, 0 if not, None if it cannot be checked."""

    @property
    def imported(self) -> bool:
        """Whether the run was imported from a line, so that the system that made it is unknown."""
        return self.system == IMPORTED_SYSTEM

    @property
    def cost_usd(self) -> float:
        """Cost of all calls together; calls without a price count as 0."""
        return sum(call.cost_usd or 0.0 for call in self.calls)

    def decisions_about(self, call_id: str) -> tuple["DecisionAnswer", ...]:
        """Returns the answers of decision models about a call."""
        return tuple(answer for answer in self.decision_answers if answer.call_id == call_id)

    def stated_of(self, answer: "Call", kind: str) -> float | None:
        """Returns the number that was stated about this answer, not about another one; None if there is none.

        Searched in this order: the answer itself, calls with the answer as their parent, calls of the same agent in the
        same round. If only one call of the run states a number, this number counts for all of the run's answers.
        """
        calls = {call.id: call for call in self.calls}
        statements_with_calls = [(s, calls.get(s.call_id)) for s in self.statements if s.kind == kind]
        with_calls = [(s, call) for s, call in statements_with_calls if call is not None]
        nearest = (
            [s for s, _ in statements_with_calls if s.call_id == answer.id],
            [s for s, call in with_calls if call.parent == answer.id],
            [s for s, call in with_calls if (call.agent, call.round) == (answer.agent, answer.round)],
            [s for s, _ in statements_with_calls] if len({s.call_id for s, _ in statements_with_calls}) == 1 else [],
        )
        return next((statements[-1].value for statements in nearest if statements), None)

    def stated(self, kind: str, call_id: str | None = None) -> float | None:
        """Returns the last value stated under `kind`, by the call `call_id` if it is given; None if there is none."""
        values = [s.value for s in self.statements if s.kind == kind and call_id in (None, s.call_id)]
        return values[-1] if values else None

    def label(self, name: str, call_id: str) -> float | None:
        """Returns the last label with this name on this call, from the strongest source; None if there is none.

        A person's label counts before a program's, because a person who labels a checked answer corrects it. A
        program's label counts before a judge's, which is a model's opinion.
        """
        labels = [label for label in self.labels if label.name == name and label.call_id == call_id]
        return min(reversed(labels), key=lambda label: label.rank).value if labels else None
