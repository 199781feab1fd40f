"""A collection keeps every run, labels it, resumes, and refuses to mix."""

import asyncio
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from metaprobe.llms.base import Capabilities, LLMError, Request
from metaprobe.papers.collecting.collect import CollectReport, collect_runs, run_id
from metaprobe.papers.systems import SYSTEMS, Models, Prompts, Setup
from metaprobe.papers.systems.system_options import Options
from metaprobe.records.errors import StoreMismatch, Unwritable
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item
from metaprobe.routing.paper import PaperRules

SYSTEM = SYSTEMS["self-report"]
ITEMS = [
    Item(id=f"i{n}", question=f"What is {n} + 1?", gold=(str(n + 1),), group=f"g{n}", task="t", check="number")
    for n in range(10)
]


class Adder:
    """Adds rightly below 5, wrongly above; refuses item 7 until it is mended."""

    name = "adder"
    revision = "1"
    capabilities = Capabilities(logprobs=True)

    def __init__(self, *, mended: bool = False) -> None:
        self.mended = mended
        self.answered: list[str] = []

    async def complete(self, request: Request) -> Call:
        await asyncio.sleep(0)
        number = int(request.messages[-1].content.split("What is ")[1].split()[0])
        if number == 7 and not self.mended:
            raise LLMError("seven is too much")
        self.answered.append(request.id)
        text = {"difficulty": "10", "confidence": "80"}.get(request.stage, str(number + 1 + (number >= 5)))
        return Call(
            id=request.id,
            stage=request.stage,
            model=self.name,
            messages=request.messages,
            text=text,
            logprobs=np.array([-0.5], np.float32),
            sampling=request.sampling,
        )


def setup(llm: Adder, prompts: Prompts | None = None) -> Setup:
    return Setup(Models(llm), prompts or Prompts.load(SYSTEM.name, SYSTEM.prompts))  # type: ignore[arg-type]


def gather(store: RunStore, llm: Adder, prompts: Prompts | None = None) -> CollectReport:
    return asyncio.run(collect_runs(SYSTEM, ITEMS, setup(llm, prompts), store, shard_runs=4))


def test_every_answer_is_labelled_by_the_program(tmp_path: Path) -> None:
    gather(RunStore(tmp_path), Adder(mended=True))
    runs = list(RunStore(tmp_path))
    assert len(runs) == 20
    for run in runs:
        answer = next(call for call in run.calls if call.stage == "answer")
        assert run.outcome == run.label("correct", answer.id) == float(int(run.item.id[1:]) < 5)
        assert [label.source for label in run.labels] == ["program"]


def test_a_failed_run_is_reported_and_tried_again_and_nothing_is_done_twice(tmp_path: Path) -> None:
    first = gather(RunStore(tmp_path), Adder())
    assert (first.done, first.stored_before, len(first.failed)) == (18, 0, 2)
    assert "seven is too much" in first.failed[0]
    mended = Adder(mended=True)
    second = gather(RunStore(tmp_path), mended)
    assert (second.done, second.stored_before, second.failed) == (2, 18, ())
    assert {identity.split("/")[3] for identity in mended.answered} == {"i7"}
    assert len(RunStore(tmp_path)) == 20


def test_a_store_is_not_continued_with_anything_else_than_it_was_begun_with(tmp_path: Path) -> None:
    gather(RunStore(tmp_path), Adder(mended=True))
    shipped = Prompts.load(SYSTEM.name, SYSTEM.prompts)
    changed = dataclasses.replace(shipped, texts={**shipped.texts, "direct": "--- user\nNow: $question"})
    with pytest.raises(StoreMismatch, match="prompts"):
        gather(RunStore(tmp_path), Adder(mended=True), changed)
    other = Adder(mended=True)
    other.name = "subtractor"
    with pytest.raises(StoreMismatch, match="'adder', now 'subtractor'"):
        gather(RunStore(tmp_path), other)
    going = collect_runs(SYSTEM, ITEMS[:1], setup(Adder()), RunStore(tmp_path), settings={"capture": "all"})
    with pytest.raises(StoreMismatch, match="capture None, now 'all'"):
        asyncio.run(going)
    (tmp_path / "collection.json").write_text("{")
    with pytest.raises(StoreMismatch, match=r"collection\.json is damaged"):
        gather(RunStore(tmp_path), Adder())


def test_one_bad_item_is_reported_with_its_reason_and_harms_no_other(tmp_path: Path) -> None:
    items = [dataclasses.replace(ITEMS[0], gold=("Paris",)), *ITEMS[1:4]]
    report = asyncio.run(collect_runs(SYSTEM, items, setup(Adder()), RunStore(tmp_path)))
    assert (report.done, len(report.failed)) == (6, 2)
    assert all("Paris" in line for line in report.failed)
    noted = [json.loads(line) for line in (tmp_path / "failed.jsonl").read_text().splitlines()]
    assert [line["reason"] for line in noted] == [line.partition(": ")[2] for line in report.failed]
    asyncio.run(collect_runs(SYSTEM, ITEMS[:4], setup(Adder()), RunStore(tmp_path)))
    assert not (tmp_path / "failed.jsonl").exists()


