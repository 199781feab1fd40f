"""Argumentative essays of LEAF for CAELF's rubric: issue, evidence, position and conclusion at levels 0 to 2.

CAELF's essays with their grades are not public, and no set at hand has these grades. LEAF++ has ten traits from 1 to 5,
and does not say who gave them. Two of them mean nearly what a dimension of CAELF means: clarity of topic for issue,
specificity of explanation for evidence. They stand in as gold: 1 and 2 for level 0, 3 for level 1, 4 and 5 for level 2.
Position and conclusion have no such trait, so their items carry no gold and are not checked.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from metaprobe.records.errors import ImportFileError
from metaprobe.records.types import Item
from metaprobe.tasks.grading import chance, make_item, score
from metaprobe.tasks.task import Row, Task

TYPE = "Argumentative"
RUBRICS = Path(__file__).parent / "rows" / "essay-rubrics.json"
"""Dimension -> the meaning of levels 0, 1 and 2: CAELF's table 2, in our words."""
STANDS_FOR = {"issue": "clarity_of_topic", "evidence": "specificity_of_explanation"}
"""Dimension -> the trait of LEAF++ that stands in for its grade."""


def items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """One item a dimension of each argumentative essay. Fields as in ASAP; a group is an essay."""
    rubrics = json.loads(RUBRICS.read_text(encoding="utf-8"))
    for row in rows:
        if row.text("type") != TYPE:
            continue
        traits = row.part("traits")
        if traits is None:
            raise ImportFileError(f"{row.where}: field 'traits' is missing; expected an object of grades from 1 to 5")
        essay = row.text("essay").replace("\\n", "\n").strip()  # the source writes line breaks as two characters
        for dimension, rubric in rubrics.items():
            trait = STANDS_FOR.get(dimension)
            yield make_item(
                f"{row.text('id')}/{dimension}",
                essay=essay,
                essay_prompt=row.text("title"),
                trait=dimension,
                rubric=rubric,
                low=0,
                gold=min(max(traits.whole(trait, 1, 5) - 2, 0), 2) if trait else None,
                group=row.text("id"),
                dimension=dimension,
                source=f"LEAF++ {trait}" if trait else "",
            )


TASK = Task(
    name="essays",
    items=items,
    source="https://github.com/yes2310/Trait-Based-Essay-Feedback (LEAF++), essays from EssayForum.com",
    licence="research use with reference to EssayForum.com; traits: none stated",
    score=score,
    chance=chance,
    folder="leaf_essay_feedback",
    files={"test": "data", "dev": "data"},
)
