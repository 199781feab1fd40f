"""Holds an answer with its log-probabilities in one common form, whatever API it came from.

The reader of a format fills a `ParsedResponse` and passes it to `settle`. `settle` drops tokens that only ended the
answer, separates the thinking from the answer, and requires that the tokens spell the text.

Log-probabilities are read as numbers, checked, and distinguished from placeholders. Servers without log-probabilities
write 0 or a constant, for all tokens or for tokens that another model proposed.
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
    """Returns log-probabilities as float32 (T,), T >= 1, finite and at most 0. Raises `InvalidResponse` for anything
    else.
    """
    if values is None:
        raise InvalidResponse(f"the response holds no log-probabilities; {LOGPROBS_HINT}")
    numbers = _numbers(values)
    if numbers.ndim != 1:
        raise InvalidResponse(
            f"log-probabilities came with shape {numbers.shape}; expected one number a token, shape (T,):"
            " score one answer at a time"
        )
    if not numbers.size:
        raise InvalidResponse(
            f"the response holds no tokens (0 log-probabilities); expected at least 1; if it has text, {LOGPROBS_HINT}"
        )
    with np.errstate(over="ignore"):  # beyond float32 becomes -inf, and is refused as that below
        logprobs = numbers.astype(np.float32)
    if logprobs.max() <= LOGPROB_ROUNDING and logprobs.min() > -np.inf:  # a NaN fails both
        return np.minimum(logprobs, np.float32(0))
    index = int(np.flatnonzero(~((logprobs <= LOGPROB_ROUNDING) & (logprobs > -np.inf)))[0])
    value = numbers[index]
    if np.isnan(value):
        reason = "is NaN; expected a number of at most 0: the model overflowed, run it in bfloat16 or float32"
    elif value > 0:
        reason = (
            f"is {value:g}; expected at most 0: take the logarithm if these are probabilities,"
            " the log-softmax if they are logits"
        )
    else:
        size = "a finite number" if np.isinf(value) else "a number of nats that 32 bits hold (above -3.4e38)"
        reason = (
            f"is {value:g}; expected {size}: the token was ruled out by the sampler, so ask the server for raw"
            " log-probabilities (before temperature, top-k and top-p)"
        )
    raise InvalidResponse(
        f"the log-probability of token {index} (of {numbers.size}) {reason}, or leave this response out"
    )


def _numbers(values: object) -> NDArray[Any]:
    """Returns real numbers as an array of any shape. NumPy alone would read True as 1 and make "-0.5" a
    string array.
    """
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


_MARSHAL_FLOAT, _MARSHAL_FLOAT_BYTES = (
    b"g",
    9,
)  # how marshal's version 2 writes a float: this mark, then its eight bytes
_MARSHAL_HEADER_BYTES = 5  # the list's mark and its length
_DOUBLE = np.dtype("<f8")
_LOWEST_LOGPROB, _HIGHEST_LOGPROB = np.array(-1e38), np.array(0.0)  # float32 reaches to -3.4e38


def float_list(values: list[object]) -> NDArray[np.float32] | None:
    """Returns the numbers as float32 (T,), T >= 1, if all are floats above -1e38 and at most 0; None for anything else.

    NumPy would read True as 1 and "-0.5" as text, and collecting the types costs more than all the rest. `marshal`
    writes type and value of each element in one pass. So the bytes are read as numbers only if each element's mark says
    float. After None, `check_logprobs` decides, more slowly.
    """
    try:
        data = marshal.dumps(values, 2)
    except ValueError:  # holds something that marshal does not know
        return None
    count = len(values)
    if (
        not count
        or len(data) != _MARSHAL_HEADER_BYTES + count * _MARSHAL_FLOAT_BYTES
        or data[_MARSHAL_HEADER_BYTES::_MARSHAL_FLOAT_BYTES].count(_MARSHAL_FLOAT) != count
    ):
        return None
    numbers = np.ndarray((count,), _DOUBLE, data, _MARSHAL_HEADER_BYTES + 1, (_MARSHAL_FLOAT_BYTES,)).copy()
    are_in_range = (  # False if a number is NaN
        np.count_nonzero(numbers <= _HIGHEST_LOGPROB) == count == np.count_nonzero(numbers > _LOWEST_LOGPROB)
    )
    return numbers.astype(np.float32) if are_in_range else None


LOGPROB_ROUNDING = 1e-4
"""Nats above 0 that count as rounding (a softmax in half precision). Such log-probabilities become 0."""

MAX_PADDED_NUMBERS = 1 << 22
"""Numbers (16 MiB of them) to which rows of unequal lengths may be padded.

