"""Whether a chat completion holds an answer at all: a call can fail without raising."""

from metaprobe.records.reading import as_list, error_message, fields, text

BROKEN_ENDS = frozenset(
    "error abort aborted cancelled canceled failed failure timeout insufficient_system_resource".split()
)
"""Finish reasons of answers that the server did not finish, by any cause of its own."""


def failure_of(response: object) -> str:
    """Returns why a chat completion holds nothing that could be kept; empty where it holds an answer.

    An answer is a text that is not blank, a call of a tool, a refusal, or sound. Never raises.
    """
    held = fields(response)
    if held is None:
        return f"a {type(response).__name__} came; expected a chat completion"
    if held.get("error"):
        return error_message(held) or "the response is an error without a message"
    choices = as_list(held.get("choices")) or ()
    choice = fields(choices[0]) if choices else None
    if choice is None:
        return error_message(held) or "the response holds no choice"
    if choice.get("error"):
        return error_message(choice) or "the choice is an error without a message"
    end = text(choice.get("finish_reason"))
    if end.lower() in BROKEN_ENDS:
        return f"the answer ended with finish_reason {end!r}"
    message = fields(choice.get("message")) or {}
    kept = [message.get(name) for name in ("tool_calls", "function_call", "refusal", "audio")]
    if any(kept) or _has_text(message.get("content")):
        return ""
    return "the answer is empty" + (f" (finish_reason {end!r})" if end else "")


def _has_text(content: object) -> bool:
    """Whether a message's content, a text or a list of parts, holds more than blanks."""
    if isinstance(content, str):
        return not content.isspace() and content != ""
    for part in as_list(content) or ():
        held = fields(part) or {}
        if held.get("type", "text") != "text" or text(held.get("text")).strip() or (isinstance(part, str) and part):
            return True
    return False
