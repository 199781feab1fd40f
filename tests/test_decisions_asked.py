"""A decision model as a judge: asked over HTTP, recorded, priced, cached and resumed; recorded decisions imported."""

import asyncio
import json

import pytest
from click.testing import CliRunner
from decision_server import DecisionServer
from openai.types import Decision
from served import running
from starlette.responses import JSONResponse

from metaprobe.cli import main
from metaprobe.llms.base import LLMError, Request
from metaprobe.llms.cache import CallCache, ReplayLLM
from metaprobe.llms.decision_api import DecisionsLLM
from metaprobe.llms.pricing import Price
from metaprobe.papers.systems.decision_calls import questions_message
from metaprobe.probes.decision_predictor import decision_signals
from metaprobe.records.decision_questions import DecisionQuestion
from metaprobe.records.import_store import import_file
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Message, Run

QUESTIONS = [
    {"type": "predicate", "name": "right", "instructions": "The answer is right."},
    {"type": "score", "name": "tone", "instructions": "How kind?", "levels": [{"label": x} for x in ("low", "high")]},
    {"type": "predicate", "name": "never", "instructions": "refuse this"},
]
SHOWN = (Message("user", "Is it?"), Message("assistant", "good good good"))


@pytest.fixture(scope="module")
def server():
    judge = DecisionServer()
    with running(judge.app) as (url, _):
        judge.url = f"{url}/v1"
        yield judge


def request(name="r", questions=QUESTIONS):
    return Request(id=name, messages=(*SHOWN, questions_message(questions)))


def ask(llm, one, asked=None):
    async def asking():
        try:
            return await (asked or llm).complete(one)
        finally:
            await llm.aclose()

    return asyncio.run(asking())


def test_an_answer_is_recorded_priced_cached_and_replayed(server, tmp_path):
    server.bodies.clear()
    llm = DecisionsLLM("luna", base_url=server.url, prices={"luna": Price(0.1, 0.0)})
    call = ask(llm, request())
    body = server.bodies[-1]
    assert [item["role"] for item in body["input"]] == ["user", "assistant"]
    assert body["questions"] == QUESTIONS
    right, tone, never = DecisionQuestion.read_answers(call.text, "a", source=call.model)
    assert (right.value, tone.probabilities, never.reason) == (0.75, (0.25, 0.75), "luna refused to answer")
    assert (call.model_revision, call.cost_usd) == ("luna-2026-10-06", pytest.approx(call.usage.prompt_tokens * 1e-7))
    with CallCache(tmp_path / "calls.sqlite") as cache:
        for _ in range(2):
            assert ask(llm, request(), cache.wrap(llm)).text == call.text
        assert len(server.bodies) == 2  # once without the cache and once with it
        ask(llm, request(questions=QUESTIONS[:1]), cache.wrap(llm))
        assert len(server.bodies) == 3
    assert ask(llm, request("other"), ReplayLLM([call])).text == call.text


def test_answers_that_do_not_fit_are_asked_for_again_and_a_request_without_questions_never(server):
    server.bodies.clear()
    server.next = [
        lambda body: {"model": "luna", "answers": []},
        lambda body: JSONResponse({"error": {"message": "busy"}}, 503),
        lambda body: [],
    ]

    async def at_once(seconds):
        return None

    llm = DecisionsLLM("luna", base_url=server.url, attempts=4, sleep=at_once)
    assert decision_signals(DecisionQuestion.read_answers(ask(llm, request()).text, "a")).value("right") == 0.75
    assert len(server.bodies) == 4
    with pytest.raises(LLMError, match="questions"):
        ask(llm, Request(id="r", messages=SHOWN))
    server.next = [lambda body: JSONResponse({"error": {"message": "no such model"}}, 400)]
    with pytest.raises(LLMError, match="400"):
        ask(llm, request())
    assert len(server.bodies) == 5


def test_signals_name_their_source_and_a_refusal_is_none_with_a_reason():
    told = {"model": "m", "answers": [{"type": "refusal", "name": "never"}]}
    other = {"type": "predicate", "name": "right", "probability": 0.25}
    signals = decision_signals(DecisionQuestion.read_answers(told | {"answers": [*told["answers"], other]}, "a"))
    assert (signals.value("right"), signals.signals["right"].source) == (0.25, "m")
    assert (signals.value("never"), signals.reasons["never"]) == (None, "m refused to answer")


