"""Shared by several files: the recorded runs, and answers with planted signals."""

import gc
import importlib.util
import os
import random
import shutil
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from urllib import request as http

import hypothesis
import hypothesis.internal.conjecture.providers as providers
import numpy as np
import pytest
from made_once import MadeOnce, makes_once

from metaprobe.checkpoints import Generator
from metaprobe.eval import audits
from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.compare import method_results
from metaprobe.eval.report import figures, write
from metaprobe.probes.features import features, schema
from metaprobe.records.activations import Activations
from metaprobe.records.canaries import CANARIES, CANARY_POSITIONS, CanaryStates
from metaprobe.training.evidence import Evidence
from metaprobe.training.panel import compared_asks, fitted_asks
from metaprobe.training.recipes.train_hidden import write_hidden
from metaprobe.training.recipes.train_quality import write_quality
from metaprobe.training.stored_states import InMemory
from metaprobe.training.study import study_of

UP_WITHIN_S = 120
ROOT = Path(__file__).parent.parent
for name in ("benchmarks", "research"):  # they stand beside the package, and are not installed with it
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(ROOT / name)]

# Hundreds of tests start the program: what was compiled once is kept, also where the environment says not to.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Every client of HTTP reads a hundred certificates, which takes longer than most requests of the tests: once is enough.
ssl.create_default_context = cache(ssl.create_default_context)

# Files are synced to the disk before they are renamed into place: tests hold what is called, and when. As no test pulls
# the plug, the disk need not do it.
os.fsync = lambda descriptor: None

