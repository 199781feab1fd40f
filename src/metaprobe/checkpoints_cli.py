"""Commands on checkpoints: `metaprobe inspect`, `verify`, `diff`, `push`, `check-states`, `score`, `route`, `evaluate`,
`check`.
"""

import json
import sys
import warnings
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from metaprobe.checkpoints import FlagOptions
from metaprobe.checkpoints.option_fields import Option
from metaprobe.llms.call_selection import CallSelection, Stage
from metaprobe.option_commands import AsJson, Digest, OneCheckpoint, command, is_store
from metaprobe.progress import lines_done, quiet_libraries, steps
from metaprobe.records.extras import require
from metaprobe.terminal import (
    asking_table,
    check_table,
    panel_table,
    show_result,
)
from metaprobe.training.training_options import Costs, LineOptions, Seed

COMMAND_GROUP = click.Group()
SHOWN_REASONS = 3
"""Most reasons for lines without a score that `score` prints; each line has its own."""


@command(COMMAND_GROUP, "What a checkpoint is, or what a run store holds.")
def inspect(
    checkpoint: Annotated[str, Option(kind="checkpoint or runs", argument=True, metavar="CHECKPOINT|RUNS")],
    sha256: Digest = None,
) -> None:
    """Print what a checkpoint is: contract, metrics with intervals, audits, digest. It is verified first.

    For a run store, print how many runs, calls, labels and hidden states it holds, and of which systems, tasks and
    models.
    """
    if is_store(checkpoint):
        if sha256 is not None:
            raise click.UsageError(f"--sha256 is for checkpoints, and {checkpoint} is a run store")
        from metaprobe.eval.store_description import describe_store

        click.echo(describe_store(Path(checkpoint)))
        return
    from metaprobe.checkpoints import UntrustedCheckpoint, describe, load_checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)  # the description's first line says so already
        click.echo(describe(load_checkpoint(checkpoint, sha256=sha256)))


@command(COMMAND_GROUP, "Whether a checkpoint is undamaged and has the expected digest.")
def verify(checkpoint: OneCheckpoint, sha256: Digest = None) -> None:
    """Check that a checkpoint is undamaged: sizes, hashes, manifest, safe model, golden rows. Exit code 0 if it is,
    else 1.

    Without --sha256 this shows that nothing was damaged, not who made the checkpoint.
    """
    from metaprobe.checkpoints import describe_verified, load_checkpoint

    click.echo(describe_verified(load_checkpoint(checkpoint, sha256=sha256), pinned=sha256 is not None))


@command(COMMAND_GROUP, "How two checkpoints differ.")
def diff(
    a: OneCheckpoint,
    b: OneCheckpoint,
    as_json: Annotated[bool, Option("One JSON object, for programs.", name="json")] = False,
) -> None:
    """Print how checkpoint B differs from A: contract, thresholds, metrics, data, versions, and answers on A's golden
    rows.

    Exit code 0 if they differ at most in the time at which they were made, 1 if they differ otherwise, 2 if one cannot
    be read.
    """
    from metaprobe.checkpoints import CheckpointError, compare, describe_differences
    from metaprobe.checkpoints.checkpoint import load_verified

    try:
        differences = compare(load_verified(a), load_verified(b))
    except CheckpointError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    click.echo(json.dumps(differences, indent=1) if as_json else describe_differences(differences))
    sys.exit(0 if differences["same"] else 1)


@command(COMMAND_GROUP, "Upload a checkpoint to the Hugging Face hub.")
def push(
    checkpoint: OneCheckpoint,
    repository: Annotated[str, Option(argument=True)],
    license_: Annotated[str, Option("Identifier of the hub, such as apache-2.0, or 'other'.")],
    tags: Annotated[tuple[str, ...], Option("Further tag on the hub; repeatable.", name="tag")] = (),
    private: Annotated[bool, Option("Make a new repository private.")] = False,
    sha256: Digest = None,
) -> None:
    """Upload a checkpoint to the hub repository OWNER/NAME, with the hub's metadata in its card.

    Log in first: `hf auth login`. Prints the location, and the digest to give to users of the checkpoint.
    """
    from metaprobe.checkpoints import load_checkpoint
    from metaprobe.checkpoints import push as push_checkpoint

    loaded = load_checkpoint(checkpoint, sha256=sha256)
    published = push_checkpoint(loaded, repository, license=license_, tags=tags, private=private)
    click.echo(json.dumps({"location": published.location, "sha256": published.digest, "url": published.url}))


