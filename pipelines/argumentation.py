"""Which arguments stand together: preferred extensions of an abstract argumentation framework (Dung 1995).

They are stated as a logic program, in the manner of ASPARTIX (Egly, Gaggl and Woltran 2010), and solved by clingo.
"""

from collections.abc import Collection

from metaprobe.records.extras import require

CLINGO = "clingo>=5.8,<6"

_PREFERRED = """
    #defined attack/2.
    { in(X) } :- argument(X).
    defeated(Y) :- in(X), attack(X, Y).
    :- in(X), defeated(X).
    undefended(Y) :- attack(X, Y), not defeated(X).
    :- in(X), undefended(X).
    #heuristic in(X) : argument(X). [1, true]
    #show in/1.
"""
"""The admissible sets. With `domRec`, clingo gives only those that are largest by inclusion."""


def extensions(arguments: int, attacks: Collection[tuple[int, int]]) -> tuple[frozenset[int], ...]:
    """The sets of arguments that can be held together, in order of their members; arguments are 0 to `arguments` - 1.

    `attacks`: (attacker, attacked). There is at least one set, which may be empty. Raises `ValueError` for an
    attack on or by an unknown argument, `MissingExtra` without clingo.
    """
    if strangers := sorted({a for pair in attacks for a in pair} - set(range(arguments))):
        raise ValueError(f"attacks name the arguments {strangers}; expected numbers from 0 to {arguments - 1}")
    clingo = require("clingo", CLINGO)
    facts = [f"argument({i})." for i in range(arguments)] + [f"attack({i}, {k})." for i, k in attacks]
    control = clingo.Control(["--models=0", "--heuristic=Domain", "--enum-mode=domRec"])
    control.add("base", [], _PREFERRED + "".join(facts))
    control.ground([("base", [])])
    with control.solve(yield_=True) as models:
        sets = [frozenset(atom.arguments[0].number for atom in model.symbols(shown=True)) for model in models]
    return tuple(sorted(sets, key=sorted))