# A busy machine fails no test, so no example has a deadline. The examples are the same for everybody; `make fuzz` draws
# anew. Its seed alone decides what is drawn: a database of earlier examples would make two runs of one seed differ.
# The same examples again find nothing new, so `make test` takes a quarter of those of `make fuzz`.
hypothesis.settings.register_profile("same", max_examples=25, deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("fuzz", max_examples=100, deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("same")

FIRST = [
    f"test_{name}.py"
    for name in (
        "production_evening vllm_real adapter every_system real_model evening "  # slow ones
        "panel_policy panel_next trained verdicts docs check panel ladder flagging promote confidence_sources report "
        "log_spool assist_app adapt doctor log_shared probe_arrays heads house blend training recalibrate "
        "text_reader what_is_learned written_blocks planted_cases cli commands demo"
    ).split()
]
"""The files that take longest, so that the workers end together."""
FUZZ_UNTIL = time.monotonic() + float(os.environ.get("FUZZ_S", "inf"))
"""When `make fuzz` starts no further test; the rest is reported as skipped."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keeps the garbage collector from looking at the collected tests again and again: all of them stay to the end.

    It also looks more rarely than by default: in a process of eighty files it took a fiftieth of the time.
    """
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begins with what takes longest, so that no worker waits for it at the end; in `make fuzz`, files in drawn order.

    A bounded run of `make fuzz` then leaves out other tests each time.
    """
    if fuzzing(config):
        files = sorted({item.path for item in items})
        random.Random(config.getoption("--hypothesis-seed")).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))
    else:
        items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if fuzzing(item.config) and time.monotonic() > FUZZ_UNTIL:
        pytest.skip(f"the {os.environ['FUZZ_S']} s of this run of make fuzz are over")


def pytest_configure(config: pytest.Config) -> None:
    """Keeps what a test draws from depending on the modules that other tests have loaded.

    Hypothesis draws constants that it finds in the project's loaded modules, and has no option against that.
    """
    if not fuzzing(config) and hasattr(providers, "_get_local_constants"):
        none = providers._get_local_constants.__globals__["_local_constants"]
        providers._get_local_constants = lambda: none


def fuzzing(config: pytest.Config) -> bool:
    return config.getoption("--hypothesis-profile", default=None) == "fuzz"


@pytest.fixture(scope="session", autouse=True)
def _collect_at_the_end() -> Iterator[None]:
    """Lets what the last tests of a worker left open fail too."""
    yield
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def _one_refit_an_audit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets a training refit on shuffled labels and on noise once each, in place of five and three times.

    A router tries a third of the prices and an eighth of the cascades' thresholds, in two folds, with a third of the
    trees that expect a gain. Intervals come from a fifth of the resamples. All of that is much of a small training. The
    audits' own tests make all refits, and so do trainings whose numbers are kept.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not {"frozen", "test_what_is_learned.py"} & {*request.path.parts}:
            patch.setattr(audits, "shuffled_labels", partial(audits.shuffled_labels, permutations=1))
            patch.setattr(audits, "random_features", partial(audits.random_features, draws=1))
            patch.setattr(audits, "RESAMPLES", 200)
            patch.setitem(method_results.__kwdefaults__, "resamples", 200)
            patch.setattr(fitted_asks, "GAIN_PRICES", 8)
            patch.setattr(fitted_asks, "CUTS", 8)
            patch.setattr(fitted_asks, "ASK_TREES", {**fitted_asks.ASK_TREES, "rounds": 50})
            patch.setattr(compared_asks, "OUTER", 2)
        yield


RENDERED = {"test_paper_figures.py", "test_report.py", "test_report_browser.py"}
"""The tests of reports, in which figures are rendered."""


@pytest.fixture(scope="module", autouse=True)
def _figures_are_painted_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets a comparison paint its figures without rendering them as SVG and PDF, except in the tests of reports.

    Rendering takes a third of the time of a small comparison, most of it for the fonts in each PDF.
    """

    def painted(figure: figures.Figure) -> dict[str, bytes]:
        from matplotlib.figure import Figure as Canvas

        figure.paint(Canvas().subplots())
        return {"svg": b"", "pdf": b""}

    with pytest.MonkeyPatch.context() as patch:
        if request.path.name not in RENDERED or "frozen" in request.path.parts:
            patch.setattr(write, "draw", painted)
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    return makes_once(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def recorded_runs() -> Path:
    """The store of really recorded runs that ships with the repository."""
    return Path(__file__).parent.parent / "recorded" / "smollm2-metacog-eval"


@pytest.fixture(scope="session")
def evidence() -> Evidence:
    """600 answers with planted signals."""
    return made_up()


def made_up(n: int = 600, *, signal: float = 1.5, seed: int = 0) -> Evidence:
    """Log-probabilities, and one direction of layer 2, know how right an answer is; statements know nothing."""
    rng = np.random.default_rng(seed)
    groups = np.array([f"g{i}" for i in rng.integers(0, n // 4, n)])
    truth = rng.normal(size=n)
    y = (truth + rng.normal(size=n) > 0).astype(np.int64)
    lengths = rng.integers(3, 40, n)
    logprobs = np.empty(n, dtype=object)
    logprobs[:] = [
        -np.abs(rng.normal(1.5 - signal * np.tanh(t) / 2, 0.7, k)).astype(np.float32)
        for t, k in zip(truth, lengths, strict=True)
    ]
    hidden = rng.normal(size=(n, 3, 2, 12))
    hidden[:, 2, 1, 5] += signal * truth
    calls = np.array([f"c{i}" for i in range(n)])
    table = AnswerTable(
        call_ids=calls,
        items=calls,
        tasks=np.full(n, "t"),
        groups=groups,
        variants=np.full(n, "direct"),
        dimensions=np.full(n, "d"),
        levels=np.full(n, "easy"),
        questions=np.array([f"question {i} of {g}" for i, g in enumerate(groups)]),
        models=np.full(n, "m"),
        y=y,
        stated_difficulty=rng.uniform(size=n),
        stated_confidence=np.where(rng.uniform(size=n) < 0.2, np.nan, rng.uniform(size=n)),
        p_true=np.full(n, np.nan),
        logprobs=logprobs,
        tokens=lengths,
        cut=np.zeros(n, dtype=bool),
    )
    full = schema("full+terms")
    return Evidence(
        table=table,
        features=features(full, list(logprobs)),
        feature_names=full.names,
        schema=full.name,
        states=InMemory(
            Activations(tuple(calls.tolist()), hidden.astype(np.float16), (0, 1, 2), ("prompt_last", "answer_last")),
            canaries=made_up_canaries((0, 1, 2), hidden.shape[-1]),
        ),
        generator=Generator(model="m", logprobs_mode="raw"),
        fingerprint="f",
    )


def made_up_canaries(layers: tuple[int, ...], width: int, model: str = "m") -> CanaryStates:
    """States of the canaries from the source of made-up states."""
    names = tuple(canary.id for canary in CANARIES)
    values = np.random.default_rng(5).normal(size=(len(names), len(layers), len(CANARY_POSITIONS), width))
    ids = tuple((1, 2) for _ in names)
    return CanaryStates("made up 1", model, "1", "float32", layers, names, ids, ids, values.astype(np.float16))


@pytest.fixture(scope="session")
def planted(evidence: Evidence, made_once: MadeOnce) -> dict[str, Path]:
    """A predictor and probes before and after the answer, trained on `evidence` once a run."""

    def train(folder: Path) -> None:
        found = study_of(evidence, folds=2)
        write_quality(folder / "quality", {"correct": found}, command="a test")
        for when in ("before", "after"):
            write_hidden(folder / when, found, when=when, target="correct", command="a test")

    folder = made_once("planted", train)
    return {name: folder / name for name in ("quality", "before", "after")}


@pytest.fixture(scope="session")
def llama_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of llama.cpp's server with the embedded model, on this machine."""
    with llama_server_with(tmp_path_factory.mktemp("server") / "log") as url:
        yield url


@contextmanager
def llama_server_with(log: Path, *options: str) -> Iterator[str]:
    """The same with further options of that server; what it says goes into the file `log`."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("llama.cpp's server is not installed: pip install xllamacpp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(ROOT / "tests" / "llama_server.py"), "--port", str(port), *options]
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        wait_until_up(f"http://127.0.0.1:{port}/v1/models", server, log)
        os.environ.setdefault("OPENAI_API_KEY", "none")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(timeout=30)


def wait_until_up(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    direct = http.build_opener(http.ProxyHandler({}))
    deadline = time.monotonic() + UP_WITHIN_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            direct.open(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server did not come up within {UP_WITHIN_S} s:\n{log.read_text()[-2000:]}")


def mapped_folders() -> dict[str, Path]:
    """Returns the folder of each package that pyproject.toml maps, by the package's name."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    return {name: ROOT / folder for name, folder in settings["package-dir"].items() if name}


def copy_without_links(out: Path) -> Path:
    """Returns a copy of what the wheel is built from; links are plain files, as git makes them without links."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, out / name)
    for folder in mapped_folders().values():
        target = out / folder.relative_to(ROOT)
        shutil.copytree(folder, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for link in [path for path in out.rglob("*") if path.is_symlink()]:
        leads_to = str(link.readlink())
        link.unlink()
        link.write_text(leads_to)
    return out


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the package's wheel, built from a copy without links: no network is asked, and no folder is left."""
    source, out = copy_without_links(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("metaprobe-*.whl"))
