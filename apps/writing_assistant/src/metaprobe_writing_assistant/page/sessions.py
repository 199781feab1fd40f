"""Writing sessions: a text with its versions, the profile of its writer, and the conversation; also as files."""

import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from metaprobe.records.errors import RecordError
from metaprobe_writing_assistant.page.session_file import Body, NewEntry, SessionFile
from metaprobe_writing_assistant.system.contract import Profile, Turn

SESSION, VERSION, TURN = "session", "version", "turn"
AUTOSAVE_S = 120
"""Seconds after which a changed text becomes a new version."""
MAX_VERSIONS = 500
"""Most versions of one text that are kept, the newest ones: a new version removes the oldest."""
TITLE_WORDS = 8
EXPORT_FORMAT = "metaprobe writing session 1"
"""Names the format of an exported session."""

TurnState = Literal["running", "done", "stopped", "failed"]
Saved = Literal["automatically", "by hand", "before a message"]


class NotThere(RecordError):
    """A session or turn that does not exist."""


class ChangedElsewhere(RecordError):
    """A saved text that is not based on the stored one."""


@dataclass(frozen=True, slots=True)
class WritingSession:
    """One text and how its writer is helped."""

    id: str
    condition: str
    """How turns are answered, unless they say otherwise."""
    task: str = ""
    """Topic to write about; empty if the writer chooses."""
    draft: str = ""
    revision: int = 0
    """Increases with every saved change of the text, so that two windows do not overwrite each other."""
    profile: dict[str, str | None] = field(default_factory=dict)
    """Fields of `Profile`, as filled in on the form."""
    found: dict[str, str | None] = field(default_factory=dict)
    """The same fields, as the assistant found them in the conversation: it looks for them once."""
    blind: bool = False
    """Whether the page must not show how turns are answered, as in a study."""

    @property
    def title(self) -> str:
        """The first words of the text, or of the task."""
        words = (self.draft.split() or self.task.split())[: TITLE_WORDS + 1]
        return " ".join(words[:TITLE_WORDS]) + (" ..." if len(words) > TITLE_WORDS else "")


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """One message and its answer, with the text as it was."""

    message: str
    draft: str
    condition: str
    state: TurnState
    began: float
    """Seconds since 1970."""
    text: str = ""
    """The answer, or its part when it was stopped."""
    reply: dict[str, Any] | None = None
    """The fields of `Reply`, if the answer is complete."""
    error: str = ""
    seconds: float = 0.0
    calls: int = 0
    """Number of calls of models."""
    tokens: int = 0
    """Tokens of prompts and answers."""


class Sessions:
    """The sessions of one file. Raises `NotThere` for a session that does not exist."""

    def __init__(self, file: SessionFile) -> None:
        self.file = file

    def create(self, condition: str, *, task: str = "", blind: bool = False) -> WritingSession:
        """Makes a session with a name that cannot be guessed.

        Args:
            condition: how turns are answered.
            task: topic to write about.
            blind: whether the page must not show how turns are answered.
        """
        session = WritingSession(secrets.token_urlsafe(12), condition, task, blind=blind)
        self.file.put(SESSION, session.id, 0, asdict(session))
        return session

    def get(self, session_id: str) -> WritingSession:
        """Returns a session."""
        body = self.file.get(SESSION, session_id)
        if body is None:
            raise NotThere(f"no session {session_id[:40]!r} in {self.file.path.name}: it may have been deleted")
        return WritingSession(**body)

    def titles(self) -> list[dict[str, Any]]:
        """Returns id, title and time of every session that is not of a study, the last changed first."""
        sessions = [
            (WritingSession(**body), time_changed) for _, time_changed, body in self.file.first_entries(SESSION)
        ]
        return [
            {"id": session.id, "title": session.title, "at": time_changed}
            for session, time_changed in sessions
            if not session.blind
        ]

    def save_draft(self, session_id: str, text: str, revision: int) -> WritingSession:
        """Saves the text, with a version if the last one is old; both or none.

        Raises `ChangedElsewhere` for an old `revision`, unless the text is the stored one.

        Args:
            session_id: id of the session.
            text: the text.
            revision: the revision on which it is based.
        """
        session = self.get(session_id)
        if text == session.draft:  # for example, saved before, but the response did not reach the window
            return session
        if revision != session.revision:
            raise ChangedElsewhere("this text was changed in another window; load it again to see that one")
        changed = replace(session, draft=text, revision=revision + 1)
        last = self.file.last(VERSION, session_id)
        is_due = last is None or time.time() - last[1] >= AUTOSAVE_S
        versions = self._version_of(session_id, text, "automatically") if is_due else []
        self.file.write([NewEntry(SESSION, session_id, asdict(changed), 0), *versions])
        return changed

    def keep_version(self, session_id: str, text: str, saved: Saved) -> None:
        """Keeps the text as a version, unless it is empty or the same as the last version.

        Args:
            session_id: id of the session.
            text: the text.
            saved: why it is saved.
        """
        self.file.write(self._version_of(session_id, text, saved))

    def _version_of(self, session_id: str, text: str, saved: Saved) -> list[NewEntry]:
        last = self.file.last(VERSION, session_id)
        if not text.strip() or (last is not None and last[2]["text"] == text):
            return []
        return [NewEntry(VERSION, session_id, {"text": text, "saved": saved}, newest=MAX_VERSIONS)]

    def versions(self, session_id: str) -> list[dict[str, Any]]:
        """Returns number, time, words and reason of every version, the oldest first."""
        return [
            {"number": number, "at": time_saved, "words": len(body["text"].split()), "saved": body["saved"]}
            for number, time_saved, body in self.file.entries(VERSION, session_id)
        ]

    def version(self, session_id: str, number: int) -> str:
        """Returns the text of one version."""
        body = self.file.get(VERSION, session_id, number)
        if body is None:
            raise NotThere(f"no version {number} of this text")
        return str(body["text"])

    def change(self, session_id: str, **changed: Any) -> WritingSession:
        """Changes fields of the session: `profile`, `found` or `condition`."""
        session = replace(self.get(session_id), **changed)
        self.file.put(SESSION, session.id, 0, asdict(session))
        return session

    def begin_turn(self, session_id: str, message: str, draft: str, condition: str) -> int:
        """Keeps the text as a version and the message as a turn at work, both or none, and returns its number.

        Args:
            session_id: id of the session.
            message: the message.
            draft: the text.
            condition: how the turn is answered.
        """
        turn = KeptTurn(message, draft, condition, "running", time.time())
        versions = self._version_of(session_id, draft, "before a message")
        return self.file.write([*versions, NewEntry(TURN, session_id, asdict(turn))])[-1]

    def turn(self, session_id: str, number: int) -> KeptTurn:
        """Returns one turn."""
        body = self.file.get(TURN, session_id, number)
        if body is None:
            raise NotThere(f"no turn {number} in this session")
        return KeptTurn(**body)

    def end_turn(self, session_id: str, number: int, **found: Any) -> KeptTurn:
        """Keeps the result of a turn: fields of `KeptTurn`.

        Args:
            session_id: id of the session.
            number: number of the turn.
            **found: the fields.
        """
        turn = self.turn(session_id, number)
        ended = replace(turn, seconds=time.time() - turn.began, **found)
        self.file.put(TURN, session_id, number, asdict(ended))
        return ended

    def turns(self, session_id: str) -> list[tuple[int, KeptTurn]]:
        """Returns every turn with its number."""
        return [(number, KeptTurn(**body)) for number, _, body in self.file.entries(TURN, session_id)]

    def ask(self, session_id: str, number: int) -> Turn:
        """Returns a turn as the assistant takes it: the finished turns before it are its history."""
        session, turn = self.get(session_id), self.turn(session_id, number)
        history = [
            pair
            for earlier_number, earlier_turn in self.turns(session_id)
            if earlier_number < number and earlier_turn.state == "done"
            for pair in (("user", earlier_turn.message), ("assistant", earlier_turn.text))
        ]
        filled_in = {name: text for name, text in session.profile.items() if text}
        return Turn(Profile(**{**session.found, **filled_in}), turn.draft, turn.message, tuple(history))

    def delete(self, session_id: str) -> None:
        """Deletes the session with its versions and turns."""
        self.get(session_id)
        self.file.delete(session_id)


