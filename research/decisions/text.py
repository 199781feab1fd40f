"""Measures a text reader on labelled texts by words; reads them with models for `research.decisions.few`.

    python -m research.decisions.text measure [NAME]... --data DATA
    python -m research.decisions.text page
    python -m research.decisions.text states [NAME]... --data DATA [--encoder FOLDER]   # some texts, resumable
    python -m research.decisions.text ladder [NAME]... --data DATA   # what these states add to the words

Each number is of outer folds by group (question, conversation, argument, essay). `task left out`: see `SETS`.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.page import machine
from metaprobe.checkpoints.checkpoint import GraphSession
from metaprobe.eval.answer_table import bare_table
from metaprobe.eval.compare import Judged, auroc_gain, method_results
from metaprobe.eval.controls import ANSWER, PROMPT
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.llms.hidden_capture import layer_hooks
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.text_pairs import PairReader
from metaprobe.llms.weights import encode_text
from metaprobe.probes.adapter import IDS, MASK, AdapterProbe, padded_batches
from metaprobe.probes.text import TextReader
from metaprobe.records.activations import Activations, to_float16
from metaprobe.records.types import Message
from metaprobe.training.adapter import AdapterScorer, adapter_graph, load_base
from metaprobe.training.calibrators import Platt
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import join_groups, roles_without
from metaprobe.training.methods import TextWords
from metaprobe.training.recipes.train_text import BOTH, STATES, WORDS, TextMethod, TextRows
from metaprobe.training.stored_states import InMemory
from metaprobe.training.study import CrossFit, crossfit
from research.blocks import (
    ROOT,
    add_figures,
    behind,
    columns,
    keep_figures,
    markdown,
    packed,
    read_figures,
    shown,
    signed,
    write,
)
from research.quality.data import lines

MEASURED = ROOT / "docs" / "measured" / "text_reader.json"
PAGE = ROOT / "docs" / "text.md"
MODEL, LAYERS, ENCODER = "smollm2-135m", "12,16", "encoder"
READ = 1300
"""Texts of a set that are read with the models, whole groups at a time: 1,000 labels remain to learn from beside a fold
of test texts. Of the essays, which are long and share no question, fewer were read."""
CHUNK, TOGETHER = 32, 16
TIMED, ADAPTED, TOKENS = 300, 60, 200
"""Decisions by words and by an adapter that are timed, and the tokens that an adapter reads in each."""
FOLDS, SEED = 5, 0
LENGTH = "length of the answer"
BESIDE_WORDS = f"adapter probe after the answer beats {ANSWER}"


@dataclass(frozen=True, slots=True)
class Text:
    """A labelled answer."""

    question: str
    answer: str
    y: int
    group: str
    task: str


def truthfulqa(data: Path) -> list[Text]:
    """Whether an answer to a question of TruthfulQA is true; a task is a category of questions."""
    categories = {row["question"]: row["category"] for row in lines(data / "truthfulqa" / "data.jsonl.gz")}
    rows = lines(data / "truthfulqa" / "truth_judgements.jsonl.gz")
    return [
        Text(r["question"], r["answer"], r["truthful"], r["question"], categories.get(r["question"], ""))
        for r in rows
        if r["answer"].strip()
    ]


def tutor(trait: str) -> Callable[[Path], list[Text]]:
    """Whether a tutor's reply has a trait (Yes against the rest)."""

    def read(data: Path) -> list[Text]:
        rows = lines(data / "mrbench_tutor_feedback" / "data.jsonl.gz")
        return [
            Text(r["conversation"], r["response"], int(r["annotation"][trait] == "Yes"), r["conversation_id"], "")
            for r in rows
        ]

    return read


def critical_questions(data: Path) -> list[Text]:
    """Whether a critical question to an argument is useful; a task is a debate."""
    rows = lines(data / "critical_questions" / "data.jsonl.gz")
    return [
        Text(r["argument"], r["critical_question"], int(r["label"] == "Useful"), r["intervention_id"], r["dataset"])
        for r in rows
    ]


def essays(trait: str) -> Callable[[Path], list[Text]]:
    """Whether an essay has at least 4 of 5 in a trait."""

    def read(data: Path) -> list[Text]:
        rows = lines(data / "leaf_essay_feedback" / "data.jsonl.gz")
        return [Text(r["title"], r["essay"], int(r["traits"][trait] >= 4), r["id"], "") for r in rows]

    return read


