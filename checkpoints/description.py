"""Describes a checkpoint in words, for `metaprobe inspect`, `verify` and `diff`."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from shlex import quote
from typing import Any

from metaprobe.checkpoints.checkpoint import Checkpoint, difference_from_rows
from metaprobe.checkpoints.checkpoint_errors import ContractMismatch
from metaprobe.checkpoints.flagging import FLAG, flag_sentences, flag_table, label_nouns
from metaprobe.checkpoints.manifest import (
    CARD,
    GOLDEN,
    MANIFEST,
    MODEL,
    OWN_DIGEST_FIELD,
    Manifest,
    Metric,
    TensorSpec,
    json_value,
    printable,
)
from metaprobe.checkpoints.rendered_table import Table

GAIN_OVER_BEFORE = "brier_gain_over_before"
"""Metric of a recalibrated checkpoint: by how much its Brier score is lower than before, on held-out answers."""

MAX_VALUE_CHARS = 100
"""Most characters shown of a value of a manifest."""
MAX_POINTS = 8
"""Most points shown of a curve, from its first to its last."""


def describe(checkpoint: Checkpoint) -> str:
    """Returns a summary of some dozens of lines, failed audits first. Control characters are escaped."""
    manifest = checkpoint.manifest
    lines = [f"NOT TRUSTWORTHY: {manifest.distrust}", ""] if manifest.trust == "invalid" else []
    lines += [f"{manifest.kind} checkpoint {checkpoint.path}", f"digest      {checkpoint.digest}"]
    lines += _lines(manifest)
    return "\n".join(printable(line) for line in lines)


def describe_adapted(checkpoint: Checkpoint) -> str:
    """Returns what an adapted checkpoint flags, and the commands that use it next. Control characters are escaped."""
    path = quote(str(checkpoint.path))
    next_lines = [
        f"metaprobe score {path} NEW.jsonl",
        f"metaprobe serve {path} --upstream http://HOST:PORT/v1",
        f"metaprobe inspect {path}    # metrics, origin, inputs",
    ]
    lines = [f"adapted     {checkpoint.path}", *_verdict_lines(checkpoint.manifest), *_section("next", next_lines)]
    return "\n".join(printable(line) for line in lines)


def describe_verified(checkpoint: Checkpoint, *, pinned: bool) -> str:
    """Returns the lines of `metaprobe verify`: what loading has verified.

    `pinned` says whether the digest was compared with one that the caller gave.
    """
    manifest = checkpoint.manifest
    size = sum(entry.bytes for entry in manifest.files.values())
    lines = [
        f"whole       {manifest.kind} checkpoint {checkpoint.path}: every size and hash is as its manifest says",
        f"files       {', '.join(manifest.files)} ({size:,} bytes)",
        "manifest    every field is as its own digest says",
        "model       passed the guard; its inputs, outputs and golden rows are as recorded",
        f"digest      {checkpoint.digest}",
        "            as expected" if pinned else "            held against nothing: only --sha256 shows who made it",
        f"audits      {manifest.distrust or ('none failed' if manifest.audits else 'none made')}",
    ]
    return "\n".join(printable(line) for line in lines)


def _verdict_lines(manifest: Manifest) -> Iterator[str]:
    """Yields the lines that say whether a checkpoint's numbers can be trusted, and what it flags."""
    source_digest = manifest.contract.get("adapted_from")
    trust = (manifest.distrust or "no audit failed") if manifest.audits else "no audit was made"
    if not manifest.audits and isinstance(source_digest, str):
        trust = (
            f"adapted from checkpoint {source_digest[:12]}, which was audited for the order of one model's answers to "
            "one task; the metrics are of your labelled answers"
        )
    yield f"trust       {manifest.trust}: {trust}"
    gain = manifest.metrics.get(GAIN_OVER_BEFORE)
    if gain is not None and gain.high < 0:
        yield f"WORSE       than before it was recalibrated: gain in Brier score {gain.estimate:+.3f}"
        bounds = f"[{gain.low:+.3f}, {gain.high:+.3f}]"
        yield f"            {bounds} on {gain.n} held-out answers; keep the old one, or label more"
    for head, clause in manifest.chance.items():
        yield f"CHANCE      {head or 'the scores'}: {clause}"
        yield f"            {manifest.after_chance(head)}"
    nouns = label_nouns(manifest.contract)
    if flagging := flag_sentences(manifest, manifest.metrics, nouns):
        yield from _section("flagging", [*flagging, *flag_table(manifest, nouns)])


