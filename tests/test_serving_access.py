"""The server answers who has a key, hands on only the headers that it may, and refuses settings that are not safe."""

import http.client
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import serving_clients
from served import KEY, Upstream
from serving_clients import LOGPROBS, PLAIN, Served, serving

from metaprobe.production.http.app import create_app
from metaprobe.production.http.keys import Keys
from metaprobe.production.http.settings import Settings, SettingsError

checkpoint = serving_clients.checkpoint
predictor = serving_clients.predictor
upstream = serving_clients.upstream
callers_keys = serving_clients.callers_keys
served = serving_clients.served


# Keys, headers


@pytest.mark.parametrize("path", ["/v1/score", "/v1/chat/completions", "/metrics", "/elsewhere"])
def test_nothing_but_health_answers_without_a_key(served: Served, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}, {"x-metaprobe-key": ""}):
        method = "GET" if path == "/metrics" else "POST"
        answer = httpx.request(method, served.url + path, headers=headers, **PLAIN)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    health = served.get("/healthz")
    assert health.status_code == 200
    assert len(health.json()["checkpoint"]) == 64


def test_the_key_for_this_server_is_never_handed_on_and_the_callers_is(
    served: Served, upstream: tuple[Upstream, str]
) -> None:
    served.ask(cookie="c=1", x_forwarded_for="1.2.3.4", openai_project="p")
    seen = upstream[0].headers[-1]
    assert not {"authorization", "cookie", "x-forwarded-for", "x-metaprobe-key"} & set(seen)
    assert seen["openai-project"] == "p"
    served.ask(authorization="Bearer callers-own", x_metaprobe_key=KEY)
    seen = upstream[0].headers[-1]
    assert seen["authorization"] == "Bearer callers-own"
    assert KEY not in str(seen)
    served.ask(x_metaprobe_key=KEY)  # and the same key as `Authorization`
    assert KEY not in str(upstream[0].headers[-1])


def test_the_models_are_the_upstreams_and_need_a_key(served: Served, upstream: tuple[Upstream, str]) -> None:
    assert [model.id for model in served.client.models.list()] == ["m"]
    assert KEY not in str(upstream[0].headers[-1])
    assert served.get("/v1/models").status_code == 401


def test_a_header_named_beforehand_reaches_the_upstream(checkpoint: Path, upstream: tuple[Upstream, str]) -> None:
    with serving(checkpoint, upstream[1], forward_headers=("X-Tenant",)) as client:
        client.ask(x_tenant="t1")
    assert upstream[0].headers[-1]["x-tenant"] == "t1"


@pytest.mark.parametrize("stream", [False, True])
def test_headers_that_are_not_ascii_cost_no_answer(served: Served, stream: bool) -> None:
    request = {"model": "m", "stream": stream, "messages": [{"content": "odd-header"}]}
    answer = httpx.post(
        f"{served.url}/v1/chat/completions",
        json=request,
        headers=[(b"authorization", f"Bearer {KEY}".encode()), (b"user-agent", "café".encode())],
        **PLAIN,
    )
    assert answer.status_code == 200
    assert b'"metaprobe"' in answer.content
    if not stream:
        [given] = [value for name, value in answer.headers.raw if name == b"openai-organization"]
        assert given.decode() == "Müller – GmbH"


