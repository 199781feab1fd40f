"""The quality predictor: from the log-probabilities of a response to a calibrated verdict, without torch."""

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.checkpoints.files import BUNDLED
from metaprobe.checkpoints.flagging import AGREEMENT, FLAG, FlagKeywords, FlagOptions, threshold_of
from metaprobe.probes.deferred import module_to
from metaprobe.probes.features import DECIDED, features, features_one, schema_of
from metaprobe.probes.training_runs import BaseRates, OnMismatch, check_choice, mismatch
from metaprobe.probes.verdict import Verdict
from metaprobe.records.errors import InvalidResponse, NoLogprobs
from metaprobe.records.openai_format import CALLED
from metaprobe.records.parse import parse_response
from metaprobe.records.reading import LENGTH, REFUSAL, TOOL_CALL, doubt
from metaprobe.records.response import ParsedResponse, ParsedText, cut_to_answer, describe_doubts, float_list
from metaprobe.records.types import FloatArray

if TYPE_CHECKING:
    from metaprobe.probes.signals import Signals

QUALITY_KIND = "quality"
FEATURES_INPUT = "features"
MAIN_HEADS = ("correct", "quality")
"""Heads that can give the score: P(right), or else Q from 0 to 9. The first head that the checkpoint has is used."""
FLAGGED_HEADS = (*MAIN_HEADS, AGREEMENT)
"""Heads that the threshold `flag` can be about. The first head that the checkpoint has is used, so agreement only if no
other head gives a score.
"""
BUNDLED_QUALITY = f"{BUNDLED}quality"
CUT_AGREEMENT_NOTE = "agreement is 0: a cut answer has no end that another could share"
"""Reason in a verdict with the head `agreement`, if the token limit cut the answer."""
MAX_WEAK_TOKENS = 2
"""Longest answer, in tokens, for which the verdict warns that the score rests on few log-probabilities."""

MIN_BATCH = 8
"""Fewest responses that are scored faster as one batch than one after the other."""
_PROBABILITY_SCALE = (0.0, 1.0)
"""Scale of a head whose scale the contract does not state."""
_SCALE_TOLERANCE = 1e-4
"""How far rounding may move a head's value beyond its scale: as far as golden rows may differ."""
ENDED_ONLY = "ended_only"
"""Key of a contract: names of the heads that were trained only on answers that ended by themselves.

A cut answer gets no value of such a head.
"""
CUT_UNSCORED_NOTE = "not scored: the token limit cut the answer, and P(right) was learned of answers that ended"
"""Reason in a verdict without a score, if the token limit cut the answer."""


class AnswerInputs(NamedTuple):
    """The parts of one answer that are scored. The text is left out, because many answers may be held at once."""

    logprobs: FloatArray
    """Log-probability of each token of the answer (T,)."""
    top: FloatArray | None
    """Log-probabilities of the likeliest tokens (T, k); None if there are none."""
    model: str | None
    """Model that answered; None if this is not known."""
    note: str
    """Text that the verdict must give as a reason."""
    inputs: Mapping[str, NDArray[np.float32]] = {}
    """Further inputs of the graph, by name, (1, d); the features are computed later."""
    cut: bool = False
    """Whether the response says that its token limit cut the answer."""


