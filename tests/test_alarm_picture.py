"""The picture of an alarm: its points, lines and numbers lie where they belong."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from metaprobe.monitoring.drift import LABEL, Alarm
from metaprobe.monitoring.drift_of_log import draw_alarm, measure_move

START = 1_762_732_800.0  # 2025-11-10, midnight in UTC
SVG = "{http://www.w3.org/2000/svg}"


def alarm(stream: str = "tokens", *, began: float, at: float) -> Alarm:
    return Alarm(stream, at, began, 400.0, 80, 40, "higher")


def drawn(stream: str, values: object, *, times: object, began: float, at: float) -> ElementTree.Element:
    return ElementTree.fromstring(draw_alarm(alarm(stream, began=began, at=at), times, values))  # type: ignore[arg-type]


def points(svg: ElementTree.Element) -> list[tuple[float, float]]:
    line = svg.find(f"{SVG}polyline")
    assert line is not None
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]


def test_a_move_is_of_means_before_the_change_and_from_it_to_the_alarm() -> None:
    of = alarm("tokens", began=3.0, at=5.0)
    move = measure_move(of, [1, 2, 3, 4, 5, 6], [1.0, 3.0, 10.0, np.nan, 20.0, 1000.0])
    assert (move.what, move.before, move.after) == ("mean tokens", 2.0, 15.0)
    assert measure_move(alarm(LABEL, began=3.0, at=5.0), [1.0], [0.5]).what == "label less score"
    names = measure_move(alarm("task", began=3.0, at=5.0), [1, 2, 2, 3, 5], ["a", "a", "b", "b", "b"])
    assert (names.what, names.before, names.after) == ("share of 'a'", pytest.approx(2 / 3), 0.0)


def test_one_moment_and_nothing_at_all_are_drawn_without_a_division_by_nothing() -> None:
    svg = drawn("score", [0.5, 0.5], times=[START, START], began=START, at=START)
    assert len(points(svg)) == 1
    assert not re.search("nan|inf", ElementTree.tostring(svg, encoding="unicode").replace("nan before", ""))
    drawn("task", ["<b>"], times=[3.0], began=3.0, at=3.0)
    drawn("score", [], times=[], began=3.0, at=3.0)
