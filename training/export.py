"""The last step of every training: an ONNX graph, and a checkpoint with contract, held-out metrics, audits and card.

A graph is written node by node. A value is represented by its name in the graph.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    Training,
    check_target,
    save_checkpoint,
)
from metaprobe.checkpoints.flagging import (
    FLAG,
    MIN_THRESHOLD_GROUPS,
    PROMISED_CONFIDENCE,
    flag_sentences,
    flag_table,
    intended_flags,
    label_nouns,
)
from metaprobe.checkpoints.manifest import meaning_of, printable
from metaprobe.checkpoints.rendered_table import Table
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.results import Finding
from metaprobe.records.extras import require
from metaprobe.routing.policy import GOOD

TREE_ENSEMBLE_OPSET = 15
"""Newest version of ONNX's operators that onnxmltools can convert to."""
OPSET = {"": TREE_ENSEMBLE_OPSET, "ai.onnx.ml": 1}
IR_VERSION = 8


class GraphBuilder:
    """Nodes and constants of a graph that is being written."""

    def __init__(self, prefix: str = "") -> None:
        """Starts an empty graph. Every name that it makes up begins with `prefix`."""
        self.onnx: Any = require("onnx", "fit")
        self.nodes: list[Any] = []
        self._prefix = prefix
        self._constants: dict[tuple[str, tuple[int, ...], bytes], tuple[str, NDArray[Any]]] = {}

    def name(self, kind: str) -> str:
        """Returns the name of the next value of that kind."""
        return f"{self._prefix}{kind}_{len(self.nodes)}"

    def add(self, kind: str, *inputs: str, name: str = "", more: int = 0, **attributes: Any) -> str:
        """Returns the name of a new node's first output: `name`, if it is given.

        `more`: number of further outputs. Their names are the first output's with _1, _2, ... appended.
        """
        name = name or self.name(kind)
        outputs = [name, *(f"{name}_{i + 1}" for i in range(more))]
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, outputs, **attributes))
        return name

    def constant(self, value: ArrayLike, dtype: Any = np.int64) -> str:
        """Returns the name of a constant. Equal constants are stored once."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
        name = f"{self._prefix}constant_{len(self._constants)}"
        return self._constants.setdefault(key, (name, array))[0]

    def number(self, value: ArrayLike) -> str:
        """Returns a constant in float32."""
        return self.constant(value, np.float32)

    def cast(self, value: str, dtype: Any) -> str:
        return self.add("Cast", value, to=self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def initializers(self) -> list[Any]:
        """Returns the constants as a graph holds them."""
        return [self.onnx.numpy_helper.from_array(array, name) for name, array in self._constants.values()]

    def model(self, inputs: Mapping[str, int | tuple[Any, int | None]], outputs: Sequence[str]) -> bytes:
        """Returns the whole model as bytes. Inputs have shape (n, width), outputs (n, 1) and type float32.

        Args:
            inputs: maps the name of an input to its width (then it is float32), or to type and width (None for any).
            outputs: names of the outputs.
        """
        helper, float_type = self.onnx.helper, self.onnx.TensorProto.FLOAT
        graph_inputs = []
        for name, width_or_type in inputs.items():
            dtype, width = width_or_type if isinstance(width_or_type, tuple) else (np.float32, width_or_type)
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            graph_inputs.append(helper.make_tensor_value_info(name, kind, [None, width]))
        graph_outputs = [helper.make_tensor_value_info(name, float_type, [None, 1]) for name in outputs]
        graph = helper.make_graph(self.nodes, "metaprobe", graph_inputs, graph_outputs, initializer=self.initializers())
        used_domains = {node.domain for node in self.nodes}
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(d, v) for d, v in OPSET.items() if d == "" or d in used_domains],
            producer_name="metaprobe",
            ir_version=IR_VERSION,
        )
        self.onnx.checker.check_model(model)
        data: bytes = model.SerializeToString()
        return data


# Thresholds that a checkpoint stores, with the promise of each; `training.thresholds` decides the values.

EVALUATED_POINT = "iterate"
"""Decision point of Monitor-Generate-Verify whose stated evaluations are matched."""
MIN_ANSWERS_PER_LABEL = 3
"""Fewest wrong, and fewest right, answers for measuring shares of them."""
MISS_RATE = 0.1
"""Largest share of critical answers that the threshold `critical` may miss."""
ERROR, CONFIDENCE = 0.1, PROMISED_CONFIDENCE
"""Promise of the accept threshold: of all trainings, at most the share 1 - CONFIDENCE store a threshold above which
more than the share ERROR of the answers is wrong.

