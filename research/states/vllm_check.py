"""Compares vLLM's hidden states with those of transformers, into docs/measured/states_vllm.json.

    PYTHON -m research.states.vllm_capture answers OUT     # with the interpreter of vLLM's environment, then bfloat16
    python -m research.states.vllm_check OUT               # and float32 in place of answers

vLLM reads in batches, with prefix caching and chunked prefill switched on.
"""

import json
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import StateReplay
from metaprobe.llms.states_check import HEAD_TOLERANCES, head_difference
from metaprobe.records.canaries import (
    CANARY_POSITIONS,
    TOLERANCES,
    CanaryStates,
    StatesCheck,
    compare_canaries,
    compare_states,
)
from metaprobe.records.types import Call, FloatArray, Hidden
from research.blocks import MEASURED, write_figures
from research.states.vllm_capture import AT_ONCE, CONTEXT, FEW, FLOAT32_REQUESTS, MODEL, longest, read_answers

FILE = MEASURED / "states_vllm.json"
LAYERS = (18, 30)
"""The layers that the bundled probes read; the head reads the last."""
QUANTILES = (0.5, 0.95, 0.99, 1.0)


def main() -> None:
    """Measures what `vllm_capture` kept in the folder that the argument names."""
    out, llm = Path(sys.argv[1]), LocalLLM.load(MODEL)
    wide = LocalLLM(deepcopy(llm.model).float(), llm.tokenizer, name=llm.name, revision=llm.revision)
    golden = {one.dtype: canaries_of(one) for one in (llm, wide)}
    figures: dict[str, Any] = {
        "engine": {dtype: json.loads((out / f"metrics-{dtype}.json").read_text()) for dtype in golden},
        "canaries": {
            f"{dtype}, {name}": by_layer(golden[dtype], read_canaries(out / f"canaries-{dtype}{suffix}.json"))
            for dtype in golden
            for name, suffix in (("first", ""), ("from the cache", "-again"))
        },
    }
    write_figures(FILE, figures)
    calls = read_answers(out)
    again, again_wide = replayed(llm, calls), replayed(wide, calls[:FLOAT32_REQUESTS])
    few = again[:FLOAT32_REQUESTS]
    off = relative(states_kept(out, "bfloat16"), again)
    figures["by_layer"] = [rounded_quantiles(off[:, layer]) for layer in range(off.shape[1])]
    figures["relative"] = {
        "requests": len(calls),
        "bfloat16": quantiles(off),
        "float32": quantiles(relative(states_kept(out, "float32"), again_wide)),
        "bfloat16 from float32": quantiles(relative(states_kept(out, "bfloat16")[:FLOAT32_REQUESTS], again_wide)),
        "replay, bfloat16 from float32": quantiles(relative(few, again_wide)),
        "replay, one by one": quantiles(relative(replayed(llm, calls[:FLOAT32_REQUESTS], batch_size=1), few)),
        "longest": quantiles(longest_off(llm, calls, out)),
    }
    write_figures(FILE, figures)
    figures["faults"] = faults(llm, golden["bfloat16"], out, again)
    figures["batches"] = batches(llm, golden["bfloat16"], out, again)
    write_figures(FILE, figures)


def canaries_of(llm: LocalLLM) -> CanaryStates:
    """Returns the golden states of all layers, by transformers."""
    states = StateReplay(llm, layers="all").canaries()
    assert states is not None
    return states


def read_canaries(path: Path) -> CanaryStates:
    """Returns the states that vLLM gave."""
    return CanaryStates.from_json(path.read_bytes())


def by_layer(golden: CanaryStates, seen: CanaryStates) -> dict[str, Any]:
    """Returns the median and the largest difference at each layer, and the layers at which the check fails."""
    checks = {layer: compare_canaries(golden, seen, (layer,)) for layer in golden.layers}
    return {
        "drift": [round(check.drift, 4) for check in checks.values()],
        "worst": [round(check.worst, 4) for check in checks.values()],
        "failed": [layer for layer, check in checks.items() if not check.passed],
    }


def states_kept(out: Path, dtype: str) -> FloatArray:
    """Returns vLLM's states of the answers, (n, layers, positions, width)."""
    return np.asarray(np.load(out / f"states-{dtype}.npy"))


def longest_off(llm: LocalLLM, calls: Sequence[Call], out: Path) -> NDArray[np.float64]:
    """Returns the relative differences of a call as long as the engine's context, and of those read beside it."""
    return relative(np.load(out / "longest.npy"), replayed(llm, [longest(calls, CONTEXT - 1), *calls[:FEW]]))


