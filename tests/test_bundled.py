"""The checkpoints that come with the package."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import metaprobe
from metaprobe.checkpoints import (
    ContractMismatch,
    NotACheckpoint,
    bundled_names,
    describe_verified,
    find_bundled,
    load_checkpoint,
)
from metaprobe.checkpoints.checkpoint import PROGRAMS_OF_KIND
from metaprobe.checkpoints.files import BUNDLED_FOLDER
from metaprobe.checkpoints.onnx_guard import check_model
from metaprobe.checkpoints.onnx_wire import Graph
from metaprobe.loading import BUILDER_OF_KIND
from metaprobe.probes.hidden import ConfidenceProbe
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.signal_source import SignalSource
from metaprobe.records.canaries import CANARY_POSITIONS
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Hidden
from metaprobe.routing.gate import StreamingGate
from metaprobe.routing.panel.asking import Panel
from research.stores import bundle

ROOT = Path(__file__).parent.parent
CLASSES = {
    "quality": "QualityPredictor",
    "gate": "StreamingGate",
    "panel": "Panel",
    "text-classes": "TextClassifier",
}


def test_each_graph_of_a_panel_is_walked_once_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[bytes] = []

    def noted(data: bytes, kind: str | None = None) -> Graph:
        walked.append(data)
        return check_model(data, kind)

    monkeypatch.setattr("metaprobe.checkpoints.checkpoint.check_model", noted)
    panel = Panel.load("bundled:router")
    assert len(walked) == len(set(walked)) == 1 + len(panel.checkpoint.graphs) == 3


@pytest.mark.filterwarnings("error::metaprobe.checkpoints.UntrustedCheckpoint")
@pytest.mark.parametrize("name", bundled_names())
def test_a_bundled_checkpoint_is_whole_and_loaded_as_what_it_is_without_a_warning(name: str) -> None:
    checkpoint, found = load_checkpoint(find_bundled(name)), metaprobe.load(f"bundled:{name}")
    kind = checkpoint.manifest.kind
    probe = "DifficultyProbe" if name.endswith("difficulty") else "ConfidenceProbe"
    assert type(found).__name__ == (probe if kind == "hidden" else CLASSES[kind])
    assert found.checkpoint.digest == checkpoint.digest
    assert "\nlacks " not in describe_verified(checkpoint, pinned=False)
    assert checkpoint.trust == (
        "weak" if checkpoint.weaknesses else "sound" if checkpoint.manifest.audits else "unaudited"
    )
    assert set(checkpoint.weaknesses) <= checkpoint.manifest.audits.keys()


def test_every_kind_has_someone_who_takes_it_and_a_loader() -> None:
    assert {"quality", "gate", "critical", "router"} <= set(bundled_names())
    assert PROGRAMS_OF_KIND.keys() == BUILDER_OF_KIND.keys()


def test_a_damaged_one_and_another_digest_are_refused(tmp_path: Path) -> None:
    shutil.copytree(BUNDLED_FOLDER / "quality", tmp_path / "q")
    with pytest.raises(metaprobe.CheckpointError, match="digest"):
        metaprobe.load(tmp_path / "q", sha256="0" * 64)
    (tmp_path / "q" / "model.onnx").write_bytes(b"")
    with pytest.raises(metaprobe.CheckpointError):
        metaprobe.load(tmp_path / "q")


def test_the_page_lists_every_one_with_the_figure_of_its_manifest() -> None:
    page = bundle.table({name: load_checkpoint(find_bundled(name)).manifest for name in bundled_names()})
    for name in bundled_names():
        metrics = load_checkpoint(find_bundled(name)).manifest.metrics
        first = "auroc" if "auroc" in metrics else next(iter(metrics))
        metric = metrics[first]
        [line] = [line for line in page if line.startswith(f"| `{name}` | ")]
        assert f"{first} {metric.estimate:.3f} [{metric.low:.3f}, {metric.high:.3f}]" in line


def test_they_take_less_than_15_megabytes_together() -> None:
    assert sum(path.stat().st_size for path in BUNDLED_FOLDER.rglob("*") if path.is_file()) < 15e6


def test_the_default_predictor_and_gate_are_the_bundled_ones() -> None:
    assert QualityPredictor.load().checkpoint.path == find_bundled("quality")
    assert StreamingGate.load().checkpoint.path == find_bundled("gate")
    with pytest.raises(NotACheckpoint, match="quality"):
        find_bundled("qualty")


def test_a_checkpoint_of_another_kind_is_named_with_who_takes_it() -> None:
    wrong = r"^bundled:gate is a checkpoint of kind 'gate'; expected 'quality' or 'blend': `metaprobe serve --gate`"
    with pytest.raises(ContractMismatch, match=wrong):
        QualityPredictor.load("bundled:gate")
    with pytest.raises(ContractMismatch, match=r"kind 'panel'; expected 'hidden': `metaprobe score"):
        ConfidenceProbe.load("bundled:router")
    with pytest.raises(ContractMismatch, match=r"^bundled:quality .* expected 'panel': `metaprobe score`"):
        Panel.load("bundled:quality")
    with pytest.raises(
        ContractMismatch, match="expected 'quality' or 'blend' or 'hidden' or 'adapter': `metaprobe serve"
    ):
        SignalSource.load([f"confidence={find_bundled('gate')}"])


def chat_of(model: str, **more: object) -> dict[str, object]:
    """A chat completion of three tokens by this model."""
    content = [{"token": token, "logprob": -0.3} for token in ("It", " is", " five")]
    choice = {"message": {"content": "It is five"}, "logprobs": {"content": content}, "finish_reason": "stop"}
    return {"model": model, "choices": [choice], **more}


def test_of_an_unknown_model_the_default_predictor_says_that_it_orders_and_does_not_know_how_often_it_is_right() -> (
    None
):
    """`the score may mean nothing`, it said, and docs/limits.md that it may be used for any model."""
    with pytest.warns(UserWarning, match="response of 'gpt-x', checkpoint trained on") as caught:
        verdict = QualityPredictor.load().predict(chat_of("gpt-x"))
    assert "the score orders answers of one run, and is no calibrated probability" in str(caught[0].message)
    assert "may mean nothing" not in str(caught[0].message)
    assert "orders answers of one run only; adapt the checkpoint" in verdict.reason


def test_the_default_predictor_ranks_recorded_answers_far_above_chance() -> None:
    predictor = QualityPredictor.load(on_mismatch="refuse")
    calls = [
        (call, run.label("correct", call.id))
        for run in RunStore(ROOT / "recorded" / "metacog-every-agent").runs(hidden=False)
        for call in run.calls
        if call.stage == "answer" and call.logprobs is not None and len(call.logprobs)
    ]
    scores = [verdict.score or 0.0 for verdict in predictor.predict_many([call for call, _ in calls])]
    right = [score for score, (_, y) in zip(scores, calls, strict=True) if y == 1]
    wrong = [score for score, (_, y) in zip(scores, calls, strict=True) if y == 0]
    # It has seen them; what it is worth on others stands in its card.
    assert sum(right) / len(right) > sum(wrong) / len(wrong) + 0.2


@pytest.mark.filterwarnings("ignore:metaprobe. hidden states are not scored")
@pytest.mark.parametrize("name", [name for name in bundled_names() if name.endswith(("-confidence", "-difficulty"))])
def test_a_bundled_probe_reads_states_of_a_checked_source_alone(name: str) -> None:
    probe = metaprobe.load(f"bundled:{name}")
    golden, generator = probe.guard.golden, probe.checkpoint.manifest.generator
    assert (golden.model, golden.revision) == (generator.model, generator.revision)
    states = Hidden(golden.values[0, [golden.layers.index(probe.layers[0])]], probe.layers, CANARY_POSITIONS)
    assert 0 < probe.read(Call(id="c", model=generator.model, hidden=replace(states, canaries=golden))) < 1
    twice = replace(golden, values=golden.values * 2)
    for wrong in (None, twice):
        with pytest.raises(InvalidResponse, match="the source of the hidden states"):
            probe.read(Call(id="c", model=generator.model, hidden=replace(states, canaries=wrong)))


def test_the_default_loads_with_the_base_install_alone() -> None:
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); from metaprobe import QualityPredictor; "
        "print(QualityPredictor.load().predict([-0.1] * 12).score); "
        "assert not {'torch', 'sklearn', 'lightgbm', 'pyarrow', 'huggingface_hub', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < float(done.stdout) < 1
