"""Checks what the base install must do on the first day; scripts/matrix.py runs it in new environments.

    python scripts/first_steps.py CHECKPOINTS RESPONSES.jsonl

CHECKPOINTS is a folder of checkpoints of any kinds; `-` for the bundled ones. Ends with one line of JSON.
"""

import importlib.metadata
import json
import subprocess
import sys
import warnings
from pathlib import Path

import click

HEAVY = {"torch", "scikit-learn", "scipy", "pyarrow", "lightgbm", "onnx", "transformers", "pandas", "matplotlib"}
"""Packages that must not come with the base."""


def metaprobe(*arguments: str, fails: bool = False) -> str:
    """Returns the command's output, or its error message if it should fail."""
    command = str(Path(sys.executable).with_name("metaprobe"))
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    assert bool(done.returncode) == fails, (arguments, done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


def import_ms() -> float:
    """Returns the CPU milliseconds of `import metaprobe` in a new process, the best of three."""
    code = "import time; start = time.process_time(); import metaprobe; print((time.process_time() - start) * 1000)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3))


def use(kind: str, path: Path) -> str:
    """Returns the output of using a checkpoint of that kind as it is meant to be used."""
    import numpy as np

    from metaprobe import QualityPredictor
    from metaprobe.probes.hidden import HiddenProbe
    from metaprobe.routing.gate import StreamingGate
    from metaprobe.routing.panel.asking import Panel

    match kind:
        case "quality":
            return str(QualityPredictor.load(path).predict([-0.05, -0.01, -0.002, -1.2, -0.03]))
        case "gate":
            gates = StreamingGate.load(path, stop=None)
            gate = gates.start()
            return f"{[gate.push(-0.5) for _ in range(gates.looks[0])]}, {gate.score}"
        case "panel":
            return str(Panel.load(path).next("What is 17 * 23?", None, []))
        case "hidden":
            probe = HiddenProbe.load(path)
            return str(probe.probability(np.zeros((1, probe.width * len(probe.layers)), np.float32)))
        case _:
            return "its golden rows hold"


def main() -> None:
    checkpoints, responses = sys.argv[1:3]
    versions = {found.metadata["Name"].lower(): found.version for found in importlib.metadata.distributions()}
    assert not HEAVY & versions.keys(), f"the base install brought {sorted(HEAVY & versions.keys())}"

    from metaprobe.checkpoints import UntrustedCheckpoint, load_checkpoint
    from metaprobe.checkpoints.files import BUNDLED_FOLDER

    assert "Usage" in metaprobe("--help")
    assert versions["metaprobe"] in metaprobe("--version")
    assert "metaprobe adapt" in metaprobe("quickstart")
    assert "pip install '.[fit]'" in metaprobe("train", "quality", str(Path.cwd()), "--out", "q", fails=True)

    warnings.simplefilter("ignore", UntrustedCheckpoint)
    said = {}
    for manifest in sorted((BUNDLED_FOLDER if checkpoints == "-" else Path(checkpoints)).glob("*/manifest.json")):
        path, kind = manifest.parent, json.loads(manifest.read_text(encoding="utf-8"))["kind"]
        load_checkpoint(path)  # replays its golden rows: this onnxruntime computes what the one that made it did
        said[path.name] = use(kind, path)
        assert kind in metaprobe("inspect", str(path))
        if kind == "quality":
            lines = [json.loads(line) for line in metaprobe("score", str(path), responses).splitlines()]
            assert lines, responses
            assert all(line["score"] is not None or line["heads"] for line in lines), lines
    assert said, f"no checkpoint in {checkpoints}"
    click.echo(json.dumps({"import_ms": round(import_ms()), "versions": versions, "said": said}))


if __name__ == "__main__":
    main()
