"""Hidden-state probes at inference: whole calls, single tokens, and a running estimate that never sees the future."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from metaprobe.checkpoints import Calibration, Checkpoint, ContractMismatch, Draft, Training, save_checkpoint
from metaprobe.cli import main
from metaprobe.probes.hidden import HIDDEN_KIND, RUNNING_POSITIONS, ConfidenceProbe, DifficultyProbe
from metaprobe.records.canaries import CANARIES_FILE, CANARY_POSITIONS, CanaryStates
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.store import RunStore
from metaprobe.records.types import POSITIONS, Call, Hidden, Item, Run
from metaprobe.training.linear_probe import linear_graph

WIDTH = 6
TOLERANCE = 1e-6
"""Between a token at a time and all at once: both are float32 in the graph, and add up in another order."""


def source_of(
    layers: Sequence[int] = (2,), width: int = WIDTH, *, model: str = "m", revision: str = "1"
) -> CanaryStates:
    """Returns what a source gives the canaries: golden in `hidden_checkpoint`, and equal for each model's name."""
    ids = tuple(f"canary {i}" for i in range(6))
    shape = (len(ids), len(layers), len(CANARY_POSITIONS), width)
    values = np.random.default_rng(7).normal(size=shape).astype(np.float16)
    tokens = tuple((i, i + 1) for i in range(len(ids)))
    return CanaryStates("an engine 1.0", model, revision, "bfloat16", tuple(layers), ids, tokens, tokens, values)


