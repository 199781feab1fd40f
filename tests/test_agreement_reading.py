"""Agreement of unlabelled texts: by which reading two answers are the same, and what is said of it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_agreement import planted_runs, store_of

import metaprobe
from metaprobe.cli import main
from metaprobe.records.types import Run
from metaprobe.training.agreement import agreement_pairs
from metaprobe.training.training_options import HiddenOptions, QualityOptions, WrongOptions

QUESTIONS = 60


def worded(forms: Sequence[str], *, check: str = "none") -> list[Run]:
    """Returns the planted runs with each number written in one of the forms, in turn."""
    made = []
    for run in planted_runs(QUESTIONS, samples=2, check=check):
        calls = [
            replace(call, text=forms[place % len(forms)].format(call.text)) for place, call in enumerate(run.calls)
        ]
        made.append(replace(run, calls=tuple(calls)))
    return made


@pytest.mark.parametrize(
    "forms", [("{}", "The total is {}."), ("The total is {}.", "It comes to {} in all."), ("{}", "{}")]
)
def test_a_number_is_compared_as_a_number_alone_or_in_a_sentence(forms: Sequence[str]) -> None:
    bare, pairs = agreement_pairs(worded(["{}"])), agreement_pairs(worded(forms))
    assert pairs.same.tolist() == bare.same.tolist()
    assert "the same by number" in pairs.note
    assert "WARNING" not in pairs.note


def test_a_text_that_mentions_a_year_stays_a_text() -> None:
    runs = worded(["It was found by Marie Curie {} in 1898."])
    pairs = agreement_pairs(runs)
    assert "the same by exact" in pairs.note
    assert pairs.same.tolist() == agreement_pairs(worded(["{}"])).same.tolist()


def test_a_reading_that_finds_far_more_equal_answers_is_named() -> None:
    runs = worded(["In the end Anna has {}.", "So then Anna gets {}."])
    runs = [replace(run, calls=(*run.calls, replace(run.calls[0], id=f"{run.id}/again"))) for run in runs]
    note = agreement_pairs(runs).note
    assert "the same by exact" in note
    assert "WARNING: by number" in note
    assert "--same number" in note
    assert "WARNING" not in agreement_pairs(runs, same="number").note


def test_a_reading_by_which_all_answers_are_the_same_is_not_named() -> None:
    note = agreement_pairs(worded(["In the end Anna has {} of these for the winter."])).note
    assert "the same by exact" in note
    assert "--same overlap" not in note


@pytest.mark.parametrize("check", ["none", "number"])
def test_the_reading_that_is_given_holds_for_all_answers(check: str) -> None:
    runs = worded(["{}", "The sum is {}", "The sum is {}"], check=check)
    runs = [replace(run, calls=(*run.calls, replace(run.calls[1], id=f"{run.id}/again"))) for run in runs]
    exact, number = (agreement_pairs(runs, same=same) for same in ("exact", "number"))
    assert exact.same.sum() < number.same.sum()
    assert "by exact, as was asked for" in exact.note


def test_the_note_is_in_the_terminal_and_on_the_card(tmp_path: Path) -> None:
    store, out = store_of(tmp_path / "runs", worded(["{}", "The total is {}."])), tmp_path / "out"
    line = ["train", "quality", str(store), "--target", "agreement", "--same", "number", "--folds", "2"]
    result = CliRunner().invoke(main, [*line, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "pairs of them compared" in result.output
    assert "the same by number, as was asked for" in result.output
    assert "the same by number, as was asked for" in (out / "README.md").read_text()
    assert "does not repeat" in result.output


def test_probes_take_the_reading_that_is_given(tmp_path: Path) -> None:
    store, told = store_of(tmp_path / "runs", worded(["{}", "The total is {}."])), []
    metaprobe.train_hidden(
        store, target="agreement", same="number", folds=2, out=tmp_path / "out", on_line=told.append, when="after"
    )
    assert any("the same by number, as was asked for" in line for line in told)


@pytest.mark.parametrize("options", [QualityOptions, HiddenOptions])
def test_a_reading_without_agreement_is_refused(
    options: type[QualityOptions] | type[HiddenOptions], tmp_path: Path
) -> None:
    with pytest.raises(WrongOptions, match="same=number says when answers agree"):
        options(out=tmp_path, target="correct", same="number")
