"""Measures the cost of the middleware inside vLLM's own server: two servers, one with it, asked in turn.

    python -m research.engines.vllm_server --vllm PYTHON --out docs/measured/vllm_server.json

PYTHON is the interpreter of an environment with vLLM and metaprobe (docs/engines.md). Servers of a busy machine are
slow to start: each is given half an hour.
"""

import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import click
import httpx

from metaprobe.llms.weights import resolve
from research.blocks import write_figures

MIDDLEWARE = "metaprobe.production.http.middleware.VerdictMiddleware"
START_S = 1800
AT_ONCE, TOKENS, STARTS = 16, 32, 5
ASKED = ("explain why the sky is blue", "count to twenty in words", "describe Paris", "say what a prime number is")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


OFFLINE = {
    **{"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
    **{"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
}
"""Environment in which vLLM runs on one thread of a CPU, and asks nobody."""


def started(vllm: str, folder: str, port: int, log: Path, *more: str) -> subprocess.Popen[bytes]:
    """The server in a process group of its own."""
    environment = os.environ | OFFLINE | {"VLLM_CPU_OMP_THREADS_BIND": "0"}
    command = [vllm, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", "m"]
    command += ["--port", str(port), "--host", "127.0.0.1", "--enforce-eager", "--max-model-len", "1024", *more]
    with log.open("wb") as said:
        return subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)


def wait_for(port: int, server: subprocess.Popen[bytes], log: Path, seconds: float = START_S) -> float:
    """Seconds until it answers. Raises `ClickException` where it ends, or is not there in time."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        if server.poll() is not None:
            raise click.ClickException(f"the server ended with {server.returncode}: {log.read_text()[-1500:]}")
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).status_code == 200:
                return time.perf_counter() - begun
        except httpx.HTTPError:
            pass
        time.sleep(2)
    raise click.ClickException(f"the server did not answer within {seconds:.0f} s: {log.read_text()[-1500:]}")


def stop(servers: list[subprocess.Popen[bytes]]) -> None:
    """Ends the servers and all that they started."""
    for server in servers:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGCONT)
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


async def burst(port: int, number: int, **more: Any) -> tuple[float, list[dict[str, Any]]]:
    """Tokens a second of requests that are asked at once, and the answers."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600, trust_env=False) as client:

        async def ask(i: int) -> dict[str, Any]:
            messages = [{"role": "user", "content": f"Please {ASKED[i % len(ASKED)]} ({number}.{i})."}]
            # No answer ends at its end token here, so that all kinds write as many tokens.
            body = {"model": "m", "messages": messages, "max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True}
            body |= more
            answer = await client.post("/v1/chat/completions", json=body)
            answer.raise_for_status()
            return dict(answer.json())

        begun = time.perf_counter()
        answers = await asyncio.gather(*(ask(i) for i in range(AT_ONCE)))
        made = sum(answer["usage"]["completion_tokens"] for answer in answers)
        return made / (time.perf_counter() - begun), list(answers)


def alone(server: subprocess.Popen[bytes], servers: list[subprocess.Popen[bytes]]) -> None:
    """Puts the others to sleep: a server that nobody asks looks for work without a pause, on the same processor."""
    for one in servers:
        os.killpg(one.pid, signal.SIGCONT if one is server else signal.SIGSTOP)


def measured(ports: list[int], servers: list[subprocess.Popen[bytes]], rounds: int) -> dict[str, Any]:
    """Rates in turn, and whether verdicts are those of the plain server's log-probabilities."""
    from metaprobe.probes.quality import QualityPredictor

    predictor = QualityPredictor.load(on_mismatch="ignore")
    asked: dict[str, tuple[int, dict[str, Any]]] = {
        "plain": (0, {}),
        "plain, with log-probabilities": (0, {"logprobs": True, "top_logprobs": 1}),
        "middleware": (1, {}),
    }
    rates: dict[str, list[float]] = {kind: [] for kind in asked}
    differences: list[float] = []
    lengths: set[int] = set()
    for server, port in zip(servers, ports, strict=True):
        alone(server, servers)
        asyncio.run(burst(port, 99))
    for number in range(rounds):
        order = list(rates)
        for kind in order[number % len(order) :] + order[: number % len(order)]:
            which, more = asked[kind]
            alone(servers[which], servers)
            rate, answers = asyncio.run(burst(ports[which], number, **more))
            rates[kind].append(rate)
            lengths.add(sum(answer["usage"]["completion_tokens"] for answer in answers))
            if kind == "middleware":
                verdicts = [answer["metaprobe"]["score"] for answer in answers]
                hidden = all(answer["choices"][0]["logprobs"] is None for answer in answers)
            elif "with" in kind:
                expected = [predictor.predict(answer).score for answer in answers]
        differences += [abs(a - b) for a, b in zip(verdicts, expected, strict=True)]
        assert hidden
    assert len(lengths) == 1, lengths
    return {"rates": rates, "differences": differences}


def over(starts: list[dict[str, Any]], kind: str, other: str) -> list[float]:
    """For each start of the servers, the median over its rounds of one kind's rate over the other's."""
    rates = [one["rates"] for one in starts]
    return [statistics.median(a / b for a, b in zip(of[kind], of[other], strict=True)) for of in rates]


@click.command()
@click.option("--vllm", required=True)
@click.option("--model", default="smollm2-135m")
@click.option("--rounds", default=4)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(vllm: str, model: str, rounds: int, out: Path) -> None:
    """Starts both servers, measures, and writes what was found."""
    folder = resolve(model).location
    starts = [one_start(vllm, folder, rounds, out) for _ in range(STARTS)]
    kinds = list(starts[0]["rates"])
    differences = [difference for one in starts for difference in one["differences"]]
    found = {
        "starts": starts,
        "median": {kind: statistics.median(rate for one in starts for rate in one["rates"][kind]) for kind in kinds},
        "over plain": {kind: over(starts, kind, "plain") for kind in kinds},
        "over the same numbers": over(starts, "middleware", "plain, with log-probabilities"),
        "largest difference of a score": max(differences),
        "answers": len(differences),
    }
    write_figures(out, found)
    click.echo(json.dumps({name: value for name, value in found.items() if name != "starts"}))


def one_start(vllm: str, folder: str, rounds: int, out: Path) -> dict[str, Any]:
    """Returns the figures of `measured` for two servers started for it: the same server is now faster, now slower."""
    logs = [out.with_suffix(f".{name}.log") for name in ("plain", "inside")]
    ports = [free_port(), free_port()]
    servers = [
        started(vllm, folder, ports[0], logs[0]),
        started(vllm, folder, ports[1], logs[1], "--middleware", MIDDLEWARE),
    ]
    try:
        for port, server, log in zip(ports, servers, logs, strict=True):
            click.echo(f"ready after {wait_for(port, server, log):.0f} s")
        found = measured(ports, servers, rounds)
    finally:
        stop(servers)
    for log in logs:
        log.unlink()
    return found


if __name__ == "__main__":
    main()
