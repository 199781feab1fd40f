"""Recalibration from a score log: probabilities right again, thresholds that hold, and refusals that say why."""

import dataclasses
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner, Result
from logged_answers import WEEK_46, answers, label_answers, stored, trained, write_answers
from made_once import MadeOnce

from metaprobe.checkpoints import CheckpointExists, ContractMismatch, FlagOptions, load_checkpoint
from metaprobe.checkpoints.description import GAIN_OVER_BEFORE, describe
from metaprobe.checkpoints.manifest import Metric
from metaprobe.cli import main
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.monitoring.log import ScoreLog, labelled_of_log
from metaprobe.records.errors import RecordError
from metaprobe.records.labelled_scores import LabelledScores
from metaprobe.training.calibrators import Platt, sigmoid
from metaprobe.training.linear_probe import linear_graph
from metaprobe.training.recalibrate import recalibrate_quality, score_again
from metaprobe.training.recipes.train_quality import train_quality
from metaprobe.training.rescale import RECALIBRATED, map_outputs
from metaprobe.training.training_options import QualityOptions

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


@pytest.fixture(scope="module")
def base(made_once: MadeOnce) -> Path:
    """A predictor of one model, `m`, that is right half of the time."""
    return trained({"m": (400, 0.5)}, made_once)


def labelled(
    predictor: QualityPredictor, n: int, *, seed: int, right: float, active: bool = False, model: str = "m"
) -> tuple[LabelledScores, np.ndarray]:
    """About n labelled scores, and the scores of all answers they were drawn of."""
    series, y = answers(2000, seed=seed, right=right)
    scores = np.array([verdict.score for verdict in predictor.predict_many(series)])
    rng = np.random.default_rng([seed, 1])
    wish = 0.1 + np.sqrt(scores * (1 - scores)) if active else np.ones(2000)
    propensity = np.minimum(n * wish / wish.sum(), 1)
    rows = np.flatnonzero(rng.random(2000) < propensity)
    names = np.array([f"r{i}" for i in rows])
    found = LabelledScores(
        scores[rows], y[rows].astype(float), propensity[rows], rows.astype(float), np.full(len(rows), model), names
    )
    return found, scores


@pytest.mark.parametrize("active", [False, True], ids=["uniform", "active"])
def test_after_a_shift_scores_are_right_again_and_in_the_same_order(base: Path, tmp_path: Path, active: bool) -> None:
    predictor = QualityPredictor.load(base)
    fresh, truth = answers(2000, seed=99, right=0.85)
    raw = np.array([verdict.score for verdict in predictor.predict_many(fresh)])
    assert abs(raw.mean() - truth.mean()) > 0.1
    gaps = []
    for seed in range(2):
        found, _ = labelled(predictor, 150, seed=seed, right=0.85, active=active)
        recalibrate_quality(base, found, out=tmp_path / f"c{seed}")
        mine = QualityPredictor.load(tmp_path / f"c{seed}")
        scores = np.array([verdict.score for verdict in mine.predict_many(fresh)])
        assert float(auroc(truth, scores)) == pytest.approx(float(auroc(truth, raw)), abs=1e-3)
        gaps.append(scores.mean() - truth.mean())
    assert np.mean(np.abs(gaps)) < 0.05


def test_few_labels_move_little_and_labels_that_agree_move_nothing_much(base: Path, tmp_path: Path) -> None:
    predictor = QualityPredictor.load(base)
    moved = {}
    for n, right in ((25, 0.8), (1000, 0.8), (1000, 0.5)):
        found, _ = labelled(predictor, n, seed=3, right=right)
        made = recalibrate_quality(base, found, out=tmp_path / f"c{n}{right}")
        moved[n, right] = made.manifest.contract[RECALIBRATED]["base_rate"]
    assert 0 < moved[25, 0.8] < moved[1000, 0.8] + 0.5
    assert abs(moved[1000, 0.5]) < 0.25


