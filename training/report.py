"""From fitted folds to the comparison that is printed and reported."""

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np

from metaprobe.eval.compare import (
    BEST_BASELINE,
    STATED,
    accuracy_rows,
    auroc_gain,
    method_results,
    trajectories,
)
from metaprobe.eval.metrics import Interval
from metaprobe.eval.report.model import Comparison, LayerSweep, MethodResult, PolicyResult
from metaprobe.training.audit import audited
from metaprobe.training.crossfit import CrossFit
from metaprobe.training.fit import ENOUGH_FOR_ECE
from metaprobe.training.hidden import LinearProbe
from metaprobe.training.methods import BLEND, MEAN_LOGPROB, TREES, Evidence, HiddenProbe, Method


def comparison(
    evidence: Evidence,
    methods: Sequence[Method],
    fits: CrossFit,
    *,
    choices: tuple[PolicyResult, ...] = (),
    notes: Sequence[str] = (),
    command: str,
    seed: int,
) -> Comparison:
    """Everything a report shows, from one cross-fit."""
    table = evidence.table
    results = method_results(table, fits.methods, seed=seed)
    baselines = ", ".join(dict.fromkeys(fits.best_baseline))
    return Comparison(
        title="Explicit and implicit metacognition",
        summary=(*_summary(results, float(table.y.mean()), len(table), baselines), _against_mean(evidence, fits)),
        provenance=_provenance(evidence, command, seed),
        y=table.y,
        methods=results,
        best_baseline=BEST_BASELINE,
        accuracy=accuracy_rows(table),
        sweeps=tuple(
            _sweep(fits.probes[method.name], next(r for r in results if r.name == method.name))
            for method in methods
            if isinstance(method, HiddenProbe)
        ),
        trajectories=trajectories(table),
        choices=choices,
        audits=tuple(
            dict.fromkeys(
                audit
                for method in methods
                if method.family == "learned"
                for audit in audited(evidence, fits, method, refits=False, seed=seed).audits
            )
        ),
        notes=(
            *notes,
            *(
                [f"{evidence.without_hidden} of {len(table)} answers have no hidden states: no probes."]
                if 0 < evidence.without_hidden < len(table)
                else []
            ),
            *(
                [f"ECE: {len(table)} answers are too few to quote it; {ENOUGH_FOR_ECE} are needed."]
                if len(table) < ENOUGH_FOR_ECE
                else []
            ),
        ),
    )


def _summary(results: Sequence[MethodResult], share: float, n: int, baselines: str) -> list[str]:
    by_name = {result.name: result for result in results}
    # Named beforehand: the best of several on these answers would look better than it is.
    learned = by_name.get(BLEND) or by_name[TREES]
    sentences = [f"{share:.0%} of {n} answers are right."]
    if (stated := by_name.get(STATED)) is not None:
        sentences.append(
            f"Asked for its confidence, which it stated for {stated.coverage:.0%} of the answers, the model tells "
            f"right from wrong with AUROC {_shown(stated.auroc)}: {_verdict(stated.auroc, 0.5)}."
        )
    sentences.append(f"The learned method named beforehand ({learned.name}) reaches {_shown(learned.auroc)}.")
    if (base := by_name.get(BEST_BASELINE)) is not None and learned.diff_baseline is not None:
        sentences.append(
            f"The best plain baseline, chosen on selection data in each fold ({baselines}), reaches "
            f"{_shown(base.auroc)}; the learned method's gain over it is {_shown(learned.diff_baseline, signed=True)}, "
            f"{_verdict(learned.diff_baseline, 0.0)}."
        )
    return sentences


def _against_mean(evidence: Evidence, fits: CrossFit) -> str:
    """The learned method against the baseline that anybody would try first, whatever the folds chose."""
    names = {method.name for method in fits.methods}
    gain = auroc_gain(evidence.table, fits[BLEND if BLEND in names else TREES], fits[MEAN_LOGPROB])
    return f"Its gain over the mean log-probability alone is {_shown(gain, signed=True)}, {_verdict(gain, 0.0)}."


def _shown(interval: Interval, *, signed: bool = False) -> str:
    style = "+.2f" if signed else ".2f"
    return f"{interval.estimate:{style}} [{interval.low:{style}}, {interval.high:{style}}]"


def _verdict(interval: Interval, nothing: float) -> str:
    if interval.low > nothing:
        return "better than chance" if nothing else "so it is better"
    if interval.high < nothing:
        return "worse than chance" if nothing else "so it is worse"
    return "not to be told from chance" if nothing else "so this sample does not settle which is better"


def _sweep(probes: Sequence[LinearProbe], result: MethodResult) -> LayerSweep:
    """Selection AUROC, averaged over the folds; the layer chosen most often."""
    first = probes[0].sweep
    layers = tuple(dict.fromkeys(point.layer for point in first))
    positions = tuple(dict.fromkeys(point.position for point in first))
    grid = np.zeros((len(layers), len(positions)))
    for probe in probes:
        for point in probe.sweep:
            at = layers.index(point.layer), positions.index(point.position)
            grid[at] += point.auroc / len(probes)
    chosen = [(probe.layers[0], probe.position) for probe in probes]
    layer, position = max(set(chosen), key=lambda choice: (chosen.count(choice), choice))
    return LayerSweep(
        probe=result.name,
        layers=layers,
        positions=positions,
        selection_auroc=grid,
        chosen_layer=layer,
        chosen_position=position,
        test_auroc=result.auroc,
    )


def _provenance(evidence: Evidence, command: str, seed: int) -> Mapping[str, str]:
    table, generator = evidence.table, evidence.generator
    packages = ("metaprobe", "numpy", "lightgbm", "scikit-learn", "onnxruntime")
    return {
        "model": generator.model if generator else ", ".join(sorted(set(table.models.tolist()))),
        "revision": generator.revision if generator else "several",
        "dtype": generator.dtype if generator else "several",
        "log-probabilities": generator.logprobs_mode if generator else "unknown",
        "items": str(len(set(table.items.tolist()))),
        "answers": str(len(table)),
        "groups": str(len(set(table.groups.tolist()))),
        "training data": evidence.fingerprint,
        "seed": str(seed),
        "versions": ", ".join(f"{package} {version(package)}" for package in packages),
        "python": platform.python_version(),
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
