"""One answer of a panel: read from a response of any format, and compared with the other answers. NumPy only.

Two answers to one question are the same by their form, or by their words.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from numbers import Real
from typing import Any, TypeGuard

from metaprobe.checkpoints.display import explain_fields
from metaprobe.checkpoints.table import html_table
from metaprobe.probes.features import terms
from metaprobe.records.correctness import canonical, final_answer
from metaprobe.records.errors import InvalidResponse, NoLogprobs, RecordError
from metaprobe.records.parse import from_json, parse_response, parse_text
from metaprobe.records.reading import REFUSAL, STOP, TOOL_CALL, UNSTATED, fields, once, text, without_surrogates
from metaprobe.records.response import ParsedResponse, ParsedText, answer_logprobs, check_logprobs, first_of
from metaprobe.records.response import cut_to_answer as cut_to_answer
from metaprobe.records.spelling import normalize
from metaprobe.records.tool_calls import ToolCall, show_tool_calls, tool_calls_form, tool_calls_in
from metaprobe.records.types import Call, Item, LogprobsMode
from metaprobe.routing.panel_rows import SCORE, STATED, answer_signals

EXACT = "exact"
"""Answers are the same where their words are, without those of the question (`records.correctness.canonical`)."""
TEXTS = "words and signs that the question does not have, lists apart"
"""How texts are compared, as a checkpoint names it. A checkpoint that names another way learned from other classes."""
OVERLAP = "overlap"
"""Answers are the same where more than half of their words are."""
COMPARED_BY = {
    "number": "numbers read whole with their units, or else texts",
    "choice": "options by their letter, number or words",
    "function": "Python code of the last whole fence",
}
"""Check of `Item` -> how its answers are compared, as a checkpoint names it. Every other check compares `TEXTS`, and
`OVERLAP` has no name, for it never changed."""
NO_TEXTS = ("number", "function", OVERLAP)
"""Ways that never compare texts as `EXACT` does; an answer to a choice is a text where no options are known."""
SAME_AGREEMENT = 0.5
"""Agreement above which two answers count as one."""

_MARK = re.compile(r"####|\\boxed\{")
_WORD = re.compile(r"[^\W_]+(?:\.\d+)?")
_COMMA = re.compile(r"(?<=\d),(?=\d{3})")


def compared_by(same: str) -> str | None:
    """Returns how answers are compared that are the same by this check, as a checkpoint names it; None by `OVERLAP`."""
    return None if same == OVERLAP else COMPARED_BY.get(same, TEXTS)


@lru_cache(maxsize=8192)
def content(answer: str) -> frozenset[str]:
    """Returns the words and numbers of an answer, in lower case; of a worked one (`#### 12`) those of its end."""
    return frozenset(_WORD.findall(_COMMA.sub("", _MARK.split(answer)[-1].lower())))


def jaccard_index(one: frozenset[str], other: frozenset[str]) -> float:
    """Returns how far two answers say the same, in [0, 1]: the Jaccard index of their contents; 0 of two empty ones."""
    if one == other:
        return float(bool(one))
    return len(one & other) / len(one | other)


def number_classes(forms: Sequence[Hashable | None]) -> list[int]:
    """Returns the class of each answer, from 0 in order of appearance, by equality; -1 for None."""
    numbers: dict[Hashable, int] = {}
    return [-1 if form is None else numbers.setdefault(form, len(numbers)) for form in forms]


def _overlap(one: Hashable, other: Hashable) -> bool:
    if isinstance(one, frozenset) and isinstance(other, frozenset):
        return jaccard_index(one, other) > SAME_AGREEMENT
    return one == other


def overlapping(answers: Sequence[Hashable | None]) -> list[int]:
    """Returns the same by words: an answer joins the first earlier class whose first answer it agrees with.

    The form of tool calls, which is no text, joins the class of an equal form alone.
    """
    firsts: list[Hashable] = []
    classes = []
    for answer in answers:
        if answer is None:
            classes.append(-1)
            continue
        own = content(answer) if isinstance(answer, str) else answer
        number = next((c for c, first in enumerate(firsts) if _overlap(own, first)), len(firsts))
        if number == len(firsts):
            firsts.append(own)
        classes.append(number)
    return classes


MOST_TOGETHER = 1024
"""Answers to one question that are judged: each is held against every class."""
MOST_TEXT, MOST_TEXT_TOGETHER = 100_000, 1 << 20
"""Longest answer that is compared, in characters, and limit for all answers to one question, divided evenly. It holds
for the text as it came and in NFKC, where one character may become 18. Only the end of a long text is read closely.
Of a longer question the end is read."""
MOST_GROWN = 18
"""Most characters that one character becomes in NFKC (U+FDFA)."""
MOST_TOLD, MOST_NAMED = 200, 5
"""Characters of what went wrong that a reason holds, and agents that it names."""
COMPARABLE_CHECKS = ("number", "choice", "exact", "function")
"""Checks of `Item` by which answers are compared: the same number, option, text or code."""


@dataclass(frozen=True, slots=True)
class PanelAnswer:
    """One answer as a panel reads it, for callers that hold no response of an API."""

    text: str
    """Text of the agent's answer."""
    agent: str = ""
    """Who answered."""
    logprobs: Sequence[float] | None = None
    """(T,) nats, of the answer's tokens; None where there are none."""
    stated: float | None = None
    """The confidence that the agent stated, on the scale of the training data."""
    score: float | None = None
    """A checkpoint's score of the answer."""
    cut: bool = False
    """Whether the answer did not end by itself. It then counts against every class."""
    note: str = ""
    """Says what is doubtful about the answer; a verdict repeats it. Empty where nothing is doubtful."""
    logprobs_mode: LogprobsMode = "unknown"
    """Whether the log-probabilities are `raw` (before temperature and truncation) or `processed` (after them)."""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls that the answer is, in order; `text` then shows them. Empty for an answer in words."""
    stated_source: str = ""
    """Source of `stated`, as `confidence_source` in outcomes names it: `stated`, `logprobs`, a checkpoint's digest.
    Empty: what the agent stated, or, for a panel that names no source, a number of the kind that it learned from."""
    score_source: str = ""
    """Question of the decision model that gave `score`."""


@explain_fields
@dataclass(frozen=True, slots=True)
class PanelClass:
    """Answers that are the same."""

    answer: str
    """The text of the surest of them."""
    probability: float
    """P(right)."""
    members: tuple[int, ...]
    """Places of the answers among those that were given, from 0."""


@explain_fields
@dataclass(frozen=True, slots=True, repr=False)
class PanelVerdict:
    """Gives the result for several answers to one question: classes of equal answers, the kept one, its score."""

    classes: tuple[PanelClass, ...]
    """Each distinct answer, the likeliest first."""
    none: float
    """P(none of these is right)."""
    kept: int | None
    """Place of the answer to keep, the surest of its class; None where no answer can be read."""
    score: float | None
    """Calibrated P(right) of the kept answer, in [0, 1]; None where none is kept."""
    worth: dict[str, float]
    """Agent -> how much P(right) of the kept answer is expected to rise by asking on; empty where it is not known."""
    checkpoint: str
    """Digest of the checkpoint that gave it."""
    reason: str = ""
    """Says why the verdict is doubtful, or why nothing is kept; empty where neither holds."""

    def __repr__(self) -> str:
        score = "None" if self.score is None else f"{self.score:.3f}"
        reason = f", reason={self.reason!r}" if self.reason else ""
        return f"PanelVerdict(kept={self.kept}, score={score}, classes={len(self.classes)}{reason})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        rows = [(one.answer[:80], f"{one.probability:.3f}, {len(one.members)} answers") for one in self.classes]
        return html_table("Panel", [*rows, ("none of these", f"{self.none:.3f}"), ("reason", self.reason)])

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as types of JSON."""
        return asdict(self)


