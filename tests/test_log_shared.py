"""Several processes on one log: sums, cursors and counts are those of a plain list, whatever came and went at once."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import logged_entries
import numpy as np
import pytest
from databases import database
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logged_entries import DAY, START, entry, keep

from metaprobe.production.monitoring import log_writer, retention
from metaprobe.production.monitoring.drift_of_log import LogWatch
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.label_draw import draw_sheet
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.overview import Span, overview
from metaprobe.production.monitoring.tables import LogError

server, where = logged_entries.server, logged_entries.where

NUMBERS = 40
"""Different answers of a scenario; an answer's time and score follow from its number."""


def answer(number: int) -> Entry:
    return entry(number, time=START + number * DAY / 4, cost_usd=0.25 if number % 3 else None)


def at_once(*work: Callable[[], object]) -> None:
    failed: list[BaseException] = []

    def kept(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=kept, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def store(log: ScoreLog, entries: Sequence[Entry]) -> None:
    keep(log, *entries)


def sums(log: ScoreLog) -> tuple[list[float], list[float]]:
    hours = "SELECT sum(answers), sum(scored), sum(score_sum), sum(flagged), sum(tokens), sum(priced) FROM hours"
    bins = "SELECT sum(answers), sum(score_sum), sum(flagged) FROM bins"
    first, second = ([round(float(one or 0), 6) for one in log.tables.read(asked)[0]] for asked in (hours, bins))
    return first, second


def expected(entries: Sequence[Entry]) -> tuple[list[float], list[float]]:
    scores = round(sum(one.score or 0 for one in entries), 6)
    flagged, priced = sum(bool(one.flagged) for one in entries), sum(one.cost_usd is not None for one in entries)
    n = len(entries)
    return [n, n, scores, flagged, 7 * n, priced], [n, scores, flagged]


def read_on(log: ScoreLog, after: int, seen: list[str]) -> int:
    last = log.tables.settled()
    seen += log.columns(stored=(after, last), ids=True).request_id.tolist()
    return max(after, last)


numbers = st.lists(st.integers(0, NUMBERS - 1), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), numbers, numbers),
        st.tuples(st.just("prune"), st.integers(1, NUMBERS), st.none()),
        st.tuples(st.just("delete"), st.integers(0, NUMBERS - 1), st.none()),
        st.tuples(st.just("read"), st.none(), st.none()),
    ),
    min_size=2,
    max_size=8,
)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Gives a new, empty log each time that it is asked."""
    names = iter(range(10_000))
    url = None if request.param == "sqlite" else request.getfixturevalue("server")
    return lambda: str(tmp_path / f"{next(names)}.sqlite") if url is None else database(url)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scenario=steps)
def test_what_several_write_prune_delete_and_read_is_what_a_plain_list_holds(
    place: Callable[[], str], scenario: list[tuple[str, Any, Any]]
) -> None:
    held: dict[str, Entry] = {}
    ever: set[str] = set()
    seen: list[str] = []
    gone_unread: set[str] = set()
    at, after = place(), -(1 << 62)
    with ScoreLog.open(at) as one, ScoreLog.open(at) as other:
        for step, first, second in [*scenario, ("read", None, None)]:
            if step == "write":  # the same ids from two replicas at once
                new = {a.request_id: a for a in map(answer, [*first, *second]) if a.request_id not in ever}
                kept = [a for a in map(answer, first) if a.request_id not in ever - set(held)]
                more = [a for a in map(answer, second) if a.request_id not in ever - set(held)]
                at_once(lambda kept=kept: store(one, kept), lambda more=more: store(other, more))  # type: ignore[misc]
                held |= new
                ever |= set(new)
            elif step == "prune":
                limit = START + first * DAY / 4
                clock = limit + DAY

                def prune(log: ScoreLog, clock: float = clock) -> None:
                    retention.delete_older(log.tables, 1, sure=True, now=clock)

                at_once(lambda: prune(one), lambda: prune(other))
                gone = {name for name, a in held.items() if a.time < limit}
                gone_unread |= gone - set(seen)
                held = {name: a for name, a in held.items() if name not in gone}
            elif step == "delete":
                name = f"r{first}"
                assert one.delete_all([name]) == [name] * (name not in held)
                if held.pop(name, None):
                    gone_unread |= {name} - set(seen)
            else:
                after = read_on(other, after, seen)
            assert sums(one) == expected(list(held.values()))
            assert len(one.columns()) == len(held)
        shown = overview(one, Span(START - DAY, START + NUMBERS * DAY))["totals"]["answers"]
    assert shown == len(held)
    assert len(seen) == len(set(seen)), "no answer is read twice"
    assert ever - gone_unread <= set(seen), "no answer is missed"


def test_two_that_prune_at_once_subtract_once(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take = retention._delete_rows

    def slowly(*given: Any) -> None:
        time.sleep(0.1)  # time for the other one to find the same rows
        take(*given)

    monkeypatch.setattr(retention, "_delete_rows", slowly)
    with ScoreLog.open(where) as one, ScoreLog.open(where) as other:
        store(one, [answer(number) for number in range(20)])
        counts: list[int] = []
        clock = START + 10 * DAY / 4 + DAY
        at_once(
            *(lambda log=log: counts.append(retention.delete_older(log.tables, 1, now=clock)) for log in (one, other))
        )  # type: ignore[misc]
        assert sums(one) == expected([answer(number) for number in range(10, 20)])
    assert sum(counts) == 10


def test_the_same_ids_from_two_replicas_are_counted_once(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add = log_writer.add_rows

    def slowly(*given: Any) -> None:
        time.sleep(0.1)  # rows are written and not yet committed
        add(*given)

    monkeypatch.setattr(log_writer, "add_rows", slowly)
    with ScoreLog.open(where) as one, ScoreLog.open(where) as other:
        store(one, [answer(30)])  # so that neither waits for the other's context
        same = [answer(number) for number in range(20)]
        at_once(lambda: store(one, same), lambda: store(other, same[::-1]))
        assert sums(one) == expected([*same, answer(30)])
        assert one.repeated + other.repeated == 20


def test_rows_that_commit_after_higher_numbers_are_read(where: str) -> None:
    """A replica's transaction may last: what it wrote gets its ids first, and is seen last."""
    watch = LogWatch()
    with ScoreLog.open(where) as one, ScoreLog.open(where) as other:
        store(one, [answer(0)])
        watch.read(one)
        insert = (
            "INSERT INTO scores (request_id, time, context, score) SELECT 'late', time + 1, context, score FROM scores"
        )
        if one.tables.alone:
            with one.tables.transaction() as run:
                run(insert)
            store(other, [answer(1)])
            watch.read(other)
        else:
            with one.tables.transaction() as run:
                run(insert)
                store(other, [answer(1), answer(2)])
                watch.read(other)
                assert watch.watch.watched_values["tokens"].rows < 3, (
                    "nothing is read that could hide what is not there yet"
                )
            watch.read(other)
            assert watch.watch.watched_values["tokens"].rows == 3
        read: list[str] = []
        read_on(other, -(1 << 62), read)
        assert "late" in read


