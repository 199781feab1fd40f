"""The README's code runs, with a checkpoint trained on the recorded runs in the place of the demo's."""

import re
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaprobe.cli import main

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_readme_runs(
    recorded_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    assert len(blocks) == 1
    trained = CliRunner().invoke(
        main, ["train", "quality", str(recorded_runs), "--out", "out/demo/checkpoints/quality", "--folds", "3"]
    )
    assert trained.exit_code == 0, trained.output
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(blocks[0], "README.md", "exec"), {})
    score, flagged, in_support = capsys.readouterr().out.split()
    assert 0 < float(score) < 1
    assert {flagged, in_support} <= {"True", "False"}


def test_the_import_line_of_the_readme_imports(tmp_path: Path) -> None:
    line = re.search(r"```json\n(.*?)```", README, flags=re.S)
    assert line is not None
    (tmp_path / "lines.jsonl").write_text(line[1])
    done = CliRunner().invoke(main, ["import", str(tmp_path / "lines.jsonl"), "--out", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output


def test_every_command_and_file_that_the_readme_names_exists() -> None:
    for command in set(re.findall(r"^metaprobe ([a-z]+(?: (?:quality|hidden|choice))?)", README, flags=re.M)):
        assert CliRunner().invoke(main, [*command.split(), "--help"]).exit_code == 0, command
    root = Path(__file__).parent.parent
    for link in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        assert (root / link).exists(), link
