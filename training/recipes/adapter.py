"""The recipe of the adapter probe: a small language model with LoRA, split, fitted, calibrated, exported, measured."""

import logging
import math
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metaprobe.checkpoints import Checkpoint
from metaprobe.checkpoints.checkpoint import MAX_TOLERANCE, ROUNDED_TOLERANCE, GraphSession
from metaprobe.checkpoints.onnx_wire import FLOAT
from metaprobe.eval.audits import AuditInputs, AuditReport, run_audits
from metaprobe.eval.audits_of_data import class_balance, group_overlap, label_noise, near_duplicates, repeated_questions
from metaprobe.eval.compare import Judged, auroc_gain
from metaprobe.eval.controls import FITTED, PROMPT, free_controls
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.table import AnswerTable, usable_groups
from metaprobe.llms.base import LLMError
from metaprobe.llms.weights import resolve
from metaprobe.probes.adapter import (
    ADAPTER,
    IDS,
    LAYOUT,
    MASK,
    SAMPLE,
    TOKENIZER,
    Encoder,
    When,
    layout,
    padded_batches,
)
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.calibration import Platt, fit_platt
from metaprobe.training.checkpoint import Export, GraphBuilder, write_checkpoint, writes
from metaprobe.training.evidence import Scores, TextData, load_texts
from metaprobe.training.folds import Roles, Rows, outer_folds
from metaprobe.training.methods import control_methods
from metaprobe.training.options import AdapterOptions, OnStep, question_texts, quiet
from metaprobe.training.states import InMemory, held_out_folds, near_best
from metaprobe.training.study import figures_of

TEST_FOLDS = 5
"""The test part is one of so many outer folds: training one language model a fold would take too long."""


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """m texts to judge: each row of the table once for each moment at which it is judged."""

    ids: tuple[tuple[int, ...], ...]
    rows: Rows
    """(m,): which row of the table."""
    when: NDArray[np.str_]
    """(m,): `before` or `after`."""

    def of(self, rows: Rows, when: When | None = None) -> Rows:
        """Which examples are of these rows (and of this moment), ascending."""
        chosen = np.isin(self.rows, rows)
        return np.flatnonzero(chosen if when is None else chosen & (self.when == when))


def adapter_roles(table: AnswerTable, *, seed: int = 0) -> Roles:
    """Train, selection, calibration and test rows, disjoint by group: the first of five outer folds.

    What is compared with an adapter probe is fitted in the same roles. Raises `RecordError` where the groups do not
    suffice, or where all labels are the same.
    """
    groups = table.groups.tolist()
    usable_groups(groups, table.y, folds=TEST_FOLDS)
    return next(outer_folds(groups, table.y, folds=TEST_FOLDS, seed=seed))


def examples(data: TextData, whens: Sequence[When], encoder: Encoder) -> Examples:
    """Every answer as text, `before` without and `after` with the answer itself."""
    n = len(data.table)
    texts = [
        layout(prompt, answer if when == "after" else None)
        for when in whens
        for prompt, answer in zip(data.prompts, data.answers, strict=True)
    ]
    ids = tuple(tuple(row) for row in encoder.ids(texts))
    return Examples(ids, np.tile(np.arange(n), len(whens)), np.repeat(np.array(whens), n))


LEAST_DEPTH = 1 / 3
"""Share of the base's layers that is always kept: of fewer, too little is left to adapt."""
LAST = "answer_last"


def choose_depth(decoder: Any, examples: Examples, data: TextData, roles: Roles, settings: "AdapterSettings") -> int:
    """Returns how many of the base's lower layers the adapter is trained on: what lies above costs time alone.

    The lowest layer whose states of the last token tell the label as well as those of any layer, as far as inner folds
    of the learning rows by group can distinguish. Raises `RecordError` for a base that holds NaN or infinity.
    """
    if bad := next((name for name, p in decoder.named_parameters() if not torch.isfinite(p).all()), None):
        raise RecordError(f"the base model holds NaN or infinity, as in {bad}; take another base")
    rows = examples.of(roles.learning)
    decoder.to(require("accelerate", "train").PartialState().device)
    values = last_states(decoder, [examples.ids[i] for i in rows], settings.batch_size)
    numbers = tuple(range(1, values.shape[1] + 1))
    states = InMemory(Activations(tuple(map(str, rows.tolist())), values[:, :, None], numbers, (LAST,)))
    every, nothing = np.arange(len(rows)), np.arange(0)
    judged = data.table.rows(examples.rows[rows])
    places = [(number, LAST) for number in numbers if number >= LEAST_DEPTH * len(numbers)]
    learning = Roles(every, nothing, nothing, nothing)
    reached = held_out_folds(states, judged.y, judged.groups.tolist(), learning, places, seed=settings.seed)
    return places[int(near_best(reached).any(axis=1).argmax())][0]


