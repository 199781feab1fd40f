"""The decoder with its confidence head, and the settings of its fit."""

import math
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor, nn

from metaprobe.records.errors import RecordError
from metaprobe.training.training_options import AdapterOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """How an adapter is trained."""

    rank: int = 8
    """Rank of the LoRA matrices on every linear layer of attention and MLP. They are scaled by 2."""
    epochs: int = 3
    """Most passes over the train rows."""
    batch_size: int = 8
    """Number of texts that are read at once."""
    accumulate: int = 1
    """Number of batches whose gradients are added for one step."""
    lr: float = 2e-4
    """Highest learning rate. The rate rises over the first steps, then falls along a cosine to 0."""
    warmup: float = 0.1
    """Share of the steps over which the learning rate rises."""
    dropout: float = 0.05
    weight_decay: float = 0.01
    clip: float = 1.0
    """Largest norm of a gradient."""
    max_length: int = 512
    """Most tokens that are read of each text: its last ones."""
    evaluations: int = 4
    """Number of evaluations in one epoch. After each evaluation the state is saved."""
    patience: int = 4
    """Number of evaluations in a row without a lower log loss on the selection rows, after which the training stops."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the base's weights. LoRA, head and export are float32."""
    seed: int = 0

    @classmethod
    def of(cls, options: AdapterOptions) -> Self:
        """Returns the settings that these options name."""
        option_names = ("rank", "epochs", "batch_size", "lr", "max_length", "seed")
        return cls(**{name: getattr(options, name) for name in option_names})

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:  # so neither is NaN
            raise RecordError(f"the learning rate is {self.lr}; expected a finite number above 0")


class AdapterScorer(nn.Module):
    """A decoder with a confidence head."""

    def __init__(self, decoder: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.decoder = decoder
        self.head = head

    def forward(self, input_ids: Tensor, last: Tensor) -> Tensor:
        """Returns log-odds (n,) of ids (n, T) padded on the right. `last` (n,) is the index of each last token."""
        states = self.decoder(input_ids=input_ids, use_cache=False).last_hidden_state  # (n, T, width)
        log_odds: Tensor = self.head(states[torch.arange(len(last)), last].float())[:, 0]
        return log_odds
