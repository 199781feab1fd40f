"""The recipe of the blend: hidden states, log-probabilities and stated numbers, in one graph of several inputs.

Any input may be missing when an answer is scored; a missing input is NaN. The graph has weights and a calibration for
each set of inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metaprobe.checkpoints import Checkpoint, FlagOptions
from metaprobe.checkpoints.flagging import AGREEMENT, USUAL_FLAGS, promise_refused
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.blend import BLEND_KIND, CONFIDENCE_INPUT, INPUT_NAMES, PROMPT_INPUT, STATES_READER, TRUE_INPUT
from metaprobe.probes.features import ALONE, TERM_NAMES
from metaprobe.probes.quality import FEATURES_INPUT
from metaprobe.records.activations import CONVENTION
from metaprobe.records.errors import RecordError
from metaprobe.records.types import HIDDEN, FloatArray
from metaprobe.training.agreement import NOT_RIGHT, SAID_AGAIN_AFTER, flagged_by
from metaprobe.training.calibrators import Floats, Platt, calibrator_on, highest_of, sigmoid
from metaprobe.training.evidence import INVERTED, Evidence, origin_of_states, runs_of
from metaprobe.training.export import Export, GraphBuilder, write_checkpoint, writes
from metaprobe.training.folds import final_roles
from metaprobe.training.methods import (
    AFTER,
    CONFIDENCE,
    Blend,
    GivenScore,
    HiddenProbeMethod,
    JoinedFit,
    LinearScore,
    Method,
    TermsPart,
    calibrators_of,
    terms_of,
)
from metaprobe.training.stored_states import canaries_file
from metaprobe.training.study import Study, held_out_fields, load_with_states, study_of
from metaprobe.training.thresholds import ScoredAnswers
from metaprobe.training.training_options import BlendOptions, WrongOptions


@writes(BLEND_KIND)
def train_blend(stores: Sequence[str | Path], options: BlendOptions) -> Checkpoint:
    """Returns the blend's checkpoint, fitted on the labelled answers of these stores that have hidden states.

    Raises `RecordError` if data or options do not suffice, and `CheckpointExists` if `out` holds something else.
    """
    refuse_inverted(options.target)
    if options.target == AGREEMENT and (refused := promise_refused(options)):
        raise WrongOptions(refused)
    evidence = load_with_states(stores, options)
    study = study_of(evidence, folds=options.folds, seed=options.seed, on_step=options.on_step)
    options.on_step("audit and export")
    command, flags = options.recorded("train_blend"), options.as_flags()
    return write_blend(options.out, study, target=options.target, command=command, flags=flags)


def write_blend(
    path: str | Path, study: Study, *, target: str, command: str, flags: FlagOptions = USUAL_FLAGS
) -> Checkpoint:
    """Fits the study's blend on all groups and writes it; held-out metrics come from the study's folds.

    Raises `RecordError` if the study has no blend, and `WrongOptions` for a target whose 1 means a bad answer.

    Args:
        path: folder of the checkpoint.
        study: the study.
        target: name of the label.
        command: command that made the checkpoint.
        flags: which answers the stored threshold flags.
    """
    # Fit and calibrate the blend on all groups.
    refuse_inverted(target)
    evidence, table, seed = study.evidence, study.evidence.table, study.seed
    method = next((method for method in study.methods if isinstance(method, Blend)), None)
    if method is None:
        raise RecordError("the answers hold one kind of signal, so that there is nothing to blend: train on that alone")
    roles = final_roles(list(table.groups), table.y, seed=seed)
    joined, rows = method.join({}, evidence, roles, seed=seed), roles.calibration
    scores = joined.score()
    unseen = joined.unseen_score()
    calibrator = calibrator_on(np.flatnonzero(np.isfinite(unseen)), unseen, table, seed, calibrators_of(method))
    assert isinstance(calibrator, Platt)
    fitted = FittedBlend.of(joined, calibrator)
    held_out = study.fits[method.name].probability, study.fits.rank_shares[method.name]
    answers = ScoredAnswers.of(table, rows, scores, calibrator, *held_out)
    inputs = inputs_of(joined, evidence)
    # Every second row gets gaps, so that golden rows test sets of inputs too.
    all_rows = np.arange(len(table))
    members = np.where(all_rows % 2, all_rows // 2 % ((1 << len(inputs)) - 1) + 1, -1)
    for i, (name, values) in enumerate(inputs.items()):
        inputs[name] = np.where((members >> i & 1).astype(bool)[:, None], values, np.float32(np.nan))
    # Write the checkpoint.
    states = {
        input_name(part_method): {
            "layers": list(probe.layers),
            "position": probe.position,
            "width": len(probe.weights) // len(probe.layers),
        }
        for part_method, probe in (
            (part_method, part.probe) for part_method, part in zip(joined.methods, joined.parts, strict=True)
        )
        if probe is not None
    }
    fields = held_out_fields(study, method, answers, target=target, flags=flags, command=command)
    return write_checkpoint(
        path,
        Export(
            kind=BLEND_KIND,
            title=f"Blend: {target}",
            summary=_summary(joined, target, evidence),
            graph=fitted.graph(target),
            inputs=inputs,
            expected={target: fitted.probability(inputs)},
            contract={
                "schema": ALONE,
                "features": list(TERM_NAMES),
                "states": states,
                "convention": CONVENTION,
                "target": target,
                **({STATES_READER: evidence.reader} if evidence.reader else {}),
                **flagged_by(target),
            },
            calibration=f"{calibrator.name}, for each set of inputs",
            logprobs_reader=evidence.logprobs_reader,
            packages=("scikit-learn", "onnx"),
            extra=canaries_file(
                None if evidence.states is None else evidence.states.canaries,
                [layer for part in joined.parts if part.probe is not None for layer in part.probe.layers],
            ),
            **{**fields, "metrics": fields["metrics"] | parts_alone(study, method)},
        ),
    )


def refuse_inverted(target: str) -> None:
    """Raises `WrongOptions` for a label whose 1 means a bad answer."""
    if target in INVERTED:
        raise WrongOptions(f"target {target}: a blend gives the probability of what is good; train a quality predictor")


def input_name(part: Method) -> str:
    """Returns the name of the graph's input that a part reads."""
    if isinstance(part, HiddenProbeMethod):
        return HIDDEN if part.name == AFTER else PROMPT_INPUT
    return FEATURES_INPUT if isinstance(part, TermsPart) else CONFIDENCE_INPUT if part == CONFIDENCE else TRUE_INPUT


