"""Prompts are text files, so that a user can replace them by a folder of their own.

A file holds one or more turns, each opened by a line `--- system`, `--- user` or `--- assistant`; `$name` marks a slot.
A file that is opened by `--- list` holds a list instead of turns, an entry a line.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from metaprobe.api import Message, RecordError

PROMPT_ROLES = ("system", "user", "assistant")
LIST = "list"
FILLED = ("question", "agent")
"""Slots that a user's prompt may have although no shipped prompt has them."""


class PromptError(RecordError):
    """A prompt file is missing, or has a wrong form."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of one system, read once."""

    texts: dict[str, str]
    """Maps a file name without suffix to the file's text."""

    @classmethod
    def load(
        cls,
        system: str,
        names: Sequence[str] | Mapping[str, str],
        folder: Path | None = None,
        *,
        optional: tuple[str, ...] = (),
        fields: Collection[str] = (),
    ) -> "Prompts":
        """Returns the named prompts, from the user's `folder` if one is given, else as shipped, or the texts of
        `names`.

        Raises `PromptError` for a file that is missing or has another form, and for a slot of the user's that the
        system does not fill.

        Args:
            system: name of the system.
            names: names of the prompts, or a mapping to their texts.
            folder: the user's folder.
            optional: prompts that are read if they exist, such as one for each agent.
            fields: the items' fields, which are slots as well.
        """
        source = folder if folder is not None else files("metaprobe.papers.systems") / "prompts" / system
        present = tuple(name for name in optional if name not in names and (source / f"{name}.txt").is_file())
        given_texts = names if folder is None and isinstance(names, Mapping) else {}
        texts = dict(given_texts)
        for name in (*(name for name in names if name not in given_texts), *present):
            try:
                texts[name] = (source / f"{name}.txt").read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise PromptError(
                    f"prompt {name}.txt: byte {error.start + 1} is not UTF-8; convert the file, for instance with iconv"
                ) from error
            except (FileNotFoundError, NotADirectoryError) as error:
                needed = ", ".join(f"{n}.txt" for n in names)
                raise PromptError(f"no prompt file {name}.txt in {source}; expected: {needed}") from error
        for name, text in texts.items():
            _turns(name, text)
        if folder is not None:
            shipped = cls.load(system, names).texts.values()
            filled = {slot for text in shipped for slot in Template(text).get_identifiers()}
            _check_slots(texts, {*filled, *FILLED, *fields})
        return cls(texts)

    @property
    def digest(self) -> str:
        """SHA-256 over names and texts, which says whether two collections used the same prompts."""
        joined_texts = "\0".join(f"{name}\0{text}" for name, text in sorted(self.texts.items()))
        return hashlib.sha256(joined_texts.encode()).hexdigest()

    def messages(self, name: str, **slots: str) -> tuple[Message, ...]:
        """Returns the turns of one prompt with its slots filled."""
        turns = _turns(name, self.texts[name])
        if any(role == LIST for role, _ in turns):
            raise PromptError(f"prompt {name}.txt is a list; expected turns, each opened by a line such as '--- user'")
        try:
            return tuple(Message(role, Template(text).substitute(slots)) for role, text in turns)
        except (KeyError, ValueError) as error:
            slot_names = ", ".join(f"${slot}" for slot in slots)
            raise PromptError(
                f"prompt {name}.txt has a slot that is not filled: {error}; known: {slot_names}"
            ) from error

    def entries(self, name: str) -> tuple[str, ...]:
        """Returns the entries of a list file, in order."""
        (role, text), *other_turns = _turns(name, self.texts[name])
        entries = tuple(filter(None, (line.strip() for line in text.splitlines())))
        if role != LIST or other_turns or not entries:
            raise PromptError(f"prompt {name}.txt is no list; expected a line '--- {LIST}', then an entry a line")
        return entries


def _check_slots(texts: Mapping[str, str], known_slots: Collection[str]) -> None:
    """Raises `PromptError` for a slot that is not known."""
    for name, text in texts.items():
        for role, turn in _turns(name, text):
            slots = Template(turn)
            if role == LIST:
                continue
            if not slots.is_valid():
                raise PromptError(f"prompt {name}.txt has a '$' that opens no slot; write '$$' for the character")
            if unknown_slots := [slot for slot in slots.get_identifiers() if slot not in known_slots]:
                raise PromptError(
                    f"prompt {name}.txt has the slot ${unknown_slots[0]}, which nothing fills; there are "
                    f"{', '.join(f'${slot}' for slot in sorted(known_slots))}"
                )


def _turns(name: str, text: str) -> list[tuple[str, str]]:
    turns: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("--- "):
            role = line[4:].strip()
            if role not in (*PROMPT_ROLES, LIST):
                raise PromptError(
                    f"prompt {name}.txt opens a turn of {role!r}; expected one of {', '.join(PROMPT_ROLES)}"
                )
            turns.append((role, []))
        elif turns:
            turns[-1][1].append(line)
        elif line.strip():
            raise PromptError(f"prompt {name}.txt begins with text; expected a line '--- user' or '--- system' first")
    if not turns:
        raise PromptError(f"prompt {name}.txt is empty; expected a line '--- user' and the prompt below it")
    return [(role, "\n".join(lines).strip()) for role, lines in turns]
