"""Sentences of a report for a reader who knows no metric: the question, the findings, how sure they are, and advice.

Only the words are made here. If an interval leaves a question open, the words do too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Literal

import numpy as np

from metaprobe.checkpoints.manifest import MEANING
from metaprobe.checkpoints.rendered_table import difference_word, format_interval, number, percent
from metaprobe.eval.controls import CUT, describe_control, is_fitted
from metaprobe.eval.metrics.bootstrap import ControlDifference
from metaprobe.eval.metrics.ranked import auroc, risk_coverage
from metaprobe.eval.results import Comparison, Family, Finding, MethodResult, SignalComparison

FIRST_SCREEN_SENTENCES = 3
"""Number of sentences on reliability that the first screen shows. The section `At a glance` shows all of them."""
MIN_CUT_AUROC = 0.8
"""Least AUROC, of uncut against cut answers, at which a signal is said to tell mostly which answers were cut."""
FEW_GROUPS = 100
"""With fewer independent groups of questions than this, the advice is to collect more."""


def headline(comparison: Comparison) -> MethodResult | None:
    """Returns the method that the folds chose, if it is learned, a decision or the user's own.

    Otherwise the last learned method is returned; None if nothing was learned.
    """
    fitting: tuple[Family, ...] = ("learned", "own", "decision")
    headlines = [m for m in comparison.methods if m.name == comparison.headline and m.family in fitting]
    learned = [m for m in comparison.methods if m.family == "learned"]
    return next(iter(headlines), learned[-1] if learned else None)


def best_decision(comparison: Comparison) -> MethodResult | None:
    """Returns the decision-model method of highest AUROC, the headline method excluded; None if there is none."""
    headline_method = headline(comparison)
    decisions = [
        method for method in comparison.methods if method.family == "decision" and method is not headline_method
    ]
    return max(decisions, key=lambda method: method.auroc_on_equal_terms.estimate, default=None)


def main_methods(comparison: Comparison) -> tuple[MethodResult, ...]:
    """Returns the headline method, the strongest control, and one method of each family but `plain` and `learned`.

    Of the decision models this is the strongest method, of the other families the first.
    """
    decided = best_decision(comparison)
    by_family: dict[Family, MethodResult] = {} if decided is None else {"decision": decided}
    for method in comparison.methods:
        by_family.setdefault(method.family, method)
    headline_method = headline(comparison)
    names = {method.name for family, method in by_family.items() if family not in ("plain", "learned")}
    names |= {method.name for method in comparison.controls[:1]} | (
        {headline_method.name} if headline_method else set()
    )
    return tuple(method for method in comparison.methods if method.name in names)


def control_words(comparison: Comparison) -> str:
    """Says which control is the strongest, and what the row of chosen controls is; empty without controls."""
    if not comparison.controls:
        return ""
    strongest = comparison.controls[0].name
    within = " within runs" if comparison.controls[0].within_runs else ""
    strongest_text = (
        f"Strongest control{within}: {strongest}, the best of {len(comparison.controls)} on these same answers."
    )
    if not comparison.baselines:
        return strongest_text
    (main_control, folds), *other_controls = comparison.baselines.items()
    other_names = "".join(f", {name} in {count}" for name, count in other_controls)
    in_folds = f"{main_control} in {folds} of {sum(comparison.baselines.values())} folds{other_names}"
    return f"{strongest_text} {comparison.best_baseline.capitalize()}: {in_folds}, chosen in advance."


def consequence(audit: Finding) -> str:
    """Says how much a failed audit weakens the numbers of its method, or of every method; empty if it passed."""
    if audit.passed:
        return ""
    if audit.control and audit.severity == "invalid":
        return _do_not_use(audit.method, [audit.control])
    numbers = f"the numbers of {audit.method}" if audit.method else "the numbers"
    return f"{numbers} {MEANING[audit.severity]}"


def _do_not_use(method: str, controls: Sequence[str]) -> str:
    """Says that each of these controls does as well as the method."""
    return f"do not use {method}: {' or '.join(controls)} alone ranks as well"


def disqualifying_audits(audits: tuple[Finding, ...]) -> dict[str, list[str]]:
    """Returns the names of the failed audits after which numbers cannot be believed, by their method.

    The key is empty for audits of the answers, after which no method's numbers can be believed.
    """
    failed: dict[str, list[str]] = {}
    for audit in audits:
        if not audit.passed and audit.severity == "invalid":
            failed.setdefault(audit.method, []).append(audit.name)
    return failed


def _controls_as_good(audits: Sequence[Finding]) -> dict[str, list[str]]:
    """Maps a method to the controls that rank as well as it does, where no other audit disqualifies the method."""
    failed = [audit for audit in audits if not audit.passed and audit.severity == "invalid"]
    leaking = {audit.method for audit in failed if not audit.control}
    controls: dict[str, list[str]] = {}
    for audit in failed:
        if audit.method not in leaking:
            controls.setdefault(audit.method, []).append(audit.control)
    return controls


@dataclass(frozen=True, slots=True)
class Brief:
    """Sentences under headings. Text between backticks is a command line."""

    asked: str
    """The question of the comparison: how many answers are right, and what may tell which."""
    explicit_or_implicit: str
    """Whether what the model says or what it gives off tells more, on equal terms; empty without one of the two."""
    signal: str
    """Which signal to use and how well it does; empty where there are no methods."""
    learned: str
    """How well the learned method does; empty if nothing was learned."""
    wins: str
    """Which controls it beats, and which it does not; empty if it was compared with none."""
    do: tuple[str, ...]
    """Advice on what to do next."""
    found: tuple[str, ...]
    """Findings on stated confidence, decisions, learned methods and controls."""
    sure: tuple[str, ...]
    """How sure the numbers are."""

    @property
    def first(self) -> tuple[tuple[str, str], ...]:
        """Heading and text of the answers that come first: explicit or implicit, which signal, how sure, what next."""
        sentences = (
            ("Explicit or implicit", self.explicit_or_implicit),
            ("Which signal", self.signal),
            ("How sure", " ".join(self.sure[:FIRST_SCREEN_SENTENCES])),
            ("Next", " ".join(self.do)),
        )
        return tuple((heading, text) for heading, text in sentences if text)


def brief(comparison: Comparison) -> Brief:
    """Returns the summary of a comparison; its parts are empty if the comparison has no methods."""
    if not comparison.methods:
        return Brief("", "", "", "", "", (), (), ())
    model = comparison.provenance.get("model", "The model")
    learned = headline(comparison)
    stated_method = next((method for method in comparison.methods if method.family == "explicit"), None)
    return Brief(
        asked=(
            f"{model} gave {len(comparison.y):,} answers that could be checked; {percent(comparison.base_rate)} are "
            "right. Which are they? What the model says of its own confidence may tell, or what it gives off while it "
            "answers."
        ),
        explicit_or_implicit=_explicit_or_implicit(comparison),
        signal=_signal_sentences(comparison, learned),
        learned=_learned_sentence(learned),
        wins=_controls_beaten(learned),
        do=tuple(_advice(comparison, stated_method, learned)),
        found=tuple(_findings(comparison, stated_method, learned)),
        sure=tuple(_reliability(comparison)),
    )


MAX_NAMES = 6
"""Most tasks or models that one sentence names; of more it gives the count."""
SIDES: tuple[Literal["implicit", "explicit"], ...] = ("implicit", "explicit")


def _explicit_or_implicit(comparison: Comparison) -> str:
    """Says which of the two tells more among answers of one run, whether both complement each other, and by task."""
    signals = comparison.signals
    if signals is None or isnan(signals.whole.difference.estimate):
        return ""
    all_tasks = signals.whole
    signals_with_auroc = [(signals.implicit, all_tasks.implicit), (signals.explicit, all_tasks.explicit)]
    difference = all_tasks.difference
    if all_tasks.ahead == "explicit":
        signals_with_auroc.reverse()
        difference = replace(difference, estimate=-difference.estimate, low=-difference.high, high=-difference.low)
    (first, first_auroc), (second, second_auroc) = signals_with_auroc
    verdict = f"{all_tasks.ahead.capitalize()}" if all_tasks.ahead else "Neither is shown to be ahead"
    pairs = "a right and a wrong answer" + (" of one run" if signals.runs > 1 else "")
    sentences = [
        f"{verdict}: of {pairs}, {first} trusts the right one more {number(100 * first_auroc.estimate, 0)} times in "
        f"100, {second} {number(100 * second_auroc.estimate, 0)} ({format_interval(difference, signed=True)} AUROC; "
        "guessing: 50)."
    ]
    if all_tasks.joined is None or all_tasks.joined_gain is None:
        sentences.append("No method here joins these two alone, so whether they complement each other is not shown.")
    else:
        joined_text = f"joined ({signals.joined}) {number(100 * all_tasks.joined.estimate, 0)} times"
        gain = f"{format_interval(all_tasks.joined_gain, signed=True)} AUROC over the better of the two"
        sentences.append(
            f"They complement each other: {joined_text}, {gain}."
            if all_tasks.joined_gain.low > 0
            else f"That they complement each other is not shown: {joined_text}, {gain}."
        )
    sentences += filter(None, (_by_part(signals, by) for by in ("task", "model")))
    if _turns_round(signals, "task and model") and not (
        _turns_round(signals, "task") or _turns_round(signals, "model")
    ):
        sentences.append(_by_part(signals, "task and model"))
    if signals.runs > 1:
        sentences.append(
            f"There are {signals.runs} runs (model, task, way of asking): over answers of different runs, a method "
            "that knows each run's base rate would gain by that alone."
        )
    return " ".join(sentences)


def _turns_round(signals: SignalComparison, by: str) -> bool:
    """Returns whether each of the two is ahead on some part of this kind."""
    return {*SIDES} <= {part.ahead for part in signals.parts if part.by == by}


def _by_part(signals: SignalComparison, by: str) -> str:
    """Says on which tasks or models each side is ahead; empty if there is only one."""
    parts = [part for part in signals.parts if part.by == by]
    if not parts:
        return ""

    def named(side: str) -> str:
        names = [part.name for part in parts if part.ahead == side]
        return ", ".join(names) if len(names) <= MAX_NAMES else f"{len(names)} of {len(parts)}"

    if not any(part.ahead for part in parts):
        return f"On no {by} is either shown to be ahead."
    on = "for" if by == "task and model" else "on"
    clauses = [f"{side} ahead {on} {named(side)}" for side in SIDES if named(side)]
    clauses += [f"neither shown {on} {named('')}"] if named("") else []
    return f"{'It turns round by' if _turns_round(signals, by) else 'By'} {by}: {'; '.join(clauses)}."


def _signal_sentences(comparison: Comparison, learned: MethodResult | None) -> str:
    """Returns which signal the report recommends, how well it does, and how the learned method compares with it."""
    recommended_method = recommended(comparison)
    explained = comparison.signals is not None
    if recommended_method is None or recommended_method is learned:
        sentences = ["None yet."] if recommended_method is None else []
        sentences += [_learned_sentence(learned, explained=explained), _wins_over(learned)]
        sentences += [] if recommended_method is None else [_cut_alone(comparison, recommended_method)]
    else:
        how_well = _describe_auroc(recommended_method, explained=explained)
        sentences = [
            f"{_capitalise(describe_control(recommended_method.name))}: {how_well}.",
            _chosen_here(comparison),
            _cut_alone(comparison, recommended_method),
            _learned_sentence(learned, explained=True),
            _wins_over(learned),
        ]
    return " ".join(filter(None, sentences))


def _chosen_here(comparison: Comparison) -> str:
    """Says that the recommended number was chosen on these answers, and gives the figure of the control chosen in
    advance. Empty if there was only one number to choose from.
    """
    count = len([*filter(None, [best_decision(comparison)]), *comparison.controls])
    if count < 2:
        return ""
    chosen_in_advance = next((method for method in comparison.methods if method.name == comparison.best_baseline), None)
    best_text = f"It is the best of {count} numbers, chosen on these answers, so a little too good"
    return (
        f"{best_text}; the {chosen_in_advance.name}, chosen in advance: {_times_in_100(chosen_in_advance)}."
        if chosen_in_advance
        else f"{best_text}."
    )


def _cut_alone(comparison: Comparison, recommended_method: MethodResult) -> str:
    """Says that a signal mostly tells which answers were cut. Empty unless being cut tells right from wrong, the
    interval of the difference holds 0, and the signal ranks cut answers below the others.
    """
    cut = next((method for method in comparison.controls if method.name == CUT), None)
    if cut is None or cut is recommended_method or cut.auroc_on_equal_terms.low <= 0.5:
        return ""
    compared = recommended_method.controls_on_equal_terms
    difference_from_cut = next(
        (c.difference for c in (compared.controls if compared else ()) if c.name == CUT),
        None,
    )
    # If the number is a control, the row of `cut` holds the difference: it is compared with the strongest control.
    gain = cut.diff_control if recommended_method is comparison.controls[0] else difference_from_cut
    if gain is None or not gain.low <= 0 <= gain.high:
        return ""
    if auroc(cut.order == cut.order.max(), recommended_method.order) < MIN_CUT_AUROC:
        return ""
    return f"It mostly tells which answers were cut: {CUT} alone has {_times_in_100(cut)}."


def _times_in_100(method: MethodResult) -> str:
    """Returns the AUROC on equal terms with its interval as counts: `71 times in 100 (66 to 75)`."""
    auroc_of_method = method.auroc_on_equal_terms
    estimate, low, high = (
        number(100 * value, 0) for value in (auroc_of_method.estimate, auroc_of_method.low, auroc_of_method.high)
    )
    return f"{estimate} times in 100 ({low} to {high})"


def _wins_over(learned: MethodResult | None) -> str:
    """Returns which controls the learned method beats, as a full sentence; empty if it was compared with none."""
    wins = _controls_beaten(learned)
    return f"It beats {wins[:1].lower()}{wins[1:]}" if wins else ""


def _learned_sentence(learned: MethodResult | None, *, explained: bool = False) -> str:
    """Says how well the learned method ranks, also over all answers of several runs; empty if nothing was learned.

    `explained`: whether a sentence before this one says what the count means.
    """
    if learned is None:
        return ""
    calibrated_text = (
        f", which is {describe_control(learned.calibrated_control)}, calibrated" if learned.calibrated_control else ""
    )
    over_all = f"; over all answers {number(100 * learned.auroc.estimate, 0)} times" if learned.within_runs else ""
    return f"{_capitalise(learned.name)}{calibrated_text}: {_describe_auroc(learned, explained=explained)}{over_all}."


def _controls_beaten(learned: MethodResult | None) -> str:
    """Says how many controls the learned method beats, and names the strongest control that it does not beat. A tie is
    not called a win.
    """
    if learned is None or learned.controls_on_equal_terms is None:
        return ""
    comparison = learned.controls_on_equal_terms
    count = len(comparison.controls)
    named_control = comparison.strongest if comparison.beaten else comparison.standing[0]
    controls_noun = "other controls" if learned.calibrated_control else "controls"
    controls_noun += " within runs" if learned.controls_within else ""
    if comparison.beaten:
        return f"Each of {count} {controls_noun}; the strongest is {_control_and_gain(named_control)}."
    standing_count = len(comparison.standing)
    return (
        f"{count - standing_count} of {count} {controls_noun}. Not shown for {standing_count}; the strongest of these "
        f"is {_control_and_gain(named_control)}."
    )


def _control_and_gain(control: ControlDifference) -> str:
    """Returns a control and the method's gain over it: `the free number length (+0.04 [0.01, 0.07] AUROC)`."""
    return f"{describe_control(control.name)} ({format_interval(control.difference, signed=True)} AUROC)"


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _findings(comparison: Comparison, stated_method: MethodResult | None, learned: MethodResult | None) -> list[str]:
    """Returns the findings: stated confidence, the decision model, the controls, and the better half of the answers."""
    sentences: list[str] = []
    control = comparison.controls[0] if comparison.controls else None
    decided = best_decision(comparison)
    if stated_method is not None:
        source = f"{stated_method.name}, given for {percent(stated_method.coverage)} of the answers"
        sentences.append(f"What the model says ({source}): {_describe_auroc(stated_method)}.")
        sentences += _stated_calibration_sentences(stated_method)
    if decided is not None:
        how_well = _describe_auroc(decided, explained=bool(sentences))
        sentences.append(f"The strongest number of the decision model ({decided.name}): {how_well}.")
        sentences += _stated_calibration_sentences(decided)
    sentences += [] if learned is None else _stated_calibration_sentences(learned)
    if control is not None:
        how_well = _describe_auroc(control, explained=stated_method is not None or decided is not None)
        sentences.append(
            f"The strongest of {len(comparison.controls)} controls ({describe_control(control.name)}): {how_well}."
        )
    trusted = learned or decided or control
    if trusted is not None:
        wrong_share = percent(float(np.interp(0.5, *risk_coverage(comparison.y, trusted.order))))
        sentences.append(
            f"Keeping only the half of the answers that {trusted.name} trusts most, {wrong_share} of them are wrong, "
            f"against {percent(1 - comparison.base_rate)} of all."
        )
    return sentences


