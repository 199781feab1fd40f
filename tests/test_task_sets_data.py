"""Data of a task set are found where they may lie, and what is wrong with them is named by file, line and field."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from outside_rows import DATA, OUTSIDE, SET_8, real_data, rows

from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.tasks import TASKS, load_task


def write(folder: Path, name: str, n: int = 4, *, split: str | None = None, suffix: str = ".jsonl") -> Path:
    task = TASKS[name]
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row.values) + "\n" for row in rows(name, n))
    path = folder / f"{task.files[split or task.default_split]}{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    return path


def test_without_data_the_error_says_where_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METAPROBE_DATA", raising=False)
    for name in OUTSIDE:
        with pytest.raises(RecordError) as caught:
            load_task(name)
        for part in (TASKS[name].source, TASKS[name].licence, TASKS[name].folder, "METAPROBE_DATA", "--data"):
            assert part in str(caught.value)


def test_data_lie_in_a_folder_in_a_folder_of_sets_or_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "gsm8k", "gsm8k", suffix=".jsonl.gz")
    monkeypatch.setenv("METAPROBE_DATA", str(tmp_path))
    found = load_task("gsm8k")
    assert len(found) == 4
    assert found == load_task("gsm8k", data=tmp_path) == load_task("gsm8k", data=str(tmp_path / "gsm8k"))
    assert {item.split for item in found} == {"train"}


def test_a_split_is_a_file_or_a_field(tmp_path: Path) -> None:
    write(tmp_path, "gsm8k", 3, split="test")
    assert len(load_task("gsm8k", data=tmp_path, split="test")) == 3
    path = write(tmp_path / "creak", "creak", 6)
    lines = [json.loads(x) | {"split": ("dev", "train")[n % 2]} for n, x in enumerate(path.read_text().splitlines())]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert [item.id for item in load_task("creak", data=tmp_path, split="train")] == ["creak-1", "creak-3", "creak-5"]
    with pytest.raises(RecordError, match="no rows of split 'contrast'"):
        load_task("creak", data=tmp_path, split="contrast")


@pytest.mark.parametrize(
    ("task", "change", "says"),
    [
        ("gsm8k", {"final": "many"}, "train.jsonl:2: field 'final' is 'many'; expected a number"),
        ("gsm8k", {"question": " "}, "train.jsonl:2: field 'question' is ' '; expected a text"),
        ("creak", {"label": "maybe"}, "data.jsonl:2: field 'label' is 'maybe'; expected one of true, false"),
        ("mmlu", {"answer": 7}, "data.jsonl:2: field 'answer' is 7; expected a whole number from 0 to 3"),
        ("mmlu", {"choices": "abc"}, "data.jsonl:2: field 'choices' is 'abc'; expected a list of texts"),
        ("truthfulqa", {"mc1_labels": [1, 1, 0]}, "data.jsonl:2: field 'mc1_labels'.*expected 2 times 0 and one 1"),
        (
            "asap",
            {"rater1_traits": SET_8(9)},
            "data.jsonl:2: in 'rater1_traits': field 'ideas_content' is 9; expected a",
        ),
        ("asap", {"rater1_traits": SET_8(7)}, "'ideas_content' is 7; expected a whole number from 1 to 6"),
        ("bbq", {"id": "b0"}, "the id 'b0' is used twice"),
        ("mmlu", {"answer": float("inf")}, "field 'answer' is inf; expected a whole number from 0 to 3"),
        ("mmlu", {"answer": True}, "field 'answer' is True; expected a whole number from 0 to 3"),
        ("gsm8k", {"n_steps": 0}, "a whole number from 1 to 99"),
        ("places", {"popularity_decile": 10}, "a whole number from 0 to 9"),
        ("asap", {"rater2_traits": None}, "data.jsonl:2: expected the grades of two raters"),
        ("asap", {"essay_set": 6}, "a whole number from 7 to 8"),
        ("essays", {"traits": None}, "data.jsonl:2: field 'traits' is missing"),
        ("essays", {"traits": {"clarity_of_topic": 6}}, "'clarity_of_topic' is 6; expected a whole number from 1 to 5"),
        ("bbq", {"label": 3}, "a whole number from 0 to 2"),
    ],
)
def test_a_bad_line_is_named_with_file_line_field_and_what_was_expected(
    task: str, change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = write(tmp_path, task)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1] |= change
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(ImportFileError, match=says):
        load_task(task, data=tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"data": "nowhere"}, "nowhere holds no train.jsonl"),
        ({"split": "dev"}, "no split 'dev'; expected train or test"),
    ],
)
def test_a_wrong_folder_or_split_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(RecordError, match=says):
        load_task("gsm8k", **options)


@real_data
def test_a_limit_spreads_over_sets_and_traits_of_asap() -> None:
    some = load_task("asap", limit=300, data=DATA)
    assert set(Counter((item.dimension, item.level) for item in some).values()) == {30}
    assert some == load_task("asap", limit=300, data=DATA)


ORIGINALS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "How many?", "answer": "2 + 2 = <<2+2=4>>4\nSo 4.\n#### 1,004"},
    "truthfulqa": {"question": "Why?", "mc1_targets": {"choices": ["so", "not so"], "labels": [1, 0]}},
    "mmlu": {"question": "Which?", "choices": ["1", "2", "3", "4"], "answer": 2, "subject": "anatomy"},
    "creak": {"ex_id": "train_1", "sentence": "Ice is hot.", "label": "false", "entity": "Ice"},
    "bbq": {
        "example_id": 1, "question_index": 3, "question_polarity": "neg", "context_condition": "disambig",
        "category": "Age", "context": "They met.", "question": "Who?", "ans0": "The old man", "ans1": "The boy",
        "ans2": "Unknown", "label": 0, "additional_metadata": {"stereotyped_groups": ["old"]},
        "answer_info": {"ans0": ["man", "old"], "ans1": ["boy", "nonOld"], "ans2": ["Unknown", "unknown"]},
    },
}  # fmt: skip
"""Rows as the hub or the source repository has them."""


@pytest.mark.parametrize("name", ORIGINALS)
def test_rows_are_read_in_the_columns_of_their_source_as_well(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    path = tmp_path / f"{task.files[task.default_split]}.jsonl"
    path.write_text(json.dumps(ORIGINALS[name]) + "\n", encoding="utf-8")
    items = load_task(name, data=tmp_path)
    assert len(items) == 1
    assert all(item.task == name and item.split == task.default_split for item in items)
    if name == "gsm8k":
        assert (items[0].gold, items[0].level) == (("1004",), "1-2 steps")


def test_a_hub_data_set_is_loaded_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "test.jsonl").write_text(json.dumps(ORIGINALS["gsm8k"]) + "\n", encoding="utf-8")
    (item,) = load_task("gsm8k", data=f"hf:{hub}", split="test")
    assert (item.id, item.gold, item.split) == ("gsm8k-test-0", ("1004",), "test")
    with pytest.raises(RecordError, match=r"could not be loaded.*nosuch"):
        load_task("gsm8k", data=f"hf:{hub}", split="nosuch")
