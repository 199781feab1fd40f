"""Models, keys, addresses, options and prices are checked before anything is asked, and a key shows up nowhere."""

import asyncio
import logging
import traceback
from pathlib import Path
from typing import Any

import asked_endpoint
import pytest
from asked_endpoint import KEY, complete, request, streamed, use
from faulty_server import FaultyServer

from metaprobe.llms.base import Capabilities, LLMError
from metaprobe.llms.openai_client import OpenAILLM
from metaprobe.llms.pricing import OPENAI_PRICES, Price, price_of, read_prices
from metaprobe.records.types import Call, Usage

environment = asked_endpoint.environment
server = asked_endpoint.server


def test_the_key_stays_in_no_error_record_log_or_repr(server: FaultyServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []

    async def everything(llm: OpenAILLM) -> None:
        told.append(repr(llm) + str(vars(llm)))
        told.append(repr(await llm.complete(request("q: ok"))))
        for content in ("q: 401", "q: 500", "q: 429", "q: malformed", "q: reset"):
            for attempt in (llm.complete, lambda asked: streamed(llm, asked)):
                with pytest.raises(LLMError) as error:
                    await attempt(request(content))
                told.append("".join(traceback.format_exception(error.value)))
                cause: BaseException | None = error.value
                while cause is not None:  # also what a traceback leaves out
                    told.append(repr(cause) + str(vars(cause)))
                    cause = cause.__cause__ or cause.__context__

    use(server, everything, attempts=2)
    assert any("Incorrect API key provided: Bearer [secret]. Try another." in text for text in told)
    assert KEY not in "".join(told)
    assert KEY not in caplog.text
    assert caplog.records  # the client does log


def test_a_part_of_another_key_is_taken_out_as_well(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faulty_server._BAD", {"400": "wrong key sk-proj-abc***xyz, wrong hf_abcdefgh1"})
    with pytest.raises(LLMError, match=r"answered 400: wrong key \[secret\], wrong \[secret\]$"):
        complete(server, "q: 400")


def test_one_model_serves_several_event_loops() -> None:
    async def two() -> list[Call]:
        calls = await asyncio.gather(*[llm.complete(request("q: ok")) for _ in range(2)])
        await llm.aclose()
        return calls

    with FaultyServer() as server:
        llm = OpenAILLM("m", base_url=server.base_url, concurrency=1)
        assert [call.text for _ in range(2) for call in asyncio.run(two())] == [" w0 w1 w2 w3"] * 4


def test_a_spec_names_the_model_and_maybe_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OpenAILLM.parse("openai:gpt-4o").endpoint == "https://api.openai.com/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://here:1/v1/")
    assert OpenAILLM.parse("openai:gpt-4o").endpoint == "http://here:1/v1"
    llm = OpenAILLM.parse("openai:org/model@2@https://there/v1", top_logprobs=5)
    assert (llm.name, llm.endpoint, llm.capabilities.top_logprobs) == ("org/model@2", "https://there/v1", 5)
    assert OpenAILLM.parse("openai:m@http://[::1]:80/v1/?key=x").endpoint == "http://[::1]:80/v1"  # nothing secret


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("openai:", "expected openai:MODEL"),
        ("gpt-4o", "expected openai:MODEL"),
        ("openai:m@http://", "is no address"),
        ("openai:m@http://host:port/v1", "is no address"),
        ("openai:m@http://me:hunter2@host/v1", "holds a user or password"),
        ("openai:m@http://:hunter2@host/v1", "address of host holds a user or password"),
        ("openai:m@ftp://me:hunter2@host/v1?key=hunter2", "'host/v1' is no address"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused(spec: str, reason: str) -> None:
    with pytest.raises(LLMError, match=reason) as error:
        OpenAILLM.parse(spec)
    assert "hunter2" not in str(error.value)


def test_a_missing_or_broken_key_is_told_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\N{HORIZONTAL ELLIPSIS}")
    with pytest.raises(LLMError, match="characters that no key has"):
        OpenAILLM("m")
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(LLMError, match="OPENAI_API_KEY is not set"):
        OpenAILLM("m")
    OpenAILLM("m", base_url="http://127.0.0.1:1/v1")  # needs none


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"attempts": 0},
        {"timeout_s": 0},
        {"top_logprobs": -1},
        {"extra_body": {"temperature": 1}},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(LLMError, match=r"expected|extra_body holds temperature"):
        OpenAILLM("m", base_url="http://here/v1", **options)


def test_prices_are_known_where_they_are_billed(tmp_path: Path) -> None:
    assert price_of("gpt-4o-2024-08-06", "api.openai.com") == OPENAI_PRICES["gpt-4o"]
    assert price_of("gpt-4o-2024-05-13", "api.openai.com") == Price(5.0, 15.0)
    assert price_of("gpt-4.1-nano", "api.openai.com") == Price(0.1, 0.4)
    assert price_of("gpt-4o", "127.0.0.1") is None
    assert price_of("gpt-99", "api.openai.com") is None
    assert Price(2.0, 8.0).cost_usd(Usage(1_000_000, 500_000)) == 6.0
    table = tmp_path / "prices.json"
    table.write_text('{"m": {"prompt": 1, "completion": 2}}')
    assert price_of("m", "127.0.0.1", read_prices(table)) == Price(1.0, 2.0)
    wrong = ('{"m": 3}', "[]", "{", '{"m": {"prompt": -1, "completion": 2}}', '{"m": {"prompt": 1}}')
    for text in (*wrong, '{"m": {"prompt": 1e999, "completion": 2}}', "[" * 100_000):
        table.write_text(text)
        with pytest.raises(LLMError, match=r"prices"):
            read_prices(table)


def test_this_machines_own_names_are_reached_without_a_proxy(server: FaultyServer) -> None:
    async def ask(_: OpenAILLM) -> str:
        url = server.base_url.replace("127.0.0.1", "localhost")
        async with OpenAILLM("m", base_url=url, attempts=1) as llm:
            return (await llm.complete(request("q: ok"))).text

    assert use(server, ask) == " w0 w1 w2 w3"
    for host in ("elsewhere.example", "localhost.example", "10.0.0.1"):

        async def lost(llm: OpenAILLM) -> str:
            with pytest.raises(LLMError, match="no connection to"):
                await llm.complete(request("q: ok"))
            return "asked the proxy of the environment, which leads nowhere"

        assert use(server, lost, base_url=f"http://{host}/v1", attempts=1)


def test_what_it_is_asked_for_by_default_and_what_it_can_do() -> None:
    llm = OpenAILLM("m", base_url="http://here/v1")
    assert llm.capabilities == Capabilities(logprobs=True, stream=True)
    without = OpenAILLM("m", base_url="http://here/v1", logprobs=False, top_logprobs=5, schema_form="none")
    assert without.capabilities == Capabilities(stream=True)
    same = OpenAILLM("m", base_url="http://here/v1/")
    others = (
        OpenAILLM("m", base_url="http://there/v1"),
        OpenAILLM("m", base_url="http://here/v1", extra_body={"top_k": 1}),
        OpenAILLM("m", base_url="http://here/v1", logprobs=False),
        OpenAILLM("m", base_url="http://here/v1", logprobs_mode="raw"),
        OpenAILLM("m", base_url="http://here/v1", schema_form="json_object"),
    )
    assert same.asked_how == llm.asked_how
    assert len({other.asked_how for other in (llm, *others)}) == 6
