"""What the figures of a report draw: the numbers of the comparison, where the axes and the words beside them say."""

import re
from dataclasses import replace

import numpy as np
import pytest
from made_up_report import made_up
from matplotlib.collections import FillBetweenPolyCollection, LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas

from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.calibration import ReliabilityBin
from metaprobe.eval.metrics.selective import risk_coverage
from metaprobe.eval.report.costs import routing_section
from metaprobe.eval.report.drawing import dashes
from metaprobe.eval.report.inside import layers_section, seen_section, trajectories_section
from metaprobe.eval.report.layout import Figure, Legend
from metaprobe.eval.report.palette import DASHES, FAMILY, INK, PAPER
from metaprobe.eval.report.performance import SMALLEST_AREA, reliability_figure, scores_section
from metaprobe.eval.report.sections import sections
from metaprobe.eval.report.svg import draw_svg, standalone
from metaprobe.eval.report.systems import systems_section
from metaprobe.eval.report.threshold_curves import thresholds_section
from metaprobe.eval.results import SeenMethod, SeenTokens
from metaprobe.eval.system_results import CostPoint, CostQuality, SimilarityFlow, StageSimilarity


def told(estimate):
    """An interval that no other estimate has."""
    return Interval(estimate, estimate - 0.05, estimate + 0.07, 400, 100)


@pytest.fixture(scope="module")
def comparison():
    return made_up()


def painted(figure):
    ax = Canvas().subplots()
    figure.paint(ax)
    return ax


def lines(ax):
    """(x, y) of each line, in the order of drawing."""
    return [(np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)) for line in ax.lines]


def bars(ax):
    """(x, low, high) of every upright line."""
    found = []
    for collection in ax.collections:
        if isinstance(collection, LineCollection):
            found += [(float(a[0]), float(a[1]), float(b[1])) for a, b in collection.get_segments()]
    return found


def bands(ax):
    """(x, low, high) of each filled band."""
    found = []
    for collection in ax.collections:
        if isinstance(collection, FillBetweenPolyCollection):
            corners = collection.get_paths()[0].vertices[:-1]
            xs = np.unique(corners[:, 0])
            ends = [(corners[corners[:, 0] == x, 1].min(), corners[corners[:, 0] == x, 1].max()) for x in xs]
            found.append((xs, *np.array(ends).T))
    return found


def level_lines(ax):
    """Heights of the lines that run from one side to the other."""
    return [y[0] for x, y in lines(ax) if len(x) == 2 and y[0] == y[1] and x.tolist() == [0, 1]]


def test_auroc_is_drawn_against_tokens_seen_with_its_band_and_chance():
    methods = (SeenMethod("a", "learned", (told(0.5), told(0.6))), SeenMethod("b", "learned", (told(0.7), told(0.8))))
    figure = seen_section(SeenTokens(tokens=(5, 20), finished=(0.2, 0.7), methods=methods)).figures[0]
    ax = painted(figure)
    assert level_lines(ax) == [0.5]
    drawn_lines = [pair for pair in lines(ax) if pair[0].tolist() == [5, 20]]
    for (_, y), (_, low, high), method in zip(drawn_lines, bands(ax), methods, strict=True):
        assert y.tolist() == [a.estimate for a in method.auroc]
        assert low.tolist() == [a.low for a in method.auroc]
        assert high.tolist() == [a.high for a in method.auroc]
    assert ax.get_xscale() == "log"
    assert ax.get_xticks().tolist() == [5, 20]
    assert not ax.get_xticks(minor=True).size
    assert [entry.text for entry in figure.legend] == ["a", "b"]
    styles = [line.get_linestyle() for line in ax.lines[1:]]
    assert styles == ["-", "--"]  # told apart without colour


def test_scores_are_drawn_in_per_cent_of_their_kind(comparison):
    figure = scores_section(comparison).figures[-1]
    ax = painted(figure)
    filled, edges = ax.patches[0::2], ax.patches[1::2]
    for label, fill, edge in zip((1, 0), filled, edges, strict=True):
        p = comparison.methods[-1].probability[comparison.y == label]
        expected = 100 * np.histogram(p, 20, (0, 1))[0] / len(p)
        for patch in (fill, edge):
            assert patch.get_data().values == pytest.approx(expected)
            assert patch.get_data().edges == pytest.approx(np.linspace(0, 100, 21))
        assert fill.get_fill()
        assert not edge.get_fill()
    assert filled[0].get_facecolor()[:3] != filled[1].get_facecolor()[:3]
    assert ax.get_xlim() == (0, 100)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted to be right", "share of the answers")


BINS = (ReliabilityBin(0.2, 0.3, 0.1, 0.5, 40), ReliabilityBin(0.8, 0.6, 0.4, 0.9, 60))
STATED = (ReliabilityBin(1.0, 0.5, 0.4, 0.6, 80),)


