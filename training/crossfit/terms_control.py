"""A control for what reads more than log-probabilities: a logistic regression on a few terms of them, in equal folds.

Probes on hidden states, and trees on hundreds of features, have to do better than this. The quality predictor has tried
it as a step of its own (`metaprobe.training.common.ladder`).
"""

from collections.abc import Sequence

import numpy as np

from metaprobe.probes.features import TERM_NAMES
from metaprobe.training.common.ladder import terms_in
from metaprobe.training.common.offsets import fit_offsets
from metaprobe.training.common.roles import Roles
from metaprobe.training.crossfit.methods import RUN_IDENTITY, Evidence, Scores

TERMS_CONTROL = "terms of the log-probabilities"


def score_by_terms(evidence: Evidence, splits: Sequence[Roles]) -> Scores | None:
    """Held-out log-odds (n,) by all terms and a base rate for each run; None where the features hold no terms.

    Each fold is fitted on all rows but its test rows: a control that nothing is chosen for needs no others.
    """
    if evidence.feature_names[-len(TERM_NAMES) :] != TERM_NAMES:
        return None
    table, terms = evidence.table, terms_in(evidence.features)
    runs, scores = RUN_IDENTITY.cells(table), np.full(len(table), np.nan)
    for roles in splits:
        seen, test = roles.seen, roles.test
        centre, spread = terms[seen].mean(axis=0), terms[seen].std(axis=0)
        standard = (terms - centre) / np.where(spread > 0, spread, 1.0)
        fit = fit_offsets(standard[seen], table.y[seen], runs[seen])
        scores[test] = standard[test] @ fit.weights + fit.rates.of(runs[test])
    return scores
