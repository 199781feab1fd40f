"""Tests of tokens at equal accuracy, and of asking in simulated time, which research/panel/tokens.py measures."""

from pathlib import Path

import numpy as np
import pytest
from made_once import MadeOnce
from panel_worlds import biased_vote, trained

from metaprobe.records.types import Call, Item, Usage
from metaprobe.routing.panel.asking import Panel
from research.panel.tokens import PANEL, SETTLED, Curve, asked, equal_accuracy, plain_vote


@pytest.fixture(scope="module")
def sampler(made_once: MadeOnce) -> Path:
    return trained(biased_vote, made_once)


def calls(*answers: tuple[str, int]) -> list[Call]:
    """Returns answers with their numbers of tokens."""
    return [
        Call(id=f"c{at}", text=text, finish_reason="stop", usage=Usage(5, tokens))
        for at, (text, tokens) in enumerate(answers)
    ]


def test_samples_that_cannot_change_the_vote_are_cancelled_in_mid_answer(sampler: Path) -> None:
    vote = plain_vote(Panel.load(sampler))
    came = calls(("7", 10), ("7", 20), ("7", 30), ("7", 40), ("8", 500), ("9", 600))
    client, why = asked(vote, Item("q", "How many?", check="number"), came, together=6)
    assert why == SETTLED
    assert client.whole == 1200
    assert client.written == 10 + 20 + 30 + 40 + 2 * 40, "the last two had 40 seconds, and a token takes one"


def test_samples_that_may_change_the_vote_are_waited_for(sampler: Path) -> None:
    vote = plain_vote(Panel.load(sampler))
    came = calls(("7", 10), ("7", 20), ("8", 30), ("8", 40), ("8", 500), ("7", 600))
    client, why = asked(vote, Item("q", "How many?", check="number"), came, together=6)
    assert why != SETTLED
    assert client.written == client.whole == 1200


def curve(*settings: tuple[float, float], n: int = 40) -> Curve:
    """Returns a curve of settings (accuracy, tokens) that are alike on all questions."""
    right, tokens = (np.repeat(np.array(values)[:, None], n, axis=1) for values in zip(*settings, strict=True))
    return Curve(right, tokens)


def test_two_settings_are_mixed_to_the_accuracy_with_the_fewest_tokens() -> None:
    one = curve((0.4, 10.0), (0.5, 100.0), (0.8, 50.0))
    assert one.mixture(0.6, np.ones(40)) == (0, 2, pytest.approx(0.5), True)
    assert one.mixture(0.9, np.ones(40)) == (2, 2, 1.0, False)


def test_a_way_that_is_as_accurate_for_half_of_the_tokens_saves_half_of_them() -> None:
    n, fold = 40, np.arange(40) % 4
    beta = np.full(n, 0.6), np.full(n, 60.0)
    ways = {PANEL: curve((0.4, 10.0), (0.8, 50.0)), "vote": curve((0.5, 20.0), (0.7, 100.0))}
    ways["worse"] = curve((0.4, 10.0), (0.5, 50.0))
    found = equal_accuracy(ways, beta, fold, [f"q{i}" for i in range(n)])["ways"]
    assert found[PANEL]["saved"][0] == found[PANEL]["saved_in_hindsight"][0] == 0.5
    assert found[PANEL]["over"][0] == pytest.approx(0.0)
    assert found["vote"]["panel_saved"][0] == 0.5
    assert found["vote"]["saved"][0] == 0.0
    assert (found["worse"]["reached"], found["worse"]["saved_in_hindsight"][0]) == (0, -1.0)
    assert found["worse"]["over"][0] == pytest.approx(-0.1)


def test_settings_are_chosen_on_the_other_folds() -> None:
    n, fold = 40, np.arange(40) // 20
    right = np.zeros((2, n))
    right[0, fold == 0] = 1.0  # the cheap setting is right on the first fold alone
    right[1] = 1.0
    one = Curve(right, np.repeat([[10.0], [50.0]], n, axis=1))
    beta = np.ones(n), np.full(n, 50.0)
    found = equal_accuracy({PANEL: one}, beta, fold, [f"q{i}" for i in range(n)])["ways"][PANEL]
    assert found["over"][0] == -0.5, "it is taken for the second fold, by the first"
    assert found["saved"][0] == pytest.approx(0.4)
    assert found["saved_in_hindsight"][0] == 0.0
