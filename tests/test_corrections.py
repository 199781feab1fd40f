"""Every row of the page of corrections is whole."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import corrections  # noqa: E402


def test_a_row_without_its_new_figure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "claims_systems.json"
    file.write_text(
        '[{"statement": "it helps", "page": "README.md", "before": "+12", "verdict": "fell", "script": "x"}]'
    )
    monkeypatch.setattr(corrections, "MEASURED", tmp_path)
    with pytest.raises(ValueError, match="'it helps' lacks after"):
        corrections.page()


def test_a_cell_cannot_break_the_table() -> None:
    assert corrections.flat("a | b\nc") == "a \\| b c"
