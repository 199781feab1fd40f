"""Linear probes on hidden states, from a checkpoint: a dot product, a sigmoid, no torch.

`TokenScores` holds what a probe gives every token of an answer, and shows it in a notebook.
"""

import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Metric, Pretrained, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.checkpoints.display import explain_fields
from metaprobe.probes.canary_guard import CANNOT_BE_CHECKED, CanaryGuard
from metaprobe.probes.deferred import module_to
from metaprobe.probes.training_runs import MAY_MEAN_NOTHING, OnMismatch, check_choice, mismatch
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.extras import require
from metaprobe.records.response import tokens_of
from metaprobe.records.segments import marked
from metaprobe.records.types import EXACT_POSITIONS, HIDDEN, Call, FloatArray, SegmentKind

Prompt = str | Sequence[Mapping[str, str]]
HIDDEN_KIND = INPUT = HIDDEN
RUNNING_POSITIONS = ("prompt_last", "answer_first", "answer_last", "answer_mean")
"""Positions whose state is known while the answer grows."""
_LOW_COLOUR, _HIGH_COLOUR = "217,95,2", "31,119,180"
"""Red, green and blue of an orange and a blue that nearly everybody can distinguish, on light and dark pages."""


@explain_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TokenScores:
    """The numbers that a probe gives an answer and each of its T tokens."""

    score: float
    """P(right) of the whole answer, in [0, 1]."""
    tokens: tuple[str, ...]
    """The T tokens as text."""
    values: FloatArray
    """P(right) for each token (T,), computed as if its state were the state of the whole answer. Only for comparing
    tokens of one answer.
    """

    def __repr__(self) -> str:
        return f"TokenScores(score={self.score:.3f}, {len(self.tokens)} tokens)"

    def _repr_html_(self) -> str:
        """Returns the answer for notebooks: tokens of low confidence on orange, of high confidence on blue."""
        spans = []
        for token, value in zip(self.tokens, np.asarray(self.values).tolist(), strict=True):
            colour = f"rgba({_LOW_COLOUR if value < 0.5 else _HIGH_COLOUR},{min(abs(value - 0.5) * 1.4, 0.7):.2f})"
            spans.append(
                f'<span title="{value:.3f}" style="background:{colour};border-radius:2px">{escape(token)}</span>'
            )
        low, high = (
            f'<span style="background:rgba({colour},0.5);padding:0 6px">{name}</span>'
            for colour, name in ((_LOW_COLOUR, "low"), (_HIGH_COLOUR, "high"))
        )
        return (
            f'<div style="color:inherit"><b>P(right) {self.score:.3f}</b>'
            f'<div style="white-space:pre-wrap;line-height:1.8">{"".join(spans)}</div>'
            f"<small>{low} {high} P(right), read at each token alone</small></div>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields in JSON's own types."""
        return {"score": self.score, "tokens": list(self.tokens), "values": np.asarray(self.values).tolist()}


@explain_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HiddenProbe(Pretrained):
    """Reads one layer, or several together, at one position: of the prompt in `DifficultyProbe`, of the answer in
    `ConfidenceProbe`.

    A state is an array (width,); where several layers are read (layers, width) in their order, or the same flattened.
    """

    checkpoint: Checkpoint
    """The checkpoint that the probe was loaded from."""
    layers: tuple[int, ...]
    """Layers that it reads: 0 is the embeddings' output, i the output of block i."""
    position: str
    """Token position that it reads: `prompt_last`, `answer_first`, `answer_last`, `answer_mean`, or one at the exact
    answer (`before_exact`, `exact_last`, `exact_mean`).
    For a reasoning model these are the answer's own tokens; `thinking_first`, `thinking_last` and `thinking_mean`
    come before them."""
    width: int
    """Numbers in a state of one layer."""
    guard: CanaryGuard
    """Checks the sources of hidden states (`metaprobe.probes.canary_guard`)."""
    on_mismatch: OnMismatch = "warn"
    """Treatment of a call of a model that the probe was not trained on, and with hidden states of another model.

    `warn` warns and reads the states. `refuse` raises `ContractMismatch`. `ignore` reads them, and leaves out the check
    of their source. `note` gives no warning about models, because the caller writes a note into the verdict.
    """
    reader: str = ""
    """Model that read the states, if it is not the model that answered; else empty."""
    _temporary_folder: object = None
    """Folder of a probe that was fitted and not saved; it is deleted with the probe."""
    usual_position: ClassVar[str] = "answer_last"

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, sha256: str | None = None, on_mismatch: OnMismatch = "warn") -> Self:
        """Returns the probe in a checkpoint folder, verified. `sha256`: the digest that its author gave you.

        `on_mismatch`: what to do with a call of a model that the probe was not trained on.
        """
        return cls.of(load_checkpoint(path, sha256=sha256), on_mismatch=on_mismatch)

    @classmethod
    def of(cls, checkpoint: Checkpoint, *, on_mismatch: OnMismatch = "warn") -> Self:
        """Returns the probe in a loaded checkpoint. Raises `ContractMismatch` for a checkpoint that holds no probe."""
        manifest, path = checkpoint.manifest, checkpoint.path
        check_kind(path, manifest.kind, HIDDEN_KIND)
        contract = manifest.contract
        position, width, layers = contract.get("position"), contract.get("width"), _layers(contract)
        if not isinstance(position, str) or not isinstance(width, int) or not layers:
            raise ContractMismatch(
                f"{path}: the contract of a probe needs layer (a number) or layers (a list of different ones), "
                f"position and width; this one says {dict(contract)}"
            )
        if [spec.shape for spec in manifest.inputs] != [(None, width * len(layers))]:
            raise ContractMismatch(
                f"{path}: layers {list(layers)} of width {width} make an input (any, {width * len(layers)}); "
                f"the graph has {', '.join(str(spec.shape) for spec in manifest.inputs)}"
            )
        reader = contract.get("reader", {"model": ""})
        if not isinstance(reader, dict) or not isinstance(reader.get("model"), str):
            raise ContractMismatch(f"{path}: the contract's reader is {reader!r}; expected model and revision")
        guard = CanaryGuard(checkpoint, layers)
        return cls(checkpoint, layers, position, width, guard, check_choice(on_mismatch), reader["model"])

    @classmethod
    def fit(
        cls,
        X: Any,
        y: Any,
        *,
        groups: Sequence[object] | None = None,
        layers: Sequence[int] | None = None,
        position: str | None = None,
        target: str = "correct",
        model: str = "",
        questions: Sequence[str] | None = None,
        answers: Sequence[str] | None = None,
        logprobs: Sequence[Any] | None = None,
        folds: int = 5,
        seed: int = 0,
    ) -> Self:
        """Returns a probe fitted on arrays of hidden states and labels.

        Layer and penalty are chosen on rows that the probe was not fitted on, and `auroc` is computed on rows held out
        by group. Nothing is written until `save` is called.

        Args:
            X: hidden states (n, d) or (n, layers, d).
            y: labels (n,) of 0 and 1.
            groups: name (n,) of what must stay in one split, such as the question; by default each row is a group of
                its own.
            layers: the layers of X, as the probe reads them later: 0 for the embeddings' output, i for the output of
                block i; by default 0, 1, ...
            position: token that the states belong to; by default the answer's last token, and the prompt's last token
                for a `DifficultyProbe`.
            target: name of the label.
            model: name of the model of the states.
            questions: texts (n) for the controls on words. Without texts and log-probabilities, and without layer 0
                among several layers, the probe is compared with no control, and its trust is `unaudited`.
            answers: texts (n) for the controls on words.
            logprobs: a series for each row, one number a token, for the controls on log-probabilities.
            folds: outer folds, for held-out metrics.
            seed: seed of folds and fits.

        Raises `RecordError` for arrays of a wrong shape, with wrong values or with too few groups, and `MissingExtra`
        without the extra `train`.
        """
        position = position or cls.usual_position
        if (position == "prompt_last") != (cls.usual_position == "prompt_last"):
            raise ContractMismatch(
                f"position {position!r}: a probe before the answer is a DifficultyProbe and reads prompt_last, one of "
                "the answer is a ConfidenceProbe"
            )
        temporary_folder = _TemporaryFolder()
        checkpoint = module_to("fit a probe").fit_arrays(
            temporary_folder.path / "probe",
            X,
            y,
            groups=groups,
            layers=layers,
            position=position,
            target=target,
            model=model,
            questions=questions,
            answers=answers,
            logprobs=logprobs,
            folds=folds,
            seed=seed,
            command=f"metaprobe.{cls.__name__}.fit(X, y, folds={folds}, seed={seed})",
        )
        return replace(cls.of(checkpoint), _temporary_folder=temporary_folder)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Checkpoint:
        """Writes the probe's checkpoint into a folder, which `metaprobe.load` opens, and returns the checkpoint."""
        return self.save_pretrained(folder, overwrite=overwrite)

    @property
    def auroc(self) -> Metric | None:
        """The AUROC on rows held out by group, with its 95 % interval; None if the checkpoint does not state it."""
        return self.checkpoint.manifest.metrics.get("auroc")

    @property
    def layer(self) -> int:
        """The layer that the probe reads. Raises `ContractMismatch` for a probe of several layers: see `layers`."""
        if len(self.layers) > 1:
            raise ContractMismatch(f"this probe reads layers {list(self.layers)}, not one: use `layers`")
        return self.layers[0]

    @np.errstate(all="ignore")  # a host application may have NumPy raise for what is rounded to 0 here
    def probability(self, hidden: FloatArray) -> FloatArray:
        """Returns P(right), calibrated, (n,), from n states of this probe's layers and position."""
        name = self.checkpoint.manifest.outputs[0].name
        inputs = np.ascontiguousarray(self._flat(hidden), dtype=np.float32)
        return self.checkpoint.run({INPUT: inputs})[name][:, 0]

    def read(self, call: Call, *, reader: str = "") -> float:
        """Returns P(right) of one call from its stored hidden states.

        `reader`: the model of the states, by its name or `NAME@REVISION`, where another model answered. Raises
        `InvalidResponse` where the call has no hidden states of the probe's layers and position, and where their source
        failed the check by canaries or was not checked.
        """
        generator = self.checkpoint.manifest.generator
        mismatch(generator, model=call.model, on_mismatch=self.on_mismatch, stacklevel=3)
        hidden = call.hidden
        states_model = reader or ("" if hidden is None else hidden.model) or call.model
        self._check_reader(call.model, states_model)
        if hidden is None or not {*self.layers} <= {*hidden.layers} or self.position not in hidden.positions:
            wanted_text = f"{', '.join(f'layer {layer}' for layer in self.layers)} at {self.position}"
            received_text = (
                "it came without states: read a stored one by RunStore.runs(hidden=True), or capture or extract them"
            )
            if hidden is not None:
                received_text = (
                    f"kept were layers {hidden.layers}, positions {hidden.positions}. Ask with a capture of that"
                )
            raise InvalidResponse(f"call {call.id}: this probe reads {wanted_text}; {received_text}")
        if self.on_mismatch != "ignore" and (fault := self.guard.fault(hidden, states_model)):
            raise InvalidResponse(f"call {call.id}: {fault}")
        layer_indices = [hidden.layers.index(layer) for layer in self.layers]
        return float(self.probability(hidden.values[None, layer_indices, hidden.positions.index(self.position)])[0])

    def running(self, states: FloatArray, *, prompt: FloatArray | None = None) -> FloatArray:
        """Returns P(right) after each of T answer tokens, (T,): what `read` would give if the answer ended there.

        `states` are those of the answer's tokens, in order. A probe on `answer_last` reads the newest token, one on
        `answer_mean` the mean so far, and one on `answer_first` always the first. A probe on `prompt_last` reads
        `prompt`, the state of the last prompt token; other probes ignore it.

        Raises `ContractMismatch` for a probe on any other position (for one at the exact answer, because the place of
        the exact answer is known only at the end), and `InvalidResponse` where `prompt` is needed and missing.
        """
        estimate = self.follow(prompt)
        return np.array([estimate.push(state) for state in self._flat(states)], dtype=np.float32)

    def follow(self, prompt: FloatArray | None = None) -> "RunningEstimate":
        """Returns an estimate that gives the numbers of `running`, one token at a time, and raises the same errors."""
        if self.position not in RUNNING_POSITIONS:
            raise ContractMismatch(
                f"this probe reads {self.position!r}, which is known only when the answer is finished: it gives no "
                f"running estimate. Use `read` then, or a probe on {' or '.join(RUNNING_POSITIONS)}"
            )
        if self.position != "prompt_last":
            return RunningEstimate(self)
        if prompt is None:
            raise InvalidResponse("this probe reads the last prompt token: give its state as `prompt`")
        return RunningEstimate(self, float(self.probability(prompt[None])[0]))

    @overload
    def score_text(
        self, model: Any, tokenizer: Any, prompt: Prompt, answer: str = "", *, chat: bool = True
    ) -> float: ...
    @overload
    def score_text(
        self, model: Any, tokenizer: Any, prompt: Prompt, answer: str = "", *, tokens: Literal[True], chat: bool = True
    ) -> TokenScores: ...
    def score_text(
        self,
        model: Any,
        tokenizer: Any,
        prompt: Prompt,
        answer: str = "",
        *,
        tokens: bool = False,
        chat: bool = True,
    ) -> float | TokenScores:
        """Returns P(right) of an answer to a prompt, read in a transformers model; with `tokens`, also of each token.

        Args:
            model: the model whose states the probe was fitted on.
            tokenizer: its tokenizer.
            prompt: the user's message, or a list of `{"role", "content"}`.
            answer: text of the answer.
            tokens: whether each token is scored too.
            chat: whether the tokenizer's chat template is put around the prompt.

        Raises `ContractMismatch` for a probe at the exact answer, and for a probe before the answer if `tokens` is
        given. Raises `InvalidResponse` if the model gives the canaries other states than the golden ones, or states of
        another width, and `MissingExtra` without the extra `train`. Canaries are read once, and again after a change of
        the model. Warns if the checkpoint holds no golden states.
        """
        if self.position in EXACT_POSITIONS or (tokens and self.position == "prompt_last"):
            raise ContractMismatch(
                f"this probe reads {self.position}, which no {'single token' if tokens else 'text'} of the answer "
                "gives: use a probe on answer_first, answer_last or answer_mean"
            )
        require("transformers", "train")
        if self.on_mismatch != "ignore":
            self._check_loaded(model, tokenizer)
        read_states = module_to("read a text").text_states(
            model, tokenizer, prompt, answer, layers=self.layers, chat=chat
        )
        if not len(read_states.answer) and self.position != "prompt_last":
            raise InvalidResponse(f"the answer has no tokens, and this probe reads {self.position}: give an answer")
        part, _, part_of_answer = self.position.partition("_")
        states = (
            read_states.prompt
            if part == "prompt"
            else _pooled(read_states.answer, read_states.tokens, part, part_of_answer)
        )
        score = float(self.probability(states[None])[0])
        return TokenScores(score, read_states.tokens, self.probability(read_states.answer)) if tokens else score

    def _check_loaded(self, model: Any, tokenizer: Any) -> None:
        """Raises `InvalidResponse` if a model gives the canaries other states than the golden ones. Warns if the
        checkpoint holds no golden states.
        """
        if self.guard.golden is None:
            warnings.warn(f"metaprobe: hidden states are scored unchecked: {CANNOT_BE_CHECKED}", stacklevel=3)
        elif fault := self.guard.source_fault(module_to("read canaries").model_canaries(model, tokenizer, self.layers)):
            raise InvalidResponse(fault)

    def _check_reader(self, answering_model: str, states_model: str) -> None:
        """Warns or raises, as `on_mismatch` says, if the probe was not trained on states of this model.

        With `ignore` and `note` it does nothing.

        Args:
            answering_model: model that answered.
            states_model: model whose states are read.
        """
        expected = self.reader or answering_model
        is_expected = states_model == expected or states_model.startswith(f"{expected}@")
        if not states_model or not expected or is_expected or self.on_mismatch in ("ignore", "note"):
            return
        expected_states = "the answering model's own" if not self.reader else f"those of {self.reader}"
        note = f"hidden states of {states_model}, checkpoint trained on {expected_states}"
        if self.on_mismatch == "refuse":
            raise ContractMismatch(f"{note}: give the states it was trained on, and `reader` where they are another's")
        warnings.warn(f"metaprobe: {note}; {MAY_MEAN_NOTHING}", stacklevel=4)

    def _flat(self, hidden: FloatArray) -> FloatArray:
        """Returns n states as (n, layers * width). Raises `InvalidResponse` for another shape, NaN or infinity."""
        flat_width = len(self.layers) * self.width
        if hidden.shape[1:] not in ((flat_width,), (len(self.layers), self.width)):
            layered_shape = f" or (n, {len(self.layers)}, {self.width})" if len(self.layers) > 1 else ""
            raise InvalidResponse(
                f"hidden states have shape {hidden.shape}; this probe reads (n, {flat_width}){layered_shape}"
            )
        if not np.isfinite(hidden).all():
            raise InvalidResponse("hidden states hold NaN or infinity: capture them again, in bfloat16 or float32")
        return hidden.reshape(len(hidden), flat_width)


