"""A model of this machine as a decision model: the probabilities that it gives to the options of typed questions."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from metaprobe.llms.base import Capabilities, Request, WrappedLLM
from metaprobe.llms.forward import CACHE, build_group_cache, pad_rows, prefixes
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.weights import encode_text
from metaprobe.records.types import Call, Message, Usage


class OptionJudge(WrappedLLM):
    """Answers scores of up to nine levels, choices and predicates, without writing: each question ends the messages
    before it.

    A level or a choice is the number that the reply would be, a predicate's sides are the words true and false. The
    probabilities are those of the reply's first token, divided by their sum.
    """

    def __init__(self, llm: LocalLLM) -> None:
        super().__init__(llm)
        self._local = llm
        self._one_at_a_time = asyncio.Lock()
        self.asked_how = "options"
        """Keeps its answers apart from the model's texts in a cache."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(text=False)

    async def complete(self, request: Request) -> Call:
        """The call whose text is `{"answers": [...]}`, as `DecisionsLLM` gives it."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._decide, request)

    def _decide(self, request: Request) -> Call:
        started = time.perf_counter()
        *shown, last = request.messages
        questions = json.loads(last.content)
        prompts = [self._local.encode((*shown, Message("user", asked(question)))) for question in questions]
        chosen = [[encode_text(self._local.tokenizer, text)[0] for text in replies(question)] for question in questions]
        shares, tokens = self._shares(prompts, chosen)
        answers = [answer(question, of) for question, of in zip(questions, shares, strict=True)]
        return request.call(
            model=self.name,
            model_revision=self.revision,
            text=json.dumps({"answers": answers}),
            finish_reason="stop",
            usage=Usage(tokens, 0),
            latency_ms=(time.perf_counter() - started) * 1000,
        )

    @torch.inference_mode()
    def _shares(self, prompts: Sequence[list[int]], chosen: Sequence[list[int]]) -> tuple[list[list[float]], int]:
        """Returns the share of each option, and how many tokens were read: what the questions share only once."""
        model, grouping = self._local.model, prefixes(prompts)
        ids, mask = pad_rows(prompts, self._local.tokenizer.pad_token_id, grouping, model.device)
        past, read = build_group_cache(model, ids, mask, grouping), max(grouping.lengths)
        positions = (mask.cumsum(dim=1) - 1).clamp_min(0)[:, read:]
        given = {"attention_mask": mask, "position_ids": positions, CACHE: past, "logits_to_keep": 1}
        logits = model(ids[:, read:], **given).logits[:, -1].float()
        tokens = sum(map(len, prompts)) - sum(grouping.lengths) + sum(grouping.lengths[i] for i in grouping.first)
        return [torch.softmax(row[of], dim=-1).tolist() for row, of in zip(logits, chosen, strict=True)], tokens


def replies(question: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the words that the options are replied with, the lowest level first."""
    if question["type"] == "predicate":
        return ("False", "True")
    return tuple(str(number) for number, _ in enumerate(options(question), 1))


def options(question: Mapping[str, Any]) -> list[str]:
    """Returns the texts of the levels or choices."""
    if question["type"] == "choice":
        return [choice["value"] for choice in question["choices"]]
    return [level.get("description", level["label"]) for level in question["levels"]]


def asked(question: Mapping[str, Any]) -> str:
    """Returns the question as it is put to a model that could also write."""
    if question["type"] == "predicate":
        return f"{question['instructions']}\n\nIs this true of the response? Reply with True or False only."
    listed = (f"{number}: {text}" for number, text in enumerate(options(question), 1))
    return "\n".join((question["instructions"], *listed, "Reply with the number only."))


def answer(question: Mapping[str, Any], shares: Sequence[float]) -> dict[str, Any]:
    """Returns the answer in the wire format."""
    about = {"type": question["type"], "name": question["name"]}
    if question["type"] == "predicate":
        return about | {"probability": shares[1]}
    if question["type"] == "choice":
        values = [{"value": v, "probability": share} for v, share in zip(options(question), shares, strict=True)]
        best = max(values, key=lambda one: one["probability"])
        return about | {"choice": best["value"], "confidence": max(shares), "probabilities": values}
    levels = [
        {"label": level["label"], "value": value, "probability": share}
        for value, (level, share) in enumerate(zip(question["levels"], shares, strict=True))
    ]
    score = sum(level["value"] * level["probability"] for level in levels)
    return about | {"score": score, "confidence": max(shares), "probabilities": levels}
