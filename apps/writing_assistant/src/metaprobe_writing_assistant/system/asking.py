"""How every module asks: by a prompt file, after the rules about learners' texts, with learners' texts quoted."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from metaprobe.papers.systems.judging import object_schema, only_json_object
from metaprobe.papers.systems.session import Session
from metaprobe.records.types import Call, Message, Sampling
from metaprobe_writing_assistant.system.contract import NOT_SAID, Profile, Turn
from metaprobe_writing_assistant.system.quoting import SHOWN_WORDS, quote_history, quote_text, shorten, tame

NO_MESSAGE = "Please look at my text."
"""Replaces an empty message next to a text."""


@dataclass(slots=True)
class Work:
    """A turn while it is worked on: the session that asks, and notes for readers of the reply."""

    session: Session
    turn: Turn
    notes: list[str]
    source_of: dict[str, str] = field(default_factory=dict)
    """Maps `stage` and `reasoning` to the source of what is known: a model's name, or a checkpoint's digest."""
    module_answers: dict[str, tuple[Call, str]] = field(default_factory=dict)
    """Maps `stage` and `reasoning` to the first call about it, and to the result in the words of the labels.

    The result is empty if nothing could be read. There is no entry if a trained model decided.
    """

    @property
    def message(self) -> str:
        """The learner's message."""
        return self.turn.message.strip() or NO_MESSAGE

    @property
    def most_words(self) -> int:
        return self.session.constant(SHOWN_WORDS)

    def note(self, text: str) -> None:
        """Adds a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def quoted(self) -> dict[str, str]:
        """Returns the slots that hold the learner's texts, quoted."""
        return {
            "quoted_message": quote_text(self.message, "message", self.most_words),
            "quoted_draft": quote_text(self.turn.draft, "text", self.most_words),
            "quoted_history": quote_history(self.turn.history),
        }

    def note_what_is_cut(self) -> None:
        """Notes which texts are too long to be shown as a whole."""
        for name, text in (("text", self.turn.draft), ("message", self.turn.message)):
            left_out = shorten(text.strip(), self.most_words)[1]
            if left_out:
                self.note(
                    f"Your {name} is long: the assistant read its first and last words, {self.most_words} in all, and "
                    f"left out {left_out} in between. Nothing of it is lost. Send a part of it to have that part read."
                )

    async def ask(
        self,
        prompt: str,
        *,
        stage: str,
        agent: str,
        max_tokens: int,
        parent: Call | None = None,
        hidden: bool = False,
        on_text: Callable[[str], None] | None = None,
        **slots: str,
    ) -> Call:
        """Fills a prompt file with the learner's texts, quoted, and with `slots`, and returns the answer.

        Args:
            prompt: name of the prompt.
            stage: the stage.
            agent: the agent.
            max_tokens: most tokens of the answer.
            parent: the call that this one continues.
            hidden: whether hidden states may be kept.
            on_text: called with each piece of the answer.
            **slots: slots with names that begin with `quoted_` hold learners' texts; all others hold models' texts,
                which may repeat them.
        """
        return await self.session.send(
            self.messages(prompt, **slots),
            Sampling(max_tokens=max_tokens),
            stage=stage,
            agent=agent,
            parent=parent,
            hidden=hidden,
            on_text=on_text,
        )

    def messages(self, prompt: str, **slots: str) -> tuple[Message, ...]:
        """Returns the turns of a prompt file, opened by the rules about the learner's texts."""
        rules = self.text_of("rules")
        tamed = {name: text if name.startswith("quoted_") else tame(text) for name, text in slots.items()}
        messages = self.session.messages(prompt, **{"rules": rules, **self.quoted(), **tamed})
        return messages if messages[0].role == "system" else (Message("system", rules), *messages)

    def text_of(self, prompt: str, **slots: str) -> str:
        """Returns the first turn of a prompt file, as a part of another prompt."""
        return self.session.messages(prompt, **slots)[0].content

    async def ask_in_form(self, unread_call: Call, name: str, values: Sequence[str | int]) -> str:
        """Asks once more after an answer that could not be read, and returns one of the values, as text.

        If the model can be held to a schema, it must write a JSON object with the field `name`. Empty if it still gives
        none of the values.

        Args:
            unread_call: the call whose answer could not be read.
            name: name of the field.
            values: the allowed values.
        """
        json_type = "integer" if isinstance(values[0], int) else "string"
        schema = object_schema({name: {"type": json_type, "enum": list(values)}})
        form = f"{{{json.dumps(name)}: ...}}, with one of {', '.join(json.dumps(value) for value in values)}"
        messages = (*unread_call.messages, *self.session.messages("again", output=tame(unread_call.text), form=form))
        call = await self.session.send(
            messages,
            replace(unread_call.sampling, json_schema=schema),
            stage=unread_call.stage,
            agent=unread_call.agent,
            round=unread_call.round + 1,
            parent=unread_call,
        )
        value = (only_json_object(call.text) or {}).get(name)
        return str(value) if value in values and not isinstance(value, bool) else ""


def quote_profile(profile: Profile) -> str:
    """Returns a profile, quoted, as a model reads it; `N/A` if nothing was said."""
    names = {"demographic": "about", "proficiency": "level", "goals": "goals", "preferences": "preferences"}
    texts = {name: getattr(profile, field) or NOT_SAID for field, name in names.items()}
    return quote_text("\n".join(f"{name}: {' '.join(text.split())}" for name, text in texts.items()), "profile")
