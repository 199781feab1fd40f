"""vLLM's connector of hidden states, also for a CPU. vLLM imports this module by name, in its own processes."""

import fcntl
import os
from functools import partial
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)


class HiddenStatesConnector(ExampleHiddenStatesConnector):  # type: ignore[misc]  # vLLM has its own environment
    """vLLM's own connector under a name in this package."""


class _Copied:
    """Replaces a CUDA event: on a CPU a copy is finished when it returns."""

    def synchronize(self) -> None:
        """Does nothing: there is nothing to wait for."""

    def query(self) -> bool:
        """Returns True: the copy is finished."""
        return True


class CpuHiddenStatesConnector(ExampleHiddenStatesConnector):  # type: ignore[misc]
    """Copies states without pinned memory and without CUDA streams."""

    def _submit_async_write(self, pending: Any) -> None:
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (torch.arange(self._block_size)[None] + blocks[:, None] * self._block_size).flatten()
        states = extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids)).clone()
        lock = self._lock_fds.pop(pending.req_id, None)
        if lock is None and self.use_lock:
            lock = os.open(f"{pending.filename}.lock", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
        tensors = {"hidden_states": states, "token_ids": pending.token_ids.clone()}
        copy_event = _Copied()
        future = self._executor.submit(self._write_tensors, tensors, copy_event, pending.filename, lock)
        self._req_copy_events[pending.req_id] = copy_event
        self._req_futures[pending.req_id] = future
        future.add_done_callback(partial(self._on_write_done, pending.req_id))