Rows that fill a quarter of the padded array may be larger. One long row among a million empty ones would take
terabytes.
"""


def alternatives(rows: Sequence[Any]) -> NDArray[np.float32] | None:
    """Returns alternatives (T, k) in descending order, padded with NaN, from one row a token; None if all rows are
    empty.

    A row holds numbers, or {token, logprob} as dictionaries or objects. Alternatives that the sampler ruled out count
    as missing. They are -inf, or null, because JSON has no -inf.
    """
    try:
        rows = [row or () for row in rows]
        lengths = list(map(len, rows))
        width, count = max(lengths, default=0), sum(lengths)
        if not width:
            return None
        if len(rows) * width > max(MAX_PADDED_NUMBERS, 4 * count):
            raise InvalidResponse(
                f"one token has {width} alternatives, and the {len(rows)} tokens have {count} in all;"
                " expected about as many for each token: ask for the same top_logprobs for all"
            )
        first_entry, all_entries = next(chain.from_iterable(rows)), chain.from_iterable(rows)
        # Only the first entry is looked at, because there may be thousands.
        if first_entry is None or isinstance(first_entry, (float, int)):
            flat = np.array(list(all_entries))
        else:
            flat = np.array(
                list(map((itemgetter if isinstance(first_entry, Mapping) else attrgetter)("logprob"), all_entries))
            )
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
"""Fewest tokens from which equal log-probabilities count as placeholders.

The numbers of a shorter answer may really be equal: a model that is certain gives 0 for each token.
"""
NO_LOGPROB = -1000.0
"""Lower numbers are placeholders: servers write about -9999 for a token whose log-probability they do not know."""
MAX_EQUAL_SHARE, MAX_ZERO_SHARE = 0.5, 0.75
"""Share of the tokens with one equal value, and with 0, above which a note calls the numbers doubtful.

A model that is certain gives 0 for many tokens, but no other value repeatedly.
"""
SAMPLED_TOKENS = 6
"""Number of tokens whose alternatives are checked for faults if no feature needs them.

