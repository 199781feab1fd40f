"""The file that says which checkpoints a running server loads (`serve --pins`): one version in another's place."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metaprobe.records.atomic import atomic_write
from metaprobe.records.errors import RecordError
from metaprobe.records.one_writer import OneWriter
from metaprobe.serving.http.settings import split_name


def swap_pin(pins: Path, before: str, location: str, digest: str) -> None:
    """Puts the checkpoint at `location`, of this digest, wherever the file pins the digest `before`.

    Lines are read as the server reads them, and comments stay. The file is renamed into place, so that a server sees
    the old one or the new one. A file that pins `digest` and no more `before` stays as it is: a promotion that was
    killed before the log had it can be made again. Raises `RecordError` where no line pins either digest, and for a
    location that no line can name.
    """
    if "#" in location or location.split() != [location]:
        raise RecordError(
            f"{location!r} cannot stand in {pins}; expected a checkpoint with neither white space nor # in its path"
        )
    lines = _read(pins).splitlines()
    found = []
    for line in lines:
        pinned, hash_, said = line.partition("#")
        words = pinned.split()
        if len(words) != 2 or words[1].lower() != before:
            found.append(line)
            continue
        name, _ = split_name(words[0])
        comment = f"{pinned[len(pinned.rstrip()) :]}{hash_}{said}".rstrip()
        found.append(f"{name}={location} {digest}{comment}" if name else f"{location} {digest}{comment}")
    if found == lines:
        if digest in {word.lower() for line in lines for word in line.partition("#")[0].split()[1:]}:
            return
        raise RecordError(
            f"{pins} pins no checkpoint of digest {before[:16]}; expected a line `[NAME=]CHECKPOINT {before[:16]}...`, "
            "as `metaprobe serve --pins` reads it"
        )
    _write(pins, "\n".join(found) + "\n")


@contextmanager
def put_back(pins: Path) -> Iterator[None]:
    """Where the block fails, the file says again what it said before.

    Raises `StoreHeld` where another promotion changes the file: one of them would be lost.
    """
    with OneWriter(pins.parent, of=pins.name):
        before = _read(pins)
        try:
            yield
        except BaseException:
            if _read(pins) != before:
                _write(pins, before)
            raise


def _read(pins: Path) -> str:
    try:
        return pins.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"{pins} is no text in UTF-8 ({error}); expected the file of `serve --pins`") from error


def _write(pins: Path, text: str) -> None:
    with atomic_write(pins) as file:
        shutil.copymode(pins, file.name)  # whoever could read it still can
        file.write(text.encode())
