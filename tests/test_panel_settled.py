"""Tests that samples under way are cancelled in mid-stream as soon as none of them can change which answer is kept."""

import asyncio
import random
from typing import Any

import pytest
from agents_behind import calling
from made_once import MadeOnce
from panel_worlds import biased_vote, completion, trained

from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.model_rows import JOINT, MAJORITY, SINGLE, SUREST, WEIGHTED
from metaprobe.routing.panel.planner import FIRST_TO, FIXED, Setting

MESSAGES = [{"role": "user", "content": "What is 5 + 7?"}]


@pytest.fixture
def panel(made_once: MadeOnce, monkeypatch: pytest.MonkeyPatch) -> Panel:
    loaded = Panel.load(trained(biased_vote, made_once))
    monkeypatch.setattr(loaded, "pick", MAJORITY)
    return loaded


class Streams:
    """An upstream that writes the words of its answers one after another, each as fast as the others."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.written, self.begun = answers, 0, 0

    async def __call__(self, **_: Any) -> Any:
        answer = self.answers[self.begun]
        self.begun += 1
        for _ in answer.split():
            await asyncio.sleep(0)
            self.written += 1
        return completion(answer, logprob=-0.03)


def words(number: int, length: int) -> str:
    return " ".join(["so"] * length + [f"it is {number}"])


def ask(panel: Panel, client: Streams, at_once: int = 5) -> Any:
    return asyncio.run(panel.ask(client, MESSAGES, model="m", at_most=5, at_once=at_once))


@pytest.mark.parametrize("setting", [Setting(FIXED, 5, 5.0, 1.0), Setting(FIRST_TO, 5, 5.0, 1.0)])
def test_samples_that_cannot_overturn_a_majority_are_cancelled_in_mid_stream(
    panel: Panel, monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    monkeypatch.setattr(panel, "settings", (setting,))
    client = Streams(words(12, 10), words(12, 20), words(12, 30), words(7, 4000), words(7, 4000))
    answered = ask(panel, client)
    assert len(answered.responses) == 3
    assert answered.stopped == "no answer under way can change which is kept"
    assert "it is 12" in answered.response["choices"][0]["message"]["content"]
    assert client.written < 2000, "the two long answers were not written to their end"


def test_a_sample_that_can_still_change_the_choice_is_waited_for(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "settings", (Setting(FIXED, 5, 5.0, 1.0),))
    client = Streams(words(12, 10), words(7, 20), words(12, 30), words(7, 400), words(7, 500))
    answered = ask(panel, client)
    assert len(answered.responses) == 5
    assert "it is 7" in answered.response["choices"][0]["message"]["content"]


@pytest.mark.parametrize("pick", [SINGLE, MAJORITY, WEIGHTED, SUREST])
@pytest.mark.parametrize("knows_calls", [True, False])
def test_what_is_settled_does_not_change_whatever_comes(
    panel: Panel, monkeypatch: pytest.MonkeyPatch, pick: str, knows_calls: bool
) -> None:
    monkeypatch.setattr(panel, "pick", pick)
    monkeypatch.setattr(panel, "knows_calls", knows_calls)
    rng, settled = random.Random(1), 0

    def drawn(*numbers: int, calls: bool = False) -> Any:
        if calls and rng.random() < 0.2:
            return calling(("add", "{}"))
        return completion(words(rng.choice(numbers), 3), logprob=rng.choice([-1e-6, -0.03, -0.3, -5.0]))

    def kept(answers: list[Any]) -> str:
        verdict = panel.judge(answers)
        return next(one.answer for one in verdict.classes if verdict.kept in one.members).split()[-1]

    for _ in range(60):
        came, more = [drawn(7, 7, 7, 12) for _ in range(rng.randint(1, 6))], rng.randint(1, 2)
        if not panel.settled(came, more):
            continue
        settled += 1
        for _ in range(15):
            further = [drawn(7, 12, 99, calls=True) for _ in range(rng.randint(0, more))]
            assert kept([*came, *further]) == kept(came), (came, further)
    assert settled > (0 if pick in (MAJORITY, WEIGHTED) else -1)


def test_a_tie_that_a_surer_answer_would_win_is_not_settled(panel: Panel) -> None:
    assert not panel.settled([completion(words(12, 3), logprob=-0.3)], 1)
    assert panel.settled([completion(words(12, 3), logprob=-0.3)] * 2, 1)


def test_nothing_is_settled_where_classes_are_chosen_by_all_that_is_known(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel, "pick", JOINT)
    assert not panel.settled([completion(words(12, 3), logprob=-0.03)] * 6, 1)


def test_nothing_is_settled_without_an_answer_that_can_be_read(panel: Panel) -> None:
    assert not panel.settled([], 1)
    assert not panel.settled([{"choices": []}], 1)
