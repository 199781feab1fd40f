"""The answers on which it is measured what travels: our recorded runs, and four sets of others'."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.answer_table import answer_table
from metaprobe.probes.features import TERM_NAMES, features, schema
from metaprobe.training.evidence import runs_of
from metaprobe.training.stored_runs import load_runs
from research.quality.data import DataSet, gsm8k_token_entropy, mu_shroom, token_logprobs_qa
from research.stores import bundle

OURS, BREADTH = "own runs", "breadth"
SHARE = "share"
"""Target of mu_shroom's two whose classes are even."""


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """n labelled answers, of whatever source."""

    source: NDArray[np.str_]
    model: NDArray[np.str_]
    task: NDArray[np.str_]
    run: NDArray[np.str_]
    """Model, task and way of asking."""
    group: NDArray[np.str_]
    y: NDArray[np.int64]
    logprobs: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> "Answers":
        """The chosen rows, by mask or by index."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in self.__slots__})

    def features(self, name: str = "terms") -> NDArray[np.float32]:
        """Their features (n, d) of a schema."""
        return features(schema(name), list(self.logprobs))


def names_of(name: str) -> tuple[str, ...]:
    """Returns the names of the features of a schema."""
    return schema(name).names if name != "terms" else TERM_NAMES


def recorded(root: Path) -> Answers:
    """Answers of our own recorded runs: of the systems, and of the many small task families."""
    systems = [root / name for name in f"{bundle.ANSWERS} {bundle.SHORT}".split()]
    wide = sorted(path for path in (root / "recorded" / "breadth").iterdir() if path.is_dir())
    return join([of_stores(OURS, systems), of_stores(BREADTH, wide)])


def others(data: Path) -> Answers:
    """Answers that others collected, of models that none of our runs is of."""
    found = [*token_logprobs_qa(data), *gsm8k_token_entropy(data)]
    found += [one for one in mu_shroom(data) if one.name.endswith(SHARE)]
    return join([_of_set(one) for one in found])


def join(parts: Sequence[Answers]) -> Answers:
    """All answers of several parts."""
    return Answers(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in Answers.__slots__})


def of_stores(source: str, stores: Sequence[Path]) -> Answers:
    """The labelled answers of run stores."""
    table = answer_table(load_runs(stores), target="correct")
    run = runs_of(table)
    return Answers(np.full(len(table), source), table.models, table.tasks, run, table.groups, table.y, table.logprobs)


def _of_set(one: DataSet) -> Answers:
    table, n = one.evidence.table, len(one.evidence.table)
    name = one.name.split(",")[0]
    task = np.array([f"{name} {part}" if part else name for part in table.dimensions])
    groups = np.array([f"{name}/{group}" for group in table.groups])
    run = np.array([f"{m}|{t}|{v}" for m, t, v in zip(table.models, task, table.variants, strict=True)])
    models = np.full(n, "38 models") if name == "mu_shroom" else table.models  # few answers of each
    return Answers(np.full(n, name), models, task, run, groups, table.y, table.logprobs)
