"""Teaches a predictor without labels: asks a model each question a few times, and learns which answers agree.

Each finished call is stored at once in a call cache. So a stopped command continues when it is started again, and pays
for no call twice. The answers are written as lines before the training, so that they can be labelled later.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.checkpoints import Checkpoint
from metaprobe.checkpoints.flagging import AGREEMENT, MIN_THRESHOLD_GROUPS, promise_refused
from metaprobe.eval.answer_table import answers_in_words
from metaprobe.llms.base import LLM, LLMError, Request, WrappedLLM
from metaprobe.llms.cache import CallCache
from metaprobe.llms.model_name import API, ModelName
from metaprobe.llms.pricing import Price
from metaprobe.probes.quality import QUALITY_KIND
from metaprobe.records.bad_lines import BadFile, at_line
from metaprobe.records.errors import ImportFileError, RecordError, Unwritable, name_value
from metaprobe.records.extras import require
from metaprobe.records.import_line import spelled_out, string
from metaprobe.records.lines import iter_json_lines, records_of
from metaprobe.records.reading import STOP
from metaprobe.records.response import answer_logprobs, tokens_of
from metaprobe.records.types import Call, Message, Sampling, Usage
from metaprobe.records.writing import atomic_write
from metaprobe.training.agreement import MAX_PARTNERS, MIN_QUESTIONS
from metaprobe.training.export import writes
from metaprobe.training.recipes.train_quality import train_quality
from metaprobe.training.training_options import OnStep, QualityOptions, TeachOptions, WrongOptions

ALTERNATIVES_ASKED = 1
"""Number of alternatives that are asked for at each token. llama.cpp's server gives log-probabilities only with at
least one. The alternatives are not stored, so no predictor reads them.
"""
BYTES_PER_TOKEN = 4
"""Bytes of a prompt that count as one token, for the estimate of the price before asking."""
CALIBRATION_SHARE = 0.2
"""Share of the compared pairs on which the flag's threshold is set (`training.folds`)."""
MAX_FAILURES = 10
"""Number of failed calls after which asking stops. By then the endpoint is gone, or all requests are wrong."""
LINE_ROLES = ("system", "developer", "user", "assistant")
"""Roles of messages that can be asked again. Conversations with turns of tools cannot."""


@dataclass(frozen=True, slots=True)
class QuestionToAsk:
    """One question of the file."""

    id: str
    group: str
    """Name of what must stay in one fold; by default the question's id."""
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class TaughtCheckpoint:
    """Result of `teach`: the new checkpoint, the file of answers, and counts of questions and calls."""

    checkpoint: Checkpoint | None
    """The new checkpoint; None after a dry run."""
    answers: Path
    """File of the answers, one a line."""
    questions: int
    """Number of questions asked."""
    calls: int
    """Number of calls that are needed, those that the cache already held included."""
    kept_before: int
    """Number of these calls that the cache already held."""
    most_usd: float | None
    """Approximate upper limit, in US dollars, of the cost of the calls that the cache did not hold; None if no price is
    known.
    """


@writes(QUALITY_KIND, "lightgbm", "sklearn", "onnxmltools")
def ask_and_train(file: Path, options: TeachOptions) -> TaughtCheckpoint:
    """Asks each question of the file several times, and trains a quality predictor on which answers agree.

    Raises `RecordError` in three cases. Before any call: for questions that cannot be asked, a file of answers that
    holds labels, a price table that cannot be read, and flags that need labels. After the first call: if the endpoint
    gives no log-probabilities. After all calls: if too few answers differ. Answers until then are kept.
    """
    # Refuse what can be refused without a call.
    if refused := promise_refused(options):
        raise WrongOptions(refused)
    options.on_step("reading questions")
    questions = draw_questions(questions_to_ask(file), options.limit, options.seed)
    check_overwritten(options.answers_file)
    llm = load_llm(options)
    # Ask, then write the answers, and only then train.
    taught, calls = asyncio.run(_ask_questions(llm, questions, options))
    if options.dry_run:
        return taught
    write_answers(options.answers_file, questions, calls, options.on_line)
    learning = {name: getattr(options, name) for name in (*QUALITY_KEYS, *options.flags)}
    try:
        checkpoint = train_quality(
            [options.answers_file],
            QualityOptions(target=AGREEMENT, command=options.recorded("teach"), **learning),
        )
    except RecordError as error:
        raise RecordError(f"{error}. The answers are kept in {options.answers_file}") from error
    return TaughtCheckpoint(**{**_fields_of(taught), "checkpoint": checkpoint})


