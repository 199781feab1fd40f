"""Who takes part gets the next order of the conditions, and the next texts to write, in turn."""

from collections import Counter
from pathlib import Path

from metaprobe_writing_assistant.page.session_file import SessionFile
from metaprobe_writing_assistant.page.sessions import Sessions
from metaprobe_writing_assistant.page.study import CONDITIONS, PARTS, TASKS, StudyFile
from metaprobe_writing_assistant.study.survey import balanced_orders


def test_after_every_order_has_come_once_the_texts_move_on_by_one(tmp_path: Path) -> None:
    orders = balanced_orders(CONDITIONS)
    rounds = len(TASKS)
    with SessionFile(tmp_path / "sessions.sqlite") as file:
        study = StudyFile(file, Sessions(file))
        begun = [study.begin() for _ in range(rounds * len(orders))]
        assert [study.get(one.token).code for one in begun] == [one.code for one in begun]
    assert [one.order for one in begun] == list(orders) * rounds
    ids = [task.id for task in TASKS]
    for number, one in enumerate(begun):
        first = number // len(orders)
        assert list(one.tasks) == [ids[(first + place) % len(ids)] for place in range(PARTS)]
    # So every text is written with every condition equally often.
    pairs = Counter(pair for one in begun for pair in zip(one.tasks, one.order, strict=False))
    assert len(set(pairs.values())) == 1
    assert len(pairs) == len(TASKS) * len(CONDITIONS)
