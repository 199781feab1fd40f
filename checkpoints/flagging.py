"""Finds the flag threshold in what a checkpoint stores, and describes in words what the threshold catches and costs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Annotated, Any, Literal, Protocol, TypedDict

from metaprobe.checkpoints.checkpoint_errors import ContractMismatch
from metaprobe.checkpoints.manifest import FlagPoint, Metric, OperatingPoint, Promise
from metaprobe.checkpoints.option_fields import Option
from metaprobe.checkpoints.rendered_table import Table

_AT_MOST_ONE = "At most one such option."


class FlagKeywords(TypedDict, total=False):
    """The fields of `FlagOptions` as keyword arguments, for type checkers."""

    flag_rate: float | None
    flag_below: float | None
    catch: float | None
    risk: float | None


@dataclass(frozen=True, kw_only=True)
class FlagOptions:
    """Which answers are flagged. At most one of the four options may be given; by default the stored threshold is used.

    Raises `ContractMismatch` if two are given, or if a value is out of range.
    """

    # No slots: the options of a training inherit these beside their own, and two bases cannot both have slots.
    flag_rate: Annotated[
        float | None,
        Option(
            f"Share of the answers to flag, those of the lowest scores; above 0 and below 1. {_AT_MOST_ONE}",
            variable=True,
        ),
    ] = None
    flag_below: Annotated[
        float | None,
        Option(f"Score below which an answer is flagged, from 0 to 1. {_AT_MOST_ONE}", variable=True),
    ] = None
    catch: Annotated[
        float | None,
        Option(
            "Share of the wrong answers to flag, promised on average over trainings; above 0 and below 1. "
            f"{_AT_MOST_ONE}",
            variable=True,
        ),
    ] = None
    risk: Annotated[
        float | None,
        Option(
            "Largest share of wrong answers among those not flagged, with 95 % confidence; above 0 and below 1. "
            f"{_AT_MOST_ONE}",
            variable=True,
        ),
    ] = None

    def __post_init__(self) -> None:
        flags = self.flags
        if len(flags) > 1:
            raise ContractMismatch(
                f"{' and '.join(f'{name}={value!r}' for name, value in flags.items())} were given; each of them sets "
                "the threshold, so give at most one"
            )
        for name, value in flags.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            includes_ends = name == "flag_below"
            if not is_number or not (0 <= value <= 1 if includes_ends else 0 < value < 1):
                expected = "a score from 0 to 1" if includes_ends else "a share above 0 and below 1, such as 0.3"
                raise ContractMismatch(f"{name} is {value!r}; expected {expected}")

    @property
    def flags(self) -> dict[str, Any]:
        """The given option by name; empty if none is given."""
        values = {field.name: getattr(self, field.name) for field in fields(FlagOptions)}
        return {name: value for name, value in values.items() if value is not None}

    def as_flags(self) -> "FlagOptions":
        """Returns these four options alone, for classes of options that inherit them."""
        return FlagOptions(**self.flags)


USUAL_FLAGS = FlagOptions()
"""The options if the user gives none."""


CARD_RATES = (0.1, 0.2, 0.3, 0.5)
"""Flag rates in the table of a card."""
GAIN_METRIC = "auroc_gain_over_mean_log_probability"
AGREEMENT = "agreement"
"""Name of a head, and of a label: whether another answer to the question says the same.

It does not say whether the answer is right.
"""
ENDED = "ended"
"""Name of a label: whether the answer ended by itself, and was not cut by its token limit.

It does not say whether the answer is right.
"""
FLAGGED_BY = "flagged_by"
"""Key of the contract for the head that the threshold `flag` applies to, if that is not the score."""
MIN_THRESHOLD_GROUPS = 20
"""Fewest groups of labelled answers for which a threshold is stored.

With 20 groups the share of wrong answers is known to within 22 points (95 %, at worst). That shows whether a third or
two thirds are to be flagged, but no more.
"""
FLAG = "flag"
"""Name of the threshold below which answers are flagged, in a manifest's `thresholds`."""
SAME_VALUE = 1e-9
"""Values of an option that differ by less are equal: 0.1 + 0.2 counts as 0.3."""


