"""The page of corrections is what its script writes, and every row of it is whole."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import claims_routing  # noqa: E402
import corrections  # noqa: E402


def test_the_page_is_what_its_script_writes_today() -> None:
    assert (ROOT / "docs" / "corrections.md").read_text(encoding="utf-8") == corrections.page()


def test_what_is_said_of_the_router_follows_from_its_figures() -> None:
    said = json.loads(claims_routing.CLAIMS.read_text(encoding="utf-8"))
    assert claims_routing.rows() == said
    compared = [claim for claim in said if " USD per 1,000: " in claim["statement"] and ": No b" in claim["statement"]]
    assert len(compared) + sum("More accurate" in claim["statement"] for claim in said) == 20


def test_a_row_without_its_new_figure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs" / "measured").mkdir(parents=True)
    file = tmp_path / "docs" / "measured" / "claims_systems.json"
    file.write_text(
        '[{"statement": "it helps", "page": "README.md", "before": "+12", "verdict": "fell", "script": "x"}]'
    )
    monkeypatch.setattr(corrections, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="'it helps' lacks after"):
        corrections.page()


def test_a_cell_cannot_break_the_table() -> None:
    assert corrections.flat("a | b\nc") == "a \\| b c"