Among only those trainings that store a threshold, the share of broken promises is higher. In simulations (AUROC 0.56 to
0.92, 30 % to 87 % right, 60 to 500 groups) it reached 0.17 if some threshold can keep the promise. If no threshold can,
every stored one breaks it; up to 2 % of such trainings store one, at 0.9 up to 6 %. No procedure avoids that.
"""
FALSE_ALARMS = 0.05
"""Largest share of the answers without a critical failure that `critical_sure` may flag."""
PROMISE_SENTENCES = {
    EVALUATED_POINT: (
        f" The threshold `{EVALUATED_POINT}` is reached as often as the stated evaluation reached {GOOD} in the "
        "training runs."
    ),
    "accept": (
        f" Of the answers of at least `accept`, no more than {ERROR:.0%} are wrong: of 100 trainings like this one, at "
        f"most {100 * (1 - CONFIDENCE):.0f} store an `accept` that breaks this (Learn then Test). That counts the "
        "trainings that store none. Where no threshold could keep it, the few that are stored all break it: check "
        "it on labels of your own where the score tells little."
    ),
    "critical": (
        f" A probability `critical` of at least the threshold `critical` have, in expectation, at least "
        f"{1 - MISS_RATE:.0%} of the critical failures (conformal risk control)."
    ),
    "critical_sure": (
        f" One of at least `critical_sure` have, in expectation, at most {FALSE_ALARMS:.0%} of the answers without a "
        "critical failure (likewise)."
    ),
}
OF_ALL_RUNS = (
    " It is one threshold for the answers of all these runs together: of a run that is right less often more are "
    "flagged, for each score holds its run's base rate. Of a run that is right more often fewer of the wrong ones are "
    "caught; a checkpoint of this run alone does not have this."
)


@dataclass(frozen=True, slots=True, eq=False)
class StoredFlags:
    """Thresholds, curve and promises that a checkpoint stores for flagging by its score."""

    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Maps `flag` and `accept` to their thresholds; a threshold that could not be set is left out."""
    flagging: tuple[FlagPoint, ...] = ()
    promises: tuple[Promise, ...] = ()
    operating: OperatingPoint | None = None
    lacking: str = ""
    """End of a sentence: which thresholds are not stored, why, and how many labels they need; empty if no threshold is
    lacking.
    """


NO_FLAGS = StoredFlags()


class _Writes(Protocol):
    @property
    def out(self) -> str | Path: ...
    def replacing(self) -> AbstractContextManager[None]: ...


Data = TypeVar("Data")
WritingOptions = TypeVar("WritingOptions", bound=_Writes)
Result = TypeVar("Result")


