"""States of wrong tokens, rows, layers or weights are noticed, and nothing is scored on them without a word."""

import json
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import canary_world
import numpy as np
import pytest
import torch
import transformers
from canary_world import LAYERS, answered, character_tokenizer, tiny
from click.testing import CliRunner

from metaprobe.checkpoints import ContractMismatch
from metaprobe.cli import main
from metaprobe.llms import known_good
from metaprobe.llms.base import LLMError
from metaprobe.llms.cache import CallCache
from metaprobe.llms.extract import ExtractionWatch, extract
from metaprobe.llms.hidden_capture import StateReader, check_hooks
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import StateReplay
from metaprobe.llms.states_check import check_calls, check_engine, check_stored, check_version
from metaprobe.probes.canary_guard import MOST_WARNINGS, NOT_CHECKED, CanaryGuard
from metaprobe.probes.hidden import ConfidenceProbe
from metaprobe.probes.score_lines import store_lines
from metaprobe.probes.signal_source import SignalSource
from metaprobe.records.activations import CANARIES_PREFIX, activation_bytes
from metaprobe.records.canaries import (
    CANARIES_FILE,
    CANARY_POSITIONS,
    CanaryStates,
    compare_canaries,
    read_canaries_file,
)
from metaprobe.records.errors import InvalidResponse, RecordError, StoreMismatch
from metaprobe.records.parse import parse_response
from metaprobe.records.response import NO_LOGPROB
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Hidden, Item, Label, Run
from metaprobe.training.check import labelled_answers, load_reader, target_probabilities
from metaprobe.training.stored_states import common_source
from research.states.faults import FaultyReplay, quantised, with_adapter

READ = (2,)
"""The layer that the probe reads."""
FAULTS = {
    # fault: which of the checks notice it: canaries, calls read again, the head
    "rows exchanged": "canaries calls head",
    "two rows exchanged once": "canaries calls head",
    "layer +1": "canaries calls",
    "layer -1": "canaries calls head",
    "prefix cache cut": "canaries calls head",
    "chunk captured twice": "canaries calls head",
    "chunk dropped": "canaries calls head",
    "rows one place late": "canaries calls head",
    "rejected tokens": "canaries calls head",
    "padding on the other side": "canaries calls head",
}


@pytest.fixture(scope="module")
def llm() -> LocalLLM:
    return tiny()


@pytest.fixture(scope="module")
def calls(llm: LocalLLM) -> list[Call]:
    return answered(llm)


@pytest.fixture(scope="module")
def golden(llm: LocalLLM) -> CanaryStates:
    states = StateReplay(llm, layers=",".join(map(str, LAYERS))).canaries()
    assert states is not None
    return states


def seen_by(llm: LocalLLM, fault: str = "", layers: Sequence[int] = LAYERS) -> CanaryStates:
    states = FaultyReplay(llm, fault, layers).canaries()
    assert states is not None
    return states


def stored_by(llm: LocalLLM, calls: Sequence[Call], fault: str) -> list[Call]:
    """The calls with the states that a faulty reader keeps of them."""
    replay = FaultyReplay(llm, fault, LAYERS)
    sound = StateReplay(llm, layers="1")
    read = replay.read([sound.reading(call, "") for call in calls])
    return [replace(call, hidden=one.hidden) for call, one in zip(calls, read, strict=True)]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed_by_the_checks_that_can_see_it(llm, calls, golden, fault) -> None:
    checked = compare_canaries(golden, seen_by(llm, fault), READ)
    again = check_calls(llm, stored_by(llm, calls, fault))
    noticed = {
        "canaries": not checked.passed,
        "calls": not again.states.passed,
        "head": again.head is not None and again.head > again.head_limit,
    }
    assert " ".join(name for name, found in noticed.items() if found) == FAULTS[fault]


def test_sound_states_pass_every_check_in_any_batch(llm, calls, golden) -> None:
    for source in (seen_by(llm), calls[0].hidden.canaries, replace(golden, ids=golden.ids)):
        assert compare_canaries(golden, source, LAYERS).passed
    again = check_calls(llm, calls)
    assert again.passed
    assert again.head < 0.02


