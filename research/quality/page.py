"""docs/research/quality.md from the numbers of `quality.py measure`: all numbers and verdicts come from there."""

from collections.abc import Sequence

from research.blocks import markdown
from research.quality.controls import (
    against_controls,
    beats,
    gain,
    maybe_signed,
    plain,
    shown,
    signed,
    strongest,
    verdict,
)
from research.quality.page_elsewhere import Figures, Lines, between, left_out, prefixes
from research.quality.prose import (
    BLEND_RUN,
    DEBATES,
    EARLY,
    INTRO,
    MEAN,
    READING,
    ROLES,
    SHAPE,
    STEADY,
    TABLES,
    TERMS,
    TERMS_RUN,
    TREES,
    VERDICTS,
)

Packed = Sequence[float]

ORDER = (
    MEAN,
    "minimum log-probability",
    "first log-probability",
    "sum of log-probabilities",
    "lowest group confidence",
    "length (shorter is better)",
    "not cut by max_tokens",
    "run identity",
    "best single feature",
    "best early feature",
    "best full-response feature",
    "best plain baseline",
    "EPR",
    "WEPR",
    TREES,
    "LightGBM on alternatives too",
    STEADY,
    TERMS,
    "blend",
    STEADY + " + run",
    TERMS_RUN,
    BLEND_RUN,
)
"""Order of the rows of a table of methods."""
AIM = 0.80
QA = "token_logprobs_qa"
DEBATE_STORES = {"asap-debate": "zero-shot", "asap-debate-scaffold": "scaffold"}
"""Store of recorded/ -> how its debaters were asked."""
SHORT = 20
"""Median tokens below which the first tokens are most of the answer, and say little of the paper's finding."""


def page(figures: Figures) -> Lines:
    """Returns the page of further tables."""
    sets = figures.get("sets", {})
    debates = {way: figures.get("debates", {}).get(store) for store, way in DEBATE_STORES.items()}
    lines = [*INTRO.format(resamples=figures["resamples"]).splitlines(), ""]
    lines += ["## Data", "", *setting(sets), ""]
    lines += ["## The aim on token_logprobs_qa", "", *aim(sets.get(QA)), ""]
    lines += ["## The paper's findings", "", *findings(sets, debates), ""]
    lines += ["## Every method, set by set", ""]
    for name, found in sets.items():
        lines += [f"### {name}", "", *one_set(found), ""]
    lines += ["## Tokens seen", "", *prefixes(sets), ""]
    lines += ["## Out of domain", "", *left_out(sets), *between(figures.get("between", {}).get("cells")), ""]
    lines += ["## The debates", "", *DEBATES.splitlines(), ""]
    for way, found in debates.items():
        lines += [f"### The debates, {way}", "", *debate(found, way), ""]
    return lines


def every_set(sets: Figures) -> Lines:
    """Returns the one table of the measured page: a row a set, trees beside the free numbers."""
    rows = []
    for name, found in sets.items():
        if "methods" in found:
            trees, strongest = found["methods"][TREES], found["methods"][TREES]["over_strongest"]
            over = f"{signed(strongest['difference'])} ({strongest['control']})"
            mean = shown(found["methods"][MEAN]["auroc"])
            rows.append([name, f"{found['n']:,}", mean, shown(trees["auroc"]), signed(trees["over_mean"]), over])
    head = ["set", "answers", "mean log-probability", "trees", "over the mean", "over the strongest control"]
    return markdown(head, rows)


def setting(sets: Figures) -> Lines:
    """Says which data were measured, and by which command."""
    rows = [
        [
            name,
            found["what"],
            f"{found['n']:,} ({found['groups']:,})",
            str(found["runs"]),
            ", ".join(found["models"]) if len(found["models"]) <= 4 else f"{len(found['models'])} models",
            f"{found['base_rate']:.1%}",
            f"{found['median_tokens']:.0f}",
            f"{found['cut']:.1%}",
        ]
        for name, found in sets.items()
    ]
    commands = sorted({(found["command"], found.get("seed")) for found in sets.values()}, key=str)
    head = ["set", "good means", "n (groups)", "runs", "models", "good", "median tokens", "cut"]
    return [
        *markdown(head, rows),
        "",
        "Measured by:",
        "",
        *(f"- `{command}`, seed {seed}" for command, seed in commands),
    ]


