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
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "apps").glob("*/README.md")),
    *sorted((ROOT / "examples").rglob("*.ipynb")),
]
LINE = re.compile(r"pip install (?:--constraint constraints\.txt )?(?:'\.\[([a-z,]+)\]'|\.(?=[\s`;]|$))")
"""Matches an install of this package out of a checkout, with its extras."""
WITH_APP = re.compile(r"pip install \. \./apps/(\w+)")
"""Matches an install of this package with an app beside it."""
BY_NAME = re.compile(r"pip install (?:-\S+ )*['\"]?metaprobe\b(?!-)")
"""Matches an install of this package by its name, which no registry holds."""
HEAVY = frozenset({"train"})
"""Extras that bring torch: gigabytes. The suite's own environment lends torch to theirs; all else is installed."""
LENT = ("torch", "torchgen", "functorch", "torch-*.dist-info")
SECONDS = 600
"""Longest install, on a machine that does other things too. The largest set takes half a minute from a warm cache."""

LINES, ITEMS, MODEL = "lines.jsonl", "items.jsonl", "model"
"""Files that the commands read: labelled lines, questions, and a model of random weights."""
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "": (("--version",), ("quickstart",), ("score", "bundled:quality", LINES), ("advise", LINES)),
    "fit": (("import", LINES, "--out", "runs"), ("train", "text", LINES, "--folds", "2", "--out", "text")),
    "report": (("compare", LINES, "--folds", "2", "--out", "report"),),
    "api": (("doctor", "http://127.0.0.1:9/v1", "MODEL"), ("collect", "--help")),
    "serve": (("serve", "--help"), ("estimate", "--log", "scores.sqlite")),
    "postgres": (("estimate", "--log", "postgresql+psycopg://nobody@127.0.0.1:9/none"),),
    "math": (("advise", LINES), ("score", "bundled:quality", LINES)),
    "hub": (("inspect", "hub:no/body@main"),),
    "train": (
        (
            "collect",
            "self-report",
            "--variant",
            "direct",
            "--task",
            ITEMS,
            "--llm",
            MODEL,
            "--tokens",
            "answer=3",
            "--out",
            "r",
        ),
        ("inspect", "r"),
    ),
    "writing_assistant": (("assist", "--help"), ("study", "--help")),
}
"""Extra or app -> the smallest command of each guide that needs it."""
NOT_THERE = ("http://127.0.0.1:9", "postgresql+psycopg://", "hub:", "scores.sqlite")
"""Beginnings of arguments that name what is not there: the command must then fail with an error in words."""


def named_sets() -> dict[tuple[str, ...], list[str]]:
    """Returns each set of extras that a page says to install, and the pages."""
    found: dict[tuple[str, ...], list[str]] = {}
    for page in PAGES:
        for line in LINE.finditer(page.read_text(encoding="utf-8")):
            extras = tuple(sorted(filter(None, (line[1] or "").split(","))))
            found.setdefault(extras, []).append(page.name)
    return found


def named_apps() -> list[str]:
    """Returns the apps that a page says to install."""
    return sorted({app for page in PAGES for app in WITH_APP.findall(page.read_text(encoding="utf-8"))})


def test_every_page_says_how_to_install_what_it_needs_and_none_names_a_registry() -> None:
    found = named_sets()
    assert {*EXTRAS} == {extra for extras in found for extra in extras}
    assert () in found
    assert named_apps() == sorted(app.name for app in (ROOT / "apps").iterdir() if (app / "pyproject.toml").exists())
    assert {*EXTRAS, *named_apps(), ""} == COMMANDS.keys(), "each has a command that is run in its own environment"
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


def lines_file(folder: Path) -> None:
    """Writes labelled lines, of which half are right."""
    with (folder / LINES).open("w", encoding="utf-8") as file:
        for i in range(80):
            text, number = ("four", -0.1) if i % 2 else ("five", -0.9)
            choice = {"message": {"content": text}, "logprobs": {"content": [{"token": text, "logprob": number}]}}
            asked = [{"role": "user", "content": f"What is {i}?"}]
            line = {"id": f"q{i}", "model": "m", "messages": asked, "labels": {"correct": i % 2}}
            file.write(json.dumps(line | {"response": {"choices": [choice]}}) + "\n")


def _names_what_is_not_there(words: tuple[str, ...], said: str) -> bool:
    """Whether a command that asks for what is not there ended with an error in words."""
    return any(word.startswith(NOT_THERE) for word in words) and "Error: " in said


