"""A cascade: the weak model's answer is scored, and the strong one is asked where it must be, by any OpenAI client."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from served import TOKENS, Upstream, running, small_checkpoint

from metaprobe.llms.pricing import Price
from metaprobe.papers.policies.explore import EpsilonGreedy
from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.cascade import AsyncCascade, Cascade, CascadeAnswer, Tier
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.types import Decision
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Outcome, State
from metaprobe.training.evidence import Evidence

GOOD, BAD = [0.1 - 0.001 * i for i in range(8)], [0.4 * i for i in range(8)]
"""Loss of log-probability of each token."""
WEAK, STRONG = Price(1.0, 2.0), Price(10.0, 20.0)
MESSAGES = [{"role": "user", "content": "plain"}]

Completion = dict[str, Any]


@pytest.fixture(scope="module")
def predictor(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> QualityPredictor:
    return QualityPredictor(small_checkpoint(tmp_path_factory.mktemp("checkpoints") / "quality", evidence))


def said(model: str, losses: list[float] | None, **message: Any) -> Completion:
    """A completion of eight tokens, of which the last says the text; without log-probabilities where there are
    no losses."""
    tokens = [*[""] * 7, message.get("content") or model]
    entries = [{"token": token, "logprob": -loss} for token, loss in zip(tokens, losses or (), strict=False)]
    content = None if losses is None else {"content": entries}
    choice = {"message": {"role": "assistant", "content": model, **message}, "logprobs": content}
    usage = {"prompt_tokens": 100, "completion_tokens": 50}
    return {"id": f"c-{model}", "model": "m", "choices": [choice | {"finish_reason": "stop"}], "usage": usage}


class StubClient:
    """The part of `openai.OpenAI` that a cascade uses; answers or fails as each model's function says."""

    def __init__(self, **answers: Callable[[], Completion]) -> None:
        self.answers = answers
        self.requests: list[dict[str, Any]] = []
        self.chat = self
        self.completions = self

    def create(self, **request: Any) -> Any:
        self.requests.append(request)
        return self.answers[request["model"]]()

    @property
    def asked(self) -> list[str]:
        return [request["model"] for request in self.requests]


class AsyncStubClient(StubClient):
    """The same of `openai.AsyncOpenAI`."""

    async def create(self, **request: Any) -> Any:
        await asyncio.sleep(0)
        return super().create(**request)


def failing() -> Completion:
    raise ConnectionError("the server is away")


Ask = Callable[..., tuple[CascadeAnswer, StubClient]]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, predictor: QualityPredictor) -> Ask:
    """Asks once, of both kinds of cascades: the answer, and the client that both models were asked by."""

    def asked(
        weak: Callable[[], Completion],
        strong: Callable[[], Completion] = lambda: said("strong", None),
        body: dict[str, Any] | None = None,
        **options: Any,
    ) -> tuple[CascadeAnswer, StubClient]:
        kind, stub = (Cascade, StubClient) if request.param == "sync" else (AsyncCascade, AsyncStubClient)
        client = stub(weak=weak, strong=strong)
        cascade = kind(Tier(client, "weak", WEAK), Tier(client, "strong", STRONG), predictor, **options)
        made = cascade.chat.completions.create(**{"messages": MESSAGES, **(body or {})})
        return asyncio.run(made) if request.param == "async" else made, client

    return asked


def test_a_good_answer_is_kept_and_the_strong_model_is_not_asked(ask: Ask, predictor: QualityPredictor) -> None:
    response = said("weak", GOOD)
    answer, client = ask(lambda: response, threshold=0.7)
    assert client.asked == ["weak"]
    assert answer.response is answer.weak is response
    assert (answer.answered_by, answer.strong) == ("weak", None)
    assert answer.verdict == predictor.predict(response)
    assert answer.cost_usd == pytest.approx(100e-6 * 1.0 + 50e-6 * 2.0)
    assert answer.decision is not None
    assert answer.decision.action == "execute"
    assert f"c {answer.verdict.score:.3f}" in answer.reason


