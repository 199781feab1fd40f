"""Questions and answers of anybody, read by a local model: hidden states of texts that no model need have written."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.llms.base import LLMError
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import StateReplay
from metaprobe.records.types import Call, Message


class PairReader:
    """A loaded model that reads questions and answers through its own chat template."""

    def __init__(self, model: str, revision: str = "") -> None:
        """`revision`: the one that the states must be of. Raises `LLMError` where the model cannot be loaded, or is
        another one."""
        self.llm = LocalLLM.load(model)
        if revision not in ("", self.llm.revision):
            raise LLMError(
                f"{model} is revision {self.llm.revision} here; expected {revision}, whose states the reader was "
                "trained on: load that one, or train again"
            )

    @classmethod
    def load(cls, wanted: Mapping[str, Any]) -> "PairReader":
        """Returns the reader that a contract's entry `states` asks for; raises as the class does."""
        return cls(str(wanted["model"]), str(wanted["revision"]))

    def states(
        self, questions: Sequence[str], answers: Sequence[str], layers: str, positions: Sequence[str]
    ) -> tuple[NDArray[np.float16], tuple[int, ...]]:
        """Returns states (n, layers, positions, D) and the layers' numbers; nothing above the last one is computed.

        Raises `LLMError` for a text that is longer than the model's context.
        """
        replay = StateReplay(self.llm, layers=layers, positions=positions)
        calls = [
            Call(id=f"text {i}", model="", messages=(Message("user", question),), text=answer)
            for i, (question, answer) in enumerate(zip(questions, answers, strict=True))
        ]
        read = replay.read([replay.reading(call, "") for call in calls])
        return np.stack([one.hidden.values for one in read]), replay.layers
