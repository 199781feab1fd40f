"""Collects the recorded runs of every system again, and packs them small.

    python -m research.stores.collect --models MODELS --data DATA --out out/recorded [NAME ...]

MODELS holds `qwen-coder-0.5b/model.gguf` and `qwen-coder-1.5b/model.gguf`; DATA the data sets. Each line below is one
`metaprobe collect`; a shared cache answers what an earlier line has asked already. Resumes where it was stopped. A line
with `vllm:` needs the interpreter of an environment with vLLM (docs/engines.md).
"""

import dataclasses
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from metaprobe.eval.audits_of_data import normalise
from metaprobe.papers.systems import SYSTEMS, Prompts
from metaprobe.papers.systems.monitor_generate_verify import NEUTRAL_STRATEGY
from metaprobe.records.store import RunStore, drop_text
from metaprobe.records.types import FloatArray, Run

STORES = Path(__file__).parent.parent.parent / "recorded"
ANSWERS = ("answer", "argument")
"""Stages whose calls may keep alternatives."""
SMALL, LARGE = "{models}/qwen-coder-0.5b/model.gguf", "{models}/qwen-coder-1.5b/model.gguf"
GSM8K = f"--task gsm8k --data {{data}} --split train --limit 200 --llm {SMALL} --batch-size 64"
SAMPLES = f"universal-self-consistency {GSM8K.replace('200', '300')} --constant samples=16"
AGENTS = f"--llm alpha=smollm2-135m --llm beta={SMALL} --llm gamma={LARGE}"
METACOG = f"--task metacog-eval --llm {SMALL} {AGENTS} --batch-size 64"
CREAK = f"--task creak --data {{data}} --limit 200 --llm {SMALL} --batch-size 64"
WRITING = "writing-assistant --variant single --variant multi --variant metacrit --task writing-cases"
SHORTER = (
    "--tokens guide=64 --tokens aggregate=64 --tokens explain=96 --tokens assess=120 --tokens answer=80 "
    "--tokens monitor=64 --tokens control=96 --tokens synthesis=96 --tokens respond=120 --tokens extract=120"
)
REPORT = "self-report --variant p-true --batch-size 64 --concurrency 256"
TASKS = {"places": 1200, "arithmetic": 1300, "creak": 1200, "factual-qa": 1200}
"""Answered with little more than a word, by two models: what makes the bundled predictor hold on other tasks."""
ESSAYS = f"--data {{data}} --llm {SMALL} --batch-size 32"

COMMANDS = {
    "gsm8k-mgv": f"monitor-generate-verify {GSM8K} --policy exhaustive",
    "gsm8k-cot": f"zero-shot-cot {GSM8K}",
    "gsm8k-self-refine": f"self-refine {GSM8K}",
    "gsm8k-self-refine-execute": f"self-refine {GSM8K.replace('200', '100')} --prompts {{prompts}}",
    "gsm8k-samples-1.5b": f"{SAMPLES.replace(SMALL, 'vllm:' + LARGE)} --variant vote --concurrency 6 --shard-runs 4",
    "gsm8k-self-verification": f"self-verification {GSM8K}",
    "gsm8k-samples": SAMPLES,
    "metacog-every-agent": f"metacogagent --variant every-agent {METACOG} --wave 64",
    "qwen-metacog-eval": f"self-report --task metacog-eval --llm {SMALL} --batch-size 64 --top-logprobs 15",
    "creak-metacrit": f"metacrit --variant every-stage {CREAK}",
    "creak-cot": f"zero-shot-cot --variant plain --variant raw-critique --variant monitor --variant control {CREAK}",
    "asap-debate": f"essay-debate --variant no-judge --task asap --limit 96 {ESSAYS}",
    "asap-debate-scaffold": f"essay-debate --variant scaffold --task asap --limit 300 {ESSAYS} --judge {LARGE}",
    "essays-caelf": f"caelf --task essays --limit 60 {ESSAYS}",
    "essays-caelf-levels": f"caelf --variant levels --task essays --limit 60 {ESSAYS}",
    "essays-caelf-rated": f"caelf --variant levels --task essays --limit 24 {ESSAYS} --judge {LARGE}",
    "writing/smollm2-135m": f"{WRITING} --llm smollm2-135m --batch-size 22 {SHORTER}",
    "writing/qwen-coder-1.5b": f"{WRITING} --llm {LARGE} --batch-size 22 {SHORTER}",
    **{
        f"{model}-{task}": f"{REPORT} --task {task} --limit {limit} --llm {llm}"
        + (" --data {data}" if task != "arithmetic" else "")
        for model, llm in (("smollm2-135m", "smollm2-135m"), ("qwen-coder-0.5b", SMALL))
        for task, limit in TASKS.items()
    },
}
"""Name of the store -> its command. The other variants of MetaCogAgent follow from `every-agent` without a model
(research/systems/metacog_replays.py replays it)."""

