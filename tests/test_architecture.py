"""`import metaprobe` is light, and shows exactly its public names."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import house  # noqa: E402

FLOORS, HOUSES = house.FLOORS, house.HOUSES
HEAVY = {
    "torch",
    "transformers",
    "lightgbm",
    "sklearn",
    "pyarrow",
    "scipy",
    "onnx",
    "matplotlib",
    "jinja2",
    "safetensors",
}


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_import_metaprobe_loads_nothing_heavy_and_no_room_at_the_top_level() -> None:
    shown = "import metaprobe; metaprobe.train_quality, metaprobe.compare, metaprobe.load"
    loaded = {name.split(".")[0] for name in loaded_after(shown)}  # what trains is imported when it is called
    assert not loaded & HEAVY
    assert not loaded & (set(FLOORS) - {"metaprobe"})
    heavy = {name.split(".")[0] for name in loaded_after("import metaprobe.records.store")}
    assert "pyarrow" in heavy  # it can be seen


def test_the_front_door_shows_exactly_these_names() -> None:
    import metaprobe

    assert sorted(metaprobe.__all__) == [
        "Checkpoint",
        "CheckpointError",
        "ConfidenceProbe",
        "DifficultyProbe",
        "MissingExtra",
        "Panel",
        "PaperRules",
        "QualityPredictor",
        "RecordError",
        "RunStore",
        "Signals",
        "StreamingGate",
        "Verdict",
        "compare",
        "import_file",
        "load",
        "parse_response",
        "teach",
        "train_adapter",
        "train_gate",
        "train_hidden",
        "train_panel",
        "train_quality",
        "train_router",
        "train_success",
        "train_text",
        "watch",
    ]
    assert all(hasattr(metaprobe, name) for name in metaprobe.__all__)
    assert sorted(dir(metaprobe)) == sorted([*metaprobe.__all__, "__version__"])
    with pytest.raises(AttributeError, match="has no attribute 'quality'; it has Checkpoint, "):
        metaprobe.quality  # noqa: B018
