"""Fills a copy of the docs with their further tables, and builds the site from it.

    python scripts/site.py   # the copy in out/docs, then the site in out/site

The pages of docs/tables/ and docs/research/tables/ are stored with empty blocks; the marker of a block names the
command that writes it.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS, OUT = ROOT / "docs", ROOT / "out"
COMMAND = re.compile(r"^<!-- [\w-]+: written by \S+ \(python -m (.+)\) -->$", re.M)


def commands() -> list[str]:
    """Returns each command that a page of further tables names, once."""
    pages = sorted(DOCS.rglob("tables/*.md"))
    return list(dict.fromkeys(line for page in pages for line in COMMAND.findall(page.read_text(encoding="utf-8"))))


def fill() -> None:
    """Copies the docs and lets every command write its tables into the copy."""
    shutil.rmtree(OUT / "docs", ignore_errors=True)
    shutil.copytree(DOCS, OUT / "docs")
    for line in commands():
        subprocess.run([sys.executable, "-m", *line.split()], cwd=ROOT, check=True)


def main() -> None:
    """Fills the copy, and builds the site from it."""
    fill()
    shutil.rmtree(OUT / "site", ignore_errors=True)
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for here, there in (("site_dir: out/site", "site_dir: site"), ("paths: [src]", "paths: [../src]")):
        settings = settings.replace(here, there)
    (OUT / "mkdocs.yml").write_text(settings, encoding="utf-8")
    build = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(OUT / "mkdocs.yml")]
    subprocess.run(build, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
