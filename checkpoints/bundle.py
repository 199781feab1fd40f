"""The trained defaults that come with the package, for the first day: what each was trained on stands in its card.

They were trained on runs that this project collected (`recorded/`), and `research/stores/bundle.py` makes them again.
"""

from pathlib import Path

from metaprobe.checkpoints.errors import NotACheckpoint

FOLDER = Path(__file__).parent / "bundled"


def find_bundled(name: str) -> Path:
    """Folder of the checkpoint of that name. Raises `NotACheckpoint`, with the names there are, for another one."""
    if name not in (there := bundled_names()):
        raise NotACheckpoint(f"no checkpoint {name!r} comes with metaprobe; there are: {', '.join(there)}")
    return FOLDER / name


def bundled_names() -> tuple[str, ...]:
    """All of them."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/manifest.json")))