def recorded(data: Path) -> list[Text]:
    """Whether the 0.5B coder's recorded answer is right; a task is one of the task families."""
    from metaprobe.training.text_data import load_texts

    texts = load_texts([ROOT / "recorded" / "breadth" / "qwen-coder-0.5b"])
    table = texts.table
    columns = (table.y, table.groups, table.tasks)
    return [Text(*row) for row in zip(texts.prompts, texts.answers, *(one.tolist() for one in columns), strict=True)]


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


def evidence_of(texts: list[Text]) -> Evidence:
    """Returns the texts as evidence, without features."""
    table = bare_table(np.array([t.y for t in texts]), np.array([t.group for t in texts]))
    table = replace(table, questions=np.array([t.question for t in texts]), tasks=np.array([t.task for t in texts]))
    return Evidence(table, np.empty((len(texts), 0), dtype=np.float32), (), "")


Figures = dict[str, Any]


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
@click.option("--encoder", default="", help="Folder of a sentence encoder, read in place of the embedded model.")
def states_command(names: tuple[str, ...], data: Path, kept: Path, encoder: str) -> None:
    """Reads some texts of each set with a model, all sets by turns; goes on where it was stopped."""
    folder = kept / (ENCODER if encoder else MODEL)
    folder.mkdir(parents=True, exist_ok=True)
    reader = PairReader(encoder or MODEL)
    layers = reader.layers("every:2" if encoder else LAYERS)
    (folder / "reading.json").write_text(json.dumps({"layers": layers, "positions": reader.positions}))
    if isinstance(reader.llm, LocalLLM):  # nothing above the last layer need be computed
        network = reader.llm.model
        network.model.layers = network.model.layers[: layers[-1]]
        network.config.num_hidden_layers = layers[-1]
    sets = {name: some(SETS[name](data)) for name in names or SETS}
    for start in range(0, max(map(len, sets.values())), CHUNK):
        for name, texts in sets.items():
            file, part = part_of(folder, name, start), texts[start : start + CHUNK]
            if part and not file.exists():
                np.save(file, read_states(reader, part, layers))
                click.echo(f"{name} {start + len(part)} of {len(texts)}")


def read_states(reader: PairReader, texts: list[Text], layers: Sequence[int]) -> NDArray[np.float16]:
    """Returns the states (n, layers, positions, D) as `PairReader.states` does, up to rounding in bfloat16.

    Of a causal model some texts of like length are read together, padded on the right.
    """
    questions, answers = [text.question for text in texts], [text.answer for text in texts]
    if not isinstance(reader.llm, LocalLLM):
        return reader.states(questions, answers, layers, reader.positions)
    llm = reader.llm
    prompts = [llm.encode((Message("user", question),)) for question in questions]
    told = [encode_text(llm.tokenizer, answer) for answer in answers]
    rows: dict[int, NDArray[np.float16]] = {}
    for batch, inputs in padded_batches([[*asked, *own] for asked, own in zip(prompts, told, strict=True)], TOGETHER):
        spans = [(len(prompts[i]), len(prompts[i]) + len(told[i])) for i in batch]
        rows.update(zip(batch.tolist(), read_answers(llm, inputs, spans, layers), strict=True))
    return np.stack([rows[i] for i in range(len(texts))])


@torch.inference_mode()
def read_answers(
    llm: LocalLLM, inputs: Mapping[str, NDArray[np.int64]], spans: Sequence[tuple[int, int]], layers: Sequence[int]
) -> list[NDArray[np.float16]]:
    """Returns the states (layers, positions, D) of each answer of a batch: at its last token, and the mean."""
    held: list[torch.Tensor] = []

    def keep(_: int, hidden: torch.Tensor) -> None:
        own = [hidden[row, start:end].float() for row, (start, end) in enumerate(spans)]
        held.append(torch.stack([torch.stack([one[-1], one.mean(dim=0)]) for one in own]))

    ids, mask = (torch.tensor(inputs[name], device=llm.model.device) for name in (IDS, MASK))
    with layer_hooks(llm.model, layers, keep):
        llm.model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)
    return list(to_float16(torch.stack(held, dim=1).cpu().numpy()))


