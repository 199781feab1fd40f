"""The real LiteLLM, LangChain, LangGraph and OpenTelemetry, asked over loopback: every answer gets its verdict."""

import asyncio
import gc
import importlib
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from made_once import MadeOnce
from openai import DefaultAsyncHttpxClient
from panel_worlds import topics, trained
from served import TOKENS, Upstream, completion, running, small_checkpoint

from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.scored_answer import Scored
from metaprobe.production.evaluation_events import evaluation_events
from metaprobe.records.errors import MissingExtra
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.compared_answers import PanelStep
from metaprobe.routing.watch_stream import watch
from metaprobe.training.evidence import Evidence

LOGPROBS = [logprob for _, logprob in TOKENS]
QUESTION = {"role": "user", "content": "plain"}


@pytest.fixture(scope="module")
def predictor(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> QualityPredictor:
    return QualityPredictor(small_checkpoint(tmp_path_factory.mktemp("checkpoints") / "quality", evidence))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(Upstream()) as (base, _):
        yield f"{base}/v1"


@pytest.mark.parametrize(
    ("integration", "library", "package"),
    [
        ("litellm_callback", "litellm.integrations.custom_logger", "litellm>="),
        ("langchain_callback", "langchain_core.callbacks", "langchain-core>="),
    ],
)
def test_an_integration_without_its_library_says_what_to_install(
    integration: str, library: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, library.split(".")[0], None)
    monkeypatch.delitem(sys.modules, f"metaprobe.production.{integration}", raising=False)
    with pytest.raises(MissingExtra, match=f"pip install '{package}"):
        importlib.import_module(f"metaprobe.production.{integration}")


def test_events_without_opentelemetry_say_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry._logs", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[serve\]'"):
        evaluation_events()


# LangChain and LangGraph


@pytest.fixture(scope="module")
def langchain() -> Any:
    pytest.importorskip("langchain_openai", reason="part of the dev extra; absent from an environment of users")
    pytest.importorskip("langgraph", reason="part of the dev extra; absent from an environment of users")
    from metaprobe.production import langchain_callback

    return langchain_callback


def chat(url: str, **more: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="m", base_url=url, api_key="k", max_retries=0, timeout=20, logprobs=True, **more)


def fake_chat(*answers: dict[str, Any]) -> Any:
    """langchain_core's own fake model; each answer's response_metadata is what is given."""
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    def said(known: dict[str, Any]) -> str:
        return "".join(entry["token"] for entry in known.get("logprobs", {}).get("content", ())) or "said"

    return GenericFakeChatModel(messages=iter([AIMessage(said(known), response_metadata=known) for known in answers]))


def metadata() -> dict[str, Any]:
    [choice] = completion({"model": "m", "logprobs": True})["choices"]
    return {"logprobs": choice["logprobs"], "model_name": "m", "finish_reason": choice["finish_reason"]}


def test_a_chat_model_of_langchain_is_scored_and_its_message_says_so(
    langchain: Any, url: str, predictor: QualityPredictor
) -> None:
    handed: list[Scored] = []
    handler = langchain.VerdictHandler(predictor, on_verdict=handed.append)
    message = chat(url).invoke([("user", "plain")], config={"callbacks": [handler], "tags": ["t"]})
    assert [scored.verdict for scored in handed] == [predictor.predict(LOGPROBS)]
    assert message.response_metadata["metaprobe"] == handed[0].as_metadata()
    assert (handed[0].response_id, handed[0].model, handed[0].context["tags"]) == ("c-1", "m", ["t"])


def test_streamed_and_asynchronous_answers_of_langchain_score_alike(
    langchain: Any, url: str, predictor: QualityPredictor
) -> None:
    handed: list[Scored] = []
    handler = langchain.VerdictHandler(predictor, on_verdict=handed.append)
    list(chat(url).stream([("user", "plain")], config={"callbacks": [handler]}))

    async def run() -> None:
        config = {"callbacks": [handler]}
        async with DefaultAsyncHttpxClient() as connections:  # LangChain's own are never closed
            model = chat(url, http_async_client=connections)
            await model.ainvoke([("user", "plain")], config=config)
            async for _ in model.astream([("user", "plain")], config=config):
                pass

    asyncio.run(run())
    assert [scored.verdict for scored in handed] == [predictor.predict(LOGPROBS)] * 3


