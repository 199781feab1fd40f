"""What every training writes: a checkpoint with its contract, held-out metrics, audits and card."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import (
    Audit,
    Calibration,
    Checkpoint,
    Draft,
    FlagPoint,
    Generator,
    Metric,
    OperatingPoint,
    Promise,
    Severity,
    Training,
    save_checkpoint,
)
from metaprobe.checkpoints.flagging import flag_sentences, flag_table
from metaprobe.checkpoints.manifest import meaning_of, printable
from metaprobe.eval.method_results import Finding as Finding
from metaprobe.eval.metrics.bootstrap import Interval

ELSEWHERE = "Figures `without` a task or dimension are of its answers, by the same recipe fitted on all others."
FIGURES = (
    "From outer folds by group with the same recipe; the exported model was then fitted on all groups.",
    "Intervals are of 95 %, by a bootstrap over groups.",
    "",
    "| metric | estimate | interval | n |",
    "|---|---|---|---|",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A fitted model on its way into a checkpoint."""

    kind: str
    title: str
    summary: str
    """One paragraph for the card: what goes in, what comes out."""
    graph: bytes
    input_name: str
    inputs: NDArray[np.float32]
    """Training inputs (n, d): the first rows become golden rows."""
    expected: Mapping[str, NDArray[np.float64]]
    """What the fitted model gives for them, output name -> (n,)."""
    contract: Mapping[str, Any]
    generator: Generator | None
    training: Training
    calibration: str
    calibrated_on: str = "calibration rows, by group; never the held-out ones"
    metrics: Mapping[str, Interval]
    audits: Sequence[Finding | tuple[str, bool, str]] = ()
    """A tuple stands for a finding of weak severity."""
    not_audited: Sequence[str] = ()
    """Audits that could not be made, and why."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    flagging: tuple[FlagPoint, ...] = ()
    """The curve of flag rates."""
    promises: tuple[Promise, ...] = ()
    """Thresholds for `catch` and `risk`."""
    operating: OperatingPoint | None = None
    """What the threshold `flag` does on held-out answers."""
    packages: Sequence[str] = ("scikit-learn",)
    extra: Mapping[str, bytes] = field(default_factory=dict)
    """Further files of the checkpoint, by name."""
    logprobs_reader: str = ""
    """`NAME@REVISION` of the model that gave the log-probabilities, where it is another than the one that answered."""
    heads: Sequence[str] = ()
    """A line for the card about each head: its kind, scale and answers."""

    @property
    def findings(self) -> list[Finding]:
        return [Finding(*audit) if isinstance(audit, tuple) else audit for audit in self.audits]


def write_checkpoint(path: str | Path, export: Export, *, overwrite: bool = False) -> Checkpoint:
    """Checks the graph against the fitted model (difference at most 1e-5), then writes the folder.

    Raises as `save_checkpoint`.
    """
    metrics = metrics_of(export.metrics)
    draft = Draft(
        kind=export.kind,
        contract={**export.contract, **named_reader(export.logprobs_reader)},
        generator=export.generator,
        thresholds=dict(export.thresholds),
        flagging=export.flagging,
        promises=export.promises,
        operating=export.operating,
        calibration=Calibration(export.calibration, export.calibrated_on),
        metrics=metrics,
        training=export.training,
        audits={a.name: Audit(a.passed, a.detail, a.severity) for a in export.findings},
        versions={package: version(package) for package in export.packages},
    )
    return save_checkpoint(
        path,
        draft,
        model=export.graph,
        golden_inputs={export.input_name: export.inputs},
        expected={name: values[:, None].astype(np.float32) for name, values in export.expected.items()},
        card=model_card(export),
        extra=export.extra,
        overwrite=overwrite,
    )


def metrics_of(figures: Mapping[str, Interval]) -> dict[str, Metric]:
    """Returns the numbers as a manifest holds them."""
    return {name: Metric(estimate=m.estimate, low=m.low, high=m.high, n=m.n) for name, m in figures.items()}


def answers_of(generator: Generator | None) -> str:
    """The models a checkpoint was trained on, in words."""
    if generator is None:
        return "models that are not named"
    return ", ".join(generator.models) + (f" ({generator.revision})" if generator.revision else "")


def named_reader(reader: str) -> dict[str, dict[str, str]]:
    """What a contract says of the model that read, `NAME@REVISION`; nothing where it is the one that answered."""
    if not reader:
        return {}
    name, _, revision = reader.rpartition("@")
    return {"reader": {"model": name or revision, "revision": revision if name else ""}}


def read_by(reader: str) -> str:
    """What a card adds where another model than the answering one gave the log-probabilities; else nothing."""
    return f", of {reader}, which read what the others said" if reader else ""


def _cell(name: str) -> str:
    """A figure's name in a table: those of domains come from outside."""
    return "".join(c if c.isprintable() and c not in "|`<>[]" else "_" for c in name)


def _words(name: str) -> str:
    """A name from elsewhere that stays words where the card is shown: no tag, link or code."""
    return re.sub(r"(?=[<\[\]`])", r"\\", name)


def trust_lines(failed: Mapping[str, Severity]) -> list[str]:
    """The first lines of a card: what the failed audits mean, loudly where numbers cannot be believed; none if none."""
    if not failed:
        return []
    meaning = meaning_of(failed)
    loud = "invalid" in failed.values()
    return [f"> **NOT TRUSTWORTHY: {meaning}.** See the audits below." if loud else f"> Weak: {meaning}.", ""]


def _flagging_lines(export: Export) -> list[str]:
    """What is flagged stands before all else, the stored threshold first."""
    said, table = flag_sentences(export, metrics_of(export.metrics)), flag_table(export)
    return ["## Flagging", "", *said, "", *([*table, ""] if table else [])] if said else []


def model_card(export: Export) -> str:
    """The README.md of a checkpoint. What its failed audits mean is its first line."""
    generator, findings = export.generator, export.findings
    lines = [
        *trust_lines({a.name: a.severity for a in findings if not a.passed}),
        f"# {export.title}",
        "",
        export.summary,
        "",
        *_flagging_lines(export),
        "## Contract",
        "",
        f"- answers of: {_words(answers_of(generator))}",
        "- log-probabilities: "
        f"{generator.logprobs_mode if generator else 'unknown'}{_words(read_by(export.logprobs_reader))}",
        f"- trained on {export.training.n} answers in {export.training.groups} groups",
        *([f"- {export.training.regrouped}"] if export.training.regrouped else []),
        f"- training data: {export.training.fingerprint}",
        f"- made by `{export.training.command}`, seed {export.training.seed}",
        "",
        *(["## Heads", "", *(f"- {head}" for head in export.heads), ""] if export.heads else []),
        "## Held-out metrics",
        "",
        *([ELSEWHERE] if any("_without_" in name for name in export.metrics) else []),
        *(FIGURES if export.metrics else ["None was measured."]),
        *(
            f"| {_cell(name)} | {m.estimate:.3f} | {m.low:.3f} to {m.high:.3f} | {m.n} |"
            for name, m in export.metrics.items()
        ),
    ]
    if export.thresholds:
        lines += ["", "## Thresholds", "", *(f"- {name}: {value:.4f}" for name, value in export.thresholds.items())]
    if findings or export.not_audited:
        lines += ["", "## Audits", ""]
        lines += [f"- {'passed' if a.passed else f'**FAILED ({a.severity})**'}: {a.name}: {a.detail}" for a in findings]
        lines += [f"- not made: {audit}" for audit in export.not_audited]
    # A name from elsewhere that holds a line's end would else write lines of its own.
    return "\n".join(map(printable, lines)) + "\n"
