"""Adds runs to a store, a shard at a time."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

from metaprobe.records.activations import SUFFIX, Layout, activation_bytes, check_layout, layout_of
from metaprobe.records.atomic import atomic_write
from metaprobe.records.errors import RecordError, Unwritable
from metaprobe.records.extras import require
from metaprobe.records.one_writer import OneWriter
from metaprobe.records.schema import run_to_batch
from metaprobe.records.types import Call, Hidden, Run

pa = require("pyarrow", "fit")
pq = require("pyarrow.parquet", "fit")

_SHARD = re.compile(r"runs-(\d{5,})-[0-9a-f]{8}\.parquet")


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a folder, oldest first. Other files, and leftovers of a kill, are passed over."""
    numbered = [(int(match[1]), path.name, path) for path in folder.iterdir() if (match := _SHARD.fullmatch(path.name))]
    return [path for _, _, path in sorted(numbered)]


def write_shard(path: Path, batches: Sequence[Any]) -> None:
    """A shard of these rows, whole or not at all; one of that name is replaced."""
    with atomic_write(path) as file:
        table = pa.Table.from_batches(batches).combine_chunks()
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)


class RunWriter:
    """Gathers runs and writes a shard whenever `shard_runs` are together, and at the end of the `with` block.

    The end may be an exception or Ctrl-C: what was added is written all the same. Threads may share a writer. From the
    beginning of the block to its end no other process writes into the folder: `StoreHeld` names the one that does.
    """

    def __init__(
        self, folder: Path, layout: Layout | None, *, shard_runs: int, text: bool, only: OneWriter | None = None
    ) -> None:
        """`only`: what keeps others out, where it is held already."""
        if shard_runs < 1:
            raise ValueError(f"shard_runs is {shard_runs}; expected at least 1")
        self._folder = folder
        self._layout = layout
        self._shard_runs = shard_runs
        self._text = text
        self._only = only or OneWriter(folder)
        self._path: Path | None = None
        self._batches: list[Any] = []
        self._hidden: dict[str, Hidden] = {}
        self._lock = Lock()
        self._closed = False

    def __enter__(self) -> Self:
        self._only.__enter__()
        for leftover in self._folder.glob(".runs-*.tmp"):  # of a kill: nobody writes it any more
            leftover.unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        try:
            self.flush()
        finally:
            self._only.__exit__(kind, error, traceback)

    def add(self, run: Run) -> None:
        """Takes one run. Raises `RecordError` for one that cannot be stored; the others are not harmed by it.

        Raises `Unwritable` where the shard that it completes cannot be written, as on a full disk; the end of the block
        tries once more.
        """
        if self._closed:
            raise RecordError(f"run {run.id!r} came after the writer was closed; add runs inside the `with` block")
        batch = run_to_batch(run if self._text else drop_text(run))
        with self._lock:
            layout = self._layout
            hidden = {call.id: call.hidden for call in run.calls if call.hidden is not None}
            for call_id, states in hidden.items():
                own = layout_of(states, call_id)
                layout = layout or own
                check_layout(own, layout, f"call {call_id!r}")
            self._layout = layout
            for call_id, states in hidden.items():
                self._hidden.setdefault(call_id, states)  # a call that comes twice: the first one, as everywhere
            self._batches.append(batch)
            if len(self._batches) >= self._shard_runs:
                self._write_shard()

    def flush(self) -> None:
        """Writes what was added and is not yet on the disk, as a shard of its own."""
        with self._lock:
            if self._batches:
                self._write_shard()

    def _write_shard(self) -> None:
        try:
            # One name until it is written: an interrupted write is made good under it, and no run is there twice.
            self._path = path = self._path or self._next_path()
            if self._hidden:
                with atomic_write(path.with_suffix(SUFFIX)) as file:
                    file.write(activation_bytes(self._hidden))
            write_shard(path, self._batches)
        except OSError as error:
            raise Unwritable(
                f"{len(self._batches)} runs cannot be written to {self._folder}: {error.strerror or error}"
            ) from error
        self._path, self._batches, self._hidden = None, [], {}

    def _next_path(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        last = shard_paths(self._folder)[-1:]
        count = int(last[0].name.split("-")[1]) + 1 if last else 0
        # The count sorts shards by time; the random part keeps writers apart where the folder cannot be locked.
        return self._folder / f"runs-{count:05d}-{secrets.token_hex(4)}.parquet"


def drop_text(run: Run) -> Run:
    """The run without anything that was said: log-probabilities, labels and stated values stay, and so do all ids."""
    return replace(
        run,
        item=replace(run.item, question="", gold=(), choices=(), fields={}),
        calls=tuple(_call_without_text(call) for call in run.calls),
        final_answer="",
    )


def _call_without_text(call: Call) -> Call:
    # Servers repeat the prompt in their errors; that there was one is kept.
    error = None if call.error is None else "left out"
    return replace(call, text="", tokens=(), messages=(), prompt_token_ids=None, token_ids=None, error=error)
