"""Questions that the embedded model answers rightly about half of the time, with their answers."""

from collections.abc import Iterator

import numpy as np

CAPITALS = dict(
    line.split(":")
    for line in """
Angola:Luanda,Australia:Canberra,Austria:Vienna,Bolivia:La Paz,Bulgaria:Sofia,Canada:Ottawa,Chile:Santiago,China:Beijing
Croatia:Zagreb,Cuba:Havana,Denmark:Copenhagen,Ecuador:Quito,Egypt:Cairo,Estonia:Tallinn,Finland:Helsinki,France:Paris
Germany:Berlin,Ghana:Accra,Greece:Athens,Hungary:Budapest,India:New Delhi,Iran:Tehran,Iraq:Baghdad,Ireland:Dublin
Italy:Rome,Japan:Tokyo,Jordan:Amman,Kenya:Nairobi,Latvia:Riga,Lebanon:Beirut,Lithuania:Vilnius,Mongolia:Ulaanbaatar
Morocco:Rabat,Nepal:Kathmandu,New Zealand:Wellington,Norway:Oslo,Peru:Lima,Poland:Warsaw,Portugal:Lisbon,Qatar:Doha
Romania:Bucharest,Saudi Arabia:Riyadh,Senegal:Dakar,Serbia:Belgrade,South Korea:Seoul,Spain:Madrid,Sweden:Stockholm
Thailand:Bangkok,Turkey:Ankara,Uganda:Kampala,Vietnam:Hanoi,Zambia:Lusaka
""".replace("\n", ",")
    .strip(",")
    .split(",")
)
WAYS = (
    "What is the capital of {}? Answer with its name.",
    "Name the capital city of {}.",
    "Which city is the capital of {}?",
)


def questions(seed: int) -> Iterator[tuple[str, str]]:
    """Yields questions and what a right answer names, without end, in an order of chance."""
    rng, countries = np.random.default_rng(seed), sorted(CAPITALS)
    while True:
        country = countries[rng.integers(len(countries))]
        yield WAYS[rng.integers(len(WAYS))].format(country), CAPITALS[country]


def is_right(question: str, answer: str) -> bool:
    """Whether an answer names the capital that its question asks for."""
    country = next(name for name in sorted(CAPITALS, key=len, reverse=True) if name in question)
    return CAPITALS[country] in answer