@command(COMMAND_GROUP, "Whether hidden states belong to their tokens.", name="check-states")
def check_states(
    location: Annotated[str, Option(kind="checkpoint or runs", argument=True, metavar="CHECKPOINT|RUNS")],
    llm: Annotated[str, Option("Model whose states are checked: embedded name, folder, GGUF file or hub id.")],
    via: Annotated[
        Literal["transformers", "vllm"], Option("Library that runs the model, for a CHECKPOINT.")
    ] = "transformers",
    calls: Annotated[int, Option("Calls of RUNS that are read again.", low=4)] = 32,
    stage: Stage = None,
    as_json: AsJson = False,
) -> None:
    """Check that hidden states belong to their tokens.

    With a CHECKPOINT (a probe or a blend) the model reads the canaries, twelve fixed texts, and its states are compared
    with those of the training. With RUNS some calls with stored states are read again. If the last layer was stored,
    the model's own head must also give the recorded log-probabilities. Exit code 1 if a check fails.
    """
    require("torch", "train")
    quiet_libraries()
    findings: dict[str, Any]
    from metaprobe.llms.states_check import check_stored, source_canaries

    if is_store(location):
        result = check_stored(Path(location), llm, calls=calls, stage=stage)
        findings = {**asdict(result.states), "passed": result.passed, "reason": result.reason, "head": result.head}
    else:
        from metaprobe.checkpoints import load_checkpoint
        from metaprobe.checkpoints.checkpoint import check_kind
        from metaprobe.probes.blend import BLEND_KIND, BlendPredictor
        from metaprobe.probes.hidden import HIDDEN_KIND, HiddenProbe

        loaded = load_checkpoint(location)
        check_kind(loaded.path, loaded.manifest.kind, HIDDEN_KIND, BLEND_KIND)
        guard = BlendPredictor(loaded).guard if loaded.manifest.kind == BLEND_KIND else HiddenProbe.of(loaded).guard
        canary_states = source_canaries(llm, guard.layers, via=via)
        findings = {**asdict(guard.check(canary_states)), "source": canary_states.source}
    json_values = {name: None if value != value else value for name, value in findings.items()}  # NaN is no JSON
    show_result(json_values, as_json, lambda facts: [f"{name}: {facts[name]}" for name in facts])
    if not findings["passed"]:
        sys.exit(1)


