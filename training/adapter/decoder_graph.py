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
"""Most bytes of float32 weights. An ONNX file is a protobuf message, whose limit is 2 GiB."""


class _Calibrated(nn.Module):
    """The scorer with one calibrated P(right) output (n, 1) for each moment (`JudgementTime`)."""

    def __init__(self, scorer: AdapterScorer, platts: Sequence[Platt]) -> None:
        super().__init__()
        self.scorer = scorer
        self.platts = platts

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        n, T = input_ids.shape
        positions = torch.arange(T)
        # The mask is given whole, (1, 1, T, T), because some versions of transformers cannot build it while traced.
        causal = torch.where(positions[:, None] >= positions[None, :], 0.0, MASKED_ATTENTION)[None, None]
        states = self.scorer.decoder(
            input_ids=input_ids, attention_mask=causal, use_cache=False
        ).last_hidden_state  # (n, T, width)
        last = (attention_mask * positions).amax(1)
        state = states.gather(1, last[:, None, None].expand(n, 1, states.shape[-1]))[:, 0]
        log_odds = self.scorer.head(state)
        return tuple(torch.sigmoid(platt.slope * log_odds + platt.intercept) for platt in self.platts)


def adapter_graph(scorer: AdapterScorer, platts: Mapping[JudgementTime, Platt]) -> bytes:
    """Returns an ONNX graph of the scorer with one calibrated P(right) output (n, 1) for each moment.

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


MAX_WEIGHT_INTEGER, MAX_STATE_INTEGER = 64, 127
"""Largest magnitudes of the integers of weights and states. With 7 bits for a weight and 8 for a state, pairs of
products fit into 16 bits. So processors without VNNI, which add pairs in 16 bits, give the same sums as others.
"""
ZERO_OF_STATES = 128
"""Integer that stands for 0 in a state. ONNX Runtime is fastest with unsigned states and signed weights."""


def quantise(graph: bytes, samples: Sequence[Mapping[str, NDArray[Any]]]) -> bytes:
    """Returns the graph with integer products: int8 weights, with one scale for each column (of embeddings, each row).

    The states before a product are rounded too, with one scale for each token. So a text gets the same score alone and
    in a batch, and the few tokens with huge states do not flatten the others. One scale for all tokens, as in
    `quantize_dynamic` of ONNX Runtime, would flatten them. Units with huge states for `samples`, which are inputs of
    the graph, are divided first, and their weights multiplied. This halves the spread of both (SmoothQuant, Xiao et al.
    2023, arXiv:2211.10438). Only standard operators are used, and integers stay integers when the graph is loaded.
    """
    # The two-dimensional weights, and the divisors of the states that they multiply.
    onnx = require("onnx", "fit")
    model = onnx.load_from_string(graph)
    del model.graph.value_info[:]  # torch leaves outdated shapes of transposed weights there
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer if len(t.dims) == 2}
    weights_of_states: dict[str, list[NDArray[np.float32]]] = {}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights:
            weights_of_states.setdefault(node.input[0], []).append(weights[node.input[1]])
    largest = _largest_magnitudes(
        onnx, graph, {name: len(products[0]) for name, products in weights_of_states.items()}, samples
    )
    divisors = {name: _divisor(largest[name], products) for name, products in weights_of_states.items()}
    # Products and look-ups with rounded weights.
    rounding = GraphBuilder("int8.")
    rounded: dict[str, tuple[str, str]] = {}
    for node in list(model.graph.node):
        match node.op_type, list(node.input):
            case "MatMul", [states, name] if name in weights:
                if states not in rounded:  # each state is rounded once, for all its products
                    rounded[states] = _add_states(rounding, states, divisors[states])
                integers, scale = rounded[states]
                weight = weights[name] * divisors[states][:, None]
                columns, scales = _add_weight(rounding, weight, MAX_WEIGHT_INTEGER, axis=0)
                zero = rounding.constant(ZERO_OF_STATES, np.uint8)
                sums = rounding.cast(rounding.add("MatMulInteger", integers, columns, zero), np.float32)
                rounding.add("Mul", rounding.add("Mul", sums, scales), scale, name=node.output[0])
            case "Gather", [name, ids] if name in weights:  # the table stays int8 in memory
                table, scales = _add_weight(rounding, weights[name], MAX_STATE_INTEGER, axis=1)
                row = rounding.cast(rounding.add("Gather", table, ids), np.float32)
                rounding.add("Mul", row, rounding.add("Gather", scales, ids), name=node.output[0])
            case _:
                rounding.nodes.append(node)
    # Replace the nodes, and drop weights that no node reads any more.
    model.graph.initializer.extend(rounding.initializers())
    nodes = list(rounding.nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    read_names = {name for node in nodes for name in node.input}
    read_tensors = [tensor for tensor in model.graph.initializer if tensor.name in read_names]
    del model.graph.initializer[:]
    model.graph.initializer.extend(read_tensors)
    data: bytes = model.SerializeToString()
    return data


def _largest_magnitudes(
    onnx: Any, graph: bytes, widths: Mapping[str, int], samples: Sequence[Mapping[str, NDArray[Any]]]
) -> dict[str, NDArray[np.float32]]:
    """Maps the name of each state to the largest magnitude (width,) of its units for the samples.

    Args:
        onnx: the package.
        graph: the float32 graph.
        widths: maps the name of a state to its number of units.
        samples: inputs of the graph.
    """
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
    sizes = np.maximum(
        largest, np.median(largest) / 8 + 1e-6
    )  # a unit that is 0 for the samples may not be 0 for others
    largest_weights = np.max([np.abs(weight).max(axis=1) for weight in read], axis=0)
    divisor = np.sqrt(sizes / np.maximum(largest_weights, np.median(largest_weights) / 8 + 1e-6))
    scaled: NDArray[np.float32] = (divisor / np.exp(np.log(divisor).mean())).astype(np.float32)
    return scaled


def _add_states(graph: GraphBuilder, states: str, divisor: NDArray[np.float32]) -> tuple[str, str]:
    """Adds nodes that divide the units of states (..., K) and round them. Returns the names of integers and scales."""
    evened = graph.add("Mul", states, graph.number(1 / divisor))
    largest = graph.add("ReduceMax", graph.add("Abs", evened), graph.constant([-1]), keepdims=1)
    scale = graph.add("Div", graph.add("Max", largest, graph.number(1e-30)), graph.number(MAX_STATE_INTEGER))
    rounding_shift = graph.number(ZERO_OF_STATES + 0.5)  # a cast truncates, so adding 0.5 rounds
    return graph.cast(graph.add("Add", graph.add("Div", evened, scale), rounding_shift), np.uint8), scale


def _add_weight(graph: GraphBuilder, weight: NDArray[np.float32], steps: int, *, axis: int) -> tuple[str, str]:
    """Adds a weight rounded to integers of at most `steps`. Returns the names of the integers and their scales.

    There is one scale for each slice along `axis`.
    """
    scale = np.maximum(np.abs(weight).max(axis=axis, keepdims=True), np.float32(1e-30)) / np.float32(steps)
    return graph.constant(np.rint(weight / scale), np.int8), graph.number(scale)


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silences the exporters, which warn of deprecations inside torch and of optional packages."""
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
