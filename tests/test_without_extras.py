"""A command whose packages are not installed says in one line which, and what to type."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaprobe.cli import main


@pytest.mark.parametrize(
    ("line", "package", "extra"),
    [
        (["extract", "RUNS", "--llm", "smollm2-135m"], "torch", "train"),
        (["train", "adapter", "RUNS", "--llm", "smollm2-135m", "--out", "OUT"], "torch", "train,adapter"),
        (["train", "adapter", "RUNS", "--llm", "smollm2-135m", "--out", "OUT"], "peft", "train,adapter"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    line: list[str],
    package: str,
    extra: str,
    recorded_runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    places = {"RUNS": str(recorded_runs), "OUT": str(tmp_path / "out")}
    result = CliRunner().invoke(main, [places.get(word, word) for word in line])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].startswith(f"Error: {package} is needed here and not installed")
    assert f"metaprobe[{extra}]" in result.output
