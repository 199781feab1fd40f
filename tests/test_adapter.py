"""The adapter probe on a tiny random model: it learns what was planted, resumes exactly, and runs without torch."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from tiny_adapter import WORDS, saved_base, stored, tiny, tiny_tokenizer
from torch import nn

from metaprobe.checkpoints import (
    Checkpoint,
    ContractMismatch,
    GoldenMismatch,
    NotACheckpoint,
    check_model,
    load_checkpoint,
)
from metaprobe.checkpoints.checkpoint import GraphSession
from metaprobe.checkpoints.onnx_guard import ADAPTER
from metaprobe.cli import main
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.llms.base import LLMError
from metaprobe.probes.adapter import AdapterProbe, Encoder, layout, padded_batches
from metaprobe.probes.signal_source import SignalSource
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Message
from metaprobe.training.adapter.adapter_recipe import load_base, write_adapter
from metaprobe.training.adapter.decoder_graph import adapter_graph, quantise
from metaprobe.training.adapter.examples import adapter_roles, choose_depth, cut_layers, examples, last_states
from metaprobe.training.adapter.fit_lora import fit_adapter, scored_log_odds
from metaprobe.training.adapter.scorer import AdapterScorer, AdapterSettings
from metaprobe.training.adapter.unfinished import STATE_FILE
from metaprobe.training.calibrators import Platt
from metaprobe.training.text_data import load_texts
from metaprobe.training.training_options import AdapterOptions

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

QUICK = AdapterSettings(epochs=8, batch_size=16, lr=1e-2, rank=4, max_length=24, evaluations=1, patience=8)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_base(tmp_path_factory.mktemp("models") / "tiny")


@dataclass(frozen=True)
class Exported:
    checkpoint: Checkpoint
    scorer: AdapterScorer
    platts: dict[str, Platt]
    graph: bytes


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, runs: Path, base: str) -> Exported:
    """Returns the result of `write_adapter` and its inputs: tracing the model is by far the slowest part."""
    out = tmp_path_factory.mktemp("adapter") / "probe"
    made: list[tuple[AdapterScorer, dict[str, Platt], bytes]] = []

    def keep(scorer: AdapterScorer, platts: dict[str, Platt]) -> bytes:
        made.append((scorer, platts, adapter_graph(scorer, platts)))  # type: ignore[arg-type]
        return made[0][-1]

    work = out.with_name("work")

    def on_step(what: str) -> None:
        if (work / STATE_FILE).exists():
            (work / "notes.txt").write_text("mine")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metaprobe.training.adapter.adapter_recipe.adapter_graph", keep)
        checkpoint = write_adapter(
            [runs], AdapterOptions(out=out, llm=base, work=work, command="test", on_step=on_step), QUICK
        )
    assert checkpoint is not None
    assert [path.name for path in work.iterdir()] == ["notes.txt"]  # only its own state is gone
    return Exported(checkpoint, *made[0])


@pytest.fixture
def trained(exported: Exported) -> Checkpoint:
    return exported.checkpoint


def random_ids(seed: int = 0, n: int = 9) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, len(WORDS), rng.integers(1, 20)).tolist() for _ in range(n)]


@pytest.mark.slow
def test_planted_rules_are_learned_from_questions_and_better_from_answers(trained: Checkpoint) -> None:
    before, after = (trained.manifest.metrics[f"{when}.auroc"].estimate for when in ("before", "after"))
    assert after > 0.95
    assert 0.7 < before < 0.95  # 0.9 where all is learned that the question tells
    # Made-up questions of a few letters repeat each other, and words tell all there is: of the question beforehand,
    # of the answer afterwards. The audits say so, and nothing else is wrong.
    failed = {name for name, audit in trained.manifest.audits.items() if not audit.passed}
    assert "adapter probe before the answer beats prompt TF-IDF" in failed
    assert "adapter probe after the answer beats answer TF-IDF" in failed
    told_by_words = ("question", "beats prompt TF-IDF", "beats answer TF-IDF", "beats words and log-probabilities")
    assert [name for name in failed if not any(words in name for words in told_by_words)] == []
    assert trained.weaknesses


@pytest.mark.slow
def test_the_figures_are_of_the_exported_graph_on_rows_it_never_saw(trained: Checkpoint, runs: Path) -> None:
    data = load_texts([runs])
    roles = adapter_roles(data.table)
    texts = [(data.prompts[row], data.answers[row]) for row in roles.test]
    scores = AdapterProbe.load(trained.path).probability(*map(list, zip(*texts, strict=True)))
    assert float(auroc(data.table.y[roles.test], scores)) == trained.manifest.metrics["after.auroc"].estimate
    assert trained.manifest.contract["parts"]["test"] == len(scores) == trained.manifest.metrics["after.auroc"].n
    card = (trained.path / "README.md").read_text()
    assert "Of the exported graph itself" in card
    assert "float32 graph against the trained model" in card


@pytest.mark.slow
def test_texts_are_scored_alone_as_together_and_in_their_order(trained: Checkpoint) -> None:
    probe = AdapterProbe.load(trained.path)
    prompts = ["easy b c", "d", "easy f g h i j", "k"]
    answers = ["x good y", "x y z", "good", "w v u t s r"]
    together = probe.probability(prompts, answers)
    assert (together > 0.5).tolist() == [True, False, True, False]
    alone = [probe.probability([p], [a])[0] for p, a in zip(prompts, answers, strict=True)]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    call = Call(id="c", model="m", messages=(Message("user", prompts[0]),), text=answers[0])
    assert probe.read(call) == pytest.approx(together[0], abs=1e-5)
    assert probe.probability(prompts).shape == (4,)
    assert probe.probability([], []).shape == (0,)


@pytest.mark.slow
def test_the_graph_gives_what_the_model_gives_at_any_batch_and_length(exported: Exported) -> None:
    ids = random_ids()
    log = scored_log_odds(exported.scorer, ids, 1)
    session = GraphSession(exported.graph)
    for size in (1, 4, len(ids)):
        for rows, inputs in padded_batches(ids, size):
            found = session.run(dict(inputs))
            for name, platt in exported.platts.items():
                np.testing.assert_allclose(found[name][:, 0], platt.probability(log[rows]), atol=1e-5)
    assert log.std() > 0.1  # or anything would agree


@pytest.mark.slow
def test_an_int8_graph_multiplies_integers_is_near_and_judges_each_text_alone(exported: Exported) -> None:
    small = quantise(exported.graph, [inputs for _, inputs in padded_batches(random_ids(7), 1)])
    check_model(small, ADAPTER)
    assert len(small) < len(exported.graph)
    model = onnx.load_from_string(small)
    products = [node for node in model.graph.node if node.op_type == "MatMulInteger"]
    # Four products of attention and three of the MLP a layer, and no float weights left beside them.
    assert len(products) == 7 * exported.checkpoint.manifest.contract["depth"]
    floats = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) == 2]
    assert all(1 in t.dims for t in floats)  # the head and scales
    ids, platt = random_ids(), exported.platts["after"]
    session = GraphSession(small)
    [(order, together)] = padded_batches(ids, len(ids))
    found = session.run(dict(together))["after"][:, 0]
    alone = [session.run(dict(inputs))["after"][0, 0] for _, inputs in padded_batches([ids[i] for i in order], 1)]
    np.testing.assert_allclose(found, alone, atol=1e-5)
    difference = np.abs(found - platt.probability(scored_log_odds(exported.scorer, ids, 1))[order])
    assert 1e-5 < difference.max() < 0.1
    assert difference.mean() < 0.02


def test_integer_products_fit_where_pairs_are_added_in_16_bits_and_survive_a_huge_state() -> None:
    """Processors without VNNI add two products in 16 bits. A huge token or unit must not flatten the others."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(48, 8)).astype(np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", "T", 48])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", "T", 8])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    opset = [onnx.helper.make_opsetid("", 20)]
    x = rng.normal(size=(2, 5, 48)).astype(np.float32)
    x[..., 3] *= 300
    whole = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
    small = quantise(whole, [{"x": x}])
    arrays = [onnx.numpy_helper.to_array(t) for t in onnx.load_from_string(small).graph.initializer]
    [integers] = [array for array in arrays if array.dtype == np.int8]
    assert 2 * 255 * np.abs(integers.astype(int)).max() < 1 << 15
    x[0, 0] *= 1000
    x[1, 1] = 0
    [found] = GraphSession(small).run({"x": x}).values()
    others = np.linalg.norm(np.delete(x, 3, axis=-1), axis=-1, keepdims=True) + 1e-9
    assert (np.abs(found - x @ weight) / others).max() < 0.3  # without a unit's own factor it is above 1
    assert not found[1, 1].any()


