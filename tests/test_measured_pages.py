"""docs/research/systems.md and docs/research/speed.md leave no number out, and say what was not measured."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from research import pictures
from research.papers import page as reproduction
from research.papers.systems import PAPERS
from research.quality import bundled as bundled_controls

ROOT = Path(__file__).parent.parent

Found = dict[str, Any]
QUICK = (
    "monitor_generate_verify",
    "metacrit",
    pytest.param("early_token_confidence", marks=pytest.mark.slow),
    "caelf",
)
"""Papers whose numbers take seconds; MetaCogAgent's take minutes of replaying."""
WHERE = {
    "monitor_generate_verify": {"systems": "table 1"},
    "metacogagent": {
        **{f"table {i}": f"table {roman}" for i, roman in enumerate(("I", "II", "III", "IV", "V"), 1)},
        "calibration": "section V",
        "delegation": "section V",
        "cross_gain_over_conversation": "gain over it on cross items",
        "profiles_after_all_tasks": "profiles after all tasks",
        "example": "one example",
    },
    "metacrit": {
        **{f"table {i}": f"table {i}" for i in (1, 3, 4, 7, 8)},
        **{"table 2": "table 1, and 2", "table 9": "table 9", "table 10": "table 10", "figure 4": "figure 4"},
    },
    "early_token_confidence": {"section 4.4": "section 4.4", "tables 3 and 4": "3 and 4", "protocol": "its protocol"},
    "caelf": {"human_evaluation": "table 8"},
}
"""Paper -> what docs/paper_numbers/ holds of it -> how the page names it."""
NO_FIGURES = set("paper source model task note notes units contradictions unclear constants".split())
NO_FIGURES |= set("levels dimensions words not_given".split())


@pytest.fixture(scope="module")
def figures() -> Found:
    return json.loads(reproduction.FIGURES.read_text(encoding="utf-8"))


def paper(name: str) -> Found:
    return json.loads((ROOT / "docs" / "paper_numbers" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", QUICK)
def test_the_figures_are_those_of_the_recorded_runs(name: str, figures: Found) -> None:
    found = json.loads(json.dumps(dataclasses.asdict(PAPERS[name](paper(name)))))
    assert rounded(found) == rounded(figures[name])


def rounded(found: Any) -> Any:
    """Returns the figures to ten digits: processors add the same numbers in another order."""
    if isinstance(found, float):
        return float(f"{found:.10g}")
    if isinstance(found, dict):
        return {name: rounded(value) for name, value in found.items()}
    return [rounded(value) for value in found] if isinstance(found, list) else found


@pytest.mark.parametrize("name", PAPERS)
def test_whatever_a_paper_reports_is_measured_or_has_a_reason(name: str, figures: Found) -> None:
    assert set(paper(name)) - NO_FIGURES == set(WHERE[name])
    named = [row["where"] for kind in ("figures", "missing") for row in figures[name][kind]]
    for key, where in WHERE[name].items():
        assert any(where in place for place in named), f"{key}: {where} is not in {sorted(set(named))}"
    assert all(row["why"].endswith(".") for row in figures[name]["missing"])


@pytest.mark.parametrize("page", pictures.PICTURES)
def test_the_picture_of_a_measured_page_is_drawn_from_the_kept_figures(page: str) -> None:
    kept = (pictures.FIGURES / f"{page}.svg").read_text(encoding="utf-8")
    assert pictures.svg(pictures.PICTURES[page]) == kept
    assert len(list(pictures.PICTURES[page].rows())) > 2


def test_the_strongest_control_of_the_bundled_predictor_comes_first() -> None:
    found = json.loads(bundled_controls.MEASURED.read_text(encoding="utf-8"))
    for where in ("pooled", "within"):
        estimates = [control["estimate"] for control in found[where]["controls"].values()]
        assert estimates == sorted(estimates, reverse=True)
