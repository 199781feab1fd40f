"""Whether the blend of docs/research/probes.md beats every control, from the numbers of `probes.py measure`."""

import json
from typing import Any

import numpy as np

from metaprobe.eval.controls import STATED
from metaprobe.eval.metrics.bootstrap import ControlComparison, holm, normal_p
from metaprobe.training.methods import BLEND, MEAN_LOGPROB
from research.blocks import ROOT, packed, shown

CONTROLS = (
    STATED,
    "stated ease",
    "P(true)",
    MEAN_LOGPROB,
    "minimum log-probability",
    "first log-probability",
    "length",
    "cut by max_tokens",
    "prompt TF-IDF",
    "dimension x level table",
    "run identity",
)
"""Controls that are free, asked of the model itself, or read off the prompt or the run."""
EVERYTHING = "free signals joined"
"""Log-probabilities, stated confidence, P(true), dimension and level, and all words in one regression (joined.py)."""
JOINED = ("answer TF-IDF", EVERYTHING, "words and log-probabilities")
"""Controls that are no single numbers, measured where the answers are recorded."""
MEASURED = ROOT / "docs" / "measured" / "probes_joined.json"
LARGER = MEASURED.parent / "states.json"
"""Figures of `research.states.measure`, with all controls."""
Z = 1.96
"""97.5 % point of the normal distribution."""


def over_strongest(controls: ControlComparison) -> dict[str, Any]:
    """The gain over the strongest control, and which controls are not beaten."""
    return {
        "control": controls.strongest.name,
        "difference": packed(controls.strongest.difference),
        "standing": [control.name for control in controls.standing],
    }


def with_joined(figures: dict[str, Any]) -> dict[str, Any]:
    """The numbers of docs/measured/probes.json with the joined controls among the methods of each row that has them.

    The rows of the larger coder come from docs/measured/states.json.
    """
    joined = json.loads(MEASURED.read_text(encoding="utf-8"))
    rows = {
        key: {**row, "methods": row["methods"] | joined.get(key, {}).get("methods", {})} if "methods" in row else row
        for key, row in figures.items()
    }
    larger = of_larger(json.loads(LARGER.read_text(encoding="utf-8")))
    return larger | {key: row for key, row in rows.items() if key not in larger}


def of_larger(states: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows of the larger coder by docs/measured/states.json, with the controls that were measured later."""
    joined = json.loads(MEASURED.read_text(encoding="utf-8"))
    graded = {key: one["methods"] for key, one in states["efficiency"].items() if "methods" in one}  # of two choices
    larger = {}
    for key, row in states["answers"].items():
        everything = joined[key]["methods"][EVERYTHING]
        form = states["harder"].get(key, {}).get(BLEND, {}).get("over_strongest")
        blend = row["methods"][BLEND]
        over = with_further(blend["over_strongest"], blend["auroc"], everything["auroc"], form)
        methods = row["methods"] | {EVERYTHING: everything, BLEND: blend | {"over_strongest": over}}
        larger[key] = row | {"methods": methods} | ({"efficiency": graded[key]} if key in graded else {})
    return larger


def with_further(
    stored: dict[str, Any], blend: list[float], everything: list[float], form: dict[str, Any] | None
) -> dict[str, Any]:
    """Returns the comparison with the strongest control, where further controls were measured later.

    Args:
        stored: the paired comparison with the strongest of the controls that were measured beside the blend.
        blend: AUROC of the blend, with its interval.
        everything: AUROC of `EVERYTHING`, with its interval. The difference is taken as if the two were of different
            answers, which is wider than paired.
        form: the paired comparison with trees on the form of the working; None where it was not measured.
    """
    gain, half = blend[0] - everything[0], float(np.hypot(blend[2] - blend[1], everything[2] - everything[1])) / 2
    beaten = gain > 0 and normal_p(gain, half / Z) <= 0.05
    further = {
        "control": EVERYTHING,
        "difference": [round(value, 4) for value in (gain, gain - half, gain + half)],
        "standing": [] if beaten else [EVERYTHING],
    }
    found = [stored, further, *([form] if form else [])]
    strongest = min(found, key=lambda one: one["difference"][0])
    return strongest | {"standing": [name for one in found for name in one["standing"]]}


def gain_of(row: dict[str, Any]) -> dict[str, Any]:
    """The blend over the strongest control.

    Where a kept measurement holds no paired difference to it, the two are taken as if they were of different
    answers: on the same ones they vary together, so that interval and p-values are wider than paired ones.
    """
    found = row["methods"]
    if "over_strongest" in found[BLEND]:
        return dict(found[BLEND]["over_strongest"])
    controls = {name: found[name]["auroc"] for name in (*CONTROLS, *JOINED) if name in found}
    own, half = found[BLEND]["auroc"], {}
    for name, (estimate, low, high) in controls.items():
        half[name] = own[0] - estimate, float(np.hypot(own[2] - own[1], high - low)) / 2
    p = holm([normal_p(gain, width / Z) for gain, width in half.values()])
    strongest = max(controls, key=lambda name: controls[name][0])
    gain, width = half[strongest]
    beaten = {name: value <= 0.05 and half[name][0] > 0 for name, value in zip(half, p, strict=True)}
    return {
        "control": strongest,
        "difference": [gain, gain - width, gain + width],
        "standing": [name for name, is_beaten in beaten.items() if not is_beaten],
    }


def says(rows: dict[str, Any]) -> list[str]:
    """Returns the sentences on the blend in the first table, by the rule for beating controls."""
    gains = {key.replace("/", ", "): gain_of(row) for key, row in rows.items()}
    ahead = {key: gain for key, gain in gains.items() if not gain["standing"]}
    by = sorted(gain["difference"][0] for gain in ahead.values())
    left = "; ".join(
        f"{key} ({', '.join(gain['standing'])}: {shown(gain['difference'], '+.2f')} to {gain['control']})"
        for key, gain in gains.items()
        if gain["standing"]
    )
    paired = all("over_strongest" in row["methods"][BLEND] for row in rows.values())
    return [
        f"**The blend beats every control on {len(ahead)} of {len(gains)} rows** (starred), by {by[0]:+.2f} to "
        f"{by[-1]:+.2f} AUROC over the strongest one, after Holm's correction over the controls. Not shown to "
        f"be beaten: {left}."
        + (
            ""
            if paired
            else " The stored measurement has no paired difference to the strongest control: the intervals are as if "
            "both were of different answers, wider than they need be."
        )
    ]