def aim(found: Figures | None) -> Lines:
    """Pooled and within runs, against what was aimed at."""
    if found is None or "methods" not in found:
        return ["Not measured yet."]
    methods = found["methods"]
    free = {name: m for name, m in methods.items() if m["family"] == "learned" and not name.endswith(" + run")}
    best = max(free, key=lambda name: free[name]["auroc"][0])
    return [
        f"- Pooled, log-probabilities alone: the best of the learned methods is {best}, {shown(free[best]['auroc'])}; "
        f"the aim was {AIM:.2f}: {reached(free[best]['auroc'])}. The mean log-probability has "
        f"{shown(methods[MEAN]['auroc'])}, the run's identity alone {shown(methods['run identity']['auroc'])}.",
        f"- Pooled, with the run's identity: {BLEND_RUN} {shown(methods[BLEND_RUN]['auroc'])}, {TERMS_RUN} "
        f"{shown(methods[TERMS_RUN]['auroc'])}: {reached(methods[BLEND_RUN]['auroc'])}.",
        f"- Within runs: the mean log-probability has {shown(methods[MEAN]['within'])}; over it "
        + "; ".join(
            f"{name} {signed(methods[name]['within_over_mean'])}" for name in (TREES, STEADY, BLEND_RUN, TERMS_RUN)
        )
        + f". The blend with the run above the mean within runs: {verdict(methods[BLEND_RUN]['within_over_mean'])}.",
        "",
        "Within each of the larger runs (AUROC among answers of one fold):",
        "",
        *runs_table(found["by_run"]),
    ]


def answer(sets: Figures) -> str:
    """The page in three sentences."""
    measured = [found for found in sets.values() if "methods" in found]
    several = [found for found in measured if found["runs"] > 1]
    long = [found for found in measured if found["median_tokens"] >= SHORT]
    over_mean = [verdict(found["methods"][TREES]["over_mean"]) for found in measured]
    early = [verdict(found["early"]["early_over_full"]) for found in long]
    ahead, behind, of = against_controls(measured, TREES, "over_strongest")
    inside, loses, runs = against_controls(several, TREES, "within_over_strongest")
    return (
        "Trees on log-probabilities are shown to be ahead of the mean "
        f"log-probability in {over_mean.count('holds')} of {len(measured)} sets and behind it in "
        f"{over_mean.count('does not hold')}. They are shown to be ahead of every "
        "free "
        f"number in {ahead} of {of} sets (behind the strongest in {behind}), and within one run of one model in "
        f"{inside} "
        f"of {runs} (behind in {loses}), so that a free number may do as well. The paper's finding that the first "
        "tokens "
        f"say more than the whole answer holds in {early.count('holds')} of {len(long)} sets of longer answers, and is "
        f"reversed in {early.count('does not hold')}."
    )