@torch.inference_mode()
def last_states(decoder: Any, ids: Sequence[Sequence[int]], batch_size: int) -> NDArray[np.float32]:
    """Returns the states of the last token after each layer, (n, layers, width), each of root mean square 1.

    A decoder that ends at the layer scales them likewise before the head reads them.
    """
    rows_of_states = []
    order: list[int] = []
    for rows, inputs in padded_batches(ids, batch_size):
        tokens, last = _tensors(inputs, decoder.device)
        hidden = decoder(input_ids=tokens, use_cache=False, output_hidden_states=True).hidden_states[1:]
        rows_of_states.append(torch.stack([layer[torch.arange(len(last)), last] for layer in hidden], 1).float().cpu())
        order += rows.tolist()
    states = torch.cat(rows_of_states)[np.argsort(order)]
    return (states / states.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-12)).numpy()


def cut_layers(decoder: Any, depth: int) -> None:
    """Leaves the decoder its lower layers alone."""
    config = decoder.config.get_text_config()
    name, layers = next(
        (name, child)
        for name, child in decoder.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers
    )
    setattr(decoder, name, layers[:depth])
    config.num_hidden_layers = depth


# The state of an unfinished adapter training: one file in a folder that may be the user's own.

STATE_FILE = "state.pt"
PARTIAL = f"{STATE_FILE}.tmp"


@dataclass(slots=True, eq=False)
class AdapterProgress:
    """Progress of a training that is saved beside the optimizer's state."""

    step: int = 0
    losses: list[float] = field(default_factory=list)
    """Log loss on the selection rows at each evaluation."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """The trained weights at the lowest of them."""

    @property
    def since_best(self) -> int:
        return len(self.losses) - 1 - int(np.argmin(self.losses)) if self.losses else 0


def check_work(work: Path) -> None:
    """Nothing where a training may keep its state in the folder `work`, so that it can ask before it begins.

    Raises `RecordError` where that is a file, or a folder that holds something and no state of a training.
    """
    if work.exists() and not work.is_dir():
        raise RecordError(f"{work} is a file; expected a folder for the state of the training: give another one")
    held = {entry.name for entry in work.iterdir()} if work.exists() else set()
    if STATE_FILE not in held and (others := sorted(held - {PARTIAL})):
        raise RecordError(
            f"{work} holds {', '.join(others[:3])}{' and more' if len(others) > 3 else ''} and no state of a training: "
            f"give a folder that is empty or not there yet"
        )


def remove_state(work: Path) -> None:
    """Deletes what a training wrote to `work`, and then the folder if nothing else is in it."""
    with suppress(OSError):  # the folder holds something else, or was never made
        for name in (STATE_FILE, PARTIAL):
            (work / name).unlink(missing_ok=True)
        work.rmdir()


def collect_trained(scorer: nn.Module) -> dict[str, Tensor]:
    """The weights that are trained, on the CPU."""
    return {name: value.detach().cpu() for name, value in scorer.named_parameters() if value.requires_grad}


def save(work: Path, started_with: str, progress: AdapterProgress, scorer: nn.Module, optimizer: Any) -> None:
    """One file, in its place at once, so that a kill leaves the last one whole."""
    work.mkdir(parents=True, exist_ok=True)
    state = {
        **asdict(progress),
        "of": started_with,
        "weights": collect_trained(scorer),
        "optimizer": optimizer.state_dict(),
    }
    partial = work / PARTIAL
    torch.save(state, partial)
    partial.replace(work / STATE_FILE)


def restore(work: Path, started_with: str, scorer: nn.Module, optimizer: Any) -> AdapterProgress:
    """Returns the stored progress, with its weights put back; the beginning where `work` holds no state.

    Raises `RecordError` where the state is damaged, none of ours, or of a training that started with something else.
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


