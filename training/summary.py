"""The figures of collected stores, one after another: what was collected otherwise is never put together."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metaprobe.eval.systems.summary import summarize
from metaprobe.records.store import RunStore
from metaprobe.training.collect import SETTINGS_FILE

SHOWN = ("task", "model", "policy", "signals")


def summarize_stores(folders: Sequence[Path], *, resamples: int = 1000, seed: int = 0) -> list[dict[str, Any]]:
    """For each store and each system and variant in it, its figures beside what it was collected with."""
    found = []
    for folder in folders:
        path = folder / SETTINGS_FILE
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        with_ = {name: settings[name] for name in SHOWN if name in settings}
        summaries = summarize(RunStore(folder), resamples=resamples, seed=seed)
        found += [{"store": str(folder), **with_, **summary} for summary in summaries]
    return found
