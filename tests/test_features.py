"""The definition of the features and terms, read plainly (here, a NumPy call a number) and in batch."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metaprobe.probes.features import (
    BASELINE_FEATURES,
    FREE,
    SCHEMA_NAMES,
    SURPRISE_FLOOR,
    TERMS,
    baseline_scores,
    entropy,
    features,
    features_one,
    margin,
    schema,
    terms,
)
from metaprobe.records.errors import InvalidResponse, RecordError

PREFIXES = [name for name in SCHEMA_NAMES if name.startswith("prefix")]
WINDOWS = {
    **{f"first{k}": (lambda x, k=k: x[:k] if len(x) >= k else None) for k in (3, 5, 10, 20, 30, 50)},
    **{f"last{k}": (lambda x, k=k: x[-k:] if len(x) >= k else None) for k in (3, 5, 10, 20, 30, 50)},
    **{f"first{100 // d}%": (lambda x, d=d: x[: max(1, len(x) // d)]) for d in (10, 4, 2)},
    **{f"last{100 // d}%": (lambda x, d=d: x[-max(1, len(x) // d) :]) for d in (10, 4, 2)},
    "full": lambda x: x,
}
STATISTICS = {
    "mean": np.mean,
    "median": np.median,
    "min": np.min,
    "max": np.max,
    "var": np.var,
    "std": np.std,
    "range": np.ptp,
    "slope": lambda x: np.polyfit(np.arange(len(x)), x, 1)[0] if len(x) > 1 else np.nan,
}


def plain(names: tuple[str, ...], logprobs: np.ndarray, top: np.ndarray | None = None) -> list[float]:
    """The features called `names`, by the book."""
    unknown = np.full(len(logprobs), np.nan)
    series = {
        "": logprobs.astype(np.float64),
        "entropy": unknown if top is None else np.array([plain_entropy(row) for row in top]),
        "margin": unknown if top is None else np.array([plain_margin(row) for row in top]),
    }
    return [len(logprobs) if name == "length" else plain_value(name, series) for name in names]


def plain_value(name: str, series: dict[str, np.ndarray]) -> float:
    window, *kind, statistic = name.split(".")
    if window == "terms":
        return plain_terms(series[""].tolist())[statistic]
    values = WINDOWS[window](series["".join(kind)])
    return np.nan if values is None or np.isnan(values).any() else STATISTICS[statistic](values)


def plain_terms(logprobs: list[float]) -> dict[str, float]:
    """Term -> its value, of the log-probabilities of one response, in Python's own arithmetic."""
    surprise = [-value for value in logprobs]
    half = max(1, len(surprise) // 2)
    three = sorted(surprise, reverse=True)[:3]
    early, late = (math.log(math.fsum(part) / half + 1e-4) for part in (surprise[:half], surprise[-half:]))
    return {
        "lowest3": math.log(math.fsum(three) / len(three) + 1e-4),
        "mean": math.log(math.fsum(surprise) / len(surprise) + 1e-4),
        "min": math.log(max(surprise) + 1e-4),
        "total": math.log(math.fsum(surprise) + 1e-4),
        "first": math.log(surprise[0] + 1e-4),
        "halves": early - late,
        "length": math.log(len(surprise)),
    }


def plain_entropy(row: np.ndarray) -> float:
    p = np.exp(row[~np.isnan(row)].astype(np.float64))
    p = p / p.sum()
    return -np.sum(p * np.log(p, out=np.zeros_like(p), where=p > 0)) if len(p) else np.nan


def plain_margin(row: np.ndarray) -> float:
    return float(row[0]) - float(row[1]) if len(row) > 1 else np.nan


TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}
"""The contract of DESIGN.md. A float32 result is off by 6e-8 of itself, the float64 sums behind it by far less."""


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


def tops_for(x: np.ndarray, k: int, seed: int) -> np.ndarray:
    """(T, k), descending, sometimes with alternatives that are not given."""
    rng = np.random.default_rng(seed)
    top = -np.sort(rng.exponential(3, (len(x), k)), axis=1).astype(np.float32)
    if seed % 3 == 0 and k > 2:
        top[rng.random(len(x)) < 0.2, -1] = np.nan
    return top


