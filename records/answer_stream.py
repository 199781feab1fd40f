"""Reads a streamed answer: takes its chunks, and gives its tokens, its text and how it ended.

`AnswerStream` is the only reader of streams. It serves the proxy, watched streams, asked endpoints and recorded lists
of chunks. It reads chunks of chat or text completions, events of the Responses API, chunks of Ollama's own API, events
of the openai client's `chat.completions.stream`, and outputs of vLLM's `AsyncLLM.generate`. It uses the standard
library only, as does `openai_format`, which reads the result.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from metaprobe.records.engine_formats import entries_of, is_vllm
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.joined_chunks import JoinedChunks
from metaprobe.records.native_formats import is_ollama_chunk, ollama_as_chunk
from metaprobe.records.one_answer import (
    AFTER_THE_END,
    ANOTHER_RESPONSE,
    CREATED_AGAIN,
    SAME_INDEX,
    OneAnswer,
    begins_anew,
    more_than_one,
)
from metaprobe.records.openai_format import THINKING_KEYS, begins_call, content_text, from_events, is_event
from metaprobe.records.reading import (
    SAID_BESIDE,
    TOOL_CALL,
    all_fields,
    as_list,
    both_ends,
    end_of,
    fields,
    get,
    refuse_error,
    some_keys,
    text,
)
from metaprobe.records.segments import END_TOKEN, SPACE, KindReader

TokenFields = Mapping[str, Any]
"""One token of a chunk: {token, logprob, top_logprobs}."""
ChunkKind = Literal["", "chat", "text", "event"]

_ANSWER_FIELDS = ("id", "model", "system_fingerprint", "prompt_token_ids", "usage")
_FIELDS_OF_END = ("finish_reason", "native_finish_reason", "finish_details", "content_filter_results")
"""Fields of a choice from which `end_of` reads how the answer ended."""
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")
_COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "content")
_HELPER_EVENTS = ("content.", "refusal.", "logprobs.", "tool_calls.function.")
"""Prefixes of event types that the openai client's `chat.completions.stream` adds to the server's chunks."""
_UNKNOWN = (
    "the chunks of the stream have the keys {}; expected those of chat or text completions, of the Responses API, of"
    " Ollama or of vLLM: ask an endpoint that speaks OpenAI's format, or score the whole answer"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of the followed answer that one chunk adds."""

    text: str = ""
    """Text of the answer."""
    thought: str = ""
    """Text of the reasoning before the answer, if the server separates it."""
    entries: Sequence[TokenFields] = ()
    """The tokens of the chunk, in order."""
    spoken: Sequence[TokenFields] = ()
    """Tokens of this or earlier chunks that are now known to belong to the answer, and were not known before."""


