"""vLLM's engine answers as our own models do: raw numbers, no end token, one request's failure its own.

The engine here is made up and has the methods and shapes of vLLM 0.32; `tests/test_vllm_real.py` runs the real one.
"""

import asyncio
import copy
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from random_model import word_tokenizer

from metaprobe.llms import vllm_engine
from metaprobe.llms.base import LLMError, Request
from metaprobe.llms.vllm_engine import EngineLLM, engine_options
from metaprobe.llms.weights import Weights, encode_chat
from metaprobe.records.types import Call, Message, Sampling

EOS = 1


def entry(token: int, logprob: float, rank: int) -> SimpleNamespace:
    return SimpleNamespace(logprob=logprob, rank=rank, decoded_token=word_tokenizer().decode([token]))


class MadeUpEngine:
    """Says `length` letters after any prompt, a token a step, and ends by the end token where the limit allows."""

    def __init__(self, length: int = 3) -> None:
        self.length = length
        self.waiting: dict[str, tuple[list[int], Any, int]] = {}
        self.aborted: list[str] = []
        self.most_at_once = 0
        self.broken = False
        self.may_step = threading.Event()
        self.may_step.set()

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> None:
        if getattr(params, "top_p", 1.0) == 0.5:
            raise ValueError("top_p is odd")
        self.waiting[name] = (prompt["prompt_token_ids"], params, 0)

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        for name in names:
            self.waiting.pop(name, None)

    def step(self) -> list[SimpleNamespace]:
        self.may_step.wait(20)
        self.most_at_once = max(self.most_at_once, len(self.waiting))
        if self.broken:
            self.waiting.clear()
            raise RuntimeError("out of memory")
        done = []
        for name, (prompt, params, said) in list(self.waiting.items()):
            limit = min(params.max_tokens, self.length + 1)
            self.waiting[name] = (prompt, params, said + 1)
            if said + 1 >= limit:
                del self.waiting[name]
                done.append(self.output(name, prompt, params))
        return done

    def output(self, name: str, prompt: list[int], params: Any) -> SimpleNamespace:
        ids = [3 + i for i in range(min(params.max_tokens, self.length))]
        ended = params.max_tokens > self.length
        text = word_tokenizer().decode(ids)
        ids += [EOS] * ended
        rows = [{token: entry(token, -0.1 * (i + 1), 1), 9: entry(9, -3.0 - i, 2)} for i, token in enumerate(ids)]
        answer = SimpleNamespace(
            token_ids=ids,
            logprobs=rows,
            text=text,
            finish_reason="stop" if ended else "length",
            stop_reason=None,
            cumulative_logprob=0.0,
        )
        # The entry of a place is of the token that stands there; the first has none.
        places = [{token: entry(token, -0.5 * i, 1), 9: entry(9, -9.0, 2)} for i, token in enumerate(prompt)]
        asked = [None, *places[1:]]
        return SimpleNamespace(
            request_id=name, finished=True, outputs=[answer], prompt_token_ids=prompt, prompt_logprobs=asked
        )


def loaded(engine: MadeUpEngine, mode: str = "raw_logprobs", top: int = 1, **config: Any) -> EngineLLM:
    known = {"logprobs_mode": mode, "max_logprobs": 20, "dtype": "torch.bfloat16", "max_model_len": 64, **config}
    engine.vllm_config = SimpleNamespace(model_config=SimpleNamespace(**known))  # type: ignore[attr-defined]
    tokenizer = word_tokenizer()
    return EngineLLM(SimpleNamespace(llm_engine=engine), tokenizer, name="tiny", revision="1", top_logprobs=top)


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=2), StructuredOutputsParams=SimpleNamespace)
    made_up = SimpleNamespace(SamplingParams=SimpleNamespace, sampling_params=kinds)
    monkeypatch.setattr(vllm_engine, "import_vllm", lambda: made_up)


def request(number: int = 0, text: str = "a b", **sampling: Any) -> Request:
    return Request(
        id=f"r{number}",
        stage="answer",
        messages=(Message("user", text),),
        sampling=Sampling(**{"max_tokens": 12, **sampling}),
    )


def asked(llm: EngineLLM, *requests: Request) -> list[Call | BaseException]:
    async def ask() -> list[Call | BaseException]:
        async with llm:
            return list(await asyncio.gather(*(llm.complete(r) for r in requests), return_exceptions=True))

    return asyncio.run(ask())


def test_an_answer_is_a_call_without_its_end_token() -> None:
    [call] = asked(loaded(MadeUpEngine()), request())
    assert (call.text, call.tokens, call.token_ids.tolist()) == ("a b c", ("a", "b", "c"), [3, 4, 5])
    np.testing.assert_allclose(call.logprobs, [-0.1, -0.2, -0.3], rtol=1e-6)  # -0.4 was the end token's
    assert call.top_logprobs.shape == (3, 1)
    assert (call.finish_reason, call.logprobs_mode, call.model_dtype) == ("stop", "raw", "bfloat16")
    assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (len(call.prompt_token_ids), 4)


