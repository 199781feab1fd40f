"""`/metrics` counts the answers of all workers, and the times are those that its names say."""

import itertools
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import serving_clients
from prometheus_client.parser import text_string_to_metric_families
from served import KEY, Upstream
from serving_clients import LOGPROBS, Served, serving, verdict_of

from metaprobe.production.http.metrics import Metrics

checkpoint = serving_clients.checkpoint
predictor = serving_clients.predictor
upstream = serving_clients.upstream
callers_keys = serving_clients.callers_keys

Counts = dict[tuple[str, ...], float]


@pytest.fixture
def counting(checkpoint: Path, upstream: tuple[Upstream, str]) -> Iterator[Served]:
    """A server that has answered nothing yet."""
    with serving(checkpoint, upstream[1]) as client:
        yield client


def counts_in(exposition: str) -> Counts:
    """(name, label values in the order of their names) -> what was counted."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def counts_of(served: Served) -> Counts:
    return counts_in(served.get("/metrics", authorization=f"Bearer {KEY}").text)


def test_every_verdict_is_counted_by_its_score_its_flag_or_its_lack_of_one(counting: Served) -> None:
    batch = counting.post("/v1/score", {"responses": [LOGPROBS, [-9.0] * 6, "none"]}).json()["verdicts"]
    alone = counting.post("/v1/score", "none")
    *_, streamed = counting.chat(stream=True)
    counting.ask("nan")  # passes without a verdict
    verdicts = [*batch, verdict_of(counting.chat()), verdict_of(streamed)]
    scores = [verdict["score"] for verdict in verdicts if verdict["score"] is not None]
    flagged = sum(bool(verdict["flagged"]) for verdict in verdicts)
    counts = counts_of(counting)
    assert alone.status_code == 422
    assert 0 < flagged < len(scores) == 4
    assert counts["metaprobe_score_count",] == 4
    assert counts["metaprobe_score_sum",] == pytest.approx(sum(scores))
    assert counts["metaprobe_flagged_total",] == flagged
    assert counts["metaprobe_abstained_total",] == 3


def test_what_went_wrong_is_counted_by_its_code_and_every_request_by_its_status(counting: Served) -> None:
    for said in ("refuses-logprobs-500", "redirect", "plain"):
        counting.ask(said, {"logprobs": said.startswith("refuses"), "top_logprobs": 1})
    counting.post("/v1/score", b"{")
    counting.post("/v1/score", LOGPROBS, authorization="Bearer wrong")
    counts = counts_of(counting)
    errors = {name[1]: count for name, count in counts.items() if name[0] == "metaprobe_errors_total"}
    assert errors == {"upstream_status": 1, "upstream_redirect": 1, "invalid_json": 1, "invalid_api_key": 1}
    requests = {name[1:]: count for name, count in counts.items() if name[0] == "metaprobe_requests_total"}
    assert requests == {
        ("/v1/chat/completions", "200"): 1,
        ("/v1/chat/completions", "500"): 1,
        ("/v1/chat/completions", "502"): 1,
        ("/v1/score", "400"): 1,
        ("/v1/score", "401"): 1,
    }


def ticking(step: float) -> Any:
    """A module `time` whose clock goes on by `step` seconds each time that it is looked at."""
    ticks = itertools.count(1.0)
    return SimpleNamespace(perf_counter=lambda: step * next(ticks), time=lambda: 7.0)


def test_the_times_of_an_answer_are_the_upstreams_and_what_was_added_here(
    counting: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.production.http.proxy.time", ticking(1.0))
    monkeypatch.setattr("metaprobe.production.http.exchange.time", ticking(1.0))
    counting.chat()
    counts = counts_of(counting)
    assert (counts["metaprobe_upstream_seconds_count",], counts["metaprobe_upstream_seconds_sum",]) == (1, 1.0)
    # One second for reading the request, and one for scoring and rewriting the answer.
    assert (counts["metaprobe_added_seconds_count",], counts["metaprobe_added_seconds_sum",]) == (1, 2.0)


def test_the_log_has_one_line_of_a_request_with_its_id_address_status_and_milliseconds(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "metaprobe")
    monkeypatch.setattr("metaprobe.production.http.guard.time", ticking(0.25))
    with serving(checkpoint) as client:
        scored = client.post("/v1/score", LOGPROBS, x_request_id="mine-1")
        wrong = client.post("/v1/models/secret", LOGPROBS, authorization="Bearer wrong")
    ids = [answer.headers["metaprobe-request-id"] for answer in (scored, wrong)]
    lines = [record.getMessage() for record in caplog.records if record.name == "metaprobe.production.http.guard"]
    assert lines == [f"{ids[0]} /v1/score 200 250.0 ms", f"{ids[1]} /v1/models 401 250.0 ms"]


def test_the_counts_are_those_of_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    worker = "from metaprobe.production.http.metrics import Metrics; Metrics().gated.labels('stop').inc()"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", worker], check=True, timeout=60)
    assert counts_in(Metrics().exposition().decode())["metaprobe_gated_total", "stop"] == 2


def test_what_the_log_has_dropped_and_repeated_is_counted_from_its_beginning() -> None:
    metrics = Metrics()
    for dropped, repeated in ((0, 0), (3, 1), (3, 1), (5, 2)):
        metrics.count_log(dropped, repeated)
        counted = counts_in(metrics.exposition().decode())
        totals = (counted["metaprobe_log_dropped_total",], counted["metaprobe_log_repeated_total",])
        assert totals == (dropped, repeated)
