"""Answers held to a JSON Schema: which tokens may come next, by llguidance (MIT; also used by vLLM and SGLang)."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metaprobe.llms.base import LLMError
from metaprobe.records.extras import require

# One way to set spaces, that of Python's json module: a small model that may write any amount of them never ends.
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def available() -> bool:
    """Whether llguidance is installed."""
    return find_spec("llguidance") is not None


class Grammars:
    """The schemas asked for so far, compiled for one tokenizer."""

    def __init__(self, tokenizer: Any, *, vocabulary: int, eos_ids: Sequence[int]) -> None:
        """`vocabulary`: logits that the model gives, which may be more than the tokenizer has tokens."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._eos_ids = list(eos_ids)
        self._converted: Any = None
        self._compiled: dict[str, Any] = {}

    def matcher(self, schema: str) -> "Matcher":
        """A matcher at the beginning of a text. Raises `LLMError` for a schema that cannot be followed."""
        if schema not in self._compiled:
            self._compiled[schema] = self._compile(schema)
        return Matcher(self._compiled[schema].deep_copy(), self._vocabulary)

    def _compile(self, schema: str) -> Any:
        llguidance = require("llguidance", "train")
        if self._converted is None:  # about a second
            convert = require("llguidance.hf", "train").from_tokenizer
            try:
                self._converted = convert(self._tokenizer, n_vocab=self._vocabulary, eos_token=self._eos_ids)
            except ValueError as error:
                raise LLMError(f"json_schema: llguidance cannot work with this model's tokenizer: {error}") from error
        try:
            parsed = json.loads(schema)
        except ValueError as error:
            raise LLMError(f"json_schema is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise LLMError(f"json_schema must be a JSON object, got {schema[:80]!r}")
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=SPACING)
        matcher = llguidance.LLMatcher(self._converted, grammar, log_level=0)
        if matcher.is_error():
            raise LLMError(f"json_schema cannot be followed: {matcher.get_error()}")
        return matcher


class Matcher:
    """What may come next in one answer."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def allowed(self) -> Tensor:
        """Tokens that may come next, bool (V,); only those that end the answer once the text is complete."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")[: self._vocabulary].view(bool))

    def accept(self, token: int) -> None:
        """Go on by a token. Raises `LLMError` where it may not come next, or the schema is too complex to go on."""
        if not self._matcher.consume_token(token):
            raise LLMError(f"json_schema: {self._matcher.get_error()}")
