"""The page on judges of arguments, from docs/measured/judges.json; research/pictures.py draws its picture.

python -m research.debates.page
"""

from collections.abc import Iterator
from typing import Any

import click

from research.blocks import columns, markdown, read_figures, shown, signed, write
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
    known = {name: {t: of for t, of in s["targets"].items() if not of.get("lacking")} for name, s in stores.items()}
    learned = {name: targets for name, targets in known.items() if targets}
    largest = max(learned, key=lambda name: int(learned[name][TARGET]["n"]))
    texts = stores[largest].get("texts", {})
    write(PAGE, "answer", [*answer(STORES[largest], learned[largest], texts), ""])
    write(PAGE, "judges-stores", [*stores_in_short(learned), ""])
    write(PAGE, "verdict", [*verdict(learned), *of_texts(STORES[largest], stores[largest]), ""])
    every, by_window = [], []
    for name, target, of in by_program(learned):
        every += [f"### {STORES[name]}: {target}", "", *table_of(of, stores[name]["price"]), ""]
        by_window += [f"### {STORES[name]}: {target}", "", *windows(of), ""]
    left_out = [
        f"- {STORES[name]}: {target}: nothing is learned, for {of['lacking']}."
        for name, store in stores.items()
        for target, of in store["targets"].items()
        if of.get("lacking")
    ]
    write(PAGE, "judges-all", [*every, *left_out, ""])
    write(PAGE, "judges-windows", by_window)
    write_tables(learned, texts)


def write_tables(learned: Figures, texts: Figures) -> None:
    """Writes what is learned of a text judge's verdicts, of unseen traits, of fewer labels, and of words and states."""
    early, whole, trees = (Early(*which).name for which in (("terms", EARLY), ("terms",), ("trees",)))
    told = [
        (f"{STORES[store]}: {target}", of)
        for store, targets in learned.items()
        for target, of in targets.items()
        if TARGETS[target][0] != PROGRAM
    ]
    by_text = {
        "target": lambda name, of: name,
        "n, good": lambda name, of: f"{of['n']}, {of['good']:.0%}",
        **{way: lambda name, of, way=way: shown(of["methods"][way]["auroc"]) for way in (early, whole, trees)},
        "strongest control": lambda name, of: f"{of['control']['name']} {shown(of['control']['auroc'])}",
    }
    write(PAGE, "judges-text", [*columns(told, by_text), ""])
    held = [
        (f"{STORES[name]}: {target}", of, method)
        for name, target, of in by_program(learned)
        for method in (early, whole)
    ]

    def fewer(of: Figures, count: int, method: str) -> str:
        few = of["fewer_labels"].get(str(count), {}).get(method)
        return "-" if few is None else f"{few[0]:.3f}"

    unseen = {
        "target": lambda name, of, method: name,
        "learned": lambda name, of, method: method,
        "trait left out, AUROC": lambda name, of, method: shown(of["trait_left_out"][method]["auroc"]),
        "over trait seen": lambda name, of, method: signed(of["trait_left_out"][method]["cost"]),
        **{str(count): lambda name, of, method, count=count: fewer(of, count, method) for count in FEW_LABELS},
        "all labels": lambda name, of, method: f"{of['methods'][method]['auroc'][0]:.3f}",
    }
    write(PAGE, "judges-held", [*columns(held, unseen), ""])
    read = [(target, name, row, of) for target, of in texts.items() for name, row in of["methods"].items()]
    reading = {
        "target": lambda target, name, row, of: target,
        "learned": lambda target, name, row, of: name,
        "AUROC": lambda target, name, row, of: shown(row["auroc"]),
        "over the strongest control": lambda target, name, row, of: f"{signed(row['gain'])} ({row['strongest']})",
        "ahead of all after Holm": lambda target, name, row, of: "yes" if row["ahead_of_all"] else "no",
        "over words and terms": lambda target, name, row, of: signed(row["over_words_and_terms"]),
        "trait left out, AUROC": lambda target, name, row, of: shown(
            of.get("trait_left_out", {}).get(name, {}).get("auroc")
        ),
    }
    write(PAGE, "judges-read", [*columns(read, reading), ""])
    rows = [
        [target, labels, *(cell for row in few.values() for cell in (shown(row["auroc"]), signed(row["all_ahead"])))]
        for target, of in texts.items()
        for labels, few in of["curve"].items()
        if labels != "all"
    ]
    names = [part for name in (TERMS.name, WORDS_AND_TERMS.name) for part in (name, "all labels over it")]
    write(PAGE, "judges-curve", [*markdown(["target", "labels", *names], rows), ""])


