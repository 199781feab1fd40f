"""Several checkpoints in one server: each judges the answers of its own model, and it is clear which one judged."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving_clients
from served import Upstream, running
from serving_clients import LOGPROBS, Served, verdict_in, verdict_of
from tiny import tiny_quality

from metaprobe.checkpoints import Generator
from metaprobe.checkpoints.option_fields import split_name
from metaprobe.production.http.app import create_app
from metaprobe.production.http.judges import load_judges
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings, SettingsError

upstream = serving_clients.upstream
callers_keys = serving_clients.callers_keys


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three checkpoints that score differently; the last one names two models."""
    folder = tmp_path_factory.mktemp("checkpoints")
    both = Generator("org/model", others=("org/other",))
    return {
        "first": tiny_quality(folder / "first"),
        "second": tiny_quality(folder / "second", slope=2.0),
        "third": tiny_quality(folder / "third", slope=3.0, generator=both),
        "nobodys": tiny_quality(folder / "nobodys", slope=4.0, generator=None),
    }


def judged(made: dict[str, Any], *written: str, **more: Any) -> dict[str, str]:
    """The name of the checkpoint that judges each model."""
    paths = [split_name(each) for each in written]
    first, *rest = [f"{name}={made[place].path}" if name else str(made[place].path) for name, place in paths]
    digests = load_judges(Settings(checkpoint=first, more_checkpoints=tuple(rest), **more), Metrics()).digests()
    names = {checkpoint.digest: name for name, checkpoint in made.items()}
    return {model: names[digest] for model, digest in digests.items()}


def test_each_checkpoint_judges_the_model_that_it_is_named_for_and_the_first_all_others(made: dict[str, Any]) -> None:
    assert judged(made, "first") == {"": "first"}
    assert judged(made, "first", "b=second") == {"": "first", "b": "second"}
    assert judged(made, "a=first", "b=second") == {"": "first", "a": "first", "b": "second"}
    assert judged(made, "first", "third") == {"": "first", "org/model": "third", "org/other": "third"}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (("first", "nobodys"), "does not say of which model it is"),
        (("first", "org/model=second", "third"), "is of a model that has a checkpoint"),
        (("a=first", "a=second"), "name each model once"),
    ],
)
def test_where_it_is_not_clear_who_judges_whom_the_server_does_not_start(
    made: dict[str, Any], written: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        judged(made, *written)


@pytest.fixture(scope="module")
def served(made: dict[str, Any], upstream: tuple[Upstream, str]) -> Iterator[Served]:
    settings = Settings(
        checkpoint=made["first"].path,
        more_checkpoints=(f"b={made['second'].path}",),
        upstream=upstream[1],
        on_mismatch="ignore",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", serving_clients.KEY)
        app = create_app(settings)
    with running(app) as (url, _):
        yield Served(url)


@pytest.mark.parametrize(("model", "name"), [("m", "first"), ("b", "second")])
def test_an_answer_whole_or_streamed_is_judged_by_its_models_checkpoint(
    served: Served, made: dict[str, Any], model: str, name: str
) -> None:
    asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "plain"}]}
    whole = verdict_of(served.client.chat.completions.create(**asked))
    streamed = verdict_in(served.client.chat.completions.create(**asked, stream=True))
    assert whole["checkpoint"] == streamed["checkpoint"] == made[name].digest
    assert whole["score"] == streamed["score"]


def test_a_response_that_is_scored_is_judged_by_the_model_it_names_or_the_query_does(
    served: Served, made: dict[str, Any]
) -> None:
    entries = [{"token": "a", "logprob": value} for value in LOGPROBS]
    answer = {"model": "b", "choices": [{"message": {"content": "a" * len(entries)}, "logprobs": {"content": entries}}]}
    by = {made["first"].digest: "first", made["second"].digest: "second"}
    assert by[served.post("/v1/score", answer).json()["checkpoint"]] == "second"
    assert by[served.post("/v1/score?model=m", answer).json()["checkpoint"]] == "first"
    assert by[served.post("/v1/score", LOGPROBS).json()["checkpoint"]] == "first"
    both = served.post("/v1/score", {"responses": [answer, LOGPROBS]}).json()["verdicts"]
    assert [by[verdict["checkpoint"]] for verdict in both] == ["second", "first"]


def test_health_names_every_checkpoint_and_the_process_says_that_it_lives(served: Served, made: dict[str, Any]) -> None:
    for path in ("/healthz", "/readyz"):
        health = served.get(path).json()
        assert health["checkpoint"] == made["first"].digest
        assert health["checkpoints"] == {"b": made["second"].digest}
    assert served.get("/livez").json() == {"status": "ok"}


def test_a_name_before_a_checkpoint_is_told_from_a_place_with_an_equals_sign(tmp_path: Path) -> None:
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert split_name(str(odd)) == ("", str(odd))
    assert split_name("org/m:1=bundled:quality") == ("org/m:1", "bundled:quality")
    assert split_name("bundled:quality") == ("", "bundled:quality")
