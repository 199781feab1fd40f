"""P(success) as the judge of other routers: NVIDIA's Switchyard and vLLM's semantic router ask a server on loopback.

Both routers ask a chat model about a request before they choose who answers it. Here an estimator that learned from
recorded outcomes answers in that model's place; it reads only the user's messages, not the router's instructions.

- Switchyard (`mode = "capability"`) asks for `p_solve`, the probability that the weak model solves the task, and
  compares it with `base_threshold`. The verdict is checked in NVIDIA-NeMo/Switchyard,
  crates/libsy/src/algorithms/llm_class.rs and crates/libsy/src/prompts/capability-classifier/schema.json. Without an
  estimate the judge gives no `p_solve`, and Switchyard takes the strong model.
- The semantic router (a signal `classifier` of the type `llm`) asks for one of its labels, here the models' names. The
  request and the verdict's checks are in vllm-project/semantic-router,
  src/semantic-router/pkg/classification/generic_classifier.go and vllm_client.go. The label is the cheapest model that
  meets `TARGET`, and the dearest where no model has an estimate.

No key, and no network but loopback. Needs `pip install '.[fit]' nemo-switchyard`. Without nemo-switchyard, and always
in place of the semantic router, which is a program in Go, the same requests are sent from here.

    python examples/judge_for_routers.py
"""

import json
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from route_before_asking import ASKED, LEARNED, PRICES, TARGET, outcomes

import metaprobe
from metaprobe.routing.success_choice import cheapest_meeting

WEAK, STRONG = PRICES
JUDGE = "success/"
"""Begins the name of a model that judges: the name of the candidate follows, or `CHEAPEST`."""
CHEAPEST = "cheapest"
LONGEST_BODY = 1_000_000
"""Longest request that is read, in bytes."""
SWITCHYARD = """
schema_version = 1

[llm_clients.loopback]
format = "openai_chat"
base_url = "{url}/v1"
max_retries = 0

[targets.judge]
id = "{judge}{weak}"
llm_client = "loopback"

[targets.weak]
id = "{weak}"
llm_client = "loopback"

[targets.strong]
id = "{strong}"
llm_client = "loopback"

[routes.routed]
id = "routed"
type = "llm_classifier"
mode = "capability"
classifier_target = "judge"
weak_target = "weak"
strong_target = "strong"
base_threshold = {target}
"""
SEMANTIC_ROUTER = """
global:
  model_catalog:
    external:
      - name: p-success
        llm_provider: openai
        model_role: classification
        llm_endpoint: {{address: 127.0.0.1, port: {port}, protocol: http}}
        llm_model_name: {judge}{cheapest}
routing:
  signals:
    classifiers:
      - name: success
        type: llm
        model: p-success
        labels: [{weak}, {strong}]
        instructions: Choose the cheapest model that meets the target.
  decisions:
    - name: weak-suffices
      description: The weak model meets the target.
      priority: 100
      rules:
        operator: AND
        conditions:
          - {{type: classifier, name: success, label: {weak}, predicate: {{gte: 0.5}}, on_error: no_match}}
      modelRefs:
        - {{model: {weak}, use_reasoning: false}}
"""
"""The part of the semantic router's configuration that asks; its default model is the strong one."""