@command(COMMAND_GROUP, "A verdict for each OpenAI-format line.")
def score(
    checkpoint: OneCheckpoint,
    file: Annotated[Path, Option(kind="path or stdin", argument=True)],
    flag_options: FlagOptions,
    sha256: Annotated[
        str | None,
        Option("Digest of the checkpoint, from its author; without it a changed manifest goes unnoticed."),
    ] = None,
    on_mismatch: Annotated[
        Literal["warn", "refuse", "ignore"],
        Option("For responses of another model or log-probability mode than the checkpoint was trained on."),
    ] = "warn",
    run: Annotated[
        str | None,
        Option(
            "The checkpoint's run of all responses; by default by each response's model and task.",
            metavar="MODEL|TASK|VARIANT",
        ),
    ] = None,
    stage: Annotated[str | None, Option("For a run store: only answers of this stage.")] = None,
    flagged: Annotated[bool, Option("Print only flagged answers; stderr says how many others there are.")] = False,
) -> None:
    """Score OpenAI-format JSON lines: one line out for each line in, with null for a response that cannot be scored.

    The "id" of a line out is the line's own "id"; else its custom_id, request_id, trace_id or response_id; else the id
    of the response; else line-N.

    FILE may be '-' for standard input, or a run store: then each answer in it gets a line, and a blend or a probe reads
    the stored hidden states. Calls that only state a number about an answer are scored only with --stage. A panel gives
    a line for each question: which of its answers to keep, and how sure that answer is right. A text reader takes a
    store with its texts, or lines with question and answer; neither needs log-probabilities.
    """
    from metaprobe.checkpoints.checkpoint import check_kind, load_verified
    from metaprobe.probes import blend, hidden, quality, text
    from metaprobe.probes.score_lines import score_lines, store_lines

    # Open the reader that fits the checkpoint, or refuse options that do not.
    file = Path("/dev/stdin") if str(file) == "-" else file
    kind = load_verified(checkpoint).manifest.kind
    left_out = Counter[str]()
    if kind == "panel":
        if flag_options.flags or run is not None or flagged:
            raise click.UsageError(
                "flags, --flagged and --run are for quality predictors: a panel says which answer to keep"
            )
        from metaprobe.routing.panel.asking import Panel
        from metaprobe.routing.panel.stored_panels import panel_lines

        verdicts = panel_lines(Panel.load(checkpoint, sha256=sha256), file, stage=stage)
    elif stage is not None and not file.is_dir():
        raise click.UsageError("--stage is for run stores: a line of a file has one answer")
    elif kind == hidden.HIDDEN_KIND and not file.is_dir():
        raise click.UsageError(
            "a probe reads hidden states, which lines do not hold: give a run store, collected with --layers or read "
            "by `metaprobe extract`"
        )
    elif kind in (text.TEXT_KIND, hidden.HIDDEN_KIND) and run is not None:
        raise click.UsageError("--run is for predictors: text readers and probes know no base rates of runs")
    else:
        reader: quality.QualityPredictor | text.TextReader | hidden.HiddenProbe
        if kind == text.TEXT_KIND:
            reader = text.TextReader.load(checkpoint, sha256=sha256, **flag_options.flags)
        elif kind == hidden.HIDDEN_KIND:
            reader = hidden.HiddenProbe.load(checkpoint, sha256=sha256, on_mismatch=on_mismatch)
        else:
            if file.is_dir():
                check_kind(checkpoint, kind, quality.QUALITY_KIND, blend.BLEND_KIND, hidden.HIDDEN_KIND)
            options: dict[str, Any] = {"run": run, "on_mismatch": on_mismatch, **flag_options.flags}
            reader = quality.QualityPredictor.load(checkpoint, sha256=sha256, **options)
        if file.is_dir():
            verdicts = store_lines(reader, file, by_run=run is None, flags=flag_options, stage=stage, left_out=left_out)
        elif not isinstance(reader, hidden.HiddenProbe):
            verdicts = lines_done("score", score_lines(reader, file, by_run=run is None), file)
    # Print the verdicts.
    scored_count = line_count = flagged_count = judged_count = 0
    unscored_reasons = Counter[str]()
    for line in verdicts:
        flagged_count += line.get("flagged") is True
        judged_count += line.get("flagged") is not None
        if not flagged or line["flagged"]:
            click.echo(json.dumps(line))
        line_count += 1
        if line["score"] is not None or line.get("heads"):
            scored_count += 1
        else:
            unscored_reasons[line.get("reason") or "no reason came"] += 1
    # Report what was not scored.
    if scored_count < line_count:
        click.echo(f"scored {scored_count} of {line_count} lines", err=True)
        for reason, unscored_count in unscored_reasons.most_common(SHOWN_REASONS):
            click.echo(f"not scored, {unscored_count} lines: {reason}", err=True)
    if judged_count or (flagged and line_count):
        click.echo(
            f"flagged {flagged_count} of {line_count} lines; of {line_count - judged_count} it is not known", err=True
        )
    if flagged and scored_count and not judged_count:
        click.echo(
            "Error: no answer is flagged or passed: the checkpoint stores no threshold for these answers. Adapt it with"
            " labelled answers, or give --flag-rate or --flag-below",
            err=True,
        )
        sys.exit(1)
    for reason, call_count in left_out.items():
        click.echo(f"no line for {call_count} call{'s' * (call_count > 1)} {reason}", err=True)
    if not line_count:
        click.echo(f"{file} holds no lines to score", err=True)
    if not scored_count:
        sys.exit(1)


