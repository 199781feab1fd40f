"""A collection by names: against servers that fail, through a kill, with agents that learn from one another's past."""

import asyncio
import dataclasses
import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from faulty_server import FaultyServer, mixed
from scripted import ScriptedLLM

from metaprobe.collecting.collect import CollectReport, collect
from metaprobe.collecting.launch import CollectionPlan, CollectionWatch, launch, policy_of
from metaprobe.collecting.models import api_options, named_models
from metaprobe.llms.openai_client import OpenAILLM
from metaprobe.pipelines import SYSTEMS, Models, Prompts, Session, Setup, System
from metaprobe.records.errors import RecordError, Unwritable
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Run
from metaprobe.routing.explore import EpsilonGreedy, Exhaustive
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.profiles import Experience
from metaprobe.terminal import live_collection
from metaprobe.training.crossfit.study import study
from metaprobe.training.hidden.train import write_hidden

COT = SYSTEMS["zero-shot-cot"]


def items(n: int) -> list[Item]:
    return [
        Item(id=f"i{k}", question=f"What is {k} + {k}?", gold=(str(2 * k),), group=f"g{k}", check="number")
        for k in range(n)
    ]


def test_a_thousand_items_against_a_faulty_server_are_all_done_or_failed_with_a_reason(tmp_path: Path) -> None:
    reasons: list[str] = []

    async def go() -> CollectReport:
        async def no_wait(seconds: float) -> None:
            await asyncio.sleep(0)

        async with FaultyServer(mixed) as server:
            llm = OpenAILLM("m", base_url=server.base_url, concurrency=32, sleep=no_wait)
            setup = Setup(Models(llm), Prompts.load("baselines", COT.prompts))
            async with llm:
                report = await collect(
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


def test_a_killed_collection_repeats_only_the_calls_that_were_in_flight(tmp_path: Path) -> None:
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
        deadline = time.monotonic() + 60
        while len(asked(server)) < 25 + at_once and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        killed.set()
        assert len(asked(server)) == 25 + at_once
        assert len(RunStore(tmp_path / "runs")) == 0  # no shard was full: only the cache can know
        ended = subprocess.run(command, env=environment, check=True, stderr=subprocess.PIPE, text=True)
        again = len(asked(server)) - len(set(asked(server)))
    assert again <= at_once
    assert re.search(r"about \d+ min at most: 60 runs x up to \d+ tokens at \d+ tokens/s", ended.stderr)
    assert re.search(r"60/60 .*0 failed, \d+ calls and \d+ from the cache, [\d,]+ tokens, \d+ tokens/s", ended.stderr)
    assert "collected 60 runs; 0 were stored before" in ended.stderr
    assert len(RunStore(tmp_path / "runs")) == 60
    assert not list((tmp_path / "runs").glob("calls.sqlite*"))  # all is stored: the cache has done its work


def asked(server: FaultyServer) -> list[str]:
    """The questions, without the warm-up."""
    said = [body["messages"][-1]["content"] for body in list(server.bodies)]
    return [content for content in said if "What is" in content]


def test_agents_learn_in_the_items_order_whatever_ends_first_and_across_a_resume(tmp_path: Path) -> None:
    seen: dict[str, float] = {}

    async def run(session: Session) -> Run:
        seen[session.item.id] = session.setup.profiles.rate_of("a", "")
        for _ in range(session.index % 3):
            await asyncio.sleep(0)
        call = await session.ask("p", stage="answer", agent="a")
        return session.run(call.text)

    def experiences(run: Run) -> list[Experience]:
        return [Experience("a", "", run.outcome or 0.0)]

    learner = System(
        name="learner", run=run, prompts=("p",), variants=("v",), stages=("answer",), experiences=experiences
    )
    llm = ScriptedLLM({"answer": lambda request: "4"})  # right for item i2 only
    setup = Setup(Models(llm), Prompts({"p": "--- user\n$question"}))

    def go(n: int, folder: Path, at_once: int) -> None:
        asyncio.run(collect(learner, items(n), setup, RunStore(folder), wave=at_once))

    go(6, tmp_path / "whole", 2)
    whole = dict(seen)
    assert whole == pytest.approx({"i0": 0.5, "i1": 0.5, "i2": 0.405, "i3": 0.405, "i4": 0.41805, "i5": 0.41805})
    go(4, tmp_path / "resumed", 2)
    seen.clear()
    go(6, tmp_path / "resumed", 2)
    assert seen == {name: whole[name] for name in ("i4", "i5")}
    go(6, tmp_path / "one by one", 1)
    assert seen["i1"] == pytest.approx(0.45)


def test_policies_are_named_with_their_constants() -> None:
    assert policy_of(CollectionPlan(system="s", task="t")) == (PaperRules(), PaperRules())
    assert policy_of(CollectionPlan(system="s", task="t", policy="paper:theta=0.4,cycles=2"))[1] == PaperRules(
        theta=0.4, cycles=2
    )
    assert policy_of(CollectionPlan(system="s", task="t", policy="exhaustive"))[0] == Exhaustive()
    assert isinstance(policy_of(CollectionPlan(system="s", task="t", epsilon=0.1))[0], EpsilonGreedy)


@pytest.mark.parametrize(
    "policy",
    ["papers", "paper:thetta=1", "paper:theta=high", "paper:cycles=2.5", "paper:theta=nan", "paper:base_tokens=-9"],
)
def test_a_policy_that_does_not_exist_is_named(policy: str) -> None:
    with pytest.raises(RecordError, match=policy.partition(":")[2].partition("=")[0] or "papers"):
        policy_of(CollectionPlan(system="s", task="t", policy=policy))


def test_options_of_an_endpoint_are_read_as_json_or_text() -> None:
    given = ["logprobs_mode=raw", 'extra_body={"repeat_penalty": 1.0}', "attempts=3"]
    assert api_options(given) == {"logprobs_mode": "raw", "extra_body": {"repeat_penalty": 1.0}, "attempts": 3}


@pytest.mark.parametrize(
    "option", ["api_key=x", "attempts", "timeout_s=abc", "attempts=1.5", "extra_body=5", "logprobs_mode=zzz"]
)
def test_an_option_that_is_none_is_named(option: str) -> None:
    with pytest.raises(RecordError, match=f"api option '{option}'"):
        api_options([option])


MGV = SYSTEMS["monitor-generate-verify"]


def test_models_are_for_stages_and_agents_that_there_are() -> None:
    named = named_models(["small", "verify=large"], None, MGV, ())
    assert named == {"": "small", "verify": "large"}
    assert named_models(["answer=a"], None, MGV, ()) == {"": "a", "answer": "a"}
    assert named_models(["alpha=a", "b"], None, SYSTEMS["metacogagent"], ("alpha",))["alpha"] == "a"
    with pytest.raises(RecordError, match="no such stage or agent; it has monitor, strategy, answer, verify"):
        named_models(["verfy=L"], None, MGV, ())
    with pytest.raises(RecordError, match="'judge'"):
        named_models(["L"], "J", MGV, ())
    with pytest.raises(RecordError, match="two models for monitor"):
        named_models(["a", "monitor=b", "monitor=c"], None, MGV, ())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"agent": ("x", "y")}, "takes no agents of your own"),
        ({"system": "metacogagent", "agent": ("x,y",)}, "without commas .* give --agent NAME once for each"),
        ({"system": "metacogagent", "agent": ("x", "x")}, "expected different names"),
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


