"""Measures text readers where labels are few, and on sets of texts that they never saw: words, states, an encoder.

    python -m research.decisions.text states --data DATA [--encoder FOLDER]   # first, with either model
    python -m research.decisions.few own [NAME]... --data DATA
    python -m research.decisions.few others --data DATA
    python -m research.decisions.few page

The texts are those that both models read. Each way is fitted in outer folds by group, on as many labels as the column
says, in whole groups; each number is the mean over `DRAWS` draws of these labels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, statistic_interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.records.errors import RecordError
from metaprobe.training.calibrators import fit_platt
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import Roles, outer_folds, roles_without, with_fewer
from metaprobe.training.recipes.train_text import BOTH, STATES, WORDS, TextMethod, TextRows
from metaprobe.training.stored_states import InMemory
from research.blocks import ROOT, add_figures, ahead, behind, markdown, packed, read_figures, shown, signed, write
from research.decisions.text import (
    ENCODER,
    MODEL,
    PAGE,
    SETS,
    Data,
    Figures,
    Kept,
    Text,
    evidence_of,
    read_again,
    some,
    source_of,
)

MEASURED = ROOT / "docs" / "measured" / "text_few.json"
LABELS, DRAWS, RESAMPLES = (100, 300, 1000), 2, 400
FOLDS = 10
"""Folds by group: of some 1,150 texts 1,000 labels remain beside a fold."""
OTHERS = "other sets alone"
ENCODED, WITH_ENCODER = "encoder", "words and encoder"
WAYS = (WORDS, STATES, BOTH, ENCODED, WITH_ENCODER)
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Texts with what was read of them."""

    evidence: Evidence
    rows: TextRows
    states: Mapping[str, InMemory]
    """Model -> its states: the embedded one and the encoder."""

    @classmethod
    def of(cls, name: str, texts: Sequence[Text], kept: Path) -> "Read":
        """Returns the first texts of a set, as many as both models have read."""
        states = {model: read_again(name, kept / model) for model in (MODEL, ENCODER)}
        held = {model: one for model, one in states.items() if one is not None}
        n = min(len(one.activations.values) for one in held.values())
        return cls.made(texts[:n], {model: first(one, n) for model, one in held.items()})

    @classmethod
    def made(cls, texts: Sequence[Text], states: Mapping[str, InMemory]) -> "Read":
        rows = TextRows.of([t.question for t in texts], [t.answer for t in texts])
        return cls(evidence_of(list(texts)), rows, states)

    @property
    def y(self) -> NDArray[np.int64]:
        return self.evidence.table.y

    @property
    def groups(self) -> list[str]:
        names: list[str] = self.evidence.table.groups.tolist()
        return names

    def ways(self, roles: Roles, *, seed: int) -> dict[str, Scores]:
        """Returns the calibrated log-odds of all texts by each way, fitted in these roles."""
        scores: dict[str, Scores] = {}
        for model, alone, joined in ((MODEL, STATES, BOTH), (ENCODER, ENCODED, WITH_ENCODER)):
            if (states := self.states.get(model)) is None:
                continue
            fitted = TextMethod(BOTH, self.rows, states).model(self.evidence, roles, seed=seed)
            assert fitted.words is not None
            assert fitted.probe is not None
            scores |= {WORDS: fitted.words.score(self.rows), alone: fitted.probe.score(states)}
            scores[joined] = fitted.score(self.rows, states)
        seen = roles.calibration
        return {
            name: fit_platt(values[seen], self.y[seen], rising=True).logit(values) for name, values in scores.items()
        }


def first(states: InMemory, n: int) -> InMemory:
    """Returns the states of the first texts."""
    held = states.activations
    return InMemory(replace(held, call_ids=held.call_ids[:n], values=held.values[:n]))


def joined(parts: Mapping[str, tuple[list[Text], Read]]) -> Read:
    """Returns the texts of several sources as one, with groups and tasks that name the source."""
    texts = [
        replace(text, group=f"{name}: {text.group}", task=name) for name, (some_, _) in parts.items() for text in some_
    ]
    states: dict[str, InMemory] = {}
    for model in (MODEL, ENCODER):
        held = [read.states[model].activations for _, read in parts.values() if model in read.states]
        if len(held) == len(parts):
            values = np.concatenate([one.values for one in held])
            names = tuple(map(str, range(len(values))))
            states[model] = InMemory(replace(held[0], call_ids=names, values=values))
    return Read.made(texts, states)


def mean_auroc(y: NDArray[np.int64], scores: Sequence[Scores], weight: Any) -> Any:
    """Returns the AUROC, the mean over several scores."""
    return np.mean([np.asarray(auroc(y, score, weight)) for score in scores], axis=0)


