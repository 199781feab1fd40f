"""What every reader of a log gives: one sample after the other, each as an import line or with the reason for none."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

from metaprobe.records.compressed import OnBytes
from metaprobe.records.errors import ImportFileError
from metaprobe.records.json_lines import OnError
from metaprobe.records.line_fields import LABEL_BOUNDS, LABEL_VALUES, name_value
from metaprobe.records.logprobs import FEW

NO_LOGPROBS = "no log-probabilities"
GIVEN_TEXT = "the likelihood of a given text, which is no answer of the model"
OTHER_TOKENS = "the tokens with the log-probabilities do not spell the answer, so they are of another"
ZEROS = "every log-probability is 0, which stands for none here"

END_TOKENS = re.compile(
    r"<\|(im_end|endoftext|eot_id|eom_id|end_of_text|end|return|END_OF_TURN_TOKEN)\|>|</s>|<eos>|<end_of_turn>|<pad>"
)
"""Tokens that end an answer, or fill a batch after its end. A harmony answer ends with `<|return|>`."""
_LONGEST_END = 32
"""Characters of an end token at most."""
_ESCAPED = re.compile(r"\\x[0-9a-fA-F]{2}|<0x[0-9a-fA-F]{2}>|[^!-~]")
"""What tokenizers spell differently: single bytes, spaces, and whatever is not ASCII."""
_BYTES = re.compile(r"\\x[0-9a-fA-F]{2}|<0x[0-9a-fA-F]{2}>")
_BYTE_LETTERS = "\u0143"
"""The last of the letters by which tokenizers spell single bytes."""


def without_end_tokens(text: str) -> str:
    """The text without the end tokens that it ends with."""
    end = len(text)
    while end and text[end - 1] == ">":
        begin = text.rfind("<", max(0, end - _LONGEST_END), end)
        if begin < 0 or not END_TOKENS.fullmatch(text, begin, end):
            break
        end = begin
    return text[:end]


class NoAnswer(Exception):
    """A sample that is no answer, or whose numbers are of another one; says why, in words to count by."""


class OtherTokens(NoAnswer):
    """The numbers are of another answer than the text, which may still be read without them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of a log."""

    place: str
    """Where it stands, as `line 3` or `sample q1, epoch 2`."""
    line: dict[str, Any] | None
    """The import line that says the same; None for one that cannot be taken."""
    left_out: str = ""
    """Why it cannot be taken, in words that are the same for all such samples, so that they can be counted."""
    number: int | None = None
    """Its line in the file, where the log has lines."""
    source: object = None
    """What the log holds, for the file of bad lines; by default the line."""
    taken: str = ""
    """What the reader took for `correct`, or why the answer has no such label; in words to count by."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What a reader is told besides the file."""

    correct: str = ""
    """The score whose 1 and 0 mean right and wrong; by default the one that its format says."""
    requests: Path | None = None
    """The file of requests that a batch was made from."""
    on_error: OnError | None = None
    """Takes what is wrong with a sample; by default the first one raises."""
    on_bytes: OnBytes | None = None
    plain: bool = False
    """Whether answers without log-probabilities are taken as they are, for another model to read."""


def without_zeros(sample: Sample) -> Sample:
    """Returns the sample without log-probabilities that are all 0, as servers write them that have none, or those
    after a temperature of 0."""
    line = sample.line or {}
    response: Any = line.get("response")
    choices = response.get("choices") if isinstance(response, Mapping) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        return sample
    given = choices[0].get("logprobs")
    if not isinstance(given, Mapping):
        return sample
    entries = given.get("content") or given.get("token_logprobs")
    if not isinstance(entries, Sequence) or len(entries) < FEW:
        return sample
    # Numbers of the thinking, or of other tokens, show that the server had some.
    thought = given.get("reasoning_content")
    entries = [*entries, *(thought if isinstance(thought, list) else ())]
    values = [value for entry in entries for value in _numbers_in(entry)]
    if not all(type(value) in (int, float) and value == 0 for value in values):
        return sample
    bare = {**response, "choices": [{**choices[0], "logprobs": None}]}
    return replace(sample, line={**line, "response": bare}, left_out=ZEROS)


def _numbers_in(entry: object) -> Iterable[object]:
    """A token's log-probability, and those of its alternatives."""
    if not isinstance(entry, Mapping):
        return (entry,)
    others = entry.get("top_logprobs")
    held = others if isinstance(others, list) else ()
    return (entry.get("logprob"), *(other.get("logprob") for other in held if isinstance(other, Mapping)))


def read_sample(
    path: Path, place: str, read: Callable[[], Iterable[Sample]], options: LogOptions, source: object
) -> list[Sample]:
    """Returns what `read` gives of one sample, or why it is none; what is wrong goes to `on_error`, or is raised."""
    try:
        return list(read())
    except NoAnswer as reason:
        return [Sample(place, None, str(reason), source=source)]
    except ImportFileError as problem:
        error = ImportFileError(f"{path}: {place}: {problem}")
        error.source = source
        if options.on_error is None:
            raise error from problem
        options.on_error(error)
        return []


def labels_from(scores: Mapping[str, float], right: str | None, options: LogOptions) -> dict[str, float]:
    """Returns the labels for scores by name, and `correct` where the score `right` is 1 or 0.

    `options.correct` counts for more than `right`. A score between 0 and 1, as partly right, gives no `correct`. A
    score with the name of a label of ours, which has values of its own, becomes `score.NAME`. Raises `ImportFileError`
    where the score that the caller names is not there.
    """
    if options.correct:
        right = options.correct
        if right not in scores:
            raise ImportFileError(
                f"there is no score {right!r}, which shall say what is correct; expected one of"
                f" {', '.join(sorted(scores)) or '(there are none)'}"
            )
    reserved = LABEL_VALUES.keys() | LABEL_BOUNDS.keys()
    labels = {(f"score.{name}" if name in reserved else name): value for name, value in scores.items()}
    if right is not None and scores.get(right) in (0.0, 1.0):
        labels = {"correct": scores[right], **labels}
    return labels


