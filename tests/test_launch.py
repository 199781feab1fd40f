"""A collection by names: against servers that fail, through a kill, with models and layers that fit what is read."""

import asyncio
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from faulty_server import FaultyServer, mixed
from launched_items import COT, asked, items
from test_hidden_probe import hidden_checkpoint

from metaprobe.cli import main
from metaprobe.llms.base import Capabilities
from metaprobe.llms.model_name import ModelName
from metaprobe.llms.openai_client import OpenAILLM
from metaprobe.papers.collecting.collect import CollectReport, collect_runs
from metaprobe.papers.collecting.launch import launch, policy_of
from metaprobe.papers.collecting.models import load_models, parse_models
from metaprobe.papers.collecting.plan import CollectionPlan
from metaprobe.papers.systems import SYSTEMS, Models, Prompts, Setup
from metaprobe.probes.signal_source import SignalSource
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore


@pytest.mark.slow
def test_a_thousand_items_against_a_faulty_server_are_all_done_or_failed_with_a_reason(tmp_path: Path) -> None:
    reasons: list[str] = []

    async def go() -> CollectReport:
        async def no_wait(seconds: float) -> None:
            await asyncio.sleep(0)

        async with FaultyServer(mixed) as server:
            llm = OpenAILLM("m", base_url=server.base_url, concurrency=32, sleep=no_wait)
            setup = Setup(Models(llm), Prompts.load("baselines", COT.prompts))
            async with llm:
                report = await collect_runs(
                    COT, items(1000), setup, RunStore(tmp_path), on_run=lambda run, why: reasons.append(why)
                )
            assert server.peak <= 32
            return report

    os.environ.setdefault("OPENAI_API_KEY", "sk-test")
    report = asyncio.run(go())
    stored = RunStore(tmp_path).run_ids()
    failed = {line.partition(": ")[0] for line in report.failed}
    assert len(stored) == report.done > 600
    assert len(failed) == len(report.failed) > 100
    assert len(stored | failed) == 1000
    assert len(reasons) == 1000
    assert all(line.partition(": ")[2].strip() for line in report.failed)


@pytest.mark.slow
def test_a_killed_collection_repeats_only_the_calls_that_were_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tmp_path / "sums.jsonl"
    task.write_text(
        "".join(json.dumps({"id": i.id, "question": i.question, "gold": i.gold[0]}) + "\n" for i in items(60))
    )
    at_once = 4
    alive: list[str] = []

    def silent_after_25(content: str, attempt: int) -> str:
        """Whoever collects hangs there until it is killed, however slow this machine is."""
        alive.extend([content] if "What is" in content else [])
        return "ok" if killed.is_set() or len(alive) <= 25 else "silent"

    killed = threading.Event()
    with FaultyServer(silent_after_25) as server:
        command = [sys.executable, "-m", "metaprobe.cli", "collect", "zero-shot-cot", "--task", str(task), "--out"]
        command += [str(tmp_path / "runs"), "--llm", f"openai:m@{server.base_url}", "--concurrency", str(at_once)]
        environment = {**os.environ, "OPENAI_API_KEY": "sk-test"}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while len(asked(server)) < 25 + at_once and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        killed.set()
        assert len(asked(server)) == 25 + at_once
        assert len(RunStore(tmp_path / "runs")) == 0  # no shard was full: only the cache can know
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        ended = CliRunner().invoke(main, command[3:])
        again = len(asked(server)) - len(set(asked(server)))
    assert again <= at_once
    assert re.search(r"60/60 .*0 failed, \d+ calls and \d+ from the cache, [\d,]+ tokens, \d+ tokens/s", ended.stderr)
    assert "collected 60 runs; 0 were stored before" in ended.stderr
    assert len(RunStore(tmp_path / "runs")) == 60
    assert not list((tmp_path / "runs").glob("calls.sqlite*"))  # all is stored: the cache has done its work


@pytest.mark.parametrize(
    "policy",
    ["papers", "paper:thetta=1", "paper:theta=high", "paper:cycles=2.5", "paper:theta=nan", "paper:base_tokens=-9"],
)
def test_a_policy_that_does_not_exist_is_named(policy: str) -> None:
    with pytest.raises(RecordError, match=policy.partition(":")[2].partition("=")[0] or "papers"):
        policy_of(CollectionPlan(system="s", task="t", policy=policy))


def test_options_of_an_endpoint_are_read_as_json_or_text() -> None:
    given = ["logprobs_mode=raw", 'extra_body={"repeat_penalty": 1.0}', "attempts=3"]
    assert ModelName.api_options(given) == {
        "logprobs_mode": "raw",
        "extra_body": {"repeat_penalty": 1.0},
        "attempts": 3,
    }


@pytest.mark.parametrize(
    "option",
    ["api_key=x", "attempts", "attempts=1.5", "attempts=0", "timeout_s=abc", "extra_body=5", "schema_form=xml"],
)
def test_an_option_that_is_none_is_named(option: str) -> None:
    with pytest.raises(RecordError, match=f"api option '{option}'"):
        ModelName.api_options([option])
    with pytest.raises(RecordError, match=r"attempts is 3 already; give one value"):
        ModelName.api_options(["attempts=3", "attempts=4"])


MGV = SYSTEMS["monitor-generate-verify"]


