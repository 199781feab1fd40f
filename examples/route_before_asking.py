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


def deployments() -> list[dict[str, Any]]:
    """Returns the models as LiteLLM lists them, with answers that are made up in place of a server."""
    return [
        {
            "model_name": "any",
            "litellm_params": {"model": f"openai/{name}", "api_key": "none", "mock_response": f"said by {name}"},
            "model_info": {"id": name},
        }
        for name in PRICES
    ]


def strategy(base: type, estimator: Any, known: list[dict[str, Any]]) -> Any:
    """Returns LiteLLM's routing strategy that picks the cheapest deployment whose P(success) meets the target."""

    class BySuccess(base):  # type: ignore[misc]
        def pick(self, messages: Any) -> dict[str, Any]:
            choice = cheapest_meeting(estimator.estimate(messages), PRICES, TARGET, fallback=list(PRICES)[-1])
            return next(one for one in known if one["model_info"]["id"] == choice.candidate)

        async def async_get_available_deployment(
            self, model: str, messages: Any = None, *_: Any, **__: Any
        ) -> dict[str, Any]:
            return await asyncio.to_thread(self.pick, messages)

        def get_available_deployment(self, model: str, messages: Any = None, *_: Any, **__: Any) -> dict[str, Any]:
            return self.pick(messages)

    return BySuccess()


def main() -> None:
    """Trains on the first questions, and routes the next ones."""
    questions = outcomes()
    with tempfile.TemporaryDirectory() as folder:
        metaprobe.train_success(questions[:LEARNED], out=Path(folder) / "success")
        estimator = metaprobe.load(Path(folder) / "success")
        try:
            import litellm
            from litellm.types.router import CustomRoutingStrategyBase

            router, base = litellm.Router(model_list=deployments()), CustomRoutingStrategyBase
        except ImportError:
            router, base = None, object
        own = strategy(base, estimator, deployments())
        if router is not None:
            router.set_custom_routing_strategy(own)
            said = asyncio.run(
                router.acompletion(model="any", messages=[{"role": "user", "content": questions[LEARNED].question}])
            )
            print("LiteLLM:", said.choices[0].message.content)
        right, cost = 0.0, 0.0
        for question in questions[LEARNED : LEARNED + ASKED]:
            chosen = own.pick([{"role": "user", "content": question.question}])["model_info"]["id"]
            right += question.agents[chosen].score or 0.0
            cost += PRICES[chosen]
        print(f"{right / ASKED:.1%} right at {1000 * cost / ASKED:.3f} US dollars for 1,000 questions")
        for name, price in PRICES.items():
            alone = sum(one.agents[name].score or 0.0 for one in questions[LEARNED : LEARNED + ASKED]) / ASKED
            print(f"{name} alone: {alone:.1%} right at {1000 * price:.3f}")


if __name__ == "__main__":
    main()
