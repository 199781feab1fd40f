"""Checks whether the chunks of a stream belong to one answer.

Gateways retry if an upstream fails, clients join the streams of two questions, and proxies mix them. The joined text
then looks like one answer, but its log-probabilities belong to two. These all occur in one answer: one id on all
chunks, or another id on each; the role on the first chunk, or on every chunk; a model's name that comes late; an end
that is stated twice; chunks without text, such as usage, content filters and keep-alives, anywhere.
"""

from collections.abc import Sequence
from typing import Any

AFTER_THE_END = "text came after the end of the answer"
ROLE_AGAIN = "a chunk in the middle opens an answer anew (it has a role)"
ANOTHER_MODEL = "the model changes from {!r} to {!r}"
ANOTHER_ID = "the id changes from {!r} to {!r}"
COMES_TWICE = "each token comes twice, with the same log-probability"
BEGINS_ANEW = "the tokens and log-probabilities of its beginning come again in token {}"
SAME_INDEX = "two choices of one chunk have the same index"
CREATED_AGAIN = "a second event `response.created` opens an answer anew"
ANOTHER_RESPONSE = "events of the responses {!r} and {!r} came"

MAX_COMPARED_TOKENS = 16
"""Tokens at the beginning of an answer that are compared with later tokens. A retry repeats more, or is cut."""
MIN_COMPARED_TOKENS = 2
"""Fewest tokens that must repeat. One token may have the same log-probability by chance."""
_CERTAIN_LOGPROB = -0.05
"""Tokens above this log-probability are no sign of a repetition: a certain model gives the same number twice."""


def more_than_one(reason: str) -> str:
    """Returns the message about a stream that holds more than one answer."""
    return f"the chunks are of more than one answer: {reason}; expected those of one answer: score each by itself"


class OneAnswer:
    """Takes in the chunks of one choice, and says in `fault` why they belong to more than one answer."""

    def __init__(self) -> None:
        self.fault = ""
        """Why the chunks belong to more than one answer; empty while they may belong to one."""
        self.ended = False
        """Whether a chunk has said how the answer ended."""
        self._has_spoken = self._has_bare_text = self._opened_again = False
        self._has_bare_thought = self._opened_thinking_again = False
        self._model = self._id = ""
        self._ids: set[str] = set()
        """Ids of the chunks with text."""
        self._has_lasting_id = False
        """Whether two chunks with text have the same id, or one has no id after another had one."""

    def add(
        self, chunk_id: str, model: str, *, has_role: bool, has_answer: bool, has_thought: bool, ends: bool
    ) -> None:
        """Takes in a chunk.

        Args:
            chunk_id: id of the chunk; empty if it has none.
            model: model that the chunk names; empty if it names none.
            has_role: whether the chunk names a role.
            has_answer: whether the chunk has text of the answer.
            has_thought: whether the chunk has text of the thinking before the answer.
            ends: whether the chunk says how the answer ended.
        """
        has_text = has_answer or has_thought
        if has_role:
            self._opened_again = self._opened_again or self._has_bare_text
            # A role between thinking and answer is sound, for some servers name it at the first text of the answer.
            self._opened_thinking_again = self._opened_thinking_again or self._has_bare_thought
        if has_text:
            if self.ended and self._has_spoken:
                self.fault = self.fault or AFTER_THE_END
            self._has_spoken = True
            if self._opened_again or (has_thought and self._opened_thinking_again):
                self.fault = self.fault or ROLE_AGAIN
            if chunk_id and (chunk_id != self._id or not self._has_lasting_id):
                self._see_id(chunk_id)
            elif not chunk_id and self._ids:
                self._has_lasting_id = True  # a server that names its id once, at the first text
        if model and model != self._model and (has_text or ends):
            if self._model:
                self.fault = self.fault or ANOTHER_MODEL.format(self._model[:60], model[:60])
            self._model = model
        self._has_bare_text = self._has_bare_text or (has_answer and not has_role)
        self._has_bare_thought = self._has_bare_thought or (has_thought and not has_role)
        self.ended = self.ended or ends

    def _see_id(self, chunk_id: str) -> None:
        """Records the id of a chunk with text, and a fault unless all ids are equal or all differ."""
        self._has_lasting_id = self._has_lasting_id or chunk_id in self._ids
        self._ids.add(chunk_id)
        if len(self._ids) > 1 and self._has_lasting_id:
            other_id = (
                self._id
                if self._id != chunk_id
                else next(earlier_id for earlier_id in self._ids if earlier_id != chunk_id)
            )
            self.fault = self.fault or ANOTHER_ID.format(other_id[:60], chunk_id[:60])
        self._id = chunk_id


def begins_anew(tokens: Sequence[str | None], logprobs: Sequence[Any]) -> str:
    """Returns where the beginning of an answer repeats with the same log-probabilities; empty if it does not.

    A model that repeats its words gives them other log-probabilities, because its context is longer. A repeated request
    gives the same log-probabilities. Tokens that repeat in a circle, three times or more, are no retry. Two equal
    answers that were mixed token by token are found too.
    """
    if _comes_twice(tokens, logprobs):
        return COMES_TWICE
    if len(set(map(str, tokens[:MAX_COMPARED_TOKENS]))) < 2:  # a model that repeats one token
        return ""
    pairs = list(zip(tokens, logprobs, strict=False))
    for start in [i for i, pair in enumerate(pairs) if pair == pairs[0]][1:]:
        count = min(start, len(tokens) - start, MAX_COMPARED_TOKENS)
        if (
            count >= MIN_COMPARED_TOKENS
            and tokens[:count] == tokens[start : start + count]
            and logprobs[:count] == logprobs[start : start + count]
            and len(set(map(str, tokens[:count]))) > 1
            and any(type(value) in (int, float) and value < _CERTAIN_LOGPROB for value in logprobs[:count])
        ):
            circles = tokens[start:] == tokens[:-start] and logprobs[start:] == logprobs[:-start]
            return "" if circles and len(tokens) >= 3 * start else BEGINS_ANEW.format(start)
    return ""


def _comes_twice(tokens: Sequence[str | None], logprobs: Sequence[Any]) -> bool:
    """Returns whether each token is followed by itself with the same log-probability, and several tokens differ."""
    if len(tokens) % 2 or tokens[:1] != tokens[1:2] or len(set(map(str, tokens[::2]))) < MIN_COMPARED_TOKENS:
        return False
    unsure = any(type(value) in (int, float) and value < _CERTAIN_LOGPROB for value in logprobs)
    return unsure and tokens[::2] == tokens[1::2] and logprobs[::2] == logprobs[1::2]
