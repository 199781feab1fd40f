"""A scripted server with the decision endpoint: answers typed questions about a text by a rule, or as it was told."""

import json
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Told = Callable[[dict[str, Any]], dict[str, Any] | Response]


def answer_to(question: dict[str, Any], text: str) -> dict[str, Any]:
    """A judge that counts `good`: more of them are likelier right and of a higher level."""
    share = min(text.count("good") / 4, 1.0)
    name = question.get("name")
    if question["instructions"].startswith("refuse"):
        return {"type": "refusal", "name": name}
    if question["type"] == "predicate":
        return {"type": "predicate", "name": name, "probability": share}
    listed = question.get("levels") or question.get("choices")
    shares = [(1 - share) / (len(listed) - 1)] * (len(listed) - 1) + [share]
    if question["type"] == "choice":
        options = [one["value"] for one in listed]
        best = options[max(range(len(options)), key=shares.__getitem__)]
        named = [{"value": value, "probability": p} for value, p in zip(options, shares, strict=True)]
        return {"type": "choice", "name": name, "choice": best, "confidence": max(shares), "probabilities": named}
    levels = [
        {"value": value, "label": one["label"], "probability": p}
        for value, (one, p) in enumerate(zip(listed, shares, strict=True))
    ]
    mean = sum(level["value"] * level["probability"] for level in levels)
    return {"type": "score", "name": name, "score": mean, "confidence": max(shares), "probabilities": levels}


class DecisionServer:
    """Answers by `answer_to`; the next requests as `next` says, an entry each."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.next: list[Told] = []
        self.app = Starlette(routes=[Route("/v1/decisions", self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        told = (self.next.pop(0) if self.next else self.decision)(body)
        return told if isinstance(told, Response) else JSONResponse(told)

    def decision(self, body: dict[str, Any]) -> dict[str, Any]:
        given = body["input"]
        text = given if isinstance(given, str) else " ".join(str(item.get("content")) for item in given)
        used = {"input_tokens": len(text), "output_tokens": 2, "total_tokens": len(text) + 2}
        details = {"cached_tokens": 0, "cache_write_tokens": 0}
        used |= {"input_tokens_details": details, "output_tokens_details": {"reasoning_tokens": 0}}
        answers = [answer_to(question, text) for question in body["questions"]]
        return {"model": f"{body['model']}-2026-10-06", "answers": answers, "usage": used}
