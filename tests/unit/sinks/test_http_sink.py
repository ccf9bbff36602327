"""The sink `http` against a real server that misbehaves: each answer, or none, has its class, and is over in time."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from connector import (
    AuthenticationError,
    ConfigError,
    ConnectorError,
    PoisonError,
    RecordErrors,
    SinkContext,
    TransientError,
)
from connector.config.load import load
from sinks.http import HttpSettings, HttpSink
from tests.support.receiver import Receiver, answer, make_certificate
from tests.unit.sinks.sink_batches import CONTEXT, NASTY, Record, make_batch, restore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from connector import Batch
    from tests.support.receiver import Handler, Received

SECRET = "s3cr3t-t0k3n-s3cr3t"
QUICK = 0.4  # seconds that a request may take where a test waits for the end of them


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


def make(receiver: Receiver, context: SinkContext = CONTEXT, **fields: Any) -> HttpSink:
    """Return a sink that is open; it needs no `close` for a test's sake, since nothing is left in it."""
    settings = HttpSettings.model_validate({"url": receiver.url, "timeout": 10, **fields})
    assert settings.problems(1) == []
    sink = HttpSink(settings, context)
    sink.open()
    return sink


def write(sink: HttpSink, batch: Batch) -> ConnectorError | None:
    """Write, close, and return the error if there is one."""
    try:
        sink.write(batch)
    except ConnectorError as error:
        return error
    finally:
        sink.close()
    return None


# What is sent.


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("body", ["ndjson", "json"])
def test_every_record_arrives_whole_in_either_body(receiver: Receiver, body: str, compression: str) -> None:
    assert write(make(receiver, body=body, compression=compression), make_batch(*NASTY)) is None
    (request,) = receiver.received
    assert request.headers["content-type"] == ("application/json" if body == "json" else "application/x-ndjson")
    assert len(request.records) == len(NASTY)
    for offset, (record, sent) in enumerate(zip(NASTY, request.records, strict=True), start=10):
        assert (sent["topic"], sent["partition"], sent["offset"]) == ("orders", 3, offset)
        assert (restore(sent["key"]), sent["timestamp"] is None) == (record.key, record.timestamp_ms is None)
        if record.value != b'{"base64": "AA=="}':  # a text that looks like the form of bytes stays a text
            assert restore(sent["value"]) == record.value
        assert [(name, restore(content)) for name, content in sent["headers"]] == (record.headers or [])


@pytest.mark.parametrize("body", ["ndjson", "json"])
def test_values_are_sent_alone_as_json_and_none_as_null(receiver: Receiver, body: str) -> None:
    values = b'{"a": 1}', None, b'[1,\r\n"two"]', b'"\xc3\xa4"', b"12345678901234567890123"
    assert write(make(receiver, format="value", body=body), make_batch(*values)) is None
    (request,) = receiver.received
    assert request.records == [{"a": 1}, None, [1, "two"], "ä", 12345678901234567890123]
    assert b"12345678901234567890123" in request.body, "a number keeps its digits"


def test_decoded_values_are_sent_as_json(receiver: Receiver) -> None:
    batch = make_batch(b"x", b"x", b"x", decoded={"value": [{"a": None}, "text", None]})
    assert write(make(receiver, format="value"), batch) is None
    assert receiver.received[0].records == [{"a": None}, "text", None]


@pytest.mark.parametrize("value", [b"", b"plain", b"\xff", b"{} {}", b"NaN", b'{"a":\n'])
def test_a_value_that_is_not_json_is_poison_that_is_named_and_not_sent(receiver: Receiver, value: bytes) -> None:
    error = write(make(receiver, format="value"), make_batch(b"{}", value, b"{}"))
    assert isinstance(error, PoisonError)
    assert "orders[3]@11" in str(error)
    assert receiver.received == []


def test_topic_method_and_headers_go_where_the_settings_say(receiver: Receiver) -> None:
    sink = make(
        receiver,
        url=f"{receiver.url}/{{topic}}?table={{topic}}",
        method="PUT",
        headers={"X-Scope-OrgID": "one", "content-type": "application/vnd.records"},
    )
    assert write(sink, make_batch(b"1", topic="a.b-c_d")) is None
    (request,) = receiver.received
    assert (request.method, request.path) == ("PUT", "/records/a.b-c_d?table=a.b-c_d")
    assert (request.headers["x-scope-orgid"], request.headers["content-type"]) == ("one", "application/vnd.records")