def test_only_layers_that_tell_more_are_kept(runs: Path) -> None:
    """States of a base whose upper layers do nothing: the depth is the least that may be chosen."""
    decoder = tiny(layers=6).base_model
    for layer in decoder.layers[3:]:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    data, encoder = load_texts([runs]), Encoder(tiny_tokenizer().to_str().encode(), max_length=24)
    texts, roles = examples(data, ["after"], encoder), adapter_roles(data.table)
    depth = choose_depth(decoder, texts, data, roles, QUICK)
    assert 2 <= depth <= 3
    before = last_states(decoder, texts.ids[:3], 2)[:, depth - 1]
    cut_layers(decoder, depth)
    assert len(decoder.layers) == decoder.config.num_hidden_layers == depth
    ids = torch.tensor([texts.ids[0]])
    states = decoder(input_ids=ids, use_cache=False).last_hidden_state
    np.testing.assert_allclose(states[0, -1].detach(), before[0], atol=1e-4)


def test_padding_changes_no_score() -> None:
    scorer = AdapterScorer(tiny(seed=2).base_model, nn.Linear(32, 1)).eval()
    ids = random_ids(3)
    np.testing.assert_allclose(scored_log_odds(scorer, ids, 1), scored_log_odds(scorer, ids, len(ids)), atol=1e-5)