class Flagging(Protocol):
    """The fields about flagging that a manifest, its draft and an export share."""

    @property
    def thresholds(self) -> Mapping[str, float]: ...
    @property
    def flagging(self) -> tuple[FlagPoint, ...]: ...
    @property
    def promises(self) -> tuple[Promise, ...]: ...
    @property
    def operating(self) -> OperatingPoint | None: ...


def promise_refused(flags: FlagOptions) -> str:
    """Returns why a promise about wrong answers cannot be kept without labelled answers; empty for other options."""
    for option, value in flags.flags.items():
        if option in PROMISES:
            return (
                f"{option}={value:g} is a promise about wrong answers, and 0 labels came; expected "
                f"{labels_needed(option, value)}: `metaprobe adapt` takes them (labels `correct`). Without labels give "
                "flag_rate, a share of the answers"
            )
    return ""


PROMISES = ("catch", "risk")
"""Options that promise something about wrong answers."""
PROMISED_CONFIDENCE = 0.95
"""Confidence with which `risk` is kept."""


def labels_needed(option: str, value: float) -> str:
    """Returns in words how many labels a promise takes at least, if the scores make no error.

    `catch`, conformal risk control over n wrong answers, needs 1 / (n + 1) <= 1 - catch. `risk`, Learn then Test on one
    half of the labels, needs (1 - risk)^n <= 1 - confidence for n answers of that half, all of them right.
    """
    if option == "catch":
        wrong_count = math.ceil(value / (1 - value) - SAME_VALUE)
        return (
            f"at least {max(wrong_count, 1)} labelled wrong answers of your model to different questions, and "
            f"{MIN_THRESHOLD_GROUPS} in all"
        )
    right_count = math.ceil(math.log(1 - PROMISED_CONFIDENCE) / math.log1p(-value))
    labels = max(2 * right_count, MIN_THRESHOLD_GROUPS)
    return f"at least {labels} labelled answers of your model to different questions, more where the surest ones err"


def threshold_of(stored: Flagging, flags: FlagOptions, *, labels: str = "") -> float | None:
    """Returns the score below which answers are flagged; None if no option is given and no threshold is stored.

    Every command and `load` use this function, so that one option means one threshold. Raises `ContractMismatch` if the
    checkpoint does not store what the option needs, and for a promise about wrong answers if it was trained without
    labels.

    Args:
        stored: the manifest, a draft or an export.
        flags: the options.
        labels: how many labels came, in words, for errors; by default as the checkpoint's training says.
    """
    unlabelled = getattr(stored, "contract", {}).get(FLAGGED_BY) == AGREEMENT  # a manifest has a contract
    if unlabelled and (refused := promise_refused(flags)):
        raise ContractMismatch(refused)
    training = getattr(stored, "training", None)
    if not labels and training is not None:
        labels = f"{training.n:,} labels of {training.groups:,} groups"
    match flags.flags:
        case {"flag_below": below}:
            return float(below)
        case {"flag_rate": rate}:
            return threshold_at(stored.flagging, rate)
        case {"catch": share}:
            return promised_threshold(stored.promises, "catch", share, labels=labels)
        case {"risk": share}:
            return promised_threshold(stored.promises, "risk", share, labels=labels)
    return stored.thresholds.get(FLAG)


def threshold_at(points: Sequence[FlagPoint], rate: float) -> float:
    """Returns the score below which about a share `rate` of the answers lies, from the stored curve.

    Between two stored rates the score is interpolated. Raises `ContractMismatch` if no curve is stored, or if the rate
    lies outside it.
    """
    if not points:
        raise _not_stored(f"flag_rate={rate:g}", "curve of flag rates")
    first, last = points[0].rate, points[-1].rate
    if isinstance(rate, bool) or not first - SAME_VALUE <= rate <= last + SAME_VALUE:
        raise ContractMismatch(f"flag_rate is {rate!r}; expected a share from {first:g} to {last:g}, such as 0.3")
    for low, high in pairwise(points):
        if low.rate <= rate <= high.rate:
            fraction = (rate - low.rate) / (high.rate - low.rate)
            return low.threshold + fraction * (high.threshold - low.threshold)
    return min(points, key=lambda point: abs(point.rate - rate)).threshold


