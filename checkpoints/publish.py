"""Publishes a checkpoint: as an exact copy, or in a repository on the hub with the metadata that the hub indexes."""

import dataclasses
import hashlib
import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from metaprobe.checkpoints.checkpoint import Checkpoint
from metaprobe.checkpoints.checkpoint_errors import ContractMismatch
from metaprobe.checkpoints.files import HUB, Repository, explain_errors, huggingface_hub, location_of
from metaprobe.checkpoints.manifest import CARD, MANIFEST, FileEntry, Manifest, manifest_bytes
from metaprobe.checkpoints.save import check_target, write_folder

LIBRARY = "metaprobe"
HELD_OUT = "held-out folds by group"

_FRONT_MATTER = re.compile(r"\A---\r?\n.*?\r?\n---\r?\n+", re.DOTALL)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Published:
    """Address of a checkpoint on the hub that identifies exactly this checkpoint."""

    repository: str
    commit: str
    """Commit that pins what is fetched."""
    digest: str
    """Digest that pins what is accepted, from any place: give it as `sha256`."""
    url: str

    @property
    def location(self) -> str:
        """Location for `load_checkpoint`."""
        return f"{HUB}{self.repository}@{self.commit}"


def push(
    checkpoint: Checkpoint,
    repository: str,
    *,
    license: str,
    tags: tuple[str, ...] = (),
    private: bool = False,
    message: str = "",
) -> Published:
    """Uploads a checkpoint in one commit to the hub repository OWNER/NAME, which is created if it does not exist.

    Its card gets the hub's metadata: license, library, tags, the generator as base model, and the held-out metrics as
    model index. This changes README.md, and so the manifest and the digest: give others the returned digest. A
    checkpoint that already has this metadata keeps its digest. Other files of the repository are kept, and never read.
    Raises `HubError` if the hub refuses, or if the extra `hub` is not installed.

    Args:
        checkpoint: the checkpoint.
        repository: OWNER/NAME.
        license: an identifier such as `apache-2.0`, or `other`.
        tags: more tags on the hub.
        private: whether a new repository is private.
        message: message of the commit.
    """
    Repository(repository)  # raises if this is no name
    hub = huggingface_hub()
    files = checkpoint.files()
    front_matter = _front_matter(checkpoint.manifest, repository.split("/")[1], license, tags)
    card = (front_matter + _FRONT_MATTER.sub("", files[CARD].decode("utf-8", "replace"))).encode()
    if card != files[CARD]:
        entry = FileEntry(hashlib.sha256(card).hexdigest(), len(card))
        manifest = dataclasses.replace(checkpoint.manifest, files={**checkpoint.manifest.files, CARD: entry})
        files = {**files, MANIFEST: manifest_bytes(manifest), CARD: card}
    with tempfile.TemporaryDirectory() as folder:  # what is uploaded is known to load
        digest = write_folder(Path(folder) / "checkpoint", files).digest
    with explain_errors(f"{HUB}{repository}"):
        api = hub.HfApi(library_name=LIBRARY)
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.create_commit(
            repository,
            [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=data) for name, data in files.items()],
            commit_message=message or f"{checkpoint.manifest.kind} checkpoint {digest[:12]}",
        )
    return Published(repository, commit.oid, digest, str(commit.repo_url))


def _front_matter(manifest: Manifest, name: str, license: str, tags: tuple[str, ...]) -> str:
    """Returns the hub's metadata as YAML. JSON values are YAML; there is one a line, for readers.

    Args:
        manifest: the manifest.
        name: name of the repository.
        license: license identifier.
        tags: more tags on the hub.
    """
    if not re.fullmatch(r"[\w.-]+", license):
        raise ContractMismatch(
            f"license is {license!r}; expected an identifier of the hub such as 'apache-2.0' or 'other'"
        )
    bases = [model for model in (manifest.generator.models if manifest.generator else ()) if _HUB_ID.fullmatch(model)]
    fingerprint = manifest.training.fingerprint if manifest.training else "unknown"
    results = {
        "task": {"type": "text-classification", "name": f"{manifest.kind} of a language model's answers"},
        "dataset": {"type": f"sha256-{fingerprint[:16]}", "name": HELD_OUT},
        "metrics": [
            {
                "type": name.rsplit(".", 1)[-1],
                "name": f"{name}, 95 % interval {m.low:.3f} to {m.high:.3f}, n = {m.n}",
                "value": m.estimate,
            }
            for name, m in manifest.metrics.items()
        ],
    }
    data: dict[str, Any] = {
        "license": license,
        "library_name": LIBRARY,
        "tags": [LIBRARY, manifest.kind, "onnx", "calibration", "uncertainty", *tags],
        "base_model": bases,
        "metrics": sorted({name.rsplit(".", 1)[-1] for name in manifest.metrics}),
        "model-index": [{"name": name, "results": [results]}] if manifest.metrics else [],
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in data.items() if value]
    return "\n".join(["---", *lines, "---", "", ""])


class HasCheckpoint(Protocol):
    """An object that holds a checkpoint, so that it can be saved and pushed."""

    @property
    def checkpoint(self) -> Checkpoint: ...


class Pretrained:
    """Adds the usual methods for the hub and for notebooks to a class that has `load` and `checkpoint`."""

    __slots__ = ()

    def __repr__(self: HasCheckpoint) -> str:
        return f"{type(self).__name__}({str(self.checkpoint.path)!r}, digest {self.checkpoint.digest[:12]})"

    def _repr_html_(self: HasCheckpoint) -> str:
        """Returns a table for notebooks."""
        return self.checkpoint.as_html(type(self).__name__)

    if TYPE_CHECKING:

        @classmethod
        def load(cls, *args: Any, **options: Any) -> Any:
            """Loads an object; each class has its own `load`."""

    @classmethod
    def from_pretrained(cls, repository: str, *, revision: str | None = None, **options: Any) -> Self:
        """Loads from the repository OWNER/NAME on the hub, or from a folder; `options` are those of `load`.

        `revision` is a commit, branch or tag, by default `main`. Only a full commit hash never changes. Give one, or
        `sha256`, the digest from the checkpoint's author.
        """
        loaded: Self = cls.load(location_of(repository, revision), **options)
        return loaded

    def save_pretrained(self: HasCheckpoint, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Checkpoint:
        """Copies the checkpoint to another folder, byte for byte, so that the digest stays. Raises as
        `save_checkpoint`.
        """
        target = Path(folder).resolve()
        check_target(target, self.checkpoint.manifest.kind, overwrite=overwrite)
        return dataclasses.replace(write_folder(target, self.checkpoint.files()), path=Path(folder))

    def push_to_hub(self: HasCheckpoint, repository: str, *, license: str, **options: Any) -> Published:
        """Uploads the checkpoint to the hub and returns its address: see `metaprobe.checkpoints.publish.push`."""
        return push(self.checkpoint, repository, license=license, **options)
