"""A pytest plugin for mutants.py: which lines each test runs, fixtures apart, and how long it takes."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

measured = coverage.Coverage(
    data_file=str(Path(os.environ["MUTANTS_DATA"]) / str(os.getpid())),
    include=["*/src/metaprobe/*", *(f"{Path.cwd()}/{room.name}/*" for room in Path("src/metaprobe").iterdir())],
    config_file=False,
)
measured.start()
seconds: Counter[str] = Counter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """What a fixture runs may decide any test of its file."""
    measured.switch_context(f"{item.nodeid.partition('::')[0]}::*")
    try:
        return (yield)
    finally:
        measured.switch_context("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    measured.switch_context(item.nodeid.partition("[")[0])
    try:
        return (yield)
    finally:
        measured.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The process that shares out the tests sees each report a second time."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        seconds[report.nodeid.partition("[")[0]] += report.duration


def pytest_sessionfinish() -> None:
    measured.stop()
    measured.save()
    Path(os.environ["MUTANTS_DATA"], f"{os.getpid()}.seconds").write_text(json.dumps(seconds))
