"""A collection by names: against servers that fail, through a kill, with agents that learn from one another's past."""

import asyncio
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faulty_server import FaultyServer, mixed
from launched_items import COT, asked, items
from scripted import ScriptedLLM

from metaprobe.collecting.collect import CollectReport, collect
from metaprobe.collecting.launch import launch, policy_of
from metaprobe.collecting.models import API, api_options, check_layers, load_models, parse_models
from metaprobe.collecting.plan import CollectionPlan
from metaprobe.llms.base import Capabilities
from metaprobe.llms.openai_client import OpenAILLM
from metaprobe.pipelines import SYSTEMS, Models, Prompts, Session, Setup, System
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.source import Replacement, SignalSource
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from metaprobe.routing.explore import EpsilonGreedy, Exhaustive
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.profiles import Experience
from metaprobe.training.recipes.hidden import write_hidden
from metaprobe.training.study import study


@pytest.mark.slow
def test_a_thousand_items_against_a_faulty_server_are_all_done_or_failed_with_a_reason(tmp_path: Path) -> None:
    reasons: list[str] = []

    async def go() -> CollectReport:
        async def no_wait(seconds: float) -> None:
            await asyncio.sleep(0)

        async with FaultyServer(mixed) as server:
            llm = OpenAILLM("m", base_url=server.base_url, concurrency=32, sleep=no_wait)
            setup = Setup(Models(llm), Prompts.load("baselines", COT.prompts))
            async with llm:
                report = await collect(
                    COT, items(1000), setup, RunStore(tmp_path), on_run=lambda run, why: reasons.append(why)
                )
            assert server.peak <= 32
            return report

    os.environ.setdefault("OPENAI_API_KEY", "sk-test")
    report = asyncio.run(go())
    stored = RunStore(tmp_path).run_ids()
    failed = {line.partition(": ")[0] for line in report.failed}
    assert len(stored) == report.done > 600
    assert len(failed) == len(report.failed) > 100
    assert len(stored | failed) == 1000
    assert len(reasons) == 1000
    assert all(line.partition(": ")[2].strip() for line in report.failed)


def test_a_killed_collection_repeats_only_the_calls_that_were_in_flight(tmp_path: Path) -> None:
    task = tmp_path / "sums.jsonl"
    task.write_text(
        "".join(json.dumps({"id": i.id, "question": i.question, "gold": i.gold[0]}) + "\n" for i in items(60))
    )
    at_once = 4
    alive: list[str] = []

    def silent_after_25(content: str, attempt: int) -> str:
        """Whoever collects hangs there until it is killed, however slow this machine is."""
        alive.extend([content] if "What is" in content else [])
        return "ok" if killed.is_set() or len(alive) <= 25 else "silent"

    killed = threading.Event()
    with FaultyServer(silent_after_25) as server:
        command = [sys.executable, "-m", "metaprobe.cli", "collect", "zero-shot-cot", "--task", str(task), "--out"]
        command += [str(tmp_path / "runs"), "--llm", f"openai:m@{server.base_url}", "--concurrency", str(at_once)]
        environment = {**os.environ, "OPENAI_API_KEY": "sk-test"}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while len(asked(server)) < 25 + at_once and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        killed.set()
        assert len(asked(server)) == 25 + at_once
        assert len(RunStore(tmp_path / "runs")) == 0  # no shard was full: only the cache can know
        ended = subprocess.run(command, env=environment, check=True, stderr=subprocess.PIPE, text=True)
        again = len(asked(server)) - len(set(asked(server)))
    assert again <= at_once
    assert re.search(r"about \d+ min at most: 60 runs x up to \d+ tokens at \d+ tokens/s", ended.stderr)
    assert re.search(r"60/60 .*0 failed, \d+ calls and \d+ from the cache, [\d,]+ tokens, \d+ tokens/s", ended.stderr)
    assert "collected 60 runs; 0 were stored before" in ended.stderr
    assert len(RunStore(tmp_path / "runs")) == 60
    assert not list((tmp_path / "runs").glob("calls.sqlite*"))  # all is stored: the cache has done its work


