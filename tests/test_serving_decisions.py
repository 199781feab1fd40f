"""`POST /v1/decisions` in front of the unchanged openai client, and of requests that are not what they should be."""

import asyncio
import json
import math
import random
import time
from collections import Counter
from contextlib import closing

import numpy as np
import openai
import pytest
from click.testing import CliRunner
from decision_server import DecisionServer
from served import KEY, TOKENS, completion, running, small_checkpoint
from starlette.requests import Request

from metaprobe.checkpoints.checkpoint import load_checkpoint
from metaprobe.cli import main
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.text_predictor import TextAnswer, TextPredictor
from metaprobe.probes.verdict import Verdict
from metaprobe.production.http.app import create_app
from metaprobe.production.http.bodies import Refusal, Scoring
from metaprobe.production.http.decisions import DecisionDesk
from metaprobe.production.http.judges import Judges, Scorer, Seat
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.records.decision_questions import DecisionQuestion
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Message, Run

RIGHT = {"type": "predicate", "name": "correct", "instructions": "The answer is right."}
TEXT = "".join(token for token, _ in TOKENS)
RESPONSE = completion({"model": "m", "logprobs": True})
ASKED = [{"role": "user", "content": "What is it?"}]
MEASURED = [*ASKED, {"role": "assistant", "content": TEXT, "metaprobe": {"response": RESPONSE}}]
BARE = [*ASKED, {"role": "assistant", "content": "good answer"}]


def levels(*labels):
    return [{"label": label} for label in labels]


class CountingReader:
    """A text reader that knows `good`, and counts how often it is asked."""

    target = "polite"

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint
        self.calls = 0

    def verdict(self, asked: TextAnswer) -> Verdict:
        self.calls += 1
        return Verdict(0.9 if "good" in asked.text else 0.1, {"polite": 0.9}, None, None, self.checkpoint.digest)


@pytest.fixture(scope="module")
def checkpoint(evidence, tmp_path_factory):
    return small_checkpoint(tmp_path_factory.mktemp("checkpoints") / "quality", evidence).path


@pytest.fixture(scope="module")
def reader(checkpoint):
    return CountingReader(load_checkpoint(checkpoint))


@pytest.fixture(scope="module")
def judges(checkpoint, reader):
    metrics = Metrics()
    measured = Scorer(QualityPredictor.load(checkpoint, on_mismatch="note"), metrics)
    text = Scorer(TextPredictor(reader.checkpoint, "polite", reader.verdict), metrics)
    return Judges({"": Seat(measured)}, texts={"polite": Seat(text)})


@pytest.fixture(scope="module")
def served(checkpoint, judges, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "scores.sqlite"
    given = Settings(checkpoint=checkpoint, log=str(log), log_texts=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", KEY)
        patch.setattr("metaprobe.production.http.judges.load_judges", lambda *_: judges)
        app = create_app(given)
    with running(app) as (url, _):
        yield url, log


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served[0]}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def asked(client, questions, given=MEASURED):
    return client.decisions.create(model="mine", input=given, questions=questions)


def test_a_head_answers_by_name_and_everything_else_is_refused_with_the_reason(client, checkpoint):
    questions = [
        RIGHT,
        {"type": "score", "name": "polite", "instructions": "How polite?", "levels": levels("not", "very")},
        {"type": "predicate", "name": "kind", "instructions": "It is kind."},
        {"type": "choice", "instructions": "Which?", "choices": [{"value": True}, {"value": False}]},
    ]
    decision = asked(client, questions)
    right, polite, kind, which = decision.answers
    expected = QualityPredictor.load(checkpoint).predict(RESPONSE).score
    assert right.probability == pytest.approx(expected, abs=1e-6)
    assert (polite.type, [one.label for one in polite.probabilities]) == ("score", ["not", "very"])
    assert polite.score == polite.probabilities[1].probability == pytest.approx(0.9)
    assert [(kind.type, kind.name), (which.type, which.name)] == [("refusal", "kind"), ("refusal", None)]
    assert kind.metaprobe["reason"] == "this server answers only: correct, polite"
    assert (decision.model, decision.usage.total_tokens) == ("mine", 0)


def test_four_hundred_questions_cost_one_run_of_each_checkpoint(client, reader):
    before = reader.calls
    questions = [{"type": "predicate", "name": f"n{i}", "instructions": "x"} for i in range(398)]
    named = [{"type": "predicate", "name": name, "instructions": "x"} for name in ("correct", "polite")]
    kinds = Counter(answer.type for answer in asked(client, [*questions, *named]).answers)
    assert (kinds, reader.calls - before) == ({"refusal": 398, "predicate": 2}, 1)
    with pytest.raises(openai.BadRequestError, match="1 to 400"):
        asked(client, [{"type": "predicate", "instructions": f"x{i}"} for i in range(401)])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (BARE, "brings none"),
        ([MEASURED[1], *ASKED], "not the last"),
        ([*ASKED, MEASURED[1] | {"content": "another text"}], "another text"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]}, MEASURED[1]],
            "image",
        ),
        ([{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}, *MEASURED], "tool call"),
        ([*ASKED, MEASURED[1] | {"metaprobe": {"response": RESPONSE | {"choices": []}}}], "choices"),
    ],
)
def test_what_the_input_lacks_or_holds_besides_is_said(client, given, words):
    (answer,) = asked(client, [RIGHT], given).answers
    assert answer.type == "refusal"
    assert words in answer.metaprobe["reason"]


