"""A method goes by the strongest single control on the same answers, not by the one that each fold chose."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import made_up
from tiny import tiny_quality

from metaprobe.checkpoints import Audit, load_checkpoint
from metaprobe.eval.compare import BEST_BASELINE, Judged
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.training.audit import audit_method, within_runs
from metaprobe.training.controls import RUN_IDENTITY
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import outer_folds
from metaprobe.training.methods import LADDER, MEAN_LOGPROB, USUAL_LADDER
from metaprobe.training.study import CrossFit

PROMPT = "prompt TF-IDF"


def planted(evidence: Evidence) -> CrossFit:
    """The learned method beats the control that the folds chose (the prompt's words), and loses to the free mean."""
    table, rng = evidence.table, np.random.default_rng(0)
    mean = np.array([values.mean() for values in table.logprobs], dtype=np.float64)
    learned = mean + 0.6 * mean.std() * rng.normal(size=len(mean))
    chosen = mean + 3 * mean.std() * rng.normal(size=len(mean))
    scores = {LADDER: learned, MEAN_LOGPROB: mean, PROMPT: chosen, BEST_BASELINE: chosen}
    judged = tuple(Judged(name, "plain", score, score, 1.0) for name, score in scores.items())
    roles = tuple(outer_folds(table.groups.tolist(), table.y))
    return CrossFit(judged, (PROMPT,) * len(roles), roles, {})


@pytest.mark.filterwarnings("error::metaprobe.checkpoints.UntrustedCheckpoint")
def test_a_checkpoint_that_loses_to_the_strongest_control_but_beats_the_folds_choice_names_it(tmp_path: Path) -> None:
    evidence = made_up()
    fits, y = planted(evidence), evidence.table.y
    reached = {name: float(auroc(y, fits[name].ranking)) for name in (LADDER, MEAN_LOGPROB, BEST_BASELINE)}
    assert reached[MEAN_LOGPROB] > reached[LADDER] > reached[BEST_BASELINE] + 0.05
    report = audit_method(evidence, fits, fits[USUAL_LADDER.name])
    assert report.controls is not None
    assert report.controls.strongest.name == MEAN_LOGPROB
    assert report.controls.strongest.difference.high < 0
    lost = f"{LADDER} beats {MEAN_LOGPROB}"
    named = {audit.name: audit for audit in report.audits}
    assert not named[lost].passed
    assert named[lost].detail.endswith("; the strongest control")
    assert named[f"{LADDER} beats {PROMPT}"].passed, "the folds' choice is beaten"
    tiny_quality(
        tmp_path / "c",
        audits={audit.name: Audit(audit.passed, audit.detail, audit.severity) for audit in report.audits},
    )
    loaded = load_checkpoint(tmp_path / "c")
    assert loaded.trust == "weak"
    assert lost in loaded.weaknesses


def test_what_only_the_run_knows_is_worth_nothing_within_runs_and_the_card_has_both_figures() -> None:
    """Pooled over an easy and a hard task, a score that knows the task alone looks good."""
    made = made_up(600)
    rng, hard = np.random.default_rng(0), np.unique(made.table.groups, return_inverse=True)[1] % 2
    y = (rng.uniform(size=600) < np.where(hard, 0.2, 0.8)).astype(np.int64)
    table = dataclasses.replace(made.table, y=y, tasks=np.array(["easy", "hard"])[hard])
    identity, noise = 1.0 - hard, rng.normal(size=600)
    mean = np.array([values.mean() for values in table.logprobs], dtype=np.float64)
    judged = Judged(LADDER, "learned", identity + 0.01 * noise, identity + 0.01 * noise, 1.0)
    others = {RUN_IDENTITY.name: identity, MEAN_LOGPROB: mean}
    fits = CrossFit((judged, *(Judged(name, "plain", x, x, 1.0) for name, x in others.items())), (), (), {})
    found = within_runs(table, fits, judged)
    assert auroc(y, judged.ranking) > 0.75
    assert found["auroc_of_run_identity"].estimate > 0.75
    assert found["auroc_within_runs"].low < 0.5 < found["auroc_within_runs"].high
    one_run = dataclasses.replace(table, tasks=made.table.tasks)
    assert within_runs(one_run, fits, judged) == {}
