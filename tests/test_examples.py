"""Each example runs and says what it is there to say; small settings, recorded runs, a small checkpoint."""

import gzip
import inspect
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from local_server import Asked, Reply, serving
from served import TOKENS, Upstream, running, small_checkpoint

from metaprobe import QualityPredictor, RunStore
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.training.evidence import Evidence

EXAMPLES = Path(__file__).parent.parent / "examples"
BUNDLED = inspect.signature(QualityPredictor.load).parameters["path"].default is not inspect.Parameter.empty

NO_TORCH = """
import json, runpy, sys
sys.modules |= dict.fromkeys(("torch", "transformers", "peft"))
refused = {}
for path in sys.argv[1:]:
    sys.path[0] = path.rpartition("/")[0]
    try:
        runpy.run_path(path)
    except Exception as error:
        refused[path] = str(error)
print(json.dumps(refused))
"""
"""Runs each example, and prints those that raised and what they said."""
ANSWER = "".join(token for token, _ in TOKENS)
SCORE = QualityPredictor.load().predict([logprob for _, logprob in TOKENS]).score
"""Score of every answer of the scripted server."""

pytestmark = [
    pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint"),
    pytest.mark.filterwarnings("ignore:metaprobe. response of:UserWarning"),  # the small checkpoint knows no real model
]


@pytest.fixture(scope="module")
def checkpoint(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_checkpoint(tmp_path_factory.mktemp("checkpoints") / "quality", evidence).path)


