"""The guard in service: labelled answers of a log promote a version that is better, no other, with a way back."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from logged_answers import WEEK_46, answers, label_answers, stored, trained, write_answers
from made_once import MadeOnce

from metaprobe.cli import main
from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.monitoring.log import FeedbackLabel, ScoreLog, labelled_of_log
from metaprobe.production.monitoring.tables import Execute, LogError, SqliteTables
from metaprobe.production.promotion import PROMOTED, ROLLED_BACK, pair_scores, promote_scored, swap_pin
from metaprobe.production.retrain import RETRAINED
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.writing import OneWriter
from metaprobe.training.importance import importance
from metaprobe.training.recalibrate import recalibrate_quality
from metaprobe.training.recipes.train_quality import train_quality
from metaprobe.training.rescale import RECALIBRATED
from metaprobe.training.training_options import QualityOptions

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
LATER = WEEK_46 + 7 * 86_400.0


@pytest.fixture(scope="module")
def running(made_once: MadeOnce) -> Path:
    """A predictor of a model that is right half of the time."""
    return trained({"m": (400, 0.5)}, made_once)


@pytest.fixture(scope="module")
def recalibrated(running: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By the first week of a model that is right nine times of ten."""
    out, predictor = tmp_path_factory.mktemp("new") / "c", QualityPredictor.load(running)
    with ScoreLog.open(out.parent / "log.sqlite") as log:
        _week(log, predictor, 400, seed=1)
        recalibrate_quality(running, labelled_of_log(log, checkpoint=predictor.checkpoint.digest), out=out)
    return out


def _week(log: ScoreLog, predictor: QualityPredictor, n: int, *, seed: int, right: float = 0.9, **more: object) -> None:
    begin = WEEK_46 if seed == 1 else LATER
    series, y = answers(n, seed=seed, right=right)
    write_answers(log, predictor, series, name=f"s{seed}-", begin=begin, **more)  # type: ignore[arg-type]
    label_answers(log, y, name=f"s{seed}-")


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def test_recalibrated_probabilities_are_promoted_on_later_labels_and_taken_back(
    running: Path, recalibrated: Path, tmp_path: Path
) -> None:
    url, old, new = tmp_path / "log.sqlite", QualityPredictor.load(running), QualityPredictor.load(recalibrated)
    with ScoreLog.open(url) as log:
        _week(log, old, 200, seed=1)
        _week(log, old, 300, seed=2)
    pins = tmp_path / "pins"
    pins.write_text(f"llama=elsewhere {'b' * 64}\nm={running} {old.checkpoint.digest}\n")
    done = run("promote", "--json", recalibrated, "--over", running, "--log", url, "--pins", pins)
    assert done.exit_code == 0, done.output
    assert pins.read_text() == f"llama=elsewhere {'b' * 64}\nm={recalibrated} {new.checkpoint.digest}\n"
    decided = json.loads(done.stdout)
    assert decided["digest"] == new.checkpoint.digest
    assert decided["brier_gain"]["low"] > 0
    assert decided["check"]["digest"] == new.checkpoint.digest
    assert decided["brier_gain"]["n"] == 300, "it learned from the first week"
    back = run("promote", "--json", "--rollback", "--log", url, "--pins", pins)
    told = {"digest": old.checkpoint.digest, "path": str(running), "was": new.checkpoint.digest}
    assert json.loads(back.stdout) == told
    assert pins.read_text() == f"llama=elsewhere {'b' * 64}\nm={running} {old.checkpoint.digest}\n"
    with pytest.raises(RecordError, match=f"pins no checkpoint of digest {new.checkpoint.digest[:16]}"):
        swap_pin(pins, new.checkpoint.digest, "x", "y")
    assert QualityPredictor.load(running, sha256=json.loads(back.stdout)["digest"])
    again = run("promote", "--json", "--rollback", "--log", url)
    assert again.exit_code == 1
    assert "no promotion that could be taken back" in again.output
    with ScoreLog.open(url) as log:
        [event], [taken] = log.events(PROMOTED), log.events(ROLLED_BACK)
    assert (event.details["from"], event.details["to"]) == (old.checkpoint.digest, new.checkpoint.digest)
    assert taken.details["was"] == new.checkpoint.digest


