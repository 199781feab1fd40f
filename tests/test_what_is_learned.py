"""What every training learns from given outcomes: numbers in the docs, and checkpoints in use, rest on it.

The numbers are those of the settings that research chose; a change of one of them, or a seed that no longer arrives,
shows here. `python tests/test_what_is_learned.py` writes the file again, for whoever means the change.
"""

import dataclasses
import json
import math
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # where it is run as a script
from conftest import made_up
from routed_worlds import logged_outcomes, outcomes
from test_choice_training import runs as both_ways

from metaprobe.checkpoints import Checkpoint, OperatingPoint, UntrustedCheckpoint
from metaprobe.probes.adapter import Encoder
from metaprobe.records.store import RunStore
from metaprobe.routing.learned import LearnedRouter
from metaprobe.routing.learned_budget import Alone, Point
from metaprobe.training.ask_again.data import pair_variants
from metaprobe.training.ask_again.fit import evaluate_choice
from metaprobe.training.ask_again.train import export_choice
from metaprobe.training.folds import final_roles
from metaprobe.training.linear import LinearProbe, fit_linear_probe
from metaprobe.training.recipes.difficulty import ease_of, evaluate_difficulty, fit_difficulty, train_difficulty
from metaprobe.training.recipes.hidden import write_hidden
from metaprobe.training.router.control_policies import families_of
from metaprobe.training.router.curve import alone_of, cross_played, curve_of, rule_of
from metaprobe.training.router.data import Outcomes, outcomes_of
from metaprobe.training.router.evaluate import evaluate_router
from metaprobe.training.router.fit import FittedRouter, fit_router
from metaprobe.training.router.train import write_router
from metaprobe.training.router.words import Words
from metaprobe.training.study import study_of
from metaprobe.training.trees import fit_trees

WRITTEN = Path(__file__).parent / "what_is_learned.json"
SEED = 3
"""Another than the default, so that it must be passed on."""
STATES = 1500
"""Far fewer than in earnest."""


@cache
def routed(*, logged: bool = False) -> tuple[Outcomes, Words, FittedRouter]:
    data = outcomes_of(logged_outcomes() if logged else outcomes())
    words = Words.of(data.questions)
    rows = np.arange(len(data))[: len(data) - 20]
    return data, words, fit_router(data, words, rows, seed=SEED, states=STATES)


