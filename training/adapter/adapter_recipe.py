"""The recipe of the adapter probe: it is fitted, calibrated, exported and measured on disjoint parts of the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint
from metaprobe.checkpoints.checkpoint import MAX_TOLERANCE, ROUNDED_TOLERANCE, GraphSession
from metaprobe.eval.audits import AuditInputs, AuditReport, run_audits
from metaprobe.eval.audits_of_data import class_balance, group_overlap, label_noise, near_duplicates, repeated_questions
from metaprobe.eval.compare import Judged, auroc_gain
from metaprobe.eval.controls import FITTED, PROMPT, free_controls
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.llms.base import LLMError
from metaprobe.llms.weights import resolve
from metaprobe.probes.adapter import (
    ADAPTER,
    LAYOUT,
    SAMPLE,
    TOKENIZER,
    Encoder,
    JudgementTime,
    padded_batches,
)
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.adapter.decoder_graph import adapter_graph, quantise
from metaprobe.training.adapter.examples import Examples, adapter_roles, choose_depth, cut_layers, examples
from metaprobe.training.adapter.fit_lora import FittedAdapter, fit_adapter, scored_log_odds
from metaprobe.training.adapter.scorer import AdapterSettings
from metaprobe.training.adapter.unfinished import check_work, remove_state
from metaprobe.training.calibrators import Platt, fit_platt
from metaprobe.training.evidence import Scores
from metaprobe.training.export import Export, write_checkpoint, writes
from metaprobe.training.folds import Roles, Rows
from metaprobe.training.methods import control_methods
from metaprobe.training.study import figures_of
from metaprobe.training.text_data import TextData, load_texts
from metaprobe.training.training_options import AdapterOptions, question_texts

ADAPTER_PARITY = 1e-3
"""Largest difference in probability between the trained model and its float32 graph, on the test rows."""
MAX_AUROC_LOSS = 0.01
"""Most AUROC that rounding to int8 may lose on the calibration rows, by the lower end of the interval. With a larger
loss, float32 is kept.
"""
SMOOTHING_ROWS = 16
"""Number of train rows on which the scales of the states are measured. The scales are evened out before states are
rounded.
"""
GOLDEN_ROWS = 4
"""Number of texts that are replayed when the checkpoint is loaded."""
GOLDEN_TOLERANCE = {"float32": MAX_TOLERANCE, "int8": ROUNDED_TOLERANCE}
SUMMARY = """Probability that an answer is {target}, read by a language model ({base}) with LoRA of rank {rank}
merged in, a confidence head and Platt scaling. Text in, number out:

```python
from metaprobe.probes.adapter import AdapterProbe

AdapterProbe.load("PATH").probability(["last user message"], ["answer"])
```"""
MEASURED_TEXT = (
    "Of the exported graph itself, on the test part. Nothing was fitted again afterwards: the parts are disjoint by "
    "group ({parts} answers), and the test part was only measured."
)
WHY_NOT_MADE = {
    "shuffled labels": "each refit is a training of its own",
    "random features": "each refit is a training of its own",
    "other domains": "each task or dimension left out is a training of its own",
    "layers tried": "there are none to choose from, for it reads texts",
    PROMPT: "needs the questions' texts",
}
"""Maps an audit, by its name in `AuditReport.skipped`, to the reason why it is not made for adapters."""


def control_scores(data: TextData, roles: Roles, *, seed: int) -> dict[str, Scores]:
    """Maps each fitted control to its scores of the test rows. Controls are fitted in the adapter's roles."""
    return {
        method.name: method.fit(data.evidence, roles, seed=seed).score(roles.test)
        for method in control_methods(data.evidence)
        if method.name in FITTED
    }


def adapter_audits(
    data: TextData, roles: Roles, scores: Mapping[JudgementTime, Scores], controls: Mapping[str, Scores], *, seed: int
) -> AuditReport:
    """Returns the audits of an adapter's scores on the test rows. Audits of the data use all rows.

    Args:
        data: the labelled answers.
        roles: rows of each role.
        scores: maps a moment to scores of the test rows.
        controls: maps a control, fitted in the same roles, to scores of the test rows.
        seed: seed of the audits.
    """
    table, test_table = data.table, data.table.rows(roles.test)
    all_controls = free_controls(test_table) | dict(controls)
    splits = [roles.parts]
    data_findings = [class_balance(table.y), group_overlap(table.groups, splits)]
    audited_names = {"group overlap"}
    if PROMPT in controls:  # the questions were stored
        data_findings += [
            repeated_questions(table.questions, splits, y=table.y),
            near_duplicates(table.questions, splits, y=table.y, seed=seed),
        ]
        audited_names.add("repeated questions and near-duplicates")
    if noise := label_noise(data.evidence.labels_by_source, table.groups, y=table.y, seed=seed):
        data_findings += noise
        audited_names.add("label noise")
    reports = [
        run_audits(AuditInputs(name=probe_name(when), table=test_table, score=values, controls=all_controls), seed=seed)
        for when, values in scores.items()
    ]
    audits = {audit.name: audit for report in reports for audit in report.audits} | {a.name: a for a in data_findings}
    skipped = (line.partition(": ") for report in reports for line in report.skipped)
    reasons = {name: WHY_NOT_MADE.get(name, why) for name, _, why in skipped if name not in audited_names}
    return AuditReport(tuple(audits.values()), tuple(f"{name}: {why}" for name, why in reasons.items()))


