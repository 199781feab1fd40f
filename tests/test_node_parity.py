"""The raw graph from JavaScript: the same answers on recorded responses as the predictor gives in Python."""

import json
import shutil
import subprocess
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from metaprobe.checkpoints import Draft, save_checkpoint
from metaprobe.checkpoints.graph_session import GraphSession
from metaprobe.checkpoints.manifest import RAW
from metaprobe.probes.features import features, schema
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.store import RunStore
from metaprobe.training.calibration import Platt
from metaprobe.training.heads import trees_graph
from metaprobe.training.raw_graph import build_raw_graph, near_split, pad, parity
from metaprobe.training.trees import Trees, float32_thresholds

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
STORES = ("creak-metacrit", "gsm8k-cot", "gsm8k-mgv", "smollm2-metacog-eval")
TARGETS = {"correct": lambda call, right: right, "cut": lambda call, right: call.finish_reason == "length"}
FULL = schema("full")


@pytest.fixture(scope="module")
def calls():
    """Answers of four stores and whether they are right: ([call], [bool])."""
    found = []
    for store in STORES:
        for run in RunStore(HERE.parent / "recorded" / store):
            right = {label.call_id: label.value == 1 for label in run.labels if label.name == "correct"}
            found += [(call, right[call.id]) for call in run.calls if call.id in right and call.logprobs is not None]
    return tuple(zip(*found, strict=True))


@pytest.fixture(scope="module")
def responses(calls):
    """200 of them, spread over the stores."""
    return [calls[0][i] for i in np.linspace(0, len(calls[0]) - 1, 200).astype(int)]


@pytest.fixture(scope="module")
def predictor(calls, tmp_path_factory):
    """Trained on all of them, 100 trees a head, with its raw graph."""
    logprobs = [call.logprobs for call in calls[0]]
    X, heads = features(FULL, logprobs), {}
    options = {"objective": "binary", "num_leaves": 31, "num_threads": 1, "verbosity": -1}
    for name, target in TARGETS.items():
        y = [target(call, right) for call, right in zip(*calls, strict=True)]
        booster = float32_thresholds(lightgbm.train(options, lightgbm.Dataset(X, y), 100))
        heads[name] = (Trees(booster, {}, 0.0), Platt(0.8, 0.1))
    graph = trees_graph(heads, width=X.shape[1])
    saved = save_checkpoint(
        tmp_path_factory.mktemp("checkpoint") / "quality",
        Draft(kind="quality", contract={"schema": "full", "features": list(FULL.names)}),
        model=graph,
        golden_inputs={"features": X[:16]},
        expected=GraphSession(graph).run({"features": X[:16]}),
        card="# trained in a test",
        extra={RAW: build_raw_graph(graph, "full", logprobs)},
    )
    return QualityPredictor.load(saved.path)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder with score.mjs and the two runtimes of package.json."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: the raw graph is run from Node 20 or newer")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "score.mjs"):
        shutil.copy(HERE / "node" / name, folder)
    # The script of onnxruntime-node would fetch libraries for CUDA; those for the processor are in the package.
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=900)
    if done.returncode:
        pytest.skip(f"npm could not install onnxruntime-node and onnxruntime-web: {done.stderr.strip()[-500:]}")
    return folder


@pytest.mark.parametrize("runtime", ["onnxruntime-node", "onnxruntime-web"])
def test_node_gives_the_predictors_heads_on_200_recorded_responses(runtime, predictor, packages, responses, capsys):
    logprobs = [call.logprobs for call in responses]
    inputs = pad(logprobs)
    rows = [[None if np.isnan(value) else value for value in row] for row in inputs["logprobs"].tolist()]
    given = json.dumps({"logprobs": rows, "lengths": inputs["lengths"].tolist()})
    model = predictor.checkpoint.path / RAW
    done = subprocess.run(
        ["node", "score.mjs", runtime, model], cwd=packages, input=given, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]

    actual = {name: np.array(values)[:, None] for name, values in json.loads(done.stdout).items()}
    verdicts = predictor.predict_many(responses)
    expected = {name: np.array([[verdict.heads[name]] for verdict in verdicts]) for name in TARGETS}
    near = near_split((predictor.checkpoint.path / "model.onnx").read_bytes(), features(FULL, logprobs))
    agreement = parity(expected, actual, near)
    with capsys.disabled():
        print(f"\n{runtime}: {agreement}")  # noqa: T201
    assert agreement.rows == 200
    assert agreement.largest <= 1e-5
    assert agreement.different <= 4  # so near a split, most fall on the same side all the same
    assert expected["correct"].std() > 0.1  # or else agreement would mean little


def test_node_gives_null_for_a_response_that_cannot_be_scored(predictor, packages):
    given = json.dumps({"logprobs": [[-0.5, -1.0], [-0.5, None], [0.7, -1.0]], "lengths": [2, 2, 2]})
    done = subprocess.run(
        ["node", "score.mjs", "onnxruntime-node", predictor.checkpoint.path / RAW],
        cwd=packages,
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert [value is None for value in json.loads(done.stdout)["correct"]] == [False, True, True]
