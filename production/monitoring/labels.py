"""Labels: the meaning of their words, the answers to which they belong, and labels that arrive before their answers.

Callers know an answer by our id or by their own, and label the answers that they requested. Labels of answers that are
not in the log wait for a limited time, in a limited number.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from metaprobe.production.monitoring.rows import known_requests
from metaprobe.production.monitoring.tables import Execute, LogError, labels, read_mark, sa, scores, set_mark

logger = logging.getLogger(__name__)

RIGHT_WORDS = frozenset("right correct pass passed good thumbs_up thumbs-up like accept".split())
WRONG_WORDS = frozenset("wrong incorrect fail failed bad thumbs_down thumbs-down dislike reject".split())
"""Words that mean right or wrong, whatever was judged."""
_YES = frozenset("1 true yes y positive up c".split())
_NO = frozenset("0 false no n negative down i".split())
YES_WORDS, NO_WORDS = _YES - {"1", "c"}, _NO - {"0", "i"}
"""Words that mean right or wrong only if it is known whether a yes is good: a yes to `hallucination` is not.

The category `1` is not among them: it may be the lowest of five.
"""
UNSURE_WORDS = frozenset("unsure unknown skip skipped none null n/a na ?".split())
EXPECTED = "1 or right, 0 or wrong, null or unsure, or a share between 0 and 1"

HUMAN, PROGRAM, JUDGE = "human", "program", "judge"
LABEL_SOURCES = (HUMAN, PROGRAM, JUDGE)
"""Sources of labels. A label never replaces a label from an earlier source in this list."""


def label_value(given: object) -> float | None:
    """Returns 1 for right, 0 for wrong, a share between them for several judges, and None for unsure.

    Raises `ValueError` for anything else.
    """
    if given is None:
        return None
    if isinstance(given, str):
        word = given.strip().casefold()
        if word in RIGHT_WORDS | _YES:
            return 1.0
        if word in WRONG_WORDS | _NO:
            return 0.0
        if not word or word in UNSURE_WORDS:
            return None
        try:
            given = float(word)
        except ValueError:
            raise ValueError(f"label {word[:40]!r}; expected {EXPECTED}") from None
    # An integer may have more digits than a float can hold.
    if isinstance(given, (bool, int, float)) and 0 <= given <= 1 and math.isfinite(given):
        return float(given)
    raise ValueError(f"label {str(given)[:40]}; expected {EXPECTED}")


def source_of(given: object) -> str:
    """Returns `human`, `program` or `judge` for the words that programs use for them, and an empty text for other
    words.
    """
    word = str(given or "").strip().casefold().partition(":")[0]
    if word in ("human", "person", "annotator", "annotation"):
        return HUMAN
    if word in ("program", "code"):
        return PROGRAM
    return JUDGE if word in ("judge", "llm", "llm_judge", "ai_judge", "eval") else ""


class NotYours(LogError):
    """A label belongs to an answer that was requested with another key."""


@dataclass(frozen=True, slots=True)
class Labeller:
    """A person or program that labels."""

    key_name: str = ""
    """Name of the labeller's key; empty for a key without a name, or no key."""
    admin: bool = True
    """Whether the labeller may label the answers of all keys."""


OPERATOR = Labeller()
"""A labeller with direct access to the log."""


def known_answers(run: Execute, request_ids: Sequence[str], labeller: Labeller) -> list[str | None]:
    """Returns the id in the log of each answer that the labeller names so, for at most `CHUNK` names; None for unknown
    ones.

    Raises `NotYours` for an answer of another key, and `LogError` if several answers have a name.

    Args:
        run: runs a statement.
        request_ids: our ids, or the caller's own.
        labeller: the labeller.
    """
    theirs: dict[str, set[str]] = {}
    names = set(request_ids)
    ours: dict[str, str] = dict(
        run(sa.select(scores.c.request_id, scores.c.key_name).where(scores.c.request_id.in_(names)))
    )
    columns = (scores.c.callers_id, scores.c.request_id, scores.c.key_name)
    statement = sa.select(*columns).where(scores.c.callers_id.in_(names), scores.c.shadow_of.is_(None))
    for callers_id, request_id, key_name in run(statement):
        if labeller.admin or key_name == labeller.key_name:
            theirs.setdefault(callers_id, set()).add(request_id)
    found_ids: list[str | None] = []
    for name in request_ids:
        mine = [name] if name in ours else sorted(theirs.get(name, ()))
        if name in ours and not labeller.admin and ours[name] != labeller.key_name:
            raise NotYours(f"request {name} was asked for with another key; expected one of this key's answers")
        if len(mine) > 1:
            raise LogError(
                f"request {name}: {len(mine)} answers were asked for under that name, such as {mine[0]} and"
                f" {mine[1]}; expected the `request_id` that came with the verdict"
            )
        found_ids.append(mine[0] if mine else None)
    return found_ids


MAX_WAITING_LABELS = 10_000
"""Most labels that wait. If more arrive, the oldest are dropped."""
DAYS = 7.0
"""Days for which a label waits. An answer arrives within seconds of its label, or within days if a log is
filled later.
"""
MAX_ID = 256
"""Most characters of the id of an answer that is not in the log: 10,000 such labels then take some megabytes."""
_DROPPED = "labels_dropped"
"""Name of the mark that counts dropped labels."""
_WAITS = labels.c.waits.is_not(None)


def let_wait(run: Execute, request_ids: Sequence[str], now: float) -> None:
    """Marks labels of requests (at most `CHUNK`) that are not in the log as waiting, and drops those beyond the limits.

    Args:
        run: runs a statement.
        request_ids: ids of the requests.
        now: seconds since 1970.
    """
    if unknown := set(request_ids) - known_requests(run, request_ids):
        long = labels.c.request_id.in_([name for name in unknown if len(name) > MAX_ID])
        _count(run, int(run(sa.select(sa.func.count()).where(long))[0][0]))
        run(sa.delete(labels).where(long))
        run(sa.update(labels).where(labels.c.request_id.in_(unknown), labels.c.waits.is_(None)).values(waits=now))
    drop_waiting(run, now)


def drop_waiting(run: Execute, now: float) -> None:
    """Drops the labels that have waited for `DAYS` days, and the oldest ones beyond `MAX_WAITING_LABELS`."""
    before = now - DAYS * 86400
    [(count, oldest)] = run(sa.select(sa.func.count(), sa.func.min(labels.c.waits)).where(_WAITS))
    if count <= MAX_WAITING_LABELS and (oldest is None or oldest >= before):
        return
    answered = sa.exists().where(scores.c.request_id == labels.c.request_id)
    run(sa.update(labels).where(_WAITS, answered).values(waits=None))
    waiting = run(sa.select(labels.c.id, labels.c.waits).where(_WAITS).order_by(labels.c.waits, labels.c.id))
    beyond = len(waiting) - MAX_WAITING_LABELS
    gone = [{"gone": row[0]} for place, row in enumerate(waiting) if place < beyond or row[1] < before]
    if gone:
        run(sa.delete(labels).where(labels.c.id == sa.bindparam("gone")), gone)
    _count(run, len(gone))


def dropped_labels(run: Execute) -> int:
    """Returns how many labels the log has dropped so far."""
    return read_mark(run, _DROPPED) or 0


def _count(run: Execute, number: int) -> None:
    if number:
        set_mark(run, _DROPPED, number, add=True)
        logger.warning(
            "%d labels were dropped: their answers are not in the score log, where at most %d such labels wait for %g "
            "days, under ids of at most %d characters",
            number,
            MAX_WAITING_LABELS,
            DAYS,
            MAX_ID,
        )
