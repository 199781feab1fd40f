"""Trains the small stage classifier and reasoning check, measures them on templates left out, and bundles them.

python -m research.writing.heads           # writes checkpoints/bundled/writing-*, and docs/measured/writing_heads.json
python -m research.writing.heads --hidden  # adds what hidden states of the embedded SmolLM2 tell of the same turns
python -m research.writing.heads --prompted RUNS --name MODEL   # adds what a prompted model told of the same turns
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from metaprobe.checkpoints import Draft, Metric, Training, save_checkpoint
from metaprobe.checkpoints.files import BUNDLED_FOLDER
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.llms.hidden_capture import text_states
from metaprobe.llms.local import LocalLLM
from metaprobe.papers.tasks import load_task
from metaprobe.probes.hashed_words import hashed_pieces
from metaprobe.probes.text_classes import PIECES_INPUT, TEXT_CLASSES
from metaprobe.records.store import RunStore
from metaprobe.records.types import Item
from metaprobe.training.linear_probe import linear_graph
from metaprobe_writing_assistant.system.classifiers import read_reasoning, read_stage, turn_text
from research.blocks import ROOT, packed, read_figures, write_figures

FIGURES = ROOT / "docs" / "measured" / "writing_heads.json"
BUCKETS = 4096
PENALTY = 0.1
"""1 / C of the logistic regression. It and the pieces were chosen among a dozen ways on these very folds, so that the
figures are a little too good."""
FOLDS = 7
LAYERS = range(0, 31, 3)
PENALTIES = (10.0, 100.0, 1000.0)
"""Penalties of which one is chosen on the turns of the other folds, where hidden states are read."""
GOLDEN = 4
"""Rows recorded in a checkpoint: each of them is long."""
COMMAND = "python -m research.writing.heads"
HEADS = {"stage": ("pre", "during", "post", "none"), "reasoning": ("yes", "no")}
"""Field of a turn that holds the label -> the classes, in the order of the graph's outputs."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """The labelled turns as a model reads them."""

    rows: NDArray[np.float32]
    """(n, BUCKETS), of `hashed_pieces`."""
    labels: tuple[str, ...]
    groups: tuple[str, ...]


def labelled(items: Sequence[Item], head: str) -> Labelled:
    """Returns the turns with one of their labels."""
    texts = [turn_text(item.fields["message"], item.fields["draft"]) for item in items]
    rows = np.stack([hashed_pieces(text, BUCKETS) for text in texts])
    return Labelled(rows, tuple(item.fields[head] for item in items), tuple(item.group for item in items))


def fit(rows: NDArray[np.float32], labels: Sequence[str], classes: Sequence[str]) -> tuple[Any, Any]:
    """Returns weights (BUCKETS, classes) and intercepts (classes,): a logistic regression a class, against the rest."""
    models = [
        LogisticRegression(C=1 / PENALTY, max_iter=2000, class_weight="balanced").fit(
            rows, [label == name for label in labels]
        )
        for name in classes
    ]
    return np.column_stack([model.coef_[0] for model in models]), np.array([model.intercept_[0] for model in models])


def predict_out_of_fold(data: Labelled, classes: Sequence[str]) -> list[str]:
    """Returns what the model says of every turn, fitted without the templates of its fold."""
    told = [""] * len(data.labels)
    for train, test in GroupKFold(FOLDS, shuffle=True, random_state=0).split(data.rows, groups=data.groups):
        weights, intercept = fit(data.rows[train], [data.labels[i] for i in train], classes)
        best = np.argmax(data.rows[test] @ weights + intercept, axis=1)
        for i, column in zip(test, best, strict=True):
            told[i] = classes[column]
    return told


def told_by_states(states: NDArray[np.float32], data: Labelled) -> list[str]:
    """Returns what a logistic regression on one layer says of every turn, fitted without the templates of its fold.

    Layer and penalty are chosen within the other folds, by templates too.
    """
    model = make_pipeline(
        FunctionTransformer(_layer), StandardScaler(), LogisticRegression(max_iter=2000, class_weight="balanced")
    )
    grid = {
        "functiontransformer__kw_args": [{"layer": i} for i in range(states.shape[1])],
        "logisticregression__C": [1 / penalty for penalty in PENALTIES],
    }
    labels, groups = np.array(data.labels), np.array(data.groups)
    told = np.empty(len(labels), dtype=object)
    for train, test in GroupKFold(FOLDS, shuffle=True, random_state=0).split(states, groups=groups):
        search = GridSearchCV(model, grid, cv=GroupKFold(FOLDS - 1))
        search.fit(states[train], labels[train], groups=groups[train])
        told[test] = search.predict(states[test])
    return list(told)


def _layer(states: NDArray[np.float32], layer: int = 0) -> NDArray[np.float32]:
    return states[:, layer]


