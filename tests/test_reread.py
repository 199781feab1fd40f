"""Another model's log-probabilities of recorded answers: read right, kept apart, and refused where they do not fit."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from random_model import teacher_forced, word_tokenizer
from read_again import answered, bare, network, stored
from tiny import tiny_quality

from metaprobe.checkpoints import ContractMismatch
from metaprobe.cli import main
from metaprobe.llms import forward as passes
from metaprobe.llms.extract import ExtractionWatch, extract, reread
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import NO_MESSAGES, NO_TEXT, StateReplay, read_answers
from metaprobe.probes.features import schema
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.parse import parse_response
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Message, Run
from metaprobe.training.evidence import load_evidence

TOLERANCE = 1e-4
"""Nats: float32 through four layers, added up in another order."""


def speaker() -> LocalLLM:
    net = network()
    net.lm_head.bias = torch.nn.Parameter(torch.tensor([-1000.0] * 3 + [0.0] * 26 + [-1000.0] * 3))
    return LocalLLM(net, word_tokenizer(), name="tiny", revision="1")


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    return [bare(call) for call in answered(speaker())]


@pytest.fixture(scope="module")
def reader() -> LocalLLM:
    return LocalLLM(network(seed=1), word_tokenizer(), name="reader", revision="7")


@pytest.fixture
def store(tmp_path: Path, calls: list[Call]) -> RunStore:
    return stored(tmp_path / "runs", calls)


def test_the_numbers_are_the_readers_for_the_text_that_was_answered(reader, calls) -> None:
    for call, one in zip(calls, read_answers(reader, calls, batch_size=3, top_logprobs=2), strict=True):
        expected, _ = teacher_forced(reader.model, one.call)
        np.testing.assert_allclose(one.call.logprobs, expected[: len(one.call.tokens)], atol=TOLERANCE)
        assert np.abs(one.call.logprobs - call.logprobs[: len(one.call.logprobs)]).max() > 0.1  # not the answerer's own
        assert (one.call.text, one.call.model, one.call.reader) == (call.text, "tiny", "reader@7")
        assert one.call.prompt_token_ids.tolist() == reader.encode(call.messages)
        assert one.call.top_logprobs.shape == (len(one.call.tokens), 2)
        assert one.tokens == len(one.call.prompt_token_ids) + len(one.call.tokens)


def test_slices_of_a_long_answer_give_what_one_pass_gives(reader, calls, monkeypatch) -> None:
    whole = read_answers(reader, calls, top_logprobs=2)
    monkeypatch.setattr(passes, "LOGITS_AT_ONCE", 96)
    held = []
    forward = reader.model.forward

    def watched(*arguments: object, **options: object) -> object:
        output = forward(*arguments, **options)
        held.append(output.logits.numel())
        return output

    monkeypatch.setattr(reader.model, "forward", watched)
    for one, sliced in zip(whole, read_answers(reader, calls, top_logprobs=2), strict=True):
        np.testing.assert_allclose(sliced.call.logprobs, one.call.logprobs, atol=TOLERANCE)
        np.testing.assert_allclose(sliced.call.top_logprobs, one.call.top_logprobs, atol=TOLERANCE)
    assert max(held) <= 96


def test_what_cannot_be_read_has_no_numbers_and_says_why(reader, calls) -> None:
    long = (Message("user", "a " * 70),)
    spoilt = [
        dataclasses.replace(calls[0], messages=()),
        dataclasses.replace(calls[1], text=""),
        dataclasses.replace(calls[2], messages=long),
        dataclasses.replace(calls[3], error="timeout"),
    ]
    found = read_answers(reader, [*spoilt, calls[4]])
    assert [one.unread for one in found[:2]] == [NO_MESSAGES, NO_TEXT]
    assert "longer than the context of reader (64 tokens)" in found[2].unread
    assert found[3].unread == "the call had failed"
    assert all(one.call.logprobs is None and one.call.tokens == () for one in found[:4])  # not the answerer's own
    assert found[4].call.logprobs is not None


def test_a_second_store_holds_the_runs_with_labels_and_who_read_them(reader, store, tmp_path, calls) -> None:
    labelled = RunStore(tmp_path / "labelled")
    labelled.append(dataclasses.replace(run, labels=(Label(run.calls[0].id, "correct", 1.0, "h"),)) for run in store)
    told: list[tuple[int, int]] = []
    out = RunStore(tmp_path / "read")
    report = reread(
        labelled, reader, out, shard_runs=3, watch=ExtractionWatch(on_chunk=lambda *counts: told.append(counts))
    )
    assert (report.calls, report.runs, report.stored_before, report.unread) == (7, 7, 0, {})
    assert [runs for runs, _ in told] == [3, 3, 1]
    assert sum(tokens for _, tokens in told) == report.tokens
    for run, before in zip(out, labelled, strict=True):
        assert (run.id, run.labels, run.item, run.calls[0].id) == (
            before.id,
            before.labels,
            before.item,
            run.calls[0].id,
        )
        assert (run.calls[0].reader, run.calls[0].model) == ("reader@7", "tiny")
        assert before.calls[0].reader == ""


def test_a_killed_reading_goes_on_and_gives_what_one_reading_gives(reader, store, tmp_path) -> None:
    class Killed(Exception):
        pass

    def kill(runs: int, tokens: int) -> None:
        raise Killed

    out, whole = RunStore(tmp_path / "read"), RunStore(tmp_path / "whole")
    with pytest.raises(Killed):
        reread(store, reader, out, shard_runs=3, watch=ExtractionWatch(on_chunk=kill))
    assert len(out) == 3
    again = reread(store, reader, out, shard_runs=3)
    assert (again.runs, again.stored_before) == (4, 3)
    reread(store, reader, whole, shard_runs=3)
    for one, other in zip(out, whole, strict=True):
        assert one.id == other.id
        np.testing.assert_array_equal(one.calls[0].logprobs, other.calls[0].logprobs)


def test_two_readers_do_not_share_a_folder_and_a_store_is_not_read_into_itself(reader, store, tmp_path) -> None:
    out = RunStore(tmp_path / "read")
    reread(store, reader, out)
    other = LocalLLM(reader.model, reader.tokenizer, name="other", revision="1")
    with pytest.raises(StoreMismatch, match="holds what reader@7 read; expected a folder of its own for other@1"):
        reread(store, other, out)
    with pytest.raises(RecordError, match="holds the answers that are read"):
        reread(store, reader, RunStore(store.path))
    with pytest.raises(StoreMismatch, match="holds runs that no other model read"):
        reread(out, reader, store)


def test_states_of_a_reread_call_are_of_the_model_that_is_loaded_not_of_the_readers_tokens(
    reader, calls, store, tmp_path
) -> None:
    out = RunStore(tmp_path / "read")
    reread(store, reader, out)
    replay = StateReplay(speaker())
    [read_call] = read_answers(reader, [dataclasses.replace(calls[2], prompt_token_ids=None)])
    spoilt = dataclasses.replace(read_call.call, token_ids=np.array([3, 3], np.int32), tokens=("a", "a"))
    assert replay.reading(spoilt, "").answer == calls[2].token_ids.tolist()
    assert replay.reading(spoilt, "").logprobs is None  # the reader's numbers say nothing of this model
    with pytest.raises(StoreMismatch, match="calls are of tiny"):
        extract(out, reader)
    assert extract(out, reader, other_model=True).disagreement < TOLERANCE  # its own ids and numbers are used


def test_evidence_names_the_reader_and_refuses_a_mixture(tmp_path) -> None:
    for readers in (["x@1"] * 6, [""] * 6, ["x@1", ""] * 3):
        store = RunStore(tmp_path / f"{len(set(readers))}{readers[0]}")
        for i, reader in enumerate(readers):
            call = dataclasses.replace(call_read_by(reader), id=f"c{i}", stage="answer")
            labels = (Label(call.id, "correct", float(i % 2), "program"),)
            store.append([Run(f"r{i}", "s", "v", Item(f"q{i}", "?"), (call,), labels=labels)])
        if len(set(readers)) == 1:
            assert load_evidence([store.path]).logprobs_reader == readers[0]
        else:
            with pytest.raises(RecordError, match=r"different readers \(the answering model itself, x@1\)"):
                load_evidence([store.path])


def call_read_by(reader: str) -> Call:
    return Call(
        id="c", model="org/model", text="a", logprobs=np.array([-0.1, -0.2, -0.3]), logprobs_mode="raw", reader=reader
    )


def test_a_predictor_warns_of_another_readers_numbers_and_refuses_them_on_request(tmp_path) -> None:
    contract = {"schema": "full", "features": list(schema("full").names), "reader": {"model": "x", "revision": "1"}}
    tiny_quality(tmp_path / "read", contract=contract)
    tiny_quality(tmp_path / "own")
    assert parse_response(call_read_by("x@1")).reader == "x@1"
    for folder, fits, other in (("read", "x@1", ""), ("read", "x@2", "y@1"), ("own", "", "x@1")):
        refusing = QualityPredictor.load(tmp_path / folder, on_mismatch="refuse")
        assert refusing.predict(call_read_by(fits)).score > 0
        with pytest.raises(ContractMismatch, match=r"log-probabilities of .* checkpoint trained on those of"):
            refusing.predict(call_read_by(other))
        with pytest.warns(UserWarning, match="trained on those of"):
            noted = QualityPredictor.load(tmp_path / folder).predict(call_read_by(other))
        assert "checkpoint trained on those of" in noted.reason
    # Bare numbers say nothing of who gave them, and nothing is held against them.
    assert QualityPredictor.load(tmp_path / "read", on_mismatch="refuse").predict([-0.1, -0.2, -0.3]).score > 0


def test_the_command_wants_one_of_both_readings_and_says_which_options_belong_to_it(store, tmp_path) -> None:
    def said(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["extract", str(store.path), *arguments])
        assert result.exit_code == 2
        return result.output

    assert "expected one of --llm MODEL" in said()
    assert "expected one of --llm MODEL" in said("--llm", "a", "--logprobs", "b")
    assert "--out belongs to --logprobs" in said("--llm", "a", "--out", str(tmp_path / "x"))
    assert "--layers belongs to --llm" in said("--logprobs", "a", "--out", str(tmp_path / "x"), "--layers", "1")
    assert "--position belongs to --llm" in said("--logprobs", "a", "--position", "answer_last")
    assert "Missing option '--out'" in said("--logprobs", "a")


def test_the_command_writes_the_second_store(reader, store, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(LocalLLM, "load", classmethod(lambda cls, name: reader))
    out = tmp_path / "read"
    result = CliRunner().invoke(main, ["extract", str(store.path), "--logprobs", "reader", "--out", str(out)])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert (report["calls"], report["runs"], report["unread"]) == (7, 7, {})
    assert {call.reader for run in RunStore(out) for call in run.calls} == {"reader@7"}