# Fits the adapter probe: LoRA (Hu et al. 2021, arXiv:2106.09685) and a confidence head on a causal decoder.
#
# A batch is padded on its right, and the head reads the last token that is not padding. No token of a causal model sees
# what is to its right, so the padding needs no mask.

WINDOW = 8
"""Steps whose rows are sorted by length together, so that little of a batch is padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """How an adapter is trained."""

    rank: int = 8
    """Rank of the LoRA matrices on every linear layer of attention and MLP. They are scaled by 2."""
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
    """Type of the base's weights. LoRA, head and export are float32."""
    seed: int = 0

    @classmethod
    def of(cls, options: AdapterOptions) -> Self:
        """Returns the settings that these options name."""
        named = ("rank", "epochs", "batch_size", "lr", "max_length", "seed")
        return cls(**{name: getattr(options, name) for name in named})

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
    on_step: OnStep = quiet,
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
            scores = model(*_tensors(inputs, device))
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
        scores[rows] = scorer(*_tensors(inputs, device)).double().cpu().numpy()
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


def _rate(done: float, warmup: float) -> float:
    if done < warmup:
        return done / warmup
    return 0.5 * (1 + math.cos(math.pi * (done - warmup) / max(1 - warmup, 1e-9)))


def _tensors(inputs: dict[str, NDArray[np.int64]], device: torch.device) -> Iterator[Tensor]:
    for values in (inputs[IDS], inputs[MASK].sum(axis=1) - 1):
        yield torch.as_tensor(values, device=device)


# The adapter probe as one ONNX graph of standard operators: decoder with LoRA merged in, head and calibration.

MASKED_ATTENTION = -1e9
"""Added to attention scores of later tokens. Not minus infinity, which the guard of checkpoints refuses in a graph."""
MAX_BYTES = (1 << 31) - (1 << 24)
"""Most bytes of float32 weights: an ONNX file is a protobuf message, which ends at 2 GiB."""


class _Calibrated(nn.Module):
    """P(right), one (n, 1) output a moment."""

    def __init__(self, scorer: AdapterScorer, platts: Sequence[Platt]) -> None:
        super().__init__()
        self.scorer = scorer
        self.platts = platts

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        n, T = input_ids.shape
        at = torch.arange(T)
        # Given whole, so that no version of transformers has to build one while it is traced.
        causal = torch.where(at[:, None] >= at[None, :], 0.0, MASKED_ATTENTION)[None, None]  # (1, 1, T, T)
        states = self.scorer.decoder(
            input_ids=input_ids, attention_mask=causal, use_cache=False
        ).last_hidden_state  # (n, T, width)
        last = (attention_mask * at).amax(1)
        state = states.gather(1, last[:, None, None].expand(n, 1, states.shape[-1]))[:, 0]
        log_odds = self.scorer.head(state)
        return tuple(torch.sigmoid(platt.slope * log_odds + platt.intercept) for platt in self.platts)


def adapter_graph(scorer: AdapterScorer, platts: Mapping[When, Platt]) -> bytes:
    """`input_ids` and `attention_mask` int64 (n, T), padded on the right, to one calibrated (n, 1) output a moment.

    `scorer` as `fit_adapter` returns it; its attention is set to the plain implementation. Raises `RecordError` where
    its weights exceed what one ONNX file can hold.
    """
    require("onnxscript", "train")
    size = sum(4 * parameter.numel() for parameter in scorer.parameters())
    if size > MAX_BYTES:
        raise RecordError(
            f"the base has {size / 1e9:.1f} GB of float32 weights; one ONNX file holds {MAX_BYTES / 1e9:.1f} GB: take "
            f"a smaller base"
        )
    decoder: Any = scorer.decoder
    decoder.set_attn_implementation("eager")
    inputs = (torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64))
    axes = {0: torch.export.Dim("n"), 1: torch.export.Dim("T")}
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            _Calibrated(scorer, tuple(platts.values())).eval(),
            inputs,
            input_names=[IDS, MASK],
            output_names=list(platts),
            dynamic_shapes={IDS: axes, MASK: axes},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    data: bytes = program.model_proto.SerializeToString()
    return data


