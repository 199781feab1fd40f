"""Hidden states by layer and position, and the linear probes of them.

States are in memory where they fit, else read from the stores one block at a time.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.ranked import auroc
from metaprobe.records.activations import CONVENTION, ActivationFile, Activations, Layout, join_activations
from metaprobe.records.canaries import CANARIES_FILE, CanaryStates, compare_canaries
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.extras import require
from metaprobe.records.store import RunStore
from metaprobe.records.types import HIDDEN, POSITIONS, FloatArray
from metaprobe.training.calibration import Calibrator
from metaprobe.training.checkpoint import GraphBuilder
from metaprobe.training.folds import Roles, Rows, group_folds

IN_MEMORY = 2 << 30
"""Bytes of hidden states that are held at once."""

Block = NDArray[np.floating]
"""(n, D): the states of all answers, in the order of their table, at one layer and position."""


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """States that are loaded: float16 from stores, float32 from arrays of the caller."""

    activations: Activations
    model: str = ""
    """Which model read them (`NAME@REVISION`), where it is another than the one that answered."""
    canaries: CanaryStates | None = None
    """The canaries' states by the source of these states; None where they are not known."""

    @property
    def layers(self) -> tuple[int, ...]:
        return self.activations.layers

    @property
    def positions(self) -> tuple[str, ...]:
        return self.activations.positions

    def read(self, layer: int, position: str) -> Block:
        check_captured(self, (layer,), (position,))
        values = self.activations.values[:, self.layers.index(layer), self.positions.index(position)]
        return _finite(values, layer, position)


@dataclass(frozen=True, slots=True, eq=False)
class OnDisk:
    """States of the given calls, read block by block: memory does not grow with layers and positions."""

    stores: tuple[RunStore, ...]
    """Stores, in the order of `call_ids`."""
    call_ids: tuple[tuple[str, ...], ...]
    """Ids of the calls of each store."""
    order: NDArray[np.intp]
    """Row i of a block is row order[i] of the stores' calls, one store after the other."""
    layers: tuple[int, ...]
    positions: tuple[str, ...]
    model: str = ""
    """Which model read them (`NAME@REVISION`), where it is another than the one that answered."""
    canaries: CanaryStates | None = None
    """The canaries' states by the source of these states; None where they are not known."""

    def loaded(self) -> InMemory:
        """Returns the states, loaded into memory."""
        values = np.concatenate([self._of(store, ids, self.layers, self.positions) for store, ids in self._each()])
        ids = tuple(chain.from_iterable(self.call_ids))
        ordered = Activations(tuple(ids[i] for i in self.order), values[self.order], self.layers, self.positions)
        return InMemory(ordered, self.model, self.canaries)

    def check_finite(self) -> None:
        """Raises `RecordError` naming the files in which one of these states is NaN or infinity.

        Reads everything once, a file at a time.
        """
        bad: set[str] = set()
        spoilt: list[Path] = []
        for file, asked in ((file, set(ids)) for store, ids in self._each() for file in self._files(store, ids)):
            at = [i for i, layer in enumerate(file.layout.layers) if layer in self.layers]
            where = [i for i, position in enumerate(file.layout.positions) if position in self.positions]
            rows = np.array([row for row, call_id in enumerate(file.call_ids) if call_id in asked], dtype=np.intp)
            if at and where and (broken := ~np.isfinite(file.read(rows, at, where)).all(axis=(1, 2, 3))).any():
                bad |= {file.call_ids[row] for row in rows[broken]}
                spoilt.append(file.path)
        if bad:
            more = f" and {len(spoilt) - 5} more" if len(spoilt) > 5 else ""
            raise RecordError(
                f"{len(bad)} of {len(self.order)} answers have hidden states that are NaN or infinite: delete "
                f"{', '.join(map(str, spoilt[:5]))}{more}, and run `metaprobe extract` with a sound model, in bfloat16 "
                "or float32"
            )

    def read(self, layer: int, position: str) -> Block:
        check_captured(self, (layer,), (position,))
        parts = [self._of(store, ids, (layer,), (position,))[:, 0, 0] for store, ids in self._each()]
        return _finite(np.concatenate(parts)[self.order].astype(np.float16, copy=False), layer, position)

    def _each(self) -> Iterator[tuple[RunStore, tuple[str, ...]]]:
        return zip(self.stores, self.call_ids, strict=True)

    def _of(
        self, store: RunStore, ids: tuple[str, ...], layers: tuple[int, ...], positions: tuple[str, ...]
    ) -> NDArray[np.float16]:
        return join_activations(self._files(store, ids), ids, layers, positions)

    def _files(self, store: RunStore, ids: tuple[str, ...]) -> list[ActivationFile]:
        wanted = set(ids)
        return [f for f in store.activation_files() if f.model == self.model and not wanted.isdisjoint(f.call_ids)]


