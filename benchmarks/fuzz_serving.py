"""Checks that hostile callers or upstreams neither fail nor delay an honest caller.

    python -m benchmarks.fuzz_serving --seconds 60                    # all cases, drawn at random
    python -m benchmarks.fuzz_serving --seconds 20 nan tools          # these only
    python -m benchmarks.fuzz_serving --seconds 1800 --keep           # a soak, kept and written into the page
    python -m benchmarks.fuzz_serving --page                          # only writes what was kept into the page

Three processes on this machine, over loopback: an upstream that answers as the question asks it to (sizes, counts,
times, encodings, endless, dripping, numbers outside JSON, tool calls), a server with a log and a panel before it, and
a second server whose panel chooses among agents of which one never answers. Hostile callers have one key, and send
requests without a pause. The honest caller has another key, and asks each server in turn; its answers are compared
with what they must be. What is reported: its statuses and its latency (p50, p99, largest), how often each case was
played and with which result, the servers' peak memory, and the rows of the log.

Exit code 1 where an honest request failed, its p99 is not below `MOST_P99_S`, or a server died.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.predict import predictor
from benchmarks.serving import listening, load
from research.blocks import DOCS, MEASURED, markdown, read_figures, write, write_figures

PAGE = DOCS / "research" / "speed.md"
FIGURES = MEASURED / "soak.json"
KEPT = (
    "seconds honest_failed p50_s p99_s largest_s direct_p99_s slowest_s hostile memory_mib peak_mib rows "
    "tracebacks_first.log tracebacks_second.log load"
).split()
"""Figures of a soak that are kept."""

MOST_P99_S = 2.0
"""Seconds that 99 of 100 honest requests may take at most."""
HONEST_KEY, HOSTILE_KEY = "key-of-the-honest-caller", "key-of-hostile-callers"
CALLERS = 6
"""Hostile requests at one time."""
PATIENCE_S = 20.0
"""Seconds after which a hostile caller gives up."""
PAUSE_S = 0.05
"""Seconds between two honest requests."""
TIMEOUT_S = 10.0
"""The servers' own `--timeout`."""
HEDGE_AFTER_S = 0.5
"""Seconds after which the second server asks the next agent beside a silent one."""
HELD_S = 0.5
"""Seconds without a turn of the servers' event loop after which it is noted where it is."""
DIRECT = "direct"
"""Kind of the honest requests to the upstream itself."""
MEMORY_SAMPLES = 7
"""How often the servers' memory is noted in a run."""
AGENTS = ("fast", "slow", "hangs")


def entry(token: str = " w", logprob: Any = -0.25) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": []}


def choice(text: str = " w w w", tokens: int = 3, **more: Any) -> dict[str, Any]:
    entries = [entry(logprob=-0.1 - i % 7 / 8) for i in range(tokens)]
    said = {"role": "assistant", "content": text}
    return {"index": 0, "message": said, "finish_reason": "stop", "logprobs": {"content": entries}, **more}


def whole(*choices: Any) -> bytes:
    usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    return json.dumps({"id": "c", "created": 1, "model": "m", "choices": choices, "usage": usage}).encode()


HONEST = choice("honest answer", 0, logprobs={"content": [entry("honest", -0.5), entry(" answer", -0.25)]})
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "b"}]}

