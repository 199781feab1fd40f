"""Builds sdist, wheel and recorded runs so that the same commit gives everyone the same bits.

    python scripts/release.py [--out out/dist]    # of the last commit; refuses uncommitted changes
    python scripts/release.py --check             # of the tree as it is, twice in different circumstances, and compared

The same bits need the same setuptools, which the wheel names, and the same zlib, which compresses them; the contents
are the same without. The recorded runs are a file of their own, for only tests and pages read them: unpacked beside
the sdist, it completes the repository. The tools come from the environment: no isolated one is made, so nothing is
downloaded.
"""

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent
ZIP_BEGINS = 315532800  # 1980-01-01: no file in a wheel can be older


@dataclass(frozen=True, slots=True)
class Built:
    sdist: Path
    wheel: Path
    """Made from the sdist, not from the tree."""
    recorded: Path
    """The recorded runs, under the folder of the sdist."""

    def files(self) -> tuple[Path, ...]:
        """Returns what is released."""
        return self.sdist, self.wheel, self.recorded

    def digests(self) -> dict[str, str]:
        """Returns the SHA-256 of each file, by its name."""
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.files()}


def sources() -> list[str]:
    """Returns the path of every existing file and link that git tracks, or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({name for name in names if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink())})


def copy_sources(folder: Path) -> Path:
    """Returns a copy of the folder with only these files: stale builds and caches would otherwise get into an sdist."""
    for name in sources():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def build(source: Path, out: Path, *, epoch: int) -> Built:
    """Returns the sdist of a clean copy, the wheel of that sdist, and the recorded runs of the copy.

    Args:
        source: the copy.
        out: folder for the files.
        epoch: the time of every file, in seconds.
    """
    sdist = _run("--sdist", source, out, epoch)
    normalise(sdist, epoch)
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(sdist) as tar:
            tar.extractall(unpacked, filter="data")
        wheel = _run("--wheel", next(Path(unpacked).iterdir()), out, epoch)
    return Built(sdist, wheel, pack_recorded(source, sdist, epoch))


def pack_recorded(source: Path, sdist: Path, epoch: int) -> Path:
    """Returns the archive of the recorded runs, beside the sdist: unpacked where the sdist was, it completes it.

    Args:
        source: the copy that holds `recorded/`.
        sdist: the sdist, whose name and folder the archive takes.
        epoch: the time of every file, in seconds.
    """
    folder = sdist.name.removesuffix(".tar.gz")
    recorded = sdist.with_name(f"{folder}-recorded.tar.gz")
    with tarfile.open(recorded, "w:gz") as tar:
        tar.add(source / "recorded", arcname=f"{folder}/recorded")
    normalise(recorded, epoch)
    return recorded


def normalise(archive: Path, epoch: int) -> None:
    """Repacks a `.tar.gz` without what differs from one machine to another: order, times, owners, modes.

    setuptools reads SOURCE_DATE_EPOCH for wheels only.
    """
    with tarfile.open(archive) as tar:
        contents = [(member, tar.extractfile(member)) for member in sorted(tar, key=lambda member: member.name)]
        with (
            archive.with_suffix(".tmp").open("wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=epoch) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made,
        ):
            for member, content in contents:
                plain = tarfile.TarInfo(member.name)
                plain.type, plain.size, plain.mtime = member.type, member.size, epoch
                plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                made.addfile(plain, content)
    archive.with_suffix(".tmp").replace(archive)


def contents(wheel: Path) -> dict[str, bytes]:
    """Maps each file in the wheel to its bytes."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Returns the names whose values differ between the two."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _run(kind: str, source: Path, out: Path, epoch: int) -> Path:
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", str(out), str(source)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(max(epoch, ZIP_BEGINS))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, umask=0o022)
    if done.returncode:
        raise click.ClickException(f"build {kind} failed:\n{done.stdout}{done.stderr}")
    return next(out.glob("*.tar.gz" if kind == "--sdist" else "*.whl"))


def last_commit() -> int:
    """Returns the time of the last commit, in seconds since 1970."""
    return int(subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True).stdout)


def built_twice(tree: Path, work: Path, *, epoch: int) -> Built:
    """Returns the three files, built twice; the second time elsewhere, with other times, by someone whose files are
    private.

    Raises if they differ, and if the sdist gives another wheel than the tree.

    Args:
        tree: the tree.
        work: folder for the builds.
        epoch: the time of every file, in seconds.
    """
    first = build(shutil.copytree(tree, work / "first", symlinks=True), work / "first-out", epoch=epoch)
    other = shutil.copytree(tree, work / "another place", symlinks=True)
    for path in other.rglob("*"):
        path.chmod(0o700 if path.is_dir() or path.stat().st_mode & 0o100 else 0o600)
        os.utime(path, (epoch - 10_000_000, epoch - 10_000_000))
    second = build(other, work / "second-out", epoch=epoch)
    if names := differing(first.digests(), second.digests()):
        raise click.ClickException(f"not the same bits twice: {', '.join(names)}")
    direct = _run("--wheel", shutil.copytree(tree, work / "direct", symlinks=True), work / "direct-out", epoch)
    if names := differing(contents(direct), contents(first.wheel)):
        raise click.ClickException(f"the sdist gives another wheel than the tree; they differ in {', '.join(names)}")
    return first


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=ROOT / "out" / "dist")
@click.option("--check", "checked", is_flag=True, help="Also with what is not committed; build twice, and compare.")
def main(out: Path, checked: bool) -> None:
    """Sdist, wheel and recorded runs, with their SHA-256."""
    if (
        not checked
        and subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True).stdout
    ):
        raise click.ClickException("there are changes that are not committed: a release is built from a commit")
    out.mkdir(parents=True, exist_ok=True)
    ours = {path for ending in ("whl", "tar.gz") for path in out.glob(f"metaprobe-*.{ending}")}
    if foreign := sorted(path.name for path in out.iterdir() if path not in ours):
        raise click.ClickException(f"{out} holds more than a release, and is not emptied: {', '.join(foreign[:3])}")
    for path in out.iterdir():
        path.unlink()
    with tempfile.TemporaryDirectory() as work:
        tree = copy_sources(Path(work) / "tree")
        if checked:
            built = built_twice(tree, Path(work), epoch=last_commit())
            built = Built(*(Path(shutil.copy(path, out)) for path in built.files()))
        else:
            built = build(tree, out, epoch=last_commit())
        for name, digest in built.digests().items():
            click.echo(f"{digest}  {name}")


if __name__ == "__main__":
    main()
