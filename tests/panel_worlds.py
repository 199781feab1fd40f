"""Planted panels: questions whose answers were made by a rule that the tests know."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from chat_completions import answer_choice, chat_completion, token_entry
from made_once import MadeOnce

from metaprobe.probes.features import TERMS
from metaprobe.routing.panel.model_rows import ANSWER_SIGNALS, STATED
from metaprobe.training.panel.fitted_panel import FittedPanel, cross_fit
from metaprobe.training.panel.labelled_panels import Panels
from metaprobe.training.panel.played_panels import PlayedPanels, play_panels
from metaprobe.training.recipes.panel import train_panel
from metaprobe.training.training_options import PanelOptions

QUESTIONS, ANSWERS = 160, 6


def panels(
    form: Any,
    right: Any,
    *,
    agents: tuple[str, ...] = ("m",),
    agent: Any = None,
    surprise: Any = None,
    stated: Any = None,
    dimensions: tuple[str, ...] = (),
    dimension: Any = None,
    same: str = "number",
    cost: Any = None,
) -> Panels:
    """Arrays (n, K) as panels; `surprise`: the term `mean` of each answer, and all others equal to it."""
    form, right = np.asarray(form), np.asarray(right, dtype=np.float64)
    n, K = form.shape
    signals = np.full((n, K, len(ANSWER_SIGNALS)), np.nan)
    if surprise is not None:
        signals[..., : len(TERMS)] = np.asarray(surprise)[..., None]
    if stated is not None:
        signals[..., ANSWER_SIGNALS.index(STATED)] = stated
    names = tuple(f"q{i}" for i in range(n))
    return Panels(
        ids=names,
        groups=names,
        agents=agents,
        dimensions=dimensions,
        dimension=np.full(n, len(dimensions)) if dimension is None else np.asarray(dimension),
        agent=np.zeros((n, K), dtype=np.int64) if agent is None else np.asarray(agent),
        answer_class=form,
        right=right,
        signals=signals,
        present=np.ones((n, K), dtype=bool),
        score=right,
        cost=np.full((n, K), np.nan) if cost is None else np.asarray(cost),
        tokens=np.full((n, K, 2), np.nan),
        questions=("",) * n,
        same=same,
        fingerprint="0" * 64,
    )


def fit_panel(data: Panels) -> tuple[FittedPanel, PlayedPanels]:
    """The panel of these questions, and the questions played by models that have not seen them."""
    return play_panels(data, cross_fit(data))


def trained(world: Callable[[], Panels], made_once: MadeOnce) -> Path:
    """The panel that is trained on that world, once a run."""
    return made_once(world.__name__, lambda out: train_panel(world(), PanelOptions(out=out)))


def biased_vote(n: int = QUESTIONS, K: int = ANSWERS, seed: int = 0) -> Panels:
    """Samples of one model that repeats one mistake on half of the questions, less surely than its right answers.

    Class 0 is right. On hard questions two of three samples are the mistake; the right ones are surer by two nats.
    """
    rng = np.random.default_rng(seed)
    hard = rng.random(n) < 0.5
    right = rng.random((n, K)) < np.where(hard, 1 / 3, 0.9)[:, None]
    surprise = np.where(right, -3.0, -1.0) + rng.normal(0, 0.7, (n, K))
    return panels(numbered(np.where(right, 0, 1)), right, surprise=surprise)


def cut_when_hard(n: int = QUESTIONS, K: int = ANSWERS, seed: int = 0) -> Panels:
    """Samples of one model: on hard questions most are cut, and what is not cut is mostly wrong."""
    rng = np.random.default_rng(seed)
    hard = (rng.random(n) < 0.5)[:, None]
    cut = rng.random((n, K)) < np.where(hard, 0.6, 0.05)
    right = (rng.random((n, K)) < np.where(hard, 0.15, 0.85)) & ~cut
    form = numbered(np.where(cut, -1, np.where(right, 0, 1 + rng.integers(0, 3, (n, K)))))
    return panels(form, right, surprise=rng.normal(-2, 0.5, (n, K)))


def topics(n: int = 240, seed: int = 0) -> Panels:
    """Three agents, of which `maths` and `history` are right on their own topic and the third on neither."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, 2, n)
    agents = ("history", "maths", "neither")
    chance = np.stack([np.where(topic == 0, 0.95, 0.3), np.where(topic == 1, 0.95, 0.3), np.full(n, 0.4)], axis=1)
    right = rng.random((n, 3)) < chance
    wrong = 1 + rng.integers(0, 5, (n, 3))
    form = numbered(np.where(right, 0, wrong))
    agent = np.broadcast_to(np.arange(3), (n, 3))
    return panels(form, right, agents=agents, agent=agent, dimensions=("history", "maths"), dimension=topic)


def copies(n: int = 240, seed: int = 0) -> Panels:
    """Four agents: `good` is right three times in four; `bad` half of the time, and two others copy it."""
    rng = np.random.default_rng(seed)
    good, bad = rng.random(n) < 0.75, rng.random(n) < 0.45
    right = np.stack([bad, bad, bad, good], axis=1)
    wrong = rng.integers(1, 6, (n, 2))
    own = np.where(bad, 0, wrong[:, 0])
    form = numbered(np.stack([own, own, own, np.where(good, 0, wrong[:, 1])], axis=1))
    agent = np.broadcast_to(np.arange(4), (n, 4))
    return panels(form, right, agents=("bad", "copy", "copy two", "good"), agent=agent)


def numbered(values: Any) -> Any:
    """The classes of each row (n, K), numbered from 0 in order of appearance; -1 stays."""
    rows = []
    for row in np.asarray(values).tolist():
        seen: dict[int, int] = {}
        rows.append([value if value < 0 else seen.setdefault(value, len(seen)) for value in row])
    return np.array(rows)


def completion(*texts: str, logprob: float = -0.1, finish: str = "stop", model: str = "m") -> dict[str, Any]:
    """A chat completion with a choice for each text, each of one token a word."""
    choices = []
    for index, text in enumerate(texts):
        words = text.split()
        entries = [token_entry(token, logprob) for token in [*(f"{word} " for word in words[:-1]), *words[-1:]]]
        message = {"role": "assistant", "content": text}
        choices.append(answer_choice(entries, index=index, message=message, finish_reason=finish))
    return chat_completion(*choices, model=model, prompt_tokens=None)


def write_lines(path: Path, n: int = 80, seed: int = 0) -> Path:
    """OpenAI-format lines: four labelled answers to each of n questions, the right one surer than the others."""
    rng = np.random.default_rng(seed)
    lines = []
    for question in range(n):
        for sample in range(4):
            right = bool(rng.random() < 0.5)
            answer = str(question) if right else str(1000 + int(rng.integers(3)))
            response = completion(f"It is {answer}", logprob=float(-0.1 if right else -1.5) - float(rng.random()))
            lines.append(
                {
                    "id": f"q{question}-{sample}",
                    "question_id": f"q{question}",
                    "messages": [{"role": "user", "content": f"What is {question}?"}],
                    "response": response,
                    "labels": {"correct": int(right)},
                }
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
