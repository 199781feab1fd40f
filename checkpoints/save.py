"""Writes a checkpoint folder: checked against the original model first, then completely or not at all.

Every writer of checkpoints calls `check_target`, which decides whether an existing checkpoint may be replaced.
"""

import dataclasses
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from metaprobe.checkpoints.checkpoint import (
    EXTRA_GOLDEN,
    Arrays,
    Checkpoint,
    GraphSession,
    check_tolerance,
    largest_difference,
    load_verified,
    record_extra,
    record_rows,
)
from metaprobe.checkpoints.checkpoint_errors import CheckpointError, CheckpointExists, ContractMismatch, GoldenMismatch
from metaprobe.checkpoints.manifest import (
    CARD,
    FORMAT_VERSION,
    GOLDEN,
    MANIFEST,
    MODEL,
    Draft,
    FileEntry,
    Manifest,
    manifest_bytes,
    parse_manifest,
)

InService = Callable[[str], str]
"""A function from a digest to a clause that says where the checkpoint is in service; empty if it is not known to be."""
PINS = "METAPROBE_PINS"
"""Environment variable with the file of `serve --pins`."""


@dataclass(frozen=True, slots=True)
class Replacing:
    """Which checkpoints may be replaced while a command or a training runs."""

    replace: bool = False
    """Whether a checkpoint of the same kind may be replaced."""
    in_service: tuple[InService, ...] = ()
    """Functions that know checkpoints in service. Such a checkpoint is never replaced."""


NO_REPLACING = Replacing()
_allowed: ContextVar[Replacing] = ContextVar("replacing")
"""Checkpoints that the running command may replace. A context variable, because the writer is many calls below."""


@contextmanager
def replacing(allowed: Replacing) -> Iterator[None]:
    """Allows writers to replace checkpoints within the block, in addition to what an outer block allows.

    A checkpoint that `allowed` or the outer block knows to be in service is never replaced.
    """
    outer = _allowed.get(NO_REPLACING)
    token = _allowed.set(Replacing(allowed.replace or outer.replace, (*outer.in_service, *allowed.in_service)))
    try:
        yield
    finally:
        _allowed.reset(token)


def check_replaced(target: Path, *, overwrite: bool) -> None:
    """Raises `CheckpointExists` if the checkpoint in the folder may not be replaced.

    A checkpoint that a pins file lists, or that has scored answers of a log, is in service or may be needed again: it
    is never replaced. Another checkpoint is replaced if `overwrite` or the running command allows it.
    """
    digest = hashlib.sha256((target / MANIFEST).read_bytes()).hexdigest()
    allowed = _allowed.get(NO_REPLACING)
    pinned = (pinned_in(Path(pins_path)),) if (pins_path := os.environ.get(PINS, "").strip()) else ()
    for in_service in (*allowed.in_service, *pinned):
        if reason := in_service(digest):
            raise CheckpointExists(
                f"{target} holds checkpoint {digest}, {reason}; it may be in service, or be gone back to, and is not "
                "replaced: give another folder"
            )
    if not (overwrite or allowed.replace):
        raise CheckpointExists(
            f"{target} exists and holds checkpoint {digest}; give another folder, or replace that checkpoint by "
            "--replace (in Python replace=True, or overwrite=True where a function has it)"
        )


def pinned_in(pins: Path) -> InService:
    """Returns a function that tells whether the pins file lists a digest. Its lines are [NAME=]CHECKPOINT SHA256.

    The function raises `CheckpointExists` if the file cannot be read, because it is then unknown what is in service.
    """

    def pinning_clause(digest: str) -> str:
        try:
            lines = pins.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointExists(
                f"the file of pins {pins} cannot be read ({error}), so that it is not known which checkpoints are in "
                "service: name the file of `metaprobe serve --pins`"
            ) from error
        words = {word.lower() for line in lines for word in line.partition("#")[0].split()}
        return f"which {pins} pins" if digest in words else ""

    return pinning_clause


