"""A checkpoint takes the place of a stated number, by name and agent, and says where the number is from."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.checkpoints import ContractMismatch
from metaprobe.probes.signal_source import SignalSource, combine_probabilities
from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Hidden

# Whether so little data passes every audit is not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

LOGPROBS = np.array([-0.1, -0.2, -0.3], np.float32)


def call_with_states(source: SignalSource) -> Call:
    """A call that kept what the source's probe reads."""
    replacement = source.replacement("confidence") or source.replacement("difficulty")
    reader = replacement.reader
    values = np.random.default_rng(0).normal(size=(1, 1, reader.width)).astype(np.float16)  # type: ignore[union-attr]
    golden = reader.guard.golden  # type: ignore[union-attr]
    hidden = Hidden(values, (reader.layer,), (reader.position,), canaries=golden)  # type: ignore[union-attr]
    return Call(id="c", logprobs=LOGPROBS, hidden=hidden)


def test_without_replacement_a_number_is_what_was_stated() -> None:
    source = SignalSource()
    assert (source.asks("confidence"), source.reads("confidence")) == (True, None)
    signal = source.signal("confidence", stated=0.7, call=Call(id="c"))
    assert (signal.value, signal.source) == (0.7, "stated")
    assert source.signal("confidence") is None


def test_a_predictor_replaces_the_stated_number_and_reads_the_answer(planted: dict[str, Path]) -> None:
    source = SignalSource.load([f"confidence={planted['quality']}"])
    assert (source.asks("confidence"), source.reads("confidence")) == (False, "answer")
    signal = source.signal("confidence", stated=0.01, call=Call(id="c", logprobs=LOGPROBS))
    assert signal.value > 0.1
    assert signal.source == source.description["confidence"]


def test_a_probe_on_the_prompt_gives_difficulty_as_one_minus_the_chance_of_success(planted: dict[str, Path]) -> None:
    easy = SignalSource.load([f"confidence={planted['before']}"])
    hard = SignalSource.load([f"difficulty={planted['before']}"])
    assert (easy.reads("confidence"), hard.reads("difficulty")) == ("prompt", "prompt")
    call = call_with_states(easy)
    right, difficult = easy.signal("confidence", call=call), hard.signal("difficulty", call=call)
    assert right.value + difficult.value == pytest.approx(1)


def test_both_are_joined_and_either_stands_in_for_the_other(planted: dict[str, Path]) -> None:
    source = SignalSource.load([f"confidence=stated+{planted['quality']}"])
    call = Call(id="c", logprobs=LOGPROBS)
    assert source.asks("confidence")
    alone = source.signal("confidence", call=call)
    both = source.signal("confidence", stated=0.9, call=call)
    unread = source.signal("confidence", stated=0.9, call=Call(id="without logprobs"))
    assert min(alone.value, 0.9) < both.value < max(alone.value, 0.9)
    assert both.value == pytest.approx(combine_probabilities(0.9, alone.value))
    assert (both.source, unread.value, unread.source) == (f"stated+{alone.source}", 0.9, "stated")


def test_one_agent_may_have_its_own_checkpoint_and_what_cannot_be_read_is_none(planted: dict[str, Path]) -> None:
    source = SignalSource.load([f"confidence@alpha={planted['after']}"])
    assert (source.reads("confidence", "alpha"), source.reads("confidence", "beta")) == ("answer", None)
    assert source.signal("confidence", agent="alpha", stated=0.9, call=Call(id="no hidden states")) is None


def test_a_spec_that_is_none_and_a_checkpoint_in_a_place_where_it_can_read_nothing_are_refused(
    planted: dict[str, Path],
) -> None:
    for spec in ("confidence", "confidence=", "mood=x", "=x"):
        with pytest.raises(RecordError, match="expected NAME=CHECKPOINT"):
            SignalSource.load([spec])
    with pytest.raises(ContractMismatch, match="before there is one"):
        SignalSource.load([f"difficulty={planted['quality']}"])
    with pytest.raises(ContractMismatch, match="reads the prompt only"):
        SignalSource.load([f"quality={planted['before']}"])
    with pytest.raises(ContractMismatch, match=r"no model states a number for it beforehand; give critical=/"):
        SignalSource.load([f"critical=stated+{planted['quality']}"])
    with pytest.raises(RecordError, match="given twice"):
        SignalSource.load([f"quality={planted['quality']}"] * 2)


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_joined_number_lies_between_its_two_parts(first: float, second: float) -> None:
    low, high = sorted((min(max(first, 0.01), 0.99), min(max(second, 0.01), 0.99)))
    assert low - 1e-12 <= combine_probabilities(first, second) <= high + 1e-12
    assert combine_probabilities(first, second) == pytest.approx(combine_probabilities(second, first))


def test_signals_say_where_they_are_from_and_stay_none_without_a_source() -> None:
    call = Call(id="c", logprobs=np.array([-1.0, -3.0], np.float32))
    signals = Signals.of(call, confidence=0.7)
    assert signals.confidence == Signal(0.7, "stated")
    assert signals.difficulty is None
    assert (signals.value("mean_logprob"), signals.value("min_logprob"), signals.value("tokens")) == (-2.0, -3.0, 2.0)
    assert Signals.of(Call(id="c")).mean_logprob is None
