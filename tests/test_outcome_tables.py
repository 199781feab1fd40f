"""A table with a column a model is outcomes; which columns are models is named, and a bad row is left out."""

from pathlib import Path

import pytest

from metaprobe.records.errors import ImportFileError
from metaprobe.records.outcome_tables import read_outcome_table

TABLE = """id,prompt,category,small,large,temperature
q1,"What is 6, times 7?",sums,1,0.5,0.2
q2,Who wrote Emma?,books,true,,0.2
q3,Who wrote it?,books,2,1,0.2
q1,again,books,1,1,0.2
"""


def test_named_columns_are_models_and_bad_rows_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    with pytest.warns(UserWarning, match="left out"):
        one, two = read_outcome_table(path, ["small", "large"])
    assert (one.question, one.dimension, one.group) == ("What is 6, times 7?", "sums", "q1")
    assert {name: outcome.score for name, outcome in one.agents.items()} == {"small": 1.0, "large": 0.5}
    assert {name: outcome.score for name, outcome in two.agents.items()} == {"small": 1.0}


def test_tabs_and_rows_without_an_id_are_read(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text("question\ta\nx\t0\ny\t1\n")
    assert [one.agents["a"].score for one in read_outcome_table(path, ["a"])] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "models", "noun"),
    [("question,a\nx,1\n", [], "candidate"), ("question,a\nx,1\n", ["b"], "b"), ("text,a\nx,1\n", ["a"], "question")],
)
def test_a_table_without_what_is_named_is_refused(tmp_path: Path, text: str, models: list[str], noun: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ImportFileError, match=noun):
        read_outcome_table(path, models)
