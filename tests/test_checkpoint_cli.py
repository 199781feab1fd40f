"""`metaprobe inspect`, `verify`, `diff`, `promote`: what they say, and what their exit codes mean."""

import dataclasses
import json

import numpy as np
import pytest
from test_commands import run
from test_hidden_probe import WIDTH, hidden_checkpoint, source_of
from tiny import tiny_quality

from metaprobe.checkpoints import Metric
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Hidden, Item, Label, Run
from metaprobe.training.check import MIN_BOOTSTRAP_GROUPS, load_reader
from metaprobe.training.recipes.panel import train_router
from metaprobe.training.training_options import RouterOptions
from metaprobe.training.versions import Promotion


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def made(folder):
    return tiny_quality(folder / "a")


@pytest.fixture(scope="module")
def worse(folder):
    """Its order is the wrong way round."""
    return tiny_quality(folder / "worse", slope=-1.0, metrics={"auroc": Metric(0.25, 0.2, 0.3, 1200)})


# verify, inspect


def test_verify_says_what_was_verified_and_fails_for_a_damaged_checkpoint_and_for_another_digest(made, tmp_path):
    result = run("verify", made.path)
    assert result.exit_code == 0
    assert made.digest in result.stdout
    assert "held against nothing" in result.stdout
    assert "as expected" in run("verify", made.path, "--sha256", made.digest).stdout
    copy = QualityPredictor(made).save_pretrained(tmp_path / "copy").path
    (copy / "golden.json").write_bytes((copy / "golden.json").read_bytes()[:-9])
    for arguments, reason in (((copy,), "golden.json"), ((made.path, "--sha256", "0" * 64), "0000")):
        result = run("verify", *arguments)
        assert result.exit_code == 1
        assert reason in result.stderr
        assert not result.stdout


# diff


def test_a_checkpoint_is_the_same_as_its_copy(made, tmp_path):
    copy = QualityPredictor(made).save_pretrained(tmp_path / "copy")
    result = run("diff", made.path, copy.path)
    assert result.exit_code == 0
    assert result.stdout.endswith("the same\n")


def test_what_differs_is_json_for_a_program_and_what_one_has_not_is_left_out(made, tmp_path):
    contract = made.manifest.contract | {"note": "x"}
    tiny_quality(tmp_path / "b", contract=contract, thresholds={"flag": 0.5}, training=None)
    result = run("diff", made.path, tmp_path / "b", "--json")
    assert result.exit_code == 1
    found = {entry.pop("field"): entry for entry in json.loads(result.stdout)["differences"]}
    assert found["thresholds.flag"] == {"a": 0.4, "b": 0.5}
    assert found["contract.note"] == {"b": "x"}
    assert found["training.n"] == {"a": 4000}
    assert "files.model.onnx" not in found
    assert "outputs_on_golden_rows" not in found  # the models are the same bytes


# promote


