"""Runs imported from any format and exported as answer lines in any container are imported as the same runs."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metaprobe.records.errors import ImportFileError
from metaprobe.records.import_store import import_file
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Run

LOGS = Path(__file__).parent / "logs"
CONTAINERS = ("jsonl", "jsonl.gz", "parquet")


def numbers_of(call: Call) -> dict[str, Any]:
    """The log-probabilities of a choice; promptfoo keeps no tokens."""
    assert call.logprobs is not None
    if not call.tokens:
        return {"token_logprobs": call.logprobs.tolist()}
    entries = []
    for place, (token, logprob) in enumerate(zip(call.tokens, call.logprobs.tolist(), strict=True)):
        others = [] if call.top_logprobs is None else call.top_logprobs[place].tolist()
        top = [{"token": f"{n}", "logprob": value} for n, value in enumerate(others) if math.isfinite(value)]
        entries.append({"token": token, "logprob": logprob, "top_logprobs": top})
    return {"content": entries}


def line_of(run: Run) -> dict[str, Any]:
    """The run as a user's program would write it who has the answer in OpenAI's format."""
    [call] = run.calls
    choice: dict[str, Any] = {
        "message": {"role": "assistant", "content": call.text},
        "finish_reason": call.finish_reason,
    }
    if call.logprobs is not None:
        choice["logprobs"] = numbers_of(call)
    return {
        "id": run.id,
        "group": run.item.group,
        "task": run.item.task,
        "model": call.model,
        "logprobs_mode": call.logprobs_mode,
        "messages": [{"role": message.role, "content": message.content} for message in call.messages],
        "labels": {label.name: label.value for label in run.labels},
        "response": {"model": call.model, "choices": [choice]},
    }


def written(lines: list[dict[str, Any]], container: str, folder: Path) -> Path:
    path = folder / f"again.{container}"
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    if container == "jsonl.gz":
        path.write_bytes(gzip.compress(data))
    elif container == "jsonl":
        path.write_bytes(data)
    else:
        texts = [
            {key: value if isinstance(value, str) else json.dumps(value) for key, value in line.items()}
            for line in lines
        ]
        pq.write_table(pa.Table.from_pylist(texts), path)
    return path


def told(run: Run) -> dict[str, Any]:
    [call] = run.calls
    return {
        "group": run.item.group,
        "question": run.item.question,
        "task": run.item.task,
        "labels": sorted((label.name, label.value) for label in run.labels),
        "model": call.model,
        "mode": call.logprobs_mode,
        "messages": call.messages,
        "text": call.text,
        "tokens": call.tokens,
        "finish_reason": call.finish_reason,
    }


FILES = [
    *((path, "inspect") for path in sorted((LOGS / "inspect").iterdir())),
    *((path, "lm-eval") for path in sorted((LOGS / "lm-eval").glob("samples_*.jsonl"))),
    *((path, "helm") for path in sorted((LOGS / "helm").iterdir())),
    *((path, "promptfoo") for path in sorted((LOGS / "promptfoo").iterdir())),
    *((path, "openai-batch") for path in sorted((LOGS / "openai-batch").glob("*_output.jsonl"))),
]


NO_ANSWERS = {"samples_words_2026-11-23T13-35-56.085715.jsonl", "expired_output.jsonl"}
"""Likelihoods of given texts, and a batch that expired: none of them is an answer."""


@pytest.mark.parametrize(("path", "form"), FILES, ids=lambda value: value if isinstance(value, str) else value.name)
def test_what_a_log_says_comes_back_from_a_container_as_it_was(path: Path, form: str, tmp_path: Path) -> None:
    first = RunStore(tmp_path / "runs")
    if path.name in NO_ANSWERS:
        with pytest.raises(ImportFileError, match="no answer of it can be taken"):
            import_file(path, first, form=form, plain=True)
        return
    import_file(path, first, form=form, plain=True)
    before = {run.id: run for run in first}
    assert before
    lines = [line_of(run) for run in before.values()]
    bare = sum(run.calls[0].logprobs is None for run in before.values())
    container = CONTAINERS[FILES.index((path, form)) % len(CONTAINERS)]
    again = RunStore(tmp_path / container)
    report = import_file(written(lines, container, tmp_path), again, plain=True)
    assert (report.imported, report.bad, report.without_logprobs) == (len(before), 0, bare)
    after = {run.id: run for run in again}
    assert after.keys() == before.keys()
    for id, run in before.items():
        assert told(after[id]) == told(run)
        numbers, others = run.calls[0].logprobs, after[id].calls[0].logprobs
        assert (numbers is None) == (others is None)
        if numbers is not None:
            np.testing.assert_array_equal(others, numbers)  # to the bit
