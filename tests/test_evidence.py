"""Evidence: which answers of the stores are learned from, with what beside them, and which are left out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_states_of import OTHER, OWN, answers, read

from metaprobe.checkpoints import Generator
from metaprobe.probes.features import features, schema
from metaprobe.records.errors import RecordError, StoreMismatch
from metaprobe.records.store import RunStore, fingerprint
from metaprobe.records.types import Call, Item, Label, Run
from metaprobe.training.evidence import generator_of, load_evidence, origin_of_states
from metaprobe.training.export import named_reader
from metaprobe.training.methods import MEAN_LOGPROB, GivenScore
from metaprobe.training.stored_states import ANY_STATES
from metaprobe.training.study import study, study_of


@pytest.fixture
def two_stages(tmp_path: Path) -> RunStore:
    """100 runs with a draft and an answer, by two agents in turn; two answers hold no log-probabilities."""
    rng, runs = np.random.default_rng(0), []
    for i in range(100):
        calls = [
            Call(
                id=f"{stage}{i:02}",
                stage=stage,
                agent="ab"[i % 2],
                model=OWN,
                model_revision="r1",
                model_dtype="bfloat16",
                logprobs=None if i < 2 and stage == "answer" else rng.normal(-1, 0.3, 6).astype(np.float32),
                logprobs_mode="raw",
            )
            for stage in ("draft", "answer")
        ]
        labels = [Label(f"draft{i:02}", "correct", float(i % 3 == 0), "program")]
        labels.append(Label(f"answer{i:02}", "correct", float(i % 4 == 0), "judge:m"))
        runs.append(
            Run(f"r{i:02}", "s", "v", Item(f"i{i:02}", f"Who is number {i}?"), tuple(calls), labels=tuple(labels))
        )
    store = RunStore(tmp_path / "runs")
    store.append(runs)
    return store


def test_labelled_answers_come_with_features_sources_and_their_origin(two_stages: RunStore) -> None:
    with pytest.warns(UserWarning, match="^2 labelled answers are left out: they hold no log-probabilities"):
        found = load_evidence([two_stages.path], stage="answer")
    ids = found.table.call_ids.tolist()
    assert ids == [f"answer{i:02}" for i in range(2, 100)]
    calls = {call.id: call for run in two_stages for call in run.calls}
    full = schema("full+terms")
    np.testing.assert_array_equal(found.features, features(full, [calls[name].logprobs for name in ids]))
    assert (found.schema, found.feature_names) == ("full+terms", full.names)
    assert (found.without_hidden, found.without_logprobs, found.states, found.reader) == (98, 2, None, "")
    assert found.generator == Generator(OWN, "r1", "bfloat16", logprobs_mode="raw")
    assert found.fingerprint == fingerprint(list(two_stages))
    assert list(found.labels_by_source) == ["judge:m"]
    np.testing.assert_array_equal(found.labels_by_source["judge:m"], found.table.y)
    assert found.table.y.tolist() == [int(i % 4 == 0) for i in range(2, 100)]


@pytest.mark.filterwarnings("ignore:. labelled answers are left out")
def test_a_stage_and_an_agent_choose_the_answers(two_stages: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [GivenScore(MEAN_LOGPROB, "log-probability", lambda table: np.array([x[0] for x in table.logprobs]))]
    monkeypatch.setattr("metaprobe.training.study.standard_methods", lambda evidence, **_: given)
    assert len(load_evidence([two_stages.path]).table) == 198
    both = load_evidence([two_stages.path], stage="answer", agent="b")
    assert both.table.call_ids.tolist() == [f"answer{i:02}" for i in range(3, 100, 2)]
    assert both.without_logprobs == 1
    studied = study([two_stages.path], stage="draft", agent="a", folds=2, seed=3, hidden=False)
    assert studied.evidence.table.call_ids.tolist() == [f"draft{i:02}" for i in range(0, 100, 2)]
    assert (len(studied.fits.roles), studied.seed, studied.stores) == (2, 3, (two_stages.path,))
    again = study_of(studied.evidence, folds=2, seed=3)
    for one, other in zip(studied.fits.roles, again.fits.roles, strict=True):
        np.testing.assert_array_equal(one.test, other.test)
    np.testing.assert_array_equal(studied.fits[MEAN_LOGPROB].probability, again.fits[MEAN_LOGPROB].probability)
    others = study_of(studied.evidence, folds=2, seed=4).fits.roles
    assert any(one.test.tolist() != other.test.tolist() for one, other in zip(again.fits.roles, others, strict=True))


@pytest.mark.filterwarnings("ignore:. labelled answers are left out")
def test_questions_that_repeat_are_one_group_and_that_is_said(two_stages: RunStore) -> None:
    assert load_evidence([two_stages.path], stage="answer").regrouped == ""
    runs = [
        replace(run, item=replace(run.item, question="Who?" if i in (5, 9) else run.item.question))
        for i, run in enumerate(two_stages)
    ]
    two_stages.rewrite(lambda run: next(other for other in runs if other.id == run.id))
    found = load_evidence([two_stages.path], stage="answer")
    group = dict(zip(found.table.call_ids.tolist(), found.table.groups.tolist(), strict=True))
    assert group["answer05"] == group["answer09"] == "/i05"
    assert found.regrouped.startswith("2 groups that ask")


def test_states_that_do_not_fit_are_left_out_with_the_reason_or_refused_where_asked_for(
    tmp_path: Path,
) -> None:
    stores = [answers(tmp_path / name, layers=(1,), model=name) for name in ("one", "two")]
    places = [store.path for store in stores]
    with pytest.warns(UserWarning, match="probes are left out: one and two each read their own answers") as told:
        found = load_evidence(places)
    assert told[0].filename == __file__
    assert found.states is None
    assert found.states_refused.startswith("one and two each read their own answers")
    assert found.without_hidden == len(found.table) == 80
    with pytest.raises(StoreMismatch, match="one and two each read their own answers"):
        load_evidence(places, request=ANY_STATES)
    assert load_evidence(places, hidden=False).states_refused == ""


@pytest.mark.filterwarnings("ignore:. labelled answers are left out")
def test_states_read_by_another_model_are_told_in_contract_and_card(tmp_path: Path) -> None:
    store = answers(tmp_path / "runs", bare=3)
    assert load_evidence([store.path]).reader == ""
    read(store, (1, 2), ("answer_last",), by=OTHER)
    found = load_evidence([store.path])
    assert (found.reader, found.without_hidden, found.without_logprobs) == (OTHER, 0, 3)
    assert named_reader(found.reader) == {"reader": {"model": "oth/other", "revision": "1"}}
    assert origin_of_states(found) == [
        f"The states are those of {OTHER}, which read what {OWN} said",
        "3 of 40 labelled answers were left out, for they hold no log-probabilities to compare a probe with",
    ]
    assert origin_of_states(replace(found, reader="", without_logprobs=0)) == []


def call(**known: str) -> Call:
    return Call(id="c", **{"model": "m", "logprobs_mode": "raw", **known})


def test_the_generator_is_the_model_or_the_models_of_all_answers() -> None:
    one = call(model_revision="r", model_dtype="float32")
    assert generator_of([one, one]) == Generator("m", "r", "float32", logprobs_mode="raw")
    assert generator_of([one, call(model_revision="r2")]) == Generator("m", logprobs_mode="raw")
    several = [replace(one, model="z"), one]
    assert generator_of(several) == Generator("m", logprobs_mode="raw", others=("z",))
    assert generator_of([one, replace(one, model="")]) is None
    assert generator_of([]) is None
    with pytest.raises(RecordError, match=r"different modes \(processed, raw\) cannot be mixed"):
        generator_of([one, call(logprobs_mode="processed")])
