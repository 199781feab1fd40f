"""Weights that are cut, as by an interrupted download, are named as such wherever the cut lies."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from tiny_adapter import saved_base

from metaprobe.cli import main
from metaprobe.llms.base import LLMError
from metaprobe.llms.weights import resolve

TENSOR_BYTES = 32 * 64 * 4


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tensors, and a header with a vocabulary; no model, for it lacks nearly all of its layers."""
    monkeypatch.setenv("METAPROBE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{i}" for i in range(200)])
    for name in ("token_embd.weight", "output_norm.weight"):
        writer.add_tensor(name, np.zeros((32, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def cut_at(path: Path, size: int) -> Path:
    cut = path.with_name(f"cut-{size}.gguf")
    cut.write_bytes(path.read_bytes()[:size])
    return cut


def test_wherever_it_is_cut_the_remedy_is_to_download_it_again(whole: Path) -> None:
    size = whole.stat().st_size
    table = whole.read_bytes().index(b"token_embd.weight")
    for at in (0, 12, 500, table + 5, size - TENSOR_BYTES - 100, size - TENSOR_BYTES, size - 1):
        with pytest.raises(LLMError, match=rf"cut-{at}\.gguf cannot be read .*; it seems cut or damaged, download it"):
            resolve(str(cut_at(whole, at)))


def test_a_folder_with_cut_weights_is_refused_alike(tmp_path: Path) -> None:
    folder = saved_base(tmp_path / "tiny")
    assert resolve(folder).revision.startswith("sha256:")
    weights = tmp_path / "tiny" / "model.safetensors"
    whole = weights.read_bytes()
    for at in (0, 5, 100, len(whole) - 1):
        weights.write_bytes(whole[:at])
        with pytest.raises(
            LLMError, match=r"model\.safetensors cannot be read .*; it seems cut or damaged, download it"
        ):
            resolve(folder)


def test_what_is_whole_but_no_model_is_not_called_cut(whole: Path) -> None:
    page = whole.with_name("page.gguf")
    page.write_text("<html>404: not found</html>")
    for path in (whole, page):
        with pytest.raises(LLMError, match="cannot be read as a GGUF causal language model: "):
            resolve(str(path))


def test_a_command_says_it_in_one_line(whole: Path, recorded_runs: Path) -> None:
    done = CliRunner().invoke(main, ["extract", str(recorded_runs), "--llm", str(cut_at(whole, 500))])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    [line] = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert "cut-500.gguf" in line
    assert "download it again" in line
