"""The seven terms: what their definition says, to the bit the same alone and among others, and in the raw graph."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from plain_terms import plain_terms

from metaprobe.probes.features import FLOOR, FREE, TERMS, baseline_scores, features, features_one, schema, terms

values = st.one_of(
    st.floats(-40, 0, width=32),
    st.floats(-(2**-10), 0, width=32),
    st.sampled_from([-9999.0, 0.0, -0.0, -0.5]),
)
ragged = st.one_of(
    st.lists(values, min_size=1, max_size=8),
    st.lists(values, min_size=45, max_size=130),
    st.tuples(values, st.integers(1, 600)).map(lambda pair: [pair[0]] * pair[1]),
).map(lambda x: np.array(x, np.float32))


@given(ragged)
@example(np.zeros(1, np.float32))
@example(np.array([-1e-7] * 3, np.float32))
def test_terms_are_those_of_the_plain_definition(x: np.ndarray) -> None:
    found = dict(zip(TERMS, terms(x[None])[0].tolist(), strict=True))
    expected = plain_terms(x.tolist())
    assert list(found) == list(expected)
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-6, abs=1e-6)


@given(st.lists(ragged, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_response_has_the_same_terms_alone_and_anywhere_in_a_batch(responses: list[np.ndarray], chance) -> None:
    alone = [features_one(schema("terms"), x.tolist()) for x in responses]
    order = chance.sample(range(len(responses)), len(responses))
    batch = features(schema("terms"), [responses[i] for i in order])
    np.testing.assert_array_equal(batch, [alone[i] for i in order])
    same = np.stack([responses[0]] * 40)
    np.testing.assert_array_equal(terms(same), np.stack([alone[0]] * 40))


@given(ragged)
def test_windows_and_terms_of_one_schema_are_those_of_each_alone(x: np.ndarray) -> None:
    both = features_one(schema("full+terms"), x)
    np.testing.assert_array_equal(both[:-7], features_one(schema("full"), x))
    np.testing.assert_array_equal(both[-7:], features_one(schema("terms"), x))
    assert schema("full+terms").names[-7:] == schema("terms").names == tuple(f"terms.{name}" for name in TERMS)


def test_known_terms() -> None:
    given = np.array([[-1.0, -2.0, -6.0, -3.0, -0.5]], np.float32)
    found = dict(zip(TERMS, terms(given)[0].tolist(), strict=True))
    parts = {"lowest3": 11 / 3, "mean": 12.5 / 5, "min": 6.0, "total": 12.5, "first": 1.0}
    expected = {name: math.log(value + FLOOR) for name, value in parts.items()}
    expected["halves"] = math.log(1.5 + FLOOR) - math.log(1.75 + FLOOR)  # the token in the middle is in neither
    expected["length"] = math.log(5)
    assert found == pytest.approx(expected, rel=1e-6)
    certain = terms(np.zeros((1, 2)))[0].tolist()
    assert certain == pytest.approx([math.log(FLOOR)] * 5 + [0.0, math.log(2)], rel=1e-6)
    assert given.tolist() == [[-1.0, -2.0, -6.0, -3.0, -0.5]], "what is given is left as it is"


@pytest.mark.slow
@given(st.lists(ragged, min_size=2, max_size=12))
@example([np.zeros(190, np.float32), np.full(2, -0.00097656, np.float32)])
def test_free_terms_order_answers_the_other_way_round_than_their_log_probabilities(
    responses: list[np.ndarray],
) -> None:
    found = dict(zip(TERMS, features(schema("terms"), responses).T, strict=True))
    free = baseline_scores(responses)
    free["total"] = free["mean_logprob"] * free["length"]
    # The floor under the mean's logarithm is multiplied by the root of the length too: of sure answers the longer one
    # stands a little lower, and exactly so.
    free["scaled_logprob"] = free["scaled_logprob"] - FLOOR * np.sqrt(free["length"])
    named = {"scaled": "scaled_logprob", "total": "total", "mean": "mean_logprob", "min": "min_logprob"}
    for term, name in named.items():
        found[term] = sum(weight * found[of].astype(np.float64) for of, weight in FREE[term].items())
        apart = np.subtract.outer(free[name], free[name]) > 1e-3 * (1 + np.abs(free[name]))
        assert (np.subtract.outer(found[term], found[term])[apart] <= 0).all(), term
