"""The learned choice after a direct answer, as a checkpoint: accept it, or ask again step by step."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, Training, check_target
from metaprobe.eval.compare import PolicyOutcomes, policy_results
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.results import PolicyResult
from metaprobe.routing.ask_again import ACCEPT, AGAIN, INPUT, INPUTS, KIND, POINT, REQUIRED
from metaprobe.training.ask_again.data import Paired, pair_variants
from metaprobe.training.ask_again.fit import LEARNED, ORACLE, PairedModel, evaluate_choice, fit_pair
from metaprobe.training.checkpoint import Export, write_checkpoint
from metaprobe.training.evidence import load_runs
from metaprobe.training.heads import linear_graph
from metaprobe.training.options import ReplaceOptions


def export_choice(
    path: str | Path,
    data: Paired,
    policies: Sequence[PolicyOutcomes],
    learned: NDArray[np.float64],
    *,
    seed: int,
    command: str,
) -> Checkpoint:
    """Fit on all items and write the checkpoint that `routing.ask_again.LearnedChoice` loads."""
    X = data.X
    pair = fit_pair(X, data.correct)
    probability = pair.probability(X)
    weights = cluster_weights(data.groups)
    correct = {policy.name: policy.correct for policy in policies}
    gains = {
        name: mean_interval(correct[LEARNED] - other, weights)
        for name, other in correct.items()
        if name not in (LEARNED, ORACLE)
    }
    metrics = {
        "accuracy": mean_interval(correct[LEARNED], weights),
        **{f"accuracy gain over {name}": gain for name, gain in gains.items()},
        "auroc_direct": interval(auroc, data.correct[:, 0], learned[:, 0], weights),
        "auroc_step_by_step": interval(auroc, data.correct[:, 1], learned[:, 1], weights),
    }
    return write_checkpoint(
        path,
        Export(
            kind=KIND,
            title="Choice: accept a direct answer, or ask again step by step",
            summary=(
                "P(right) of the direct answer at hand and of a step-by-step answer, from what is known after the "
                "direct one: stated difficulty and confidence, mean, minimum and first log-probability, length. Ask "
                "again where the gain exceeds `price`."
            ),
            graph=_graph(pair),
            input_name=INPUT,
            inputs=X,
            expected={ACCEPT: probability[:, 0], AGAIN: probability[:, 1]},
            contract={"point": POINT, "actions": [ACCEPT, AGAIN], "signals": list(INPUTS), "required": list(REQUIRED)},
            generator=data.generator,
            training=Training(data.fingerprint, len(data), len(set(data.groups)), seed, command, data.regrouped),
            calibration="logistic regression",
            calibrated_on="all rows, with the model itself",
            metrics=metrics,
            audits=[
                (f"beats {name}", g.low > 0, f"accuracy gain {g.estimate:+.3f} [{g.low:+.3f}, {g.high:+.3f}]")
                for name, g in gains.items()
            ],
            thresholds={"price": 0.0},
        ),
    )


def _graph(pair: PairedModel) -> bytes:
    return linear_graph(
        input_name=INPUT,
        mean=pair.mean,
        scale=pair.scale,
        weights=pair.weights,
        intercept=pair.intercept,
        outputs=[ACCEPT, AGAIN],
        impute=True,
    )


def train_choice(
    out: str | Path,
    runs: Sequence[str | Path],
    *,
    seed: int = 0,
    folds: int = 5,
    command: str = "",
    replace: bool = False,
    pins: str | Path | None = None,
    log: str | None = None,
) -> tuple[Checkpoint, tuple[PolicyResult, ...]]:
    """The learned choice between accepting a direct answer and asking again, beside the fixed thresholds.

    `replace`, `pins`, `log`: what of a checkpoint in `out` may be replaced, as in `ReplaceOptions`.
    """
    with ReplaceOptions(replace=replace, pins=pins, log=log).replacing():
        check_target(out, KIND)
        data = pair_variants(load_runs(runs))
        policies, learned = evaluate_choice(data, folds=folds, seed=seed)
        checkpoint = export_choice(out, data, policies, learned, seed=seed, command=command)
    return checkpoint, policy_results(data.groups, policies, seed=seed)
