"""Writes the figures of docs/research/states.md.

    python -m research.states.check_page

From docs/measured/states_check.json (`research.states.check`) and states_vllm.json (`research.states.vllm_check`).
"""

from typing import Any

from metaprobe.records.canaries import OTHER_LIBRARY, TOLERANCES
from research.blocks import DOCS, MEASURED, columns, read_figures, write

PAGE = DOCS / "research" / "states.md"
LAYERS = ("18", "30")
SOUND = ("none", "float32 in place of bfloat16")
"""Rows without a fault that changes a score: no check should notice them."""
CHECKS = (*LAYERS, "calls", "head")
COMPARED = {
    "bfloat16": "vLLM, from the replay, both in bfloat16",
    "float32": "vLLM, from the replay, both in float32",
    "bfloat16 from float32": "vLLM in bfloat16, from the replay in float32",
    "replay, bfloat16 from float32": "the replay in bfloat16, from the replay in float32",
    "replay, one by one": "the replay one by one, from batches, in bfloat16",
    "longest": "vLLM, a call as long as the context and eight others, from the replay, in bfloat16",
}
"""Maps a comparison of the kept figures to its name in the table."""
SHOWN = (0, 1, 6, 12, 18, 24, 30)
"""Layers in the table of vLLM's states."""
NO_FAULT = ("layer +1", "30")
"""Fault and layer that cannot be planted: there is no layer above the last."""


def page_command() -> None:
    """Writes the table of faults and the sentences about it."""
    figures = read_figures(MEASURED / "states_check.json")
    faults = {
        name: figures["faults"][name] for name in sorted(figures["faults"], key=lambda name: (name in SOUND, name))
    }
    planted = [name for name in faults if name not in SOUND]
    found = {layer: [name for name in planted if faults[name][layer]["noticed"]] for layer in LAYERS}
    missed = {
        layer: [name for name in planted if name not in found[layer] and (name, layer) != NO_FAULT] for layer in LAYERS
    }
    by_head = [name for name in planted if faults[name]["head_noticed"]]
    requests, batches = figures["honest"]["requests"], figures["honest"]["batches"]
    failed = sum(batch["failed"] for batch in batches)
    most = {name: max(batch[name] for batch in batches) for name in ("drift", "worst", "head")}
    write(
        PAGE,
        "answer",
        [
            f"On one model (SmolLM2-135M), machine and library, canaries notice {len(found['18'])} of {len(planted)} "
            f"planted faults at layer 18 and {len(found['30'])} of {len(planted) - 1} at layer 30; {_missed(missed)}; "
            f"the head notices {len(by_head)}. {_near_the_limit(faults)} In {requests} requests without a fault, "
            f"{failed} of {len(batches)} batches failed a check{_at_most(failed, len(batches))}.",
            "",
        ],
    )
    table = columns(
        faults.items(),
        {
            "fault": lambda name, row: name,
            **{
                f"canaries, layer {layer}: median, largest": lambda name, row, layer=layer: (
                    "-" if (name, layer) == NO_FAULT else _canaries(row[layer])
                )
                for layer in LAYERS
            },
            "head, nats": lambda name, row: f"{row['head']:.2f}" + " **noticed**" * row["head_noticed"],
        },
    )
    write(PAGE, "faults", [*table, ""])
    write(
        PAGE,
        "honest",
        [
            f"{requests} prompts were answered in batches of 32, and every answer's states were read again. The "
            f"farthest state of a batch was at most {most['worst']:.3f} off, the median state at most "
            f"{most['drift']:.3f}, the head at most {most['head']:.3f} nats.",
            "",
        ],
    )

    vllm_blocks(read_figures(MEASURED / "states_vllm.json"))


