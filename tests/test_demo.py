"""The demo's end on recorded runs: signals compared, one exported, and its flags counted against the truth."""

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from test_agreement import planted_runs
from test_blend import planted

from metaprobe import RunStore, load
from metaprobe.eval.answer_table import group_of
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.report.words import brief
from metaprobe.papers.collecting.collect import CollectReport
from metaprobe.papers.demo import train_demo
from metaprobe.papers.demo_asking import PLACES_TO_LEARN, TWICE, UNSEEN_PLACES
from metaprobe.probes.score_lines import store_lines
from metaprobe.records.errors import RecordError
from metaprobe.train import train_quality
from metaprobe.training.evidence import load_evidence
from metaprobe.training.folds import outer_folds
from metaprobe.training.recipes.all_of_runs import TrainedRuns, flag_answers
from metaprobe.training.recipes.train_hidden import write_hidden
from metaprobe.training.study import study
from metaprobe.training.taught_by_samples import TAUGHT, sample_methods

# Whether so little data passes every audit is not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


COMMAND = "metaprobe demo --limit 60 --out 'my demo'"


@pytest.fixture(scope="module")
def folder(recorded_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores of recorded runs: two thirds of the groups to learn from, the others kept apart."""
    made = tmp_path_factory.mktemp("demo")
    runs = list(RunStore(recorded_runs).runs(hidden=True))
    apart = set(sorted({group_of(run.item) for run in runs})[::3])
    for name, kept in (("runs", False), ("unseen", True)):
        RunStore(made / name).append(run for run in runs if (group_of(run.item) in apart) == kept)
    return made


@pytest.fixture(scope="module")
def demo(folder: Path) -> TrainedRuns:
    failed = CollectReport(0, 0, ("x: failed",)), CollectReport(0, 0, ())
    return train_demo(folder, collected=failed, folds=3, command=COMMAND, on_step=lambda step: None)


@pytest.mark.slow
def test_the_demo_ends_on_the_flags_of_the_exported_checkpoint_counted_against_the_truth(
    demo: TrainedRuns, folder: Path
) -> None:
    """Counted again by the public `load`, whose flags are those that a user gets."""
    reader, found, lost, wrong, right = load(demo.checkpoint.path), 0, 0, 0, 0
    store = RunStore(folder / "unseen")
    truth = {call.id: run.label("correct", call.id) for run in store for call in run.calls}
    for line in store_lines(reader, folder / "unseen"):
        mistake = truth[line["call"]] == 0
        wrong, right = wrong + mistake, right + (not mistake)
        found, lost = found + (line["flagged"] and mistake), lost + (line["flagged"] and not mistake)
    told = " ".join(demo.used.sentence.split())
    assert told.startswith(f"Of the {wrong} mistakes it found {found} (")
    assert f"it cost {lost} of the {right} right ones (" in told
    assert f"flagging at random: {(found + lost) / (wrong + right):.0%} of each" in told
    printed = " ".join(" ".join(demo.lines()).split())
    assert told in printed
    assert (
        printed.index("AUROC on questions left out")
        < printed.index("Exported, loaded, and used on")
        < printed.index(told)
    )
    for one in demo.used.shown():
        assert ("FLAG" if one.flagged else "keep", f"{one.score:.2f}") in re.findall(r"(FLAG|keep) +([\d.]+)", printed)


@pytest.mark.slow
def test_the_short_table_holds_explicit_free_and_implicit_signals(demo: TrainedRuns) -> None:
    printed = "\n".join(demo.lines())
    for kind in ("explicit", "free number", "implicit, with labels: hidden states"):
        assert kind in printed
    assert demo.recommended == ("The report recommends" in printed)


@pytest.mark.slow
def test_the_report_is_about_the_learned_method_that_most_folds_chose(demo: TrainedRuns) -> None:
    found = demo.comparison
    assert sum(found.chosen.values()) == 3
    assert found.headline == max(found.chosen, key=lambda name: found.chosen[name])
    assert TAUGHT not in found.chosen
    assert any(f"of the learned methods {found.headline} is shown first" in said.lower() for said in brief(found).sure)


@pytest.mark.slow
def test_the_demo_reports_what_failed_and_how_little_it_had(demo: TrainedRuns) -> None:
    page = demo.report.read_text()
    assert "1 runs failed" in page
    assert "too few to quote" in page


@pytest.mark.slow
def test_the_report_and_the_card_hold_the_command_with_its_options(demo: TrainedRuns) -> None:
    assert demo.comparison.provenance["command"] == COMMAND
    assert f"made by `{COMMAND}`" in (demo.checkpoint.path / "README.md").read_text()


@pytest.mark.slow
def test_the_conclusion_can_be_followed_from_the_report_alone(demo: TrainedRuns) -> None:
    found = demo.comparison
    assert sum(found.baselines.values()) == 3
    assert set(found.baselines) < {method.name for method in found.methods}
    by_name = {method.name: method.auroc.estimate for method in found.methods}
    first = next(method for method in found.methods if method.name == found.headline)
    strongest = first.controls.strongest
    assert strongest.difference.estimate == pytest.approx(by_name[first.name] - by_name[strongest.name])
    assert first.controls.beaten or "Use the learned method" not in " ".join(brief(found).do)


@pytest.mark.slow
def test_the_report_has_stated_confidence_as_the_model_stated_it(demo: TrainedRuns) -> None:
    stated = next(method for method in demo.comparison.methods if method.name == "stated confidence")
    assert stated.stated.ece.estimate > 2 * stated.ece.estimate  # as stated it is far off, recalibrated it is not
    (said,) = [sentence for sentence in brief(demo.comparison).found if "as stated" in sentence]
    assert f"{stated.stated.ece.estimate:.2f} as stated" in said


def test_questions_that_are_learned_from_are_refused_as_unseen_ones(folder: Path) -> None:
    with pytest.raises(RecordError, match="holds questions that are learned from, such as"):
        TrainedRuns.train([folder / "runs"], folder / "runs", folder / "same", folds=2, on_step=lambda what: None)


def test_questions_that_are_learned_from_are_refused_under_the_name_of_another_task(
    folder: Path, tmp_path: Path
) -> None:
    """The demo's two stores are of two tasks, and a group is named with its task."""
    learned = list(islice(RunStore(folder / "runs"), 3))
    RunStore(tmp_path / "unseen").append(
        replace(run, id=f"{run.id}u", item=replace(run.item, id="u", group="", task="unseen")) for run in learned
    )
    with pytest.raises(RecordError, match="holds questions that are learned from, such as"):
        TrainedRuns.train([folder / "runs"], tmp_path / "unseen", tmp_path, folds=2, on_step=lambda what: None)


def test_answers_that_cannot_be_judged_are_counted_beside_the_flags(tmp_path: Path) -> None:
    RunStore(tmp_path / "runs").append(planted())
    made = train_quality(tmp_path / "runs", folds=2, out=tmp_path / "c")
    runs = [replace(run, id=f"{run.id}u") for run in planted()]
    bare = [replace(run, calls=(replace(run.calls[0], logprobs=None, hidden=None),)) for run in runs[:7]]
    RunStore(tmp_path / "unseen").append([*bare, *runs[7:]])
    used = flag_answers(made.path, tmp_path / "unseen")
    assert len(used.answers) == len(runs) - 7
    assert used.sentence.endswith("7 further answers could not be judged, and count nowhere here.")


def test_the_demos_places_are_kept_apart_and_none_names_its_country() -> None:
    learn, unseen = (task.made((), 0) for task in (PLACES_TO_LEARN, UNSEEN_PLACES))
    assert (len(learn), len(unseen)) == (1000, 400)
    assert sum(item.split == TWICE for item in learn) == 200
    assert not {item.group for item in learn} & {item.group for item in unseen}
    assert not [item for item in (*learn, *unseen) if item.gold[0].casefold() in item.question.casefold()]


def test_what_agreement_teaches_does_not_depend_on_any_label(tmp_path: Path) -> None:
    RunStore(tmp_path).append(planted_runs())
    evidence = load_evidence([tmp_path], hidden=False)
    taught = next(method for method in sample_methods([tmp_path]) if method.name == TAUGHT)
    table = evidence.table
    roles = next(outer_folds(table.groups.tolist(), table.y, folds=3))
    other = replace(evidence, table=replace(table, y=1 - table.y))
    rows = np.arange(len(table))
    first, second = (taught.fit(known, roles, seed=0).score(rows) for known in (evidence, other))
    np.testing.assert_array_equal(first, second)
    assert auroc(table.y[roles.test], first[roles.test]) > 0.6


def test_a_store_without_samples_has_no_method_that_needs_them(recorded_runs: Path, tmp_path: Path) -> None:
    RunStore(tmp_path).append(run for run in RunStore(recorded_runs) if run.variant == "direct")
    assert sample_methods([tmp_path]) == []


def test_what_is_learned_does_not_depend_on_the_order_of_the_shards(recorded_runs: Path, tmp_path: Path) -> None:
    RunStore(tmp_path).append(reversed(list(RunStore(recorded_runs).runs(hidden=True))))
    first, second = (load_evidence([store]) for store in (recorded_runs, tmp_path))
    assert first.table.call_ids.tolist() == second.table.call_ids.tolist()
    assert first.fingerprint == second.fingerprint
    np.testing.assert_array_equal(first.features, second.features)
    assert first.states is not None
    assert second.states is not None
    for layer in first.states.layers:
        np.testing.assert_array_equal(first.states.read(layer, "answer_last"), second.states.read(layer, "answer_last"))


def test_one_store_named_twice_is_refused(recorded_runs: Path) -> None:
    with pytest.raises(RecordError, match="more than once; expected every answer in one of them"):
        load_evidence([recorded_runs, recorded_runs])


def test_a_lost_file_of_hidden_states_is_told_and_not_passed_over(recorded_runs: Path, tmp_path: Path) -> None:
    runs = list(islice(RunStore(recorded_runs).runs(hidden=True), 120))
    for part in (runs[:60], runs[60:]):
        RunStore(tmp_path).append(part)
    next(tmp_path.glob("*.safetensors")).unlink()
    found = study([tmp_path], folds=2)
    assert 0 < found.evidence.without_hidden < 120
    with pytest.raises(RecordError, match=f"{found.evidence.without_hidden} of 120 labelled answers have no hidden"):
        write_hidden(tmp_path / "x", found, when="after", target="correct", command="")
    with pytest.raises(RecordError, match="no call of stage nope by agent any; stages found: answer, confidence"):
        load_evidence([tmp_path], stage="nope")