def test_the_reason_names_exchanged_rows_and_layers(llm, golden) -> None:
    assert "rows of a batch are exchanged" in compare_canaries(golden, seen_by(llm, "rows exchanged"), READ).reason
    assert "its layer 2 is the layer 3" in compare_canaries(golden, seen_by(llm, "layer +1"), READ).reason


@pytest.mark.parametrize("weights", ["adapter", "int4", "other"])
def test_other_weights_are_noticed_by_the_canaries_alone(llm, golden, weights) -> None:
    made = {
        "adapter": lambda: with_adapter(llm.model),
        "int4": lambda: quantised(llm.model, 4),
        "other": lambda: canary_world.network(llm.tokenizer, seed=1),
    }[weights]()
    other = tiny(made)
    assert not compare_canaries(golden, seen_by(other), READ).passed
    assert check_calls(other, answered(other)).passed  # its states are of its own weights


def test_another_number_format_is_named(llm, golden) -> None:
    half = tiny(deepcopy(llm.model).bfloat16())
    checked = compare_canaries(golden, seen_by(half), READ)
    assert "its number format is bfloat16, the golden one float32" in checked.reason
    # Claimed to be float32, it is more than float32 rounds.
    assert not compare_canaries(golden, replace(seen_by(half), dtype="float32"), READ).passed


def test_another_template_or_tokenizer_is_named_by_its_tokens(llm, golden) -> None:
    other = tiny(llm.model)
    other.tokenizer.chat_template = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}\n{% endfor %}"
    checked = compare_canaries(golden, seen_by(other), READ)
    assert not checked.passed
    assert "the chat template or the tokenizer is another one" in checked.reason


def test_a_wrong_capture_while_answering_is_noticed(llm, golden, monkeypatch) -> None:
    """The live path has its own canaries: rows in another order, and padding on the other side."""
    sound = StateReader.latest
    for wrong in (lambda self: sound(self).flip(1), lambda self: sound(self).roll(1, 1)):
        monkeypatch.setattr(StateReader, "latest", wrong)
        [call, *_] = answered(tiny(llm.model), ["a", "bc", "def"])
        assert not compare_canaries(golden, call.hidden.canaries, READ).passed
    monkeypatch.setattr(StateReader, "latest", sound)
    monkeypatch.setattr(
        StateReader,
        "_keep_last_position",
        lambda self, layer, hidden: self._states_by_layer.update({layer: hidden[:, 0].float().clone()}),
    )
    [call, *_] = answered(tiny(llm.model), ["a", "bc", "def"])
    assert not compare_canaries(golden, call.hidden.canaries, READ).passed


# A probe scores states of checked sources alone.


def with_labels(calls: Sequence[Call]) -> list[Run]:
    return [
        Run(call.id, "s", "", Item(call.id, f"question {i}"), (call,), labels=(Label(call.id, "correct", i % 2, "p"),))
        for i, call in enumerate(calls)
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory, llm, calls) -> RunStore:
    store = RunStore(tmp_path_factory.mktemp("canaries") / "runs")
    store.append(with_labels(calls))
    return store


@pytest.fixture(scope="module")
def probe(tmp_path_factory, golden) -> ConfidenceProbe:
    from test_hidden_probe import hidden_checkpoint

    path = tmp_path_factory.mktemp("probe") / "c"
    extra = {CANARIES_FILE: golden.near(READ).to_json()}
    return ConfidenceProbe.of(hidden_checkpoint(path, layers=READ, position="answer_mean", width=32, extra=extra))


def test_a_probe_scores_a_checked_source_and_no_other(llm, calls, probe) -> None:
    assert 0 < probe.read(calls[0]) < 1
    with pytest.warns(UserWarning, match="are not scored"), pytest.raises(InvalidResponse, match="was not checked"):
        probe.read(replace(calls[0], hidden=replace(calls[0].hidden, canaries=None)))
    faulty = replace(calls[0].hidden, canaries=seen_by(llm, "rows exchanged"))
    with pytest.warns(UserWarning, match="are not scored"), pytest.raises(InvalidResponse, match="failed its check"):
        probe.read(replace(calls[0], hidden=faulty))
    ignoring = replace(probe, on_mismatch="ignore")
    assert ignoring.read(replace(calls[0], hidden=faulty)) == probe.read(calls[0])


