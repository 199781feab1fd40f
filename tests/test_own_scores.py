"""`compare --scores`: a method of the user's own stands beside the others, and a file that is not one is refused."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import made_up

import metaprobe
from metaprobe.eval.compare import method_results
from metaprobe.eval.report.words import brief
from metaprobe.records.errors import RecordError
from metaprobe.training.methods import MEAN_LOGPROB
from metaprobe.training.recipes.compare_runs import own_methods
from metaprobe.training.study import crossfit, standard_methods

RECORDED = Path(__file__).parent.parent / "recorded" / "creak-metacrit"


def written(path: Path, ids: Sequence[str], scores: Sequence[object], header: str = "call_id,score") -> Path:
    rows = [f"{call_id},{score}" for call_id, score in zip(ids, scores, strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_the_mean_log_probability_from_a_file_gets_the_figures_of_the_mean_log_probability(tmp_path: Path) -> None:
    evidence = made_up(300)
    ids = evidence.table.call_ids.tolist()
    mean = [float(np.mean(values, dtype=np.float64)) for values in evidence.table.logprobs]
    file = written(tmp_path / "mine.csv", ids[::-1], [repr(value) for value in mean[::-1]])  # in any order
    [mine] = own_methods([file], evidence.table, ids, ())
    standard = [m for m in standard_methods(evidence) if m.name in (MEAN_LOGPROB, "length", "stated confidence")]
    fits = crossfit(evidence, [*standard, mine], folds=3)
    found = {result.name: result for result in method_results(evidence.table, fits.methods, resamples=200)}
    own, same = found["mine"], found[MEAN_LOGPROB]
    assert own.family == "own"
    assert own.auroc == same.auroc
    assert own.diff_stated == same.diff_stated
    assert own.controls is not None
    assert own.controls.strongest.name == MEAN_LOGPROB
    assert own.diff_control is not None
    assert (own.diff_control.low, own.diff_control.high) == (0, 0)
    np.testing.assert_allclose(own.probability, same.probability)


TABLE = made_up(12).table
IDS = TABLE.call_ids.tolist()


@pytest.mark.parametrize(
    ("ids", "scores", "header", "said"),
    [
        (["x", *IDS], [1] * 13, "call_id,score", "these runs hold no call 'x'; expected ids such as 'c0'"),
        ([*IDS, "c3"], [1] * 13, "call_id,score", r"mine.csv:14: 'c3' was given before"),
        (IDS, [1] * 11 + ["nan"], "call_id,score", r"mine.csv:13: 'c11' has the score 'nan'; expected a finite number"),
        (IDS, [1] * 11 + [""], "call_id,score", "'c11' has the score ''"),
        (IDS, ["high"] * 12, "call_id,score", "has the score 'high'"),
        (IDS[:4], [1] * 4, "call_id,score", "no score of 'c4', 'c5', 'c6' and 5 more; expected one of each of 12"),
        (IDS, [1] * 12, "id,value", "the first line is id,value; expected a header with the columns call_id and score"),
    ],
)
def test_a_file_that_is_not_right_is_refused(
    ids: list[str], scores: list[object], header: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(RecordError, match=said):
        own_methods([written(tmp_path / "mine.csv", ids, scores, header)], TABLE, IDS, ())


def test_bytes_that_are_no_text_and_names_that_are_taken_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(b"call_id,score\n\xff\xfe,1\n")
    with pytest.raises(RecordError, match="is no CSV file in UTF-8"):
        own_methods([tmp_path / "mine.csv"], TABLE, IDS, ())
    file = written(tmp_path / "length.csv", IDS, [1] * 12)
    with pytest.raises(RecordError, match="a method is called 'length' already"):
        own_methods([file], TABLE, IDS, ("length",))
    with pytest.raises(RecordError, match="a method is called 'length' already"):
        own_methods([file, file], TABLE, IDS, ())


# Answers without log-probabilities: what was stated is compared with what the question tells, and own scores.


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 imported answers; the stated confidence knows something, the file own.csv more."""
    folder = tmp_path_factory.mktemp("stated")
    rng = np.random.default_rng(0)
    lines, scores = [], ["call_id,score"]
    for i in range(240):
        right = int(rng.random() < 0.5)
        answer = {"message": {"role": "assistant", "content": f"answer {i}"}, "finish_reason": "stop"}
        lines.append(
            {
                "id": f"q{i}",
                "messages": [{"role": "user", "content": f"question {i} of {rng.integers(9)}"}],
                "labels": {"correct": right},
                "verbalized_confidence": float(np.clip(0.5 + 0.15 * right + rng.normal(0, 0.2), 0, 1)),
                "response": {"model": "m", "choices": [answer]},
            }
        )
        scores.append(f"q{i},{right + rng.normal(0, 0.5)}")
    (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "own.csv").write_text("\n".join(scores) + "\n")
    report = metaprobe.import_file(folder / "lines.jsonl", metaprobe.RunStore(folder / "runs"))
    assert report.without_logprobs == 240
    return folder


@pytest.mark.slow
def test_stated_confidence_and_a_method_of_ones_own_are_compared(store: Path, tmp_path: Path) -> None:
    found = metaprobe.compare(store / "runs", scores=store / "own.csv", folds=3, out=tmp_path / "out")
    by_name = {method.name: method for method in found.methods}
    assert not {"mean log-probability", "length", "learned on logprobs"} & by_name.keys()
    stated, own = by_name["stated confidence"], by_name["own"]
    assert 0.6 < stated.auroc.estimate < own.auroc.estimate
    assert own.diff_stated is not None
    assert own.diff_stated.low > 0
    assert found.headline == "own"
    assert any("hold no log-probabilities" in note for note in found.notes)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_stated_confidence_stands_by_itself_too(store: Path, tmp_path: Path) -> None:
    found = metaprobe.compare(store / "runs", folds=3, out=tmp_path / "out")
    assert found.headline == "stated confidence"
    assert not brief(found).learned


def test_nothing_is_trained_on_them(store: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="240 have it but no log-probabilities"):
        metaprobe.train_quality(store / "runs", out=tmp_path / "q")
