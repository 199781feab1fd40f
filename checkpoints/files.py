"""Where the files of a checkpoint are read from: a folder on this machine, or a repository on the hub."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from metaprobe.checkpoints.errors import NotACheckpoint, UnsafeModel

BUNDLED, HUB = "bundled:", "hub:"
"""What a location begins with that is no folder."""


class Files(Protocol):
    """Gives a file's bytes, and never more of them than it is asked for."""

    @property
    def path(self) -> Path:
        """The folder they lie in, once one was read."""

    @property
    def moving(self) -> str:
        """Once one was read: why another checkpoint may lie here tomorrow, and what to do; empty where none may."""

    def where(self, name: str) -> str:
        """The place of one, for messages; of the folder itself where the name is empty."""

    def read(self, name: str, limit: int) -> bytes:
        """All bytes of one. Raises `UnsafeModel` for more than `limit` of them, `NotACheckpoint` where it is absent."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder on this machine."""

    path: Path
    links: bool = False
    """Whether files may be links: in the hub's cache they are, in a folder that somebody sends they are refused."""

    @property
    def moving(self) -> str:
        return ""

    def where(self, name: str) -> str:
        return str(self.path / name)

    def read(self, name: str, limit: int) -> bytes:
        path = self.path / name
        return read_file(path.resolve() if self.links else path, limit)


def files_at(location: str | os.PathLike[str]) -> Files:
    """Where to read the files of a checkpoint: a folder, `bundled:NAME`, or `hub:OWNER/NAME@REVISION` (else main).

    A folder whose name begins so is written `./hub:...`.
    """
    text = os.fspath(location)
    if text.startswith(BUNDLED):
        from metaprobe.checkpoints.bundle import find_bundled

        return Folder(find_bundled(text.removeprefix(BUNDLED)))
    if text.startswith(HUB):
        from metaprobe.checkpoints.hub import repository_at

        return repository_at(text)
    return Folder(Path(text))


def read_file(path: Path, limit: int) -> bytes:
    """The bytes of a regular file within its limit. Links are refused, and nothing that could block is waited for."""
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