def _lines(manifest: Manifest) -> Iterator[str]:
    """Yields the lines that describe a checkpoint, from whether it can be trusted to the versions that made it."""
    yield from _verdict_lines(manifest)
    # Metrics and audits.
    metric_lines = [
        f"{name} {m.estimate:.3f} [{m.low:.3f}, {m.high:.3f}] n = {m.n}" for name, m in manifest.metrics.items()
    ]
    yield from _section("metrics", metric_lines, "held out")
    failed = sum(not audit.passed for audit in manifest.audits.values())
    audit_lines = [
        f"{'pass' if audit.passed else f'FAIL ({audit.severity})'}  {name}: {audit.detail}"
        for name, audit in manifest.audits.items()
    ]
    yield from _section("audits", audit_lines, f"{failed} FAILED" if failed else "all passed")
    # Origin, inputs and outputs.
    yield f"created     {manifest.created} (format {manifest.format_version})"
    if generator := manifest.generator:
        yield f"generator   {', '.join(generator.models)} {generator.revision} {generator.dtype}".rstrip()
        tokenizer = generator.tokenizer or "not stated"
        yield f"            tokenizer {tokenizer}, log-probabilities {generator.logprobs_mode}"
    else:
        yield "generator   any"
    yield from _section("inputs", [_tensor_text(spec) for spec in manifest.inputs])
    yield from _section("outputs", [_tensor_text(spec) for spec in manifest.outputs])
    # The contract and its thresholds.
    curve_lines = _curve(manifest.contract)
    shown_entries = {
        name: value for name, value in manifest.contract.items() if not curve_lines or name not in ("stops", "asks")
    }
    yield from _section("contract", [f"{name}: {_short_text(value)}" for name, value in shown_entries.items()])
    if curve_lines:
        yield from _section("asking", curve_lines, "on groups left out")
    yield from _section("thresholds", [f"{name} = {value:g}" for name, value in manifest.thresholds.items()])
    if "adapted_from" in manifest.contract and FLAG not in manifest.thresholds:
        yield f"            so many labels do not carry a threshold; {CARD} says what it takes"
    # Calibration, training data and versions.
    if calibration := manifest.calibration:
        yield f"calibration {calibration.method}, fitted on {calibration.fitted_on}"
    if training := manifest.training:
        yield f"training    {training.n} rows in {training.groups} groups, seed {training.seed}"
        for note in filter(None, (training.regrouped, training.ungrouped)):
            yield f"            {note}"
        yield f"            data {training.fingerprint}"
        yield f"            {training.command}"
    yield from _section("versions", [f"{name} {version}" for name, version in manifest.versions.items()])


def _curve(contract: Mapping[str, Any]) -> list[str]:
    """Returns lines about the value of asking more agents, from the curves of a panel or router; empty
    without curves.
    """
    rows: list[tuple[str, ...]]
    try:
        if stops := contract.get("stops"):
            head = ["mean answers", "expected accuracy", "way to stop", "at"]
            rows = [(f"{mean:.1f}", f"{right:.3f}", way, f"{limit:g}") for way, limit, mean, right in stops]
        else:
            head, ask_curves = ["US dollars for 1,000", "expected accuracy", "way to ask"], contract["asks"]
            rows = []
            for index, budget in enumerate(ask_curves["budgets"]):
                affordable = [
                    way for way, points in ask_curves["settings"].items() if points[0][3] <= budget * (1 + 1e-9)
                ]
                way = max(affordable, key=lambda name: ask_curves["accuracy"][name][index])
                rows.append((f"{budget:.4g}", f"{ask_curves['accuracy'][way][index]:.3f}", way))
        row_indices = sorted({round(step * (len(rows) - 1) / (MAX_POINTS - 1)) for step in range(MAX_POINTS)})
        return Table.of(head, [rows[index] for index in row_indices]).text()
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return []  # no curves, or curves that loading the panel will refuse


def _section(title: str, rows: list[str], remark: str = "") -> Iterator[str]:
    if not rows:
        yield f"{title:<11} none"
        return
    yield f"{title:<11} {remark}".rstrip()
    yield from (f"  {row}" for row in rows)


