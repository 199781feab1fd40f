"""Reads the hidden states of questions and answers with a local model, whoever wrote the texts."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from metaprobe.llms.base import LLMError
from metaprobe.llms.hidden_capture import chosen_layers, layer_hooks
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import StateReplay
from metaprobe.llms.weights import Weights, resolve
from metaprobe.records.activations import to_float16
from metaprobe.records.types import Call, Message

PAIRS_PER_BATCH = 32
"""Number of questions with their answers that an encoder reads at once."""


class PairReader:
    """A loaded model that reads questions and answers.

    A causal model reads them through its own chat template, a sentence encoder (BERT and the like) as a pair of texts.
    """

    def __init__(self, model: str, revision: str = "") -> None:
        """Raises `LLMError` if the model cannot be loaded, or has another revision.

        `revision` is the required revision of the model; empty accepts any.
        """
        weights, is_encoder = resolve(model), False
        with suppress(OSError, ValueError):  # `LocalLLM` says what is wrong with such a model
            config = AutoConfig.from_pretrained(weights.location)
            has_decoder = config.is_encoder_decoder or getattr(config, "is_decoder", False)
            # A model that is trained by masked words: each token sees the whole text.
            is_encoder = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not has_decoder
        self.llm = SentenceEncoder(weights) if is_encoder else LocalLLM.load(model)
        if revision not in ("", self.llm.revision):
            raise LLMError(
                f"{model} is revision {self.llm.revision} here; expected {revision}, whose states the reader was "
                "trained on: load that one, or train again"
            )

    @classmethod
    def load(cls, entry: Mapping[str, Any]) -> "PairReader":
        """Returns the reader that a contract's entry `states` names. Raises `LLMError` as the constructor does."""
        return cls(str(entry["model"]), str(entry["revision"]))

    @property
    def positions(self) -> tuple[str, ...]:
        """Positions that are worth reading. In an encoder each token sees the whole text, so no token is the last."""
        return ("answer_mean",) if isinstance(self.llm, SentenceEncoder) else ("answer_last", "answer_mean")

    def layers(self, choice: str) -> tuple[int, ...]:
        """Returns the layers that an option means. For an encoder the last layer is added, whose mean it was trained
        for.
        """
        config = self.llm.model.config
        last_layer = [config.num_hidden_layers] if isinstance(self.llm, SentenceEncoder) else []
        return tuple(sorted({*chosen_layers(choice, config), *last_layer}))

    def states(
        self, questions: Sequence[str], answers: Sequence[str], layers: Sequence[int], positions: Sequence[str]
    ) -> NDArray[np.float16]:
        """Returns states (n, layers, positions, D). In a causal model the blocks above the last layer are not computed.

        Raises `LLMError` for a text that is longer than a causal model's context.

        Args:
            questions: n questions.
            answers: n answers.
            layers: the layers.
            positions: the token positions.
        """
        if isinstance(self.llm, SentenceEncoder):
            return self.llm.means(questions, answers, layers)[:, :, None]
        replay = StateReplay(self.llm, layers=",".join(map(str, layers)), positions=positions)
        calls = [
            Call(id=f"text {i}", model="", messages=(Message("user", question),), text=answer)
            for i, (question, answer) in enumerate(zip(questions, answers, strict=True))
        ]
        read_states = replay.read([replay.reading(call, "") for call in calls])
        return np.stack([states.hidden.values for states in read_states])


class SentenceEncoder:
    """A sentence encoder, in float32."""

    def __init__(self, weights: Weights) -> None:
        """Raises `LLMError` if the model cannot be loaded."""
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(weights.location)
            network = AutoModel.from_pretrained(weights.location, dtype=torch.float32)
        except (OSError, ValueError) as error:
            raise LLMError(f"encoder {weights.name!r} cannot be loaded: {error}") from error
        if not self.tokenizer.is_fast:
            raise LLMError(f"the tokenizer of {weights.name} is not a fast one: save it with tokenizer.json")
        self.revision = weights.revision_loaded(network.config)
        self.model = network.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self.context = min(self.tokenizer.model_max_length, network.config.max_position_embeddings)

    @torch.inference_mode()
    def means(self, questions: Sequence[str], answers: Sequence[str], layers: Sequence[int]) -> NDArray[np.float16]:
        """Returns the mean over the answer's tokens (n, layers, D), each answer read beside its question.

        Only the last tokens of a question are read, up to half the model's context. A longer answer is read in windows.

        Args:
            questions: n questions.
            answers: n answers.
            layers: the layers.
        """
        order = sorted(range(len(answers)), key=lambda i: len(questions[i]) + len(answers[i]))
        means_of_index: dict[int, Any] = {}
        for start in range(0, len(order), PAIRS_PER_BATCH):
            batch = order[start : start + PAIRS_PER_BATCH]
            pairs = [self._last_part(questions[i]) for i in batch], [answers[i] for i in batch]
            means_of_index.update(zip(batch, self._batch_means(*pairs, layers), strict=True))
        return to_float16(np.stack([means_of_index[i] for i in range(len(order))]))

    def _batch_means(self, questions: list[str], answers: list[str], layers: Sequence[int]) -> NDArray[np.float32]:
        """Returns the means (n, layers, D) of one batch.

        Args:
            questions: n questions.
            answers: n answers.
            layers: the layers.
        """
        encoded = self.tokenizer(
            questions,
            answers,
            truncation="only_second",
            max_length=self.context,
            return_overflowing_tokens=True,
            padding=True,
            return_tensors="pt",
        ).to(self.model.device)
        windows = encoded.pop("overflow_to_sample_mapping")
        is_answer = [[part == 1 for part in encoded.sequence_ids(i)] for i in range(len(windows))]
        answer_mask = torch.tensor(is_answer, device=self.model.device).float()  # (windows, tokens)
        sums_by_layer: list[torch.Tensor] = []
        with layer_hooks(
            self.model, layers, lambda _, hidden: sums_by_layer.append((answer_mask[:, None] @ hidden)[:, 0])
        ):
            self.model(**encoded)
        window_sums = torch.stack(sums_by_layer, dim=1)
        sums_of_answer = window_sums.new_zeros(len(answers), *window_sums.shape[1:]).index_add_(0, windows, window_sums)
        tokens_of_answer = answer_mask.new_zeros(len(answers)).index_add_(0, windows, answer_mask.sum(dim=1))
        means: NDArray[np.float32] = (sums_of_answer / tokens_of_answer[:, None, None].clamp(min=1)).cpu().numpy()
        return means

    def _last_part(self, question: str) -> str:
        """Returns the last part of a question, which is read."""
        max_tokens = self.context // 2
        token_offsets = self.tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)[
            "offset_mapping"
        ]
        return question[token_offsets[-max_tokens][0] :] if len(token_offsets) > max_tokens else question
