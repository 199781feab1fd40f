"""Linear probes: the batched solver against scikit-learn, a planted direction against theory, the choice of a layer."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Hidden, Item, Run
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import Roles, final_roles
from metaprobe.training.linear import fit_linear_probe, one_standard_error, score_held_out
from metaprobe.training.solve import TOLERANCE, solve_logistic, standardise
from metaprobe.training.states import InMemory, OnDisk, load_states


def planted(n: int, width: int, distance: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States of two classes, unit normal around means `distance` apart along a direction: (X, y, direction)."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=width)
    direction /= np.linalg.norm(direction)
    y = np.arange(n) % 2
    X = rng.normal(size=(n, width)) + distance * (y - 0.5)[:, None] * direction
    return X.astype(np.float16), y.astype(np.float64), direction


def learning(evidence: Evidence) -> tuple[np.ndarray, list[str], Roles]:
    """Labels, groups and roles, as `fit_linear_probe` takes them."""
    groups = evidence.table.groups.tolist()
    return evidence.table.y, groups, final_roles(groups, evidence.table.y)


def changed(evidence: Evidence, layer: int, position: int, value: float, rows: object = slice(None)) -> InMemory:
    assert isinstance(evidence.states, InMemory)
    kept = evidence.states.activations
    values = kept.values.copy()
    values[rows, layer, position] = value
    return InMemory(Activations(kept.call_ids, values, kept.layers, kept.positions))


@pytest.mark.parametrize("soft", [False, True])
def test_every_fold_and_penalty_agrees_with_scikit_learn(soft: bool) -> None:
    X, y, _ = planted(400, 30, 1.0)
    X[:, 3] *= 50  # what standardising is for
    target = np.random.default_rng(1).beta(1 + 2 * y, 3 - 2 * y) if soft else y
    held = np.arange(400) % 3
    learns = torch.from_numpy((held != np.arange(3)[:, None]).astype(np.float32))
    penalties = (0.01, 1.0)
    Z, _, _ = standardise(torch.from_numpy(X).float())
    found = solve_logistic(Z, torch.from_numpy(target).float(), learns, torch.tensor(penalties))
    assert found.gradient <= TOLERANCE
    for fold in range(3):
        rows = np.flatnonzero(held != fold)
        # A target t is t right answers and 1 - t wrong ones with the same states.
        states = np.concatenate([Z.numpy()[rows]] * 2)
        labels, weights = np.repeat([1, 0], len(rows)), np.concatenate([target[rows], 1 - target[rows]])
        for p, penalty in enumerate(penalties):
            model = LogisticRegression(C=1 / (penalty * len(rows)), tol=1e-8, max_iter=5000)
            model.fit(states, labels, sample_weight=weights)
            np.testing.assert_allclose(found.weights[fold, p].numpy(), model.coef_[0], atol=2e-3)
            np.testing.assert_allclose(found.scores[fold, p].numpy(), model.decision_function(Z.numpy()), atol=2e-2)


@given(seed=st.integers(0, 100), penalty=st.sampled_from([1e-3, 0.1, 10.0]), width=st.integers(1, 60))
@settings(max_examples=8)
def test_the_solver_ends_at_a_minimum_also_with_fewer_rows_than_units(seed: int, penalty: float, width: int) -> None:
    X, y, _ = planted(40, width, 3.0, seed)
    Z, _, _ = standardise(torch.from_numpy(X.astype(np.float32)))
    found = solve_logistic(Z, torch.from_numpy(y).float(), torch.ones(1, 40), torch.tensor([penalty]))
    assert found.gradient <= TOLERANCE
    assert torch.isfinite(found.weights).all()


@pytest.mark.parametrize("rounded", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("penalty", "gap"), [(0.0, 0.5), (1e-6, 0.5), (1e-5, 10.0)])
def test_the_solver_ends_at_a_minimum_under_next_to_no_penalty_whatever_the_processor_rounds_to(
    monkeypatch: pytest.MonkeyPatch, rounded: torch.dtype, penalty: float, gap: float
) -> None:
    monkeypatch.setattr("metaprobe.training.solve._rounded_type", lambda: rounded)
    rng = np.random.default_rng(0)
    n, width = (3000, 200) if gap < 1 else (60, 400)  # separable where the gap is wide
    y = rng.integers(0, 2, n)
    X = rng.normal(size=(n, width)) + gap * np.outer(y - 0.5, np.arange(width) < 20)
    X = X * np.arange(1.0, width + 1) ** -2 @ np.linalg.qr(rng.normal(size=(width, width)))[0]
    Z, _, _ = standardise(torch.from_numpy(X).float())
    found = solve_logistic(Z, torch.from_numpy(y).float(), torch.ones(1, n), torch.tensor([penalty]))
    assert found.gradient <= TOLERANCE


def test_a_planted_direction_is_found_as_well_as_theory_allows() -> None:
    n, width, distance = 4000, 32, 1.0
    X, y, direction = planted(n, width, distance)
    ids = tuple(map(str, range(n)))
    states = InMemory(Activations(ids, X[:, None, None], (0,), ("answer_last",)))
    roles = final_roles(ids, y.astype(np.int64))
    probe = fit_linear_probe(states, y, ids, roles, positions=("answer_last",))
    raw = probe.weights / probe.scale
    # The difference of two means of m / 2 rows each has an error of variance 4 / m in each unit.
    cosine = distance / math.sqrt(distance**2 + 4 * width / len(roles.learning))
    assert raw @ direction / np.linalg.norm(raw) == pytest.approx(cosine, abs=0.015)
    rng = np.random.default_rng(1)
    unseen = rng.normal(size=(20000, width)) + distance * (np.arange(20000) % 2 - 0.5)[:, None] * direction
    best = norm.cdf(distance / math.sqrt(2))
    assert float(auroc(np.arange(20000) % 2, probe.score_of(unseen))) == pytest.approx(best, abs=0.015)


def test_held_out_scores_are_those_of_probes_fitted_on_the_other_folds() -> None:
    X, y, _ = planted(300, 8, 1.0)
    fold = np.arange(300) % 4
    found = score_held_out(X, y, fold, (0.1,))[:, 0]
    Z = (X.astype(float) - X.astype(float).mean(0)) / X.astype(float).std(0)
    for number in range(4):
        here = fold == number
        alone = LogisticRegression(C=1 / (0.1 * (~here).sum())).fit(Z[~here], y[~here])
        np.testing.assert_allclose(found[here], alone.decision_function(Z[here]), atol=1e-2)


def test_the_probe_chooses_the_planted_layer_and_points_along_the_planted_direction(evidence: Evidence) -> None:
    assert evidence.states is not None
    probe = fit_linear_probe(evidence.states, *learning(evidence), positions=("prompt_last", "answer_last"))
    assert (probe.layers, probe.position) == ((2,), "answer_last")
    assert int(np.argmax(np.abs(probe.weights))) == 5
    assert len(probe.sweep) == 6
    assert probe.tried == 24


def test_the_simplest_choice_within_one_standard_error_is_taken() -> None:
    folds = np.array([0.10, -0.05, 0.0, 0.05, -0.10])  # what makes a fold easy is shared by all places
    found = np.stack([[0.60 + folds, 0.60 + folds], [0.801 + folds, 0.8 + folds]]).transpose(0, 2, 1)
    found[1, :, 1] += [0.004, -0.004, 0.001, -0.002, 0.001]
    assert one_standard_error(found) == (1, 1), "0.801 and 0.800 are not told apart: the stronger penalty"
    found[1, :, 1] -= 0.05
    assert one_standard_error(found) == (1, 0), "0.801 and 0.750 are, for their folds differ alike"


def test_labels_without_signal_choose_something_and_promise_nothing(evidence: Evidence) -> None:
    assert evidence.states is not None
    _, groups, roles = learning(evidence)
    y = np.random.default_rng(3).permutation(evidence.table.y)
    probe = fit_linear_probe(evidence.states, y, groups, roles, positions=("prompt_last", "answer_last"))
    unseen = roles.calibration
    assert abs(float(auroc(y[unseen], probe.score(evidence.states, unseen))) - 0.5) < 0.15


def test_a_layer_that_never_varies_teaches_nothing_and_breaks_nothing(evidence: Evidence) -> None:
    constant = changed(evidence, 0, 1, 3.0)
    probe = fit_linear_probe(constant, *learning(evidence), positions=("answer_last",))
    assert probe.layers == (2,)
    assert [point.auroc for point in probe.sweep if point.layer == 0] == [0.5]


def test_hidden_states_with_nan_are_refused(evidence: Evidence) -> None:
    broken = changed(evidence, 1, 0, np.nan, rows=3)
    with pytest.raises(RecordError, match="layer 1, prompt_last: 1 of"):
        fit_linear_probe(broken, *learning(evidence), positions=("prompt_last",))


def test_an_absent_position_is_named(evidence: Evidence) -> None:
    assert evidence.states is not None
    with pytest.raises(RecordError, match="answer_mean"):
        fit_linear_probe(evidence.states, *learning(evidence), positions=("answer_mean",))


def test_states_read_block_by_block_are_those_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = []
    for number, name in enumerate(("a", "b")):
        runs = []
        for i in range(5):
            hidden = Hidden(rng.normal(size=(2, 2, 4)).astype(np.float16), (0, 3), ("prompt_last", "answer_last"))
            call = Call(id=f"c{i}{name}", hidden=hidden)
            runs.append(Run(f"r{i}{name}", "s", "v", Item(id=f"i{i}", question="q"), (call,)))
            ids.append(call.id)
        RunStore(tmp_path / name).append(runs)
        assert number < 2
    stores = [RunStore(tmp_path / name) for name in ("a", "b")]
    wanted = sorted(ids)[1:]
    loaded, without = load_states(stores, wanted)
    assert isinstance(loaded, InMemory)
    assert without == 0
    assert loaded.activations.call_ids == tuple(wanted)
    held = tuple(tuple(i for i in wanted if i.endswith(name)) for name in ("a", "b"))
    row = {call_id: i for i, call_id in enumerate((*held[0], *held[1]))}
    lazy = OnDisk(tuple(stores), held, np.array([row[i] for i in wanted]), (0, 3), ("prompt_last", "answer_last"))
    for layer in (0, 3):
        np.testing.assert_array_equal(lazy.read(layer, "answer_last"), loaded.read(layer, "answer_last"))
    with pytest.raises(RecordError, match=r"layers \[7\] were not captured"):
        lazy.read(7, "answer_last")
    assert load_states(stores, [*wanted, "elsewhere"]) == (None, 1)


def test_a_fit_that_did_not_converge_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    block, y = rng.normal(size=(30, 3)).astype(np.float16), (np.arange(30) % 2).astype(np.float64)
    monkeypatch.setattr("metaprobe.training.solve.TOLERANCE", -1.0)
    with pytest.warns(RuntimeWarning, match="a logistic probe ended with a gradient"):
        score_held_out(block, y, np.arange(30) % 2, (1.0,))
