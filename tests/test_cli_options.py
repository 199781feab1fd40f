"""What is typed is what the library is asked for: every option of a command, and its default where it is left out."""

import errno
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import metaprobe
from metaprobe.checkpoints import CheckpointError
from metaprobe.cli import main
from metaprobe.collecting.collect import CollectReport
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.records.errors import RecordError
from metaprobe.terminal import CHECKPOINT, FILE, FOLDER, FOLDER_THERE, RUNS

SAID = "what the checkpoint is"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


class Asked(list[tuple[tuple[Any, ...], dict[str, Any]]]):
    """Stands in for a function of the library, and keeps what it was asked for."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        for told in (named.pop("on_step", None), named.pop("watch", None)):
            if callable(told):
                told("a step")
        self.append((arguments, named))
        return self.answer


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an `Asked` in the place of a function of the library."""
    monkeypatch.setattr("metaprobe.checkpoints.describe", lambda checkpoint: f"{SAID} {checkpoint}")
    monkeypatch.setattr(sys, "argv", ["metaprobe", "typed"])

    def put(name: str, answer: Any = None) -> Asked:
        asked = Asked(answer)
        monkeypatch.setattr(f"metaprobe.{name}", asked)
        return asked

    return put


def every_command(group: click.Group, *names: str) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name, command in group.commands.items():
        inside = isinstance(command, click.Group)
        found += every_command(command, *names, name) if inside else [(" ".join((*names, name)), command)]  # type: ignore[arg-type]
    return found


COMMANDS = every_command(main)


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_option_says_what_it_is_for_and_what_it_is_where_it_is_left_out(
    name: str, command: click.Command
) -> None:
    context = click.Context(command)
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            given = option.get_default(context)
            if not option.is_flag and given not in (None, (), "") and type(given).__name__ != "Sentinel":
                said = f"{option.help} {option.get_help_extra(context).get('default', '')}"
                assert str(given[0] if isinstance(given, tuple) else given) in said, option.name


NUMBERS = {
    "seed": (0, 2**32 - 1),
    "folds": (2, None),
    "budget": ((0,), None),
    "lambda_": ((0,), None),
    "seconds": ((0,), None),
    "per_second": (0, None),
}
"""Least and most of what stands for the same in several commands; (0,): above 0."""
SHARED = {"seed": (0, 7), "folds": (5, 3), "model": ("smollm2-135m", "m"), "targets": (("correct",), ("critical",))}


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_what_means_the_same_everywhere_has_the_same_range_and_default(name: str, command: click.Command) -> None:
    if name == "collect":
        return  # its seed is of sampled answers
    for option in command.params:
        if option.name in NUMBERS:
            low, high = NUMBERS[option.name]
            kind = option.type
            assert isinstance(kind, click.IntRange | click.FloatRange)
            assert (kind.min, kind.max) == (low[0] if isinstance(low, tuple) else low, high)
            assert kind.min_open == isinstance(low, tuple)
        if option.name in SHARED:
            assert option.get_default(click.Context(command)) == SHARED[option.name][0]
            assert option.multiple == (option.name == "targets")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("typed", "targets", "named"),
    [
        ((), ("correct",), {}),
        (
            ("--target", "quality", "--target", "critical", "--stage", "s", "--agent", "a", "--label-source", "judge",
             "--folds", 3, "--seed", 9),
            ("quality", "critical"),
            {"stage": "s", "agent": "a", "source": "judge", "folds": 3, "seed": 9},
        ),
        (("--new-tasks",), ("correct",), {"new_tasks": True}),
    ],
)  # fmt: skip
def test_train_quality(stand_in: Any, store: Path, typed: tuple[Any, ...], targets: Any, named: dict[str, Any]) -> None:
    studies, trained = (
        stand_in(f"training.quality.train.{name}", name) for name in ("head_studies", "train_quality")
    )  # fmt: skip
    result = run("train", "quality", store, "--out", store / "q", *typed)
    assert result.exit_code == 0, result.output
    defaults = {"stage": None, "agent": None, "source": None, "new_tasks": False, "folds": 5, "seed": 0}
    assert studies == [(((store,), targets), defaults | {"spread": False} | named)]
    assert trained == [((store / "q", "head_studies"), {"command": "metaprobe typed", "raw": False})]
    assert result.stdout == f"{SAID} train_quality\n"
    run("train", "quality", store, "--out", store / "q", "--raw-graph")
    assert trained[-1][1]["raw"]


