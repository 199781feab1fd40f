"""Checks that hidden states belong to their tokens: by canaries, by reading calls again, and by the model's own head.

| check | needs | notices | cannot notice |
|---|---|---|---|
| canaries and golden states | golden states | other layers, weights, templates and tokens; exchanged rows | faults that only other texts, lengths or batches bring about |
| calls read again | the weights | faults of these very calls | faults that the reader shares, such as other weights |
| the head | states of the last layer, log-probabilities | states of another token, row or layer | layers below the last |
"""  # noqa: E501  a table

import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch

from metaprobe.llms.base import LLMError
from metaprobe.llms.hidden_capture import check_hooks, decoder_blocks, head_logits, source_sample
from metaprobe.llms.known_good import unlisted
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import StateReplay
from metaprobe.llms.vllm_states import EngineReplay, StatesEngine
from metaprobe.llms.weights import complete_tokenizer, encode_text
from metaprobe.records.activations import ActivationFile
from metaprobe.records.canaries import (
    CANARIES,
    CANARY_POSITIONS,
    FEWEST_CANARIES,
    TOLERANCES,
    CanaryStates,
    StatesCheck,
    compare_canaries,
    compare_states,
)
from metaprobe.records.response import NO_LOGPROB
from metaprobe.records.store import RunStore
from metaprobe.records.types import LIVE_POSITIONS, Call, Hidden

HEAD_TOLERANCES = {"float32": 0.02, "float16": 0.05, "bfloat16": 0.1}
"""Largest mean difference of the head's log-probabilities from the recorded ones, nats, by number format. Rounding
gives at most a fifth of it (docs/research/states.md)."""
_HEAD_TOKENS = {"prompt_last": 0, "answer_first": 1}
"""Position -> index of the answer token that is drawn from its state."""


def source_canaries(
    model: str, layers: Sequence[int], *, via: Literal["transformers", "vllm"] = "transformers"
) -> CanaryStates:
    """Returns the states that a model of this machine gives the canaries.

    A version of the library that is not known to be good is checked first, and a warning says so. Raises `LLMError`
    where the model cannot be loaded, where that check fails, or where its context is too short for the canaries.
    """
    layer_names = ",".join(map(str, layers))
    if via == "vllm":
        canary_states = EngineReplay(checked_engine(model, layer_names)).canaries()
    else:
        llm = LocalLLM.load(model)
        check_version(llm)
        canary_states = StateReplay(llm, layers=layer_names).canaries()
    if canary_states is None:
        raise LLMError(f"the context of {model} is too short for {FEWEST_CANARIES} canaries: its states are unchecked")
    return canary_states


_CANARIES_OF_MODEL: WeakKeyDictionary[Any, tuple[object, CanaryStates | None]] = WeakKeyDictionary()
"""Loaded model -> its `source_sample`, and the states that it gave the canaries then."""


def model_canaries(model: Any, tokenizer: Any, layers: Sequence[int]) -> CanaryStates | None:
    """Returns the states that a loaded transformers model gives the canaries at these layers; None if its context is
    too short for them. They are read once, and again where the model or the chat template was changed.
    """
    chosen = sorted(layers)
    sample = source_sample(model, tokenizer, chosen)
    kept_sample, canaries = _CANARIES_OF_MODEL.get(model, (None, None))
    if sample != kept_sample:
        own_tokenizer = complete_tokenizer(deepcopy(tokenizer))
        llm = LocalLLM(model, own_tokenizer, name=str(model.config.name_or_path), revision="unknown")
        canaries = StateReplay(llm, layers=",".join(map(str, chosen))).canaries()
        _CANARIES_OF_MODEL[model] = sample, canaries
    return canaries


def check_version(llm: LocalLLM) -> None:
    """Checks the hooks where the version of transformers is not known to be good, and warns of the version. Raises
    `LLMError` where the hooks' states are not the model's own."""
    if note := unlisted("transformers"):
        warnings.warn(f"metaprobe: {note}", stacklevel=2)
        check_hooks(llm.model, encode_text(llm.tokenizer, CANARIES[0].answer))


def checked_engine(model: str, layers: str) -> StatesEngine:
    """Returns vLLM's engine for these layers. Where its version is not known to be good, transformers first reads the
    canaries on the CPU, and `check_engine` compares."""
    if not unlisted("vllm"):
        return StatesEngine(model, layers)
    reference = StateReplay(LocalLLM.load(model, device="cpu"), layers=layers).canaries()  # freed before the engine
    engine = StatesEngine(model, layers)
    if reference is not None and (canary_states := EngineReplay(engine).canaries()) is not None:
        check_engine(reference, canary_states)
    return engine


