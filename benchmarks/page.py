"""`make benchmark`: runs every speed benchmark on this machine and writes one table of speed and quality.

    python -m benchmarks.page run [NAME ...] [--peers PEERS] [--data DATA]
    python -m benchmarks.page page

Each benchmark leaves its figures in docs/measured/; when and on what machine it ran, and which peers it skipped, stands
in docs/measured/benchmarks.json. `page` writes docs/research/speed.md from these files and runs nothing.
"""

import datetime
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from research.blocks import ROOT, markdown, read_figures, shown, signed, write, write_figures

MEASURED = ROOT / "docs" / "measured"
RUNS = MEASURED / "benchmarks.json"
PAGE = ROOT / "docs" / "research" / "speed.md"
HEAD = ["what", "ours", "against", "theirs", "ours against theirs", "target", "by"]
Row = list[str]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One script, and how its figures come into the table."""

    arguments: tuple[str, ...]
    """After `python -m`; {peers}, {data} and {out}, the file of its figures, are filled in."""
    rows: Callable[[dict[str, Any]], list[Row]]
    figures: str = ""
    """File in docs/measured/, by default that of the benchmark's name; the script writes it."""


@click.group()
def main() -> None:
    """Run the benchmarks, and write the page."""


@main.command()
@click.argument("names", nargs=-1)
@click.option("--peers", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where the peers are.")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Data sets, for quality.")
def run(names: tuple[str, ...], peers: Path | None, data: Path | None) -> None:
    """Every benchmark, or those named, one after another; then the page. Fails in the end where one failed."""
    runs = read_figures(RUNS)
    given = {"{peers}": peers, "{data}": data}
    failed = []
    for name in names or BENCHMARKS:
        arguments = BENCHMARKS[name].arguments
        lacking = [what.strip("{}") for what, value in given.items() if value is None and what in arguments]
        if "data" in lacking:
            print(f"{name} is skipped: it needs --data")
            runs.setdefault(name, {})["skipped"] = "it needs --data"
        else:
            print(f"{name} ...", flush=True)
            runs[name] = measured(name, [a for a in filled(arguments, given, name) if a])
            failed += [name] if runs[name]["failed"] else []
        write_figures(RUNS, runs)
    write_page()
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}")


def filled(arguments: tuple[str, ...], given: dict[str, Path | None], name: str) -> Row:
    """The command line; an option whose value is not given is left out."""
    out: Row = []
    for argument in arguments:
        if argument in given and given[argument] is None:
            out.pop()
        else:
            out.append(str(given.get(argument) or argument).replace("{out}", str(figures_of(name))))
    return out


def measured(name: str, arguments: Row) -> dict[str, Any]:
    """When and where it ran, and what it said of peers that it skipped."""
    load, start = os.getloadavg()[0], time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    print(done.stdout + done.stderr, end="", flush=True)
    return {
        "at": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(time.monotonic() - start),
        "machine": {**machine(), "load": round(load, 1)},
        "without": re.findall(r"^(\S+) is skipped", done.stdout, re.M),
        "failed": done.returncode != 0,
    }


