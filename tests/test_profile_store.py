"""The profile store: what `add` returned from is there, once, whoever else was writing and whoever was killed."""

import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaprobe.records.errors import RecordError
from metaprobe.routing.profiles import Observation, ProfileStore

BATCH = 3
WRITER = """
import sys
from metaprobe.routing.profiles import ProfileStore
from metaprobe.routing.profiles import Observation

path, name, batches, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
store = ProfileStore(path)
for batch in range(batches):
    own = [Observation(name, "x", 1.0, f"{name}/{batch}/{i}", float(batch)) for i in range(size)]
    everybodys = Observation("shared", "x", 0.0, f"shared/{batch % 20}", float(batch % 20))
    store.add([*own, everybodys])
    print(batch, flush=True)
"""


def observation(number: int, correct: float = 1.0, agent: str = "a") -> Observation:
    return Observation(agent, "x", correct, id=f"{agent}/{number}", time=float(number))


def writer(path: Path, name: str, batches: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(batches), str(BATCH)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_writers_killed_in_the_middle_lose_nothing_that_add_returned_from_and_repeat_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "profiles.sqlite"
    victims = {name: writer(path, name, 10**9) for name in ("v0", "v1", "v2")}
    others = {name: writer(path, name, 25) for name in ("s0", "s1")}
    everyone = victims | others
    try:
        for process in everyone.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in everyone.values():  # all open a file that is not there yet, at once
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        confirmed = dict.fromkeys(everyone, 0)
        for place, (name, process) in enumerate(victims.items()):
            for _ in range(4 + 3 * place):
                assert process.stdout is not None
                assert process.stdout.readline() == f"{confirmed[name]}\n"
                confirmed[name] += 1
            process.send_signal(signal.SIGKILL)
        for name, process in everyone.items():
            assert process.stdout is not None
            confirmed[name] += process.stdout.read().count("\n")  # to its end
            assert process.wait() == (-signal.SIGKILL if name in victims else 0)
    finally:
        for process in everyone.values():
            with process:  # closes its pipes, waits for its end
                process.kill()

    with ProfileStore(path) as store:
        stored = store.observations()
    assert len({one.id for one in stored}) == len(stored)
    assert [one.id for one in stored if one.agent == "shared"] == [f"shared/{batch}" for batch in range(20)]
    for name in everyone:
        own = {one.id for one in stored if one.agent == name}
        batches = len(own) // BATCH
        assert own == {f"{name}/{batch}/{i}" for batch in range(batches) for i in range(BATCH)}  # whole batches only
        # A victim may have died between the end of its last `add` and telling us of it.
        assert batches - confirmed[name] in ((0, 1) if name in victims else (0,))
    assert {confirmed[name] for name in others} == {25}


def test_threads_of_one_process_share_a_store(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "p.sqlite") as store, ThreadPoolExecutor(4) as pool:
        agents = ["a", "b", "c", "d"]
        added = pool.map(lambda agent: [store.add([observation(n, agent=agent)]) for n in range(10)], agents)
        assert [sum(counts) for counts in added] == [10] * 4
        assert len(store) == 40


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    st.lists(
        st.builds(
            Observation,
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=3),
            st.text(st.characters(codec="utf-8"), max_size=3),
            st.floats(0, 1),
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=5),
            st.floats(-1e12, 1e12),
        ),
        max_size=8,
        unique_by=lambda one: one.id,
    ),
    st.data(),
)
def test_what_is_read_back_is_what_was_added_in_order(
    tmp_path: Path, outcomes: list[Observation], data: st.DataObject
) -> None:
    path = tmp_path / "p.sqlite"
    path.unlink(missing_ok=True)
    arrived = data.draw(st.permutations(outcomes))
    cut = data.draw(st.integers(0, len(outcomes)))
    with ProfileStore(path) as store:
        assert store.add(arrived[:cut]) == cut
        assert store.add(arrived) == len(outcomes) - cut  # the first ones came again
    with ProfileStore(path) as store:
        assert store.observations() == sorted(outcomes, key=lambda one: (one.time, one.id))


def test_only_what_was_before_a_moment_is_read_where_one_is_given(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "p.sqlite") as store:
        store.add(observation(n) for n in range(10))
        assert store.observations(before=4.0) == [observation(n) for n in range(4)]


def test_a_corrected_outcome_takes_the_old_ones_place_at_its_time(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "p.sqlite") as store:
        store.add([observation(1), observation(2)])
        assert store.add([Observation("a", "x", 0.0, id="a/1", time=9.0), observation(2)]) == 1
        assert store.observations() == [observation(1, correct=0.0), observation(2)]
        assert store.add([]) == 0


def test_numpy_numbers_are_stored_as_the_numbers_they_are(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "p.sqlite") as store:
        one = Observation("a", "x", np.float32(0.5), "o", np.int64(3))
        assert [store.add([one]), store.add([one])] == [1, 0]
        assert store.observations() == [Observation("a", "x", 0.5, "o", 3.0)]


def filled(path: Path, n: int = 400) -> Path:
    with ProfileStore(path) as store:
        store.add(observation(number) for number in range(n))
    return path


def damaged(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def test_a_file_that_is_damaged_is_refused_with_its_name_and_a_way_out(tmp_path: Path) -> None:
    path = filled(tmp_path / "p.sqlite")
    whole = path.read_bytes()
    page = len(whole) // 2 // 4096 * 4096
    cases = {
        "header": b"not a database at all" + whole[21:],
        "page": whole[:page] + bytes(4096) + whole[page + 4096 :],
        "value": whole.replace(b"a/77a", b"a/77b", 1),
        "text": whole.replace(b"a/77a", b"a/77\xff", 1),
    }
    for what, content in cases.items():
        assert content != whole, what
        path.write_bytes(content)
        with pytest.raises(RecordError, match=r"p\.sqlite is damaged .*\.recover"), ProfileStore(path) as store:
            store.observations()
    path.write_bytes(whole[:page])
    with pytest.raises(RecordError, match=r"profile store .*p\.sqlite"), ProfileStore(path) as store:
        store.observations()
    path.write_bytes(whole)
    with ProfileStore(path) as store:
        assert len(store.observations()) == 400


def test_another_database_another_format_and_a_file_as_folder_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(RecordError, match=r"other\.sqlite is a database but no profile store \(not ours\)"):
        ProfileStore(other)
    newer = filled(tmp_path / "newer.sqlite", 1)
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(RecordError, match="format 99, this metaprobe writes 1"):
        ProfileStore(newer)
    with pytest.raises(RecordError, match="no folder for the profile store"):
        ProfileStore(newer / "p.sqlite")


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "p.sqlite")
    store.close()
    with pytest.raises(RecordError, match="closed while still in use"):
        store.add([observation(1)])
