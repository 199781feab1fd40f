"""Scoring tells nobody: ONNX Runtime leaves no device identifier and no queue of reports behind."""

import os
import subprocess
import sys
from pathlib import Path

SCORE = """
from metaprobe import QualityPredictor
QualityPredictor.load().predict([-0.1, -0.5, -0.2])
"""
SILENCERS = (
    "CI",
    "ORT_DISABLE_TELEMETRY",
    "ORT_TELEMETRY_DISABLED",
    "ORT_RUNNING_UNIT_TESTS",
    "GITHUB_ACTIONS",
    "TF_BUILD",
)
"""Settings that would keep ONNX Runtime silent anyway."""


def test_scoring_leaves_no_trace_of_telemetry(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in SILENCERS and not name.startswith("XDG_")}
    subprocess.run([sys.executable, "-c", SCORE], env={**env, "HOME": str(tmp_path)}, check=True, timeout=120)
    assert not [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name or path.name == "deviceid"]
