"""A probe from plain arrays: the project's folds and numbers, saved as a checkpoint, read in a model of one's own."""

import gc
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from conftest import made_up
from random_model import PROMPTS, answers, llm_of, network, request, tokenizer
from test_hidden_probe import hidden_checkpoint
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import metaprobe
from metaprobe import ConfidenceProbe, DifficultyProbe
from metaprobe.checkpoints import ContractMismatch
from metaprobe.cli import main
from metaprobe.llms.base import LLMError
from metaprobe.llms.hidden_capture import Capture, text_states
from metaprobe.probes.hidden import TokenScores
from metaprobe.records.errors import InvalidResponse, MissingExtra, RecordError
from metaprobe.training.methods import AFTER, HiddenProbeMethod
from metaprobe.training.recipes.train_hidden import positions_of, train_hidden
from metaprobe.training.study import crossfit
from metaprobe.training.training_options import HiddenOptions, WrongOptions

__all__ = ["network", "tokenizer"]  # fixtures
LAYERS = (4, 8, 12)


def planted(n: int = 400, *, signal: float = 1.2, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """States of three layers, of which the middle one knows the label; four rows a group."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    X = rng.normal(size=(n, 3, 10)).astype(np.float32)
    X[:, 1, 3] += signal * (2 * y - 1)
    return X, y, [f"question {i // 4}" for i in range(n)]


@pytest.fixture(scope="module")
def probe() -> ConfidenceProbe:
    X, y, groups = planted()
    return ConfidenceProbe.fit(X, y, groups=groups, layers=LAYERS, folds=3)


def test_the_layer_that_knows_is_chosen_and_its_held_out_auroc_has_an_interval(probe: ConfidenceProbe) -> None:
    X, y, _ = planted(seed=1)
    assert (probe.layers, probe.position) == ((8,), "answer_last")
    assert probe.auroc.n == 400
    assert 0.85 < probe.auroc.low < probe.auroc.estimate < probe.auroc.high <= 1
    new = probe.probability(X[:, 1])
    assert np.mean(new[y == 1]) - np.mean(new[y == 0]) > 0.5


def test_noise_is_not_told_to_be_a_probe() -> None:
    X, y, groups = planted(signal=0.0)
    fitted = ConfidenceProbe.fit(X, y, groups=groups, folds=3)
    assert fitted.auroc.low < 0.5 < fitted.auroc.high + 0.05
    assert "hidden probe, answer is above chance" in fitted.checkpoint.weaknesses


def test_what_only_knows_the_group_is_found_out_by_the_groups() -> None:
    rng = np.random.default_rng(0)
    number = np.repeat(np.arange(80), 5)
    y = rng.integers(0, 2, 80)[number]
    X = rng.normal(size=(80, 40))[number]
    with_groups = ConfidenceProbe.fit(X, y, groups=number.tolist(), folds=3)
    without = ConfidenceProbe.fit(X, y, folds=3)
    assert with_groups.auroc.estimate < 0.6
    assert without.auroc.estimate > 0.8
    training = without.checkpoint.manifest.training
    assert "each row stands for itself" in training.regrouped


def test_the_figure_is_the_one_that_a_training_on_a_run_store_gives() -> None:
    evidence = made_up(300)
    states = evidence.states
    X = np.stack([states.read(layer, "answer_last") for layer in states.layers], axis=1)
    groups = evidence.table.groups.tolist()
    fitted = ConfidenceProbe.fit(X, evidence.table.y, groups=groups, folds=3)
    method = HiddenProbeMethod(AFTER, ("answer_last",))
    fits = crossfit(evidence, [method], folds=3)
    ranking, fold, y = fits[AFTER].ranking, fits.fold, evidence.table.y
    pairs = (ranking[y == 1][:, None] - ranking[y == 0])[fold[y == 1][:, None] == fold[y == 0]]  # of one fold
    assert fitted.auroc.estimate == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)), abs=1e-9)


def test_a_saved_probe_is_a_checkpoint_like_any_other(probe: ConfidenceProbe, tmp_path: Path) -> None:
    X, _, _ = planted()
    probe.save(tmp_path / "probe")
    loaded = metaprobe.load(tmp_path / "probe")
    assert isinstance(loaded, ConfidenceProbe)
    np.testing.assert_array_equal(loaded.probability(X[:, 1]), probe.probability(X[:, 1]))
    result = CliRunner().invoke(main, ["verify", str(tmp_path / "probe")])
    assert result.exit_code == 0, result.output
    assert loaded.checkpoint.trust == "unaudited", "nothing was given that it could be held against"
    card = (tmp_path / "probe" / "README.md").read_text()
    assert card.startswith("> Unaudited: its numbers were never held against a control")


def test_arrays_are_held_against_the_words_the_log_probabilities_and_layer_0_that_come_with_them() -> None:
    """The answer's words know the label, and so does layer 0: the probe of another layer adds nothing to them."""
    X, y, groups = planted(200)
    X[:, 0, 5] += 3 * (2 * y - 1)
    rng = np.random.default_rng(0)
    told = [f"{'yes' if right else 'no'} {rng.integers(9)}" for right in y]
    series = [-rng.exponential(size=rng.integers(3, 20)) for _ in y]
    columns = {"questions": np.array(groups), "answers": np.array(told, dtype=object)}  # any sequence is taken
    fitted = ConfidenceProbe.fit(X, y, groups=groups, logprobs=series, folds=2, **columns)  # type: ignore[arg-type]
    held = {name.partition(" beats ")[2] for name in fitted.checkpoint.manifest.audits if " beats " in name}
    assert {"answer TF-IDF", "prompt TF-IDF", "layer 0, the text", "length", "mean log-probability"} <= held
    assert "hidden probe, answer beats answer TF-IDF" in fitted.checkpoint.weaknesses
    assert fitted.checkpoint.trust == "weak"
    for wrong in (
        {"answers": told[:3]},
        {"logprobs": series[:3]},
        {"logprobs": [[0.5]] * 200},
        {"questions": [1] * 200},
    ):
        with pytest.raises(RecordError, match="expected"):
            ConfidenceProbe.fit(X, y, **wrong)  # type: ignore[arg-type]


def test_a_probe_that_is_not_saved_leaves_nothing_behind() -> None:
    X, y, groups = planted(200)
    fitted = DifficultyProbe.fit(X[:, 1], y, groups=groups, folds=2)
    folder = fitted.checkpoint.path
    assert (folder / "manifest.json").exists()
    assert fitted.position == "prompt_last"
    del fitted
    gc.collect()
    assert not folder.parent.exists()


def test_tensors_of_a_model_are_taken_as_they_come(probe: ConfidenceProbe) -> None:
    X, y, groups = planted()
    tensor = torch.tensor(X, requires_grad=True)
    fitted = ConfidenceProbe.fit(tensor, torch.tensor(y), groups=groups, layers=LAYERS, folds=3)
    assert fitted.auroc == probe.auroc
    assert DifficultyProbe.fit(tensor[:, 1].bfloat16(), y, groups=groups, folds=2).width == 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"X": np.zeros((400, 2, 2, 2))}, r"X has shape \(400, 2, 2, 2\); expected \(n, d\)"),
        ({"X": np.full((400, 3), np.nan)}, "X holds NaN or infinity in 400 of 400 rows"),
        ({"X": [["a"] * 3] * 400}, "X came as <U1; expected numbers"),
        ({"X": [[1.0], [1.0, 2.0]]}, "X is no array"),
        ({"y": np.zeros(3)}, r"y has shape \(3,\); expected one label a row of X, \(400,\)"),
        ({"y": np.full(400, 0.5)}, "y holds 0.5; expected 0 and 1"),
        ({"y": np.zeros(400)}, "all 400 labels are 0"),
        ({"groups": ["g"]}, "groups has 1 entries; expected one a row of X, 400"),
        ({"groups": ["g"] * 400}, "1 groups have a label 1"),
        ({"layers": (1, 1, 2)}, "expected as many different numbers"),
        ({"position": "somewhere"}, "position 'somewhere': expected one of"),
    ],
)
def test_arrays_that_are_not_what_they_should_be_are_refused(change: dict[str, Any], said: str) -> None:
    X, y, groups = planted()
    with pytest.raises(RecordError, match=said):
        ConfidenceProbe.fit(**{"X": X, "y": y, "groups": groups, **change})