def test_what_is_not_better_is_not_promoted_and_nothing_is_written(
    running: Path, recalibrated: Path, tmp_path: Path
) -> None:
    url, old = tmp_path / "log.sqlite", QualityPredictor.load(running)
    with ScoreLog.open(url) as log:
        _week(log, old, 300, seed=3, right=0.5)  # the model is again what it was: the running version is right
    shown = run("promote", recalibrated, "--over", running, "--log", url)
    refused = run("promote", "--json", recalibrated, "--over", running, "--log", url)
    assert (refused.exit_code, shown.exit_code) == (1, 1)
    decided = json.loads(refused.stdout)
    table = " ".join(shown.stdout.split())
    assert table.startswith("refused gain of the new version")
    assert f"Brier score {decided['brier_gain']['estimate']:+.3f}" in table
    assert all(" ".join(reason.split()) in table for reason in decided["reasons"])
    assert decided["digest"] == old.checkpoint.digest
    assert "Brier gain" in decided["reasons"][0]
    with ScoreLog.open(url) as log:
        assert log.events(PROMOTED) == []


def _promotable(folder: Path, running: Path) -> tuple[Path, Path]:
    """A log by which the recalibrated version is better, and a file of pins with the running one."""
    url, old = folder / "log.sqlite", QualityPredictor.load(running)
    with ScoreLog.open(url) as log:
        _week(log, old, 300, seed=2)
    (folder / "pins").write_text(f"{running} {old.checkpoint.digest}\n")
    return url, folder / "pins"


def test_a_promotion_whose_pin_is_nowhere_is_not_in_the_log_and_neither_is_its_end(
    running: Path, recalibrated: Path, tmp_path: Path
) -> None:
    url, pins = _promotable(tmp_path, running)
    others = tmp_path / "others"
    words = ("promote", "--json", recalibrated, "--over", running, "--log", url, "--pins")
    for text, said in ((b"elsewhere " + b"b" * 64 + b"\n", "pins no checkpoint of digest"), (b"\xff\n", "no text in")):
        others.write_bytes(text)
        refused = run(*words, others)
        assert (refused.exit_code, said in refused.output) == (1, True), refused.output
        assert others.read_bytes() == text
    with ScoreLog.open(url) as log:
        assert log.events(PROMOTED) == []
    assert run(*words, pins).exit_code == 0
    others.write_text(f"elsewhere {'b' * 64}\n")
    assert run("promote", "--json", "--rollback", "--log", url, "--pins", others).exit_code == 1
    with ScoreLog.open(url) as log:
        assert log.events(ROLLED_BACK) == []
    assert run("promote", "--json", "--rollback", "--log", url, "--pins", pins).exit_code == 0, (
        "the way back is still there"
    )


@pytest.mark.parametrize("when", ["begins", "ends"])
def test_a_promotion_that_the_log_cannot_keep_leaves_the_pin(
    running: Path, recalibrated: Path, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, pins = _promotable(tmp_path, running)
    before = pins.read_text()
    real = SqliteTables.transaction

    @contextmanager
    def full(tables: SqliteTables) -> Iterator[Execute]:
        with real(tables) as run_statement:
            if when == "begins":
                raise LogError("database or disk is full")
            yield run_statement
            if pins.read_text() != before:
                raise LogError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteTables, "transaction", full)
        refused = run("promote", "--json", recalibrated, "--over", running, "--log", url, "--pins", pins)
    assert (refused.exit_code, "disk is full" in refused.output) == (1, True), refused.output
    assert pins.read_text() == before
    with ScoreLog.open(url) as log:
        assert log.events(PROMOTED) == []


