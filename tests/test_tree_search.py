"""The search over trees: what is tried, in which order, and what wins; by a grower whose results are made up."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from metaprobe.records.errors import RecordError
from metaprobe.training import trees
from metaprobe.training.folds import Roles
from metaprobe.training.trees import Grown, Trees, fit_trees

NAMES = ("full.mean", "full.std", "first5.min", "terms.lowest3")
SIZES = [(4, 20), (7, 40), (15, 20), (31, 40)]
Y = np.array([0, 1] * 10 + [0] * 20)
ROLES = Roles(train=np.arange(20, 40), selection=np.arange(20), calibration=np.empty(0), test=np.empty(0))  # type: ignore[arg-type]


def ranked(mistakes: int) -> np.ndarray:
    """Scores of the selection rows: so many wrong answers above all right ones, so that AUROC falls a tenth each."""
    scores = np.where(Y[:20] == 1, 1.0, 0.0) + np.arange(20) / 100
    scores[: 2 * mistakes : 2] += 2
    return scores


@dataclass
class MadeUp:
    """Grows nothing: a candidate's scores are those that the test gives for its leaves and what is on top of them."""

    mistakes: dict[tuple[Any, ...], int]
    tried: list[dict[str, Any]] = field(default_factory=list)
    finished: list[tuple[dict[str, Any], int]] = field(default_factory=list)

    def grow(self, parameters: dict[str, Any]) -> Grown:
        self.tried.append(parameters)
        on_top = tuple(name for name in ("scale_pos_weight", "monotone_constraints") if name in parameters)
        scores = ranked(self.mistakes.get((parameters["num_leaves"], *on_top), 5))
        return Grown(parameters, 10 * parameters["num_leaves"], scores)

    def finish(self, parameters: dict[str, Any], rounds: int) -> str:
        self.finished.append((parameters, rounds))
        return "booster"


def searched(
    patch: pytest.MonkeyPatch, mistakes: dict[tuple[Any, ...], int], y: np.ndarray = Y, **more: Any
) -> tuple[MadeUp, Trees]:
    grower = MadeUp(mistakes)
    patch.setattr(trees, "_grower", lambda *given: grower)
    patch.setattr(trees, "_splits", lambda booster: 1)
    patch.setattr(trees, "float32_thresholds", lambda booster: booster)
    given = {"names": NAMES, "seed": 7, **more}
    return grower, fit_trees(np.zeros((40, 4), dtype=np.float32), y, ROLES, **given)


def test_four_sizes_are_tried_on_the_same_settings_and_then_the_signs_of_the_theory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grower, _ = searched(monkeypatch, {}, np.array([0, 1] * 20))
    common = {
        "objective": "binary",
        "metric": "binary_logloss",
        "learning_rate": 0.05,
        "feature_fraction": 0.5,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "lambda_l2": 5.0,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
        "seed": 7,
        "num_threads": 1,
    }
    sizes = [{"num_leaves": leaves, "min_data_in_leaf": least} for leaves, least in SIZES]
    signs = {**sizes[0], "monotone_constraints": [1, 0, 1, -1]}
    assert grower.tried == [{**common, **own} for own in (*sizes, signs)]


@pytest.mark.parametrize("best", range(4))
def test_the_size_that_ranks_the_selection_rows_best_is_finished_with_its_own_rounds(
    best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = SIZES[best][0]
    grower, found = searched(monkeypatch, {(leaves,): 2}, names=("full.std",) * 4)
    [(parameters, rounds)] = grower.finished
    assert (parameters["num_leaves"], rounds) == (leaves, 10 * leaves)
    assert found.selection_auroc == pytest.approx(0.8)
    assert found.parameters == {**parameters, "rounds": rounds}


def test_of_equal_sizes_the_smallest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    grower, _ = searched(monkeypatch, {}, names=("full.std",) * 4)
    assert grower.finished[0][0]["num_leaves"] == 4


@pytest.mark.parametrize(
    ("signed", "kept"),
    [(5, True), (4, True), (6, False)],
    ids=["loses nothing", "gains", "loses"],
)
def test_signs_are_kept_where_they_lose_nothing(signed: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    grower, found = searched(monkeypatch, {(4, "monotone_constraints"): signed})
    assert ("monotone_constraints" in grower.finished[0][0]) == kept
    assert found.selection_auroc == pytest.approx(1 - (signed if kept else 5) / 10)


@pytest.mark.parametrize(("ones", "tried"), [(6, True), (7, False), (14, True), (13, False), (0, False), (20, False)])
def test_weights_are_tried_from_twice_as_many_of_one_class_on(
    ones: int, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = np.concatenate([Y[:20], [1] * ones, [0] * (20 - ones)])
    grower, _ = searched(monkeypatch, {}, y, names=("full.std",) * 4)
    weights = [one["scale_pos_weight"] for one in grower.tried if "scale_pos_weight" in one]
    assert weights == ([(20 - ones) / ones] if tried else [])


@pytest.mark.parametrize(("mistakes", "sharper", "kept"), [(4, True, True), (5, True, False), (4, False, False)])
def test_weights_are_kept_where_both_order_and_probabilities_gain(
    mistakes: int, sharper: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = np.concatenate([Y[:20], [1] * 5, [0] * 15])
    monkeypatch.setattr(
        trees, "_loss", lambda at, grown: 0.4 if ("scale_pos_weight" in grown.parameters) == sharper else 0.5
    )
    grower, _ = searched(monkeypatch, {(4, "scale_pos_weight"): mistakes}, y, names=("full.std",) * 4)
    assert ("scale_pos_weight" in grower.finished[0][0]) == kept


def test_a_regression_is_chosen_by_squared_error_and_has_no_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.concatenate([ranked(3), np.zeros(20)])
    grower, found = searched(monkeypatch, {(15,): 3}, values, objective="regression", names=("full.std",) * 4)
    assert grower.finished[0][0]["num_leaves"] == 15
    assert {(one["objective"], one["metric"]) for one in grower.tried} == {("regression", "l2")}
    assert np.isnan(found.selection_auroc)


def test_many_values_take_all_threads_and_what_never_splits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    grower, _ = searched(monkeypatch, {})
    for columns, threads in ((49_999, 1), (50_000, 0)):
        X = np.broadcast_to(np.float32(0), (40, columns))
        fit_trees(X, Y, ROLES, names=("full.std",), seed=0)
        assert grower.tried[-1]["num_threads"] == threads
    monkeypatch.setattr(trees, "_splits", lambda booster: 0)
    with pytest.raises(RecordError, match="nothing to split in 40 answers"):
        fit_trees(np.zeros((40, 4), dtype=np.float32), Y, ROLES, names=NAMES)
