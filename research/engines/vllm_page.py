"""Blocks of docs/engines.md, docs/many-machines.md, docs/logs.md and docs/research/production.md, by what was found.

python -m research.engines.vllm_page
"""

import json
from pathlib import Path
from typing import Any

from research.blocks import markdown, write

ROOT = Path(__file__).parent.parent.parent
MEASURED = ROOT / "docs" / "measured"
PAGE, GUIDE = ROOT / "docs" / "engines.md", ROOT / "docs" / "many-machines.md"
IMPORTS = ROOT / "docs" / "logs.md"
PRODUCTION = ROOT / "docs" / "research" / "production.md"


def server_lines(found: dict[str, Any]) -> list[str]:
    """The block on the middleware."""
    rows = [[kind, f"{rate:.1f}"] for kind, rate in found["median"].items()]
    over, same = found["middleware over plain"], found["middleware over the same numbers"]
    return [
        *markdown(["server", "tokens/s, median"], rows),
        "",
        "Two servers on a machine that others kept busy, asked in turn, so that only the ratios mean something:",
        f"with the middleware {over:.0%} of the plain server's tokens a second, and {same:.0%} of one's that is",
        f"asked for the same log-probabilities. The scores of {found['answers']} answers",
        "differ from those of the plain server's",
        f"log-probabilities by at most {found['largest difference of a score']:.3f}: other batches round otherwise.",
        "",
    ]


def proxy_lines(found: dict[str, Any]) -> list[str]:
    """The block on the proxy before the engine."""
    rows = [
        [
            str(row["connections"]),
            f"{row['direct']:.0f}",
            f"{row['proxy']:.0f}",
            f"{row['share']:.0%} ({row['least']:.0%} to {row['most']:.0%})",
        ]
        for row in found["rows"]
    ]
    return [
        f"Streams of {found['tokens']} tokens of SmolLM2-135M by vLLM's server on a CPU, {found['rounds']} turns;",
        "engine, proxy and client share two cores:",
        "",
        *markdown(["connections", "tokens/s, asked directly", "through the proxy", "share, median of the turns"], rows),
        "",
    ]


def rates_lines(found: dict[str, Any]) -> list[str]:
    """The block on vLLM's engine beside transformers."""
    median, ratios = found["median"], found["ratios"]
    return [
        f"SmolLM2-135M on one thread, 32 requests at once, 64 tokens and five alternatives each, {len(ratios)} turns:",
        f"{median['vllm']:.0f} tokens a second, {median['transformers']:.0f} by transformers; in turn",
        f"{found['ratio']:.2f} times as many, {min(ratios):.2f} to {max(ratios):.2f}.",
        "",
    ]


def states_lines(found: dict[str, Any]) -> list[str]:
    """The block on hidden states."""
    return [
        f"On {found['calls']} calls of SmolLM2-135M ({found['tokens']} tokens) the cosine with our replay by",
        f"transformers, in the mean over tokens, is at least {found['least']:.4f} in each of the {found['layers']}",
        f"layers. One layer off it is at most {found['layer_off']:.3f}, and one token off at",
        f"most {found['token_off']:.3f}.",
        "",
    ]


def machines_lines(found: dict[str, Any]) -> list[str]:
    """The block on what is worth it."""
    rate = found["tokens_per_s"]
    rows = []
    for answers in (10_000, 1_000_000, 100_000_000):
        hours = answers * found["tokens_per_call"] / rate / 3600
        rows.append([f"{answers:,}", f"{hours:,.1f}", f"{hours / 8 + found['start_s'] / 3600:,.1f}"])
    return [
        f"Measured: SmolLM2-135M, all layers, {found['calls']} calls of {found['tokens_per_call']:.0f} tokens:",
        f"{rate:.0f} tokens a second of one processor core, {found['start_s']:.0f} s to load a worker,",
        f"{found['bytes_per_call'] / 1e6:.2f} MB of states a call.",
        "Extrapolated, not measured: a core to itself, work that",
        "divides evenly by eight such workers, and a shared folder that keeps up.",
        "",
        *markdown(["calls", "hours, one core", "hours, eight workers"], rows),
        "",
    ]


def import_lines(found: dict[str, Any]) -> list[str]:
    """The block on a large import."""
    whole, tenth, again = found["whole"], found["tenth"], found["after a kill"]
    rate = found["megabytes"] / whole["seconds"]
    return [
        f"Measured: {found['megabytes']:,} MB in {found['lines']:,} lines of 400 tokens at {rate:.0f} MB a second,",
        f"with at most {whole['peak_mb']:.0f} MB of memory; a tenth of the file took {tenth['peak_mb']:.0f} MB. After",
        "a kill",
        f"{again['report']['already_stored']:,} answers were there, and the same command added the other",
        f"{again['report']['imported']:,}.",
        "",
    ]


def main() -> None:
    """Writes the blocks."""
    for block, page, lines in (
        ("vllm-server", PAGE, server_lines),
        ("vllm-proxy", PRODUCTION, proxy_lines),
        ("vllm-rates", PAGE, rates_lines),
        ("vllm-states", PAGE, states_lines),
        ("many-machines", GUIDE, machines_lines),
        ("import-large", IMPORTS, import_lines),
    ):
        name = f"{block.replace('-', '_')}.json"
        write(page, block, lines(json.loads((MEASURED / name).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
