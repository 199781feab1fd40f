"""The file that says which checkpoints a running server loads (`serve --pins`): one version in another's place."""

from pathlib import Path

from metaprobe.records.errors import RecordError
from metaprobe.serving.http.settings import split_name


def swap_pin(pins: Path, before: str, location: str, digest: str) -> None:
    """Puts the checkpoint at `location`, of this digest, wherever the file pins the digest `before`.

    Lines are read as the server reads them, and comments stay. The file is renamed into place, so that a server sees
    the old one or the new one. Raises `RecordError` where no line pins that digest, and for a location that no line can
    name.
    """
    if "#" in location or location.split() != [location]:
        raise RecordError(
            f"{location!r} cannot stand in {pins}; expected a checkpoint with neither white space nor # in its path"
        )
    lines = pins.read_text(encoding="utf-8").splitlines()
    found = []
    for line in lines:
        pinned, hash_, said = line.partition("#")
        words = pinned.split()
        if len(words) != 2 or words[1] != before:
            found.append(line)
            continue
        name, _ = split_name(words[0])
        comment = f"{pinned[len(pinned.rstrip()) :]}{hash_}{said}".rstrip()
        found.append(f"{name}={location} {digest}{comment}" if name else f"{location} {digest}{comment}")
    if found == lines:
        raise RecordError(
            f"{pins} pins no checkpoint of digest {before[:16]}; expected a line `[NAME=]CHECKPOINT {before[:16]}...`, "
            "as `metaprobe serve --pins` reads it"
        )
    beside = pins.with_name(pins.name + ".new")
    beside.write_text("\n".join(found) + "\n", encoding="utf-8")
    beside.replace(pins)
