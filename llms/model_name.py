"""Models by name, as `--llm` takes them: whether a model runs locally, and the object that answers for it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from metaprobe.llms.base import LLM
from metaprobe.llms.pricing import Price
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.records.types import LogprobsMode

API, ENGINE, DECISIONS = "openai:", "vllm:", "decisions:"
"""Prefixes of the names of an endpoint that writes texts, of a model that vLLM runs here, and of a decision API."""


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0


API_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "logprobs_mode": (lambda value: value in get_args(LogprobsMode), f"one of {', '.join(get_args(LogprobsMode))}"),
    "schema_form": (
        lambda value: value in ("auto", "json_schema", "json_object", "none"),
        "one of auto, json_schema, json_object, none",
    ),
    "extra_body": (lambda value: isinstance(value, dict), "a JSON object"),
    "revision": (lambda value: isinstance(value, str), "a text"),
    "timeout_s": (_is_positive, "a number above 0"),
    "max_wait_s": (_is_positive, "a number above 0"),
    "attempts": (lambda value: isinstance(value, int) and value > 0, "a whole number above 0"),
}
"""Options of `OpenAILLM` that a command may set: a function that checks a value, and a description of valid values."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """Name of a model: `openai:MODEL@URL`, `decisions:MODEL@URL`, `vllm:MODEL`, or the name or path of a
    local model.
    """

    text: str

    @property
    def elsewhere(self) -> bool:
        """Whether the model answers on another machine, so that no token limit is needed here."""
        return self.text.startswith((API, DECISIONS))

    @property
    def decides(self) -> bool:
        """Whether the model answers typed questions and writes no text."""
        return self.text.startswith(DECISIONS)

    @property
    def keeps_states(self) -> bool:
        """Whether the model's hidden states can be kept."""
        return not self.text.startswith((API, DECISIONS, ENGINE))

    def open(
        self,
        *,
        api: Mapping[str, Any] | None = None,
        layers: str | None = None,
        top_logprobs: int = 0,
        batch_size: int = 32,
        concurrency: int = 128,
    ) -> LLM:
        """Returns the model, loaded or ready for requests.

        Raises `MissingExtra` for a package that is not installed, and `LLMError` for a model that cannot be loaded.

        Args:
            api: options of an endpoint, as `ModelName.api_options` returns them.
            layers: layers whose hidden states are kept; None for none.
            top_logprobs: alternatives requested for each token.
            batch_size: requests that a local model generates at once.
            concurrency: most concurrent requests to an endpoint.
        """
        if self.decides:
            require("openai", "api")
            from metaprobe.llms.decision_api import DecisionsLLM, decision_options  # not above: others need no client

            return DecisionsLLM.parse(self.text, concurrency=concurrency, **decision_options(api or {}))
        if self.elsewhere:
            require("openai", "api")
            from metaprobe.llms.openai_client import OpenAILLM

            return OpenAILLM.parse(self.text, top_logprobs=top_logprobs, concurrency=concurrency, **(api or {}))
        if self.text.startswith(ENGINE):
            from metaprobe.llms.vllm_engine import EngineLLM  # not above: vLLM has an environment of its own

            return EngineLLM.load(self.text.removeprefix(ENGINE), top_logprobs=top_logprobs)
        require("torch", "train")
        from metaprobe.llms.local import LocalLLM  # not above: a collection over an API needs no torch

        return LocalLLM.load(self.text, batch_size=batch_size, top_logprobs=top_logprobs, layers=layers)

    @staticmethod
    def api_options(assignments: Sequence[str], prices: str | Path | None = None) -> dict[str, Any]:
        """Returns the options that `open` takes as `api`, from texts `KEY=VALUE` and a file of prices.

        Raises `RecordError` for an invalid one.
        """
        options: dict[str, Any] = {}
        for text in assignments:
            key, separator, value_text = text.partition("=")
            if not separator or key not in API_OPTIONS:
                raise RecordError(f"api option {text!r}: expected KEY=VALUE with KEY one of {', '.join(API_OPTIONS)}")
            fits, expected = API_OPTIONS[key]
            if key in options:
                raise RecordError(f"api option {text!r}: {key} is {options[key]!r} already; give one value")
            try:
                value = json.loads(value_text)
            except (ValueError, RecursionError):
                value = value_text
            if not fits(value):
                raise RecordError(f"api option {text!r}: expected {expected}")
            options[key] = value
        if prices is not None:
            options["prices"] = Price.read(prices)
        return options
