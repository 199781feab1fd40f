"""Scores answers of LangChain's models, alone, in chains, or in a LangGraph graph.

handler = VerdictHandler(QualityPredictor.load(path), on_verdict=print)
graph.invoke(state, config={"callbacks": [handler]})    # the model is bound with logprobs=True
"""

import inspect
from collections.abc import Mapping
from typing import Any

from metaprobe.api import OnVerdict, QualityPredictor, Scored, require

callbacks: Any = require("langchain_core.callbacks", "langchain-core>=1.7")

METADATA_KEY = "metaprobe"


class VerdictHandler(callbacks.BaseCallbackHandler):  # type: ignore[misc]
    """A callback handler. `ainvoke` runs it in the event loop, where it takes well under a millisecond.

    Each verdict goes to `on_verdict`. Its context holds `run_id`, `parent_run_id`, `tags` and `metadata`, where
    LangGraph stores the node's name as `langgraph_node`. Unless `annotate` is False, the verdict is also stored in the
    message, so that a later node can read `message.response_metadata["metaprobe"]["score"]`. A streamed message was
    delivered before its verdict is known, so it gets none.
    """

    run_inline = True

    def __init__(
        self, predictor: QualityPredictor, *, on_verdict: OnVerdict | None = None, annotate: bool = True
    ) -> None:
        super().__init__()
        if inspect.iscoroutinefunction(on_verdict):
            raise TypeError("on_verdict is asynchronous, and nothing here waits for it; expected a plain function")
        self._predictor = predictor
        self._on_verdict = on_verdict
        self._annotate = annotate
        self._metadata: dict[Any, Mapping[str, Any]] = {}  # run_id -> metadata: only the start of a run carries it

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: Any, metadata: dict[str, Any] | None = None, **known: Any
    ) -> None:
        """Stores the run's metadata."""
        self._metadata[run_id] = metadata or {}

    on_llm_start = on_chat_model_start

    def on_llm_error(self, error: BaseException, *, run_id: Any, **known: Any) -> None:
        """Forgets the run's metadata."""
        self._metadata.pop(run_id, None)

    def on_llm_end(
        self, response: Any, *, run_id: Any, parent_run_id: Any = None, tags: list[str] | None = None, **known: Any
    ) -> None:
        """Scores every generation."""
        context = {"parent_run_id": parent_run_id, "tags": tags or [], "run_id": run_id}
        context["metadata"] = self._metadata.pop(run_id, {})
        for generations in response.generations:
            for generation in generations:
                message = getattr(generation, "message", None)
                answer_metadata = {**(generation.generation_info or {}), **getattr(message, "response_metadata", {})}
                scored = Scored.of(
                    self._predictor,
                    _completion(generation.text, answer_metadata, message),
                    response_id=_id_or_empty(answer_metadata.get("id")) or _id_or_empty(getattr(message, "id", None)),
                    context=context,
                )
                if self._annotate and message is not None:
                    message.response_metadata[METADATA_KEY] = scored.as_metadata()
                if self._on_verdict is not None:
                    self._on_verdict(scored)


def _completion(content: str, generation_info: Mapping[str, Any], message: Any) -> dict[str, Any]:
    """Returns the chat completion that LangChain has taken apart.

    The Responses API's log-probabilities are a plain list. LangChain stores calls with invalid JSON arguments
    separately, and calls of the older kind in a third place.

    Args:
        content: text of the answer.
        generation_info: metadata of the answer.
        message: the message, if there is one.
    """
    logprobs = generation_info.get("logprobs")
    calls = [*getattr(message, "tool_calls", ()), *getattr(message, "invalid_tool_calls", ())]
    function_call = getattr(message, "additional_kwargs", {}).get("function_call")
    return {
        "id": generation_info.get("id"),
        "model": generation_info.get("model_name") or generation_info.get("model"),
        "choices": [
            {
                "message": {"content": content, "tool_calls": calls, "function_call": function_call},
                "logprobs": {"content": logprobs} if isinstance(logprobs, (list, tuple)) else logprobs,
                "finish_reason": generation_info.get("finish_reason"),
            }
        ],
    }


def _id_or_empty(value: object) -> str:
    """Returns the value if it is a string, else an empty string: an id of another type is no id."""
    return value if isinstance(value, str) else ""
