"""A reader of texts, from a checkpoint: P(right), or a level of a rubric, from question and answer alone.

Words are hashed here, and everything else is in the graph: weights of the words, and a few numbers of the text's shape.
A checkpoint that also reads hidden states needs the model of these states, and so the extra `train`.
"""

import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.checkpoints.flagging import FlagKeywords, FlagOptions, threshold_of
from metaprobe.probes.adapter import prompt_of
from metaprobe.probes.deferred import module_to
from metaprobe.probes.features import features_one, schema
from metaprobe.probes.training_runs import mismatch
from metaprobe.probes.verdict import Verdict
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.response import check_logprobs
from metaprobe.records.types import HIDDEN, Call

TEXT_KIND = "text"
TERMS, COUNTS, SHAPE = "terms", "counts", "shape"
"""Inputs of the graph: hashed words (n, K), their damped counts (n, K), and `SHAPES` (n, 5)."""
LOGPROBS = "logprobs"
"""Key of the contract of a reader that also reads log-probabilities: the schema of the terms that it reads."""
WORD_BUCKETS = 1 << 16
"""Number of hash buckets for words of the answer. Words of the question have as many buckets of their own, after these.
"""
MAX_WORDS = 2000
"""Most words that are read of a question, and of an answer: the first ones."""
SHAPES = ("log of the answer's words", "share copied", "share distinct", "asks", "share of numbers")
"""Numbers that describe the shape of question and answer. `asks` is 1 if the answer holds a question mark."""

_WORD = re.compile(r"\w+|[^\w\s]")