def test_reliability_is_drawn_beside_the_line_on_which_a_probability_means_what_it_says():
    alone = reliability_figure("r", "m", BINS, "note", family="log-probability")
    ax = painted(alone)
    (ideal, curve) = lines(ax)
    assert [part.tolist() for part in ideal] == [[0, 100], [0, 100]]
    assert curve[0] == pytest.approx([20, 80])
    assert curve[1] == pytest.approx([30, 60])
    assert np.array(bars(ax)) == pytest.approx(np.array([[20, 10, 50], [80, 40, 90]]))
    assert (ax.get_xlim(), ax.get_ylim()) == ((0, 100), (0, 100))
    assert ax.get_xlabel() == "predicted to be right"
    assert alone.legend == ()
    assert "2 bins" in alone.label
    both = reliability_figure("r", "m", BINS, "note", family="explicit", stated=STATED)
    ax = painted(both)
    recalibrated, stated = (part for part in ax.collections if isinstance(part, PathCollection))
    assert np.asarray(recalibrated.get_offsets()) == pytest.approx(np.array([[20, 30], [80, 60]]))
    assert np.asarray(stated.get_offsets()) == pytest.approx(np.array([[100, 50]]))
    small, large = recalibrated.get_sizes()
    assert (large - SMALLEST_AREA) / (small - SMALLEST_AREA) == pytest.approx(60 / 40)
    assert not stated.get_clip_on()  # what is said to be certain stands on the edge, whole
    assert to_hex(stated.get_edgecolors()[0]) == FAMILY["explicit"] == to_hex(recalibrated.get_facecolors()[0])
    assert to_hex(stated.get_facecolors()[0]) == PAPER
    assert np.array(bars(ax))[-1] == pytest.approx([100, 40, 60])
    assert ax.get_xlabel() == "said to be right"
    assert [(entry.text, entry.colour, entry.marker, entry.hollow) for entry in both.legend] == [
        ("recalibrated", FAMILY["explicit"], "o", False),
        ("as stated", FAMILY["explicit"], "s", True),
    ]


def test_a_familys_curves_of_risk_stand_before_the_others_and_the_error_rate(comparison):
    folded = {figure.ident: figure for figure in thresholds_section(comparison).folded}
    families = ("explicit", "log-probability", "plain", "learned")
    assert list(folded) == [f"{kind}-{family}" for family in families for kind in ("roc", "risk")]
    figure = folded["risk-learned"]
    ax = painted(figure)
    mine = [m for m in comparison.methods if m.family == "learned"]
    curves = lines(ax)[:-1]
    assert len(curves) == len(comparison.methods)
    for method, (x, y) in zip(mine, curves[-len(mine) :], strict=True):
        curve = risk_coverage(comparison.y, method.probability)
        assert x[0] == pytest.approx(2.0)  # below, it is the luck of a handful of answers
        assert x[-1] == 100
        assert y == pytest.approx(100 * np.interp(x / 100, curve.coverage, curve.risk))
        assert 100 <= len(x) <= 120
    assert level_lines(ax)[0] == pytest.approx(100 * (1 - comparison.base_rate))
    assert [entry.text.rpartition(" (")[0] for entry in figure.legend] == [m.name for m in mine]
    colours = [line.get_color() for line in ax.lines[:-1]]
    assert set(colours[: -len(mine)]) == {INK}  # behind, and faint
    assert set(colours[-len(mine) :]) == {FAMILY["learned"]}
    assert (
        len({line.get_linestyle() for line in ax.lines[-1 - len(mine) : -1]} | {entry.dash for entry in figure.legend})
        > 2
    )
    assert len({entry.dash for entry in figure.legend}) == len(mine)
    assert (ax.get_xlim(), ax.get_ylim()[0]) == ((0, 100), 0)


