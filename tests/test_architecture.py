"""The house keeps its shape: imports run downwards, and the light rooms stay light."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from metaprobe.probes.elsewhere import DONE_IN, Work

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import house  # noqa: E402

FLOORS = house.FLOORS
LIGHT = {"checkpoints", "probes", "routing"}
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


PACKAGE = ROOT / "src" / "metaprobe"


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "metaprobe"


def sources() -> list[Path]:
    return list(house.sources().values())


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(house.parsed(path)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; use full names"
            modules.add(node.module or "")
    return modules


def test_imports_run_downwards_and_never_sideways() -> None:
    """Also those for type checkers only."""
    wrong = []
    for path in sources():
        room = room_of(path)
        for module in imported_modules(path):
            other = house.room_of(module)
            if module.split(".")[0] == "metaprobe" and other != room and FLOORS[other] >= FLOORS[room]:
                wrong.append(f"{path}: {room} (floor {FLOORS[room]}) imports {module}")
    assert wrong == []


def test_work_that_other_rooms_do_for_probes_is_named_by_the_front_door() -> None:
    assert house.not_downwards(house.imports(house.sources())) == []
    assert DONE_IN.keys() == set(get_args(Work))
    assert {module for module, _ in DONE_IN.values()} <= house.sources().keys()


def test_light_rooms_import_no_heavy_library() -> None:
    light = [path for path in sources() if room_of(path) in LIGHT]
    heavy = {path: {module.split(".")[0] for module in imported_modules(path)} & HEAVY for path in light}
    assert {path: names for path, names in heavy.items() if names} == {}


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_import_metaprobe_loads_nothing_heavy_and_no_room_at_the_top_level() -> None:
    loaded = {name.split(".")[0] for name in loaded_after("import metaprobe")}
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
        "train_adapter",
        "train_gate",
        "train_hidden",
        "train_panel",
        "train_quality",
        "train_router",
        "train_text",
        "watch",
    ]
    assert all(hasattr(metaprobe, name) for name in metaprobe.__all__)
    assert sorted(dir(metaprobe)) == sorted([*metaprobe.__all__, "__version__"])
    with pytest.raises(AttributeError, match="has no attribute 'quality'; it has Checkpoint, "):
        metaprobe.quality  # noqa: B018


def test_what_recipes_share_knows_no_recipe() -> None:
    arrows = house.imports({n: path for n, path in house.sources().items() if n.startswith("metaprobe.training")})
    shared = [one for one in arrows if re.fullmatch(r"metaprobe\.training\.[a-z_]+", one)]
    assert len(shared) > 15
    asking = {one for one in shared if any(other.startswith("metaprobe.training.recipes.") for other in arrows[one])}
    assert asking == set()


def test_no_class_has_the_name_of_another() -> None:
    assert [name for name, count in house.class_names(house.sources()).items() if count > 1] == []