def test_a_bad_answer_is_asked_of_the_strong_model_and_both_are_paid_for(ask: Ask) -> None:
    answer, client = ask(lambda: said("weak", BAD), threshold=0.7)
    assert client.asked == ["weak", "strong"]
    assert answer.response["choices"][0]["message"]["content"] == answer.answered_by == "strong"
    assert answer.weak["choices"][0]["message"]["content"] == "weak"
    assert answer.verdict is not None
    assert answer.verdict.score < 0.7
    assert answer.cost_usd == pytest.approx(100e-6 * 11.0 + 50e-6 * 22.0)


def test_the_threshold_decides_and_without_one_the_checkpoints_own_does(ask: Ask, predictor: QualityPredictor) -> None:
    score = predictor.predict(said("weak", BAD)).score or 0.0
    flag = predictor.checkpoint.manifest.thresholds["flag"]
    assert flag < score < 0.7
    assert ask(lambda: said("weak", BAD), threshold=score + 0.001)[0].answered_by == "strong"
    assert ask(lambda: said("weak", BAD), threshold=score - 0.001)[0].answered_by == "weak"
    assert ask(lambda: said("weak", BAD))[0].answered_by == "weak"
    assert "checkpoint's `flag`" in ask(lambda: said("weak", BAD))[0].reason
    assert ask(lambda: said("weak", [2.0] * 8))[0].answered_by == "strong"
    # 0.5 is the paper's own value: given, it goes before the checkpoint's
    assert "theta, as given" in ask(lambda: said("weak", BAD), threshold=0.5)[0].reason


def test_each_model_gets_the_callers_request_and_its_own_options(predictor: QualityPredictor) -> None:
    client = StubClient(weak=lambda: said("weak", BAD), strong=lambda: said("strong", None))
    weak, strong = Tier(client, "weak", options={"temperature": 0.2}), Tier(client, "strong", options={"seed": 3})
    given = {"messages": MESSAGES, "max_tokens": 7, "temperature": 1.0}
    Cascade(weak, strong, predictor, threshold=0.7).chat.completions.create(model="weak", **given)
    assert client.requests == [
        {"messages": MESSAGES, "max_tokens": 7, "temperature": 0.2, "model": "weak", "logprobs": True},
        {"messages": MESSAGES, "max_tokens": 7, "temperature": 1.0, "model": "strong", "seed": 3},
    ]


CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (said("weak", GOOD, tool_calls=[CALL]), "tool call"),
        (said("weak", GOOD, content="I look it up.", tool_calls=[CALL]), "tool call"),
        (said("weak", None), "log-probabilities"),
        (said("weak", GOOD, content=None, refusal="I cannot."), "refusal"),
    ],
)
def test_what_cannot_be_judged_has_no_verdict_and_is_asked_again_or_kept(
    ask: Ask, response: Completion, why: str
) -> None:
    answer, client = ask(lambda: response, threshold=0.0)
    assert (answer.verdict, answer.decision) == (None, None)
    assert client.asked == ["weak", "strong"]
    assert "weak is not judged: " in answer.reason
    assert why in answer.reason
    kept, client = ask(lambda: response, threshold=1.0, unjudged="keep")
    assert (kept.response, kept.verdict, client.asked) == (response, None, ["weak"])
    assert why in kept.reason


def test_an_error_is_raised_or_falls_through_as_asked(ask: Ask) -> None:
    with pytest.raises(ConnectionError, match="the server is away"):
        ask(failing)
    answer, client = ask(failing, on_weak_error="strong")
    assert (answer.answered_by, answer.weak, answer.verdict, client.asked) == ("strong", None, None, ["weak", "strong"])
    assert answer.reason == "weak failed (ConnectionError: the server is away)"
    assert answer.cost_usd == pytest.approx(100e-6 * 10.0 + 50e-6 * 20.0)
    with pytest.raises(ConnectionError):
        ask(lambda: said("weak", BAD), failing, threshold=0.7)
    answer, client = ask(lambda: said("weak", BAD), failing, threshold=0.7, on_strong_error="weak")
    assert (answer.answered_by, answer.strong, client.asked) == ("weak", None, ["weak", "strong"])
    assert answer.reason.endswith("; strong failed (ConnectionError: the server is away)")
    with pytest.raises(ConnectionError):  # there is no answer to fall back on
        ask(failing, failing, on_weak_error="strong", on_strong_error="weak")


