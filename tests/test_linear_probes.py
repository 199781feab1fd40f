"""Linear probes: the batched solver against scikit-learn, planted directions against theory, the choice of a layer."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression, Ridge

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Hidden, Item, Run
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import Roles, final_roles, outer_folds
from metaprobe.training.linear import (
    KINDS,
    Kind,
    Moments,
    fit_linear,
    fit_linear_probe,
    mass_mean,
    one_standard_error,
    ridge,
    score_held_out,
)
from metaprobe.training.low_rank import fit_low_rank_probe
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
@settings(max_examples=15)
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_direction_is_found_as_well_as_theory_allows(kind: Kind) -> None:
    n, width, distance = 6000, 32, 1.0
    X, y, direction = planted(n, width, distance)
    fitted = fit_linear(X, y, kind, (0.01,))
    raw = fitted.weights[:, 0] / fitted.scale
    # The difference of two means of n / 2 rows each has an error of variance 4 / n in each unit.
    cosine = distance / math.sqrt(distance**2 + 4 * width / n)
    assert raw @ direction / np.linalg.norm(raw) == pytest.approx(cosine, abs=0.01)
    unseen, labels, _ = planted(20000, width, distance, seed=1)
    unseen += (distance * (labels - 0.5)[:, None] * (direction - planted(2, width, 1.0, seed=1)[2])).astype(np.float16)
    best = norm.cdf(distance / math.sqrt(2))
    assert float(auroc(labels, fitted.score(unseen.astype(float))[:, 0])) == pytest.approx(best, abs=0.015)


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_scores_are_those_of_probes_fitted_on_the_other_folds(kind: Kind) -> None:
    X, y, _ = planted(300, 8, 1.0)
    fold = np.arange(300) % 4
    found = score_held_out(X, y, fold, kind, (0.1,))[:, 0]
    for number in range(4):
        here = fold == number
        alone = fit_linear(X[~here], y[~here], kind, (0.1,)).score(X[here].astype(float))[:, 0]
        # The logistic ones are standardised by all rows, which moves the penalty a little.
        assert np.corrcoef(found[here], alone)[0, 1] > 0.999


def test_ridge_agrees_with_scikit_learn_whatever_the_chunks() -> None:
    X, y, _ = planted(500, 12, 1.0)
    Z = (X.astype(float) - X.astype(float).mean(0)) / X.astype(float).std(0)
    fitted = fit_linear(X, y, "ridge", (0.01, 1.0))
    for column, penalty in zip(fitted.weights.T, (0.01, 1.0), strict=True):
        np.testing.assert_allclose(column, Ridge(alpha=penalty * 500).fit(Z, y).coef_, atol=1e-8)
    parts = [Moments.none(12) for _ in range(3)]
    for number, part in enumerate(parts):
        part.add(X[number::3].astype(float), y[number::3])
    whole = Moments.none(12)
    whole.add(X.astype(float), y)
    np.testing.assert_allclose(Moments.total(parts).xx, whole.xx)
    np.testing.assert_allclose(whole.without(parts[0]).xy, Moments.total(parts[1:]).xy)


@pytest.mark.parametrize("kind", KINDS)
def test_the_probe_chooses_the_planted_layer_and_points_along_the_planted_direction(
    evidence: Evidence, kind: Kind
) -> None:
    assert evidence.states is not None
    probe = fit_linear_probe(evidence.states, *learning(evidence), positions=("prompt_last", "answer_last"), kind=kind)
    assert (probe.layers, probe.position) == ((2,), "answer_last")
    assert int(np.argmax(np.abs(probe.weights))) == 5
    assert len(probe.sweep) == 6
    assert probe.tried == (6 if kind == "mass-mean" else 24)


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_never_varies_teaches_nothing_and_breaks_nothing(evidence: Evidence, kind: Kind) -> None:
    constant = changed(evidence, 0, 1, 3.0)
    probe = fit_linear_probe(constant, *learning(evidence), positions=("answer_last",), kind=kind)
    assert probe.layers == (2,)
    assert [point.auroc for point in probe.sweep if point.layer == 0] == [0.5]


def test_a_low_rank_probe_joins_what_several_layers_know_a_little_of() -> None:
    n, layers, width = 1500, 6, 24
    rng = np.random.default_rng(5)
    y = rng.integers(0, 2, n)
    direction = rng.normal(size=width)
    direction /= np.linalg.norm(direction)
    hidden = rng.normal(size=(n, layers, 1, width))
    hidden[:, :, 0] += 0.5 * (y - 0.5)[:, None, None] * direction  # the same direction in every layer, its noise apart
    states = InMemory(
        Activations(tuple(map(str, range(n))), hidden.astype(np.float16), tuple(range(layers)), ("answer_last",))
    )
    groups = [str(i) for i in range(n)]
    roles = next(outer_folds(groups, y))
    joined = fit_low_rank_probe(states, y, roles, positions=("answer_last",))
    single = fit_linear_probe(states, y, groups, roles, positions=("answer_last",))
    found = {probe: float(auroc(y[roles.test], probe.score(states, roles.test))) for probe in (joined, single)}
    # Separations add up in squares: 0.5 in one layer, 0.5 * sqrt(6) in six.
    assert found[joined] == pytest.approx(norm.cdf(0.5 * math.sqrt(6) / math.sqrt(2)), abs=0.05)
    assert found[single] == pytest.approx(norm.cdf(0.5 / math.sqrt(2)), abs=0.06)
    assert joined.layers == tuple(range(layers))
    assert joined.read(states).shape == (n, layers * width)


def test_a_layer_that_says_the_same_of_every_row_it_is_fitted_on_does_not_stop_a_low_rank_probe() -> None:
    """As layer 0 of the last token does where all answers end alike, but for a few that the ranks are chosen on."""
    n, width = 600, 12
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, n)
    groups = [str(i) for i in range(n)]
    roles = next(outer_folds(groups, y))
    hidden = rng.normal(size=(n, 4, 1, width))
    hidden[:, 2, 0, 0] += 2.0 * (y - 0.5)
    hidden[:, 0] = rng.normal(size=width)
    hidden[roles.selection[:2], 0] = rng.normal(size=(2, 1, width))
    ids = tuple(map(str, range(n)))
    states = InMemory(Activations(ids, hidden.astype(np.float16), (0, 2, 4, 6), ("answer_last",)))
    probe = fit_low_rank_probe(states, y, roles, positions=("answer_last",))
    assert auroc(y[roles.test], probe.score(states, roles.test)) > 0.8


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


def test_closed_forms_are_those_of_their_definitions() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(2, 3, (40, 4)), (np.arange(40) % 4 == 0).astype(np.float64)
    X[:, 3] = 7.0  # constant: it weighs nothing
    parts = [Moments.none(4) for _ in range(2)]
    for part, rows in zip(parts, (slice(0, 10), slice(10, 40)), strict=True):
        part.add(X[rows], y[rows])
    whole = Moments.total(parts)
    left = whole.without(parts[0])
    np.testing.assert_allclose(left.x, X[10:].sum(axis=0))
    assert (whole.n, left.n, whole.y) == (40, 30, 10)
    mean, scale = X.mean(axis=0), X.std(axis=0)
    scale[3] = 1.0
    found = mass_mean(whole)
    np.testing.assert_allclose(found.mean, mean)
    np.testing.assert_allclose(found.scale, scale)
    away = (X[y == 1].mean(axis=0) - X[y == 0].mean(axis=0)) / scale
    away[3] = 0.0
    np.testing.assert_allclose(found.weights[:, 0], away, atol=1e-9)
    assert found.intercept.tolist() == [0.25]
    solved = ridge(whole, (0.1, 1.0))
    Z = (X - mean) / scale
    Z[:, 3] = 0.0
    for column, alpha in enumerate((0.1, 1.0)):
        gradient = Z.T @ (Z @ solved.weights[:, column] + 0.25 - y) / 40 + alpha * solved.weights[:, column]
        np.testing.assert_allclose(gradient, 0, atol=1e-8)
    np.testing.assert_allclose(solved.score(X), Z @ solved.weights + 0.25, atol=1e-9)


def test_a_probe_that_did_not_arrive_says_so_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    block, y = rng.normal(size=(30, 3)).astype(np.float16), (np.arange(30) % 2).astype(np.float64)
    monkeypatch.setattr("metaprobe.training.solve.TOLERANCE", -1.0)
    with pytest.warns(RuntimeWarning, match=r"a logistic probe ended with a gradient of .*, above -1") as told:
        fit_linear(block, y, "logistic", (1.0,))
    assert told[0].filename == __file__