def test_the_new_flag_catches_what_it_promises_also_of_chosen_answers(base: Path, tmp_path: Path) -> None:
    predictor, caught = QualityPredictor.load(base), []
    fresh, truth = answers(1500, seed=77, right=0.7)
    for seed in range(4):
        found, _ = labelled(predictor, 300, seed=200 + seed, right=0.7, active=True)
        recalibrate_quality(base, found, out=tmp_path / f"c{seed}", flags=FlagOptions(catch=0.9))
        mine = QualityPredictor.load(tmp_path / f"c{seed}")
        flagged = np.array([bool(verdict.flagged) for verdict in mine.predict_many(fresh)])
        caught.append(flagged[truth == 0].mean())
    assert 0.9 - 0.03 <= np.mean(caught) < 0.99


def test_the_curve_is_remade_where_the_labels_suffice(base: Path, tmp_path: Path) -> None:
    found, _ = labelled(QualityPredictor.load(base), 300, seed=5, right=0.7)
    before, made = load_checkpoint(base).manifest, recalibrate_quality(base, found, out=tmp_path / "c").manifest
    assert len(made.flagging) == 19
    assert made.flagging[5].caught.n == int((found.y == 0).sum()) != before.flagging[5].caught.n
    assert made.operating is not None
    assert made.operating.value == pytest.approx((found.y == 0).mean(), abs=0.03)


def _of_few_for_all(base: Path) -> LabelledScores:
    """Labels of which only a handful stand for all answers: nearly all were chosen, and few were likely to be."""
    found, _ = labelled(QualityPredictor.load(base), 60, seed=11, right=0.9)
    return dataclasses.replace(found, propensity=np.where(np.arange(len(found)) % 12 == 0, 0.02, 1.0))


def test_where_the_labels_are_too_few_the_curve_of_before_moves_with_the_scores(base: Path, tmp_path: Path) -> None:
    found, before = _of_few_for_all(base), QualityPredictor.load(base)
    made = recalibrate_quality(base, found, out=tmp_path / "c")
    curve, old = made.manifest.flagging, before.checkpoint.manifest.flagging
    assert [(one.rate, one.caught, one.cost) for one in curve] == [(one.rate, one.caught, one.cost) for one in old]
    fresh, _ = answers(400, seed=3, right=0.7)
    was = np.array([verdict.score for verdict in before.predict_many(fresh)])
    new = np.array([verdict.score for verdict in QualityPredictor(made).predict_many(fresh)])
    for point, point_before in zip(curve, old, strict=True):  # the same answers lie below it
        assert ((new < point.threshold) == (was < point_before.threshold)).mean() > 0.99
    for share in (0.5, 0.9):
        flags = [
            [verdict.flagged for verdict in QualityPredictor(of, catch=share).predict_many(fresh)]
            for of in (before.checkpoint, made)
        ]
        assert np.mean(np.equal(*flags)) > 0.99
    card = (tmp_path / "c" / "README.md").read_text()
    assert "the curve of flag rates is that of the checkpoint before, its scores moved with the others" in card
    with pytest.raises(ContractMismatch, match=r"risk=0.2: .* no threshold .* was shown to keep such a promise"):
        QualityPredictor(made, risk=0.2)  # depends on the base rate, which is another one


def test_a_version_that_is_worse_than_before_says_so_first(base: Path) -> None:
    checkpoint = QualityPredictor.load(base).checkpoint
    for estimate, high, is_worse in ((-0.03, -0.01, True), (-0.01, 0.02, False), (0.03, 0.05, False)):
        metric = Metric(estimate, estimate - 0.03, high, 26)
        manifest = dataclasses.replace(checkpoint.manifest, metrics={GAIN_OVER_BEFORE: metric})
        head = describe(dataclasses.replace(checkpoint, manifest=manifest)).partition("metrics")[0]
        assert ("WORSE" in head) == is_worse