STEPS_OF_A_WEIGHT, STEPS_OF_A_STATE = 64, 127
"""Largest magnitudes of the integers. With 7 bits of weight beside 8 of state, pairs of products fit into 16 bits:
processors without VNNI, which add them there, give the same sums as those with it."""
ZERO_OF_STATES = 128
"""The integer that stands for 0 in a state, for ONNX Runtime multiplies unsigned states by signed weights fastest."""


def quantise(graph: bytes, samples: Sequence[Mapping[str, NDArray[Any]]]) -> bytes:
    """Returns the graph with integer products: int8 weights, one scale a column (a row of the embeddings).

    The states before a product are rounded too, with one scale for each token: a text is judged alone as in a batch,
    and the few tokens with huge states do not flatten the others, as they do with one scale for all
    (`quantize_dynamic` of ONNX Runtime). Units that are huge for `samples`, inputs of the graph, are divided first, and
    their weights multiplied, to halve the spread of both (SmoothQuant, Xiao et al. 2023, arXiv:2211.10438). Standard
    operators only, and the integers stay integers when the graph is loaded.
    """
    onnx = require("onnx", "fit")
    model = onnx.load_from_string(graph)
    del model.graph.value_info[:]  # torch leaves shapes of weights there that it has turned since
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer if len(t.dims) == 2}
    readers: dict[str, list[NDArray[np.float32]]] = {}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights:
            readers.setdefault(node.input[0], []).append(weights[node.input[1]])
    largest = _largest(onnx, graph, {name: len(read[0]) for name, read in readers.items()}, samples)
    divisors = {name: _divisor(largest[name], read) for name, read in readers.items()}
    rounding = GraphBuilder("int8.")
    rounded: dict[str, tuple[str, str]] = {}
    for node in list(model.graph.node):
        match node.op_type, list(node.input):
            case "MatMul", [states, name] if name in weights:
                if states not in rounded:  # each state is rounded once, for all its products
                    rounded[states] = _add_states(rounding, states, divisors[states])
                integers, scale = rounded[states]
                weight = weights[name] * divisors[states][:, None]
                columns, scales = _add_weight(rounding, weight, STEPS_OF_A_WEIGHT, axis=0)
                zero = rounding.constant(ZERO_OF_STATES, np.uint8)
                sums = rounding.cast(rounding.add("MatMulInteger", integers, columns, zero), np.float32)
                rounding.add("Mul", rounding.add("Mul", sums, scales), scale, name=node.output[0])
            case "Gather", [name, ids] if name in weights:  # of a table that stays int8 in memory
                table, scales = _add_weight(rounding, weights[name], STEPS_OF_A_STATE, axis=1)
                row = rounding.cast(rounding.add("Gather", table, ids), np.float32)
                rounding.add("Mul", row, rounding.add("Gather", scales, ids), name=node.output[0])
            case _:
                rounding.nodes.append(node)
    model.graph.initializer.extend(rounding.initializers())
    nodes = list(rounding.nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    read_still = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in read_still]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    data: bytes = model.SerializeToString()
    return data


def _largest(
    onnx: Any, graph: bytes, widths: Mapping[str, int], samples: Sequence[Mapping[str, NDArray[Any]]]
) -> dict[str, NDArray[np.float32]]:
    """Returns the largest magnitude of each unit of these states for the samples: name -> (width,)."""
    model = onnx.load_from_string(graph)
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, FLOAT, [None, None, width]) for name, width in widths.items()
    )
    session = GraphSession(model.SerializeToString())
    largest = {name: np.zeros(width, np.float32) for name, width in widths.items()}
    for inputs in samples:
        states = session.run(dict(inputs))
        for name, sizes in largest.items():
            np.maximum(sizes, np.abs(states[name]).max(axis=(0, 1)), out=sizes)
    return largest