def _tensor_text(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.type} ({', '.join('any' if length is None else str(length) for length in spec.shape)})"


def _short_text(value: Any) -> str:
    if isinstance(value, list) and len(value) > 6:
        return f"{len(value)} values, {_short_text(value[:3])} ... {_short_text(value[-1:])}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def compare(a: Checkpoint, b: Checkpoint) -> dict[str, Any]:
    """Returns how two checkpoints differ, as JSON: `same`, what `a` and `b` are, and `differences`.

    A difference has the `field` in the manifest, with a dot before an entry (`metrics.auroc`, `files.model.onnx`), and
    the value of each side; a side without the entry is left out. `created` and the manifests' own digests are ignored.
    If the models are other bytes but read the same inputs, `outputs_on_golden_rows` comes last: the largest difference
    between the outputs of `b` and of `a` on the rows recorded with `a` (absolute up to 1, relative beyond).
    """
    sides = {"a": _fields(a.manifest), "b": _fields(b.manifest)}
    changes: list[dict[str, Any]] = []
    for field in sides["a"] | sides["b"]:
        values = {side: fields[field] for side, fields in sides.items() if field in fields}
        if field not in ("created", OWN_DIGEST_FIELD) and (len(values) < 2 or values["a"] != values["b"]):
            changes.append({"field": field, **values})
    if a.manifest.inputs == b.manifest.inputs and any(change["field"] == f"files.{MODEL}" for change in changes):
        with suppress(ContractMismatch):  # other outputs, which the manifests say
            size = difference_from_rows(a.files()[GOLDEN], b.session)[0].size
            changes.append({"field": "outputs_on_golden_rows", "a": 0.0, "b": size})
    side_descriptions = {
        side: {"path": str(c.path), "kind": c.manifest.kind, "digest": c.digest, "created": c.manifest.created}
        for side, c in (("a", a), ("b", b))
    }
    return {"same": not changes, **side_descriptions, "differences": changes}


def describe_differences(compared: Mapping[str, Any]) -> str:
    """Returns the result of `compare` in words: each field, then both sides. Control characters are escaped."""
    lines = ["{side} {path}  {kind}  {digest}  {created}".format(side=side, **compared[side]) for side in ("a", "b")]
    for difference in compared["differences"]:
        a, b = (difference.get(side) for side in ("a", "b"))
        are_lists = isinstance(a, list) and isinstance(b, list)
        side_texts = (
            (_list_text(a, b), _list_text(b, a))
            if are_lists
            else (_side_text(difference, "a"), _side_text(difference, "b"))
        )
        lines += [difference["field"], f"  a {side_texts[0]}", f"  b {side_texts[1]}"]
    if compared["same"]:
        digests = {compared[side]["digest"] for side in ("a", "b")}
        lines.append("the same" if len(digests) == 1 else "the same but for the time they were made")
    return "\n".join(printable(line) for line in lines)


def _fields(manifest: Manifest) -> dict[str, Any]:
    """Returns every field by its path, as JSON. Parts that belong together, such as a metric with its interval, stay
    together.
    """
    fields: dict[str, Any] = {}
    for name, value in json_value(manifest, MANIFEST).items():
        if isinstance(value, dict):
            fields |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            fields[name] = value
    return fields


def _list_text(values: list[Any], other_values: list[Any]) -> str:
    """Returns a list's length, and the values that the other list lacks."""
    other_json = {json.dumps(value) for value in other_values}
    only_here = [value for value in values if json.dumps(value) not in other_json]
    if only_here and all(isinstance(value, str) for value in only_here):
        values_text = ", ".join(only_here[:5]) + (", ..." if len(only_here) > 5 else "")
        return f"{len(values)} values, of them only here: {values_text}"
    return f"{len(values)} values, {len(only_here)} of them only here" if len(values) > 6 else json.dumps(values)


def _side_text(change: Mapping[str, Any], side: str) -> str:
    if side not in change:
        return "-"
    field, value = change["field"], change[side]
    if field.startswith("metrics."):
        metric = Metric(**value)
        return f"{metric.estimate:.4f} [{metric.low:.4f}, {metric.high:.4f}] n = {metric.n}"
    if field.startswith("audits."):
        value = f"{'pass' if value['passed'] else 'FAIL'}  {value['detail']}"
    return _short_text(value)
