"""Checkpoints that judge an answer by its text alone, with verdicts in the form of a quality predictor's."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from metaprobe.checkpoints import Checkpoint, ContractMismatch, load_checkpoint
from metaprobe.checkpoints.flagging import FlagOptions, threshold_of
from metaprobe.probes import adapter, text
from metaprobe.probes.adapter import AdapterProbe
from metaprobe.probes.text import TextReader
from metaprobe.probes.verdict import Verdict
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.response import ParsedText

TEXT_KINDS = (adapter.ADAPTER, text.TEXT_KIND)
"""Kinds of checkpoints that read texts."""


@dataclass(frozen=True, slots=True)
class TextAnswer(ParsedText):
    """An answer to a question as text alone, without log-probabilities or hidden states."""

    question: str | None = None
    """The last user message; None if there is no user message."""
    answered: bool = True
    """Whether there is an answer yet."""


@dataclass(frozen=True, slots=True)
class TextPredictor:
    """Judges answers by their text alone. Its verdicts have the form of a quality predictor's."""

    input_kind: ClassVar[Literal["texts"]] = "texts"
    """Part of a response that is read."""
    checkpoint: Checkpoint
    target: str
    """The label that it predicts, which is its head's name."""
    _judge: Callable[[TextAnswer], Verdict]
    scale: tuple[float, float] | None = None
    """Lowest and highest level of the head; None for a probability."""

    @staticmethod
    def reads(location: Path | str) -> bool:
        """Returns whether the checkpoint at `location` reads texts, by its manifest alone."""
        return Checkpoint.kind_at(location) in TEXT_KINDS

    @classmethod
    def load(cls, location: Path | str, sha256: str | None) -> "TextPredictor":
        """Returns the reader in a checkpoint, verified. Raises a `CheckpointError`."""
        checkpoint = load_checkpoint(location, sha256=sha256)
        if checkpoint.manifest.kind == text.TEXT_KIND:
            reader = TextReader(checkpoint)
            if reader.reads_logprobs:
                raise ContractMismatch(
                    f"{location} reads log-probabilities beside the words, and a decision holds texts alone; expected "
                    "a reader of words (`metaprobe train text` without --with-logprobs)"
                )
            if reader.states_of:
                reader.predict("A question?", "An answer.")  # loads its model, or raises now if something is missing

            def judge_by_reader(answer: TextAnswer) -> Verdict:
                if not answer.answered:
                    raise InvalidResponse(
                        "the checkpoint judges answers: the input must end with the assistant's answer"
                    )
                return reader.predict(answer.question or "", answer.text)

            return cls(checkpoint, reader.target, judge_by_reader, reader.scale)
        probe = AdapterProbe.of(checkpoint, on_mismatch="note")

        def judge_by_adapter(answer: TextAnswer) -> Verdict:
            if ("after" if answer.answered else "before") not in probe.when:
                expected_end = "end with the assistant's answer" if not answer.answered else "end before it is answered"
                raise InvalidResponse(f"the checkpoint was not trained for this: the input must {expected_end}")
            value = float(probe.probability([answer.question or ""], [answer.text] if answer.answered else None)[0])
            digest, heads = checkpoint.digest, {probe.target: value}
            if probe.target == Verdict.critical_head:
                return Verdict(None, heads, value, None, digest)
            threshold = threshold_of(checkpoint.manifest, FlagOptions())
            return Verdict(value, heads, None, None if threshold is None else value < threshold, digest)

        return cls(checkpoint, probe.target, judge_by_adapter)

    def parse(self, response: object) -> TextAnswer:
        """Returns the answer in the form that is scored. Raises `InvalidResponse` for anything but a `TextAnswer`."""
        if not isinstance(response, TextAnswer):
            raise InvalidResponse(f"came {type(response).__name__}; expected a TextAnswer, with its question")
        return response

    def predict(self, answer: TextAnswer) -> Verdict:
        """Returns the verdict. Raises `InvalidResponse` for a text that is not what the checkpoint reads."""
        if answer.question is None:
            raise InvalidResponse("the input holds no user message, and the answer is read beside its question")
        if answer.answered and not answer.text.strip():
            raise InvalidResponse("the answer is empty: there is no text to judge")
        return self._judge(answer)
