"""The quality predictor as a scikit-learn estimator: for pipelines, searches and other people's code.

from sklearn.model_selection import GroupKFold, cross_val_score
cross_val_score(QualityClassifier(), logprobs, correct, groups=groups, cv=GroupKFold(), scoring="roc_auc")
QualityClassifier().fit(logprobs, correct, groups=groups).export("checkpoint")
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from metaprobe.checkpoints import Checkpoint, Generator, Training
from metaprobe.checkpoints.manifest import RAW
from metaprobe.probes import quality_contract
from metaprobe.probes.features import ALONE, PLUS_TERMS, Schema, features, schema
from metaprobe.records.errors import RecordError
from metaprobe.training.common.graphs import trees_graph
from metaprobe.training.common.heads import fit_probability
from metaprobe.training.common.roles import final_roles
from metaprobe.training.common.write_checkpoint import Export, write_checkpoint
from metaprobe.training.quality.raw_parity import build_raw_graph

Responses = Sequence[ArrayLike]
"""Log-probabilities in nats, one array (T,) a response, of any lengths; a column vector of them is as good."""


class QualityClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A calibrated classifier of responses by their log-probabilities, of two classes: a free number, or what is better
    than it on groups left out (`metaprobe.training.common.ladder`).

    The second class, in sorted order, is the good one. Responses are ragged: X is a list of arrays, no matrix such as
    scikit-learn's `check_estimator` tries. What holds for lists is promised: parameters, cloning, pipelines,
    cross-validation by group, metadata routing.
    """

    def __init__(self, schema: str = "full", seed: int = 0) -> None:
        """`schema`: which features, see `metaprobe.probes.features.schema`; one without "+top". The terms join them."""
        self.schema = schema
        self.seed = seed

    def fit(self, X: Responses, y: ArrayLike, groups: Sequence[object] | None = None) -> Self:
        """Learns from responses X and labels y (n,) of two classes.

        `groups` (n,): what belongs together, such as answers to one question; by default every response is a group of
        its own. A fifth of the groups selects and stops early, a fifth calibrates. Raises `ValueError` where X, y and
        groups do not fit together, or are too few.
        """
        if "+top" in self.schema or "+segments" in self.schema:
            raise ValueError(
                f"schema is {self.schema!r}; expected one without '+top' and '+segments': X holds the answers'"
                " log-probabilities alone"
            )
        computed = self._schema()
        targets = np.asarray(y)
        check_classification_targets(targets)
        self.classes_, labels = np.unique(targets, return_inverse=True)
        if len(self.classes_) != 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {type_of_target(targets)}: got "
                f"{len(self.classes_)} classes"
            )
        if groups is None:
            groups = range(len(labels))
        check_consistent_length(X, labels, groups)
        names = np.array([str(group) for group in groups])
        inputs = self._features(X)
        try:
            roles = final_roles(names.tolist(), labels, seed=self.seed)
            self.head_ = fit_probability(
                inputs, labels, names, np.full(len(names), ""), roles, names=computed.names, seed=self.seed
            )
        except RecordError as error:
            raise ValueError(f"the responses do not suffice to train, select and calibrate: {error}") from error
        self.examples_: NDArray[np.float32] = inputs[:64]
        """Features of the first responses: an exported graph is checked on them."""
        self.responses_ = [np.asarray(response, dtype=np.float32).ravel() for response in X[:64]]
        """These responses: a graph from log-probabilities is checked on them."""
        self.n_groups_, self.n_responses_ = len(np.unique(names)), len(names)
        return self

    def predict_proba(self, X: Responses) -> NDArray[np.float64]:
        """(n, 2), calibrated."""
        check_is_fitted(self)
        good = self.head_.value(self._features(X))
        return np.stack([1 - good, good], axis=1)

    def decision_function(self, X: Responses) -> NDArray[np.float64]:
        """(n,): calibrated log-odds of the second class."""
        check_is_fitted(self)
        return self.head_.calibrator.logit(self.head_.scorer.score(self._features(X)))

    def predict(self, X: Responses) -> NDArray[Any]:
        """(n,): the likelier class of each response."""
        likelier = self.decision_function(X) > 0
        return np.asarray(self.classes_[likelier.astype(int)])

    def export(
        self,
        path: str | Path,
        *,
        head: str = "correct",
        generator: Generator | None = None,
        raw: bool = False,
        overwrite: bool = False,
    ) -> Checkpoint:
        """A checkpoint for `QualityPredictor`, whose one head is the probability of the second class.

        `generator`: the model that the responses are from. Nothing is held out here, so that it has neither numbers nor
        thresholds; `metaprobe train quality` makes these as well. `raw` adds the graph from log-probabilities.
        `overwrite`: whether a checkpoint that `path` holds is replaced.
        """
        check_is_fitted(self)
        computed, width = self._schema(), self.examples_.shape[1]
        graph = trees_graph({head: self.head_}, width=width, input_name=quality_contract.INPUT)
        return write_checkpoint(
            path,
            Export(
                kind=quality_contract.KIND,
                title=f"Quality predictor: {head}",
                summary=(
                    f"Probability that a response is {self.classes_[1]!r} and not {self.classes_[0]!r}, from "
                    f"{width} statistics of its token log-probabilities ({self.head_.scorer.reached}, calibrated)."
                ),
                graph=graph,
                input_name=quality_contract.INPUT,
                inputs=self.examples_,
                expected={head: self.head_.value(self.examples_)},
                contract={"schema": computed.name, "features": list(computed.names), "targets": [head]},
                generator=generator,
                training=Training("not stated", self.n_responses_, self.n_groups_, self.seed, "QualityClassifier"),
                calibration=self.head_.calibrator.name,
                metrics={},
                not_audited=["all of them: QualityClassifier holds nothing out"],
                packages=("lightgbm", "onnxmltools", "onnx"),
                extra={RAW: build_raw_graph(graph, computed.name, self.responses_)} if raw else {},
            ),
            overwrite=overwrite,
        )

    def _features(self, X: Responses) -> NDArray[np.float32]:
        return features(self._schema(), [np.asarray(response, dtype=np.float32).ravel() for response in X])

    def _schema(self) -> Schema:
        """The schema with the terms that free numbers are made of."""
        whole = self.schema == ALONE or self.schema.endswith(PLUS_TERMS)
        return schema(self.schema if whole else self.schema + PLUS_TERMS)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.two_d_array = False
        tags.no_validation = True
        return tags
