"""Commands that read what they did not make: `inspect` of a run store, `route` of lines that are none."""

import json
import shutil
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from metaprobe.cli import main
from metaprobe.routing.panel.asking import Panel

RECORDED = Path(__file__).parent.parent / "recorded"
STORE = RECORDED / "smollm2-metacog-eval"
RUNS = RECORDED / "metacog-every-agent"


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def test_inspect_says_that_it_is_a_run_store_and_what_is_in_it() -> None:
    shown = run("inspect", STORE)
    assert shown.exit_code == 0
    lines = {line[:12].strip(): line[12:] for line in shown.output.splitlines()}
    assert lines["run store"] == str(STORE)
    assert lines["runs"].startswith("300 in 1 file, ")
    assert lines["systems"] == "self-report (direct) 150, self-report (step-by-step) 150"
    assert lines["calls"] == "difficulty 300, answer 300, confidence 300"
    assert (lines["models"], lines["tasks"]) == ("smollm2-135m 900", "metacog-eval 300")
    assert (lines["labels"], lines["stated"]) == ("correct by program 300", "difficulty 300, confidence 287")
    assert lines["hidden"] == "layers [9, 15], positions ['prompt_last', 'answer_last'], width 576: 300 calls"
    assert "damaged" not in lines
    assert "policy PaperRules(theta=0.5" in run("inspect", RUNS).output  # of what it was collected with
    assert "agents      alpha 1,400, beta 1,400, gamma 1,400" in run("inspect", RUNS).output


def test_inspect_counts_the_rest_of_a_damaged_store_and_names_the_file(tmp_path: Path) -> None:
    store = tmp_path / "runs"
    shutil.copytree(RUNS, store)
    (store / "runs-99999-0badc0de.parquet").write_bytes(b"PAR1 and nothing else")
    (store / "collection.json").write_text("{")
    (store / "failed.jsonl").write_text('{"run": "a"}\n{"run": "b"}\n')
    shown = run("inspect", store)
    assert shown.exit_code == 0
    assert "runs        700 in 2 files" in shown.output
    assert "damaged     runs-99999-0badc0de.parquet: not counted above" in shown.output
    assert "collected   collection.json is damaged" in shown.output
    assert "failed      2 runs, whose reasons stand in failed.jsonl" in shown.output


def test_a_store_in_a_checkpoints_place_and_the_reverse_are_named(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("{}\n")
    refused = run("score", STORE, lines)
    assert refused.exit_code == 2
    assert "is a run store; expected a checkpoint folder, bundled:NAME or hub:" in refused.output
    checkpoint = tmp_path / "c"
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text("{}")
    refused = run("summarize", checkpoint)
    assert refused.exit_code == 2
    assert "is a checkpoint; expected a run store" in refused.output
    assert "--sha256 is for checkpoints" in run("inspect", STORE, "--sha256", "0" * 64).output


BAD = (
    '{"id": "b", "agents": []}',
    "not JSON at all",
    '{"id": "d", "agents": {"alpha": {"confidence": "high"}}}',
    '{"id": "e", "agent": {"alpha": {"confidence": 0.5}}}',
    '{"messages": [], "response": {}}',
    '{"id": "g", "candidates": "alpha"}',
    "[]",
)


def test_route_refuses_lines_that_it_cannot_read_and_decides_the_others(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    good = '{"id": "a", "question": "What is 2 times 2?", "agents": {"alpha": {"answer": "4", "confidence": 0.6}}}'
    lines.write_text("\n".join([good, *BAD, "", "{}", good.replace('"a"', '"z"')]) + "\n")
    assert run("route", "bundled:router", lines).exit_code == 1, "most lines are bad"
    lines.write_text("\n".join([good, *BAD, "", *["{}"] * 5, good.replace('"a"', '"z"')]) + "\n")
    with pytest.warns(UserWarning, match="7 of 14 lines of") as said:
        done = run("route", "bundled:router", lines)
    assert done.exit_code == 0
    out = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["line"] for line in out] == [*range(1, 9), *range(10, 16)]
    assert [line["line"] for line in out if line["action"]] == [1, *range(10, 16)]
    assert all(line["reason"] for line in out)
    reasons = str(said[0].message).splitlines()[1:]
    assert len(reasons) == 6, "two lines are no object"
    for reason, told in zip(
        reasons,
        (
            '"agents" is []; expected an object',
            "not JSON",
            '"agents.alpha.confidence" is "high"; expected a number',
            "unknown key 'agent'; did you mean 'agents'?",
            "the keys are ['messages', 'response']; expected some of id, question",
            '"candidates" is not a list of names',
        ),
        strict=True,
    ):
        assert told in reason
        assert reason.count(str(lines)) == 1


def test_route_without_a_budget_says_what_it_spends_and_what_half_of_it_loses(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"question": "What is 2 times 2?"}\n')
    panel = Panel.load("bundled:router")
    told = run("route", "bundled:router", lines).stderr
    spent, half = panel.ask_plan(), panel.ask_plan(budget=panel.ask_plan().cost / 2)
    assert f"default: ${spent.cost:.4g} of at most $" in told
    assert f"{100 * (half.accuracy - spent.accuracy):+.1f} points (--budget {spent.cost / 2:.4g})" in told


def test_route_of_good_lines_says_nothing_and_of_none_fails(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"id": "a", "own": 1}\n{"question": "What is 2 times 2?"}\n')
    done = run("route", "bundled:router", lines, "--price", "0")
    assert (done.exit_code, done.stderr, len(done.stdout.splitlines())) == (0, "", 2)
    lines.write_text("\n")
    done = run("route", "bundled:router", lines)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "holds no lines to decide" in done.stderr


def completed(line: str) -> list[str]:
    """Returns the completions of the last word of a line, as bash asks for them."""
    words = line.split(" ")
    command = ShellComplete(main, {}, "metaprobe", "_METAPROBE_COMPLETE")
    return [f"{item.type} {item.value}" for item in command.get_completions(words[:-1], words[-1])]


def test_names_are_completed_and_paths_are_left_to_the_shell() -> None:
    assert "plain train" in completed("tr")
    assert completed("collect zero") == ["plain zero-shot-cot"]
    assert completed("collect s --task metacog") == ["plain metacog-eval"]
    assert completed("collect s --task ./items") == ["file ./items"]
    assert "plain bundled:quality" in completed("score bundled:")
    assert completed("score out/qua") == ["dir out/qua"]
    assert completed("train hidden out --when ") == ["plain before", "plain after"]
    assert "plain --layers" in completed("extract runs --la")
