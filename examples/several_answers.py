"""Asks an embedded model several times, learns from that which answer to keep, and asks new questions until one more
answer is not worth it (extra `train`; no network, no key).

python examples/several_answers.py [--out FOLDER] [--questions N]
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np

import metaprobe
from metaprobe.llms.base import Request
from metaprobe.llms.local import LocalLLM
from metaprobe.records.types import Call, Message, Sampling

SAMPLES = 6


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/examples/panel"))
@click.option("--questions", default=70, help="Sums that the panel learns from.")
def main(out: Path, questions: int) -> None:
    rng, llm = np.random.default_rng(0), LocalLLM.load()
    pairs = rng.permutation([(a, b) for a in range(1, 13) for b in range(1, 13)])
    sums = [(int(a), int(b)) for a, b in pairs[: questions + 4]]
    lines = asyncio.run(labelled(llm, sums[4:]))
    out.mkdir(parents=True, exist_ok=True)
    (out / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    panel = metaprobe.Panel(
        metaprobe.train_panel(out / "lines.jsonl", same="number", out=out / "checkpoint", replace=True)
    )
    for name in (f"accuracy_{SAMPLES}", f"accuracy_{SAMPLES}_over_majority"):
        print(f"{name}: {panel.checkpoint.manifest.metrics[name].estimate:+.2f}")
    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=asker(llm))))
    for a, b in sums[:4]:
        answered = asyncio.run(panel.ask(client, asked(a, b), model=llm.name, at_most=12, samples=4))
        kept = answered.response["choices"][0]["message"]["content"].strip() if answered.response else "nothing"
        print(f"{a} + {b}: {kept!r}, right with {answered.verdict.score or 0:.2f}, after {len(answered.asked)} answers")


def asked(a: int, b: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What is {a} + {b}? Answer with one number."}]


def asker(llm: LocalLLM) -> Any:
    """`client.chat.completions.create` of the embedded model, with another seed for each request."""
    seeds = iter(range(10**6))

    async def create(*, messages: Sequence[dict[str, str]], **_: Any) -> dict[str, Any]:
        said = tuple(Message(one["role"], one["content"]) for one in messages)
        sampling = Sampling(temperature=0.7, seed=next(seeds), max_tokens=20)
        return completion(await llm.complete(Request(id="sample", messages=said, sampling=sampling)))

    return create


async def labelled(llm: LocalLLM, sums: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Lines as `metaprobe train panel` reads them: answers of one question share its id, and each has a label."""
    create = asker(llm)
    answers = await asyncio.gather(*(create(messages=asked(a, b)) for a, b in sums for _ in range(SAMPLES)))
    lines = []
    for place, response in enumerate(answers):
        a, b = sums[place // SAMPLES]
        right = str(a + b) in response["choices"][0]["message"]["content"].replace(".", " ").split()
        line = {"question_id": f"{a}+{b}", "messages": asked(a, b), "response": response}
        lines.append({**line, "labels": {"correct": int(right)}})
    return lines


def completion(call: Call) -> dict[str, Any]:
    """A call in the form of an OpenAI chat completion."""
    pairs = zip(call.tokens, [] if call.logprobs is None else call.logprobs.tolist(), strict=True)
    content = [{"token": token, "logprob": logprob} for token, logprob in pairs]
    message = {"role": "assistant", "content": call.text}
    choice = {"message": message, "finish_reason": call.finish_reason, "logprobs": {"content": content}}
    return {"model": call.model, "choices": [choice]}


if __name__ == "__main__":
    main()
