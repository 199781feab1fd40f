"""Runs inside vLLM's own environment, for `research.engines.vllm_engine` and the slow tests: one part a process.

PYTHON -m research.engines.vllm_worker answers|async|states|rate-vllm|rate-transformers|rate-async OUT
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.llms.base import Request
from metaprobe.records.types import Call, Message, Sampling

MODEL = "smollm2-135m"
QUESTIONS = tuple(f"What is {a} + {b}? Answer in one sentence." for a, b in ((2, 3), (17, 28), (9, 9), (40, 41)))
LONG = tuple(f"Explain in detail why {x} matters." for x in ("zorblax theory", "rain", "quantum cheese", "sleep"))
STATES = tuple(
    Call(id=f"c{i}", model=MODEL, messages=(Message("user", question),), text=text)
    for i, (question, text) in enumerate(
        [
            ("What is 2 + 2?", "2 + 2 is 4."),
            ("Name a city.", "Paris is a city in France, on the Seine."),
            ("Count.", "One two three four five six seven."),
        ]
    )
)
RATE, LENGTH, TURNS = 0.2, 60, 8


def requests() -> list[Request]:
    """Greedy answers, one that is cut, and one that a stop text ends."""
    asked = [(question, Sampling(max_tokens=40)) for question in QUESTIONS]
    asked += [(QUESTIONS[0], Sampling(max_tokens=2)), ("Say: one two three four", Sampling(max_tokens=30, stop=("e",)))]
    return [Request(id=f"r{i}", messages=(Message("user", q),), sampling=s) for i, (q, s) in enumerate(asked)]


def answers(out: Path) -> None:
    """Answers of the engine."""
    from metaprobe.llms.vllm_engine import EngineLLM

    llm = EngineLLM.load(MODEL, top_logprobs=3, max_model_len=1024, max_num_batched_tokens=1024)

    async def ask() -> dict[str, Any]:
        async with llm:
            # More than one step holds, each with a seed of its own.
            long_prompts = [Message("user", f"Count {i}: " + "one, two, three. " * 80) for i in range(3)]
            seeded = [
                Request(id=f"s{i}", messages=(message,), sampling=Sampling(temperature=1.0, seed=i, max_tokens=3))
                for i, message in enumerate(long_prompts)
            ]
            drawn = await asyncio.gather(*(llm.complete(request) for request in seeded))
            calls = await asyncio.gather(*(llm.complete(request) for request in requests()))
        return {
            "calls": [plain(call) for call in calls],
            "seeded": [len(call.tokens) for call in drawn],
        }

    out.write_text(json.dumps(asyncio.run(ask())))


def rate_vllm(out: Path) -> None:
    """Tokens a second of vLLM's engine."""
    from metaprobe.llms.vllm_engine import EngineLLM

    async def ask() -> None:
        async with EngineLLM.load(MODEL, top_logprobs=5, max_model_len=1024) as llm:
            await measure_rate(llm, out)

    asyncio.run(ask())


def rate_transformers(out: Path) -> None:
    """Tokens a second of transformers, in this process too."""
    from metaprobe.llms.local import LocalLLM

    asyncio.run(measure_rate(LocalLLM.load(MODEL, top_logprobs=5, batch_size=32), out))


async def measure_rate(llm: Any, out: Path) -> None:
    """Answers two batches of 32 requests, and times the second."""
    for number in range(2):
        questions = [(f"r{number}.{i}", f"{LONG[i % 4]} ({number}.{i})") for i in range(32)]
        limit = Sampling(max_tokens=64)
        asked = [Request(id=name, messages=(Message("user", text),), sampling=limit) for name, text in questions]
        started = time.perf_counter()
        calls = await asyncio.gather(*(llm.complete(request) for request in asked))
        rate = sum(len(call.tokens) for call in calls) / (time.perf_counter() - started)
    out.write_text(json.dumps({"tokens_per_s": rate}))


def plain(call: Call) -> dict[str, Any]:
    """The call as JSON."""
    assert call.logprobs is not None
    assert call.token_ids is not None
    assert call.prompt_token_ids is not None
    assert call.top_logprobs is not None
    return {
        "text": call.text,
        "tokens": list(call.tokens),
        "ids": call.token_ids.tolist(),
        "prompt": call.prompt_token_ids.tolist(),
        "logprobs": call.logprobs.tolist(),
        "top": list(call.top_logprobs.shape),
        "finish": call.finish_reason,
    }


