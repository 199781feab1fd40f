"""A probe says whose hidden states it was trained on, of which layers and positions."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from test_hidden_probe import hidden_checkpoint, source_of

from metaprobe.checkpoints import ContractMismatch
from metaprobe.cli import main
from metaprobe.probes.hidden import ConfidenceProbe
from metaprobe.probes.hidden import HiddenProbe as Reader
from metaprobe.records.activations import activation_bytes, write_canaries
from metaprobe.records.errors import InvalidResponse, RecordError, StoreMismatch
from metaprobe.records.store import RunStore
from metaprobe.records.types import POSITIONS, Call, Hidden, Item, Label, Run
from metaprobe.training.check import load_reader
from metaprobe.training.evidence import load_evidence
from metaprobe.training.methods import AFTER, MEAN_LOGPROB, HiddenProbeMethod
from metaprobe.training.recipes.train_hidden import write_hidden
from metaprobe.training.stored_states import ANY_STATES, StatesRequest, choose_grid
from metaprobe.training.study import Study, crossfit, standard_methods
from metaprobe.training.versions import Promotion

WIDTH = 6
OWN, OTHER = "tiny/model", "oth/other@1"


def answers(
    path: Path,
    n: int = 40,
    *,
    model: str = OWN,
    agent: str = "solo",
    layers: Sequence[int] = (),
    bare: int = 0,
) -> RunStore:
    """Every second answer is right. With `layers`, states of prompt and answer were kept; the first `bare` hold no
    log-probabilities."""
    rng = np.random.default_rng(0)
    runs = []
    for i in range(n):
        name = f"{path.name}{i:03}"
        values = rng.normal(size=(len(layers), 2, WIDTH)) + (2 * (i % 2) - 1)
        call = Call(
            id=name,
            agent=agent,
            model=model,
            logprobs=None if i < bare else rng.normal(-1, 0.2, 5).astype(np.float32),
            logprobs_mode="raw",
            hidden=Hidden(values.astype(np.float16), tuple(layers), ("prompt_last", "answer_last")) if layers else None,
        )
        labels = (Label(name, "correct", float(i % 2), "program"),)
        runs.append(Run(name, "s", "v", Item(name, f"question {i}"), (call,), labels=labels))
    store = RunStore(path)
    store.append(runs)
    return store


def read(
    store: RunStore, layers: Sequence[int], positions: Sequence[str], *, by: str = "", value: float = 0.0, width=WIDTH
) -> Path:
    """Writes what `metaprobe extract` leaves: states of all calls, each layer's of the value `value` + layer."""
    each = np.full((len(layers), len(positions), width), value) + np.array(layers)[:, None, None]
    name, _, revision = by.partition("@")
    canaries = source_of(layers, width, model=name, revision=revision) if by else None
    hidden = Hidden(each.astype(np.float16), tuple(layers), tuple(positions), canaries=canaries)
    write_canaries(store.path, [hidden])
    path = store.path / f"states-{by.replace('/', '')}-{'-'.join(map(str, layers))}{positions[0]}.safetensors"
    path.write_bytes(activation_bytes({run.calls[0].id: hidden for run in store}, model=by))
    return path


def states(stores: RunStore | list[RunStore], request: StatesRequest | None = ANY_STATES, **options):
    stores = stores if isinstance(stores, list) else [stores]
    return load_evidence([store.path for store in stores], request=request, **options)


def train(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["train", "hidden", *map(str, arguments)])


def test_the_answering_models_own_states_come_before_a_larger_reading_by_another(tmp_path: Path) -> None:
    store = answers(tmp_path / "two", layers=(1, 2))
    read(store, (0, 1, 2, 3), POSITIONS, by=OTHER)
    evidence = states(store)
    assert (evidence.reader, evidence.states.layers) == ("", (1, 2))
    for name in ("oth/other", OTHER):
        evidence = states(store, StatesRequest(states_of=name))
        assert (evidence.reader, evidence.states.layers, evidence.states.positions) == (OTHER, (0, 1, 2, 3), POSITIONS)
        assert evidence.states.read(3, "before_exact").tolist() == [[3.0] * WIDTH] * 40
    assert states(store, StatesRequest(states_of=OWN)).reader == ""


