"""Import files, one an agent, joined into outcomes: what is kept, what is left out and said, what is refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from conftest import made_up
from served import small_checkpoint

from metaprobe.cli import main
from metaprobe.llms.pricing import Price
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.signal_source import SignalSource
from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.outcomes import AgentOutcome, read_outcomes
from metaprobe.routing.panel.asking import Panel
from metaprobe.training.joining import join_outcomes

Record = dict[str, Any]
TOKENS: Record = {"prompt_tokens": 100, "completion_tokens": 50}


def line(name: str, said: str = "Answer: 42", correct: int | None = 1, loss: float = 0.2, **more: Any) -> Record:
    tokens = [{"token": said if at == 3 else "", "logprob": -loss * (1 + at)} for at in range(4)]
    choice = {"message": {"content": said}, "finish_reason": "stop", "logprobs": {"content": tokens}}
    asked = [{"role": "user", "content": f"What is {name}?"}]
    labels = {} if correct is None else {"labels": {"correct": correct}}
    return (
        {"id": name, "messages": asked, "response": {"model": "m", "choices": [choice], "usage": TOKENS}}
        | labels
        | more
    )


def written(path: Path, *records: Record) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def two(folder: Path, small: list[Record], large: list[Record]) -> list[Path]:
    return [written(folder / "small.jsonl", *small), written(folder / "large.jsonl", *large)]


def test_answers_are_joined_by_id_whatever_their_order_and_named_by_file_or_line(tmp_path: Path) -> None:
    files = two(
        tmp_path,
        [line("a", "So.\nAnswer: 42", group="g", task="sums", cost_usd=0.5, latency_ms=7), line("b", "7", correct=0)],
        [line("b", agent="expert"), line("a", "42.", agent="expert", verbalized_confidence=0.9)],
    )
    joined = join_outcomes(files, prices={"expert": Price(1.0, 2.0), "m": Price(10.0, 20.0)})
    assert [question.id for question in joined.questions] == ["a", "b"]
    a, b = joined.questions
    assert (a.group, a.question, a.dimension, b.group) == ("g", "What is a?", "sums", "b")
    assert a.agents["small"] == AgentOutcome("42", 1.0, pytest.approx(-0.5), 0.5, 7.0, "logprobs", **TOKENS)
    assert a.agents["expert"] == AgentOutcome("42.", 1.0, 0.9, pytest.approx(200e-6), None, "stated", **TOKENS)
    cost = pytest.approx(2000e-6)
    assert b.agents["small"] == AgentOutcome("7", 0.0, pytest.approx(-0.5), cost, None, "logprobs", **TOKENS)
    # An agent that states confidences has none where it stated none, and never a number of another kind.
    assert (b.agents["expert"].confidence, b.agents["expert"].confidence_source) == (None, "")
    assert (joined.notes, joined.accuracy("small"), joined.accuracy("expert")) == ([], 0.5, 1.0)
    packed = tmp_path / "third.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(line("a")).encode()))
    assert list(join_outcomes([*files, packed]).questions[0].agents) == ["small", "expert", "third"]


def test_what_is_missing_in_one_file_is_left_out_and_counted(tmp_path: Path) -> None:
    files = two(
        tmp_path,
        [line("a"), line("b", correct=None), line("c"), line("d")],
        [line("a"), line("b"), line("d", correct=None), line("e"), line("f")],
    )
    joined = join_outcomes(files, prices={"m": Price(0.0, 0.0)})
    assert [question.id for question in joined.questions] == ["a"]
    assert joined.missing == {"small": 2, "large": 1}
    assert joined.unlabelled == {"small": 1, "large": 1}
    assert joined.notes == [
        "questions left out because small did not answer them: 2",
        "questions left out because large did not answer them: 1",
        'questions left out because the answer of small has no "labels": {"correct": 0 or 1}: 1',
        'questions left out because the answer of large has no "labels": {"correct": 0 or 1}: 1',
    ]


def test_unknown_costs_and_other_texts_are_said(tmp_path: Path) -> None:
    other = line("a") | {"messages": [{"role": "user", "content": "Another?"}]}
    joined = join_outcomes(two(tmp_path, [line("a"), line("b", cost_usd=0)], [other, line("b")]))
    assert joined.questions[0].question == "What is a?"
    assert len(joined.notes) == 3
    assert joined.notes[0].startswith("the cost of 1 of 2 answers of small is not known, and a router needs it")
    assert joined.notes[1].startswith("the cost of 2 of 2 answers of large is not known")
    assert joined.notes[2] == "questions whose text differs between files (do the ids mean the same?): 1"


@pytest.mark.parametrize(
    ("small", "large", "said"),
    [
        ([line("a") | {"id": 7.5}], [line("a")], r"small\.jsonl:1: \"id\" is 7.5"),
        ([line("a")], [line("") | {"id": None}], r"large\.jsonl:1: \"id\" is missing; expected the id that"),
        (
            [line("a")],
            [line("a", agent="x"), line("b", agent="y")],
            r"large\.jsonl holds answers of x, y; expected a f",
        ),
        ([line("a", agent="x")], [line("a", agent="x")], r"large\.jsonl is a second file of agent 'x'"),
        ([line("a")], [{"id": "a"}], r"large\.jsonl:1: \"response\" is missing"),
        ([line("a", cost_usd=-1)], [line("a")], r"small\.jsonl:1: \"cost_usd\" is -1; expected a number of at least 0"),
        ([line("a", group="g")], [line("a", group="h")], "question 'a' is in the groups g, h; expected one group"),
        ([line("a")], [line("b")], r"no question is left of 2: 0 have an answer of every agent \(small, large\)"),
        ([], [line("a")], r"small\.jsonl holds no lines; expected one answer a line"),
    ],
)
def test_what_cannot_be_joined_is_refused_with_its_place(
    tmp_path: Path, small: list[Record], large: list[Record], said: str
) -> None:
    with pytest.raises(RecordError, match=said) as caught:
        join_outcomes(two(tmp_path, small, large))
    assert not isinstance(caught.value, ImportFileError) or "jsonl" in str(caught.value)
    with pytest.raises(RecordError, match="1 file came; expected two or more, one an agent"):
        join_outcomes([tmp_path / "small.jsonl"])


@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
def test_a_checkpoint_reads_the_confidence_of_those_it_is_for(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "quality", made_up())
    files = two(tmp_path, [line("a", verbalized_confidence=0.3)], [line("a", loss=1.0, verbalized_confidence=0.4)])
    source = SignalSource.load([f"confidence@large={tmp_path / 'quality'}"])
    (question,) = join_outcomes(files, signals=source).questions
    read = QualityPredictor(checkpoint).predict(line("a", loss=1.0)["response"]).score
    assert question.agents["large"].confidence == pytest.approx(read)
    assert question.agents["large"].confidence_source == checkpoint.digest
    assert (question.agents["small"].confidence, question.agents["small"].confidence_source) == (0.3, "stated")


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def test_bad_lines_and_questions_in_two_groups_are_left_out_and_said(tmp_path: Path) -> None:
    small = [line("a"), line("b"), line("c", group="g"), line("a", said="again"), {"id": "d"}, line("e", agent="x")]
    files = two(tmp_path, small, [line(name, **({"group": "h"} if name == "c" else {})) for name in "abce"])
    with pytest.warns(UserWarning, match="3 of 6 lines of") as said:
        joined = join_outcomes(files, prices={"m": Price(0.0, 0.0)})
    assert [question.id for question in joined.questions] == ["a", "b"]
    told = str(said[0].message)
    assert all(f"small.jsonl:{number}: " in told for number in (4, 5, 6))
    [note] = [note for note in joined.notes if "group" in note]
    assert note.startswith("question left out: question 'c' is in the groups g, h")
    assert ("small.jsonl:3" in note, "large.jsonl:3" in note) == (True, True)


def test_tokens_that_are_missing_are_named_and_no_price_is_asked_for(tmp_path: Path) -> None:
    bare = line("b")
    bare["response"] = {key: value for key, value in bare["response"].items() if key != "usage"}
    files = two(tmp_path, [line("a"), bare, line("c")], [line("a"), line("b"), line("c")])
    prices = tmp_path / "prices.json"
    prices.write_text('{"small": {"prompt": 1, "completion": 1}}')
    done = run("outcomes", *files, "--prices", prices, "--out", tmp_path / "o.jsonl")
    assert done.exit_code == 0
    of_small, of_large = done.stderr.splitlines()
    assert "small" in of_small
    assert "count no tokens" in of_small
    assert f"{files[0]}:2" in of_small
    assert "--prices" not in of_small
    assert "--prices" in of_large
    assert "3 of 3 answers of large" in of_large


@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
def test_a_router_learns_from_what_the_command_writes(tmp_path: Path) -> None:
    hard = [bool(number % 3) for number in range(90)]
    files = two(
        tmp_path,
        [line(f"q{i}", correct=int(easy), loss=0.1 + 0.5 * (not easy) + i / 1000) for i, easy in enumerate(hard)],
        [line(f"q{i}", loss=0.1 + i / 1000) for i in range(91)],
    )
    prices = tmp_path / "prices.json"
    prices.write_text('{"small": {"prompt": 0.1, "completion": 0.1}, "large": {"prompt": 5, "completion": 5}}')
    out = tmp_path / "new" / "outcomes.jsonl"
    done = run("outcomes", *files, "--prices", prices, "--out", out)
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "questions": 90,
        "agents": {"small": pytest.approx(2 / 3), "large": 1.0},
        "missing": {"small": 1},
        "unlabelled": {},
    }
    assert done.stderr == "questions left out because small did not answer them: 1\n"
    assert len(read_outcomes(out)) == 90
    trained = run("train", "router", out, "--out", tmp_path / "router")
    assert trained.exit_code == 0, trained.output
    assert set(Panel.load(tmp_path / "router").agents.names) == {"small", "large"}


def test_the_command_never_writes_over_what_it_joins(tmp_path: Path) -> None:
    small, large = two(tmp_path, [line("a")], [line("a")])
    before = small.read_text()
    (tmp_path / "link.jsonl").symlink_to(small)
    refused = run("outcomes", small, large, "--out", tmp_path / "link.jsonl")
    assert refused.exit_code == 2
    assert "is one of the files to join; give another one" in refused.output
    assert small.read_text() == before
    assert run("outcomes", small, "--out", tmp_path / "o").exit_code == 1
