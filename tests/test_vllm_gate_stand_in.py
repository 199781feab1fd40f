"""The gate as vLLM's logits processor, in a made-up vLLM: what it asks of requests, reads and forces."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from metaprobe.checkpoints import CheckpointError
from metaprobe.routing.gate import StreamingGate

torch = pytest.importorskip("torch")

WORDS = 12
OWN_END, OTHER_END = 7, 9


class PlannedGate:
    """A gate that stops at a given push, and keeps what it was shown."""

    def __init__(self, stops_at: int | None) -> None:
        self.stops_at, self.pushed, self.action = stops_at, [], "continue"

    def push(self, logprob: float) -> str:
        from metaprobe.records.errors import InvalidResponse

        if logprob == -torch.inf:
            raise InvalidResponse("no such token")
        self.pushed.append(logprob)
        if self.stops_at is not None and len(self.pushed) >= self.stops_at:
            self.action = "stop"
        return self.action


class PlannedGates:
    """In the place of `StreamingGate`: keeps what was loaded, for which rates gates were made, and which were begun."""

    stops_at: int | None = None
    alphas = (0.05, 0.1, 0.2)

    def __init__(self) -> None:
        self.loaded: list[tuple[Any, dict[str, Any]]] = []
        self.made: list[tuple[Any, float]] = []
        self.begun: list[tuple[str, PlannedGate]] = []
        self.heads = SimpleNamespace()

    def load(self, path: str | None, **options: Any) -> "PlannedGates":
        self.loaded.append((path, options))
        return self

    def __call__(self, heads: Any, *, stop: float) -> "PlannedGates":
        self.made.append((heads, stop))
        return self

    def start(self, *, model: str) -> PlannedGate:
        gate = PlannedGate(self.stops_at)
        self.begun.append((model, gate))
        return gate


def process(states: dict[int, Any], update: Any, begin: Any) -> bool:
    """Does the same as vLLM's helper of this name: rows that came, that went, and that moved."""
    for row in update.removed if update else ():
        states.pop(row, None)
    for row, params, prompt, drawn in update.added if update else ():
        if (state := begin(params, prompt, drawn)) is not None:
            states[row] = state
        else:
            states.pop(row, None)
    for one, other in update.moved if update else ():
        states[other] = states.pop(one)
    return bool(states)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    processor, builtin = ModuleType("vllm.v1.sample.logits_processor"), ModuleType("builtin")
    processor.BatchUpdate, processor.LogitsProcessor = object, object  # type: ignore[attr-defined]
    builtin.process_dict_updates = process  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.sample"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.logits_processor", processor)
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.logits_processor.builtin", builtin)
    sys.modules.pop("metaprobe.serving.vllm_gate", None)
    loaded = importlib.import_module("metaprobe.serving.vllm_gate")
    monkeypatch.delenv("METAPROBE_GATE", raising=False)
    yield loaded
    sys.modules.pop("metaprobe.serving.vllm_gate", None)


@pytest.fixture
def gates(module: Any, monkeypatch: pytest.MonkeyPatch) -> PlannedGates:
    planned = PlannedGates()
    monkeypatch.setattr(module, "StreamingGate", planned)
    return planned


def config(*, end: Any = OWN_END, text_end: int = 3, served: str | None = "served") -> Any:
    model = SimpleNamespace(
        served_model_name=served,
        model="folder",
        try_get_generation_config=lambda: {} if end is None else {"eos_token_id": end},
        hf_text_config=SimpleNamespace(eos_token_id=text_end),
    )
    return SimpleNamespace(model_config=model)


def params(**asked: Any) -> Any:
    return SimpleNamespace(extra_args=asked or None, stop_token_ids=[OTHER_END])


def update(*added: Any, removed: tuple[int, ...] = (), moved: tuple[tuple[int, int], ...] = ()) -> Any:
    return SimpleNamespace(added=added, removed=removed, moved=moved)


def made(module: Any, **about: Any) -> Any:
    return module.GateLogitsProcessor(config(**about), torch.device("cpu"), False)


def step(processor: Any, seed: int, rows: int = 1) -> tuple[Any, Any]:
    """The logits of a step before and after the processor."""
    before = torch.randn(rows, WORDS, generator=torch.Generator().manual_seed(seed))
    return before, processor.apply(before.clone())


