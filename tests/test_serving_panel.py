"""`POST /v1/panel` says which of several answers to keep, and refuses what is no panel."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving_clients
from made_once import MadeOnce
from panel_worlds import biased_vote, completion, trained
from served import KEY
from serving_clients import Served, serving

from metaprobe.production.http.panels import MAX_PANEL_ANSWERS, PanelDesk
from metaprobe.routing.panel.asking import Panel

callers_keys = serving_clients.callers_keys
checkpoint = serving_clients.checkpoint
upstream = serving_clients.upstream


@pytest.fixture(scope="module")
def panel(made_once: MadeOnce) -> Path:
    return trained(biased_vote, made_once)


@pytest.fixture(scope="module")
def server(checkpoint: Path, panel: Path) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", KEY)
        with serving(checkpoint, panel=panel) as client:
            yield client


def test_the_verdict_is_that_of_the_library(server: Served, panel: Path) -> None:
    answers = [completion("It is 12"), completion("It is 7"), completion("It is 12")]
    told = server.post("/v1/panel", {"responses": answers, "question": "What is 5 + 7?"})
    assert told.status_code == 200
    own = Panel.load(panel).judge(answers, question="What is 5 + 7?").to_dict()
    assert told.json() == json.loads(json.dumps(own))


def test_the_choices_of_one_response_and_plain_texts_are_panels(server: Served) -> None:
    several = server.post("/v1/panel", completion("It is 12", "It is 7", "It is 12")).json()
    assert sum(len(one["members"]) for one in several["classes"]) == 3
    texts = server.post("/v1/panel", {"responses": ["It is 12", "It is 12"]}).json()
    assert texts["classes"][0]["members"] == [0, 1]
    assert "log-probabilities" in texts["reason"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[1, 2]", 400, "invalid_request"),
        ({"responses": []}, 400, "invalid_request"),
        ({"responses": ["a", "b"], "agents": ["one"]}, 400, "invalid_request"),
        ({"responses": ["a", "b"], "agents": [1, 2]}, 400, "invalid_request"),
        ({"responses": ["a"] * (MAX_PANEL_ANSWERS + 1)}, 413, "batch_too_large"),
        (completion(*["a"] * (MAX_PANEL_ANSWERS + 1)), 413, "batch_too_large"),
    ],
)
def test_what_is_no_panel_is_refused(server: Served, body: Any, status: int, code: str) -> None:
    answer = server.post("/v1/panel", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_an_answer_that_cannot_be_read_counts_against_the_others(server: Served) -> None:
    told = server.post("/v1/panel", {"responses": [completion("It is 12"), None, {"choices": []}, 7]}).json()
    assert told["kept"] == 0
    assert "3 of 4 answers" in told["reason"]


def test_a_proxied_answer_with_several_choices_says_which_to_keep(
    checkpoint: Path, panel: Path, upstream: tuple[Any, str]
) -> None:
    with serving(checkpoint, panel=panel, upstream=upstream[1]) as client:
        answer = client.chat(n=3, logprobs=True)
        alone = client.chat(n=1)
    told = answer.model_extra["metaprobe"]
    assert len(told["choices"]) == 3
    assert told["panel"] == json.loads(json.dumps(Panel.load(panel).judge(answer).to_dict()))
    assert "panel" not in alone.model_extra["metaprobe"]


def test_a_server_without_a_panel_says_so(checkpoint: Path) -> None:
    with serving(checkpoint) as client:
        answer = client.post("/v1/panel", {"responses": ["a", "b"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_panel")


def test_json_as_python_writes_it_costs_one_answer(server: Served) -> None:
    broken = completion("It is 7")
    broken["choices"][0]["logprobs"]["content"][0]["logprob"] = float("nan")
    cut = completion("Fine \ud800! It is 12")  # half of a character
    body = json.dumps({"responses": [broken, cut, completion("It is 12")], "dimension": None}).encode()
    told = server.post("/v1/panel", body)
    assert told.status_code == 200
    assert told.json()["classes"][0]["members"] == [1, 2]


def test_what_stands_beside_the_choices_is_held_once(panel: Path) -> None:
    desk = PanelDesk(Panel.load(panel))
    body = json.dumps({**completion(*["It is 12"] * MAX_PANEL_ANSWERS), "beside": "x" * (1 << 20)}).encode()
    tracemalloc.start()
    desk.judge(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * len(body)
