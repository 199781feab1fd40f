"""The comparison of a study: methods of the user's own, everything that the report shows, and the report's files."""

import csv
import json
import math
import platform
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.checkpoints import Checkpoint, CheckpointExists
from metaprobe.checkpoints.flagging import AGREEMENT
from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.answers import accuracy_rows, auroc_by_tokens_seen, trajectories, with_stage_accuracy
from metaprobe.eval.compare import (
    BEST_BASELINE,
    add_details,
    explicit_and_implicit,
    headline_by_model,
    method_results,
    write_item_table,
)
from metaprobe.eval.controls import (
    ANSWER,
    DECISION,
    EASE,
    JOINED,
    NUMBERS,
    P_TRUE,
    PROMPT,
    REVERSED,
    SCALED,
    STATED,
    TERMS,
    distinct_controls,
)
from metaprobe.eval.metacognition import (
    NotTwoChoice,
    at_equal_difficulty,
    coupling,
    difficulty_strata,
    metacognitive_efficiency,
    overconfidence,
    two_choice_responses,
)
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.report.words import brief, recommended
from metaprobe.eval.results import (
    Comparison,
    LayerSweep,
    LearningCurve,
    MethodResult,
    SeenMethod,
    SignalComparison,
    TwoChoice,
)
from metaprobe.eval.systems import metacrit_figures as metacrit
from metaprobe.probes.features import COUNTS, features, schema
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.records.plugins import house_function
from metaprobe.records.types import Call, Item, Run
from metaprobe.training.evidence import Evidence, Scores, read_decisions
from metaprobe.training.export import read_by
from metaprobe.training.ladder import ALL_TERMS
from metaprobe.training.linear_probe import LinearProbe
from metaprobe.training.methods import (
    AFTER,
    BEFORE,
    BLEND,
    CONFIDENCE,
    DECISION_LADDER,
    DECISIONS,
    LADDER,
    MEAN_LOGPROB,
    TREES,
    TRUE,
    Blend,
    FeatureTrees,
    GivenScore,
    HiddenProbeMethod,
    LogprobLadder,
    TermsPart,
)
from metaprobe.training.recipes.train_blend import write_blend
from metaprobe.training.recipes.train_hidden import write_hidden
from metaprobe.training.recipes.train_quality import write_quality
from metaprobe.training.recipes.train_text import train_text
from metaprobe.training.stored_runs import load_runs
from metaprobe.training.study import ENOUGH_FOR_ECE, CrossFit, Study, audit_method, crossfit, study, study_of
from metaprobe.training.training_options import CompareOptions, OnStep, TextOptions, WrongOptions, quiet, refuse_ended

SCORE_COLUMNS = ("call_id", "score")
"""Columns that a file of scores must have."""


def own_methods(
    paths: Sequence[Path], table: AnswerTable, call_ids_of_runs: Collection[str], names_taken: Collection[str]
) -> list[GivenScore]:
    """Returns a method for each CSV file with the columns `call_id` and `score`, named like the file.

    A higher score stands for an answer that is likelier right. Every answer of the table needs a row. Rows of other
    calls among `call_ids_of_runs` are ignored. Raises `RecordError` for a file without these columns, for a score that
    is no finite number, and for a name in `names_taken`. An id that is unknown, given twice or missing is an error too.

    Args:
        paths: the CSV files.
        table: the answers.
        call_ids_of_runs: ids of all calls of the runs.
        names_taken: names of other methods.
    """
    methods: list[GivenScore] = []
    for path in paths:
        if path.stem in {*names_taken, *(method.name for method in methods)}:
            raise RecordError(f"{path}: a method is called {path.stem!r} already; rename the file")
        scores = _read_scores(path)
        unknown_ids = [call_id for call_id in scores if call_id not in call_ids_of_runs]
        missing_ids = [call_id for call_id in table.call_ids.tolist() if call_id not in scores]
        faulty_ids = unknown_ids or missing_ids
        named_calls = (
            f"{', '.join(map(repr, faulty_ids[:3]))}{f' and {len(faulty_ids) - 3} more' if len(faulty_ids) > 3 else ''}"
        )
        if unknown_ids:
            example = str(table.call_ids[0])
            raise RecordError(f"{path}: these runs hold no call {named_calls}; expected ids such as {example!r}")
        if missing_ids:
            raise RecordError(f"{path} has no score of {named_calls}; expected one of each of {len(table)} answers")

        def in_order(table: AnswerTable, scores: Mapping[str, float] = scores) -> Scores:
            return np.array([scores[call_id] for call_id in table.call_ids.tolist()])

        are_probabilities = all(0 <= score <= 1 for score in scores.values())
        methods.append(GivenScore(path.stem, "own", in_order, probability=are_probabilities))
    return methods