def text_rows(questions: Sequence[str], answers: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Returns the inputs of the graph for n questions and answers.

    They are the hashed words and pairs of neighbouring words, padded by counts of 0, and the shape of the text.
    """
    rows = [_word_counts(question, answer) for question, answer in zip(questions, answers, strict=True)]
    max_terms = max((len(counts) for counts, _ in rows), default=0) or 1
    terms, counts = np.zeros((len(rows), max_terms), dtype=np.int64), np.zeros((len(rows), max_terms), dtype=np.float32)
    for i, (term_counts, _) in enumerate(rows):
        terms[i, : len(term_counts)] = list(term_counts)
        counts[i, : len(term_counts)] = 1 + np.log(
            np.fromiter(term_counts.values(), dtype=np.float64, count=len(term_counts))
        )
    shape = np.array([shape for _, shape in rows], dtype=np.float32).reshape(-1, len(SHAPES))
    return {TERMS: terms, COUNTS: counts, SHAPE: shape}


def _word_counts(question: str, answer: str) -> tuple[Counter[int], tuple[float, ...]]:
    """Returns the hashed words of a question and its answer, and the shape of the answer in the order of `SHAPES`."""
    question_words, answer_words = (_WORD.findall(text.lower())[:MAX_WORDS] for text in (question, answer))
    counts = Counter(_word_buckets(answer_words, 0))
    counts.update(_word_buckets(question_words, WORD_BUCKETS))
    question_word_set, word_total = set(question_words), max(len(answer_words), 1)
    copied_count, number_count = (
        sum(word in question_word_set for word in answer_words),
        sum(word.isdigit() for word in answer_words),
    )
    shape = (
        np.log1p(len(answer_words)),
        copied_count / word_total,
        len(set(answer_words)) / word_total,
        float("?" in answer),
        number_count / word_total,
    )
    return counts, shape


def _word_buckets(words: Sequence[str], first_bucket: int) -> Iterator[int]:
    for term in (*words, *(f"{a} {b}" for a, b in pairwise(words))):
        yield first_bucket + zlib.crc32(term.encode("utf-8", "replace")) % WORD_BUCKETS


class TextReader(Pretrained):
    """Judges answers by their text. Several threads may share one reader.

    `metaprobe train text` makes the checkpoint. A checkpoint that reads only words needs only numpy and onnxruntime.
    """

    def __init__(self, checkpoint: Checkpoint, **flag: Unpack[FlagKeywords]) -> None:
        """Sets up the reader of a loaded checkpoint.

        At most one of `flag_rate`, `flag_below`, `catch` and `risk` says which answers are flagged; by default those
        below the stored threshold. Raises `ContractMismatch` for a checkpoint of another kind or with another way to
        read words, and for an option that the checkpoint does not store.
        """
        manifest = checkpoint.manifest
        check_kind(checkpoint.path, manifest.kind, TEXT_KIND)
        contract = manifest.contract
        target, scale, buckets = contract.get("target"), contract.get("scale"), contract.get("buckets")
        if not isinstance(target, str) or buckets != WORD_BUCKETS or not (scale is None or len(scale) == 2):
            raise ContractMismatch(
                f"{checkpoint.path}: the contract needs a target, {WORD_BUCKETS} buckets and for levels a scale, and "
                f"says {dict(contract)}: train the reader again with this version"
            )
        self.checkpoint, self.target = checkpoint, target
        self.scale = None if scale is None else (float(scale[0]), float(scale[1]))
        self.threshold = threshold_of(manifest, FlagOptions(**flag))
        self._model: Any = None

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, sha256: str | None = None, **flag: Unpack[FlagKeywords]) -> Self:
        """Returns the reader in a checkpoint folder, verified. `sha256`: the digest that its author gave you."""
        return cls(load_checkpoint(path, sha256=sha256), **flag)

    @property
    def states_of(self) -> dict[str, Any]:
        """Model, revision, layer and position of the states that the reader needs; empty if the reader reads only
        words.
        """
        return dict(self.checkpoint.manifest.contract.get("states", {}))

    @property
    def reads_logprobs(self) -> bool:
        """Whether the reader also reads the log-probabilities of the answers."""
        return LOGPROBS in self.checkpoint.manifest.contract

    def values(
        self, questions: Sequence[str], answers: Sequence[str], logprobs: Sequence[ArrayLike] | None = None
    ) -> NDArray[np.float64]:
        """Returns (n,): calibrated probabilities of the target, or expected levels.

        `logprobs`: those of each answer's tokens, in nats, for a reader that reads log-probabilities; other readers
        ignore them.

        Raises `InvalidResponse` for an answer without words, or without log-probabilities where these are read, and
        `MissingExtra` where states are read without the extra `train`.
        """
        return self._outputs(questions, answers, logprobs)[self.target][:, 0].astype(np.float64)

    def _outputs(
        self, questions: Sequence[str], answers: Sequence[str], logprobs: Sequence[ArrayLike] | None
    ) -> dict[str, NDArray[Any]]:
        if isinstance(questions, str) or isinstance(answers, str) or len(questions) != len(answers):
            raise InvalidResponse("expected a list of questions and a list of as many answers: [question], [answer]")
        if not all(answer.strip() for answer in answers):
            raise InvalidResponse("an answer is empty: there is no text to judge")
        inputs = text_rows(questions, answers)
        if states_entry := self.states_of:
            self._model = self._model or module_to("read texts").PairReader.load(states_entry)
            states = self._model.states(questions, answers, [states_entry["layer"]], [states_entry["position"]])
            inputs[HIDDEN] = states[:, 0, 0].astype(np.float32)
        if self.reads_logprobs:
            inputs[HIDDEN] = self._terms(logprobs, len(answers))
        return self.checkpoint.run(inputs)

    def _terms(self, logprobs: Sequence[ArrayLike] | None, count: int) -> NDArray[np.float32]:
        """Returns the terms (n, 7) of the answers' log-probabilities."""
        checked_series = [] if logprobs is None else [check_logprobs(series) for series in logprobs]
        if len(checked_series) != count:
            raise InvalidResponse(
                f"log-probabilities of {len(checked_series)} answers came for {count}; this reader reads "
                "them beside the words: ask the server for `logprobs`"
            )
        terms_schema = schema(self.checkpoint.manifest.contract[LOGPROBS])
        return np.stack([features_one(terms_schema, series) for series in checked_series]).astype(np.float32)

    def predict_many(
        self, questions: Sequence[str], answers: Sequence[str], logprobs: Sequence[ArrayLike] | None = None
    ) -> list[Verdict]:
        """Returns a verdict on each answer. Arguments and errors are those of `values`.

        The score of a level is its position on the scale, from 0 to 1.
        """
        low, high = self.scale or (0.0, 1.0)
        notes = "; ".join(f"the score is {clause}" for clause in self.checkpoint.manifest.chance.values())
        outputs = {name: column[:, 0].tolist() for name, column in self._outputs(questions, answers, logprobs).items()}
        verdicts = []
        for row, value in enumerate(outputs[self.target]):
            score = min(max((value - low) / (high - low), 0.0), 1.0)
            flagged = None if self.threshold is None else score < self.threshold
            heads = {name: column[row] for name, column in outputs.items()}
            verdicts.append(Verdict(score, heads, None, flagged, self.checkpoint.digest, notes))
        return verdicts

    def predict(self, question: str, answer: str, logprobs: ArrayLike | None = None) -> Verdict:
        """Returns the verdict on one answer; arguments and errors are those of `values`."""
        return self.predict_many([question], [answer], None if logprobs is None else [logprobs])[0]

    def read(self, call: Call) -> Verdict:
        """Returns the verdict on a recorded call, from its text, its last user message, and its log-probabilities if
        the reader reads them. Raises `InvalidResponse` if one of these is missing.
        """
        question = prompt_of(call.messages)
        if not question:
            raise InvalidResponse("no user message stands before the answer: a text reader reads question and answer")
        verdict = self.predict(question, call.text, call.logprobs)
        mismatch_note = mismatch(self.checkpoint.manifest.generator, model=call.model, on_mismatch="note", stacklevel=1)
        return replace(verdict, reason="; ".join(filter(None, (mismatch_note, verdict.reason))))
