"""A malformed field in a log of another program is named, with what was expected in its place."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_logs import CHOICES, LOGS, SUMS, WORDS, edited, imported

from metaprobe.records.errors import ImportFileError
from metaprobe.records.import_store import import_file
from metaprobe.records.store import RunStore

HELM, PROMPTFOO = LOGS / "helm" / "sampled", LOGS / "promptfoo" / "sums.json"
BATCH = LOGS / "openai-batch"
Change = Callable[[Any], object]


def first_line(path: Path, to: Path, change: Change) -> Path:
    """A file of the first line alone, after `change`."""
    line = json.loads(path.read_text().splitlines()[0])
    change(line)
    to.write_text(json.dumps(line) + "\n")
    return to


def helm(tmp_path: Path, change: Change) -> Path:
    """A run of HELM whose first request is changed, and has no other."""

    def first(held: Any) -> None:
        change(held["request_states"][0])
        del held["request_states"][1:]

    (tmp_path / "log").mkdir()
    return edited(HELM / "scenario_state.json", tmp_path / "log" / "scenario_state.json", first)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state["instance"].update(id=5), r"the instance's id is 5 \(int\); expected text"),
        (lambda state: state["result"].update(success=False, error="busy: later"), r"1 x the request failed \(busy\)"),
        (lambda state: state.update(reference_index=0), "1 x the likelihood of a given text"),
        (lambda state: state["result"].update(completions=[]), "has no completions; expected at least one"),
        (lambda state: state["result"].update(completions={}), '"completions" is .*; expected a list'),
    ],
)
def test_a_request_of_helm_that_cannot_be_taken_says_why(change: Change, says: str, tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match=says):
        imported(helm(tmp_path, change), tmp_path)


@pytest.mark.parametrize(
    ("path", "change", "says"),
    [
        (SUMS, lambda line: line.update(doc_id="one"), r'"doc_id" is "one" \(str\); expected a whole number'),
        (SUMS, lambda line: line.update(resps=[]), r'1 "arguments" and 0 "resps"; expected as many'),
        (SUMS, lambda line: line.update(resps=[["7", 5]]), r"answer 1 is 5 \(int\); expected text"),
        (SUMS, lambda line: line.update(arguments=3), r'"arguments" is 3 \(int\); expected an object'),
        (CHOICES, lambda line: line["resps"][0].__setitem__(0, ["often", "True"]), "an option's answer is .*often"),
        (CHOICES, lambda line: line["resps"][0].__setitem__(0, [0.5, "True"]), "at most 0, true or false"),
        (WORDS, lambda line: None, "1 x the likelihood of a given text"),
    ],
)
def test_a_line_of_lm_eval_that_cannot_be_taken_says_why(path: Path, change: Change, says: str, tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match=says):
        imported(first_line(path, tmp_path / "samples.jsonl", change), tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda result: result["response"].update(output=None), "1 x the result has no output"),
        (lambda result: result.update(failureReason=2), "1 x the call or a check of it failed"),
        (lambda result: result["response"].update(error="down\nfor long"), r"1 x the call .* failed \(down\)"),
        (lambda result: result.update(id=None, testIdx="a"), 'expected an "id", or whole numbers'),
        (
            lambda result: result["gradingResult"].update({"pass": "yes"}),
            r'result passed is "yes" \(str\); expected true or',
        ),
        (lambda result: result.update(response=[]), r'"response" is \[\] \(list\); expected an object'),
    ],
)
def test_a_result_of_promptfoo_that_cannot_be_taken_says_why(change: Change, says: str, tmp_path: Path) -> None:
    def first(held: Any) -> None:
        results = held["results"]["results"]
        results[:] = [result for result in results if not result["response"].get("error")][:1]
        change(results[0])

    with pytest.raises(ImportFileError, match=says):
        imported(edited(PROMPTFOO, tmp_path / "log.json", first), tmp_path)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ('[{"role": "system", "content": "Be brief."}, {"role": "user"}]', [("system", "Be brief."), ("user", "")]),
        ('[{"content": "of nobody"}]', [("user", '[{"content": "of nobody"}]')]),
        ("[1, 2] is a list of", [("user", "[1, 2] is a list of")]),
        ("[]", [("user", "[]")]),
    ],
)
def test_a_prompt_of_promptfoo_is_a_chat_only_where_it_is_one(
    raw: str, told: list[tuple[str, str]], tmp_path: Path
) -> None:
    def first(held: Any) -> None:
        held["results"]["results"][1:] = []
        held["results"]["results"][0]["prompt"]["raw"] = raw

    _, (run,) = imported(edited(PROMPTFOO, tmp_path / "log.json", first), tmp_path)
    assert [(message.role, message.content) for message in run.calls[0].messages] == told


def test_a_batch_has_no_scores_and_every_line_an_id_of_its_own(tmp_path: Path) -> None:
    output, requests = BATCH / "chat_output.jsonl", BATCH / "requests.jsonl"
    with pytest.raises(ImportFileError, match="a batch has no scores, so there is none called 'f1'"):
        imported(output, tmp_path, correct="f1")
    for name in ("", 5):
        path = first_line(output, tmp_path / "output.jsonl", lambda line, name=name: line.update(custom_id=name))
        with pytest.raises(ImportFileError, match=r'"custom_id" is .*; expected text'):
            imported(path, tmp_path, form="openai-batch")
    (tmp_path / "twice.jsonl").write_text(2 * (requests.read_text().splitlines()[0] + "\n"))
    with pytest.raises(ImportFileError, match=r"twice\.jsonl:2: \"custom_id\" is .*; expected text, on each"):
        imported(output, tmp_path, requests=tmp_path / "twice.jsonl")


def test_a_row_of_a_table_that_cannot_be_read_is_named_and_can_be_passed_over(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in CHOICES.read_text().splitlines()[:3]]
    kept = ("doc_id", "arguments", "resps", "metrics", "acc")
    rows = [{key: line[key] for key in kept} | {"labels": "{}"} for line in lines]
    rows[1]["labels"] = "{broken"
    path = tmp_path / "samples.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(ImportFileError, match=r'samples\.parquet:2: the text under "labels" is no JSON '):
        imported(path, tmp_path, form="lm-eval", strict=True)
    report, runs = imported(path, tmp_path / "some", form="lm-eval")
    assert (report.imported, report.bad, len(runs)) == (2, 1, 2)
    assert "samples.parquet:2: " in next(iter(report.reasons.values())).first


def texts_of(path: Path, folder: Path) -> set[tuple[str, ...]]:
    shutil.rmtree(folder, ignore_errors=True)
    store = RunStore(folder)
    import_file(path, store)
    return {tuple(call.text for call in run.calls) for run in store}


@pytest.mark.parametrize("bad", ["{", "cut", "[1, 2]", "null", '{"a": 1}', "{}", "\x00"])
@pytest.mark.parametrize("place", ["first", "in the middle", "last"])
@pytest.mark.parametrize("name", ["lm-eval", "openai-batch", "promptfoo"])
def test_a_bad_line_of_a_log_costs_no_other_line(name: str, place: str, bad: str, tmp_path: Path) -> None:
    log = {"lm-eval": CHOICES, "openai-batch": LOGS / "openai-batch" / "chat_output.jsonl",
           "promptfoo": LOGS / "promptfoo" / "sums.jsonl"}[name]  # fmt: skip
    shutil.copytree(log.parent, tmp_path / "log")
    lines = log.read_text().splitlines()
    at = {"first": 0, "in the middle": len(lines) // 2, "last": len(lines)}[place]
    held = tmp_path / "log" / log.name
    held.write_text("\n".join([*lines[:at], bad, *lines[at:]]) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert texts_of(held, tmp_path / "runs") == texts_of(log, tmp_path / "sound")