def inputs_of(joined: JoinedFit, evidence: Evidence) -> dict[str, FloatArray]:
    """Maps each input of the graph to its values (n, d) for all answers; NaN for answers without this input."""
    inputs: dict[str, FloatArray] = {}
    for method, part in zip(joined.methods, joined.parts, strict=True):
        if part.probe is not None:
            assert evidence.states is not None
            inputs[input_name(method)] = part.probe.read(evidence.states)
        elif isinstance(method, GivenScore):
            inputs[input_name(method)] = method.values(evidence.table).astype(np.float32)[:, None]
        else:
            inputs[input_name(method)] = terms_of(evidence.table)
    return inputs


@dataclass(frozen=True, slots=True, eq=False)
class FittedBlend:
    """The exported model: calibrated log-odds of each input, and the weights of each set of inputs."""

    parts: Mapping[str, LinearScore]
    """Maps an input to the linear map that gives its calibrated log-odds."""
    weights: Floats
    """Weights (2^k, k) of the inputs. Row j is for answers that have exactly the inputs i with bit 2^i in j."""
    shifts: Floats
    """Intercept (2^k,) for each set of inputs, in the order of the rows of `weights`."""

    @classmethod
    def of(cls, joined: JoinedFit, calibrator: Platt) -> "FittedBlend":
        """Returns the joined parts with the last calibration."""
        parts = {}
        for method, part, platt in zip(joined.methods, joined.parts, joined.calibrators, strict=True):
            raw = part.linear or part.probe
            assert raw is not None, "every part of the blend is linear"
            weights, intercept = platt.slope * raw.weights, platt.slope * raw.intercept + platt.intercept
            closest = raw.closest if isinstance(raw, LinearScore) else 0.0
            parts[input_name(method)] = LinearScore(raw.mean, raw.scale, weights, float(intercept), closest)
        k = len(parts)
        sets = [(np.zeros(k), 0.0), *(joined.of(members) for members in range(1, 1 << k))]
        weights, shifts = (np.array(column) for column in zip(*sets, strict=True))
        return cls(parts, calibrator.slope * weights, calibrator.slope * shifts + calibrator.intercept)

    def probability(self, inputs: Mapping[str, FloatArray]) -> Floats:
        """Returns the probability (n,) of answers, by the inputs that they have."""
        logits = np.stack([part(inputs[name]) for name, part in self.parts.items()], axis=1)
        members = np.isfinite(logits) @ (1 << np.arange(len(self.parts)))
        return sigmoid((self.weights[members] * np.nan_to_num(logits)).sum(axis=1) + self.shifts[members])

    def graph(self, output: str) -> bytes:
        """Returns an ONNX graph that computes `probability`.

        Its inputs are float32 (n, d), one for each part. `output` names its output, probabilities (n, 1).
        """
        graph = GraphBuilder()
        logits = []
        for name, part in self.parts.items():
            part_input = add_log_odds(graph, name, part.closest) if part.closest else name
            x = graph.add("Sub", part_input, graph.number(part.mean))
            weighted = graph.add("MatMul", x, graph.number((part.weights / part.scale)[:, None]))
            logits.append(graph.add("Add", weighted, graph.number([part.intercept])))
        all_odds = graph.add("Concat", *logits, axis=1)
        missing = graph.add("IsNaN", all_odds)
        powers = graph.constant(1 << np.arange(len(self.parts)))
        place_values = graph.add("Mul", graph.cast(graph.add("Not", missing), np.int64), powers)
        members = graph.add("ReduceSum", place_values, graph.constant([1]), keepdims=0)  # (n,)
        weights = graph.add("Gather", graph.number(self.weights), members, axis=0)
        known_odds = graph.add("Where", missing, graph.number(0.0), all_odds)
        summed = graph.add("ReduceSum", graph.add("Mul", weights, known_odds), graph.constant([1]), keepdims=1)
        shift = graph.add("Gather", graph.number(self.shifts[:, None]), members, axis=0)
        graph.add("Sigmoid", graph.add("Add", summed, shift), name=output)
        return graph.model({name: len(part.weights) for name, part in self.parts.items()}, [output])


