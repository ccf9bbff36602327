"""Files in a bucket of S3, or of a store that speaks its protocol.

A file is one PUT, so it appears whole or not at all, and an interrupted one leaves nothing. On the writer's thread,
`open` and `probe` on the sink's; the client may be used by several.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
)

from connector import AuthenticationError, ConfigError, FatalError, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from sinks.parquet.settings import ParquetSettings

_REFUSED = frozenset(
    (
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
    )
)
_LATER = frozenset(("RequestTimeout", "RequestTimeTooSkewed", "OperationAborted", "SlowDown", "TooManyRequests"))
_SETTING = {
    "NoSuchBucket": "Make the bucket, or set CONNECTOR_SINK_PATH to one that exists.",
    "InvalidBucketName": "Set CONNECTOR_SINK_PATH to s3://bucket/prefix.",
    "KeyTooLongError": "Shorten CONNECTOR_SINK_PATH or CONNECTOR_SINK_LAYOUT.",
    "EntityTooLarge": "Lower CONNECTOR_SINK_FILE_BYTES.",
    "PermanentRedirect": "Set CONNECTOR_SINK_REGION to that of the bucket.",
    "AuthorizationHeaderMalformed": "Set CONNECTOR_SINK_REGION to that of the bucket.",
    "IllegalLocationConstraintException": "Set CONNECTOR_SINK_REGION to that of the bucket.",
}


class Bucket:
    """A bucket and a prefix in it.

    Args:
        bucket: Its name.
        prefix: What every key begins with, without a slash at its end.
        settings: Where it is, and whose it is.
    """

    def __init__(self, bucket: str, prefix: str, settings: ParquetSettings) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._settings = settings
        self._client: Any = None

    def open(self) -> None:
        """See that the bucket is there and the credentials are good.

        Raises:
            AuthenticationError: They are not.
            ConfigError: There is no such bucket, or not in this region.
            TransientError: The store does not answer, or not now.
        """
        settings = self._settings
        secret, token = settings.secret_access_key, settings.session_token
        with self._errors("open"):
            self._client = boto3.session.Session().client(
                "s3",
                endpoint_url=settings.endpoint,
                region_name=settings.region,
                aws_access_key_id=settings.access_key_id,
                aws_secret_access_key=secret and secret.get_secret_value(),
                aws_session_token=token and token.get_secret_value(),
                config=Config(
                    connect_timeout=settings.timeout,
                    read_timeout=settings.timeout,
                    # The connector tries again by itself, with backoff; these are for what is over in a moment.
                    retries={"total_max_attempts": 2, "mode": "standard"},
                    # A store at an address of its own has no name for each bucket.
                    s3={"addressing_style": "path" if settings.endpoint else "auto"},
                    # Not every store knows the newer checksums; the MD5 of `put` is as old as the protocol.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        self.probe()

    def probe(self) -> None:
        """Ask for one name below the prefix; raises as `open` does. The right to write is enough: that to list is not
        needed."""
        try:
            with self._errors("list"):
                self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
        except AuthenticationError as error:
            if not _is_denied(error):
                raise

    def place(self, name: str) -> str:
        """Return what a file is called in logs and errors."""
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def put(self, name: str, data: pa.Buffer) -> None:
        """Upload a file, which is stored when this returns. One of the same name is replaced.

        Raises:
            ConnectorError: As `open` does; `AuthenticationError` also where the right to write is missing.
        """
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        with self._errors(f"write {self.place(name)}"):
            self._client.put_object(
                Bucket=self._bucket, Key=self._prefix + name, Body=data.to_pybytes(), ContentMD5=digest
            )

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        what = f"cannot {doing} in bucket {self._bucket}" if doing in ("open", "list") else f"cannot {doing}"
        try:
            yield
        except ClientError as error:
            raise _meaning(what, error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise AuthenticationError(
                f"{what}: {error}. Set CONNECTOR_SINK_ACCESS_KEY_ID and CONNECTOR_SINK_SECRET_ACCESS_KEY, or give the "
                "process credentials that AWS tools find."
            ) from error
        except (ParamValidationError, NoRegionError, ValueError) as error:  # ValueError: no such endpoint can be
            raise ConfigError(
                f"{what}: {error} Check CONNECTOR_SINK_PATH, CONNECTOR_SINK_ENDPOINT and CONNECTOR_SINK_REGION."
            ) from error
        except BotoCoreError as error:
            raise TransientError(f"{what}: {error}") from error


def _meaning(what: str, error: ClientError) -> FatalError | TransientError:
    """Return what an answer of the store means."""
    answer = error.response.get("Error", {})
    code, text = str(answer.get("Code", "")), f"{what}: {answer.get('Code')} ({answer.get('Message')})"
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _LATER or status >= 500 or status == 429:
        return TransientError(text)
    if code in _REFUSED or status in (401, 403):
        return AuthenticationError(
            f"{text}. Check the credentials, and that they have the right s3:PutObject on the prefix."
        )
    if code in _SETTING:
        return ConfigError(f"{text}. {_SETTING[code]}")
    return FatalError(text)


def _is_denied(error: AuthenticationError) -> bool:
    cause = error.__cause__
    return isinstance(cause, ClientError) and cause.response.get("Error", {}).get("Code") == "AccessDenied"
