"""What a comparison says of the runs themselves: whose answers they are, and whether they are choices between two."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import made_up
from stored_runs import example
from test_handed_on import Listener

from metaprobe.eval.metacognition import NotTwoChoice
from metaprobe.eval.table import AnswerTable, bare_table
from metaprobe.records.types import Call, Label, Run
from metaprobe.training import comparison as first_tokens
from metaprobe.training import comparison as run_sections
from metaprobe.training.comparison import (
    FIRST_TOKENS,
    answers_of,
    collect_grades,
    efficiency_of,
    first_token_scores,
    sections_of_runs,
)
from metaprobe.training.methods import FeatureTrees


def table_of(*call_ids: str) -> AnswerTable:
    bare = bare_table(np.ones(len(call_ids), dtype=np.int64), np.array(call_ids))
    return replace(bare, call_ids=np.array(call_ids))


def answer(name: str, text: str, system: str = "someone else's") -> Run:
    call = Call(id=name, stage="answer", text=text)
    return replace(example(1), id=f"r-{name}", system=system, variant="step-by-step", calls=(call,), labels=())


def test_answers_come_in_the_order_of_the_table_as_the_system_that_gave_them_reads_them() -> None:
    runs = [
        answer("a", " 7 \n"),
        answer("b", ""),
        answer("c", "I think so.\nAnswer: 8", "self-report"),
        answer("d", "9"),
    ]
    items, found = answers_of(runs, table_of("c", "b", "a"))
    assert found == ["8", None, "7"], "read by its system, not stored, and as it stands"
    assert items == [runs[2].item, runs[1].item, runs[0].item]
    with pytest.raises(KeyError):
        answers_of(runs[:1], table_of("c"))


def test_grades_of_the_answers_are_collected_by_name_and_what_a_checkpoint_read_is_none() -> None:
    run = replace(
        answer("a", "x"),
        labels=(
            Label("a", "quality", 7.0, "judge"),
            Label("a", "signal:quality", 0.5, "digest"),
            Label("elsewhere", "level", 1.0, "judge"),
        ),
    )
    other = replace(answer("b", "y"), labels=(Label("b", "evidence", 2.0, "judge"),))
    found = collect_grades([run, other], table_of("b", "a", "c"))
    assert set(found) == {"quality", "evidence"}
    np.testing.assert_array_equal(found["quality"], [np.nan, 7.0, np.nan])
    np.testing.assert_array_equal(found["evidence"], [2.0, np.nan, np.nan])


def test_metacognitive_efficiency_is_of_right_answers_between_two_or_says_why_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fits: Any = SimpleNamespace(methods="methods")
    runs, table = [answer("a", "x")], table_of("a")
    assert efficiency_of(table, fits, [], target="correct") == (None, "the runs were not given")
    assert efficiency_of(table, fits, runs, target="sound") == (
        None,
        "the answers are judged by their label 'sound', not by being right",
    )
    responses = Listener(monkeypatch, run_sections, "two_choice_responses", "responses")
    measured = Listener(monkeypatch, run_sections, "metacognitive_efficiency", "found")
    assert efficiency_of(table, fits, runs, target="correct", seed=7) == ("found", "")
    assert responses.given[:2] == ([runs[0].item], ["x"])
    assert measured.calls == [((table, "methods", "responses"), {"seed": 7})]

    def refuses(*given: object) -> None:
        raise NotTwoChoice("there are three choices")

    monkeypatch.setattr(run_sections, "two_choice_responses", refuses)
    assert efficiency_of(table, fits, runs, target="correct") == (None, "there are three choices")


def test_agreement_is_of_the_variant_with_most_runs_and_failures_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [replace(answer(f"{i}", "x", "metacrit"), variant="ablated" if i == 0 else "full") for i in range(3)]
    other = answer("z", "x")
    coupled = Listener(monkeypatch, run_sections, "coupling", "coupling")
    agreed = Listener(monkeypatch, run_sections.metacrit, "agreement", (SimpleNamespace(n=0), SimpleNamespace(n=1)))
    failed = Listener(monkeypatch, run_sections.metacrit, "failure_types", "failures")
    found = sections_of_runs([*runs, other], seed=7)
    assert found == {"coupling": "coupling", "agreement": agreed.returned[0], "failures": "failures"}
    assert coupled.calls == [(([*runs, other],), {"seed": 7})]
    assert agreed.calls == [((runs[1:],), {"seed": 7})]
    assert failed.calls == [(([*runs, other],), {})]
    Listener(monkeypatch, run_sections.metacrit, "agreement", (SimpleNamespace(n=0),))
    assert sections_of_runs(runs) == {"coupling": "coupling"}, "nobody was asked both"
    assert sections_of_runs([other]) == {"coupling": "coupling"}


def test_what_the_first_tokens_teach_is_learned_in_as_many_folds_with_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = made_up(60)
    fitted = Listener(monkeypatch, first_tokens, "crossfit", {first_tokens.TREES: SimpleNamespace(ranking="scores")})
    found = first_token_scores(evidence, folds=3, seed=7)
    assert found == {FIRST_TOKENS: dict.fromkeys(first_tokens.COUNTS, "scores")}
    for (seen, methods), named in fitted.calls:
        assert named == {"folds": 3, "seed": 7}
        assert [type(method) for method in methods] == [FeatureTrees]
        assert seen.states is None, "hidden states would know the rest of the answer"
        assert (seen.features.shape, seen.schema[:7]) == ((60, len(seen.feature_names)), "prefix-")
    assert len({seen.schema for (seen, _), _ in fitted.calls}) == len(first_tokens.COUNTS)
    bare = replace(evidence, table=replace(evidence.table, tokens=np.zeros(60, dtype=np.int64)))
    assert first_token_scores(bare, folds=3, seed=7) == {}
