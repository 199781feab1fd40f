"""Mixed traffic through the proxy for as long as one likes, before a real server with a real model that is killed now
and then, with hostile requests among the honest ones. Nothing may be lost, cut or mixed up, no request that the proxy
answers by itself may wait for a hostile one, and memory may not grow.

    python scripts/soak.py --minutes 30
    python scripts/soak.py --minutes 2 --model model.gguf --kill-every 40

Needs the extras `serve` and `api` and llama-cpp-python with its server (`make .venv/server.stamp`); the model is
SmolLM2-135M (`make .venv/weights.stamp`) where none is named. Each request has a marker of its own, which a grammar
makes the model say, and a request id, which must come back: an answer that bears another one is `mixed`. A request that
ends in an error while the upstream is down or is killed is `told`; ended in any other way without its answer it is
`lost`, and a stream that ends without a finish reason and without an error is `cut`. A caller that goes away by itself
has `left`. A hostile request must be `refused` with a 4xx status or answered `whole`. Every answer that a caller got
whole must be in the score log, under the id that the caller was told. Exit code 1 if anything is lost, cut or mixed, if
an honest batch to /v1/score takes longer than 2 s, if the proxy's log holds an error, or if its resident memory or open
descriptors grow in the second half of the run.
"""

import argparse
import asyncio
import gzip
import json
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import openai

UP_WITHIN_S = 180
ANSWER_WITHIN_S = 300
HEADER_TIMEOUT_S = 5
GROWTH_MB, GROWTH_FILES = 16, 16
"""Megabytes and descriptors that the second half of a run may add. The first half warms up: caches fill, and Python's
allocator takes what the largest bodies need. A leak goes on."""
HONEST_WITHIN_S = 2.0
"""A batch of three short answers takes a few milliseconds; a longer wait means that a hostile request held it up."""
OUTCOMES = ("whole", "told", "left", "refused", "lost", "cut", "mixed")
BAD = ("lost", "cut", "mixed")


class Mismatched(Exception):
    """The answer belongs to another request."""


class Down(Exception):
    """The proxy says that the upstream cannot be reached, or broke off."""


class Cut(Exception):
    """The stream ended before its answer did, and did not say so."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


class Upstream:
    """llama.cpp's server on one port; killed and started again."""

    def __init__(self, model: Path, log: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}/v1"
        self._command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--port", str(port)]
        self._command += ["--host", "127.0.0.1", "--model_alias", "m", "--logits_all", "true", "--n_ctx", "2048"]
        # By default a new request ends the stream of the one before.
        self._command += ["--interrupt_requests", "false", "--n_threads", "1", "--n_threads_batch", "1"]
        self._log = log
        self._server: subprocess.Popen[bytes] | None = None
        self.up = False
        self.kills = 0

    async def start(self) -> None:
        with self._log.open("ab") as file:
            self._server = subprocess.Popen(self._command, stdout=file, stderr=file)
        deadline = time.monotonic() + UP_WITHIN_S
        while not await listens(self.url):
            if self._server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the upstream did not come up:\n{self._log.read_text(errors='replace')[-2000:]}")
            await asyncio.sleep(0.2)
        self.up = True

    def kill(self) -> None:
        self.up = False
        self.kills += 1
        if self._server is not None:
            self._server.kill()
            self._server.wait()


async def listens(url: str) -> bool:
    """Whether the server takes connections, which it does once its model is loaded. It may be busy then: llama.cpp's
    server answers nothing else, not even /models, while it generates."""
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


