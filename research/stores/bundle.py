"""Makes the bundled checkpoints again from the recorded runs, and says how far they differ from those that are there.

    python -m research.stores.bundle [--models MODELS] [NAME ...]         # write checkpoints/bundled/
    python -m research.stores.bundle --check [--models MODELS] [NAME ...] # make them in out/bundle, compare
    python -m research.stores.bundle --canaries [--models MODELS] NAME ... # give probes golden states; the rest stays

Predictors, gate and router come from files in this folder alone. The probes need hidden states, which are read again
with the models' weights: MODELS holds `qwen-coder-0.5b/model.gguf` and `qwen-coder-1.5b/model.gguf`.
"""

import hashlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

import metaprobe
from metaprobe.checkpoints import load_checkpoint
from metaprobe.checkpoints.checkpoint import difference_from_rows
from metaprobe.checkpoints.files import BUNDLED_FOLDER, bundled_names
from metaprobe.checkpoints.manifest import GOLDEN, MANIFEST, FileEntry, Manifest, manifest_bytes
from metaprobe.checkpoints.save import write_folder
from metaprobe.training.stored_states import canaries_file
from research.blocks import ROOT, markdown, shown, write

PAGE = ROOT / "docs" / "research" / "travel.md"
MEAN_GAIN, OVER_STRONGEST = "over mean log-probability", "over the strongest control"
WITHIN = (
    ("auroc", ".3f", "auroc_within_runs"),
    (OVER_STRONGEST, "+.3f", "auroc_within_runs_gain_over_strongest_control"),
    (MEAN_GAIN, "+.3f", "auroc_within_runs_gain_over_mean_log_probability"),
)
"""Over pairs of answers of one run (model, task, way of asking): what is said of it, its form, and its number."""
ELSEWHERE = tuple(
    (says, form, f"{figure}_without_{by}")
    for says, form, figure in (
        ("auroc", ".3f", "auroc"),
        (MEAN_GAIN, "+.3f", "auroc_gain_over_mean_log_probability"),
        ("ECE", ".3f", "ece"),
    )
    for by in ("task", "dimension")
)
POOLED = (
    ("auroc", ".3f", "auroc"),
    ("of the run's identity alone", ".3f", "auroc_of_run_identity"),
    (OVER_STRONGEST, "+.3f", "auroc_gain_over_strongest_control"),
    (MEAN_GAIN, "+.3f", "auroc_gain_over_mean_log_probability"),
    ("Brier skill", ".3f", "brier_skill"),
)
"""Over all answers at home; what has none of these (a gate, a router) shows the first of its numbers."""
FIGURES = {"within runs": WITHIN, "a task or dimension left out": ELSEWHERE, "pooled at home": POOLED}
"""Column -> what it holds; one that no checkpoint has anything in is left out."""
HIGH_IS_BAD = frozenset({"critical"})
"""Heads of a failure, learned from debates in which the surest arguments are the faulty ones: the mean log-probability,
taken as confidence, is upside down there, and a gain over it says nothing."""
SHOWN = 4
"""How many those are. All stand in the card."""
WORK, LAYERS = Path("out/bundle"), "every:2"
STATES = WORK / "states"
"""Copies of the recorded runs, with hidden states beside them."""
TOLERANCE = 1e-5
"""Between a bundled checkpoint and its remake, on the golden rows of the former: other machines round otherwise."""
TOLERANCE_OF_STATES = 0.05
"""The same for probes, whose inputs are read again in bfloat16."""

ANSWERS = " ".join(
    f"recorded/{name}"
    for name in (
        "metacog-every-agent",
        "smollm2-metacog-eval",
        "gsm8k-cot",
        "gsm8k-mgv",
        "gsm8k-self-refine",
        "creak-metacrit",
    )
)
SHORT = " ".join(
    f"recorded/{model}-{task}"
    for model in ("smollm2-135m", "qwen-coder-0.5b")
    for task in ("places", "arithmetic", "creak", "factual-qa")
)
"""Answers of a word or two to further tasks. Learned from `ANSWERS` alone, a predictor is at chance on a task that it
has not seen; with these it is not."""
FAMILIES = " ".join(f"recorded/breadth/{model}" for model in ("smollm2-135m", "qwen-coder-0.5b", "qwen-coder-1.5b"))
"""Answers to 57 small families of tasks, asked for directly and with working."""
DEBATE = "recorded/asap-debate-scaffold --stage argument --label-source program --target critical"
"""Faults that a program finds in the debates' arguments. The small judge's grades are no better than chance to learn
(docs/research/judges.md), so that a checkpoint of its grades would be worth nothing."""
PRICES = "recorded/prices.json"
"""Assumed: 0.02 US dollars for a million tokens and each billion of a model's parameters."""
AGENTS = {"alpha": "smollm2-135m", "beta": "qwen-coder-0.5b", "gamma": "qwen-coder-1.5b"}
"""Agent of the recorded MetaCogAgent runs -> its model."""

