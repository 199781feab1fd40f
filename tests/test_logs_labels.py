"""The readers of other programs' logs read right and wrong as docs/import.md says, and leave out the rest."""

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from test_logs import CHOICES, LOGS, edited, imported
from test_logs import SUMS as WORDS

from metaprobe.cli import main
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.score_lines import score_lines
from metaprobe.records.errors import ImportFileError
from metaprobe.records.import_store import import_file
from metaprobe.records.importer import format_of
from metaprobe.records.logs.inspect_log import read_inspect
from metaprobe.records.logs.logged_answer import LogOptions
from metaprobe.records.logs.promptfoo import CONTENT, ELSEWHERE, NECESSARY_ASSERTIONS, grade_of
from metaprobe.records.store import RunStore

SUMS = LOGS / "promptfoo" / "sums.json"


REASONS = {
    "similar": "Similarity 0.12 is less than threshold 0.75",
    "similar:euclidean": "Distance 3.20 is greater than threshold 1",
    "pi": "Pi Scorer",
    "answer-relevance": "Relevance 0.31 is less than threshold 0.8",
    "context-faithfulness": "Faithfulness 0.25 is < 0.9",
    "model-graded-closedqa": "The submission does not meet the criterion:\nN",
}


def check(kind: str, passed: bool, reason: str = "", tokens: int = 9, **more: Any) -> dict[str, Any]:
    """A component as promptfoo writes it where the grader, if there is one, answered."""
    bare = kind.removeprefix("not-")
    name = "similar" if bare in ("similar:cosine", "similar:dot") else bare
    held = {"pass": passed, "score": float(passed), "assertion": {"type": kind, **more}}
    return held | {"reason": reason or REASONS.get(name, ""), "tokensUsed": {"total": tokens}}


def a_set(*checks: Mapping[str, Any], passed: bool, **said: Any) -> list[Mapping[str, Any]]:
    """A set of assertions as promptfoo writes it: the set, and once more what it holds."""
    metadata = {"assertionSet": {"type": "assert-set", **said}}
    return [
        {"pass": passed, "score": 0.5, "reason": "", "componentResults": list(checks), "metadata": metadata},
        *checks,
    ]


def graded(*checks: Mapping[str, Any], passed: bool, **test: Any) -> bool | None:
    return grade_of({"pass": passed, "componentResults": list(checks)}, test)[0]


@pytest.mark.parametrize(
    ("checks", "passed", "right"),
    [
        ([check("latency", False), check("contains", True), check("llm-rubric", True)], False, True),
        ([check("latency", False)], False, None),
        ([check("latency", True), check("cost", True)], True, None),
        ([check("not-latency", False), check("not-contains", True)], False, True),
        ([check("select-best", False), check("factuality", True)], False, True),
        ([check("javascript", False)], False, None),
        ([check("javascript", True), check("icontains", True)], True, True),
        ([check("javascript", False), check("icontains", True)], False, None),
        ([check("javascript", False), check("icontains", False)], False, False),
        ([check("made-up-tomorrow", False), check("regex", True)], False, None),
        ([check("contains", False, weight=0), check("regex", True)], True, True),
        ([check("contains", True, weight=0)], True, None),
        ([check("contains", False, metricOnly=True), check("latency", True)], True, None),
        ([check("contains", False), check("human", True)], True, True),
        ([check("contains", True), {"pass": False, "score": 0, "assertion": None}], False, None),
        ([{**check("llm-rubric", False), "metadata": {"graderError": True}}], False, None),
        (a_set(check("contains", True), check("latency", False), passed=False), False, True),
        (a_set(check("contains", False), check("regex", True), passed=True, threshold=0.5), True, None),
        ([*a_set(check("contains", True), passed=True), check("equals", False)], False, False),
        ([check("llm-rubric", False, "The output has no output format.")], False, False),
        ([{**check("llm-rubric", True), "metadata": {"skipped": True}}], True, None),
        ([{**check("contains", False), "metadata": {"error": "x"}}], False, None),
        ([{**check("contains", False), "metadata": {"http": {"status": 200}, "skipped": False}}], False, False),
        ([check("contains", True), None], True, True),
        ([check("is-json", False)], False, False),
        ([check("is-json", True), check("equals", True)], True, True),
        ([], True, None),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, list) else str(value),
)
def test_a_promptfoo_answer_is_right_or_wrong_by_its_content(
    checks: Sequence[Mapping[str, Any]], passed: bool, right: bool | None
) -> None:
    assert graded(*checks, passed=passed) is right