def test_texts_are_read_where_no_log_probabilities_came(client, reader):
    question = {"type": "predicate", "name": "polite", "instructions": "Polite?"}
    (answer,) = asked(client, [question], BARE).answers
    assert (answer.probability, answer.metaprobe["checkpoint"]) == (0.9, reader.checkpoint.digest)
    (image,) = asked(
        client, [question | {"instructions": [{"type": "input_image", "image_url": "data:x"}]}], BARE
    ).answers
    assert "image" in image.metaprobe["reason"]


def test_levels_are_shares_that_fall_and_an_expectation_alone_is_refused(checkpoint):
    """Steps that cross are pooled: the mean level stays. A head without steps is no distribution."""

    def answer(heads):
        scorer = Scorer(
            TextPredictor(known, "tone", lambda _: Verdict(0.5, heads, None, None, ""), (1.0, 4.0)), Metrics()
        )
        judges = Judges({"": Seat(scorer)}, texts={"tone": Seat(scorer)})
        question = {"type": "score", "name": "tone", "instructions": "?", "levels": levels(*"abcd")}
        body = json.dumps({"model": "mine", "input": BARE, "questions": [question]}).encode()
        desk = DecisionDesk(Settings(checkpoint=checkpoint, auth=False), judges, None, Scoring())
        with asyncio.Runner() as runner:
            request = Request({"type": "http", "headers": [], "query_string": b""})
            return runner.run(desk.answer(body, request))["answers"][0]

    known = load_checkpoint(checkpoint)
    told = answer({"tone": 2.6, "tone>=2": 0.4, "tone>=3": 0.8, "tone>=4": 0.4})
    assert [level["probability"] for level in told["probabilities"]] == pytest.approx([0.4, 0.0, 0.2, 0.4])
    assert (told["score"], told["confidence"]) == (pytest.approx(1.6), pytest.approx(0.4))
    alone = answer({"tone": 2.6})
    assert (alone["type"], "no probability of each" in alone["metaprobe"]["reason"]) == ("refusal", True)


def test_verdicts_are_logged_under_the_id_that_the_caller_gets_and_keys_are_asked(client, served):
    decision = asked(client, [RIGHT, {"type": "predicate", "name": "polite", "instructions": "x"}])
    ids = [verdict["request_id"] for verdict in decision.metaprobe["verdicts"]]
    entries = []
    with closing(ScoreLog.open(str(served[1]))) as log:
        while None in (entries := [log.entry(one) for one in ids]):  # the server writes in the background
            time.sleep(0.05)
    assert [(entry.question, entry.answer) for entry in entries] == [("What is it?", TEXT)] * 2
    stranger = openai.OpenAI(base_url=f"{served[0]}/v1", api_key="no-key-of-this-test", max_retries=0, timeout=60)
    with stranger, pytest.raises(openai.AuthenticationError):
        asked(stranger, [RIGHT])


SCRAPS = [None, True, 0, -1, 10**400, math.nan, "", "x", "\ud800", [], {}, [[]], {"type": "predicate"}, "polite"]
KEYS = ["model", "input", "questions", "type", "name", "instructions", "levels", "choices", "role", "content", "label"]
WHOLE = {
    "model": "mine",
    "input": MEASURED,
    "questions": [RIGHT, {"type": "score", "name": "polite", "instructions": "?", "levels": levels("a", "b")}],
}