def _pooled(states: FloatArray, tokens: Sequence[str], part: str, part_of_answer: str) -> FloatArray:
    """Returns the first, last or mean state of the tokens of the answer or of the thinking.

    Args:
        states: states of all tokens (T, ...).
        tokens: texts of all tokens.
        part: `answer` or `thinking`.
        part_of_answer: `first`, `last` or `mean`.
    """
    kind: SegmentKind = "thinking" if part == "thinking" else "answer"
    states_of_kind: FloatArray = states[tokens_of(marked(tokens), kind, len(tokens))]
    if not len(states_of_kind):
        raise InvalidResponse(f"the answer has no tokens of {kind}, which this probe reads; expected some")
    if part_of_answer == "mean":
        return np.asarray(states_of_kind.astype(np.float64).mean(axis=0))
    return np.asarray(states_of_kind[0 if part_of_answer == "first" else -1])


class _TemporaryFolder:
    """A temporary folder that is deleted once nothing refers to this object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="metaprobe-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class RunningEstimate:
    """Gives P(right) of one answer while it grows. Every token costs the same, and at most one state is kept."""

    def __init__(self, probe: HiddenProbe, fixed_value: float | None = None) -> None:
        """Use `HiddenProbe.follow` instead. `fixed_value`: the value, if it does not depend on the answer's tokens."""
        self._probe = probe
        self._fixed_value = fixed_value
        self._token_count = 0
        self._sum: NDArray[np.float64] | None = None

    def push(self, state: FloatArray) -> float:
        """Reads the state of the next answer token, and returns P(right) after it."""
        if self._fixed_value is not None:
            return self._fixed_value
        if self._probe.position == "answer_mean":
            flat = self._probe._flat(state[None])[0]
            self._token_count += 1
            self._sum = flat.astype(np.float64) if self._sum is None else self._sum + flat
            state = self._sum / self._token_count
        value = float(self._probe.probability(state[None])[0])
        if self._probe.position == "answer_first":
            self._fixed_value = value
        return value


