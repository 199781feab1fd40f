"""An endpoint's errors decide whether to ask again; some parts of them are shown, and some never are."""

from collections.abc import Mapping

import httpx
import openai
import pytest
from asked_endpoint import KEY

from metaprobe.llms.endpoint import MAX_REASON, EndpointError, Redactor, endpoint_error, retry_after_s

ASKED = httpx.Request("POST", "http://here/v1/chat/completions")
CLIENT = openai.AsyncOpenAI(api_key=KEY, base_url="http://here/v1", default_headers={"x-proxy-token": "planted-too"})


def meant(error: Exception) -> EndpointError:
    return endpoint_error(
        error, address="http://here/v1", timeout_s=7, max_wait_s=60, redact=Redactor(CLIENT, harmless=["plain"])
    )


def answered(status: int, body: object = None, headers: Mapping[str, str] | None = None) -> EndpointError:
    response = httpx.Response(status, request=ASKED, headers=headers)
    return meant(openai.APIStatusError("", response=response, body=body))


@pytest.mark.parametrize(
    ("status", "said", "passing", "refused"),
    [
        (400, "", False, True),
        (422, "", False, True),
        (401, "", False, False),
        (404, "", False, False),
        (408, "", True, False),
        (409, "", True, False),
        (425, "", True, False),
        (429, "", True, False),
        (499, "", False, False),
        (500, "", True, False),
        (500, "1 validation error for Body", False, True),  # as llama-cpp-python answers what it cannot accept
        (502, "1 validation error for Body", True, False),
        (503, "", True, False),
    ],
)
def test_what_a_status_means(status: int, said: str, passing: bool, refused: bool) -> None:
    error = answered(status, {"message": said})
    assert (error.passing, error.refused) == (passing, refused)
    assert str(error).startswith(f"http://here/v1 answered {status}: {said}")


def test_openais_own_word_on_asking_again_counts_for_more_than_the_status() -> None:
    assert answered(404, headers={"x-should-retry": "true"}).passing
    assert not answered(503, headers={"x-should-retry": "false"}).passing
    assert answered(503, headers={"x-should-retry": "maybe"}).passing
    assert not answered(429, {"code": "insufficient_quota"}, {"x-should-retry": "true"}).passing
    assert not answered(429, {"code": "billing_hard_limit_reached"}).passing


def test_a_wait_is_told_only_of_what_passes_and_up_to_what_is_allowed() -> None:
    wait = {"retry-after": "60"}
    assert (answered(429, headers=wait).retry_after_s, answered(429, headers=wait).passing) == (60, True)
    assert answered(400, headers=wait).retry_after_s is None
    assert answered(429).retry_after_s is None
    long = answered(503, {"message": "busy"}, {"retry-after": "61"})
    assert not long.passing
    assert str(long).endswith("answered 503: busy; it asks to wait 61 s, more than the 60 s allowed here: try later")
    assert retry_after_s({"retry-after": "0"}) == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"message": "slow down", "detail": "more"}, "slow down"),
        ({"detail": "not here"}, "not here"),
        ({"error": "no model"}, "no model"),
        ({"code": 7}, "{'code': 7}"),
        ({"detail": [{"loc": ["body", "n"], "msg": "too large"}, {"msg": "odd"}, 3]}, "body.n: too large; : odd"),
        ({"detail": [3]}, "[3]"),
        ("  plain\n  text ", "plain text"),
        (None, "Too Many Requests"),
    ],
)
def test_the_servers_own_words_are_passed_on(body: object, said: str) -> None:
    assert str(answered(429, body)) == f"http://here/v1 answered 429: {said}"


def test_long_words_are_cut_and_secrets_taken_out() -> None:
    exact = MAX_REASON - len("http://here/v1 answered 429: ")
    assert str(answered(429, "x" * exact)).endswith("x" * exact)
    cut = str(answered(429, "x" * (exact + 1)))
    assert len(cut) == MAX_REASON
    assert cut.endswith("xx…")
    told = str(answered(429, f"{KEY} planted-too sk-abcdefgh hf_abcdef Bearer abc= sk-short plain"))
    assert told.endswith("429: [secret] [secret] [secret] [secret] [secret] sk-short plain")


def test_of_two_secrets_that_begin_alike_the_longer_one_goes_whole() -> None:
    client = openai.AsyncOpenAI(
        api_key="abc", default_headers={"x-first-token": "abcdef", "x-second-token": "abcdefghi"}
    )
    assert Redactor(client)("sent abcdefghi and abcdef and abc.") == "sent [secret] and [secret] and [secret]."