def test_labels_that_carry_no_threshold_give_none_and_the_card_says_so(base: Path, tmp_path: Path) -> None:
    found = _of_few_for_all(base)
    several = dataclasses.replace(found, model=np.where(np.arange(len(found)) % 2, "a", "b"))
    made = recalibrate_quality(base, several, out=tmp_path / "c")
    assert "flag" not in made.manifest.thresholds
    assert made.manifest.flagging == ()
    assert "; no threshold `flag`: the " in (tmp_path / "c" / "README.md").read_text()
    assert QualityPredictor.load(tmp_path / "c").predict([-0.1] * 10).flagged is None
    with pytest.raises(RecordError, match=r"catch: the .* labelled answers are of .*: label more, or leave catch out"):
        recalibrate_quality(base, several, out=tmp_path / "d", flags=FlagOptions(catch=0.5))


@pytest.mark.slow
def test_models_keep_base_rates_of_their_own_and_what_was_added_before_is_taken_off(tmp_path: Path) -> None:
    train_quality(
        [stored(tmp_path / "runs", {"a": (250, 0.3), "b": (250, 0.7)})], QualityOptions(out=tmp_path / "c", folds=2)
    )
    predictor = QualityPredictor.load(tmp_path / "c")
    with ScoreLog.open(tmp_path / "log.sqlite") as log:
        for model, right in (("a", 0.6), ("b", 0.9)):
            series, y = answers(400, seed=ord(model), right=right)
            write_answers(log, predictor, series, model=model, name=model)
            label_answers(log, y, name=model)
        found = labelled_of_log(log, checkpoint=predictor.checkpoint.digest)
    recalibrate_quality(tmp_path / "c", found, out=tmp_path / "new")
    mine = QualityPredictor.load(tmp_path / "new")
    for model, right in (("a", 0.6), ("b", 0.9)):
        fresh, _ = answers(800, seed=5, right=right)
        run = next(name for name in mine.runs if name.startswith(model))
        scores = [verdict.score for verdict in QualityPredictor.load(tmp_path / "new", run=run).predict_many(fresh)]
        assert np.mean(scores) == pytest.approx(right, abs=0.06)
    again = score_again(mine.checkpoint, predictor.checkpoint, found)
    for model in ("a", "b"):
        assert again[found.model == model].mean() == pytest.approx(found.y[found.model == model].mean(), abs=0.04)


def test_scores_follow_from_the_scores_before(base: Path, tmp_path: Path) -> None:
    predictor = QualityPredictor.load(base)
    found, _ = labelled(predictor, 200, seed=21, right=0.8)
    made = recalibrate_quality(base, found, out=tmp_path / "c")
    series, _ = answers(2000, seed=21, right=0.8)
    mine = QualityPredictor.load(tmp_path / "c").predict_many([series[int(name[1:])] for name in found.group])
    assert score_again(made, predictor.checkpoint, found) == pytest.approx([v.score for v in mine], abs=1e-5)
    with pytest.raises(ContractMismatch, match="was not recalibrated from"):
        score_again(predictor.checkpoint, predictor.checkpoint, found)


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def test_the_command_recalibrates_by_a_log_and_writes_it_down(base: Path, tmp_path: Path) -> None:
    predictor, url = QualityPredictor.load(base), tmp_path / "log.sqlite"
    series, y = answers(300, seed=31, right=0.8)
    with ScoreLog.open(url) as log:
        write_answers(log, predictor, series)
        label_answers(log, y)
    done = run("recalibrate", base, "--log", url, "--out", tmp_path / "c")
    assert done.exit_code == 0, done.output
    mine = QualityPredictor.load(tmp_path / "c")
    with ScoreLog.open(url) as log:
        [event] = log.events("recalibrated")
    assert event.details["from"] == predictor.checkpoint.digest
    assert event.details["to"] == mine.checkpoint.digest
    assert event.details["labels"] == 300
    assert mine.checkpoint.manifest.contract[RECALIBRATED]["until"] == WEEK_46 + 60 * 299
    refused = run("recalibrate", tmp_path / "c", "--log", url, "--out", tmp_path / "d")
    assert refused.exit_code == 1
    assert f"no labelled answer that checkpoint {mine.checkpoint.digest[:16]} scored" in refused.output
    assert f"labelled are 300 answers of checkpoints {predictor.checkpoint.digest[:16]}" in refused.output
    assert run("recalibrate", base, "--out", tmp_path / "d").exit_code == 2


