"""Hidden states of recorded calls: what a second reading finds is what the model had when it answered."""

import asyncio
import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from metaprobe.cli import main
from metaprobe.llms.base import LLMError, Request
from metaprobe.llms.hidden import Capture
from metaprobe.llms.local import PLAIN_TEMPLATE, LocalLLM
from metaprobe.llms.replay_states import ReadStates, StateReplay, exact_start
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.store import RunStore
from metaprobe.records.types import LIVE_POSITIONS, POSITIONS, Call, Item, Message, Run, Sampling
from metaprobe.training.extract import Share, extract

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz", "User", ":", "Assistant"]
LAYERS = (0, 1, 2, 3, 4)
TOLERANCE = 1e-3
"""Of the largest value: float32 through four layers, added up in another order, then rounded to float16 (5e-4)."""
PROMPTS = ["a b c", "q", "z y x w v u t s", "m n", "e e e e", "o p q r s", "f"]


def network(words: int = len(WORDS), seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.4,  # far from uniform, so that another model shows
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    made.chat_template = PLAIN_TEMPLATE
    return made


@pytest.fixture(scope="module")
def llm() -> LocalLLM:
    """Says only letters, and so never ends by itself."""
    net = network()
    net.lm_head.bias = torch.nn.Parameter(torch.tensor([-1000.0] * 3 + [0.0] * 26 + [-1000.0] * 3))
    return LocalLLM(net, tokenizer(), name="tiny", revision="1", capture=Capture(LAYERS, LIVE_POSITIONS))


def answered(llm: LocalLLM, prompts: list[str] = PROMPTS) -> list[Call]:
    """Calls with the hidden states of generation, where the model keeps any."""

    async def ask() -> list[Call]:
        requests = [
            Request(
                id=f"c{i}",
                stage="answer" if i % 3 else "difficulty",
                agent="solo",
                hidden=llm.capture is not None,
                messages=(Message("user", prompt),),
                sampling=Sampling(max_tokens=3 + 2 * i, temperature=1.0, seed=i),
            )
            for i, prompt in enumerate(prompts)
        ]
        return list(await asyncio.gather(*(llm.complete(request) for request in requests)))

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def calls(llm: LocalLLM) -> list[Call]:
    return answered(llm)


def bare(call: Call, **changed: object) -> Call:
    return replace(call, hidden=None, **changed)  # type: ignore[arg-type]


def stored(path: Path, calls: list[Call], shard_runs: int = 3) -> RunStore:
    """A run each; the final answer is the second word of what was said."""
    store = RunStore(path)
    with store.writer(shard_runs=shard_runs) as writer:
        for i, call in enumerate(calls):
            final = " ".join(call.text.split()[1:2])
            writer.add(Run(f"r{i}", "s", "v", Item(f"i{i}", "?"), (call,), final_answer=final))
    return store


@pytest.fixture
def store(tmp_path: Path, calls: list[Call]) -> RunStore:
    return stored(tmp_path / "runs", [bare(call) for call in calls])


def read(
    llm: LocalLLM, calls: list[Call], exact: str = "", batch_size: int = 32, **options: object
) -> list[ReadStates]:
    replay = StateReplay(llm, **options)  # type: ignore[arg-type]
    return replay.read([replay.reading(call, exact) for call in calls], batch_size=batch_size)


def close(found: object, expected: object) -> None:
    expected = np.asarray(expected, dtype=np.float32)
    np.testing.assert_allclose(
        np.asarray(found, dtype=np.float32), expected, rtol=TOLERANCE, atol=TOLERANCE * np.abs(expected).max()
    )


def files(store: RunStore) -> dict[str, object]:
    """Everything in the files. Not their bytes: safetensors writes the header's metadata in any order."""
    found: dict[str, object] = {}
    for path in store.path.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            found[path.name] = (file.metadata(), {key: file.get_tensor(key).tobytes() for key in file.keys()})  # noqa: SIM118
    return found


def test_layer_i_is_transformers_hidden_state_i_and_the_last_one_stands_before_the_final_norm(llm, calls) -> None:
    net = llm.model
    for call, states in zip(calls, read(llm, calls, tokens=True), strict=True):
        ids = torch.tensor([[*call.prompt_token_ids, *call.token_ids]])
        with torch.inference_mode():
            expected = net(ids, output_hidden_states=True).hidden_states
            normed = net.model.norm(torch.tensor(states.tokens[:, -1].astype(np.float32)))
        start = len(call.prompt_token_ids)
        for layer in LAYERS[:-1]:
            close(states.tokens[:, layer], expected[layer][0, start:])
        close(normed, expected[-1][0, start:])
        assert np.abs(states.tokens[:, -1] - expected[-1][0, start:].numpy()).max() > 0.1  # it is not the normed one


def test_replay_finds_what_the_hooks_kept_while_the_model_answered(llm, calls) -> None:
    for call, states in zip(calls, read(llm, calls, positions=LIVE_POSITIONS), strict=True):
        assert (states.hidden.layers, states.hidden.positions) == (call.hidden.layers, call.hidden.positions)
        close(states.hidden.values, call.hidden.values)


def test_first_last_and_mean_are_those_of_the_answer_tokens(llm, calls) -> None:
    for call, states in zip(calls, read(llm, calls, positions=LIVE_POSITIONS, tokens=True), strict=True):
        assert states.tokens.shape == (len(call.token_ids), len(LAYERS), 32)
        each = states.tokens.astype(np.float32)
        np.testing.assert_array_equal(states.hidden.values[:, 1], states.tokens[0])
        np.testing.assert_array_equal(states.hidden.values[:, 2], states.tokens[-1])
        close(states.hidden.values[:, 3], each.mean(0))


def test_before_exact_is_the_token_before_the_exact_answer(llm, calls) -> None:
    call = replace(calls[2], text="h i j h", token_ids=np.array([10, 11, 12, 10]), tokens=(), logprobs=None)
    options = {"positions": ("prompt_last", "answer_last", "before_exact"), "tokens": True}
    for exact, expected in (("j", 1), ("i", 0), ("h", 2), ("i j", 0)):
        [states] = read(llm, [call], exact, **options)
        np.testing.assert_array_equal(states.hidden.values[:, 2], states.tokens[expected])
    [states] = read(llm, [call], "h i", **options)
    np.testing.assert_array_equal(states.hidden.values[:, 2], states.hidden.values[:, 0])
    for nowhere in ("k", ""):
        [states] = read(llm, [call], nowhere, **options)
        np.testing.assert_array_equal(states.hidden.values[:, 2], states.hidden.values[:, 1])


@pytest.mark.parametrize(
    ("text", "exact", "start"),
    [
        ("It is 5, not 59.", "5", 6),
        ("A or B? The answer: A", "A", 20),
        ("A is right. An apple.", "A", 0),
        ("US$5", "$5", 2),
        ("59", "5", 0),
        ("nothing", "else", None),
        ("nothing", "", None),
    ],
)
def test_the_exact_answer_is_found_as_a_word_of_its_own_before_it_is_found_anywhere(text, exact, start) -> None:
    assert exact_start(text, exact) == start


def test_an_empty_answer_has_the_state_of_the_prompt_everywhere(llm, calls) -> None:
    empty = bare(calls[0], text="", tokens=(), token_ids=np.array([], np.int32), logprobs=np.array([], np.float32))
    alone, other = read(llm, [empty, calls[3]], "x", positions=POSITIONS, tokens=True)
    for position in range(1, len(POSITIONS)):
        np.testing.assert_array_equal(alone.hidden.values[:, position], alone.hidden.values[:, 0])
    assert (alone.tokens.shape, other.tokens.shape) == ((0, 5, 32), (len(calls[3].token_ids), 5, 32))


def test_states_do_not_depend_on_who_else_is_in_the_batch(llm, calls) -> None:
    together = read(llm, calls, positions=POSITIONS, tokens=True)
    for one, other in zip(read(llm, calls, positions=POSITIONS, tokens=True, batch_size=1), together, strict=True):
        close(one.hidden.values, other.hidden.values)
        close(one.tokens, other.tokens)


def test_nothing_above_the_deepest_layer_is_computed(llm, calls) -> None:
    def never(*_: object) -> None:
        raise AssertionError("not wanted")

    handles = [module.register_forward_hook(never) for module in (llm.model.model.layers[2], llm.model.lm_head)]
    try:
        shallow = read(llm, calls, layers="0,2")
    finally:
        for handle in handles:
            handle.remove()
    everything = read(llm, calls)
    for few, all_of_them in zip(shallow, everything, strict=True):
        np.testing.assert_array_equal(few.hidden.values, all_of_them.hidden.values[[0, 2]])


def test_extracted_states_are_found_by_the_store(llm, calls, store) -> None:
    report = extract(store, llm, positions=POSITIONS, tokens=True, chunk=3)
    total = sum(len(call.prompt_token_ids) + len(call.token_ids) for call in calls)
    assert report == replace(report, calls=7, tokens=total, stored_before=0, failed_calls=0, rebuilt=0)
    assert report.disagreement < 1e-4
    found = store.activations([call.id for call in calls], positions=LIVE_POSITIONS)
    for values, call in zip(found.values, calls, strict=True):
        close(values, call.hidden.values)
    for call, states in zip(calls, store.token_states([call.id for call in calls], layers=(4, 1)), strict=True):
        assert (states.call_id, states.layers, len(states.values)) == (call.id, (4, 1), len(call.tokens))
        close(states.values[-1], call.hidden.values[[4, 1], 2])
    assert len(list(store.token_states())) == 7
    assert not any(call.hidden for run in store.runs(hidden=True) for call in run.calls)  # none were kept then


def test_again_nothing_is_read_and_a_lost_file_is_made_anew_as_it_was(llm, store) -> None:
    extract(store, llm, tokens=True, chunk=2)
    before = files(store)
    assert len(before) == 8  # seven calls, two a file, states and tokens
    assert extract(store, llm, tokens=True, chunk=2).calls == 0
    for name in list(before)[::3]:
        (store.path / name).unlink()
        report = extract(store, llm, tokens=True, chunk=2)
        assert report.calls + report.stored_before == 7
        assert report.calls <= 2
        assert files(store) == before


def test_two_processes_write_what_one_writes(llm, store, tmp_path, calls) -> None:
    """Two threads stand for them; the slow test below starts real ones."""
    extract(store, llm, tokens=True, chunk=2)
    other = stored(tmp_path / "other", [bare(call) for call in calls])
    barrier, reports = Barrier(2), {}

    def work(index: int) -> None:
        own = LocalLLM(copy.deepcopy(llm.model), llm.tokenizer, name="tiny", revision="1")
        share = Share(index, 2, lambda: barrier.wait(60) and None)
        reports[index] = extract(other, own, tokens=True, chunk=2, share=share)

    threads = [Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {i: report.calls for i, report in reports.items()} == {0: 4, 1: 3}
    assert (reports[0] + reports[1]).calls == 7
    assert files(other) == files(store)


def test_only_calls_without_the_states_asked_for_are_read(llm, calls, tmp_path) -> None:
    store = stored(tmp_path, [call if i < 4 else bare(call) for i, call in enumerate(calls)])
    report = extract(store, llm, positions=LIVE_POSITIONS)
    assert (report.calls, report.stored_before) == (3, 4)
    assert len(store.activations().call_ids) == 7  # of one kind, whenever they were kept
    assert extract(store, llm, layers="1,3", positions=("answer_last",)).calls == 0
    assert extract(store, llm, positions=("before_exact",)).calls == 7
    with pytest.raises(StoreMismatch, match="several of the kinds"):
        store.activations()
    assert len(store.activations(positions=("before_exact",)).call_ids) == 7
    assert store.activations(positions=("answer_last",), layers=(2,)).values.shape == (7, 1, 1, 32)
    store.append([Run("new", "s", "v", Item("n", "?"), (bare(calls[0], id="new"),))])
    assert extract(store, llm, positions=LIVE_POSITIONS).calls == 1


def test_stage_and_agent_choose_calls(llm, store) -> None:
    assert extract(store, llm, stage="difficulty").calls == 3
    assert extract(store, llm, agent="solo").stored_before == 3
    with pytest.raises(RecordError, match="stages found: answer, difficulty; agents found: solo"):
        extract(store, llm, stage="reason")


def test_calls_of_an_endpoint_are_read_by_template_and_tokenizer(llm, calls, store, tmp_path) -> None:
    extract(store, llm)
    remote = stored(tmp_path / "remote", [bare(c, prompt_token_ids=None, token_ids=None) for c in calls])
    report = extract(remote, llm)
    assert report.rebuilt == 7
    assert report.disagreement < 1e-4
    np.testing.assert_array_equal(remote.activations().values, store.activations().values)


def test_calls_that_failed_are_counted_and_passed_over(llm, calls, tmp_path) -> None:
    store = stored(tmp_path, [bare(calls[0]), Call(id="bad", error="no connection")])
    report = extract(store, llm)
    assert (report.calls, report.failed_calls) == (1, 1)
    assert store.activations().call_ids == ("c0",)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prompt_token_ids": None, "messages": ()}, "neither prompt token ids nor messages"),
        ({"token_ids": np.array([5, 900])}, "token id 900, and tiny knows ids below 32"),
        ({"prompt_token_ids": np.array([5, -3])}, "token id -3"),
        ({"prompt_token_ids": np.array([], np.int32)}, "empty prompt"),
        ({"token_ids": np.full(64, 5)}, "the context of tiny is 64"),
        ({"model": "huge"}, r"1 calls are of huge; loaded is tiny"),
        ({"model_revision": "2"}, r"1 calls are of tiny \(2\)"),
        ({"logprobs": np.full(5, -9.0, np.float32)}, "nats a token off"),
    ],
)
def test_what_cannot_be_read_is_said_before_anything_is_written(llm, calls, tmp_path, changed, message) -> None:
    assert len(calls[1].token_ids) == 5
    store = stored(tmp_path, [bare(calls[1], **changed)])
    with pytest.raises(RecordError, match=message):
        extract(store, llm)
    assert not files(store)


