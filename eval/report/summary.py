"""The first screen of a report, for a reader who knows no metric: what was asked, found, how sure it is, what to do.

Nothing is computed here but the words; where an interval leaves it open, the words do too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from metaprobe.eval.metrics import Interval
from metaprobe.eval.report.facts import consequence
from metaprobe.eval.report.methods import chosen_in_folds, headline
from metaprobe.eval.report.model import Comparison, MethodResult
from metaprobe.eval.report.numbers import number, percent, spread, verdict
from metaprobe.eval.report.performance import risk_at

FEW_GROUPS = 100
"""Below so many independent groups of questions, more of them is the first thing to ask for."""
MEAN = "mean log-probability"
"""The simple measure that nobody has to choose."""


@dataclass(frozen=True, slots=True)
class Brief:
    """Sentences under four headings."""

    asked: tuple[str, ...]
    found: tuple[str, ...]
    sure: tuple[str, ...]
    do: tuple[str, ...]

    @property
    def parts(self) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
        """(id, heading, sentences), those that have any."""
        every = (
            ("asked", "What was asked", self.asked),
            ("found", "What was found", self.found),
            ("sure", "How sure this is", self.sure),
            ("do", "What to do", self.do),
        )
        return tuple(part for part in every if part[2])


def brief(comparison: Comparison) -> Brief:
    """The summary of a comparison; empty parts where it has no methods."""
    if not comparison.methods:
        return Brief((), (), (), ())
    model = comparison.provenance.get("model", "The model")
    learned = headline(comparison)
    stated = next((method for method in comparison.methods if method.family == "explicit"), None)
    base = _method(comparison, comparison.best_baseline)
    return Brief(
        asked=(
            f"{model} gave {len(comparison.y):,} answers that could be checked; {percent(comparison.base_rate)} are "
            "right. Can its right answers be told from its wrong ones without knowing the solution: by what it says of "
            "its own confidence, or by the signals it gives off while it answers?",
        ),
        found=tuple(_found(comparison, stated, learned, base)),
        sure=tuple(_sure(comparison)),
        do=tuple(_do(comparison, stated, learned, base)),
    )


def _found(
    comparison: Comparison, stated: MethodResult | None, learned: MethodResult | None, base: MethodResult | None
) -> list[str]:
    found = []
    if stated is not None:
        given = f"{stated.name}, given for {percent(stated.coverage)} of the answers"
        found.append(f"What the model says ({given}): {_told(stated)}.")
    if base is not None and base is not learned:
        if comparison.baselines:
            found.append(f"The simple measure chosen in each fold ({chosen_in_folds(comparison)}): {_told(base)}.")
        else:
            found.append(f"The best simple measure ({base.name}): {_told(base)}.")
    mean = _method(comparison, MEAN)
    if mean is not None and mean is not base and tuple(comparison.baselines) != (MEAN,):
        found.append(f"The {MEAN}, with nothing chosen: {_told(mean)}.")
    if learned is not None:
        found.append(f"The learned method ({learned.name}): {_told(learned)}.")
    best = learned or base
    if best is not None:
        kept = percent(risk_at(comparison, best, 0.5))
        found.append(
            f"Keeping only the half of the answers that {best.name} trusts most, {kept} of them are wrong, against "
            f"{percent(1 - comparison.base_rate)} of all."
        )
    return found


def _method(comparison: Comparison, name: str) -> MethodResult | None:
    return next((method for method in comparison.methods if method.name == name), None)


def _told(method: MethodResult) -> str:
    """AUROC in words."""
    rate = (
        f"of a right and a wrong answer it trusts the right one more {number(100 * method.auroc.estimate, 0)} times in "
        f"100 (guessing: 50; 95 % interval {number(100 * method.auroc.low, 0)} to {number(100 * method.auroc.high, 0)})"
    )
    if method.auroc.low > 0.5:
        return rate
    return rate + (", so it is worse than guessing" if method.auroc.high < 0.5 else ", which may be luck")


def _sure(comparison: Comparison) -> list[str]:
    size = comparison.methods[0].auroc
    said = [
        f"Every answer was judged by models that saw no answer to its group of questions; there are {size.groups:,} "
        "such groups. The intervals say how much the figures may owe to which groups were drawn; they say nothing of "
        "other models, or of questions of another kind."
    ]
    failed = [audit for audit in comparison.audits if not audit.passed]
    if comparison.audits:
        said.append(f"{len(comparison.audits) - len(failed)} of {len(comparison.audits)} audits passed.")
    said += [f"Failed: {audit.name}; {consequence(audit)}." for audit in failed if audit.severity == "invalid"]
    if weak := sum(audit.severity != "invalid" for audit in failed):
        said.append(f"The figures are weaker than they look, by {weak} of the audits.")
    if size.groups < FEW_GROUPS:
        said.append(f"{size.groups} groups are few: small differences cannot be seen.")
    return said


def _do(
    comparison: Comparison, stated: MethodResult | None, learned: MethodResult | None, base: MethodResult | None
) -> list[str]:
    if any(not audit.passed and audit.severity == "invalid" for audit in comparison.audits):
        return ["Do not act on these figures before the audits that failed are settled."]
    advice = []
    gains = _gains(comparison, learned)
    short = {what: gain for what, gain in gains.items() if verdict(gain) != "better"}
    simple = _simple(comparison, base, short)
    if learned is not None and learned.auroc.low > 0.5 and gains and not short:
        over = " and ".join(f"{what} by {spread(gain, signed=True)}" for what, gain in gains.items())
        advice.append(
            f"Use the learned method ({learned.name}) to decide which answers to check: it beats {over} AUROC."
            + (f" {comparison.exported}" if comparison.exported else "")
        )
    elif simple is not None and simple.auroc.low > 0.5:
        advice.append(f"Use the simple measure ({simple.name}) to decide which answers to check.")
        if learned is not None and short:
            what, gain = next(iter(short.items()))
            less = "does worse" if verdict(gain) == "worse" else "is not shown to do better"
            advice.append(
                f"The learned method {less} than {what} here ({spread(gain, signed=True)} AUROC): train it on more "
                "answers, or do without."
            )
    elif learned is not None and learned.auroc.low > 0.5:
        advice.append("The learned method tells something; compare it with a simple measure before it is used.")
    else:
        advice.append("Do not rely on any of these scores: none is shown to tell right from wrong.")
    if stated is not None and stated.auroc.low <= 0.5:
        advice.append("Do not rely on what the model says of its own confidence.")
    elif stated is not None and learned is not None and learned.diff_stated is not None:
        advice.append(
            "What the model says of its own confidence tells something too, but less than the learned method."
            if verdict(learned.diff_stated) == "better"
            else "What the model says of its own confidence is not shown to be worse than the learned method: asking "
            "it may do."
        )
    if comparison.methods[0].auroc.groups < FEW_GROUPS:
        advice.append("Collect more questions before anything depends on small differences.")
    return advice


def _gains(comparison: Comparison, learned: MethodResult | None) -> dict[str, Interval]:
    """What the learned method gains over each simple measure that it has to beat."""
    if learned is None:
        return {}
    chosen = "the simple measure chosen in each fold" if comparison.baselines else "the best simple measure"
    always_mean = tuple(comparison.baselines) == (MEAN,)  # then both are one
    gains = {chosen: learned.diff_baseline, f"the {MEAN}": None if always_mean else comparison.diff_mean}
    return {what: gain for what, gain in gains.items() if gain is not None}


def _simple(comparison: Comparison, base: MethodResult | None, short: Mapping[str, Interval]) -> MethodResult | None:
    """The simple measure to use instead: what most folds chose where that was not beaten and tells something, else the
    mean where that was not."""
    if not comparison.baselines:
        return base
    mean = f"the {MEAN}"
    chosen = None if list(short) == [mean] else _method(comparison, next(iter(comparison.baselines)))
    tells = chosen is not None and chosen.auroc.low > 0.5
    return chosen if tells or mean not in short else _method(comparison, MEAN)
