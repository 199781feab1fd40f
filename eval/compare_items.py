"""The item table: a row for every answer and method, for anybody's own analysis."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.eval.compare import Judged
from metaprobe.eval.table import AnswerTable
from metaprobe.records.extras import require


def write_item_table(folder: str | Path, table: AnswerTable, judged: Sequence[Judged]) -> tuple[Path, Path]:
    """items.csv and items.parquet in `folder`, with the same rows; an answer's methods stand together.

    `score` orders the answers, `probability` is calibrated; both come from folds that had not seen the answer's group.
    Where a method says nothing of an answer, which its `coverage` counts, they are those of its median answer.
    """
    arrow: Any = require("pyarrow", "fit")
    n, k = len(table), len(judged)

    def each(values: Any) -> Any:
        return np.repeat(np.asarray(values), k)

    rows = arrow.table(
        {
            "call_id": each(table.call_ids),
            "item": each(table.items),
            "group": each(table.groups),
            "dimension": each(table.dimensions),
            "level": each(table.levels),
            "variant": each(table.variants),
            "model": each(table.models),
            "y": each(table.y),
            "method": np.tile(np.array([method.name for method in judged]), n),
            "family": np.tile(np.array([method.family for method in judged]), n),
            "score": np.stack([method.ranking for method in judged], axis=1).ravel(),
            "probability": np.stack([method.probability for method in judged], axis=1).ravel(),
        }
    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "items.csv", folder / "items.parquet"
    require("pyarrow.csv", "fit").write_csv(rows, str(paths[0]))
    require("pyarrow.parquet", "fit").write_table(rows, str(paths[1]))
    return paths