The faults are the server's, and occur in most tokens. Reading all alternatives takes longer than the rest of a
response.
"""
_MAX_PROBABILITY_SUM = 1.02
"""Highest sum of probabilities that rounding explains: sixteen bits hold three digits."""
_ROUNDING_NATS = 0.02
"""Nats by which rounding may put the likeliest alternative below the drawn token."""


def refuse_placeholders(logprobs: FloatArray, drawn: FloatArray | None = None, top: FloatArray | None = None) -> None:
    """Raises `NoLogprobs` if the log-probabilities of a server's response are placeholders.

    Args:
        logprobs: log-probabilities (T,), nats.
        drawn: log-probabilities (S,) of the tokens whose alternatives were read; None if there are none.
        top: alternatives (S, k) of these tokens; None if there are none.
    """
    reason = constant_fault(logprobs, top)
    if not reason and drawn is not None and top is not None:
        # If only some tokens have alternatives, a number of 0 without alternatives is a placeholder.
        has_alternatives = (top > NO_LOGPROB).any(axis=1)  # NaN counts as missing
        bare_zeros = int(np.count_nonzero(~has_alternatives & (drawn == 0)))
        if bare_zeros and has_alternatives.any():
            reason = (
                f"log-probabilities are 0 where alternatives are missing, in {bare_zeros} of {len(top)} tokens that "
                "were looked at: speculative decoding and cached tokens are written so"
            )
    if reason:
        error = NoLogprobs(
            f"{reason}; expected the log-probability of each drawn token: ask the server for real ones, or leave this"
            " response out"
        )
        error.placeholders, error.lacks_logprobs = True, False
        raise error


def constant_fault(logprobs: FloatArray, top: FloatArray | None = None) -> str:
    """Returns why equal log-probabilities are placeholders; empty if they may be the model's own.

    Args:
        logprobs: log-probabilities (T,), nats.
        top: alternatives (T, k) of some or all tokens; None if none are known.
    """
    if len(logprobs) < MIN_VARIED_TOKENS or logprobs.min() != logprobs.max():
        return ""
    if logprobs[0] < 0:
        return f"all {len(logprobs)} log-probabilities are {logprobs[0]:g}, a constant that stands for none"
    if top is not None and np.nan_to_num(top).any():
        return ""  # a model that is certain: its alternatives have other numbers
    return f"all {len(logprobs)} log-probabilities are 0, as servers write that have none"


def describe_doubts(logprobs: FloatArray) -> str:
    """Returns a warning for the verdict if these log-probabilities may be placeholders of the server; empty if nothing
    is suspicious.
    """
    sorted_logprobs, token_count = np.sort(logprobs), len(logprobs)
    median = sorted_logprobs[token_count // 2]
    doubts = []
    if token_count < MIN_VARIED_TOKENS or sorted_logprobs[0] == sorted_logprobs[-1]:
        doubts.append(constant_fault(logprobs))
    elif median in (sorted_logprobs[token_count // 4], sorted_logprobs[3 * token_count // 4]):
        # A value that more than half share is the median, and the first or third quartile.
        equal_count = int(np.count_nonzero(sorted_logprobs == median))
        max_share = MAX_ZERO_SHARE if median == 0 else MAX_EQUAL_SHARE
        if equal_count >= MIN_VARIED_TOKENS and equal_count > max_share * token_count:
            doubts.append(
                f"{equal_count} of {token_count} log-probabilities are {median:g}, as servers write of unknown ones"
            )
    if sorted_logprobs[0] <= NO_LOGPROB:
        placeholder = sorted_logprobs[0]
        doubts.append(f"a log-probability is {placeholder:g}, as servers write of a token whose own they do not know")
    return "; ".join(filter(None, doubts))


def implausible(logprobs: FloatArray, top: FloatArray) -> str:
    """Returns why the alternatives cannot be the likeliest tokens; empty if they can.

    Args:
        logprobs: log-probabilities (T,).
        top: alternatives (T, k) in descending order; NaN for a token with fewer than k.
    """
    with np.errstate(under="ignore"):
        sums = np.exp(np.where(np.isnan(top), -np.inf, top), dtype=np.float64).sum(axis=1)
    if (above_one_count := int(np.count_nonzero(sums > _MAX_PROBABILITY_SUM))) > 0:
        return _sum_fault(above_one_count, len(top), sums.max())
    likeliest: NDArray[Any] = np.where(np.isnan(top[:, 0]), np.inf, top[:, 0])
    if (below_count := int(np.count_nonzero(likeliest < logprobs - _ROUNDING_NATS))) > 0:
        return (
            f"the likeliest alternative of {below_count} of {len(top)} tokens is less likely than the drawn token: "
            "they are of another distribution, or of another token"
        )
    above_last_listed = (
        np.nan_to_num(top, nan=np.inf).min(axis=1) + _ROUNDING_NATS < logprobs
    )  # likelier than the last that is listed
    unlisted = above_last_listed & (
        np.nan_to_num(np.abs(top - logprobs[:, None]), nan=np.inf).min(axis=1) > _ROUNDING_NATS
    )
    if (missing_count := int(np.count_nonzero(unlisted))) > 0:
        return (
            f"the drawn token of {missing_count} of {len(top)} tokens is likelier than the last of its alternatives "
            "and not among them: they are of another distribution, or of another token"
        )
    return ""


def listed_twice_fault(entries: Sequence[Any]) -> str:
    """Returns why the alternatives of these tokens are impossible; empty if they are possible.

    They are impossible if a token is listed twice, or if the drawn token has two log-probabilities. `entries` are
    {token, logprob, top_logprobs}, as mappings or a client's objects. Only `SAMPLED_TOKENS` of them are read.
    """
    for entry in map(fields, entries if len(entries) <= 2 * SAMPLED_TOKENS else sample_entries(entries)):
        drawn_token = (entry or {}).get("token")
        if not isinstance(drawn_token, str) or not drawn_token.strip("\ufffd \t\r\n"):
            continue  # pieces of characters and empty ones name no token
        rows = all_fields(as_list((entry or {}).get("top_logprobs")) or ()) or ()
        listed_pairs = [(row.get("logprob"), str(row.get("bytes"))) for row in rows if row.get("token") == drawn_token]
        listed_logprobs = [value for value, _ in listed_pairs if isinstance(value, float | int)]
        if len(set(listed_pairs)) < len(listed_pairs):  # two tokens with one text differ in their numbers or bytes
            return f"the drawn token {drawn_token[:20]!r} is listed {len(listed_logprobs)} times among its alternatives"
        drawn_logprob = (entry or {}).get("logprob")
        if (
            listed_logprobs
            and isinstance(drawn_logprob, float | int)
            and min(abs(drawn_logprob - value) for value in listed_logprobs) > _ROUNDING_NATS
        ):
            return (
                f"the drawn token {str(drawn_token)[:20]!r} has the log-probability {drawn_logprob:g}, and "
                f"{listed_logprobs[0]:g} among"
                " its alternatives: they are of another distribution, or of another token"
            )
    return ""


def sample_entries(entries: Sequence[Any], logprobs: FloatArray | None = None) -> list[Any]:
    """Returns up to twice `SAMPLED_TOKENS` of the entries: the first, the last, and others evenly between.

    If `logprobs` (T,) is given, entries whose log-probability is 0 are added in the same number: zeros without
    alternatives are placeholders.
    """
    count = len(entries)
    if count <= SAMPLED_TOKENS:
        return list(entries)
    zero_indices: list[int] = []
    if logprobs is not None and np.count_nonzero(logprobs) < count:
        zero_indices = np.flatnonzero(logprobs == 0).tolist()
    even_indices = {i * (count - 1) // (SAMPLED_TOKENS - 1) for i in range(SAMPLED_TOKENS)}
    return [
        entries[i]
        for i in sorted(
            even_indices | set(zero_indices[:: max(1, len(zero_indices) // SAMPLED_TOKENS)][:SAMPLED_TOKENS])
        )
    ]


@dataclass(frozen=True, slots=True, eq=False)
class ParsedResponse:
    """One answer: its text, tokens and log-probabilities."""

    text: str
    """Text of the answer; empty for a tool call or a refusal."""
    tokens: tuple[str, ...]
    """Tokens in the server's spelling; empty if only log-probabilities came."""
    logprobs: FloatArray
    """float32, shape (T,), nats, finite and at most 0. T >= 1, except for an answer that came with hidden
    states alone.
    """
    top_logprobs: FloatArray | None = None
    """float32, shape (T, k), nats, descending; NaN for a token with fewer than k alternatives."""
    finish_reason: str = ""
    """`stop`, `length`, `content_filter`, `refusal` or `tool_calls`, whatever the server calls it.

    For another end the server's own word; empty if the response does not say how the answer ended.
    """
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    logprobs_mode: LogprobsMode = "unknown"
    """`raw` before temperature and truncation, `processed` after them; `unknown` for chat completions, which do not
    say.
    """
    temperature: float | None = None
    """Temperature at which the tokens were drawn; None if the source does not state it."""
    segments: tuple[Segment, ...] = ()
    """Segments of the tokens, as in a `Call`; empty if all tokens count as the answer."""
    thinking: FloatArray | None = None
    """float32, shape (S,): log-probabilities of the thinking, after `cut_to_answer` has removed the thinking."""
    reader: str = ""
    """The model that gave the log-probabilities, as in a `Call`; empty if the answering model did."""
    left_out: int = 0
    """Number of tokens after the answer that only ended it."""
    note: str = ""
    """Text that a verdict must mention, such as that the stream has no end, or that there are other answers. Empty for
    nothing.
    """
    top_fault: str = ""
    """Why the alternatives cannot be the likeliest tokens. They are then left out. Empty if no fault was found."""
    hidden: Hidden | None = None
    """Hidden states that came with the answer."""
    stated: Mapping[str, float] = field(default_factory=dict)
    """Maps `confidence` and `p_true` to the numbers in [0, 1] that the model stated about the answer."""