class AnswerStream:
    """Collects the chunks of one streamed answer.

    Call `add` for each chunk as it arrives. `response()` then returns what the same request returns without streaming.

        >>> stream = AnswerStream()
        >>> entry = {"token": "4", "logprob": -0.1}
        >>> stream.add({"choices": [{"delta": {"content": "4"}, "logprobs": {"content": [entry]}}]}).text
        '4'
        >>> stream.ended
        False

    Of tool calls only their existence is kept, as the finish reason, unless everything is kept.
    """

    two_of_one_index: ClassVar[str] = more_than_one(SAME_INDEX)
    """The message about a stream in which a chunk holds two choices of the same index."""

    @staticmethod
    def kind_of(part: Mapping[str, Any]) -> ChunkKind:
        """Returns the kind of a stream's chunk: `event`, `chat` or `text`; empty for anything else."""
        if is_event(part):
            return "event"
        choices: Sequence[Any] = as_list(part.get("choices")) or ()
        first = next((choice for choice in map(fields, choices) if choice is not None), {})
        if part.get("object") == "chat.completion.chunk" or "delta" in first:
            return "chat"
        return "text" if "text" in first and "message" not in first else ""

    def __init__(self, choice: int = 0, *, keeps_all: bool = False) -> None:
        """Sets up the reader.

        Args:
            choice: index of the answer to follow, if the stream carries several answers.
            keeps_all: whether `response()` of a chat completion holds all fields of the chunks, with tool calls. Such a
                stream carries one answer.
        """
        self._choice = choice
        self._joined = JoinedChunks() if keeps_all else None
        self.kind: ChunkKind = ""
        """Kind of the stream's chunks; empty until a chunk shows the kind."""
        self.known: dict[str, Any] = {}
        """Fields of the whole answer that the chunks state, such as id, model and usage."""
        self.has_others = False
        """Whether chunks of an answer arrived that is not followed."""
        self.declined = self.called = False
        """Whether a refusal, or a tool call, has begun."""
        self.echoes = False
        """Whether a token arrived without a log-probability, which means that the prompt is echoed."""
        self._answer_check = OneAnswer()
        self._check_of_part: dict[tuple[str, str], OneAnswer] = {}
        """Checks, for each part of a response's output, that all its events belong to one item."""
        self._has_created = False
        """Whether the event that opens a response has arrived."""
        self._last_event: int | None = None
        """Number of the event that closes a response; -1 if the event has no number, None until it arrives."""
        self._vllm_outputs: _VllmOutputs | None = None
        """Reads outputs of vLLM; None for all other streams."""
        self._has_begun = False
        self._unknown_keys: list[str] = []
        """Keys of the first chunk whose kind is unknown."""
        self._events: list[Mapping[str, Any]] = []
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._refusal: list[str] = []
        self._entries: list[TokenFields] = []
        self._thinking_entries: list[TokenFields] = []
        self._columns: dict[str, list[Any]] = {}
        """Log-probability columns of a text completion, joined over the chunks."""
        self._token_ids: list[Any] = []
        self._has_logprobs = False
        self._answer = _AnswerTokens()
        self._finish_reason: str | None = None
        self._end_fields: dict[str, Any] = {}

    @property
    def ended(self) -> bool:
        """Whether the server has said how the answer ended. An answer without an end was cut. Unknown for events."""
        return self._finish_reason is not None

    def add(self, chunk: object) -> Piece:
        """Takes in a chunk and returns its part of the answer.

        Raises `InvalidResponse` if the object is not a chunk, or if it is an error message.
        """
        if not self._has_begun:  # all chunks of a stream are of one kind, and finding it takes a fifth of the time
            self._has_begun = True
            self._vllm_outputs = _VllmOutputs() if is_vllm(chunk) else None
        part = chunk if self._vllm_outputs is None else self._vllm_outputs.chunk(chunk)
        if type(part) is not dict:
            part = fields(part)
        if part is None:
            raise InvalidResponse(f"a chunk of the stream came as {type(chunk).__name__}; expected an object")
        if part.get("type") == "chunk":  # an event of openai's `chat.completions.stream`, which wraps the chunk
            part = fields(part.get("chunk")) or {}
        if "choices" not in part and is_ollama_chunk(part):
            part = ollama_as_chunk(part)
        refuse_error(part)
        if part.get("type") and is_event(part):
            return self._event(part)
        if "choices" not in part:
            if text(part.get("type")).startswith(_HELPER_EVENTS):
                self._unknown_keys = self._unknown_keys or some_keys(part)
                return Piece()  # the openai client's other events repeat what the chunks hold
            if part and not part.get("usage"):
                if not self.kind:
                    raise InvalidResponse(_UNKNOWN.format(some_keys(part)))
                raise InvalidResponse(
                    f"a chunk of the stream has the keys {some_keys(part)} and no choices; expected chunks of one"
                    " answer: if this is an error message, ask again"
                )
        return self._chunk(part)

    def response(self) -> Mapping[str, Any]:
        """Returns the chat completion, text completion or response that the chunks so far make up.

        Raises `InvalidResponse` if no chunk is of a known kind, or if the chunks belong to more than one answer.
        """
        if self._unknown_keys and not self.kind:
            raise InvalidResponse(_UNKNOWN.format(self._unknown_keys))
        has_no_score = self.called or self.declined  # a second answer then does no harm, unless all fields are kept
        if (self._joined is not None or not has_no_score) and (reason := self.fault or self._begins_anew()):
            raise InvalidResponse(more_than_one(reason))
        if self.kind == "event":
            return from_events(self._events)
        if self._joined is not None and self.kind in ("chat", ""):
            return self._joined.completion()
        choice: dict[str, Any] = {"index": 0, "finish_reason": TOOL_CALL if self.called else self._finish_reason}
        if self.kind == "text":
            choice |= {"text": "".join(self._text), "logprobs": self._columns or None}
        else:
            other_texts = {"refusal": "".join(self._refusal), "reasoning_content": "".join(self._thinking)}
            message = {"role": "assistant", "content": "".join(self._text)} | {
                k: v for k, v in other_texts.items() if v
            }
            # The tokens of a refusal stand under a key of their own, also without streaming.
            logprob_entries = (
                {"content": None, "refusal": self._entries} if self.declined else {"content": self._entries}
            )
            logprob_entries |= {"reasoning_content": self._thinking_entries} if self._thinking_entries else {}
            logprobs = logprob_entries if self._has_logprobs else None
            choice |= {"message": message, "logprobs": logprobs, "token_ids": self._token_ids or None}
        return {**self.known, "choices": [{**choice, **self._end_fields}]}

    @property
    def fault(self) -> str:
        """Why the chunks belong to more than one answer; empty while they belong to one."""
        return self._answer_check.fault

    def _begins_anew(self) -> str:
        """Returns how the answer begins a second time, as after a retry; empty if it does not.

        Outputs of vLLM belong to one request, so they are not checked.
        """
        if self._vllm_outputs is not None or self.kind == "event":
            return ""
        if self.kind == "text" and self._columns.get("tokens"):
            return begins_anew(self._columns["tokens"], self._columns.get("token_logprobs") or ())
        restarts = (
            begins_anew([entry.get("token") for entry in entries], [entry.get("logprob") for entry in entries])
            for entries in (self._entries, self._thinking_entries)
        )
        return next(filter(None, restarts), "")

    def _event(self, event: Mapping[str, Any]) -> Piece:
        """Takes in an event of the Responses API."""
        self.kind = "event"
        self._events.append(event)
        self.called |= begins_call(event)
        response = fields(event.get("response")) or {}
        known_id, new_id = self.known.get("id"), response.get("id")
        if known_id and new_id and known_id != new_id:
            self._answer_check.fault = self.fault or ANOTHER_RESPONSE.format(text(known_id)[:60], text(new_id)[:60])
        self.known.update({name: response[name] for name in _ANSWER_FIELDS if response.get(name) is not None})
        if event["type"] == "response.created":
            if self._has_created:
                self._answer_check.fault = self.fault or CREATED_AGAIN
            self._has_created = True
        number = event.get("sequence_number")
        if event["type"] in _LAST_EVENTS:
            self._last_event = number if type(number) is int else -1
        if event["type"] != "response.output_text.delta":
            return Piece()
        # Events that are numbered may come in any order.
        if self._last_event is not None and not (type(number) is int and number < self._last_event):
            self._answer_check.fault = self.fault or AFTER_THE_END
        part_key = str(event.get("output_index")), str(event.get("content_index"))
        part = self._check_of_part.setdefault(part_key, OneAnswer())
        part.add(text(event.get("item_id")), "", has_role=False, has_answer=True, has_thought=False, ends=False)
        self._answer_check.fault = self.fault or part.fault
        entries = [entry for entry in map(fields, as_list(event.get("logprobs")) or ()) if entry]
        return Piece(text(event.get("delta")), "", entries, entries)

    def _chunk(self, chunk_fields: Mapping[str, Any]) -> Piece:
        """Takes in a chunk of a chat or text completion. In a valid chunk each field is read once."""
        if not self.kind:  # a first chunk may come without choices
            self.kind = self.kind_of(chunk_fields)
        if self._joined is not None:
            self._joined.add(chunk_fields)
        choice, ends = self._followed_choice(chunk_fields)
        if not choice:
            return Piece()
        # The chunk adds text of the answer or of the thinking, and tokens.
        delta: Mapping[str, Any] = {}
        new_thought, is_whole_answer = "", False
        if self.kind == "text":
            new_text, entries = text(choice.get("text")), self._text_entries(choice)
        else:
            message = choice.get("delta")
            if message is None:
                message = choice.get("message")  # a whole answer among the chunks
                is_whole_answer = message is not None
                if self._text and content_text((fields(message) or {}).get("content")) == "".join(self._text):
                    return Piece()  # some servers send the answer once more at its end
            delta = message if type(message) is dict else fields(message) or {}
            content = delta.get("content")
            new_text = content if type(content) is str else content_text(content) if content else ""
            for name in THINKING_KEYS:
                if isinstance(delta.get(name), str):
                    new_thought = delta[name]
                    break
            entries = self._chat_entries(choice, delta)
            if token_ids := choice.get("token_ids"):
                self._token_ids.extend(as_list(token_ids) or ())
        self._text.append(new_text)
        self._thinking.append(new_thought)
        self.echoes = self.echoes or None in [entry.get("logprob") for entry in entries]
        # A chunk with tokens but without text comes late, and its role opens no second answer.
        chunk_id, model = chunk_fields.get("id"), chunk_fields.get("model")
        is_late_token = bool(entries) and not new_text and not new_thought
        opens = (is_whole_answer or bool(delta.get("role"))) and not is_late_token
        self._answer_check.add(
            chunk_id if type(chunk_id) is str else "",
            model if type(model) is str else "",
            has_role=opens,
            has_answer=bool(new_text) or (self._answer_check.ended and _shows(entries)),
            has_thought=bool(new_thought),
            ends=ends,
        )
        return Piece(
            new_text, new_thought, entries, self._answer.feed(entries, new_thought=new_thought, new_text=new_text)
        )

    def _followed_choice(self, chunk_fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """Returns the chunk's choice of the followed answer, and whether that choice says how the answer ended.

        The choice is empty if the chunk carries only usage or another answer.
        """
        for key in _ANSWER_FIELDS:
            if (value := chunk_fields.get(key)) is not None:
                self.known[key] = value
        followed: Mapping[str, Any] | None = None
        ends = False
        choices = chunk_fields.get("choices")
        for listed_choice in choices if type(choices) is list else as_list(choices) or ():
            choice = listed_choice if type(listed_choice) is dict else fields(listed_choice)
            if not choice:
                continue
            index = choice.get("index")
            if index is not None and index != self._choice:
                self.has_others = True
            elif followed is not None:
                self._answer_check.fault = self.fault or SAME_INDEX
            else:
                refuse_error(choice)
                if (delta := choice.get("delta")) is not None:
                    refuse_error(delta if type(delta) is dict else fields(delta) or {})
                for name in _FIELDS_OF_END:
                    ends = ends or choice.get(name) is not None
                ends = ends and bool(end := end_of(choice))
                if ends:
                    self._finish_reason = both_ends(self._finish_reason or "", end)
                    ends = True
                if choice.get("finish_reason"):
                    self._end_fields = {name: choice[name] for name in SAID_BESIDE if name in choice}
                followed = choice
        return followed or {}, ends

    def _chat_entries(self, choice: Mapping[str, Any], delta: Mapping[str, Any]) -> Sequence[TokenFields]:
        if delta.get("tool_calls") or delta.get("function_call"):
            self.called = True
        logprobs_field = choice.get("logprobs")
        logprobs = logprobs_field if type(logprobs_field) is dict else fields(logprobs_field)
        if refusal := text(delta.get("refusal")) if delta.get("refusal") else "":
            self._refusal.append(refusal)
        if refusal or (logprobs is not None and logprobs.get("refusal")):
            self.declined = True
        if logprobs is None:
            return ()
        self._has_logprobs = True
        if thinking := logprobs.get("reasoning_content"):
            self._thinking_entries.extend(_entries(thinking))
        entries = _entries(logprobs.get("content") or logprobs.get("refusal") or ())
        self._entries.extend(entries)
        return entries

    def _text_entries(self, choice: Mapping[str, Any]) -> Sequence[TokenFields]:
        """Returns the token entries of a text completion's choice.

        Log-probabilities arrive as columns, or from llama.cpp's server as entries.
        """
        logprobs = fields(choice.get("logprobs")) or {}
        for name, column in logprobs.items():
            if name in _COLUMNS and column is not None:
                if as_list(column) is None:
                    raise InvalidResponse(
                        f"logprobs.{name} of a chunk came as {type(column).__name__}; expected a list"
                    )
                self._columns.setdefault(name, []).extend(column)
        if logprobs.get("content"):
            return _entries(logprobs["content"])
        tokens, rows = as_list(logprobs.get("tokens")) or (), as_list(logprobs.get("top_logprobs")) or ()
        entries: list[TokenFields] = []
        for index, value in enumerate(as_list(logprobs.get("token_logprobs")) or ()):
            row = fields(rows[index]) if index < len(rows) else None
            entries.append(
                {
                    "token": text(tokens[index]) if index < len(tokens) else "",
                    "logprob": value,
                    "top_logprobs": [{"token": token, "logprob": logprob} for token, logprob in (row or {}).items()],
                }
            )
        return entries


def _entries(value: object) -> Sequence[TokenFields]:
    """Returns {token, logprob, top_logprobs} of each token in a chunk."""
    values = value if type(value) is list else as_list(value)
    if not values and values is not None:
        return ()
    entries = all_fields(values) if values is not None else None
    if entries is None:
        raise InvalidResponse(
            "the log-probabilities of a chunk are not a list of objects; expected {token, logprob, top_logprobs} for"
            " each token"
        )
    return entries


def _shows(entries: Sequence[TokenFields]) -> bool:
    """Returns whether a token among the entries is more than an end token or a token without text."""
    return any(entry.get("token") for entry in _without_ends(entries))


class _AnswerTokens:
    """Finds which tokens of one stream belong to the answer, and not to the thinking before it.

    Servers mark thinking in their chunks, or the tokens hold the markers. If neither is so, all tokens count as the
    answer: nothing in the stream tells them apart. This happens if a template opens the thinking in the prompt and the
    server does not parse it.
    """

    def __init__(self) -> None:
        self._reader: KindReader | None = KindReader()
        """Separates thinking from answer; None once all further tokens belong to the answer."""
        self._undecided_tokens: deque[TokenFields] = deque()
        self._tokens_before_text: list[TokenFields] = []
        self._has_text = self._has_thought = False

    def feed(self, entries: Sequence[TokenFields], *, new_thought: str, new_text: str) -> Sequence[TokenFields]:
        """Returns the tokens that are now known to belong to the answer.

        Args:
            entries: the chunk's tokens.
            new_thought: the chunk's text of thinking.
            new_text: the chunk's text of the answer.
        """
        if self._reader is None:
            return _without_ends(entries)
        if not self._has_text:  # until a text comes with them, tokens may be of either
            self._tokens_before_text.extend(entries)
            if not new_thought and not new_text:
                return ()
            entries, self._tokens_before_text = self._tokens_before_text, []
            self._has_text = True
        if new_thought and not self._has_thought:
            self._has_thought = True
            trial = KindReader()  # tells whether the tokens themselves begin with the opening marker
            for entry in (*self._undecided_tokens, *entries):
                trial.push(text(entry.get("token")))
            if not self._reader.has_begun and trial.has_begun and not trial.is_thinking:
                self._reader = KindReader(opened=True)
        answer: list[TokenFields] = []
        for next_index, entry in enumerate(entries, start=1):
            self._undecided_tokens.append(entry)
            for kind in self._reader.push(text(entry.get("token"))):
                decided_entry = self._undecided_tokens.popleft()
                if kind == "answer":
                    answer.append(decided_entry)
            if self._reader.is_settled:
                self._reader = None
                return _without_ends([*answer, *entries[next_index:]])
        if not (self._has_thought and new_text.strip(SPACE) and self._reader.is_thinking):
            return _without_ends(answer)
        self._reader = None  # the server has removed the markers
        if not new_thought:
            return _without_ends(entries)
        count, length = 0, 0  # number of last tokens that spell the new text, and their length
        while count < len(entries) and length < len(new_text):
            count += 1
            length += len(text(entries[-count].get("token")))
        return _without_ends(entries[len(entries) - count :]) if length == len(new_text) else ()


def _without_ends(entries: Sequence[TokenFields]) -> Sequence[TokenFields]:
    """Returns the entries without end tokens: SGLang sends one before it says that the answer has ended."""
    return [
        entry
        for entry in entries
        if not (type(token := entry.get("token")) is str and "<" in token and END_TOKEN.fullmatch(token))
    ]


class _VllmOutputs:
    """Turns each `RequestOutput` of one vLLM request into a chunk with the new tokens, the new text, and the end.

    vLLM sends only what is new (`RequestOutputKind.DELTA`) or everything so far (`CUMULATIVE`, its default). An output
    does not name its kind. It shows in `cumulative_logprob`, which always sums all tokens so far.
    """

    def __init__(self) -> None:
        self._answers: dict[int, _OutputSoFar] = {}

    def chunk(self, output: object) -> dict[str, Any]:
        """Returns the chunk. Raises `InvalidResponse` if the number of log-probabilities differs from the number of
        tokens.
        """
        outputs = as_list(get(output, "outputs")) or ()
        return {"id": text(get(output, "request_id")), "choices": [self._choice(answer) for answer in outputs]}

    def _choice(self, output: object) -> dict[str, Any]:
        index = get(output, "index")
        index = index if type(index) is int else 0
        answer = self._answers.setdefault(index, _OutputSoFar())
        ids, logprobs = as_list(get(output, "token_ids")) or (), get(output, "logprobs")
        if logprobs is not None and (as_list(logprobs) is None or len(logprobs) != len(ids)):
            received_text = type(logprobs).__name__ if as_list(logprobs) is None else f"{len(logprobs)} positions"
            raise InvalidResponse(
                f"a vLLM output has {received_text} of log-probabilities and {len(ids)} token_ids; expected as many of "
                "both"
            )
        output_text, cumulative, known_count = text(get(output, "text")), get(output, "cumulative_logprob"), 0
        if answer.ids and list(ids[: len(answer.ids)]) == answer.ids:
            if answer.is_cumulative is None and logprobs is not None and isinstance(cumulative, int | float):
                logprob_sum = _sum(_vllm_entries(ids, logprobs))
                error_if_cumulative = abs(cumulative - logprob_sum)
                error_if_new = abs(cumulative - answer.total - logprob_sum)
                if error_if_cumulative != error_if_new:  # zeros so far tell nothing, and not finite numbers neither
                    answer.is_cumulative = error_if_cumulative < error_if_new
            is_longer = len(ids) > len(answer.ids) and output_text.startswith(answer.text)
            is_cumulative = is_longer if answer.is_cumulative is None else answer.is_cumulative
            known_count = len(answer.ids) if is_cumulative else 0
        ids = list(ids[known_count:])
        entries = None if logprobs is None else _vllm_entries(ids, logprobs[known_count:])
        new_text = output_text[len(answer.text) if known_count else 0 :]
        answer.ids += ids
        answer.text += new_text
        answer.total += _sum(entries or ())
        choice = {
            "index": index,
            "delta": {"content": new_text},
            "logprobs": None if entries is None else {"content": entries},
            "token_ids": ids,
            "finish_reason": get(output, "finish_reason"),
        }
        return choice | ({"stop_reason": get(output, "stop_reason")} if choice["finish_reason"] else {})


@dataclass(slots=True)
class _OutputSoFar:
    """The state of one of vLLM's answers while its outputs come."""

    ids: list[Any] = field(default_factory=list)
    text: str = ""
    total: float = 0.0
    """Sum of the answer's log-probabilities."""
    is_cumulative: bool | None = None
    """Whether each output holds everything so far; None until an output has shown it."""


def _vllm_entries(ids: Sequence[Any], logprobs: Any) -> list[dict[str, Any]]:
    """Returns the drawn tokens and their alternatives in the form of a chunk's entries."""
    entries = entries_of(ids, logprobs, alone=False)
    return [entry | {"top_logprobs": [{"logprob": logprob} for logprob in entry["top_logprobs"]]} for entry in entries]


def _sum(entries: Sequence[dict[str, Any]]) -> float:
    return sum(entry["logprob"] for entry in entries if isinstance(entry["logprob"], int | float))
