"""Write a checkpoint folder: checked against the original model first, then whole or not at all.

Every writer of checkpoints asks `check_target` whether one that is there may be replaced.
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
from metaprobe.checkpoints.errors import CheckpointError, CheckpointExists, ContractMismatch, GoldenMismatch
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
"""Digest -> by what a checkpoint of that digest is in service, as a clause; empty where it is not known to be."""
PINS = "METAPROBE_PINS"
"""Environment variable with the file of `serve --pins`."""


@dataclass(frozen=True, slots=True)
class Replacing:
    """Says which checkpoints may be replaced while a command or a training runs."""

    replace: bool = False
    """Whether a checkpoint of the same kind may be replaced."""
    in_service: tuple[InService, ...] = ()
    """A checkpoint that one of these knows is never replaced."""


NO_REPLACING = Replacing()
_running: ContextVar[Replacing] = ContextVar("replacing")
"""Outputs that the running command may replace. It is no argument, because the writer is many calls below."""


@contextmanager
def replacing(allowed: Replacing) -> Iterator[None]:
    """Within the block, writers replace what is allowed, beside what an outer block allows, and nothing that either of
    them knows to be in service."""
    outer = _running.get(NO_REPLACING)
    token = _running.set(Replacing(allowed.replace or outer.replace, (*outer.in_service, *allowed.in_service)))
    try:
        yield
    finally:
        _running.reset(token)


def check_replaced(target: Path, *, overwrite: bool) -> None:
    """Raises `CheckpointExists` where the checkpoint in the folder may not be replaced.

    One that a file of pins names, or that has scored answers of a log, is in service or may be gone back to: it is
    never replaced. Any other one is replaced where `overwrite` or the running command says so.
    """
    digest = hashlib.sha256((target / MANIFEST).read_bytes()).hexdigest()
    allowed = _running.get(NO_REPLACING)
    pinned = (pinned_in(Path(named)),) if (named := os.environ.get(PINS, "").strip()) else ()
    for known in (*allowed.in_service, *pinned):
        if reason := known(digest):
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
    """Returns what says whether a file of pins, lines of [NAME=]CHECKPOINT SHA256, names a digest.

    Raises `CheckpointExists` when it is asked and the file cannot be read: what is in service is then not known.
    """

    def known(digest: str) -> str:
        try:
            lines = pins.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointExists(
                f"the file of pins {pins} cannot be read ({error}), so that it is not known which checkpoints are in "
                "service: name the file of `metaprobe serve --pins`"
            ) from error
        words = {word.lower() for line in lines for word in line.partition("#")[0].split()}
        return f"which {pins} pins" if digest in words else ""

    return known


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
    """Writes the folder `path` and returns it loaded, so that what was written is known to verify.

    `expected` is what the model before its export gave for all rows of `golden_inputs`, under the graph's output names.
    The first 16 rows are kept. `extra`: further files of the checkpoint, by name. There is never a part of a checkpoint
    at `path`. A kill between the two renames of a replacement leaves nothing there; the old and the new one are then
    whole beside it, in `.NAME.*.old` and `.tmp`.

    A checkpoint that failed audits is written all the same, and says so whenever it is loaded.

    Raises `UnsafeModel` where the guard refuses the graph, `GoldenMismatch` where it differs from `expected` by more
    than `tolerance` (absolute up to 1, relative beyond; at most 1e-4, for an adapter 0.05), `ContractMismatch` where
    names, types or shapes do not fit, and `CheckpointExists` where `path` exists and holds something else, or a
    checkpoint that may not be replaced: any without `overwrite` (or `--replace` of the running command), and always one
    that is in service.
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
    if extra and (taken := extra.keys() & {*files, MANIFEST}):
        raise ContractMismatch(f"extra files cannot be called {', '.join(sorted(taken))}; give them other names")
    for name, data in (extra or {}).items():
        files[name] = data
        if name.lower().endswith(".onnx") and (recorded := record_extra(name, data, draft.kind, tolerance)):
            files[name + EXTRA_GOLDEN] = recorded
    versions: dict[str, str] = {}
    for package in ("metaprobe", "numpy", "onnxruntime"):
        with suppress(PackageNotFoundError):  # run from source, or provided under another name (onnxruntime-gpu)
            versions[package] = version(package)
    stated = {f.name: getattr(draft, f.name) for f in dataclasses.fields(Draft)}
    manifest = Manifest(
        **{**stated, "versions": versions | draft.versions},
        format_version=FORMAT_VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        inputs=session.inputs,
        outputs=session.outputs,
        files={name: FileEntry(hashlib.sha256(data).hexdigest(), len(data)) for name, data in files.items()},
    )
    checkpoint = place(target, {**files, MANIFEST: manifest_bytes(manifest)})
    return dataclasses.replace(checkpoint, path=Path(path))


def place(target: Path, files: Mapping[str, bytes]) -> Checkpoint:
    """Makes these files the checkpoint folder `target`, which `check_target` allows: verified first, then whole."""
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
            aside = _sibling(target, "old")
            target.rename(aside)
            try:
                temporary.rename(target)
            except BaseException:  # also Ctrl-C: the old one goes back
                aside.rename(target)
                raise
            _sync_folder(target.parent)
            shutil.rmtree(aside)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already where it was published
    return dataclasses.replace(checkpoint, path=target)


def check_target(path: str | os.PathLike[str], kind: str, *, overwrite: bool = False) -> None:
    """Checks that a checkpoint of that kind may be written to `path`. A training calls this before it begins.

    Raises `CheckpointExists` where something else stands at `path`: a file on the way, a folder that is no checkpoint,
    one of another kind, or one that may not be replaced (`check_replaced`). Raises `OSError` where nothing
    can be written.
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
    held = {entry.name for entry in target.iterdir()}
    if not held:
        return
    if MANIFEST not in held:
        raise CheckpointExists(f"{target} is not a checkpoint but holds files, and is not replaced; give another path")
    try:
        there = parse_manifest((target / MANIFEST).read_bytes())
    except (OSError, CheckpointError) as error:
        raise CheckpointExists(f"{target} is not a checkpoint, and is not replaced: {error}") from error
    if there.kind != kind:
        raise CheckpointExists(
            f"{target} is a checkpoint of kind {there.kind!r}, and is not replaced by one of kind {kind!r}: move it "
            "away, or give another path"
        )
    if strangers := held - (there.files.keys() | {MANIFEST}):
        raise CheckpointExists(
            f"{target} also holds {', '.join(sorted(strangers))}; move that away before replacing it"
        )
    check_replaced(target, overwrite=overwrite)


def _sibling(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.{ending}")


def _sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a power cut, where the system can (not on Windows)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