def promised_threshold(
    promises: Sequence[Promise], option: Literal["catch", "risk"], value: float, *, labels: str = ""
) -> float:
    """Returns the stored threshold that keeps a promise: the threshold of the nearest stored value that is at least as
    strict.

    Raises `ContractMismatch` if no stored threshold is as strict.

    Args:
        promises: stored promises.
        option: `catch` or `risk`.
        value: value of the option.
        labels: how many labels the promises are from, in words; empty where that is not known.
    """
    needed = labels_needed(option, value)
    what_to_do = f"expected {needed}: adapt or train the checkpoint with these (`metaprobe adapt`), or give"
    label_text = f"of {labels}" if labels else "of its labels"
    stored_promises = [promise for promise in promises if promise.option == option]
    if not stored_promises:
        raise ContractMismatch(
            f"{option}={value:g}: the checkpoint, {label_text}, stores no threshold that was shown to keep such a "
            f"promise for your answers; {what_to_do} flag_rate or flag_below"
        )
    direction = 1 if option == "catch" else -1  # more is promised by a larger catch, and by a smaller risk
    stored_promises.sort(key=lambda promise: direction * promise.value)
    for promise in stored_promises:
        if direction * promise.value >= direction * value - SAME_VALUE:
            return promise.threshold
    bound_text = "catch up to" if option == "catch" else "risk from"
    raise ContractMismatch(
        f"{option}={value:g}: the checkpoint, {label_text}, carries {bound_text} {stored_promises[-1].value:g}; "
        f"{what_to_do} a weaker promise, flag_rate or flag_below"
    )


def _not_stored(option_text: str, missing: str) -> ContractMismatch:
    return ContractMismatch(
        f"{option_text}: the checkpoint stores no {missing}; older ones have none, nor do those of too few labelled "
        "answers (its card says how many it takes), for new tasks, or without a head `correct`: adapt, recalibrate or "
        "train it again, with enough labels (for agreement, with more questions asked twice), or give flag_below, a "
        "score of your own"
    )


FLAGS_OF_OPTION = {
    "expected": "as many answers as are expected to be wrong ({value:.0%} by their scores)",
    "flag_rate": "about {value:.0%} of the answers (flag_rate={value:g})",
    "flag_below": "every answer of a score below {value:g} (flag_below={value:g})",
    "catch": "in expectation at least {value:.0%} of the wrong answers (catch={value:g}, conformal risk control)",
    "risk": (
        "so many that at most {value:.0%} of the others are wrong, with 95 % confidence (risk={value:g}, Learn then "
        "Test)"
    ),
}
"""Maps an option to what a threshold set by it is meant to flag, in words."""


@dataclass(frozen=True, slots=True)
class LabelNouns:
    """Nouns for the answers of either label, in sentences about a threshold."""

    bad: str
    """Answers that a flag is meant to find, as the object of a sentence."""
    good: str
    """The answers that a flag catches by mistake, as the object of a sentence."""
    bad_column: str
    """Head of the column with the share of `bad` answers that is flagged."""
    good_column: str
    """Head of the column with the share of `good` answers that is flagged."""
    answers: str = "answers"
    """Noun for everything that was measured."""
    probability: str = "P(right)"
    """Name of the score on which the flag lies."""


RIGHT_OR_WRONG = LabelNouns("the wrong ones", "the right ones", "of the wrong answers", "of the right answers")
REPEATED_OR_NOT = LabelNouns(
    "those that another answer does not repeat",
    "those that another answer repeats",
    "of those that another does not repeat",
    "of those that another repeats",
    "pairs of answers to one question",
    "P(said again)",
)
"""Nouns for a score that was learned from agreement, without labels of right and wrong."""


