"""Watching `generate`: the estimates are of the states the model really had; only rows told to stop do stop."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from test_hidden_probe import hidden_checkpoint
from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteria

from metaprobe.llms.base import LLMError
from metaprobe.llms.hidden_capture import decoder_blocks
from metaprobe.llms.watched_generation import watch
from metaprobe.probes.hidden import ConfidenceProbe

WIDTH, PAD, EOS = 32, 0, 1
TOLERANCE = 1e-4
"""Largest difference of probabilities: float32 through four layers, with a cache and padding or without."""
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [20, 21, 22, 23]]
NEW = 12


@pytest.fixture(scope="module")
def network() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=EOS,
    )
    return LlamaForCausalLM(config).eval()


def batch(prompts: Sequence[Sequence[int]] = PROMPTS) -> dict[str, torch.Tensor]:
    """Left-padded."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (longest - len(p)) + list(p) for p in prompts])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def generated(network: LlamaForCausalLM, *criteria: StoppingCriteria, **options: object) -> list[list[int]]:
    """Returns the tokens after the prompts, with everything behind them."""
    settings = {**batch(), "max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, **options}
    if settings["do_sample"]:
        torch.manual_seed(3)
    out = network.generate(**settings, stopping_criteria=list(criteria))
    return out[:, settings["input_ids"].shape[1] :].tolist()


def true_states(network: LlamaForCausalLM, prompt: Sequence[int], answer: Sequence[int], layer: int) -> np.ndarray:
    """Returns the states of the last prompt token, then of each answer token, by one plain pass without padding."""
    with torch.inference_mode():
        out = network(torch.tensor([[*prompt, *answer]]), output_hidden_states=True)
    return out.hidden_states[layer][0, len(prompt) - 1 :].numpy()


class Recorded:
    """Keeps what it is given; its estimates come from a list."""

    def __init__(self, prompt: np.ndarray, values: Sequence[float] = ()) -> None:
        self.prompt, self.states, self._values = prompt, [], list(values)

    def push(self, state: np.ndarray) -> float:
        self.states.append(state)
        return self._values[len(self.states) - 1] if self._values else 0.5


def reading(*rows: Sequence[float]) -> Callable[[np.ndarray], Recorded]:
    """For one batch: row i is given these estimates."""
    left: Iterator[Sequence[float]] = iter(rows)
    return lambda prompt: Recorded(prompt, next(left))


@pytest.mark.parametrize(
    ("position", "sample"),
    [("prompt_last", False), ("answer_first", False), ("answer_last", True), ("answer_mean", False)],
)
def test_estimates_are_the_probes_on_a_teacher_forced_pass(network, tmp_path: Path, position: str, sample) -> None:
    hidden_checkpoint(tmp_path / "p", layers=(3,), position=position, width=WIDTH)
    probe = ConfidenceProbe.load(tmp_path / "p")
    with watch(network, layers=probe.layers, read=probe.follow) as watcher:
        answers = generated(network, watcher, do_sample=sample)
    for prompt, answer, confidence in zip(PROMPTS, answers, watcher.confidence, strict=True):
        at_prompt, *states = true_states(network, prompt, answer, 3)
        expected = probe.running(np.array(states), prompt=at_prompt)
        assert len(confidence) == len(answer) - 1 == NEW - 1  # the last token was cut off before it was read
        np.testing.assert_allclose(confidence, expected[:-1], rtol=0, atol=TOLERANCE)
        if position == "answer_last":  # one token off would show
            assert np.abs(np.array(confidence) - expected[1:]).max() > 100 * TOLERANCE
    assert watcher.stopped == [False] * 3
    assert watcher.lengths == [NEW] * 3


def test_several_layers_are_given_in_the_order_asked_for(network) -> None:
    rows: list[Recorded] = []
    with watch(network, layers=(4, 0, 2), read=lambda state: rows.append(Recorded(state)) or rows[-1]) as watcher:
        answers = generated(network, watcher)
    for prompt, answer, row in zip(PROMPTS, answers, rows, strict=True):
        got = np.stack([row.prompt, *row.states]).reshape(NEW, 3, WIDTH)
        for place, layer in enumerate((4, 0, 2)):
            expected = true_states(network, prompt, answer, layer)[:NEW]
            states = got[:, place]
            if layer == 4:  # transformers' last hidden state is after the final norm
                with torch.inference_mode():
                    states = network.model.norm(torch.tensor(states)).numpy()
            np.testing.assert_allclose(states, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("sample", [False, True])
def test_a_watched_answer_is_the_unwatched_one(network, sample: bool) -> None:
    plain = generated(network, do_sample=sample)
    with watch(network, layers=(1, 3), read=Recorded, stop_below=0.4) as watcher:
        assert generated(network, watcher, do_sample=sample) == plain


def test_only_the_row_that_fell_is_ended_and_its_last_token_is_unread(network) -> None:
    plain = generated(network, min_new_tokens=None)
    assert all(EOS not in answer for answer in plain), "the test wants answers that do not end by themselves"
    low = [0.9, 0.1, 0.9, 0.9, 0.19, *[0.9] * NEW]
    with watch(network, layers=(2,), read=reading([0.9] * NEW, low, [0.2] * NEW), stop_below=0.2, after=3) as watcher:
        answers = generated(network, watcher, min_new_tokens=None)
    assert watcher.stopped == [False, True, False]
    assert watcher.confidence[1] == low[:5]  # 0.1 came too early, after two tokens; 0.19 was the fifth
    assert watcher.lengths == [NEW, 6, NEW]
    assert answers[0] == plain[0]
    assert answers[1] == plain[1][:6] + [PAD] * (NEW - 6)
    assert answers[2] == plain[2]


class EndAt(StoppingCriteria):
    """Ends a row after so many tokens, as a stop text does."""

    def __init__(self, row: int, count: int) -> None:
        self.row, self.count, self.steps = row, count, 0

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        self.steps += 1
        return torch.tensor([i == self.row and self.steps >= self.count for i in range(len(input_ids))])


def test_a_row_that_ended_otherwise_has_an_estimate_for_each_token_and_none_for_padding(network) -> None:
    plain = generated(network, min_new_tokens=None)
    # This token is taken for the end of the sequence: row 2 comes to it, the others do not.
    count = next(i for i in range(3, NEW) if plain[2][i] not in [*plain[0], *plain[1], *plain[2][:i]])
    ends = plain[2][count]
    with watch(network, layers=(2,), read=Recorded, stop_below=0.4, end_ids=(PAD, ends)) as watcher:
        answers = generated(network, watcher, EndAt(1, 7), min_new_tokens=None, eos_token_id=ends)
    assert answers[0] == plain[0]
    assert answers[1] == plain[1][:7] + [PAD] * (NEW - 7)
    assert answers[2] == plain[2][: count + 1] + [PAD] * (NEW - count - 1)
    assert watcher.lengths == [NEW, 7, count]
    assert [len(confidence) for confidence in watcher.confidence] == [NEW - 1, 7, count]
    assert not any(watcher.stopped)


def hooks(network: LlamaForCausalLM) -> int:
    return sum(len(block._forward_hooks) + len(block._forward_pre_hooks) for block in decoder_blocks(network))


def test_no_hook_outlives_the_block_even_after_an_error(network) -> None:
    def fails(row: int, confidence: Sequence[float]) -> bool:
        raise ZeroDivisionError

    before = hooks(network)
    with watch(network, layers=(0, 2), read=Recorded):
        assert hooks(network) == before + 2
    assert hooks(network) == before
    with pytest.raises(ZeroDivisionError), watch(network, layers=(0, 2), read=Recorded, stop=fails) as watcher:
        generated(network, watcher)
    assert hooks(network) == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(({"layers": layers}, "different numbers from 0 to 4") for layers in ((), (5,), (-1,), (2, 2))),
        ({"stop_below": float("nan")}, "stop_below is nan: expected a probability"),
        ({"stop_below": 0.2, "stop": lambda *_: True}, "give one of them"),
        ({"after": 0}, "after is 0: expected at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(network, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(LLMError, match=message), watch(network, **{"layers": (2,), "read": Recorded, **wrong}):
        pass


def test_what_cannot_be_watched_is_refused(network) -> None:
    with watch(network, layers=(2,), read=Recorded) as watcher:
        with pytest.raises(LLMError, match="has not run: give the watcher to that model's own generate"):
            watcher(batch()["input_ids"], None)
        with pytest.raises(LLMError, match="use num_beams=1"):
            generated(network, watcher, num_beams=2)
    with watch(network, layers=(2,), read=Recorded) as watcher:
        generated(network, watcher)
        with pytest.raises(LLMError, match="follows one generate"):
            generated(network, watcher)


@pytest.mark.parametrize(("passes", "where"), [(1, "the last prompt token"), (4, "answer token 2")])
def test_states_that_are_not_numbers_are_told_with_layer_and_token(network, passes: int, where: str) -> None:
    seen = 0

    def spoil(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += 1
        return output.masked_fill(torch.tensor(seen == passes), float("nan"))

    handle = decoder_blocks(network)[1].register_forward_hook(spoil)
    try:
        with (
            pytest.raises(LLMError, match=rf"layers \[2\] hold NaN or infinity at {where}"),
            watch(network, layers=(2,), read=Recorded) as watcher,
        ):
            generated(network, watcher)
    finally:
        handle.remove()
