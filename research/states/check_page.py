"""Writes the figures of docs/research/states.md.

    python -m research.states.check_page

From docs/measured/states_check.json (`research.states.check`).
"""

from typing import Any

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
            f"Canaries notice {len(found['18'])} of {len(planted)} planted faults at layer 18 and {len(found['30'])} "
            f"of {len(planted) - 1} at layer 30 of SmolLM2-135M; {_missed(missed)}. The head notices {len(by_head)}. "
            f"In {requests} requests without a fault, {failed} of {len(batches)} batches failed a check.",
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


def _canaries(row: dict[str, Any]) -> str:
    return f"{row['drift']:.3f}, {row['worst']:.2f}" + " **noticed**" * row["noticed"]


def _missed(missed: dict[str, list[str]]) -> str:
    told = [f"{' and '.join(names)} at layer {layer}" for layer, names in missed.items() if names]
    return f"not noticed: {'; '.join(told)}" if told else "none is missed"


if __name__ == "__main__":
    page_command()