def test_credentials_are_sent_as_the_settings_say(receiver: Receiver) -> None:
    assert write(make(receiver, token="opensesame"), make_batch(b"1")) is None
    assert write(make(receiver, username="ali", password="baba:ü"), make_batch(b"1")) is None
    assert write(make(receiver), make_batch(b"1")) is None
    sent = [request.headers.get("authorization") for request in receiver.received]
    assert sent == ["Bearer opensesame", "Basic YWxpOmJhYmE6w7w=", None]


def test_the_idempotency_key_is_that_of_the_same_bytes_of_the_same_records_and_no_others(receiver: Receiver) -> None:
    batch = make_batch(b"1", b"2", b"3")
    receiver.script = [answer(503)]
    assert isinstance(write(make(receiver), batch), TransientError)
    for each in (
        batch,  # the retry
        batch.slice(0, 2),
        batch.select([0, 2]),  # what is left after a result for each record, with the positions of all
        make_batch(b"1", b"2", b"4"),  # the topic was made again
        make_batch(b"1", b"2", b"3", partition=4),
    ):
        assert write(make(receiver), each) is None
    assert write(make(receiver, compression="gzip"), batch) is None
    assert write(make(receiver, SinkContext(group_id="another")), batch) is None
    first, *others = [request.headers["idempotency-key"] for request in receiver.received]
    assert first.startswith("orders-3-10-13-")
    assert [key == first for key in others] == [True, False, False, False, False, True, False]
    assert len(set(others)) == 6


def test_one_connection_serves_batch_after_batch(receiver: Receiver) -> None:
    sink = make(receiver)
    for offset in range(5):
        sink.write(make_batch(b"1", offset=offset))
    sink.close()
    assert (len(receiver.received), receiver.connections) == (5, 1)


# What an answer means.

CLASSES: dict[type[ConnectorError], tuple[int, ...]] = {
    TransientError: (408, 409, 423, 425, 429, 500, 501, 502, 503, 504, 599),
    AuthenticationError: (401, 403, 407),
    PoisonError: (400, 413, 422),
    ConfigError: (207, 300, 301, 302, 303, 304, 307, 308, 402, 404, 405, 406, 410, 411, 415, 426, 451),
}


@pytest.mark.parametrize(
    ("status", "error_class"), [(status, kind) for kind, statuses in CLASSES.items() for status in statuses]
)
def test_every_status_has_its_class(receiver: Receiver, status: int, error_class: type[ConnectorError]) -> None:
    receiver.script = [answer(status, b"" if status == 304 else b"because")]
    error = write(make(receiver), make_batch(b"1", b"2"))
    assert type(error) is error_class
    assert f"orders[3]@10..11: {receiver.url} answers {status}" in str(error)
    assert "because" in str(error) or status < 400, "the server's reason is told"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206])
def test_any_other_success_is_one(receiver: Receiver, status: int) -> None:
    receiver.script = [answer(status, b"" if status == 204 else b"thanks")]
    assert write(make(receiver), make_batch(b"1")) is None


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("text", "seconds"), [("7", 7), (" 0 ", 0), ("Sat, 01 Jan 2000 00:00:00 GMT", 0)])
def test_the_time_that_a_server_asks_for_is_handed_on(
    receiver: Receiver, status: int, text: str, seconds: float
) -> None:
    receiver.script = [answer(status, Retry_After=text)]
    error = write(make(receiver), make_batch(b"1"))
    assert isinstance(error, TransientError)
    assert error.retry_after == seconds


def test_a_date_that_a_server_asks_for_is_handed_on_as_the_time_until_then(receiver: Receiver) -> None:
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    receiver.script = [answer(503, Retry_After=format_datetime(in_an_hour, usegmt=True))]
    error = write(make(receiver), make_batch(b"1"))
    assert isinstance(error, TransientError)
    assert error.retry_after is not None
    assert 3000 <= error.retry_after <= 3600


@pytest.mark.parametrize("text", ["soon", "", "-5", "1.5", "9" * 400, "Sat, 99 Jan 2000 00:00:00 GMT", "²"])
def test_a_time_that_is_none_is_as_if_there_were_none(receiver: Receiver, text: str) -> None:
    receiver.script = [lambda handler, _: handler.send(_raw(503, f"Retry-After: {text}"))]
    error = write(make(receiver), make_batch(b"1"))
    assert isinstance(error, TransientError)
    assert error.retry_after is None


