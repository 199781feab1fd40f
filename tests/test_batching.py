"""Concurrent requests share batches; nobody waits for ever."""

import asyncio
from collections.abc import Sequence
from threading import Event

import pytest

from metaprobe.llms.local import BatchQueue, bucket


def echo(batches: list[list[int]]) -> BatchQueue[int, int]:
    def run(batch: Sequence[int], abandoned: Event) -> list[int | Exception]:
        batches.append(list(batch))
        return [ValueError("no thirteen") if asked == 13 else asked * 10 for asked in batch]

    return BatchQueue(run, batch_size=4)


def test_each_gets_its_own_answer_in_batches_of_one_kind_and_like_length() -> None:
    batches: list[list[int]] = []

    async def ask() -> list[int]:
        queue = echo(batches)
        return list(await asyncio.gather(*(queue.submit(i, kind=i % 2, length=i) for i in range(12))))

    assert asyncio.run(ask()) == [i * 10 for i in range(12)]
    assert sorted(sorted(batch) for batch in batches) == [[0, 2], [1, 3], [4, 6, 8, 10], [5, 7, 9, 11]]


def test_of_more_than_fit_those_that_are_chosen_go_first() -> None:
    batches: list[list[int]] = []

    def run(batch: Sequence[int], abandoned: Event) -> list[int | Exception]:
        batches.append(list(batch))
        return list(batch)

    async def ask() -> None:
        queue = BatchQueue[int, int](run, batch_size=2, choose=lambda asked, size: range(size))
        await asyncio.gather(*(queue.submit(i, kind=0, length=i) for i in range(5)))

    asyncio.run(ask())
    assert batches == [[0, 1], [2, 3], [4]]


def test_a_failed_request_fails_alone() -> None:
    async def ask() -> list[int | BaseException]:
        queue = echo([])
        return list(
            await asyncio.gather(*(queue.submit(i, kind=0, length=0) for i in (12, 13)), return_exceptions=True)
        )

    good, bad = asyncio.run(ask())
    assert good == 120
    assert isinstance(bad, ValueError)


def test_a_failed_batch_fails_all_that_wait_and_the_queue_goes_on() -> None:
    broken = True

    def run(batch: Sequence[int], abandoned: Event) -> list[int | Exception]:
        if broken:
            raise MemoryError("out of memory")
        return list(batch)

    async def ask() -> list[int | BaseException]:
        nonlocal broken
        queue = BatchQueue(run, batch_size=1)
        first = await asyncio.gather(*(queue.submit(i, kind=0, length=0) for i in range(3)), return_exceptions=True)
        broken = False
        return [*first, await queue.submit(7, kind=0, length=0)]

    *failed, last = asyncio.run(ask())
    assert all(isinstance(error, MemoryError) for error in failed)
    assert last == 7


def test_a_cancelled_queue_tells_its_batch_that_nobody_waits() -> None:
    seen: list[bool] = []

    async def ask() -> None:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def run(batch: Sequence[int], abandoned: Event) -> list[int | Exception]:
            loop.call_soon_threadsafe(started.set)
            seen.append(abandoned.wait(5))
            return list(batch)

        queue = BatchQueue(run, batch_size=1)
        asked = asyncio.create_task(queue.submit(1, kind=0, length=0))
        await started.wait()
        assert queue._worker is not None
        queue._worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        queue._thread.shutdown()

    asyncio.run(ask())
    assert seen == [True]


@pytest.mark.parametrize(
    ("left", "right", "together"),
    [(400, 800, True), (300, 1000, True), (8, 24, False), (24, 400, False), (1, 2, False), (5, 16, True)],
)
def test_limits_within_a_factor_of_four_may_share_a_batch(left: int, right: int, together: bool) -> None:
    assert (bucket(left) == bucket(right)) is together