def says(sets: Figures) -> Lines:
    """How often each thing holds, counted by the rule for verdicts; then how the tables read."""
    measured = [found for found in sets.values() if "methods" in found]
    several = [found for found in measured if found["runs"] > 1]
    long = [found for found in measured if found["median_tokens"] >= SHORT]

    def over(name: str, key: str) -> str:
        return counted([found["methods"][name][key] for found in (several if "within" in key else measured)])

    lines = [VERDICTS.replace("\n", " "), ""]
    for what, text in (
        (f"{TREES}, over the mean log-probability", over(TREES, "over_mean")),
        (f"{TREES}, over the strongest single control", beats(measured, TREES, "over_strongest")),
        (f"{TREES}, over the mean within runs", over(TREES, "within_over_mean")),
        (f"{TREES}, over the strongest control within runs", beats(several, TREES, "within_over_strongest")),
        (f"{STEADY}, over the mean within runs", over(STEADY, "within_over_mean")),
        ("blend, over the mean within runs", over("blend", "within_over_mean")),
        (
            f"{BLEND_RUN}, over the mean",
            counted([found["methods"][BLEND_RUN]["over_mean"] for found in several]),
        ),
        (
            f"{BLEND_RUN}, over the mean within runs",
            counted([found["methods"][BLEND_RUN]["within_over_mean"] for found in several]),
        ),
        (f"{BLEND_RUN}, over the strongest single control", beats(several, BLEND_RUN, "over_strongest")),
        (
            f"{BLEND_RUN}, over the strongest control within runs",
            beats(several, BLEND_RUN, "within_over_strongest"),
        ),
        (
            f"best early feature over the best full-response feature, answers of {SHORT} tokens and more",
            counted([found["early"]["early_over_full"] for found in long]),
        ),
        (
            "trees that know 10 tokens over trees that know all, the same sets",
            counted([found["prefix"]["10"]["trees_over_whole"] for found in long if "10" in found["prefix"]]),
        ),
        ("the start surer than the middle", counted([found["trajectory"]["start over middle"] for found in measured])),
        (
            "the spread wider at the start",
            counted([found["trajectory"]["spread start over middle"] for found in measured]),
        ),
    ):
        lines.append(f"- {what}: {text}.")
    return [*lines, "", *READING.splitlines()]


def counted(differences: Sequence[Packed]) -> str:
    """How many intervals hold, do not, or leave it open."""
    found = [verdict(difference) for difference in differences]
    return f"holds in {found.count('holds')} of {len(found)} sets, does not in {found.count('does not hold')}"


def runs_table(rows: Figures) -> Lines:
    """AUROC in each run."""
    names = list(next(iter(rows.values()))["auroc"])
    table = [
        [run, str(row["n"]), f"{row['base_rate']:.1%}", *(f"{row['auroc'][name]:.3f}" for name in names)]
        for run, row in rows.items()
    ]
    return markdown(["run", "n", "good", *names], table)


def findings(sets: Figures, debates: dict[str, Figures | None]) -> Lines:
    """Early windows, asymmetry of the roles, shape of the trajectory: each with its numbers and a verdict."""
    measured = {name: found for name, found in sets.items() if "early" in found}
    argued = {way: found for way, found in debates.items() if found is not None}
    for way, of in argued.items():
        measured |= {f"{way}: {name}": found for name, found in of["sets"].items() if "early" in found}
    lines = [
        *EARLY.splitlines(),
        "",
    ]
    rows = []
    for name, found in measured.items():
        methods, ten = found["methods"], found["prefix"].get("10")
        short = " (s)" if found["median_tokens"] < SHORT else ""
        rows.append(
            [
                f"{name}{short}",
                plain(methods["best early feature"]["auroc"]),
                plain(methods["best full-response feature"]["auroc"]),
                signed(found["early"]["early_over_full"]),
                verdict(found["early"]["early_over_full"]),
                signed(ten["trees_over_whole"]) if ten else "-",
                commonest(found["single"]["best single feature"]),
            ]
        )
    head = ["set", "early", "full", "early - full", "early is stronger", "trees: 10 tokens - all"]
    lines += [*markdown([*head, "chosen among all windows"], rows), ""]
    lines += [*SHAPE.splitlines(), ""]
    rows = []
    for name, found in measured.items():
        t = found["trajectory"]
        rows.append(
            [
                name,
                *(f"{t[f'level {part}'][0]:.2f}" for part in ("start", "middle", "end")),
                f"{signed(t['start over middle'])} {verdict(t['start over middle'])}",
                f"{signed(t['end over middle'])} {verdict(t['end over middle'])}",
                f"{signed(t['spread start over middle'])} {verdict(t['spread start over middle'])}",
                *(signed(t[f"gap {part}"]) for part in ("start", "middle", "end")),
            ]
        )
    head = ["set", "start, nats", "middle", "end", "start surer than middle", "end surer than middle"]
    head += ["spread wider at start", "gap start", "gap middle", "gap end"]
    lines += [*markdown(head, rows), ""]
    lines += [*ROLES.splitlines(), ""]
    if not any(of["asymmetry"] for of in argued.values()):
        return [*lines, "Not measured yet: it needs recorded debates with enough of both classes for both roles."]
    rows = [
        [
            f"{way}: {target}",
            name,
            f"{row['advocate']:.3f}",
            f"{row['skeptic']:.3f}",
            signed(row["difference"]),
            verdict(row["difference"]),
        ]
        for way, of in argued.items()
        for target, found in of["asymmetry"].items()
        for name, row in found.items()
    ]
    return [*lines, *markdown(["labels, target", "method", "Advocate", "Skeptic", "difference", "it"], rows)]


