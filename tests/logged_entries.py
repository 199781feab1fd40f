"""Entries of a score log, and databases to keep them in."""

import atexit
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from databases import database, has_postgres, postgres

from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.log import ScoreLog

DAY = 86400.0
START = 20_000 * DAY


@pytest.fixture(scope="module")
def server() -> str:
    if not has_postgres():
        pytest.skip("PostgreSQL is not installed here")
    return running_server()


@cache
def running_server() -> str:
    """A server for all files of this process: to make one takes longer than most tests of it."""
    held = ExitStack()
    atexit.register(held.close)
    return held.enter_context(postgres())


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a log, in each kind of database."""
    if request.param == "sqlite":
        return str(tmp_path / "scores.sqlite")
    return database(request.getfixturevalue("server"))


def entry(number: int, **more: object) -> Entry:
    given = {
        "request_id": f"r{number}",
        "time": START + number,
        "model": "m",
        "checkpoint": "c" * 64,
        "score": (number % 10) / 10,
        "flagged": number % 10 < 3,
        "finish_reason": "stop",
        "tokens": 7,
    }
    return Entry(**given | more)  # type: ignore[arg-type]


def keep(log: ScoreLog, *entries: Entry) -> None:
    """Has the log store these entries."""
    for one in entries:
        log.write(one)
    assert log.flush()


WHOLE = Entry(
    request_id="whole",
    time=START + 0.25,
    model="llama",
    checkpoint="d" * 64,
    score=0.125,
    flagged=True,
    critical=0.5,
    heads={"evidence": 2.5},
    reason="the base rate is unknown",
    finish_reason="length",
    action="stop",
    prompt_tokens=11,
    tokens=3,
    tokens_saved=40,
    cost_usd=0.002,
    latency_s=0.7,
    shadow_of="",
    tags={"task": "faq", "prompt": "v7"},
    logprobs=[-0.5, -0.25, -2.0],
    question="What is 2 + 2?",
    answer="4",
)
