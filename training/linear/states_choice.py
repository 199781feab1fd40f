"""Which of the stored hidden states a probe learns from: whose reading, which layers, which positions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from metaprobe.records.activations import Layout
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.store import RunStore
from metaprobe.records.types import POSITIONS

Cell = tuple[int, str]
"""A layer and a position."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for of the stored states; what is left open is chosen."""

    layers: str = "all"
    """`all`, `every:N` (those that N divides), or numbers such as `8,16`."""
    positions: tuple[str, ...] = ()
    """None: all that go with the layers."""
    states_of: str = ""
    """The model that read them: its name, or `NAME@REVISION`."""


ANYTHING = Wanted()


@dataclass(frozen=True, slots=True)
class Held:
    """What one model read of the calls asked for."""

    cells: frozenset[Cell]
    """What every one of the calls has of which it read any."""
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
    found = {}
    for reader, calls in layouts.items():
        kinds = {frozenset(of) for of in calls.values()}  # few, however many calls
        cells = [{(layer, p) for layout in kind for layer in layout.layers for p in layout.positions} for kind in kinds]
        widths = frozenset(layout.width for kind in kinds for layout in kind)
        found[reader] = Held(frozenset(set.intersection(*cells) if cells else ()), widths, len(wanted) - len(calls))
    return found


def chosen_reader(held: Mapping[str, Held], calls: int, wanted: Wanted, models: Collection[str]) -> str | None:
    """Whose states are learned from; None where nobody read all calls. `models`: those that answered."""
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
    found = [reader for reader in held if reader and states_of in (reader, model_of(reader))]
    if len(found) > 1:
        raise RecordError(f"{states_of} read these answers in several revisions; give one of {', '.join(found)}")
    if not found:
        own = f"{' and '.join(answered) or 'the model'} (which answered)"
        there = ", ".join(reader or own for reader in held) or "none at all"
        raise RecordError(f"no hidden states that {states_of} read are stored; there are those of {there}")
    return found[0]


def model_of(reader: str) -> str:
    """The name in `NAME@REVISION`."""
    return reader.rpartition("@")[0] or reader


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
        found = tuple(layer for layer in there if layer % int(step) == 0)
        if not found:
            raise RecordError(f"no layer that {step} divides was captured; there are: {stored}")
        return found, False
    numbers = [part.strip() for part in choice.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise RecordError(f"layers {choice!r}: expected 'all', 'every:N', or numbers such as 8,16; there are: {stored}")
    named = tuple(sorted({int(number) for number in numbers}))
    if missing := [layer for layer in named if layer not in there]:
        raise RecordError(f"layers {missing} were not captured; there are: {stored}")
    return named, True


def _rank(position: str) -> tuple[int, str]:
    return (POSITIONS.index(position) if position in POSITIONS else len(POSITIONS), position)
