"""A release is the same bits twice, the whole repository in two archives, and a page of all that is needed."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import dependencies  # noqa: E402
import local_index  # noqa: E402
import release  # noqa: E402

needs_git = pytest.mark.skipif(
    subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True, check=False).returncode != 0,
    reason="what is released is what git tracks, and this is no git checkout",
)


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release.copy_sources(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="session")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> release.Built:
    return release.built_twice(tree, tmp_path_factory.mktemp("built"), epoch=release.last_commit())


@needs_git
@pytest.mark.slow
def test_a_release_is_checked_uploaded_to_an_index_and_runs_from_there(built: release.Built) -> None:
    done = CliRunner().invoke(local_index.main, [str(built.wheel.parent)])
    assert done.exit_code == 0, done.output
    assert "of the wrong answers" in done.output


@needs_git
@pytest.mark.slow
def test_sdist_and_recorded_runs_are_the_repository_and_build_twice_to_the_same_bits(
    built: release.Built, tmp_path: Path
) -> None:
    for archive in (built.sdist, built.recorded):
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path / "unpacked", filter="data")
    assert built.sdist.stat().st_size < 12_000_000
    [repository] = (tmp_path / "unpacked").iterdir()  # both archives unpack into one folder
    names = {path.relative_to(repository).as_posix() for path in repository.rglob("*") if path.is_file()}
    made = {name for name in names if name.startswith("src/metaprobe.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    links = {name for name in release.sources() if (ROOT / name).is_symlink()}  # for mypy and editors alone
    assert names - made == set(release.sources()) - links


def test_repacking_forgets_times_owners_modes_and_order(tmp_path: Path) -> None:
    for name, mtime, mode, order in (("a", 1, 0o600, ("x", "y")), ("b", 2_000_000_000, 0o664, ("y", "x"))):
        with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as tar:
            for file in order:
                (tmp_path / file).write_text(f"content of {file}")
                member = tar.gettarinfo(tmp_path / file, arcname=f"p/{file}")
                member.mtime, member.mode, member.uid, member.uname = mtime, mode, mtime, name
                with (tmp_path / file).open("rb") as content:
                    tar.addfile(member, content)
    first, second = tmp_path / "a.tar.gz", tmp_path / "b.tar.gz"
    assert first.read_bytes() != second.read_bytes()
    for packed in (first, second):
        release.normalise(packed, epoch=1_700_000_000)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        assert {name: file.read() for name, file in files.items() if file} == {
            "p/x": b"content of x",
            "p/y": b"content of y",
        }


def test_repacking_keeps_what_is_executable(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o700)
    with tarfile.open(tmp_path / "s.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "run", arcname="p/run")
    release.normalise(tmp_path / "s.tar.gz", epoch=0)
    with tarfile.open(tmp_path / "s.tar.gz") as tar:
        assert tar.getmember("p/run").mode == 0o755


def test_every_dependency_has_a_reason_and_a_line_on_the_page() -> None:
    asked = {name for requirements in dependencies.groups().values() for name in dependencies.direct(requirements)}
    assert asked - set(dependencies.FOR) == set()
    page = dependencies.page()
    assert [name for name in sorted(asked) if f"\n| {name} | " not in page] == []


def test_neither_the_base_nor_the_server_bring_a_licence_that_surprises() -> None:
    """Only MPL-2.0, and that where it is known: tqdm, and certifi's list of certificates."""
    for group, known in (("base", {"tqdm"}), ("serve", {"certifi"})):
        brought = dependencies.needed(dependencies.groups()[group])
        terms = {name: dependencies.licence(found) for name, found in brought.items() if found}
        assert {name for name, said in terms.items() if dependencies.asks_for_more(said)} <= known


@pytest.mark.parametrize(
    ("terms", "asking"),
    [
        ("MIT", ""),
        ("BSD-3-Clause AND 0BSD AND MIT", ""),
        ("MPL-2.0 AND MIT", "MPL-2.0"),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", "MPL-2.0"),
        ("GPL-3.0-only OR MIT", ""),
        ("Apache-2.0 WITH LLVM-exception", ""),
        ("LGPL-2.1-or-later", "LGPL-2.1-or-later"),
        ("not stated", "not stated"),
    ],
)
def test_what_a_licence_asks_beyond_being_named(terms: str, asking: str) -> None:
    assert dependencies.asks_for_more(terms) == asking


def test_files_that_are_no_release_of_ours_are_not_deleted_for_one(tmp_path: Path) -> None:
    for name in ("metaprobe-0.2.0.tar.gz", "measured.csv.gz"):
        (tmp_path / name).write_bytes(b"x")
    result = CliRunner().invoke(release.main, ["--check", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "not emptied: measured.csv.gz" in result.output
    assert len(list(tmp_path.iterdir())) == 2
