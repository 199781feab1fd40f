"""The tables of docs/research/probes.md, from what research/hidden/measure.py measured."""

from typing import Any

from metaprobe.eval.compare import BEST_BASELINE
from metaprobe.eval.controls import STATED
from metaprobe.training.methods import AFTER, BEFORE, BLEND, LADDER, MEAN_LOGPROB
from research.blocks import markdown, shown
from research.hidden.controls import JOINED, gain_of

CHANCE = (0.2, 0.8)
"""Accuracy outside which there is little to predict."""
ENOUGH_FOR_ECE = 1000
ERRORS = {"ece": "ECE", "rms_calibration_error": "RMS calibration error"}
SHOWN = (
    STATED,
    "P(true)",
    MEAN_LOGPROB,
    "minimum log-probability",
    "first log-probability",
    "length",
    "prompt TF-IDF",
    "dimension x level table",
    "LightGBM on logprobs",
    LADDER,
    BEFORE,
    AFTER,
    BLEND,
    BEST_BASELINE,
)


def discrimination(rows: dict[str, Any]) -> list[str]:
    """AUROC of every method."""
    names = [name for name in (*SHOWN, *JOINED) if any(name in row["methods"] for row in rows.values())]
    low, high = CHANCE
    lines = []
    for key, row in rows.items():
        found, gain = row["methods"], gain_of(row)
        accuracy = f"{row['accuracy']:.1%}" + ("" if low <= row["accuracy"] <= high else " (!)")
        aurocs = (shown(found[name]["auroc"], ".2f") if name in found else "-" for name in names)
        over = shown(gain["difference"], "+.2f") + ("" if gain["standing"] else " *")
        about = [key.replace("/", ", "), f"{row['n']} ({row['groups']})", accuracy]
        lines.append([*about, *aurocs, gain["control"], over, shown(row["over_mean_logprob"], "+.2f")])
    head = ["model, task", "n (groups)", "accuracy", *names, "strongest control", "blend over it"]
    return markdown([*head, "blend over mean logprob"], lines)


def calibration(rows: dict[str, Any]) -> list[str]:
    """Calibration error, Brier skill and AURC of the methods named beforehand, recalibrated; and ECE as stated."""
    names = (STATED, MEAN_LOGPROB, AFTER, BLEND)
    # Where a kept measurement holds no ECE, its root-mean-square error is shown for all.
    error = "ece" if all("ece" in row["methods"][BLEND] for row in rows.values()) else "rms_calibration_error"
    titles = {error: ERRORS[error], "brier_skill": "Brier skill", "aurc": "AURC"}
    head = ["model, task", f"{STATED}, as stated: ECE", "its mean, share right"]
    head += [f"{name}: {title}" for name in names for title in titles.values()]
    lines = []
    for key, row in rows.items():
        said = row.get("stated")
        cells = [key.replace("/", ", "), shown(said["ece"], ".2f") if said else "-"]
        cells.append(f"{said['mean']:.0%}, {said['accuracy']:.0%}" if said else "-")
        for name in names:
            found = row["methods"].get(name)
            for what in titles:
                enough = what != error or row["n"] >= ENOUGH_FOR_ECE
                cells.append(shown(found[what], ".2f") if found and enough else "-")
        lines.append(cells)
    return markdown(head, lines)


def kinds(rows: dict[str, Any]) -> list[str]:
    """Kinds of probe on the same answers, and which layers were chosen."""
    names = [AFTER, "answer, ridge", "answer, mass-mean", "answer, low-rank"]
    head = ["model, task", *names, "chosen over the folds (logistic)", "its AUROC when chosen, in inner folds"]
    lines = [
        [
            key.replace("/", ", "),
            *(shown(row["methods"][name]["auroc"], ".2f") if name in row["methods"] else "-" for name in names),
            "; ".join(row["chosen"][AFTER]),
            f"{row['selected'][AFTER]:.3f}",
        ]
        for key, row in rows.items()
    ]
    return markdown(head, lines)


def efficiency(rows: dict[str, Any]) -> list[str]:
    """Type-2 AUROC, meta-d' and M-ratio, of tasks with two choices that the model distinguishes."""
    lines = [
        [key.replace("/", ", "), name, *(shown(found[what], ".2f") for what in ("type2_auroc", "meta_d", "m_ratio"))]
        if not found.get("refused")
        else [key.replace("/", ", "), name, "-", f"refused: {found['refused']}", "-"]
        for key, row in rows.items()
        for name, found in row.get("efficiency", {}).items()
        if name in SHOWN
    ]
    return markdown(["model, task", "method", "type-2 AUROC", "meta-d'", "M-ratio"], lines)
