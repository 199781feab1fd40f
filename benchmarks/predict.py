"""How fast responses are judged, against what one would use instead; equal answers are asserted, in the same run.

    python -m benchmarks.predict
    pip install --no-deps --target PEERS artefactual uqlm skops beartype
    python -m benchmarks.predict --peers PEERS --json predict.json

Random log-probabilities, nothing from outside. The model has 300 trees of up to 31 leaves on the full schema, trained
here (needs the extra `train`). One thread; set OMP_NUM_THREADS=1. Two calls that are compared are timed in turns, and
each one's best median of the turns counts. artefactual also needs scikit-learn and pydantic, uqlm's scorers SciPy; the
rest of uqlm (torch, langchain) is not loaded. What is absent is skipped, and says so.
"""

import argparse
import copy
import importlib
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime

from metaprobe.checkpoints import Draft, save_checkpoint
from metaprobe.checkpoints.checkpoint import GraphSession
from metaprobe.probes.blend import BlendPredictor
from metaprobe.probes.features import TERM_NAMES, WINDOWS, entropy, features, features_one, schema
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.response import alternatives
from metaprobe.records.types import Hidden
from metaprobe.routing.gate import StreamingGate
from research.quality.wepr import Wepr

TOKENS, RANKS, RESPONSES = 512, 15, 64
WIDTH = 1536
"""Numbers in a hidden state: as many as a model of 1.5 billion weights has."""
FULL = schema("full")
BARE = "bare ONNX call"
Call = Callable[[], object]


@dataclass(frozen=True)
class Row:
    what: str
    ours_us: float
    """Median."""
    ours_p99_us: float
    other: str
    other_us: float
    ratio: float
    """How many times faster than the other; below 1 where slower."""
    target: str


def naive(x: np.ndarray) -> np.ndarray:
    """Windows x statistics as one would write them down, one NumPy call a number, float64."""
    out = []
    for window in WINDOWS:
        w = window.width(len(x))
        if w == 0:
            out += [np.nan] * 8
            continue
        part = x[len(x) - w :] if window.from_end else x[:w]
        slope = np.polyfit(np.arange(w), part, 1)[0] if w > 1 else np.nan
        statistics = (np.mean, np.median, np.min, np.max, np.var, np.std, np.ptp)
        out += [*(statistic(part) for statistic in statistics), slope]
    return np.array([*out, len(x)])


def rounds(*calls: Call, turns: int, calls_a_turn: int) -> list[tuple[float, float]]:
    """(median, 99th percentile) in microseconds of each call, timed in turns; the turn with the best median counts."""
    best = [(np.inf, np.inf)] * len(calls)
    for _ in range(turns):
        for i, call in enumerate(calls):
            times = []
            for _ in range(calls_a_turn):
                start = time.perf_counter_ns()
                call()
                times.append(time.perf_counter_ns() - start)
            p50, p99 = np.percentile(times, [50, 99]) / 1e3
            best[i] = min(best[i], (float(p50), float(p99)))
    return best


def compared(what: str, ours: Call, other: str, theirs: Call, target: str, *, turns: int, calls: int) -> Row:
    (mine, p99), (they, _) = rounds(ours, theirs, turns=turns, calls_a_turn=calls)
    return Row(what, mine, p99, other, they, they / mine, target)