def _stated_calibration_sentences(method: MethodResult) -> list[str]:
    """Returns one sentence that compares stated with recalibrated probabilities; no sentence if none were stated."""
    stated_calibration, recalibrated_brier = method.stated, method.brier
    if stated_calibration is None:
        return []
    sentence = (
        f"{_capitalise(method.name)} is {percent(stated_calibration.mean)} sure on average of answers of which "
        f"{percent(stated_calibration.accuracy)} are right: expected calibration error "
        f"{number(stated_calibration.ece.estimate)} as stated, {number(method.ece.estimate)} recalibrated"
    )
    brier = (
        f"; Brier score {number(stated_calibration.brier.estimate)} and {number(recalibrated_brier.estimate)}"
        if recalibrated_brier
        else ""
    )
    return [f"{sentence}{brier}."]


def _describe_auroc(method: MethodResult, *, explained: bool = False) -> str:
    """Returns the AUROC on equal terms in words. `explained`: whether a sentence before says what the count means."""
    compared = method.auroc_on_equal_terms
    pairs = "of a right and a wrong answer" + (" of one run" if method.within_runs else "")
    rate = (
        _times_in_100(method)
        if explained
        else f"{pairs} it trusts the right one more {number(100 * compared.estimate, 0)} times in 100 (guessing: 50; "
        f"95 % interval {number(100 * compared.low, 0)} to {number(100 * compared.high, 0)})"
    )
    if compared.low > 0.5:
        return rate
    return rate + (", so it is worse than guessing" if compared.high < 0.5 else ", which may be luck")