def test_a_server_that_refuses_even_the_warm_up_gives_reasons_run_by_run(tmp_path: Path) -> None:
    os.environ.setdefault("OPENAI_API_KEY", "sk-test")
    with FaultyServer(lambda content, attempt: "400") as server:
        plan = CollectionPlan(
            system="zero-shot-cot", task="metacog-eval", llm=(f"openai:m@{server.base_url}",), limit=3
        )
        report = launch(plan, tmp_path / "runs")
    assert (report.done, len(report.failed)) == (0, 3)
    assert len((tmp_path / "runs" / "failed.jsonl").read_text().splitlines()) == 3


@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
def test_a_signal_that_the_model_cannot_give_is_refused_before_anything_is_asked(
    recorded_runs: Path, tmp_path: Path
) -> None:
    write_hidden(tmp_path / "probe", study([recorded_runs], folds=2), when="before", target="correct", command="test")
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


def test_a_full_disk_stops_the_asking_says_what_is_kept_and_is_gone_on_from(tmp_path: Path) -> None:
    """578 calls were asked and 16 kept: every answer that could not be written was one run's failure, and no more."""
    task, at_once = tmp_path / "sums.jsonl", 4
    task.write_text(
        "".join(json.dumps({"id": i.id, "question": i.question, "gold": i.gold[0]}) + "\n" for i in items(300))
    )
    with FaultyServer(lambda content, attempt: "ok") as server:
        command = [sys.executable, "-m", "metaprobe.cli", "collect", "zero-shot-cot", "--task", str(task), "--out"]
        command += [str(tmp_path / "runs"), "--llm", f"openai:m@{server.base_url}", "--concurrency", str(at_once)]
        command += ["--batch-size", "1", "--shard-runs", "8"]
        environment = {**os.environ, "OPENAI_API_KEY": "sk-test"}
        most = 200_000  # bytes of a file: the cache outgrows it after some calls
        full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # noqa: E731
        stopped = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=full)
        before = len(set(asked(server)))
        assert stopped.returncode == 1
        [said] = [line for line in stopped.stderr.splitlines() if line.startswith("Error: ")]
        found = re.search(
            r"calls\.sqlite: .* Nothing more is asked\. (\d+) runs are stored in .*runs: make room, and run the same "
            r"again, which goes on from there; (\d+) calls are kept in .*calls\.sqlite and are not asked again",
            said,
        )
        assert found is not None, said
        runs, calls = map(int, found.groups())
        assert len(RunStore(tmp_path / "runs")) == runs
        assert calls <= before <= calls + 2 * at_once < 200
        subprocess.run(command, env=environment, check=True, stderr=subprocess.PIPE)
        again = len(asked(server)) - len(set(asked(server)))
    assert len(RunStore(tmp_path / "runs")) == 300
    assert again <= 2 * at_once


