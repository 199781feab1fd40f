"""Load a checkpoint folder and run it."""

import hashlib
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import metaprobe.checkpoints.golden as golden
import metaprobe.checkpoints.strict_json as strict_json
from metaprobe.checkpoints.display import explain_fields
from metaprobe.checkpoints.errors import (
    ContractMismatch,
    MovingRevision,
    NotACheckpoint,
    TamperedCheckpoint,
    UnsafeModel,
    UntrustedCheckpoint,
)
from metaprobe.checkpoints.files import BUNDLED, FOLDER, Folder, Repository, files_at
from metaprobe.checkpoints.flagging import flag_sentences
from metaprobe.checkpoints.graph_session import Arrays, GraphSession, outputs_agree
from metaprobe.checkpoints.manifest import (
    GOLDEN,
    LISTED,
    MANIFEST,
    MODEL,
    Manifest,
    TensorSpec,
    Trust,
    parse_manifest,
    printable,
)
from metaprobe.checkpoints.onnx_guard import check_model
from metaprobe.checkpoints.table import html_table


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest sizes that are read, in bytes."""

    manifest_bytes: int = 1 << 20
    model_bytes: int = 256 << 20
    """Limit for model.onnx."""
    golden_bytes: int = 8 << 20
    """Limit for golden.json, which is parsed: its objects take many times its size."""
    file_bytes: int = 8 << 20
    """Limit for README.md and any other listed file."""

    def of(self, name: str) -> int:
        sizes = {
            MANIFEST: self.manifest_bytes,
            MODEL: self.model_bytes,
            GOLDEN: min(self.golden_bytes, self.file_bytes),
        }
        return sizes.get(name, self.file_bytes)


LIMITS_OF_KIND = {"adapter": Limits(model_bytes=(1 << 31) - 1, file_bytes=64 << 20)}
"""Kinds that are a whole language model: 2 GB are as much as one ONNX file can hold, tokenizers have up to 40 MB."""


SHOWN_FIGURES = 8
"""Held-out numbers in the table for notebooks, the first of the card."""


@explain_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Checkpoint:
    """A verified checkpoint, ready to run. Several threads may share it, and it may be sent to other processes.

    A process that receives it reads the files again, and compares them with the digest.

        >>> checkpoint = load_checkpoint("bundled:quality")
        >>> checkpoint.trust, checkpoint.manifest.kind, [output.name for output in checkpoint.manifest.outputs]
        ('weak', 'quality', ['correct'])
    """

    path: Path
    """The folder its files were read from."""
    manifest: Manifest
    """The contents of manifest.json: contract, thresholds, held-out metrics, audits, training data."""
    digest: str
    """SHA-256 of manifest.json, which pins every other file: what to hand to those who should trust this one."""
    session: GraphSession
    """The ONNX graph, ready to run."""
    extra: dict[str, bytes]
    """Other files that the manifest lists, such as a tokenizer, by name: the bytes that were verified, and for ONNX
    files held to the guard."""

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, kind {self.manifest.kind!r}, {self.trust}, digest {self.digest[:12]})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return self.as_html("Checkpoint")

    def as_html(self, title: str) -> str:
        """Returns a small HTML table: folder, training data, trust and held-out metrics."""
        generator, training = self.manifest.generator, self.manifest.training
        figures = [
            (name, f"{m.estimate:.3f} [{m.low:.3f}, {m.high:.3f}], n = {m.n}")
            for name, m in list(self.manifest.metrics.items())[:SHOWN_FIGURES]
        ]
        rows = [
            ("folder", self.path),
            ("kind", self.manifest.kind),
            ("digest", f"{self.digest[:12]}..."),
            ("trust", self.trust + (f": {', '.join(self.weaknesses)}" if self.weaknesses else "")),
            ("answers of", ", ".join(generator.models) if generator else "any model"),
            *([("trained on", f"{training.n} rows in {training.groups} groups")] if training else []),
            *((f"threshold {name}", f"{value:.4g}") for name, value in list(self.manifest.thresholds.items())[:4]),
            *(("flagging", sentence) for sentence in flag_sentences(self.manifest, self.manifest.metrics)),
            *figures,
        ]
        return html_table(title, rows)

    def to_dict(self) -> dict[str, Any]:
        """Returns folder, digest, trust and everything that the manifest says, as types of JSON."""
        return {
            "path": str(self.path),
            "digest": self.digest,
            "trust": self.trust,
            "manifest": strict_json.plain(self.manifest, MANIFEST),
        }

    @property
    def trust(self) -> Trust:
        """How far its numbers can be relied on: "sound" (no audit failed), "weak" (the numbers are true, but something
        simpler may do as well, or too little was measured to decide), "invalid" (the numbers cannot be believed),
        "unaudited" (no audit was made, or none against a control)."""
        return self.manifest.trust

    @property
    def weaknesses(self) -> tuple[str, ...]:
        """The names of the audits that failed, of either kind; `manifest.audits` has their details."""
        return tuple(map(printable, self.manifest.failed))

    def run(self, inputs: Arrays) -> Arrays:
        """Returns the outputs by name, for arrays with exactly the manifest's input names, types and shapes.

        Raises `ContractMismatch` for any other arrays, and says what came and what was expected.
        """
        return self.session.run(inputs)

    def files(self) -> dict[str, bytes]:
        """Returns its files by name, the manifest first, read again. Raises `TamperedCheckpoint` where they changed."""
        folder, limits = Folder(self.path, links=True), _limits(self.manifest.kind)
        manifest = folder.read(MANIFEST, limits.manifest_bytes)
        _check_digest(str(self.path), hashlib.sha256(manifest).hexdigest(), self.digest)
        return {MANIFEST: manifest} | {
            name: _verify(folder, name, self.manifest, limits) for name in self.manifest.files
        }

    def __reduce__(self) -> tuple[Callable[[str, str], "Checkpoint"], tuple[str, str]]:
        return _reopen, (str(self.path.resolve()), self.digest)


def load_checkpoint(
    path: str | os.PathLike[str], *, sha256: str | None = None, limits: Limits | None = None
) -> Checkpoint:
    """Verifies and returns the checkpoint in the folder `path`, or at `hub:OWNER/NAME@REVISION`.

    Each file is read once, and the bytes that were hashed are those that are used. These are verified in this order:
    sizes and file types, the digest where one is given, the manifest and its own digest, the other files' hashes, the
    ONNX guard, inputs and outputs, the golden rows. Files that the manifest does not list are never read, and never
    fetched from the hub.

    The hashes in the manifest show that nothing was damaged. They do not show who made it: whoever can write the folder
    can write the hashes too. To know the author, give `sha256`: the `digest` that the author told you.

    `limits`: by default those of the checkpoint's kind.

    Warns with `UntrustedCheckpoint` where the numbers cannot be believed (`trust` is "invalid"); such a checkpoint
    still runs. A weak checkpoint causes no warning: see `trust` and `weaknesses`. Warns with `MovingRevision` where a
    revision of the hub is no commit and no `sha256` pins what it must hold.

    Raises a `CheckpointError`: see `metaprobe.checkpoints.errors` for the kinds.
    """
    files = files_at(path)
    checkpoint = _verified_at(files, sha256=sha256, limits=limits)
    if files.moving and sha256 is None:
        warnings.warn(files.moving, MovingRevision, stacklevel=2)
    if checkpoint.trust == "invalid":
        warnings.warn(
            f"the checkpoint {path} is NOT TRUSTWORTHY: {checkpoint.manifest.distrust}. "
            f"`metaprobe inspect {path}` shows the audits",
            UntrustedCheckpoint,
            stacklevel=2,
        )
    return checkpoint


def load_verified(
    path: str | os.PathLike[str], *, sha256: str | None = None, limits: Limits | None = None
) -> Checkpoint:
    """Does the same as `load_checkpoint` without the warnings, for a caller that has just written the checkpoint."""
    return _verified_at(files_at(path), sha256=sha256, limits=limits)


def kind_at(path: str | os.PathLike[str]) -> str:
    """Returns the kind that a checkpoint's manifest states; nothing else is read or verified."""
    files = files_at(path)
    if isinstance(files, Folder) and not files.path.is_dir():
        raise NotACheckpoint(f"{files.path} is not a folder; a checkpoint is a folder that holds {MANIFEST}")
    return parse_manifest(files.read(MANIFEST, Limits().manifest_bytes)).kind


