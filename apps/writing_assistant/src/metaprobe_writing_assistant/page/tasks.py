"""Lists the topics to write about: those of MetaCrit's four writing cases (appendix K.2), in our own words."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WritingTask:
    """One topic to write about."""

    id: str
    title: str
    text: str


TASKS = (
    WritingTask(
        "discoveries",
        "Should discoveries be shared?",
        "Should every scientific discovery be open to all scientists, or may governments and companies keep some of "
        "them secret? Say what you think, and answer one objection.",
    ),
    WritingTask(
        "influence",
        "A book or film that changed you",
        "Which book or film has influenced you most? Tell what happens in it, and what it changed in you.",
    ),
    WritingTask(
        "veins",
        "Why do veins look blue?",
        "Veins look blue through the skin. Explain why, so that somebody who believes a common wrong answer changes "
        "his or her mind.",
    ),
    WritingTask(
        "seasons",
        "Why is summer warmer than winter?",
        "Explain why summer is warmer than winter, and how we know that a common explanation is wrong.",
    ),
)
"""The paper gives the third topic twice; here the fourth is another topic with a common wrong answer."""