def test_stored_answers_are_judged_and_a_broken_judging_goes_on_where_it_stopped(server, tmp_path):
    runs = [
        Run(
            id=f"r{i}",
            system="import",
            variant="",
            item=Item(f"i{i}", "Is it?"),
            calls=(Call(id=f"c{i}", messages=SHOWN[:1], text="good " * i),),
        )
        for i in range(4)
    ]
    RunStore(tmp_path / "runs").append(runs)
    (tmp_path / "questions.json").write_text(json.dumps(QUESTIONS))
    judging = ["judge", str(tmp_path / "runs"), "--llm", f"decisions:luna@{server.url}", "--out", str(tmp_path / "out")]
    judging += ["--questions", str(tmp_path / "questions.json"), "--api", "attempts=1", "--concurrency", "1"]
    server.next = [server.decision, lambda body: JSONResponse({"error": {"message": "down"}}, 500)]
    broken = CliRunner().invoke(main, judging)
    assert broken.exit_code == 1
    assert json.loads(broken.stdout)["failed"] == 1
    server.bodies.clear()
    again = CliRunner().invoke(main, judging)
    assert again.exit_code == 0, again.output
    report = json.loads(again.stdout)
    assert (report["runs"], report["stored_before"], report["textless"], len(server.bodies)) == (1, 3, 0, 1)
    judged = {run.id: run for run in RunStore(tmp_path / "out").runs()}
    assert judged.keys() == {"r0", "r1", "r2", "r3"}
    assert judged["r0"].decision_answers == ()  # an empty answer is not judged
    signals = decision_signals(judged["r3"].decision_answers)
    assert (signals.value("right"), signals.value("tone=high")) == (0.75, 0.75)
    assert signals.signals["right"].source == "luna@luna-2026-10-06"
    call, of_judge = judged["r3"].calls
    assert (of_judge.parent, of_judge.stage, call.text) == ("c3", "judge", "good " * 3)


def test_recorded_decisions_are_imported_from_lines_and_promptfoo(tmp_path):
    answers = [{"type": "predicate", "name": "right", "probability": 0.25}, {"type": "refusal", "name": "tone"}]
    decision = Decision.construct(model="luna", answers=answers, usage={"input_tokens": 1}).model_dump()
    said = {"choices": [{"message": {"content": "four"}}]}
    lines = [
        {"id": "with-answer", "response": said, "labels": {"correct": 1}, "decisions": [decision]},
        {"id": "bare", "labels": {"correct": 0}, **decision},
    ]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert import_file(tmp_path / "lines.jsonl", RunStore(tmp_path / "lines")).imported == 2
    for run in RunStore(tmp_path / "lines").runs():
        signals = decision_signals(run.decision_answers)
        assert (signals.value("right"), signals.reasons) == (0.25, {"tone": "luna refused to answer"})
    lines[0]["decisions"] = {"model": "luna", "answers": [answers[0] | {"probability": 0.5}]}
    (tmp_path / "lines.jsonl").write_text(json.dumps(lines[0]))
    assert import_file(tmp_path / "lines.jsonl", RunStore(tmp_path / "lines")).relabelled == 1

    result = {
        "id": "1",
        "testIdx": 0,
        "promptIdx": 0,
        "prompt": {"raw": "I was charged twice."},
        "provider": {"id": "openai:decisions:luna"},
        "response": {"output": json.dumps({"answers": answers}), "metadata": {"model": "luna-2"}},
        "success": True,
        "gradingResult": {"pass": True, "componentResults": [{"pass": True, "assertion": {"type": "javascript"}}]},
    }
    (tmp_path / "results.json").write_text(json.dumps({"evalId": "e", "results": {"results": [result]}}))
    report = import_file(tmp_path / "results.json", RunStore(tmp_path / "promptfoo"))
    (run,) = RunStore(tmp_path / "promptfoo").runs()
    assert report.form == "promptfoo"
    assert (run.calls[0].text, run.labels) == ("I was charged twice.", ())
    assert decision_signals(run.decision_answers).signals["right"].source == "luna-2"