def _raw(status: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def test_a_redirection_is_told_without_what_may_be_secret_in_it_and_not_followed(receiver: Receiver) -> None:
    receiver.script = [answer(307, Location=f"https://elsewhere.example/take?signature={SECRET}")]
    error = write(make(receiver), make_batch(b"1"))
    assert isinstance(error, ConfigError)
    assert "https://elsewhere.example/take." not in str(error)
    assert "https://elsewhere.example/take" in str(error)
    assert SECRET not in str(error)
    assert len(receiver.received) == 1


def test_the_way_out_of_a_result_that_nobody_reads_is_told(receiver: Receiver) -> None:
    receiver.script = [answer(207, b"{}")]
    assert "CONNECTOR_SINK_RESULTS=true" in str(write(make(receiver), make_batch(b"1")))


# No answer, or half of one.


def _close(handler: Handler, _: Received) -> None:
    handler.close_connection = True


def _reset(handler: Handler, _: Received) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    handler.close_connection = True


HALVES: dict[str, Any] = {
    "closed": _close,
    "reset": _reset,
    "half a status": lambda handler, _: handler.send(b"HTTP/1.1 20"),
    "half a head": lambda handler, _: handler.send(b"HTTP/1.1 200 OK\r\nContent-Len"),
    "half a body": lambda handler, _: handler.send(_raw(200, body=b"12345")[:-1]),
    "half a chunk": lambda handler, _: handler.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nab"),
    "garbage": lambda handler, _: handler.send(b"\x15\x03\x01\x00\x02\x02\x16" * 50),
    "endless head": lambda handler, _: handler.send(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000),
}


@pytest.mark.parametrize("half", HALVES)
def test_a_connection_that_breaks_after_the_batch_was_sent_is_transient_and_the_next_try_goes_through(
    receiver: Receiver, half: str
) -> None:
    receiver.script = [HALVES[half]]
    sink = make(receiver)
    batch = make_batch(b"1", b"2")
    with pytest.raises(TransientError, match=r"orders\[3\]@10\.\.11"):
        sink.write(batch)
    assert write(sink, batch) is None
    first, second = receiver.received
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


def _late(handler: Handler, _: Received) -> None:
    handler.receiver.is_closing.wait(3)


SLOW: dict[str, Any] = {
    "no answer": _late,
    "a head byte by byte": lambda handler, _: handler.drip(_raw(200, *["X: y"] * 1000), QUICK / 10),
    "a body byte by byte": lambda handler, _: handler.drip(_raw(200, body=b"x" * 1000), QUICK / 10),
    "a chunked body without an end": lambda handler, _: (
        handler.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        handler.drip(b"1\r\nx\r\n" * 1000, QUICK / 10),
    ),
}


@pytest.mark.parametrize("slow", SLOW)
def test_an_answer_that_does_not_end_is_given_up_in_time(receiver: Receiver, slow: str) -> None:
    receiver.script = [SLOW[slow]]
    sink = make(receiver, timeout=QUICK)
    began = time.monotonic()
    with pytest.raises(TransientError, match=r"has not answered within 0\.4 s"):
        sink.write(make_batch(b"1"))
    assert QUICK * 0.9 <= time.monotonic() - began < QUICK + 2
    assert write(sink, make_batch(b"1")) is None


def test_a_server_that_does_not_read_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel takes the connection
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        began = time.monotonic()
        sink = HttpSink(HttpSettings(url=url, timeout=QUICK), CONTEXT)
        sink.open()
        assert isinstance(write(sink, make_batch(b"x" * 30_000_000)), TransientError)
        assert time.monotonic() - began < QUICK + 5


def test_a_server_that_is_not_there_is_transient(receiver: Receiver) -> None:
    sink = make(receiver)
    sink.write(make_batch(b"1"))
    receiver.stop()
    with pytest.raises(TransientError, match="is not reached"):
        sink.write(make_batch(b"2"))
    receiver.start()
    assert write(sink, make_batch(b"2")) is None
    assert [record["value"] for record in receiver.stored] == ["1", "2"]


def test_a_name_that_nobody_knows_is_transient() -> None:
    sink = HttpSink(HttpSettings(url="http://no-such-host.invalid/"), CONTEXT)
    sink.open()
    assert isinstance(write(sink, make_batch(b"1")), TransientError)


def test_a_connection_that_the_server_closes_while_it_is_idle_costs_no_error(receiver: Receiver) -> None:
    def store_and_close(handler: Handler, received: Received) -> None:
        receiver.store(handler, received)  # without `Connection: close`
        handler.close_connection = True

    receiver.behave = store_and_close
    sink = make(receiver)
    for _ in range(4):
        sink.write(make_batch(b"1"))
        _wait_until_closed(sink)
    sink.close()
    assert receiver.connections == 4


def _wait_until_closed(sink: HttpSink) -> None:
    connection = sink._deadline._socket
    assert connection is not None
    if connection.fileno() == -1:  # the client has seen it already
        return
    connection.settimeout(5)
    assert connection.recv(1, socket.MSG_PEEK) == b""


def test_an_answer_before_the_whole_body_was_read_counts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(_raw(413, "Connection: close", body=b"too large"))
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(5)
                while connection.recv(1 << 20):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        sink = HttpSink(HttpSettings(url=f"http://127.0.0.1:{listener.getsockname()[1]}/"), CONTEXT)
        sink.open()
        error = write(sink, make_batch(b"x" * 8_000_000))
        thread.join(10)
    assert isinstance(error, PoisonError)
    assert "too large" in str(error)


def test_of_a_huge_answer_only_the_beginning_is_read_and_its_status_counts(receiver: Receiver) -> None:
    def huge(handler: Handler, received: Received) -> None:
        receiver.stored += received.records
        handler.send(b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n")
        for number in range(500):
            handler.wfile.write(b"x" * 100_000)
            progress[0] = number

    progress = [0]
    receiver.script = [huge, answer(400, b"e" * 8_000_000)]
    sink = make(receiver)
    sink.write(make_batch(b"1"))
    error = write(sink, make_batch(b"2"))
    assert isinstance(error, PoisonError)
    assert len(str(error)) < 500
    assert len(receiver.stored) == 1
    assert progress[0] < 400, "the connection was left, with what the kernel's buffers hold"


# Results.


def _results(*errors: Any) -> bytes:
    return json.dumps({"errors": errors}).encode()


@pytest.mark.parametrize("status", [200, 207])
def test_results_name_the_records_that_failed_and_how(receiver: Receiver, status: int) -> None:
    errors = [{"index": 1, "error": "no such customer"}, {"index": 3, "error": "locked", "retry": True}]
    receiver.script = [answer(status, _results(*errors), Retry_After="7")]
    error = write(make(receiver, results=True), make_batch(b"0", b"1", b"2", b"3"))
    assert isinstance(error, RecordErrors)
    assert {index: type(each) for index, each in error.errors.items()} == {1: PoisonError, 3: TransientError}
    assert "no such customer" in str(error.errors[1])
    locked = error.errors[3]
    assert isinstance(locked, TransientError)
    assert locked.retry_after == 7


@pytest.mark.parametrize("body", [b"", b"{}", b'{"errors": []}', b'{"took": 3, "errors": [], "items": [1]}'])
def test_without_an_error_all_are_stored(receiver: Receiver, body: bytes) -> None:
    receiver.script = [answer(200, body)]
    assert write(make(receiver, results=True), make_batch(b"0")) is None


@pytest.mark.parametrize(
    "body",
    [
        b"OK",
        b"<html>",
        b"[]",
        b"null",
        b'{"errors": true}',
        b'{"errors": [{"error": "which one?"}]}',
        _results({"index": 2, "error": "of two"}),
        _results({"index": -1}),
        _results({"index": "0"}),
        _results({"index": 0, "error": "cut"})[:-1],
        b'{"errors": []}' + b" " * 5_000_000,
    ],
)
def test_where_results_are_wanted_anything_else_is_no_acknowledgement(receiver: Receiver, body: bytes) -> None:
    receiver.script = [answer(200, body)]
    error = write(make(receiver, results=True), make_batch(b"0", b"1"))
    assert isinstance(error, TransientError)
    assert "CONNECTOR_SINK_RESULTS" in str(error)
    assert len(str(error)) < 600


def test_an_empty_207_is_no_acknowledgement(receiver: Receiver) -> None:
    receiver.script = [answer(207)]
    assert isinstance(write(make(receiver, results=True), make_batch(b"0")), TransientError)


# Secrets.


@pytest.mark.parametrize(
    "fields",
    [{"token": SECRET}, {"username": "ali", "password": SECRET}, {"headers": {"X-Api-Key": SECRET}}],
    ids=["token", "password", "header"],
)
@pytest.mark.parametrize("status", [200, 307, 400, 401, 404, 503])
def test_a_server_that_repeats_a_secret_does_not_bring_it_into_an_error(
    receiver: Receiver, fields: dict[str, Any], status: int
) -> None:
    def echo(handler: Handler, received: Received) -> None:
        said = f"{received.headers.get('authorization')} {received.headers.get('x-api-key')} {SECRET}"
        results = {"errors": [{"index": 0, "error": said}]} if status == 200 else said
        handler.answer(status, json.dumps(results).encode(), Location=f"/{SECRET}")

    receiver.behave = echo
    error = write(make(receiver, results=True, url=f"{receiver.url}?key={SECRET}", **fields), make_batch(b"1"))
    assert error is not None
    shown = f"{error} {getattr(error, 'errors', '')!r}"
    assert SECRET not in shown
    assert "YWxpO" not in shown, "nor as it is sent"
    assert SECRET not in repr(HttpSettings.model_validate({"url": receiver.url, **fields}))


# Settings.


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": f"https://{SECRET}@example.com/"}, "CONNECTOR_SINK_TOKEN"),
        ({"url": f"https://ali:{SECRET}@example.com/"}, "CONNECTOR_SINK_PASSWORD"),
        ({"url": "ftp://example.com/"}, "write one as in https://"),
        ({"url": "example.com/records"}, "write one as in https://"),
        ({"url": "https:///records"}, "write one as in https://"),
        ({"url": "http://example.com:notaport/"}, "is not a URL"),
        ({"url": "https://example.com/{partition}"}, "{partition}"),
        ({"url": "https://{topic}.example.com/"}, "put {topic} into the path"),
        ({"url": "https://example.com/#top"}, "fragment"),
        ({"headers": "X Y=1"}, "cannot be the name of a header"),
        ({"headers": "Content-Length=1"}, "sets itself"),
        ({"headers": "X-Y=a\nb"}, "printable"),
        ({"headers": "X-Y"}, "name=value"),
        ({"token": "two\nlines"}, "printable"),
        ({"timeout": "0s"}, "must be more than"),
        ({"token": SECRET, "username": "ali"}, "exclude each other"),
        ({"token": SECRET, "headers": f"authorization={SECRET}"}, "exclude each other"),
        ({"password": SECRET}, "CONNECTOR_SINK_USERNAME"),
        ({"tls_verify": "false", "url": "http://example.com/"}, "has no TLS"),
        ({"tls_ca_file": "/ca.pem", "url": "http://example.com/"}, "has no TLS"),
        ({"tls_certificate_file": "/own.pem", "url": "http://example.com/"}, "has no TLS"),
        ({"tls_key_file": "/key.pem"}, "CONNECTOR_SINK_TLS_CERTIFICATE_FILE"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_way_out_and_without_the_secret(
    fields: dict[str, str], said: str
) -> None:
    environ = {
        "CONNECTOR_BOOTSTRAP_SERVERS": "localhost:9092",
        "CONNECTOR_GROUP_ID": "g",
        "CONNECTOR_TOPICS": "t",
        "CONNECTOR_SINK": "http",
        **{f"CONNECTOR_SINK_{name.upper()}": text for name, text in {"url": "https://example.com/", **fields}.items()},
    }
    with pytest.raises(ConfigError) as raised:
        load(environ)
    assert said in str(raised.value)
    assert SECRET not in str(raised.value)


def test_settings_are_read_as_they_are_documented() -> None:
    environ = {
        "CONNECTOR_BOOTSTRAP_SERVERS": "localhost:9092",
        "CONNECTOR_GROUP_ID": "g",
        "CONNECTOR_TOPICS": "t",
        "CONNECTOR_SINK": "http",
        "CONNECTOR_SINK_URL": "https://example.com/{topic}",
        "CONNECTOR_SINK_HEADERS": "X-Api-Key=a=b, X-Tenant=one",
        "CONNECTOR_SINK_TIMEOUT": "1500ms",
        "CONNECTOR_SINK_RESULTS": "true",
    }
    settings = load(environ).sink_settings
    assert isinstance(settings, HttpSettings)
    assert {name: value.get_secret_value() for name, value in settings.headers.items()} == {
        "X-Api-Key": "a=b",
        "X-Tenant": "one",
    }
    assert (settings.timeout, settings.results) == (1.5, True)


@pytest.mark.parametrize("proxy", [f"socks5://ali:{SECRET}@127.0.0.1:1080", f"{SECRET}://nowhere", "http://[::1"])
def test_a_proxy_that_is_none_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    sink = HttpSink(HttpSettings(url="http://example.com/"), CONTEXT)
    with pytest.raises(ConfigError, match="NO_PROXY") as raised:
        sink.open()
    assert SECRET not in str(raised.value)


def test_a_proxy_of_the_environment_is_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{receiver.port}")
    assert write(make(receiver, url="http://no-such-host.invalid/records"), make_batch(b"1")) is None
    assert receiver.received[0].path == "http://no-such-host.invalid/records"


def test_nothing_but_printable_text_is_taken_as_a_secret() -> None:
    with pytest.raises(ValidationError):
        HttpSettings.model_validate({"url": "https://example.com/", "token": "ü"})


# TLS.


def test_a_server_has_to_prove_who_it_is(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    with Receiver(tls=tmp_path) as receiver:
        error = write(make(receiver), make_batch(b"1"))
        assert isinstance(error, ConfigError)
        assert "CONNECTOR_SINK_TLS_CA_FILE" in str(error)
        assert receiver.received == []
        assert write(make(receiver, tls_ca_file=f"{tmp_path}/certificate.pem"), make_batch(b"1")) is None
        assert write(make(receiver, tls_verify=False), make_batch(b"2")) is None
        assert len(receiver.stored) == 2


def test_a_slow_answer_is_given_up_in_time_over_tls_too(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    with Receiver(tls=tmp_path) as receiver:
        receiver.script = [SLOW["a head byte by byte"]]
        sink = make(receiver, tls_verify=False, timeout=QUICK)
        began = time.monotonic()
        with pytest.raises(TransientError, match="has not answered within"):
            sink.write(make_batch(b"1"))
        assert time.monotonic() - began < QUICK + 2
        assert write(sink, make_batch(b"1")) is None


def test_a_server_that_wants_a_certificate_of_us_gets_it(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    own: dict[str, Any] = {
        "tls_certificate_file": f"{tmp_path}/certificate.pem",
        "tls_key_file": f"{tmp_path}/key.pem",
    }
    with Receiver(tls=tmp_path, wants_certificate=True) as receiver:
        assert isinstance(write(make(receiver, tls_verify=False), make_batch(b"1")), TransientError)
        assert write(make(receiver, tls_verify=False, **own), make_batch(b"2")) is None
        assert [record["value"] for record in receiver.stored] == ["2"]


@pytest.mark.parametrize("content", [None, "no certificate"])
@pytest.mark.parametrize("name", ["tls_ca_file", "tls_certificate_file"])
def test_a_file_of_certificates_that_cannot_be_used_is_told_at_the_start(
    tmp_path: Path, name: str, content: str | None
) -> None:
    path = tmp_path / "some.pem"
    if content is not None:
        path.write_text(content)
    sink = HttpSink(HttpSettings.model_validate({"url": "https://127.0.0.1/", name: str(path)}), CONTEXT)
    with pytest.raises(ConfigError, match=f"CONNECTOR_SINK_{name.upper()}={path}"):
        sink.open()


def test_a_key_with_a_password_is_told_at_the_start_and_asks_nobody(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    subprocess.run(
        ["openssl", "pkey", "-in", "key.pem", "-aes256", "-passout", "pass:opensesame", "-out", "locked.pem"],
        cwd=tmp_path,
        check=True,
        timeout=30,
    )
    own = {"tls_certificate_file": f"{tmp_path}/certificate.pem", "tls_key_file": f"{tmp_path}/locked.pem"}
    sink = HttpSink(HttpSettings.model_validate({"url": "https://127.0.0.1/", **own}), CONTEXT)
    with pytest.raises(ConfigError, match=r"locked\.pem, cannot be used"):
        sink.open()


def test_a_record_without_a_timestamp_or_headers_says_so(receiver: Receiver) -> None:
    assert write(make(receiver), make_batch(Record(timestamp_ms=None))) is None
    (record,) = receiver.stored
    assert (record["timestamp"], record["headers"]) == (None, [])
