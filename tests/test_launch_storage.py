"""What a collection leaves where its cache is shared, damaged or larger than the disk."""

import asyncio
import dataclasses
import errno
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faulty_server import FaultyServer
from launched_items import COT, asked, items
from scripted import ScriptedLLM

from metaprobe.collecting.collect import collect
from metaprobe.collecting.launch import CollectionWatch, TimeEstimate, checkpoint_and_constants, launch
from metaprobe.collecting.plan import CollectionPlan
from metaprobe.llms.cache import CallCache
from metaprobe.pipelines import Models, Prompts, Setup
from metaprobe.progress import live_collection
from metaprobe.records.errors import RecordError, Unwritable
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call


def test_the_cache_goes_when_all_is_stored_and_stays_where_it_is_shared_or_something_failed(tmp_path: Path) -> None:
    os.environ.setdefault("OPENAI_API_KEY", "sk-test")

    def files(folder: Path) -> bool:
        return any(path.name.startswith("calls.sqlite") for path in folder.iterdir())

    with FaultyServer(lambda content, attempt: "ok") as server:
        plan = CollectionPlan(
            system="zero-shot-cot", task="metacog-eval", llm=(f"openai:m@{server.base_url}",), limit=2
        )
        launch(plan, tmp_path / "own")
        launch(dataclasses.replace(plan, cache=tmp_path / "calls.sqlite"), tmp_path / "shared")
        before = len(server.bodies)
        launch(dataclasses.replace(plan, cache=tmp_path / "calls.sqlite"), tmp_path / "again")
        # Only the warm-up asks: both answers are in the shared cache.
        assert all("Count slowly" in body["messages"][-1]["content"] for body in list(server.bodies)[before:])
    assert not files(tmp_path / "own")
    assert files(tmp_path)
    with FaultyServer(lambda content, attempt: "400") as server:
        launch(dataclasses.replace(plan, llm=(f"openai:m@{server.base_url}",)), tmp_path / "failed")
    assert files(tmp_path / "failed")


def test_only_the_variants_that_were_asked_for_are_collected(tmp_path: Path) -> None:
    os.environ.setdefault("OPENAI_API_KEY", "sk-test")
    with FaultyServer(lambda content, attempt: "ok") as server:
        plan = CollectionPlan(system="self-report", task="metacog-eval", llm=(f"openai:m@{server.base_url}",), limit=2)
        for variant in ("step-by-step", "direct"):
            launch(dataclasses.replace(plan, variant=(variant,)), tmp_path / variant)
            assert [run.variant for run in RunStore(tmp_path / variant)] == 2 * [variant]


def test_a_file_that_is_no_cache_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    os.environ.setdefault("OPENAI_API_KEY", "sk-test")
    (tmp_path / "mine.txt").write_text("not a cache, and longer than a header of SQLite would be", encoding="utf-8")
    plan = CollectionPlan(
        system="zero-shot-cot", task="metacog-eval", llm=("openai:m@http://127.0.0.1:1/v1",),
        cache=tmp_path / "mine.txt", limit=1,
    )  # fmt: skip
    with pytest.raises(RecordError, match=r"mine\.txt"):
        launch(plan, tmp_path / "runs")


@pytest.mark.parametrize(
    ("text", "path", "constants"),
    [
        ("folder", "folder", ""),
        ("folder,budget=0.5", "folder", "budget=0.5"),
        ("folder,budget=0.5, theta=0.4", "folder", "budget=0.5, theta=0.4"),
        ("a,b/folder,theta=1", "a,b/folder", "theta=1"),
        ("here/x=1,y=2/f,theta=1", "here/x=1,y=2/f", "theta=1"),
    ],
)
def test_a_learned_policy_is_a_path_and_constants(text: str, path: str, constants: str) -> None:
    assert checkpoint_and_constants(text) == (Path(path), constants)


def test_a_folder_may_have_the_form_of_a_constant(tmp_path: Path) -> None:
    folder = tmp_path / "p,theta=3"
    folder.mkdir()
    assert checkpoint_and_constants(f"{folder},theta=4") == (folder, "theta=4")
    assert checkpoint_and_constants(f"{folder}") == (folder, "")
    with pytest.raises(RecordError, match="expected a checkpoint folder"):
        checkpoint_and_constants("")
    with pytest.raises(RecordError, match="expected a checkpoint folder"):
        checkpoint_and_constants(",budget=1")


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


def test_a_full_disk_under_the_cache_says_how_many_calls_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.collecting.launch.load_models", lambda *_, **__: Models(ScriptedLLM({"*": "4"})))
    kept: list[str] = []
    put = CallCache.put

    def full(self: CallCache, key: str, call: Call) -> None:
        if len(kept) == 2:
            raise Unwritable("no room")
        kept.append(key)
        put(self, key, call)

    monkeypatch.setattr(CallCache, "put", full)
    plan = CollectionPlan(system="zero-shot-cot", task="metacog-eval", llm=("m",), limit=6, concurrency=1)
    with pytest.raises(Unwritable, match=r"2 calls are kept in .*calls\.sqlite and are not asked again"):
        launch(plan, tmp_path / "runs")


def test_the_time_that_is_left_is_told_of_the_runs_that_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = ScriptedLLM({"*": "4"})
    monkeypatch.setattr("metaprobe.collecting.launch.load_models", lambda *_, **__: Models(llm))
    plan = CollectionPlan(system="zero-shot-cot", task="metacog-eval", llm=("m",), limit=4, concurrency=2)
    estimates: list[TimeEstimate] = []
    totals: list[int] = []
    watch = CollectionWatch(on_estimate=estimates.append, on_total=totals.append)
    launch(plan, tmp_path / "runs", watch)
    (found,) = estimates
    assert (found.runs, found.tokens_per_run, found.unlimited) == (4, 256, ())
    assert found.warm_up == 1 + 2  # one before them, and as many as run at once
    assert found.seconds == 4 * 256 / found.tokens_per_second
    asked = len(llm.asked)
    launch(plan, tmp_path / "runs", watch)
    assert (totals, len(estimates), len(llm.asked)) == ([4, 0], 1, asked)  # nothing left, nothing asked
    launch(dataclasses.replace(plan, limit=6), tmp_path / "runs", watch)
    assert (totals[-1], estimates[-1].runs) == (2, 2)


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