@explain_fields
class ConfidenceProbe(HiddenProbe):
    """A probe on the answer: it gives P(right) after the answer.

    An example:

        >>> probe = ConfidenceProbe.load("bundled:smollm2-135m-confidence")
        >>> probe.position, probe.token_confidence(np.zeros((3, probe.width))).shape
        ('answer_mean', (3,))
    """

    def confidence(self, call: Call, *, reader: str = "") -> float:
        """Returns P(right), in [0, 1]; `reader` as for `read`."""
        return self.read(call, reader=reader)

    def token_confidence(self, states: FloatArray) -> FloatArray:
        """Returns P(right) for each of T tokens by itself, (T,), as if its state were the whole answer's.

        This shows where in a long answer confidence falls or rises. For a linear probe on `answer_mean` with a Platt
        calibrator, the log-odds of the answer are the mean of these tokens' log-odds. Any other probe was fitted only
        on the token at its own position, so compare the numbers of other tokens only with each other.
        """
        return self.probability(states)


@explain_fields
class DifficultyProbe(HiddenProbe):
    """A probe on the last prompt token: it gives its number before the answer.

    An example:

        >>> probe = DifficultyProbe.load("bundled:smollm2-135m-difficulty")
        >>> probe.position, probe.probability(np.zeros((1, probe.width))).shape
        ('prompt_last', (1,))
    """

    usual_position: ClassVar[str] = "prompt_last"

    def difficulty(self, call: Call, *, reader: str = "") -> float:
        """Returns the difficulty 1 - P(right), in [0, 1]; `reader` as for `read`."""
        return 1 - self.read(call, reader=reader)


def _layers(contract: Any) -> tuple[int, ...]:
    """Returns the layers that a contract names, in the order in which they are read; empty if they are invalid."""
    layers = contract.get("layers", [contract.get("layer")])
    if not isinstance(layers, list | tuple) or len(set(map(str, layers))) != len(layers):
        return ()
    are_indices = all(isinstance(layer, int) and not isinstance(layer, bool) and layer >= 0 for layer in layers)
    return tuple(layers) if are_indices else ()