@explain_fields
@dataclass(frozen=True, slots=True)
class PanelStep:
    """Whom a panel asks next."""

    agent: str | None
    """The agent to ask; None to stop and keep the answer that is judged best."""
    worth: dict[str, float]
    """Agent -> how much P(right) of the kept answer is expected to rise by asking it, less what its price is worth;
    empty where the way that decides does not go by it."""
    reason: str
    """Why this agent is asked, or why nobody is."""
    expected: float = 0.0
    """P(right) of the agent that is asked, given what is known, or of the answer that is kept."""
    keep: int | None = None
    """Place of the answer to keep where asking stops, from 0; None before that, and where none can be read."""


def untold(agent: str) -> str:
    """Returns what stands for an answer whose text is not known: one word that no answer holds, of its own class."""
    return "untold" + agent.encode(errors="replace").hex()


def responses_in(given: object) -> list[object]:
    """Returns the single answers in what was given: the choices of one response, or the members of a sequence.

    At most one more than `MOST_TOGETHER` of them. Raises `RecordError` for a sequence that breaks off.
    """
    if isinstance(given, str | bytes | PanelAnswer | Mapping) or not isinstance(given, Iterable) or _choices(given):
        given = [given]
    answers: list[object] = []
    try:
        for one in given:
            count = 0 if isinstance(one, str | PanelAnswer | InvalidResponse) else _choices(one)
            answers += [(one, choice) for choice in range(min(count, MOST_TOGETHER + 1))] if count > 1 else [one]
            if len(answers) > MOST_TOGETHER:
                break
    except Exception as error:
        raise RecordError(f"the answers cannot be told apart ({told(error)}); expected a list of them") from error
    return answers[: MOST_TOGETHER + 1]


