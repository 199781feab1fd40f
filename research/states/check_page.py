"""Writes the figures of docs/research/states.md.

    python -m research.states.check_page

From docs/measured/states_check.json (`research.states.check`).
"""

from typing import Any

from metaprobe.records.canaries import OTHER_LIBRARY, TOLERANCES
from research.blocks import DOCS, MEASURED, columns, read_figures, write

PAGE = DOCS / "research" / "states.md"
LAYERS = ("18", "30")
SOUND = ("none", "float32 in place of bfloat16")
"""Rows without a fault that changes a score: no check should notice them."""
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
            f"{most['drift']:.3f}, the head at most {most['head']:.3f} nats; {failed} of {len(batches)} batches "
            "failed.",
            "",
        ],
    )


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
    return f"{row['drift']:.3f}, {row['worst']:.2f}" + " **noticed**" * row["noticed"]


def _missed(missed: dict[str, list[str]]) -> str:
    told = [f"{' and '.join(names)} at layer {layer}" for layer, names in missed.items() if names]
    return f"not noticed: {'; '.join(told)}" if told else "none is missed"


if __name__ == "__main__":
    page_command()
