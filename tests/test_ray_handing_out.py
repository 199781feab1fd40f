"""How calls are handed out to Ray's workers, with a Ray of our own in this process: who is free gets the next chunk."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from metaprobe.collecting import extract_ray
from metaprobe.collecting.extract import ExtractionWatch, ExtractReport
from metaprobe.collecting.extract_ray import RETRIES, CallChunk, ClusterPlan, extract_on_ray, launch_on_ray
from metaprobe.records.errors import RecordError

PLAN = ClusterPlan(runs=Path("runs"), model="m")


class TaskError(Exception):
    """As Ray's: carries what a worker has raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class OneProcessRay:
    """What is used of Ray, in this process. Work is done in the order of `patience`, the most patient worker last."""

    def __init__(self, gpus: int = 0, running: bool = False) -> None:
        self.exceptions = SimpleNamespace(RayTaskError=TaskError)
        self.begun: list[dict[str, Any]] = [{}] * running
        self.asked: dict[str, Any] = {}
        self.made: list[Any] = []
        self.killed: list[Any] = []
        self.gpus = gpus

    def is_initialized(self) -> bool:
        return bool(self.begun)

    def init(self, **named: Any) -> None:
        self.begun.append(named)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, **({"GPU": float(self.gpus)} if self.gpus else {})}

    def remote(self, **named: Any) -> Callable[[type], Any]:
        self.asked = named

        def wrap(kind: type) -> Any:
            def make(*given: Any) -> Any:
                inside = kind(*given)
                number = len(self.made)
                read = SimpleNamespace(remote=lambda chunk: (number, len(chunk.calls), lambda: inside.read(chunk)))
                self.made.append(SimpleNamespace(read=read))
                return self.made[-1]

            return SimpleNamespace(remote=make)

        return wrap

    def wait(self, work: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        assert num_returns == 1
        done = work[-1]  # whoever was given work last is done first
        return [done], work[:-1]

    def get(self, done: Any) -> Any:
        try:
            return done[2]()
        except Exception as error:
            raise TaskError(error) from error

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


class Counting:
    """A worker that counts the calls of its chunks."""

    read_by: ClassVar[list[tuple[int, tuple[str, ...]]]] = []
    made = 0

    def __init__(self, plan: ClusterPlan) -> None:
        assert plan == PLAN
        Counting.made += 1
        self.number = Counting.made

    def read(self, chunk: CallChunk) -> ExtractReport:
        Counting.read_by.append((self.number, chunk.calls))
        return ExtractReport(len(chunk.calls), 10 * len(chunk.calls), 0, 0, 0, 0, None)


class Failing(Counting):
    """A worker that cannot read the second chunk."""

    def read(self, chunk: CallChunk) -> ExtractReport:
        if "c2" in chunk.calls:
            raise RecordError("the model is another one")
        return super().read(chunk)


class Broken(Counting):
    """A worker with a fault of ours."""

    def read(self, chunk: CallChunk) -> ExtractReport:
        raise ZeroDivisionError


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[CallChunk]:
    """Five chunks of two calls, nothing stored, one call that failed before."""
    found = [CallChunk(("shard",), (f"c{2 * i}", f"c{2 * i + 1}")) for i in range(5)]
    monkeypatch.setattr(extract_ray, "plan_chunks", lambda *_: (found, 3, 1))
    Counting.read_by, Counting.made = [], 0
    return found


def with_ray(monkeypatch: pytest.MonkeyPatch, **named: Any) -> OneProcessRay:
    ray = OneProcessRay(**named)
    monkeypatch.setattr(extract_ray, "require", lambda module, extra: ray)
    return ray


def test_every_chunk_is_read_once_and_whoever_is_free_reads_the_next(
    chunks: list[CallChunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = with_ray(monkeypatch)
    seen: list[tuple[int, int]] = []
    totals: list[int] = []
    watch = ExtractionWatch(totals.append, lambda calls, tokens: seen.append((calls, tokens)))
    report = extract_on_ray(PLAN, workers=2, cpus=3, gpus=1, reader=Counting, watch=watch)
    assert sorted(calls for _, calls in Counting.read_by) == sorted(chunk.calls for chunk in chunks)
    assert {number for number, _ in Counting.read_by} == {1, 2}
    assert (report.calls, report.tokens) == (10, 100)
    assert (totals, seen) == ([10], [(2, 20)] * 5)
    assert ray.asked == {"num_cpus": 3, "num_gpus": 1, "max_restarts": -1, "max_task_retries": RETRIES}
    assert ray.killed == ray.made
    assert ray.begun == [{"log_to_driver": False, "include_dashboard": False}]


def test_no_more_workers_are_started_than_there_are_chunks(
    chunks: list[CallChunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = with_ray(monkeypatch, running=True)
    extract_on_ray(PLAN, workers=9, reader=Counting)
    assert len(ray.made) == len(chunks)
    assert len(ray.begun) == 1, "a cluster that is there is used, not begun again"


def test_where_all_is_stored_no_cluster_is_begun(chunks: list[CallChunk], monkeypatch: pytest.MonkeyPatch) -> None:
    ray = with_ray(monkeypatch)
    monkeypatch.setattr(extract_ray, "plan_chunks", lambda *_: ([], 3, 1))
    report = extract_on_ray(PLAN, workers=2, reader=Counting)
    assert (report.calls, ray.begun, ray.made) == (0, [], [])


@pytest.mark.parametrize(("reader", "raised"), [(Failing, RecordError), (Broken, TaskError)])
def test_what_a_worker_raises_comes_out_and_every_worker_is_ended(
    reader: type, raised: type[Exception], chunks: list[CallChunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = with_ray(monkeypatch)
    with pytest.raises(raised):
        extract_on_ray(PLAN, workers=2, reader=reader)
    assert ray.killed == ray.made
    assert len(ray.made) == 2


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"workers": 1, "shard_calls": 0}])
def test_numbers_below_one_are_refused_and_one_is_enough(
    wrong: dict[str, int], chunks: list[CallChunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_ray(monkeypatch)
    with pytest.raises(RecordError, match="expected at least 1 of each"):
        extract_on_ray(PLAN, reader=Counting, **wrong)  # type: ignore[arg-type]
    assert extract_on_ray(PLAN, workers=1, shard_calls=1, reader=Counting).calls == 10


@pytest.mark.parametrize(("gpus", "each"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_a_worker_takes_a_gpu_where_there_is_one_for_each(
    gpus: int, each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_ray(monkeypatch, gpus=gpus)
    given: dict[str, Any] = {}

    def remember(plan: ClusterPlan, **named: Any) -> str:
        given.update(named, plan=plan)
        return "report"

    monkeypatch.setattr(extract_ray, "extract_on_ray", remember)
    told: dict[str, Any] = {"layers": "all", "every_token": False, "other_model": True, "batch_size": 4}
    found = launch_on_ray(tmp_path, "m", 2, positions=None, stage="s", **told)
    assert found == ("report", 2)
    assert (given["gpus"], given["workers"], given["stage"]) == (each, 2, "s")
    assert given["plan"] == ClusterPlan(runs=tmp_path.resolve(), model="m", positions=None, **told)
