"""The sink `parquet` keeps the contract that a plugin's sink is held to."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connector import Secret
from connector.testing import SinkContract
from sinks.parquet import ParquetSettings, ParquetSink
from tests.support.parquet_files import read_rows, rows_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.support.s3 import S3Server


class TestParquet(SinkContract[ParquetSettings]):
    """Files that end because the connector asks for it."""

    sink_type = ParquetSink

    def make_settings(self, tmp_path: Path) -> ParquetSettings:
        return ParquetSettings(path=f"{tmp_path}/lake")

    def read_back(self, settings: ParquetSettings) -> list[tuple[Any, ...]]:
        return read_rows(Path(settings.path))


class TestParquetOfOneBatch(TestParquet):
    """Files that are full with each batch."""

    def make_settings(self, tmp_path: Path) -> ParquetSettings:
        return ParquetSettings(path=f"{tmp_path}/lake", file_rows=1, layout="", compression="none")


class TestParquetInABucket(SinkContract[ParquetSettings]):
    """Objects of a server that speaks S3."""

    sink_type = ParquetSink

    @pytest.fixture(autouse=True)
    def _server(self, s3: S3Server) -> None:
        self.server = s3

    def make_settings(self, tmp_path: Path) -> ParquetSettings:
        return ParquetSettings(
            path=f"s3://{self.server.bucket()}/lake",
            endpoint=self.server.url,
            region="us-east-1",
            access_key_id="tester",
            secret_access_key=Secret("tester-secret"),
        )

    def read_back(self, settings: ParquetSettings) -> list[tuple[Any, ...]]:
        assert settings.bucket is not None
        objects = self.server.objects(settings.bucket[0])
        return [row for data in objects.values() for row in rows_of(io.BytesIO(data))]

    def outage(self, settings: ParquetSettings) -> AbstractContextManager[object]:
        return self.server.answering(503, "SlowDown")
