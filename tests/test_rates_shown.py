"""How fast a model is: measured by a few calls before a collection, and shown while calls are read again."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from scripted import ScriptedLLM

from metaprobe.cli import main
from metaprobe.collecting import models
from metaprobe.collecting.models import tokens_per_second
from metaprobe.llms.base import Request
from metaprobe.pipelines import Models
from metaprobe.records.types import Call, Usage


class Counting(ScriptedLLM):
    """Generates so many tokens a call."""

    def __init__(self, tokens: int, name: str) -> None:
        super().__init__({"*": "1"}, name=name)
        self.tokens = tokens

    async def complete(self, request: Request) -> Call:
        return replace(await super().complete(request), usage=Usage(9, self.tokens))


def test_the_slowest_models_rate_is_that_of_drawn_calls_of_which_none_is_taken_from_a_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = count(step=2)
    monkeypatch.setattr(models.time, "perf_counter", lambda: float(next(seconds)))  # each model takes two
    quick, slow, told = Counting(16, "quick"), Counting(6, "slow"), list[Call]()
    measured = asyncio.run(tokens_per_second(Models(quick, {"check": slow}), at_once=3, on_call=told.append))
    assert measured == 3 * 6 / 2
    assert len(told) == 2 * (3 + 1)
    for llm in (quick, slow):
        assert [request.id for request in llm.asked] == ["warm-up/3", "warm-up/0", "warm-up/1", "warm-up/2"]
        drawn = [(request.sampling.temperature, request.sampling.max_tokens) for request in llm.asked]
        assert drawn == [(1.0, 16)] * 4
        assert len({request.sampling.seed for request in llm.asked}) == 4
    silent = asyncio.run(tokens_per_second(Models(Counting(0, "silent")), at_once=2, tokens=5))
    assert silent == 1 / 2, "one token at least, or the time left would have no end"


def test_reading_again_shows_tokens_and_their_rate_over_the_time_that_has_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[object] = []
    bar: Any = SimpleNamespace(
        format_dict={"elapsed": 4.0},
        reset=lambda calls: said.append(("of", calls)),
        set_postfix_str=lambda text, refresh: said.append((text, refresh)),
        update=said.append,
    )

    @contextmanager
    def shown(what: str, unit: str, **named: object) -> Iterator[Any]:
        said.append((what, unit, named))
        yield bar

    def launched(runs: object, llm: object, *, watch: Any, **options: object) -> tuple[None, int]:
        watch.on_total(7)
        watch.on_chunk(2, 1000)
        watch.on_chunk(3, 500)
        return None, 1

    monkeypatch.setattr("metaprobe.collecting_cli.progress_bar", shown)
    monkeypatch.setattr("metaprobe.collecting.extract.launch_extract", launched)
    (tmp_path / "runs").mkdir()
    found = CliRunner().invoke(main, ["extract", str(tmp_path / "runs"), "--llm", "tiny"])
    assert found.exit_code == 0, found.output
    assert said == [
        ("extract", " calls", {"ends": True}),
        ("of", 7),
        ("1,000 tokens, 250 tokens/s", False),
        2,
        ("1,500 tokens, 375 tokens/s", False),
        3,
    ]
