"""The README's code prints what the README says, with the checkpoint that comes with the package."""

import json
import re
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaprobe.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_readme_prints_what_stands_below_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    [found] = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, flags=re.S)
    code, shown = found
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown


def test_the_readme_is_short_and_reaches_a_verdict_within_sixty_lines() -> None:
    assert len(README.split()) <= 600
    assert README[: README.index("FLAG")].count("\n") < 60


def test_the_picture_has_a_caption_of_forty_words() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    [caption] = re.findall(r"<!-- hero:.*?\.svg\)\n\n(.*?)\n", index, flags=re.S)
    assert len(re.sub(r"\]\([^)]*\)", "]", caption).split()) <= 40


def test_the_first_screen_has_one_gain_and_the_two_commands_that_ci_and_a_fresh_machine_run() -> None:
    first = README[: README.index("## ")]
    assert len(re.findall(r"it finds \d+% \[\d+, \d+\] of the mistakes of a [\d.]+[MB] model", first)) == 1
    commands = re.findall(r"^(make \w+) ", first, flags=re.M)
    assert commands == ["make demo", "make test"]
    ran = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "make test" in ran


def test_the_lines_of_the_guide_are_read(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    lines = re.findall(r"```json\n(.*?)```", guide, flags=re.S)[:2]
    (tmp_path / "lines.jsonl").write_text("".join(lines))
    done = CliRunner().invoke(main, ["import", str(tmp_path / "lines.jsonl"), "--out", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output


def test_the_commands_for_a_log_of_ones_own_run_on_lines_like_the_readmes(tmp_path: Path) -> None:
    own = README[README.index("## Your own log") : README.index("## Your situation")]
    [line] = re.findall(r"```json\n(.*?)\n```", own, flags=re.S)
    rows = [
        {**json.loads(line), "question": f"What is {n} + 2?", "logprobs": [-0.1 * (n + 1)] * 3, "correct": int(n < 15)}
        for n in range(30)
    ]
    labelled = tmp_path / "labelled.jsonl"
    labelled.write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = {"labelled.jsonl": str(labelled), "new.jsonl": str(labelled), "out/mine": str(tmp_path / "mine")}
    for name in ("advise", "adapt", "score"):
        [typed] = re.findall(rf"^metaprobe ({name} [^#>\n]*)", own, flags=re.M)
        done = CliRunner().invoke(main, [paths.get(word, word) for word in typed.split()])
        assert done.exit_code == 0, done.output
        if name == "adapt":
            assert f"metaprobe score {tmp_path / 'mine'}" in done.stdout
    verdicts = [json.loads(verdict) for verdict in done.stdout.splitlines()]
    assert {verdict["flagged"] for verdict in verdicts} == {True, False}