GRADED = ("llm-rubric", "factuality", "g-eval", "model-graded-closedqa", "similar", "pi", "context-faithfulness")
FAILURES = ("429 Too Many Requests", "Remote grading failed", "API error: 429 Too Many Requests", "No output", "")
UNREADABLE = (
    "Failed to parse grader output",
    "Could not extract JSON from llm-rubric response",
    "llm-rubric produced malformed response: SyntaxError",
    "Factuality checker output did not match expected format: I think so",
    "Invalid category value: F",
    "Model grader produced a malformed response:\nperhaps",
    "LLM-proposed evaluation result is not in JSON format: 7",
)


@pytest.mark.parametrize("kind", GRADED)
@pytest.mark.parametrize("form", ["{}", "not-{}"])
def test_a_grader_that_did_not_answer_judged_nothing(kind: str, form: str) -> None:
    kind = form.format(kind)
    assert graded(check(kind, False), passed=False) is False
    assert graded(check(kind, True), check("contains", True), passed=True) is True
    for reason in FAILURES:
        failed = check(kind, False, tokens=0) | {"reason": reason}
        assert graded(failed, passed=False) is None
        assert graded(failed, check("contains", False), passed=False) is None, "else only wrong answers have labels"
        if form != "{}":  # a failure that was turned into a pass
            assert graded(failed | {"pass": True, "score": 1.0}, passed=True) is None
    for reason in UNREADABLE:
        assert graded(check(kind, False, reason), passed=False) is None


def test_what_shows_that_a_grader_answered_is_taken_for_a_grade() -> None:
    bare = check("llm-rubric", False, "Cannot parse the answer", tokens=0)
    assert graded(bare, passed=False) is None
    assert graded(bare | {"metadata": {"renderedGradingPrompt": "Grade: ..."}}, passed=False) is False
    assert graded(bare | {"reason": "No.", "tokensUsed": {"total": 0, "cached": 80}}, passed=False) is False


@pytest.mark.parametrize("kind", ["llm-rubric", "factuality", "g-eval", "similar", "model-graded-closedqa", "pi"])
@given(scores=st.lists(st.floats(0, 1), min_size=2, max_size=6), beside=st.sampled_from(["", "contains", "is-json"]))
def test_a_grader_that_reports_nothing_labels_neither_passes_nor_failures(
    kind: str, scores: list[float], beside: str
) -> None:
    """Labels of passes alone, or of failures alone, would be a selection."""
    for score in scores:
        passed = score >= 0.5
        own = check(kind, passed, "a word of its own", tokens=0) | {"score": score}
        for other in (True, False):
            more = [check(beside, other)] if beside else []
            right, taken = grade_of({"pass": passed, "componentResults": [own, *more]}, {})
            assert right is None
            assert kind in taken


def test_where_a_score_decides_or_nothing_says_which_assertion_passed_there_is_no_label() -> None:
    content = [check("contains", False), check("regex", True)]
    for test in ({"threshold": 0.5}, {"assertScoringFunction": "file://score.js"}):
        right, taken = grade_of({"componentResults": content}, test)
        assert (right, "--correct pass" in taken) == (None, True)
    assert graded(*content, check("human", True), passed=True, threshold=0.5) is True
    right, taken = grade_of({"pass": True}, {"assert": [{"type": "contains"}]})
    assert (right, "does not say which assertions passed" in taken) == (None, True)


KINDS = st.sampled_from(sorted(CONTENT | NECESSARY_ASSERTIONS | ELSEWHERE | {"javascript", "made-up"}))


