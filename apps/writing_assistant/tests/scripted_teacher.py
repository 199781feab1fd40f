"""A model that answers the writing assistant and CAELF by a script, so that the page can be shown and tested.

It is no model: it knows four conversations, tells their stages apart by the words of the message, and quotes a sentence
of the text where a critic would.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import numpy as np

from metaprobe.llms.base import Capabilities, LLMError, Request, Token
from metaprobe.records.types import Call, Usage

POST = re.compile(r"final|evaluate|grammar|conclusion", re.IGNORECASE)
PRE = re.compile(
    r"how to start|vocabulary|words|terms|structure (?:this|it|such)|where to begin|background", re.IGNORECASE
)
OWN_TEXT = re.compile(r"(?:\w+ )?(?:draft|essay): (.*?)\s*(?:[^.!?\n]*\?|Please [^\n]*)\s*$", re.IGNORECASE | re.DOTALL)
"""A message that begins with the learner's text and ends with the request about it."""
TOPICS = {
    "vein": "veins",
    "discover": "science",
    "film": "film",
    "lion": "film",
    "summer": "seasons",
    "season": "seasons",
}
WORDS = {
    "veins": "vein, oxygen, scatter",
    "science": "patent, transparent",
    "film": "courage",
    "seasons": "axis, season",
}
DOUBTED = re.compile(
    r"[^.!?\n]*\b(?:is blue|further from the sun|nearer the sun|always|never)\b[^.!?\n]*[.!?]", re.IGNORECASE
)
DOUBT = {
    "monitor": "Is this shown, or only believed? Nothing in the text supports it yet.",
    "control": "This is a common mistake. Look up what an experiment would show, and say where you read it.",
}
ATTACKS = {(0, 1), (1, 0), (2, 1), (3, 0), (1, 2)}
"""Attacks between CAELF's first four arguments; the learner's attacks the strict assistant's, which attacks no
other."""


@dataclass
class ScriptedTeacher:
    """`pace_s`: seconds between two pieces of a streamed answer. `gone`: whether the model is away."""

    name: str = "scripted-teacher"
    pace_s: float = 0.0
    gone: bool = False
    hold: Callable[[Request], bool] = field(default=lambda request: False)
    """Whether an answer stays away until it is stopped."""
    asked: list[Request] = field(default_factory=list)

    revision = "1"
    capabilities = Capabilities(logprobs=True, stream=True)

    async def complete(self, request: Request) -> Call:
        """The whole answer."""
        self.asked.append(request)
        await asyncio.sleep(self.pace_s)
        if self.gone:
            raise LLMError("the model does not answer: connection refused. Start its server, and ask again")
        while self.hold(request):
            await asyncio.sleep(0.02)
        return self._call(request, said(request))

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        """The answer word by word, then the call."""
        self.asked.append(request)
        if self.gone:
            raise LLMError("the model does not answer: connection refused. Start its server, and ask again")
        text = said(request)
        for number, piece in enumerate(re.findall(r"\S+\s*", text)):
            await asyncio.sleep(self.pace_s)
            while number == 6 and self.hold(request):
                await asyncio.sleep(0.02)
            yield Token(piece, -0.3)
        yield self._call(request, text)

    def _call(self, request: Request, text: str) -> Call:
        tokens = tuple(re.findall(r"\S+\s*", text))
        asked = sum(len(message.content.split()) for message in request.messages)
        return request.call(
            model=self.name,
            model_revision=self.revision,
            text=text,
            tokens=tokens,
            logprobs=np.full(max(len(tokens), 1), -0.3, np.float32),
            finish_reason="stop",
            usage=Usage(asked, len(tokens)),
        )


def said(request: Request) -> str:
    """Returns the script's answer to a request."""
    prompt = "\n".join(message.content for message in request.messages)
    if request.stage in CAELF_SAID and request.agent in ("kind", "strict", "teacher"):
        return CAELF_SAID[request.stage](request, prompt)
    return SAID[request.stage](prompt)


def _quoted(prompt: str, name: str) -> str:
    """Returns the learner's text as a prompt quotes it: `message` or `text`; empty where the prompt has none."""
    found = re.search(rf"\[begin {name} \w+\]\n(.*?)\n\[end {name}", prompt, re.DOTALL)
    return found[1] if found else ""


def _topic(prompt: str) -> str:
    low = (_quoted(prompt, "message") + _quoted(prompt, "text")).lower()
    return next((topic for word, topic in TOPICS.items() if word in low), "NOT APPLIED")


def _stage(prompt: str) -> str:
    message = _quoted(prompt, "message")
    return "PRE" if PRE.search(message) else "POST" if POST.search(message) else "DURING"