def _verified_at(files: Folder | Repository, *, sha256: str | None, limits: Limits | None = None) -> Checkpoint:
    if isinstance(files, Folder) and not files.path.is_dir():
        raise NotACheckpoint(f"{files.path} is not a folder; a checkpoint is a folder that holds {MANIFEST}")
    manifest_data = files.read(MANIFEST, (limits or Limits()).manifest_bytes)
    digest = hashlib.sha256(manifest_data).hexdigest()
    _check_digest(files.where(""), digest, sha256)
    manifest = parse_manifest(manifest_data)
    limits = limits or _limits(manifest.kind)
    contents = {name: _verify(files, name, manifest, limits) for name in manifest.files}
    extra = {name: data for name, data in contents.items() if name not in LISTED}
    for name, data in extra.items():
        if name.lower().endswith(".onnx"):
            guard(files.where(name), data, manifest.kind)
    session = GraphSession(contents[MODEL], kind=manifest.kind, trial=True)
    _check_contract(manifest, session)
    golden.replay(contents[GOLDEN], session)
    session.end_trial()
    return Checkpoint(files.path, manifest, digest, session, extra)


def _reopen(path: str, digest: str) -> Checkpoint:
    """Opens a checkpoint again in the process that it was sent to."""
    return _verified_at(Folder(Path(path), links=True), sha256=digest)


