"""Every block and page of the docs that a script writes is what the script makes of the kept figures now.

A block stands between `<!-- NAME: written by SCRIPT -->` and `<!-- /NAME -->`. Blocks of docs/research/tables/ are
kept empty; scripts/site.py fills them in a copy of the docs.
One that is new needs its line in `page_writers.py`, or a reason in `NOT_COMPARED`. The commands write into copies of
the pages.
"""

import importlib
import re
from pathlib import Path

import pytest
from page_writers import ROOT, WRITERS, Change

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
WRITER_OF = {block: writer for writer in WRITERS for block in writer.blocks}
PAGES = {"PAGE", "ANSWERS", "README", "GUIDE", "REFERENCE", "CLAIMS", "FIGURE", "IMPORTS", "PRODUCTION"}
"""Names of a script for the pages that it writes."""
READ_ALL = {f"docs/research/tables/systems.md#{name}" for name in ("essay-debate", "metacrit")}
"""Blocks for which whole stores are read and judged again."""
BLOCKS = [pytest.param(block, marks=[pytest.mark.slow] * (block in READ_ALL)) for block in WRITER_OF]


def written(block: str, patch: pytest.MonkeyPatch, folder: Path, change: Change | None = None) -> str:
    """The block, as its command writes it into a copy of the page that has lost it; with other figures if so wanted."""
    writer, whole = WRITER_OF[block], "#" not in block
    if writer.script.startswith("research/writing/"):
        pytest.importorskip("metaprobe_writing_assistant", reason="apps/writing_assistant is not installed")
    script = importlib.import_module(writer.script.removeprefix("scripts/").removesuffix(".py").replace("/", "."))
    for constant, path in list(vars(script).items()):
        if constant not in PAGES or not isinstance(path, Path):
            continue
        for page in (path, path.parent / "tables" / path.name):
            copy = folder / page.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if page.exists():
                empty = "" if whole else MARKED.sub(r"\1\5", page.read_text(encoding="utf-8"))
                copy.write_text(empty, encoding="utf-8")
        patch.setattr(script, constant, folder / path.relative_to(ROOT))
    if change is not None:
        change(patch, script, folder)
    command = getattr(script, writer.command)
    getattr(command, "callback", command)(*writer.arguments)
    return text_of(folder, block)


def text_of(folder: Path, block: str) -> str:
    """Returns the text of the block in the file."""
    page, _, name = block.partition("#")
    text = (folder / page).read_text(encoding="utf-8")
    return next(found["lines"] for found in MARKED.finditer(text) if found["name"] == name) if name else text


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_what_its_script_makes_of_the_figures(
    block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = written(block, monkeypatch, tmp_path)
    assert lines == text_of(ROOT, block) if "/tables/" not in block else lines and not text_of(ROOT, block)


@pytest.mark.parametrize("block", BLOCKS)
def test_another_figure_makes_another_block(block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        kept = written(block, patch, tmp_path / "kept") if "/tables/" in block else text_of(ROOT, block)
    other = written(block, monkeypatch, tmp_path / "other", WRITER_OF[block].blocks[block])
    assert other not in ("", kept)


def test_every_block_of_every_page_has_a_writer_here() -> None:
    found: dict[str, str] = {}
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "research").rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        blocks = [(mark["name"], mark["script"]) for mark in MARKED.finditer(text)]
        assert sorted(name for name, _ in blocks) == sorted(re.findall(r"<!-- /([\w-]+) -->", text)), path.name
        found |= {f"{path.relative_to(ROOT)}#{name}": script for name, script in blocks}
    counted = {block: script for block, script in found.items() if block not in NOT_COMPARED}
    assert counted == {block: writer.script for block, writer in WRITER_OF.items() if "#" in block}