def output_of(name: str, *arguments: str) -> str:
    command = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def printed_by(name: str, *arguments: str) -> str:
    """Runs an example in its own process, so that what a foreign library leaves open fails no later test."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def asked_there() -> Iterator[tuple[list[str], Upstream]]:
    """Yields the options that have an example ask a scripted server of this machine, and that server."""
    upstream = Upstream()
    with running(upstream) as (base, _):
        yield ["--url", f"{base}/v1", "--model", "m"], upstream


@pytest.fixture
def langfuse(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bytes]]]:
    """Path and body of everything that is posted to a scripted Langfuse, which the environment names."""
    pytest.importorskip("langfuse", reason="langfuse is not installed here")
    posted: list[tuple[str, bytes]] = []

    def reply(request: Asked) -> Reply:
        posted.append((request.path, request.body))
        return Reply()

    with serving(reply) as url:
        monkeypatch.setenv("LANGFUSE_BASE_URL", url)
        monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
        monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk")
        yield posted


def test_there_are_twelve_and_each_but_a_server_is_under_90_lines() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) == 12
    assert lengths.pop("judge_for_routers.py") < 300
    assert max(lengths.values()) < 90, lengths


def test_without_torch_an_example_begins_or_names_the_extra_that_it_states() -> None:
    paths = sorted(EXAMPLES.glob("*.py"))
    done = subprocess.run([sys.executable, "-c", NO_TORCH, *paths], capture_output=True, text=True, check=True)
    refused = json.loads(done.stdout.splitlines()[-1])
    assert refused.keys() == {str(path) for path in paths if "extra `train`" in path.read_text(encoding="utf-8")}
    for said in refused.values():
        assert "torch is needed here and not installed: pip install '.[train]'" in said


def test_scoring_lists_every_response_and_the_doubtful_first(checkpoint: str) -> None:
    lines = output_of("score_responses", "--checkpoint", checkpoint).splitlines()
    assert len(lines) == len((EXAMPLES / "responses.jsonl").read_text().splitlines())
    scores = [float(line[:4]) for line in lines]
    assert scores == sorted(scores)


@pytest.mark.skipif(not BUNDLED, reason="no bundled checkpoint yet: QualityPredictor.load() wants a path")
def test_scoring_runs_on_the_bundled_checkpoint() -> None:
    assert "not scored" not in output_of("score_responses")


def test_a_response_that_cannot_be_scored_is_named_and_the_others_are_scored(checkpoint: str, tmp_path: Path) -> None:
    good, other = (EXAMPLES / "responses.jsonl").read_text().splitlines()[:2]
    bad: dict[str, Any] = json.loads(other)
    del bad["response"]["choices"][0]["logprobs"]
    (tmp_path / "lines.jsonl").write_text(f"{good}\n{json.dumps(bad)}\n")
    lines = output_of("score_responses", str(tmp_path / "lines.jsonl"), "--checkpoint", checkpoint).splitlines()
    assert [line.startswith(f"{bad['id']}: not scored") for line in lines] == [True, False]


@pytest.mark.parametrize(
    "client",
    ["openai", "stream", *(pytest.param(name, marks=pytest.mark.slow) for name in ("langgraph", "litellm"))],  # imports
)
def test_an_answer_of_each_client_is_logged_with_its_verdict(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = client in ("langgraph", "litellm")
    if foreign and find_spec(client) is None:
        pytest.skip(f"{client} is not installed here")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import asks the network for prices
    example = printed_by if foreign else output_of
    log = tmp_path / "scores.sqlite"
    with asked_there() as (url, _):
        told = example("with_your_client", *url, "--client", client, "--log", str(log))
        with ScoreLog.open(str(log)) as opened:
            columns = opened.columns()
    assert columns.score.tolist() == [pytest.approx(SCORE)]
    assert f"verdict: {{'score': {SCORE:.4f}"[:-2] in told, "the program says what it scored"


@pytest.mark.slow
def test_the_verdict_stands_in_langfuse_on_the_trace_of_its_answer(langfuse: list[tuple[str, bytes]]) -> None:
    with asked_there() as (url, _):
        output_of("with_your_traces", *url, "--to", "langfuse")
    [scored] = [one for path, body in langfuse if path == "/api/public/scores" for one in json.loads(body)]
    assert (scored["name"], scored["value"], scored["dataType"]) == ("metaprobe", pytest.approx(SCORE), "NUMERIC")
    [traced] = [gzip.decompress(body) for path, body in langfuse if path.endswith("/otel/v1/traces")]
    assert bytes.fromhex(scored["traceId"]) in traced
    assert ANSWER.encode() in traced


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_the_verdict_stands_in_mlflow_on_the_trace_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason="mlflow is not installed here")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with asked_there() as (url, upstream):
        output_of("with_your_traces", *url, "--to", "mlflow")
    assert upstream.bodies[0]["logprobs"]
    [trace] = mlflow.search_traces(return_type="list")
    [judged] = trace.search_assessments("metaprobe")
    assert (judged.value, judged.source.source_type) == (pytest.approx(SCORE), "CODE")
    assert trace.data.spans[0].outputs == ANSWER


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Inspect's own
def test_a_log_of_inspect_holds_verdicts_and_is_read_again(tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai", reason="inspect-ai is not installed here")
    with asked_there() as (url, _):
        told = output_of("inspect_task", *url, "--out", str(tmp_path))
    assert told.count(f"'verdict': {SCORE:.4f}"[:-2]) == 2, told
    runs = list(RunStore(tmp_path / "runs"))
    assert [(run.calls[0].text, run.outcome) for run in runs] == [(ANSWER, 0)] * 2


@pytest.mark.slow
def test_hidden_states_stop_answers_that_would_be_cut() -> None:
    said = output_of("stop_cut_answers", "--questions", "100", "--learn", "800")
    assert "the gate reads states: True" in said
    counts = re.findall(r"^(\w+) without a gate: (\d+) of (\d+)", said, re.M)
    stopped = {kind: int(count) / int(of) for kind, count, of in counts}
    assert stopped["ended"] < min(0.25, stopped["cut"])
    [(drawn, before)] = re.findall(r"^tokens: (\d+) instead of (\d+)", said, re.M)
    assert int(drawn) < int(before)


@pytest.mark.slow
def test_the_gate_stops_a_larger_share_of_the_wrong_answers_than_of_the_right_ones(checkpoint: str) -> None:
    said = output_of("stream_with_gate", "--checkpoint", checkpoint)
    counts = dict(re.findall(r"^(\w+ answers, \w+): (\d+) \(\d+%\)$", said, re.M))
    stopped = {
        kind: int(counts[f"{kind} answers, stop"])
        / (int(counts[f"{kind} answers, stop"]) + int(counts[f"{kind} answers, continue"]))
        for kind in ("right", "wrong")
    }
    assert 0 < stopped["right"] < stopped["wrong"] < 1


@pytest.mark.slow
def test_training_on_lines_gives_a_checkpoint_with_held_out_figures(tmp_path: Path) -> None:
    said = output_of("train_on_lines", "--out", str(tmp_path), "--folds", "2")
    assert "700 lines imported, 0 known already" in said
    figures = {name: float(value) for name, value in re.findall(r"^(\w+): ([-+]?[\d.]+) \[", said, re.M)}
    assert 0.6 < figures["auroc"] < 0.9


def test_the_shipped_responses_are_lines_of_that_example(tmp_path: Path) -> None:
    """So that what is shipped can be made again."""
    parts = runpy.run_path(str(EXAMPLES / "train_on_lines.py"))
    shipped = {
        record["id"]: record for record in map(json.loads, (EXAMPLES / "responses.jsonl").read_text().splitlines())
    }
    made = {
        run.item.id: parts["line_of"](run, call)
        for run in parts["RunStore"](parts["RUNS"])
        for call in run.calls
        if call.agent == "gamma" and call.stage == "answer" and run.item.id in shipped
    }
    assert made == shipped


@pytest.mark.slow
def test_the_comparison_finds_that_log_probabilities_tell_more_than_what_is_stated(tmp_path: Path) -> None:
    said = output_of("explicit_or_implicit", "--out", str(tmp_path), "--folds", "2")
    assert re.search(r"^mean log-probability beats it by \+", said, re.M)
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_models_are_chosen_within_the_budget_and_beside_each_alone(tmp_path: Path) -> None:
    said = output_of("choose_among_models", "--out", str(tmp_path), "--questions", "200")
    lines = re.findall(r"^(.+): ([\d.]+)% right, ([\d.]+) USD per 1,000", said, re.M)
    figures = {name: (float(right), float(spent)) for name, right, spent in lines}
    assert figures["alpha alone"][0] < figures["panel"][0]
    assert 0.05 < figures["panel"][1] < 0.07, "it spends its budget of 0.06"


@pytest.mark.slow
def test_an_embedded_model_is_asked_until_another_answer_is_not_worth_it(tmp_path: Path) -> None:
    told = output_of("several_answers", "--out", str(tmp_path), "--questions", "60")
    gain = float(re.search(r"^accuracy_6_over_majority: ([-+][\d.]+)$", told, re.M)[1])  # type: ignore[index]
    assert gain > -0.1
    asked = [int(count) for count in re.findall(r", after (\d+) answers$", told, re.M)]
    assert len(asked) == 4
    assert all(1 <= count <= 12 for count in asked)
