"""Writes the speed section of docs/research/production.md from what predict.py and serving.py measured.

python -m benchmarks.predict --peers PEERS --json docs/measured/predict.json
python -m benchmarks.serving --json docs/measured/serving.json
python -m research.production.page
"""

import json
from pathlib import Path
from typing import Any

from research.blocks import markdown, write

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "research" / "production.md"
MEASURED = ROOT / "docs" / "measured"


def main() -> None:
    write(PAGE, "speed", [*prediction(read("predict")), "", *serving(read("serving")), ""])


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))
    return found


def prediction(found: dict[str, Any]) -> list[str]:
    """One verdict, against what else could be called."""
    rows = [
        [
            row["what"],
            f"{row['ours_us']:.1f} (p99 {row['ours_p99_us']:.0f})",
            f"{row['other']}: {row['other_us']:.1f}",
            f"{row['ratio']:.2f}",
            row["target"] or "-",
        ]
        for row in found["rows"]
    ]
    stream, gate = found["stream_us"], found["gate_us"]
    return [
        *markdown(["what", "us", "against, us", "times as fast", "target"], rows),
        "",
        f"Features of many responses of 256 tokens: {found['batch_tokens_a_second'] / 1e6:.0f} million tokens/s. "
        f"One streamed token: {stream['between_looks']:.2f} us between looks, {stream['at_look']:.2f} us at a look, "
        f"features alone; into the bundled gate {gate['between_looks']:.2f} us, {gate['at_look']:.0f} us at a look, "
        f"the graph included (targets: 5 and 100). One thread. {found['machine']}.",
    ]


def serving(found: dict[str, Any]) -> list[str]:
    """What the proxy adds to an upstream that answers at once."""
    rows = [
        [
            "yes" if row["stream"] else "no",
            str(row["connections"]),
            f"{row['direct_per_s']:.0f}",
            f"{row['proxy_per_s']:.0f}",
            f"{row['added_p50_ms']:.1f}",
            f"{row['added_p99_ms']:.1f}",
        ]
        for row in found["rows"]
    ]
    return [
        f"The proxy beside the same scripted upstream asked directly, on loopback: {found['tokens']} tokens an answer, "
        f"client, upstream and proxy on the same {found['cores']} cores, {found['rows'][0]['requests']} requests each, "
        f"{found['lost']} lost. At many connections the cores are full, and what is added is mostly waiting.",
        "",
        *markdown(["streamed", "connections", "direct/s", "through it/s", "added p50, ms", "added p99, ms"], rows),
    ]


if __name__ == "__main__":
    main()