def written(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a checkpoint says of itself, but for versions and digests."""
    manifest = checkpoint.manifest
    training = manifest.training
    assert training is not None
    plain = {key: value for key, value in manifest.contract.items() if isinstance(value, str | int | float)}
    return {
        "kind": manifest.kind,
        "contract": {**plain, "keys": sorted(manifest.contract)},
        "calibration": list(dataclasses.astuple(manifest.calibration)) if manifest.calibration else [],
        "training": [training.n, training.groups, training.seed, training.command, training.regrouped],
        "metrics": {name: [found.estimate, found.low, found.high] for name, found in manifest.metrics.items()},
        "thresholds": dict(manifest.thresholds),
        "flagged": [[one.rate, one.threshold, one.caught.estimate, one.cost.high] for one in manifest.flagging[::6]],
        "promised": [[one.option, one.value, one.threshold] for one in manifest.promises[::20]],
        "operating": operating_of(manifest.operating),
        "audits": {name: [audit.passed, audit.severity] for name, audit in manifest.audits.items()},
        "packages": sorted(manifest.versions),
    }


def operating_of(own: OperatingPoint | None) -> list[Any]:
    """What the stored flag threshold does."""
    if own is None:
        return []
    return [own.option, own.value, *([one.estimate, one.low, one.high] for one in (own.flagged, own.caught, own.cost))]


def points(of: list[Point] | list[Alone]) -> list[Any]:
    return [[value for value in dataclasses.astuple(point) if not isinstance(value, str)] for point in of[::3]]


def a_router(*, logged: bool = False) -> dict[str, Any]:
    """Its curve, and what its heads and words make of the questions."""
    data, words, fitted = routed(logged=logged)
    held_out = cross_played(data, words, folds=2, seed=SEED, states=STATES)
    pasts = [dataclasses.astuple(past) for by in fitted.pasts.values() for _, past in sorted(by.items())]
    return {
        "offered": list(fitted.offered),
        "most asked": fitted.max_asked,
        "pasts": [[value for value in past if isinstance(value, float)] for past in pasts],
        "knots": [[len(part) for part in past if isinstance(part, tuple)] for past in pasts],
        "words": np.abs(fitted.words.weights).sum(axis=0).tolist(),
        "curve": points(curve_of(held_out, fitted, data, words, np.arange(len(data)))),
        "rule": points(rule_of(held_out)),
        "alone": points(alone_of(held_out, data.agents)),
        "surer": held_out.surer[::5].tolist(),
        "right": [float(np.nansum(held_out.success)), int(held_out.asked.sum())],
    }


def the_controls() -> dict[str, Any]:
    """Every control of a router, at three budgets."""
    data = outcomes_of(outcomes())
    found = families_of(data, np.arange(160), np.arange(160, 260), seed=SEED)
    return {
        name: [[float(part.mean()) for part in family.at(budget)] for budget in (0.5, 1.0, 3.0)]
        for name, family in found.items()
    }


def trees() -> dict[str, Any]:
    """LightGBM on log-probabilities, as classes and as a number."""
    evidence = made_up(500)
    table, X = evidence.table, evidence.features
    roles = final_roles(table.groups.tolist(), table.y, seed=SEED)
    found: dict[str, Any] = {}
    for objective, y in (("binary", table.y), ("regression", table.y + table.stated_difficulty)):
        fitted = fit_trees(X, y, roles, names=evidence.feature_names, objective=objective, seed=SEED)  # type: ignore[arg-type]
        found[objective] = {
            "settings": {name: str(value) for name, value in sorted(fitted.parameters.items())},
            "scores": fitted.score(X)[::50].tolist(),
            "selection": fitted.selection_auroc if objective == "binary" else 0.0,
        }
    rare = np.where(np.arange(500) % 3 == 0, table.y, 0)
    found["rare"] = fit_trees(X, rare, roles, names=evidence.feature_names, seed=SEED).score(X)[::50].tolist()
    return found


def told(probe: LinearProbe) -> dict[str, Any]:
    return {
        "place": [*probe.layers, probe.position],
        "penalty": probe.penalty,
        "tried": probe.tried,
        "weights": probe.weights[:12].tolist(),
        "intercept": probe.intercept,
        "sweep": [point.auroc for point in probe.sweep],
    }


def probes() -> dict[str, Any]:
    """A probe, and its checkpoint."""
    evidence = made_up(400)
    table, states = evidence.table, evidence.states
    assert states is not None
    roles = final_roles(table.groups.tolist(), table.y, seed=SEED)
    both = ("prompt_last", "answer_last")
    probe = fit_linear_probe(states, table.y, table.groups.tolist(), roles, positions=both, seed=SEED)
    found = {"logistic": told(probe)}
    of = study_of(evidence, folds=2, seed=SEED)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)
        checkpoint = write_hidden(Path(folder) / "h", of, when="after", target="correct", command="called so")
    found["written"] = written(checkpoint)
    return found


def difficulty() -> dict[str, Any]:
    """A probe of the prompt for the success rate of items."""
    evidence = made_up(360)
    table = evidence.table
    table = dataclasses.replace(table, items=np.array([f"i{i // 2}" for i in range(360)]))
    evidence = dataclasses.replace(evidence, table=dataclasses.replace(table, groups=table.items))
    items = ease_of(evidence.table, "success-rate")
    found = evaluate_difficulty(evidence, items, folds=3, seed=SEED)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)
        asked = {"target": "success-rate", "folds": 3, "seed": SEED, "command": "called so"}
        checkpoint, _ = train_difficulty(Path(folder) / "d", evidence, **asked)  # type: ignore[arg-type]
    roles = final_roles(evidence.table.groups[items.rows].tolist(), (items.ease > 0.5).astype(np.int64), seed=SEED)
    return {
        "orders": {
            one.name: [list(dataclasses.astuple(part))[:3] for part in (one.spearman, one.kendall, one.gain) if part]
            for one in found
        },
        "probe": told(fit_difficulty(evidence, items, roles, seed=SEED)),
        **written(checkpoint),
    }


def a_choice() -> dict[str, Any]:
    """P(right) both ways, and what each policy spends."""
    paired = pair_variants(both_ways(80))
    rng = np.random.default_rng(0)  # what is told apart without a mistake has no finite weights
    data = dataclasses.replace(paired, correct=np.where(rng.random((80, 2)) < 0.2, 1, 0) ^ paired.correct)
    policies, learned = evaluate_choice(data, folds=4, seed=SEED)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)
        path = Path(folder) / "c"
        checkpoint = export_choice(path, data, policies, learned, seed=SEED, command="called so")
    return {
        "policies": {
            one.name: [one.correct.mean(), one.tokens.mean(), int(one.step_by_step.sum())] for one in policies
        },
        "learned": learned[::8].tolist(),
        **written(checkpoint),
    }


def an_adapter() -> dict[str, Any]:
    """Losses on the selection rows, and log-odds, of a tiny base."""
    pytest.importorskip("peft")
    from tiny_adapter import run_of, tiny, tiny_tokenizer

    from metaprobe.training.recipes.lora import (
        AdapterSettings,
        adapter_roles,
        examples,
        fit_adapter,
        log_odds,
    )
    from metaprobe.training.texts import load_texts

    rng = np.random.default_rng(0)
    with TemporaryDirectory() as folder:
        RunStore(Path(folder) / "runs").append([run_of(i, rng) for i in range(150)])
        data = load_texts([Path(folder) / "runs"])
        roles = adapter_roles(data.table, seed=SEED)
        texts = examples(data, ("before", "after"), Encoder(tiny_tokenizer().to_str().encode(), max_length=24))
        settings = AdapterSettings(epochs=2, batch_size=4, accumulate=2, lr=1e-2, seed=SEED)
        fitted = fit_adapter(tiny().base_model, texts, data.table.y, roles, settings, work=Path(folder) / "work")
    return {
        "losses": list(fitted.losses),
        "steps": fitted.steps,
        "log odds": log_odds(fitted.scorer, texts.ids[::30], 4).tolist(),
    }


def an_evaluation() -> dict[str, Any]:
    """Of a router on other questions, beside its controls."""
    made = outcomes(340, timed=False)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)
        asked = {"folds": 2, "states": STATES, "seed": SEED, "command": "called so"}
        checkpoint = write_router(Path(folder) / "c", made[:260], **asked)  # type: ignore[arg-type]
        router = LearnedRouter.load(Path(folder) / "c", lambda_=0.05)
        figures, _ = evaluate_router(router, made[260:], resamples=100, seed=SEED)
    for name in ("checkpoint", "agents"):
        del figures[name]
    return {"figures": figures, **written(checkpoint)}


LEARNED: dict[str, Callable[[], dict[str, Any]]] = {
    "router from a log": lambda: a_router(logged=True),
    "controls": the_controls,
    "trees": trees,
    "probes": probes,
    "difficulty": difficulty,
    "choice": a_choice,
    "adapter": an_adapter,
    "evaluation of a router": an_evaluation,
}


def differences(found: Any, written: Any, at: str = "", *, within: float = 1e-3) -> list[str]:
    """Where the two differ by more than rounding, the processor's among it. `within`: the share that rounding makes."""
    match found, written:
        case dict(), dict():
            if found.keys() != written.keys():
                return [f"{at}: {sorted(found)} instead of {sorted(written)}"]
            return [
                line for key in found for line in differences(found[key], written[key], f"{at}/{key}", within=within)
            ]
        case list(), list() if len(found) == len(written):
            pairs = zip(found, written, strict=True)
            return [line for i, (a, b) in enumerate(pairs) for line in differences(a, b, f"{at}/{i}", within=within)]
        case int() | float(), int() | float():
            same = math.isclose(found, written, rel_tol=within, abs_tol=within / 10) or (
                found != found and written != written
            )
            return [] if same else [f"{at}: {found!r} instead of {written!r}"]
        case _:
            return [] if found == written else [f"{at}: {found!r} instead of {written!r}"]


def check(name: str, *, within: float = 1e-3) -> None:
    """Learns it again, and holds it against what is written."""
    found = json.loads(json.dumps(LEARNED[name]()))
    assert differences(found, json.loads(WRITTEN.read_text(encoding="utf-8"))[name], within=within) == []


def test_a_router_learns_from_a_log_what_it_has_always_learned() -> None:
    check("router from a log")


def test_controls_reach_what_they_have_always_reached() -> None:
    check("controls")


def test_trees_grow_as_they_have_always_grown() -> None:
    check("trees")


def test_probes_learn_what_they_have_always_learned() -> None:
    check("probes")


def test_a_difficulty_is_ordered_as_it_has_always_been() -> None:
    # Ranks of 60 items and a fit in float32: processors with AVX-512 and without it are up to 1.3 % apart.
    check("difficulty", within=0.02)


def test_a_choice_is_made_as_it_has_always_been() -> None:
    check("choice")


def test_an_adapter_learns_what_it_has_always_learned() -> None:
    check("adapter")


@pytest.mark.slow
def test_a_router_is_judged_as_it_has_always_been() -> None:
    check("evaluation of a router")


def test_every_training_that_is_written_down_is_held_against_it() -> None:
    assert set(json.loads(WRITTEN.read_text(encoding="utf-8"))) == set(LEARNED)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    every = {name: rounded(json.loads(json.dumps(learn()))) for name, learn in LEARNED.items()}
    lines = (
        f"{json.dumps(name)}: {{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(of[key])}" for key in of) + "\n}"
        for name, of in every.items()
    )
    WRITTEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    sys.stdout.write(f"{len(every)} trainings\n")
