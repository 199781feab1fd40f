"""`POST /v1/success` gives the library's estimates, bounded, and refuses what is no request."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving_clients
from made_once import MadeOnce
from served import KEY
from serving_clients import Served, serving
from test_success import HARD_REQUEST, by_words

from metaprobe.production.http.settings import Settings, SettingsError
from metaprobe.production.http.success import MAX_CANDIDATES
from metaprobe.routing.success_estimator import SuccessEstimator

callers_keys = serving_clients.callers_keys
checkpoint = serving_clients.checkpoint
upstream = serving_clients.upstream


@pytest.fixture(scope="module")
def success(made_once: MadeOnce) -> Path:
    return made_once("success by words", by_words)


@pytest.fixture(scope="module")
def server(checkpoint: Path, success: Path) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", KEY)
        with serving(checkpoint, success=success, max_age=100_000.0) as client:
            yield client


def test_the_estimates_are_those_of_the_library(server: Served, success: Path) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": HARD_REQUEST}], "candidates": ["small", "x"]}
    told = server.post("/v1/success", asked)
    assert told.status_code == 200
    own = [one.to_dict() for one in SuccessEstimator.load(success).estimate(asked["messages"], asked["candidates"])]
    assert told.json() == {"estimates": json.loads(json.dumps(own))}
    assert [one["evidence"] for one in told.json()["estimates"]] == ["measured", "insufficient"]


def test_another_serving_version_is_insufficient(server: Served) -> None:
    told = server.post("/v1/success", {"messages": HARD_REQUEST, "versions": {"small": "v9"}}).json()["estimates"]
    assert {one["candidate"]: one["evidence"] for one in told} == {"small": "insufficient", "large": "measured"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_request"),
        ({"messages": []}, 400, "invalid_request"),
        ({"messages": [{"role": "user"}]}, 400, "invalid_request"),
        ({"messages": 3}, 400, "invalid_request"),
        ({"messages": "x", "candidate": "small"}, 400, "invalid_request"),
        ({"messages": "x", "candidates": ["a"] * (MAX_CANDIDATES + 1)}, 413, "batch_too_large"),
    ],
)
def test_what_is_no_request_is_refused(server: Served, body: Any, status: int, code: str) -> None:
    answer = server.post("/v1/success", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_server_without_an_estimator_says_so(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", KEY)
    with serving(checkpoint) as client:
        answer = client.post("/v1/success", {"messages": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_estimator")


def test_an_age_without_an_estimator_is_refused(checkpoint: Path) -> None:
    with pytest.raises(SettingsError, match="success"):
        Settings(checkpoint=checkpoint, max_age=3.0)
