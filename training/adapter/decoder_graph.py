"""The adapter probe as one ONNX graph of standard operators: decoder with LoRA merged in, head and calibration."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metaprobe.checkpoints.checkpoint import GraphSession
from metaprobe.checkpoints.onnx_wire import FLOAT
from metaprobe.probes.adapter import (
    IDS,
    MASK,
    JudgementTime,
)
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.adapter.scorer import AdapterScorer
from metaprobe.training.calibrators import Platt
from metaprobe.training.export import GraphBuilder

MASKED_ATTENTION = -1e9
"""Number added to the attention scores of later tokens. It is not minus infinity, because the guard of checkpoints
refuses infinities in a graph.
"""
MAX_BYTES = (1 << 31) - (1 << 24)
"""Most bytes of float32 weights: an ONNX file is a protobuf message, which ends at 2 GiB."""


class _Calibrated(nn.Module):
    """The scorer with one calibrated P(right) output (n, 1) per moment (`When`)."""

    def __init__(self, scorer: AdapterScorer, platts: Sequence[Platt]) -> None:
        super().__init__()
        self.scorer = scorer
        self.platts = platts

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        n, T = input_ids.shape
        positions = torch.arange(T)
        # Given whole, so that no version of transformers has to build one while it is traced.
        causal = torch.where(positions[:, None] >= positions[None, :], 0.0, MASKED_ATTENTION)[
            None, None
        ]  # (1, 1, T, T)
        states = self.scorer.decoder(
            input_ids=input_ids, attention_mask=causal, use_cache=False
        ).last_hidden_state  # (n, T, width)
        last = (attention_mask * positions).amax(1)
        state = states.gather(1, last[:, None, None].expand(n, 1, states.shape[-1]))[:, 0]
        log_odds = self.scorer.head(state)
        return tuple(torch.sigmoid(platt.slope * log_odds + platt.intercept) for platt in self.platts)


def adapter_graph(scorer: AdapterScorer, platts: Mapping[JudgementTime, Platt]) -> bytes:
    """Returns an ONNX graph of the scorer with one calibrated P(right) output (n, 1) per moment (`When`).

    Its inputs are `input_ids` and `attention_mask`, int64 (n, T), padded on the right. Raises `RecordError` if the
    weights exceed the size limit of one ONNX file.

    Args:
        scorer: the scorer that `fit_adapter` returns; its attention is set to the plain implementation.
        platts: the calibrator of each moment.
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
    with torch.no_grad(), quiet_exporter():
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
"""Integer that stands for 0 in a state. ONNX Runtime is fastest with unsigned states and signed weights."""


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
    largest = _largest(onnx, graph, {name: len(products[0]) for name, products in readers.items()}, samples)
    divisors = {name: _divisor(largest[name], products) for name, products in readers.items()}
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
    still_read = [tensor for tensor in model.graph.initializer if tensor.name in read_still]
    del model.graph.initializer[:]
    model.graph.initializer.extend(still_read)
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
    """Returns the divisor of each unit (K,).

    Args:
        largest: largest absolute value of each unit (K,).
        read: weights (K, N) that multiply the units.
    """
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
def quiet_exporter() -> Iterator[None]:
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
