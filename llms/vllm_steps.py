"""The thread in which vLLM's engine works: what is asked goes in between its steps, answers come out of them."""

import asyncio
import itertools
import queue
from dataclasses import dataclass
from threading import Thread
from typing import Any

from metaprobe.llms.base import LLMError


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """One request on its way into the engine."""

    name: str
    prompt: list[int]
    params: Any
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[Any]"


class EngineSteps:
    """Steps a `vllm.v1.engine.llm_engine.LLMEngine`, or what has its methods, as long as something is to be answered.

    Requests of several event loops may be in flight together. One that is cancelled is taken out of the engine.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[_Asked | str | None] = queue.SimpleQueue()
        self._open: dict[str, _Asked] = {}
        self._numbers = itertools.count()
        self._thread: Thread | None = None

    async def ask(self, name: str, prompt: list[int], params: Any) -> Any:
        """The finished `RequestOutput`. Raises `LLMError` where the engine refuses the request or fails."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._work, name="vllm-steps", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        # One question may be asked twice at once, and the engine knows requests by their names.
        asked = _Asked(f"{name}#{next(self._numbers)}", prompt, params, loop, loop.create_future())
        self._inbox.put(asked)
        try:
            return await asked.answer
        except asyncio.CancelledError:
            self._inbox.put(asked.name)
            raise

    def end(self) -> None:
        """Ends the thread when the step that is running is done; what is still open is cancelled."""
        if self._thread is not None and self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()
        self._thread = None

    def _work(self) -> None:
        while self._take():
            try:
                for output in self._engine.step():
                    if output.finished and (asked := self._open.pop(output.request_id, None)):
                        _answer(asked, output)
            except Exception as error:  # whatever it is, those who wait must hear of it
                self._fail(f"the engine failed ({type(error).__name__}: {error})")

    def _take(self) -> bool:
        """Takes in what was asked; waits where nothing is open. False where the work is to end."""
        while True:
            try:
                asked = self._inbox.get(block=not self._open)
            except queue.Empty:
                return True
            if asked is None:
                self._engine.abort_request(list(self._open))
                self._fail("the engine was closed")
                return False
            if isinstance(asked, str):
                if self._open.pop(asked, None):
                    self._engine.abort_request([asked])
            else:
                self._begin(asked)

    def _begin(self, asked: _Asked) -> None:
        try:
            self._engine.add_request(asked.name, {"prompt_token_ids": asked.prompt}, asked.params)
        except Exception as error:  # of one request: the others go on
            _answer(asked, LLMError(f"request {asked.name}: the engine refuses it ({type(error).__name__}: {error})"))
        else:
            self._open[asked.name] = asked

    def _fail(self, reason: str) -> None:
        for name, asked in list(self._open.items()):
            _answer(asked, LLMError(f"request {name}: {reason}"))
        self._open.clear()


def _answer(asked: _Asked, what: object) -> None:
    def give() -> None:
        if not asked.answer.done():
            if isinstance(what, Exception):
                asked.answer.set_exception(what)
            else:
                asked.answer.set_result(what)

    if not asked.loop.is_closed():
        asked.loop.call_soon_threadsafe(give)