def shown_turn(number: int, turn: KeptTurn, *, blind: bool) -> Body:
    """Returns a turn as the page gets it; for a blind session, without anything that shows how it was answered.

    Args:
        number: number of the turn.
        turn: the turn.
        blind: whether the session is blind.
    """
    body = {"number": number, **asdict(turn)}
    if not blind:
        return body
    shown_names = ("number", "message", "draft", "state", "began", "text", "error")
    return {name: body[name] for name in shown_names}


def shown_session(session: WritingSession, turns: list[tuple[int, KeptTurn]]) -> Body:
    """Returns a session with its turns as the page gets it."""
    body = {**asdict(session), "turns": [shown_turn(number, turn, blind=session.blind) for number, turn in turns]}
    del body["found"]
    return {**body, "condition": ""} if session.blind else body


def as_json(sessions: Sessions, session_id: str) -> dict[str, Any]:
    """Returns everything that is kept of a session."""
    session = sessions.get(session_id)
    versions = [
        {**version_fields, "text": sessions.version(session_id, version_fields["number"])}
        for version_fields in sessions.versions(session_id)
    ]
    turns = [{"number": number, **asdict(turn)} for number, turn in sessions.turns(session_id)]
    return {"format": EXPORT_FORMAT, **asdict(session), "versions": versions, "turns": turns}


def as_markdown(sessions: Sessions, session_id: str) -> str:
    """Returns the text and the conversation, as a learner would keep them."""
    session = sessions.get(session_id)
    parts = [f"# {session.title or 'A text'}"]
    if session.task:
        parts.append(f"Task: {session.task}")
    parts += ["## Text", session.draft.strip() or "(nothing yet)", "## Conversation"]
    for _, turn in sessions.turns(session_id):
        parts += _turn_parts(turn)
    return "\n\n".join(parts) + "\n"


def _turn_parts(turn: KeptTurn) -> list[str]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(turn.began))
    parts = [f"### You, {when}", turn.message.strip() or "(no message)", "### Assistant"]
    parts.append(turn.text.strip() or f"({turn.error or turn.state})")
    if turn.state == "stopped":
        parts.append("(stopped)")
    reply = turn.reply or {}
    if rubric := reply.get("rubric"):
        parts.append(f"Score: {rubric['score']} of 5. {rubric['reasons']}".strip())
    parts += [
        f"- **{card['word']}** ({card['part_of_speech'] or 'word'}): {card['definition']}"
        for card in reply.get("cards", ())
    ]
    for remark in reply.get("remarks", ()):
        target = f" On \u201c{remark['quote']}\u201d:" if remark["quote"] else ""
        parts.append(f"> {remark['kind']}:{target} {remark['text']}")
    return parts
