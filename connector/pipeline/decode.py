"""Bytes to values, by `CONNECTOR_KEY_FORMAT` and `CONNECTOR_VALUE_FORMAT`. Null stays null; empty is not null (INV-12).

Called on the pipeline's thread, once a batch and column. `bytes` costs nothing: the column is not touched.

A key or value of the formats `avro` and `json-schema` begins with the id of its schema: the byte 0 and four bytes of a
number, or the byte 1 and the 16 bytes of a GUID. Either may stand in a header instead; then all of it is payload.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias
from uuid import UUID

import orjson

from connector.api.errors import PoisonError, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from connector.api.arrow_fields import AvroRecord
    from connector.api.batch import Batch

SchemaId: TypeAlias = int | UUID
Part: TypeAlias = Literal["key", "value"]

_BY_NUMBER, _BY_GUID = 0, 1  # the first byte
_HEADERS: dict[Part, str] = {"key": "__key_schema_id", "value": "__value_schema_id"}


class Format(Enum):
    """How a key or a value is read."""

    BYTES = "bytes"
    STRING = "string"  # UTF-8
    JSON = "json"
    AVRO = "avro"
    JSON_SCHEMA = "json-schema"

    @property
    def needs_schemas(self) -> bool:
        """Whether records name their schema, which a registry has."""
        return self in (Format.AVRO, Format.JSON_SCHEMA)


class UndecodableError(PoisonError):
    """A key or value is not what its format says."""


class UnknownSchemaError(PoisonError):
    """A key or value names a schema that the registry does not have, for longer than it may take to get there."""


class PendingError(TransientError):
    """The registry has been asked for a schema and may still answer in time: no failure yet."""


class Decoder(Protocol):
    """Decodes what was written with one schema. Any thread may call it."""

    @property
    def format(self) -> Format: ...
    @property
    def avro_records(self) -> Sequence[AvroRecord]: ...

    def decode(self, payload: bytes) -> Any:
        """Return the value; a ValueError, whose text ends a sentence, if the payload is not of the schema."""


class Schemas(Protocol):
    """Where decoders come from: the registry."""

    def find(self, ids: Collection[SchemaId]) -> Mapping[SchemaId, Decoder | PoisonError]:
        """Return a decoder for each id, or why there will never be one.

        Raises:
            PendingError: No answer yet.
            TransientError: The registry cannot be asked now.
            FatalError: It refuses the credentials.
        """


_DECODERS: dict[Format, Callable[[bytes], Any]] = {Format.STRING: bytes.decode, Format.JSON: orjson.loads}


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded column, and why the entries that cannot be decoded are poison, by index (None there)."""

    values: Sequence[Any]
    problems: dict[int, PoisonError]
    avro_records: Sequence[AvroRecord] = ()


def decode(batch: Batch, part: Part, format_: Format, schemas: Schemas | None) -> Decoded:
    """Decode a column of a batch.

    Raises:
        TransientError: A schema cannot be had now.
        FatalError: The registry refuses the credentials.
    """
    if schemas is not None and format_.needs_schemas:
        return _decode_by_schema(batch, part, format_, schemas)
    column = batch.column(part)
    if format_ is Format.BYTES:
        return Decoded(column, {})
    decoder = _DECODERS[format_]
    try:
        return Decoded([None if entry is None else decoder(entry) for entry in column], {})
    except ValueError:  # both decoders raise its subclasses; find which entries
        values: list[Any] = []
        problems: dict[int, PoisonError] = {}
        for index, entry in enumerate(column):
            try:
                values.append(None if entry is None else decoder(entry))
            except ValueError as error:
                values.append(None)
                problems[index] = UndecodableError(f"{part} is not {format_.value}: {error}")
        return Decoded(values, problems)


def _decode_by_schema(batch: Batch, part: Part, format_: Format, schemas: Schemas) -> Decoded:
    problems: dict[int, PoisonError] = {}
    framed: dict[int, tuple[SchemaId, bytes]] = {}
    name = _HEADERS[part]
    for index, (entry, headers) in enumerate(batch.rows(part, "headers")):
        if entry is not None:
            try:
                framed[index] = _unframe(entry, next((content for each, content in headers if each == name), None))
            except ValueError as error:
                problems[index] = UndecodableError(f"{part} is not {format_.value}: {error}")
    ids = list(dict.fromkeys(schema_id for schema_id, _ in framed.values()))
    found = schemas.find(ids) if ids else {}
    values: list[Any] = [None] * len(batch)
    for index, (schema_id, payload) in framed.items():
        decoder = found[schema_id]
        if isinstance(decoder, PoisonError):
            problems[index] = type(decoder)(f"{part} cannot be decoded: {decoder}")
        elif decoder.format is not format_:
            problems[index] = UndecodableError(
                f"{part} is not {format_.value}: schema {schema_id} is of the format {decoder.format.value}"
            )
        else:
            try:
                values[index] = decoder.decode(payload)
            except ValueError as error:
                problems[index] = UndecodableError(f"{part} is not of schema {schema_id}: it {error}")
    decoders = [found[each] for each in ids]
    records = [record for each in decoders if not isinstance(each, PoisonError) for record in each.avro_records]
    return Decoded(values, problems, records)


def _unframe(entry: bytes, header: bytes | None) -> tuple[SchemaId, bytes]:
    """Return the schema's id and the payload; a ValueError where there is no id."""
    carrier = entry if header is None else header
    if len(carrier) >= 5 and carrier[0] == _BY_NUMBER:
        schema_id: SchemaId = int.from_bytes(carrier[1:5], "big")
        length = 5
    elif len(carrier) >= 17 and carrier[0] == _BY_GUID:
        schema_id, length = UUID(bytes=carrier[1:17]), 17
    else:
        begins = f"begins with {carrier[:1].hex()}" if carrier else "is empty"
        raise ValueError(
            f"no schema id is in {'front' if header is None else 'its header'} ({len(carrier)} byte(s), {begins}); "
            "a serializer for the schema registry writes one"
        )
    return schema_id, entry if header is not None else entry[length:]
