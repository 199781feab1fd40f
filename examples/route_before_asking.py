"""From a table of outcomes to a routed request: P(success) before asking, as a routing strategy of LiteLLM.

Learns from recorded answers of two local models to 1,000 questions, and answers new ones from the recorded answers. No
network, no key. Needs `pip install '.[fit]' litellm`; without litellm the same strategy is asked directly.

    python examples/route_before_asking.py
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import metaprobe
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.records.store import RunStore
from metaprobe.routing.success_choice import cheapest_meeting

RECORDED = Path(__file__).parents[1] / "recorded" / "states"
PRICES = {"qwen-coder-0.5b": 0.00002, "qwen-coder-1.5b": 0.00006}
"""US dollars an answer, made up."""
LEARNED, ASKED, TARGET = 1000, 200, 0.6
DEPLOYMENTS = [
    {
        "model_name": "any",
        "litellm_params": {"model": f"openai/{name}", "api_key": "none", "mock_response": f"said by {name}"},
        "model_info": {"id": name},
    }
    for name in PRICES
]
"""The models as LiteLLM lists them, with answers that are made up in place of a server."""


def outcomes() -> list[QuestionOutcomes]:
    """Returns what came of both models on each question about a place."""
    agents: dict[str, dict[str, AgentOutcome]] = {}
    items: dict[str, Any] = {}
    for model in PRICES:
        for run in RunStore(RECORDED / model / "places").runs():
            if run.outcome is not None:
                agents.setdefault(run.item.id, {})[model] = AgentOutcome(score=float(run.outcome))
                items[run.item.id] = run.item
    return [
        QuestionOutcomes(name, item.group, item.question, item.dimension or "", agents[name])
        for name, item in items.items()
        if len(agents[name]) == len(PRICES)
    ]


def strategy(base: type, estimator: Any) -> Any:
    """Returns LiteLLM's routing strategy that picks the cheapest deployment whose P(success) meets the target."""

    class BySuccess(base):  # type: ignore[misc]
        def get_available_deployment(self, model: str, messages: Any = None, *_: Any, **__: Any) -> dict[str, Any]:
            choice = cheapest_meeting(estimator.estimate(messages), PRICES, TARGET, fallback=list(PRICES)[-1])
            return DEPLOYMENTS[list(PRICES).index(choice.candidate)]

        async def async_get_available_deployment(self, *given: Any, **named: Any) -> dict[str, Any]:
            return await asyncio.to_thread(self.get_available_deployment, *given, **named)

    return BySuccess()


def main() -> None:
    """Trains on the first questions, and routes the next ones."""
    questions = outcomes()
    learned, asked = questions[:LEARNED], questions[LEARNED : LEARNED + ASKED]
    with tempfile.TemporaryDirectory() as folder:
        estimator = metaprobe.load(metaprobe.train_success(learned, out=Path(folder) / "success").path)
    try:
        from litellm import Router
        from litellm.types.router import CustomRoutingStrategyBase as Base
    except ImportError:
        own = strategy(object, estimator)
    else:
        own, router = strategy(Base, estimator), Router(model_list=DEPLOYMENTS)
        router.set_custom_routing_strategy(own)
        said = asyncio.run(router.acompletion("any", [{"role": "user", "content": asked[0].question}]))
        print("LiteLLM:", said.choices[0].message.content)
    chosen = [own.get_available_deployment("any", one.question)["model_info"]["id"] for one in asked]
    ways = {"routed": chosen} | {f"{name} alone": [name] * len(asked) for name in PRICES}
    for way, names in ways.items():
        right = sum(one.agents[name].score or 0.0 for one, name in zip(asked, names, strict=True)) / len(asked)
        dollars = 1000 * sum(PRICES[name] for name in names) / len(asked)
        print(f"{way}: {right:.1%} right at {dollars:.3f} US dollars for 1,000 questions")


if __name__ == "__main__":
    main()
