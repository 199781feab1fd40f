"""The page on judges of arguments, from docs/measured/judges.json; research/pictures.py draws its picture.

python -m research.debates.page
"""

from collections.abc import Iterator
from typing import Any

import click

from research.blocks import markdown, read_figures, shown, signed, write
from research.debates.measure import (
    DECISIONS,
    EARLY,
    FEW_LABELS,
    MEASURED,
    PAGE,
    PROGRAM,
    RUNGS,
    STORES,
    TARGETS,
    TEXT_JUDGE,
    WINDOWS,
    Early,
)
from research.debates.texts import EVERYTHING, TERMS, WORDS, WORDS_AND_TERMS

TARGET = "not critical, program"
"""The target that the page opens with."""
AIM, SHARE = 0.03, 0.9
"""Gain in AUROC over the strongest control, and share of what the whole argument gives, that were aimed at."""

Figures = dict[str, Any]


@click.command()
def page_command() -> None:
    """Write the blocks of the page and of its page of tables."""
    measured = read_figures(MEASURED)
    stores = {name: measured[name] for name in STORES if name in measured}
    learned = {name: targets for name, of in stores.items() if (targets := learned_of(of))}
    largest = max(learned, key=lambda name: int(learned[name][TARGET]["n"]))
    write(PAGE, "answer", [*answer(STORES[largest], learned[largest], stores[largest].get("texts", {})), ""])
    write(PAGE, "judges", [*table_of(learned[largest][TARGET], stores[largest]["price"]), ""])
    texts = stores[largest].get("texts", {})
    write(PAGE, "verdict", [*verdict(learned), *of_texts(STORES[largest], stores[largest]), ""])
    lines: list[str] = []
    for name, target, of in by_program(learned):
        lines += [f"### {STORES[name]}: {target}", "", *table_of(of, stores[name]["price"]), ""]
    write(PAGE, "judges-all", [*lines, *left_out(stores), ""])
    write(PAGE, "judges-text", [*of_text(learned), ""])
    write(PAGE, "judges-read", [*read_rows(texts), ""])
    write(PAGE, "judges-curve", [*curve_rows(texts), ""])
    lines = []
    for name, target, of in by_program(learned):
        lines += [f"### {STORES[name]}: {target}", "", *windows(of), ""]
    write(PAGE, "judges-windows", lines)
    write(PAGE, "judges-held", [*held(learned), ""])


def by_program(learned: Figures) -> Iterator[tuple[str, str, Figures]]:
    """Yields store, target and figures of what a program labelled."""
    for name, targets in learned.items():
        for target, of in targets.items():
            if TARGETS[target][0] == PROGRAM:
                yield name, target, of


def answer(title: str, targets: Figures, texts: Figures) -> list[str]:
    """Returns what the page opens with, of the largest set of debates."""
    of = targets[TARGET]
    early, whole = (shown(of["methods"][Early("terms", k).name]["auroc"]) for k in (EARLY, 0))
    stop = of["stopping"][Early("terms", EARLY).name]
    asked = [f"the {judge} has AUROC {shown(of['methods'][judge]['auroc'])}" for judge in asked_of(of)]
    return [
        f"Of {of['n']} arguments ({title}) a program calls {1 - of['good']:.0%} critical. On them {', '.join(asked)};",
        f"the terms of their own log-probabilities, which ask nobody, have {whole}, and {early} after {EARLY} tokens.",
        f"What is learned from log-probabilities is {AIM} ahead of the strongest control, by an interval, on",
        f"{len(ahead_of(targets))} of {len(targets)} targets; {EVERYTHING.name} of the whole argument are on",
        f"{len(ahead_in_texts(texts))} of {len(texts)}. To stop after {EARLY} tokens what looks critical catches",
        f"{stop['caught'][0]:.0%} of the critical arguments, and stops {stop['lost'][0]:.0%} of the sound ones.",
    ]


def ahead_of(targets: Figures) -> list[str]:
    """Returns the targets on which anything learned is ahead of the strongest control as was aimed at."""
    return [
        target
        for target, of in targets.items()
        if any(is_ahead(row) for name, row in of["methods"].items() if is_learned(name))
    ]


def learned_of(store: Figures) -> Figures:
    """Returns the targets of a store from which something was learned."""
    return {target: of for target, of in store["targets"].items() if not of.get("lacking")}


def left_out(stores: Figures) -> list[str]:
    """Returns a line for each target that has too few arguments of one kind."""
    return [
        f"- {STORES[name]}: {target}: nothing is learned, for {of['lacking']}."
        for name, store in stores.items()
        for target, of in store["targets"].items()
        if of.get("lacking")
    ]


