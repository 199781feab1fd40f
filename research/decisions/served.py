"""Measures the numbers on the page of decisions: learning from decisions on people's ratings, answering many at once,
and whether the probabilities that are served come true.

python -m research.decisions.served learned --data DATA
python -m research.decisions.served speed
python -m research.decisions.served calibration --model qwen-coder-1.5b/model.gguf
python -m research.decisions.served page
"""

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import openai
import uvicorn
from starlette.requests import Request

import metaprobe
from metaprobe.eval.compare import auroc_gain
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval
from metaprobe.eval.metrics.calibration import ece_interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.production.http.app import create_app
from metaprobe.production.http.bodies import Scoring
from metaprobe.production.http.decisions import MEASURED_FIELD as FIELD
from metaprobe.production.http.decisions import DecisionDesk
from metaprobe.production.http.judges import load_judges
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, DecisionAnswer, Item, Label, Run
from metaprobe.training.evidence import Evidence
from metaprobe.training.ladder import SURE, USUAL_BAR, Bar
from metaprobe.training.methods import LogprobLadder
from metaprobe.training.recipes.train_quality import load_heads
from metaprobe.training.study import crossfit
from research.blocks import BAR_BEFORE, ROOT, keep_figures, markdown, older_ladder, packed, read_figures, shown, write

MEASURED = ROOT / "docs" / "measured" / "served_decisions.json"
READER = MEASURED.parent / "text_reader.json"
CALIBRATED = MEASURED.parent / "served_calibration.json"
PAGE = ROOT / "docs" / "research" / "rubric.md"
GUIDE = ROOT / "docs" / "text.md"
FIGURES = (
    ("auroc", "AUROC, rater known"),
    ("auroc_of_run_identity", "AUROC of the rater alone"),
    ("auroc_gain_over_strongest_control", "gain over the strongest control"),
    ("auroc_within_runs", "AUROC within a rater"),
    ("over_before", "AUROC less that of a ladder that is 99 % sure"),
)
"""Figure of the checkpoint, and what the page calls it: a rater is a run here, with a base rate of its own."""
REQUESTS, WORDS = 200, 200
MOST_NAMED = 4
"""Numbers that a predictor may read and have them named in the table."""
QUESTIONS = (1, 400)
RECORDED = ROOT / "recorded" / "states" / "qwen-coder-1.5b"
LISTS = ("places", "mmlu", "creak", "arithmetic")
"""Recorded answers whose served probabilities are held against their labels."""
RIGHT = {"type": "predicate", "name": "correct", "instructions": "The answer is right."}
SEED, RESAMPLES = 0, 1000


def rubric_runs(file: Path, source: str) -> Iterator[Run]:
    """Yields talks of LLM-Rubric with whether a person rated them 3 or 4, and gpt-3.5's levels of nine questions.

    The rater is the way of asking. Ratings of 0, which the files do not explain, are left out.
    """
    for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        if row["source"] != source or row["human"]["Q0"] < 1:
            continue
        name, answers = row["id"], []
        for question, of in row["judge"].items():
            shares = [p / sum(of["probs"]) for p in of["probs"]]
            told = {"options": tuple("1234"), "probabilities": tuple(shares), "source": row["judge_model"]}
            value = sum(level * p for level, p in enumerate(shares))
            answers.append(DecisionAnswer(call_id=name, question=question, kind="score", value=value, **told))
        label = Label(name, "correct", float(row["human"]["Q0"] >= 3), "human")
        call, item = Call(id=name, stage="answer", model="dialogue"), Item(name, "", group=row["text_id"])
        yield Run(name, "import", row["annotator"], item, (call,), labels=(label,), decision_answers=tuple(answers))


@click.group()
def main() -> None:
    """Measure, write the block."""


@main.command("learned")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
def learned_command(data: Path) -> None:
    """Trains on the decisions about synthetic and real talks."""
    figures = {}
    for name, source in (("synthetic", "synth"), ("real", "real")):
        with tempfile.TemporaryDirectory() as folder:
            RunStore(Path(folder) / "runs").append(rubric_runs(data / "llm_rubric_judge" / "data.jsonl", source))
            made = metaprobe.train_quality([Path(folder) / "runs"], out=Path(folder) / "out", reads="decisions")
            gain = over_before(Path(folder) / "runs")
        manifest = made.manifest
        figures[name] = {
            "n": manifest.training.n,
            "texts": manifest.training.groups,
            "sure": SURE,
            "over_before": gain,
            "read": list(manifest.contract["features"]),
            **{key: packed(manifest.metrics[key]) for key, _ in FIGURES if key in manifest.metrics},
        }
        click.echo(f"{name}: {figures[name]}")
        keep_figures(MEASURED, figures, "learned")


