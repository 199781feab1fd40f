"""Watches answers while they stream, and stops those that begin as few good answers begin.

python examples/stream_with_gate.py [--checkpoint FOLDER] [--gate FOLDER]

Recorded answers stand in for a model: the openai client's stream is create(..., logprobs=True, stream=True). Without
--gate one is trained first (extra `fit`), on two thirds of the groups; the others are streamed.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import metaprobe
from metaprobe import QualityPredictor
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call
from metaprobe.routing.gate import StreamingGate
from metaprobe.routing.watch_stream import watch

RUNS = Path(__file__).parent.parent / "recorded" / "metacog-every-agent"
AGENT, ACTIONS = "beta", ("continue", "stop")  # of the three models there, Qwen2.5-Coder-0.5B


@click.command()
@click.option("--checkpoint", type=click.Path(exists=True, path_type=Path))
@click.option("--gate", type=click.Path(exists=True, path_type=Path))
def main(checkpoint: Path | None, gate: Path | None) -> None:
    runs = list(RunStore(RUNS))
    kept_apart = set(sorted({run.item.group for run in runs})[::3])
    predictor = QualityPredictor.load(checkpoint) if checkpoint else QualityPredictor.load()
    if gate is None:
        gate = Path(tempfile.mkdtemp()) / "gate"
        RunStore(gate.parent / "runs").append(run for run in runs if run.item.group not in kept_apart)
        metaprobe.train_gate(gate.parent / "runs", stage="answer", agent=AGENT, alpha=[0.1], folds=2, out=gate)
    gates = StreamingGate.load(gate, stop=0.1)  # of the good answers, at most a tenth is stopped
    count = {(right, action): 0 for right in (1.0, 0.0) for action in ACTIONS}
    for run in (run for run in runs if run.item.group in kept_apart):
        call = next(call for call in run.calls if call.stage == "answer" and call.agent == AGENT)
        for _chunk in (watched := watch(streamed(call), predictor, gates)):
            pass  # hand each chunk on to the user here
        count[run.label("correct", call.id) or 0.0, watched.action] += 1
    for (right, action), n in count.items():
        share = n / sum(count[right, other] for other in ACTIONS)
        print(f"{'right' if right else 'wrong'} answers, {action}: {n} ({share:.0%})")


def streamed(call: Call) -> Iterator[dict[str, Any]]:
    """A recorded answer as the chunks of an OpenAI stream."""
    for logprob in call.logprobs if call.logprobs is not None else ():
        content = [{"token": "?", "logprob": float(logprob)}]  # this store keeps no tokens
        yield {"choices": [{"index": 0, "delta": {"content": "?"}, "logprobs": {"content": content}}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


if __name__ == "__main__":
    main()
