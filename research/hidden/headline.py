"""Writes the head of docs/research/probes.md: the blend beside the strongest single control of each row.

    python -m research.hidden.headline

From docs/measured/states.json (the larger coder), which keeps paired differences, and docs/measured/probes.json, which
keeps only those to the baseline chosen per fold and to the mean log-probability. There the difference to another
control is taken as if the two AUROCs were independent: wider than a paired interval, unless two scores of the same
answers err in opposite ways.
"""

from dataclasses import dataclass
from typing import Any

from metaprobe.eval.controls import STATED
from metaprobe.training.ladder import SURE
from metaprobe.training.methods import BLEND, MEAN_LOGPROB
from research.blocks import BAR_BEFORE, markdown, read_figures, shown, write
from research.hidden import controls as probes_controls
from research.hidden.measure import FIGURES, PAGE
from research.hidden.tables import CHANCE


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
    hardest: bool
    """Whether answer words and joined free signals, the hardest controls, were measured."""


def main() -> None:
    """Write the answer and the rows behind it."""
    figures = read()
    write(PAGE, "answer", [answer(gains(figures)), ""])
    write(PAGE, "rows", [*in_short(figures), ""])
    write(PAGE, "headline", [lead(figures), ""])


def read() -> dict[str, Any]:
    """The numbers of docs/research/probes.md, the joined controls among them."""
    return probes_controls.with_joined(read_figures(FIGURES))


def gains(figures: dict[str, Any]) -> list[Gain]:
    """One a row of docs/research/probes.md."""
    return [gain_of(name, row["methods"]) for name, row in figures.items() if "methods" in row]


def gain_of(name: str, methods: dict[str, Any]) -> Gain:
    """The blend against each control that was measured, and the strongest of them by name."""
    found = probes_controls.gain_of({"methods": methods})
    hardest = sum(name in methods for name in probes_controls.JOINED) > 1
    return Gain(name, found["control"], *found["difference"], stands=not found["standing"], hardest=hardest)


def in_short(figures: dict[str, Any]) -> list[str]:
    """Returns the one table of the measured page: stated confidence, mean log-probability and blend of each pair."""
    rows = []
    for gain in gains(figures):
        methods = figures[gain.row]["methods"]
        aurocs = [shown(methods[name]["auroc"], ".2f") for name in (STATED, MEAN_LOGPROB, BLEND)]
        rows.append([_named(gain.row), *aurocs, _shown(gain), "yes" if gain.stands else "no"])
    head = ["model, task", STATED, MEAN_LOGPROB, BLEND, "over the strongest control", "ahead of every control"]
    older = older_blends(figures)
    return [*markdown(head, rows), *(["", older] if older else [])]


def older_blends(figures: dict[str, Any]) -> str:
    """Returns which rows are of a blend before today's, and on which of them the recorded answers say it differs."""
    rungs = {key: of["reached"] for key, of in read_figures(probes_controls.LARGER)["rungs"].items()}
    kept = {key: row for key, row in figures.items() if "methods" in row}
    rows = [key for key in kept if key in rungs and kept[key].get("sure") != SURE]
    moved = {key: sum(before != now for before, now in rungs[key]) for key in rows}
    named = ", ".join(f"{_named(key)} ({moved[key]} of {len(rungs[key])})" for key in rows if moved[key])
    parts = []
    if rows:
        parts.append(
            f"{len(rows)} rows were measured when the blend's ladder left a rung at {BAR_BEFORE:.0%}, not at "
            f"{SURE:.0%}. On the recorded answers it reaches the same rung in every fold"
            + (f", but on {named}." if named else ".")
        )
    if earlier := len(kept) - sum(key in rungs for key in kept):
        parts.append(f"{earlier} rows of the smaller models are of an earlier blend, with trees and no ladder.")
    return " ".join(parts)


def controlled(found: list[Gain]) -> list[Gain]:
    """Returns the pairs for which the hardest controls were measured."""
    return [gain for gain in found if gain.hardest]


def answer(found: list[Gain]) -> str:
    """The page in three sentences."""
    checked = controlled(found)
    stand = sorted((gain for gain in checked if gain.stands), key=lambda gain: gain.gain)
    ahead = sum(gain.stands for gain in found if gain not in checked)
    by = (
        f" The gain in AUROC over the strongest control is {stand[0].gain:+.2f} to {stand[-1].gain:+.2f} there."
        if stand
        else ""
    )
    return (
        f"On {len(stand)} of {len(checked)} pairs of a model and a task, the blend of hidden-state probes and "
        "log-probabilities distinguishes right from wrong answers better than every control, the answer's own words "
        f"and all free signals joined among them; on the other {len(checked) - len(stand)} this is not shown.{by} On "
        f"{len(found) - len(checked)} further pairs, where these two controls could not be measured, the blend beats "
        f"every other control on {ahead or 'none'}."
    )


def lead(figures: dict[str, Any]) -> str:
    """Says what holds, what does not, and where there was little to predict."""
    found = gains(figures)
    checked, others = ([gain for gain in found if gain.hardest == known] for known in (True, False))
    stand = sorted((gain for gain in checked if gain.stands), key=lambda gain: gain.gain)
    parts = [
        "**What holds.** A small learned score (hidden-state probes and log-probabilities, blended) is compared with "
        "stated confidence, P(true), single log-probabilities, length, being cut, what the prompt alone shows, the "
        "answer's own words, and all of these joined in one regression. On "
        + (f"{len(stand)} of the" if stand else "none of the")
        + f" {len(checked)} pairs of model and task whose answers are recorded it distinguishes right from wrong "
        "answers better than every one of them, after Holm"
        + (
            f": by {_shown(stand[0])} to {_shown(stand[-1])} in AUROC over the strongest "
            f"({', '.join(_named(gain.row) for gain in stand)})."
            if stand
            else "."
        )
        + " Intervals are of 95 %; for the smaller models, and over all free signals joined for the larger one, as if "
        "the two scores were independent."
    ]
    if rest := [gain for gain in checked if not gain.stands]:
        parts.append("Not shown on " + "; ".join(f"{_named(gain.row)}, {_shown(gain)}" for gain in rest) + ".")
    if ahead := sorted((gain for gain in others if gain.stands), key=lambda gain: gain.gain):
        parts.append(
            f"Of {len(others)} more pairs the answers are not recorded, so words and joined signals were not tried; of "
            f"the single controls it beats every one on {len(ahead)}: "
            + "; ".join(f"{_named(gain.row)}, {_shown(gain)}" for gain in ahead)
            + "."
        )
    low, high = CHANCE
    if rare := [_named(gain.row) for gain in found if not low <= figures[gain.row]["accuracy"] <= high]:
        parts.append(f"Fewer than {low:.0%} or more than {high:.0%} of the answers are right on {', '.join(rare)}.")
    return " ".join(parts)


def _shown(gain: Gain) -> str:
    return f"{shown((gain.gain, gain.low, gain.high), '+.2f')} (over {gain.control})"


def _named(row: str) -> str:
    return row.replace("/", " on ")


if __name__ == "__main__":
    main()