QUALITY_KEYS = ("out", "seed", "folds", "same", "on_step", "on_line", "replace", "pins", "log")
"""Options of `teach`, besides the flags, that are passed on to the training."""


def _fields_of(taught: TaughtCheckpoint) -> dict[str, Any]:
    """Returns the fields by name, without copies of their values."""
    return {name: getattr(taught, name) for name in TaughtCheckpoint.__dataclass_fields__}


# Questions.


def questions_to_ask(path: Path) -> list[QuestionToAsk]:
    """Returns the questions of a file of lines `{"question"}` or `{"messages"}`, with "id" and "group" where stated.

    Bad lines are left out and counted (`records.bad_lines`). Raises `RecordError` if fewer than `MIN_QUESTIONS` are
    left.
    """
    question_of_id: dict[str, QuestionToAsk] = {}
    with BadFile.reading(path) as bad:
        for number, record in records_of(path, on_error=bad.leave_out):
            try:
                question = _question_of(record, f"line-{number}")
                if question.id in question_of_id:
                    raise ImportFileError(f'"id" is {question.id!r}, as of an earlier line; expected another one')
            except ImportFileError as error:
                bad.leave_out(at_line(path, number, error, record))
                continue
            question_of_id[question.id] = question
            bad.sound += 1
    if len(question_of_id) < MIN_QUESTIONS:
        raise RecordError(
            f"{path} holds {len(question_of_id)} questions; expected at least {MIN_QUESTIONS}, and better 100, of the "
            "kind that will be asked"
        )
    return list(question_of_id.values())


def _question_of(record: dict[str, Any], default_id: str) -> QuestionToAsk:
    """Returns the question of one line. Raises `ImportFileError`, without file and line, if it cannot be asked."""
    line = spelled_out({key: value for key, value in record.items() if key not in ("answer", "response")})
    line_messages = line.get("messages")
    if not isinstance(line_messages, list) or not line_messages:
        raise ImportFileError(
            f'the line has no question (the keys are {sorted(record)}); expected "question": "..." or "messages": [...]'
        )
    messages: list[Message] = []
    for message in line_messages:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
        if role not in LINE_ROLES or not isinstance(content, str) or message.get("tool_calls"):
            raise ImportFileError(
                f'"messages" hold {name_value(message)}; expected role ({", ".join(LINE_ROLES)}) and content as text: '
                "turns of tools and images cannot be asked again"
            )
        messages.append(Message(role, content))
    if messages[-1].role != "user" or not messages[-1].content.strip():
        raise ImportFileError("the last message is no question of a user; expected one with a text")
    name = string(record, "id", number=True) or default_id
    return QuestionToAsk(name, string(record, "group", number=True) or name, tuple(messages))


def draw_questions(questions: Sequence[QuestionToAsk], count: int, seed: int) -> list[QuestionToAsk]:
    """Returns at most `count` questions, drawn without replacement.

    A larger draw of the same seed contains every smaller draw.
    """
    order = np.random.default_rng(seed).permutation(len(questions))
    return [questions[index] for index in order[:count]]


# Asking.


