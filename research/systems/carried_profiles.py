"""What MetaCogAgent gains by profiles that were learned before, beside what needs no profiles at all.

    python -m research.systems.carried_profiles

From recorded/metacog-every-agent: no model is asked. The items are halved by group; one half is played with profiles
that begin anew, and with those that the other half has left (`metaprobe collect --profiles FILE`), each in ten shuffled
orders. The controls know of the other half what the profiles know: which agent was right most often, in all and in each
dimension. Writes the section `carried` of docs/research/systems.md; some seconds.
"""

import copy
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights, mean_interval
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.profiles import Profiles
from research.blocks import markdown, write
from research.routing.agents_play import Table, play
from research.systems.deciding import half_of
from research.systems.figures import PAGE, Lines, about, points, recorded, share

ORDERS = 10
POLICIES = {"the paper's rule": PaperRules(), "profiles only (`weight=0`)": PaperRules(weight=0)}
Way = Callable[[Table, NDArray[np.int64], NDArray[np.int64], int], NDArray[np.float64]]


def main() -> None:
    """Play, and write the table."""
    runs = recorded("metacog-every-agent")
    table = Table.of(runs)
    half = np.array([half_of(run) for run in table.runs])
    ways: dict[str, Way] = {}
    for name, rules in POLICIES.items():
        ways[f"{name}, begun anew"] = played(rules, carried=False)
        ways[f"{name}, carried"] = played(rules, carried=True)
    ways["best agent of the other half, alone"] = by_table(by_dimension=False)
    ways["best agent of the other half in each dimension"] = by_table(by_dimension=True)
    right = {name: np.full((ORDERS, len(half)), np.nan) for name in ways}
    for order in range(ORDERS):
        for test in (0, 1):
            before, now = (
                np.random.default_rng([order, h]).permutation(np.flatnonzero(half == h)) for h in (1 - test, test)
            )
            for name, way in ways.items():
                right[name][order, now] = way(table, before, now, order)
    write(PAGE, "carried", [*about(runs), "", *lines(table, right), ""])


def played(rules: PaperRules, *, carried: bool) -> Way:
    """Algorithm 1 by these rules, its profiles begun anew or with what the other half has left."""

    def way(table: Table, before: NDArray[np.int64], now: NDArray[np.int64], order: int) -> NDArray[np.float64]:
        profiles = Profiles(initial=rules.initial, rate=rules.rate)
        if carried:
            play(table, rules, before, profiles)
        return np.array([game.right for game in play(table, rules, now, copy.deepcopy(profiles))])

    return way


def by_table(*, by_dimension: bool) -> Way:
    """The agent that was right most often on the other half answers alone."""

    def way(table: Table, before: NDArray[np.int64], now: NDArray[np.int64], order: int) -> NDArray[np.float64]:
        names = np.array(table.dimensions) if by_dimension else np.zeros(len(table.runs))
        best = {
            name: int(table.right[before[names[before] == name]].mean(axis=0).argmax()) for name in set(names[before])
        }
        other = int(table.right[before].mean(axis=0).argmax())
        return np.array([table.right[row, best.get(names[row], other)] for row in now])

    return way


def lines(table: Table, right: dict[str, NDArray[np.float64]]) -> Lines:
    """A row a way: accuracy over all orders, its spread over them, and what carrying adds, paired by item."""
    weights = cluster_weights(table.groups.tolist())
    rows = []
    for name, each in right.items():
        by_order = each.mean(axis=1)
        spread = "-" if np.ptp(by_order) < 1e-12 else f"{by_order.min():.1%} to {by_order.max():.1%}"
        anew = right.get(name.replace(", carried", ", begun anew")) if name.endswith(", carried") else None
        gain = "-" if anew is None else points(mean_interval((each - anew).mean(axis=0).tolist(), weights))
        rows.append([name, share(mean_interval(each.mean(axis=0).tolist(), weights)), spread, gain])
    head = ["who decides", "accuracy", f"over {ORDERS} orders", "carried over anew, points"]
    return markdown(head, rows)


if __name__ == "__main__":
    main()
