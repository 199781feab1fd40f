"""The real vLLM on a CPU: answers without their end, the gate at its token, hidden states of the right layer and place.

vLLM has an environment of its own (docs/engines.md): METAPROBE_VLLM_PYTHON names its interpreter.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from click.testing import CliRunner
from taught_guide import check_guide, taught_by_the_guide

from metaprobe.cli import main
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import StateReplay
from metaprobe.llms.weights import resolve
from metaprobe.probes.blend import BlendPredictor
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.score_lines import store_lines
from metaprobe.records.canaries import CanaryStates, compare_canaries
from metaprobe.records.store import RunStore
from metaprobe.train import train_blend
from research.engines import vllm_server
from research.engines.vllm_worker import MODEL, STATES, requests

PYTHON = os.environ.get("METAPROBE_VLLM_PYTHON", "")
LIMIT_S = float(os.environ.get("METAPROBE_VLLM_LIMIT_S", "600"))
"""Failures of vLLM are often silent: a step that takes longer has failed."""
ROOT = Path(__file__).parent.parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="METAPROBE_VLLM_PYTHON names no interpreter of an environment with vLLM"),
]


def module(python: str, *arguments: str) -> None:
    """Run a module by an interpreter, as vLLM on a CPU wants it."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [python, "-m", *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-3000:]


def run(part: str, out: Path) -> Path:
    module(PYTHON, "research.engines.vllm_worker", part, str(out))
    return out


@pytest.fixture(scope="module")
def here() -> LocalLLM:
    return LocalLLM.load(MODEL, top_logprobs=3)


def test_the_engines_answers_have_our_prompts_raw_numbers_and_no_end_token(tmp_path: Path, here: LocalLLM) -> None:
    found = json.loads(run("answers", tmp_path / "answers.json").read_text())
    differences = []
    for request, call in zip(requests(), found["calls"], strict=True):
        assert call["prompt"] == here.encode(request.messages)
        assert len(call["tokens"]) == len(call["ids"]) == len(call["logprobs"]) == call["top"][0]
        assert call["top"][1] == 3
        assert not any("<|im_end|>" in token for token in call["tokens"])
        [said] = scored(here, [(call["prompt"], call["ids"])])
        differences.extend(np.abs(said - np.array(call["logprobs"])))
    # bfloat16 by other kernels; another prompt or a shifted token is 1 and more off.
    assert np.mean(differences) < 0.05, differences
    assert max(differences) < 0.3, differences
    assert {call["finish"] for call in found["calls"][:4]} == {"stop"}
    assert (found["calls"][4]["finish"], len(found["calls"][4]["tokens"])) == ("length", 2)
    assert "e" not in found["calls"][5]["text"]
    # Prompts that no step of the engine holds together: read in parts, one with a seed ended the engine.
    assert found["seeded"] == [3, 3, 3]


