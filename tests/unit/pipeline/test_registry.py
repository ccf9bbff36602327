"""The registry's client: what each answer means, that nobody waits long, and that a schema is asked for once."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from connector import AuthenticationError, ConfigError, ExitCode, TransientError
from connector.pipeline.decode import Format, PendingError, UndecodableError, UnknownSchemaError
from connector.pipeline.registry import Registry, RegistrySettings
from connector.telemetry.metrics import Metrics
from tests.support.engine import eventually
from tests.support.registry import Answer, StubRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from connector.pipeline.decode import SchemaId
    from connector.pipeline.registry import Found

GUID = UUID("0f0c9c0c-4f3f-4b3d-9c3a-3d5b5a5c5d5e")
QUICK_SECONDS = 0.6  # a find: a tenth of a second, and what a noisy machine takes


@pytest.fixture
def stub() -> Iterator[StubRegistry]:
    with StubRegistry() as stub:
        stub.add(1, "long", subject=("longs", 1))
        yield stub


@contextmanager
def _registry(url: str, *, timeout: float = 5.0, grace: float = 30.0, **properties: Any) -> Iterator[Registry]:
    made = RegistrySettings(
        {"url": url, **{name.replace("_", "."): value for name, value in properties.items()}}, timeout, grace
    )
    registry = Registry(made, Metrics())
    try:
        yield registry
    finally:
        registry.close()
        registry._thread.join(10)
        assert not registry._thread.is_alive()


def _find(registry: Registry, *ids: SchemaId) -> Found:
    """Return what is found for the last id, patiently; transient errors come out."""
    found: list[Found] = []

    def has_come() -> bool:
        try:
            found.append(registry.find(ids)[ids[-1]])
        except PendingError:
            return False
        return True

    eventually(has_come, "an answer")
    return found[-1]


def _decode(found: Found, payload: bytes) -> Any:
    assert not isinstance(found, Exception), found
    return found.decode(payload)


def _errors(registry: Registry) -> dict[str, float]:
    [family] = registry._metrics.registry_errors.collect()
    return {each.labels["reason"]: each.value for each in family.samples if each.name.endswith("_total")}


def test_a_schema_is_asked_for_once_whatever_number_of_pipelines_want_it(stub: StubRegistry) -> None:
    with _registry(stub.url) as registry:
        threads = [threading.Thread(target=_find, args=(registry, 1)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert _decode(_find(registry, 1), b"\x02") == 1
        assert stub.asked == ["/schemas/ids/1"]


def test_numbers_guids_and_both_kinds_of_schema_are_found_in_one_go(stub: StubRegistry) -> None:
    stub.add(2, {"type": "object"}, "JSON", guid=GUID)
    with _registry(stub.url) as registry:
        assert _decode(_find(registry, 1, 2, GUID), b"{}") == {}
        kinds = {each: registry.find([each])[each] for each in (1, 2, GUID)}
        assert [getattr(found, "format", None) for found in kinds.values()] == [
            Format.AVRO,
            Format.JSON_SCHEMA,
            Format.JSON_SCHEMA,
        ]


def test_references_are_fetched_each_once_and_a_circle_of_them_ends(stub: StubRegistry) -> None:
    money = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}
    stub.add(2, money, subject=("money", 3))
    line = {"type": "record", "name": "Line", "fields": [{"name": "price", "type": "Money"}]}
    stub.add(3, line, subject=("line", 1), references=[("Money", "money", 3)])
    both = {"type": "record", "name": "B", "fields": [{"name": "a", "type": "Line"}, {"name": "b", "type": "Money"}]}
    stub.add(4, both, references=[("Line", "line", 1), ("Money", "money", 3)])
    ring = {"$id": "ring", "properties": {"next": {"$ref": "ring"}}}
    stub.add(5, ring, "JSON", subject=("ring", 1), references=[("ring", "ring", 1)])
    with _registry(stub.url) as registry:
        assert _decode(_find(registry, 4), b"\x02\x04") == {"a": {"price": {"cents": 1}}, "b": {"cents": 2}}
        assert stub.asked.count("/subjects/money/versions/3") == 1
        assert _decode(_find(registry, 5), b'{"next": {"next": {}}}') == {"next": {"next": {}}}


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        (Answer(500), "http_500", "HTTP 500"),
        (Answer(503, b"<html>down"), "http_503", "HTTP 503"),
        (Answer(408), "http_408", "HTTP 408"),
        (Answer(301, headers={"Location": "/elsewhere"}), "http_301", "HTTP 301"),
        (Answer(400, b'{"error_code": 400, "message": "?"}'), "http_400", "HTTP 400"),
        (Answer(404, b"<html>"), "http_404", "check CONNECTOR_REGISTRY_URL"),
        (Answer(404, b'{"error_code": 404, "message": "Not Found"}'), "http_404", "check CONNECTOR_REGISTRY_URL"),
        (Answer(200), "garbage", "cannot be read"),
        (Answer(204), "garbage", "cannot be read"),
        (Answer(200, b"<html>welcome"), "garbage", "cannot be read"),
        (Answer(200, b"[]"), "garbage", "cannot be read"),
        (Answer(200, b"null"), "garbage", "cannot be read"),
        (Answer(200, b"{}"), "garbage", "not JSON"),
        (Answer(200, b'{"schema": 5}'), "garbage", "not JSON"),
        (Answer(200, b'{"schema": "{"}'), "garbage", "not JSON"),
        (Answer(200, b'{"schema": {"type": "long"}}'), "garbage", "cannot be read"),
        (Answer(200, b'{"schema": "5", "references": 5}'), "garbage", "cannot be read"),
        (Answer(200, b"\x1f\x8b??", {"Content-Encoding": "gzip"}), "garbage", "cannot be read"),
    ],
)
def test_trouble_and_garbage_are_transient_and_forgotten_when_the_registry_is_well(
    stub: StubRegistry, answer: Answer, reason: str, words: str
) -> None:
    stub.behave = lambda _: answer
    with _registry(stub.url) as registry:
        for _ in range(2):
            with pytest.raises(TransientError, match=words) as failed:
                _find(registry, 1)
            assert stub.url in str(failed.value)
        assert _errors(registry) == {reason: 2}
        stub.behave = lambda _: None
        assert _decode(_find(registry, 1), b"\x02") == 1


def test_a_registry_that_nobody_listens_at_is_unreachable_until_it_is_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with _registry(f"http://127.0.0.1:{port}") as registry:
        with pytest.raises(TransientError, match="cannot be reached"):
            _find(registry, 1)
        with StubRegistry(port) as stub:
            stub.add(1, "long")
            assert _decode(_find(registry, 1), b"\x02") == 1


def test_of_several_urls_the_first_that_answers_serves(stub: StubRegistry) -> None:
    with _registry(f"http://127.0.0.1:1,{stub.url}") as registry:
        assert _decode(_find(registry, 1), b"\x02") == 1


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_fatal_with_exit_3(stub: StubRegistry, status: int) -> None:
    stub.behave = lambda _: Answer(status)
    with _registry(stub.url, basic_auth_user_info="me:wrong-pass-1") as registry:
        with pytest.raises(AuthenticationError, match=f"HTTP {status}") as refused:
            _find(registry, 1)
        assert refused.value.exit_code is ExitCode.AUTHENTICATION
        assert "wrong-pass-1" not in str(refused.value)


def test_a_user_or_a_token_is_sent(stub: StubRegistry) -> None:
    with _registry(stub.url, basic_auth_user_info="me:pa:ss") as registry:
        _find(registry, 1)
    token: dict[str, Any] = {
        "bearer_auth_credentials_source": "STATIC_TOKEN",
        "bearer_auth_token": "abc",
        "bearer_auth_logical_cluster": "",
    }
    with _registry(stub.url, **token) as registry:
        _find(registry, 1)
    assert stub.authorization == ["Basic bWU6cGE6c3M=", "Bearer abc"]


def _certificate(directory: Path) -> Path:
    """Return a file with a certificate for 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "registry")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = Encoding.PEM
    text = key.private_bytes(pem, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(pem)
    (directory / "registry.pem").write_bytes(text)
    return directory / "registry.pem"


def test_over_tls_both_sides_are_checked_and_a_certificate_that_is_not_trusted_is_no_answer(tmp_path: Path) -> None:
    file = _certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(file))
    tls.load_cert_chain(file)
    tls.verify_mode = ssl.CERT_REQUIRED
    trusted: dict[str, Any] = {"ssl_ca_location": str(file)}
    with StubRegistry(tls=tls) as stub:
        stub.add(1, "long")
        with _registry(stub.url, **trusted, ssl_certificate_location=str(file)) as registry:
            assert _decode(_find(registry, 1), b"\x02") == 1
        for properties in (dict[str, Any](), trusted):  # no trust in it, and no certificate to show
            with (
                _registry(stub.url, **properties) as registry,
                pytest.raises(TransientError, match="cannot be reached"),
            ):
                _find(registry, 1)
        assert len(stub.asked) == 1


