"""Holds the contents of manifest.json: its fields are those of `Manifest`, and every field must be there.

A checkpoint's JSON is converted to dataclasses and back strictly: the annotations of a dataclass are the schema
(`build`, `json_value`). golden.json is read in the same way.
"""

import dataclasses
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NoReturn, TypeVar, Union, cast

import numpy as np

from metaprobe.checkpoints.checkpoint_errors import (
    CheckpointError,
    ContractMismatch,
    NotACheckpoint,
    TamperedCheckpoint,
    UnsafeModel,
)

Trust = Literal["sound", "weak", "invalid", "unaudited"]
"""Result of all audits of a checkpoint: `sound` if none failed, else the worst `Severity` of the failed ones."""
Severity = Literal["invalid", "weak", "unaudited"]
"""Meaning of a failed audit for the numbers; `MEANING` has it in words."""

FORMAT_VERSION = 1
OWN_DIGEST_FIELD = "manifest_sha256"
"""Field of the manifest that holds its own digest."""

MANIFEST, MODEL, GOLDEN, CARD = "manifest.json", "model.onnx", "golden.json", "README.md"
REQUIRED_FILES = (MODEL, GOLDEN, CARD)
"""Files every manifest lists."""
MAX_FILES = 16
"""Most files that a manifest may list."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of the graph."""

    name: str
    type: str
    """NumPy's name of the type: `float32`, `int64`, `bool`, ...; `str` for strings."""
    shape: tuple[int | None, ...]
    """Length of each axis; None (in JSON null or -1) for any length, as on the batch axis. Empty if the shape is
    unknown.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(None if length == -1 else length for length in self.shape))
        if not self.name or any(length is not None and length < 0 for length in self.shape):
            raise ContractMismatch(f"expected a name and lengths >= 0 (or null), got {self.name!r} {list(self.shape)}")


@dataclass(frozen=True, slots=True)
class Generator:
    """The language models whose responses the checkpoint was trained on, and for whose responses it is valid."""

    model: str
    revision: str = ""
    dtype: str = ""
    tokenizer: str = ""
    logprobs_mode: Literal["raw", "processed", "unknown"] = "unknown"
    others: tuple[str, ...] = ()
    """More models whose responses it was trained on. Revision, dtype and tokenizer are then not stated."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names of all the models."""
        return (self.model, *self.others)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How the scores were turned into probabilities."""

    method: str
    """`isotonic`, `platt`, `temperature`, ..."""
    fitted_on: str
    """The data on which it was fitted, never the data of the metrics."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric on held-out data with its 95 % interval."""

    estimate: float
    low: float
    high: float
    n: int
    """Number of held-out rows."""

    def __post_init__(self) -> None:
        if not self.low <= self.high or self.n < 0:
            raise ContractMismatch(f"expected low <= high and n >= 0, got low {self.low}, high {self.high}, n {self.n}")


