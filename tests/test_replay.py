"""Recorded calls are played again in the place of a model."""

import asyncio
import dataclasses

import numpy as np
import pytest
from cached_calls import QUESTION, everything

from metaprobe.llms.base import Capabilities, LLMError
from metaprobe.llms.replay import ReplayLLM
from metaprobe.records.types import Call


def test_replay_prefers_the_call_of_the_same_id_and_streams_it() -> None:
    recorded = [
        Call(id=identity, messages=QUESTION.messages, text=identity, tokens=(identity,), logprobs=np.float32([-1]))
        for identity in ("one", "two")
    ]
    llm = ReplayLLM(recorded)
    ask = [dataclasses.replace(QUESTION, id=identity) for identity in ("one", "two", "three")]
    assert [asyncio.run(llm.complete(request)).text for request in ask] == ["one", "two", "two"]
    tokens, call = asyncio.run(everything(llm.stream(ask[0])))
    assert (tokens, call.text) == ([("one", -1.0)], "one")
    assert llm.capabilities == Capabilities(logprobs=True, stream=True)
    with pytest.raises(LLMError, match="was not recorded: 2 calls"):
        asyncio.run(llm.complete(dataclasses.replace(QUESTION, messages=())))
    with pytest.raises(LLMError, match="no recorded calls to replay: the store is empty, or was written without texts"):
        ReplayLLM([])
