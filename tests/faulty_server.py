"""A local server that speaks OpenAI's chat completions and goes wrong as planned.

`FaultyServer(plan)`: `plan(content, attempt)` names what happens when the last message is `content` and was asked
`attempt` times before; see `FAULTS`.
"""

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Self

from chat_completions import answer_choice, chat_completion, chunk_of, piece, server_sent, token_entry

FAULTS = (
    "ok",
    "no-logprobs",
    "bad-logprobs",  # null where a number belongs
    "429",  # with Retry-After, in fractions of a second
    "500",
    "503",
    "reset",  # the connection is closed without an answer
    "cut",  # half of an answer; of a stream: two tokens, and the connection is closed
    "ends-early",  # of a stream: two tokens and an orderly end without finish_reason
    "malformed",  # 200, and half of the JSON
    "html",  # 200, and a page
    "empty",  # 200, and no choices
    "silent",  # no answer at all
    "quota",  # 429, but for good
    "400",
    "403",
    "422",
    "401",  # with the key in the message, as it was sent
    "404",
    "no-stream",  # 400 for a stream, else ok
    "endless",  # of a stream: the first token again and again, until the client leaves
    "no-json-schema",  # 422 for response_format json_schema, else ok
    "no-json-schema-500",  # the same as llama-cpp-python says it
)
RETRY_AFTER = 0.25
_BAD = {
    "400": "bad temperature",
    "403": "not yours",
    "422": "bad field",
    "404": "no such model",
    "500": "out of memory",
    "503": "overloaded",
}

Plan = Callable[[str, int], str]


def by_words(content: str, attempt: int) -> str:
    """The plan that the message itself states: `question 7: 429 500 ok`; the last word goes on for ever."""
    faults = content.rpartition(":")[2].split()
    return faults[min(attempt, len(faults) - 1)]


def mixed(content: str, attempt: int) -> str:
    """One plan a message, from its hash: most are fine at once, some after a while, some never."""
    plans = ["ok"] * 6 + [
        "429 ok",
        "429 503 ok",
        "reset ok",
        "malformed ok",
        "empty ok",
        "cut cut ok",
        "no-logprobs",
    ]
    plans += ["bad-logprobs", "400", "401", "404", "500", "malformed", "empty", "cut"]
    plan = plans[int.from_bytes(hashlib.sha256(content.encode()).digest()[:4], "big") % len(plans)]
    return by_words(f":{plan}", attempt)


