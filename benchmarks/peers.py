"""Peers that predict.py and probes_speed.py leave out: LightGBM itself, lm-polygraph, probelab; equal answers asserted.

    pip install --no-deps --target PEERS lm-polygraph probelab
    python -m benchmarks.peers --peers PEERS --json peers.json

Each comparison is timed in turns in one run, one thread. LightGBM: the trees of a checkpoint, asked natively and as the
graph that is exported. lm-polygraph: its estimator on log-probabilities that are there already, beside ours and beside
a whole verdict. probelab: its logistic probe, a fit a layer, fold and penalty, against all of them at once. What is not
installed is skipped, and said so.
"""

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np

from benchmarks.predict import TOKENS, Row, compared, predictor, random_logprobs, random_trees, without_packages
from metaprobe.checkpoints.checkpoint import GraphSession

BATCH = 2000
SAME = 1e-5
"""Largest difference between the exported graph and the model it came from."""
SAME_AUROC = 2e-3
"""Largest difference in AUROC of solvers that stop at tolerances of their own."""


def lightgbm_rows(turns: int) -> Iterator[Row]:
    """The same 300 trees, one row and many, natively and as the exported graph."""
    X, booster, graph = random_trees(BATCH)
    session = GraphSession(graph)
    for what, rows, calls in (("one row", X[:1], 1000), (f"{BATCH:,} rows", X, 3)):
        inputs, wide = {"features": rows}, rows.astype(np.float64)
        difference = float(np.abs(session.run(inputs)["correct"][:, 0] - booster.predict(wide)).max())
        assert difference <= SAME, difference
        what = f"300 trees, {what} of {X.shape[1]} features (largest difference {difference:.1e})"
        ours, theirs = partial(session.run, inputs), partial(booster.predict, wide, num_threads=1)
        yield compared(what, ours, "native LightGBM", theirs, "difference <= 1e-5", turns=turns, calls=calls)


def polygraph_rows(turns: int) -> Iterator[Row]:
    """lm-polygraph's perplexity, which is the mean log-probability, of one answer."""
    without_packages("lm_polygraph", "lm_polygraph.estimators", "lm_polygraph.utils")
    estimator = importlib.import_module("lm_polygraph.estimators.perplexity").Perplexity()
    logprobs = random_logprobs(np.random.default_rng(5))
    theirs = partial(estimator, {"greedy_log_likelihoods": [logprobs]})

    def mean() -> float:
        return float(np.asarray(logprobs, dtype=np.float32).mean())

    assert abs(mean() + float(theirs()[0])) < 1e-6
    what, other = f"mean of {TOKENS} log-probabilities", "lm-polygraph Perplexity"
    yield compared(what, mean, other, theirs, "", turns=turns, calls=2000)
    with tempfile.TemporaryDirectory() as folder:
        judge = predictor(Path(folder) / "checkpoint")
    what, verdict = f"a verdict on {TOKENS} log-probabilities", partial(judge.predict, logprobs)
    yield compared(what, verdict, other, theirs, "none: one simpler score", turns=turns, calls=2000)


def probelab_row(probelab: ModuleType, layers: int) -> Row:
    """Held-out scores of every layer, fold and penalty; microseconds are those of the whole."""
    import torch

    from benchmarks.probes_speed import FOLDS, ROWS, WIDTH, C, aurocs, batched, folds_of, made_up

    states, y, groups = made_up(layers)
    fold = folds_of(groups)

    def theirs() -> np.ndarray:
        found = np.empty((layers, ROWS, len(C)))
        for layer in range(layers):
            X = torch.from_numpy(states[:, layer].astype(np.float32))
            for number in range(FOLDS):
                learn, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
                for column, c in enumerate(C):
                    probe = probelab.probes.Logistic(C=c).fit(
                        probelab.Activations(X[learn], dims="bh"), y[learn].tolist()
                    )
                    with torch.no_grad():
                        found[layer, test, column] = probe(X[test]).numpy()
        return found

    batched(states[:, :1], y, fold)  # torch starts its threads
    start = time.perf_counter()
    ours = batched(states, y, fold)
    between = time.perf_counter()
    plain = theirs()
    end = time.perf_counter()
    difference = float(np.abs(aurocs(y, fold, ours) - aurocs(y, fold, plain)).max())
    assert difference <= SAME_AUROC, difference
    what = f"probes on ({ROWS}, {layers}, {WIDTH}), {FOLDS} folds x {len(C)} penalties (AUROC within {difference:.1e})"
    mine, other = (between - start) * 1e6, (end - between) * 1e6
    return Row(what, mine, mine, "probelab Logistic, a fit each", other, other / mine, "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed beside native LightGBM, lm-polygraph and probelab.")
    parser.add_argument("--peers", type=Path, help="folder into which lm-polygraph and probelab were installed")
    parser.add_argument("--turns", type=int, default=5, help="the best of so many turns counts (default: 5)")
    parser.add_argument("--layers", type=int, default=3, help="layers that probelab fits (default: 3)")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    if options.peers:
        sys.path.append(str(options.peers))
    rows = list(lightgbm_rows(options.turns))
    install = "pip install --no-deps --target PEERS lm-polygraph probelab, then --peers PEERS"
    try:
        rows += polygraph_rows(options.turns)
    except ModuleNotFoundError as error:
        print(f"lm-polygraph is skipped ({error}): {install}")
    try:
        rows.append(probelab_row(importlib.import_module("probelab"), options.layers))
    except ModuleNotFoundError as error:
        print(f"probelab is skipped ({error}): {install}")
    for row in rows:
        print(f"{row.what}: {row.ours_us:.1f} us; {row.other}: {row.other_us:.1f} us, {row.ratio:.2f} times")
    if options.json:
        options.json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