Budget = Annotated[
    float | None,
    Option(
        "Mean cost of 1,000 questions, over all agents asked; by default the cheapest with nearly the best accuracy.",
        above=0,
        metavar="USD_PER_1000",
    ),
]
AskPrice = Annotated[
    float | None,
    Option("Accuracy that each US dollar for 1,000 questions must gain, in place of --budget.", low=0),
]


def _asking_panel(checkpoint: str, sha256: str | None, budget: float | None, price: float | None) -> Any:
    """Loads a panel that stores whom to ask.

    Raises `UsageError` if both a budget and a price are given, and another error if the panel cannot keep the budget.

    Args:
        checkpoint: folder or name of the panel's checkpoint.
        sha256: digest that the checkpoint must have.
        budget: mean cost of 1,000 questions in US dollars.
        price: accuracy that one US dollar for 1,000 questions must bring.
    """
    from metaprobe.routing.panel.asking import Panel

    if budget is not None and price is not None:
        raise click.UsageError("--budget and --price: a budget fixes the price; give either")
    panel = Panel.load(checkpoint, sha256=sha256)
    panel.ask_plan(budget=budget, price=price)
    return panel


@command(COMMAND_GROUP, "Whom to ask next, or whose answer to keep.")
def route(
    checkpoint: OneCheckpoint,
    file: Annotated[Path, Option(kind="file", argument=True)],
    budget: Budget = None,
    price: AskPrice = None,
    sha256: Digest = None,
    *,
    line_options: LineOptions,
) -> None:
    """Decide what to do next about each line's question, from what is known so far: one decision out for each line in.

    A line is {"id", "question", "dimension", "agents": {name: {"answer", "confidence"}}} with the agents that were
    asked so far; every field may be missing. "candidates" names the agents that may be asked, by default all. A bad
    line gives null and the reason; the others are decided. Exit code 1 if more than half of the lines are bad.
    """
    from metaprobe.records.bad_lines import BadFile
    from metaprobe.routing.panel.stored_panels import step_lines

    panel = _asking_panel(checkpoint, sha256, budget, price)
    if budget is None and price is None:
        click.echo(panel.asks.curves.default_in_words(), err=True)
    with line_options.handling(), BadFile.reading(file) as bad:
        decision_lines = step_lines(panel, file, budget=budget, price=price, on_bad=bad.leave_out)
        for line in lines_done("route", decision_lines, file):
            click.echo(json.dumps(line))
            bad.sound += line["action"] is not None
    if not bad.sound and not bad.bad:
        click.echo(f"{file} holds no lines to decide", err=True)
        sys.exit(1)


@click.group()
def evaluate() -> None:
    """Measures a checkpoint on data it has not seen: panel, router."""


COMMAND_GROUP.add_command(evaluate)


@command(evaluate, "Accuracy and cost of a panel, compared with every simple way.", name="router")
def evaluate_router_command(
    checkpoint: OneCheckpoint,
    outcomes: Annotated[Path, Option(kind="file", argument=True)],
    budget: Budget = None,
    decisions: Annotated[Path | None, Option("File for the decisions, one line per question.", kind="new file")] = None,
    cost_usd: Costs = (),
    sha256: Digest = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    *,
    line_options: LineOptions,
) -> None:
    """Print accuracy and cost at a budget, or at the budgets of the checkpoint's own curve. The cost includes all
    agents asked.

    The way to decide comes from the checkpoint, never from the file that is evaluated.
    """
    from metaprobe.records.outcomes import read_outcomes, with_costs
    from metaprobe.training.panel.labelled_panels import panels_of_outcomes
    from metaprobe.training.recipes.panel_evaluate import evaluate_logged, evaluate_panel

    panel = _asking_panel(checkpoint, sha256, budget, None)
    if decisions is not None and budget is None:
        raise click.UsageError("--decisions needs --budget: at which budget is it to decide?")
    with line_options.handling():
        questions = with_costs(read_outcomes(outcomes, agents=panel.agents.names), cost_usd)
    with steps("playing the panel and the simple ways"):
        if any(question.propensities for question in questions):
            figures, decision_lines = evaluate_logged(panel, questions, budget=budget)
        else:
            figures = evaluate_panel(panel, panels_of_outcomes(questions, same=panel.same), budget=budget, seed=seed)
            decision_lines = figures.pop("decisions")
    if decisions is not None:
        decisions.parent.mkdir(parents=True, exist_ok=True)
        decisions.write_text("".join(json.dumps(line) + "\n" for line in decision_lines), encoding="utf-8")
    show_result({"budget": budget, **figures}, as_json, asking_table)


