"""A predictor that reads log-probabilities, hidden states and numbers that the model stated; any may be missing.

A missing input is NaN in the graph, which has weights and a calibration for each set of inputs. The verdict's reason
names the missing inputs. States that do not fit the contract are refused, not ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch
from metaprobe.probes.canary_guard import CanaryGuard
from metaprobe.probes.features import features_one
from metaprobe.probes.quality import FEATURES_INPUT, AnswerInputs, QualityPredictor, doubts_of
from metaprobe.probes.verdict import Verdict
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.parse import number_of
from metaprobe.records.reading import LENGTH
from metaprobe.records.response import float_list
from metaprobe.records.types import HIDDEN, Hidden

BLEND_KIND = "blend"
PROMPT_INPUT, CONFIDENCE_INPUT, TRUE_INPUT = "prompt", "confidence", "p_true"
"""Inputs of the graph beside the features and the hidden states of the answer."""
STATES_READER = "states_reader"
"""Key of the contract: the model that read the states. The key is missing if the answering model read them."""
STATED_INPUTS = (CONFIDENCE_INPUT, TRUE_INPUT)
INPUT_NAMES = {
    FEATURES_INPUT: "log-probabilities",
    HIDDEN: "hidden states of the answer",
    PROMPT_INPUT: "the hidden state of the prompt",
    CONFIDENCE_INPUT: "stated confidence",
    TRUE_INPUT: "P(true)",
}
"""Maps an input of the graph to its name in messages."""
REMEDY = "capture them again, in bfloat16 or float32"

InputRow = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StatesInput:
    """The states that one input of the graph reads."""

    layers: tuple[int, ...]
    position: str
    width: int

    def __str__(self) -> str:
        return f"layer {', '.join(map(str, self.layers))} at {self.position}"

    def of(self, hidden: Hidden) -> InputRow | None:
        """Returns the states as one row, (1, layers * width); None if no states were kept at the position.

        Raises `InvalidResponse` for states of other layers, of another width or type, and for NaN.
        """
        values = hidden.values
        expected = (len(hidden.layers), len(hidden.positions))
        if values.ndim != 3 or values.shape[:2] != expected:
            raise InvalidResponse(
                f"hidden states of shape {values.shape} came for {expected[0]} layers and {expected[1]} positions; "
                "expected (layers, positions, width)"
            )
        if values.dtype.kind != "f":
            raise InvalidResponse(f"hidden states came as {values.dtype}; expected floating-point numbers")
        if len(set(hidden.layers)) < expected[0] or len(set(hidden.positions)) < expected[1]:
            raise InvalidResponse(
                f"hidden states name a layer or position twice: {list(hidden.layers)}, {list(hidden.positions)}"
            )
        if self.position not in hidden.positions:
            return None
        if not {*self.layers} <= {*hidden.layers}:
            raise InvalidResponse(
                f"hidden states of layers {list(hidden.layers)} at {self.position} came; this blend reads {self}"
            )
        if values.shape[2] != self.width:
            raise InvalidResponse(
                f"hidden states of width {values.shape[2]} came; this blend reads {self} of width {self.width}"
            )
        layer_indices = [hidden.layers.index(layer) for layer in self.layers]
        row = values[layer_indices, hidden.positions.index(self.position)].astype(np.float32).reshape(1, -1)
        if not np.isfinite(row).all():
            raise InvalidResponse(f"the hidden states ({self}) hold NaN or infinity: {REMEDY}")
        return row


def _stated_inputs(confidence: float | None, p_true: float | None) -> dict[str, float]:
    stated_values = {CONFIDENCE_INPUT: confidence, TRUE_INPUT: p_true}
    return {name: number_of(name, value) for name, value in stated_values.items() if value is not None}


class BlendPredictor(QualityPredictor):
    """Scores responses by their log-probabilities, hidden states, and what the model stated of them.

    Any of these may be missing. Hidden states come with a stored call, under `metaprobe_signals` of a response
    (`metaprobe.records.parse`), or as an argument of `predict`.
    """

    kind: ClassVar[str] = BLEND_KIND

    def __init__(self, checkpoint: Checkpoint, **options: Any) -> None:
        """Takes what `QualityPredictor` takes."""
        super().__init__(checkpoint, **options)
        manifest = checkpoint.manifest
        try:
            self.states = {
                str(name): StatesInput(
                    tuple(input_contract["layers"]), str(input_contract["position"]), int(input_contract["width"])
                )
                for name, input_contract in manifest.contract["states"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ContractMismatch(f"{checkpoint.path} is no whole blend ({error!r}); train it again") from error
        # A row of NaN for each input, which stands for an input that did not come.
        self._nan_inputs = {spec.name: np.full((1, spec.shape[1] or 1), np.nan, np.float32) for spec in manifest.inputs}
        widths = {name: len(states_input.layers) * states_input.width for name, states_input in self.states.items()}
        widths |= {FEATURES_INPUT: len(self.schema.names), **dict.fromkeys(STATED_INPUTS, 1)}
        if mismatched_inputs := [name for name, row in self._nan_inputs.items() if row.shape[1] != widths.get(name)]:
            raise ContractMismatch(
                f"{checkpoint.path}: its contract does not say what the input {mismatched_inputs[0]!r} reads"
            )
        self.guard = CanaryGuard(
            checkpoint, [layer for states_input in self.states.values() for layer in states_input.layers]
        )
        """Checks the sources of hidden states (`metaprobe.probes.canary_guard`)."""
        self.states_reader = str(manifest.contract.get(STATES_READER, ""))
        """Model that read the states, if it is not the model that answered; else empty."""
        models = manifest.generator.models if manifest.generator else ()
        self._states_models = (
            (self.states_reader.rpartition("@")[0] or self.states_reader,) if self.states_reader else models
        )

    def predict(
        self,
        response: object,
        *,
        hidden: Hidden | None = None,
        confidence: float | None = None,
        p_true: float | None = None,
    ) -> Verdict:
        """Returns the verdict on a response, as `QualityPredictor.predict` does.

        Raises `InvalidResponse` for states of other layers, of another width or type, of another model, or that hold
        NaN.

        Args:
            response: the response.
            hidden: its hidden states, if they do not come with it.
            confidence: the confidence that the model stated, in [0, 1], if it does not come with the response.
            p_true: the stated probability that the answer is true, in [0, 1], likewise.
        """
        with np.errstate(all="ignore"):  # a host application may have NumPy raise for what is rounded to 0 here
            return self._verdict_on_one(self._read_response(response, hidden, _stated_inputs(confidence, p_true)))

    def inputs(
        self, response: object, *, confidence: float | None = None, p_true: float | None = None
    ) -> dict[str, InputRow]:
        """Returns the graph's inputs for a response, each (1, d); a missing input is NaN. Raises as `predict` does."""
        return self._inputs(self._read_response(response, None, _stated_inputs(confidence, p_true)))

    def _read_response(
        self, response: object, hidden: Hidden | None = None, stated_values: Mapping[str, float] = {}
    ) -> AnswerInputs:
        """Returns the log-probabilities, hidden states and stated numbers of a response, with notes about them.

        Args:
            response: the response, in any form that `predict` takes.
            hidden: its hidden states; by default those that come with the response.
            stated_values: numbers that the model stated, by input name; they replace those that come with the response.
        """
        plain_logprobs = float_list(response) if type(response) is list else None
        if plain_logprobs is not None:
            logprobs, model, note, cut = plain_logprobs, "", doubts_of(plain_logprobs), False
        else:
            parsed = self._parse_scorable(response)
            logprobs, model, note = parsed.logprobs, parsed.model, self._notes_about(parsed)
            cut = parsed.finish_reason == LENGTH
            hidden, stated_values = hidden or parsed.hidden, {**parsed.stated, **stated_values}
        inputs: dict[str, InputRow] = {}
        if hidden is not None and (fault := self.states_fault(hidden, model)):
            hidden, note = None, "; ".join(filter(None, (note, f"hidden states left out: {fault}")))
        if hidden is not None:
            self._check_model(hidden.model or model)
            inputs = {
                name: row for name, states_input in self.states.items() if (row := states_input.of(hidden)) is not None
            }
            if not inputs and self.states:
                raise InvalidResponse(
                    f"hidden states at {', '.join(hidden.positions)} came; this blend reads "
                    f"{' and '.join(map(str, self.states.values()))}"
                )
        for name, value in stated_values.items():
            if name in self._nan_inputs:
                inputs[name] = np.array([[value]], dtype=np.float32)
        try:
            missing_note = self._missing_note(inputs, has_logprobs=bool(len(logprobs)))
        except InvalidResponse as error:
            raise InvalidResponse("; ".join(filter(None, (note, str(error))))) from error
        return AnswerInputs(logprobs, None, model, "; ".join(filter(None, (note, missing_note))), inputs, cut)

    def states_fault(self, hidden: Hidden, model: str) -> str:
        """Returns why these hidden states are left out; empty if they are scored. `model`: the model that answered."""
        return "" if self._on_mismatch == "ignore" else self.guard.fault(hidden, model)

    def _check_model(self, states_model: str) -> None:
        """Raises `InvalidResponse` if the states are of another model than those that the blend was trained on."""
        if not states_model or not self._states_models or self._on_mismatch == "ignore":
            return
        if (
            states_model not in self._states_models
            and (states_model.rpartition("@")[0] or states_model) not in self._states_models
        ):
            raise InvalidResponse(
                f"hidden states of {states_model} came; this blend was trained on those of "
                f"{', '.join(self._states_models)}: name "
                "the model of the states where it is one of these by another name, or take on_mismatch 'ignore'"
            )

    def _missing_note(self, inputs: Mapping[str, InputRow], *, has_logprobs: bool) -> str:
        """Returns a note that names the missing inputs. Raises `InvalidResponse` if all are missing."""
        inputs_present = {*inputs, *([FEATURES_INPUT] if has_logprobs else [])}
        missing_names = [INPUT_NAMES[name] for name in self._nan_inputs if name not in inputs_present]
        if not inputs_present:
            raise InvalidResponse(f"nothing came that this blend reads; expected {' or '.join(missing_names)}")
        if not missing_names:
            return ""
        used_names = [INPUT_NAMES[name] for name in self._nan_inputs if name in inputs_present]
        return f"without {' and '.join(missing_names)}: scored by {' and '.join(used_names)}"

    def _inputs(self, answer: AnswerInputs) -> dict[str, InputRow]:
        inputs = {**self._nan_inputs, **answer.inputs}
        if len(answer.logprobs) and FEATURES_INPUT in inputs:
            inputs[FEATURES_INPUT] = features_one(self.schema, answer.logprobs)[None]
        return inputs

    def _inputs_of(self, answers: Sequence[AnswerInputs]) -> dict[str, InputRow]:
        rows = [self._inputs(answer) for answer in answers]
        return {name: np.concatenate([row[name] for row in rows]) for name in self._nan_inputs}
