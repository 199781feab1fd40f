"""The answer at a glance: what the verdict says, where the points of the forest plot stand, ROC, colours."""

import re
from dataclasses import replace

import numpy as np
import pytest
from made_up_report import METHOD_OF_ALL, made_up, rendered
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas

from metaprobe.eval.method_results import FAMILIES, Finding
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.discrimination import auroc, roc_curve
from metaprobe.eval.metrics.strongest_control import ControlComparison, ControlDifference
from metaprobe.eval.report.first_screen import verdict_words
from metaprobe.eval.report.glance import forest_figure, glance_section
from metaprobe.eval.report.palette import CSS, FAMILY, INK, PAPER, RIGHT, WRONG
from metaprobe.eval.report.sections import sections
from metaprobe.eval.report.threshold_curves import thresholds_section
from metaprobe.eval.results import Comparison

STRONGEST = "minimum log-probability"
"""Of the controls of the comparison that is made up."""


@pytest.fixture(scope="module")
def comparison():
    return made_up()


def painted(figure):
    ax = Canvas().subplots()
    figure.paint(ax)
    return ax


def unbroken(tick):
    """A name as it is without spaces, for it may go on in the next line after a space or a hyphen."""
    return re.sub(r"\s", "", tick.get_text())


def with_gains(comparison, gains, *, within=None):
    """Where the method named beforehand has these differences to its controls: name -> (estimate, low, high, p)."""

    def over(found):
        return ControlComparison(
            0.8, tuple(ControlDifference(name, 0.7, Interval(*g[:3], 400, 97), g[3], g[3]) for name, g in found.items())
        )

    changed = {"controls": over(gains), "controls_within": over(within) if within else None}
    methods = tuple(replace(m, **changed) if m.name == METHOD_OF_ALL else m for m in comparison.methods)
    return replace(comparison, methods=methods)


BETTER, TIE, WORSE = (0.06, 0.03, 0.09, 0.001), (0.01, -0.02, 0.04, 0.4), (-0.03, -0.05, -0.01, 0.01)


@pytest.mark.parametrize(
    ("gains", "says"),
    [
        (
            {STRONGEST: BETTER, "length": BETTER},
            "beats every one of 2 controls, the strongest, the free number minimum",
        ),
        ({STRONGEST: TIE, "length": BETTER}, "is not shown to beat the free number minimum log-probability (+0.01"),
        (
            {STRONGEST: WORSE},
            "does worse than the free number minimum log-probability (-0.03 [-0.05, -0.01] AUROC): use",
        ),
        ({STRONGEST: BETTER, "length": TIE}, "but is not shown to beat the free number length."),
        ({STRONGEST: (0.03, 0.001, 0.06, 0.09)}, "is not shown to beat the free number minimum log-probability"),
    ],
)
def test_the_verdict_claims_a_gain_only_where_every_paired_interval_and_holm_do(comparison, gains, says):
    first, *_ = verdict_words(with_gains(comparison, gains))
    assert first.startswith(f"The learned method ({METHOD_OF_ALL}, AUROC 0.")
    assert says in first
    assert ("beats every" in first) == all(gain == BETTER for gain in gains.values())


def test_a_gain_that_is_gone_within_runs_is_said_beside_the_pooled_one(comparison):
    gone = verdict_words(with_gains(comparison, {STRONGEST: BETTER}, within={"length": TIE}))
    assert any(
        said.startswith("Among answers of one run it is not shown to beat the free number length") for said in gone
    )
    kept = verdict_words(with_gains(comparison, {STRONGEST: BETTER}, within={"length": BETTER}))
    assert not any("Among answers of one run" in said for said in kept)


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ((0.6, 0.7), "is better than guessing"),
        ((0.45, 0.6), "is not shown to be better than guessing"),
        ((0.3, 0.4), "is worse than guessing"),
    ],
)
def test_the_verdict_says_whether_what_the_model_says_is_better_than_guessing(comparison, ends, says):
    first = replace(comparison.methods[0], auroc=Interval(sum(ends) / 2, *ends, 400, 97))
    last = verdict_words(replace(comparison, methods=(first, *comparison.methods[1:])))[-1]
    assert says in last
    assert re.search(r"; it is \d+\u00a0% sure on average, and \d+\u00a0% are right\.$", last)