@dataclass(frozen=True, slots=True)
class ParsedText:
    """One answer without its log-probabilities."""

    text: str
    """Text of the answer; empty for a tool call or a refusal."""
    finish_reason: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    thinking: str | None = None
    """The thinking before the answer. Empty if the server counts its tokens but hides the text, None if there was none.
    """
    ending: Ending = ""


def tokens_of(segments: Sequence[Segment], kind: SegmentKind, count: int) -> NDArray[np.intp]:
    """Returns the indices of the tokens of one kind. Without segments all tokens belong to the answer.

    Args:
        segments: segments of the tokens.
        kind: the kind of segment.
        count: number of tokens.
    """
    if not segments:
        return np.arange(count if kind == "answer" else 0)
    return np.concatenate([np.arange(0), *(np.arange(s.start, s.end) for s in segments if s.kind == kind)])


def series_of(logprobs: FloatArray, segments: Sequence[Segment]) -> tuple[FloatArray, FloatArray]:
    """Returns the log-probabilities of the answer (A,), and of the thinking before it (S,). Either may be empty."""
    if not segments:
        return logprobs, logprobs[:0]
    values = np.asarray(logprobs)
    return values[tokens_of(segments, "answer", len(values))], values[tokens_of(segments, "thinking", len(values))]


def answer_logprobs(call: Call) -> FloatArray | None:
    """Returns the log-probabilities of a call's answer (A,), without its thinking; None if it has none."""
    return None if call.logprobs is None else series_of(call.logprobs, call.segments)[0]


