"""A predictor adapted to runs of one's own: right on average, in the same order, with thresholds that hold."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from logged_answers import answers, stored, trained
from made_once import MadeOnce

from metaprobe.checkpoints import CheckpointExists, ContractMismatch, describe, load_checkpoint
from metaprobe.cli import main
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.features import schema
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.training_runs import BASE_RATES_KEY
from metaprobe.production.http.judges import Judges, load_judges
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings, SettingsError
from metaprobe.records.errors import RecordError
from metaprobe.training.adapt import adapt_quality

DRAWS = 8
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


@pytest.fixture(scope="module")
def base(made_once: MadeOnce) -> Path:
    """For strangers: a free number of two models that are right half of the time."""
    return trained({"a": (250, 0.45), "b": (250, 0.55)}, made_once, new_tasks=True)


@dataclass(frozen=True)
class Adapted:
    """The predictor before and after it was adapted to draws of 120 answers, of which 70 % are right."""

    paths: list[Path]
    wrong: list[float]
    """Share of wrong labels in each draw."""
    fresh: list[list[float]]
    truth: np.ndarray
    """Which of the fresh answers are right."""
    raw: np.ndarray
    """Scores of the fresh answers before."""
    scores: np.ndarray
    """(draws, answers) Scores after."""


@pytest.fixture(scope="module")
def adapted(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    folder, predictor, paths, wrong = tmp_path_factory.mktemp("adapted"), QualityPredictor.load(base), [], []
    for seed in range(DRAWS):
        series, y = answers(120, seed=200 + seed, right=0.7)
        paths.append(Path(predictor.adapt(series, y.tolist(), out=folder / f"{seed}").checkpoint.path))
        wrong.append(float((y == 0).mean()))
    fresh, truth = answers(1500, seed=77, right=0.7)

    def scores(path: Path) -> np.ndarray:
        return np.array([verdict.score for verdict in QualityPredictor.load(path).predict_many(fresh)])

    return Adapted(paths, wrong, fresh, truth, scores(base), np.stack([scores(path) for path in paths]))


@pytest.fixture(scope="module")
def two_runs(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapted to two runs, of which one is mostly wrong and the other mostly right."""
    folder = tmp_path_factory.mktemp("two")
    store = stored(folder / "runs", {"low": (150, 0.2), "high": (150, 0.8)}, seed=40)
    return Path(adapt_quality(base, [store], out=folder / "c").path)


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


def test_labels_make_scores_right_on_average_and_leave_the_order(adapted: Adapted) -> None:
    truth = adapted.truth
    assert abs(adapted.raw.mean() - truth.mean()) > 0.08, "half of the answers were right where it learned"
    assert np.abs(adapted.scores.mean(axis=1) - truth.mean()).mean() < 0.05
    for scores in adapted.scores:
        assert float(auroc(truth, scores)) == pytest.approx(float(auroc(truth, adapted.raw)), abs=1e-3)
    series, y = answers(120, seed=200, right=0.7)
    own = np.mean([verdict.score for verdict in QualityPredictor.load(adapted.paths[0]).predict_many(series)])
    assert own == pytest.approx(y.mean(), abs=0.002), "on the labels that it was adapted to"
    said, p = load_checkpoint(adapted.paths[0]).manifest.metrics["mean_score_minus_share_right"], adapted.scores[0]
    assert said.low < said.estimate < said.high
    # Twice 1.96 standard errors, of errors that are those of labels about their probability.
    assert said.high - said.low == pytest.approx(2 * 1.96 * np.sqrt((p * (1 - p)).mean() / 120), rel=0.3)


def test_as_many_are_flagged_as_are_wrong_where_nothing_else_is_asked(adapted: Adapted) -> None:
    """On average over draws of labels; of each draw the interval of what is flagged holds what is flagged later."""
    flagged, held, truth = [], 0, adapted.truth
    for path, wrong, scores in zip(adapted.paths, adapted.wrong, adapted.scores, strict=True):
        predictor = QualityPredictor.load(path)
        flags = scores < predictor.threshold
        flagged.append(flags.mean())
        own = predictor.checkpoint.manifest.operating
        assert own is not None
        assert (own.option, own.value) == ("expected", pytest.approx(wrong, abs=0.1))
        for share, of in ((own.flagged, flags), (own.caught, flags[truth == 0]), (own.cost, flags[truth == 1])):
            held += share.low - 0.02 <= of.mean() <= share.high + 0.02
    assert np.mean(flagged) == pytest.approx((truth == 0).mean(), abs=0.05)
    assert held >= 0.85 * 3 * DRAWS, f"of {3 * DRAWS} intervals of 95 % {held} hold"


