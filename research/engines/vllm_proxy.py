"""Compares an engine's streams with and without the proxy: vLLM's server asked directly and through `metaprobe serve`,
in turn.

    python -m research.engines.vllm_proxy --vllm PYTHON --out docs/measured/vllm_proxy.json

PYTHON is the interpreter of an environment with vLLM (docs/engines.md). `benchmarks/serving.py` has the same
with an upstream that sends bytes that were made beforehand; here every token is computed.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import httpx

from metaprobe.llms.weights import resolve
from research.blocks import write_figures
from research.engines.vllm_server import ASKED, free_port, started, stop, wait_for

CONNECTIONS = (1, 8, 64)
TOKENS, ROUNDS = 64, 5
LEAST = 16
"""Requests of a turn; as many as there are connections where these are more."""


async def turn(port: int, connections: int, number: int) -> tuple[float, list[bool]]:
    """Tokens a second of streams, so many at once, and of each whether it ended with a verdict."""
    left = iter(range(max(LEAST, connections)))
    ended: list[bool] = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600, trust_env=False) as client:

        async def worker() -> None:
            for i in left:
                said = f"Please {ASKED[i % len(ASKED)]} ({number}.{i})."
                body = {"model": "m", "messages": [{"role": "user", "content": said}], "max_tokens": TOKENS}
                body |= {"temperature": 0.0, "stream": True, "ignore_eos": True}
                async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    answer.raise_for_status()
                    events = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
                assert events[-1] == "data: [DONE]", events[-1]
                ended.append("metaprobe" in json.loads(events[-2].removeprefix("data: ")))

        begun = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(connections)))
        return TOKENS * len(ended) / (time.perf_counter() - begun), ended


def measured(direct: int, proxy: int) -> dict[str, Any]:
    """Rates in turn, and the share of the direct rate that the proxy leaves, by connections."""
    rows = []
    asyncio.run(turn(direct, 8, 98)), asyncio.run(turn(proxy, 8, 99))
    for connections in CONNECTIONS:
        rates: dict[int, list[float]] = {direct: [], proxy: []}
        for number in range(ROUNDS):
            for port in (direct, proxy) if number % 2 else (proxy, direct):
                rate, ended = asyncio.run(turn(port, connections, number))
                assert all(ended) is (port == proxy), "every proxied stream ends with a verdict, and no other"
                rates[port].append(rate)
        shares = sorted(b / a for a, b in zip(rates[direct], rates[proxy], strict=True))
        of_port = {name: statistics.median(rates[port]) for name, port in (("direct", direct), ("proxy", proxy))}
        ends = {"share": statistics.median(shares), "least": shares[0], "most": shares[-1]}
        rows.append({"connections": connections, **of_port, **ends})
    return {"tokens": TOKENS, "rounds": ROUNDS, "rows": rows}


@click.command()
@click.option("--vllm", required=True)
@click.option("--model", default="smollm2-135m")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(vllm: str, model: str, out: Path) -> None:
    """Starts server and proxy, measures, and writes what was found."""
    logs = [out.with_suffix(f".{name}.log") for name in ("engine", "proxy")]
    direct, proxy = free_port(), free_port()
    command = [sys.executable, "-m", "metaprobe", "serve", "bundled:quality", "--no-auth", "--port", str(proxy)]
    command += ["--upstream", f"http://127.0.0.1:{direct}/v1", "--on-mismatch", "ignore"]
    servers = [
        started(vllm, resolve(model).location, direct, logs[0]),
        subprocess.Popen(command, stdout=logs[1].open("wb"), stderr=subprocess.STDOUT, start_new_session=True),
    ]
    try:
        wait_for(direct, servers[0], logs[0])
        found = measured(direct, proxy)
    finally:
        stop(servers)
    for log in logs:
        log.unlink()
    write_figures(out, found)
    click.echo(json.dumps(found["rows"]))


if __name__ == "__main__":
    main()
