"""Retraining from stored runs and a log: runs that are like what is logged stay, the latest labels are kept back."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from logged_answers import answers, stored, write_answers

from metaprobe.cli import main
from metaprobe.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.store import RunStore
from metaprobe.training.promotion import pair_scores
from metaprobe.training.recipes.retrain import RETRAINED, importance

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def test_stored_runs_that_are_like_todays_weigh_more(tmp_path: Path) -> None:
    like = list(RunStore(stored(tmp_path / "like", {"a": (200, 0.9)}, seed=1)))
    unlike = list(RunStore(stored(tmp_path / "unlike", {"b": (200, 0.1)}, seed=2)))
    recent = list(RunStore(stored(tmp_path / "recent", {"a": (300, 0.9)}, seed=3)))
    weights = importance([*like, *unlike], recent)
    assert weights.mean() == pytest.approx(1.0, abs=0.25)
    assert weights[:200].mean() > 2 * weights[200:].mean()
    same = importance([*like, *like], recent)
    assert np.quantile(same, 0.9) < 2


@pytest.mark.slow
def test_the_command_trains_on_both_and_keeps_the_latest_labels_back(tmp_path: Path) -> None:
    runs, url = stored(tmp_path / "runs", {"m": (200, 0.5)}), tmp_path / "log.sqlite"
    old = QualityPredictor.load(on_mismatch="ignore")
    series, y = answers(150, seed=9, right=0.8)
    with ScoreLog.open(url) as log:
        write_answers(log, old, series, keep=True)
        log.add_labels([FeedbackLabel(f"r{i}", float(label)) for i, label in enumerate(y.tolist())])
    refused = run("retrain", runs, "--log", url, "--out", tmp_path / "c")
    assert "the stored log-probabilities are raw, those of the log unknown; say what" in refused.output
    words = ("--folds", 2, "--logprobs-mode", "raw")
    done = run("retrain", runs, "--log", url, "--out", tmp_path / "c", *words)
    assert done.exit_code == 0, done.output
    assert "and 105 labelled answers of the log; 45 later ones are left" in done.stderr
    new = QualityPredictor.load(tmp_path / "c", on_mismatch="ignore")
    with ScoreLog.open(url) as log:
        [event] = log.events(RETRAINED)
        paired = pair_scores(new, old, log)
    assert event.details["to"] == new.checkpoint.digest
    assert 60 < event.details["kept"] < 200
    assert paired.labelled.group.tolist() == [f"r{i}" for i in range(105, 150)]


def test_a_log_without_log_probabilities_is_refused(tmp_path: Path) -> None:
    with ScoreLog.open(tmp_path / "log.sqlite") as log:
        write_answers(log, QualityPredictor.load(on_mismatch="ignore"), answers(60, seed=1)[0])
    refused = run("retrain", "--log", tmp_path / "log.sqlite", "--out", tmp_path / "c")
    assert refused.exit_code == 1
    assert "the log holds 0 of these answers with log-probabilities" in refused.output
    assert not (tmp_path / "c").exists()