def test_unknown_schema_is_refused_with_the_list_of_known_ones():
    with pytest.raises(RecordError, match=r"'prefix-4'.*full, prefix-3.*prefix-50\+top"):
        schema("prefix-4")


def test_known_answers():
    known = dict(zip(schema("full").names, features_one(schema("full"), [-1, -2, -6, -3]).tolist(), strict=True))
    assert [known[f"full.{s}"] for s in STATISTICS] == pytest.approx([-3, -2.5, -6, -1, 3.5, 3.5**0.5, 5, -1])
    assert known["last3.slope"] == pytest.approx(-0.5)
    assert known["first50%.mean"] == -1.5
    assert known["last10%.mean"] == -3  # floor(0.4) tokens, but at least one
    assert np.isnan(known["last10%.slope"])
    assert known["last10%.var"] == 0
    assert np.isnan(known["first5.mean"])
    assert known["length"] == 4


@given(st.lists(ragged, max_size=6))
@example([np.array([-9999.0] + [-0.1] * 60, np.float32), np.array([-0.1] * 60 + [-9999.0], np.float32)])
def test_batch_agrees_with_plain_definition(responses):
    full = schema("full")
    result = features(full, responses)
    assert result.shape == (len(responses), 153)
    assert result.dtype == np.float32
    for row, x in zip(result, responses, strict=True):
        np.testing.assert_allclose(row, plain(full.names, x), **TOLERANCE)


@given(st.lists(ragged, min_size=1, max_size=4), st.integers(1, 6), st.integers(0, 99))
def test_batch_agrees_with_plain_definition_on_alternatives(responses, k, seed):
    full = schema("full+top")
    tops = [tops_for(x, k + i % 2, seed + i) if (seed + i) % 5 else None for i, x in enumerate(responses)]
    for row, x, top in zip(features(full, responses, tops), responses, tops, strict=True):
        np.testing.assert_allclose(row, plain(full.names, x, top), **TOLERANCE)


@given(st.lists(ragged, min_size=1, max_size=4), st.integers(0, 99), st.sampled_from(SCHEMA_NAMES))
def test_one_response_reads_the_same_alone_and_anywhere_in_a_batch(responses, seed, name):
    tops = [tops_for(x, 3, seed) for x in responses]
    several = [*range(len(responses)), *range(len(responses))[::-1], *[0] * 40]
    for read in (schema(name), schema("terms")):
        alone = [features_one(read, x.tolist(), top) for x, top in zip(responses, tops, strict=True)]
        batch = features(read, [responses[i] for i in several], [tops[i] for i in several])
        np.testing.assert_array_equal(batch, [alone[i] for i in several])


@pytest.mark.parametrize("length", [1, 2, 50, 51, 255, 1024, 1025])
@pytest.mark.parametrize("kind", ["hard to tell apart", "far off", "far off first", "far off last"])
def test_extreme_values_agree_with_plain_definition_at_every_length(length, kind):
    rng = np.random.default_rng(length)
    x = -rng.exponential(0.5, length)
    if kind == "hard to tell apart":
        x = -5 - 1e-6 * rng.integers(0, 2, length)
    elif kind.startswith("far off"):
        x[{"far off": rng.random(length) < 0.2, "far off first": 0, "far off last": -1}[kind]] = -9999.0
    x = x.astype(np.float32)
    full = schema("full")
    np.testing.assert_allclose(features_one(full, x), plain(full.names, x), **TOLERANCE)
    np.testing.assert_array_equal(features(full, [x, x[:1], x])[[0, 2]], [features_one(full, x)] * 2)


def test_numbers_at_the_end_of_the_range_give_finite_features():
    known = features_one(schema("full"), [-1e38, -0.5, -3e38, 0.0])
    assert np.isfinite(known[~np.isnan(known)]).all()


@given(ragged, ragged, ragged, st.sampled_from(PREFIXES))
def test_prefix_features_never_see_the_future(start, one_future, other_future, name):
    prefix = schema(name)
    k = prefix.limit
    start = np.resize(start, k)
    one, other = np.concatenate([start, one_future]), np.concatenate([start, other_future])
    tops = [tops_for(x, 3, 1) for x in (one, other)]
    tops[1][:k] = tops[0][:k]
    known = features_one(prefix, start, tops[0][:k])
    np.testing.assert_array_equal(features(prefix, [one, other], tops), [known, known])
    # ... while the full schema does: the check above could fail
    assert features_one(schema("full"), one)[-1] != features_one(schema("full"), start)[-1]


