"""Makes the files that the code of each page needs: checkpoints of its kinds, recorded runs, and a client that
answers."""

import atexit
import json
import runpy
import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from chat_completions import answer_choice, chat_completion, chunks_of, token_entry
from conftest import made_up
from panel_worlds import biased_vote, completion
from random_model import word_tokenizer
from served import small_checkpoint
from test_hidden_probe import WIDTH, hidden_checkpoint, source_of

import metaprobe
from metaprobe import QualityPredictor, watch
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Hidden, Item, Run
from metaprobe.routing.gate import StreamingGate
from metaprobe.training.panel.labelled_panels import panels_of_outcomes
from metaprobe.training.recipes.gate import write_gate
from metaprobe.training.recipes.panel import train_panel, train_router
from metaprobe.training.recipes.train_success import train_success
from metaprobe.training.success_options import SuccessOptions
from metaprobe.training.training_options import GateOptions, PanelOptions, RouterOptions

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "recorded" / "smollm2-metacog-eval"
Names = dict[str, Any]


def client(name: str = "m") -> SimpleNamespace:
    """Answers as the openai client would, whole or in chunks, with the log-probabilities of a doubtful answer."""
    whole = chat_completion(answer_choice([token_entry(f" {i}", -0.4 * i) for i in range(8)]), model=name)

    def create(*, stream: bool = False, logprobs: bool, **_: Any) -> Any:
        assert logprobs
        return chunks_of(whole) if stream else whole

    return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


