"""The writing assistant of MetaCrit (section 4, appendices I and J): a file a module, and three conditions."""

from metaprobe.pipelines.writing_assistant.assistant import SYSTEM, reply
from metaprobe.pipelines.writing_assistant.contract import (
    CONDITIONS,
    Card,
    Profile,
    Remark,
    Reply,
    RubricScore,
    Turn,
    item_of_turn,
    turn_of_item,
)

__all__ = [
    "CONDITIONS",
    "SYSTEM",
    "Card",
    "Profile",
    "Remark",
    "Reply",
    "RubricScore",
    "Turn",
    "item_of_turn",
    "reply",
    "turn_of_item",
]