def vllm_blocks(figures: dict[str, Any]) -> None:
    """Writes the sentences and tables on vLLM's states."""
    engine, relative, canaries = figures["engine"]["bfloat16"], figures["relative"], figures["canaries"]
    off = [
        (
            dtype,
            [
                max(max(of[key]) for name, of in canaries.items() if name.startswith(dtype))
                for key in ("drift", "worst")
            ],
        )
        for dtype in ("bfloat16", "float32")
    ]
    faults = {name: of for name, of in figures["faults"].items() if not name.startswith("none")}
    plantable = {check: [name for name in faults if (name, check) != NO_FAULT] for check in CHECKS}
    noticed = {check: [name for name in names if faults[name][check]["noticed"]] for check, names in plantable.items()}
    missed = [name for name in faults if not any(faults[name][check]["noticed"] for check in CHECKS)]
    failed = {check: sum(batch[check]["noticed"] for batch in figures["batches"]) for check in CHECKS}
    batches = len(figures["batches"])
    write(
        PAGE,
        "vllm",
        [
            f"vLLM 0.32.0 read canaries and {relative['requests']} answers on a CPU, with prefix caching "
            f"({engine['tokens_from_cache'] / engine['prompt_tokens']:.0%} of the tokens cached) and "
            f"chunked prefill ({engine['requests_in_parts'] / engine['requests']:.0%} of the requests in parts). "
            "At no layer are canaries off by more than "
            + ", ".join(f"{drift:.3f} (median), {worst:.3f} (largest) in {dtype}" for dtype, (drift, worst) in off)
            + f"; of {batches} batches {_failures(failed)}. Answers' states differ from the replay's by "
            f"{relative['bfloat16']['all'][0]:.1%} of their length in bfloat16 "
            f"({relative['bfloat16']['above_a_hundredth']:.0%} are above the goal of 1%), "
            f"{relative['float32']['all'][0]:.3%} in float32; bfloat16 alone moves the replay by "
            f"{relative['replay, bfloat16 from float32']['all'][0]:.1%}. Of {len(faults)} faults planted in vLLM, "
            f"canaries notice {len(noticed['18'])} at layer 18 and {len(noticed['30'])} of {len(plantable['30'])} at "
            f"layer 30, calls read again {len(noticed['calls'])}, the head {len(noticed['head'])}{_unnoticed(missed)}.",
            "",
        ],
    )
    table = columns(
        figures["faults"].items(),
        {
            "fault in vLLM": lambda name, row: name,
            **{
                f"canaries, layer {layer}: median, largest": lambda name, row, layer=layer: (
                    "-" if (name, layer) == NO_FAULT else _canaries(row[layer])
                )
                for layer in LAYERS
            },
            "calls read again: median, largest": lambda name, row: _canaries(row["calls"]),
            "head, nats": lambda name, row: f"{row['head']['nats']:.2f}" + " **noticed**" * row["head"]["noticed"],
        },
    )
    write(PAGE, "vllm-faults", [*table, ""])
    quantiles = figures["by_layer"]
    by_layer = columns(
        [(str(layer), canaries | {"relative": quantiles[layer]}) for layer in SHOWN],
        {
            "layer": lambda name, row: name,
            **{
                f"canaries, {key}: median, largest": lambda name, row, key=key: (
                    f"{row[key]['drift'][int(name)]:.4f}, {row[key]['worst'][int(name)]:.4f}"
                )
                for key in canaries
            },
            "answers, share of their length: median, 95 %, 99 %, largest": lambda name, row: ", ".join(
                f"{value:.2%}" for value in row["relative"]
            ),
        },
    )
    compared = {name: of for name, of in relative.items() if isinstance(of, dict)}
    whole = columns(
        compared.items(),
        {
            "states of answers": lambda name, row: COMPARED[name],
            "median, 95 %, 99 %, largest": lambda name, row: ", ".join(f"{value:.3%}" for value in row["all"]),
            "above 1 %": lambda name, row: f"{row['above_a_hundredth']:.0%}",
        },
    )
    write(PAGE, "vllm-layers", [*by_layer, "", *whole, ""])


def _failures(failed: dict[str, int]) -> str:
    """Returns which checks failed on how many batches."""
    names = {"calls": "calls read again", "head": "the head"}
    told = [
        f"{count} failed {names.get(check, f'canaries at layer {check}')}" for check, count in failed.items() if count
    ]
    return " and ".join(told) or "none failed a check"


def _unnoticed(missed: list[str]) -> str:
    return f"; no check notices {' and '.join(missed)}" if missed else ""


def _near_the_limit(faults: dict[str, Any]) -> str:
    """Returns a sentence on the faults that only the limit for two libraries, which is wider, lets pass."""
    limit = TOLERANCES["bfloat16"]
    drifts: dict[str, list[float]] = {}
    for name, row in faults.items():
        for layer in LAYERS:
            wide = row[layer]["drift"] <= OTHER_LIBRARY * limit.drift and row[layer]["worst"] <= limit.worst
            if name not in SOUND and (name, layer) != NO_FAULT and wide:
                drifts.setdefault(name, []).append(row[layer]["drift"])
    near = " and ".join(f"{name} ({min(of):.3f} to {max(of):.3f})" for name, of in drifts.items())
    return (
        f"The limits were set with these faults in view: a median of {limit.drift} passes as rounding, and by the "
        f"limit for another library, {OTHER_LIBRARY * limit.drift:.3f}, so do {near}."
    )


def _at_most(failed: int, batches: int) -> str:
    """Returns the upper bound at 95 % of the rate of failing batches; empty where a batch failed."""
    return "" if failed else f" (the rate is below {1 - 0.05 ** (1 / batches):.0%} at 95 %)"


def _canaries(row: dict[str, Any]) -> str:
    off = "other tokens" if row["drift"] is None else f"{row['drift']:.3f}, {row['worst']:.2f}"
    return off + " **noticed**" * row["noticed"]


def _missed(missed: dict[str, list[str]]) -> str:
    told = [f"{' and '.join(names)} at layer {layer}" for layer, names in missed.items() if names]
    return f"not noticed: {'; '.join(told)}" if told else "none is missed"


if __name__ == "__main__":
    page_command()