@given(st.lists(st.tuples(KINDS, st.booleans()), max_size=6))
def test_no_assertion_but_one_on_the_content_makes_an_answer_wrong_or_right(kinds: list[tuple[str, bool]]) -> None:
    right = graded(*(check(*one) for one in kinds), passed=all(passed for _, passed in kinds))
    content = [passed for kind, passed in kinds if kind in CONTENT]
    if not all(content) or (NECESSARY_ASSERTIONS & {kind for kind, passed in kinds if not passed}):
        assert right is False
    else:
        assert right is not False
        assert content or right is None


def slow_and_dear(held: Any) -> None:
    for number, result in enumerate(held["results"]["results"]):
        if result["gradingResult"]:
            kinds = ("latency", "cost", "contains")
            result["gradingResult"] |= {"pass": False, "componentResults": [check(kinds[number % 3], False)]}
            result |= {"success": False}


def test_answers_that_failed_on_latency_or_cost_have_no_label_and_each_kind_is_said(tmp_path: Path) -> None:
    path = edited(SUMS, tmp_path / "log.json", slow_and_dear)
    report, runs = imported(path, tmp_path)
    assert {run.outcome for run in runs} == {None, 0.0}
    assert {run.label("pass", run.id) for run in runs} == {0.0}
    said = dict(report.taken)
    assert sum(said.values()) == len(runs) == 10
    assert set(said) == {
        "labelled by contains",
        "no label: failed on latency only",
        "no label: failed on cost only",
    }
    result = CliRunner().invoke(main, ["import", str(path), "--out", str(tmp_path / "shown")])
    for what, count in said.items():
        assert f"promptfoo: {count} x {what}" in result.stderr.splitlines()
    advised = CliRunner().invoke(main, ["advise", str(path)]).stdout
    assert all(f"{count} x {what}" in advised for what, count in said.items())


def test_what_promptfoos_node_package_gives_is_read_as_its_command_writes_it(tmp_path: Path) -> None:
    held = json.loads(SUMS.read_text())
    summary = held["results"]
    evaluation = {"id": "e", "createdAt": 1, "config": {}, "results": summary["results"], "prompts": []}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "evaluation.json").write_text(json.dumps(evaluation))
    _, wanted = imported(SUMS, tmp_path / "command")
    for name, variant in (("summary", summary["timestamp"]), ("evaluation", "e")):
        assert format_of(tmp_path / f"{name}.json").name == "promptfoo"
        _, runs = imported(tmp_path / f"{name}.json", tmp_path / name)
        assert [run.item.id for run in runs] == [run.item.id for run in wanted]
        assert [run.outcome for run in runs] == [run.outcome for run in wanted]
        assert [run.item.group for run in runs] == [run.item.group for run in wanted]
        assert {run.variant for run in runs} == {variant}


def test_promptfoos_version_2_is_read_with_ids_by_place(tmp_path: Path) -> None:
    results = json.loads(SUMS.read_text())["results"]["results"]
    gone = ("id", "testIdx", "promptIdx", "failureReason", "testCase")
    old = [{key: value for key, value in result.items() if key not in gone} for result in results]
    summary = {"version": 2, "timestamp": "2024-01-01", "results": old, "stats": {}, "table": {"head": {}, "body": []}}
    (tmp_path / "v2.json").write_text(json.dumps({"results": summary, "config": {}}))
    assert format_of(tmp_path / "v2.json").name == "promptfoo"
    report, runs = imported(tmp_path / "v2.json", tmp_path)
    assert report.imported == 10
    assert sum(report.left_out.values()) == 2, "two results are errors"
    assert {run.outcome for run in runs} == {1.0}
    assert all(run.item.id.startswith("result-") for run in runs)


def invalid(log: Any, *places: int) -> None:
    log["invalidated"] = True
    for place in places:
        log["samples"][place]["invalidation"] = {"author": "a", "reason": "the sandbox was broken", "metadata": {}}


def as_archive(log: Mapping[str, Any], path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps({k: v for k, v in log.items() if k != "samples"}))
        for sample in log["samples"]:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    return path


