"""Weights of stored answers for a training on recent ones: how much likelier each is now than it was."""

from collections.abc import Sequence

import numpy as np

from metaprobe.eval.answer_table import answer_table
from metaprobe.probes.features import features, schema
from metaprobe.records.extras import require
from metaprobe.records.types import Run
from metaprobe.training.calibrators import Floats


def importance(old: Sequence[Run], recent: Sequence[Run], *, target: str = "correct") -> Floats:
    """Returns the weight of each stored run (n,): how much likelier its labelled answers are now than they were.

    A classifier tells old from recent answers by their terms (`probes.features`); its odds are the weights. Their mean
    over stored runs is about 1. A run without a labelled answer has weight 0, because nothing is learned from it.

    Args:
        old: the stored runs.
        recent: runs of now.
        target: name of the label that stored answers must have.
    """
    table = answer_table(old, target=target)
    run_index_of_call = {call.id: run_index for run_index, run in enumerate(old) for call in run.calls}
    run_index = np.array([run_index_of_call[name] for name in table.call_ids.tolist()])
    terms = schema("terms")
    old_features = features(terms, list(table.logprobs))
    new_features = features(terms, [call.logprobs for run in recent for call in run.calls if call.logprobs is not None])
    X = np.nan_to_num(np.concatenate([old_features, new_features]).astype(np.float64))
    X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-9)
    is_new = np.concatenate([np.zeros(len(old_features)), np.ones(len(new_features))])
    classifier = require("sklearn.linear_model", "fit").LogisticRegression(C=0.1, max_iter=500).fit(X, is_new)
    odds = np.exp(classifier.decision_function(X[: len(old_features)])) * len(old_features) / len(new_features)
    weights = np.zeros(len(old))
    np.maximum.at(weights, run_index, odds)
    return weights