def hidden_checkpoint(
    path: Path,
    *,
    layers: Sequence[int] = (2,),
    position: str = "answer_last",
    width: int = WIDTH,
    says: Mapping[str, object] | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> Checkpoint:
    """sigmoid(x @ w + 0.1) with w = -0.5 .. 0.5, over these layers one after the other. `says`: what is not true.
    `extra`: by default the golden states of `source_of`."""
    flat = len(layers) * width
    weights = np.linspace(-0.5, 0.5, flat)
    x = np.random.default_rng(0).normal(size=(4, flat)).astype(np.float32)
    graph = linear_graph(
        input_name="hidden",
        mean=np.zeros(flat),
        scale=np.ones(flat),
        weights=weights[:, None],
        intercept=np.array([0.1]),
        outputs=["correct"],
    )
    which = {"layer": layers[0]} if len(layers) == 1 else {"layers": list(layers)}
    draft = Draft(
        kind=HIDDEN_KIND,
        contract={**which, "position": position, "width": width, **(says or {})},
        generator=None,
        calibration=Calibration("platt", "a test"),
        training=Training("sha256:0", 4, 4, 0, "a test"),
    )
    p = 1 / (1 + np.exp(-(x.astype(np.float64) @ weights + 0.1)))
    return save_checkpoint(
        path,
        draft,
        model=graph,
        golden_inputs={"hidden": x},
        expected={"correct": p[:, None].astype(np.float32)},
        card="A test.",
        extra={CANARIES_FILE: source_of(layers, width).to_json()} if extra is None else extra,
        overwrite=True,
    )


@cache
def probe(position: str, layers: tuple[int, ...] = (2,)) -> ConfidenceProbe:
    with TemporaryDirectory() as folder:
        hidden_checkpoint(Path(folder) / "p", layers=layers, position=position)
        return ConfidenceProbe.load(Path(folder) / "p")


def logit(p: np.ndarray) -> np.ndarray:
    p = np.asarray(p, np.float64)
    return np.log(p / (1 - p))


def states(tokens: int, flat: int = WIDTH, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(tokens, flat)).astype(np.float32)


answers = hnp.arrays(
    np.float32, st.tuples(st.integers(0, 30), st.just(WIDTH)), elements=st.floats(-8, 8, width=32, allow_nan=False)
)


@settings(max_examples=30)
@given(answer=answers.filter(len), position=st.sampled_from(RUNNING_POSITIONS))
def test_the_running_estimate_is_what_a_call_cut_there_would_get(answer: np.ndarray, position: str) -> None:
    answer, prompt = answer.astype(np.float16), np.ones(WIDTH, np.float16)
    running = probe(position).running(answer, prompt=prompt)
    assert running.shape == (len(answer),)
    for count in {1, len(answer)}:
        at = [prompt, answer[0], answer[count - 1], answer[:count].astype(np.float64).mean(0)]
        call = Call(id="c", hidden=Hidden(np.stack(at)[None], (2,), POSITIONS[:4]))
        arithmetic = dataclasses.replace(probe(position), on_mismatch="ignore")  # states of any length
        assert arithmetic.read(call) == pytest.approx(running[count - 1], abs=TOLERANCE)


def test_a_later_token_changes_no_earlier_estimate() -> None:
    one, other = states(9), states(9)
    other[6:, 5] += 3
    for position in RUNNING_POSITIONS:
        a, b = (probe(position).running(x, prompt=one[0]) for x in (one, other))
        np.testing.assert_allclose(a[:6], b[:6], rtol=0, atol=TOLERANCE)
        assert (a[-1] != b[-1]) == (position in ("answer_last", "answer_mean"))


def test_the_mean_of_the_tokens_log_odds_is_the_answers() -> None:
    answer = states(40)
    mean = probe("answer_mean")
    assert logit(mean.running(answer)[-1]) == pytest.approx(logit(mean.token_confidence(answer)).mean(), abs=1e-5)


def test_where_the_exact_answer_begins_is_not_known_while_it_is_written() -> None:
    found = probe("before_exact")
    with pytest.raises(ContractMismatch, match="'before_exact', which is known only when the answer is finished"):
        found.running(states(3))
    assert found.token_confidence(states(3)).shape == (3,)


def test_several_layers_are_read_in_the_order_of_the_contract() -> None:
    found, several = probe("answer_last", (4, 1)), states(5, 2 * WIDTH)
    assert found.layers == (4, 1)
    p = found.probability(several)
    np.testing.assert_array_equal(p, found.probability(several.reshape(5, 2, WIDTH)))
    np.testing.assert_allclose(found.running(several.reshape(5, 2, WIDTH)), p, rtol=0, atol=TOLERANCE)
    kept = np.zeros((3, 1, WIDTH), np.float32)
    kept[2, 0], kept[0, 0] = several[0, :WIDTH], several[0, WIDTH:]  # layer 4, then layer 1
    call = Call(id="c", hidden=Hidden(kept, (1, 3, 4), ("answer_last",), canaries=source_of((4, 1))))
    assert found.confidence(call) == pytest.approx(p[0], abs=TOLERANCE)
    with pytest.raises(ContractMismatch, match=r"reads layers \[4, 1\], not one"):
        _ = found.layer
    with pytest.raises(InvalidResponse, match="reads layer 4, layer 1 at answer_last"):
        found.read(dataclasses.replace(call, hidden=Hidden(kept[:2], (1, 3), ("answer_last",))))


def test_difficulty_is_one_minus_the_probability_of_being_right(tmp_path: Path) -> None:
    hidden_checkpoint(tmp_path / "p", position="prompt_last")
    found = DifficultyProbe.load(tmp_path / "p")
    assert (found.layer, found.layers) == (2, (2,))
    x = states(1)
    call = Call(id="c", hidden=Hidden(x[None], (2,), ("prompt_last",), canaries=source_of()))
    assert found.difficulty(call) == pytest.approx(1 - float(found.probability(x)[0]), abs=TOLERANCE)
    np.testing.assert_allclose(found.running(states(4), prompt=x[0]), 1 - found.difficulty(call), atol=TOLERANCE)
    with pytest.raises(InvalidResponse, match="give its state as `prompt`"):
        found.running(states(3))


@pytest.mark.parametrize(
    "wrong", [{"layer": None}, {"layer": True}, {"layer": -1}, {"layers": []}, {"layers": [3, 3]}, {"width": "6"}]
)
def test_a_contract_that_does_not_say_what_is_read_is_refused(wrong: dict[str, object], tmp_path: Path) -> None:
    hidden_checkpoint(tmp_path / "p", says=wrong)
    with pytest.raises(ContractMismatch, match=r"needs layer \(a number\) or layers"):
        ConfidenceProbe.load(tmp_path / "p")


def test_a_contract_that_does_not_fit_its_graph_is_refused(tmp_path: Path) -> None:
    hidden_checkpoint(tmp_path / "p", layers=(1, 2, 3), says={"layers": [1, 2]})
    with pytest.raises(ContractMismatch, match=r"make an input \(any, 12\); the graph has \(None, 18\)"):
        ConfidenceProbe.load(tmp_path / "p")


@pytest.mark.parametrize("bad", [np.zeros((3, WIDTH + 1)), np.zeros(WIDTH), np.zeros((3, 2, WIDTH)), np.array(1.0)])
def test_states_of_another_shape_are_refused(bad: np.ndarray) -> None:
    for read in (probe("answer_mean").token_confidence, probe("answer_mean").running):
        with pytest.raises(InvalidResponse, match=r"have shape .*this probe reads \(n, 6\)"):
            read(bad)


@pytest.mark.parametrize("position", ["answer_last", "answer_mean", "answer_first"])
def test_a_state_that_is_not_finite_is_refused(position: str) -> None:
    answer = states(4)
    answer[0, 3] = np.inf
    with pytest.raises(InvalidResponse, match="NaN or infinity"):
        probe(position).running(answer)


@pytest.mark.parametrize("position", ["prompt_last", "answer_last"])
def test_a_store_is_scored_by_its_states_and_an_answer_without_them_says_so(tmp_path: Path, position: str) -> None:
    kept = Hidden(states(2).astype(np.float16)[None], (2,), ("prompt_last", "answer_last"), canaries=source_of())
    calls = [Call(id="kept", model="m", text="4", hidden=kept), Call(id="bare", model="m", text="4")]
    item = Item(id="i", task="sums", question="2 + 2?")
    runs = [Run(id=call.id, system="s", item=item, variant="v", calls=(call,)) for call in calls]
    RunStore(tmp_path / "runs").append(runs)
    read = DifficultyProbe.of(hidden_checkpoint(tmp_path / "p", position=position))
    expected = read.read(calls[0])

    def score(*options: object) -> list[dict[str, object]]:
        done = CliRunner().invoke(main, ["score", str(tmp_path / "p"), str(tmp_path / "runs"), *map(str, options)])
        return [json.loads(line) for line in done.stdout.splitlines()]

    scored, bare = score()
    assert (scored["call"], scored["score"], scored["flagged"]) == ("kept", pytest.approx(expected, abs=1e-6), None)
    assert (bare["call"], bare["score"]) == ("bare", None)
    assert "RunStore.runs(hidden=True)" in str(bare["reason"])
    assert [score("--flag-below", expected + by)[0]["flagged"] for by in (-0.01, 0.01)] == [False, True]
    [stored] = [run.calls[0] for run in RunStore(tmp_path / "runs").runs(hidden=True) if run.id == "kept"]
    assert read.read(stored) == pytest.approx(expected, abs=1e-6)
