"""An endpoint in a process of its own, whose answers follow from what is asked: `python answering_server.py PORT`."""

import hashlib
import json
import socket
import sys
import threading
import time
from typing import Any

from chat_completions import answer_choice, chat_completion, token_entry
from local_server import Asked, Reply, serving


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """Two to nine words with log-probabilities, drawn from what was asked and with which seed."""
    digest = hashlib.sha256(json.dumps([body["messages"], body.get("seed")]).encode()).digest()
    words = [f" {byte}" for byte in digest[1 : 3 + digest[0] % 8]]
    entries = [token_entry(word, -byte / 256) for word, byte in zip(words, digest[8:], strict=False)]
    return chat_completion(answer_choice(entries), id=digest.hex()[:12])


def reply(asked: Asked) -> Reply:
    """Answers after a while, long enough that a kill meets answers on their way."""
    time.sleep(0.02)
    sys.stdout.write("answered\n")
    sys.stdout.flush()
    return Reply.of(answer(asked.json()))


def wait_for(port: int) -> None:
    """Waits until somebody listens there, for twenty seconds at most."""
    for _ in range(400):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"nobody listens on {port}")


if __name__ == "__main__":
    with serving(reply, int(sys.argv[1])):
        threading.Event().wait()
