"""Dates and ids that a spreadsheet has changed are refused or said, and never read as something else."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.cli import main
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.label_files import read_label_file
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.records.errors import ImportFileError
from metaprobe.records.spreadsheets import IdFault

DAY_0 = datetime(1899, 12, 30, tzinfo=UTC)


def sheet(path: Path, ids: list[str], time: str = "") -> Path:
    path.write_text("request_id,label,time\n" + "".join(f'"{name}",1,{time}\n' for name in ids))
    return path


@pytest.mark.parametrize("day", ["45321.5", "45321", "44197", "60000.25"])
def test_a_date_as_days_since_1900_is_refused_with_the_day_that_it_means(day: str, tmp_path: Path) -> None:
    meant = (DAY_0 + timedelta(days=float(day))).strftime("%Y-%m-%dT%H:%M:%SZ")
    with pytest.raises(ImportFileError, match=f"record 2: time '{day}'.*spreadsheet.*{meant}"):
        read_label_file(sheet(tmp_path / "labels.csv", ["a"], day))
    line = {"request_id": "a", "label": 1, "time": float(day)}
    (tmp_path / "labels.jsonl").write_text(json.dumps(line))
    with pytest.raises(ImportFileError, match=meant):
        read_label_file(tmp_path / "labels.jsonl")


@pytest.mark.parametrize(
    "time", ["20240131", "20240131120000", "0", "-5", "1e15", "1970-01-01", "0001-01-01", "31/1/2024"]
)
def test_what_cannot_be_the_time_of_a_label_is_refused(time: str, tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match=r"record 2: time .*expected seconds since 1970"):
        read_label_file(sheet(tmp_path / "labels.csv", ["a"], time))


@given(
    st.datetimes(datetime(2000, 1, 2), datetime(2099, 1, 1)),
    st.sampled_from(["{:%Y-%m-%d %H:%M:%S}", " {:%Y-%m-%dT%H:%M:%S}Z ", "{:%Y-%m-%d}"]),
)
def test_a_date_that_is_written_out_is_read(when: datetime, form: str) -> None:
    from metaprobe.production.monitoring.label_files import _time

    expected = when.replace(tzinfo=UTC, microsecond=0)
    if "%H" not in form:
        expected = expected.replace(hour=0, minute=0, second=0)
    assert _time(form.format(when)) == expected.timestamp()
    assert _time(expected.timestamp()) == expected.timestamp()


@pytest.mark.parametrize("name", ["1.23457E+15", "1,23457E+15", "1E+20", "9.1e+18"])
def test_records_whose_id_a_spreadsheet_has_rounded_are_left_out_and_named(name: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="rounded as spreadsheets") as told:
        labels = read_label_file(sheet(tmp_path / "labels.csv", ["a", name]))
    assert [label.request_id for label in labels] == ["a"]
    assert repr(name) in str(told[0].message)


@pytest.mark.parametrize("name", ["r1", "1234567890123456", "12e10", "1e5", "a1.0", "chatcmpl-9E+1x", "0000", "3f-2.0"])
def test_sound_ids_have_no_fault(name: str) -> None:
    assert IdFault.of(name) is None


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        (" r1", "blanks"),
        ("r1\t", "blanks"),
        ("r 1", "blanks"),
        ("r1\u00a0", "blanks"),
        ("r\u200b1", "invisible"),
        ("\ufeffr1", "invisible"),
        ("1234567890123450000", "zeros"),
        ("12345.0", ".0 at the end"),
    ],
)
def test_ids_that_were_probably_changed_are_said_with_the_cause(name: str, cause: str, tmp_path: Path) -> None:
    [fault] = IdFault.list_all(["r2", name, name])
    assert fault.startswith(f"1 id ({name!r})")
    assert cause in fault
    said: list[str] = []
    lines = [{"request_id": one, "label": 1} for one in ("r2", name)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = read_label_file(tmp_path / "labels.jsonl", say=said.append)
    assert [one.request_id for one in read] == ["r2", name], "another id is nobody's to guess"
    assert any(fault in line for line in said)


def test_the_command_names_labels_of_unknown_answers_with_the_likely_cause(tmp_path: Path) -> None:
    url = tmp_path / "log.sqlite"
    with ScoreLog.open(url) as log:
        for name in ("r1", "r2"):
            log.write(Entry(request_id=name, time=1.7e9, model="m", checkpoint="c", score=0.5))
    path = sheet(tmp_path / "labels.csv", ["r1", " r2", "r9"])
    done = CliRunner().invoke(main, ["feedback", str(path), "--log", str(url)])
    assert done.exit_code == 0, done.output
    assert "2 are of answers that the log does not hold" in done.stderr
    assert "' r2', 'r9'" in done.stderr
    assert "of these, 1 id (' r2'): blanks" in done.stderr
    assert "without blanks, 1 of these ids are in the log" in done.stderr
