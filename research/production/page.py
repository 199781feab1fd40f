"""Writes the speed section of docs/research/production.md from what predict.py and serving.py measured.

python -m benchmarks.predict --peers PEERS --json docs/measured/predict.json
python -m benchmarks.serving --json docs/measured/serving.json
python -m research.production.page
"""

import json
from typing import Any

from benchmarks.serving import CONNECTIONS, MOST_AT_ONCE
from research.blocks import ROOT, markdown, write

PAGE = ROOT / "docs" / "research" / "production.md"
MEASURED = ROOT / "docs" / "measured"
FRONTS = {"upstream": "the upstream itself", "metaprobe": "`metaprobe serve`", "litellm": "LiteLLM's proxy"}


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
    gate = found["gate_us"]
    return [
        *markdown(["what", "us", "against, us", "times as fast", "target"], rows),
        "",
        f"Features of many responses of 256 tokens: {found['batch_tokens_a_second'] / 1e6:.0f} million tokens/s. "
        f"One streamed token into the bundled gate: {gate['between_looks']:.2f} us between looks, "
        f"{gate['at_look']:.0f} us at a look (targets: 5 and 100). One thread. {found['machine']}.",
    ]


def serving(found: dict[str, Any]) -> list[str]:
    """Returns the cost of a proxy, beside an upstream that answers at once."""
    rows = [
        [
            "yes" if row["stream"] else "no",
            str(row["connections"]),
            FRONTS.get(row["front"], row["front"]),
            f"{cpu:.2f}",
            f"{1e3 / cpu:,.0f}",
            f"{row['per_s']:.0f}",
            f"{row['p50_ms']:.1f}",
        ]
        for row in found["rows"]
        for cpu in [row["upstream_cpu_ms"] if row["front"] == "upstream" else row["cpu_ms"]]
    ]
    heads = ["streamed", "connections", "what is asked", "CPU, ms a request", "one core carries, a second"]
    return [
        "What a proxy costs, in processor time a request, beside the same scripted upstream asked directly: "
        f"{found['tokens']} tokens an answer, an event a token, over loopback, {found['rows'][0]['requests']} or more "
        f"requests each, {found['lost']} lost. The upstream sends bytes that were made beforehand; an engine's own "
        f"server makes them. All share {found['cores']} cores (load {found['load']}), so the "
        "last two columns say who waited; what one core carries is the reciprocal of the processor time. "
        f"LiteLLM's proxy is asked over {MOST_AT_ONCE['litellm']} connections at most: over {CONNECTIONS[-1]} it would "
        "take a quarter of an hour.",
        "",
        *markdown([*heads, "here, a second", "p50 here, ms"], rows),
    ]


if __name__ == "__main__":
    main()