class Proxy:
    """`metaprobe serve`, and what the kernel says of it."""

    def __init__(self, checkpoint: str, upstream: str, log: Path) -> None:
        self._log = log
        self.scores = log.with_name("scores.db")
        command = [sys.executable, "-m", "metaprobe.cli", "serve", checkpoint, "--no-auth", "--log", str(self.scores)]
        command += ["--upstream", upstream, "--port", "0", "--header-timeout", str(HEADER_TIMEOUT_S)]
        with log.open("wb") as file:
            self._server = subprocess.Popen(command, stdout=file, stderr=file)
        self.url = self._started()

    def _started(self) -> str:
        deadline = time.monotonic() + UP_WITHIN_S
        while time.monotonic() < deadline and self._server.poll() is None:
            if found := re.search(r"running on (http://[\d.:]+)", self._log.read_text()):
                return found[1]
            time.sleep(0.2)
        sys.exit(f"the proxy did not come up:\n{self._log.read_text()[-2000:]}")

    def sample(self) -> tuple[float, int]:
        """Resident memory in MB, and open descriptors."""
        about = Path(f"/proc/{self._server.pid}")
        resident = re.search(r"VmRSS:\s+(\d+) kB", (about / "status").read_text())
        assert resident is not None
        return int(resident[1]) / 1024, len(list((about / "fd").iterdir()))

    def stop(self) -> list[str]:
        """Ends it in good order; what its log holds beside its ordinary lines."""
        self._server.send_signal(signal.SIGTERM)
        self._server.wait(timeout=90)
        return [line for line in self._log.read_text().splitlines() if "Traceback" in line or " ERROR " in line]