def test_another_model_is_noticed_and_may_read_on_request(calls, store, llm) -> None:
    other = LocalLLM(network(seed=1), tokenizer(), name="tiny", revision="1")
    with pytest.raises(StoreMismatch, match="other log-probabilities"):
        extract(store, other)
    report = extract(store, other, other_model=True)
    assert report.disagreement > 0.5
    extract(store, llm)
    with pytest.raises(StoreMismatch, match="read by tiny@1"):
        store.activations()
    assert not np.array_equal(store.activations(model="").values, store.activations(model="tiny@1").values)
    close(store.activations(["c0"], positions=("answer_last",), model="").values[0, :, 0], calls[0].hidden.values[:, 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "0,5"}, "numbers from 0 to 4"),
        ({"positions": ("middle",)}, "unknown positions"),
        ({"positions": ()}, "no position to keep"),
        ({"batch_size": 0}, "expected at least 1"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(llm, store, options, message) -> None:
    with pytest.raises(RecordError, match=message):
        extract(store, llm, **options)


def test_a_capture_of_what_is_not_known_yet_is_refused() -> None:
    with pytest.raises(LLMError, match=r"\['before_exact'\] are not known while a model answers"):
        Capture((1,), ("before_exact",))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model on the disk, which loads in bfloat16, and a store of what it said."""
    folder = tmp_path_factory.mktemp("saved")
    network().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    stored(folder / "runs", answered(LocalLLM.load(str(folder / "model"))))
    return folder


def test_the_command_reports_as_json_and_goes_on_where_it_stopped(saved: Path) -> None:
    arguments = ["extract", saved / "runs", "--llm", saved / "model", "--layers", "every:2", "--stage", "answer"]
    for calls in (4, 0):
        result = CliRunner().invoke(main, [*map(str, arguments), "--position", "before_exact", "--chunk", "2"])
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        assert (report["calls"], report["stored_before"], report["processes"]) == (calls, 4 - calls, 1)
    assert RunStore(saved / "runs").activations(positions=["before_exact"]).layers == (0, 2, 4)
    result = CliRunner().invoke(main, [*map(str, arguments[:-4]), "--layers", "9"])
    assert result.exit_code == 1
    assert "expected 'all', 'every:N', or numbers from 0 to 4" in result.output


@pytest.mark.slow
def test_two_launched_processes_write_what_one_writes(saved: Path, tmp_path: Path) -> None:
    launched = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
    written = []
    for processes, launch in ((1, []), (2, launched)):
        store = RunStore(tmp_path / f"{processes}")
        store.append(RunStore(saved / "runs"))
        command = [*launch, "-m", "metaprobe.cli", "extract", store.path, "--llm", saved / "model", "--tokens"]
        done = subprocess.run(
            [sys.executable, *map(str, command), "--chunk", "2"],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        report = json.loads(done.stdout)
        assert (report["calls"], report["processes"]) == (7, processes)
        written.append(files(store))
    assert len(written[0]) == 8
    assert written[0] == written[1]


@pytest.mark.slow
def test_replay_agrees_with_generation_of_a_real_model(tmp_path: Path) -> None:
    """SmolLM2-135M in bfloat16, whose kernels round otherwise for other batches: by angle, and by log-probability."""
    llm = LocalLLM.load(layers="0,8,16,30")
    calls = answered(llm, ["What is the capital of France?", "Count to ten.", "Say yes.", "Why is the sky blue?"])
    store = stored(tmp_path, [bare(call) for call in calls])
    report = extract(store, llm, layers="0,8,16,30")
    assert report.disagreement < 0.1
    found = store.activations([call.id for call in calls]).values.astype(np.float32)
    kept = np.stack([call.hidden.values for call in calls]).astype(np.float32)
    cosine = (found * kept).sum(-1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(kept, axis=-1)
    np.testing.assert_array_equal(found[:, 0, :2], kept[:, 0, :2])  # embeddings are looked up
    assert cosine.min() > 0.99
