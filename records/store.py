"""The run store: a folder of Parquet shards, one row a run, that DuckDB, Polars and `datasets` read as they are."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from metaprobe.records.activations import SUFFIX, ActivationFile, Activations, gather
from metaprobe.records.errors import DamagedShard, RecordError
from metaprobe.records.extras import require
from metaprobe.records.schema import check_format, table_to_runs
from metaprobe.records.types import Hidden, Run
from metaprobe.records.writer import RunWriter, shard_paths

pa = require("pyarrow", "train")
pq = require("pyarrow.parquet", "train")


class RunStore:
    """Runs on the disk, append-only. A run stored twice, by whatever accident, is read once: the first one counts."""

    def __init__(self, path: str | Path, *, damaged: Literal["raise", "skip"] = "raise") -> None:
        """With `damaged="skip"` unreadable files are passed over, and their names collected in `damaged`."""
        self.path = Path(path)
        self.damaged: list[str] = []
        self._skip = damaged == "skip"

    def __repr__(self) -> str:
        return f"RunStore({str(self.path)!r})"

    def __iter__(self) -> Iterator[Run]:
        return self.runs()

    def __len__(self) -> int:
        """How many different runs are stored."""
        return len(self.run_ids())

    def runs(self, *, hidden: bool = False) -> Iterator[Run]:
        """Every run once, oldest shard first, a shard in memory at a time; `Call.hidden` is filled only on request."""
        seen: set[str] = set()
        for shard in self.shards():
            runs: list[Run] = []
            with self._guard(shard):
                runs = table_to_runs(self._read(shard))
            if hidden:
                runs = self._with_hidden(runs, shard)
            for run in runs:
                if run.id not in seen:
                    seen.add(run.id)
                    yield run

    def run_ids(self) -> set[str]:
        """What need not be collected again: ids of the runs stored, none where the folder is empty or not there yet."""
        ids: set[str] = set()
        for shard in self._shards():
            with self._guard(shard):
                ids.update(self._read(shard, columns=["id"]).column("id").to_pylist())
        return ids

    def shards(self) -> list[Path]:
        """The Parquet files, oldest first. Raises `RecordError` where there is no store to read."""
        if not self.path.exists():
            raise RecordError(
                f"{self.path}: there is no such folder; expected a run store, as `metaprobe collect` makes it"
            )
        shards = self._shards()
        if not shards:
            raise RecordError(
                f"{self.path} is no run store, or nothing was collected into it yet: it holds no runs-*.parquet"
            )
        return shards

    def activations(
        self,
        call_ids: Sequence[str] | None = None,
        *,
        layers: Sequence[int] | None = None,
        positions: Sequence[str] | None = None,
    ) -> Activations:
        """Hidden states of these calls in this order, by default of all; only layers and positions asked for are read.

        Raises `RecordError` naming the calls, layers or positions that are not stored.
        """
        return gather(self._activation_files(self.shards()), call_ids, layers=layers, positions=positions)

    def has_activations(self) -> bool:
        """Whether hidden states of any call are stored."""
        return next(iter(self._activation_files(self.shards())), None) is not None

    def writer(self, *, shard_runs: int = 64, text: bool = True) -> RunWriter:
        """What runs are added to, in a `with` block.

        `text=False` keeps no texts, tokens, token ids, messages, questions, choices or accepted answers. Ids and groups
        are always kept, so they should not hold what is private.
        """
        newest = next(self._activation_files(self._shards()[::-1]), None)
        return RunWriter(self.path, newest.layout if newest else None, shard_runs=shard_runs, text=text)

    def append(self, runs: Iterable[Run]) -> None:
        """Adds runs as one shard: all of them or, if one of them cannot be stored, none."""
        runs = list(runs)
        writer = self.writer(shard_runs=len(runs) + 1)
        for run in runs:
            writer.add(run)
        writer.flush()

    def _shards(self) -> list[Path]:
        if self.path.exists() and not self.path.is_dir():
            raise RecordError(f"{self.path} is a file; expected the folder of a run store")
        return shard_paths(self.path) if self.path.exists() else []

    def _read(self, shard: Path, columns: list[str] | None = None) -> Any:
        with pq.ParquetFile(shard, page_checksum_verification=True) as file:
            check_format(file.schema_arrow.metadata, str(shard))
            return file.read(columns=columns, use_threads=False)

    def _activation_files(self, shards: Iterable[Path]) -> Iterator[ActivationFile]:
        for shard in shards:
            path = shard.with_suffix(SUFFIX)
            if path.exists():
                file = None
                with self._guard(path):
                    file = ActivationFile(path)
                if file is not None:
                    yield file

    def _with_hidden(self, runs: list[Run], shard: Path) -> list[Run]:
        states: dict[str, Hidden] = {}
        for file in self._activation_files([shard]):
            found = gather([file])
            for call_id, values in zip(found.call_ids, found.values, strict=True):
                states[call_id] = Hidden(values, found.layers, found.positions)
        return [
            replace(run, calls=tuple(replace(call, hidden=states.get(call.id)) for call in run.calls)) for run in runs
        ]

    @contextmanager
    def _guard(self, path: Path) -> Iterator[None]:
        """Turns what libraries raise on a broken file into `DamagedShard`, or notes the file and goes on."""
        broken = (pa.ArrowException, OSError, ValueError, KeyError, require("safetensors", "train").SafetensorError)
        try:
            yield
        except (RecordError, PermissionError):
            raise
        except broken as error:
            if self._skip:
                if path.name not in self.damaged:
                    self.damaged.append(path.name)
                return
            others = len(self._shards()) - (path.suffix != SUFFIX)
            raise DamagedShard(
                f"{path} is damaged ({str(error).strip() or type(error).__name__}); restore it from a copy, or delete"
                f" it and collect again what it held; the other {others} shards are not touched by this:"
                " RunStore(path, damaged='skip') reads them"
            ) from error
