"""Fixed short conversations whose hidden states are known: do the states that a source gives belong to their tokens?

A source of hidden states (transformers, vLLM, another engine) reads the canaries in the same way as it reads answers.
`CanaryStates` holds the states that one source gave. Training stores those of its source with a probe;
`compare_canaries` compares the source that the probe is used with. The texts are fixed, so a checkpoint holds no text
of a user.
"""

import base64
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError
from metaprobe.records.types import FloatArray, Message

CANARIES_FILE = "canaries.json"
"""File in a checkpoint with the states of the canaries."""
CANARIES_PREFIX = "canaries-"
"""Beginning of the names of such files in a run store; the digest follows."""
CANARY_POSITIONS = ("prompt_last", "answer_first", "answer_last", "answer_mean")
"""Positions at which canaries are read."""
CANARIES_AT_ONCE = 5
"""Canaries in one batch: some are then padded and some are not, and some share a beginning with others."""
FEWEST_CANARIES = 4
"""Fewest canaries that make a check. A model with a very short context cannot read all canaries."""


@dataclass(frozen=True, slots=True)
class StatesTolerance:
    """Largest differences from the golden states that are still rounding, as shares of the states' spread."""

    drift: float
    """Limit for the median over canaries and positions, by which other weights show."""
    worst: float
    """Limit for the largest difference at one canary and position, by which wrong tokens show."""


TOLERANCES = {
    "float32": StatesTolerance(0.005, 0.03),
    "float16": StatesTolerance(0.02, 0.08),
    "bfloat16": StatesTolerance(0.05, 0.2),
}
"""Tolerances by number format; of two sources the coarser format counts. Chosen in docs/research/states.md."""
OTHER_LIBRARY = 1.5
"""Factor on the limit of `drift` if two different libraries read the states, because their kernels round independently.
"""
NAN = float("nan")
_FLOOR = 0.02
"""Smallest spread of a channel, as a share of the channel's mean and of the median channel's spread. At some positions
all canaries have nearly equal states, and rounding alone would look large there.
"""


@dataclass(frozen=True, slots=True)
class Canary:
    """One conversation: what is asked, and the answer that the model is made to give."""

    id: str
    messages: tuple[Message, ...]
    answer: str


_LIST = "Here is a list of eight rivers and the seas into which they flow. Read it, then answer my question. "
_RIVERS = (
    "The Rhine, the Thames and the Elbe flow into the North Sea. The Danube and the Dnieper flow into the Black Sea. "
    "The Volga flows into the Caspian Sea. The Nile flows into the Mediterranean. The Oder flows into the Baltic Sea. "
)


def _user(name: str, question: str, answer: str, system: str = "") -> Canary:
    first = (Message("system", system),) if system else ()
    return Canary(name, (*first, Message("user", question)), answer)


CANARIES = (
    _user("short", "Hi.", "Hello! How can I help?"),
    _user("fact", "What is the capital of Japan?", "The capital of Japan is Tokyo."),
    # These two differ in one word in the middle: their last tokens are equal, their states are not.
    _user("twin one", "A train leaves at 9 and arrives at 11. How long is the trip?", "It takes 2 hours."),
    _user("twin two", "A train leaves at 7 and arrives at 11. How long is the trip?", "It takes 4 hours."),
    # These three begin with the same hundred tokens and more, which an engine may keep from one request for the next.
    _user(
        "shared one", _LIST + _RIVERS + "Into which sea does the Volga flow?", "The Volga flows into the Caspian Sea."
    ),
    _user("shared two", _LIST + _RIVERS + "Name one river of the Black Sea.", "One of them is the Danube."),
    _user("shared three", _LIST + _RIVERS + "Which river flows south?", "The Nile flows north, none of them does."),
    _user("code", "Write a function that adds two numbers.", "def add(a, b):\n    return a + b"),
    _user("signs", "Réponds en français : combien font 12 × 13 ?", "Cela fait 156, c'est-à-dire 12 × 13 = 156."),
    _user("system", "Is the earth flat?", "No. It is nearly a sphere.", system="You are a careful teacher."),
    Canary(
        "turns",
        (
            Message("user", "Pick a number below ten."),
            Message("assistant", "I pick seven."),
            Message("user", "Double it, then add one, and explain each step in a few words."),
        ),
        "Seven times two is fourteen, and one more makes fifteen.",
    ),
    # One token is repeated, so a state that is one place off still belongs to an equal token.
    _user("same", "Say ha ten times.", "ha ha ha ha ha ha ha ha ha ha"),
)
"""All canaries: of several lengths, with a shared beginning, equal endings, and repeated tokens."""


