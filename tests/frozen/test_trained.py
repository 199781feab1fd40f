"""Checkpoints that the commands train from recorded runs: their figures, and what they say of other runs.

Fits in float32 and LightGBM's sums differ between processors with AVX-512 and without: `WITHIN` holds by how much.
"""

import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from frozen.freeze import RECORDED, check, done

import metaprobe
from metaprobe import RunStore

pytestmark = pytest.mark.filterwarnings("ignore")  # whether so little data passes every audit is not the subject here
SEED = 3
"""Another than the default, so that it must be passed on."""
SOON = ("--folds", 2, "--seed", SEED)
"""Settings with which a training takes a second or two."""


def parts(folder: Path, store: str, train: int, new: int, *, hidden: bool = False) -> tuple[Path, list[Any]]:
    """A store of the first `train` runs, and the `new` runs after them."""
    runs = list(islice(RunStore(RECORDED / store).runs(hidden=hidden), train + new))
    RunStore(folder / "runs").append(runs[:train])
    return folder / "runs", runs[train:]


def figures(checkpoint: Path) -> dict[str, Any]:
    """Returns the learned numbers that a checkpoint's manifest holds."""
    manifest = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
    contract = {name: value for name, value in manifest["contract"].items() if isinstance(value, str | int | float)}
    return {
        "kind": manifest["kind"],
        "contract": contract,
        "calibration": (manifest["calibration"] or {}).get("method"),
        "training": {name: manifest["training"][name] for name in ("n", "groups", "seed")},
        "thresholds": manifest["thresholds"],
        "metrics": {
            name: [found[part] for part in ("estimate", "low", "high", "n")]
            for name, found in manifest["metrics"].items()
        },
    }


def spread(scores: list[float]) -> dict[str, Any]:
    """Summarises the scores of new answers: their sum, some of them, and the order of these."""
    some = scores[:: max(1, len(scores) // 12)]
    return {"n": len(scores), "sum": math.fsum(scores), "some": some}


def answers(runs: list[Any]) -> list[Any]:
    return [call for one in runs for call in one.calls if call.stage == "answer"]


def quality(folder: Path) -> dict[str, Any]:
    runs, new = parts(folder, "qwen-coder-0.5b-arithmetic", 400, 200)
    done("train", "quality", runs, "--target", "correct", "--out", folder / "c", *SOON)
    verdicts = metaprobe.QualityPredictor.load(folder / "c").predict_many(answers(new))
    scores = [one.score for one in verdicts if one.score is not None]
    return {**figures(folder / "c"), **spread(scores), "flagged": sum(one.flagged is True for one in verdicts)}


def hidden(folder: Path) -> dict[str, Any]:
    runs, new = parts(folder, "smollm2-metacog-eval", 180, 60, hidden=True)
    asked = ("--target", "correct", "--position", "answer_last", "--layers", "15")
    done("train", "hidden", runs, *asked, "--out", folder / "c", *SOON)
    probe = metaprobe.ConfidenceProbe.load(folder / "c", on_mismatch="ignore")  # the store is older than canaries
    return {**figures(folder / "c"), **spread([probe.confidence(call) for call in answers(new)])}


def difficulty(folder: Path) -> dict[str, Any]:
    runs, new = parts(folder, "smollm2-metacog-eval", 180, 60, hidden=True)
    asked = ("--when", "before", "--target", "correct", "--layers", "9")
    done("train", "hidden", runs, *asked, "--out", folder / "c", *SOON)
    probe = metaprobe.DifficultyProbe.load(folder / "c", on_mismatch="ignore")
    return {**figures(folder / "c"), **spread([probe.difficulty(call) for call in answers(new)])}


def gate(folder: Path) -> dict[str, Any]:
    runs, new = parts(folder, "gsm8k-samples", 90, 20)
    done("train", "gate", runs, "--alpha", 0.1, "--alpha", 0.3, "--out", folder / "c", *SOON)
    found: dict[str, Any] = {**figures(folder / "c"), "fired": {}}
    for alpha in (0.1, 0.3):
        gates = metaprobe.StreamingGate.load(folder / "c", stop=alpha)
        for with_question in (True, False):
            scores, actions = [], []
            for call in answers(new):
                question = call.messages[-1].content if with_question else ""
                stream = gates.start(model=call.model, logprobs_mode="raw", question=question)
                actions += [[stream.push(float(logprob)) for logprob in call.logprobs][-1]]
                scores += [stream.score] if stream.score is not None else []
            found["fired"][f"{alpha}, {'question' if with_question else 'log-probabilities'}"] = actions.count("stop")
            found["with the question" if with_question else "log-probabilities alone"] = spread(scores)
    return found


def router(folder: Path) -> dict[str, Any]:
    runs, new = parts(folder, "metacog-every-agent", 300, 60)
    prices = ("--prices", RECORDED / "prices.json")
    done("train", "router", runs, *prices, "--out", folder / "c", "--seed", SEED)
    lines = []
    for number, one in enumerate(new):
        texts = {call.agent: call.text for call in one.calls if call.stage == "answer"}
        stated = {s.call_id.rpartition("/")[2]: s.value for s in one.statements if s.kind == "confidence"}
        agents = [{"answer": texts[name], "confidence": stated.get(name)} for name in sorted(texts)]
        known = dict(list(zip(sorted(texts), agents, strict=True))[: number % 3])
        lines.append({"question": one.item.question, "dimension": one.item.dimension, "agents": known})
    (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    printed = [json.loads(line) for line in done("route", folder / "c", folder / "lines.jsonl").splitlines()]
    decided = [f"{one['action']} {one['agent']}" for one in printed]
    return {
        **figures(folder / "c"),
        **spread([one["expected"] for one in printed]),
        "decided": {each: decided.count(each) for each in sorted(set(decided))},
    }


PARTS = {
    "quality": quality,
    "hidden": hidden,
    "difficulty": difficulty,
    "gate": gate,
    "router": router,
}
WITHIN: dict[str, dict[str, float]] = {
    "hidden": {"": 1e-4, "/metrics/aurc": 1e-3},
    "difficulty": {"": 5e-3},
    "gate": {"/metrics": 1e-4},
}
"""Part -> beginning of a place -> share by which it may differ from one processor to another.

Processors that multiply bfloat16 take rounded steps on the way to a probe (`training.solve`). That moves its scores by
3e-6, and ranks with them. Two answers whose scores of a gate are nearly equal may change places, which moves an AUROC
by 4e-6.
"""


@pytest.mark.parametrize("part", [pytest.param(part, marks=[pytest.mark.slow] * (part == "gate")) for part in PARTS])
def test_trainings_learn_what_they_learned(part: str, tmp_path: Path) -> None:
    check("trained", part, PARTS[part](tmp_path), within=WITHIN.get(part))