def probe_name(when: JudgementTime) -> str:
    """Returns the name, in figures and audits, of the probe for a moment."""
    return f"adapter probe {when} the answer"


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """A causal language model without its language-model head."""

    decoder: Any
    tokenizer: bytes
    """Contents of the file tokenizer.json."""
    name: str
    revision: str


def load_base(llm: str, *, dtype: str = "float32") -> Base:
    """Returns the base model. Raises `LLMError` if it cannot be loaded.

    `llm` names an embedded model, a folder, a GGUF file or a hub id.
    """
    transformers, torch = require("transformers", "train"), require("torch", "train")
    weights = resolve(llm)
    try:
        network = transformers.AutoModelForCausalLM.from_pretrained(weights.location, dtype=getattr(torch, dtype))
        tokenizer = transformers.AutoTokenizer.from_pretrained(weights.location)
    except (OSError, ValueError) as error:
        raise LLMError(f"model {llm!r} cannot be loaded: {error}") from error
    if not tokenizer.is_fast:
        raise LLMError(f"model {llm!r} has no tokenizer.json, which the exported probe reads texts with")
    text, revision = tokenizer.backend_tokenizer.to_str(), weights.revision_loaded(network.config)
    return Base(network.base_model, text.encode(), weights.name, revision)


@writes(ADAPTER)
def train_adapter(stores: Sequence[str | Path], options: AdapterOptions) -> Checkpoint | None:
    """Returns the adapter's checkpoint, fitted on the labelled answers of these stores; raises as `write_adapter`.

    Under `accelerate launch` only the first process gets the checkpoint, and the others get None.
    """
    require("torch", "train")
    require("peft", "train")
    return write_adapter(stores, options)


def write_adapter(
    stores: Sequence[str | Path], options: AdapterOptions, settings: AdapterSettings | None = None
) -> Checkpoint | None:
    """Trains an adapter on the labelled answers of these stores and writes its checkpoint.

    An interrupted training resumes from its state in the folder `options.work` (by default `out` with `.work` at its
    end). After the checkpoint is written this state is deleted, and the folder if it is empty. Under `accelerate
    launch` the first process writes the checkpoint, and the other processes get None. Raises `RecordError` if data or
    settings do not suffice or the folder holds something else, and `LLMError` if the base cannot be loaded.

    Args:
        stores: run stores, or files of import lines with labels.
        options: the options.
        settings: settings of the adapter; by default those of the options.
    """
    data = load_texts(stores, target=options.target, stage=options.stage, agent=options.agent)
    adapter = make_adapter(data, options, settings)
    return None if adapter is None else adapter.write()


@dataclass(frozen=True, slots=True, eq=False)
class MadeAdapter:
    """A fitted and exported adapter that is not written yet."""

    export: Export
    probability: Mapping[JudgementTime, NDArray[np.float64]]
    """Outputs of the exported graph for the test rows of `adapter_roles`."""
    out: str | Path
    work: Path

    def write(self, *lines: str) -> Checkpoint:
        """Writes the checkpoint, with further lines for its card, and deletes the state of the training."""
        checkpoint = write_checkpoint(self.out, replace(self.export, reads=[*self.export.reads, *lines]))
        self.leave()
        return checkpoint

    def leave(self) -> None:
        """Deletes the state of the training."""
        remove_state(self.work)


