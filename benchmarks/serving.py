"""Measures the cost of a proxy: processor time a request, beside the upstream asked directly, a bare reverse proxy and
LiteLLM's.

    python -m benchmarks.serving
    python -m benchmarks.serving --litellm VENV/bin/litellm --json docs/measured/serving.json
    python -m benchmarks.serving --before CHECKOUT              # a proxy of another commit takes turns with this one
    python -m benchmarks.serving --token-ms 20                  # before an upstream that takes its time, as an engine

Upstream, proxy and client are processes of their own on this machine, over loopback. The upstream is uvicorn, as that
of vLLM and SGLang is; it answers at once with a fixed completion, or stream of an event a token, with log-probabilities
and 2 alternatives a token, so what is measured is the work of the proxy and nothing of a model. The checkpoint is 300
trees on random features. The caller asks for no log-probabilities, so they are switched on, scored, and taken out
again. Each answer is compared with what it must be.

Where three processes share two cores, requests a second say which of them waited. So what counts is the processor time
that a process took for a request (/proc, Linux only): its reciprocal is what one core of its own would carry. `share`
is that of the front over that of the upstream asked directly, at most 1; with `--token-ms`, where the upstream's
processor has time to spare, it is the front's requests a second over those of the upstream. The fronts take turns, in
blocks.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks.predict import predictor
from research.engines.vllm_server import free_port

CONNECTIONS = (1, 8, 64)
MOST_AT_ONCE = {"litellm": 8}
"""Connections at which a slow one is still measured; more would take the quarter of an hour."""
BLOCKS = 4
UP_WITHIN_S = 120
PROXY = """
import socket, sys
from pathlib import Path
from benchmarks.serving import run_proxy
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(1024)
run_proxy(listener, Path(sys.argv[2]), sys.argv[3], {})
"""
"""Program that serves the proxy of the checkout that stands in its PYTHONPATH: port, checkpoint, upstream."""
BEFORE = "before"
"""Name of the front that is the proxy of another checkout."""
OURS = ("metaprobe", BEFORE)
"""Fronts whose answers have a verdict."""


@dataclass(frozen=True)
class Front:
    """Describes a server that a client asks in place of the upstream."""

    name: str
    url: str
    pids: tuple[int, ...]
    """Its processes; of the upstream itself none besides."""


def run_upstream(listener: socket.socket, tokens: int, token_s: float = 0.0) -> None:
    """`token_s`: seconds that each token takes."""
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
        lines = [json.dumps({**known, "choices": [choice]}) for choice in choices]
        return [f"data: {line}\n\n".encode() for line in [*lines, "[DONE]"]]

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
        body = json.loads(raw or b"{}")  # LiteLLM asks without one whether it is there
        kind = b"text/event-stream" if body.get("stream") else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        if body.get("stream"):
            for event in streams[bool(body.get("logprobs"))]:
                await send({"type": "http.response.body", "body": event, "more_body": True})
                # Without a pause a fast loop would write them all at once, and an engine has one at a time.
                await asyncio.sleep(token_s)
        elif token_s:
            await asyncio.sleep(token_s * tokens)
        whole = b"" if body.get("stream") else rich if body.get("logprobs") else plain
        await send({"type": "http.response.body", "body": whole})

    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=75)
    uvicorn.Server(config).run(sockets=[listener])


def run_proxy(listener: socket.socket, path: Path, upstream: str, given: Mapping[str, Any]) -> None:
    """`given`: further settings."""
    import uvicorn

    from metaprobe.production.http.app import server_config
    from metaprobe.production.http.settings import Settings

    settings = Settings(checkpoint=path, upstream=upstream, auth=False, **given)
    uvicorn.Server(server_config(settings, log_config=None)).run(sockets=[listener])


def listening() -> tuple[socket.socket, str]:
    # Named as TCP, or asyncio leaves Nagle's algorithm on, and every answer in two writes takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def processor_seconds(pids: tuple[int, ...]) -> float:
    """Returns the processor seconds that these processes have taken so far."""
    threads = (thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def check(content: bytes, tokens: int, *, stream: bool, scored: bool) -> None:
    """Raises where an answer is not what it must be."""
    if stream:
        events = [event for event in content.split(b"\n\n") if event.startswith(b"data: ")]
        assert events[-1] == b"data: [DONE]", content[-300:]
        chunks = [json.loads(event[6:]) for event in events[:-1]]
        said = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
        verdict = chunks[-1].get("metaprobe")
    else:
        whole = json.loads(content)
        said, verdict = whole["choices"][0]["message"]["content"], whole.get("metaprobe")
    assert said == " w" * tokens, said[:100]
    assert (verdict is not None and verdict["score"] is not None) is scored


async def ask(session: aiohttp.ClientSession, front: Front, body: bytes) -> tuple[float, bytes]:
    """Milliseconds to the whole answer, and the answer."""
    started = time.perf_counter()
    async with session.post(front.url, data=body, headers={"content-type": "application/json"}) as answer:
        content = await answer.read()
    assert answer.status == 200, content[:300]
    return 1e3 * (time.perf_counter() - started), content


async def measure(
    fronts: list[Front],
    upstream_pid: int,
    *,
    connections: int,
    requests: int,
    tokens: int,
    stream: bool,
    waits: bool = False,
    blocks: int = BLOCKS,
) -> list[dict[str, Any]]:
    """Returns a row for each front. `waits`: whether the upstream takes its time for each token."""
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    body = json.dumps(asked | ({"stream": True} if stream else {})).encode()
    times: dict[str, list[float]] = {front.name: [] for front in fronts}
    seconds: dict[str, list[np.ndarray[Any, Any]]] = {front.name: [] for front in fronts}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)  # less than any of them keeps an idle connection
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:
        for block in range(blocks + 1):
            for front in fronts:
                left = iter(range(max(connections, requests // blocks)))
                kept: list[bytes] = []

                async def worker(front: Front = front, left: Any = left, kept: list[bytes] = kept) -> list[float]:
                    taken = []
                    for _ in left:
                        took, content = await ask(session, front, body)
                        taken.append(took)
                        kept.append(content)
                    return taken

                before = clocks(front, upstream_pid)
                done = await asyncio.gather(*(worker() for _ in range(connections)))
                spent = clocks(front, upstream_pid) - before
                for content in kept:
                    check(content, tokens, stream=stream, scored=front.name in OURS)
                if block:  # the first one warms up
                    seconds[front.name].append(spent / len(kept))
                    times[front.name] += [took for part in done for took in part]
    rows = []
    for front in fronts:
        taken, (wall, own, up) = times[front.name], np.mean(seconds[front.name], axis=0)
        p50, p99 = np.quantile(taken, [0.5, 0.99])
        row = {"front": front.name, "stream": stream, "connections": connections, "requests": len(taken)}
        row |= {"per_s": 1 / wall, "p50_ms": p50, "p99_ms": p99}
        row |= {"cpu_ms": 1e3 * own, "upstream_cpu_ms": 1e3 * up}
        rows.append(row)
    direct = rows[0]
    for row in rows[1:]:
        of_time = direct["upstream_cpu_ms"] / row["cpu_ms"]
        row["share"] = row["per_s"] / direct["per_s"] if waits else min(1.0, of_time)
    if BEFORE in seconds:
        for row in rows[1:]:
            ratios = np.array(seconds[row["front"]])[:, :2] / np.array(seconds[BEFORE])[:, :2]
            wall, own = np.median(ratios, axis=0)
            row |= {"per_s_of_before": 1 / wall, "cpu_of_before": own}
    return [{k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()} for row in rows]


def clocks(front: Front, upstream_pid: int) -> "np.ndarray[Any, Any]":
    """Seconds: of the wall, of the front's processes, of the upstream's."""
    return np.array([time.perf_counter(), processor_seconds(front.pids), processor_seconds((upstream_pid,))])


def children(pid: int) -> tuple[int, ...]:
    """The process and all that it has started."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (pid, *(p for child in below for p in children(int(child))))