HONEST_CASES = ("honest", "events-honest", "tools")
"""Cases that the honest caller asks for."""
ANSWERS: dict[str, Callable[[], bytes]] = {
    "honest": lambda: whole(HONEST),
    "choices-2048": lambda: whole(*[choice(index=n) for n in range(2048)]),
    "choices-objects": lambda: b'{"choices":[' + b"{}," * 100_000 + b"{}]}",
    "choices-lists": lambda: b'{"choices":[' + b"[]," * 340_000 + b"[]]}",
    "choices-long": lambda: whole(*[choice("word and 7 " * 740, index=n) for n in range(128)]),
    "choices-wide-characters": lambda: whole(*[choice("\ufdfa" * 2000, index=n) for n in range(32)]),
    "nan": lambda: whole(HONEST, choice(logprobs={"content": [entry(logprob=float("nan"))]})),
    "huge-number": lambda: whole(HONEST).replace(b"-0.25", b"1e999"),
    "long-number": lambda: whole(HONEST).replace(b"-0.25", b"-" + b"9" * 100_000),
    "tokens-million": lambda: whole(choice(" w" * 1_000_000, 1_000_000)),
    "tokens-other": lambda: whole(choice("another text " * 50_000, 20_000)),
    "think": lambda: whole(choice("<think>" * 20_000 + " w" * 20_000, 20_000)),
    "text-60-mb": lambda: whole(choice("x" * (60 << 20))),
    "brackets-8-mb": lambda: b'{"choices":' + b"[" * (8 << 20),
    "deep": lambda: b'{"choices":[' + b'{"message":' * 50_000 + b"1" + b"}" * 50_000 + b"]}",
    "tools": lambda: whole(choice(message=CALLING, finish_reason="tool_calls", logprobs=None)),
    "tools-many": lambda: whole(choice(message={**CALLING, "tool_calls": [CALL] * 20_000}, finish_reason="tool_calls")),
    "no-json": lambda: b"<html>" * 1000,
    "no-utf8": lambda: whole(HONEST).replace(b"honest", b"\xff\xfe\xc3"),
    "utf-16": lambda: whole(HONEST).decode().encode("utf-16"),
    "surrogates": lambda: whole(choice("\ud800" * 1000)),
    "twice-the-key": lambda: b'{"choices": [], ' + whole(HONEST)[1:],
    "empty": lambda: b"",
    "null": lambda: b"null",
    "says-gzip": lambda: whole(HONEST),
    "status-500": lambda: b'{"error": {"message": "no"}}',
    "status-500-long": lambda: b'{"error": {"message": "' + b"x" * (8 << 20) + b'"}}',
    "status-429": lambda: b"{}",
    "status-302": lambda: b"{}",
    "status-999": lambda: b"{}",
}
"""Case -> the body of a whole answer."""
EVENTS: dict[str, Callable[[], bytes]] = {
    "events-honest": lambda: b"".join(
        event({"id": "c", "model": "m", "choices": [{"index": 0, "finish_reason": end, "delta": {"content": word},
            "logprobs": {"content": [entry(word, -0.5)]} if word else None}]})
        for word, end in (("honest", None), (" answer", None), ("", "stop"))
    ),
    "event-objects": lambda: b'data: {"choices":[' + b"{}," * 300_000 + b"{}]}\n\n",
    "event-choices": lambda: event({"choices": [{"index": n, "delta": {"content": "a"}} for n in range(20_000)]}),
    "event-unended": lambda: b"data: " + b"x" * (6 << 20),
    "events-tiny": lambda: event({"choices": [{"index": 0, "delta": {"content": "a"}}]}) * 20_000,
    "events-comments": lambda: b": still here\n\n" * 100_000,
    "events-returns": lambda: b"\r" * (1 << 20),
    "events-nan": lambda: event({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {
        "content": [entry(logprob=float("nan"))]}}]}) * 10,
    "events-tools": lambda: event({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **CALL}]}}]}) * 500,
    "events-indices": lambda: b"".join(
        event({"choices": [{"index": n, "delta": {"content": "a"}}]}) for n in range(5000)
    ),
    "events-long": lambda: b"".join(
        event({"choices": [{"index": 0, "delta": {"content": " w"}, "logprobs": {"content": [entry()]}}]})
        for _ in range(60_000)
    ),
}  # fmt: skip
"""Case -> the body of a stream, without its end."""
TIMED = ("endless", "endless-stream", "drips", "drips-stream", "silent", "cut", "cut-stream")
"""Cases of an upstream that does not come to an end, or not in good order."""


def event(held: object) -> bytes:
    return b"data: " + json.dumps(held).encode() + b"\n\n"


def unspelled() -> bytes:
    return whole(choice("other words " * 400_000, 60_000))


