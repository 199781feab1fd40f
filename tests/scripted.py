"""A language model that says what a test tells it to say, and remembers what it was asked."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from metaprobe.llms.base import LLM, Capabilities, LLMError, Request, Token
from metaprobe.papers.systems import Models, Prompts, Session, Setup, System
from metaprobe.records.types import Call, Item, Run
from metaprobe.routing.panel.compared_answers import PanelAnswer, PanelVerdict

Answer = str | list[str] | Callable[[Request], str]


class ScriptedLLM:
    """Answers by stage, by `agent:stage`, or by a function of the request; a list is answered one after another."""

    revision = "1"
    capabilities = Capabilities(logprobs=True, stream=True)

    def __init__(self, answers: Mapping[str, Answer], *, name: str = "scripted") -> None:
        self.name = name
        self.answers = {key: list(value) if isinstance(value, list) else value for key, value in answers.items()}
        self.asked: list[Request] = []

    @property
    def stages(self) -> list[str]:
        """The stages in the order they were asked."""
        return [request.stage for request in self.asked]

    def prompt(self, index: int) -> str:
        """Everything the model was shown in one request."""
        return "\n".join(message.content for message in self.asked[index].messages)

    def prompts_of(self, stage: str) -> list[str]:
        """Returns the prompts of a stage, one a request."""
        return [self.prompt(i) for i, request in enumerate(self.asked) if request.stage == stage]

    async def complete(self, request: Request) -> Call:
        await asyncio.sleep(0)
        self.asked.append(request)
        return self._call(request, self._answer(request))

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        call = await self.complete(request)
        for token in call.tokens:
            yield Token(token, -0.5)
        yield call

    def _answer(self, request: Request) -> str:
        for key in (f"{request.agent}:{request.stage}", request.stage, "*"):
            if key in self.answers:
                answer = self.answers[key]
                if callable(answer):
                    return answer(request)
                if isinstance(answer, str):
                    return answer
                if not answer:
                    raise LLMError(f"the script has no more answers for {key}")
                return answer.pop(0)
        raise LLMError(f"the script has nothing for stage {request.stage!r} of agent {request.agent!r}")

    def _call(self, request: Request, text: str) -> Call:
        tokens = tuple(text.split())
        return request.call(
            model=self.name,
            model_revision=self.revision,
            text=text,
            tokens=tokens,
            logprobs=np.full(max(len(tokens), 1), -0.5, np.float32),
            finish_reason="stop",
        )


class CountingPanel:
    """In the place of a trained panel: keeps the first answer of the largest class."""

    settings = ()
    asks = None
    checkpoint = SimpleNamespace(digest="counting")

    def judge(self, answers: Sequence[PanelAnswer], *, same: Any = None, **_: Any) -> PanelVerdict:
        forms = [same(one.text) if same else one.text for one in answers]
        kept = forms.index(max(forms, key=forms.count))
        return PanelVerdict((), 0.0, kept, forms.count(forms[kept]) / len(forms), {}, self.checkpoint.digest)


def run_once(system: System, item: Item, llm: LLM, *, variant: str = "", **setup: object) -> Run:
    """One run of a system over one item; `setup`: further fields of `Setup` (policy, signals, profiles, agents)."""
    prompts = Prompts.load(system.folder or system.name, system.prompts)
    if variant in system.panel_variants:
        setup = {"panel": CountingPanel(), **setup}
    given = Setup(**{"models": Models(llm), "prompts": prompts, "agents": system.agents, **setup})  # type: ignore[arg-type]
    session = Session(given, item, system=system.name, variant=variant or system.variants[0], run_id="r")
    return asyncio.run(system.run(session))