@contextmanager
def program(
    name: str, command: list[str], port: int, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Front]:
    """A program that stands before the upstream, once it listens. `environment`: further variables."""
    with (folder / f"{name}.log").open("wb") as log:
        env = {**os.environ, **(environment or {})}
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=env)
    try:
        for _ in range(10 * UP_WITHIN_S):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended: {(folder / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.1)
        else:
            raise TimeoutError(f"{name} does not listen: {(folder / f'{name}.log').read_text()[-2000:]}")
        time.sleep(1)
        yield Front(name, f"http://127.0.0.1:{port}/v1/chat/completions", children(process.pid))
    finally:
        process.terminate()
        process.wait(timeout=30)


def nginx(upstream: str, folder: Path) -> tuple[list[str], int]:
    """A bare reverse proxy that reads nothing, with connections to the upstream kept open."""
    port, host = free_port(), upstream.removeprefix("http://").partition("/")[0]
    (folder / "nginx.conf").write_text(
        f"worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;"
        f"events {{ worker_connections 1024; }}"
        f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxied;"
        f" fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;"
        f" upstream u {{ server {host}; keepalive 128; }}"
        f" server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://u; proxy_http_version 1.1;"
        f' proxy_set_header Connection ""; proxy_buffering off; }} }} }}\n'
    )
    return ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")], port


def proxy_of(checkout: Path, checkpoint: Path, upstream: str) -> tuple[list[str], int, dict[str, str]]:
    """Returns command, port and environment of the proxy of a checkout, which may be of another commit."""
    port, root = free_port(), checkout.resolve()
    command = [sys.executable, "-c", PROXY, str(port), str(checkpoint), upstream]
    return command, port, {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}


def litellm(executable: Path, upstream: str, folder: Path) -> tuple[list[str], int]:
    port = free_port()
    model = {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": upstream, "api_key": "none"}}
    (folder / "litellm.yaml").write_text(json.dumps({"model_list": [model], "litellm_settings": {"telemetry": False}}))
    host = ["--host", "127.0.0.1", "--port", str(port)]
    return [str(executable.absolute()), "--config", str(folder / "litellm.yaml"), *host, "--num_workers", "1"], port


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000, help="a row, of each kind")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--litellm", type=Path, help="the program `litellm`, of an environment with litellm[proxy]")
    parser.add_argument("--before", type=Path, help="a checkout of another commit, whose proxy takes turns")
    parser.add_argument("--token-ms", type=float, default=0.0, help="milliseconds that the upstream takes for a token")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="turns of each front")
    parser.add_argument("--only", choices=("whole", "stream"), help="answers of this kind alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        path = options.checkpoint or folder / "random"
        if not options.checkpoint:
            predictor(path)
        up, upstream = listening()
        given = (up, options.tokens, options.token_ms / 1e3)
        server = spawn.Process(target=run_upstream, args=given, daemon=True)
        server.start()
        stack.callback(server.terminate)
        upstream_pid = int(server.pid or 0)
        fronts = [Front("upstream", f"{upstream}/chat/completions", ())]
        for front, checkout in (("metaprobe", Path(__file__).parents[1]), (BEFORE, options.before)):
            if checkout:
                command, port, environment = proxy_of(checkout, path, upstream)
                fronts.append(stack.enter_context(program(front, command, port, folder, environment)))
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load()}")
        print("front      stream  connections  requests   req/s   p50, p99 ms     CPU ms a request  share")
        if shutil.which("nginx"):
            fronts.append(stack.enter_context(program("nginx", *nginx(upstream, folder), folder)))
        if options.litellm:
            keyless = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}  # it listens on loopback only
            started = litellm(options.litellm, upstream, folder)
            fronts.append(stack.enter_context(program("litellm", *started, folder, keyless)))
        kind = {"requests": options.requests, "tokens": options.tokens, "blocks": options.blocks}
        for stream in (False, True):
            if options.only == ("whole" if stream else "stream"):
                continue
            for connections in CONNECTIONS:
                asked = [front for front in fronts if connections <= MOST_AT_ONCE.get(front.name, connections)]
                given_row = {**kind, "stream": stream, "waits": options.token_ms > 0}
                found = asyncio.run(measure(asked, upstream_pid, connections=connections, **given_row))
                rows += found
                for row in found:
                    print(line(row), flush=True)
        print("lost: 0 (every answer was compared; one that is missing or wrong ends this program)")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        about = {"cores": os.cpu_count(), "python": platform.python_version(), "tokens": options.tokens, "load": load()}
        options.json.write_text(json.dumps({**about, "lost": 0, "rows": rows}, indent=1) + "\n")


def load() -> float:
    """The machine's load, its own included."""
    return round(os.getloadavg()[0], 1)


def line(row: dict[str, Any]) -> str:
    cpu = row["upstream_cpu_ms"] if row["front"] == "upstream" else row["cpu_ms"]
    before = (
        "  of before: {per_s_of_before:.2f} req/s, {cpu_of_before:.2f} CPU".format(**row)
        if "cpu_of_before" in row
        else ""
    )
    return (
        f"{row['front']:9}  {'yes' if row['stream'] else 'no':6}  {row['connections']:11}  {row['requests']:8}"
        f"  {row['per_s']:6.0f}  {row['p50_ms']:6.2f} {row['p99_ms']:7.2f}  {cpu:16.2f}  {row.get('share', 1.0):5.2f}"
        f"{before}"
    )


if __name__ == "__main__":
    main()
