"""Importing recorded OpenAI-format lines."""

import gzip
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from answer_formats import CORPUS
from import_lines import FULL, RESPONSE, changed, write_lines

from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.import_line import run_of_line
from metaprobe.records.import_store import ImportReport, import_file
from metaprobe.records.importer import read_openai_lines
from metaprobe.records.lines import iter_csv, iter_json_lines
from metaprobe.records.parse import parse_response
from metaprobe.records.store import RunStore
from metaprobe.records.types import Label, Message, Sampling, Statement


def test_a_full_line_becomes_a_run_with_everything_in_it(tmp_path: Path) -> None:
    (run,) = read_openai_lines(write_lines(tmp_path / "calls.jsonl.gz", FULL))
    (call,) = run.calls
    assert (run.id, run.system, run.variant, call.id) == ("monday/q1", "import", "monday", "monday/q1")
    assert (run.item.id, run.item.group, run.item.task) == ("q1", "capitals", "capitals")
    assert run.item.question == "Hauptstadt von Österreich?"
    assert call.messages[2] == Message("assistant", "")
    assert (call.text, call.tokens, call.logprobs.tolist()) == ("Wien", ("W", "ien"), [-0.25, -0.5])
    assert (call.model, call.stage, call.agent, call.logprobs_mode) == ("my-model", "answer", "solver", "raw")
    assert call.sampling == Sampling(temperature=0.7, seed=3)
    assert run.labels == tuple(
        Label(call.id, name, value, "import")
        for name, value in [("correct", 1.0), ("instruction", 2.0), ("quality", 2.5), ("critical", 0.0)]
    )
    assert run.statements == (Statement(call.id, "confidence", 0.9),)
    assert (run.final_answer, run.outcome) == ("Wien", 1.0)


def test_only_the_response_is_required(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "calls.jsonl", {"response": RESPONSE}, b"", {"response": json.dumps(RESPONSE)})
    first, second = read_openai_lines(path)
    assert (first.id, second.id) == ("calls-line-1", "calls-line-3")
    assert (first.item.group, first.item.question, first.calls[0].model) == ("calls-line-1", "", "gpt-test-mini")
    assert (first.labels, first.statements, first.outcome) == ((), (), None)


def test_stating_nothing_is_not_silence_and_one_question_in_two_collections_is_two_runs(tmp_path: Path) -> None:
    path, asked = tmp_path / "a.jsonl", {**FULL, "run_id": "tuesday", "verbalized_confidence": None}
    # A byte order mark and line ends of Windows do no harm.
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(json.dumps(one).encode() + b"\r\n\r\n" for one in (FULL, asked)))
    first, second = read_openai_lines(path)
    assert (first.id, second.id) == ("monday/q1", "tuesday/q1")
    assert [statement.value for statement in second.statements] == [None]


