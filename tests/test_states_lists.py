"""The lists of items that both coders are asked for the probes, and a collection that goes on from what is kept."""

import asyncio
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from scripted import ScriptedLLM

from metaprobe.pipelines import Session, Setup
from metaprobe.records.correctness import is_correct
from metaprobe.records.store import RunStore
from research.states import collect
from research.states.asking import SAMPLED
from research.states.collect import JOBS
from research.states.items import EACH_SUM, KINDS, sums

ITEMS = sums()


def test_every_beginning_of_the_sums_holds_all_kinds_and_no_sum_is_asked_twice() -> None:
    assert Counter(item.dimension for item in ITEMS) == dict.fromkeys(KINDS, EACH_SUM)
    assert Counter(item.dimension for item in ITEMS[: 3 * len(KINDS)]) == dict.fromkeys(KINDS, 3)
    assert len({item.id for item in ITEMS}) == len({item.question for item in ITEMS}) == len(ITEMS)


def test_the_scorer_takes_the_right_sum_in_a_sentence_and_no_other_number() -> None:
    for item in ITEMS[:50]:
        asked = item.question.removeprefix("What is ").removesuffix("?")
        assert is_correct(item, f"{asked} = {item.gold[0]}")
        assert not is_correct(item, f"{asked} = {Fraction(item.gold[0]) + 1}")


def test_what_is_kept_in_the_repository_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "KEPT", tmp_path / "kept")
    llm = ScriptedLLM({"*": "50"})
    job = JOBS["arithmetic"]
    asyncio.run(collect.record("arithmetic", job, ITEMS[:2], llm, tmp_path / "first" / "m", 2))
    collect.keep(tmp_path / "first" / "m" / "arithmetic", tmp_path / "kept" / "m" / "arithmetic", job)
    before = len(llm.asked)
    asyncio.run(collect.record("arithmetic", job, ITEMS[:3], llm, tmp_path / "second" / "m", 2))
    assert len(llm.asked) - before == 4  # difficulty, answer, confidence and P(true) of the third
    assert {run.item.id for run in RunStore(tmp_path / "second" / "m" / "arithmetic")} == {i.id for i in ITEMS[:3]}


def test_samples_are_each_labelled_and_the_answer_is_the_one_most_often_given() -> None:
    item = ITEMS[0]
    llm = ScriptedLLM({"answer": [item.gold[0], "1", "2", *[item.gold[0]] * 7]})
    setup = Setup(collect.Models(llm), collect.Prompts.load("self-report", SAMPLED.prompts))
    run = asyncio.run(SAMPLED.run(Session(setup, item, system=SAMPLED.name, variant="plain", run_id="r")))
    assert run.final_answer == item.gold[0]
    assert len(run.calls) == 10
    assert len({call.sampling.seed for call in run.calls}) == 10