def source_of(name: str) -> str:
    """Returns the source of a set. Two sets of one source are labels of the same texts."""
    return name.partition(",")[0]


def part_of(folder: Path, name: str, start: int) -> Path:
    """Returns the file of some states; sets of one source share them."""
    return folder / f"{source_of(name)}-{start}.npy"


def read_again(name: str, folder: Path) -> InMemory | None:
    """Returns the states that were read of the first texts; None where there are none."""
    files = []
    while (file := part_of(folder, name, CHUNK * len(files))).exists():
        files.append(file)
    if not files:
        return None
    values, told = np.concatenate([np.load(file) for file in files]), json.loads((folder / "reading.json").read_text())
    names = tuple(map(str, range(len(values))))
    return InMemory(Activations(names, values, tuple(told["layers"]), tuple(told["positions"])))


@main.command("measure")
@click.argument("names", nargs=-1)
@Data
def measure_command(names: tuple[str, ...], data: Path) -> None:
    """Fits the words in folds on each set, and keeps the figures."""
    for name in names or SETS:
        click.echo(name)
        add_figures(MEASURED, measured_words(SETS[name](data)), name)


@main.command("ladder")
@click.argument("names", nargs=-1)
@Data
@Kept
def ladder_command(names: tuple[str, ...], data: Path, kept: Path) -> None:
    """Fits words, those of the question alone, the embedded model's states and both in the same folds."""
    for name in names or SETS:
        states = read_again(name, kept / MODEL)
        if states is None:
            raise click.ClickException(f"nothing of {name} was read into {kept / MODEL}: run the command states first")
        texts = joined(some(SETS[name](data))[: len(states.activations.values)])
        evidence, rows = evidence_of(texts), TextRows.of([t.question for t in texts], [t.answer for t in texts])
        prompt = TextWords(PROMPT, ("questions",))
        methods = [prompt, TextMethod(WORDS, rows), *(TextMethod(way, rows, states) for way in (STATES, BOTH))]
        fits = crossfit(evidence, methods, folds=FOLDS, seed=SEED)
        over = {way: gains(evidence, fits, [PROMPT, WORDS, STATES, BOTH], way) for way in (WORDS, PROMPT)}
        stronger = max(over, key=lambda way: over[WORDS]["auroc"][way][0])
        figures = {"n": len(texts), "groups": len({t.group for t in texts}), "stronger": stronger, **over[WORDS]}
        add_figures(MEASURED, {"ladder": figures | {"over_stronger": over[stronger]["gain"][BOTH]}}, name)
        click.echo(name)


def joined(texts: list[Text]) -> list[Text]:
    """Returns the texts with the groups that ask the same question joined, as `train text` joins them."""
    groups, _ = join_groups([text.group for text in texts], [text.question for text in texts])
    return [replace(text, group=group) for text, group in zip(texts, groups.tolist(), strict=True)]


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


