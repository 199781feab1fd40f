"""Commands on answers and endpoints: `metaprobe import`, `advise`, `extract`, `outcomes`, `doctor`."""

import asyncio
import dataclasses
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from metaprobe.checkpoints.option_fields import Option
from metaprobe.checkpoints.rendered_table import Table
from metaprobe.llms.call_selection import CallSelection
from metaprobe.option_commands import AsJson, command
from metaprobe.progress import progress_bar, quiet_libraries
from metaprobe.records.errors import MissingExtra, RecordError
from metaprobe.records.extras import require
from metaprobe.records.importer import LOG_FORMAT_NAMES
from metaprobe.records.types import LOOK_POSITIONS, POSITIONS
from metaprobe.terminal import advice_table, printable_lines, show_result
from metaprobe.training.training_options import LineOptions

COMMAND_GROUP = click.Group()
ANSWERS_PER_UPDATE = 100
"""How many answers pass between two updates of the text beside the progress bar."""
OneStore = Annotated[Path, Option(kind="runs", argument=True)]


@command(COMMAND_GROUP, "Answer lines, or a log of Inspect, lm-eval, HELM, ..., into a run store.", name="import")
def import_(
    file: Annotated[Path, Option(kind="path", argument=True)],
    out: Annotated[Path, Option("Run store to add to.", kind="folder")],
    line_options: LineOptions,
    form: Annotated[
        str,
        Option(
            "Format of FILE; by default recognised by its content.", name="from", choices=("auto", *LOG_FORMAT_NAMES)
        ),
    ] = "auto",
    correct: Annotated[str, Option("Score whose 1 and 0 mean right and wrong, if the log has several.")] = "",
    requests: Annotated[Path | None, Option("Input file of a batch, joined.", kind="file")] = None,
    stated_only: Annotated[
        bool, Option("Also take answers without log-probabilities that state a confidence.")
    ] = False,
    plain: Annotated[bool, Option("Also take answers without log-probabilities, for `extract --logprobs`.")] = False,
) -> None:
    """Import answers into a run store.

    Answer lines are JSON: {"response": ..., "labels": {"correct": 1}, "id", "group", "messages", ...}; only "response"
    is required. They may be compressed (.gz), or rows of a Parquet or CSV file. If an answer is already stored, the
    fields of its line (labels, group, messages, ...) replace the stored ones. `metaprobe advise FILE` tells beforehand
    what a file holds and lacks.

    Bad lines are left out; each reason is printed with its count and its first line. If more than half of the lines are
    bad, nothing is stored.

    Logs can come from Inspect (.eval, .json), lm-evaluation-harness (samples), HELM (a run's folder), promptfoo (its
    output) and OpenAI's Batch API (its output).
    """
    from metaprobe.probes.verbalized import parse_named_confidence
    from metaprobe.records.import_store import import_file
    from metaprobe.records.store import RunStore

    # Import, with a progress bar.
    total_bytes = sum(path.stat().st_size for path in ([file] if file.is_file() else file.glob("scenario_state.json")))
    answers = 0
    with progress_bar("import", "B", total_bytes, scaled=True) as bar:

        def on_line() -> None:
            nonlocal answers
            answers += 1
            if answers % ANSWERS_PER_UPDATE == 0:
                bar.set_postfix_str(f"{answers:,} answers", refresh=False)

        report = import_file(
            file,
            RunStore(out),
            form=form,
            strict=line_options.strict,
            bad=line_options.bad,
            correct=correct,
            requests=requests,
            stated=parse_named_confidence if stated_only else None,
            plain=plain,
            on_line=on_line,
            on_bytes=lambda bytes_read: bar.update(bytes_read - bar.n),
        )
    # Print the counts on stdout, and everything notable on stderr.
    for message in filter(None, (report.said, *report.notes)):
        click.echo(printable_lines(message), err=True)
    counts = {"from": report.form, "imported": report.imported, "already_stored": report.already_stored}
    counts |= {"relabelled": report.relabelled, "skipped": report.bad, "left_out": sum(report.left_out.values())}
    counts |= {name: getattr(report, name) for name in ("labelled", "groups", "without_logprobs")}
    click.echo(json.dumps(counts))
    for source, count in report.taken.most_common():
        click.echo(f"{report.form}: {count} x {source}", err=True)
    for reason, count in report.left_out.items():
        click.echo(f"left out: {count} x {reason}", err=True)
    for doubt, count in report.doubts.most_common():
        click.echo(f"stored, and said when it is scored: {count} x {doubt}", err=True)
    if report.without_logprobs:
        click.echo(
            f"{report.without_logprobs} lines hold no log-probabilities and are there for what they state, or what was"
            " decided of them (metaprobe train quality --reads decisions); another model can read the others (metaprobe"
            " extract --logprobs MODEL)",
            err=True,
        )
    is_empty = not (report.imported or report.already_stored or report.bad)
    if is_empty:
        click.echo(f"{file} holds no lines to import", err=True)
    if report.labelled_otherwise:
        click.echo(
            f"{report.labelled_otherwise} lines have other labels only, and none named `correct`: what needs right and"
            " wrong answers learns nothing from them; of a log, --correct SCORE says which score is right or wrong",
            err=True,
        )
    if report.imported and not (report.labelled or report.labelled_otherwise):
        click.echo('none of the lines has "labels", such as {"correct": 1}: nothing can be learned from them', err=True)
    if is_empty:
        sys.exit(1)


