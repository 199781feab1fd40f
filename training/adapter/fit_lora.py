"""Fits the adapter probe: LoRA (Hu et al. 2021, arXiv:2106.09685) and a confidence head on a causal decoder.

A batch is padded on its right, and the head reads the last token that is not padding. No token of a causal model sees
what is to its right, so the padding needs no mask.
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

WINDOW = 8
"""Number of steps whose rows are sorted by length together, so that batches need little padding."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedAdapter:
    """The scorer with the lowest log loss on the selection rows, LoRA merged into its float32 weights."""

    scorer: AdapterScorer
    losses: tuple[float, ...]
    """Log loss on the selection rows at each evaluation."""
    steps: int
    writes: bool = True
    """Whether this is the process that writes the checkpoint, of those that train together."""


def fit_adapter(
    decoder: Any,
    examples: Examples,
    y: NDArray[np.int64],
    roles: Roles,
    settings: AdapterSettings,
    *,
    work: Path,
    of: str = "",
    on_step: OnStep = quiet,
) -> FittedAdapter:
    """Trains on the train rows until the selection rows get no better; continues from `work` after an interruption.

    A training that is interrupted and resumed gives the same as one without interruption.

    Args:
        decoder: a transformers model without its language-model head, changed in place.
        examples: the texts.
        y: labels of the table's rows.
        roles: rows of each role.
        settings: settings of the training.
        work: folder of the unfinished training.
        of: identifies base and data, so that the state of another training is not continued.
        on_step: called with each step in words.

    Raises `RecordError` if `work` holds the state of another training, and as soon as the loss is no longer finite. The
    state is then deleted, because continuing from it would end there again.
    """
    accelerator = require("accelerate", "train").Accelerator(gradient_accumulation_steps=settings.accumulate)
    if settings.batch_size < accelerator.num_processes:
        raise RecordError(
            f"a batch of {settings.batch_size} cannot be split over {accelerator.num_processes} processes; raise it"
        )
    train, selection = examples.of(roles.train), examples.of(roles.selection)
    labels = y[examples.rows]
    with torch.random.fork_rng():  # neither taken from the global generator nor left to it
        torch.manual_seed(settings.seed)
        scorer = _with_lora(decoder, settings, base_rate=float(labels[train].mean()))
        parameters = [p for p in scorer.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
        model, optimizer = accelerator.prepare(scorer, optimizer)
        size = settings.batch_size * settings.accumulate
        an_epoch = math.ceil(len(train) / size)
        total, every = an_epoch * settings.epochs, max(1, an_epoch // settings.evaluations)
        started_with = repr((of, asdict(settings)))
        progress = restore(work, started_with, scorer, optimizer)
        lengths = np.array([len(row) for row in examples.ids])
        while progress.step < total and progress.since_best < settings.patience:
            epoch, within = divmod(progress.step, an_epoch)
            rows = train[_schedule(lengths[train], size, settings.batch_size, [settings.seed, epoch])[within]]
            # The seed of dropout follows from the step alone, so that no state of a generator must be kept.
            state = np.random.SeedSequence((settings.seed, progress.step, accelerator.process_index))
            torch.manual_seed(int(state.generate_state(1)[0]))
            rate = settings.lr * _rate((progress.step + 1) / total, settings.warmup)
            ids = [examples.ids[i] for i in rows]
            loss = _take_step(accelerator, model, optimizer, settings, ids, labels[rows], rate)
            _check_finite(loss, progress.step, total, settings, work)
            progress.step += 1
            if progress.step % every == 0 or progress.step == total:
                scores = scored_log_odds(scorer, [examples.ids[i] for i in selection], settings.batch_size)
                with np.errstate(invalid="ignore"):  # NaN says it all
                    each = np.logaddexp(0, scores) - labels[selection] * scores
                progress.losses.append(float(np.mean(each)))
                _check_finite(progress.losses[-1], progress.step, total, settings, work)
                if not progress.since_best:
                    progress.best = {name: value.clone() for name, value in collect_trained(scorer).items()}
                if accelerator.is_main_process:
                    save(work, started_with, progress, scorer, optimizer)
                on_step(f"step {progress.step} of {total}: selection log loss {progress.losses[-1]:.4f}")
    scorer.load_state_dict(progress.best, strict=False)
    trained: Any = scorer.decoder
    merged = AdapterScorer(trained.float().merge_and_unload(), scorer.head).float().cpu().eval()
    return FittedAdapter(merged, tuple(progress.losses), progress.step, accelerator.is_main_process)


def _take_step(
    accelerator: Any,
    model: Any,
    optimizer: Any,
    settings: AdapterSettings,
    ids: Sequence[Sequence[int]],
    y: NDArray[np.int64],
    rate: float,
) -> float:
    """Takes one step on these rows at this learning rate, in each of the processes that train together.

    Returns the rows' summed loss over all processes.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    device = accelerator.device
    summed = torch.zeros((), device=device)
    for start in range(0, len(ids), settings.batch_size):
        mine = range(start, min(start + settings.batch_size, len(ids)))
        mine = mine[accelerator.process_index :: accelerator.num_processes]
        [(rows, inputs)] = padded_batches([ids[i] for i in mine], len(mine))
        target = torch.as_tensor(y[np.array(mine)[rows]], dtype=torch.float32, device=device)
        with accelerator.accumulate(model):
            scores = model(*tensors_of(inputs, device))
            loss = nn.functional.binary_cross_entropy_with_logits(scores, target, reduction="sum")
            summed += loss.detach()
            # Gradients are averaged over processes, whose parts of a batch may differ by one.
            accelerator.backward(loss * accelerator.num_processes / settings.batch_size)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(
                    [p for group in optimizer.param_groups for p in group["params"]], settings.clip
                )
            optimizer.step()
            optimizer.zero_grad()
    return float(accelerator.reduce(summed))  # over all processes, so that all stop, and none waits for another


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


def _check_finite(loss: float, step: int, total: int, settings: AdapterSettings, work: Path) -> None:
    if math.isfinite(loss):
        return
    remove_state(work)
    raise RecordError(
        f"the loss is {loss} after {step} of {total} steps: the training diverged; lower the learning rate (--lr) of "
        f"{settings.lr:g}"
    )


def _with_lora(decoder: Any, settings: AdapterSettings, *, base_rate: float) -> AdapterScorer:
    peft = require("peft", "train")
    config = peft.LoraConfig(
        r=settings.rank, lora_alpha=2 * settings.rank, lora_dropout=settings.dropout, target_modules="all-linear"
    )
    width = decoder.config.get_text_config().hidden_size
    head = nn.Linear(width, 1)
    with torch.no_grad():  # it begins with what is known without reading
        head.weight.zero_()
        head.bias.fill_(math.log(base_rate / (1 - base_rate)))
    with warnings.catch_warnings():  # peft 0.21 asks transformers 5.23 for something under its old name
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return AdapterScorer(peft.get_peft_model(decoder, config), head).train()


def _schedule(lengths: NDArray[np.int64], size: int, batch_size: int, seed: list[int]) -> Rows:
    """Returns (steps, size): an epoch in random order, rows of like length in one batch. The last step is filled up
    anew."""
    rng = np.random.default_rng(seed)
    steps = math.ceil(len(lengths) / size)
    order = np.resize(rng.permutation(len(lengths)), steps * size)
    parts = []
    for start in range(0, len(order), WINDOW * size):
        window = order[start : start + WINDOW * size]
        window = window[np.argsort(lengths[window], kind="stable")].reshape(-1, batch_size)
        parts.append(rng.permutation(window).reshape(-1, size))
    return np.concatenate(parts)


def _rate(done: float, warmup: float) -> float:
    if done < warmup:
        return done / warmup
    return 0.5 * (1 + math.cos(math.pi * (done - warmup) / max(1 - warmup, 1e-9)))