@pytest.mark.parametrize("archive", [False, True])
def test_an_invalidated_sample_of_inspect_keeps_no_score(archive: bool, tmp_path: Path) -> None:
    path = edited(LOGS / "inspect" / "graded.json", tmp_path / "log.json", lambda log: invalid(log, 0, 3))
    held = json.loads(path.read_text())
    if archive:
        path = as_archive(held, tmp_path / "log.eval")
    names = {f"{held['samples'][n]['id']}-epoch-{held['samples'][n]['epoch']}" for n in (0, 3)}
    samples = list(read_inspect(path, LogOptions()))
    assert not names & {sample.line["id"] for sample in samples if sample.line is not None}
    assert sum(sample.left_out == "the sample was invalidated (the sandbox was broken)" for sample in samples) == 2


def test_a_log_of_inspect_that_does_not_name_its_invalid_samples_is_refused(tmp_path: Path) -> None:
    path = edited(LOGS / "inspect" / "graded.json", tmp_path / "log.json", invalid)
    with pytest.raises(ImportFileError, match="invalidated, and marks none"):
        imported(path, tmp_path)
    with pytest.raises(ImportFileError, match="invalidated, and marks none"):
        imported(as_archive(json.loads(path.read_text()), tmp_path / "log.eval"), tmp_path)


@pytest.mark.parametrize("samples", ["missing", None, []])
def test_a_log_of_inspect_without_samples_is_named_with_the_way_on(samples: Any, tmp_path: Path) -> None:
    def change(log: Any) -> None:
        log["samples"] = samples
        if samples == "missing":
            del log["samples"]

    path = edited(LOGS / "inspect" / "graded.json", tmp_path / "log.json", change)
    with pytest.raises(ImportFileError, match=r"holds no samples.*--log-samples"):
        imported(path, tmp_path)
    log = json.loads(path.read_text()) | {"samples": []}
    with pytest.raises(ImportFileError, match=r"holds no samples.*--log-samples"):
        imported(as_archive(log, tmp_path / "log.eval"), tmp_path)


def scored(**scores: Any) -> tuple[dict[str, float], str]:
    """The labels of a sample with these scores, and what was taken for `correct`."""
    log = json.loads((LOGS / "inspect" / "graded.json").read_text())
    log["samples"] = [log["samples"][0] | {"scores": scores}]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.json"
        path.write_text(json.dumps(log))
        [sample] = read_inspect(path, LogOptions(plain=True))
    assert sample.line is not None
    return sample.line["labels"], sample.label_source


GRADER = "I think so, and cannot say more."
UNSCORED: dict[str, dict[str, Any]] = {
    "a grader without a grade": {"explanation": f"Grade not found in model output: {GRADER}"},
    "a grader of others without a grade": {"explanation": "Grade not found in model output after 3 attempts. Last: C"},
    "a grader of other words": {"explanation": GRADER},
    "an error": {"metadata": {"error": "timeout"}},
    "a grader's error": {"metadata": {"judge": {"error": "timeout"}}},
    "a mark": {"metadata": {"unscored": True}},
    "a reason of older versions": {"metadata": {"unscored_reason": "grader_failed"}},
    "a reason": {"reason": "grader_failed"},
    "a reason of the user's own": {"reason": "no_quota"},
    "a state": {"metadata": {"status": "skipped"}},
}


@pytest.mark.parametrize("held", UNSCORED.values(), ids=UNSCORED)
def test_a_score_of_inspect_whose_scorer_failed_is_no_label(held: dict[str, Any]) -> None:
    labels, taken = scored(model_graded_qa={"value": "I", **held}, includes={"value": "C"})
    assert "correct" not in labels, "another scorer judges something else"
    assert "model_graded_qa" not in labels
    assert "model_graded_qa" in taken
    assert "no label" in taken


