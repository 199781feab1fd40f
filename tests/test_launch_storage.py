"""A collection ends well where its cache is shared, damaged or larger than the disk."""

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
from click.testing import CliRunner
from faulty_server import FaultyServer
from launched_items import COT, asked, items
from scripted import ScriptedLLM

from metaprobe.cli import main
from metaprobe.papers.collecting.collect import collect_runs
from metaprobe.papers.collecting.launch import launch
from metaprobe.papers.collecting.plan import CollectionPlan
from metaprobe.papers.systems import Models, Prompts, Setup
from metaprobe.records.errors import Unwritable
from metaprobe.records.store import RunStore


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
        assert len(server.bodies) == before  # both answers are in the shared cache
    assert not files(tmp_path / "own")
    assert files(tmp_path)
    with FaultyServer(lambda content, attempt: "400") as server:
        launch(dataclasses.replace(plan, llm=(f"openai:m@{server.base_url}",)), tmp_path / "failed")
    assert files(tmp_path / "failed")


@pytest.mark.slow
def test_a_full_disk_stops_the_asking_says_what_is_kept_and_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, at_once = tmp_path / "sums.jsonl", 4
    task.write_text(
        "".join(json.dumps({"id": i.id, "question": i.question, "gold": i.gold[0]}) + "\n" for i in items(80))
    )
    with FaultyServer(lambda content, attempt: "ok") as server:
        command = [sys.executable, "-m", "metaprobe.cli", "collect", "zero-shot-cot", "--task", str(task), "--out"]
        command += [str(tmp_path / "runs"), "--llm", f"openai:m@{server.base_url}", "--concurrency", str(at_once)]
        command += ["--batch-size", "1", "--shard-runs", "8"]
        environment = {**os.environ, "OPENAI_API_KEY": "sk-test"}
        most = 100_000  # bytes of a file: the cache outgrows it after some calls
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
        assert calls <= before <= calls + 2 * at_once < 70
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        assert CliRunner().invoke(main, command[3:]).exit_code == 0
        again = len(asked(server)) - len(set(asked(server)))
    assert len(RunStore(tmp_path / "runs")) == 80
    assert again <= 2 * at_once


def test_a_full_disk_under_the_runs_stops_the_asking_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    llm = ScriptedLLM({"*": "4"})
    setup = Setup(Models(llm), Prompts.load("baselines", COT.prompts))
    with monkeypatch.context() as patched:
        patched.setattr("pyarrow.parquet.write_table", full)
        with pytest.raises(Unwritable, match=r"No space left on device\. Nothing more is asked\. 0 runs are stored"):
            asyncio.run(collect_runs(COT, items(100), setup, RunStore(tmp_path), shard_runs=16, concurrency=8))
    assert 16 <= len(llm.asked) <= 16 + 8