def _limits(kind: str) -> Limits:
    return LIMITS_OF_KIND.get(kind, Limits())


def _verify(files: Folder | Repository, name: str, manifest: Manifest, limits: Limits) -> bytes:
    data, entry = files.read(name, limits.of(name)), manifest.files[name]
    if len(data) != entry.bytes:
        raise TamperedCheckpoint(
            f"{files.where(name)} has {len(data)} bytes, the manifest says {entry.bytes}. Copy it again"
        )
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry.sha256:
        raise TamperedCheckpoint(
            f"{files.where(name)} has SHA-256 {digest}, the manifest says {entry.sha256}. Copy it again"
        )
    return data


def guard(where: str, data: bytes, kind: str | None = None) -> None:
    """Raises `UnsafeModel`, naming the file, where `check_model` refuses its bytes."""
    try:
        check_model(data, kind)
    except UnsafeModel as error:
        raise UnsafeModel(f"{where}: {error}") from error


def _check_digest(where: str, digest: str, sha256: str | None) -> None:
    if sha256 is None:
        return
    if not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise ContractMismatch(f"sha256 is {sha256!r}; expected the 64 hex digits of a checkpoint's digest")
    if digest != sha256.lower():
        raise TamperedCheckpoint(
            f"{where} has digest {digest}, not {sha256.lower()}: it is not the checkpoint you asked for"
        )


def _check_contract(manifest: Manifest, session: GraphSession) -> None:
    if manifest.inputs != session.inputs:
        raise ContractMismatch(
            f"{MANIFEST} states inputs {_list(manifest.inputs)}; {MODEL} has {_list(session.inputs)}"
        )
    if not outputs_agree(manifest.outputs, session.outputs):
        raise ContractMismatch(
            f"{MANIFEST} states outputs {_list(manifest.outputs)}; {MODEL} has {_list(session.outputs)}"
        )
    # All kinds give one number a row and output; the readers of more would hand rows the numbers of other ones.
    if manifest.kind in TAKEN_BY and any(
        not s.type.startswith("float") or s.shape[1:] != (1,) for s in session.outputs
    ):
        raise ContractMismatch(
            f"{MODEL} of kind {manifest.kind!r} has outputs {_list(session.outputs)}; "
            "expected each to be numbers (n, 1)"
        )


def _list(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{s.name}: {s.type}{list(s.shape)}" for s in specs)


TAKEN_BY = {
    "quality": "`metaprobe score`, `metaprobe serve` and QualityPredictor",
    "gate": "`metaprobe serve --gate` and StreamingGate",
    "hidden": "`metaprobe score CHECKPOINT RUNS`, `metaprobe collect --signal`, ConfidenceProbe and DifficultyProbe",
    "blend": "`metaprobe score`, `metaprobe serve`, `metaprobe collect --signal` and QualityPredictor",
    "text": "`metaprobe score`, `metaprobe serve` and TextPredictor",
    "adapter": "`metaprobe collect --signal` and AdapterProbe",
    "panel": "`metaprobe score CHECKPOINT RUNS`, `metaprobe route`, `metaprobe collect --policy learned:` and Panel",
    "text-classes": "TextClassifier and `metaprobe collect writing-assistant --constant learned=1`",
}
REPLACED = {"router": "`metaprobe train router`", "choice": "`metaprobe train panel`"}
"""Kind of earlier versions -> the command that trains a panel in the checkpoint's place."""


def check_kind(path: str | os.PathLike[str], kind: str, *expected: str) -> None:
    """Raises `ContractMismatch` for a checkpoint of another kind than one of those expected."""
    if kind not in expected:
        raise wrong_kind(path, kind, *expected)


def wrong_kind(path: str | os.PathLike[str], kind: str, *expected: str) -> ContractMismatch:
    """Says what came, what was expected, and who takes what came."""
    folder = Path(path)
    named = f"{BUNDLED}{folder.name}" if folder.parent == FOLDER else path
    taken = f": {TAKEN_BY[kind]} take it" if kind in TAKEN_BY else ""
    if kind in REPLACED:
        taken = f": it is of an earlier version, and a panel took its place; train one with {REPLACED[kind]}"
    wanted = " or ".join(map(repr, expected))
    return ContractMismatch(f"{named} is a checkpoint of kind {kind!r}; expected {wanted}{taken}")
