"""Every training learns the recorded numbers from given outcomes: numbers in the docs, and checkpoints in use, rest on
it.

The numbers are those of the settings that research chose; a change of one of them, or a seed that no longer arrives,
shows here. `python tests/test_what_is_learned.py` writes the file again, for whoever means the change.
"""

import dataclasses
import json
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # where it is run as a script
from conftest import made_up
from routed_worlds import logged_outcomes, outcomes

from metaprobe.checkpoints import Checkpoint, OperatingPoint, UntrustedCheckpoint
from metaprobe.probes.adapter import Encoder
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.records.store import RunStore
from metaprobe.routing.panel.asking import Panel
from metaprobe.training.folds import final_roles
from metaprobe.training.panel.labelled_panels import panels_of_outcomes
from metaprobe.training.recipes.panel import train_router
from metaprobe.training.recipes.panel_evaluate import evaluate_panel
from metaprobe.training.training_options import RouterOptions
from metaprobe.training.trees import fit_trees

WRITTEN = Path(__file__).parent / "what_is_learned.json"
SEED = 3
"""Another than the default, so that it must be passed on."""


def written(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns a checkpoint's manifest, without versions and digests."""
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
    """Returns the effect of the stored flag threshold."""
    if own is None:
        return []
    return [own.option, own.value, *([one.estimate, one.low, one.high] for one in (own.flagged, own.caught, own.cost))]


def a_router(questions: list[QuestionOutcomes]) -> tuple[Panel, dict[str, Any]]:
    """A panel that was trained on outcomes, and what it learned of whom to ask."""
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)
        options = RouterOptions(out=Path(folder) / "c", seed=SEED, command="called so")
        panel = Panel(train_router(questions, options))
    asks = panel.asks
    assert asks is not None
    return panel, {
        "settings": {
            way: [[one.cost, one.accuracy, one.price, *one.agents, *one.thresholds] for one in many[::4]]
            for way, many in asks.curves.settings.items()
        },
        "budgets": asks.curves.budgets[::10].tolist(),
        "accuracy": {way: values[::10].tolist() for way, values in asks.curves.accuracy.items()},
        "price": asks.price.tolist(),
        "words": asks.words.shifts("red new loud").tolist(),
        **written(panel.checkpoint),
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


def an_adapter() -> dict[str, Any]:
    """Losses on the selection rows, and log-odds, of a tiny base."""
    pytest.importorskip("peft")
    from tiny_adapter import run_of, tiny, tiny_tokenizer

    from metaprobe.training.adapter.examples import adapter_roles, examples
    from metaprobe.training.adapter.fit_lora import fit_adapter, scored_log_odds
    from metaprobe.training.adapter.scorer import AdapterSettings
    from metaprobe.training.text_data import load_texts

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
        "log odds": scored_log_odds(fitted.scorer, texts.ids[::30], 4).tolist(),
    }


def an_evaluation() -> dict[str, Any]:
    """A router's figures on other questions, beside every simple way."""
    made = outcomes(340)
    panel, learned = a_router(made[:260])
    figures = evaluate_panel(panel, panels_of_outcomes(made[260:]), budget=1.0, seed=SEED, resamples=100)
    for name in ("checkpoint", "agents", "decisions"):
        del figures[name]
    return {"figures": figures, **learned}


LEARNED: dict[str, Callable[[], dict[str, Any]]] = {
    "router from a log": lambda: a_router(logged_outcomes())[1],
    "trees": trees,
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


def test_trees_grow_as_they_have_always_grown() -> None:
    check("trees")


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