COMMANDS = {
    "quality": f"train quality {ANSWERS} {SHORT} {FAMILIES} --target correct --new-tasks",
    "gate": f"train gate {ANSWERS} --target correct",
    "critical": f"train quality {DEBATE}",
    "router": f"train router recorded/metacog-every-agent --prices {PRICES}",
    **{
        f"{model}-{name}": f"train hidden {STATES / model} --stage answer --agent {agent} --when {when}"
        for agent, model in AGENTS.items()
        for name, when in (("difficulty", "before"), ("confidence", "after"))
    },
}
"""Name -> what makes it, run at the repository's root."""


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(COMMANDS)))
@click.option("--models", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--check", is_flag=True, help="Compare with what is there, and leave both.")
@click.option("--canaries", is_flag=True, help="Add golden states to the named probes that are there, and stop.")
@click.option("--page", is_flag=True, help="Make none; write the table of those that are there.")
def main(names: tuple[str, ...], models: Path | None, check: bool, canaries: bool, page: bool) -> None:
    """Make the named checkpoints, or all."""
    if canaries:
        for name in names:
            add_canaries(name, models)
        return
    worst: list[str] = []
    for name in () if page else names or COMMANDS:
        of_states = str(STATES) in COMMANDS[name]
        if of_states:
            read_states(name.rsplit("-", 1)[0], models)
        # Not straight into the package's folder: a wheel built meanwhile would take half a checkpoint with it.
        made = WORK / name
        run(f"{COMMANDS[name]} --out {shlex.quote(str(made))} --replace")
        if check:
            golden, remade = load_checkpoint(BUNDLED_FOLDER / name).files()[GOLDEN], load_checkpoint(ROOT / made)
            found = difference_from_rows(golden, remade.session)[0].size
            allowed = TOLERANCE_OF_STATES if of_states else TOLERANCE
            click.echo(f"{name}: differs by {found:.2g} on the golden rows (allowed: {allowed:g})")
            worst += [name] * (found > allowed)
        else:
            shutil.rmtree(BUNDLED_FOLDER / name, ignore_errors=True)
            shutil.move(ROOT / made, BUNDLED_FOLDER / name)
    if not check:
        write_table()
    if worst:
        raise click.ClickException(f"not the same again: {', '.join(worst)}")


def read_states(model: str, models: Path | None) -> None:
    """Hidden states of that model's recorded answers, beside a copy of the runs; what is there is not read again."""
    agent = next(agent for agent, name in AGENTS.items() if name == model)
    store = STATES / model
    if not (ROOT / store).exists():
        shutil.copytree(ROOT / "recorded" / "metacog-every-agent", ROOT / store)
    llm = weights_of(model, models)
    run(f"extract {store} --llm {shlex.quote(llm)} --layers {LAYERS} --stage answer --agent {agent}")


def weights_of(model: str, models: Path | None) -> str:
    """Returns the name under which the weights of a model are loaded."""
    if model == "smollm2-135m":
        return model
    if models is None:
        raise click.UsageError(f"the probes of {model} need its weights: give --models")
    return str((models / model / "model.gguf").resolve())


def add_canaries(name: str, models: Path | None) -> None:
    """Adds the golden states of the canaries to a probe that was trained without them. Graph, golden rows and card stay
    equal to the byte."""
    from metaprobe.llms.local import LocalLLM  # only this needs torch
    from metaprobe.llms.readings import StateReplay

    checkpoint = load_checkpoint(BUNDLED_FOLDER / name)
    manifest, layers = checkpoint.manifest, metaprobe.load(f"bundled:{name}").layers
    llm = LocalLLM.load(weights_of(name.rsplit("-", 1)[0], models))
    if manifest.generator is None or llm.revision != manifest.generator.revision:
        raise click.ClickException(f"{name} was trained on states of other weights than {llm.revision}")
    added = canaries_file(StateReplay(llm, layers=LAYERS).canaries(), layers)
    files = {file: data for file, data in checkpoint.files().items() if file != MANIFEST} | added
    entries = {file: FileEntry(hashlib.sha256(data).hexdigest(), len(data)) for file, data in files.items()}
    made = ROOT / WORK / name
    shutil.rmtree(made, ignore_errors=True)
    write_folder(made, files | {MANIFEST: manifest_bytes(replace(manifest, files=entries))})
    shutil.rmtree(BUNDLED_FOLDER / name)
    shutil.move(made, BUNDLED_FOLDER / name)


def run(command: str) -> None:
    click.echo(f"metaprobe {command}", err=True)
    subprocess.run([sys.executable, "-m", "metaprobe.cli", *shlex.split(command)], cwd=ROOT, check=True)


def write_table() -> None:
    """Writes the table of bundled checkpoints into docs/research/travel.md."""
    write(PAGE, "bundled", table({name: load_checkpoint(BUNDLED_FOLDER / name).manifest for name in bundled_names()}))


def table(manifests: Mapping[str, Manifest]) -> list[str]:
    """The notes and a row for each checkpoint."""
    shown = {
        column: part
        for column, part in FIGURES.items()
        if any(format_metric(m, part) != "-" for m in manifests.values())
    }
    rows = []
    for name, manifest in manifests.items():
        models = ", ".join(manifest.generator.models) if manifest.generator else "-"
        of = f"{manifest.training.n} answers in {manifest.training.groups} groups" if manifest.training else "-"
        first = [(key, ".3f", key) for key in manifest.metrics][:SHOWN]
        pooled = POOLED if "auroc" in manifest.metrics else first
        metrics = (format_metric(manifest, pooled if part is POOLED else part) for part in shown.values())
        trust = f"{manifest.trust}{': not shown: ' if manifest.failed else ''}{'; '.join(manifest.failed)}"
        rows.append([f"`{name}`", manifest.kind, models, of, *metrics, trust])
    turned = [f"`{name}`" for name, one in manifests.items() if HIGH_IS_BAD & {output.name for output in one.outputs}]
    notes = (
        f"The table gives no gain over the mean log-probability for {', '.join(turned)}. The mean would be read as "
        "confidence, but in the debates the faulty arguments have the highest log-probabilities, so it ranks them "
        "in the wrong order. Most of such a gain would come from the sign alone: a score has to beat the reversed "
        "mean."
    )
    head = ["name", "kind", "answers of", "learned from", *shown, "trust"]
    return [*([notes] if turned else []), "", *markdown(head, rows), "", *ceilings(manifests)]


def ceilings(manifests: Mapping[str, Manifest]) -> list[str]:
    """Returns, for each probe, its result, the result of the luckiest layer and position, and a control."""
    rows = []
    for name, manifest in manifests.items():
        details = {audit: one.detail for audit, one in manifest.audits.items()}
        chosen = next((text for audit, text in details.items() if audit.endswith("keeps what selection promised")), "")
        best = re.match(r"best of (\d+) combinations ([\d.]+) on selection", chosen)
        against = [
            (float(found[1]), audit.rpartition(" beats ")[2])
            for audit, text in details.items()
            if (found := re.match(r"AUROC [\d.]+ against ([\d.]+)", text))
        ]
        if best and against:
            reached, control = max(against)
            here = manifest.metrics["auroc"]
            auroc = shown((here.estimate, here.low, here.high))
            rows.append([name, auroc, f"{best[2]} of {best[1]}", f"{reached:.3f}", control])
    if not rows:
        return []
    head = ["probe", "AUROC, held out", "luckiest layer and position, on the rows it was chosen on"]
    return [
        "How far a probe could go on these answers, if layer and position were chosen by luck:",
        "",
        *markdown([*head, "strongest control", "which"], rows),
        "",
    ]


def format_metric(manifest: Manifest, figures: Sequence[tuple[str, str, str]]) -> str:
    """Those of the numbers that it has and that mean something, for a cell of the table."""
    turned = bool(HIGH_IS_BAD & {output.name for output in manifest.outputs})
    found = [
        (says, form, manifest.metrics[key])
        for says, form, key in figures
        if key in manifest.metrics and not (turned and says == MEAN_GAIN)
    ]
    return "; ".join(f"{says} {shown((m.estimate, m.low, m.high), form)}" for says, form, m in found) or "-"


if __name__ == "__main__":
    main()
