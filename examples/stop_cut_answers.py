"""Stops answers that the token limit would cut, by hidden states of the model that answers.

python examples/stop_cut_answers.py [--questions N]

Needs the extra `train`. The embedded SmolLM2-135M has answered short questions with a limit of 24 tokens. Its states
are read again for two thirds of them, a gate is trained without labels, and the model then answers N of the other
questions with the gate watching.
"""

import asyncio
import contextlib
import tempfile
from collections import Counter
from pathlib import Path

import click

import metaprobe
from metaprobe.llms.base import Request, Token
from metaprobe.llms.extract import extract
from metaprobe.llms.local import LocalLLM
from metaprobe.records.store import RunStore
from metaprobe.records.types import LOOK_POSITIONS, Call, Sampling
from metaprobe.routing.gate import Gate, StreamingGate

RUNS = Path(__file__).parent.parent / "recorded" / "smollm2-135m-factual-qa"
MODEL, LAYER, LIMIT = "smollm2-135m", "18", 24


@click.command()
@click.option("--questions", default=100, show_default=True, help="How many questions the model answers.")
@click.option("--learn", default=800, show_default=True, help="Most recorded answers that the gate learns from.")
def main(questions: int, learn: int) -> None:
    runs = list(RunStore(RUNS))
    groups = sorted({run.item.group for run in runs})
    kept_apart = set(groups[::3])
    with tempfile.TemporaryDirectory() as folder:
        # Learn: read the states of recorded answers again, and train.
        store, gate = Path(folder) / "runs", Path(folder) / "gate"
        RunStore(store).append([run for run in runs if run.item.group not in kept_apart][:learn])
        llm = LocalLLM.load(MODEL, layers=LAYER)
        extract(RunStore(store), llm, layers=LAYER, positions=LOOK_POSITIONS, stage="answer")
        metaprobe.train_gate(store, target="ended", stage="answer", layers=LAYER, alpha=[0.1], folds=2, out=gate)
        # Answer: of the answers that would end by themselves, at most a tenth is stopped.
        gates = StreamingGate.load(gate, stop=0.1)
        print(f"the gate reads states: {gates.reads_states}")
        unseen = [run for run in runs if run.item.group in kept_apart][:questions]
        calls = [next(call for call in run.calls if call.stage == "answer") for run in unseen]
        asyncio.run(answer(llm, gates, calls))


async def answer(llm: LocalLLM, gates: StreamingGate, calls: list[Call]) -> None:
    """Answers recorded questions anew, and compares with what came without a gate."""
    count: Counter[tuple[str, str]] = Counter()
    drawn = 0
    for call in calls:
        gate = gates.start(question=call.messages[-1].content, max_tokens=LIMIT, canaries=llm.canaries())
        drawn += await drawn_tokens(llm, gate, call)
        count["cut" if call.finish_reason == "length" else "ended", gate.action] += 1
    for recorded in ("cut", "ended"):
        stopped, all_of = count[recorded, "stop"], count[recorded, "stop"] + count[recorded, "continue"]
        print(f"{recorded} without a gate: {stopped} of {all_of} stopped")
    before = sum(len(call.logprobs) for call in calls if call.logprobs is not None)
    print(f"tokens: {drawn} instead of {before} ({1 - drawn / before:.0%} saved)")


async def drawn_tokens(llm: LocalLLM, gate: Gate, call: Call) -> int:
    """Returns the number of tokens that were drawn until the answer ended or the gate stopped it."""
    sampling = Sampling(max_tokens=LIMIT)
    request = Request(id=call.id, messages=call.messages, sampling=sampling, hidden=True)
    drawn = 0
    async with contextlib.aclosing(llm.stream(request)) as stream:
        async for token in stream:
            if isinstance(token, Token):
                drawn += 1
                assert token.logprob is not None, "a local model gives each token's"
                if gate.push(token.logprob, token.state) == "stop":
                    break
    return drawn


if __name__ == "__main__":
    main()