def test_a_langgraph_node_routes_by_the_verdict_of_the_one_before(langchain: Any, predictor: QualityPredictor) -> None:
    from langgraph.graph import END, START, MessagesState, StateGraph

    handed: list[Scored] = []
    model = fake_chat(metadata(), {**metadata(), "logprobs": {"content": [{"token": "a", "logprob": -1.0}]}})

    def route(state: Any) -> str:
        known = state["messages"][-1].response_metadata["metaprobe"]
        return "again" if known["score"] == predictor.predict(LOGPROBS).score else END

    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("again", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "answer")
    graph.add_conditional_edges("answer", route, ["again", END])
    graph.add_edge("again", END)
    handler = langchain.VerdictHandler(predictor, on_verdict=handed.append)
    state = graph.compile().invoke({"messages": [QUESTION]}, config={"callbacks": [handler]})
    assert len(state["messages"]) == 3
    assert [scored.context["metadata"]["langgraph_node"] for scored in handed] == ["answer", "again"]
    assert [scored.verdict for scored in handed] == [predictor.predict(LOGPROBS), predictor.predict([-1.0])]


def test_a_model_without_log_probabilities_goes_on_without_a_verdict(
    langchain: Any, predictor: QualityPredictor
) -> None:
    handed: list[Scored] = []
    handler = langchain.VerdictHandler(predictor, on_verdict=handed.append, annotate=False)
    message = fake_chat({"model_name": "m"}).invoke("q", config={"callbacks": [handler]})
    assert message.content == "said"
    assert "metaprobe" not in message.response_metadata
    assert [scored.verdict for scored in handed] == [None]
    assert "logprobs=True" in handed[0].reason
    assert not handler._metadata  # ended runs are forgotten


def test_a_text_model_of_langchain_is_told_apart_and_a_failed_run_forgotten(
    langchain: Any, predictor: QualityPredictor
) -> None:
    from langchain_core.language_models.fake import FakeListLLM

    handed: list[Scored] = []
    handler = langchain.VerdictHandler(predictor, on_verdict=handed.append)
    asyncio.run(FakeListLLM(responses=["said"]).ainvoke("q", config={"callbacks": [handler], "metadata": {"mine": 1}}))
    assert [scored.context["metadata"]["mine"] for scored in handed] == [1]
    for model in (FakeListLLM(responses=[]), fake_chat()):
        with pytest.raises((IndexError, StopIteration, RuntimeError)):
            asyncio.run(model.ainvoke("q", config={"callbacks": [handler]}))
    assert len(handed) == 1
    assert not handler._metadata


@pytest.mark.parametrize(
    "call",
    [
        {"tool_calls": [{"name": "f", "args": {}, "id": "1"}]},
        {"invalid_tool_calls": [{"name": "f", "args": "{", "id": "1", "error": None}]},
        {"additional_kwargs": {"function_call": {"name": "f", "arguments": "{}"}}},
    ],
)
def test_a_tool_call_of_langchain_has_no_score(
    langchain: Any, predictor: QualityPredictor, call: dict[str, Any]
) -> None:
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    handed: list[Scored] = []
    handler = langchain.VerdictHandler(predictor, on_verdict=handed.append)
    message = AIMessage("Let me look.", response_metadata=metadata(), **call)
    GenericFakeChatModel(messages=iter([message])).invoke("q", config={"callbacks": [handler]})
    assert [scored.verdict for scored in handed] == [None]
    assert "is a tool call" in handed[0].reason


# OpenTelemetry


@pytest.fixture
def exported() -> Any:
    """(a tracer provider, its exporter, a logger provider, its exporter), all in memory."""
    pytest.importorskip("opentelemetry.sdk", reason="part of the dev extra; users bring their own SDK")
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, records = InMemorySpanExporter(), InMemoryLogRecordExporter()
    tracers, loggers = TracerProvider(), LoggerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    loggers.add_log_record_processor(SimpleLogRecordProcessor(records))
    yield tracers, spans, loggers, records
    tracers.shutdown()
    loggers.shutdown()


def test_a_verdict_is_an_evaluation_event_of_the_current_span(exported: Any, predictor: QualityPredictor) -> None:
    tracers, spans, loggers, records = exported
    scored = Scored.of(predictor, completion({"model": "m", "logprobs": True}))
    assert scored.verdict is not None
    with tracers.get_tracer("t").start_as_current_span("chat m"):
        evaluation_events(logger_provider=loggers, heads=True)(scored)
    (span,) = spans.get_finished_spans()
    main, head = [item.log_record for item in records.get_finished_logs()]
    assert {main.event_name, head.event_name} == {"gen_ai.evaluation.result"}
    assert (main.trace_id, main.span_id) == (span.context.trace_id, span.context.span_id)
    assert dict(main.attributes) == {
        "gen_ai.evaluation.name": "metaprobe",
        "gen_ai.evaluation.score.value": scored.verdict.score,
        "gen_ai.evaluation.score.label": "fail" if scored.verdict.flagged else "pass",
        "gen_ai.response.id": "c-1",
        **({"gen_ai.evaluation.explanation": scored.verdict.reason} if scored.verdict.reason else {}),
    }
    assert head.attributes["gen_ai.evaluation.name"] == "metaprobe.correct"
    assert head.attributes["gen_ai.evaluation.score.value"] == scored.verdict.heads["correct"]


