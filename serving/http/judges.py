"""Which checkpoint judges whose answers: by the model that answered, with a second one in its shadow or on trial."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from metaprobe.probes.contract import OnMismatch
from metaprobe.probes.quality import QualityPredictor
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.scorer import Scorer
from metaprobe.serving.http.settings import Settings, SettingsError, split_name
from metaprobe.serving.telemetry import evaluation_events

_PARTS = 1 << 32


@dataclass(frozen=True, slots=True)
class Seat:
    """Who judges the answers of one model, or of all that have no seat of their own."""

    judge: Scorer
    canary: Scorer | None = None
    """Judges a share of the answers in place of `judge`."""

    def of(self, request_id: str, share: float) -> Scorer:
        """The judge of this request: the canary of so large a share of them, always the same for the same id."""
        on_trial = self.canary is not None and zlib.crc32(request_id.encode()) < share * _PARTS
        return self.canary if on_trial and self.canary is not None else self.judge


@dataclass(frozen=True, slots=True)
class Judges:
    """All checkpoints of a server. Never changed: a reload makes another, and requests in work keep theirs."""

    seats: Mapping[str, Seat]
    """By the name of the model that answers; under the empty name those of all other models."""
    share: float = 0.0
    """Of the requests that the canary judges."""

    def pick(self, model: str, request_id: str) -> Scorer:
        """Who judges this model's answer to this request."""
        return self.seats.get(model, self.seats[""]).of(request_id, self.share)

    @property
    def default(self) -> Scorer:
        """Who judges the answers of models that have no seat of their own."""
        return self.seats[""].judge

    @property
    def only(self) -> bool:
        """Whether the model that answers makes no difference."""
        return len(self.seats) == 1

    @property
    def uses_top(self) -> bool:
        """Whether any of them reads alternatives."""
        return any(scorer.uses_top for seat in self.seats.values() for scorer in (seat.judge, seat.canary) if scorer)

    def digests(self) -> dict[str, str]:
        """The digest of each model's judge, by the model's name."""
        return {name: seat.judge.digest for name, seat in self.seats.items()}


@dataclass(slots=True)
class Office:
    """Holds the judges that are in it now."""

    now: Judges


@dataclass(slots=True)
class _Named:
    """Checkpoints as they were written, by the model's name, each with its digest where one is given."""

    found: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    def add(self, written: str, sha256: str | None, *, default: bool = False) -> None:
        name, location = split_name(written)
        if not name and not default:
            name = "*"  # its manifest names the models
        if name in self.found and name != "*":
            raise SettingsError(f"two checkpoints are to judge {name or 'all models'!r}; name each model once")
        self.found[name if name != "*" else f"*{len(self.found)}"] = location, sha256


def load_judges(settings: Settings, metrics: Metrics) -> Judges:
    """The checkpoints that the settings and the file of pins name, each verified.

    Raises a `CheckpointError` for one that does not verify and `SettingsError` where it is not clear who judges whom.
    """
    named = _Named()
    for written, sha256 in _pinned(settings.pins):
        named.add(written, sha256, default=True)
    taken = set(named.found)
    if "" not in taken and split_name(str(settings.checkpoint))[0] not in taken:
        named.add(str(settings.checkpoint), settings.sha256, default=True)
    for written in settings.more_checkpoints:
        if split_name(written)[0] not in taken or not split_name(written)[0]:
            named.add(written, None)
    if "" not in named.found:  # one that is named judges the others too where it is the first
        first = next(iter(named.found))
        named.found[""] = named.found[first]
    asked = {name: (*place, settings.run_by_model.get(name)) for name, place in named.found.items()}
    loaded = {place: _load(settings, *place) for place in dict.fromkeys(asked.values())}
    judges = _seated({name: loaded[place] for name, place in asked.items()})
    shadows, canaries = _once(settings.shadows, "in the shadow"), _once(settings.canaries, "on trial")
    if unknown := (shadows.keys() | canaries.keys() | settings.run_by_model.keys()) - judges.keys():
        raise SettingsError(
            f"no checkpoint judges {min(unknown)!r}, so it can have no run, and none can be in its shadow or on trial"
            f" beside it; expected one of {', '.join(sorted(filter(None, judges)))}, or no name"
        )

    events = evaluation_events(on_span=True) if settings.otel else None

    def scorer(predictor: QualityPredictor, name: str, role: str) -> Scorer:
        beside = _load(settings, shadows[name], None, settings.run_by_model.get(name)) if name in shadows else None
        shadow = None if beside is None else Scorer(beside, metrics, role="shadow")
        return Scorer(
            predictor, metrics, max_tokens=settings.max_scored_tokens, role=role, shadow=shadow, events=events
        )

    seats = {}
    for name, predictor in judges.items():
        trial = _load(settings, canaries[name], None, settings.run_by_model.get(name)) if name in canaries else None
        seats[name] = Seat(scorer(predictor, name, "judge"), scorer(trial, name, "canary") if trial else None)
    return Judges(seats, settings.canary_share)


def _once(written: Sequence[str], where: str) -> dict[str, str]:
    """Checkpoints by the model's name. Raises `SettingsError` for two of one name: one would be passed over."""
    found: dict[str, str] = {}
    for name, location in map(split_name, written):
        if name in found:
            raise SettingsError(
                f"two checkpoints are to be {where} of {name or 'all other models'!r}; give each model one"
            )
        found[name] = location
    return found


def _seated(loaded: Mapping[str, QualityPredictor]) -> dict[str, QualityPredictor]:
    """By the models' names, where a checkpoint came without one by those that it was trained on."""
    judges = {name: predictor for name, predictor in loaded.items() if not name.startswith("*")}
    for name, predictor in loaded.items():
        if not name.startswith("*"):
            continue
        generator = predictor.checkpoint.manifest.generator
        models = () if generator is None else generator.models
        if not models or judges.keys() & set(models):
            raise SettingsError(
                f"{predictor.checkpoint.path} {'does not say of which model it is' if not models else 'is of a model'}"
                f"{'' if not models else ' that has a checkpoint'}; expected NAME=CHECKPOINT, so that it is clear whose"
                " answers it judges"
            )
        judges |= dict.fromkeys(models, predictor)
    return judges


def on_mismatch_of(settings: Settings) -> OnMismatch:
    """What is done with other models' answers. A warning would put names that callers choose into the log, and Python
    would remember each of them for ever."""
    return "note" if settings.on_mismatch == "warn" else settings.on_mismatch


def _load(settings: Settings, location: str, sha256: str | None, run: str | None) -> QualityPredictor:
    mismatch, flags = on_mismatch_of(settings), settings.flags
    return QualityPredictor.load(location, sha256=sha256, run=run, on_mismatch=mismatch, **flags)


def _pinned(pins: Path | None) -> Iterator[tuple[str, str]]:
    """(checkpoint, digest) of every line of the file of pins."""
    if pins is None:
        return
    lines = [line.partition("#")[0].split() for line in Path(pins).read_text("utf-8").splitlines()]
    for number, words in enumerate(lines, 1):
        if words and len(words) != 2:
            raise SettingsError(f"line {number} of {pins} has {len(words)} words; expected [NAME=]CHECKPOINT SHA256")
    if not any(lines):
        raise SettingsError(f"{pins} names no checkpoint; expected lines of [NAME=]CHECKPOINT SHA256")
    yield from ((words[0], words[1]) for words in lines if words)
