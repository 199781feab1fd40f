"""Small promises of the servers: what waits is woken, what is deleted stops, what was open is closed at the end."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from metaprobe.serving.http import endpoints
from metaprobe.serving.http.metrics import Metrics


@pytest.mark.parametrize("days", [None, 30])
def test_the_end_of_a_server_closes_its_log_and_its_connections(
    monkeypatch: pytest.MonkeyPatch, days: int | None
) -> None:
    done: list[str] = []

    class Reloader:
        @asynccontextmanager
        async def watching(self) -> Any:
            done.append("watching")
            yield
            done.append("no longer watching")

    class Client:
        async def close(self) -> None:
            done.append("client closed")

    async def prune(log: Any, kept: float) -> None:
        done.append(f"pruning {kept}")
        try:
            await asyncio.Event().wait()
        finally:
            done.append("no longer pruning")

    async def live() -> None:
        log: Any = SimpleNamespace(log=SimpleNamespace(close=lambda: done.append("log closed")))
        settings: Any = SimpleNamespace(log_days=days)
        async with endpoints._running(settings, Reloader(), Client(), log):  # type: ignore[arg-type]
            await asyncio.sleep(0)
            assert "log closed" not in done
        await asyncio.sleep(0)

    monkeypatch.setattr(endpoints, "_prune", prune)
    asyncio.run(live())
    assert {"watching", "no longer watching", "client closed", "log closed"} <= set(done)
    assert ("pruning 30" in done, "no longer pruning" in done) == (days is not None, days is not None)


def test_what_the_log_counts_is_added_once_and_stays_when_nothing_came() -> None:
    metrics = Metrics()
    for dropped, repeated in ((2, 0), (2, 0), (5, 4), (5, 4)):
        metrics.count_log(dropped, repeated)
    text = metrics.exposition().decode()
    assert "metaprobe_log_dropped_total 5.0" in text
    assert "metaprobe_log_repeated_total 4.0" in text


def test_every_count_has_its_name_its_labels_and_its_steps() -> None:
    metrics = Metrics()
    metrics.requests.labels("/score", "200").inc()
    metrics.key_requests.labels("ada", "429").inc()
    metrics.errors.labels("bad_request").inc()
    metrics.verdicts.labels("shadow").inc()
    metrics.reloads.labels("refused").inc()
    metrics.gated.labels("stop").inc()
    metrics.scores.observe(0.25)
    metrics.shadow_difference.observe(0.07)
    metrics.upstream_seconds.observe(0.3)
    metrics.added_seconds.observe(0.0002)
    lines = set(metrics.exposition().decode().splitlines())
    for line in (
        'metaprobe_requests_total{endpoint="/score",status="200"} 1.0',
        'metaprobe_key_requests_total{key="ada",status="429"} 1.0',
        'metaprobe_errors_total{code="bad_request"} 1.0',
        'metaprobe_verdicts_total{role="shadow"} 1.0',
        'metaprobe_reloads_total{outcome="refused"} 1.0',
        'metaprobe_gated_total{action="stop"} 1.0',
        'metaprobe_score_bucket{le="0.2"} 0.0',
        'metaprobe_score_bucket{le="0.3"} 1.0',
        'metaprobe_shadow_difference_bucket{le="0.05"} 0.0',
        'metaprobe_shadow_difference_bucket{le="0.1"} 1.0',
        'metaprobe_upstream_seconds_bucket{le="0.25"} 0.0',
        'metaprobe_upstream_seconds_bucket{le="0.5"} 1.0',
        'metaprobe_added_seconds_bucket{le="0.0001"} 0.0',
        'metaprobe_added_seconds_bucket{le="0.00025"} 1.0',
    ):
        assert line in lines
