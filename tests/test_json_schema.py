"""Answers held to a JSON Schema, with a tiny model that would never write JSON by itself."""

import asyncio
import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from metaprobe.llms.base import LLMError, Request
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.weights import PLAIN_TEMPLATE
from metaprobe.records.types import Call, Message, Sampling

pytest.importorskip("llguidance")

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
EOS = len(BYTES)
VERDICT = {
    "type": "object",
    "properties": {
        "score": {"type": "integer", "minimum": 1, "maximum": 6},
        "bias": {"enum": ["none", "some", "much"]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["score", "bias", "flags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> LocalLLM:
    inner = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(BYTES)} | {"<eos>": EOS}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<eos>", eos_token="<eos>", padding_side="left"
    )
    tokenizer.chat_template = PLAIN_TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=EOS + 8,  # as many models have: more logits than tokens
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.6,
        pad_token_id=EOS,
        bos_token_id=None,
        eos_token_id=EOS,
    )
    return LocalLLM(LlamaForCausalLM(config), tokenizer, name="bytes", revision="test", top_logprobs=2)


def request(number: int, schema: Any = VERDICT, **sampling: Any) -> Request:
    chosen = {"max_tokens": 120, "json_schema": json.dumps(schema) if schema else "", **sampling}
    return Request(id=f"r{number}", messages=(Message("user", f"judge {number}"),), sampling=Sampling(**chosen))


def answers(llm: LocalLLM, requests: list[Request]) -> list[Call]:
    async def ask() -> list[Call]:
        return list(await asyncio.gather(*(llm.complete(r) for r in requests)))

    return asyncio.run(ask())


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_answer_follows_its_schema(llm: LocalLLM, temperature: float) -> None:
    calls = answers(llm, [request(i, temperature=temperature, seed=i) for i in range(8)])
    assert temperature == 0 or len({call.text for call in calls}) > 3  # draws are still draws
    for call in calls:
        verdict = json.loads(call.text)
        assert list(verdict) == ["score", "bias", "flags"]
        assert verdict["score"] in range(1, 7)
        assert verdict["bias"] in ("none", "some", "much")
        assert all(isinstance(flag, bool) for flag in verdict["flags"])
        assert call.finish_reason == "stop"
        assert call.text == json.dumps(verdict)  # one way to set spaces


def test_logprobs_are_those_of_the_unmasked_model(llm: LocalLLM) -> None:
    call = answers(llm, [request(1)])[0]
    ids = torch.tensor([[*call.prompt_token_ids.tolist(), *call.token_ids.tolist()]])
    with torch.inference_mode():
        logits = llm.model(ids).logits[0, len(call.prompt_token_ids) - 1 : -1].float()
    expected = torch.log_softmax(logits, -1).gather(1, ids[0, len(call.prompt_token_ids) :, None])[:, 0]
    np.testing.assert_allclose(call.logprobs, expected, atol=1e-4)
    assert (call.logprobs < call.top_logprobs[:, -1] - 1e-3).any()  # the schema forbade what the model would have said


def test_each_row_has_its_own_schema_and_rows_without_one_are_untouched(llm: LocalLLM) -> None:
    yes = {"type": "object", "properties": {"yes": {"const": True}}, "required": ["yes"], "additionalProperties": False}
    requests = [request(0), request(1, None, max_tokens=20), request(2, yes), request(3, None, temperature=1.0, seed=3)]
    together = answers(llm, requests)
    alone = [answers(llm, [asked])[0] for asked in requests]
    assert together[2].text == '{"yes": true}'
    assert [call.text for call in together] == [call.text for call in alone]
    free = answers(llm, [dataclasses.replace(requests[0], sampling=Sampling(max_tokens=20))])[0]
    with pytest.raises(ValueError, match=r"Expecting|Extra|Invalid|Unterminated"):
        json.loads(free.text)


@pytest.mark.parametrize(
    "schema", ["{", "[]", "null", '{"type": "nope"}', '{"type": "string", "pattern": "("}', '{"not": {}}']
)
def test_a_schema_that_cannot_be_followed_fails_alone(llm: LocalLLM, schema: str) -> None:
    bad = dataclasses.replace(request(0), sampling=Sampling(json_schema=schema))

    async def ask() -> list[Call | BaseException]:
        return list(await asyncio.gather(llm.complete(bad), llm.complete(request(1)), return_exceptions=True))

    failed, answered = asyncio.run(ask())
    assert isinstance(failed, LLMError)
    assert "json_schema" in str(failed)
    assert isinstance(answered, Call)
