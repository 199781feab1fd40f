"""Verdicts on what your own client answers, and a score log of them (extra `serve`; the client itself is yours).

python examples/with_your_client.py --url http://127.0.0.1:8000/v1 --model NAME [--client openai]

Clients: openai, stream, litellm, langgraph. `metaprobe doctor URL MODEL` says whether a server will do.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Event

import click

from metaprobe import QualityPredictor, watch
from metaprobe.probes.scored_answer import OnVerdict, Scored
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.verdict_export import log_verdicts

Ask = Callable[[str, str, str, QualityPredictor, OnVerdict], None]


def openai_client(url: str, model: str, question: str, predictor: QualityPredictor, on_verdict: OnVerdict) -> None:
    """The plain client: the response goes to the predictor."""
    from openai import OpenAI

    with OpenAI(base_url=url, api_key="none") as client:
        messages = [{"role": "user", "content": question}]
        response = client.chat.completions.create(model=model, messages=messages, logprobs=True)  # type: ignore[arg-type]
    on_verdict(Scored.of(predictor, response))


def stream(url: str, model: str, question: str, predictor: QualityPredictor, on_verdict: OnVerdict) -> None:
    """The same, streamed: `watch` hands the chunks on, and gives the verdict at the end."""
    from openai import OpenAI

    with OpenAI(base_url=url, api_key="none") as client:
        messages = [{"role": "user", "content": question}]
        chunks = client.chat.completions.create(model=model, messages=messages, logprobs=True, stream=True)  # type: ignore
        list(watch(chunks, predictor, on_verdict=on_verdict))


def litellm(url: str, model: str, question: str, predictor: QualityPredictor, on_verdict: OnVerdict) -> None:
    """A callback for every answer of every provider; in LiteLLM's proxy it scores streams too."""
    import litellm

    from metaprobe.production.litellm_callback import VerdictLogger

    scored = Event()  # LiteLLM calls back on a thread of its own; a program that goes on need not wait
    litellm.callbacks = [VerdictLogger(predictor, on_verdict=lambda one: (on_verdict(one), scored.set()))]
    messages = [{"role": "user", "content": question}]
    litellm.completion(f"openai/{model}", messages, api_base=url, api_key="none", logprobs=True)
    scored.wait(timeout=60)


def langgraph(url: str, model: str, question: str, predictor: QualityPredictor, on_verdict: OnVerdict) -> None:
    """A handler in the config of a graph; the verdict also stands in the message, for the nodes that come later."""
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph

    from metaprobe.production.langchain_callback import VerdictHandler

    chat = ChatOpenAI(model=model, base_url=url, api_key="none", logprobs=True)  # type: ignore[arg-type]
    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [chat.invoke(state["messages"])]})
    graph.add_edge(START, "answer")
    config = {"callbacks": [VerdictHandler(predictor, on_verdict=on_verdict)]}
    graph.compile().invoke({"messages": [("user", question)]}, config=config)  # type: ignore[arg-type]


CLIENTS: dict[str, Ask] = {"openai": openai_client, "stream": stream, "litellm": litellm, "langgraph": langgraph}


@click.command()
@click.option("--url", required=True, help="Base URL of an OpenAI-compatible server, with /v1.")
@click.option("--model", required=True)
@click.option("--client", type=click.Choice(list(CLIENTS)), default="openai")
@click.option("--question", default="Name the capital of Kenya.")
@click.option("--log", type=click.Path(path_type=Path), default=Path("out/scores.sqlite"))
def main(url: str, model: str, client: str, question: str, log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with ScoreLog.open(str(log)) as opened:
        keep = log_verdicts(opened, tags={"client": client})
        both: OnVerdict = lambda one: (keep(one), print(f"verdict: {one.as_metadata()}"))  # noqa: E731
        CLIENTS[client](url, model, question, QualityPredictor.load(), both)
    print(f"logged: metaprobe estimate --log {log}; metaprobe log export --log {log} --to langfuse")


if __name__ == "__main__":
    main()
