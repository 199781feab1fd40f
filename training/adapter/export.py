"""The adapter probe as one ONNX graph of standard operators: decoder with LoRA merged in, head and calibration."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metaprobe.checkpoints import Draft
from metaprobe.probes.adapter import IDS, LAYOUT, MASK, When
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.adapter.fit import AdapterScorer
from metaprobe.training.common.calibrate import Platt
from metaprobe.training.common.write_checkpoint import answers_of, trust_lines

LOWEST = -1e9
"""Added to attention scores of later tokens. Not minus infinity, which the guard of checkpoints refuses in a graph."""
MAX_BYTES = (1 << 31) - (1 << 24)
"""Of float32 weights: an ONNX file is a protobuf message, which ends at 2 GiB."""


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


def quantise(graph: bytes) -> bytes:
    """The same graph with int8 weights, one scale a column (a row of the embeddings): a quarter of the size.

    Only the weights. `quantize_dynamic` of ONNX Runtime rounds the activations too, with one scale for a whole batch:
    on 15 texts and SmolLM2-135M with an untrained head, probabilities correlated with the unrounded ones by 0.38, and
    changed with what else was in the batch; log-odds made as here by 0.995. `Cast` and `Mul` rather than
    `DequantizeLinear`, which ONNX Runtime fuses into kernels that round activations again. They are folded when
    the graph is loaded, so it needs the memory and the time of the float32 one.
    """
    onnx = require("onnx", "fit")
    model = onnx.load_from_string(graph)
    del model.graph.value_info[:]  # torch leaves shapes of weights there that it has turned since
    weights = {tensor.name: tensor for tensor in model.graph.initializer if len(tensor.dims) == 2}
    reduced: dict[str, int] = {}
    for node in model.graph.node:
        match node.op_type, list(node.input):
            case "MatMul", [_, name] if name in weights:
                reduced[name] = 0
            case "Gather", [name, _] if name in weights:
                reduced[name] = 1
    nodes = []
    for name, axis in reduced.items():
        whole = onnx.numpy_helper.to_array(weights[name])
        scale = np.maximum(np.abs(whole).max(axis=axis, keepdims=True), np.finfo(np.float32).tiny) / np.float32(127)
        rounded = np.rint(whole / scale).astype(np.int8)
        weights[name].CopyFrom(onnx.numpy_helper.from_array(rounded, f"{name}.int8"))
        model.graph.initializer.append(onnx.numpy_helper.from_array(scale, f"{name}.scale"))
        nodes += [
            onnx.helper.make_node("Cast", [f"{name}.int8"], [f"{name}.float"], to=onnx.TensorProto.FLOAT),
            onnx.helper.make_node("Mul", [f"{name}.float", f"{name}.scale"], [name]),
        ]
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    data: bytes = model.SerializeToString()
    return data


def adapter_card(draft: Draft, notes: Sequence[str], not_audited: Sequence[str]) -> str:
    """The README.md of an adapter checkpoint; `not_audited`: audits that were not made, and why."""
    assert draft.training is not None
    contract, generator, training = draft.contract, draft.generator, draft.training
    parts = contract["parts"]
    lines = [
        *trust_lines(draft.failed),
        f"# Adapter probe: {contract['target']}",
        "",
        f"Probability that an answer is {contract['target']}, read by a language model ({contract['base']['model']}) "
        f"with LoRA of rank {contract['rank']} merged in, a confidence head and Platt scaling. Text in, number out:",
        "",
        "```python",
        "from metaprobe.probes.adapter import AdapterProbe",
        "",
        'AdapterProbe.load("PATH").probability(["last user message"], ["answer"])',
        "```",
        "",
        "## Contract",
        "",
        f"- answers of: {answers_of(generator)}",
        f"- base: {contract['base']['model']} ({contract['base']['revision']})",
        *(
            f"- reads {when} the answer: {LAYOUT[when]!r}, its last {contract['max_length']} tokens"
            for when in contract["layout"]
        ),
        *([f"- {training.regrouped}"] if training.regrouped else []),
        f"- training data: {training.fingerprint}",
        f"- made by `{training.command}`, seed {training.seed}",
        *(f"- {note}" for note in notes),
        "",
        "## Held-out metrics",
        "",
        "Of the exported graph itself, on the test part. Nothing was fitted again afterwards: the parts are disjoint "
        f"by group ({', '.join(f'{name} {count}' for name, count in parts.items())} answers), and the test part was "
        "only measured.",
        "Intervals are of 95 %, by a bootstrap over groups.",
        "",
        "| metric | estimate | interval | n |",
        "|---|---|---|---|",
        *(f"| {name} | {m.estimate:.3f} | {m.low:.3f} to {m.high:.3f} | {m.n} |" for name, m in draft.metrics.items()),
    ]
    if draft.audits or not_audited:
        lines += ["", "## Audits", ""]
        lines += [
            f"- {'passed' if a.passed else f'**FAILED ({a.severity})**'}: {name}: {a.detail}"
            for name, a in draft.audits.items()
        ]
        lines += [f"- not made: {audit}" for audit in not_audited]
    return "\n".join(lines) + "\n"


@contextmanager
def _quiet() -> Iterator[None]:
    """What exporters say of themselves: deprecations inside of torch, optional packages that are not there."""
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
