"""The guard: a new version of a router takes the running one's place only where it is better."""

from collections.abc import Sequence
from dataclasses import dataclass

from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.routing_performance import compare
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.routing.learned import LearnedRouter
from metaprobe.routing.learned_play import play
from metaprobe.training.router.data import fingerprint_of, outcomes_of
from metaprobe.training.router.evaluate import matrix_of, name_columns


@dataclass(frozen=True, slots=True)
class RouterPromotion:
    """Whether a new version may take the running one's place."""

    promoted: bool
    gain: Interval
    """Of accuracy - lambda * cost, new minus running, on the same questions."""
    digest: str
    """Of the version that should run from now on."""
    reason: str


def promote(
    new: LearnedRouter, running: LearnedRouter, questions: Sequence[QuestionOutcomes], *, lambda_: float | None = None
) -> RouterPromotion:
    """The new version only where the paired interval of its gain is above 0 on questions that neither was trained on.

    `lambda_`: by default the running one's. To roll back, load the digest that ran before (`LearnedRouter.load(...,
    sha256=digest)`): a version is a folder, and a digest pins every byte of it.
    """
    price = running.lambda_ if lambda_ is None else lambda_
    seen = {r.checkpoint.manifest.training.fingerprint for r in (new, running) if r.checkpoint.manifest.training}
    if fingerprint_of(questions) in seen:
        raise RecordError("these are the questions that one of the versions was trained on; give held-out ones")
    agents = sorted({*new.agents, *running.agents})
    matrix = matrix_of(outcomes_of(questions, agents))
    games = [name_columns([play(router, question) for question in questions], agents) for router in (new, running)]
    gain = compare(matrix, games[0], games[1], price=1000 * price)
    better, value = gain.promotable, gain.value
    found = f"gain {value.estimate:+.4f} [{value.low:+.4f}, {value.high:+.4f}] at lambda {price:.4g}"
    found += f" on {len(questions)} questions"
    return RouterPromotion(
        better,
        value,
        (new if better else running).checkpoint.digest,
        f"{found}: {'promoted' if better else 'the running one is kept, as it may be no worse'}",
    )
