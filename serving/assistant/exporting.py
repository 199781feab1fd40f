"""A session as a file: JSON for programs, Markdown for people."""

import time
from dataclasses import asdict
from typing import Any

from metaprobe.serving.assistant.sessions import KeptTurn, Sessions

FORMAT = "metaprobe writing session 1"


def as_json(sessions: Sessions, session_id: str) -> dict[str, Any]:
    """Returns everything that is kept of a session."""
    session = sessions.get(session_id)
    versions = [
        {**about, "text": sessions.version(session_id, about["number"])} for about in sessions.versions(session_id)
    ]
    turns = [{"number": number, **asdict(turn)} for number, turn in sessions.turns(session_id)]
    return {"format": FORMAT, **asdict(session), "versions": versions, "turns": turns}


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
    found = turn.reply or {}
    if rubric := found.get("rubric"):
        parts.append(f"Score: {rubric['score']} of 5. {rubric['reasons']}".strip())
    parts += [
        f"- **{card['word']}** ({card['part_of_speech'] or 'word'}): {card['definition']}"
        for card in found.get("cards", ())
    ]
    for remark in found.get("remarks", ()):
        about = f" On \u201c{remark['quote']}\u201d:" if remark["quote"] else ""
        parts.append(f"> {remark['kind']}:{about} {remark['text']}")
    return parts
