"""Settings of the sink `parquet`."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator

from connector import Duration, Field, Secret, Settings, Size
from sinks.template import placeholders

PLACEHOLDERS = ("topic", "partition", "record_date", "record_hour", "date")
Columns: TypeAlias = Literal["auto", "record", "fields"]
Compression: TypeAlias = Literal["zstd", "snappy", "gzip", "lz4", "none"]
_S3 = re.compile(r"s3://(?P<bucket>[^/]+)/?(?P<prefix>.*)", re.DOTALL)


def _check_path(path: str) -> str:
    if not path or (path.startswith("s3:") and _S3.fullmatch(path) is None):
        raise ValueError("is neither a folder nor a bucket; write one as in /data/lake or s3://bucket/prefix")
    return path


def _check_layout(layout: str) -> str:
    placeholders(layout, PLACEHOLDERS)
    if any(part in ("", ".", "..") for part in layout.split("/")) and layout:
        raise ValueError("is not a path below CONNECTOR_SINK_PATH; write one as in {topic}/date={record_date}")
    return layout


class ParquetSettings(Settings):
    """Where files go, what is in them, and what ends one."""

    path: Annotated[str, AfterValidator(_check_path)] = Field(
        description="Folder, or `s3://bucket/prefix`; the bucket has to exist. Two groups need two of them"
    )
    layout: Annotated[str, AfterValidator(_check_layout)] = Field(
        default="{topic}/date={record_date}",
        description="Folders below it, a template: {topic}, {partition}, {record_date} and {record_hour} (UTC, of the "
        "record's timestamp; `__HIVE_DEFAULT_PARTITION__` without one), {date} (UTC date of writing)",
    )
    columns: Columns = Field(
        default="auto",
        description="`record`: topic, partition, offset, timestamp, timestamp_type, key, value, headers. `fields`: a "
        "column for each field of the value, which has to be an object, and kafka_topic, kafka_partition, … `auto`: "
        "fields under CONNECTOR_VALUE_FORMAT=json, avro and json-schema",
    )
    file_rows: int = Field(
        default=1_000_000, ge=1, description="A file ends with the batch that brings it to so many records,"
    )
    file_bytes: Size = Field(
        default=64 * 2**20,
        ge=1,
        le=2**32,
        description="or to so many bytes, as they count in the memory budget, which is not compressed,",
    )
    file_age: Duration = Field(
        default=300.0, gt=0, description="or so long after its first record, also when nothing more comes"
    )
    compression: Compression = Field(default="zstd", description="How columns are compressed")
    row_group_rows: int = Field(default=100_000, ge=1, description="Records in a row group")
    endpoint: str | None = Field(
        default=None, pattern=r"https?://.+", description="S3: address of a store other than that of AWS"
    )
    region: str | None = Field(default=None, description="S3: region; by default that of the environment")
    access_key_id: str | None = Field(
        default=None,
        description="S3: credentials; by default those of the environment, of a profile, or of the role that the "
        "machine or the pod has, as every AWS tool finds them",
    )
    secret_access_key: Secret | None = Field(default=None, description="S3: goes with the access key")
    session_token: Secret | None = Field(default=None, description="S3: goes with temporary keys")
    timeout: Duration = Field(
        default=5.0, gt=0, description="S3: how long the store may be silent; each request has two attempts"
    )

    @property
    def bucket(self) -> tuple[str, str] | None:
        """The bucket and the prefix without a slash at its end; None: the path is a folder."""
        found = _S3.fullmatch(self.path)
        return None if found is None else (found["bucket"], found["prefix"].strip("/"))

    def problems(self, pipelines: int) -> list[str]:
        """Refuse settings of S3 for a folder, half of a pair of keys, and a bucket without the library for it."""
        if self.bucket is None:
            names = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
            given = [f"CONNECTOR_SINK_{name.upper()}" for name in names if getattr(self, name) is not None]
            problem = (
                f"{', '.join(given)}: only for a bucket, and CONNECTOR_SINK_PATH={self.path} is a folder. Remove it, "
                "or set the path to s3://bucket/prefix."
            )
            return [problem] if given else []
        found = []
        if (self.access_key_id is None) != (self.secret_access_key is None):
            found.append(
                "CONNECTOR_SINK_ACCESS_KEY_ID and CONNECTOR_SINK_SECRET_ACCESS_KEY go together. Set both, or none to "
                "take the credentials of the environment."
            )
        if find_spec("boto3") is None:
            found.append(f"CONNECTOR_SINK_PATH={self.path} needs boto3: pip install 'sluiceway[parquet]'.")
        return found
