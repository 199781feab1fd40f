"""Reads the files of a checkpoint: from a folder of this machine, the package, or a repository on the hub.

Only the manifest and the files it names are fetched from the hub (`hub:OWNER/NAME@REVISION` wherever a folder is
expected), each held against its size limit before the download begins. They go into the cache of huggingface_hub; what
is there is not fetched again, and is enough where there is no network.
"""

import hashlib
import importlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from metaprobe.checkpoints.errors import HubError, NotACheckpoint, UnsafeModel

BUNDLED_FOLDER = Path(__file__).parent / "bundled"
"""The trained defaults that come with the package, for the first day; the card of each says what it was trained on.

They were trained on runs that this project collected (`recorded/`), and `research/stores/bundle.py` makes them again.
"""


def find_bundled(name: str) -> Path:
    """Folder of the checkpoint of that name. Raises `NotACheckpoint`, with the names there are, for another one."""
    if name not in (there := bundled_names()):
        raise NotACheckpoint(f"no checkpoint {name!r} comes with metaprobe; there are: {', '.join(there)}")
    return BUNDLED_FOLDER / name


def bundled_names() -> tuple[str, ...]:
    """Returns the names of all checkpoints that come with the package."""
    return tuple(sorted(path.parent.name for path in BUNDLED_FOLDER.glob("*/manifest.json")))


@cache
def bundled_digests() -> dict[str, str]:
    """Returns the name of each checkpoint that comes with the package, `bundled:NAME`, by its digest."""
    return {
        hashlib.sha256((BUNDLED_FOLDER / name / "manifest.json").read_bytes()).hexdigest(): f"{BUNDLED}{name}"
        for name in bundled_names()
    }


