"""The model of the adapter recipe: texts of labelled answers, LoRA on a language model, its state, its ONNX graph."""

import logging
import math
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metaprobe.checkpoints.checkpoint import GraphSession
from metaprobe.checkpoints.onnx_wire import FLOAT, UINT8
from metaprobe.eval.table import AnswerTable, usable_groups
from metaprobe.probes.adapter import IDS, MASK, Encoder, When, batches, layout
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.calibration import Platt
from metaprobe.training.evidence import TextData
from metaprobe.training.folds import Roles, Rows, outer_folds
from metaprobe.training.linear import held_out_folds, near_best
from metaprobe.training.options import AdapterOptions, OnStep, quiet
from metaprobe.training.states import InMemory

FOLDS = 5
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
    usable_groups(groups, table.y, folds=FOLDS)
    return next(outer_folds(groups, table.y, folds=FOLDS, seed=seed))


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
    for rows, inputs in batches(ids, batch_size):
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

STATE = "state.pt"
PARTIAL = f"{STATE}.tmp"


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
    if STATE not in held and (others := sorted(held - {PARTIAL})):
        raise RecordError(
            f"{work} holds {', '.join(others[:3])}{' and more' if len(others) > 3 else ''} and no state of a training: "
            f"give a folder that is empty or not there yet"
        )


def remove_state(work: Path) -> None:
    """Deletes what a training wrote to `work`, and then the folder if nothing else is in it."""
    with suppress(OSError):  # the folder holds something else, or was never made
        for name in (STATE, PARTIAL):
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
    partial.replace(work / STATE)


def restore(work: Path, started_with: str, scorer: nn.Module, optimizer: Any) -> AdapterProgress:
    """Returns the stored progress, with its weights put back; the beginning where `work` holds no state.

    Raises `RecordError` where the state is damaged, none of ours, or of a training that started with something else.
    """
    path = work / STATE
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
# A batch is padded on its right, and the head reads the last token that is none: no token of a causal model sees what
# is to its right, so the padding needs no mask.

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
            # The seed of dropout follows from the step alone, so that no state of a generator must be kept.
            torch.manual_seed(_seed(settings.seed, progress.step, accelerator.process_index))
            rate = settings.lr * _rate((progress.step + 1) / total, settings.warmup)
            loss = learner.step([examples.ids[i] for i in rows], labels[rows], rate)
            _check_finite(loss, progress.step, total, settings, work)
            progress.step += 1
            if progress.step % every == 0 or progress.step == total:
                scores = log_odds(scorer, [examples.ids[i] for i in selection], settings.batch_size)
                progress.losses.append(log_loss(scores, labels[selection]))
                _check_finite(progress.losses[-1], progress.step, total, settings, work)
                if not progress.since_best:
                    progress.best = {name: value.clone() for name, value in collect_trained(scorer).items()}
                if accelerator.is_main_process:
                    save(work, started_with, progress, scorer, optimizer)
                on_step(f"step {progress.step} of {total}: selection log loss {progress.losses[-1]:.4f}")
    scorer.load_state_dict(progress.best, strict=False)
    return FittedAdapter(_merge(scorer), tuple(progress.losses), progress.step, accelerator.is_main_process)


@dataclass(frozen=True, slots=True, eq=False)
class _Learner:
    """Takes one step of the training, in each of the processes that train together."""

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
    """Returns the uncalibrated log-odds (n,) of the texts."""
    training = scorer.training
    scorer.eval()
    scores = np.empty(len(ids))
    device = scorer.head.weight.device
    for rows, inputs in batches(ids, batch_size):
        scores[rows] = scorer(*_tensors(inputs, device)).double().cpu().numpy()
    scorer.train(training)
    return scores