def batches(llm: LocalLLM, golden: CanaryStates, out: Path, again: FloatArray) -> list[dict[str, Any]]:
    """Returns what the checks say of each batch of answers.

    Args:
        llm: the model, in transformers.
        golden: its states of the canaries.
        out: the folder with vLLM's states.
        again: its states of the answers.
    """
    calls, captured, found = read_answers(out), states_kept(out, "bfloat16"), []
    for start in range(0, len(calls), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        seen = read_canaries(out / f"canaries-after-{start:03d}.json")
        found.append(judged(llm, golden, seen, calls[part], captured[part], again[part]))
    return found


def replayed(llm: LocalLLM, calls: Sequence[Call], batch_size: int = AT_ONCE) -> FloatArray:
    """Returns the states of calls of all layers, by transformers, (n, layers, positions, width)."""
    replay = StateReplay(llm, layers="all", positions=CANARY_POSITIONS)
    read = replay.read([replay.reading(call, "") for call in calls], batch_size=batch_size)
    return np.stack([one.hidden.values for one in read])


def relative(states: FloatArray, expected: FloatArray) -> NDArray[np.float64]:
    """Returns the length of each difference as a share of the length of the expected state, (n, layers, positions)."""
    seen, wanted = states.astype(np.float64), expected.astype(np.float64)
    return np.asarray(np.linalg.norm(seen - wanted, axis=-1) / np.linalg.norm(wanted, axis=-1))


def quantiles(values: NDArray[np.float64]) -> dict[str, Any]:
    """Returns quantiles over calls, layers and positions, and the share above 1e-2."""
    return {"all": rounded_quantiles(values), "above_a_hundredth": round(float((values > 1e-2).mean()), 5)}


def rounded_quantiles(values: NDArray[np.float64]) -> list[float]:
    """Returns the quantiles as they are kept."""
    return [round(float(value), 5) for value in np.quantile(values, QUANTILES)]


def judged(
    llm: LocalLLM,
    golden: CanaryStates,
    seen: CanaryStates,
    calls: Sequence[Call],
    captured: FloatArray,
    again: FloatArray,
) -> dict[str, Any]:
    """Returns what the three checks say of one batch, by the rules of `metaprobe.llms.states_check.check_calls`.

    Args:
        llm: the model, in transformers.
        golden: its states of the canaries.
        seen: vLLM's states of the canaries.
        calls: the answers of the batch.
        captured: vLLM's states of the answers, of all layers.
        again: those of transformers.
    """
    places, names = list(LAYERS), [f"call {call.id}" for call in calls]
    read_again = compare_states(
        again[:, places],
        captured[:, places],
        LAYERS,
        LAYERS,
        names,
        TOLERANCES[llm.dtype],
        usual=golden.values[:, places],
    )
    stored = [
        replace(call, hidden=Hidden(states[places], LAYERS, CANARY_POSITIONS))
        for call, states in zip(calls, captured, strict=True)
    ]
    head = head_difference(llm, stored)
    found: dict[str, Any] = {
        "calls": said_by(read_again),
        "head": {"noticed": head is None or head > HEAD_TOLERANCES[llm.dtype], "nats": head and round(head, 4)},
    }
    return found | {str(layer): said_by(compare_canaries(golden, seen, (layer,))) for layer in LAYERS}


def said_by(check: StatesCheck) -> dict[str, Any]:
    """Returns what a check says; without numbers where other tokens leave nothing to compare."""
    numbers = {"drift": check.drift, "worst": check.worst}
    return {
        "noticed": not check.passed,
        **{name: round(value, 4) if np.isfinite(value) else None for name, value in numbers.items()},
    }


def faults(llm: LocalLLM, golden: CanaryStates, out: Path, again: FloatArray) -> dict[str, Any]:
    """Returns what the three checks say of each planted fault; arguments as `batches`."""
    calls, found = read_answers(out)[:AT_ONCE], {}
    for folder in sorted((out / "faults").iterdir()):
        captured, seen = np.load(folder / "states.npy"), read_canaries(folder / "canaries.json")
        reason = compare_canaries(golden, seen, LAYERS[:1]).reason
        found[folder.name] = {**judged(llm, golden, seen, calls, captured, again[:AT_ONCE]), "reason": reason}
        print(folder.name, found[folder.name], flush=True)
    return found


if __name__ == "__main__":
    main()
