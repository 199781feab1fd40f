"""The probes as scikit-learn estimators, for one layer and position: for pipelines, searches and other people's code.

from sklearn.model_selection import cross_val_score
cross_val_score(ProbeClassifier(kind="logistic", penalty=0.1), states, correct, groups=groups, cv=GroupKFold())
"""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from metaprobe.training.common.calibrators import sigmoid
from metaprobe.training.linear.fit_block import fit_linear
from metaprobe.training.linear.probe import KINDS, Kind


class ProbeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear probe of two classes on hidden states (n, D); the second class is the one that scores speak for."""

    def __init__(self, kind: Kind = "logistic", penalty: float = 0.1) -> None:
        """`penalty`: of the weights, in units of the mean eigenvalue of the standardised states' covariance.

        Mass-mean has none.
        """
        self.kind = kind
        self.penalty = penalty

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learns from states X (n, D) and labels y (n,) of two classes."""
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}; expected one of {', '.join(KINDS)}")
        if self.kind != "mass-mean" and not 0 < self.penalty < np.inf:
            raise ValueError(f"penalty is {self.penalty!r}; expected a positive number")
        states, targets = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(targets)
        self.classes_, labels = np.unique(targets, return_inverse=True)
        if len(self.classes_) != 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {type_of_target(targets)}: a "
                f"probe needs two classes, got {len(self.classes_)} class"
            )
        learned = fit_linear(states, labels.astype(np.float64), self.kind, (self.penalty,))
        self.mean_, self.scale_ = learned.mean, learned.scale
        self.coef_: NDArray[np.float64] = learned.weights.T
        """(1, D), for standardised states."""
        self.intercept_ = learned.intercept
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """(n,): log-odds of the second class for `logistic`, else a score that rises with them."""
        check_is_fitted(self)
        states = validate_data(self, X, reset=False, dtype=np.float64)
        scores: NDArray[np.float64] = ((states - self.mean_) / self.scale_) @ self.coef_[0] + self.intercept_[0]
        return scores - (0.0 if self.kind == "logistic" else 0.5)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """(n, 2). Calibrated only for `logistic`, and there only as far as its penalty lets it be."""
        positive = sigmoid(self.decision_function(X))
        return np.stack([1 - positive, positive], axis=1)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """(n,): the likelier class of each row."""
        likelier = self.decision_function(X) > 0
        return np.asarray(self.classes_[likelier.astype(int)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
