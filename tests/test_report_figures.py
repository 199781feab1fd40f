"""The figures of a report draw the numbers of the comparison, where the axes and the words beside them say."""

from dataclasses import replace

import numpy as np
import pytest
from made_up_report import made_up
from matplotlib.figure import Figure as Canvas
from sklearn.metrics import roc_curve

from metaprobe.eval.metrics.ranked import risk_coverage
from metaprobe.eval.report import figures
from metaprobe.eval.report.figures import FAMILY, INK, PAPER, RIGHT, WRONG
from metaprobe.eval.report.words import main_methods
from metaprobe.eval.report.write import sections
from metaprobe.eval.results import FAMILIES


@pytest.fixture(scope="module")
def comparison():
    return made_up()


def painted(figure):
    ax = Canvas().subplots()
    figure.paint(ax)
    return ax


def legend(ax):
    return dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))


def lines(ax):
    """(x, y) of each line that is drawn, in the order of drawing."""
    found = [(np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)) for line in ax.lines]
    return [pair for pair in found if len(pair[0])]


def level_lines(ax):
    """Heights of the lines that run from one side to the other."""
    return [y[0] for x, y in lines(ax) if len(x) == 2 and y[0] == y[1] and x.tolist() == [0, 1]]


def test_roc_and_risk_are_drawn_from_the_main_methods_curves(comparison):
    mains = main_methods(comparison)
    roc, risk = map(painted, figures.thresholds(comparison, mains))
    chance, *curves = lines(roc)
    assert [part.tolist() for part in chance] == [[0, 100], [0, 100]]
    for method, (x, y) in zip(mains, curves, strict=True):
        assert {*x} <= {*(100 * roc_curve(comparison.y, method.probability, drop_intermediate=False)[0])}
        assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 100, 100)
    for method, (x, y) in zip(mains, lines(risk)[:-1], strict=True):
        assert x[0] == pytest.approx(2.0)  # below, it is the luck of a handful of answers
        assert y == pytest.approx(100 * np.interp(x / 100, *risk_coverage(comparison.y, method.probability)))
        assert 100 <= len(x) <= 120
    assert level_lines(risk)[0] == pytest.approx(100 * (1 - comparison.base_rate))
    assert [name.rpartition(" (")[0] for name in legend(roc)] == [method.name for method in mains]
    assert len({(key.get_color(), str(key.get_linestyle())) for key in legend(roc).values()}) == len(mains)
    one_kind = replace(comparison, y=np.ones(len(comparison.y), dtype=int))
    assert [figure.ident for figure in figures.thresholds(one_kind, mains)] == ["risk"]


def test_every_axis_says_what_it_is_and_a_colour_means_one_thing(comparison):
    family_of = {method.name: method.family for method in (*comparison.methods, *comparison.seen.methods)}
    family_of |= {"router (round)": "learned", "control (triangle)": "plain"} | {family: family for family in FAMILIES}
    family_of |= dict.fromkeys(("prompt_last", "answer_first", "answer_mean"), "learned")  # positions a probe reads
    for section in sections(comparison):
        for figure in section.figures:
            ax = painted(figure)
            assert ax.get_xlabel(), figure.ident
            assert ax.get_ylabel() or figure.ident == "forest", figure.ident  # methods stand at its ticks
            for text, key in legend(ax).items():
                name = text if text in family_of else text.rpartition(" (")[0]
                if name in family_of:
                    assert key.get_color() == FAMILY[family_of[name]], (figure.ident, text)
                elif text not in ("recalibrated", "as stated", "within runs"):
                    assert key.get_color() in (INK, RIGHT, WRONG), (figure.ident, text)
                    assert (key.get_color() == WRONG) == text.startswith("wrong")
                    assert (key.get_color() == RIGHT) == text.startswith(("right", "oracle"))
    assert len({*FAMILY.values(), RIGHT, WRONG, INK, PAPER}) == len(FAMILIES) + 4
