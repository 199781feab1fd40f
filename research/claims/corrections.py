"""Writes docs/research/corrections.md: what version 0.1 said and what fell or changed, with both numbers.

    python -m research.claims.corrections

From docs/measured/claims_*.json, which hold {"statement", "page", "before", "after", "verdict", "script"}, one file a
subject. The script named in a row is what measures its new number.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from research.blocks import markdown

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "research" / "corrections.md"
MEASURED = ROOT / "docs" / "measured"
FIELDS = ("statement", "page", "before", "after", "verdict", "script")
SUBJECTS = {
    "systems": "Systems of the papers",
    "report": "Report and comparison",
    "audits": "Audits and bundled checkpoints",
    "routing": "Routing",
    "decisions": "Signals and decisions",
    "essays": "Debates and contests about essays",
}
"""Name of the file after `claims_` -> heading; in this order."""

INTRO = """# Corrections to version 0.1

Version 0.1 published numbers of this project that had not been compared with every control: a constant in place of the
learned number, the best agent alone, the same prompt, other orders of the questions, stated confidence before
recalibration, and controls that may spend as much. These comparisons have been made since. Each row is a statement that
was withdrawn, changed or confirmed; the linked pages hold the numbers of today.
"""
ANSWER = """{rows} statements of version 0.1 fell, changed, or were confirmed when every control was measured. Of them,
{fell} do not hold or are ties now, {stands} stand, and the others say something else or less than before. Rely on the
numbers of today's pages.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page. Raises `ValueError` for a file of an unknown subject or a row without one of the fields."""
    found = {path.stem.removeprefix("claims_"): path for path in MEASURED.glob("claims_*.json")}
    if unknown := sorted(found.keys() - SUBJECTS.keys()):
        raise ValueError(f"docs/measured holds claims of {', '.join(unknown)}; expected: {', '.join(SUBJECTS)}")
    title, _, rest = INTRO.partition("\n\n")
    lines = [title, "", *answer(found.values()), "", *rest.splitlines(), ""]
    for subject, heading in SUBJECTS.items():
        if subject not in found:
            continue
        rows = json.loads(found[subject].read_text(encoding="utf-8"))
        for row in rows:
            if missing := [field for field in FIELDS if not str(row.get(field, "")).strip()]:
                raise ValueError(f"{found[subject].name}: {row.get('statement', row)!r} lacks {', '.join(missing)}")
        cells = [
            [row["statement"], linked(row["page"]), row["before"], row["after"], row["verdict"], f"`{row['script']}`"]
            for row in rows
        ]
        head = ["statement of 0.1", "page", "number then", "number with its controls", "verdict", "script"]
        lines += [f"## {heading}", "", *markdown(head, [[flat(cell) for cell in row] for row in cells]), ""]
    return "\n".join(lines).rstrip() + "\n"


def answer(files: Iterable[Path]) -> list[str]:
    """The page in three sentences: how many of its statements fell and how many stand."""
    verdicts = [row.get("verdict", "") for path in files for row in json.loads(path.read_text(encoding="utf-8"))]
    fell = [one for one in verdicts if one.startswith(("fell", "falls", "tie", "a tie", "stands: tie"))]
    stands = [one for one in verdicts if one.startswith(("stands", "holds")) and one not in fell]
    return ANSWER.format(rows=len(verdicts), fell=len(fell), stands=len(stands)).splitlines()


def linked(page: str) -> str:
    """A link to a page of docs/; anything else, such as README.md, as it is."""
    path = ROOT / page.partition("#")[0]
    if not (page.startswith("docs/") and path.is_file()):
        return page
    link = os.path.relpath(ROOT / page, ROOT / "docs" / "research")
    return f"[{path.stem}]({link})"


def flat(text: str) -> str:
    """One line, without what would end a cell of the table."""
    return " ".join(str(text).split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
