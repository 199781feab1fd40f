"""The last step of every training: a checkpoint with its contract, held-out metrics, audits and card, where it may."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import (
    Audit,
    Calibration,
    Checkpoint,
    CheckpointExists,
    Draft,
    Generator,
    Metric,
    Severity,
    Training,
    check_target,
    save_checkpoint,
)
from metaprobe.checkpoints.flagging import flag_sentences, flag_table
from metaprobe.checkpoints.manifest import meaning_of, printable
from metaprobe.checkpoints.save import InService, Replacing, pinned_in, replacing
from metaprobe.checkpoints.table import Table
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.results import Finding
from metaprobe.records.errors import MissingExtra, RecordError
from metaprobe.records.extras import require
from metaprobe.training.thresholds import NO_FLAGS, StoredFlags, meaning_of_thresholds

LOG = "METAPROBE_LOG"
"""Environment variable with the score log, as the middleware of an engine reads it."""


def replacing_of(replace: bool, pins: str | Path | None, log: str | None) -> AbstractContextManager[None]:
    """Returns a context in which every writer replaces only what these say, as `options.ReplaceOptions` has them."""
    known: list[InService] = [] if pins is None else [pinned_in(Path(pins))]
    if named := log or os.environ.get(LOG, "").strip():
        known.append(scored_in(named))
    return replacing(Replacing(replace, tuple(known)))


def scored_in(where: str) -> InService:
    """Returns what says whether a checkpoint has scored answers of the log.

    Raises `CheckpointExists` when it is asked and the log cannot be read: what has scored is then not known.
    """

    def known(digest: str) -> str:
        file = Path(where.removeprefix("sqlite:///"))
        try:
            if "://" not in where.removeprefix("sqlite:///") and not file.is_file():
                raise RecordError(f"there is no file {file}")
            from metaprobe.monitoring.log import ScoreLog  # not above: a training without a log needs no database

            with ScoreLog.open(where, entries=False) as log:
                scored = log.has_scored(digest)
        except (RecordError, MissingExtra, OSError) as error:
            raise CheckpointExists(
                f"the score log {where} cannot be read ({error}), so that it is not known which checkpoints have "
                "scored its answers: name the log of `metaprobe serve --log`"
            ) from error
        return f"which has scored answers of the log {where}" if scored else ""

    return known


class _Writes(Protocol):
    @property
    def out(self) -> str | Path: ...
    def replacing(self) -> AbstractContextManager[None]: ...


Data = TypeVar("Data")
Options = TypeVar("Options", bound=_Writes)
Result = TypeVar("Result")


def writes(
    kind: str, *packages: str
) -> Callable[[Callable[[Data, Options], Result]], Callable[[Data, Options], Result]]:
    """Returns a decorator for trainings: before minutes of fitting it looks whether a checkpoint of the kind may be
    written to `options.out`, and it holds the training to what the options allow to replace.

    `packages`: those of the extra `fit` without which it raises `MissingExtra` before anything is read.
    """

    def decorate(training: Callable[[Data, Options], Result]) -> Callable[[Data, Options], Result]:
        @wraps(training)
        def held(data: Data, options: Options) -> Result:
            for package in packages:
                require(package, "fit")
            with options.replacing():
                check_target(options.out, kind)
                return training(data, options)

        return held

    return decorate


ELSEWHERE = "Figures `without` a task or dimension are of its answers, by the same recipe fitted on all others."
OUTER_FOLDS = "From outer folds by group with the same recipe; the exported model was then fitted on all groups."
FIGURES = ("metric", "estimate", "interval", "n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A fitted model on its way into a checkpoint."""

    kind: str
    title: str
    summary: str
    """One paragraph for the card: what goes in, what comes out. What the thresholds mean is added to it."""
    graph: bytes
    input_name: str = ""
    inputs: NDArray[np.float32] | Mapping[str, NDArray[Any]]
    """Training inputs (n, d) of `input_name`, or several inputs by name: the first rows become golden rows."""
    expected: Mapping[str, NDArray[np.floating]]
    """Outputs of the fitted model for these inputs, output name -> (n,) or (n, 1)."""
    tolerance: float = 1e-5
    """Largest difference between the graph and the fitted model."""
    contract: Mapping[str, Any]
    generator: Generator | None
    training: Training
    calibration: str
    calibrated_on: str = "calibration rows, by group; never the held-out ones"
    metrics: Mapping[str, Interval]
    measured: str = OUTER_FOLDS
    """A sentence about the origin of the metrics."""
    audits: Sequence[Finding | tuple[str, bool, str]] = ()
    """A tuple stands for a finding of weak severity."""
    not_audited: Sequence[str] = ()
    """Audits that could not be made, and why."""
    stored: StoredFlags = NO_FLAGS
    """Thresholds, curve and promises of flagging by the score."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Further thresholds."""
    runs: int = 1
    """Runs for whose answers together the thresholds are."""
    packages: Sequence[str] = ("scikit-learn",)
    extra: Mapping[str, bytes] = field(default_factory=dict)
    """Further files of the checkpoint, by name."""
    logprobs_reader: str = ""
    """`NAME@REVISION` of the model that gave the log-probabilities, where it is another than the one that answered."""
    reads: Sequence[str] = ()
    """Further lines of the card's contract."""
    heads: Sequence[str] = ()
    """A line for the card about each head: its kind, scale and answers."""

    @property
    def findings(self) -> list[Finding]:
        return [Finding(*audit) if isinstance(audit, tuple) else audit for audit in self.audits]

    @property
    def draft(self) -> Draft:
        """The manifest's entries, except those about the graph."""
        return Draft(
            kind=self.kind,
            contract={**self.contract, **named_reader(self.logprobs_reader)},
            generator=self.generator,
            thresholds={**self.stored.thresholds, **self.thresholds},
            flagging=self.stored.flagging,
            promises=self.stored.promises,
            operating=self.stored.operating,
            calibration=Calibration(self.calibration, self.calibrated_on),
            metrics={k: Metric(estimate=m.estimate, low=m.low, high=m.high, n=m.n) for k, m in self.metrics.items()},
            training=self.training,
            audits={a.name: Audit(a.passed, a.detail, a.severity) for a in self.findings},
            versions={package: version(package) for package in self.packages},
        )


