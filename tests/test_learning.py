"""Outcomes of a running collection reach its policy, once, in the items' order."""

import asyncio
import dataclasses
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from scripted import ScriptedLLM

from metaprobe.cli import main
from metaprobe.llms.base import LLMError, Request
from metaprobe.papers.collecting.collect import CollectReport, collect_runs
from metaprobe.papers.collecting.label_runs import add_labels, find_unlabelled
from metaprobe.papers.policies.explore import EpsilonGreedy, learns
from metaprobe.papers.systems import Models, Prompts, Setup
from metaprobe.papers.systems.metacogagent import AGENTS, SYSTEM
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Decision, Item, Label
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Outcome, State

ITEMS = [
    Item(id=f"i{n:02}", question=f"What is {n} + 1?", gold=(str(n + 1),), check="number", group=f"g{n}")
    for n in range(24)
]
RIGHT = {"alpha": 0.2, "beta": 0.5, "gamma": 0.9}
"""How often an agent is right; who is sure of itself is another matter."""


class World(ScriptedLLM):
    """Agents that are right more or less often, and are as sure as each other; slow in any order."""

    def __init__(self, *, broken: Sequence[str] = (), seed: int = 0) -> None:
        super().__init__({"classify": "math", "assess": '{"confidence": 60}', "answer": self.answer})
        self.broken, self._delay = broken, random.Random(seed)

    def answer(self, request: Request) -> str:
        n = int(request.messages[-1].content.split("What is ")[1].split()[0])
        if f"i{n:02}" in self.broken:
            raise LLMError("out of order")
        right = random.Random(f"{request.agent}{n}").random() < RIGHT[request.agent]
        return str(n + 1 if right else n + 2)

    async def complete(self, request: Request) -> Call:
        for _ in range(self._delay.randrange(9)):
            await asyncio.sleep(0)
        return dataclasses.replace(await super().complete(request), latency_ms=2.0, cost_usd=0.5)


def gathered(folder: Path, items: Sequence[Item], llm: World | None = None, **options: object) -> CollectReport:
    prompts = Prompts.load(SYSTEM.name, SYSTEM.prompts)
    setup = Setup(Models(llm or World()), prompts, agents=AGENTS, policy=options.pop("policy", PaperRules()))  # type: ignore[arg-type]
    return asyncio.run(collect_runs(SYSTEM, items, setup, RunStore(folder), **{"wave": 1, **options}))  # type: ignore[arg-type]


def told(folder: Path) -> dict[str, object]:
    """Returns each item's decision, the profiles it was made on, and its outcome."""
    return {
        run.item.id: (
            [(d.point, d.action, d.scores) for d in run.decisions],
            {label.name: label.value for label in run.labels if label.name.startswith("profile:")},
            run.final_answer,
            run.outcome,
        )
        for run in RunStore(folder)
    }


class Learner:
    """Asks the others while it has been right more often than wrong, and remembers what it was told."""

    learns = True

    def __init__(self) -> None:
        self.rules = PaperRules()
        self.seen: list[tuple[str, Outcome]] = []

    def __repr__(self) -> str:
        return "Learner()"

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        decision = self.rules.decide(state, legal_actions)
        good = sum((outcome.correct or 0.0) - 0.5 for _, outcome in self.seen)
        ask = state.point == "assess" and good > 0
        return dataclasses.replace(decision, action="ask", reason=f"{good}") if ask else decision

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        self.seen.append((decision_id, outcome))


def test_a_policy_that_learns_is_told_of_every_decision_in_the_items_order_however_runs_end(tmp_path: Path) -> None:
    found = []
    for seed, concurrency in ((0, 128), (2, 2)):
        policy = Learner()
        gathered(tmp_path / f"{seed}", ITEMS[:12], llm=World(seed=seed), policy=policy, wave=4, concurrency=concurrency)
        runs = {run.item.id: run for run in RunStore(tmp_path / f"{seed}")}
        expected = [
            (decision.id, Outcome(run.outcome, 0.5 * len(run.calls), 2.0 * len(run.calls)))
            for _, run in sorted(runs.items())
            for decision in run.decisions
        ]
        assert policy.seen == expected
        assert len({decision.action for run in runs.values() for decision in run.decisions[:1]}) == 2  # it learned
        found.append(told(tmp_path / f"{seed}"))
    assert found[0] == found[1]


def test_a_resumed_collection_tells_its_policy_of_the_stored_runs_as_well(tmp_path: Path) -> None:
    at_once, stopped = Learner(), Learner()
    gathered(tmp_path / "at once", ITEMS[:9], policy=at_once, wave=3)
    gathered(tmp_path / "stopped", ITEMS[:9], llm=World(broken=["i08"]), policy=Learner(), wave=3)
    gathered(tmp_path / "stopped", ITEMS[:9], policy=stopped, wave=3)
    assert stopped.seen == at_once.seen
    assert told(tmp_path / "stopped") == told(tmp_path / "at once")


def test_who_learns_and_what_cannot_be_learned_from_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    assert learns(Learner())
    assert learns(EpsilonGreedy(Learner(), epsilon=0.1))
    assert not learns(EpsilonGreedy(PaperRules(), epsilon=0.1))
    llm = World()
    with pytest.raises(RecordError, match="collect one at a time"):
        gathered(tmp_path / "runs", ITEMS, llm=llm, variants=("algorithm", "every-agent"), policy=Learner())
    assert not llm.asked


