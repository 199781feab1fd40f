"""Helpers of `test_breadth.py` and `test_breadth_computed.py`."""

import re
from collections import defaultdict

from metaprobe.records.types import Item
from research.breadth.items import breadth_items

EACH = 120
ITEMS = breadth_items(EACH)
BY_FAMILY: dict[str, list[Item]] = defaultdict(list)
for _item in ITEMS:
    BY_FAMILY[_item.dimension].append(_item)


def letters(item: Item) -> str:
    letter, word = re.findall(r'"(\w+)"', item.question)
    return str(len(word) - len(word.replace(letter, "")))