def machine() -> dict[str, Any]:
    """Processor, cores, Python."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    cpu = found[1] if found else platform.processor() or platform.machine()
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}


@main.command("page")
def page_command() -> None:
    """Write docs/research/speed.md from what was measured."""
    write_page()


def write_page() -> None:
    found = {name: read_figures(figures_of(name)) for name in BENCHMARKS}  # none of a benchmark that never ran
    rows = {name: one.rows(found[name]) if found[name] else [] for name, one in BENCHMARKS.items()}
    write(PAGE, "answer", [answer(found), ""])
    every = [[*row, name] for name in rows for row in rows[name]]
    write(PAGE, "tables", [*markdown(HEAD, every), "", *where(read_figures(RUNS), found), ""])


def figures_of(name: str) -> Path:
    return MEASURED / f"{BENCHMARKS[name].figures or name}.json"


def answer(found: dict[str, dict[str, Any]]) -> str:
    """Returns the first paragraph of the page."""
    timed = [row for name in ("predict", "peers") for row in found[name].get("rows", [])]
    slower = [row["what"] for row in timed if row["ratio"] < 1]
    verdict = next(row for row in timed if row["what"] == "list of 512 to a verdict")
    return (
        f"Of {len(timed)} comparisons with other programs and with simpler code, this package is faster in "
        f"{len(timed) - len(slower)}. It is slower where it does more than the other side, which "
        f"is a bare ONNX call or a simpler score ({len(slower)} rows). A verdict on 512 log-probabilities takes "
        f"{verdict['ours_us']:.0f} us, where {verdict['other']} takes {verdict['other_us']:.0f} us."
    )


def where(runs: dict[str, Any], found: dict[str, dict[str, Any]]) -> Row:
    """When, on what machine and how busy; what was skipped."""
    rows = []
    for name, benchmark in BENCHMARKS.items():
        about = runs.get(name, {})
        at, notes = about.get("at", "before this table was kept"), []
        if "machine" in about:
            on = "{cpu}, {cores} cores, load {load}, Python {python}".format(**about["machine"])
            notes += ["the machine was shared"] if about["machine"]["load"] > about["machine"]["cores"] else []
        else:
            on = str(found[name].get("machine") or "not recorded")
        notes += ["**it failed; its numbers are older**"] if about.get("failed") else []
        notes += [f"not installed: {', '.join(about['without'])}"] if about.get("without") else []
        notes += [f"last time skipped: {about['skipped']}"] if about.get("skipped") else []
        notes += ["never run"] if not found[name] else []
        rows.append(
            [name, f"`python -m {benchmark.arguments[0]}`", at, on if found[name] else "-", "; ".join(notes) or "-"]
        )
    head = ["by", "script", "measured", "machine", "notes"]
    return ["## When and where", "", *markdown(head, rows)]


# Rows of the table, a function a file of figures.


def timed_rows(found: dict[str, Any]) -> list[Row]:
    """Returns the rows of predict.py and peers.py, which write the same fields."""
    rows = [
        [
            row["what"],
            duration(row["ours_us"]),
            row["other"],
            duration(row["other_us"]),
            times(row["ratio"]),
            row["target"] or "-",
        ]
        for row in found["rows"]
    ]
    if "batch_tokens_a_second" in found:
        tokens = f"{found['batch_tokens_a_second'] / 1e6:.0f} M tokens/s"
        rows.append(["features of 10,000 responses of 256 tokens", tokens, "-", "-", "-", ">= 30 M tokens/s"])
        for what, key, target in (("between looks", "between_looks", "<= 5 us"), ("at a look", "at_look", "<= 100 us")):
            rows.append([f"one token into the gate, {what}", duration(found["gate_us"][key]), "-", "-", "-", target])
    return rows


def probe_rows(found: dict[str, Any]) -> list[Row]:
    ours = max(found["batched_s"])
    what = f"all layers' probes on {tuple(found['states'])}, {found['fits']} fits"
    same = f"AUROC within {found['largest_auroc_difference']:.1e}"
    return [
        [f"{what} ({same})", f"{ours:.2f} s", other, f"{found[key]:.2f} s", times(found[ratio]), target]
        for other, key, ratio, target in (
            ("scikit-learn, layer by layer", "scikit_learn_s", "ratio", ">= 15 times"),
            ("the same, scaled once", "scikit_learn_scaled_once_s", "ratio_scaled_once", "-"),
        )
    ]


def capture_rows(found: dict[str, Any]) -> list[Row]:
    """Time is relative to generating without; the spread is that of the rounds."""
    what = f"hidden states kept while generating, {found['model']}, batch {found['batch']}"

    def relative(way: str) -> str:
        return "{time:.3f} [{from:.3f}, {to:.3f}] of the time".format(**found[way])

    rows = [
        [f"{what}: {way}", relative(way), "nothing kept, run again", relative("plain again"), "-", "the same"]
        for way, row in found.items()
        if isinstance(row, dict) and way.endswith("layers")
    ]
    theirs, ours = (found[way]["peak_mb"] for way in ("output_hidden_states", "all layers"))
    other = "transformers `output_hidden_states`"
    return [*rows, [f"{what}: peak memory, all layers", f"{ours} MB", other, f"{theirs} MB", times(theirs / ours), "-"]]


def panel_rows(found: dict[str, Any]) -> list[Row]:
    return [
        [name, duration(p50), "-", "-", "-", "p50 <= 40 us" if name.endswith("agents, 0 asked") else "-"]
        for name, (p50, _) in found.items()
    ]


def reader_rows(found: dict[str, Any]) -> list[Row]:
    """Returns a row for each layer, with the processor's time: the wall clock counts other programs too."""
    return [
        [
            f"64-token prompt to its state, layer {layer}, int8",
            f"{row['processor_ms']} ms of the processor",
            *("-", "-", "-", "<= 30 ms"),
        ]
        for layer, row in found["layers"].items()
    ]