def label_nouns(contract: Mapping[str, Any]) -> LabelNouns:
    """Returns the nouns for a checkpoint with this contract. They depend on the head to which its flag applies."""
    return REPEATED_OR_NOT if contract.get(FLAGGED_BY) == AGREEMENT else RIGHT_OR_WRONG


def intended_flags(operating: OperatingPoint) -> str:
    """Returns what the stored threshold is meant to flag, as the object of a sentence."""
    return FLAGS_OF_OPTION[operating.option].format(value=operating.value)


def flag_sentences(stored: Flagging, metrics: Mapping[str, Metric], nouns: LabelNouns = RIGHT_OR_WRONG) -> list[str]:
    """Returns sentences on what the stored threshold flags, catches and costs on held-out answers, and whether it is
    needed.

    Empty if there is neither a threshold `flag` nor a curve.

    Args:
        stored: the manifest.
        metrics: metrics of the manifest.
        nouns: nouns for the answers.
    """
    lines = []
    threshold, operating = stored.thresholds.get(FLAG), stored.operating
    if threshold is not None and operating is not None:
        lines.append(
            f"The stored threshold {threshold:.4f} flags {intended_flags(operating)}. On held-out {nouns.answers} it "
            f"flags {_format(operating.flagged)} of all, catches {_format(operating.caught)} of {nouns.bad} and costs "
            f"{_format(operating.cost)} of {nouns.good} (flagging at random: {operating.flagged.estimate:.0%} of each)."
        )
    elif threshold is not None:
        curve = ""
        if points := stored.flagging:
            lowest_rate = max((point.rate for point in points if point.threshold <= threshold), default=0.0)
            highest_rate = min((point.rate for point in points if point.threshold >= threshold), default=1.0)
            curve = f"; by the curve of flag rates it flags {lowest_rate:.0%} to {highest_rate:.0%} of the answers"
        lines.append(
            f"What the stored threshold {threshold:.4f} flags, catches and costs is not known: it was not "
            f"measured{curve}. Adapt, recalibrate or train the checkpoint again, with enough labels."
        )
    elif stored.flagging:
        lines.append("No threshold is stored: nothing is flagged unless one is chosen when the checkpoint is loaded.")
    if lines and "critical" in stored.thresholds:
        lines.append("The head `critical` flags besides, by its own threshold.")
    gain = metrics.get(GAIN_METRIC) or metrics.get(f"correct.{GAIN_METRIC}")  # the latter where there are several heads
    if stored.flagging and gain is not None and gain.low <= 0:
        comparison_text = "ranks them better" if gain.high < 0 else "is not shown to rank them worse"
        lines.append(
            f"The mean log-probability {comparison_text} (gain in AUROC {gain.estimate:+.3f} [{gain.low:+.3f}, "
            f"{gain.high:+.3f}]): for the order alone you do not need this, only for {nouns.probability} and the "
            "threshold."
        )
    return lines


def flag_table(stored: Flagging, nouns: LabelNouns = RIGHT_OR_WRONG) -> list[str]:
    """Returns the lines of a Markdown table: what the stored threshold catches and costs, then the same for a few
    rates.

    Shares have 95 % intervals. Empty if nothing was measured.
    """
    rows = []
    if (operating := stored.operating) is not None and FLAG in stored.thresholds:
        flagged, threshold = f"stored: {_format(operating.flagged)}", f"{stored.thresholds[FLAG]:.4f}"
        rows.append((flagged, _format(operating.caught), _format(operating.cost), threshold))
    rows += [
        (f"{point.rate:.0%}", _format(point.caught), _format(point.cost), f"{point.threshold:.4f}")
        for point in stored.flagging
        if any(abs(point.rate - rate) < SAME_VALUE for rate in CARD_RATES)
    ]
    head = ("flagged", nouns.bad_column, nouns.good_column, "score below")
    return Table.of(head, rows).markdown() if rows else []


def _format(metric: Metric) -> str:
    return f"{metric.estimate:.0%} [{metric.low:.0%}, {metric.high:.0%}]"
