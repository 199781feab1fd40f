"""`metaprobe.load` gives what a checkpoint holds, whatever its kind."""

import shutil
from pathlib import Path

import pytest

import metaprobe
from metaprobe.checkpoints import load_checkpoint
from metaprobe.checkpoints.checkpoint import TAKEN_BY
from metaprobe.checkpoints.files import FOLDER
from metaprobe.loading import BY_KIND

KINDS = {"quality": "QualityPredictor", "gate": "StreamingGate", "router": "LearnedRouter"}
PROBES = {"smollm2-135m-difficulty": "DifficultyProbe", "smollm2-135m-confidence": "ConfidenceProbe"}


@pytest.mark.parametrize(("name", "expected"), [*KINDS.items(), *PROBES.items()])
def test_a_checkpoint_is_loaded_as_what_it_is(name: str, expected: str) -> None:
    found = metaprobe.load(f"bundled:{name}")
    assert type(found).__name__ == expected
    assert found.checkpoint.digest == load_checkpoint(f"bundled:{name}").digest


def test_every_kind_that_a_user_holds_has_its_loader() -> None:
    assert TAKEN_BY.keys() == BY_KIND.keys()


def test_a_damaged_one_and_another_digest_are_refused(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "quality", tmp_path / "q")
    with pytest.raises(metaprobe.CheckpointError, match="digest"):
        metaprobe.load(tmp_path / "q", sha256="0" * 64)
    (tmp_path / "q" / "model.onnx").write_bytes(b"")
    with pytest.raises(metaprobe.CheckpointError):
        metaprobe.load(tmp_path / "q")
