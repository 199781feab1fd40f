"""How two checkpoints differ: contract, metrics, thresholds, data, versions, and what they say of the same rows."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import metaprobe.checkpoints.golden as golden
import metaprobe.checkpoints.strict_json as strict_json
from metaprobe.checkpoints.checkpoint import Checkpoint
from metaprobe.checkpoints.errors import ContractMismatch
from metaprobe.checkpoints.manifest import GOLDEN, MANIFEST, MODEL, OWN, Manifest, Metric, printable


class Absent(Enum):
    """In the place of the value of a field that one of them has not."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT
MAX_SHOWN = 90


@dataclass(frozen=True, slots=True)
class Change:
    """A field in which two checkpoints differ."""

    field: str
    """As in the manifest, with a dot before an entry: `metrics.auroc`, `contract.features`, `files.model.onnx`."""
    a: Any
    """As in JSON; `ABSENT` where the first has no such entry."""
    b: Any


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointDiff:
    """Two checkpoints and every field in which they differ, in the manifest's order; `created` and the manifests' own
    digests are not looked at.

    Where the models are other bytes and read the same inputs, `outputs_on_golden_rows` comes last: how far the answers
    of `b` are from those of `a` on the rows recorded with `a`, at most (absolute up to 1, relative beyond).
    """

    a: Checkpoint
    b: Checkpoint
    changes: tuple[Change, ...]

    @property
    def same(self) -> bool:
        """Whether they are the same but for the time they were made."""
        return not self.changes

    def as_json(self) -> dict[str, Any]:
        """For programs; a side that has no such entry is left out."""
        return {
            "same": self.same,
            "a": _summary(self.a),
            "b": _summary(self.b),
            "differences": [
                {"field": c.field} | {side: value for side, value in (("a", c.a), ("b", c.b)) if value is not ABSENT}
                for c in self.changes
            ],
        }

    def as_text(self) -> str:
        """For a reader: a field, then both sides, one below the other. Text from the files cannot steer a terminal."""
        lines = [
            f"{side} {c.path}  {c.manifest.kind}  {c.digest}  {c.manifest.created}"
            for side, c in (("a", self.a), ("b", self.b))
        ]
        for change in self.changes:
            lines += [change.field, *(f"  {side} {text}" for side, text in zip("ab", _sides(change), strict=True))]
        if self.same:
            lines.append("the same" if self.a.digest == self.b.digest else "the same but for the time they were made")
        return "\n".join(printable(line) for line in lines)


def compare(a: Checkpoint, b: Checkpoint) -> CheckpointDiff:
    """How `b` differs from `a`."""
    found = [
        Change(field, was, now)
        for field, was, now in _compare(_fields(a.manifest), _fields(b.manifest))
        if field not in ("created", OWN)
    ]
    if any(change.field == f"files.{MODEL}" for change in found) and a.manifest.inputs == b.manifest.inputs:
        found += _answers(a, b)
    return CheckpointDiff(a, b, tuple(found))


def _answers(a: Checkpoint, b: Checkpoint) -> Iterator[Change]:
    try:
        size = golden.difference(a.files()[GOLDEN], b.session)[0].size
    except ContractMismatch:  # other outputs: the manifests say so
        return
    yield Change("outputs_on_golden_rows", 0.0, size)


def _summary(checkpoint: Checkpoint) -> dict[str, str]:
    manifest = checkpoint.manifest
    return {
        "path": str(checkpoint.path),
        "kind": manifest.kind,
        "digest": checkpoint.digest,
        "created": manifest.created,
    }


def _fields(manifest: Manifest) -> dict[str, Any]:
    """Every field by its path, as JSON; what belongs together (a metric with its interval) stays so."""
    fields: dict[str, Any] = {}
    for name, value in strict_json.plain(manifest, MANIFEST).items():
        if isinstance(value, dict):
            fields |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            fields[name] = value
    return fields


def _compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for field in [*a, *(field for field in b if field not in a)]:
        was, now = a.get(field, ABSENT), b.get(field, ABSENT)
        if was != now:
            yield field, was, now


def _sides(change: Change) -> tuple[str, str]:
    a, b = change.a, change.b
    if isinstance(a, list) and isinstance(b, list):
        return _list(a, b), _list(b, a)
    return _format(change.field, a), _format(change.field, b)


def _list(values: list[Any], others: list[Any]) -> str:
    """Its length, and what the other has not."""
    there = {json.dumps(value) for value in others}
    own = [value for value in values if json.dumps(value) not in there]
    if own and all(isinstance(value, str) for value in own):
        named = ", ".join(own[:5]) + (", ..." if len(own) > 5 else "")
        return f"{len(values)} values, of them only here: {named}"
    return f"{len(values)} values, {len(own)} of them only here" if len(values) > 6 else json.dumps(values)


def _format(field: str, value: Any) -> str:
    if value is ABSENT:
        return "-"
    if field.startswith("metrics."):
        metric = Metric(**value)
        return f"{metric.estimate:.4f} [{metric.low:.4f}, {metric.high:.4f}] n = {metric.n}"
    if field.startswith("audits."):
        value = f"{'pass' if value['passed'] else 'FAIL'}  {value['detail']}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