def spots(value, path=()):
    """Every place in a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from spots(value[key], (*path, key))


SPOTS = list(spots(WHOLE))[1:]


def malformed(rng):
    """A good request with one to four places changed, taken away, doubled or given another key; or cut off."""
    body = json.loads(json.dumps(WHOLE))
    for _ in range(rng.randint(1, 4)):
        *way, last = rng.choice(SPOTS)
        try:
            at = body
            for key in way:
                at = at[key]
            change = rng.choice(["put", "take", "double", "key"])
            if change == "take":
                del at[last]
            elif change == "double" and isinstance(at, list):
                at.insert(last, at[last])
            elif change == "key" and isinstance(at, dict):
                at[rng.choice(KEYS)] = at.pop(last)
            else:
                at[last] = rng.choice(SCRAPS)
        except (KeyError, IndexError, TypeError):  # an earlier change has taken the place away
            continue
    text = json.dumps(body).encode()
    return text[: rng.randint(0, len(text))] if rng.random() < 0.1 else text


def check_decision(body, decision, predictor):
    """Every answer is that of a head that was asked for, with its number for what was sent; or a refusal."""
    held = json.loads(body)
    questions = DecisionQuestion.read_all(held["questions"])
    assert len(decision["answers"]) == len(questions)
    for question, answer in zip(questions, decision["answers"], strict=True):
        assert answer["name"] == question.name
        if answer["type"] == "refusal":
            assert answer["metaprobe"]["reason"]
            continue
        assert answer["type"] == question.kind
        value = answer["probability"] if question.kind == "predicate" else answer["score"]
        if question.name == "polite":
            assert value == 0.9
            continue
        last = held["input"][-1]
        assert question.name == "correct"
        assert value == pytest.approx(predictor.predict(last["metaprobe"]["response"]).score, abs=1e-6)
        assert last["content"].strip() == last["metaprobe"]["response"]["choices"][0]["message"]["content"].strip()


@pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_of_malformed_requests_none_is_answered_wrongly_and_none_fails(judges, checkpoint, count):
    predictor = QualityPredictor.load(checkpoint, on_mismatch="ignore")
    desk = DecisionDesk(Settings(checkpoint=checkpoint, auth=False), judges, None, Scoring())
    request = Request({"type": "http", "headers": [], "query_string": b""})
    rng, outcomes, refusals = random.Random(38), Counter(), []
    with asyncio.Runner() as runner:
        for _ in range(count):
            body = malformed(rng)
            try:
                decision = runner.run(desk.answer(body, request))
            except Refusal as refusal:
                refusals.append(refusal)
                continue
            json.dumps(decision, ensure_ascii=False, allow_nan=False).encode()
            check_decision(body, decision, predictor)
            outcomes.update(answer["type"] for answer in decision["answers"])
    assert {refusal.status for refusal in refusals} == {400}
    assert all(refusal.response().body for refusal in refusals)
    assert len(refusals) > count / 10
    assert min(outcomes.values()) > count / 50


def planted_runs(n=160):
    """Right answers say `good` and are sure of their tokens."""
    rng = np.random.default_rng(0)
    for i in range(n):
        good = i % 2
        words = ["good" if good else "bad", *rng.choice(["so", "it", "is"], 5)]
        logprobs = -rng.gamma(2.0, 0.1 if good else 0.4, len(words)).astype(np.float32)
        call = Call(
            id=f"c{i}",
            stage="answer",
            model="m",
            messages=(Message("user", f"What is {i}?"),),
            text=" ".join(words),
            tokens=tuple(f" {word}" if place else word for place, word in enumerate(words)),
            logprobs=logprobs,
        )
        yield Run(f"r{i}", "import", "", Item(f"i{i}", f"What is {i}?", group=f"g{i}", task="planted"), (call,))


def response_of(call):
    content = [{"token": t, "logprob": float(p)} for t, p in zip(call.tokens, call.logprobs, strict=True)]
    choice = {"message": {"role": "assistant", "content": call.text}, "logprobs": {"content": content}}
    return {"object": "chat.completion", "model": "m", "choices": [{**choice, "finish_reason": "stop"}]}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Planted runs, judged by a scripted decision server over HTTP; it gives 0.25 where an answer says `good` once."""
    folder, runs = tmp_path_factory.mktemp("judged"), list(planted_runs())
    RunStore(folder / "runs").append(runs)
    (folder / "questions.json").write_text(json.dumps([RIGHT | {"name": "right"}]))
    judge = DecisionServer()
    with running(judge.app) as (url, _):
        judging = ["judge", str(folder / "runs"), "--llm", f"decisions:luna@{url}/v1", "--out", str(folder / "judged")]
        told = CliRunner().invoke(main, [*judging, "--questions", str(folder / "questions.json")])
    assert told.exit_code == 0, told.output
    assert len(judge.bodies) == len(runs)

    def labelled(run):
        (answer,) = run.decision_answers
        label = Label(answer.call_id, "correct", float(answer.value >= 0.25), f"judge:{answer.source}")
        return Run(**{name: getattr(run, name) for name in run.__slots__} | {"labels": (label,)})

    RunStore(folder / "judged").rewrite(labelled)
    return folder / "judged", runs


