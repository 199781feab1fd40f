"""Importing a file again: labels and prompts that changed, and answers that must not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_lines import FULL, RESPONSE, changed, lines_of, write_lines

from metaprobe.records.errors import ImportFileError
from metaprobe.records.import_store import ImportReport, import_file
from metaprobe.records.importer import read_openai_lines
from metaprobe.records.store import RunStore


def test_importing_again_after_mending_adds_each_line_once(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    path = tmp_path / "calls.jsonl"
    good = [changed(id=i) for i in range(5)]
    write_lines(path, *good[:3], json.dumps(good[3]).encode()[:80], good[4])
    with pytest.raises(ImportFileError, match=r"calls\.jsonl:4: "):
        import_file(path, store, strict=True)
    assert len(store) == 3
    write_lines(path, *good)
    assert import_file(path, store) == ImportReport(2, 3, labelled=5, groups=1)
    assert import_file(path, store) == ImportReport(0, 5, labelled=5, groups=1)
    assert [run.item.id for run in store] == list("01234")


def test_corrected_labels_replace_the_stored_ones_and_nothing_else_changes(tmp_path: Path) -> None:
    store, path = RunStore(tmp_path / "runs"), tmp_path / "calls.jsonl"
    write_lines(path, *lines_of(100))  # two shards
    import_file(path, store)
    shards, before = store.shards(), list(store)
    kept = shards[1].read_bytes()
    corrected = [{**line, "labels": {"correct": 1}} if line["id"] < 10 else line for line in lines_of(100)]
    report = import_file(write_lines(path, *corrected), store)
    assert (report.imported, report.already_stored, report.relabelled, report.labelled) == (0, 100, 5, 100)
    after = list(store)
    assert [run.id for run in after] == [run.id for run in before]
    assert [run.label("correct", run.id) for run in after] == [1.0] * 10 + [i % 2 for i in range(10, 100)]
    assert [run.outcome for run in after] == [run.label("correct", run.id) for run in after]
    assert store.shards() == shards
    assert shards[1].read_bytes() == kept, "a shard with nothing to change was written anew"
    for old, new in zip(before, after, strict=True):
        assert (old.calls[0].text, old.calls[0].tokens) == (new.calls[0].text, new.calls[0].tokens)
        np.testing.assert_array_equal(old.calls[0].top_logprobs, new.calls[0].top_logprobs)
        assert (old.item, old.statements) == (new.item, new.statements)
    assert import_file(path, store).relabelled == 0


def test_a_misspelt_label_is_named_and_gone_after_the_mended_file(tmp_path: Path) -> None:
    store, path = RunStore(tmp_path / "runs"), tmp_path / "calls.jsonl"
    first = import_file(write_lines(path, changed(labels={"corect": 1}), changed(id="b", labels={"corect": 0})), store)
    assert first.notes == (f"{path}:1: label 'corect' is stored under that name; did you mean 'correct'?",)
    assert import_file(write_lines(path, changed(labels={"correct": 1})), store).relabelled == 1
    assert [[label.name for label in run.labels] for run in store] == [["correct"], ["corect"]]


def test_what_a_line_leaves_out_stays_and_a_label_of_null_is_taken_back(tmp_path: Path) -> None:
    store, path = RunStore(tmp_path / "runs"), tmp_path / "calls.jsonl"
    import_file(write_lines(path, FULL), store)
    (before,) = store
    bare = {key: FULL[key] for key in ("id", "run_id", "response")}
    assert import_file(write_lines(path, {**bare, "labels": None}), store).relabelled == 0
    nothing = {"messages": [], "sampling": {}, "group": "", "labels": {}}
    assert import_file(write_lines(path, {**bare, **nothing}), store) == ImportReport(0, 1, groups=1)
    report = import_file(write_lines(path, {**bare, "labels": {"correct": None}, "group": "towns"}), store)
    assert report.relabelled == 1
    (after,) = store
    assert (after.labels, after.outcome, after.item.group) == ((), None, "towns")
    assert (after.item.task, after.statements) == (before.item.task, before.statements)
    assert (after.calls[0].messages, after.calls[0].model) == (before.calls[0].messages, before.calls[0].model)


def test_a_prompt_may_come_late_also_one_with_a_broken_character(tmp_path: Path) -> None:
    store, path = RunStore(tmp_path / "runs"), tmp_path / "calls.jsonl"
    import_file(write_lines(path, {"id": "a", "response": RESPONSE}), store)
    prompt = [{"role": "user", "content": "Capital\ud83d?"}]
    line = json.dumps({"id": "a", "response": RESPONSE, "messages": prompt}).encode()
    assert import_file(write_lines(path, line), store).relabelled == 1
    assert [(run.item.question, run.calls[0].messages[0].content) for run in store] == [("Capital\ufffd?",) * 2]
    assert import_file(path, store) == ImportReport(0, 1, groups=1)


OTHER_ANSWER = json.loads(json.dumps(RESPONSE).replace("-0.5", "-0.625"))


@pytest.mark.parametrize(
    "other", [{"response": OTHER_ANSWER}, {"messages": [{"role": "user", "content": "Hauptstadt von Peru?"}]}]
)
def test_an_id_stored_with_another_answer_or_prompt_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    store, path = RunStore(tmp_path / "runs"), tmp_path / "calls.jsonl"
    import_file(write_lines(path, *lines_of(3)), store)
    second, third = ({**line, **other, "labels": {"correct": 0}} for line in lines_of(3)[1:])
    write_lines(path, {**lines_of(1)[0], "labels": {"correct": 1}}, second, third)
    before = [run.outcome for run in store]
    with pytest.raises(ImportFileError, match=r"2 of 3 lines of .*calls\.jsonl:2: id '1' is stored with another "):
        import_file(path, store)
    assert [run.outcome for run in store] == before, "most lines are bad, so that the first does not count either"
    with pytest.raises(ImportFileError, match=r"calls\.jsonl:2: id '1' is stored with another .*\(as of 2 lines\)"):
        import_file(path, store, strict=True)
    assert [run.outcome for run in store] == [1.0, 1.0, 0.0], "the line before it counts, the others stay"
    write_lines(path, {**lines_of(1)[0], "labels": {"correct": 0}}, second, third, changed(id="new"))
    bad = tmp_path / "bad.jsonl"
    report = import_file(path, store, bad=bad)
    assert (report.imported, report.already_stored, report.relabelled, report.bad) == (1, 1, 1, 2)
    assert bad.read_bytes() == b"".join(path.read_bytes().splitlines(keepends=True)[1:3]), "as they came, answers too"


def test_a_store_without_texts_gets_labels_and_no_prompt(tmp_path: Path) -> None:
    store, path = RunStore(tmp_path / "runs"), write_lines(tmp_path / "calls.jsonl", FULL)
    with store.writer(text=False) as writer:
        writer.add(next(read_openai_lines(path)))
    assert import_file(path, store).relabelled == 0
    assert import_file(write_lines(path, {**FULL, "labels": {"correct": 0}}), store).relabelled == 1
    assert [(run.outcome, run.item.question, run.calls[0].messages) for run in store] == [(0.0, "", ())]


def test_a_label_or_a_prompt_in_the_wrong_place_is_named_once(tmp_path: Path) -> None:
    stray = {"id": "a", "critical": 1, "prompt": "?", "customer": "x", "response": RESPONSE}
    path = write_lines(tmp_path / "calls.jsonl", stray, {**stray, "id": "b"}, {**FULL, "prompt": "?"})
    first, second = sorted(import_file(path, RunStore(tmp_path / "runs")).notes)
    assert first == f'{path}:1: "critical" is not read; if it was meant for "labels", write "labels": {{"correct": 1}}'
    assert second == f'{path}:1: "prompt" is not read; if it was meant for "question", write "question": "..."'
    beside = write_lines(tmp_path / "bare.jsonl", {**RESPONSE, "prompt": None, "lables": {"correct": 1}})
    with pytest.raises(ImportFileError, match="unknown key 'lables'; did you mean 'labels'"):
        import_file(beside, RunStore(tmp_path / "bare"))