def check_engine(reference: CanaryStates, seen: CanaryStates) -> None:
    """Warns of a version of vLLM that is not known to be good. Raises `LLMError` where its states are not those of
    transformers."""
    note = unlisted("vllm")
    checked = compare_canaries(reference, seen, seen.layers)
    if not checked.passed:
        raise LLMError(f"{note}; they are not those of transformers: {checked.reason}")
    warnings.warn(f"metaprobe: {note}; {checked.reason}", stacklevel=2)


@dataclass(frozen=True, slots=True)
class CallsCheck:
    """Holds the result of reading calls again."""

    calls: int
    """Number of calls read again."""
    states: StatesCheck
    """Compares the stored states with states that were read again."""
    head: float | None
    """Mean absolute difference between log-probabilities that the output head gives for stored states and the recorded
    ones, in nats. None if the last layer was not kept at `prompt_last` or `answer_first`, or if log-probabilities are
    missing.
    """
    head_limit: float
    """Largest value of `head` that rounding explains, in nats."""

    @property
    def passed(self) -> bool:
        """Whether states and head agree."""
        return self.states.passed and (self.head is None or self.head <= self.head_limit)

    @property
    def reason(self) -> str:
        """Sentence on the states, and on the head."""
        if self.head is None:
            return f"{self.states.reason}; the head was not asked: keep the last layer at prompt_last or answer_first"
        return (
            f"{self.states.reason}; by the head, recorded log-probabilities are {self.head:.3f} nats off, and at most "
            f"{self.head_limit:g} is rounding"
        )


def check_calls(llm: LocalLLM, calls: Sequence[Call]) -> CallsCheck:
    """Reads calls again that kept their states, and compares those at `CANARY_POSITIONS`.

    Raises `LLMError` for fewer than `FEWEST_CANARIES` calls, calls of different layers or positions, calls without any
    of these positions, and a model whose context is too short for the canaries, whose spread is the unit.
    """
    stored_states = [call.hidden for call in calls if call.hidden is not None]
    layouts = {(hidden.layers, hidden.positions) for hidden in stored_states}
    if len(stored_states) < FEWEST_CANARIES or len(stored_states) < len(calls) or len(layouts) > 1:
        raise LLMError(
            f"{len(stored_states)} of {len(calls)} calls kept states, of {len(layouts)} sets of layers and positions; "
            f"expected at least {FEWEST_CANARIES} calls, all with states of the same ones"
        )
    [(layers, positions)] = layouts
    compared = [position for position in positions if position in CANARY_POSITIONS]
    replay = StateReplay(llm, layers=",".join(map(str, layers)), positions=compared)
    usual = replay.canaries()
    if usual is None:
        raise LLMError(f"the context of {llm.name} is too short for {FEWEST_CANARIES} canaries: nothing is compared")
    states_read = replay.read([replay.reading(call, "") for call in calls])
    order = [positions.index(position) for position in replay.positions]
    of_canaries = usual.values[:, :, [CANARY_POSITIONS.index(position) for position in replay.positions]]
    states_stored = np.stack([hidden.values[:, order] for hidden in stored_states])
    states_now = np.stack([reading.hidden.values for reading in states_read])
    limit = TOLERANCES.get(llm.dtype, TOLERANCES["bfloat16"])
    names = [f"call {call.id}" for call in calls]
    states = compare_states(states_now, states_stored, layers, layers, names, limit, usual=of_canaries)
    head_limit = HEAD_TOLERANCES.get(llm.dtype, max(HEAD_TOLERANCES.values()))
    return CallsCheck(len(calls), states, head_difference(llm, calls), head_limit)


