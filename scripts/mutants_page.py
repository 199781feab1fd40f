"""Records what `mutants.py run` found, and writes it into docs/research/mutants.md.

python scripts/mutants_page.py            # out/mutants/*.json -> docs/measured/mutants.json -> the page
python scripts/mutants_page.py --page     # the page alone, from what is recorded
"""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import mutants

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "docs" / "measured" / "mutants.json"
PAGE = ROOT / "docs" / "research" / "mutants.md"
WANTED = 0.85
"""Share of the faults that count which the tests of a room should find."""
LONGEST = 90
"""Characters of a change, or of its line, that are shown."""


def record() -> None:
    """Keeps the figures of every room that was drawn, and each survivor with the reason why it may live, if any.

    A room that was not drawn anew keeps its figures.
    """
    reasons = json.loads(mutants.REASONS.read_text(encoding="utf-8"))
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    for room in mutants.ROOMS:
        if not (path := mutants.OUT / f"{room}.json").exists():
            continue
        made = json.loads(path.read_text(encoding="utf-8"))
        alive = [mutants.Mutant(**each["mutant"]) for each in made["outcomes"] if not each["killed_by"]]
        found[room] = {
            "seed": made["seed"],
            "possible": made["possible"],
            "drawn": len(made["outcomes"]),
            "killed": len(made["outcomes"]) - len(alive),
            "survivors": [{"mutant": str(one), "changes nothing": reasons.get(str(one), "")} for one in alive],
        }
    MEASURED.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")


def _counted(of: dict[str, Any]) -> int:
    """Returns how many of a room's faults count: all that were drawn but those that change nothing."""
    return of["drawn"] - sum(bool(one["changes nothing"]) for one in of["survivors"])


def answer(found: dict[str, dict[str, Any]]) -> list[str]:
    """Returns what the page opens with: the share that died, over all rooms and in the best and the worst."""
    killed, counted = sum(of["killed"] for of in found.values()), sum(map(_counted, found.values()))
    shares = {room: of["killed"] / max(_counted(of), 1) for room, of in found.items()}
    worst, best = min(shares, key=lambda room: shares[room]), max(shares, key=lambda room: shares[room])
    bad = [room for room, share in shares.items() if share < WANTED]
    below = f"Below the {WANTED:.0%} that we ask for: {', '.join(bad)}." if bad else f"None is below {WANTED:.0%}."
    return [
        f"Of {counted:,} small faults that were planted at random in {len(found)} rooms, the quick suite finds "
        f"{killed:,} ({killed / counted:.0%}). The room with the least is `{worst}` ({shares[worst]:.0%}), that "
        f"with the most `{best}` ({shares[best]:.0%}). {below}",
        "",
    ]


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the lines of the table: what was drawn, what changes nothing, and the share of the others that died."""
    lines = ["| room | seed | possible | drawn | change nothing | found | share |", "|---|---|---|---|---|---|---|"]
    for room, of in found.items():
        count = _counted(of)
        share = f"{of['killed'] / max(count, 1):.0%}"
        cells = (room, of["seed"], f"{of['possible']:,}", of["drawn"], of["drawn"] - count, of["killed"], share)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def survivors(found: dict[str, dict[str, Any]]) -> list[str]:
    """Returns a line for each survivor that a test should find, and one for all that change nothing for one reason."""
    lines = ["Survivors that a test should find:", ""]
    told: dict[tuple[str, str], list[str]] = defaultdict(list)
    for room, of in found.items():
        for one in of["survivors"]:
            path, _, rest = one["mutant"].partition(": ")
            change, _, code = rest.rpartition(" | ")
            shown = f"`{path}`: `{_shown(change)}` in `{_shown(code)}`"
            if one["changes nothing"]:
                told[room, one["changes nothing"].rstrip(".")].append(shown)
            else:
                lines.append(f"- {shown}")
    lines += ["", "Survivors that change nothing that anyone could see, and why:", ""]
    for (_, reason), shown in told.items():
        more = f", and {len(shown) - 1} more like it" if len(shown) > 1 else ""
        lines.append(f"- {shown[0]}{more}: {reason}.")
    return lines


def _shown(code: str) -> str:
    """Returns code as it can stand between backticks on one line, its middle left out where it is long."""
    code = code.replace("`", "'")
    return code if len(code) <= LONGEST else f"{code[: LONGEST // 2]} ... {code[-LONGEST // 2 :]}"


def page_command() -> None:
    """Writes the blocks of the page from what is recorded."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    write(PAGE, "mutants", [*answer(found), *table(found)])
    write(PAGE, "mutants-alive", survivors(found))


def write(path: Path, name: str, lines: list[str]) -> None:
    """Replaces what stands between the markers of that name."""
    mark = re.compile(rf"(<!-- {name}:.*? -->\n).*?(<!-- /{name} -->)", re.S)
    text, count = mark.subn(lambda m: m[1] + "\n".join(lines) + "\n" + m[2], path.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{path.name} has lost its markers of {name}")
    path.write_text(text, encoding="utf-8")


@click.command(help=__doc__)
@click.option("--page", "page_only", is_flag=True, help="Write the page from what is recorded already.")
def main(page_only: bool) -> None:
    """Records unless it is told not to, and writes."""
    if not page_only:
        record()
    page_command()


if __name__ == "__main__":
    main()
