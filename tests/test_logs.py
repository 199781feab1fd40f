"""Logs of other programs, as those programs wrote them (tests/logs/README.md)."""

import json
import re
import shlex
import shutil
import zipfile
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.probes.verbalized import parse_named_confidence
from metaprobe.records.errors import ImportFileError
from metaprobe.records.import_store import ImportReport, import_file
from metaprobe.records.importer import format_of
from metaprobe.records.logs.inspect_log import read_inspect
from metaprobe.records.logs.logged_answer import LogOptions
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run

LOGS = Path(__file__).parent / "logs"
CHOICES = LOGS / "lm-eval" / "samples_capitals_2026-11-23T13-32-30.561205.jsonl"
SUMS = LOGS / "lm-eval" / "samples_sums_2026-11-23T13-35-06.599008.jsonl"
WORDS = LOGS / "lm-eval" / "samples_words_2026-11-23T13-35-56.085715.jsonl"


def imported(path: Path, folder: Path, **options: Any) -> tuple[ImportReport, list[Run]]:
    store = RunStore(folder / "runs")
    report = import_file(path, store, **options)
    return report, sorted(store, key=lambda run: run.id)


def edited(path: Path, to: Path, change: Any) -> Path:
    """A copy of a JSON document after `change`."""
    held = json.loads(path.read_text())
    change(held)
    to.write_text(json.dumps(held))
    return to


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *((path, "inspect") for path in sorted((LOGS / "inspect").iterdir())),
        *((path, "lm-eval") for path in (CHOICES, SUMS, WORDS)),
        *((path, "helm") for path in sorted((LOGS / "helm").iterdir())),
        *((path / "scenario_state.json", "helm") for path in sorted((LOGS / "helm").iterdir())),
        *((path, "promptfoo") for path in sorted((LOGS / "promptfoo").iterdir())),
        *((path, "openai-batch") for path in sorted((LOGS / "openai-batch").glob("*_output.jsonl"))),
        (LOGS / "openai-batch" / "requests.jsonl", "lines"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_format_is_told_by_the_content_alone(path: Path, name: str, tmp_path: Path) -> None:
    assert format_of(path).name == name
    if path.is_file():
        (tmp_path / "log.bin").write_bytes(path.read_bytes())
        assert format_of(tmp_path / "log.bin").name == name


def test_what_is_no_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match="is a folder and no run of HELM"):
        format_of(tmp_path)
    with pytest.raises(ImportFileError, match="there is no format 'csv'; expected auto, inspect, lm-eval"):
        format_of(CHOICES, "csv")
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04 and nothing")
    with pytest.raises(ImportFileError, match="begins as a zip archive and is none"):
        format_of(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(ImportFileError, match=r"neither header\.json nor a journal"):
        imported(tmp_path / "b.zip", tmp_path)


def test_inspect_keeps_log_probabilities_to_the_bit_and_leaves_padding_out(tmp_path: Path) -> None:
    report, runs = imported(LOGS / "inspect" / "graded.json", tmp_path)
    assert (report.form, report.imported, report.groups, report.bad) == ("inspect", 7, 4, 0)
    samples = {
        f"{sample['id']}-epoch-{sample['epoch']}": sample
        for sample in json.loads((LOGS / "inspect" / "graded.json").read_text())["samples"]
    }
    for run in runs:
        (call,) = run.calls
        given = samples[call.id.split("/")[-1]]["output"]["choices"][0]["logprobs"]["content"]
        kept = given[: len(call.tokens)]
        assert call.logprobs is not None
        assert call.top_logprobs is not None
        assert call.logprobs.tolist() == [float(np.float32(entry["logprob"])) for entry in kept]
        assert call.top_logprobs[:, 1].tolist() == [
            float(np.float32(entry["top_logprobs"][1]["logprob"])) for entry in kept
        ]
        assert "".join(call.tokens) == call.text == samples[call.id.split("/")[-1]]["output"]["completion"]
    assert runs[0].calls[0].tokens == ("4",), "what came after the end of the answer was kept"


def test_inspects_grades_are_labels_and_epochs_share_a_group(tmp_path: Path) -> None:
    _, runs = imported(LOGS / "inspect" / "graded.json", tmp_path)
    labels = {run.id.split("/")[-1]: {label.name: label.value for label in run.labels} for run in runs}
    grades = [(labels[f"sum-{n}-epoch-2"].get("correct"), labels[f"sum-{n}-epoch-2"]["graded"]) for n in range(4)]
    assert grades == [(1.0, 1.0), (0.0, 0.0), (None, 0.5), (0.0, 0.0)], "C, I, P and N"
    assert labels["sum-0-epoch-1"]["shape/digits"] == 1.0
    assert {(run.item.id, run.item.group) for run in runs} == {(f"sum-{n}", f"sum-{n}") for n in range(4)}
    assert {run.calls[0].messages[0].content for run in runs} == {"Be brief."}
    assert runs[0].calls[0].sampling.max_tokens == 3
    assert {run.item.task for run in runs} == {"graded"}


def test_another_score_may_say_what_is_correct(tmp_path: Path) -> None:
    _, runs = imported(LOGS / "inspect" / "graded.json", tmp_path, correct="shape/shorter")
    assert {run.outcome for run in runs} == {1.0}
    with pytest.raises(ImportFileError, match=r"there is no score 'f1'.* expected one of graded, shape/digits"):
        imported(LOGS / "inspect" / "graded.json", tmp_path / "other", correct="f1")


def test_limits_attachments_and_reserved_names_are_kept(tmp_path: Path) -> None:
    def change(log: Any) -> None:
        first, second = log["samples"][0], log["samples"][1]
        first["limit"] = {"type": "token", "limit": 60.0}
        first["messages"][1]["content"] = "attachment://abc"
        first["attachments"] = {"abc": "A long question"}
        first["scores"]["evidence"] = {"value": 0.25}
        second["limit"] = {"type": "time", "limit": 3}
        second["output"]["choices"] = []

    path = edited(LOGS / "inspect" / "graded.json", tmp_path / "log.json", change)
    report, runs = imported(path, tmp_path)
    assert (runs[0].calls[0].finish_reason, runs[0].item.question) == ("length", "A long question")
    assert runs[0].label("score.evidence", runs[0].id) == 0.25
    assert report.left_out["the sample has no answer (limit: time)"] == 1


def test_a_log_whose_run_was_killed_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = LOGS / "inspect" / "graded.json"
    log = json.loads(whole.read_text())
    with zipfile.ZipFile(tmp_path / "begun.eval", "w") as archive:
        archive.writestr("_journal/start.json", json.dumps({"version": 2, "eval": log["eval"], "plan": log["plan"]}))
        for sample in log["samples"][:1]:
            archive.writestr(f"samples/{sample['id']}_epoch_1.json", json.dumps(sample))
    _, (run,) = imported(tmp_path / "begun.eval", tmp_path)
    assert (run.item.task, run.variant) == ("graded", log["eval"]["eval_id"])


def test_a_log_as_inspects_own_reader_gives_it_has_the_same_lines(tmp_path: Path) -> None:
    log = pytest.importorskip("inspect_ai.log")
    for path in sorted((LOGS / "inspect").iterdir()):
        theirs = log.read_eval_log(str(path), resolve_attachments=True, format=path.suffix[1:])
        (tmp_path / "theirs.json").write_text(theirs.model_dump_json(exclude_none=True))
        read = [list(read_inspect(one, LogOptions())) for one in (path, tmp_path / "theirs.json")]
        ours, again = ({sample.location: (sample.line, sample.left_out) for sample in samples} for samples in read)
        assert ours == again


def test_options_of_a_multiple_choice_become_probabilities(tmp_path: Path) -> None:
    report, runs = imported(CHOICES, tmp_path)
    assert (report.form, report.imported, report.labelled) == ("lm-eval", 12, 12)
    lines = {str(line["doc_id"]): line for line in map(json.loads, CHOICES.read_text().splitlines())}
    for run in runs:
        line, (call,) = lines[run.item.id], run.calls
        given = np.array([float(option[0][0]) for option in line["resps"]])
        expected = given - np.log(np.exp(given).sum())
        assert call.text == line["doc"]["choices"][int(given.argmax())]
        assert call.logprobs is not None
        assert call.logprobs == pytest.approx([expected.max()], rel=1e-6)
        assert call.top_logprobs is not None
        assert call.top_logprobs[0] == pytest.approx(np.sort(expected)[::-1], rel=1e-6)
        assert np.exp(call.top_logprobs[0]).sum() == pytest.approx(1, abs=1e-6)
        assert run.outcome == line["acc"] == float(given.argmax() == int(line["target"]))
        assert [label.name for label in run.labels] == ["correct", "acc"], "acc_norm is of another answer"
    assert {run.calls[0].model for run in runs} == {"Qwen2.5-Coder-0.5B"}
    assert {(run.item.task, run.calls[0].logprobs_mode) for run in runs} == {("capitals", "processed")}


def test_what_has_no_log_probabilities_is_refused_or_taken_for_what_it_states(tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match=r"no answer of it can be taken: 12 x no log-prob.*6 x the same answer"):
        imported(SUMS, tmp_path)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ImportFileError, match="6 x the likelihood of a given text"):
        imported(WORDS, tmp_path)
    lines = [json.loads(line) for line in SUMS.read_text().splitlines()[:1]]
    lines[0]["resps"] = [["It is 15. Confidence: 85%"]]
    (tmp_path / "stated.jsonl").write_text("\n".join(map(json.dumps, lines)))
    report, (run,) = imported(tmp_path / "stated.jsonl", tmp_path, stated=parse_named_confidence)
    assert (report.imported, report.without_logprobs) == (1, 1)
    assert (run.stated("confidence"), run.outcome, run.calls[0].sampling.max_tokens) == (0.85, 0.0, 24)


