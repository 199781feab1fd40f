"""A collection refuses what it cannot do before a model is loaded and before anything is asked."""

import dataclasses
import os
from pathlib import Path

import pytest

import metaprobe.papers.systems
from metaprobe.llms.cache import CallCache
from metaprobe.papers.collecting.launch import launch, policy_of
from metaprobe.papers.collecting.plan import CollectionPlan
from metaprobe.papers.systems import SYSTEMS
from metaprobe.records.errors import RecordError, StoreHeld
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call

COT = SYSTEMS["zero-shot-cot"]


def test_a_second_collection_into_a_store_is_refused_before_its_model_is_loaded(tmp_path: Path) -> None:
    plan = CollectionPlan(system="zero-shot-cot", task="metacog-eval", llm=("no-such-model",))
    with RunStore(tmp_path).alone(), pytest.raises(StoreHeld, match=f"by process {os.getpid()} on "):
        launch(plan, tmp_path)


def test_prompts_capture_and_cache_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    """The model does not exist: to load it would be another error."""
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    (prompts / "raw_critique.txt").write_text("--- user\nGo on.\n")
    cache = tmp_path / "calls.sqlite"
    with CallCache(cache) as calls:
        for number in range(200):
            calls.put(str(number), Call(id=str(number), text="x" * 500))
    whole = cache.read_bytes()
    cache.write_bytes(whole[:8192] + bytes(len(whole) - 8192))
    plan = CollectionPlan(system="zero-shot-cot", task="metacog-eval", llm=("no-such-model",))
    for change, said in (
        ({"prompts": prompts}, r"no prompt file zero_shot_cot\.txt in .*prompts; expected: zero_shot_cot\.txt"),
        ({"layers": "some"}, r"layers 'some': expected 'all', 'every:N', or numbers of layers such as 0,8,16"),
        ({"layers": "every:0"}, "layers 'every:0'"),
        ({"cache": cache}, r"calls\.sqlite is damaged .* move it away"),
        ({}, "no-such-model"),
    ):
        with pytest.raises(RecordError, match=said):
            launch(dataclasses.replace(plan, **change), tmp_path / "runs")  # type: ignore[arg-type]
        assert not (tmp_path / "runs").exists()


def test_a_slot_that_nothing_fills_is_refused_with_those_that_something_does(tmp_path: Path) -> None:
    shipped = Path(metaprobe.papers.systems.__file__).parent / "prompts" / "baselines"
    for name in COT.prompts:
        (tmp_path / f"{name}.txt").write_text((shipped / f"{name}.txt").read_text())
    plan = CollectionPlan(system="zero-shot-cot", task="metacog-eval", llm=("no-such-model",), prompts=tmp_path)
    prompt = tmp_path / "zero_shot_cot.txt"
    for text, said in (
        (
            "$question Think of $topc.",
            r"zero_shot_cot\.txt has the slot \$topc, which nothing fills; there are .*\$question",
        ),
        ("$question It costs $5.", r"zero_shot_cot\.txt has a '\$' that opens no slot; write '\$\$'"),
        ("$question It costs $$5.", "no-such-model"),
    ):
        prompt.write_text(f"--- user\n{text}\n")
        with pytest.raises(RecordError, match=said):
            launch(plan, tmp_path / "runs")


@pytest.mark.parametrize("policy", ["paper:theta=0.4,theta=0.6", "learned:nowhere,budget=1,budget=2"])
def test_a_policy_constant_that_is_given_twice_is_refused(policy: str) -> None:
    with pytest.raises(RecordError, match=r"policy constant (theta|budget) is given twice, .* and .*: give one value"):
        policy_of(CollectionPlan(system="metacogagent", task="t", policy=policy))
    with pytest.raises(RecordError, match=r"keep is given twice, 0\.1 and 0\.2"):
        policy_of(CollectionPlan(system="essay-debate", task="t", policy="review:keep=0.1,keep=0.2"))


@pytest.mark.parametrize(
    ("system", "variants", "constant", "said"),
    [
        ("metacogagent", (), "talk_rounds=3", r"\(algorithm\) does not work with talk_rounds, only conversation"),
        ("metacogagent", ("majority",), "talk_rounds=2", r"\(majority\) .* give --variant conversation"),
        ("caelf", ("single",), "reflections=0", r"\(single\) .* only caelf, levels, no-contest"),
        ("caelf", (), "reflections=0", "no task 'nowhere'"),
        ("metacogagent", ("conversation", "single"), "talk_rounds=3", "no task 'nowhere'"),
    ],
)
def test_a_constant_that_no_chosen_variant_works_with_is_refused(
    tmp_path: Path, system: str, variants: tuple[str, ...], constant: str, said: str
) -> None:
    with pytest.raises(RecordError, match=said):
        launch(CollectionPlan(system=system, task="nowhere", variant=variants, constant=(constant,)), tmp_path / "runs")