@dataclass(frozen=True, slots=True)
class Training:
    """The training data, its split and the command of the training."""

    fingerprint: str
    """Digest of the training data. Two checkpoints with equal fingerprints saw the same rows."""
    n: int
    """Number of rows."""
    groups: int
    """Number of groups."""
    seed: int
    command: str
    regrouped: str = ""
    """Which groups were joined because their questions or answers repeat, in words; empty if none were."""

    @property
    def ungrouped(self) -> str:
        """A hint to give groups, for a training in which every row was a group of its own; else empty."""
        if self.n != self.groups:
            return ""
        return (
            "no two rows share a group, so each was taken as a question of its own. If some answer one question, or "
            "were made from one template, give their lines `group` or `question_id`: without it held-out figures are "
            "too good"
        )


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of one audit: a check of whether the held-out numbers mean what they seem to mean."""

    passed: bool
    detail: str
    severity: Severity = "weak"
    """How much a failure of this audit weakens the numbers."""


@dataclass(frozen=True, slots=True)
class FlagPoint:
    """The effect on held-out answers of flagging a share of the answers, those with the lowest scores."""

    rate: float
    """Share of the answers that is flagged, in (0, 1)."""
    threshold: float
    """Score below which that share of the calibration answers lies."""
    caught: Metric
    """Share of the wrong answers that is flagged."""
    cost: Metric
    """Share of the right answers that is flagged."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A threshold that keeps a promise about new answers."""

    option: Literal["catch", "risk"]
    """`catch`: on average at least the share `value` of the wrong answers lies below the threshold.

    `risk`: of the answers at or above the threshold at most the share `value` is wrong, with 95 % confidence.
    """
    value: float
    threshold: float


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The effect of the stored threshold `flag` on held-out answers."""

    option: Literal["expected", "flag_rate", "flag_below", "catch", "risk"]
    """How the threshold was set; `expected` flags as many answers as are expected to be wrong."""
    value: float
    """Value of the option; for `expected`, the share of the answers that is expected to be wrong."""
    flagged: Metric
    """Share of all answers that is flagged."""
    caught: Metric
    """Share of the wrong answers that is flagged."""
    cost: Metric
    """Share of the right answers that is flagged."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Digest and size of one file of the checkpoint."""

    sha256: str
    bytes: int

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.sha256) or self.bytes < 0:
            raise ContractMismatch(f"expected 64 lower-case hex digits and a size, got {self.sha256!r}, {self.bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The fields of a manifest that its author states. Saving adds the others."""

    kind: str
    """The meaning of the outputs: `quality`, `hidden`, `choice`, ..."""
    contract: dict[str, Any] = field(default_factory=dict)
    """How the inputs are made, in the form of the kind: feature schema and ordered names, or layer,
    position and width.
    """
    generator: Generator | None = None
    """Model for whose answers it is valid; None if it depends on no model, or the model is not known."""
    thresholds: dict[str, float] = field(default_factory=dict)
    calibration: Calibration | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    training: Training | None = None
    audits: dict[str, Audit] = field(default_factory=dict)
    flagging: tuple[FlagPoint, ...] = ()
    """Points with rising flag rates; empty if answers are not right or wrong."""
    promises: tuple[Promise, ...] = ()
    """Thresholds for `catch` and `risk`, each in rising order of value."""
    operating: OperatingPoint | None = None
    """Effect of `thresholds["flag"]` on held-out answers; None if it was not measured."""
    versions: dict[str, str] = field(default_factory=dict)
    """Maps a package to its version. Saving adds metaprobe, numpy and onnxruntime."""

    def __post_init__(self) -> None:
        if not self.kind:
            raise ContractMismatch("kind is empty; expected what the outputs mean, such as 'quality' or 'hidden'")

    @property
    def failed(self) -> dict[str, Severity]:
        """The audits that failed, by name, with their severity."""
        return {name: audit.severity for name, audit in self.audits.items() if not audit.passed}

    @property
    def trust(self) -> Trust:
        """How reliable the numbers are; "unaudited" if there was no audit, or none against a control."""
        severities = self.failed.values()
        if not self.audits:
            return "unaudited"
        return next((severity for severity in MEANING if severity in severities), "sound")

    @property
    def chance(self) -> dict[str, str]:
        """Maps heads whose scores are not shown to order answers better than chance to a clause that says so.

        A head is not shown to be better if the interval of its AUROC on held-out answers reaches down to 0.5. With
        several runs the AUROC within runs is used. A single head has the name "".
        """
        clauses = dict[str, str]()
        for name in sorted(
            self.metrics, key=lambda name: name.endswith(WITHIN)
        ):  # last, so that it replaces the pooled one
            head, _, metric_name = name.rpartition(".")
            if metric_name not in (AUROC, WITHIN):
                continue
            metric, runs_text = self.metrics[name], " within runs" * (metric_name == WITHIN)
            clauses[head] = (
                ""
                if metric.low > 0.5
                else f"no better than chance as far as {metric.n} held-out answers show: AUROC{runs_text} "
                f"{metric.estimate:.2f} [{metric.low:.2f}, {metric.high:.2f}] "
                + ("lies below 0.5" if metric.high < 0.5 else "includes 0.5" if metric.low <= 0.5 else "is not known")
            )
        return {head: clause for head, clause in clauses.items() if clause}

    def after_chance(self, head: str) -> str:
        """Returns the advice that follows the clause about chance for this head.

        For a gate the advice says whether earlier or later looks are better than chance. For a panel's kept answer it
        names the figure to read instead.
        """
        if self.kind == "panel" and head.startswith("kept_"):
            size = head.removeprefix("kept_")
            return f"this is about telling right kept answers from wrong ones; accuracy_{size} says how many are right"
        if self.kind == "gate":
            heads = [name.removesuffix(f".{AUROC}") for name in self.metrics if name.endswith(f".{AUROC}")]
            heads_above_chance = [name for name in heads if name not in self.chance]
            if any((len(name), name) > (len(head), head) for name in heads_above_chance):  # look5 comes before look10
                return "too early to tell: later looks are better than chance"
            if heads_above_chance:
                return "too few answers are that long to tell: earlier looks are better than chance"
        return AT_CHANCE

    @property
    def distrust(self) -> str:
        """A clause with the failed audits and their meaning; empty if none failed."""
        return meaning_of(self.failed)


AUROC, WITHIN = "auroc", "auroc_within_runs"
"""Names of metrics for how well scores order answers; "HEAD.auroc" if a checkpoint has several heads."""
AT_CHANCE = "check the labels, label more answers, or take another signal (`metaprobe advise FILE`)"
"""Advice about scores that are not better than chance."""
MEANING: dict[Severity, str] = {
    "invalid": "cannot be believed",
    "weak": "are true, but something simpler may do as well, or too little was measured",
    "unaudited": "were never held against a control",
}
"""Maps a severity to words about the numbers, in cards, reports, guide and glossary; the worst first."""


def meaning_of(failed: Mapping[str, Severity]) -> str:
    """Returns a clause about failed audits for a warning, a card or a summary. Control characters are escaped."""
    names_by_severity = {
        severity: ", ".join(printable(name) for name, failed_at in failed.items() if failed_at == severity)
        for severity in MEANING
    }
    return "; ".join(
        f"its numbers {MEANING[severity]} (failed: {names})" for severity, names in names_by_severity.items() if names
    )


def printable(text: str) -> str:
    """Returns a text with its control characters escaped."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Draft):
    """All fields of manifest.json."""

    format_version: int
    created: str
    """ISO 8601 with the offset from UTC."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    files: dict[str, FileEntry]
    """Every file of the checkpoint except manifest.json itself."""
    manifest_sha256: str = ""
    """Digest of all other fields of the manifest: see `own_digest`. Empty until the manifest is written."""

    def __post_init__(self) -> None:
        Draft.__post_init__(self)
        try:
            has_offset = datetime.fromisoformat(self.created).tzinfo is not None
        except ValueError:
            has_offset = False
        if not has_offset:
            raise ContractMismatch(f"created: expected an ISO 8601 time with offset, got {self.created!r}")
        for name in self.files:
            if not _FILE_NAME.fullmatch(name) or name == MANIFEST:
                raise UnsafeModel(f"files: {name!r} is not a plain file name; separators, '..' and links are refused")
        if len(self.files) > MAX_FILES:
            raise UnsafeModel(f"files: lists {len(self.files)}; at most {MAX_FILES} are read")
        if missing_files := [name for name in REQUIRED_FILES if name not in self.files]:
            raise ContractMismatch(f"files: does not list {', '.join(missing_files)}")


def parse_manifest(data: bytes) -> Manifest:
    """Returns the manifest in the bytes of manifest.json, after checking every field.

    Raises `NotACheckpoint` if the bytes are not JSON. Raises `ContractMismatch` for an unknown format version, and for
    fields that are missing, unknown or of the wrong type. Raises `UnsafeModel` for file names that lead out of the
    folder, and `TamperedCheckpoint` if the manifest's own digest differs.
    """
    value = read_json(data, MANIFEST)
    version = value.get("format_version") if isinstance(value, dict) else None
    # The version is checked first, because another version may have other fields.
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise ContractMismatch(
            f"{MANIFEST}: format_version is {version}, this metaprobe reads {FORMAT_VERSION}; "
            f"{'upgrade metaprobe' if version > FORMAT_VERSION else 'export the checkpoint again'}"
        )
    manifest = build(Manifest, value, MANIFEST)
    if manifest.manifest_sha256 != (digest := own_digest(value)):
        raise TamperedCheckpoint(
            f"{MANIFEST} was changed: its fields have SHA-256 {digest}, and it says {manifest.manifest_sha256!r}."
            " Copy it again"
        )
    return manifest


def manifest_bytes(manifest: Manifest) -> bytes:
    """Returns the bytes of manifest.json, with the digest of its other fields.

    Raises `ContractMismatch` if `parse_manifest` would refuse these bytes.
    """
    value = json_value(manifest, MANIFEST)
    value[OWN_DIGEST_FIELD] = own_digest(value)
    build(Manifest, value, MANIFEST)
    return json_bytes(value)


def own_digest(value: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a manifest's JSON without `manifest_sha256`: keys sorted, no blanks, ASCII.

    It shows damage to any field. It does not show who made the manifest: a person who changes a field can compute it
    again.
    """
    other_fields = {key: field for key, field in value.items() if key != OWN_DIGEST_FIELD}
    return hashlib.sha256(json.dumps(other_fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


T = TypeVar("T")

_TYPE_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def read_json(data: bytes, file_name: str) -> Any:
    """Returns the value of JSON bytes. Refuses NaN, infinities (also 1e999) and repeated keys.

    `file_name` names the source in errors.
    """
    try:
        return json.loads(
            data.decode("utf-8"), parse_constant=_read_finite, parse_float=_read_finite, object_pairs_hook=_read_object
        )
    except (ValueError, RecursionError) as error:
        raise NotACheckpoint(f"{file_name} is not strict JSON: {error}") from error


def json_bytes(value: Any) -> bytes:
    """Returns a JSON value as UTF-8, indented, ending in a newline."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def json_value(value: Any, json_path: str) -> Any:
    """Returns dataclasses, tuples, arrays and NumPy scalars as JSON types. Refuses other types, NaN and infinities."""
    match value:
        case np.generic() | np.ndarray():
            return json_value(value.tolist(), json_path)
        case None | bool() | int() | str():
            return value
        case float():
            if not math.isfinite(value):
                raise ContractMismatch(f"{json_path}: expected a finite number, got {value}")
            return value
        case list() | tuple():
            return [json_value(item, f"{json_path}[{i}]") for i, item in enumerate(value)]
        case dict():
            if other_keys := [key for key in value if not isinstance(key, str)]:
                raise ContractMismatch(f"{json_path}: the keys of an object are strings, got {other_keys[0]!r}")
            return {key: json_value(item, f"{json_path}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: json_value(getattr(value, f.name), f"{json_path}.{f.name}") for f in dataclasses.fields(value)}
    raise ContractMismatch(f"{json_path}: a {type(value).__name__} cannot be written as JSON")


def build(dataclass_type: type[T], value: Any, json_path: str) -> T:
    """Returns `value`, a result of `json_value` or `read_json`, as an instance of the dataclass `dataclass_type`.

    Every field must be there, no field may be unknown, and each must have the annotated type (an integer counts as a
    number, a boolean does not). Errors name the path to the field.

    Args:
        dataclass_type: the dataclass.
        value: the JSON value.
        json_path: path to the value, for errors.
    """
    return cast(T, _build(dataclass_type, value, json_path))


def _build(type_hint: Any, value: Any, json_path: str) -> Any:
    """Returns a JSON value as an object of the type that an annotation names.

    Raises `ContractMismatch`, with the path to the value that does not fit.

    Args:
        type_hint: the annotation, such as `tuple[int, ...]` or a dataclass.
        value: the JSON value.
        json_path: path to the value, for errors.
    """
    # A dataclass.
    if isinstance(type_hint, type) and dataclasses.is_dataclass(type_hint):
        if not isinstance(value, dict):
            _fail(json_path, _TYPE_NAMES[dict], value)
        hints = _hints(type_hint)
        if missing_fields := [name for name in hints if name not in value]:
            raise ContractMismatch(f"{json_path}: missing {', '.join(map(repr, missing_fields))}")
        if unknown_fields := [name for name in value if name not in hints]:
            raise ContractMismatch(
                f"{json_path}: unknown field {', '.join(map(repr, unknown_fields))}; known are {', '.join(hints)}"
            )
        arguments = {name: _build(hint, value[name], f"{json_path}.{name}") for name, hint in hints.items()}
        try:
            return type_hint(**arguments)
        except CheckpointError as error:
            raise type(error)(f"{json_path}: {error}") from error
    if type_hint is Any:
        return value
    # A type with parameters.
    origin, type_arguments = typing.get_origin(type_hint), typing.get_args(type_hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (member,) = (argument for argument in type_arguments if argument is not type(None))
        return _build(member, value, json_path)
    if origin is Literal:
        if value not in type_arguments:
            _fail(json_path, " or ".join(map(repr, type_arguments)), value)
        return value
    if origin is tuple:
        if not isinstance(value, list):
            _fail(json_path, _TYPE_NAMES[list], value)
        return tuple(_build(type_arguments[0], item, f"{json_path}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            _fail(json_path, _TYPE_NAMES[dict], value)
        return {key: _build(type_arguments[1], item, f"{json_path}.{key}") for key, item in value.items()}
    # A plain value.
    if type_hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            _fail(json_path, "a number that fits a double", value)
    if not isinstance(value, type_hint) or (type_hint is int and isinstance(value, bool)):
        _fail(json_path, _TYPE_NAMES[type_hint], value)
    return value


@lru_cache(maxsize=64)
def _hints(dataclass_type: type) -> dict[str, Any]:
    hints = typing.get_type_hints(dataclass_type)
    return {f.name: hints[f.name] for f in dataclasses.fields(dataclass_type)}


def _fail(json_path: str, expected: str, value: Any) -> NoReturn:
    value_text = repr(value)
    shown_text = value_text if len(value_text) <= 80 else f"{value_text[:77]}..."
    raise ContractMismatch(f"{json_path}: expected {expected}, got {shown_text}")


def _read_finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no finite number")
    return value


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"key {name[:80]!r} occurs twice in one object")
        members[name] = value
    return members
