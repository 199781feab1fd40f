"""`metaprobe teach`: each question is asked a few times, and what is paid for is kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sampling_server import SamplingServer
from tiny_agreement import tiny_agreement

import metaprobe
from metaprobe.cli import main
from metaprobe.records.errors import RecordError
from metaprobe.training.recipes import teaching

ASKED = 24
"""Questions of most tests: enough to be taken, few enough to be asked in no time."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-7Yq2-secret")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


class Trained(Exception):
    """Raised in the place of a training that takes seconds."""


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces the training; what it was called with is listed."""
    called: list[Any] = []

    def train(stores: Any, options: Any) -> None:
        called.append((stores, options))
        raise Trained

    monkeypatch.setattr(teaching, "train_quality", train)
    return called


def questions_file(folder: Path, count: int = ASKED, **more: Any) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps({"question": f"What is number {i}?", **more}) + "\n" for i in range(count)))
    return path


def run(server: SamplingServer, questions: Path, *options: str, out: str = "taught") -> Result:
    words = ["teach", server.base_url, str(questions), "--out", str(questions.parent / out), *options]
    return CliRunner().invoke(main, words)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_question_is_asked_as_often_as_said_and_every_answer_becomes_a_line(
    tmp_path: Path, untrained: list[Any]
) -> None:
    questions = questions_file(tmp_path, group="g1")
    with SamplingServer() as server:
        asking = ["--samples", "3", "--temperature", "0.8", "--max-tokens", "64", "--limit", "20"]
        result = run(server, questions, *asking, "--same", "number")
    assert isinstance(result.exception, Trained)
    asked = [body["messages"][-1]["content"] for body in server.bodies]
    assert len(set(asked)) == 20
    assert all(asked.count(one) == 3 for one in asked)
    assert {(body["temperature"], body["max_tokens"], body["logprobs"]) for body in server.bodies} == {(0.8, 64, True)}
    [(stores, options)] = untrained
    assert (options.target, options.same) == ("agreement", "number")
    lines = lines_of(stores[0])
    assert len(lines) == 60
    assert {line["group"] for line in lines} == {"g1"}
    assert len({line["question_id"] for line in lines}) == 20
    for line in lines:
        assert line["messages"][-1]["content"] in asked
        assert len(line["logprobs"]) == len(line["tokens"]) > 0
        assert "".join(line["tokens"]) == line["answer"]


def test_a_dry_run_says_calls_and_price_and_asks_nothing(tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"planted": {"prompt": 1.0, "completion": 10.0}}))
    with SamplingServer() as server:
        result = run(
            server,
            questions_file(tmp_path),
            "--dry-run",
            "--max-tokens",
            "100",
            "--limit",
            "20",
            "--prices",
            str(prices),
        )
    assert result.exit_code == 0, result.output
    assert server.bodies == []
    assert "40 calls of planted" in result.output
    assert "$0.0402" in result.output  # 40 answers of 100 tokens, and 40 x 5 tokens of questions
    assert not (tmp_path / "taught.answers.jsonl").exists()


@pytest.mark.parametrize(("asked", "samples", "enough"), [(24, 2, False), (60, 2, True), (24, 4, True)])
def test_too_few_answers_for_a_flag_are_said_before_they_are_paid_for(
    tmp_path: Path, asked: int, samples: int, enough: bool
) -> None:
    with SamplingServer() as server:
        result = run(server, questions_file(tmp_path, asked), "--dry-run", "--samples", str(samples))
        assert server.bodies == []
    assert ("a flag takes about 100" not in result.output) == enough


def test_what_was_answered_is_asked_no_second_time(tmp_path: Path, untrained: list[Any]) -> None:
    questions = questions_file(tmp_path)
    with SamplingServer() as server:
        run(server, questions, "--limit", "20")
        before = (tmp_path / "taught.answers.jsonl").read_bytes()
        again = run(server, questions, "--limit", "20")
        assert len(server.bodies) == 40
        assert "so that 0 are asked" in again.output
        assert (tmp_path / "taught.answers.jsonl").read_bytes() == before
        run(server, questions, "--limit", "22")  # more questions hold the fewer of the same seed
        assert len(server.bodies) == 44


def test_a_call_that_ended_before_the_endpoint_went_away_is_kept(tmp_path: Path, untrained: list[Any]) -> None:
    questions = questions_file(tmp_path)
    gone = False
    with SamplingServer(plan=lambda content, attempt: "400" if gone and server.bodies else "ok") as server:
        gone_after = 12

        def count(whole: dict[str, Any], before: int) -> None:
            nonlocal gone
            gone = before + 1 >= gone_after

        server.change = count
        stopped = run(server, questions, "--concurrency", "1")
        assert stopped.exit_code == 1
        assert "10 calls failed" in stopped.output
        assert untrained == []
        asked = len(server.bodies)
        gone, server.change = False, lambda whole, before: None
        assert isinstance(run(server, questions).exception, Trained)
    assert len(server.bodies) == asked + 2 * ASKED - gone_after


def test_an_endpoint_without_logprobs_is_named_after_one_call_and_none_is_kept(
    tmp_path: Path, untrained: list[Any]
) -> None:
    questions = questions_file(tmp_path)
    with SamplingServer(plan=lambda content, attempt: "no-logprobs") as server:
        result = run(server, questions)
        assert result.exit_code == 1
        assert len(server.bodies) == 1
        assert "without log-probabilities" in result.output
        assert "--logits_all" in result.output  # the doctor's remedy
        server.plan = lambda content, attempt: "ok"
        assert isinstance(run(server, questions).exception, Trained)
        assert len(server.bodies) == 1 + 2 * ASKED


def test_an_endpoint_that_refuses_logprobs_is_asked_once(tmp_path: Path) -> None:
    with SamplingServer(plan=lambda content, attempt: "400") as server:
        result = run(server, questions_file(tmp_path))
    assert result.exit_code == 1
    assert len(server.bodies) == 1
    assert "doctor" in result.output


def test_tool_calls_and_refusals_are_left_out_and_counted(tmp_path: Path, untrained: list[Any]) -> None:
    def no_words(whole: dict[str, Any], before: int) -> None:
        [choice] = whole["choices"]
        if before < 3:
            call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            choice |= {"message": {"role": "assistant", "content": None, "tool_calls": [call]}, "logprobs": None}
            choice["finish_reason"] = "tool_calls"
        elif before < 5:
            choice["message"] = {"role": "assistant", "content": None, "refusal": "no"}
            choice["logprobs"] = None
        elif before == 5:
            choice["finish_reason"] = "length"

    with SamplingServer(no_words) as server:
        result = run(server, questions_file(tmp_path))
    assert "left out: 3 x an answer that is no words (tool_calls)" in result.output
    assert "left out: 2 x an answer that is no words (refusal)" in result.output
    assert "1 of 43 answers did not end by themselves" in result.output
    assert len(lines_of(tmp_path / "taught.answers.jsonl")) == 2 * ASKED - 5


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "What?"}',
        '{"question": ""}',
        '{"question": 3}',
        '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        '{"messages": [{"role": "tool", "content": "3"}]}',
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
        '{"question": "What is number 3?", "id": "taken"}',
        "no JSON",
    ],
)
def test_a_line_that_holds_no_question_is_left_out_and_named(tmp_path: Path, line: str) -> None:
    path = questions_file(tmp_path)
    path.write_text('{"question": "Which?", "id": "taken"}\n' + path.read_text() + line + "\n")
    with pytest.warns(UserWarning, match=f"questions.jsonl:{ASKED + 2}"):
        assert len(teaching.questions_to_ask(path)) == ASKED + 1


def test_too_few_questions_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with SamplingServer() as server:
        result = run(server, questions_file(tmp_path, 19))
    assert result.exit_code == 1
    assert "19 questions" in result.output
    assert server.bodies == []


@pytest.mark.parametrize("option", ["--catch", "--risk"])
def test_a_promise_about_wrong_answers_is_refused_before_anything_is_asked(tmp_path: Path, option: str) -> None:
    with SamplingServer() as server:
        result = run(server, questions_file(tmp_path), option, "0.3")
    assert result.exit_code == 2
    assert "0 labels came; expected at least" in result.output
    assert server.bodies == []


def test_answers_that_somebody_has_labelled_are_never_replaced(tmp_path: Path, untrained: list[Any]) -> None:
    questions = questions_file(tmp_path)
    answers = tmp_path / "taught.answers.jsonl"
    with SamplingServer() as server:
        run(server, questions)
        first, *rest = answers.read_text().splitlines()
        labelled = "\n".join([json.dumps({**json.loads(first), "correct": 1}), *rest])
        answers.write_text(labelled)
        result = run(server, questions)
    assert result.exit_code == 1
    assert "correct" in result.output
    assert answers.read_text() == labelled


def test_of_several_models_of_a_url_one_must_be_named(tmp_path: Path, untrained: list[Any]) -> None:
    questions = questions_file(tmp_path)
    with SamplingServer() as server:
        server.listed = ["a", "b"]
        result = run(server, questions)
        assert result.exit_code == 2
        assert "a, b" in result.output
        run(server, questions, "--model", "b")
    assert {body["model"] for body in server.bodies} == {"b"}


def test_the_same_seed_draws_the_same_questions_in_the_same_order() -> None:
    questions = [teaching.QuestionToAsk(str(i), str(i), ()) for i in range(200)]
    few, many = teaching.draw_questions(questions, 50, 3), teaching.draw_questions(questions, 120, 3)
    assert many[:50] == few
    assert len({one.id for one in many}) == 120
    assert teaching.draw_questions(questions, 50, 4) != few


def test_samples_that_all_agree_are_refused_and_their_file_is_named(tmp_path: Path) -> None:
    def same(whole: dict[str, Any], before: int) -> None:
        [choice] = whole["choices"]
        choice["message"]["content"] = "7"
        choice["logprobs"]["content"] = [{"token": "7", "logprob": -0.1 - before / 1000, "top_logprobs": []}]

    with (
        SamplingServer(same) as server,
        pytest.raises(RecordError, match="24 have two answers that say the same, and 0") as raised,
    ):
        metaprobe.teach(
            questions_file(tmp_path), llm=f"openai:planted@{server.base_url}", out=tmp_path / "taught", samples=2
        )
    assert "taught.answers.jsonl" in str(raised.value)


def test_the_last_lines_say_what_was_learned_what_is_flagged_and_what_to_run_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teaching, "train_quality", lambda stores, options: tiny_agreement(Path(options.out)))
    with SamplingServer() as server:
        result = run(server, questions_file(tmp_path))
    assert result.exit_code == 0, result.output
    learned, flags, following, labelled = result.stdout.splitlines()
    assert learned.startswith("learned")
    assert "24 questions and no label: AUROC 0.750 [0.710, 0.790]" in learned
    assert flags.startswith("flags")
    assert "below 0.400" in flags
    assert following.startswith("next")
    assert f"metaprobe score {tmp_path / 'taught'}" in following
    assert labelled.startswith("P(right)")
    assert str(tmp_path / "taught.answers.jsonl") in labelled
    assert f"metaprobe adapt {tmp_path / 'taught'} labelled.jsonl" in labelled


@pytest.mark.slow
def test_a_url_becomes_a_predictor_that_flags_without_a_label(tmp_path: Path) -> None:
    questions = questions_file(tmp_path, 60)
    with SamplingServer() as server:
        result = run(server, questions, "--folds", "2", "--flag-rate", "0.2")
    assert result.exit_code == 0, result.output
    assert "AUROC" in result.stdout
    answers = tmp_path / "taught.answers.jsonl"
    scored = CliRunner().invoke(main, ["score", str(tmp_path / "taught"), str(answers)])
    assert scored.exit_code == 0, scored.output
    verdicts = [json.loads(line) for line in scored.stdout.splitlines()]
    assert {verdict["score"] for verdict in verdicts} == {None}
    assert all(0 < verdict["heads"]["agreement"] < 1 for verdict in verdicts)
    assert 0.05 < sum(verdict["flagged"] for verdict in verdicts) / len(verdicts) < 0.4
