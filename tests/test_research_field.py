"""Tests that the field's ways beside the panel do what their papers say."""

import numpy as np
import pytest
from panel_worlds import panels

from metaprobe.routing.panel.model_rows import PANEL_STATE, PICKS, AgentProfiles
from metaprobe.training.panel.labelled_panels import Panels, agents_in
from metaprobe.training.panel.played_panels import PlayedPanels
from research.panel.field import (
    KEEPS,
    batch_stops,
    beta_stops,
    esc_stops,
    tuned_window,
    votes_of,
)


def played(forms: list[list[int]], right: list[list[int]] | None = None) -> PlayedPanels:
    """Returns one order of questions whose answers are of these classes; `right`: whether the vote is right so far."""
    n, K = len(forms), len(forms[0])
    counts = np.zeros((1, n, K, 3), dtype=np.int64)
    for i, row in enumerate(forms):
        for size in range(1, K + 1):
            seen = sorted((row[:size].count(one) for one in set(row[:size])), reverse=True)
            same = next((at for at in range(size) if row[size - 1 - at] != row[size - 1]), size)
            counts[0, i, size - 1] = seen[0], seen[1] if len(seen) > 1 else 0, same
    votes = np.array(right if right is not None else np.ones((n, K)))[None].astype(float)
    states = np.zeros((1, n, K, len(PANEL_STATE)), dtype=np.float32)
    groups = np.array([f"q{i}" for i in range(n)])
    return PlayedPanels(groups, dict.fromkeys(PICKS, votes), states, counts, None, np.full(n, K))


def test_beta_stopping_ends_where_the_majority_is_sure() -> None:
    held = played([[0, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 1, 0, 1]])
    assert beta_stops(held)[0].tolist() == [3, 7]  # four of four are 0.97 sure, three of three 0.94


def test_esc_looks_at_windows_that_do_not_overlap() -> None:
    held = played([[1, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    assert esc_stops(held, 2)[0].tolist() == [5, 1]
    assert esc_stops(held, 3)[0].tolist() == [5, 5]


def test_escs_window_is_the_smallest_that_is_accurate_enough() -> None:
    forms = [[0, 0, 1, 1, 1, 1]] * 4
    right = [[0, 0, 0, 1, 1, 1]] * 4
    assert tuned_window(played(forms, right), 0.9) == 3
    assert tuned_window(played(forms, right), 0.0) == 2


def test_a_batch_spends_its_mean_on_the_questions_that_are_least_sure() -> None:
    sure, unsure = [0] * 8, [0, 1, 0, 1, 0, 1, 0, 1]
    at = batch_stops(played([sure, unsure, sure, unsure]), 4.0)[0]
    assert (at + 1).sum() == 16
    assert at[0] < at[1]


@pytest.fixture
def voted() -> tuple[AgentProfiles, Panels]:
    form = [[0, 0, 1, 1, 1, 1, 1, 1]] * 8
    data = panels(form, [[1, 1, 0, 0, 0, 0, 0, 0]] * 8)
    return agents_in(data), data


def test_a_vote_of_the_surest_keeps_the_few_that_are_sure(voted: tuple[AgentProfiles, Panels]) -> None:
    agents, data = voted
    surest = np.array([[-0.1] * 2 + [-0.6] * 6] * 8)
    votes = votes_of(data, agents, {"mean": surest[None]})
    assert set(votes.right) == {f"mean, {keep}" for keep in KEEPS}
    best = votes.tuned()
    assert votes.right["mean, top 10 %"][8][best["mean, top 10 %"]].mean() == 1
    assert votes.right["mean, all"][8][-1].mean() == 0, "the widest T is nearly a plain vote"
    assert votes.right["mean, all"][8][best["mean, all"]].mean() == 1
