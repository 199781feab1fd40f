"""Files of every kind that an import reads: compressed, tables, large documents; and what becomes of bad lines."""

import gzip
import json
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from click.testing import CliRunner, Result

from metaprobe.cli import main
from metaprobe.records.errors import ImportFileError, MissingExtra
from metaprobe.records.import_store import import_file
from metaprobe.records.importer import read_openai_lines
from metaprobe.records.lines import records_of
from metaprobe.records.logs import logged_answer
from metaprobe.records.logs.logged_answer import elements
from metaprobe.records.store import RunStore

LOGS = Path(__file__).parent / "logs"


def line(number: int, **more: Any) -> dict[str, Any]:
    entries = [
        {"token": token, "logprob": -0.1 * (number + 1), "top_logprobs": [{"token": "x", "logprob": -0.05}]}
        for token in ("a", "b")
    ]
    answer = {"message": {"content": "ab"}, "logprobs": {"content": entries}, "finish_reason": "stop"}
    return {
        "id": f"q{number}",
        "labels": {"correct": number % 2},
        "messages": [{"role": "user", "content": "Which letters?"}],
        "response": {"model": "m", "choices": [answer]},
        **more,
    }


def lines_file(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(f"{held if isinstance(held, str) else json.dumps(held)}\n" for held in lines))
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def told(path: Path) -> list[tuple[Any, ...]]:
    return [
        (r.id, r.labels, r.calls[0].messages, r.calls[0].text, r.calls[0].logprobs.tolist(), r.calls[0].finish_reason)  # type: ignore[union-attr]
        for r in read_openai_lines(path)
    ]


def written_as(kind: str, lines: list[dict[str, Any]], folder: Path) -> Path:
    data = "".join(json.dumps(held) + "\n" for held in lines).encode()
    if kind == "gz":
        (folder / "lines.jsonl.gz").write_bytes(gzip.compress(data))
        return folder / "lines.jsonl.gz"
    table = pa.Table.from_pylist(lines)
    if kind == "parquet":
        pq.write_table(table, folder / "lines.parquet", row_group_size=2)
        return folder / "lines.parquet"
    texts = [{key: value if key == "id" else json.dumps(value) for key, value in held.items()} for held in lines]
    pq.write_table(pa.Table.from_pylist(texts), folder / "lines.parquet")
    return folder / "lines.parquet"


@pytest.mark.parametrize("kind", ["gz", "parquet", "parquet of texts"])
def test_a_file_of_any_kind_gives_what_its_lines_give(kind: str, tmp_path: Path) -> None:
    lines = [line(number) for number in range(5)]
    plain = lines_file(tmp_path / "plain.jsonl", lines)
    assert told(written_as(kind, lines, tmp_path)) == told(plain)


@pytest.mark.parametrize("kind", ["gz", "parquet"])
def test_a_file_that_was_cut_off_is_named_and_not_taken_for_whole(kind: str, tmp_path: Path) -> None:
    path = written_as(kind, [line(number) for number in range(50)], tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ImportFileError, match=f"{path.name}.* (damaged|cut off)"):
        told(path)


