"""Lines as a user imports them."""

import gzip
import json
from pathlib import Path
from typing import Any

RESPONSE = {
    "id": "chatcmpl-9",
    "object": "chat.completion",
    "created": 1760000000,
    "model": "gpt-test-mini",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Wien", "refusal": None},
            "logprobs": {
                "content": [
                    {"token": "W", "logprob": -0.25, "bytes": [87], "top_logprobs": [{"token": "W", "logprob": -0.25}]},
                    {
                        "token": "ien",
                        "logprob": -0.5,
                        "bytes": None,
                        "top_logprobs": [{"token": "ien", "logprob": -0.5}, {"token": "x", "logprob": -1.75}],
                    },
                ]
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 14, "completion_tokens": 2, "total_tokens": 16},
}
FULL = {
    "id": "q1",
    "group": "capitals",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Earlier?"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "Hauptstadt von Österreich?"}]},
    ],
    "response": RESPONSE,
    "labels": {"correct": 1, "instruction": 2, "quality": 2.5, "evidence": None, "critical": False},
    "verbalized_confidence": 0.9,
    "model": "my-model",
    "task": "capitals",
    "stage": "answer",
    "agent": "solver",
    "run_id": "monday",
    "sampling": {"temperature": 0.7, "seed": 3},
    "logprobs_mode": "raw",
}


def write_lines(path: Path, *records: Any) -> Path:
    lines = [
        record if isinstance(record, bytes) else json.dumps(record, ensure_ascii=False).encode() for record in records
    ]
    data = b"\n".join(lines) + b"\n"
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def changed(**changes: Any) -> dict[str, Any]:
    return {**FULL, "id": "q2", **changes}


def lines_of(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [changed(id=i, run_id=None, labels={"correct": i % 2}, **changes) for i in range(count)]