@given(values, st.integers(1, 200))
def test_constant_response_has_no_spread_at_all(value, length):
    full = schema("full")
    known = dict(zip(full.names, features_one(full, [value] * length), strict=True))
    spread = [v for n, v in known.items() if n.split(".")[-1] in ("var", "std", "range") and not np.isnan(v)]
    assert spread == [0] * len(spread)
    assert known["full.mean"] == known["full.median"] == np.float32(value)


def test_entropy_and_margin_of_known_distributions():
    top = np.log(np.array([[0.4, 0.4], [0.5, 0.125]]))
    np.testing.assert_allclose(entropy(top), [np.log(2), 0.8 * np.log(1.25) + 0.2 * np.log(5)])
    np.testing.assert_allclose(margin(top), [0, np.log(4)], atol=1e-12)
    nan = np.nan
    np.testing.assert_array_equal(entropy(np.array([[-0.1, nan], [nan, nan], [-0.1, -np.inf]])), [0, nan, 0])
    np.testing.assert_array_equal(margin(np.array([[-0.5, -1.5], [-0.1, nan], [-0.1, -np.inf]])), [1, nan, nan])
    assert entropy(np.array([0.0, -9999.0])) == 0


def test_bad_responses_are_refused_by_number():
    full = schema("full+top")
    with pytest.raises(InvalidResponse, match="response 1 has no tokens"):
        features(full, [[-0.5], []])
    with pytest.raises(InvalidResponse, match="no tokens"):
        features_one(full, [])
    with pytest.raises(InvalidResponse, match=r"response 0: .*shape \(2, 3\), expected \(1, k\)"):
        features(full, [[-0.5]], [np.zeros((2, 3))])
    with pytest.raises(InvalidResponse, match="1 responses came with 2"):
        features(full, [[-0.5]], [None, None])


@given(st.lists(ragged, max_size=5))
def test_baselines_are_what_they_are_called(responses):
    scores = baseline_scores(responses)
    assert tuple(scores) == BASELINE_FEATURES
    for i, x in enumerate(responses):
        mean = np.mean(x, dtype=np.float64)
        scaled = x.sum(dtype=np.float64) / np.sqrt(len(x))
        lowest3 = np.sort(x.astype(np.float64))[:3].mean()
        expected = [mean, x.min(), lowest3, scaled, x[0], len(x), np.exp(min(-mean, 700))]
        np.testing.assert_allclose([scores[name][i] for name in BASELINE_FEATURES], expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(InvalidResponse, match=f"response {len(responses)} has no tokens"):
        baseline_scores([*responses, np.array([])])


@given(ragged)
@example(np.zeros(1, np.float32))
@example(np.array([-1e-7] * 3, np.float32))
def test_terms_are_those_of_the_plain_definition(x: np.ndarray) -> None:
    found = dict(zip(TERMS, terms(x[None])[0].tolist(), strict=True))
    expected = plain_terms(x.tolist())
    assert list(found) == list(expected)
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-6, abs=1e-6)


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
    expected = {name: math.log(value + SURPRISE_FLOOR) for name, value in parts.items()}
    expected["halves"] = math.log(1.5 + SURPRISE_FLOOR) - math.log(
        1.75 + SURPRISE_FLOOR
    )  # the token in the middle is in neither
    expected["length"] = math.log(5)
    assert found == pytest.approx(expected, rel=1e-6)
    certain = terms(np.zeros((1, 2)))[0].tolist()
    assert certain == pytest.approx([math.log(SURPRISE_FLOOR)] * 5 + [0.0, math.log(2)], rel=1e-6)
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
    free["scaled_logprob"] = free["scaled_logprob"] - SURPRISE_FLOOR * np.sqrt(free["length"])
    named = {"scaled": "scaled_logprob", "total": "total", "mean": "mean_logprob", "min": "min_logprob"}
    for term, name in named.items():
        found[term] = sum(weight * found[of].astype(np.float64) for of, weight in FREE[term].items())
        apart = np.subtract.outer(free[name], free[name]) > 1e-3 * (1 + np.abs(free[name]))
        assert (np.subtract.outer(found[term], found[term])[apart] <= 0).all(), term
