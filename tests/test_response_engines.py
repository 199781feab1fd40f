"""Outputs of engines in Python (vLLM, SGLang, transformers) are read as responses, or refused with what is missing."""

from collections.abc import MutableSequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from answer_formats import (
    ANSWER,
    Answer,
    llama_cpp_after_sampling,
    sglang,
    vllm,
)

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.parse import parse_response

# ---- engines


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class FlatLogprobs(MutableSequence[dict[int, Logprob]]):
    """Keeps log-probabilities as vLLM does: columns over all positions, of which an entry is made when it is read."""

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    entries: list[Logprob] = field(default_factory=list)

    def __getitem__(self, index: Any) -> Any:
        place = slice(self.start_indices[index], self.end_indices[index])
        return dict(zip(self.token_ids[place], self.entries[place], strict=True))

    def __len__(self) -> int:
        return len(self.start_indices)

    def insert(self, index: int, value: dict[int, Logprob]) -> None:
        self.start_indices.append(len(self.token_ids))
        self.token_ids += value
        self.entries += value.values()
        self.end_indices.append(len(self.token_ids))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError

    __delitem__ = __setitem__  # type: ignore[assignment]


def vllm_objects(*, flat: bool) -> SimpleNamespace:
    request = vllm(ANSWER)
    positions = [
        {int(token): Logprob(**entry) for token, entry in position.items()}
        for position in request["outputs"][0]["logprobs"]
    ]
    kept: Any = positions
    if flat:
        kept = FlatLogprobs()
        kept.extend(positions)
    output = SimpleNamespace(**{**request["outputs"][0], "logprobs": kept})
    return SimpleNamespace(**{**request, "outputs": [output]})


@pytest.mark.parametrize("flat", [False, True])
def test_vllms_objects_are_read_by_the_drawn_tokens_id(flat: bool) -> None:
    request = vllm_objects(flat=flat)
    for value in (request, [request], request.outputs[0]):
        parsed = parse_response(value)
        assert (parsed.tokens, parsed.logprobs.tolist()) == (("Par", "is", "."), ANSWER.logprobs)
        # The second token is of rank 50: it is in its position's mapping, and none of the likeliest two.
        np.testing.assert_array_equal(parsed.top_logprobs, np.float32(ANSWER.top))
    two = {"prompt_token_ids": [1], "outputs": request.outputs * 2}
    assert [bool(parse_response(two, choice=number).note) for number in (0, 1)] == [True, False]
    with pytest.raises(InvalidResponse, match=r"has 1 outputs; expected outputs\[1\]"):
        parse_response(request, choice=1)
    with pytest.raises(
        InvalidResponse, match=r"a list of 2 came, 2 of the first 2 whole answers.*one answer at a time"
    ):
        parse_response([request, request])
    with pytest.raises(InvalidResponse, match=r"a list of 9999 came, 8 of the first 8 whole"):  # no more are looked at
        parse_response([request] * 9999)
    request.outputs[0].token_ids = [0, 7, 2]
    with pytest.raises(InvalidResponse, match="token 1 do not hold the drawn token"):
        parse_response(request)
    request.outputs[0].logprobs = None
    with pytest.raises(InvalidResponse, match=r"SamplingParams\(logprobs=k\)"):
        parse_response(request)


def test_vllms_broken_entries_are_refused() -> None:
    request = vllm_objects(flat=False)
    request.outputs[0].logprobs[1] = [1.0]
    with pytest.raises(InvalidResponse, match="log-probabilities of token 1 came as list; expected a mapping"):
        parse_response(request)
    torn = vllm_objects(flat=True)
    torn.outputs[0].logprobs.entries.pop()
    with pytest.raises(InvalidResponse, match=r"vLLM log-probabilities cannot be read \(ValueError"):
        parse_response(torn)