def _choices(response: object) -> int:
    """Returns how many choices a response holds, 0 where it is not a completion."""
    try:
        held = fields(response)
        choices = held.get("choices") if held is not None else None
        return len(choices) if isinstance(choices, list) else 0
    except Exception:  # of an object that a caller made: it is one answer, which cannot be read
        return 0


def answer_of(given: object) -> PanelAnswer:
    """Returns the answer in a response, or in a (response, choice). Raises `InvalidResponse` where there is none."""
    if isinstance(given, InvalidResponse):
        raise given
    response, choice = given if _is_choice(given) else (given, 0)
    if isinstance(response, str):
        return PanelAnswer(response)
    if isinstance(response, Call):
        return answer_in_call(response)
    if isinstance(response, PanelAnswer):
        return response
    if isinstance(response, bytes | bytearray):
        response = from_json(response)
    calls, ended = tool_calls_in(response, choice)
    if calls:
        return _answer_of_calls(response, choice, calls, cut=not ended)
    parsed: ParsedResponse | ParsedText
    logprobs = None
    try:
        parsed = cut_to_answer(parse_response(response, choice=choice, top=False))
        logprobs = parsed.logprobs
    except NoLogprobs:
        parsed = parse_text(response, choice=choice)
    if parsed.finish_reason in (REFUSAL, TOOL_CALL):
        raise InvalidResponse(f"it is a {parsed.finish_reason.replace('_', ' ')}; expected an answer")
    notes = [] if isinstance(parsed, ParsedText) else [parsed.note]
    if _is_choice(given):
        notes = [note.replace(first_of(2, 0), "").strip("; ") for note in notes]
    elif isinstance(parsed, ParsedText) and _choices(response) > 1:
        notes = [first_of(2, 0)]
    if not parsed.finish_reason:
        notes.append(UNSTATED)
    return PanelAnswer(
        parsed.text,
        parsed.model,
        None if logprobs is None else logprobs.tolist(),
        cut=parsed.finish_reason not in ("", STOP),
        note="; ".join(dict.fromkeys(filter(None, notes))),
        logprobs_mode="unknown" if isinstance(parsed, ParsedText) else parsed.logprobs_mode,
    )


def _answer_of_calls(response: object, choice: int, calls: tuple[ToolCall, ...], *, cut: bool) -> PanelAnswer:
    """Returns the answer of a response that calls tools, with log-probabilities where they came for the calls.

    Text beside the calls is not compared.
    """
    model, logprobs = "", None
    mode: LogprobsMode = "unknown"
    with suppress(InvalidResponse):  # servers give no log-probabilities of calls as a rule
        parsed = parse_response(response, choice=choice, top=False)
        mode = parsed.logprobs_mode
        logprobs = parsed.logprobs.tolist() if len(parsed.logprobs) else None
    if (held := fields(response)) is not None:
        model = once(text(held.get("model")))
    return PanelAnswer(show_tool_calls(calls), model, logprobs, cut=cut, logprobs_mode=mode, calls=calls)


def answer_in_call(call: Call) -> PanelAnswer:
    """Returns the answer of a call to one of metaprobe's own models."""
    logprobs = answer_logprobs(call)
    return PanelAnswer(
        call.text,
        agent=call.agent or call.model,
        logprobs=None if logprobs is None or not len(logprobs) else logprobs.tolist(),
        cut=call.error is not None or call.finish_reason not in ("", STOP),
        note="" if call.finish_reason else UNSTATED,
        logprobs_mode=call.logprobs_mode,
    )


