"""An answer with its log-probabilities in the one form that everything here reads, whatever API it came from.

A reader of a format fills in a `ParsedResponse` and hands it to `settle`: tokens that only ended the answer are left
out, the thinking is told from the answer, and the tokens must spell the text.

Log-probabilities are read as numbers, checked, and told from placeholders: servers that know no log-probability write 0
or a constant, for all tokens or for those that another model proposed.
"""

import marshal
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from math import exp
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import InvalidResponse, NoLogprobs, of_other_tokens
from metaprobe.records.reading import REFUSAL, TOOL_CALL, all_fields, as_list, columns_of_each, fields, text
from metaprobe.records.segments import Ending, locate, text_of
from metaprobe.records.spelling import names_tokens, spelled
from metaprobe.records.types import Call, FloatArray, Hidden, LogprobsMode, Segment, SegmentKind, Usage

LOGPROBS_HINT = "request the completion with logprobs=True (and top_logprobs=k for the alternatives)"


def check_logprobs(values: object) -> NDArray[np.float32]:
    """Log-probabilities as float32 (T,), T >= 1, finite and at most 0. Raises `InvalidResponse` for anything else."""
    if values is None:
        raise InvalidResponse(f"the response holds no log-probabilities; {LOGPROBS_HINT}")
    given = _numbers(values)
    if given.ndim != 1:
        raise InvalidResponse(
            f"log-probabilities came with shape {given.shape}; expected one number a token, shape (T,):"
            " score one answer at a time"
        )
    if not given.size:
        raise InvalidResponse(
            f"the response holds no tokens (0 log-probabilities); expected at least 1; if it has text, {LOGPROBS_HINT}"
        )
    with np.errstate(over="ignore"):  # beyond float32 becomes -inf, and is refused as that below
        logprobs = given.astype(np.float32)
    if logprobs.max() <= LOGPROB_ROUNDING and logprobs.min() > -np.inf:  # a NaN fails both
        return np.minimum(logprobs, np.float32(0))
    index = int(np.flatnonzero(~((logprobs <= LOGPROB_ROUNDING) & (logprobs > -np.inf)))[0])
    value = given[index]
    if np.isnan(value):
        why = "is NaN; expected a number of at most 0: the model overflowed, run it in bfloat16 or float32"
    elif value > 0:
        why = (
            f"is {value:g}; expected at most 0: take the logarithm if these are probabilities,"
            " the log-softmax if they are logits"
        )
    else:
        size = "a finite number" if np.isinf(value) else "a number of nats that 32 bits hold (above -3.4e38)"
        why = (
            f"is {value:g}; expected {size}: the token was ruled out by the sampler, so ask the server for raw"
            " log-probabilities (before temperature, top-k and top-p)"
        )
    raise InvalidResponse(f"the log-probability of token {index} (of {given.size}) {why}, or leave this response out")


def _numbers(values: object) -> NDArray[Any]:
    """Real numbers as an array of any shape. NumPy alone would take True for 1 and "-0.5" for a string array."""
    if not hasattr(values, "__array__"):
        if isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
            raise InvalidResponse(
                f"log-probabilities came as {type(values).__name__}; expected a list or array of numbers, one a token"
            )
        values = list(values)
        for kind in set(map(type, values)):
            if kind in (list, tuple, np.ndarray):
                raise InvalidResponse(
                    "log-probabilities came nested; expected one number a token, shape (T,): score one answer at a time"
                )
            if not issubclass(kind, (float, int, np.floating, np.integer)) or issubclass(kind, bool):
                index = next(i for i, value in enumerate(values) if type(value) is kind)
                raise InvalidResponse(
                    f"the log-probability of token {index} is {values[index]!r} ({kind.__name__}); expected a number"
                )
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "fiu":
        raise InvalidResponse(f"log-probabilities came as an array of {array.dtype}; expected real numbers in nats")
    return array


_FLOAT, _SIZE = b"g", 9  # how marshal's version 2 writes a float: this mark, then its eight bytes
_HEADER = 5  # the list's mark and its length
_DOUBLE = np.dtype("<f8")
_LOWEST, _HIGHEST = np.array(-1e38), np.array(0.0)  # float32 ends a little below


