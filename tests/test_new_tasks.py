"""A predictor for tasks that the runs do not hold stays the free number, and carries over more."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import made_up

from metaprobe.cli import main
from metaprobe.eval.audits import AuditInputs, run_audits
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.features import TERM_NAMES
from metaprobe.probes.quality import QualityPredictor
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import final_roles
from metaprobe.training.methods import LADDER, LogprobLadder
from metaprobe.training.recipes.train_quality import write_quality
from metaprobe.training.study import out_of_domain, study_of

NAMES = ("full.slope", *TERM_NAMES)


@pytest.fixture(scope="module")
def several() -> Evidence:
    """Four tasks: one term says a little of right and wrong in all of them, another more, but its sign turns. A feature
    tells the task, so that trees can learn which sign is whose."""
    evidence, rng = made_up(2400), np.random.default_rng(1)
    n = len(evidence.table)
    task, y = rng.integers(0, 4, n), evidence.table.y
    known = y - 0.5 + rng.normal(size=n)
    told = 2 * (y - 0.5) * np.where(task % 2, 1, -1) + rng.normal(size=n)
    features = rng.normal(size=(n, len(NAMES))).astype(np.float32)
    features[:, 0] += 10 * task
    features[:, NAMES.index("terms.mean")] = -known
    features[:, NAMES.index("terms.length")] *= 0.1
    features[:, NAMES.index("terms.first")] = 1.2 * told
    table = replace(evidence.table, tasks=np.array([f"task {t}" for t in task]))
    return replace(evidence, table=table, features=features, feature_names=NAMES, states=None)


@pytest.mark.slow
def test_the_free_number_alone_carries_over_more_and_knows_less_at_home(several: Evidence) -> None:
    roles = final_roles(several.table.groups.tolist(), several.table.y)
    rows = roles.calibration
    away, home = {}, {}
    for recipe in (LogprobLadder(), LogprobLadder(new_tasks=True)):
        found = out_of_domain(several, recipe)
        assert found is not None
        away[recipe.new_tasks] = found.mean.estimate
        score = recipe.fit(several, roles, seed=0).score
        home[recipe.new_tasks] = float(auroc(several.table.y[rows], score(rows)))
    assert away[True] > away[False] + 0.02
    assert home[True] < home[False]


def test_the_exported_predictor_is_of_the_recipe_that_was_judged_and_knows_no_run(tmp_path: Path) -> None:
    recipe = LogprobLadder(new_tasks=True)
    full = replace(made_up(450), states=None)
    tasks = np.array([f"task {i % 3}" for i in range(len(full.table))])
    full = replace(full, table=replace(full.table, tasks=tasks))
    found = study_of(full, folds=2, ladder=recipe)
    assert found.ladder is recipe
    checkpoint = write_quality(tmp_path / "c", {"correct": found}, command="")
    roles = final_roles(full.table.groups.tolist(), full.table.y, seed=0)
    judged = recipe.fit(full, roles, seed=0)
    width = len(checkpoint.manifest.contract["features"])
    ours = checkpoint.session.run({"features": full.features[:, -width:]})["correct"].ravel()
    theirs = judged.score(np.arange(len(full.table)))
    # Calibration never turns the order round.
    assert (np.diff(ours[np.argsort(theirs, kind="stable")]) > -1e-6).all()
    assert found.fits[LADDER].ranking.shape == (len(full.table),)
    # A threshold of these runs would say nothing of another task's answers.
    assert checkpoint.manifest.thresholds == {}
    assert checkpoint.manifest.flagging == ()
    assert checkpoint.manifest.contract["base_rates"]["runs"] == {}
    verdict = QualityPredictor(checkpoint).predict([-0.1, -0.5, -0.2])
    assert (verdict.flagged, "is not known" in verdict.reason) == (None, True)


def test_one_task_is_enough_and_the_card_says_that_none_could_be_left_out(several: Evidence) -> None:
    n = len(several.table)
    one = replace(several, table=replace(several.table, tasks=np.full(n, "sums")))
    recipe = LogprobLadder(new_tasks=True)
    assert out_of_domain(one, recipe) is None
    assert recipe.fit(one, final_roles(one.table.groups.tolist(), one.table.y), seed=0).selection_auroc > 0.6
    report = run_audits(AuditInputs(name="learned", table=one.table, score=np.arange(n) / n))
    assert any(line.startswith("other domains: ") and "a fit without each" in line for line in report.skipped)


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--dask", "tcp://127.0.0.1:1"], "Dask cluster"), (["--target", "instruction"], "instruction")],
)
def test_the_command_line_names_what_does_not_go_with_new_tasks(
    options: list[str], named: str, recorded_runs: Path, tmp_path: Path
) -> None:
    line = ["train", "quality", str(recorded_runs), "--new-tasks", "--out", str(tmp_path / "c"), *options]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 2
    assert named in result.output
