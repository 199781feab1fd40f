"""Draws of sheets that meet, in each kind of database: every answer is on one of them, with the propensity it had."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import logged_entries
import pytest
from test_label_draw import filled

import metaprobe.production.monitoring.label_draw as label_draw
from metaprobe.production.monitoring.label_draw import draw_sheet
from metaprobe.production.monitoring.log import ScoreLog

server, where = logged_entries.server, logged_entries.where


def test_two_sheets_that_are_drawn_at_once_are_drawn_one_after_the_other(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else both would take an answer, with the propensity of one."""
    log = filled(where, [0.5] * 200)
    earlier, others = label_draw._earlier_propensities, []

    def meanwhile(*given: Any) -> Any:
        found = earlier(*given)
        if not others:  # between the first draw's reading and its writing
            others.append(None)
            with ScoreLog.open(where, entries=False) as other:
                others.append(draw_sheet(other, 40))
        return found

    monkeypatch.setattr(label_draw, "_earlier_propensities", meanwhile)
    mine, other = draw_sheet(log, 40), others[1]
    assert other is not None
    assert (other.candidates, mine.candidates) == (200, 160)
    assert not {row.request_id for row in mine.rows} & {row.request_id for row in other.rows}
    likely = [float(p) for (p,) in log.tables.read("SELECT propensity FROM samples")]
    assert likely == pytest.approx([1 - (1 - 40 / 200) * (1 - 40 / 160)] * 80)
    log.close()


def test_of_many_draws_at_once_no_two_take_one_answer(where: str) -> None:
    log = filled(where, [0.5] * 200)
    others = [ScoreLog.open(where, entries=False) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        sheets = list(pool.map(lambda other: draw_sheet(other, 40), others))
    names = [row.request_id for sheet in sheets for row in sheet.rows]
    assert (len(names), len(set(names))) == (160, 160)
    assert sorted(sheet.candidates for sheet in sheets) == [80, 120, 160, 200]
    for one in (log, *others):
        one.close()
