"""The picture of an alarm: its points, lines and numbers lie where they belong."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from metaprobe.monitoring.drift import LABEL, Alarm
from metaprobe.monitoring.drift_of_log import draw_alarm, measure_move

DAY = 86_400.0
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


def test_each_part_of_the_time_is_one_point_at_its_mean() -> None:
    times = START + DAY * np.arange(80)
    values = np.repeat([10.0, 30.0], 40)
    svg = drawn("tokens", values, times=times, began=times[40], at=times[-1])
    line = points(svg)
    steps = np.diff([x for x, _ in line])
    assert steps == pytest.approx(np.full(39, steps[0]), abs=0.11)
    low, high = line[0][1], line[-1][1]
    assert low > high, "heights grow downwards"
    assert [y for _, y in line] == [low] * 20 + [high] * 20
    named = {text.text: float(text.attrib["y"]) for text in svg.findall(f"{SVG}text") if text.attrib.get("text-anchor")}
    assert (named["10.0"], named["30.0"]) == pytest.approx((low + 4, high + 4), abs=0.11)


def test_the_change_and_the_alarm_are_lines_at_their_times() -> None:
    times = START + DAY * np.arange(81)
    svg = drawn("tokens", np.arange(81.0), times=times, began=START + 20 * DAY, at=START + 80 * DAY)
    dashed, full = svg.findall(f"{SVG}line")
    assert "stroke-dasharray" in dashed.attrib
    assert "stroke-dasharray" not in full.attrib
    left, right = 56.0, float(svg.attrib["viewBox"].split()[2]) - 8
    assert float(dashed.attrib["x1"]) == pytest.approx(left + (right - left) / 4, abs=0.06)
    assert float(full.attrib["x1"]) == pytest.approx(right, abs=0.06)
    assert dashed.attrib["x1"] == dashed.attrib["x2"]
    texts = [text.text for text in svg.findall(f"{SVG}text")]
    assert "2025-11-10 00:00" in texts
    assert "2026-01-29 00:00" in texts


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
