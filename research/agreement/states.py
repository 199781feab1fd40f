"""Measures hidden states that are taught by agreement: reads recorded samples again, then scores questions left out.

python -m research.agreement.states read MODELS [--only STORE ...]     # needs the weights; resumable
python -m research.agreement.states measure [--only STORE ...]
python -m research.agreement.states page

MODELS holds `qwen-coder-0.5b/model.gguf` and `qwen-coder-1.5b/model.gguf`.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from metaprobe.eval.metrics.ranked import auroc
from metaprobe.llms.extract import launch_extract
from metaprobe.probes.features import SCALED, TERM_NAMES
from metaprobe.records.reading import STOP
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from metaprobe.training.agreement import agreement_pairs
from metaprobe.training.folds import final_roles
from metaprobe.training.ladder import USUAL_BAR, Bar, LadderRows
from metaprobe.training.linear_probe import fit_linear_probe
from metaprobe.training.methods import agreement_ladder, make_tfidf
from metaprobe.training.recipes.train_quality import fit_probability
from metaprobe.training.stored_states import ChosenRows, InMemory
from research.agreement.measure import KEPT, PAGE, paired_differences
from research.agreement.ways import Draw, Floats, Rows, Samples, form_of, of_other_questions, read_samples
from research.blocks import ROOT, ahead, behind, keep_figures, markdown, read_figures, signed, write
from research.panel.measure import SAMPLED

FOLDER = ROOT / "out" / "agreement-states"
QUESTIONS = 400
"""Questions of a store that are read, drawn at random; all where there are fewer."""
SAMPLES = 3
"""Answers to each question that are read: the first that ended by themselves."""
LAYERS = {"0.5B": "10,13,16,19,22", "1.5B": "12,15,18,21,24"}
"""Model -> layers that are kept: from the middle to the last but two, of 24 and 28."""
POSITIONS = ("prompt_last", "answer_mean", "answer_last")
LEARN_FROM = 200
"""Questions of a draw that are learned from; the answers to the others are scored, one by one."""
DRAWS = 10

AFTER = ("answer_mean", "answer_last")
BEFORE = ("prompt_last",)
TAUGHT, LABELLED, FEW = "taught by agreement", "taught by as many labels", "taught by a label a question"
STATES, TERMS, AHEAD, WORDS, FORM = (
    "states",
    "log-probabilities",
    "states before",
    "words of the question",
    "form of the question",
)
SHUFFLED = "states taught by the agreement of other questions"
FREE = (SCALED, "mean")


@click.group()
def main() -> None:
    """Read states, measure what they teach."""


def drawn_runs(path: Path) -> list[Run]:
    """Returns some questions of a store, each with its first samples that ended by themselves, at least two."""
    runs = []
    for run in RunStore(path).runs(hidden=False):
        ended = [
            call for call in run.calls if call.stage == "answer" and call.finish_reason == STOP and call.text.strip()
        ]
        kept = {call.id for call in ended[:SAMPLES]}
        if len(kept) < 2:
            continue
        labels = tuple(label for label in run.labels if label.call_id in kept)
        runs.append(replace(run, calls=tuple(ended[:SAMPLES]), labels=labels, statements=(), decisions=()))
    order = np.random.default_rng(0).permutation(len(runs))[:QUESTIONS]
    return [runs[place] for place in sorted(order)]


def folder_of(name: str) -> Path:
    """Returns where the states of a store of samples are kept."""
    return FOLDER / SAMPLED[name].replace("/", "-")


@main.command()
@click.argument("models", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", multiple=True, help="Store, by its name in the table.")
def read(models: Path, only: Sequence[str]) -> None:
    """Reads the states of the samples; what was read before is passed over."""
    for name in only or SAMPLED:
        size, folder = name.split()[0], folder_of(name)
        if not folder.exists():
            RunStore(folder).append(drawn_runs(ROOT / "recorded" / SAMPLED[name]))
        model = models / f"qwen-coder-{size.lower()}" / "model.gguf"
        report = launch_extract(folder, str(model), layers=LAYERS[size], positions=POSITIONS)
        click.echo(f"{name}: {report}")


@dataclass(frozen=True, slots=True, eq=False)
class ReadSamples:
    """The n answers of a store whose states were read."""

    samples: Samples
    states: InMemory
    """In the order of the answers."""


def read_back(name: str) -> ReadSamples:
    """Returns the answers of a store and their states."""
    samples = read_samples(folder_of(name))
    return ReadSamples(samples, InMemory(RunStore(folder_of(name)).activations(samples.call_ids.tolist())))


class _Drawing:
    """One draw of questions while its ways are fitted and scored."""

    def __init__(self, read: ReadSamples, seed: int) -> None:
        self.read, self.samples, self.seed = read, read.samples, seed
        self.rng = np.random.default_rng(seed)
        names = self.rng.permutation(np.unique(self.samples.groups))
        question_of_group = {name: set(self.samples.question[self.samples.groups == name].tolist()) for name in names}
        seen: set[int] = set()
        for name in names:
            if len(seen) < LEARN_FROM:
                seen |= question_of_group[name]
        self.learn = np.flatnonzero(np.isin(self.samples.question, list(seen)))
        self.test = np.flatnonzero(~np.isin(self.samples.question, list(seen)))
        self.scores: dict[str, Floats] = {}

    def draw(self) -> Draw:
        """Fits and scores every way."""
        samples = self.samples
        for name in FREE:
            self.scores[name] = samples.free[name][self.test]
        chosen = {samples.call_ids[place] for place in self.learn}
        asked = [samples.runs[question] for question in np.unique(samples.question[self.learn])]
        runs = [replace(run, calls=tuple(call for call in run.calls if call.id in chosen)) for run in asked]
        pairs, same = agreement_pairs(runs).rows_among(samples.call_ids.tolist())
        _, first = np.unique(samples.question[self.learn], return_index=True)
        rows = {
            TAUGHT: (pairs, same),
            LABELLED: (self.learn, samples.y[self.learn]),
            FEW: (self.learn[first], samples.y[self.learn[first]]),
        }
        for how, (places, y) in rows.items():
            self._probe(f"{STATES} {how}", places, y, AFTER)
            self._probe(f"{AHEAD} {how}", places, y, BEFORE)
            self._terms(f"{TERMS} {how}", places, y, agreement_ladder(len(chosen)).bar if how == TAUGHT else USUAL_BAR)
            self._question(how, places, y)
        mixed = of_other_questions(self._rows(pairs, same), self.rng)
        self._probe(SHUFFLED, pairs, mixed.y, AFTER)
        return Draw(self.test, self.scores, {}, {})

    def _rows(self, places: Rows, y: NDArray[np.int64]) -> LadderRows:
        samples = self.samples
        return LadderRows(samples.X[places], y, samples.groups[places], np.full(len(places), "run"), TERM_NAMES)

    def _probe(self, way: str, places: Rows, y: NDArray[np.int64], positions: tuple[str, ...]) -> None:
        """Fits the product's probe on these answers, and scores the test answers."""
        groups = self.samples.groups[places].tolist()
        roles = final_roles(groups, y, seed=self.seed)
        states = ChosenRows(self.read.states, places)
        probe = fit_linear_probe(states, y, groups, roles, positions=positions, seed=self.seed)
        self.scores[way] = probe.score(self.read.states, self.test)

    def _terms(self, way: str, places: Rows, y: NDArray[np.int64], bar: Bar) -> None:
        """Fits the product's predictor on log-probabilities."""
        rows = self._rows(places, y)
        head = fit_probability(rows, final_roles(rows.groups.tolist(), y, seed=self.seed), bar=bar, seed=self.seed)
        self.scores[way] = head.scorer.score(self.samples.X[self.test])

    def _question(self, how: str, places: Rows, y: NDArray[np.int64]) -> None:
        """Fits the question's words and its form, which need no answer."""
        samples = self.samples
        texts = [run.item.question for run in samples.runs]
        asked, tested = samples.question[places], samples.question[self.test]
        form = np.array([form_of(text) for text in texts])
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.3)).fit(form[asked], y)
        self.scores[f"{FORM} {how}"] = model.decision_function(form)[tested]
        words = make_tfidf(2).fit([texts[place] for place in np.unique(asked)])
        model = LogisticRegression(C=1.0, max_iter=500).fit(words.transform([texts[place] for place in asked]), y)
        self.scores[f"{WORDS} {how}"] = model.decision_function(words.transform(texts))[tested]