class Killed(Exception):
    pass


def test_interrupted_and_resumed_gives_the_same_as_uninterrupted(runs: Path, tmp_path: Path) -> None:
    data = load_texts([runs])
    roles = adapter_roles(data.table)
    texts = examples(data, ["after"], Encoder(tiny_tokenizer().to_str().encode(), max_length=24))
    settings = AdapterSettings(epochs=2, batch_size=8, accumulate=2, lr=1e-2, rank=2, max_length=24, evaluations=3)

    def fit(work: Path, kill_at: int | None = None) -> AdapterScorer:
        told = 0

        def on_step(what: str) -> None:
            nonlocal told
            told += 1
            if told == kill_at:
                raise Killed

        decoder = tiny().base_model
        return fit_adapter(decoder, texts, data.table.y, roles, settings, work=work, on_step=on_step).scorer

    whole = fit(tmp_path / "whole")
    for kill_at in (2, 2):
        with pytest.raises(Killed):
            fit(tmp_path / "killed", kill_at)
    resumed = fit(tmp_path / "killed")
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, atol=1e-5, rtol=0)
    untrained = tiny().base_model.state_dict()["layers.0.mlp.up_proj.weight"]
    assert (whole.state_dict()["decoder.layers.0.mlp.up_proj.weight"] - untrained).abs().max() > 1e-3

    other = AdapterSettings(epochs=3, batch_size=8, max_length=24)
    with pytest.raises(RecordError, match="other settings"):
        fit_adapter(tiny().base_model, texts, data.table.y, roles, other, work=tmp_path / "whole")
    (tmp_path / "whole" / STATE_FILE).write_bytes(b"not a state")
    with pytest.raises(RecordError, match="cannot be read"):
        fit_adapter(tiny().base_model, texts, data.table.y, roles, settings, work=tmp_path / "whole")


def test_of_a_long_text_the_end_is_read() -> None:
    encoder = Encoder(tiny_tokenizer().to_str().encode(), max_length=6)
    [ids] = encoder.ids([layout("a b c d e f", None)])
    assert [WORDS[i] for i in ids] == ["Will", "the", "answer", "be", "right", "?"]
    assert layout("{x} {answer}", "{y}").startswith("{x} {answer}\n\nAnswer: {y}\n")


