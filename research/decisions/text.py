"""Measures a text reader on labelled texts: words, states of the embedded model, both; question, task left out.

    python -m research.decisions.text states [NAME]... --data DATA   # reads some texts with the model, resumable
    python -m research.decisions.text measure [NAME]... --data DATA
    python -m research.decisions.text page

Each number is of outer folds by group (question, conversation, argument, essay). `task left out`: see `SETS`.
"""

import gzip
import json
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.eval.compare import Judged, auroc_gain, method_results
from metaprobe.eval.controls import PROMPT
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.table import AnswerTable, bare_table
from metaprobe.llms.text_pairs import PairReader
from metaprobe.probes.adapter import IDS, MASK, AdapterProbe
from metaprobe.probes.text import TextReader
from metaprobe.records.activations import Activations
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import roles_without
from metaprobe.training.methods import TextWords
from metaprobe.training.recipes.text import BOTH, POSITIONS, STATES, WORDS, TextMethod, TextRows
from metaprobe.training.states import InMemory
from metaprobe.training.study import CrossFit, crossfit
from research.blocks import markdown, write

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "docs" / "measured" / "text_reader.json"
PAGE = ROOT / "docs" / "text.md"
MODEL, LAYERS = "smollm2-135m", "12,16,20"
READ = 600
"""Texts of a set that are read with the model, whole groups at a time: a core reads about ten a second."""
CHUNK = 32
TIMED, ADAPTED, TOKENS = 300, 60, 200
"""Decisions by words and by an adapter that are timed, and the tokens that an adapter reads in each."""
FOLDS, SEED = 5, 0
LENGTH = "length of the answer"


@dataclass(frozen=True, slots=True)
class Text:
    """A labelled answer."""

    question: str
    answer: str
    y: int
    group: str
    task: str