@pytest.mark.filterwarnings("ignore:metaprobe. hidden states are not scored")
def test_a_probe_is_not_judged_by_states_that_it_may_not_score(tmp_path: Path, llm, calls, store, probe) -> None:
    reader, labels = load_reader(probe.checkpoint.path), {"target": "correct", "stage": None, "agent": None}

    def judged(path: Path) -> np.ndarray:
        return target_probabilities(reader, "correct", labelled_answers([path], [reader], **labels)[1], [path])

    assert np.isfinite(judged(store.path)).all()
    for name, canaries, reason in (
        ("bare", None, "was not checked"),
        ("faulty", seen_by(llm, "rows exchanged"), "failed its check"),
    ):
        others = [replace(call, hidden=replace(call.hidden, canaries=canaries)) for call in calls]
        RunStore(tmp_path / name).append(with_labels(others))
        with pytest.raises(RecordError, match=reason):
            judged(tmp_path / name)


@pytest.mark.filterwarnings("ignore:metaprobe. hidden states are not scored")
def test_a_store_keeps_the_canaries_of_its_states(llm, store, probe) -> None:
    [file] = store.path.glob(f"{CANARIES_PREFIX}*.json")
    lines = list(store_lines(probe, store.path))
    assert all(line["score"] is not None for line in lines)
    assert [run.calls[0].hidden.canaries.digest for run in store.runs(hidden=True)] == [file.stem[9:]] * len(lines)
    kept = file.read_bytes()
    try:
        file.write_bytes(kept.replace(b'"source":"transformers', b'"source":"another'))
        read_canaries_file.cache_clear()
        with pytest.warns(UserWarning, match=f"{file.name} is missing or damaged: .* checks no source"):
            assert {line["score"] for line in store_lines(probe, store.path)} == {None}
        assert NOT_CHECKED in next(store_lines(probe, store.path))["reason"]
    finally:
        file.write_bytes(kept)
        read_canaries_file.cache_clear()


@pytest.mark.filterwarnings("ignore:metaprobe. hidden states are not scored")
def test_states_without_canaries_are_scored_after_what_the_reason_says(tmp_path: Path, llm, calls, probe) -> None:
    """A store of an older version: its files of states are moved away, and its answers are read again."""
    store = RunStore(tmp_path / "runs")
    store.append(with_labels([replace(call, hidden=replace(call.hidden, canaries=None)) for call in calls]))
    reason = next(store_lines(probe, store.path))["reason"]
    assert "move the store's files of states (*.safetensors) away and read its answers by `metaprobe extract`" in reason
    for file in store.path.glob("*.safetensors"):
        file.rename(tmp_path / file.name)
    assert extract(store, llm, layers="2", positions=("answer_mean",)).calls == len(calls)
    assert all(line["score"] is not None for line in store_lines(probe, store.path))


def test_what_is_extracted_brings_canaries_and_training_stores_them(tmp_path: Path, llm, calls) -> None:
    store = RunStore(tmp_path / "runs")
    store.append(with_labels([replace(call, hidden=None) for call in calls]))
    extract(store, llm, layers="1,2", positions=("answer_mean",))
    [file] = store.activation_files()
    assert file.canaries is not None
    assert file.canaries.layers == (1, 2)
    assert file.canaries.near([2], reach=0).layers == (2,)


def test_sources_that_differ_are_not_trained_on_together(llm, golden) -> None:
    other = seen_by(tiny(with_adapter(llm.model)))
    assert common_source([golden, replace(golden, source="again")], READ) is golden
    assert common_source([None], READ) is None
    for sources in ([golden, None], [None, golden], [golden.near(READ, reach=0), golden.near([1], reach=0)]):
        with pytest.warns(UserWarning, match="2 sources, not all of which read the canaries .* checks no source"):
            assert common_source(sources, READ) is None
    with pytest.raises(StoreMismatch, match="of two sources that differ"):
        common_source([golden, other], READ)


