"""Linear probes: the batched solver against scikit-learn, a planted direction against theory, the choice of a layer."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from metaprobe.eval.metrics.ranked import auroc
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import Roles, final_roles
from metaprobe.training.linear_probe import fit_linear_probe
from metaprobe.training.solve import GRADIENT_TOLERANCE, solve_logistic, standardise
from metaprobe.training.stored_states import InMemory


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
    penalties = (1.0, 0.01, 10.0)  # in no order: the solver takes the weakest first
    Z, _, _ = standardise(torch.from_numpy(X).float())
    found = solve_logistic(Z, torch.from_numpy(target).float(), learns, torch.tensor(penalties))
    assert found.gradient <= GRADIENT_TOLERANCE
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
    assert found.gradient <= GRADIENT_TOLERANCE
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
    assert found.gradient <= GRADIENT_TOLERANCE


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


def test_the_probe_chooses_the_planted_layer_and_points_along_the_planted_direction(evidence: Evidence) -> None:
    assert evidence.states is not None
    probe = fit_linear_probe(evidence.states, *learning(evidence), positions=("prompt_last", "answer_last"))
    assert (probe.layers, probe.position) == ((2,), "answer_last")
    assert int(np.argmax(np.abs(probe.weights))) == 5
    assert len(probe.sweep) == 6
    assert probe.tried == 24


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