def test_the_upstreams_key_stands_in_for_the_callers(
    checkpoint: Path, upstream: tuple[Upstream, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAPROBE_UPSTREAM_KEY", "sk-upstream")
    with serving(checkpoint, upstream[1], auth=False) as client:
        client.chat()
        other = client.post("/v1/score", LOGPROBS, host="evil.example")
        assert (other.status_code, other.json()["error"]["code"]) == (403, "bad_host")
        for host, status in (
            ("localhost:80", 200),
            ("LOCALHOST", 200),
            ("[::1]:80", 200),
            ("127.0.0.1", 200),
            ("", 403),
        ):
            assert client.post("/v1/score", LOGPROBS, host=host).status_code == status
        form = client.post("/v1/score", LOGPROBS, content_type="text/plain")
        assert form.status_code == 415
    assert upstream[0].headers[-1]["authorization"] == "Bearer sk-upstream"


def test_request_ids_come_back(served: Served) -> None:
    """The server's own is another for every request, whatever its caller calls it; the caller's comes back beside."""
    named = [served.post("/v1/score", LOGPROBS, x_request_id="mine-1").headers for _ in range(2)]
    assert [one["x-request-id"] for one in named] == ["mine-1", "mine-1"]
    made = [served.post("/v1/score", LOGPROBS).headers for _ in range(2)]
    assert len({one["metaprobe-request-id"] for one in (*named, *made)}) == 4


def test_request_ids_go_upstream_and_come_back(served: Served, upstream: tuple[Upstream, str]) -> None:
    answer = served.ask("no-id", x_request_id="mine-1", x_client_request_id="mine-2")
    seen = upstream[0].headers[-1]
    assert (seen["x-request-id"], seen["x-client-request-id"]) == ("mine-1", "mine-2")
    assert answer.headers["x-request-id"] == "mine-1" != answer.headers["metaprobe-request-id"]
    assert answer.headers["apim-request-id"] == "gate-1"
    made = served.chat("no-id")
    assert made._request_id == upstream[0].headers[-1]["x-request-id"]  # neither named it, so it was named here
    theirs = served.ask(x_request_id="mine-1")
    assert theirs.headers["x-request-id"] == "up-1"


# Addresses


def test_a_head_request_finds_the_server_in_good_health(served: Served) -> None:
    answer = httpx.head(f"{served.url}/healthz", trust_env=False)
    assert (answer.status_code, answer.content) == (200, b"")


def test_what_stands_behind_the_question_mark_reaches_the_upstream(
    served: Served, upstream: tuple[Upstream, str]
) -> None:
    request = {"model": "m", "messages": [{"content": "plain"}]}
    query = "?api-version=2026-01-01&a=%2Fb+c&a="
    assert served.post(f"/v1/chat/completions{query}", request).status_code == 200
    assert upstream[0].addresses[-1] == f"POST /v1/chat/completions{query}"
    refuses = {**request, "messages": [{"content": "refuses-logprobs"}]}
    assert served.post(f"/v1/chat/completions{query}", refuses).status_code == 200
    assert upstream[0].addresses[-2:] == [f"POST /v1/chat/completions{query}"] * 2
    served.get(f"/v1/models{query}", authorization=f"Bearer {KEY}")
    assert upstream[0].addresses[-1] == f"GET /v1/models{query}"


def test_one_model_is_asked_for_as_the_client_writes_it(served: Served, upstream: tuple[Upstream, str]) -> None:
    assert served.client.models.retrieve("org/name:tag-1.5").id == "org/name:tag-1.5"
    for written in ("org/name", "org%2Fname%20x", "m?api-version=1"):
        assert served.get(f"/v1/models/{written}", authorization=f"Bearer {KEY}").status_code == 200
        assert upstream[0].addresses[-1] == f"GET /v1/models/{written}"
    assert served.get("/v1/models/m").status_code == 401
    counts = served.get("/metrics", authorization=f"Bearer {KEY}").text
    assert 'endpoint="/v1/models",status="401"' in counts  # counted and bounded as the list is
    assert 'endpoint="other",status="200"' not in counts


@pytest.mark.parametrize(
    "name",
    [
        "..%2fchat",
        "%2e%2e/admin",
        "a/../../admin",
        "./x",
        "a//b",
        "",
        "..%5cadmin",
        "..;/x",
        "%252e%252e/x",
        "%c0%ae%c0%ae/x",
    ],
)
def test_no_name_of_a_model_leads_to_another_address(served: Served, upstream: tuple[Upstream, str], name: str) -> None:
    before = len(upstream[0].addresses)
    with closing(http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=20)) as connection:
        connection.request("GET", f"/v1/models/{name}", headers={"authorization": f"Bearer {KEY}"})
        assert connection.getresponse().status == 404
    assert len(upstream[0].addresses) == before


def test_a_redirect_from_the_models_is_not_followed(served: Served) -> None:
    answer = served.get("/v1/models/moved", authorization=f"Bearer {KEY}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_redirect")
    assert "location" not in answer.headers


# Answers that are not shared


def test_a_cookie_of_the_upstream_is_neither_kept_nor_passed_on(served: Served, upstream: tuple[Upstream, str]) -> None:
    for _ in range(2):
        answer = served.ask()
        assert "set-cookie" not in answer.headers
    assert "cookie" not in upstream[0].headers[-1]


def test_neither_proxies_nor_passwords_of_the_machine_are_used(
    checkpoint: Path, upstream: tuple[Upstream, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passwords = tmp_path / "netrc"
    passwords.write_text("machine 127.0.0.1 login who password what\n")
    monkeypatch.setenv("NETRC", str(passwords))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # nobody listens there
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(checkpoint, upstream[1]) as client:
        answer = client.ask()
    assert answer.status_code == 200
    assert "authorization" not in upstream[0].headers[-1]


# Settings


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/score", 405), ("POST", "/v1/images", 404), ("POST", "/v1/score/", 404)]
)
def test_an_address_that_is_not_there_is_answered_with_those_that_are(
    served: Served, method: str, path: str, status: int
) -> None:
    answer = httpx.request(method, f"{served.url}{path}", headers={"authorization": f"Bearer {KEY}"}, **PLAIN)
    assert answer.status_code == status
    assert "POST /v1/score" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"auth": False, "host": "0.0.0.0"}, "bind to 127.0.0.1"),
        ({"auth": False, "host": "example.com"}, "bind to 127.0.0.1"),
        ({"gate_finish_reason": "w" * 65}, "expected a word"),
        ({"upstream": "ftp://x/v1"}, "is not a base URL"),
        ({"upstream": "http://user:secret@x/v1"}, "holds a user or password"),
        ({"upstream": "http://x:port/v1"}, "cannot be read"),
        ({"upstream": "http://x/v1?key=secret"}, "is not a base URL"),
        ({"gate": Path("g")}, "no upstream is given"),
        ({"forward_headers": ("Authorization",)}, "not one that may be handed on"),
        ({"forward_headers": ("a b",)}, "not one that may be handed on"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0; expected a number above 0"),
        ({"max_body_bytes": 0}, "max_body_bytes is 0; expected a number from 1"),
        ({"gate_stop": 1.0}, "above 0 and below 1"),
        ({"gate_finish_reason": "tool_calls"}, "carry out a tool call"),
        ({"gate_finish_reason": "function_call"}, "carry out a tool call"),
        ({"gate_finish_reason": ""}, "expected a word"),
        ({"gate_escalate": 0.0}, "above 0 and below 1"),
        ({"gate_stop": 0.05, "gate_escalate": 0.1}, "give the smaller share to escalate"),
        ({"canary_share": 1.1}, "from 0 and up to 1"),
        ({"port": 65536}, "port is 65536; expected a number from 0 and up to 65535"),
        ({"port": -1}, "port is -1"),
        ({"grace_s": -1}, "grace_s is -1; expected a number from 0"),
        ({"key_in_flight": 0}, "key_in_flight is 0"),
        ({"upstream": "http://x/v1#part"}, "is not a base URL"),
        ({"upstream": "http:///v1"}, "is not a base URL"),
    ],
)
def test_settings_that_are_not_safe_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        Settings(checkpoint=Path("c"), **wrong)
    assert "secret" not in str(caught.value)


def test_a_key_that_no_header_can_carry_is_not_taken_for_the_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("é" * 20, "a\nb"):
        monkeypatch.setenv("METAPROBE_UPSTREAM_KEY", key)
        with pytest.raises(SettingsError, match="METAPROBE_UPSTREAM_KEY holds characters"):
            Settings(checkpoint=Path("c")).upstream_key()
    monkeypatch.setenv("METAPROBE_UPSTREAM_KEY", " key \n")
    assert Settings(checkpoint=Path("c")).upstream_key() == "key"


@pytest.mark.parametrize(
    ("keys", "message"), [("", "no key for callers"), ("short", "fewer than 16"), ("é" * 20, "ASCII")]
)
def test_keys_that_protect_nothing_are_refused(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, keys: str, message: str
) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", keys)
    settings = Settings(checkpoint=checkpoint)
    for start in (Keys.of, create_app):
        with pytest.raises(SettingsError, match=message):
            start(settings)
    assert repr(keys) not in repr(settings) or not keys
