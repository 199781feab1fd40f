"""A command whose packages are not installed says in one line which, and what to type."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.records.errors import MissingExtra
from metaprobe.records.extras import require


@pytest.mark.parametrize(
    ("line", "package", "extra"),
    [
        (["extract", "RUNS", "--llm", "smollm2-135m"], "torch", "train"),
        (["train", "adapter", "RUNS", "--llm", "smollm2-135m", "--out", "OUT"], "torch", "train"),
        (["train", "adapter", "RUNS", "--llm", "smollm2-135m", "--out", "OUT"], "peft", "train"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    line: list[str],
    package: str,
    extra: str,
    recorded_runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    places = {"RUNS": str(recorded_runs), "OUT": str(tmp_path / "out")}
    result = CliRunner().invoke(main, [places.get(word, word) for word in line])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].startswith(f"Error: {package} is needed here and not installed")
    assert f"pip install '.[{extra}]'" in result.output


def test_a_package_that_is_there_and_lacks_something_itself_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import what_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs") as error:
        require("half_installed", "serve")
    assert not isinstance(error.value, MissingExtra)
    with pytest.raises(MissingExtra, match=r"not_installed.part is needed here.*pip install '\.\[serve\]'"):
        require("not_installed.part", "serve")
    assert require("json.decoder", "serve").__name__ == "json.decoder"


WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "accelerate", "gguf", "llguidance", "peft", "onnxscript"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoTorch())
from metaprobe.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("store", "code"), [("creak-cot", 0), ("smollm2-metacog-eval", 1)])
def test_comparing_needs_torch_only_where_hidden_states_were_kept(store: str, code: int, tmp_path: Path) -> None:
    recorded = Path(__file__).parents[1] / "recorded" / store
    command = [sys.executable, "-c", WITHOUT_TORCH, "compare", str(recorded), "--out", str(tmp_path), "--folds", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "report.html").exists() == (code == 0)
    assert ("pip install '.[train]'" in done.stderr) == (code == 1)