@pytest.mark.parametrize("name", ["greedy-zeros", "without"])
def test_the_zeros_of_helm_count_as_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match=r"every log-probability is 0.* --stated-only"):
        imported(LOGS / "helm" / name, tmp_path)


def test_a_run_of_helm_is_read_with_its_scores(tmp_path: Path) -> None:
    folder = LOGS / "helm" / "sampled"
    report, runs = imported(folder, tmp_path)
    assert (report.form, report.imported, report.labelled, report.groups) == ("helm", 5, 5, 5)
    held = json.loads((folder / "scenario_state.json").read_text())
    states = {state["instance"]["id"]: state for state in held["request_states"]}
    for run in runs:
        (given,) = states[run.item.id]["result"]["completions"]
        (call,) = run.calls
        assert call.logprobs is not None
        assert call.logprobs.tolist() == [float(np.float32(given["tokens"][0]["logprob"]))]
        assert given["text"] == f"{call.text}<|im_end|>", "the end is no part of the answer"
        assert run.outcome == run.label("exact_match", run.id)
        assert not [label.name for label in run.labels if label.name.startswith("num_")]
        assert (run.variant, run.item.group) == ("sampled", run.item.id)
    assert {run.calls[0].messages[0].role for run in runs} == {"user"}


def test_scores_of_several_completions_are_of_the_likeliest(tmp_path: Path) -> None:
    def change(run: Any) -> None:
        result = run["request_states"][0]["result"]
        other = {"text": "B", "logprob": -9.0, "tokens": [{"text": "B", "logprob": -9.0}]}
        result["completions"] = [other, *result["completions"]]

    for name in ("scenario_state.json", "per_instance_stats.json"):
        path = edited(LOGS / "helm" / "sampled" / name, tmp_path / name, change if "state" in name[:15] else len)
    report, runs = imported(path.with_name("scenario_state.json"), tmp_path)
    assert report.imported == 6
    assert [(run.item.id, bool(run.labels)) for run in runs if "output" in run.item.id] == [
        ("id60-output-1", False),
        ("id60-output-2", True),
    ]


