"""Every row of the page of corrections is whole."""

import json
from pathlib import Path

import pytest

from research.claims import corrections
from research.claims import essays as claims_essays
from research.claims import routing as claims_routing
from research.systems import operating_points

ROOT = Path(__file__).parent.parent


def test_what_is_said_of_the_router_follows_from_its_figures() -> None:
    said = json.loads(claims_routing.CLAIMS.read_text(encoding="utf-8"))
    assert claims_routing.rows() == said
    compared = [claim for claim in said if " USD per 1,000: " in claim["statement"] and ": No b" in claim["statement"]]
    assert len(compared) + sum("More accurate" in claim["statement"] for claim in said) == 20


def test_what_is_said_of_essays_and_of_decisions_follows_from_their_figures() -> None:
    figures = json.loads(operating_points.MEASURED.read_text(encoding="utf-8"))
    assert json.loads(operating_points.CLAIMS.read_text(encoding="utf-8")) == operating_points.statements(figures)
    assert json.loads(claims_essays.CLAIMS.read_text(encoding="utf-8")) == claims_essays.rows()


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
