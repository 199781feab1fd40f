"""Train the streaming gate: a head for each look at the first tokens, and thresholds for all looks together.

In each fold, and for the model that is exported: heads are fitted on learning rows, looks are made comparable on
learning rows that the trees did not see, heads are calibrated and the joint thresholds found on calibration rows.
"""

from collections.abc import Sequence
from pathlib import Path

from metaprobe.checkpoints import Checkpoint, Training
from metaprobe.eval.audits.run_audits import AuditReport
from metaprobe.eval.gate_performance import GateReport, Stronger, gate_lines, gate_report
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.probes import stream_looks
from metaprobe.probes.features import features
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.common.graphs import trees_graph
from metaprobe.training.common.heads import INVERTED
from metaprobe.training.common.roles import final_roles
from metaprobe.training.common.write_checkpoint import Export, write_checkpoint
from metaprobe.training.common.writing import writes
from metaprobe.training.crossfit.evidence import invert, load_evidence
from metaprobe.training.crossfit.methods import Evidence
from metaprobe.training.gate.fit import FittedGate, fit_gate
from metaprobe.training.gate.held_out_gates import OnStep, audit_gate, judge_held_out
from metaprobe.training.gate.look_models import SCHEMA, Features, MeanLogprob
from metaprobe.training.gate.stopping_thresholds import rate_at_most, too_few_groups
from metaprobe.training.options import GateOptions

ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)


@writes(stream_looks.KIND)
def train_gate(stores: Sequence[str | Path], options: GateOptions) -> Checkpoint:
    """Returns the gate's checkpoint, fitted on the labelled answers of these stores; raises as `write_gate`."""
    for package in ("lightgbm", "sklearn", "onnxmltools"):
        require(package, "fit")
    checkpoint, report = write_gate(
        options.out,
        stores,
        target=options.target,
        stage=options.stage,
        agent=options.agent,
        alphas=tuple(options.alpha) or None,
        stronger=Stronger(options.stronger_accuracy, options.stronger_price),
        folds=options.folds,
        seed=options.seed,
        command=options.recorded("train_gate"),
        on_step=options.on_step,
    )
    for line in gate_lines(report):
        options.on_line(line)
    return checkpoint


def write_gate(
    path: str | Path,
    stores: Sequence[str | Path],
    *,
    target: str = "correct",
    stage: str | None = None,
    agent: str | None = None,
    alphas: Sequence[float] | None = None,
    stronger: Stronger | None = None,
    folds: int = 5,
    seed: int = 0,
    command: str = "",
    on_step: OnStep = lambda what: None,
) -> tuple[Checkpoint, GateReport]:
    """The gate's checkpoint, and what the folds say of it.

    `alphas`: the false-alarm rates to store thresholds for; by default those of `ALPHAS` that the calibration groups
    allow. Raises `RecordError` for one asked for that they do not allow, and where no look has enough answers.
    """
    evidence = load_evidence(stores, target=target, stage=stage, agent=agent, hidden=False)
    if target in INVERTED:
        evidence = invert(evidence)
    return export_gate(
        path,
        evidence,
        target=target,
        alphas=alphas,
        stronger=stronger,
        folds=folds,
        seed=seed,
        command=command,
        on_step=on_step,
    )


def export_gate(
    path: str | Path,
    evidence: Evidence,
    *,
    target: str = "correct",
    alphas: Sequence[float] | None = None,
    stronger: Stronger | None = None,
    folds: int = 5,
    seed: int = 0,
    command: str = "",
    on_step: OnStep = lambda what: None,
) -> tuple[Checkpoint, GateReport]:
    """The same, of evidence that is loaded."""
    table = evidence.table
    X = features(SCHEMA, list(table.logprobs))
    on_step("fit on all groups")
    roles = final_roles(table.groups.tolist(), table.y, seed=seed)
    gate = fit_gate(X, table, roles, alphas=alphas or ALPHAS, seed=seed)
    if refused := [alpha for alpha in alphas or ALPHAS[-1:] if alpha not in gate.thresholds]:
        allowed = [alpha for alpha in ALPHAS if alpha >= 1 / (gate.calibration_groups + 1)]
        raise RecordError(
            f"{too_few_groups(refused[0], gate.calibration_groups)}. A fifth of the groups calibrate; of the usual "
            f"rates these runs allow {', '.join(f'{alpha:g}' for alpha in allowed) or 'none'}"
        )
    held_out, splits = judge_held_out(
        evidence, X, alphas=tuple(gate.thresholds), folds=folds, seed=seed, on_step=on_step
    )
    report = gate_report(held_out, stronger=stronger, seed=seed)
    on_step("audits")
    audits = audit_gate(evidence, X, held_out, splits, seed=seed)
    export = _export(evidence, X, gate, report, audits, target=target, seed=seed, command=command)
    return write_checkpoint(path, export), report


