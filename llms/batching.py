"""Gathers concurrent requests into batches of about equal length."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Asked, Answered]):
    asked: Asked
    kind: int
    """Only requests of one kind share a batch: here those that may generate about as many tokens."""
    length: int
    answer: "asyncio.Future[Answered]"


class BatchQueue(Generic[Asked, Answered]):
    """`await queue.submit(request)` from many tasks; `run` answers them in batches, in a worker thread.

    A batch is taken when every task that can submit has done so. It holds requests of one kind, the kind with most
    waiting; of more than fit, the longest, so that little is padded, or those that `choose` names.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Asked], Event], Sequence[Answered | Exception]],
        *,
        batch_size: int,
        choose: Callable[[Sequence[Asked], int], Sequence[int]] | None = None,
    ) -> None:
        """`run` gets an event beside the batch, which is set when nobody waits for the batch any more: it may stop.

        `choose`: of requests in the order of their lengths, which so many to answer together.
        """
        self._run = run
        self._batch_size = batch_size
        self._choose = choose
        self._waiting: list[_Waiting[Asked, Answered]] = []
        self._worker: asyncio.Task[None] | None = None
        # One thread, always the same: each new one would keep memory of its own for tensors it has long freed.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metaprobe-llm")

    async def submit(self, asked: Asked, *, kind: int, length: int) -> Answered:
        """The answer to one request; raises what `run` returned for it as an exception."""
        waiting = _Waiting(asked, kind, length, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        answer: Answered = await waiting.answer
        return answer

    async def _work(self) -> None:
        batch: list[_Waiting[Asked, Answered]] = []
        abandoned = Event()
        try:
            while self._waiting:
                await self._settle()
                batch = self._take()
                asked = [waiting.asked for waiting in batch]
                answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._run, asked, abandoned)
                for waiting, answer in zip(batch, answers, strict=True):
                    if waiting.answer.done():  # its task was cancelled meanwhile
                        continue
                    if isinstance(answer, Exception):
                        waiting.answer.set_exception(answer)
                    else:
                        waiting.answer.set_result(answer)
        except BaseException as error:
            # Nobody is left waiting for ever: not where a whole batch fails, nor where this task is cancelled.
            for waiting in [*batch, *self._waiting]:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error) if isinstance(error, Exception) else waiting.answer.cancel()
            self._waiting.clear()
            if not isinstance(error, Exception):
                abandoned.set()
                raise

    async def _settle(self) -> None:
        """Let the other tasks run until no new request arrives."""
        count = -1
        while count != len(self._waiting):
            count = len(self._waiting)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _take(self) -> list[_Waiting[Asked, Answered]]:
        self._waiting = [waiting for waiting in self._waiting if not waiting.answer.done()]
        if not self._waiting:
            return []
        kind, _ = Counter(waiting.kind for waiting in self._waiting).most_common(1)[0]
        batch = sorted((w for w in self._waiting if w.kind == kind), key=lambda w: w.length)
        if len(batch) > self._batch_size and self._choose is not None:
            batch = [batch[i] for i in self._choose([w.asked for w in batch], self._batch_size)]
        batch = batch[-self._batch_size :]
        taken = {id(waiting) for waiting in batch}
        self._waiting = [waiting for waiting in self._waiting if id(waiting) not in taken]
        return batch


def bucket(max_tokens: int) -> int:
    """Requests of one bucket share a batch: 1, up to 4, 16, 64, 256, 1024, ... tokens.

    Finished rows leave the batch, so unequal limits cost little; but one long answer among many short ones would soon
    be generated alone.
    """
    return (max(max_tokens - 1, 0).bit_length() + 1) // 2
