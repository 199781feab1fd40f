"""Measures how much words, and states of a small model that reads them, add to the log-probabilities of arguments.

    python -m research.debates.texts states OUT/debated --kept FOLDER      # goes on where it was stopped
    python -m research.debates.texts measure OUT/debated --kept FOLDER

OUT is what `research.debates.collect` collected, with its texts. Folds, targets and controls are those of
`research.debates.measure`, and the figures stand beside its own. Words are read by TF-IDF, as the controls of
`metaprobe compare` read them.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from metaprobe.eval.compare import auroc_gain, method_results
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.results import Family
from metaprobe.papers.systems.essay_debate import ARGUMENT_STAGE
from metaprobe.probes.adapter import prompt_of
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import Roles, Rows
from metaprobe.training.methods import (
    WORD_PENALTIES,
    Blend,
    Fitted,
    HiddenProbeMethod,
    Method,
    ScoreFunction,
    TermsPart,
    TextWords,
    control_methods,
    standard_terms,
)
from metaprobe.training.stored_states import InMemory, States
from metaprobe.training.study import CrossFit, crossfit
from research.blocks import packed, read_figures
from research.debates.measure import (
    EARLY,
    FOLDS,
    MEASURED,
    SEED,
    TARGETS,
    Arguments,
    Early,
    Figures,
    arguments_of,
    keep,
    trait_left_out,
)

STORE = "debates/qwen-coder-1.5b"
NAMED = ("score", "points", "not", "lacks", "strong", "however")
"""Words that tell scores, and the side that is argued for."""
LABELS = (100, 200, 300, 400)
"""Labels of the learning curve, beside all."""
MODEL, LAYERS, POSITIONS = "smollm2-135m", (12, 16), ("answer_last", "answer_mean")
CHUNK = 16
"""Arguments in one file of states."""
WORDS = TextWords("words", ("answers",), family="learned")
WORDS_AND_TERMS = TextWords("words and terms", ("answers",), numbers=True, family="learned")
STATES = HiddenProbeMethod("states", POSITIONS)
EVERYTHING = Blend((TermsPart(), WORDS, STATES), name="terms, words and states")
TERMS = Early("terms")
READ: tuple[Method, ...] = (TERMS, WORDS, WORDS_AND_TERMS)
WITH_STATES: tuple[Method, ...] = (STATES, EVERYTHING)


@dataclass(frozen=True, slots=True)
class FormAndTerms:
    """A control made to explain what words bring: logistic regression on the text's form and on the terms.

    The form is what the program that labels looks at, counted without the essay: quotations, numbers, repetitions.
    """

    name: str = "form of the text and terms"
    family: Family = "log-probability"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        from sklearn.linear_model import LogisticRegression

        table = evidence.table
        assert table.answers is not None, "a store with texts is read"
        forms = np.array([form_of(text) for text in table.answers.tolist()])

        def fitted(learn: Rows, penalty: float) -> ScoreFunction:
            centre, spread = forms[learn].mean(axis=0), forms[learn].std(axis=0) + 1e-9
            X = np.hstack([(forms - centre) / spread, standard_terms(evidence, learn)])
            model = LogisticRegression(C=penalty, max_iter=1000).fit(X[learn], table.y[learn])
            return lambda rows: np.asarray(model.decision_function(X[rows]), dtype=np.float64)

        at = roles.selection
        selected = {each: float(auroc(table.y[at], fitted(roles.train, each)(at))) for each in WORD_PENALTIES}
        best = max(selected, key=lambda penalty: selected[penalty])
        return Fitted(fitted(roles.learning, best), selected[best])


def form_of(text: str) -> list[float]:
    """Returns counts of what the program looks at."""
    words, quoted = re.findall(r"\w+", text.lower()), re.findall(r'"([^"]*)"', text)
    lengths = [len(each.split()) for each in quoted] or [0]
    numbers, repeated = sum(word.isdigit() for word in words), 1 - len(set(words)) / max(len(words), 1)
    form = [len(words), len(quoted), sum(lengths), max(lengths), text.count('"') % 2, numbers, repeated]
    return [float(value) for value in (*form, text.count("\n"), text.count("@"), *(w in words for w in NAMED))]


@dataclass(frozen=True, slots=True)
class Beginning:
    """A method on the first `EARLY` tokens of each argument."""

    method: Method
    seen: Evidence
    """The arguments without what follows these tokens."""
    family: Family = "learned"
    fitted: bool = True

    @property
    def name(self) -> str:
        return f"{self.method.name}, first {EARLY} tokens"

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        return self.method.fit(self.seen, roles, seed=seed)


def measured(of: Arguments, short: Evidence, states: States | None) -> Figures:
    """Returns what each rung adds, whole and early, on one target. Without states, those that read none."""
    table, whole = of.evidence.table, (*READ, *(WITH_STATES if states else ()))
    plain = [*control_methods(replace(of.evidence, table=replace(table, answers=None))), FormAndTerms()]
    evidence = replace(of.evidence, states=states)
    early = [Early("terms", EARLY), *(Beginning(method, short) for method in (WORDS, WORDS_AND_TERMS))]
    fits = crossfit(evidence, [*plain, *whole, *early], folds=FOLDS, seed=SEED)
    results = {result.name: result for result in method_results(table, fits.methods, seed=SEED)}
    rows: Figures = {}
    for method in (*whole, *early):
        controls = results[method.name].controls
        assert controls is not None, "what is learned is held against the controls"
        rows[method.name] = {
            "auroc": packed(results[method.name].auroc),
            "ece": packed(results[method.name].ece),
            "strongest": controls.strongest.name,
            "gain": packed(controls.strongest.difference),
            "ahead_of_all": controls.beaten,
            "over_words_and_terms": packed(auroc_gain(table, fits[method.name], fits[WORDS_AND_TERMS.name])),
        }
    return {
        "n": len(table),
        "groups": len(set(table.groups.tolist())),
        "methods": rows,
        "curve": curve(evidence, fits),
        "trait_left_out": trait_left_out(of, fits, (WORDS_AND_TERMS, WORDS)),
    }


def curve(evidence: Evidence, fits: CrossFit) -> Figures:
    """Returns the AUROC from fewer labels, and what all labels are ahead of them on the same test rows."""
    methods = [TERMS, WORDS_AND_TERMS]
    figures: Figures = {"all": {"labels": len(fits.roles[0].seen)}}
    for labels in LABELS:
        try:
            few = crossfit(evidence, methods, folds=FOLDS, seed=SEED, labels=labels)
        except RecordError:  # so few labels are of one kind
            continue
        results = {result.name: result for result in method_results(evidence.table, few.methods, seed=SEED)}
        figures[str(labels)] = {
            method.name: {
                "auroc": packed(results[method.name].auroc),
                "all_ahead": packed(auroc_gain(evidence.table, fits[method.name], few[method.name])),
            }
            for method in methods
        }
    return figures


@click.group()
def main() -> None:
    """Read states, measure."""


Store = click.argument("store", type=click.Path(exists=True, file_okay=False, path_type=Path))
Kept = click.option("--kept", type=click.Path(file_okay=False, path_type=Path), default=Path("out/debate-states"))


@main.command("states")
@Store
@Kept
def states_command(store: Path, kept: Path) -> None:
    """Reads every argument with the small model, behind the last lines of its prompt: reading the essay too costs four
    times as much."""
    from metaprobe.llms.text_pairs import PairReader

    kept.mkdir(parents=True, exist_ok=True)
    calls = arguments_in(store)
    reader = PairReader(MODEL)
    for start in range(0, len(calls), CHUNK):
        file = kept / f"{start}.npy"
        if not file.exists():
            part = calls[start : start + CHUNK]
            asked = [(prompt_of(call.messages) or "").rpartition("\n\n")[2] for call in part]
            np.save(file, reader.states(asked, [call.text for call in part], LAYERS, POSITIONS))


def begun_call(call: Call) -> Call:
    """Returns the call with its first tokens alone."""
    tokens, logprobs = call.tokens[:EARLY], None if call.logprobs is None else call.logprobs[:EARLY]
    return replace(call, text="".join(tokens), tokens=tokens, token_ids=None, logprobs=logprobs, top_logprobs=None)


def arguments_in(store: Path) -> list[Call]:
    """Returns the arguments of a store by their ids."""
    calls = [call for run in RunStore(store).runs(hidden=False) for call in run.calls if call.stage == ARGUMENT_STAGE]
    return sorted(calls, key=lambda call: call.id)


@main.command("measure")
@Store
@Kept
@click.option("--target", "targets", type=click.Choice(list(TARGETS)), multiple=True, help="Only this target.")
def measure_command(store: Path, kept: Path, targets: tuple[str, ...]) -> None:
    """Measures the rungs that read texts on each target; those that read states where all states are kept."""
    runs = list(RunStore(store).runs(hidden=False))
    short = [replace(run, calls=tuple(map(begun_call, run.calls))) for run in runs]
    row = {call.id: place for place, call in enumerate(arguments_in(store))}
    files = [kept / f"{start}.npy" for start in range(0, len(row), CHUNK)]
    values = np.concatenate([np.load(file) for file in files]) if all(file.exists() for file in files) else None
    for target in targets or TARGETS:
        source, label, good = TARGETS[target]
        of, begun = arguments_of(runs, source, label, good), arguments_of(short, source, label, good)
        if of is None or begun is None or of.lacking:
            continue
        click.echo(target)
        states = None
        if values is not None:
            ids = tuple(of.evidence.table.call_ids.tolist())
            states = InMemory(Activations(ids, values[[row[call_id] for call_id in ids]], LAYERS, POSITIONS))
        texts = read_figures(MEASURED)[STORE].get("texts", {})  # beside those of the study that reads no texts
        keep(STORE, {"targets": {}, "texts": texts | {target: measured(of, begun.evidence, states)}})


if __name__ == "__main__":
    main()
