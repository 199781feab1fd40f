"""The search over trees: what is tried, in which order, and what wins; by a search whose results are made up."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from metaprobe.records.errors import RecordError
from metaprobe.training import trees
from metaprobe.training.folds import Roles
from metaprobe.training.trees import Grown, Trees, fit_trees

NAMES = ("full.mean", "full.std", "first5.min", "terms.lowest3")
UNSIGNED = ("full.std",) * 4
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

    def grow(self, parameters: dict[str, Any]) -> Grown:
        self.tried.append(parameters)
        on_top = tuple(name for name in ("scale_pos_weight", "monotone_constraints") if name in parameters)
        scores = ranked(self.mistakes.get((parameters["num_leaves"], *on_top), 5))
        return Grown(parameters, 10 * parameters["num_leaves"], scores)


def searched(
    patch: pytest.MonkeyPatch, mistakes: dict[tuple[Any, ...], int], y: np.ndarray = Y, **more: Any
) -> tuple[MadeUp, Trees]:
    search = MadeUp(mistakes)
    patch.setattr(trees, "_Search", lambda *given: search)
    patch.setattr(trees, "_fit_all", lambda *given: "booster")
    patch.setattr(trees, "_splits", lambda booster: 1)
    patch.setattr(trees, "float32_thresholds", lambda booster: booster)
    given = {"names": NAMES, "seed": 7, **more}
    return search, fit_trees(np.zeros((40, 4), dtype=np.float32), y, ROLES, **given)


def test_four_sizes_are_tried_and_then_the_signs_of_the_theory(monkeypatch: pytest.MonkeyPatch) -> None:
    search, _ = searched(monkeypatch, {}, np.array([0, 1] * 20))
    assert [(one["num_leaves"], one["min_data_in_leaf"]) for one in search.tried] == [*SIZES, SIZES[0]]
    assert search.tried[-1] == {**search.tried[0], "monotone_constraints": [1, 0, 1, -1]}
    assert {(one["objective"], one["deterministic"], one["seed"]) for one in search.tried} == {("binary", True, 7)}


@pytest.mark.parametrize(("mistakes", "leaves"), [({}, 4), *(({(leaves,): 2}, leaves) for leaves, _ in SIZES)])
def test_the_size_that_ranks_the_selection_rows_best_is_taken_with_its_own_rounds(
    mistakes: dict[tuple[Any, ...], int], leaves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = searched(monkeypatch, mistakes, names=UNSIGNED)
    assert (found.parameters["num_leaves"], found.parameters["rounds"]) == (leaves, 10 * leaves)
    assert found.selection_auroc == pytest.approx(0.8 if mistakes else 0.5)


@pytest.mark.parametrize(("signed", "kept"), [(5, True), (4, True), (6, False)], ids=["ties", "gains", "loses"])
def test_signs_are_kept_where_they_lose_nothing(signed: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = searched(monkeypatch, {(4, "monotone_constraints"): signed})
    assert ("monotone_constraints" in found.parameters) == kept


@pytest.mark.parametrize(("ones", "tried"), [(6, True), (7, False), (14, True), (13, False), (0, False), (20, False)])
def test_weights_are_tried_from_twice_as_many_of_one_class_on(
    ones: int, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = np.concatenate([Y[:20], [1] * ones, [0] * (20 - ones)])
    search, _ = searched(monkeypatch, {}, y, names=UNSIGNED)
    weights = [one["scale_pos_weight"] for one in search.tried if "scale_pos_weight" in one]
    assert weights == ([(20 - ones) / ones] if tried else [])


@pytest.mark.parametrize(("mistakes", "sharper", "kept"), [(4, True, True), (5, True, False), (4, False, False)])
def test_weights_are_kept_where_both_order_and_probabilities_gain(
    mistakes: int, sharper: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = np.concatenate([Y[:20], [1] * 5, [0] * 15])
    monkeypatch.setattr(
        trees, "_loss", lambda at, grown: 0.4 if ("scale_pos_weight" in grown.parameters) == sharper else 0.5
    )
    _, found = searched(monkeypatch, {(4, "scale_pos_weight"): mistakes}, y, names=UNSIGNED)
    assert ("scale_pos_weight" in found.parameters) == kept


def test_a_regression_is_chosen_by_squared_error_and_has_no_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.concatenate([ranked(3), np.zeros(20)])
    search, found = searched(monkeypatch, {(15,): 3}, values, objective="regression", names=UNSIGNED)
    assert found.parameters["num_leaves"] == 15
    assert {(one["objective"], one["metric"]) for one in search.tried} == {("regression", "l2")}
    assert np.isnan(found.selection_auroc)


def test_what_never_splits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    searched(monkeypatch, {})
    monkeypatch.setattr(trees, "_splits", lambda booster: 0)
    with pytest.raises(RecordError, match="nothing to split in 40 answers"):
        fit_trees(np.zeros((40, 4), dtype=np.float32), Y, ROLES, names=NAMES)