def save_checkpoint(
    path: str | os.PathLike[str],
    draft: Draft,
    *,
    model: bytes,
    golden_inputs: Arrays,
    expected: Arrays,
    card: str,
    extra: Mapping[str, bytes] | None = None,
    tolerance: float = 1e-5,
    overwrite: bool = False,
) -> Checkpoint:
    """Writes a checkpoint into the folder `path` and loads it, so that it is known to verify. Returns the loaded
    checkpoint.

    There is never a part of a checkpoint at `path`. If the process is killed between the two renames of a replacement,
    `path` is empty. The old and the new checkpoint are then complete beside it, in `.NAME.*.old` and `.tmp`. A
    checkpoint that failed audits is written too, and reports this whenever it is loaded.

    Raises `UnsafeModel` if the guard refuses the graph. Raises `GoldenMismatch` if its outputs differ from `expected`
    by more than `tolerance`. Raises `ContractMismatch` if names, types or shapes do not fit. Raises `CheckpointExists`
    if `path` holds something else, or a checkpoint that may not be replaced: one in service, or any without `overwrite`
    (or `--replace` of the running command).

    Args:
        path: the folder.
        draft: fields of the manifest that the author states.
        model: bytes of model.onnx.
        golden_inputs: input arrays by name; the first 16 rows are stored.
        expected: outputs of the model before its export, for all rows of `golden_inputs`, by the graph's output names.
        card: text of README.md.
        extra: more files of the checkpoint, by name.
        tolerance: largest accepted difference, absolute up to 1, relative beyond; at most 1e-4, for an adapter 0.05.
        overwrite: whether a checkpoint of the same kind may be replaced.
    """
    target = Path(path).resolve()
    check_target(target, draft.kind, overwrite=overwrite)
    session = GraphSession(model, kind=draft.kind)
    check_tolerance(tolerance, session.kind)
    actual = session.run(golden_inputs)
    if not any(array.size for array in actual.values()):
        raise ContractMismatch("golden_inputs has no rows; expected at least one")
    difference = largest_difference(expected, actual)
    if not difference.size <= tolerance:
        raise GoldenMismatch(
            f"the ONNX graph differs from the original model by {difference.size:.3g} in output {difference.output!r} "
            f"of row {difference.row}; at most {tolerance:g} is accepted. Check float64 thresholds, the order of the "
            "features and the scaler"
        )
    files = {MODEL: model, GOLDEN: record_rows(session, golden_inputs, tolerance), CARD: card.encode()}
    if extra and (reserved := extra.keys() & {*files, MANIFEST}):
        raise ContractMismatch(f"extra files cannot be called {', '.join(sorted(reserved))}; give them other names")
    for name, data in (extra or {}).items():
        files[name] = data
        if name.lower().endswith(".onnx") and (recorded := record_extra(name, data, draft.kind, tolerance)):
            files[name + EXTRA_GOLDEN] = recorded
    versions: dict[str, str] = {}
    for package in ("metaprobe", "numpy", "onnxruntime"):
        with suppress(PackageNotFoundError):  # run from source, or provided under another name (onnxruntime-gpu)
            versions[package] = version(package)
    draft_fields = {f.name: getattr(draft, f.name) for f in dataclasses.fields(Draft)}
    manifest = Manifest(
        **{**draft_fields, "versions": versions | draft.versions},
        format_version=FORMAT_VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        inputs=session.inputs,
        outputs=session.outputs,
        files={name: FileEntry(hashlib.sha256(data).hexdigest(), len(data)) for name, data in files.items()},
    )
    checkpoint = write_folder(target, {**files, MANIFEST: manifest_bytes(manifest)})
    return dataclasses.replace(checkpoint, path=Path(path))


def write_folder(target: Path, files: Mapping[str, bytes]) -> Checkpoint:
    """Writes the files of a checkpoint, verifies them, and gives their folder the name `target`.

    A checkpoint that is at `target` is replaced. Call `check_target` before.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _sibling(target, "tmp")
    try:
        temporary.mkdir()
        for name, data in files.items():
            try:
                with (temporary / name).open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                error.filename = error.filename or str(temporary / name)  # a full disk does not say where it is full
                raise
        _sync_folder(temporary)
        checkpoint = load_verified(temporary)
        if not target.exists():
            temporary.rename(target)
            _sync_folder(target.parent)
        else:  # it is moved aside, and deleted once the new one is there
            old_folder = _sibling(target, "old")
            target.rename(old_folder)
            try:
                temporary.rename(target)
            except BaseException:  # also Ctrl-C: the old one goes back
                old_folder.rename(target)
                raise
            _sync_folder(target.parent)
            shutil.rmtree(old_folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already where it was published
    return dataclasses.replace(checkpoint, path=target)


def check_target(path: str | os.PathLike[str], kind: str, *, overwrite: bool = False) -> None:
    """Checks that a checkpoint of this kind may be written to `path`. A training calls this before it begins.

    Raises `CheckpointExists` if something else is at `path`: a file on the way, a folder that is no checkpoint, a
    checkpoint of another kind, or one that may not be replaced (`check_replaced`). Raises `OSError` if nothing can be
    written.

    Args:
        path: the folder.
        kind: kind of the checkpoint.
        overwrite: whether a checkpoint of the same kind may be replaced.
    """
    target = Path(path).resolve()
    if (file := next((parent for parent in target.parents if parent.is_file()), None)) is not None:
        raise CheckpointExists(f"{target} lies in {file}, which is a file; give another path")
    folder = next((parent for parent in target.parents if parent.exists()), target)  # the root has no parent
    try:  # permissions alone do not show it: it may be read-only, or no real disk
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(error.errno, f"nothing can be written in {folder}: {error.strerror}", str(target)) from error
    if not target.exists():
        return
    if not target.is_dir():
        raise CheckpointExists(f"{target} exists and is not a folder")
    existing_names = {entry.name for entry in target.iterdir()}
    if not existing_names:
        return
    if MANIFEST not in existing_names:
        raise CheckpointExists(f"{target} is not a checkpoint but holds files, and is not replaced; give another path")
    try:
        manifest = parse_manifest((target / MANIFEST).read_bytes())
    except (OSError, CheckpointError) as error:
        raise CheckpointExists(f"{target} is not a checkpoint, and is not replaced: {error}") from error
    if manifest.kind != kind:
        raise CheckpointExists(
            f"{target} is a checkpoint of kind {manifest.kind!r}, and is not replaced by one of kind {kind!r}: move it "
            "away, or give another path"
        )
    if other_names := existing_names - (manifest.files.keys() | {MANIFEST}):
        raise CheckpointExists(
            f"{target} also holds {', '.join(sorted(other_names))}; move that away before replacing it"
        )
    check_replaced(target, overwrite=overwrite)


def _sibling(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.{ending}")


def _sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a power cut, if the system can (not on Windows)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
