"""What the features do not need of a response is not read: alternatives, nine tenths of it, are left alone."""

from dataclasses import asdict
from typing import Any, NoReturn

import numpy as np
import pytest
from answer_formats import CORPUS, REFUSED
from tiny import tiny_quality

from metaprobe.probes.quality import TOGETHER_FROM, QualityPredictor
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.openai_format import parse_response
from metaprobe.records.reading import columns_of_each


class Untouched(list[Any]):
    """Alternatives that nobody may look at."""

    def _fail(self, *_: object) -> NoReturn:
        raise AssertionError("alternatives were read that no feature needs")

    __iter__ = __len__ = __getitem__ = _fail  # type: ignore[assignment]


def completion(top: list[Any], *, count: int = 4) -> dict[str, Any]:
    entries = [{"token": f" w{i}", "logprob": -0.5 - i, "top_logprobs": top} for i in range(count)]
    message = {"content": "".join(entry["token"] for entry in entries)}
    return {"choices": [{"message": message, "logprobs": {"content": entries}, "finish_reason": "stop"}]}


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> QualityPredictor:
    return QualityPredictor(tiny_quality(tmp_path_factory.mktemp("checkpoints") / "tiny"), on_mismatch="ignore")


def test_alternatives_that_no_feature_needs_are_not_touched(predictor: QualityPredictor) -> None:
    response, expected = completion(Untouched()), predictor.predict(completion([]))
    assert predictor.predict(response) == expected
    assert predictor.predict_many([response] * TOGETHER_FROM) == [expected] * TOGETHER_FROM
    with pytest.raises((AssertionError, InvalidResponse)):
        parse_response(response)


@pytest.mark.parametrize("name", sorted(set(CORPUS) - REFUSED))
def test_every_format_says_the_same_without_its_alternatives(name: str) -> None:
    def said(top: bool) -> dict[str, Any]:
        parsed = asdict(parse_response(CORPUS[name], top=top))
        return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in parsed.items()}

    without = said(top=False)
    assert without == said(top=True) | {"top_logprobs": None}


@pytest.mark.parametrize("count", [1, TOGETHER_FROM - 1, TOGETHER_FROM, TOGETHER_FROM + 1])
def test_few_responses_and_many_get_the_verdicts_that_each_gets_alone(predictor: QualityPredictor, count: int) -> None:
    responses = [completion([], count=2 + i) for i in range(count)]
    assert predictor.predict_many(responses) == [predictor.predict(response) for response in responses]


def test_entries_of_mixed_kinds_and_with_missing_names_are_read_and_what_is_no_object_is_not() -> None:
    class Entry(dict[str, Any]):
        pass

    values = [{"token": "a", "logprob": -1.0}, Entry(token="b")]
    assert columns_of_each(values, ("token", "logprob")) == [["a", "b"], [-1.0, None]]
    assert columns_of_each([{"token": "a"}, {}], ("token",)) == [["a", None]]
    assert columns_of_each([], ("token",)) == [[]]
    assert columns_of_each([{"token": "a"}, None], ("token",)) is None
    assert columns_of_each(["a", "b"], ("token",)) is None


def test_a_clients_objects_are_read_as_dictionaries_are(predictor: QualityPredictor) -> None:
    chat = pytest.importorskip("openai.types.chat")
    known = {"id": "c", "created": 1, "model": "m", "object": "chat.completion"}
    alternative = {"token": "x", "logprob": -9.0, "bytes": None}
    plain = {**known, **completion([alternative])}
    plain["choices"][0] |= {"index": 0, "message": {"role": "assistant", **plain["choices"][0]["message"]}}
    for entry in plain["choices"][0]["logprobs"]["content"]:
        entry["bytes"] = None
    client_object = chat.ChatCompletion.model_validate(plain)
    assert predictor.predict(client_object) == predictor.predict(plain)
    parsed = parse_response(client_object)
    assert parsed.tokens == (" w0", " w1", " w2", " w3")
    assert parsed.top_logprobs is not None
    assert parsed.top_logprobs.shape == (4, 1)