DECLARED = """
import sys
from importlib.metadata import packages_distributions, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

def closure(name, extras, seen):
    for text in requires(name) or ():
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            key = canonicalize_name(one.name), frozenset(one.extras)
            if key not in seen:
                seen.add(key)
                closure(one.name, one.extras, seen)
    return seen

extras = tuple(filter(None, sys.argv[1].split(",")))
allowed = {name for name, _ in closure("metaprobe", extras, set())} | {"metaprobe"}
modules = packages_distributions()

class Declared:
    def find_spec(self, name, path=None, target=None):
        owners = {canonicalize_name(one) for one in modules.get(name.partition(".")[0], ())}
        if owners and not owners & allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in ("packaging", "packaging.requirements"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Declared())
from metaprobe.cli import main
main(sys.argv[2:])
"""
"""Runs a command with those packages alone that metaprobe and its extras declare, and what these need in turn."""


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        ("", ("score", "bundled:quality", LINES)),
        ("", ("advise", LINES)),
        ("api", ("doctor", "http://127.0.0.1:9/v1", "MODEL")),
        pytest.param("fit", ("train", "text", LINES, "--folds", "2", "--out", "text"), marks=pytest.mark.slow),
        pytest.param("report", ("compare", LINES, "--folds", "2", "--out", "report"), marks=pytest.mark.slow),
        pytest.param("serve", ("estimate", "--log", "scores.sqlite"), marks=pytest.mark.slow),
        pytest.param("train", ("collect", "--help"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_what_an_extra_declares_is_all_that_its_commands_import(
    extras: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    lines_file(tmp_path)
    command = [sys.executable, "-c", DECLARED, extras, *words]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    said = ran.stdout + ran.stderr
    assert "Traceback" not in said, said[-1500:]
    assert "not installed" not in said, said[-500:]
    assert ran.returncode == 0 or _names_what_is_not_there(words, said), said[-500:]


def random_model(folder: Path) -> None:
    """Writes a tiny model of random weights, which answers in letters."""
    transformers = pytest.importorskip("transformers")
    from random_model import WORDS, word_tokenizer

    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)


def lend_torch(environment: Path) -> None:
    """Links the torch of the suite's environment into another one, which then has no gigabytes to fetch."""
    torch = pytest.importorskip("torch")
    there = Path(torch.__file__).parent.parent
    [packages] = (environment / "lib").glob("python*/site-packages")
    for pattern in LENT:
        for found in there.glob(pattern):
            (packages / found.name).symlink_to(found)


def documented_installs() -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Returns each documented install as (extras, apps)."""
    return [*((extras, ()) for extras in sorted(named_sets())), *(((), (app,)) for app in named_apps())]


@pytest.mark.slow
@pytest.mark.parametrize(("extras", "apps"), documented_installs(), ids=lambda names: ",".join(names) or "-")
def test_a_documented_install_runs_the_commands_of_its_guides(
    extras: tuple[str, ...], apps: tuple[str, ...], wheel: Path, tmp_path: Path
) -> None:
    # A fresh environment, with what the line installs.
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True, symlinks=True)
    programs = environment / ("Scripts" if os.name == "nt" else "bin")
    if apps or HEAVY & {*extras}:
        lend_torch(environment)
        random_model(tmp_path / MODEL)
    wanted = [f"{wheel}[{','.join(extras)}]" if extras else str(wheel)]
    for app in apps:
        shutil.copytree(ROOT / "apps" / app, tmp_path / app, ignore=shutil.ignore_patterns("build", "*.egg-info"))
        wanted.append(str(tmp_path / app))
    pip = [programs / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *wanted]
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        list(map(str, pip)), cwd=wheel.parent, capture_output=True, text=True, timeout=SECONDS, env=clean, check=False
    )
    if done.returncode and re.search(r"Temporary failure|Network is unreachable|NewConnectionError", done.stderr):
        pytest.skip("no network, and the packages are not at hand")
    assert done.returncode == 0, done.stderr[-2000:]
    # Each command of its guides, once.
    lines_file(tmp_path)
    items = [
        {"id": f"q{i}", "question": f"What is {i} + 1?", "gold": [str(i + 1)], "check": "number"} for i in range(4)
    ]
    (tmp_path / ITEMS).write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    for part in ("", *extras, *apps):
        for words in COMMANDS[part]:
            command = [str(programs / "metaprobe"), *words]
            ran = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, env=clean, check=False
            )
            said = ran.stdout + ran.stderr
            assert "Traceback" not in said, f"{' '.join(words)}: {said[-1500:]}"
            assert "is needed here and not installed" not in said, f"{' '.join(words)}: {said[-500:]}"
            assert ran.returncode == 0 or _names_what_is_not_there(words, said), f"{' '.join(words)}: {said[-1500:]}"
