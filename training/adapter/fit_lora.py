"""Fits the adapter probe: LoRA (Hu et al. 2021, arXiv:2106.09685) and a confidence head on a causal decoder.

A batch is padded on its right, and the head reads the last token that is not padding. A token of a causal model does
not see tokens to its right, so the padding needs no mask.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from metaprobe.probes.adapter import (
    padded_batches,
)
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.adapter.examples import Examples, tensors_of
from metaprobe.training.adapter.scorer import AdapterScorer, AdapterSettings
from metaprobe.training.adapter.unfinished import collect_trained, remove_state, restore, save
from metaprobe.training.folds import Roles, Rows
from metaprobe.training.training_options import OnStep, quiet

WINDOW_STEPS = 8
"""Number of steps whose rows are sorted by length together, so that batches need little padding."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedAdapter:
    """The scorer with the lowest log loss on the selection rows, LoRA merged into its float32 weights."""

    scorer: AdapterScorer
    losses: tuple[float, ...]
    """Log loss on the selection rows at each evaluation."""
    steps: int
    """Number of steps that were taken."""
    writes: bool = True
    """Whether this process writes the checkpoint, if several processes train together."""


def fit_adapter(
    decoder: Any,
    examples: Examples,
    y: NDArray[np.int64],
    roles: Roles,
    settings: AdapterSettings,
    *,
    work: Path,
    identity: str = "",
    on_step: OnStep = quiet,
) -> FittedAdapter:
    """Trains on the train rows until the loss on the selection rows stops falling.

    An interrupted training is continued from `work`, and gives the same result as one without interruption.

    Args:
        decoder: a transformers model without its language-model head, changed in place.
        examples: the texts.
        y: labels of the table's rows.
        roles: rows of each role.
        settings: settings of the training.
        work: folder of the unfinished training.
        identity: text that identifies base and data, so that the state of another training is not continued.
        on_step: called with each step in words.

    Raises `RecordError` if `work` holds the state of another training, and as soon as the loss is no longer finite. The
    state is then deleted, because continuing from it would end there again.
    """
    # The rows, the model with LoRA, and the schedule.
    accelerator = require("accelerate", "train").Accelerator(gradient_accumulation_steps=settings.accumulate)
    if settings.batch_size < accelerator.num_processes:
        raise RecordError(
            f"a batch of {settings.batch_size} cannot be split over {accelerator.num_processes} processes; raise it"
        )
    train, selection = examples.of(roles.train), examples.of(roles.selection)
    labels = y[examples.rows]
    with torch.random.fork_rng():  # the global random state is neither used nor changed
        torch.manual_seed(settings.seed)
        scorer = _with_lora(decoder, settings, base_rate=float(labels[train].mean()))
        parameters = [p for p in scorer.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
        model, optimizer = accelerator.prepare(scorer, optimizer)
        step_rows = settings.batch_size * settings.accumulate
        steps_per_epoch = math.ceil(len(train) / step_rows)
        total_steps, steps_per_evaluation = (
            steps_per_epoch * settings.epochs,
            max(1, steps_per_epoch // settings.evaluations),
        )
        started_with = repr((identity, asdict(settings)))
        progress = restore(work, started_with, scorer, optimizer)
        # Steps, with an evaluation and a saved state at intervals.
        lengths = np.array([len(row) for row in examples.ids])
        while progress.step < total_steps and progress.since_best < settings.patience:
            epoch, step_of_epoch = divmod(progress.step, steps_per_epoch)
            rows = train[
                _schedule(lengths[train], step_rows, settings.batch_size, [settings.seed, epoch])[step_of_epoch]
            ]
            # The seed of dropout depends only on the step, so no state of a generator has to be saved.
            state = np.random.SeedSequence((settings.seed, progress.step, accelerator.process_index))
            torch.manual_seed(int(state.generate_state(1)[0]))
            learning_rate = settings.lr * _rate_share((progress.step + 1) / total_steps, settings.warmup)
            ids = [examples.ids[i] for i in rows]
            loss = _take_step(
                accelerator, model, optimizer, settings, ids=ids, y=labels[rows], learning_rate=learning_rate
            )
            _check_finite(loss, step=progress.step, total_steps=total_steps, settings=settings, work=work)
            progress.step += 1
            if progress.step % steps_per_evaluation == 0 or progress.step == total_steps:
                scores = scored_log_odds(scorer, [examples.ids[i] for i in selection], settings.batch_size)
                with np.errstate(invalid="ignore"):  # `_check_finite` reports NaN
                    row_losses = np.logaddexp(0, scores) - labels[selection] * scores
                progress.losses.append(float(np.mean(row_losses)))
                _check_finite(
                    progress.losses[-1], step=progress.step, total_steps=total_steps, settings=settings, work=work
                )
                if not progress.since_best:
                    progress.best = {name: value.clone() for name, value in collect_trained(scorer).items()}
                if accelerator.is_main_process:
                    save(work, started_with, progress, scorer, optimizer)
                on_step(f"step {progress.step} of {total_steps}: selection log loss {progress.losses[-1]:.4f}")
    # The best weights, merged.
    scorer.load_state_dict(progress.best, strict=False)
    trained: Any = scorer.decoder
    merged = AdapterScorer(trained.float().merge_and_unload(), scorer.head).float().cpu().eval()
    return FittedAdapter(merged, tuple(progress.losses), progress.step, accelerator.is_main_process)


def _take_step(
    accelerator: Any,
    model: Any,
    optimizer: Any,
    settings: AdapterSettings,
    *,
    ids: Sequence[Sequence[int]],
    y: NDArray[np.int64],
    learning_rate: float,
) -> float:
    """Takes one step, in each of the processes that train together. Returns the summed loss over all processes.

    Args:
        accelerator: the accelerator.
        model: the model that is trained.
        optimizer: its optimizer.
        settings: settings of the training.
        ids: token ids of the step's texts.
        y: labels of these texts.
        learning_rate: learning rate of the step.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    device = accelerator.device
    loss_sum = torch.zeros((), device=device)
    for start in range(0, len(ids), settings.batch_size):
        own_rows = range(start, min(start + settings.batch_size, len(ids)))
        own_rows = own_rows[accelerator.process_index :: accelerator.num_processes]
        [(rows, inputs)] = padded_batches([ids[i] for i in own_rows], len(own_rows))
        target = torch.as_tensor(y[np.array(own_rows)[rows]], dtype=torch.float32, device=device)
        with accelerator.accumulate(model):
            scores = model(*tensors_of(inputs, device))
            loss = nn.functional.binary_cross_entropy_with_logits(scores, target, reduction="sum")
            loss_sum += loss.detach()
            # Gradients are averaged over processes, whose parts of a batch may differ by one.
            accelerator.backward(loss * accelerator.num_processes / settings.batch_size)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(
                    [p for group in optimizer.param_groups for p in group["params"]], settings.clip
                )
            optimizer.step()
            optimizer.zero_grad()
    return float(accelerator.reduce(loss_sum))  # the same sum in all processes, so that all of them stop together


@torch.inference_mode()
def scored_log_odds(scorer: AdapterScorer, ids: Sequence[Sequence[int]], batch_size: int) -> NDArray[np.float64]:
    """Returns the uncalibrated log-odds (n,) of the texts."""
    training = scorer.training
    scorer.eval()
    scores = np.empty(len(ids))
    device = scorer.head.weight.device
    for rows, inputs in padded_batches(ids, batch_size):
        scores[rows] = scorer(*tensors_of(inputs, device)).double().cpu().numpy()
    scorer.train(training)
    return scores


def _check_finite(loss: float, *, step: int, total_steps: int, settings: AdapterSettings, work: Path) -> None:
    """Raises `RecordError` if the loss is not finite, and deletes the state, because it could not be continued.

    Args:
        loss: the loss.
        step: number of steps that were taken.
        total_steps: number of steps of the whole training.
        settings: settings of the training.
        work: folder of the state.
    """
    if math.isfinite(loss):
        return
    remove_state(work)
    raise RecordError(
        f"the loss is {loss} after {step} of {total_steps} steps: the training diverged; lower the learning rate "
        f"(--lr) of {settings.lr:g}"
    )


def _with_lora(decoder: Any, settings: AdapterSettings, *, base_rate: float) -> AdapterScorer:
    """Returns the decoder with LoRA and a new head, whose first output is the log-odds of `base_rate`."""
    peft = require("peft", "train")
    config = peft.LoraConfig(
        r=settings.rank, lora_alpha=2 * settings.rank, lora_dropout=settings.dropout, target_modules="all-linear"
    )
    width = decoder.config.get_text_config().hidden_size
    head = nn.Linear(width, 1)
    with torch.no_grad():  # the first output is the base rate, which is known without reading
        head.weight.zero_()
        head.bias.fill_(math.log(base_rate / (1 - base_rate)))
    with warnings.catch_warnings():  # peft 0.21 uses an old name of transformers 5.23
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return AdapterScorer(peft.get_peft_model(decoder, config), head).train()


def _schedule(lengths: NDArray[np.int64], step_rows: int, batch_size: int, seed: list[int]) -> Rows:
    """Returns the rows of each step of an epoch, (steps, step_rows), in random order.

    Rows of similar length share a batch. The last step is filled up with rows from the beginning of the order.

    Args:
        lengths: number of tokens of each row.
        step_rows: number of rows of a step.
        batch_size: number of rows of a batch.
        seed: seed of the order.
    """
    rng = np.random.default_rng(seed)
    steps = math.ceil(len(lengths) / step_rows)
    order = np.resize(rng.permutation(len(lengths)), steps * step_rows)
    parts = []
    for start in range(0, len(order), WINDOW_STEPS * step_rows):
        window = order[start : start + WINDOW_STEPS * step_rows]
        window = window[np.argsort(lengths[window], kind="stable")].reshape(-1, batch_size)
        parts.append(rng.permutation(window).reshape(-1, step_rows))
    return np.concatenate(parts)


def _rate_share(share_done: float, warmup: float) -> float:
    """Returns the share of the highest learning rate after this share of the steps: it rises, then falls to 0."""
    if share_done < warmup:
        return share_done / warmup
    return 0.5 * (1 + math.cos(math.pi * (share_done - warmup) / max(1 - warmup, 1e-9)))
