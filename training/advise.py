"""Says which signals of answer quality a log can support, how many labels it has, and which command comes next.

docs/choose.md has a row for each of `SIGNAL_TITLES`, with what the signal costs and what it was worth here.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from metaprobe.llms.weights import DEFAULT_MODEL, EMBEDDED
from metaprobe.probes.verbalized import parse_named_confidence
from metaprobe.records.bad_lines import BadFile
from metaprobe.records.errors import RecordError
from metaprobe.records.import_line import QUESTION_KEY, question_id_of
from metaprobe.records.importer import LINES, format_of, read_log
from metaprobe.records.logs.logged_answer import LogOptions
from metaprobe.records.outcome_tables import agents_of_columns, columns_of, is_outcome_table
from metaprobe.records.outcomes import is_outcomes, outcomes_of_file
from metaprobe.records.types import Run
from metaprobe.training.agreement import MIN_QUESTIONS

TARGET = "correct"
MIN_ADAPT_LABELS, MIN_ADAPT_LABELS_OF_A_KIND = 20, 3
"""Fewest labelled answers for `adapt`, and fewest right and fewest wrong ones among them (`training.rescale`)."""
FEWEST_TO_TRAIN = 10
"""Fewest questions with a right answer, and with a wrong answer, that a training needs for its folds."""
MIN_OUTCOME_GROUPS = {"router": 60, "panel": 50}
"""Fewest groups of questions for each training on outcomes (`FEWEST_ASKED` and `MIN_PANEL_GROUPS`; a test compares
them).
"""
LONG_ANSWER_TOKENS, FEWEST_LONG_RIGHT, FEWEST_LONG_WRONG = 100, 100, 40
"""Tokens from which an answer is long enough for a gate, and fewest right and wrong long answers for `train gate`."""
TRAINING_PAYS = 200
"""Fewest labelled answers for which training anew is advised instead of adapting. With 50 and 100 labels the adapted
bundled predictor was better, by the whole interval of the difference in AUROC (`curve` in docs/measured/travel.json; a
test compares).
"""
IMPORTED, OUT = "out/runs", "out"
"""Folders that the printed commands write to."""

SIGNAL_TITLES = {
    "log-probabilities": "log-probabilities of the answers",
    "stated": "a confidence that the model states",
    "samples": "several answers to one question",
    "weights": "the model's weights, or its stored hidden states",
    "text": "the text alone",
    "decisions": "a decision API",
}
"""Maps the key of a signal to its name on the page."""


@dataclass(slots=True)
class Contents:
    """Counts of what the answers of a log hold."""

    answers: int = 0
    with_logprobs: int = 0
    with_stated: int = 0
    with_texts: int = 0
    with_prompts: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    right: set[tuple[str, str]] = field(default_factory=set)
    """Questions with an answer that a label calls right."""
    wrong: set[tuple[str, str]] = field(default_factory=set)
    """Questions with an answer that a label calls wrong."""
    models: Counter[str] = field(default_factory=Counter)
    by_question: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_sampled_question: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Number of answers to each question, where a group may hold several questions."""
    by_stage: Counter[str] = field(default_factory=Counter)
    """Number of labelled answers of each stage."""
    long: Counter[bool] = field(default_factory=Counter)
    """Number of right and of wrong labelled answers with log-probabilities and at least `LONG_ANSWER_TOKENS` tokens."""
    judged: set[str] = field(default_factory=set)
    """Ids of the calls that a decision API has judged."""
    states: int = 0
    """Number of answers with stored hidden states."""
    taken: Counter[str] = field(default_factory=Counter)
    """Counts answers by the field that the label `correct` was taken from, or by the reason why there is no label."""

    def add(self, run: Run, name: str, *, names_question: bool = True) -> None:
        """Counts a run's labelled answers. If the run has no label, counts all its answers.

        Args:
            run: the run.
            name: its question, or a group that several questions may share.
            names_question: whether `name` is the question; else answers to equal messages are samples of one.
        """
        question = run.item.task, name
        right = {label.call_id: bool(label.value) for label in run.labels if label.name == TARGET}
        for call in run.calls:
            if right and call.id not in right:
                continue
            self.answers += 1
            self.with_logprobs += call.logprobs is not None and len(call.logprobs) > 0
            self.with_texts += bool(call.text)
            self.with_prompts += bool(call.messages)
            self.models[call.model] += bool(call.model)
            self.by_question[question] += 1
            texts = [message.content for message in call.messages] or [run.item.question]
            self.by_sampled_question[*question, *(() if names_question else texts)] += 1
            self.by_stage[call.stage] += call.id in right
            if call.id in right and call.logprobs is not None and len(call.logprobs) >= LONG_ANSWER_TOKENS:
                self.long[right[call.id]] += 1
        self.judged.update(answer.call_id for answer in run.decision_answers)
        self.with_stated += run.stated("confidence") is not None
        for label in run.labels:
            self.labels[label.name] += 1
            if label.name == TARGET:
                (self.right if label.value else self.wrong).add(question)


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether a log supports one signal, and what comes next."""

    signal: str
    """Key of `SIGNAL_TITLES`."""
    supported: bool
    why: str
    commands: tuple[str, ...]
    """The next commands, in order; empty if there is nothing to do with this log."""


@dataclass(frozen=True, slots=True)
class Advised:
    """Says what a log can support: its answers, labels and signals, and the commands that they allow."""

    what: str
    """Format of the log."""
    answers: int
    questions: int
    labels: dict[str, int]
    """Maps a label to the number of answers that have it."""
    right: int
    """Number of questions with a right answer."""
    wrong: int
    """Number of questions with a wrong answer."""
    left_out: int
    """Number of lines that cannot be read."""
    reasons: dict[str, int]
    """Maps a reason why lines cannot be read to the number of such lines."""
    taken: dict[str, int]
    """Counts answers by the field that the label `correct` was taken from, or by the reason why there is no label."""
    signals: tuple[Advice, ...]


def advise(path: Path) -> Advised:
    """Returns what the log at `path` supports: a run store, a file of outcomes, or any file that `import` reads.

    Raises `RecordError` where the log holds no answers, and the reader's own errors.
    """
    left_out = Counter[str]()
    import_commands: tuple[str, ...] = ()
    if path.is_dir() and any(path.glob("runs-*.parquet")):
        from metaprobe.records.store import RunStore  # needs the extra `fit`, which a file of lines does not

        store, what, is_lines = RunStore(path, damaged="skip"), "run store", False
        contents = Contents()
        for run in store.runs(hidden=False):
            contents.add(run, run.item.id)
        contents.states = sum(len(file.call_ids) for file in store.activation_files())
        store_path = quote(str(path))
    else:
        log_format = format_of(path, "auto")
        if log_format is LINES and is_outcomes(path):
            return _advise_outcomes(path)
        what, is_lines = log_format.what, log_format is LINES
        contents = Contents()
        bad = BadFile(path)
        # Without numbers an answer is still a text.
        logged_lines = read_log(
            path,
            log_format,
            LogOptions(on_error=bad.leave_out, plain=True),
            stated=parse_named_confidence,
            on_left_out=lambda sample, reason: left_out.update([reason]),
        )
        for line in logged_lines:
            name = question_id_of(line.record, line.run.item.id)
            contents.add(line.run, name, names_question=QUESTION_KEY in line.record)
            contents.taken[line.label_source] += bool(line.label_source)
        bad.sound = contents.answers + left_out.total()
        bad.check()
        left_out.update(_reasons(bad))
        plain_option = " --plain" * (contents.with_logprobs < contents.answers)
        import_commands, store_path = (f"metaprobe import {quote(str(path))} --out {IMPORTED}{plain_option}",), IMPORTED
    if not contents.answers:
        why = f" that can be read ({next(iter(left_out))})" if left_out else ""
        raise RecordError(
            f"{path} holds no answers{why}; expected a run store, or a file that `metaprobe import` reads"
        )
    return Advised(
        what,
        contents.answers,
        len(contents.by_question),
        dict(contents.labels.most_common()),
        len(contents.right),
        len(contents.wrong),
        left_out.total(),
        dict(left_out.most_common()),
        dict((+contents.taken).most_common()),
        tuple(_signals(contents, import_commands, store_path, str(path) if is_lines else "")),
    )


def _reasons(bad: BadFile) -> dict[str, int]:
    """Returns how many lines are bad, by the reason and the first line with it."""
    return {f"bad: {kind}; the first: {reason.first}": reason.count for kind, reason in bad.reasons.items()}


def _advise_outcomes(path: Path) -> Advised:
    """Returns what a file of outcomes of agents supports. Raises `ImportFileError` where most lines are no outcome."""
    bad = BadFile(path)
    agents: list[str] = []
    if is_outcome_table(path):
        columns, score_columns = columns_of(path)
        # Columns that only look like scores are guessed here: the user reads the names before the command runs.
        agents = [] if agents_of_columns(columns) else score_columns
    questions = outcomes_of_file(path, bad, agents)
    bad.check()
    names = sorted({name for question in questions for name in question.agents})
    outcomes = [outcome for question in questions for outcome in question.agents.values()]
    scores = [[agent.score for agent in question.agents.values() if agent.score is not None] for question in questions]
    labelled = sum(map(len, scores))
    answered_by_all = [question for question in questions if len(question.agents) == len(names)]
    priced = [
        outcomes_of_question
        for outcomes_of_question in answered_by_all
        if all(agent.cost_usd is not None for agent in outcomes_of_question.agents.values())
    ]
    logged = any(question.propensities for question in questions)
    recipe = "router" if priced or logged else "panel"
    groups, min_groups = (
        len({outcomes_of_question.group for outcomes_of_question in (priced or answered_by_all)}),
        MIN_OUTCOME_GROUPS[recipe],
    )
    why = (
        f"{len(names):,} agents ({', '.join(names)}), of which all answered {len(answered_by_all):,} of "
        f"{len(questions):,}"
        f" questions, {len(priced):,} at a known price (cost_usd); train {recipe} takes {min_groups} groups of these"
    )
    agent_options = "".join(f" --agent {quote(name)}" for name in agents)
    if agents:
        why += f"; the columns {', '.join(agents)} hold scores: leave out what is no agent"
    commands = (f"metaprobe train {recipe} {quote(str(path))}{agent_options} --out {OUT}/{recipe}",)
    supported = len(names) > 1 and labelled > 0 and (logged or groups >= min_groups)
    return Advised(
        what="outcomes of agents",
        answers=len(outcomes),
        questions=len(questions),
        labels={TARGET: labelled} if labelled else {},
        right=sum(1.0 in labels for labels in scores),
        wrong=sum(0.0 in labels for labels in scores),
        left_out=bad.bad,
        reasons=_reasons(bad),
        taken={},
        signals=(Advice("outcomes", supported, why, commands if supported else ()),),
    )


def _signals(contents: Contents, import_commands: tuple[str, ...], store_path: str, line_file: str) -> Iterator[Advice]:
    """Yields the advice for each signal.

    Args:
        contents: what the log holds.
        import_commands: commands that make the run store; empty if the log is one.
        store_path: path of the run store.
        line_file: file of lines that every command reads as it is; empty if the log is no such file.
    """
    # The paths that commands read, and the steps that must come before: for texts, and for log-probabilities.
    labelled_count, rarer_count = contents.labels[TARGET], min(len(contents.right), len(contents.wrong))
    label_commands = () if labelled_count else (f"metaprobe label {store_path}",)
    logprob_count, model = contents.with_logprobs, next(iter(+contents.models), "MODEL")
    text_path, text_steps = (quote(line_file), ()) if line_file else (store_path, import_commands)
    logprob_path, logprob_steps = (
        (text_path, text_steps) if logprob_count == contents.answers else (store_path, import_commands)
    )
    score_command = f"metaprobe score bundled:quality {text_path}"
    has_long_answers = contents.long[True] >= FEWEST_LONG_RIGHT and contents.long[False] >= FEWEST_LONG_WRONG
    gate_commands = (f"metaprobe train gate {logprob_path} --out {OUT}/gate",) * has_long_answers
    gate_clause = (
        f"; {contents.long.total():,} are of {LONG_ANSWER_TOKENS} tokens and more: a gate may stop such streams early"
        * has_long_answers
    )
    # Log-probabilities.
    if not logprob_count:
        yield Advice("log-probabilities", False, "no answer has any: ask the server for `logprobs`", ())
    elif labelled_count >= TRAINING_PAYS and rarer_count >= FEWEST_TO_TRAIN:
        commands = (*logprob_steps, f"metaprobe train quality {logprob_path} --out {OUT}/quality", *gate_commands)
        why = f"{logprob_count:,} answers have them, enough are labelled to train{gate_clause}"
        yield Advice("log-probabilities", True, why, commands)
    elif labelled_count >= MIN_ADAPT_LABELS and rarer_count >= MIN_ADAPT_LABELS_OF_A_KIND:
        # `adapt` itself leaves out answers without log-probabilities.
        adapt_command = f"metaprobe adapt bundled:quality {text_path} --out {OUT}/mine"
        store_steps = tuple(command for command in logprob_steps if command not in text_steps) if gate_commands else ()
        commands = (*text_steps, adapt_command, *store_steps, *gate_commands)
        why = (
            f"{logprob_count:,} answers have them, {labelled_count} are labelled: adapt, which was better than "
            "training below "
        )
        yield Advice("log-probabilities", True, f"{why}{TRAINING_PAYS} labels{gate_clause}", commands)
    else:
        commands = (
            (score_command, *import_commands, *label_commands)
            if line_file
            else (*import_commands, score_command, *label_commands)
        )
        yield Advice(
            "log-probabilities", True, f"{logprob_count:,} answers have them; {_lacking(contents)} to adapt", commands
        )
    # Stated confidence.
    stated_count = contents.with_stated
    can_train = rarer_count >= FEWEST_TO_TRAIN
    compare_commands = (
        (*logprob_steps, f"metaprobe compare {logprob_path} --out {OUT}/report")
        if can_train
        else (*import_commands, *label_commands)
    )
    why = f"{stated_count:,} answers state one" if stated_count else "no answer states one: ask for it, or leave it"
    yield Advice("stated", bool(stated_count), why, compare_commands if stated_count else ())
    # Several answers to one question.
    repeated_count = sum(count > 1 for count in contents.by_sampled_question.values())
    if not repeated_count:
        why = "no question has two answers: `metaprobe teach` asks each of your questions twice"
        if max(contents.by_question.values()) > 1:
            why = f"answers share a group, and their messages differ: give samples of one question a {QUESTION_KEY}"
        yield Advice("samples", False, why, ())
    else:
        stage = contents.by_stage.most_common(1)[0][0] if contents.by_stage else ""
        sampled_option = f" --sampled {quote(stage)}" if stage and not line_file else ""
        panel_command = f"metaprobe train panel {text_path}{sampled_option} --out {OUT}/panel"
        commands = (*text_steps, panel_command) if can_train else (*import_commands, *label_commands)
        why = f"{repeated_count:,} questions have several answers"
        if logprob_count == contents.answers and repeated_count >= MIN_QUESTIONS and labelled_count < TRAINING_PAYS:
            why += "; a predictor can learn without labels which of them agree"
            teach_command = f"metaprobe train quality {logprob_path} --target agreement --out {OUT}/taught"
            commands = (
                *commands,
                *(earlier_command for earlier_command in logprob_steps if earlier_command not in commands),
                teach_command,
            )
            if labelled_count >= MIN_ADAPT_LABELS and rarer_count >= MIN_ADAPT_LABELS_OF_A_KIND:
                why += f", and `adapt` joins agreement with the {labelled_count} labels"
                commands = (*commands, f"metaprobe adapt {OUT}/taught {logprob_path} --out {OUT}/joined")
        yield Advice("samples", True, why, commands)
    # Weights or stored hidden states.
    readable_count = min(contents.with_texts, contents.with_prompts)
    # A probe is compared with log-probabilities. If there are none, the model reads them together with its states.
    read_commands, is_readable_here = (
        (f"metaprobe extract {store_path} --logprobs {quote(model)} --out {OUT}/read",),
        logprob_count or contents.states,
    )
    read_store = store_path if is_readable_here else f"{OUT}/read"
    extract_commands = (
        ()
        if contents.states
        else (*(() if is_readable_here else read_commands), f"metaprobe extract {read_store} --llm {quote(model)}")
    )
    train_commands = (
        (f"metaprobe train hidden {read_store} --when after --out {OUT}/probe",)
        if can_train and (logprob_count or not is_readable_here)
        else label_commands
    )
    if contents.states:
        yield Advice(
            "weights",
            True,
            f"{contents.states:,} answers have stored hidden states",
            (*import_commands, *train_commands),
        )
    elif readable_count and _at_hand(model):
        why = f"{readable_count:,} answers have prompt and text, from which {model} itself can read its states"
        yield Advice("weights", True, why, (*import_commands, *extract_commands, *train_commands))
    elif readable_count:
        why = (
            f"whether you have the weights of {model} is not known here. Models behind an API give none; if you have a "
            f"folder or a hub id of these weights, `metaprobe extract RUNS --llm IT` reads its states from the prompt "
            f"and text of {readable_count:,} answers"
        )
        yield Advice("weights", False, why, ())
    else:
        yield Advice("weights", False, "prompts or texts are not kept, so that states cannot be read again", ())
    # The text alone, and a decision API.
    if not contents.with_texts:
        yield Advice("text", False, "no answer has its text", ())
    else:
        why = (
            f"{contents.with_texts:,} answers have texts, whose words can be learned from; a small model's states "
            f"beside them told more on half of the sets: --read-by {DEFAULT_MODEL}"
        )
        text_commands = (*text_steps, f"metaprobe train text {text_path} --out {OUT}/text")
        yield Advice("text", True, why, text_commands if can_train else (*import_commands, *label_commands))
    if contents.judged:
        decision_commands = (
            (f"metaprobe train quality {store_path} --reads decisions --out {OUT}/decided",)
            if can_train
            else label_commands
        )
        yield Advice(
            "decisions",
            True,
            f"{len(contents.judged):,} answers were judged by one",
            (*import_commands, *decision_commands),
        )
    else:
        yield Advice("decisions", False, "no answer was judged by one: ask it, if you have one (docs/text.md)", ())


def _at_hand(model: str) -> bool:
    """Returns whether the weights of a model are known to be on this machine: embedded ones, a folder, or a file."""
    path = Path(model).expanduser()
    return model in EMBEDDED or (path / "config.json").is_file() or (path.suffix == ".gguf" and path.is_file())


def _lacking(contents: Contents) -> str:
    """Returns which labels are missing, as a clause."""
    return (
        f"{contents.labels[TARGET]} labels `{TARGET}`, of {MIN_ADAPT_LABELS} with {MIN_ADAPT_LABELS_OF_A_KIND} right "
        f"and {MIN_ADAPT_LABELS_OF_A_KIND} wrong ones that it takes"
    )