COMPARED = {
    f"{STATES} {TAUGHT}": (f"{TERMS} {TAUGHT}", f"{STATES} {LABELLED}", f"{STATES} {FEW}", *FREE),
    f"{AHEAD} {TAUGHT}": (
        *(f"{control} {how}" for control in (WORDS, FORM) for how in (TAUGHT, FEW)),
        f"{AHEAD} {LABELLED}",
        f"{AHEAD} {FEW}",
    ),
}
"""Way -> controls."""


def figures_of(samples: Samples, draws: Sequence[Draw]) -> dict[str, Any]:
    """Returns what is kept of one store: means over draws, and paired differences."""
    found = {way: [float(auroc(samples.y[draw.test], draw.scores[way])) for draw in draws] for way in draws[0].scores}
    compared = {way: {control: {"all": control} for control in controls} for way, controls in COMPARED.items()}
    over = paired_differences(samples, draws, compared)
    return {
        "questions": len(samples.runs),
        "answers": len(samples.y),
        "right": round(float(samples.y.mean()), 4),
        "draws": len(draws),
        "ways": {way: round(float(np.mean(values)), 4) for way, values in found.items()},
        "over": {way: {control: by["all"] for control, by in controls.items()} for way, controls in over.items()},
    }


@main.command()
@click.option("--only", multiple=True, help="Store, by its name in the table; by default those that were read.")
@click.option("--draws", default=DRAWS)
def measure(only: Sequence[str], draws: int) -> None:
    """Draws questions, learns, scores; keeps the figures of each store as they are known."""
    warnings.simplefilter("ignore")
    for name in only or [name for name in SAMPLED if folder_of(name).is_dir()]:
        back = read_back(name)
        made = [_Drawing(back, seed).draw() for seed in range(draws)]
        figures = figures_of(back.samples, made)
        keep_figures(KEPT, figures, "states", name, sort=False)
        click.echo(f"{name} {figures['ways']}")


