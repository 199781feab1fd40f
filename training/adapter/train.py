"""The adapter probe from stored runs to a checkpoint: split, fit, calibrate, export, measure what was exported."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Audit, Calibration, Checkpoint, Draft, Metric, Training, save_checkpoint
from metaprobe.checkpoints.graph_session import GraphSession
from metaprobe.eval.audits.run_audits import AuditReport
from metaprobe.eval.compare import Judged, auroc_gain, method_results
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.llms.base import LLMError
from metaprobe.llms.weights import resolve
from metaprobe.probes.adapter import KIND, LAYOUT, SAMPLE, TOKENIZER, AdapterProbe, Encoder, When, batches
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.adapter.adapter_audits import adapter_audits, control_scores, probe_name
from metaprobe.training.adapter.data import AdapterData, Examples, adapter_roles, examples, load_adapter_data
from metaprobe.training.adapter.export import adapter_card, adapter_graph, quantise
from metaprobe.training.adapter.fit import AdapterSettings, FittedAdapter, fit_adapter, log_odds
from metaprobe.training.adapter.state import check_work, remove_state
from metaprobe.training.common.calibrate import Platt, fit_platt
from metaprobe.training.common.roles import Roles, Rows
from metaprobe.training.common.writing import writes
from metaprobe.training.options import AdapterOptions

ADAPTER_PARITY = 1e-3
"""Largest difference in probability between the trained model and its float32 graph, on the test rows."""
GOLDEN_ROWS = 4
GOLDEN_TOLERANCE = 1e-4
ENOUGH_FOR_ECE = 1000

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """A causal language model without its language-model head."""

    decoder: Any
    tokenizer: bytes
    """Of a tokenizer.json."""
    name: str
    revision: str


def load_base(llm: str, *, dtype: str = "float32") -> Base:
    """An embedded model, a folder, a GGUF file or a hub id. Raises `LLMError` where it is none of them."""
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


@writes(KIND)
def train_adapter(stores: Sequence[str | Path], options: AdapterOptions) -> Checkpoint | None:
    """Returns the adapter's checkpoint, fitted on the labelled answers of these stores; raises as `write_adapter`.

    Under `accelerate launch` only the first process gets it, and the others get None.
    """
    require("torch", "train,adapter")
    require("peft", "train,adapter")
    return write_adapter(
        options.out,
        stores,
        llm=options.llm,
        target=options.target,
        when=("before", "after") if options.when == "both" else (options.when,),
        stage=options.stage,
        agent=options.agent,
        settings=AdapterSettings(
            rank=options.rank,
            epochs=options.epochs,
            batch_size=options.batch_size,
            accumulate=options.accumulate,
            lr=options.lr,
            max_length=options.max_length,
            dtype=options.dtype,
            seed=options.seed,
        ),
        int8=options.int8,
        work=options.work,
        command=options.recorded("train_adapter"),
        on_step=options.on_step,
    )


def write_adapter(
    path: str | Path,
    stores: Sequence[str | Path],
    *,
    llm: str,
    target: str = "correct",
    when: Sequence[When] = ("before", "after"),
    stage: str | None = None,
    agent: str | None = None,
    settings: AdapterSettings | None = None,
    int8: bool = False,
    work: str | Path | None = None,
    command: str = "",
    on_step: OnStep = lambda what: None,
) -> Checkpoint | None:
    """Train on the labelled answers of these stores and write the checkpoint; its numbers are of itself.

    Interrupted, it goes on from its state in the folder `work` (by default `path` with `.work` at its end). Once the
    checkpoint is written that state is deleted, and the folder if nothing else is in it. Under `accelerate launch` the
    first process writes it, and the others get None. Raises `RecordError` where data or settings do not suffice or
    `work` holds something else, `LLMError` where the base cannot be loaded.
    """
    settings = settings or AdapterSettings()
    work = _work_folder(path, work)
    material = _gather(stores, llm, target, when, stage, agent, settings, on_step)
    data, roles, base, texts = material.data, material.roles, material.base, material.texts
    fitted = fit_adapter(
        base.decoder,
        texts,
        data.table.y,
        roles,
        settings,
        work=work,
        of=f"{base.name} {base.revision} {when} {data.digest}",
        on_step=on_step,
    )
    if not fitted.writes:
        return None
    on_step("calibrate and export")
    exported = _export(fitted, texts, data, roles, when, settings, int8=int8)
    on_step("measure the exported graph")
    report = adapter_audits(data, roles, exported.probability, material.controls, seed=settings.seed)
    contract = _contract(material, settings, target, when, steps=fitted.steps, int8=int8)
    draft = _draft(contract, data, roles, exported, report, seed=settings.seed, command=command)
    checkpoint = save_checkpoint(
        path,
        draft,
        model=exported.graph,
        golden_inputs=exported.golden,
        expected=exported.expected,
        card=adapter_card(draft, exported.notes, report.skipped),
        extra={TOKENIZER: base.tokenizer},
        tolerance=GOLDEN_TOLERANCE,
    )
    remove_state(work)
    return checkpoint


@dataclass(frozen=True, slots=True, eq=False)
class _Material:
    """What is fitted, and on what."""

    data: AdapterData
    roles: Roles
    controls: dict[str, NDArray[np.float64]]
    """Held-out scores of the plain controls, by name."""
    base: Base
    encoder: Encoder
    texts: Examples


def _gather(
    stores: Sequence[str | Path],
    llm: str,
    target: str,
    when: Sequence[When],
    stage: str | None,
    agent: str | None,
    settings: AdapterSettings,
    on_step: OnStep,
) -> _Material:
    data = load_adapter_data(stores, target=target, stage=stage, agent=agent)
    roles = adapter_roles(data.table, seed=settings.seed)
    on_step("fit the plain controls")  # before the training, so that data they cannot be fitted to is refused at once
    controls = control_scores(data, roles, seed=settings.seed)
    on_step("load the base")
    base = load_base(llm, dtype=settings.dtype)
    _check_room(base, settings)
    encoder = Encoder(base.tokenizer, max_length=settings.max_length)
    return _Material(data, roles, controls, base, encoder, examples(data, when, encoder))


def _work_folder(path: str | Path, work: str | Path | None) -> Path:
    """Returns the folder for the state of an unfinished training, by default beside the checkpoint."""
    folder = Path(f"{Path(path)}.work") if work is None else Path(work)  # Path: "out/" may end in a slash
    if folder.resolve().is_relative_to(Path(path).resolve()):  # it could not be published over its own state
        raise RecordError(f"{folder} lies in the checkpoint {path} that is to be written: give another --work folder")
    check_work(folder)
    return folder


def adapter_scores(
    probe: AdapterProbe | str | Path, data: AdapterData, *, when: When = "after", rows: Rows | None = None
) -> NDArray[np.float64]:
    """The exported probe's P(right) of these rows of the table (of all by default), (n,).

    Held out are only the test rows of `adapter_roles(data.table, seed=...)` with the seed it was trained with: another
    method is compared with it when it is fitted in the same roles.
    """
    probe = probe if isinstance(probe, AdapterProbe) else AdapterProbe.load(probe)
    rows = np.arange(len(data.table)) if rows is None else rows
    answers = [data.answers[i] for i in rows] if when == "after" else None
    return probe.probability([data.prompts[i] for i in rows], answers)


def _contract(
    material: _Material, settings: AdapterSettings, target: str, when: Sequence[When], *, steps: int, int8: bool
) -> dict[str, Any]:
    parts = ("train", "selection", "calibration", "test")
    return {
        "target": target,
        "layout": {name: LAYOUT[name] for name in when},
        "max_length": settings.max_length,
        "precision": "int8" if int8 else "float32",
        "sample_ids": material.encoder.ids([SAMPLE])[0],
        "base": {"model": material.base.name, "revision": material.base.revision},
        "rank": settings.rank,
        "steps": steps,
        "parts": {name: len(getattr(material.roles, name)) for name in parts},
    }


def _draft(
    contract: dict[str, Any],
    data: AdapterData,
    roles: Roles,
    exported: "_Exported",
    report: AuditReport,
    *,
    seed: int,
    command: str,
) -> Draft:
    groups = len(set(data.table.groups.tolist()))
    return Draft(
        kind=KIND,
        contract=contract,
        generator=data.generator,
        calibration=Calibration("platt", "calibration rows, by group; never the held-out ones"),
        metrics=_measure(data, roles, exported.probability),
        training=Training(data.fingerprint, len(data.table), groups, seed, command, data.regrouped),
        audits={audit.name: Audit(audit.passed, audit.detail, audit.severity) for audit in report.audits},
        versions={p: version(p) for p in ("torch", "transformers", "peft", "accelerate", "tokenizers", "onnxscript")},
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Exported:
    graph: bytes
    golden: dict[str, NDArray[np.int64]]
    expected: dict[str, NDArray[np.float32]]
    probability: Mapping[When, NDArray[np.float64]]
    """What the exported graph gives for the test rows, in their order."""
    notes: tuple[str, ...]


def _export(
    fitted: FittedAdapter,
    texts: Examples,
    data: AdapterData,
    roles: Roles,
    when: Sequence[When],
    settings: AdapterSettings,
    *,
    int8: bool,
) -> _Exported:
    scores = np.full(len(texts.ids), np.nan)
    held = texts.of(np.concatenate([roles.calibration, roles.test]))
    scores[held] = log_odds(fitted.scorer, [texts.ids[i] for i in held], settings.batch_size)
    labels = data.table.y[texts.rows]
    platts: dict[When, Platt] = {}
    for name in when:
        rows = texts.of(roles.calibration, name)
        platts[name] = fit_platt(scores[rows], labels[rows])
    trained = {name: platts[name].probability(scores[texts.of(roles.test, name)]) for name in when}
    graph = adapter_graph(fitted.scorer, platts)
    session = GraphSession(graph)
    probability = _probability(session, texts, roles, when, settings.batch_size)
    difference = max(float(np.abs(probability[name] - trained[name]).max()) for name in when)
    if not difference <= ADAPTER_PARITY:
        raise RecordError(
            f"the exported graph differs from the trained model by {difference:.3g} in probability; at most "
            f"{ADAPTER_PARITY:g} is accepted: a base whose attention is not plainly causal cannot be exported"
        )
    notes = [f"float32 graph against the trained model, on the test rows: difference at most {difference:.2g}"]
    if int8:
        whole = probability
        graph = quantise(graph)
        session = GraphSession(graph)
        probability = _probability(session, texts, roles, when, settings.batch_size)
        notes += [_loss_of_int8(name, data, roles, whole[name], probability[name]) for name in when]
    # Short ones, so that loading stays quick; they are replayed as one batch, as they were recorded.
    short = sorted(texts.of(roles.test), key=lambda i: len(texts.ids[i]))[:: max(1, len(texts.of(roles.test)) // 8)]
    [(_, golden)] = batches([texts.ids[i] for i in short[:GOLDEN_ROWS]], GOLDEN_ROWS)
    if int8:  # it is held against itself; what it loses against float32 is in the card
        expected = session.run(dict(golden))
    else:
        raw = log_odds(fitted.scorer, [texts.ids[i] for i in short[:GOLDEN_ROWS]], GOLDEN_ROWS)
        expected = {name: platt.probability(raw)[:, None].astype(np.float32) for name, platt in platts.items()}
    return _Exported(graph, golden, expected, probability, tuple(notes))


def _probability(
    session: GraphSession, texts: Examples, roles: Roles, when: Sequence[When], batch_size: int
) -> dict[When, NDArray[np.float64]]:
    found: dict[When, NDArray[np.float64]] = {}
    for name in when:
        chosen = texts.of(roles.test, name)
        found[name] = np.empty(len(chosen))
        for rows, inputs in batches([texts.ids[i] for i in chosen], batch_size):
            found[name][rows] = session.run(dict(inputs))[name][:, 0]
    return found


def _loss_of_int8(
    name: str, data: AdapterData, roles: Roles, whole: NDArray[np.float64], int8: NDArray[np.float64]
) -> str:
    table = data.table.rows(roles.test)
    gain = auroc_gain(
        table, Judged("int8", "learned", int8, int8, 1.0), Judged("float32", "learned", whole, whole, 1.0)
    )
    return (
        f"int8 weights against float32, {name}, on the test rows: AUROC {gain.estimate:+.4f} "
        f"[{gain.low:+.4f}, {gain.high:+.4f}], mean difference in probability {np.abs(int8 - whole).mean():.4f}"
    )


def _measure(data: AdapterData, roles: Roles, probability: Mapping[When, NDArray[np.float64]]) -> dict[str, Metric]:
    """Figures of the test rows, beside the mean log-probability, which needs no selection."""
    table = data.table.rows(roles.test)
    mean = np.array([np.mean(values) for values in table.logprobs])
    metrics: dict[str, Interval] = {}
    for name, values in probability.items():
        prefix = "" if len(probability) == 1 else f"{name}."
        judged = Judged(probe_name(name), "learned", values, values, 1.0)
        [found] = method_results(table, [judged])
        metrics |= {
            f"{prefix}auroc": found.auroc,
            f"{prefix}auprc": found.auprc,
            f"{prefix}brier_skill": found.brier_skill,
            f"{prefix}aurc": found.aurc,
            f"{prefix}auroc_gain_over_mean_log_probability": auroc_gain(
                table, judged, Judged("mean log-probability", "log-probability", np.exp(mean), mean, 1.0)
            ),
        }
        if len(table) >= ENOUGH_FOR_ECE:
            metrics[f"{prefix}ece"] = found.ece
    return {name: Metric(estimate=m.estimate, low=m.low, high=m.high, n=m.n) for name, m in metrics.items()}


def _check_room(base: Base, settings: AdapterSettings) -> None:
    room = getattr(base.decoder.config.get_text_config(), "max_position_embeddings", None)
    if room and settings.max_length > room:
        raise RecordError(f"max length {settings.max_length} exceeds the {room} tokens that {base.name} can read")