def test_a_probe_before_the_answer_is_no_probe_of_the_answer() -> None:
    X, y, groups = planted()
    with pytest.raises(ContractMismatch, match="is a DifficultyProbe"):
        ConfidenceProbe.fit(X, y, groups=groups, position="prompt_last")
    with pytest.raises(ContractMismatch, match="is a ConfidenceProbe"):
        DifficultyProbe.fit(X, y, groups=groups, position="answer_last")


def of_tiny(folder: Path, position: str, layers: tuple[int, ...] = (2,)) -> ConfidenceProbe:
    hidden_checkpoint(folder / "p", layers=layers, position=position, width=16)
    return ConfidenceProbe.load(folder / "p", on_mismatch="ignore")  # its golden states are made up


POSITIONS = ("prompt_last", "answer_first", "answer_last", "answer_mean")


def test_a_text_is_read_as_a_collected_call_is(network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    llm = llm_of(network, tokenizer, capture=Capture((0, 1, 3), POSITIONS))
    calls = answers(llm, [request(text, i, hidden=True, max_tokens=6) for i, text in enumerate(PROMPTS)])
    whole = [call for call in calls if call.text.split() == [token.strip() for token in call.tokens]]
    assert whole  # of others the text does not hold every token
    for call in whole:
        read = text_states(network, tokenizer, PROMPTS[int(call.id[1:])], call.text, layers=(0, 1, 3))
        assert call.hidden is not None
        expected = call.hidden.values.astype(np.float64)  # (layers, positions, width), float16
        found = [read.prompt, read.answer[0], read.answer[-1], read.answer.mean(axis=0)]
        np.testing.assert_allclose(np.stack(found, axis=1), expected, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("position", POSITIONS)
def test_a_probe_reads_the_state_at_its_own_position(
    position: str, network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    probe = of_tiny(tmp_path, position, (1, 2))
    read = text_states(network, tokenizer, "a b", "x y z", layers=(1, 2))
    states = [read.prompt, read.answer[0], read.answer[-1], read.answer.mean(axis=0)][POSITIONS.index(position)]
    score = probe.score_text(network, tokenizer, "a b", "x y z")
    assert score == pytest.approx(float(probe.probability(states[None])[0]), abs=1e-6)
    by_messages = probe.score_text(network, tokenizer, [{"role": "user", "content": "a b"}], "x y z")
    assert by_messages == score
    bare = text_states(network, tokenizer, "a b", "x y z", layers=(1, 2), chat=False)
    assert not np.allclose(bare.prompt, read.prompt)  # without the template


def test_each_token_is_read_by_itself(
    network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    probe = of_tiny(tmp_path, "answer_mean")
    found = probe.score_text(network, tokenizer, "a b", "x y z", tokens=True)
    assert isinstance(found, TokenScores)
    assert found.score == probe.score_text(network, tokenizer, "a b", "x y z")
    assert found.tokens == ("x", "y", "z")
    ids = tokenizer(
        tokenizer.apply_chat_template([{"role": "user", "content": "a b"}], tokenize=False, add_generation_prompt=True)
        + " x y z",
        add_special_tokens=False,
        return_tensors="pt",
    ).input_ids
    with torch.inference_mode():
        states = network(ids, output_hidden_states=True).hidden_states[2][0, -3:].numpy()
    np.testing.assert_allclose(found.values, probe.token_confidence(states), atol=1e-5)
    assert found.to_dict()["tokens"] == ["x", "y", "z"]


def test_tokens_are_shown_in_colour_and_are_no_markup() -> None:
    shown = TokenScores(0.4, ("<b>", " x"), np.array([0.05, 0.95]))._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown.replace("<b>P(right)", "")
    low, high = re.findall(r'title="[\d.]+" style="background:rgba\(([\d,]+?),0\.\d+\)', shown)
    assert low != high
    assert 'title="0.050"' in shown


def test_what_no_text_can_give_is_refused(
    network: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe = of_tiny(tmp_path / "mean", "answer_mean")
    with pytest.raises(InvalidResponse, match="no tokens, and this probe reads answer_mean: give an answer"):
        probe.score_text(network, tokenizer, "a b")
    before = of_tiny(tmp_path / "before", "prompt_last")
    assert 0 < before.score_text(network, tokenizer, "a b") < 1
    with pytest.raises(ContractMismatch, match="reads prompt_last, which no single token"):
        before.score_text(network, tokenizer, "a b", "c", tokens=True)
    with pytest.raises(ContractMismatch, match="reads before_exact"):
        of_tiny(tmp_path / "exact", "before_exact").score_text(network, tokenizer, "a b", "c")
    deep = of_tiny(tmp_path / "deep", "answer_mean", (9,))
    with pytest.raises(ValueError, match="layer 9 asked for; this model has layers 0 to 3"):
        deep.score_text(network, tokenizer, "a b", "c")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"transformers .* pip install '\.\[train\]'"):
        probe.score_text(network, tokenizer, "a b", "c")


@pytest.mark.slow
def test_the_bundled_probe_reads_the_embedded_model() -> None:
    from metaprobe.llms.local import LocalLLM
    from metaprobe.llms.readings import StateReplay

    llm = LocalLLM.load("smollm2-135m")
    probe = ConfidenceProbe.load("bundled:smollm2-135m-confidence")
    found = probe.score_text(llm.model, llm.tokenizer, "What is the capital of France?", "Paris.", tokens=True)
    assert "".join(found.tokens) == "Paris."
    assert 0 < found.score < 1
    canaries = StateReplay(llm, layers="18").canaries()
    assert canaries is not None
    assert probe.guard.check(canaries).passed


def test_what_has_no_state_before_the_answer_and_messages_that_are_no_text_are_refused(
    network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(LLMError, match="the prompt has no tokens: there is no state before the answer"):
        text_states(network, tokenizer, "", "x y", layers=(1,), chat=False)
    with pytest.raises(LLMError, match="with chat=False the prompt is taken as it is; expected text"):
        text_states(network, tokenizer, [{"role": "user", "content": "a"}], "x y", layers=(1,), chat=False)


# Options that no probe can be trained with are refused before anything is read or fitted.


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"target": "critical"}, "target critical: probes give the probability of what is good; train a quality"),
        (
            {"when": "before", "position": ("answer_last",)},
            "before an answer only prompt_last is known, not answer",
        ),
    ],
)
def test_options_of_a_probe_that_contradict_each_other_are_refused_before_anything_is_read(
    asked: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(WrongOptions, match=says):
        train_hidden([tmp_path / "nowhere"], HiddenOptions(out=tmp_path / "probe", **asked))


def test_states_of_the_other_moment_are_named_with_the_option_that_reads_them() -> None:
    evidence = made_up(60)
    assert evidence.states is not None
    for kept, other in (("prompt_last", "before"), ("answer_last", "after")):
        only = replace(evidence, states=SimpleNamespace(positions=(kept,)))  # type: ignore[arg-type]
        wanted = "after" if other == "before" else "before"
        with pytest.raises(RecordError, match=f"no position {wanted} .* there are: {kept}, which --when {other} reads"):
            positions_of(only, wanted)
        assert positions_of(only, other) == (kept,)