def test_a_reader_that_did_not_read_is_refused_naming_those_that_did(tmp_path: Path) -> None:
    store = answers(tmp_path / "two", layers=(1,))
    read(store, (1,), ["answer_last"], by=OTHER)
    with pytest.raises(
        RecordError, match=r"no hidden states that huge read.*tiny/model \(which answered\), oth/other@1"
    ):
        states(store, StatesRequest(states_of="huge"))


def test_of_several_readers_and_no_own_states_one_must_be_named(tmp_path: Path) -> None:
    store = answers(tmp_path / "two")
    read(store, (1,), ["answer_last"], by=OTHER)
    assert states(store).reader == OTHER
    read(store, (1,), ["answer_last"], by="third@2", value=5)
    with pytest.raises(
        RecordError, match="oth/other@1 and third@2 read these answers: give one of them as --states-of"
    ):
        states(store)
    assert states(store, StatesRequest(states_of="third")).states.read(1, "answer_last").max() == 6


def test_states_of_two_models_are_not_mixed_into_one_direction(tmp_path: Path) -> None:
    stores = [
        answers(tmp_path / "a", model="m/a", agent="ann", layers=(1,)),
        answers(tmp_path / "b", model="m/b", layers=(1,)),
    ]
    result = train(*(store.path for store in stores), "--out", tmp_path / "probe")
    assert result.exit_code == 1
    assert "m/a and m/b" in result.stderr
    assert "--agent" in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("Error: ")
    assert states(stores, agent="ann").generator.models == ("m/a",)
    with pytest.warns(UserWarning, match="probes are left out: .*m/a and m/b"):  # a comparison goes on without
        left_out = states(stores, None)
    assert left_out.states is None
    assert "m/a and m/b each read their own answers" in left_out.states_refused
    for store in stores:
        read(store, (1,), ["answer_last"], by=OTHER)
    with pytest.raises(StoreMismatch, match="--states-of oth/other@1, which read all of them"):
        states(stores)
    assert len(states(stores, StatesRequest(states_of=OTHER)).table) == 80


