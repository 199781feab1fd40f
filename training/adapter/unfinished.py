"""The state of an unfinished adapter training: one file in a folder that may hold files of the user."""

import pickle
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metaprobe.records.errors import RecordError

STATE_FILE = "state.pt"
PARTIAL_FILE = f"{STATE_FILE}.tmp"


@dataclass(slots=True, eq=False)
class AdapterProgress:
    """Progress of a training, which is saved with the optimizer's state."""

    step: int = 0
    """Number of steps that were taken."""
    losses: list[float] = field(default_factory=list)
    """Log loss on the selection rows at each evaluation."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """Trained weights at the evaluation with the lowest log loss."""

    @property
    def since_best(self) -> int:
        """Number of evaluations since the one with the lowest log loss."""
        return len(self.losses) - 1 - int(np.argmin(self.losses)) if self.losses else 0


def check_work(work: Path) -> None:
    """Raises `RecordError` if `work` is a file, or a folder with other files and no state of a training."""
    if work.exists() and not work.is_dir():
        raise RecordError(f"{work} is a file; expected a folder for the state of the training: give another one")
    file_names = {entry.name for entry in work.iterdir()} if work.exists() else set()
    if STATE_FILE not in file_names and (others := sorted(file_names - {PARTIAL_FILE})):
        raise RecordError(
            f"{work} holds {', '.join(others[:3])}{' and more' if len(others) > 3 else ''} and no state of a training: "
            f"give a folder that is empty or not there yet"
        )


def remove_state(work: Path) -> None:
    """Deletes the files that a training wrote to `work`, and then the folder if it is empty."""
    with suppress(OSError):  # the folder holds something else, or was never made
        for name in (STATE_FILE, PARTIAL_FILE):
            (work / name).unlink(missing_ok=True)
        work.rmdir()


def collect_trained(scorer: nn.Module) -> dict[str, Tensor]:
    """Returns the weights that are trained, on the CPU."""
    return {name: value.detach().cpu() for name, value in scorer.named_parameters() if value.requires_grad}


def save(work: Path, started_with: str, progress: AdapterProgress, scorer: nn.Module, optimizer: Any) -> None:
    """Writes the state to one file. It is renamed into place, so that a kill leaves the previous file whole.

    Args:
        work: the folder.
        started_with: text that identifies base, data and settings.
        progress: the progress.
        scorer: the model that is trained.
        optimizer: its optimizer.
    """
    work.mkdir(parents=True, exist_ok=True)
    state = {
        **asdict(progress),
        "of": started_with,
        "weights": collect_trained(scorer),
        "optimizer": optimizer.state_dict(),
    }
    partial = work / PARTIAL_FILE
    torch.save(state, partial)
    partial.replace(work / STATE_FILE)


def restore(work: Path, started_with: str, scorer: nn.Module, optimizer: Any) -> AdapterProgress:
    """Returns the stored progress and restores weights and optimizer; the initial progress if `work` holds no state.

    Raises `RecordError` if the file is damaged, is no state of a training, or is of a training with another base, other
    data or other settings.
    """
    path = work / STATE_FILE
    if not path.exists():
        return AdapterProgress()
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise RecordError(
            f"{path} cannot be read, and nothing else is taken from it: {error}; delete it, or give another --work "
            f"folder"
        ) from error
    if not isinstance(state, dict) or "of" not in state:
        raise RecordError(
            f"{path} is no state of an adapter training, and is left as it is: give another --work folder"
        )
    if state["of"] != started_with:
        raise RecordError(
            f"{path} is of a training with another base, other data or other settings: give the same ones to go on "
            f"with it, or another --work folder, or delete it"
        )
    scorer.load_state_dict(state["weights"], strict=False)
    optimizer.load_state_dict(state["optimizer"])
    return AdapterProgress(state["step"], state["losses"], state["best"])