def test_each_cell_of_a_heat_map_is_the_stronger_the_higher_its_auroc(comparison):
    sweep = comparison.sweeps[0]
    figure, by_layer = layers_section([sweep]).figures
    ax = painted(figure)
    *cells, frame = ax.patches
    assert len(cells) == 31 * 3
    values = {(round(cell.get_center()[0]), round(cell.get_center()[1])): cell.get_alpha() for cell in cells}
    low, high = sweep.selection_auroc.min(), sweep.selection_auroc.max()
    for (layer, position), alpha in values.items():
        assert alpha == pytest.approx(0.04 + 0.96 * (sweep.selection_auroc[layer, position] - low) / (high - low))
    assert frame.get_center() == pytest.approx((17, 0))
    assert not frame.get_fill()
    assert [tick.get_text() for tick in ax.get_yticklabels()] == list(sweep.positions)
    assert ax.get_xticks().tolist() == list(range(0, 31, 3))
    assert [tick.get_text() for tick in ax.get_xticklabels()][:2] == ["0", "3"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first position on top
    assert -1 < ax.get_xlim()[0] < -0.47  # every cell is seen whole
    assert 30.47 < ax.get_xlim()[1] < 31
    assert 2.47 < ax.get_ylim()[0] < 3
    assert -1 < ax.get_ylim()[1] < -0.47
    assert f"from {low:.2f} to {high:.2f}" in figure.label
    holed = sweep.selection_auroc.copy()
    holed[3, 1] = np.nan
    assert len(painted(layers_section([replace(sweep, selection_auroc=holed)]).figures[0]).patches) == 31 * 3
    flat = np.full((31, 3), 0.6)
    even = painted(layers_section([replace(sweep, selection_auroc=flat)]).figures[0])
    assert {cell.get_alpha() for cell in even.patches[:-1]} == {1.0}

    ax = painted(by_layer)
    assert level_lines(ax) == [sweep.test_auroc.estimate]
    for position, (x, y) in enumerate(lines(ax)[1:4]):
        assert x.tolist() == list(sweep.layers)
        assert y.tolist() == sweep.selection_auroc[:, position].tolist()
    (dot_x, dot_y) = lines(ax)[4]
    assert (dot_x.tolist(), dot_y.tolist()) == ([17], [sweep.selection_auroc[17, 0]])
    span = ax.patches[0]
    assert (span.get_y(), span.get_y() + span.get_height()) == pytest.approx(
        (sweep.test_auroc.low, sweep.test_auroc.high)
    )
    assert [entry.text for entry in by_layer.legend] == list(sweep.positions)


def test_log_probabilities_are_drawn_with_their_percentiles(comparison):
    whole = comparison.trajectories
    figure = trajectories_section(whole, ()).figures[0]
    ax = painted(figure)
    for at, (found, kind) in enumerate(((whole.correct, "right"), (whole.wrong, "wrong"))):
        assert lines(ax)[at][1].tolist() == found.mean.tolist()
        for (_, low, high), ends in zip(bands(ax)[2 * at : 2 * at + 2], (("p10", "p90"), ("p25", "p75")), strict=True):
            assert low.tolist() == getattr(found, ends[0]).tolist()
            assert high.tolist() == getattr(found, ends[1]).tolist()
        assert figure.legend[at].text == f"{kind}, mean of {found.n} answers"
        assert f"{kind} answers {found.mean.mean():.2f} nats" in figure.label
    assert ax.get_xlim() == (0, 100)
    assert figure.title == "Log-probability: all answers"
    role = trajectories_section(None, comparison.role_trajectories[:1]).figures[0]
    assert role.title == "Log-probability: answer, alpha"
    assert role.ident == "trajectory-01-answer-alpha"


def test_costs_are_drawn_with_the_line_of_what_mixtures_reach():
    points = (
        CostPoint("cheap", "agent", 0.1, 0.4, told(0.4)),
        CostPoint("r", "router", 0.5, 0.6),
        CostPoint("best", "oracle", 0.2, 0.9),
    )
    costs = CostQuality(title="t", unit="dollars", points=points, hull=((0.1, 0.4), (0.5, 0.6)), n=50)
    (figure,) = routing_section((costs,)).figures
    ax = painted(figure)
    assert lines(ax)[0][0].tolist() == [0.1, 0.5]
    assert lines(ax)[0][1] == pytest.approx([40, 60])
    found = {line.get_marker(): (x[0], y[0]) for line, (x, y) in zip(ax.lines[1:], lines(ax)[1:], strict=True)}
    assert found == {"o": (0.5, 60), "s": (0.1, 40), "*": (0.2, 90)}
    assert np.array(bars(ax)) == pytest.approx(np.array([[0.1, 35, 47]]))
    assert [entry.text for entry in figure.legend] == [
        "router (round)",
        "one agent alone (square)",
        "oracle, sees who is right (star)",
    ]
    assert all(entry.dash == "none" for entry in figure.legend)  # points, no lines
    assert "cheap: 0.10, 40.0" in figure.label
    assert ax.get_xlabel() == "dollars"
    assert ax.xaxis.get_major_formatter()(0.5) == "0.5"
    assert ax.yaxis.get_major_formatter()(50) == "50%"


def test_similarity_is_drawn_stage_by_stage_with_variants_side_by_side(comparison):
    def flow(variant, *values):
        stages = tuple(StageSimilarity(s, told(v), None) for s, v in zip(("answer", "synthesis"), values, strict=True))
        return SimilarityFlow("metacrit", variant, "previous", "TF-IDF", stages)

    flows = (flow("one", 0.5, 0.6), flow("two", 0.7, 0.8))
    (figure,) = systems_section(replace(comparison, similarity=flows)).figures
    ax = painted(figure)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["answer", "synthesis"]
    assert [y.tolist() for _, y in lines(ax)] == [[0.5, 0.6], [0.7, 0.8]]
    first, second = (x for x, _ in lines(ax))
    assert first.tolist() == [0, 1]
    assert 0 < second[0] < 0.2
    assert np.array(bars(ax))[2:, 1:] == pytest.approx(np.array([[0.65, 0.77], [0.75, 0.87]]))
    assert [entry.text for entry in figure.legend] == ["metacrit, one", "metacrit, two"]
    assert "one: answer 0.50, synthesis 0.60; two: answer 0.70" in figure.label
    assert figure.title == "Similarity to the stage before it"


def test_a_line_has_the_dashes_of_its_legend():
    assert dashes(0) == "solid"
    for series in range(1, 8):
        drawn_dashes = dashes(series)
        told_dashes = Legend(INK, "x", series).dash
        assert told_dashes == DASHES[series % 6]
        if told_dashes == "none":
            assert drawn_dashes == "solid"
        else:
            lengths = [float(length) for length in told_dashes.split()]
            assert drawn_dashes[0] == 0
            assert np.array(drawn_dashes[1]) / drawn_dashes[1][0] == pytest.approx(np.array(lengths) / lengths[0])


def a_figure(**changed):
    made = {"ident": "f", "title": "Title", "label": "Said of it.", "paint": lambda ax: ax.plot([0, 1], [0, 1])}
    return Figure(**made | changed)


def box(svg, name):
    return [float(value) for value in svg.split(f'{name}="')[1].split('"')[0].split()]


def test_a_drawing_alone_has_room_for_its_title_and_a_line_for_each_name():
    plain = draw_svg(a_figure())
    _, _, width, height = box(plain, "viewBox")
    assert (width, height) == pytest.approx((3.3 * 72, 2.4 * 72), abs=1)
    left, top, alone_width, alone_height = box(plain, "data-alone")
    assert left == 0
    assert -top + height < alone_height < height + 40
    assert alone_width == width
    named = draw_svg(
        a_figure(legend=(Legend(FAMILY["explicit"], "short"), Legend(FAMILY["learned"], "long " * 30)), height=0.5)
    )
    _, _, width, height = box(named, "viewBox")
    assert height == pytest.approx(2.4 * 36, abs=1)
    _, top, alone_width, alone_height = box(named, "data-alone")
    assert alone_width > 150 * 4
    assert alone_height - (-top) - height > 2 * 11  # two lines below the drawing
    file = standalone(named)
    assert "display" not in file
    assert 'viewBox="0 -' in file
    for family in ("explicit", "learned"):
        assert f"var(--{family})" in named
    keys = [float(y) for y in re.findall(r'<text x="[\d.]+" y="([-\d.]+)"', file)]
    assert len(keys) == 3  # the title and two names
    assert max(keys) < top + alone_height
    assert min(keys) > top


def test_a_users_matplotlibrc_does_not_change_the_report(monkeypatch):
    import matplotlib as mpl

    before = draw_svg(a_figure())
    monkeypatch.setitem(mpl.rcParams, "axes.linewidth", 7.0)
    monkeypatch.setitem(mpl.rcParams, "figure.dpi", 33.0)
    monkeypatch.setitem(mpl.rcParams, "lines.marker", "s")
    assert draw_svg(a_figure()) == before


def test_every_axis_says_what_it_is(comparison):
    seen = set()
    for section in sections(comparison):
        for figure in (*section.figures, *section.folded):
            ax = painted(figure)
            named = bool(ax.get_xlabel()), bool(ax.get_ylabel())
            kind = figure.ident.partition("-")[0] + ("-map" if figure.ident.startswith("layers-map") else "")
            # Positions, methods and stages stand at the ticks.
            assert named == {"layers-map": (True, False), "forest": (True, False), "similarity": (False, True)}.get(
                kind, (True, True)
            ), figure.ident
            assert not np.isnan([*ax.get_xlim(), *ax.get_ylim()]).any()
            seen.add(kind)
    assert {
        "scores",
        "reliability",
        "risk",
        "seen",
        "layers",
        "layers-map",
        "trajectory",
        "choice",
        "similarity",
    } <= seen
    ax = painted(next(f for s in sections(comparison) for f in s.figures if f.ident.startswith("risk")))
    assert ax.xaxis.get_major_formatter()(50) == ax.yaxis.get_major_formatter()(50) == "50%"


def test_nothing_of_how_it_was_drawn_is_left_in_a_drawing():
    svg = draw_svg(a_figure())
    for left in ("<?xml", "<!DOCTYPE", "<!--", "<metadata", "<style", "font-family: '", "xlink:href"):
        assert left not in svg
