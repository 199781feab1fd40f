"""Which checkpoints gave a log's scores, what they are called, and which of them somebody means.

A score means something for one version only: figures of two versions are never put together.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache

from metaprobe.checkpoints import CheckpointError, load_checkpoint
from metaprobe.checkpoints.files import FOLDER, bundled_names
from metaprobe.monitoring.log import ScoreLog
from metaprobe.monitoring.schema import contexts, sa
from metaprobe.records.errors import RecordError

SHOWN = 12
"""Digits of a digest by which a version is named."""
LEAST = 4
"""Digits by which a version may be chosen, at least."""
_PAIRS = (("from", "from_path"), ("to", "to_path"), ("digest", "path"), ("to", "path"))
"""Details of events that name a digest and its folder."""
_KINDS = ("promoted", "rolled back", "recalibrated")


def version_names(log: ScoreLog) -> dict[str, str]:
    """Returns digest -> folder of the versions whose folder is known: from promotions and recalibrations in the log,
    and of those that come with metaprobe."""
    folders = dict(_bundled())
    for event in log.events():
        if event.kind not in _KINDS:
            continue
        for digest, path in _PAIRS:
            version, folder = event.details.get(digest), event.details.get(path)
            if isinstance(version, str) and isinstance(folder, str) and folder:
                folders[version] = folder
    return folders


@cache
def _bundled() -> dict[str, str]:
    return {
        hashlib.sha256((FOLDER / name / "manifest.json").read_bytes()).hexdigest(): f"bundled:{name}"
        for name in bundled_names()
    }


def name_version(checkpoint: str, names: Mapping[str, str]) -> str:
    """Returns how people are told of a version: the beginning of its digest, with its folder where that is known."""
    short = checkpoint[:SHOWN] or "none"
    return f"{short} ({names[checkpoint]})" if checkpoint in names else short


def find_version(log: ScoreLog, given: str) -> str:
    """Returns the digest of the version that somebody names by the beginning of its digest, or by its folder.

    Raises `RecordError` where no version of the log is meant, or several are.
    """
    there = sorted({str(row[0]) for row in log.tables.read(sa.select(contexts.c.checkpoint).distinct())} - {""})
    names = version_names(log)
    meant = [one for one in there if given == names.get(one)]
    if not meant and len(given) >= LEAST:
        meant = [one for one in there if one.startswith(given.lower())]
    if not meant:
        with suppress(CheckpointError, OSError):
            meant = [one for one in there if one == load_checkpoint(given).digest]
    if len(meant) == 1:
        return meant[0]
    known = ", ".join(name_version(one, names) for one in there[:5])
    raise RecordError(
        f"{given!r} is {'the beginning of several' if meant else 'none'} of the checkpoints that gave this log's "
        f"scores ({known or 'none yet'}); expected a folder, or at least {LEAST} digits of a digest"
    )
