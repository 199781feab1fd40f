"""How fast the features are read, against one NumPy call a number. Asserts that the answers are equal.

    python -m benchmarks.features
    python -m benchmarks.features --responses 2000 --repeats 3

Random log-probabilities, nothing from outside. One thread; the best of the repeats. Times go from lists or arrays to
the finished vectors, checks included. The naive reader is timed on a part of the batch; its stream works out every
complete window anew at each look (after the third, fifth ... fiftieth token).
"""

import argparse
import os
import platform
import time
from collections.abc import Callable

import numpy as np

from metaprobe.probes.features import WINDOWS, Window, features, features_one, schema
from metaprobe.probes.incremental import PrefixReader

FULL, PREFIX = schema("full"), schema("prefix-50")
NAIVE_RESPONSES = 200


def naive(x: np.ndarray, windows: tuple[Window, ...] = WINDOWS) -> np.ndarray:
    """Windows x statistics as one would write them down, float64."""
    out = []
    for window in windows:
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
    return np.array([*out, len(x)] if windows is WINDOWS else out)


def stream(x: list[float]) -> np.ndarray:
    reader = PrefixReader(PREFIX)
    for logprob in x:
        reader.push(logprob)
    return reader.vector()


def naive_stream(x: list[float]) -> np.ndarray:
    for window in PREFIX.windows:
        out = naive(np.array(x[: window.count]), PREFIX.windows)
    return out


def push_times_us(x: list[float], repeats: int) -> tuple[float, float]:
    """Median time of a push between looks, and of one that completes a window (the third, fifth ... token)."""
    looks = {window.count for window in PREFIX.windows}
    between: list[int] = []
    at_look: list[int] = []
    for _ in range(20 * repeats):
        reader = PrefixReader(PREFIX)
        for i, logprob in enumerate(x[:50], start=1):
            start = time.perf_counter_ns()
            reader.push(logprob)
            (at_look if i in looks else between).append(time.perf_counter_ns() - start)
    return float(np.median(between)) / 1e3, float(np.median(at_look)) / 1e3


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
    start = single_list[:50]

    np.testing.assert_allclose(features_one(FULL, single_list), naive(single.astype(np.float64)), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(stream(start), features_one(PREFIX, single_list), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(stream(start), naive_stream(start), rtol=1e-6, atol=1e-6)
    rows = []
    for name, lengths in batches.items():
        responses = [(-rng.exponential(0.5, n)).astype(np.float32) for n in lengths.tolist()]
        some = [x.astype(np.float64) for x in responses[:NAIVE_RESPONSES]]
        batch = features(FULL, responses)
        np.testing.assert_allclose(batch[: len(some)], [naive(x) for x in some], rtol=1e-6, atol=1e-6)
        naive_seconds = best_seconds(lambda some=some: [naive(x) for x in some], 1)  # type: ignore[misc]
        seconds = best_seconds(lambda responses=responses: features(FULL, responses), options.repeats)  # type: ignore[misc]
        rows.append((name, naive_seconds / sum(map(len, some)), seconds / lengths.sum(), seconds / len(responses)))
    for name, plain, call, tokens in (
        ("one list of 512", lambda: naive(np.array(single_list)), lambda: features_one(FULL, single_list), 512),
        ("stream of 50, prefix-50", lambda: naive_stream(start), lambda: stream(start), 50),
    ):
        naive_seconds, seconds = (best_seconds(f, 40 * options.repeats) for f in (plain, call))
        rows.append((name, naive_seconds / tokens, seconds / tokens, seconds))

    print(f"{'reader':28}{'x naive':>9}{'M tokens/s':>12}{'us/response':>13}{'naive us':>10}")
    for name, naive_token, token, response in rows:
        naive_response = naive_token / token * response
        print(
            f"{name:28}{naive_token / token:9.1f}{1e-6 / token:12.2f}{response * 1e6:13.1f}{naive_response * 1e6:10.1f}"
        )
    between, at_look = push_times_us(single_list, options.repeats)
    print(f"one streamed token: {between:.2f} us between looks, {at_look:.2f} us at a look (medians)")
    print(f"NumPy {np.__version__}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores,")
    print(f"load {os.getloadavg()[0]:.1f}; best of {options.repeats} (batches) or {40 * options.repeats}")


if __name__ == "__main__":
    main()
