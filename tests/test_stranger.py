"""The commands that `scripts/stranger.py` types exist, and a stranger is soon there."""

import json
import re
import runpy
from pathlib import Path

from metaprobe.cli import own_commands

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "stranger.py"
STRANGER = runpy.run_path(str(SCRIPT))


def test_a_stranger_has_a_first_score_within_two_minutes() -> None:
    """Issue 7 asks for this: environment, base install and both first scores."""
    steps = json.loads(STRANGER["MEASURED"].read_text(encoding="utf-8"))["steps"]
    assert sum(step["cpu_s"] for step in steps[:4]) < 120
    assert sum(step["wall_s"] for step in steps[:4]) < 120


def test_it_types_commands_that_exist_and_that_the_first_page_shows() -> None:
    typed = set(re.findall(r'_metaprobe\("(\w+)"', SCRIPT.read_text(encoding="utf-8")))
    assert typed == {"score", "import", "train", "inspect"}
    assert typed <= own_commands().keys()
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("start.md", "train.md")]
    assert all(f"metaprobe {name}" in "".join(pages) for name in typed)
