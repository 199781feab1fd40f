"""Records a small model that thinks because it is asked to: real tokens with the boundary between thinking and answer.

    OMP_NUM_THREADS=1 python -m research.stores.thinking --model MODELS/qwen-coder-0.5b/model.gguf

No weights of a reasoning model are at hand here. The prompt asks for `<think>...</think>` and then the answer, so the
markers are several tokens each, as they are for any model that was not trained with them.
"""

import asyncio
import shutil
from pathlib import Path

import click

from metaprobe.llms.base import Request
from metaprobe.llms.local import LocalLLM
from metaprobe.records.correctness import is_correct
from metaprobe.records.segments import spoken_text
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Message, Run, Sampling
from metaprobe.tasks.named_tasks import load_task

STORE = Path(__file__).parent.parent.parent / "recorded" / "qwen-coder-0.5b-thinking"
ITEMS = 36
TOKENS = 80
EXAMPLE = (
    Message("user", "What is 3 + 4?"),
    Message("assistant", "<think>\nI start at 3 and count four further: 4, 5, 6, 7.\n</think>\n\nThe answer is 7."),
)
SYSTEM = Message(
    "system",
    "First think inside <think> and </think>, in one or two short sentences. Then, after </think>, give the answer in"
    " one sentence.",
)


@click.command()
@click.option("--model", required=True, help="a folder of weights, or an embedded model's name")
@click.option("--out", type=click.Path(path_type=Path), default=STORE)
@click.option("--items", type=int, default=ITEMS)
def main(model: str, out: Path, items: int) -> None:
    """Ask every item once, greedily, and keep the call with its segments and whether its answer is right."""
    llm = LocalLLM.load(model, batch_size=12)
    chosen = load_task("arithmetic", limit=items)
    calls = asyncio.run(ask(llm, chosen))
    shutil.rmtree(out, ignore_errors=True)
    RunStore(out).append(run_of(item, call) for item, call in zip(chosen, calls, strict=True))
    for kind in ("thinking", "answer"):
        click.echo(f"{sum(any(s.kind == kind for s in call.segments) for call in calls)} of {items} have {kind}")


async def ask(llm: LocalLLM, items: list[Item]) -> list[Call]:
    """The answers, in the items' order."""
    sampling = Sampling(max_tokens=TOKENS)
    requests = [
        Request(
            id=f"{item.id}/thinking",
            messages=(SYSTEM, *EXAMPLE, Message("user", item.question)),
            sampling=sampling,
            stage="answer",
        )
        for item in items
    ]
    return list(await asyncio.gather(*(llm.complete(request) for request in requests)))


def run_of(item: Item, call: Call) -> Run:
    """The answer with its label; the text after the thinking is what is right or wrong."""
    said = spoken_text(call.text)
    right = float(is_correct(item, said))
    return Run(
        id=call.id,
        system="thinking",
        variant="",
        item=item,
        calls=(call,),
        labels=(Label(call.id, "correct", right, "program"),),
        final_answer=said,
        outcome=right,
    )


if __name__ == "__main__":
    main()
