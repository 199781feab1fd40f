"""Measures the cost of the score log: a request with and without it, and the dashboard over many answers.

    python -m benchmarks.score_log
    python -m benchmarks.score_log --rows 10000000 --requests 4000 --json docs/measured/score_log.json

Three proxies stand before one upstream: without a log, with one, and with one that keeps texts and log-probabilities.
They are asked in turn, in blocks, at 8 connections. A request's cost is the time on the processor that all threads of
the proxy took for it, the one that writes the log included, which a busy machine changes little; the ratio's spread is
that of the blocks. The log of the dashboard is made by SQL: answers over a year, of two models and three tasks, of
which 500 of the last month are drawn and labelled. What is timed there is the processor too.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.predict import predictor
from benchmarks.serving import check, listening, processor_seconds, run_proxy, run_upstream
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.label_draw import draw_sheet
from metaprobe.production.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.production.monitoring.overview import Span, flagged_queue, overview
from metaprobe.production.monitoring.tables import contexts, insert

WAYS: dict[str, dict[str, Any]] = {
    "not logged": {},
    "logged": {"log": "a.sqlite"},
    "logged with texts and log-probabilities": {"log": "b.sqlite", "log_texts": True, "log_logprobs": True},
}
CONNECTIONS = 8
BLOCKS = 10
DAY = 86400.0
SPANS = (1, 30, 365)
KILLS = 10
SPAWN = multiprocessing.get_context("spawn")


async def ask(url: str, body: bytes, tokens: int, requests: int) -> None:
    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    async with httpx.AsyncClient(limits=limits, trust_env=False, timeout=120) as client:
        left = iter(range(requests))

        async def worker() -> None:
            for _ in left:
                answer = await client.post(url, content=body, headers={"content-type": "application/json"})
                check(answer.content, tokens, stream=b'"stream"' in body, scored=True)

        await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))


def measure_requests(folder: Path, *, requests: int, tokens: int) -> list[dict[str, Any]]:
    """Milliseconds of a processor that a request takes, for each way of logging."""
    path = folder / "random"
    predictor(path)
    up, upstream = listening()
    servers = [SPAWN.Process(target=run_upstream, args=(up, tokens), daemon=True)]
    fronts: dict[str, tuple[str, int]] = {}
    for name, given in WAYS.items():
        given = given | ({"log": str(folder / given["log"])} if given else {})
        listener, url = listening()
        servers.append(SPAWN.Process(target=run_proxy, args=(listener, path, upstream, given), daemon=True))
        fronts[name] = (f"{url}/chat/completions", len(servers) - 1)
    for server in servers:
        server.start()
    rows = []
    for stream in (False, True):
        asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello " * 50}]}
        body = json.dumps(asked | ({"stream": True} if stream else {})).encode()
        taken: dict[str, list[float]] = {name: [] for name in WAYS}
        for block in range(BLOCKS + 1):
            for name, (url, at) in fronts.items():
                pid = servers[at].pid
                assert pid is not None
                before = processor_seconds((pid,))
                asyncio.run(ask(url, body, tokens, requests // BLOCKS))
                time.sleep(0.3)  # what waits in the queue is written, and counts
                if block:  # the first one warms up
                    taken[name].append(1e3 * (processor_seconds((pid,)) - before) / (requests // BLOCKS))
        without = np.array(taken["not logged"])
        for name, found in taken.items():
            low, middle, high = np.quantile(np.array(found) / without, [0.1, 0.5, 0.9])
            rows.append({"way": name, "stream": stream, "ms": float(np.median(found)), "ratio": [middle, low, high]})
    for server in servers:
        server.terminate()
        server.join()
    return rows


def fill(path: Path, rows: int) -> None:
    """A log of so many answers over a year until now, with its sums."""
    with ScoreLog.open(path) as log, log.tables.transaction() as run:
        for model in ("llama-3.1-8b", "qwen-2.5-7b"):
            for task in ("faq", "billing", "code"):
                given = {"model": model, "checkpoint": model[0] * 64, "task": task, "tags": json.dumps({"task": task})}
                run(insert(contexts), {**given, "finish_reason": "stop", "action": ""})
    start = time.time() - 365 * DAY
    db = sqlite3.connect(path)
    db.execute("PRAGMA synchronous = OFF")
    held = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'scores'").fetchall()
    for name, _ in held:
        db.execute(f"DROP INDEX {name}")
    db.execute(
        f"WITH RECURSIVE k (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM k WHERE i < {rows - 1}), "
        "r AS (SELECT i, ((random() & 65535) + (random() & 65535) + (random() & 65535)) / 196608.0 AS u FROM k) "
        "INSERT INTO scores (request_id, time, context, score, flagged, tokens, cost_usd) "
        f"SELECT printf('r%09d', i), {start} + i * {365 * DAY / rows}, 1 + (i * 7919) % 6, u, u < 0.3, "
        "20 + (random() & 255), 0.0001 FROM r"
    )
    joined = "FROM scores s JOIN contexts c ON c.id = s.context GROUP BY 1, 2, 3, 4"
    for table, key, values in (
        (
            "hours (hour, model, checkpoint, task, shadow",
            "CAST(s.time / 3600 AS INT), c.model, c.checkpoint, c.task, 0",
            {
                "scored": "count(*)",
                "doubt_sum": "sum(score * (1 - score))",
                "tokens": "sum(tokens)",
                "cost_usd": "sum(cost_usd)",
                "priced": "count(cost_usd)",
                **dict.fromkeys(("abstained", "stopped", "escalated", "cut", "tokens_saved", "spared"), "0"),
            },
        ),
        (
            "bins (day, model, checkpoint, task, shadow, bin",
            "CAST(s.time / 86400 AS INT), c.model, c.checkpoint, c.task, 0, CAST(score * 100 AS INT)",
            {},
        ),
    ):
        sums = {"answers": "count(*)", "score_sum": "sum(score)", "flagged": "sum(flagged)", **values}
        by = joined + ", 6" * table.startswith("bins")
        db.execute(f"INSERT INTO {table}, {', '.join(sums)}) SELECT {key}, {', '.join(sums.values())} {by}")
    for _, made in held:
        db.execute(made)
    db.commit()
    db.close()


def measure_dashboard(folder: Path, rows: int) -> list[dict[str, Any]]:
    """Seconds of a processor for what the dashboard asks, the best of three."""
    path = folder / "many.sqlite"
    fill(path, rows)
    found = []
    with ScoreLog.open(path) as log:
        sheet = draw_sheet(log, min(500, rows // 100), since=time.time() - 30 * DAY, seed=0)
        log.add_labels([FeedbackLabel(row.request_id, float(i % 3 > 0)) for i, row in enumerate(sheet.rows)])
        for days in SPANS:
            span = Span(time.time() - days * DAY, time.time())
            took = []
            for _ in range(3):
                before = time.process_time()
                shown = overview(log, span)
                flagged_queue(log, span)
                took.append(time.process_time() - before)
            found.append({"days": days, "answers": int(shown["totals"]["answers"]), "seconds": min(took)})
    return found


def hand_over(path: Path, handed: Any) -> None:
    """Writes entries, some two thousand a second, until it is killed, and counts them where the killer can see it."""
    log = ScoreLog.open(path)
    while True:
        for _ in range(20):
            number = handed.value + 1
            log.write(Entry(request_id=f"r{number}", time=time.time(), model="m", checkpoint="c" * 64, score=0.5))
            handed.value = number
        time.sleep(0.01)


def measure_kills(folder: Path) -> list[dict[str, int]]:
    """Returns, for killed processes, the answers they handed over, the answers stored, and the loss that the next one
    reports."""
    found = []
    for number in range(KILLS):
        path, handed = folder / f"killed{number}.sqlite", SPAWN.Value("q", 0, lock=False)
        process = SPAWN.Process(target=hand_over, args=(path, handed), daemon=True)
        process.start()
        while handed.value < 1000:
            time.sleep(0.01)
        time.sleep(0.37 * number % 1)  # at another moment of the writer's half second each time
        process.kill()
        process.join()
        with ScoreLog.open(path) as log:
            found.append({"handed over": handed.value, "stored": len(log.columns()), "said to be lost": log.lost})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000, help="for each way of logging")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rows", type=int, default=1_000_000, help="answers in the dashboard's log")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        requests = measure_requests(Path(folder), requests=options.requests, tokens=options.tokens)
        for row in requests:
            middle, low, high = row["ratio"]
            kind = "streamed" if row["stream"] else "whole"
            print(f"{kind:8} {row['way']:40} {row['ms']:6.2f} ms a request, {middle:.3f} [{low:.3f}, {high:.3f}] times")
        shown = measure_dashboard(Path(folder), options.rows)
        for row in shown:
            print(f"dashboard of {row['days']} days, {row['answers']:,} answers: {row['seconds']:.2f} s")
        kills = measure_kills(Path(folder))
        for killed in kills:
            print("killed: " + ", ".join(f"{count:,} {what}" for what, count in killed.items()))
    if options.json:
        about = {"cores": os.cpu_count(), "python": platform.python_version(), "tokens": options.tokens}
        found = {**about, "load": round(os.getloadavg()[0], 1), "rows": options.rows, "requests": requests}
        options.json.write_text(json.dumps({**found, "dashboard": shown, "kills": kills}, indent=1) + "\n")


if __name__ == "__main__":
    main()
