"""Load a checkpoint folder and run it."""

import hashlib
import os
import re
import stat
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from metaprobe.checkpoints import golden
from metaprobe.checkpoints.errors import (
    ContractMismatch,
    NotACheckpoint,
    TamperedCheckpoint,
    UnsafeModel,
    UntrustedCheckpoint,
)
from metaprobe.checkpoints.manifest import GOLDEN, LISTED, MANIFEST, MODEL, RAW, Manifest, TensorSpec, parse_manifest
from metaprobe.checkpoints.onnx_guard import check_model
from metaprobe.checkpoints.session import Arrays, Session, outputs_agree


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest sizes that are read, in bytes."""

    manifest_bytes: int = 1 << 20
    model_bytes: int = 256 << 20
    """Of model.onnx, and of raw.onnx."""
    file_bytes: int = 8 << 20
    """Of golden.json, README.md and any other listed file."""

    def of(self, name: str) -> int:
        sizes = {MANIFEST: self.manifest_bytes, MODEL: self.model_bytes, RAW: self.model_bytes}
        return sizes.get(name, self.file_bytes)


LIMITS_OF_KIND = {"adapter": Limits(model_bytes=(1 << 31) - 1, file_bytes=64 << 20)}
"""Kinds that are a whole language model: 2 GB are as much as one ONNX file can hold, tokenizers have up to 40 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A verified checkpoint, ready to run; may be shared by threads."""

    path: Path
    manifest: Manifest
    digest: str
    """SHA-256 of manifest.json, which pins every other file: what to hand to those who should trust this one."""
    session: Session = field(repr=False)
    extra: dict[str, bytes] = field(repr=False)
    """Other files that the manifest lists, such as a tokenizer, by name: the bytes that were verified, and for ONNX
    files held to the guard."""

    @property
    def trustworthy(self) -> bool:
        """Whether its figures passed every audit."""
        return self.manifest.trustworthy

    def run(self, inputs: Arrays) -> Arrays:
        """Outputs by name, for arrays of exactly the manifest's input names, types and shapes.

        Raises `ContractMismatch`, saying what came and what was expected, for anything else.
        """
        return self.session.run(inputs)

    def raw_session(self) -> Session:
        """A new session on raw.onnx, which takes `logprobs` float32 (n, T), padded, and `lengths` int64 (n,).

        Its outputs are those of `run`. Raises `ContractMismatch` where the checkpoint has no such file, or it gives
        other outputs.
        """
        if RAW not in self.extra:
            raise ContractMismatch(f"{self.path} holds no {RAW}; train it again with `--raw-graph`")
        session = Session(self.extra[RAW])
        if not outputs_agree(self.manifest.outputs, session.outputs):
            raise ContractMismatch(
                f"{MODEL} has outputs {_listed(self.manifest.outputs)}; {RAW} has {_listed(session.outputs)}"
            )
        return session


def load_checkpoint(
    path: str | os.PathLike[str], *, sha256: str | None = None, limits: Limits | None = None
) -> Checkpoint:
    """The checkpoint in the folder `path`, after everything about it was verified.

    Each file is read once, and what was hashed is what is used. In this order: sizes and file types, the digest where
    one is given, the manifest, the other files' hashes, the ONNX guard, inputs and outputs, the golden rows. Files the
    manifest does not list are never read.

    The hashes in the manifest show that nothing was damaged. They do not show who made it: whoever can write the folder
    can write the hashes too. For that, give `sha256`: the `digest` of the checkpoint you mean, from its author.

    `limits`: by default those of the checkpoint's kind.

    Warns with `UntrustedCheckpoint` where the figures failed an audit: it runs, but may not be what it seems.

    Raises a `CheckpointError`: see `metaprobe.checkpoints.errors` for the kinds.
    """
    checkpoint = verified_checkpoint(Path(path), sha256=sha256, limits=limits)
    if not checkpoint.trustworthy:
        warnings.warn(
            f"the checkpoint {path} is NOT TRUSTWORTHY: {checkpoint.manifest.distrust}. "
            f"`metaprobe inspect {path}` shows the audits",
            UntrustedCheckpoint,
            stacklevel=2,
        )
    return checkpoint


def verified_checkpoint(folder: Path, *, sha256: str | None = None, limits: Limits | None = None) -> Checkpoint:
    """As `load_checkpoint`, without the warning: for who has just written it."""
    if not folder.is_dir():
        raise NotACheckpoint(f"{folder} is not a folder; a checkpoint is a folder that holds {MANIFEST}")
    manifest_data = _read(folder / MANIFEST, limits or Limits())
    digest = hashlib.sha256(manifest_data).hexdigest()
    _check_digest(folder, digest, sha256)
    manifest = parse_manifest(manifest_data)
    limits = limits or LIMITS_OF_KIND.get(manifest.kind, Limits())
    files = {name: _verified(folder / name, manifest, limits) for name in manifest.files}
    extra = {name: data for name, data in files.items() if name not in LISTED}
    for name, data in extra.items():
        if name.lower().endswith(".onnx"):
            _guard(folder / name, data)
    session = Session(files[MODEL])
    _check_contract(manifest, session)
    golden.replay(files[GOLDEN], session)
    return Checkpoint(folder, manifest, digest, session, extra)


def _read(path: Path, limits: Limits) -> bytes:
    """The bytes of a regular file within its limit. Links are refused, and nothing that could block is waited for."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    limit = limits.of(path.name)
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise UnsafeModel(f"{path} is a link or no regular file; copy the file itself into the folder")
        with os.fdopen(os.open(path, flags), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise UnsafeModel(f"{path} has {size} bytes; at most {limit} are read. If you trust it, raise `limits`")
            return file.read(size)
    except OSError as error:
        raise NotACheckpoint(f"{path} cannot be read ({error.strerror}); a checkpoint must hold it") from error


def _verified(path: Path, manifest: Manifest, limits: Limits) -> bytes:
    data, entry = _read(path, limits), manifest.files[path.name]
    if len(data) != entry.bytes:
        raise TamperedCheckpoint(f"{path} has {len(data)} bytes, the manifest says {entry.bytes}. Copy it again")
    found = hashlib.sha256(data).hexdigest()
    if found != entry.sha256:
        raise TamperedCheckpoint(f"{path} has SHA-256 {found}, the manifest says {entry.sha256}. Copy it again")
    return data


def _guard(path: Path, data: bytes) -> None:
    try:
        check_model(data)
    except UnsafeModel as error:
        raise UnsafeModel(f"{path}: {error}") from error


def _check_digest(folder: Path, digest: str, sha256: str | None) -> None:
    if sha256 is None:
        return
    if not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise ContractMismatch(f"sha256 is {sha256!r}; expected the 64 hex digits of a checkpoint's digest")
    if digest != sha256.lower():
        raise TamperedCheckpoint(
            f"{folder} has digest {digest}, not {sha256.lower()}: it is not the checkpoint you asked for"
        )


def _check_contract(manifest: Manifest, session: Session) -> None:
    if manifest.inputs != session.inputs:
        raise ContractMismatch(
            f"{MANIFEST} states inputs {_listed(manifest.inputs)}; {MODEL} has {_listed(session.inputs)}"
        )
    if not outputs_agree(manifest.outputs, session.outputs):
        raise ContractMismatch(
            f"{MANIFEST} states outputs {_listed(manifest.outputs)}; {MODEL} has {_listed(session.outputs)}"
        )


def _listed(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{s.name}: {s.type}{list(s.shape)}" for s in specs)
