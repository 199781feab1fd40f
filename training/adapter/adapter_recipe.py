"""The recipe of the adapter probe: split, fitted, calibrated, exported, measured."""

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
MOST_LOST = 0.01
"""Most AUROC that rounding to int8 may lose on the calibration rows, by the lower end of the interval. With a larger
loss, float32 is kept.
"""
SMOOTHING_ROWS = 16
"""Number of train rows on which the scales of the states are measured. The scales are evened out before states are
rounded.
"""
GOLDEN_ROWS = 4
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
NOT_MADE = {
    "shuffled labels": "each refit is a training of its own",
    "random features": "each refit is a training of its own",
    "other domains": "each task or dimension left out is a training of its own",
    "layers tried": "there are none to choose from, for it reads texts",
    PROMPT: "needs the questions' texts",
}
"""Maps an audit, by its name in `AuditReport.skipped`, to the reason why it is not made for adapters."""


def control_scores(data: TextData, roles: Roles, *, seed: int) -> dict[str, Scores]:
    """Returns the controls, fitted in the adapter's roles: name -> held-out scores of the test rows."""
    return {
        method.name: method.fit(data.evidence, roles, seed=seed).score(roles.test)
        for method in control_methods(data.evidence)
        if method.name in FITTED
    }


def adapter_audits(
    data: TextData, roles: Roles, scores: Mapping[JudgementTime, Scores], controls: Mapping[str, Scores], *, seed: int
) -> AuditReport:
    """Returns the audits of an adapter's scores on the test rows. Controls are fitted in the same roles. Audits of the
    data use all rows.
    """
    table, tested = data.table, data.table.rows(roles.test)
    every = free_controls(tested) | dict(controls)
    splits = [roles.parts]
    of_data = [class_balance(table.y), group_overlap(table.groups, splits)]
    audited = {"group overlap"}
    if PROMPT in controls:  # the questions were stored
        of_data += [
            repeated_questions(table.questions, splits, y=table.y),
            near_duplicates(table.questions, splits, y=table.y, seed=seed),
        ]
        audited.add("repeated questions and near-duplicates")
    if noise := label_noise(data.evidence.labels_by_source, table.groups, y=table.y, seed=seed):
        of_data += noise
        audited.add("label noise")
    reports = [
        run_audits(AuditInputs(name=probe_name(when), table=tested, score=values, controls=every), seed=seed)
        for when, values in scores.items()
    ]
    audits = {audit.name: audit for report in reports for audit in report.audits} | {a.name: a for a in of_data}
    skipped = (line.partition(": ") for report in reports for line in report.skipped)
    reasons = {name: NOT_MADE.get(name, why) for name, _, why in skipped if name not in audited}
    return AuditReport(tuple(audits.values()), tuple(f"{name}: {why}" for name, why in reasons.items()))