def test_a_version_that_has_scored_answers_of_a_log_is_never_replaced(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series, y = answers(60, seed=31, right=0.7)
    served = QualityPredictor.load(base).adapt(series, y.tolist(), out=tmp_path / "c").checkpoint.digest
    url = tmp_path / "log.sqlite"
    with ScoreLog.open(url) as log:
        write_answers(log, QualityPredictor.load(tmp_path / "c"), series)
    words = ("train", "quality", stored(tmp_path / "runs", {"m": (60, 0.5)}), "--out", tmp_path / "c")
    done = run(*words)
    assert done.exit_code == 1
    assert served in done.output
    assert "--replace" in done.output
    for name in ("METAPROBE_LOG", "METAPROBE_PINS"):
        (tmp_path / "pins").write_text(f"{tmp_path / 'c'} {served}\n")
        monkeypatch.setenv(name, str(url if name == "METAPROBE_LOG" else tmp_path / "pins"))
        done = run(*words, "--replace")
        assert done.exit_code == 1
        assert "may be in service" in done.output
        assert load_checkpoint(tmp_path / "c").digest == served
        with pytest.raises(CheckpointExists, match="may be in service"):
            QualityPredictor.load(base).adapt(series, y.tolist(), out=tmp_path / "c", replace=True)
        monkeypatch.delenv(name)
    for option in (("--pins", tmp_path / "pins"), ("--log", url)):
        done = run(*words, "--replace", *option)
        assert "may be in service" in done.output, done.output
    done = run(*words, "--replace", "--log", tmp_path / "no.sqlite")
    assert "cannot be read" in done.output
    assert not (tmp_path / "no.sqlite").exists()
    assert run(*words, "--replace").exit_code == 0, "nothing that is named knows it"
    assert load_checkpoint(tmp_path / "c").digest != served


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [(18, 1, "19 labelled answers, 18 of"), (40, 0, "40 of label 1 and 0 of label 0")],
)
def test_labels_that_carry_nothing_are_refused(right: int, wrong: int, said: str, base: Path, tmp_path: Path) -> None:
    n = right + wrong
    label = np.repeat([1.0, 0.0], [right, wrong])
    found = LabelledScores(
        np.full(n, 0.5), label, np.full(n, np.nan), np.zeros(n), np.full(n, "m"), np.arange(n).astype(str)
    )
    with pytest.raises(RecordError, match=said):
        recalibrate_quality(base, found, out=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_graph_may_be_mapped_again_and_again() -> None:
    """Recalibrated twice, the second map reads what the first one gave."""
    graph = linear_graph(
        input_name="x",
        mean=np.zeros(1),
        scale=np.ones(1),
        weights=np.ones((1, 1)),
        intercept=np.zeros(1),
        outputs=["correct"],
    )
    for platt in (Platt(2.0, 0.5), Platt(0.5, -1.0), Platt(1.0, 0.25)):
        graph = map_outputs(graph, {"correct": platt})
    session = onnxruntime.InferenceSession(graph)
    x = np.array([[-1.0], [0.0], [2.0]], np.float32)
    expected = sigmoid(0.5 * (2 * x + 0.5) - 1 + 0.25)
    np.testing.assert_allclose(session.run(["correct"], {"x": x})[0], expected, atol=1e-5)
