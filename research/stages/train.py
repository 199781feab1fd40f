"""From recorded runs to a checkpoint of kind `stages`: heads for a system's own decisions, used where they win."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, Training
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Run
from metaprobe.training.common.graphs import linear_graph
from metaprobe.training.common.write_checkpoint import Export, write_checkpoint
from research.stages.data import Cycles, StageData
from research.stages.fit import QUANTILE, FittedStages, fit_stages, point_of_answers, rows_of
from research.stages.play import SEEDS, cross_played, value_gains, verdict
from research.stages.policy import BEYOND, INPUT, KIND, OUTPUTS, SYSTEM_POINTS, TOKEN_PRICE
from research.stages.read import stage_data
from research.stages.state import COLUMNS, READS
from research.stages.ways import LEARNED, ORACLE, Ways

DEFAULT_PRICE = 0.02
"""Share of right answers that 1,000 generated tokens must bring: a point of accuracy for 500 tokens."""
ASKED_FOR = "it was asked for, though "


@dataclass(frozen=True, slots=True)
class PointStudy:
    """One point's head on held-out groups."""

    ways: Ways
    gains: Mapping[str, Interval]
    """Other way -> by how much the head's value is above its, paired."""
    used: bool
    why: str
    """A clause."""


def study_stages(
    data: StageData,
    *,
    token_price: float = DEFAULT_PRICE,
    use: Collection[str] = (),
    folds: int = 5,
    seeds: int = SEEDS,
    seed: int = 0,
    on_step: Callable[[str], None] = lambda _: None,
) -> dict[str, PointStudy]:
    """Point -> what its head is worth. `use`: points whose head is to be used though it may not win.

    Where the learned selection is used, the continue head is studied with it.
    """
    points = SYSTEM_POINTS[data.system]
    if strange := sorted(set(use) - set(points)):
        raise RecordError(f"no head for {', '.join(strange)} in these runs; there are: {', '.join(points)}")

    def studied(used: Collection[str]) -> dict[str, PointStudy]:
        played = cross_played(data, token_price=token_price, used=used, folds=folds, seeds=seeds, seed=seed)
        return {point: _study(ways, data, token_price, point in use) for point, ways in played.items()}

    on_step(f"{seeds} x {folds} folds by group")
    found = studied(())
    if {"iterate", "select"} <= found.keys() and found["select"].used:
        on_step("and again with the learned selection")
        found = {**found, "iterate": studied(("select",))["iterate"]}
    return found


def _study(ways: Ways, data: StageData, token_price: float, asked_for: bool) -> PointStudy:
    gains = value_gains(ways, data.groups, token_price)
    wins, why = verdict(gains)
    return PointStudy(ways, gains, wins or asked_for, why if wins or not asked_for else ASKED_FOR + why)


def train_stages(
    path: str | Path,
    runs: Sequence[Run],
    *,
    token_price: float = DEFAULT_PRICE,
    use: Collection[str] = (),
    folds: int = 5,
    seeds: int = SEEDS,
    seed: int = 0,
    command: str = "",
    on_step: Callable[[str], None] = lambda _: None,
) -> tuple[Checkpoint, dict[str, PointStudy]]:
    """Fit on all problems and write what `research.stages.policy.StagePolicy` loads; and what its heads are worth.

    A head that does not win on held-out groups is exported and not used, unless it is in `use`. Raises `RecordError`
    where the runs are of several systems, or too few of them tried everything.
    """
    data = stage_data(runs)
    studies = study_stages(data, token_price=token_price, use=use, folds=folds, seeds=seeds, seed=seed, on_step=on_step)
    on_step("fit on all problems")
    fitted = fit_stages(data, used=[point for point, study in studies.items() if study.used], seed=seed)
    return write_stages(path, data, fitted, studies, token_price=token_price, seed=seed, command=command), studies


def write_stages(
    path: str | Path,
    data: StageData,
    fitted: FittedStages,
    studies: Mapping[str, PointStudy],
    *,
    token_price: float = DEFAULT_PRICE,
    seed: int = 0,
    command: str = "",
) -> Checkpoint:
    """The checkpoint of heads that were fitted and studied."""
    system = data.system
    names = [name for point in studies for name in OUTPUTS[point]]
    # The golden rows lack something now and then, as the answers do.
    inputs = rows_of(data, point_of_answers(system))[:64]
    used = [point for point, study in studies.items() if study.used]
    return write_checkpoint(
        path,
        Export(
            kind=KIND,
            title=f"Stages of {system}: {', '.join(studies)}",
            summary=(
                f"Heads for the decisions that {system} takes while it runs. In use: {', '.join(used) or 'none'}; at "
                "other points the paper's rule decides. A head is used where its value, the share of right answers "
                f"less {token_price:g} for every 1,000 tokens, was above that of the paper's rule and of every simple "
                "way on groups that it was not fitted on."
            ),
            graph=linear_graph(
                input_name=INPUT,
                mean=fitted.mean,
                scale=fitted.scale,
                weights=np.stack([fitted.heads[name].weights for name in names], axis=1),
                intercept=np.array([fitted.heads[name].intercept for name in names]),
                outputs=names,
                impute=True,
            ),
            input_name=INPUT,
            inputs=inputs,
            expected={name: fitted.output(name, inputs) for name in names},
            contract={
                "system": system,
                "columns": list(COLUMNS),
                "points": {point: {"used": study.used, "why": study.why} for point, study in studies.items()},
                "tokens": dict(fitted.tokens),
                "quantile": QUANTILE,
                **({BEYOND: data.beyond} if isinstance(data, Cycles) else {}),
            },
            generator=data.generator,
            training=Training(data.fingerprint, len(data), len(set(data.groups)), seed, command, data.regrouped),
            calibration="logistic regression, shrunk; the budget by quantile regression",
            calibrated_on="all rows, with the models themselves",
            metrics=_metrics(studies, data),
            audits=[
                _audit(point, way, gain)
                for point in used
                for way, gain in studies[point].gains.items()
                if way != ORACLE
            ],
            thresholds={TOKEN_PRICE: token_price},
            support={point: _support(rows_of(data, point), READS[point]) for point in studies},
            heads=[f"{p}: {'used' if s.used else 'NOT used'}, as {s.why}" for p, s in studies.items()],
        ),
    )


def _metrics(studies: Mapping[str, PointStudy], data: StageData) -> dict[str, Interval]:
    weights = cluster_weights(list(data.groups))
    found = {}
    for point, study in studies.items():
        mine = study.ways[LEARNED]
        found[f"{point}: accuracy"] = mean_interval(mine.correct, weights)
        found[f"{point}: tokens"] = mean_interval(mine.tokens, weights)
        found |= {f"{point}: value gain over {way}": gain for way, gain in study.gains.items()}
    return found


def _audit(point: str, way: str, gain: Interval) -> tuple[str, bool, str]:
    return f"{point} beats {way}", gain.low > 0, f"value {gain.estimate:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"


def _support(X: NDArray[np.float32], names: Sequence[str]) -> dict[str, Any]:
    """Column -> least and highest value, and the share of the rows that have one; see `policy.Seen`."""
    found = {}
    for name in names:
        column = X[:, COLUMNS.index(name)].astype(np.float64)
        known = column[np.isfinite(column)]
        ends = [float(known.min()), float(known.max())] if known.size else [0.0, 0.0]
        found[name] = [*ends, known.size / len(column)]
    return found