BUNDLED, HUB = "bundled:", "hub:"
"""Prefixes of locations that are no folders."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder on this machine."""

    path: Path
    links: bool = False
    """Whether files may be links: in the hub's cache they are, in a folder that somebody sends they are refused."""

    @property
    def moving(self) -> str:
        """Why another checkpoint may lie here tomorrow, and what to do; empty: a folder is what it is."""
        return ""

    def where(self, name: str) -> str:
        """Returns the place of a file, for messages; of the folder itself where the name is empty."""
        return str(self.path / name)

    def read(self, name: str, limit: int) -> bytes:
        """Returns a file's bytes. Raises `UnsafeModel` for more than `limit` of them, `NotACheckpoint` for no file."""
        path = (self.path / name).resolve() if self.links else self.path / name
        # Nothing that could block is waited for.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise UnsafeModel(f"{path} is a link or no regular file; copy the file itself into the folder")
            with os.fdopen(os.open(path, flags), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                check_size(str(path), size, limit)
                return file.read(size)
        except OSError as error:
            raise NotACheckpoint(f"{path} cannot be read ({error.strerror}); a checkpoint must hold it") from error


def check_size(where: str, size: int, limit: int) -> None:
    """Raises `UnsafeModel` where a file is larger than what is read."""
    if size > limit:
        raise UnsafeModel(f"{where} has {size} bytes; at most {limit} are read. If you trust it, raise `limits`")


DEFAULT_REVISION = "main"

_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(slots=True)
class Repository:
    """A model repository at one revision. Whatever is read first fixes the commit that everything else is read from."""

    name: str
    """OWNER/NAME."""
    revision: str = DEFAULT_REVISION
    """A commit, branch or tag."""
    commit: str = ""
    """The commit of the revision, known once a file was read."""
    _snapshot: Path | None = None

    def __post_init__(self) -> None:
        if not _REPOSITORY.fullmatch(self.name) or ".." in self.name:
            raise NotACheckpoint(f"{self.name!r} names no repository; expected OWNER/NAME")
        if not _REVISION.fullmatch(self.revision) or ".." in self.revision:
            raise NotACheckpoint(f"{self.revision!r} is no revision; expected a commit, a branch or a tag")

    @property
    def pinned(self) -> bool:
        """Whether the revision is a commit, which cannot become another one."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def moving(self) -> str:
        if self.pinned:
            return ""
        return (
            f"revision {self.revision!r} of {self.name} may be another checkpoint tomorrow. Pin what it is now: "
            f"{HUB}{self.name}@{self.commit}, or give its digest as sha256"
        )

    @property
    def path(self) -> Path:
        if self._snapshot is None:
            raise NotACheckpoint(f"nothing of {self.where('')} was read yet")
        return self._snapshot

    def where(self, name: str) -> str:
        location = f"{HUB}{self.name}@{self.commit or self.revision}"
        return f"{name} of {location}" if name else location

    def read(self, name: str, limit: int) -> bytes:
        hub = huggingface_hub()
        with explain_errors(self.where(name)):
            listed = hub.hf_hub_download(self.name, name, revision=self.commit or self.revision, dry_run=True)
        if listed.file_size is None:
            raise UnsafeModel(f"the hub does not say how large {self.where(name)} is; it is not fetched")
        check_size(self.where(name), listed.file_size, limit)
        if not _COMMIT.fullmatch(listed.commit_hash):  # it becomes the name of a folder
            raise HubError(f"the hub says that {self.where(name)} is at commit {listed.commit_hash!r}, which is none")
        with explain_errors(self.where(name)):  # by its branch the first time: the cache then knows what the branch was
            file = Path(hub.hf_hub_download(self.name, name, revision=self.commit or self.revision))
        self._snapshot, self.commit = file.parent, file.parent.name
        return Folder(file.parent, links=True).read(name, limit)


def files_at(location: str | os.PathLike[str]) -> Folder | Repository:
    """Returns the files of a checkpoint at a folder, `bundled:NAME`, or `hub:OWNER/NAME@REVISION` (else main).

    A folder whose name begins so is written `./hub:...`.
    """
    text = os.fspath(location)
    if text.startswith(BUNDLED):
        return Folder(find_bundled(text.removeprefix(BUNDLED)))
    if text.startswith(HUB):
        name, at, revision = text.removeprefix(HUB).partition("@")
        return Repository(name, revision if at else DEFAULT_REVISION)
    return Folder(Path(text))


def location_of(repository: str, revision: str | None = None) -> str:
    """`hub:OWNER/NAME@REVISION`; a folder of this machine stays what it is.

    As everywhere with `from_pretrained`, a folder that exists goes before a repository of the same name; one named
    with `hub:` or a revision is always a repository.
    """
    if revision is None and (repository.startswith(HUB) or Path(repository).is_dir()):
        return repository
    name, at, stated = repository.removeprefix(HUB).partition("@")
    if at and revision is not None and stated != revision:
        raise NotACheckpoint(f"{repository!r} names revision {stated!r}, and revision={revision!r} was given too")
    return f"{HUB}{name}@{revision or stated or DEFAULT_REVISION}"


def huggingface_hub() -> ModuleType:
    """The library. Raises `HubError` with the line to type where it is absent."""
    try:
        return importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":
            raise
        raise HubError(
            "huggingface_hub is needed for checkpoints on the hub and not installed: pip install 'huggingface-hub>=1.0'"
            " (the extra `hub` of metaprobe brings it too)"
        ) from error


@contextmanager
def explain_errors(what: str) -> Iterator[None]:
    """The library's errors as ours, with what to do about them."""
    errors = importlib.import_module("huggingface_hub.errors")
    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(f"{what}: access must be asked for on the hub, then log in with `hf auth login`") from error
    except errors.RepositoryNotFoundError as error:
        raise NotACheckpoint(
            f"{what}: no such repository, or a private one: log in with `hf auth login` where it is yours"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise NotACheckpoint(f"{what}: the repository has no such revision") from error
    except errors.RemoteEntryNotFoundError as error:
        raise NotACheckpoint(f"{what}: the repository has no such file; a checkpoint must hold it") from error
    except errors.LocalEntryNotFoundError as error:
        raise HubError(f"{what}: the hub cannot be reached, and the file is not in the cache: {error}") from error
    except (errors.HTTPError, ValueError, OSError) as error:
        raise HubError(f"{what}: {error}") from error