def test_the_same_event_goes_onto_the_span_where_only_traces_are_read(
    exported: Any, predictor: QualityPredictor
) -> None:
    tracers, spans, _, records = exported
    with tracers.get_tracer("t").start_as_current_span("chat m"):
        evaluation_events(on_span=True, name="mine")(Scored.of(predictor, completion({"model": "m"})))
    (event,) = spans.get_finished_spans()[0].events
    assert event.name == "gen_ai.evaluation.result"
    assert event.attributes["gen_ai.evaluation.name"] == "mine"
    assert event.attributes["error.type"] == "not_scored"
    assert "logprobs=True" in event.attributes["gen_ai.evaluation.explanation"]
    assert "gen_ai.evaluation.score.value" not in event.attributes
    assert not records.get_finished_logs()


# LiteLLM


@pytest.fixture(scope="module")
def litellm() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import asks the network for prices
        module = pytest.importorskip(
            "litellm", reason="needs older releases of what the train extra needs, and so an environment of its own"
        )
    yield module
    module.callbacks = []


class Heard:
    """Notes what callbacks said of each call; LiteLLM calls them on a thread of its own, some time later."""

    def __init__(self) -> None:
        self.scored: dict[str, list[Scored]] = defaultdict(list)
        self.metadata: dict[str, dict[str, Any]] = {}
        """Metadata as seen by a callback that comes after the one that scores."""
        self._news = threading.Condition()

    def take(self, scored: Scored) -> None:
        self.scored[scored.context["litellm_call_id"]].append(scored)

    def logged(self, kwargs: Any) -> None:
        with self._news:
            self.metadata[kwargs["litellm_call_id"]] = kwargs["litellm_params"]["metadata"]
            self._news.notify_all()

    def of(self, call: str) -> Scored:
        """The one verdict on that call, once LiteLLM has logged it."""
        with self._news:
            assert self._news.wait_for(lambda: call in self.metadata, timeout=20)
        (scored,) = self.scored[call]
        return scored


@pytest.fixture(scope="module")
def heard(litellm: Any, predictor: QualityPredictor) -> Heard:
    from metaprobe.production.litellm_callback import VerdictLogger

    heard = Heard()

    class Later(litellm.integrations.custom_logger.CustomLogger):  # type: ignore[misc]
        def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
            heard.logged(kwargs)

        async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
            heard.logged(kwargs)

    litellm.callbacks = [VerdictLogger(predictor, on_verdict=heard.take), Later()]
    return heard


def asked(url: str, call: str, **more: Any) -> dict[str, Any]:
    known = {"model": "openai/m", "api_base": url, "api_key": "k", "max_retries": 0, "timeout": 20}
    return {**known, "litellm_call_id": call, "messages": [QUESTION], "logprobs": True, **more}


@pytest.fixture
def left_open() -> Iterator[None]:
    """Collects here what LiteLLM leaves open, so that it is not collected in the middle of another test."""
    yield
    gc.collect()


def of_litellm(test: Any) -> Any:
    """Its import takes ten seconds and more; pydantic warns of its types; it leaves an event loop and sockets open."""
    marks = [
        pytest.mark.slow,
        pytest.mark.usefixtures("left_open"),
        pytest.mark.filterwarnings("ignore:.*on TypedDict class .*ReadOnly:UserWarning"),
        pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    ]
    for mark in marks:
        test = mark(test)
    return test


@of_litellm
def test_litellm_scores_synchronous_calls_and_tells_later_callbacks(
    litellm: Any, heard: Heard, url: str, predictor: QualityPredictor
) -> None:
    response = litellm.completion(**asked(url, "sync", metadata={"mine": 1}))
    assert response.choices[0].message.content
    scored = heard.of("sync")
    assert scored.verdict == predictor.predict(LOGPROBS)
    assert heard.metadata["sync"]["metaprobe"] == scored.as_metadata()
    assert heard.metadata["sync"]["mine"] == scored.context["metadata"]["mine"] == 1