REQUESTS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "panel-64-kb": ("/v1/panel", lambda: json.dumps({"responses": ["word and 7 " * 2900] * 2}).encode()),
    "panel-1-mb": ("/v1/panel", lambda: json.dumps({"responses": ["word and 7 " * 730] * 128}).encode()),
    "panel-wide-characters": ("/v1/panel", lambda: json.dumps({"responses": ["\ufdfa" * 1300] * 128}).encode()),
    "panel-different": (
        "/v1/panel",
        lambda: json.dumps({"responses": [f"word {n} " * 700 for n in range(128)]}).encode(),
    ),
    "score-unspelled": ("/v1/score", unspelled),
    "score-objects": ("/v1/score", lambda: b"[" + b"{}," * 300_000 + b"{}]"),
    "score-batch": ("/v1/score", lambda: json.dumps({"responses": [[-0.5, -0.25] * 300] * 1000}).encode()),
    "decisions": ("/v1/decisions", lambda: json.dumps({"model": "m", "questions": [
        {"type": "predicate", "name": "correct", "instructions": "Is it right?"}] * 100,
        "input": [{"role": "user", "content": "x"}] * 14_000}).encode()),
}  # fmt: skip
"""Case -> the address and the body of a caller's request."""
CASES = (*ANSWERS, *EVENTS, *TIMED, *REQUESTS)


