"""Asks SmolLM2-135M the same questions through other engines and number formats, for `metaprobe check`.

    python -m research.engines.same_questions float32      # transformers in float32, not bfloat16
    python -m research.engines.same_questions llama-cpp    # llama.cpp reads the embedded Q4_1 file itself
    VLLM_PYTHON -m research.engines.same_questions vllm    # vLLM's engine in bfloat16

Every part resumes in out/engines, and packs its answers into recorded/engines/NAME. With --kept it asks nothing, and
packs what was answered so far: the items come in an order of which every beginning is a fair sample. The questions
are those of recorded/breadth, asked directly, so that recorded/breadth/smollm2-135m (transformers, bfloat16) is the
engine before.
"""

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from metaprobe.llms.cache import CallCache
from metaprobe.llms.replay import ReplayLLM
from metaprobe.llms.weights import DEFAULT_MODEL, embedded_file
from metaprobe.records.types import Call
from research.breadth.asking import DIRECT, ONCE
from research.breadth.collect import record
from research.breadth.items import EACH, breadth_items
from research.stores.collect import pack

ROOT = Path(__file__).parent.parent.parent
PACKED = ROOT / "recorded" / "engines"
ENGINES = ("float32", "llama-cpp", "vllm")
PORT = 18431
READY_S = 120.0


@click.command()
@click.argument("engine", type=click.Choice(ENGINES))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out"))
@click.option("--each", type=click.IntRange(1, EACH), default=EACH, show_default=True, help="Items of each family.")
@click.option("--batch-size", type=click.IntRange(1), default=64)
@click.option("--kept", is_flag=True, help="Ask nothing, and pack what was answered so far.")
def main(engine: str, out: Path, each: int, batch_size: int, kept: bool) -> None:
    """Record through one engine, and pack."""
    folder = out / "engines" / (f"{engine}-kept" if kept else engine)
    system = replace(ONCE, variants=(DIRECT,), default_variants=(DIRECT,))
    items, calls = breadth_items(each), kept_calls(out / "engines" / f"{engine}-calls.sqlite") if kept else []
    if kept:
        asked = {call.messages[-1].content for call in calls}
        items = [item for item in items if item.question in asked]
    with nullcontext(ReplayLLM(calls)) if kept else served(engine, batch_size) as llm:
        report = asyncio.run(record(system, items, llm, folder, batch_size))
    click.echo(f"{engine}: {report.done} recorded, {report.stored_before} stored before, {len(report.failed)} failed")
    PACKED.mkdir(exist_ok=True)
    pack(folder, PACKED / engine, text=True, alternatives=lambda run: False)


def kept_calls(path: Path) -> list[Call]:
    """Returns every call that a collection's cache keeps."""
    with CallCache(path) as cache, closing(sqlite3.connect(path)) as db:
        calls = [cache.get(key) for (key,) in db.execute("SELECT key FROM calls")]
    return [call for call in calls if call is not None]


@contextmanager
def served(engine: str, batch_size: int) -> Iterator[Any]:
    """Yields the model behind one engine."""
    if engine == "float32":
        from metaprobe.llms.local import LocalLLM

        loaded = LocalLLM.load(batch_size=batch_size)
        yield LocalLLM(
            loaded.model.float(), loaded.tokenizer, name=loaded.name, revision=loaded.revision, batch_size=batch_size
        )
    elif engine == "vllm":
        from metaprobe.llms.vllm_engine import EngineLLM

        yield EngineLLM.load(DEFAULT_MODEL, max_model_len=1024)
    else:
        from metaprobe.llms.openai_client import PLAIN_SAMPLING, OpenAILLM

        with llama_server() as url:
            # Sampled at temperature 0 without a filter, llama.cpp's log-probabilities are those of all tokens.
            yield OpenAILLM.parse(
                f"openai:{DEFAULT_MODEL}@{url}", logprobs_mode="raw", extra_body=PLAIN_SAMPLING, concurrency=2
            )


@contextmanager
def llama_server() -> Iterator[str]:
    """Yields the address of llama-cpp-python's server on the embedded file."""
    command = [sys.executable, str(ROOT / "tests" / "llama_server.py"), "--model", str(embedded_file(DEFAULT_MODEL))]
    command += [
        "--port",
        str(PORT),
        "--n_ctx",
        "1024",
        "--n_threads",
        "1",
        "--logits_all",
        "true",
        "--verbose",
        "false",
    ]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL) as server:
        try:
            until = time.monotonic() + READY_S
            while not _answers(f"http://127.0.0.1:{PORT}/v1/models"):
                if server.poll() is not None or time.monotonic() > until:
                    raise click.ClickException("llama.cpp's server did not start")
                time.sleep(0.5)
            yield f"http://127.0.0.1:{PORT}/v1"
        finally:
            server.terminate()


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=2) as reply:
        return bool(reply.status == 200)
    return False


if __name__ == "__main__":
    main()