def test_agents_learn_in_the_items_order_whatever_ends_first_and_across_a_resume(tmp_path: Path) -> None:
    seen: dict[str, float] = {}

    async def run(session: Session) -> Run:
        seen[session.item.id] = session.setup.profiles.rate_of("a", "")
        for _ in range(session.index % 3):
            await asyncio.sleep(0)
        call = await session.ask("p", stage="answer", agent="a")
        return session.run(call.text)

    def experiences(run: Run) -> list[Experience]:
        return [Experience("a", "", run.outcome or 0.0)]

    learner = System(
        name="learner", run=run, prompts=("p",), variants=("v",), stages=("answer",), experiences=experiences
    )
    llm = ScriptedLLM({"answer": lambda request: "4"})  # right for item i2 only
    setup = Setup(Models(llm), Prompts({"p": "--- user\n$question"}))

    def go(n: int, folder: Path, at_once: int) -> None:
        asyncio.run(collect(learner, items(n), setup, RunStore(folder), wave=at_once))

    go(6, tmp_path / "whole", 2)
    whole = dict(seen)
    assert whole == pytest.approx({"i0": 0.5, "i1": 0.5, "i2": 0.405, "i3": 0.405, "i4": 0.41805, "i5": 0.41805})
    go(4, tmp_path / "resumed", 2)
    seen.clear()
    go(6, tmp_path / "resumed", 2)
    assert seen == {name: whole[name] for name in ("i4", "i5")}
    go(6, tmp_path / "one by one", 1)
    assert seen["i1"] == pytest.approx(0.45)


def test_policies_are_named_with_their_constants() -> None:
    assert policy_of(CollectionPlan(system="s", task="t")) == (PaperRules(), PaperRules())
    assert policy_of(CollectionPlan(system="s", task="t", policy="paper:theta=0.4,cycles=2"))[1] == PaperRules(
        theta=0.4, cycles=2
    )
    assert policy_of(CollectionPlan(system="s", task="t", policy="exhaustive"))[0] == Exhaustive()
    assert isinstance(policy_of(CollectionPlan(system="s", task="t", epsilon=0.1))[0], EpsilonGreedy)


@pytest.mark.parametrize(
    "policy",
    ["papers", "paper:thetta=1", "paper:theta=high", "paper:cycles=2.5", "paper:theta=nan", "paper:base_tokens=-9"],
)
def test_a_policy_that_does_not_exist_is_named(policy: str) -> None:
    with pytest.raises(RecordError, match=policy.partition(":")[2].partition("=")[0] or "papers"):
        policy_of(CollectionPlan(system="s", task="t", policy=policy))


def test_options_of_an_endpoint_are_read_as_json_or_text() -> None:
    given = ["logprobs_mode=raw", 'extra_body={"repeat_penalty": 1.0}', "attempts=3"]
    assert api_options(given) == {"logprobs_mode": "raw", "extra_body": {"repeat_penalty": 1.0}, "attempts": 3}


@pytest.mark.parametrize(
    "option", ["api_key=x", "attempts", "timeout_s=abc", "attempts=1.5", "extra_body=5", "logprobs_mode=zzz"]
)
def test_an_option_that_is_none_is_named(option: str) -> None:
    with pytest.raises(RecordError, match=f"api option '{option}'"):
        api_options([option])


MGV = SYSTEMS["monitor-generate-verify"]


