"""Loads a trained object of any kind from its checkpoint folder."""

import os
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, overload

from metaprobe.checkpoints import Checkpoint, ContractMismatch, FlagOptions, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.checkpoints.flagging import FlagKeywords

if TYPE_CHECKING:
    from metaprobe.probes.adapter import AdapterProbe
    from metaprobe.probes.hidden import ConfidenceProbe, DifficultyProbe
    from metaprobe.probes.quality import QualityPredictor
    from metaprobe.probes.text import TextReader
    from metaprobe.probes.text_classes import TextClassifier
    from metaprobe.routing.gate import StreamingGate
    from metaprobe.routing.panel.asking import Panel
    from metaprobe.routing.success_estimator import SuccessEstimator

    Loaded: TypeAlias = (
        QualityPredictor
        | StreamingGate
        | ConfidenceProbe
        | DifficultyProbe
        | AdapterProbe
        | Panel
        | SuccessEstimator
        | TextReader
        | TextClassifier
    )


BUILDER_OF_KIND = {
    "quality": "metaprobe.probes.quality:QualityPredictor.of",
    "gate": "metaprobe.routing.gate:StreamingGate",
    "hidden": "metaprobe.probes.hidden:ConfidenceProbe.of",
    "blend": "metaprobe.probes.quality:QualityPredictor.of",
    "adapter": "metaprobe.probes.adapter:AdapterProbe.of",
    "panel": "metaprobe.routing.panel.asking:Panel",
    "success": "metaprobe.routing.success_estimator:SuccessEstimator",
    "text": "metaprobe.probes.text:TextReader",
    "text-classes": "metaprobe.probes.text_classes:TextClassifier.of",
}
"""Maps the kind of a checkpoint to the function that builds its object. The function's module is imported only when
used.
"""
DIFFICULTY_PROBE_BUILDER = "metaprobe.probes.hidden:DifficultyProbe.of"
"""The function that builds a probe which reads the prompt alone."""


def _build(checkpoint: Checkpoint, **options: Any) -> Any:
    """Returns the object of a checkpoint. `options` are passed to the function that builds it."""
    kind, contract = checkpoint.manifest.kind, checkpoint.manifest.contract
    reads_prompt_alone = kind == "hidden" and contract.get("position") == "prompt_last"
    module_name, _, builder_name = (
        DIFFICULTY_PROBE_BUILDER if reads_prompt_alone else BUILDER_OF_KIND[kind]
    ).partition(":")
    return attrgetter(builder_name)(import_module(module_name))(checkpoint, **options)


@overload
def load(path: Literal["bundled:quality", "bundled:critical"], *, sha256: str | None = None) -> "QualityPredictor": ...
@overload
def load(path: Literal["bundled:gate"], *, sha256: str | None = None) -> "StreamingGate": ...
@overload
def load(path: Literal["bundled:router"], *, sha256: str | None = None) -> "Panel": ...
@overload
def load(
    path: str | os.PathLike[str], *, sha256: str | None = None, run: str, **flag_options: Unpack[FlagKeywords]
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
def load(path: str | os.PathLike[str], *, sha256: str | None = None, max_age: float) -> "SuccessEstimator": ...
@overload
def load(path: str | os.PathLike[str], *, sha256: str | None = None) -> "Loaded": ...
def load(
    path: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    run: str | None = None,
    max_age: float | None = None,
    **flag_options: Unpack[FlagKeywords],
) -> "Loaded":
    """Returns the object that a checkpoint holds: a predictor, gate, probe, panel or estimator.

    At most one option may replace the stored threshold that decides which answers a predictor flags. The predictor's
    `threshold` follows from this option. Raises `CheckpointError` if the folder is damaged or of an unknown kind, or
    does not store what the option needs.

    Args:
        path: a folder, `bundled:NAME` or `hub:OWNER/NAME@REVISION`.
        sha256: digest of the checkpoint, as its author gave it to you.
        run: name of the run that the answers belong to, one of the predictor's `runs`.
        max_age: greatest age of the labels in days. With older labels an estimator of P(success) reports insufficient
            evidence.
        **flag_options: one of `flag_rate` (flag about this share of the answers), `flag_below` (flag answers below
            this score), `catch` (flag on average at least this share of the wrong answers), and `risk` (flag so many
            that at most this share of the others is wrong, with 95 % confidence).

    Example:
        >>> predictor = load("bundled:quality")
        >>> 0 < predictor.predict([-0.05, -0.01, -0.002, -1.2, -0.03]).score < 1
        True
    """
    checkpoint = load_checkpoint(path, sha256=sha256)
    kind = checkpoint.manifest.kind
    flags = FlagOptions(**flag_options).flags
    if max_age is not None:
        if flags or run is not None or kind != "success":
            raise ContractMismatch(f"max_age is for estimators of P(success) alone; {path} is of kind {kind!r}")
        return _build(checkpoint, max_age=max_age)  # type: ignore[no-any-return]
    # A text reader takes an option for its flag, but it knows no runs: with `run` it is refused below.
    if flags and run is None and kind == "text":
        return _build(checkpoint, **flag_options)  # type: ignore[no-any-return]
    if flags or run is not None:
        if kind not in ("quality", "blend"):
            option_name = next(iter(flags), "run")
            raise ContractMismatch(f"{option_name} is for predictors, which flag answers; {path} is of kind {kind!r}")
        return _build(checkpoint, run=run, **flag_options)  # type: ignore[no-any-return]
    check_kind(path, kind, *BUILDER_OF_KIND)
    return _build(checkpoint)  # type: ignore[no-any-return]
