"""A check tells a checkpoint that still holds from one whose threshold is stale, whose scorer is worse, or neither."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from logged_answers import answers, runs_of, stored, trained
from made_once import MadeOnce

from metaprobe.cli import main
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.training.check import CheckedAnswers, check, check_scores, run_before

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
LEARNED, MANY = 400, 1500


@pytest.fixture(scope="module")
def checkpoint(made_once: MadeOnce) -> Path:
    """A predictor of a model that is right half of the time."""
    return trained({"m": (LEARNED, 0.5)}, made_once)


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def lines(path: Path, n: int, **how: float) -> Path:
    """A file of import lines with labels: n answers of another engine."""
    series, y = answers(n, seed=7, **how)
    told = [
        {
            "id": f"q{i}",
            "model": "m-q4",
            "labels": {"correct": label},
            "response": {
                "choices": [
                    {
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": "x" * len(one)},
                        "logprobs": {"content": [{"token": "x", "logprob": value} for value in one]},
                    }
                ]
            },
        }
        for i, (one, label) in enumerate(zip(series, y.tolist(), strict=True))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in told), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("n", "how", "status", "code"),
    [
        (MANY, {}, "PASS", 0),
        (MANY, {"right": 0.8}, "THRESHOLD STALE", 3),
        (MANY, {"scale": 0.3}, "SCORER DEGRADED", 4),
        (80, {}, "INCONCLUSIVE", 5),
    ],
)
def test_planted_changes_are_told_apart_with_an_exit_code_each(
    checkpoint: Path, tmp_path: Path, n: int, how: dict[str, float], status: str, code: int
) -> None:
    file = lines(tmp_path / "after.jsonl", n, **how)
    done = run("check", checkpoint, file, "--margin", 0.1, "--json")
    told = json.loads(done.stdout)
    assert (told["status"], done.exit_code) == (status, code), done.output
    if n != MANY or status == "THRESHOLD STALE":  # to read many lines again tells nothing more
        shown = run("check", checkpoint, file, "--margin", 0.1)
        assert shown.exit_code == code
        assert shown.stdout.startswith(f"{status}, compared with the stored held-out figures, of {LEARNED} answers")
        assert ("metaprobe adapt" in shown.stdout) == (status == "THRESHOLD STALE")


def test_an_open_check_says_how_many_labels_would_tell_or_that_none_would(checkpoint: Path, tmp_path: Path) -> None:
    """The stored risk of 400 answers has an interval of its own. With the change it reaches beyond 0.1, so that labels
    alone close the figure only by a wider margin: the fewer, the wider it is."""
    file = lines(tmp_path / "after.jsonl", 80)
    told = {
        margin: json.loads(run("check", checkpoint, file, "--margin", margin, "--json").stdout)
        for margin in (0.1, 0.12, 0.15)
    }
    assert {one["status"] for one in told.values()} == {"INCONCLUSIVE"}
    assert told[0.1]["more"] is None
    assert [figure["name"] for figure in told[0.1]["criteria"] if figure["more"] is None] == ["risk"]
    assert "--before" in run("check", checkpoint, file, "--margin", 0.1).stdout
    assert told[0.12]["more"] > told[0.15]["more"] > 80


Pairs = Callable[[np.random.Generator, int], tuple[CheckedAnswers, CheckedAnswers]]


def pairs(fall: float) -> Pairs:
    """Makes the same n questions answered twice, three answers a question; the second time the order is worse."""

    def make(rng: np.random.Generator, n: int) -> tuple[CheckedAnswers, CheckedAnswers]:
        groups = np.repeat([f"g{i}" for i in range(n // 3)], 3)
        ease = np.repeat(rng.normal(size=n // 3), 3)

        def side(noise: float) -> CheckedAnswers:
            p = 1 / (1 + np.exp(-1.5 * ease))
            y = (rng.random(len(p)) < p).astype(np.int64)
            return CheckedAnswers(y, 1 / (1 + np.exp(-ease - noise * rng.normal(size=len(p)))), groups)

        return side(fall), side(0.0)

    return make


def order(reader: QualityPredictor, two: tuple[CheckedAnswers, CheckedAnswers], margin: float) -> str:
    return check_scores(reader, *two, target="correct", threshold=None, margin=margin).criteria[0].verdict


@pytest.mark.slow
def test_what_fell_by_just_the_margin_hardly_ever_passes_and_no_change_does(checkpoint: Path) -> None:
    reader, rng = QualityPredictor.load(checkpoint), np.random.default_rng(0)
    worse = pairs(1.0)
    now, then = worse(np.random.default_rng(1), 100_000)
    margin = float(auroc(then.y, then.score)) - float(auroc(now.y, now.score))
    assert 0.04 < margin < 0.15
    told = [order(reader, worse(rng, 300), margin) for _ in range(60)]
    # 2.5 % each are promised; 60 samples hold up to 5 with a probability of 99 %.
    assert told.count("holds") <= 5
    assert told.count("broken") <= 5
    same = [order(reader, pairs(0.0)(rng, 1500), margin) for _ in range(5)]
    assert same.count("holds") >= 4


def test_no_change_at_all_among_few_questions_is_no_pass(checkpoint: Path, tmp_path: Path) -> None:
    few = stored(tmp_path / "few", {"n": (40, 0.5)}, seed=3)
    told = check(checkpoint, [few], before=[few])
    assert told.status == "INCONCLUSIVE"
    shares = {one.name: one for one in told.criteria}
    assert shares["share flagged"].change.estimate == 0
    assert shares["share flagged"].change.high > 0.05
    many = stored(tmp_path / "many", {"n": (600, 0.5)}, seed=4)
    assert {one.name: one.verdict for one in check(checkpoint, [many], before=[many]).criteria}["order"] == "holds"


def test_questions_of_one_side_only_are_left_out_and_said(checkpoint: Path, tmp_path: Path) -> None:
    before = stored(tmp_path / "before", {"n": (150, 0.5)}, seed=3)
    after = stored(tmp_path / "after", {"n": (100, 0.5)}, seed=5)
    told = check(checkpoint, [after], before=[before])
    assert told.criteria[0].after.n == 100
    assert "0 answers of after and 50 of before are left out" in told.reasons[0]
    with pytest.raises(RecordError, match="no question was answered before and after"):
        check(checkpoint, [after], before=[stored(tmp_path / "other", {"z": (50, 0.5)})])


def test_what_cannot_be_told_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    learned = runs_of(checkpoint)
    with pytest.raises(RecordError, match="was trained on these runs"):
        check(checkpoint, [learned])
    assert len(list(RunStore(learned))) == LEARNED
    other = run("check", checkpoint, stored(tmp_path / "r", {"n": (60, 0.5)}), "--catch", "0.8")
    assert other.exit_code == 1
    assert "--before" in other.output


@pytest.mark.parametrize(
    ("name", "known", "before"),
    [
        ("a-q4|t|v", ["a|t|v", "a|u|v"], "a|t|v"),  # another engine
        ("a|t|new prompt", ["a|t|v", "a|u|v"], "a|t|v"),
        ("b|t|v", ["a|t|v", "c|t|v"], None),  # of which of the two is not known
        ("a|x|v", ["a|t|v"], None),
    ],
)
def test_answers_after_a_change_get_the_base_rate_of_their_run_before(
    name: str, known: list[str], before: str | None
) -> None:
    assert run_before(name, known) == before