def make_adapter(
    data: TextData, options: AdapterOptions, settings: AdapterSettings | None = None
) -> MadeAdapter | None:
    """Returns the adapter of these texts, fitted, exported and measured; raises as `write_adapter`.

    If several processes train together, all but the first return None.
    """
    settings = settings or AdapterSettings.of(options)
    # Check the options and the labels before the long work.
    target, report_step, out = options.target, options.on_step, Path(options.out)  # Path: "out/" may end in a slash
    work = Path(f"{out}.work") if options.work is None else Path(options.work)
    if work.resolve().is_relative_to(
        out.resolve()
    ):  # the checkpoint's folder is replaced as a whole, so it must not hold the state
        raise RecordError(f"{work} lies in the checkpoint {out} that is to be written: give another --work folder")
    check_work(work)
    when: tuple[JudgementTime, ...] = ("before", "after") if options.when == "both" else (options.when,)
    if data.learnable_levels:
        raise RecordError(f"label {target} has levels; an adapter takes labels of 0 and 1: see `metaprobe train text`")
    # Fit the controls, and load the base model.
    roles = adapter_roles(data.table, seed=settings.seed)
    report_step("fit the plain controls")  # before the training, so that data without enough answers is refused at once
    controls = control_scores(data, roles, seed=settings.seed)
    report_step("load the base")
    base = load_base(options.llm, dtype=settings.dtype)
    max_positions = getattr(base.decoder.config.get_text_config(), "max_position_embeddings", None)
    if max_positions and settings.max_length > max_positions:
        raise RecordError(
            f"max length {settings.max_length} exceeds the {max_positions} tokens that {base.name} can read"
        )
    encoder = Encoder(base.tokenizer, max_length=settings.max_length)
    texts = examples(data, when, encoder)
    # Choose the depth, and train.
    report_step("choose how many layers it needs")
    layers = base.decoder.config.get_text_config().num_hidden_layers
    depth = choose_depth(base.decoder, texts, data, roles, settings)
    cut_layers(base.decoder, depth)
    identity = f"{base.name} {base.revision} {depth} {when} {data.digest}"
    fitted = fit_adapter(
        base.decoder, texts, data.table.y, roles, settings, work=work, identity=identity, on_step=report_step
    )
    if not fitted.writes:
        return None
    # Export, and measure the exported graph.
    report_step("calibrate and export")
    fields, precision, notes, probability = _export(fitted, texts, data, roles, when, settings)
    report_step("measure the exported graph")
    report = adapter_audits(data, roles, probability, controls, seed=settings.seed)
    parts = {name: len(rows) for name, rows in roles.parts.items()}
    reads = [
        f"base: {base.name} ({base.revision}), the lower {depth} of its {layers} layers, chosen by linear probes in "
        "folds of the learning part",
        *(f"reads {name} the answer: {LAYOUT[name]!r}, its last {settings.max_length} tokens" for name in when),
        *notes,
    ]
    export = Export(
        kind=ADAPTER,
        title=f"Adapter probe: {target}",
        summary=SUMMARY.format(target=target, base=base.name, rank=settings.rank),
        **fields,
        contract={
            "target": target,
            **question_texts(options.questions, target),
            "layout": {name: LAYOUT[name] for name in when},
            "max_length": settings.max_length,
            **precision,
            "sample_ids": encoder.ids([SAMPLE])[0],
            "base": {"model": base.name, "revision": base.revision, "layers": layers},
            "depth": depth,
            "rank": settings.rank,
            "steps": fitted.steps,
            "parts": parts,
        },
        **data.evidence.origin(settings.seed, options.recorded("train_adapter")),
        calibration="platt",
        metrics=_measure(data, roles, probability),
        measured=MEASURED_TEXT.format(parts=", ".join(f"{name} {count}" for name, count in parts.items())),
        audits=report.audits,
        not_audited=report.skipped,
        packages=("torch", "transformers", "peft", "accelerate", "tokenizers", "onnxscript"),
        extra={TOKENIZER: base.tokenizer},
        reads=reads,
    )
    return MadeAdapter(export, probability, options.out, work)


