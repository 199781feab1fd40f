"""Every branch of MetaCogAgent's Algorithm 1, its baselines and ablations, with a scripted language model."""

from collections import Counter

import pytest
from metacog_agents import actions, asked, model, run

from metaprobe.pipelines.metacogagent import SYSTEM
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.profiles import Experience, Profiles, experiences, first_agent, read_classification


def test_an_agent_that_is_sure_answers_alone() -> None:
    found = run(model())
    assert asked(found) == ["classify", "alpha:assess", "alpha:answer"]
    assert actions(found) == ["execute"]
    assert (found.final_answer, found.outcome) == ("4", 1.0)
    assert found.stated("confidence") == 0.9
    assert list(experiences(found)) == [Experience("alpha", "mathematical computation", 1.0)]


def test_the_dispatcher_goes_round_the_agents_by_the_items_places() -> None:
    assert [first_agent(run(model(), index=index)) for index in range(5)] == ["alpha", "beta", "gamma", "alpha", "beta"]


def test_an_unsure_agent_delegates_to_the_surest_other_who_alone_learns() -> None:
    found = run(model(("5", "6", "4"), sure=(10, 60, 80)))
    assert asked(found) == ["classify", "alpha:assess", "beta:assess", "gamma:assess", "gamma:answer"]
    assert actions(found) == ["ask", "gamma"]
    assert found.outcome == 1.0
    assert list(experiences(found)) == [Experience("gamma", "mathematical computation", 1.0)]


def test_a_conflict_raises_the_threshold_so_that_the_same_stated_confidence_asks() -> None:
    past = [Experience("alpha", "mathematical computation", 0.0)] * 40
    low = Profiles(past)  # about 0.007
    assert actions(run(model(sure=(90, 90, 90)), profiles=low)) == ["ask", "beta"]
    without = run(model(sure=(90, 90, 90)), profiles=low, policy=PaperRules(damping=0))
    assert actions(without) == ["execute"]  # c is 0.54: above theta, below theta'


def test_where_nobody_is_sure_all_vote_the_first_agent_among_them_and_all_learn() -> None:
    llm = model(("4", "5", "four"), sure=(20, 30, 20))
    found = run(llm)
    assert actions(found) == ["ask", "collaborate"]
    assert Counter(llm.stages) == {"classify": 1, "assess": 3, "answer": 3}
    assert (found.final_answer, found.outcome) == ("4", 1.0)
    assert [(e.agent, e.correct) for e in experiences(found)] == [("alpha", 1.0), ("beta", 0.0), ("gamma", 1.0)]


def test_votes_are_weighted_by_confidence() -> None:
    past = [Experience("beta", "mathematical computation", 1.0)] * 3 + [
        Experience(agent, "mathematical computation", 0.0) for agent in ("alpha", "gamma") for _ in range(40)
    ]
    llm = model(("5", "4", "5"), sure=(10, 30, 10))
    assert run(llm, profiles=Profiles(past)).final_answer == "4"
    assert run(model(("5", "4", "5")), "majority").final_answer == "5"


@pytest.mark.parametrize(("said", "read"), [("I would rather not say", None), ('{"confidence": 85}', 0.85)])
def test_a_confidence_that_cannot_be_read_is_none_and_the_rules_fallback_stands_in_the_reason(
    said: str, read: float | None
) -> None:
    found = run(model(sure=(said, 90, 90)))
    assert found.stated("confidence") == read
    assert ("0.5 (nothing stated)" in found.decisions[0].reason) == (read is None)
    assert actions(run(model(sure=(said, 90, 90)), policy=PaperRules(unstated=0.1)))[0] == (
        "ask" if read is None else "execute"
    )


@pytest.mark.parametrize(
    ("kind", "dimension"), [("Code.", "code generation"), ("poetry", "unknown"), ("math or code", "unknown")]
)
def test_the_classified_dimension_drives_the_profile_and_can_be_read_without_texts(kind: str, dimension: str) -> None:
    profiles = Profiles([Experience("alpha", dimension, 0.0)] * 40)
    found = run(model(sure=(60, 90, 90), kind=kind), profiles=profiles)
    assert read_classification(found) == dimension
    assert actions(found) == ["ask", "beta"]
    assert found.stated(f"dimension:{dimension}") == (None if dimension == "unknown" else 1.0)
    assert actions(run(model(sure=(60, 90, 90), kind="everyday"), profiles=profiles)) == ["execute"]


def test_every_agent_answers_for_the_record_and_decides_and_learns_as_the_algorithm_does() -> None:
    for sure in ((90, 90, 90), (10, 60, 80), (10, 10, 10)):
        plain, full = (run(model(("5", "6", "4"), sure), variant) for variant in ("algorithm", "every-agent"))
        assert actions(plain) == actions(full)
        assert plain.final_answer == full.final_answer
        assert list(experiences(plain)) == list(experiences(full))
        assert Counter(call.stage for call in full.calls) == {"classify": 1, "assess": 3, "answer": 3}


@pytest.mark.parametrize("sure", [(90, 90, 90), (10, 60, 80), (10, 10, 10)])
def test_after_every_agent_the_other_variants_ask_nothing_new(sure: tuple[object, ...]) -> None:
    def questions(variant: str, index: int) -> set[object]:
        llm = model(("5", "6", "4"), sure)
        run(llm, variant, index=index)
        return {(request.agent, request.messages, request.sampling) for request in llm.asked}

    known = questions("every-agent", 0)
    for variant in set(SYSTEM.variants) - {"conversation"}:
        for index in range(3):
            assert questions(variant, index) <= known, variant
    assert not questions("conversation", 0) <= known  # the check can fail


def test_a_conversation_ends_where_an_agent_agrees_with_the_one_before_it() -> None:
    llm = model(("5", "4", "four"))
    found = run(llm, "conversation")
    assert asked(found) == ["alpha:answer", "beta:answer", "gamma:answer"]
    assert found.outcome == 1.0
    assert "alpha: 5\nbeta: 4" in llm.prompt(2)
    assert [call.parent for call in found.calls] == [None, found.calls[0].id, found.calls[1].id]


@pytest.mark.parametrize(
    ("variant", "sure", "stages", "taken"),
    [
        ("no-self-assessment", (10, 10, 10), {"answer": 1}, ["execute"]),
        ("no-delegation", (10, 90, 90), {"assess": 1, "answer": 1}, ["execute"]),
        ("no-cross-evaluation", (10, 10, 90), {"assess": 1, "answer": 1}, ["ask", "beta"]),
        ("no-collaboration", (10, 10, 20), {"assess": 3, "answer": 1}, ["ask", "gamma"]),
    ],
)
def test_ablations_leave_out_what_they_say(
    variant: str, sure: tuple[object, ...], stages: dict[str, int], taken: list[str]
) -> None:
    llm = model(sure=sure)
    found = run(llm, variant)
    assert actions(found) == taken
    assert Counter(llm.stages) == {"classify": 1, **stages}
