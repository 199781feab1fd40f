"""Estimates the cost of calls from a table of prices. Only the provider's bill is exact."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from metaprobe.llms.base import LLMError
from metaprobe.records.reading import fields, get, usage
from metaprobe.records.types import Usage

_SNAPSHOT = re.compile(r"-\d{4}-\d{2}-\d{2}$")


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens."""

    prompt: float
    completion: float

    def cost_usd(self, usage: Usage) -> float:
        """Returns the most that a call cost. Prompt tokens that the provider cached, and billed lower,
        count in full.
        """
        return (usage.prompt_tokens * self.prompt + usage.completion_tokens * self.completion) / 1e6

    def cost_of(self, response: object) -> float | None:
        """Returns the cost of a chat completion by its token counts; None if it has none."""
        usage_fields = fields(get(response, "usage")) or {}
        if usage_fields.get("prompt_tokens") is None:
            return None
        return self.cost_usd(usage(usage_fields.get("prompt_tokens"), usage_fields.get("completion_tokens")))

    @classmethod
    def of_model(
        cls,
        model: str,
        host: str,
        prices: "Mapping[str, Price] | None" = None,
        listed: "Mapping[str, Price] | None" = None,
    ) -> "Price | None":
        """Returns the price of a model if it is known, else None. A dated snapshot has the price of its model.

        Without `prices`, prices are known only for OpenAI's own endpoint: the same name costs something else elsewhere.

        Args:
            model: name of the model.
            host: host of the endpoint.
            prices: your own table of prices.
            listed: OpenAI's prices, by default `OPENAI_PRICES`.
        """
        listed_prices = (OPENAI_PRICES if listed is None else listed) if host == OPENAI_HOST else {}
        table = listed_prices if prices is None else prices
        return table.get(model) or table.get(_SNAPSHOT.sub("", model))

    @classmethod
    def read(cls, path: str | Path) -> "dict[str, Price]":
        """Returns your own table of prices from a file.

        The file is JSON, `{"MODEL": {"prompt": USD, "completion": USD}}`, for a million tokens each. Raises `LLMError`.
        """
        try:
            table = json.loads(Path(path).read_text(encoding="utf-8"))
            prices = {str(model): cls(float(p["prompt"]), float(p["completion"])) for model, p in table.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LLMError(
                f"no prices in {path} ({type(error).__name__}: {error}); "
                'expected {"MODEL": {"prompt": USD, "completion": USD}}, for a million tokens each'
            ) from error
        if invalid_models := [
            model for model, price in prices.items() if not (0 <= price.prompt < inf and 0 <= price.completion < inf)
        ]:
            raise LLMError(f"{path}: the prices of {', '.join(invalid_models)} are no finite numbers of at least 0")
        return prices


OPENAI_HOST = "api.openai.com"

OPENAI_PRICES: Mapping[str, Price] = {
    "gpt-3.5-turbo": Price(0.5, 1.5),
    "gpt-4o": Price(2.5, 10.0),
    "gpt-4o-2024-05-13": Price(5.0, 15.0),
    "gpt-4o-mini": Price(0.15, 0.6),
    "gpt-4.1": Price(2.0, 8.0),
    "gpt-4.1-mini": Price(0.4, 1.6),
    "gpt-4.1-nano": Price(0.1, 0.4),
}
"""OpenAI's standard prices in the first half of 2026, of models that give log-probabilities."""


DECISION_PRICES: Mapping[str, Price] = {"gpt-6-luna": Price(0.1, 0.0)}
"""OpenAI's prices for decisions in October 2026: prompt tokens cost, answers do not."""