def writes(
    kind: str, *packages: str
) -> Callable[[Callable[[Data, WritingOptions], Result]], Callable[[Data, WritingOptions], Result]]:
    """Returns a decorator for trainings that checks before any fitting whether the checkpoint may be written.

    During the training only the replacements that the options allow are possible. `MissingExtra` is raised before
    anything is read if a package is not installed.

    Args:
        kind: kind of the checkpoint that is written to `options.out`.
        *packages: packages of the extra `fit` that the training needs.
    """

    def decorate(training: Callable[[Data, WritingOptions], Result]) -> Callable[[Data, WritingOptions], Result]:
        @wraps(training)
        def guarded(data: Data, options: WritingOptions) -> Result:
            for package in packages:
                require(package, "fit")
            with options.replacing():
                check_target(options.out, kind)
                return training(data, options)

        return guarded

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A fitted model on its way into a checkpoint."""

    kind: str
    title: str
    summary: str
    """One paragraph for the card: inputs and outputs. The meaning of the thresholds is added to it."""
    graph: bytes
    inputs: Mapping[str, NDArray[Any]]
    """Maps the name of an input to training inputs (n, d). The first rows become golden rows."""
    expected: Mapping[str, NDArray[np.floating]]
    """Maps the name of an output to the fitted model's outputs for these inputs, (n,) or (n, 1)."""
    tolerance: float = 1e-5
    """Largest difference between the graph and the fitted model."""
    contract: Mapping[str, Any]
    generator: Generator | None
    training: Training
    calibration: str
    calibrated_on: str = "calibration rows, by group; never the held-out ones"
    metrics: Mapping[str, Interval]
    measured: str = "From outer folds by group with the same recipe; the exported model was then fitted on all groups."
    """A sentence that says how the metrics were measured."""
    audits: Sequence[Finding | tuple[str, bool, str]] = ()
    """Findings of the audits. A tuple (name, passed, detail) stands for a finding of weak severity."""
    not_audited: Sequence[str] = ()
    """Audits that could not be made, and why."""
    stored: StoredFlags = NO_FLAGS
    """Thresholds, curve and promises of flagging by the score."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Further thresholds by name."""
    runs: int = 1
    """Number of runs whose answers the thresholds were set on together."""
    packages: Sequence[str] = ("scikit-learn",)
    extra: Mapping[str, bytes] = field(default_factory=dict)
    """Further files of the checkpoint, by name."""
    logprobs_reader: str = ""
    """Model that gave the log-probabilities (`NAME@REVISION`); empty if it is the model that answered."""
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


def write_checkpoint(path: str | Path, export: Export) -> Checkpoint:
    """Checks the graph against the fitted model, then writes the folder. Raises as `save_checkpoint`."""
    return save_checkpoint(
        path,
        export.draft,
        model=export.graph,
        golden_inputs=dict(export.inputs),
        expected={name: values.reshape(-1, 1).astype(np.float32) for name, values in export.expected.items()},
        card=model_card(export),
        extra=export.extra,
        tolerance=export.tolerance,
    )


