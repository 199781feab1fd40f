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
from metaprobe.checkpoints.rendered_table import html_table
from metaprobe.probes.features import terms
from metaprobe.records.correctness import canonical, final_answer, function_code
from metaprobe.records.errors import InvalidResponse, NoLogprobs, RecordError
from metaprobe.records.parse import from_json, parse_response, parse_text
from metaprobe.records.reading import REFUSAL, STOP, TOOL_CALL, UNSTATED, fields, once, text, without_surrogates
from metaprobe.records.response import ParsedResponse, ParsedText, answer_logprobs, check_logprobs, first_of
from metaprobe.records.response import cut_to_answer as cut_to_answer
from metaprobe.records.spelling import normalize
from metaprobe.records.tool_calls import ToolCall, show_tool_calls, tool_calls_form, tool_calls_in
from metaprobe.records.types import Call, Item, LogprobsMode
from metaprobe.routing.panel.model_rows import SCORE, STATED, answer_signals

EXACT = "exact"
"""Reading in which two answers are the same if their words are the same, apart from words of the question
(`records.correctness.canonical`).
"""
TEXTS = "words and signs that the question does not have, lists apart"
"""How texts are compared, as a checkpoint names it. A checkpoint that names another way learned from other classes."""
OVERLAP = "overlap"
"""Reading in which two answers are the same if they share more than half of their words."""
COMPARED_BY = {
    "number": "numbers read whole with their units, or else texts",
    "choice": "options by their letter, number or words",
    "function": "Python code of the last whole fence",
}
"""Maps a check of `Item` to the name of its comparison in a checkpoint. Every other check has the name `TEXTS`.
`OVERLAP` has no name, because its rule never changed.
"""
NO_TEXTS = ("number", "function", OVERLAP)
"""Readings that never compare texts as `EXACT` does. The check `choice` is not among them: without known options it
compares texts.
"""
SAME_AGREEMENT = 0.5
"""Agreement above which two answers count as one."""

NUMBER, CHOICE, FUNCTION = "number", "choice", "function"
"""Checks that can be told from the form of an answer: a number, the letter of an option, code."""

_NUMBER = re.compile(r"[-+−$€£¥\s]*\d[\d.,]*\s*%?")
_LETTER = re.compile(r"[a-z]", re.IGNORECASE)
_CODE = re.compile(r"\b(?:def|class|lambda|return|yield)\b")
"""Matches a word without which a text defines no function and is no body of one."""
_MARK = re.compile(r"####|\\boxed\{")
_WORD = re.compile(r"[^\W_]+(?:\.\d+)?")
_COMMA = re.compile(r"(?<=\d),(?=\d{3})")


def compared_by(same: str) -> str | None:
    """Returns the checkpoint's name for the comparison of answers by the check `same`; None for `OVERLAP`."""
    return None if same == OVERLAP else COMPARED_BY.get(same, TEXTS)


@lru_cache(maxsize=8192)
def content(answer: str) -> frozenset[str]:
    """Returns the words and numbers of an answer in lower case; after an end mark, as in `#### 12`, only those."""
    return frozenset(_WORD.findall(_COMMA.sub("", _MARK.split(answer)[-1].lower())))


def jaccard_index(first: frozenset[str], other: frozenset[str]) -> float:
    """Returns the Jaccard index, in [0, 1], of the words of two answers; 0 if both are empty."""
    if first == other:
        return float(bool(first))
    return len(first & other) / len(first | other)


def number_classes(forms: Sequence[Hashable | None]) -> list[int]:
    """Returns the class of each answer, from 0 in order of appearance, by equality; -1 for None."""
    numbers: dict[Hashable, int] = {}
    return [-1 if form is None else numbers.setdefault(form, len(numbers)) for form in forms]


def _overlap(first: Hashable, other: Hashable) -> bool:
    if isinstance(first, frozenset) and isinstance(other, frozenset):
        return jaccard_index(first, other) > SAME_AGREEMENT
    return first == other