def _reliability(comparison: Comparison) -> list[str]:
    """Returns sentences on how sure the numbers are."""
    first_auroc = comparison.methods[0].auroc
    sentences = [
        "Every answer was judged by models that saw no answer to its group of questions; there are "
        f"{first_auroc.groups:,} "
        "such groups. The intervals say how much the numbers may owe to which groups were drawn; they say nothing of "
        "other models, or of questions of another kind."
    ]
    if (headline_method := headline(comparison)) is not None and (folds := comparison.chosen.get(headline_method.name)):
        sentences.append(
            f"Of the learned methods {headline_method.name} is shown first: {folds} of "
            f"{sum(comparison.chosen.values())} folds "
            "chose it on the answers that they learned from, before it was measured."
        )
    failed = [audit for audit in comparison.audits if not audit.passed]
    if comparison.audits:
        sentences.append(f"{len(comparison.audits) - len(failed)} of {len(comparison.audits)} audits passed.")
    no_better = _controls_as_good(failed)
    sentences += [
        f"Failed: {audit.name}; {consequence(audit)}."
        for audit in failed
        if audit.severity == "invalid" and audit.method not in no_better
    ]
    sentences += [f"{_capitalise(_do_not_use(method, controls))}." for method, controls in no_better.items()]
    sentences += [f"{consequence(audit).capitalize()}." for audit in failed if audit.severity == "unaudited"]
    if weak := sum(audit.severity == "weak" for audit in failed):
        sentences.append(f"{weak} of the audits failed as weak: the numbers {MEANING['weak']}.")
    if first_auroc.groups < FEW_GROUPS:
        sentences.append(f"{first_auroc.groups} groups are few: small differences cannot be seen.")
    return sentences