@dataclass(frozen=True, eq=False)
class CanaryStates:
    """Hidden states of n canaries, as one source gave them at `CANARY_POSITIONS`."""

    source: str
    """Library or engine with its version, such as `transformers 5.24.0`."""
    model: str
    revision: str
    dtype: str
    """Number format of the weights, one of `TOLERANCES`. States of any other format fail every comparison."""
    layers: tuple[int, ...]
    ids: tuple[str, ...]
    """(n,): names of the canaries."""
    prompts: tuple[tuple[int, ...], ...]
    """(n,): token ids of each prompt, through the source's chat template."""
    answers: tuple[tuple[int, ...], ...]
    """(n,): token ids of each answer."""
    values: FloatArray
    """float16, (n, layers, positions, width)."""

    def __post_init__(self) -> None:
        expected = (len(self.ids), len(self.layers), len(CANARY_POSITIONS))
        if self.values.ndim != 4 or self.values.shape[:3] != expected or not self.values.size:
            raise RecordError(
                f"states of canaries have shape {self.values.shape}; expected (canaries, layers, positions, width) = "
                f"{expected} and a width"
            )
        if not len(self.prompts) == len(self.answers) == len(set(self.ids)) == len(self.ids):
            raise RecordError(
                f"{len(self.ids)} canaries came with {len(self.prompts)} prompts and {len(self.answers)} answers; "
                "expected one of each, and different names"
            )

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of these states with all that is known of them."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def near(self, layers: Sequence[int], reach: int = 2) -> "CanaryStates":
        """Returns the states of these layers and of the stored layers at most `reach` away, by which a layer that is
        numbered otherwise can be named."""
        layer_indices = [
            i for i, own_layer in enumerate(self.layers) if any(abs(own_layer - layer) <= reach for layer in layers)
        ]
        return replace(self, layers=tuple(self.layers[i] for i in layer_indices), values=self.values[:, layer_indices])

    def to_json(self) -> bytes:
        """Returns the content of a file of canaries."""
        values = np.ascontiguousarray(self.values, dtype="<f2")
        facts = {
            "source": self.source,
            "model": self.model,
            "revision": self.revision,
            "dtype": self.dtype,
            "layers": self.layers,
            "positions": CANARY_POSITIONS,
            "ids": self.ids,
            "prompts": self.prompts,
            "answers": self.answers,
            "width": values.shape[-1],
            "values": base64.b64encode(values.tobytes()).decode(),
        }
        return json.dumps(facts, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, content: bytes | str | Mapping[str, Any]) -> "CanaryStates":
        """Returns the states in such a file, or in its parsed content. Raises `RecordError` where it is none."""
        try:
            facts = content if isinstance(content, Mapping) else json.loads(content)
            if tuple(facts["positions"]) != CANARY_POSITIONS:
                raise ValueError(f"positions are {facts['positions']}; expected {list(CANARY_POSITIONS)}")
            source, model, revision, dtype = (str(facts[key]) for key in ("source", "model", "revision", "dtype"))
            ids, layers = tuple(map(str, facts["ids"])), tuple(map(_whole, facts["layers"]))
            prompts, answers = (
                tuple(tuple(map(_whole, id_list)) for id_list in facts[key]) for key in ("prompts", "answers")
            )
            values = np.frombuffer(base64.b64decode(facts["values"], validate=True), dtype="<f2")
            values = values.reshape(len(ids), len(layers), len(CANARY_POSITIONS), _whole(facts["width"]))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise RecordError(
                f"the states of canaries cannot be read ({type(error).__name__}: {error}); expected what "
                "`CanaryStates.to_json` wrote"
            ) from error
        return cls(source, model, revision, dtype, layers, ids, prompts, answers, values)


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.80} is no whole number from 0 on")
    return value


@lru_cache(maxsize=64)
def read_canaries_file(path: Path) -> CanaryStates | None:
    """Returns the states in a file of canaries; None, with a warning, where it is missing, damaged, or not what its
    name says."""
    with suppress(OSError, RecordError):
        states = CanaryStates.from_json(path.read_bytes())
        if path.stem == CANARIES_PREFIX + states.digest:
            return states
    warnings.warn(
        f"metaprobe: {path} is missing or damaged: the hidden states that belong to it count as not checked, and a "
        "checkpoint that is trained on them checks no source; restore the file from a copy",
        stacklevel=2,
    )
    return None


