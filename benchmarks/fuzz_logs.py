"""Whether changed logs crash a reader, or are stored with a wrong number.

    python -m benchmarks.fuzz_logs --mutations 10000               # of each reader
    python -m benchmarks.fuzz_logs --mutations 500 inspect helm    # these only

Half of the changes are to bytes, half to the structure (a value of another type in the place of one, a key or an entry
taken away or given twice). A reader may raise what an import raises, and nothing else. Of a structure it is known
which sample was changed: each other sample must give the log-probabilities, text and labels that it gives in the
unchanged log, or none. Of the changed sample the log-probabilities must be the same, where the change was not to them.
"""

import argparse
import copy
import gzip
import io
import json
import random
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from metaprobe.records.errors import RecordError
from metaprobe.records.importer import format_of, read_log
from metaprobe.records.logs.logged_answer import LoggedAnswer, LogOptions
from research.blocks import ROOT, markdown, read_figures, write, write_figures

LOGS = ROOT / "tests" / "logs"
FIGURES = ROOT / "docs" / "measured" / "fuzz_logs.json"
PAGE = ROOT / "docs" / "import.md"
ODD: list[Any] = [None, True, -1, 0, 2.5, 1e308, 10**400, "", "x", "1", "\ud83d", [], [[]], {}, {"a": 1}, float("nan")]
"""Values that take the place of a value in a log."""
MEASURED = ("logprobs", "logProbs", "tokens", "resps", "token", "logprob", "bytes", "top_logprobs", "arguments")
"""Keys under which a change may change a log-probability, or what it is of."""

Told = tuple[list[float], str, tuple[tuple[str, float], ...]]
"""Log-probabilities, text and labels of an answer."""


@dataclass(frozen=True, slots=True)
class Log:
    """A log that is changed: a JSON document, or lines of JSON."""

    form: str
    held: Any
    samples: tuple[str, ...] | None
    """Where its samples stand in the document; None where each line is one."""
    name: str

    def written(self) -> bytes:
        lines = [self.held] if self.samples is not None else self.held
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def listed(self, held: Any) -> list[Any]:
        """The samples of it, or of a copy."""
        for key in self.samples or ():
            held = held[key]
        return held  # type: ignore[no-any-return]


@dataclass(slots=True)
class Outcome:
    """Counts the results of the changes to one reader's logs."""

    reader: str
    mutations: int = 0
    refused: int = 0
    """Changes for which the whole file was refused."""
    stored_runs: int = 0
    compared_runs: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)


def logs() -> dict[str, list[Log]]:
    """The logs of each reader, with few samples so that a change is quick."""

    def document(form: str, path: Path, *samples: str, keep: int = 4) -> Log:
        log = Log(form, json.loads(path.read_text(encoding="utf-8")), samples, path.name)
        del log.listed(log.held)[keep:]
        return log

    def lines(form: str, path: Path, keep: int = 4) -> Log:
        return Log(
            form, [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()][:keep], None, path.name
        )

    choices, free = sorted((LOGS / "lm-eval").glob("samples_[cs]*.jsonl"))
    batch = LOGS / "openai-batch"
    return {
        "inspect": [document("inspect", LOGS / "inspect" / "graded.json", "samples")],
        "lm-eval": [lines("lm-eval", choices), lines("lm-eval", free)],
        "helm": [document("helm", LOGS / "helm" / "sampled" / "scenario_state.json", "request_states")],
        "promptfoo": [
            document("promptfoo", LOGS / "promptfoo" / "sums.json", "results", "results"),
            lines("promptfoo", LOGS / "promptfoo" / "sums.jsonl"),
        ],
        "openai-batch": [
            lines("openai-batch", batch / "chat_output.jsonl"),
            lines("openai-batch", batch / "responses_output.jsonl"),
        ],
    }