def test_models_are_for_stages_and_agents_that_there_are() -> None:
    named = parse_models(["small", "verify=large"], None, MGV, ())
    assert named == {"": "small", "verify": "large"}
    assert parse_models(["answer=a"], None, MGV, ()) == {"": "a", "answer": "a"}
    assert parse_models(["alpha=a", "b"], None, SYSTEMS["metacogagent"], ("alpha",))["alpha"] == "a"
    with pytest.raises(RecordError, match="no such stage or agent; it has monitor, strategy, answer, verify"):
        parse_models(["verfy=L"], None, MGV, ())
    with pytest.raises(RecordError, match="'judge'"):
        parse_models(["L"], "J", MGV, ())
    with pytest.raises(RecordError, match="two models for monitor"):
        parse_models(["a", "monitor=b", "monitor=c"], None, MGV, ())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"agent": ("x", "y")}, "takes no agents of your own"),
        ({"prices": Path("nowhere.json")}, "no prices in nowhere.json"),
        ({"layers": "all"}, "gives no hidden states"),
        ({"system": "essay-debate"}, "no field essay, trait"),
        ({"llm": ("openai:m@localhost:99",)}, "expected openai:MODEL"),
    ],
)
def test_what_cannot_work_together_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    os.environ.setdefault("OPENAI_API_KEY", "sk-test")
    plan = {"system": "zero-shot-cot", "task": "metacog-eval", "llm": ("openai:m@http://127.0.0.1:1/v1",), **change}
    with pytest.raises(RecordError, match=said):
        launch(CollectionPlan(**plan), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_signal_that_the_model_cannot_give_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    hidden_checkpoint(tmp_path / "probe", position="prompt_last")
    plan = CollectionPlan(
        system="metacogagent",
        task="metacog-eval",
        llm=("openai:m@http://127.0.0.1:1/v1",),
        signal=(f"confidence={tmp_path / 'probe'}",),
    )
    os.environ.setdefault("OPENAI_API_KEY", "sk-test")
    with pytest.raises(RecordError, match="hidden states, and m gives none"):
        launch(plan, tmp_path / "runs")
    for name, said in (("difficulty", "has no such number"), ("confidence@nobody", "no agent 'nobody'")):
        other = dataclasses.replace(plan, signal=(f"{name}={tmp_path / 'probe'}",))
        with pytest.raises(RecordError, match=said):
            launch(other, tmp_path / "runs")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """The models of this machine that were loaded -> the layers that were to be kept."""
    pytest.importorskip("torch")
    found: dict[str, str | None] = {}

    def load(name: str, *, layers: str | None, **options: Any) -> Any:
        found[name] = layers
        return SimpleNamespace(name=name, capabilities=Capabilities(logprobs=name != "silent", hidden=True))

    monkeypatch.setattr("metaprobe.llms.local.LocalLLM.load", load)
    return found


@pytest.mark.parametrize(
    ("capture", "read", "layers"),
    [
        (None, (), None),
        ("every:2", (), "every:2"),
        (None, (2, 4), "2,4"),
        ("all", (4,), "all"),
        ("8,4", (2, 4), "2,4,8"),
    ],
)
def test_layers_that_are_kept_and_layers_that_are_read_are_all_kept(
    tmp_path: Path, loaded: dict[str, str | None], capture: str | None, read: tuple[int, ...], layers: str | None
) -> None:
    signals = SignalSource()
    if read:
        hidden_checkpoint(tmp_path / "probe", layers=read)
        signals = SignalSource.load([f"confidence@a={tmp_path / 'probe'}"])
    named = {"": "m", "a": "n"}
    models = load_models(named, SYSTEMS["metacogagent"], signals, ("a", "b"), layers=capture)
    assert loaded == {"m": capture, "n": layers}
    assert models.of("answer", "a").name == "n"
    assert models.of("answer", "b").name == "m"


def test_a_checkpoint_that_could_never_be_read_is_refused(tmp_path: Path, loaded: dict[str, str | None]) -> None:
    hidden_checkpoint(tmp_path / "probe", layers=(2, 4))
    hidden = SignalSource.load([f"confidence={tmp_path / 'probe'}"])
    with pytest.raises(RecordError, match="layers 'every:2' beside signals that read layers 2,4: give all, or"):
        load_models({"": "m"}, SYSTEMS["metacogagent"], hidden, ("a",), layers="every:2")
    other = SignalSource.load(["confidence=bundled:smollm2-135m-confidence"])
    with pytest.raises(RecordError, match="reads hidden states of smollm2-135m, not of m"):
        load_models({"": "m"}, SYSTEMS["metacogagent"], other, ("a",))
    predictor = SignalSource.load(["confidence=bundled:quality"])
    load_models({"": "m"}, SYSTEMS["metacogagent"], predictor, ("a",))
    with pytest.raises(RecordError, match="reads log-probabilities, and silent gives none"):
        load_models({"": "silent"}, SYSTEMS["metacogagent"], predictor, ("a",))


@pytest.mark.parametrize(("agents"), [("a", "a"), ("",), (" a",), ("a ",), ("a,b",)])
def test_agents_have_different_names_without_blanks(tmp_path: Path, agents: tuple[str, ...]) -> None:
    plan = CollectionPlan(system="metacogagent", task="metacog-eval", llm=("openai:m@http://127.0.0.1:1/v1",))
    with pytest.raises(RecordError, match=r"expected different names, .* give --agent NAME once for each"):
        launch(dataclasses.replace(plan, agent=agents), tmp_path / "runs")
