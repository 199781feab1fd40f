"""Pages about a log agree with it: windows, days and curves hold each answer once, and sums follow what was taken
away."""

from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
from logged_entries import DAY, START, entry, keep
from statsmodels.stats.proportion import proportion_confint

from metaprobe.production.monitoring.estimates import estimate_share
from metaprobe.production.monitoring.label_draw import draw_sheet, write_sheet
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.overview import Span, overview

DAYS = 24


def pictures(log: ScoreLog, span: Span) -> dict[str, Any]:
    """Returns the pictures of the only version."""
    [version] = overview(log, span)["versions"]
    return dict(version)


@pytest.fixture
def log(tmp_path: Path) -> ScoreLog:
    """An answer at each midnight and noon of 24 days, the surer the later, all drawn and labelled: the surer half is
    right."""
    log = ScoreLog.open(tmp_path / "scores.sqlite")
    for number in range(2 * DAYS):
        log.write(entry(number, time=START + number * DAY / 2, score=number / (2 * DAYS), flagged=number < 12))
    assert log.flush()
    rows = draw_sheet(log, 2 * DAYS, seed=1).rows
    assert len(rows) == 2 * DAYS
    for row in rows:
        log.label(row.request_id, float(int(row.request_id[1:]) >= DAYS), who="ada")
    return log


def test_the_surest_answers_come_first_where_risk_is_shown_against_coverage(log: ScoreLog) -> None:
    with log:
        curve = pictures(log, Span(START, START + DAYS * DAY - 1))["coverage"]["labelled"]
    assert [risk for covered, risk in curve if covered <= 0.5] == pytest.approx(
        [0.0] * sum(covered <= 0.5 for covered, _ in curve)
    )
    assert curve[-1] == pytest.approx([1.0, 0.5])


def test_a_label_that_nobody_drew_does_not_make_later_days_count(tmp_path: Path) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        keep(log, *(entry(number, time=START + 60 * number) for number in range(20)))
        for row in draw_sheet(log, 10, seed=1).rows:
            log.label(row.request_id, 1.0)
        before = pictures(log, Span(START, START + 9 * DAY))["accuracy"]["powered"]
        keep(log, *(entry(number, time=START + 5 * DAY + number) for number in range(20, 40)))
        log.label("r30", 0.0)
        after = pictures(log, Span(START, START + 9 * DAY))["accuracy"]["powered"]
    assert after["rows"] - before["rows"] <= 1  # the label itself, which is used in no estimate
    assert after["value"] == before["value"]


@pytest.mark.parametrize(("true", "of"), [(0, 5), (3, 10), (40, 200)])
def test_a_share_has_the_interval_of_agresti_and_coull(true: int, of: int) -> None:
    # Two answers are added on each side, which is z * z / 2 of a normal quantile of 2.
    level = 2 * NormalDist().cdf(2.0) - 1
    low, high = proportion_confint(true, of, alpha=1 - level, method="agresti_coull")
    found = estimate_share([1] * true + [0] * (of - true), level=level)
    assert [found.low, found.high] == pytest.approx([max(low, 0), min(high, 1)])


def test_a_sheet_shows_the_letters_of_every_language(tmp_path: Path) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        keep(log, entry(1, question="Wie groß?", answer="Größer als 東京"))
        write_sheet(tmp_path / "sheet.jsonl", draw_sheet(log, 1, seed=1).rows)
    assert "Größer als 東京" in (tmp_path / "sheet.jsonl").read_text(encoding="utf-8")