@pytest.mark.filterwarnings("ignore:metaprobe. hidden states are not scored")
def test_states_in_a_body_are_scored_with_canaries_alone(llm, calls, golden, probe, monkeypatch) -> None:
    values = np.asarray(calls[0].hidden.values[1:2], dtype=np.float64).tolist()
    states = {"layers": [2], "positions": list(CANARY_POSITIONS), "values": values}
    body = {"choices": [{"message": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": -0.1}]}}]}

    def sent(**more: object) -> Hidden:
        hidden = parse_response({**body, "metaprobe_signals": {"hidden_states": {**states, **more}}}).hidden
        assert hidden is not None
        return hidden

    assert probe.guard.fault(sent()) == NOT_CHECKED
    assert probe.guard.fault(sent(canaries=golden.digest[::-1])) == NOT_CHECKED
    assert probe.guard.fault(sent(canaries=json.loads(golden.to_json()))) == ""
    assert probe.guard.fault(sent(canaries=golden.digest)) == ""  # known from now on
    with pytest.raises(InvalidResponse, match="states of canaries cannot be read"):
        sent(canaries={"source": "x"})
    monkeypatch.setattr("metaprobe.records.parse.MOST_SOURCES", 2)
    for _ in range(3):  # one source that is sent anew does not displace others
        sent(canaries=json.loads(replace(golden, source="another").to_json()))
    assert probe.guard.fault(sent(canaries=golden.digest)) == ""


def test_callers_with_ever_new_canaries_cause_a_bounded_number_of_warnings(golden, probe) -> None:
    guard, values = CanaryGuard(probe.checkpoint, READ), np.zeros((1, 1, 32), np.float32)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for i in range(MOST_WARNINGS + 20):
            wrong = replace(golden, values=golden.values * np.float16(2 + i / 4))
            assert "failed its check" in guard.fault(Hidden(values, READ, ("answer_mean",), canaries=wrong))
    assert len(told) == MOST_WARNINGS


def test_a_log_probability_that_stands_for_none_is_not_held_against_the_head(llm, calls) -> None:
    unknown = [replace(call, logprobs=np.r_[np.float32(NO_LOGPROB), call.logprobs[1:]]) for call in calls]
    assert check_calls(llm, unknown).passed


def test_kept_calls_keep_the_canaries_of_their_states(tmp_path: Path, calls) -> None:
    with CallCache(tmp_path / "c.sqlite") as cache:
        cache.put("one", calls[0])
        cache.put("two", calls[1])
        assert len(cache) == 2
    with CallCache(tmp_path / "c.sqlite") as cache:
        kept = cache.get("two")
        assert kept is not None
        assert kept.hidden.canaries.digest == calls[1].hidden.canaries.digest


@pytest.mark.parametrize(
    "change", [{"positions": ["prompt_last"]}, {"width": 7}, {"values": "?"}, {"ids": ["a"]}, {"layers": [-1]}]
)
def test_a_file_of_canaries_that_is_none_is_refused(golden, change) -> None:
    facts = {**json.loads(golden.to_json()), **change}
    with pytest.raises(RecordError):
        CanaryStates.from_json(facts)
    assert CanaryStates.from_json(golden.to_json()).digest == golden.digest


# Faults by a fresh reader of the source: each scored without a word.


def lora(model: torch.nn.Module) -> None:
    peft = pytest.importorskip("peft")
    options = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    peft.inject_adapter_in_model(options, model).eval()


def merged(model: torch.nn.Module) -> None:
    for name, weight in model.named_parameters():
        if "q_proj" in name:
            weight.data *= 1.2  # past PyTorch's counter of changes


def steered(model: torch.nn.Module) -> None:
    model.model.layers[0].register_forward_hook(lambda _, __, output: output * 1.3)


@pytest.mark.parametrize("change", [lora, merged, steered])
@pytest.mark.filterwarnings("ignore:metaprobe. hidden states are not scored")
def test_a_model_that_changes_after_its_check_is_checked_again(llm, probe, change) -> None:
    own = tiny(deepcopy(llm.model))
    [before] = answered(own, ["a"])
    [again] = answered(own, ["b"])
    assert again.hidden.canaries is before.hidden.canaries  # a model that did not change is read once
    text = "What is 2 + 2?", "It is 4."
    assert 0 < probe.score_text(own.model, own.tokenizer, *text) < 1
    change(own.model)
    [changed] = answered(own, ["a"])
    with pytest.raises(InvalidResponse, match="failed its check"):
        probe.read(changed)
    with pytest.raises(InvalidResponse, match="failed its check"):
        probe.score_text(own.model, own.tokenizer, *text)


@pytest.mark.filterwarnings("ignore:metaprobe. hidden states are not scored")
def test_a_template_that_changes_after_the_check_is_noticed(llm, probe) -> None:
    own = tiny(deepcopy(llm.model))
    answered(own, ["a"])
    own.tokenizer.chat_template = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}\n{% endfor %}"
    [call] = answered(own, ["a"])
    with pytest.raises(InvalidResponse, match="the chat template or the tokenizer is another one"):
        probe.read(call)


@pytest.mark.filterwarnings("ignore:metaprobe. hidden states")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda h: {"values": h.values * np.float16(0)}, "not as long as the golden ones"),
        (lambda h: {"values": h.values * np.float16(20)}, "not as long as the golden ones"),
        (lambda h: {"values": h.values.view(np.uint16).astype(np.uint32) << 16}, "not as long as the golden ones"),
        (lambda h: {"model": "other"}, "the states are of other, and their source's canaries of tiny"),
        (lambda h: {"canaries": replace(h.canaries, dtype="int8")}, "number format is 'int8'; expected float32"),
        (lambda h: {"canaries": first_four(h.canaries)}, "it read 4 of 12 canaries"),
    ],
    ids=["zeros", "rescaled", "float16 read as bfloat16", "another model", "unknown format", "only some canaries"],
)
def test_states_that_canaries_alone_do_not_vouch_for_are_refused(calls, probe, change, reason) -> None:
    changed = change(calls[0].hidden)
    if "values" in changed and changed["values"].dtype == np.uint32:
        changed["values"] = changed["values"].view(np.float32)
    with pytest.raises(InvalidResponse, match=reason):
        probe.read(replace(calls[0], hidden=replace(calls[0].hidden, **changed)))


