"""Defines the writing assistant's inputs and outputs, as the page, the collection and the study see them."""

import json
from dataclasses import dataclass, fields
from typing import Any, Literal

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Item

Condition = Literal["single", "multi", "metacrit"]
Stage = Literal["pre", "during", "post"]
RemarkKind = Literal["monitor", "control"]

CONDITIONS: tuple[Condition, ...] = ("single", "multi", "metacrit")
"""One model alone, the modules, and the modules with monitor and control (the paper's Table 12)."""
STAGES: tuple[Stage, ...] = ("pre", "during", "post")
"""Before writing, while drafting, and after the draft is finished."""
NOT_SAID = "N/A"
"""Value of a profile's field if the learner was asked, or could have stated it, and did not."""
ROLES = ("user", "assistant")
TURN_FIELDS = ("demographic", "proficiency", "goals", "preferences", "draft", "message", "history")
"""The fields of an `Item` that hold a turn. `history` is a JSON list of pairs [role, text]."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Holds the facts that learners state about themselves; None if nobody has looked for a fact yet."""

    demographic: str | None = None
    """Age group, country, school year, or any other facts about the person."""
    proficiency: str | None = None
    """How well the learner knows the language and the subject."""
    goals: str | None = None
    preferences: str | None = None
    """How the learner likes to learn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a learner, with its context."""

    profile: Profile
    draft: str
    """The text in the editor; empty if nothing is written yet."""
    message: str
    """Current message of the learner."""
    history: tuple[tuple[str, str], ...] = ()
    """Earlier messages, oldest first: (role, text), with role `user` or `assistant`."""


@dataclass(frozen=True, slots=True)
class Card:
    """The explanation of one word."""

    word: str
    part_of_speech: str
    """`noun`, `verb`, `adjective` or `adverb`; empty if it is not known."""
    definition: str
    """WordNet's definition; empty if WordNet does not have the word."""
    example: str
    """WordNet's sentence with the word; empty if it has none."""
    explanation: str
    """The model's explanation of the word; empty if none can be read."""
    source: str
    """Source of the definition, such as `WordNet 3.1`; empty if there is none."""


@dataclass(frozen=True, slots=True)
class RubricScore:
    """Holds the writing assessor's score of a text."""

    score: int
    """From 0, for a text that is empty, copied or off the topic, to 5."""
    reasons: str
    """The feedback of the third step; the whole assessment if the steps cannot be told apart."""
    steps: tuple[str, ...]
    """The texts of the three steps, in order; empty if they cannot be told apart."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Holds a remark of the monitor or the control agent."""

    kind: RemarkKind
    text: str
    quote: str | None = None
    """The sentence of the draft that it is about, exactly as in the draft; None if it is about no sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Holds the assistant's answer to a turn, and the results of its modules."""

    text: str
    """The final response."""
    stage: Stage | None = None
    """None if no stage applies, or none could be read (a note then says so)."""
    topic: str | None = None
    """A keyword; None in the condition `single`, and if none could be found."""
    reasoning: bool | None = None
    """Whether the request needs long reasoning; None outside `metacrit`, and if it could not be read."""
    cards: tuple[Card, ...] = ()
    """Only before writing; otherwise empty."""
    rubric: RubricScore | None = None
    """Only while drafting and after; None if no score could be read."""
    remarks: tuple[Remark, ...] = ()
    """Only in `metacrit`; otherwise empty."""
    condition: Condition
    profile: Profile = Profile()
    """The profile that was used. If it is given with the next turn, it is not looked for again."""
    quality: float | None = None
    """Quality that a checkpoint predicts for the final response, in [0, 1]; None without a checkpoint."""
    doubted: bool = False
    """Whether the streaming gate would have stopped the final response; False if there is no gate."""
    notes: tuple[str, ...] = ()
    """Notes for the reader: a text that was shortened, a form that a model did not keep."""


def item_of_turn(turn: Turn, item_id: str, *, group: str = "", **more: Any) -> Item:
    """Returns a turn as an item over which a system can run. Its `question` is the message, or says that it is empty.

    Raises `RecordError` for a bad history (`check_turn`).

    Args:
        turn: the turn.
        item_id: id of the item.
        group: its group.
        **more: further fields of `Item`.
    """
    check_turn(turn)
    profile = {name: getattr(turn.profile, name) or "" for name in (field.name for field in fields(Profile))}
    slots = {**profile, "draft": turn.draft, "message": turn.message, "history": json.dumps(turn.history)}
    slots |= more.pop("fields", {})
    question = turn.message.strip() or "(no message)"
    return Item(id=item_id, question=question, group=group or item_id, fields=slots, **more)


def turn_of_item(item: Item) -> Turn:
    """Returns the turn that an item holds. Raises `RecordError` if a field is missing or the history is bad."""
    if missing := [name for name in TURN_FIELDS if name not in item.fields]:
        raise RecordError(
            f"item {item.id!r} has no field {', '.join(missing)}; a turn of the writing assistant has "
            f"{', '.join(TURN_FIELDS)}, each a text, which may be empty"
        )
    try:
        history = json.loads(item.fields["history"] or "[]")
        pairs = tuple((role, text) for role, text in history)
    except (ValueError, TypeError) as error:
        raise RecordError(
            f"item {item.id!r}: history is {item.fields['history'][:80]!r}; expected a JSON list of [role, text]"
        ) from error
    profile = Profile(**{field.name: item.fields[field.name] or None for field in fields(Profile)})
    turn = Turn(profile, item.fields["draft"], item.fields["message"], pairs)
    check_turn(turn)
    return turn


def check_turn(turn: Turn) -> None:
    """Raises `RecordError` if the history holds anything but texts of the user and the assistant."""
    for entry in turn.history:
        if entry[0] not in ROLES or not isinstance(entry[1], str):
            raise RecordError(f"history has {str(entry)[:80]}; expected (role, text) with role {' or '.join(ROLES)}")


def check_condition(condition: str) -> Condition:
    """Returns the condition. Raises `RecordError` for another name."""
    for allowed in CONDITIONS:
        if condition == allowed:
            return allowed
    raise RecordError(f"condition {condition!r}: expected one of {', '.join(CONDITIONS)}")