def log_loss(scores: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    """Mean negative log-likelihood, in nats, of log-odds."""
    with np.errstate(invalid="ignore"):  # NaN says it all
        return float(np.mean(np.logaddexp(0, scores) - y * scores))


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
    """Returns the loss, summed over the rows."""
    [(rows, inputs)] = batches(ids, len(ids))
    target = torch.as_tensor(y[rows], dtype=torch.float32, device=device)
    return nn.functional.binary_cross_entropy_with_logits(model(*_tensors(inputs, device)), target, reduction="sum")


def _tensors(inputs: dict[str, NDArray[np.int64]], device: torch.device) -> Iterator[Tensor]:
    for values in (inputs[IDS], inputs[MASK].sum(axis=1) - 1):
        yield torch.as_tensor(values, device=device)


# The adapter probe as one ONNX graph of standard operators: decoder with LoRA merged in, head and calibration.

LOWEST = -1e9
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
        causal = torch.where(at[:, None] >= at[None, :], 0.0, LOWEST)[None, None]  # (1, 1, T, T)
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
    rounding = _Rounding(onnx, model.graph)
    for node in list(model.graph.node):
        match node.op_type, list(node.input):
            case "MatMul", [states, name] if name in weights:
                if states in readers:
                    del readers[states]  # rounded once for all products that read them
                    rounding.add_states(states, divisors[states])
                rounding.add_product(states, weights[name] * divisors[states][:, None], node.output[0])
            case "Gather", [name, ids] if name in weights:
                rounding.add_rows(weights[name], ids, node.output[0])
            case _:
                rounding.nodes.append(node)
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


class _Rounding:
    """Writes the nodes and weights of a graph in integers."""

    def __init__(self, onnx: Any, graph: Any) -> None:
        self.onnx = onnx
        self.graph = graph
        self.nodes: list[Any] = []
        self._store("int8.last", np.array([-1]))
        self._store("int8.tiny", np.float32(1e-30))
        self._store("int8.steps", np.float32(STEPS_OF_A_STATE))
        self._store("int8.up", np.float32(ZERO_OF_STATES + 0.5))  # a cast cuts off: so it rounds
        self._store("int8.zero", np.uint8(ZERO_OF_STATES))

    def add_states(self, states: str, divisor: NDArray[np.float32]) -> None:
        """Adds the rounding of states (..., K), whose units are divided first."""
        self._store(f"{states}.factor", 1 / divisor)
        self._add("Mul", [states, f"{states}.factor"], f"{states}.even")
        self._add("Abs", [f"{states}.even"], f"{states}.size")
        self._add("ReduceMax", [f"{states}.size", "int8.last"], f"{states}.top", keepdims=1)
        self._add("Max", [f"{states}.top", "int8.tiny"], f"{states}.most")
        self._add("Div", [f"{states}.most", "int8.steps"], f"{states}.scale")
        self._add("Div", [f"{states}.even", f"{states}.scale"], f"{states}.steps")
        self._add("Add", [f"{states}.steps", "int8.up"], f"{states}.up")
        self._add("Cast", [f"{states}.up"], f"{states}.int8", to=UINT8)

    def add_product(self, states: str, weight: NDArray[np.float32], output: str) -> None:
        """Adds the product of rounded states (..., K) and a weight (K, N)."""
        self._store_rounded(output, weight, STEPS_OF_A_WEIGHT, axis=0)
        self._add("MatMulInteger", [f"{states}.int8", f"{output}.weight", "int8.zero"], f"{output}.sums")
        self._add("Cast", [f"{output}.sums"], f"{output}.float", to=FLOAT)
        self._add("Mul", [f"{output}.float", f"{output}.scales"], f"{output}.scaled")
        self._add("Mul", [f"{output}.scaled", f"{states}.scale"], output)

    def add_rows(self, table: NDArray[np.float32], ids: str, output: str) -> None:
        """Adds the rows of a table, which stays int8 in memory."""
        self._store_rounded(output, table, STEPS_OF_A_STATE, axis=1)
        self._add("Gather", [f"{output}.weight", ids], f"{output}.rows")
        self._add("Gather", [f"{output}.scales", ids], f"{output}.scale")
        self._add("Cast", [f"{output}.rows"], f"{output}.float", to=FLOAT)
        self._add("Mul", [f"{output}.float", f"{output}.scale"], output)

    def _store_rounded(self, output: str, weight: NDArray[np.float32], steps: int, *, axis: int) -> None:
        scale = np.maximum(np.abs(weight).max(axis=axis, keepdims=True), np.float32(1e-30)) / np.float32(steps)
        self._store(f"{output}.weight", np.rint(weight / scale).astype(np.int8))
        self._store(f"{output}.scales", scale)

    def _store(self, name: str, value: Any) -> None:
        self.graph.initializer.append(self.onnx.numpy_helper.from_array(np.asarray(value), name))

    def _add(self, kind: str, inputs: list[str], output: str, **attributes: int) -> None:
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [output], **attributes))


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
