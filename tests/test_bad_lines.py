"""One bad line stops nothing, and changes what is read of no other line; bad lines are counted by reason and named."""

import csv
import gzip
import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from import_lines import FULL, RESPONSE, changed, lines_of, write_lines

from metaprobe.cli import main
from metaprobe.papers.collecting.label_runs import read_labels
from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.monitoring.label_files import read_label_file
from metaprobe.records.bad_lines import OTHERS, BadFile, at_line, handling, words_of_reason
from metaprobe.records.errors import ImportFileError, InvalidResponse, RecordError
from metaprobe.records.import_store import import_file
from metaprobe.records.importer import read_openai_lines
from metaprobe.records.lines import iter_csv
from metaprobe.records.outcomes import is_outcomes, read_outcomes
from metaprobe.records.store import RunStore
from metaprobe.training.stored_runs import load_runs
from metaprobe.training.text_data import load_texts

NAMES = ("anna", "bert", "cleo", "dora", "emil")
"""Ids of which no other one comes by changing a sign."""
LINES = [json.dumps(changed(id=name, labels={"correct": len(name) % 2})) for name in NAMES]
OUTCOMES = [json.dumps({"id": name, "agents": {"a": {"answer": "x, y", "correct": 1}}}) for name in NAMES]
FEEDBACK = [json.dumps({"request_id": name, "label": 1}) for name in NAMES]
LABELS = [json.dumps({"call": name, "correct": 1}) for name in NAMES]


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def cells(*values: str) -> str:
    """Returns a row as a spreadsheet writes it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


HEAD = cells("id", "question", "response", "logprobs", "correct")
QUESTIONS = ("Is 4?", "Is, 4?", "", 'Is "4" even,\nor not?', "Is 4?")
ROWS = [cells(name, asked, "yes", "[-0.5, -0.25]", "1") for name, asked in zip(NAMES, QUESTIONS, strict=True)]


def of_lines(path: Path) -> dict[str, Any]:
    found = {}
    for one in read_openai_lines(path):
        [call] = one.calls
        found[one.id] = (call.text, None if call.logprobs is None else call.logprobs.tolist(), one.labels, one.item)
    return found


def of_outcomes(path: Path) -> dict[str, Any]:
    return {one.id: one for one in read_outcomes(path)}


def of_labels(path: Path) -> dict[str, Any]:
    with BadFile.reading(path) as bad:
        return dict(read_labels(path, bad))


KINDS: dict[str, tuple[str, Sequence[str], Callable[[Path], dict[str, Any]]]] = {
    "lines": ("", LINES, of_lines),
    "outcomes": ("", OUTCOMES, of_outcomes),
    "labels": ("", LABELS, of_labels),
    "feedback": ("", FEEDBACK, lambda path: {one.request_id: one for one in read_label_file(path)}),
    "csv": (HEAD, ROWS, of_lines),
}


def read(kind: str, units: Sequence[str]) -> dict[str, Any]:
    """Returns what is read of these lines, by id; nothing where the file is refused as mostly bad."""
    head, _, reader = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "file.csv" if head else "file.jsonl")
        text = "\n".join([*([head] if head else []), *units]) + "\n"
        path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        return reader(path)


def spoilt(text: str) -> st.SearchStrategy[str]:
    """Draws a line that is cut off, has a character more, less or another one, or is another text altogether."""
    places = st.integers(0, max(len(text) - 1, 0))
    signs = st.sampled_from("\"{}[],:\\ '0e\x00\udcffx")
    return st.one_of(
        places.map(lambda at: text[:at]),
        places.map(lambda at: text[at:]),
        st.builds(lambda at, sign: text[:at] + sign + text[at:], places, signs),
        st.builds(lambda at, sign: text[:at] + sign + text[at + 1 :], places, signs),
        st.sampled_from(["{", "[", "{}", "[{", "null", '"', '"a","b', "a,b,c,d,e", ",", '","', "\ufeff{"]),
        st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=30),
    )


@cache
def read_whole(kind: str) -> dict[str, Any]:
    """Returns what is read of all lines of a kind, none of which is spoilt."""
    return read(kind, list(KINDS[kind][1]))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_one_line_dropped_added_or_altered_changes_what_is_read_of_no_other_line(
    kind: str, data: st.DataObject
) -> None:
    units = list(KINDS[kind][1])
    whole = read_whole(kind)
    assert len(whole) == 5
    place = data.draw(st.integers(0, 4))
    name, line = list(whole)[place], units[place]
    how = data.draw(st.sampled_from(["dropped", "altered", "added"]))
    there = [] if how == "dropped" else [data.draw(spoilt(line))]
    now = read(kind, [*units[:place], *there, *units[place + (how != "added") :]])
    others = {key: value for key, value in whole.items() if key != name}
    assert {key: now.get(key) for key in others} == others
    assert name in now or how != "added"


def test_a_quote_left_open_costs_its_own_row_alone_and_a_text_within_a_cell_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"

    def rows(*lines: str) -> tuple[list[str], list[int | None]]:
        path.write_text("\n".join(["id,text", *lines]) + "\n")
        errors: list[ImportFileError] = []
        return [row["id"] for _, row in iter_csv(path, on_error=errors.append)], [error.line for error in errors]

    assert rows("1,a", '2,"b', "3,c", "4,d") == (["1", "3", "4"], [3])
    assert rows("1,a", '2,"b', "3,c", '4,"d"') == (["1", "3", "4"], [3])
    assert rows("1,a", '2,"b', "3,c", '4,"d', 'e"', "5,f") == (["1", "3", "4", "5"], [3])
    # A row of several lines that lacks a cell, or has a quote too many: its text is read as no other row.
    assert rows("1,a", '"2', "x,y", 'z"', "3,c") == (["1", "3"], [3])
    assert rows("1,a", '2,"b "x" ', "foo,bar", 'end"', "3,c") == (["1", "3"], [3])


def test_bytes_that_are_no_text_cost_their_own_row_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,a\n2,\xff\n3,\xc3\xa4\n")
    errors: list[ImportFileError] = []
    read = [(row["id"], row["text"]) for _, row in iter_csv(tmp_path / "a.csv", on_error=errors.append)]
    assert read == [("1", "a"), ("3", "ä")]
    assert [(error.line, error.kind) for error in errors] == [(3, "not UTF-8")]


def test_bad_rows_are_kept_with_their_head_and_can_be_mended_and_imported(tmp_path: Path) -> None:
    path, bad = tmp_path / "a.csv", tmp_path / "bad.csv"
    path.write_text("\n".join([HEAD, *ROWS[:2], ROWS[3].replace("[-0.5, -0.25]", "[-0.5, "), ROWS[2]]) + "\n")
    store = RunStore(tmp_path / "runs")
    assert (import_file(path, store, bad=bad).imported, len(store)) == (3, 3)
    assert bad.read_text() == "\n".join([HEAD, ROWS[3].replace("[-0.5, -0.25]", "[-0.5, ")]) + "\n"
    bad.write_text(bad.read_text().replace('"[-0.5, "', '"[-0.5, -0.25]"'))
    assert import_file(bad, store).imported == 1
    assert [one.id for one in store] == ["anna", "bert", "cleo", "dora"]


def test_a_first_line_that_is_cut_off_is_a_bad_line_and_no_document(tmp_path: Path) -> None:
    for first in ("{", "[", "[{"):
        path = tmp_path / "a.jsonl"
        path.write_text("\n".join([first, *LINES]) + "\n")
        with pytest.warns(UserWarning, match=r"(?s)1 of 6 lines of .*a\.jsonl:1: not JSON"):
            found = of_lines(path)
        assert len(found) == 5


def test_a_line_that_is_too_long_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaprobe.records.lines.MAX_LINE", 2000)
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([LINES[0], "[" + " " * 9000 + "]", LINES[1]]) + "\n")
    with pytest.warns(UserWarning, match=r"(?s)1 of 3 lines of .*a\.jsonl:2: the line is longer than 2000"):
        assert len(of_lines(path)) == 2


OTHER_TOKENS = {"id": "o", "question": "When?", "answer": "In 1984", "tokens": ["In", " 198"], "logprobs": [-0.1, -0.2]}


def test_reasons_are_counted_without_the_values_of_their_lines(tmp_path: Path) -> None:
    others = [OTHER_TOKENS | {"id": f"o{n}", "answer": f"In {1900 + n}"} for n in range(40, 44)]
    labels = [changed(id=f"l{n}", labels={"correct": f"{n} or so"}) for n in range(3)]
    cut = [line[: 30 + n] for n, line in enumerate(LINES)]
    again = [changed(id=name) for name in NAMES[:2]]
    lines = [*LINES, *lines_of(20), *others, *labels, *map(str.encode, cut), *again]
    path = write_lines(tmp_path / "a.jsonl", *(one.encode() if isinstance(one, str) else one for one in lines))
    report = import_file(path, RunStore(tmp_path / "runs"))
    assert sorted(one.count for one in report.reasons.values()) == [2, 3, 4, 5]
    assert (report.bad, report.imported) == (14, 25)
    for one in report.reasons.values():
        assert one.first.startswith(f"{path}:")
        assert f"{one.count} x " in report.said
        assert one.first in report.said


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30), st.floats(allow_nan=False))
def test_a_reason_does_not_hold_the_values_of_its_line(first: str, second: str, number: float) -> None:
    def reason(value: object) -> str:
        with pytest.raises(ImportFileError) as error:
            [*read_openai_lines(write_lines(path, changed(verbalized_confidence=value)), strict=True)]
        return error.value.kind

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        assert reason(first) == reason(second)
        assert reason(3 + abs(number)) == reason(2.5)


def test_reasons_without_end_are_counted_together() -> None:
    bad = BadFile("a.jsonl")
    for number in range(1000):
        letters = "".join(chr(97 + int(digit)) for digit in str(number))
        bad.leave_out(at_line("a.jsonl", number, f"the thing {letters} is odd"))
    assert len(bad.reasons) <= 21
    assert bad.reasons[OTHERS].count + len(bad.reasons) - 1 == bad.bad == 1000


def test_what_a_server_says_of_itself_is_no_reason_of_its_own() -> None:
    assert words_of_reason("the log-probability of token 3 (of 9) is NaN; expected") == words_of_reason(
        "the log-probability of token 17 (of 1,024) is NaN; expected"
    )
    assert words_of_reason('"id" is missing; expected an id') == '"id" is missing'


def test_a_file_whose_lines_are_mostly_bad_changes_nothing_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.records.import_store.HELD_LINES", 3)
    store, path = RunStore(tmp_path / "runs"), tmp_path / "a.jsonl"
    import_file(write_lines(path, *lines_of(10)), store)
    before = {shard.name: shard.read_bytes() for shard in store.shards()}
    told = [{**line, "labels": {"correct": 1}} for line in lines_of(10)]
    new = [changed(id=f"new-{n}") for n in range(100)]  # two shards
    bad = [b"{broken"] * 111
    with pytest.raises(ImportFileError, match=r"111 of 221 lines of .*more than half"):
        import_file(write_lines(path, *told, *new, *bad), store, bad=tmp_path / "bad.jsonl")
    assert {shard.name: shard.read_bytes() for shard in store.shards()} == before
    assert not (tmp_path / "bad.jsonl").exists()
    report = import_file(write_lines(path, *told, *new, *bad[1:]), store)
    assert (report.imported, report.already_stored, report.relabelled, report.bad) == (100, 10, 5, 110)


def test_a_compressed_file_that_is_cut_off_is_refused_and_an_import_keeps_what_it_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(LINES).encode(), compresslevel=0)[:-40])
    with pytest.raises(ImportFileError, match="damaged or cut off"):
        load_runs([path])
    with pytest.raises(ImportFileError, match="damaged or cut off"):
        import_file(path, RunStore(tmp_path / "runs"))
    assert [one.id for one in RunStore(tmp_path / "runs")] == [f"monday/{name}" for name in NAMES[:4]]


def test_ids_of_another_file_make_a_line_bad(tmp_path: Path) -> None:
    first = write_lines(tmp_path / "a.jsonl", *map(str.encode, LINES))
    second = write_lines(tmp_path / "b.jsonl", LINES[0].encode(), changed(id="x"))
    with pytest.warns(UserWarning, match=r"(?s)1 of 2 lines of .*b\.jsonl:1: the id 'monday/anna' is in another"):
        assert len(load_runs([first, second])) == 6
    with pytest.raises(ImportFileError, match="5 of 5 lines of"):
        load_runs([first, first])


def test_whether_a_file_holds_outcomes_is_told_by_most_of_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    path.write_text("\n".join(['{"id": "q"}', *OUTCOMES]))
    assert is_outcomes(path)
    path.write_text("\n".join([OUTCOMES[0], *LINES]))
    assert not is_outcomes(path)


def test_of_a_file_that_is_read_twice_it_is_said_and_kept_once(tmp_path: Path) -> None:
    path, kept = tmp_path / "o.jsonl", tmp_path / "bad.jsonl"
    path.write_text("\n".join([*OUTCOMES, "{"]) + "\n")
    with handling(bad=kept), pytest.warns(UserWarning, match="1 of 6 lines") as said:
        read = [len(read_outcomes(path)) for _ in range(3)]
    assert read == [5, 5, 5]
    assert len(said) == 1
    assert kept.read_text() == "{\n"
    with handling(strict=True), pytest.raises(ImportFileError, match=r"o\.jsonl:6: not JSON"):
        read_outcomes(path)


def test_a_format_is_told_although_the_first_line_is_bad(tmp_path: Path) -> None:
    logs = Path(__file__).parent / "logs"
    output = (logs / "openai-batch" / "chat_output.jsonl").read_text().splitlines()
    path = tmp_path / "output.jsonl"
    path.write_text("\n".join([output[0][:9], *output[1:]]))
    report = import_file(path, RunStore(tmp_path / "runs"))
    assert (report.form, report.bad) == ("openai-batch", 1)


@pytest.fixture(scope="module")
def predictor() -> QualityPredictor:
    return QualityPredictor.load(on_mismatch="ignore")


SHORT = {"question": "Capital?", "answer": "Wien", "tokens": ["W", "ien"], "logprobs": [-0.25, -0.5]}


def test_python_takes_the_lines_that_commands_take(predictor: QualityPredictor) -> None:
    score = predictor.predict({**RESPONSE, "usage": None}).score
    assert predictor.predict(SHORT).score == pytest.approx(score)
    assert predictor.predict(json.dumps(SHORT)).score == pytest.approx(score)
    assert predictor.predict(json.dumps(SHORT).encode()).score == pytest.approx(score)
    entries = RESPONSE["choices"][0]["logprobs"]["content"]  # type: ignore[index]
    assert predictor.predict({"answer": "Wien", "logprobs": entries}).score == pytest.approx(score)
    assert predictor.predict(FULL).score == pytest.approx(predictor.predict(RESPONSE).score)
    for wrong in ({"answer": "Wien"}, SHORT | {"logprobs": -0.25}, SHORT | {"tokens": ["W"]}, {"response": SHORT}):
        with pytest.raises(InvalidResponse):
            predictor.predict(wrong)


def labelled(count: int) -> tuple[list[Any], list[Any]]:
    lines = [{"answer": "ab", "tokens": ["a", "b"], "logprobs": [-0.1 - n % 7 / 10, -0.2]} for n in range(count)]
    return lines, [float(n % 7 < 3 + n % 2) for n in range(count)]


@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
def test_responses_that_cannot_be_read_are_left_out_of_an_adaptation_and_counted(
    predictor: QualityPredictor, tmp_path: Path
) -> None:
    responses, labels = labelled(60)
    responses[3] = {"answer": "Wien", "logprobs": [-0.1], "tokens": ["W"]}
    responses[5] = "no JSON"
    labels[7] = None
    with pytest.warns(UserWarning, match="3 of 60 responses") as said:
        made = predictor.adapt(responses, labels, out=tmp_path / "mine", groups=list(range(60)))
    assert made.checkpoint.manifest.training.n == 57  # type: ignore[union-attr]
    told = next(str(one.message) for one in said if "3 of 60" in str(one.message))
    assert all(f"response {place}: " in told for place in (3, 5, 7))
    with pytest.raises(InvalidResponse):
        predictor.adapt(responses, labels, out=tmp_path / "strict", strict=True)
    with pytest.raises(RecordError, match="more than half"):
        predictor.adapt([*responses[:20], *["no JSON"] * 40], labels, out=tmp_path / "bad")


GRADED = Path(__file__).parent / "logs" / "inspect" / "graded.json"


def archive(path: Path, *, cut: int | None) -> Path:
    """Writes a log as an archive; the sample with this number is cut off."""
    log = json.loads(GRADED.read_text())
    with zipfile.ZipFile(path, "w") as held:
        held.writestr("header.json", json.dumps({key: value for key, value in log.items() if key != "samples"}))
        for number, sample in enumerate(log["samples"]):
            data = json.dumps(sample)
            held.writestr(f"samples/{number}.json", data[:40] if number == cut else data)
    return path


def test_one_damaged_sample_of_an_archive_is_left_out(tmp_path: Path) -> None:
    whole, spoilt = archive(tmp_path / "whole.eval", cut=None), archive(tmp_path / "cut.eval", cut=0)
    sound = import_file(whole, RunStore(tmp_path / "whole"))
    report = import_file(spoilt, RunStore(tmp_path / "runs"), bad=tmp_path / "bad.jsonl")
    assert (report.bad, report.imported) == (1, sound.imported - 1)
    assert "samples/0.json" in next(iter(report.reasons.values())).first
    kept = [json.loads(line)["kind"] for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert sorted(kept) == ["bad", *["left out"] * report.left_out.total()]
    with pytest.raises(ImportFileError, match=r"samples/0\.json"):
        import_file(spoilt, RunStore(tmp_path / "strict"), strict=True)


def test_one_bad_sample_of_a_document_is_left_out(tmp_path: Path) -> None:
    log = json.loads(GRADED.read_text())
    log["samples"][1] = "no sample"
    (tmp_path / "a.json").write_text(json.dumps(log))
    report = import_file(tmp_path / "a.json", RunStore(tmp_path / "runs"))
    assert (report.form, report.bad) == ("inspect", 1)
    assert report.imported + report.left_out.total() == len(log["samples"]) - 1


def text_line(number: int, **more: Any) -> dict[str, Any]:
    """A line of a question and an answer, without log-probabilities."""
    labels = {"correct": number % 2}
    return {
        "id": f"t{number}",
        "question": f"What is {number}?",
        "answer": f"It is {number % 3}",
        "labels": labels,
    } | more


def bare_line(number: int) -> dict[str, Any]:
    """A line of a response, without its question."""
    return {"id": f"t{number}", "labels": {"correct": number % 2}, "response": RESPONSE}


def test_one_line_with_other_signals_or_without_a_question_costs_texts_no_other_line(tmp_path: Path) -> None:
    whole = [text_line(number) for number in range(6)]
    odd = [text_line(6, logprobs=[-0.5]), bare_line(7), text_line(8, answer="")]
    expected = load_texts([write_lines(tmp_path / "whole.jsonl", *whole)])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = load_texts([write_lines(tmp_path / "odd.jsonl", *odd[:1], *whole, *odd[1:])])
    texts = dict(zip(found.prompts, found.answers, strict=True))
    assert texts == dict(zip(expected.prompts, expected.answers, strict=True)) | {"What is 6?": "It is 0"}
    told = "\n".join(str(one.message) for one in said)
    assert "the log-probabilities of 2 labelled answers are not read" in told
    assert "1 labelled answers are left out: they have no text of a user message" in told
    bare = write_lines(tmp_path / "bare.jsonl", *map(bare_line, range(6)))
    with pytest.raises(RecordError, match="no text of a user message"):
        load_texts([bare])


def test_an_id_of_half_a_character_makes_a_line_bad(tmp_path: Path) -> None:
    path = tmp_path / "half.jsonl"
    path.write_text(json.dumps(changed(id="half \ud800")) + "\n" + "\n".join(LINES) + "\n")
    with pytest.warns(UserWarning, match="half of a character"):
        assert [one.item.id for one in read_openai_lines(path)] == list(NAMES)


@pytest.mark.parametrize("name", ["labels.csv", "labels.jsonl"])
def test_one_label_of_bytes_that_are_no_text_costs_no_other_label(name: str, tmp_path: Path) -> None:
    rows = ["request_id,label", *(f"{one},1" for one in NAMES)] if name.endswith("csv") else FEEDBACK
    path = tmp_path / name
    path.write_bytes("\n".join(rows).encode().replace(b"cleo", b"cl\xe9o"))
    with pytest.warns(UserWarning, match="1 of 5 records of .* are bad.*\n.*not UTF-8"):
        assert [one.request_id for one in read_label_file(path)] == [one for one in NAMES if one != "cleo"]
    document = [{"request_id": "anna", "label": 1, "who": "L\xe9a"}]
    path.write_bytes(json.dumps(document, ensure_ascii=False).encode("latin-1"))
    with pytest.raises(ImportFileError, match="0xe9 is not UTF-8"):
        read_label_file(path)