def over_before(store: Path) -> list[float]:
    """Returns the AUROC of the ladder less that of one with the bar of before, in the same folds, with its interval."""
    [evidence] = load_heads([store], ("correct",), decisions=True).values()
    assert isinstance(evidence, Evidence), "the target is 0 or 1"
    before, now = (
        LogprobLadder(bar=bar, name=str(bar), family="decision") for bar in (Bar(BAR_BEFORE, BAR_BEFORE), USUAL_BAR)
    )
    fits = crossfit(evidence, [before, now])
    return packed(auroc_gain(evidence.table, fits[now.name], fits[before.name]))


@main.command("speed")
def speed_command() -> None:
    """Times decision requests to a reader of words, without HTTP, in seconds of the processor."""
    rng, letters = np.random.default_rng(0), [f"word{i}" for i in range(4000)]
    with tempfile.TemporaryDirectory() as folder:
        answers = (" ".join([*rng.choice(letters, 40), "good" * (i % 2)]) for i in range(400))
        lines = [{"question": f"Is it {i}?", "answer": answer, "correct": i % 2} for i, answer in enumerate(answers)]
        file = Path(folder) / "lines.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        asked = [f"correct=Is the answer right in the sense {i}?" for i in range(max(QUESTIONS))]
        made = metaprobe.train_text(file, out=Path(folder) / "reader", folds=2, questions=asked)
        settings = Settings(checkpoint=made.path, auth=False)
        judges = load_judges(settings, Metrics())
        desk = DecisionDesk(settings, judges, None, Scoring())
        figures: dict[str, Any] = {"requests": REQUESTS, "words": WORDS}
        for count in QUESTIONS:
            figures[str(count)] = _timed(desk, [one.partition("=")[2] for one in asked[:count]], letters, rng)
    click.echo(figures)
    keep_figures(MEASURED, figures, "speed")


def _timed(desk: DecisionDesk, asked: list[str], letters: list[str], rng: np.random.Generator) -> dict[str, float]:
    request = Request({"type": "http", "headers": [], "query_string": b""})
    questions = [{"type": "predicate", "instructions": text} for text in asked]
    spent, answered, runs = [], 0, 0
    with asyncio.Runner() as runner:
        for _ in range(REQUESTS):
            said = [" ".join(rng.choice(letters, n)) for n in (WORDS // 4, WORDS - WORDS // 4)]
            given = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), said, strict=True)]
            body = json.dumps({"model": "mine", "input": given, "questions": questions}).encode()
            started = time.process_time()
            decision = runner.run(desk.answer(body, request))
            spent.append(time.process_time() - started)
            answered += sum(answer["type"] == "predicate" for answer in decision["answers"])
            runs += len(decision["metaprobe"]["verdicts"])
    figures = {f"p{q}_ms": round(float(np.percentile(spent, q)) * 1e3, 2) for q in (50, 99)}
    return figures | {"answered": answered / REQUESTS, "runs": runs / REQUESTS}