def unlikely(processor: Any, drawn: list[int], seed: int) -> Any:
    """The logits after one more step of an answer of the most unlikely words."""
    before, after = step(processor, seed)
    drawn.append(int(before[0].argmin()))
    return after


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        *((rate, "a false-alarm rate such as 0.05") for rate in (0, 1.0, -0.1, True, False, "0.1", [0.1])),
        *((rate, "one of .*: 0.02, 0.05, 0.1, 0.2, 0.3") for rate in (1e-9, 0.06)),
    ],
)
def test_a_rate_that_the_gate_cannot_promise_is_refused_before_the_engine_sees_it(
    module: Any, rate: Any, expected: str
) -> None:
    with pytest.raises(ValueError, match=rf"metaprobe_gate is .*; expected {expected}"):
        module.GateLogitsProcessor.validate_params(params(metaprobe_gate=rate))


def test_a_gate_that_cannot_be_read_stops_the_server_at_its_start(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("METAPROBE_GATE", str(tmp_path / "none"))
    with pytest.raises(CheckpointError, match="none"):
        made(module)


def test_a_gate_whose_folder_is_lost_later_goes_on(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(StreamingGate.load().checkpoint.path, tmp_path / "gate")
    monkeypatch.setenv("METAPROBE_GATE", str(tmp_path / "gate"))
    processor, drawn = made(module), []
    shutil.rmtree(tmp_path / "gate")
    processor.update_state(update((0, params(metaprobe_gate=0.3), [1], drawn)))
    assert any(torch.isinf(unlikely(processor, drawn, i)).any() for i in range(200))


@pytest.mark.parametrize("rate", [1e-9, "0.05", [0.05]])
def test_a_rate_that_was_not_checked_leaves_the_request_ungated(module: Any, rate: Any) -> None:
    processor = made(module)
    processor.update_state(update((0, params(metaprobe_gate=rate), [1], [])))
    before, after = step(processor, 0)
    assert torch.equal(before, after)


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.3])
def test_a_share_and_an_end_that_ends_are_taken(module: Any, rate: float) -> None:
    module.GateLogitsProcessor.validate_params(params(metaprobe_gate=rate, metaprobe_gate_end=OTHER_END))
    module.GateLogitsProcessor.validate_params(params(metaprobe_gate=rate))
    module.GateLogitsProcessor.validate_params(params())


@pytest.mark.parametrize(
    ("end", "ends"), [(4, [OTHER_END]), (0, None), (9.0, [9]), (True, [1]), ("9", [9]), ([9], [9])]
)
def test_an_end_that_would_not_end_the_answer_is_refused_before_the_engine_sees_it(
    module: Any, end: Any, ends: list[int] | None
) -> None:
    asked = SimpleNamespace(extra_args={"metaprobe_gate": 0.1, "metaprobe_gate_end": end}, stop_token_ids=ends)
    with pytest.raises(ValueError, match=r"metaprobe_gate_end is .*; expected a token of stop_token_ids"):
        module.GateLogitsProcessor.validate_params(asked)


def test_requests_that_do_not_ask_keep_their_logits(module: Any, gates: PlannedGates) -> None:
    processor = made(module)
    processor.update_state(update((0, params(), [1], []), (1, params(other=1), [1], [])))
    before, after = step(processor, 0, rows=2)
    assert torch.equal(before, after)
    assert not gates.begun
    assert processor.is_argmax_invariant() is False


def test_each_drawn_token_is_pushed_once_with_its_raw_logprob(module: Any, gates: PlannedGates) -> None:
    processor, drawn = made(module), []
    processor.update_state(update((0, params(metaprobe_gate=0.05), [1, 2], drawn)))
    rows = []
    for i, token in enumerate([4, 0, 11, 4]):
        before, after = step(processor, i)
        assert torch.equal(before, after)
        rows.append((token, torch.log_softmax(before[0], dim=-1)))
        drawn.append(token)
    step(processor, 99)
    [(model, gate)] = gates.begun
    assert model == "served"
    assert len(gate.pushed) == 4
    for logprob, (token, row) in zip(gate.pushed, rows, strict=True):
        assert logprob == pytest.approx(float(row[token]))