def test_a_promotion_that_was_killed_before_the_log_had_it_is_made_again(
    running: Path, recalibrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, pins = _promotable(tmp_path, running)
    new = QualityPredictor.load(recalibrated).checkpoint.digest
    swap_pin(pins, QualityPredictor.load(running).checkpoint.digest, str(recalibrated), new)
    assert run("promote", recalibrated, "--over", running, "--log", url, "--pins", pins).exit_code == 0
    assert pins.read_text() == f"{recalibrated} {new}\n"
    with ScoreLog.open(url) as log:
        assert [event.details["to"] for event in log.events(PROMOTED)] == [new]
    assert run("promote", "--rollback", "--log", url, "--pins", pins).exit_code == 0
    assert pins.read_text().startswith(f"{running} ")


def test_a_promotion_changes_the_pins_of_models_whose_labels_decided_and_the_way_back_the_same_ones(
    running: Path, recalibrated: Path, tmp_path: Path
) -> None:
    url, pins = _promotable(tmp_path, running)
    old, new = (QualityPredictor.load(path).checkpoint.digest for path in (running, recalibrated))
    words = ("promote", recalibrated, "--over", running, "--log", url, "--pins", pins)
    pins.write_text(f"m={running} {old}\nother={running} {old}\n")
    assert run(*words).exit_code == 0
    assert pins.read_text() == f"m={recalibrated} {new}\nother={running} {old}\n"
    pins.write_text(f"m={recalibrated} {new}\nother={recalibrated} {new}\n")  # which was pinned by hand
    assert run("promote", "--rollback", "--log", url, "--pins", pins).exit_code == 0
    assert pins.read_text() == f"m={running} {old}\nother={recalibrated} {new}\n"
    before = f"one={running} {old}\nother={running} {old}\n"
    pins.write_text(before)
    refused = run(*words)
    assert (refused.exit_code, "label answers of a model that is pinned" in refused.output) == (1, True), refused.output
    assert pins.read_text() == before
    pins.write_text(f"{running} {old}\nother={running} {old}\n")  # the first line is of all other models
    assert run(*words).exit_code == 0
    assert pins.read_text() == f"{recalibrated} {new}\nother={running} {old}\n"


def test_pins_that_are_a_link_stay_one_and_have_one_writer_at_a_time(
    running: Path, recalibrated: Path, tmp_path: Path
) -> None:
    url, pins = _promotable(tmp_path, running)
    pins.chmod(0o640)
    link = tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(pins)
    words = ("promote", recalibrated, "--over", running, "--log", url, "--pins", link)
    with OneWriter(pins.parent, of=pins.name):
        held = run(*words)
    assert (held.exit_code, "is being written to by" in held.output) == (1, True), held.output
    assert pins.read_text().startswith(f"{running} ")
    assert run(*words).exit_code == 0
    assert link.is_symlink()
    assert link.read_text().startswith(f"{recalibrated} ")
    assert pins.stat().st_mode & 0o777 == 0o640


def test_a_version_in_service_is_not_written_over(running: Path, tmp_path: Path) -> None:
    url, _ = _promotable(tmp_path, running)
    manifest = (running / "manifest.json").read_bytes()
    refused = [
        run("recalibrate", "bundled:quality", "--log", url, "--out", running),
        run("retrain", "--log", url, "--out", running),
    ]
    assert [done.exit_code for done in refused] == [1, 1]
    assert all("may be in service" in done.output for done in refused), refused
    assert (running / "manifest.json").read_bytes() == manifest


def test_labels_that_do_not_say_when_their_answers_were_are_not_judged_by(
    running: Path, recalibrated: Path, tmp_path: Path
) -> None:
    """Else a version would be promoted by the very labels that it has learned from."""
    old = QualityPredictor.load(running)
    series, y = answers(200, seed=2, right=0.9)
    with ScoreLog.open(tmp_path / "log.sqlite") as log:
        _week(log, old, 200, seed=2)
        said = labelled_of_log(log, checkpoint=old.checkpoint.digest)
        recalibrate_quality(running, dataclasses.replace(said, time=0 * said.time), out=tmp_path / "timeless")
        old.adapt(series, y.tolist(), out=tmp_path / "adapted")
        # An adapted checkpoint's scores do not follow from an earlier recalibration.
        QualityPredictor.load(recalibrated).adapt(series, y.tolist(), out=tmp_path / "again")
        again = QualityPredictor.load(tmp_path / "again").checkpoint.manifest.contract
        assert RECALIBRATED not in again
        recalibrate_quality(tmp_path / "adapted", said, out=tmp_path / "chain")
        for name in ("timeless", "adapted", "chain"):
            with pytest.raises(RecordError, match="200 because the new version has learned, or may have"):
                pair_scores(QualityPredictor.load(tmp_path / name), old, log)


def test_another_version_is_judged_by_its_shadow_or_by_kept_log_probabilities(running: Path, tmp_path: Path) -> None:
    runs = stored(tmp_path / "runs", {"m": (250, 0.9)}, seed=50)
    train_quality([runs], QualityOptions(out=tmp_path / "c", folds=2))
    old, new = QualityPredictor.load(running), QualityPredictor.load(tmp_path / "c")
    series, _ = answers(200, seed=4, right=0.9)
    with ScoreLog.open(tmp_path / "shadow.sqlite") as log:
        _week(log, old, 200, seed=4)
        with pytest.raises(RecordError, match="200 because the new version has not scored them"):
            pair_scores(new, old, log)
        expected = write_answers(log, new, series, name="x", shadow_of="s4-", begin=LATER)
        shadowed = pair_scores(new, old, log).scores
        assert shadowed == pytest.approx(expected)
        assert promote_scored(new, old, log, sharper=True).promoted
        assert promote_scored(new, old, log).promoted is False, "its order is no better, which counts by default"
    with ScoreLog.open(tmp_path / "kept.sqlite") as log:
        _week(log, old, 200, seed=4, keep=True)
        assert pair_scores(new, old, log).scores == pytest.approx(expected, abs=1e-6)


def _put_on_a_sheet(log: ScoreLog, propensities: dict[str, float]) -> None:
    with log.tables.transaction() as run_statement:
        for name, propensity in propensities.items():
            run_statement(
                "INSERT INTO samples (request_id, propensity, sheet, time) VALUES (:r, :p, 's', 0.0)",
                {"r": name, "p": propensity},
            )


def test_answers_that_were_drawn_unequally_all_decide_and_those_drawn_rarely_weigh_more(
    running: Path, recalibrated: Path, tmp_path: Path
) -> None:
    old, new = QualityPredictor.load(running), QualityPredictor.load(recalibrated)
    series, y = answers(600, seed=5, right=0.9)
    with ScoreLog.open(tmp_path / "log.sqlite") as log:
        given = write_answers(log, old, series, begin=LATER)
        chance = np.where(given < 0.5, 1.0, 0.25)
        asked = np.flatnonzero(np.random.default_rng(1).random(600) < chance).tolist()
        _put_on_a_sheet(log, {f"r{i}": float(chance[i]) for i in asked})
        log.add_labels([FeedbackLabel(f"r{i}", float(y[i])) for i in asked])
        decided = promote_scored(new, old, log)
        label_answers(log, y)
        whole = promote_scored(new, old, log)
    assert (decided.brier_gain.n, whole.brier_gain.n) == (len(asked), 600), "nobody chose among all answers"
    assert decided.brier_gain.low < whole.brier_gain.estimate < decided.brier_gain.high
    plain = float(np.mean(((given - y) ** 2)[asked]))
    weighed = float(np.average(((given - y) ** 2)[asked], weights=1 / chance[asked]))
    truth = float(np.mean((given - y) ** 2))
    assert abs(weighed - truth) < abs(plain - truth), "else the weights would not matter here"


def test_a_refusal_counts_the_labels_that_it_ignored_by_reason(
    running: Path, recalibrated: Path, tmp_path: Path
) -> None:
    old, new = QualityPredictor.load(running), QualityPredictor.load(recalibrated)
    series, y = answers(500, seed=6, right=0.9)
    with ScoreLog.open(tmp_path / "log.sqlite") as log:
        _week(log, old, 50, seed=1)  # of which the new version has learned
        write_answers(log, old, series, begin=LATER)
        _put_on_a_sheet(log, {f"r{i}": 0.04 for i in range(0, 500, 25)})
        log.add_labels([FeedbackLabel(f"r{i}", float(y[i])) for i in [*range(0, 500, 25), *range(1, 500, 4)]])
        refused = promote_scored(new, old, log)
    assert not refused.promoted
    assert refused.brier_gain.n == 20
    assert sorted(refused.left_out.values()) == [50, 120]  # 5 of the 125 others had been drawn
    told = " ".join(refused.reasons)
    assert "50 because the new version has learned" in told
    assert "120 because their answers were not drawn" in told
    assert "20 labelled answers decided" in told


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("out/c {old}  # promoted on Monday", "new/c {new}  # promoted on Monday"),
        ("m=out/c\t{old}# of {old}", "m=new/c {new}# of {old}"),
        ("  m=out/c    {old}  ", "m=new/c {new}"),
        ("# m=out/c {old}", None),
        ("out/c {other}  # before it {old}", None),
        ("out/c {shouted}", "new/c {new}"),
    ],
)
def test_a_pin_is_swapped_where_the_server_reads_one_and_what_is_said_beside_it_stays(
    tmp_path: Path, line: str, becomes: str | None
) -> None:
    digests = {"old": "a" * 64, "new": "b" * 64, "other": "c" * 64, "shouted": "A" * 64}
    pins = tmp_path / "pins"
    before = f"# what runs\n\nllama=elsewhere {'d' * 64}\n{line.format(**digests)}\n"
    pins.write_text(before)
    if becomes is None:
        with pytest.raises(RecordError, match="pins no checkpoint of digest aaaa"):
            swap_pin(pins, digests["old"], "new/c", digests["new"])
        assert pins.read_text() == before
    else:
        swap_pin(pins, digests["old"], "new/c", digests["new"])
        assert pins.read_text() == before.replace(line.format(**digests), becomes.format(**digests))
        swap_pin(pins, digests["new"], "out/c", digests["old"])  # and back