def _read_scores(path: Path) -> dict[str, float]:
    """Maps the id of a call to its score in a CSV file."""
    scores: dict[str, float] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            if absent := [name for name in SCORE_COLUMNS if name not in (rows.fieldnames or ())]:
                raise RecordError(
                    f"{path}: the first line is {','.join(rows.fieldnames or ()) or 'empty'}; expected a header with "
                    f"the columns {' and '.join(SCORE_COLUMNS)} ({', '.join(absent)} is missing)"
                )
            for row in rows:
                call_id, line_place = row["call_id"], f"{path}:{rows.line_num}"
                try:
                    score = float(row["score"] or "")
                except ValueError:
                    score = math.nan
                if not math.isfinite(score):
                    raise RecordError(
                        f"{line_place}: {call_id!r} has the score {row['score']!r}; expected a finite number"
                    )
                if call_id in scores:
                    raise RecordError(f"{line_place}: {call_id!r} was given before; expected one row a call")
                scores[call_id] = score
    except (UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{path} is no CSV file in UTF-8: {error}") from error
    return scores


TREES_OF_FIRST_TOKENS = f"{TREES}, first tokens"
"""Name of the method that reads only the first k tokens."""


def first_token_scores(evidence: Evidence, *, folds: int, seed: int) -> dict[str, dict[int, Scores]]:
    """Maps the method's name and k to out-of-fold scores (n,) of trees on features of the first k tokens.

    The result is for `auroc_by_tokens_seen`. A k for which the trees find nothing to split is left out. For very short
    answers that may be every k.
    """
    if not evidence.table.measured:
        return {}
    logprobs = list(evidence.table.logprobs)
    by_count = {}
    for k in COUNTS:
        prefix = schema(f"prefix-{k}")
        seen = replace(
            evidence,
            features=features(prefix, logprobs),
            feature_names=prefix.names,
            schema=prefix.name,
            states=None,
        )
        with suppress(RecordError):
            by_count[k] = crossfit(seen, [FeatureTrees()], folds=folds, seed=seed)[TREES].ranking
    return {TREES_OF_FIRST_TOKENS: by_count} if by_count else {}


STEP_OF_CONTROL = {name: number for number, name in NUMBERS.items()}
"""Maps the name of a control to the step of the ladder that is this free number."""
TEXT_OPTIONS_OF_CONTROL = {PROMPT: "", ANSWER: "", JOINED: " --with-logprobs"}
"""Maps a control on words to the options with which `metaprobe train text` reads the same texts."""
TRAINING_OF_METHOD = {BLEND: "blend", LADDER: "quality", BEFORE: "hidden --when before", AFTER: "hidden --when after"}
TRAINING_OF_METHOD |= {DECISIONS: "quality --reads decisions"}
"""Maps a method to the arguments of `metaprobe train` that write its checkpoint."""


def headline_method(results: Sequence[MethodResult], chosen: Sequence[str] = ()) -> MethodResult:
    """Returns the method that a report is about. It is chosen without the answers on which it is measured.

    `chosen` holds the learned method that each fold chose on its learning rows (`CrossFit.best_learned`). The method of
    most folds is returned; the best method on the test rows would look better than it is. If no fold chose, it is the
    first learned method in a fixed order, else the user's own method, else the first method.
    """
    by_name = {result.name: result for result in results}
    folds = [name for name, _ in Counter(chosen).most_common()]
    learned = (by_name.get(name) for name in (*folds, BLEND, LADDER, AFTER, BEFORE, DECISIONS))
    own_results = (result for result in results if result.family == "own")
    return next((candidate for candidate in (*learned, *own_results) if candidate is not None), results[0])


def options_of(study: Study) -> dict[str, str]:
    """Maps the study's options that differ from their defaults to values, for a command that repeats the study."""
    defaults = {field.name: field.default for field in fields(CompareOptions)}
    values = {
        "target": study.target,
        "stage": study.stage,
        "agent": study.agent,
        "folds": len(study.fits.roles),
        "seed": study.seed,
    }
    return {name: str(value) for name, value in values.items() if value != defaults[name]}


def recommended_checkpoint(
    method: MethodResult | None, runs: str = "RUNS", *, options: Mapping[str, str] | None = None
) -> str:
    """Returns a sentence with the command that writes the checkpoint of the method that a report recommends.

    It is empty if the report recommends no method, or if there is no checkpoint of the method.

    Args:
        method: the recommended method.
        runs: the stores, as a command line names them.
        options: the result of `options_of`; the command gets the options that it takes.
    """

    def option_text(*left_out: str) -> str:
        kept_options = {name: value for name, value in (options or {}).items() if name not in left_out}
        return "".join(f" --{name} {shlex.quote(value)}" for name, value in kept_options.items())

    if method is None:
        return ""
    if method.name in TRAINING_OF_METHOD:
        return (
            f"`metaprobe train {TRAINING_OF_METHOD[method.name]} {runs}{option_text()} --out C` writes its checkpoint."
        )
    if method.name in TEXT_OPTIONS_OF_CONTROL:
        words = f"{TEXT_OPTIONS_OF_CONTROL[method.name]}{option_text()}"
        return f"`metaprobe train text {runs}{words} --out C` writes a checkpoint that reads the same."
    if method.name == SCALED and "target" not in (options or {}):  # bundled:quality has no head for another label
        return f"`metaprobe adapt bundled:quality {runs}{option_text('folds')} --out C` makes a flag of it."
    if _step_of(method.name) or method.name.startswith(DECISION) or method.name in (STATED, P_TRUE):
        return f"`metaprobe compare {runs}{option_text()} --out REPORT --export C` writes its checkpoint, with a flag."
    return ""


def _step_of(name: str) -> str:
    """Returns the step of the ladder that equals the control `name`; empty if there is no such step."""
    unreversed = name.removesuffix(REVERSED)
    step = ALL_TERMS if unreversed == TERMS else STEP_OF_CONTROL.get(unreversed, "")
    return f"{step}{REVERSED}" if step and unreversed != name else step


def answer_texts(runs: Sequence[Run], table: AnswerTable) -> tuple[list[Item], list[str | None]]:
    """Returns the item and the extracted answer of every row; None for an answer whose text was not stored.

    Raises `KeyError` if the run of a row is not among `runs`.
    """
    call_by_id: dict[str, tuple[Run, Call]] = {call.id: (run, call) for run in runs for call in run.calls}
    pairs = [call_by_id[call_id] for call_id in table.call_ids.tolist()]
    known_system = house_function("known_system")

    def extracted_answer(run: Run, call: Call) -> str | None:
        if not call.text:
            return None
        system = known_system(run.system)
        return call.text.strip() if system is None else system.extract_answer(run.item, call, run.variant)

    return [run.item for run, _ in pairs], [extracted_answer(run, call) for run, call in pairs]


def efficiency_of(
    table: AnswerTable, fits: CrossFit, runs: Sequence[Run], *, target: str, seed: int = 0
) -> tuple[TwoChoice | None, str]:
    """Returns the metacognitive efficiency, or None and the reason why it cannot be computed."""
    if not runs:
        return None, "the runs were not given"
    if target != "correct":
        return None, f"the answers are judged by their label {target!r}, not by being right"
    try:
        responses = two_choice_responses(*answer_texts(runs, table), table.y)
        return metacognitive_efficiency(table, fits.methods, responses, seed=seed), ""
    except NotTwoChoice as reason:
        return None, str(reason)


EXPLICIT = (STATED, P_TRUE, EASE)
"""Stated numbers that may stand for the explicit signal, the first that the answers have."""


def signals_of(table: AnswerTable, fits: CrossFit, *, seed: int = 0) -> SignalComparison | None:
    """Returns the comparison of explicit with implicit signals.

    The implicit method is the one that most folds chose on their learning rows, the blend excluded. None if nothing
    was stated or nothing was learned.
    """
    names = {method.name for method in fits.methods}
    explicit = next((name for name in EXPLICIT if name in names), "")
    chosen = Counter(fits.best_implicit).most_common(1)
    if not explicit or not chosen:
        return None
    # The blend shows what the stated number adds only if it joins that number and the log-probabilities, nothing else:
    # with states or a second stated number, its gain may be theirs.
    part_of_explicit = {STATED: CONFIDENCE.name, P_TRUE: TRUE.name}.get(explicit, "")
    joined_parts = {part.name for fold in fits.joined.get(BLEND, ()) for part in fold.methods}
    implicit = chosen[0][0]
    joins_the_two = implicit == LADDER and joined_parts == {TermsPart().name, part_of_explicit}
    trio = explicit, implicit, BLEND if joins_the_two else ""
    return explicit_and_implicit(table, fits.methods, trio, fold=fits.fold, seed=seed)


DIFFICULTY_METHOD = PROMPT
"""Method whose estimate replaces the difficulty if the items have no levels."""


def comparison(
    study: Study,
    *,
    runs: Sequence[Run] = (),
    notes: Sequence[str] = (),
    learning: LearningCurve | None = None,
    command: str,
    on_step: OnStep = quiet,
) -> Comparison:
    """Returns everything that a report shows of a study.

    Args:
        study: the study.
        runs: the runs themselves. Without them, parts that need runs are left out, such as metacognitive efficiency.
        notes: further limits of the data.
        learning: the learning curve; None if it was not computed.
        command: command that made the comparison.
        on_step: called with the name of each audited method.
    """
    # Figures of the methods.
    evidence, fits, seed = study.evidence, study.fits, study.seed
    table, stores = evidence.table, shlex.join(map(str, study.stores))
    basic_results = method_results(table, fits.methods, fold=fits.fold, seed=seed)
    results = add_details(table, fits.methods, basic_results, seed=seed)
    headline = headline_method(results, fits.best_learned).name
    signals = signals_of(table, fits, seed=seed)
    strata = difficulty_strata(table, estimate=next((m for m in fits.methods if m.name == DIFFICULTY_METHOD), None))
    equal_difficulty = None if strata is None else at_equal_difficulty(table, fits.methods, strata, seed=seed)
    efficiency, refusal = efficiency_of(table, fits, runs, target=study.target, seed=seed)
    first_tokens = first_token_scores(evidence, folds=len(fits.roles), seed=seed)
    sections: dict[str, Any] = {"coupling": coupling(runs, seed=seed)}
    if criticised := [run for run in runs if run.system == "metacrit"]:
        # Variants are ablations, that is, other systems. The table shows the variant with most runs.
        variant = Counter(run.variant for run in criticised).most_common(1)[0][0]
        rows = metacrit.agreement([run for run in criticised if run.variant == variant], seed=seed)
        if any(row.n for row in rows):
            sections |= {"agreement": rows, "failures": metacrit.failure_types(runs)}
    # Audits of the learned methods and the user's own methods. An audit of the answers, which all share, appears once.
    audited_methods = [
        method for method in fits.methods if method.family in ("learned", "own") or method.name == DECISIONS
    ]
    reports = []
    for audit_index, method in enumerate(audited_methods, 1):
        on_step(f"audit {audit_index} of {len(audited_methods)}: {method.name}")
        reports.append(audit_method(evidence, fits, method, seed=seed))
    compared = Comparison(
        title="Which signals tell right from wrong",
        headline=headline,
        chosen=dict(Counter(fits.best_learned).most_common()),
        provenance=_provenance(evidence, command, seed),
        y=table.y,
        methods=results,
        best_baseline=BEST_BASELINE,
        baselines=dict(Counter(fits.best_baseline).most_common()),
        runs=stores,
        accuracy=accuracy_rows(table),
        learning=learning,
        signals=signals,
        by_model=headline_by_model(table, fits.methods, headline, fold=fits.fold, seed=seed),
        sweeps=tuple(
            _sweep(fits.probes[method.name], next(r for r in results if r.name == method.name))
            for method in study.methods
            if isinstance(method, HiddenProbeMethod) and not method.layers
        ),
        trajectories=trajectories(table),
        difficulty=equal_difficulty,
        overconfidence=overconfidence(table, fits.methods, strata, seed=seed),
        two_choice=efficiency,
        two_choice_refused=refusal,
        seen=auroc_by_tokens_seen(table, learned=first_tokens, seed=seed),
        **sections,
        audits=tuple(dict.fromkeys(audit for report in reports for audit in report.audits)),
        notes=(*notes, *_limits(evidence, has_difficulty=strata is not None)),
    )
    compared = replace(
        compared, exported=recommended_checkpoint(recommended(compared), stores, options=options_of(study))
    )
    return with_stage_accuracy(compared, runs, seed=seed)


def _limits(evidence: Evidence, *, has_difficulty: bool) -> list[str]:
    """Returns a sentence for each part that the report cannot show of these answers."""
    n, without_count = len(evidence.table), evidence.without_hidden
    limits = [f"{evidence.regrouped}."] if evidence.regrouped else []
    if not has_difficulty:
        limits.append(
            f"Difficulty: the items have no levels, and {DIFFICULTY_METHOD} knows nothing of it; nothing is held "
            "constant."
        )
    distinct = distinct_controls(evidence.table)
    for kept in dict.fromkeys(distinct.same_order.values()):
        alike = [name for name, other in distinct.same_order.items() if other == kept]
        limits.append(f"{kept} also stands for {', '.join(alike)}: on these answers they give the same order.")
    if distinct.constant:
        limits.append(f"Left out, because the same for all answers: {', '.join(distinct.constant)}.")
    if not evidence.table.measured:
        limits.append("The answers hold no log-probabilities: no method that reads them is shown.")
    if 0 < without_count < n:
        limits.append(f"{without_count} of {n} answers have no hidden states: no probes.")
    if evidence.states_refused:
        limits.append(f"No probes: {evidence.states_refused}.")
    if n < ENOUGH_FOR_ECE:
        limits.append(f"ECE: {n} answers are too few to quote it; {ENOUGH_FOR_ECE} are needed.")
    return limits


def _sweep(probes: Sequence[LinearProbe], result: MethodResult) -> LayerSweep:
    """Returns the selection AUROC of every layer and position, averaged over the folds, and each fold's choice."""
    first = probes[0].sweep
    layers = tuple(dict.fromkeys(point.layer for point in first))
    positions = tuple(dict.fromkeys(point.position for point in first))
    grid = np.zeros((len(layers), len(positions)))
    for probe in probes:
        for point in probe.sweep:
            cell = layers.index(point.layer), positions.index(point.position)
            grid[cell] += point.auroc / len(probes)
    return LayerSweep(
        probe=result.name,
        layers=layers,
        positions=positions,
        selection_auroc=grid,
        choices=tuple((probe.layers[0], probe.position) for probe in probes),
        test_auroc=result.auroc,
    )


def _provenance(evidence: Evidence, command: str, seed: int) -> Mapping[str, str]:
    table, generator = evidence.table, evidence.generator
    packages = ("metaprobe", "numpy", "lightgbm", "scikit-learn", "onnxruntime")
    return {
        "model": ", ".join(generator.models) if generator else ", ".join(sorted(set(table.models.tolist()))),
        "revision": generator.revision or "several" if generator else "several",
        "dtype": generator.dtype or "several" if generator else "several",
        "log-probabilities": (generator.logprobs_mode if generator else "unknown") + read_by(evidence.logprobs_reader),
        "items": str(len(set(table.items.tolist()))),
        "answers": str(len(table)),
        "groups": str(len(set(table.groups.tolist()))),
        "training data": evidence.fingerprint,
        "seed": str(seed),
        "versions": ", ".join(f"{package} {version(package)}" for package in packages),
        "python": platform.python_version(),
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def require_report() -> None:
    """Raises `MissingExtra` if a package of the report is missing. Call it before minutes of collecting and fitting."""
    for module in ("pyarrow", "lightgbm", "sklearn", "jinja2", "matplotlib", "pandas"):
        require(module, "report")


def write_comparison(
    folder: str | Path,
    study: Study,
    *,
    notes: Sequence[str] = (),
    learning: LearningCurve | None = None,
    command: str,
) -> tuple[Comparison, Path]:
    """Makes the comparison of a study and writes its report (`write_report`). Returns both: comparison and path."""
    write_scores(folder, study)
    compared = comparison_of_study(study, notes=notes, learning=learning, command=command)
    return compared, write_report(folder, compared)


def comparison_of_study(
    study: Study,
    *,
    notes: Sequence[str] = (),
    learning: LearningCurve | None = None,
    command: str,
    on_step: OnStep = quiet,
) -> Comparison:
    """Returns the comparison of a study, with figures of its stored runs. Raises `MissingExtra` as `require_report`."""
    require_report()
    runs = load_runs(study.stores, warned=True)
    return comparison(study, runs=runs, notes=notes, learning=learning, command=command, on_step=on_step)


def write_scores(folder: str | Path, study: Study) -> None:
    """Writes the held-out scores of every method, which took minutes of fitting, before anything else is computed."""
    write_item_table(folder, study.evidence.table, study.fits.methods)


def write_report(folder: str | Path, compared: Comparison) -> Path:
    """Writes comparison.json, the report, its tables as CSV and LaTeX, and its drawings as SVG and PDF.

    Returns the report's path.
    """
    from metaprobe.eval.report.write import REPORT_FILE, report_files

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # The numbers come first: a drawing that fails does not lose them.
    (folder / "comparison.json").write_text(json.dumps(compared.to_dict(), indent=2) + "\n", encoding="utf-8")
    for name, content in report_files(compared).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / REPORT_FILE


def with_place_read(compared: Comparison, name: str, checkpoint: Checkpoint) -> Comparison:
    """Returns the comparison with the layer and the position that the checkpoint of a probe reads.

    `name` is the exported method. If it is no probe, the comparison is returned unchanged.
    """
    contract = checkpoint.manifest.contract
    return replace(
        compared,
        sweeps=tuple(
            replace(sweep, shipped=(contract["layer"], contract["position"])) if sweep.probe == name else sweep
            for sweep in compared.sweeps
        ),
    )


# The comparison as a command: the report, and the checkpoint of the method that the report is about.


def compare(stores: Sequence[str | Path], options: CompareOptions) -> Comparison:
    """Returns the comparison of every method on these stores, and writes its report into the folder `out`.

    With `export` the checkpoint of the method that the report recommends is written too. Raises `CheckpointExists` if
    that folder exists. Raises `RecordError` if the report recommends no method, or a method without a checkpoint; the
    report is written even if it recommends none.
    """
    # Refuse wrong options before anything is computed.
    if options.target == AGREEMENT:
        raise WrongOptions(
            "target agreement: a report compares signals by labels of right and wrong answers; `train quality --target "
            "agreement` measures its predictor beside each free number on the pairs of answers"
        )
    refuse_ended(options.target)
    require_report()
    if options.export is not None and Path(options.export).exists():
        raise CheckpointExists(f"{options.export} exists; expected a new folder for the checkpoint: name another one")
    score_files = [options.scores] if isinstance(options.scores, str | Path) else options.scores
    files = [Path(path) for path in score_files]

    def own_score_methods(evidence: Evidence, names: Sequence[str]) -> list[GivenScore]:
        call_ids = {call.id for run in load_runs(stores, warned=True) for call in run.calls} if files else set()
        return own_methods(files, evidence.table, call_ids, (*names, BLEND, BEST_BASELINE))

    # Fit and compare.
    faster_ways = ["--folds 3"] if options.folds > 3 else []
    faster_ways += ["a run without --learning-curves"] if options.learning_curves else []
    options.on_line(
        f"compare     each method is fitted in {options.folds} folds, then audited"
        + (f"; {' or '.join(faster_ways)} takes less time" if faster_ways else "")
    )
    study_result = study(
        stores,
        own_methods=own_score_methods,
        bare=True,
        target=options.target,
        stage=options.stage,
        agent=options.agent,
        folds=options.folds,
        seed=options.seed,
        on_step=options.on_step,
    )
    write_scores(options.out, study_result)
    command = options.recorded("compare")
    try:
        learning = learning_curve(study_result, on_step=options.on_step) if options.learning_curves else None
        options.on_step("intervals")
        compared = comparison_of_study(study_result, learning=learning, command=command, on_step=options.on_step)
        options.on_step("report: tables and figures")
        write_report(options.out, compared)
    except Exception as error:
        error.add_note(f"The held-out scores of every method are in {options.out}/items.csv and items.parquet.")
        raise
    # Export the recommended method.
    recommended_method = recommended(compared)
    if options.export is not None and recommended_method is not None:
        options.on_step(f"audit and export: {recommended_method.name}")
        checkpoint = write_method(
            options.export, study_result, recommended_method.name, options=options, command=command
        )
        options.on_line(f"checkpoint  {checkpoint.path} ({recommended_method.name})")
        if any(sweep.probe == recommended_method.name for sweep in compared.sweeps):
            compared = with_place_read(compared, recommended_method.name, checkpoint)
            write_report(options.out, compared)
    if options.export is not None and recommended_method is None:
        raise RecordError(
            f"the report in {options.out} recommends no method yet, so no checkpoint was written to "
            f"{options.export}: {' '.join(brief(compared).do)}"
        )
    return compared


def write_method(
    path: str | Path, study: Study, name: str, *, options: CompareOptions | None = None, command: str
) -> Checkpoint:
    """Writes the checkpoint of a study's method, learned or a control.

    Raises `RecordError` for a method without a checkpoint.

    Args:
        path: folder of the checkpoint.
        study: the study.
        name: name of the method.
        options: options of the comparison, for a reader of words, which loads the texts again.
        command: command that made the checkpoint.
    """
    # Controls: readers of words, steps of the ladder, single decisions, and stated numbers.
    if name in TEXT_OPTIONS_OF_CONTROL:
        option_values = (
            {key: getattr(options, key) for key in ("stage", "agent", "folds", "on_step", "on_line")} if options else {}
        )
        option_values |= {"with_logprobs": name == JOINED, "command": command}
        text_options = TextOptions(out=path, target=study.target, seed=study.seed, **option_values)
        return train_text(study.stores, text_options)
    folds, seed = len(study.fits.roles), study.seed
    if step := _step_of(name):
        step_study = study_of(study.evidence, folds=folds, seed=seed, ladder=LogprobLadder(only=step))
        return write_quality(path, {study.target: step_study}, command=command)
    if name.startswith(DECISION):
        ladder = replace(DECISION_LADDER, only=name.removeprefix(DECISION))
        decision_study = study_of(read_decisions(study.evidence), folds=folds, seed=seed, ladder=ladder)
        return write_quality(path, {study.target: decision_study}, command=command)
    if name in (STATED, P_TRUE):
        stated_blend = Blend((CONFIDENCE if name == STATED else TRUE,))
        methods = (*(method for method in study.methods if not isinstance(method, Blend)), stated_blend)
        stated_study = replace(study, methods=methods, fits=crossfit(study.evidence, methods, folds=folds, seed=seed))
        return write_blend(path, stated_study, target=study.target, command=command)
    if name not in TRAINING_OF_METHOD:
        exportable = (*TRAINING_OF_METHOD, *TEXT_OPTIONS_OF_CONTROL, *STEP_OF_CONTROL, STATED, P_TRUE)
        raise RecordError(
            f"the report recommends {name!r}, of which there is no checkpoint: it is known of an answer without a "
            f"predictor, or it is your own; there is one of {', '.join(exportable)}"
        )
    # Learned methods.
    if name == BLEND:
        return write_blend(path, study, target=study.target, command=command)
    if name == LADDER:
        return write_quality(path, {study.target: study}, command=command)
    if name == DECISIONS:
        decision_study = study_of(read_decisions(study.evidence), seed=study.seed, ladder=DECISION_LADDER)
        return write_quality(path, {study.target: decision_study}, command=command)
    return write_hidden(path, study, when="before" if name == BEFORE else "after", target=study.target, command=command)


# The learning curve: the folds are fitted again, each on fewer labels.

LABEL_COUNTS = (100, 300, 1000, 3000)
"""Numbers of labels that a fold learns from, in the curve that papers on probes show."""
METHODS_SHOWN = (MEAN_LOGPROB, LADDER, BEFORE, AFTER, BLEND)


def learning_curve(study: Study, *, on_step: OnStep = quiet) -> LearningCurve | None:
    """Returns the AUROC of the learned methods and of the mean log-probability by the number of labels.

    Each size is one draw of groups, the same for all methods. Sizes beyond the folds' labels, and sizes with too few
    groups for the folds, are left out. Returns None if no size is left besides all labels.
    """
    table, all_labels = study.evidence.table, min(len(roles.seen) for roles in study.fits.roles)
    methods = [method for method in study.methods if method.name in METHODS_SHOWN]
    method_names = [method.name for method in methods]
    weights = cluster_weights(table.groups.tolist(), seed=study.seed)

    def aurocs(fits: CrossFit) -> dict[str, Interval]:
        return {name: interval(auroc, table.y, fits[name].ranking, weights) for name in method_names}

    points: dict[int, dict[str, Interval]] = {}
    for labels in (size for size in LABEL_COUNTS if size < all_labels):
        on_step(f"learning curve: {labels} labels")
        with suppress(RecordError):
            fits = crossfit(study.evidence, methods, folds=len(study.fits.roles), seed=study.seed, labels=labels)
            points[labels] = aurocs(fits)
    if not points or not method_names:
        return None
    points[all_labels] = aurocs(study.fits)
    family = {judged.name: judged.family for judged in study.fits.methods}
    return LearningCurve(
        labels=tuple(points),
        methods=tuple(
            SeenMethod(name, family[name], tuple(point[name] for point in points.values())) for name in method_names
        ),
    )
