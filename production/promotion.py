"""Promotes a new version only if it is better than the running one, on answers from which neither has learned.

`training/versions.py` decides whether it is better. `promote_scored` judges predictors on the labelled answers of a
score log. The log holds the scores of the running version. The new version's scores follow from them if it is the
running one recalibrated. Otherwise they come from verdicts that were only compared (a shadow), or from the answers'
log-probabilities, if the log stores them. An answer that was drawn for a label with propensity p has the weight 1 / p.
If some answers were drawn, labels of others count only once (nearly) all answers that are new to the new version are
labelled, because people who choose answers may have a reason. `Promotion.left_out` counts the labels that do not count,
and a refusal names them.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.api import (
    Call,
    ContractMismatch,
    InvalidResponse,
    LabelledScores,
    OneWriter,
    Promotion,
    QualityPredictor,
    RecordError,
    atomic_write,
    plain,
    score_again,
    split_name,
)
from metaprobe.production.monitoring.label_draw import RETRAINED
from metaprobe.production.monitoring.log import ScoreLog, labelled_of_log

PROMOTED, ROLLED_BACK = "promoted", "rolled back"
"""Kinds of events."""


def promote_scored(
    new: QualityPredictor,
    running: QualityPredictor,
    log: ScoreLog,
    *,
    not_worse: bool = False,
    sharper: bool | None = None,
    margin: float = Promotion.accepted_loss,
    seed: int = 0,
) -> Promotion:
    """Decides by labelled answers of the log whether the new version may replace the running one, by the rules of
    `promote` for run stores.

    Raises `RecordError` if the log holds no answers on which both can be judged.

    Args:
        new: the new version.
        running: the running version.
        log: the score log.
        not_worse: whether to promote also a version that is not worse by more than the margin.
        sharper: whether to judge by probabilities, whose gain must surely be above 0, while the order may not be worse
            by more than the margin. None means: if the new version was recalibrated from the running one, so that its
            order is the same.
        margin: margin of AUROC and Brier score.
        seed: seed of the intervals.
    """
    if margin < 0:
        raise ValueError(f"margin is {margin:g}; expected at least 0")
    paired = pair_scores(new, running, log)
    labelled, scores, left_out = paired.labelled, paired.scores, dict(paired.left_out)
    is_drawn = np.isfinite(labelled.propensity)
    if is_drawn.any() and not is_drawn.all():
        left_out[NOT_DRAWN] = int((~is_drawn).sum())
        labelled, scores = labelled.rows(is_drawn), scores[is_drawn]
    if sharper is None:
        sharper = new.checkpoint.manifest.contract.get("adapted_from") == running.checkpoint.digest
    auroc_above = 0.0 if not (not_worse or sharper) else -margin
    brier_above = 0.0 if sharper and not not_worse else -margin
    promotion = Promotion.on_answers(
        new,
        running,
        labelled.y,
        scores,
        labelled.score,
        labelled.group,
        auroc_above=auroc_above,
        brier_above=brier_above,
        seed=seed,
        propensity=labelled.propensity if is_drawn.any() else None,
    )
    reasons = promotion.reasons
    if reasons and left_out:
        reasons = (*reasons, f"{_say_left_out(left_out)}; {len(labelled)} labelled answers decided")
    models = tuple(sorted(set(map(str, labelled.model.tolist()))))
    return replace(promotion, reasons=reasons, left_out=left_out, models=models)


def promote_in_log(
    new: QualityPredictor,
    running: QualityPredictor,
    log: ScoreLog,
    *,
    pins: Path | None = None,
    location: str = "",
    **options: Any,
) -> Promotion:
    """Decides as `promote_scored`. After a promotion it writes an event into the log, which `roll_back` reads.

    Both changes happen, or neither. Raises `RecordError` if the file pins no such version, and `LogError` if the log
    cannot be written; the file is then unchanged.

    Args:
        new: the new version.
        running: the running version.
        log: the score log.
        pins: a file of `serve --pins` in which the new version replaces the running one. If it pins the running one
            under several names, only the pins of models whose answers decided are exchanged.
        location: location of the new version in the file; by default its folder.
        **options: other options of `promote_scored`.
    """
    promotion = promote_scored(new, running, log, **options)
    if promotion.promoted:
        versions = {"from": running.checkpoint.digest, "to": new.checkpoint.digest}
        paths = {"from_path": str(running.checkpoint.path), "to_path": str(new.checkpoint.path)}
        gains = {"auroc_gain": promotion.auroc_gain.estimate, "brier_gain": promotion.brier_gain.estimate}
        details = {**versions, **paths, **plain(gains)}
        names = None if pins is None else names_to_swap(pins, versions["from"], promotion.models)
        details |= {} if names is None else {"names": list(names)}
        _exchange(
            log,
            PROMOTED,
            details,
            pins,
            digest_before=versions["from"],
            location=location or paths["to_path"],
            digest=versions["to"],
            names=names,
        )
    return promotion


LEARNED_REASON = "the new version has learned, or may have, from them or from later answers"
UNSCORED = "the new version has not scored them (serve it as shadow, or keep log-probabilities: `serve --log-logprobs`)"
NOT_DRAWN = (
    "their answers were not drawn for labels, and who chose them may have had a reason (draw answers with `metaprobe "
    "sample`, or label all since then)"
)
"""Reasons why labelled answers do not decide."""


def _say_left_out(left_out: Mapping[str, int]) -> str:
    """Returns a clause that counts the labelled answers left out, by reason."""
    return "labels left out: " + "; ".join(f"{count} because {reason}" for reason, count in left_out.items())


@dataclass(frozen=True, slots=True, eq=False)
class PairedScores:
    """Labelled answers with the scores of two versions."""

    labelled: LabelledScores
    """n answers, with the running version's scores."""
    scores: NDArray[np.float64]
    """Scores (n,) of the new version for the same answers."""
    left_out: Mapping[str, int]
    """Maps a reason to the number of labelled answers of the running version that were left out for it."""