def _divisor(largest: NDArray[np.float32], read: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Returns what each unit (K,) is divided by, where these weights (K, N) read it."""
    sizes = np.maximum(largest, np.median(largest) / 8 + 1e-6)  # a unit that the samples leave at rest may yet move
    of_weights = np.max([np.abs(weight).max(axis=1) for weight in read], axis=0)
    divisor = np.sqrt(sizes / np.maximum(of_weights, np.median(of_weights) / 8 + 1e-6))
    scaled: NDArray[np.float32] = (divisor / np.exp(np.log(divisor).mean())).astype(np.float32)
    return scaled


def _add_states(graph: GraphBuilder, states: str, divisor: NDArray[np.float32]) -> tuple[str, str]:
    """Adds the rounding of states (..., K), whose units are divided first; returns their integers and their scales."""
    even = graph.add("Mul", states, graph.number(1 / divisor))
    most = graph.add("ReduceMax", graph.add("Abs", even), graph.constant([-1]), keepdims=1)
    scale = graph.add("Div", graph.add("Max", most, graph.number(1e-30)), graph.number(STEPS_OF_A_STATE))
    up = graph.number(ZERO_OF_STATES + 0.5)  # a cast cuts off: so it rounds
    return graph.cast(graph.add("Add", graph.add("Div", even, scale), up), np.uint8), scale


def _add_weight(graph: GraphBuilder, weight: NDArray[np.float32], steps: int, *, axis: int) -> tuple[str, str]:
    """Adds a weight rounded to integers of at most `steps`; returns it and its scales along the axis."""
    scale = np.maximum(np.abs(weight).max(axis=axis, keepdims=True), np.float32(1e-30)) / np.float32(steps)
    return graph.constant(np.rint(weight / scale), np.int8), graph.number(scale)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporters: deprecations inside torch, and optional packages that are not installed."""
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "torch.export")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


# The recipe: split, fitted, calibrated, exported, measured.


ADAPTER_PARITY = 1e-3
"""Largest difference in probability between the trained model and its float32 graph, on the test rows."""
MOST_LOST = 0.01
"""AUROC that int8 may lose on the calibration rows, by the lower end of the interval. Else float32 is kept."""
SMOOTHING_ROWS = 16
"""Train rows by which the states are evened out before they are rounded."""
GOLDEN_ROWS = 4
GOLDEN_TOLERANCE = {"float32": MAX_TOLERANCE, "int8": ROUNDED_TOLERANCE}
SUMMARY = """Probability that an answer is {target}, read by a language model ({base}) with LoRA of rank {rank}
merged in, a confidence head and Platt scaling. Text in, number out:

```python
from metaprobe.probes.adapter import AdapterProbe

AdapterProbe.load("PATH").probability(["last user message"], ["answer"])
```"""
MEASURED_TEXT = (
    "Of the exported graph itself, on the test part. Nothing was fitted again afterwards: the parts are disjoint by "
    "group ({parts} answers), and the test part was only measured."
)
NOT_MADE = {
    "shuffled labels": "each refit is a training of its own",
    "random features": "each refit is a training of its own",
    "other domains": "each task or dimension left out is a training of its own",
    "layers tried": "there are none to choose from, for it reads texts",
    PROMPT: "needs the questions' texts",
}
"""Audit, by its name in `AuditReport.skipped`, and why no adapter has it."""


def control_scores(data: TextData, roles: Roles, *, seed: int) -> dict[str, Scores]:
    """Returns the controls, fitted in the adapter's roles: name -> held-out scores of the test rows."""
    return {
        method.name: method.fit(data.evidence, roles, seed=seed).score(roles.test)
        for method in control_methods(data.evidence)
        if method.name in FITTED
    }


def adapter_audits(
    data: TextData, roles: Roles, scores: Mapping[When, Scores], controls: Mapping[str, Scores], *, seed: int
) -> AuditReport:
    """The audits of scores of the test rows, by controls fitted in the same roles; the data are audited whole."""
    table, tested = data.table, data.table.rows(roles.test)
    every = free_controls(tested) | dict(controls)
    splits = [roles.parts]
    of_data = [class_balance(table.y), group_overlap(table.groups, splits)]
    made = {"group overlap"}
    if PROMPT in controls:  # the questions were stored
        of_data += [
            repeated_questions(table.questions, splits, y=table.y),
            near_duplicates(table.questions, splits, y=table.y, seed=seed),
        ]
        made.add("repeated questions and near-duplicates")
    if noise := label_noise(data.evidence.labels_by_source, table.groups, y=table.y, seed=seed):
        of_data += noise
        made.add("label noise")
    reports = [
        run_audits(AuditInputs(name=probe_name(when), table=tested, score=values, controls=every), seed=seed)
        for when, values in scores.items()
    ]
    audits = {audit.name: audit for report in reports for audit in report.audits} | {a.name: a for a in of_data}
    skipped = (line.partition(": ") for report in reports for line in report.skipped)
    reasons = {name: NOT_MADE.get(name, why) for name, _, why in skipped if name not in made}
    return AuditReport(tuple(audits.values()), tuple(f"{name}: {why}" for name, why in reasons.items()))