def test_a_decision_model_is_asked_learned_from_and_replaced_by_our_own_answers(judged, tmp_path, monkeypatch):
    """The unchanged openai client gets from our server what a predictor learned from another server's decisions."""
    monkeypatch.setenv("METAPROBE_API_KEY", KEY)
    store, runs = judged
    training = ["train", "quality", str(store), "--out", str(tmp_path / "ours"), "--stage", "answer"]
    told = CliRunner().invoke(main, [*training, "--question", "correct=Is the answer right?"])
    assert told.exit_code == 0, told.output

    app = create_app(Settings(checkpoint=tmp_path / "ours"))
    with running(app) as (url, _), openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        by_text = [{"type": "predicate", "instructions": "is the  answer RIGHT?"}, RIGHT | {"name": "else"}]
        given = []
        for run in runs[:20]:
            (call,) = run.calls
            said = {"role": "assistant", "content": call.text, "metaprobe": {"response": response_of(call)}}
            ours, other = asked(client, by_text, [{"role": "user", "content": run.item.question}, said]).answers
            assert other.type == "refusal"
            given.append(ours.probability)
    assert np.mean(given[1::2]) > 0.7
    assert np.mean(given[::2]) < 0.3


def test_another_servers_decision_comes_back_calibrated_on_labels_through_the_client(judged, tmp_path, monkeypatch):
    """The judge says 0.25 of right answers and 0 of wrong ones: an order, and no probabilities."""
    monkeypatch.setenv("METAPROBE_API_KEY", KEY)
    store, runs = judged
    training = ["train", "quality", str(store), "--reads", "decisions", "--out", str(tmp_path / "decided")]
    told = CliRunner().invoke(main, training)
    assert told.exit_code == 0, told.output
    judge, ours = DecisionServer(), create_app(Settings(checkpoint=tmp_path / "decided", on_mismatch="refuse"))
    with (
        running(judge.app) as (theirs, _),
        running(ours) as (url, _),
        openai.OpenAI(base_url=f"{theirs}/v1", api_key=KEY, max_retries=0) as asking,
        openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client,
    ):
        given = []
        for run in runs[:8]:
            said = [{"role": "user", "content": run.item.question}, {"role": "assistant", "content": run.calls[0].text}]
            decision = asking.decisions.create(model="luna", input=said, questions=[RIGHT | {"name": "right"}])
            raw = decision.model_dump()
            said[1]["metaprobe"] = {"decision": raw}
            (answer,) = asked(client, [RIGHT], said).answers
            given.append((decision.answers[0].probability, answer.probability))
        bare, lacking = dict(said[1]), dict(said[1])
        del bare["metaprobe"]
        lacking["metaprobe"] = {"decision": raw | {"answers": []}}
        reasons = [asked(client, [RIGHT], [said[0], one]).answers[0].metaprobe["reason"] for one in (bare, lacking)]
        assert ["another decision model" in reasons[0], "lacks right" in reasons[1]] == [True, True]
        scored = client.post("/score", body=raw, cast_to=object)
        assert scored["score"] == pytest.approx(given[-1][1], abs=1e-6)
    theirs_said, ours_said = np.array(given).T
    assert set(theirs_said[1::2]) == {0.25}
    assert ours_said[1::2].min() > 0.8
    assert ours_said[::2].max() < 0.2