def model_card(export: Export) -> str:
    """Returns the README.md of a checkpoint.

    The card begins with the meaning of failed audits, and with a warning if the numbers cannot be believed.
    """
    draft, generator, training = export.draft, export.generator, export.training
    nouns = label_nouns(draft.contract)
    flagging, table = flag_sentences(draft, draft.metrics, nouns), flag_table(draft, nouns)
    # Meanings of stored and other thresholds.
    summary, stored_flags = export.summary, export.stored
    if stored_flags.operating is not None:
        summary += f" The threshold `{FLAG}` flags {intended_flags(stored_flags.operating)}."
        if stored_flags.operating.option == "expected":
            summary += (
                f" It is stored from {MIN_THRESHOLD_GROUPS} groups of labelled answers on, with "
                f"{MIN_ANSWERS_PER_LABEL} wrong and "
                f"{MIN_ANSWERS_PER_LABEL} right ones: the share of wrong answers is then known to within 22 "
                "points, and the "
                "intervals say how well what is flagged is known here."
            )
        summary += OF_ALL_RUNS if export.runs > 1 else ""
    summary += "".join(
        PROMISE_SENTENCES[name] for name in (*stored_flags.thresholds, *export.thresholds) if name in PROMISE_SENTENCES
    )
    # Warnings: failed audits, and scores that may be chance.
    lines = []
    if draft.failed:
        meaning, severities = meaning_of(draft.failed), draft.failed.values()
        if "invalid" in severities:
            lines += [f"> **NOT TRUSTWORTHY: {meaning}.** See the audits below.", ""]
        else:
            lines += [f"> {'Weak' if 'weak' in severities else 'Unaudited'}: {meaning}.", ""]
    for head, clause in draft.chance.items():
        of_head = f" of {_escape_markup(head)}" if head else ""
        lines += [f"> The scores{of_head} are {clause}; {draft.after_chance(head)}.", ""]
    # Title, flagging, contract and heads.
    lines += [
        f"# {export.title}",
        "",
        summary,
        "",
        # Flagging comes before all else, the stored threshold first.
        *(["## Flagging", "", *flagging, "", *([*table, ""] if table else [])] if flagging else []),
        "## Contract",
        "",
        f"- answers of: {_escape_markup(models_in_words(generator))}",
        "- log-probabilities: "
        f"{generator.logprobs_mode if generator else 'unknown'}{_escape_markup(read_by(export.logprobs_reader))}",
        *(f"- {line}" for line in export.reads),
        f"- trained on {training.n} answers in {training.groups} groups",
        *(f"- {note}" for note in (training.regrouped, training.ungrouped) if note),
        f"- training data: {training.fingerprint}",
        f"- made by `{training.command}`, seed {training.seed}",
        "",
        *(["## Heads", "", *(f"- {head}" for head in export.heads), ""] if export.heads else []),
        "## Held-out metrics",
        "",
    ]
    # Metrics, thresholds and audits.
    if any("_without_" in name for name in export.metrics):
        lines.append(
            "Figures `without` a task or dimension are of its answers, by the same recipe fitted on all others."
        )
    if export.metrics:
        rows = []
        for name, m in export.metrics.items():
            # Names of domains come from outside, so they must not end a cell, or become a tag or a link.
            cell = "".join(c if c.isprintable() and c not in "|`<>[]" else "_" for c in name)
            rows.append((cell, f"{m.estimate:.3f}", f"{m.low:.3f} to {m.high:.3f}", m.n))
        lines += [export.measured, "Intervals are of 95 %, by a bootstrap over groups.", ""]
        lines += Table.of(("metric", "estimate", "interval", "n"), rows).markdown()
    else:
        lines.append("None was measured.")
    if draft.thresholds:
        lines += ["", "## Thresholds", "", *(f"- {name}: {value:.4f}" for name, value in draft.thresholds.items())]
    if draft.audits or export.not_audited:
        lines += ["", "## Audits", ""]
        lines += [
            f"- {'passed' if a.passed else f'**FAILED ({a.severity})**'}: {a.name}: {a.detail}" for a in export.findings
        ]
        lines += [f"- not made: {audit}" for audit in export.not_audited]
    # A name from outside that holds a line end would otherwise write lines of its own.
    return "\n".join(map(printable, lines)) + "\n"


def _escape_markup(name: str) -> str:
    """Returns a name from outside with its markup escaped, so that the card shows no tag, link or code."""
    return re.sub(r"(?=[<\[\]`])", r"\\", name)


def models_in_words(generator: Generator | None) -> str:
    """Returns the models a checkpoint was trained on, in words."""
    if generator is None:
        return "models that are not named"
    return ", ".join(generator.models) + (f" ({generator.revision})" if generator.revision else "")


def named_reader(reader: str) -> dict[str, dict[str, str]]:
    """Returns the contract's entry for the model that read the answers.

    `reader` is NAME@REVISION. It is empty if the answering model itself was read, and then the entry is empty too.
    """
    if not reader:
        return {}
    name, _, revision = reader.rpartition("@")
    return {"reader": {"model": name or revision, "revision": revision if name else ""}}


def read_by(reader: str) -> str:
    """Returns the card's clause about the model that gave the log-probabilities; empty for the answering model."""
    return f", of {reader}, which read what the others said" if reader else ""