@main.command()
def page() -> None:
    """Writes what the states were worth into the page, and its tables."""
    stores: dict[str, Any] = read_figures(KEPT)["states"]
    write(PAGE, "states", _answer(stores))
    write(PAGE, "states-rows", _table(stores))
    differences = [
        [f"{way}, over {control}", *(signed(one["over"][way][control]) for one in stores.values())]
        for way, controls in COMPARED.items()
        for control in controls
    ]
    ways = list(next(iter(stores.values()))["ways"])
    values = [[way, *(f"{one['ways'][way]:.3f}" for one in stores.values())] for way in ways]
    write(PAGE, "states-ways", markdown(["AUROC, states read", *stores], values))
    write(PAGE, "states-over", markdown(["difference of AUROC", *stores], differences))


def _answer(stores: dict[str, Any]) -> list[str]:
    """Returns what was found, in sentences."""

    def counted(way: str, control: str) -> str:
        found = [one["over"][way][control] for one in stores.values()]
        return f"ahead on {ahead(found)}, behind on {behind(found)} ({min(each[0] for each in found):+.3f} at worst)"

    after, before = f"{STATES} {TAUGHT}", f"{AHEAD} {TAUGHT}"
    near = sum(one["over"][after][f"{STATES} {LABELLED}"][0] >= -WITHIN for one in stores.values())
    return [
        f"On {len(stores)} stores, taught by the agreement of {LEARN_FROM} questions with {SAMPLES} samples each, "
        f"hidden states are, of log-probabilities taught so, {counted(after, f'{TERMS} {TAUGHT}')}; of the free number "
        f"`{SCALED}`, {counted(after, SCALED)}. They are within {WITHIN} of the same probe taught by as many labels on "
        f"{near}.",
        f"Before the first token they are, of the question's words taught by a label a question, "
        f"{counted(before, f'{WORDS} {FEW}')}, and of its form, {counted(before, f'{FORM} {FEW}')}.",
    ]


WITHIN = 0.02
"""Difference of AUROC from the probe taught by labels that the goal allows."""


def _table(stores: dict[str, Any]) -> list[str]:
    """Returns a row a store."""
    rows = []
    for name, one in stores.items():
        ways = one["ways"]

        def both(kind: str, ways: dict[str, float] = ways) -> str:
            return f"{ways[f'{kind} {TAUGHT}']:.3f} / {ways[f'{kind} {LABELLED}']:.3f}"

        asked = max(ways[f"{WORDS} {LABELLED}"], ways[f"{FORM} {LABELLED}"])
        rows.append([name, both(STATES), both(TERMS), f"{ways[SCALED]:.3f}", both(AHEAD), f"{asked:.3f}"])
    head = [
        "agreement / as many labels",
        "states",
        "log-probabilities",
        f"`{SCALED}`",
        "states, before",
        "the question's words or form, labels",
    ]
    return markdown(head, rows)


if __name__ == "__main__":
    main()
