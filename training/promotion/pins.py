"""The file that says which checkpoints a running server loads (`serve --pins`): one version in another's place."""

from pathlib import Path

from metaprobe.records.errors import RecordError


def swap_pin(pins: Path, before: str, location: str, digest: str) -> None:
    """Puts the checkpoint at `location`, of this digest, wherever the file pins the digest `before`.

    The file is renamed into place, so that a server sees the old one or the new one. Raises `RecordError` where no line
    pins that digest.
    """
    lines = pins.read_text(encoding="utf-8").splitlines()
    found = []
    for line in lines:
        place, _, pinned = line.strip().rpartition(" ")
        name, named, _ = place.rpartition("=")
        found.append(f"{name}{named}{location} {digest}" if place and pinned == before else line)
    if found == lines:
        raise RecordError(
            f"{pins} pins no checkpoint of digest {before[:16]}; expected a line `[NAME=]CHECKPOINT {before[:16]}...`, "
            "as `metaprobe serve --pins` reads it"
        )
    beside = pins.with_name(pins.name + ".new")
    beside.write_text("\n".join(found) + "\n", encoding="utf-8")
    beside.replace(pins)
