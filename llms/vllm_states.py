"""Reads hidden states with vLLM: the engine reads prompt and answer, and a connector writes the states of each token.

vLLM (0.32) extracts hidden states as a method of speculative decoding whose draft model draws nothing. Its connector
writes one file for each request. Its layers have our numbers: 0 is the input of block 1, i the output of block i.
"""

import tempfile
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoConfig, AutoTokenizer

from metaprobe.llms.base import LLMError
from metaprobe.llms.hidden_capture import chosen_layers
from metaprobe.llms.known_good import library
from metaprobe.llms.readings import Reading, Readings, ReadStates, is_mean, place_of, span_of
from metaprobe.llms.vllm_engine import engine_options, import_vllm, on_cpu
from metaprobe.llms.weights import complete_tokenizer, encode_chat, resolve
from metaprobe.records.activations import to_float16
from metaprobe.records.types import FloatArray, Hidden, Message

CONNECTOR = "metaprobe.llms.vllm_connector"
STOCK = "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector"


class StatesEngine:
    """A `vllm.LLM` that reads token ids and returns the states of all their tokens."""

    def __init__(self, model: str, layers: str, **options: Any) -> None:
        """Raises `LLMError` if vLLM is not installed or cannot load the model.

        Args:
            model: name of the model.
            layers: `all`, `every:N`, or numbers.
            **options: additional arguments of `vllm.LLM`.
        """
        self._vllm = vllm = import_vllm()
        weights = resolve(model)
        self.name, self.revision = weights.name, weights.revision or "unknown"
        self.config = AutoConfig.from_pretrained(weights.location)
        self.layers = chosen_layers(layers, self.config)
        self._folder = tempfile.TemporaryDirectory(prefix="metaprobe-states-")
        chosen = {
            # With both on, states were right on a CPU (docs/research/states.md). A GPU was not tried.
            "enable_chunked_prefill": False,
            "enable_prefix_caching": False,
            "speculative_config": {
                "method": "extract_hidden_states",
                "num_speculative_tokens": 1,
                "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(self.layers)}},
            },
            "kv_transfer_config": {
                # The stock connector asks for pinned memory and CUDA's streams, which a CPU has not.
                "kv_connector": "CpuHiddenStatesConnector" if on_cpu() else "HiddenStatesConnector",
                "kv_connector_module_path": CONNECTOR,
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {"shared_storage_path": self._folder.name},
            },
            **options,
        }
        try:
            self._engine = vllm.LLM(**engine_options(weights.location, **chosen))
            # The engine's own tokenizer works on copies: a chat template that it is given later has no effect.
            self.tokenizer = tokenizer = complete_tokenizer(AutoTokenizer.from_pretrained(weights.location))
        except (OSError, ValueError, RuntimeError) as error:
            raise LLMError(f"vLLM cannot load {model!r} for hidden states: {error}") from error
        model_config = self._engine.llm_engine.vllm_config.model_config
        self.dtype = str(model_config.dtype).removeprefix("torch.")
        self.context: int = model_config.max_model_len - 1  # it draws a token besides
        self.vocabulary: int = self.config.get_text_config().vocab_size
        self.piece = cache(lambda token: str(tokenizer.decode([token])))

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Returns the prompt's token ids, by the model's chat template."""
        return encode_chat(self.tokenizer, messages)

    def states(self, sequences: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        """Returns the states of each sequence of token ids, (T, layers, width), in this order.

        Raises `LLMError` if the written file has other tokens or another number of layers.
        """
        outputs = self._generate_one_token(sequences)
        # In one process nobody steps the engine any more, and the last files are written when it is stepped.
        engine = self._engine.llm_engine.engine_core
        while any(not Path(_path(output)).exists() for output in outputs):
            engine.get_output()
        stock, states = import_module(STOCK), []
        for output, ids in zip(outputs, sequences, strict=True):
            written = stock.load_hidden_states(_path(output))
            stock.cleanup_hidden_states(_path(output))
            values = written["hidden_states"].float().numpy()
            if written["token_ids"].tolist() != ids or values.shape[:2] != (len(ids), len(self.layers)):
                raise LLMError(
                    f"vLLM wrote states of shape {values.shape} for {len(ids)} tokens and {len(self.layers)} layers, or"
                    " of other tokens than it was given: this version of vLLM numbers its connector's files otherwise;"
                    " use the one that docs/engines.md names"
                )
            states.append(np.asarray(values))
        return states

    def logprobs(self, sequences: Sequence[list[int]]) -> list[FloatArray]:
        """Returns the log-probability, in nats, of each token except the first of each sequence, (T - 1,)."""
        rows_of = []
        for output, ids in zip(self._generate_one_token(sequences, prompt_logprobs=0), sequences, strict=True):
            for path in (_path(output), f"{_path(output)}.lock"):
                Path(path).unlink(missing_ok=True)
            rows = output.prompt_logprobs[1 : len(ids)]
            numbers = [row[token].logprob for row, token in zip(rows, ids[1:], strict=True)]
            rows_of.append(np.array(numbers, dtype=np.float32))
        return rows_of

    def _generate_one_token(self, sequences: Sequence[list[int]], **more: Any) -> list[Any]:
        params = self._vllm.SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, **more)
        prompts = [{"prompt_token_ids": ids} for ids in sequences]
        return list(self._engine.generate(prompts, params, use_tqdm=False))


class EngineReplay(Readings):
    """Reads recorded calls with vLLM's engine."""

    def __init__(self, engine: StatesEngine, *, positions: Sequence[str] | None = None, tokens: bool = False) -> None:
        """`positions` are token positions, by default those of a `Capture`. Raises `LLMError` for unknown ones.

        Args:
            engine: the engine.
            positions: token positions to keep.
            tokens: whether the states of every answer token are kept.
        """
        layers = ",".join(map(str, engine.layers))
        super().__init__(engine, engine.config, layers=layers, positions=positions, tokens=tokens)
        self._engine = engine

    @property
    def source(self) -> str:
        return library("vllm")

    def at(self, positions: Sequence[str]) -> "EngineReplay":
        return EngineReplay(self._engine, positions=positions)

    def read(self, readings: Sequence[Reading], *, batch_size: int = 32) -> list[ReadStates]:
        """Returns the states of these calls, in this order. The engine chooses its own batches."""
        sequence_states = self._engine.states([reading.prompt + reading.answer for reading in readings])
        states_of_calls = []
        for reading, states in zip(readings, sequence_states, strict=True):
            values = [
                states[span_of(reading, position)].mean(axis=0)
                if is_mean(position)
                else states[place_of(reading, position)]
                for position in self.positions
            ]  # each (layers, width)
            hidden = Hidden(to_float16(np.stack(values, axis=1)), self.layers, self.positions)
            states_of_calls.append(
                ReadStates(hidden, to_float16(states[len(reading.prompt) :]) if self._tokens else None)
            )
        return states_of_calls

    def logprobs_of(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[FloatArray]:
        numbers_of = self._engine.logprobs([prompt + continuation for prompt, continuation in pairs])
        return [numbers[len(prompt) - 1 :] for (prompt, _), numbers in zip(pairs, numbers_of, strict=True)]


def _path(output: Any) -> str:
    path = (output.kv_transfer_params or {}).get("hidden_states_path")
    if not path:
        raise LLMError("vLLM names no file of hidden states; expected kv_transfer_params['hidden_states_path']")
    return str(path)
