"""Systems, tasks and policies from outside: what docs/own.md shows is collected, what cannot be used refused first."""

import dataclasses
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scripted import ScriptedLLM

from metaprobe.cli import main
from metaprobe.papers.collecting.label_runs import find_unlabelled
from metaprobe.papers.collecting.launch import launch, policy_of
from metaprobe.papers.collecting.plan import CollectionPlan
from metaprobe.papers.systems import SYSTEMS, Models, Session, System, load_system
from metaprobe.papers.systems.named_systems import known_system
from metaprobe.papers.systems.suitability import check_system
from metaprobe.papers.tasks import Task, load_task
from metaprobe.records.errors import RecordError
from metaprobe.records.plugins import HOUSE_FUNCTIONS, Plugins, house_function
from metaprobe.records.store import RunStore
from metaprobe.records.types import Item, Run

PAGE = Path(__file__).parent.parent / "docs" / "own.md"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that Python looks into, with the modules of the page; their names differ from test to test."""
    mark = re.sub(r"\W", "_", tmp_path.name)
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S):
        name = re.match(r"# (\w+)\.py\n", code)
        if name is None:  # how a task set is read
            continue
        assert len(code.splitlines()) < 30
        (tmp_path / f"{name[1]}_{mark}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    known_system.cache_clear()


def module(folder: Path, stem: str) -> str:
    return next(path.stem for path in folder.glob(f"{stem}*.py"))


def written(folder: Path, name: str, code: str) -> str:
    """The name of a new module with this code."""
    name = f"{name}_{re.sub(r'[^a-z0-9]', '_', folder.name.lower())}"
    (folder / f"{name}.py").write_text(code)
    return name


def plan(folder: Path, **more: Any) -> CollectionPlan:
    names = {"system": f"{module(folder, 'my_systems')}:TWO_LOOKS", "task": f"{module(folder, 'my_tasks')}:SQUARES"}
    return CollectionPlan(**{**names, "llm": ("no-such-model",), **more})


def test_the_system_and_the_task_of_the_page_are_collected(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"answer": ["Answer: 4", "Answer: 8", "Answer: 9"], "confidence": ["95 %", "20 %"]}
    llm = ScriptedLLM({**said, "*": "ready"})
    monkeypatch.setattr("metaprobe.papers.collecting.launch.load_models", lambda *_, **__: Models(llm))
    report = launch(plan(own, limit=2, concurrency=1), own / "runs")
    assert (report.done, report.failed) == (2, ())
    sure, unsure = sorted(RunStore(own / "runs"), key=lambda run: len(run.calls))
    assert [call.stage for call in sure.calls] == ["answer", "confidence"]
    assert [call.stage for call in unsure.calls] == ["answer", "confidence", "answer"]
    assert [run.system for run in (sure, unsure)] == ["two-looks"] * 2
    assert {run.item.task for run in (sure, unsure)} == {"squares"}
    assert [run.decisions[0].action for run in (sure, unsure)] == ["stop", "again"]
    assert (sure.final_answer, sure.outcome) == ("4", 1.0)
    assert all(run.label("correct", run.calls[0].id) is not None for run in (sure, unsure))
    assert launch(plan(own, limit=2, concurrency=1), own / "runs").stored_before == 2


def test_the_policy_of_the_page_decides_in_the_place_of_the_papers_rule(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"answer": ["Answer: 4", "Answer: 8", "Answer: 9"], "confidence": ["95 %", "20 %"]}
    monkeypatch.setattr(
        "metaprobe.papers.collecting.launch.load_models", lambda *_, **__: Models(ScriptedLLM({**said, "*": "ready"}))
    )
    policy = f"{module(own, 'my_policies')}:AGAIN_ONCE"
    launch(plan(own, limit=2, concurrency=1, policy=policy), own / "runs")
    [stopped, went_on] = sorted(RunStore(own / "runs"), key=lambda run: len(run.calls))
    assert [(d.action, d.reason) for d in stopped.decisions] == [("stop", "quality is 0.95")]
    assert [(d.action, d.reason) for d in went_on.decisions] == [("again", "quality is 0.2")]
    with pytest.raises(RecordError, match=r"is the class itself; give an object of it: NAME = AgainOnce\(\)"):
        policy_of(plan(own, policy=policy.replace("AGAIN_ONCE", "AgainOnce")))
    with pytest.raises(RecordError, match="there is no module 'nowhere'"):
        policy_of(plan(own, policy="nowhere:P"))


def test_its_contract_is_held_to_before_a_model_is_loaded(own: Path) -> None:
    for more, said in (
        ({"signal": ("confidence=bundled:quality",)}, "two-looks has no such number .* it takes quality"),
        ({"tokens": ("judge=3",)}, r"two-looks has no stage 'judge'; its stages"),
        ({"variant": ("other",)}, r"no variant of two-looks 'other'; there are: plain"),
        ({"policy": "paper:theta=0.4"}, r"theta=0.4: it is for assess, assign, and two-looks"),
        ({"constant": ("rounds=3",)}, r"a constant of two-looks: none"),
        ({"agent": ("a",)}, "two-looks takes no agents of your own"),
        ({"data": "here"}, r"squares has no splits and needs no data|SQUARES has no splits and needs no data"),
        ({"prompts": own}, r"no prompt file solve\.txt in .*; expected: solve\.txt, sure\.txt"),
        ({}, "no-such-model"),
    ):
        with pytest.raises(RecordError, match=said):
            launch(plan(own, **more), own / "runs")


def test_a_name_that_leads_nowhere_is_refused_with_what_there_is(own: Path) -> None:
    systems, tasks = module(own, "my_systems"), module(own, "my_tasks")
    broken = written(own, "broken", "raise OSError('no disk')\n")
    needy = written(own, "needy", "import not_there_at_all\n")
    typo = written(own, "typo", "def (:\n")
    for name, said in (
        ("nowhere_at_all:SYSTEM", r"there is no module 'nowhere_at_all'; expected MODULE:NAME with a module that is"),
        (f"{systems}.inner:SYSTEM", rf"there is no module '{systems}\.inner'"),
        (f"{systems}:TWO", rf"{systems} has no 'TWO'; of kind System it has: TWO_LOOKS"),
        (
            f"{systems}:two_looks",
            r"two_looks in .* is of type function; expected a metaprobe\.papers\.systems\.system\.Sys",
        ),
        (f"{tasks}:SQUARES", r"is of type Task; expected .* it has: none|Of that kind .* has: none"),
        (f"{broken}:SYSTEM", rf"{broken} cannot be imported: OSError: no disk"),
        (f"{needy}:SYSTEM", rf"{needy} needs not_there_at_all, which is not installed"),
        (f"{typo}:SYSTEM", rf"{typo} cannot be imported: SyntaxError"),
        ("two-looks", r"no system 'two-looks'; there are: self-report, .* MODULE:NAME, or by an entry point"),
        ("a:b:c", "no system 'a:b:c'"),
    ):
        with pytest.raises(RecordError, match=said):
            load_system(name)
    with pytest.raises(RecordError, match=rf"{tasks} has no 'SQUARE'; of kind Task it has: SQUARES"):
        load_task(f"{tasks}:SQUARE")
    with pytest.raises(RecordError, match=r"no task 'squares'; expected one of gsm8k, .* an entry point in metaprobe"):
        load_task("squares")


async def answered(session: Session) -> Run:
    return session.run("")


def answered_at_once(session: Session) -> Run:
    return session.run("")


WHOLE = System(name="whole", run=answered, prompts=(), stages=("answer", "judge"), signals={"quality": "answer"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "two looks"}, "name is empty or not of letters"),
        ({"run": answered_at_once}, r"run is <function answered_at_once.*; expected an `async def`"),
        ({"stages": "answer"}, r"stages is 'answer'; expected texts, as in stages=\(\"a\", \"b\"\)"),
        ({"variants": ()}, "variants is empty"),
        ({"answer_stages": ("reply",)}, "answer_stages names 'reply'; expected answer or judge"),
        ({"signals": {"mood": "answer"}}, "signals names 'mood'; expected confidence or difficulty or quality or crit"),
        ({"uses": ("confidence",)}, "uses names 'confidence'; expected quality"),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(change: dict[str, Any], said: str) -> None:
    check_system(WHOLE)
    with pytest.raises(RecordError, match=f"system '.*' contradicts itself: {said}"):
        check_system(dataclasses.replace(WHOLE, **change))


def test_a_system_or_task_may_not_take_the_name_of_one_of_the_package(own: Path) -> None:
    code = "from metaprobe.papers.systems.zero_shot_cot import SYSTEM as THEIRS\nfrom dataclasses import replace\n"
    name = written(own, "copies", f"{code}MINE = replace(THEIRS, default_variants=('plain',))\n")
    assert load_system(f"{name}:THEIRS") is SYSTEMS["zero-shot-cot"]
    with pytest.raises(RecordError, match="calls itself 'zero-shot-cot', as one of the package"):
        load_system(f"{name}:MINE")
    task = written(
        own, "tasks", "from metaprobe.papers.tasks import Task\nT = Task(name='gsm8k', items=lambda rows, seed: ())"
    )
    with pytest.raises(RecordError, match="calls itself 'gsm8k', as one of the package"):
        load_task(f"{task}:T")


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"id": "a"}, "squares, item 0 is a dict; expected a metaprobe.records.types.Item"),
        (Item("", "q"), "squares, item 0 has no id"),
        (Item("a", ""), "squares, item 0 has no question"),
        (Item("a", "q", gold="4"), "squares, item 0: gold and choices are tuples of texts"),  # type: ignore[arg-type]
        (Item("a", "q", gold=("4",), check="text"), "check is 'text'; expected one of exact"),  # type: ignore[arg-type]
        (Item("a", "q", check="number"), "check is 'number' but gold is empty"),
        (None, "squares gave no items"),
    ],
)
def test_an_item_that_cannot_be_asked_or_checked_is_refused(item: object, said: str) -> None:
    task = Task(name="squares", items=lambda rows, seed: [item] if item else [])  # type: ignore[list-item]
    with pytest.raises(RecordError, match=said):
        task.made((), 0)


def entry_points(folder: Path, package: str, **groups: str) -> None:
    """An installed package, as far as its metadata go."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    text = "".join(f"[metaprobe.{group}]\n{line}\n" for group, line in groups.items())
    (info / "entry_points.txt").write_text(text)