@pytest.mark.parametrize("location", ["new checkpoints/c", "new#2/c"])
def test_a_place_that_no_line_of_pins_can_name_is_not_written(tmp_path: Path, location: str) -> None:
    pins = tmp_path / "pins"
    pins.write_text(f"out/c {'a' * 64}\n")
    with pytest.raises(RecordError, match="neither white space nor # in its path"):
        swap_pin(pins, "a" * 64, location, "b" * 64)
    assert pins.read_text() == f"out/c {'a' * 64}\n"


def test_a_folder_with_an_equals_sign_in_its_name_is_no_name_of_a_model(tmp_path: Path) -> None:
    folder, pins = tmp_path / "seed=3", tmp_path / "pins"
    folder.mkdir()
    pins.write_text(f"{folder} {'a' * 64}\n")
    swap_pin(pins, "a" * 64, "new/c", "b" * 64)
    assert pins.read_text() == f"new/c {'b' * 64}\n"


# Retraining from stored runs and a log: runs that are like what is logged stay, the latest labels are kept back.


def test_stored_runs_that_are_like_todays_weigh_more(tmp_path: Path) -> None:
    like = list(RunStore(stored(tmp_path / "like", {"a": (200, 0.9)}, seed=1)))
    unlike = list(RunStore(stored(tmp_path / "unlike", {"b": (200, 0.1)}, seed=2)))
    recent = list(RunStore(stored(tmp_path / "recent", {"a": (300, 0.9)}, seed=3)))
    weights = importance([*like, *unlike], recent)
    assert weights.mean() == pytest.approx(1.0, abs=0.25)
    assert weights[:200].mean() > 2 * weights[200:].mean()
    same = importance([*like, *like], recent)
    assert np.quantile(same, 0.9) < 2


