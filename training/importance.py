"""How much likelier stored answers are now than they were, by their terms (`probes.features`)."""

from collections.abc import Sequence

import numpy as np

from metaprobe.eval.answer_table import answer_table
from metaprobe.probes.features import features, schema
from metaprobe.records.extras import require
from metaprobe.records.types import Run
from metaprobe.training.calibrators import Floats


def importance(old: Sequence[Run], recent: Sequence[Run], *, target: str = "correct") -> Floats:
    """Returns the weight of each stored run (n,): how much likelier its labelled answers are now than they were.

    The mean over stored runs is about 1. A run without a labelled answer has weight 0, for nothing is learned from it.
    `target`: the label that answers must have.
    """
    table = answer_table(old, target=target)
    of_call = {call.id: place for place, run in enumerate(old) for call in run.calls}
    place = np.array([of_call[name] for name in table.call_ids.tolist()])
    terms = schema("terms")
    was = features(terms, list(table.logprobs))
    now = features(terms, [call.logprobs for run in recent for call in run.calls if call.logprobs is not None])
    X = np.nan_to_num(np.concatenate([was, now]).astype(np.float64))
    X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-9)
    is_new = np.concatenate([np.zeros(len(was)), np.ones(len(now))])
    tell = require("sklearn.linear_model", "fit").LogisticRegression(C=0.1, max_iter=500).fit(X, is_new)
    odds = np.exp(tell.decision_function(X[: len(was)])) * len(was) / len(now)
    weights = np.zeros(len(old))
    np.maximum.at(weights, place, odds)
    return weights
