"""A predictor adapted to runs of one's own: right on average, in the same order, with thresholds that hold."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner
from logged_answers import answers, stored

from metaprobe.checkpoints import CheckpointExists, ContractMismatch, describe, load_checkpoint
from metaprobe.checkpoints.manifest import RAW
from metaprobe.cli import main
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.probes.base_rates import CONTRACT
from metaprobe.probes.features import schema
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.serving.http.judges import Judges, load_judges
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.settings import Settings, SettingsError
from metaprobe.training.options import QualityOptions
from metaprobe.training.recipes.quality import train_quality
from metaprobe.training.rescale import adapt_quality

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For strangers: a free number of two models that are right half of the time."""
    folder = tmp_path_factory.mktemp("base")
    store = stored(folder / "runs", {"a": (250, 0.45), "b": (250, 0.55)})
    train_quality([store], QualityOptions(out=folder / "c", new_tasks=True, raw_graph=True, folds=2))
    return folder / "c"


def test_a_stranger_is_ordered_and_flagged_by_nothing_until_it_is_adapted(base: Path, tmp_path: Path) -> None:
    predictor = QualityPredictor.load(base)
    series, y = answers(60, seed=5, right=0.85)
    before = predictor.predict(series[0])
    assert before.flagged is None
    assert "adapt the checkpoint" in before.reason
    assert predictor.threshold is None
    mine = predictor.adapt(series, y.tolist(), out=tmp_path / "mine")
    after = mine.predict(series[0])
    assert after.reason == ""
    assert after.flagged in (True, False)
    assert mine.checkpoint.manifest.contract["adapted_from"] == predictor.checkpoint.digest


def test_fifty_labels_make_scores_right_on_average_and_leave_the_order(base: Path, tmp_path: Path) -> None:
    predictor = QualityPredictor.load(base)
    fresh, truth = answers(2000, seed=99, right=0.85)
    raw = np.array([verdict.score for verdict in predictor.predict_many(fresh)])
    assert abs(raw.mean() - truth.mean()) > 0.15, "half of the answers were right where it learned"
    gaps = []
    for seed in range(5):
        series, y = answers(50, seed=10 + seed, right=0.85)
        mine = predictor.adapt(series, y.tolist(), out=tmp_path / f"mine{seed}")
        scores = np.array([verdict.score for verdict in mine.predict_many(fresh)])
        assert float(auroc(truth, scores)) == pytest.approx(float(auroc(truth, raw)), abs=1e-3)
        gaps.append(scores.mean() - truth.mean())
    assert np.mean(np.abs(gaps)) < 0.06


def test_how_far_off_adapted_scores_are_on_average_is_said_with_its_interval(base: Path, tmp_path: Path) -> None:
    series, y = answers(400, seed=5, right=0.85)
    made = QualityPredictor.load(base).adapt(series, y.tolist(), out=tmp_path / "mine")
    said = made.checkpoint.manifest.metrics["mean_score_minus_share_right"]
    assert said.low < said.estimate < said.high
    # Twice 1.96 standard errors, of errors that are those of labels about their probability.
    assert said.high - said.low == pytest.approx(2 * 1.96 * np.sqrt(0.85 * 0.15 / 400), rel=0.3)


@pytest.mark.parametrize("right", [0.85, 0.5])
def test_as_many_are_flagged_as_are_wrong_where_nothing_else_is_asked(base: Path, tmp_path: Path, right: float) -> None:
    """On average over draws of labels; of each draw the interval of what is flagged holds what is flagged later."""
    predictor, flagged, held = QualityPredictor.load(base), [], 0
    fresh, truth = answers(1500, seed=77, right=right)
    for seed in range(10):
        series, y = answers(60, seed=200 + seed, right=right)
        mine = predictor.adapt(series, y.tolist(), out=tmp_path / f"mine{seed}")
        flags = np.array([bool(verdict.flagged) for verdict in mine.predict_many(fresh)])
        flagged.append(flags.mean())
        own = mine.checkpoint.manifest.operating
        assert own is not None
        assert own.option == "expected"
        assert own.value == pytest.approx((y == 0).mean(), abs=0.1)
        for share, of in ((own.flagged, flags), (own.caught, flags[truth == 0]), (own.cost, flags[truth == 1])):
            held += share.low - 0.02 <= of.mean() <= share.high + 0.02
    assert np.mean(flagged) == pytest.approx((truth == 0).mean(), abs=0.05)
    assert held >= 26, f"of 30 intervals of 95 % {held} hold"