def table_of(of: Figures, price: Figures) -> list[str]:
    """Returns the table of all judges on one target."""
    rows = []
    for name, row in of["methods"].items():
        if ", first" in name and name != Early("terms", EARLY).name:
            continue
        cost = price.get(name)
        rows.append(
            [
                name,
                shown(row["auroc"]),
                shown(row["kappa"]),
                shown(row.get("ece_as_said")),
                shown(row["ece"]),
                "0" if cost is None else f"{cost['read']:.0f} read, {cost['said']:.0f} said",
                signed(row["gain"]),
            ]
        )
    control = of["control"]
    rows.append([f"strongest control: {control['name']}", shown(control["auroc"]), *["-"] * 3, "0", "-"])
    head = ["judge", "AUROC", "kappa", "ECE as said", "ECE on labels", "tokens", "over the control"]
    return [f"{of['n']} arguments on {of['groups']} essays, {of['good']:.1%} good.", "", *markdown(head, rows)]


def of_text(learned: Figures) -> list[str]:
    """Returns the table of what is learned of a text judge's own verdicts."""
    names = [Early("terms", EARLY).name, Early("terms").name, Early("trees").name]
    rows = [
        [
            f"{STORES[store]}: {target}",
            f"{of['n']}, {of['good']:.0%}",
            *(shown(of["methods"][name]["auroc"]) for name in names),
            f"{of['control']['name']} {shown(of['control']['auroc'])}",
        ]
        for store, targets in learned.items()
        for target, of in targets.items()
        if TARGETS[target][0] != PROGRAM
    ]
    return markdown(["target", "n, good", *names, "strongest control"], rows)


def windows(of: Figures) -> list[str]:
    """Returns the table of the windows, and what stopping at each costs and saves."""
    rows = []
    for k in WINDOWS:
        ladder, terms = (Early(rung, k).name for rung in ("ladder", "terms"))
        stop = of["stopping"][terms]
        rows.append(
            [
                str(k) if k else "all",
                shown(of["methods"][ladder]["auroc"]),
                shown(of["methods"][terms]["auroc"]),
                *(
                    f"{stop[key][0]:.1%} [{stop[key][1]:.1%}, {stop[key][2]:.1%}]"
                    for key in ("caught", "lost", "saved")
                ),
            ]
        )
    return markdown(["tokens", "ladder", "terms", "critical ones stopped", "sound ones stopped", "tokens saved"], rows)


def held(learned: Figures) -> list[str]:
    """Returns what is left on traits that nobody has seen, and with fewer labels."""
    rows = []
    for name, target, of in by_program(learned):
        for method in (Early("terms", EARLY).name, Early("terms").name):
            figures = of["trait_left_out"][method]
            few = [of["fewer_labels"].get(str(count), {}).get(method) for count in FEW_LABELS]
            rows.append(
                [
                    f"{STORES[name]}: {target}",
                    method,
                    shown(figures["auroc"]),
                    signed(figures["cost"]),
                    *("-" if value is None else f"{value[0]:.3f}" for value in few),
                    f"{of['methods'][method]['auroc'][0]:.3f}",
                ]
            )
    head = ["target", "learned", "trait left out, AUROC", "over trait seen", *map(str, FEW_LABELS), "all labels"]
    return markdown(head, rows)


def verdict(learned: Figures) -> list[str]:
    """Returns what the figures say of each aim."""
    lines = []
    for name, targets in learned.items():
        kept = early_shares(targets, Early("terms", EARLY).name, Early("terms").name)
        lines.append(
            f"- **{STORES[name]}.** Ahead of the strongest control by {AIM} and an interval: "
            f"{len(ahead_of(targets))} of {len(targets)} targets. The terms of the first {EARLY} tokens give "
            f"{', '.join(kept)} of what those of the whole argument are above chance; {SHARE:.0%} was the aim."
        )
        lines += asked_judges(STORES[name], targets[TARGET])
    return lines


def early_shares(targets: Figures, early: str, whole: str) -> list[str]:
    """Returns the part that the first tokens give, for each target on which the whole argument is above chance."""
    shares = []
    for target, of in targets.items():
        begun, (value, low, _) = of["methods"][early]["auroc"][0], of["methods"][whole]["auroc"]
        if low > 0.5:
            shares.append(f"{(begun - 0.5) / (value - 0.5):.0%} ({target})")
    return shares


def is_learned(method: str) -> bool:
    """Whether a row is of something learned, and no judge that is asked."""
    return method.split(", ")[0] in RUNGS


def asked_of(of: Figures) -> list[str]:
    """Returns the judges that were asked about these arguments."""
    return [judge for judge in (TEXT_JUDGE, DECISIONS) if judge in of["methods"]]


def asked_judges(title: str, of: Figures) -> list[str]:
    """Returns what asked judges know of the program's critical flag, beside what is learned, and the ladder."""
    early, terms, ladder = (of["methods"][Early(*which).name] for which in (("terms", EARLY), ("terms",), ("ladder",)))
    lines = [
        f"- {title}, the program's critical flag: {judge} has AUROC {shown(of['methods'][judge]['auroc'])} and kappa "
        f"{shown(of['methods'][judge]['kappa'])}; the terms of the whole argument, which ask nobody, have kappa "
        f"{shown(terms['kappa'])}."
        for judge in asked_of(of)
    ]
    few = ", ".join(f"{value[Early('terms').name][0]:.3f} with {count}" for count, value in of["fewer_labels"].items())
    return [
        *lines,
        f"- {title}, the same flag: the terms have AUROC {shown(early['auroc'])} after {EARLY} tokens and "
        f"{shown(terms['auroc'])} after all (labels: {few}), {SHARE:.0%} of it from {known_from(of)}; the ladder is "
        f"{signed(ladder['gain'])} from the strongest control, {of['control']['name']}.",
    ]


