"""Makes the recorded answers that `metaprobe quickstart` scores: src/metaprobe/quickstart.jsonl.

    python -m research.stores.quickstart

One answer a group of Qwen2.5-Coder-1.5B to MetaCog-Eval (recorded/metacog-every-agent), in an order drawn by a fixed
seed: the command adapts on the first fifty lines and judges the others. No answer was chosen by its score.
Answers are graded by the program as it is now, which reads "in Rome, Italy" as a country; the store holds older labels.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.records.correctness import is_correct
from metaprobe.records.store import RunStore

ROOT = Path(__file__).parent.parent.parent
STORE, OUT = ROOT / "recorded" / "metacog-every-agent", ROOT / "src" / "metaprobe" / "quickstart.jsonl"
AGENT, STAGE = "gamma", "answer"
SEED = 0


def main() -> None:
    """Write the lines."""
    lines = lines_of(STORE)
    OUT.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines), encoding="utf-8")


def lines_of(store: Path) -> list[dict[str, Any]]:
    """Returns one import line a group, drawn among the group's answers, in a drawn order."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in RunStore(store).runs(hidden=False):
        for call in run.calls:
            if (call.agent, call.stage) == (AGENT, STAGE) and call.logprobs is not None:
                content = [{"token": "", "logprob": round(float(value), 5)} for value in call.logprobs]
                choice = {
                    "message": {"role": "assistant", "content": call.text},
                    "finish_reason": call.finish_reason,
                    "logprobs": {"content": content},
                }
                line = {
                    "id": run.item.id,
                    "group": run.item.group,
                    "messages": [{"role": "user", "content": run.item.question}],
                    "labels": {"correct": int(is_correct(run.item, call.text))},
                    "response": {"model": call.model, "choices": [choice]},
                }
                groups.setdefault(run.item.group, []).append(line)
    rng = np.random.default_rng(SEED)
    drawn = [answers[rng.integers(len(answers))] for _, answers in sorted(groups.items())]
    return [drawn[at] for at in rng.permutation(len(drawn))]


if __name__ == "__main__":
    main()