def _extracted(prompt: str) -> str:
    own = OWN_TEXT.match(_quoted(prompt, "message"))
    return own[1] if own else "NONE"


def _criticised(kind: str) -> Callable[[str], str]:
    def critic(prompt: str) -> str:
        lines = [
            "1. There is one answer that science has settled.",
            "2. The text does not say how one could know.",
            "3. The first answer fits what is asked.",
        ]
        doubted = DOUBTED.search(_quoted(prompt, "text"))
        if doubted:
            words = " ".join(doubted[0].split()[:9]).rstrip(".")
            lines.append(f'Remark: "{words}" - {DOUBT[kind]}')
        return "\n".join([*lines, f"Concern: {'yes' if doubted else 'no'}"])

    return critic


def _assessed(prompt: str) -> str:
    score = 4 if len(_quoted(prompt, "text").split()) > 60 else 3
    return (
        "Step 1: an explanation for readers who believe a common wrong answer.\n"
        "Step 2: on the topic and easy to follow; the middle part needs one more reason.\n"
        "Step 3: the order is good. First say how one can know that the common answer is wrong. Then check the verbs.\n"
        f"Score: {score}"
    )


def _responded(prompt: str) -> str:
    topic = _topic(prompt)
    if not _quoted(prompt, "text"):
        return (
            f"A good topic: many people are sure about {topic.lower()}, and not all of them are right.\n\n"
            "Before you write, put down three things:\n"
            "1. What you believe, in **one** sentence.\n"
            "2. What you have seen yourself that speaks for it.\n"
            "3. What somebody who doubts it would ask you.\n\n"
            "The words below may help. Which of them would you have to explain to a friend?"
        )
    return (
        f"You have begun well: your reader knows at once that this is about {topic.lower()}.\n\n"
        "What matters most now:\n"
        "1. **Say how you know.** One observation is worth more than three claims.\n"
        "2. Answer the reader who believes the opposite, in one sentence.\n"
        "3. Read your last paragraph aloud, and cut what you stumble over.\n\n"
        "Which of your sentences would you defend first if somebody doubted it?"
    )


SAID: dict[str, Callable[[str], str]] = {
    "profile": lambda prompt: "Demographic: N/A\nProficiency: N/A\nGoals: N/A\nPreferences: N/A",
    "stage": _stage,
    "topic": _topic,
    "guide": lambda prompt: "Ask for one reason and one observation. Do not write the text.",
    "aggregate": lambda prompt: "Guide the learner by questions to one reason and one observation.",
    "words": lambda prompt: next((words for topic, words in WORDS.items() if topic in prompt), "reason, example"),
    "explain": lambda prompt: "vein: from Latin vena; veins lead blood back to the heart.\noxygen: oxy- and -gen.",
    "extract": _extracted,
    "assess": _assessed,
    "reasoning": lambda prompt: "REASONING",
    "answer": lambda prompt: "Light of short waves is scattered more; blood is always red.",
    "monitor": _criticised("monitor"),
    "control": _criticised("control"),
    "synthesis": lambda prompt: "Tell the learner to show one observation for the claim in doubt.",
    "respond": _responded,
}


def _argued(request: Request, prompt: str) -> str:
    if request.agent == "kind":
        return "The essay names the issue, says why it matters and keeps to it.\nLevel: 2"
    return "The essay names the issue, and leaves its most important word undefined.\nLevel: 1"


def _reflected(request: Request, prompt: str) -> str:
    if request.agent == "kind":
        return "The word is explained by the example that follows it, so the issue is clear.\nLevel: 2"
    return "An example is no definition; another reader may understand the word otherwise.\nLevel: 1"


def _attacked(request: Request, prompt: str) -> str:
    pairs = [(i, k) for i in range(4) for k in range(4) if i != k]
    if request.round < len(pairs):
        return "yes" if pairs[request.round] in ATTACKS else "no"
    with_learner = [(i, k) for i in range(5) for k in range(5) if i != k and 4 in (i, k)]
    return "yes" if with_learner[request.round - len(pairs)] in {(4, 1), (4, 3)} else "no"


def _graded(request: Request, prompt: str) -> str:
    level = 2 if request.round else 1
    reason = (
        "says what the issue is and defines its word by an example" if request.round else "leaves its word undefined"
    )
    return f"Level: {level}\nYour essay {reason}. To get further, say in one sentence what you do not write about."


CAELF_SAID: dict[str, Callable[[Request, str], str]] = {
    "argue": _argued,
    "reflect": _reflected,
    "attack": _attacked,
    "answer": _graded,
}
