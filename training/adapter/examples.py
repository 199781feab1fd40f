"""Examples of the adapter probe: tokens with labels, the rows of each role, and the depth of the decoder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metaprobe.eval.answer_table import AnswerTable, usable_groups
from metaprobe.probes.adapter import (
    IDS,
    MASK,
    Encoder,
    JudgementTime,
    layout,
    padded_batches,
)
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.adapter.scorer import AdapterSettings
from metaprobe.training.folds import Roles, Rows, outer_folds
from metaprobe.training.linear_probe import held_out_folds, near_best
from metaprobe.training.stored_states import InMemory
from metaprobe.training.text_data import TextData

TEST_FOLDS = 5
"""Number of outer folds of which one is the test part. Only this fold is used, because training one language model for
each fold would take too long.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """m texts to judge. Each row of the table has a text for each moment at which it is judged."""

    ids: tuple[tuple[int, ...], ...]
    rows: Rows
    """Index (m,) of each example's row in the table."""
    when: NDArray[np.str_]
    """Whether each example (m,) is read `before` or `after` the answer."""

    def of(self, rows: Rows, when: JudgementTime | None = None) -> Rows:
        """Returns the indices of the examples of these rows (and of this moment, if one is given), ascending."""
        is_chosen = np.isin(self.rows, rows)
        return np.flatnonzero(is_chosen if when is None else is_chosen & (self.when == when))


def adapter_roles(table: AnswerTable, *, seed: int = 0) -> Roles:
    """Returns train, selection, calibration and test rows, disjoint by group: the first of five outer folds.

    Methods that are compared with an adapter probe are fitted in the same roles. Raises `RecordError` if the groups do
    not suffice, or if all labels are the same.
    """
    groups = table.groups.tolist()
    usable_groups(groups, table.y, folds=TEST_FOLDS)
    return next(outer_folds(groups, table.y, folds=TEST_FOLDS, seed=seed))


def examples(data: TextData, whens: Sequence[JudgementTime], encoder: Encoder) -> Examples:
    """Returns every row as a text for each moment: `before` holds the prompt alone, `after` prompt and answer."""
    n = len(data.table)
    texts = [
        layout(prompt, answer if when == "after" else None)
        for when in whens
        for prompt, answer in zip(data.prompts, data.answers, strict=True)
    ]
    ids = tuple(tuple(row) for row in encoder.ids(texts))
    return Examples(ids, np.tile(np.arange(n), len(whens)), np.repeat(np.array(whens), n))


MIN_DEPTH_SHARE = 1 / 3
"""Least share of the base model's layers that is kept. With fewer layers, too little is left to adapt."""
LAST_POSITION = "answer_last"
"""Position whose states choose the depth."""


def choose_depth(decoder: Any, examples: Examples, data: TextData, roles: Roles, settings: AdapterSettings) -> int:
    """Returns how many of the base's lower layers the adapter keeps. Higher layers would only cost time.

    The depth is the lowest layer, from `MIN_DEPTH_SHARE` on, whose last-token states predict the label as well as those
    of any layer. Layers are compared by probes on inner folds of the learning rows, by group. Raises `RecordError` if
    the base holds NaN or infinity.

    Args:
        decoder: the base model.
        examples: the texts.
        data: the labelled answers.
        roles: rows of each role.
        settings: settings of the training.
    """
    if bad_name := next((name for name, p in decoder.named_parameters() if not torch.isfinite(p).all()), None):
        raise RecordError(f"the base model holds NaN or infinity, as in {bad_name}; take another base")
    rows = examples.of(roles.learning)
    decoder.to(require("accelerate", "train").PartialState().device)
    values = last_states(decoder, [examples.ids[i] for i in rows], settings.batch_size)
    layer_numbers = tuple(range(1, values.shape[1] + 1))
    states = InMemory(Activations(tuple(map(str, rows.tolist())), values[:, :, None], layer_numbers, (LAST_POSITION,)))
    all_rows, no_rows = np.arange(len(rows)), np.arange(0)
    judged = data.table.rows(examples.rows[rows])
    places = [(layer, LAST_POSITION) for layer in layer_numbers if layer >= MIN_DEPTH_SHARE * len(layer_numbers)]
    learning = Roles(all_rows, no_rows, no_rows, no_rows)
    aurocs = held_out_folds(states, judged.y, judged.groups.tolist(), learning, places, seed=settings.seed)
    return places[int(near_best(aurocs).any(axis=1).argmax())][0]


@torch.inference_mode()
def last_states(decoder: Any, ids: Sequence[Sequence[int]], batch_size: int) -> NDArray[np.float32]:
    """Returns the states of the last token after each layer, (n, layers, width), scaled to a root mean square of 1.

    A decoder that ends at this layer scales its states in the same way before the head reads them.
    """
    rows_of_states = []
    order: list[int] = []
    for rows, inputs in padded_batches(ids, batch_size):
        tokens, last = tensors_of(inputs, decoder.device)
        hidden = decoder(input_ids=tokens, use_cache=False, output_hidden_states=True).hidden_states[1:]
        rows_of_states.append(torch.stack([layer[torch.arange(len(last)), last] for layer in hidden], 1).float().cpu())
        order += rows.tolist()
    states = torch.cat(rows_of_states)[np.argsort(order)]
    return (states / states.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-12)).numpy()


def cut_layers(decoder: Any, depth: int) -> None:
    """Removes all layers of the decoder except the lower `depth` ones."""
    config = decoder.config.get_text_config()
    name, layers = next(
        (name, child)
        for name, child in decoder.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers
    )
    setattr(decoder, name, layers[:depth])
    config.num_hidden_layers = depth


def tensors_of(inputs: dict[str, NDArray[np.int64]], device: torch.device) -> Iterator[Tensor]:
    """Yields the arguments of `AdapterScorer.forward`: token ids (n, T), and the index of each last token (n,)."""
    for values in (inputs[IDS], inputs[MASK].sum(axis=1) - 1):
        yield torch.as_tensor(values, device=device)
