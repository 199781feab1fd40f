"""One line of decisions of each kind for docs/text.md, decided by the embedded model about an answer of the quickstart.

python -m research.decisions.lines measure
python -m research.decisions.lines page
"""

import asyncio
import json
from pathlib import Path

import click

from metaprobe.llms.base import Request
from metaprobe.llms.local import LocalLLM
from metaprobe.papers.systems.decision_calls import messages_about
from metaprobe.quickstart import RECORDED
from metaprobe.records.importer import read_openai_lines
from research.blocks import write
from research.debates.options import OptionJudge

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "docs" / "measured" / "decision_lines.json"
GUIDE = ROOT / "docs" / "text.md"
ANSWER = 7
"""Place of the answer among the recorded ones."""
QUESTIONS = [
    {"type": "predicate", "name": "right", "instructions": "The last message answers the question correctly."},
    {
        "type": "choice",
        "name": "field",
        "instructions": "What is the question about?",
        "choices": [{"value": "pets"}, {"value": "numbers"}, {"value": "places"}],
    },
    {
        "type": "score",
        "name": "tone",
        "instructions": "How kind is the answer?",
        "levels": [{"label": "rude"}, {"label": "neutral"}, {"label": "kind"}],
    },
]
DIGITS = 4


@click.group()
def main() -> None:
    """Lines of decisions."""


@main.command()
def measure() -> None:
    """Keeps what the embedded model decides."""
    [call], [label] = (run := list(read_openai_lines(RECORDED))[ANSWER]).calls, run.labels
    judge = OptionJudge(LocalLLM.load())
    asked = Request(id="lines", messages=messages_about(call, QUESTIONS))
    answers = json.loads(asyncio.run(judge.complete(asked)).text, parse_float=lambda text: round(float(text), DIGITS))
    line = {"model": judge.name, "labels": {label.name: int(label.value)}, "group": run.item.group, **answers}
    MEASURED.write_text(json.dumps({"asked": run.item.question, "answer": call.text, "line": line}, indent=1) + "\n")


@main.command("page")
def page_command() -> None:
    """Writes the lines into docs/text.md, one for a choice and one for a score."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    line = measured["line"]
    lines = [json.dumps({**line, "group": f"q{n}", "answers": [one]}) for n, one in enumerate(line["answers"][1:], 1)]
    told = f"{line['model']} on {measured['answer']!r}, the recorded answer to {measured['asked']!r}:"
    write(GUIDE, "decision-lines", [told, "", "```json", *lines, "```", ""])


if __name__ == "__main__":
    main()