def pair_scores(new: QualityPredictor, running: QualityPredictor, log: ScoreLog) -> PairedScores:
    """Returns the labelled answers that the running version scored, with its scores and those of the new version.

    Answers from which the new version has learned, or may have, are left out: all until the last of them. Raises
    `RecordError` if none is left.

    Args:
        new: the new version.
        running: the running version.
        log: the score log.
    """
    labelled = labelled_of_log(log, checkpoint=running.checkpoint.digest)
    learned_until = new.checkpoint.learned_until  # for a version that `retrain` made, the log's event says the time
    for event in log.events(RETRAINED):
        if event.details["to"] == new.checkpoint.digest:
            learned_until = max(learned_until, float(event.details["until"]))
    unseen = labelled.rows(labelled.time > learned_until)
    if len(unseen) < len(labelled) and len(unseen):  # a census of these answers alone makes all their labels count
        unseen = labelled_of_log(
            log, checkpoint=running.checkpoint.digest, since=float(np.nextafter(learned_until, np.inf))
        )
    scores = _scores_of(new, running, log, unseen)
    has_score = np.isfinite(scores)
    counts = {LEARNED_REASON: len(labelled) - len(unseen), UNSCORED: int((~has_score).sum())}
    left_out = {reason: count for reason, count in counts.items() if count}
    if not has_score.any():
        raise RecordError(
            f"none of the {len(labelled)} labelled answers of the log can decide; {_say_left_out(left_out)}: label "
            "what comes"
        )
    return PairedScores(unseen.rows(has_score), scores[has_score], left_out)


def _scores_of(
    new: QualityPredictor, running: QualityPredictor, log: ScoreLog, labelled: LabelledScores
) -> NDArray[np.float64]:
    """Returns the new version's scores (n,); NaN for an unknown score.

    Args:
        new: the new version.
        running: the running version.
        log: the score log.
        labelled: the labelled answers.
    """
    with suppress(ContractMismatch):  # raised if the new version was not recalibrated from the running one
        return score_again(new.checkpoint, running.checkpoint, labelled)
    shadows = log.shadow_scores(new.checkpoint.digest)
    scores = np.array([shadows.get(name, np.nan) for name in labelled.group.tolist()], dtype=np.float64)
    unscored_rows = np.flatnonzero(~np.isfinite(scores))
    names = labelled.group[unscored_rows].tolist()
    for index, name, entry in zip(unscored_rows.tolist(), names, log.entries_named(names), strict=True):
        if entry is None or entry.logprobs is None:
            continue
        model = str(labelled.model[index])
        call = Call(id=name, stage="answer", model=model, logprobs=np.asarray(entry.logprobs, dtype=np.float32))
        with suppress(InvalidResponse):
            score = new.predict(call).score
            scores[index] = np.nan if score is None else score
    return scores


def roll_back(log: ScoreLog, *, pins: Path | None = None) -> dict[str, str]:
    """Returns the version that ran before the last promotion that was not rolled back, as `{"digest", "path", "was"}`.

    `was` is the digest that was promoted. The rollback is written into the log, and `pins` changes with it, as in
    `promote_in_log`. Raises `RecordError` if there is no such promotion.
    """
    rolled_back_times = {str(event.details.get("promotion")) for event in log.events(ROLLED_BACK)}
    for event in reversed(log.events(PROMOTED)):
        if str(event.time) not in rolled_back_times:
            details = event.details
            restored = {
                name: str(details[key]) for name, key in (("digest", "from"), ("path", "from_path"), ("was", "to"))
            }
            names = details.get("names")
            details = {**restored, "promotion": str(event.time)}
            _exchange(
                log,
                ROLLED_BACK,
                details,
                pins,
                digest_before=restored["was"],
                location=restored["path"],
                digest=restored["digest"],
                names=names if isinstance(names, list) else None,
            )
            return restored
    raise RecordError("the log holds no promotion that could be taken back")


