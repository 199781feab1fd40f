"""Whether any bytes make a reader crash, hang, take gigabytes, or raise what it does not promise.

    python -m benchmarks.fuzz --minutes 30            # shared evenly by all targets
    python -m benchmarks.fuzz --minutes 2 onnx body   # these only

Coverage-guided by atheris (libFuzzer) where it is installed (`pip install atheris`), else blind edits of the seeds.
What was found lies in --out, an input and its traceback each; new inputs that reach new code are kept there too, and
the next run begins with them. A target that leaves its promise exits with 1.
"""

import argparse
import hashlib
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
INSTRUMENTED = ["metaprobe.checkpoints", "metaprobe.records"]
MEMORY_MB = 1500
"""A single input must not make the process larger than this."""
SECONDS_AN_INPUT = 30
LONGEST = 1 << 16

Check = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Target:
    """A reader: what it is given first, and what calling it means."""

    seeds: list[bytes]
    check: Check
    promised: tuple[type[BaseException], ...]
    """What it may raise."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one target."""

    target: str
    guided: bool
    executions: int
    seconds: float
    edges: int | None
    """Branches of our own code that were reached; None where they were not counted."""
    findings: list[str]
    """Files with the inputs that broke a promise."""


def onnx_target() -> Target:
    """The guard before ONNX Runtime."""
    from metaprobe.checkpoints import CheckpointError, check_model

    return Target(models(), check_model, (CheckpointError,))


def session_target() -> Target:
    """The guard, then ONNX Runtime itself on what the guard lets through; a crash of it ends the process."""
    import numpy as np

    from metaprobe.checkpoints import CheckpointError
    from metaprobe.checkpoints.graph_session import GraphSession

    def check(data: bytes) -> None:
        session = GraphSession(data, trial=True)
        shapes = {
            s.name: tuple(2 if length is None else min(length, 200) for length in s.shape) for s in session.inputs
        }
        session.run({s.name: np.zeros(shapes[s.name], s.type) for s in session.inputs})

    return Target(models(), check, (CheckpointError,))


def manifest_target() -> Target:
    """manifest.json."""
    from metaprobe.checkpoints import CheckpointError
    from metaprobe.checkpoints.manifest import parse_manifest

    return Target([checkpoint()["manifest.json"]], lambda data: void(parse_manifest(data)), (CheckpointError,))


def golden_target() -> Target:
    """golden.json, replayed on the model it belongs to."""
    from metaprobe.checkpoints import CheckpointError, golden
    from metaprobe.checkpoints.graph_session import GraphSession

    files = checkpoint()
    session = GraphSession(files["model.onnx"])
    return Target([files["golden.json"]], lambda data: golden.replay(data, session), (CheckpointError,))


def store_target() -> Target:
    """A Parquet shard of a run store."""
    from itertools import islice

    from metaprobe.records.errors import RecordError
    from metaprobe.records.store import RunStore

    with tempfile.TemporaryDirectory() as made:
        small = RunStore(made)
        small.append(islice(iter(RunStore(ROOT / "recorded" / "smollm2-metacog-eval")), 2))
        seed = small.shards()[0].read_bytes()
    folder = Path(tempfile.mkdtemp())

    def check(data: bytes) -> None:
        (folder / "runs-00000-00000000.parquet").write_bytes(data)
        for _ in RunStore(folder):
            pass

    return Target([seed], check, (RecordError,))


def lines_target() -> Target:
    """JSON lines of the import format, plain or gzipped."""
    import gzip

    from metaprobe.records.errors import RecordError
    from metaprobe.records.importer import read_openai_lines

    lines = []
    for i, body in enumerate(bodies("openai_chat*.json")):
        response = json.loads(body)
        for choice in response["choices"] if isinstance(response, dict) else ():
            tokens = (choice.get("logprobs") or {}).get("content") or []
            del tokens[3:]  # what is short is edited faster
        line = {"id": str(i), "group": "g", "response": response, "labels": {"correct": 1}, "stage": "answer"}
        lines.append(json.dumps(line).encode())
    folder = Path(tempfile.mkdtemp())

    def check(data: bytes) -> None:
        path = folder / ("lines.jsonl.gz" if data.startswith(b"\x1f\x8b") else "lines.jsonl")
        path.write_bytes(data)
        for _ in read_openai_lines(path, on_error=lambda error: None):
            pass

    return Target([*lines, b"\n".join(lines), gzip.compress(lines[0], mtime=0)], check, (RecordError,))


