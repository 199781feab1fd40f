"""The text reader: it learns planted words and levels, and reads files without log-probabilities."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tiny_adapter import saved_base, stored
from tiny_encoder import CONTEXT, saved_encoder
from transformers import AutoModel, AutoTokenizer

import metaprobe
from metaprobe.checkpoints import CheckpointExists, ContractMismatch
from metaprobe.cli import main
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.llms.base import LLMError
from metaprobe.llms.text_pairs import PairReader
from metaprobe.probes.text import TextReader
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Message, Run
from metaprobe.training.training_options import AdapterOptions, WrongOptions

LETTERS = list("bcdfghjklmnpqrstvwxz")


def lines(path: Path, *, n: int = 160, seed: int = 0) -> Path:
    """Right is an answer with the word "surely"; its level counts how often the answer says so, up to 3."""
    rng = np.random.default_rng(seed)

    def line(i: int) -> dict[str, object]:
        often = int(rng.integers(0, 4))
        words = [*rng.choice(LETTERS, 6).tolist(), *["surely"] * often]
        question = f"What of {' '.join(rng.choice(LETTERS, 5))} number {i // 2}?"
        labels = {"correct": int(often > 0), "level": often}
        return {
            "group": f"{i // 2}",
            "question": question,
            "answer": " ".join(rng.permutation(words)),
            "labels": labels,
            "model": "seen",
        }

    path.write_text("".join(json.dumps(line(i)) + "\n" for i in range(n)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> TextReader:
    folder = tmp_path_factory.mktemp("text")
    made = metaprobe.train_text(lines(folder / "train.jsonl"), folds=2, out=folder / "reader")
    loaded = metaprobe.load(made.path)
    assert isinstance(loaded, TextReader)
    return loaded


def test_the_same_texts_give_the_same_reader_however_their_lines_are_called(reader: TextReader, tmp_path: Path) -> None:
    told = [json.loads(line) for line in lines(tmp_path / "train.jsonl").read_text().splitlines()]
    other = [
        {
            **line,
            "id": f"mine-{i}",
            "group": f"topic {line['group']}",
            "labels": None,
            "correct": line["labels"]["correct"],
        }
        for i, line in enumerate(reversed(told))
    ]
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(line) + "\n" for line in other))
    made = metaprobe.train_text(tmp_path / "other.jsonl", folds=2, out=tmp_path / "reader").manifest
    before = reader.checkpoint.manifest
    assert made.thresholds["flag"] == pytest.approx(before.thresholds["flag"], abs=1e-6)
    assert {name: m.estimate for name, m in made.metrics.items()} == pytest.approx(
        {name: m.estimate for name, m in before.metrics.items()}, abs=1e-6
    )


def test_the_mean_score_of_the_labelled_texts_is_their_share_of_right_ones(tmp_path: Path) -> None:
    rng, words = np.random.default_rng(2), [f"w{i}" for i in range(30)]
    weight, told = np.random.default_rng(0).normal(size=30), []
    for i in range(100):
        drawn = rng.choice(30, 6, replace=False)
        right = int(rng.uniform() < 1 / (1 + np.exp(-0.5 - weight[drawn].sum() / 2)))
        said = " ".join(words[j] for j in drawn)
        told.append({"group": f"g{i}", "question": f"What of {i}?", "answer": said, "labels": {"correct": right}})
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    made = metaprobe.load(metaprobe.train_text(tmp_path / "lines.jsonl", folds=2, out=tmp_path / "reader").path)
    assert isinstance(made, TextReader)
    given = [[line[name] for line in told] for name in ("question", "answer")]
    scores = [verdict.score for verdict in made.predict_many(*given)]
    share = np.mean([line["labels"]["correct"] for line in told])
    # Learning rows are scored by a fit that knows them, so that the two are not exactly equal.
    assert np.mean(scores) == pytest.approx(share, abs=0.015)


def test_a_planted_word_is_learned_and_the_graph_reads_texts_alone_as_together(reader: TextReader) -> None:
    assert reader.checkpoint.manifest.metrics["auroc"].estimate > 0.95
    questions = ["What?", "", "What of b c d?"]
    answers = ["surely b c d f g h", "b c d f g h", "q SURELY! " * 300]
    together = reader.values(questions, answers)
    assert (together > 0.5).tolist() == [True, False, True]
    alone = [reader.values([q], [a])[0] for q, a in zip(questions, answers, strict=True)]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert reader.predict("What?", "surely b c d f g h").heads == {"correct": pytest.approx(together[0], abs=1e-6)}


def test_lines_are_scored_from_text_alone_and_each_gets_an_answer(reader: TextReader, tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "What?"}]}
    told = {"choices": [{"message": {"role": "assistant", "content": "surely b c d f g h"}}]}
    rows = [{"id": "a", "question": "What?", "answer": "surely b c d f g h"}, {"id": "b", **chat, "response": told}]
    rows += [{"id": "c", "question": "What?", "answer": " "}, {"id": "d", "question": "What?"}]
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n", encoding="utf-8")
    told_lines = CliRunner().invoke(main, ["score", str(reader.checkpoint.path), str(file)]).stdout.splitlines()
    out = [json.loads(line) for line in told_lines]
    assert [line["line"] for line in out] == [1, 2, 3, 4, 5]
    assert out[0]["score"] == out[1]["score"] > 0.5
    assert out[0]["flagged"] is False
    assert all(line["score"] is None and line["flagged"] is None and line["reason"] for line in out[2:])


def test_the_verdict_on_a_model_that_the_reader_has_not_seen_says_so(reader: TextReader, tmp_path: Path) -> None:
    asked = [{"question": "What?", "answer": "Surely b.", "model": model} for model in ("seen", "new", "")]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in asked))
    out = CliRunner().invoke(main, ["score", str(reader.checkpoint.path), str(tmp_path / "asked.jsonl")]).stdout
    reasons = [json.loads(line)["reason"] for line in out.splitlines()]
    assert ["'new', checkpoint trained on seen" in reason for reason in reasons] == [False, True, False]


@pytest.mark.parametrize("recipe", ["text", "gate", "adapter"])
def test_what_learns_from_labels_alone_refuses_agreement_and_names_what_learns_it(recipe: str, tmp_path: Path) -> None:
    command = ["train", recipe, str(lines(tmp_path / "a.jsonl")), "--target", "agreement", "--out", str(tmp_path / "o")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "metaprobe train quality" in " ".join(result.output.split())
    assert not (tmp_path / "o").exists()


def test_a_store_is_scored_by_its_texts_without_log_probabilities(reader: TextReader, tmp_path: Path) -> None:
    """Another stage and an answer without text get no line; a store without any text is refused.

    An answer before which nobody asked has a line without a score.
    """
    texts = {"a": ("answer", "surely b c d f g h"), "b": ("answer", "b c d f g h"), "c": ("draft", "b"), "d": ("d", "")}
    calls = [
        Call(id=name, model="m", stage=stage, messages=(Message("user", "What?"),), text=text)
        for name, (stage, text) in texts.items()
    ]
    unasked = replace(calls[0], id="e", messages=())
    for folder, kept in (("runs", [*calls, unasked]), ("bare", calls[3:])):
        RunStore(tmp_path / folder).append([Run("r", "s", "", Item("i", "What?"), tuple(kept))])
    asked = ["score", str(reader.checkpoint.path)]
    done = CliRunner().invoke(main, [*asked, str(tmp_path / "runs"), "--stage", "answer"])
    told = {line["call"]: line["score"] for line in map(json.loads, done.stdout.splitlines())}
    assert told.pop("e") is None
    assert told == {name: pytest.approx(reader.predict("What?", texts[name][1]).score) for name in "ab"}
    bare = CliRunner().invoke(main, [*asked, str(tmp_path / "bare")])
    assert (bare.exit_code, "holds no answer with a text" in bare.output) == (1, True)


def test_levels_of_a_rubric_are_expected_on_their_scale(tmp_path: Path) -> None:
    data = lines(tmp_path / "train.jsonl", n=400)
    made = metaprobe.train_text(data, target="level", folds=2, out=tmp_path / "reader")
    reader = TextReader.load(made.path)
    values = reader.values(["?"] * 3, ["b c d f g h", "b c d surely f g h", "b surely surely d surely f g h"])
    assert reader.scale == (0.0, 3.0)
    assert 0 <= values[0] < values[1] < values[2] <= 3
    assert reader.predict("?", "b c d f g h").score == pytest.approx(reader.values(["?"], ["b c d f g h"])[0] / 3)
    figures = made.manifest.metrics
    assert figures["spearman"].estimate > 0.9
    assert figures["rmse_of_a_constant_minus_rmse"].low > 0


def test_what_cannot_be_read_or_promised_is_refused(reader: TextReader, tmp_path: Path) -> None:
    with pytest.raises(InvalidResponse, match="empty"):
        reader.predict("What?", " ")
    with pytest.raises(ContractMismatch, match="kind"):
        metaprobe.QualityPredictor.load(reader.checkpoint.path)
    data = lines(tmp_path / "train.jsonl", n=60)
    with pytest.raises(WrongOptions, match="has levels"):
        metaprobe.train_text(data, target="level", flag_rate=0.2, out=tmp_path / "reader")
    with pytest.raises(RecordError, match="no answer with a label 'other'"):
        metaprobe.train_text(data, target="other", out=tmp_path / "reader")


def test_a_sentence_encoder_reads_the_pair_and_its_state_is_the_mean_over_the_answer(tmp_path: Path) -> None:
    """Only the end of a question too long to fit is read; an answer is read whole, in windows beside the question."""
    folder = saved_encoder(tmp_path / "bert")
    network, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def tokens(question: str, answer: str) -> torch.Tensor:
        """Returns the states of the answer's tokens after the last block."""
        encoded = tokenizer(question, answer, return_tensors="pt")
        own = [part == 1 for part in encoded.sequence_ids(0)]
        with torch.inference_mode():
            return network(**encoded).last_hidden_state[0, own]

    reader = PairReader(folder)
    assert reader.layers("every:5") == (0, 2)
    room = CONTEXT - 3 - 2  # beside the marks and the question "What ?"
    long, rest = "b c d f g h " * (room // 6) + "k l m "[: 2 * (room % 6)], "surely surely n"
    questions = ["What?", "What?", "w " * 3 * CONTEXT + "b " * (CONTEXT // 2)]
    answers = ["surely b", long + rest, "k"]
    states = reader.states(questions, answers, (0, 2), reader.positions)
    assert states.shape == (3, 2, 1, 16)
    whole = torch.cat([tokens("What?", long), tokens("What?", rest)])
    expected = [tokens(*pair).mean(dim=0) for pair in (("What?", "surely b"), ("b " * (CONTEXT // 2), "k"))]
    np.testing.assert_allclose(states[[0, 2], 1, 0], torch.stack(expected), atol=2e-3)
    np.testing.assert_allclose(states[1, 1, 0], whole.mean(dim=0), atol=2e-3)


def test_an_encoder_that_tells_more_than_the_words_reads_again_where_the_checkpoint_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words are blinded; the planted word is then known to the encoder alone."""
    monkeypatch.setattr("metaprobe.training.recipes.train_text.MIN_WORD_ROWS", 10**9)
    monkeypatch.setattr("metaprobe.training.recipes.train_text.SHAPE_WEIGHT", 0.0)
    encoder, data = saved_encoder(tmp_path / "bert"), lines(tmp_path / "train.jsonl", n=240)
    made = metaprobe.train_text(data, out=tmp_path / "reader", folds=2, read_by=encoder)
    contract, reader = made.manifest.contract["states"], TextReader.load(made.path)
    assert (contract["model"], contract["position"]) == (encoder, "answer_mean")
    assert made.manifest.metrics["auroc"].low > 0.9
    new = [json.loads(line) for line in lines(tmp_path / "new.jsonl", seed=1).read_text().splitlines()]
    questions, answers = [line["question"] for line in new], [line["answer"] for line in new]
    values = reader.values(questions, answers)
    assert auroc([line["labels"]["correct"] for line in new], values) > 0.9
    assert reader.values(questions[:1], answers[:1])[0] == pytest.approx(values[0], abs=5e-3)
    (Path(encoder) / "config.json").write_text((Path(encoder) / "config.json").read_text() + "\n")
    with pytest.raises(LLMError, match="expected sha256"):
        TextReader.load(made.path).predict("What?", "b")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
def test_an_adapter_that_gains_nothing_over_the_words_is_not_taken_and_the_card_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words tell this label in full."""
    quick = partial(AdapterOptions, epochs=1, batch_size=16, max_length=24)
    monkeypatch.setattr("metaprobe.training.recipes.train_text.AdapterOptions", quick)
    base = saved_base(tmp_path / "tiny")
    data, lines_said = lines(tmp_path / "train.jsonl"), []
    told = {"folds": 2, "adapter": base, "on_line": lines_said.append}
    made = metaprobe.train_text(data, out=tmp_path / "reader", **told)
    assert made.manifest.kind == "text"
    assert any(line.startswith("adapter over words: AUROC") and "not taken" in line for line in lines_said)
    assert "adapter over words" in (tmp_path / "reader" / "README.md").read_text()
    assert not (tmp_path / "reader.work").exists()
    with pytest.raises(WrongOptions, match="has levels"):
        metaprobe.train_text(data, target="level", out=tmp_path / "levels", adapter=base)
    with pytest.raises(CheckpointExists):
        metaprobe.train_text(data, out=tmp_path / "reader", replace=True, **told)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
def test_an_adapter_that_beats_the_words_by_an_interval_is_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words are blinded; the planted word is then known to the adapter alone."""
    monkeypatch.setattr("metaprobe.training.recipes.train_text.MIN_WORD_ROWS", 10**9)
    monkeypatch.setattr("metaprobe.training.recipes.train_text.SHAPE_WEIGHT", 0.0)
    quick = partial(AdapterOptions, epochs=8, batch_size=16, lr=1e-2, max_length=24)
    monkeypatch.setattr("metaprobe.training.recipes.train_text.AdapterOptions", quick)
    said: list[str] = []
    base, data = saved_base(tmp_path / "tiny"), stored(tmp_path / "runs")
    made = metaprobe.train_text([data], out=tmp_path / "reader", folds=2, adapter=base, on_line=said.append)
    assert made.manifest.kind == "adapter"
    assert any("adapter over words" in line and line.endswith("taken") for line in said)
    card = (tmp_path / "reader" / "README.md").read_text()
    assert "adapter over words" in card
    assert "int8 against float32, after, on the" in card
