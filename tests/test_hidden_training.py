"""Options that no probe can be trained with are refused before anything is read or fitted."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import made_up

from metaprobe.records.errors import RecordError
from metaprobe.training.options import HiddenOptions, WrongOptions
from metaprobe.training.recipes.hidden import positions_of, train_hidden


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"target": "critical"}, "target critical: probes give the probability of what is good; train a quality"),
        (
            {"when": "before", "position": ("answer_last",)},
            "before an answer only prompt_last is known, not answer",
        ),
    ],
)
def test_options_of_a_probe_that_contradict_each_other_are_refused_before_anything_is_read(
    asked: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(WrongOptions, match=says):
        train_hidden([tmp_path / "nowhere"], HiddenOptions(out=tmp_path / "probe", **asked))


def test_states_of_the_other_moment_are_named_with_the_option_that_reads_them() -> None:
    evidence = made_up(60)
    assert evidence.states is not None
    for kept, other in (("prompt_last", "before"), ("answer_last", "after")):
        only = replace(evidence, states=SimpleNamespace(positions=(kept,)))  # type: ignore[arg-type]
        wanted = "after" if other == "before" else "before"
        with pytest.raises(RecordError, match=f"no position {wanted} .* there are: {kept}, which --when {other} reads"):
            positions_of(only, wanted)
        assert positions_of(only, other) == (kept,)