def test_promptfoo_gives_numbers_grades_and_groups(tmp_path: Path) -> None:
    report, runs = imported(LOGS / "promptfoo" / "sums.json", tmp_path)
    assert (report.imported, report.groups, report.labelled) == (10, 5, 10)
    assert report.left_out == {"the call or a check of it failed (API error: 503 Service Unavailable)": 2}
    held = json.loads((LOGS / "promptfoo" / "sums.json").read_text())
    results = {result["id"]: result for result in held["results"]["results"]}
    for run in runs:
        given = results[run.item.id]
        assert run.calls[0].logprobs is not None
        assert run.calls[0].logprobs.tolist() == np.float32(given["response"]["logProbs"]).tolist()
        assert (run.calls[0].text, run.calls[0].tokens) == (given["response"]["output"], ())
        assert (run.outcome, run.variant) == (float(given["success"]), held["evalId"])
        assert run.label("brevity", run.id) == given["namedScores"]["brevity"]
    _, lines = imported(LOGS / "promptfoo" / "sums.jsonl", tmp_path / "lines")
    assert len(lines) == len(runs)
    with pytest.raises(ImportFileError, match="2 x no log-probabilities"):
        imported(LOGS / "promptfoo" / "plain.json", tmp_path / "plain")


def test_a_batch_is_joined_with_its_requests(tmp_path: Path) -> None:
    folder = LOGS / "openai-batch"
    report, runs = imported(folder / "chat_output.jsonl", tmp_path, requests=folder / "requests.jsonl")
    assert (report.imported, report.groups) == (5, 4), "two requests ask the same"
    assert report.left_out == {"the request failed (rate_limit_exceeded)": 1}
    asked = {r["custom_id"]: r["body"] for r in map(json.loads, (folder / "requests.jsonl").read_text().splitlines())}
    for run in runs:
        (call,) = run.calls
        assert [message.content for message in call.messages] == [m["content"] for m in asked[run.id]["messages"]]
        assert (call.sampling.temperature, call.sampling.seed, call.sampling.max_tokens) == (0.7, 3, 12)
    with pytest.raises(
        ImportFileError,
        match=r"chat_output.jsonl: line \d \(custom_id 'request-\d'\): no request in .* has the custom_id",
    ):
        imported(
            folder / "chat_output.jsonl", tmp_path / "b", requests=folder / "responses_requests.jsonl", strict=True
        )
    output, requests = folder / "responses_output.jsonl", folder / "responses_requests.jsonl"
    report, runs = imported(output, tmp_path / "c", requests=requests)
    assert (report.imported, runs[0].calls[0].messages[0].role) == (3, "user")
    with pytest.raises(ImportFileError, match=r"2 x the request failed \(batch_expired\)"):
        imported(folder / "expired_output.jsonl", tmp_path / "d")


