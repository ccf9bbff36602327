"""The sink `parquet` in a bucket: a real client against a server of the protocol, and what its answers mean."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from connector import AuthenticationError, ConfigError, ConnectorError, FatalError, Secret, SinkContext, TransientError
from sinks.parquet import ParquetSettings, ParquetSink
from tests.support.engine import eventually
from tests.unit.sinks.sink_batches import make_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector import Batch
    from tests.support.s3 import S3Server

NAME = "in/side/orders/date=2025-12-31/orders-3-000000000010-000000000011-2-id-1.parquet"


def settings_of(s3: S3Server, bucket: str, **more: Any) -> ParquetSettings:
    return ParquetSettings(
        **{
            "path": f"s3://{bucket}/in/side/",
            "endpoint": s3.url,
            "region": "us-east-1",
            "access_key_id": "tester",
            "secret_access_key": Secret("tester-secret"),
            "timeout": 2,
            **more,
        }
    )


def make_sink(settings: ParquetSettings) -> ParquetSink:
    return ParquetSink(settings, SinkContext(group_id="group"))


def written(sink: ParquetSink, batch: Batch) -> ConnectorError | None:
    """Write a file of one batch and return what the sink says of it."""
    answers: list[ConnectorError | None] = []
    sink.submit(batch, answers.append)
    sink.flush(batch.metadata.lane)
    eventually(lambda: bool(answers))
    return answers[0]


@pytest.fixture
def bucket(s3: S3Server) -> str:
    return s3.bucket()


@pytest.fixture
def sink(s3: S3Server, bucket: str) -> Iterator[ParquetSink]:
    made = make_sink(settings_of(s3, bucket))
    made.open()
    yield made
    made.close()


def test_a_file_is_an_object_below_the_prefix(s3: S3Server, bucket: str, sink: ParquetSink) -> None:
    assert written(sink, make_batch(b"1", None)) is None
    ((key, data),) = s3.objects(bucket).items()
    assert key == NAME
    assert pq.read_table(io.BytesIO(data), partitioning=None).column("value").to_pylist() == [b"1", None]


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests")])
def test_a_store_that_is_overloaded_is_transient_and_the_next_try_writes(
    s3: S3Server, bucket: str, sink: ParquetSink, status: int, code: str
) -> None:
    with s3.answering(status, code):
        assert type(written(sink, make_batch(b"1"))) is TransientError
        with pytest.raises(TransientError, match=code):
            sink.probe()
    assert s3.objects(bucket) == {}
    sink.probe()
    assert written(sink, make_batch(b"1")) is None
    assert len(s3.objects(bucket)) == 1


def test_a_store_that_is_silent_or_away_is_transient(s3: S3Server, bucket: str) -> None:
    slow = make_sink(settings_of(s3, bucket, timeout=0.3))
    slow.open()
    with s3.hanging("PUT") as hanging:
        assert type(written(slow, make_batch(b"1"))) is TransientError
        assert hanging() > 0
    slow.close()
    with pytest.raises(TransientError, match="cannot list in bucket"):
        make_sink(settings_of(s3, bucket, endpoint="http://127.0.0.1:9")).open()


def test_credentials_that_nobody_knows_are_an_error_of_authentication(s3: S3Server, bucket: str) -> None:
    with s3.knowing_its_users(), pytest.raises(AuthenticationError, match="InvalidAccessKeyId") as caught:
        make_sink(settings_of(s3, bucket)).open()
    assert "tester-secret" not in str(caught.value)


def test_without_any_credentials_it_says_how_to_give_them(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        monkeypatch.delenv(name, raising=False)
    nothing = str(tmp_path_factory.mktemp("aws") / "none")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", nothing)
    monkeypatch.setenv("AWS_CONFIG_FILE", nothing)
    with pytest.raises(AuthenticationError, match="CONNECTOR_SINK_ACCESS_KEY_ID"):
        make_sink(settings_of(s3, bucket, access_key_id=None, secret_access_key=None)).open()


def test_credentials_may_come_from_the_environment(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tester-secret")
    sink = make_sink(settings_of(s3, bucket, access_key_id=None, secret_access_key=None))
    sink.open()
    assert written(sink, make_batch(b"1")) is None
    sink.close()


def test_the_right_to_write_is_enough(s3: S3Server, bucket: str) -> None:
    sink = make_sink(settings_of(s3, bucket))
    with s3.answering(403, "AccessDenied", method="GET"):
        sink.open()
        assert written(sink, make_batch(b"1")) is None
    with s3.answering(403, "AccessDenied", method="PUT"):
        denied = written(sink, make_batch(b"2", offset=11))
    assert type(denied) is AuthenticationError
    assert "s3:PutObject" in str(denied)
    sink.close()


def test_a_bucket_that_is_missing_is_an_error_of_the_settings(s3: S3Server) -> None:
    with pytest.raises(ConfigError, match=r"NoSuchBucket.*Make the bucket"):
        make_sink(settings_of(s3, "no-such-bucket")).open()


@pytest.mark.parametrize(
    ("status", "code", "kind", "text"),
    [
        (400, "AuthorizationHeaderMalformed", ConfigError, "CONNECTOR_SINK_REGION"),
        (400, "InvalidBucketName", ConfigError, "CONNECTOR_SINK_PATH"),
        (400, "ExpiredToken", AuthenticationError, "Check the credentials"),
        (400, "RequestTimeout", TransientError, "RequestTimeout"),
        (405, "MethodNotAllowed", FatalError, "MethodNotAllowed"),
    ],
)
def test_an_answer_means_what_has_to_be_done(
    s3: S3Server, status: int, code: str, kind: type[ConnectorError], text: str
) -> None:
    with s3.answering(status, code), pytest.raises(kind, match=text) as caught:
        make_sink(settings_of(s3, "any")).open()
    assert type(caught.value) is kind


def test_an_endpoint_that_is_none_is_an_error_of_the_settings(s3: S3Server, bucket: str) -> None:
    with pytest.raises(ConfigError, match="CONNECTOR_SINK_ENDPOINT"):
        make_sink(settings_of(s3, bucket, endpoint="http://[x")).open()
