"""Reads selected hidden states with hooks, while a model answers, or for one prompt and answer."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaprobe.records.extras import require

try:
    import torch
    from torch import Tensor, nn
    from transformers import PretrainedConfig, PreTrainedModel
except ModuleNotFoundError:
    require("torch", "train")  # says what to install
    require("transformers", "train")
    raise

from metaprobe.llms.base import LLMError
from metaprobe.llms.weights import PLAIN_TEMPLATE, encode_text
from metaprobe.records.canaries import CANARIES
from metaprobe.records.segments import KindReader, TokenKind
from metaprobe.records.types import LIVE_POSITIONS, FloatArray, Hidden


@dataclass(frozen=True, slots=True)
class Capture:
    """The hidden states to keep. Layer 0 is the input of the first block, layer i the output of block i.

    This equals transformers' `hidden_states[i]`, except for the last layer: transformers applies the final norm there,
    and we do not. For an empty answer the answer positions have the state of the last prompt token.
    """

    layers: tuple[int, ...]
    positions: tuple[str, ...] = ("prompt_last", "answer_last", "answer_mean")

    def __post_init__(self) -> None:
        if unknown_positions := set(self.positions) - set(LIVE_POSITIONS):
            raise LLMError(
                f"positions {sorted(unknown_positions)} are not known while a model answers; there are then "
                f"{', '.join(LIVE_POSITIONS)}"
            )
        if not self.layers or sorted(set(self.layers)) != list(self.layers):
            raise LLMError(f"layers must be ascending and distinct, got {self.layers}")


class StateReader:
    """Holds the states of the chosen layers at the last position of the latest forward pass."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self._states_by_layer: dict[int, Tensor] = {}  # layer -> (B, D)

    def latest(self) -> Tensor:
        """Returns the states, float32, (layers, B, D)."""
        return torch.stack([self._states_by_layer[layer] for layer in self.capture.layers])

    @contextmanager
    def hooks(self, model: PreTrainedModel) -> Iterator[None]:
        """Reads every forward pass within the block."""
        with layer_hooks(model, self.capture.layers, self._keep_last_position):
            yield

    def _keep_last_position(self, layer: int, hidden: Tensor) -> None:
        # (B, D): left padding puts every row's newest token last. A view would keep the whole prompt's states alive.
        self._states_by_layer[layer] = hidden[:, -1].to(torch.float32, copy=True)