@pytest.mark.parametrize(
    "path",
    [LOGS / "inspect" / "graded.json", CHOICES, LOGS / "helm" / "sampled", LOGS / "promptfoo" / "sums.json"],
    ids=lambda path: path.name,
)
def test_a_log_imported_again_adds_nothing_and_tells_other_scores(path: Path, tmp_path: Path) -> None:
    first, before = imported(path, tmp_path)
    second, after = imported(path, tmp_path)
    assert (second.imported, second.already_stored, second.relabelled) == (0, first.imported, 0)
    assert second.left_out == first.left_out
    assert [run.labels for run in after] == [run.labels for run in before]
    assert all(a.id < b.id for a, b in pairwise(after))


def bash_blocks(page: Path) -> list[list[str]]:
    text = page.read_text(encoding="utf-8")
    return [block.splitlines() for block in re.findall(r"```bash\n(.*?)```", text, re.S)]


PAGE = Path(__file__).parent.parent / "docs" / "import.md"


def test_what_the_page_shows_of_advise_is_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = bash_blocks(PAGE)[1]
    _, *words = shlex.split(command)
    Path(words[-1]).parent.mkdir()
    shutil.copy(LOGS / "inspect" / "sums.eval", words[-1])
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert CliRunner().invoke(main, words).stdout == shown


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_two_commands_of_the_page_lead_to_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = bash_blocks(PAGE)[0]
    log = Path(shlex.split(commands[0])[2])
    log.parent.mkdir()
    shutil.copy(LOGS / "inspect" / "sums.eval", log)
    for command in commands:
        done = CliRunner().invoke(main, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
    assert "learned on logprobs" in done.stdout
    assert Path("report/report.html").is_file()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_commands_of_the_page_train_on_answers_without_log_probabilities(
    recorded_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = bash_blocks(PAGE)[2]
    lines = Path(shlex.split(commands[0])[2])
    lines.parent.mkdir()
    plain = []
    for run in islice(RunStore(recorded_runs), 200):
        call, answer = run.calls[-1], {"message": {"content": run.calls[-1].text}}
        messages = [{"role": message.role, "content": message.content} for message in call.messages]
        labels = {"correct": run.outcome}
        plain.append({"id": run.id, "messages": messages, "labels": labels, "response": {"choices": [answer]}})
    lines.write_text("".join(json.dumps(line) + "\n" for line in plain))
    for command in commands:
        done = CliRunner().invoke(main, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
    card = Path("checkpoint/README.md").read_text()
    assert "smollm2-135m" in card


def test_answers_without_log_probabilities_are_taken_on_request_and_said(tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match="log-probabilities"):
        imported(LOGS / "inspect" / "plain.json", tmp_path)
    report, runs = imported(LOGS / "inspect" / "plain.json", tmp_path / "plain", plain=True)
    assert report.without_logprobs == report.imported == len(runs) > 0
    for run in runs:
        assert run.calls[0].logprobs is None
        assert run.calls[0].text
        assert run.calls[0].messages
        assert {label.name for label in run.labels} >= {"correct"}
    again, _ = imported(LOGS / "inspect" / "plain.json", tmp_path / "plain", plain=True)
    assert (again.imported, again.already_stored) == (0, len(runs))