class ScorableLLM(WrappedLLM):
    """Passes calls to a model, and raises for an answer in words without log-probabilities.

    A cache does not store a call that raises, so the call is made again once the server is corrected.
    """

    @property
    def asked_how(self) -> str:
        """Address and settings of the endpoint that answers; empty for a model of this machine."""
        return str(getattr(self._llm, "asked_how", ""))

    @property
    def dtype(self) -> str:
        """Number format of a model of this machine; empty for an endpoint."""
        return str(getattr(self._llm, "dtype", ""))

    async def complete(self, request: Request) -> Call:
        """Returns the finished call. Raises `WithoutLogprobs` for an answer in words without log-probabilities."""
        call = await self._llm.complete(request)
        if answers_in_words(call) and call.text.strip() and (call.logprobs is None or not len(call.logprobs)):
            raise WithoutLogprobs(f"{self._llm!r} answered without log-probabilities, though they were asked for")
        return call


class WithoutLogprobs(LLMError):
    """An answer came without log-probabilities."""


def load_llm(options: TeachOptions) -> LLM:
    """Returns the model that is asked. Raises `RecordError` for an unknown model, `MissingExtra` without its extra."""
    name, is_url = options.llm, options.llm.startswith(("http://", "https://"))
    if options.model and not is_url:
        raise WrongOptions(f"model {options.model!r} belongs to a URL, and {name!r} is none: leave it out")
    if is_url:
        served_models = require("metaprobe.llms.openai_client", "api").served_models
        name = f"{API}{options.model or _only_one(asyncio.run(served_models(name)), name)}@{name}"
    model = ModelName(name)
    if model.decides:
        raise WrongOptions(f"{name!r} answers typed questions and writes no text; expected a model that answers")
    if not model.elsewhere and (options.api or options.prices is not None):
        raise WrongOptions("api and prices are for an endpoint, and a model of this machine is asked: leave them out")
    return model.open(
        api=ModelName.api_options(options.api, options.prices),
        top_logprobs=ALTERNATIVES_ASKED if model.elsewhere else 0,
        batch_size=options.concurrency,
        concurrency=options.concurrency,
    )


def _only_one(models: Sequence[str], url: str) -> str:
    if len(models) != 1:
        shown = ", ".join(models[:10]) or "no model"
        raise WrongOptions(f"{url} serves {shown}; name the one to ask (`--model NAME`)")
    return models[0]


async def _ask_questions(
    llm: LLM, questions: Sequence[QuestionToAsk], options: TeachOptions
) -> tuple[TaughtCheckpoint, list[Call]]:
    """Asks the questions. Returns the plan with its counts and cost, and the finished calls in the questions' order.

    After a dry run there are no calls.
    """
    sampling = Sampling(temperature=options.temperature, max_tokens=options.max_tokens)
    requests = [
        Request(id=f"{question.id}/{sample}", messages=question.messages, sampling=sampling, stage="answer")
        for question in questions
        for sample in range(options.samples)
    ]
    async with AsyncExitStack() as stack:
        if isinstance(llm, AbstractAsyncContextManager):  # it has connections to close
            await stack.enter_async_context(llm)
        # Count the calls that the cache holds, and estimate the cost of the others.
        options.cache_file.parent.mkdir(parents=True, exist_ok=True)
        cache = stack.enter_context(CallCache(options.cache_file))
        asking = cache.wrap(ScorableLLM(llm))
        missing_requests = [request for request in requests if cache.get(asking.key(request)) is None]
        cost = most_usd(missing_requests, getattr(llm, "price", None))
        taught = TaughtCheckpoint(
            None, options.answers_file, len(questions), len(requests), len(requests) - len(missing_requests), cost
        )
        options.on_line(plan_in_words(taught, llm, options))
        if options.dry_run:
            return taught, []
        calls, failures = await ask_all(asking, requests, options)
    for why, count in failures.items():
        options.on_line(f"{count} of {len(requests)} calls failed and are left out: {why}")
    return taught, calls