def probe_name(when: JudgementTime) -> str:
    """Returns the name of a probe of that moment in figures and audits."""
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
    """Returns the base model: an embedded model, a folder, a GGUF file or a hub id. Raises `LLMError` for any other
    text."""
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

    Under `accelerate launch` only the first process gets it, and the others get None.
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
        """Returns the checkpoint, with further lines about what it reads, and deletes the state of the training."""
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
    target, say, out = options.target, options.on_step, Path(options.out)  # Path: "out/" may end in a slash
    work = Path(f"{out}.work") if options.work is None else Path(options.work)
    if work.resolve().is_relative_to(out.resolve()):  # the checkpoint could not be published over the state
        raise RecordError(f"{work} lies in the checkpoint {out} that is to be written: give another --work folder")
    check_work(work)
    when: tuple[JudgementTime, ...] = ("before", "after") if options.when == "both" else (options.when,)
    if data.learnable_levels:
        raise RecordError(f"label {target} has levels; an adapter takes labels of 0 and 1: see `metaprobe train text`")
    # Fit the controls, and load the base model.
    roles = adapter_roles(data.table, seed=settings.seed)
    say("fit the plain controls")  # before the training, so that data they cannot be fitted to is refused at once
    controls = control_scores(data, roles, seed=settings.seed)
    say("load the base")
    base = load_base(options.llm, dtype=settings.dtype)
    room = getattr(base.decoder.config.get_text_config(), "max_position_embeddings", None)
    if room and settings.max_length > room:
        raise RecordError(f"max length {settings.max_length} exceeds the {room} tokens that {base.name} can read")
    encoder = Encoder(base.tokenizer, max_length=settings.max_length)
    texts = examples(data, when, encoder)
    # Choose the depth, and train.
    say("choose how many layers it needs")
    layers = base.decoder.config.get_text_config().num_hidden_layers
    depth = choose_depth(base.decoder, texts, data, roles, settings)
    cut_layers(base.decoder, depth)
    identity = f"{base.name} {base.revision} {depth} {when} {data.digest}"
    fitted = fit_adapter(base.decoder, texts, data.table.y, roles, settings, work=work, of=identity, on_step=say)
    if not fitted.writes:
        return None
    # Export, and measure the exported graph.
    say("calibrate and export")
    fields, precision, notes, probability = _export(fitted, texts, data, roles, when, settings)
    say("measure the exported graph")
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
    """Returns graph, golden rows and tolerance as fields of an `Export`, what the contract says of the precision, lines
    about it for the card, and the outputs of the graph for the test rows, in their order."""
    scores = np.full(len(texts.ids), np.nan)
    measured_rows = texts.of(np.concatenate([roles.calibration, roles.test]))
    scores[measured_rows] = scored_log_odds(fitted.scorer, [texts.ids[i] for i in measured_rows], settings.batch_size)
    labels = data.table.y[texts.rows]
    platts: dict[JudgementTime, Platt] = {}
    for name in when:
        rows = texts.of(roles.calibration, name)
        platts[name] = fit_platt(scores[rows], labels[rows])
    trained = {name: platts[name].probability(scores[texts.of(roles.test, name)]) for name in when}
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
    sampled = texts.of(roles.train)[:: max(1, len(texts.of(roles.train)) // SMOOTHING_ROWS)][:SMOOTHING_ROWS]
    small = quantise(graph, [inputs for _, inputs in padded_batches([texts.ids[i] for i in sampled], 1)])
    integers, measured_rows = GraphSession(small), roles.calibration
    of_both = [
        _probability(session_run, texts, measured_rows, when, settings.batch_size)
        for session_run in (integers, session)
    ]
    gains = {}
    for name in when:
        small_one, whole = (Judged("p", "learned", column[name], column[name], 1.0) for column in of_both)
        gains[name] = auroc_gain(data.table.rows(measured_rows), small_one, whole)
    int8 = all(gain.low > -MOST_LOST for gain in gains.values())
    notes += [
        f"int8 against float32, {name}, on the {len(measured_rows)} calibration rows: AUROC {gain.estimate:+.4f} "
        f"[{gain.low:+.4f}, {gain.high:+.4f}]{'' if int8 else '; float32 is kept'}"
        for name, gain in gains.items()
    ]
    if int8:
        graph, session = small, integers
        probability = _probability(session, texts, roles.test, when, settings.batch_size)
    # Short ones, so that loading stays quick; they are replayed as one batch, as they were recorded.
    short = sorted(texts.of(roles.test), key=lambda i: len(texts.ids[i]))[:: max(1, len(texts.of(roles.test)) // 8)]
    [(_, golden)] = padded_batches([texts.ids[i] for i in short[:GOLDEN_ROWS]], GOLDEN_ROWS)
    if int8:  # it is held against itself; what it loses against float32 is in the card
        expected = session.run(dict(golden))
    else:
        raw = scored_log_odds(fitted.scorer, [texts.ids[i] for i in short[:GOLDEN_ROWS]], GOLDEN_ROWS)
        expected = {name: platt.probability(raw)[:, None].astype(np.float32) for name, platt in platts.items()}
    precision = "int8" if int8 else "float32"
    fields = {"graph": graph, "inputs": golden, "expected": expected, "tolerance": GOLDEN_TOLERANCE[precision]}
    gained = {name: [gain.estimate, gain.low, gain.high] for name, gain in gains.items()}
    return fields, {"precision": precision, "int8_auroc_gain": gained}, notes, probability


def _probability(
    session: GraphSession, texts: Examples, rows: Rows, when: Sequence[JudgementTime], batch_size: int
) -> dict[JudgementTime, NDArray[np.float64]]:
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
    """Figures of the test rows, beside the mean log-probability, which needs no selection, where there is one."""
    table, beside = data.table.rows(roles.test), None
    if table.measured:
        mean = np.array([np.mean(values) for values in table.logprobs])
        beside = Judged("mean log-probability", "log-probability", np.exp(mean), mean, 1.0)
    metrics: dict[str, Interval] = {}
    for name, values in probability.items():
        prefix = "" if len(probability) == 1 else f"{name}."
        judged = Judged(probe_name(name), "learned", values, values, 1.0)
        metrics |= {f"{prefix}{figure}": value for figure, value in figures_of(table, judged, beside).items()}
    return metrics