def figures_of(y: NDArray[np.int64], groups: Sequence[str], drawn: Sequence[Mapping[str, Scores]]) -> Figures:
    """Returns the AUROC of each way and what it gains over words, paired by group; `drawn`: the scores of each draw."""
    weights = cluster_weights(groups, RESAMPLES, 0)
    scores = {way: [one[way] for one in drawn] for way in WAYS if way in drawn[0]}

    def value(way: str) -> Interval:
        return statistic_interval(lambda weight: mean_auroc(y, scores[way], weight), weights)

    def gain(way: str) -> Interval:
        return statistic_interval(
            lambda weight: mean_auroc(y, scores[way], weight) - mean_auroc(y, scores[WORDS], weight), weights
        )

    return {
        "auroc": {way: packed(value(way)) for way in scores},
        "gain": {way: packed(gain(way)) for way in scores if way != WORDS},
    }


def with_labels(read: Read, labels: int) -> Figures:
    """Returns the figures of ways that learn from so many labels of their own set."""
    drawn = []
    for seed in range(DRAWS):
        scores = {way: np.full(len(read.y), np.nan) for way in WAYS}
        for roles in outer_folds(read.groups, read.y, folds=FOLDS, seed=seed):
            fewer = with_fewer(roles, labels, read.groups, read.y, seed=seed)
            for way, values in read.ways(fewer, seed=seed).items():
                scores[way][roles.test] = values[roles.test]
        drawn.append({way: values for way, values in scores.items() if not np.isnan(values).any()})
    return figures_of(read.y, read.groups, drawn)


@click.group()
def main() -> None:
    """Measure, write the page."""


def read_sets(names: Sequence[str], data: Path, kept: Path) -> dict[str, tuple[list[Text], Read]]:
    """Returns texts and what was read of them; of sets that label the same texts the first."""
    parts: dict[str, tuple[list[Text], Read]] = {}
    for name in names or SETS:
        if source_of(name) not in map(source_of, parts):
            texts = some(SETS[name](data))
            read = Read.of(name, texts, kept)
            parts[name] = texts[: len(read.y)], read
    return parts


@main.command("own")
@click.argument("names", nargs=-1)
@Data
@Kept
def own_command(names: tuple[str, ...], data: Path, kept: Path) -> None:
    """Fits every way on few labels of each set."""
    for name, (_, read) in read_sets(names, data, kept).items():
        add_figures(MEASURED, {"n": len(read.y), "groups": len(set(read.groups))}, name)
        fewest = min(len(roles.seen) for roles in outer_folds(read.groups, read.y, folds=FOLDS))
        for labels in LABELS:
            if labels > fewest:
                continue
            try:
                add_figures(MEASURED, {str(labels): with_labels(read, labels)}, name)
                click.echo(f"{name}, {labels} labels")
            except RecordError as error:  # so many labels are of too few groups
                click.echo(f"{name}, {labels} labels: {error}")


@main.command("others")
@Data
@Kept
def others_command(data: Path, kept: Path) -> None:
    """Fits every way on all sets but one, and judges that one."""
    parts = read_sets((), data, kept)
    whole = joined(parts)
    for name, (_, read) in parts.items():
        own = np.flatnonzero(whole.evidence.table.tasks == name)
        roles = roles_without(own, whole.groups, whole.y, seed=0)
        scores = {way: values[own] for way, values in whole.ways(roles, seed=0).items()}
        add_figures(MEASURED, {"n": len(read.y), "groups": len(set(read.groups))}, name)
        figures = {"n": len(roles.seen), **figures_of(read.y, read.groups, [scores])}
        add_figures(MEASURED, {OTHERS: figures}, name)
        click.echo(name)


def rows_of(figures: Figures) -> Iterator[list[str]]:
    """Yields a row for each set and number of labels: words, and what each other way gains over them."""
    for name in (name for name in SETS if name in figures):
        for labels in (OTHERS, *map(str, LABELS)):
            if (one := figures[name].get(labels)) is not None:
                gains = (signed(one["gain"].get(way)) for way in WAYS[1:])
                yield [
                    f"{name} ({figures[name]['n']}, {figures[name]['groups']})",
                    labels,
                    shown(one["auroc"][WORDS]),
                    *gains,
                ]


@main.command("page")
def page_command() -> None:
    """Writes the table and the sentence about it."""
    figures: Figures = read_figures(MEASURED)
    lines = markdown(
        ["set (texts, groups)", "labels", WORDS, *(f"{way} over words" for way in WAYS[1:])], [*rows_of(figures)]
    )
    lines += ["", "Ahead of the words by the interval, and the mean gain in AUROC:", ""]
    counts = []
    for labels in (one for one in (OTHERS, *map(str, LABELS)) if any(one in figures_ for figures_ in figures.values())):
        row = [labels]
        for way in WAYS[1:]:
            gains = [one[labels]["gain"][way] for one in figures.values() if way in one.get(labels, {}).get("gain", {})]
            mean = np.mean([gain[0] for gain in gains])
            row.append(f"{ahead(gains)} of {len(gains)}, behind in {behind(gains)}; {mean:+.3f}")
        counts.append(row)
    write(PAGE, "text-few", [*lines, *markdown(["labels", *WAYS[1:]], counts), ""])


if __name__ == "__main__":
    main()
