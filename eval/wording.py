"""How numbers and methods are written, in reports, cards and sentences."""

from math import isnan

from metaprobe.eval.method_results import MethodResult
from metaprobe.eval.metrics.bootstrap import Interval

MOST_DIGITS = 5
FITTED = ("prompt TF-IDF", "dimension x level table", "run identity")
"""Controls that are fitted themselves."""
ASKED = ("P(true)",)
"""Controls that take a further call; any other is a number that comes free with an answer."""


def number(value: float, digits: int = 2, *, signed: bool = False) -> str:
    """`0.71`; `n/a` for nan; never a minus before zeros only."""
    if isnan(value):
        return "n/a"
    value = round(value, digits) + 0.0  # -0.0 + 0.0 is 0.0
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def bounds(interval: Interval, digits: int = 2, *, signed: bool = False) -> str:
    """`[0.68, 0.74]`; where an end of a difference would be rounded to 0 it has as many digits as show its sign."""
    ends = (
        number(end, _telling(end, digits) if signed else digits, signed=signed) for end in (interval.low, interval.high)
    )
    return f"[{', '.join(ends)}]"


def _telling(value: float, digits: int) -> int:
    return next((n for n in range(digits, MOST_DIGITS + 1) if round(value, n)), digits)


def format_interval(interval: Interval, digits: int = 2, *, signed: bool = False) -> str:
    """`0.71 [0.68, 0.74]`."""
    return f"{number(interval.estimate, digits, signed=signed)} {bounds(interval, digits, signed=signed)}"


def percent(share: float, digits: int = 0) -> str:
    """`71 %` of 0.71."""
    return "n/a" if isnan(share) else f"{number(100 * share, digits)}\u00a0%"


def percent_bounds(interval: Interval, digits: int = 0) -> str:
    """`[68 %, 74 %]`."""
    return f"[{percent(interval.low, digits)}, {percent(interval.high, digits)}]"


def p_value(p: float) -> str:
    """`0.012`, `< 0.001`."""
    return "< 0.001" if p < 0.001 else number(p, 3)


def verdict(difference: Interval) -> str:
    """The sign of a paired difference in a word: an interval that holds 0 decides nothing."""
    if difference.low > 0:
        return "better"
    return "worse" if difference.high < 0 else "unclear"


def calibration_words(stated: MethodResult) -> list[str]:
    """Whether the model's own numbers come true, as stated and recalibrated; nothing where it gave none."""
    own = stated.stated
    if own is None:
        return []
    return [
        f"As stated, it is {percent(own.mean)} sure on average of answers of which {percent(own.accuracy)} are right: "
        f"expected calibration error {number(own.ece.estimate)} as stated, {number(stated.ece.estimate)} recalibrated."
    ]


def control_named(name: str) -> str:
    """`the free number mean log-probability`, `the plain predictor prompt TF-IDF`, `the further question P(true)`."""
    kind = "plain predictor" if name in FITTED else "further question" if name in ASKED else "free number"
    return f"the {kind} {name}"