def test_labels_of_one_class_stores_without_texts_and_a_base_that_reads_less_are_refused(
    runs: Path, tmp_path: Path, base: str
) -> None:
    with pytest.raises(RecordError, match="exceeds the 64 tokens that tiny can read"):
        write_adapter([runs], AdapterOptions(out=tmp_path / "out", llm=base, max_length=65))
    with pytest.raises(LLMError, match="no such file or folder"):
        load_base(str(tmp_path / "nothing"))
    one = stored(tmp_path / "one", 40, y=1)
    with pytest.raises(RecordError, match="nothing to distinguish"):
        write_adapter([one], AdapterOptions(out=tmp_path / "out", llm=base))
    bare = stored(tmp_path / "bare", 40, text=False)
    with pytest.raises(RecordError, match="no text of a user message"):
        write_adapter([bare], AdapterOptions(out=tmp_path / "out", llm=base))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_misuse_is_named(trained: Checkpoint) -> None:
    probe = AdapterProbe.load(trained.path)
    with pytest.raises(InvalidResponse, match="2 prompts and 1 answers"):
        probe.probability(["a", "b"], ["c"])
    with pytest.raises(InvalidResponse, match="expected a list"):
        probe.probability("a", "b")
    for when, remedy in (("before", "leave the answers out"), ("after", "give the answers")):
        one = AdapterProbe(probe.checkpoint, (when,), probe.target, probe.encoder)  # type: ignore[arg-type]
        given = {"before": None, "after": ["w7 yes"]}
        one.probability(["low w3"], given.pop(when))
        with pytest.raises(InvalidResponse, match=f"judge {when} the answer only: {remedy}, or train it with --when"):
            one.probability(["low w3"], *given.values())
    with pytest.raises(InvalidResponse, match="call c has no user message: this probe reads texts"):
        probe.read(Call(id="c", text="w7 yes"))
    with pytest.raises(ContractMismatch, match="expected 'adapter'"):
        AdapterProbe.load("bundled:quality")


@pytest.mark.slow
def test_a_checkpoint_that_lacks_what_an_adapter_needs_is_refused(trained: Checkpoint) -> None:
    whole = load_checkpoint(trained.path)

    def of(extra: dict[str, bytes] | None = None, **contract: object) -> AdapterProbe:
        manifest = replace(whole.manifest, contract={**whole.manifest.contract, **contract})
        return AdapterProbe.of(replace(whole, manifest=manifest, extra=whole.extra if extra is None else extra))

    assert of().when == ("before", "after")
    with pytest.raises(NotACheckpoint, match=r"holds no tokenizer\.json; copy the whole folder"):
        of(extra={})
    with pytest.raises(ContractMismatch, match=r"tokenizer\.json cannot be read by tokenizers"):
        of(extra={"tokenizer.json": b"{}"})
    for wrong in ({"layout": []}, {"max_length": "64"}, {"target": None}):
        with pytest.raises(ContractMismatch, match="contract needs layout, max_length and target"):
            of(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ContractMismatch, match="another layout"):
        of(layout={**whole.manifest.contract["layout"], "after": "{prompt} {answer}"})
    with pytest.raises(GoldenMismatch, match="reads a sample text in another way than the one it was trained with"):
        of(sample_ids=[1])


@pytest.mark.slow
def test_what_another_model_said_is_read_with_a_warning_or_not_at_all(trained: Checkpoint) -> None:
    call = Call(id="c", model="stranger", messages=(Message("user", "low w3"),), text="w7 yes")
    with pytest.warns(UserWarning, match="stranger"):
        told = AdapterProbe.load(trained.path).read(call)
    assert AdapterProbe.load(trained.path, on_mismatch="ignore").read(call) == told
    with pytest.raises(ContractMismatch, match="stranger"):
        AdapterProbe.load(trained.path, on_mismatch="refuse").read(call)


@pytest.mark.slow
def test_it_stands_in_for_a_stated_number_and_reads_the_prompt_of_a_difficulty(trained: Checkpoint) -> None:
    probe = AdapterProbe.load(trained.path)
    source = SignalSource.load([f"confidence={trained.path}", f"difficulty={trained.path}"])
    call = Call(id="c", messages=(Message("user", "low w3"),), text="w7 yes")
    confidence, difficulty = (source.signal(name, call=call) for name in ("confidence", "difficulty"))
    assert confidence is not None
    assert difficulty is not None
    assert (source.reads("confidence"), source.reads("difficulty")) == ("answer", "prompt")
    assert confidence.value == probe.read(call, when="after")
    assert difficulty.value == pytest.approx(1 - probe.read(call, when="before"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")  # 150 answers teach it little
def test_the_real_model_is_trained_and_exported_by_the_command(recorded_runs: Path, tmp_path: Path) -> None:
    RunStore(tmp_path / "runs").append(list(RunStore(recorded_runs))[::2])
    out = tmp_path / "adapter"
    options = ["--when", "after", "--epochs", "1", "--batch-size", "4", "--max-length", "32"]
    done = CliRunner().invoke(main, ["train", "adapter", str(tmp_path / "runs"), "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    assert "adapter checkpoint" in done.output
    assert "int8 against float32" in (out / "README.md").read_text()
    [p] = AdapterProbe.load(out).probability(["What is 5 + 1?"], ["5 + 1 = 6"])
    assert 0 < p < 1