def add_log_odds(graph: GraphBuilder, probability: str, closest: float) -> str:
    """Adds nodes for the log-odds of probabilities that are clipped to [closest, 1 - closest]. NaN stays NaN."""
    missing = graph.add("IsNaN", probability)
    known_probability = graph.add("Where", missing, graph.number(0.5), probability)
    p = graph.add("Clip", known_probability, graph.number(closest), graph.number(highest_of(closest)))
    odds = graph.add("Sub", graph.add("Log", p), graph.add("Log", graph.add("Sub", graph.number(1.0), p)))
    return graph.add("Where", missing, probability, odds)


def parts_alone(study: Study, method: Blend) -> dict[str, Interval]:
    """Returns the held-out AUROC from each kind of input alone, for answers that lack the other inputs."""
    table, fits = study.evidence.table, study.fits
    kinds: dict[str, type[TermsPart | HiddenProbeMethod | GivenScore]] = {
        "log_probabilities": TermsPart,
        "hidden_states": HiddenProbeMethod,
        "what_is_stated": GivenScore,
    }
    weights = cluster_weights(table.groups.tolist(), seed=study.seed)
    aurocs = {}
    for name, kind in kinds.items():
        scores = np.full(len(table), np.nan)
        for roles, joined in zip(fits.roles, fits.joined[method.name], strict=True):
            allowed_parts = sum(1 << i for i, part in enumerate(joined.methods) if isinstance(part, kind))
            scores[roles.test] = joined.score(allowed_parts)[roles.test]
        if np.isfinite(scores).all():
            aurocs[f"auroc_from_{name}_alone"] = interval(auroc, table.y, scores, weights)
    return aurocs


def _summary(joined: JoinedFit, target: str, evidence: Evidence) -> str:
    """Returns the card's first paragraph."""
    weight_of_part, _ = joined.of((1 << len(joined.parts)) - 1)
    input_clauses = []
    for method, part, weight in zip(joined.methods, joined.parts, weight_of_part, strict=True):
        probe = part.probe
        probe_place = "" if probe is None else f" (layer {', '.join(map(str, probe.layers))} at {probe.position})"
        input_clauses.append(f"{INPUT_NAMES[input_name(method)]}{probe_place}, weight {weight:.2f}")
    run_count = len(np.unique(runs_of(evidence.table)))
    meaning = SAID_AGAIN_AFTER if target == AGREEMENT else f"Probability that the answer is {target}"
    return (
        f"{meaning}, from {'; '.join(input_clauses)}. {f'{NOT_RIGHT} ' * (target == AGREEMENT)}Each input gives "
        "calibrated "
        "log-odds, and their weighted sum is calibrated again. Any input may be missing: each set of inputs has "
        "weights and a calibration of its own, and the verdict's reason names what was missing. Layer 0 is the "
        "embeddings' output, layer i the output of block i."
        + (f" The answers are of {run_count} runs, whose base rates it does not tell apart." if run_count > 1 else "")
        + "".join(f" {line}." for line in origin_of_states(evidence))
    )