def test_an_answer_that_was_cut_keeps_all_its_tokens_and_one_of_nothing_but_its_end_is_empty() -> None:
    [call] = asked(loaded(MadeUpEngine()), request(max_tokens=2))
    assert (call.tokens, call.finish_reason) == (("a", "b"), "length")
    [call] = asked(loaded(MadeUpEngine(length=0)), request())
    assert (call.text, call.tokens, call.logprobs.shape, call.top_logprobs.shape) == ("", (), (0,), (0, 1))


def test_requests_are_in_the_engine_together_and_each_gets_its_own_answer() -> None:
    engine = MadeUpEngine()
    engine.may_step.clear()
    threading.Timer(0.2, engine.may_step.set).start()
    calls = asked(loaded(engine), *(request(i, max_tokens=1 + i % 3) for i in range(9)), request(0, max_tokens=2))
    assert [len(call.tokens) for call in calls] == [1 + i % 3 for i in range(9)] + [2]
    assert [call.id for call in calls] == [f"r{i}" for i in range(9)] + ["r0"]
    assert engine.most_at_once > 1


def test_what_the_engine_refuses_fails_alone_and_a_failing_engine_fails_all_that_wait() -> None:
    good, bad = asked(loaded(MadeUpEngine()), request(0), request(1, top_p=0.5))
    assert good.text == "a b c"
    assert isinstance(bad, LLMError)
    assert "refuses it (ValueError: top_p is odd)" in str(bad)
    engine = MadeUpEngine()
    engine.broken = True
    [broken] = asked(loaded(engine), request())
    assert "the engine failed (RuntimeError: out of memory)" in str(broken)


def test_who_stops_waiting_takes_the_request_out_of_the_engine() -> None:
    engine = MadeUpEngine(length=10**6)

    async def give_up(llm: EngineLLM) -> None:
        async with llm:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(llm.complete(request(max_tokens=None)), 0.2)
            kept = asyncio.create_task(llm.complete(request(7, max_tokens=2)))
            assert (await kept).tokens == ("a", "b")

    asyncio.run(give_up(loaded(engine, max_model_len=10**7)))
    assert engine.aborted == ["r0#0"]


def test_no_request_goes_in_that_leaves_no_room_or_asks_nothing() -> None:
    found = asked(
        loaded(MadeUpEngine()),
        request(0, "a " * 70),
        request(1, max_tokens=60),
        request(2, max_tokens=0),
        Request(id="r3", messages=()),
    )
    assert all(isinstance(error, LLMError) for error in found)
    assert "exceed the context of tiny (64 tokens)" in str(found[0])
    assert "exceed the context of tiny (64 tokens)" in str(found[1])
    assert "max_tokens must be at least 1, got 0" in str(found[2])
    assert "nothing to answer" in str(found[3])


def test_an_engine_that_gives_other_numbers_is_refused() -> None:
    with pytest.raises(LLMError, match="the engine gives processed_logprobs; expected logprobs_mode 'raw_logprobs'"):
        loaded(MadeUpEngine(), mode="processed_logprobs")
    with pytest.raises(LLMError, match="30 alternatives a token were asked for, and the engine gives 20 at most"):
        loaded(MadeUpEngine(), top=30)


class PooledTokenizer:
    """vLLM's tokenizer: it works on a copy that was made beforehand."""

    def __init__(self, tokenizer: Any) -> None:
        self.chat_template, self.pad_token_id, self._copy = tokenizer.chat_template, 0, copy.deepcopy(tokenizer)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._copy(*given, **named)

    def apply_chat_template(self, *given: Any, **named: Any) -> Any:
        return self._copy.apply_chat_template(*given, **named)


def test_a_model_without_a_chat_template_has_the_prompts_of_transformers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = word_tokenizer()
    bare.chat_template = None
    bare.save_pretrained(tmp_path)
    engine = MadeUpEngine()
    known = {"logprobs_mode": "raw_logprobs", "max_logprobs": 20, "dtype": "torch.bfloat16", "max_model_len": 64}
    engine.vllm_config = SimpleNamespace(model_config=SimpleNamespace(**known))  # type: ignore[attr-defined]
    made = SimpleNamespace(llm_engine=engine, get_tokenizer=lambda: PooledTokenizer(bare))
    monkeypatch.setattr(vllm_engine, "import_vllm", lambda: SimpleNamespace(LLM=lambda **options: made))
    monkeypatch.setattr(vllm_engine, "on_cpu", lambda: True)
    monkeypatch.setattr(vllm_engine, "resolve", lambda name: Weights("bare", str(tmp_path), "1"))
    llm = EngineLLM.load("bare")
    assert llm.encode([Message("user", "a b")]) == encode_chat(word_tokenizer(), [Message("user", "a b")])


def test_the_engine_is_asked_for_raw_numbers_whatever_else_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu in (True, False):
        monkeypatch.setattr(vllm_engine, "on_cpu", lambda cpu=cpu: cpu)
        found = engine_options("folder", max_model_len=2048)
        assert found["logprobs_mode"] == "raw_logprobs"
        assert found["enable_prefix_caching"] is True
        assert (found["model"], found["max_model_len"]) == ("folder", 2048)
        assert found.get("enforce_eager", False) is cpu
