"""The wheel of the app holds all of it, and its commands say what their options are for."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pytest

from metaprobe_writing_assistant.commands import assist, study

APP = Path(__file__).parent.parent
COMMANDS = {"assist": assist, **{f"study {name}": command for name, command in study.commands.items()}}


def test_the_wheel_holds_every_file_and_names_what_metaprobe_finds(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    shutil.copytree(APP, tmp_path / "app", ignore=ignored)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), "app"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        entries = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith("entry_points.txt"))
    source = APP / "src"
    files = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    assert names == {name for name in files if "__pycache__" not in name and ".egg-info/" not in name}
    assert [f"[metaprobe.{group}]" in entries for group in ("systems", "tasks", "commands")] == [True] * 3


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_says_what_it_is_for(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert command.short_help
    assert [one.name for one in command.params if isinstance(one, click.Option) and not one.help] == []
