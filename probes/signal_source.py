"""Gives a pipeline its numbers: a number is stated by the model, or read by a checkpoint that replaces the model's.

`confidence=CHECKPOINT` replaces the stated confidence, `confidence=stated+CHECKPOINT` joins both, and
`confidence@NAME=CHECKPOINT` holds for one agent only. `Replacement.missing_head` says which head a number needs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from metaprobe.checkpoints import ContractMismatch
from metaprobe.checkpoints.checkpoint import check_kind, load_verified
from metaprobe.probes import adapter, blend, hidden, quality
from metaprobe.probes.adapter import AdapterProbe
from metaprobe.probes.blend import BlendPredictor
from metaprobe.probes.canary_guard import CANNOT_BE_CHECKED
from metaprobe.probes.hidden import HiddenProbe
from metaprobe.probes.quality import MAIN_HEADS, QualityPredictor
from metaprobe.probes.signals import STATED_PREFIX, Signal, combine_probabilities
from metaprobe.probes.verdict import Verdict
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.types import Call

CRITICAL_SIGNAL = "critical"
SIGNAL_NAMES = ("confidence", "difficulty", "quality", CRITICAL_SIGNAL)
PROMPT_POSITION = "prompt_last"

ReadPart = Literal["prompt", "answer"]
"""Part that a checkpoint reads: `prompt` is the last prompt token, before anything is answered; `answer` is the answer.
"""


SignalReader = QualityPredictor | HiddenProbe | AdapterProbe


@dataclass(frozen=True, slots=True)
class Replacement:
    """A checkpoint whose number replaces a stated number, or is joined with it."""

    reader: SignalReader
    with_stated: bool = False
    """Whether the stated number is still asked for, and both are joined."""
    name: str = "confidence"
    """Name of the stated number that is replaced. For a difficulty, an adapter probe reads the prompt; for other
    numbers, the answer.
    """

    @property
    def when(self) -> ReadPart:
        """The part of a call that the checkpoint reads."""
        if isinstance(self.reader, HiddenProbe):
            return "prompt" if self.reader.position == PROMPT_POSITION else "answer"
        if isinstance(self.reader, AdapterProbe):
            before = "after" not in self.reader.when or (self.name == "difficulty" and "before" in self.reader.when)
            return "prompt" if before else "answer"
        return "answer"

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose hidden states the checkpoint reads; empty for a predictor on log-probabilities."""
        if isinstance(self.reader, BlendPredictor):
            return tuple(
                sorted({layer for states_input in self.reader.states.values() for layer in states_input.layers})
            )
        return self.reader.layers if isinstance(self.reader, HiddenProbe) else ()

    @property
    def needs_states(self) -> bool:
        """Whether the checkpoint cannot read an answer without hidden states. A blend can, and adds a note."""
        return bool(self.layers) and not isinstance(self.reader, BlendPredictor)

    @property
    def digest(self) -> str:
        return self.reader.checkpoint.digest

    @property
    def source(self) -> str:
        """The source of the resulting signal: the checkpoint's digest, with `stated+` before it if the stated number is
        joined.
        """
        return STATED_PREFIX * self.with_stated + self.digest

    def joined(self, stated_value: float | None, read_value: float) -> Signal:
        """Returns the signal of the number that the checkpoint read, joined with the stated number if there is one.
        Both are in [0, 1].
        """
        value = read_value if stated_value is None else combine_probabilities(stated_value, read_value)
        return Signal(value, self.digest if stated_value is None else STATED_PREFIX + self.digest, self.thresholds)

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the labels that the checkpoint predicts."""
        if isinstance(self.reader, AdapterProbe):
            return (self.reader.target,)
        return tuple(output.name for output in self.reader.checkpoint.manifest.outputs)

    @property
    def missing_head(self) -> str:
        """Name of a head that this signal needs and the checkpoint does not have; empty if no head is missing."""
        if self.name == CRITICAL_SIGNAL:
            return (
                "" if isinstance(self.reader, QualityPredictor) and CRITICAL_SIGNAL in self.heads else CRITICAL_SIGNAL
            )
        if isinstance(self.reader, QualityPredictor):
            return "" if set(MAIN_HEADS) & set(self.heads) else " or ".join(MAIN_HEADS)
        # A probe may have been trained on any label that is good to have.
        return MAIN_HEADS[0] if CRITICAL_SIGNAL in self.heads else ""

    @property
    def thresholds(self) -> Mapping[str, float]:
        """The checkpoint's thresholds by name. They are about P(critical) if P(critical) is read, else about P(right)
        or quality.
        """
        return self.reader.checkpoint.manifest.thresholds

    def probability(self, call: Call) -> float | None:
        """Returns P(right), quality or P(critical), in [0, 1]; None if the call lacks what the checkpoint reads."""
        try:
            if isinstance(self.reader, AdapterProbe):
                return self.reader.read(call, when="before" if self.when == "prompt" else "after")
            if isinstance(self.reader, HiddenProbe):
                return self.reader.read(call)
        except InvalidResponse:
            return None
        verdict = self.verdict(call)
        return None if verdict is None else verdict.critical if self.name == CRITICAL_SIGNAL else verdict.score

    def verdict(self, call: Call) -> Verdict | None:
        """Returns a predictor's whole verdict on a call. None if the checkpoint is a probe, or if the call lacks what
        it reads.
        """
        try:
            return self.reader.predict(call) if isinstance(self.reader, QualityPredictor) else None
        except InvalidResponse:
            return None


class SignalSource:
    """Gives the numbers that a pipeline asks for, by name and agent. Without replacements: the stated numbers."""

    names: ClassVar[tuple[str, ...]] = SIGNAL_NAMES
    """Names that a pipeline may ask for."""

    def __init__(self, replacements: Mapping[str, Replacement] | None = None) -> None:
        """`replacements`: maps a name (`confidence`), or name and agent (`confidence@alpha`), to what replaces the
        stated number.
        """
        self._replacements = dict(replacements or {})
        for key, replacement in self._replacements.items():
            name, path = key.partition("@")[0], replacement.reader.checkpoint.path
            if name == "difficulty" and replacement.when == "answer":
                raise ContractMismatch(
                    f"{key}={path} reads the answer, but difficulty is asked for before there is one"
                )
            if name == "quality" and replacement.when == "prompt":
                raise ContractMismatch(f"{key}={path} reads the prompt only, but quality is that of an answer")
            if name == CRITICAL_SIGNAL and replacement.with_stated:
                raise ContractMismatch(
                    f"{key}={STATED_PREFIX}{path}: no model states a number for it beforehand; give {key}={path}"
                )

    @classmethod
    def load(cls, specs: Iterable[str]) -> "SignalSource":
        """Returns the source of signals that these texts describe, with its checkpoints verified.

        A text has the form `NAME=CHECKPOINT`, `NAME=stated+CHECKPOINT` or `NAME@AGENT=CHECKPOINT`. Raises `RecordError`
        for another form.
        """
        replacements: dict[str, Replacement] = {}
        for spec in specs:
            key, separator, path = spec.partition("=")
            if not separator or not path or key.partition("@")[0] not in SIGNAL_NAMES or key.endswith("@"):
                raise RecordError(
                    f"signal {spec!r}: expected NAME=CHECKPOINT or NAME@AGENT=CHECKPOINT, where NAME is one of "
                    f"{', '.join(SIGNAL_NAMES)}, and the checkpoint may follow {STATED_PREFIX!r}"
                )
            if key in replacements:
                raise RecordError(f"signal {key!r} is given twice: {spec!r}; give it once")
            name = key.partition("@")[0]
            replacements[key] = Replacement(
                _load_reader(path.removeprefix(STATED_PREFIX)), path.startswith(STATED_PREFIX), name
            )
        return cls(replacements)

    def replacement(self, name: str, agent: str = "") -> Replacement | None:
        """Returns the replacement of a number of that agent; None if the stated number is used."""
        return self._replacements.get(f"{name}@{agent}") or self._replacements.get(name)

    def source(self, name: str, agent: str = "") -> str:
        """Returns the number's source, as `Signal.source` names it: `stated`, a digest, or `stated+` and a digest."""
        replacement = self.replacement(name, agent)
        return (
            "stated" if replacement is None else (STATED_PREFIX if replacement.with_stated else "") + replacement.digest
        )

    def asks(self, name: str, agent: str = "") -> bool:
        """Returns whether the model must still be asked to state the number."""
        replacement = self.replacement(name, agent)
        return replacement is None or replacement.with_stated

    def reads(self, name: str, agent: str = "") -> ReadPart | None:
        """Returns the part that the checkpoint reads besides the stated number: the prompt, the answer, or None."""
        replacement = self.replacement(name, agent)
        return None if replacement is None else replacement.when

    def signal(
        self, name: str, *, agent: str = "", stated: float | None = None, call: Call | None = None
    ) -> Signal | None:
        """Returns the number, with its source; None if neither the model nor the checkpoint gives a number.

        A stated number and a checkpoint's are joined by the mean of their log-odds.

        Args:
            name: name of the number, such as `confidence`.
            agent: name of the agent; empty without agents.
            stated: the number that the model stated, in [0, 1]; None if it was not asked.
            call: the answer, or the call whose prompt is read; None if nothing was called yet.
        """
        replacement = self.replacement(name, agent)
        if replacement is None:
            return None if stated is None else Signal(stated, "stated")
        value = None if call is None else replacement.probability(call)
        if value is not None and name == "difficulty":
            value = 1 - value
        if replacement.with_stated and stated is not None:
            if value is None:
                return Signal(stated, "stated")
            return Signal(
                combine_probabilities(stated, value), STATED_PREFIX + replacement.digest, replacement.thresholds
            )
        return None if value is None else Signal(value, replacement.digest, replacement.thresholds)

    @property
    def description(self) -> dict[str, str]:
        """The replacements by name, for the record of a collection."""
        return {
            key: (STATED_PREFIX if replacement.with_stated else "") + replacement.digest
            for key, replacement in sorted(self._replacements.items())
        }


def _load_reader(path: str) -> SignalReader:
    kind = load_verified(Path(path)).manifest.kind  # warnings are left to the reader's own `load`
    check_kind(path, kind, quality.QUALITY_KIND, blend.BLEND_KIND, hidden.HIDDEN_KIND, adapter.ADAPTER)
    if kind == hidden.HIDDEN_KIND:
        probe = HiddenProbe.load(path)
        if probe.guard.golden is None:
            raise ContractMismatch(f"{path}: {CANNOT_BE_CHECKED}")
        return probe
    return AdapterProbe.load(path) if kind == adapter.ADAPTER else QualityPredictor.load(path)