@main.command("calibration")
@click.argument("names", nargs=-1)
@click.option("--model", required=True, help="The model that answered; its tokenizer spells the recorded tokens.")
def calibration_command(names: tuple[str, ...], model: str) -> None:
    """Trains on half of the groups, serves, and asks the openai client about the others."""
    from transformers import AutoTokenizer

    from metaprobe.llms.weights import resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve(model).location)
    for name in names or LISTS:
        runs = list(RunStore(RECORDED / name).runs(hidden=False))
        groups = sorted({run.item.group for run in runs})
        half = set(np.random.default_rng(SEED).permutation(groups)[: len(groups) // 2].tolist())
        halves = [[run for run in runs if (run.item.group in half) is side] for side in (True, False)]
        learned, left_out = sorted(halves, key=len)
        asked = list(_served(learned, left_out, lambda token: str(tokenizer.decode([token]))))
        of, probability = [run for run, _ in asked], np.array([value for _, value in asked])
        y = np.array([run.label("correct", _answer(run).id) for run in of], dtype=np.int64)
        weights = cluster_weights([run.item.group for run in of], RESAMPLES, SEED)
        figures = {
            "learned_from": len(learned),
            "n": len(of),
            "groups": len({run.item.group for run in of}),
            "refused": len(left_out) - len(of),
            "right": round(float(y.mean()), 4),
            "ece": packed(ece_interval(y, probability, weights)),
            "auroc": packed(interval(auroc, y, probability, weights)),
        }
        click.echo(f"{name}: {figures}")
        keep_figures(CALIBRATED, figures, name)


def _answer(run: Run) -> Call:
    return next(call for call in run.calls if call.stage == "answer")


def _served(
    learned: Sequence[Run], left_out: Sequence[Run], piece: Callable[[int], str]
) -> Iterator[tuple[Run, float]]:
    """Yields the runs that were left out, with the probability that the server gives to their answers."""
    with tempfile.TemporaryDirectory() as folder:
        RunStore(Path(folder) / "runs").append(learned)
        made = metaprobe.train_quality([Path(folder) / "runs"], out=Path(folder) / "out", stage="answer")
        with (
            _serving(Settings(checkpoint=made.path, auth=False)) as url,
            openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client,
        ):
            for run in left_out:
                call = _answer(run)
                assert call.token_ids is not None, "answers of a local model"
                assert call.logprobs is not None, "answers with log-probabilities"
                tokens = zip(map(piece, call.token_ids.tolist()), call.logprobs.tolist(), strict=True)
                choice = {
                    "index": 0,
                    "finish_reason": call.finish_reason,
                    "message": {"role": "assistant", "content": call.text},
                    "logprobs": {"content": [{"token": token, "logprob": value} for token, value in tokens]},
                }
                response = {"object": "chat.completion", "model": call.model, "choices": [choice]}
                said = {"role": "assistant", "content": call.text, FIELD: {"response": response}}
                given: Any = [{"role": "user", "content": run.item.question}, said]
                (answer,) = client.decisions.create(model="mine", input=given, questions=[RIGHT]).answers
                if answer.type == "predicate":
                    yield run, answer.probability


@contextmanager
def _serving(settings: Settings) -> Iterator[str]:
    """Yields the address of the server, which runs in a thread on a free port."""
    server = uvicorn.Server(uvicorn.Config(create_app(settings), port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()


@main.command("page")
def page_command() -> None:
    """Writes the blocks into docs/research/rubric.md and docs/text.md."""
    figures = read_figures(MEASURED)
    rows = []
    for name, of in figures["learned"].items():
        cells = [shown(of.get(key)) for key, _ in FIGURES]
        read = of["read"] if len(of["read"]) <= MOST_NAMED else [f"{len(of['read'])} numbers"]
        rows.append([name, f"{of['n']} ({of['texts']})", ", ".join(read), *cells])
    head = ["talks", "ratings (texts)", "reads", *(name for _, name in FIGURES)]
    write(PAGE, "learned", [*markdown(head, rows), "", *older_ladder(figures["learned"])])
    speed = figures["speed"]
    timed = [
        f"{count} question{'s' * (count > 1)} {of['p50_ms']} ms (median; p99 {of['p99_ms']}) and {of['runs']:g} run"
        for count, of in ((count, speed[str(count)]) for count in QUESTIONS)
    ]
    calibrated = read_figures(CALIBRATED)
    told = ", ".join(f"{name} {shown(of['ece'])}" for name, of in calibrated.items())
    fewest = min(of["n"] for of in calibrated.values())
    came_true = f"ECE of served predicates on questions left out, {fewest:,} or more a set: {told}."
    asked = f"A request to a reader of words, {speed['words']} words, without HTTP, on a busy processor"
    write(GUIDE, "speed", [f"{asked}: {'; '.join(timed)}. {of_adapter()}", "", came_true, ""])


def of_adapter() -> str:
    """Returns what a decision by an adapter costs, and what it is worth beside words."""
    of = read_figures(READER)["adapter speed"]
    own, base = of["adapter"], of["adapter"]["base"]
    aurocs, gain = own["beside words"].partition("], p")[0].split(", ", 1)
    return (
        f"An adapter on {own['depth']} of {base['layers']} layers of {base['model']}, {own['weights']}: "
        f"{own['p50_ms']:.0f} ms of one core ({of['machine']}) for {own['tokens']} tokens, {of['ratio']:,} times the "
        f"words; all layers in float32 {of['whole']['p50_ms']:.0f} ms. Trained on {own['parts']['train']:,} short "
        f"answers, on {own['parts']['test']} others: {aurocs} of answer TF-IDF, {gain}]."
    )


if __name__ == "__main__":
    main()
