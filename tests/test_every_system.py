"""Every system and baseline runs, in every variant, on the local model, and by its command on a real server."""

import asyncio
import json
from pathlib import Path

import pytest

from metaprobe.llms.local import LocalLLM
from metaprobe.pipelines import SYSTEMS, Models, Prompts, Setup
from metaprobe.probes.source import SignalSource
from metaprobe.records.store import RunStore
from metaprobe.records.types import Item, Run
from metaprobe.training.collect import collect
from metaprobe.training.launch import Plan, launch
from metaprobe.training.study import study, train_hidden, train_quality

pytestmark = pytest.mark.slow

SUM = Item(id="sum", question="Tom has 3 apples and buys 4 more. How many apples has he?", gold=("7",), check="number")
ESSAY = Item(
    id="essay",
    question="Grade the essay.",
    gold=("2",),
    check="number",
    fields={
        "essay": 'Once I had to wait for my friend. "It is late", I said, but I waited @NUM1 hours and was calm.',
        "trait": "ideas",
        "rubric": "0: no story. 1: a story without details. 2: a story with details. 3: rich in details.",
        "essay_prompt": "Write about patience.",
        "low": "0",
        "high": "3",
    },
)
ITEM_OF = {"essay-debate": ESSAY, "caelf": ESSAY}
VARIANTS = [(name, variant) for name, system in SYSTEMS.items() for variant in system.variants]


@pytest.fixture(scope="module")
def llm() -> LocalLLM:
    return LocalLLM.load(batch_size=8, layers="9,15")


def run_of(llm: LocalLLM, name: str, variant: str, folder: Path, **setup: object) -> Run:
    system = SYSTEMS[name]
    prompts = Prompts.load(system.folder or name, system.prompts, optional=system.agents)
    given = Setup(Models(llm), prompts, agents=system.agents, **setup)  # type: ignore[arg-type]
    report = asyncio.run(collect(system, [ITEM_OF.get(name, SUM)], given, RunStore(folder), variants=[variant]))
    assert not report.failed
    (run,) = RunStore(folder).runs(hidden=True)
    return run


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=lambda value: str(value))
def test_a_variant_runs_on_the_local_model_and_records_every_call(
    llm: LocalLLM, tmp_path: Path, name: str, variant: str
) -> None:
    run = run_of(llm, name, variant, tmp_path)
    answers = [call for call in run.calls if call.stage in SYSTEMS[name].answer_stages]
    assert answers
    for call in run.calls:
        assert call.logprobs is not None
        assert len(call.logprobs) == call.usage.completion_tokens
        assert call.messages
        assert call.model == "smollm2-135m"
    assert {label.call_id for label in run.labels if label.name == "correct"} >= {call.id for call in answers}
    assert run.outcome in (0.0, 1.0)


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_a_system_runs_by_its_command_on_an_openai_compatible_server(
    llama_server: str, tmp_path: Path, name: str
) -> None:
    item = ITEM_OF.get(name, SUM)
    task = tmp_path / "task.jsonl"
    fields = {"id": item.id, "question": item.question, "gold": item.gold, "check": item.check, "fields": item.fields}
    task.write_text(json.dumps(fields) + "\n")
    plan = Plan(system=name, task=str(task), llms=(f"openai:smollm2-135m@{llama_server}",), concurrency=4)
    report = launch(plan, tmp_path / "runs")
    assert (report.done, report.failed) == (len(SYSTEMS[name].default_variants or (1,)), ())
    for run in RunStore(tmp_path / "runs"):
        for call in run.calls:
            assert call.logprobs is not None
            assert call.usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("name", "signal", "when", "without"),
    [
        ("metacogagent", "confidence", "before", "assess"),
        ("metacogagent", "confidence", "after", "assess"),
        ("metacogagent", "confidence", "quality", "assess"),
        ("monitor-generate-verify", "difficulty", "before", None),
        ("monitor-generate-verify", "quality", "quality", "verify"),
        ("monitor-generate-verify", "quality", "after", "verify"),
        ("essay-debate", "quality", "quality", "judge"),
    ],
)
def test_a_checkpoint_of_the_main_job_replaces_the_heuristic_by_a_flag_alone(
    llm: LocalLLM, recorded_runs: Path, tmp_path: Path, name: str, signal: str, when: str, without: str | None
) -> None:
    found = study([recorded_runs], folds=2)
    if when == "quality":
        train_quality(tmp_path / when, {"correct": found}, command="test")
    else:
        train_hidden(tmp_path / when, found, when=when, target="correct", command="test")
    implicit = SignalSource.load([f"{signal}={tmp_path / when}"])
    both = SignalSource.load([f"{signal}=stated+{tmp_path / when}"])
    variant = SYSTEMS[name].variants[0]
    runs = {
        kind: run_of(llm, name, variant, tmp_path / kind, signals=source)
        for kind, source in (("explicit", SignalSource()), ("implicit", implicit), ("both", both))
    }
    read = {kind: [label for label in run.labels if label.name == f"signal:{signal}"] for kind, run in runs.items()}
    assert not read["explicit"]
    assert read["implicit"]
    assert all(0 <= label.value <= 1 for label in read["implicit"] + read["both"])
    assert read["implicit"][0].source == implicit.description[signal]
    stages = {kind: {call.stage for call in run.calls} for kind, run in runs.items()}
    if without:
        assert without not in stages["implicit"]
        assert without in stages["explicit"] & stages["both"]
