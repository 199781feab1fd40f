"""What README leads with: the blend of probes and log-probabilities beside the strongest single control of each row.

    python benchmarks/headline.py

From docs/measured/probes.json, which keeps an interval for each method's AUROC and, of paired differences, only those
to the baseline chosen per fold and to the mean log-probability. So the difference to another control is taken as if the
two AUROCs were independent: wider than a paired interval, unless two scores of the same answers err in opposite ways.
"""

import json
from dataclasses import dataclass
from typing import Any

import probes_controls
from demo_results import write
from systems_figures import ROOT

from probes import CHANCE, FIGURES


@dataclass(frozen=True, slots=True)
class Gain:
    """The blend of one model on one task against its strongest single control."""

    row: str
    control: str
    gain: float
    low: float
    high: float
    stands: bool
    """Whether the blend is above every single control, after Holm over the controls."""


def main() -> None:
    """Write the lead of README.md."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    write(ROOT / "README.md", "headline", [lead(gains(figures), accuracies(figures)), ""])


def gains(figures: dict[str, Any]) -> list[Gain]:
    """One a row of docs/probes.md."""
    return [gain_of(name, row["methods"]) for name, row in figures.items() if "methods" in row]


def gain_of(name: str, methods: dict[str, Any]) -> Gain:
    """The blend against each control that was measured, and the strongest of them by name."""
    found = probes_controls.gain_of({"methods": methods})
    return Gain(name, found["control"], *found["difference"], stands=not found["standing"])


def accuracies(figures: dict[str, Any]) -> dict[str, float]:
    """Share of right answers in each row."""
    return {name: row["accuracy"] for name, row in figures.items() if "methods" in row}


def lead(found: list[Gain], accuracy: dict[str, float]) -> str:
    """What holds, what does not, and where there was little to predict."""
    stand = sorted((gain for gain in found if gain.stands), key=lambda gain: gain.gain)
    rest = [gain for gain in found if not gain.stands]
    if not stand:
        return (
            f"On none of the {len(found)} pairs of model and task in [docs/probes.md](docs/probes.md) does a learned "
            "score tell right from wrong answers better than its strongest single control."
        )
    low, high = CHANCE
    rare = [gain.row for gain in found if not low <= accuracy[gain.row] <= high]
    parts = [
        "**What holds.** A small learned score (hidden-state probes and log-probabilities, blended) tells right from "
        f"wrong answers better than the strongest single control on {len(stand)} of {len(found)} pairs of model and "
        f"task, by {_shown(stand[0])} to {_shown(stand[-1])} in AUROC. Controls are stated confidence, P(true), single "
        "log-probabilities, length, being cut, and what the prompt alone tells; the strongest on the same answers is "
        "named, intervals are of 95 % as if the two scores were independent, and each control is beaten after Holm."
    ]
    if rest:
        parts.append("Not shown on " + "; ".join(f"{_named(gain.row)}, {_shown(gain)}" for gain in rest) + ".")
    if rare:
        parts.append(
            f"Fewer than {low:.0%} or more than {high:.0%} of the answers are right on {', '.join(map(_named, rare))}."
        )
    return " ".join([*parts, "All rows: [docs/probes.md](docs/probes.md)."])


def _shown(gain: Gain) -> str:
    return f"{gain.gain:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}] (over {gain.control})"


def _named(row: str) -> str:
    return row.replace("/", " on ")


if __name__ == "__main__":
    main()