@pytest.mark.filterwarnings("ignore:10 labelled answers are left out")
def test_a_probe_of_another_models_states_says_so_and_holds_calls_against_the_reader(tmp_path: Path) -> None:
    store = answers(tmp_path / "two", 80, bare=10)
    rng = np.random.default_rng(1)
    each = {
        run.calls[0].id: Hidden(
            rng.normal(run.labels[0].value, 1, (1, 1, WIDTH)).astype(np.float16),
            (3,),
            ("answer_last",),
            canaries=source_of((3,), model="oth/other"),
        )
        for run in store
    }
    write_canaries(store.path, each.values())
    (store.path / "states-a-b.safetensors").write_bytes(activation_bytes(each, model=OTHER))
    evidence = states(store)
    methods = [m for m in standard_methods(evidence) if m.name in (AFTER, MEAN_LOGPROB)]
    [method] = (m for m in methods if isinstance(m, HiddenProbeMethod))
    fits = crossfit(evidence, methods, folds=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of so little data
        write_hidden(
            tmp_path / "probe", Study(evidence, (method,), fits, 0), when="after", target="correct", command="test"
        )
        probe, strict = (ConfidenceProbe.load(tmp_path / "probe", on_mismatch=how) for how in ("warn", "refuse"))
    manifest = json.loads((tmp_path / "probe" / "manifest.json").read_text())
    assert manifest["contract"]["reader"] == {"model": "oth/other", "revision": "1"}
    assert manifest["generator"]["model"] == OWN
    card = (tmp_path / "probe" / "README.md").read_text()
    assert "The states are those of oth/other@1, which read what tiny/model said." in card
    assert "10 of 80 labelled answers were left out, for they hold no log-probabilities" in card
    call = Call(id="c", model=OWN, hidden=each["two000"])
    assert 0 < strict.read(call, reader="oth/other") < 1
    assert strict.read(call, reader=OTHER) == strict.read(call, reader="oth/other")
    assert strict.confidence(call, reader=OTHER) == strict.read(call, reader=OTHER)
    with pytest.raises(ContractMismatch, match="hidden states of tiny/model, checkpoint trained on those of oth/other"):
        strict.read(call)
    with pytest.warns(UserWarning, match="hidden states") as told, pytest.raises(InvalidResponse, match="are of third"):
        probe.read(call, reader="third")
    assert "hidden states of third" in str(told[0].message)
    with pytest.warns(UserWarning, match="response of 'oth/other', checkpoint trained on tiny/model"):
        probe.read(replace(call, model="oth/other"))


@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")  # of a test
def test_a_margin_below_nothing_and_a_kind_that_judges_no_answer_are_refused() -> None:
    with pytest.raises(ValueError, match=r"margin is -0\.1; expected at least 0"):
        Promotion.on_runs(None, None, [], margin=-0.1)  # type: ignore[arg-type]
    with pytest.raises(ContractMismatch, match=r"bundled:router is a checkpoint of kind 'panel'; expected one of"):
        load_reader("bundled:router")


def test_a_probe_is_promoted_on_the_states_of_the_model_that_it_was_trained_on(tmp_path: Path) -> None:
    store = answers(tmp_path / "runs", 80)
    for path, says in (
        (tmp_path / "own", {}),
        (tmp_path / "other", {"reader": {"model": "oth/other", "revision": "1"}}),
    ):
        hidden_checkpoint(path, says=says)
    own, other = Reader.load(tmp_path / "own"), Reader.load(tmp_path / "other")
    read(store, (2,), ["answer_last"], by=OTHER)
    Promotion.on_runs(other, other, [store.path])
    with pytest.raises(RecordError, match=r"those of oth/other@1, and .*own reads the answering model's own"):
        Promotion.on_runs(own, other, [store.path])
    with pytest.raises(RecordError, match="no hidden states that oth/other read are stored"):
        Promotion.on_runs(other, other, [answers(tmp_path / "kept", 80, layers=(2,)).path])


def test_what_another_request_kept_of_the_same_calls_is_joined(tmp_path: Path) -> None:
    store = answers(tmp_path / "s1", layers=(8, 16))
    ids = [run.calls[0].id for run in store]
    kept = store.activations(ids, layers=(8,), positions=("answer_last",)).values[:, 0, 0]
    read(store, (8, 16), ["before_exact", "answer_last"], value=0.5)
    joined = states(store).states
    assert (joined.layers, joined.positions) == ((8, 16), ("prompt_last", "answer_last", "before_exact"))
    for request in (
        StatesRequest(positions=("before_exact",)),
        StatesRequest("16", ("before_exact",)),
        StatesRequest("every:16"),
    ):
        found = states(store, request).states
        assert found.layers == ((16,) if request.layers != "all" else (8, 16))
        assert found.read(16, "before_exact").tolist() == [[16.5] * WIDTH] * 40
    np.testing.assert_array_equal(joined.read(8, "answer_last"), kept)  # what was kept while answering comes first


@pytest.mark.parametrize(
    ("states_request", "message"),
    [
        (StatesRequest("7"), r"layers \[7\] were not captured; there are: 8, 16, 24"),
        (StatesRequest("every:5"), "no layer that 5 divides was captured; there are: 8, 16, 24"),
        (
            StatesRequest("last"),
            "layers 'last': expected 'all', 'every:N', or numbers such as 8,16; there are: 8, 16, 24",
        ),
        (
            StatesRequest(positions=("answer_mean",)),
            r"positions \['answer_mean'\].*there are: prompt_last, answer_last, before",
        ),
        (StatesRequest("8", ("before_exact",)), "not stored together; there are .*before_exact: layers 24"),
    ],
)
def test_layers_and_positions_that_are_not_stored_are_refused_naming_those_that_are(
    states_request, message, tmp_path
) -> None:
    store = answers(tmp_path / "s1", layers=(8, 16))
    read(store, (24,), ["before_exact"])
    with pytest.raises(RecordError, match=message):
        states(store, states_request)
    assert states(store, StatesRequest(positions=("before_exact",))).states.layers == (24,)


@given(
    cells=st.sets(st.tuples(st.integers(0, 4), st.sampled_from(POSITIONS)), min_size=1),
    layers=st.sampled_from(["all", "every:2", "1", "0,3"]),
    positions=st.sets(st.sampled_from(POSITIONS), max_size=2),
)
def test_a_chosen_grid_is_whole_and_holds_what_is_asked_for_and_none_is_larger(cells, layers, positions) -> None:
    try:
        chosen = choose_grid(cells, StatesRequest(layers, tuple(positions)))
    except RecordError:
        numbers = range(0, 5, 2) if layers == "every:2" else range(5)
        assert layers[0].isdigit() or positions or not any(layer in numbers for layer, _ in cells)
        return
    assert {(layer, position) for layer in chosen[0] for position in chosen[1]} <= cells
    assert not layers[0].isdigit() or layers == ",".join(map(str, chosen[0]))
    assert not positions or set(chosen[1]) == positions
    if layers == "all" and not positions:
        deepest = max(sum(layer == kept for kept, _ in cells) for layer in range(5))
        widest = max(sum(position == kept for _, kept in cells) for position in POSITIONS)
        assert len(chosen[0]) * len(chosen[1]) >= max(deepest, widest)


def test_stores_of_other_layers_are_learned_from_together_on_those_they_share(tmp_path: Path) -> None:
    stores = [answers(tmp_path / "a", layers=(0, 8, 16)), answers(tmp_path / "b", layers=(0, 16, 32))]
    assert states(stores).states.layers == (0, 16)
    wide = answers(tmp_path / "wide", model="")  # whose name is not known
    read(wide, (0, 16), ["answer_last"], width=8)
    with pytest.raises(StoreMismatch, match="of width 6 and 8, so of several models"):
        states([stores[0], wide])
    alone = answers(tmp_path / "c", layers=(5,))
    with pytest.raises(RecordError, match="no layer and position in common"):
        states([stores[0], alone])


def test_states_that_are_no_numbers_are_named_by_file_before_anything_is_fitted(tmp_path: Path) -> None:
    store = answers(tmp_path / "runs", layers=(1,))
    path = read(store, (2,), ["answer_last"], value=np.nan)
    with pytest.raises(RecordError, match=f"40 of 40 answers .*NaN or infinite: delete .*{path.name}, and") as refused:
        states(store, StatesRequest("2"))
    assert "runs-0" not in str(refused.value)  # whose states are sound
    assert states(store, StatesRequest("1")).states.layers == (1,)
    path.unlink()
    read(store, (2,), ["answer_last"], value=1)
    assert states(store, StatesRequest("2")).states.layers == (2,)


def test_answers_without_any_log_probabilities_are_refused_with_what_to_do(tmp_path: Path) -> None:
    store = answers(tmp_path / "api", layers=(1,), bare=40)
    with pytest.raises(RecordError, match=r"40 have it but no log-probabilities.*collect or import the answers again"):
        states(store)


@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")  # of so little data
@pytest.mark.filterwarnings("ignore:10 labelled answers are left out")
def test_the_command_trains_on_the_position_asked_for_and_says_what_it_left_out(tmp_path: Path) -> None:
    store = answers(tmp_path / "runs", 160, layers=(8, 16), bare=10)
    read(store, (8, 16), ["before_exact"])
    options = ("--folds", 2, "--out", tmp_path / "probe")
    result = train(store.path, *options, "--position", "before_exact", "--layers", "16")
    assert result.exit_code == 0, result.output
    assert "layers 16 at before_exact" in result.stderr
    assert "10 of 160 labelled answers were left out" in result.stderr
    contract = json.loads((tmp_path / "probe" / "manifest.json").read_text())["contract"]
    assert (contract["layer"], contract["position"], "reader" in contract) == (16, "before_exact", False)
    other = ("--folds", 2, "--out", tmp_path / "other")
    refused = train(store.path, *other, "--when", "before", "--position", "answer_last")
    assert refused.exit_code == 2
    assert "only prompt_last is known" in refused.stderr