@contextmanager
def layer_hooks(
    model: PreTrainedModel, layers: Sequence[int], on_layer: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """Calls `on_layer` in every forward pass within the block, for these layers in ascending order, with states (B, S,
    D).

    Args:
        model: the model.
        layers: the layers.
        on_layer: called with the number of the layer and its states.
    """
    blocks = decoder_blocks(model)
    if layers[-1] > len(blocks):
        raise LLMError(f"layer {layers[-1]} asked for; this model has layers 0 to {len(blocks)}")

    def before_first(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        on_layer(0, args[0] if args else kwargs["hidden_states"])

    def after(layer: int) -> Callable[[nn.Module, Any, Any], None]:
        return lambda _, __, output: on_layer(layer, output[0] if isinstance(output, tuple) else output)

    handles = [
        blocks[0].register_forward_pre_hook(before_first, with_kwargs=True)
        if layer == 0
        else blocks[layer - 1].register_forward_hook(after(layer))
        for layer in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(slots=True)
class _Pool:
    """Pooled states of one kind of tokens, each (L, D)."""

    first_state: Tensor
    sum: Tensor
    newest_states: deque[Tensor]
    """States of the newest tokens, which `trim` can subtract."""
    token_count: int = 1


class RowStates:
    """Pooled states of one answer: each token's state is added, and only a small summary is kept.

    The answer's positions are those of its own tokens, without the thinking before it (`metaprobe.records.segments`).
    """

    def __init__(self, capture: Capture, token_text: Callable[[int], str], *, revocable_tokens: int = 0) -> None:
        """`token_text` returns a token's own text. `revocable_tokens` is the number of newest tokens that `trim` may
        still remove.
        """
        self._capture = capture
        self._token_text = token_text
        self._prompt_state: Tensor | None = None  # (L, D)
        self._kind_reader = KindReader()
        self._states_of_unknown_kind: deque[Tensor] = deque()  # states of tokens whose kind is not known yet
        self._pools: dict[TokenKind, _Pool] = {}
        self._newest_kinds: deque[TokenKind] = deque(maxlen=revocable_tokens + 1)
        self._token_count = 0

    def begin(self, state: Tensor) -> None:
        """Stores the state at the last prompt token, (L, D)."""
        self._prompt_state = state.clone()

    @property
    def count(self) -> int | None:
        """Number of answer tokens added; None before the prompt's state is there."""
        return None if self._prompt_state is None else self._token_count

    def add(self, state: Tensor, token: int) -> None:
        """Adds the state at the next token of the answer, (L, D)."""
        self._token_count += 1
        self._states_of_unknown_kind.append(state)
        for kind in self._kind_reader.push(self._token_text(token)):
            self._add_to_pool(kind)

    def _add_to_pool(self, kind: TokenKind) -> None:
        """Adds the oldest undecided state, whose kind is now known, to the pool of this kind."""
        state, pool = self._states_of_unknown_kind.popleft(), self._pools.get(kind)
        self._newest_kinds.append(kind)
        if pool is None:
            newest_states = deque([state], maxlen=self._newest_kinds.maxlen)
            self._pools[kind] = _Pool(state.clone(), state.clone(), newest_states)
        else:
            pool.sum += state
            pool.newest_states.append(state)
            pool.token_count += 1

    def trim(self, kept_count: int) -> None:
        """Removes the tokens after the first `kept_count` tokens of the answer."""
        while self._token_count > kept_count:
            self._token_count -= 1
            if self._states_of_unknown_kind:
                self._states_of_unknown_kind.pop()
            else:
                pool = self._pools[self._newest_kinds.pop()]
                pool.token_count -= 1
                pool.sum -= pool.newest_states.pop()

    def hidden(self) -> Hidden:
        """Returns the requested positions, float16, (layers, positions, width). Afterwards no token can be added.

        If no token belongs to the answer, or to the thinking, its positions have the state of the last prompt token.
        """
        assert self._prompt_state is not None
        for kind in self._kind_reader.close():
            if self._states_of_unknown_kind:
                self._add_to_pool(kind)
        values = dict.fromkeys(LIVE_POSITIONS, self._prompt_state)
        for kind, pool in self._pools.items():
            if pool.token_count:
                values |= {
                    f"{kind}_first": pool.first_state,
                    f"{kind}_last": pool.newest_states[-1],
                    f"{kind}_mean": pool.sum / pool.token_count,
                }
        position_states = torch.stack([values[position] for position in self._capture.positions], dim=1)  # (L, P, D)
        return Hidden(
            values=position_states.to(torch.float16).cpu().numpy(),
            layers=self._capture.layers,
            positions=self._capture.positions,
        )


def decoder_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """Returns the transformer blocks, in order: the module list as long as the configuration's number of layers."""
    block_count = model.config.get_text_config().num_hidden_layers
    candidates = [
        module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == block_count
    ]
    if not candidates:
        raise LLMError(
            f"no list of {block_count} decoder blocks found in {type(model).__name__}: hidden states unavailable"
        )
    return candidates[0]


@torch.inference_mode()
def head_logits(model: PreTrainedModel, states: Tensor) -> Tensor:
    """Returns the logits, float32 (n, V), of states of the model's last layer before the final norm, (n, D).

    The model itself computes them, with these states in place of those of its last block: models differ in norm, head,
    scale and cap.
    """
    given_states = states.to(model.dtype)[:, None]

    def replace(_: nn.Module, __: Any, output: Any) -> Any:
        return (given_states, *output[1:]) if isinstance(output, tuple) else given_states

    handle = decoder_blocks(model)[-1].register_forward_hook(replace)
    try:
        token = torch.zeros((len(states), 1), dtype=torch.long, device=states.device)
        logits: Tensor = model(input_ids=token, attention_mask=torch.ones_like(token), use_cache=False).logits
    finally:
        handle.remove()
    return logits[:, 0].float()


@torch.inference_mode()
def check_hooks(model: PreTrainedModel, tokens: Sequence[int]) -> None:
    """Raises `LLMError` if the hooks give other states for these tokens than the model itself.

    Layer i must be the model's `hidden_states[i]`, and the last layer through norm and head must give its logits.
    """
    states_by_layer: dict[int, Tensor] = {}
    blocks = len(decoder_blocks(model))
    with layer_hooks(model, range(blocks + 1), lambda layer, hidden: states_by_layer.update({layer: hidden})):
        output = model(input_ids=torch.tensor([list(tokens)], device=model.device), output_hidden_states=True)
    for layer in range(blocks):
        if not torch.equal(states_by_layer[layer], output.hidden_states[layer]):
            raise LLMError(
                f"the hooks give other states for layer {layer} than this version of transformers itself: hidden "
                "states of this model cannot be read with it; install a version that `metaprobe check-states` names"
            )
    logits = head_logits(model, states_by_layer[blocks][0])
    if not torch.allclose(logits, output.logits[0].float(), atol=1e-2, rtol=1e-2):
        raise LLMError(
            f"the states of layer {blocks} do not give the model's logits through its norm and head: hidden states of "
            "this model cannot be read with this version of transformers"
        )


def chosen_layers(choice: str, config: PretrainedConfig) -> tuple[int, ...]:
    """Returns the layers that `all`, `every:N` or a list such as `0,8,16` means for this model. Raises `LLMError`."""
    last_layer = int(config.get_text_config().num_hidden_layers)
    step = choice.removeprefix("every:")
    if choice == "all":
        return tuple(range(last_layer + 1))
    if choice.startswith("every:") and step.isdecimal() and int(step) > 0:
        return tuple(range(0, last_layer + 1, int(step)))
    numbers = [part.strip() for part in choice.split(",")]
    if all(number.isdecimal() for number in numbers):
        layers = tuple(sorted({int(number) for number in numbers}))
        if layers[-1] <= last_layer:
            return layers
    raise LLMError(
        f"layers {choice!r}: expected 'all', 'every:N', or numbers from 0 to {last_layer} such as 0,{last_layer // 2}"
    )


SAMPLE_TOKENS = 8
"""Number of tokens that `source_sample` reads. They cost about as much as one token of an answer."""


@torch.inference_mode()
def source_sample(model: Any, tokenizer: Any, layers: Sequence[int]) -> tuple[object, ...]:
    """Returns a value that is equal as long as nothing changes that the states of these layers depend on.

    It holds the states of a few fixed tokens, so other weights, adapters, hooks and number formats change it, and so do
    another chat template or tokenizer.
    """
    template = getattr(tokenizer, "chat_template", None)
    ids = encode_text(tokenizer, CANARIES[0].answer)[:SAMPLE_TOKENS]
    states: list[bytes] = []

    def keep(_: int, hidden: Tensor) -> None:
        states.append(hidden.float().cpu().numpy().tobytes())

    with layer_hooks(model, layers, keep):
        getattr(model, "base_model", model)(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    return str(template), tuple(ids), tuple(layers), tuple(states)


@dataclass(frozen=True, slots=True, eq=False)
class TextStates:
    """States of a prompt and an answer of T tokens, float32."""

    tokens: tuple[str, ...]
    """The T tokens of the answer as text."""
    prompt: FloatArray
    """States at the last token of the prompt, (layers, D)."""
    answer: FloatArray
    """States at each token of the answer, (T, layers, D)."""


@torch.inference_mode()
def text_states(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[Mapping[str, str]],
    answer: str,
    *,
    layers: Sequence[int],
    chat: bool = True,
) -> TextStates:
    """Returns the states of these layers, from one forward pass.

    Layer 0 is the input of the first block, layer i the output of block i. Raises `LLMError` if the model has no such
    layer, and for an empty prompt.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        prompt: the user's message, or a list of `{"role", "content"}`.
        answer: the answer.
        layers: the layers.
        chat: whether the prompt is put into the tokenizer's chat template, as `collect` does; else it is used
            unchanged.
    """
    if chat:
        messages = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(message) for message in prompt]
        )
        template = getattr(tokenizer, "chat_template", None) or PLAIN_TEMPLATE
        settings = {"chat_template": template, "tokenize": False, "add_generation_prompt": True}
        prompt_ids = encode_text(tokenizer, tokenizer.apply_chat_template(messages, **settings))
    elif isinstance(prompt, str):
        prompt_ids = [int(token) for token in tokenizer(prompt).input_ids]
    else:
        raise LLMError("with chat=False the prompt is taken as it is; expected text, not a list of messages")
    answer_ids = encode_text(tokenizer, answer)
    if not prompt_ids:
        raise LLMError("the prompt has no tokens: there is no state before the answer; give a prompt")
    states_by_layer: dict[int, Tensor] = {}

    def keep(layer: int, hidden: Tensor) -> None:
        states_by_layer[layer] = hidden[0, len(prompt_ids) - 1 :].float().cpu()

    ids = torch.tensor([[*prompt_ids, *answer_ids]], device=model.device)
    headless_model = getattr(model, "base_model", model)  # without the head, which would compute logits
    with layer_hooks(model, sorted(layers), keep):
        headless_model(input_ids=ids, use_cache=False)
    states = torch.stack([states_by_layer[layer] for layer in layers], dim=1).numpy()  # (1 + T, layers, D)
    tokens = tuple(str(tokenizer.decode([token])) for token in answer_ids)
    return TextStates(tokens, np.asarray(states[0]), np.asarray(states[1:]))
