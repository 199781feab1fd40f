"""What version 0.1 said of systems, and what is left of it beside the controls: docs/measured/claims_systems.json.

    python -m research.claims.systems

What version 0.1 had is kept in docs/measured/said_before_systems.json and stays; `after` and `verdict` are made from
what is measured today. A difference between papers' systems whose verdict is the one that it was is left out.
"""

import json
from collections.abc import Callable

from research.hidden import controls as probes_controls
from research.hidden import headline
from research.papers import page as reproduction
from research.systems import live_signals
from research.systems.creak_controls import HALF
from research.systems.figures import ROOT, cell

CLAIMS = ROOT / "docs" / "measured" / "claims_systems.json"
BEFORE = ROOT / "docs" / "measured" / "said_before_systems.json"
"""Statement -> page and number in version 0.1."""


def main() -> None:
    """Write the file anew."""
    CLAIMS.write_text(json.dumps(rows(), indent=1) + "\n", encoding="utf-8")


def rows() -> list[dict[str, str]]:
    """One for each statement that fell, or is said in another way today."""
    before = json.loads(BEFORE.read_text(encoding="utf-8"))
    return [{**told, **found} for told in before if (found := now(told)) is not None]


def now(told: dict[str, str]) -> dict[str, str] | None:
    """What is to be said today; None where the verdict on a paper's difference is the one that it was."""
    found = {**SPECIAL, "reproduction.md": of_reproduction}
    after, verdict, script = found[told.pop("from")](told)
    same = told["verdict_before"] == verdict.strip("*") and told["page"] == "docs/research/reproduction.md"
    return None if same else {"after": after, "verdict": verdict.strip("*"), "script": script}


def of_reproduction(told: dict[str, str]) -> tuple[str, str, str]:
    """A row of "Directions"."""
    found = json.loads(reproduction.FIGURES.read_text(encoding="utf-8"))
    rows = [row for section in found.values() for row in section["figures"] if row["what"] == told["statement"]]
    (row,) = rows
    after = f"{reproduction.shown(row)}; {reproduction.against(row)}".replace("**", "")
    return after, reproduction.verdict(row), "research/papers/page.py"


def of_live(signal: str) -> Callable[[dict[str, str]], tuple[str, str, str]]:
    """The gain of one signal in MetaCogAgent."""

    def found(told: dict[str, str]) -> tuple[str, str, str]:
        figures = json.loads(live_signals.FIGURES.read_text(encoding="utf-8"))
        gains = figures["gains"][signal]
        strongest = gains["controls"][0]
        after = (
            f"{cell(gains['over_explicit'], 'points')} points over the stated confidence, "
            f"{live_signals.points(strongest['gain'])} over {strongest['name']}. " + live_signals.apart(gains)
        )
        return after, "holds" if gains["remains"] else "falls to a control", "research/systems/live_signals.py"

    return found


def of_probes(told: dict[str, str]) -> tuple[str, str, str]:
    """The blend against the strongest control, joined free signals among them where answers are recorded."""
    figures = headline.read()
    gains = headline.gains(figures)
    joined = json.loads(probes_controls.MEASURED.read_text(encoding="utf-8"))
    single = [gain for gain in gains if gain.row not in joined]
    checked = [gain for gain in gains if gain.row in joined]
    stand = [gain.gain for gain in checked if gain.stands]
    after = (
        f"{len(stand)} of the {len(checked)} rows whose answers are recorded"
        + (f", by {min(stand):+.2f} to {max(stand):+.2f}" if stand else "")
        + ", against the strongest control, the answer's words and free signals joined among them; of the other "
        f"{len(single)} rows {sum(gain.stands for gain in single)}, against single controls only"
    )
    return after, "holds on fewer" if stand else "falls to a control", "research/hidden/headline.py"


def of_metacrit(told: dict[str, str]) -> tuple[str, str, str]:
    """What the full system adds to its own first answer."""
    found = json.loads(reproduction.FIGURES.read_text(encoding="utf-8"))["metacrit"]["figures"]
    start = "CREAK, gain over its own first answer"
    plain, half = (row for row in found if row["what"].startswith(start))
    after = f"{reproduction.shown(plain)}; {half['what'].removeprefix(start + ', ')}: {reproduction.shown(half)}"
    stands = reproduction.side_of(half, {"sign": 1}) > 0
    return after, "holds" if stands else "falls to a control", "research/papers/page.py"


def of_limits(told: dict[str, str]) -> tuple[str, str, str]:
    """What critics win and lose once an unreadable answer counts as half right, and Self-Verification over its own."""
    found = json.loads(reproduction.FIGURES.read_text(encoding="utf-8"))
    rows = {row["what"]: row for section in found.values() for row in section["figures"]}
    parts, stands = [], []
    for name, what in CRITICS.items():
        half = next(control for control in rows[what]["controls"] if control["name"] == HALF)
        parts.append(f"{name}, {HALF}: {reproduction.shown({**rows[what], **half})}")
        stands.append(reproduction.side_of(half, rows[what]) == reproduction.side_of(rows[what], rows[what]))
    own = rows["self-verification: gain over its own first answer"]
    parts.append(f"Self-Verification over its own first answer: {reproduction.shown(own)}")
    stands.append(reproduction.side_of(own, {"sign": 1}) < 0)
    return "; ".join(parts), "holds" if all(stands) else "falls to a control", "research/papers/page.py"


CRITICS = {
    "control after a chain of thought": "zero-shot-cot with control over without (TruthfulQA)",
    "control within MetaCrit": "the full system over metacrit without-control",
}
"""Name in words -> the row of "Directions"."""

SPECIAL: dict[str, Callable[[dict[str, str]], tuple[str, str, str]]] = {
    "implicit": of_live("implicit"),
    "both": of_live("both"),
    "probes": of_probes,
    "metacrit": of_metacrit,
    "limits": of_limits,
}
"""Where a statement's number comes from today -> how it is read."""

if __name__ == "__main__":
    main()