class Unanswered(Exception):
    """Says with which status and message a request is refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def verdict(asked: Any, estimator: Any, prices: Mapping[str, float], target: float) -> dict[str, Any]:
    """Returns the verdict that the router's schema asks for.

    Args:
        asked: a chat completion request with messages; its model is `JUDGE` and a candidate, or `JUDGE` and `CHEAPEST`.
        estimator: a checkpoint of `metaprobe train success`.
        prices: US dollars an answer by candidate.
        target: P(success) that the cheapest candidate must meet.

    Without an estimate of the candidate the verdict holds the reason alone. Switchyard discards such a verdict and
    takes the strong model, while it hands an error of the judge on to its caller.

    Raises `Unanswered` where the request has no user's message.
    """
    messages = [one for one in asked["messages"] if isinstance(one, dict) and one.get("role") == "user"]
    if not messages:
        raise Unanswered(400, "no message has the role user; the judge estimates success on the user's messages")
    candidate = str(asked.get("model")).removeprefix(JUDGE)
    if candidate == CHEAPEST:
        choice = cheapest_meeting(
            estimator.estimate(messages), prices, target, fallback=max(prices, key=prices.__getitem__)
        )
        return {"label": choice.candidate, "rationale": choice.reason}
    (estimate,) = estimator.estimate(messages, [candidate])
    if estimate.p is None:
        return {"insufficient": estimate.reason}
    # The judge gives a number alone, so it names no rule of Switchyard's card of capabilities.
    crux = f"P(success) of {candidate} by {estimate.source}"
    return {"crux": crux, "primary_rule": "none", "capability_boundary": "unmatched", "p_solve": estimate.p}


@contextmanager
def judge_on_loopback(estimator: Any, prices: Mapping[str, float] = PRICES, target: float = TARGET) -> Iterator[str]:
    """Serves the judge, and a made-up answer of every other model; yields the server's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, told = 200, {}
            try:
                length = int(self.headers.get("Content-Length") or 0)
                if self.path != "/v1/chat/completions" or not 0 < length <= LONGEST_BODY:
                    raise Unanswered(404, f"expected POST /v1/chat/completions with 1 to {LONGEST_BODY:,} bytes")
                asked = json.loads(self.rfile.read(length))
                if not isinstance(asked, dict) or not isinstance(asked.get("messages"), list):
                    raise Unanswered(400, "no chat completion request came; expected an object with model and messages")
                model = asked.get("model")
                judged = str(model).startswith(JUDGE)
                content = json.dumps(verdict(asked, estimator, prices, target)) if judged else f"said by {model}"
                message = {"role": "assistant", "content": content}
                told = {
                    "id": "chatcmpl-judge",
                    "object": "chat.completion",
                    "created": 0,
                    "model": model,
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
                }
            except Unanswered as error:
                status, told = error.status, {"error": {"message": str(error), "type": "invalid_request_error"}}
            except ValueError as error:  # no JSON, or messages that the estimator refuses
                status, told = 400, {"error": {"message": str(error), "type": "invalid_request_error"}}
            body = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Writes no line for a request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def post(url: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Returns the status and the answer of a chat completion request."""
    asked = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(asked) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def by_capability(url: str, question: str) -> str:
    """Returns the model that Switchyard's capability route takes, by its judge's request and its rule."""
    schema = {"name": "CapabilityClassifierDecision", "strict": True, "schema": {"type": "object"}}
    _, told = post(
        url,
        {
            "model": JUDGE + WEAK,
            "messages": [
                {"role": "system", "content": "Forecast whether the efficient model solves the task."},
                {"role": "user", "content": question},
            ],
            "max_tokens": 4096,
            "response_format": {"type": "json_schema", "json_schema": schema},
        },
    )
    found = json.loads(told["choices"][0]["message"]["content"])
    return WEAK if found.get("p_solve", -1) >= TARGET else STRONG


def by_label(url: str, question: str, labels: Sequence[str] = (WEAK, STRONG)) -> str:
    """Returns the label that the semantic router's classifier reads, by its request and its checks of the verdict.

    Raises `ValueError` where the semantic router would refuse the verdict.
    """
    instructions = (
        f"Choose the cheapest model that meets the target.\n\nChoose exactly one label from: {', '.join(labels)}.\n"
        'Return only JSON: {"label":"<exact label>","rationale":"<short reason>"}.'
    )
    _, told = post(
        url,
        {
            "model": JUDGE + CHEAPEST,
            "messages": [{"role": "system", "content": instructions}, {"role": "user", "content": question}],
            "max_tokens": 128,
            "response_format": {"type": "json_object"},
        },
    )
    found = json.loads(told["choices"][0]["message"]["content"])
    if set(found) != {"label", "rationale"} or found["label"] not in labels or not found["rationale"].strip():
        raise ValueError(f"{found} came; the semantic router expects one of {labels} and a rationale, and nothing else")
    return str(found["label"])


def main() -> None:
    """Trains on the first questions, and lets both routers choose for the next ones."""
    questions = outcomes()
    asked = questions[LEARNED : LEARNED + ASKED]
    with tempfile.TemporaryDirectory() as folder:
        path = metaprobe.train_success(questions[:LEARNED], out=Path(folder) / "success").path
        with judge_on_loopback(metaprobe.load(path)) as url:
            settings = {"url": url, "port": url.rpartition(":")[2], "judge": JUDGE, "cheapest": CHEAPEST}
            settings |= {"weak": WEAK, "strong": STRONG, "target": TARGET}
            (Path(folder) / "routes.toml").write_text(SWITCHYARD.format(**settings))
            print("The semantic router's configuration:", SEMANTIC_ROUTER.format(**settings))
            try:
                from switchyard_rust.server import Server
            except ImportError:
                ways = {"Switchyard's rule": [by_capability(url, one.question) for one in asked]}
            else:
                with Server(Path(folder) / "routes.toml") as server:
                    said = [
                        post(
                            server.base_url,
                            {"model": "routed", "messages": [{"role": "user", "content": one.question}]},
                        )
                        for one in asked
                    ]
                ways = {
                    "Switchyard": [
                        told["choices"][0]["message"]["content"].removeprefix("said by ") for _, told in said
                    ]
                }
            ways["semantic router's request"] = [by_label(url, one.question) for one in asked]
    for way, names in ways.items():
        right = sum(one.agents[name].score or 0.0 for one, name in zip(asked, names, strict=True)) / len(asked)
        print(f"{way}: {right:.1%} right, {names.count(WEAK)} of {len(names)} by {WEAK}")


if __name__ == "__main__":
    main()