def recommended(comparison: Comparison) -> MethodResult | None:
    """Returns the method that the report tells its reader to use; None if it tells them to use none yet.

    Methods are compared on equal terms: within runs if there are several. It is the learned method if it is shown to
    beat every control. Otherwise it is the strongest control, unless the learned method beats this control but not all
    others: then more answers must decide. A control that has to be fitted gives way to the strongest free number unless
    its interval lies above that number.
    """
    failed = disqualifying_audits(comparison.audits)
    if "" in failed:
        return None
    learned = headline(comparison)
    compared = None if learned is None else learned.controls_on_equal_terms
    if learned and compared and learned.name not in failed and learned.auroc_on_equal_terms.low > 0.5:
        if compared.beaten:
            return learned
        if compared.strongest.beaten:
            return None
    free = [*filter(None, [best_decision(comparison)]), *comparison.controls]
    strongest, best_number = (
        max(methods, key=lambda method: method.auroc_on_equal_terms.estimate, default=None)
        for methods in (free, [method for method in free if not is_fitted(method.name)])
    )
    if strongest and best_number and is_fitted(strongest.name):
        is_shown = strongest.auroc_on_equal_terms.low > best_number.auroc_on_equal_terms.estimate
        strongest = strongest if is_shown else best_number
    candidates = (strongest, *comparison.controls)
    return next((method for method in candidates if method and method.auroc_on_equal_terms.low > 0.5), None)


