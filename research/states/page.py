"""Writes the part of docs/research/probes.md on the larger coder, and its further tables.

    python -m research.states.page

From docs/measured/states.json (`research.states.measure`).
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from metaprobe.eval.controls import P_TRUE, PROMPT, STATED, TERMS
from metaprobe.training.methods import BEFORE, BLEND
from research.blocks import ahead, behind, markdown, read_figures, shown, write
from research.hidden.controls import of_larger
from research.hidden.measure import PAGE
from research.states.measure import FEWER, MEASURED

LARGER = "qwen-coder-1.5b/"
FREE = ("explicit", "log-probability")
"""Families of numbers that cost no training."""
ANSWERED = 0.8
"""Share of the answers that is given."""

LEARNED_FROM = 0.8
"""Share of the answers that a fold learns from, calibration included."""

Figures = dict[str, Any]


def main() -> None:
    """Write the paragraph and the tables."""
    figures = read_figures(MEASURED)
    write(PAGE, "larger", [larger(figures), ""])
    write(PAGE, "curve", [*curve(figures), ""])
    write(PAGE, "selective", [*selective(figures), ""])
    write(PAGE, "difficulty", [*difficulty(figures), ""])


def larger(figures: Figures) -> str:
    """Returns what the states of the larger coder are worth, in two paragraphs."""
    rows = tasks(of_larger(figures))
    over = {task: row["methods"][BLEND]["over_strongest"] for task, row in rows.items()}
    won = sorted((found["difference"][0], task) for task, found in over.items() if not found["standing"])
    lost = [task for task, found in over.items() if found["difference"][2] < 0]
    stated = median(row["methods"][BLEND]["auroc"][0] - row["methods"][STATED]["auroc"][0] for row in rows.values())
    fall = median(row["methods"][BLEND]["error_fall"][0] for row in rows.values())
    orders = tasks(figures["difficulty"])
    spearman = sorted(one["methods"]["probe"]["spearman"][0] for one in orders.values())
    gains = [one["methods"][PROMPT]["gain"] for one in orders.values()]
    same = all(len(one["stated"]) == 1 for one in orders.values())
    return (
        f"**The larger coder (1.5B), {min(row['n'] for row in rows.values()):,} to "
        f"{max(row['n'] for row in rows.values()):,} answers a task.** On {len(won)} of {len(rows)} tasks "
        f"({', '.join(task for _, task in reversed(won))}) the blend is ahead of every control, the answer's words, "
        f"all free signals joined, and on gsm8k trees on the form of the working among them, by {won[0][0]:+.2f}"
        + (f" to {won[-1][0]:+.2f}" if len(won) > 1 else "")
        + " in AUROC over the strongest; "
        + (f"it is behind on {', '.join(lost)}" if lost else "on no task is it shown to be behind")
        + f". In the median of all {len(rows)} it gains "
        f"{median(found['difference'][0] for found in over.values()):+.3f} over the strongest control and "
        f"{stated:+.2f} over stated confidence. Holding back the fifth of the answers that it is least sure of lowers "
        f"the error by {fall:.0%} in the median; the free number that is best in hindsight lowers it by "
        f"{median(best_free(row)[1] for row in rows.values()):.0%}, and perfect knowledge would by "
        f"{median(possible(row['accuracy']) for row in rows.values()):.0%}.\n\nBefore it answers, a probe on the last "
        f"token of the prompt orders questions by how often ten samples are right (Spearman {spearman[0]:.2f} to "
        f"{spearman[-1]:.2f}); it is ahead of the prompt's words on {ahead(gains)} of "
        f"{len(gains)} tasks"
        + (", and the model itself states the same difficulty for every question." if same else ".")
        + by_labels(tasks(figures.get("fewer", {})), rows)
    )


def by_labels(fewer: Figures, rows: Figures) -> str:
    """Returns a sentence on how many tasks the blend is ahead on, by an interval, with fewer labels."""
    told = []
    for labels in FEWER:
        gains = [
            row[str(labels)][BLEND]["over_strongest"]["difference"]
            for task, row in fewer.items()
            if BLEND in row.get(str(labels), {}) and labels < rows[task]["n"] * LEARNED_FROM
        ]
        if gains:
            told.append(f"{labels:,} labels, ahead on {ahead(gains)} of {len(gains)} and behind on {behind(gains)}")
    return f" With fewer labels, held against six controls: {'; '.join(told)}." if told else ""


def tasks(rows: Figures) -> Figures:
    """Returns task -> figures of the larger coder."""
    return {key.removeprefix(LARGER): row for key, row in rows.items() if key.startswith(LARGER)}


def best_free(row: Figures) -> tuple[str, float]:
    """Returns the free number that lowers the error most, and by what share."""
    falls = {name: one["error_fall"][0] for name, one in row["methods"].items() if one.get("family") in FREE}
    name = max(falls, key=lambda name: falls[name])
    return name, float(falls[name])


def possible(accuracy: float) -> float:
    """Returns the share of errors that perfect knowledge would avoid by holding back so many answers."""
    wrong = 1 - accuracy
    return 1 - max(wrong - (1 - ANSWERED), 0) / (ANSWERED * wrong)


def curve(figures: Figures) -> list[str]:
    """Returns the blend's AUROC, and its gain over the strongest control, by how many labels were learned from."""
    lines = []
    for task, few in tasks(figures.get("fewer", {})).items():
        row = figures["answers"][LARGER + task]
        learned = row["n"] * LEARNED_FROM
        counts = {str(count): few.get(str(count), {}) for count in FEWER if count < learned}
        for labels, methods in {**counts, f"all ({learned:,.0f})": row["methods"]}.items():
            cells = ["-"] * 4
            if BLEND in methods:
                over = methods[BLEND]["over_strongest"]
                cells = [shown(methods[name]["auroc"], ".2f") for name in (TERMS, BLEND)]
                cells += [over["control"], shown(over["difference"], "+.2f")]
            lines.append([task, labels, *cells])
    return markdown(["task", "labels", TERMS, BLEND, "strongest control", "blend over it"], lines)


def selective(figures: Figures) -> list[str]:
    """Returns how much the error falls where the fifth that a method is least sure of is held back."""
    head = ["task", "right", STATED, P_TRUE, "best free number", BEFORE, BLEND, "perfect knowledge"]
    lines = []
    for task, row in tasks(figures["answers"]).items():
        name, fall = best_free(row)
        falls: Sequence[float] = [row["methods"][one]["error_fall"][0] for one in (STATED, P_TRUE, BEFORE, BLEND)]
        cells = [f"{one:.0%}" for one in falls]
        free = f"{fall:.0%} ({name})"
        lines.append([task, f"{row['accuracy']:.0%}", *cells[:2], free, *cells[2:], f"{possible(row['accuracy']):.0%}"])
    return markdown(head, lines)


def difficulty(figures: Figures) -> list[str]:
    """Returns rank correlations with the success rate of ten samples, of what is known before the answer."""
    lines = []
    for key, row in figures["difficulty"].items():
        for name, one in row["methods"].items():
            gain = shown(one["gain"], "+.2f") if "gain" in one else "-"
            lines.append([key.replace("/", ", "), name, shown(one["spearman"], ".2f"), gain])
    return markdown(["model, task", "order by", "Spearman", "probe over it"], lines)


if __name__ == "__main__":
    main()