def test_a_request_that_cannot_be_answered_is_refused_before_anything_is_asked(predictor: QualityPredictor) -> None:
    client = StubClient()
    cascade = Cascade(Tier(client, "weak"), Tier(client, "strong"), predictor)
    for body, message in (
        ({"stream": True}, r"stream=True: a cascade reads the whole answer .*\(metaprobe\.watch\)"),
        ({"n": 2}, "n=2: a cascade judges one answer"),
        ({"model": "strong"}, "model='strong': this cascade asks weak and, where it must, strong; leave model out"),
    ):
        with pytest.raises(RecordError, match=message):
            cascade.chat.completions.create(messages=MESSAGES, **body)
    assert client.requests == []
    with pytest.raises(AttributeError, match=r"a cascade has chat\.completions\.create, and no 'stream'"):
        cascade.chat.completions.stream(messages=MESSAGES)


def test_options_that_do_not_fit_together_are_refused(predictor: QualityPredictor) -> None:
    weak, strong = Tier(StubClient(), "weak"), Tier(StubClient(), "strong")
    for options, message in (
        ({"threshold": 0.5, "policy": PaperRules()}, "threshold and policy were given; give one"),
        ({"threshold": 1.5}, "theta is 1.5; expected a number from 0 to 1"),
        ({"unjudged": "drop"}, "unjudged is 'drop'; expected one of strong, keep"),
        ({"on_weak_error": "weak"}, "on_weak_error is 'weak'; expected one of raise, strong"),
        ({"on_strong_error": "strong"}, "on_strong_error is 'strong'; expected one of raise, weak"),
    ):
        with pytest.raises(RecordError, match=message):
            Cascade(weak, strong, predictor, **options)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="predictor is a str; expected a QualityPredictor"):
        Cascade(weak, strong, "out/quality")  # type: ignore[arg-type]


def test_a_client_of_the_other_kind_is_named(predictor: QualityPredictor) -> None:
    waiting, plain = AsyncStubClient(weak=failing), StubClient(weak=lambda: said("weak", GOOD))
    with pytest.raises(TypeError, match="the client of weak is asynchronous: take AsyncCascade"):
        Cascade(Tier(waiting, "weak"), Tier(waiting, "strong"), predictor).chat.completions.create(messages=MESSAGES)
    cascade = AsyncCascade(Tier(plain, "weak"), Tier(plain, "strong"), predictor)
    with pytest.raises(TypeError, match="the client of weak is synchronous: take Cascade"):
        asyncio.run(cascade.chat.completions.create(messages=MESSAGES))


def test_a_cost_without_usage_is_none(ask: Ask) -> None:
    assert ask(lambda: said("weak", GOOD) | {"usage": None})[0].cost_usd is None


def test_openais_own_models_have_their_list_price_at_openai_only() -> None:
    with openai.OpenAI(api_key="k") as there, openai.OpenAI(api_key="k", base_url="http://127.0.0.1:9/v1") as here:
        assert Tier(there, "gpt-4o-mini").known_price == Price(0.15, 0.6)
        assert Tier(here, "gpt-4o-mini").known_price is None
        assert Tier(here, "gpt-4o-mini", WEAK).known_price == WEAK


