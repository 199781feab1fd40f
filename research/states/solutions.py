"""Reads recorded solutions again: the hidden states at each look of a streaming gate, for the gate on states.

    python -m research.states.solutions MODELS/qwen-coder-1.5b/model.gguf recorded/gsm8k-samples-1.5b out/solutions [50]

A number reads the looks up to so many tokens alone, which for 50 takes 15 minutes of one core (all looks: 37).
One file holds 48 solutions; files that are there are not read again. First samples come before second and third ones,
so what is read until a stop is of as many questions as possible. `research.states.gate` measures a gate on them.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from metaprobe import RunStore
from metaprobe.llms.hidden_capture import decoder_blocks, layer_hooks
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.weights import encode_text
from metaprobe.records.types import Call
from metaprobe.records.writing import atomic_write

LAYERS = (14, 18)
LOOKS = (0, 3, 5, 10, 20, 30, 50, 80, 130, 200)
"""Answer tokens read before each look: those of the gate, the end of the prompt, and three later ones."""
NEWEST = 20
"""Tokens over which the mean state is taken."""
SAMPLES, IN_FILE = 3, 48


def main() -> None:
    """Reads what is missing."""
    model, store, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    looks = [look for look in LOOKS if len(sys.argv) < 5 or look <= int(sys.argv[4])]
    out.mkdir(parents=True, exist_ok=True)
    llm = LocalLLM.load(model)
    blocks = decoder_blocks(llm.model)
    del blocks[max(LAYERS) :]  # the blocks above the read ones are not computed
    llm.model.config.num_hidden_layers = max(LAYERS)
    rows = list(solutions(store))
    for start in range(0, len(rows), IN_FILE):
        path = out / f"{start:05d}.npz"
        if path.exists():
            continue
        part = rows[start : start + IN_FILE]
        columns: dict[str, Any] = {
            "question": np.array([question for question, _, _ in part]),
            "call": np.array([call.id for _, call, _ in part]),
            "right": np.array([right for _, _, right in part]),
            "states": np.stack([states_at_looks(llm, call, looks) for _, call, _ in part]),
            "looks": np.array(looks),
            "layers": np.array(LAYERS),
        }
        with atomic_write(path) as file:
            np.savez(file, **columns)
        print(start + len(part), "of", len(rows), flush=True)


def solutions(store: Path) -> Iterator[tuple[str, Call, int]]:
    """Yields question, call and whether it is right: the first sample of each question, then the second, ..."""
    of_question: dict[str, list[tuple[Call, int]]] = {}
    for run in RunStore(store).runs():
        for call in run.calls:
            label = run.label("correct", call.id)
            if call.stage == "answer" and label is not None:
                of_question.setdefault(run.item.id, []).append((call, int(label)))
    for sample in range(SAMPLES):
        for question, calls in of_question.items():
            if len(calls) > sample:
                yield question, *calls[sample]


@torch.inference_mode()
def states_at_looks(llm: LocalLLM, call: Call, looks: Sequence[int]) -> NDArray[np.float16]:
    """Returns the states of one answer, float16, (looks, layers, 2, width): of the newest token, and the mean of the
    newest `NEWEST`; NaN at looks that the answer did not reach. At look 0 both are the last prompt token's."""
    prompt = llm.encode(call.messages)
    answer = encode_text(llm.tokenizer, call.text) if call.token_ids is None else call.token_ids.tolist()
    answer = answer[: max(looks)]
    seen: dict[int, torch.Tensor] = {}
    ids = torch.tensor([prompt + answer], device=llm.model.device)
    with layer_hooks(llm.model, LAYERS, lambda layer, hidden: seen.update({layer: hidden[0].float().cpu()})):
        llm.model.base_model(input_ids=ids, use_cache=False)
    states = torch.stack([seen[layer] for layer in LAYERS], dim=1).numpy()  # (T, layers, width)
    kept = np.full((len(looks), len(LAYERS), 2, states.shape[-1]), np.nan, dtype=np.float16)
    for place, look in enumerate(looks):
        if look <= len(answer):
            end = len(prompt) + look
            kept[place, :, 0] = states[end - 1]
            kept[place, :, 1] = states[max(end - max(min(look, NEWEST), 1), 0) : end].mean(axis=0)
    return kept


if __name__ == "__main__":
    main()
