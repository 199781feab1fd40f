"""Every command that takes outcomes reads them from a table too, and says which columns came where it cannot."""

import csv
import gzip
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.records.errors import ImportFileError
from metaprobe.records.extras import require
from metaprobe.records.outcome_tables import table_records
from metaprobe.records.outcomes import is_outcomes, read_outcomes

TABLE = """id,prompt,category,small,large,temperature
q1,"What is 6, times 7?",sums,1,0.5,0.2
q2,Who wrote Emma?,books,true,,0.2
q3,Who wrote it?,books,2,1,0.2
q1,again,books,1,1,0.2
"""


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, [str(one) for one in arguments])
    return done.exit_code, done.stdout, done.stderr


def write_table(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cheap model that is right on easy questions, and a dear one that is right on most."""
    rng, rows = np.random.default_rng(3), list[dict[str, object]]()
    for i in range(120):
        easy = i % 2 == 0
        row: dict[str, object] = {"id": f"q{i}", "question": f"An {'easy' if easy else 'odd'} question {i}?"}
        for name, chance, cost in (("small", 0.9 if easy else 0.3, 1e-4), ("large", 0.9, 2e-3)):
            right = int(rng.random() < chance)
            row |= {f"{name}.correct": right, f"{name}.confidence": 0.3 + 0.4 * right + 0.2 * rng.random()}
            row |= {f"{name}.cost_usd": cost}
        rows.append(row)
    return write_table(tmp_path_factory.mktemp("tables") / "outcomes.csv", rows)


@pytest.fixture(scope="module")
def router(table: Path) -> Path:
    """The router that the command learns from the table."""
    code, _, errors = run("train", "router", table, "--out", table.with_name("router"))
    assert code == 0, errors
    return table.with_name("router")


def test_every_command_of_outcomes_reads_a_table(table: Path, router: Path, tmp_path: Path) -> None:
    for recipe in ("panel", "success"):
        code, _, errors = run("train", recipe, table, "--out", tmp_path / recipe)
        assert code == 0, errors
    code, out, errors = run("evaluate", "router", router, table, "--json")
    assert code == 0, errors
    assert json.loads(out)["questions"] == 120
    assert run("evaluate", "panel", tmp_path / "panel", table)[0] == 0
    code, out, _ = run("advise", table)
    assert code == 0
    assert f"metaprobe train router {table}" in out.replace("\n", " ")
    code, _, errors = run("promote", router, table, "--over", router)
    assert code == 1
    assert "was trained on" in errors  # so the table was read


def test_a_flat_cost_of_each_agent_stands_for_the_column_that_a_table_lacks(table: Path, tmp_path: Path) -> None:
    with table.open(newline="") as file:
        bare = [{name: cell for name, cell in row.items() if "cost" not in name} for row in csv.DictReader(file)]
    path = write_table(tmp_path / "bare.csv", bare)
    code, _, errors = run("train", "router", path, "--out", tmp_path / "none")
    assert code == 1
    assert "--cost-usd NAME=USD" in errors
    costs = ("--cost-usd", "small=0.0001", "--cost-usd", "large=2e-3")
    assert run("train", "router", path, *costs, "--out", tmp_path / "flat")[0] == 0
    assert run("train", "router", table, "--out", tmp_path / "columns")[0] == 0
    by_option = run("evaluate", "router", tmp_path / "flat", path, *costs, "--json")[1]
    by_column = run("evaluate", "router", tmp_path / "columns", table, "--json")[1]
    assert json.loads(by_option)["budgets"] == json.loads(by_column)["budgets"]
    for wrong in ("smal=0.1", "small=-1", "small=cheap", "0.1"):
        code, _, errors = run("train", "router", path, "--cost-usd", wrong, "--out", tmp_path / "other")
        assert code == 1
        assert f"'{wrong}'; expected NAME=USD" in errors
        assert "one of large, small" in errors


def test_a_misspelt_field_of_an_agent_is_named(table: Path, tmp_path: Path) -> None:
    with table.open(newline="") as file:
        renamed = [
            {name.replace("cost_usd", "cost"): cell for name, cell in row.items()} for row in csv.DictReader(file)
        ]
    path = write_table(tmp_path / "renamed.csv", renamed)
    with pytest.warns(UserWarning, match=r"columns small\.cost, large\.cost are not read; expected small\.cost_usd, "):
        read_outcomes(path)
    lines = [{"id": f"q{i}", "agents": {"a": {"correct": 1, "cost": 0.1}, "b": {"corect": 1}}} for i in range(9)]
    (tmp_path / "o.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    expected = '"cost" of 9 outcomes, "corect" of 9 outcomes; expected "cost_usd", "correct": rename them'
    with pytest.warns(UserWarning, match=expected):
        read_outcomes(tmp_path / "o.jsonl")


def test_keys_that_resemble_no_missing_field_are_ignored_in_silence(tmp_path: Path) -> None:
    agent = {"correct": 1, "cost_usd": 0.1, "cost": 3, "run": "x", "tokens": 7, "prompt": "hello", "model": "m"}
    (tmp_path / "o.jsonl").write_text(json.dumps({"id": "q", "agents": {"a": agent}}) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_outcomes(tmp_path / "o.jsonl")[0].agents["a"].cost_usd == 0.1


def test_a_table_of_questions_that_nobody_was_asked_is_routed(router: Path, tmp_path: Path) -> None:
    asked = write_table(tmp_path / "asked.csv", [{"id": "a", "question": "An easy question?"}])
    code, out, errors = run("route", router, asked)
    assert code == 0, errors
    assert json.loads(out)["action"] == "ask"
    later = write_table(tmp_path / "later.csv", [{"id": "a", "question": "An easy one?", "small.confidence": 0.9}])
    assert json.loads(run("route", router, later)[1])["agent"] in ("small", "large")


def test_a_table_keeps_candidates_and_propensities(router: Path, tmp_path: Path) -> None:
    for only in ("small", "large"):
        asked: list[dict[str, object]] = [{"question": "An odd question?", "candidates": json.dumps([only])}]
        code, out, errors = run("route", router, write_table(tmp_path / "asked.csv", asked))
        assert code == 0, errors
        assert json.loads(out)["agent"] == only
    logged: list[dict[str, object]] = [
        {"id": f"q{i}", "a.correct": i % 2, "b.correct": "", "chosen": "a", "propensities": propensities}
        for i, propensities in enumerate(['{"a": 0.9, "b": 0.1}', '{"a": 0.5, "b": 0.5}', "a: 0.9"])
    ]
    with pytest.warns(UserWarning, match="column 'propensities' holds"):
        questions = read_outcomes(write_table(tmp_path / "logged.csv", logged))
    assert [(one.chosen, one.propensities["a"]) for one in questions] == [("a", 0.9), ("a", 0.5)]


def test_columns_that_no_suffix_marks_are_named_by_the_user(table: Path, tmp_path: Path) -> None:
    with table.open(newline="") as file:
        plain = [
            {"id": row["id"], "gpt 4": row["small.correct"], "b": row["large.correct"], "temperature": 0.5, "task": ""}
            for row in csv.DictReader(file)
        ]
    path = write_table(tmp_path / "plain.csv", plain)
    code, _, errors = run("train", "panel", path, "--out", tmp_path / "panel")
    assert code == 1
    assert "the columns id, gpt 4, b, temperature" in errors
    assert "--agent NAME" in errors
    assert "gpt 4, b hold only such numbers" in errors
    code, out, _ = run("advise", path)
    assert "--agent 'gpt 4' --agent b" in " ".join(out.split())
    assert run("train", "panel", path, "--agent", "gpt 4", "--agent", "b", "--out", tmp_path / "panel")[0] == 0
    code, _, errors = run("train", "panel", path, "--agent", "gpt 5", "--agent", "b", "--out", tmp_path / "other")
    assert code == 1
    assert "none of gpt 5" in errors


def test_compressed_tables_and_parquet_are_read_alike(table: Path, tmp_path: Path) -> None:
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(table.read_bytes()))
    rows = require("pyarrow.csv", "fit").read_csv(str(table))
    require("pyarrow.parquet", "fit").write_table(rows, str(tmp_path / "rows.parquet"))
    wanted = read_outcomes(table)
    assert wanted[0].agents["small"].cost_usd == 1e-4
    assert read_outcomes(tmp_path / "packed.csv.gz") == wanted
    assert read_outcomes(tmp_path / "rows.parquet") == wanted


def test_answers_in_tables_are_scored_and_joined(tmp_path: Path) -> None:
    files = []
    for agent in ("north", "south"):
        rows: list[dict[str, object]] = [
            {"id": f"q{i}", "question": "2 + 2?", "answer": "4!", "correct": i % 2, "logprobs": "[-0.1, -0.2]"}
            | {"tokens": '["4", "!"]'}
            for i in range(3)
        ]
        files.append(write_table(tmp_path / f"{agent}.csv", rows))
    code, out, errors = run("outcomes", *files, "--out", tmp_path / "joined.jsonl")
    assert code == 0, errors
    assert json.loads(out)["agents"].keys() == {"north", "south"}
    assert read_outcomes(tmp_path / "joined.jsonl")[1].agents["south"].answer == "4!"
    code, out, errors = run("score", "bundled:quality", files[0])
    assert code == 0, errors
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["q0", "q1", "q2"]
    code, _, errors = run("score", "bundled:quality", write_table(tmp_path / "other.csv", [{"id": "a", "said": "4"}]))
    assert code == 1
    assert "the columns are id, said; expected `response` or `answer`" in errors


def test_named_columns_are_agents_and_bad_rows_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    with pytest.warns(UserWarning, match="left out"):
        one, two = read_outcomes(path, agents=["small", "large"])
    assert (one.question, one.dimension, one.group) == ("What is 6, times 7?", "sums", "q1")
    assert {name: outcome.score for name, outcome in one.agents.items()} == {"small": 1.0, "large": 0.5}
    assert {name: outcome.score for name, outcome in two.agents.items()} == {"small": 1.0}


def test_tabs_and_rows_without_an_id_are_read(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text("question\ta\nx\t0\ny\t1\n")
    assert [one.agents["a"].score for one in read_outcomes(path, agents=["a"])] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "agents", "noun"),
    [("question,a\nx,1\n", [], "--agent"), ("question,a\nx,1\n", ["b"], "b"), ("text,a\nx,1\n", ["a"], "question")],
)
def test_a_table_without_what_is_named_is_refused(tmp_path: Path, text: str, agents: list[str], noun: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ImportFileError, match=noun):
        read_outcomes(path, agents=agents)


def test_a_column_that_parquet_holds_twice_is_refused(tmp_path: Path) -> None:
    arrow = require("pyarrow", "fit")
    columns = [arrow.array(values) for values in (["q1", "q2"], [1, 1], [0, 0], [0, 1])]
    table = arrow.table(columns, names=["id", "small.correct", "small.correct", "large.correct"])
    require("pyarrow.parquet", "fit").write_table(table, tmp_path / "table.parquet")
    with pytest.raises(ImportFileError, match=r"the column 'small.correct' twice"):
        read_outcomes(tmp_path / "table.parquet")


def test_one_odd_label_costs_its_row_alone(tmp_path: Path) -> None:
    rows = [{"id": f"q{i}", "small.correct": str(i % 2), "large.correct": "1"} for i in range(9)]
    rows[4] |= {"small.correct": "maybe", "large.correct": "NaN"}
    write_table(tmp_path / "table.csv", list[dict[str, object]](rows))
    arrow = require("pyarrow", "fit").Table.from_pylist(rows)
    require("pyarrow.parquet", "fit").write_table(arrow, tmp_path / "table.parquet")
    for name in ("table.csv", "table.parquet"):
        assert is_outcomes(tmp_path / name)
        with pytest.warns(UserWarning, match="column 'small.correct' holds \"maybe\""):
            assert len(read_outcomes(tmp_path / name)) == 8


def test_a_whole_number_beyond_all_floats_costs_its_line_alone(tmp_path: Path) -> None:
    lines = [{"id": f"q{i}", "agents": {"a": {"correct": 1, "cost_usd": 10**400 if i == 3 else 1}}} for i in range(9)]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.warns(UserWarning, match="at most 300 digits"):
        assert len(read_outcomes(tmp_path / "lines.jsonl")) == 8


def test_teach_reads_its_questions_from_a_table(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"id": f"q{i}", "question": f"What is {i} + 1?"} for i in range(30)]
    table = write_table(tmp_path / "questions.csv", rows)
    code, _, errors = run("teach", "openai:m@http://127.0.0.1:9/v1", table, "--out", tmp_path / "o", "--dry-run")
    assert code == 0, errors
    assert "30 questions, 2 answers each" in errors


def test_columns_that_are_not_read_are_named_where_none_gives_the_kind_of_question(tmp_path: Path) -> None:
    cells = (f"q{n},What is {n}?,sums,sums,{n % 2},{(n + 1) % 2}" for n in range(9))
    rows = ["id,question,topic,dimension,a,b", *cells]
    whole, without = tmp_path / "whole.csv", tmp_path / "without.csv"
    whole.write_text("\n".join(rows), encoding="utf-8")
    without.write_text("\n".join(rows).replace("dimension", "note", 1), encoding="utf-8")
    with pytest.warns(UserWarning, match="columns topic, note are not read") as told:
        list(table_records(without, ["a", "b"], None))
    assert "dimension" in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(table_records(whole, ["a", "b"], None))) == 9