def test_an_answer_that_cannot_be_kept_stops_the_collection_and_is_no_runs_failure(tmp_path: Path) -> None:
    class Full(Adder):
        """Its answers cannot be kept from the fifth on."""

        async def complete(self, request: Request) -> Call:
            if len(self.answered) >= 4:
                raise Unwritable("the disk is full")
            return await super().complete(request)

    with pytest.raises(Unwritable, match=r"the disk is full\. Nothing more is asked\. 1 runs are stored in"):
        asyncio.run(collect_runs(SYSTEM, ITEMS, setup(Full()), RunStore(tmp_path), concurrency=1))
    assert not (tmp_path / "failed.jsonl").exists()


def test_a_run_is_the_same_again_where_all_that_it_depends_on_is_the_same(tmp_path: Path) -> None:
    gather(RunStore(tmp_path), Adder(mended=True))
    item, given = ITEMS[0], setup(Adder())
    same = run_id(SYSTEM, "direct", given, item)
    assert same in RunStore(tmp_path).run_ids()
    for other in (
        dataclasses.replace(item, question="?"), dataclasses.replace(item, gold=("x",)),
        dataclasses.replace(item, choices=("x",)), dataclasses.replace(item, check="exact"),
        dataclasses.replace(item, fields={"essay": "two"}),
    ):  # fmt: skip
        assert run_id(SYSTEM, "direct", given, other) != same
    for changed in (
        dataclasses.replace(given, seed=1),
        dataclasses.replace(given, policy=PaperRules(theta=0.4)),
        dataclasses.replace(given, options=Options({"answer": 7}, {})),
    ):
        assert run_id(SYSTEM, "direct", changed, item) != same
    assert run_id(SYSTEM, "step-by-step", given, item) != same
    assert run_id(SYSTEM, "direct", given, dataclasses.replace(item, group="other", level="hard")) == same


def test_answers_that_were_cut_and_runs_that_ended_are_told_of_as_they_come(tmp_path: Path) -> None:
    class Cut(Adder):
        """Every answer to an odd number is cut."""

        async def complete(self, request: Request) -> Call:
            call = await super().complete(request)
            odd = int(request.messages[-1].content.split("What is ")[1].split()[0]) % 2
            return dataclasses.replace(call, finish_reason="length" if odd else "stop")

    ended: list[tuple[bool, str]] = []
    report = asyncio.run(
        collect_runs(
            SYSTEM, ITEMS, setup(Cut()), RunStore(tmp_path), variants=("direct",),
            on_run=lambda run, why: ended.append((run is None, why)),
        )
    )  # fmt: skip
    assert report.cut == {"answer": (4, 9)}  # 7 was refused
    assert (report.done, report.stored_before, report.unread) == (9, 0, {})
    assert sorted(ended) == [(False, "")] * 9 + [(True, "seven is too much")]
    assert len(report.failed) == 1
    assert report.failed[0].endswith(": seven is too much")


@pytest.mark.parametrize("held", ["runs", "failed.jsonl"])
def test_a_store_that_does_not_say_what_it_is_of_is_not_taken_for_ones_own(tmp_path: Path, held: str) -> None:
    if held == "runs":
        gather(RunStore(tmp_path), Adder(mended=True))
        (tmp_path / "collection.json").unlink()
    else:
        (tmp_path / "failed.jsonl").write_text("somebody's")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StoreMismatch, match=rf"holds {held}.* and no collection\.json, .*another folder"):
        gather(RunStore(tmp_path), Adder(mended=True))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_interrupted_collection_keeps_what_was_done(tmp_path: Path) -> None:
    class Slow(Adder):
        async def complete(self, request: Request) -> Call:
            if len(self.answered) >= 30:
                await asyncio.Event().wait()
            return await super().complete(request)

    async def interrupted() -> None:
        """Acts as asyncio does on Ctrl-C: cancels the main task, and lets it clean up."""
        llm = Slow(mended=True)
        task = asyncio.create_task(collect_runs(SYSTEM, ITEMS, setup(llm), RunStore(tmp_path), concurrency=4))
        while len(llm.answered) < 30:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupted())
    kept = len(RunStore(tmp_path))
    assert 0 < kept < 20
    rest = gather(RunStore(tmp_path), Adder(mended=True))
    assert (rest.stored_before, rest.done) == (kept, 20 - kept)