def float_list(values: list[object]) -> NDArray[np.float32] | None:
    """The numbers as float32 (T,), T >= 1, where all are floats, more than -1e38 and at most 0; None for anything else.

    NumPy would take True for 1 and "-0.5" for text, and a set of the types costs more than everything else. `marshal`
    writes type and value of each in one pass, so the bytes are taken for numbers only where each one's mark says float.
    What is None here is for the slow way to tell (`check_logprobs`).
    """
    try:
        data = marshal.dumps(values, 2)
    except ValueError:  # holds something that marshal does not know
        return None
    count = len(values)
    if not count or len(data) != _HEADER + count * _SIZE or data[_HEADER::_SIZE].count(_FLOAT) != count:
        return None
    given = np.ndarray((count,), _DOUBLE, data, _HEADER + 1, (_SIZE,)).copy()
    inside = np.count_nonzero(given <= _HIGHEST) == count == np.count_nonzero(given > _LOWEST)  # a NaN is not
    return given.astype(np.float32) if inside else None


LOGPROB_ROUNDING = 1e-4
"""Log-probabilities up to this far above 0 are rounding (a softmax in half precision) and become 0."""

MOST_PADDED = 1 << 22
"""Numbers, 16 MiB of them, to which rows of unequal lengths may be filled up. Rows that hold a quarter of their numbers
may be larger; one long row among a million empty ones would take terabytes."""


def alternatives(rows: Sequence[Any]) -> NDArray[np.float32] | None:
    """(T, k), descending, from a row a token; None where none has any. Padded with NaN.

    A row holds numbers, or {token, logprob} as dictionaries or objects. Those that the sampler ruled out count as not
    given: they are -inf, or null, for JSON has no -inf.
    """
    try:
        rows = [row or () for row in rows]
        lengths = list(map(len, rows))
        width, count = max(lengths, default=0), sum(lengths)
        if not width:
            return None
        if len(rows) * width > max(MOST_PADDED, 4 * count):
            raise InvalidResponse(
                f"one token has {width} alternatives, and the {len(rows)} tokens have {count} in all;"
                " expected about as many for each token: ask for the same top_logprobs for all"
            )
        first, every = next(chain.from_iterable(rows)), chain.from_iterable(rows)
        if first is None or isinstance(first, (float, int)):  # the first tells what they are: there may be thousands
            flat = np.array(list(every))
        else:
            flat = np.array(list(map((itemgetter if isinstance(first, Mapping) else attrgetter)("logprob"), every)))
        if flat.dtype.kind == "O":  # a null among them
            flat = np.array([-np.inf if value is None else value for value in flat])
        if flat.dtype.kind not in "fiu" or flat.ndim != 1:
            raise TypeError("a logprob among them is no number")
        with np.errstate(over="ignore"):
            if count == len(rows) * width:
                padded = flat.astype(np.float32).reshape(len(rows), width)
            else:
                padded = np.full((len(rows), width), np.nan, dtype=np.float32)
                padded[np.arange(width) < np.array(lengths)[:, None]] = flat
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidResponse(
            f"top_logprobs cannot be read ({type(error).__name__}: {error});"
            " expected a list of {token, logprob} for each token"
        ) from error
    if (padded > LOGPROB_ROUNDING).any():
        token = int(np.argwhere(padded > LOGPROB_ROUNDING)[0, 0])
        raise InvalidResponse(f"token {token} has an alternative with a log-probability above 0; expected at most 0")
    padded[padded == -np.inf] = np.nan
    return -np.sort(-np.minimum(padded, np.float32(0)), axis=1)  # NumPy sorts NaN last


