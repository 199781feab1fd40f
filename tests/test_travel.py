"""A probe from many tasks beside a free number: what is planted is found on tasks left out, noise is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe import load
from metaprobe.checkpoints import Checkpoint
from metaprobe.cli import main
from metaprobe.probes.travel import FEWEST, TravellingBlend, free_numbers
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Hidden, Item, Label, Run
from metaprobe.train import train_travel

WIDTH, TASKS, EACH = 6, 12, 30
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")


def planted(path: Path, *, told_by_state: float, told_by_logprobs: float, tasks: int = TASKS, models: int = 1) -> Path:
    """Answers of which the first number of a state, and the log-probabilities, say how good they are; the second number
    says which task it is."""
    rng = np.random.default_rng(5)
    runs = []
    for i in range(tasks * EACH):
        task, good = i % tasks, rng.random() < 0.2 + 0.6 * (i % tasks) / tasks
        state = rng.normal(size=(2, 1, WIDTH))
        state[1, 0, 0] += told_by_state * good
        state[:, 0, 1] += 5 * task
        logprobs = -rng.exponential(1 + told_by_logprobs * (not good), size=4).astype(np.float32)
        call = Call(
            id=f"c{i}",
            stage="answer",
            model=f"m{i % models}",
            text="an answer",
            logprobs=logprobs,
            hidden=Hidden(state.astype(np.float16), (0, 1), ("answer_mean",)),
        )
        item = Item(f"q{i}", f"question number {i} {rng.integers(1e9)}", group=f"g{i}", task=f"task-{task}")
        runs.append(Run(f"r{i}", "s", "", item, (call,), labels=(Label(call.id, "correct", float(good), "program"),)))
    RunStore(path).append(runs)
    return path


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted(tmp_path_factory.mktemp("both") / "runs", told_by_state=2.0, told_by_logprobs=0.5)


@pytest.fixture(scope="module")
def made(both: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return train_travel(both, out=tmp_path_factory.mktemp("blend") / "blend")


def test_what_is_planted_in_the_states_is_found_on_tasks_left_out(made: Checkpoint) -> None:
    figures = made.manifest.metrics
    assert figures["auroc_within_runs_without_task"].estimate > 0.85
    gain = figures["auroc_within_runs_without_task_gain_over_mean_log_probability"]
    assert gain.low > 0.1
    assert all(audit.passed for audit in made.manifest.audits.values())
    assert made.manifest.contract["layer"] == 1, "layer 0 holds nothing of how good an answer is"


def test_states_of_noise_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    runs = planted(tmp_path / "runs", told_by_state=0.0, told_by_logprobs=6.0)
    with pytest.raises(RecordError, match="not above the mean log-probability"):
        train_travel(runs, out=tmp_path / "blend")
    assert not (tmp_path / "blend").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"tasks": 9}, "9 tasks; expected at least 10"), ({"models": 2}, "several models have no direction in common")],
)
def test_too_few_tasks_and_several_models_are_refused(tmp_path: Path, changes: dict[str, int], said: str) -> None:
    runs = planted(tmp_path / "runs", told_by_state=2.0, told_by_logprobs=1.0, **changes)
    with pytest.raises(RecordError, match=said):
        train_travel(runs, out=tmp_path / "blend")


def test_the_order_in_a_run_is_the_sum_of_both_standardised(made: Checkpoint, both: Path) -> None:
    blend = TravellingBlend.of(made)
    rng = np.random.default_rng(1)
    states = rng.normal(size=(40, WIDTH)).astype(np.float32)
    logprobs = [(-rng.exponential(size=n)).tolist() for n in rng.integers(1, 9, size=40)]
    probe = blend.probe_scores(states)
    free = np.array([-np.log(-np.mean(values) + 1e-4) - 0.5 * np.log(len(values)) for values in logprobs])
    total = (probe - probe.mean()) / probe.std() + (free - free.mean()) / free.std()
    expected = (total - total.mean()) / total.std()
    np.testing.assert_allclose(blend.standing(states, logprobs), expected, atol=1e-4)
    moved = blend.standing(states + np.float32(3), logprobs)  # a task that shifts all states shifts nothing
    np.testing.assert_allclose(moved, expected, atol=1e-4)
    assert blend.standing(np.ones((25, WIDTH)), [[-0.5]] * 25).tolist() == [0.0] * 25  # no division by zero
    run = blend.of_run(states, logprobs)
    assert run.score(states[3], logprobs[3]) == pytest.approx(expected[3], abs=1e-4)
    assert run.score(None, logprobs[3]) == pytest.approx((free[3] - free.mean()) / free.std(), abs=1e-4)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (lambda states, logprobs: (states[:-1], logprobs), "expected as many of each"),
        (lambda states, logprobs: (states[: FEWEST - 1], logprobs[: FEWEST - 1]), f"at least {FEWEST} answers"),
        (lambda states, logprobs: (states[:, :-1], logprobs), f"expected \\(n, {WIDTH}\\)"),
        (lambda states, logprobs: (states * np.nan, logprobs), "NaN"),
        (lambda states, logprobs: (states, [[0.5], *logprobs[1:]]), "at most 0"),
        (lambda states, logprobs: (states, [[], *logprobs[1:]]), "at most 0"),
    ],
)
def test_what_cannot_be_read_is_refused(made: Checkpoint, of: Callable[..., tuple[object, object]], said: str) -> None:
    states, logprobs = of(np.ones((30, WIDTH), np.float32), [[-0.1 * i, -0.2] for i in range(30)])
    with pytest.raises(InvalidResponse, match=said):
        TravellingBlend.of(made).of_run(states, logprobs)  # type: ignore[arg-type]
    with pytest.raises(InvalidResponse, match=said):
        TravellingBlend.of(made).standing(states, logprobs)  # type: ignore[arg-type]


def test_a_store_is_scored_run_by_run_from_the_command_line(made: Checkpoint, both: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["score", str(made.path), str(both)])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == TASKS * EACH
    of_run = [line["score"] for line in lines if line["run"] == "m0|task-3|"]
    assert np.mean(of_run) == pytest.approx(0, abs=1e-6)
    assert np.std(of_run) == pytest.approx(1, abs=1e-6)
    calls = [run.calls[0] for run in RunStore(both).runs(hidden=True) if run.item.task == "task-3"]
    blend = TravellingBlend.of(made)
    states = np.stack([call.hidden.values[blend.layer, 0] for call in calls])  # of the two layers that are stored
    assert of_run == pytest.approx(blend.standing(states, [call.logprobs for call in calls]).tolist(), abs=1e-5)
    bare = tmp_path / "bare"
    RunStore(bare).append([run for run in RunStore(both) if run.item.task in ("task-1", "task-2")][:45])
    found = [
        json.loads(line) for line in CliRunner().invoke(main, ["score", str(made.path), str(bare)]).stdout.splitlines()
    ]
    assert all(line["reason"].startswith("log-probabilities alone") for line in found)
    assert all(line["score"] is not None for line in found)


def test_answers_of_another_model_are_ordered_by_their_log_probabilities(made: Checkpoint, tmp_path: Path) -> None:
    runs = planted(tmp_path / "runs", told_by_state=2.0, told_by_logprobs=1.0, models=2)
    done = CliRunner().invoke(main, ["score", str(made.path), str(runs)])
    found = {line["run"][:2]: line for line in map(json.loads, done.stdout.splitlines())}
    assert found["m0"]["reason"] == ""
    assert "states of m0, and m1 answered" in found["m1"]["reason"]
    assert found["m1"]["score"] is not None


def test_load_makes_it_and_the_free_number_is_the_one_of_the_terms(made: Checkpoint) -> None:
    loaded = load(made.path)
    assert isinstance(loaded, TravellingBlend)
    assert (loaded.layer, loaded.position, loaded.width, loaded.free) == (1, "answer_mean", WIDTH, "scaled")
    assert free_numbers("min", [[-0.1, -2.0]]) == pytest.approx([-np.log(2.0001)], abs=1e-5)
