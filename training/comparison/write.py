"""The comparison of a study as files: report, tables, drawings, all figures, every answer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from metaprobe.checkpoints import Checkpoint
from metaprobe.eval.compare_items import write_item_table
from metaprobe.eval.plain import plain
from metaprobe.eval.results import Comparison, Place, PolicyResult
from metaprobe.records.extras import require
from metaprobe.training.comparison.compare import comparison
from metaprobe.training.crossfit.evidence import load_runs
from metaprobe.training.crossfit.study import Study


def require_report() -> None:
    """Raises `MissingExtra` now rather than after minutes of collecting and fitting."""
    for module in ("pyarrow", "lightgbm", "sklearn", "jinja2", "matplotlib"):
        require(module, "train,report")


def write_comparison(
    folder: str | Path,
    of: Study,
    *,
    choices: tuple[PolicyResult, ...] = (),
    notes: Sequence[str] = (),
    probes: Mapping[str, Checkpoint] | None = None,
    command: str,
) -> tuple[Comparison, Path]:
    """The report with its tables as CSV and its drawings as SVG; all figures as comparison.json; the item table.

    `probes`: the checkpoints of the study's probes, by their methods' names, so that the report says what they read.
    Returns the comparison and the report's path.
    """
    require_report()
    from metaprobe.eval.report.render import report_files  # training alone needs neither templates nor plots

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
    texts = {**report_files(found), "comparison.json": json.dumps(figures(found), indent=2) + "\n"}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    write_item_table(folder, of.evidence.table, of.fits.methods)
    return found, folder / "report.html"


def _place(checkpoint: Checkpoint) -> Place:
    """Layer and position that the checkpoint of a probe of one layer reads."""
    contract = checkpoint.manifest.contract
    return contract["layer"], contract["position"]


IN_ITEMS = ("y", "probability", "ranking")
"""What has an entry for every answer, and stands in the item table."""


def figures(found: Comparison) -> dict[str, Any]:
    """Everything a comparison says, ready for JSON, but for what is in the item table. Not a number is null."""

    def shown(value: Any) -> dict[str, Any]:
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name not in (*IN_ITEMS, "methods")}

    return {
        "answers": len(found.y),
        "base_rate": found.base_rate,
        "methods": {method.name: shown(method) for method in found.methods},
        **shown(found),
    }
