"""Figures of tasks left out are means over runs that have answers enough, and the layer that tells most is chosen."""

import numpy as np
import pytest

from metaprobe.training.recipes.travel import TasksLeftOut, centred, choose_layer, parts_of, standardised


def left_out(*runs: tuple[str, str, list[int], list[float]]) -> TasksLeftOut:
    """Makes scores of tasks left out from (run, task, labels, scores); the other score is the same for all answers."""
    y = np.concatenate([labels for _, _, labels, _ in runs]).astype(np.int64)
    score = np.concatenate([scores for *_, scores in runs])
    names, tasks = (np.repeat([run[i] for run in runs], [len(run[2]) for run in runs]) for i in (0, 1))
    return TasksLeftOut(y, names, tasks, {"ours": score, "other": np.zeros(len(y))}, (1,))


HALF = [0] * 5 + [1] * 5
RISING = list(range(10))
FOUND = left_out(
    ("a", "sums", HALF, RISING),
    ("b", "sums", HALF, RISING[::-1]),
    ("c", "dates", HALF, RISING),
    ("few", "dates", [0] * 5 + [1] * 4, RISING[:9]),
)


def test_only_runs_with_five_answers_of_either_kind_count() -> None:
    assert FOUND.counted() == ["a", "b", "c"]
    assert FOUND.counted(FOUND.tasks == "sums") == ["a", "b"]
    assert FOUND.counted(FOUND.runs == "few") == []


def test_the_mean_is_over_runs_and_the_gain_over_another_score_is_of_the_same_runs() -> None:
    whole = FOUND.auroc("ours")
    assert FOUND.within("ours").tolist() == [1.0, 0.0, 1.0]
    assert (whole.estimate, whole.n, whole.groups) == (pytest.approx(2 / 3), 30, 2)
    assert whole.low <= 0.5 + 1e-9
    assert whole.high == 1.0  # whole tasks are drawn: two of dates
    gain = FOUND.gains("ours", "other")
    assert gain.estimate == pytest.approx(2 / 3 - 0.5)
    dates = FOUND.gains("ours", "other", FOUND.tasks == "dates")
    assert (dates.estimate, dates.low, dates.high, dates.groups) == (0.5, 0.5, 0.5, 1)


@pytest.mark.parametrize("informative", [3, 7])
def test_the_layer_that_orders_answers_of_other_tasks_is_chosen_wherever_it_lies(informative: int) -> None:
    rng = np.random.default_rng(1)
    tasks = np.array([f"t{i % 12}" for i in range(360)])
    y = rng.integers(0, 2, 360)
    inputs = {layer: rng.normal(size=(360, 4)) for layer in (3, 5, 7)}
    inputs[informative][:, 2] += 2.0 * y
    assert choose_layer(inputs, y, tasks, tasks, np.arange(360)) == informative


def test_states_are_less_the_mean_of_their_run_and_tasks_are_dealt_out_whole() -> None:
    runs = np.array(["a", "b", "a", "b"])
    found = centred(np.array([[1.0, 5.0], [10.0, 0.0], [3.0, 7.0], [20.0, 0.0]]), runs)
    assert found.tolist() == [[-1.0, -1.0], [-5.0, 0.0], [1.0, 1.0], [5.0, 0.0]]
    tasks = np.array([f"t{i % 10}" for i in range(40)])
    parts = parts_of(tasks, 5)
    assert [len(set(parts[tasks == task])) for task in np.unique(tasks)] == [1] * 10
    assert [len(set(tasks[parts == part])) for part in range(5)] == [2] * 5
    score = standardised(np.array([1.0, 10.0, 3.0, 30.0]), runs)
    assert score[[0, 2]].sum() == pytest.approx(score[[1, 3]].sum()) == pytest.approx(0.0)
    assert score[2] - score[0] == pytest.approx(score[3] - score[1])
