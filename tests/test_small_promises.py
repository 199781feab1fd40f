"""Short promises of single functions: plurals, cuts at ties, refusals that say why, seeds that are passed on."""

from collections.abc import Sequence
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.eval.audits.simpler_predictors import format_p
from metaprobe.eval.routing_cascade import _best_cut
from metaprobe.eval.study import simulation
from metaprobe.eval.study.choice_tests import paired_p
from metaprobe.records.answers import stem
from metaprobe.serving.http.refusal import Refusal


@pytest.mark.parametrize(
    ("word", "expected"), [("cats", "cat"), ("runs", "run"), ("bus", "bus"), ("glass", "glass"), ("cat", "cat")]
)
def test_a_stem_loses_the_s_of_a_plural_and_no_other_letter(word: str, expected: str) -> None:
    assert stem(word) == expected


def test_a_refusal_says_its_message_where_it_is_printed() -> None:
    assert str(Refusal(404, "not_found", "no such model")) == "no such model"


@pytest.mark.parametrize(
    ("p", "expected"), [(0.0009, "< 0.001"), (0.001, "= 0.001"), (float("nan"), "cannot be determined")]
)
def test_a_p_value_is_written_with_three_decimals_or_as_below_the_smallest(p: float, expected: str) -> None:
    assert format_p(p) == expected


def test_a_difference_of_one_in_every_pair_is_as_far_as_signs_can_go() -> None:
    assert paired_p(np.ones(8)) == pytest.approx(2 / 2**8)
    assert paired_p(np.zeros(8)) == 1.0


def test_a_cut_that_nothing_should_pass_is_below_every_value() -> None:
    gain, cut = _best_cut(np.array([0.2, 0.4]), np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0]]))
    assert gain.tolist() == [0.0, 1.0, 2.0]
    assert cut.tolist() == [-np.inf, 0.4, np.inf]


def test_the_power_of_a_study_is_drawn_with_the_seed_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def needed(shares: Sequence[float], **options: Any) -> list[Any]:
        given.append(options)
        raise click.ClickException("enough")

    monkeypatch.setattr(simulation, "participants_needed", needed)
    words = ["--likeness", "0.25", "--alpha", "0.01", "--wanted", "0.7", "--seed", "9", "--questions", "4"]
    CliRunner().invoke(main, ["study", "power", "--shares", "single=0.5,multi=0.2,metacrit=0.3", *words])
    assert given == [{"questions": 4, "likeness": 0.25, "alpha": 0.01, "wanted": 0.7, "seed": 9}]
