"""Writes out/dependencies.md: every package that an installation brings, its licence, and why it is needed.

    python scripts/dependencies.py    # in an environment that holds all extras, such as that of `make check`

Versions and licences are those of the installed packages; no registry is asked.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "out" / "dependencies.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "docs")]
"""Extras that a user installs; the others are for contributors."""
APPS = {
    path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))["project"]["dependencies"]
    for path in sorted(ROOT.glob("apps/*/pyproject.toml"))
}
"""Maps an app to the dependencies of its package."""

FOR = {
    "numpy": "features, and the arrays that go through a model",
    "onnxruntime": "runs the trained models",
    "click": "the command line",
    "tqdm": "progress on stderr",
    "pyarrow": "the run store's Parquet files",
    "safetensors": "hidden states, and weights",
    "torch": "runs local models, fits adapters",
    "transformers": "local models and their tokenizers",
    "accelerate": "loads weights as they are needed",
    "gguf": "reads weights in GGUF files",
    "llguidance": "answers that keep to a grammar",
    "scikit-learn": "linear models, calibration",
    "scipy": "statistics, optimisation",
    "lightgbm": "tree models",
    "onnx": "writes and checks graphs",
    "onnxmltools": "LightGBM to ONNX",
    "skl2onnx": "scikit-learn to ONNX",
    "onnxscript": "torch to ONNX",
    "peft": "LoRA of the adapter probe",
    "tokenizers": "the adapter probe's tokenizer, without transformers",
    "jinja2": "the report's pages",
    "matplotlib": "the report's figures",
    "pandas": "the report's tables as LaTeX",
    "openai": "asks OpenAI-compatible endpoints",
    "tenacity": "asks them again after a failure",
    "clingo": "solves CAELF's argumentation frameworks",
    "nltk": "reads WordNet, for the writing assistant's words",
    "wn": "holds the files of WordNet 3.0, which are under WordNet's own licence; its code is not used",
    "fastapi": "the writing assistant's page",
    "datasets": "task sets from the Hugging Face hub",
    "huggingface-hub": "checkpoints from and to the Hugging Face hub",
    "starlette": "the scoring server",
    "uvicorn": "serves it",
    "httptools": "reads what callers send it",
    "uvloop": "its event loop",
    "aiohttp": "the proxy's way to the upstream",
    "prometheus-client": "the server's metrics",
    "math-verify": "tells whether an answer in LaTeX is the gold number",
    "msgspec": "reads response bodies fast",
    "sqlalchemy": "the score log, in a SQLite file or in PostgreSQL",
    "psycopg": "PostgreSQL",
    "litellm": "callbacks there",
    "langchain-core": "callbacks there",
    "opentelemetry-api": "verdicts as events",
    "zstandard": "reads logs that are compressed with Zstandard",
    "inspect-ai": "writes verdicts into logs of Inspect",
    "distributed": "training on several machines",
    "dask": "training on several machines",
}
"""Maps a direct dependency to its purpose. A test compares it with pyproject.toml."""

SPDX = {
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "bsd": "BSD",
    "bsd license": "BSD",
    "new bsd": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "mit no attribution license (mit-0)": "MIT-0",
}
PERMISSIVE = re.compile(
    r"(0BSD|Apache-2\.0|BSD|BSD-[23]-Clause|BSL-1\.0|CC0-1\.0|CNRI-Python|ISC|MIT|MIT-0|MIT-CMU|PSF-2\.0|Zlib)"
)
"""Licences that require only to be named; `BSD` if a package does not say which."""


def licence(found: Distribution) -> str:
    """Returns the licence as an SPDX expression, if the package gives one or its classifiers or words can be read as
    one.
    """
    # `get`: with importlib_metadata installed, which langchain brings, a missing field raises.
    if stated := found.metadata.get("License-Expression"):
        return str(stated)
    classified = [line.split(" :: ")[-1] for line in found.metadata.get_all("Classifier") or () if "License ::" in line]
    words = (found.metadata.get("License") or "").strip()
    said = classified or [words.partition("\n")[0]] * bool(words)  # the field may hold the whole text
    return " OR ".join(dict.fromkeys(SPDX.get(name.lower(), name) for name in said)) or "not stated"


def asks_for_more(terms: str) -> str:
    """Returns the part of an expression that is not permissive; empty if all of it is, or can be chosen to be."""

    def permissive(name: str) -> bool:
        return PERMISSIVE.fullmatch(name.strip().removesuffix(" WITH LLVM-exception")) is not None

    parts = [part.strip("() ") for part in re.split(r" AND (?![^(]*\))", terms)]
    return " AND ".join(part for part in parts if not any(map(permissive, part.split(" OR "))))


def needed(requirements: list[str]) -> dict[str, Distribution | None]:
    """Maps each package that these requirements bring on this platform to what is installed of it; None if it is
    absent.
    """
    found: dict[str, Distribution | None] = {}
    visited: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        try:
            package = found.setdefault(name, distribution(name))
        except PackageNotFoundError:
            found[name] = None
            continue
        for extra in {"", *wanted.extras}:
            if package is not None and (name, extra) not in visited:
                visited.add((name, extra))
                brought = map(Requirement, package.requires or ())
                waiting += [
                    requirement
                    for requirement in brought
                    if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
                ]
    return dict(sorted(found.items()))


def direct(requirements: list[str]) -> dict[str, str]:
    """Maps a name to its declared versions."""
    parsed = [Requirement(text) for text in requirements]
    return {canonicalize_name(wanted.name): str(wanted.specifier) for wanted in parsed}


Groups = dict[str, list[str]]
"""Maps `base`, an extra or an app to its requirements."""


def groups() -> Groups:
    """Returns the groups that a user may install; an extra or an app that contains another adds only the rest to it."""
    extras = {**PROJECT["optional-dependencies"], **APPS}
    added = {
        extra: [text for text in extras[extra] if Requirement(text).name != PROJECT["name"]]
        for extra in (*EXTRAS, *APPS)
    }
    return {"base": PROJECT["dependencies"], **added}


def page() -> str:
    """Returns the whole page."""
    python = f"Python {sys.version_info.major}.{sys.version_info.minor} on {sys.platform}"
    parts = [
        "# Dependencies",
        "<!-- written by scripts/dependencies.py, do not edit -->",
        f'What each installation brings. "Here" is where this page was written, {python}; `make lowest` runs the quick '
        "suite with the lowest versions that are declared. Licences are those that the packages state of themselves.",
        "## What is asked for",
        table(("package", "extra or app", "declared", "here", "licence", "for"), asked_for(groups())),
        "## What comes with it",
        "\n".join(brought(groups())),
        table(("package", "here", "licence"), in_turn(groups())),
        "## Licences that ask for something",
        "\n".join(asking(groups())),
        "MPL-2.0 is about changed files of the package itself: who only uses it need do nothing. All others ask to be "
        "named and no more.",
    ]
    return "\n\n".join(parts) + "\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def asked_for(known: Groups) -> Iterator[tuple[str, ...]]:
    """Yields a row for each direct dependency."""
    for group, requirements in known.items():
        for name, declared in direct(requirements).items():
            package = needed([name])[name]
            version, terms = (package.version, licence(package)) if package else ("not installed", "")
            yield name, group, declared, version, terms, FOR[name]


def brought(known: Groups) -> Iterator[str]:
    """Yields a line for each group: the packages that its dependencies bring, beyond those of the base."""
    base = needed(known["base"])
    for group, requirements in known.items():
        with_it = (
            needed(requirements).keys() - direct(requirements).keys() - (base.keys() if group != "base" else set())
        )
        yield f"- **{group}**: {', '.join(sorted(with_it)) or 'nothing'}"


def in_turn(known: Groups) -> Iterator[tuple[str, ...]]:
    """Yields a row for each package that no group requires directly."""
    everything = [requirement for requirements in known.values() for requirement in requirements]
    for name, package in needed(everything).items():
        if package is not None and name not in direct(everything):
            yield name, package.version, licence(package)


def asking(known: Groups) -> Iterator[str]:
    """Yields a line for each package whose licence requires more than to be named."""
    found: dict[str, tuple[str, list[str]]] = {}
    for group, requirements in known.items():
        for name, package in needed(requirements).items():
            if package is not None and (more := asks_for_more(licence(package))):
                found.setdefault(name, (more, []))[1].append(group)
    for name, (more, where) in sorted(found.items()):
        yield f"- {name}: {more}, in {', '.join(where)}"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