@dataclass(frozen=True, slots=True, eq=False)
class ChosenRows:
    """Rows of other states, some of them several times; a block is read when it is asked for."""

    whole: "States"
    rows: NDArray[np.intp]
    """(n,): row i is this row of the whole."""

    @property
    def layers(self) -> tuple[int, ...]:
        return self.whole.layers

    @property
    def positions(self) -> tuple[str, ...]:
        return self.whole.positions

    @property
    def model(self) -> str:
        """Which model read them (`NAME@REVISION`), where it is another than the one that answered."""
        return self.whole.model

    @property
    def canaries(self) -> CanaryStates | None:
        """The canaries' states by the source of these states; None where they are not known."""
        return self.whole.canaries

    def read(self, layer: int, position: str) -> Block:
        return self.whole.read(layer, position)[self.rows]


def check_captured(states: "States", layers: Sequence[int], positions: Sequence[str]) -> None:
    """Raises `RecordError` where some of them were not captured."""
    if absent := [position for position in positions if position not in states.positions]:
        raise RecordError(f"positions {absent} were not captured; there are: {', '.join(states.positions)}")
    if missing := [layer for layer in layers if layer not in states.layers]:
        raise RecordError(f"layers {missing} were not captured; there are: {', '.join(map(str, states.layers))}")


def _finite(block: Block, layer: int, position: str) -> Block:
    if bad := int((~np.isfinite(block)).any(axis=1).sum()):
        raise RecordError(
            f"layer {layer}, {position}: {bad} of {len(block)} hidden states are not finite: capture or extract them "
            f"again, with a model in bfloat16 or float32"
        )
    return block


States = InMemory | OnDisk | ChosenRows
"""n answers x layers x positions, of width D. `read` raises `RecordError` where a block was not captured, or is not
finite."""


# Which of the stored hidden states a probe learns from: whose reading, which layers, which positions.

Cell = tuple[int, str]
"""A layer and a position."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The stored states that are asked for; what is left open is chosen."""

    layers: str = "all"
    """`all`, `every:N` (those that N divides), or numbers such as `8,16`."""
    positions: tuple[str, ...] = ()
    """Empty for all positions that go with the layers."""
    states_of: str = ""
    """The model that read them: its name, or `NAME@REVISION`."""


ANYTHING = Wanted()


@dataclass(frozen=True, slots=True)
class Held:
    """The states that one model read of the calls asked for."""

    cells: frozenset[Cell]
    """Layers and positions that are stored for each call of which the model read any."""
    widths: frozenset[int]
    without: int
    """Calls of which it read nothing."""


def states_by_reader(stores: Sequence[RunStore], call_ids: Sequence[str]) -> dict[str, Held]:
    """Reader -> what it read of these calls; the reader `""` is the model that answered."""
    wanted = set(call_ids)
    layouts: dict[str, dict[str, set[Layout]]] = {}
    for store in stores:
        for file in store.activation_files():
            calls = layouts.setdefault(file.model, {})
            for call_id in wanted.intersection(file.call_ids):
                calls.setdefault(call_id, set()).add(file.layout)
    by_reader = {}
    for reader, calls in layouts.items():
        kinds = {frozenset(of) for of in calls.values()}  # few, however many calls
        cells = [{(layer, p) for layout in kind for layer in layout.layers for p in layout.positions} for kind in kinds]
        widths = frozenset(layout.width for kind in kinds for layout in kind)
        by_reader[reader] = Held(frozenset(set.intersection(*cells) if cells else ()), widths, len(wanted) - len(calls))
    return by_reader


