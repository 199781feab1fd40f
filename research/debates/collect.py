"""Collects debates of the 1.5B coder about essays, judged by a program, by its own text and by its options.

    python -m research.debates.collect --models MODELS --data DATA [--out OUT] [--until ROUND]
    python -m research.debates.collect --models MODELS --data DATA --pack

MODELS holds `qwen-coder-1.5b/model.gguf`, DATA the data sets. In each round the debates come first and then the
decisions about their arguments, so that a stop leaves equal beginnings; every finished call is kept in a cache in OUT,
and what stands in `recorded/debates/` is not asked again.
"""

import asyncio
import shutil
import time
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path

import click

from metaprobe.llms.cache import CallCache
from metaprobe.llms.local import LocalLLM
from metaprobe.papers.collecting.collect import collect_runs
from metaprobe.papers.collecting.judge import judge_runs as decide
from metaprobe.papers.systems import SYSTEMS, Models, Prompts, Session, Setup
from metaprobe.papers.systems.essay_debate import ADVOCATE, ARGUMENT_STAGE, SKEPTIC, argue
from metaprobe.papers.systems.judging import JUDGE_QUESTIONS, judge_argument
from metaprobe.papers.tasks.named_tasks import load_task
from metaprobe.records.store import RunStore
from metaprobe.records.types import Item, Run
from research.debates.options import OptionJudge
from research.states.collect import begun, folder
from research.stores.collect import ALL, pack

KEPT = Path(__file__).parent.parent.parent / "recorded" / "debates"
MODEL = "qwen-coder-1.5b"
ROUNDS = (32, 64, 128, 256, 512)
"""Essay-trait pairs at the end of each round; two arguments a pair."""
LONGEST = 320
"""Words of the essays: what is read costs as much as what is said, and an essay is read five times."""
ALTERNATIVES = 5


async def debate(session: Session) -> Run:
    """The debate without its Synthesizer-Judge, which no question here is about: two arguments, each judged."""
    advocate, _ = await argue(session, ADVOCATE)
    skeptic, _ = await argue(session, SKEPTIC, opponent=advocate)
    for argument in (advocate, skeptic):
        await judge_argument(session, argument, role=argument.agent)
    return session.run("")


SYSTEM = replace(SYSTEMS["essay-debate"], run=debate)


@click.command()
@click.option("--models", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out/debates"))
@click.option("--until", type=click.IntRange(1, len(ROUNDS)), default=len(ROUNDS), help="Last round.")
@click.option("--batch-size", type=click.IntRange(1), default=32)
@click.option("--pack", "packs", is_flag=True, help="Ask nothing; pack what is decided into recorded/debates/.")
def main(models: Path, data: Path, out: Path, until: int, batch_size: int, packs: bool) -> None:
    """Debate, judge and decide, or pack."""
    debated, judged = (begun(folder(out) / name, KEPT / MODEL) for name in ("debated", "judged"))
    if packs:
        KEPT.mkdir(parents=True, exist_ok=True)
        pack(judged, KEPT / MODEL, text=False, alternatives=ALL)
        return
    llm = LocalLLM.load(str(models / MODEL / "model.gguf"), batch_size=batch_size, top_logprobs=ALTERNATIVES)
    with CallCache(out / "calls.sqlite") as cache:
        asyncio.run(work(llm, cache, pairs(data), debated, judged, until))


def pairs(data: Path) -> list[Item]:
    """Returns short essays with two traits each, the traits in turn, three essays of set 7 to one of set 8.

    No program checks a score: nobody gives one.
    """
    essays: dict[str, list[Item]] = defaultdict(list)
    for item in load_task("asap", data=data / "asap_7_8"):
        if len(item.fields["essay"].split()) <= LONGEST:
            essays[item.group].append(replace(item, check="none"))
    numbers, sets = Counter[str](), defaultdict[str, list[Item]](list)
    for traits in essays.values():
        which, many = traits[0].dimension, len(traits)
        sets[which] += [traits[(numbers[which] + step) % many] for step in (0, many // 2)]
        numbers[which] += 1
    sevens, eights = iter(sets["set 7"]), iter(sets["set 8"])
    return [item for pair in zip(eights, eights, strict=True) for item in (*islice(sevens, 6), *pair)]


async def work(llm: LocalLLM, cache: CallCache, items: list[Item], debated: Path, judged: Path, until: int) -> None:
    """Do all rounds. The decisions wait for the debates, so that one thing at a time is computed."""
    setup = Setup(Models(cache.wrap(llm)), Prompts.load(SYSTEM.name, SYSTEM.prompts))
    options = cache.wrap(OptionJudge(llm))
    for count in ROUNDS[:until]:
        started = time.monotonic()
        report = await collect_runs(
            SYSTEM, items[:count], setup, RunStore(debated), variants=("paper",), concurrency=len(items)
        )
        argued = time.monotonic()
        told = await decide(RunStore(debated), options, RunStore(judged), JUDGE_QUESTIONS, stage=ARGUMENT_STAGE)
        shutil.copy(debated / RunStore.settings_name, judged)
        if report.done or told.runs:
            click.echo(
                f"{time.strftime('%H:%M')} {report.stored_before} + {report.done} debates "
                f"({len(report.failed)} failed) in {argued - started:.0f} s, {told.runs} decided in "
                f"{time.monotonic() - argued:.0f} s; critical: {flagged(RunStore(judged))}"
            )


def flagged(store: RunStore) -> str:
    """Returns how many arguments each source calls critical, of how many."""
    seen, raised = Counter[str](), Counter[str]()
    for run in store.runs(hidden=False):
        for label in run.labels:
            if label.name == "critical":
                seen[label.source] += 1
                raised[label.source] += label.value > 0
    return ", ".join(f"{source} {raised[source]} of {of}" for source, of in sorted(seen.items()))


if __name__ == "__main__":
    main()