def test_an_unread_kind_is_named_with_what_to_do(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([line(1)])
    for make in (pa.ipc.new_stream, pa.ipc.new_file):
        with make(tmp_path / "lines.arrow", table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(ImportFileError, match=r"lines.arrow is an Arrow (file|stream); expected Parquet"):
            told(tmp_path / "lines.arrow")
    (tmp_path / "lines.zst").write_bytes(zstandard.ZstdCompressor().compress(b"{}"))
    with pytest.raises(ImportFileError, match=r"lines.zst is compressed with Zstandard; .* `zstd -d`"):
        told(tmp_path / "lines.zst")
    with closing(sqlite3.connect(tmp_path / "scores.sqlite")) as log:
        log.execute("create table answers (score)")
    with pytest.raises(ImportFileError, match=r"scores.sqlite is a SQLite file; .*--log"):
        told(tmp_path / "scores.sqlite")


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match=r"zstandard is needed here and not installed: pip install '\.\[fit\]'"):
        import_file(LOGS / "inspect" / "sums.eval", RunStore(tmp_path / "runs"))


def test_a_table_that_unpacks_without_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.records.lines.MOST_VALUES", 400_000)
    monkeypatch.setattr("metaprobe.records.lines.MAX_LINE", 1 << 20)
    many = pa.array([np.zeros(500_000, np.int8)], pa.list_(pa.int8()))
    pq.write_table(pa.table({"id": ["a"], "more": many}), tmp_path / "many.parquet", compression="zstd")
    with pytest.raises(ImportFileError, match=r"many.parquet: its \d+ bytes hold 500001 values"):
        told(tmp_path / "many.parquet")
    pq.write_table(pa.table({"id": ["a"], "more": ["x" * (2 << 20)]}), tmp_path / "long.parquet", compression="zstd")
    with pytest.raises(ImportFileError, match=r"long.parquet:1: the row is larger than"):
        told(tmp_path / "long.parquet")


@pytest.mark.parametrize("once", [True, False], ids=["a text that stands in every row", "a page"])
def test_a_table_of_few_bytes_that_unpack_to_many_is_refused_before_its_rows_are_read(
    once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.records.lines.MAX_UNPACKED_BYTES", 1 << 20)
    table = pa.table({"id": [str(number) for number in range(32)], "more": ["x" * (1 << 17)] * 32})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd", use_dictionary=once)
    assert (tmp_path / "bomb.parquet").stat().st_size < 8192
    with pytest.raises(ImportFileError, match=r"bomb.parquet: its \d+ bytes unpack to \d+ or more; expected at most"):
        next(records_of(tmp_path / "bomb.parquet"))


def test_blank_lines_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaprobe.records.lines.MAX_BLANK", 1000)
    path = tmp_path / "blank.jsonl"
    path.write_bytes(b"\n" * 1000 + json.dumps(line(0)).encode())
    assert len(told(path)) == 1
    path.write_bytes(b"\n" * 1001 + json.dumps(line(0)).encode())
    with pytest.raises(ImportFileError, match="blank lines"):
        told(path)


@pytest.mark.parametrize(
    "ids", [pa.array([b"\xff"]), pa.array([datetime(2026, 1, 1, tzinfo=UTC)]), pa.array([Decimal("1.5")])]
)
def test_a_value_that_json_has_not_is_named_with_its_type(ids: pa.Array, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ids, "response": [json.dumps(line(0)["response"])]}), tmp_path / "odd.parquet")
    with pytest.raises(ImportFileError, match=r'odd.parquet:1: "id" is .* \((bytes|datetime|Decimal)\)'):
        told(tmp_path / "odd.parquet")


def test_a_table_of_texts_that_are_no_utf8_is_damaged(tmp_path: Path) -> None:
    buffers = [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    pq.write_table(pa.table({"id": pa.Array.from_buffers(pa.string(), 1, buffers)}), tmp_path / "odd.parquet")
    with pytest.raises(ImportFileError, match="is damaged or no such table"):
        told(tmp_path / "odd.parquet")


def test_bad_lines_go_aside_with_their_reasons_and_nothing_is_lost(tmp_path: Path) -> None:
    lines = [line(0), "{broken", line(1, labels={"correct": 5}), line(0), line(2), b"\xff".decode("latin-1")]
    lines += [line(3), line(4)]
    path = lines_file(tmp_path / "lines.jsonl", lines)
    whole = path.read_bytes().splitlines(keepends=True)
    done = run("import", path, "--out", tmp_path / "runs", "--bad", tmp_path / "bad.jsonl")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["imported"], said["skipped"], said["left_out"]) == (4, 4, 0)
    assert (tmp_path / "bad.jsonl").read_bytes().splitlines() == [whole[at].rstrip(b"\n") for at in (1, 2, 3, 5)]
    assert "4 of 8 lines" in done.stderr
    assert "2 x not one whole JSON object; the first: " in done.stderr
    for message in ("lines.jsonl:2: not JSON", "lines.jsonl:3: label 'correct' is 5", "already used on line 1"):
        assert message in done.stderr
    stopped = run("import", path, "--out", tmp_path / "other", "--strict")
    assert stopped.exit_code == 1
    assert "lines.jsonl:2: not JSON" in stopped.stderr