async def ask_all(llm: LLM, requests: Sequence[Request], options: TeachOptions) -> tuple[list[Call], Counter[str]]:
    """Returns the finished calls in the order of the requests, and the number of failed calls by reason.

    Until one answer in words with log-probabilities has come, one call is made at a time, and a failure raises, so that
    no further call is paid for. Later failures are left out, up to `MAX_FAILURES` of them.
    """
    finished_calls: dict[str, Call] = {}
    failures: Counter[str] = Counter()
    slots = asyncio.Semaphore(options.concurrency)

    async def ask(request: Request) -> None:
        async with slots:
            try:
                finished_calls[request.id] = await llm.complete(request)
            except Unwritable:  # the cache cannot be written, so the next call could not be stored either
                raise
            except LLMError as error:
                failures[_without_name(str(error), request)] += 1
                if failures.total() >= MAX_FAILURES:
                    raise LLMError(
                        f"{failures.total()} calls failed, the last: {error}. {len(finished_calls)} are kept in "
                        f"{options.cache_file}: the same command goes on from there"
                    ) from error
            options.on_step(f"asked {len(finished_calls)} of {len(requests)}")

    waiting = list(requests)
    options.on_step(f"asked 0 of {len(requests)}")
    while waiting and not any(answers_in_words(call) and call.text.strip() for call in finished_calls.values()):
        first_request = waiting.pop(0)
        try:
            finished_calls[first_request.id] = await llm.complete(first_request)
        except LLMError as error:
            raise _first_failure(error, llm) from error
    try:
        async with asyncio.TaskGroup() as group:
            for request in waiting:
                group.create_task(ask(request))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the other errors are the same, or follow from the first
    return [finished_calls[request.id] for request in requests if request.id in finished_calls], failures


def _without_name(message: str, request: Request) -> str:
    """Returns the message without the request's own name, so that equal failures are counted together."""
    return message.removeprefix(f"request {request.id}: ")


def _first_failure(error: LLMError, llm: LLM) -> LLMError:
    """Returns the error of the first call; if log-probabilities are the reason, with advice on what to do."""
    refused = getattr(error, "refused", False)
    if not refused and not isinstance(error, WithoutLogprobs):
        return error
    remedies = require("metaprobe.llms.doctor", "api").REMEDIES
    remedy = remedies["fails" if refused else "given"]
    message = f"{error}. {remedy}. `metaprobe doctor URL {llm.name}` says what the endpoint does to log-probabilities"
    return LLMError(f"{message}; nothing more was asked")


# The price.