@pytest.mark.parametrize(
    "held",
    [
        {},
        {"explanation": "It is the same number. GRADE: I"},
        {"explanation": "**Grade: incorrect**", "metadata": {"grading": [{"role": "user", "error": "x"}]}},
        {"reason": "refusal", "metadata": {"error": None, "unscored": False}},
    ],
)
def test_a_score_of_inspect_whose_scorer_answered_is_a_label(held: dict[str, Any]) -> None:
    assert scored(model_graded_qa={"value": "I", **held}) == (
        {"correct": 0.0, "model_graded_qa": 0.0},
        "labelled by model_graded_qa",
    )


@pytest.mark.parametrize("name", ["hallucination", "not_correct", "made_up"])
def test_a_yes_is_right_only_under_a_name_for_what_is_good(name: str) -> None:
    for value in (True, False):
        labels, _ = scored(**{name: {"value": value}})
        assert labels == {name: float(value)}
        assert scored(is_correct={"value": value})[0]["correct"] == float(value)
    assert "correct" not in scored(hallucination={"value": "C"})[0]


def test_labelled_counts_the_label_correct_and_no_other_score(tmp_path: Path) -> None:
    def change(log: Any) -> None:
        for place, sample in enumerate(log["samples"]):
            sample["scores"] = {"match": {"value": "C"}} if place % 2 else {"closeness": {"value": 0.7}}

    path = edited(LOGS / "inspect" / "graded.json", tmp_path / "log.json", change)
    report, runs = imported(path, tmp_path)
    right = sum(run.label("correct", run.id) is not None for run in runs)
    assert 0 < right < len(runs)
    assert (report.labelled, report.labelled_otherwise) == (right, len(runs) - right)
    told = CliRunner().invoke(main, ["import", str(path), "--out", str(tmp_path / "again")])
    assert json.loads(told.stdout)["labelled"] == right
    assert f"{len(runs) - right} lines have other labels only" in told.stderr


def test_a_failed_output_of_inspect_is_no_answer(tmp_path: Path) -> None:
    def change(log: Any) -> None:
        log["samples"][0]["output"]["error"] = "content was filtered (code 4)"
        log["samples"][1]["output"]["error"] = None

    path = edited(LOGS / "inspect" / "graded.json", tmp_path / "log.json", change)
    first, second = list(read_inspect(path, LogOptions(plain=True)))[:2]
    assert (first.line, "content was filtered" in first.left_out) == (None, True)
    assert second.line is not None


@pytest.mark.parametrize(("kept", "right"), [("[invalid]", None), (" ", None), ("15", 0.0)])
def test_a_text_that_a_filter_of_lm_eval_cannot_read_has_no_label(
    kept: str, right: float | None, tmp_path: Path
) -> None:
    def change(line: Any) -> Any:
        unread = {"filtered_resps": [kept], "exact_match": 0.0, "filter": "strict-match", "metrics": ["exact_match"]}
        return {"resps": [["It is 15. Confidence: 85%"]], **unread}

    once = {json.loads(line)["doc_id"]: line for line in WORDS.read_text().splitlines()}
    (tmp_path / "once.jsonl").write_text("\n".join(once.values()))
    report, runs = imported(lm_eval(tmp_path / "once.jsonl", tmp_path / "s.jsonl", change), tmp_path, plain=True)
    assert {run.outcome for run in runs} == {right}
    assert {run.label("exact_match", run.id) for run in runs} == {0.0}
    [said] = dict(report.taken)
    assert ("found no answer" in said and "strict-match" in said) == (right is None)


