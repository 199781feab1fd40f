"""Every block and page of the docs that a script writes is what the script makes of the kept figures now.

A block stands between `<!-- NAME: written by SCRIPT -->` and `<!-- /NAME -->`.
One that is new needs its line in `page_writers.py`, or a reason in `NOT_COMPARED`. The commands write into copies of
the pages.
"""

import importlib
import re
from pathlib import Path

import pytest
from page_writers import ROOT, WRITERS, Change, Writer

MARKED = re.compile(
    r"(<!-- (?P<name>[\w-]+): written by (?P<script>[\w/]+\.py)\b[^\n]*-->\n)"
    r"(?P<lines>.*?)(<!-- /(?P=name) -->)",
    re.S,
)
NOT_COMPARED = {
    "docs/compare.md#figures": "shows what matplotlib draws, other in each of its versions; test_figures.py holds the "
    "page against the files",
}
"""Block -> why no test can make it again."""
PAGES = {"PAGE", "LADDER_PAGE", "ANSWERS", "README", "GUIDE", "REFERENCE", "CLAIMS", "FIGURE", "IMPORTS", "SPEED_PAGE"}
"""Names of a script for the pages that it writes."""


def written(writer: Writer, folder: Path, *changes: Change) -> dict[str, str]:
    """Runs the writer's command on copies of its pages without their blocks, and returns its blocks."""
    script = importlib.import_module(writer.script.removeprefix("scripts/").removesuffix(".py").replace("/", "."))
    with pytest.MonkeyPatch.context() as patch:
        for constant, path in list(vars(script).items()):
            if constant not in PAGES or not isinstance(path, Path):
                continue
            for page in (path, path.parent / "tables" / path.name):
                copy = folder / page.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                if page.exists():
                    copy.write_text(MARKED.sub(r"\1\5", page.read_text(encoding="utf-8")), encoding="utf-8")
            patch.setattr(script, constant, folder / path.relative_to(ROOT))
        for change in changes:
            change(patch, script, folder)
        command = getattr(script, writer.command)
        getattr(command, "callback", command)(*writer.arguments)
    return {block: text_of(folder, block) for block in writer.blocks}


def text_of(folder: Path, block: str) -> str:
    """Returns the text of the block in the file."""
    page, _, name = block.partition("#")
    text = (folder / page).read_text(encoding="utf-8")
    return next(found["lines"] for found in MARKED.finditer(text) if found["name"] == name)


@pytest.fixture(
    scope="module",
    params=WRITERS,
    ids=lambda writer: next(iter(writer.blocks)),
)
def writer(request: pytest.FixtureRequest) -> Writer:
    found: Writer = request.param
    if found.script.startswith("research/writing/"):
        pytest.importorskip("metaprobe_writing_assistant", reason="apps/writing_assistant is not installed")
    return found


@pytest.fixture(scope="module")
def blocks(writer: Writer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return written(writer, tmp_path_factory.mktemp("kept"))


def test_blocks_are_what_their_script_makes_of_the_figures(blocks: dict[str, str]) -> None:
    assert all(blocks.values())
    assert blocks == {block: text_of(ROOT, block) for block in blocks}


def test_other_figures_make_other_blocks(writer: Writer, blocks: dict[str, str], tmp_path: Path) -> None:
    other = written(writer, tmp_path, *dict.fromkeys(writer.blocks.values()))
    assert [block for block in blocks if other[block] in ("", blocks[block])] == []


def test_every_block_of_every_page_has_a_writer_here() -> None:
    found: dict[str, str] = {}
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "research").rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        blocks = [(mark["name"], mark["script"]) for mark in MARKED.finditer(text)]
        assert sorted(name for name, _ in blocks) == sorted(re.findall(r"<!-- /([\w-]+) -->", text)), path.name
        found |= {f"{path.relative_to(ROOT)}#{name}": script for name, script in blocks}
    counted = {block: script for block, script in found.items() if block not in NOT_COMPARED}
    assert counted == {block: writer.script for writer in WRITERS for block in writer.blocks}