WITHOUT_LOGPROBS = {**RESPONSE, "choices": [{**RESPONSE["choices"][0], "logprobs": None}]}  # type: ignore[index, dict-item]
MASKED = {**RESPONSE, "choices": [{"text": "a b", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-0.1, -1e30]}}]}
BAD_LINES = [
    (changed(response=MASKED), r"token 1 \(of 2\) is -1e\+30; expected at least -9999: .* minus infinity"),
    (json.dumps(FULL).encode()[:200], "not JSON: .* 200 bytes long.*if it was cut off"),
    (b'{"id": "\xff"}', r"byte 9 \(0xff\) is not UTF-8"),
    (b"[1, 2]", r"came \[1, 2\] \(list\); expected one JSON object"),
    (b'{"id": ' + b"9" * 5000 + b"}", "not JSON"),
    ({"id": "q2"}, '"response" is missing'),
    (changed(response=WITHOUT_LOGPROBS, verbalized_confidence=None), "no log-probabilities.*logprobs=True.*verbalized"),
    (changed(labels={"correct": "yes"}), r"label 'correct' is \"yes\" \(str\); expected 0 or 1"),
    (changed(labels={"evidence": 2.5}), "label 'evidence' is 2.5 .* expected 1 or 2 or 3"),
    (changed(labels={"quality": 10}), "label 'quality' is 10 .* expected a number from 0 to 9"),
    (changed(labels={"mine": float("nan")}), r"label 'mine' is NaN .* expected a finite number"),
    (changed(labels={"mine": 10**400}), "expected a finite number"),
    (changed(labels=[1]), '"labels" is .* expected an object'),
    (changed(verbalized_confidence=90), r'"verbalized_confidence" is 90 \(int\); expected a number from 0 to 1'),
    (changed(messages="Hi"), '"messages" is "Hi"'),
    (changed(messages=[{"content": "Hi"}]), "expected a list of {"),
    (changed(sampling={"temperature": "hot"}), "sampling 'temperature' is \"hot\""),
    (changed(sampling={"seed": 0.5}), "sampling 'seed' is 0.5 .* expected a whole number"),
    (changed(sampling=3), '"sampling" is 3'),
    (changed(sampling={"temperature": 100.5}), "sampling 'temperature' is 100.5 .* expected a number from 0 to 100"),
    (changed(sampling={"seed": 2**63}), "expected a whole number of 64 bits"),
    (changed(stage=["ü" * 60]), r'"stage" is \["' + "ü" * 55 + r"\.\.\. \(list\)"),
    (changed(logprobs_mode="cooked"), '"logprobs_mode" is "cooked" .* raw, processed, unknown'),
    (changed(id=True), '"id" is true'),
    (FULL, "id 'monday/q1' was already used on line 1"),
    ({**RESPONSE, "label": {"correct": 1}}, "unknown key 'label'; did you mean 'labels'"),
    (changed(verbalised_confidence=0.4), "unknown key 'verbalised_confidence'; did you mean 'verbalized_confidence'"),
    (changed(labels=None) | {"lables": {"correct": 1}}, "unknown key 'lables'; did you mean 'labels'"),
    (changed(labels=None) | {"corect": 1}, "unknown key 'corect'; did you mean 'correct'"),
]


def test_a_file_that_breaks_off_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "calls.jsonl.gz", *[changed(id=i) for i in range(50)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ImportFileError, match=r"calls.jsonl.gz:\d+: the compressed file is damaged or cut off"):
        list(read_openai_lines(path))
    with pytest.raises(ImportFileError, match="no such file"):
        list(iter_json_lines(tmp_path / "absent.jsonl"))
    with pytest.raises(ImportFileError, match="is a folder"):
        list(iter_json_lines(tmp_path))


