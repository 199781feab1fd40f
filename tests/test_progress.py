"""What a stopped training keeps."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from metaprobe.eval.results import Family
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import Roles, outer_folds
from metaprobe.training.methods import AFTER, Fitted, GivenScore, HiddenProbeMethod, Method
from metaprobe.training.study import Progress, crossfit, keep_beside

MEAN = GivenScore("mean", "log-probability", lambda table: np.array([x.mean() for x in table.logprobs]))
PROBE = HiddenProbeMethod(AFTER, ("answer_last",))


class Stopped(BaseException):
    """As Ctrl-C, or the end of the machine."""


@dataclass(frozen=True, slots=True)
class Counting:
    """The probe, which counts its fits and is stopped in one of them."""

    inner: HiddenProbeMethod = PROBE
    stop_at: int = field(default=0, repr=False)
    fits: list[str] = field(default_factory=list, repr=False)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def family(self) -> Family:
        return self.inner.family

    @property
    def fitted(self) -> bool:
        return True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        self.fits.append(self.name)
        if len(self.fits) == self.stop_at:
            raise Stopped
        return self.inner.fit(evidence, roles, seed=seed)


def _figures(evidence: Evidence, method: Method, progress: Progress | None = None) -> tuple[np.ndarray, list[object]]:
    fits = crossfit(evidence, [MEAN, method], folds=3, progress=progress)
    probes = [(p.layers, p.position, p.penalty, p.sweep, p.tried, p.weights.tolist()) for p in fits.probes[AFTER]]
    return fits[AFTER].probability, list(probes)


def test_a_stopped_training_continues_and_ends_as_if_it_had_not_been(evidence: Evidence, tmp_path: Path) -> None:
    expected, expected_probes = _figures(evidence, Counting())
    stopped, again = Counting(stop_at=3), Counting()

    with pytest.raises(Stopped), keep_beside(tmp_path / "probe") as progress:
        _figures(evidence, stopped, progress)
    with keep_beside(tmp_path / "probe") as progress:
        found, probes = _figures(evidence, again, progress)

    assert len(again.fits) == 1, "two folds of three were done"
    np.testing.assert_array_equal(found, expected)
    assert probes == expected_probes
    assert list(tmp_path.iterdir()) == [], "nothing is left beside a finished checkpoint"


@pytest.mark.parametrize(
    "changed",
    [
        lambda evidence: (evidence, Counting(HiddenProbeMethod(AFTER, ("answer_last",), "ridge")), 0),
        lambda evidence: (evidence, Counting(), 1),
        lambda evidence: (replace(evidence, reader="oth/other@1"), Counting(), 0),  # which may share its first layer
    ],
    ids=["kind", "seed", "reader"],
)
def test_what_was_kept_of_another_training_is_not_taken(
    evidence: Evidence, tmp_path: Path, changed: Callable[[Evidence], tuple[Evidence, Counting, int]]
) -> None:
    crossfit(evidence, [MEAN, Counting()], folds=3, progress=Progress(tmp_path))
    other, method, seed = changed(evidence)
    crossfit(other, [MEAN, method], folds=3, seed=seed, progress=Progress(tmp_path))
    assert len(method.fits) == 3


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut", b"\x80\x05."], ids=["empty", "cut", "a pickle"])
def test_a_damaged_fold_is_fitted_again(evidence: Evidence, tmp_path: Path, damage: bytes) -> None:
    expected, _ = _figures(evidence, Counting(), Progress(tmp_path))
    for path in tmp_path.iterdir():
        path.write_bytes(damage)
    again = Counting()
    found, _ = _figures(evidence, again, Progress(tmp_path))
    assert len(again.fits) == 3
    np.testing.assert_array_equal(found, expected)


@dataclass(frozen=True, slots=True)
class Cheap:
    """A method without a probe, which counts its fits; `setting` is all that it shows of itself."""

    setting: int = 0
    fitted: bool = True
    fits: list[int] = field(default_factory=list, repr=False)
    name: str = "cheap"
    family: Family = "learned"

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        self.fits.append(seed)
        return Fitted(lambda rows: rows / 7, 0.625)


def test_a_kept_fold_is_taken_only_for_the_same_answers_labels_parts_and_settings(
    evidence: Evidence, tmp_path: Path
) -> None:
    bare = replace(evidence, states=None)
    roles = next(outer_folds(bare.table.groups.tolist(), bare.table.y))
    parts = {"train": roles.train, "selection": roles.selection, "calibration": roles.calibration, "test": roles.test}
    method = Cheap()
    for _ in range(3):
        found = Progress(tmp_path / "deep" / "folder").fold(bare, method, roles, seed=2)
        np.testing.assert_array_equal(found.scores, np.arange(len(bare.table)) / 7)
        assert (found.selection_auroc, found.probe) == (0.625, None)
    assert method.fits == [2], "the second and the third are read from the folder"
    table = bare.table
    others = {
        "labels": replace(bare, table=replace(table, y=1 - table.y)),
        "calls": replace(bare, table=replace(table, call_ids=table.call_ids[::-1])),
        "runs": replace(bare, fingerprint="another"),
        "features": replace(bare, schema="another"),
        "states": evidence,
    }
    for what, other in others.items():
        Progress(tmp_path / "deep" / "folder").fold(other, again := Cheap(), roles, seed=2)
        assert len(again.fits) == 1, what
    moved = Roles(**{**parts, "train": parts["selection"], "selection": parts["train"]})
    for other_roles, seed, setting in ((moved, 2, 0), (roles, 3, 0), (roles, 2, 1)):
        Progress(tmp_path / "deep" / "folder").fold(bare, again := Cheap(setting), other_roles, seed=seed)
        assert len(again.fits) == 1
    assert len(list((tmp_path / "deep" / "folder").iterdir())) == 9
    for folder in (None, tmp_path / "given"):  # without a folder, and of what learns nothing, nothing is kept
        given = Cheap(fitted=folder is None)
        for _ in range(2):
            Progress(folder).fold(bare, given, roles, seed=2)
        assert len(given.fits) == 2
    assert not (tmp_path / "given").exists()
