"""Verdicts go out to where traces are: as each product's request bodies, in a file or posted with its credentials."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from local_server import Asked, Reply, serving

from metaprobe.cli import main
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.label_files import read_label_file
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.posting import NotPosted, checked_url, post_json
from metaprobe.production.verdict_export import VERDICTS_PER_REQUEST, poster, requests_for
from metaprobe.records.errors import ImportFileError, RecordError

NOON = 1_700_000_000.0
TRACE = "0af7651916cd43dd8448eb211c80319c"
SECRET = "s3cr3t"


class Product:
    """A scripted HTTP server: what it was asked, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.status, self.answer, self.location = 200, b"{}", ""
        self.url = ""

    def reply(self, request: Asked) -> Reply:
        self.asked.append((request.path, request.headers, request.json()))
        return Reply(self.answer, self.status, {"Location": self.location} if self.location else {})


@pytest.fixture
def product(monkeypatch: pytest.MonkeyPatch) -> Iterator[Product]:
    """A product at the address that the environment names, with keys."""
    product = Product()
    with serving(product.reply) as product.url:
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setenv("LANGFUSE_BASE_URL", product.url)
        monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
        monkeypatch.setenv("LANGFUSE_SECRET_KEY", SECRET)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", product.url + "/")
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", product.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-key={SECRET},x-other=a%20b")
        yield product


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """A log of three scored answers, one without a score, and a shadow."""
    path = tmp_path / "scores.sqlite"
    with ScoreLog.open(path) as log:
        for number in range(4):
            log.write(
                Entry(
                    request_id=f"r{number}",
                    time=NOON + number,
                    model="m",
                    checkpoint="c" * 64 if number < 2 else "d" * 64,
                    score=None if number == 3 else number / 4,
                    flagged=None if number == 3 else number == 0,
                    reason="no log-probabilities" if number == 3 else "",
                    tags={"trace": TRACE} if number == 1 else {},
                )
            )
        log.write(Entry(request_id="s", time=NOON, model="m", checkpoint="e", score=0.5, shadow_of="r0"))
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["log", "export", *map(str, words)])


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_langfuse_gets_scores_of_a_type_with_an_id_that_stays(where: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.jsonl"
    done = run("--log", where, "--to", "langfuse", "--out", out, "--trace-tag", "trace")
    assert (done.exit_code, done.stdout) == (0, "wrote 3 verdicts for langfuse\n"), done.output
    assert "1 answers without a score are left out" in done.stderr
    [body] = lines(out)
    assert {event["type"] for event in body["batch"]} == {"score-create"}
    scores = [event["body"] for event in body["batch"]]
    assert [(one["traceId"], one["value"]) for one in scores] == [("r0", 0.0), (TRACE, 0.25), ("r2", 0.5)]
    assert {(one["name"], one["dataType"]) for one in scores} == {("metaprobe", "NUMERIC")}
    assert scores[0]["metadata"] == {"request_id": "r0", "checkpoint": "c" * 64, "model": "m", "flagged": True}
    assert body["batch"][0]["timestamp"] == "2023-11-14T22:13:20.000Z"
    run("--log", where, "--to", "langfuse", "--out", out)
    [again] = lines(out)
    assert [event["body"]["id"] for event in again["batch"]] == [one["id"] for one in scores]
    assert not {event["id"] for event in again["batch"]} & {event["id"] for event in body["batch"]}


def test_mlflow_gets_assessments_by_code_and_failures_as_such(where: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    done = run("--log", where, "--to", "mlflow", "--out", out, "--since", NOON + 2)
    assert (done.exit_code, done.stderr) == (0, "")
    fine, failed = (line["assessment"] for line in lines(out))
    assert (fine["trace_id"], fine["feedback"], fine["source"]["source_type"]) == ("r2", {"value": 0.5}, "CODE")
    assert failed["feedback"]["error"] == {"error_code": "not_scored", "error_message": "no log-probabilities"}
    assert failed["rationale"] == "no log-probabilities"


def test_opentelemetry_gets_log_records_by_the_conventions_for_evaluations(where: Path, tmp_path: Path) -> None:
    out = tmp_path / "otlp.jsonl"
    done = run("--log", where, "--to", "otel", "--out", out, "--trace-tag", "trace", "--checkpoint", "cccccc")
    assert done.exit_code == 0, done.output
    [body] = lines(out)
    first, second = body["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert (first["eventName"], first["timeUnixNano"]) == ("gen_ai.evaluation.result", "1700000000000000000")
    assert ("traceId" in first, second["traceId"]) == (False, TRACE)
    told = {one["key"]: one["value"] for one in first["attributes"]}
    assert told["gen_ai.evaluation.score.value"] == {"doubleValue": 0.0}
    assert told["gen_ai.evaluation.score.label"] == {"stringValue": "fail"}
    assert told["gen_ai.response.id"] == {"stringValue": "r0"}


@pytest.mark.parametrize(
    ("to", "path", "header"),
    [
        ("langfuse", "/api/public/ingestion", "Basic " + base64.b64encode(f"pk:{SECRET}".encode()).decode()),
        ("mlflow", "/api/3.0/mlflow/traces/r0/assessments", f"Bearer {SECRET}"),
        ("otel", "/v1/logs", None),
    ],
)
def test_verdicts_are_posted_with_what_the_environment_holds(
    to: str, path: str, header: str | None, product: Product, where: Path
) -> None:
    done = run("--log", where, "--to", to, "--post")
    verdicts = 3 if to == "langfuse" else 4
    assert (done.exit_code, done.stdout) == (0, f"posted {verdicts} of {verdicts} verdicts to {to}\n"), done.output
    asked, headers, body = product.asked[0]
    assert asked == path
    assert headers.get("Authorization") == header
    given = {name.casefold(): value for name, value in headers.items()}
    assert to != "otel" or (given["x-key"], given["x-other"]) == (SECRET, "a b")
    assert body
    assert SECRET not in done.output


def test_an_assessment_is_for_an_id_of_any_letters(product: Product) -> None:
    entry = Entry(request_id="a/../b?c", time=NOON, model="", checkpoint="", score=0.5)
    [one] = requests_for("mlflow", [entry])
    assert poster("mlflow")(one) == 0
    assert product.asked[0][0] == "/api/3.0/mlflow/traces/a%2F..%2Fb%3Fc/assessments"


@pytest.mark.parametrize(
    ("to", "status", "answer", "said"),
    [
        (
            "langfuse",
            207,
            {"successes": [], "errors": [{"id": "x", "status": 400, "message": SECRET}]},
            "refused 1 verd",
        ),
        ("otel", 200, {"partialSuccess": {"rejectedLogRecords": "2", "errorMessage": SECRET}}, "refused 2 verdicts"),
        ("langfuse", 401, {"message": SECRET}, "status 401"),
        ("mlflow", 404, {"message": SECRET}, "status 404"),
        ("otel", 500, {}, "status 500"),
    ],
)
def test_what_a_product_does_not_take_is_counted_and_nothing_of_a_secret_is_told(
    to: str, status: int, answer: Any, said: str, product: Product, where: Path
) -> None:
    product.status, product.answer = status, json.dumps(answer).encode()
    done = run("--log", where, "--to", to, "--post")
    assert (done.exit_code, said in done.stderr) == (1, True), done.output
    assert SECRET not in done.output
    assert product.url not in done.output
    if status >= 400:
        assert len(product.asked) == 1, "after a failure nothing more is sent"


def test_credentials_do_not_follow_a_redirect(product: Product) -> None:
    other = Product()
    with serving(other.reply) as other.url:
        product.status, product.location = 307, other.url
        with pytest.raises(NotPosted, match="status 307"):
            post_json(product.url, {}, {"Authorization": SECRET})
    assert other.asked == []


@pytest.mark.parametrize(
    ("to", "unset"),
    [
        ("langfuse", "LANGFUSE_BASE_URL"),
        ("langfuse", "LANGFUSE_SECRET_KEY"),
        ("mlflow", "MLFLOW_TRACKING_URI"),
        ("otel", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
)
def test_a_missing_address_or_key_is_named_before_anything_is_sent(
    to: str, unset: str, product: Product, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(unset)
    done = run("--log", where, "--to", to, "--post")
    assert (done.exit_code, unset in done.output, product.asked) == (1, True, [])


@pytest.mark.parametrize(
    "url",
    ["", "langfuse", "file:///etc/passwd", f"https://pk:{SECRET}@host", f"https://host/?key={SECRET}", "http://a b"],
)
def test_an_address_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(RecordError, match="LANGFUSE_BASE_URL is no address") as refused:
        checked_url(url, "LANGFUSE_BASE_URL", bare=True)
    assert SECRET not in str(refused.value)


def test_a_server_that_is_not_there_is_said(product: Product, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(product.reply) as closed:
        monkeypatch.setenv("LANGFUSE_BASE_URL", closed)
    done = run("--log", where, "--to", "langfuse", "--post")
    assert (done.exit_code, "ConnectionRefusedError" in done.stderr) == (1, True), done.output


def test_many_verdicts_go_in_requests_of_a_bounded_size() -> None:
    entries = [
        Entry(request_id=f"r{i}", time=NOON, model="m", checkpoint="c", score=0.5)
        for i in range(2 * VERDICTS_PER_REQUEST + 1)
    ]
    for to in ("langfuse", "otel"):
        assert [one.verdicts for one in requests_for(to, entries)] == [VERDICTS_PER_REQUEST, VERDICTS_PER_REQUEST, 1]
    with pytest.raises(RecordError, match="no destination 'x'; expected langfuse, mlflow, otel"):
        next(requests_for("x", []))
    with pytest.raises(RecordError, match="no destination"):
        poster("x")


@pytest.mark.parametrize("to", ["langfuse", "mlflow"])
def test_verdicts_that_come_back_with_the_labels_are_no_labels(to: str, where: Path, tmp_path: Path) -> None:
    out = tmp_path / "bodies.jsonl"
    run("--log", where, "--to", to, "--out", out)
    held = [one["assessment"] for one in lines(out)] if to == "mlflow" else []
    held = held or [event["body"] for body in lines(out) for event in body["batch"]]
    back = tmp_path / "back.json"
    back.write_text(json.dumps({"data": held}), encoding="utf-8")
    with pytest.raises(ImportFileError, match="a verdict of metaprobe itself is no label"):
        read_label_file(back)


def test_an_export_without_a_place_to_go_is_refused(where: Path) -> None:
    done = run("--log", where, "--to", "otel")
    assert (done.exit_code, "Missing option '--out' or '--post'" in done.output) == (2, True)
