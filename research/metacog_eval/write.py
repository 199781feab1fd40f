"""Writes the rows that the task set ships with.

python -m research.metacog_eval.write
"""

import dataclasses
import json
from pathlib import Path

from research.metacog_eval.draw import metacog_eval

ROWS = Path(__file__).parent.parent.parent / "tasks" / "rows" / "metacog-eval.jsonl"


def lines() -> str:
    """Returns one item a line; fields without a value are left out."""
    found = ({name: value for name, value in dataclasses.asdict(item).items() if value} for item in metacog_eval())
    return "".join(json.dumps(fields, ensure_ascii=False) + "\n" for fields in found)


if __name__ == "__main__":
    ROWS.write_text(lines(), encoding="utf-8")