def test_the_verdict_begins_with_audits_that_leave_nothing_to_be_believed(comparison):
    spoiled = replace(comparison, audits=(Finding("splits share no group", False, "3 shared", "invalid"),))
    assert verdict_words(spoiled)[0].endswith("before the audits that failed are settled: splits share no group.")
    weak = replace(comparison, audits=(Finding("few", False, "", "weak"),))
    assert verdict_words(weak)[0].startswith("The learned method")
    assert verdict_words(Comparison(title="t", summary=(), provenance={}, y=np.array([0, 1]), methods=())) == ()


def test_the_verdict_stands_before_the_summary_on_the_page():
    page = rendered()["report.html"]
    glance = page.index('id="glance"')
    assert glance < page.index("The learned method (") < page.index("<figure") < page.index('id="summary"')


def test_a_point_of_the_forest_plot_stands_at_its_auroc_with_its_interval(comparison):
    figure = forest_figure(comparison.methods)
    ax = painted(figure)
    bars = [
        (*segment[:, 0], segment[0, 1], to_hex(part.get_colors()[0]))
        for part in ax.collections
        if isinstance(part, LineCollection)
        for segment in part.get_segments()
    ]
    chance, *points = ax.lines
    assert set(chance.get_xdata()) == {0.5}
    at_height = {unbroken(tick): y for y, tick in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)}
    assert list(at_height.values()) == sorted(at_height.values())
    found = {(float(p.get_xdata()[0]), float(p.get_ydata()[0])): p for p in points}
    assert len(found) == 2 * len(comparison.methods)
    for method in comparison.methods:
        y, colour = at_height[method.name.replace(" ", "")], FAMILY[method.family]
        pooled = found[method.auroc.estimate, y]
        assert (pooled.get_color(), pooled.get_markerfacecolor()) == (colour, colour)
        assert (method.auroc.low, method.auroc.high, y, colour) in bars
        # Within runs stands just below, hollow.
        (low,) = [p for (x, height), p in found.items() if x == method.within_runs.estimate and y < height < y + 0.5]
        assert (low.get_color(), low.get_markerfacecolor()) == (colour, PAPER)
        assert (method.within_runs.low, method.within_runs.high, low.get_ydata()[0], colour) in bars
    top, bottom = ax.get_ylim()[::-1]
    assert all(top < float(p.get_ydata()[0]) < bottom for p in points)


def test_the_forest_plot_has_families_together_and_the_best_of_each_first(comparison):
    ax = painted(forest_figure(comparison.methods))
    order = [unbroken(tick) for tick in ax.get_yticklabels()]
    by_name = {method.name.replace(" ", ""): method for method in comparison.methods}
    keys = [(FAMILIES.index(by_name[name].family), -by_name[name].auroc.estimate) for name in order]
    assert keys == sorted(keys)
    assert max(len(line) for tick in ax.get_yticklabels() for line in tick.get_text().split("\n")) <= 23
    alone = tuple(replace(method, within_runs=None) for method in comparison.methods)
    figure = forest_figure(alone)
    assert [entry.text for entry in figure.legend] == ["explicit", "log-probability", "plain", "learned"]
    assert len(painted(figure).lines) == 1 + len(alone)


def test_stated_numbers_stand_beside_what_was_learned_and_without_them_the_strongest_control_does(comparison):
    said, learned, forest = glance_section(comparison).figures
    assert said.title == "What the model says: verbalised confidence"
    assert [entry.text for entry in said.legend] == ["recalibrated", "as stated"]
    assert learned.title == f"What was learned: {METHOD_OF_ALL}"
    assert forest.ident == "forest"
    unsaid = tuple(method for method in comparison.methods if method.family != "explicit")
    free, *_ = glance_section(replace(comparison, methods=unsaid)).figures
    assert free.title == f"What is free: {STRONGEST}"
    assert free.legend == ()


def area(curve):
    steps = np.diff(curve.wrong)
    return float(np.sum(steps * (curve.right[1:] + curve.right[:-1]) / 2))