def test_models_are_for_stages_and_agents_that_there_are() -> None:
    named = parse_models(["small", "verify=large"], None, MGV, ())
    assert named == {"": "small", "verify": "large"}
    assert parse_models(["answer=a"], None, MGV, ()) == {"": "a", "answer": "a"}
    assert parse_models(["alpha=a", "b"], None, SYSTEMS["metacogagent"], ("alpha",))["alpha"] == "a"
    with pytest.raises(RecordError, match="no such stage or agent; it has monitor, strategy, answer, verify"):
        parse_models(["verfy=L"], None, MGV, ())
    with pytest.raises(RecordError, match="'judge'"):
        parse_models(["L"], "J", MGV, ())
    with pytest.raises(RecordError, match="two models for monitor"):
        parse_models(["a", "monitor=b", "monitor=c"], None, MGV, ())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"agent": ("x", "y")}, "takes no agents of your own"),
        ({"prices": Path("nowhere.json")}, "no prices in nowhere.json"),
        ({"layers": "all"}, "gives no hidden states"),
        ({"system": "essay-debate"}, "no field essay, trait"),
        ({"llm": ("openai:m@localhost:99",)}, "expected openai:MODEL"),
    ],
)
def test_what_cannot_work_together_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    os.environ.setdefault("OPENAI_API_KEY", "sk-test")
    plan = {"system": "zero-shot-cot", "task": "metacog-eval", "llm": ("openai:m@http://127.0.0.1:1/v1",), **change}
    with pytest.raises(RecordError, match=said):
        launch(CollectionPlan(**plan), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_server_that_refuses_even_the_warm_up_gives_reasons_run_by_run(tmp_path: Path) -> None:
    os.environ.setdefault("OPENAI_API_KEY", "sk-test")
    with FaultyServer(lambda content, attempt: "400") as server:
        plan = CollectionPlan(
            system="zero-shot-cot", task="metacog-eval", llm=(f"openai:m@{server.base_url}",), limit=3
        )
        report = launch(plan, tmp_path / "runs")
    assert (report.done, len(report.failed)) == (0, 3)
    assert len((tmp_path / "runs" / "failed.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
def test_a_signal_that_the_model_cannot_give_is_refused_before_anything_is_asked(
    recorded_runs: Path, tmp_path: Path
) -> None:
    write_hidden(tmp_path / "probe", study([recorded_runs], folds=2), when="before", target="correct", command="test")
    plan = CollectionPlan(
        system="metacogagent",
        task="metacog-eval",
        llm=("openai:m@http://127.0.0.1:1/v1",),
        signal=(f"confidence={tmp_path / 'probe'}",),
    )
    os.environ.setdefault("OPENAI_API_KEY", "sk-test")
    with pytest.raises(RecordError, match="hidden states, and m gives none"):
        launch(plan, tmp_path / "runs")
    for name, said in (("difficulty", "has no such number"), ("confidence@nobody", "no agent 'nobody'")):
        other = dataclasses.replace(plan, signal=(f"{name}={tmp_path / 'probe'}",))
        with pytest.raises(RecordError, match=said):
            launch(other, tmp_path / "runs")


@dataclasses.dataclass
class Loaded:
    """A model of this machine, as it was asked for."""

    name: str
    layers: str | None
    batch_size: int
    top_logprobs: int
    capabilities: Capabilities = dataclasses.field(default=Capabilities(logprobs=True, hidden=True))
    revision: str = "1"


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Loaded]:
    """What was loaded of this machine's models, in order."""
    pytest.importorskip("torch")
    found: list[Loaded] = []

    def load(name: str, **options: Any) -> Loaded:
        found.append(Loaded(name, **options))
        return found[-1]

    monkeypatch.setattr("metaprobe.llms.local.LocalLLM.load", load)
    return found


@dataclasses.dataclass
class Read:
    """A checkpoint that reads hidden states of a model."""

    layers: tuple[int, ...]
    model: str | None = None
    reader: Any = None

    def __post_init__(self) -> None:
        generator = self.model and SimpleNamespace(model=self.model)
        manifest = SimpleNamespace(generator=generator)
        self.reader = SimpleNamespace(checkpoint=SimpleNamespace(path="probe", manifest=manifest))


class Signals(SignalSource):
    """Any object in a checkpoint's place."""

    def __init__(self, **read: Read) -> None:
        self._replacements = {name.replace("_", "@"): one for name, one in read.items()}  # type: ignore[assignment, misc]


AGENTS_OF = SYSTEMS["metacogagent"]


@pytest.mark.parametrize(
    ("capture", "read", "layers"),
    [
        (None, {}, None),
        ("all", {}, "all"),
        ("every:2", {}, "every:2"),
        (None, {"confidence": Read((4, 2))}, "2,4"),
        ("all", {"confidence": Read((4,))}, "all"),
        ("8,10,4", {"confidence": Read((4, 2))}, "2,4,8,10"),
    ],
)
def test_layers_that_are_kept_and_layers_that_are_read_are_all_kept(
    capture: str | None, read: dict[str, Read], layers: str | None, loaded: list[Loaded]
) -> None:
    models = load_models(
        {"": "m"}, AGENTS_OF, Signals(**read), ("a",), layers=capture, batch_size=5, top_logprobs=3
    )  # fmt: skip
    assert [(one.name, one.layers, one.batch_size, one.top_logprobs) for one in loaded] == [("m", layers, 5, 3)]
    assert models.all == tuple(loaded)


def test_an_endpoint_is_asked_as_the_collection_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def parse(model: str, **options: Any) -> Loaded:
        asked.append((model, options))
        return Loaded(model, None, 1, 0)

    monkeypatch.setattr(OpenAILLM, "parse", parse)
    named, api = {"": f"{API}m@u", "a": f"{API}n@u"}, {"attempts": 3}
    load_models(named, AGENTS_OF, Signals(), ("a",), api=api, top_logprobs=4, concurrency=7)
    given = {"attempts": 3, "top_logprobs": 4, "concurrency": 7}
    assert asked == [(f"{API}m@u", given), (f"{API}n@u", given)]
    load_models({"": f"{API}m@u"}, AGENTS_OF, Signals(), ("a",))
    assert asked[-1][1] == {"top_logprobs": 0, "concurrency": 128}


def test_layers_are_read_of_the_model_that_is_asked_there(loaded: list[Loaded]) -> None:
    named = {"": "m", "a": "n", "classify": "m"}
    models = load_models(named, AGENTS_OF, Signals(confidence_a=Read((7,), "n")), ("a", "b"))
    assert {one.name: one.layers for one in loaded} == {"m": None, "n": "7"}
    assert models.of("answer", "a").name == "n"
    assert models.of("answer", "b").name == "m"


def test_a_checkpoint_that_could_never_be_read_is_refused(loaded: list[Loaded]) -> None:
    def load(read: Read, **options: Any) -> Models:
        return load_models({"": "m"}, AGENTS_OF, Signals(confidence=read), ("a",), **options)

    with pytest.raises(RecordError, match="layers 'every:2' beside signals that read layers 2,4: give all, or"):
        load(Read((4, 2)), layers="every:2")
    with pytest.raises(RecordError, match="probe reads hidden states of other, not of m"):
        load(Read((4,), "other"))
    load(Read((4,), "m"))
    load(Read((), "other"))  # log-probabilities of any model


def test_a_predictor_needs_a_model_that_gives_log_probabilities(
    loaded: list[Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = QualityPredictor.load("bundled:quality")
    signals = SignalSource({"confidence": Replacement(predictor)})
    load_models({"": "m"}, AGENTS_OF, signals, ("a",))
    monkeypatch.setattr(
        "metaprobe.llms.local.LocalLLM.load",
        lambda name, **options: Loaded(name, **options, capabilities=Capabilities(logprobs=False, hidden=True)),
    )
    with pytest.raises(RecordError, match="reads log-probabilities, and m gives none"):
        load_models({"": "m"}, AGENTS_OF, signals, ("a",))


@pytest.mark.parametrize("capture", ["", "some", "every:0", "every:", "1,", "-1", "1;2", "all,1"])
def test_layers_that_no_model_has_are_refused_first(capture: str) -> None:
    with pytest.raises(RecordError, match="expected 'all', 'every:N', or numbers of layers"):
        check_layers(capture)
    for good in (None, "all", "every:4", "0, 8,16", " 3 "):
        check_layers(good)


def test_a_second_value_of_an_option_and_one_that_is_no_number_are_refused() -> None:
    for option in ("timeout_s=0", "attempts=0", "max_wait_s=-1", "revision=5", "schema_form=xml", "prices=p"):
        with pytest.raises(RecordError, match=f"api option '{option}': expected"):
            api_options([option])
    with pytest.raises(RecordError, match=r"attempts is 3 already; give one value"):
        api_options(["attempts=3", "attempts=4"])
    assert api_options(["timeout_s=0.5", "attempts=1", "revision=a=b"]) == {
        "timeout_s": 0.5, "attempts": 1, "revision": "a=b"
    }  # fmt: skip


@pytest.mark.parametrize(("agents"), [("a", "a"), ("",), (" a",), ("a ",), ("a,b",)])
def test_agents_have_different_names_without_blanks(tmp_path: Path, agents: tuple[str, ...]) -> None:
    plan = CollectionPlan(system="metacogagent", task="metacog-eval", llm=("openai:m@http://127.0.0.1:1/v1",))
    with pytest.raises(RecordError, match=r"expected different names, .* give --agent NAME once for each"):
        launch(dataclasses.replace(plan, agent=agents), tmp_path / "runs")
