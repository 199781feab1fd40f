"""Text readers in the server: told apart by their head, beside the predictors, in the shadow and on trial."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from served import small_checkpoint
from starlette.requests import Request
from tiny_adapter import tiny_tokenizer

from metaprobe.checkpoints import Draft, save_checkpoint
from metaprobe.probes.adapter import IDS, LAYOUT, MASK, SAMPLE, TOKENIZER, AdapterProbe, Encoder
from metaprobe.probes.text_predictor import TextAnswer
from metaprobe.production.http.bodies import Scoring
from metaprobe.production.http.decisions import DecisionDesk
from metaprobe.production.http.judges import load_judges
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings
from metaprobe.records.decision_questions import DecisionQuestion
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Message, Run
from metaprobe.training.recipes.train_text import train_text
from metaprobe.training.training_options import TextOptions


def reader(path: Path, *, target: str = "critical", weight: float = 0.1, when: str = "after") -> Path:
    """An adapter whose probability grows with the mean number of its tokens."""
    nodes = [
        helper.make_node("Cast", [IDS], ["ids"], to=TensorProto.FLOAT),
        helper.make_node("Cast", [MASK], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["ids", "mask"], ["read"]),
        helper.make_node("ReduceSum", ["read", "axis"], ["sum"], keepdims=1),
        helper.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("Mul", ["mean", "weight"], ["odds"]),
        helper.make_node("Sigmoid", ["odds"], [when]),
    ]
    constants = [
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        helper.make_tensor("weight", TensorProto.FLOAT, [1], [weight]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"]) for name in (IDS, MASK)]
    outputs = [helper.make_tensor_value_info(when, TensorProto.FLOAT, ["n", 1])]
    graph = helper.make_graph(nodes, "reader", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    tokenizer = tiny_tokenizer().to_str().encode()
    golden = {IDS: np.array([[3, 4]], dtype=np.int64), MASK: np.array([[1, 1]], dtype=np.int64)}
    contract = {"target": target, "layout": {when: LAYOUT[when]}, "max_length": 64}
    contract["sample_ids"] = Encoder(tokenizer, max_length=64).ids([SAMPLE])[0]
    expected = {when: (1 / (1 + np.exp(-np.array([[3.5 * weight]])))).astype(np.float32)}
    draft = Draft(kind="adapter", contract=contract, thresholds={"flag": 0.5})
    data = {"model": model.SerializeToString(), "golden_inputs": golden, "expected": expected, "card": "# A test\n"}
    return save_checkpoint(path, draft, **data, extra={TOKENIZER: tokenizer}).path


@pytest.fixture(scope="module")
def quality(evidence, tmp_path_factory):
    return small_checkpoint(tmp_path_factory.mktemp("checkpoints") / "quality", evidence).path


def test_a_text_reader_answers_by_its_head_and_its_shadow_and_canary_follow_it(quality, tmp_path):
    first = reader(tmp_path / "first")
    places = {name: str(reader(tmp_path / name, weight=w)) for name, w in (("shadow", 0.2), ("canary", -0.1))}
    settings = Settings(
        checkpoint=quality,
        more_checkpoints=(str(first),),
        shadows=(places["shadow"],),
        canary_checkpoints=(places["canary"],),
        canary_share=1.0,
    )
    metrics = Metrics()
    judges = load_judges(settings, metrics)
    assert judges.only
    seat = judges.texts["critical"]
    told = seat.judge.verdict(TextAnswer("good answer", question="easy"))
    expected = AdapterProbe.load(first).probability(["easy"], ["good answer"])[0]
    assert (told["heads"]["critical"], told["critical"], told["score"]) == (expected, expected, None)
    assert seat.of("any", judges.share).digest == AdapterProbe.load(places["canary"]).checkpoint.digest
    assert b'metaprobe_verdicts_total{role="shadow"} 1.0' in metrics.exposition()
    assert judges.digests()["text:critical"] == told["checkpoint"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (TextAnswer("good"), "no user message"),
        (TextAnswer(" ", question="easy"), "empty"),
        (TextAnswer("", question="easy", answered=False), "end with the assistant"),
    ],
)
def test_what_a_text_reader_was_not_trained_for_gets_no_number(quality, tmp_path, asked, words):
    judges = load_judges(Settings(checkpoint=quality, more_checkpoints=(str(reader(tmp_path / "c")),)), Metrics())
    told = judges.texts["critical"].judge.verdict(asked)
    assert told["heads"] == {}
    assert words in told["reason"]


def test_readers_of_one_head_names_and_shadows_of_nobody_are_refused_and_a_pinned_one_goes_first(quality, tmp_path):
    first, second = (str(reader(tmp_path / name, weight=w)) for name, w in (("first", 0.1), ("second", 0.2)))
    for more in ({"more_checkpoints": (first, second)}, {"more_checkpoints": (f"m={first}",)}, {"shadows": (first,)}):
        with pytest.raises(RecordError):
            load_judges(Settings(checkpoint=quality, **more), Metrics())
    digest = AdapterProbe.load(second).checkpoint.digest
    pins = tmp_path / "pins"
    pins.write_text(f"{second} {digest}\n")
    judges = load_judges(Settings(checkpoint=quality, more_checkpoints=(first,), pins=pins), Metrics())
    assert judges.texts["critical"].judge.digest == digest


def test_a_text_reader_alone_leaves_scores_to_the_predictor_of_the_package(tmp_path):
    judges = load_judges(Settings(checkpoint=reader(tmp_path / "c")), Metrics())
    assert judges.texts.keys() == {"critical"}
    assert "correct" in judges.default.heads


@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
def test_a_reader_of_words_gives_levels_and_its_contract_the_question(quality, tmp_path):
    """Kind answers hold more of the word `kind`."""
    rng = np.random.default_rng(0)
    runs = []
    for i in range(120):
        level = int(rng.integers(1, 4))
        words = ["kind"] * (level - 1) + rng.choice(["so", "it", "is"], 6).tolist()
        call = Call(id=f"c{i}", messages=(Message("user", f"What is {i}?"),), text=" ".join(words))
        label = Label(call.id, "tone", level, "human")
        runs.append(Run(f"r{i}", "import", "", Item(f"i{i}", f"What is {i}?"), (call,), labels=(label,)))
    RunStore(tmp_path / "runs").append(runs)
    question = "tone=How kind is it?"
    train_text([tmp_path / "runs"], TextOptions(out=tmp_path / "c", target="tone", folds=2, questions=(question,)))
    judges = load_judges(Settings(checkpoint=quality, more_checkpoints=(str(tmp_path / "c"),)), Metrics())
    scorer = judges.texts["tone"].judge
    assert (scorer.scales, scorer.texts) == ({"tone": (1.0, 3.0)}, {"tone": {"how kind is it?"}})
    said = []
    question = {"type": "score", "name": "tone", "instructions": "?", "levels": [{"label": x} for x in "abc"]}
    for text in ("so it is so it is", "kind kind so it is so it is"):
        heads = scorer.verdict(TextAnswer(text, question="What is 7?"))["heads"]
        given = [{"role": "user", "content": "What is 7?"}, {"role": "assistant", "content": text}]
        body = json.dumps({"model": "mine", "input": given, "questions": [question]}).encode()
        desk = DecisionDesk(Settings(checkpoint=quality, auth=False), judges, None, Scoring())
        request = Request({"type": "http", "headers": [], "query_string": b""})
        decision = asyncio.run(desk.answer(body, request))
        (answer,) = DecisionQuestion.read_answers(
            decision, "c", questions=DecisionQuestion.read_all([question])
        )  # strict: the mean, a sum of 1
        assert answer.value == pytest.approx(heads["tone"] - 1, abs=1e-5)
        said.append(answer)
    low, high = said
    assert [answer.probabilities.index(max(answer.probabilities)) for answer in said] == [0, 2]
    assert low.value < 1 < high.value
