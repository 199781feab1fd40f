"""A comparison with every section, made up: what the tests of the report render."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import numpy as np

from metaprobe.eval.answers import trajectory_bands
from metaprobe.eval.metrics.bootstrap import Interval, against_controls, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.calibration import brier_skill, ece, reliability_table, stated_calibration
from metaprobe.eval.metrics.ranked import auprc, aurc, auroc
from metaprobe.eval.report.write import report_files
from metaprobe.eval.results import (
    CONTROL_FAMILIES,
    Accuracy,
    AccuracyRow,
    Agreement,
    Comparison,
    Coupling,
    Difficulty,
    Efficiency,
    Failures,
    Finding,
    LayerSweep,
    MethodResult,
    Overconfidence,
    SeenMethod,
    SeenTokens,
    SignalComparison,
    SignalResult,
    StageAccuracy,
    Stratum,
    Trajectories,
    TwoChoice,
    WithinStrata,
)
from metaprobe.eval.systems.metacrit_figures import FAILURES, PATTERNS

METHOD_OF_ALL = "blend of all that is known of an answer"
HOSTILE = "<script>alert('$x_1$ & co')</script>"
SOME = Interval(0.6, 0.5, 0.7, 400, 100)
COUPLED = (
    "flagged_wrong flagged_right fixed_flagged fixed_unflagged fixed_difference broken_flagged broken_unflagged"
).split()
WEAK, STRONG, AHEAD = (
    Interval(each, each - 0.03, each + 0.03, 400, 100) for each in (0.62, 0.7, 0.08)
)  # what the model says, what it gives off, and the difference
SIGNALS = SignalComparison(
    explicit="verbalised confidence",
    implicit="LightGBM on log-probabilities",
    joined=METHOD_OF_ALL,
    runs=4,
    parts=tuple(
        SignalResult(
            by=by,
            name=name,
            n=200,
            accuracy=0.5,
            explicit=WEAK,
            implicit=STRONG,
            difference=AHEAD,
            p_holm=0.001,
            joined=STRONG,
            joined_gain=Interval(0.0, -0.01, 0.01, 400, 100),
        )
        for by, name in (("all", "all answers"), ("task", "sums"), ("task", "claims"), ("model", "a"), ("model", "b"))
    ),
)
"""The implicit signal is ahead everywhere, and joining adds nothing."""
METHODS = {
    "verbalised confidence": ("explicit", 0.15),
    "verbalised difficulty": ("explicit", 0.05),
    "mean log-probability": ("log-probability", 0.7),
    "minimum log-probability": ("log-probability", 1.0),
    "first log-probability": ("log-probability", 0.5),
    "length": ("plain", 0.4),
    "prompt TF-IDF": ("plain", 0.8),
    "dimension x level": ("plain", 0.9),
    "cut by max_tokens": ("plain", 0.2),
    "LightGBM on log-probabilities": ("learned", 1.1),
    "hidden probe, last prompt token": ("learned", 1.3),
    METHOD_OF_ALL: ("learned", 1.6),
}


@cache
def rendered() -> Mapping[str, str | bytes]:
    """The files of its report, by name: drawing them takes seconds, so it is done once for all tests."""
    return MappingProxyType(report_files(made_up()))


def made_up(n=400, resamples=100, model=HOSTILE):
    """A comparison with every section, from scores of planted quality."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    weights = cluster_weights(rng.integers(0, n // 4, n), resamples=resamples)
    score = {name: strength * y + rng.normal(0, 1, n) for name, (_, strength) in METHODS.items()}
    stated = score["verbalised confidence"]
    controls = {name: score[name] for name, (family, _) in METHODS.items() if family in CONTROL_FAMILIES}
    strongest = max(controls, key=lambda name: auroc(y, controls[name]))
    said = np.where(rng.uniform(size=n) < 0.83, 0.5 + 0.1 * rng.integers(0, 6, n), np.nan)  # 0.5 to 1, whatever is true
    methods = []
    for name, (family, strength) in METHODS.items():
        # With unit normal noise the log odds are linear in the score: these are the true probabilities.
        p = 1 / (1 + np.exp(-strength * (score[name] - strength / 2)))
        methods.append(
            MethodResult(
                name=name,
                family=family,
                coverage=0.83 if family == "explicit" else 1.0,
                auroc=interval(auroc, y, p, weights),
                auprc=interval(auprc, y, p, weights),
                ece=interval(ece, y, p, weights),
                brier_skill=interval(brier_skill, y, p, weights),
                aurc=interval(aurc, y, p, weights),
                diff_stated=None if score[name] is stated else paired_difference(auroc, y, p, stated, weights),
                diff_control=None
                if name == strongest
                else paired_difference(auroc, y, p, controls[strongest], weights),
                controls=None if name in controls else against_controls(y, p, controls, weights),
                stated=stated_calibration(y, said, weights) if name == "verbalised confidence" else None,
                probability=p,
                reliability=reliability_table(y, p),
                prr=SOME,
            )
        )
    layers = tuple(range(31))
    peak = 0.55 + 0.25 * np.exp(-((np.array(layers) - 17) ** 2) / 90)
    answers = [[-rng.gamma(1, 0.9 - 0.5 * label, rng.integers(1, 60)) for label in y if label == k] for k in (0, 1)]
    return Comparison(
        title=f"What {model} knows about its own answers",
        exported="`metaprobe train blend RUNS --out C` writes its checkpoint.",
        provenance={
            "model": model,
            "revision": "12fd25f77366fa6b3b4b768ec3050bf629380bac",
            "dtype": "bfloat16",
            "items": "700",
            "command": "metaprobe compare out/runs --out out/report --resamples 1000 --seed 0",
            "versions": "python 3.11.7, numpy 2.4.6, torch 2.13.0",
        },
        y=y,
        methods=tuple(methods),
        accuracy=tuple(
            AccuracyRow(d, level, {"direct": Accuracy(0.6 - 0.2 * i, 50), "step by step": Accuracy(0.5, 48)})
            for d in ("logical reasoning", "knowledge retrieval", "code generation")
            for i, level in enumerate(("easy", "medium", "hard"))
        ),
        sweeps=tuple(
            LayerSweep(
                probe=probe,
                layers=layers,
                positions=("prompt_last", "answer_first", "answer_mean"),
                selection_auroc=peak[:, None] - [0, 0.03, 0.05] + rng.normal(0, 0.008, (31, 3)),
                choices=((17, "prompt_last"), (17, "prompt_last"), (12, "answer_first")),
                shipped=(18, "answer_mean"),
                test_auroc=Interval(0.77, 0.73, 0.81, n, n // 4),
            )
            for probe in ("difficulty", "confidence")
        ),
        trajectories=Trajectories(correct=trajectory_bands(answers[1]), wrong=trajectory_bands(answers[0])),
        audits=(
            Finding("Length alone", True, "AUROC 0.61, below the best method by 0.18."),
            Finding("Cut answers", False, "22 % of answers were cut by max_tokens."),
        ),
        notes=("Five dimensions, one small model.", "Averaging layers did not help."),
        **of_systems(),
    )


def of_systems():
    """Returns the parts that only some runs have."""
    stages = ("answer", "monitor", "control", "synthesis")
    return {
        "headline": METHOD_OF_ALL,
        "signals": SIGNALS,
        "difficulty": Difficulty(
            by="dimension x level",
            strata=(Stratum("easy", 200, 0.7), Stratum("hard", 200, 0.3)),
            methods=(
                WithinStrata(method=METHOD_OF_ALL, auroc=SOME, diff_stated=SOME),
                WithinStrata(method="verbalised confidence", auroc=SOME, diff_stated=None),
            ),
        ),
        "overconfidence": (
            Overconfidence(
                method="verbalised confidence", stated=True, level="all", confidence=0.9, accuracy=0.3, gap=SOME
            ),
        ),
        "two_choice": TwoChoice(
            choices=("true", "false"),
            n=390,
            unreadable=10,
            d_prime=SOME,
            criterion=SOME,
            methods=(
                Efficiency(method=METHOD_OF_ALL, type2_auroc=SOME, meta_d=SOME, m_ratio=SOME, bins=4),
                Efficiency(
                    method="length", type2_auroc=SOME, meta_d=None, m_ratio=None, bins=1, refused="one grade only"
                ),
            ),
        ),
        "coupling": (
            Coupling(
                system="metacrit",
                variant="every-stage",
                monitor="monitor flags",
                n=200,
                failure_auroc=SOME,
                **dict.fromkeys(COUPLED, SOME),
                broken_difference=None,
            ),
        ),
        "agreement": tuple(Agreement(pattern, 40, SOME, SOME, SOME, None) for pattern in PATTERNS),
        "failures": Failures(dict(zip(FAILURES, (5, 3, 2, 0), strict=True)), 4.5),
        "stages": tuple(StageAccuracy("metacrit", "every-stage", stage, SOME, None) for stage in stages),
        "seen": SeenTokens(
            tokens=(1, 5, 20),
            finished=(0.0, 0.4, 0.9),
            methods=(
                SeenMethod("mean log-probability", "log-probability", (SOME, SOME, SOME)),
                SeenMethod("LightGBM, first tokens", "learned", (SOME, SOME, SOME)),
            ),
        ),
    }