def test_an_answer_that_commits_after_a_sheet_was_drawn_could_not_be_on_it(server: str) -> None:
    where = database(server)
    insert = (
        "INSERT INTO scores (request_id, time, context, score) SELECT 'late', time, context, score FROM scores LIMIT 1"
    )
    with ScoreLog.open(where) as one, ScoreLog.open(where) as other:
        store(one, [entry(number, score=0.5) for number in range(2)])
        with one.tables.transaction() as run:
            run(insert)
            store(other, [entry(number, score=0.5) for number in range(2, 4)])  # with higher ids, and there earlier
            with pytest.raises(LogError, match="none of the 0 answers"):
                draw_sheet(other, 1, since=START + 2, until=START + 9)
            drawn = draw_sheet(other, 1, until=START + 9, seed=0)
            assert drawn.candidates == 2, "what is not settled waits for the next sheet"
        draw_sheet(other, 3, until=START + 9, seed=1)
        held = dict(other.tables.read("SELECT request_id, propensity FROM samples"))
        assert len(held) == 4
        first = {name: p for name, p in held.items() if name in ("r0", "r1")}
        assert all(p == pytest.approx(1 - 0.5 * 0.25) for p in first.values())
        assert all(p == pytest.approx(0.75) for name, p in held.items() if name not in first)


def test_hundreds_from_three_writers_are_each_read_once_by_who_reads_meanwhile(where: str) -> None:
    seen: list[str] = []
    done = threading.Event()
    with ScoreLog.open(where) as reader:
        logs = [ScoreLog.open(where) for _ in range(3)]

        def write(place: int) -> None:
            for part in range(4):
                store(logs[place], [entry(10_000 * place + 100 * part + i) for i in range(100)])

        def read() -> None:
            after = -(1 << 62)
            while not done.is_set():
                after = read_on(reader, after, seen)
                time.sleep(0.01)
            read_on(reader, after, seen)

        reading = threading.Thread(target=read)
        reading.start()
        try:
            at_once(*(lambda place=place: write(place) for place in range(3)))  # type: ignore[misc]
        finally:
            done.set()
            reading.join()
            for log in logs:
                log.close()
    assert len(seen) == len(set(seen)) == 3 * 4 * 100


def test_a_database_that_was_restored_on_a_younger_server_numbers_on_from_where_it_was(server: str) -> None:
    where = database(server)
    with ScoreLog.open(where) as log:
        store(log, [answer(0)])
        log.tables.settled()
        with log.tables.transaction() as run:  # as if the server before had counted many more transactions
            run("UPDATE scores SET written = written + 1000000000")
            run("UPDATE marks SET value = value + 1000000000 WHERE name = 'settled'")
    with ScoreLog.open(where) as log:
        seen: list[str] = []
        after = read_on(log, -(1 << 62), seen)
        assert seen == ["r0"]
        store(log, [answer(1)])
        read_on(log, after, seen)
    assert seen == ["r0", "r1"]
    with ScoreLog.open(where) as log:
        np.testing.assert_array_equal(log.columns(stored=(after, log.tables.settled())).score, [0.1])