def one_set(found: Figures) -> Lines:
    """Every method of one set."""
    if "missing" in found:
        return [f"n = {found['n']}, {found['base_rate']:.1%} good. Too few to cross-fit: {found['missing']}."]
    several = found["runs"] > 1
    rows = []
    for name in sorted(found["methods"], key=ORDER.index):
        m = found["methods"][name]
        row = [name, plain(m["auroc"]), maybe_signed(m["over_mean"]), gain(m.get("over_strongest"))]
        if several:
            row += [plain(m["within"]), maybe_signed(m["within_over_mean"]), gain(m.get("within_over_strongest"))]
        ece = plain(m["ece"]) if m.get("ece") else "-"  # the kept figures of some sets have none
        rows.append([*row, plain(m["auprc"]), ece, plain(m["brier_skill"])])
    head = ["method", "AUROC", "over the mean", "over the strongest control"]
    head += ["within runs", "over the mean within", "over the strongest within"] if several else []
    head += [f"AUPRC (base {found['base_rate']:.2f})", "ECE", "Brier skill"]
    return [
        f"n = {found['n']:,} in {found['groups']:,} groups, {found['base_rate']:.1%} good. {strongest(found)}"
        f"Best plain baseline, as the folds chose in advance: {', '.join(found['best_baseline'])}. Single features "
        f"chosen: {commonest(found['single']['best single feature'])}.",
        "",
        *markdown(head, rows),
    ]


def debate(found: Figures | None, way: str) -> Lines:
    """The own tables of the debates that were asked for in one way."""
    if found is None:
        return ["Not measured yet: its store is not there (`python -m research.stores.collect`)."]
    rows = []
    for name, row in found["tables"].items():
        essays, role, source, target = name.split(", ")
        theirs = found["paper"].get(f"{essays}, {role}, {target}")
        paper = f"{theirs['features'][0]} {theirs['best']:.3f}" if theirs else "-"
        if "missing" in row:
            rows.append([essays, role, source, target, str(row["n"]), f"too few: {row['missing']}", "-", "-", paper])
            continue
        best = f"{row['here'][0]} {row['here_best']:.3f}"
        rows.append(
            [essays, role, source, target, str(row["n"]), plain(row["held_out"]), commonest(row["chosen"]), best, paper]
        )
    head = ["set", "role", "labels", "target", "n", "held out", "chosen", "best on all, as the paper takes it", "paper"]
    lines = [
        *TABLES.splitlines(),
        "",
        f"Measured by `{found['command']}`, seed {found['seed']}, runs {found['fingerprint']}.",
        "",
        *markdown(head, rows),
        "",
    ]
    for name, cells in found["sets"].items():
        lines += [f"#### {way}: {name}, {cells['what']}", "", *one_set(cells), ""]
    return lines


def commonest(chosen: Sequence[str]) -> str:
    """Says which features the folds chose, and how often."""
    counts = {name: chosen.count(name) for name in dict.fromkeys(chosen)}
    return ", ".join(f"`{name}` ({n})" for name, n in sorted(counts.items(), key=lambda pair: -pair[1]))


def reached(value: Packed) -> str:
    return "reached" if value[0] >= AIM else "not reached"