def chosen_reader(held: Mapping[str, Held], calls: int, wanted: Wanted, models: Collection[str]) -> str | None:
    """Returns whose states are learned from; None where nobody read all calls. `models`: those that answered."""
    answered = sorted(filter(None, models))
    if wanted.states_of:
        reader = _named(held, wanted.states_of, answered)
        if short := held[reader].without:
            raise RecordError(
                f"{wanted.states_of} read {calls - short} of {calls} of these answers: run `metaprobe extract` on the "
                "rest"
            )
    else:
        whole = [reader for reader, of in held.items() if not of.without]
        if not whole:
            return None
        if len(whole) > 1 and "" not in whole:
            raise StoreMismatch(f"{' and '.join(whole)} read these answers: give one of them as --states-of")
        reader = "" if "" in whole else whole[0]
    if not reader and len(answered) > 1:
        others = [other for other, of in held.items() if other and not of.without]
        raise StoreMismatch(
            f"{' and '.join(answered)} each read their own answers, and hidden states of several models have no "
            "direction in common: choose one model's answers with --agent, or train on its runs alone"
            + (f", or give --states-of {others[0]}, which read all of them" if others else "")
        )
    if len(held[reader].widths) > 1:
        widths = " and ".join(map(str, sorted(held[reader].widths)))
        raise StoreMismatch(f"the hidden states are of width {widths}, so of several models: train on one model's runs")
    if not held[reader].cells:
        raise StoreMismatch(
            "the answers have no layer and position in common of which hidden states are stored: run `metaprobe "
            "extract` on all of them alike"
        )
    return reader


def _named(held: Mapping[str, Held], states_of: str, answered: Sequence[str]) -> str:
    """The reader of that name. Raises `RecordError` where there is none, or where several revisions read."""
    if "" in held and states_of in answered:
        return ""
    # A reader is NAME@REVISION.
    readers = [one for one in held if one and states_of in (one, one.rpartition("@")[0] or one)]
    if len(readers) > 1:
        raise RecordError(f"{states_of} read these answers in several revisions; give one of {', '.join(readers)}")
    if not readers:
        own = f"{' and '.join(answered) or 'the model'} (which answered)"
        there = ", ".join(reader or own for reader in held) or "none at all"
        raise RecordError(f"no hidden states that {states_of} read are stored; there are those of {there}")
    return readers[0]


def chosen_grid(cells: Collection[Cell], wanted: Wanted) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """(layers, positions): all that are asked for, and of what is left open the largest grid of which all is there.

    Raises `RecordError` naming what there is.
    """
    layers, exact = _layers(sorted({layer for layer, _ in cells}), wanted.layers)
    there = sorted({position for _, position in cells}, key=_rank)
    if absent := [position for position in wanted.positions if position not in there]:
        raise RecordError(f"positions {absent} were not captured; there are: {', '.join(there)}")
    asked = sorted(set(wanted.positions), key=_rank)
    tried = [asked] if asked else chain.from_iterable(combinations(there, n) for n in range(1, len(there) + 1))
    best: tuple[tuple[int, ...], tuple[str, ...]] = ((), ())
    for positions in tried:
        whole = tuple(layer for layer in layers if all((layer, position) in cells for position in positions))
        if (not exact or whole == layers) and len(whole) * len(positions) >= len(best[0]) * len(best[1]):
            best = whole, tuple(positions)
    if not best[0]:
        kept = "; ".join(
            f"{position}: layers {', '.join(str(layer) for layer, of in sorted(cells) if of == position)}"
            for position in there
        )
        raise RecordError(f"what is asked for is not stored together; there are {kept}")
    return best


