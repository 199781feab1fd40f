"""Work that is spread over machines gives what one process gives, also where one of them dies in the middle."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from random_model import word_tokenizer
from read_again import answered, files, network, stored

from metaprobe.cli import main
from metaprobe.collecting.extract import extract
from metaprobe.collecting.extract_ray import ChunkReader, ClusterPlan, extract_on_ray, plan_chunks
from metaprobe.llms.local import LocalLLM
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.store import RunStore


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model on the disk, and a store of what it said."""
    folder = tmp_path_factory.mktemp("saved")
    network().save_pretrained(folder / "model")
    word_tokenizer().save_pretrained(folder / "model")
    stored(folder / "runs", answered(LocalLLM.load(str(folder / "model"))))
    return folder


def copy_of(saved: Path, folder: Path) -> RunStore:
    store = RunStore(folder)
    with store.writer(shard_runs=3) as writer:
        for run in RunStore(saved / "runs"):
            writer.add(run)
    return store


@pytest.fixture
def alone(saved: Path, tmp_path: Path) -> dict[str, object]:
    """The files that one process writes."""
    store = copy_of(saved, tmp_path / "alone")
    extract(store, LocalLLM.load(str(saved / "model")), every_token=True, shard_calls=2)
    return files(store)


def test_chunks_that_are_planned_before_hold_what_one_process_writes(
    saved: Path, tmp_path: Path, alone: dict[str, object]
) -> None:
    store = copy_of(saved, tmp_path / "chunks")
    plan = ClusterPlan(runs=store.path, model=str(saved / "model"), every_token=True)
    chunks, before, failed = plan_chunks(plan, None, None, 2)
    assert ([len(chunk.calls) for chunk in chunks], before, failed) == ([2, 2, 2, 1], 0, 0)
    assert [len(chunk.shards) for chunk in chunks] == [1, 2, 1, 1]  # three runs a file
    first = ChunkReader(plan)
    report = first.read(chunks[0])
    # A worker that starts later, when files are there already, does the same chunks: they were planned before.
    later = ChunkReader(plan)
    for chunk in reversed(chunks[1:]):
        report += later.read(chunk)
    assert report.calls == 7
    assert files(store) == alone
    assert plan_chunks(plan, None, None, 2) == ([], 7, 0)


def test_another_models_calls_and_calls_that_are_not_there_are_refused(saved: Path, tmp_path: Path) -> None:
    store = RunStore(tmp_path / "other")
    store.append(
        replace(run, calls=tuple(replace(call, model="else") for call in run.calls)) for run in RunStore(saved / "runs")
    )
    plan = ClusterPlan(runs=store.path, model=str(saved / "model"))
    [chunk] = plan_chunks(plan, None, None, 64)[0]
    with pytest.raises(StoreMismatch, match="is of else; loaded is model"):
        ChunkReader(plan).read(chunk)
    with pytest.raises(RecordError, match="no call of stage judge by agent any"):
        plan_chunks(plan, "judge", None, 64)


def test_numbers_below_one_are_refused_before_anything_starts(saved: Path) -> None:
    pytest.importorskip("ray")
    plan = ClusterPlan(runs=saved / "runs", model=str(saved / "model"))
    with pytest.raises(RecordError, match="0 workers, 64 calls a file, batch size 32: expected at least 1 of each"):
        extract_on_ray(plan, workers=0)


def test_the_command_refuses_two_engines_at_once(saved: Path) -> None:
    arguments = ["extract", str(saved / "runs"), "--llm", str(saved / "model"), "--via", "vllm", "--ray", "2"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "--ray reads with transformers" in result.output


WITHIN_S = 900
PATIENT = {"RAY_raylet_start_wait_time_s": "600", "OMP_NUM_THREADS": "1"}
"""On a busy machine Ray's own processes take longer than the 60 s that it gives them."""

KILLED_ONCE = """
import os, signal, sys
from pathlib import Path
from metaprobe.collecting.extract_ray import ChunkReader, ClusterPlan, extract_on_ray

def killed_once(mark):
    class KilledOnce(ChunkReader):
        def read(self, chunk):
            report = super().read(chunk)
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)  # its chunk is on the disk, and nobody has heard of it
            return report
    return KilledOnce

import ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
runs, model, mark = map(Path, sys.argv[1:])
plan = ClusterPlan(runs=runs, model=str(model), every_token=True)
report = extract_on_ray(plan, workers=2, shard_calls=2, reader=killed_once(mark))
print(report.calls, mark.exists())
"""


@pytest.mark.slow
def test_two_workers_of_ray_of_which_one_is_killed_write_what_one_process_writes(
    saved: Path, tmp_path: Path, alone: dict[str, object]
) -> None:
    pytest.importorskip("ray")
    store = copy_of(saved, tmp_path / "ray")
    given = [store.path, saved / "model", tmp_path / "killed"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_ONCE, *map(str, given)],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        env=os.environ | PATIENT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].split() == ["7", "True"], "the lines before are what Ray says of the killed one"
    assert files(store) == alone


@pytest.mark.slow
def test_the_command_reads_over_a_cluster(saved: Path, tmp_path: Path, alone: dict[str, object]) -> None:
    pytest.importorskip("ray")
    store = copy_of(saved, tmp_path / "ray")
    command = ["-m", "metaprobe.cli", "extract", store.path, "--llm", saved / "model", "--every-token", "--ray", "2"]
    done = subprocess.run(
        [sys.executable, *map(str, command), "--shard-calls", "2"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        env=os.environ | PATIENT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert (report["calls"], report["processes"]) == (7, 2)
    assert files(store) == alone