def serving_rows(found: dict[str, Any]) -> list[Row]:
    return [
        [
            f"proxy, {row['connections']} connections, {'streamed' if row['stream'] else 'whole'} answers of "
            f"{found['tokens']} tokens: processor time a request",
            duration(1e3 * own["cpu_ms"]),
            row["front"],
            duration(1e3 * (row["cpu_ms"] or row["upstream_cpu_ms"])),
            times((row["cpu_ms"] or row["upstream_cpu_ms"]) / own["cpu_ms"]),
            "-",
        ]
        for row in found["rows"]
        if row["front"] != "metaprobe"
        for own in found["rows"]
        if (own["front"], own["stream"], own["connections"]) == ("metaprobe", row["stream"], row["connections"])
    ]


def log_rows(found: dict[str, Any]) -> list[Row]:
    """Time on the processor; below one, logging costs something."""
    rows = []
    without = {row["stream"]: row["ms"] for row in found["requests"] if row["ratio"] == [1, 1, 1]}
    for row in found["requests"]:
        if row["ratio"] == [1, 1, 1]:
            continue
        kind, (middle, low, high) = "streamed" if row["stream"] else "whole", row["ratio"]
        rows.append(
            [
                f"proxy, {kind} answers of {found['tokens']} tokens, {row['way']}: processor time a request",
                f"{row['ms']:.2f} ms",
                "not logged",
                f"{without[row['stream']]:.2f} ms",
                f"{1 / middle:.2f} times [{1 / high:.2f}, {1 / low:.2f}]",
                ">= 0.95 (5 % more)",
            ]
        )
    for row in found["dashboard"]:
        what = f"dashboard of {row['days']} days, {row['answers']:,} of {found['rows']:,} logged answers"
        rows.append([what, duration(1e6 * row["seconds"]), "-", "-", "-", "< 1 s"])
    kills = found["kills"]
    handed, stored, said = (sum(one[name] for one in kills) for name in ("handed over", "stored", "said to be lost"))
    what = f"{len(kills)} writers killed with SIGKILL: entries lost of {handed:,} handed over"
    rows.append([what, f"{handed - stored:,}", "said by the next one", f"{said:,}", "-", "the queue at most, and said"])
    return rows


def quality_rows(found: dict[str, Any]) -> list[Row]:
    """AUROC of right against wrong on held-out answers; mean log-probability is what lm-polygraph calls Perplexity."""
    rows = []
    for name, chosen in found["sets"].items():
        methods = chosen["methods"]
        own, mean = methods["LightGBM on logprobs"], methods["mean log-probability"]
        what = f"AUROC on {name}, {chosen['n']:,} answers"
        against = [("mean log-probability", mean, signed(own["over_mean"]), "above 0")]
        against += [(f"{peer} (artefactual)", methods[peer], "-", "-") for peer in ("EPR", "WEPR") if peer in methods]
        rows += [
            [what, shown(own["auroc"]), other, shown(theirs["auroc"]), over, target]
            for other, theirs, over, target in against
        ]
    return rows


def duration(us: float) -> str:
    return f"{us / 1e6:.2f} s" if us >= 1e6 else f"{us / 1e3:.1f} ms" if us >= 1e4 else f"{us:.1f} us"


def times(ratio: float) -> str:
    return f"{ratio:.2f} times" if ratio < 10 else f"{ratio:.0f} times"


BENCHMARKS = {
    "predict": Benchmark(("benchmarks.predict", "--peers", "{peers}", "--json", "{out}"), timed_rows),
    "peers": Benchmark(("benchmarks.peers", "--peers", "{peers}", "--json", "{out}"), timed_rows),
    "probes_speed": Benchmark(("benchmarks.probes_speed", "--out", "{out}"), probe_rows),
    "capture": Benchmark(("benchmarks.capture", "--out", "{out}"), capture_rows),
    "serving": Benchmark(("benchmarks.serving", "--json", "{out}"), serving_rows),
    "score_log": Benchmark(("benchmarks.score_log", "--json", "{out}"), log_rows),
    "panel_speed": Benchmark(("benchmarks.panel_speed", "--out", "{out}"), panel_rows),
    "reader_speed": Benchmark(("benchmarks.reader_speed", "--out", "{out}"), reader_rows),
    "quality": Benchmark(("research.quality.measure", "measure", "--data", "{data}"), quality_rows),
}
"""Name -> benchmark."""

if __name__ == "__main__":
    main()