def start(folder: Path) -> Names:
    small_checkpoint(folder / "out" / "quality", made_up(), model="qwen-coder-1.5b")
    (folder / "examples").symlink_to(ROOT / "examples")
    lines = [json.loads(line) for line in (ROOT / "examples" / "responses.jsonl").read_text("utf-8").splitlines()]
    table = [f"{line['id']},{line.pop('labels')['correct']:.0f}" for line in lines]
    (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    (folder / "labels.csv").write_text("\n".join(["id,correct", *table[1:]]), "utf-8")  # the first has no label
    return {"client": client("qwen-coder-1.5b"), "model": "qwen-coder-1.5b", "messages": []}


def train(folder: Path) -> Names:
    example = runpy.run_path(str(ROOT / "examples" / "train_on_lines.py"))
    answers = [(run, call) for run in RunStore(example["RUNS"]) for call in run.calls if call.stage == "answer"]
    records = [example["line_of"](run, call) for run, call in answers if call.agent == "gamma"][::4]
    (folder / "lines.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return {}


def compare(folder: Path) -> Names:
    RunStore(folder / "runs").append(list(RunStore(RECORDED))[::2])
    return {}


@cache
def quality_and_gate() -> Path:
    """A folder with a predictor and a gate, made once for all pages."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    small_checkpoint(folder / "quality", made_up(), model="m")
    write_gate(made_up(), GateOptions(out=folder / "gate", alpha=[0.05], folds=2))
    assert 0.05 in StreamingGate.load(folder / "gate", stop=0.05).alphas
    return folder


def production(folder: Path) -> Names:
    """LiteLLM, LangGraph, OpenTelemetry and openai's stream helper are stand-ins here: tests/test_integrations.py and
    tests/test_serving_gate.py run the real ones."""
    shutil.copytree(quality_and_gate(), folder / "out")

    def taken(*_: Any, **__: Any) -> None:
        return None

    asked, last = client(), SimpleNamespace(model_extra={"metaprobe": {"score": 0.5}})
    events = [SimpleNamespace(type="content.delta"), SimpleNamespace(type="chunk", chunk=last)]
    asked.chat.completions.stream = lambda **_: nullcontext(events)
    return {
        "QualityPredictor": QualityPredictor,
        "client": asked,
        "model": "m",
        "messages": [],
        "state": {},
        "litellm": SimpleNamespace(callbacks=[]),
        "graph": SimpleNamespace(invoke=taken),
        "VerdictLogger": taken,
        "VerdictHandler": taken,
        "evaluation_events": lambda: taken,
    }


def monitoring(folder: Path) -> Names:
    names = production(folder)
    names["stream"] = names["client"].chat.completions.create(stream=True, logprobs=True)
    return {**names, "predictor": QualityPredictor.load(folder / "out" / "quality"), "watch": watch}


def probes(folder: Path) -> Names:
    """A probe with random weights, a stored call that kept its states, and a small random network of their width."""
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden_checkpoint(folder / "out" / "confidence", layers=(2,), position="answer_mean")
    hidden = Hidden(np.ones((1, 1, WIDTH), dtype=np.float16), (2,), ("answer_mean",), canaries=source_of())
    run = Run(
        id="r", system="s", item=Item(id="i", task="t", question="?"), variant="v", calls=(Call(id="c", hidden=hidden),)
    )
    RunStore(folder / "runs").append([run])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=WIDTH,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    ids = torch.tensor([[5, 6, 7]])
    y = np.arange(200) % 2
    X = np.random.default_rng(0).normal(size=(200, 2, WIDTH)) + y[:, None, None]
    return {
        "X": X,
        "y": y,
        "groups": [f"question {i // 2}" for i in range(200)],
        "tokenizer": word_tokenizer(),
        "run_states": np.random.default_rng(1).normal(size=(20, 576)),  # as wide as SmolLM2's
        "logprobs": [[-0.1 * (i + 1), -0.2] for i in range(20)],
        "states": np.zeros((4, WIDTH), dtype=np.float32),
        "model": LlamaForCausalLM(config).eval(),
        "inputs": {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        "row": 0,
    }


def front_door(folder: Path) -> Names:
    RunStore(folder / "runs").append(list(RunStore(RECORDED))[::2])
    return {}


def several_answers(folder: Path) -> Names:
    """A panel of samples, a client whose choices say two different numbers, and one of a server that chooses."""
    train_panel(biased_vote(), PanelOptions(out=folder / "out" / "panel"))

    def create(*, n: int = 1, logprobs: bool, **_: Any) -> dict[str, Any]:
        assert logprobs
        return completion(*["It is 12", "It is 7"][: n or 1] * max(1, n // 2), logprob=-0.03)

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    rng, questions = np.random.default_rng(0), []
    for i in range(150):
        agents = {}
        for name, skill, price in (("small", 0.4, 0.0001), ("large", 0.9, 0.002)):
            right = float(rng.random() < skill)
            agents[name] = AgentOutcome(f"right{i}" if right else f"wrong{i} {name}", right, None, price)
        questions.append(QuestionOutcomes(f"q{i}", f"g{i}", f"What is {i} times {i}?", "maths", agents))
    train_panel(panels_of_outcomes(questions), PanelOptions(out=folder / "out" / "team"))
    strategy = SimpleNamespace(router=SimpleNamespace(CustomRoutingStrategyBase=object))
    account = {"agent": "large", "score": 0.9, "asked": ["small", "large"], "spent": {"small": 0.1, "large": None}}
    answered = SimpleNamespace(model_extra={"metaprobe": {"panel": account}})
    gateway = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=lambda **_: answered)))
    messages = [{"role": "user", "content": "What is 5 + 7?"}]
    return {
        "client": client,
        "other_client": client,
        "gateway": gateway,
        "messages": messages,
        "litellm": SimpleNamespace(types=strategy),
    }


@cache
def trained_router() -> Path:
    """A panel of three agents, of which the first is doubtful, made once for all pages."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return train_router(agents_behind_router(), RouterOptions(out=folder / "router")).path


def agents_behind_router() -> list[QuestionOutcomes]:
    """Outcomes of three agents, of which the first is often wrong."""
    rng, questions = np.random.default_rng(0), []
    for i in range(120):
        agents = {}
        for name, skill, price in (("drafter", 0.4, 0.0001), ("solver", 0.8, 0.0004), ("expert", 0.9, 0.002)):
            right = float(rng.random() < skill)
            sure = rng.uniform(0.6, 1.0) if right else rng.uniform(0.3, 0.8)
            agents[name] = AgentOutcome("A" if right else "B", right, sure, price)
        questions.append(QuestionOutcomes(f"q{i}", f"g{i}", f"What is {i} times {i}?", "sums", agents))
    return questions


def loop(folder: Path) -> Names:
    """Three agents of one's own, of which the first is doubtful; a panel of them; and a client of two models."""
    small_checkpoint(folder / "out" / "quality", made_up(), model="m")
    shutil.copytree(trained_router(), folder / "out" / "router")
    train_success(
        agents_behind_router(),
        SuccessOptions(out=folder / "out" / "success", labels_until=str(datetime.now(UTC).date())),
    )
    asked_of: list[str] = []

    def ask(agent: str, messages: object) -> dict[str, Any]:
        asked_of.append(agent)
        steps = (
            [0.4 * i for i in range(8)] if agent in ("drafter", "small-model") else [0.1 - 0.001 * i for i in range(8)]
        )
        words = [*[""] * 7, f"said by {agent}"]
        entries = [token_entry(word, -step) for word, step in zip(words, steps, strict=True)]
        return chat_completion(answer_choice(entries), prompt_tokens=20)

    def create(*, model: str, messages: object, **_: object) -> SimpleNamespace:
        """Returns an object, as the openai client does."""
        given = ask(model, messages)
        choices = [SimpleNamespace(message=SimpleNamespace(**one["message"])) for one in given["choices"]]
        return SimpleNamespace(choices=choices, usage=given["usage"], model_dump=lambda: given)

    clients = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    return {"ask": ask, "asked_of": asked_of, "client": clients, "messages": []}


def drift(folder: Path) -> Names:
    """A thousand answers, of which two hundred were drawn for labels."""
    rng = np.random.default_rng(0)
    score = rng.beta(5, 2, 1000)
    label, asked = (rng.random(1000) < score).astype(float), rng.random(1000) < 0.2
    return {
        "score": score,
        "tokens": rng.integers(20, 200, 1000),
        "time": np.arange(1000.0),
        "label": np.where(asked, label, np.nan),
        "propensity": np.where(asked, 0.2, np.nan),
        "label_time": np.arange(1000.0)[asked],
        "score_of_labelled": score[asked],
        "label_of_labelled": label[asked],
    }


def own(folder: Path) -> Names:
    data = ROOT.parent / "shared" / "data"
    if not (data / "creak").is_dir():
        pytest.skip("the data set CREAK is not here")
    (folder / "data").symlink_to(data)
    return {"answers": ["true"] * 200}


def text_reader(folder: Path) -> Names:
    """A reader of sums as text, of whose answers those with a sorry are wrong."""
    lines = [
        {
            "id": f"q{n}",
            "group": f"q{n}",
            "question": f"What is {n} + 3?",
            "answer": f"It is {n + 3}." if n % 2 else "Sorry, I do not know.",
            "labels": {"correct": n % 2},
        }
        for n in range(200)
    ]
    (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    metaprobe.train_text("lines.jsonl", out="reader", folds=2)
    return {}


WORLDS: dict[str, Callable[[Path], Names]] = {
    "start": start,
    "api/metaprobe": front_door,
    "train": train,
    "compare": compare,
    "score": production,
    "streams": production,
    "serve": production,
    "watch": lambda folder: {**monitoring(folder), **drift(folder)},
    "engines": lambda folder: {},
    "checkpoints": lambda folder: {},
    "probes": probes,
    "route": loop,
    "several-answers": several_answers,
    "text": text_reader,
    "own": own,
    "import": lambda folder: {},
}
"""Page -> what makes its world in the folder where its code runs, and gives the names that the page takes as known."""