def first_four(states: CanaryStates) -> CanaryStates:
    parts = {name: getattr(states, name)[:4] for name in ("ids", "prompts", "answers", "values")}
    return replace(states, **parts)


@pytest.mark.filterwarnings("ignore:metaprobe. hidden states are not scored")
def test_a_checkpoint_without_golden_states_scores_nothing(tmp_path: Path, llm, calls, store) -> None:
    from test_hidden_probe import hidden_checkpoint

    bare = hidden_checkpoint(tmp_path / "c", layers=READ, position="answer_mean", width=32, extra={})
    with pytest.raises(InvalidResponse, match="the checkpoint holds no canaries"):
        ConfidenceProbe.of(bare).read(calls[0])
    lines = list(store_lines(ConfidenceProbe.of(bare), store.path))
    assert {line["score"] for line in lines} == {None}
    with pytest.raises(ContractMismatch, match="the checkpoint holds no canaries"):
        SignalSource.load([f"confidence={tmp_path / 'c'}"])
    with pytest.warns(UserWarning, match="hidden states are scored unchecked"):
        ConfidenceProbe.of(bare).score_text(llm.model, llm.tokenizer, "a", "b")


def test_sources_on_either_side_of_the_first_are_not_trained_on_together(golden) -> None:
    noise = np.random.default_rng(0).normal(size=golden.values.shape) * golden.values.astype(float).std(axis=0)
    near = [replace(golden, values=(golden.values + part * noise).astype(np.float16)) for part in (0.004, -0.004)]
    for one in near:
        assert common_source([golden, one], READ) is golden
    with pytest.raises(StoreMismatch, match="of two sources that differ"):
        common_source([golden, *near], READ)


def test_an_extraction_whose_reader_changes_meanwhile_leaves_no_states(tmp_path: Path, llm, calls) -> None:
    own = tiny(deepcopy(llm.model))
    store = RunStore(tmp_path / "runs")
    store.append(with_labels([replace(call, hidden=None) for call in calls]))
    watch = ExtractionWatch(on_chunk=lambda calls, tokens: merged(own.model))
    with pytest.raises(RecordError, match="the reader changed while it read the calls, and its 1 files of states were"):
        extract(store, own, layers="2", positions=("answer_mean",), watch=watch)
    assert not store.activation_files()


# Versions.