@pytest.fixture(scope="module")
def collected_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "unchecked"
    items = [dataclasses.replace(item, check="none", gold=()) for item in ITEMS[:6]]
    gathered(folder, items, variants=["every-agent"])
    return folder


@pytest.fixture
def unchecked(collected_once: Path, tmp_path: Path) -> Path:
    """A store whose answers no program can check."""
    return Path(shutil.copytree(collected_once, tmp_path / "unchecked"))


def by_command(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_person_or_a_judge_labels_what_no_program_can_check(unchecked: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in by_command("label", unchecked).splitlines()]
    assert len(lines) == 18
    assert {"call", "item", "agent", "question", "answer", "correct"} == set(lines[0])
    for line in lines:
        line["correct"] = None if line["item"] == "i05" else float(line["agent"] == "gamma")
        line["source"] = "judge:someone" if line["item"] == "i04" else "human"
    filled = tmp_path / "filled.jsonl"
    filled.write_text("\n".join(map(json.dumps, lines)))
    assert json.loads(by_command("label", unchecked, filled)) == {"labels": 15, "new": 15}
    assert json.loads(by_command("label", unchecked, filled)) == {"labels": 15, "new": 0}
    assert len(by_command("label", unchecked).splitlines()) == 3
    assert {run.outcome for run in RunStore(unchecked)} == {0.0, 1.0, None}


def test_labels_may_come_as_the_rows_of_a_spreadsheet(unchecked: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in by_command("label", unchecked).splitlines()]
    cells = [
        (row["call"], "" if place < 2 else place % 2, "judge:m" if place == 2 else "") for place, row in enumerate(rows)
    ]
    filled = tmp_path / "filled.csv"
    filled.write_text("call;correct;source\n" + "".join(f"{call};{value};{by}\n" for call, value, by in cells))
    assert json.loads(by_command("label", unchecked, filled)) == {"labels": 16, "new": 16}
    assert len(by_command("label", unchecked).splitlines()) == 2
    taken = {label.call_id: label for run in RunStore(unchecked) for label in run.labels if label.name == "correct"}
    assert {call: (one.value, one.source) for call, one in taken.items()} == {
        call: (float(value), by or "human") for call, value, by in cells[2:]
    }
    filled.write_text("call,correct\nc,maybe\n")
    refused = CliRunner().invoke(main, ["label", str(unchecked), str(filled)])
    assert "filled.csv:2: correct is 'maybe'; expected" in refused.output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "labels.jsonl:1: not JSON"),
        ('{"call": "c"}', "labels.jsonl:1: the keys are"),
        ('{"call": "c", "correct": 2}', "correct is 2"),
        ('{"call": "c", "correct": 1, "source": "program"}', "source is 'program'"),
        ('\n{"call": "c", "correct": -0.1}', "labels.jsonl:2: correct is -0.1"),
        ('{"call": 3, "correct": 1}', "labels.jsonl:1: the keys are"),
        ('{"call": "c", "correct": 1}\n{"call": "d", "correct": 0}\n{"call": "e", "correct": 0}', "holds no call 'c'"),
    ],
)
def test_a_label_that_cannot_be_taken_is_named_and_nothing_is_changed(
    unchecked: Path, tmp_path: Path, line: str, said: str
) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text(line)
    before = [path.read_bytes() for path in RunStore(unchecked).shards()]
    result = CliRunner().invoke(main, ["label", str(unchecked), str(file)])
    assert result.exit_code == 1
    assert said in result.output
    assert [path.read_bytes() for path in RunStore(unchecked).shards()] == before


def test_a_judge_does_not_change_what_a_program_has_found_and_a_person_does(tmp_path: Path) -> None:
    gathered(tmp_path / "runs", ITEMS[:1])
    store = RunStore(tmp_path / "runs")
    (before,) = store
    (answer,) = [call for call in before.calls if call.stage == "answer"]
    other = 1.0 - (before.outcome or 0.0)
    assert list(find_unlabelled(store)) == []
    assert add_labels(store, {answer.id: Label(answer.id, "correct", other, "judge:m")}) == 1
    (judged,) = store
    assert judged.outcome == before.outcome
    assert {label.source for label in judged.labels if label.name == "correct"} == {"program", "judge:m"}
    assert add_labels(store, {answer.id: Label(answer.id, "correct", 0.25, "judge:m")}) == 1
    (again,) = store
    assert [label.value for label in again.labels if label.source == "judge:m"] == [0.25]
    assert add_labels(store, {answer.id: Label(answer.id, "correct", other, "human")}) == 1
    (told,) = store
    assert told.outcome == other
    notes = [label for label in before.labels if label.name != "correct"]
    assert [label for label in told.labels if label.name != "correct"] == notes
    aside = next(call for call in before.calls if call.stage != "answer")
    add_labels(store, {aside.id: Label(aside.id, "correct", 1 - other, "human")})
    (after,) = store
    assert after.outcome == other  # no answer, so it is not the final one
