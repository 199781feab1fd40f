"""States of prompts for training: the reader's graph, exported once, and the states, recorded once and cached.

The graph holds the lower layers of a small language model with integer products. Its outputs are the pooled states of a
few layers. A training chooses one of them, and `cut_reader` removes the others from the graph.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.llms.base import LLMError
from metaprobe.llms.weights import cache_folder, complete_tokenizer, encode_text, resolve
from metaprobe.probes.adapter import IDS, MASK, TOKENIZER, padded_batches
from metaprobe.probes.prompt_reader import POOLINGS, READER_GRAPH, PromptLayout, PromptReader, PromptTokens
from metaprobe.records.extras import require

LAYER_SHARES = (0.47, 0.6, 0.73)
"""Depths that are read, as shares of the model's layers: 14, 18 and 22 of 30. The states in the middle tell most about
the difficulty of a prompt, and higher layers cost time.
"""
PROMPT_MARK = "PROMPT"
"""Placeholder for the prompt while the chat template is split around it."""
SHARD = 256
"""Number of prompts in a cached shard. After an interruption at most this many are read again."""
SCALE_PROMPTS = 16
"""Number of prompts on which the scales of the states are measured. The scales are evened out before states are rounded
to integers.
"""
READER_FORMAT = 1
"""Version of the reader's graph and of the cached states. Entries of another version are not used."""


@dataclass(frozen=True, slots=True, eq=False)
class ReaderFiles:
    """An exported reader with all its outputs, before training chooses one."""

    graph: bytes
    """ONNX graph with an output for each layer and pooling (`output_name`)."""
    tokenizer: bytes
    """Contents of the file tokenizer.json."""
    layout: PromptLayout
    model: str
    revision: str
    layers: tuple[int, ...]
    """Layers that the graph gives."""

    @property
    def digest(self) -> str:
        """SHA-256 of the graph, tokenizer and layout that determine the states."""
        digest = hashlib.sha256(self.graph)
        digest.update(self.tokenizer)
        digest.update(repr(self.layout).encode())
        return digest.hexdigest()

    def reader(self) -> PromptReader:
        """Returns the reader of these files."""
        return PromptReader(self.graph, PromptTokens(self.tokenizer, self.layout))


def output_name(layer: int, pooling: str) -> str:
    """Returns the name of the graph's output for a layer and a pooling."""
    return f"{pooling}{layer}"


def reader_files(model: str, samples: Sequence[str], *, rounded: bool = True) -> ReaderFiles:
    """Returns the reader of a local model. It is exported once, and then read from the cache folder.

    Args:
        model: name of an embedded model, folder, GGUF file or hub id of a causal language model.
        samples: prompts on which the scales of the states are measured at the export.
        rounded: whether products are of integers (int8 weights); float32 otherwise.

    Raises `LLMError` if the model cannot be loaded, and `MissingExtra` if the reader has to be exported without the
    extra `train`.
    """
    # The reader in the cache, if it is sound.
    weights = resolve(model)
    name = hashlib.sha256(f"{READER_FORMAT};{weights.name};{weights.revision};{rounded}".encode()).hexdigest()[:16]
    folder = cache_folder() / "readers" / f"{weights.name.replace('/', '+')}-{name}"
    entry = folder / "reader.json"
    if weights.revision and entry.is_file():
        record = json.loads(entry.read_text())
        graph, tokenizer = (folder / READER_GRAPH).read_bytes(), (folder / TOKENIZER).read_bytes()
        if hashlib.sha256(graph).hexdigest() == record["graph"]:
            layout = PromptLayout(tuple(record["prefix"]), tuple(record["suffix"]), record["head"], record["tail"])
            return ReaderFiles(graph, tokenizer, layout, weights.name, record["revision"], tuple(record["layers"]))
    # A new export, written to the cache.
    files = export_reader(model, samples, rounded=rounded)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / READER_GRAPH, files.graph)
    _write(folder / TOKENIZER, files.tokenizer)
    record = {
        "graph": hashlib.sha256(files.graph).hexdigest(),
        "prefix": files.layout.prefix,
        "suffix": files.layout.suffix,
        "head": files.layout.head,
        "tail": files.layout.tail,
        "revision": files.revision,
        "layers": files.layers,
    }
    _write(entry, json.dumps(record).encode())
    return files