def known_from(of: Figures) -> str:
    """Returns the first window whose terms give `SHARE` of what those of the whole argument are above chance."""
    above = {k: float(of["methods"][Early("terms", k).name]["auroc"][0]) - 0.5 for k in WINDOWS}
    first = next((k for k in WINDOWS if k and above[k] >= SHARE * above[0]), 0)
    return f"the first {first} tokens on" if first else "the whole argument alone"


def of_texts(title: str, store: Figures) -> list[str]:
    """Returns what words and states add on the largest set of debates, and what more labels brought."""
    texts = store.get("texts", {})
    if not texts:
        return []
    of, both = texts[TARGET], WORDS_AND_TERMS.name
    names = [name for name in of["methods"] if ", first" not in name and name != TERMS.name]
    rows = "; ".join(f"{name} {shown(of['methods'][name]['auroc'])}, {gain_in(of, name)}" for name in names)
    kept = early_shares(texts, f"{both}, first {EARLY} tokens", both)
    traits = of["trait_left_out"][both]["auroc"], store["targets"][TARGET]["trait_left_out"][TERMS.name]["auroc"]
    won = ahead_in_texts(texts)
    ahead = [f"{target} {gain_in(texts[target], EVERYTHING.name)}" for target in won]
    moved = ", ".join(f"{texts[target]['trait_left_out'][WORDS.name]['auroc'][0]:.2f}" for target in won)
    more = [
        f"{signed(of['curve'][few][name]['all_ahead'])} over {few} ({name})"
        for name in (TERMS.name, both)
        for few in ("300", "400")
    ]
    return [
        f"- **{title}, the argument's words read too**, the same flag, AUROC and gain over the strongest control, "
        f"{of['methods'][both]['strongest']}: {rows}. On traits left out {both} have {shown(traits[0])}, the terms "
        f"{shown(traits[1])}. {EVERYTHING.name} are {AIM} ahead by an interval: {len(ahead)} of {len(texts)} targets "
        f"({'; '.join(ahead) or 'none'}); there words have {moved or '-'} on traits left out. The first {EARLY} tokens "
        f"of {both} give {', '.join(kept)}.",
        f"- **What more labels promise**, {title}, the same flag: {of['curve']['all']['labels']} labels gain "
        f"{', '.join(more)}.",
    ]


def ahead_in_texts(texts: Figures) -> list[str]:
    """Returns the targets on which the model of everything that is read is ahead as was aimed at, after Holm.

    One model for all targets: the best of several on each would be ahead by the choice alone.
    """
    rows = {target: one["methods"].get(EVERYTHING.name) for target, one in texts.items()}
    return [target for target, row in rows.items() if row and is_ahead(row) and row["ahead_of_all"]]


def gain_in(of: Figures, name: str) -> str:
    """Returns the gain of a way to read texts over the strongest control, with its interval."""
    return signed(of["methods"][name]["gain"])


def is_ahead(row: Figures) -> bool:
    """Whether a row is ahead of the strongest control as was aimed at."""
    return bool(row["gain"][1] > 0 and row["gain"][0] >= AIM)


def read_rows(texts: Figures) -> list[str]:
    """Returns the table of what reads words and states, on every target."""
    rows = [
        [
            target,
            name,
            shown(row["auroc"]),
            f"{signed(row['gain'])} ({row['strongest']})",
            "yes" if row["ahead_of_all"] else "no",
            signed(row["over_words_and_terms"]),
            shown(of.get("trait_left_out", {}).get(name, {}).get("auroc")),
        ]
        for target, of in texts.items()
        for name, row in of["methods"].items()
    ]
    head = ["target", "learned", "AUROC", "over the strongest control", "ahead of all after Holm"]
    return markdown([*head, "over words and terms", "trait left out, AUROC"], rows)


def curve_rows(texts: Figures) -> list[str]:
    """Returns the table of what is learned from fewer labels, and what all are ahead of them."""
    rows = [
        [target, labels, *(cell for row in few.values() for cell in (shown(row["auroc"]), ahead_in(row)))]
        for target, of in texts.items()
        for labels, few in of["curve"].items()
        if labels != "all"
    ]
    names = [TERMS.name, WORDS_AND_TERMS.name]
    return markdown(["target", "labels", *(part for name in names for part in (name, "all labels over it"))], rows)


def ahead_in(row: Figures) -> str:
    """Returns the gain of all labels, with its interval."""
    return signed(row["all_ahead"])


if __name__ == "__main__":
    page_command()