def probe_name(when: When) -> str:
    """Returns the name of a probe of that moment in figures and audits."""
    return f"adapter probe {when} the answer"


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """A causal language model without its language-model head."""

    decoder: Any
    tokenizer: bytes
    """Bytes of a tokenizer.json."""
    name: str
    revision: str


def load_base(llm: str, *, dtype: str = "float32") -> Base:
    """An embedded model, a folder, a GGUF file or a hub id. Raises `LLMError` where it is none of them."""
    transformers, torch = require("transformers", "train"), require("torch", "train")
    weights = resolve(llm)
    try:
        network = transformers.AutoModelForCausalLM.from_pretrained(weights.location, dtype=getattr(torch, dtype))
        tokenizer = transformers.AutoTokenizer.from_pretrained(weights.location)
    except (OSError, ValueError) as error:
        raise LLMError(f"model {llm!r} cannot be loaded: {error}") from error
    if not tokenizer.is_fast:
        raise LLMError(f"model {llm!r} has no tokenizer.json, which the exported probe reads texts with")
    text, revision = tokenizer.backend_tokenizer.to_str(), weights.revision_loaded(network.config)
    return Base(network.base_model, text.encode(), weights.name, revision)


@writes(ADAPTER)
def train_adapter(stores: Sequence[str | Path], options: AdapterOptions) -> Checkpoint | None:
    """Returns the adapter's checkpoint, fitted on the labelled answers of these stores; raises as `write_adapter`.

    Under `accelerate launch` only the first process gets it, and the others get None.
    """
    require("torch", "train")
    require("peft", "train")
    return write_adapter(stores, options)


def write_adapter(
    stores: Sequence[str | Path], options: AdapterOptions, settings: AdapterSettings | None = None
) -> Checkpoint | None:
    """Trains on the labelled answers of these stores and writes the checkpoint; its numbers are of itself.

    `settings`: by default those of the options. Interrupted, it goes on from its state in the folder `options.work` (by
    default `out` with `.work` at its end). Once the checkpoint is written that state is deleted, and the folder if
    nothing else is in it. Under `accelerate launch` the first process writes it, and the others get None. Raises
    `RecordError` where data or settings do not suffice or the folder holds something else, `LLMError` where the base
    cannot be loaded.
    """
    data = load_texts(stores, target=options.target, stage=options.stage, agent=options.agent)
    made = make_adapter(data, options, settings)
    return None if made is None else made.write()


@dataclass(frozen=True, slots=True, eq=False)
class MadeAdapter:
    """A fitted and exported adapter that is not written yet."""

    export: Export
    probability: Mapping[When, NDArray[np.float64]]
    """Outputs of the exported graph for the test rows of `adapter_roles`."""
    out: str | Path
    work: Path

    def write(self, *lines: str) -> Checkpoint:
        """Returns the checkpoint, with further lines about what it reads, and deletes the state of the training."""
        made = write_checkpoint(self.out, replace(self.export, reads=[*self.export.reads, *lines]))
        self.leave()
        return made

    def leave(self) -> None:
        """Deletes the state of the training."""
        remove_state(self.work)


