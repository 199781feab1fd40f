"""Installs the wheel into fresh environments, with the newest and the lowest declared versions, and tries it there.

    python scripts/matrix.py WHEEL [--python 3.12] [--resolution lowest-direct] [--checkpoints FOLDER]
    python scripts/matrix.py WHEEL --extra train --extra report --test tests/test_training.py

Without extras, scripts/first_steps.py runs in each environment; with extras, the given test files run. Interpreters are
those that uv finds on this machine; a missing one is reported. uv's own settings apply: for a CPU build of torch,
UV_FIND_LINKS names a folder that has it, and UV_CONSTRAINT a file that requires it (torch==2.13.0+cpu).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
RESOLUTIONS = ("highest", "lowest-direct")
"""lowest-direct: the packages of pyproject.toml in their lowest versions, and their own requirements in the newest
ones.
"""
UV = (sys.executable, "-m", "uv")
TEST_TOOLS = "pytest>=8.4\nhypothesis>=6.130\nbuild>=1.2\nsetuptools>=77\n"


class Failed(Exception):
    """A step failed; its output is the message."""


def environment(folder: Path, wheel: Path, python: str, resolution: str, extras: tuple[str, ...]) -> Path:
    """Returns the interpreter of a new environment that holds the wheel. Raises `Failed`.

    Args:
        folder: folder of the environment.
        wheel: the wheel.
        python: version of Python.
        resolution: one of `RESOLUTIONS`.
        extras: the extras.
    """
    _run(*UV, "venv", "--quiet", "--no-python-downloads", "--python", python, str(folder))
    interpreter = folder / "bin" / "python"
    (folder / "tools.in").write_text(TEST_TOOLS if extras else "", encoding="utf-8")
    sources = [str(ROOT / "pyproject.toml"), str(folder / "tools.in"), *(f"--extra={extra}" for extra in extras)]
    constraints = [] if not extras else [f"--constraint={ROOT / 'constraints.txt'}"]
    pins, here = folder / "pins.txt", f"--python={interpreter}"
    # Compiled first: to an installer, what a wheel needs is never "direct", and would come in its newest version.
    how = (here, f"--resolution={resolution}", "--only-binary=:all:", f"--output-file={pins}", "--quiet")
    _run(*UV, "pip", "compile", *how, *constraints, *sources)
    _run(*UV, "pip", "install", "--quiet", here, "--no-build", f"--requirement={pins}")
    _run(*UV, "pip", "install", "--quiet", here, "--no-deps", str(wheel))
    _run(*UV, "pip", "check", here)
    return interpreter


def first_steps(interpreter: Path, checkpoints: str) -> str:
    """Returns one line: how long importing takes, and what was installed. Raises `Failed`."""
    script, responses = ROOT / "scripts" / "first_steps.py", ROOT / "examples" / "responses.jsonl"
    with tempfile.TemporaryDirectory() as elsewhere:  # so that nothing is imported from the checkout
        command = [str(interpreter), "-I", "-W", "error::DeprecationWarning", str(script), checkpoints, str(responses)]
        found = json.loads(_run(*command, cwd=Path(elsewhere)).splitlines()[-1])
    versions = ", ".join(f"{name} {version}" for name, version in sorted(found["versions"].items()))
    return f"import {found['import_ms']} ms; used {', '.join(found['said'])}; {versions}"


def tests(interpreter: Path, files: tuple[str, ...]) -> str:
    """Returns the last line of pytest's output. Raises `Failed`.

    Warnings are no errors here: an old version, together with newer ones, warns of faults that its next version has
    corrected.
    """
    return _run(str(interpreter.with_name("pytest")), "-q", "-W", "default", *files, cwd=ROOT).splitlines()[-1]


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed((done.stdout + done.stderr).strip())
    return done.stdout.strip()


@click.command()
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path))
@click.option("--python", "pythons", multiple=True, default=PYTHONS, show_default=True)
@click.option("--resolution", "resolutions", multiple=True, type=click.Choice(RESOLUTIONS), default=RESOLUTIONS)
@click.option("--checkpoints", default="-", help="Folder of checkpoints to use; the bundled ones by default.")
@click.option("--extra", "extras", multiple=True)
@click.option("--test", "files", multiple=True, help="Test file to run, where extras are given; repeatable.")
def main(
    wheel: Path,
    pythons: tuple[str, ...],
    resolutions: tuple[str, ...],
    checkpoints: str,
    extras: tuple[str, ...],
    files: tuple[str, ...],
) -> None:
    """One line an environment; exit code 1 where one of them failed."""
    if bool(extras) != bool(files):
        raise click.UsageError("--extra and --test go together")
    if checkpoints != "-":
        checkpoints = str(Path(checkpoints).resolve())
    failed = False
    for python in pythons:
        if subprocess.run([*UV, "python", "find", "--no-python-downloads", python], capture_output=True).returncode:
            click.echo(f"{python}: skipped, for no such interpreter is on this machine")
            continue
        for resolution in resolutions:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    interpreter = environment(Path(folder) / "env", wheel, python, resolution, extras)
                    said = tests(interpreter, files) if extras else first_steps(interpreter, checkpoints)
                except Failed as error:
                    failed, said = True, f"FAILED\n{error}"
            click.echo(f"{python} {resolution}: {said}")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