@command(evaluate, "Accuracy by number of answers, compared with every simple way.", name="panel")
def evaluate_panel_command(
    checkpoint: OneCheckpoint,
    answers: Annotated[Path, Option(kind="path", argument=True)],
    sampled: Annotated[str | None, Option("For runs: the stage whose answers are samples.", metavar="STAGE")] = None,
    sha256: Digest = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    *,
    line_options: LineOptions,
) -> None:
    """Print the accuracy of the kept answer: by the number of answers, and by their mean number if asking may stop
    early.

    ANSWERS is what `train panel` takes. Simple ways to stop are tuned on these very answers, which favours them.
    """
    from metaprobe.routing.panel.asking import Panel
    from metaprobe.training.panel.labelled_panels import panels_at
    from metaprobe.training.recipes.panel_evaluate import evaluate_panel

    panel = Panel.load(checkpoint, sha256=sha256)
    same_answers = None if answers.is_dir() else panel.same
    with steps("playing the panel and the simple ways"), line_options.handling():
        data = panels_at(answers, stage=sampled, same=same_answers, score_by=panel.score_by, columns=panel.agents.names)
        result = evaluate_panel(panel, data, seed=seed)
    result.pop("decisions", None)
    show_result(result, as_json, panel_table)


EXIT_CODES = {"PASS": 0, "THRESHOLD STALE": 3, "SCORER DEGRADED": 4, "INCONCLUSIVE": 5}
"""Maps each result of `check` to its exit code. Codes 1 and 2 are errors."""


@command(COMMAND_GROUP, "Whether a checkpoint holds after a change of engine or prompt.", name="check")
def check_command(
    checkpoint: OneCheckpoint,
    after: Annotated[tuple[Path, ...], Option(kind="path", argument=True)],
    flag_options: FlagOptions,
    before: Annotated[
        tuple[Path, ...],
        Option("Earlier labelled answers to the same questions; repeatable.  [default: stored figures]", kind="path"),
    ] = (),
    margin: Annotated[
        float, Option("Largest change of AUROC, and of a share of answers, that counts as no change.", above=0, below=1)
    ] = 0.05,
    run: Annotated[
        str | None,
        Option(
            "The checkpoint's run of the earlier answers; by default the run of their task and variant.",
            metavar="MODEL|TASK|VARIANT",
        ),
    ] = None,
    target: Annotated[str | None, Option("Label that the head predicts.  [default: the score's head]")] = None,
    *,
    call_selection: CallSelection,
    seed: Seed = 0,
    sha256: Digest = None,
    as_json: AsJson = False,
    line_options: LineOptions,
) -> None:
    """Check whether CHECKPOINT holds for AFTER: labelled answers of another engine, quantisation, number format or
    prompt.

    AFTER are run stores, or files of OpenAI-format lines with labels, from which CHECKPOINT has not learned. To pass,
    four things must be shown to have changed by less than the margin: the order of the scores, the share flagged, the
    share of wrong answers among the others, and the mean score. It is not enough that no difference was found.

    Exit code 0: PASS. 3: THRESHOLD STALE, the scores still order the answers, but a share or the mean has certainly
    changed: adapt. 4: SCORER DEGRADED, the order is certainly worse: train again. 5: INCONCLUSIVE, with how many more
    labels would decide.
    """
    from metaprobe.eval.results import plain
    from metaprobe.training.check import check

    with steps("scoring and comparing"), line_options.handling():
        checked = check(
            checkpoint,
            after,
            before=before,
            sha256=sha256,
            target=target,
            stage=call_selection.stage,
            agent=call_selection.agent,
            run=run,
            flags=flag_options,
            margin=margin,
            seed=seed,
        )
    show_result(plain(asdict(checked)), as_json, check_table)
    sys.exit(EXIT_CODES[checked.status])