def _layers(there: Sequence[int], choice: str) -> tuple[tuple[int, ...], bool]:
    """The layers that a choice means, and whether it names each of them."""
    stored = ", ".join(map(str, there))
    step = choice.removeprefix("every:")
    if choice == "all":
        return tuple(there), False
    if choice.startswith("every:") and step.isdecimal() and int(step) > 0:
        divided = tuple(layer for layer in there if layer % int(step) == 0)
        if not divided:
            raise RecordError(f"no layer that {step} divides was captured; there are: {stored}")
        return divided, False
    numbers = [part.strip() for part in choice.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise RecordError(f"layers {choice!r}: expected 'all', 'every:N', or numbers such as 8,16; there are: {stored}")
    named = tuple(sorted({int(number) for number in numbers}))
    if missing := [layer for layer in named if layer not in there]:
        raise RecordError(f"layers {missing} were not captured; there are: {stored}")
    return named, True


def _rank(position: str) -> tuple[int, str]:
    return (POSITIONS.index(position) if position in POSITIONS else len(POSITIONS), position)


def load_states(
    stores: Sequence[RunStore], call_ids: Sequence[str], *, wanted: Wanted = ANYTHING, models: Collection[str] = ()
) -> tuple[InMemory | OnDisk | None, int]:
    """Hidden states of these calls, None unless every one has them; and how many have none.

    The answering model's own states come first; where not all calls have these, those that one other model read
    (`states.model`). What several requests kept is joined: of the layers and positions that `wanted` leaves open, the
    largest grid that every call has. They are read into memory where they take at most `IN_MEMORY`, else block by block
    from the disk.

    Raises `RecordError` where what is asked for is not stored, and where a state is NaN or infinite; `StoreMismatch`
    where they do not fit together: of several `models` (those that answered), of several widths, by several readers of
    whom none is named, or with no layer and position in common.
    """
    held = states_by_reader(stores, call_ids)
    reader = chosen_reader(held, len(call_ids), wanted, models)
    if reader is None:
        return None, min((of.without for of in held.values()), default=len(call_ids))
    layers, positions = chosen_grid(held[reader].cells, wanted)
    left = set(call_ids)
    parts: dict[RunStore, tuple[str, ...]] = {}
    sources: dict[str, CanaryStates | None] = {}
    for store in stores:
        files = [file for file in store.activation_files() if file.model == reader]
        read = [f for f in files if not left.isdisjoint(f.call_ids) and not {*layers}.isdisjoint(f.layout.layers)]
        sources |= {"" if file.canaries is None else file.canaries.digest: file.canaries for file in read}
        here = tuple(dict.fromkeys(call_id for file in files for call_id in file.call_ids if call_id in left))
        left.difference_update(here)
        if here:
            parts[store] = here
    row = {call_id: i for i, call_id in enumerate(chain.from_iterable(parts.values()))}
    order = np.array([row[call_id] for call_id in call_ids], dtype=np.intp)
    canaries = common_source(list(sources.values()), layers)
    stored = OnDisk(tuple(parts), tuple(parts.values()), order, layers, positions, reader, canaries)
    [width] = held[reader].widths
    if 2 * len(call_ids) * len(layers) * len(positions) * width > IN_MEMORY:
        stored.check_finite()
        return stored, 0
    loaded = stored.loaded()
    if not all(np.isfinite(loaded.activations.values[:, i]).all() for i in range(len(layers))):
        stored.check_finite()  # which says where
    return loaded, 0


def common_source(sources: Sequence[CanaryStates | None], layers: Sequence[int]) -> CanaryStates | None:
    """Returns the canaries' states of a training's sources, which must give equal states; None where not all sources
    gave them for these layers, with a warning where some did. Raises `StoreMismatch` where two sources give different
    ones."""
    first = sources[0] if sources else None
    if first is None or any(one is None or not {*layers} <= {*one.layers} for one in sources):
        if any(one is not None for one in sources):
            warnings.warn(
                f"metaprobe: hidden states of {len(sources)} sources, not all of which read the canaries at layers "
                f"{list(layers)}: they count as not checked, and a checkpoint that is trained on them checks no "
                "source; read all these layers by one `metaprobe extract`",
                stacklevel=2,
            )
        return None
    for other in sources[1:]:
        if other is not None and not (checked := compare_canaries(first, other, layers)).passed:
            raise StoreMismatch(
                f"the hidden states are of two sources that differ ({first.source}, {first.model}, and {other.source}, "
                f"{other.model}): {checked.reason}; train on those of one source"
            )
    return first


def canaries_file(canaries: CanaryStates | None, layers: Sequence[int]) -> dict[str, bytes]:
    """Returns the checkpoint's file of canaries, by name, for a probe of these layers; none where none are known."""
    return {} if canaries is None else {CANARIES_FILE: canaries.near(layers).to_json()}


# A linear probe on hidden states, fitted: which layers and position it reads, its weights, and what else was tried.


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """AUROC that one layer and position reached at its best penalty."""

    layer: int
    position: str
    penalty: float
    auroc: float
    """Mean over the inner folds, of rows of the learning part that the probe was not fitted on."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearProbe:
    """score = ((h - mean) / scale) @ weights + intercept; h: the states of its layers at one position, side by side."""

    layers: tuple[int, ...]
    position: str
    penalty: float
    mean: Floats
    """(layers * D,), as scale and weights."""
    scale: Floats
    weights: Floats
    intercept: float
    sweep: tuple[SweepPoint, ...] = ()
    """Every layer and position tried."""
    tried: int = 1
    """Combinations of layer, position and penalty among which it was chosen."""

    def contract(self, target: str) -> dict[str, Any]:
        """Returns the contract of the probe's checkpoint: what it reads and what it gives."""
        return {
            **({"layer": self.layers[0]} if len(self.layers) == 1 else {"layers": list(self.layers)}),
            "position": self.position,
            "width": len(self.weights) // len(self.layers),
            "convention": CONVENTION,
            "target": target,
        }

    def graph(self, output: str, calibrator: Calibrator) -> bytes:
        """Returns the probe for ONNX: float32 (n, layers * D) in, (n, 1) probabilities out."""
        return linear_graph(
            input_name=HIDDEN,
            mean=self.mean,
            scale=self.scale,
            weights=self.weights[:, None],
            intercept=np.array([self.intercept]),
            outputs=[output],
            calibrator=calibrator,
        )

    def score(self, states: States, rows: Rows | None = None) -> Floats:
        """(rows,), higher is likelier to be right; not yet a probability."""
        return self.score_of(self.read(states, rows))

    def read(self, states: States, rows: Rows | None = None) -> FloatArray:
        """Returns the states that the probe reads: float32 (rows, layers * D)."""
        blocks = [states.read(layer, self.position) for layer in self.layers]
        chosen = [block if rows is None else block[rows] for block in blocks]
        return np.concatenate(chosen, axis=1).astype(np.float32)

    def score_of(self, hidden: FloatArray) -> Floats:
        """(n, layers * D) -> (n,)."""
        return ((hidden.astype(np.float64) - self.mean) / self.scale) @ self.weights + self.intercept


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


def score_held_out(block: Block, y: Floats, fold: NDArray[np.intp], penalties: Sequence[float]) -> Floats:
    """Returns each row's score (n, P) by the probe that was fitted on the rows of all other folds.

    `fold` (n,): each row's number, from 0. States are standardised by the moments of all rows, which know no labels.
    """
    solved = _solve(block, y, fold != np.arange(int(fold.max()) + 1)[:, None], penalties)[0]
    scores: Floats = solved.scores.double().numpy().transpose(0, 2, 1)  # (F, n, P)
    return scores[fold, np.arange(len(y))]


def _solve(
    block: Block, y: Floats, learns: NDArray[np.bool_], penalties: Sequence[float]
) -> tuple[Any, Floats, Floats]:
    """Returns all folds and penalties `Solved`, with mean and scale (D,) of the states.

    `y` (n,) lies in [0, 1]; `learns` (F, n) says whether a fold learns from a row. A constant unit has scale infinity.
    """
    torch = require("torch", "train")  # takes seconds to load

    from metaprobe.training.solve import GRADIENT_TOLERANCE, solve_logistic, standardise

    # torch widens float16 ten times as fast as NumPy does.
    Z, mean, scale = standardise(torch.tensor(block).float())
    solved = solve_logistic(
        Z,
        torch.from_numpy(y).float(),
        torch.from_numpy(learns).float(),
        torch.tensor(penalties, dtype=torch.float32),
    )
    if not solved.gradient <= GRADIENT_TOLERANCE:
        warnings.warn(
            f"a logistic probe ended with a gradient of {solved.gradient:.1e}, above {GRADIENT_TOLERANCE:g}: its "
            "states may "
            "hold units of very different spread, or the penalty may be too small",
            RuntimeWarning,
            stacklevel=3,
        )
    return solved, mean.double().numpy(), scale.double().numpy()


# The choice of layer, position and penalty of a probe: all are tried in inner folds, and one is chosen.
#
# The choice is made on rows of the learning part that the probe was not fitted on; test rows are never read.

RIDGE_PENALTIES = (0.01, 0.1, 1.0, 10.0)
"""Ridge penalties, in units of the mean eigenvalue of the standardised states' covariance, which is 1."""
PENALTY_FOLDS = 5


def fit_linear_probe(
    states: States,
    y: NDArray[np.int64],
    groups: Sequence[str],
    roles: Roles,
    *,
    positions: Sequence[str],
    layers: Sequence[int] = (),
    penalties: Sequence[float] = RIDGE_PENALTIES,
    seed: int = 0,
) -> LinearProbe:
    """The probe of the simplest layer, position and penalty of `near_best`, fitted on all learning rows.

    Hundreds of combinations are tried, so a single selection part of some hundred rows would mostly select noise: every
    learning row takes its turn, in `PENALTY_FOLDS` folds by group. `layers`: those to choose among; all unless given.
    Raises `RecordError` where a position is missing.
    """
    check_captured(states, (), positions)
    pool, target = roles.learning, y.astype(np.float64)
    places = [(layer, position) for position in positions for layer in layers or states.layers]
    reached = held_out_folds(states, y, groups, roles, places, penalties=penalties, seed=seed)
    means, near = reached.mean(axis=1), near_best(reached)
    # The strongest penalty of those near the best, then the best mean (Breiman et al. 1984, section 3.4.3, for the
    # rule; the choice of what is simple is ours, for one layer is no simpler than another).
    p = int(np.flatnonzero(near.any(axis=0)).max())
    place = int(np.where(near[:, p], means[:, p], -np.inf).argmax())
    best = means.argmax(axis=1)
    layer, position = places[place]
    whole = np.ones((1, len(pool)), dtype=np.bool_)
    solved, mean, scale = _solve(states.read(layer, position)[pool], target[pool], whole, penalties[p : p + 1])
    constant = np.isinf(scale)
    return LinearProbe(
        layers=(layer,),
        position=position,
        penalty=penalties[p],
        mean=mean,
        scale=np.where(constant, 1.0, scale),
        weights=np.where(constant, 0.0, solved.weights[0, 0].double().numpy()),
        intercept=float(solved.intercept[0, 0]),
        sweep=tuple(
            SweepPoint(layer, position, penalties[best[i]], float(means[i, best[i]]))
            for i, (layer, position) in enumerate(places)
        ),
        tried=reached.shape[0] * reached.shape[2],
    )


def unseen_probe_scores(
    probe: LinearProbe, states: States, y: NDArray[np.int64], groups: Sequence[str], roles: Roles, *, seed: int = 0
) -> Floats:
    """Returns a score (n,) of each seen row by a probe that saw no answer of the row's group, NaN of other rows.

    Calibration rows have the scores of the probe itself, which must read one layer. Learning rows have those of probes
    of the same layer, position and penalty that were fitted on the other inner folds.
    """
    pool, scores = roles.learning, np.full(len(y), np.nan)
    scores[roles.calibration] = probe.score(states, roles.calibration)
    fold = np.empty(len(y), dtype=np.intp)
    for number, (_, part) in enumerate(group_folds(pool, groups, y, PENALTY_FOLDS, seed + 2)):
        fold[part] = number
    block = states.read(probe.layers[0], probe.position)[pool]
    scores[pool] = score_held_out(block, y[pool].astype(np.float64), fold[pool], [probe.penalty])[:, 0]
    return scores


def held_out_folds(
    states: States,
    y: NDArray[np.int64],
    groups: Sequence[str],
    roles: Roles,
    places: Sequence[tuple[int, str]],
    *,
    penalties: Sequence[float] = RIDGE_PENALTIES,
    seed: int = 0,
) -> Floats:
    """Returns the AUROC (places, folds, penalties) on each inner fold of the learning rows, by probes of the others.

    `places`: layers with positions.
    """
    pool, target = roles.learning, y.astype(np.float64)
    fold = np.empty(len(y), dtype=np.intp)
    for number, (_, part) in enumerate(group_folds(pool, groups, y, PENALTY_FOLDS, seed + 2)):
        fold[part] = number
    reached = np.empty((len(places), PENALTY_FOLDS, len(penalties)))
    for i, (layer, position) in enumerate(places):
        scores = score_held_out(states.read(layer, position)[pool], target[pool], fold[pool], penalties)
        for f, p in np.ndindex(reached.shape[1:]):
            here = fold[pool] == f
            reached[i, f, p] = auroc(y[pool][here], scores[here, p])
    return np.where(np.isnan(reached), 0.5, reached)  # a fold of one class says nothing


def near_best(reached: Floats) -> NDArray[np.bool_]:
    """Returns which choices (places, penalties) the folds cannot distinguish from the best one.

    `reached` (places, folds, penalties). The standard error is that of the paired difference from the best over the
    folds, for what makes one fold easier than another is shared.
    """
    means = reached.mean(axis=1)
    best = np.unravel_index(int(means.argmax()), means.shape)
    behind = reached[best[0], :, best[1]][None, :, None] - reached
    error = behind.std(axis=1, ddof=1) / np.sqrt(reached.shape[1])
    near: NDArray[np.bool_] = behind.mean(axis=1) <= error  # the best itself has 0 <= 0
    return near