def places(held: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path to every value inside."""
    for key, value in held.items() if isinstance(held, dict) else enumerate(held) if isinstance(held, list) else ():
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(log: Log, rng: random.Random) -> tuple[bytes, int | None, tuple[Any, ...]]:
    """(a copy with one change, the sample that it is in or None for outside of all, the path to it)."""
    held = copy.deepcopy(log.held)
    samples = log.listed(held)
    number = rng.randrange(len(samples)) if rng.random() < 0.85 else None
    root = held if number is None else samples[number]
    keys = log.samples or ()  # the path of the list of samples, which a change outside of them must not touch
    inside = [p for p in places(root) if number is not None or (p[: len(keys)] != keys and keys[: len(p)] != p)]
    if not inside:
        return log.written(), None, ()
    path = rng.choice(inside)
    parent = root
    for key in path[:-1]:
        parent = parent[key]
    match rng.randrange(4):
        case 0:
            del parent[path[-1]]
        case 1 if isinstance(parent, list):
            parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(parent[path[-1]]))
        case 2 if isinstance(parent[path[-1]], list):
            rng.shuffle(parent[path[-1]])
        case _:
            parent[path[-1]] = copy.deepcopy(rng.choice(ODD))
    return Log(log.form, held, log.samples, log.name).written(), number, path


def spoilt(data: bytes, rng: random.Random) -> bytes:
    """A copy with some changes to its bytes."""
    held = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(held) + 1)
        match rng.randrange(4):
            case 0 if at < len(held):
                held[at] ^= 1 << rng.randrange(8)
            case 1:
                del held[at : at + rng.randint(1, 32)]
            case 2:
                held[at:at] = rng.choice([b"\xff" * 9, b"[" * 2000, b"null", b"-1e999", rng.randbytes(4), b"\n", b'"'])
            case _:
                start = rng.randrange(len(data))
                held[at : at + 16] = data[start : start + rng.randint(1, 64)]
    return bytes(held)


def archive(data: bytes, rng: random.Random) -> bytes:
    """A `.eval` of the bytes of a log of Inspect in JSON, where they are one; else the bytes."""
    try:
        held = json.loads(data)
        header = {key: value for key, value in held.items() if key != "samples"}
        members = {"header.json": header, **{f"samples/{n}.json": sample for n, sample in enumerate(held["samples"])}}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return data
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as into:
        for name, value in members.items():
            into.writestr(name, json.dumps(value))
    return spoilt(made.getvalue(), rng) if rng.random() < 0.3 else made.getvalue()


def told(path: Path, form: str) -> dict[str, Told]:
    """Returns the answers that a reader finds in a file, by id. Bad samples are passed over."""

    def skip(*_: object) -> None:
        pass

    lines = read_log(path, format_of(path, form), LogOptions(on_error=skip), on_left_out=skip)
    found = {}
    for line in lines:
        (call,) = line.run.calls
        logprobs = [] if call.logprobs is None else call.logprobs.tolist()
        found[line.run.item.id] = logprobs, call.text, tuple((label.name, label.value) for label in line.run.labels)
    return found


def ids_of_samples(log: Log, path: Path) -> list[set[str]]:
    """The ids that each sample gives."""
    form = format_of(path, log.form)
    found = []
    for sample in log.listed(log.held):
        held = copy.deepcopy(log.held)
        log.listed(held)[:] = [sample]
        path.write_bytes(Log(log.form, held, log.samples, log.name).written())
        samples: Iterator[LoggedAnswer] = form.read(path, LogOptions(on_error=lambda error: None))
        found.append({str(one.line["id"]) for one in samples if one.line is not None})
    return found


def wrong(now: dict[str, Told], truth: dict[str, Told], own: set[str], path: tuple[Any, ...]) -> str:
    """Names a field that differs from the unchanged log although the change was elsewhere; empty where none does."""
    # The Responses API lists the parts of an answer: a part twice is an answer twice as long.
    measured = any(key in MEASURED for key in path) or path[:3] == ("response", "body", "output")
    for name, answer in now.items():
        if name not in truth:
            continue
        if name not in own and answer != truth[name]:
            return f"{name} gives {answer}, not {truth[name]}, after a change elsewhere at {path}"
        if name in own and not measured and answer[0] and truth[name][0] and answer[0] != truth[name][0]:
            return f"{name} gives {answer[0]}, not {truth[name][0]}, after a change at {path}"
    return ""


def fuzz(reader: str, mutations: int, seed: int, check: Callable[[str], None]) -> Outcome:
    """Changes the logs of a reader so many times."""
    outcome, rng, began = Outcome(reader), random.Random(f"{reader} {seed}"), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        worlds = []
        for number, log in enumerate(logs()[reader]):
            # The samples of a run of HELM have their scores in a file beside.
            place = Path(folder) / str(number)
            place.mkdir()
            if reader == "helm":
                (place / "per_instance_stats.json").write_bytes(
                    (LOGS / "helm" / "sampled" / "per_instance_stats.json").read_bytes()
                )
            path = place / log.name
            ids = ids_of_samples(log, path)
            path.write_bytes(log.written())
            worlds.append((log, path, ids, told(path, log.form)))
        for _ in range(mutations):
            log, path, ids, truth = rng.choice(worlds)
            if structural := rng.random() < 0.5:
                data, number, where = changed(log, rng)
            else:
                data, number, where = spoilt(log.written(), rng), None, ()
            if reader == "inspect" and rng.random() < 0.3:
                data = archive(data, rng)
            elif rng.random() < 0.05:
                data = spoilt(gzip.compress(data, mtime=0), rng) if not structural else gzip.compress(data, mtime=0)
            path.write_bytes(data)
            outcome.mutations += 1
            try:
                now = told(path, log.form)
            except RecordError:
                outcome.refused += 1
                continue
            except Exception:
                outcome.findings.append(traceback.format_exc(limit=-4))
                check(outcome.findings[-1])
                continue
            outcome.stored_runs += len(now)
            if structural and number is not None:
                outcome.compared_runs += len(now.keys() & truth.keys())
                if fault := wrong(now, truth, ids[number], where):
                    outcome.findings.append(fault)
                    check(fault)
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


def write_page() -> None:
    """Writes what was kept of the last run into the page."""
    kept = read_figures(FIGURES)["readers"]
    names = ("mutations", "refused", "stored_runs", "compared_runs", "findings")
    rows = [[outcome["reader"], *(f"{outcome[name]:,}" for name in names)] for outcome in kept]
    head = ["reader", "changes", "files refused", "answers read", "answers compared", "findings"]
    write(PAGE, "fuzz-logs", [*markdown(head, rows), "", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", choices=[*logs(), []], help="all by default")
    parser.add_argument("--mutations", type=int, default=10_000, help="of each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep the counts, and write them into the page")
    parser.add_argument("--page", action="store_true", help="try nothing; write what was kept into the page")
    options = parser.parse_args()
    if options.page:
        return write_page()
    warnings.simplefilter("ignore")
    outcomes = []
    for reader in options.readers or list(logs()):
        outcome = fuzz(reader, options.mutations, options.seed, lambda finding: print(finding, file=sys.stderr))
        outcomes.append(outcome)
        counts = f"{outcome.refused:,} files refused, {outcome.stored_runs:,} answers read"
        counts += f", {outcome.compared_runs:,} compared, {len(outcome.findings)} findings"
        print(f"{reader:13} {outcome.mutations:>7,} changes in {outcome.seconds:.0f} s: {counts}", flush=True)
    if options.keep:
        kept = read_figures(FIGURES)["readers"]
        now = {outcome.reader: {**asdict(outcome), "findings": len(outcome.findings)} for outcome in outcomes}
        held = list(({one["reader"]: one for one in kept} | now).values())
        write_figures(FIGURES, {"seed": options.seed, "readers": held})
        write_page()
    return sys.exit(1 if any(outcome.findings for outcome in outcomes) else 0)


if __name__ == "__main__":
    main()
