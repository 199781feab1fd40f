"""Is this response one that the checkpoint was trained for? Refused or scored with a warning, as the caller chose."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from metaprobe.checkpoints import ContractMismatch, Generator

OnMismatch = Literal["warn", "refuse", "ignore", "note"]
"""`note`: said in the reason of the verdict, without a warning; so does `warn`."""

MAY_MEAN_NOTHING = "the score may mean nothing"
ORDERS_ONLY = (
    "the score orders answers of one run, and is no calibrated probability: adapt the checkpoint with labelled answers"
)


def check_choice(on_mismatch: OnMismatch) -> OnMismatch:
    """The choice itself. Raises `ValueError` for one that does not exist: it would quietly mean something else."""
    if on_mismatch not in get_args(OnMismatch):
        raise ValueError(f"on_mismatch is {on_mismatch!r}; expected one of {', '.join(get_args(OnMismatch))}")
    return on_mismatch


@dataclass(frozen=True, slots=True)
class Readers:
    """The models that gave two sets of log-probabilities: `NAME@REVISION`, empty for the model that answered."""

    found: str
    """Those of the response."""
    trained: str
    """Those that the checkpoint was trained on."""

    @classmethod
    def of(cls, found: str, contract: Mapping[str, Any]) -> "Readers":
        """The reader of a response beside the one that a checkpoint's contract names."""
        reader = contract.get("reader")
        name = reader.get("model") if isinstance(reader, Mapping) else ""
        return cls(found, name if isinstance(name, str) else "")

    def differ(self) -> bool:
        """Whether they are of two models; revisions are not held against a response."""
        trained = self.trained
        return not (self.found == trained or (trained and self.found.startswith(f"{trained}@")))


def mismatch(
    generator: Generator | None,
    *,
    model: str,
    logprobs_mode: str = "unknown",
    readers: Readers | None = None,
    for_strangers: bool = False,
    on_mismatch: OnMismatch,
    stacklevel: int,
) -> str:
    """Returns how a response differs from the models and the mode that the checkpoint was trained on; else empty.

    Warns, or raises `ContractMismatch` with `on_mismatch="refuse"`. What is not known (an empty model, mode `unknown`)
    is not held against a response. `readers`: None where no log-probabilities are scored. `for_strangers`: the
    checkpoint was made to order the answers of models that it does not know, and the warning says no more than that.
    """
    if on_mismatch == "ignore":
        return ""
    notes = []
    other_model = generator is not None and model != "" and model not in generator.models
    if generator is not None and other_model:
        notes.append(f"response of {model}, checkpoint trained on {', '.join(generator.models)}")
    trained_mode = "unknown" if generator is None else generator.logprobs_mode
    if "unknown" not in (logprobs_mode, trained_mode) and logprobs_mode != trained_mode:
        notes.append(f"{logprobs_mode} log-probabilities, checkpoint trained on {trained_mode} ones")
    if readers is not None and (model or readers.found) and readers.differ():
        notes.append(
            f"log-probabilities of {readers.found or 'the answering model itself'}, checkpoint trained on those of "
            f"{readers.trained or 'the answering model itself'}"
        )
    if not notes:
        return ""
    note = "; ".join(notes)
    if on_mismatch == "refuse":
        raise ContractMismatch(f"{note}: train a checkpoint on such runs, or take on_mismatch 'warn'")
    if on_mismatch == "warn":
        meaning = ORDERS_ONLY if for_strangers and other_model and len(notes) == 1 else MAY_MEAN_NOTHING
        warnings.warn(f"metaprobe: {note}; {meaning}", stacklevel=stacklevel + 1)
    return note
