"""The fitted heads of a quality predictor: a probability, a level from 1 to 3, and Q, each as NumPy and as ONNX nodes.

A head is named by its label. `critical` is the one whose label 1 is the bad one: what is fitted learns the opposite, so
that higher raw scores are better answers in every head, and its probability is turned round at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require
from metaprobe.training.common.calibrate import fit_platt
from metaprobe.training.common.calibrators import Calibrator, Floats, Onnx, Platt
from metaprobe.training.common.ladder import Ladder, fit_ladder
from metaprobe.training.common.roles import Roles
from metaprobe.training.common.trees import Trees, fit_trees

LEVELS: dict[str, tuple[int, int]] = {"instruction": (1, 3), "justification": (1, 3), "evidence": (1, 3)}
"""Heads with an ordinal label, and its scale."""
CRITICAL, QUALITY = "critical", "quality"
INVERTED = (CRITICAL,)
"""Heads whose label 1 is the bad one."""
SCALES: dict[str, tuple[int, int]] = {**LEVELS, QUALITY: (0, 9)}
"""Of the heads that are no probability."""


class LogOddsModel(Protocol):
    """Features in, log-odds out: higher for likelier good."""

    def score(self, X: NDArray[np.float32]) -> Floats: ...

    def onnx_nodes(self, input_name: str, output_name: str, width: int) -> Onnx: ...


class FittedHead(Protocol):
    """Features in, one value out."""

    @property
    def kind(self) -> str: ...

    @property
    def calibrations(self) -> tuple[str, ...]:
        """Names of its calibrators."""
        ...

    def value(self, X: NDArray[np.float32]) -> Floats:
        """(n,) for features (n, d)."""
        ...

    def onnx_nodes(self, input_name: str, output_name: str, width: int) -> Onnx:
        """The same for a graph: (n, width) float32 features in, (n, 1) out. Names made up here begin as the output."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Probability:
    """A calibrated score."""

    scorer: LogOddsModel
    calibrator: Calibrator
    inverted: bool = False
    """Whether the head is one minus what was learned."""
    kind: ClassVar[str] = "binary"

    @property
    def calibrations(self) -> tuple[str, ...]:
        return (self.calibrator.name,)

    def learned(self, X: NDArray[np.float32]) -> Floats:
        """P(good), (n,), of answers of a run of average base rate."""
        return self.calibrator.probability(self.scorer.score(X))

    def value(self, X: NDArray[np.float32]) -> Floats:
        return 1 - self.learned(X) if self.inverted else self.learned(X)

    def onnx_nodes(self, input_name: str, output_name: str, width: int) -> Onnx:
        raw, learned = f"{output_name}_raw", f"{output_name}_learned" if self.inverted else output_name
        nodes, constants = self.calibrator.onnx_nodes(raw, learned, f"{output_name}_calibrator")
        scored, weights = self.scorer.onnx_nodes(input_name, raw, width)
        nodes, constants = [*scored, *nodes], [*weights, *constants]
        if self.inverted:
            one = f"{output_name}_one"
            nodes.append(_node("Sub", [one, learned], output_name))
            constants = [*constants, _constant(one, 1.0)]
        return nodes, constants


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Expected level of an ordinal label: the lowest, plus P(y >= k) of every level k above it.

    One classifier a step, as Frank and Hall (2001, doi:10.1007/3-540-44795-4_13) split an ordinal label; here each is
    calibrated, and the expectation is returned instead of the likeliest level. Their steps can cross,
    P(y >= 3) > P(y >= 2); pooling those that do (isotonic regression, the nearest falling ones) puts their mean in the
    place of both, which leaves the sum, and so the expected level, as it is.
    """

    base: float
    """The lowest level, and the shares of the steps that nothing could be fitted to."""
    steps: tuple["RunProbability", ...]
    kind: ClassVar[str] = "ordinal"

    @property
    def calibrations(self) -> tuple[str, ...]:
        return tuple(step.calibrator.name for step in self.steps)

    def value(self, X: NDArray[np.float32]) -> Floats:
        return np.asarray(self.base + sum(step.learned(X) for step in self.steps), dtype=np.float64)

    def onnx_nodes(self, input_name: str, output_name: str, width: int) -> Onnx:
        base = f"{output_name}_base"
        nodes, constants, parts = [], [_constant(base, self.base)], [base]
        for number, step in enumerate(self.steps):
            parts.append(f"{output_name}_step{number}")
            more, initializers = step.onnx_nodes(input_name, parts[-1], width)
            nodes += more
            constants += initializers
        return [*nodes, _node("Sum", parts, output_name)], constants


@dataclass(frozen=True, slots=True, eq=False)
class Amount:
    """A regression, on a line that makes it right on average, within its scale: Q.

    Composing Q of the other heads, (1 - P(critical)) times the sum of the levels, is the other choice. It orders
    unseen answers as well, but errs more, since failures and levels go together; and it needs every part to be
    learnable, the critical flag too, which some judges never raise.
    """

    trees: Trees
    slope: float
    intercept: float
    scale: tuple[int, int]
    kind: ClassVar[str] = "regression"
    calibrations: ClassVar[tuple[str, ...]] = ("line",)

    def value(self, X: NDArray[np.float32]) -> Floats:
        return np.clip(self.slope * self.trees.score(X) + self.intercept, *self.scale)

    def onnx_nodes(self, input_name: str, output_name: str, width: int) -> Onnx:
        def own(name: str) -> str:
            return f"{output_name}_{name}"

        nodes = [
            *self.trees.onnx_nodes(input_name, own("raw"), width)[0],
            _node("Mul", [own("raw"), own("slope")], own("scaled")),
            _node("Add", [own("scaled"), own("intercept")], own("line")),
            _node("Max", [own("line"), own("low")], own("floored")),
            _node("Min", [own("floored"), own("high")], output_name),
        ]
        numbers = {"slope": self.slope, "intercept": self.intercept, "low": self.scale[0], "high": self.scale[1]}
        return nodes, [_constant(own(name), number) for name, number in numbers.items()]


@dataclass(frozen=True, slots=True, eq=False)
class RunProbability(Probability):
    """A probability by the ladder of models, which knows the base rates of the runs it was fitted on."""

    scorer: Ladder
    calibrator: Platt

    @property
    def shifts(self) -> dict[str, float]:
        """Run -> what it adds to the log-odds of the head's value."""
        sign = -1.0 if self.inverted else 1.0
        return {run: sign * self.calibrator.slope * offset for run, offset in self.scorer.rates.runs.items()}

    @property
    def between(self) -> float:
        """Standard deviation of the runs' base rates around their mean, in log-odds."""
        return abs(self.calibrator.slope) * self.scorer.rates.between