def test_a_full_disk_under_the_runs_stops_the_asking_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    llm = ScriptedLLM({"*": "4"})
    setup = Setup(Models(llm), Prompts.load("baselines", COT.prompts))
    with monkeypatch.context() as patched:
        patched.setattr("pyarrow.parquet.write_table", full)
        with pytest.raises(Unwritable, match=r"No space left on device\. Nothing more is asked\. 0 runs are stored"):
            asyncio.run(collect(COT, items(400), setup, RunStore(tmp_path), shard_runs=16, concurrency=8))
    assert 16 <= len(llm.asked) <= 16 + 8


def test_the_calls_of_the_warm_up_are_counted_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.environ.setdefault("OPENAI_API_KEY", "sk-test")
    told: list[Call] = []
    with FaultyServer(lambda content, attempt: "ok") as server, live_collection() as live:
        plan = CollectionPlan(
            system="zero-shot-cot", task="metacog-eval", llm=(f"openai:m@{server.base_url}",), limit=3
        )

        def on_call(call: Call, kept: bool) -> None:
            told.append(call)
            live.on_call(call, kept)

        launch(plan, tmp_path / "runs", CollectionWatch(live.on_estimate, live.on_total, on_call, live.on_run))
        paid = sum(server.attempts.values())
    assert [call.id.partition("/")[0] for call in told].count("warm-up") == 4
    assert len(told) == paid == 4 + 3
    said = capsys.readouterr().err
    assert "measured just now with 4 calls, which are counted below" in said
    assert re.search(r"3/3 .* 7 calls, ", said)
