"""An install line of the pages is enough for the commands of its pages, each tried in an environment of its own.

The lines are read off the pages, so that a new one is tried without being named here.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from metaprobe.records.extras import EXTRAS, how_to_install

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINE = re.compile(r"pip install (?:--constraint constraints\.txt )?(?:'\.\[([a-z,]+)\]'|\.(?=[\s`;]|$))")
"""Matches an install of this package out of a checkout, with its extras."""
BY_NAME = re.compile(r"pip install (?:-\S+ )*['\"]?metaprobe\b(?!-)")
"""Matches an install of this package by its name, which no registry holds."""
HEAVY = frozenset({"train"})
"""Extras that bring torch: gigabytes, and minutes. They are tried by the suite's own environment."""
SECONDS = 600
"""Longest install, on a machine that does other things too. Alone, the largest set takes half a minute from the cache."""

RUNS, LINES = "recorded/creak-cot", "lines.jsonl"
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "": (("--version",), ("quickstart",), ("score", "bundled:quality", LINES), ("advise", LINES)),
    "fit": (("import", LINES, "--out", "runs"), ("train", "text", LINES, "--folds", "2", "--out", "text")),
    "api": (("doctor", "http://127.0.0.1:9/v1", "MODEL"), ("collect", "--help")),
    "serve": (("serve", "--help"), ("estimate", "--log", "scores.sqlite")),
    "postgres": (("estimate", "--log", "postgresql+psycopg://nobody@127.0.0.1:9/none"),),
    "hub": (("inspect", "hub:no/body@main"),),
}
"""Extra -> the smallest command of each guide that needs it. Where nothing listens it must fail with a sentence."""


def named_sets() -> dict[tuple[str, ...], list[str]]:
    """Returns each set of extras that a page says to install, and the pages."""
    found: dict[tuple[str, ...], list[str]] = {}
    for page in PAGES:
        for line in LINE.finditer(page.read_text(encoding="utf-8")):
            extras = tuple(sorted(filter(None, (line[1] or "").split(","))))
            found.setdefault(extras, []).append(page.name)
    return found


def test_every_page_says_how_to_install_what_it_needs_and_none_names_a_registry() -> None:
    found = named_sets()
    assert {*EXTRAS} == {extra for extras in found for extra in extras}
    assert () in found
    for page in (
        *PAGES,
        *sorted((ROOT / "src" / "metaprobe").rglob("*.py")),
        *sorted((ROOT / "examples").glob("*.py")),
    ):
        text = page.read_text(encoding="utf-8")
        assert not BY_NAME.findall(text), f"{page} installs by a name that is on no registry"
        assert not re.search(r"metaprobe\[[a-z,]+\]", text), f"{page} names an extra as a registry would"


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_error_says_how_an_extra_is_installed_from_a_checkout_and_with_a_wheel(extra: str) -> None:
    told = how_to_install(extra)
    assert f"pip install '.[{extra}]'" in told
    assert f".whl[{extra}]'" in told
    assert not BY_NAME.findall(told)
    assert how_to_install("clingo>=5.8,<6") == "pip install 'clingo>=5.8,<6'"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, made from a copy: a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("built")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    kept = [name for name in tracked.decode().split("\0") if name and not name.startswith(("recorded/", "research/"))]
    for name in kept:
        to = folder / "checkout" / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            to.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            shutil.copyfile(ROOT / name, to)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), "./checkout"]
    subprocess.run(pip, cwd=folder, check=True, capture_output=True, timeout=SECONDS)
    [made] = folder.glob("*.whl")
    return made


def lines_file(folder: Path) -> None:
    """Writes labelled lines, of which half are right."""
    with (folder / LINES).open("w", encoding="utf-8") as file:
        for i in range(80):
            text, number = ("four", -0.1) if i % 2 else ("five", -0.9)
            choice = {"message": {"content": text}, "logprobs": {"content": [{"token": text, "logprob": number}]}}
            asked = [{"role": "user", "content": f"What is {i}?"}]
            line = {"id": f"q{i}", "model": "m", "messages": asked, "labels": {"correct": i % 2}}
            file.write(json.dumps(line | {"response": {"choices": [choice]}}) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("extras", sorted(one for one in named_sets() if not HEAVY & {*one}), ids=",".join)
def test_a_documented_install_runs_the_commands_of_its_guides(
    extras: tuple[str, ...], wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    places = {"bin": tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")}
    wanted = f"./{wheel.name}[{','.join(extras)}]" if extras else f"./{wheel.name}"
    pip = [
        places["bin"] / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        ROOT / "constraints.txt",
        wanted,
    ]
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        list(map(str, pip)), cwd=wheel.parent, capture_output=True, text=True, timeout=SECONDS, env=clean, check=False
    )
    if done.returncode and re.search(r"Temporary failure|Network is unreachable|NewConnectionError", done.stderr):
        pytest.skip("no network, and the packages are not at hand")
    assert done.returncode == 0, done.stderr[-2000:]
    lines_file(tmp_path)
    for extra in ("", *extras):
        for words in COMMANDS[extra]:
            command = [str(places["bin"] / "metaprobe"), *words]
            ran = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, env=clean, check=False
            )
            said = ran.stdout + ran.stderr
            assert "Traceback" not in said, f"{' '.join(words)}: {said[-1500:]}"
            assert "is needed here and not installed" not in said, f"{' '.join(words)}: {said[-500:]}"
            unreachable = any("127.0.0.1:9" in word or word.startswith("hub:") for word in words)
            assert unreachable or ran.returncode == 0, f"{' '.join(words)}: {said[-1500:]}"