@pytest.mark.parametrize(
    ("name", "first", "rest", "reason"),
    [
        ("calls.jsonl.gz", b'{"id": "a"}\n', b" ", "the line is longer than 1000 bytes"),
        ("calls.csv.gz", b"id,answer\n", b"x", "the row is longer than 1000 characters"),
        ("calls.csv.gz", b"id,answer\n", b'"\n",', "the row is longer than 1000 characters"),
    ],
)
def test_a_line_that_unpacks_without_end_is_refused_before_it_fills_the_memory(
    name: str, first: bytes, rest: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.records.lines.MAX_LINE", 1000)
    path = tmp_path / name
    path.write_bytes(gzip.compress(first + rest * ((32 << 20) // len(rest))))
    tracemalloc.start()
    with pytest.raises(ImportFileError, match=rf"{name}:2: {reason}"):
        list(iter_csv(path) if "csv" in name else iter_json_lines(path))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20, "the file unpacks to 32 MB"


def test_every_bad_line_is_named_and_every_good_one_kept(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    for place, (bad, message) in enumerate(BAD_LINES):
        path = write_lines(tmp_path / "calls.jsonl", FULL, bad, changed(id=f"last-{place}"))
        report = import_file(path, store)
        [(reason, told)] = report.reasons.items()
        assert (report.bad, told.count, report.imported, bool(reason)) == (1, 1, 1 + (not place), True)
        assert re.search(rf"calls\.jsonl:2: .*{message}", told.first), told.first
        with pytest.raises(ImportFileError, match=r"calls\.jsonl:2: "):
            list(read_openai_lines(path, strict=True))
    assert store.run_ids() == {"monday/q1", *(f"monday/last-{place}" for place in range(len(BAD_LINES)))}


def test_a_line_of_a_file_may_be_a_bare_response_or_one_in_batch_output() -> None:
    response = CORPUS["openai_response"]
    bare = run_of_line(response, "line-1").calls[0]
    batch = run_of_line({"custom_id": "mine", "response": {"status_code": 200, "body": response}}, "line-1").calls[0]
    assert bare.logprobs is not None
    assert batch.logprobs is not None
    assert bare.logprobs.tolist() == batch.logprobs.tolist() == parse_response(response).logprobs.tolist()
    assert batch.id == "mine"
    unlikely = run_of_line(changed(response=json.loads(json.dumps(MASKED).replace("-1e+30", "-9999.0"))), "line-1")
    assert unlikely.calls[0].logprobs.tolist()[1] == -9999.0  # as servers write, and no mask


@pytest.mark.parametrize(("document", "way"), [([FULL, FULL], "'.[]'"), (FULL, "'.'")])
def test_one_json_document_over_many_lines_is_refused_once_and_as_a_whole(
    tmp_path: Path, document: Any, way: str
) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text("\n" + json.dumps(document, indent=2))
    seen: list[ImportFileError] = []
    with pytest.raises(
        ImportFileError, match=f"one JSON document spread over many lines.*jq -c {re.escape(way)} calls"
    ):
        list(iter_json_lines(path, on_error=seen.append))
    assert not seen


def test_a_folder_of_other_files_is_no_store_to_import_into(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "calls.jsonl", FULL)
    with pytest.raises(RecordError, match=r"is no run store: it holds calls\.jsonl; expected"):
        import_file(path, RunStore(tmp_path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["calls.jsonl"]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".DS_Store").touch()
    assert import_file(path, RunStore(tmp_path / "runs")).imported == 1
    (tmp_path / "runs" / "notes.txt").touch()
    assert import_file(path, RunStore(tmp_path / "runs")).already_stored == 1


def test_an_answer_without_log_probabilities_is_taken_for_its_stated_confidence(tmp_path: Path) -> None:
    line = changed(response=WITHOUT_LOGPROBS, verbalized_confidence=0.4)
    path = tmp_path / "stated.jsonl"
    path.write_text(json.dumps(line) + "\n", encoding="utf-8")
    store = RunStore(tmp_path / "runs")
    report = import_file(path, store)
    assert (report.imported, report.without_logprobs) == (1, 1)
    [run] = store
    [call] = run.calls
    assert (call.text, call.logprobs, call.tokens) == ("Wien", None, ())
    assert run.stated("confidence", call.id) == 0.4
    assert run.label("correct", call.id) == 1


def test_an_answer_without_log_probabilities_is_known_again_by_its_text(tmp_path: Path) -> None:
    path, store = tmp_path / "stated.jsonl", RunStore(tmp_path / "runs")

    def imported(text: str, confidence: float) -> ImportReport:
        choice = {"message": {"role": "assistant", "content": text}}
        line = {"id": "q1", "verbalized_confidence": confidence, "response": {"choices": [choice]}}
        path.write_text(json.dumps(line) + "\n", encoding="utf-8")
        return import_file(path, store)

    assert imported("Wien", 0.4).imported == 1
    assert (again := imported("Wien", 0.6)).relabelled == 1
    assert again.imported == 0
    assert [run.stated("confidence") for run in store] == [0.6]
    with pytest.raises(ImportFileError, match="is stored with another answer"):
        imported("Graz", 0.6)


@pytest.mark.parametrize(
    "beside", [{"error": "boom"}, {"valid": False}, {"status": "failed"}, {"direction": "minimize"}]
)
def test_a_label_beside_a_state_that_says_otherwise_is_none(tmp_path: Path, beside: dict[str, Any]) -> None:
    lines = [changed(id=1, labels={"correct": 1, "helpful": 1}, **beside), changed(id=2, labels={"correct": 1})]
    store = RunStore(tmp_path / "runs")
    report = import_file(write_lines(tmp_path / "lines.jsonl", *lines), store)
    assert [run.label("correct", run.id) for run in store] == [None, 1.0]
    assert [run.label("helpful", run.id) for run in store] == [1.0, None]
    assert sum(report.taken.values()) == 1
    assert next(iter(beside)) in " ".join(report.taken)