class FaultyServer:
    """`async with FaultyServer() as server: ... server.base_url`; `with`, where it should have a thread of its own."""

    def __init__(self, plan: Plan = by_words, *, tokens: int = 4) -> None:
        self.plan = plan
        self.tokens = tokens
        self.bodies: list[dict[str, Any]] = []
        """Every request's body, in the order of arrival."""
        self.attempts: Counter[str] = Counter()
        self.peak = 0
        """The most requests that were ever in flight at once."""
        self.left = asyncio.Event()
        """Set when a client has left an endless stream."""
        self._in_flight = 0
        self._connections: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.__aenter__(), self._loop).result(timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.__aexit__(), self._loop).result(timeout=30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = [line.partition(": ") for line in head.splitlines()[1:]]
                headers = {name.lower(): value for name, _, value in lines}
                body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
                if not await self._answer(body, headers, head.split()[1], reader, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(
        self,
        body: dict[str, Any],
        headers: dict[str, str],
        path: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answers one request; whether the connection may be used again."""
        content = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        fault = self.plan(content, self.attempts[content])
        self.attempts[content] += 1
        self.bodies.append(body)
        self._in_flight += 1
        self.peak = max(self.peak, self._in_flight)
        try:
            await asyncio.sleep(0.001)  # long enough for requests to overlap
            if fault == "silent":
                await reader.read()  # until the client gives up
                return False
            if fault == "reset":
                return False
            status, extra, payload = self._payload(fault, body, headers, path)
        finally:
            self._in_flight -= 1  # before the client can know that it is answered
        if body.get("stream") and status == 200:
            return await self._stream(fault, body, writer)
        kind = "text/html" if fault == "html" else "application/json"
        start = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(payload)}\r\n{extra}\r\n"
        writer.write(start.encode() + (payload[: len(payload) // 2] if fault == "cut" else payload))
        await writer.drain()
        return fault != "cut"

    def _payload(self, fault: str, body: dict[str, Any], headers: dict[str, str], path: str) -> tuple[int, str, bytes]:
        """Status, further headers, and body."""
        error: dict[str, Any] = {"message": _BAD.get(fault, "")}
        if fault == "429":
            return 429, f"retry-after: {RETRY_AFTER}\r\n", json.dumps({"error": {"message": "slow down"}}).encode()
        if fault == "quota":
            error = {"message": "you have spent all", "code": "insufficient_quota"}
            return 429, "", json.dumps({"error": error}).encode()
        if fault == "401":
            error = {"message": f"Incorrect API key provided: {headers.get('authorization')}. Try another."}
        if fault == "no-stream" and body.get("stream"):
            return 400, "", json.dumps({"error": {"message": "stream is not supported"}}).encode()
        if fault in (*_BAD, "401"):
            return int(fault), "", json.dumps({"error": error}).encode()
        if fault.startswith("no-json-schema") and body.get("response_format", {}).get("type") == "json_schema":
            wrong = {"loc": ["body", "response_format", "type"], "msg": "Input should be 'text' or 'json_object'"}
            if fault == "no-json-schema":
                return 422, "", json.dumps({"detail": [wrong]}).encode()
            return 500, "", json.dumps({"error": {"message": f"1 validation error: {wrong}"}}).encode()
        if fault == "html":
            return 200, "", b"<html>Welcome to the proxy</html>"
        whole = self.echo(body) if path.endswith("/v1/completions") else self.completion(body, fault)
        payload = json.dumps(whole).encode()
        return 200, "", payload[: len(payload) // 2] if fault == "malformed" else payload

    def entries(self, body: dict[str, Any], fault: str) -> list[dict[str, Any]]:
        """The tokens of the answer to this request: always the same ones, of different log-probabilities."""
        k = body.get("top_logprobs", 0)
        seed = hashlib.sha256(json.dumps(body["messages"]).encode()).digest()
        return [
            token_entry(
                f" w{i}",
                None if fault == "bad-logprobs" and i == 1 else -seed[i % 32] / 64,
                [{"token": f"t{j}", "logprob": -(seed[i % 32] + 320 * j) / 64} for j in range(k)],
            )
            for i in range(min(self.tokens, body.get("max_tokens", self.tokens)))
        ]

    def completion(self, body: dict[str, Any], fault: str = "ok") -> dict[str, Any]:
        """The whole answer."""
        entries = self.entries(body, fault)
        choices = [] if fault == "empty" else [answer_choice(entries, logprobs=self._gives_logprobs(body, fault))]
        usage = {"prompt_tokens": 10, "completion_tokens": len(entries)}
        model = f"{body['model']}-2026-01-01"
        return chat_completion(*choices, model=model, id="x", usage=usage, system_fingerprint="fp_7")

    def _gives_logprobs(self, body: dict[str, Any], fault: str) -> bool:
        return fault != "no-logprobs" and bool(body.get("logprobs"))

    def echo(self, body: dict[str, Any]) -> dict[str, Any]:
        """An older text completion that echoes its prompt, one token a character."""
        text = body["prompt"] + "!" if body.get("echo") else "!"
        logprobs = {"tokens": list(text), "token_logprobs": [None, *(-i / 8 for i in range(1, len(text)))]}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}
        return {"model": body["model"], "choices": [{"text": text, "logprobs": logprobs}], "usage": usage}

    async def _stream(self, fault: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number, chunk in enumerate(self._chunks(fault, body)):
            if number == 3 and fault in ("cut", "ends-early"):
                break
            data = server_sent(chunk)
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
            while number == 1 and fault == "endless":
                writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                try:
                    await writer.drain()
                    await asyncio.sleep(0.001)
                except ConnectionError:
                    self.left.set()
                    raise
        if fault == "cut":
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _chunks(self, fault: str, body: dict[str, Any]) -> Iterator[dict[str, Any] | bytes]:
        whole = self.completion(body, fault)
        yield chunk_of(whole, piece({"role": "assistant"}))
        for number, entry in enumerate(self.entries(body, fault)):
            if fault == "malformed" and number == 1:
                yield b'{"choices": [{"del'
            listed = [entry] if self._gives_logprobs(body, fault) else None
            yield chunk_of(whole, *([] if fault == "empty" else [piece({"content": entry["token"]}, listed)]))
        if fault != "empty":
            yield chunk_of(whole, piece({}, end="stop"))
        yield {**chunk_of(whole), "usage": whole["usage"]}
        yield b"[DONE]"