def overlapping(answers: Sequence[Hashable | None]) -> list[int]:
    """Numbers answers into classes by word overlap, from 0 in order of appearance; -1 for None.

    An answer joins the first earlier class whose first answer overlaps with it. Forms of tool calls are no text: they
    join a class only if they are equal.
    """
    firsts: list[Hashable] = []
    classes = []
    for answer in answers:
        if answer is None:
            classes.append(-1)
            continue
        compared_form = content(answer) if isinstance(answer, str) else answer
        number = next((c for c, first in enumerate(firsts) if _overlap(compared_form, first)), len(firsts))
        if number == len(firsts):
            firsts.append(compared_form)
        classes.append(number)
    return classes


MOST_TOGETHER = 1024
"""Most answers to one question that are judged: each answer is compared with every class."""
MOST_TEXT, MOST_TEXT_TOGETHER = 100_000, 1 << 20
"""Longest answer that is compared, in characters, and limit for all answers to one question, divided evenly. It holds
for the text as it came and in NFKC, where one character may become 18. Only the end of a long text is read closely.
Of a longer question the end is read."""
MOST_GROWN = 18
"""Most characters that NFKC makes of one character (U+FDFA)."""
MOST_TOLD, MOST_NAMED = 200, 5
"""Most characters of an error in a reason, and most agents that a reason names."""
COMPARABLE_CHECKS = ("number", "choice", "exact", "function")
"""Checks of `Item` by which answers are compared: the same number, option, text or code."""


@dataclass(frozen=True, slots=True)
class PanelAnswer:
    """One answer as a panel reads it, for callers that hold no response of an API."""

    text: str
    """Text of the agent's answer."""
    agent: str = ""
    """Name of the agent that answered."""
    logprobs: Sequence[float] | None = None
    """Log-probabilities (T,) of the answer's tokens, in nats; None if there are none."""
    stated: float | None = None
    """The confidence that the agent stated, on the scale of the training data."""
    score: float | None = None
    """A checkpoint's score of the answer."""
    cut: bool = False
    """Whether the answer did not end by itself. It then counts against every class."""
    note: str = ""
    """Doubt about the answer. A verdict repeats it. Empty if nothing is doubtful."""
    logprobs_mode: LogprobsMode = "unknown"
    """Whether the log-probabilities are `raw` (before temperature and truncation) or `processed` (after them)."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls of the answer, in order; `text` shows them. Empty for an answer in words."""
    stated_source: str = ""
    """Source of `stated`, as `confidence_source` of outcomes names it: `stated`, `logprobs`, or a checkpoint's digest.
    If empty, the agent stated the number itself. For a panel that names no source, it is then a number of the kind that
    the panel learned from.
    """
    score_source: str = ""
    """Question of the decision model that gave `score`."""

    @classmethod
    def of(cls, response: object) -> "PanelAnswer":
        """Returns the answer in a response of any format, or in a parsed response. Raises `InvalidResponse` if there is
        no answer.
        """
        return answer_of(response)

    @classmethod
    def of_call(cls, item: Item, call: Call) -> "PanelAnswer":
        """Returns the answer of a recorded call to an item, without what its agent stated."""
        return replace(answer_in_call(call), text=final_answer(item, call.text))

    def same_as(self, other: "PanelAnswer", question: str = "") -> bool | None:
        """Returns whether another answer to the question says the same; None where one of the two cannot be compared.

        Two letters are compared as letters, two pieces of code as code, and tool calls as calls. If one answer is a
        number, the other is read as a number too, where it holds one. All else is compared as texts (`TEXTS`). An
        answer that did not end by itself cannot be compared.
        """
        own_checks = {own_check(answer, question) for answer in (self, other)}
        tried: tuple[str, ...] = (EXACT,)
        if len(own_checks) == 1:
            tried = (own_checks.pop(),)
        elif NUMBER in own_checks:
            tried = (NUMBER, EXACT)
        for check in tried:
            item = Item("", question, check=check)  # type: ignore[arg-type]
            forms = [comparable_form(answer, item, check)[0] for answer in (self, other)]
            if None not in forms:
                return forms[0] == forms[1]
        return None


@explain_fields
@dataclass(frozen=True, slots=True)
class PanelClass:
    """Answers that are the same."""

    answer: str
    """Text of the surest answer of this class."""
    probability: float
    """P(right) of this answer."""
    members: tuple[int, ...]
    """Indices, from 0, of the given answers that say this."""