# The upstream


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answers as the last message says; a case is made once."""
    raw = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        raw += message.get("body", b"")
        if not message.get("more_body"):
            break
    body = json.loads(raw or b"{}")
    case, agent = str(body["messages"][-1]["content"]), str(body.get("model", ""))
    if agent == "hangs":
        case = "silent"
    elif agent == "slow":
        await asyncio.sleep(0.1)
    kind = b"text/event-stream" if case in EVENTS or case.endswith("-stream") else b"application/json"
    status = int(case.split("-")[1]) if case.startswith("status-") else 200
    headers = [(b"content-type", kind)]
    if case == "says-gzip":
        headers.append((b"content-encoding", b"gzip"))
    if case == "silent":
        await asyncio.wait([asyncio.ensure_future(receive())], timeout=60)
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    gone = asyncio.ensure_future(receive())
    try:
        async for part in parts_of(case):
            if gone.done():
                return
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if not case.startswith("cut"):
            await send({"type": "http.response.body", "body": b""})
        else:
            raise ConnectionError("cut")
    finally:
        gone.cancel()


MADE: dict[str, bytes] = {}


def make(cases: list[str]) -> None:
    """Makes the bodies of these cases."""
    for case in cases:
        if case in ANSWERS:
            MADE[case] = ANSWERS[case]()
        elif case in EVENTS:
            MADE[case] = EVENTS[case]() + b"data: [DONE]\n\n"


async def parts_of(case: str) -> AsyncIterator[bytes]:
    """Yields the body of a case."""
    piece = event({"choices": [{"index": 0, "delta": {"content": " w"}, "logprobs": {"content": [entry()]}}]})
    if case in ANSWERS or case in EVENTS:
        yield MADE[case]
    elif case.startswith("cut"):
        yield piece * 3 + b"data: {" if case.endswith("stream") else whole(HONEST)[:-5]
    elif case.startswith("endless"):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            yield piece * 20 if case.endswith("stream") else b" " * (1 << 16)
            await asyncio.sleep(0.02)
    else:
        for byte in piece * 40 if case.endswith("stream") else whole(HONEST):
            yield bytes([byte])
            await asyncio.sleep(0.2)


def run_upstream(listener: Any, cases: list[str]) -> None:
    import logging

    import uvicorn

    logging.disable(logging.CRITICAL)
    make(cases)  # now, for who makes an answer answers nobody else
    config = uvicorn.Config(answer, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=75)
    uvicorn.Server(config).run(sockets=[listener])


def run_server(listener: Any, log: Path, given: dict[str, Any]) -> None:
    """`given`: settings. The process says what it says into `log`."""
    import uvicorn

    from metaprobe.production.http.app import server_config
    from metaprobe.production.http.settings import Settings

    os.environ["METAPROBE_API_KEY"] = f"honest={HONEST_KEY} hostile={HOSTILE_KEY}"
    sys.stderr = log.open("w")
    settings = Settings(timeout_s=TIMEOUT_S, **given)
    server = uvicorn.Server(server_config(settings))

    async def served() -> None:
        beat = asyncio.ensure_future(watched(log.with_suffix(".held")))
        await server.serve(sockets=[listener])
        beat.cancel()

    asyncio.run(served())


async def watched(log: Path) -> None:
    """Writes where the event loop was, into `log`, whenever it had no turn for `HELD_S`."""
    loop, last, where = threading.get_ident(), time.monotonic(), ""

    def look() -> None:
        nonlocal where
        while True:
            time.sleep(HELD_S / 4)
            if time.monotonic() - last > HELD_S and not where:
                where = " < ".join(
                    f"{Path(one.filename).name}:{one.lineno} {one.name}"
                    for one in reversed(traceback.extract_stack(sys._current_frames()[loop])[-8:])
                )

    threading.Thread(target=look, daemon=True).start()
    while True:
        await asyncio.sleep(HELD_S / 10)
        if where:
            with log.open("a") as file:
                file.write(f"{time.monotonic() - last:.2f} s: {where}\n")
        last, where = time.monotonic(), ""


# The callers


@dataclass
class Played:
    """Counts the results of the run."""

    cases: dict[str, Counter[str]] = field(default_factory=dict)
    """Case -> status or error -> how often."""
    honest: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    """Seconds of each honest request to a server."""
    direct: list[float] = field(default_factory=list)
    """Seconds of each honest request to the upstream itself."""
    slowest: dict[str, float] = field(default_factory=dict)
    """Kind of honest request -> seconds of the slowest."""
    memory: list[list[int]] = field(default_factory=list)
    """Memory of each server in MiB, at even times of the run."""


def chat(said: str, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": said}], **more}).encode()


async def post(session: aiohttp.ClientSession, url: str, body: bytes, key: str) -> tuple[int, bytes]:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    async with session.post(url, data=body, headers=headers) as answer:
        return answer.status, await answer.read()


async def attack(servers: tuple[str, str], cases: list[str], played: Played, until: float, seed: int) -> None:
    """One hostile caller."""
    drawn = random.Random(seed)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while time.monotonic() < until:
            case = drawn.choice(cases)
            result = "gave up"
            path, body = "/v1/chat/completions", b""
            if case in REQUESTS:
                path, body = REQUESTS[case][0], MADE[case]
            else:
                more: dict[str, Any] = {"stream": True} if case in EVENTS or case.endswith("-stream") else {}
                if case.startswith("choices"):
                    more["n"] = 2048
                if case.startswith("tools"):
                    more["tools"] = [TOOL]
                if drawn.random() < 0.3:
                    more["logprobs"] = True
                body = chat(case, **more)
            # The server that chooses answers chat completions alone, and one answer each.
            second = case not in REQUESTS and "choices" not in case and drawn.random() < 0.2
            with suppress(TimeoutError):
                try:
                    status, _ = await post(session, f"{servers[second]}{path}", body, HOSTILE_KEY)
                    result = str(status)
                except aiohttp.ClientError as error:
                    result = type(error).__name__
            played.cases.setdefault(case, Counter())[result] += 1


async def be_honest(servers: tuple[str, str], upstream: str, played: Played, until: float) -> None:
    """The honest caller. It asks the upstream directly, too: what that takes is no server's fault."""
    good = [-0.5, -0.25, -0.125, -0.5]
    asked: dict[str, tuple[str, bytes, bytes]] = {
        DIRECT: (f"{upstream}/chat/completions", chat("honest"), b"honest answer"),
        "chat": (f"{servers[0]}/v1/chat/completions", chat("honest"), b"honest answer"),
        "score": (f"{servers[0]}/v1/score", json.dumps(good).encode(), b'"score":0'),
        "panel": (f"{servers[0]}/v1/panel", json.dumps({"responses": ["It is 7", "It is 7"]}).encode(), b'"kept":'),
        "stream": (f"{servers[0]}/v1/chat/completions", chat("events-honest", stream=True), b'"score":0'),
        "chosen": (f"{servers[1]}/v1/chat/completions", chat("honest"), b"honest answer"),
        "tool call": (f"{servers[1]}/v1/chat/completions", chat("tools", tools=[TOOL]), b'"tool_calls":['),
        "long score": (f"{servers[0]}/v1/score", json.dumps(good * 5000).encode(), b'"score":0'),
    }
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        while time.monotonic() < until:
            for kind, (url, body, expected) in asked.items():
                started = time.monotonic()
                try:
                    status, came = await post(session, url, body, HONEST_KEY)
                    told = str(status) if status != 200 or expected in came else "wrong answer"
                except (aiohttp.ClientError, TimeoutError) as error:
                    told = type(error).__name__
                took = time.monotonic() - started
                played.honest[f"{kind} {told}"] += 1
                (played.direct if kind == DIRECT else played.seconds).append(took)
                played.slowest[kind] = max(played.slowest.get(kind, 0.0), took)
                await asyncio.sleep(PAUSE_S)


