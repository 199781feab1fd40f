"""Uploads a release to a package index on this machine, and installs and runs it from there, as from a real one.

    python scripts/local_index.py out/dist    # a folder that scripts/release.py has filled

twine checks and uploads sdist and wheel, pypiserver keeps them. In a fresh environment pip then takes metaprobe from
that index alone, and what it needs from the usual one. Nothing is uploaded to any other index.
"""

import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import Path as ZipPath

import click

TOOLS = ("pypiserver>=2.3", "twine>=6.1")
WAIT_S = 30.0
"""Seconds within which the index answers."""


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(folder: Path) -> None:
    """Uploads the sdist and the wheel in FOLDER to an index on this machine, and runs what is installed from it."""
    (wheel,) = folder.glob("metaprobe-*.whl")
    (sdist,) = (path for path in folder.glob("metaprobe-*.tar.gz") if "recorded" not in path.name)
    with tempfile.TemporaryDirectory() as work:
        tools = environment(Path(work) / "tools", *TOOLS)
        _run(tools, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
        kept, port = Path(work) / "index", free_port()
        kept.mkdir()
        serve = [str(tools), "-m", "pypiserver", "run", "-p", str(port), "-i", "127.0.0.1", "-P", ".", "-a", "."]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen([*serve, "--disable-fallback", str(kept)], **quiet) as server:
            try:
                url = f"http://127.0.0.1:{port}"
                wait_for(url)
                login = ["--username", "nobody", "--password", "nothing"]
                _run(tools, "-m", "twine", "upload", "--repository-url", url, *login, str(wheel), str(sdist))
                click.echo(installed_from(f"{url}/simple/", wheel, Path(work) / "fresh"))
            finally:
                server.terminate()
        for sent in (wheel, sdist):
            if digest(kept / sent.name) != digest(sent):
                raise click.ClickException(f"the index keeps other bits of {sent.name} than were sent")


def installed_from(index: str, wheel: Path, folder: Path) -> str:
    """Returns what the first run of the package prints at its end, once it was installed from this index."""
    metadata = PathDistribution(ZipPath(str(wheel), f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/"))
    needed = [line for line in metadata.requires or () if "extra ==" not in line]
    python = environment(folder, *needed)
    _run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--index-url", index, f"metaprobe=={metadata.version}")
    _run(python, "-m", "pip", "check")
    shown = _run(python, "-m", "metaprobe", "quickstart", cwd=folder)
    return next(line for line in shown.splitlines() if line.startswith("The flag catches"))


def environment(folder: Path, *requirements: str) -> Path:
    """Returns the interpreter of a new environment with these requirements."""
    _run(Path(sys.executable), "-m", "venv", str(folder))
    python = folder / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", *requirements)
    return python


def free_port() -> int:
    """Returns a port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(url: str) -> None:
    """Returns once the server answers. Raises `click.ClickException` if it does not."""
    opener, end = urllib.request.build_opener(urllib.request.ProxyHandler({})), time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            with opener.open(url, timeout=1):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise click.ClickException(f"no index answers at {url} after {WAIT_S:g} s")


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(python: Path, *arguments: str, cwd: Path | None = None) -> str:
    here = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PYTHONPATH": ""}
    done = subprocess.run(
        [str(python), *arguments], capture_output=True, text=True, check=False, env=os.environ | here, cwd=cwd
    )
    if done.returncode:
        raise click.ClickException(f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