@explain_fields
@dataclass(frozen=True, slots=True, repr=False)
class PanelVerdict:
    """Gives the result for several answers to one question: classes of equal answers, the kept one, its score."""

    classes: tuple[PanelClass, ...]
    """Each distinct answer, the likeliest first."""
    none: float
    """Probability that no answer of the panel is right."""
    kept: int | None
    """Index of the answer to keep, the surest of its class; None if no answer can be read."""
    score: float | None
    """Calibrated P(right) of the kept answer, in [0, 1]; None if no answer is kept."""
    worth: dict[str, float]
    """Maps an agent to the expected rise of the kept answer's P(right) if this agent is asked as well; empty if it is
    not known.
    """
    checkpoint: str
    """Digest of the checkpoint that gave it."""
    reason: str = ""
    """Why the verdict is doubtful, or why no answer is kept; empty for neither."""

    def __repr__(self) -> str:
        score = "None" if self.score is None else f"{self.score:.3f}"
        reason = f", reason={self.reason!r}" if self.reason else ""
        return f"PanelVerdict(kept={self.kept}, score={score}, classes={len(self.classes)}{reason})"

    def _repr_html_(self) -> str:
        """Returns a table for notebooks."""
        rows = [
            (panel_class.answer[:80], f"{panel_class.probability:.3f}, {len(panel_class.members)} answers")
            for panel_class in self.classes
        ]
        return html_table("Panel", [*rows, ("none of these", f"{self.none:.3f}"), ("reason", self.reason)])

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as types of JSON."""
        return asdict(self)


@explain_fields
@dataclass(frozen=True, slots=True)
class PanelStep:
    """Whom a panel asks next."""

    agent: str | None
    """Agent to ask next; None to stop and keep the answer that is judged best."""
    worth: dict[str, float]
    """Maps an agent to the expected rise of the kept answer's P(right) if this agent is asked, less what the agent's
    price is worth. Empty if the decision does not use these gains.
    """
    reason: str
    """Why this agent is asked, or why no agent is."""
    expected: float = 0.0
    """Expected P(right) of the agent to ask, given what is known; after the last question, P(right) of the kept answer.
    """
    keep: int | None = None
    """Index, from 0, of the answer to keep; None while asking goes on, and if no answer can be read."""


def untold(agent: str) -> str:
    """Returns a placeholder text for an answer of unknown text: a word that is unique to the agent."""
    return "untold" + agent.encode(errors="replace").hex()


def responses_in(responses: object) -> list[object]:
    """Returns the single answers in `responses`: the choices of a response, or the members of a sequence.

    Returns at most `MOST_TOGETHER` + 1 answers. Raises `RecordError` if reading the sequence fails.
    """
    if (
        isinstance(responses, str | bytes | PanelAnswer | Mapping)
        or not isinstance(responses, Iterable)
        or _choices(responses)
    ):
        responses = [responses]
    answers: list[object] = []
    try:
        for response in responses:
            count = 0 if isinstance(response, str | PanelAnswer | InvalidResponse) else _choices(response)
            answers += (
                [(response, choice) for choice in range(min(count, MOST_TOGETHER + 1))] if count > 1 else [response]
            )
            if len(answers) > MOST_TOGETHER:
                break
    except Exception as error:
        raise RecordError(f"the answers cannot be told apart ({told(error)}); expected a list of them") from error
    return answers[: MOST_TOGETHER + 1]


def _choices(response: object) -> int:
    """Returns how many choices a response holds, 0 where it is not a completion."""
    try:
        response_fields = fields(response)
        choices = response_fields.get("choices") if response_fields is not None else None
        return len(choices) if isinstance(choices, list) else 0
    except Exception:  # of an object that a caller made: it is one answer, which cannot be read
        return 0


def own_check(answer: PanelAnswer, question: str) -> str:
    """Returns the check of `Item` that fits the form of an answer in words; `EXACT` if it is a text.

    Code that defines or returns something is compared as code. An answer is compared as a number or a letter only if it
    holds nothing else except words of the question.
    """
    if _CODE.search(answer.text):
        item = Item("", question, check=FUNCTION)  # type: ignore[arg-type]
        code = function_code(final_answer(item, answer.text))
        if code is not None and _CODE.search(code):
            return FUNCTION
    item = Item("", question, check=EXACT)  # type: ignore[arg-type]
    final = final_answer(item, answer.text)
    canonical_answer = canonical(item, final).strip() if final else ""
    if _NUMBER.fullmatch(canonical_answer):
        return NUMBER
    if _LETTER.fullmatch(canonical_answer):
        return CHOICE
    code = function_code(answer.text)
    # "x = 5" alone is an equation rather than code.
    return EXACT if code is None or ("\n" not in code and "```" not in answer.text) else FUNCTION


def answer_of(response_or_choice: object) -> PanelAnswer:
    """Returns the answer in a response, or in a (response, choice). Raises `InvalidResponse` where there is none."""
    if isinstance(response_or_choice, InvalidResponse):
        raise response_or_choice
    response, choice = response_or_choice if _is_choice(response_or_choice) else (response_or_choice, 0)
    if isinstance(response, str):
        return PanelAnswer(response)
    if isinstance(response, Call):
        return answer_in_call(response)
    if isinstance(response, PanelAnswer):
        return response
    if isinstance(response, bytes | bytearray):
        response = from_json(response)
    parsed: ParsedResponse | ParsedText
    logprobs = None
    if isinstance(response, ParsedResponse | ParsedText):
        parsed = cut_to_answer(response) if isinstance(response, ParsedResponse) else response
    else:
        calls, ended = tool_calls_in(response, choice)
        if calls:
            return _answer_of_calls(response, choice, calls, cut=not ended)
        try:
            parsed = cut_to_answer(parse_response(response, choice=choice, top=False))
        except NoLogprobs:
            parsed = parse_text(response, choice=choice)
    if isinstance(parsed, ParsedResponse):
        logprobs = parsed.logprobs
    if parsed.finish_reason in (REFUSAL, TOOL_CALL):
        raise InvalidResponse(f"it is a {parsed.finish_reason.replace('_', ' ')}; expected an answer")
    notes = [] if isinstance(parsed, ParsedText) else [parsed.note]
    if _is_choice(response_or_choice):
        notes = [note.replace(first_of(2, 0), "").strip("; ") for note in notes]
    elif isinstance(parsed, ParsedText) and response is not parsed and _choices(response) > 1:
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
    if (response_fields := fields(response)) is not None:
        model = once(text(response_fields.get("model")))
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


def _is_choice(value: object) -> TypeGuard[tuple[object, int]]:
    """Returns whether this is a response with the number of a choice, rather than an answer."""
    return isinstance(value, tuple) and len(value) == 2 and type(value[1]) is int


def whole(answer: PanelAnswer) -> PanelAnswer:
    """Returns the answer with plain texts. Raises `InvalidResponse` where it holds none."""
    if not isinstance(answer.text, str):
        raise InvalidResponse(f"the text is a {type(answer.text).__name__}; expected a string")
    if not isinstance(answer.agent, str | None):
        raise InvalidResponse(f"the agent is a {type(answer.agent).__name__}; expected a name")
    text, agent = (str(without_surrogates(str(part or ""))) for part in (answer.text, answer.agent))
    return answer if (text, agent) == (answer.text, answer.agent) else replace(answer, text=text, agent=agent)


def comparable_form(
    answer: PanelAnswer,
    item: Item,
    by: str,
    same: Callable[[str], Hashable | None] | None = None,
    most: int = MOST_TEXT,
) -> tuple[Hashable | None, str]:
    """Returns (form, reason): `form_of` an answer in words, or the form of the tool calls of an answer.

    Tool calls are always compared as tool calls, whatever `by` and `same` are. The arguments are those of `form_of`.
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
    """Returns (form, ""), where equal answers have equal forms, or (None, reason) if the answer cannot be compared.

    Args:
        answer: the answer in words.
        item: the question.
        by: a check of `Item`, or `OVERLAP`.
        same: a caller's function from a text to its form, which replaces `by`.
        most: most characters that are compared.
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
    """Returns the number of characters of a text, or of its NFKC form if that is longer.

    The NFKC form is not computed if the text itself exceeds `most`, or is too short to exceed `most` in NFKC.
    """
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
    """Returns the type and message of an error, cut to `MOST_TOLD`; only the type if the message cannot be read."""
    try:
        return f"{type(error).__name__}: {error}"[:MOST_TOLD]
    except Exception:
        return type(error).__name__


def shown(error: object) -> str:
    text = str(error)
    return text if len(text) <= MOST_TOLD else text[: MOST_TOLD - 3] + "..."