STATE_OPTIONS = {
    "via": "--via",
    "layers": "--layers",
    "positions": "--position",
    "shard_calls": "--shard-calls",
    "other_model": "--other-model",
}
"""Maps parameters of `extract` to their options, for parameters that only the reader of hidden states uses."""
LOOKS_CHOICE = "looks"
"""Value of `--position` that stands for all positions along an answer that a streaming gate reads."""
LOGPROB_OPTIONS = {"out": "--out", "top_logprobs": "--top-logprobs"}
"""Maps parameters of `extract` to their options, for parameters that only the reader of log-probabilities uses."""


@command(COMMAND_GROUP, "What a log can support: signals, labels, the next command.", name="advise")
def advise_command(
    file: Annotated[Path, Option(kind="path", argument=True)],
    as_json: AsJson = False,
) -> None:
    """Print which signals of answer quality FILE supports, how many labels it has, and the next command for each
    signal.

    FILE is a run store, or any file that `import` reads. Nothing is stored, and no model is asked.
    """
    from metaprobe.eval.results import plain
    from metaprobe.training.advise import advise

    show_result(plain(advise(file)), as_json, advice_table)


@command(COMMAND_GROUP, "Hidden states or log-probabilities of recorded calls, read again with a model.")
def extract(
    runs: OneStore,
    llm: Annotated[str | None, Option("The model that answered: embedded name, folder, GGUF file or hub id.")] = None,
    logprobs: Annotated[
        str | None, Option("Another model, whose log-probabilities of the answers go to --out.", metavar="LLM")
    ] = None,
    out: Annotated[
        Path | None, Option("Run store for the runs with the log-probabilities of --logprobs.", kind="folder")
    ] = None,
    top_logprobs: Annotated[int, Option("Alternatives kept for each token.", low=0)] = 0,
    via: Annotated[
        Literal["transformers", "vllm"], Option("Library that runs the model for hidden states.")
    ] = "transformers",
    layers: Annotated[str, Option("'all', 'every:N', or numbers such as '0,8,16'.")] = "all",
    positions: Annotated[
        tuple[str, ...],
        Option(
            "Token position to keep; repeatable. `looks` are those of a streaming gate. By default those that "
            "collecting keeps.",
            name="position",
            choices=(*POSITIONS, LOOKS_CHOICE),
        ),
    ] = (),
    *,
    call_selection: CallSelection,
    batch_size: Annotated[int, Option("Calls read at once.", low=1)] = 32,
    shard_calls: Annotated[int, Option("Calls written to one file.", low=1)] = 64,
    other_model: Annotated[bool, Option("Read calls of any model, without the check that all are of one.")] = False,
) -> None:
    """Read recorded calls again with a model.

    With --llm the model's hidden states are stored beside the RUNS. States that are already stored are not read again,
    so a killed extraction can be continued. Under `accelerate launch` or `torchrun` the processes share the work.

    With --logprobs a model other than the one that answered reads messages and answers. Its log-probabilities go into a
    run store of their own (--out), with the labels unchanged.
    """
    if (llm is None) == (logprobs is None):
        raise click.UsageError(
            "expected one of --llm MODEL (hidden states) and --logprobs MODEL --out RUNS2 (log-probabilities)"
        )
    context = click.get_current_context()
    for name, option in (LOGPROB_OPTIONS if logprobs is None else STATE_OPTIONS).items():
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"{option} belongs to {'--logprobs' if logprobs is None else '--llm'}: leave it out")
    if logprobs is not None and out is None:
        raise click.UsageError("Missing option '--out': the run store for what --logprobs reads")
    require("torch", "train")
    quiet_libraries()
    from metaprobe.llms.extract import ExtractionWatch, launch_extract, launch_reread

    reading_options: dict[str, Any] = {
        "stage": call_selection.stage,
        "agent": call_selection.agent,
        "batch_size": batch_size,
    }
    with progress_bar("extract", " calls" if out is None else " runs", ends=True) as bar:
        reading_options["watch"] = ExtractionWatch(*bar.counters())
        if logprobs is not None and out is not None:
            reread = launch_reread(runs, logprobs, out, top_logprobs=top_logprobs, **reading_options)
        else:
            reading_options |= {"layers": layers, "shard_calls": shard_calls, "other_model": other_model}
            kept_positions = dict.fromkeys(
                name for choice in positions for name in (LOOK_POSITIONS if choice == LOOKS_CHOICE else (choice,))
            )
            reading_options["positions"] = tuple(kept_positions) or None
            report, processes = launch_extract(runs, str(llm), via=via, **reading_options)
    if logprobs is not None:
        for reason, count in reread.unread.items():
            click.echo(f"without log-probabilities: {count} x {reason}", err=True)
        click.echo(json.dumps(dataclasses.asdict(reread)))
    elif report is not None:  # in the other processes of a launch it is None
        if report.calls and report.disagreement is None and not other_model:
            click.echo(
                f"not checked: no call holds raw log-probabilities that would show whether {llm} is the model that "
                "answered",
                err=True,
            )
        click.echo(json.dumps({**dataclasses.asdict(report), "processes": processes}))