class Caller:
    """The kinds of requests; each method makes one, and returns how it ended."""

    def __init__(self, client: openai.AsyncOpenAI, url: str, upstream: Upstream) -> None:
        self._client = client
        self._url = url
        self._upstream = upstream
        self._asked = 0
        self._ids: set[str] = set()
        """Ids that the proxy gave; each request has another."""
        self.whole: set[str] = set()
        """Ids of answers that a caller got whole: the score log must hold them."""
        self.waited_s: list[float] = []
        """Seconds that each honest batch to /v1/score took."""

    async def once(self, kind: str) -> str:
        """Makes one request; its outcome."""
        make: Callable[[str], Awaitable[str]] = getattr(self, f"ask_{kind}")
        self._asked += 1
        kills, up = self._upstream.kills, self._upstream.up
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await make(f"k{self._asked:06d}")
        except Mismatched as error:
            return noted("mixed", kind, error)
        except Cut as error:
            return noted("cut", kind, error)
        except (openai.APIError, httpx.HTTPError, OSError, TimeoutError, AssertionError, Down) as error:
            was_up = up and kills == self._upstream.kills and self._upstream.up
            if isinstance(error, openai.APIError | Down) and not was_up:
                return "told"
            return noted("lost", kind, error)

    async def ask_text(self, marker: str) -> str:
        raw = await self._client.chat.completions.with_raw_response.create(**self._request(marker, tokens=40))
        self._check_id(marker, raw.headers)
        answer = raw.parse()
        check_marker(marker, answer.choices[0].message.content)
        self._check_verdict(answer, raw.headers)
        return "whole"

    async def ask_tool(self, marker: str) -> str:
        raw = await self._client.chat.completions.with_raw_response.create(**tool_request(marker))
        self._check_id(marker, raw.headers)
        answer = raw.parse()
        [call] = answer.choices[0].message.tool_calls or [None]
        check_marker(marker, call and call.function.arguments)
        self._check_verdict(answer, raw.headers)
        return "whole"

    async def ask_stream(self, marker: str) -> str:
        return await self._streamed(marker, self._request(marker, tokens=60))

    async def ask_tool_stream(self, marker: str) -> str:
        return await self._streamed(marker, tool_request(marker))

    async def ask_slow(self, marker: str) -> str:
        """A caller that reads a chunk, waits, and reads the next one."""
        return await self._streamed(marker, self._request(marker, tokens=60), wait_s=0.1)

    async def ask_leave(self, marker: str) -> str:
        """A caller that goes away in the middle."""
        return await self._streamed(marker, self._request(marker, tokens=60), leave_after=5)

    async def ask_score(self, marker: str) -> str:
        """A batch whose answers have lengths of their own, asked of the proxy itself, in good days and bad."""
        lengths = [1 + int(marker[1:]) % 7, 40, 3]
        responses = [[-0.25] * length for length in lengths]
        headers = {"x-request-id": request_id(marker)}

        def post() -> httpx.Response:
            began = time.monotonic()
            with httpx.Client(trust_env=False, timeout=60) as client:
                answer = client.post(f"{self._url}/v1/score", json={"responses": responses}, headers=headers)
            self.waited_s.append(time.monotonic() - began)
            return answer

        answer = await asyncio.to_thread(post)  # the other callers' work in this event loop is not the proxy's time
        assert answer.status_code == 200, answer.text
        self._check_id(marker, answer.headers)
        assert len(answer.json()["verdicts"]) == len(lengths)
        return "whole"

    async def ask_silence(self, marker: str) -> str:
        """A connection that says half a line and nothing more: the proxy closes it."""
        host, port = self._url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /{marker}".encode())
        async with asyncio.timeout(10 * HEADER_TIMEOUT_S):
            assert await reader.read() == b""
        writer.close()
        return "whole"

    async def ask_hostile(self, marker: str) -> str:
        """One of the bodies and headers that once held the event loop, took gigabytes or leaked a connection."""
        path, headers, body = HOSTILE[int(marker[1:]) % len(HOSTILE)]
        async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_WITHIN_S) as client:
            answer = await client.post(f"{self._url}{path}", content=body, headers=JSON_BODY | headers)
        if answer.status_code in (502, 504):
            raise Down(f"{path}: {answer.status_code}")
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, f"{path}: {answer.status_code}"
        return "whole" if answer.status_code == 200 else "refused"

    async def ask_pieces(self, marker: str) -> str:
        """A request whose upgrade header arrives in two pieces, and a second request behind it in the same packet."""
        host, port = self._url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /readyz HTTP/1.1\r\nHost: {marker}\r\nConnection: Upg".encode())
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"rade\r\nUpgrade: h2c\r\n\r\nGET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(10 * HEADER_TIMEOUT_S):
            heard = await reader.read()
        writer.close()
        assert heard.startswith(b"HTTP/1.1 "), heard[:80]
        return "refused" if heard.startswith(b"HTTP/1.1 4") else "whole"

    async def _streamed(
        self, marker: str, request: dict[str, Any], *, wait_s: float = 0.0, leave_after: int | None = None
    ) -> str:
        text, ids, finished, last = "", set(), False, None
        stream = await self._client.chat.completions.create(**request, stream=True)
        self._check_id(marker, stream.response.headers)
        async with stream:
            number = 0
            async for last in stream:
                number += 1
                ids.add(last.id)
                for choice in last.choices:
                    calls = choice.delta.tool_calls or []
                    text += (choice.delta.content or "") + "".join(
                        call.function.arguments or "" for call in calls if call.function
                    )
                    finished |= choice.finish_reason is not None
                if number == leave_after:
                    return "left"
                await asyncio.sleep(wait_s)
        if not finished:
            raise Cut(f"after {len(text)} characters")
        if len(ids) != 1:
            raise Mismatched(f"chunks of {sorted(ids)} in one stream")
        check_marker(marker, text)
        self._check_verdict(last, stream.response.headers)
        return "whole"

    def _request(self, marker: str, *, tokens: int) -> dict[str, Any]:
        properties = {"marker": {"enum": [marker]}, "text": {"type": "string"}}
        schema = {"type": "object", "properties": properties, "required": ["marker", "text"]}
        return {
            **asked(marker, "Tell me a story about the sea, as JSON."),
            "max_tokens": tokens,
            "response_format": {"type": "json_object", "schema": schema},
        }

    def _check_id(self, marker: str, headers: Any) -> None:
        ours = headers.get("metaprobe-request-id")
        if headers.get("x-request-id") != request_id(marker) or not ours or ours in self._ids:
            raise Mismatched(f"request ids {headers.get('x-request-id')} and {ours} for {marker}")
        self._ids.add(ours)

    def _check_verdict(self, answer: Any, headers: Any) -> None:
        verdict = (answer.model_extra or {}).get("metaprobe")
        assert verdict is not None, "no verdict"
        assert verdict["score"] is not None or verdict["reason"], f"neither score nor reason: {verdict}"
        self.whole.add(headers["metaprobe-request-id"])


def request_id(marker: str) -> str:
    """As a random UUID is written: llama-cpp-python refuses any other with 400."""
    return f"00000000-0000-4000-8000-{int(marker[1:]):012d}"


def asked(marker: str, text: str) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0.8,
        "extra_headers": {"x-request-id": request_id(marker)},
    }


