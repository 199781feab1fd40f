"""Follows the guide to confidence without labels on a real server, by the very commands of its page."""

import asyncio
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
from capitals import CAPITALS, is_right
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.eval.metrics.ranked import auroc

PAGE = Path(__file__).parent.parent / "docs" / "no-labels.md"
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/v1")
SHOWN = ("Ghana",)
"""Countries whose capitals the model is shown before each question, so that it answers in one short sentence."""
HARDER = """Belize Benin Bhutan Botswana Brunei Chad Eritrea Fiji Gabon Guyana Honduras Iceland Jamaica Laos Liberia
Malawi Mali Malta Moldova Nicaragua Niger Oman Paraguay Rwanda Slovakia Suriname Togo Tonga""".split()
"""Countries of whose capitals the embedded model is unsure: samples to these questions differ. With the easier ones
they are enough questions for a threshold, though some answers are cut."""
QUESTION = "What is the capital of {}?"
NEW_SAMPLES = 2
"""Answers to each new question that are scored."""


@dataclass(frozen=True, slots=True)
class TaughtByGuide:
    """Files that the guide's commands wrote, and verdicts on answers to questions that `teach` has not asked."""

    said: list[str]
    """Standard output of each command."""
    card: str
    manifest: dict[str, Any]
    verdicts: list[dict[str, Any]]
    """(n,) by the command that flags a chosen share."""
    right: list[bool]
    """(n,): whether each answer names the capital."""

    @property
    def auroc(self) -> float:
        """AUROC of the taught score on right and wrong answers."""
        scores = [verdict["heads"]["agreement"] for verdict in self.verdicts]
        return float(auroc(np.array(self.right, dtype=np.int64), np.array(scores)))


def messages_about(country: str) -> list[dict[str, str]]:
    shown = [
        message
        for example in SHOWN
        for message in (
            {"role": "user", "content": QUESTION.format(example)},
            {"role": "assistant", "content": f"The capital of {example} is {CAPITALS[example]}."},
        )
    ]
    return [*shown, {"role": "user", "content": QUESTION.format(country)}]


def commands_of_the_guide(url: str) -> list[list[str]]:
    """Returns the commands of the page's first block, which ask this server."""
    block = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[0]
    return [shlex.split(ADDRESS.sub(url, line), comments=True)[1:] for line in block.splitlines()]


Answer = tuple[list[dict[str, str]], dict[str, Any]]
"""Messages, and the response to them."""


async def new_answers(url: str, model: str, countries: Sequence[str]) -> list[Answer]:
    """Returns an answer about each country, asked as `teach` asks. All are asked at once: a busy vLLM is slow with one
    request after the other.

    Args:
        url: address of the server.
        model: name of the model.
        countries: the countries that are asked about.
    """

    async def ask(country: str) -> Answer:
        messages: Any = messages_about(country)
        response = await client.chat.completions.create(
            model=model, messages=messages, max_tokens=32, temperature=1.0, logprobs=True, top_logprobs=1
        )
        return messages, response.model_dump()

    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=2) as client:
        return await asyncio.gather(*map(ask, countries))


def taught_by_the_guide(url: str, model: str, folder: Path) -> TaughtByGuide:
    """Writes questions and new answers into the folder, which is the current one, and runs the commands of the page.

    Args:
        url: address of the server, which serves one model.
        model: the name of that model.
        folder: an empty folder.
    """
    known = [country for country in sorted(CAPITALS) if country not in SHOWN]
    new = known[::3]
    taught = [*(country for country in known if country not in new), *HARDER]
    questions = [json.dumps({"messages": messages_about(country)}) for country in taught]
    (folder / "questions.jsonl").write_text("\n".join(questions) + "\n", encoding="utf-8")
    answers = asyncio.run(new_answers(url, model, new * NEW_SAMPLES))
    lines = [json.dumps({"messages": messages, "response": response}) for messages, response in answers]
    (folder / "answers.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    right = [
        is_right(messages[-1]["content"], response["choices"][0]["message"]["content"] or "")
        for messages, response in answers
    ]
    said = []
    for words in commands_of_the_guide(url):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        said.append(done.stdout)
    checkpoint = folder / "out" / "taught"
    return TaughtByGuide(
        said,
        (checkpoint / "README.md").read_text(encoding="utf-8"),
        json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8")),
        [json.loads(line) for line in said[-1].splitlines()],
        right,
    )


def check_guide(found: TaughtByGuide) -> None:
    """Asserts that the score is named as what it is, flags the chosen share, and knows something of right and wrong."""
    # The score has the name of what it learned, and never P(right).
    assert found.manifest["contract"]["targets"] == ["agreement"]
    assert "asked again, would say the same" in found.card
    assert "no probability of being right" in found.card
    assert "P(said again)" in found.said[1]
    for verdict in found.verdicts:
        assert verdict["score"] is None
        assert list(verdict["heads"]) == ["agreement"]
        assert 0 <= verdict["heads"]["agreement"] < 1  # 0: the answer was cut
    # The last command flags three tenths of answers like those it learned from; these are few, and easier or harder.
    flagged = [verdict["flagged"] for verdict in found.verdicts]
    assert 0 < sum(flagged) < 0.7 * len(flagged)
    assert 0 < sum(found.right) < len(found.right)
    assert found.auroc > 0.6
