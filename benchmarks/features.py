"""How fast the features are read, against one NumPy call a number. Asserts that the answers are equal.

    python -m benchmarks.features
    python -m benchmarks.features --responses 2000 --repeats 3

Random log-probabilities, nothing from outside. One thread; the best of the repeats. Times go from lists or arrays to
the finished vectors, checks included. The naive reader is timed on a part of the batch.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable

import numpy as np

from metaprobe.probes.features import WINDOWS, features, features_one, schema

FULL = schema("full")
NAIVE_RESPONSES = 200


def naive(x: np.ndarray) -> np.ndarray:
    """Windows x statistics as one would write them down, float64."""
    out = []
    for window in WINDOWS:
        w = window.width(len(x))
        if w == 0:
            out += [np.nan] * 8
            continue
        part = x[len(x) - w :] if window.from_end else x[:w]
        slope = np.polyfit(np.arange(w), part, 1)[0] if w > 1 else np.nan
        out += [
            np.mean(part),
            np.median(part),
            np.min(part),
            np.max(part),
            np.var(part),
            np.std(part),
            np.ptp(part),
            slope,
        ]
    return np.array([*out, len(x)])


def best_seconds(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the feature readers.")
    parser.add_argument("--responses", type=int, default=10_000, help="responses in a batch (default: 10000)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a response in the even batch (default: 256)")
    parser.add_argument("--repeats", type=int, default=5, help="the best of so many runs counts (default: 5)")
    options = parser.parse_args()
    rng = np.random.default_rng(42)
    batches = {
        f"batch, {options.tokens} tokens each": np.full(options.responses, options.tokens),
        "batch, 20-400 tokens": rng.integers(20, 401, options.responses),
    }
    single = (-rng.exponential(0.5, 512)).astype(np.float32)
    single_list = single.tolist()

    np.testing.assert_allclose(features_one(FULL, single_list), naive(single.astype(np.float64)), rtol=1e-6, atol=1e-6)
    rows = []
    for name, lengths in batches.items():
        responses = [(-rng.exponential(0.5, n)).astype(np.float32) for n in lengths.tolist()]
        some = [x.astype(np.float64) for x in responses[:NAIVE_RESPONSES]]
        batch = features(FULL, responses)
        np.testing.assert_allclose(batch[: len(some)], [naive(x) for x in some], rtol=1e-6, atol=1e-6)
        naive_seconds = best_seconds(lambda some=some: [naive(x) for x in some], 1)  # type: ignore[misc]
        seconds = best_seconds(lambda responses=responses: features(FULL, responses), options.repeats)  # type: ignore[misc]
        rows.append((name, naive_seconds / sum(map(len, some)), seconds / lengths.sum(), seconds / len(responses)))
    naive_seconds = best_seconds(lambda: naive(np.array(single_list)), 40 * options.repeats)
    seconds = best_seconds(lambda: features_one(FULL, single_list), 40 * options.repeats)
    rows.append(("one list of 512", naive_seconds / 512, seconds / 512, seconds))

    print(f"{'reader':28}{'x naive':>9}{'M tokens/s':>12}{'us/response':>13}{'naive us':>10}")
    for name, naive_token, token, response in rows:
        naive_response = naive_token / token * response
        print(
            f"{name:28}{naive_token / token:9.1f}{1e-6 / token:12.2f}{response * 1e6:13.1f}{naive_response * 1e6:10.1f}"
        )
    print(f"NumPy {np.__version__}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores,")
    print(f"load {os.getloadavg()[0]:.1f}; best of {options.repeats} (batches) or {40 * options.repeats}")


if __name__ == "__main__":
    main()
