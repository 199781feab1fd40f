"""Blocks of docs/tables/engines.md, docs/tables/import.md and docs/research/speed.md, by what was found.

python -m research.engines.vllm_page
"""

import statistics
from collections.abc import Callable
from typing import Any

from research.blocks import ROOT, columns, markdown, read_figures, write

MEASURED = ROOT / "docs" / "measured"
PAGE = ROOT / "docs" / "engines.md"
IMPORTS = ROOT / "docs" / "import.md"
SPEED_PAGE = ROOT / "docs" / "research" / "speed.md"


def server_lines(found: dict[str, Any]) -> list[str]:
    """The block on the middleware."""

    def span(shares: list[float]) -> str:
        return f"{statistics.median(shares):.0%} ({min(shares):.0%} to {max(shares):.0%})"

    rows = [[kind, f"{rate:.0f}", span(found["over plain"][kind])] for kind, rate in found["median"].items()]
    starts = len(found["starts"])
    return [
        *markdown(["server", "tokens/s", "of the plain one"], rows),
        "",
        f"SmolLM2-135M on one thread, 16 requests at once: the median of {starts} starts of two servers, asked in "
        "turn, the other one asleep; in brackets the",
        "lowest and the highest start. What costs is vLLM's own work on log-probabilities: of the plain server's "
        "tokens a second with them the",
        f"middleware writes {span(found['over the same numbers'])}. Its {found['answers']} scores differ from those of "
        f"that server's numbers by at most {found['largest difference of a score']:.3f}.",
        "",
    ]


def proxy_lines(found: dict[str, Any]) -> list[str]:
    """The block on the proxy before the engine."""
    cells: dict[str, Callable[[dict[str, Any]], object]] = {
        "connections": lambda row: row["connections"],
        "tokens/s, asked directly": lambda row: f"{row['direct']:.0f}",
        "through the proxy": lambda row: f"{row['proxy']:.0f}",
        "share, median of the turns": lambda row: f"{row['share']:.0%} ({row['least']:.0%} to {row['most']:.0%})",
    }
    return [
        f"Streams of {found['tokens']} tokens of SmolLM2-135M by vLLM's server on a CPU, {found['rounds']} turns;",
        "engine, proxy and client share two cores:",
        "",
        *columns([(row,) for row in found["rows"]], cells),
        "",
    ]


def machines_lines(found: dict[str, Any]) -> list[str]:
    """The block on what is worth it."""
    rate = found["tokens_per_s"]
    rows = []
    for answers in (10_000, 1_000_000, 100_000_000):
        hours = answers * found["tokens_per_call"] / rate / 3600
        rows.append([f"{answers:,}", f"{hours:,.1f}", f"{hours / 8 + found['start_s'] / 3600:,.1f}"])
    # Eight workers take an eighth of the time, and the time to load one; whoever starts them takes an hour.
    pays = (1 + found["start_s"] / 3600) / (1 - 1 / 8) * 3600 * rate / found["tokens_per_call"]
    return [
        f"Measured: SmolLM2-135M, all layers, {found['calls']} calls of {found['tokens_per_call']:.0f} tokens:",
        f"{rate:.0f} tokens a second of one processor core, {found['start_s']:.0f} s to load a worker,",
        f"{found['bytes_per_call'] / 1e6:.2f} MB of states a call.",
        "Extrapolated, not measured: a core to itself, work that",
        "divides evenly by eight such workers, and a shared folder that keeps up.",
        "",
        *markdown(["calls", "hours, one core", "hours, eight workers"], rows),
        "",
        f"Where it takes an hour to set up, eight workers are worth it from some {round(pays, -3):,.0f} calls on,",
        f"whose states take {pays * found['bytes_per_call'] / 1e9:.1f} GB. A model ten times as large is ten times",
        "as slow, and the number ten times as small.",
        "",
    ]


def rates_lines(found: dict[str, Any]) -> list[str]:
    """The block on vLLM's engine beside transformers."""
    median, ratios = found["median"], found["ratios"]
    return [
        f"SmolLM2-135M on one thread, 32 requests at once, 64 tokens and five alternatives each, {len(ratios)} turns: "
        f"{median['vllm']:.0f} tokens a second,",
        f"{median['transformers']:.0f} by transformers; in turn {found['ratio']:.2f} times as many, "
        f"{min(ratios):.2f} to {max(ratios):.2f}.",
        "",
    ]


def async_lines(found: dict[str, Any]) -> list[str]:
    """The block on the asynchronous engine."""
    turns = found["asynchronous"]
    ratios = sorted(turns["ratios"])
    return [
        f"SmolLM2-135M, 32 requests at once, {len(ratios)} turns: {statistics.median(turns['watched']):.0f} tokens a "
        f"second watched and gated, {statistics.median(turns['plain']):.0f} plain;",
        f"in turn {statistics.median(ratios):.0%}, {ratios[0]:.0%} to {ratios[-1]:.0%}.",
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
        ("vllm-proxy", SPEED_PAGE, proxy_lines),
        ("vllm-rates", PAGE, rates_lines),
        ("vllm-async", PAGE, async_lines),
        ("vllm-states", PAGE, states_lines),
        ("many-machines", PAGE, machines_lines),
        ("import-large", IMPORTS, import_lines),
    ):
        name = "vllm_rates" if block == "vllm-async" else block.replace("-", "_")
        write(page, block, lines(read_figures(MEASURED / f"{name}.json")))


if __name__ == "__main__":
    main()
