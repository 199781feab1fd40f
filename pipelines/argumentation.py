"""Which arguments stand together: extensions of an abstract argumentation framework (Dung 1995).

The semantics are stated as logic programs, in the manner of ASPARTIX (Egly, Gaggl and Woltran 2010), and
solved by clingo.
"""

from collections.abc import Collection
from typing import Literal

from metaprobe.records.extras import require

CLINGO = "clingo>=5.8,<6"

Semantics = Literal["grounded", "preferred", "stable"]

_CONFLICT_FREE = """
    #defined attack/2.
    { in(X) } :- argument(X).
    defeated(Y) :- in(X), attack(X, Y).
    :- in(X), defeated(X).
    #show in/1.
"""
_ADMISSIBLE = f"""{_CONFLICT_FREE}
    undefended(Y) :- attack(X, Y), not defeated(X).
    :- in(X), undefended(X).
"""
_STABLE = f"{_CONFLICT_FREE} :- argument(X), not in(X), not defeated(X)."
_COMPLETE = f"{_ADMISSIBLE} :- argument(X), not in(X), not undefended(X)."
# With `domRec`, clingo gives only the sets that are largest (true) or smallest (false) by inclusion.
_LARGEST = "#heuristic in(X) : argument(X). [1, true]"
_SMALLEST = "#heuristic in(X) : argument(X). [1, false]"

_PROGRAMS: dict[Semantics, str] = {
    "grounded": _COMPLETE + _SMALLEST,
    "preferred": _ADMISSIBLE + _LARGEST,
    "stable": _STABLE + _LARGEST,
}


def extensions(
    arguments: int, attacks: Collection[tuple[int, int]], semantics: Semantics = "preferred"
) -> tuple[frozenset[int], ...]:
    """The sets of arguments that can be held together, in order of their members; arguments are 0 to `arguments` - 1.

    `attacks`: (attacker, attacked). Grounded is always one set and preferred at least one, either perhaps empty; stable
    may be none. Raises `ValueError` for an attack on or by an unknown argument, `MissingExtra` without clingo.
    """
    if strangers := sorted({a for pair in attacks for a in pair} - set(range(arguments))):
        raise ValueError(f"attacks name the arguments {strangers}; expected numbers from 0 to {arguments - 1}")
    clingo = require("clingo", CLINGO)
    facts = [f"argument({i})." for i in range(arguments)] + [f"attack({i}, {k})." for i, k in attacks]
    control = clingo.Control(["--models=0", "--heuristic=Domain", "--enum-mode=domRec"])
    control.add("base", [], _PROGRAMS[semantics] + "".join(facts))
    control.ground([("base", [])])
    with control.solve(yield_=True) as models:
        sets = [frozenset(atom.arguments[0].number for atom in model.symbols(shown=True)) for model in models]
    return tuple(sorted(sets, key=sorted))
