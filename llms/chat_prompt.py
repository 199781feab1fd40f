"""From messages to the token ids of a prompt, by a model's own chat template."""

from collections.abc import Sequence
from typing import Any

from metaprobe.records.types import Message

# For base models that ship without a chat template.
PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] | capitalize }}: {{ m['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def complete_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer itself, with a plain chat template and a padding token where it has none."""
    if tokenizer.chat_template is None:
        tokenizer.chat_template = PLAIN_TEMPLATE
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def encode_chat(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """The prompt's token ids, up to where the answer begins."""
    chat = [{"role": message.role, "content": message.content} for message in messages]
    return encode_text(tokenizer, tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a text, without a token for its beginning or its end."""
    return [int(token) for token in tokenizer(text, add_special_tokens=False).input_ids]
