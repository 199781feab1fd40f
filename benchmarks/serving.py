"""What the proxy adds: requests a second and latency, beside asking the same upstream directly. Nothing may be lost.

    python -m benchmarks.serving
    python -m benchmarks.serving --requests 2000 --tokens 256 --json out/serving.json

Upstream, proxy and client are three processes on this machine, over loopback: the upstream answers at once with a fixed
completion (or stream) with log-probabilities and 2 alternatives a token, so what is measured is the proxy's own work
and nothing of a model. The checkpoint is 300 trees on random features. The caller asks for no log-probabilities, so
they are switched on, scored, and taken out again. Each request's answer is compared with what it must be. Direct and
proxied requests take turns, in blocks. Added latency is the difference of the quantiles.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

CONNECTIONS = (1, 8, 64)
BLOCKS = 4


def checkpoint(path: Path) -> Path:
    """300 trees of up to 31 leaves on the full schema."""
    import lightgbm

    from metaprobe.checkpoints import Draft, save_checkpoint
    from metaprobe.probes.features import features, schema
    from metaprobe.training.common.calibrate import Platt
    from metaprobe.training.common.graphs import trees_graph
    from metaprobe.training.common.trees import Trees, float32_thresholds

    rng = np.random.default_rng(0)
    full = schema("full")
    X = features(full, [-rng.exponential(0.5, n).astype(np.float32) for n in rng.integers(5, 400, 1500)])
    y = (np.nan_to_num(X[:, 0]) + rng.normal(size=len(X)) > -0.5).astype(int)
    options = {"objective": "binary", "num_leaves": 31, "verbose": -1, "num_threads": 1, "seed": 0}
    booster = float32_thresholds(lightgbm.train(options, lightgbm.Dataset(X, y), 300))
    trees, platt = Trees(booster, options, float("nan")), Platt(1.0, 0.0)
    graph = trees_graph({"correct": (trees, platt)}, width=X.shape[1])
    expected = platt.probability(trees.score(X))[:, None].astype(np.float32)
    draft = Draft(kind="quality", contract={"schema": "full", "features": list(full.names)}, thresholds={"flag": 0.5})
    save_checkpoint(
        path, draft, model=graph, golden_inputs={"features": X}, expected={"correct": expected}, card="# Random\n"
    )
    return path


def run_upstream(listener: socket.socket, tokens: int) -> None:
    import uvicorn

    entries = [
        {"token": " w", "logprob": -0.1 - i % 7 / 8, "bytes": [32, 119], "top_logprobs": [
            {"token": " w", "logprob": -0.1, "bytes": None}, {"token": " v", "logprob": -3.5, "bytes": None}]}
        for i in range(tokens)
    ]  # fmt: skip
    known = {"id": "c", "created": 1, "model": "m"}
    choice = {"index": 0, "message": {"role": "assistant", "content": " w" * tokens}, "finish_reason": "stop"}
    plain = json.dumps({**known, "choices": [{**choice, "logprobs": None}]}).encode()
    rich = json.dumps({**known, "choices": [{**choice, "logprobs": {"content": entries}}]}).encode()

    def events(logprobs: bool) -> list[bytes]:
        choices = [
            {"index": 0, "delta": {"content": " w"}, "logprobs": {"content": [e]} if logprobs else None,
             "finish_reason": None} for e in entries
        ]  # fmt: skip
        choices.append({"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"})
        return [
            *(b"data: " + json.dumps({**known, "choices": [c]}).encode() + b"\n\n" for c in choices),
            b"data: [DONE]\n\n",
        ]

    streams = {asked: events(asked) for asked in (False, True)}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        raw = b""
        while True:
            message = await receive()
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        body = json.loads(raw)
        kind = b"text/event-stream" if body.get("stream") else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        if body.get("stream"):
            for event in streams[bool(body.get("logprobs"))]:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send(
            {
                "type": "http.response.body",
                "body": b"" if body.get("stream") else rich if body.get("logprobs") else plain,
            }
        )

    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=75)
    uvicorn.Server(config).run(sockets=[listener])


def run_proxy(listener: socket.socket, path: Path, upstream: str) -> None:
    import uvicorn

    from metaprobe.serving.http.run_server import server_config
    from metaprobe.serving.http.settings import Settings

    settings = Settings(checkpoint=path, upstream=upstream, auth=False)
    uvicorn.Server(server_config(settings, log_config=None)).run(sockets=[listener])


async def ask(client: httpx.AsyncClient, url: str, body: bytes, tokens: int, proxied: bool) -> float:
    """Milliseconds to the whole answer, which is checked."""
    started = time.perf_counter()
    answer = await client.post(url, content=body, headers={"content-type": "application/json"})
    took = time.perf_counter() - started
    assert answer.status_code == 200, answer.text[:300]
    if b'"stream"' in body:
        events = answer.content.split(b"\n\n")
        assert len(events) == tokens + 3 + proxied, (len(events), answer.text[-300:])
        verdict = json.loads(events[-3][6:]).get("metaprobe")
        assert events[-2] == b"data: [DONE]"
    else:
        whole = answer.json()
        assert whole["choices"][0]["message"]["content"] == " w" * tokens
        assert whole["choices"][0]["logprobs"] is None
        verdict = whole.get("metaprobe")
    assert (verdict is not None and verdict["score"] is not None) is proxied
    return 1e3 * took


async def measure(
    urls: dict[str, str], *, connections: int, requests: int, tokens: int, stream: bool
) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    body = json.dumps(asked | ({"stream": True} if stream else {})).encode()
    times: dict[str, list[float]] = {name: [] for name in urls}
    seconds = dict.fromkeys(urls, 0.0)
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    async with httpx.AsyncClient(limits=limits, trust_env=False, timeout=60) as client:
        for block in range(BLOCKS + 1):
            for name, url in urls.items():
                left = iter(range(max(connections, requests // BLOCKS)))

                async def worker(url: str = url, name: str = name, left: Any = left) -> list[float]:
                    return [await ask(client, url, body, tokens, name == "proxy") for _ in left]

                started = time.perf_counter()
                done = await asyncio.gather(*(worker() for _ in range(connections)))
                if block:  # the first one warms up
                    seconds[name] += time.perf_counter() - started
                    times[name] += [took for part in done for took in part]
    row: dict[str, Any] = {"connections": connections, "stream": stream, "requests": len(times["proxy"])}
    for name, taken in times.items():
        p50, p99 = np.quantile(taken, [0.5, 0.99])
        row |= {f"{name}_per_s": len(taken) / seconds[name], f"{name}_p50_ms": p50, f"{name}_p99_ms": p99}
    row |= {f"added_{q}_ms": row[f"proxy_{q}_ms"] - row[f"direct_{q}_ms"] for q in ("p50", "p99")}
    return {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}


def listening() -> tuple[socket.socket, str]:
    # Named as TCP, or asyncio leaves Nagle's algorithm on, and every answer in two writes takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000, help="a row, of each kind")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = options.checkpoint or checkpoint(Path(folder) / "random")
        (up, upstream), (front, proxy) = listening(), listening()
        servers = [
            spawn.Process(target=run_upstream, args=(up, options.tokens), daemon=True),
            spawn.Process(target=run_proxy, args=(front, path, upstream), daemon=True),
        ]
        for server in servers:
            server.start()
        urls = {"direct": f"{upstream}/chat/completions", "proxy": f"{proxy}/chat/completions"}
        print(
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {options.tokens} tokens"
        )
        print(
            "stream  connections  requests   direct/s    proxy/s  direct p50, p99 ms   proxy p50, p99 ms"
            "   added p50, p99 ms"
        )
        for stream in (False, True):
            for connections in CONNECTIONS:
                row = asyncio.run(
                    measure(
                        urls, connections=connections, requests=options.requests, tokens=options.tokens, stream=stream
                    )
                )
                rows.append(row)
                columns = [f"{row[f'{n}_p50_ms']:9.2f} {row[f'{n}_p99_ms']:9.2f}" for n in ("direct", "proxy", "added")]
                print(
                    f"{'yes' if stream else 'no':6}  {connections:11}  {row['requests']:8}  {row['direct_per_s']:9.0f}"
                    f"  {row['proxy_per_s']:9.0f} {' '.join(columns)}",
                    flush=True,
                )
        print("lost: 0 (every answer was compared; one that is missing or wrong ends this program)")
        for server in servers:
            server.terminate()
            server.join()
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        about = {"cores": os.cpu_count(), "python": platform.python_version(), "tokens": options.tokens}
        options.json.write_text(json.dumps({**about, "lost": 0, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