def _export(
    evidence: Evidence,
    X: Features,
    gate: FittedGate,
    report: GateReport,
    audits: AuditReport,
    *,
    target: str,
    seed: int,
    command: str,
) -> Export:
    heads = {stream_looks.head_name(look): head for look, head in gate.heads.items()}
    return Export(
        kind=stream_looks.KIND,
        title=f"Streaming gate: {target}",
        summary=_summary(gate, report, target),
        graph=trees_graph(
            {name: head.for_graph for name, head in heads.items()}, width=X.shape[1], input_name=stream_looks.INPUT
        ),
        input_name=stream_looks.INPUT,
        inputs=X,
        expected={name: head.probability(X) for name, head in heads.items()},
        contract={
            "schema": SCHEMA.name,
            "features": list(SCHEMA.names),
            "looks": list(gate.heads),
            "target": target,
            "alphas": list(gate.thresholds),
        },
        generator=evidence.generator,
        logprobs_reader=evidence.logprobs_reader,
        training=Training(
            evidence.fingerprint,
            len(evidence.table),
            len(set(evidence.table.groups.tolist())),
            seed,
            command,
            evidence.regrouped,
        ),
        calibration=", ".join(dict.fromkeys(head.calibrator.name for head in gate.heads.values())),
        metrics=_metrics(gate, report),
        audits=audits.audits,
        not_audited=audits.skipped,
        thresholds={
            stream_looks.threshold_name(alpha, look): below
            for alpha, by_look in gate.thresholds.items()
            for look, below in by_look.items()
        },
        packages=("lightgbm", "onnxmltools", "onnx"),
    )


def _metrics(gate: FittedGate, report: GateReport) -> dict[str, Interval]:
    """Returns the gate's held-out figures by the names that its manifest gives them."""
    return {
        **{
            f"{stream_looks.head_name(look.look)}.auroc": look.auroc for look in report.looks if look.look in gate.heads
        },
        **{f"false_alarms@{rate.alpha:g}": rate.false_alarms for rate in report.rates},
        **{f"bad_stopped@{rate.alpha:g}": rate.bad_stopped for rate in report.rates},
        **{
            f"false_alarms@{rate.alpha:g}.{task}": found
            for rate in report.rates
            for task, found in rate.by_task.items()
        },
    }


def _summary(gate: FittedGate, report: GateReport, target: str) -> str:
    """Returns what the card says of the gate first: what it gives, what it promises, and what was left out."""
    by_mean = [look for look, head in gate.heads.items() if isinstance(head.scorer, MeanLogprob)]
    plain = (
        f" At {', '.join(map(str, by_mean))} the mean log-probability does as well and is used alone."
        if by_mean
        else ""
    )
    left_out = "".join(f" No look at {look} tokens: {why}." for look, why in gate.left_out.items())
    if unmeasured := sorted(gate.thresholds.keys() - {rate.alpha for rate in report.rates}):
        left_out += (
            f" What is kept of the rates {', '.join(f'{alpha:g}' for alpha in unmeasured)} was not measured: the folds "
            "have too few calibration groups for them."
        )
    n = gate.calibration_groups
    scatter = ", ".join(f"{rate_at_most(alpha, n):.2g} (for {alpha:g})" for alpha in gate.thresholds)
    return (
        f"Probability that an answer will be {target}, given its first {', '.join(map(str, gate.heads))} tokens "
        f"(LightGBM on statistics of their log-probabilities, then a calibrator, for each look).{plain} An answer "
        "below the threshold `stop@ALPHA/lookK` is stopped after K tokens: of the good answers at most a share "
        "ALPHA, at all looks together, on average over new groups and over the calibration data (conformal "
        f"quantile of the largest surprise over the looks; {n} calibration groups). With so many, the rate of "
        f"this one gate is, with a confidence of 90 %, at most {scatter}. The promise is for answers that come as "
        "the calibration ones did, their lengths included: one that ends before a look does not have it, so that "
        f"where answers have become longer more good ones may be stopped.{_by_task(report)}{left_out}"
    )


def _by_task(report: GateReport) -> str:
    """Returns that the promise is of all tasks together, and how far single ones are from it."""
    said = [
        f"at {rate.alpha:g} {rate.by_task[rate.worst_task].estimate:.0%} of those of {rate.worst_task}"
        for rate in report.rates
        if rate.worst_task
    ]
    if not said:
        return ""
    return (
        " It is a promise for all tasks together, in the shares they have here, and none for one of them. Of the good "
        f"answers of the task that it harms most are stopped: {', '.join(said)} (`false_alarms@ALPHA.TASK` has the "
        "others). For a promise of a task's own train a gate on that task alone."
    )