def golden_canaries(extra: Mapping[str, bytes]) -> CanaryStates | None:
    """Returns the golden states among a checkpoint's files; None where it holds none. Raises `RecordError` for a file
    that cannot be read."""
    content = extra.get(CANARIES_FILE)
    return None if content is None else CanaryStates.from_json(content)


@dataclass(frozen=True, slots=True)
class StatesCheck:
    """Says whether a source's states are those that a probe was trained on."""

    passed: bool
    reason: str
    """Sentence with the differences found, the limits, and the remedy."""
    drift: float
    """Median difference over canaries, positions and layers, as a share of the states' spread; NaN if nothing could be
    compared.
    """
    worst: float
    """Largest difference at one canary, layer and position, as a share of the states' spread."""


def compare_canaries(
    golden: CanaryStates, seen: CanaryStates, layers: Sequence[int], *, tolerance: StatesTolerance | None = None
) -> StatesCheck:
    """Compares what a source gives for these layers with the golden states.

    All golden canaries must be there, with equal token ids, in a number format of `TOLERANCES`. States may differ by
    `tolerance`, by default that of the coarser number format. A difference is measured channel by channel in units of
    the golden states' spread over the canaries (root mean square over the channels), so that a few channels of large
    values do not hide the others.
    """
    if fault := _structure_fault(golden, seen, layers):
        return StatesCheck(False, fault, NAN, NAN)
    limit = tolerance or max((TOLERANCES[states.dtype] for states in (golden, seen)), key=lambda each: each.drift)
    if tolerance is None and golden.source.split()[:1] != seen.source.split()[:1]:
        limit = replace(limit, drift=OTHER_LIBRARY * limit.drift)
    seen_rows = [seen.ids.index(name) for name in golden.ids]
    seen_layers = [seen.layers.index(layer) for layer in layers]
    names = [f"canary {name!r}" for name in golden.ids]
    judged = compare_states(golden.values, seen.values[seen_rows][:, seen_layers], golden.layers, layers, names, limit)
    if seen.dtype == golden.dtype:
        return judged
    return replace(judged, reason=f"{judged.reason}; its number format is {seen.dtype}, the golden one {golden.dtype}")


def compare_states(
    golden: FloatArray,
    states: FloatArray,
    golden_layers: Sequence[int],
    layers: Sequence[int],
    names: Sequence[str],
    limit: StatesTolerance,
    *,
    usual: FloatArray | None = None,
) -> StatesCheck:
    """Compares the states of n texts with golden ones.

    Texts that are alike have a small spread, in which rounding would look large; `usual` then gives the spread.

    Args:
        golden: golden states (n, golden layers, positions, width).
        states: states to compare (n, layers, positions, width).
        golden_layers: layers of the golden states.
        layers: layers of the states to compare.
        names: name of each text in the reason.
        limit: largest differences that rounding explains.
        usual: states of different texts (m, golden layers, ...), whose spread is the unit of all differences; by
            default the golden states.
    """
    expected, seen_values = golden.astype(np.float64), states.astype(np.float64)
    layer_indices = [list(golden_layers).index(layer) for layer in layers]
    spread = _channel_spread(expected if usual is None else usual.astype(np.float64))
    off = _apart(seen_values, expected[:, layer_indices], spread[:, layer_indices])  # (n, layers, positions)
    if not np.isfinite(off).all():
        return StatesCheck(False, "its states hold NaN or infinity: capture them in bfloat16 or float32", NAN, NAN)
    drift, worst = float(np.median(off)), float(off.max())
    drift_text = (
        f"{names[0].split()[0]} states are off by {drift:.3f} (median) and {worst:.3f} (largest) of their spread"
    )
    if drift <= limit.drift and worst <= limit.worst:
        return StatesCheck(True, drift_text, drift, worst)
    reason = _explanation(seen_values, expected, spread, tuple(golden_layers), tuple(layers), off, names, limit)
    allowed = f"at most {limit.drift:g} and {limit.worst:g} are rounding"
    return StatesCheck(False, f"{drift_text}; {allowed}: {reason}", drift, worst)


