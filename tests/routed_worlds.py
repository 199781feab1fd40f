"""Shared by tests of routers: six agents, each dearer and better, on questions whose words move their skill."""

import dataclasses
import math

import numpy as np

from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes

TEAM = {"tiny": 0.0001, "small": 0.0003, "middle": 0.0006, "large": 0.002, "huge": 0.006, "odd": 0.003}
WORDS = "red blue green round square long short old new loud".split()
DIMENSIONS = ("sums", "facts", "")


def outcomes(n: int = 260, *, timed: bool = True) -> list[QuestionOutcomes]:
    """Six agents: the dearer, the better; words and dimensions move their skill, confidences tell of it."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(n):
        dimension, words = DIMENSIONS[i % 3], rng.choice(WORDS, 4)
        ease = 0.8 * ("red" in words) - 0.8 * ("old" in words) + 0.5 * (dimension == "facts") + rng.normal(0, 0.5)
        agents = {}
        for place, (name, price) in enumerate(TEAM.items()):
            right = rng.random() < 1 / (1 + math.exp(0.6 - 0.6 * place - ease + 3.0 * (name == "odd")))
            told = None if name == "middle" and i % 5 == 0 else float(1 / (1 + math.exp(-rng.normal(right, 0.8))))
            answer = "yes" if right else str(rng.choice(["no", "not so", "maybe"]))
            cost = price * (1 + len(" ".join(words)) / 50)
            agents[name] = AgentOutcome(answer, float(right), told, cost, 300.0 * (place + 1) if timed else None)
        made.append(QuestionOutcomes(f"q{i}", f"g{i // 2}", " ".join(words), dimension, agents))
    return made


def planted_strengths(n: int, seed: int) -> list[QuestionOutcomes]:
    """Four agents, each three times as dear as the one before and right more often; half of the questions are hard for
    all, and how sure an agent says that it is tells of its being right."""
    rng = np.random.default_rng([seed, n])
    made = []
    for i in range(n):
        hard, agents = rng.random() < 0.5, {}
        for place, chance in enumerate((0.5, 0.62, 0.72, 0.82)):
            right = rng.random() < chance + (-0.15 if hard else 0.15)
            sure = float(np.clip(rng.normal(0.45 + 0.25 * right, 0.2), 0, 1))
            answer = f"{i}" if right else f"wrong {rng.integers(4)}"
            agents[f"a{place}"] = AgentOutcome(answer, float(right), sure, 1e-4 * 3**place * rng.lognormal(0, 0.5))
        made.append(QuestionOutcomes(f"{seed}-{i}", f"{seed}-{i}", f"question {rng.integers(50)}", "", agents))
    return made


def logged_outcomes() -> list[QuestionOutcomes]:
    """Returns questions of which each was put to one of three agents, mostly the middle one."""
    rng, names = np.random.default_rng(1), ("small", "middle", "large")
    made = []
    for one in outcomes(600):
        chances = dict(zip(names, rng.dirichlet([1, 3, 2]).round(3) + 1e-3, strict=True))
        chances = {name: chance / sum(chances.values()) for name, chance in chances.items()}
        chosen = str(rng.choice(names, p=list(chances.values())))
        asked = {chosen: dataclasses.replace(one.agents[chosen], confidence=None)}
        made.append(dataclasses.replace(one, agents=asked, chosen=chosen, propensities=chances))
    return made