def test_nobody_waits_for_a_registry_that_does_not_answer_and_the_late_answer_serves(stub: StubRegistry) -> None:
    gate = threading.Event()
    stub.behave = lambda _: None if gate.wait(10) else Answer(500)
    with _registry(stub.url, timeout=8) as registry:
        for _ in range(3):
            started = time.monotonic()
            with pytest.raises(PendingError, match="waits for schema 1"):
                registry.find([1])
            assert time.monotonic() - started < QUICK_SECONDS
        gate.set()
        assert _decode(_find(registry, 1), b"\x02") == 1
        assert len(stub.asked) == 1


def test_a_registry_that_takes_longer_than_it_may_has_failed(stub: StubRegistry) -> None:
    gate = threading.Event()
    stub.behave = lambda _: None if gate.wait(10) else Answer(500)
    with _registry(stub.url, timeout=0.3) as registry:
        with pytest.raises(TransientError) as failed:
            _find(registry, 1)
        assert not isinstance(failed.value, PendingError)
        gate.set()
        eventually(lambda: not registry._asked, "the request ends")
        assert _decode(_find(registry, 1), b"\x02") == 1


def test_a_registry_that_fails_slowly_has_failed_and_is_asked_again_then(stub: StubRegistry) -> None:
    gate = threading.Event()
    stub.behave = lambda _: Answer(503) if gate.wait(10) else Answer(500)
    with _registry(stub.url) as registry:
        for _ in range(2):
            with pytest.raises(PendingError):
                registry.find([1])
        gate.set()
        eventually(lambda: bool(_errors(registry)), "the registry has failed")
        with pytest.raises(TransientError, match="HTTP 503"):
            registry.find([1])
        assert len(stub.asked) == 1
        stub.behave = lambda _: None
        assert _decode(_find(registry, 1), b"\x02") == 1


