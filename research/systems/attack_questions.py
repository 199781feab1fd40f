"""Can a small model recognise that one argument attacks another? CAELF's Algorithm 1 stands on that question.

    python -m research.systems.attack_questions --data DATA --models MODELS

Pairs of arg_microtexts whose relation people labelled, as many attacks (rebuttals) as supports, are put to each model
in several wordings. Read is the likelihood of "yes" against "no", plain and less that of the same question without the
first argument ("..."), so that a model which always prefers one word is not misjudged. Writes
docs/measured/attacks.json, which research/systems/page.py shows. DATA holds `arg_microtexts`, MODELS the GGUF files.
"""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights, interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.llms.base import Request
from metaprobe.llms.local import LocalLLM
from metaprobe.pipelines import Prompts
from metaprobe.records.types import Message
from research.systems.figures import ROOT

MEASURED = ROOT / "docs" / "measured" / "attacks.json"
LLMS = {"qwen-coder-0.5b": "qwen-coder-0.5b/model.gguf", "qwen-coder-1.5b": "qwen-coder-1.5b/model.gguf"}
ATTACK, SUPPORT = "reb", "sup"
NOTHING = "..."
ASK = (
    "Argument 1:\n{first}\n\nArgument 2:\n{second}\n\nDoes argument 1 attack argument 2? "
    "Answer with one word, yes or no."
)
WORDINGS: dict[str, list[tuple[str, str]]] = {
    "speaks against": [
        (
            "system",
            "You compare two arguments. You say yes if argument 1 denies argument 2 or gives a reason against it.",
        ),
        ("user", ASK.replace("attack argument 2", "speak against argument 2")),
    ],
    "two people disagree": [
        (
            "user",
            "Anna says: {first}\n\nBen says: {second}\n\nDo Anna and Ben disagree? Answer with one word, yes or no.",
        ),
    ],
    "two examples": [
        ("system", "You say whether argument 1 attacks argument 2."),
        ("user", ASK.format(first="The essay gives no example at all.", second="The essay gives several examples.")),
        ("assistant", "yes"),
        ("user", ASK.format(first="The essay names two studies.", second="The essay supports its view with sources.")),
        ("assistant", "no"),
        ("user", ASK),
    ],
}
"""Name -> turns; the shipped prompt of CAELF is asked besides."""


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--models", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--pairs", default=30, show_default=True, help="Of each relation.")
@click.option("--seed", default=0, show_default=True)
def main(data: Path, models: Path, pairs: int, seed: int) -> None:
    """Ask every model in every wording, and keep the numbers."""
    asked = labelled_pairs(data / "arg_microtexts" / "data.jsonl", pairs, seed)
    shipped = Prompts.load("caelf", ("attack",)).messages("attack", argument_1="{first}", argument_2="{second}")
    wordings = {"as shipped": [(message.role, message.content) for message in shipped], **WORDINGS}
    found = {"seed": seed, "attacks": pairs, "supports": pairs, "texts": len({pair[3] for pair in asked})}
    before = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {"rows": []}
    rows = before["rows"] if {**before, "rows": 0} == {**found, "rows": 0} else []  # goes on where it was stopped
    for name, path in LLMS.items():
        missing = wordings.keys() - {row["wording"] for row in rows if row["model"] == name}
        llm = LocalLLM.load(str(models / path)) if missing else None
        for wording in (wording for wording in wordings if llm is not None and wording in missing):
            rows.append({"model": name, "wording": wording, **asyncio.run(figures(llm, wordings[wording], asked))})
            MEASURED.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n", encoding="utf-8")
            click.echo(json.dumps(rows[-1]), err=True)


def labelled_pairs(path: Path, pairs: int, seed: int) -> list[tuple[str, str, int, str]]:
    """(first argument, second, 1 for an attack and 0 for a support, id of the text), drawn from all such pairs."""
    found: dict[str, list[tuple[str, str, int, str]]] = {ATTACK: [], SUPPORT: []}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        units = {unit["id"]: unit["text"] for unit in row["units"]}
        for relation in row["relations"]:
            if relation["type"] in found and relation["src"] in units and relation["trg"] in units:
                pair = (units[relation["src"]], units[relation["trg"]])
                found[relation["type"]].append((*pair, int(relation["type"] == ATTACK), row["id"]))
    draw = random.Random(seed)
    return [pair for kind in (ATTACK, SUPPORT) for pair in draw.sample(found[kind], pairs)]


async def figures(
    llm: LocalLLM, turns: list[tuple[str, str]], asked: list[tuple[str, str, int, str]]
) -> dict[str, Any]:
    """AUROC of attack against support, the share of yes, plain and against no context; intervals clustered by text."""
    label = np.array([attack for _, _, attack, _ in asked])
    odds = await log_odds(llm, turns, [(first, second) for first, second, *_ in asked])
    without = await log_odds(llm, turns, [(NOTHING, second) for _, second, *_ in asked])
    weights = cluster_weights([text for *_, text in asked], 1000, 0)
    found = {}
    for name, values in (("plain", odds), ("against no context", odds - without)):
        area = interval(auroc, label, values, weights)
        found[name] = {"auroc": [area.estimate, area.low, area.high], "yes": float((values > 0).mean())}
    return {**found, "mean log-odds": float(odds.mean())}


async def log_odds(llm: LocalLLM, turns: list[tuple[str, str]], asked: list[tuple[str, str]]) -> NDArray[np.float64]:
    """log P(yes) - log P(no) of the first word of the answer, (n,), nats; either case of the first letter counts."""

    async def one(number: int, first: str, second: str) -> float:
        def filled(text: str) -> str:
            return text.replace("{first}", first).replace("{second}", second)

        request = Request(id=str(number), messages=tuple(Message(role, filled(text)) for role, text in turns))
        words = ("yes", "Yes", "no", "No")
        calls = [await llm.loglikelihood(request, word) for word in words]
        said = [float(call.logprobs.sum()) for call in calls if call.logprobs is not None]
        return float(np.logaddexp(*said[:2]) - np.logaddexp(*said[2:]))

    return np.array(await asyncio.gather(*(one(i, *pair) for i, pair in enumerate(asked))))


if __name__ == "__main__":
    main()
