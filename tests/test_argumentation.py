"""Extensions against the definitions themselves (every subset tried) and against the textbook's frameworks."""

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("clingo")

from metaprobe.pipelines.caelf import extensions

Attacks = set[tuple[int, int]]


@st.composite
def frameworks(draw: st.DrawFn) -> tuple[int, Attacks]:
    n = draw(st.integers(0, 6))
    pairs = [(i, k) for i in range(n) for k in range(n)]
    return n, draw(st.sets(st.sampled_from(pairs))) if pairs else set()


def by_definition(n: int, attacks: Attacks) -> set[frozenset[int]]:
    """Dung's definitions, word for word, over all subsets."""
    subsets = [frozenset(s) for s in chain.from_iterable(combinations(range(n), size) for size in range(n + 1))]

    def hit(s: frozenset[int]) -> set[int]:
        return {k for i, k in attacks if i in s}

    def defended(s: frozenset[int]) -> set[int]:
        return {k for k in range(n) if all(i in hit(s) for i, target in attacks if target == k)}

    free = [s for s in subsets if not s & hit(s)]
    admissible = [s for s in free if s <= defended(s)]
    return {s for s in admissible if not any(s < larger for larger in admissible)}


@given(framework=frameworks())
def test_extensions_are_those_of_the_definitions(framework):
    n, attacks = framework
    found = extensions(n, attacks)
    assert len(set(found)) == len(found)
    assert set(found) == by_definition(n, attacks)


@pytest.mark.parametrize(
    ("name", "n", "attacks", "preferred"),
    [
        ("no arguments at all", 0, set(), [set()]),
        ("no attacks", 2, set(), [{0, 1}]),
        ("Nixon diamond", 2, {(0, 1), (1, 0)}, [{0}, {1}]),
        ("odd cycle", 3, {(0, 1), (1, 2), (2, 0)}, [set()]),
        ("even cycle", 4, {(0, 1), (1, 2), (2, 3), (3, 0)}, [{0, 2}, {1, 3}]),
        ("self-attacker", 1, {(0, 0)}, [set()]),
        ("attacked by a self-attacker", 2, {(0, 0), (0, 1)}, [set()]),
        ("self-attacker that is defeated", 2, {(0, 0), (1, 0)}, [{1}]),
        ("reinstatement", 3, {(0, 1), (1, 2)}, [{0, 2}]),
        ("floating", 4, {(0, 1), (1, 0), (0, 2), (1, 2), (2, 3)}, [{0, 3}, {1, 3}]),
    ],
)
def test_textbook_frameworks(name, n, attacks, preferred):
    assert list(extensions(n, attacks)) == preferred, name


def test_an_unknown_argument_is_named():
    with pytest.raises(ValueError, match=r"\[2\]; expected numbers from 0 to 1"):
        extensions(2, {(0, 2)})