@of_litellm
def test_litellm_scores_asynchronous_calls_and_streams_that_leave_its_proxy(
    litellm: Any, heard: Heard, url: str, predictor: QualityPredictor
) -> None:
    request: dict[str, Any] = {"litellm_call_id": "proxy", "metadata": {"mine": 1}}

    async def run() -> None:
        await litellm.acompletion(**asked(url, "async"))
        assert (await asyncio.to_thread(heard.of, "async")).verdict == predictor.predict(LOGPROBS)
        stream = await litellm.acompletion(**asked(url, "proxy", stream=True))
        hook = litellm.callbacks[0].async_post_call_streaming_iterator_hook  # called as the proxy does
        chunks = [chunk async for chunk in hook(user_api_key_dict=None, response=stream, request_data=request)]
        said = [chunk.choices[0].delta.content for chunk in chunks]
        assert [token for token in said if token] == [token for token, _ in TOKENS]
        # The event that LiteLLM logs of the stream, with less in it, is not scored again.
        assert (await asyncio.to_thread(heard.of, "proxy")).verdict == predictor.predict(LOGPROBS)

    asyncio.run(run())
    assert request["metadata"] == {"mine": 1, "metaprobe": heard.of("proxy").as_metadata()}


@of_litellm
def test_streams_of_litellm_are_scored_by_watching_them(
    litellm: Any, heard: Heard, url: str, predictor: QualityPredictor
) -> None:
    list(watched := watch(litellm.completion(**asked(url, "stream", stream=True)), predictor))
    assert watched.verdict == predictor.predict(LOGPROBS)
    scored = heard.of("stream")
    assert scored.verdict is None
    assert "watch(stream, predictor)" in scored.reason

    async def run() -> Any:
        async for _ in (watched := watch(await litellm.acompletion(**asked(url, "astream", stream=True)), predictor)):
            pass
        return watched

    assert asyncio.run(run()).verdict == predictor.predict(LOGPROBS)


@of_litellm
def test_a_mock_answer_of_litellm_without_log_probabilities_is_no_error(litellm: Any, heard: Heard, url: str) -> None:
    response = litellm.completion(**asked(url, "mock", mock_response="said"))
    assert response.choices[0].message.content == "said"
    assert heard.of("mock").verdict is None
    assert "logprobs=True" in heard.of("mock").reason


# A panel through LangGraph and LiteLLM


@of_litellm
def test_a_panel_asks_through_litellm_in_a_node_of_a_graph_and_picks_a_deployment(
    litellm: Any, url: str, made_once: MadeOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langgraph.graph import END, START, StateGraph
    from litellm.types.router import CustomRoutingStrategyBase

    team = Panel.load(trained(topics, made_once))

    def named(question: str, dimension: Any, answers: Any, *_: Any, **__: Any) -> PanelStep:
        keep = 1 if len(answers) == 2 else None
        return PanelStep(("history", "maths", None)[len(answers)], {}, question, keep=keep)

    monkeypatch.setattr(team, "next", named)
    litellm.in_memory_llm_clients_cache.flush_cache()
    agents = ("history", "maths")
    params = {"api_base": url, "api_key": "a-key"}
    model_list = [
        {"model_name": name, "litellm_params": {"model": f"openai/{name}", **params}, "model_info": {"id": name}}
        for name in agents
    ]
    router = litellm.Router(model_list=model_list)

    async def answer(state: dict[str, Any]) -> dict[str, Any]:
        asked = [{"role": "user", "content": state["question"]}]
        answered = await team.ask(dict.fromkeys(agents, router.acompletion), asked)
        return {"said": answered.response.choices[0].message.content, "asked": answered.asked}

    graph = StateGraph(dict)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    told = asyncio.run(graph.compile().ainvoke({"question": "plain"}))
    assert (told["said"], told["asked"]) == ("".join(token for token, _ in TOKENS), agents)

    deployments = [{**one, "model_name": "panel"} for one in model_list]
    picking = litellm.Router(model_list=deployments)

    class ByPanel(CustomRoutingStrategyBase):
        async def async_get_available_deployment(self, model: str, messages: Any = None, *_: Any, **__: Any) -> Any:
            agent = team.next(messages[-1]["content"], None, []).agent
            return next(one for one in deployments if one["model_info"]["id"] == agent)

    picking.register_plugin(ByPanel())
    response = asyncio.run(picking.acompletion(model="panel", messages=[QUESTION]))
    assert response.model == "history"