def _is_choice(given: object) -> TypeGuard[tuple[object, int]]:
    """Returns whether this is a response with the number of a choice, rather than an answer."""
    return isinstance(given, tuple) and len(given) == 2 and type(given[1]) is int


def whole(answer: PanelAnswer) -> PanelAnswer:
    """Returns the answer with plain texts. Raises `InvalidResponse` where it holds none."""
    if not isinstance(answer.text, str):
        raise InvalidResponse(f"the text is a {type(answer.text).__name__}; expected a string")
    if not isinstance(answer.agent, str | None):
        raise InvalidResponse(f"the agent is a {type(answer.agent).__name__}; expected a name")
    text, agent = (str(without_surrogates(str(one or ""))) for one in (answer.text, answer.agent))
    return answer if (text, agent) == (answer.text, answer.agent) else replace(answer, text=text, agent=agent)


def comparable_form(
    answer: PanelAnswer,
    item: Item,
    by: str,
    same: Callable[[str], Hashable | None] | None = None,
    most: int = MOST_TEXT,
) -> tuple[Hashable | None, str]:
    """Returns what `form_of` returns for an answer in words, and the form of its calls for an answer that calls tools.

    Calls are compared as calls, by whatever texts are compared, and by a caller's own `same` too.
    """
    most = min(most, MOST_TEXT)
    if not answer.calls:
        return form_of(answer, item, by, same, most)
    if answer.cut:
        return None, "did not end by itself"
    if len(answer.text) > most:
        return None, f"has {len(answer.text)} characters, and at most {most} are compared"
    return tool_calls_form(answer.calls), ""


def form_of(
    answer: PanelAnswer,
    item: Item,
    by: str,
    same: Callable[[str], Hashable | None] | None = None,
    most: int = MOST_TEXT,
) -> tuple[Hashable | None, str]:
    """Returns a form in which equal answers are equal, and why there is none: None where the answer counts against all.

    `by`: a check of `Item`, or `OVERLAP`; `same`: a caller's own idea of it. `most`: characters that are compared.
    """
    most = min(most, MOST_TEXT)
    if answer.cut:
        return None, "did not end by itself"
    if (length := _length(answer.text, most)) > most:
        return None, f"has {length} characters, and at most {most} are compared"
    form: Hashable | None
    if same is not None:
        form = same(answer.text)
        hash(form)
        if form != form:  # as of NaN, which is equal to nothing
            form = None
    elif by == OVERLAP:
        form = answer.text if answer.text.strip() else None
    else:
        form = canonical(item, final_answer(item, answer.text)) or None
    return form, "" if form is not None else "holds no answer"


def _length(text: str, most: int) -> int:
    """Returns the characters of a text as it came, or in NFKC where these are more. Of a text that is too long as it
    came, or too short to grow over `most`, only the first are counted."""
    if text.isascii() or len(text) > most or len(text) * MOST_GROWN <= most:
        return len(text)
    return max(len(text), len(normalize("NFKC", text)))


def signals_in(answer: PanelAnswer, names: Sequence[str]) -> list[float]:
    """Returns the signals (S,) of an answer, NaN where one is missing. Raises `InvalidResponse` for log-probabilities,
    a stated confidence or a score that are no numbers."""
    numbers = None
    if answer.logprobs is not None and not (isinstance(answer.logprobs, Sized) and not len(answer.logprobs)):
        numbers = terms(check_logprobs(answer.logprobs)[None])[0].tolist()
    values: tuple[tuple[str, object], ...] = ((STATED, answer.stated), (SCORE, answer.score))
    for name, value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise InvalidResponse(f"its {name} is a {type(value).__name__}; expected a number, or None")
    return answer_signals(numbers, answer.stated, answer.score, names)


def names_shown(names: Sequence[str]) -> str:
    """Returns names for a reason: the first few, each cut."""
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return ", ".join([name[:80] or "an unnamed agent" for name in names[:MOST_NAMED]] + more)


def told(error: BaseException) -> str:
    """Returns what went wrong in a few words, whatever the error's own text does."""
    try:
        return f"{type(error).__name__}: {error}"[:MOST_TOLD]
    except Exception:
        return type(error).__name__


def shown(error: object) -> str:
    text = str(error)
    return text if len(text) <= MOST_TOLD else text[: MOST_TOLD - 3] + "..."