def accuracy(told: Sequence[str], data: Labelled) -> Interval:
    """Returns the share of turns whose label was told, with an interval over templates."""
    right = [float(name == label) for name, label in zip(told, data.labels, strict=True)]
    return mean_interval(right, cluster_weights(data.groups))


def write_head(head: str, data: Labelled, held_out: Interval) -> None:
    """Writes the checkpoint fitted on all turns, with its accuracy on templates left out."""
    classes = HEADS[head]
    weights, intercept = fit(data.rows, data.labels, classes)
    scale = {"mean": np.zeros(BUCKETS), "scale": np.ones(BUCKETS)}
    graph = linear_graph(input_name=PIECES_INPUT, weights=weights, intercept=intercept, outputs=classes, **scale)
    golden = data.rows[:: len(data.rows) // GOLDEN][:GOLDEN]
    expected = 1 / (1 + np.exp(-(golden.astype(np.float64) @ weights + intercept)))
    fingerprint = hashlib.sha256(repr((data.labels, data.groups)).encode() + data.rows.tobytes()).hexdigest()
    draft = Draft(
        kind=TEXT_CLASSES,
        contract={"buckets": BUCKETS, "reads": "message and size of the draft (turn_text)"},
        metrics={"accuracy": Metric(held_out.estimate, held_out.low, held_out.high, held_out.n)},
        training=Training(fingerprint, len(data.labels), len(set(data.groups)), 0, COMMAND),
    )
    card = (
        f"# {head} of a learner's turn\n\n"
        f"Tells {', '.join(classes)} by pieces of the message's words and the size of the draft.\n\n"
        f"Learned from {len(data.labels)} turns of {len(set(data.groups))} templates, written by one person. "
        f"Accuracy on templates left out: {held_out.estimate:.3f} [{held_out.low:.3f}, {held_out.high:.3f}]. Real "
        "learners were not asked: expect less on them.\n"
    )
    save_checkpoint(
        BUNDLED_FOLDER / f"writing-{head}",
        draft,
        model=graph,
        golden_inputs={PIECES_INPUT: golden},
        expected={name: expected[:, [column]].astype(np.float32) for column, name in enumerate(classes)},
        card=card,
        overwrite=True,
    )


def prompted(runs: Path, items: Sequence[Item], head: str) -> dict[str, Any]:
    """Returns the accuracy of a prompted model on those of the turns that were asked, and its tokens a turn.

    `again`: how many had to be asked once more in a fixed form; `unread`: how many told nothing all the same.
    """
    calls = {run.item.id: [call for call in run.calls if call.stage == head] for run in RunStore(runs)}
    items = [item for item in items if item.id in calls]
    asked, data = [calls[item.id] for item in items], labelled(items, head)
    told = [next(filter(None, (told_by(head, call.text) for call in same)), "") for same in asked]
    tokens = [sum(call.usage.prompt_tokens + call.usage.completion_tokens for call in same) for same in asked]
    return {
        "turns": len(items),
        "accuracy": packed(accuracy(told, data)),
        "unread": sum(not name for name in told),
        "again": sum(len(same) > 1 for same in asked),
        "tokens": round(float(np.mean(tokens)), 1),
    }


def told_by(head: str, text: str) -> str:
    """Returns the label that an answer gives; empty where it gives none."""
    if head == "stage":
        return read_stage(text) or ""
    return {True: "yes", False: "no"}.get(read_reasoning(text), "")  # type: ignore[call-overload]


@click.command()
@click.option("--prompted", "runs", type=click.Path(exists=True, path_type=Path))
@click.option("--name", default="")
@click.option("--hidden", is_flag=True)
def main(runs: Path | None, name: str, hidden: bool) -> None:
    """Trains and measures, or adds a prompted model or hidden states."""
    items = load_task("writing-turns")
    figures = read_figures(FIGURES)
    texts = [turn_text(item.fields["message"], item.fields["draft"]) for item in items]
    states = None
    if hidden:  # of the embedded SmolLM2 at `LAYERS`, each the mean over a text's tokens (n, layers, D)
        llm = LocalLLM.load()
        read = (text_states(llm.model, llm.tokenizer, "\n", text, layers=LAYERS, chat=False).answer for text in texts)
        states = np.stack([one.mean(axis=0) for one in read])
    for head, classes in HEADS.items():
        data = labelled(items, head)
        here = figures.setdefault(head, {"prompted": {}})
        if runs is not None:
            here["prompted"][name] = prompted(runs, items, head)
            continue
        if states is not None:
            here["hidden"] = packed(accuracy(told_by_states(states, data), data))
            continue
        held_out = accuracy(predict_out_of_fold(data, classes), data)
        commonest = [Counter(data.labels).most_common(1)[0][0]] * len(items)
        here |= {"turns": len(items), "templates": len(set(data.groups)), "words": packed(held_out)}
        here |= {"majority": packed(accuracy(commonest, data))}
        write_head(head, data, held_out)
    write_figures(FIGURES, figures)
    click.echo(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