def parse_entries(entries: object, list_name: str, *, top: bool = True, **other_fields: Any) -> ParsedResponse:
    """Returns a response from its entries {token, logprob, top_logprobs}, one for each token.

    Args:
        entries: list of the entries.
        list_name: name of the list, for errors.
        top: whether alternatives are read.
        **other_fields: the response's other fields.
    """
    values = as_list(entries)
    columns = columns_of_each(values, ("token", "logprob", "top_logprobs")[: 2 + top]) if values is not None else None
    if columns is None:
        raise InvalidResponse(
            f"{list_name} is not a list of objects; expected {{token, logprob, top_logprobs}} for each token"
        )
    tokens, logprobs = columns[:2]
    checked_logprobs = float_list(logprobs)
    try:
        "".join(tokens)  # three times as fast as looking at each one's type
    except TypeError:
        tokens = list(map(text, tokens))
    parsed = ParsedResponse(
        tokens=tuple(tokens),
        logprobs=check_logprobs(logprobs) if checked_logprobs is None else checked_logprobs,
        **other_fields,
    )
    assert values is not None
    if top:
        return with_alternatives(parsed, columns[2], values)
    return without_alternatives(parsed, [entry or {} for entry in map(fields, sample_entries(values, parsed.logprobs))])


def without_alternatives(parsed: ParsedResponse, sampled_entries: Sequence[Mapping[str, Any]]) -> ParsedResponse:
    """Returns the response without its alternatives, after the alternatives of a few tokens were checked for faults.

    Raises the errors and adds the notes of `with_alternatives`. `sampled_entries` holds {token, logprob, top_logprobs}
    of these few tokens.
    """
    logprobs, rows = parsed.logprobs, [entry.get("top_logprobs") for entry in sampled_entries]
    if not (logprobs[0] == logprobs[-1] and logprobs.min() == logprobs.max()):
        fault = _quick_fault(sampled_entries) if any(rows) else ""
        if fault is not None and parsed.finish_reason not in (TOOL_CALL, REFUSAL):
            return replace(parsed, top_fault=fault) if fault else parsed
    checked = with_alternatives(parsed, rows, sampled_entries)
    return checked if checked.top_logprobs is None else replace(checked, top_logprobs=None)


