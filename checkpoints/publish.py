"""Giving a checkpoint away: a verbatim copy, or a repository on the hub with the metadata that the hub indexes."""

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
from metaprobe.checkpoints.errors import ContractMismatch
from metaprobe.checkpoints.files import HUB, Repository, explain_errors, huggingface_hub, location_of
from metaprobe.checkpoints.manifest import CARD, MANIFEST, FileEntry, Manifest, manifest_bytes
from metaprobe.checkpoints.save import check_target, place

LIBRARY = "metaprobe"
HELD_OUT = "held-out folds by group"

_FRONT_MATTER = re.compile(r"\A---\r?\n.*?\r?\n---\r?\n+", re.DOTALL)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Published:
    """Address of a checkpoint on the hub, by which exactly this one is asked for."""

    repository: str
    commit: str
    """Pins what is fetched."""
    digest: str
    """Pins what is accepted, wherever it comes from: give it as `sha256`."""
    url: str

    @property
    def location(self) -> str:
        """The location that `load_checkpoint` takes."""
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
    """Uploads it in one commit to the hub repository OWNER/NAME, which is made where there is none.

    Its card gets the hub's metadata: `license` (an identifier such as `apache-2.0`, or `other`), library, tags, the
    generator as base model, and the held-out metrics as model index. That changes README.md, and with it the manifest
    and the digest: give others the digest that is returned. A checkpoint that has this metadata already keeps its
    digest. Files that the repository holds besides are left there, and never read.

    Raises `HubError` where the hub refuses, and where the extra `hub` is not installed.
    """
    Repository(repository)  # is it a name?
    hub = huggingface_hub()
    files = checkpoint.files()
    front = _front_matter(checkpoint.manifest, repository.split("/")[1], license, tags)
    card = (front + _FRONT_MATTER.sub("", files[CARD].decode("utf-8", "replace"))).encode()
    if card != files[CARD]:
        entry = FileEntry(hashlib.sha256(card).hexdigest(), len(card))
        manifest = dataclasses.replace(checkpoint.manifest, files={**checkpoint.manifest.files, CARD: entry})
        files = {**files, MANIFEST: manifest_bytes(manifest), CARD: card}
    with tempfile.TemporaryDirectory() as folder:  # what is uploaded is known to load
        digest = place(Path(folder) / "checkpoint", files).digest
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
    """JSON values are YAML; one a line, so that a reader sees what is what."""
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
    """An object that can be saved and pushed."""

    @property
    def checkpoint(self) -> Checkpoint: ...


class Pretrained:
    """Gives a class that has `load` and `checkpoint` what users of the hub and of notebooks expect."""

    __slots__ = ()

    def __repr__(self: HasCheckpoint) -> str:
        return f"{type(self).__name__}({str(self.checkpoint.path)!r}, digest {self.checkpoint.digest[:12]})"

    def _repr_html_(self: HasCheckpoint) -> str:
        """A table for notebooks."""
        return self.checkpoint.as_html(type(self).__name__)

    if TYPE_CHECKING:

        @classmethod
        def load(cls, *args: Any, **options: Any) -> Any:
            """Each class has its own."""

    @classmethod
    def from_pretrained(cls, repository: str, *, revision: str | None = None, **options: Any) -> Self:
        """Loads from the repository OWNER/NAME on the hub, or from a folder; `options` are those of `load`.

        `revision`: a commit, branch or tag, `main` where none is given. Only a full commit hash stays the same: give
        one, or `sha256`, the digest from the checkpoint's author.
        """
        loaded: Self = cls.load(location_of(repository, revision), **options)
        return loaded

    def save_pretrained(self: HasCheckpoint, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Checkpoint:
        """The same checkpoint in another folder, byte for byte, so with the same digest. Raises as
        `save_checkpoint`."""
        target = Path(folder).resolve()
        check_target(target, self.checkpoint.manifest.kind, overwrite=overwrite)
        return dataclasses.replace(place(target, self.checkpoint.files()), path=Path(folder))

    def push_to_hub(self: HasCheckpoint, repository: str, *, license: str, **options: Any) -> Published:
        """Its place on the hub, once it is there: see `metaprobe.checkpoints.publish.push`."""
        return push(self.checkpoint, repository, license=license, **options)
