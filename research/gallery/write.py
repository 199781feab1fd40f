"""Writes docs/compare.md: figures of the report, made from recorded runs, each with what it shows.

    python -m research.gallery.write

The figures are those that `metaprobe compare` draws; the code that makes them stands on the page, and runs here.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from metaprobe import compare
from research.blocks import ROOT, write

PAGE, FIGURES = ROOT / "docs" / "compare.md", ROOT / "docs" / "figures" / "gallery"
RUNS = ROOT / "recorded" / "smollm2-metacog-eval"


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure of the report that the gallery shows."""

    pattern: str
    """Pattern of its file in the report's folder `figures`; the first that fits is taken."""
    title: str
    says: str


SHOWN = (
    Shown(
        "forest.svg",
        "AUROC of every method",
        "How well each method distinguishes right from wrong answers, with 95 % intervals.",
    ),
    Shown(
        "reliability-*stated-confidence.svg",
        "Reliability of stated confidence",
        "The share of right answers against the stated confidence. On the diagonal the two are equal.",
    ),
    Shown(
        "glance-learned.svg",
        "Reliability of a learned score",
        "The same for the blend of all signals, judged on answers of groups that it has not seen.",
    ),
    Shown(
        "roc.svg",
        "ROC",
        "The share of right answers that are accepted against the share of wrong ones, at every threshold.",
    ),
    Shown("risk.svg", "Risk and coverage", "How many of the kept answers are wrong when only the surest are kept."),
    Shown(
        "seen.svg",
        "How early it is known",
        "AUROC after the first tokens of an answer, beside that of the whole answer.",
    ),
    Shown(
        "trajectory.svg",
        "The course of the log-probabilities",
        "Right and wrong answers from their first token to the last, each stretched to the same length.",
    ),
)
"""In the order of the page. A figure that a comparison of these runs does not draw is left out."""


def main() -> None:
    """Make the comparison, take its figures, and write the page."""
    with tempfile.TemporaryDirectory() as folder:
        compare(RUNS, out=folder, command="research/gallery/write.py")
        found = taken(Path(folder) / "figures", FIGURES)
    parts: list[str] = []
    for shown in SHOWN:
        if path := found.get(shown.title):
            picture = f"![{shown.title}, from recorded answers of one model](figures/gallery/{path.name})"
            parts += [f"### {shown.title}", "", shown.says, "", picture, ""]
    write(PAGE, "figures", parts)


def taken(source: Path, target: Path) -> dict[str, Path]:
    """Title -> the figure's copy in `target`, which holds nothing else. Raises `FileNotFoundError` where none fits."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    found: dict[str, Path] = {}
    for shown in SHOWN:
        if first := min(source.glob(shown.pattern), default=None):
            found[shown.title] = Path(shutil.copyfile(first, target / first.name))
    if not found:
        raise FileNotFoundError(
            f"{source} holds none of the gallery's figures: {', '.join(one.pattern for one in SHOWN)}"
        )
    return found


if __name__ == "__main__":
    main()
