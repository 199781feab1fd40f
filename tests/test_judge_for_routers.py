"""The example's judge answers what Switchyard and vLLM's semantic router ask, by the schemas that they check."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_once import MadeOnce
from test_success import EASY_REQUEST, HARD_REQUEST, by_words

import metaprobe
from metaprobe.routing.success_choice import cheapest_meeting
from metaprobe.routing.success_estimator import SuccessEstimator

EXAMPLES = Path(__file__).parents[1] / "examples"
PRICES = {"small": 1.0, "large": 3.0}
TARGET = 0.6
RULE_OF_BOUNDARY = {"supported": "SUP-", "uncertain": "UNC-", "unsupported": "LIM-", "unmatched": "none"}
"""How the rule begins that Switchyard 0.3.0 accepts beside each boundary; it discards every other verdict."""


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        import judge_for_routers

        yield judge_for_routers


@pytest.fixture(scope="module")
def estimator(made_once: MadeOnce) -> SuccessEstimator:
    loaded = metaprobe.load(made_once("success by words", by_words))
    assert isinstance(loaded, SuccessEstimator)
    return loaded


@pytest.fixture(scope="module")
def judge(example: Any, estimator: SuccessEstimator) -> Iterator[str]:
    with example.judge_on_loopback(estimator, PRICES, TARGET) as url:
        yield url


def verdict(example: Any, url: str, model: str, *texts: str) -> tuple[int, dict[str, Any]]:
    """Returns the status and what the judge says to a system prompt and the user's messages."""
    messages = [{"role": "system", "content": "prove that the forecast is JSON"}]
    messages += [{"role": "user", "content": text} for text in texts]
    status, told = example.post(url, {"model": model, "messages": messages, "max_tokens": 128, "temperature": 0})
    return status, json.loads(told["choices"][0]["message"]["content"]) if status == 200 else told


@pytest.mark.parametrize("request_text", [HARD_REQUEST, EASY_REQUEST])
def test_switchyard_gets_the_estimate_of_the_user_messages_alone(
    example: Any, judge: str, estimator: SuccessEstimator, request_text: str
) -> None:
    status, told = verdict(example, judge, "success/small", request_text)
    (own,) = estimator.estimate([{"role": "user", "content": request_text}], ["small"])
    assert status == 200
    assert set(told) == {"crux", "primary_rule", "capability_boundary", "p_solve"}
    assert told["p_solve"] == own.p
    assert told["crux"].strip()
    assert told["primary_rule"].startswith(RULE_OF_BOUNDARY[told["capability_boundary"]])


def test_without_an_estimate_switchyard_gets_no_verdict(example: Any, judge: str) -> None:
    status, told = verdict(example, judge, "success/unknown", HARD_REQUEST)
    assert status == 200
    assert list(told) == ["insufficient"]
    assert "unknown" in told["insufficient"]


@pytest.mark.parametrize("request_text", [HARD_REQUEST, EASY_REQUEST])
def test_the_semantic_router_gets_the_choice_of_the_library_and_its_reason(
    example: Any, judge: str, estimator: SuccessEstimator, request_text: str
) -> None:
    status, told = verdict(example, judge, "success/cheapest", request_text)
    own = cheapest_meeting(estimator.estimate([{"role": "user", "content": request_text}]), PRICES, TARGET)
    assert status == 200
    assert told == {"label": own.candidate, "rationale": own.reason}
    assert told["label"] in PRICES
    assert told["rationale"].strip()


def test_the_semantic_router_gets_the_dearest_model_where_no_model_has_an_estimate(example: Any, judge: str) -> None:
    _, told = verdict(example, judge, "success/cheapest", "WHO, WHEN, WHERE? 1 2 3 4 5 6\n" * 40)
    assert told["label"] == "large"


@pytest.mark.parametrize("body", [[], {"model": "success/small"}, {"model": "success/small", "messages": []}])
def test_what_is_no_request_is_refused(example: Any, judge: str, body: Any) -> None:
    status, told = example.post(judge, body)
    assert status == 400
    assert "expected" in told["error"]["message"] or "user" in told["error"]["message"]


def test_the_real_switchyard_takes_the_weak_model_where_it_meets_the_target(
    example: Any, judge: str, tmp_path: Path
) -> None:
    switchyard = pytest.importorskip("switchyard_rust.server", reason="nemo-switchyard is not installed")
    settings = {"url": judge, "judge": "success/", "weak": "small", "strong": "large", "target": TARGET}
    (tmp_path / "routes.toml").write_text(example.SWITCHYARD.format(**settings))
    with switchyard.Server(tmp_path / "routes.toml") as server:
        taken = [
            example.post(server.base_url, {"model": "routed", "messages": [{"role": "user", "content": text}]})[1]
            for text in (HARD_REQUEST, EASY_REQUEST)
        ]
        (tmp_path / "unknown.toml").write_text(example.SWITCHYARD.format(**settings | {"weak": "unknown"}))
    said = [one["choices"][0]["message"]["content"] for one in taken]
    assert said == ["said by large", "said by small"]
    with switchyard.Server(tmp_path / "unknown.toml") as server:
        _, told = example.post(server.base_url, {"model": "routed", "messages": [{"role": "user", "content": "greet"}]})
    assert told["choices"][0]["message"]["content"] == "said by large"