def write_checkpoint(path: str | Path, export: Export, *, overwrite: bool = False) -> Checkpoint:
    """Checks the graph against the fitted model, then writes the folder. Raises as `save_checkpoint`."""
    inputs = dict(export.inputs) if isinstance(export.inputs, Mapping) else {export.input_name: export.inputs}
    return save_checkpoint(
        path,
        export.draft,
        model=export.graph,
        golden_inputs=inputs,
        expected={name: values.reshape(-1, 1).astype(np.float32) for name, values in export.expected.items()},
        card=model_card(export),
        extra=export.extra,
        tolerance=export.tolerance,
        overwrite=overwrite,
    )


def model_card(export: Export) -> str:
    """Returns the README.md of a checkpoint. Its first line is what its failed audits mean."""
    draft, generator, training = export.draft, export.generator, export.training
    flagging, table = flag_sentences(draft, draft.metrics), flag_table(draft)
    lines = [
        *trust_lines(draft.failed),
        *(
            line
            for head, clause in draft.chance.items()
            for line in (f"> {_of(head)}{clause}; {draft.after_chance(head)}.", "")
        ),
        f"# {export.title}",
        "",
        export.summary + meaning_of_thresholds(export.stored, export.thresholds, runs=export.runs),
        "",
        # Flagging comes before all else, the stored threshold first.
        *(["## Flagging", "", *flagging, "", *([*table, ""] if table else [])] if flagging else []),
        "## Contract",
        "",
        f"- answers of: {_words(answers_of(generator))}",
        "- log-probabilities: "
        f"{generator.logprobs_mode if generator else 'unknown'}{_words(read_by(export.logprobs_reader))}",
        *(f"- {line}" for line in export.reads),
        f"- trained on {training.n} answers in {training.groups} groups",
        *([f"- {training.regrouped}"] if training.regrouped else []),
        f"- training data: {training.fingerprint}",
        f"- made by `{training.command}`, seed {training.seed}",
        "",
        *(["## Heads", "", *(f"- {head}" for head in export.heads), ""] if export.heads else []),
        "## Held-out metrics",
        "",
        *([ELSEWHERE] if any("_without_" in name for name in export.metrics) else []),
        *(
            [export.measured, "Intervals are of 95 %, by a bootstrap over groups.", "", *metric_rows(export.metrics)]
            if export.metrics
            else ["None was measured."]
        ),
    ]
    if draft.thresholds:
        lines += ["", "## Thresholds", "", *(f"- {name}: {value:.4f}" for name, value in draft.thresholds.items())]
    if draft.audits or export.not_audited:
        lines += ["", "## Audits", ""]
        lines += [
            f"- {'passed' if a.passed else f'**FAILED ({a.severity})**'}: {a.name}: {a.detail}" for a in export.findings
        ]
        lines += [f"- not made: {audit}" for audit in export.not_audited]
    # A name from elsewhere that holds a line's end would else write lines of its own.
    return "\n".join(map(printable, lines)) + "\n"


def trust_lines(failed: Mapping[str, Severity]) -> list[str]:
    """Returns the first lines of a card: what the failed audits mean, loudly where numbers cannot be believed."""
    if not failed:
        return []
    meaning = meaning_of(failed)
    if "invalid" in failed.values():
        return [f"> **NOT TRUSTWORTHY: {meaning}.** See the audits below.", ""]
    return [f"> {'Weak' if 'weak' in failed.values() else 'Unaudited'}: {meaning}.", ""]


def _of(head: str) -> str:
    return f"The scores{f' of {_words(head)}' if head else ''} are "


def _words(name: str) -> str:
    """Returns a name from elsewhere that stays words where the card is shown: no tag, link or code."""
    return re.sub(r"(?=[<\[\]`])", r"\\", name)


def _cell(name: str) -> str:
    """Returns a figure's name for a table: those of domains come from outside."""
    return "".join(c if c.isprintable() and c not in "|`<>[]" else "_" for c in name)


def metric_rows(metrics: Mapping[str, Interval]) -> list[str]:
    """Returns the lines of a Markdown table of held-out metrics."""
    rows = [(_cell(name), f"{m.estimate:.3f}", f"{m.low:.3f} to {m.high:.3f}", m.n) for name, m in metrics.items()]
    return Table.of(FIGURES, rows).markdown()


def answers_of(generator: Generator | None) -> str:
    """The models a checkpoint was trained on, in words."""
    if generator is None:
        return "models that are not named"
    return ", ".join(generator.models) + (f" ({generator.revision})" if generator.revision else "")


def named_reader(reader: str) -> dict[str, dict[str, str]]:
    """Returns the contract's entry for the reading model, `NAME@REVISION`; none where it is the answering model."""
    if not reader:
        return {}
    name, _, revision = reader.rpartition("@")
    return {"reader": {"model": name or revision, "revision": revision if name else ""}}


def read_by(reader: str) -> str:
    """Returns a card's clause where another model than the answering one gave the log-probabilities, else nothing."""
    return f", of {reader}, which read what the others said" if reader else ""