def export_reader(model: str, samples: Sequence[str], *, rounded: bool = True) -> ReaderFiles:
    """Returns a local model cut after the layers that are read, exported to ONNX, with its tokenizer.

    The cache folder is neither read nor written. Arguments and errors are those of `reader_files`.
    """
    torch, transformers = require("torch", "train"), require("transformers", "train")
    from metaprobe.training.adapter import cut_layers, quantise

    weights = resolve(model)
    try:
        network = transformers.AutoModelForCausalLM.from_pretrained(weights.location, dtype=torch.float32).eval()
        tokenizer = complete_tokenizer(transformers.AutoTokenizer.from_pretrained(weights.location))
    except (OSError, ValueError) as error:
        raise LLMError(f"model {model!r} cannot be loaded: {error}") from error
    if not tokenizer.is_fast:
        raise LLMError(f"model {model!r} has no tokenizer.json, which the exported reader reads prompts with")
    decoder = network.base_model
    depth = decoder.config.get_text_config().num_hidden_layers
    layers = tuple(sorted({max(1, round(share * depth)) for share in LAYER_SHARES}))
    layout = _layout(tokenizer)
    # One more layer than is read is kept, because a decoder scales the states of its last layer.
    cut_layers(decoder, min(layers[-1] + 1, depth))
    graph = _graph(decoder, layers, len(layout.prefix))
    tokenizer_json = tokenizer.backend_tokenizer.to_str().encode()
    if rounded:
        ids = PromptTokens(tokenizer_json, layout).ids(list(samples)[:SCALE_PROMPTS])
        graph = quantise(graph, [inputs for _, inputs in padded_batches(ids, 1)])
    revision = weights.revision_loaded(network.config)
    return ReaderFiles(graph, tokenizer_json, layout, weights.name, revision, layers)


def _layout(tokenizer: Any) -> PromptLayout:
    """Returns the token ids around a prompt by the model's chat template.

    The system message is empty if the template takes one; else there is none.
    """
    chats: tuple[list[dict[str, str]], ...] = ([{"role": "system", "content": ""}], [])
    text = ""
    for chat in chats:
        try:
            messages = [*chat, {"role": "user", "content": PROMPT_MARK}]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception:  # templates raise various errors for roles that they do not know
            continue
        if text.count(PROMPT_MARK) == 1:
            break
    before, found_mark, after = text.partition(PROMPT_MARK)
    if not found_mark:
        raise LLMError(f"the chat template of {tokenizer.name_or_path} does not show the user's message")
    return PromptLayout(tuple(encode_text(tokenizer, before)), tuple(encode_text(tokenizer, after)))