class QualityPredictor(Pretrained):
    """Scores responses by their log-probabilities. Several threads may share one predictor.

    An example:

        >>> predictor = QualityPredictor.load()  # the one that comes with the package
        >>> good, bad = predictor.predict_many([[-0.01, -0.02, -0.1], [-2.5, -3.1, -1.9]])
        >>> good.score > bad.score, good.flagged  # nothing is flagged before `adapt` has seen labels of your model
        (True, None)
    """

    kind: ClassVar[str] = QUALITY_KIND
    input_kind: ClassVar[Literal["logprobs", "decisions"]] = "logprobs"
    """Part of a response that is read: its log-probabilities, or a decision model's decision about it."""
    bundled: ClassVar[str] = BUNDLED_QUALITY
    """Location of the checkpoint that comes with the package."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        run: str | None = None,
        on_mismatch: OnMismatch = "warn",
        **flag: Unpack[FlagKeywords],
    ) -> None:
        """Sets up the predictor of a loaded checkpoint.

        Args:
            checkpoint: the checkpoint.
            run: name of the run that the responses belong to, if the checkpoint stores several `runs`.
            on_mismatch: what to do with a response of another model or log-probability mode than in training.
            **flag: at most one of `flag_rate`, `flag_below`, `catch` and `risk`, which says which answers are flagged
                (`checkpoints.FlagOptions`); by default those below the stored threshold `flag`.

        Raises `ContractMismatch` for two of the options, for an option that this checkpoint cannot follow, and for an
        unknown run.
        """
        check_kind(checkpoint.path, checkpoint.manifest.kind, self.kind)
        self.checkpoint = checkpoint
        # Read the features and the models.
        contract = checkpoint.manifest.contract
        self.schema = schema_of(checkpoint)
        self._on_mismatch = check_choice(on_mismatch)
        # A checkpoint on decisions names its judges.
        names_models = checkpoint.manifest.generator is not None or self.schema.name == DECIDED
        if on_mismatch == "refuse" and not names_models:
            raise ContractMismatch(
                f"{checkpoint.path} was trained on answers of a model that is not named, and so cannot tell another "
                f"model's: train on runs that name theirs, or take on_mismatch 'warn'"
            )
        # Read the scales and the base rates.
        try:
            self._scales = {name: (float(low), float(high)) for name, (low, high) in contract.get("scales", {}).items()}
            if empty_scales := [name for name, (low, high) in self._scales.items() if not low < high]:
                raise ValueError(f"the scale of {empty_scales[0]!r} is empty")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ContractMismatch(f"{checkpoint.path} is no whole predictor ({error!r}); train it again") from error
        names = [output.name for output in checkpoint.manifest.outputs]
        self._base_rates = BaseRates.from_contract(contract, [name for name in names if name not in self._scales])
        self._run_shifts: Mapping[str, float] | None = None
        if run is not None:
            if self._base_rates is None:
                raise ContractMismatch(
                    f"run {run!r} was named; {checkpoint.path} was made of one run, and scores every answer as of "
                    "that: leave the name out"
                )
            self._run_shifts = self._base_rates.named(run)
        # Choose the heads for the score and the flag, with their thresholds.
        self._score_head = next((name for name in MAIN_HEADS if name in names), None)
        self._ended_only = frozenset(checkpoint.manifest.contract.get(ENDED_ONLY, ()))
        self._flag_options = FlagOptions(**flag)
        self._threshold = threshold_of(checkpoint.manifest, self._flag_options)
        self._flagged_head = next((name for name in FLAGGED_HEADS if name in names), None)
        if self._flag_options.flags and self._flagged_head is None:
            raise ContractMismatch(
                f"{next(iter(self._flag_options.flags))}: {checkpoint.path} gives no score (heads: "
                f"{', '.join(names)}), so that no threshold can lie on it: leave the option out"
            )
        chance_of_head = checkpoint.manifest.chance
        self._chance = chance_of_head.get(self._score_head or "") or chance_of_head.get("", "")
        self._critical_threshold = (
            checkpoint.manifest.thresholds.get("critical") if Verdict.critical_head in names else None
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        sha256: str | None = None,
        run: str | None = None,
        on_mismatch: OnMismatch = "warn",
        **flag: Unpack[FlagKeywords],
    ) -> "QualityPredictor":
        """Returns the predictor in a checkpoint folder, verified; without a path, the one that comes with the package.

        Args:
            path: a folder, `bundled:NAME` or `hub:OWNER/NAME@REVISION`.
            sha256: the digest that the checkpoint's author gave you.
            run: name of the run that the responses belong to, one of the predictor's `runs`.
            on_mismatch: what to do with a response of another model or log-probability mode than in training.
            **flag: at most one of `flag_rate` (flag about this share of the answers), `flag_below` (flag answers below
                this score), `catch` (flag on average at least this share of the wrong answers) and `risk` (flag so many
                that at most this share of the others is wrong, with 95 % confidence); by default the stored threshold
                decides.
        """
        checkpoint = load_checkpoint(BUNDLED_QUALITY if path is None else path, sha256=sha256)
        return cls.of(checkpoint, run=run, on_mismatch=on_mismatch, **flag)

    @staticmethod
    def level_output(head: str, level: int) -> str:
        """Returns the name of the output for the probability that a head with levels is at least at this level."""
        return f"{head}>={level}"

    @classmethod
    def of(cls, checkpoint: Checkpoint, **options: Any) -> "QualityPredictor":
        """Returns the predictor in a loaded checkpoint, with the options of `load`: a `BlendPredictor` of a blend, a
        `DecisionPredictor` of a checkpoint that reads decisions."""
        kind = checkpoint.manifest.kind
        if cls is QualityPredictor and checkpoint.manifest.contract.get("schema") == DECIDED:
            decision_predictor: QualityPredictor = module_to("read decisions").DecisionPredictor(checkpoint, **options)
            return decision_predictor
        if cls is QualityPredictor and kind != QUALITY_KIND:
            blend = module_to("read a blend")  # it is built on this module
            check_kind(checkpoint.path, kind, QUALITY_KIND, blend.BLEND_KIND)
            predictor: QualityPredictor = blend.BlendPredictor(checkpoint, **options)
            return predictor
        return cls(checkpoint, **options)

    def of_run(self, run: str) -> "QualityPredictor":
        """Returns the predictor for answers of this run, MODEL|TASK|VARIANT.

        If the checkpoint knows no base rate of the run, that of its model and task is taken, or that of its model
        alone. If it knows none of these, the run counts as unknown, even if another task of the model is known.
        """
        run_predictor = copy.copy(self)
        if self._base_rates is not None:
            run_predictor._run_shifts = self._base_rates.of_run(run)
            run_predictor._base_rates = (
                self._base_rates if run_predictor._run_shifts is not None else replace(self._base_rates, runs={})
            )
        return run_predictor

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of the runs whose base rates the checkpoint knows, MODEL|TASK|VARIANT; empty after training on one."""
        return () if self._base_rates is None else tuple(self._base_rates.runs)

    @property
    def score_head(self) -> str | None:
        """The head that gives the score; None if no head does, as after training without labels."""
        return self._score_head

    @property
    def threshold(self) -> float | None:
        """The score below which an answer is flagged, or the agreement if the checkpoint gives no score. None if the
        checkpoint has no threshold.

        A head `critical` also flags, by its own threshold.
        """
        return self._threshold

    def parse(self, response: object) -> ParsedResponse | ParsedText:
        """Returns an answer in the form that is scored. `predict` takes this form too. Raises `InvalidResponse`."""
        return parse_response(response, top=self.schema.uses_top)

    def predict(self, response: object) -> Verdict:
        """Returns the verdict on a response, in any format of `parse_response`: a list of log-probabilities is one.

        JSON text or bytes, such as the body of an HTTP response, are read much faster where msgspec is installed (it is
        in the extra `serve`).

        Raises `InvalidResponse` for a response that cannot be scored, such as a refusal or a tool call, and
        `ContractMismatch` for one of another model where `on_mismatch="refuse"`. The first of several answers in one
        response is scored. The verdict's reason says so; it also names an answer or stream that was cut, and an answer
        of one or two tokens.
        """
        with np.errstate(all="ignore"):  # a host application may have NumPy raise for what is rounded to 0 here
            return self._verdict_on_one(self._read_response(response))

    def adapt(
        self,
        responses: Sequence[object],
        labels: Sequence[float],
        *,
        out: str | os.PathLike[str],
        groups: Sequence[object] | None = None,
        replace: bool = False,
        strict: bool = False,
        seed: int = 0,
        **flag: Unpack[FlagKeywords],
    ) -> "QualityPredictor":
        """Returns the predictor with the base rate and the scale of these labelled responses, and saves it to `out`.

        A response that cannot be read is left out with its label; a warning counts these by reason and names the first
        of each. Needs the extra `fit`.

        Args:
            responses: n responses in any form that `predict` takes, also as lines of a file: `{"question", "answer",
                "logprobs", "tokens"}` or `{"response": ...}`.
            labels: (n,), 0 or 1 of the head that gives the score; after training without labels, of `correct`.
            out: the folder for the checkpoint.
            groups: (n,), what belongs together, such as answers to one question; by default every response is a group
                of its own.
            replace: whether the checkpoint that `out` holds is replaced.
            strict: whether the first response that cannot be read raises `InvalidResponse`.
            seed: the seed of folds and resamples.
            flag: at most one of `flag_rate`, `flag_below`, `catch` and `risk` sets the stored threshold, as in `load`;
                by default as many answers are flagged as are expected to be wrong.

        Raises `RecordError` for fewer than 20 labels, fewer than 3 of either kind, and where more than half of the
        responses cannot be read.
        """
        first = self.checkpoint.manifest.outputs[0].name
        target = self._score_head or (
            MAIN_HEADS[0] if first == AGREEMENT else first
        )  # labels make P(right) of agreement
        flags = FlagOptions(**flag)
        options = {"out": out, "flags": flags, "replace": replace, "strict": strict, "seed": seed}
        adapted = module_to("adapt a predictor").adapt_responses(self, responses, labels, groups, target, **options)
        return type(self)(adapted, on_mismatch=self._on_mismatch)

    def signals(self, answer: object) -> "Signals":
        """Returns the `metaprobe.probes.signals.Signals` of a response, or of a verdict, by which a policy decides.

        `confidence` and `quality` are the score, `critical` the probability of a critical failure, each with the
        checkpoint's thresholds, or with the threshold that an option set at loading; None if the predictor does not
        give the number. A response also gives the signals of its log-probabilities. Raises `InvalidResponse` as
        `predict` does, and `ContractMismatch` for a verdict of another checkpoint.
        """
        from metaprobe.probes.signals import Signal, Signals, measure_signals  # not needed for a verdict alone

        if isinstance(answer, Verdict):
            verdict, measured_signals = answer, {}
            if verdict.checkpoint != self.checkpoint.digest:
                raise ContractMismatch(
                    f"the verdict is of checkpoint {verdict.checkpoint[:16]}, and this predictor is "
                    f"{self.checkpoint.digest[:16]}: give the predictor that made the verdict"
                )
        else:
            with np.errstate(all="ignore"):  # as in `predict`
                answer_inputs = self._read_response(answer)
                verdict = self._verdict_on_one(answer_inputs)
                measured_signals = measure_signals(answer_inputs.logprobs)
        numbers = {"confidence": verdict.score, "quality": verdict.score, Verdict.critical_head: verdict.critical}
        thresholds = dict(self.checkpoint.manifest.thresholds)
        if (
            self._flag_options.flags and self._threshold is not None
        ):  # a threshold that the caller chose replaces `accept`
            thresholds = {name: value for name, value in thresholds.items() if name != "accept"} | {
                FLAG: self._threshold
            }
        verdict_signals = {
            name: Signal(value, verdict.checkpoint, thresholds) for name, value in numbers.items() if value is not None
        }
        return Signals(**verdict_signals, **measured_signals)

    def predict_many(self, responses: Iterable[object]) -> list[Verdict]:
        """Returns one verdict for each response, in order. An error names the response, counted from 0."""
        with np.errstate(all="ignore"):  # as in `predict`
            answers = []
            for index, response in enumerate(responses):
                try:
                    answers.append(self._read_response(response))
                except InvalidResponse as error:
                    raise InvalidResponse(f"response {index}: {error}") from error
            if len(answers) < MIN_BATCH:
                return [self._verdict_on_one(answer) for answer in answers]
            outputs = self._run_heads(self._inputs_of(answers))
            return [
                self._make_verdict({name: values[i] for name, values in outputs.items()}, answer)
                for i, answer in enumerate(answers)
            ]

    def _read_response(self, response: object) -> AnswerInputs:
        plain_logprobs = float_list(response) if type(response) is list else None
        if plain_logprobs is not None:  # says nothing of its model
            return AnswerInputs(plain_logprobs, None, None, doubts_of(plain_logprobs))
        parsed = self._parse_scorable(response)
        if not len(parsed.logprobs):
            raise NoLogprobs("the answer came with hidden states alone; this predictor reads log-probabilities")
        note, cut = self._notes_about(parsed), parsed.finish_reason == LENGTH
        return AnswerInputs(parsed.logprobs, parsed.top_logprobs, parsed.model, note, cut=cut)

    def _parse_scorable(self, response: object) -> ParsedResponse:
        parsed = parse_response(response, top=self.schema.uses_top)
        if parsed.finish_reason == REFUSAL:
            raise InvalidResponse(
                "the answer is a refusal, and its log-probabilities say how sure the model is of refusing; expected an"
                " answer that can be right or wrong: leave refusals out"
            )
        if parsed.finish_reason == TOOL_CALL:
            raise InvalidResponse(CALLED)
        if self.schema.uses_top and parsed.top_fault:
            raise InvalidResponse(
                f"{parsed.top_fault}; expected the likeliest tokens beside each drawn one, which this predictor reads:"
                " ask the server for them anew, or take a predictor that reads the drawn tokens only"
            )
        return cut_to_answer(parsed)

    def _verdict_on_one(self, answer: AnswerInputs) -> Verdict:
        heads = {name: values[0] for name, values in self._run_heads(self._inputs(answer)).items()}
        return self._make_verdict(heads, answer)

    def _inputs(self, answer: AnswerInputs) -> dict[str, NDArray[np.float32]]:
        """Returns the graph's inputs for one answer, (1, d) each."""
        return {FEATURES_INPUT: features_one(self.schema, answer.logprobs, answer.top)[None]}

    def _inputs_of(self, answers: Sequence[AnswerInputs]) -> dict[str, NDArray[np.float32]]:
        """Returns the graph's inputs for n answers, (n, d) each."""
        tops = [answer.top for answer in answers] if self.schema.uses_top else None
        return {FEATURES_INPUT: features(self.schema, [answer.logprobs for answer in answers], tops)}

    def _run_heads(self, inputs: dict[str, NDArray[np.float32]]) -> dict[str, list[float]]:
        """Returns the value of each head for each of n answers, whose inputs are (n, d).

        Raises `ContractMismatch` if the graph does not give one value for each row: a row would get another row's.
        """
        outputs, n = self.checkpoint.run(inputs), len(next(iter(inputs.values())))
        if misshaped_outputs := [name for name, values in outputs.items() if values.shape != (n, 1)]:
            raise ContractMismatch(
                f"{self.checkpoint.path} gives {misshaped_outputs[0]!r} of shape "
                f"{outputs[misshaped_outputs[0]].shape} for {n} answers; "
                f"expected ({n}, 1): take another checkpoint"
            )
        return {name: values.ravel().tolist() for name, values in outputs.items()}

    def _make_verdict(self, heads: dict[str, float], answer: AnswerInputs) -> Verdict:
        """Returns the verdict on one answer.

        Args:
            heads: the graph's value of each head; changed here.
            answer: the answer.
        """
        # The values must lie on their heads' scales.
        note = answer.note
        for name, value in heads.items():
            low, high = self._scales.get(name, _PROBABILITY_SCALE)
            if (
                not low - _SCALE_TOLERANCE <= value <= high + _SCALE_TOLERANCE
            ):  # also NaN, which would count as not flagged
                raise ContractMismatch(
                    f"{self.checkpoint.path} gives {value:.6g} for {name!r}; expected {low:g} to {high:g}: take "
                    "another checkpoint"
                )
        # Values that the run, chance or a cut answer changes.
        run_is_known = True
        if self._base_rates is not None:
            run_is_known = self._base_rates.add_to(heads, self._run_shifts, answer.model)
            note = note if run_is_known else "; ".join(filter(None, (note, self._base_rates.unknown(self._score_head))))
        if self._chance:
            note = "; ".join(filter(None, (note, f"the score is {self._chance}")))
        if answer.cut and AGREEMENT in heads:  # training left such answers out
            heads[AGREEMENT] = 0.0
            note = "; ".join(filter(None, (note, CUT_AGREEMENT_NOTE)))
        is_unscored = answer.cut and self._score_head in self._ended_only
        if is_unscored:
            note = "; ".join(filter(None, (note, CUT_UNSCORED_NOTE)))
            heads = {name: value for name, value in heads.items() if name not in self._ended_only}
        # The score, and whether it or a critical failure flags the answer.
        score = None
        if self._score_head is not None and not is_unscored:
            low, high = self._scales.get(self._score_head, _PROBABILITY_SCALE)
            score = (heads[self._score_head] - low) / (high - low)
        # A score below which the caller flags is used for an unknown run too: it promises nothing about shares.
        may_flag = run_is_known or self._flag_options.flag_below is not None
        flagged_value = heads.get(AGREEMENT) if self._score_head is None else score
        flagged = None
        if self._threshold is not None and flagged_value is not None and may_flag:
            flagged = flagged_value < self._threshold
        if is_unscored and self._threshold is not None:  # a cut answer has no end that could be right
            flagged = True
        critical = heads.get(Verdict.critical_head)
        if self._critical_threshold is not None and critical is not None and run_is_known:
            flagged = critical >= self._critical_threshold or bool(flagged)
        return Verdict(score, heads, critical, flagged, self.checkpoint.digest, note)

    def _notes_about(self, parsed: ParsedResponse) -> str:
        """Returns the notes about the response for the verdict."""
        mismatch_note = mismatch(
            self.checkpoint.manifest.generator,
            model=parsed.model,
            logprobs_mode=parsed.logprobs_mode,
            contract=self.checkpoint.manifest.contract,
            reader=parsed.reader,
            for_strangers=self._base_rates is not None and not self._base_rates.runs,  # it knows no run by name
            on_mismatch=self._on_mismatch,
            stacklevel=4,
        )
        end_note = doubt(parsed.finish_reason) if parsed.finish_reason or parsed.text else ""  # a list has neither
        alternatives_note = parsed.top_fault
        if self.schema.uses_top and parsed.top_logprobs is None:
            alternatives_note = "the predictor reads alternatives (top_logprobs), and none came"
        number_doubts = doubts_of(parsed.logprobs) if len(parsed.logprobs) else ""
        notes = mismatch_note, parsed.note, end_note, alternatives_note, number_doubts
        return "; ".join(filter(None, notes))


def doubts_of(logprobs: FloatArray) -> str:
    """Returns a note if the log-probabilities are a weak base for a score; empty otherwise."""
    doubts, token_count = describe_doubts(logprobs), len(logprobs)
    if token_count > MAX_WEAK_TOKENS:
        return doubts
    few_note = f"the answer has {token_count} token{'s' * (token_count > 1)}, on which a score rests weakly"
    return "; ".join(filter(None, (few_note, doubts)))