def fit_probability(
    X: NDArray[np.float32],
    y: NDArray[np.int64],
    groups: NDArray[np.str_],
    runs: NDArray[np.str_],
    roles: Roles,
    *,
    names: Sequence[str],
    inverted: bool = False,
    climb: bool = True,
    seed: int = 0,
) -> RunProbability:
    """What the data carry of the ladder (`fit_ladder`), and Platt's map of it on the calibration rows. Without `climb`,
    for runs that nobody has seen, the map is of scores without base rates.

    `y` (n,) is 1 for good answers. Platt's map alone keeps a base rate what it is, an amount added to the log-odds.
    """
    ladder = fit_ladder(X, y, groups, runs, roles, names=names, climb=climb, seed=seed)
    rows = roles.calibration
    scores = ladder.score_of(X[rows], runs[rows]) if climb else ladder.score(X[rows])
    return RunProbability(ladder, fit_platt(scores, y[rows]), inverted)


def fit_level(
    X: NDArray[np.float32],
    grades: Floats,
    groups: NDArray[np.str_],
    runs: NDArray[np.str_],
    roles: Roles,
    *,
    steps: Sequence[int],
    scale: tuple[int, int],
    names: Sequence[str],
    seed: int = 0,
) -> Level:
    """A classifier for each of `steps`; any other step up the scale is taken to be its share of the rows seen."""
    fitted = [
        fit_probability(X, (grades >= step).astype(np.int64), groups, runs, roles, names=names, seed=seed)
        for step in steps
    ]
    low, high = scale
    rest = [step for step in range(low + 1, high + 1) if step not in steps]
    shares = (float((grades[roles.seen] >= step).mean()) for step in rest)
    return Level(low + sum(shares), tuple(fitted))


def fit_amount(
    X: NDArray[np.float32],
    values: Floats,
    roles: Roles,
    *,
    scale: tuple[int, int],
    names: Sequence[str],
    seed: int = 0,
) -> Amount:
    """A regression of the values (n,), and its line by least squares on the calibration rows, which never falls."""
    trees = fit_trees(X, values, roles, names=names, objective="regression", seed=seed)
    rows = roles.calibration
    raw, truth = trees.score(X[rows]), values[rows]
    variance = float(raw.var())
    slope = max(float(np.mean((raw - raw.mean()) * (truth - truth.mean()))) / variance, 0.0) if variance else 0.0
    return Amount(trees, slope, float(truth.mean() - slope * raw.mean()), scale)


def _node(kind: str, inputs: Sequence[str], output: str) -> Any:
    return require("onnx", "fit").helper.make_node(kind, list(inputs), [output])


def _constant(name: str, value: float) -> Any:
    return require("onnx", "fit").numpy_helper.from_array(np.array([[value]], dtype=np.float32), name)