def test_roc_passes_through_the_operating_points_and_its_area_is_the_auroc():
    y, score = [1, 0, 1, 1, 0, 0], [0.9, 0.9, 0.8, 0.4, 0.4, 0.1]
    curve = roc_curve(y, score)
    # At 0.9 one of three right and one of three wrong are accepted; at 0.8 another right one; at 0.4 one of each.
    assert curve.right == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])
    assert curve.wrong == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3, 1])
    assert area(curve) == pytest.approx(auroc(y, score))
    base = made_up(n=40, resamples=2)
    method = replace(base.methods[-1], probability=np.array(score))
    section = thresholds_section(replace(base, y=np.array(y), methods=(method,), headline=method.name))
    roc, risk = section.figures
    assert (roc.ident, risk.ident) == ("roc-main", "risk-main")
    chance, drawn = painted(roc).lines
    assert list(chance.get_xdata()) == list(chance.get_ydata()) == [0, 100]
    assert drawn.get_xdata() == pytest.approx(100 * curve.wrong)
    assert drawn.get_ydata() == pytest.approx(100 * curve.right)
    table = next(table for table in section.data if table.ident == "roc")
    saved = {column.key: cell.value for column, cell in zip(table.columns, table.rows[0], strict=True)}
    assert saved["right_at_0.2"] == pytest.approx(0.2)  # within the tie at 0.9
    assert saved["right_at_0.5"] == pytest.approx(2 / 3 + 1 / 6)


def test_where_roc_rises_straight_up_the_table_has_its_top():
    base = made_up(n=40, resamples=2)
    y = np.array([0, 1, 1, 0])
    method = replace(base.methods[-1], probability=np.array([0.9, 0.8, 0.7, 0.1]))
    section = thresholds_section(replace(base, y=y, methods=(method,), headline=method.name))
    table = next(table for table in section.data if table.ident == "roc")
    saved = {column.key: cell.value for column, cell in zip(table.columns, table.rows[0], strict=True)}
    assert saved["right_at_0.5"] == 1


def test_the_roc_of_any_scores_has_the_area_of_the_auroc(comparison):
    for method in comparison.methods:
        assert area(roc_curve(comparison.y, method.probability)) == pytest.approx(method.auroc.estimate)


def test_answers_of_one_kind_have_risk_and_no_roc(comparison):
    section = thresholds_section(replace(comparison, y=np.ones(len(comparison.y), dtype=int)))
    assert [figure.ident for figure in section.figures] == ["risk-main"]
    assert [table.ident for table in section.data] == ["risk"]
    assert section.spreads == ()


def test_a_family_has_one_colour_in_every_figure_and_the_colour_no_other_meaning(comparison):
    family_of = {method.name: method.family for method in (*comparison.methods, *comparison.seen.methods)}
    # What is drawn of one family without being a method of it by name.
    others = {"router (round)": "learned", "control (triangle)": "plain"} | {family: family for family in FAMILIES}
    others |= dict.fromkeys(("prompt_last", "answer_first", "answer_mean"), "learned")  # positions that a probe reads
    shown = [f for section in sections(comparison) for f in (*section.figures, *section.folded)]
    for figure in shown:
        for entry in figure.legend:
            name = entry.text if entry.text in family_of else entry.text.rpartition(" (")[0]
            family = family_of.get(name) or others.get(entry.text)
            if entry.text in ("recalibrated", "as stated"):
                family = "explicit"
            if family is not None:
                assert entry.colour == FAMILY[family], (figure.ident, entry.text)
            else:
                assert entry.colour in (INK, RIGHT, WRONG), (figure.ident, entry.text)
                assert (entry.colour == WRONG) == entry.text.startswith("wrong")
                assert (entry.colour == RIGHT) == entry.text.startswith(("right", "oracle"))
    for method in comparison.methods:
        (figure,) = [f for f in shown if f.title == f"Reliability: {method.name}"]
        drawn = {to_hex(line.get_color()) for line in painted(figure).lines}
        assert drawn == {INK, FAMILY[method.family]}
    style = rendered()["report.html"]
    assert all(
        f".f-{family}::before {{ background: var(--{family}); }}" in style
        for family in FAMILIES
        if family != "explicit"
    )
    assert len({*FAMILY.values(), RIGHT, WRONG, INK, PAPER}) == len(CSS) == len(FAMILIES) + 4