MIN_VARIED_TOKENS = 5
"""Tokens from which on log-probabilities that are all equal stand for none. The numbers of a shorter answer may be
equal by themselves: a model that is certain gives 0 for each token."""
NO_LOGPROB = -1000.0
"""Servers write -9999 or so for a token whose log-probability they do not know."""
MOST_EQUAL, MOST_ZEROS = 0.5, 0.75
"""Shares of the tokens above which one value that they share is said to be doubtful. A model that is certain gives 0
for many tokens, and no other value twice."""
SAMPLED_TOKENS = 6
"""Tokens whose alternatives are looked at where no feature needs them: the faults are the server's, and show
in most tokens. Reading all of them takes longer than the rest of a response."""
_SUM = 1.02
"""The highest sum of probabilities that rounding explains: sixteen bits hold three digits."""
_BELOW = 0.02
"""Nats by which rounding may put the likeliest alternative below the drawn token."""


def refuse_placeholders(logprobs: FloatArray, drawn: FloatArray | None = None, top: FloatArray | None = None) -> None:
    """Raises `NoLogprobs` where the log-probabilities of a server's response stand for none.

    `logprobs` (T,), nats. `drawn` (S,) and `top` (S, k): the numbers and the alternatives of those tokens whose
    alternatives were looked at; None where none have any.
    """
    why = constant(logprobs, top)
    if not why and drawn is not None and top is not None:
        # Numbers of 0 without alternatives, which the other tokens have, stand for none.
        given = (top > NO_LOGPROB).any(axis=1)  # NaN is not
        bare = int(np.count_nonzero(~given & (drawn == 0)))
        if bare and given.any():
            why = (
                f"log-probabilities are 0 where alternatives are missing, in {bare} of {len(top)} tokens that were"
                " looked at: speculative decoding and cached tokens are written so"
            )
    if why:
        error = NoLogprobs(
            f"{why}; expected the log-probability of each drawn token: ask the server for real ones, or leave this"
            " response out"
        )
        error.placeholders = True
        raise error


def constant(logprobs: FloatArray, top: FloatArray | None = None) -> str:
    """Returns why log-probabilities that are all equal stand for none; empty where they may be a model's own.

    `logprobs` (T,), nats; `top` (T, k), the alternatives of some or all tokens, None where none are known.
    """
    if len(logprobs) < MIN_VARIED_TOKENS or logprobs.min() != logprobs.max():
        return ""
    if logprobs[0] < 0:
        return f"all {len(logprobs)} log-probabilities are {logprobs[0]:g}, a constant that stands for none"
    if top is not None and np.nan_to_num(top).any():
        return ""  # a model that is certain: its alternatives have other numbers
    return f"all {len(logprobs)} log-probabilities are 0, as servers write that have none"