def _rows(data: Path, name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(data / name, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def truthfulqa(data: Path) -> list[Text]:
    """Whether an answer to a question of TruthfulQA is true; a task is a category of questions."""
    categories = {row["question"]: row["category"] for row in _rows(data, "truthfulqa/data.jsonl.gz")}
    rows = _rows(data, "truthfulqa/truth_judgements.jsonl.gz")
    return [
        Text(r["question"], r["answer"], r["truthful"], r["question"], categories.get(r["question"], ""))
        for r in rows
        if r["answer"].strip()
    ]


def tutor(trait: str) -> Callable[[Path], list[Text]]:
    """Whether a tutor's reply has a trait (Yes against the rest)."""

    def read(data: Path) -> list[Text]:
        rows = _rows(data, "mrbench_tutor_feedback/data.jsonl.gz")
        return [
            Text(r["conversation"], r["response"], int(r["annotation"][trait] == "Yes"), r["conversation_id"], "")
            for r in rows
        ]

    return read


def critical_questions(data: Path) -> list[Text]:
    """Whether a critical question to an argument is useful; a task is a debate."""
    rows = _rows(data, "critical_questions/data.jsonl.gz")
    return [
        Text(r["argument"], r["critical_question"], int(r["label"] == "Useful"), r["intervention_id"], r["dataset"])
        for r in rows
    ]


def essays(trait: str) -> Callable[[Path], list[Text]]:
    """Whether an essay has at least 4 of 5 in a trait."""

    def read(data: Path) -> list[Text]:
        rows = _rows(data, "leaf_essay_feedback/data.jsonl.gz")
        return [Text(r["title"], r["essay"], int(r["traits"][trait] >= 4), r["id"], "") for r in rows]

    return read


def recorded(data: Path) -> list[Text]:
    """Whether the 0.5B coder's recorded answer is right; a task is one of the task families."""
    from metaprobe.training.texts import load_texts

    texts = load_texts([ROOT / "recorded" / "breadth" / "qwen-coder-0.5b"])
    table = texts.table
    of_row = zip(
        texts.prompts, texts.answers, table.y.tolist(), table.groups.tolist(), table.tasks.tolist(), strict=True
    )
    return [Text(*row) for row in of_row]


SETS: Mapping[str, Callable[[Path], list[Text]]] = {
    "TruthfulQA, true": truthfulqa,
    "MRBench, guidance": tutor("Providing_Guidance"),
    "MRBench, actionable": tutor("Actionability"),
    "critical questions, useful": critical_questions,
    "LEAF essays, clear topic": essays("clarity_of_topic"),
    "recorded answers, right": recorded,
}


def some(texts: list[Text]) -> list[Text]:
    """Returns about `READ` of the texts, of whole groups drawn at random."""
    groups = sorted({text.group for text in texts})
    order = np.random.default_rng(SEED).permutation(len(groups))
    place = {groups[i]: rank for rank, i in enumerate(order.tolist())}
    return sorted(texts, key=lambda text: (place[text.group], text.answer))[:READ]


def table_of(texts: list[Text]) -> AnswerTable:
    """Returns the texts as a table."""
    table = bare_table(np.array([t.y for t in texts]), np.array([t.group for t in texts]))
    return replace(
        table,
        questions=np.array([t.question for t in texts]),
        tasks=np.array([t.task for t in texts]),
    )


def evidence_of(texts: list[Text]) -> Evidence:
    """Returns the texts as evidence, without features."""
    return Evidence(table_of(texts), np.empty((len(texts), 0), dtype=np.float32), (), "")


Figures = dict[str, Any]


def packed(value: Interval) -> list[float]:
    """Returns estimate, low and high end."""
    return [round(float(v), 4) for v in (value.estimate, value.low, value.high)]


def gains(evidence: Evidence, fits: CrossFit, names: list[str], of: str) -> Figures:
    """Returns the AUROC of each method and its paired gain over one of them."""
    results = method_results(evidence.table, [fits[name] for name in names])
    return {
        "auroc": {result.name: packed(result.auroc) for result in results},
        "gain": {name: packed(auroc_gain(evidence.table, fits[name], fits[of])) for name in names if name != of},
    }


def task_left_out(texts: list[Text], evidence: Evidence, rows: TextRows) -> Figures | None:
    """Returns the AUROC of words on tasks left out: the mean over those with 20 answers of either kind."""
    table, method = evidence.table, TextMethod(WORDS, rows)
    tasks = [
        task
        for task in np.unique(table.tasks).tolist()
        if min(np.bincount(table.y[table.tasks == task], minlength=2)) >= 20
    ]
    if len(tasks) < 2:
        return None
    reached = []
    for task in tasks:
        held = np.flatnonzero(table.tasks == task)
        roles = roles_without(held, table.groups.tolist(), table.y, seed=SEED)
        scores = method.fit(evidence, roles, seed=SEED).score(held)
        weights = cluster_weights(table.groups[held].tolist(), 400, SEED)
        reached.append(packed(interval(auroc, table.y[held], scores, weights)))
    means = [value[0] for value in reached]
    spread = float(np.std(means, ddof=1) / np.sqrt(len(means)))
    return {
        "tasks": len(tasks),
        "auroc": float(np.mean(means)),
        "se": spread,
        "above_chance": sum(v[1] > 0.5 for v in reached),
    }


@click.group()
def main() -> None:
    """Read states, measure, write the page."""


Data = click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
Kept = click.option("--kept", type=click.Path(path_type=Path), default=ROOT / "out" / "text-states")


@main.command("states")
@click.argument("names", nargs=-1)
@Data
@Kept
def states_command(names: tuple[str, ...], data: Path, kept: Path) -> None:
    """Reads some texts of each set with the embedded model; goes on where it was stopped."""
    kept.mkdir(parents=True, exist_ok=True)
    reader = PairReader(MODEL)
    for name in names or SETS:
        texts = some(SETS[name](data))
        for start in range(0, len(texts), CHUNK):
            file = kept / f"{name}-{start}.npy"
            if not file.exists():
                part = texts[start : start + CHUNK]
                values, _ = reader.states([t.question for t in part], [t.answer for t in part], LAYERS, POSITIONS)
                np.save(file, values)
                click.echo(f"{name} {start + len(part)} of {len(texts)}")


def read_again(name: str, kept: Path, n: int) -> InMemory | None:
    """Returns the states that were read, None unless all of them were."""
    files = [kept / f"{name}-{start}.npy" for start in range(0, n, CHUNK)]
    if not all(file.exists() for file in files):
        return None
    values = np.concatenate([np.load(file) for file in files])
    layers = tuple(map(int, LAYERS.split(",")))
    return InMemory(Activations(tuple(map(str, range(n))), values, layers, POSITIONS))


@main.command("measure")
@click.argument("names", nargs=-1)
@Data
@Kept
@click.option("--only-states", is_flag=True)
def measure_command(names: tuple[str, ...], data: Path, kept: Path, only_states: bool) -> None:
    """Fits every rung in folds on each set, and keeps the figures."""
    for name in names or SETS:
        click.echo(name)
        texts = SETS[name](data)
        here = {} if only_states else measured_words(texts)
        few = some(texts)
        if (states := read_again(name, kept, len(few))) is not None:
            here["states"] = measured_states(few, states)
        figures: Figures = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
        figures[name] = figures.get(name, {}) | here
        MEASURED.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def measured_words(texts: list[Text]) -> Figures:
    """Returns what words are worth on all texts, beside the question's words and the answer's length."""
    evidence = evidence_of(texts)
    rows = TextRows.of([t.question for t in texts], [t.answer for t in texts])
    prompt = TextWords(PROMPT, ("questions",))
    fits = crossfit(evidence, [prompt, TextMethod(WORDS, rows)], folds=FOLDS, seed=SEED)
    table = evidence.table
    length = -np.array([len(t.answer.split()) for t in texts], dtype=np.float64)
    length = length if auroc(table.y, length) > 0.5 else -length
    long = Judged(LENGTH, "plain", 1 / (1 + np.exp(-length / 100)), length, 1.0)
    words = fits[WORDS]
    weights = cluster_weights(table.groups.tolist(), 400, SEED)
    return {
        "n": len(texts),
        "groups": len(set(table.groups.tolist())),
        "positive": round(float(table.y.mean()), 4),
        **gains(evidence, fits, [WORDS, prompt.name], prompt.name),
        "over_length": packed(auroc_gain(table, words, long)),
        "length": packed(interval(auroc, table.y, length, weights)),
        "ece": packed(method_results(table, [words])[0].ece),
        "task_left_out": task_left_out(texts, evidence, rows),
    }


def measured_states(texts: list[Text], states: InMemory) -> Figures:
    """Returns words, states and both on those texts that were read."""
    evidence = evidence_of(texts)
    rows = TextRows.of([t.question for t in texts], [t.answer for t in texts])
    methods = [TextMethod(WORDS, rows), TextMethod(STATES, rows, states), TextMethod(BOTH, rows, states)]
    fits = crossfit(evidence, methods, folds=FOLDS, seed=SEED)
    return {"n": len(texts), **gains(evidence, fits, [WORDS, STATES, BOTH], WORDS)}


@main.command("speed")
@click.argument("checkpoint", type=click.Path(exists=True))
@click.option(
    "--adapter",
    type=click.Path(exists=True),
    help="An adapter: it is timed in turn with the words, and kept beside them.",
)
@Data
def speed_command(checkpoint: str, adapter: str | None, data: Path) -> None:
    """Times decisions by words, one at a time, on texts of 200 words, in seconds of the processor."""
    texts = SETS["MRBench, guidance"](data)[:TIMED]
    reader, probe = TextReader.load(checkpoint), AdapterProbe.load(adapter) if adapter else None
    spent: dict[str, list[float]] = {"words": [], "adapter": []}

    def timed(name: str, work: Callable[[], object]) -> None:
        started = time.process_time()
        work()
        spent[name].append(time.process_time() - started)

    for number, text in enumerate(texts):
        question, answer = " ".join(text.question.split()[:150]), " ".join((text.answer + text.question).split()[:50])
        timed("words", partial(reader.predict, question, answer))
        if probe is not None and number % (TIMED // ADAPTED) == 0:
            ids = np.resize(np.array(probe.encoder.ids([question + answer])), (1, TOKENS))
            timed("adapter", partial(probe.checkpoint.run, {IDS: ids, MASK: np.ones_like(ids)}))
    figures = json.loads(MEASURED.read_text())
    words = percentiles(spent["words"])
    if probe is None:
        figures["speed"] = words
    else:
        contract, own = probe.checkpoint.manifest.contract, percentiles(spent["adapter"])
        figures["adapter speed"] = {
            "words": words,
            "adapter": {**own, "tokens": TOKENS, "base": contract["base"]["model"], "weights": contract["precision"]},
            "ratio": round(own["p50_ms"] / words["p50_ms"]),
            "machine": machine(),
        }
    MEASURED.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Returns how many decisions were timed, and their median and slowest hundredth in milliseconds."""
    return {
        "n": len(seconds),
        **{f"p{q}_ms": round(float(np.percentile(seconds, q)) * 1e3, 2) for q in (50, 99)},
    }


def machine() -> str:
    """Returns the processor's name, as Linux gives it."""
    told = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return told[1] if told else platform.processor()


def _cell(value: list[float] | None, *, signed: bool = False) -> str:
    style = "{:+.3f} [{:+.3f}, {:+.3f}]" if signed else "{:.3f} [{:.3f}, {:.3f}]"
    return "-" if value is None else style.format(*value)


@main.command("page")
def page_command() -> None:
    """Writes the tables into docs/tables/text.md."""
    figures = json.loads(MEASURED.read_text(encoding="utf-8"))
    prompt, rows, read = PROMPT, [], []
    for name in (name for name in SETS if name in figures):
        of = figures[name]
        task = of["task_left_out"]
        left_out = (
            "-" if task is None else f"{task['auroc']:.3f}, {task['above_chance']} of {task['tasks']} above chance"
        )
        size = f"{of['n']} ({of['groups']})"
        rows.append(
            [name, size, *(_cell(of["auroc"][k]) for k in (prompt, WORDS)), _cell(of["over_length"], signed=True)]
        )
        rows[-1] += [left_out, _cell(of["ece"])]
        if "states" in of:
            states = of["states"]
            gains_ = (_cell(states["gain"][k], signed=True) for k in (STATES, BOTH))
            read.append([name, str(states["n"]), *(_cell(states["auroc"][k]) for k in (WORDS, STATES, BOTH)), *gains_])
    head = [
        "set",
        "texts (groups)",
        "words of the question alone",
        "words",
        "words over length",
        "task left out",
        "ECE",
    ]
    lines = markdown(head, rows)
    if read:
        head = ["set", "texts", WORDS, STATES, BOTH, "states over words", "both over words"]
        lines += ["", f"States of {MODEL}, layers {LAYERS}, last token or mean, on some of the texts:", ""]
        lines += markdown(head, read)
    if (speed := figures.get("speed")) is not None:
        p50, p99 = speed["p50_ms"], speed["p99_ms"]
        lines += [
            "",
            f"One decision by words on 200 words: {p50:.2f} ms (median; p99 {p99:.2f}) of a processor's time.",
        ]
    write(PAGE, "text-ladder", [*lines, ""])


if __name__ == "__main__":
    main()