def _export(
    fitted: FittedAdapter,
    texts: Examples,
    data: TextData,
    roles: Roles,
    when: Sequence[JudgementTime],
    settings: AdapterSettings,
) -> tuple[dict[str, Any], dict[str, Any], list[str], dict[JudgementTime, NDArray[np.float64]]]:
    """Calibrates and exports a fitted adapter, in int8 if that loses little AUROC, else in float32.

    Returns four results: fields of an `Export` (graph, golden rows and tolerance), the contract's fields about the
    precision, lines for the card, and the graph's outputs for the test rows.

    Args:
        fitted: the fitted adapter.
        texts: the texts.
        data: the labelled answers.
        roles: rows of each role.
        when: the moments at which answers are judged.
        settings: settings of the training.
    """
    # Calibrate the trained model.
    scores = np.full(len(texts.ids), np.nan)
    measured_rows = texts.of(np.concatenate([roles.calibration, roles.test]))
    scores[measured_rows] = scored_log_odds(fitted.scorer, [texts.ids[i] for i in measured_rows], settings.batch_size)
    labels = data.table.y[texts.rows]
    platts: dict[JudgementTime, Platt] = {}
    for name in when:
        rows = texts.of(roles.calibration, name)
        platts[name] = fit_platt(scores[rows], labels[rows])
    trained = {name: platts[name].probability(scores[texts.of(roles.test, name)]) for name in when}
    # The float32 graph, which must agree with the trained model.
    graph = adapter_graph(fitted.scorer, platts)
    session = GraphSession(graph)
    probability = _probability(session, texts, roles.test, when, settings.batch_size)
    difference = max(float(np.abs(probability[name] - trained[name]).max()) for name in when)
    if not difference <= ADAPTER_PARITY:
        raise RecordError(
            f"the exported graph differs from the trained model by {difference:.3g} in probability; at most "
            f"{ADAPTER_PARITY:g} is accepted: a base whose attention is not plainly causal cannot be exported"
        )
    notes = [f"float32 graph against the trained model, on the test rows: difference at most {difference:.2g}"]
    # The int8 graph, which is taken if it loses little AUROC on the calibration rows.
    sample_rows = texts.of(roles.train)[:: max(1, len(texts.of(roles.train)) // SMOOTHING_ROWS)][:SMOOTHING_ROWS]
    int8_graph = quantise(graph, [inputs for _, inputs in padded_batches([texts.ids[i] for i in sample_rows], 1)])
    int8_session, calibration_rows = GraphSession(int8_graph), roles.calibration
    probability_of_both = [
        _probability(session_run, texts, calibration_rows, when, settings.batch_size)
        for session_run in (int8_session, session)
    ]
    gains = {}
    for name in when:
        judged_int8, judged_float32 = (
            Judged("p", "learned", column[name], column[name], 1.0) for column in probability_of_both
        )
        gains[name] = auroc_gain(data.table.rows(calibration_rows), judged_int8, judged_float32)
    is_int8 = all(gain.low > -MAX_AUROC_LOSS for gain in gains.values())
    notes += [
        f"int8 against float32, {name}, on the {len(calibration_rows)} calibration rows: AUROC {gain.estimate:+.4f} "
        f"[{gain.low:+.4f}, {gain.high:+.4f}]{'' if is_int8 else '; float32 is kept'}"
        for name, gain in gains.items()
    ]
    if is_int8:
        graph, session = int8_graph, int8_session
        probability = _probability(session, texts, roles.test, when, settings.batch_size)
    # The golden rows are short texts, so that loading stays quick. They are recorded and replayed as one batch.
    short_rows = sorted(texts.of(roles.test), key=lambda i: len(texts.ids[i]))[
        :: max(1, len(texts.of(roles.test)) // 8)
    ]
    [(_, golden)] = padded_batches([texts.ids[i] for i in short_rows[:GOLDEN_ROWS]], GOLDEN_ROWS)
    if is_int8:  # the int8 graph is replayed against itself; the card says what it loses against float32
        expected = session.run(dict(golden))
    else:
        golden_odds = scored_log_odds(fitted.scorer, [texts.ids[i] for i in short_rows[:GOLDEN_ROWS]], GOLDEN_ROWS)
        expected = {name: platt.probability(golden_odds)[:, None].astype(np.float32) for name, platt in platts.items()}
    precision = "int8" if is_int8 else "float32"
    fields = {"graph": graph, "inputs": golden, "expected": expected, "tolerance": GOLDEN_TOLERANCE[precision]}
    gain_of_moment = {name: [gain.estimate, gain.low, gain.high] for name, gain in gains.items()}
    return fields, {"precision": precision, "int8_auroc_gain": gain_of_moment}, notes, probability


def _probability(
    session: GraphSession, texts: Examples, rows: Rows, when: Sequence[JudgementTime], batch_size: int
) -> dict[JudgementTime, NDArray[np.float64]]:
    """Maps each moment to the graph's outputs for these rows, in their order.

    Args:
        session: the loaded graph.
        texts: the texts.
        rows: rows of the table.
        when: the moments.
        batch_size: number of texts that are read at once.
    """
    by_moment: dict[JudgementTime, NDArray[np.float64]] = {}
    for name in when:
        chosen = texts.of(rows, name)
        by_moment[name] = np.empty(len(chosen))
        for part, inputs in padded_batches([texts.ids[i] for i in chosen], batch_size):
            by_moment[name][part] = session.run(dict(inputs))[name][:, 0]
    return by_moment


def _measure(
    data: TextData, roles: Roles, probability: Mapping[JudgementTime, NDArray[np.float64]]
) -> dict[str, Interval]:
    """Returns figures of the test rows, with the gain over the mean log-probability if answers have one."""
    table, judged_mean = data.table.rows(roles.test), None
    if table.measured:
        mean = np.array([np.mean(values) for values in table.logprobs])
        judged_mean = Judged("mean log-probability", "log-probability", np.exp(mean), mean, 1.0)
    metrics: dict[str, Interval] = {}
    for name, values in probability.items():
        prefix = "" if len(probability) == 1 else f"{name}."
        judged = Judged(probe_name(name), "learned", values, values, 1.0)
        metrics |= {f"{prefix}{figure}": value for figure, value in figures_of(table, judged, judged_mean).items()}
    return metrics
