"""Lines of question, answer, correct and log-probabilities: read by every command that learns, without an import."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.checkpoints import load_checkpoint
from metaprobe.cli import main
from metaprobe.records.store import RunStore, fingerprint

COMMANDS = {
    "quality": ["train", "quality", "--folds", "2"],
    "gate": ["train", "gate", "--folds", "2"],
    "text": ["train", "text", "--folds", "2"],
    "adapt": ["adapt", "bundled:quality"],
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, path = np.random.default_rng(3), tmp_path_factory.mktemp("lines") / "answers.jsonl"
    with path.open("w") as file:
        for n in range(120):
            right = bool(rng.random() < 0.6)
            logprobs = (-np.abs(rng.normal(0.3 if right else 0.9, 0.4, 8))).round(3).tolist()
            asked = {"id": f"q{n}", "question": f"What is {n} + {n}?", "answer": f"It is {2 * n + (not right)}."}
            file.write(json.dumps({**asked, "correct": int(right), "logprobs": logprobs}) + "\n")
    return path


@pytest.fixture(scope="module")
def store(lines: Path) -> Path:
    out = lines.parent / "runs"
    done = CliRunner().invoke(main, ["import", str(lines), "--plain", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "is not read" not in done.output
    return out


def test_a_question_an_answer_and_its_numbers_are_stored(store: Path) -> None:
    run = next(iter(RunStore(store)))
    [call] = run.calls
    assert (run.item.question, call.text[:6], run.outcome) == (
        "What is 0 + 0?",
        "It is ",
        float(call.text == "It is 0."),
    )
    assert call.messages[0].content == "What is 0 + 0?"
    assert call.logprobs is not None
    assert len(call.logprobs) == 8


@pytest.mark.filterwarnings("ignore:the checkpoint .* is NOT TRUSTWORTHY")  # the answers are noise
@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_teaches_what_its_store_would(name: str, lines: Path, store: Path, tmp_path: Path) -> None:
    spoilt, kept = tmp_path / "answers.jsonl", tmp_path / "bad.jsonl"
    whole = lines.read_text().splitlines(keepends=True)
    bad = [whole[7][:60] + "\n", whole[8].replace("[-", '["-')]  # of the same questions, and read by nobody
    spoilt.write_text("".join([*bad[:1], *whole, *bad[1:]]))
    command = [*COMMANDS[name], str(spoilt), "--out", str(tmp_path / "c"), "--bad", str(kept)]
    with pytest.warns(UserWarning, match=r"(?s)2 of 122 lines of .*answers\.jsonl:1: not JSON"):
        done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert kept.read_text() == "".join(bad)
    learned = load_checkpoint(tmp_path / "c").manifest.training
    assert learned is not None
    assert (learned.n, learned.fingerprint) == (120, fingerprint(RunStore(store)))


@pytest.mark.parametrize("name", [*COMMANDS, "compare"])
def test_a_file_of_mostly_bad_lines_teaches_nothing_and_a_strict_reader_stops(
    name: str, lines: Path, tmp_path: Path
) -> None:
    spoilt, kept = tmp_path / "answers.jsonl", tmp_path / "bad.jsonl"
    command = [*COMMANDS.get(name, [name]), str(spoilt), "--out", str(tmp_path / "c"), "--bad", str(kept)]
    spoilt.write_text("{broken\n" * 121 + lines.read_text())
    refused = CliRunner().invoke(main, command)
    assert (refused.exit_code, "121 of 241 lines" in refused.output) == (1, True), refused.output
    spoilt.write_text(lines.read_text() + "{broken\n")
    stopped = CliRunner().invoke(main, [*command, "--strict"])
    assert (stopped.exit_code, "answers.jsonl:121: not JSON" in stopped.output) == (1, True), stopped.output
    assert not kept.exists()
    assert not any((tmp_path / "c").glob("*"))


def test_what_a_file_cannot_hold_is_named_where_it_is_refused(lines: Path, tmp_path: Path) -> None:
    for kind in ("hidden", "blend"):
        refused = CliRunner().invoke(main, ["train", kind, str(lines), "--out", str(tmp_path / "c")])
        assert refused.exit_code == 2
        words = " ".join(refused.output.split())
        assert "keeps no hidden states" in words
        assert "`metaprobe extract RUNS --llm MODEL`" in words


@pytest.mark.filterwarnings("ignore:the checkpoint .* is NOT TRUSTWORTHY")
def test_a_comparison_in_fewer_folds_repeats_them_and_does_not_advise_three(lines: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["compare", str(lines), "--folds", "2", "--seed", "4", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "each method is fitted in 2 folds" in done.output
    assert "takes less time" not in done.output
    page = " ".join((tmp_path / "report.html").read_text().split())
    [named] = set(re.findall(r"metaprobe (?:train|adapt|compare) [^<]*--out", page))
    assert "--seed 4 --out" in named
    assert ("--folds 2" in named) == ("adapt" not in named)
    assert ("chosen on these answers, so a little too good; the best plain baseline" in page) == (
        "Use the learned method" not in page
    )


def test_log_probabilities_under_another_name_are_refused_by_that_name(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text(json.dumps({"question": "?", "answer": "4", "token_logprobs": [-0.1]}), encoding="utf-8")
    done = CliRunner().invoke(main, ["score", "bundled:quality", str(file)])
    assert "unknown key 'token_logprobs'" in done.output
    assert "'logprobs'" in done.output
