"""The fitted heads of a quality predictor: a probability, a level from 1 to 3, and Q, each as NumPy and as ONNX nodes.

A head is named by its label. `critical` is the one whose label 1 is the bad one: what is fitted learns the opposite, so
that higher raw scores are better answers in every head, and its probability is turned round at the end.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.quality import AT_LEAST
from metaprobe.training.calibration import Calibrator, Floats, Platt, fit_platt
from metaprobe.training.folds import Roles
from metaprobe.training.graphs import GraphBuilder
from metaprobe.training.ladder import WHOLE, Ladder, LadderColumns, fit_ladder, only_columns
from metaprobe.training.trees import Trees, fit_trees

LEVELS: dict[str, tuple[int, int]] = {"instruction": (1, 3), "justification": (1, 3), "evidence": (1, 3)}
"""Heads with an ordinal label, and its scale."""
CRITICAL, QUALITY = "critical", "quality"
INVERTED = (CRITICAL,)
"""Heads whose label 1 is the bad one."""
SCALES: dict[str, tuple[int, int]] = {**LEVELS, QUALITY: (0, 9)}
"""Scale of each head that is not a probability."""


class LogOddsModel(Protocol):
    """Features in, log-odds out: higher for likelier good."""

    def score(self, X: NDArray[np.float32]) -> Floats: ...

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str: ...


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

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str:
        """Adds the same to a graph: (n, width) float32 features in, (n, 1) out, called `output` where that is given."""
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

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str:
        score = self.scorer.add_to(graph, features, width)
        if not self.inverted:
            return self.calibrator.add_to(graph, score, output)
        return graph.add("Sub", graph.number(1.0), self.calibrator.add_to(graph, score), name=output)


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
    levels: tuple[int, ...] = ()
    """The level that each step reaches."""
    shares: Mapping[int, float] = field(default_factory=dict)
    """Level -> its share of the rows seen, where nothing could be fitted to the step."""
    kind: ClassVar[str] = "ordinal"

    @property
    def calibrations(self) -> tuple[str, ...]:
        return tuple(step.calibrator.name for step in self.steps)

    def value(self, X: NDArray[np.float32]) -> Floats:
        return np.asarray(self.base + sum(step.learned(X) for step in self.steps), dtype=np.float64)

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str:
        named = [f"{output}{AT_LEAST}{level}" for level in self.levels] if output else []
        names = named or [""] * len(self.steps)
        parts = [step.add_to(graph, features, width, name) for step, name in zip(self.steps, names, strict=True)]
        for level, share in self.shares.items() if output else ():
            nothing = graph.add("Mul", parts[0], graph.number(0.0))
            graph.add("Add", nothing, graph.number(share), name=f"{output}{AT_LEAST}{level}")
        return graph.add("Sum", graph.number([[self.base]]), *parts, name=output)

    def at_least(self, X: NDArray[np.float32]) -> dict[int, Floats]:
        """Returns the probability (n,) of at least each level above the lowest."""
        known = {level: step.learned(X) for level, step in zip(self.levels, self.steps, strict=True)}
        return known | {level: np.full(len(X), share) for level, share in self.shares.items()}


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

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str:
        scaled = graph.add("Mul", self.trees.add_to(graph, features, width), graph.number(self.slope))
        low, high = self.scale
        floored = graph.add("Max", graph.add("Add", scaled, graph.number(self.intercept)), graph.number(low))
        return graph.add("Min", floored, graph.number(high), name=output)


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
    read: LadderColumns = WHOLE,
    inverted: bool = False,
    climb: bool = True,
    seed: int = 0,
) -> RunProbability:
    """Fits the ladder as far as the data carry (`fit_ladder`), and Platt's map on the calibration rows.

    Without `climb`, for runs that nobody has seen, the map is of scores without base rates.

    `y` (n,) is 1 for good answers. Platt's map alone keeps a base rate what it is, an amount added to the log-odds. It
    must rise: the ladder has decided which way round its number tells.
    """
    ladder = fit_ladder(X, y, groups, runs, roles, names=names, read=read, climb=climb, seed=seed)
    rows = roles.calibration
    scores = ladder.score_of(X[rows], runs[rows]) if climb else ladder.score(X[rows])
    return RunProbability(ladder, fit_platt(scores, y[rows], rising=True), inverted)


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
    read: LadderColumns = WHOLE,
    seed: int = 0,
) -> Level:
    """A classifier for each of `steps`; any other step up the scale is taken to be its share of the rows seen."""
    fitted = [
        fit_probability(X, (grades >= step).astype(np.int64), groups, runs, roles, names=names, read=read, seed=seed)
        for step in steps
    ]
    low, high = scale
    rest = [step for step in range(low + 1, high + 1) if step not in steps]
    shares = {step: float((grades[roles.seen] >= step).mean()) for step in rest}
    return Level(low + sum(shares.values()), tuple(fitted), tuple(steps), shares)


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


def columns_read(heads: Iterable[FittedHead], width: int) -> list[int]:
    """Returns the features that some head reads, of so many: all where one of them has trees."""
    parts = [part for head in heads for part in (head.steps if isinstance(head, Level) else (head,))]
    linear = [part for part in parts if isinstance(part, RunProbability) and part.scorer.trees is None]
    if len(linear) < len(parts):
        return list(range(width))
    return sorted({part.scorer.read.places[int(i)] for part in linear for i in np.flatnonzero(part.scorer.weights)})


def on_columns(head: FittedHead, kept: Sequence[int]) -> FittedHead:
    """Returns the head for features of which only these columns are left; one with trees reads all of them."""

    def narrowed(step: RunProbability) -> RunProbability:
        return replace(step, scorer=only_columns(step.scorer, kept)) if step.scorer.trees is None else step

    if isinstance(head, Level):
        return replace(head, steps=tuple(map(narrowed, head.steps)))
    return narrowed(head) if isinstance(head, RunProbability) else head


def linear_graph(
    *,
    input_name: str,
    mean: NDArray[np.float64],
    scale: NDArray[np.float64],
    weights: NDArray[np.float64],
    intercept: NDArray[np.float64],
    outputs: Sequence[str],
    calibrator: Calibrator | None = None,
    impute: bool = False,
) -> bytes:
    """sigmoid(((x - mean) / scale) @ weights + intercept): (n, d) float32 in, one (n, 1) probability per output name.

    `weights` is (d, heads), `intercept` (heads,). With a `calibrator`, for one output, its map takes the place of the
    sigmoid. With `impute`, NaN inputs take the training mean, that is 0 once standardised.
    """
    graph = GraphBuilder()
    x = graph.add("Div", graph.add("Sub", input_name, graph.number(mean)), graph.number(scale))
    if impute:
        x = graph.add("Where", graph.add("IsNaN", x), graph.number([0.0]), x)
    logits = graph.add("Add", graph.add("MatMul", x, graph.number(weights)), graph.number(intercept))
    if calibrator is not None:
        calibrator.add_to(graph, logits, outputs[0])
    elif len(outputs) == 1:
        graph.add("Sigmoid", logits, name=outputs[0])
    else:
        first = graph.add("Split", logits, graph.constant([1] * len(outputs)), more=len(outputs) - 1, axis=1)
        for number, output in enumerate(outputs):
            graph.add("Sigmoid", f"{first}_{number}" if number else first, name=output)
    return graph.model({input_name: len(weights)}, outputs)


def trees_graph(
    heads: Mapping[str, FittedHead | tuple[LogOddsModel, Calibrator]], *, width: int, input_name: str = "features"
) -> bytes:
    """Fitted heads on one input: (n, width) float32 features in, one (n, 1) value per head.

    A pair is a model that gives log-odds, then its calibrator. NaN features go the way LightGBM sends them. Behind the
    heads come the probabilities of at least each level of those with levels (`outputs_of`).
    """
    graph, outputs = GraphBuilder(), list(heads)
    for name, head in heads.items():
        fitted = Probability(*head) if isinstance(head, tuple) else head
        fitted.add_to(graph, input_name, width, name)
        if isinstance(fitted, Level):
            outputs += [f"{name}{AT_LEAST}{level}" for level in (*fitted.levels, *fitted.shares)]
    return graph.model({input_name: width}, outputs)


def outputs_of(heads: Mapping[str, FittedHead], X: NDArray[np.float32]) -> dict[str, Floats]:
    """Returns what the graph of these heads gives for features (n, d): output -> (n,)."""
    values = {name: head.value(X) for name, head in heads.items()}
    for name, head in heads.items():
        if isinstance(head, Level):
            values |= {f"{name}{AT_LEAST}{level}": p for level, p in head.at_least(X).items()}
    return values
