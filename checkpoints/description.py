"""A checkpoint in words, for `metaprobe inspect` and `metaprobe verify`."""

import json
from collections.abc import Iterator
from typing import Any

from metaprobe.checkpoints.checkpoint import Checkpoint
from metaprobe.checkpoints.flagging import FLAG, flag_sentences, flag_table
from metaprobe.checkpoints.manifest import CARD, RAW, Manifest, TensorSpec, printable

MAX_VALUE = 100
"""Characters shown of a value of the contract."""


def describe(checkpoint: Checkpoint) -> str:
    """Returns a summary of some dozens of lines, failed audits first. Control characters are spelled out."""
    manifest = checkpoint.manifest
    lines = [f"NOT TRUSTWORTHY: {manifest.distrust}", ""] if manifest.trust == "invalid" else []
    lines += [f"{manifest.kind} checkpoint {checkpoint.path}", f"digest      {checkpoint.digest}"]
    lines += _lines(manifest)
    return "\n".join(printable(line) for line in lines)


def describe_verified(checkpoint: Checkpoint, *, pinned: bool) -> str:
    """Returns the lines of `metaprobe verify`: what loading verified, and raw.onnx, which is opened and replayed here.

    `pinned`: whether the digest was compared with one that the caller gave.

    Raises as `Checkpoint.raw_session`.
    """
    manifest = checkpoint.manifest
    raw = []
    if RAW in manifest.files:
        checkpoint.raw_session()
        raw = [f"{RAW:<11} passed the guard; its outputs and golden rows are as recorded"]
    size = sum(entry.bytes for entry in manifest.files.values())
    lines = [
        f"whole       {manifest.kind} checkpoint {checkpoint.path}: every size and hash is as its manifest says",
        f"files       {', '.join(manifest.files)} ({size:,} bytes)",
        "manifest    every field is as its own digest says",
        "model       passed the guard; its inputs, outputs and golden rows are as recorded",
        *raw,
        f"digest      {checkpoint.digest}",
        "            as expected" if pinned else "            held against nothing: only --sha256 shows who made it",
        f"audits      {manifest.distrust or ('none failed' if manifest.audits else 'none made')}",
    ]
    return "\n".join(printable(line) for line in lines)


def _lines(manifest: Manifest) -> Iterator[str]:
    yield f"trust       {manifest.trust}: {_said_of_trust(manifest)}"
    yield from _worth(manifest)
    yield f"created     {manifest.created} (format {manifest.format_version})"
    if generator := manifest.generator:
        yield f"generator   {', '.join(generator.models)} {generator.revision} {generator.dtype}".rstrip()
        tokenizer = generator.tokenizer or "not stated"
        yield f"            tokenizer {tokenizer}, log-probabilities {generator.logprobs_mode}"
    else:
        yield "generator   any"
    yield from _section("inputs", [_tensor(spec) for spec in manifest.inputs])
    yield from _section("outputs", [_tensor(spec) for spec in manifest.outputs])
    yield from _section("contract", [f"{name}: {_short(value)}" for name, value in manifest.contract.items()])
    yield from _section("thresholds", [f"{name} = {value:g}" for name, value in manifest.thresholds.items()])
    if "adapted_from" in manifest.contract and FLAG not in manifest.thresholds:
        yield f"            so many labels do not carry a threshold; {CARD} says what it takes"
    if calibration := manifest.calibration:
        yield f"calibration {calibration.method}, fitted on {calibration.fitted_on}"
    if training := manifest.training:
        yield f"training    {training.n} rows in {training.groups} groups, seed {training.seed}"
        if training.regrouped:
            yield f"            {training.regrouped}"
        yield f"            data {training.fingerprint}"
        yield f"            {training.command}"
    yield from _section("versions", [f"{name} {version}" for name, version in manifest.versions.items()])


def _said_of_trust(manifest: Manifest) -> str:
    if manifest.audits:
        return manifest.distrust or "no audit failed"
    before = manifest.contract.get("adapted_from")
    if not isinstance(before, str):
        return "no audit was made"
    return (
        f"adapted from checkpoint {before[:12]}, whose audits hold for the order of the answers within a run; the "
        "metrics are of the labelled answers"
    )


def _worth(manifest: Manifest) -> Iterator[str]:
    """What is known of how good it is: what flagging catches, held-out metrics, audits."""
    if flagging := flag_sentences(manifest, manifest.metrics):
        yield from _section("flagging", [*flagging, *flag_table(manifest)])
    yield from _section(
        "metrics",
        [f"{name} {m.estimate:.3f} [{m.low:.3f}, {m.high:.3f}] n = {m.n}" for name, m in manifest.metrics.items()],
        "held out",
    )
    failed = sum(not audit.passed for audit in manifest.audits.values())
    yield from _section(
        "audits",
        [
            f"{'pass' if audit.passed else f'FAIL ({audit.severity})'}  {name}: {audit.detail}"
            for name, audit in manifest.audits.items()
        ],
        f"{failed} FAILED" if failed else "all passed",
    )


def _section(title: str, rows: list[str], remark: str = "") -> Iterator[str]:
    if not rows:
        yield f"{title:<11} none"
        return
    yield f"{title:<11} {remark}".rstrip()
    yield from (f"  {row}" for row in rows)


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.type} ({', '.join('any' if length is None else str(length) for length in spec.shape)})"


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 6:
        return f"{len(value)} values, {_short(value[:3])} ... {_short(value[-1:])}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..."
