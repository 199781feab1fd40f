"""Reads the files of a checkpoint: from a local folder, the package, or a repository on the hub.

From the hub (`hub:OWNER/NAME@REVISION` in place of a folder) only the manifest and the files that it names are fetched.
Each size is checked before the download begins. The files go into the cache of huggingface_hub. Cached files are not
fetched again, and suffice without a network.
"""

import importlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from metaprobe.checkpoints.checkpoint_errors import HubError, NotACheckpoint, UnsafeModel

BUNDLED_FOLDER = Path(__file__).parent / "bundled"
"""Folder of the trained defaults that come with the package, for the first day. The card of each says what it was
trained on.

They were trained on runs that this project collected (`recorded/`). `research/stores/bundle.py` makes them again.
"""


def find_bundled(name: str) -> Path:
    """Returns the folder of a bundled checkpoint. Raises `NotACheckpoint`, with the known names, for an
    unknown name.
    """
    if name not in (bundled := bundled_names()):
        raise NotACheckpoint(f"no checkpoint {name!r} comes with metaprobe; there are: {', '.join(bundled)}")
    return BUNDLED_FOLDER / name


def bundled_names() -> tuple[str, ...]:
    """Returns the names of all checkpoints that come with the package."""
    return tuple(sorted(path.parent.name for path in BUNDLED_FOLDER.glob("*/manifest.json")))


BUNDLED, HUB = "bundled:", "hub:"
"""Prefixes of locations that are not folders."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A local folder."""

    path: Path
    links: bool = False
    """Whether files may be links. In the hub's cache they are links; in a folder from somebody else links
    are refused.
    """

    @property
    def unpinned_warning(self) -> str:
        """Why the location may hold another checkpoint later, and what to do; empty for a folder."""
        return ""

    def where(self, name: str) -> str:
        """Returns where a file is, for messages; with an empty name where the folder is."""
        return str(self.path / name)

    def read(self, name: str, limit: int) -> bytes:
        """Returns a file's bytes. Raises `UnsafeModel` for more than `limit` bytes, and `NotACheckpoint` if there is no
        file.
        """
        path = (self.path / name).resolve() if self.links else self.path / name
        # O_NONBLOCK: opening a pipe or a device must not wait.
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
    """Raises `UnsafeModel` if a file is larger than `limit` bytes.

    Args:
        where: path of the file, for messages.
        size: bytes of the file.
        limit: most bytes that are read.
    """
    if size > limit:
        raise UnsafeModel(f"{where} has {size} bytes; at most {limit} are read. If you trust it, raise `limits`")


DEFAULT_REVISION = "main"

_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(slots=True)
class Repository:
    """A model repository at one revision. The first read fixes the commit from which everything else is read."""

    name: str
    """OWNER/NAME."""
    revision: str = DEFAULT_REVISION
    """A commit, branch or tag."""
    commit: str = ""
    """Commit of the revision; empty until a file was read."""
    _snapshot: Path | None = None

    def __post_init__(self) -> None:
        if not _REPOSITORY.fullmatch(self.name) or ".." in self.name:
            raise NotACheckpoint(f"{self.name!r} names no repository; expected OWNER/NAME")
        if not _REVISION.fullmatch(self.revision) or ".." in self.revision:
            raise NotACheckpoint(f"{self.revision!r} is no revision; expected a commit, a branch or a tag")

    @property
    def pinned(self) -> bool:
        """Whether the revision is a commit, which cannot change."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def unpinned_warning(self) -> str:
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
            listed_file = hub.hf_hub_download(self.name, name, revision=self.commit or self.revision, dry_run=True)
        if listed_file.file_size is None:
            raise UnsafeModel(f"the hub does not say how large {self.where(name)} is; it is not fetched")
        check_size(self.where(name), listed_file.file_size, limit)
        if not _COMMIT.fullmatch(listed_file.commit_hash):  # it becomes the name of a folder
            raise HubError(
                f"the hub says that {self.where(name)} is at commit {listed_file.commit_hash!r}, which is none"
            )
        with explain_errors(self.where(name)):  # the first time by its branch, so that the cache records the branch
            file = Path(hub.hf_hub_download(self.name, name, revision=self.commit or self.revision))
        self._snapshot, self.commit = file.parent, file.parent.name
        return Folder(file.parent, links=True).read(name, limit)


def files_at(location: str | os.PathLike[str]) -> Folder | Repository:
    """Returns the files of a checkpoint in a folder, at `bundled:NAME`, or at `hub:OWNER/NAME@REVISION` (default main).

    A folder whose name begins with such a prefix is written `./hub:...`.
    """
    text = os.fspath(location)
    if text.startswith(BUNDLED):
        return Folder(find_bundled(text.removeprefix(BUNDLED)))
    if text.startswith(HUB):
        name, separator, revision = text.removeprefix(HUB).partition("@")
        return Repository(name, revision if separator else DEFAULT_REVISION)
    return Folder(Path(text))


def location_of(repository: str, revision: str | None = None) -> str:
    """Returns `hub:OWNER/NAME@REVISION`; a local folder is returned unchanged.

    As everywhere with `from_pretrained`, an existing folder counts before a repository with that name. A name with
    `hub:` or a revision is always a repository.
    """
    if revision is None and (repository.startswith(HUB) or Path(repository).is_dir()):
        return repository
    name, separator, named_revision = repository.removeprefix(HUB).partition("@")
    if separator and revision is not None and named_revision != revision:
        raise NotACheckpoint(
            f"{repository!r} names revision {named_revision!r}, and revision={revision!r} was given too"
        )
    return f"{HUB}{name}@{revision or named_revision or DEFAULT_REVISION}"


def huggingface_hub() -> ModuleType:
    """Returns the library huggingface_hub. Raises `HubError` with the command that installs it if it is missing."""
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
    """Converts the library's errors to ours, with what to do about them."""
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