def _exchange(
    log: ScoreLog,
    kind: str,
    details: dict[str, Any],
    pins: Path | None,
    *,
    digest_before: str,
    location: str,
    digest: str,
    names: Sequence[str] | None,
) -> None:
    """Writes the event and changes the pin, or neither.

    Args:
        log: the score log.
        kind: kind of the event.
        details: its details.
        pins: the pins file; None for none.
        digest_before: digest that is pinned now.
        location: location of the checkpoint to pin.
        digest: digest of the checkpoint to pin.
        names: names whose pins are exchanged; None for all.
    """
    if pins is None:
        return log.event(kind, details)
    pins = pins.resolve()  # a link stays a link: the file that it leads to is changed
    with put_back(pins), log.event_of(kind, details):
        swap_pin(pins, digest_before, location, digest, names)
    return None


# The file of `serve --pins`


def names_to_swap(pins: Path, digest_before: str, models: Sequence[str]) -> tuple[str, ...] | None:
    """Returns the names under which `digest_before` is pinned and may be exchanged; None if it has only one name.

    With several names, these are the names of `models`, whose labelled answers decided. The empty name, for all models
    without a pin of their own, is included if there is such a model. Raises `RecordError` if no name is left.

    Args:
        pins: the pins file.
        digest_before: the digest.
        models: models whose answers decided.
    """
    lines = [line.partition("#")[0].split() for line in _read_pins(pins).splitlines()]
    pinned = [(split_name(words[0])[0], words[1].lower()) for words in lines if len(words) == 2]
    names = tuple(dict.fromkeys(name for name, digest in pinned if digest == digest_before))
    if len(names) < 2:
        return None
    all_names = {name for name, _ in pinned}
    names_to_exchange = tuple(name for name in names if (name in models if name else not set(models) <= all_names))
    if not names_to_exchange:
        raise RecordError(
            f"{pins} pins {digest_before[:16]} for {', '.join(name or 'all others' for name in names)}, and the"
            f" labelled answers are of {', '.join(models) or 'no named model'}: label answers of a model that is pinned"
        )
    return names_to_exchange


def swap_pin(pins: Path, digest_before: str, location: str, digest: str, names: Sequence[str] | None = None) -> None:
    """Replaces the digest `digest_before` in the file by the checkpoint at `location`, with its digest.

    Lines are read as the server reads them, and comments stay. The file is renamed into place, so that a server sees
    the old file or the new one. A file that already pins `digest`, and not `digest_before`, stays unchanged: so a
    promotion that was killed before the log had it can be repeated. Raises `RecordError` if no line pins either digest,
    and for a location that no line can name.

    Args:
        pins: the pins file.
        digest_before: the digest to replace.
        location: location of the new checkpoint.
        digest: its digest.
        names: names whose pins are exchanged; None for all.
    """
    if "#" in location or location.split() != [location]:
        raise RecordError(
            f"{location!r} cannot stand in {pins}; expected a checkpoint with neither white space nor # in its path"
        )
    lines = _read_pins(pins).splitlines()
    changed = []
    for line in lines:
        pinned, hash_sign, comment_text = line.partition("#")
        words = pinned.split()
        if len(words) != 2 or words[1].lower() != digest_before:
            changed.append(line)
            continue
        name, _ = split_name(words[0])
        if names is not None and name not in names:
            changed.append(line)
            continue
        comment = f"{pinned[len(pinned.rstrip()) :]}{hash_sign}{comment_text}".rstrip()
        changed.append(f"{name}={location} {digest}{comment}" if name else f"{location} {digest}{comment}")
    if changed == lines:
        if digest in {word.lower() for line in lines for word in line.partition("#")[0].split()[1:]}:
            return
        raise RecordError(
            f"{pins} pins no checkpoint of digest {digest_before[:16]}; expected a line `[NAME=]CHECKPOINT"
            f" {digest_before[:16]}...`, as `metaprobe serve --pins` reads it"
        )
    _write_pins(pins, "\n".join(changed) + "\n")


@contextmanager
def put_back(pins: Path) -> Iterator[None]:
    """Restores the file if the block fails.

    Raises `StoreHeld` if another promotion changes the file: one of the changes would be lost.
    """
    with OneWriter(pins.parent, of=pins.name):
        text_before = _read_pins(pins)
        try:
            yield
        except BaseException:
            if _read_pins(pins) != text_before:
                _write_pins(pins, text_before)
            raise


def _read_pins(pins: Path) -> str:
    try:
        return pins.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"{pins} is no text in UTF-8 ({error}); expected the file of `serve --pins`") from error


def _write_pins(pins: Path, text: str) -> None:
    with atomic_write(pins) as file:
        shutil.copymode(pins, file.name)  # keeps the file's permissions
        file.write(text.encode())
