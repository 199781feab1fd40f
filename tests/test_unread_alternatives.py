"""Parts of a response that the features do not need are not read: alternatives, nine tenths of it, but for a few
tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from answer_formats import CORPUS, REFUSED
from tiny import tiny_quality

from metaprobe.probes.quality import MIN_BATCH, QualityPredictor
from metaprobe.records.parse import parse_response
from metaprobe.records.response import SAMPLED_TOKENS


class Counted(Mapping[str, Any]):
    """An entry that counts how often its alternatives are read."""

    reads = 0

    def __init__(self, held: Mapping[str, Any]) -> None:
        self._held = held

    def __getitem__(self, name: str) -> Any:
        Counted.reads += name == "top_logprobs"
        return self._held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def completion(top: list[Any], *, count: int = 4) -> dict[str, Any]:
    entries = [{"token": f" w{i}", "logprob": -0.5 - i, "top_logprobs": top} for i in range(count)]
    message = {"content": "".join(entry["token"] for entry in entries)}
    return {"choices": [{"message": message, "logprobs": {"content": entries}, "finish_reason": "stop"}]}


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> QualityPredictor:
    return QualityPredictor(tiny_quality(tmp_path_factory.mktemp("checkpoints") / "tiny"), on_mismatch="ignore")


def test_alternatives_that_no_feature_needs_are_looked_at_for_a_few_tokens_only(predictor: QualityPredictor) -> None:
    response, expected = completion([], count=200), predictor.predict(completion([], count=200))
    content = response["choices"][0]["logprobs"]["content"]
    response["choices"][0]["logprobs"]["content"] = [Counted(entry) for entry in content]
    Counted.reads = 0
    assert predictor.predict(response) == expected
    assert 0 < Counted.reads <= 4 * SAMPLED_TOKENS
    assert predictor.predict_many([response] * MIN_BATCH) == [expected] * MIN_BATCH
    Counted.reads = 0
    parse_response(response)
    assert Counted.reads >= 200


@pytest.mark.parametrize("name", sorted(set(CORPUS) - REFUSED))
def test_every_format_says_the_same_without_its_alternatives(name: str) -> None:
    def said(top: bool) -> dict[str, Any]:
        parsed = asdict(parse_response(CORPUS[name], top=top))
        return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in parsed.items()}

    without = said(top=False)
    assert without == said(top=True) | {"top_logprobs": None}