def test_bad_lines_take_the_place_of_no_file(tmp_path: Path) -> None:
    path, other = tmp_path / "lines.jsonl", tmp_path / "mended.jsonl"
    path.write_text("no JSON\n" + json.dumps(line(0)) + "\n")
    other.write_text("somebody mended this\n")
    for there in (path, other, tmp_path / "absent" / "bad.jsonl"):
        before = there.read_bytes() if there.exists() else None
        refused = run("import", path, "--out", tmp_path / "runs", "--bad", there)
        assert (refused.exit_code, "expected" in refused.output) == (1, True), refused.output
        assert (there.read_bytes() if there.exists() else None) == before
        assert not (tmp_path / "runs").exists()
    assert run("import", path, "--out", tmp_path / "runs", "--bad", tmp_path / "bad.jsonl").exit_code == 0
    assert (tmp_path / "bad.jsonl").read_text() == "no JSON\n"
    path.write_text(json.dumps(line(0)) + "\n")
    assert run("import", path, "--out", tmp_path / "runs", "--bad", tmp_path / "none.jsonl").exit_code == 0
    assert not (tmp_path / "none.jsonl").exists(), "no line was bad"


def test_what_a_log_leaves_out_goes_aside_too(tmp_path: Path) -> None:
    done = run("import", LOGS / "inspect" / "faulty.eval", "--out", tmp_path / "runs", "--bad", tmp_path / "bad.jsonl")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    aside = [json.loads(held) for held in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert {held["kind"] for held in aside} == {"left out"}
    assert len(aside) == said["left_out"]
    assert said["imported"] + len(aside) == 4
    assert {held["source"]["id"] for held in aside} >= {"sum-1"}
    assert "left out: 1 x the sample ended in an error (RuntimeError)" in done.stderr


def test_bytes_are_told_up_to_the_end_of_the_file(tmp_path: Path) -> None:
    for kind in ("plain", "gz", "parquet"):
        lines = [line(number) for number in range(40)]
        path = lines_file(tmp_path / "a.jsonl", lines) if kind == "plain" else written_as(kind, lines, tmp_path)
        seen: list[int] = []
        import_file(path, RunStore(tmp_path / kind), on_bytes=seen.append)
        assert seen == sorted(seen)
        assert seen[-1] == path.stat().st_size, kind


DOCUMENT = {
    "a": [1, {"b": "}]"}],
    "é": '😀 \\"',
    "n": -1.5e-3,
    "list": {"rows": [12, "x]", [], {}, 3.25, None, "ä"], "z": [1]},
    "end": 7,
}


@pytest.mark.parametrize("indent", [None, 1])
def test_elements_are_those_of_the_document_wherever_a_block_ends(
    indent: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.json"
    path.write_text(json.dumps(DOCUMENT, indent=indent, ensure_ascii=False))
    for block in (1, 2, 3, 5, 7, 64):
        monkeypatch.setattr(logged_answer, "_BLOCK_BYTES", block)
        found = list(elements(path, "list", "rows"))
        assert [element for _, element in found] == DOCUMENT["list"]["rows"]  # type: ignore[index]
        assert found[0][0] == {key: DOCUMENT[key] for key in ("a", "é", "n")}
    path.write_text(json.dumps(DOCUMENT["a"], indent=indent))
    assert [element for _, element in elements(path)] == DOCUMENT["a"]


def test_a_document_that_breaks_off_anywhere_is_refused(tmp_path: Path) -> None:
    data = json.dumps(DOCUMENT).encode()
    path = tmp_path / "d.json"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(ImportFileError, match=r"d\.json: character \d+: "):
            list(elements(path, "list", "rows"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"list": {"rows": [1 2]}}', "'2' stands where ',' should"),
        ('{"list": {"rows": [1,]}}', "a comma before ]"),
        ('{"list": 3}', "'3' stands where '{' should"),
        ('{"other": {"rows": []}}', "there is no 'list' in it"),
    ],
)
def test_a_document_that_is_none_is_named(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(text)
    with pytest.raises(ImportFileError, match=r"d\.json: character") as refused:
        list(elements(tmp_path / "d.json", "list", "rows"))
    assert what in str(refused.value)


def test_stated_confidence_alone_is_taken_on_request(tmp_path: Path) -> None:
    answer = {"message": {"content": "4. Confidence: 70%"}}
    path = lines_file(tmp_path / "a.jsonl", [{"id": "a", "response": {"choices": [answer]}}, line(1)])
    assert json.loads(run("import", path, "--out", tmp_path / "none").stdout)["skipped"] == 1
    done = run("import", path, "--out", tmp_path / "runs", "--stated-only")
    assert done.exit_code == 0
    stated = {held.id: held.stated("confidence") for held in RunStore(tmp_path / "runs")}
    assert stated == {"a": 0.7, "q1": None}
