"""How the learned router stands to every control at a budget: numbers, tables and the words that follow from them.

Jobs of research/routing/measure.py, which keeps the numbers and writes the page.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from metaprobe.eval.metrics.bootstrap import Interval, mean_interval
from metaprobe.eval.routing_controls import against
from research.blocks import markdown
from research.routing.methods import Result

ROUTER, MIXED = "learned router", "learned router, mixed"
OURS = (ROUTER, MIXED)
ENDS = ("best single", "cheapest", "oracle")
"""Shown for their place on the scale. They keep to no budget, and are no controls."""
LEVEL = "at equal spending"
SAID = {"ahead": "ahead of", "tie": "a tie with", "behind": "behind"}
RULE_ROW = "MetaCogAgent's rule"


def standing(budget: float, results: Mapping[str, Result], level: Mapping[str, Result], weights: Any) -> dict[str, Any]:
    """Accuracy, cost and calls of every way at one budget, and both of ours against each control.

    `results`: score, US dollars for 1,000 questions and calls of every test question, by way of routing. `level`: the
    same of the controls where each spends on the test questions what the router does. What costs more than the budget
    by a tenth is no control, but shown.
    """
    controls = {
        name: result[0]
        for name, result in results.items()
        if name not in (*OURS, *ENDS) and (name != RULE_ROW or result[1].mean() <= 1.1 * budget)
    }
    stands = {name: against(results[name][0], controls, weights) for name in OURS if name in results}
    found: dict[str, Any] = {}
    for name, (score, cost, calls) in results.items():
        row = found[name] = {
            "accuracy": packed(mean_interval(score, weights)),
            "cost": packed(mean_interval(cost, weights)),
            "calls": float(calls.mean()),
        }
        row["router_more_accurate_by"] = packed(mean_interval(results[ROUTER][0] - score, weights))
        row["router_costs_more_by"] = packed(mean_interval(results[ROUTER][1] - cost, weights))
        if name in controls:
            row["p_holm"] = stands[ROUTER][name].p_holm
    words = {}
    for name, controlled in stands.items():
        strongest, difference = next(iter(controlled.items()))
        words[name] = {
            "strongest": strongest,
            "more_accurate_by": packed(difference.difference),
            "p_holm": difference.p_holm,
            "word": difference.word,
        }
    strongest, at_level = next(iter(against(results[ROUTER][0], {n: r[0] for n, r in level.items()}, weights).items()))
    words[LEVEL] = {
        "strongest": strongest,
        "accuracy": float(level[strongest][0].mean()),
        "more_accurate_by": packed(at_level.difference),
        "p_holm": at_level.p_holm,
        "word": at_level.word,
    }
    return {"methods": found, "words": words}


def packed(value: Interval) -> list[float]:
    return [value.estimate, value.low, value.high]


def section(found: dict[str, Any]) -> list[str]:
    """One data set: a table of every way at every budget."""
    lines = [
        f"{found['about']}. {found['questions']} questions, {len(found['agents'])} agents, {found['dimensions']} "
        f"dimensions; {found['seeds']} splits, {found['test_per_seed']} test questions each.",
        "",
    ]
    return [*lines, *table(found["rows"], "calls")]


def table(rows: list[dict[str, Any]], calls: str) -> list[str]:
    head = [
        "budget",
        "way of routing",
        "accuracy",
        "USD per 1,000",
        calls,
        "router more accurate by, points",
        "p (Holm)",
    ]
    cells = []
    for row in rows:
        for at, (name, one) in enumerate(_in_order(row["methods"])):
            p = f"{one['p_holm']:.3f}" if "p_holm" in one else ""
            gain = "" if name == ROUTER else points(one["router_more_accurate_by"])
            cells.append([f"{row['budget']:.3g}" if at == 0 else "", name, *_cells(one), gain, p])
        if "shuffled_labels" in row:
            accuracy, cost = row["shuffled_labels"]
            cells.append(["", "router, shuffled labels (one split)", f"{accuracy:.3f}", f"{cost:.3g}", "", "", ""])
    return markdown(head, cells)


def _in_order(methods: dict[str, Any]) -> list[tuple[str, Any]]:
    """Ours first, then the controls from strong to weak, then the ends of the scale."""

    def place(named: tuple[str, Any]) -> tuple[bool, bool, bool, float]:
        name, one = named
        return name != ROUTER, name != MIXED, name in ENDS, -one["accuracy"][0]

    return sorted(methods.items(), key=place)


def _cells(one: dict[str, Any]) -> list[str]:
    a, c = one["accuracy"], one["cost"]
    return [f"{a[0]:.3f} [{a[1]:.3f}, {a[2]:.3f}]", f"{c[0]:.3g} [{c[1]:.3g}, {c[2]:.3g}]", f"{one['calls']:.2f}"]


def points(gain: list[float]) -> str:
    return f"{100 * gain[0]:+.1f} [{100 * gain[1]:+.1f}, {100 * gain[2]:+.1f}]"


def verdict(sets: dict[str, Any]) -> list[str]:
    """A count, and for each data set and budget the strongest control with the word that the interval gives."""
    lines = [*counted(sets), ""]
    for name, found in sets.items():
        lines += said(found["rows"], f"{name} at")
    return lines


def said(rows: list[dict[str, Any]], where: str) -> list[str]:
    """For each budget how the router stands to the strongest control: as it ships, at equal spending, and mixed."""
    lines = []
    for row in rows:
        mine, words = row["methods"][ROUTER], row["words"]
        told, level = words[ROUTER], words[LEVEL]
        other = row["methods"][told["strongest"]]
        lines.append(
            f"- {where} {row['budget']:.3g}: {mine['accuracy'][0]:.3f} for {mine['cost'][0]:.3g}, "
            f"**{SAID[told['word']]}** {told['strongest']} ({other['accuracy'][0]:.3f} for {other['cost'][0]:.3g}): "
            f"{points(told['more_accurate_by'])} points, p {told['p_holm']:.3f}. At equal spending: "
            f"{SAID[level['word']]} {level['strongest']} ({level['accuracy']:.3f}), "
            f"{points(level['more_accurate_by'])}. Mixed: {words[MIXED]['word']} "
            f"({row['methods'][MIXED]['accuracy'][0]:.3f})."
        )
    return lines


def answer(sets: dict[str, Any]) -> list[str]:
    """The page in three sentences, which are counts."""
    rows = [row for found in sets.values() for row in found["rows"]]
    ways = {name: Counter(row["words"][name]["word"] for row in rows) for name in (ROUTER, MIXED, LEVEL)}
    ships, level = ways[ROUTER], ways[LEVEL]
    strongest = Counter(row["words"][ROUTER]["strongest"] for row in rows).most_common(2)
    return [
        f"At the same budget the learned router is more accurate than the strongest simple way of routing in "
        f"{ships['ahead']} of {len(rows)} comparisons on {len(sets)} data sets; it cannot be distinguished from it in "
        f"{ships['tie']}, and it is behind in {ships['behind']}.",
        f"Where both spend the same amount on the test questions, it is ahead in {level['ahead']}, level in "
        f"{level['tie']} and behind in {level['behind']}.",
        f"Try a simple way first: the strongest was most often the {strongest[0][0]} ({strongest[0][1]} comparisons)"
        + "".join(f", then the {name} ({count})" for name, count in strongest[1:])
        + ".",
    ]


def counted(sets: dict[str, Any]) -> list[str]:
    """How often the router is ahead of the strongest control, level with it, behind; as it ships, and mixed."""
    rows = [row for found in sets.values() for row in found["rows"]]
    lines = []
    ways = (
        (ROUTER, "At the same budget"),
        (MIXED, "With its own settings mixed as the controls' are"),
        (LEVEL, "Where each control spends on the test questions what the router spends there"),
    )
    for name, told in ways:
        words = Counter(row["words"][name]["word"] for row in rows)
        strongest = Counter(row["words"][name]["strongest"] for row in rows if row["words"][name]["word"] != "ahead")
        shown = ", ".join(f"{control} {count}" for control, count in strongest.most_common())
        lines.append(
            f"{told}, the router is ahead of the strongest control in {words['ahead']} of {len(rows)} comparisons "
            f"({len(sets)} data sets, each at several budgets), level with it in {words['tie']}, behind in "
            f"{words['behind']}. The strongest control where it is not ahead: {shown}."
        )
    return lines