def _structure_fault(golden: CanaryStates, seen: CanaryStates, layers: Sequence[int]) -> str:
    """Returns why the two cannot be compared: missing layers or canaries, another width, an unknown number format, or
    other tokens; empty if they can be.
    """
    if missing_layers := [layer for layer in layers if layer not in golden.layers]:
        return f"no golden states of layers {missing_layers} are stored; train the probe again"
    if missing_layers := [layer for layer in layers if layer not in seen.layers]:
        return f"it gives layers {list(seen.layers)}; expected {list(layers)}: capture layers {missing_layers} too"
    if golden.values.shape[-1] != seen.values.shape[-1]:
        return (
            f"its states have width {seen.values.shape[-1]}; expected {golden.values.shape[-1]}: load the model that "
            "the probe was trained on"
        )
    if unknown := sorted({states.dtype for states in (golden, seen)} - {*TOLERANCES}):
        return f"its number format is {unknown[0]!r}; expected {', '.join(TOLERANCES)}: name the format of the weights"
    if len(golden.ids) < FEWEST_CANARIES:
        return f"{len(golden.ids)} golden canaries are stored; expected {FEWEST_CANARIES} or more: train it again"
    if missing_names := [name for name in golden.ids if name not in seen.ids]:
        return (
            f"it read {len(golden.ids) - len(missing_names)} of {len(golden.ids)} canaries, not {missing_names[0]!r}; "
            "expected all of them: load it with a context that is long enough"
        )
    for name in golden.ids:
        golden_row, seen_row = golden.ids.index(name), seen.ids.index(name)
        for part, golden_part, seen_part in (
            ("prompt", golden.prompts[golden_row], seen.prompts[seen_row]),
            ("answer", golden.answers[golden_row], seen.answers[seen_row]),
        ):
            if golden_part != seen_part:
                difference_at = next(
                    (i for i, pair in enumerate(zip(golden_part, seen_part, strict=False)) if pair[0] != pair[1]),
                    min(len(golden_part), len(seen_part)),
                )
                return (
                    f"the {part} of canary {name!r} has {len(seen_part)} tokens; expected {len(golden_part)}, and "
                    f"equal ones from token {difference_at} on: the chat template or the tokenizer is another one; "
                    "load the one of the training"
                )
    return ""


def _channel_spread(states: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the spread of each channel over the canaries, (1, layers, positions, width), all above 0."""
    spread = states.std(axis=0, keepdims=True)
    usual = np.median(spread, axis=-1, keepdims=True)
    floor = _FLOOR * np.abs(states.mean(axis=0, keepdims=True)) + _FLOOR * usual + 1e-6
    return np.asarray(np.hypot(spread, floor))


def _apart(first: NDArray[np.float64], other: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        return np.asarray(np.sqrt((((first - other) / spread) ** 2).mean(axis=-1)))


def _explanation(
    states: NDArray[np.float64],
    expected: NDArray[np.float64],
    spread: NDArray[np.float64],
    golden_layers: tuple[int, ...],
    layers: tuple[int, ...],
    off: NDArray[np.float64],
    names: Sequence[str],
    limit: StatesTolerance,
) -> str:
    """Returns the likeliest cause, and what to do."""
    layer_indices = [golden_layers.index(layer) for layer in layers]
    for i, layer in enumerate(layers):
        for j, other in enumerate(golden_layers):
            as_other = _apart(states[:, i], expected[:, j], spread[:, j])
            if other != layer and np.median(as_other) <= limit.drift:
                return f"its layer {layer} is the layer {other} of the training; number layers as the training did"
    wrong = np.flatnonzero(off.max(axis=(1, 2)) > limit.worst)
    for row in map(int, wrong):
        others = _apart(states[row][None], expected[:, layer_indices], spread[:, layer_indices]).max(axis=(1, 2))
        others[row] = np.inf
        if others.min() <= limit.worst:
            return (
                f"the states of {names[row]} are those of {names[int(others.argmin())]}: rows of a "
                "batch are exchanged; do not use this engine's states before it is repaired"
            )
    if len(wrong) and np.median(off) <= limit.drift:
        return (
            f"the states of {len(wrong)} of {len(names)} texts, such as {names[int(wrong[0])]}, are not of their "
            "tokens; switch off prefix caching, chunked prefill, speculative decoding, and padding on the right, for "
            "requests whose states are kept"
        )
    return (
        "the weights are others, or tokens are missing; load the weights of the training without adapters, in its "
        "number format, and switch prefix caching, chunked prefill and speculative decoding off"
    )
