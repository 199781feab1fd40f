"""The comparison of a study as files: report, tables, drawings, all figures, every answer."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from metaprobe.checkpoints import Checkpoint
from metaprobe.eval.compare import BEST_BASELINE
from metaprobe.eval.compare_items import write_item_table
from metaprobe.eval.results import Comparison, Place, PolicyResult
from metaprobe.records.extras import require
from metaprobe.training.comparison.from_folds import comparison
from metaprobe.training.comparison.own_scores import own_methods
from metaprobe.training.crossfit.evidence import load_runs
from metaprobe.training.crossfit.methods import BLEND, Evidence, GivenScore
from metaprobe.training.crossfit.study import Study, study
from metaprobe.training.options import CompareOptions


def require_report() -> None:
    """Raises `MissingExtra` now rather than after minutes of collecting and fitting."""
    for module in ("pyarrow", "lightgbm", "sklearn", "jinja2", "matplotlib"):
        require(module, "train,report")


def compare(stores: Sequence[str | Path], options: CompareOptions) -> Comparison:
    """Returns what a comparison of every method on these stores finds, and writes its report into the folder `out`."""
    require_report()
    given = [options.scores] if isinstance(options.scores, str | Path) else options.scores
    files = [Path(path) for path in given]

    def own(evidence: Evidence, names: Sequence[str]) -> list[GivenScore]:
        known = {call.id for run in load_runs(stores) for call in run.calls} if files else set()
        return own_methods(files, evidence.table, known, (*names, BLEND, BEST_BASELINE))

    found = study(
        stores,
        own=own,
        bare=True,
        target=options.target,
        stage=options.stage,
        agent=options.agent,
        folds=options.folds,
        seed=options.seed,
        on_step=options.on_step,
    )
    options.on_step("report")
    comparison, _ = write_comparison(options.out, found, command=options.recorded("compare"))
    return comparison


def write_comparison(
    folder: str | Path,
    of: Study,
    *,
    choices: tuple[PolicyResult, ...] = (),
    notes: Sequence[str] = (),
    probes: Mapping[str, Checkpoint] | None = None,
    command: str,
) -> tuple[Comparison, Path]:
    """Writes the report, its tables as CSV and LaTeX, its drawings as SVG and PDF, comparison.json and the item table.

    `probes`: the checkpoints of the study's probes, by their methods' names, so that the report says what they read.
    Returns the comparison and the report's path.
    """
    require_report()
    from metaprobe.eval.report.paper_files import paper_files  # training alone needs neither templates nor plots
    from metaprobe.eval.report.render import report_files

    found = comparison(
        of.evidence,
        of.methods,
        of.fits,
        runs=load_runs(of.stores),
        target=of.target,
        choices=choices,
        notes=notes,
        shipped={name: _place(checkpoint) for name, checkpoint in (probes or {}).items()},
        command=command,
        seed=of.seed,
    )
    folder = Path(folder)
    texts = {**report_files(found), "comparison.json": json.dumps(found.to_dict(), indent=2) + "\n"}
    for name, content in {**{name: text.encode() for name, text in texts.items()}, **paper_files(found)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    write_item_table(folder, of.evidence.table, of.fits.methods)
    return found, folder / "report.html"


def _place(checkpoint: Checkpoint) -> Place:
    """Layer and position that the checkpoint of a probe of one layer reads."""
    contract = checkpoint.manifest.contract
    return contract["layer"], contract["position"]
