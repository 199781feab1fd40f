"""The wheel holds every source file, under the names that they are imported by."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from conftest import copy_without_links, mapped_folders

from metaprobe.records.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETTINGS = PROJECT["tool"]["setuptools"]
FOLDERS = mapped_folders()
"""Package -> the folder that holds it."""
NO_ROOMS = set(
    "apps benchmarks build deploy dist docs examples out recorded research scripts src tests".split()
)  # folders at the top that are no part of the package


def expected_files() -> set[str]:
    """Returns the files of the package's folders, as they must be named in the wheel."""
    files = {path: f"metaprobe/{path.name}" for path in FOLDERS["metaprobe"].iterdir() if path.is_file()}
    for name, folder in FOLDERS.items():
        room = name.replace(".", "/")
        if name != "metaprobe":
            files |= {path: f"{room}/{path.relative_to(folder).as_posix()}" for path in folder.rglob("*")}
    return {name for path, name in files.items() if path.is_file() and "__pycache__" not in path.parts}


def test_the_map_names_every_room_and_package_and_each_room_has_its_link() -> None:
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")} - NO_ROOMS
    rooms = {room for room in rooms if any((ROOT / room).rglob("*.py"))}
    assert {name.removeprefix("metaprobe.") for name in FOLDERS} - {"metaprobe"} == rooms
    assert all(folder == ROOT / name.removeprefix("metaprobe.") for name, folder in FOLDERS.items() if "." in name)
    inside = {path.parent for room in rooms for path in (ROOT / room).rglob("*.py")}
    packages = {"metaprobe"} | {".".join(("metaprobe", *path.relative_to(ROOT).parts)) for path in inside}
    assert sorted(SETTINGS["packages"]) == sorted(packages)
    links = {path.name: path.resolve() for path in FOLDERS["metaprobe"].iterdir() if path.is_symlink()}
    assert links in ({room: ROOT.resolve() / room for room in rooms}, {})  # none in an sdist, and in a clone without


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


def test_there_are_eight_extras_and_code_pages_and_notebooks_name_no_other() -> None:
    extras = PROJECT["project"]["optional-dependencies"].keys()
    assert {*EXTRAS} == extras - {"dev", "docs"}
    assert len(EXTRAS) == 8
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


def run(code: str, *, path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a folder, with one path before all others."""
    command = [sys.executable, "-c", f"import sys; sys.path[0] = {str(path)!r}\n{code}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_what_is_installed_from_a_clone_without_symbolic_links_works(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = "import metaprobe, metaprobe.cli; print(metaprobe.__file__); metaprobe.cli.main(['quickstart'])"
    done = run(code, path=tmp_path / "installed", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    first, _, rest = done.stdout.partition("\n")
    assert Path(first).is_relative_to(tmp_path / "installed")
    assert "FLAG     wrong" in rest


def test_a_clone_without_links_that_is_not_installed_says_to_install_it(tmp_path: Path) -> None:
    clone = copy_without_links(tmp_path)
    hidden = "sys.meta_path[:] = [f for f in sys.meta_path if not f.__module__.startswith('__editable__')]"
    paths = "sys.path[1:] = [p for p in sys.path[1:] if not (__import__('os').path.isdir(p + '/metaprobe'))]"
    refused = run(f"{hidden}\n{paths}\nimport metaprobe", path=clone / "src", folder=tmp_path)
    assert refused.returncode == 1
    assert "ImportError: the rooms of metaprobe" in refused.stderr
    assert "pip install ." in refused.stderr