def test_a_token_that_is_not_known_yet_waits_and_is_pushed_later_with_its_own_row(
    module: Any, gates: PlannedGates
) -> None:
    processor, drawn = made(module), []
    processor.update_state(update((0, params(metaprobe_gate=0.05), [1], drawn)))
    first, _ = step(processor, 0)
    drawn.append(-1)
    second, _ = step(processor, 1)
    [(_, gate)] = gates.begun
    assert not gate.pushed
    drawn[0] = 0
    drawn.append(5)
    step(processor, 2)
    expected = [float(torch.log_softmax(row[0], -1)[token]) for row, token in ((first, 0), (second, 5))]
    assert gate.pushed == pytest.approx(expected)


@pytest.mark.parametrize(("asked", "end"), [({}, OWN_END), ({"metaprobe_gate_end": OTHER_END}, OTHER_END)])
def test_where_the_gate_has_fired_only_the_end_is_left_and_in_its_own_row_alone(
    module: Any, gates: PlannedGates, asked: dict[str, int], end: int
) -> None:
    gates.stops_at = 2
    processor, drawn = made(module), []
    processor.update_state(update((0, params(), [1], []), (1, params(metaprobe_gate=0.05, **asked), [1], drawn)))
    for i in range(2):
        before, after = step(processor, i, rows=2)
        assert torch.equal(before, after)
        drawn.append(3)
    for i in (2, 3):  # a step that the engine makes after the end is forced as well
        before, after = step(processor, i, rows=2)
        assert torch.equal(before[0], after[0])
        assert after[1, end] == 0.0
        assert torch.isinf(after[1]).sum() == WORDS - 1
        assert after[1].argmax() == end
        drawn.append(end)
    assert len(gates.begun[0][1].pushed) == 2


def test_a_token_that_another_processor_ruled_out_is_passed_over(module: Any, gates: PlannedGates) -> None:
    processor, drawn = made(module), []
    processor.update_state(update((0, params(metaprobe_gate=0.05), [1], drawn)))
    logits = torch.zeros(1, WORDS)
    logits[0, 2] = -torch.inf
    processor.apply(logits)
    drawn.append(2)
    processor.apply(torch.zeros(1, WORDS))
    drawn.append(1)
    processor.apply(torch.zeros(1, WORDS))
    [(_, gate)] = gates.begun
    assert gate.pushed == pytest.approx([-float(torch.log(torch.tensor(12.0)))])


def test_requests_that_go_and_move_take_their_gates_with_them(module: Any, gates: PlannedGates) -> None:
    gates.stops_at = 1
    processor, drawn = made(module), []
    processor.update_state(update((0, params(metaprobe_gate=0.05), [1], drawn)))
    step(processor, 0, rows=2)
    drawn.append(1)
    processor.update_state(update(moved=((0, 1),)))
    before, after = step(processor, 1, rows=2)
    assert torch.equal(before[0], after[0])
    assert torch.isinf(after[1]).any()
    processor.update_state(None)
    processor.update_state(update(removed=(1,)))
    before, after = step(processor, 2, rows=2)
    assert torch.equal(before, after)


def test_one_that_was_put_aside_and_comes_back_is_not_gated(module: Any, gates: PlannedGates) -> None:
    processor = made(module)
    processor.update_state(update((0, params(metaprobe_gate=0.05), [1], [4])))
    assert not gates.begun


@pytest.mark.parametrize(("end", "forced"), [(OWN_END, 7), ([5, 6], 5), (None, 3), (0, 0)])
def test_the_end_is_the_first_of_the_generation_settings_else_the_networks(
    module: Any, gates: PlannedGates, end: Any, forced: int
) -> None:
    gates.stops_at = 1
    processor, drawn = made(module, end=end), []
    processor.update_state(update((0, params(metaprobe_gate=0.05), [1], drawn)))
    step(processor, 0)
    drawn.append(1)
    _, after = step(processor, 1)
    assert after[0].argmax() == forced


def test_the_bundled_gate_runs_inside_the_processor_as_outside(module: Any) -> None:
    processor, drawn = made(module), []
    processor.update_state(update((0, params(metaprobe_gate=0.2), [1], drawn)))
    alone = StreamingGate.load(stop=0.2, on_mismatch="ignore").start()
    ended = None
    for i in range(200):
        before, after = step(processor, i)
        if torch.isinf(after).any():
            ended = i
            break
        row = torch.log_softmax(before[0], -1)
        token = int(row.argmin())  # an answer of the most unlikely words
        assert alone.action == "continue"
        alone.push(float(row[token]))
        drawn.append(token)
    assert ended is not None
    assert alone.action != "continue"
