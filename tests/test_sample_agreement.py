"""The agreement of resampled answers has known values."""

import pytest

from research.travel.samples import agreement


@pytest.mark.parametrize(
    ("i", "others", "expected"),
    [
        (0, 1, 1.0),
        (0, 2, 0.5),
        (0, 4, 0.5),
        (1, 1, 0.0),
        (1, 4, 0.5),
        (2, 4, 0.0),
        (3, 4, 0.0),
        (4, 1, 1.0),
        (4, 2, 1.0),
    ],
)
def test_agreement_counts_the_samples_that_follow_in_a_circle_and_never_the_sample_itself(
    i: int, others: int, expected: float
) -> None:
    assert agreement([5, 5, 7, None, 5], i, others) == expected


def test_samples_without_a_number_agree_with_none() -> None:
    assert agreement([None, None, None], 0, 2) == 0.0