class Told:
    """A policy that notes what it is asked and told."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.outcomes: dict[str, Outcome] = {}

    def decide(self, state: State, legal_actions: Any) -> Decision:
        self.states.append(state)
        assert list(legal_actions) == ["execute", "ask"]
        return Decision(state.decision_id, state.point, "ask")

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        self.outcomes[decision_id] = outcome


def test_a_policy_of_ones_own_sees_the_weak_models_name_and_is_told_the_cost(ask: Ask) -> None:
    policy = Told()
    answer, _ = ask(lambda: said("weak", GOOD), policy=policy)
    (state,) = policy.states
    assert (state.agent, state.point) == ("weak", "assess")
    assert state.signals.value("confidence") == answer.verdict.score  # type: ignore[union-attr]
    assert state.features[""] == {"spent_usd": pytest.approx(2e-4), "price_usd": pytest.approx(2e-3)}
    assert answer.answered_by == "strong"
    assert policy.outcomes == {state.decision_id: Outcome(cost_usd=answer.cost_usd)}


def test_exploration_writes_down_its_propensities(ask: Ask) -> None:
    answer, _ = ask(lambda: said("weak", GOOD), policy=EpsilonGreedy(PaperRules(theta=0.6), epsilon=0.2))
    assert answer.decision is not None
    assert answer.decision.propensities == pytest.approx({"execute": 0.9, "ask": 0.1})


def test_an_answer_is_that_of_the_response_it_kept(ask: Ask) -> None:
    answer, _ = ask(lambda: said("weak", GOOD))
    assert answer.keys() == answer.response.keys()
    assert "choices" not in repr(answer)  # who asks what came of it does not want the whole response
    with pytest.raises(AttributeError):
        answer.nothing_of_the_kind  # noqa: B018


def test_threads_may_share_a_cascade(predictor: QualityPredictor) -> None:
    together = threading.Barrier(8)

    def weak() -> Completion:
        together.wait(timeout=20)
        return said("weak", BAD)

    client = StubClient(weak=weak, strong=lambda: said("strong", None))
    cascade = Cascade(Tier(client, "weak", WEAK), Tier(client, "strong", STRONG), predictor, threshold=0.7)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: cascade.chat.completions.create(messages=MESSAGES), range(64)))
    assert (cascade.counts.questions, cascade.counts.by_strong) == (64, 64)


# The real client, against a server on this machine


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[Upstream, str]]:
    server = Upstream()
    with running(server) as (url, _):
        yield server, f"{url}/v1"


def test_the_real_client_is_asked_twice_and_its_answer_comes_back_whole(
    upstream: tuple[Upstream, str], predictor: QualityPredictor
) -> None:
    server, url = upstream
    server.bodies.clear()
    with openai.OpenAI(base_url=url, api_key="k", max_retries=0, timeout=20) as client:
        weak, strong = Tier(client, "m", WEAK), Tier(client, "strong", STRONG)
        answer = Cascade(weak, strong, predictor, threshold=1.0).chat.completions.create(messages=MESSAGES)
        kept = Cascade(weak, strong, predictor, threshold=0.0).chat.completions.create(messages=MESSAGES)
    assert [(body["model"], body.get("logprobs")) for body in server.bodies] == [
        ("m", True),
        ("strong", None),
        ("m", True),
    ]
    assert isinstance(answer.response, openai.types.chat.ChatCompletion)
    assert (answer.model, kept.model) == ("strong", "m")
    assert answer.choices[0].message.content == "".join(token for token, _ in TOKENS)
    assert answer.verdict == kept.verdict == predictor.predict(answer.weak)
    assert answer.cost_usd == pytest.approx(3e-6 * 11.0 + len(TOKENS) * 1e-6 * 22.0)


def test_the_real_asynchronous_client_does_the_same_and_its_errors_fall_through(
    upstream: tuple[Upstream, str], predictor: QualityPredictor
) -> None:
    _, url = upstream

    async def run() -> tuple[CascadeAnswer, CascadeAnswer]:
        options: dict[str, Any] = {"api_key": "k", "max_retries": 0, "timeout": 20}
        async with (
            openai.AsyncOpenAI(base_url=url, **options) as client,
            openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", **options) as away,
        ):
            there, gone = Tier(client, "m", WEAK), Tier(away, "m", WEAK)
            both = AsyncCascade(there, Tier(client, "strong", STRONG), predictor, threshold=1.0)
            fallen = AsyncCascade(gone, Tier(client, "strong", STRONG), predictor, on_weak_error="strong")
            return (
                await both.chat.completions.create(messages=MESSAGES),
                await fallen.chat.completions.create(messages=MESSAGES),
            )

    answer, fallen = asyncio.run(run())
    assert (answer.model, answer.verdict) == ("strong", predictor.predict(answer.weak))
    assert fallen.model == "strong"
    assert fallen.reason.startswith("m failed (APIConnectionError: ")


def ended(model: str, content: Any = "", **choice: Any) -> Completion:
    """A response of the shape of `said` whose choice is another."""
    made = said(model, GOOD, content=content)
    made["choices"][0] |= choice
    return made


BROKEN: list[tuple[Callable[[str], Any], str]] = [
    (lambda m: ended(m), "the answer is empty"),
    (lambda m: ended(m, None), "the answer is empty"),
    (lambda m: ended(m, " \n"), "the answer is empty"),
    (lambda m: ended(m, [{"type": "text", "text": ""}]), "the answer is empty"),
    (lambda m: ended(m, "half an ans", finish_reason="error"), "finish_reason 'error'"),
    (lambda m: ended(m, "half", error={"message": "worker died"}), "worker died"),
    (lambda m: {**said(m, GOOD), "choices": []}, "the response holds no choice"),
    (lambda m: {"error": {"message": "overloaded"}}, "overloaded"),
    (lambda m: {"error": {"code": 500}}, "an error without a message"),
    (lambda m: "<html>502</html>", "a str came"),
    (lambda m: None, "a NoneType came"),
]


@pytest.mark.parametrize(("response", "why"), BROKEN)
@pytest.mark.parametrize("options", [{"unjudged": "keep"}, {"threshold": 0.0}])
def test_a_failed_response_is_never_kept(
    ask: Ask, response: Callable[[str], Any], why: str, options: dict[str, Any]
) -> None:
    answer, client = ask(lambda: response("weak"), **options)
    assert (answer.answered_by, client.asked, answer.weak, answer.verdict) == ("strong", ["weak", "strong"], None, None)
    assert answer.reason.startswith("weak failed (")
    assert why in answer.reason
    with pytest.raises(InvalidResponse, match=r"weak failed \(.*; strong failed \("):
        ask(lambda: response("weak"), lambda: response("strong"), on_strong_error="weak", **options)
    kept, client = ask(lambda: said("weak", BAD), lambda: response("strong"), threshold=0.7, on_strong_error="weak")
    assert (kept.answered_by, kept.strong, client.asked) == ("weak", None, ["weak", "strong"])
    assert "; strong failed (" in kept.reason
    with pytest.raises(InvalidResponse, match=r"strong failed \("):
        ask(lambda: said("weak", BAD), lambda: response("strong"), threshold=0.7)


def test_failed_responses_are_paid_for(ask: Ask) -> None:
    one, other = 100e-6 * 1.0 + 50e-6 * 2.0, 100e-6 * 10.0 + 50e-6 * 20.0
    assert ask(lambda: ended("weak"))[0].cost_usd == pytest.approx(one + other)
    kept, _ = ask(lambda: said("weak", BAD), lambda: ended("strong"), threshold=0.7, on_strong_error="weak")
    assert kept.cost_usd == pytest.approx(one + other)


def test_tool_calls_and_refusals_are_answers(ask: Ask) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for message in ({"content": None, "tool_calls": [call]}, {"content": None, "refusal": "I will not."}):
        answer, _ = ask(lambda message=message: said("weak", None, **message), unjudged="keep")  # type: ignore[misc]
        assert answer.answered_by == "weak"