async def weigh(pids: list[int], played: Played, seconds: float) -> None:
    """Notes the servers' memory `MEMORY_SAMPLES` times, at the beginning, at the end and evenly between."""
    for sample in range(MEMORY_SAMPLES):
        if sample:
            await asyncio.sleep(seconds / (MEMORY_SAMPLES - 1))
        with suppress(FileNotFoundError):  # of a server that died, which is reported
            played.memory.append([mib(pid, "VmRSS") for pid in pids])


async def play(
    servers: tuple[str, str], upstream: str, cases: list[str], seconds: float, seed: int, pids: list[int] | None = None
) -> Played:
    """Plays the cases. `pids`: the servers' processes, whose memory is noted."""
    MADE.update({case: REQUESTS[case][1]() for case in cases if case in REQUESTS})
    played, until = Played(), time.monotonic() + seconds
    hostile = [attack(servers, cases, played, until, seed + n) for n in range(CALLERS)]
    await asyncio.gather(be_honest(servers, upstream, played, until), weigh(pids or [], played, seconds), *hostile)
    return played


async def started(server: str) -> None:
    """Waits until a server answers."""
    async with aiohttp.ClientSession() as session:
        for _ in range(600):
            with suppress(aiohttp.ClientError):
                async with session.get(f"{server}/healthz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)
    raise SystemExit(f"the server at {server} does not answer; expected it within 60 s")


def mib(pid: int, name: str) -> int:
    """Returns the memory of a process in MiB: `VmRSS` now, `VmHWM` at its peak."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) >> 10 if found else 0


def quantile(times: list[float], share: float) -> float:
    return times[min(int(share * len(times)), len(times) - 1)]


def report(played: Played) -> dict[str, Any]:
    """Returns the figures of a run as JSON has them."""
    times, direct = sorted(played.seconds), sorted(played.direct)
    at = {name: quantile(times, share) for name, share in (("p50_s", 0.5), ("p99_s", 0.99))}
    at["direct_p99_s"] = quantile(direct, 0.99)
    failed = sum(
        count for told, count in played.honest.items() if not told.endswith(" 200") and not told.startswith(DIRECT)
    )
    return {
        "honest": dict(played.honest),
        "honest_failed": failed,
        **{name: round(value, 3) for name, value in at.items()},
        "largest_s": round(times[-1], 3),
        "slowest_s": {kind: round(value, 3) for kind, value in played.slowest.items()},
        "hostile": sum(sum(results.values()) for results in played.cases.values()),
        "cases": {case: dict(results) for case, results in sorted(played.cases.items())},
    }


def kept_of(figures: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of a run that are kept."""
    requests = sum(count for told, count in figures["honest"].items() if not told.startswith(DIRECT))
    return {name: figures[name] for name in KEPT} | {"honest": requests, "cases": len(figures["cases"])}


def write_page() -> None:
    """Writes the figures that were kept of the last soak into the page."""
    kept = read_figures(FIGURES)
    begin, end = kept["memory_mib"][0], kept["memory_mib"][-1]
    memory = [f"{first} / {last} / {peak}" for first, last, peak in zip(begin, end, kept["peak_mib"], strict=True)]
    faults = kept["tracebacks_first.log"] + kept["tracebacks_second.log"]
    rows = [
        ["honest requests (chat, stream, score, panel, tool call)", f"{kept['honest']:,}"],
        ["of these failed or answered wrongly", f"{kept['honest_failed']:,}"],
        ["p50 / p99 / longest, s", f"{kept['p50_s']:.3f} / {kept['p99_s']:.2f} / {kept['largest_s']:.2f}"],
        ["p99 of the upstream itself, asked directly, s", f"{kept['direct_p99_s']:.2f}"],
        ["hostile requests, of so many kinds", f"{kept['hostile']:,}, {kept['cases']}"],
        ["errors inside the servers", f"{faults:,}"],
        ["memory of the server before one upstream, MiB: begin / end / peak", memory[0]],
        ["memory of the server that chooses among three, MiB", memory[1]],
        ["answers in the log", f"{kept['rows']:,}"],
    ]
    head = [f"{kept['seconds'] / 60:.0f} minutes, load {kept['load']}", ""]
    write(PAGE, "soak", [*markdown(head, rows), "", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {', '.join(CASES)}")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--panel", default="bundled:router", help="panel of both servers; its agents are asked")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the figures, and write them into the page")
    parser.add_argument("--page", action="store_true", help="play nothing; write what was kept into the page")
    options = parser.parse_args()
    if options.page:
        return write_page()
    if unknown := sorted(set(options.cases) - set(CASES)):
        parser.error(f"there is no case {unknown[0]}; expected one of {', '.join(CASES)}")
    cases = options.cases or list(CASES)
    from metaprobe.production.monitoring.log import ScoreLog
    from metaprobe.routing.panel.asking import Panel

    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        predictor(folder / "random")
        log = folder / "scores.sqlite"
        (up, upstream), (first, one), (second, two) = listening(), listening(), listening()
        common = {"checkpoint": folder / "random", "panel": options.panel}
        agents = Panel.load(options.panel).agents.names
        named = tuple(f"{agent}={upstream}#{AGENTS[place % 3]}" for place, agent in enumerate(agents[:3]))
        chooses = {"upstreams": named, "hedge_after_s": HEDGE_AFTER_S}
        given = ({**common, "upstream": upstream, "log": str(log)}, {**common, **chooses})
        servers = (one.removesuffix("/v1"), two.removesuffix("/v1"))
        made = [
            spawn.Process(target=run_upstream, args=(up, [*HONEST_CASES, *cases]), daemon=True),
            spawn.Process(target=run_server, args=(first, folder / "first.log", given[0]), daemon=True),
            spawn.Process(target=run_server, args=(second, folder / "second.log", given[1]), daemon=True),
        ]
        for process in made:
            process.start()
        try:
            for server in servers:
                asyncio.run(started(server))
            asyncio.run(play(servers, upstream, ["honest"], 1.0, 0))  # waits for the upstream, too
            pids = [int(process.pid or 0) for process in made[1:]]
            played = asyncio.run(play(servers, upstream, cases, options.seconds, options.seed, pids))
            alive = [process.is_alive() for process in made]
            figures = report(played) | {
                "seconds": options.seconds,
                "load": load(),
                "alive": alive,
                "memory_mib": played.memory,
                "peak_mib": [mib(pid, "VmHWM") for pid, alive_now in zip(pids, alive[1:], strict=True) if alive_now],
            }
        finally:
            for process in made:
                process.terminate()
                process.join(30)
        for written in ("first.log", "second.log"):
            said = (folder / written).read_text() if (folder / written).exists() else ""
            figures[f"tracebacks_{written}"] = said.count("failed: ")
            held_by = (folder / written).with_suffix(".held")
            figures[f"held_{written}"] = held_by.read_text().splitlines() if held_by.exists() else []
        with ScoreLog.open(log, entries=False) as held:
            figures["rows"] = len(held.columns())
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.keep:
        write_figures(FIGURES, kept_of(figures))
        write_page()
    if figures["honest_failed"] or figures["p99_s"] >= MOST_P99_S or not all(alive):
        raise SystemExit(1)
    return None


if __name__ == "__main__":
    main()