def tool_request(marker: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"marker": {"enum": [marker]}}, "required": ["marker"]}
    tool = {"type": "function", "function": {"name": "mark", "description": "Marks.", "parameters": parameters}}
    choice = {"type": "function", "function": {"name": "mark"}}
    return {**asked(marker, "Mark it."), "tools": [tool], "tool_choice": choice, "max_tokens": 60}


def check_marker(marker: str, text: str | None) -> None:
    found = re.findall(r"k\d{6}", text or "")[:1]
    if found != [marker]:
        raise Mismatched(f"{found} for {marker}, in {text!r}")


def noted(outcome: str, kind: str, error: BaseException) -> str:
    say(f"{outcome}: {kind}: {type(error).__name__}: {str(error)[:300]}")
    return outcome


def say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


JSON_BODY = {"content-type": "application/json"}
MIB = 2**20


def asked_with(headers: dict[str, str]) -> tuple[str, dict[str, str], bytes]:
    return "/v1/completions", headers, b'{"model": "m", "prompt": "a", "stream": true, "logprobs": 1, "max_tokens": 4}'


def scored(response: bytes) -> tuple[str, dict[str, str], bytes]:
    return "/v1/score", {}, b'{"response": ' + response + b"}"


def stuck_on(piece: str, times: int) -> bytes:
    """An answer of a thinking model that repeats one piece, with a log-probability a token."""
    tokens = ["<think>a", *[piece] * times]
    content = [{"token": token, "logprob": -0.5, "top_logprobs": []} for token in tokens]
    message = {"role": "assistant", "content": "".join(tokens)}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": content}}
    return json.dumps({"object": "chat.completion", "model": "m", "choices": [choice]}).encode()


def wide(mib: int) -> bytes:
    return b"[" + b"[]," * (mib * MIB // 3) + b"[]]"


HOSTILE: list[tuple[str, dict[str, str], bytes]] = [
    asked_with({"x-metaprobe-tags": "a=b=c,,=" + "x" * 300}),
    asked_with({"x-request-id": "a\tb" * 200}),
    scored(stuck_on("\n", 40_000)),
    scored(stuck_on(" ", 40_000)),
    scored(b'{"choices": ' + wide(15) + b"}"),
    ("/v1/score", {}, b'{"responses": ' + wide(15) + b"}"),
    ("/v1/score", {}, b"[" * 100_000 + b"]" * 100_000),
    ("/v1/feedback", {}, b'{"id": "x", "correct": ' + wide(15) + b"}"),
    ("/v1/feedback", {"content-encoding": "gzip"}, gzip.compress(b" " * (64 * MIB))),
    ("/v1/feedback", {}, b'{"id": "nobody-was-told-this", "correct": 1}'),
    ("/v1/chat/completions", {}, b'{"model": "m", "metadata": ' + wide(15) + b', "messages": []}'),
]
"""Path, headers and body of each hostile kind."""

KINDS = {
    "text": 3, "stream": 3, "tool": 2, "tool_stream": 2, "slow": 1, "leave": 2, "score": 3, "silence": 1,
    "hostile": 2, "pieces": 1,
}  # fmt: skip
"""Kind and its share of the requests."""


async def traffic(caller: Caller, until: float, seed: int, outcomes: Counter[tuple[str, str]]) -> None:
    """One request after another; the first of the kind that the seed says, the others at random."""
    chosen = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    while time.monotonic() < until:
        outcomes[kind, await caller.once(kind)] += 1
        [kind] = chosen.choices(list(KINDS), list(KINDS.values()))


async def kills(upstream: Upstream, every_s: float, until: float) -> None:
    """Kills the upstream in the middle of its work, and starts it again, as long as a third of the time is left."""
    while time.monotonic() + 1.3 * every_s < until:
        await asyncio.sleep(every_s)
        upstream.kill()
        say("killed the upstream")
        await asyncio.sleep(1)  # requests come in meanwhile
        await upstream.start()


async def samples(proxy: Proxy, every_s: float, until: float) -> list[tuple[float, float, int]]:
    """Minute, resident memory in MB and open descriptors, each `every_s`."""
    began, taken = time.monotonic(), []
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(every_s, left))
        taken.append(((time.monotonic() - began) / 60, *proxy.sample()))
        say(f"minute {taken[-1][0]:.1f}: {taken[-1][1]:.0f} MB, {taken[-1][2]} descriptors")
    return taken


