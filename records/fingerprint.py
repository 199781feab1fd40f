"""One number for what a model was trained on."""

import hashlib
import json
from collections.abc import Iterable

import numpy as np

from metaprobe.records.types import Run


def fingerprint(runs: Iterable[Run]) -> str:
    """SHA-256 (hex) over ids, groups, log-probabilities, labels and statements of the runs or of a run store.

    The order of runs, and so of shards, does not matter; texts do not either: a store kept without them has the same.
    """
    digests = sorted((run.id, _digest(run)) for run in runs)
    return hashlib.sha256(b"".join(digest for _, digest in digests)).hexdigest()


def _digest(run: Run) -> bytes:
    """Lengths stand before values, so that no two runs write the same bytes."""
    facts = [
        [run.id, run.item.id, run.item.group],
        [[call.id, -1 if call.logprobs is None else len(call.logprobs)] for call in run.calls],
        [[label.call_id, label.name, float(label.value), label.source] for label in run.labels],
        [[s.call_id, s.kind, None if s.value is None else float(s.value)] for s in run.statements],
    ]
    if any(call.segments for call in run.calls):  # so that runs without them have the fingerprint that they always had
        facts.append([[[s.kind, s.start, s.end] for s in call.segments] for call in run.calls])
    if readers := [call.reader for call in run.calls if call.reader]:
        facts.append(readers)
    content = json.dumps(facts).encode()
    digest = hashlib.sha256(len(content).to_bytes(8, "little") + content)
    for call in run.calls:
        if call.logprobs is not None:
            digest.update(np.ascontiguousarray(call.logprobs, dtype="<f4").tobytes())
    return digest.digest()