def _graph(decoder: Any, layers: Sequence[int], prefix: int) -> bytes:
    """Returns the float32 graph: token ids and mask (n, T) to the pooled states (n, D) of each layer."""
    import torch

    from metaprobe.training.adapter import MASKED_ATTENTION, quiet_exporter

    require("onnxscript", "train")

    # The module that is exported: the decoder, then both poolings of each layer's states.
    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = decoder

        def forward(self, input_ids: Any, attention_mask: Any) -> tuple[Any, ...]:
            n, T = input_ids.shape
            positions = torch.arange(T)
            causal = torch.where(positions[:, None] >= positions[None, :], 0.0, MASKED_ATTENTION)[None, None]
            hidden = self.decoder(
                input_ids=input_ids, attention_mask=causal, use_cache=False, output_hidden_states=True
            ).hidden_states
            last = (attention_mask * positions).amax(1)
            is_read = (attention_mask * (positions >= prefix)).to(torch.float32)[:, :, None]
            outputs = []
            for layer in layers:
                states = hidden[layer]
                outputs.append((states * is_read).sum(1) / is_read.sum(1).clamp_min(1.0))
                outputs.append(states.gather(1, last[:, None, None].expand(n, 1, states.shape[-1]))[:, 0])
            return tuple(outputs)

    # The export. Number and length of the texts stay free.
    decoder.set_attn_implementation("eager")
    length = prefix + 3
    inputs = (torch.ones(2, length, dtype=torch.int64), torch.ones(2, length, dtype=torch.int64))
    axes = {0: torch.export.Dim("n"), 1: torch.export.Dim("T")}
    with torch.no_grad(), quiet_exporter():
        program = torch.onnx.export(
            Pooled().eval(),
            inputs,
            input_names=[IDS, MASK],
            output_names=[output_name(layer, pooling) for layer in layers for pooling in POOLINGS],
            dynamic_shapes={IDS: axes, MASK: axes},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    data: bytes = program.model_proto.SerializeToString()
    return data


def cut_reader(graph: bytes, output: str) -> bytes:
    """Returns the graph with only this output, without the nodes and weights that only other outputs need."""
    onnx = require("onnx", "fit")
    model = onnx.load_from_string(graph)
    needed_names, kept_nodes = {output}, []
    for node in reversed(model.graph.node):
        if needed_names & set(node.output):
            kept_nodes.append(node)
            needed_names |= set(node.input)
    outputs = [graph_part for graph_part in model.graph.output if graph_part.name == output]
    tensors = [tensor for tensor in model.graph.initializer if tensor.name in needed_names]
    for field, remaining in (
        (model.graph.node, kept_nodes[::-1]),
        (model.graph.output, outputs),
        (model.graph.initializer, tensors),
    ):
        copies = [type(graph_part).FromString(graph_part.SerializeToString()) for graph_part in remaining]
        del field[:]
        field.extend(copies)
    del model.graph.value_info[:]
    data: bytes = model.SerializeToString()
    return data


def prompt_states(
    files: ReaderFiles,
    prompts: Sequence[str],
    *,
    reader: PromptReader | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> dict[str, NDArray[np.float16]]:
    """Maps each output of the graph to the states (n, D) of n prompts. Each prompt is read once and cached.

    After an interruption it continues after the last whole shard of `SHARD` prompts. At most one shard is in memory as
    float32.

    Args:
        files: the exported reader.
        prompts: texts, which may repeat.
        reader: the reader of these files, if it is open already.
        on_step: called with the number of prompts that were read, in words.
    """
    # Prompts that are not cached, the shortest first.
    folder = cache_folder() / "prompt-states" / files.digest[:24]
    digests = [hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest() for prompt in prompts]
    location_of_digest = _cached(folder)
    missing = {
        digest: prompt for digest, prompt in zip(digests, prompts, strict=True) if digest not in location_of_digest
    }
    order = sorted(missing, key=lambda digest: len(missing[digest]))
    if order and reader is None:
        reader = files.reader()
    # Read them, and write a shard at a time.
    for start in range(0, len(order), SHARD):
        shard_digests = order[start : start + SHARD]
        assert reader is not None
        states = {
            key: values.astype(np.float16)
            for key, values in reader.read([missing[digest] for digest in shard_digests]).items()
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{hashlib.sha256(''.join(shard_digests).encode()).hexdigest()[:24]}.npz"
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
            np.savez(file, prompts=np.array(shard_digests), **states)  # type: ignore[arg-type]
        Path(file.name).replace(path)
        on_step(f"read {min(start + SHARD, len(order))} of {len(order)} prompts")
    location_of_digest = _cached(folder)
    return _collect_states(digests, location_of_digest)


def _cached(folder: Path) -> dict[str, tuple[Path, int]]:
    """Maps the digest of each cached prompt to its shard and row."""
    location_of_digest: dict[str, tuple[Path, int]] = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path, allow_pickle=False) as shard:
            location_of_digest.update({digest: (path, row) for row, digest in enumerate(shard["prompts"].tolist())})
    return location_of_digest


def _collect_states(
    digests: Sequence[str], location_of_digest: dict[str, tuple[Path, int]]
) -> dict[str, NDArray[np.float16]]:
    """Maps each output to the states (n, D) of the prompts with these digests. Shards are read one at a time."""
    rows_of_shard: dict[Path, list[tuple[int, int]]] = {}
    for target_row, digest in enumerate(digests):
        path, row = location_of_digest[digest]
        rows_of_shard.setdefault(path, []).append((target_row, row))
    collected: dict[str, NDArray[np.float16]] = {}
    for path, pairs in rows_of_shard.items():
        target_rows, shard_rows = (np.array(side) for side in zip(*pairs, strict=True))
        with np.load(path, allow_pickle=False) as shard:
            for key in shard.files:
                if key == "prompts":
                    continue
                values = shard[key]
                states = collected.setdefault(key, np.empty((len(digests), values.shape[1]), dtype=np.float16))
                states[target_rows] = values[shard_rows]
    return collected


def _write(path: Path, data: bytes) -> None:
    """Writes a file under another name and renames it, so that the file is whole as soon as it has its name."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    Path(file.name).replace(path)