def test_probabilities_after_sampling_at_temperature_0_are_refused() -> None:
    certain = Answer(["a", "b"], [0.0, 0.0], [[0.0], [0.0]])
    made = llama_cpp_after_sampling(certain)
    assert len(parse_response(made).logprobs) == 2
    made["generation_settings"]["temperature"] = 0.0
    with pytest.raises(InvalidResponse, match=r"all 1 and say nothing.*post_sampling_probs=false"):
        parse_response(made)


def test_what_an_engine_was_not_asked_for_is_named() -> None:
    answer, bare = sglang(ANSWER), llama_cpp_after_sampling(ANSWER)
    del answer["meta_info"]["output_token_logprobs"]
    with pytest.raises(InvalidResponse, match="return_logprob=True"):
        parse_response(answer)
    del bare["completion_probabilities"]
    with pytest.raises(InvalidResponse, match="n_probs=k"):
        parse_response(bare)


# ---- transformers


@pytest.fixture(scope="module")
def tiny() -> Any:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=12, n_positions=64, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=1, pad_token_id=2
    )
    return transformers.GPT2LMHeadModel(config).eval()


def generate(model: Any, rows: int = 1, *, seed: int = 3, tokens: int = 24, **options: Any) -> Any:
    import torch

    torch.manual_seed(seed)
    prompt = torch.full((rows, 3), 5)
    options = {"do_sample": True, "temperature": 0.7, "output_logits": True, "output_scores": True} | options
    return model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=tokens,
        return_dict_in_generate=True,
        pad_token_id=2,
        **options,
    )


def test_generates_output_is_raw_from_logits_and_processed_from_scores(tiny: Any) -> None:
    import torch

    output = generate(tiny)
    drawn = output.sequences[0, 3:]
    raw = parse_response(output)
    expected = torch.log_softmax(torch.stack(output.logits)[:, 0], -1)[range(len(drawn)), drawn]
    np.testing.assert_allclose(raw.logprobs, expected.numpy(), atol=1e-6)
    assert (raw.logprobs_mode, raw.usage.completion_tokens) == ("raw", len(drawn))
    processed = parse_response({**output, "logits": None})
    scores = tiny.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)[0]
    np.testing.assert_allclose(processed.logprobs, scores.numpy(), atol=1e-6)
    assert processed.logprobs_mode == "processed"
    assert np.abs(raw.logprobs - processed.logprobs).max() > 0.01
    halved = {**output, "logits": tuple(step.to(torch.bfloat16) for step in output.logits)}
    np.testing.assert_allclose(parse_response(halved).logprobs, raw.logprobs, atol=0.02)


def test_a_row_of_a_batch_ends_where_it_is_said_to_and_is_refused_where_nobody_says_it(tiny: Any) -> None:
    output = generate(tiny, rows=6)
    ended = {**output, "eos_token_id": tiny.generation_config.eos_token_id}
    lengths = set()
    for row, ids in enumerate(output.sequences[:, 3:].tolist()):
        answer = ids[: ids.index(1)] if 1 in ids else ids
        if answer:
            assert len(parse_response(ended, choice=row).logprobs) == len(answer)
            assert len(parse_response({**ended, "eos_token_id": [1, 99]}, choice=row).logprobs) == len(answer)
        lengths.add(len(answer))
        with pytest.raises(InvalidResponse, match=f"row {row} of this batch of 6 may end in padding.*eos_token_id"):
            parse_response(output, choice=row)
    assert len(lengths) > 2, "some must end early"


def test_beams_are_refused(tiny: Any) -> None:
    with pytest.raises(InvalidResponse, match=r"beam search.*compute_transition_scores"):
        parse_response(generate(tiny, do_sample=False, temperature=None, num_beams=2, tokens=3))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "grad"])
def test_tensors_of_log_probabilities_are_a_response(kind: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([-0.5, -1.0], dtype=getattr(torch, kind, torch.float32), requires_grad=kind == "grad")
    assert parse_response(tensor).logprobs.tolist() == [-0.5, -1.0]
