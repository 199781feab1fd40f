"""An endpoint that is unsure of some questions: the log-probabilities tell how often it gives its usual answer."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from chat_completions import answer_choice, token_entry
from faulty_server import FaultyServer

Change = Callable[[dict[str, Any], int], None]
"""Changes the completion of an answer; it is called with the number of requests before."""


def unchanged(completion: dict[str, Any], before: int) -> None:
    """Leaves the completion as it is."""


class SamplingServer(FaultyServer):
    """Gives the same number each time to questions it is sure of, and others now and then; it lists one model."""

    def __init__(self, change: Change = unchanged, *, plan: Any = lambda content, attempt: "ok") -> None:
        super().__init__(plan)
        self.change = change
        self.given: Counter[str] = Counter()
        self.listed = ["planted"]

    async def _answer(self, body: Any, headers: Any, path: str, reader: Any, writer: Any) -> bool:
        if not path.endswith("/models"):
            return await super()._answer(body, headers, path, reader, writer)
        payload = json.dumps({"data": [{"id": name} for name in self.listed]}).encode()
        head = f"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
        writer.write(head.encode() + payload)
        await writer.drain()
        return True

    def completion(self, body: dict[str, Any], fault: str = "ok") -> dict[str, Any]:
        """The whole answer: a number, a token for each sign."""
        content = body["messages"][-1]["content"]
        before = self.given[content]
        self.given[content] += 1
        sure = certainty(content)
        rng = np.random.default_rng(int.from_bytes(hashlib.sha256(f"{content} {before}".encode()).digest()[:8], "big"))
        number = 7 if rng.random() < sure else int(rng.integers(10, 99))
        tokens = list(f"{number}.0")
        logprobs = np.log(np.clip(sure + rng.normal(0, 0.08, len(tokens)), 0.02, 0.999))
        entries = [token_entry(token, float(value)) for token, value in zip(tokens, logprobs, strict=True)]
        whole = super().completion(body, fault)
        if whole["choices"]:
            whole["choices"] = [answer_choice(entries, logprobs=fault != "no-logprobs")]
        whole["usage"] = {"prompt_tokens": 10, "completion_tokens": len(tokens)}
        self.change(whole, len(self.bodies) - 1)
        return whole


def certainty(content: str) -> float:
    """Returns how often the server gives its usual answer to this question."""
    return 0.15 + 0.8 * int.from_bytes(hashlib.sha256(content.encode()).digest()[:4], "big") / 2**32
