"""The scorers that judge answers: one for each checkpoint, chosen by the model, and replaced at a reload.

Checkpoints that judge an answer by its text alone are used for decisions, by the head that they give.
"""

import asyncio
import hashlib
import logging
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from metaprobe.api import (
    CheckpointError,
    ContractMismatch,
    InvalidResponse,
    OnVerdict,
    ParsedResponse,
    ParsedText,
    QualityPredictor,
    RecordError,
    Scored,
    StreamingGate,
    TextPredictor,
    Verdict,
    split_name,
)
from metaprobe.production.evaluation_events import evaluation_events
from metaprobe.production.http.hangup import take_hangups
from metaprobe.production.http.metrics import Metrics, Seldom, log_unexpected
from metaprobe.production.http.request_log import RequestLog, without_quotes
from metaprobe.production.http.settings import Settings, SettingsError

logger = logging.getLogger(__name__)
_seldom = Seldom(logger)

PLAIN_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,128}")
"""Names of models that the log shows as they are."""


class Allowance:
    """Counts the tokens of one request that are scored, up to a limit."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.taken = 0
        """Tokens counted so far, including those beyond the limit."""

    @property
    def exceeded(self) -> bool:
        return self.taken > self.max_tokens

    def take(self, tokens: int) -> None:
        """Counts the tokens of one more response. Raises `InvalidResponse` if the limit is exceeded."""
        self.taken += tokens
        if self.exceeded:
            raise InvalidResponse(
                f"{self.taken} tokens to score, and at most {self.max_tokens} are scored in one request"
            )


def plain_text(question: str) -> str:
    """Returns the text of a question with single spaces and without capital letters, so that texts can be compared."""
    return " ".join(question.split()).casefold()


class Scorer:
    """A predictor that counts its verdicts. An answer that it cannot score still reaches its caller."""

    def __init__(
        self,
        predictor: QualityPredictor | TextPredictor,
        metrics: Metrics,
        *,
        max_tokens: int = 1 << 20,
        role: str = "judge",
        shadow: "Scorer | None" = None,
        events: OnVerdict | None = None,
    ) -> None:
        """Sets up the scorer. Raises `ContractMismatch` for a contract that the server cannot serve.

        Args:
            predictor: the predictor.
            metrics: where verdicts are counted.
            max_tokens: most tokens that are scored in one request.
            role: name under which its verdicts are counted.
            shadow: a scorer of the same answers, for comparison only.
            events: called with every verdict.
        """
        if isinstance(predictor, QualityPredictor) and predictor.schema.uses_top:
            raise ContractMismatch(
                f"{predictor.checkpoint.path} reads the alternatives of each token ({predictor.schema.name!r}), "
                "which the server does not ask for; serve one that reads log-probabilities alone"
            )
        self._predictor = predictor
        self._role = role
        self._shadow = shadow
        self._events = events
        self._metrics = metrics
        self._max_tokens = max_tokens
        self._request: RequestLog | None = None
        self.digest = predictor.checkpoint.digest
        self.threshold: float | None = getattr(predictor, "threshold", None)
        """Score below which an answer is flagged; None if the checkpoint has no threshold."""
        self.reads_text = predictor.input_kind == "texts"
        """Whether it judges texts; otherwise it reads log-probabilities or decisions."""
        self.reads_decisions = predictor.input_kind == "decisions"
        """Whether it reads a decision model's decision about an answer."""
        contract = predictor.checkpoint.manifest.contract
        heads: tuple[str, ...] = tuple(output.name for output in predictor.checkpoint.manifest.outputs)
        scales, questions_of_head = contract.get("scales", {}), contract.get("questions", {})
        if isinstance(predictor, TextPredictor):
            heads, scales = (predictor.target,), {} if predictor.scale is None else {predictor.target: predictor.scale}
        self.heads = heads
        """Heads whose questions it answers."""
        try:
            self.scales = {name: (float(low), float(high)) for name, (low, high) in scales.items() if name in heads}
            """Lowest and highest level of each head that is no probability."""
            self.texts = {
                name: frozenset(map(plain_text, texts)) for name, texts in questions_of_head.items() if name in heads
            }
            """Maps a head to the texts of questions that the contract lists, in the form of `plain_text`."""
        except (AttributeError, TypeError, ValueError) as error:
            raise ContractMismatch(
                f"{predictor.checkpoint.path}: the contract's scales or questions cannot be read ({error}); train it "
                "again"
            ) from error

    def of(self, request: RequestLog | None) -> "Scorer":
        """Returns this scorer, with each of its verdicts logged as a verdict on this request's answer."""
        if request is None:
            return self
        logging_scorer = copy(self)
        logging_scorer._request = request
        return logging_scorer

    def verdict(
        self, response: object, allowance: Allowance | None = None, *, asked_model: str | None = None
    ) -> dict[str, Any]:
        """Returns the verdict on a response of any kind that `QualityPredictor.predict` accepts.

        If there is no verdict, `score` is null and there is a reason.

        Args:
            response: the response.
            allowance: shared by the responses of one request; without it each response has its own.
            asked_model: model that an upstream was asked for, with log-probabilities; None if no upstream was asked.
        """
        parsed: ParsedResponse | ParsedText | None = None
        granted_allowance = None
        try:
            parsed = self._predictor.parse(response)
            granted_allowance = allowance or Allowance(self._max_tokens)
            if isinstance(parsed, ParsedResponse):
                granted_allowance.take(len(parsed.logprobs))
            verdict = self._predictor.predict(parsed)  # type: ignore[arg-type]  # as parsed for it
        except (InvalidResponse, ContractMismatch) as error:
            is_dropped = asked_model is not None and isinstance(error, InvalidResponse) and error.lacks_logprobs
            verdict = self._no_verdict(self._dropped(asked_model or "") if is_dropped else str(error))
        except Exception as error:  # the answer is paid for, and must reach its caller whatever is wrong here
            log_unexpected(logger, "scoring", error)
            self._metrics.errors.labels("scoring").inc()
            verdict = self._no_verdict(f"scoring failed ({type(error).__name__}); the server's log has more")
        verdict_fields = self._count(verdict, parsed)
        if (
            self._shadow is not None
            and parsed is not None
            and granted_allowance is not None
            and not granted_allowance.exceeded
        ):
            self._shadow._score_as_shadow(verdict, parsed, self._request)
        return verdict_fields

    def _dropped(self, model: str) -> str:
        """Counts, and logs seldom, that the upstream dropped log-probabilities. Returns the reason for no score."""
        self._metrics.errors.labels("logprobs_dropped").inc()
        name = model if PLAIN_NAME.fullmatch(model) else "a model with an odd name"
        _seldom(
            f"the upstream was asked for logprobs of {name} and answered without them: its answers have no score; "
            "`metaprobe doctor` shows what the upstream sends"
        )
        return "no log-probabilities: the upstream was asked for logprobs and sent none; switch them on there"

    def none(self, reason: str) -> dict[str, Any]:
        """Returns a verdict without a score, with the reason."""
        return self._count(self._no_verdict(reason), None)

    def stopped(self, score: float | None, reason: str, gate: Mapping[str, Any], model: str = "") -> dict[str, Any]:
        """Returns the verdict on an answer that the gate ended. It is the gate's own, because the predictor needs
        finished answers.

        Args:
            score: the gate's P(good); None if it judges whether the answer will end.
            reason: why the gate ended the answer.
            gate: `action` and `tokens` of the gate; stored in the verdict under `gate`.
            model: model that the upstream names, if it does.
        """
        verdict = Verdict(score, {}, critical=None, flagged=True, checkpoint=self.digest, reason=reason)
        return {**self._count(verdict, None, {**gate, "model": model}), "gate": gate}

    def _no_verdict(self, reason: str) -> Verdict:
        return Verdict(None, {}, critical=None, flagged=None, checkpoint=self.digest, reason=reason)

    def _score_as_shadow(
        self, main_verdict: Verdict, parsed: ParsedResponse | ParsedText, request: RequestLog | None
    ) -> None:
        """Scores an answer for comparison only, and logs the verdict. Never raises, because nobody waits for it.

        Args:
            main_verdict: verdict of the judge.
            parsed: the answer.
            request: the request in the log.
        """
        try:
            verdict = self._predictor.predict(parsed)  # type: ignore[arg-type]  # the shadow reads the same
        except InvalidResponse:  # a tool call, say: there is no score to compare, and the caller's verdict says why
            return
        except ContractMismatch:
            _seldom("the checkpoint in the shadow does not judge answers of this model")
            return
        except Exception as error:
            log_unexpected(logger, "scoring in the shadow", error)
            self._metrics.errors.labels("shadow").inc()
            return
        self._metrics.verdicts.labels(self._role).inc()
        if verdict.score is not None and main_verdict.score is not None:
            self._metrics.shadow_difference.observe(abs(verdict.score - main_verdict.score))
        if request is not None:
            request.add_shadow(_verdict_fields(verdict), parsed)

    def _count(
        self, verdict: Verdict, parsed: ParsedResponse | ParsedText | None, gate: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Returns the verdict as JSON, after counting it in the metrics and adding it to the log if there is one.

        Args:
            verdict: the verdict.
            parsed: the answer; None if it could not be read.
            gate: what the gate did, if it ended the answer.
        """
        self._metrics.verdicts.labels(self._role).inc()
        if self._events is not None:
            self._events(Scored(verdict))
        if verdict.score is not None:
            self._metrics.scores.observe(verdict.score)
        elif verdict.agreement is None and gate is None:  # without labels, agreement or a gate's action is all there is
            self._metrics.abstained.inc()
        if verdict.flagged:
            self._metrics.flagged.inc()
        verdict_fields = _verdict_fields(verdict)
        if self._request is not None:
            self._request.add(verdict_fields, parsed, gate)
        return verdict_fields


def _verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """Returns the verdict in JSON's types. Its reason may quote half of a surrogate pair, which UTF-8 cannot hold."""
    return {**asdict(verdict), "reason": verdict.reason.encode("utf-8", "backslashreplace").decode()}


@dataclass(frozen=True, slots=True)
class Seat:
    """Scorers of one model's answers, or of all models without a seat of their own."""

    judge: Scorer
    trial_scorer: Scorer | None = None
    """Judges a share of the answers instead of `judge`."""

    def of(self, request_id: str, share: float) -> Scorer:
        """Returns the scorer of this request: `trial_scorer` for this share of the ids, else `judge`."""
        # A hash, not a checksum: the checksums of counting ids, such as 0 to 999, lie close together.
        draw = int.from_bytes(hashlib.blake2b(request_id.encode("utf-8", "replace"), digest_size=4).digest())
        on_trial = self.trial_scorer is not None and draw < share * (1 << 32)
        return self.trial_scorer if on_trial and self.trial_scorer is not None else self.judge


@dataclass(frozen=True, slots=True)
class Judges:
    """All checkpoints of a server. Immutable: a reload makes a new object, and open requests keep theirs."""

    seats: Mapping[str, Seat]
    """Seats by the name of the model that answers. The empty name is for all other models."""
    share: float = 0.0
    """Share of the requests that the checkpoints on trial judge."""
    texts: Mapping[str, Seat] = field(default_factory=dict)
    """Text readers by the head that they give. They score requests for decisions that have no log-probabilities."""

    def pick(self, model: str, request_id: str) -> Scorer:
        """Returns the scorer of this model's answer to this request."""
        return self.seats.get(model, self.seats[""]).of(request_id, self.share)

    @property
    def default(self) -> Scorer:
        """Scorer of models without a seat of their own."""
        return self.seats[""].judge

    @property
    def only(self) -> bool:
        """Whether all models have the same judge."""
        return len(self.seats) == 1

    def digests(self) -> dict[str, str]:
        """Returns the digest of each model's judge, by the model's name, and of each text reader, by `text:HEAD`."""
        seats = {**self.seats, **{f"text:{head}": seat for head, seat in self.texts.items()}}
        return {name: seat.judge.digest for name, seat in seats.items()}


PinnedPath = tuple[str, str | None]
"""(path of a checkpoint, its digest or None)."""
Load = Callable[[str, str | None, str | None], QualityPredictor | TextPredictor]
"""A function from (location, digest, run) to a loaded predictor."""
TEXT_PREFIX = "text:"
"""Prefix of a text reader's head, as its name among the names of models."""


def load_judges(settings: Settings, metrics: Metrics) -> Judges:
    """Returns the verified checkpoints that the settings and the pins file name.

    Raises a `CheckpointError` for a checkpoint that does not verify, and `SettingsError` if the names are ambiguous.
    """

    @cache
    def load(location: str, sha256: str | None, run: str | None) -> QualityPredictor | TextPredictor:
        if TextPredictor.reads(location):
            return TextPredictor.load(location, sha256)
        return load_judge(settings, location, sha256, run)

    pinned_paths, runs = _places(settings, load), settings.run_by_model
    shadows = _places_by_model(settings.shadows, "in the shadow", load)
    trial_checkpoints = _places_by_model(settings.canary_checkpoints, "on trial", load)
    if unknown_names := (shadows.keys() | trial_checkpoints.keys() | runs.keys()) - pinned_paths.keys():
        raise SettingsError(
            f"no checkpoint judges {min(unknown_names)!r}, so it can have no run, and none can be in its shadow or on "
            f"trial beside it; expected one of {', '.join(sorted(filter(None, pinned_paths)))}, or no name"
        )
    events = _span_events(keeps_texts=settings.log_texts) if settings.otel else None

    def scorer(pinned_path: PinnedPath, name: str, role: str) -> Scorer:
        shadow = None
        if name in shadows:
            shadow = Scorer(load(*shadows[name], runs.get(name)), metrics, role="shadow")
        max_tokens, predictor = settings.max_scored_tokens, load(*pinned_path, runs.get(name))
        return Scorer(predictor, metrics, max_tokens=max_tokens, role=role, shadow=shadow, events=events)

    seats = {}
    for name, pinned_path in pinned_paths.items():
        on_trial = name in trial_checkpoints
        trial_scorer = scorer(trial_checkpoints[name], name, "canary") if on_trial else None
        seats[name] = Seat(scorer(pinned_path, name, "judge"), trial_scorer)
    texts = {name.removeprefix(TEXT_PREFIX): seats.pop(name) for name in pinned_paths if name.startswith(TEXT_PREFIX)}
    return Judges(seats, settings.canary_share, texts)


def _span_events(*, keeps_texts: bool) -> OnVerdict:
    """Returns a function that adds each verdict to the current span.

    A reason may quote a token of the answer. So quotes are removed from it, unless the log keeps texts too.
    """
    emit = evaluation_events(on_span=True)

    def emit_unquoted(scored: Scored) -> object:
        verdict = scored.verdict
        if verdict is None or keeps_texts:
            return emit(scored)
        return emit(replace(scored, verdict=replace(verdict, reason=without_quotes(verdict.reason))))

    return emit_unquoted


def _places(settings: Settings, load: Load) -> dict[str, PinnedPath]:
    """Returns the checkpoints that judge, by the names of models and text readers. Pinned ones replace others."""
    from_settings = [
        (str(settings.checkpoint), settings.sha256),
        *((location, None) for location in settings.more_checkpoints),
    ]
    pinned_lines: list[tuple[str, str | None]] = []
    if pins := settings.pins:
        for number, line in enumerate(Path(pins).read_text("utf-8").splitlines(), 1):
            words = line.partition("#")[0].split()
            if len(words) not in (0, 2):
                message = f"line {number} of {pins} has {len(words)} words; expected [NAME=]CHECKPOINT SHA256"
                raise SettingsError(message)
            pinned_lines += [(words[0], words[1])] if words else []
        if not pinned_lines:
            raise SettingsError(f"{pins} names no checkpoint; expected lines of [NAME=]CHECKPOINT SHA256")
    pinned_paths: dict[str, PinnedPath] = {}
    for named_checkpoints in (pinned_lines, from_settings):
        names_pinned = set(pinned_paths)
        for number, (checkpoint, sha256) in enumerate(named_checkpoints):
            names, location = _names(
                checkpoint, sha256, load, by_manifest=named_checkpoints is from_settings and number > 0
            )
            for name in names:
                if name in pinned_paths and name not in names_pinned:
                    raise SettingsError(
                        f"{checkpoint} is of a model that has a checkpoint ({name or 'all models'}): name each model"
                        " once, as NAME=CHECKPOINT, so that it is clear whose answers it judges"
                    )
                pinned_paths.setdefault(name, (location, sha256))
    models = [pinned_path for name, pinned_path in pinned_paths.items() if not name.startswith(TEXT_PREFIX)]
    pinned_paths.setdefault(
        "", models[0] if models else (QualityPredictor.bundled, None)
    )  # the first one judges all others too
    return pinned_paths


def _places_by_model(named_checkpoints: Sequence[str], use: str, load: Load) -> dict[str, PinnedPath]:
    """Maps the name of a model to the location of its checkpoint in the shadow or on trial. The empty name is for all
    others.

    Args:
        named_checkpoints: texts [NAME=]CHECKPOINT.
        use: use of the checkpoints for error messages: "in the shadow" or "on trial".
        load: loads a checkpoint.
    """
    pinned_paths: dict[str, PinnedPath] = {}
    for named_checkpoint in named_checkpoints:
        (name,), location = _names(named_checkpoint, None, load)
        if name in pinned_paths:
            raise SettingsError(
                f"two checkpoints are to be {use} of {name or 'all other models'!r}; give each model one"
            )
        pinned_paths[name] = location, None
    return pinned_paths


def _names(
    named_checkpoint: str, sha256: str | None, load: Load, *, by_manifest: bool = False
) -> tuple[Sequence[str], str]:
    """Returns the names of the models that a checkpoint judges, and its location. The empty name is for all models.

    Args:
        named_checkpoint: text [NAME=]CHECKPOINT.
        sha256: digest that the checkpoint must have; None for any.
        load: loads a checkpoint.
        by_manifest: whether a checkpoint without a name judges the models on which it was trained.
    """
    name, location = split_name(named_checkpoint)
    if TextPredictor.reads(location):
        if name:
            raise SettingsError(f"{named_checkpoint}: a text reader judges every model's texts; leave {name}= out")
        reader = load(location, sha256, None)
        assert isinstance(reader, TextPredictor)
        return [TEXT_PREFIX + reader.target], location
    if name or not by_manifest:
        return [name], location
    generator = load(location, sha256, None).checkpoint.manifest.generator
    if generator is None or not generator.models:
        raise SettingsError(
            f"{location} does not say of which model it is; expected NAME=CHECKPOINT, so that it is clear whose answers"
            " it judges"
        )
    return generator.models, location


def on_mismatch_of(settings: Settings) -> Literal["note", "refuse", "ignore"]:
    """Returns the setting `on_mismatch` for predictors and gates, with `note` in place of `warn`.

    The note stands in the verdict. Python's warnings would put callers' texts into the log, and Python keeps every
    distinct warning.
    """
    return "note" if settings.on_mismatch == "warn" else settings.on_mismatch


def load_gates(settings: Settings) -> StreamingGate | None:
    """Returns the gate that the settings name; None if they name none."""
    if settings.gate is None:
        return None
    return StreamingGate.load(
        settings.gate,
        stop=settings.gate_stop,
        escalate=settings.gate_escalate,
        sha256=settings.gate_sha256,
        on_mismatch=on_mismatch_of(settings),
    )


def load_judge(settings: Settings, location: Path | str, sha256: str | None, run: str | None) -> QualityPredictor:
    """Returns the predictor of one checkpoint, with the settings' operating point.

    Args:
        settings: the settings.
        location: location of the checkpoint.
        sha256: digest that it must have; None for any.
        run: run of the answers; None if it is not known.
    """
    on_mismatch, flags = on_mismatch_of(settings), settings.flags
    return QualityPredictor.load(location, sha256=sha256, run=run, on_mismatch=on_mismatch, **flags)


PINS_CHECK_S = 2.0
"""Seconds between two checks of the pins file."""


class JudgesHolder:
    """Holds the judges, and replaces all of them at once at a reload.

    If one of the new ones does not load, the old ones stay, and the failure is reported.
    """

    def __init__(self, load: Callable[[], Judges], pins: Path | None, metrics: Metrics) -> None:
        """Loads the judges.

        Args:
            load: returns the judges; called again for every reload.
            pins: the pins file; None if there is none.
            metrics: where reloads are counted.
        """
        self.current = load()
        self._load = load
        self._pins = pins
        self._metrics = metrics
        self._pins_seen = self._read_pins()
        self._reload_requested = asyncio.Event()
        self.refused = False
        """Whether the last reload failed, so that older checkpoints judge than intended."""

    def log_start(self, upstreams: Sequence[str]) -> None:
        """Logs which checkpoint judges the answers of each model, below which score it flags, and who answers.

        `upstreams`: addresses of the upstreams; none for a server that only scores.
        """
        for name, seat in self.current.seats.items():
            threshold = seat.judge.threshold
            flags = "nothing: it has no threshold" if threshold is None else f"answers below {threshold:.2f}"
            logger.info("%s is judged by %s, which flags %s", name or "every model", seat.judge.digest[:16], flags)
        if upstreams:
            logger.info("answers come from %s", ", ".join(upstreams))

    async def reload(self) -> bool:
        """Reloads the judges. Returns whether they are now those that the settings and the pins file name."""
        try:
            judges = await asyncio.to_thread(self._load)
        except (CheckpointError, RecordError, OSError, UnicodeDecodeError) as error:
            logger.error("the checkpoints stay as they were: %s", error)
            self.refused = True
        except Exception as error:
            log_unexpected(logger, "loading checkpoints", error)
            self.refused = True
        else:
            judges_before, self.current = self.current, judges
            self.refused = False
            for name, digest in judges.digests().items():
                since_when = "as before" if judges_before.digests().get(name) == digest else "from now on"
                logger.info("%s is judged by %s, %s", name or "every other model", digest[:16], since_when)
        self._metrics.reloads.labels("refused" if self.refused else "taken").inc()
        return not self.refused

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Reloads at SIGHUP (in a process of its own, on systems with this signal) and when the pins file
        has changed.
        """
        loop = asyncio.get_running_loop()
        handles_hangup = hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread()
        if handles_hangup:
            loop.add_signal_handler(signal.SIGHUP, self._reload_requested.set)
            take_hangups()
        watch_task = asyncio.ensure_future(self._watch())
        try:
            yield
        finally:
            if handles_hangup:
                loop.remove_signal_handler(signal.SIGHUP)
            watch_task.cancel()
            with suppress(asyncio.CancelledError):
                await watch_task

    async def _watch(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._pins is None else PINS_CHECK_S):
                    await self._reload_requested.wait()
            pinned = self._read_pins()
            if self._reload_requested.is_set() or pinned != self._pins_seen:
                self._reload_requested.clear()
                self._pins_seen = pinned
                await self.reload()

    def _read_pins(self) -> bytes | None:
        """Returns the content of the pins file; None if there is none, or it cannot be read now."""
        if self._pins is None:
            return None
        try:
            return self._pins.read_bytes()
        except OSError:
            return None
