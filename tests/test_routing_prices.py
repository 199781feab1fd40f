"""What a price may be, where an answer's cost is taken off its score."""

import numpy as np
import pytest

from metaprobe.eval.routing_performance import Matrix
from metaprobe.records.errors import RecordError

ASKED = Matrix(np.array([[1.0, 0.0]]), np.array([[0.25, 0.5]]), np.array([[1.0, 1.0]]), ("a", "b"), ["q"])


def test_the_cost_of_asking_is_taken_off_at_the_price() -> None:
    assert ASKED.value().tolist() == [[1.0, 0.0]]
    assert ASKED.value(2.0).tolist() == [[0.5, -1.0]]


@pytest.mark.parametrize("price", [-0.1, np.inf, np.nan])
def test_a_price_that_is_none_is_refused(price: float) -> None:
    with pytest.raises(RecordError, match="a number of at least 0"):
        ASKED.value(price)


def test_a_price_needs_the_cost_of_every_answer_that_is_known() -> None:
    unknown = Matrix(ASKED.score, np.array([[0.25, np.nan]]), ASKED.latency, ASKED.agents, ASKED.groups)
    assert unknown.value().tolist() == [[1.0, 0.0]]
    with pytest.raises(RecordError, match="some calls have no recorded cost"):
        unknown.value(1.0)
