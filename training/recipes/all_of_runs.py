"""Makes all that stored runs of one model give: predictor, probes, a panel of its ways of asking, and the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metaprobe.checkpoints import Checkpoint
from metaprobe.eval.report.write import comparison_table, conclusions
from metaprobe.eval.results import Comparison
from metaprobe.records.errors import RecordError
from metaprobe.training.evidence import load_runs
from metaprobe.training.methods import AFTER, BEFORE
from metaprobe.training.options import OnStep, ReplaceOptions, RouterOptions
from metaprobe.training.recipes.comparison import require_report, write_comparison
from metaprobe.training.recipes.hidden import write_hidden
from metaprobe.training.recipes.outcomes_of_runs import outcomes_of_variants
from metaprobe.training.recipes.panel import train_router
from metaprobe.training.recipes.quality import write_quality
from metaprobe.training.study import study


@dataclass(frozen=True, slots=True, eq=False)
class TrainedRuns:
    """Checkpoints and report that were made of stored runs."""

    checkpoints: tuple[Checkpoint, ...]
    comparison: Comparison
    report: Path

    @classmethod
    def train(
        cls,
        stores: Sequence[Path],
        folder: Path,
        *,
        notes: Sequence[str] = (),
        folds: int = 5,
        seed: int = 0,
        command: str = "",
        on_step: OnStep,
    ) -> "TrainedRuns":
        """Trains quality, difficulty, confidence and a panel of the variants, and writes the report.

        Args:
            stores: run stores of one model that was asked in several ways, with hidden states.
            folder: gets `checkpoints/` and `report/`; what was made there before is replaced.
            notes: sentences that the report shall hold.
            folds: outer folds by group.
            seed: seed of folds and resamples.
            command: the line that asked for this, for the records of what is made.
            on_step: is told each step in words.
        """
        answers = study(stores, folds=folds, seed=seed, on_step=on_step)
        with ReplaceOptions(replace=True).replacing():
            made = folder / "checkpoints"
            on_step("audit and export: quality")
            quality = write_quality(made / "quality", {"correct": answers}, command=command)
            on_step("audit and export: difficulty")
            difficulty = write_hidden(made / "difficulty", answers, when="before", target="correct", command=command)
            on_step("audit and export: confidence")
            confidence = write_hidden(made / "confidence", answers, when="after", target="correct", command=command)
            checkpoints, said = [quality, difficulty, confidence], list[str]()
            on_step("audit and export: panel")
            try:
                outcomes = outcomes_of_variants(load_runs(stores))
                checkpoints.append(
                    train_router(outcomes, RouterOptions(out=made / "panel", seed=seed, command=command))
                )
            except RecordError as error:  # of few items there may be too few; the rest is worth having
                said.append(f"No panel of direct and step-by-step answers was trained: {error}")
            on_step("compare and report")
            comparison, report = write_comparison(
                folder / "report",
                answers,
                notes=[*said, *notes],
                probes={BEFORE: difficulty, AFTER: confidence},
                command=command,
            )
        return cls(tuple(checkpoints), comparison, report)

    @staticmethod
    def require() -> None:
        """Raises `MissingExtra` where a package is not installed that this takes, before anything was computed."""
        require_report()

    def lines(self) -> list[str]:
        """Returns the comparison, its conclusions, and where checkpoints and report are, as texts to print."""
        places = [f"checkpoint  {checkpoint.path}" for checkpoint in self.checkpoints]
        return [
            comparison_table(self.comparison),
            conclusions(self.comparison),
            *places,
            f"report      {self.report}",
        ]