@main.command("speed")
@click.argument("checkpoint", type=click.Path(exists=True))
@click.option(
    "--adapter",
    type=click.Path(exists=True),
    help="An adapter: it is timed in turn with the words and with its whole base in float32, and kept beside them.",
)
@Data
def speed_command(checkpoint: str, adapter: str | None, data: Path) -> None:
    """Times decisions by words, one at a time, on texts of 200 words, in seconds of the processor."""
    texts = SETS["MRBench, guidance"](data)[:TIMED]
    reader, probe = TextReader.load(checkpoint), AdapterProbe.load(adapter) if adapter else None
    whole = whole_base(probe) if probe else None
    spent: dict[str, list[float]] = {"words": [], "adapter": [], "whole": []}

    def timed(name: str, work: Callable[[], object]) -> None:
        started = time.process_time()
        work()
        spent[name].append(time.process_time() - started)

    for number, text in enumerate(texts):
        question, answer = " ".join(text.question.split()[:150]), " ".join((text.answer + text.question).split()[:50])
        timed("words", partial(reader.predict, question, answer))
        if probe is not None and whole is not None and number % (TIMED // ADAPTED) == 0:
            ids = np.resize(np.array(probe.encoder.ids([question + answer])), (1, TOKENS))
            for kind, graph in (("adapter", probe.checkpoint), ("whole", whole)):
                timed(kind, partial(graph.run, {IDS: ids, MASK: np.ones_like(ids)}))
    words = percentiles(spent["words"])
    if probe is None:
        keep_figures(MEASURED, words, "speed")
    else:
        contract, own = probe.checkpoint.manifest.contract, percentiles(spent["adapter"])
        figures = {
            "words": words,
            "adapter": {
                **own,
                "tokens": TOKENS,
                "base": contract["base"],
                "depth": contract["depth"],
                "weights": contract["precision"],
                "parts": contract["parts"],
                "beside words": probe.checkpoint.manifest.audits[BESIDE_WORDS].detail,
            },
            "whole": percentiles(spent["whole"]),
            "ratio": round(own["p50_ms"] / words["p50_ms"]),
            "machine": machine()["cpu"],
        }
        keep_figures(MEASURED, figures, "adapter speed")


def whole_base(probe: AdapterProbe) -> GraphSession:
    """Returns all layers of the adapter's base in float32, with a head that knows nothing."""
    from torch import nn

    decoder = load_base(probe.checkpoint.manifest.contract["base"]["model"]).decoder
    scorer = AdapterScorer(decoder, nn.Linear(decoder.config.hidden_size, 1)).float().eval()
    return GraphSession(adapter_graph(scorer, {"after": Platt(1.0, 0.0)}))


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Returns how many decisions were timed, and their median and slowest hundredth in milliseconds."""
    return {
        "n": len(seconds),
        **{f"p{q}_ms": round(float(np.percentile(seconds, q)) * 1e3, 2) for q in (50, 99)},
    }


@main.command("page")
def page_command() -> None:
    """Writes the tables into docs/tables/text.md."""
    figures = read_figures(MEASURED)

    def left_out(task: Figures | None) -> str:
        return f"{task['auroc']:.3f}, {task['above_chance']} of {task['tasks']} above chance" if task else "-"

    cells: dict[str, Callable[[str, Figures], object]] = {
        "set": lambda name, of: name,
        "texts (groups)": lambda name, of: f"{of['n']} ({of['groups']})",
        "words of the question alone": lambda name, of: shown(of["auroc"][PROMPT]),
        "words": lambda name, of: shown(of["auroc"][WORDS]),
        "words over length": lambda name, of: signed(of["over_length"]),
        "task left out": lambda name, of: left_out(of["task_left_out"]),
        "ECE": lambda name, of: shown(of["ece"]),
    }
    lines = columns([(name, figures[name]) for name in SETS if name in figures], cells)
    read = {name: figures[name]["ladder"] for name in SETS if "ladder" in figures.get(name, {})}
    lines += ["", f"What the states of {MODEL} (layers {LAYERS}) add, read over question and answer:", ""]
    of_sets = [
        [
            f"{name} ({of['n']}, {of['groups']})",
            *(shown(of["auroc"][way]) for way in (PROMPT, WORDS, STATES, BOTH)),
            *(signed(gain) for gain in (of["gain"][BOTH], of["over_stronger"])),
        ]
        for name, of in read.items()
    ]
    head = ["set (texts, groups)", "words of the question alone", WORDS, STATES, BOTH, f"{BOTH} over words"]
    lines += markdown([*head, "over the stronger of the two"], of_sets)
    if (speed := figures.get("speed")) is not None:
        p50, p99 = speed["p50_ms"], speed["p99_ms"]
        lines += [
            "",
            f"One decision by words on 200 words: {p50:.2f} ms (median; p99 {p99:.2f}) of a processor's time.",
        ]
    write(PAGE, "text-ladder", [*lines, ""])
    write(PAGE, "text-states", [in_short(list(read.values())), ""])


def in_short(ladders: Sequence[Figures]) -> str:
    """Returns the sentence of what states add to the words."""
    gains, most = [of["over_stronger"] for of in ladders], max(of["n"] for of in ladders)
    won = [mean for mean, low, _ in gains if low > 0]
    return (
        f"On at most {most:,} texts of a set, words with the states of `{MODEL}` are ahead of the words, and of the "
        f"question's words alone, by the interval, on {len(won)} of {len(gains)} sets of labels (AUROC "
        f"{min(won):+.3f} to {max(won):+.3f}), and behind on {behind(gains)} ([every set](tables/text.md))."
    )


if __name__ == "__main__":
    main()