def make_adapter(
    data: TextData, options: AdapterOptions, settings: AdapterSettings | None = None
) -> MadeAdapter | None:
    """Returns the adapter of these texts, fitted, exported and measured; raises as `write_adapter`.

    None in all processes but the first of those that train together.
    """
    settings = settings or AdapterSettings.of(options)
    target, say, out = options.target, options.on_step, Path(options.out)  # Path: "out/" may end in a slash
    work = Path(f"{out}.work") if options.work is None else Path(options.work)
    if work.resolve().is_relative_to(out.resolve()):  # the checkpoint could not be published over the state
        raise RecordError(f"{work} lies in the checkpoint {out} that is to be written: give another --work folder")
    check_work(work)
    when: tuple[When, ...] = ("before", "after") if options.when == "both" else (options.when,)
    if data.steps:
        raise RecordError(f"label {target} has levels; an adapter takes labels of 0 and 1: see `metaprobe train text`")
    roles = adapter_roles(data.table, seed=settings.seed)
    say("fit the plain controls")  # before the training, so that data they cannot be fitted to is refused at once
    controls = control_scores(data, roles, seed=settings.seed)
    say("load the base")
    base = load_base(options.llm, dtype=settings.dtype)
    room = getattr(base.decoder.config.get_text_config(), "max_position_embeddings", None)
    if room and settings.max_length > room:
        raise RecordError(f"max length {settings.max_length} exceeds the {room} tokens that {base.name} can read")
    encoder = Encoder(base.tokenizer, max_length=settings.max_length)
    texts = examples(data, when, encoder)
    say("choose how many layers it needs")
    layers = base.decoder.config.get_text_config().num_hidden_layers
    depth = choose_depth(base.decoder, texts, data, roles, settings)
    cut_layers(base.decoder, depth)
    of = f"{base.name} {base.revision} {depth} {when} {data.digest}"
    fitted = fit_adapter(base.decoder, texts, data.table.y, roles, settings, work=work, of=of, on_step=say)
    if not fitted.writes:
        return None
    say("calibrate and export")
    fields, precision, notes, probability = _export(fitted, texts, data, roles, when, settings)
    say("measure the exported graph")
    report = adapter_audits(data, roles, probability, controls, seed=settings.seed)
    parts = {name: len(rows) for name, rows in roles.parts.items()}
    reads = [
        f"base: {base.name} ({base.revision}), the lower {depth} of its {layers} layers, chosen by linear probes in "
        "folds of the learning part",
        *(f"reads {name} the answer: {LAYOUT[name]!r}, its last {settings.max_length} tokens" for name in when),
        *notes,
    ]
    export = Export(
        kind=ADAPTER,
        title=f"Adapter probe: {target}",
        summary=SUMMARY.format(target=target, base=base.name, rank=settings.rank),
        **fields,
        contract={
            "target": target,
            **question_texts(options.questions, target),
            "layout": {name: LAYOUT[name] for name in when},
            "max_length": settings.max_length,
            **precision,
            "sample_ids": encoder.ids([SAMPLE])[0],
            "base": {"model": base.name, "revision": base.revision, "layers": layers},
            "depth": depth,
            "rank": settings.rank,
            "steps": fitted.steps,
            "parts": parts,
        },
        **data.evidence.origin(settings.seed, options.recorded("train_adapter")),
        calibration="platt",
        metrics=_measure(data, roles, probability),
        measured=MEASURED_TEXT.format(parts=", ".join(f"{name} {count}" for name, count in parts.items())),
        audits=report.audits,
        not_audited=report.skipped,
        packages=("torch", "transformers", "peft", "accelerate", "tokenizers", "onnxscript"),
        extra={TOKENIZER: base.tokenizer},
        reads=reads,
    )
    return MadeAdapter(export, probability, options.out, work)