def doubtful(logprobs: FloatArray) -> str:
    """Returns what a verdict must say of numbers that may stand for none and may be a model's own; else empty."""
    ordered, tokens = np.sort(logprobs), len(logprobs)
    value = ordered[tokens // 2]
    doubts = []
    if tokens < MIN_VARIED_TOKENS or ordered[0] == ordered[-1]:
        doubts.append(constant(logprobs))
    elif value in (ordered[tokens // 4], ordered[3 * tokens // 4]):
        # A value that more than half share is the median, and the first or third quartile.
        same = int(np.count_nonzero(ordered == value))
        if same >= MIN_VARIED_TOKENS and same > (MOST_ZEROS if value == 0 else MOST_EQUAL) * tokens:
            doubts.append(f"{same} of {tokens} log-probabilities are {value:g}, as servers write of unknown ones")
    if ordered[0] <= NO_LOGPROB:
        unknown = ordered[0]
        doubts.append(f"a log-probability is {unknown:g}, as servers write of a token whose own they do not know")
    return "; ".join(filter(None, doubts))


def implausible(logprobs: FloatArray, top: FloatArray) -> str:
    """Returns why the alternatives cannot be the likeliest tokens, or empty where they can.

    `logprobs` (T,), `top` (T, k) in descending order, NaN where a token has fewer than k.
    """
    with np.errstate(under="ignore"):
        sums = np.exp(np.where(np.isnan(top), -np.inf, top), dtype=np.float64).sum(axis=1)
    if (too_much := int(np.count_nonzero(sums > _SUM))) > 0:
        return _sums_to(too_much, len(top), sums.max())
    likeliest: NDArray[Any] = np.where(np.isnan(top[:, 0]), np.inf, top[:, 0])
    if (below := int(np.count_nonzero(likeliest < logprobs - _BELOW))) > 0:
        return (
            f"the likeliest alternative of {below} of {len(top)} tokens is less likely than the drawn token: they are"
            " of another distribution, or of another token"
        )
    inside = np.nan_to_num(top, nan=np.inf).min(axis=1) + _BELOW < logprobs  # likelier than the last that is listed
    unlisted = inside & (np.nan_to_num(np.abs(top - logprobs[:, None]), nan=np.inf).min(axis=1) > _BELOW)
    if (missing := int(np.count_nonzero(unlisted))) > 0:
        return (
            f"the drawn token of {missing} of {len(top)} tokens is likelier than the last of its alternatives and not"
            " among them: they are of another distribution, or of another token"
        )
    return ""


def listed_twice(entries: Sequence[Any]) -> str:
    """Returns why the alternatives of these tokens cannot be: a token that is listed twice, or the drawn token with two
    log-probabilities. Empty where neither is so.

    `entries`: {token, logprob, top_logprobs}, as mappings or a client's objects; only `SAMPLED_TOKENS` of them are
    read.
    """
    for entry in map(fields, entries if len(entries) <= 2 * SAMPLED_TOKENS else sample_entries(entries)):
        drawn = (entry or {}).get("token")
        if not isinstance(drawn, str) or not drawn.strip("\ufffd \t\r\n"):
            continue  # pieces of characters and empty ones name no token
        rows = all_fields(as_list((entry or {}).get("top_logprobs")) or ()) or ()
        given = [(row.get("logprob"), str(row.get("bytes"))) for row in rows if row.get("token") == drawn]
        same = [value for value, _ in given if isinstance(value, float | int)]
        if len(set(given)) < len(given):  # two tokens with one text differ in their numbers or bytes
            return f"the drawn token {str(drawn)[:20]!r} is listed {len(same)} times among its alternatives"
        own = (entry or {}).get("logprob")
        if same and isinstance(own, float | int) and min(abs(own - value) for value in same) > _BELOW:
            return (
                f"the drawn token {str(drawn)[:20]!r} has the log-probability {own:g}, and {same[0]:g} among its"
                " alternatives: they are of another distribution, or of another token"
            )
    return ""


def sample_entries(entries: Sequence[Any], logprobs: FloatArray | None = None) -> list[Any]:
    """Returns up to twice `SAMPLED_TOKENS` of the entries: the first, the last, others evenly between them, and as
    many of those whose log-probability is 0, which stand for none where they have no alternatives. `logprobs` (T,):
    None where these are not to be looked for."""
    count = len(entries)
    if count <= SAMPLED_TOKENS:
        return list(entries)
    zeros = [] if logprobs is None or logprobs.all() else (logprobs == 0).nonzero()[0].tolist()
    evenly = {i * (count - 1) // (SAMPLED_TOKENS - 1) for i in range(SAMPLED_TOKENS)}
    return [entries[i] for i in sorted(evenly | set(zeros[:: max(1, len(zeros) // SAMPLED_TOKENS)][:SAMPLED_TOKENS]))]


@dataclass(frozen=True, slots=True, eq=False)
class ParsedResponse:
    """One answer: its text, tokens and log-probabilities."""

    text: str
    """The answer's text; empty where the answer was a tool call or a refusal."""
    tokens: tuple[str, ...]
    """The tokens as the server spelled them; empty where only log-probabilities were given."""
    logprobs: FloatArray
    """float32, shape (T,), nats, finite and at most 0. T >= 1, but for an answer that came with hidden states alone."""
    top_logprobs: FloatArray | None = None
    """float32, shape (T, k), nats, descending; NaN where a token has fewer than k alternatives."""
    finish_reason: str = ""
    """`stop`, `length`, `content_filter`, `refusal` or `tool_calls`, whatever the server calls it; another end by the
    server's own word; empty where the response does not say how the answer ended."""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    logprobs_mode: LogprobsMode = "unknown"
    """`raw` before temperature and truncation, `processed` after them; chat completions do not say."""
    temperature: float | None = None
    """The temperature at which the tokens were drawn, where the source states it."""
    segments: tuple[Segment, ...] = ()
    """The parts of the tokens, as in a `Call`; empty where all tokens are the answer's, as far as is known."""
    thinking: FloatArray | None = None
    """float32, shape (S,): the log-probabilities of the thinking, where `cut_to_answer` has left only the answer."""
    reader: str = ""
    """The model of the log-probabilities, as in a `Call`; empty where they are the answering model's own."""
    left_out: int = 0
    """The number of tokens after the answer that only ended it."""
    note: str = ""
    """Text that a verdict must mention: that the stream has no end, or there are other answers. Empty for nothing."""
    top_fault: str = ""
    """Why the alternatives cannot be the likeliest tokens; they are then left out. Empty where nothing was found."""
    hidden: Hidden | None = None
    """Hidden states that came with the answer."""
    stated: Mapping[str, float] = field(default_factory=dict)
    """Maps `confidence` and `p_true` to the numbers in [0, 1] that the model stated of the answer, where it stated
    them."""


@dataclass(frozen=True, slots=True)
class ParsedText:
    """One answer without its log-probabilities."""

    text: str
    """The answer's text; empty where the answer was a tool call or a refusal."""
    finish_reason: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    thinking: str | None = None
    """The thinking that is shown before the answer; empty where it is only counted, None where there was none."""
    ending: Ending = ""


def tokens_of(segments: Sequence[Segment], kind: SegmentKind, count: int) -> NDArray[np.intp]:
    """The places of the tokens of that kind, of `count` tokens. Without segments all are of the answer."""
    if not segments:
        return np.arange(count if kind == "answer" else 0)
    return np.concatenate([np.arange(0), *(np.arange(s.start, s.end) for s in segments if s.kind == kind)])


def series_of(logprobs: FloatArray, segments: Sequence[Segment]) -> tuple[FloatArray, FloatArray]:
    """The log-probabilities of the answer, and those of the thinking before it: (A,) and (S,), either may be empty."""
    if not segments:
        return logprobs, logprobs[:0]
    values = np.asarray(logprobs)
    return values[tokens_of(segments, "answer", len(values))], values[tokens_of(segments, "thinking", len(values))]


def answer_logprobs(call: Call) -> FloatArray | None:
    """The log-probabilities of a call's answer, (A,), without those of its thinking; None where it has none."""
    return None if call.logprobs is None else series_of(call.logprobs, call.segments)[0]


def parse_entries(given: object, where: str, *, top: bool = True, **rest: Any) -> ParsedResponse:
    """A response from its entries {token, logprob, top_logprobs}, one a token; `rest`: its other fields."""
    values = as_list(given)
    columns = columns_of_each(values, ("token", "logprob", "top_logprobs")[: 2 + top]) if values is not None else None
    if columns is None:
        raise InvalidResponse(
            f"{where} is not a list of objects; expected {{token, logprob, top_logprobs}} for each token"
        )
    tokens, logprobs = columns[:2]
    checked = float_list(logprobs)
    try:
        "".join(tokens)  # three times as fast as looking at each one's type
    except TypeError:
        tokens = list(map(text, tokens))
    parsed = ParsedResponse(
        tokens=tuple(tokens),
        logprobs=check_logprobs(logprobs) if checked is None else checked,
        **rest,
    )
    assert values is not None
    if top:
        return with_alternatives(parsed, columns[2], values)
    return without_alternatives(parsed, [entry or {} for entry in map(fields, sample_entries(values, parsed.logprobs))])


def without_alternatives(parsed: ParsedResponse, few: Sequence[Mapping[str, Any]]) -> ParsedResponse:
    """The response without its alternatives; those of a few tokens {token, logprob, top_logprobs} are looked at.

    Raises and says of them what `with_alternatives` does.
    """
    numbers, rows = parsed.logprobs, [entry.get("top_logprobs") for entry in few]
    if not (numbers[0] == numbers[-1] and numbers.min() == numbers.max()):
        fault = _fault_at_once(few) if any(rows) else ""
        if fault is not None and parsed.finish_reason not in (TOOL_CALL, REFUSAL):
            return replace(parsed, top_fault=fault) if fault else parsed
    looked_at = with_alternatives(parsed, rows, few)
    return looked_at if looked_at.top_logprobs is None else replace(looked_at, top_logprobs=None)


_NAMED = itemgetter("token", "logprob")


def _fault_at_once(few: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns what `implausible` and `listed_twice` say of these tokens' alternatives, empty for nothing.

    None where they have to be looked at closely. NumPy takes four times as long for so few numbers.
    """
    sums, must_look = [], False
    try:
        for entry in few:
            came, token, drawn = entry["top_logprobs"], entry["token"], entry["logprob"]
            row: Sequence[Any] | None = came if type(came[0]) is dict else all_fields(came)
            if row is None:
                return None
            named = dict(map(_NAMED, row))
            if len(named) == len(row):
                values: Iterable[Any] = named.values()
                own = named.get(token)
            else:  # two tokens with one text, as pieces of characters
                values = [one["logprob"] for one in row]
                same = [one["logprob"] for one in row if one["token"] == token]
                own = same[0] if len(same) == 1 else None
            most = max(values)
            if not NO_LOGPROB < most <= LOGPROB_ROUNDING:
                return None
            sums.append(sum(map(exp, values)))
            must_look = must_look or own is None or not abs(own - drawn) <= _BELOW or drawn - _BELOW > most
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
        return None
    too_much = [one for one in sums if one > _SUM]
    if too_much:
        return _sums_to(len(too_much), len(sums), max(too_much))
    return None if must_look or not max(sums) <= _SUM else ""


def _sums_to(count: int, of: int, most: float) -> str:
    return (
        f"the probabilities of {count} of {of} tokens' alternatives sum to up to {most:.2f}, more"
        " than 1: a token is listed twice, or they are of another distribution"
    )


def with_alternatives(parsed: ParsedResponse, rows: Sequence[Any], entries: Sequence[Any] = ()) -> ParsedResponse:
    """The response with its alternatives, where a row of them came for each token and they can be the likeliest ones.

    Rows of a few tokens only are looked at for faults, and not kept; `entries` are then those tokens {token, logprob,
    top_logprobs}. Alternatives that cannot be read, or cannot be, are left out, and `top_fault` says why. Raises
    `NoLogprobs` where the log-probabilities stand for none.
    """
    try:
        top, fault = alternatives(rows), ""
    except InvalidResponse as error:
        top, fault = None, str(error)
    whole = len(rows) == len(parsed.logprobs)
    drawn = parsed.logprobs
    if not whole and top is not None:
        numbers = [row.get("logprob") for row in entries]
        read = float_list(numbers)
        drawn = check_logprobs(numbers) if read is None else read
    if parsed.finish_reason not in (TOOL_CALL, REFUSAL):  # those are refused for what they are
        refuse_placeholders(parsed.logprobs, drawn, top)
    fault = fault or (implausible(drawn, top) if top is not None else "") or listed_twice(entries)
    kept = top if whole and not fault else None
    return replace(parsed, top_logprobs=kept, top_fault=fault) if fault or kept is not None else parsed


def first_of(count: int, choice: int) -> str:
    """The note on an answer that is the first of several, where nobody asked for it; else empty."""
    if count < 2 or choice:
        return ""
    return "the response holds several answers and this is of the first: parse_response(response, choice=1) is the next"


_WHOLE = "expected one for each token of the answer: ask the server for all of them, or leave this response out"


MOST_WORDS = 3
"""Words that one token without a name may stand for: more than a tokenizer has in one token."""


NONE = "the model was still thinking when it was cut, or never left its thinking: give it more tokens, or leave it out"


def settle(
    parsed: ParsedResponse,
    thinking: str | None,
    ending: Ending,
    entries: Sequence[Any] = (),
    *,
    counted: int = 0,
) -> ParsedResponse:
    """The response with its segments, and without the tokens that only ended it.

    `thinking` and `ending` as for `locate`; `entries` have the bytes of tokens, where the server gives them; `counted`:
    how many tokens the server says that it drew, 0 where it does not say. Raises `InvalidResponse` where there was
    thinking and it is not known where it ends, where nothing was said, and where the log-probabilities are not those of
    the answer's tokens.
    """
    tokens = parsed.tokens or ("",) * len(parsed.logprobs)
    joined = "".join(tokens)
    is_spelled = thinking is None and joined == parsed.text and all(tokens) and names_tokens(tokens)
    if is_spelled and "<" not in joined and "[" not in joined:  # as most answers: no marker, no end token
        return _noted(parsed, _of_all(parsed, counted))
    try:
        parts = locate(tokens, parsed.text, thinking, ending=ending)
    except InvalidResponse:
        rows = _byte_rows(entries, range(len(entries)))
        pieces = [row.decode("latin-1") for row in rows if row is not None]  # each byte as one character
        if not pieces or len(pieces) < len(rows):
            raise
        given = (
            written.encode("utf-8", "surrogatepass").decode("latin-1") for written in (parsed.text, thinking or "")
        )
        parts = locate(pieces, *given, ending=ending)
    cut = without_last(parsed, len(parsed.logprobs) - parts.kept)
    if parts.segments or parts.note:
        note = "; ".join(filter(None, (cut.note, parts.note)))
        cut = replace(cut, segments=parts.segments, note=note)
    if thinking is not None or parts.segments:
        counted = 0  # thinking is counted, and may have come without log-probabilities
    return check_text(cut, entries, counted=counted)


def check_text(parsed: ParsedResponse, entries: Sequence[Any] = (), *, counted: int = 0) -> ParsedResponse:
    """The response, where the tokens of its answer spell its text; a note says where they hold more than the text.

    A note also says where nothing but marks at the end lack their tokens that carry no meaning, as a full stop: how
    many tokens have log-probabilities, and of how many, by the server's count or with what is missing as one token.

    `entries`: {token, bytes} of each token, where the server gives the bytes. `counted`: how many tokens the server
    drew, ends included, 0 where it does not say. Raises `InvalidResponse` where the tokens are of a part of the answer
    or of other words. Tokens without names are held against the count alone.
    """
    of_all = _of_all(parsed, counted)
    # The answer's tokens. Their bytes are read only where texts do not tell: that takes as long as all else together.
    places: Sequence[int] = range(len(parsed.logprobs))
    pieces: Sequence[str] = parsed.tokens
    if parsed.segments:
        places = tokens_of(parsed.segments, "answer", len(parsed.logprobs)).tolist()
        pieces = [parsed.tokens[i] for i in places] if parsed.tokens else ()
    rows = [] if all(pieces) else _byte_rows(entries, places)
    if rows:  # a token without text may have bytes
        pieces = [piece or (row or b"").decode("utf-8", "replace") for piece, row in zip(pieces, rows, strict=True)]
    if not names_tokens(pieces):
        if of_all or (not parsed.segments and len(parsed.text.split()) > MOST_WORDS * len(places)):
            came_short = (
                of_all or f"log-probabilities came for {len(places)} tokens of {len(parsed.text.split())} words"
            )
            raise of_other_tokens(f"{came_short}, and name no tokens; {_WHOLE}")
        return parsed
    # One join tells of most answers that their tokens spell the text.
    shown = text_of(parsed.text, "answer") if parsed.segments else parsed.text
    if "".join(pieces) == shown:
        return _noted(parsed, of_all)
    if not shown.strip():
        return _noted(parsed, "the response shows no text, so whether the tokens are the whole answer is not known")
    # The others are read by each spelling, by their bytes, and with the thinking.
    reading = spelled(pieces, shown, rows)
    if not reading.all and not rows and (rows := _byte_rows(entries, places)):
        reading = spelled(pieces, shown, rows)
    if parsed.segments and not reading.all:  # a server that leaves out the markers may show the thinking as text
        whole = spelled(parsed.tokens, parsed.text)
        reading = whole if whole.all else reading
    if reading.only_marks:
        return _noted(parsed, _of_how_many(parsed, len(places), counted, reading.missing))
    if reading.missing or reading.other:
        where = f"they say {reading.other[:30]!r} where the text says" if reading.other else "they leave out"
        raise of_other_tokens(
            f"{of_all or 'the tokens with the log-probabilities do not spell the answer'}: {where}"
            f" {reading.missing[:30]!r}; {_WHOLE}"
        )
    more = "the tokens hold more than the text that is shown, and all are scored" if reading.more else ""
    return _noted(parsed, of_all or ("" if parsed.note else more))


def _of_all(parsed: ParsedResponse, counted: int) -> str:
    """Returns the note on an answer of which other than `counted` tokens came; empty where the numbers agree."""
    came = len(parsed.logprobs) + parsed.left_out
    if not counted or abs(counted - came) <= 1:  # an end token is counted or not
        return ""
    if came < counted:
        return f"the log-probabilities are of {came} of the {counted} tokens that the server counts"
    return f"log-probabilities came for {came} tokens, and the server counts {counted}"


_COUNTED = "log-probabilities of "
"""Begins the note on an answer whose last marks have no log-probability. A stored answer has the note already."""


def _of_how_many(parsed: ParsedResponse, came: int, counted: int, missing: str) -> str:
    """Returns the note on an answer of `came` tokens whose missing marks have no log-probability.

    The server's count is taken where it is higher: it may include the end token. Else the marks count as one token.
    """
    if _COUNTED in parsed.note:
        return ""
    of, how = came + 1, "counted as one token"
    if counted - parsed.left_out > of:
        of, how = counted - parsed.left_out, f"the server counts {counted}"
    return f"{_COUNTED}{came} of {of} tokens: none came for {missing!r} at the end ({how})"


def _noted(parsed: ParsedResponse, note: str) -> ParsedResponse:
    return replace(parsed, note="; ".join(filter(None, (parsed.note, note)))) if note else parsed


_INTEGER, _BYTES = frozenset((int,)), frozenset(range(256))


def _byte_rows(entries: Sequence[Any], places: Sequence[int]) -> list[bytes | None]:
    """Returns the UTF-8 bytes of the tokens in these places, None where they did not come; empty without entries."""
    if not places or len(entries) <= places[-1]:
        return []
    columns = columns_of_each([entries[place] for place in places], ("bytes",))
    given: list[Any] = [None] * len(places) if columns is None else columns[0]
    return [
        bytes(row)
        if type(row) in (list, tuple) and _INTEGER.issuperset(map(type, row)) and _BYTES.issuperset(row)
        else None
        for row in given
    ]


def without_last(parsed: ParsedResponse, count: int = 1) -> ParsedResponse:
    """The response without its last tokens. Raises `InvalidResponse` where none would be left."""
    came = len(parsed.logprobs)
    if not count:
        return parsed
    if count >= came:
        raise InvalidResponse(f"the answer is empty: its {came} tokens only end it; expected words: leave it out")
    kept = came - count
    return replace(
        parsed,
        tokens=parsed.tokens[:kept],
        logprobs=parsed.logprobs[:kept],
        top_logprobs=None if parsed.top_logprobs is None else parsed.top_logprobs[:kept],
        left_out=parsed.left_out + count,
    )


def cut_to_answer(parsed: ParsedResponse) -> ParsedResponse:
    """The response cut to its answer, its thinking apart; the note says what was left out.

    Raises `InvalidResponse` where no token is known to be of the answer.
    """
    if not parsed.segments:
        return parsed
    at = tokens_of(parsed.segments, "answer", len(parsed.logprobs))
    answer, thinking = series_of(parsed.logprobs, parsed.segments)
    top = None if parsed.top_logprobs is None else parsed.top_logprobs[at]
    if not len(answer):
        raise InvalidResponse(
            f"all {len(parsed.logprobs)} tokens are of the thinking, and none of an answer; expected an answer to"
            f" score: {NONE}"
        )
    if parsed.tokens:
        refuse_placeholders(answer, answer, top)
    note = f"scored are the answer's {len(answer)} tokens, not the {len(thinking)} of the thinking before it"
    return replace(
        parsed,
        tokens=tuple(parsed.tokens[i] for i in at) if parsed.tokens else (),
        logprobs=answer,
        top_logprobs=top,
        segments=(),
        thinking=thinking,
        note="; ".join(filter(None, (parsed.note, note if len(thinking) else ""))),
    )
