"""Measurements of the writing assistant: rows with labels, small models held out by template, orders counted."""

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
from scripted import ScriptedLLM, run_once
from writing_turns import IN_FORM

from metaprobe.checkpoints import ContractMismatch, find_bundled, load_checkpoint
from metaprobe.papers.tasks import load_task
from metaprobe.probes.hashed_words import hashed_pieces, hashed_words
from metaprobe.probes.text_classes import TextClassifier
from metaprobe.records.types import Item, Run
from metaprobe_writing_assistant.system.assistant import SYSTEM
from metaprobe_writing_assistant.system.classifiers import turn_text
from metaprobe_writing_assistant.system.contract import turn_of_item
from research.writing.asked import ASSESSOR, CLASSIFIERS, ESSAYS, SPOILT
from research.writing.heads import BUCKETS, FIGURES, HEADS, accuracy, labelled, predict_out_of_fold
from research.writing.injections import HARMLESS, INJECTIONS
from research.writing.measure import injection_figures, of_condition

TURNS = load_task("writing-turns")


def test_at_least_two_hundred_turns_carry_both_labels_in_even_shares_and_stay_with_their_template() -> None:
    cells = Counter((item.fields["stage"], item.fields["reasoning"]) for item in TURNS)
    assert sum(cells.values()) >= 200
    assert len(cells) == 8
    assert max(cells.values()) <= 1.5 * min(cells.values())
    templates = {(item.group, item.fields["stage"], item.fields["reasoning"]) for item in TURNS}
    assert len(templates) == len({item.group for item in TURNS}) == 112


def test_the_size_of_the_text_does_not_give_the_stage_away() -> None:
    """Every size of a draft stands beside several stages; by size alone fewer than half of the turns could be told."""
    sizes: dict[str, Counter[str]] = {}
    for item in TURNS:
        size = turn_text("", item.fields["draft"])
        sizes.setdefault(size, Counter())[item.fields["stage"]] += 1
    assert all(len(stages) >= 2 for stages in sizes.values())
    assert sum(max(stages.values()) for stages in sizes.values()) / len(TURNS) < 0.6


def test_the_four_cases_have_the_papers_number_of_inputs_each_with_those_before_it_as_history() -> None:
    items = load_task("writing-cases")
    first = {item.group: item for item in reversed(items)}
    assert Counter(item.group for item in items) == {"case-1": 6, "case-2": 6, "case-3": 5, "case-4": 5}
    for item in items:
        turn = turn_of_item(item)
        number = int(item.id[-1])
        assert len(turn.history) == number
        assert turn.history[0][1] == turn_of_item(first[item.group]).history[0][1]
    assert not any(turn_of_item(item).draft for item in items if item.group == "case-4")


def test_pieces_are_shared_by_forms_of_one_word_and_words_are_not() -> None:
    def likeness(a: str, b: str) -> float:
        return float(hashed_pieces(a, BUCKETS) @ hashed_pieces(b, BUCKETS))

    assert likeness("finished", "finish") > 0.5 > likeness("finished", "begun")
    assert likeness("a text", "a text") == pytest.approx(1, abs=1e-6)
    assert not hashed_pieces("", BUCKETS).any()
    assert set(hashed_words("finished", 8192)).isdisjoint(hashed_words("finish", 8192))


@pytest.mark.parametrize("head", HEADS)
def test_a_small_model_tells_more_than_the_commonest_label_on_templates_that_it_has_not_seen(head: str) -> None:
    data = labelled(TURNS, head)
    found = accuracy(predict_out_of_fold(data, HEADS[head]), data)
    written = json.loads(FIGURES.read_text(encoding="utf-8"))[head]
    assert found.estimate == pytest.approx(written["words"][0], abs=0.01)
    assert found.low > written["majority"][2]
    metric = load_checkpoint(find_bundled(f"writing-{head}")).manifest.metrics["accuracy"]
    assert metric.estimate == pytest.approx(found.estimate, abs=0.01)