def taken_of(labels: Mapping[str, float], right: str | None, options: LogOptions) -> str:
    """Returns the words that say which score became `correct`, for `Sample.taken`. `right` as for `labels_from`."""
    name = options.correct or right
    if "correct" in labels:
        return f"labelled by {name}"
    if name is None:
        return "no label: none of the scores says right or wrong"
    return f"no label: {name} says neither right nor wrong"


def number_of(value: object) -> float | None:
    """Returns a finite number as a float, True and False as 1 and 0; None for anything else."""
    if isinstance(value, (bool, int, float)):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None
    return None


def completion(
    text: str,
    *,
    model: str,
    finish_reason: str = "",
    logprobs: Mapping[str, Any] | None,
    thinking: str = "",
    **usage: object,
) -> dict[str, Any]:
    """Returns a chat completion that says this; `usage` may hold `prompt_tokens` and `completion_tokens`.

    `thinking`: the words of the thinking, where the log-probabilities are of it too.
    """
    message = {"role": "assistant", "content": text} | ({"reasoning_content": thinking} if thinking else {})
    choice = {"message": message, "finish_reason": finish_reason, "logprobs": logprobs}
    return {"object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


def answer_tokens(tokens: Sequence[str], text: str, stops: Sequence[str] = ()) -> int:
    """Returns how many of the tokens are the answer: none from the first end token on, unless the text has it too.

    Raises `NoAnswer` where the tokens before it do not spell the text: then their log-probabilities are of another
    answer, as the likeliest tokens in the place of those that were drawn. Spaces, and what is not ASCII, are not
    compared, for tokenizers spell them differently. A token may go beyond the text, which ends where a stop sequence
    begins; tokens that do so whole are no part of the answer, and must spell one of `stops`.
    """
    absent = {token for token in set(tokens) if END_TOKENS.fullmatch(token) and token not in text}
    ends = (n for n, token in enumerate(tokens) if token in absent)
    count = next(ends, len(tokens))
    if not count:
        raise OtherTokens(OTHER_TOKENS) if text else NoAnswer("the answer is empty")
    if not _same_letters("".join(tokens[:count]), text):
        raise OtherTokens(OTHER_TOKENS)
    spelled, said = (_ESCAPED.sub("", written) for written in ("".join(tokens[:count]), text))
    if not spelled.startswith(said):
        raise OtherTokens(OTHER_TOKENS)
    if beyond := spelled[len(said) :]:
        lengths = accumulate(len(_ESCAPED.sub("", token)) for token in tokens[:count])
        needed = next((n for n, length in enumerate(lengths, 1) if length >= len(said) > 0), 0)
        ended = any(stop and beyond.startswith(stop) for stop in (_ESCAPED.sub("", stop) for stop in stops))
        if not needed or (needed < count and not ended):
            raise OtherTokens(OTHER_TOKENS)
        count = needed
    return count


def _same_letters(spelled: str, said: str) -> bool:
    """Whether letters that no tokenizer spells in bytes, such as Chinese ones, are those of the text as far as it goes.

    Where a token is a piece of a character, they cannot be compared.
    """
    if "\ufffd" in spelled or _BYTES.search(spelled):
        return True
    own, theirs = ("".join(letter for letter in written if letter > _BYTE_LETTERS) for written in (spelled, said))
    own, theirs = own.replace("\u2581", ""), theirs.replace("\u2581", "")
    left = iter(theirs)  # a piece of a character may be shown as nothing
    return own.startswith(theirs) or all(letter in left for letter in own)


def spoken_tokens(tokens: Sequence[str], text: str, thinking: str, stops: Sequence[str] = ()) -> tuple[int, str]:
    """Returns how many of the tokens count, and the thinking where they spell it before the answer; else "".

    Raises `NoAnswer` as `answer_tokens` does, where the tokens spell neither the answer nor thinking and answer.
    """
    try:
        return answer_tokens(tokens, text, stops), ""
    except NoAnswer:
        if not thinking:
            raise
    count = len(tokens)
    while count and END_TOKENS.fullmatch(tokens[count - 1]):
        count -= 1
    spelled, said, thought = (_ESCAPED.sub("", written) for written in ("".join(tokens[:count]), text, thinking))
    if not said or not spelled.endswith(said) or thought not in spelled.removesuffix(said):
        raise OtherTokens(OTHER_TOKENS)
    return count, thinking


def short_name(value: object) -> str:
    """Returns a name for a value that JSON can hold, always the same for the same value."""
    written = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return (
        written
        if len(written) <= 80
        else f"{written[:40]}...{sha256(written.encode(errors='replace')).hexdigest()[:12]}"
    )


def mapping(value: object, what: str) -> Mapping[str, Any]:
    """Returns the value where it is an object, an empty one for null. Raises `ImportFileError` for anything else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ImportFileError(f"{what} is {name_value(value)}; expected an object")
    return value


def sequence(value: object, what: str) -> Sequence[Any]:
    """Returns the value where it is a list, and an empty one for null. Raises `ImportFileError` for anything else."""
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise ImportFileError(f"{what} is {name_value(value)}; expected a list")
    return value


def words(value: object) -> str:
    """Returns the value where it is text, else an empty string: for what only describes an answer."""
    return value if isinstance(value, str) else ""
