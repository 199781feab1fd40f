"""Which of several texts does the model itself find likelier? Nothing is generated; the texts are only read.

For CrowS-Pairs, whose paper scores pairs of sentences by the pseudo-log-likelihood of a masked model. A causal model
has the real one, of the whole sentence; the two are not to be compared.
"""

import asyncio

import numpy as np

from metaprobe.llms.base import LLMError
from metaprobe.pipelines.session import Session
from metaprobe.pipelines.system import System
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Run

STAGE = "likelihood"


async def likelier_choice(session: Session) -> Run:
    """The choice with the greatest log-likelihood as plain text, the first of equals."""
    choices = session.item.choices
    if not choices:
        raise RecordError(
            f"item {session.item.id!r} has no choices: likelier-choice compares the texts of an item's choices"
        )
    calls = await asyncio.gather(
        *(session.loglikelihood(choice, stage=STAGE, round=number) for number, choice in enumerate(choices))
    )
    totals = []
    for call in calls:
        if call.logprobs is None or not len(call.logprobs):
            raise LLMError(f"{call.model} gave no log-probabilities of a given text: ask a model that does")
        totals.append(float(np.sum(call.logprobs, dtype=np.float64)))
    return session.run(choices[int(np.argmax(totals))])


SYSTEM = System(
    name="likelier-choice",
    run=likelier_choice,
    prompts=(),
    variants=("plain",),
    stages=(STAGE,),
    answer_stages=(),
    choices=True,
)