@pytest.mark.slow
def test_the_command_trains_on_both_and_keeps_the_latest_labels_back(tmp_path: Path) -> None:
    runs, url = stored(tmp_path / "runs", {"m": (200, 0.5)}), tmp_path / "log.sqlite"
    old = QualityPredictor.load(on_mismatch="ignore")
    series, y = answers(150, seed=9, right=0.8)
    with ScoreLog.open(url) as log:
        write_answers(log, old, series, keep=True)
        log.add_labels([FeedbackLabel(f"r{i}", float(label)) for i, label in enumerate(y.tolist())])
    refused = run("retrain", runs, "--log", url, "--out", tmp_path / "c")
    assert "the stored log-probabilities are raw, those of the log unknown; say what" in refused.output
    words = ("--folds", 2, "--logprobs-mode", "raw")
    done = run("retrain", runs, "--log", url, "--out", tmp_path / "c", *words)
    assert done.exit_code == 0, done.output
    assert "and 105 labelled answers of the log; 45 later ones are left" in done.stderr
    new = QualityPredictor.load(tmp_path / "c", on_mismatch="ignore")
    with ScoreLog.open(url) as log:
        [event] = log.events(RETRAINED)
        paired = pair_scores(new, old, log).labelled
    assert event.details["to"] == new.checkpoint.digest
    assert 60 < event.details["kept"] < 200
    assert paired.group.tolist() == [f"r{i}" for i in range(105, 150)]


def test_a_log_without_log_probabilities_is_refused(tmp_path: Path) -> None:
    with ScoreLog.open(tmp_path / "log.sqlite") as log:
        write_answers(log, QualityPredictor.load(on_mismatch="ignore"), answers(60, seed=1)[0])
    refused = run("retrain", "--log", tmp_path / "log.sqlite", "--out", tmp_path / "c")
    assert refused.exit_code == 1
    assert "the log holds 0 of these answers with log-probabilities" in refused.output
    assert not (tmp_path / "c").exists()
