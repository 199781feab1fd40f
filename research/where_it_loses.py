"""Writes the table of docs/where-it-loses.md from docs/measured: each thing offered beside the simple way, counted.

python -m research.where_it_loses

A case is ahead or behind where the whole 95 % interval of the difference is on that side of 0, and level otherwise.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from metaprobe.training.methods import TREES
from research.blocks import DOCS, ahead, behind, markdown, write
from research.pictures import Ends, bundled, interval, ladder, panel, points, probes, read, systems

MEASURED, PAGE = DOCS / "measured", DOCS / "where-it-loses.md"
Case = tuple[str, Ends]
HEAD = ["what is offered", "the simple way", "ahead, level, behind", "where it is worst"]


@dataclass(frozen=True, slots=True)
class Offer:
    """Holds a feature, the simple way beside it, its cases, and how a difference is shown."""

    name: str
    simple: str
    cases: Callable[[], Iterable[tuple[Any, ...]]]
    """Yields the name and the difference of each case, and whatever else the row of a picture has."""
    form: str = "{:+.3f}"


def main() -> None:
    """Writes the table."""
    write(PAGE, "where-it-loses", [*markdown(HEAD, [row(offer) for offer in OFFERS]), ""])


def row(offer: Offer) -> list[str]:
    """Returns the counts of an offer and its worst case."""
    cases = [(name, ends) for name, ends, *_ in offer.cases()]
    won, lost = (count(ends for _, ends in cases) for count in (ahead, behind))
    name, ends = min(cases, key=lambda case: case[1][0])
    worst = "{} [{}, {}]".format(*(offer.form.format(end) for end in ends[:3]))
    return [offer.name, offer.simple, f"{won}, {len(cases) - won - lost}, {lost}", f"{name}: {worst}"]


def travel() -> Iterable[Case]:
    return ((row["name"], row["over_best"]) for row in read("travel")["strangers"]["rows"])


def labelled(way: str) -> Callable[[], Iterable[Case]]:
    """Returns the cases of a way to use labels, a case a number of labels."""
    return lambda: (
        (f"{labels} labels", ways[way]["over_mean"])
        for labels, ways in read("travel")["curve"]["counts"].items()
        if way in ways
    )


def trees() -> Iterable[Case]:
    for name, found in read("quality")["sets"].items():
        if "methods" in found:
            yield name, found["methods"][TREES]["over_strongest"]["difference"]


def gate() -> Iterable[Case]:
    for name, found in read("gate").items():
        for look in found["report"]["looks"]:
            yield f"{name.split(', answers')[0]}, {look['look']} tokens", interval(look["gain"])


def budgets() -> Iterable[Case]:
    for name, one in read("routing").items():
        for found in one.get("rows", ()):
            yield f"{name}, {found['budget']:.3g} US dollars", points(found["over"][found["strongest"]][:3])


def texts(part: str) -> Callable[[], Iterable[Case]]:
    """Returns what words, or states beside them, gain on each set of labelled texts that has this part."""
    of = {"gain": "words", "ladder": "over_stronger"}[part]
    return lambda: ((name, found[part][of]) for name, found in read("text_reader").items() if part in found)


def judged() -> Iterable[Case]:
    for kind in ("real", "synthetic"):
        difference = read("rubric")[kind]["text"]["difference"]
        value, low, high = difference["all questions and rater, ridge minus rater's mean alone"]
        yield f"{kind} talks", [-value, -high, -low]


def adapter() -> Iterable[Case]:
    return ((name.replace("/", ", "), found["gain"]["after"]) for name, found in read("adapter").items())


def eyes() -> Iterable[Case]:
    for name, found in read("other_eyes").items():
        answered, task, reader = name.split("|")
        yield f"{answered} on {task}, read by {reader}", found["gap"]


OFFERS = (
    Offer("bundled:quality, AUROC within runs", "the free number that is best on these answers", travel),
    Offer("bundled:quality, AUROC within runs, at home", "each control", bundled),
    Offer("train quality, AUROC", "the free number that is best on these answers", ladder),
    Offer("adapt, AUROC by number of labels", "the mean log-probability, without labels", labelled("adapted default")),
    Offer("train quality, the same", "the same", labelled("trained")),
    Offer("trees on log-probabilities, AUROC", "the control that is best on these answers", trees),
    Offer("the streaming gate, AUROC at a look", "the mean log-probability of the same tokens", gate),
    Offer("hidden states with log-probabilities, AUROC", "the strongest control", probes, "{:+.2f}"),
    Offer("an adapter, AUROC", "a linear probe on the answer", adapter, "{:+.2f}"),
    Offer("another model's log-probabilities, AUROC", "the answering model's own", eyes),
    Offer("a text reader, AUROC", "the words of the question alone", texts("gain")),
    Offer("words with a small model's states, AUROC", "the words, or the question's alone", texts("ladder")),
    Offer("the answer that a panel keeps, points", "the strongest simple way", panel, "{:+.1f}"),
    Offer("whom a panel asks, points at a budget", "the strongest simple way", budgets, "{:+.1f}"),
    Offer("a judge's questions, error spared", "the rater's own mean", judged),
    Offer("MetaCogAgent, points", "its best agent alone", systems, "{:+.1f}"),
)

if __name__ == "__main__":
    main()
