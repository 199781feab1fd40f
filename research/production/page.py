"""Writes the speed section of docs/research/speed.md from what predict.py and serving.py measured.

python -m benchmarks.predict --peers PEERS --json docs/measured/predict.json
python -m benchmarks.serving --json docs/measured/serving.json
python -m research.production.page
"""

from collections.abc import Callable

from benchmarks.serving import CONNECTIONS, MOST_AT_ONCE
from research.blocks import ROOT, columns, read_figures, write

PAGE = ROOT / "docs" / "research" / "speed.md"
MEASURED = ROOT / "docs" / "measured"
FRONTS = {"upstream": "the upstream itself", "metaprobe": "`metaprobe serve`", "litellm": "LiteLLM's proxy"}


def main() -> None:
    """Writes the section."""
    found = read_figures(MEASURED / "predict.json")
    verdicts: dict[str, Callable[..., object]] = {
        "what": lambda row: row["what"],
        "us": lambda row: f"{row['ours_us']:.1f} (p99 {row['ours_p99_us']:.0f})",
        "against, us": lambda row: f"{row['other']}: {row['other_us']:.1f}",
        "times as fast": lambda row: f"{row['ratio']:.2f}",
        "target": lambda row: row["target"] or "-",
    }
    gate = found["gate_us"]
    lines = [
        *columns([(row,) for row in found["rows"]], verdicts),
        "",
        f"Features of many responses of 256 tokens: {found['batch_tokens_a_second'] / 1e6:.0f} million tokens/s. "
        f"One streamed token into the bundled gate: {gate['between_looks']:.2f} us between looks, "
        f"{gate['at_look']:.0f} us at a look (targets: 5 and 100). One thread. {found['machine']}.",
        "",
    ]
    found = read_figures(MEASURED / "serving.json")
    requests: dict[str, Callable[..., object]] = {
        "streamed": lambda row, cpu: "yes" if row["stream"] else "no",
        "connections": lambda row, cpu: row["connections"],
        "what is asked": lambda row, cpu: FRONTS.get(row["front"], row["front"]),
        "CPU, ms a request": lambda row, cpu: f"{cpu:.2f}",
        "one core carries, a second": lambda row, cpu: f"{1e3 / cpu:,.0f}",
        "here, a second": lambda row, cpu: f"{row['per_s']:.0f}",
        "p50 here, ms": lambda row, cpu: f"{row['p50_ms']:.1f}",
    }
    lines += [
        "What a proxy costs, in processor time a request, beside the same scripted upstream asked directly: "
        f"{found['tokens']} tokens an answer, an event a token, over loopback, {found['rows'][0]['requests']} or more "
        f"requests each, {found['lost']} lost. The upstream sends bytes that were made beforehand; an engine's own "
        f"server makes them. All share {found['cores']} cores (load {found['load']}), so the "
        "last two columns say who waited; what one core carries is the reciprocal of the processor time. "
        f"LiteLLM's proxy is asked over {MOST_AT_ONCE['litellm']} connections at most: over {CONNECTIONS[-1]} it would "
        "take a quarter of an hour.",
        "",
        *columns(
            [(row, row["upstream_cpu_ms" if row["front"] == "upstream" else "cpu_ms"]) for row in found["rows"]],
            requests,
        ),
        "",
    ]
    write(PAGE, "speed", lines)


if __name__ == "__main__":
    main()
