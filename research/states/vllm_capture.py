"""Runs inside vLLM's own environment: answers, and hidden states with prefix caching and chunked prefill switched on.

    PYTHON -m research.states.vllm_capture answers OUT     # answers of vLLM's engine, into OUT/answers.json
    PYTHON -m research.states.vllm_capture bfloat16 OUT    # states of canaries and answers, and those of planted faults
    PYTHON -m research.states.vllm_capture float32 OUT     # states of canaries and some answers
    PYTHON -m research.states.vllm_capture adapters OUT    # states of canaries and answers under LoRA adapters
    PYTHON -m research.states.vllm_capture fp8_e4m3 OUT    # states that came through a cache of 8 bits; also fp8_e5m2
    PYTHON -m research.states.vllm_capture canaries OUT    # states of canaries in float32, for the slow tests

`research.states.vllm_check` compares them with those of transformers. A fault that is there is not planted again.
Faults are planted between the engine and the cache of its states, or in the connector that reads this cache.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metaprobe import RunStore
from metaprobe.llms.base import Request
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.vllm_states import EngineReplay, StatesEngine
from metaprobe.records.canaries import CANARY_POSITIONS
from metaprobe.records.types import Call, Message, Sampling
from research.blocks import ROOT

MODEL = "smollm2-135m"
STORE = ROOT / "recorded" / "smollm2-metacog-eval"
"""Store whose prompts are asked: they begin with worked examples, which the prefix cache then holds."""
REQUESTS, AT_ONCE, TOKENS_EACH = 500, 32, 24
FEW, FLOAT32_REQUESTS = 8, 64
"""Requests that are read beside one as long as the context, and in float32."""
CONTEXT, BATCHED_TOKENS = 1024, 64
"""Tokens of the context, and most tokens of one step. These are fewer than nearly every prompt has, so that prompts are
read in parts."""
BOTH_ON: dict[str, Any] = {
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "max_num_batched_tokens": BATCHED_TOKENS,
    "max_num_seqs": AT_ONCE,
    "max_model_len": CONTEXT,
    "block_size": 32,  # the cache holds whole blocks: with the usual 128 hardly a canary would come from it
    "disable_log_stats": False,
}
EVERY = 3
"""Steps of the engine between two that a fault of chunks changes."""


def main() -> None:
    """Runs the part that the first argument names."""
    part, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Callable[[Path], None]] = {"answers": answers, "adapters": adapters}
    parts |= {name: partial(eight_bit_cache, name) for name in EIGHT_BITS}
    parts.get(part, partial(states, part))(out)


def answers(out: Path) -> None:
    """Keeps an answer of the engine to each prompt."""
    from metaprobe.llms.vllm_engine import EngineLLM

    prompts = islice(((call.id, call.messages) for run in RunStore(STORE).runs() for call in run.calls), REQUESTS)
    sampling = Sampling(max_tokens=TOKENS_EACH, temperature=1.0)
    requests = [Request(id=name, messages=messages, sampling=sampling) for name, messages in prompts]
    llm = EngineLLM.load(MODEL, **BOTH_ON)

    async def ask() -> list[Call]:
        async with llm:
            return list(await asyncio.gather(*(llm.complete(request) for request in requests)))

    calls = asyncio.run(ask())
    (out / "answers.json").write_text(json.dumps([as_json(call) for call in calls]))


def as_json(call: Call) -> dict[str, Any]:
    """Returns what is kept of a call."""
    assert call.prompt_token_ids is not None
    assert call.token_ids is not None
    assert call.logprobs is not None
    return {
        "id": call.id,
        "messages": [[message.role, message.content] for message in call.messages],
        "prompt": call.prompt_token_ids.tolist(),
        "answer": call.token_ids.tolist(),
        "tokens": list(call.tokens),
        "text": call.text,
        "logprobs": call.logprobs.tolist(),
    }


def read_answers(out: Path) -> list[Call]:
    """Returns the kept answers that have a token."""
    return [
        Call(
            id=one["id"],
            messages=tuple(Message(role, content) for role, content in one["messages"]),
            model=MODEL,
            text=one["text"],
            tokens=tuple(one["tokens"]),
            prompt_token_ids=np.array(one["prompt"], np.int32),
            token_ids=np.array(one["answer"], np.int32),
            logprobs=np.array(one["logprobs"], np.float32),
            logprobs_mode="raw",
        )
        for one in json.loads((out / "answers.json").read_text())
        if one["answer"]
    ]


EIGHT_BITS = ("fp8_e4m3", "fp8_e5m2")
"""Formats of 8 bits in which vLLM may keep its cache. The extracted states lie in this cache."""


def eight_bit_cache(name: str, out: Path) -> None:
    """Keeps the states of answers and canaries of an engine whose cache has numbers of 8 bits."""
    engine = StatesEngine(MODEL, "all", dtype="bfloat16", kv_cache_dtype=name, **BOTH_ON)
    replay = EngineReplay(engine, positions=CANARY_POSITIONS)
    keep_faults(engine, replay, out, {f"cache in {name}": lambda engine, read: nullcontext()})


ADAPTER_RANK = 4
ADAPTER_SIZES = {"adapter of 10 %": 0.1, "adapter of 3 %": 0.03, "adapter of 1 %": 0.01}
"""Maps a fault to the size of its adapter as a share of the size of each weight that it changes."""


def adapters(out: Path) -> None:
    """Keeps the states of answers and canaries that the engine reads with LoRA adapters of several sizes."""
    engine = StatesEngine(MODEL, "all", enable_lora=True, max_lora_rank=8, dtype="bfloat16", **BOTH_ON)
    replay = EngineReplay(engine, positions=CANARY_POSITIONS)
    keep_faults(engine, replay, out, {"none, adapters allowed": lambda engine, read: nullcontext()})
    faults = {name: partial(adapter_on, folder=out / name, size=size) for name, size in ADAPTER_SIZES.items()}
    keep_faults(engine, replay, out, faults)


@contextmanager
def adapter_on(engine: StatesEngine, _: Callable[[], None], *, folder: Path, size: float) -> Iterator[None]:
    """Makes the engine read every request with a LoRA adapter on queries and values."""
    from vllm.lora.request import LoRARequest

    write_adapter(folder, size)
    sound = engine._engine.generate
    request = LoRARequest(folder.name, 1 + list(ADAPTER_SIZES).index(folder.name), str(folder))
    engine._engine.generate = partial(sound, lora_request=request)
    try:
        yield
    finally:
        engine._engine.generate = sound


def write_adapter(folder: Path, size: float) -> None:
    """Writes a random LoRA adapter as peft does; `size`: its size as a share of each weight's."""
    from safetensors.torch import save_file

    weights = dict(LocalLLM.load(MODEL).model.named_parameters())  # vLLM's own are packed for the processor
    torch.manual_seed(1)
    tensors = {}
    for name, weight in weights.items():
        if not name.endswith(("q_proj.weight", "v_proj.weight")):
            continue
        out, into = weight.shape
        down, up = torch.randn(ADAPTER_RANK, into), torch.randn(out, ADAPTER_RANK)
        up *= size * weight.detach().float().norm() / (up @ down).norm()
        module = f"base_model.model.{name.removesuffix('.weight')}"
        tensors |= {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": ADAPTER_RANK, "lora_alpha": ADAPTER_RANK, "bias": "none", "lora_dropout": 0.0}
    config["target_modules"] = ["q_proj", "v_proj"]
    (folder / "adapter_config.json").write_text(json.dumps(config))


def states(part: str, out: Path) -> None:
    """Keeps states of the canaries, of answers, and in bfloat16 those that each fault makes."""
    dtype = "float32" if part == "canaries" else part
    engine = StatesEngine(MODEL, "all", dtype=dtype, **BOTH_ON)
    replay = EngineReplay(engine, positions=CANARY_POSITIONS)
    if not (out / f"metrics-{dtype}.json").exists():
        steps = watch_schedule(engine)
        keep_canaries(replay, out / f"canaries-{dtype}.json")
        keep_canaries(replay, out / f"canaries-{dtype}-again.json")  # from the cache
        if part != "canaries":
            keep_answers(replay, engine.context, dtype, out)
        keep_metrics(engine, steps, out / f"metrics-{dtype}.json")
    if part == "bfloat16":
        keep_faults(engine, replay, out, FAULTS)


def keep_answers(replay: EngineReplay, context: int, dtype: str, out: Path) -> None:
    """Keeps states of answers, in batches, and in bfloat16 those of the canaries after each batch."""
    calls, wide = read_answers(out), dtype == "float32"
    if not wide:
        np.save(out / "longest.npy", states_of(replay, [longest(calls, context), *calls[:FEW]]))
    kept = []
    for start in range(0, FLOAT32_REQUESTS if wide else len(calls), AT_ONCE):
        kept.append(states_of(replay, calls[start : start + AT_ONCE]))
        if not wide:
            keep_canaries(replay, out / f"canaries-after-{start:03d}.json")
    np.save(out / f"states-{dtype}.npy", np.concatenate(kept))


def keep_faults(engine: StatesEngine, replay: EngineReplay, out: Path, faults: Mapping[str, "Planted"]) -> None:
    """Keeps the states of answers and canaries that each fault makes."""
    calls = read_answers(out)[:AT_ONCE]
    for name, planted in faults.items():
        folder = out / "faults" / name
        if folder.exists():
            continue
        folder.mkdir(parents=True)

        def read(folder: Path = folder) -> None:
            np.save(folder / "states.npy", states_of(replay, calls))
            keep_canaries(replay, folder / "canaries.json")

        engine._engine.reset_prefix_cache()
        with planted(engine, read):
            read()
        print(name, flush=True)


def longest(calls: Sequence[Call], context: int) -> Call:
    """Returns a call as long as the engine's context: the prompts of several calls in one."""
    answer = calls[0].token_ids
    prompts = np.concatenate([call.prompt_token_ids for call in calls if call.prompt_token_ids is not None])
    assert answer is not None
    return replace(calls[0], id="longest", prompt_token_ids=prompts[: context - len(answer)])


def keep_canaries(replay: EngineReplay, path: Path) -> None:
    """Keeps the states of the canaries in a file."""
    seen = replay.canaries()
    assert seen is not None
    path.write_bytes(seen.to_json())


def states_of(replay: EngineReplay, calls: Sequence[Call]) -> np.ndarray:
    """Returns the states of calls that are read in one batch, float16 (n, layers, positions, width)."""
    return np.stack([one.hidden.values for one in replay.read([replay.reading(call, "") for call in calls])])


def watch_schedule(engine: StatesEngine) -> dict[str, int]:
    """Returns the number of steps in which the engine's own schedule holds each request; it goes on counting."""
    steps: Counter[str] = Counter()
    scheduler = engine._engine.llm_engine.engine_core.engine_core.scheduler
    schedule = scheduler.schedule

    def counted(*given: Any, **named: Any) -> Any:
        output = schedule(*given, **named)
        steps.update(output.num_scheduled_tokens.keys())
        return output

    scheduler.schedule = counted
    return steps


def keep_metrics(engine: StatesEngine, steps: Mapping[str, int], path: Path) -> None:
    """Keeps how many prompt tokens came from the cache, and how many requests were read in parts.

    Each request draws one token, so a request that is in several steps of the schedule is read in parts.
    """
    counters = {metric.name: metric.value for metric in engine._engine.get_metrics() if hasattr(metric, "value")}
    found = {
        "prompt_tokens": counters["vllm:prefix_cache_queries"],
        "tokens_from_cache": counters["vllm:prefix_cache_hits"],
        "requests": len(steps),
        "requests_in_parts": sum(count > 1 for count in steps.values()),
    }
    path.write_text(json.dumps(found))


Written = Callable[[list[torch.Tensor], Sequence[int]], list[torch.Tensor] | None]
"""Maps the states of a step by layer, each (tokens, width), and the row at which each request begins, with the end, to
what is written into the cache; None writes nothing."""


@contextmanager
def steps_written(change: Written) -> Iterator[None]:
    """Changes what the engine writes into the cache of states in each step."""
    from vllm.v1.spec_decode.extract_hidden_states import ExtractHiddenStatesProposer

    sound = ExtractHiddenStatesProposer.propose

    def propose(self: Any, count: int, sampled: Any, target: list[torch.Tensor], meta: Any, slots: Any = None) -> Any:
        changed = change(target, meta.query_start_loc_cpu.tolist())
        return sampled[:, :1] if changed is None else sound(self, count, sampled, changed, meta, slots)

    def by_name(self: Any, **given: Any) -> Any:
        return propose(
            self,
            given["num_speculative_tokens"],
            given["sampled_token_ids"],
            given["target_hidden_states"],
            given["common_attn_metadata"],
            given.get("slot_mappings"),
        )

    ExtractHiddenStatesProposer.propose = by_name
    try:
        yield
    finally:
        ExtractHiddenStatesProposer.propose = sound


def rows_exchanged(states: list[torch.Tensor], starts: Sequence[int]) -> list[torch.Tensor]:
    """Exchanges the newest rows of two requests of a step."""
    order = list(range(len(states[0])))
    for first in range(0, len(starts) - 2, 2):
        begin, middle, end = starts[first : first + 3]
        for back in range(1, min(middle - begin, end - middle) + 1):
            order[middle - back], order[end - back] = order[end - back], order[middle - back]
    return [layer[order] for layer in states]


def rows_late(states: list[torch.Tensor], starts: Sequence[int]) -> list[torch.Tensor]:
    """Writes the first row of a step twice, so that every later row of the step stands one place too late."""
    return [torch.cat([layer[:1], layer[:-1]]) for layer in states]


class OfSteps:
    """Changes what is written in each third step of the engine."""

    def __init__(self, *, twice: bool) -> None:
        """`twice`: whether the states of the step before are written again; else nothing is written."""
        self.twice, self.count, self.before = twice, 0, None

    def __call__(self, states: list[torch.Tensor], starts: Sequence[int]) -> list[torch.Tensor] | None:
        self.count += 1
        before, self.before = self.before, [layer.clone() for layer in states]
        if self.count % EVERY or before is None:
            return states
        if not self.twice:
            return None
        places = torch.arange(len(states[0])) % len(before[0])
        return [layer[places] for layer in before]


def layers_moved(step: int) -> Written:
    """Writes the states of a layer as those of a neighbour."""

    def change(states: list[torch.Tensor], starts: Sequence[int]) -> list[torch.Tensor]:
        last = len(states) - 1
        return [states[min(max(layer + step, 0), last)] for layer in range(len(states))]

    return change


@contextmanager
def weights_changed(engine: StatesEngine) -> Iterator[None]:
    """Changes the weights of the norms before attention by some 10 %."""
    model = engine._engine.llm_engine.model_executor.driver_worker.worker.model_runner.model
    torch.manual_seed(1)
    sound = [block.input_layernorm.weight.data for block in model.model.layers]
    for block, weight in zip(model.model.layers, sound, strict=True):
        block.input_layernorm.weight.data = weight * (1 + 0.1 * torch.randn_like(weight))
    try:
        yield
    finally:
        for block, weight in zip(model.model.layers, sound, strict=True):
            block.input_layernorm.weight.data = weight


@contextmanager
def cache_of_other_weights(engine: StatesEngine, read: Callable[[], None]) -> Iterator[None]:
    """Fills the prefix cache with other weights, and puts the right ones back."""
    with weights_changed(engine):
        read()
    yield


@contextmanager
def prefix_cut(engine: StatesEngine) -> Iterator[None]:
    """Makes the connector leave out the first block of 32 tokens."""
    from metaprobe.llms import vllm_connector  # imports vLLM, which the comparison does not have

    connector = vllm_connector.CpuHiddenStatesConnector
    sound = connector._submit_async_write

    def submit(self: Any, pending: Any) -> None:
        blocks = pending.block_ids
        sound(self, replace(pending, block_ids=[*blocks[1:], blocks[-1]] if len(blocks) > 1 else blocks))

    connector._submit_async_write = submit
    try:
        yield
    finally:
        connector._submit_async_write = sound


@contextmanager
def other_template(engine: StatesEngine) -> Iterator[None]:
    """Gives the engine a chat template that begins with a sentence of its own."""
    sound = engine.tokenizer.chat_template
    engine.tokenizer.chat_template = "Answer briefly.\n\n" + sound
    try:
        yield
    finally:
        engine.tokenizer.chat_template = sound


Planted = Callable[[StatesEngine, Callable[[], None]], Any]
"""Plants a fault for as long as the returned context is entered, given the engine and a function that reads once."""

FAULTS: dict[str, Planted] = {
    "none": lambda engine, read: steps_written(lambda states, starts: states),
    "rows exchanged": lambda engine, read: steps_written(rows_exchanged),
    "rows one place late": lambda engine, read: steps_written(rows_late),
    "chunk dropped": lambda engine, read: steps_written(OfSteps(twice=False)),
    "chunk captured twice": lambda engine, read: steps_written(OfSteps(twice=True)),
    "layer +1": lambda engine, read: steps_written(layers_moved(1)),
    "layer -1": lambda engine, read: steps_written(layers_moved(-1)),
    "prefix cache cut": lambda engine, read: prefix_cut(engine),
    "prefix cache of other weights": cache_of_other_weights,
    "other weights": lambda engine, read: weights_changed(engine),
    "other template": lambda engine, read: other_template(engine),
}
"""Maps a fault to what plants it."""


if __name__ == "__main__":
    main()
