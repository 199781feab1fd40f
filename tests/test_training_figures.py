"""Figures that training writes, against what can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import made_up

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.training.audit import audit_method
from metaprobe.training.calibration import fit_isotonic
from metaprobe.training.folds import final_roles
from metaprobe.training.methods import GivenScore
from metaprobe.training.study import crossfit, standard_methods


def test_an_unknown_number_counts_as_the_median_where_it_is_chosen_and_stays_unknown() -> None:
    evidence = replace(made_up(400), states=None)
    roles = final_roles(evidence.table.groups.tolist(), evidence.table.y)
    values = np.array([float(series.mean()) for series in evidence.table.logprobs])
    values[roles.selection[:5]] = np.nan
    fitted = GivenScore("mean", "plain", lambda table: values).fit(evidence, roles, seed=0)
    known = np.where(np.isfinite(values), values, np.nanmedian(values))
    at = roles.selection
    assert fitted.selection_auroc == pytest.approx(float(auroc(evidence.table.y[at], known[at])))
    assert fitted.selection_auroc > 0.6
    assert np.isnan(fitted.score(at[:5])).all()
    nothing = GivenScore("none", "plain", lambda table: np.full(400, np.nan)).fit(evidence, roles, seed=0)
    assert nothing.selection_auroc == 0.5


def test_two_steps_that_are_too_steep_for_a_float_are_one() -> None:
    score = np.array([0.0] * 30 + [1e-7] * 30 + [-5.0] * 5 + [5.0] * 5)
    y = np.array([0] * 30 + [1] * 30 + [0] * 5 + [1] * 5)
    found = fit_isotonic(score, y)
    assert np.ptp(found.probability(np.array([0.0, 1e-7]))) * score.std() / 1e-7 <= 2.0 + 1e-6
    assert found.probability(np.array([5.0])) > 0.7
    only = fit_isotonic(np.array([0.0] * 40 + [1e-9] * 40 + [100.0]), np.array([0] * 40 + [1] * 41))
    assert np.ptp(only.probability(np.array([0.0, 1e-9]))) < 1e-3


def test_a_probes_audits_refit_it_on_tossed_labels_and_on_noise() -> None:
    evidence = made_up(400)
    methods = standard_methods(evidence)
    probe = next(method for method in methods if method.name.startswith("hidden probe"))
    fits = crossfit(evidence, [probe, *[m for m in methods if m.family == "plain"]], folds=2)
    names = {finding.name for finding in audit_method(evidence, fits, probe).audits}
    assert {"shuffled labels are at chance", "random features are at chance"} <= names