def test_a_failure_that_nobody_has_heard_of_is_old_news_after_a_while(
    stub: StubRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connector.pipeline.registry._FAILURE_KEPT_SECONDS", 0.0)
    gate = threading.Event()
    stub.behave = lambda _: Answer(503) if gate.wait(10) else Answer(500)
    with _registry(stub.url) as registry:
        with pytest.raises(PendingError):
            registry.find([1])
        stub.behave = lambda _: None
        gate.set()
        eventually(lambda: bool(_errors(registry)), "the registry has failed")
        assert _decode(_find(registry, 1), b"\x02") == 1


def test_an_answer_that_comes_byte_by_byte_is_given_up_in_time(stub: StubRegistry) -> None:
    stub.behave = lambda _: Answer(200, b" " * 100, drip=0.1)
    with _registry(stub.url, timeout=0.5) as registry:
        started = time.monotonic()
        with pytest.raises(TransientError):
            _find(registry, 1)
        eventually(lambda: bool(_errors(registry)), "the request ends")
        assert time.monotonic() - started < 5
        assert _errors(registry) == {"slow": 1}


def test_an_answer_without_end_is_given_up(stub: StubRegistry) -> None:
    stub.behave = lambda _: Answer(200, b" " * (17 * 2**20))
    with _registry(stub.url) as registry, pytest.raises(TransientError, match="more than 16MiB"):
        _find(registry, 1)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("is_date", [False, True])
def test_retry_after_is_kept_to_for_every_schema_and_told_on(stub: StubRegistry, status: int, is_date: bool) -> None:
    stub.add(2, "long")
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    stub.behave = lambda _: Answer(status, headers={"Retry-After": later if is_date else "30"})
    with _registry(stub.url) as registry:
        with pytest.raises(TransientError, match="asks to wait") as failed:
            _find(registry, 1)
        assert failed.value.retry_after == pytest.approx(30, abs=5)
        with pytest.raises(TransientError, match="asked to wait") as failed:
            _find(registry, 2)
        assert failed.value.retry_after == pytest.approx(30, abs=5)
        assert len(stub.asked) == 1
        registry._closed_until = 0.0
        stub.behave = lambda _: None
        assert _decode(_find(registry, 2), b"\x02") == 1


@pytest.mark.parametrize("header", ["soon", "-5", ""])
def test_a_retry_after_that_is_none_changes_nothing(stub: StubRegistry, header: str) -> None:
    stub.behave = lambda _: Answer(429, headers={"Retry-After": header})
    with _registry(stub.url) as registry:
        with pytest.raises(TransientError) as failed:
            _find(registry, 1)
        assert failed.value.retry_after is None
        stub.behave = lambda _: None
        assert _decode(_find(registry, 1), b"\x02") == 1


def test_an_unknown_schema_is_waited_for_and_found_when_it_comes(stub: StubRegistry) -> None:
    with _registry(stub.url, grace=30) as registry:
        for _ in range(3):
            with pytest.raises(TransientError, match="does not have schema 7; it may get it within"):
                _find(registry, 7)
        assert len(stub.asked) == 3
        stub.add(7, "long")
        assert _decode(_find(registry, 7), b"\x02") == 1


def test_an_unknown_schema_is_poison_after_the_grace_time_and_then_not_asked_for_by_every_batch(
    stub: StubRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connector.pipeline.registry._UNKNOWN_KEPT_SECONDS", 0.5)
    with _registry(stub.url, grace=0.2) as registry:
        eventually(lambda: _is_unknown(registry, 7), "schema 7 is given up")
        asked = len(stub.asked)
        found = _find(registry, 7)
        assert isinstance(found, UnknownSchemaError)
        assert "CONNECTOR_REGISTRY_UNKNOWN_GRACE=200ms" in str(found)
        assert len(stub.asked) == asked
        stub.add(7, "long")
        eventually(lambda: not _is_unknown(registry, 7), "schema 7 is asked for again")


def _is_unknown(registry: Registry, schema_id: int) -> bool:
    try:
        return isinstance(_find(registry, schema_id), UnknownSchemaError)
    except TransientError:
        return False


def test_many_unknown_schemas_share_one_grace_time(stub: StubRegistry) -> None:
    ids = range(100, 400)
    with _registry(stub.url, grace=0.5) as registry:

        def are_given_up() -> bool:
            try:
                found = registry.find([*ids, 1])
            except TransientError:
                return False
            return all(isinstance(found[each], UnknownSchemaError) for each in ids)

        eventually(are_given_up, "all are given up")
        assert _decode(_find(registry, 1), b"\x02") == 1


def test_unknown_schemas_are_remembered_up_to_a_number(stub: StubRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.pipeline.registry._MOST_UNKNOWN", 10)
    with _registry(stub.url, grace=0) as registry:
        for number in range(100, 150):
            assert isinstance(_find(registry, number), UnknownSchemaError)
        assert len(registry._unknown) == 10


@pytest.mark.parametrize(
    ("schema", "kind", "words"),
    [
        ('syntax = "proto3";', "PROTOBUF", "of the type PROTOBUF"),
        ({"type": "record", "fields": []}, "AVRO", "cannot be used"),
        ({"type": "nonsense"}, "AVRO", "cannot be used"),
        ({"type": 5}, "JSON", "cannot be used"),
    ],
)
def test_a_schema_that_cannot_be_used_is_poison_and_not_fetched_again(
    stub: StubRegistry, schema: Any, kind: str, words: str
) -> None:
    stub.add(3, schema, kind)
    with _registry(stub.url) as registry:
        for _ in range(2):
            found = _find(registry, 3)
            assert isinstance(found, UndecodableError)
            assert "schema 3" in str(found)
            assert words in str(found)
        assert len(stub.asked) == 1


def test_a_missing_reference_is_a_schema_that_may_still_come(stub: StubRegistry) -> None:
    stub.add(3, ["Money"], references=[("Money", "money", 1)])
    with _registry(stub.url) as registry:
        with pytest.raises(TransientError, match="does not have schema 3"):
            _find(registry, 3)
        stub.add(2, {"type": "record", "name": "Money", "fields": []}, subject=("money", 1))
        assert _decode(_find(registry, 3), b"\x00") == {}


def test_a_certificate_that_is_none_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"refuses CONNECTOR_REGISTRY_\*"):
        Registry(RegistrySettings({"url": "https://x", "ssl.ca.location": str(tmp_path / "ca.pem")}), Metrics())
