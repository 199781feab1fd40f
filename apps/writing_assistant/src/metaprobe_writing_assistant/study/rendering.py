"""A study's results as Markdown tables: the first has the shape of MetaCrit's Table 5."""

import math

from metaprobe.checkpoints.rendered_table import Table
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe_writing_assistant.study.analysis import AspectPreference, StudyAnalysis
from metaprobe_writing_assistant.study.simulation import Power
from metaprobe_writing_assistant.study.survey import ASPECTS

NO_VALUE = "-"


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
    summary = (
        f"A preference of {shares}, asked by {power.questions} questions, {needs}: then at least "
        f"{100 * power.wanted:g} % of studies find it at the level {power.alpha:g}. One participant's answers are "
        f"taken to resemble each other by {power.likeness:.2f}."
    )
    rows = [[str(n), f"{100 * found:.0f} %"] for n, found in power.curve.items()]
    return f"{summary}\n\n{_table([['participants', 'studies that find it'], *rows])}"


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
    rows += [
        [f"{name}, % of choices", *(_format_share(aspect.shares[name]) for aspect in aspects)] for name in conditions
    ]
    statistics = (
        ("choices", lambda aspect_figures: str(aspect_figures.choices)),
        ("Friedman's chi-square", lambda aspect_figures: _format_number(aspect_figures.friedman)),
        ("p, corrected for the aspects", lambda aspect_figures: _format_p(aspect_figures.p_holm)),
        ("Kendall's W", lambda aspect_figures: _format_number(aspect_figures.kendall_w)),
        ("F", lambda aspect_figures: _format_number(aspect_figures.f)),
        ("p of F", lambda aspect_figures: _format_p(aspect_figures.p_f)),
        ("chi-square over answers", lambda aspect_figures: _format_number(aspect_figures.chi_square)),
        ("p if answers were independent", lambda aspect_figures: _format_p(aspect_figures.p_answers)),
        ("p with their resemblance", lambda aspect_figures: _format_p(aspect_figures.p_corrected)),
        ("resemblance of one's answers", lambda aspect_figures: _format_number(aspect_figures.likeness)),
        ("Fleiss' kappa", lambda aspect_figures: _format_number(aspect_figures.kappa)),
        *(
            (f"Cronbach's alpha, {name}", lambda aspect_figures, name=name: _format_alpha(aspect_figures, name))
            for name in conditions
        ),
    )
    rows += [[title, *(value(aspect) for aspect in aspects)] for title, value in statistics]  # type: ignore[no-untyped-call]
    return _table(rows)


def _pairs(analysis: StudyAnalysis) -> str:
    rows = [["aspect", "pair", "difference, points", "d", "p, corrected for the pairs"]]
    for aspect in analysis.aspects:
        for pair in aspect.pairs:
            difference = pair.difference
            points = f"{100 * difference.estimate:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"
            names = f"{pair.first} - {pair.second}"
            rows.append(
                [ASPECTS[aspect.aspect], names, points, _format_number(pair.standardized), _format_p(pair.p_holm)]
            )
    return _table(rows)


def _order(analysis: StudyAnalysis) -> str:
    rows = [["place in the order", "% of choices"]]
    rows += [[str(place), _format_share(share)] for place, share in analysis.positions.items()]
    return f"{_table(rows)}\nFriedman's p of equal places: {_format_p(analysis.p_positions)}. Intervals: 95 %.\n"


def _format_alpha(aspect: AspectPreference, condition: str) -> str:
    alpha = aspect.alpha.get(condition)
    if alpha is None or math.isnan(alpha.estimate):
        return NO_VALUE
    return f"{alpha.estimate:.2f} ({alpha.low:.2f} to {alpha.high:.2f})"


def _format_share(share: Interval) -> str:
    return f"{100 * share.estimate:.1f} ({100 * share.low:.1f} to {100 * share.high:.1f})"


def _format_number(value: float) -> str:
    return NO_VALUE if math.isnan(value) else f"{value:.2f}"


def _format_p(value: float) -> str:
    if math.isnan(value):
        return NO_VALUE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _table(rows: list[list[str]]) -> str:
    """Returns rows as a Markdown table; the first is its head."""
    return "\n".join(Table.of(rows[0], rows[1:]).markdown()) + "\n"