def windows(of: Figures) -> list[str]:
    """Returns the table of the windows, and what stopping at each costs and saves."""

    def auroc(rung: str, k: int) -> str:
        return shown(of["methods"][Early(rung, k).name]["auroc"])

    def share(key: str, k: int) -> str:
        return shown(of["stopping"][Early("terms", k).name][key], ".1%")

    cells = {
        "tokens": lambda k: k or "all",
        "ladder": lambda k: auroc("ladder", k),
        "terms": lambda k: auroc("terms", k),
        "critical ones stopped": lambda k: share("caught", k),
        "sound ones stopped": lambda k: share("lost", k),
        "tokens saved": lambda k: share("saved", k),
    }
    return columns([(k,) for k in WINDOWS], cells)


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
        f"{len(ahead_of(targets))} of {len(targets)} targets; {EVERYTHING.name} of the whole argument, after Holm, on",
        f"{len(ahead_in_texts(texts))} of {len(texts)}. To stop after {EARLY} tokens what looks critical catches",
        f"{stop['caught'][0]:.0%} of the critical arguments, and stops {stop['lost'][0]:.0%} of the sound ones.",
    ]


def ahead_of(targets: Figures) -> list[str]:
    """Returns the targets on which anything learned is ahead of the strongest control as was aimed at."""
    return [
        target
        for target, of in targets.items()
        if any(is_ahead(row) for name, row in of["methods"].items() if name.split(", ")[0] in RUNGS)
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


def stores_in_short(learned: Figures) -> list[str]:
    """Returns a line for each set of debates: the program's flag by the text judge and by the terms, and the aim."""
    lines = []
    for name, targets in learned.items():
        methods = targets[TARGET]["methods"]
        early, whole = (shown(methods[Early("terms", k).name]["auroc"]) for k in (EARLY, 0))
        judges = [f"{judge} {shown(methods[judge]['auroc'])}, " for judge in asked_of(targets[TARGET])]
        lines.append(
            f"- **{STORES[name]}**, AUROC on the program's flag: {''.join(judges)}terms {whole}, {early} after {EARLY} "
            f"tokens. Ahead of the strongest control by {AIM}: {len(ahead_of(targets))} of {len(targets)} targets."
        )
    return lines


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
    above = {k: float(of["methods"][Early("terms", k).name]["auroc"][0]) - 0.5 for k in WINDOWS}
    first = next((k for k in WINDOWS if k and above[k] >= SHARE * above[0]), 0)  # 0: no window gives so much
    known = f"the first {first} tokens on" if first else "the whole argument alone"
    few = ", ".join(f"{value[Early('terms').name][0]:.3f} with {count}" for count, value in of["fewer_labels"].items())
    return [
        *lines,
        f"- {title}, the same flag: the terms have AUROC {shown(early['auroc'])} after {EARLY} tokens and "
        f"{shown(terms['auroc'])} after all (labels: {few}), {SHARE:.0%} of it from {known}; the ladder is "
        f"{signed(ladder['gain'])} from the strongest control, {of['control']['name']}.",
    ]


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
        f"{shown(traits[1])}. After Holm, {EVERYTHING.name} are {AIM} ahead on {len(ahead)} of {len(texts)} targets "
        f"({'; '.join(ahead) or 'none'}). On traits left out words alone have {moved or '-'} there. The first "
        f"{EARLY} tokens of {both} give {', '.join(kept)}.",
        f"- **What more labels promise**, {title}, the same flag: {of['curve']['all']['labels']} labels gain "
        f"{', '.join(more)}.",
    ]


def ahead_in_texts(texts: Figures) -> list[str]:
    """Returns the targets on which `EVERYTHING` is ahead by `AIM`, after Holm.

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


if __name__ == "__main__":
    page_command()