def random_trees(rows: int) -> tuple[np.ndarray, Any, bytes]:
    """Features of random responses (rows, d), 300 trees of up to 31 leaves on them, and their graph."""
    import lightgbm

    from metaprobe.training.calibrators import Platt
    from metaprobe.training.recipes.train_quality import trees_graph
    from metaprobe.training.trees import Trees, float32_thresholds

    rng = np.random.default_rng(0)
    X = features(FULL, [(-rng.exponential(0.5, n)).astype(np.float32) for n in rng.integers(20, 600, rows).tolist()])
    y = (rng.random(len(X)) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
    parameters = {"num_leaves": 31, "objective": "binary", "verbosity": -1, "num_threads": 1}
    booster = lightgbm.train(parameters, lightgbm.Dataset(X, y), 300)
    trees = Trees(float32_thresholds(booster), {}, 0.5)
    return X, booster, trees_graph({"correct": (trees, Platt(1.0, 0.0))}, width=X.shape[1])


def predictor(folder: Path) -> QualityPredictor:
    """300 trees on random responses, saved and loaded as a checkpoint."""
    X, _, model = random_trees(3000)
    draft = Draft(kind="quality", contract={"schema": "full", "features": [*FULL.names]}, thresholds={"flag": 0.5})
    inputs = {"features": X[:64]}
    expected = GraphSession(model).run(inputs)
    save_checkpoint(folder, draft, model=model, golden_inputs=inputs, expected=expected, card="bench")
    return QualityPredictor.load(folder)


def blend_rows(folder: Path, turns: int) -> Iterator[Row]:
    """A verdict from a state and log-probabilities, by random weights, saved and loaded as a checkpoint."""
    from metaprobe.training.methods import LinearScore
    from metaprobe.training.recipes.train_blend import FittedBlend

    rng, widths = np.random.default_rng(4), {"features": len(TERM_NAMES), "hidden": WIDTH}
    parts = {name: LinearScore(np.zeros(d), np.ones(d), rng.normal(size=d) / d, 0.0) for name, d in widths.items()}
    weights = np.array([[0, 0], [1, 0], [0, 1], [0.6, 0.8]])
    model = FittedBlend(parts, weights, np.zeros(4)).graph("correct")
    states = {"hidden": {"layers": [14], "position": "answer_mean", "width": WIDTH}}
    contract = {"schema": "terms", "features": list(TERM_NAMES), "states": states}
    inputs = {name: rng.normal(size=(16, d)).astype(np.float32) for name, d in widths.items()}
    draft = Draft(kind="blend", contract=contract, thresholds={"flag": 0.5})
    expected = GraphSession(model).run(inputs)
    save_checkpoint(folder, draft, model=model, golden_inputs=inputs, expected=expected, card="bench")
    judge: BlendPredictor = BlendPredictor.load(folder)  # type: ignore[assignment]
    one = random_logprobs(np.random.default_rng(5))
    hidden = Hidden(rng.normal(size=(1, 1, WIDTH)).astype(np.float32), (14,), ("answer_mean",))
    session = judge.checkpoint.session._session
    row = {"features": features_one(judge.schema, one)[None], "hidden": hidden.values[:, 0]}
    assert judge.predict(one, hidden=hidden).score == session.run(None, row)[0].item()
    what, bare = f"list of {TOKENS} and a state of {WIDTH} to a blend's verdict", lambda: session.run(None, row)
    ours = partial(judge.predict, one, hidden=hidden)
    yield compared(what, ours, BARE, bare, "<= 60 us", turns=turns, calls=2000)


def random_logprobs(rng: np.random.Generator, n: int = TOKENS) -> list[float]:
    """Returns n random log-probabilities, as a response has them."""
    numbers: list[float] = (-rng.exponential(0.5, n)).astype(np.float32).tolist()
    return numbers


def completion(logprobs: list[float], seed: int) -> dict[str, Any]:
    """A chat completion with 15 alternatives at each token, as OpenAI spells it.

    The drawn token is among its alternatives, and the others share a part of the rest of the probability: numbers that
    cannot be would time how a fault is said.
    """
    rng = np.random.default_rng(seed)
    shares = np.maximum(rng.dirichlet(np.ones(RANKS), len(logprobs)), 1e-12)[:, 1:]
    others = np.log(shares) + np.log(np.maximum(-np.expm1(logprobs), 1e-12))[:, None]

    def entry(token: str, logprob: float) -> dict[str, Any]:
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    content = []
    for x, row in zip(logprobs, others.tolist(), strict=True):
        drawn = entry(f" w{rng.integers(500)}", x)
        listed = [drawn, *(entry(f" v{i}", v) for i, v in enumerate(row))]
        content.append({**drawn, "top_logprobs": sorted(listed, key=lambda one: -one["logprob"])})
    message = {"role": "assistant", "content": "".join(e["token"] for e in content), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": {"content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": len(logprobs), "total_tokens": 9 + len(logprobs)}
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


def forms_of(whole: list[dict[str, Any]]) -> list[tuple[str, list[Any]]]:
    """The responses as dictionaries, and as objects of the openai package where it is installed."""
    try:
        from openai.types.chat import ChatCompletion
    except ModuleNotFoundError:
        print("openai is not installed: responses are dictionaries only")
        return [("dictionary", whole)]
    objects = [ChatCompletion.model_validate({**one, "created": 0}) for one in whole]
    return [("dictionary", whole), ("openai object", objects)]


def own_rows(judge: QualityPredictor, turns: int) -> Iterator[Row]:
    """Against the bare model, naive NumPy and json.loads."""
    rng = np.random.default_rng(1)
    lists = [random_logprobs(rng) for _ in range(RESPONSES)]
    session = judge.checkpoint.session._session  # the same one, without our checks
    rows = [{"features": features_one(FULL, x)[None]} for x in lists]
    for x, row in zip(lists, rows, strict=True):
        np.testing.assert_allclose(row["features"][0], naive(np.array(x)), rtol=1e-6, atol=1e-6)
        assert judge.predict(x).score == session.run(None, row)[0].item()

    def naively(x: list[float]) -> float:
        row = naive(np.array(x)).astype(np.float32)[None]
        return session.run(None, {"features": row})[0].item()

    one, row = lists[0], rows[0]
    run, bare = itertools.cycle(lists), itertools.cycle(rows)
    what, target = f"list of {TOKENS} to a verdict", ">= 0.20 (5x the bare call), p99 < 1000"
    in_turn, plain = (lambda: judge.predict(next(run))), (lambda: session.run(None, next(bare)))
    again, same = partial(judge.predict, one), partial(session.run, None, row)
    many = f"{what}, {RESPONSES} responses in turn"
    yield compared(many, in_turn, BARE, plain, target, turns=turns, calls=2000)
    yield compared("the same response again and again", again, BARE, same, "", turns=turns, calls=2000)
    yield compared(what, again, "naive NumPy, then ONNX", partial(naively, one), "", turns=turns, calls=100)
    body = json.dumps(completion(one, 0), separators=(",", ":")).encode()
    assert judge.predict(body).score == judge.predict(one).score

    def loaded() -> float:
        entries = json.loads(body)["choices"][0]["logprobs"]["content"]
        return naively([entry["logprob"] for entry in entries])

    what = f"raw body of {len(body) / 1e3:.0f} kB to a verdict"
    if importlib.util.find_spec("msgspec") is None:
        what += " (msgspec is not installed: json.loads)"
    yield compared(what, lambda: judge.predict(body), "json.loads, then naive", loaded, ">= 5", turns=turns, calls=40)


def response_rows(turns: int) -> Iterator[Row]:
    """The bundled predictor, which reads no alternatives, on whole responses that have 15 of them at each token."""
    judge = QualityPredictor.load(on_mismatch="ignore")
    rng = np.random.default_rng(6)
    lists = [random_logprobs(rng) for _ in range(8)]
    whole = [completion(one, seed) for seed, one in enumerate(lists)]
    for name, given in forms_of(whole):
        assert [judge.predict(one).score for one in given] == [judge.predict(one).score for one in lists]
        turn, plain = (partial(next, itertools.cycle(some)) for some in (given, lists))
        what = f"bundled predictor, {name} of {TOKENS} with {RANKS} alternatives"
        ours, theirs = (lambda next_one=next_one: judge.predict(next_one()) for next_one in (turn, plain))
        in_turn, target = f"{what}, {len(given)} responses in turn", ">= 0.33 (3x the list)"
        yield compared(in_turn, ours, "the list of numbers alone", theirs, target, turns=turns, calls=400)
        if name == "dictionary":
            touch = partial(touched, turn)
            yield compared(
                in_turn, ours, "touching each token's dictionary, no more", touch, "", turns=turns, calls=400
            )
        again, same = partial(judge.predict, given[0]), partial(judge.predict, lists[0])
        yield compared(f"{what}, the same again", again, "the list of numbers alone", same, "", turns=turns, calls=400)
        yield just_decoded(what, judge, given, lists, turns)
        [(one, _), (many, p99)] = rounds(
            lambda given=given: [judge.predict(one) for one in given],  # type: ignore[misc]
            partial(judge.predict_many, given),
            turns=turns,
            calls_a_turn=100,
        )
        of = len(given)
        yield Row(f"predict_many of {of}, a {name}", many / of, p99 / of, "predict", one / of, one / many, ">= 1")


def touched(next_one: Callable[[], dict[str, Any]]) -> tuple[list[str], list[float]]:
    """Returns token and log-probability of each entry by the shortest loop: no reader of dictionaries takes less."""
    entries = next_one()["choices"][0]["logprobs"]["content"]
    return [entry["token"] for entry in entries], [entry["logprob"] for entry in entries]


def just_decoded(what: str, judge: QualityPredictor, given: list[Any], lists: list[list[float]], turns: int) -> Row:
    """A response and a list that were made a moment ago, as a caller has them: little of the processor's cache is left.

    `given`: responses, which are copied each time.
    """
    times: dict[str, list[float]] = {"ours": [], "list": []}
    for number in range(8 * turns):
        for name, sources in (("ours", given), ("list", lists)):
            whole = copy.deepcopy(given[number % len(given)])
            one = whole if name == "ours" else list(sources[number % len(sources)])
            start = time.perf_counter_ns()
            judge.predict(one)
            times[name].append((time.perf_counter_ns() - start) / 1e3)
    (mine, p99), (they, _) = (np.percentile(times[name], [50, 99]) for name in ("ours", "list"))
    other = "the list of numbers alone"
    return Row(f"{what}, made a moment ago", float(mine), float(p99), other, float(they), float(they / mine), "")


def wepr_rows(artefactual: ModuleType, turns: int) -> Iterator[Row]:
    rng = np.random.default_rng(2)
    fitted_on = [completion((-rng.exponential(0.5, 40)).tolist(), seed) for seed in range(40)]
    detector = artefactual.WEPR(k=RANKS).fit(fitted_on, np.arange(40) % 2)
    mine = Wepr(tuple(detector.estimator.coef_[0].tolist()), float(detector.estimator.intercept_[0]))
    response = completion((-rng.exponential(0.5, TOKENS)).tolist(), 99)
    for name, [given] in forms_of([response]):
        assert abs(mine.probability(given) - detector.predict_proba(given)[0, 1]) < 1e-6
        what, ours = f"WEPR from a response of {TOKENS} ({name})", partial(mine.probability, given)
        theirs = partial(detector.predict_proba, given)
        yield compared(what, ours, "artefactual", theirs, ">= 15", turns=turns, calls=20)

    def plainly() -> float:
        entries = response["choices"][0]["logprobs"]["content"]
        top = np.array([[other["logprob"] for other in entry["top_logprobs"]] for entry in entries])
        s = -np.exp(top) * top
        z = np.concatenate([s.mean(axis=0), s.max(axis=0)]) @ np.array(mine.coefficients) + mine.intercept
        return float(np.exp(-np.logaddexp(0, -z)))

    what = f"WEPR from a response of {TOKENS} (dictionary)"
    yield compared(what, partial(mine.probability, response), "plain NumPy", plainly, "", turns=turns, calls=50)


def uqlm_rows(judge: QualityPredictor, turns: int) -> Iterator[Row]:
    """uqlm's white-box scorers on the entries of one response."""
    without_packages("uqlm", "uqlm.white_box")
    single, top = (importlib.import_module(f"uqlm.white_box.{kind}_logprobs") for kind in ("single", "top"))
    rng = np.random.default_rng(3)
    response = completion((-rng.exponential(0.5, TOKENS)).tolist(), 7)
    entries = response["choices"][0]["logprobs"]["content"]
    ranked, simple = top.TopLogprobsScorer(top_k_logprobs=RANKS), single.SingleLogprobsScorer()

    def ours() -> list[float]:
        table = alternatives([entry["top_logprobs"] for entry in entries])
        assert table is not None
        negentropy = 1 - entropy(table) / np.log(RANKS)
        p = np.exp(table[:, :2].astype(np.float64))
        return [float(negentropy.min()), float(negentropy.mean()), float((p[:, 0] - p[:, 1]).mean())]

    def simply() -> list[float]:
        logprobs = np.array([entry["logprob"] for entry in entries])
        return [float(np.exp(logprobs.min())), float(np.exp(logprobs.mean()))]

    for mine, theirs in ((ours(), ranked.evaluate([entries])), (simply(), simple.evaluate([entries]))):
        np.testing.assert_allclose(mine, [values[0] for values in theirs.values()], atol=1e-6)
    what, theirs = "negentropy (minimum, mean) and probability margin", partial(ranked.evaluate, [entries])
    yield compared(what, ours, "uqlm TopLogprobsScorer", theirs, "", turns=turns, calls=20)
    what, other = "a verdict from the same entries", "uqlm sequence and minimum probability"
    verdict, theirs = partial(judge.predict, response), partial(simple.evaluate, [entries])
    yield compared(what, verdict, other, theirs, "none: two simpler scores", turns=turns, calls=40)


def without_packages(*names: str) -> None:
    """Lets modules of these packages be imported without what the packages themselves load, as torch and langchain.

    Raises `ModuleNotFoundError` where one is not installed.
    """
    for name in names:
        places = [str(at) for place in sys.path if (at := Path(place) / name.replace(".", "/")).is_dir()]
        if not places:
            raise ModuleNotFoundError(f"No module named {name!r}")
        sys.modules.setdefault(name, ModuleType(name)).__path__ = places


def gate_push_us(turns: int) -> dict[str, float]:
    """Median microseconds of one token into the bundled gate, the graph's run at a look included."""
    gates = StreamingGate.load(stop=0.02)
    rng = np.random.default_rng(5)
    at_look: list[float] = []
    between: list[float] = []
    for _ in range(40 * turns):
        gate, tokens = gates.start(), (-rng.exponential(0.02, 50)).tolist()  # so sure that nothing is stopped
        for number, logprob in enumerate(tokens, start=1):
            start = time.perf_counter_ns()
            action = gate.push(logprob)
            took = (time.perf_counter_ns() - start) / 1e3
            (at_look if number in gates.looks else between).append(took)
            if action != "continue":
                break
    return {"between_looks": float(np.median(between)), "at_look": float(np.median(at_look))}


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of judging a response, against its rivals.")
    parser.add_argument("--peers", type=Path, help="folder into which artefactual and uqlm were installed")
    parser.add_argument("--turns", type=int, default=5, help="the best of so many turns counts (default: 5)")
    parser.add_argument("--responses", type=int, default=10_000, help="responses in the batch (default: 10000)")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    if options.peers:
        sys.path.append(str(options.peers))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        judge = predictor(Path(folder) / "checkpoint")
        rows += own_rows(judge, options.turns)
        rows += blend_rows(Path(folder) / "blend", options.turns)
        rows += response_rows(options.turns)
        install = "pip install --no-deps --target PEERS artefactual uqlm skops beartype, then --peers PEERS"
        try:
            rows += wepr_rows(importlib.import_module("artefactual.scoring"), options.turns)
        except ModuleNotFoundError as error:
            print(f"artefactual is skipped ({error}): {install}")
        try:
            rows += uqlm_rows(judge, options.turns)
        except ModuleNotFoundError as error:
            print(f"uqlm is skipped ({error}): {install}")
    rng = np.random.default_rng(4)
    batch = [(-rng.exponential(0.5, 256)).astype(np.float32) for _ in range(options.responses)]
    [(microseconds, _)] = rounds(lambda: features(FULL, batch), turns=options.turns, calls_a_turn=1)
    tokens_a_second = 256 * len(batch) * 1e6 / microseconds

    for row in rows:
        timed = f"{row.ours_us:.1f} us (p99 {row.ours_p99_us:.1f}); {row.other}: {row.other_us:.1f} us"
        print(f"{row.what}: {timed}, {row.ratio:.2f} times as fast; target: {row.target or 'none'}")
    print(f"features of {len(batch)} responses x 256 tokens: {tokens_a_second / 1e6:.1f} M tokens/s (target 30)")
    gate = gate_push_us(options.turns)
    print(f"one token into the gate: {gate['between_looks']:.2f} us between looks, {gate['at_look']:.1f} us at a look")
    machine = (
        f"NumPy {np.__version__}, ONNX Runtime {onnxruntime.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    print(machine)
    if options.json:
        figures = {
            "rows": [asdict(row) for row in rows],
            "batch_tokens_a_second": tokens_a_second,
            "gate_us": gate,
            "machine": machine,
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
