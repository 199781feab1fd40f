"""P(success) of each candidate on a request, before any of them is asked. NumPy and ONNX Runtime, and `tokenizers`
where prompts are read by an embedded model.

`metaprobe train success` makes the checkpoint. Where nothing reliable can be said, the estimate says "insufficient" and
why, and has no number.
"""

import datetime
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.checkpoints import (
    Checkpoint,
    CheckpointError,
    ContractMismatch,
    GoldenMismatch,
    Pretrained,
    load_checkpoint,
)
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.probes.adapter import TOKENIZER
from metaprobe.probes.prompt_reader import READER_GRAPH, PromptLayout, PromptReader, PromptTokens
from metaprobe.records.errors import RecordError
from metaprobe.records.reading import as_list, fields
from metaprobe.records.types import Message
from metaprobe.routing.question_surface import LabelledForms, QuestionSurface, read_forms, read_surface

SUCCESS_KIND = "success"
RUNGS = "candidate rate", "dimension table", "question surface", "prompt states"
"""Steps of the ladder, the simplest first."""
RATE, DIMENSION, SURFACE, STATES = RUNGS
PRIOR, STATE = "prior", "state"
"""Inputs of the graph: log-odds without prompt states (n, A), and the state of the prompt (n, D)."""
OUTPUT = "p"
"""Beginning of the names of the graph's outputs `p0`, `p1`, ...: P(success) (n, 1) of each candidate."""
SURFACE_FILE, FORMS_FILE, LABELLED_STATES_FILE = "surface.f32", "forms.f32", "place.f32"
LABELLED_FILE, SPREAD_FILE = "labelled.u8", "spread.f32"
SAMPLE_REQUEST = 'What is 3 + 4?\n\n"7", naïve – 日本 \t{x}'
"""A prompt whose token ids are in the contract: another version of `tokenizers` must read it in the same way."""
MIN_CANDIDATE_LABELS = 30
"""Fewest labels of a candidate for a sufficient estimate. With fewer, its rate alone is uncertain by 18 points."""
MOST_CANDIDATES = 500
"""Most candidates of a checkpoint. The graph has an output for each candidate, and a node has at most 512 outputs."""
LABEL_WEIGHTS = "1 / propensity"
"""Value in the contract of a checkpoint whose labels were drawn with unequal probabilities: how labels are weighted."""
NORMAL_95 = 1.96
"""Standard errors on either side of a 95 % interval."""

EstimateBasis = Literal["measured", "insufficient"]