def watched(out: Path) -> None:
    """Answers of `AsyncLLM`, watched with a gate: what was seen, and what is still being written in the engine."""
    from metaprobe.probes.quality import QualityPredictor
    from metaprobe.routing.gate import StreamingGate
    from metaprobe.routing.watch_stream import watch

    predictor, gates = QualityPredictor.load(), StreamingGate.load(stop=RATE, on_mismatch="ignore")

    async def ask() -> list[dict[str, Any]]:
        engine, rows = async_engine(), []
        for i, question in enumerate(LONG):
            generated = engine.generate(question, sampled(i), f"r{i}")
            seen: list[float] = []
            async for output in (one := watch(generated, predictor, gates)):
                [delta] = output.outputs
                seen += [entry[token].logprob for token, entry in zip(delta.token_ids, delta.logprobs, strict=True)]
            finish, open_still = delta.finish_reason, engine.output_processor.get_num_unfinished_requests()
            here = gates.start()
            fires = next((n for n, x in enumerate(seen, 1) if here.push(min(x, 0.0)) != "continue"), None)
            row = {"action": one.action, "tokens": len(seen), "fires": fires, "finish": finish, "open": open_still}
            rows.append(row | {"score": one.verdict and one.verdict.score, "logprobs": seen})
        engine.shutdown()
        return rows

    out.write_text(json.dumps(asyncio.run(ask())))


def rate_async(out: Path) -> None:
    """Tokens a second of `AsyncLLM`, 32 requests at once, plain and watched in turn, by a gate."""
    from metaprobe.probes.quality import QualityPredictor
    from metaprobe.routing.gate import StreamingGate
    from metaprobe.routing.watch_stream import watch

    predictor, gates = QualityPredictor.load(), StreamingGate.load(stop=0.02, on_mismatch="ignore")

    async def ask() -> dict[str, list[float]]:
        engine, rates = async_engine(), {"plain": [], "watched": []}

        async def one(name: str, i: int, kind: str) -> int:
            generated = engine.generate(f"{LONG[i % 4]} ({name})", sampled(i), f"{name}.{i}.{kind}")
            tokens = 0
            async for output in watch(generated, predictor, gates) if kind == "watched" else generated:
                tokens += len(output.outputs[0].token_ids)
            return tokens

        for turn in range(1 + TURNS):
            for kind in list(rates)[:: 1 if turn % 2 else -1]:
                started = time.perf_counter()
                made = sum(await asyncio.gather(*(one(f"t{turn}", i, kind) for i in range(32))))
                if turn:
                    rates[kind].append(made / (time.perf_counter() - started))
        engine.shutdown()
        return rates

    out.write_text(json.dumps(asyncio.run(ask())))


def async_engine() -> Any:
    """vLLM's asynchronous engine, which works in a process of its own."""
    from metaprobe.llms.vllm_engine import engine_options, import_vllm
    from metaprobe.llms.weights import resolve

    vllm = import_vllm()
    options = engine_options(resolve(MODEL).location, max_model_len=1024)
    return vllm.AsyncLLMEngine.from_engine_args(vllm.AsyncEngineArgs(**options))


def sampled(seed: int) -> Any:
    """Parameters of an answer at temperature 1, handed on token by token with log-probabilities."""
    from metaprobe.llms.vllm_engine import import_vllm

    vllm = import_vllm()
    kind = vllm.sampling_params.RequestOutputKind.DELTA
    return vllm.SamplingParams(temperature=1.0, seed=seed, max_tokens=LENGTH, logprobs=0, output_kind=kind)


def states(out: Path) -> None:
    """States of all layers, and log-probabilities, of given calls."""
    from metaprobe.llms.vllm_states import EngineReplay, StatesEngine

    engine = StatesEngine(MODEL, "all", max_model_len=1024)
    replay = EngineReplay(engine, positions=("prompt_last", "answer_last", "answer_mean"), tokens=True)
    readings = [replay.reading(call, "") for call in STATES]
    read = replay.read(readings)
    said = replay.logprobs_of([(reading.prompt, reading.answer) for reading in readings])
    whole = engine.states([reading.prompt + reading.answer for reading in readings])
    kept: dict[str, Any] = {f"all{i}": one for i, one in enumerate(whole)}
    kept |= {f"ids{i}": np.array(reading.prompt + reading.answer) for i, reading in enumerate(readings)}
    kept |= {f"states{i}": one.tokens for i, one in enumerate(read)} | {f"said{i}": one for i, one in enumerate(said)}
    np.savez(out, **kept, **{f"hidden{i}": one.hidden.values for i, one in enumerate(read)})


if __name__ == "__main__":
    parts = {"answers": answers, "async": watched, "states": states}
    parts |= {"rate-vllm": rate_vllm, "rate-transformers": rate_transformers, "rate-async": rate_async}
    parts[sys.argv[1]](Path(sys.argv[2]))
