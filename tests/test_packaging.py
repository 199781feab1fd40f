"""The wheel holds every source file, under the names that they are imported by."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from metaprobe.records.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE = ROOT / "src" / "metaprobe"


def expected_files() -> set[str]:
    """Returns what lies in the package and its rooms, as it must be named in the wheel."""
    files = [path for path in PACKAGE.iterdir() if path.is_file()]
    for room in PACKAGE.iterdir():  # links, which rglob does not follow on its way down
        files += [path for path in room.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(PACKAGE.parent)) for path in files}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, without isolation, so without network, and without leaving a build folder behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(PACKAGE.parent, source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
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


NAMED = re.compile(r"metaprobe\[([a-z,]+)\]|'\.\[([a-z,]+)\]'|extras? `(\w+)`(?: and `(\w+)`)?")


def test_there_are_seven_extras_and_code_pages_and_notebooks_name_no_other() -> None:
    extras = PROJECT["project"]["optional-dependencies"].keys()
    assert {*EXTRAS} == extras - {"dev", "docs"}
    assert len(EXTRAS) == 7
    others = {"out", "tests", "research", "recorded", "build", "CHANGELOG.md"}
    places = [path for path in ROOT.iterdir() if path.name not in others and not path.name.startswith(".")]
    files = [inside for path in places for inside in (path.rglob("*") if path.is_dir() else [path])]
    strange = {}
    for path in files:
        if path.suffix not in (".py", ".md", ".ipynb", ".toml"):
            continue
        named = {one for found in NAMED.findall(path.read_text(encoding="utf-8")) for one in ",".join(found).split(",")}
        if odd := named - extras - {""}:
            strange[str(path.relative_to(ROOT))] = odd
    assert strange == {}


def test_recorded_files_are_small() -> None:
    # 16 solutions each of 300 problems by two models are eight of these, eight whole lists and their samples by two
    # models eighteen, in every clone and in no wheel.
    assert sum(path.stat().st_size for path in (ROOT / "recorded").rglob("*") if path.is_file()) < 45_000_000


def test_a_folder_of_the_same_name_where_python_starts_hides_nothing(tmp_path: Path) -> None:
    """A clone called `metaprobe`, seen from the folder above it, is a namespace package to Python; ours comes first."""
    (tmp_path / "metaprobe" / "probes").mkdir(parents=True)
    script = "import metaprobe, metaprobe.probes; print(metaprobe.__file__)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("__init__.py")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the sdist is no repository to clone")
def test_a_clone_without_symbolic_links_says_what_to_do_and_a_wheel_works_in_it(wheel: Path, tmp_path: Path) -> None:
    clone, plain = tmp_path / "clone", "core.symlinks=false"
    subprocess.run(["git", "clone", "-q", "-c", plain, str(ROOT), str(clone)], check=True)
    for file in ("early.py", "__init__.py"):  # as they are here, also before they are committed
        shutil.copy(PACKAGE / file, clone / "src" / "metaprobe" / file)
    assert (clone / "src" / "metaprobe" / "probes").read_text(encoding="utf-8") == "../../probes"

    def imported(path: Path) -> subprocess.CompletedProcess[str]:
        code = f"import sys; sys.path[0] = {str(path)!r}; import metaprobe; print(metaprobe.load('bundled:quality'))"
        return subprocess.run([sys.executable, "-c", code], cwd=clone, capture_output=True, text=True, check=False)

    refused = imported(clone / "src")
    assert refused.returncode == 1
    commands = [line.split() for line in refused.stderr.splitlines() if line.startswith("    git ")]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    assert "QualityPredictor" in imported(tmp_path / "installed").stdout
    assert len(commands) == 2
    for command in commands:
        subprocess.run(command, cwd=clone, check=True, capture_output=True)
    assert "QualityPredictor" in imported(clone / "src").stdout