@pytest.mark.parametrize("share", [0.9, 0.6])
def test_the_flag_of_an_adapted_predictor_catches_what_it_promises(adapted: Adapted, share: float) -> None:
    caught = [
        (scores[adapted.truth == 0] < QualityPredictor.load(path, catch=share).threshold).mean()
        for path, scores in zip(adapted.paths, adapted.scores, strict=True)
    ]
    assert share - 0.03 <= np.mean(caught) < share + 0.09, "a threshold that flags all promises nothing"


def test_what_so_few_labels_do_not_carry_is_refused_or_left_out(base: Path, tmp_path: Path) -> None:
    series, y = answers(24, seed=3, right=0.75)
    predictor, pairs = QualityPredictor.load(base), [i // 2 for i in range(24)]
    made = predictor.adapt(series, y.tolist(), out=tmp_path / "few").checkpoint.manifest
    assert made.thresholds.keys() == {"flag"}
    assert made.operating is not None
    assert made.operating.flagged.high - made.operating.flagged.low > 0.25, "of so few labels little is known"
    with pytest.raises(
        ContractMismatch,
        match=r"catch=0.95: .* of 24 labels .* carries catch up to .* least 19 ",
    ):
        predictor.adapt(series, y.tolist(), out=tmp_path / "more", catch=0.95)
    grouped = predictor.adapt(series, y.tolist(), out=tmp_path / "pairs", groups=pairs)
    assert grouped.threshold is None
    assert "do not carry a threshold" in describe(grouped.checkpoint)
    with pytest.raises(RecordError, match="flag_rate: the 24 labelled answers are of 12 groups"):
        predictor.adapt(series, y.tolist(), out=tmp_path / "more", groups=pairs, flag_rate=0.3)
    assert not (tmp_path / "more").exists()


def test_the_version_before_stays_where_it_is(base: Path) -> None:
    before = (base / "manifest.json").read_bytes()
    series, y = answers(60, seed=4, right=0.7)
    with pytest.raises(CheckpointExists, match="may be in service; give another folder"):
        QualityPredictor.load(base).adapt(series, y.tolist(), out=base)
    assert (base / "manifest.json").read_bytes() == before


def lines_of(n: int, model: str) -> list[dict[str, Any]]:
    """Import lines of labelled answers."""
    series, y = answers(n, seed=8, right=0.6)
    return [
        {
            "response": {
                "model": model,
                "choices": [
                    {
                        "message": {"role": "assistant", "content": "t" * len(values)},
                        "finish_reason": "stop",
                        "logprobs": {"content": [{"token": "t", "logprob": value} for value in values]},
                    }
                ],
            },
            "labels": {"correct": int(label)},
        }
        for values, label in zip(series, y, strict=True)
    ]


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_two_inputs_that_name_their_answers_alike_are_refused_and_names_with_half_pairs_are_kept_whole(
    base: Path, tmp_path: Path
) -> None:
    days = [written(tmp_path / day / "labelled.jsonl", lines_of(40, "m\ud800")) for day in ("one", "two")]
    with pytest.raises(RecordError, match="the id 'labelled-line-1' is in another of the files too"):
        adapt_quality(base, days, out=tmp_path / "c")
    made = adapt_quality(base, days[:1], out=tmp_path / "c")
    assert made.manifest.generator is not None
    assert made.manifest.generator.models == ("m\ufffd",)


@pytest.mark.filterwarnings("ignore:correct. answers with higher scores are not right more often here")
def test_a_score_that_is_no_better_than_chance_says_so_wherever_it_is_read(base: Path, tmp_path: Path) -> None:
    series, right = answers(200, seed=5, right=0.6)
    drawn = np.random.default_rng(5).permutation(right)
    for name, labels, chance in (("planted", right, False), ("noise", drawn, True)):
        lines = [
            {"question": f"{n}?", "answer": "a", "logprobs": one, "correct": int(label)}
            for n, (one, label) in enumerate(zip(series, labels, strict=True))
        ]
        file, out = written(tmp_path / name / "lines.jsonl", lines), tmp_path / name / "c"
        printed = CliRunner().invoke(main, ["adapt", str(base), str(file), "--out", str(out)]).stdout
        card = (out / "README.md").read_text()
        scored = CliRunner().invoke(main, ["score", str(out), str(file)]).stdout.splitlines()
        figure = load_checkpoint(out).manifest.metrics["auroc"]
        told = f"{figure.estimate:.2f} [{figure.low:.2f}, {figure.high:.2f}] includes 0.5"
        for text in (printed, card.split("\n# ")[0], json.loads(scored[0])["reason"]):
            assert ("no better than chance" in text) == chance
            assert (told in text) == chance
        assert ("label more answers" in printed) == chance


@pytest.mark.filterwarnings("ignore:correct. answers with higher scores are not right more often here")
def test_few_labels_move_little_and_a_scale_that_is_wrong_is_found(base: Path, tmp_path: Path) -> None:
    predictor = QualityPredictor.load(base)

    def scale(n: int, told: float) -> float:
        series, y = answers(n, seed=n, right=0.5, scale=told)
        name = f"{n}-{told}"
        predictor.adapt(series, y.tolist(), out=tmp_path / name, replace=True)
        card = (tmp_path / name / "README.md").read_text()
        return float(card.split("- correct: scale ")[1].split(",")[0])

    assert abs(scale(20, 0.0) - 1) < abs(scale(500, 0.0) - 1)
    assert scale(500, 0.0) < 0.25, "these log-probabilities say nothing of right and wrong"
    assert scale(500, 1.0) == pytest.approx(1.0, abs=0.25)


def test_runs_keep_base_rates_of_their_own(two_runs: Path) -> None:
    manifest = load_checkpoint(two_runs).manifest
    assert {run.partition("|")[0] for run in manifest.contract[BASE_RATES_KEY]["runs"]} == {"low", "high"}
    assert "auroc_within_runs" in manifest.metrics
    fresh, _ = answers(400, seed=7, right=0.5)
    low, high = (
        np.mean([v.score for v in QualityPredictor.load(two_runs, run=f"{name}|sums|v").predict_many(fresh)])
        for name in ("low", "high")
    )
    assert low + 0.2 < high


def test_a_server_judges_by_the_base_rate_of_the_run_it_is_told_of(two_runs: Path) -> None:
    made = str(two_runs)
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


@pytest.mark.slow
def test_the_flag_of_several_runs_holds_over_all_of_them(base: Path, tmp_path: Path) -> None:
    caught = []
    for seed in range(4):
        store = stored(tmp_path / f"runs{seed}", {"low": (80, 0.3), "high": (80, 0.8)}, seed=300 + 10 * seed)
        adapt_quality(base, [store], out=tmp_path / f"c{seed}")
        flags = []
        for name, right in (("low", 0.3), ("high", 0.8)):
            mine = QualityPredictor.load(tmp_path / f"c{seed}", run=f"{name}|sums|v")
            fresh, truth = answers(400, seed=900 + seed, right=right)
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
    lines = lines_of(60, "mine")
    file = written(tmp_path / "labelled.jsonl", lines)
    done = CliRunner().invoke(main, ["adapt", str(base), str(file), "--out", str(tmp_path / "mine")])
    assert done.exit_code == 0, done.output
    assert QualityPredictor.load(tmp_path / "mine").predict(lines[0]["response"]).flagged is not None
    written(file, [{**line, "labels": {"nice": 1}} for line in lines])
    done = CliRunner().invoke(main, ["adapt", str(base), str(file), "--out", str(tmp_path / "other")])
    assert done.exit_code != 0
    assert "nice" in done.output
    assert "correct" in done.output
