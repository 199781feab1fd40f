"""Debates that are collected for the study of judges, and a local model's options as a decision model."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_model import WORDS
from read_again import network
from test_essay_debate import ITEM, DecidingLLM, debate
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from metaprobe.llms.base import Request
from metaprobe.llms.cache import CallCache
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import read_answers
from metaprobe.llms.weights import PLAIN_TEMPLATE
from metaprobe.papers.systems.decision_calls import answers_in, questions_message
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Message
from research.debates import collect
from research.debates.options import OptionJudge, asked, replies

QUESTIONS = [
    {
        "type": "score",
        "name": "clear",
        "instructions": "a b c",
        "levels": [{"label": name, "description": name} for name in "xyz"],
    },
    {"type": "predicate", "name": "critical", "instructions": "d e f"},
]


def test_options_have_the_share_of_the_likelihood_that_the_model_gives_each_reply() -> None:
    words = [*WORDS, "1", "2", "3", "True", "False"]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = PLAIN_TEMPLATE
    llm = LocalLLM(network(len(words)), tokenizer, name="tiny", revision="1")
    shown = (Message("user", "g h i j k l m n o p q r s t u v"), Message("assistant", "w x y z"))
    request = Request(id="1", messages=(*shown, questions_message(QUESTIONS)), parent="0")
    told = answers_in(asyncio.run(OptionJudge(llm).complete(request)))

    def shares(question: dict[str, object]) -> np.ndarray:
        messages = (*shown, Message("user", asked(question)))
        calls = [Call(id=word, messages=messages, text=word) for word in replies(question)]
        odds = np.exp([one.call.logprobs[0] for one in read_answers(llm, calls) if one.call.logprobs is not None])
        return odds / odds.sum()

    assert told[0].probabilities == pytest.approx(shares(QUESTIONS[0]), abs=1e-5)
    assert told[0].value == pytest.approx(shares(QUESTIONS[0]) @ [0, 1, 2], abs=1e-5)
    assert told[1].value == pytest.approx(shares(QUESTIONS[1])[1], abs=1e-5)


def test_a_debate_is_judged_by_program_text_and_options_and_what_is_kept_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [replace(ITEM, id=name, group=name, check="none") for name in ("one", "two")]
    judge = DecidingLLM({}, name="scripted")
    judge.answers = {"critical": 0.7}
    monkeypatch.setattr(collect, "OptionJudge", lambda llm: judge)
    monkeypatch.setattr(collect, "ROUNDS", (1, 2))

    def round_of(folder: Path, until: int) -> tuple[int, int]:
        """How often the debaters and the deciding judge were asked."""
        llm, before = debate(), len(judge.asked)
        folders = [collect.begun(folder / name, tmp_path / "kept") for name in ("debated", "judged")]
        with CallCache(folder / "calls.sqlite") as cache:
            asyncio.run(collect.work(llm, cache, items, *folders, until))  # type: ignore[arg-type]
        return llm.stages.count("argument"), len(judge.asked) - before

    (tmp_path / "first").mkdir(), (tmp_path / "second").mkdir()
    assert round_of(tmp_path / "first", 1) == (2, 2)
    collect.pack(tmp_path / "first" / "judged", tmp_path / "kept", text=False, alternatives=collect.ALL)
    assert round_of(tmp_path / "second", 2) == (2, 2)

    runs = {run.item.id: run for run in RunStore(tmp_path / "second" / "judged")}
    assert set(runs) == {"one", "two"}
    for run in runs.values():
        sources = {label.source for label in run.labels if label.name == "critical"}
        assert sources == {"program", "judge:scripted"}
        assert [a.value for a in run.decision_answers if a.question == "critical"] == [0.7, 0.7]
    assert all(call.text == "" for call in runs["one"].calls)
    assert all(json.loads(call.text) for call in runs["two"].calls if call.stage == "judge")
