"""Trains a predictor on OpenAI-format lines with labels, and says what it is worth (extra `fit`).

python examples/train_on_lines.py [LINES.jsonl] [--out FOLDER] [--folds N]

A line: {"id", "group", "labels": {"correct": 0 or 1}, "response": a chat completion with log-probabilities}.
Without a file, recorded answers are written as such lines first: what your own logs should look like.
"""

import json
from pathlib import Path
from typing import Any

import click

import metaprobe
from metaprobe import QualityPredictor
from metaprobe.records.import_store import import_file
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Run

RUNS = Path(__file__).parent.parent / "recorded" / "metacog-every-agent"


@click.command()
@click.argument("lines", type=click.Path(path_type=Path), required=False)
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/examples/own"))
@click.option("--folds", default=5)
def main(lines: Path | None, out: Path, folds: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if lines is None:
        lines = out / "lines.jsonl"
        answers = [(run, call) for run in RunStore(RUNS) for call in run.calls if call.agent == "gamma"]
        records = [line_of(run, call) for run, call in answers if call.stage == "answer"]
        lines.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    report = import_file(lines, RunStore(out / "runs"))
    print(f"{report.imported} lines imported, {report.already_stored} known already, in {report.groups} groups")
    # Every number comes from folds by group. `replace`: the example may be run again.
    checkpoint = metaprobe.train_quality(out / "runs", folds=folds, out=out / "quality", replace=True)
    for name, value in sorted(checkpoint.manifest.metrics.items()):
        print(f"{name}: {value.estimate:.3f} [{value.low:.3f}, {value.high:.3f}]")
    print(QualityPredictor.load(out / "quality").predict([-0.1, -0.02, -1.3, -0.4]))


def line_of(run: Run, call: Call) -> dict[str, Any]:
    """A recorded answer as a line of a log of OpenAI responses."""
    content = [{"token": "", "logprob": float(x)} for x in call.logprobs if call.logprobs is not None]
    message = {"role": "assistant", "content": call.text}
    choice = {"message": message, "finish_reason": call.finish_reason, "logprobs": {"content": content}}
    response = {"model": call.model, "choices": [choice]}
    right = run.label("correct", call.id)
    return {"id": run.item.id, "group": run.item.group, "labels": {"correct": right}, "response": response}


if __name__ == "__main__":
    main()