def check_stored(path: Path, model: str, *, calls: int = 32, stage: str | None = None) -> CallsCheck:
    """Reads some calls of a run store again, whose states it holds, and compares: so many of each set of layers and
    positions that is stored. Raises `LLMError` where the store holds too few such calls of this model."""
    store, llm = RunStore(path), LocalLLM.load(model)
    check_version(llm)
    names = ("", llm.name, f"{llm.name}@{llm.revision}")
    files = [file for file in store.activation_files() if file.model in names]
    if not files:
        raise LLMError(f"{path} holds no hidden states of {llm.name}; run `metaprobe extract`, or name their model")
    runs = list(store.runs())
    calls_of_stage = [call for run in runs for call in run.calls if stage in (None, call.stage) and call.error is None]
    checks: dict[str, CallsCheck] = {}
    passed_over: list[str] = []
    for layout in dict.fromkeys(file.layout for file in files):
        name = f"layers {', '.join(map(str, layout.layers))} at {', '.join(layout.positions)}"
        calls_with_states = _with_states(calls_of_stage, [file for file in files if file.layout == layout], calls)
        if len(calls_with_states) < FEWEST_CANARIES or not {*layout.positions} & {*CANARY_POSITIONS}:
            passed_over.append(f"{name}: {len(calls_with_states)} calls, not compared")
        else:
            checks[name] = check_calls(llm, calls_with_states)
    if not checks:
        raise LLMError(
            f"{path} holds {'; '.join(passed_over)}; expected at least {FEWEST_CANARIES} calls with states at one of "
            f"{', '.join(CANARY_POSITIONS)}"
        )
    return _join_checks(checks, passed_over)


def _with_states(calls_of_stage: Sequence[Call], files: Sequence[ActivationFile], count: int) -> list[Call]:
    """Returns some of the calls with their states in these files, all of one layout."""
    layout = files[0].layout
    live_indices = [i for i, position in enumerate(layout.positions) if position in LIVE_POSITIONS]
    positions = tuple(layout.positions[i] for i in live_indices)
    location_of_call: dict[str, tuple[ActivationFile, int]] = {}
    for file in files:
        for row, name in enumerate(file.call_ids):
            location_of_call.setdefault(name, (file, row))  # of several states of a call the first are read
    calls_there = [call for call in calls_of_stage if call.id in location_of_call]
    calls_to_check = calls_there[:: max(len(calls_there) // count, 1)][
        :count
    ]  # from the whole store: its files may be of several sources
    chosen_calls: list[Call] = []
    for call in calls_to_check:
        file, row = location_of_call[call.id]
        values = file.read(np.array([row]), range(len(layout.layers)), live_indices)[0]
        chosen_calls.append(replace(call, hidden=Hidden(values, layout.layers, positions)))
    return chosen_calls


def _join_checks(checks: Mapping[str, CallsCheck], passed_over: Sequence[str]) -> CallsCheck:
    """Returns one result for those of several layouts, by name, which names those that were passed over."""
    first, *other_checks = checks.values()
    if not other_checks and not passed_over:
        return first
    heads = [check.head for check in checks.values() if check.head is not None]
    reason = "; ".join([*(f"{name}: {check.states.reason}" for name, check in checks.items()), *passed_over])
    passed = all(check.states.passed for check in checks.values())
    drift, worst = (max(getattr(check.states, name) for check in checks.values()) for name in ("drift", "worst"))
    calls = sum(check.calls for check in checks.values())
    return CallsCheck(calls, StatesCheck(passed, reason, drift, worst), max(heads, default=None), first.head_limit)


@torch.inference_mode()
def head_difference(llm: LocalLLM, calls: Sequence[Call]) -> float | None:
    """Returns the mean absolute difference, nats, between the recorded log-probabilities of answer tokens and those
    that the model's head gives the states of the last layer before them.

    No other model and no second reading is needed: states of the last prompt token give the first answer token, and
    states of the first answer token the second. Returns None where no call allows it.
    """
    last = len(decoder_blocks(llm.model))
    rows = [
        (
            hidden.values[hidden.layers.index(last), hidden.positions.index(position)],
            call.token_ids[token_place],
            float(logprob),
        )
        for call in calls
        if (hidden := call.hidden) is not None and last in hidden.layers and _comparable(call)
        for position, token_place in _HEAD_TOKENS.items()
        if position in hidden.positions and call.token_ids is not None and token_place < len(call.token_ids)
        if call.logprobs is not None and np.isfinite(logprob := call.logprobs[token_place]) and logprob > NO_LOGPROB
    ]
    if not rows:
        return None
    states = torch.tensor(np.stack([row[0] for row in rows]).astype(np.float32), device=llm.model.device)
    logits = head_logits(llm.model, states)
    targets = torch.tensor([int(row[1]) for row in rows], device=logits.device)
    logprobs = torch.log_softmax(logits, dim=-1).gather(1, targets[:, None])[:, 0].cpu().numpy()
    return float(np.abs(logprobs - np.array([row[2] for row in rows])).mean())


def _comparable(call: Call) -> bool:
    """Whether the answer's first token is the call's first token, and its log-probabilities are the model's own."""
    return call.logprobs_mode == "raw" and (not call.segments or call.segments[0].kind == "answer")