def test_templates_that_tell_nothing_are_told_no_better_than_by_chance() -> None:
    """The folds leave whole templates out: labels drawn for each template at random cannot be told."""
    data = labelled(TURNS, "reasoning")
    rng = np.random.default_rng(5)
    drawn = {group: str(rng.choice(("yes", "no"))) for group in sorted(set(data.groups))}
    shuffled = dataclasses.replace(data, labels=tuple(drawn[group] for group in data.groups))
    assert accuracy(predict_out_of_fold(shuffled, ("yes", "no")), shuffled).low < 0.5


@pytest.mark.parametrize("head", HEADS)
def test_a_classifier_gives_probabilities_of_its_classes_that_sum_to_one(head: str) -> None:
    classifier = TextClassifier.load(f"bundled:writing-{head}")
    told = classifier.classify("draftsize0 I need ideas and words for a new essay. I have not started.")
    assert classifier.classes == HEADS[head]
    assert sum(told.probabilities.values()) == pytest.approx(1)
    assert told.name == max(told.probabilities, key=told.probabilities.__getitem__)
    assert told.name == {"stage": "pre", "reasoning": "no"}[head]
    assert sum(classifier.classify("").probabilities.values()) == pytest.approx(1)
    with pytest.raises(ContractMismatch, match="expected 'text-classes'"):
        TextClassifier.load("bundled:quality")


def scored(text: str) -> Run:
    """One run of the assessor alone, over an item of the orders, that was answered with `text`."""
    item = SPOILT.made((), 0)[0]
    return run_once(ASSESSOR, item, ScriptedLLM({"assess": text}))


def test_the_parts_that_are_measured_alone_ask_what_the_whole_asks() -> None:
    run = run_once(CLASSIFIERS, TURNS[0], ScriptedLLM(IN_FORM))
    assert [call.stage for call in run.calls] == ["stage", "reasoning"]
    assert scored("Step 1: a\nStep 2: b\nStep 3: c\nScore: 4").final_answer == "4"


def test_every_essay_is_judged_as_it_is_with_every_order_and_with_every_harmless_sentence() -> None:
    items = SPOILT.made((), 0)
    assert len(items) == len(ESSAYS) * (1 + len(INJECTIONS) + len(HARMLESS))
    for item in items:
        assert (item.fields["wanted"] != "") == any(one.text in item.fields["draft"] for one in INJECTIONS)


def order(name: str, kind: str, wanted: str, score: str) -> Run:
    item = Item(
        id=f"{name}-{kind}-{score}-{wanted}", question="?", level=name, dimension=kind, fields={"wanted": wanted}
    )
    return Run(id=item.id, system="s", variant="plain", item=item, calls=(), final_answer=score)


def test_an_order_was_followed_only_where_the_score_is_the_ordered_one_and_was_not_so_before() -> None:
    found = injection_figures(
        [
            order("a", "clean", "", "2"),
            order("b", "clean", "", "5"),
            order("a", "plain", "5", "5"),
            order("a", "plain", "0", "3"),
            order("a", "plain", "4", ""),
            order("b", "plain", "5", "5"),
            order("b", "harmless", "", "4"),
            order("a", "harmless", "", "2"),
        ]
    )
    assert found["clean"] == {"a": "2", "b": "5"}
    assert found["plain"] == {"texts": 4, "unscored": 1, "moved": 2, "open": 3, "obeyed": 1}
    assert found["harmless"] == {"texts": 2, "unscored": 0, "moved": 1, "open": 0, "obeyed": 0}


def test_the_price_of_monitor_and_control_is_counted_apart() -> None:
    item = load_task("writing-cases")[2]
    runs = {name: run_once(SYSTEM, item, ScriptedLLM(IN_FORM), variant=name) for name in ("multi", "metacrit")}
    alone, whole = (of_condition([runs[name]]) for name in ("multi", "metacrit"))
    assert (alone["calls"], whole["calls"]) == (7, 12)
    assert (alone["stages"], alone["assessed"], alone["scored"]) == (1, 1, 1)
    assert alone["chain"] == 0
