"""QualityPredictor.predict: the quick ways in agree with the slow ones, to the bit, and may be shared by threads."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import FULL, tiny_quality

from metaprobe.checkpoints import Draft, Generator, save_checkpoint
from metaprobe.checkpoints.checkpoint import GraphSession
from metaprobe.checkpoints.checkpoint_errors import ContractMismatch
from metaprobe.probes.features import features, schema
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.parse import parse_response
from metaprobe.records.types import Call
from metaprobe.training.calibrators import Platt
from metaprobe.training.linear_probe import linear_graph
from metaprobe.training.recipes.train_quality import trees_graph
from metaprobe.training.trees import Trees, float32_thresholds


def random_logprobs(n: int, seed: int = 0, longest: int = 90) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest, n).tolist()
    return [(-rng.exponential(0.5, length)).astype(np.float32).tolist() for length in lengths]


@pytest.fixture(scope="module", params=["full", "full+top", "prefix-10"])
def predictor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> QualityPredictor:
    """30 trees that tell high from low log-probabilities."""
    lightgbm = pytest.importorskip("lightgbm")
    read = schema(request.param)
    X = features(read, random_logprobs(600), [tops(len(x), i) for i, x in enumerate(random_logprobs(600))])
    y = (np.nan_to_num(X[:, 0], nan=-0.5) > -0.5).astype(int)
    booster = lightgbm.train(
        {"num_leaves": 7, "objective": "binary", "verbosity": -1, "num_threads": 1}, lightgbm.Dataset(X, y), 30
    )
    head = Trees(float32_thresholds(booster), {}, 0.5), Platt(1.0, 0.0)
    model, inputs = trees_graph({"correct": head}, width=len(read.names)), {"features": X[:20]}
    contract = {"schema": read.name, "features": list(read.names)}
    draft = Draft(kind="quality", contract=contract, generator=Generator("m"), thresholds={"flag": 0.5})
    path, given = tmp_path_factory.mktemp("checkpoints") / "quality", GraphSession(model).run(inputs)
    saved = save_checkpoint(path, draft, model=model, golden_inputs=inputs, expected=given, card="test")
    return QualityPredictor(saved)


def tops(length: int, seed: int) -> np.ndarray:
    return -np.sort(np.random.default_rng(seed).exponential(2, (length, 3)), axis=1).astype(np.float32)


def chat(logprobs: list[float], *, top: bool = True, model: str = "m") -> dict[str, Any]:
    content = [
        {"token": "a", "logprob": x, "top_logprobs": beside(x, row) if top else []}
        for x, row in zip(logprobs, tops(len(logprobs), 1).tolist(), strict=True)
    ]
    choice = {"message": {"content": "a" * len(content)}, "logprobs": {"content": content}, "finish_reason": "stop"}
    return {"model": model, "choices": [choice]}


def beside(drawn: float, row: list[float]) -> list[dict[str, Any]]:
    """Alternatives that may stand beside the drawn token: it is the likeliest, and others share what it leaves."""
    left = math.log(-math.expm1(drawn) or 1e-20) - math.log(len(row))
    others = [{"token": f"b{i}", "logprob": min(drawn, left + value)} for i, value in enumerate(row)]
    return [{"token": "a", "logprob": drawn}, *others]


def test_one_response_many_and_a_body_get_the_same_verdicts_to_the_bit(predictor: QualityPredictor) -> None:
    responses: list[Any] = [*random_logprobs(30, 1), *map(chat, random_logprobs(10, 2)), [-9999.0], [-40.0] * 30]
    responses += [json.dumps(chat(x)).encode() for x in random_logprobs(10, 3)]
    together = predictor.predict_many(responses)
    assert together == [predictor.predict(response) for response in responses]
    assert len({verdict.score for verdict in together}) > 5
    for x in random_logprobs(10, 4):
        response = chat(x)
        expected = predictor.predict(response)
        for body in (json.dumps(response), json.dumps(response).encode(), bytearray(json.dumps(response), "utf-8")):
            assert predictor.predict(body) == expected
        if not predictor.schema.uses_top:
            assert predictor.predict(x) == predictor.predict(np.array(x)) == predictor.predict(tuple(x)) == expected


@pytest.mark.parametrize(
    "logprobs",
    [[-1e-300] * 9, [-1e-45, -0.5, -1e-40], [-745.5, -0.0, -9999.0] * 4, [-1e37] * 4, [-0.5, -0.25] * 20],
    ids=str,
)
def test_a_host_that_has_numpy_raise_gets_the_same_verdicts(predictor: QualityPredictor, logprobs: list[float]) -> None:
    forms = [logprobs, chat(logprobs), json.dumps(chat(logprobs)).encode()]
    before = [predictor.predict(form) for form in forms]
    with np.errstate(all="raise"):
        assert [predictor.predict(form) for form in forms] == before
        assert predictor.predict_many(forms * 40) == predictor.predict_many(forms * 40)
        assert predictor.signals(forms[0]).confidence is not None
        parse_response(forms[1])


def test_a_response_of_another_model_warns_where_the_call_stands(predictor: QualityPredictor) -> None:
    other = chat([-0.5, -0.25], model="gpt-x")
    for judge in (predictor.predict, lambda response: predictor.predict_many([response])[0]):
        with pytest.warns(UserWarning, match="gpt-x") as caught:
            assert "gpt-x" in judge(other).reason
        assert caught[0].filename == __file__
    with pytest.raises(ContractMismatch, match="gpt-x"):
        QualityPredictor(predictor.checkpoint, on_mismatch="refuse").predict(json.dumps(other))


@pytest.mark.parametrize(
    "calls", [{"refusal": "I cannot."}, {"tool_calls": [{"id": "1", "function": {"name": "f"}}]}, {"function_call": {}}]
)
def test_a_refusal_or_a_tool_call_is_not_scored_in_whatever_form_it_comes(
    predictor: QualityPredictor, calls: dict[str, Any]
) -> None:
    ended = "stop" if "refusal" in calls else "tool_calls"
    said, bare = chat([-0.5, -0.25]), chat([-0.5])
    said["choices"][0] |= {"message": {"content": None if "refusal" in calls else "Let me", **calls}}
    said["choices"][0]["finish_reason"] = ended
    bare["choices"][0] |= {"message": {"content": None, **calls}, "finish_reason": ended, "logprobs": None}
    forms: list[Any] = [said, json.dumps(said), parse_response(said)]
    if "refusal" not in calls:
        chunk = {"choices": [{"delta": {"tool_calls": [{"index": 0}]}, "logprobs": said["choices"][0]["logprobs"]}]}
        forms += [bare, json.dumps(bare), [chunk]]
        forms.append(Call(id="c", logprobs=np.float32([-0.5]), finish_reason="tool_calls"))
    for form in forms:
        with pytest.raises(InvalidResponse, match=r"is a (refusal|tool call).* leave (refusals|tool calls) out"):
            predictor.predict(form)


def test_an_answer_of_a_token_or_two_says_so(predictor: QualityPredictor) -> None:
    for logprobs, why in (([-0.5], "has 1 token,"), ([-0.5, -0.25], "has 2 tokens,"), ([-0.5, -0.25, -0.5], "")):
        bare = logprobs if not predictor.schema.uses_top else chat(logprobs)
        for response in (bare, json.dumps(chat(logprobs))):
            verdict = predictor.predict(response)
            assert why in verdict.reason
            assert bool(why) is ("on which a score rests weakly" in verdict.reason)
            assert verdict.score is not None
            assert predictor.predict_many([response]) == [verdict]


def test_what_servers_write_that_have_no_numbers_is_scored_and_said() -> None:
    predictor = QualityPredictor.load(on_mismatch="ignore")
    zeros, unknown = "log-probabilities are 0, as servers write", "a log-probability is -9999, as servers write"
    for answer, said in (([0.0] * 5, zeros), ([-0.1, -9999.0], unknown), ([-0.1, -9999.0] + [-0.1] * 30, unknown)):
        assert said in predictor.predict(answer).reason
        assert said in predictor.predict(json.dumps(chat(answer))).reason
        assert said in predictor.predict_many([answer] * 20)[7].reason
    for answer in ([0.0] * 4, [0.0] * 4 + [-0.1], [-0.1, -900.0, -0.1]):  # a short answer may be certain
        assert "as servers write" not in predictor.predict(answer).reason


def test_the_reason_says_what_of_a_response_was_not_scored(predictor: QualityPredictor) -> None:
    two, filtered, limited = chat([-0.5, -0.25]), chat([-0.5, -0.25]), chat([-0.5, -0.25])
    two["choices"] *= 2
    limited["choices"][0]["finish_reason"] = "length"
    filtered["choices"][0]["finish_reason"] = "content_filter"
    cut = [{"choices": [{"delta": {"content": "aa"}, "logprobs": filtered["choices"][0]["logprobs"]}]}]
    cases = (two, "several answers"), (filtered, "content filter"), (limited, "its token limit"), (cut, "is it cut?")
    for response, why in cases:
        verdict = predictor.predict(response)
        assert why in verdict.reason
        assert why in predictor.predict_many([response])[0].reason
        assert verdict.score == predictor.predict(chat([-0.5, -0.25])).score
    assert "several answers" in predictor.predict(json.dumps(two)).reason


def test_alternatives_that_are_not_read_cannot_spoil_a_body(predictor: QualityPredictor) -> None:
    response = chat([-0.5, -0.25])
    response["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = [{"token": "b"}]
    if predictor.schema.uses_top:
        with pytest.raises(InvalidResponse, match="top_logprobs"):
            predictor.predict(json.dumps(response))
    else:
        verdict = predictor.predict(json.dumps(response))
        assert "top_logprobs cannot be read" in verdict.reason
        assert verdict.score == predictor.predict([-0.5, -0.25]).score


@pytest.mark.parametrize(
    "bad", [[], [-0.5, True], [False], ["-0.5"], [0.5], [float("nan")], [-np.inf], [None], [-1e39]]
)
def test_a_list_that_cannot_be_scored_is_refused(predictor: QualityPredictor, bad: list[Any]) -> None:
    with pytest.raises(InvalidResponse):
        predictor.predict(bad)


def test_a_checkpoint_made_for_other_features_is_refused(tmp_path: Path) -> None:
    names = list(FULL.names)
    for number, stated in enumerate((names[::-1], names[:-1], [*names[:-1], "full.modes"], None)):
        made = tiny_quality(tmp_path / f"{number}", contract={"schema": "full", "features": stated})
        with pytest.raises(ContractMismatch, match=r"was made for other 'full' features .* train it again"):
            QualityPredictor(made)
    QualityPredictor(tiny_quality(tmp_path / "right", contract={"schema": "full", "features": names}))


def test_a_checkpoint_of_an_unnamed_model_cannot_promise_to_refuse(tmp_path: Path) -> None:
    unnamed = tiny_quality(tmp_path / "unnamed", generator=None)
    with pytest.raises(ContractMismatch, match=r"a model that is not named, .* take on_mismatch 'warn'"):
        QualityPredictor(unnamed, on_mismatch="refuse")
    assert QualityPredictor(unnamed).predict(chat([-0.5, -0.25, -0.1], model="any")).reason == ""


def test_what_a_response_does_not_say_is_not_held_against_it_and_a_mode_that_it_says_is(tmp_path: Path) -> None:
    refusing = QualityPredictor(tiny_quality(tmp_path / "c"), on_mismatch="refuse")  # org/model, raw
    assert refusing.predict([-0.5, -0.25]).score == refusing.predict(chat([-0.5, -0.25], model="org/model")).score
    answer = parse_response(chat([-0.5, -0.25, -0.1], model="org/model"))
    processed = dataclasses.replace(answer, logprobs_mode="processed")
    with pytest.raises(ContractMismatch, match="processed log-probabilities, checkpoint trained on raw ones"):
        refusing.predict(processed)
    noting = QualityPredictor(refusing.checkpoint, on_mismatch="note")
    assert "trained on raw ones" in noting.predict(processed).reason
    assert QualityPredictor(refusing.checkpoint, on_mismatch="ignore").predict(processed).reason == ""
    with pytest.raises(ValueError, match="expected one of warn, refuse, ignore, note"):
        QualityPredictor(refusing.checkpoint, on_mismatch="refused")  # type: ignore[arg-type]


def headed(path: Path, *, output: str, thresholds: dict[str, float], **contract: Any) -> QualityPredictor:
    """A checkpoint of one head of that name."""
    X = np.zeros((2, len(FULL.names)), np.float32)
    model = linear_graph(
        input_name="features",
        mean=np.zeros(len(FULL.names)),
        scale=np.ones(len(FULL.names)),
        weights=np.zeros((len(FULL.names), 1)),
        intercept=np.zeros(1),
        outputs=[output],
        impute=True,
    )
    stated = {"schema": "full", "features": list(FULL.names), **contract}
    draft = Draft(kind="quality", contract=stated, generator=Generator("m"), thresholds=thresholds)
    given = {output: np.full((2, 1), 0.5)}
    saved = save_checkpoint(path, draft, model=model, golden_inputs={"features": X}, expected=given, card="test")
    return QualityPredictor(saved)


@pytest.mark.parametrize("columns", [[2.0], [float("nan")], [0.1, 0.9], []])
def test_a_graph_that_does_not_give_a_probability_a_row_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: list[float]
) -> None:
    broken = headed(tmp_path / "c", output="correct", thresholds={"flag": 0.5})
    made = lambda _, inputs: {"correct": np.array([columns] * len(inputs["features"]), np.float32)}  # noqa: E731
    monkeypatch.setattr(GraphSession, "run", made)
    with pytest.raises(ContractMismatch, match=r"'correct'.* expected"):
        broken.predict([-0.5] * 3)
    with pytest.raises(ContractMismatch, match=r"'correct'.* expected"):
        broken.predict_many([[-0.5] * 3] * 9)


def test_thresholds_count_for_the_head_that_is_there(tmp_path: Path) -> None:
    both = {"flag": 0.5, "critical": 0.5}
    cases = (
        ("critical", both, None, 0.5, True),  # from the threshold on
        ("critical", {"critical": 0.500001}, None, 0.5, False),
        ("correct", both, 0.5, None, False),  # below the threshold only
        ("correct", {"flag": 0.500001}, 0.5, None, True),
        ("correct", {}, 0.5, None, None),
    )
    for number, (output, thresholds, *expected) in enumerate(cases):
        verdict = headed(tmp_path / f"h{number}", output=output, thresholds=thresholds).predict([-0.5] * 3)
        assert [verdict.score, verdict.critical, verdict.flagged] == expected
    for number, scale in enumerate(([3, 3], [3, 1], [1], None)):
        with pytest.raises(ContractMismatch, match="is no whole predictor"):
            headed(tmp_path / f"{number}", output="correct", thresholds={}, scales={"quality": scale})
