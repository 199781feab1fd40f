"""What the middleware costs inside vLLM's own server: two servers, one with it, asked in turn; and what it says.

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

MIDDLEWARE = "metaprobe.serving.http.middleware.VerdictMiddleware"
START_S = 1800
AT_ONCE, TOKENS, ROUNDS = 16, 32, 6
ASKED = ("explain why the sky is blue", "count to twenty in words", "describe Paris", "say what a prime number is")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def started(vllm: str, folder: str, port: int, log: Path, *more: str) -> subprocess.Popen[bytes]:
    """The server in a process group of its own."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [vllm, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", "m"]
    command += ["--port", str(port), "--host", "127.0.0.1", "--enforce-eager", "--max-model-len", "1024", *more]
    return subprocess.Popen(
        command, env=environment, stdout=log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True
    )


def wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> float:
    """Seconds until it answers. Raises `ClickException` where it ends, or is not there in time."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < START_S:
        if server.poll() is not None:
            raise click.ClickException(f"the server ended with {server.returncode}: {log.read_text()[-1500:]}")
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).status_code == 200:
                return time.perf_counter() - begun
        except httpx.HTTPError:
            pass
        time.sleep(2)
    raise click.ClickException(f"the server did not answer within {START_S} s: {log.read_text()[-1500:]}")


def stop(servers: list[subprocess.Popen[bytes]]) -> None:
    """Ends the servers and all that they started."""
    for server in servers:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


async def burst(port: int, number: int, **more: Any) -> tuple[float, list[dict[str, Any]]]:
    """Tokens a second of requests that are asked at once, and the answers."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600, trust_env=False) as client:

        async def ask(i: int) -> dict[str, Any]:
            messages = [{"role": "user", "content": f"Please {ASKED[i % len(ASKED)]} ({number}.{i})."}]
            body = {"model": "m", "messages": messages, "max_tokens": TOKENS, "temperature": 0.0, **more}
            answer = await client.post("/v1/chat/completions", json=body)
            answer.raise_for_status()
            return dict(answer.json())

        begun = time.perf_counter()
        answers = await asyncio.gather(*(ask(i) for i in range(AT_ONCE)))
        made = sum(answer["usage"]["completion_tokens"] for answer in answers)
        return made / (time.perf_counter() - begun), list(answers)


def measured(plain: int, inside: int) -> dict[str, Any]:
    """Rates in turn, and whether verdicts are those of the plain server's log-probabilities."""
    from metaprobe.probes.quality import QualityPredictor

    predictor = QualityPredictor.load(on_mismatch="ignore")
    rates: dict[str, list[float]] = {"plain": [], "plain, with log-probabilities": [], "middleware": []}
    differences: list[float] = []
    asyncio.run(burst(plain, 99)), asyncio.run(burst(inside, 99))
    for number in range(ROUNDS):
        order = list(rates)
        for kind in order[number % 3 :] + order[: number % 3]:
            port = inside if kind == "middleware" else plain
            more = {"logprobs": True, "top_logprobs": 1} if "with" in kind else {}
            rate, answers = asyncio.run(burst(port, number, **more))
            rates[kind].append(rate)
            if kind == "middleware":
                verdicts = [answer["metaprobe"]["score"] for answer in answers]
                hidden = all(answer["choices"][0]["logprobs"] is None for answer in answers)
            elif "with" in kind:
                expected = [predictor.predict(answer).score for answer in answers]
        differences += [abs(a - b) for a, b in zip(verdicts, expected, strict=True)]
        assert hidden
    middle = {kind: statistics.median(found) for kind, found in rates.items()}
    return {
        "rates": rates,
        "median": middle,
        "middleware over plain": statistics.median(
            a / b for a, b in zip(rates["middleware"], rates["plain"], strict=True)
        ),
        "middleware over the same numbers": statistics.median(
            a / b for a, b in zip(rates["middleware"], rates["plain, with log-probabilities"], strict=True)
        ),
        "largest difference of a score": max(differences),
        "answers": len(differences),
    }


@click.command()
@click.option("--vllm", required=True)
@click.option("--model", default="smollm2-135m")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(vllm: str, model: str, out: Path) -> None:
    """Starts both servers, measures, and writes what was found."""
    folder = resolve(model).location
    logs = [out.with_suffix(f".{name}.log") for name in ("plain", "inside")]
    ports = [free_port(), free_port()]
    servers = [
        started(vllm, folder, ports[0], logs[0]),
        started(vllm, folder, ports[1], logs[1], "--middleware", MIDDLEWARE),
    ]
    try:
        for port, server, log in zip(ports, servers, logs, strict=True):
            click.echo(f"ready after {wait_for(port, server, log):.0f} s")
        found = measured(*ports)
    finally:
        stop(servers)
    for log in logs:
        log.unlink()
    out.write_text(json.dumps(found, indent=1) + "\n")
    click.echo(json.dumps({name: value for name, value in found.items() if name != "rates"}))


if __name__ == "__main__":
    main()