def test_features_go_to_the_cluster_that_is_named(stand_in: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies = stand_in("training.quality.train.head_studies")
    stand_in("training.quality.train.train_quality")
    clients: list[str] = []

    def client(address: str) -> Any:
        clients.append(address)
        return nullcontext()

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=client))
    assert run("train", "quality", store, "--out", store / "q", "--dask", "tcp://here:1").exit_code == 0
    assert clients == ["tcp://here:1"]
    assert studies[0][1]["spread"]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("quality", "--new-tasks", "--dask", "x"), "leave out --dask"),
        (("quality", "--new-tasks", "--target", "quality"), "labels that are 0 or 1, not of quality"),
        (("hidden", "--target", "critical"), "--target critical: probes give the probability of what is good"),
        (("hidden", "--target", "level", "--when", "after"), "--target level is read before the answer"),
        (("hidden", "--target", "success-rate", "--probe", "ridge"), "by a logistic probe"),
        (("hidden", "--when", "before", "--position", "answer_last"), "only prompt_last is known, not answer_last"),
        (("gate", "--alpha", "0"), "--alpha"),
        (("gate", "--alpha", "1"), "--alpha"),
        (("quality", "--folds", "1"), "--folds"),
        (("quality", "--seed", "-1"), "--seed"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error_before_anything_is_read(
    store: Path, typed: tuple[str, ...], said: str
) -> None:
    kind, *options = typed
    result = run("train", kind, store, "--out", store / "out", *options)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize("kind", ["quality", "hidden", "gate", "choice", "adapter"])
def test_a_folder_that_is_something_else_is_not_written_over(kind: str, store: Path) -> None:
    (store / "mine.txt").write_text("x", encoding="utf-8")
    result = run("train", kind, store, "--out", store)
    assert result.exit_code == 1
    assert str(store) in result.stderr
    assert [path.name for path in store.iterdir()] == ["mine.txt"]


ALL = Interval(0.75, 0.5, 1.0, 9, 9)


@pytest.mark.parametrize(
    ("typed", "named", "stronger"),
    [
        ((), {}, (0.9, 10.0)),
        (
            ("--target", "critical", "--stage", "s", "--agent", "a", "--alpha", "0.1", "--alpha", "0.2", "--folds", 3,
             "--seed", 9, "--stronger-accuracy", "0.8", "--stronger-price", "3"),
            {"target": "critical", "stage": "s", "agent": "a", "alphas": (0.1, 0.2), "folds": 3, "seed": 9},
            (0.8, 3.0),
        ),
    ],
)  # fmt: skip
def test_train_gate(
    stand_in: Any, store: Path, typed: tuple[Any, ...], named: dict[str, Any], stronger: tuple[float, float]
) -> None:
    from metaprobe.eval.gate import Stronger

    trained = stand_in("training.gate.train.train_gate", ("gate", "report"))
    stand_in("eval.gate.gate_lines", ["one line", "and another"])
    result = run("train", "gate", store, "--out", store / "g", *typed)
    assert result.exit_code == 0, result.output
    defaults = {"target": "correct", "stage": None, "agent": None, "alphas": None, "folds": 5, "seed": 0}
    assert trained == [
        (
            (store / "g", (store,)),
            defaults | {"stronger": Stronger(*stronger), "command": "metaprobe typed"} | named,
        )
    ]
    assert result.stdout == f"{SAID} gate\n"
    assert "one line\nand another\n" in result.stderr


@pytest.mark.parametrize("typed", [(), ("--folds", 3, "--seed", 9)])
def test_train_choice(stand_in: Any, store: Path, typed: tuple[Any, ...]) -> None:
    policy = SimpleNamespace(policy="learned", accuracy=ALL, tokens_per_question=12.34, step_by_step=0.4)
    trained = stand_in("training.choice.train_choice", ("choice", [policy]))
    result = run("train", "choice", store, "--out", store / "c", *typed)
    assert result.exit_code == 0, result.output
    folds, seed = (3, 9) if typed else (5, 0)
    assert trained == [
        ((store / "c", (store,)), {"folds": folds, "seed": seed, "command": "metaprobe typed"})
    ]  # fmt: skip
    assert "accuracy 0.750 [0.500, 1.000]" in result.stderr
    assert "12.3 tokens   40% step by step" in result.stderr
    assert result.stdout == f"{SAID} choice\n"


@pytest.fixture
def evidence(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What is read for a probe."""
    states = SimpleNamespace(layers=(0, 8), positions=("prompt_last",))
    loaded = stand_in("training.crossfit.evidence.load_evidence", SimpleNamespace(states=states, regrouped="regrouped"))
    monkeypatch.setattr("metaprobe.training.crossfit.evidence.origin_of_states", lambda _: ["from m"])
    monkeypatch.setattr("metaprobe.training.hidden.train.positions_of", lambda evidence, when: (when,))
    return loaded  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("typed", "read", "fitted", "trained"),
    [
        ((), {}, {}, {}),
        (("--when", "before"), {}, {}, {"when": "before"}),
        (
            ("--target", "q", "--probe", "ridge", "--layers", "every:2", "--position", "answer_last", "--states-of",
             "m", "--stage", "s", "--agent", "a", "--folds", 3, "--seed", 9),
            {"target": "q", "stage": "s", "agent": "a", "wanted": ("every:2", ("answer_last",), "m")},
            {"kind": "ridge", "folds": 3, "seed": 9},
            {"target": "q"},
        ),
    ],
)  # fmt: skip
def test_train_hidden(
    stand_in: Any,
    evidence: Asked,
    store: Path,
    typed: tuple[Any, ...],
    read: dict[str, Any],
    fitted: dict[str, Any],
    trained: dict[str, Any],
) -> None:
    from metaprobe.training.linear.states_choice import Wanted

    study = stand_in("training.crossfit.study.study_of", "study")
    written = stand_in("training.hidden.train.train_hidden", "probe")
    result = run("train", "hidden", store, "--out", store / "h", *typed)
    assert result.exit_code == 0, result.output
    wanted = Wanted(*read.pop("wanted", ("all", (), "")))
    defaults = {"target": "correct", "stage": None, "agent": None}
    assert evidence == [(((store,),), defaults | {"wanted": wanted} | read)]
    assert {name: study[0][1][name] for name in ("folds", "seed", "kind")} == {
        "folds": 5, "seed": 0, "kind": "logistic"
    } | fitted  # fmt: skip
    given = {"when": "after", "target": "correct", "command": "metaprobe typed"} | trained
    assert written == [((store / "h", "study"), given)]
    assert "states      layers 0, 8 at prompt_last\nfrom m\nregrouped\n" in result.stderr
    assert result.stdout == f"{SAID} probe\n"


@pytest.mark.parametrize("target", ["level", "success-rate"])
def test_train_hidden_of_a_graded_difficulty(stand_in: Any, evidence: Asked, store: Path, target: str) -> None:
    ranked = SimpleNamespace(name="probe", spearman=ALL)
    trained = stand_in("training.hidden.difficulty.train_difficulty", ("difficulty", [ranked]))
    result = run("train", "hidden", store, "--out", store / "h", "--target", target, "--folds", 3, "--seed", 9)
    assert result.exit_code == 0, result.output
    assert evidence[0][1]["target"] == "correct"
    given = {name: trained[0][1][name] for name in ("target", "folds", "seed", "command")}
    assert given == {"target": target, "folds": 3, "seed": 9, "command": "metaprobe typed"}
    assert "Spearman +0.750 [+0.500, +1.000]" in result.stderr
    assert result.stdout == f"{SAID} difficulty\n"


def test_train_adapter(stand_in: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaprobe.adapter_cli.require", lambda *_: None)
    trained = stand_in("training.adapter.train.train_adapter", "adapter")
    result = run("train", "adapter", store, "--out", store / "a")
    assert result.exit_code == 0, result.output
    (place, runs), given = trained[0]
    assert (place, runs) == (store / "a", (store,))
    assert {given[name] for name in ("stage", "agent", "work")} == {None}
    assert (given["target"], given["int8"], given["command"]) == ("correct", False, "metaprobe typed")
    assert given["settings"].seed == 0
    assert result.stdout == f"{SAID} adapter\n"
    typed = ("--when", "before", "--stage", "s", "--agent", "b", "--target", "q", "--int8", "--work", store / "w")
    assert run("train", "adapter", store, "--out", store / "a", *typed, "--seed", 4, "--max-length", 64).exit_code == 0
    given = trained[1][1]
    assert (given["when"], given["stage"], given["agent"], given["target"]) == (("before",), "s", "b", "q")
    assert (given["int8"], given["work"], given["settings"].seed) == (True, store / "w", 4)
    assert given["settings"].max_length == 64
    run("train", "adapter", store, "--out", store / "a", "--when", "both")
    assert trained[2][1]["when"] == ("before", "after")
    trained.answer = None  # another process writes it
    assert run("train", "adapter", store, "--out", store / "a").stdout == ""


OUTCOMES = "training.router.runs"


def test_train_router_on_a_file_and_on_runs(stand_in: Any, store: Path, tmp_path: Path) -> None:
    trained = stand_in("training.router.train.train_router", "router")
    of_file = stand_in("records.outcomes.read_outcomes", "questions")
    file = tmp_path / "outcomes.jsonl"
    file.write_text("{}\n", encoding="utf-8")
    result = run("train", "router", file, "--out", store / "r")
    assert result.exit_code == 0, result.output
    defaults = {"agents": None, "assessment": None, "folds": 5, "states": 20_000, "seed": 0}
    assert trained[0] == ((store / "r", "questions"), defaults | {"command": "metaprobe typed"})
    assert of_file == [((file,), {})]
    assert result.stdout == f"{SAID} router\n"
    assert "reading outcomes.jsonl" in result.stderr
    for option, value in (("--prices", file), ("--signal", "confidence=x")):
        refused = run("train", "router", file, "--out", store / "r", option, value)
        assert refused.exit_code == 2
        assert f"{option} is for a folder of runs" in " ".join(refused.stderr.split())
    prices = stand_in("llms.pricing.read_prices", "prices")
    questions = stand_in(f"{OUTCOMES}.outcomes_of", "of runs")
    part = stand_in(f"{OUTCOMES}.assessment_part", 0.25)
    confidences = stand_in("training.router.sources.Confidences.load", "confidences")
    typed = ("--prices", file, "--signal", "confidence=x", "--agent", "a", "--agent", "b", "--states", 1000)
    assert run("train", "router", store, "--out", store / "r", *typed, "--folds", 3, "--seed", 9).exit_code == 0
    assert trained[1] == (
        (store / "r", "of runs"),
        {"agents": ("a", "b"), "assessment": 0.25, "folds": 3, "states": 1000, "seed": 9,
         "command": "metaprobe typed"},
    )  # fmt: skip
    assert questions[0][1] == part[0][1] == {"prices": "prices", "confidences": "confidences"}
    assert prices == [((file,), {})]
    assert confidences == [((("confidence=x",), store), {"seed": 9, "command": "metaprobe typed"})]
    run("train", "router", store, "--out", store / "r")
    assert questions[1][1] == part[1][1] == {"prices": None, "confidences": None}


@pytest.fixture
def line_file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text("{}\n", encoding="utf-8")
    return path


def test_route_names_each_line_that_it_refused(stand_in: Any, line_file: Path) -> None:
    router = stand_in("routing.learned.LearnedRouter.load", "router")
    refused = {"line": 2, "action": None, "reason": f"{line_file}:2: not JSON"}
    lines = stand_in("training.router.evaluate.route_lines", [{"action": "ask"}, refused])
    typed = ("--budget", "0.5", "--seconds", "2", "--sha256", "abc")
    result = run("route", "bundled:router", line_file, *typed)
    assert result.exit_code == 1
    means = {"budget": 0.5, "seconds": 2.0, "lambda_": None, "per_second": None}
    assert router == [(("bundled:router",), {"sha256": "abc"} | means)]
    assert lines == [(("router", line_file), {})]
    assert [json.loads(line) for line in result.stdout.splitlines()] == lines.answer
    assert result.stderr == f"{line_file}:2: not JSON\n"
    lines.answer = [{"action": "keep"}]
    whole = run("route", "bundled:router", line_file, "--lambda", "2", "--per-second", "0")
    assert (whole.exit_code, whole.stderr) == (0, "")
    assert (router[-1][1]["lambda_"], router[-1][1]["per_second"]) == (2.0, 0.0)
    lines.answer = []
    assert run("route", "bundled:router", line_file).exit_code == 1
    for wrong in (("--budget", "1", "--lambda", "1"), ("--seconds", "1", "--per-second", "1"), ("--budget", "0")):
        assert run("route", "bundled:router", line_file, *wrong).exit_code == 2


def test_evaluate_router_writes_its_decisions_where_they_are_asked_for(stand_in: Any, line_file: Path) -> None:
    router = stand_in("routing.learned.LearnedRouter.load", "router")
    stand_in("records.outcomes.read_outcomes", "questions")
    figures = stand_in("training.router.evaluate.evaluate_router", ({"accuracy": 0.5}, [{"id": 1}, {"id": 2}]))
    result = run("evaluate", "router", "bundled:router", line_file, "--sha256", "abc", "--seconds", "3")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"budget": None, "seconds": 3.0, "accuracy": 0.5}
    assert figures == [(("router", "questions"), {"seed": 0})]
    assert router[0][1]["sha256"] == "abc"
    place = line_file.parent / "a" / "b" / "decisions.jsonl"
    for _ in range(2):
        told = run("evaluate", "router", "bundled:router", line_file, "--decisions", place, "--seed", 3, "--budget", 1)
        assert json.loads(told.stdout)["budget"] == 1
        assert place.read_text(encoding="utf-8") == '{"id": 1}\n{"id": 2}\n'
    assert figures[-1][1] == {"seed": 3}


def test_push_says_where_it_is_and_which_digest(stand_in: Any) -> None:
    loaded = stand_in("checkpoints.load_checkpoint", "loaded")
    pushed = stand_in("checkpoints.push", SimpleNamespace(location="hub:a/b@1", digest="abc", url="there"))
    result = run("push", "bundled:quality", "a/b", "--license", "mit", "--tag", "x", "--private", "--sha256", "d")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"location": "hub:a/b@1", "sha256": "abc", "url": "there"}
    assert loaded == [(("bundled:quality",), {"sha256": "d"})]
    assert pushed == [(("loaded", "a/b"), {"license": "mit", "tags": ("x",), "private": True})]
    run("push", "bundled:quality", "a/b", "--license", "mit")
    assert pushed[-1][1] == {"license": "mit", "tags": (), "private": False}


def test_demo_says_what_it_made(stand_in: Any, tmp_path: Path) -> None:
    report = CollectReport(3, 4)
    collected = stand_in("training.demo.collect_demo", report)
    made = SimpleNamespace(comparison="c", checkpoints=[SimpleNamespace(path="there")], report="report.html")
    trained = stand_in("training.demo.train_demo", made)
    stand_in("eval.report.text.comparison_table", "the table")
    result = run("demo", "--out", tmp_path, "--llm", "m", "--limit", 5, "--batch-size", 2, "--folds", 3, "--seed", 9)
    assert result.exit_code == 0, result.output
    assert collected == [((tmp_path,), {"model": "m", "limit": 5, "batch_size": 2})]
    assert trained == [
        ((tmp_path,), {"collected": report, "folds": 3, "seed": 9, "command": "metaprobe typed"})
    ]  # fmt: skip
    assert result.stdout == "the table\ncheckpoint  there\nreport      report.html\n"
    assert "collected 3 runs; 4 were stored before" in result.stderr


def test_collect_tells_of_what_failed_was_cut_or_could_not_be_read(stand_in: Any, tmp_path: Path) -> None:
    asked = stand_in("collecting.launch.launch", CollectReport(3, 4))
    result = run("collect", "s", "--task", "t", "--out", tmp_path, "--no-text", "--agent", "a", "--agent", "b")
    assert result.exit_code == 0
    plan, out, _ = asked[0][0]
    assert (plan.system, plan.task, plan.text, plan.agent, out) == ("s", "t", False, ("a", "b"), tmp_path)
    assert "failed" not in result.stderr.partition("collected 3 runs; 4 were stored before\n")[2]
    run("collect", "s", "--task", "t", "--out", tmp_path)
    plain = asked[1][0][0]
    assert (plain.text, plain.agent, plain) == (True, (), type(plain)(system="s", task="t"))
    for count in (1, 10, 11, 13):
        failed = tuple(f"run {n}: reason" for n in range(count))
        asked.answer = CollectReport(3, 4, failed, {"confidence": 5}, {"answer": (2, 9)})
        told = run("collect", "s", "--task", "t", "--out", tmp_path)
        assert (told.exit_code, told.stdout) == (1, "")
        assert told.stderr.count("failed: run") == min(count, 10)
        assert ("... and" in told.stderr) == (count > 10)
        assert count <= 10 or f"... and {count - 10} more; all of them stand in failed.jsonl" in told.stderr
        assert "signal confidence could not be read of 5 calls" in told.stderr
        assert "2 of 9 answers of stage answer were cut: --tokens answer=N" in told.stderr


def test_compare_and_summarize_ask_for_what_is_typed(stand_in: Any, store: Path) -> None:
    studied = stand_in("training.crossfit.study.study", "study")
    written = stand_in("training.comparison.write.write_comparison", ("comparison", "there/report.html"))
    stand_in("eval.report.text.comparison_table", "the table")
    result = run("compare", store, "--out", store / "r")
    assert result.exit_code == 0, result.output
    defaults = {"target": "correct", "stage": None, "agent": None, "folds": 5, "seed": 0}
    assert studied == [(((store,),), defaults)]
    assert written == [((store / "r", "study"), {"command": "metaprobe typed"})]
    assert result.stdout == "the table\nreport      there/report.html\n"
    typed = ("--target", "q", "--stage", "s", "--agent", "a", "--folds", 3, "--seed", 9)
    run("compare", store, "--out", store / "r", *typed)
    assert studied[-1][1] == {"target": "q", "stage": "s", "agent": "a", "folds": 3, "seed": 9}
    summed = stand_in("collecting.summary.summarize_stores", [{"runs": 1}])
    assert json.loads(run("summarize", store, store).stdout) == [{"runs": 1}]
    assert summed == [(((store, store),), {})]


def test_score_asks_for_the_digest_and_says_where_there_was_nothing(stand_in: Any, line_file: Path) -> None:
    loaded = stand_in("probes.quality.QualityPredictor.load", "predictor")
    lines = stand_in("probes.scoring.score_lines", [{"score": 0.5, "heads": {}}, {"score": None, "heads": {"a": 1}}])
    result = run("score", "bundled:quality", line_file, "--sha256", "abc", "--on-mismatch", "refuse")
    assert (result.exit_code, result.stderr) == (0, "")
    assert loaded == [(("bundled:quality",), {"sha256": "abc", "on_mismatch": "refuse"})]
    assert [json.loads(line) for line in result.stdout.splitlines()] == lines.answer
    lines.answer = [{"score": 0.5, "heads": {}}, {"score": None, "heads": {}}]
    half = run("score", "bundled:quality", line_file)
    assert (half.exit_code, half.stderr) == (0, "scored 1 of 2 lines; the reasons stand in the lines\n")
    assert loaded[-1][1] == {"sha256": None, "on_mismatch": "warn"}
    lines.answer = []
    nothing = run("score", "bundled:quality", line_file)
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert nothing.stderr == f"{line_file} holds no lines to score\n"
    run("score", "bundled:quality", "-")
    assert lines[-1][0] == ("predictor", Path("/dev/stdin"))


def test_what_may_be_a_folder_a_file_or_a_checkpoint(tmp_path: Path) -> None:
    file, folder, none = tmp_path / "f", tmp_path / "d", tmp_path / "n"
    file.write_text("x", encoding="utf-8")
    folder.mkdir()
    fits = {FILE: {file}, FOLDER_THERE: {folder}, FOLDER: {folder, none}, RUNS: {folder}, CHECKPOINT: {folder}}
    for kind, good in fits.items():
        for path in (file, folder, none):
            if path in good:
                found = kind.convert(str(path), None, None)
                assert found == (str(path) if kind is CHECKPOINT else path)
                assert isinstance(found, str if kind is CHECKPOINT else Path)
            else:
                with pytest.raises(click.BadParameter):
                    kind.convert(str(path), None, None)
    with pytest.raises(click.BadParameter, match=r"is a file; expected a checkpoint folder, bundled:NAME or hub:"):
        CHECKPOINT.convert(str(file), None, None)
    with pytest.raises(click.BadParameter, match=r"'quality' is not there.*did you mean bundled:quality"):
        CHECKPOINT.convert("quality", None, None)
    with pytest.raises(click.BadParameter) as wrong:
        CHECKPOINT.convert("nosuch", None, None)
    assert "did you mean" not in str(wrong.value)
    assert CHECKPOINT.convert("hub:a/b@c", None, None) == "hub:a/b@c"
    for place in ("hub:a/b@c", "bundled:quality"):
        with pytest.raises(click.BadParameter, match="can only be read"):
            FOLDER.convert(place, None, None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left"), "Error: No space left: make room, and run the same again"),
        (OSError(errno.EDQUOT, "Quota exceeded"), "Error: Quota exceeded: make room, and run the same again"),
        (OSError(errno.ENOSPC, "No space left", "my/file"), "Error: my/file: No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "my/file"), "Error: my/file: Permission denied"),
        (RecordError("what is wrong"), "Error: what is wrong"),
        (CheckpointError("what is wrong"), "Error: what is wrong"),
    ],
)
def test_an_error_is_one_line(error: Exception, said: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr("metaprobe.collecting.summary.summarize_stores", failing)
    result = run("summarize", store)
    assert (result.exit_code, result.stderr.strip()) == (1, said)


def test_a_fault_of_ours_is_not_hidden(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("metaprobe.collecting.summary.summarize_stores", failing)
    assert isinstance(run("summarize", store).exception, OSError)


def test_an_adapter_is_loaded_by_its_digest_and_an_unknown_kind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "adapter"
    monkeypatch.setattr(
        "metaprobe.loading.load_checkpoint",
        lambda path, sha256: SimpleNamespace(manifest=SimpleNamespace(kind=kind, contract={})),
    )
    monkeypatch.setattr("metaprobe.probes.adapter.AdapterProbe.load", lambda path, sha256: (path, sha256))
    assert metaprobe.load("there", sha256="abc") == ("there", "abc")
    kind = "stages"
    with pytest.raises(CheckpointError, match="'stages'; expected 'hidden'"):
        metaprobe.load("there")


def test_names_that_are_imported_later_are_all_there_and_another_one_is_named() -> None:
    for name in metaprobe.__all__:
        assert getattr(metaprobe, name) is not None
    assert {*metaprobe.__all__, "__version__"} <= set(dir(metaprobe))
    with pytest.raises(AttributeError, match=r"no attribute 'nosuch'; it has .*load_checkpoint"):
        metaprobe.nosuch  # noqa: B018


def test_an_extraction_says_where_nothing_showed_which_model_answered(stand_in: Any, store: Path) -> None:
    pytest.importorskip("torch")
    from metaprobe.collecting.extract import ExtractReport

    fields = dict.fromkeys(ExtractReport.__dataclass_fields__, 0)
    report = ExtractReport(**fields | {"calls": 5, "disagreement": None})  # type: ignore[arg-type]
    asked = stand_in("collecting.extract.launch_extract", (report, 2))
    unchecked = run("extract", store, "--llm", "m")
    assert unchecked.exit_code == 0, unchecked.output
    assert "not checked: no call holds raw log-probabilities that would show whether m is" in unchecked.stderr
    assert json.loads(unchecked.stdout)["processes"] == 2
    assert asked[0][1]["positions"] is None
    run("extract", store, "--llm", "m", "--position", "answer_last")
    assert asked[-1][1]["positions"] == ("answer_last",)
    assert "not checked" not in run("extract", store, "--llm", "m", "--other-model").stderr
    asked.answer = (ExtractReport(**fields | {"calls": 5, "disagreement": 0.0}), 1)  # type: ignore[arg-type]
    assert "not checked" not in run("extract", store, "--llm", "m").stderr
    asked.answer = (None, 2)  # the first of the processes says it
    assert run("extract", store, "--llm", "m").stdout == ""
