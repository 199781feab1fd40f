"""Every system asks the recorded questions, of whom and in which round: cached calls are found by this, and costs rest
on it.

A change here makes stores and caches of before ask anew. `python tests/test_what_is_asked.py` writes the file again.
"""

import json
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest
from scripted import Answer, ScriptedLLM, run_once
from test_contract import ITEM_OF, SAID, SUM, VARIANTS, Curious

from metaprobe.papers.systems import SYSTEMS, System
from metaprobe.papers.systems.system_options import Need
from metaprobe.records.types import Call, Item

WRITTEN = Path(__file__).parent / "what_is_asked.json"


def told(call: Call, hidden: bool) -> str:
    """One call in a line: its own name, the call that it follows, and how it was sampled."""
    sampling = call.sampling
    how = [f"most {sampling.max_tokens}", f"at {sampling.temperature:g}"]
    how += ["by a schema"] if sampling.json_schema else []
    how += [f"until {sampling.stop}"] if sampling.stop else []
    how += [f"seed {sampling.seed}"] if sampling.seed is not None else []
    how += ["with states"] if hidden else []
    how.append(f"words {sha256(repr(call.messages or call.prompt_token_ids).encode()).hexdigest()[:8]}")
    parent = f" after {call.parent}" if call.parent else ""
    return f"{call.id} ({call.stage} of {call.agent or 'nobody'} in {call.round}){parent}: {', '.join(how)}"


def asked(system: System, item: Item, variant: str, answers: Mapping[str, Answer] = SAID) -> list[str]:
    """Every call of a run on an answer that is never good enough."""
    llm = ScriptedLLM(answers)
    run = run_once(system, item, llm, variant=variant, policy=Curious())
    hidden = {request.id for request in llm.asked if request.hidden}
    seen = [told(call, call.id in hidden) for call in run.calls]
    seen += [f"{statement.kind} stated in {statement.call_id}: {statement.value}" for statement in run.statements]
    seen += [f"{label.name} of {label.call_id} by {label.source}: {label.value:.6g}" for label in run.labels]
    seen += [f"{decision.point}: {decision.action} of {sorted(decision.propensities)}" for decision in run.decisions]
    return [*seen, f"{run.system} {run.variant} of {run.item.id}: {run.final_answer!r}"]


def missing(needs: tuple[Need, ...], variant: str) -> str:
    """A package that the variant needs and that is not here."""
    return next((need.module for need in needs if variant not in need.without), "")


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=str)
def test_a_system_asks_what_it_has_always_asked(name: str, variant: str) -> None:
    if module := missing(SYSTEMS[name].needs, variant):
        pytest.importorskip(module)
    written = json.loads(WRITTEN.read_text(encoding="utf-8"))
    assert asked(SYSTEMS[name], ITEM_OF.get(name, SUM), variant) == written[f"{name} {variant}"]


def test_nothing_is_written_of_what_is_gone() -> None:
    assert set(json.loads(WRITTEN.read_text(encoding="utf-8"))) == {f"{name} {variant}" for name, variant in VARIANTS}


if __name__ == "__main__":
    every = {f"{name} {variant}": asked(SYSTEMS[name], ITEM_OF.get(name, SUM), variant) for name, variant in VARIANTS}
    WRITTEN.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{sum(map(len, every.values()))} lines\n")
