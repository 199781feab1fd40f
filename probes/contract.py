"""Is this response one that the checkpoint was trained for? Refused or scored with a warning, as the caller chose."""

import warnings
from typing import Literal, get_args

from metaprobe.checkpoints import ContractMismatch, Generator

OnMismatch = Literal["warn", "refuse", "ignore", "note"]
"""`note`: said in the reason of the verdict, without a warning; so does `warn`."""


def check_choice(on_mismatch: OnMismatch) -> OnMismatch:
    """The choice itself. Raises `ValueError` for one that does not exist: it would quietly mean something else."""
    if on_mismatch not in get_args(OnMismatch):
        raise ValueError(f"on_mismatch is {on_mismatch!r}; expected one of {', '.join(get_args(OnMismatch))}")
    return on_mismatch


def mismatch(
    generator: Generator | None, *, model: str, logprobs_mode: str = "unknown", on_mismatch: OnMismatch, stacklevel: int
) -> str:
    """What differs from the model and log-probability mode that the checkpoint was trained on; empty for nothing.

    Warns, or raises `ContractMismatch` with `on_mismatch="refuse"`. What is not known (an empty model, mode `unknown`)
    is not held against a response.
    """
    if generator is None or on_mismatch == "ignore":
        return ""
    found = []
    if model and model not in generator.models:
        found.append(f"response of {model}, checkpoint trained on {', '.join(generator.models)}")
    if "unknown" not in (logprobs_mode, generator.logprobs_mode) and logprobs_mode != generator.logprobs_mode:
        found.append(f"{logprobs_mode} log-probabilities, checkpoint trained on {generator.logprobs_mode} ones")
    if not found:
        return ""
    note = "; ".join(found)
    if on_mismatch == "refuse":
        raise ContractMismatch(f"{note}: train a checkpoint on this model's runs, or take on_mismatch 'warn'")
    if on_mismatch == "warn":
        warnings.warn(f"metaprobe: {note}; the score may mean nothing", stacklevel=stacklevel + 1)
    return note
