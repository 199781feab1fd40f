"""Short promises of single functions: plurals, cuts at ties, refusals that say why, seeds that are passed on."""

import pytest

from metaprobe.eval.audits import format_p
from metaprobe.records.correctness import stem
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
