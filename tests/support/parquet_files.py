"""What the sink `parquet` has written, as any reader finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path


def parquet_files(folder: Path) -> list[Path]:
    """Return every file below a folder that a reader takes, in the order in which they were written."""
    found = [path for path in folder.rglob("*.parquet") if not any(part.startswith(".") for part in path.parts)]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def read_rows(folder: Path) -> list[tuple[Any, ...]]:
    """Return the records of all files that have them as records: topic, partition, offset, value, key, headers."""
    return [row for path in parquet_files(folder) for row in rows_of(path)]


def rows_of(source: Path | BinaryIO) -> list[tuple[Any, ...]]:
    """Return the records of one file, as `read_rows` does."""
    rows: list[tuple[Any, ...]] = []
    for row in pq.ParquetFile(source).read().to_pylist():
        headers = [(header["name"], header["value"]) for header in row["headers"]]
        rows.append((row["topic"], row["partition"], row["offset"], row["value"], row["key"], headers))
    return rows