def _advice(comparison: Comparison, stated_method: MethodResult | None, learned: MethodResult | None) -> list[str]:
    """Returns sentences on what to do next. Numbers that failed an audit are not recommended."""
    failed = disqualifying_audits(comparison.audits)
    if "" in failed:
        return ["Do not act on these numbers before the audits that failed are settled."]
    recommended_method = recommended(comparison)
    if learned is not None and learned.name in failed:
        learned = None
    informative = learned is not None and learned.auroc_on_equal_terms.low > 0.5
    compared = None if learned is None else learned.controls_on_equal_terms
    export_hint = (
        f": {comparison.exported} Then `metaprobe score C NEW` flags new answers." if comparison.exported else "."
    )
    advice = []
    if learned is not None and recommended_method is learned:
        advice.append(f"Use the learned method ({learned.name}) to decide which answers to check{export_hint}")
        if learned.controls_within and learned.controls and not learned.controls.beaten:
            standing = _control_and_gain(learned.controls.standing[0])
            advice.append(
                f"Over answers of different runs it is not shown to beat {standing}: there, knowing each run's base "
                "rate is an advantage of its own."
            )
    elif recommended_method is None and learned and informative and compared and compared.strongest.beaten:
        strongest, other_names = compared.strongest, ", ".join(describe_control(c.name) for c in compared.standing)
        advice.append(
            f"The learned method ({learned.name}) beats the strongest control ({describe_control(strongest.name)}) by "
            f"{format_interval(strongest.difference, signed=True)} AUROC, but is not shown to beat {other_names}: "
            "collect more answers before it decides anything."
        )
    elif recommended_method is not None:
        advice.append(f"Use {describe_control(recommended_method.name)} to decide which answers to check{export_hint}")
        if learned is not None and learned.calibrated_control:
            advice.append(f"The learned method is {describe_control(learned.calibrated_control)}, calibrated.")
        elif compared is not None:
            first = compared.strongest
            verdict = "does worse" if difference_word(first.difference) == "worse" else "is not shown to do better"
            advice.append(
                f"The learned method {verdict} than {describe_control(first.name)} here "
                f"({format_interval(first.difference, signed=True)} AUROC): train it on more answers, or do without."
            )
    elif informative:
        advice.append("The learned method is better than guessing; compare it with a free number before it is used.")
    else:
        advice.append("Do not rely on any of these scores: none is shown to distinguish right from wrong.")
    advice += _worth_of_statements(comparison, stated_method)
    # More questions, and failed audits.
    if comparison.methods[0].auroc.groups < FEW_GROUPS:
        advice.append("Collect more questions before anything depends on small differences.")
    no_better = _controls_as_good(comparison.audits)
    return advice + [
        f"{_capitalise(_do_not_use(method, no_better[method]))}."
        if method in no_better
        else f"Do not rely on {method} before the audits that it failed are settled: {', '.join(names)}."
        for method, names in failed.items()
    ]


def _worth_of_statements(comparison: Comparison, stated_method: MethodResult | None) -> list[str]:
    """Returns a sentence on the worth of the model's own statements, on equal terms; none if nothing was stated."""
    if stated_method is None:
        return []
    if stated_method.auroc_on_equal_terms.low <= 0.5:
        return ["Do not rely on what the model says of its own confidence."]
    signals = comparison.signals
    if signals is None:
        return []
    all_tasks = signals.whole
    if all_tasks.joined_gain is not None and all_tasks.joined_gain.low > 0:
        return ["Ask the model for its own confidence too: joined, the two tell more than either."]
    if all_tasks.ahead == "explicit":
        return [f"What the model says of its own confidence tells more than {signals.implicit}: ask for it."]
    if all_tasks.ahead == "implicit":
        return [f"What the model says of its own confidence is worth something too, but less than {signals.implicit}."]
    return [
        f"What the model says of its own confidence is not shown to be worse than {signals.implicit}: asking it may do."
    ]
