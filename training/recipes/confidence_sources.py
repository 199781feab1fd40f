"""Which confidences a router learns from: stated, a checkpoint's, or those of a predictor that is fitted in folds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from metaprobe.checkpoints import ContractMismatch
from metaprobe.probes.signals import STATED, Signal, combine_probabilities
from metaprobe.probes.source import SignalSource
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.records.store import RunStore, fingerprint
from metaprobe.records.types import Call
from metaprobe.training.methods import LADDER
from metaprobe.training.recipes.quality import write_quality
from metaprobe.training.study import study

NAME = "confidence"
TRAIN = "train:"
"""Before a folder: a quality predictor is trained on these runs and written there; the router learns from its scores
of answers whose group it was fitted without."""


def sources_of(questions: Sequence[QuestionOutcomes], agents: Sequence[str]) -> dict[str, str]:
    """Agent -> where its confidences are from, as the outcomes say; an agent of which none says so is left out.

    Raises `RecordError` where an agent's are from several: they are several numbers, and one calibration fits one.
    What joins the stated number with a checkpoint's may also hold either alone, where the other was not there.
    """
    found = {}
    for name in agents:
        outcomes = [q.agents[name] for q in questions if name in q.agents]
        named = {one.confidence_source for one in outcomes if one.confidence is not None} - {""}
        whole = max(named, key=len, default="")
        if strangers := named - {whole, *whole.split("+", 1)}:
            raise RecordError(
                f"confidences of {name} are from {whole!r} and from {sorted(strangers)}: a router learns from one "
                "source; give the outcomes of one, or leave the confidences of the others out"
            )
        if whole:
            found[name] = whole
    return found


@dataclass(frozen=True, slots=True)
class CrossFitted:
    """A predictor's scores of the very answers that it was trained on, each by a fit without the answer's group."""

    scores: Mapping[str, float]
    """Call -> score in [0, 1]."""
    digest: str
    """Digest of the checkpoint that was fitted on all folds. This checkpoint gives the number once the router
    decides."""
    with_stated: bool
    """Whether the stated number is joined with it."""


@dataclass(frozen=True, slots=True)
class Confidences:
    """Where each agent's confidence is read in runs that recorded what the agents stated and answered."""

    replaced: SignalSource = field(default_factory=SignalSource)
    """By checkpoints as they are."""
    fitted: Mapping[str, CrossFitted] = field(default_factory=dict)
    """By agent, or under the empty name for all that have none of their own."""

    @classmethod
    def load(
        cls, specs: Iterable[str], store: str | Path, *, folds: int = 5, seed: int = 0, command: str = ""
    ) -> "Confidences":
        """From `confidence[@AGENT]=[stated+]CHECKPOINT` and `confidence[@AGENT]=[stated+]train:FOLDER`.

        `store`: the runs that the router will learn from. A checkpoint that was trained on them is refused: it has
        seen whether these answers are right, and would look surer here than it is of new ones. That is noticed where
        it was trained on just these runs, not where they are a part of others. Raises `RecordError` for another name
        than `confidence`, which is all that a router reads, and `ContractMismatch` for a probe of hidden states.
        """
        given, fitted, specs = [], {}, list(specs)
        _check_agents(specs, store)
        for spec in specs:
            key, _, path = spec.partition("=")
            name, _, agent = key.partition("@")
            if name != NAME:
                raise RecordError(f"signal {spec!r}: a router reads {NAME} only; give {NAME}=CHECKPOINT")
            with_stated, path = path.startswith(STATED), path.removeprefix(STATED)
            if path.startswith(TRAIN):
                folder = path.removeprefix(TRAIN)
                fitted[agent] = _cross_fitted(folder, store, agent, with_stated, folds, seed, command)
            else:
                given.append(spec)
        source = SignalSource.load(given)
        if given:
            _check_unseen(source, given, store)
        return cls(source, fitted)

    def of(self, agent: str, stated: float | None, answer: Call) -> Signal | None:
        """An agent's confidence in this answer of its own, with its source; None where there is none."""
        fitted = self._fit(agent)
        if fitted is None:
            return self.replaced.signal(NAME, agent=agent, stated=stated, call=answer)
        score = fitted.scores.get(answer.id)
        if not fitted.with_stated or stated is None:
            return None if score is None else Signal(score, fitted.digest)
        return (
            Signal(stated, "stated")
            if score is None
            else Signal(combine_probabilities(stated, score), STATED + fitted.digest)
        )

    def asks(self, agent: str) -> bool:
        """Whether the agent must still state how sure it is, and be paid for that."""
        fitted = self._fit(agent)
        return self.replaced.asks(NAME, agent) if fitted is None else fitted.with_stated

    def reads_answer(self, agent: str) -> bool:
        """Whether the confidence is known only once the agent has answered, and was paid for it."""
        return self._fit(agent) is not None or self.replaced.reads(NAME, agent) == "answer"

    def _fit(self, agent: str) -> CrossFitted | None:
        """Returns the fit for an agent. A checkpoint given for this agent goes before a checkpoint for all agents."""
        if agent in self.fitted:
            return self.fitted[agent]
        return None if self.replaced.replacement(NAME, agent) is not None else self.fitted.get("")


def _cross_fitted(
    folder: str, store: str | Path, agent: str, with_stated: bool, folds: int, seed: int, command: str
) -> CrossFitted:
    """Trains a predictor on the answers of an agent (of all, for the empty name) and writes it to the folder."""
    learned = study([store], stage="answer", agent=agent or None, hidden=False, folds=folds, seed=seed)
    checkpoint = write_quality(folder, {learned.target: learned}, command=command)
    calls, scores = learned.evidence.table.call_ids.tolist(), learned.fits[LADDER].probability.tolist()
    return CrossFitted(dict(zip(calls, scores, strict=True)), checkpoint.digest, with_stated)


def _check_agents(specs: Sequence[str], store: str | Path) -> None:
    """Raises `RecordError` for a signal of an agent that answers nothing in the runs."""
    named = {spec: spec.partition("=")[0].partition("@")[2] for spec in specs if "@" in spec.partition("=")[0]}
    if not named:
        return
    runs = RunStore(store).runs(hidden=False)
    known = sorted({call.agent for run in runs for call in run.calls if call.stage == "answer"})
    for spec, agent in named.items():
        if agent not in known:
            raise RecordError(f"signal {spec!r}: no agent {agent!r} answers in {store}; there are {', '.join(known)}")


def _check_unseen(source: SignalSource, specs: Sequence[str], store: str | Path) -> None:
    data = fingerprint(RunStore(store))
    for spec in specs:
        key = spec.partition("=")[0]
        replacement = source.replacement(*key.split("@"))
        assert replacement is not None
        if replacement.layers:
            raise ContractMismatch(
                f"{spec}: it reads hidden states, and a router learns from runs without them; give a predictor on "
                "log-probabilities, or outcomes with the confidences that the probe gave (`confidence_source`)"
            )
        if replacement.lacks:
            raise ContractMismatch(
                f"{spec}: it predicts {', '.join(replacement.heads)}, and not {replacement.lacks}, which a confidence "
                "is; give a predictor of that"
            )
        training = replacement.reader.checkpoint.manifest.training
        if training is not None and training.fingerprint == data:
            raise RecordError(
                f"{spec}: the checkpoint was trained on these very runs, and is surer of their answers than of new "
                f"ones; give {key}={TRAIN}FOLDER, which fits one in folds, or runs that it has not seen"
            )