def runs(n=200, *, signal=1.0, seed=0):
    """Answers whose mean log-probability knows how right they are."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        truth = rng.normal()
        logprobs = (-np.abs(rng.normal(1.2 - signal * np.tanh(truth), 0.3, 12))).astype(np.float32)
        call = Call(id=f"c{i}", stage="answer", model="org/model", logprobs=logprobs, logprobs_mode="raw")
        right = float(truth + 0.5 * rng.normal() > 0)
        item = Item(id=f"i{i}", question="?", group=f"g{i}")
        yield Run(f"r{i}", "s", "v", item, (call,), labels=(Label(call.id, "correct", right, "program"),))


@pytest.fixture(scope="module")
def held_out(folder):
    RunStore(folder / "runs").append(runs())
    return folder / "runs"


def test_a_better_version_is_promoted_and_a_worse_one_refused(made, worse, held_out):
    better = Promotion.on_runs(load_reader(made.path), load_reader(worse.path), [held_out])
    assert better.promoted
    assert better.digest == made.digest
    assert better.auroc_gain.low > 0
    refused = Promotion.on_runs(load_reader(worse.path), load_reader(made.path), [held_out])
    assert not refused.promoted
    assert refused.digest == made.digest
    assert any("AUROC" in reason for reason in refused.reasons)


def test_the_same_once_more_is_not_better_but_not_worse(made, held_out):
    reader = load_reader(made.path)
    assert not Promotion.on_runs(reader, reader, [held_out]).promoted
    assert Promotion.on_runs(reader, reader, [held_out], not_worse=True).promoted


def test_a_better_order_is_not_bought_with_worse_probabilities(made, held_out, tmp_path):
    """Ten times the slope: the same order as ever, and probabilities near 0 and 1."""
    loud = load_reader(tiny_quality(tmp_path / "loud", slope=10.0).path)
    refused = Promotion.on_runs(loud, load_reader(made.path), [held_out], not_worse=True)
    assert not refused.promoted
    assert ["Brier" in reason for reason in refused.reasons] == [True]


def test_runs_that_a_version_was_trained_on_and_too_few_groups_are_refused(made, held_out, tmp_path):
    from metaprobe.records.store import fingerprint

    training = dataclasses.replace(made.manifest.training, fingerprint=fingerprint(runs()))
    trained_here = load_reader(tiny_quality(tmp_path / "t", training=training).path)
    with pytest.raises(RecordError, match="was trained on these runs"):
        Promotion.on_runs(trained_here, load_reader(made.path), [held_out])
    few = RunStore(tmp_path / "few")
    few.append(runs(MIN_BOOTSTRAP_GROUPS - 1))
    refused = Promotion.on_runs(load_reader(made.path), load_reader(made.path), [few.path], not_worse=True)
    assert any("too few" in reason for reason in refused.reasons)


def test_the_command_prints_the_decision_and_exits_by_it(made, worse, held_out):
    promoted = run("promote", "--json", made.path, "--over", worse.path, held_out)
    assert promoted.exit_code == 0
    assert json.loads(promoted.stdout)["digest"] == made.digest
    refused = run("promote", "--json", worse.path, "--over", made.path, held_out)
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)["reasons"]


@pytest.fixture(scope="module")
def with_states(folder):
    """Answers whose hidden states point, along the weights of `hidden_checkpoint`, to how right they are."""
    rng, store, kept = np.random.default_rng(5), RunStore(folder / "with-states"), []
    for one in runs():
        (call,), right = one.calls, one.labels[0].value
        state = rng.normal(size=WIDTH) + (2 * right - 1) * np.linspace(-0.5, 0.5, WIDTH)
        hidden = Hidden(
            state[None, None].astype(np.float16), (2,), ("answer_last",), canaries=source_of(model="org/model")
        )
        kept.append(dataclasses.replace(one, calls=(dataclasses.replace(call, hidden=hidden),)))
    store.append(kept)
    return store.path


def test_probes_are_promoted_on_stored_hidden_states_and_against_predictors_too(with_states, worse, made, tmp_path):
    probe = hidden_checkpoint(tmp_path / "probe")
    promoted = run("promote", "--json", probe.path, "--over", worse.path, with_states)
    assert promoted.exit_code == 0, promoted.output
    assert json.loads(promoted.stdout)["digest"] == probe.digest
    assert run("promote", probe.path, "--over", probe.path, with_states).exit_code == 1, "equal is not better"
    assert run("promote", probe.path, "--over", probe.path, with_states, "--not-worse").exit_code == 0


def test_a_probe_of_states_that_were_not_kept_is_refused_in_one_line(with_states, held_out, made, tmp_path):
    probe = hidden_checkpoint(tmp_path / "probe")
    assert "metaprobe extract" in run("promote", probe.path, "--over", made.path, held_out).stderr
    other = hidden_checkpoint(tmp_path / "other", layers=(7,))
    assert "layers [7] were not captured" in run("promote", other.path, "--over", made.path, with_states).stderr


def planted(n, seed, skill):
    """Outcomes of three agents with these skills at these prices in US dollars for 1,000 questions."""
    rng, prices = np.random.default_rng(seed), {"small": 0.1, "middle": 0.4, "large": 2.0}
    made = []
    for i in range(n):
        agents = {
            name: AgentOutcome(f"{name} {i}", float(rng.random() < skill[name]), None, price / 1000)
            for name, price in prices.items()
        }
        made.append(QuestionOutcomes(f"{seed}-{i}", f"{seed}-{i}", f"question {i}", "", agents))
    return made


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")  # of so little data
def test_panels_are_promoted_on_outcomes_and_take_no_option_of_the_others(made, held_out, tmp_path):
    """The running one learned that only the dear agent is right, where the cheap one is as good by now."""
    today = {"small": 0.8, "middle": 0.5, "large": 0.8}
    new, old = tmp_path / "new", tmp_path / "old"
    train_router(planted(150, 0, today), RouterOptions(out=new))
    train_router(planted(150, 8, {"small": 0.1, "middle": 0.3, "large": 0.95}), RouterOptions(out=old))
    QuestionOutcomes.write(tmp_path / "outcomes.jsonl", planted(150, 1, today))
    price = ("--price", 0.1)
    promoted = run("promote", "--json", new, "--over", old, tmp_path / "outcomes.jsonl", *price)
    refused = run("promote", "--json", old, "--over", new, tmp_path / "outcomes.jsonl", *price)
    assert promoted.exit_code == 0, promoted.output
    assert refused.exit_code == 1
    assert json.loads(promoted.stdout)["digest"] == json.loads(refused.stdout)["digest"]
    for arguments, reason in (
        ((new, "--over", old, tmp_path / "outcomes.jsonl", "--not-worse"), "--not-worse: not for panels"),
        ((new, "--over", old, held_out), "one file of outcomes"),
        ((made.path, "--over", made.path, held_out, "--price", "0.1"), "--price: not for predictors"),
        ((new, "--over", made.path, held_out), "of kind 'quality'"),
        ((made.path, "--over", made.path, tmp_path / "outcomes.jsonl"), "judged on run stores"),
    ):
        result = run("promote", *arguments)
        assert result.exit_code == 2, result.output
        assert reason in " ".join(result.stderr.split())
