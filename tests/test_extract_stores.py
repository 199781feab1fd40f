"""Extracting writes the states of a store's calls once, whoever helps, and says before what cannot be read."""

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
import read_again
import torch
from click.testing import CliRunner
from random_model import word_tokenizer
from read_again import answered, bare, close, files, network, stored

from metaprobe.cli import main
from metaprobe.llms.extract import Share, extract
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import without_readings
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.store import RunStore
from metaprobe.records.types import LIVE_POSITIONS, POSITIONS, Call, Item, Run

llm = read_again.llm
calls = read_again.calls
store = read_again.store


def test_extracted_states_are_found_by_the_store(llm, calls, store) -> None:
    report = extract(store, llm, positions=POSITIONS, shard_calls=3)
    total = sum(len(call.prompt_token_ids) + len(call.token_ids) for call in calls)
    assert report == replace(report, calls=7, tokens=total, stored_before=0, failed_calls=0, rebuilt=0)
    assert report.disagreement < 1e-4
    found = store.activations([call.id for call in calls], positions=LIVE_POSITIONS)
    for values, call in zip(found.values, calls, strict=True):
        close(values, call.hidden.values)
    assert not any(call.hidden for run in store.runs(hidden=True) for call in run.calls)  # none were kept then


def test_again_nothing_is_read_and_a_lost_file_is_made_anew_as_it_was(llm, store) -> None:
    extract(store, llm, shard_calls=2)
    before = files(store)
    assert len(before) == 4  # seven calls, two a file
    assert extract(store, llm, shard_calls=2).calls == 0
    for name in list(before)[::3]:
        (store.path / name).unlink()
        report = extract(store, llm, shard_calls=2)
        assert report.calls + report.stored_before == 7
        assert report.calls <= 2
        assert files(store) == before


def test_two_processes_write_what_one_writes(llm, store, tmp_path, calls) -> None:
    """Two threads stand for them; the slow test below starts real ones."""
    extract(store, llm, shard_calls=2)
    other = stored(tmp_path / "other", [bare(call) for call in calls])
    barrier, reports = Barrier(2), {}

    def work(index: int) -> None:
        own = LocalLLM(copy.deepcopy(llm.model), llm.tokenizer, name="tiny", revision="1")
        share = Share(index, 2, lambda: barrier.wait(60) and None)
        reports[index] = extract(other, own, shard_calls=2, share=share)

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
    other = LocalLLM(network(seed=1), word_tokenizer(), name="tiny", revision="1")
    with pytest.raises(StoreMismatch, match="other log-probabilities"):
        extract(store, other)
    report = extract(store, other, other_model=True)
    assert report.disagreement > 0.5
    extract(store, llm)
    with pytest.raises(StoreMismatch, match="read by tiny@1"):
        store.activations()
    assert not np.array_equal(store.activations(model="").values, store.activations(model="tiny@1").values)
    close(store.activations(["c0"], positions=("answer_last",), model="").values[0, :, 0], calls[0].hidden.values[:, 2])


def test_calls_of_another_model_are_read_as_text_and_not_by_its_token_ids(calls, llm, tmp_path) -> None:
    """The same ids are other words in another tokenizer: here each answer's ids tell its words backwards."""
    theirs = [bare(call, model="theirs", token_ids=call.token_ids[::-1].copy()) for call in calls]
    states = []
    for name, told in (("ids", theirs), ("text", [without_readings(call, "") for call in theirs])):
        store = stored(tmp_path / name, told)
        assert extract(store, llm, other_model=True).rebuilt == len(calls)
        states.append(store.activations([call.id for call in calls]).values)
    assert np.array_equal(*states)


@pytest.fixture
def broken() -> LocalLLM:
    """One weight of block 3 is not a number."""
    net = network()
    with torch.no_grad():
        net.model.layers[2].mlp.down_proj.weight[0, 0] = torch.nan
    return LocalLLM(net, word_tokenizer(), name="tiny", revision="1")


@pytest.mark.parametrize("other_model", [False, True])
def test_a_model_whose_log_probabilities_are_no_numbers_is_refused(store, broken, other_model) -> None:
    with pytest.raises(RecordError, match=r"tiny gives log-probabilities that are no numbers.*bfloat16 or float32"):
        extract(store, broken, other_model=other_model)
    assert not files(store)


@pytest.mark.parametrize("options", [{}, {"layers": "3", "other_model": True}])
def test_states_that_are_no_numbers_are_never_stored_so_a_sound_model_reads_them(
    calls, tmp_path, llm, broken, options
) -> None:
    silent = stored(tmp_path / "runs", [bare(call, logprobs=None, model_revision="") for call in calls])
    message = r"tiny gives hidden states that are no numbers for 7 of 7 calls, such as c0 from layer 3 on.*bfloat16"
    with pytest.raises(RecordError, match=message):
        extract(silent, broken, **options)
    assert not files(silent)
    assert extract(silent, llm, **options).calls == 7
    assert extract(silent, broken, **{**options, "layers": "0,2"}).disagreement is None  # below the break


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


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model on the disk, which loads in bfloat16, and a store of what it said."""
    folder = tmp_path_factory.mktemp("saved")
    network().save_pretrained(folder / "model")
    word_tokenizer().save_pretrained(folder / "model")
    stored(folder / "runs", answered(LocalLLM.load(str(folder / "model"))))
    return folder


def test_the_command_reports_as_json_and_goes_on_where_it_stopped(saved: Path, tmp_path: Path) -> None:
    arguments = ["extract", saved / "runs", "--llm", saved / "model", "--layers", "every:2", "--stage", "answer"]
    for calls in (4, 0):
        result = CliRunner().invoke(main, [*map(str, arguments), "--position", "before_exact", "--shard-calls", "2"])
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        assert (report["calls"], report["stored_before"], report["processes"]) == (calls, 4 - calls, 1)
    assert RunStore(saved / "runs").activations(positions=["before_exact"]).layers == (0, 2, 4)
    silent = stored(tmp_path, [bare(next(iter(RunStore(saved / "runs"))).calls[0], logprobs=None)])
    result = CliRunner().invoke(main, ["extract", str(silent.path), "--llm", str(saved / "model")])
    assert "not checked: no call holds raw log-probabilities" in result.stderr
    assert json.loads(result.stdout)["disagreement"] is None
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
        command = [*launch, "-m", "metaprobe.cli", "extract", store.path, "--llm", saved / "model"]
        done = subprocess.run(
            [sys.executable, *map(str, command), "--shard-calls", "2"],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        report = json.loads(done.stdout)
        assert (report["calls"], report["processes"]) == (7, processes)
        written.append(files(store))
    assert len(written[0]) == 4
    assert written[0] == written[1]


def test_a_call_that_two_runs_share_is_read_once_and_one_that_failed_not_at_all(llm, calls, tmp_path) -> None:
    shared = stored(tmp_path, [bare(calls[0]), Call(id="bad", error="no connection")])
    shared.append([replace(run, id=f"{run.id} again") for run in shared.runs()])
    report = extract(shared, llm)
    assert report.failed_calls == 2
    assert (report.calls, report.tokens) == (1, len(calls[0].prompt_token_ids) + len(calls[0].token_ids))
    assert shared.activations([calls[0].id]).values.shape[0] == 1