async def soak(options: argparse.Namespace, folder: Path) -> bool:
    """Whether all was well; the tables go to standard output."""
    upstream = Upstream(options.model or embedded(), folder / "upstream.log")
    await upstream.start()
    proxy = Proxy(options.checkpoint, upstream.url, folder / "proxy.log")
    outcomes: Counter[tuple[str, str]] = Counter()
    try:
        until = time.monotonic() + 60 * options.minutes
        async with openai.AsyncOpenAI(
            base_url=f"{proxy.url}/v1",
            api_key="none",
            max_retries=0,
            timeout=ANSWER_WITHIN_S,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        ) as client:
            caller = Caller(client, proxy.url, upstream)
            every_s = 60 * min(options.sample_every, options.minutes / 4)
            _, taken, *_ = await asyncio.gather(
                kills(upstream, options.kill_every, until),
                samples(proxy, every_s, until),
                *(traffic(caller, until, seed, outcomes) for seed in range(options.callers)),
            )
        await asyncio.sleep(3)  # until the proxy has closed what the client has closed
        taken.append((options.minutes, *proxy.sample()))
    finally:
        upstream.kill()
        logged = proxy.stop()
    with sqlite3.connect(proxy.scores) as scores:
        kept = {request_id for (request_id,) in scores.execute("SELECT request_id FROM scores")}
    unlogged = len(caller.whole - kept)
    say(f"{len(caller.whole)} whole answers of the upstream, {unlogged} of them not in the log")
    waited = sorted(caller.waited_s)
    say(f"honest batches: {len(waited)}, median {waited[len(waited) // 2]:.3f} s, slowest {waited[-1]:.3f} s")
    logged += [f"{unlogged} answers are not in the score log"] * (unlogged > 0)
    logged += [f"an honest batch took {waited[-1]:.1f} s"] * (waited[-1] > HONEST_WITHIN_S)
    return shown(outcomes, taken, logged, upstream.kills - 1)


def shown(
    outcomes: Counter[tuple[str, str]], taken: list[tuple[float, float, int]], logged: list[str], killed: int
) -> bool:
    rows = [[kind, *(outcomes[kind, outcome] for outcome in OUTCOMES)] for kind in KINDS]
    rows.append(["all", *(sum(outcomes[kind, outcome] for kind in KINDS) for outcome in OUTCOMES)])
    out = [f"upstream killed {killed} times", "", f"{'requests':12}{'asked':>8}" + "".join(f"{o:>8}" for o in OUTCOMES)]
    out += [f"{row[0]:12}{sum(row[1:]):8}" + "".join(f"{n:8}" for n in row[1:]) for row in rows]
    out += ["", f"{'minute':>8}{'MB':>8}{'descriptors':>13}"]
    out += [f"{minute:8.1f}{resident:8.0f}{files:13}" for minute, resident, files in taken]
    (_, first, first_files), *_, (_, last, last_files) = taken[(len(taken) - 1) // 2 :]
    wrong = [f"{outcome}: {n}" for outcome in BAD if (n := sum(outcomes[kind, outcome] for kind in KINDS))]
    wrong += [f"memory grew by {last - first:.0f} MB"] * (last - first > GROWTH_MB)
    wrong += [f"descriptors grew by {last_files - first_files}"] * (last_files - first_files > GROWTH_FILES)
    wrong += [f"{kind}: never whole" for kind in KINDS if not any(outcomes[kind, how] for how in OUTCOMES[:4])]
    wrong += logged[:5]
    sys.stdout.write("\n".join([*out, "", "; ".join(wrong) or "all well"]) + "\n")
    return not wrong


def embedded() -> Path:
    from metaprobe.llms.weights import DEFAULT_MODEL, embedded_file

    return embedded_file(DEFAULT_MODEL)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--model", type=Path, help="a .gguf file; SmolLM2-135M where none is named")
    parser.add_argument("--checkpoint", default="bundled:quality")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--kill-every", type=float, default=180, help="seconds")
    parser.add_argument("--sample-every", type=float, default=5, help="minutes; at least four samples are taken")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metaprobe-soak-") as folder:
        sys.exit(0 if asyncio.run(soak(options, Path(folder))) else 1)


if __name__ == "__main__":
    main()