def test_a_version_that_is_not_known_to_be_good_is_checked_first_and_named(llm, golden, monkeypatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setattr(known_good, "version_of", lambda name: known_good.KNOWN_GOOD[name][0])
        check_version(llm)
    monkeypatch.setattr(known_good, "version_of", lambda name: "99.1")
    with pytest.warns(
        UserWarning, match="transformers 99.1 is not among the versions .*: its states are checked first"
    ):
        check_version(llm)
    with pytest.warns(UserWarning, match="vllm 99.1 is not among"):
        check_engine(golden, golden)
    with pytest.raises(LLMError, match=r"vllm 99.1 is not among .*they are not those of transformers"):
        check_engine(golden, seen_by(llm, "chunk dropped"))


@pytest.mark.parametrize("found", ["5.24.0.dev0", "5.24.0rc1", "5.240"])
def test_a_version_before_a_release_is_not_known_to_be_good(found, monkeypatch) -> None:
    monkeypatch.setattr(known_good, "version_of", lambda name: "5.24.3.post1")
    assert known_good.unlisted("transformers") == ""
    monkeypatch.setattr(known_good, "version_of", lambda name: found)
    assert f"transformers {found} is not among" in known_good.unlisted("transformers")


@pytest.mark.parametrize(
    ("family", "scaled"), [("Granite", {"logits_scaling": 8.0}), ("Cohere", {"logit_scale": 0.0625}), ("Gemma2", {})]
)
def test_sound_states_of_models_that_scale_or_cap_their_logits_pass(family: str, scaled: dict[str, float]) -> None:
    tokenizer = character_tokenizer()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2}
    tokens = {"vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    more = {"num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.2, **scaled}
    config = getattr(transformers, f"{family}Config")(**sizes, **tokens, **more)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    check_hooks(model, [3, 4, 5])
    checked = check_calls(own := tiny(model), answered(own))
    assert checked.head < 0.02
    assert checked.passed


def test_hooks_on_another_place_than_the_models_own_states_are_refused(llm, monkeypatch) -> None:
    check_hooks(llm.model, [3, 4, 5])
    blocks = llm.model.model.layers
    monkeypatch.setattr("metaprobe.llms.hidden_capture.decoder_blocks", lambda model: torch.nn.ModuleList(blocks[::-1]))
    with pytest.raises(LLMError, match="the hooks give other states for layer"):
        check_hooks(llm.model, [3, 4, 5])


def test_every_set_of_layers_of_a_store_is_looked_at(tmp_path: Path, llm, calls, monkeypatch) -> None:
    """A second extraction may have been wrong where the first was not."""
    monkeypatch.setattr(LocalLLM, "load", lambda name, **options: llm)
    store = RunStore(tmp_path / "runs")
    store.append(with_labels(calls))

    def extracted(name: str, hidden: dict[str, Hidden]) -> None:
        (store.path / f"states-{name}.safetensors").write_bytes(activation_bytes(hidden))

    exact = {call.id: Hidden(call.hidden.values[:, :1], LAYERS, ("before_exact",)) for call in calls}
    extracted("exact", exact)
    checked = check_stored(store.path, "tiny")
    assert checked.passed
    assert "at before_exact: 12 calls, not compared" in checked.reason
    wrong = {call.id: call.hidden for call in stored_by(llm, calls, "rows exchanged")}
    extracted("wrong", {name: replace(one, values=one.values[1:2], layers=READ) for name, one in wrong.items()})
    checked = check_stored(store.path, "tiny")
    assert not checked.passed
    assert "layers 2 at prompt_last, answer_first, answer_last, answer_mean: call states are off" in checked.reason


def test_the_command_checks_a_store_and_a_checkpoint(tmp_path: Path, llm, calls, store, probe, monkeypatch) -> None:
    def run(what: Path, model: LocalLLM) -> tuple[int, dict[str, object]]:
        monkeypatch.setattr(LocalLLM, "load", lambda name, **options: model)
        done = CliRunner().invoke(main, ["check-states", str(what), "--llm", "tiny", "--json"])
        return done.exit_code, json.loads(done.stdout)

    adapted = tiny(with_adapter(llm.model))
    code, found = run(store.path, llm)
    assert (code, found["passed"]) == (0, True)
    assert found["head"] < 0.02
    wrong = RunStore(tmp_path / "wrong")
    wrong.append(with_labels(stored_by(llm, calls, "rows exchanged")))
    code, found = run(wrong.path, llm)
    assert (code, found["passed"]) == (1, False)
    assert "rows of a batch are exchanged" in found["reason"]
    assert run(probe.checkpoint.path, llm)[0] == 0
    code, found = run(probe.checkpoint.path, adapted)
    assert (code, found["passed"]) == (1, False)
