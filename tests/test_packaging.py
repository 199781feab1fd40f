"""The wheel holds every source file, under the names that they are imported by."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]


def expected_files() -> set[str]:
    """What git tracks or would track in the rooms, as it must be named in the wheel."""
    found = set()
    for package, folder in ROOMS.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                found.add(f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder)}")
    return found


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, without isolation, so without network, and without leaving a build folder behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for folder in ROOMS.values():
        shutil.copytree(
            ROOT / folder, source / folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("metaprobe-*.whl"))


def test_the_wheel_holds_every_source_file_and_no_room_at_the_top_level(wheel: Path) -> None:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    assert expected_files() - names == set()
    assert {name.split("/")[0] for name in names} == {"metaprobe"}


def test_recorded_runs_and_tests_are_not_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.startswith(("recorded/", "tests/")) or name.endswith(".parquet")]


def test_the_base_needs_numpy_onnxruntime_and_two_small_things() -> None:
    names = {requirement.split(">")[0] for requirement in PROJECT["project"]["dependencies"]}
    assert names == {"numpy", "onnxruntime", "click", "tqdm"}


def test_recorded_files_are_small() -> None:
    assert sum(path.stat().st_size for path in (ROOT / "recorded").rglob("*") if path.is_file()) < 20_000_000
