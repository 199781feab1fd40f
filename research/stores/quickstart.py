"""Makes what `metaprobe quickstart` reads: src/metaprobe/quickstart.jsonl and quickstart_samples.jsonl.

    python -m research.stores.quickstart

One answer a group of Qwen2.5-Coder-1.5B to MetaCog-Eval (recorded/metacog-every-agent), in an order drawn by a fixed
seed: the command adapts on the first fifty lines and judges the others. No answer was chosen by its score.
The samples are two answers of the same model, drawn among eight, to each of 100 questions of the groups of those fifty
lines (recorded/states/qwen-coder-1.5b/metacog-eval-samples). They have no labels.
Answers are graded by the program as it is now, which reads "in Rome, Italy" as a country; the store holds older labels.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.quickstart import LABEL_COUNT, SAMPLED_ANSWERS
from metaprobe.records.correctness import is_correct
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Run

ROOT = Path(__file__).parent.parent.parent
STORE, OUT = ROOT / "recorded" / "metacog-every-agent", ROOT / "src" / "metaprobe" / "quickstart.jsonl"
SAMPLES_STORE = ROOT / "recorded" / "states" / "qwen-coder-1.5b" / "metacog-eval-samples"
SAMPLED = 100
"""Questions whose samples are written."""
AGENT, STAGE = "gamma", "answer"
SEED = 0


def main() -> None:
    """Write the lines."""
    lines = lines_of(STORE)
    samples = samples_of(SAMPLES_STORE, {line["group"] for line in lines[:LABEL_COUNT]})
    for path, written in ((OUT, lines), (SAMPLED_ANSWERS, samples)):
        path.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in written), encoding="utf-8")


def lines_of(store: Path) -> list[dict[str, Any]]:
    """Returns one import line a group, drawn among the group's answers, in a drawn order."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in RunStore(store).runs(hidden=False):
        for call in run.calls:
            if (call.agent, call.stage) == (AGENT, STAGE) and call.logprobs is not None:
                labels = {"labels": {"correct": int(is_correct(run.item, call.text))}}
                groups.setdefault(run.item.group, []).append(line_of(run, call, labels))
    rng = np.random.default_rng(SEED)
    drawn = [answers[rng.integers(len(answers))] for _, answers in sorted(groups.items())]
    return [drawn[at] for at in rng.permutation(len(drawn))]


def line_of(run: Run, call: Call, more: dict[str, Any]) -> dict[str, Any]:
    """Returns the import line of a call, with `more` fields before its response."""
    content = [{"token": "", "logprob": round(float(value), 5)} for value in call.logprobs]  # type: ignore[union-attr]
    message = {"role": "assistant", "content": call.text}
    choice = {"message": message, "finish_reason": call.finish_reason, "logprobs": {"content": content}}
    asked = {"messages": [{"role": "user", "content": run.item.question}]}
    response = {"model": call.model, "choices": [choice]}
    return {"id": run.item.id, "group": run.item.group, **asked, **more, "response": response}


def samples_of(store: Path, groups: set[str]) -> list[dict[str, Any]]:
    """Returns two lines for each of `SAMPLED` questions of these groups, drawn."""
    runs = [run for run in RunStore(store).runs(hidden=False) if run.item.group in groups]
    rng, lines = np.random.default_rng(SEED), []
    for place in rng.permutation(len(runs))[:SAMPLED].tolist():
        run = runs[place]
        for number, at in enumerate(rng.permutation(len(run.calls))[:2].tolist()):
            line = line_of(run, run.calls[at], {"question_id": run.item.id})
            lines.append({**line, "id": f"{run.item.id}#{number}"})
    return lines


if __name__ == "__main__":
    main()