def body_target() -> Target:
    """Bodies of HTTP responses, in every format that is read: both ways of reading agree, whether or not alternatives
    are asked for, and what is scored without a word has plain tokens that spell its text, and numbers that differ."""
    from metaprobe.records.errors import RecordError
    from metaprobe.records.parse import parse_response
    from metaprobe.records.raw_body import parse_body

    def read(how: Callable[..., Any], data: bytes) -> Any:
        try:
            parsed = how(data)
        except RecordError:
            return None
        hold_to_the_text(parsed)
        return parsed.logprobs.tolist(), parsed.segments

    def check(data: bytes) -> None:
        without = read(lambda body: parse_body(body, top=False), data)
        fast, slow = read(parse_body, data), read(parse_response, data)
        if fast != slow:
            raise AssertionError(f"parse_body gives {fast}, parse_response {slow}")
        if fast is not None and without is not None and fast != without:
            raise AssertionError(f"with alternatives {fast}, without {without}")

    return Target(bodies("**/*.json"), check, (RecordError,))


def hold_to_the_text(parsed: Any) -> None:
    """Raises `AssertionError` where a response is accepted without a word whose numbers are not of its text."""
    numbers = parsed.logprobs.tolist()
    if parsed.tokens and len(numbers) >= 5 and len(set(numbers)) == 1 and numbers[0] < 0:
        raise AssertionError(f"{len(numbers)} equal numbers were accepted")
    plain = re.compile(r"[A-Za-z0-9 .,!?]+")
    if parsed.note or parsed.segments or not plain.fullmatch(parsed.text):
        return
    if all(plain.fullmatch(token) for token in parsed.tokens):
        spelt = "".join("".join(parsed.tokens).split())
        if parsed.tokens and spelt != "".join(parsed.text.split()):
            raise AssertionError(f"tokens {spelt!r} were accepted for the text {parsed.text!r}")


TARGETS: dict[str, Callable[[], Target]] = {
    "onnx": onnx_target,
    "session": session_target,
    "manifest": manifest_target,
    "golden": golden_target,
    "store": store_target,
    "lines": lines_target,
    "body": body_target,
}


def checkpoint() -> dict[str, bytes]:
    """The files of a small checkpoint."""
    sys.path.insert(0, str(ROOT / "tests"))
    from tiny import tiny_quality

    with tempfile.TemporaryDirectory() as folder:
        return tiny_quality(Path(folder) / "quality").files()


def models() -> list[bytes]:
    """A linear model and a tree."""
    from onnx import helper

    tree = helper.make_node(
        "TreeEnsembleRegressor",
        ["features"],
        ["score"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[0.5, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights=[1.0, 2.0],
    )
    graph = helper.make_graph(
        [tree],
        "trees",
        [helper.make_tensor_value_info("features", 1, [None, 3])],
        [helper.make_tensor_value_info("score", 1, [None, 1])],
    )
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 1)]
    return [
        checkpoint()["model.onnx"],
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString(),
    ]


def bodies(pattern: str) -> list[bytes]:
    """Recorded responses that are small enough to be edited usefully."""
    found = [path.read_bytes() for path in sorted((ROOT / "tests" / "responses").glob(pattern))]
    return [body for body in found if len(body) <= LONGEST] or found[:1]


def void(_: object) -> None:
    """What a check gives."""


class Watched:
    """A check that writes down what breaks its promise, once a place in the code, and goes on."""

    def __init__(self, target: Target, out: Path) -> None:
        self.target, self.out = target, out
        self.executions = 0
        self.places: set[str] = set()

    def __call__(self, data: bytes) -> None:
        self.executions += 1
        try:
            self.target.check(data)
        except self.target.promised:
            return
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            place = "".join(f"{f.filename}:{f.lineno};" for f in traceback.extract_tb(error.__traceback__)[-2:])
            if place not in self.places:
                self.places.add(place)
                name = f"finding-{hashlib.sha256(data).hexdigest()[:12]}"
                (self.out / name).write_bytes(data)
                (self.out / f"{name}.txt").write_text(traceback.format_exc(), encoding="utf-8")


