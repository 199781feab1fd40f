"""How confidence without labels is measured: what the controls of docs/research/no-labels.md are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.probes.features import TERM_NAMES
from metaprobe.training.ladder import LadderRows
from research.agreement.ways import of_other_questions


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 6)), min_size=2, max_size=12), st.integers(0, 99))
def test_shuffled_agreement_goes_whole_from_one_question_to_another(asked: list[tuple[int, int]], seed: int) -> None:
    groups = np.repeat([f"q{place}" for place in range(len(asked))], [count for _, count in asked])
    y = np.repeat([label for label, _ in asked], [count for _, count in asked])
    rows = LadderRows(np.zeros((len(y), len(TERM_NAMES)), np.float32), y, groups, groups, TERM_NAMES)
    mixed = of_other_questions(rows, np.random.default_rng(seed))
    by_group = [mixed.y[groups == name] for name in dict.fromkeys(groups)]
    assert all(len(set(labels.tolist())) == 1 for labels in by_group)
    assert sorted(int(labels[0]) for labels in by_group) == sorted(label for label, _ in asked)
