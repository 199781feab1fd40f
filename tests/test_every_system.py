"""Every system and baseline runs on the local model, and some by their command on a real server.

`test_options.py` and each system's own tests run every variant on scripted answers.
"""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from set_up_systems import ITEM_OF

from metaprobe.llms.base import LLM, Request, WrappedLLM
from metaprobe.llms.local import LocalLLM
from metaprobe.papers.collecting.collect import collect_runs
from metaprobe.papers.collecting.launch import launch
from metaprobe.papers.collecting.plan import CollectionPlan
from metaprobe.papers.systems import SYSTEMS, Models, Prompts, Setup
from metaprobe.probes.signal_source import SignalSource
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Run

pytestmark = [
    pytest.mark.slow,
    # Whether so little data passes every audit is not the subject here.
    pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint"),
]

SUM = Item(id="sum", question="Tom has 3 apples and buys 4 more. How many apples has he?", gold=("7",), check="number")


class Brief(WrappedLLM):
    """A model whose answers are cut early: that a system runs is shown by short answers as well."""

    async def complete(self, request: Request) -> Call:
        few = min(request.sampling.max_tokens, 16)
        sampling = dataclasses.replace(request.sampling, max_tokens=few)
        return await super().complete(dataclasses.replace(request, sampling=sampling))


@pytest.fixture(scope="module")
def llm() -> LLM:
    local = LocalLLM.load(batch_size=8, layers="18,30")
    flags = Path("/proc/cpuinfo")
    if not flags.exists() or not {"avx512_bf16", "amx_bf16"} & set(flags.read_text().split()):
        # A processor without bfloat16 reads prompts in float32 six times as fast; which it is, is not the subject here.
        local.model.float()
        local.dtype = "float32"
    return Brief(local)


def run_of(llm: LLM, name: str, folder: Path, **setup: object) -> Run:
    system = SYSTEMS[name]
    prompts = Prompts.load(system.folder or name, system.prompts, optional=system.agents)
    given = Setup(Models(llm), prompts, agents=system.agents, **setup)  # type: ignore[arg-type]
    report = asyncio.run(
        collect_runs(system, [ITEM_OF.get(name, SUM)], given, RunStore(folder), variants=[system.variants[0]])
    )
    assert not report.failed
    (run,) = RunStore(folder).runs(hidden=True)
    return run


@pytest.fixture(scope="module")
def explicit(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """The run of a system's first variant with the numbers that the model states; each is made once."""

    @cache
    def made(name: str) -> Run:
        return run_of(llm, name, tmp_path_factory.mktemp("explicit") / "runs")

    return made


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_runs_on_the_local_model_and_records_every_call(explicit: Callable[[str], Run], name: str) -> None:
    run = explicit(name)
    answers = [call for call in run.calls if call.stage in SYSTEMS[name].answer_stages]
    assert answers
    for call in run.calls:
        assert call.logprobs is not None
        assert len(call.logprobs) == call.usage.completion_tokens
        assert call.messages
        assert call.model == "smollm2-135m"
    if run.item.check == "none":  # a piece of advice, which no program can check
        assert run.outcome is None
        return
    assert {label.call_id for label in run.labels if label.name == "correct"} >= {call.id for call in answers}
    assert run.outcome in (0.0, 1.0)


# One that only answers, one of several agents, and one whose judge is held to a schema.
@pytest.mark.parametrize("name", ["self-report", "metacogagent", "essay-debate"])
def test_a_system_runs_by_its_command_on_an_openai_compatible_server(
    llama_server: str, tmp_path: Path, name: str
) -> None:
    item = ITEM_OF.get(name, SUM)
    task = tmp_path / "task.jsonl"
    fields = {name: getattr(item, name) for name in ("id", "question", "gold", "check", "fields", "choices")}
    task.write_text(json.dumps(fields) + "\n")
    # That a system runs is shown by short answers as well.
    plan = CollectionPlan(
        system=name, task=str(task), llm=(f"openai:smollm2-135m@{llama_server}",), concurrency=4, tokens=("16",)
    )
    report = launch(plan, tmp_path / "runs")
    assert (report.done, report.failed) == (len(SYSTEMS[name].default_variants or (1,)), ())
    for run in RunStore(tmp_path / "runs"):
        for call in run.calls:
            assert call.logprobs is not None
            assert len(call.logprobs) > 0


@pytest.mark.parametrize(
    ("name", "signal", "checkpoint", "without"),
    [
        ("metacogagent", "confidence", "bundled:smollm2-135m-difficulty", "assess"),
        ("metacogagent", "confidence", "bundled:smollm2-135m-confidence", "assess"),
        ("monitor-generate-verify", "quality", "bundled:quality", "verify"),
    ],
)
def test_a_checkpoint_of_the_main_job_replaces_the_heuristic_by_a_flag_alone(
    llm: LLM, explicit: Callable[[str], Run], tmp_path: Path, name: str, signal: str, checkpoint: str, without: str
) -> None:
    implicit = SignalSource.load([f"{signal}={checkpoint}"])
    both = SignalSource.load([f"{signal}=stated+{checkpoint}"])
    runs = {
        "explicit": explicit(name),
        "implicit": run_of(llm, name, tmp_path / "implicit", signals=implicit),
        "both": run_of(llm, name, tmp_path / "both", signals=both),
    }
    read = {kind: [label for label in run.labels if label.name == f"signal:{signal}"] for kind, run in runs.items()}
    assert not read["explicit"]
    assert read["implicit"]
    assert all(0 <= label.value <= 1 for label in read["implicit"] + read["both"])
    assert read["implicit"][0].source == implicit.description[signal]
    stages = {kind: {call.stage for call in run.calls} for kind, run in runs.items()}
    assert without not in stages["implicit"]
    assert without in stages["explicit"] & stages["both"]
