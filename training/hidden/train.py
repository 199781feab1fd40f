"""From stored runs, or a study of them, to the checkpoint of a probe on hidden states."""

from collections.abc import Sequence
from pathlib import Path

from metaprobe.checkpoints import Checkpoint, FlagOptions
from metaprobe.checkpoints.flag_options import USUAL_FLAGS
from metaprobe.probes.hidden import KIND
from metaprobe.records.errors import RecordError
from metaprobe.training.common.heads import INVERTED
from metaprobe.training.common.writing import writes
from metaprobe.training.crossfit.evidence import load_evidence, origin_of_states
from metaprobe.training.crossfit.finished_folds import keep_beside
from metaprobe.training.crossfit.methods import (
    AFTER,
    BEFORE,
    Evidence,
    HiddenProbeMethod,
    LowRankProbe,
)
from metaprobe.training.crossfit.study import Study, study_of
from metaprobe.training.hidden.difficulty import LEVEL, SUCCESS_RATE, train_difficulty
from metaprobe.training.hidden.fit import export_hidden
from metaprobe.training.linear.states_choice import Wanted
from metaprobe.training.options import HiddenOptions, WrongOptions


@writes(KIND)
def train_hidden(stores: Sequence[str | Path], options: HiddenOptions) -> Checkpoint:
    """Returns the probe's checkpoint, fitted on the labelled answers of these stores that have hidden states.

    Stopped at any moment and called again, it goes on from the folds that are finished. Raises `RecordError` where
    data or options do not suffice, and `CheckpointExists` where `out` holds something else.
    """
    target, graded = options.target, options.target in (SUCCESS_RATE, LEVEL)
    when = options.when or ("before" if graded else "after")
    _check(options, when, graded=graded)
    evidence = load_evidence(
        stores,
        target="correct" if graded else target,
        stage=options.stage,
        agent=options.agent,
        wanted=Wanted(options.layers, tuple(options.position), options.states_of),
    )
    positions_of(evidence, when)  # before minutes of fitting
    assert evidence.states is not None
    layers = ", ".join(map(str, evidence.states.layers))
    options.on_line(f"states      layers {layers} at {', '.join(evidence.states.positions)}")
    for line in (*origin_of_states(evidence), *filter(None, [evidence.regrouped])):
        options.on_line(line)
    command = options.recorded("train_hidden")
    with keep_beside(Path(options.out)) as progress:
        if not graded:
            study = study_of(
                evidence,
                folds=options.folds,
                seed=options.seed,
                kind=options.probe,
                progress=progress,
                on_step=options.on_step,
            )
            options.on_step("audit and export")
            return write_hidden(options.out, study, when=when, target=target, command=command, flags=options.as_flags())
        checkpoint, found = train_difficulty(
            options.out,
            evidence,
            target=target,
            folds=options.folds,
            seed=options.seed,
            command=command,
            progress=progress,
            on_step=options.on_step,
        )
    for ranked in found:
        r = ranked.spearman
        options.on_line(f"{ranked.name:22} Spearman {r.estimate:+.3f} [{r.low:+.3f}, {r.high:+.3f}]")
    return checkpoint


def _check(options: HiddenOptions, when: str, *, graded: bool) -> None:
    """Raises `WrongOptions` for options that contradict each other."""
    target = options.target
    if target in INVERTED:
        raise WrongOptions(f"target {target}: probes give the probability of what is good; train a quality predictor")
    if graded and (when == "after" or options.probe != "logistic"):
        raise WrongOptions(f"target {target} is read before the answer, by a logistic probe")
    if graded and options.flags:
        raise WrongOptions(
            f"{next(iter(options.flags))} is for answers that are right or wrong; target {target} is graded, and its "
            "probe stores no threshold: leave the option out"
        )
    if when == "before" and options.position and "prompt_last" not in options.position:
        raise WrongOptions(f"before an answer only prompt_last is known, not {' or '.join(options.position)}")


def write_hidden(
    path: str | Path, of: Study, *, when: str, target: str, command: str, flags: FlagOptions = USUAL_FLAGS
) -> Checkpoint:
    """The probe `before` the answer (difficulty) or `after` it (confidence), of the kind the study was made with.

    `flags`: what the stored threshold flags.
    """
    positions = positions_of(of.evidence, when)
    name = BEFORE if when == "before" else AFTER
    for method in of.methods:
        if isinstance(method, HiddenProbeMethod | LowRankProbe) and method.name == name:
            return export_hidden(
                path, of.evidence, of.fits, method=method, target=target, seed=of.seed, command=command, flags=flags
            )
    raise AssertionError(f"no method reads {positions}")


def positions_of(evidence: Evidence, when: str) -> tuple[str, ...]:
    """Positions captured `before` or `after` the answer. Raises `RecordError` where there are none."""
    states = evidence.states
    if states is None:
        raise RecordError(
            f"{evidence.without_hidden} of {len(evidence.table)} labelled answers have no hidden states: collect them "
            f"with a local model and --layers, or run `metaprobe extract`"
        )
    positions = tuple(p for p in states.positions if (p == "prompt_last") == (when == "before"))
    if not positions:
        other = "after" if when == "before" else "before"
        raise RecordError(
            f"no position {when} the answer was captured; there are: {', '.join(states.positions)}, "
            f"which --when {other} reads"
        )
    return positions