def test_an_installed_package_gives_its_systems_and_tasks_names(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systems, tasks = module(own, "my_systems"), module(own, "my_tasks")
    entry_points(own, "mine", systems=f"two-looks = {systems}:TWO_LOOKS", tasks=f"squares = {tasks}:SQUARES")
    shown = CliRunner().invoke(main, ["collect", "--help"]).output
    assert re.search(r"Systems:\n.*self-report.*two-looks.*Tasks:\n.*gsm8k.*squares", shown, re.S)
    assert len(load_task("squares")) == 98
    llm = ScriptedLLM({"answer": "Answer: 4", "confidence": "95 %", "*": "ready"})
    monkeypatch.setattr("metaprobe.papers.collecting.launch.load_models", lambda *_, **__: Models(llm))
    launch(plan(own, system="two-looks", task="squares", limit=1), own / "runs")
    (run,) = RunStore(own / "runs")
    assert next(find_unlabelled([dataclasses.replace(run, labels=())]))["answer"] == "4"  # its system is known again
    assert CliRunner().invoke(main, ["label", str(own / "runs")]).stderr == ""
    entry_points(own, "another", systems="two-looks = elsewhere:SYSTEM")
    with pytest.raises(RecordError, match=r"2 installed packages give this name in metaprobe\.systems; give one of"):
        load_system("two-looks")


COMMANDS = """
import click

@click.command()
@click.argument("number", type=int)
def squares(number):
    click.echo(number**2)
"""


def test_an_installed_package_gives_commands_and_cannot_take_a_name_of_ours(own: Path) -> None:
    (own / "my_commands.py").write_text(COMMANDS)
    lines = "squares = my_commands:squares\nscore = my_commands:squares\nbroken = no_such_module:x\nother = os:sep"
    entry_points(own, "mine", commands=lines)
    run = CliRunner().invoke
    assert run(main, ["squares", "7"]).output == "49\n"
    assert run(main, ["squares", "--help"]).output.startswith("Usage: main squares")
    assert "CHECKPOINT" in run(main, ["score", "--help"]).output
    listed = run(main, ["--help"])
    assert listed.exit_code == 0
    assert re.search(r"^  broken .*cannot be imported.*^  squares", listed.output, re.S | re.M)
    for name, said in (("broken", "no module 'no_such_module'"), ("other", "expected a click.core.Command")):
        refused = run(main, [name, "--any", "word"])
        assert refused.exit_code == 1
        assert said in refused.output
        assert len(refused.output.splitlines()) == 1


def test_a_command_of_an_app_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plugins, "load", lambda plugins, name: None)
    for name in ("assist", "study"):
        refused = CliRunner().invoke(main, [name, "--any"])
        assert refused.exit_code == 2
        assert refused.output.splitlines()[-1].endswith("pip install ./apps/writing_assistant")
    assert "No such command 'assists'" in CliRunner().invoke(main, ["assists"]).output


def test_labels_say_which_runs_are_of_a_system_that_is_not_known(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = ScriptedLLM({"answer": "Answer: 4", "confidence": "95 %", "*": "ready"})
    monkeypatch.setattr("metaprobe.papers.collecting.launch.load_models", lambda *_, **__: Models(llm))
    launch(plan(own, limit=2), own / "runs")
    listed = CliRunner().invoke(main, ["label", str(own / "runs")])
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert listed.stderr == "runs passed over, whose system 'two-looks' is not known here (docs/own.md): 2\n"


@pytest.mark.parametrize("point", sorted(metadata.entry_points(group=HOUSE_FUNCTIONS), key=lambda point: point.name))
def test_what_the_houses_give_the_core_can_be_called(point: metadata.EntryPoint) -> None:
    assert house_function(point.name) is point.load()
