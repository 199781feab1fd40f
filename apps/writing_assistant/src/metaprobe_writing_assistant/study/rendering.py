"""A study's results as Markdown tables: the first has the shape of MetaCrit's Table 5."""

import math

from metaprobe.checkpoints.rendered_table import Table
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe_writing_assistant.study.analysis import AspectPreference, StudyAnalysis
from metaprobe_writing_assistant.study.simulation import Power
from metaprobe_writing_assistant.study.survey import ASPECTS

NONE = "-"


def render_study(analysis: StudyAnalysis) -> str:
    """Returns the results as Markdown. Results of simulated readers are headed as such, never as participants'."""
    parts = [_head(analysis), _summary(analysis), _pairs(analysis), _order(analysis)]
    return "\n".join(parts)


def render_power(power: Power) -> str:
    """Returns in one paragraph and a table how many participants a difference needs."""
    shares = " / ".join(f"{100 * share:g} %" for share in power.shares)
    needs = (
        f"needs {power.participants} participants"
        if power.participants
        else f"is too small for {max(power.curve)} participants"
    )
    said = (
        f"A preference of {shares}, asked by {power.questions} questions, {needs}: then at least "
        f"{100 * power.wanted:g} % of studies find it at the level {power.alpha:g}. One participant's answers are "
        f"taken to resemble each other by {power.likeness:.2f}."
    )
    rows = [[str(n), f"{100 * found:.0f} %"] for n, found in power.curve.items()]
    return f"{said}\n\n{_table([['participants', 'studies that find it'], *rows])}"


def _head(analysis: StudyAnalysis) -> str:
    orders = f"{len(analysis.orders)} different orders"
    if analysis.simulated_by:
        return (
            f"**SIMULATED: {analysis.participants} simulated readers ({analysis.simulated_by}), in {orders}. No person "
            "took part; these numbers say nothing about learners.**\n"
        )
    return f"{analysis.participants} participants, in {orders}.\n"


def _summary(analysis: StudyAnalysis) -> str:
    """Returns Table 5: a column an aspect; preference rates, then statistics."""
    aspects = analysis.aspects
    conditions = analysis.conditions
    rows = [["", *(ASPECTS[aspect.aspect] for aspect in aspects)]]
    rows += [[f"{name}, % of choices", *(_share(aspect.shares[name]) for aspect in aspects)] for name in conditions]
    statistics = (
        ("choices", lambda one: str(one.choices)),
        ("Friedman's chi-square", lambda one: _number(one.friedman)),
        ("p, corrected for the aspects", lambda one: _p(one.p_holm)),
        ("Kendall's W", lambda one: _number(one.kendall_w)),
        ("F", lambda one: _number(one.f)),
        ("p of F", lambda one: _p(one.p_f)),
        ("chi-square over answers", lambda one: _number(one.chi_square)),
        ("p if answers were independent", lambda one: _p(one.p_answers)),
        ("p with their resemblance", lambda one: _p(one.p_corrected)),
        ("resemblance of one's answers", lambda one: _number(one.likeness)),
        ("Fleiss' kappa", lambda one: _number(one.kappa)),
        *((f"Cronbach's alpha, {name}", lambda one, name=name: _alpha(one, name)) for name in conditions),
    )
    rows += [[title, *(value(aspect) for aspect in aspects)] for title, value in statistics]  # type: ignore[no-untyped-call]
    return _table(rows)


def _pairs(analysis: StudyAnalysis) -> str:
    rows = [["aspect", "pair", "difference, points", "d", "p, corrected for the pairs"]]
    for aspect in analysis.aspects:
        for pair in aspect.pairs:
            shown = pair.difference
            points = f"{100 * shown.estimate:+.1f} ({100 * shown.low:+.1f} to {100 * shown.high:+.1f})"
            names = f"{pair.first} - {pair.second}"
            rows.append([ASPECTS[aspect.aspect], names, points, _number(pair.standardized), _p(pair.p_holm)])
    return _table(rows)


def _order(analysis: StudyAnalysis) -> str:
    rows = [["place in the order", "% of choices"]]
    rows += [[str(place), _share(share)] for place, share in analysis.positions.items()]
    return f"{_table(rows)}\nFriedman's p of equal places: {_p(analysis.p_positions)}. Intervals: 95 %.\n"


def _alpha(one: AspectPreference, condition: str) -> str:
    alpha = one.alpha.get(condition)
    if alpha is None or math.isnan(alpha.estimate):
        return NONE
    return f"{alpha.estimate:.2f} ({alpha.low:.2f} to {alpha.high:.2f})"


def _share(share: Interval) -> str:
    return f"{100 * share.estimate:.1f} ({100 * share.low:.1f} to {100 * share.high:.1f})"


def _number(value: float) -> str:
    return NONE if math.isnan(value) else f"{value:.2f}"


def _p(value: float) -> str:
    if math.isnan(value):
        return NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _table(rows: list[list[str]]) -> str:
    """Returns rows as a Markdown table; the first is its head."""
    return "\n".join(Table.of(rows[0], rows[1:]).markdown()) + "\n"