@command(COMMAND_GROUP, "Answers of several agents into the outcomes that a router learns from.")
def outcomes(
    files: Annotated[tuple[Path, ...], Option(kind="file", argument=True)],
    out: Annotated[Path, Option("File of outcomes to write.", kind="new file")],
    signals: Annotated[
        tuple[str, ...],
        Option(
            "confidence[@AGENT]=[stated+]CHECKPOINT: a checkpoint's number in place of the stated one; repeatable.",
            name="signal",
        ),
    ] = (),
    prices: Annotated[
        Path | None,
        Option(
            '{"AGENT or MODEL": {"prompt": USD, "completion": USD}} for a million tokens each.',
            kind="file",
        ),
    ] = None,
    *,
    line_options: LineOptions,
) -> None:
    """Join the answers of two or more agents by their ids. Each file holds the import lines of one agent.

    A line is one that `metaprobe import` takes, with "id" and "labels": {"correct": 0 or 1}. The agent is the line's
    "agent", else the name of the file. `metaprobe train router OUT` learns from the result.
    """
    from metaprobe.llms.pricing import Price
    from metaprobe.probes.signal_source import SignalSource
    from metaprobe.records.outcomes import QuestionOutcomes
    from metaprobe.training.joining import join_outcomes

    if out.resolve() in {file.resolve() for file in files}:
        raise click.UsageError(f"--out {out} is one of the files to join; give another one")
    source, price_list = SignalSource.load(signals), Price.read(prices) if prices else None
    with line_options.handling():
        outcome_rows = join_outcomes(files, signals=source, prices=price_list)
    out.parent.mkdir(parents=True, exist_ok=True)
    QuestionOutcomes.write(out, outcome_rows.questions)
    for note in outcome_rows.notes:
        click.echo(note, err=True)
    click.echo(
        json.dumps(
            {
                "questions": len(outcome_rows.questions),
                "agents": {name: outcome_rows.accuracy(name) for name in outcome_rows.questions[0].agents},
                "missing": outcome_rows.missing,
                "unlabelled": outcome_rows.unlabelled,
            }
        )
    )


