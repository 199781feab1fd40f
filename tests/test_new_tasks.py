"""Settings for tasks that the runs do not hold, chosen by tasks left out, carry over what the usual ones do not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import made_up

from metaprobe.cli import main
from metaprobe.eval.audits.run_audits import AuditInputs, run_audits
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.training.common.roles import final_roles
from metaprobe.training.common.trees import fit_trees
from metaprobe.training.crossfit.audit import out_of_domain
from metaprobe.training.crossfit.methods import LADDER, Evidence, FeatureTrees, LogprobLadder
from metaprobe.training.crossfit.study import study_of
from metaprobe.training.quality.fit import QualityHead, export_quality

NAMES = ("full.mean", "full.slope", "full.var")


@pytest.fixture(scope="module")
def several() -> Evidence:
    """Four tasks: the mean says a little of right and wrong in all of them, the variance more, and the sign turns."""
    evidence, rng = made_up(2400), np.random.default_rng(1)
    n = len(evidence.table)
    task, y = rng.integers(0, 4, n), evidence.table.y
    known = y - 0.5 + rng.normal(size=n)
    told = (y - 0.5) * np.where(task % 2, 1, -1) + rng.normal(size=n)
    features = np.stack([known, task + 0.1 * rng.normal(size=n), 1.2 * told], axis=1).astype(np.float32)
    table = replace(evidence.table, tasks=np.array([f"task {t}" for t in task]))
    return replace(evidence, table=table, features=features, feature_names=NAMES, states=None)


def test_settings_of_trees_chosen_by_tasks_left_out_carry_over_more_and_know_less_at_home(
    several: Evidence,
) -> None:
    roles = final_roles(several.table.groups.tolist(), several.table.y)
    rows = roles.calibration
    away, home = {}, {}
    for recipe in (FeatureTrees(), FeatureTrees(new_tasks=True)):
        found = out_of_domain(several, recipe)
        assert found is not None
        away[recipe.new_tasks] = found.mean.estimate
        score = recipe.fit(several, roles, seed=0).score
        home[recipe.new_tasks] = float(auroc(several.table.y[rows], score(rows)))
    assert away[True] > away[False] + 0.02
    assert home[True] < home[False]


def test_the_exported_predictor_is_of_the_recipe_that_was_judged_and_knows_no_run(tmp_path: Path) -> None:
    recipe = LogprobLadder(new_tasks=True)
    full = replace(made_up(900), states=None)
    tasks = np.array([f"task {i % 3}" for i in range(len(full.table))])
    full = replace(full, table=replace(full.table, tasks=tasks))
    found = study_of(full, folds=2, ladder=recipe)
    assert found.ladder is recipe
    head = QualityHead(full, found.fits, ladder=recipe)
    checkpoint = export_quality(tmp_path / "c", {"correct": head}, seed=0, command="")
    judged = recipe.fit(full, head.roles(0), seed=0)
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


def test_one_task_of_one_dimension_is_refused_with_what_there_is(several: Evidence) -> None:
    one = replace(several, table=replace(several.table, tasks=np.full(len(several.table), "sums")))
    roles = final_roles(one.table.groups.tolist(), one.table.y)
    with pytest.raises(RecordError, match=r"two of 100 answers.*there are: d \d+"):
        FeatureTrees(new_tasks=True).fit(one, roles, seed=0)
    with pytest.raises(RecordError, match=r"takes two tasks; all answers are of d$"):
        LogprobLadder(new_tasks=True).fit(made_up(300), final_roles(range(300), made_up(300).table.y), seed=0)


def test_a_higher_mean_never_lowers_a_score_whatever_the_runs_say(several: Evidence) -> None:
    roles = final_roles(several.table.groups.tolist(), several.table.y)
    turned = several.features * np.array([-1, 1, 1], np.float32)
    trees = fit_trees(turned, several.table.y, roles, names=NAMES, domain=several.table.tasks)
    for row in turned[:20]:
        rising = np.tile(row, (50, 1))
        rising[:, NAMES.index("full.mean")] = np.linspace(-3, 3, 50)
        assert (np.diff(trees.score(rising)) >= 0).all()


def test_of_two_tasks_none_can_be_left_out_and_the_card_says_what_it_takes(several: Evidence) -> None:
    tasks = np.array([f"task {int(name[-1]) % 2}" for name in several.table.tasks])
    two = replace(several, table=replace(several.table, tasks=tasks, groups=np.char.add(several.table.groups, tasks)))
    assert out_of_domain(two, FeatureTrees(new_tasks=True)) is None
    report = run_audits(AuditInputs(name="trees", table=two.table, score=np.arange(len(tasks)) / len(tasks)))
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


def test_two_tasks_are_refused_before_anything_is_fitted(tmp_path: Path) -> None:
    runs = Path(__file__).parent.parent / "recorded"
    stores = [str(runs / f"smollm2-135m-{task}") for task in ("places", "arithmetic")]
    result = CliRunner().invoke(main, ["train", "quality", *stores, "--new-tasks", "--out", str(tmp_path / "c")])
    assert result.exit_code == 1
    assert "take 3 tasks" in result.output
    assert "arithmetic (1291), places (1200)" in result.output


def test_a_task_of_a_few_answers_is_no_domain_and_dimensions_tell_them_apart_then(several: Evidence) -> None:
    n = len(several.table)
    tasks = np.where(np.arange(n) < 5, "odd", "sums")
    dimensions = np.array([f"dimension {i % 3}" for i in range(n)])
    table = replace(several.table, tasks=tasks, dimensions=dimensions)
    for recipe in (LogprobLadder(new_tasks=True), FeatureTrees(new_tasks=True)):
        domain = recipe.domain(table)
        assert domain is not None
        assert domain.tolist() == dimensions.tolist()
