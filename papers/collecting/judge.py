"""Judges recorded answers by a decision model: every question about every answer, from a run store into another."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from metaprobe.api import (
    LLM,
    Call,
    CallCache,
    CallSelection,
    DecisionAnswer,
    DecisionQuestion,
    InvalidResponse,
    LLMError,
    ModelName,
    RecordError,
    Request,
    Run,
    RunStore,
    require,
)
from metaprobe.papers.systems.decision_calls import answers_in, asks_questions, messages_about, questions_message

STAGE = "judge"
SHARD_RUNS = 64
"""Number of runs that are judged together and stored as one file."""


@dataclass(slots=True)
class JudgeReport:
    """Says what a judging did."""

    calls: int = 0
    """Number of answers judged now."""
    answers: int = 0
    """Number of replies to questions, refusals included."""
    refusals: int = 0
    incomplete: int = 0
    """Number of replies to questions that left out an option's probability."""
    textless: int = 0
    """Number of answers without a text, which cannot be judged."""
    runs: int = 0
    """Number of runs stored now."""
    stored_before: int = 0
    failed: int = 0
    """Number of runs that are not stored because the judge did not reply; judging again asks about them."""
    failure: str = ""
    """The first of these failures."""
    cost_usd: float = 0.0
    """Sum of the known costs of calls, those from the cache included."""


def read_question_file(path: Path) -> list[dict[str, Any]]:
    """Returns the questions of a JSON file: a list of them, or an object with `questions`. Raises `RecordError`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        questions = content["questions"] if isinstance(content, Mapping) else content
        DecisionQuestion.read_all(questions)
    except (OSError, ValueError, KeyError, RecursionError, InvalidResponse) as error:
        raise RecordError(
            f'{path}: {error}; expected a JSON list of questions such as {{"type": "predicate", "name": "correct", '
            '"instructions": "The answer is right."}'
        ) from error
    return list(questions)


async def judge_runs(
    store: RunStore,
    llm: LLM,
    out: RunStore,
    questions: Sequence[Mapping[str, Any]],
    *,
    stage: str | None = None,
    agent: str | None = None,
    shard_runs: int = SHARD_RUNS,
    on_total: Callable[[int], object] = lambda total: None,
    on_chunk: Callable[[int, int], object] = lambda runs, tokens: None,
) -> JudgeReport:
    """Writes the runs of `store` into `out`, together with the judge's calls and `Run.decision_answers`.

    One request asks all questions about one answer, after the messages that it answers. Runs that `out` holds already
    are skipped, so a killed judging resumes. Calls of another stage or agent are stored as they are. Raises
    `RecordError` if both stores are one folder or no call is chosen.

    Args:
        store: the runs.
        llm: the judge.
        out: the store for judged runs.
        questions: the questions.
        stage: only calls of this stage.
        agent: only calls of this agent.
        shard_runs: runs in one file.
        on_total: called with the number of runs.
        on_chunk: called with the runs and tokens of each part.
    """
    if out.path.resolve() == store.path.resolve():
        raise RecordError(f"{out.path} holds the answers that are judged: expected another folder for the judged runs")
    asked_text = questions_message(questions).content
    # Tells these questions to this judge from others in the ids of calls.
    judging_key = hashlib.sha256(f"{llm.name}\0{asked_text}".encode()).hexdigest()[:12]
    selection = CallSelection(stage, agent)
    if not any(selection.holds(call) for run in store.runs() for call in run.calls):
        raise selection.nothing()
    report = JudgeReport()

    async def ask(call: Call) -> tuple[Call, tuple[DecisionAnswer, ...]]:
        messages = messages_about(call, questions)
        request = Request(id=f"{call.id}/{STAGE}/{judging_key}", messages=messages, stage=STAGE, parent=call.id)
        all_answers = await llm.complete(request)
        return all_answers, answers_in(all_answers)

    async def ask_about(run: Run) -> list[tuple[Call, tuple[DecisionAnswer, ...]]] | LLMError:
        """Returns the judge's calls and what they say; the error if the judge did not reply."""
        answers = [call for call in run.calls if selection.holds(call) and not asks_questions(call)]
        report.textless += sum(not call.text.strip() for call in answers)
        try:
            return await asyncio.gather(*(ask(call) for call in answers if call.text.strip()))
        except LLMError as error:
            return error

    # Judge and store the runs that are not stored yet.
    with out.alone():
        judged_ids = out.run_ids()
        on_total(len(store.run_ids() - judged_ids))
        report.stored_before = len(judged_ids)
        unjudged_runs = (run for run in store.runs() if run.id not in judged_ids)
        with out.writer(shard_runs=shard_runs) as writer:
            while runs := list(islice(unjudged_runs, shard_runs)):
                tokens = 0
                for run, judged_calls in zip(runs, await asyncio.gather(*map(ask_about, runs)), strict=True):
                    if isinstance(judged_calls, LLMError):
                        report.failed += 1
                        report.failure = report.failure or str(judged_calls)
                        continue
                    calls = tuple(call for call, _ in judged_calls)
                    decision_answers = tuple(answer for _, answers in judged_calls for answer in answers)
                    all_answers = (*run.decision_answers, *decision_answers)
                    writer.add(replace(run, calls=(*run.calls, *calls), decision_answers=all_answers))
                    report.runs += 1
                    report.calls += len(calls)
                    report.answers += len(decision_answers)
                    report.refusals += sum(answer.kind == "refusal" for answer in decision_answers)
                    report.incomplete += sum(None in answer.probabilities for answer in decision_answers)
                    report.cost_usd += sum(call.cost_usd or 0.0 for call in calls)
                    tokens += sum(call.usage.prompt_tokens for call in calls)
                on_chunk(len(runs), tokens)
    return report


def launch_judge(
    runs: Path,
    spec: str,
    out: Path,
    questions: Path,
    *,
    cache: Path | None = None,
    api: Sequence[str] = (),
    prices: Path | None = None,
    concurrency: int = 16,
    **options: Any,
) -> JudgeReport:
    """Runs `judge_runs` by names: `decisions:MODEL@URL`, the folders of two run stores, a file of questions.

    Args:
        runs: folder of the runs.
        spec: the judge.
        out: folder for the judged runs.
        questions: the file of questions.
        cache: file of calls.
        api: options KEY=VALUE of the judge.
        prices: file of prices.
        concurrency: most requests at once.
        **options: other options of `judge_runs`.
    """
    model = ModelName(spec)
    if not model.decides:
        kind = spec.partition(":")[0]  # an address may hold a key
        raise RecordError(f"judge {kind!r}: expected decisions:MODEL or decisions:MODEL@http://host:port/v1")
    require("openai", "api")
    question_list = read_question_file(questions)
    llm = model.open(concurrency=concurrency, api=ModelName.api_options(api, prices))

    async def ask() -> JudgeReport:
        async with AsyncExitStack() as stack:
            if isinstance(llm, AbstractAsyncContextManager):  # it has connections to close
                await stack.enter_async_context(llm)
            judge_llm = llm if cache is None else stack.enter_context(CallCache(cache)).wrap(llm)
            return await judge_runs(RunStore(runs), judge_llm, RunStore(out), question_list, **options)

    return asyncio.run(ask())
