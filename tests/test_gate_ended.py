"""A gate learns from finish reasons which answers end by themselves, without a label, and says that it did."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import watched_streams
from chat_completions import piece, server_sent, token_entry
from conftest import made_up

from metaprobe.checkpoints import ContractMismatch
from metaprobe.eval.gate_performance import HeldOutLooks, gate_lines, gate_report
from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.http.completion_json import read_chat
from metaprobe.production.http.judges import Scorer
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.streamed_answer import ScoredStream
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import IMPORTED_SYSTEM, Call, Item, Label, Run, Sampling, Segment, Usage
from metaprobe.routing.gate import StreamingGate
from metaprobe.routing.watch_stream import GatedAnswer, watch
from metaprobe.training.ended_labels import FINISH_REASON, with_ended_labels
from metaprobe.training.evidence import load_evidence
from metaprobe.training.recipes.gate import at_one_look, train_gate
from metaprobe.training.training_options import GateOptions, QualityOptions, WrongOptions

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

predictor = watched_streams.predictor
LIMIT = 40
ENDS = ("stop", "length", "stop", "length", "tool_calls", "content_filter", "")


def run_of(
    number: int, end: str, *, limit: int | None = LIMIT, tokens: int = 5, system: str = "made", **call: Any
) -> Run:
    """A run of one call, with a label `correct` and a stale label `ended`."""
    logprobs = np.full(tokens, -0.5, np.float32)
    made = Call(id=f"c{number}", finish_reason=end, logprobs=logprobs, sampling=Sampling(max_tokens=limit), **call)
    labels = (Label(made.id, "correct", 1.0, "program"), Label(made.id, "ended", 0.0, "human"))
    return Run(
        id=f"r{number}",
        system=system,
        variant="",
        item=Item(id=f"i{number}", question=""),
        calls=(made,),
        labels=labels,
    )


def labels_of(runs: list[Run], name: str = "ended") -> dict[str, tuple[float, str]]:
    return {label.call_id: (label.value, label.source) for run in runs for label in run.labels if label.name == name}


def test_the_label_is_the_finish_reason_and_other_ends_are_left_out_by_reason() -> None:
    found = with_ended_labels([run_of(number, end) for number, end in enumerate(ENDS)])
    expected = {"c0": 1.0, "c1": 0.0, "c2": 1.0, "c3": 0.0}
    assert labels_of(found.runs) == {call: (value, FINISH_REASON) for call, value in expected.items()}
    assert set(labels_of(found.runs, "correct").values()) == {(1.0, "program")}, "other labels stay"
    assert found.token_limit == LIMIT
    assert found.note == (
        "2 answers end by themselves, and 2 are cut by the token limit of 40. Left out: 1 that do not say how they "
        "ended, 1 that ended by content_filter, 1 that ended by tool_calls"
    )


def test_an_answer_cut_in_its_thinking_has_no_first_tokens_to_learn_from() -> None:
    thinking = run_of(0, "length", segments=(Segment("thinking", 0, 5),))
    found = with_ended_labels([thinking, run_of(1, "length"), run_of(2, "stop")])
    assert set(labels_of(found.runs)) == {"c1", "c2"}
    assert "1 without a token of the answer, as where thinking was cut" in found.note


def test_answers_cut_by_several_limits_are_refused_until_one_is_chosen() -> None:
    runs = [run_of(0, "length"), run_of(1, "stop"), run_of(2, "length", limit=90), run_of(3, "length", limit=90)]
    with pytest.raises(RecordError, match=r"limits 40 \(1 of 2 answers cut\), 90 \(2 of 2 .*--token-limit 40"):
        with_ended_labels(runs)
    found = with_ended_labels(runs, token_limit=90)
    assert set(labels_of(found.runs)) == {"c2", "c3"}, "how the others would go on is not known"
    assert found.token_limit == 90
    assert "2 with a token limit that is lower, or may be" in found.note
    with pytest.raises(RecordError, match="none of 0 answers with a token limit of at least 100 is longer"):
        with_ended_labels(runs, token_limit=100)


def test_an_answer_with_a_higher_limit_is_read_as_far_as_the_chosen_one_goes() -> None:
    thinking = (Segment("thinking", 0, 12), Segment("answer", 12, 30))
    runs = [
        run_of(0, "length", tokens=LIMIT),
        run_of(1, "stop", limit=900, tokens=LIMIT - 1),
        run_of(2, "stop", limit=900, tokens=LIMIT),  # its end token finds no place
        run_of(3, "length", limit=900, tokens=900, segments=(Segment("thinking", 0, 12), Segment("answer", 12, 900))),
        run_of(4, "stop", limit=900, tokens=30, segments=thinking),
        run_of(5, "stop", limit=900, tokens=30, usage=Usage(completion_tokens=70)),
    ]
    found = with_ended_labels(runs, token_limit=LIMIT)
    assert {call: value for call, (value, _) in labels_of(found.runs).items()} == {
        "c0": 0.0,
        "c1": 1.0,
        "c2": 0.0,
        "c3": 0.0,
        "c4": 1.0,
    }
    calls = {call.id: call for run in found.runs for call in run.calls}
    lengths = {call_id: 0 if call.logprobs is None else len(call.logprobs) for call_id, call in calls.items()}
    assert (lengths["c3"], calls["c3"].segments[-1].end) == (LIMIT, LIMIT)
    assert (lengths["c4"], calls["c4"].segments) == (30, thinking)
    assert "1 with a higher token limit and tokens that are not stored" in found.note
    assert with_ended_labels(runs[1:2] + runs[4:5], token_limit=30).token_limit == 30, "no answer need have been cut"


def test_without_a_cut_answer_there_is_nothing_to_learn() -> None:
    with pytest.raises(RecordError, match=r"none of 2 answers was cut.*1 that do not say how they.*--token-limit"):
        with_ended_labels([run_of(0, "stop"), run_of(1, "stop"), run_of(2, "")])


def test_calls_of_several_stages_are_refused_until_one_is_named() -> None:
    runs = [run_of(0, "length", stage="answer"), run_of(1, "stop", stage="answer"), run_of(2, "stop", stage="p_true")]
    with pytest.raises(RecordError, match="stages answer, p_true; expected one"):
        with_ended_labels(runs)
    assert set(labels_of(with_ended_labels(runs, stage="answer").runs)) == {"c0", "c1"}


def test_where_no_limit_is_recorded_it_is_the_longest_cut_length() -> None:
    imported: dict[str, Any] = {"system": IMPORTED_SYSTEM, "limit": Sampling().max_tokens}
    runs = [
        run_of(0, "length", tokens=100, **imported),
        run_of(1, "length", tokens=99, **imported),
        run_of(2, "stop", **imported),
    ]
    found = with_ended_labels(runs)
    assert found.token_limit == 100
    assert set(labels_of(found.runs)) == {"c0", "c1", "c2"}
    shorter = run_of(3, "length", tokens=50, **imported)
    with pytest.raises(RecordError, match=r"limits 50 .*, 99 .*, 100 "):
        with_ended_labels([*runs, shorter])
    assert set(labels_of(with_ended_labels([*runs, shorter], token_limit=50).runs)) == {"c0", "c1", "c2", "c3"}
    chosen = with_ended_labels([*runs, shorter], token_limit=99)
    assert set(labels_of(chosen.runs)) == {"c0", "c1"}, "the answer that ended may have had the limit of 50"


def answers(n: int, seed: int) -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Log-probabilities, whether the answer ended by itself, and groups: unsure beginnings go on to the limit."""
    signal, rng = made_up(n, signal=2.5, seed=seed).table, np.random.default_rng(seed)
    length = np.where(signal.y == 1, rng.integers(20, LIMIT, n), LIMIT)
    noise = -rng.exponential(1.0, (n, LIMIT))
    whole = [np.r_[values, rest].astype(np.float32) for values, rest in zip(signal.logprobs, noise, strict=True)]
    return [values[:count] for values, count in zip(whole, length, strict=True)], signal.y == 1, signal.groups


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without any label."""
    path = tmp_path_factory.mktemp("ended") / "runs"
    sampling = Sampling(max_tokens=LIMIT)
    RunStore(path).append(
        Run(
            id=f"r{i}",
            system="made",
            variant="",
            item=Item(id=f"i{i}", question=f"question {i}", group=group),
            calls=(
                Call(id=f"c{i}", model="m", finish_reason="stop" if end else "length", logprobs=x, sampling=sampling),
            ),
        )
        for i, (x, end, group) in enumerate(zip(*answers(400, 4), strict=True))
    )
    return path


@pytest.fixture(scope="module")
def folder(store: Path) -> Path:
    lines: list[str] = []
    out = store.parent / "gate"
    options = GateOptions(out=out, target="ended", alpha=[0.2], folds=2, command="test", on_line=lines.append)
    audits = train_gate([store], options).manifest.audits
    assert "are cut by the token limit of 40" in lines[0]
    assert any("AUROC of P(ends by itself)" in line for line in lines)
    [promise] = [line for line in lines if line.startswith("promised 0.2")]
    assert "of answers that would end by themselves" in promise
    assert "of all tokens" in lines[lines.index(promise) + 1]
    assert not any("good" in line or "asked again" in line for line in lines), "quality is not what was learned"
    assert audits["shuffled labels are at chance"].passed
    assert not [name for name in audits if "cut by max_tokens" in name], "the label itself is no control"
    return out


def test_a_gate_is_taught_without_any_label_and_its_card_says_what_it_gives(folder: Path) -> None:
    gates = StreamingGate.load(folder, stop=0.2)
    assert (gates.target, gates.token_limit) == ("ended", LIMIT)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "P(ends by itself): probability that an answer ends before its token limit of 40 cuts it" in card
    assert "is no probability of being right" in card
    assert gates.checkpoint.manifest.metrics["tokens_saved@0.2"].estimate > 0


def test_of_fresh_answers_that_end_few_are_stopped_and_more_of_those_that_are_cut(folder: Path) -> None:
    gates = StreamingGate.load(folder, stop=0.2)
    fresh, ended, _ = answers(300, seed=8)

    def stops(logprobs: np.ndarray[Any, Any]) -> bool:
        gate = gates.start()
        return any(gate.push(float(logprob)) == "stop" for logprob in logprobs)

    stopped = np.array([stops(values) for values in fresh])
    assert stopped[ended].mean() < 0.3 < stopped[~ended].mean()


def chunks() -> Iterator[dict[str, Any]]:
    for _ in range(LIMIT):
        yield {"choices": [piece({"content": "x"}, [token_entry("x", -9.0)])]}


class Unasked:
    """A predictor that no stopped answer reaches."""

    def __init__(self, gates: StreamingGate) -> None:
        self.checkpoint = gates.checkpoint

    def predict(self, response: object) -> None:
        raise AssertionError("an answer that was stopped is not finished")


def test_a_stopped_answer_has_no_score_of_quality_and_a_reason_in_words(folder: Path) -> None:
    gates = StreamingGate.load(folder, stop=0.2)
    list(watched := watch(chunks(), Unasked(gates), gates))  # type: ignore[call-overload]
    assert (watched.action, watched.verdict and watched.verdict.score) == ("stop", None)
    assert "will probably be cut by the token limit (P(ends by itself) 0." in watched.reason
    gated = GatedAnswer(gates)
    gated.push([{"logprob": -9.0}] * LIMIT, "m", shown=True)
    score, _, details = gated.verdict()
    assert (score, details["action"]) == (None, "stop")
    assert 0 < details["ended"] < 0.5


@pytest.mark.parametrize(("max_tokens", "action"), [(LIMIT, "stop"), (None, "stop"), (2 * LIMIT, "")])
def test_under_another_token_limit_the_gate_steps_back(folder: Path, max_tokens: int | None, action: str) -> None:
    gates = StreamingGate.load(folder, stop=0.2)
    gated = GatedAnswer(gates, max_tokens=max_tokens)
    gated.push([{"logprob": -9.0}] * LIMIT, "m", shown=True)
    assert gated.action == action
    assert ("token limit is not known" in gated.note) == (max_tokens is None)
    if not action:
        assert "not gated: the request has a token limit of 80, and the gate learned" in gated.note
        with pytest.raises(ContractMismatch, match="within 40 tokens"):
            gates.start(max_tokens=max_tokens)
        assert StreamingGate.load(folder, stop=0.2, on_mismatch="ignore").start(max_tokens=max_tokens).note == ""


def test_the_proxy_hands_the_gate_the_token_limit_of_the_request(folder: Path) -> None:

    request = read_chat(b'{"model": "m", "messages": [], "stream": true, "max_completion_tokens": 80}')
    stream = ScoredStream(None, request, StreamingGate.load(folder, stop=0.2), max_bytes=1 << 20)  # type: ignore[arg-type]
    for chunk in chunks():
        stream.feed(server_sent(chunk))
    assert stream.action == ""


def test_a_stopped_answer_without_a_score_of_quality_is_counted_as_flagged_and_not_as_unscored(
    predictor: QualityPredictor,
) -> None:
    metrics = Metrics()
    scorer = Scorer(predictor, metrics)
    verdict = scorer.stopped(None, "will probably be cut", {"action": "stop", "tokens": 3, "ended": 0.1})
    assert (verdict["score"], verdict["flagged"], verdict["gate"]["ended"]) == (None, True, 0.1)
    counts = dict(line.rsplit(" ", 1) for line in metrics.exposition().decode().splitlines() if line[:1] != "#")
    assert (counts["metaprobe_flagged_total"], counts["metaprobe_abstained_total"]) == ("1.0", "0.0")


def test_a_checkpoint_of_this_target_without_its_limit_is_refused(folder: Path) -> None:
    checkpoint = StreamingGate.load(folder, stop=0.2).checkpoint
    for contract in ({"token_limit": None}, {"token_limit": -1}, {"target": "correct"}):
        manifest = dataclasses.replace(checkpoint.manifest, contract={**checkpoint.manifest.contract, **contract})
        with pytest.raises(ContractMismatch, match="expected a limit for the target 'ended' alone"):
            StreamingGate(dataclasses.replace(checkpoint, manifest=manifest), stop=0.2)


def test_the_evidence_names_the_source_of_its_labels(store: Path) -> None:
    evidence = load_evidence([store], target="ended", hidden=False)
    assert set(evidence.labels_by_source) == {FINISH_REASON}
    assert evidence.token_limit == LIMIT
    np.testing.assert_array_equal(evidence.table.y == 0, evidence.table.cut)


def test_trainings_that_read_finished_answers_do_not_learn_it(tmp_path: Path) -> None:
    with pytest.raises(WrongOptions, match="which a finished answer itself says"):
        QualityOptions(out=tmp_path / "q", target="ended")
    with pytest.raises(WrongOptions, match="token_limit=64 chooses the answers for target ended"):
        GateOptions(out=tmp_path / "g", token_limit=64)


def four_answers(target: str) -> HeldOutLooks:
    """Four answers of 10 tokens; the first, which is good, and the second, which is bad, are stopped after 3 tokens."""
    table = made_up(20).table.rows(np.arange(4))
    logprobs = np.empty(4, dtype=object)
    logprobs[:] = [np.full(10, -1.0, np.float32)] * 4
    table = dataclasses.replace(
        table, y=np.array([1, 0, 0, 1]), tokens=np.full(4, 10), logprobs=logprobs, groups=table.call_ids
    )
    p, full = np.array([[0.1], [0.1], [0.9], [0.8]]), np.full(4, 0.5)
    fired = {0.1: np.array([3, 3, 0, 0])}
    return HeldOutLooks(table, (3,), p, None if target else full, fired, np.zeros(4, int), target)


@pytest.mark.parametrize("target", ["", "ended"])
def test_tokens_saved_are_those_after_the_stop_and_the_part_in_bad_answers_is_told(target: str) -> None:
    report = gate_report(four_answers(target), resamples=20)
    [rate] = report.rates
    assert rate.tokens_saved.estimate == pytest.approx(14 / 40)
    assert rate.tokens_saved_bad.estimate == pytest.approx(7 / 40)
    assert [use.use for use in rate.uses] == ([] if target else ["asked again", "escalated"])
    [line] = [line for line in gate_lines(report) if "of all tokens" in line]
    assert line.endswith("in cut ones" if target else "in bad ones")


def test_audits_see_every_answer_at_one_look_so_that_length_tells_no_end() -> None:
    held_out = four_answers("ended")
    p = np.array([[0.1, 0.2], [0.2, 0.1], [0.3, np.nan], [0.4, np.nan]])
    later = dataclasses.replace(held_out, looks=(3, 5), probability=p)
    rows, alike = at_one_look(later)
    assert (rows.tolist(), alike.looks) == ([0, 1, 2, 3], (3,)), "after 3 tokens two answers of each kind are judged"
    assert {len(values) for values in alike.table.logprobs} == {3} == set(alike.table.tokens.tolist())
    both = dataclasses.replace(later, probability=np.where(np.isnan(p), 0.5, p))
    assert at_one_look(both)[1].looks == (5,), "of equal looks the latest"
