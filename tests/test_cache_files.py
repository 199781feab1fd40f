"""The file of the call cache: killed writers, several processes, damage."""

import asyncio
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import cached_calls
import pytest
from cached_calls import QUESTION, Counting

from metaprobe.llms.base import LLMError
from metaprobe.llms.cache import CachedLLM, CallCache
from metaprobe.records.types import Call

cache = cached_calls.cache


# Puts calls as fast as it can, says so after each, and waits for its end between two of them.
WRITER = """
import sys
from metaprobe.llms.cache import CallCache
from metaprobe.records.types import Call
with CallCache(sys.argv[1]) as cache:
    for i in range(int(sys.argv[3])):
        cache.put(f"{sys.argv[2]}{i}", Call(id=str(i), text="answer " * 100))
        print(i, flush=True)
    sys.stdin.readline()
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_several_processes_share_a_file_and_a_killed_one_loses_no_finished_call(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    killed, *others = [writer(path, name, 30) for name in "kab"]
    with killed:
        assert killed.stdout is not None
        while killed.stdout.readline().strip() != "29":
            pass
        killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    for process in others:
        process.communicate("\n")
    assert [process.returncode for process in others] == [0, 0]
    with CallCache(path) as cache:
        assert len(cache) == 90
        assert all((call := cache.get(f"k{i}")) is not None and call.id == str(i) for i in range(30))


@pytest.mark.parametrize("damage", ["arrays = x'00'", "call = '{}'", "sha256 = NULL", "arrays = NULL", "call = x'ff'"])
def test_a_damaged_row_is_asked_again(cache: CallCache, damage: str) -> None:
    inner = Counting()
    llm = CachedLLM(inner, cache)
    asyncio.run(llm.complete(QUESTION))
    with sqlite3.connect(cache.path) as other:
        other.execute(f"UPDATE calls SET {damage}")
    other.close()
    assert [asyncio.run(llm.complete(QUESTION)).text for _ in range(2)] == ["2", "2"]


def test_a_file_that_is_no_cache_is_named_and_left_alone(tmp_path: Path) -> None:
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"not a database, and long enough to have a header " * 40)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE bank (account)")
    database.close()
    before = noise.read_bytes(), other.read_bytes()
    with pytest.raises(LLMError, match=r"noise\.db is damaged .* move it away"):
        CallCache(noise)
    with pytest.raises(LLMError, match=r"other\.db is a database but no call cache .* choose another file"):
        CallCache(other)
    with pytest.raises(LLMError, match="noise"):
        CallCache(noise / "calls.db")
    assert (noise.read_bytes(), other.read_bytes()) == before


def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with CallCache(path) as cache:
        for i in range(200):
            cache.put(str(i), Call(id=str(i), text="x" * 500))
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    with CallCache(path) as cache, pytest.raises(LLMError, match=r"calls\.db is damaged .* move it away"):
        cache.get("7")


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("[" * 100_000, b""),
        ("[]", b""),
        ("null", b""),
        ('{"arrays": [], "unknown": 1}', b""),
        ('{"arrays": ["logprobs"]}', b"no array"),
        ('{"arrays": [], "messages": 5}', b""),
    ],
)
def test_a_row_of_another_program_is_asked_again(cache: CallCache, text: str, data: bytes) -> None:
    """Its digest is right, as whoever writes the row can make it so."""
    digest = hashlib.sha256(text.encode() + b"\0" + data).hexdigest()
    with sqlite3.connect(cache.path) as database:
        database.execute("INSERT INTO calls VALUES (?, ?, ?, ?)", ("key", text, data, digest))
    assert cache.get("key") is None