def most_usd(requests: Sequence[Request], price: Price | None) -> float | None:
    """Returns the approximate cost in US dollars if every answer uses all its tokens; None without a price."""
    if price is None:
        return None
    prompt_bytes = [sum(len(message.content.encode()) for message in request.messages) for request in requests]
    return sum(
        price.cost_usd(Usage(-(-byte_count // BYTES_PER_TOKEN), request.sampling.max_tokens or 0))
        for byte_count, request in zip(prompt_bytes, requests, strict=True)
    )


def plan_in_words(taught: TaughtCheckpoint, llm: LLM, options: TeachOptions) -> str:
    """Returns one line: number of calls, model, cost, and whether a flag would take more calls."""
    new_count = taught.calls - taught.kept_before
    text = (
        f"{taught.calls} calls of {llm.name}: {taught.questions} questions, {options.samples} answers each, at "
        f"temperature {options.temperature:g}, at most {options.max_tokens} tokens an answer"
    )
    if taught.kept_before:
        text += f"; {taught.kept_before} are kept in {options.cache_file}, so that {new_count} are asked"
    if not hasattr(llm, "endpoint"):
        text += "; on this machine"
    elif taught.most_usd is None:
        text += "; the price is not known (--prices FILE states it)"
    else:
        text += f"; at most about ${taught.most_usd:.4f}"
    pairs = taught.questions * options.samples * min(options.samples - 1, MAX_PARTNERS)
    if CALIBRATION_SHARE * pairs < MIN_THRESHOLD_GROUPS:
        needed = round(MIN_THRESHOLD_GROUPS / CALIBRATION_SHARE)
        text += (
            f". These are {pairs} pairs of answers, and a flag takes about {needed}: expect a score without a flag, or "
            "ask more questions"
        )
    return text


# Answers as lines.


def check_overwritten(path: Path) -> None:
    """Raises `RecordError` if the file holds labels, or lines that `teach` has not written: they would be lost."""
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    refusal = f"{path} exists, and would be replaced; expected a new file: give another one (`--answers`), or move it"
    if not path.is_file():
        raise RecordError(refusal)
    try:
        for number, line in iter_json_lines(path):
            if not line.keys() <= LINE_KEYS:
                raise RecordError(f"{refusal} (line {number} holds {', '.join(sorted(line.keys() - LINE_KEYS))[:80]})")
    except ImportFileError as error:
        raise RecordError(f"{refusal} ({error})") from error


LINE_KEYS = frozenset(
    (
        *("id", "question_id", "group", "messages", "answer", "logprobs", "tokens", "finish_reason", "model"),
        *("sampling", "logprobs_mode"),
    )
)
"""Keys of the lines that are written. A line with another key has been edited by a user."""


def write_answers(
    path: Path, questions: Sequence[QuestionToAsk], calls: Sequence[Call], on_line: OnStep = lambda line: None
) -> int:
    """Writes a line for each answer in words, and returns the number of lines. Raises `RecordError` if there are none.

    The file appears at once as a whole.

    Args:
        path: the file.
        questions: the questions that were asked.
        calls: the finished calls.
        on_line: called with each sentence about answers that are left out.
    """
    question_of_id = {question.id: question for question in questions}
    left_out: Counter[str] = Counter()
    lines: list[dict[str, Any]] = []
    cut_count = 0
    for call in calls:
        if why := _why_left_out(call):
            left_out[why] += 1
            continue
        cut_count += call.finish_reason != STOP
        lines.append(line_of(call, question_of_id[call.id.rpartition("/")[0]]))
    for why, count in left_out.items():
        on_line(f"left out: {count} x {why}")
    if cut_count:
        on_line(
            f"{cut_count} of {len(lines)} answers did not end by themselves, and teach nothing: --max-tokens sets the "
            "limit"
        )
    if not lines:
        raise RecordError(f"none of {len(calls)} calls was answered in words; expected answers to learn from")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    return len(lines)


def _why_left_out(call: Call) -> str:
    """Returns why nothing can be learned from a call; empty if something can be learned."""
    if not answers_in_words(call):
        return f"an answer that is no words ({call.finish_reason})"
    logprobs = answer_logprobs(call)
    if not call.text.strip() or logprobs is None or not len(logprobs):
        return f"an answer without a text ({call.finish_reason or 'no end stated'})"
    return ""


def line_of(call: Call, question: QuestionToAsk) -> dict[str, Any]:
    """Returns the line of an answer: its own tokens and log-probabilities, without those of its thinking."""
    logprobs = answer_logprobs(call)
    line: dict[str, Any] = {
        "id": call.id,
        "question_id": question.id,
        "group": question.group,
        "messages": [asdict(message) for message in question.messages],
        "answer": call.text,
        "logprobs": [] if logprobs is None else [float(value) for value in logprobs],
        "finish_reason": call.finish_reason or None,
        "model": call.model,
        "sampling": {"temperature": call.sampling.temperature, "max_tokens": call.sampling.max_tokens},
        "logprobs_mode": call.logprobs_mode,
    }
    indices = tokens_of(call.segments, "answer", len(call.tokens))
    tokens = [call.tokens[index] for index in indices]
    if (
        "".join(tokens) == call.text
    ):  # not equal if a letter is spread over tokens, or if blanks around the text were removed
        line["tokens"] = tokens
    return line