WITHOUT_TEXT = {"asap-debate", "asap-debate-scaffold", "essays-caelf", "essays-caelf-levels", "essays-caelf-rated"}
"""Stores on data that must not be given on: what was asked and said is left out."""

WITH_ALTERNATIVES = {"qwen-metacog-eval"}
"""Stores that keep the likeliest tokens' log-probabilities of the answers, for the scores that need them (WEPR)."""

OfRuns = Callable[[Run], bool]
ALL: OfRuns = lambda run: True  # noqa: E731
NONE: OfRuns = lambda run: False  # noqa: E731


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(COMMANDS)))
@click.option("--models", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out/recorded"))
@click.option("--pack-only", is_flag=True, help="Collect nothing; pack what is there.")
def main(names: tuple[str, ...], models: Path, data: Path, out: Path, pack_only: bool) -> None:
    """Collect the named stores, or all, and pack them into this folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names or COMMANDS:
        if not pack_only:
            prompts = self_refine_with_mgv_start(out / "prompts" / "self-refine-execute")
            command = shlex.split(COMMANDS[name].format(models=models, data=data, prompts=prompts))
            line = [sys.executable, "-m", "metaprobe.cli", "collect", *command, "--out", str(out / name)]
            subprocess.run([*line, "--cache", str(out / "calls.sqlite")], check=True)
        without: frozenset[str] = frozenset()
        if "arithmetic" in name:  # a question of both stores would stand in two groups of what is learned from both
            without = frozenset(normalise(run.item.question) for run in RunStore(STORES / "metacog-every-agent"))
        alternatives = ALL if name in WITH_ALTERNATIVES else NONE
        pack(out / name, STORES / name, without=without, text=name not in WITHOUT_TEXT, alternatives=alternatives)


def self_refine_with_mgv_start(folder: Path) -> Path:
    """Writes Self-Refine's prompts, with Monitor-Generate-Verify's prompt for the first answer, and returns `folder`.

    `folder` is for `--prompts`. Both systems then ask for the first answer with one prompt, and differ only afterwards.
    """
    system, other = SYSTEMS["self-refine"], SYSTEMS["monitor-generate-verify"]
    texts = Prompts.load(system.folder, system.prompts).texts
    solve = Prompts.load(other.name, other.prompts).texts["execute"]
    texts = {**texts, "self_refine_generate": solve.replace("$strategy", NEUTRAL_STRATEGY)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return folder


def pack(runs: Path, packed: Path, *, text: bool, alternatives: OfRuns, without: frozenset[str] = frozenset()) -> None:
    """The store `runs` as a small one: log-probabilities to float16's precision, no tokens as strings.

    `alternatives`: whether a run keeps the likeliest tokens' log-probabilities. `without`: questions that are left out,
    normalised.
    """
    stored = sorted(RunStore(runs).runs(hidden=False), key=lambda run: run.id)
    stored = [run for run in stored if normalise(run.item.question) not in without]
    if not stored:
        raise click.ClickException(f"{runs} holds no runs: collect them first; {packed} is left as it is")
    beside = packed.with_name(packed.name + ".partial")
    shutil.rmtree(beside, ignore_errors=True)
    with RunStore(beside).writer(shard_runs=len(stored)) as writer:
        for run in stored:
            writer.add(smaller(run if text else drop_text(run), alternatives=alternatives(run)))
    shutil.copy(runs / "collection.json", beside)
    shutil.rmtree(packed, ignore_errors=True)
    beside.rename(packed)
    size = sum(path.stat().st_size for path in packed.iterdir())
    click.echo(f"{len(stored)} runs, {size / 1e6:.2f} MB in {packed}")


def smaller(run: Run, *, alternatives: bool) -> Run:
    """The run without what can be had again from the model's tokenizer; alternatives only of answers, where wanted."""

    def rounded(values: FloatArray | None) -> FloatArray | None:
        return None if values is None else values.astype(np.float16).astype(np.float32)

    calls = [
        dataclasses.replace(
            call,
            logprobs=rounded(call.logprobs),
            top_logprobs=rounded(call.top_logprobs) if alternatives and call.stage in ANSWERS else None,
            tokens=(),
            prompt_token_ids=None,
            hidden=None,
        )
        for call in run.calls
    ]
    return dataclasses.replace(run, calls=tuple(calls))


if __name__ == "__main__":
    main()