def probability(log_odds: ArrayLike) -> NDArray[np.float64]:
    """Returns 1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-np.clip(np.asarray(log_odds, dtype=np.float64), -50, 50))))


def log_odds(probability: ArrayLike) -> NDArray[np.float64]:
    """Returns ln(p / (1 - p)) of probabilities, which are brought to [0.001, 0.999] first."""
    p = np.clip(np.asarray(probability, dtype=np.float64), 0.001, 0.999)
    return np.asarray(np.log(p / (1 - p)))


@dataclass(frozen=True, slots=True)
class SuccessEstimate:
    """P(success) of one candidate on one request. With insufficient evidence `p` and `interval` are None."""

    candidate: str
    p: float | None
    """Calibrated probability that the candidate's answer is right."""
    interval: tuple[float, float] | None
    """Interval for the mean success over requests with the same text and dimension, as far as its surface tells it.

    It is 95 % of the posterior of rates, dimensions and text, and also allows for words without labels. Where these
    explain planted truths, it held 94 in 100 with 200 labels (82 where effects are strong), and 99 with 1,000. Where
    each word has an effect of its own it held 83 and 65, where effects are steps 79 and 81. It does not hold effects
    of what no text shows.
    """
    coverage: int
    """Number of this candidate's labelled questions that are near the request. Near is within `radius` in the reader's
    space, or on the same dimension if there is no reader.
    """
    version: str
    """Version of the candidate that the labels are of; empty where training was not told."""
    labels_until: str
    """Date of the candidate's newest label (ISO 8601); empty if the training was not told."""
    source: str
    """Name of the step that gave the estimate, and the digest of the checkpoint."""
    evidence: EstimateBasis
    reason: str
    """Why the evidence is insufficient, or what is doubtful; empty if nothing is."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields by name, as JSON has them."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class LabelledStates:
    """The labelled questions in the reader's space: k whitened components and the distance from all of them."""

    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    """`mean` and `scale` (D,): mean and standard deviation of each number of a state, by which states are standardised.
    """
    directions: NDArray[np.float32]
    """Principal directions (k, D), each divided by the standard deviation along it."""
    spread: NDArray[np.float32]
    """Standard deviation (k,) along each direction."""
    rest: float
    """Median length of the part of a state that lies outside all directions."""
    points: NDArray[np.float32]
    """Coordinates (n, k + 1) of the labelled questions: along each direction, and outside all of them."""
    radius: float
    """Distance within which a labelled question counts as near."""
    limit: float
    """Largest mean distance to the nearest labelled questions at which a request counts as seen."""
    neighbours: int

    def coordinates_of(self, states: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Returns the coordinates (n, k + 1) of states (n, D)."""
        centred = (np.asarray(states, dtype=np.float64) - self.mean) / self.scale
        within = centred @ self.directions.T.astype(np.float64)
        inside = ((within * self.spread) ** 2).sum(axis=1)
        left = np.sqrt(np.maximum((centred**2).sum(axis=1) - inside, 0.0)) / self.rest
        return np.column_stack([within, left])

    def distances(self, state: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Returns the distance (n,) of each labelled question from one state (D,)."""
        (point,) = self.coordinates_of(state[None])
        return np.asarray(np.sqrt(((self.points - point) ** 2).sum(axis=1)))

    def with_points(self, points: NDArray[np.float32]) -> "LabelledStates":
        """Returns a copy that holds `points`, the coordinates (n, k + 1) of other labelled questions."""
        return replace(self, points=points)

    def to_bytes(self) -> bytes:
        """Returns the bytes that `read_labelled_states` reads."""
        head = np.array([self.rest, self.radius, self.limit], dtype="<f4")
        parts = (head, self.mean, self.scale, self.spread, self.directions, self.points)
        return b"".join(np.ascontiguousarray(part, dtype="<f4").tobytes() for part in parts)


def read_labelled_states(data: bytes, width: int, components: int, questions: int, neighbours: int) -> LabelledStates:
    """Returns the labelled states in a checkpoint's file.

    Raises `ValueError` if the file does not have these sizes.

    Args:
        data: content of the file.
        width: number of units D of a state.
        components: number of principal directions k.
        questions: number of labelled questions n.
        neighbours: number of nearest labelled questions whose mean distance is compared with `limit`.
    """
    values = np.frombuffer(data, dtype="<f4")
    sizes = (3, width, width, components, components * width, questions * (components + 1))
    if len(values) != sum(sizes) or not np.isfinite(values).all():
        raise ValueError(f"{LABELLED_STATES_FILE} has {len(values)} numbers; expected {sum(sizes)} finite ones")
    head, mean, scale, spread, directions, points = np.split(values, np.cumsum(sizes)[:-1])
    rest, radius, limit = (float(value) for value in head)
    if not (rest > 0 and radius > 0 and limit > 0 and (spread > 0).all() and (scale > 0).all() and neighbours > 0):
        raise ValueError(f"{LABELLED_STATES_FILE} holds a length that is not above 0")
    return LabelledStates(
        mean=mean,
        scale=scale,
        directions=directions.reshape(components, width),
        spread=spread,
        rest=rest,
        points=points.reshape(questions, components + 1),
        radius=radius,
        limit=limit,
        neighbours=neighbours,
    )


class SuccessEstimator(Pretrained):
    """Estimates P(success) of candidates before they are asked. Several threads may share one estimator."""

    def __init__(self, checkpoint: Checkpoint, *, max_age: float | None = None) -> None:
        """`max_age`: days after the date of a candidate's newest label from which on its estimate is insufficient.

        Raises `ContractMismatch` for a checkpoint of another kind, or whose parts do not fit each other.
        """
        check_kind(checkpoint.path, checkpoint.manifest.kind, SUCCESS_KIND)
        if max_age is not None and not (isinstance(max_age, int | float) and 0 < max_age < math.inf):
            raise RecordError(f"max_age is {max_age!r}; expected a number of days above 0")
        self.checkpoint, self.max_age = checkpoint, max_age
        try:
            self._read(checkpoint)
        except CheckpointError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise ContractMismatch(
                f"{checkpoint.path} is no whole estimator ({error!r}); train it again with `metaprobe train success`"
            ) from error

    def _read(self, checkpoint: Checkpoint) -> None:
        contract, files = checkpoint.manifest.contract, checkpoint.extra
        self.candidates = tuple(map(str, contract["candidates"]))
        self.dimensions = tuple(map(str, contract["dimensions"]))
        self.rung = contract["rung"]
        self.labels_until = {str(name): str(date) for name, date in contract["labels_until"].items()}
        self.versions = {str(name): str(version) for name, version in contract["versions"].items()}
        A, D = len(self.candidates), len(self.dimensions)
        if self.rung not in RUNGS or not 0 < A <= MOST_CANDIDATES or len(set(self.candidates)) < A:
            raise ValueError(f"the step is {self.rung!r}, and there are {A} candidates")
        for date in self.labels_until.values():
            datetime.date.fromisoformat(date)
        self._by_dimension = bool(contract["by_dimension"])
        self._table = _numbers(contract["table"], (A, D + 1))
        self._counts = _numbers(contract["labels"], (A, D + 1))
        self._weighted = contract.get("label_weights") == LABEL_WEIGHTS
        self._calibration = _numbers(contract["calibration"], (A, 2))
        base, directions = contract["base"], int(contract["directions"])
        self._surface: QuestionSurface | None = read_surface(files[SURFACE_FILE], directions) if directions else None
        reads_text = self.rung in (SURFACE, STATES)
        self._forms: LabelledForms | None = read_forms(files[FORMS_FILE]) if reads_text else None
        reader = contract.get("reader")
        self._reader: PromptReader | None = None
        self._labelled_states: LabelledStates | None = None
        components = 0
        if reader is not None:
            prefix, suffix = (tuple(map(int, reader[name])) for name in ("prefix", "suffix"))
            tokens = PromptTokens(
                files[TOKENIZER], PromptLayout(prefix, suffix, int(reader["head"]), int(reader["tail"]))
            )
            if tokens.ids([SAMPLE_REQUEST])[0] != list(reader["sample_ids"]):
                raise GoldenMismatch(
                    f"{checkpoint.path}: this version of tokenizers reads the sample prompt in another way than at "
                    "training: install the version that the manifest names"
                )
            self._reader = PromptReader(checkpoint.graphs[READER_GRAPH], tokens)
            width, k, n = (int(reader[name]) for name in ("width", "place_components", "questions"))
            self._labelled_states = read_labelled_states(
                files[LABELLED_STATES_FILE], width, k, n, int(reader["neighbours"])
            )
            self._labelled = np.frombuffer(files[LABELLED_FILE], dtype=np.uint8).reshape(n, A) > 0
            components = int(reader["components"])
            _check_sample(self._reader, _numbers(reader["sample_state"], (width,)))
        if (reader is not None) != (self.rung == STATES):
            raise ValueError(f"the step is {self.rung!r}, and a reader is {'' if reader else 'not '}stored")
        if base not in RUNGS[:-1] or (self.rung != STATES and base != self.rung):
            raise ValueError(f"the step is {self.rung!r}, and the step without a reader {base!r}")
        # How far the truth may lie from an estimate: a factor of each covariance, heads of the surface, components.
        self._outside, self._no_dimension = (_numbers(contract[name], (A,)) for name in ("outside", "no_dimension"))
        K = 1 + (D if D > 1 else 0) + directions + components
        shapes = [
            (A, K, K),
            (A, directions + 1 if base == SURFACE else 0),
            (components, width + 1 if components else 0),
        ]
        values, sizes = np.frombuffer(files[SPREAD_FILE], dtype="<f4"), [math.prod(shape) for shape in shapes]
        if len(values) != sum(sizes) or not np.isfinite(values).all() or (base == SURFACE and not directions):
            raise ValueError(f"{SPREAD_FILE} has {len(values)} numbers; expected {sum(sizes)} finite ones")
        parts = np.split(values.astype(np.float64), np.cumsum(sizes)[:-1])
        self._factor, heads, self._components = (part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        self._surface_heads = heads if base == SURFACE else None
        outputs = tuple(node.name for node in checkpoint.session.outputs)
        if outputs != tuple(f"{OUTPUT}{column}" for column in range(A)):
            raise ValueError(f"the graph gives {outputs[:3]}; expected {OUTPUT}0 to {OUTPUT}{A - 1}")

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, sha256: str | None = None, max_age: float | None = None) -> Self:
        """Returns the estimator in a checkpoint folder, verified.

        Args:
            path: the folder, `bundled:NAME` or `hub:OWNER/NAME@REVISION`.
            sha256: the digest that the checkpoint's author gave you.
            max_age: days after the date of a candidate's newest label from which on its estimate is insufficient.
        """
        return cls(load_checkpoint(path, sha256=sha256), max_age=max_age)

    def estimate(
        self,
        messages: str | Sequence[Any],
        candidates: Sequence[str] | None = None,
        dimension: str | None = None,
        *,
        versions: Mapping[str, str] | None = None,
        today: datetime.date | None = None,
    ) -> list[SuccessEstimate]:
        """Returns an estimate for each candidate, in the order of `candidates`.

        Args:
            messages: the request's messages, or the text of the last message; only this text is read.
            candidates: names of the candidates; by default all that the checkpoint knows.
            dimension: the question's dimension, if the checkpoint learned from dimensions.
            versions: maps a candidate to the version that would answer. The evidence is insufficient if the labels are
                of another version, or of an unknown one.
            today: date at which the age of the labels is counted; by default the current date (UTC).

        Raises `RecordError` for arguments of another type.
        """
        text, unread = _prompt(messages)
        names = self.candidates if candidates is None else tuple(candidates)
        if isinstance(candidates, str) or not all(isinstance(name, str) for name in names):
            raise RecordError(f"candidates came as {candidates!r}; expected a list of names")
        if dimension is not None and not isinstance(dimension, str):
            raise RecordError(f"dimension is a {type(dimension).__name__}; expected a name")
        # Reasons that hold for every candidate.
        reasons: list[str] = []
        dimension_index = self._dimension(dimension)
        doubts = []
        if self._by_dimension and dimension_index == len(self.dimensions):
            dimension_note = "no dimension came" if not dimension else f"dimension {_shown(dimension)} has no label"
            doubts.append(f"{dimension_note}: the rate over all dimensions counts")
        state: NDArray[np.float32] | None = None
        distances: NDArray[np.float64] | None = None
        if self._forms is not None:
            if unread:
                reasons.append(f"the request holds {unread}, which is not read")
            elif not text.strip():
                reasons.append("the request holds no text")
            elif not (distance := self._forms.distance(text)) <= self._forms.limit:
                reasons.append(
                    "the request has another form than what was labelled (length, numbers, capitals, commas, line "
                    f"ends): its distance is {distance:.3g}, and 99 in 100 labelled questions lie within "
                    f"{self._forms.limit:.3g} of others"
                )
        if self._reader is not None and self._labelled_states is not None and not reasons:
            state = self._reader.state(text)
            distances = self._labelled_states.distances(state)
            nearest = float(np.sort(distances)[: self._labelled_states.neighbours].mean())
            if not nearest <= self._labelled_states.limit:
                reasons.append(
                    f"the request lies outside what was labelled: its distance is {nearest:.3g}, and 99 in 100 "
                    f"labelled questions lie within {self._labelled_states.limit:.3g} of others"
                )
        numbers = self._numbers("" if unread else text, dimension_index, state) if not reasons else None
        today = today or datetime.datetime.now(datetime.UTC).date()
        return [
            self._one(
                name, numbers, distances, dimension_index, [*self._old(name, today), *reasons], doubts, versions or {}
            )
            for name in names
        ]

    def _old(self, name: str, today: datetime.date) -> list[str]:
        """Returns why a candidate's labels are too old for `max_age`; empty where they are not, or it has none."""
        if self.max_age is None or name not in self.candidates:
            return []
        if name not in self.labels_until:
            return [
                f"the date of the labels of {_shown(name)} is not known, and max_age asks for it: train with "
                "--labels-until"
            ]
        age = (today - datetime.date.fromisoformat(self.labels_until[name])).days
        if age <= self.max_age:
            return []
        return [
            f"the newest label of {_shown(name)} is {age} days old; at most {self.max_age:g} are accepted: label again "
            "and train"
        ]

    def _dimension(self, name: str | None) -> int:
        """Returns the index of a dimension; the number of dimensions if it is not known."""
        return self.dimensions.index(name) if name in self.dimensions else len(self.dimensions)

    def _numbers(
        self, text: str, dimension_index: int, state: NDArray[np.float32] | None
    ) -> tuple[list[float], list[tuple[float, float]]]:
        """Returns P(success) of every candidate, and the interval of each."""
        A, D = len(self.candidates), len(self.dimensions)
        dimensions = np.eye(D + 1)[dimension_index][: D if D > 1 else 0]
        prior, variance = self._table[:, dimension_index], np.zeros(A)
        if len(dimensions) and dimension_index == D:
            variance = variance + self._no_dimension
        columns = [np.ones(1), dimensions]
        if self._surface is not None:
            # A text that is not there may be any.
            along, outside = (
                self._surface.coordinates(text) if text.strip() else (np.zeros(len(self._surface.centre)), 1.0)
            )
            columns.append(along)
            variance = variance + outside * self._outside
            if self._surface_heads is not None:
                prior = prior + self._surface_heads[:, :-1] @ along + self._surface_heads[:, -1]
        inputs: dict[str, Any] = {PRIOR: prior[None].astype(np.float32)}
        if state is not None:
            inputs[STATE] = state[None]
            columns.append(self._components[:, :-1] @ state.astype(np.float64) + self._components[:, -1])
        outputs = self.checkpoint.run(inputs)
        p = [float(outputs[f"{OUTPUT}{column}"][0, 0]) for column in range(A)]
        variance = variance + np.square(np.concatenate(columns) @ self._factor).sum(axis=1)
        p_log_odds, error = log_odds(p), NORMAL_95 * np.sqrt(variance)
        low, high = probability(p_log_odds - error), probability(p_log_odds + error)
        return p, list(zip(np.minimum(low, p).tolist(), np.maximum(high, p).tolist(), strict=True))

    def _one(
        self,
        name: str,
        numbers: tuple[list[float], list[tuple[float, float]]] | None,
        distances: NDArray[np.float64] | None,
        dimension_index: int,
        reasons: Sequence[str],
        doubts: Sequence[str],
        versions: Mapping[str, str],
    ) -> SuccessEstimate:
        """Returns the estimate of one candidate."""
        against, doubts, version, coverage = list(reasons), list(doubts), "", 0
        if name not in self.candidates:
            known_candidates = ", ".join(self.candidates[:5]) + (" and more" if len(self.candidates) > 5 else "")
            against.insert(
                0,
                f"candidate {_shown(name)} has no labels, or was always right or always wrong in them; P(success) is "
                f"known of {known_candidates}",
            )
        else:
            column = self.candidates.index(name)
            version, labels = self.versions.get(name, ""), int(self._counts[column, -1])
            if (
                self._by_dimension
                and dimension_index < len(self.dimensions)
                and not self._counts[column, dimension_index]
            ):
                doubts.append(f"no label of {_shown(name)} is of dimension {_shown(self.dimensions[dimension_index])}")
            if distances is not None and self._labelled_states is not None:
                coverage = int((self._labelled[:, column] & (distances <= self._labelled_states.radius)).sum())
            elif self._reader is None:
                coverage = int(self._counts[column, dimension_index if self._by_dimension else -1])
            if labels < MIN_CANDIDATE_LABELS:
                equal = "as many as " if self._weighted else ""
                alike = " of equal weight" if self._weighted else ""
                against.append(
                    f"{equal}{labels} labels{alike} of {_shown(name)}; at least {MIN_CANDIDATE_LABELS} are needed"
                )
            if name in versions and versions[name] != version:
                version_note = f"version {_shown(version)}" if version else "a version that training was not told"
                against.append(f"version {_shown(versions[name])} would answer; the labels are of {version_note}")
        source = f"{self.rung}, checkpoint {self.checkpoint.digest[:16]}"
        measured = not against and numbers is not None
        return SuccessEstimate(
            candidate=name,
            p=numbers[0][column] if measured and numbers else None,
            interval=numbers[1][column] if measured and numbers else None,
            coverage=coverage,
            version=version,
            labels_until=self.labels_until.get(name, ""),
            source=source,
            evidence="measured" if measured else "insufficient",
            reason="; ".join(doubts if measured else against),
        )


SAMPLE_COSINE = 0.99
"""Least cosine of the sample prompt's state with the recorded state. Processors differ a little: if a state lies
between two integers, a last bit decides which one is taken.
"""


def _check_sample(reader: PromptReader, recorded: NDArray[np.float64]) -> None:
    """Raises `GoldenMismatch` where the reader gives another state of the sample prompt than at training."""
    state = reader.state(SAMPLE_REQUEST).astype(np.float64)
    lengths = float(np.linalg.norm(state)) * float(np.linalg.norm(recorded))
    cosine = float(state @ recorded) / max(lengths, 1e-12)
    if not cosine >= SAMPLE_COSINE:
        raise GoldenMismatch(
            f"{READER_GRAPH}: the state of the sample prompt has cosine {cosine:.3f} with the recorded one; at least "
            f"{SAMPLE_COSINE} is accepted. Upgrade or pin onnxruntime, or train again"
        )


def _numbers(given: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Returns an array that a contract holds. Raises `ValueError` for another shape, or a number that is not finite."""
    values = np.array(given, dtype=np.float64)
    if values.shape != shape or not np.isfinite(values).all():
        raise ValueError(f"a table has shape {values.shape}; expected {shape} of finite numbers")
    return values


def _shown(text: str) -> str:
    return repr(text[:60])


def _prompt(messages: str | Sequence[Any]) -> tuple[str, str]:
    """Returns the text of the last message, and the kind of its parts that are not text. Raises `RecordError`."""
    if isinstance(messages, str):
        return messages, ""
    if not isinstance(messages, Sequence) or isinstance(messages, bytes) or not messages:
        raise RecordError(f"messages came as {type(messages).__name__}; expected a text or a list of messages")
    newest = messages[-1]
    last = {"content": newest.content} if isinstance(newest, Message) else fields(newest)
    if last is None or "content" not in last:
        raise RecordError('the last message has no content; expected {"role": "user", "content": TEXT}')
    content = last["content"]
    if content is None or isinstance(content, str):
        return content or "", ""
    texts, unread = [], ""
    for part in as_list(content) or ():
        part_fields = fields(part) or {}
        if isinstance(part_fields.get("text"), str):
            texts.append(part_fields["text"])
        else:
            unread = f"a part of type {_shown(str(part_fields.get('type', type(part).__name__)))}"
    return "\n".join(texts), unread