def guided(name: str, seconds: int, out: Path, seed: int) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris

    # Readers that are imported by name inside functions must be seen too, so everything is imported here.
    with warnings.catch_warnings(), atheris.instrument_imports(include=INSTRUMENTED):
        warnings.simplefilter("ignore")
        target = TARGETS[name]()
    watched = Watched(target, out)
    corpus = out / "corpus"
    corpus.mkdir(exist_ok=True)
    for data in target.seeds:
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    words = {word for data in target.seeds for word in re.findall(rb'"\w{1,40}"', data)}  # JSON keys, as in the seeds
    (out / "words").write_text("".join(f'"\\"{word[1:-1].decode()}\\""\n' for word in sorted(words)[:400]))
    options = [f"-dict={out / 'words'}"] if words else []
    options += [f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MB}", f"-timeout={SECONDS_AN_INPUT}"]
    options += [f"-artifact_prefix={out}/finding-", f"-max_len={LONGEST}", f"-seed={seed + 1}", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], watched)
    atheris.Fuzz()


def blind(name: str, seconds: int, out: Path, seed: int) -> None:
    """Random edits of the seeds, without looking at what they reach."""
    target = TARGETS[name]()
    watched, rng, end = Watched(target, out), random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < end:
        data = bytearray(rng.choice(target.seeds))
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0 if at < len(data):
                    data[at] ^= 1 << rng.randrange(8)
                case 1:
                    del data[at : at + rng.randint(1, 32)]
                case 2:
                    data[at:at] = rng.choice([b"\xff" * 9, b"[" * 200, b"null", b"-1e999", rng.randbytes(4)])
                case _:
                    other = rng.choice(target.seeds)
                    start = rng.randrange(len(other))
                    data[at : at + 16] = other[start : start + rng.randint(1, 64)]
        watched(bytes(data))
    print(f"stat::number_of_executed_units: {watched.executions}", file=sys.stderr)
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MEMORY_MB * 1024:
        (out / "finding-memory").write_text("the process grew beyond the limit")


def run(name: str, seconds: int, out: Path, seed: int) -> Outcome:
    """One target in a process of its own."""
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    command = [sys.executable, __file__, name, "--child", str(seconds), "--out", str(out), "--seed", str(seed)]
    child = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    (out / "log.txt").write_text(child.stderr, encoding="utf-8")
    counted = re.findall(r"number_of_executed_units: (\d+)", child.stderr)
    reached = re.findall(r"cov: (\d+)", child.stderr)
    findings = sorted(str(path) for path in out.glob("finding-*") if path.suffix != ".txt")
    if child.returncode and not findings:
        findings = [f"exit code {child.returncode}, see {out / 'log.txt'}"]
    return Outcome(
        target=name,
        guided=bool(reached),
        executions=int(counted[-1]) if counted else 0,
        seconds=round(time.monotonic() - began, 1),
        edges=int(reached[-1]) if reached else None,
        findings=findings,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="all by default")
    parser.add_argument("--minutes", type=float, default=30.0, help="for all targets together")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        warnings.simplefilter("ignore")
        try:
            import atheris  # noqa: F401
        except ImportError:
            return blind(options.targets[0], options.child, options.out, options.seed)
        return guided(options.targets[0], options.child, options.out, options.seed)
    names = options.targets or list(TARGETS)
    seconds = max(1, round(60 * options.minutes / len(names)))
    outcomes = []
    for name in names:
        outcome = run(name, seconds, options.out / name, options.seed)
        outcomes.append(outcome)
        edges = "not counted" if outcome.edges is None else f"{outcome.edges} edges"
        print(f"{name:9} {outcome.executions:>10,} executions in {outcome.seconds:.0f} s, {edges}, ", end="")
        print(f"{len(outcome.findings)} findings", *outcome.findings, sep="\n    ", flush=True)
    (options.out / "summary.json").write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")
    sys.exit(1 if any(outcome.findings for outcome in outcomes) else 0)


if __name__ == "__main__":
    main()