def scored(llm: LocalLLM, pairs: list[tuple[list[int], list[int]]]) -> list[Any]:
    return StateReplay(llm, layers="0").logprobs_of(pairs)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of vLLM's own server, with verdicts inside."""
    log, port = tmp_path_factory.mktemp("server") / "log", vllm_server.free_port()
    # A processor without bfloat16 emulates it, and takes some eight times as long for each answer.
    more = ["--middleware", vllm_server.MIDDLEWARE, "--dtype", "float32"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
        process = vllm_server.started(PYTHON, resolve(MODEL).location, port, log, *more)
    try:
        vllm_server.wait_for(port, process, log, seconds=LIMIT_S)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        vllm_server.stop([process])


def test_the_server_itself_gives_verdicts(server: str) -> None:
    predictor = QualityPredictor.load(on_mismatch="ignore")
    with openai.OpenAI(base_url=server, api_key="k", timeout=LIMIT_S, max_retries=0) as client:

        def ask(question: str, **more: Any) -> Any:
            messages: Any = [{"role": "user", "content": question}]
            return client.chat.completions.create(model="m", messages=messages, max_tokens=60, **more)

        shown, hidden = (ask("What is 17 + 28?", temperature=0, logprobs=wanted) for wanted in (True, False))
        assert shown.choices[0].logprobs.content
        assert hidden.choices[0].logprobs is None
        assert shown.metaprobe["score"] == pytest.approx(predictor.predict(shown).score)
        assert hidden.metaprobe["score"] == pytest.approx(shown.metaprobe["score"], abs=0.01)
        *_, last = [chunk for chunk in ask("What is 17 + 28?", temperature=0, stream=True) if chunk.choices]
        assert last.metaprobe["score"] == pytest.approx(shown.metaprobe["score"], abs=0.01)


@pytest.mark.filterwarnings("ignore")
def test_the_guide_leads_from_the_server_to_a_flag_without_a_label(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_guide(taught_by_the_guide(server, "m", tmp_path))


def test_the_doctor_finds_nothing_wrong_with_the_server(server: str) -> None:
    done = CliRunner().invoke(main, ["doctor", server, "m", "--json", "--timeout", str(LIMIT_S)])
    report = json.loads(done.stdout)
    found = {one["check"]: one for one in report["findings"]}
    assert done.exit_code == 0, found
    assert found["temperature"]["found"].startswith("raw")
    checks = ("given", "numbers", "alternatives", "temperature", "finish", "streamed", "n = 2")
    assert {found[check]["verdict"] for check in checks} == {"ok"}, found


def test_a_watched_asynchronous_engine_stops_writing_where_the_gate_fires(tmp_path: Path) -> None:
    rows = json.loads(run("async", tmp_path / "async.json").read_text())
    ended = [row for row in rows if row["action"] == "stop"]
    assert ended
    assert [row["fires"] for row in ended] == [row["tokens"] for row in ended]
    assert all(row["finish"] is None for row in ended)
    assert all(row["fires"] in (None, row["tokens"]) and row["finish"] for row in rows if row not in ended)
    assert {row["open"] for row in rows} == {0}
    assert all(0 < row["score"] < 1 for row in rows)


def cosines(a: Any, b: Any) -> Any:
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return (a * b).sum(-1) / np.maximum(np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1), 1e-9)


def test_hidden_states_are_of_the_layer_and_the_token_that_they_are_named_for(tmp_path: Path, here: LocalLLM) -> None:
    found = np.load(run("states", tmp_path / "states.npz"))
    replay = StateReplay(here, layers="all", positions=("prompt_last", "answer_last", "answer_mean"), tokens=True)
    readings = [replay.reading(call, "") for call in STATES]
    differences = []
    for i, (reading, one) in enumerate(zip(readings, replay.read(readings), strict=True)):
        theirs = found[f"states{i}"]
        assert theirs.shape == one.tokens.shape
        assert cosines(theirs, one.tokens).mean(axis=0).min() > 0.99
        assert cosines(found[f"hidden{i}"], one.hidden.values).min() > 0.99
        # Off by one, in layers or in tokens, it would show.
        assert cosines(theirs[:, 1:], one.tokens[:, :-1]).mean(axis=0).max() < 0.99
        assert cosines(theirs[1:], one.tokens[:-1]).mean(axis=0).max() < 0.99
        [said] = scored(here, [(reading.prompt, reading.answer)])
        differences.extend(np.abs(said - found[f"said{i}"]))
    # bfloat16 by other kernels, over some forty tokens; a shifted token is 1 and more off.
    assert np.mean(differences) < 0.1, differences


def test_canaries_from_the_prefix_cache_and_read_in_parts_are_those_of_transformers(
    tmp_path: Path, here: LocalLLM
) -> None:
    module(PYTHON, "research.states.vllm_capture", "canaries", str(tmp_path))
    engine = json.loads((tmp_path / "metrics-float32.json").read_text())
    assert engine["tokens_from_cache"] > engine["prompt_tokens"] / 4
    assert engine["requests_in_parts"] > engine["requests"] / 4
    wide = LocalLLM(deepcopy(here.model).float(), here.tokenizer, name=here.name, revision=here.revision)
    golden = StateReplay(wide, layers="all").canaries()
    assert golden is not None
    for name in ("canaries-float32", "canaries-float32-again"):
        seen = CanaryStates.from_json((tmp_path / f"{name}.json").read_bytes())
        assert seen.source.startswith("vllm")
        for layer in golden.layers:
            checked = compare_canaries(golden, seen, (layer,))
            assert checked.passed, (name, layer, checked.reason)


def test_a_blend_scores_states_that_the_engine_extracted_as_it_scores_those_of_transformers(tmp_path: Path) -> None:
    runs = sorted(RunStore(ROOT / "recorded" / "smollm2-135m-places").runs(), key=lambda run: run.id)[:60]
    scores = []
    for via, python in (("transformers", sys.executable), ("vllm", PYTHON)):
        RunStore(tmp_path / via).append(runs)
        extract = ["extract", str(tmp_path / via), "--llm", MODEL, "--stage", "answer", "--layers", "20"]
        module(python, "metaprobe.cli", *extract, "--via", via)
        if via == "transformers":
            train_blend(tmp_path / via, stage="answer", folds=2, out=tmp_path / "blend")
        lines = store_lines(BlendPredictor.load(tmp_path / "blend"), tmp_path / via, stage="answer")
        scores.append([line["score"] for line in lines if "without hidden states" not in line["reason"]])
    assert len(scores[0]) == len(scores[1]) == 60
    assert np.corrcoef(*scores)[0, 1] > 0.999
