"""`compare --scores`: a method of the user's own stands beside the others, and a file that is not one is refused."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import made_up

from metaprobe.eval.compare import method_results
from metaprobe.records.errors import RecordError
from metaprobe.training.methods import MEAN_LOGPROB
from metaprobe.training.recipes.comparison import own_methods
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