@pytest.mark.parametrize("share", [0.9, 0.6])
def test_the_flag_of_an_adapted_predictor_catches_what_it_promises(base: Path, tmp_path: Path, share: float) -> None:
    predictor, caught = QualityPredictor.load(base), []
    fresh, truth = answers(1500, seed=77, right=0.7)
    for seed in range(8):
        series, y = answers(120, seed=200 + seed, right=0.7)
        mine = predictor.adapt(series, y.tolist(), out=tmp_path / f"mine{seed}", catch=share)
        flagged = np.array([bool(verdict.flagged) for verdict in mine.predict_many(fresh)])
        caught.append(flagged[truth == 0].mean())
    assert np.mean(caught) >= share - 0.03
    assert np.mean(caught) < share + 0.09, "a threshold that flags all promises nothing"


def test_what_so_few_labels_do_not_carry_is_said_with_its_reason(base: Path, tmp_path: Path) -> None:
    series, y = answers(24, seed=3, right=0.75)
    made = QualityPredictor.load(base).adapt(series, y.tolist(), out=tmp_path / "few").checkpoint
    assert made.manifest.thresholds.keys() == {"flag"}
    wrong, own = int((y == 0).sum()), made.manifest.operating
    assert own is not None
    assert own.flagged.high - own.flagged.low > 0.25, "of so few labels little is known, and that is shown"
    card = (tmp_path / "few" / "README.md").read_text()
    assert f"the {wrong} wrong ones carry `catch` up to {wrong / (wrong + 1):.2g}" in card
    assert "0.9 takes 9 of different groups; no threshold `accept`" in card
    assert "It is stored from 20 groups of labelled answers on, with 3 wrong and 3 right ones" in card
    with pytest.raises(ContractMismatch, match=r"catch is 0.95; the labels of this checkpoint carry at most"):
        QualityPredictor.load(base).adapt(series, y.tolist(), out=tmp_path / "more", catch=0.95)
    assert not (tmp_path / "more").exists()
    pairs = QualityPredictor.load(base).adapt(
        series, y.tolist(), out=tmp_path / "pairs", groups=[i // 2 for i in range(24)]
    )
    assert pairs.threshold is None
    assert (
        "no threshold `flag`: the 24 labelled answers are of 12 groups"
        in (tmp_path / "pairs" / "README.md").read_text()
    )
    assert "so many labels do not carry a threshold; README.md says what it takes" in describe(pairs.checkpoint)
    with pytest.raises(RecordError, match="flag_rate: the 24 labelled answers are of 12 groups"):
        QualityPredictor.load(base).adapt(
            series, y.tolist(), out=tmp_path / "more", groups=[i // 2 for i in range(24)], flag_rate=0.3
        )
    enough = QualityPredictor.load(base).adapt(*_labelled(400), out=tmp_path / "enough").checkpoint
    assert "no threshold `flag`" not in (tmp_path / "enough" / "README.md").read_text()
    assert "do not carry a threshold" not in describe(enough)


def test_the_version_before_stays_where_it_is(base: Path, tmp_path: Path) -> None:
    before = (base / "manifest.json").read_bytes()
    with pytest.raises(CheckpointExists, match="may be in service; give another folder"):
        QualityPredictor.load(base).adapt(*_labelled(60), out=base)
    assert (base / "manifest.json").read_bytes() == before


def test_two_inputs_that_name_their_answers_alike_are_refused_and_names_with_half_pairs_are_kept_whole(
    base: Path, tmp_path: Path
) -> None:
    series, y = _labelled(40)
    for day in ("one", "two"):
        lines = [
            {
                "response": {
                    "model": "m\ud800",
                    "choices": [
                        {
                            "message": {"content": "t" * len(values)},
                            "finish_reason": "stop",
                            "logprobs": {"content": [{"token": "t", "logprob": v} for v in values]},
                        }
                    ],
                },
                "labels": {"correct": int(label)},
            }
            for values, label in zip(series, y, strict=True)
        ]
        (tmp_path / day).mkdir()
        (tmp_path / day / "labelled.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    days = [tmp_path / day / "labelled.jsonl" for day in ("one", "two")]
    with pytest.raises(RecordError, match="hold the id 'labelled-line-1' more than once"):
        adapt_quality(base, days, out=tmp_path / "c")
    made = adapt_quality(base, days[:1], out=tmp_path / "c")
    assert made.manifest.generator is not None
    assert made.manifest.generator.models == ("m\ufffd",)


def _labelled(n: int) -> tuple[Any, list[float]]:
    series, y = answers(n, seed=4, right=0.7)
    return series, y.tolist()


@pytest.mark.filterwarnings("ignore:correct. answers with higher scores are not right more often here")
def test_few_labels_move_little_and_a_scale_that_is_wrong_is_found(base: Path, tmp_path: Path) -> None:
    predictor = QualityPredictor.load(base)

    def scale(n: int, told: float) -> float:
        series, y = answers(n, seed=n, right=0.5, scale=told)
        name = f"{n}-{told}"
        predictor.adapt(series, y.tolist(), out=tmp_path / name, replace=True)
        card = (tmp_path / name / "README.md").read_text()
        return float(card.split("- correct: scale ")[1].split(",")[0])

    assert abs(scale(20, 0.0) - 1) < abs(scale(1000, 0.0) - 1)
    assert scale(1000, 0.0) < 0.25, "these log-probabilities say nothing of right and wrong"
    assert scale(1000, 1.0) == pytest.approx(1.0, abs=0.25)


def test_runs_keep_base_rates_of_their_own(base: Path, tmp_path: Path) -> None:
    store = stored(tmp_path / "runs", {"low": (300, 0.2), "high": (300, 0.8)}, seed=40)
    made = adapt_quality(base, [store], out=tmp_path / "c")
    assert {run.partition("|")[0] for run in made.manifest.contract[CONTRACT]["runs"]} == {"low", "high"}
    scores = {}
    for name in ("low", "high"):
        mine = QualityPredictor.load(tmp_path / "c", run=f"{name}|sums|v")
        fresh, _ = answers(800, seed=7, right=0.5)
        scores[name] = np.mean([verdict.score for verdict in mine.predict_many(fresh)])
    assert scores["low"] + 0.2 < scores["high"]
    assert "auroc_within_runs" in made.manifest.metrics


def test_a_server_judges_by_the_base_rate_of_the_run_it_is_told_of(base: Path, tmp_path: Path) -> None:
    store = stored(tmp_path / "runs", {"low": (60, 0.2), "high": (60, 0.8)}, seed=40)
    made = str(adapt_quality(base, [store], out=tmp_path / "c").path)
    (response, *_), _ = answers(1, seed=7)

    def judges(*runs: str) -> Judges:
        return load_judges(Settings(checkpoint=made, more_checkpoints=(f"b={made}",), base_rates=runs), Metrics())

    def scores(*runs: str) -> list[float]:
        seats = judges(*runs).seats
        return [seats[name].judge.verdict(response)["score"] for name in ("", "b")]

    def expected(run: str | None) -> float:
        return QualityPredictor.load(made, run=run).predict(response).score

    low, high, average = expected("low|sums|v"), expected("high|sums|v"), expected(None)
    assert low < average < high
    assert scores() == [average, average]
    assert scores("low|sums|v") == [low, average]
    assert scores("low|sums|v", "b=high|sums|v") == [low, high]
    with pytest.raises(ContractMismatch, match=r"no run is called 'other'.*low\|sums"):
        judges("other")
    with pytest.raises(SettingsError, match="no checkpoint judges 'c', so it can have no run"):
        judges("c=low|sums|v")


def test_a_runs_name_may_hold_an_equals_sign() -> None:
    settings = Settings(checkpoint="c", base_rates=("m|sums|shots=3", "b=m|sums|shots=0"))
    assert settings.run_by_model == {"": "m|sums|shots=3", "b": "m|sums|shots=0"}


def test_the_flag_of_several_runs_holds_over_all_of_them(base: Path, tmp_path: Path) -> None:
    caught = []
    for seed in range(6):
        store = stored(tmp_path / f"runs{seed}", {"low": (80, 0.3), "high": (80, 0.8)}, seed=300 + 10 * seed)
        adapt_quality(base, [store], out=tmp_path / f"c{seed}")
        flags = []
        for name, right in (("low", 0.3), ("high", 0.8)):
            mine = QualityPredictor.load(tmp_path / f"c{seed}", run=f"{name}|sums|v")
            fresh, truth = answers(600, seed=900 + seed, right=right)
            verdicts = mine.predict_many([one for one, label in zip(fresh, truth, strict=True) if not label])
            flags += [bool(verdict.flagged) for verdict in verdicts]
        caught.append(np.mean(flags))
    assert 0.9 - 0.03 <= np.mean(caught) < 0.99


def test_a_checkpoint_that_reads_more_than_log_probabilities_is_refused(base: Path, tmp_path: Path) -> None:
    predictor = QualityPredictor.load(base)
    predictor.schema = schema("full+top")
    series, y = answers(40, seed=2)
    with pytest.raises(RecordError, match=r"'full\+top'; expected one without"):
        predictor.adapt(series, y.tolist(), out=tmp_path / "mine")


def test_both_graphs_give_the_adapted_score(base: Path, tmp_path: Path) -> None:
    series, y = answers(80, seed=3, right=0.8)
    mine = QualityPredictor.load(base).adapt(series, y.tolist(), out=tmp_path / "mine")
    session = onnxruntime.InferenceSession((tmp_path / "mine" / RAW).read_bytes())
    values = np.array([series[0]], np.float32)
    lengths = np.array([values.shape[1]], np.int64)
    [found] = session.run(["correct"], {"logprobs": values, "lengths": lengths})
    assert float(found[0, 0]) == pytest.approx(mine.predict(series[0]).score, abs=1e-5)
    assert load_checkpoint(tmp_path / "mine").manifest.metrics.keys() >= {"auroc", "mean_score_minus_share_right"}


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([1, 0] * 9, "18 labelled answers"),
        ([1] * 29 + [0], "1 of label 0"),
        ([1, 0] * 14 + [1], "came with labels of shape"),
    ],
)
def test_labels_that_carry_nothing_are_refused(labels: list[int], said: str, base: Path, tmp_path: Path) -> None:
    series, _ = answers(len(labels) if "shape" not in said else 30, seed=1)
    with pytest.raises(RecordError, match=said):
        QualityPredictor.load(base).adapt(series, labels, out=tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_the_command_adapts_to_a_file_of_labelled_lines(base: Path, tmp_path: Path) -> None:
    series, y = answers(60, seed=8, right=0.6)
    lines = [
        {
            "id": f"i{i}",
            "response": {
                "model": "mine",
                "choices": [
                    {
                        "message": {"role": "assistant", "content": "t" * len(values)},
                        "finish_reason": "stop",
                        "logprobs": {"content": [{"token": "t", "logprob": value} for value in values]},
                    }
                ],
            },
            "group": f"q{i}",
            "labels": {"correct": int(label)},
        }
        for i, (values, label) in enumerate(zip(series, y, strict=True))
    ]
    file = tmp_path / "labelled.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(main, ["adapt", str(base), str(file), "--out", str(tmp_path / "mine")])
    assert done.exit_code == 0, done.output
    mine = QualityPredictor.load(tmp_path / "mine")
    assert mine.predict(lines[0]["response"]).flagged is not None
    file.write_text("".join(json.dumps({**line, "labels": {"nice": 1}}) + "\n" for line in lines))
    done = CliRunner().invoke(main, ["adapt", str(base), str(file), "--out", str(tmp_path / "other")])
    assert done.exit_code != 0
    assert "nice" in done.output
    assert "correct" in done.output