@command(COMMAND_GROUP, "Whether an endpoint's log-probabilities are whole and genuine.")
def doctor(
    url: Annotated[str, Option(argument=True)],
    model: Annotated[str, Option(argument=True)],
    key_variable: Annotated[
        str,
        Option(
            "Environment variable that holds the key; the key itself is never shown.",
            name="api-key-env",
        ),
    ] = "OPENAI_API_KEY",
    timeout_s: Annotated[float, Option("Seconds that one answer may take.", name="timeout", above=0)] = 60.0,
    thinking_tokens: Annotated[int, Option("Most thinking tokens before each answer.", low=0)] = 512,
    extra_body: Annotated[
        dict[str, Any] | None, Option("Further fields of every request, as a JSON object.", kind="json object")
    ] = None,
    as_json: Annotated[bool, Option("Write the findings as one JSON object.", name="json")] = False,
) -> None:
    """Ask the OpenAI-compatible endpoint at URL (it usually ends in /v1) at most 10 small questions of MODEL.

    Prints which log-probabilities the endpoint gives, drops, shifts or fakes, and what to set. Exit code 0 if its
    answers can be scored, 1 if a fault makes scores wrong or impossible, 2 if the endpoint could not be asked.
    """
    try:
        doctor_module = require("metaprobe.llms.doctor", "api")
        interviewer = doctor_module.Interviewer(
            url,
            model,
            key_variable=key_variable,
            timeout_s=timeout_s,
            thinking_tokens=thinking_tokens,
            extra_body=extra_body or {},
        )
        answers = asyncio.run(interviewer.ask_all())
    except (RecordError, MissingExtra) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    key = os.environ.get(key_variable, "").strip()
    checks = [replace(check, found=_printable_reply(check.found, key)) for check in doctor_module.diagnose(answers)]
    faults = sum(check.verdict == "fault" for check in checks)
    if as_json:
        report = {"endpoint": answers.endpoint, "model": model}
        report |= {"usable": not faults, "findings": [asdict(check) for check in checks], "requests": answers.requests}
        click.echo(json.dumps(report))
    else:
        rows = []
        for check in checks:
            rows += [(check.verdict, check.check, check.found), *([("", "", f"-> {check.do}")] if check.do else [])]
        click.echo("\n".join(Table.of(("verdict", "check", "found"), rows).text(width=None)))
        conclusion = "usable for scoring" if not faults else f"faults that make scores wrong or impossible: {faults}"
        click.echo(f"\n{conclusion}; {answers.requests} requests were made")
    sys.exit(1 if faults else 0)


def _printable_reply(reply: str, key: str) -> str:
    """Returns what a server answered, on one line, without the key and without control characters."""
    without_key = reply.replace(key, "[secret]") if key else reply
    return "".join(c for c in " ".join(without_key.split()) if c.isprintable())
