"""A trained object from its folder, whatever kind it is."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Unpack, overload

from metaprobe.checkpoints import Checkpoint, ContractMismatch, FlagOptions, load_checkpoint
from metaprobe.checkpoints.checkpoint import wrong_kind
from metaprobe.checkpoints.flagging import FlagKeywords

if TYPE_CHECKING:
    from metaprobe.probes.adapter import AdapterProbe
    from metaprobe.probes.hidden import ConfidenceProbe, DifficultyProbe
    from metaprobe.probes.quality import QualityPredictor
    from metaprobe.probes.text import TextReader
    from metaprobe.probes.text_classes import TextClassifier
    from metaprobe.probes.travel import TravellingBlend
    from metaprobe.routing.gate import StreamingGate
    from metaprobe.routing.panel import Panel

    Loaded = (
        QualityPredictor
        | StreamingGate
        | ConfidenceProbe
        | DifficultyProbe
        | TravellingBlend
        | AdapterProbe
        | Panel
        | TextReader
        | TextClassifier
    )


def _quality(checkpoint: Checkpoint, run: str | None = None, **flag: Unpack[FlagKeywords]) -> "QualityPredictor":
    from metaprobe.probes.quality import QualityPredictor

    return QualityPredictor.of(checkpoint, run=run, **flag)


def _gate(checkpoint: Checkpoint) -> "StreamingGate":
    from metaprobe.probes.stream_looks import PrefixHeads
    from metaprobe.routing.gate import StreamingGate

    return StreamingGate(PrefixHeads(checkpoint))


def _probe(checkpoint: Checkpoint) -> "ConfidenceProbe | DifficultyProbe":
    from metaprobe.probes.hidden import ConfidenceProbe, DifficultyProbe

    before = checkpoint.manifest.contract.get("position") == "prompt_last"
    return DifficultyProbe.of(checkpoint) if before else ConfidenceProbe.of(checkpoint)


def _travel(checkpoint: Checkpoint) -> "TravellingBlend":
    from metaprobe.probes.travel import TravellingBlend

    return TravellingBlend.of(checkpoint)


def _adapter(checkpoint: Checkpoint) -> "AdapterProbe":
    from metaprobe.probes.adapter import AdapterProbe

    return AdapterProbe.of(checkpoint)


def _panel(checkpoint: Checkpoint) -> "Panel":
    from metaprobe.routing.panel import Panel

    return Panel(checkpoint)


def _text(checkpoint: Checkpoint, **flag: Unpack[FlagKeywords]) -> "TextReader":
    from metaprobe.probes.text import TextReader

    return TextReader(checkpoint, **flag)


def _text_classes(checkpoint: Checkpoint) -> "TextClassifier":
    from metaprobe.probes.text_classes import TextClassifier

    return TextClassifier.of(checkpoint)


BY_KIND: "dict[str, Callable[[Checkpoint], Loaded]]" = {
    "quality": _quality,
    "gate": _gate,
    "hidden": _probe,
    "blend": _quality,
    "travel": _travel,
    "adapter": _adapter,
    "panel": _panel,
    "text": _text,
    "text-classes": _text_classes,
}
"""Kind of a checkpoint -> what is made of it, imported only then. A probe is made by the position that it reads."""


@overload
def load(path: Literal["bundled:quality", "bundled:critical"], *, sha256: str | None = None) -> "QualityPredictor": ...
@overload
def load(path: Literal["bundled:gate"], *, sha256: str | None = None) -> "StreamingGate": ...
@overload
def load(path: Literal["bundled:router"], *, sha256: str | None = None) -> "Panel": ...
@overload
def load(
    path: str | os.PathLike[str], *, sha256: str | None = None, run: str, **flag: Unpack[FlagKeywords]
) -> "QualityPredictor": ...
@overload
def load(path: str | os.PathLike[str], *, sha256: str | None = None, flag_rate: float) -> "QualityPredictor": ...
@overload
def load(path: str | os.PathLike[str], *, sha256: str | None = None, flag_below: float) -> "QualityPredictor": ...
@overload
def load(path: str | os.PathLike[str], *, sha256: str | None = None, catch: float) -> "QualityPredictor": ...
@overload
def load(path: str | os.PathLike[str], *, sha256: str | None = None, risk: float) -> "QualityPredictor": ...
@overload
def load(path: str | os.PathLike[str], *, sha256: str | None = None) -> "Loaded": ...
def load(
    path: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    run: str | None = None,
    **flag: Unpack[FlagKeywords],
) -> "Loaded":
    """Returns what a checkpoint holds: a predictor, gate, probe or panel.

    `path` is a folder, `bundled:NAME` or `hub:OWNER/NAME@REVISION`; `sha256` is the digest that its author gave you.
    At most one option says which answers a predictor flags, in place of the stored threshold: `flag_rate` about this
    share of them, `flag_below` those below this score, `catch` on average at least this share of the wrong ones, `risk`
    so many that of the others at most this share is wrong (with 95 % confidence). Its `threshold` follows from it.
    `run` names the run of the answers, one of the predictor's `runs`.
    Raises `CheckpointError` where the folder is damaged or of an unknown kind, and where it does not store what the
    option needs.

        >>> predictor = load("bundled:quality")
        >>> 0 < predictor.predict([-0.05, -0.01, -0.002, -1.2, -0.03]).score < 1
        True
    """
    checkpoint = load_checkpoint(path, sha256=sha256)
    kind = checkpoint.manifest.kind
    flags = FlagOptions(**flag).flags
    if flags and run is None and kind == "text":
        return _text(checkpoint, **flag)
    if flags or run is not None:
        if kind not in ("quality", "blend"):
            given = next(iter(flags), "run")
            raise ContractMismatch(f"{given} is for predictors, which flag answers; {path} is of kind {kind!r}")
        return _quality(checkpoint, run, **flag)
    if kind not in BY_KIND:
        raise wrong_kind(path, kind, *BY_KIND)
    return BY_KIND[kind](checkpoint)