def lm_eval(path: Path, to: Path, *changes: Any) -> Path:
    """The lines of a file of samples, once after each change."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    to.write_text("".join(json.dumps(line | change(line)) + "\n" for change in changes for line in lines))
    return to


@pytest.mark.parametrize("value", ["-1.3862943611198906", "-9999.0"])
def test_options_that_are_all_equally_likely_are_no_choice(value: str, tmp_path: Path) -> None:
    def change(line: Any) -> Any:
        equal = [[[value, "False"]] for _ in line["resps"]]
        return {"resps": equal} if line["doc_id"] % 3 == 0 else {}

    path = lm_eval(CHOICES, tmp_path / "samples.jsonl", change)
    report, runs = imported(path, tmp_path, plain=True)
    assert (report.imported, sum(report.left_out.values())) == (8, 4)
    assert "echo" in next(iter(report.left_out))
    assert not [run for run in runs if int(run.item.id) % 3 == 0]


@pytest.mark.parametrize("value", ["-inf", float("-inf"), "-Infinity"])
def test_an_impossible_option_stops_no_import_and_has_no_share(value: Any, tmp_path: Path) -> None:
    ruled_out = {0: 1, 1: 2, 2: 3, 3: 4}  # how many of the 4 options, by the remainder of the question's number

    def change(line: Any) -> Any:
        n, likeliest = ruled_out[line["doc_id"] % 4], max(range(4), key=lambda i: float(line["resps"][i][0][0]))
        others = [i for i in range(4) if i != likeliest]
        gone = [*others, likeliest][:n]
        return {"resps": [[[value, "False"]] if i in gone else one for i, one in enumerate(line["resps"])]}

    _, before = imported(CHOICES, tmp_path / "sound")
    path = lm_eval(CHOICES, tmp_path / "samples.jsonl", change)
    report, runs = imported(path, tmp_path)
    assert (report.imported, report.bad) == (6, 0)
    [(reason, left)] = report.left_out.items()
    assert left == 6
    assert "-inf" in reason
    texts = {run.item.id: run.calls[0].text for run in before}
    chances = {run.item.id: float(run.calls[0].logprobs[0]) for run in before if run.calls[0].logprobs is not None}
    for run in runs:
        [call] = run.calls
        assert call.text == texts[run.item.id], "the likeliest option is still the answer"
        assert call.logprobs is not None
        assert chances[run.item.id] <= call.logprobs[0] <= 0, "the options left share what the others had"
    assert any(chances[run.item.id] < run.calls[0].logprobs[0] for run in runs if run.calls[0].logprobs is not None)


STATED: Any = {"resps": [["It is 15. Confidence: 85%"]], "filtered_resps": ["15"]}


@pytest.mark.parametrize("wanted", ["", "second"])
def test_one_answer_under_two_filters_is_one_answer(wanted: str, tmp_path: Path) -> None:
    def graded(name: str, right: float) -> Any:
        return lambda line: {**STATED, "filter": name, "exact_match": right}

    first = [json.loads(line) for line in WORDS.read_text().splitlines()]
    names = {line["doc_id"] for line in first}
    (tmp_path / "once.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in {line["doc_id"]: line for line in first}.values())
    )
    path = lm_eval(tmp_path / "once.jsonl", tmp_path / "s.jsonl", graded("first", 0.0), graded("second", 1.0))
    report, runs = imported(path, tmp_path, correct=wanted and f"exact_match,{wanted}", plain=True)
    assert (len(runs), report.bad) == (len(names), 0)
    assert {run.outcome for run in runs} == {1.0 if wanted else 0.0}
    (reason,) = report.left_out
    assert "the same answer under the filter" in reason
    assert report.left_out[reason] == len(names)
    with pytest.raises(ImportFileError, match="there is no filter 'third'; expected one of"):
        imported(path, tmp_path / "other", correct="exact_match,third", plain=True)


def helm(change: Any, folder: Path) -> Path:
    for name in ("scenario_state.json", "per_instance_stats.json"):
        held = json.loads((LOGS / "helm" / "sampled" / name).read_text())
        if name == "scenario_state.json":
            for number, state in enumerate(held["request_states"]):
                change(number, state)
        (folder / name).write_text(json.dumps(held))
    return folder / "scenario_state.json"


@pytest.mark.parametrize("text", ["[encrypted_text_{}]", "[redacted]"])
def test_a_text_that_helm_withholds_is_no_answer(text: str, tmp_path: Path) -> None:
    def change(number: int, state: Any) -> None:
        state["request"]["prompt"] = text.format(3 * number)
        state["request"]["messages"] = None
        if number < 2:
            state["result"]["completions"][0] |= {"text": text.format(3 * number + 1), "tokens": []}

    report, runs = imported(helm(change, tmp_path), tmp_path, plain=True)
    (reason,) = report.left_out
    assert (report.left_out[reason], report.imported) == (2, 3)
    assert "encrypted or redacted" in reason
    assert not [run for run in runs if "[" in run.calls[0].text or run.calls[0].messages]


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ANSWER = {"role": "assistant", "content": "4"}
NUMBERS = {"content": [{"token": "4", "logprob": -0.1}]}
CALLS: dict[str, dict[str, Any]] = {
    "chat": {"choices": [{"message": {"content": None, "tool_calls": [CALL]}, "finish_reason": "tool_calls"}]},
    "forced": {"choices": [{"message": {"content": None, "tool_calls": [CALL]}, "finish_reason": "stop"}]},
    "with numbers": {
        "choices": [{"message": ANSWER | {"tool_calls": [CALL]}, "logprobs": NUMBERS, "finish_reason": "tool_calls"}]
    },
    "old": {"choices": [{"message": {"content": None, "function_call": {}}, "finish_reason": "function_call"}]},
    "response": {"object": "response", "status": "completed", "output": [{"type": "function_call", "name": "f"}]},
}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("plain", [True, False])
def test_a_tool_call_in_a_batch_is_left_out_and_does_not_stop_the_import(
    kind: str, plain: bool, tmp_path: Path
) -> None:
    bodies = {"call": CALLS[kind], "answer": {"choices": [{"message": ANSWER, "logprobs": NUMBERS}]}}
    lines = [
        {"id": f"batch_{name}", "custom_id": name, "response": {"status_code": 200, "body": body}, "error": None}
        for name, body in bodies.items()
    ]
    (tmp_path / "out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report, runs = imported(tmp_path / "out.jsonl", tmp_path, plain=plain)
    assert [run.id for run in runs] == ["answer"]
    assert dict(report.left_out) == {"the answer is a tool call": 1}


def test_a_batch_of_responses_without_log_probabilities_is_left_out_or_read_as_it_is(tmp_path: Path) -> None:
    message = {"type": "message", "content": [{"type": "output_text", "text": "It is 4."}]}
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    bodies = [{"object": "response", "status": "completed", "output": [one]} for one in (message, refusal)]
    lines = [
        {"custom_id": f"q{n}", "response": {"status_code": 200, "body": body}, "error": None}
        for n, body in enumerate(bodies)
    ]
    (tmp_path / "out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report, (run,) = imported(tmp_path / "out.jsonl", tmp_path, plain=True)
    assert (run.id, run.calls[0].text, run.calls[0].finish_reason) == ("q0", "It is 4.", "stop")
    assert dict(report.left_out) == {"the response holds no text (it holds refusal)": 1}
    with pytest.raises(ImportFileError, match="1 x no log-probabilities"):
        imported(tmp_path / "out.jsonl", tmp_path / "numbers")


def test_a_failed_line_of_a_batch_is_named_by_its_custom_id(tmp_path: Path) -> None:
    body = {"choices": [{"message": ANSWER, "logprobs": NUMBERS}]}
    failed: list[dict[str, Any]] = [
        {"id": "batch_1", "custom_id": "a", "response": None, "error": {"message": "expired"}},
        {"id": "batch_2", "custom_id": "b", "response": {"status_code": 400, "body": {"error": {"message": "no"}}}},
        {"id": "batch_3", "custom_id": "c", "response": {"status_code": 200, "body": CALLS["chat"]}, "error": None},
        {"id": "batch_4", "custom_id": "d", "response": {"status_code": 200, "body": body}, "error": None},
    ]
    path = tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in failed))
    assert [line["id"] for line in score_lines(QualityPredictor.load(), path)] == ["a", "b", "c", "d"]
    report = import_file(path, RunStore(tmp_path / "runs"), bad=tmp_path / "bad.jsonl")
    assert (report.imported, report.left_out.total()) == (1, 3)
    kept = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert kept == failed[:3], "as they came"
