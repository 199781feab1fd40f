"""Every key has a name if need be, and its own limits: one caller's haste is not another's wait."""

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest
import serving_clients
from serving_clients import LOGPROBS, Served, serving
from tiny import tiny_quality

from metaprobe.production.http.bodies import Refusal
from metaprobe.production.http.keys import Caller, KeyLimits, Keys
from metaprobe.production.http.settings import Settings, SettingsError

callers_keys = serving_clients.callers_keys
KEY_A, KEY_B = "key-of-team-a-0123", "key-of-team-b-0123"
WATCHER = "a-key-of-who-watches-0"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    return path


def test_keys_have_names_in_the_environment_and_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", f"team-a={KEY_A}, padded-0123456789==")
    digest = hashlib.sha256(KEY_B.encode()).hexdigest()
    file = written(tmp_path, f'[team-b]\nsha256 = "{digest}"\nper_minute = 30\nin_flight = 2\n')
    keys = Keys.of(Settings(checkpoint="c", keys_file=file, key_per_minute=600))
    callers = [keys.caller(key) for key in (KEY_A, f" {KEY_B} ", "padded-0123456789==")]
    assert [(caller.name, caller.per_minute, caller.in_flight) for caller in callers if caller] == [
        ("team-a", 600, None),
        ("team-b", 30, 2),
        ("", 600, None),
    ]
    assert KEY_A in keys
    assert f"team-a={KEY_A}" not in keys
    monkeypatch.delenv("METAPROBE_API_KEY")
    assert KEY_B in Keys.of(Settings(checkpoint="c", keys_file=file))  # the file is enough


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[team-a", "is no TOML"),
        ("team-a = 7", "is no caller"),
        ("[team-a]", "is no caller"),
        (f'["team a"]\nkey = "{KEY_A}"', "is no caller"),
        (f'[a]\nkey = "{KEY_A}"\nsha256 = "{"0" * 64}"', "is no caller"),
        (f'[a]\nkey = "{KEY_A}"\nlimit = 7', "is no caller"),
        (f'[a]\nkey = "{KEY_A}"\nper_minute = 0', r"is no caller .*per_minute"),
        (f'[a]\nkey = "{KEY_A}"\nin_flight = true', r"is no caller .*in_flight"),
        ('[a]\nkey = "short"', "fewer than 16"),
        ('[a]\nsha256 = "0"', r"is no caller .*sha256"),
        (f'[a]\nkey = "{KEY_A}"\n[b]\nkey = "{KEY_A}"', "two callers have the same key"),
    ],
)
def test_a_file_of_keys_that_cannot_be_meant_is_refused_and_no_key_is_in_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.delenv("METAPROBE_API_KEY")
    with pytest.raises(SettingsError, match=message) as caught:
        Keys.of(Settings(checkpoint="c", keys_file=written(tmp_path, text)))
    assert KEY_A not in str(caught.value)


def test_a_key_has_its_requests_a_minute_and_gets_them_back_with_time() -> None:
    now = 0.0
    limits, caller = KeyLimits(lambda: now), Caller(b"a", per_minute=2)
    other = Caller(b"b", per_minute=2)
    limits.enter(caller)
    limits.enter(caller)
    with pytest.raises(Refusal, match="2 times a minute; try again in 30 s") as refused:
        limits.enter(caller)
    assert (refused.value.status, refused.value.code, refused.value.headers["retry-after"]) == (
        429,
        "rate_limited",
        "30",
    )
    limits.enter(other)
    now = 30.0
    limits.enter(caller)
    with pytest.raises(Refusal):
        limits.enter(caller)
    slow = Caller(b"c", per_minute=0.5)  # which may ask once, and then waits for its time
    limits.enter(slow)
    with pytest.raises(Refusal, match="try again in 120 s"):
        limits.enter(slow)
    now = 1000.0  # no more than a minute's are saved up
    limits.enter(caller)
    limits.enter(caller)
    with pytest.raises(Refusal):
        limits.enter(caller)


def test_a_key_has_its_requests_at_one_time_and_a_refused_one_takes_no_place() -> None:
    limits, caller = KeyLimits(), Caller(b"a", in_flight=1)
    limits.enter(caller)
    for _ in range(2):
        with pytest.raises(Refusal) as refused:
            limits.enter(caller)
        assert (refused.value.status, refused.value.code) == (429, "key_busy")
    limits.leave(caller)
    limits.enter(caller)


def test_the_server_counts_by_the_names_of_keys_and_holds_each_to_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", f"team-a={KEY_A} team-b={KEY_B} {WATCHER}")
    checkpoint = tiny_quality(tmp_path / "c").path

    def ask(client: Served, key: str) -> httpx.Response:
        return client.post("/v1/score", LOGPROBS, authorization=f"Bearer {key}")

    with serving(checkpoint, key_per_minute=2) as client:
        assert [ask(client, KEY_A).status_code for _ in range(3)] == [200, 200, 429]
        refused: Any = ask(client, KEY_A)
        assert refused.json()["error"]["code"] == "rate_limited"
        assert int(refused.headers["retry-after"]) <= 30
        assert ask(client, KEY_B).status_code == 200
        counts, _, last = (client.get("/metrics", authorization=f"Bearer {WATCHER}") for _ in range(3))
        assert (counts.status_code, last.status_code) == (200, 429)  # what watches the server has its limits too
        for path in ("/metrics", "/dashboard/data", "/dashboard/queue"):
            assert client.get(path, authorization=f"Bearer {KEY_B}").json()["error"]["code"] == "admins_only"
    assert 'metaprobe_key_requests_total{key="team-a",status="200"} 2.0' in counts.text
    assert 'metaprobe_key_requests_total{key="team-b",status="200"} 1.0' in counts.text
    assert KEY_A not in counts.text
