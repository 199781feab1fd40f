"""Puts the verdict on an answer beside its trace in Langfuse or MLflow, by their own clients (extra `api`).

pip install langfuse          # LANGFUSE_BASE_URL, LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY name your project
pip install mlflow            # MLFLOW_TRACKING_URI names your server, or a file: sqlite:///mlflow.db
python examples/with_your_traces.py --url http://127.0.0.1:8000/v1 --model NAME --to langfuse|mlflow

Both trace the call; the score belongs to the trace, where filters and dashboards find it. An answer without a score is
traced all the same, with the reason. Where traces exist already, `metaprobe log export` sends verdicts after them.
"""

import os
from collections.abc import Callable
from typing import Any

import click

from metaprobe import QualityPredictor
from metaprobe.probes.scored_answer import Scored

NAME = "metaprobe"
Ask = Callable[[], Any]


def to_langfuse(ask: Ask, question: str, predictor: QualityPredictor) -> dict[str, Any]:
    from langfuse import Langfuse

    client = Langfuse()
    with client.start_as_current_observation(as_type="generation", name="answer", input=question) as generation:
        response = ask()
        generation.update(model=response.model, output=response.choices[0].message.content)
        found = Scored.of(predictor, response).as_metadata()
        if found["score"] is None:  # Langfuse has no score without a value
            generation.update(metadata={NAME: found["reason"]})
        else:
            told = {"value": found["score"], "data_type": "NUMERIC", "comment": found["reason"] or None}
            client.score_current_trace(name=NAME, metadata={"flagged": found["flagged"]}, **told)
    client.flush()
    return found


def to_mlflow(ask: Ask, question: str, predictor: QualityPredictor) -> dict[str, Any]:
    import mlflow
    from mlflow.entities import AssessmentSource

    with mlflow.start_span("answer", span_type="CHAT_MODEL") as span:
        span.set_inputs({"question": question})
        response = ask()
        span.set_outputs(response.choices[0].message.content)
    mlflow.flush_trace_async_logging()  # feedback is for a trace that the store has
    found = Scored.of(predictor, response).as_metadata()
    judged = {"value": found["score"]} if found["score"] is not None else {"error": ValueError(found["reason"])}
    source = AssessmentSource(source_type="CODE", source_id=NAME)
    mlflow.log_feedback(trace_id=span.trace_id, name=NAME, source=source, rationale=found["reason"] or None, **judged)
    return found


PRODUCTS = {"langfuse": to_langfuse, "mlflow": to_mlflow}


@click.command()
@click.option("--url", required=True, help="Base URL of an OpenAI-compatible server, with /v1.")
@click.option("--model", required=True)
@click.option("--to", type=click.Choice(list(PRODUCTS)), required=True)
@click.option("--question", default="Name the capital of Kenya.")
def main(url: str, model: str, to: str, question: str) -> None:
    from openai import OpenAI

    with OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none")) as client:
        messages: Any = [{"role": "user", "content": question}]
        found = PRODUCTS[to](
            lambda: client.chat.completions.create(model=model, messages=messages, logprobs=True),
            question,
            QualityPredictor.load(),
        )
    print(f"{to}: score {found['score']}, flagged {found['flagged']}, reason: {found['reason'] or 'none'}")


if __name__ == "__main__":
    main()
