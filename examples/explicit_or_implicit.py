"""Does a model's stated confidence distinguish right from wrong answers better than its log-probabilities do?

python examples/explicit_or_implicit.py [RUNS ...] [--out FOLDER] [--folds N]   (extra `report`)

Each answer is judged by models that saw no answer of its group. Without runs, recorded ones of SmolLM2-135M are read.
"""

from pathlib import Path

import click

from metaprobe.eval.report.write import comparison_table
from metaprobe.training.recipes.compare_runs import require_report, write_comparison
from metaprobe.training.study import study

RUNS = Path(__file__).parent.parent / "recorded" / "smollm2-metacog-eval"


@click.command()
@click.argument("runs", type=click.Path(exists=True, path_type=Path), nargs=-1)
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/examples/comparison"))
@click.option("--folds", default=5)
def main(runs: tuple[Path, ...], out: Path, folds: int) -> None:
    require_report()  # before the minute that the study takes
    found = study(runs or [RUNS], folds=folds, hidden=False)
    comparison, report = write_comparison(out, found, command="examples/explicit_or_implicit.py")
    print(comparison_table(comparison))
    stated = next((m for m in comparison.methods if m.name == "stated confidence"), None)
    if stated is None:
        print("No answer in these runs states a confidence.")
    for method in comparison.methods:
        if method.diff_stated is not None and method.diff_stated.low > 0:
            gain = method.diff_stated
            print(f"{method.name} beats it by {gain.estimate:+.3f} AUROC [{gain.low:+.3f}, {gain.high:+.3f}]")
    print(f"The whole report: {report}")


if __name__ == "__main__":
    main()
