"""Pruned, deleted or moved answers are gone from a score log, and nothing else is."""

import errno
from pathlib import Path

import logged_entries
import pytest
from click.testing import CliRunner
from logged_entries import DAY, START, WHOLE, entry, keep

from metaprobe.cli import main
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.tables import LogError

server, where = logged_entries.server, logged_entries.where


def totals(log: ScoreLog) -> list[tuple[float, ...]]:
    """The sums that pages read, over all hours: answers, sum of scores, flagged, tokens; and answers in the bins."""
    asked = "SELECT sum(answers), sum(score_sum), sum(flagged), sum(tokens) FROM hours"
    bins = "SELECT sum(answers), sum(score_sum), sum(flagged) FROM bins"
    return [tuple(round(float(value or 0), 9) for value in log.tables.read(one)[0]) for one in (asked, bins)]


def test_prune_takes_away_what_is_older_and_its_labels_and_nothing_else(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.production.monitoring.retention.ROWS_PER_TRANSACTION", 4)
    monkeypatch.setattr("time.time", lambda: START + 10 * DAY + 0.5)
    with ScoreLog.open(where) as log:
        for number in range(20):
            log.write(entry(number, time=START + number * DAY / 2))
        log.flush()
        log.label("r2", 1)
        log.label("r19", 1)
        assert log.prune(5, sure=True) == 11
        columns = log.columns(ids=True)
        assert columns.request_id.tolist() == [f"r{number}" for number in range(11, 20)]
        assert [one.request_id for one in log.current_labels()] == ["r19"]
        assert [sums[0] for sums in totals(log)] == [9, 9]
        with pytest.raises(LogError, match="days 0; expected more than 0"):
            log.prune(0)


def test_a_clock_that_jumped_ahead_takes_nothing_away(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [START + 90 * DAY]
    monkeypatch.setattr("time.time", lambda: now[0])
    with ScoreLog.open(where) as log:
        keep(log, *(entry(number, time=START + number * DAY) for number in range(90)))
        now[0] += 40 * DAY  # fewer than half would go
        with pytest.raises(
            LogError, match=r"41 days after the last prune or answer .*: it has jumped.* 40 of 90.*--yes"
        ):
            log.prune(90)
        log.write(entry(100, time=now[0]))  # by the same clock
        assert log.flush()
        with pytest.raises(LogError, match="it has jumped"):
            log.prune(90)
        assert len(log.columns()) == 91
        now[0] -= 40 * DAY
        assert log.prune(80) == 10
        now[0] += 120 * DAY
        with pytest.raises(LogError, match=r"120 days after the last prune.*80 of 81 answers would go"):
            log.prune(80)
        assert log.prune(80, sure=True) == 80
        now[0] += 3600
        log.write(entry(101, time=now[0]))
        assert log.prune(80) == 1, "who was sure has set the log's clock right"


def test_most_of_a_log_goes_only_where_somebody_says_so_or_where_it_became_old_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [START + 90 * DAY]
    monkeypatch.setattr("time.time", lambda: now[0])
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        keep(log, *(entry(number, time=START + number * DAY) for number in range(90)))
        with pytest.raises(LogError, match=r"60 of 90 answers would go at once.*--older-than 30 --log LOG --yes"):
            log.prune(30)
        assert log.prune(60) == 30
        for _ in range(89):  # nothing more is logged, and the service is asked for every day
            now[0] += DAY
            log.prune(60)
        assert len(log.columns()) == 0


def test_numbers_of_answers_that_are_gone_are_not_given_again(where: str) -> None:
    with ScoreLog.open(where) as log:
        keep(log, *(entry(number) for number in range(5)))
        last = log.tables.settled()
        assert log.columns(stored=(0, last)).tokens.tolist() == [7] * 5
        assert log.prune(1, sure=True) == 5
        assert log.tables.settled() >= last
    with ScoreLog.open(where) as log:
        keep(log, *(entry(number) for number in range(5, 8)))
        assert log.columns(stored=(last, log.tables.settled()), ids=True).request_id.tolist() == ["r5", "r6", "r7"]


def test_who_only_reads_needs_no_room_beside_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scores.sqlite"
    with ScoreLog.open(path) as log:
        log.write(WHOLE)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("metaprobe.production.monitoring.log.Spool.make", full)
    with pytest.raises(LogError, match="No space left"):
        ScoreLog.open(path)
    with ScoreLog.open(path, entries=False) as log:
        assert log.columns(ids=True, gated=True).request_id.tolist() == ["whole"]
        log.label("whole", 1)
        assert (log.flush(), log.dropped, log.repeated) == (True, 0, 0)
        with pytest.raises(LogError, match="entries=False"):
            log.write(WHOLE)
    assert CliRunner().invoke(main, ["estimate", "--log", str(path)]).exit_code == 0


def test_a_label_of_an_answer_that_never_came_is_deleted_and_said(where: str) -> None:
    with ScoreLog.open(where) as log:
        log.label("never came", 1)
        assert log.delete_all(["never came"]) == []
        assert log.current_labels() == []
        assert log.delete_all(["never came"]) == ["never came"]