def _export(
    fitted: FittedAdapter,
    texts: Examples,
    data: TextData,
    roles: Roles,
    when: Sequence[When],
    settings: AdapterSettings,
) -> tuple[dict[str, Any], dict[str, Any], list[str], dict[When, NDArray[np.float64]]]:
    """Returns graph, golden rows and tolerance as fields of an `Export`, what the contract says of the precision, lines
    about it for the card, and the outputs of the graph for the test rows, in their order."""
    scores = np.full(len(texts.ids), np.nan)
    held = texts.of(np.concatenate([roles.calibration, roles.test]))
    scores[held] = scored_log_odds(fitted.scorer, [texts.ids[i] for i in held], settings.batch_size)
    labels = data.table.y[texts.rows]
    platts: dict[When, Platt] = {}
    for name in when:
        rows = texts.of(roles.calibration, name)
        platts[name] = fit_platt(scores[rows], labels[rows])
    trained = {name: platts[name].probability(scores[texts.of(roles.test, name)]) for name in when}
    graph = adapter_graph(fitted.scorer, platts)
    session = GraphSession(graph)
    probability = _probability(session, texts, roles.test, when, settings.batch_size)
    difference = max(float(np.abs(probability[name] - trained[name]).max()) for name in when)
    if not difference <= ADAPTER_PARITY:
        raise RecordError(
            f"the exported graph differs from the trained model by {difference:.3g} in probability; at most "
            f"{ADAPTER_PARITY:g} is accepted: a base whose attention is not plainly causal cannot be exported"
        )
    notes = [f"float32 graph against the trained model, on the test rows: difference at most {difference:.2g}"]
    sampled = texts.of(roles.train)[:: max(1, len(texts.of(roles.train)) // SMOOTHING_ROWS)][:SMOOTHING_ROWS]
    small = quantise(graph, [inputs for _, inputs in padded_batches([texts.ids[i] for i in sampled], 1)])
    integers, held = GraphSession(small), roles.calibration
    of_both = [_probability(one, texts, held, when, settings.batch_size) for one in (integers, session)]
    gains = {}
    for name in when:
        small_one, whole = (Judged("p", "learned", one[name], one[name], 1.0) for one in of_both)
        gains[name] = auroc_gain(data.table.rows(held), small_one, whole)
    int8 = all(gain.low > -MOST_LOST for gain in gains.values())
    notes += [
        f"int8 against float32, {name}, on the {len(held)} calibration rows: AUROC {gain.estimate:+.4f} "
        f"[{gain.low:+.4f}, {gain.high:+.4f}]{'' if int8 else '; float32 is kept'}"
        for name, gain in gains.items()
    ]
    if int8:
        graph, session = small, integers
        probability = _probability(session, texts, roles.test, when, settings.batch_size)
    # Short ones, so that loading stays quick; they are replayed as one batch, as they were recorded.
    short = sorted(texts.of(roles.test), key=lambda i: len(texts.ids[i]))[:: max(1, len(texts.of(roles.test)) // 8)]
    [(_, golden)] = padded_batches([texts.ids[i] for i in short[:GOLDEN_ROWS]], GOLDEN_ROWS)
    if int8:  # it is held against itself; what it loses against float32 is in the card
        expected = session.run(dict(golden))
    else:
        raw = scored_log_odds(fitted.scorer, [texts.ids[i] for i in short[:GOLDEN_ROWS]], GOLDEN_ROWS)
        expected = {name: platt.probability(raw)[:, None].astype(np.float32) for name, platt in platts.items()}
    precision = "int8" if int8 else "float32"
    fields = {"graph": graph, "inputs": golden, "expected": expected, "tolerance": GOLDEN_TOLERANCE[precision]}
    gained = {name: [gain.estimate, gain.low, gain.high] for name, gain in gains.items()}
    return fields, {"precision": precision, "int8_auroc_gain": gained}, notes, probability


def _probability(
    session: GraphSession, texts: Examples, rows: Rows, when: Sequence[When], batch_size: int
) -> dict[When, NDArray[np.float64]]:
    by_moment: dict[When, NDArray[np.float64]] = {}
    for name in when:
        chosen = texts.of(rows, name)
        by_moment[name] = np.empty(len(chosen))
        for part, inputs in padded_batches([texts.ids[i] for i in chosen], batch_size):
            by_moment[name][part] = session.run(dict(inputs))[name][:, 0]
    return by_moment


def _measure(data: TextData, roles: Roles, probability: Mapping[When, NDArray[np.float64]]) -> dict[str, Interval]:
    """Figures of the test rows, beside the mean log-probability, which needs no selection, where there is one."""
    table, beside = data.table.rows(roles.test), None
    if table.measured:
        mean = np.array([np.mean(values) for values in table.logprobs])
        beside = Judged("mean log-probability", "log-probability", np.exp(mean), mean, 1.0)
    metrics: dict[str, Interval] = {}
    for name, values in probability.items():
        prefix = "" if len(probability) == 1 else f"{name}."
        judged = Judged(probe_name(name), "learned", values, values, 1.0)
        metrics |= {f"{prefix}{figure}": value for figure, value in figures_of(table, judged, beside).items()}
    return metrics