def _quick_fault(sampled_entries: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the fault of these tokens' alternatives; empty if `implausible` and `listed_twice_fault` find none.

    Returns None if the alternatives need a closer check. For so few numbers this is four times as fast as NumPy.
    """
    sums, needs_closer_check = [], False
    try:
        for entry in sampled_entries:
            alternatives, token, drawn_logprob = entry["top_logprobs"], entry["token"], entry["logprob"]
            row: Sequence[Any] | None = alternatives if type(alternatives[0]) is dict else all_fields(alternatives)
            if row is None:
                return None
            names = [row_entry["token"] for row_entry in row]
            values = [row_entry["logprob"] for row_entry in row]
            likeliest = max(values)
            if not NO_LOGPROB < likeliest <= LOGPROB_ROUNDING:
                return None
            sums.append(sum(map(exp, values)))
            if names.count(token) != 1:  # not listed, or two tokens with one text, as pieces of characters
                needs_closer_check = True
            elif not needs_closer_check:
                needs_closer_check = (
                    not abs(values[names.index(token)] - drawn_logprob) <= _ROUNDING_NATS
                    or drawn_logprob - _ROUNDING_NATS > likeliest
                )
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
        return None
    sums_above_one = [row_sum for row_sum in sums if row_sum > _MAX_PROBABILITY_SUM]
    if sums_above_one:
        return _sum_fault(len(sums_above_one), len(sums), max(sums_above_one))
    return None if needs_closer_check or not max(sums) <= _MAX_PROBABILITY_SUM else ""


def _sum_fault(count: int, total: int, largest_sum: float) -> str:
    return (
        f"the probabilities of {count} of {total} tokens' alternatives sum to up to {largest_sum:.2f}, more"
        " than 1: a token is listed twice, or they are of another distribution"
    )


def with_alternatives(parsed: ParsedResponse, rows: Sequence[Any], entries: Sequence[Any] = ()) -> ParsedResponse:
    """Returns the response with its alternatives, if each token has a row and they can be the likeliest tokens.

    Alternatives that are unreadable or impossible are left out, and `top_fault` says why. Raises `NoLogprobs` if the
    log-probabilities are placeholders.

    Args:
        parsed: the response.
        rows: alternatives of each token; if only a few tokens have rows, they are checked but not kept.
        entries: {token, logprob, top_logprobs} of these few tokens.
    """
    try:
        top, fault = alternatives(rows), ""
    except InvalidResponse as error:
        top, fault = None, str(error)
    covers_all_tokens = len(rows) == len(parsed.logprobs)
    drawn_logprobs = parsed.logprobs
    if not covers_all_tokens and top is not None:
        numbers = [row.get("logprob") for row in entries]
        drawn_floats = float_list(numbers)
        drawn_logprobs = check_logprobs(numbers) if drawn_floats is None else drawn_floats
    if parsed.finish_reason not in (
        TOOL_CALL,
        REFUSAL,
    ):  # tool calls and refusals are refused elsewhere, for another reason
        refuse_placeholders(parsed.logprobs, drawn_logprobs, top)
    fault = fault or (implausible(drawn_logprobs, top) if top is not None else "") or listed_twice_fault(entries)
    usable_top = top if covers_all_tokens and not fault else None
    return replace(parsed, top_logprobs=usable_top, top_fault=fault) if fault or usable_top is not None else parsed


def first_of(count: int, choice: int) -> str:
    """Returns a note if the answer is the first of several and no choice was requested; else an empty text.

    `count` is the number of answers, `choice` the index of the requested answer; 0 if no answer was requested.
    """
    if count < 2 or choice:
        return ""
    return "the response holds several answers and this is of the first: parse_response(response, choice=1) is the next"


_EXPECTED_ALL = "expected one for each token of the answer: ask the server for all of them, or leave this response out"


MAX_WORDS_PER_TOKEN = 3
"""Most words that one token without a name may stand for: more than any tokenizer puts in one token."""


THINKING_HINT = (
    "the model was still thinking when it was cut, or never left its thinking: give it more tokens, or leave it out"
)


def settle(
    parsed: ParsedResponse,
    thinking: str | None,
    ending: Ending,
    entries: Sequence[Any] = (),
    *,
    counted: int = 0,
) -> ParsedResponse:
    """Returns the response with its segments, and without the tokens that only ended it.

    Raises `InvalidResponse` if there was thinking but its end is unknown, if the answer is empty, or if the
    log-probabilities belong to other tokens than the answer's.

    Args:
        parsed: the response.
        thinking: text of the thinking, as for `locate`.
        ending: how the answer ended, as for `locate`.
        entries: entries with the bytes of the tokens, if the server gives them.
        counted: how many tokens the server says that it drew; 0 if it does not say.
    """
    tokens = parsed.tokens or ("",) * len(parsed.logprobs)
    joined_tokens = "".join(tokens)
    is_spelled = thinking is None and joined_tokens == parsed.text and all(tokens) and names_tokens(tokens)
    # Most answers hold neither a marker of thinking nor an end token.
    if is_spelled and "<" not in joined_tokens and "[" not in joined_tokens:
        return _with_note(parsed, _count_note(parsed, counted))
    try:
        located = locate(tokens, parsed.text, thinking, ending=ending)
    except InvalidResponse:
        rows = _byte_rows(entries, range(len(entries)))
        pieces = [row.decode("latin-1") for row in rows if row is not None]  # each byte as one character
        if not pieces or len(pieces) < len(rows):
            raise
        texts = (
            written.encode("utf-8", "surrogatepass").decode("latin-1") for written in (parsed.text, thinking or "")
        )
        located = locate(pieces, *texts, ending=ending)
    shortened = without_last(parsed, len(parsed.logprobs) - located.kept_count)
    if located.segments or located.note:
        note = "; ".join(filter(None, (shortened.note, located.note)))
        shortened = replace(shortened, segments=located.segments, note=note)
    if thinking is not None or located.segments:
        counted = 0  # the server counts the thinking, which may have no log-probabilities
    return check_text(shortened, entries, counted=counted)


def check_text(parsed: ParsedResponse, entries: Sequence[Any] = (), *, counted: int = 0) -> ParsedResponse:
    """Returns the response if the tokens of its answer spell its text; a note says if they hold more than the text.

    A note also says if only marks without meaning are missing at the end, such as a full stop. It names the number of
    tokens with log-probabilities and the number of all tokens. The latter is the server's count; without a count, the
    missing part counts as one token. Tokens without names are only compared with the count.

    Raises `InvalidResponse` if the tokens belong to a part of the answer or to other words.

    Args:
        parsed: the response.
        entries: {token, bytes} of each token, if the server gives the bytes.
        counted: how many tokens the server drew, with end tokens; 0 if it does not say.
    """
    count_note = _count_note(parsed, counted)
    # Find the answer's tokens. Bytes are read only if the texts do not suffice, because that doubles the time.
    token_indices: Sequence[int] = range(len(parsed.logprobs))
    pieces: Sequence[str] = parsed.tokens
    if parsed.segments:
        token_indices = tokens_of(parsed.segments, "answer", len(parsed.logprobs)).tolist()
        pieces = [parsed.tokens[i] for i in token_indices] if parsed.tokens else ()
    rows = [] if all(pieces) else _byte_rows(entries, token_indices)
    if rows:  # a token without text may have bytes
        pieces = [piece or (row or b"").decode("utf-8", "replace") for piece, row in zip(pieces, rows, strict=True)]
    if not names_tokens(pieces):
        if count_note or (not parsed.segments and len(parsed.text.split()) > MAX_WORDS_PER_TOKEN * len(token_indices)):
            shortage = (
                count_note
                or f"log-probabilities came for {len(token_indices)} tokens of {len(parsed.text.split())} words"
            )
            raise of_other_tokens(f"{shortage}, and name no tokens; {_EXPECTED_ALL}")
        return parsed
    # For most answers the joined tokens are the text.
    answer_text = text_of(parsed.text, "answer") if parsed.segments else parsed.text
    if "".join(pieces) == answer_text:
        return _with_note(parsed, count_note)
    if not answer_text.strip():
        return _with_note(parsed, "the response shows no text, so whether the tokens are the whole answer is not known")
    # For other answers, try each spelling, then the bytes, then the thinking too.
    reading = spelled(pieces, answer_text, rows)
    if not reading.all and not rows and (rows := _byte_rows(entries, token_indices)):
        reading = spelled(pieces, answer_text, rows)
    if parsed.segments and not reading.all:  # a server that leaves out the markers may show the thinking as text
        whole_reading = spelled(parsed.tokens, parsed.text)
        reading = whole_reading if whole_reading.all else reading
    if reading.only_marks:
        return _with_note(parsed, _missing_marks_note(parsed, len(token_indices), counted, reading.missing))
    if reading.missing or reading.other_text:
        difference = (
            f"they say {reading.other_text[:30]!r} where the text says" if reading.other_text else "they leave out"
        )
        raise of_other_tokens(
            f"{count_note or 'the tokens with the log-probabilities do not spell the answer'}: {difference}"
            f" {reading.missing[:30]!r}; {_EXPECTED_ALL}"
        )
    extra_note = "the tokens hold more than the text that is shown, and all are scored" if reading.has_more else ""
    return _with_note(parsed, count_note or ("" if parsed.note else extra_note))


def _count_note(parsed: ParsedResponse, counted: int) -> str:
    """Returns a note if the number of tokens differs from `counted`; else an empty text."""
    token_count = len(parsed.logprobs) + parsed.left_out
    if not counted or abs(counted - token_count) <= 1:  # an end token is counted or not
        return ""
    if token_count < counted:
        return f"the log-probabilities are of {token_count} of the {counted} tokens that the server counts"
    return f"log-probabilities came for {token_count} tokens, and the server counts {counted}"


_MISSING_MARKS_START = "log-probabilities of "
"""Beginning of the note on an answer whose last marks have no log-probability. A stored answer has the note already."""


def _missing_marks_note(parsed: ParsedResponse, received_count: int, counted: int, missing: str) -> str:
    """Returns the note on an answer whose missing marks at the end have no log-probability.

    If the server's count is higher, it is used: it may include the end token. Otherwise the marks count as one token.

    Args:
        parsed: the response.
        received_count: number of tokens with log-probabilities.
        counted: how many tokens the server drew.
        missing: the marks without tokens.
    """
    if _MISSING_MARKS_START in parsed.note:
        return ""
    total, counting = received_count + 1, "counted as one token"
    if counted - parsed.left_out > total:
        total, counting = counted - parsed.left_out, f"the server counts {counted}"
    return (
        f"{_MISSING_MARKS_START}{received_count} of {total} tokens: none came for {missing!r} at the end ({counting})"
    )


def _with_note(parsed: ParsedResponse, note: str) -> ParsedResponse:
    return replace(parsed, note="; ".join(filter(None, (parsed.note, note)))) if note else parsed


_INTEGER_TYPE, _BYTE_VALUES = frozenset((int,)), frozenset(range(256))


def _byte_rows(entries: Sequence[Any], token_indices: Sequence[int]) -> list[bytes | None]:
    """Returns the UTF-8 bytes of the tokens at these indices, None for tokens without bytes; empty without entries."""
    if not token_indices or len(entries) <= token_indices[-1]:
        return []
    columns = columns_of_each([entries[index] for index in token_indices], ("bytes",))
    byte_lists: list[Any] = [None] * len(token_indices) if columns is None else columns[0]
    return [
        bytes(row)
        if type(row) in (list, tuple) and _INTEGER_TYPE.issuperset(map(type, row)) and _BYTE_VALUES.issuperset(row)
        else None
        for row in byte_lists
    ]


def without_last(parsed: ParsedResponse, count: int = 1) -> ParsedResponse:
    """Returns the response without its last tokens. Raises `InvalidResponse` if no token would be left."""
    token_count = len(parsed.logprobs)
    if not count:
        return parsed
    if count >= token_count:
        raise InvalidResponse(
            f"the answer is empty: its {token_count} tokens only end it; expected words: leave it out"
        )
    remaining = token_count - count
    return replace(
        parsed,
        tokens=parsed.tokens[:remaining],
        logprobs=parsed.logprobs[:remaining],
        top_logprobs=None if parsed.top_logprobs is None else parsed.top_logprobs[:remaining],
        left_out=parsed.left_out + count,
    )


def cut_to_answer(parsed: ParsedResponse) -> ParsedResponse:
    """Returns the response cut to its answer, with its thinking apart. The note says what was left out.

    Raises `InvalidResponse` if no token is known to belong to the answer.
    """
    if not parsed.segments:
        return parsed
    answer_indices = tokens_of(parsed.segments, "answer", len(parsed.logprobs))
    answer, thinking = series_of(parsed.logprobs, parsed.segments)
    top = None if parsed.top_logprobs is None else parsed.top_logprobs[answer_indices]
    if not len(answer):
        raise InvalidResponse(
            f"all {len(parsed.logprobs)} tokens are of the thinking, and none of an answer; expected an answer to"
            f" score: {THINKING_HINT}"
        )
    if parsed.tokens:
        refuse_placeholders(answer, answer, top)
    note = f"scored are the answer's {len(answer)} tokens, not the {len(thinking)} of the thinking before it"
    return replace(
        parsed,
        tokens=tuple(parsed.tokens[i] for i in answer_indices) if parsed.tokens else (),
        logprobs=answer,
        top_logprobs=top,
        segments=(),
        thinking=thinking,
        note="; ".join(filter(None, (parsed.note, note if len(thinking) else ""))),
    )
