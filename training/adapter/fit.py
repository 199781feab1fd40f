"""Fits the adapter probe: LoRA (Hu et al. 2021, arXiv:2106.09685) and a confidence head on a causal decoder.

A batch is padded on its right, and the head reads the last token that is none: no token of a causal model sees what is
to its right, so the padding needs no mask.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metaprobe.probes.adapter import IDS, MASK, batches
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.adapter.data import Examples
from metaprobe.training.adapter.state import collect_trained, remove_state, restore, save
from metaprobe.training.common.roles import Roles, Rows

WINDOW = 8
"""Steps whose rows are sorted by length together, so that little of a batch is padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """How an adapter is trained."""

    rank: int = 8
    """Of the LoRA matrices, on every linear layer of attention and MLP; they are scaled by 2."""
    epochs: int = 3
    batch_size: int = 8
    accumulate: int = 1
    """Batches a step."""
    lr: float = 2e-4
    """The highest learning rate: it rises over the first steps and then falls along a cosine to 0."""
    warmup: float = 0.1
    """Share of the steps over which it rises."""
    dropout: float = 0.05
    weight_decay: float = 0.01
    clip: float = 1.0
    """Largest norm of a gradient."""
    max_length: int = 512
    """Tokens that are read of each text: its last ones."""
    evaluations: int = 4
    """An epoch; after each the state is saved."""
    patience: int = 4
    """Evaluations without a lower log loss on the selection rows after which it stops."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the base; LoRA and head are float32. The export is float32 always."""
    seed: int = 0

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
        """Log-odds (n,) of ids (n, T) padded on the right, where `last` (n,) says which token is the last one."""
        states = self.decoder(input_ids=input_ids, use_cache=False).last_hidden_state  # (n, T, width)
        log_odds: Tensor = self.head(states[torch.arange(len(last)), last].float())[:, 0]
        return log_odds


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
    on_step: Callable[[str], None] = lambda what: None,
) -> FittedAdapter:
    """Train on the train rows until the selection rows get no better; goes on from `work` where it was interrupted.

    `decoder`: a transformers model without its language-model head, changed in place. `of`: what identifies base and
    data, so that another training's state is not taken for this one's. Interrupted and resumed gives the same as
    uninterrupted. Raises `RecordError` where `work` holds the state of another training, and as soon as the loss is no
    longer finite; the state is deleted then, for going on from it would end there again.
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
        learner = _Learner(accelerator, model, optimizer, parameters, settings)
        size = settings.batch_size * settings.accumulate
        an_epoch = math.ceil(len(train) / size)
        total, every = an_epoch * settings.epochs, max(1, an_epoch // settings.evaluations)
        started_with = repr((of, asdict(settings)))
        progress = restore(work, started_with, scorer, optimizer)
        lengths = np.array([len(row) for row in examples.ids])
        while progress.step < total and progress.since_best < settings.patience:
            epoch, within = divmod(progress.step, an_epoch)
            rows = train[_schedule(lengths[train], size, settings.batch_size, [settings.seed, epoch])[within]]
            # Of dropout: by the step alone, so that there is no state of a generator to be kept.
            torch.manual_seed(_seed(settings.seed, progress.step, accelerator.process_index))
            rate = settings.lr * _rate((progress.step + 1) / total, settings.warmup)
            loss = learner.step([examples.ids[i] for i in rows], labels[rows], rate)
            _check_finite(loss, scorer, progress.step, total, settings, work)
            progress.step += 1
            if progress.step % every == 0 or progress.step == total:
                scores = log_odds(scorer, [examples.ids[i] for i in selection], settings.batch_size)
                progress.losses.append(log_loss(scores, labels[selection]))
                _check_finite(progress.losses[-1], scorer, progress.step, total, settings, work)
                if not progress.since_best:
                    progress.best = {name: value.clone() for name, value in collect_trained(scorer).items()}
                if accelerator.is_main_process:
                    save(work, started_with, progress, scorer, optimizer)
                on_step(f"step {progress.step} of {total}: selection log loss {progress.losses[-1]:.4f}")
    scorer.load_state_dict(progress.best, strict=False)
    return FittedAdapter(_merge(scorer), tuple(progress.losses), progress.step, accelerator.is_main_process)


@dataclass(frozen=True, slots=True, eq=False)
class _Learner:
    """What takes one step of the training, in each of the processes that train together."""

    accelerator: Any
    model: Any
    optimizer: Any
    parameters: list[nn.Parameter]
    settings: AdapterSettings

    def step(self, ids: Sequence[Sequence[int]], y: NDArray[np.int64], rate: float) -> float:
        """Takes one step on these rows at this learning rate; returns their summed loss over all processes."""
        accelerator, settings = self.accelerator, self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        summed = torch.zeros((), device=accelerator.device)
        for start in range(0, len(ids), settings.batch_size):
            batch = range(start, min(start + settings.batch_size, len(ids)))
            mine = batch[accelerator.process_index :: accelerator.num_processes]
            with accelerator.accumulate(self.model):
                loss = _loss(
                    self.model, [ids[i] for i in mine], y[mine.start : mine.stop : mine.step], accelerator.device
                )
                summed += loss.detach()
                # Gradients are averaged over processes, whose parts of a batch may differ by one.
                accelerator.backward(loss * accelerator.num_processes / settings.batch_size)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(self.parameters, settings.clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
        return float(accelerator.reduce(summed))  # over all processes, so that all stop, and none waits for another


@torch.inference_mode()
def log_odds(scorer: AdapterScorer, ids: Sequence[Sequence[int]], batch_size: int) -> NDArray[np.float64]:
    """Of every text, (n,), uncalibrated."""
    training = scorer.training
    scorer.eval()
    found = np.empty(len(ids))
    device = scorer.head.weight.device
    for rows, inputs in batches(ids, batch_size):
        found[rows] = scorer(*_tensors(inputs, device)).double().cpu().numpy()
    scorer.train(training)
    return found


def log_loss(scores: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    """Mean negative log-likelihood, in nats, of log-odds."""
    with np.errstate(invalid="ignore"):  # NaN says it all
        return float(np.mean(np.logaddexp(0, scores) - y * scores))


def _check_finite(
    loss: float, scorer: AdapterScorer, step: int, total: int, settings: AdapterSettings, work: Path
) -> None:
    if math.isfinite(loss):
        return
    remove_state(work)
    frozen = ((name, p) for name, p in scorer.named_parameters() if not p.requires_grad)
    if bad := next((name for name, p in frozen if not torch.isfinite(p).all()), None):
        raise RecordError(f"the loss is {loss}: the base model holds NaN or infinity, as in {bad}; take another base")
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


def _merge(scorer: AdapterScorer) -> AdapterScorer:
    decoder: Any = scorer.decoder
    return AdapterScorer(decoder.float().merge_and_unload(), scorer.head).float().cpu().eval()


def _schedule(lengths: NDArray[np.int64], size: int, batch_size: int, seed: list[int]) -> Rows:
    """(steps, size): an epoch in random order, rows of like length in one batch; the last step is filled up anew."""
    rng = np.random.default_rng(seed)
    steps = math.ceil(len(lengths) / size)
    order = np.resize(rng.permutation(len(lengths)), steps * size)
    parts = []
    for start in range(0, len(order), WINDOW * size):
        window = order[start : start + WINDOW * size]
        window = window[np.argsort(lengths[window], kind="stable")].reshape(-1, batch_size)
        parts.append(rng.permutation(window).reshape(-1, size))
    return np.concatenate(parts)


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _rate(done: float, warmup: float) -> float:
    if done < warmup:
        return done / warmup
    return 0.5 * (1 + math.cos(math.pi * (done - warmup) / max(1 - warmup, 1e-9)))


def _loss(model: Any, ids: Sequence[Sequence[int]], y: NDArray[np.int64], device: torch.device) -> Tensor:
    """Summed over the rows."""
    [(rows, inputs)] = batches(ids, len(ids))
    target = torch.as_tensor(y[rows], dtype=torch.float32, device=device)
    return nn.functional.binary_cross_entropy_with_logits(model(*_tensors(inputs, device)), target, reduction="sum")


def _tensors(inputs: dict[str, NDArray[np.int64]], device: torch.device) -> Iterator[Tensor]:
    for values in (inputs[IDS], inputs[MASK].sum(axis=1) - 1):
        yield torch.as_tensor(values, device=device)
