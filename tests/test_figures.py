"""Figures in docs/figures are what their scripts draw; each is on a page, with words for whoever cannot see it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_architecture import FLOORS, HOUSES

from research.architecture import draw as house
from research.gallery import write as gallery
from research.hero import figure as hero
from research.hidden import headline

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture
def figures() -> dict[str, Any]:
    return json.loads(hero.MEASURED.read_text(encoding="utf-8"))


def test_the_first_figure_is_drawn_from_the_kept_figures(figures: dict[str, Any]) -> None:
    assert hero.FIGURE.read_text(encoding="utf-8") == hero.svg(figures, hero.rows_of(headline.read()))


def test_the_gallery_shows_every_figure_that_was_taken() -> None:
    shown = set(re.findall(r"figures/gallery/([\w.-]+\.svg)", gallery.PAGE.read_text(encoding="utf-8")))
    assert shown == {path.name for path in gallery.FIGURES.glob("*.svg")}
    assert len(shown) >= 5


def test_the_map_of_the_house_shows_the_floors_that_the_test_of_imports_holds() -> None:
    assert house.FIGURE.read_text(encoding="utf-8") == house.svg()
    drawn = {room: floor for floor, rooms in enumerate(house.FLOORS) for room in rooms}
    assert {room: floor for room, floor in drawn.items() if room not in HOUSES} == {
        room: floor for room, floor in FLOORS.items() if room.partition(".")[0] not in HOUSES
    }
    assert {drawn[room] for room in HOUSES} == {len(house.FLOORS) - 1}  # side by side on the core


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_a_figure_is_shown_on_a_page_loads_nothing_and_is_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"(?:href|src)=\"https?:", text)
    assert len(text) < 150_000
    pages = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    pictures = [found for page in pages for found in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page)]
    alternatives = [alt for alt, name in pictures if name.endswith(f"/{path.name}")]
    assert alternatives, f"no page shows {path.name}"
    assert all(len(alt) > 30 for alt in alternatives)
